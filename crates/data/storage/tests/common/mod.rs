//! Helpers for several tests of the store.

use quorate_machine::{Content, Meta, Record, Table, ValueKind};
use quorate_types::UnixMillis;

/// Three words, as many as Hermes keeps.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Triple(pub(crate) [u64; 3]);

impl Meta for Triple {
    type LockedState = ();
    const WORDS: usize = 3;

    fn pack(self, words: &mut [u64]) {
        words.copy_from_slice(&self.0);
    }

    fn unpack(words: &[u64]) -> Self {
        Self(words.try_into().expect("three words"))
    }
}

pub(crate) fn content(bytes: &[u8], expire_at: Option<UnixMillis>) -> Content<'_> {
    Content { bytes, kind: ValueKind::String, expire_at }
}

pub(crate) fn key_of(number: u32) -> Vec<u8> {
    format!("key:{number}").into_bytes()
}

/// Sets a value, in a new record if necessary.
pub(crate) fn set<T: Table>(
    table: &mut T,
    key: &[u8],
    bytes: &[u8],
    expire_at: Option<UnixMillis>,
) {
    let handle = table.find_or_insert_sized(key, bytes.len());
    table.lock(handle).set_content(content(bytes, expire_at));
}
