//! What is wrong with files, where, and what to do.

use std::fmt;

use quorate_types::Lsn;

use crate::format::{FORMAT_VERSION, Identity};
use crate::{DiskError, Name};

/// Why a log, a snapshot or a voter's file can't be read, or not all of it. Each says the file and
/// the offset, where one applies, and what to do.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LogError {
    /// The directory can't be listed.
    Directory(DiskError),
    /// A part of a file can't be read, and it may hold entries: rot of that range.
    Unreadable {
        /// The file.
        file: Name,
        /// The first byte that can't be read.
        offset: u64,
    },
    /// The file belongs to another cluster, node or lane.
    Foreign {
        /// The file.
        file: Name,
        /// Where it belongs.
        found: Identity,
        /// Who reads it.
        expected: Identity,
    },
    /// A newer program has written the file.
    Newer {
        /// The file.
        file: Name,
        /// The version of its format.
        version: u16,
    },
    /// The header of a file that was in use is damaged, so that none of its entries can be read.
    Header {
        /// The file.
        file: Name,
    },
    /// A file is shorter than its header says.
    Truncated {
        /// The file.
        file: Name,
        /// Its length.
        bytes: u64,
        /// What its header says.
        expected: u64,
    },
    /// Two files say that they are the same segment.
    Duplicate {
        /// One.
        file: Name,
        /// The other.
        other: Name,
        /// The number of the segment.
        number: u64,
    },
    /// A segment that was in use is not there.
    Missing {
        /// Its number.
        number: u64,
    },
    /// Entries that were durable are lost, and sound ones come behind them.
    Rot {
        /// Where they were: the file.
        file: Name,
        /// The first byte that is not a sound batch.
        offset: u64,
        /// The first place that is missing.
        first: Lsn,
        /// The last place that is missing.
        last: Lsn,
    },
    /// The log begins behind the place from which it is needed.
    Begins {
        /// The place before its first entry.
        at: Lsn,
        /// The place from which on it is needed.
        needed: Lsn,
    },
    /// The log ends before a place that was durable.
    Ends {
        /// Its last place.
        at: Lsn,
        /// What was durable.
        needed: Lsn,
    },
    /// A batch has the right checksum and can't be: a mistake of the program that wrote it.
    Malformed {
        /// The file.
        file: Name,
        /// Where the batch begins.
        offset: u64,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Neither copy of the voter's promises is sound.
    Voter {
        /// The file.
        file: Name,
    },
}

/// What to do if a replica has lost a part of its files.
const REFETCH: &str = "keep the directory for inspection, start the node with an empty one, and let \
                       it copy from the others";

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(_) => {
                write!(f, "the directory can't be listed; check that it exists and who may read it")
            }
            Self::Unreadable { file, offset } => {
                write!(f, "{file}, offset {offset}: the device can't read it; {REFETCH}")
            }
            Self::Foreign { file, found, expected } => write!(
                f,
                "{file}, offset 0: it belongs to {found}, not to {expected}; give each node the \
                 directory that it has written"
            ),
            Self::Newer { file, version } => write!(
                f,
                "{file}, offset 8: its format is version {version}, and this program knows versions \
                 up to {FORMAT_VERSION}; start the program that wrote it, or a newer one"
            ),
            Self::Header { file } => {
                write!(f, "{file}, offset 0: the header is damaged, the segment is lost; {REFETCH}")
            }
            Self::Truncated { file, bytes, expected } => write!(
                f,
                "{file}, offset {bytes}: it ends here and should have {expected} bytes; {REFETCH}"
            ),
            Self::Duplicate { file, other, number } => write!(
                f,
                "{file}, offset 24: it is segment {number}, and so is {other}; remove the copy, \
                 if one was made by hand, or {REFETCH}"
            ),
            Self::Missing { number } => {
                write!(f, "segment {number} is missing; put its file back, or {REFETCH}")
            }
            Self::Rot { file, offset, first, last } => write!(
                f,
                "{file}, offset {offset}: entries {first} to {last} are damaged, with sound ones \
                 behind them; {REFETCH}"
            ),
            Self::Begins { at, needed } => write!(
                f,
                "the log begins behind entry {at}, and is needed from {needed} on; put the missing \
                 segments back, or {REFETCH}"
            ),
            Self::Ends { at, needed } => write!(
                f,
                "the log ends at entry {at}, and entries up to {needed} were durable; {REFETCH}"
            ),
            Self::Malformed { file, offset, why } => write!(
                f,
                "{file}, offset {offset}: {why}, in a batch whose checksum is right; report it with \
                 the file, and {REFETCH}"
            ),
            Self::Voter { file } => write!(
                f,
                "{file}: neither copy of what this voter has promised is sound; remove the node \
                 from the cluster and add it again with an empty directory"
            ),
        }
    }
}

impl std::error::Error for LogError {}
