//! Peer messages and their layouts.
//!
//! ```text
//! kind u8 | fields in the order of their declaration
//! content: flags u8 | [kind u8 | value bytes | [expire at u64]]
//! item:    key bytes | round timestamp | content, or flags u8 | base timestamp | the rest of content
//! settled: round timestamp | owner u32
//! entry:   key bytes | version timestamp | under way u8 | settled
//!          | 0 u8 or 1 u8, round timestamp and requester | content
//! shards:  four u64, shard *i* is bit *i* of them
//! update:  its fields | 0 u8 or 1 u8, call
//! ```
//! Integers are little-endian; a timestamp is `version u64 | writer u32`; `bytes` have a length of
//! four bytes before them, lists a count of four bytes. The epoch is in the header of the frame
//! ([`quorate_wire::Header`]).

use alloc::vec::Vec;

use quorate_machine::{Content, ValueKind, is_collection};
use quorate_types::{MemberNumber, Timestamp, UnixMillis, limits};
use quorate_wire::{Malformed, Reader, Writer};

use crate::called::{Answered, CallMessage};
use crate::extras::ExtraMessage;
use crate::floor::FloorStep;
use crate::layout::Shards;
use crate::looks::LookMessage;

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

/// What a node says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message<'a> {
    /// Requester → a directory node, which becomes the driver: I want this key.
    Req {
        /// The key.
        key: &'a [u8],
        /// Who wants it.
        requester: Requester,
        /// Whether it only wants a round to go on that is under way for it, under this request.
        resumes: bool,
    },
    /// Driver → arbiters: may the key move in this round?
    Inv {
        /// The key.
        key: &'a [u8],
        /// The round. Of two, the larger one wins.
        round: Timestamp,
        /// Whom the key moves to.
        requester: Requester,
        /// Whom it was moved to before.
        previous: Settled,
    },
    /// Arbiter → requester, or → driver if the requester is gone: it may.
    Ack {
        /// The key.
        key: &'a [u8],
        /// The round.
        round: Timestamp,
        /// Whom the key moves to.
        requester: Requester,
        /// Whom it was moved to before, as the arbiter knows.
        previous: Settled,
        /// The version that the arbiter holds.
        version: Timestamp,
        /// The arbiter's hybrid clock: above all that its transactions on the key have written.
        clock: u64,
        /// From the owner to a requester that has no copy: what the key holds.
        copy: Option<Option<Content<'a>>>,
    },
    /// Requester → arbiters, after it has taken the key; and any node → one that is behind: the round
    /// is settled.
    Val {
        /// The key.
        key: &'a [u8],
        /// The round.
        round: Timestamp,
        /// The owner.
        owner: MemberNumber,
    },
    /// Driver → requester: another round was first. Ask again.
    Nack {
        /// The key.
        key: &'a [u8],
        /// The request.
        sequence: u64,
    },
    /// Coordinator, or a node that replays for a dead one → followers: apply this transaction (R-INV).
    Update(Update<'a>),
    /// Follower → coordinator or replayer: applied (R-ACK).
    Applied {
        /// The coordinator.
        coordinator: MemberNumber,
        /// The transactions' slots in its pipeline.
        slots: Slots<'a>,
    },
    /// Follower → coordinator or, if it is gone, the members that have all of a key: I lack the version that
    /// this transaction changes.
    Lacks {
        /// The coordinator.
        coordinator: MemberNumber,
        /// The transaction's slot in its pipeline.
        slot: u64,
        /// The key.
        key: &'a [u8],
    },
    /// Its answer: all that the transaction has left in the key.
    Whole {
        /// The coordinator.
        coordinator: MemberNumber,
        /// The transaction's slot in its pipeline.
        slot: u64,
        /// The key.
        key: &'a [u8],
        /// A collection.
        content: Content<'a>,
    },
    /// Coordinator → followers: every slot up to here is applied by all (R-VAL).
    Committed {
        /// The coordinator.
        coordinator: MemberNumber,
        /// The slot.
        upto: u64,
    },
    /// Node → all others: what this node had to finish of earlier epochs is finished.
    Recovered {
        /// Its hybrid clock.
        clock: u64,
        /// What it has promised to begin above.
        promised: u64,
        /// Whether it asks the receiver for the same.
        asks: bool,
    },
    /// A step of raising the floor, between the leader and all others.
    Floor {
        /// Which one.
        step: FloorStep,
        /// The floor that is to be; 0 in a wish.
        at: u64,
        /// With COMMIT, the floor before it, to which records may be forgotten now; 0 otherwise.
        before: u64,
    },
    /// Joining replica → active member of its groups: what do you have for me?
    CopyRead {
        /// Comes back in the answer.
        request: u64,
        /// Where to go on, in the donor's own numbers; 0 begins.
        cursor: u64,
        /// The shards that it wants.
        shards: Shards,
        /// Only the keys that the donor owns by name, without their values.
        owned: bool,
    },
    /// The same about one key.
    CopyKey {
        /// The key.
        key: &'a [u8],
    },
    /// Its answer.
    Copy {
        /// As in the request; 0 if it was about one key.
        request: u64,
        /// Where to go on; 0 at the end.
        next: u64,
        /// The donor's hybrid clock.
        clock: u64,
        /// The floor that it knows last, and the one up to which it may have forgotten records.
        floors: [u64; 2],
        /// Records, and entries of the directory.
        entries: Entries<'a>,
    },
    /// About calls of sessions.
    Call(CallMessage<'a>),
    /// About keys that a node reads without a copy.
    Look(LookMessage<'a>),
    /// About copies outside the groups of keys.
    Extra(ExtraMessage<'a>),
}

/// A committed transaction of a coordinator's pipeline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Update<'a> {
    /// The coordinator.
    pub coordinator: MemberNumber,
    /// The slot in its pipeline, counted from 1 without gaps.
    pub slot: u64,
    /// Every slot up to here is applied by all followers.
    pub committed: u64,
    /// The version of what it wrote.
    pub version: Timestamp,
    /// The slots that had not been committed and wrote what it read or overwrote.
    pub depends_on: Slots<'a>,
    /// What it wrote.
    pub items: Items<'a>,
    /// The call that it is an attempt at, if it is one.
    pub call: Option<Answered<'a>>,
}

/// A list of slots, checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slots<'a>(&'a [u8]);

/// What a transaction wrote, checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Items<'a>(&'a [u8]);

/// What a donor sends, checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entries<'a>(&'a [u8]);

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
    fn encode(self, writer: &mut Writer<'_>) {
        writer.u32(self.member.0);
        writer.u64(self.sequence);
        writer.timestamp(self.stamp);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let member = read_member(reader)?;
        Ok(Self { member, sequence: reader.u64()?, stamp: reader.timestamp()? })
    }
}

impl Settled {
    fn encode(self, writer: &mut Writer<'_>) {
        writer.timestamp(self.round);
        writer.u32(self.owner.0);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
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

    fn read(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
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
fn read_item<'a>(reader: &mut Reader<'a>) -> Result<Item<'a>, Malformed> {
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

    fn read(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        read_list(reader, limits::MESSAGE_BYTES_MAX, read_entry).map(Self)
    }

    /// The entries.
    pub fn iter(self) -> impl ExactSizeIterator<Item = Entry<'a>> {
        elements(self.0, read_entry)
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

const REQ: u8 = 1;
const INV: u8 = 2;
const ACK: u8 = 3;
const VAL: u8 = 4;
const NACK: u8 = 5;
const UPDATE: u8 = 6;
const APPLIED: u8 = 7;
const COMMITTED: u8 = 8;
const RECOVERED: u8 = 9;
const COPY_READ: u8 = 10;
const COPY: u8 = 11;
const COPY_KEY: u8 = 12;
const FLOOR: u8 = 13;
const LACKS: u8 = 14;
const WHOLE: u8 = 15;

impl<'a> Message<'a> {
    /// Appends the message.
    pub fn encode(&self, writer: &mut Writer<'_>) {
        match *self {
            Self::Req { key, requester, resumes } => {
                writer.u8(REQ);
                writer.bytes(key);
                requester.encode(writer);
                writer.u8(u8::from(resumes));
            }
            Self::Inv { key, round, requester, previous } => {
                writer.u8(INV);
                writer.bytes(key);
                writer.timestamp(round);
                requester.encode(writer);
                previous.encode(writer);
            }
            Self::Ack { key, round, requester, previous, version, clock, copy } => {
                writer.u8(ACK);
                writer.bytes(key);
                writer.timestamp(round);
                requester.encode(writer);
                previous.encode(writer);
                writer.timestamp(version);
                writer.u64(clock);
                writer.u8(u8::from(copy.is_some()));
                if let Some(content) = copy {
                    write_content(writer, content);
                }
            }
            Self::Val { key, round, owner } => {
                writer.u8(VAL);
                writer.bytes(key);
                writer.timestamp(round);
                writer.u32(owner.0);
            }
            Self::Nack { key, sequence } => {
                writer.u8(NACK);
                writer.bytes(key);
                writer.u64(sequence);
            }
            Self::Update(update) => {
                writer.u8(UPDATE);
                writer.u32(update.coordinator.0);
                writer.u64(update.slot);
                writer.u64(update.committed);
                writer.timestamp(update.version);
                writer.rest(update.depends_on.0);
                writer.rest(update.items.0);
                writer.u8(u8::from(update.call.is_some()));
                if let Some(call) = update.call {
                    call.encode(writer);
                }
            }
            Self::Applied { coordinator, slots } => {
                writer.u8(APPLIED);
                writer.u32(coordinator.0);
                writer.rest(slots.0);
            }
            Self::Lacks { coordinator, slot, key } => {
                writer.u8(LACKS);
                writer.u32(coordinator.0);
                writer.u64(slot);
                writer.bytes(key);
            }
            Self::Whole { coordinator, slot, key, content } => {
                writer.u8(WHOLE);
                writer.u32(coordinator.0);
                writer.u64(slot);
                writer.bytes(key);
                write_content(writer, Some(content));
            }
            Self::Committed { coordinator, upto } => {
                writer.u8(COMMITTED);
                writer.u32(coordinator.0);
                writer.u64(upto);
            }
            Self::Recovered { clock, promised, asks } => {
                writer.u8(RECOVERED);
                writer.u64(clock);
                writer.u64(promised);
                writer.u8(u8::from(asks));
            }
            Self::Floor { step, at, before } => {
                writer.u8(FLOOR);
                writer.u8(step as u8);
                writer.u64(at);
                writer.u64(before);
            }
            Self::CopyRead { request, cursor, shards, owned } => {
                writer.u8(COPY_READ);
                writer.u64(request);
                writer.u64(cursor);
                shards.0.iter().for_each(|word| writer.u64(*word));
                writer.u8(u8::from(owned));
            }
            Self::CopyKey { key } => {
                writer.u8(COPY_KEY);
                writer.bytes(key);
            }
            Self::Copy { request, next, clock, floors, entries } => {
                writer.u8(COPY);
                writer.u64(request);
                writer.u64(next);
                writer.u64(clock);
                floors.iter().for_each(|floor| writer.u64(*floor));
                writer.rest(entries.0);
            }
            Self::Call(message) => message.encode(writer),
            Self::Look(message) => message.encode(writer),
            Self::Extra(message) => message.encode(writer),
        }
    }

    /// Reads what [`Message::encode`] wrote.
    ///
    /// # Errors
    /// When the bytes are no message of this version.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        let kind = reader.u8()?;
        let message = match kind {
            REQ => Self::Req {
                key: read_key(&mut reader)?,
                requester: Requester::decode(&mut reader)?,
                resumes: read_flag(&mut reader)?,
            },
            INV => Self::Inv {
                key: read_key(&mut reader)?,
                round: reader.timestamp()?,
                requester: Requester::decode(&mut reader)?,
                previous: Settled::decode(&mut reader)?,
            },
            ACK => Self::Ack {
                key: read_key(&mut reader)?,
                round: reader.timestamp()?,
                requester: Requester::decode(&mut reader)?,
                previous: Settled::decode(&mut reader)?,
                version: reader.timestamp()?,
                clock: reader.u64()?,
                copy: match read_flag(&mut reader)? {
                    true => Some(read_content(&mut reader)?),
                    false => None,
                },
            },
            VAL => Self::Val {
                key: read_key(&mut reader)?,
                round: reader.timestamp()?,
                owner: read_member(&mut reader)?,
            },
            NACK => Self::Nack { key: read_key(&mut reader)?, sequence: reader.u64()? },
            UPDATE => Self::Update(Update::read(&mut reader)?),
            APPLIED => Self::Applied {
                coordinator: read_member(&mut reader)?,
                slots: Slots::read(&mut reader)?,
            },
            LACKS => Self::Lacks {
                coordinator: read_member(&mut reader)?,
                slot: reader.u64()?,
                key: read_key(&mut reader)?,
            },
            WHOLE => Self::Whole {
                coordinator: read_member(&mut reader)?,
                slot: reader.u64()?,
                key: read_key(&mut reader)?,
                content: read_content(&mut reader)?.ok_or(Malformed("no value"))?,
            },
            COMMITTED => {
                Self::Committed { coordinator: read_member(&mut reader)?, upto: reader.u64()? }
            }
            RECOVERED => Self::Recovered {
                clock: reader.u64()?,
                promised: reader.u64()?,
                asks: read_flag(&mut reader)?,
            },
            FLOOR => Self::Floor {
                step: FloorStep::read(&mut reader)?,
                at: reader.u64()?,
                before: reader.u64()?,
            },
            COPY_READ => Self::CopyRead {
                request: reader.u64()?,
                cursor: reader.u64()?,
                shards: read_shards(&mut reader)?,
                owned: read_flag(&mut reader)?,
            },
            COPY_KEY => Self::CopyKey { key: read_key(&mut reader)? },
            COPY => Self::Copy {
                request: reader.u64()?,
                next: reader.u64()?,
                clock: reader.u64()?,
                floors: [reader.u64()?, reader.u64()?],
                entries: Entries::read(&mut reader)?,
            },
            _ => match CallMessage::read(kind, &mut reader)? {
                Some(message) => Self::Call(message),
                None => match LookMessage::read(kind, &mut reader)? {
                    Some(message) => Self::Look(message),
                    None => ExtraMessage::read(kind, &mut reader)?
                        .map(Self::Extra)
                        .ok_or(Malformed("unknown kind of message"))?,
                },
            },
        };
        reader.end()?;
        Ok(message)
    }
}

impl<'a> Message<'a> {
    /// The first keys of a message whose records it will be about, not checked: of an update, and the
    /// key of a round.
    pub(crate) fn keys_ahead(bytes: &'a [u8]) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        const FIRST: usize = 4;
        let mut reader = Reader(bytes);
        let kind = reader.u8().unwrap_or(0);
        let mut count = || -> Result<u32, Malformed> {
            match kind {
                REQ | INV | ACK | VAL => return Ok(1),
                UPDATE => {}
                _ => return Ok(0),
            }
            reader.u32()?;
            reader.u64()?;
            reader.u64()?;
            reader.timestamp()?;
            Slots::read(&mut reader)?;
            reader.u32()
        };
        let count = count().unwrap_or(0) as usize;
        (0..count.min(FIRST)).map_while(move |_| match kind {
            UPDATE => Some(read_item(&mut reader).ok()?.key),
            _ => reader.bytes().ok(),
        })
    }
}

impl<'a> Update<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let update = Self {
            coordinator: read_member(reader)?,
            slot: reader.u64()?,
            committed: reader.u64()?,
            version: reader.timestamp()?,
            depends_on: Slots::read(reader)?,
            items: Items::read(reader)?,
            call: match read_flag(reader)? {
                true => Some(Answered::read(reader)?),
                false => None,
            },
        };
        if update.committed >= update.slot {
            return Err(Malformed("an update that all have applied"));
        }
        if update.depends_on.iter().any(|slot| slot >= update.slot) {
            return Err(Malformed("an update that depends on a later one"));
        }
        Ok(update)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_of_messages_are_known_ahead() {
        let keys: [&[u8]; 6] = [b"a", b"b", b"c", b"d", b"e", b"f"];
        let item = |key| Item { key, round: Timestamp::ZERO, content: None, base: None };
        let items = Items::write(keys.map(item).into_iter());
        let update = Update {
            coordinator: MemberNumber(1),
            slot: 9,
            committed: 3,
            version: Timestamp::ZERO,
            depends_on: Slots::NONE,
            items: Items::trusted(&items),
            call: None,
        };
        let mut bytes = Vec::new();
        Message::Update(update).encode(&mut Writer(&mut bytes));
        assert!(Message::keys_ahead(&bytes).eq(keys[..4].iter().copied()));
        // Whatever is cut off, there are fewer.
        for end in 0..bytes.len() {
            assert!(Message::keys_ahead(&bytes[..end]).count() <= 4);
        }
        bytes[0] = APPLIED;
        assert_eq!(Message::keys_ahead(&bytes).count(), 0);
        let (key, round, owner) = (b"key".as_slice(), Timestamp::ZERO, MemberNumber(2));
        bytes.clear();
        Message::Val { key, round, owner }.encode(&mut Writer(&mut bytes));
        assert!(Message::keys_ahead(&bytes).eq([key]));
        assert_eq!(Message::keys_ahead(&bytes[..7]).count(), 0);
    }
}
