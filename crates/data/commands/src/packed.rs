//! Collections as bytes: what a hash, a list, a set or a sorted set is while it is replaced whole.
//!
//! ```text
//! form u8 | count u32 | items
//! ```
//! Integers are little-endian. An item is a length and so many bytes; the length is written seven bits
//! to a byte, the lowest first, the upper bit set in all but the last. A field of a hash is two items,
//! a member of a sorted set is a score of eight bytes and an item, a member of a set of integers is as
//! many bytes as its form says. `form` is 0 for what Redis keeps in its compact encoding. It never goes
//! back to 0 while the key lives, as in Redis.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use quorate_machine::{Change, Content, Current, ValueKind};
use quorate_types::limits;

use crate::Reply;
use crate::string::{WRONGTYPE, expiry_of};

/// Bytes before the items.
pub(crate) const HEADER_BYTES: usize = 5;
/// Members looked for one by one before an index of them is made.
const LINEAR_FINDS_MAX: usize = 8;
/// Members that are always looked for one by one.
const LINEAR_MAX: usize = 32;

const TOO_LARGE: Reply<'static> = Reply::error(
    "ERR the collection would be longer than 4194304 bytes, the most that one value may have; spread \
     it over several keys",
);

const _: () = assert!(limits::VALUE_BYTES_MAX == 4_194_304, "a text names the limit");

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

    /// Reads what [`Builder`] wrote.
    pub(crate) fn read(content: Content<'a>) -> Self {
        let (form, rest) = content.bytes.split_first().expect("a collection has a form");
        let (count, items) = rest.split_first_chunk().expect("a collection has a count");
        Self { form: *form, count: u32::from_le_bytes(*count) as usize, items }
    }

    /// Its items one after the other: of a list, of a set of strings, or of a hash, where fields and
    /// values take turns.
    pub(crate) fn items(&self) -> Items<'a> {
        Items { rest: self.items }
    }

    /// The fields of a hash with their values.
    pub(crate) fn fields(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        let mut items = self.items();
        core::iter::from_fn(move || {
            let field = items.next()?;
            Some((field, items.next().expect("every field has a value")))
        })
    }
}

/// Items, read one after the other.
#[derive(Clone, Debug)]
pub(crate) struct Items<'a> {
    pub(crate) rest: &'a [u8],
}

impl<'a> Iterator for Items<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        if self.rest.is_empty() {
            return None;
        }
        let (mut length, mut shift, mut at) = (0, 0, 0);
        loop {
            let byte = self.rest[at];
            length |= usize::from(byte & 0x7f) << shift;
            (at, shift) = (at + 1, shift + 7);
            if byte & 0x80 == 0 {
                break;
            }
        }
        let (item, rest) = self.rest[at..].split_at(length);
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

    /// Appends an item.
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

/// Members with a value each, in the order in which they came: a collection taken apart, to be changed
/// in many places.
#[derive(Clone, Debug)]
pub(crate) struct Members<'a, V> {
    entries: Vec<Option<(&'a [u8], V)>>,
    live: usize,
    finds: usize,
    index: Option<BTreeMap<&'a [u8], usize>>,
}

impl<'a, V> Members<'a, V> {
    pub(crate) fn new(entries: impl Iterator<Item = (&'a [u8], V)>) -> Self {
        let entries: Vec<_> = entries.map(Some).collect();
        Self { live: entries.len(), entries, finds: 0, index: None }
    }

    pub(crate) fn len(&self) -> usize {
        self.live
    }

    /// Where a member stands. After some searches there is an index, so that a call with many members
    /// doesn't compare each with each.
    fn find(&mut self, member: &[u8]) -> Option<usize> {
        self.finds += 1;
        if self.index.is_none() && self.finds > LINEAR_FINDS_MAX && self.entries.len() > LINEAR_MAX
        {
            let places = self.entries.iter().enumerate();
            let index = places.filter_map(|(at, entry)| Some((entry.as_ref()?.0, at))).collect();
            self.index = Some(index);
        }
        match &self.index {
            Some(index) => index.get(member).copied(),
            None => self
                .entries
                .iter()
                .position(|entry| entry.as_ref().is_some_and(|(held, _)| *held == member)),
        }
    }

    pub(crate) fn get(&mut self, member: &[u8]) -> Option<&V> {
        let at = self.find(member)?;
        self.entries[at].as_ref().map(|(_, value)| value)
    }

    /// Gives a member a value. Its old one, if it was there.
    pub(crate) fn set(&mut self, member: &'a [u8], value: V) -> Option<V> {
        if let Some(at) = self.find(member) {
            let (_, held) = self.entries[at].as_mut().expect("what is found is there");
            return Some(core::mem::replace(held, value));
        }
        if let Some(index) = &mut self.index {
            index.insert(member, self.entries.len());
        }
        self.entries.push(Some((member, value)));
        self.live += 1;
        None
    }

    pub(crate) fn remove(&mut self, member: &[u8]) -> Option<V> {
        let at = self.find(member)?;
        if let Some(index) = &mut self.index {
            index.remove(member);
        }
        self.live -= 1;
        self.entries[at].take().map(|(_, value)| value)
    }

    /// The members that are there.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'a [u8], &V)> {
        self.entries.iter().flatten().map(|(member, value)| (*member, value))
    }
}

#[cfg(test)]
mod tests {
    use alloc::format;
    use alloc::string::String;
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

    #[test]
    fn members_are_the_same_with_and_without_an_index() {
        let names: Vec<String> = (0..100).map(|number| format!("member {number}")).collect();
        for count in [5, 100] {
            let mut members = Members::new(core::iter::empty());
            for (number, name) in names[..count].iter().enumerate() {
                assert_eq!(members.set(name.as_bytes(), number), None);
            }
            assert_eq!(members.set(b"member 3", 33), Some(3));
            assert_eq!(members.remove(b"member 4"), Some(4));
            assert_eq!(members.remove(b"member 4"), None);
            assert_eq!(members.set(b"member 4", 44), None);
            assert_eq!(members.get(b"member 3"), Some(&33));
            assert_eq!(members.get(b"absent"), None);
            assert_eq!(members.len(), count);
            assert_eq!(members.iter().last(), Some((&b"member 4"[..], &44)));
        }
    }
}
