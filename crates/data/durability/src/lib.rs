//! The log that every engine shares, as machines without a file, a thread or a clock.
//!
//! **What it guarantees.** An entry that [`Log`] has called durable comes back from [`Reader`], in
//! the order in which it was appended, whatever the power did, as long as the disk keeps what an
//! honest flush has covered. What nobody appended never comes back. Of a disk that does not keep it
//! (rot, misdirected writes, flushes that lie), the reader says which file, offset and places are
//! affected, and takes nothing damaged for the end of the log. One case no single log can tell: its
//! very last batch, torn or rotten, is the end. Peers can, by their positions.
//!
//! | file | written by | read by |
//! | --- | --- | --- |
//! | `lane-LLLL-NNNNNNNN.segment` | [`Log`] | [`Reader`] |
//! | `lane-LLLL-NNNNNNNN.snapshot` | [`SnapshotWriter`] | [`SnapshotReader`] |
//! | `voter` | [`VoterFile`] | [`VoterFile::load`] |
//! | `lock` ([`LOCK_FILE`]) | the runtime, which locks it before anything else | |
//!
//! A driver carries out [`Request`]s ([`Disk`]) and hands back [`Completion`]s; recovery reads at
//! once ([`Directory`]). The bytes of every file, and why each rule is as it is, are in design note
//! 012. The distinction of torn from rotten follows R. Alagappan et al., *Protocol-Aware Recovery for
//! Consensus-Based Storage* (FAST 2018); that a failed flush ends the log follows
//! A. Rebello et al., *Can Applications Recover from fsync Failures?* (USENIX ATC 2020).
#![forbid(unsafe_code)]

mod disk;
mod error;
mod format;
mod frames;
mod gather;
pub mod inspect;
mod names;
mod parts;
mod reader;
mod snapshot;
mod voter;
mod writer;

pub use disk::{Completion, Directory, Disk, DiskError, FileEntry, Name, Request, Ticket};
pub use error::LogError;
pub use format::{
    BATCH_BYTES_MAX, ENTRY_BYTES_MAX, Entry, FORMAT_VERSION, Identity, KIND_MAX, SEGMENT_BYTES,
};
pub use names::{LOCK_FILE, VOTER_FILE};
pub use reader::{Found, Reader, Start};
pub use snapshot::{SnapshotEvent, SnapshotFound, SnapshotReader, SnapshotWriter, snapshots};
pub use voter::{VOTER_BYTES_MAX, VoterFile};
pub use writer::{Log, Options, Room};
