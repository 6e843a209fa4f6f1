//! The bounds of what is read.

/// The newest version of the format that is read: that of Redis 7.4.
pub const VERSION_MAX: u16 = 12;
/// The longest string, in bytes: the most that any Redis takes unless it is told otherwise.
pub const STRING_BYTES_MAX: usize = 512 * 1024 * 1024;
/// The most bytes that one byte of a compressed string stands for, rounded up: three give at most 264.
pub(crate) const COMPRESSION_MAX: usize = 264;
