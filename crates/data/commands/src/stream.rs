//! Streams: entries of fields and values with ascending ids, and groups of consumers that read
//! them.
//!
//! ```text
//! stream: length u32 | tail u32 | bytes of groups u32 | added u64 | last id | max deleted id
//!         | groups, by name | chunks
//! chunk:  bytes of the body u32 | node bytes u32 | live u8 | deleted u8 | first id | last id | body
//! body:   count, names of fields | entries
//! entry:  bytes | ms | seq | count | items
//! group:  bytes u32 | name | last delivered id | entries read i64
//!         | count, consumers | count, pending entries, by id
//! consumer: name | seen
//! pending:  ms | seq | consumer | delivered | deliveries
//! ```
//! Integers with a width are little-endian, an id is two of 64 bits. Others are written seven bits
//! to a byte, the lowest first, the upper bit set in all but the last. An item or a name is its
//! length and so many bytes.
//!
//! The milliseconds of an entry count from those of its chunk's first id, and its number from that
//! id's number if the milliseconds are the same. A count of 0 means the chunk's fields, and only
//! the values follow. A pending entry counts from the one before in the same way; when it was
//! delivered is the difference to that one's time, twice its amount, less one if it is negative.
//!
//! A chunk is what a node of Redis's radix tree would be: up to 100 entries, deleted ones included,
//! in less than 4096 bytes of its listpack, which `node bytes` tells. So `~` trims what it trims in
//! Redis. A reader skips chunks by their ids and entries by their lengths. `tail` is where the last
//! chunk begins among the chunks: an entry is added behind it, and what is before is copied as it
//! is.
//!
//! A large stream ([`quorate_collections::Stream`]) has the same chunks and groups, each by itself, in
//! trees. [`packed::Stream`] reads both forms, and [`edit::Edit`] changes them.
//!
//! Whatever the bytes are, reading them gives entries or an error.

mod answer;
mod bytes;
mod consumers;
mod dump;
mod edit;
mod entries;
mod groups;
mod id;
mod info;
mod packed;
mod read;
#[cfg(test)]
mod tests;

pub(crate) use consumers::{
    xack, xautoclaim, xclaim, xgroup_create, xgroup_createconsumer, xgroup_delconsumer,
    xgroup_destroy, xgroup_setid, xpending,
};
pub(crate) use dump::{read as read_dump, write as write_dump};
pub(crate) use entries::{xadd, xdel, xlen, xrange, xrevrange, xsetid, xtrim};
pub(crate) use id::StreamId;
pub(crate) use info::{xinfo_consumers, xinfo_groups, xinfo_stream};
pub(crate) use read::{ReadOptions, is_end, last_id, readgroup_access, xread, xreadgroup};
