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
#![forbid(unsafe_code)]

mod generator;
mod layout;
mod load;
mod permutation;
pub mod redis;
mod report;
mod sockets;
mod transaction;
mod zipf;

pub use generator::{Fill, Generator, Sweep, Workload};
pub use layout::Layout;
pub use load::{Feed, LoadError, Plan, Source, Target, run};
pub use permutation::Permutation;
pub use report::{Answer, Counts, Report};
pub use sockets::{Dialect, Misunderstood, Sockets, Step};
pub use transaction::{Content, Put, Transaction, TransactionKind};
pub use zipf::{BadZipf, Zipf};
