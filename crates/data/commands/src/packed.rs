//! Collections as bytes: what a hash, a list, a set or a sorted set is while it is replaced whole.
//!
//! ```text
//! form u8 | count u32 | items
//! ```
//! Integers are little-endian. An item is a length and so many bytes; the length is written seven bits
//! to a byte, the lowest first, the upper bit set in all but the last. A field of a hash is two items,
//! a member of a sorted set is a score of eight bytes and an item, for sets
//! see [`crate::set`]. `form` is 0 for what Redis keeps in its compact encoding. It never goes
//! back to 0 while the key lives, as in Redis.

use alloc::vec::Vec;
use core::ops::Range;

use quorate_machine::{Change, Content, Current, ValueKind};
use quorate_types::limits;

use crate::Reply;
use crate::string::{WRONGTYPE, expiry_of};

/// Bytes before the items.
pub(crate) const HEADER_BYTES: usize = 5;
/// Bytes of the length of an item.
pub(crate) const LENGTH_BYTES_MAX: usize = 4;

pub(crate) const TOO_LARGE: Reply<'static> = Reply::error(
    "ERR the collection would be longer than 4194304 bytes, the most that one value may have; spread \
     it over several keys",
);

const _: () = assert!(
    limits::VALUE_BYTES_MAX == 4_194_304 && limits::VALUE_BYTES_MAX < 1 << (7 * LENGTH_BYTES_MAX),
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
    pub(crate) fn of(
        current: Current<'a>,
        kind: ValueKind,
    ) -> Result<Option<Self>, Reply<'static>> {
        let Some(content) = current.content else { return Ok(None) };
        if content.kind == kind { Ok(Some(Self::read(content))) } else { Err(WRONGTYPE) }
    }

    /// The same, empty if the key holds nothing.
    pub(crate) fn or_empty(current: Current<'a>, kind: ValueKind) -> Result<Self, Reply<'static>> {
        Ok(Self::of(current, kind)?.unwrap_or(Self::EMPTY))
    }

    /// Reads what [`Builder`] wrote. The bytes may come from a peer: damaged ones are some other
    /// collection, with no more members than it has bytes.
    pub(crate) fn read(content: Content<'a>) -> Self {
        let Some((head, items)) = content.bytes.split_first_chunk() else { return Self::EMPTY };
        let [form, count @ ..]: [u8; HEADER_BYTES] = *head;
        let count = (u32::from_le_bytes(count) as usize).min(items.len());
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

/// Items, read one after the other, up to the first damaged one.
#[derive(Clone, Debug)]
pub(crate) struct Items<'a> {
    pub(crate) rest: &'a [u8],
}

impl<'a> Items<'a> {
    /// Splits the length off before the next item.
    #[inline]
    fn length(&self) -> Option<(usize, &'a [u8])> {
        let (&first, rest) = self.rest.split_first()?;
        if first < 0x80 { Some((usize::from(first), rest)) } else { self.long_length() }
    }

    fn long_length(&self) -> Option<(usize, &'a [u8])> {
        let (mut length, mut shift, mut rest) = (0, 0, self.rest);
        while shift < 7 * LENGTH_BYTES_MAX {
            let (byte, behind) = rest.split_first()?;
            length |= usize::from(byte & 0x7f) << shift;
            (rest, shift) = (behind, shift + 7);
            if byte & 0x80 == 0 {
                return Some((length, rest));
            }
        }
        None
    }
}

impl<'a> Iterator for Items<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let item = self.length().and_then(|(length, rest)| rest.split_at_checked(length));
        let Some((item, rest)) = item else {
            self.rest = &[];
            return None;
        };
        self.rest = rest;
        Some(item)
    }
}

/// A collection that is being written.
#[derive(Clone, Debug)]
pub(crate) struct Builder {
    bytes: Vec<u8>,
}

impl Builder {
    /// With room for so many bytes of items.
    pub(crate) fn new(form: u8, room: usize) -> Self {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + room);
        bytes.push(form);
        bytes.extend_from_slice(&[0; HEADER_BYTES - 1]);
        Self { bytes }
    }

    /// Gives it another form.
    pub(crate) fn set_form(&mut self, form: u8) {
        self.bytes[0] = form;
    }

    /// Appends an item, which is no longer than a value may be.
    pub(crate) fn item(&mut self, item: &[u8]) {
        let mut length = item.len();
        while length >= 0x80 {
            self.bytes.push(length as u8 | 0x80);
            length >>= 7;
        }
        self.bytes.push(length as u8);
        self.bytes.extend_from_slice(item);
    }

    /// Appends bytes as they are: whole items, a score or an integer.
    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Bytes of the value so far.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The items alone.
    pub(crate) fn into_items(mut self) -> Vec<u8> {
        self.bytes.drain(..HEADER_BYTES);
        self.bytes
    }

    /// The value with so many members.
    pub(crate) fn finish(mut self, count: usize) -> Vec<u8> {
        let count = u32::try_from(count).expect("a value's length bounds its members");
        self.bytes[1..HEADER_BYTES].copy_from_slice(&count.to_le_bytes());
        self.bytes
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
