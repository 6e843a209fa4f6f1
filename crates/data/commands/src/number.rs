//! Integers as Redis reads and writes them.

use crate::Reply;

pub use quorate_rdb::{format_integer, parse_integer};

/// The error of every argument or value that should be an integer.
pub(crate) const NOT_AN_INTEGER: Reply<'static> =
    Reply::error("ERR value is not an integer or out of range");

/// Argument as integer, or the error for the client.
pub(crate) fn integer(bytes: &[u8]) -> Result<i64, Reply<'static>> {
    parse_integer(bytes).ok_or(NOT_AN_INTEGER)
}
