//! The results of a read.

use quorate_machine::{Content, ValueKind};
use quorate_types::UnixMillis;

/// A record as it was at one moment of the read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Snapshot<M> {
    /// The protocol's words.
    pub meta: M,
    /// The value, if the key had one; expired values are still here.
    pub value: Option<ValueInfo>,
}

/// The facts about a value besides its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ValueInfo {
    /// The kind of the bytes.
    pub kind: ValueKind,
    /// When the value expires.
    pub expire_at: Option<UnixMillis>,
    /// The number of bytes; of a large value, packed.
    pub len: usize,
    /// Whether it is large: a read leaves its bytes out ([`crate::Store::read_large`]).
    pub is_large: bool,
}

impl<M> Snapshot<M> {
    /// The value with its bytes, which [`crate::Store::read`] left in its scratch buffer.
    pub fn content<'a>(&self, scratch: &'a [u8]) -> Option<Content<'a>> {
        self.value.map(|value| Content {
            bytes: scratch,
            kind: value.kind,
            expire_at: value.expire_at,
        })
    }
}
