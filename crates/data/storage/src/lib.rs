//! The record store: one [`Store`] per keyspace and node, shared by the node's lanes.
//!
//! Any thread reads any record without taking a lock ([`Store::read`]). Machines write through a
//! [`quorate_machine::Table`]: a [`LaneTable`] if each lane owns the records of its part, a
//! [`SharedTable`] if each lane writes all of them.
//!
//! ```text
//! Store ─ Part (one per lane) ─ Shard (256) ─ array of buckets ─ Bucket (a cache line)
//!                                                                   │ 7 tagged pointers
//!                                                                   ▼
//!             Record: sequence lock, lengths, expiry | meta | locked state | key | value ─► Buffer
//! ```
//! Guarantees:
//! - A reader sees a record as it was at one moment of the read: meta, value and expiry belong
//!   together, and all changes under a lock appear at once (pitfalls H0 and P3, rule 12).
//! - A record stays at its address until it is removed, so a [`Handle`] finds it again at no cost.
//! - Memory that readers may still look at is freed only after they let go of their [`Guard`].
//! - [`Stats::bytes`] is the exact sum of the sizes asked of the allocator.
//!
//! Writers exclude each other per record (sequence lock) and per shard (a mutex for inserting,
//! removing and growing). A thread takes the mutex first, and takes no further lock while it holds
//! a record's lock but that of the list of changes ([`Store::watch`]), the innermost one. So no circle
//! of waiting threads arises.
//!
//! Lanes that write different existing records write no common cache line: counters are per writing
//! lane, and where a protocol shares records among lanes (those with a locked state), records and
//! buffers lie on lines of their own. Making and removing records writes their shard. In builds with
//! debug assertions the module `trace` shows a thread's lines to tests.
//!
//! Absent on purpose: expiry (a protocol write, decided above), eviction, and shrinking of the
//! index, which stays at its largest size until [`Store::reset`].
//!
//! The sequence lock, the records and the index are checked with loom
//! (`RUSTFLAGS="--cfg loom" cargo test --release -p quorate-storage --lib`), lanes and readers of a
//! whole store with shuttle (`--cfg shuttle`, `--test schedules`), where freed memory is marked.

mod counters;
mod index;
mod lane_shared;
mod memory;
mod order;
mod reclaim;
mod record;
mod sequence;
mod shared_table;
mod snapshot;
mod store;
mod sync;
mod table;
#[cfg(all(debug_assertions, not(any(loom, shuttle))))]
pub mod trace;
mod watches;
mod words;

#[cfg(all(test, loom))]
mod models;

pub use counters::Stats;
pub use reclaim::{Guard, pin};
pub use shared_table::{SharedHandle, SharedTable};
pub use snapshot::{Snapshot, ValueInfo};
pub use store::{Keeps, Store, VisitLocked, place_in_lane, place_in_store, place_of_cursor};
pub use table::{Handle, LaneTable, LockedRecord};
pub use watches::{COALESCED_MAX, Changed, Changes, LISTED_MAX};
