//! Redis's files (RDB): a streaming reader of what Redis 2.4 to 7.4 write, and a writer whose files Redis
//! 7.0 reads.
//!
//! A [`Reader`] is fed with bytes and tells [`Event`]s: keys, and what they hold item by item, so that a
//! collection of any size passes through without being in memory. What it holds on to is the longest string
//! of the file, and of a stream's group what is pending in it. Nothing is allocated for a length before
//! the bytes are there. Modules are skipped.
//!
//! A [`Writer`] takes values in the form in which `DUMP` writes them, and makes a file of them.
//!
//! ```text
//! file:  "REDIS" | version, 4 digits | parts | 0xff | checksum of all before it, or 0
//! part:  an opcode and what belongs to it (database, expiry of the next key ...)
//!        or form of a value | key | value
//! ```
//! The rest of this crate is what `DUMP` and `RESTORE` share with both: lengths, strings, listpacks, the
//! checksum.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod blobs;
mod bytes;
mod crc;
mod error;
mod form;
pub mod limits;
mod listpack;
mod lzf;
mod number;
mod reader;
mod writer;

pub use bytes::{Cursor, Stop, chunk, take, write_length, write_number, write_string};
pub use crc::{crc64, crc64_on};
pub use error::{Error, Problem};
pub use form::{Form, Kind};
pub use listpack::{LISTPACK_HEADER_BYTES, Listpack, listpack, ziplist};
pub use number::{format_integer, parse_integer};
pub use reader::{Event, Item, Key, Reader, Step, StreamId};
pub use writer::{Header, Payload, PayloadError, Writer, blank};
