//! Collections as bytes: what a hash, a list, a set or a sorted set is while it is replaced whole.
//!
//! The layout is that of [`quorate_collections::packed`]; for sets see [`crate::set`], for hashes with
//! expiring fields [`crate::hash::expiring`]. Its `form` is 0
//! for what Redis keeps in its compact encoding. It never goes back to 0 while the key lives, as in
//! Redis.

use alloc::vec::Vec;
use core::ops::Range;

use quorate_collections::packed;
use quorate_machine::{Change, Content, Current, ValueKind};
use quorate_types::limits;

use crate::Reply;
use crate::string::{WRONGTYPE, expiry_of};

pub(crate) use quorate_collections::packed::{
    BEYOND_COMPACT, Builder, EXPIRING, HEADER_BYTES, Items, LENGTH_BYTES_MAX, STRINGS,
};

pub(crate) const TOO_LARGE: Reply<'static> = Reply::error(
    "ERR the collection would be longer than 4194304 bytes, the most that one value may have; spread \
     it over several keys",
);

pub(crate) const LARGE_TOO_LARGE: Reply<'static> = Reply::error(
    "ERR the collection would be longer than 33554432 bytes, the most that a collection may have; \
     spread it over several keys",
);

const _: () = assert!(
    limits::COLLECTION_BYTES_MAX == 33_554_432
        && limits::VALUE_BYTES_MAX == 4_194_304
        && limits::VALUE_BYTES_MAX < 1 << (7 * LENGTH_BYTES_MAX),
    "a text names the limit, and an item has no longer length"
);

/// A collection as it lies in a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Packed<'a> {
    pub(crate) form: u8,
    pub(crate) count: usize,
    /// The items.
    pub(crate) items: &'a [u8],
}

impl<'a> Packed<'a> {
    pub(crate) const EMPTY: Packed<'static> = Packed { form: 0, count: 0, items: &[] };

    /// What the key holds, if it holds anything.
    ///
    /// # Errors
    /// If it holds something else.
    #[inline]
    pub(crate) fn of(
        current: Current<'a>,
        kind: ValueKind,
    ) -> Result<Option<Self>, Reply<'static>> {
        let Some(content) = current.content else { return Ok(None) };
        if content.kind != kind {
            return Err(WRONGTYPE);
        }
        assert!(current.large.is_none(), "who takes large values looks for one first");
        Ok(Some(Self::read(content)))
    }

    /// Reads what [`Builder`] wrote. The bytes may come from a peer: damaged ones are some other
    /// collection, with no more members than it has bytes.
    #[inline]
    pub(crate) fn read(content: Content<'a>) -> Self {
        let (form, count, items) = packed::split(content.bytes);
        Self { form, count, items }
    }

    /// Its items one after the other: of a list, of a set of strings, or of a hash, where fields and
    /// values take turns.
    pub(crate) fn items(&self) -> Items<'a> {
        Items { rest: self.items }
    }

    /// The fields of a hash with their values.
    pub(crate) fn fields(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        let mut items = self.items();
        core::iter::from_fn(move || Some((items.next()?, items.next()?)))
    }

    /// Where these items, which come out of a walk over the collection, begin.
    pub(crate) fn position(&self, items: &Items<'a>) -> usize {
        self.items.len() - items.rest.len()
    }

    /// The collection with other bytes of items in one place: what stands around them is copied and
    /// not looked at.
    pub(crate) fn splice(
        &self,
        form: u8,
        count: usize,
        place: Range<usize>,
        items: &[&[u8]],
    ) -> Vec<u8> {
        let room = items.iter().map(|item| item.len() + LENGTH_BYTES_MAX).sum::<usize>();
        let mut builder = Builder::new(form, self.items.len() - place.len() + room);
        builder.raw(&self.items[..place.start]);
        items.iter().for_each(|item| builder.item(item));
        builder.raw(&self.items[place.end..]);
        builder.finish(count)
    }
}

/// The change that gives a key this collection, with the expiry that it had; none is left of an empty
/// one.
///
/// # Errors
/// If the collection is longer than a value may be.
pub(crate) fn replace<'a>(
    bytes: Vec<u8>,
    kind: ValueKind,
    current: Current<'_>,
) -> Result<Change<'a>, Reply<'static>> {
    if bytes.len() == HEADER_BYTES {
        return Ok(if current.content.is_some() { Change::Delete } else { Change::Keep });
    }
    if bytes.len() > limits::VALUE_BYTES_MAX {
        return Err(TOO_LARGE);
    }
    Ok(Change::Set { bytes: bytes.into(), kind, expire_at: expiry_of(current) })
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn items_of_any_length_come_back() {
        let lengths = [0, 1, 127, 128, 129, 16_383, 16_384, 70_000];
        let items: Vec<Vec<u8>> = lengths.iter().map(|length| vec![7; *length]).collect();
        let mut builder = Builder::new(1, 0);
        items.iter().for_each(|item| builder.item(item));
        let bytes = builder.finish(items.len());
        let content = Content { bytes: &bytes, kind: ValueKind::List, expire_at: None };
        let packed = Packed::read(content);
        assert_eq!((packed.form, packed.count), (1, items.len()));
        assert!(packed.items().eq(items.iter().map(Vec::as_slice)));
    }
}
