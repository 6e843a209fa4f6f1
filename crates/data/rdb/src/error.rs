//! Why a file is not read to its end.

use alloc::vec::Vec;
use core::fmt;

use crate::limits::VERSION_MAX;

/// What is wrong with a file, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error {
    /// Where the part begins that can't be read, in bytes from the beginning of the file.
    pub offset: u64,
    /// The key whose value that part belongs to.
    pub key: Option<Vec<u8>>,
    /// What is wrong.
    pub problem: Problem,
}

/// What is wrong with a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Problem {
    /// It doesn't begin as such a file does.
    NotRdb,
    /// It is of a version that isn't known.
    Version(u16),
    /// It ends before its end is said.
    Truncated,
    /// It goes on behind its end.
    Trailing,
    /// The checksum at its end is not that of its bytes.
    Checksum {
        /// What the file says.
        said: u64,
        /// What its bytes have.
        found: u64,
    },
    /// A byte that says neither a form of a value nor anything else that is known.
    Unknown(u8),
    /// A value that no Redis writes.
    Damaged(&'static str),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at offset {}", self.offset)?;
        if let Some(key) = &self.key {
            write!(f, ", in the value of key \"{}\"", key.escape_ascii())?;
        }
        write!(f, ": {}", self.problem)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRdb => f.write_str(
                "this is no RDB file, which begins with REDIS and a version; an append-only file may \
                 begin with one, and BGSAVE writes one",
            ),
            Self::Version(version) => write!(
                f,
                "version {version} of the format is not known here; versions 1 to {VERSION_MAX} are, \
                 which Redis up to 7.4 and Valkey 8 write"
            ),
            Self::Truncated => f.write_str("the file ends here, in the middle; copy it again"),
            Self::Trailing => f.write_str("the file goes on behind its end; copy it again"),
            Self::Checksum { said, found } => write!(
                f,
                "the file is damaged: its checksum says {said:016x} and its bytes have {found:016x}; copy it \
                 again, or ask redis-check-rdb"
            ),
            Self::Unknown(byte) => write!(
                f,
                "{byte} is no type of value that is known here; the file is damaged, or comes from a server \
                 with types of its own"
            ),
            Self::Damaged(what) => write!(f, "{what}; the file is damaged"),
        }
    }
}

impl core::error::Error for Error {}
