//! A transaction's read and write sets, as they travel and lie in the transaction record.
//!
//! ```text
//! count u32 | [call: lease u64, sequence u64, first incomplete u64, digest u32 | answer bytes]
//!           | count * ( flags u8 | key bytes | [base: version u64, writer u32]
//!                       | [kind u8 | value or delta bytes] | [expire at u64] )
//! ```
//! Integers little-endian, `bytes` with a length of four bytes before them. The highest bit of the
//! count says whether there is a call: there is one in the home partition's part of a session's.

use alloc::vec::Vec;

use quorate_machine::{Content, ValueKind, is_collection, mutant};
use quorate_rifl::Call;
use quorate_types::{Timestamp, UnixMillis, limits};
use quorate_wire::{Malformed, Reader, Writer};

const READ: u8 = 1;
const WRITE: u8 = 2;
const VALUE: u8 = 4;
const EXPIRY: u8 = 8;
const ABSENT: u8 = 16;
const DELTA: u8 = 32;

/// The bit of the count that announces a call.
const CALL: u32 = 1 << 31;

/// Bytes of an item besides its key and its value, at most.
pub(crate) const ITEM_BYTES: usize = 32;

/// A call and the answer that it gets if its transaction commits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answered<'a> {
    /// The call.
    pub call: Call,
    /// Its answer, as [`quorate_machine::Command::encode_reply`] writes it.
    pub answer: &'a [u8],
}

/// What a transaction leaves in a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Write<'a> {
    /// This value.
    Set(Content<'a>),
    /// The collection that it read, changed in place: the bytes are a delta of the version that was
    /// read. Kind and expiry are those of the new version.
    Delta(Content<'a>),
    /// Nothing.
    Delete,
}

impl Write<'_> {
    /// How many bytes of value or delta travel.
    pub fn len(&self) -> usize {
        match self {
            Self::Set(content) | Self::Delta(content) => content.bytes.len(),
            Self::Delete => 0,
        }
    }

    /// Whether no bytes of value travel.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The room that a new record needs for the value, in bytes; 0 if it is not known.
    pub(crate) fn value_len(&self) -> usize {
        if matches!(self, Self::Set(_)) { self.len() } else { 0 }
    }
}

/// What a transaction does to one key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Item<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The version that was read, if the key was.
    pub base: Option<Timestamp>,
    /// Whether what was read is that the key is absent.
    pub absent: bool,
    /// What the key holds afterwards, if it is written.
    pub write: Option<Write<'a>>,
}

/// An encoded list of items, perhaps with a call, checked once.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Body<'a>(&'a [u8]);

impl core::fmt::Debug for Body<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        if let Some(Answered { call, .. }) = self.call() {
            write!(f, "{call:?} ")?;
        }
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<'a> Body<'a> {
    /// Encodes a list of items.
    pub fn encode(items: &[Item<'_>]) -> Vec<u8> {
        Self::encode_call(None, items)
    }

    /// Encodes a list of items and the call that they belong to.
    pub fn encode_call(call: Option<Answered<'_>>, items: &[Item<'_>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut writer = BodyWriter::new(&mut bytes, call);
        items.iter().for_each(|item| writer.item(item));
        writer.finish();
        bytes
    }

    /// Checks bytes that came from a peer.
    ///
    /// # Errors
    /// When they are no list of items within the limits.
    pub fn check(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        let (count, _) = read_head(&mut reader)?;
        if count as usize > limits::TXN_KEYS_MAX {
            return Err(Malformed("a transaction with too many keys"));
        }
        for _ in 0..count {
            read_item(&mut reader)?;
        }
        reader.end()?;
        Ok(Self(bytes))
    }

    /// Bytes that were checked before or made here.
    pub fn trusted(bytes: &'a [u8]) -> Self {
        debug_assert!(Self::check(bytes).is_ok(), "a body is checked when it comes in");
        Self(bytes)
    }

    /// As [`Body::trusted`]; `None` if there are no bytes.
    pub(crate) fn trusted_opt(bytes: &'a [u8]) -> Option<Self> {
        (!bytes.is_empty()).then(|| Self::trusted(bytes))
    }

    /// The encoded form.
    pub fn bytes(self) -> &'a [u8] {
        self.0
    }

    /// The call that it belongs to, if this is the home partition's part.
    pub fn call(self) -> Option<Answered<'a>> {
        read_head(&mut Reader(self.0)).expect("a body was checked").1
    }

    /// The items in order.
    pub fn iter(self) -> impl ExactSizeIterator<Item = Item<'a>> + Clone {
        let mut reader = Reader(self.0);
        let (count, _) = read_head(&mut reader).expect("a body was checked");
        (0..count).map(move |_| read_item(&mut reader).expect("a body was checked"))
    }
}

/// How many items follow, and the call.
fn read_head<'a>(reader: &mut Reader<'a>) -> Result<(u32, Option<Answered<'a>>), Malformed> {
    let count = reader.u32()?;
    if count & CALL == 0 {
        return Ok((count, None));
    }
    let call = Call::decode(reader)?;
    let answer = reader.bytes()?;
    if answer.len() > limits::SESSION_ANSWER_BYTES_MAX {
        return Err(Malformed("an answer beyond its limit"));
    }
    Ok((count & !CALL, Some(Answered { call, answer })))
}

fn read_item<'a>(reader: &mut Reader<'a>) -> Result<Item<'a>, Malformed> {
    let flags = reader.u8()?;
    let key = reader.bytes()?;
    if key.len() > limits::KEY_BYTES_MAX {
        return Err(Malformed("a key beyond its limit"));
    }
    let base = if flags & READ != 0 { Some(reader.timestamp()?) } else { None };
    let write = match flags & (WRITE | VALUE) {
        0 => None,
        WRITE => Some(Write::Delete),
        _ if flags & WRITE == 0 => return Err(Malformed("a value that is not written")),
        _ => {
            let kind =
                ValueKind::from_u8(reader.u8()?).ok_or(Malformed("unknown kind of value"))?;
            let bytes = reader.bytes()?;
            if bytes.len() > longest(kind) {
                return Err(Malformed("a value beyond its limit"));
            }
            let expires = flags & EXPIRY != 0;
            let expire_at = if expires { Some(UnixMillis(reader.u64()?)) } else { None };
            let content = Content { bytes, kind, expire_at };
            Some(if flags & DELTA != 0 { Write::Delta(content) } else { Write::Set(content) })
        }
    };
    let absent = flags & ABSENT != 0;
    let unknown = flags & !(READ | WRITE | VALUE | EXPIRY | ABSENT | DELTA) != 0;
    if unknown || flags & (READ | WRITE) == 0 || (absent && base.is_none()) {
        return Err(Malformed("unknown flags of an item"));
    }
    // What is changed in place was read, and was a collection.
    let of_collection =
        |write: &Write<'_>| matches!(write, Write::Delta(c) if is_collection(c.kind));
    let changes_what_was_read =
        base.is_some() && !absent && write.as_ref().is_some_and(of_collection);
    if flags & DELTA != 0 && !changes_what_was_read {
        return Err(Malformed("a delta of what was not read, or is no collection"));
    }
    Ok(Item { key, base, absent, write })
}

/// Most bytes of a value.
fn longest(kind: ValueKind) -> usize {
    if is_collection(kind) { limits::COLLECTION_BYTES_MAX } else { limits::VALUE_BYTES_MAX }
}

/// Builds a body in a buffer that is reused.
pub struct BodyWriter<'a> {
    bytes: &'a mut Vec<u8>,
    start: usize,
    count: u32,
}

impl<'a> BodyWriter<'a> {
    /// Appends to these bytes, after the call if there is one.
    pub fn new(bytes: &'a mut Vec<u8>, call: Option<Answered<'_>>) -> Self {
        let start = bytes.len();
        let mut writer = Writer(bytes);
        writer.u32(0);
        if let Some(Answered { call, answer }) = call {
            call.encode(&mut writer);
            writer.bytes(answer);
        }
        Self { bytes, start, count: if call.is_some() { CALL } else { 0 } }
    }

    /// Appends an item.
    pub fn item(&mut self, item: &Item<'_>) {
        let mut flags = 0;
        if item.base.is_some() {
            flags |= READ | if item.absent { ABSENT } else { 0 };
        }
        let content = match item.write {
            Some(Write::Set(content) | Write::Delta(content)) => Some(content),
            Some(Write::Delete) | None => None,
        };
        flags |= if item.write.is_some() { WRITE } else { 0 };
        flags |= if matches!(item.write, Some(Write::Delta(_))) { DELTA } else { 0 };
        if let Some(content) = content {
            flags |= VALUE;
            flags |= if content.expire_at.is_some() { EXPIRY } else { 0 };
        }
        let mut writer = Writer(self.bytes);
        writer.u8(flags);
        writer.bytes(item.key);
        if let Some(base) = item.base {
            writer.timestamp(base);
        }
        if let Some(content) = content {
            let forgets = mutant!("meerkat_body_without_kind");
            writer.u8(if forgets { ValueKind::String } else { content.kind } as u8);
            writer.bytes(content.bytes);
            if let Some(at) = content.expire_at {
                writer.u64(at.0);
            }
        }
        self.count += 1;
    }

    /// Notes how many items there are.
    pub fn finish(self) {
        self.bytes[self.start..self.start + 4].copy_from_slice(&self.count.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use quorate_rifl::LeaseId;
    use quorate_types::WriterId;

    use super::*;

    fn sample() -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut writer = BodyWriter::new(&mut bytes, None);
        let content =
            Content { bytes: b"v", kind: ValueKind::String, expire_at: Some(UnixMillis(9)) };
        let base = Some(Timestamp::new(5, WriterId(6)));
        writer.item(&Item { key: b"read", base, absent: true, write: None });
        let write = Some(Write::Set(content));
        writer.item(&Item { key: b"set", base: None, absent: false, write });
        writer.item(&Item { key: b"deleted", base, absent: false, write: Some(Write::Delete) });
        let write = Some(Write::Delta(Content { kind: ValueKind::Hash, ..content }));
        writer.item(&Item { key: b"changed", base, absent: false, write });
        writer.finish();
        bytes
    }

    #[test]
    fn items_come_back_and_every_cut_is_noticed() {
        let bytes = sample();
        let items: Vec<Item<'_>> = Body::check(&bytes).expect("just written").iter().collect();
        assert_eq!(items.len(), 4);
        assert_eq!(items[0].base, Some(Timestamp::new(5, WriterId(6))));
        assert!(items[0].absent && !items[2].absent);
        assert!(matches!(items[1].write, Some(Write::Set(content)) if content.bytes == b"v"));
        assert_eq!(items[2].write, Some(Write::Delete));
        assert!(matches!(items[3].write, Some(Write::Delta(delta)) if delta.bytes == b"v"));
        for cut in 0..bytes.len() {
            assert!(Body::check(&bytes[..cut]).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn a_call_stands_before_its_items() {
        let call = Call { lease: LeaseId(7), sequence: 9, first_incomplete: 8, digest: 5 };
        let items = [Item { key: b"k", base: None, absent: false, write: Some(Write::Delete) }];
        let plain = Body::encode(&items);
        assert_eq!(Body::check(&plain).expect("just written").call(), None);
        let bytes = Body::encode_call(Some(Answered { call, answer: b"+OK" }), &items);
        let body = Body::check(&bytes).expect("just written");
        assert_eq!(body.call(), Some(Answered { call, answer: b"+OK" }));
        assert_eq!(body.iter().collect::<Vec<_>>(), items);
        assert_eq!(bytes.len(), plain.len() + 28 + 4 + 3);
        for cut in 0..bytes.len() {
            assert!(Body::check(&bytes[..cut]).is_err(), "cut at {cut}");
        }
        let outside = Call { first_incomplete: 10, ..call };
        let bytes = Body::encode_call(Some(Answered { call: outside, answer: b"" }), &items);
        assert!(Body::check(&bytes).is_err(), "a call that its client has acknowledged");
    }

    #[test]
    fn damaged_flags_are_refused() {
        let mut bytes = sample();
        for flags in [0, VALUE, 64 | READ, EXPIRY, ABSENT | WRITE, DELTA | READ] {
            bytes[4] = flags;
            assert!(Body::check(&bytes).is_err(), "flags {flags}");
        }
    }

    #[test]
    fn the_layout_is_pinned() {
        let mut bytes = Vec::new();
        let mut writer = BodyWriter::new(&mut bytes, None);
        let content = Content { bytes: b"v", kind: ValueKind::String, expire_at: None };
        let base = Some(Timestamp::new(2, WriterId(3)));
        let write = Some(Write::Set(content));
        writer.item(&Item { key: b"k", base, absent: false, write });
        writer.finish();
        let pinned = b"\x01\0\0\0\x07\x01\0\0\0k\x02\0\0\0\0\0\0\0\x03\0\0\0\0\x01\0\0\0v";
        assert_eq!(bytes, pinned);
    }
}
