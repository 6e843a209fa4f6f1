//! What messages are made of: requests and settled entries, what keys hold, and lists of slots, items and
//! entries, which are checked when they come and read where they are needed.
//!
//! ```text
//! content: flags u8 | [kind u8 | value bytes | [expire at u64]]
//! item:    key bytes | round timestamp | content, or flags u8 | base timestamp | the rest of content
//! settled: round timestamp | owner u32
//! entry:   key bytes | version timestamp | under way u8 | settled
//!          | 0 u8 or 1 u8, round timestamp and requester | content
//! shards:  four u64, shard *i* is bit *i* of them
//! ```
//! A timestamp is `version u64 | writer u32`; `bytes` have a length of four bytes before them, lists a count
//! of four bytes.

use alloc::vec::Vec;

use quorate_machine::{Content, ValueKind, is_collection};
use quorate_types::{MemberNumber, Timestamp, UnixMillis, limits};
use quorate_wire::{Malformed, Reader, Writer};

use crate::layout::Shards;

/// Who wants a key, and since when.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Requester {
    /// The member.
    pub member: MemberNumber,
    /// Which of its requests.
    pub sequence: u64,
    /// When the transaction that needs the key was first tried: an older one is not made to wait
    /// for a younger one that waits itself.
    pub stamp: Timestamp,
}

/// A settled entry of the directory: whom a key was moved to last, and in which round. The later of two
/// is the larger.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Settled {
    /// The round; zero if the key was never moved.
    pub round: Timestamp,
    /// The member, live or not.
    pub owner: MemberNumber,
}

/// A list of slots, checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slots<'a>(pub(crate) &'a [u8]);

/// What a transaction wrote, checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Items<'a>(pub(crate) &'a [u8]);

/// What a donor sends, checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entries<'a>(pub(crate) &'a [u8]);

/// One key that a transaction wrote.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Item<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The round in which its owner, the coordinator, has got it.
    pub round: Timestamp,
    /// What it holds from then on.
    pub content: Option<Content<'a>>,
    /// The version that it overwrites, if the bytes of the content are a delta that changes it.
    pub base: Option<Timestamp>,
}

/// One key that a donor has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The version of the value.
    pub version: Timestamp,
    /// Whether the transaction that writes this version is under way, and the receiver is one of its
    /// followers: the value is left out, and comes with that transaction.
    pub is_under_way: bool,
    /// Whom it was moved to last.
    pub settled: Settled,
    /// The round that is under way after that, and whom it moves the key to.
    pub under_way: Option<(Timestamp, Requester)>,
    /// What it holds.
    pub content: Option<Content<'a>>,
}

const VALUE: u8 = 1;
const EXPIRY: u8 = 2;
const DELTA: u8 = 4;

/// Bytes of an item besides key and value, at most.
pub(crate) const ITEM_BYTES: usize = 52;

pub(crate) fn write_content(writer: &mut Writer<'_>, content: Option<Content<'_>>) {
    write_change(writer, content, None);
}

fn write_change(writer: &mut Writer<'_>, content: Option<Content<'_>>, base: Option<Timestamp>) {
    let Some(Content { bytes, kind, expire_at }) = content else { return writer.u8(0) };
    let flag = |is_set, flag| if is_set { flag } else { 0 };
    writer.u8(VALUE | flag(expire_at.is_some(), EXPIRY) | flag(base.is_some(), DELTA));
    if let Some(base) = base {
        writer.timestamp(base);
    }
    writer.u8(kind as u8);
    writer.bytes(bytes);
    if let Some(at) = expire_at {
        writer.u64(at.0);
    }
}

pub(crate) fn read_content<'a>(reader: &mut Reader<'a>) -> Result<Option<Content<'a>>, Malformed> {
    let flags = reader.u8()?;
    read_value(reader, flags)
}

fn read_value<'a>(reader: &mut Reader<'a>, flags: u8) -> Result<Option<Content<'a>>, Malformed> {
    if flags == 0 {
        return Ok(None);
    }
    if flags & VALUE == 0 || flags & !(VALUE | EXPIRY) != 0 {
        return Err(Malformed("unknown flags of a value"));
    }
    let kind = ValueKind::from_u8(reader.u8()?).ok_or(Malformed("unknown kind of value"))?;
    let bytes = reader.bytes()?;
    let longest =
        if is_collection(kind) { limits::COLLECTION_BYTES_MAX } else { limits::VALUE_BYTES_MAX };
    if bytes.len() > longest {
        return Err(Malformed("a value beyond its limit"));
    }
    let expires = flags & EXPIRY != 0;
    let expire_at = if expires { Some(UnixMillis(reader.u64()?)) } else { None };
    Ok(Some(Content { bytes, kind, expire_at }))
}

pub(crate) fn read_key<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], Malformed> {
    let key = reader.bytes()?;
    if key.len() > limits::KEY_BYTES_MAX {
        return Err(Malformed("a key beyond its limit"));
    }
    Ok(key)
}

pub(crate) fn read_member(reader: &mut Reader<'_>) -> Result<MemberNumber, Malformed> {
    let number = reader.u32()?;
    if number > limits::MEMBER_NUMBER_MAX {
        return Err(Malformed("a member number beyond its limit"));
    }
    Ok(MemberNumber(number))
}

pub(crate) fn read_flag(reader: &mut Reader<'_>) -> Result<bool, Malformed> {
    match reader.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Malformed("neither true nor false")),
    }
}

/// An empty list, with room for so many bytes of elements.
pub(crate) fn begin_list(room: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4 + room);
    Writer(&mut bytes).u32(0);
    bytes
}

/// A list is about to have one element more.
pub(crate) fn count_one(bytes: &mut [u8]) {
    let (count, _) = bytes.split_first_chunk_mut().expect("a list begins with its count");
    *count = (u32::from_le_bytes(*count) + 1).to_le_bytes();
}

/// Reads a counted list to find its end, and gives its bytes.
pub(crate) fn read_list<'a, T>(
    reader: &mut Reader<'a>,
    most: usize,
    mut item: impl FnMut(&mut Reader<'a>) -> Result<T, Malformed>,
) -> Result<&'a [u8], Malformed> {
    let whole = reader.0;
    let count = reader.u32()? as usize;
    if count > most {
        return Err(Malformed("a list beyond its limit"));
    }
    for _ in 0..count {
        item(reader)?;
    }
    Ok(&whole[..whole.len() - reader.0.len()])
}

/// The elements of a list that was checked.
pub(crate) fn elements<'a, T>(
    bytes: &'a [u8],
    mut item: impl FnMut(&mut Reader<'a>) -> Result<T, Malformed>,
) -> impl ExactSizeIterator<Item = T> {
    let mut reader = Reader(bytes);
    let count = reader.u32().expect("a list was checked");
    (0..count).map(move |_| item(&mut reader).expect("a list was checked"))
}

impl Requester {
    pub(crate) fn encode(self, writer: &mut Writer<'_>) {
        writer.u32(self.member.0);
        writer.u64(self.sequence);
        writer.timestamp(self.stamp);
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let member = read_member(reader)?;
        Ok(Self { member, sequence: reader.u64()?, stamp: reader.timestamp()? })
    }
}

impl Settled {
    pub(crate) fn encode(self, writer: &mut Writer<'_>) {
        writer.timestamp(self.round);
        writer.u32(self.owner.0);
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self { round: reader.timestamp()?, owner: read_member(reader)? })
    }
}

pub(crate) fn read_shards(reader: &mut Reader<'_>) -> Result<Shards, Malformed> {
    let mut shards = Shards::default();
    for word in &mut shards.0 {
        *word = reader.u64()?;
    }
    Ok(shards)
}

impl<'a> Slots<'a> {
    /// No slots.
    pub(crate) const NONE: Self = Self(&[0; 4]);

    /// A list that was written here, or checked; no bytes are no slots.
    pub(crate) fn trusted(bytes: &'a [u8]) -> Self {
        debug_assert!(bytes.is_empty() || Self::check(bytes).is_ok(), "it is checked before");
        if bytes.is_empty() { Self::NONE } else { Self(bytes) }
    }

    /// A list in bytes of its own.
    pub fn write(slots: &[u64]) -> Vec<u8> {
        let mut bytes = Vec::new();
        Self::append(slots.iter().copied(), &mut bytes);
        bytes
    }

    /// Appends a list to bytes.
    pub(crate) fn append(slots: impl ExactSizeIterator<Item = u64>, bytes: &mut Vec<u8>) {
        let mut writer = Writer(bytes);
        writer.u32(u32::try_from(slots.len()).expect("limits bound lists of slots"));
        slots.for_each(|slot| writer.u64(slot));
    }

    /// A list from its bytes.
    ///
    /// # Errors
    /// If they are damaged.
    pub fn check(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        let slots = Self::read(&mut reader)?;
        reader.end().map(|()| slots)
    }

    pub(crate) fn read(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        read_list(reader, limits::TXN_KEYS_MAX, Reader::u64).map(Self)
    }

    /// The slots.
    pub fn iter(self) -> impl ExactSizeIterator<Item = u64> + use<'a> {
        elements(self.0, Reader::u64)
    }
}

impl<'a> Items<'a> {
    /// A list in bytes of its own.
    pub fn write<'b>(items: impl ExactSizeIterator<Item = Item<'b>>) -> Vec<u8> {
        let mut bytes = Self::begin(0);
        items.for_each(|item| Self::push(&mut bytes, &item));
        bytes
    }

    /// An empty list, with room for so many bytes.
    pub(crate) fn begin(room: usize) -> Vec<u8> {
        begin_list(room)
    }

    /// Appends an item to a list that [`Items::begin`] began.
    pub(crate) fn push(bytes: &mut Vec<u8>, item: &Item<'_>) {
        count_one(bytes);
        let mut writer = Writer(bytes);
        writer.bytes(item.key);
        writer.timestamp(item.round);
        write_change(&mut writer, item.content, item.base);
    }

    /// A list that was written here, or checked.
    pub(crate) fn trusted(bytes: &'a [u8]) -> Self {
        debug_assert!(Self::check(bytes).is_ok(), "a list is checked before it is kept");
        Self(bytes)
    }

    pub(crate) fn is_empty(self) -> bool {
        self.iter().len() == 0
    }

    /// A list from its bytes.
    ///
    /// # Errors
    /// If they are damaged.
    pub fn check(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        let items = Self::read(&mut reader)?;
        reader.end().map(|()| items)
    }

    pub(crate) fn read(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        read_list(reader, limits::TXN_KEYS_MAX, read_item).map(Self)
    }

    /// The items.
    pub fn iter(self) -> impl ExactSizeIterator<Item = Item<'a>> {
        elements(self.0, read_item)
    }

    /// The same in bytes.
    pub(crate) fn bytes(self) -> &'a [u8] {
        self.0
    }
}

#[inline]
pub(crate) fn read_item<'a>(reader: &mut Reader<'a>) -> Result<Item<'a>, Malformed> {
    let (key, round, flags) = (read_key(reader)?, reader.timestamp()?, reader.u8()?);
    let base = if flags & DELTA != 0 { Some(reader.timestamp()?) } else { None };
    let content = read_value(reader, flags & !DELTA)?;
    if base.is_some() && !content.is_some_and(|content| is_collection(content.kind)) {
        return Err(Malformed("a delta of no collection"));
    }
    Ok(Item { key, round, content, base })
}

impl<'a> Entries<'a> {
    /// Appends an entry to a list that [`Entries::begin`] began.
    pub(crate) fn push(bytes: &mut Vec<u8>, entry: &Entry<'_>) {
        count_one(bytes);
        let mut writer = Writer(bytes);
        writer.bytes(entry.key);
        writer.timestamp(entry.version);
        writer.u8(u8::from(entry.is_under_way));
        entry.settled.encode(&mut writer);
        writer.u8(u8::from(entry.under_way.is_some()));
        if let Some((round, requester)) = entry.under_way {
            writer.timestamp(round);
            requester.encode(&mut writer);
        }
        write_content(&mut writer, entry.content);
    }

    /// An empty list.
    pub(crate) fn begin() -> Vec<u8> {
        begin_list(0)
    }

    /// A list from its bytes.
    ///
    /// # Errors
    /// If they are damaged.
    pub fn check(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        let entries = Self::read(&mut reader)?;
        reader.end().map(|()| entries)
    }

    pub(crate) fn read(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        read_list(reader, limits::MESSAGE_BYTES_MAX, read_entry).map(Self)
    }

    /// The entries.
    pub fn iter(self) -> impl ExactSizeIterator<Item = Entry<'a>> {
        elements(self.0, read_entry)
    }

    /// The same in bytes.
    pub(crate) fn bytes(self) -> &'a [u8] {
        self.0
    }
}

fn read_entry<'a>(reader: &mut Reader<'a>) -> Result<Entry<'a>, Malformed> {
    let key = read_key(reader)?;
    let (version, is_under_way) = (reader.timestamp()?, read_flag(reader)?);
    let settled = Settled::decode(reader)?;
    let under_way = match read_flag(reader)? {
        true => Some((reader.timestamp()?, Requester::decode(reader)?)),
        false => None,
    };
    let content = read_content(reader)?;
    Ok(Entry { key, version, is_under_way, settled, under_way, content })
}
