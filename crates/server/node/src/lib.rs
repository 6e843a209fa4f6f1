//! One lane of one node, composed from machines, without I/O.
//!
//! A [`Lane`] holds one engine for each keyspace and, on lane 0, the membership machine of its
//! node. A driver (the runtime's event loop or the simulator) hands it peer messages, client ops,
//! mail from the node's other lanes, and time; what the lane wants done collects in an [`Outbox`]
//! that the driver empties at the end of each loop turn.
//!
//! # A loop turn
//! 1. any number of [`Lane::receive`], [`Lane::submit`], [`Lane::read`], [`Lane::deliver`]. The
//!    clock that an op or a letter with one is given must be read *after* it arrived: strict
//!    isolation orders transactions by their timestamps, and one that is older than its arrival may
//!    precede a transaction that was acknowledged before its client asked;
//! 2. [`Lane::tick`] once [`Lane::next_deadline`] has come;
//! 3. [`Lane::end_turn`], which closes batches;
//! 4. [`Lane::seal`] with a *fresh* clock reading: whatever was read in this turn may leave only if
//!    the lease still held after it was read (pitfall H3);
//! 5. the driver flushes the outbox: once per peer, once per client.
//!
//! # What is shared between the lanes of a node
//! The stores (reads run on any lane), the lease deadline (one atomic), and a snapshot of facts for
//! the administration endpoint. Everything else is passed as [`Mail`].
//!
//! The list in `engines.rs` is the only place that knows which engines exist.
#![forbid(unsafe_code)]

mod blocking;
mod commit_delay;
mod config;
mod control;
mod disk;
mod engine;
mod engines;
mod facts;
mod far;
mod flush;
mod forwarding;
mod guests;
mod interest;
mod lane;
mod lane_log;
mod listeners;
mod listing;
mod memory_cluster;
mod opening;
mod outbox;
mod parking;
mod pins;
mod pubsub;
mod questions;
mod recovery;
mod renewal;
mod room;
mod sessions;
mod shared;
mod snapshots;
mod stores;
mod tracking;
mod voter;
mod voter_file;

pub use blocking::BlockingCall;
pub use config::{Durability, KeyspaceConfig, LogConfig, NodeAddress, NodeConfig};
pub use control::{Change, Moves};
pub use disk::{DiskDone, DiskOwner, DiskRequest};
pub use engine::{KeyspaceLane, describe_message};
pub use engines::{EngineConfig, EngineInfo, EngineMail, KeyspaceStore, PROBES};
pub use facts::{
    ControlFacts, EngineFacts, FLUSH_BUCKETS, LaneFacts, LogFacts, MemberFacts, PlacementFacts,
    SERVING, SessionFacts, StoreFacts,
};
pub use guests::GUESTS_MAX;
pub use lane::Lane;
pub use lane_log::identity;
pub use listing::Listed;
pub use memory_cluster::{Host, MemoryCluster};
pub use opening::{Aside, NodeFound, Opened, Opening, Verdict};
pub use outbox::{Done, Mail, Outbox};
pub use pins::{PINS, with_pins};
pub use quorate_membership::{MemberConfig, StateError, Store as RestoredStore};
pub use recovery::LaneFound;
pub use sessions::SessionCall;
pub use shared::Shared;
pub use stores::Visit;
pub use tracking::Invalidation;

pub use quorate_storage::{Changed, Changes};
