//! The Rust client of Quorate: commands, and interactive transactions that are tried again after a
//! conflict.
//!
//! ```no_run
//! use quorate_client::{Client, Error};
//!
//! # async fn example() -> Result<(), Error> {
//! // Any node will do; with several, the client survives the loss of one.
//! let client = Client::builder(&["127.0.0.1:6379", "127.0.0.1:6380", "127.0.0.1:6381"])
//!     .database(1)
//!     .connect()
//!     .await?;
//! client.set("alice", "100").await?;
//!
//! // Which keys it reads may depend on what it has read.
//! let rest = client
//!     .txn(async |t| {
//!         let rest = t.incr_by("alice", -30).await?;
//!         if rest < 0 {
//!             return Err(Error::aborted("alice has too little"));
//!         }
//!         t.incr_by("bob", 30).await?;
//!         t.set("last transfer", "alice to bob");
//!         Ok(rest)
//!     })
//!     .await?;
//! println!("alice has {rest} left");
//! # Ok(())
//! # }
//! ```
//!
//! # What a transaction guarantees
//! All its reads and writes happen at one moment, as strictly as the isolation of its keyspace says
//! ([`Client::txn`]). Each read is `WATCH` and `GET`, sent together; the writes wait in the client,
//! and the commit is `MULTI`, the writes and `EXEC`, sent together: one round trip for each read
//! (or for several at once, [`Txn::mget`]) and one for the commit. The server is any node, and any
//! Redis server. Keys of one transaction may be any keys if the keyspace's engine has transactions;
//! otherwise the node answers `CROSSKEY`.
//!
//! # What happens when something fails
//!
//! | what | what the client does |
//! | --- | --- |
//! | `EXEC` answers a null array: a key that was read has changed | pauses, runs the closure again |
//! | `TRYAGAIN` | pauses, tries again |
//! | no connection, `CLUSTERDOWN`, `LOADING`, `READONLY` | tries another node; pauses if none is left |
//! | the connection is lost, or the time over, during a read | as above |
//! | the same before the last byte of an update or of `EXEC` had left | as above: it can't have happened |
//! | the same after that, or `UNKNOWN`: an update | asks again at another node; it happens once |
//! | the same: the commit of a transaction | finds out elsewhere; if not, runs the closure again |
//! | the same, without sessions | [`Error::Unknown`], at once |
//! | any other error | [`Error::Server`], at once |
//!
//! Pauses double from 1 ms to 100 ms, half of each left to chance. Attempts are bounded in number
//! and in time ([`limits`], [`Builder`]).
//!
//! Updates and commits are calls of *sessions*: they are numbered, so that a node that is asked
//! again returns the answer of the first try. The client opens as many sessions as it has updates
//! under way at a time, and attaches them to other connections after a failure; they end half an
//! hour after their last use. When the attempts are used up, [`Error::Unknown`] names the call, and
//! [`Client::ask_again`] goes on. While no call is open, the numbers are left out, as the node
//! counts the commands (`SESSION AUTO`). A server without sessions, such as Redis, gets plain
//! commands.
//!
//! A future that is dropped half-way takes its connection with it. The commands that it had sent
//! may happen.
//!
//! # Without a node in between
//! A [`Coordinator`] ([`Client::coordinator`]) runs the same transactions over the nodes' own
//! protocol, as the coordinator that a node would otherwise be: one hop less, no work for a node
//! besides that of a replica, and a transaction outlives the loss of any one node. Nodes admit it
//! to keyspaces with the engine meerkat, if `[cluster] guests = true`, at their *peer* addresses.
//! The chapter on clients describes the trust that it needs and its limits.
#![forbid(unsafe_code)]

pub mod limits;

mod block;
mod builder;
mod calls;
mod client;
mod commit;
mod connection;
mod error;
mod guest;
mod over_resp;
mod parser;
mod pipeline;
mod pool;
mod reply;
mod request;
mod retry;
mod routes;
mod sessions;
#[cfg(test)]
mod tests;
mod transport;
mod txn;

pub use builder::Builder;
pub use client::Client;
pub use error::Error;
pub use guest::{Coordinator, CoordinatorBuilder};
pub use pipeline::Pipeline;
pub use reply::{Reply, ServerError};
pub use sessions::OpenCall;
pub use txn::Txn;
