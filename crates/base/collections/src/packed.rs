//! Packed bytes: what a collection is in messages and while it is small.
//!
//! ```text
//! form u8 | count u32 | items
//! ```
//! Integers are little-endian. An item is a length and so many bytes; the length is written seven bits
//! to a byte, the lowest first, the upper bit set in all but the last. A field of a hash is two items,
//! a member of a sorted set is a score of eight bytes and an item. `form` tells Redis's encoding, and
//! whether fields of a hash expire.

use alloc::vec::Vec;

/// Bytes before the items.
pub const HEADER_BYTES: usize = 5;
/// Bytes of the length of an item.
pub const LENGTH_BYTES_MAX: usize = 4;

/// The form of a hash or a sorted set beyond Redis's compact encoding.
pub const BEYOND_COMPACT: u8 = 1;
/// A bit of the form of a hash: fields of it may expire. Such a hash is never large, and has expiries
/// between its items, which the commands on it know.
pub const EXPIRING: u8 = 2;
/// The form of a set of strings. Lower forms are sets of integers of `2 << form` bytes.
pub const STRINGS: u8 = 3;

/// The form, the count and the items of packed bytes. They may come from a peer: damaged ones are
/// some other collection, with no more members than it has bytes.
#[inline]
pub fn split(bytes: &[u8]) -> (u8, usize, &[u8]) {
    let Some((head, items)) = bytes.split_first_chunk() else { return (0, 0, &[]) };
    let [form, count @ ..]: [u8; HEADER_BYTES] = *head;
    (form, (u32::from_le_bytes(count) as usize).min(items.len()), items)
}

/// The bytes before the items.
pub(crate) fn header(form: u8, count: usize) -> [u8; HEADER_BYTES] {
    let [a, b, c, d] = u32::try_from(count).expect("limits bound a collection").to_le_bytes();
    [form, a, b, c, d]
}

/// Items, read one after the other, up to the first damaged one.
#[derive(Clone, Debug)]
pub struct Items<'a> {
    /// What is left.
    pub rest: &'a [u8],
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

/// The bytes of an item's length, and how many they are.
pub(crate) fn length(item: usize) -> ([u8; LENGTH_BYTES_MAX], usize) {
    let (mut bytes, mut used, mut left) = ([0; LENGTH_BYTES_MAX], 0, item);
    while left >= 0x80 {
        bytes[used] = left as u8 | 0x80;
        (left, used) = (left >> 7, used + 1);
    }
    bytes[used] = left as u8;
    (bytes, used + 1)
}

/// Appends an item.
pub fn put_item(item: &[u8], out: &mut Vec<u8>) {
    let (bytes, used) = length(item.len());
    out.extend_from_slice(&bytes[..used]);
    out.extend_from_slice(item);
}

/// A collection that is being written.
#[derive(Clone, Debug)]
pub struct Builder {
    bytes: Vec<u8>,
}

impl Builder {
    /// With room for so many bytes of items.
    pub fn new(form: u8, room: usize) -> Self {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + room);
        bytes.extend_from_slice(&header(form, 0));
        Self { bytes }
    }

    /// Gives it another form.
    pub fn set_form(&mut self, form: u8) {
        self.bytes[0] = form;
    }

    /// Appends an item, which is no longer than a value may be.
    pub fn item(&mut self, item: &[u8]) {
        put_item(item, &mut self.bytes);
    }

    /// Appends bytes as they are: whole items, a score or an integer.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Bytes of the value so far.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The items alone.
    pub fn into_items(mut self) -> Vec<u8> {
        self.bytes.drain(..HEADER_BYTES);
        self.bytes
    }

    /// The value with so many members.
    pub fn finish(mut self, count: usize) -> Vec<u8> {
        let form = self.bytes[0];
        self.bytes[..HEADER_BYTES].copy_from_slice(&header(form, count));
        self.bytes
    }
}
