//! The simulator: whole clusters in virtual time, under faults, decided by one seed.
//!
//! A world runs the very same [`quorate_node::Lane`]s as the runtime, over a network that loses,
//! duplicates, delays and reorders single messages, on clocks that drift, with processes that crash
//! and lose their memory, stop in the middle of a loop turn and go on, and come back under a fresh
//! incarnation. Clients issue commands and transactions through any node, or coordinate
//! transactions themselves as guests, and record a history, which `quorate-check` judges
//! afterwards. Clients with sessions make calls, and try them again at any node.
//!
//! # A run
//! 1. *Start*: the nodes form their first view.
//! 2. *Safety phase*: clients work while the nemesis breaks things, never more than a minority of
//!    the replicas at a time: the protocol survives no more.
//! 3. *Heal*: faults end; within [`Options::heal_limit`] every node must serve again, every client
//!    must get through on every node, and all replicas must agree.
//!
//! With [`Options::disks`] nodes have simulated disks, with the faults of real ones. What each of these
//! does to a log, at every moment, is tested where the log is (`quorate-durability`), and what it means
//! for gates with a small store (`tests/power_cuts`).
//!
//! The same seed gives the same run, event by event; [`Run::digest`] shows that in one number. A
//! failing run can be recorded as a [`Script`] and made as short as possible ([`shrink`]).
#![forbid(unsafe_code)]

mod budget;
mod channels;
mod clients;
mod collections;
mod command;
mod disk_faults;
mod disks;
mod faults;
mod flow;
mod guests;
mod health;
mod intent;
mod judge;
mod keyspaces;
mod lapses;
mod links;
mod loader;
mod losses;
mod monotonic;
mod moves;
mod names;
mod nemesis;
mod network;
mod operations;
mod operator;
mod options;
mod parts;
mod process;
mod progress;
mod queues;
mod restored;
mod risks;
mod script;
mod session_plan;
mod sessions;
mod setup;
mod shapes;
mod shrink;
mod steps;
mod sweep;
mod trace;
mod transactions;
mod turns;
mod untold;
mod world;

pub use budget::{Cost, measure_costs};
pub use faults::Faults;
pub use keyspaces::Beside;
pub use options::{Durabilities, Engine, Isolations, Options, Workload};
pub use quorate_meerkat::Isolation;
pub use script::Script;
pub use shapes::Shapes;
pub use shrink::shrink;
pub use sweep::{Failure, FailureKind, Run, Sweep, record, replay, run, sweep};
