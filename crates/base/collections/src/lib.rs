//! Collections: hashes, lists, sets, sorted sets and streams.
//!
//! While it is small, a collection is [packed] bytes, which are replaced whole. A large one is a
//! [`Collection`]: a tree of such bytes, changed in place by *deltas* ([`Delta`]). A delta is absolute and
//! deterministic: "this field has this value", "these items come before the third one". Applied to the
//! content that it was made for, it gives the same content at every replica, and yields its *inverse*,
//! which gives back what was there before. Two deltas, one behind the other, are a delta.
//!
//! Both forms are the same value: each replica chooses the form that it keeps.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod collection;
mod delta;
mod draft;
mod hash;
mod hashed;
mod kind;
mod list;
pub mod packed;
mod set;
mod sorted_set;
mod stream;
mod tree;

pub use collection::{Collection, Damaged, is_collection, may_be_large};
pub use delta::{Delta, Step};
pub use draft::Draft;
pub use hash::Hash;
pub use hashed::{Part, place_of};
pub use kind::ValueKind;
pub use list::List;
pub use set::Set;
pub use sorted_set::{Entry, SortedSet};
pub use stream::{CHUNK_HEAD_BYTES, COUNTERS_BYTES, Chunks, Splice, Stream};

#[cfg(test)]
mod tests;
