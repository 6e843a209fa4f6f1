//! The Redis front end of one lane: parser, encoder, connections, `MULTI` and `WATCH`.
//!
//! Sans-IO: a [`Frontend`] owns connections but no socket, and reaches the store only through
//! [`Backend`]. The runtime and the simulator drive it alike.
//!
//! ```text
//! bytes ─ read_buffer → Parser → dispatch ┬─ connection or node command ──────────→ reply
//!                                         ├─ read, nothing in flight → Backend::read → reply, bound to the lease
//!                                         └─ otherwise → Backend::submit … complete → reply
//! replies, in command order ─ seal(lease held?) → output → socket
//! ```
//!
//! What it guarantees:
//! - **Order.** Replies come in the order of commands, however the ops behind them complete. Ops
//!   of one connection on one key, and transactions of one connection that share a key, take
//!   effect in order (the engine's promise per `origin`), and a read is submitted behind the
//!   connection's own unfinished updates and transactions rather than answered from the replica,
//!   so that a connection always sees what it wrote and never goes back behind what it saw.
//! - **Atomicity.** In a keyspace that is [`Backend::transactional`], a command over several keys
//!   is one transaction, and so is all that `EXEC` does with keys, watches included. In others a
//!   block touches one key, `CROSSKEY` otherwise, and a command over several runs key by key if
//!   it can.
//! - **Freshness.** A reply that rests on a local read leaves only if the lease held after the
//!   read ([`Frontend::seal`]).
//! - **Honesty.** An op that may have happened is never reported as failed: its error begins with
//!   `UNKNOWN`. A command that changed some of its keys and not the others is `UNKNOWN` too.
//! - **Bounded memory.** Every buffer has a limit ([`limits`], [`Settings`]), and all together have
//!   one (`maxmemory-clients`); a client that doesn't read its replies isn't served further.
//!
//! # Deviations from Redis 7
//! - `proto-max-bulk-len`, `client-query-buffer-limit` and the output limit of normal clients are
//!   lower by default, and the first two can't be set above what a value and a buffer hold. The error
//!   of an argument beyond the first names it, and the connection closes once the argument was read.
//! - A command that waits is refused as a call of a session (`SESSION CALL`, `SESSION AUTO`): the call
//!   would keep the answer of its first try. `CLIENT UNBLOCK` may answer 1 for a client that is served
//!   at that moment. A `BLMOVE` or `BRPOPLPUSH` whose source is given another type while it waits is
//!   answered `WRONGTYPE` if it is tried then.
//! - `WAIT` never waits for writes, which every live replica has acknowledged before their
//!   replies; it counts live replicas.
//! - Inside `MULTI`, commands without keys run after those on keys. `FLUSHDB` can't be combined
//!   with keys there, and the block's keys and the watched ones are in one keyspace (`CROSSKEY`).
//! - A connection watches no more keys than a transaction may read.
//! - Keyspace notifications: `m` (misses) is accepted and tells nothing; a connection that listens to its
//!   own changes gets the message behind the answer.
//! - `CONFIG GET` answers in order of name. What a command took is known
//!   where the clock is read anyway: see `SLOWLOG`, `LATENCY` and `COMMANDSTATS`.
//! - `CLIENT PAUSE` and `MONITOR` are about the clients of one node.
#![forbid(unsafe_code)]

pub mod limits;

mod account;
mod acl;
mod backend;
mod blocking;
mod calls;
mod connection;
mod debug;
mod dispatch;
mod encode;
mod frontend;
mod gather;
mod info;
mod latency;
mod monitor;
mod notify;
mod parser;
mod pause;
mod pending;
mod persistence;
mod placement;
mod pubsub;
mod reads;
mod scripts;
mod server;
mod session;
mod settings;
mod shared;
mod slowlog;
mod tracking;
mod transaction;
mod turn;
mod walk;

pub use account::{Holding, Share};
pub use backend::{
    Attempt, Backend, Blocking, Invalidation, KeyspaceFacts, Listed, MemoryFacts, PersistenceFacts,
    PlacementFacts, ServerFacts,
};
pub use connection::{ConnectionId, OutputBuffer};
pub use encode::{Protocol, encode};
pub use frontend::Frontend;
pub use parser::{
    ARGUMENTS_MAX, INLINE_BYTES_MAX, Limits, Parser, ProtocolError, Step,
    UNAUTHENTICATED_ARGUMENTS_MAX, UNAUTHENTICATED_BULK_BYTES_MAX,
};
pub use quorate_commands::glob_match;
pub use session::REDIS_VERSION;
pub use settings::Settings;
pub use shared::{LaneStats, Shared, Totals};
