//! Hashes with expiring fields, as bytes.
//!
//! ```text
//! form u8 | count u32 | own u64 | (expiry u64 | field | value)*
//! ```
//! Expiries are milliseconds since 1970, and 0 says that there is no expiry. `form` has the bit
//! [`EXPIRING`]. Such a hash is packed whatever its size, and at least one of its fields expires:
//! otherwise it is an ordinary hash.
//!
//! The expiry that its record carries is the moment at which the key vanishes: that of its last field, if
//! all of them expire, or the key's own expiry, if that is earlier. So a key whose fields have all expired
//! is gone at every replica at once, as any key that has expired. `own` is the key's own expiry, the only
//! one that commands on keys show and change.

use alloc::vec::Vec;

use quorate_machine::{Content, Current, ValueKind, mutant};
use quorate_types::UnixMillis;

use crate::packed::{Builder, EXPIRING, HEADER_BYTES, Items, Packed};

/// Bytes of the key's own expiry.
const OWN_BYTES: usize = 8;

/// A field of a hash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Field<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) value: &'a [u8],
    pub(crate) expire_at: Option<UnixMillis>,
}

/// A hash with expiring fields, at one moment: what has expired by then isn't there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expiring<'a> {
    /// Fields with their expiries.
    items: &'a [u8],
    now: UnixMillis,
}

impl<'a> Expiring<'a> {
    /// The hash in these bytes, if fields of it expire. Damaged ones are a hash with fewer fields.
    #[inline]
    pub(crate) fn of(hash: Packed<'a>, now: UnixMillis) -> Option<Self> {
        if hash.form & EXPIRING == 0 {
            return None;
        }
        Some(Self { items: hash.items.get(OWN_BYTES..).unwrap_or_default(), now })
    }

    /// A field.
    pub(super) fn get(self, name: &[u8]) -> Option<Field<'a>> {
        self.fields().find(|field| field.name == name)
    }

    /// Its fields.
    pub(crate) fn fields(self) -> impl Iterator<Item = Field<'a>> + Clone {
        let Self { now, mut items } = self;
        let all = core::iter::from_fn(move || {
            let field;
            (field, items) = split_first(items)?;
            Some(field)
        });
        all.filter(move |field| !field.has_expired(now) || mutant!("commands_expired_field_seen"))
    }

    /// Whether it still holds fields that have expired.
    pub(crate) fn holds_expired(self) -> bool {
        let Self { now, mut items } = self;
        while let Some((field, rest)) = split_first(items) {
            if field.has_expired(now) {
                return true;
            }
            items = rest;
        }
        false
    }
}

impl Field<'_> {
    fn has_expired(&self, now: UnixMillis) -> bool {
        self.expire_at.is_some_and(|at| at <= now)
    }
}

fn split_first(bytes: &[u8]) -> Option<(Field<'_>, &[u8])> {
    let (expire_at, rest) = bytes.split_first_chunk()?;
    let mut items = Items { rest };
    let (name, value) = (items.next()?, items.next()?);
    Some((Field { name, value, expire_at: expiry(expire_at) }, items.rest))
}

fn expiry(bytes: &[u8; 8]) -> Option<UnixMillis> {
    Some(u64::from_le_bytes(*bytes)).filter(|at| *at != 0).map(UnixMillis)
}

/// Writes a hash with expiring fields, whose key has this expiry of its own.
pub(crate) struct Writing {
    builder: Builder,
    count: usize,
}

impl Writing {
    pub(crate) fn new(form: u8, own: Option<UnixMillis>, room: usize) -> Self {
        let mut builder = Builder::new(form | EXPIRING, room);
        builder.raw(&own.map_or(0, |at| at.0).to_le_bytes());
        Self { builder, count: 0 }
    }

    pub(crate) fn push(&mut self, field: Field<'_>) {
        self.builder.raw(&field.expire_at.map_or(0, |at| at.0).to_le_bytes());
        self.builder.item(field.name);
        self.builder.item(field.value);
        self.count += 1;
    }

    /// Bytes of the value so far.
    pub(super) fn len(&self) -> usize {
        self.builder.len()
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.builder.finish(self.count)
    }
}

/// The expiry of a key of its own: what commands on keys show, and what a change of its value keeps.
#[inline]
pub(crate) fn own_expiry(content: Content<'_>) -> Option<UnixMillis> {
    let is_expiring = content.kind == ValueKind::Hash
        && content.bytes.first().is_some_and(|form| form & EXPIRING != 0);
    if is_expiring && !mutant!("commands_own_expiry_lost") {
        let own = content.bytes.get(HEADER_BYTES..).and_then(<[u8]>::first_chunk);
        return own.and_then(expiry);
    }
    content.expire_at
}

/// Whether a key holds a hash with fields that have expired: the next change of it drops them.
pub(crate) fn holds_expired(current: Current<'_>, now: UnixMillis) -> bool {
    let hash = current.content.filter(|content| content.kind == ValueKind::Hash);
    let hash = hash.and_then(|content| Expiring::of(Packed::read(content), now));
    hash.is_some_and(Expiring::holds_expired)
}
