//! Exactly once: a call that is tried again runs once, and every try gets the same answer.
//!
//! Source: S. J. Park, *Achieving Both Low Latency and Strong Consistency in Large-Scale Systems*,
//! PhD thesis, Stanford 2019, chapter 2 (RIFL). `docs/design/006-sessions.md` adapts it to replicas
//! without a disk and without a master, and argues why that is right.
//!
//! # Guarantee
//! A call with one id takes effect at most once, however often and at however many nodes it is
//! tried, and an answer that was given once is given to every try until the client acknowledges the
//! call. A client that has lost its lease is told so: the outcomes of its open calls are unknown.
//!
//! # Parts
//! | part | where it runs | in the thesis |
//! | --- | --- | --- |
//! | [`RequestTracker`] | client: numbers calls, knows the first incomplete one | `RequestTracker` |
//! | [`ClientLease`] | client: how long its lease lasts at least | `LeaseManager` |
//! | [`Numbering`] | a connection's node: numbers the calls of a client that leaves that to it | |
//! | [`LeaseManager`] | each lane of each node: leases, and their clock | lease server |
//! | [`ResultTracker`] | beside an engine's keys: what became of each call | `ResultTracker` |
//!
//! An engine takes part by implementing [`Sessions`].
//!
//! # A call at a replica
//! ```text
//! (new) ─begin→ in progress ─complete→ completed ─acknowledged→ stale
//!    ↑───── abandon ──┘                    ↑
//!    └───────────── complete ──────────────┘   (decided elsewhere)
//! ```
//!
//! # Where this differs from the thesis, and why
//! - **A lease id names its owner** ([`LeaseId`]): there is no lease server to find, and opening a
//!   lease takes no message.
//! - **Attempts and expiries are dated** on one hybrid clock ([`ResultTracker::admits`]), so that
//!   an attempt that was under way for long meets no replica that has forgotten its call. The
//!   thesis compares the client's expiry with the clock at one server.
//! - **An id is shown with a token** ([`Key::token`]), or a client could end the sessions of others
//!   by counting.
//! - **A closed session** is remembered until its term ends.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod answer;
mod call;
mod client;
mod directory;
mod grant;
mod key;
mod lease_manager;
mod message;
mod numbering;
mod records;
mod result_tracker;
mod sessions;
mod terms;

pub use answer::AnswerBytes;
pub use quorate_machine::CallError;

pub use call::{Call, LeaseId};
pub use client::{ClientLease, RequestTracker};
pub use grant::{Answer, Config, Grant, LeaseEnd, Lost, Request, owner_of};
pub use key::{Genuine, Key};
pub use lease_manager::LeaseManager;
pub use message::{Body, Denial, Message};
pub use numbering::Numbering;
pub use result_tracker::{Found, Kept, ResultTracker};
pub use sessions::{Permit, Sessions};
