//! The words every other crate speaks: identifiers, epochs, timestamps, views, keys and limits.
//!
//! This crate has no behaviour. The types make the vocabulary of the architecture impossible to
//! confuse (a [`NodeId`] is not a [`LaneId`]) and hold the arithmetic that several protocols share,
//! chiefly quorums. See `ARCHITECTURE.md` for the meaning of each word.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod id;
mod key;
pub mod limits;
mod node_set;
pub mod placement;
mod publication;
mod quorum;
mod time;
mod timestamp;
mod view;

pub use id::{EngineId, Epoch, Incarnation, KeyspaceId, LaneId, Lsn, MemberNumber, NodeId, Tag};
pub use key::{SeededHash, hash_key, hash_slot, lane_of_hash, lane_of_key, partition_of, unit_of};
pub use node_set::NodeSet;
pub use publication::{Publication, Topic};
pub use quorum::Quorums;
pub use time::{Duration, Instant, Now, UnixMillis, UnixNanos};
pub use timestamp::{Timestamp, WriterId};
pub use view::{Member, Role, View};
