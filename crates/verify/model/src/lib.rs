//! The model checker: every state that small clusters of the real machines can get into.
//!
//! A *scope* is a cluster of a few nodes, the requests of its clients, and how often messages are
//! lost or repeated, timers run out, processes end and views change. From its first state every
//! action is tried in every state: any message under way may be the next to arrive. After each step
//! the machines check themselves, and the specification checks that the answers that clients heard
//! have an order, and the further promises of the protocol. The number of different states of a
//! scope is known and asserted, so that an exploration that misses some doesn't pass for one
//! without a violation.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`engine`] | the one trait by which a protocol plugs in |
//! | [`world`] | a state: machines, messages under way, what may still go wrong |
//! | [`scope`] | the cluster to explore, and the actions |
//! | [`explore`] | the search (the library `stateright`), and traces in words |
//! | [`history`] | whether some order explains what clients heard |
//! | [`scopes`] | every scope by name |
//!
//! Time is virtual and advances only when a timer runs out: to the first deadline of the machine
//! whose timer it is, whatever the others' are. So a slow node is one whose timers and messages
//! wait, and only the order of deadlines matters. Two states are the same if the hashes of
//! machines, messages, budgets and ledger agree in 64 bits.
#![forbid(unsafe_code)]

pub mod engine;
pub mod explore;
mod hermes;
pub mod history;
mod lists;
mod meerkat;
mod membership;
mod paxos;
mod register;
pub mod scope;
pub mod scopes;
mod served;
mod txn;
mod votes;
pub mod world;
mod zeus;
