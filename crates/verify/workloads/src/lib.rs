//! Transactions to measure with, and the closed loop that drives them.
//!
//! Three parts, each usable without the next:
//!
//! - **Which keys.** [`Zipf`] draws ranks exactly, [`Permutation`] spreads them over the key space.
//! - **Which transactions.** A [`Workload`] makes a [`Generator`] of [`Transaction`]s: keys to get
//!   and keys to put, as data. They know no engine and no protocol, and follow from one seed.
//! - **Where to.** [`run`] drives a [`Target`] in a closed loop: each client has a batch of
//!   requests under way and starts the next one when the whole batch is answered. [`Sockets`] is
//!   the target over TCP, for any [`Dialect`]; [`redis`] has the dialects of the Redis protocol. A
//!   cluster in the same process can be a target, too: it asks its [`Feed`] for requests, and
//!   reports their answers to it.
//!
//! | workload | a transaction | source |
//! | --- | --- | --- |
//! | `ycsb-t` | reads and writes one key | Meerkat §6.2, YCSB workload F |
//! | `retwis` | one of four kinds, with up to ten keys | Meerkat, table 2 |
//! | `multi` | `GET` and `SET` of one key | keys and values as in `bench/compare` |
//! | `bank` | moves money between two accounts | the sum never moves |
//! | `mget` | reads three keys | |
//!
//! A [`Scenario`] makes a [`LocalGenerator`] of the workloads whose transactions mostly use what was
//! used on the same node before, and an [`Audit`] of what must hold afterwards.
//!
//! | workload | a transaction | source |
//! | --- | --- | --- |
//! | `smallbank` | one of six kinds, on one or two accounts | Zeus §8.2, FaSST's implementation |
//! | `tatp` | one of seven kinds, on a subscriber | Zeus §8.3, FaSST's implementation |
//! | `voter` | counts a vote | Zeus §8.4 |
//! | `handovers` | one of four kinds, on a phone and one or two stations | Zeus §8.1 |
//! | `venmo` | moves money between friends, synthetic | Zeus §8, cut of its graph |
#![forbid(unsafe_code)]

mod generator;
mod layout;
mod load;
mod local;
mod permutation;
pub mod redis;
mod report;
mod sockets;
mod transaction;
mod zipf;

pub use generator::{Fill, Generator, Sweep, Workload};
pub use layout::Layout;
pub use load::{Feed, LoadError, Plan, Source, Target, Turn, run};
pub use local::{
    Audit, AuditSweep, Benchmark, Drawn, FirstContents, Geography, Ledger, LocalGenerator, Moves,
    Part, Scenario, Territories, Verdict, tpcc,
};
pub use permutation::Permutation;
pub use report::{Answer, Counts, Report};
pub use sockets::{Dialect, Misunderstood, Sockets, Step};
pub use transaction::{Content, Put, Rule, Tells, Transaction, TransactionKind};
pub use zipf::{BadZipf, Zipf};
