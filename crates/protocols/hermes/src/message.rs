//! The messages of Hermes and their layouts.
//!
//! ```text
//! INV      1 | cookie u64 | version u64 | writer u32 | flags u8 | kind u8 | expiry u64 | key
//!            | [call | date u64 | answer] | [base writer u32] | value
//! ACK      2 | cookie u64 | version u64 | writer u32 | key
//! VAL      3 | version u64 | writer u32 | key
//! MCHECK   4 | batch u64            MCHECK_ACK 5 | batch u64
//! CHUNK?   6 | request u64 | cursor
//! CHUNK    7 | request u64 | cursor | floor u64 | next_floor u64 | in_doubt u8 | entries | gone | sessions
//! FLOOR?   8 | round u64 | version u64
//! FLOOR_READY 9 | round u64 | next_floor u64 | is_swept u8
//! FLOOR   10 | round u64 | version u64 | raises u8
//! FORWARD   11 | sequence u64 | origin u64 | op
//! FORWARDED 12 | sequence u64 | outcome
//! FORWARD   13 | sequence u64 | origin u64 | call | date u64 | until u64 | owner u32 | op
//! VALUES? 14 | keys
//! COMPARE 15 | request u64 | shift u8 | first u64 | digests
//! COMPARED 16 | request u64 | records u64 | buckets
//! DIFFER? 17 | request u64 | shift u8 | buckets | held
//!
//! call: lease u64 | sequence u64 | first incomplete u64 | digest u32
//! cursor: 0 u8 (the end) | 1 u8, place u64 (records) | 2 u8, lease u64, sequence u64 (sessions)
//! ```
//! Digests, buckets, held and gone are words of eight bytes. Keys, answers, entries and the values in
//! entries, gone, and the buckets of DIFFER? carry a length of four bytes; the last field fills the
//! message. What stands in brackets is there only if a flag says so. The epoch stands in the header
//! of every message (`quorate_wire::Header`).

use quorate_machine::{Content, Slot, ValueKind, is_collection, mutant};
use quorate_rifl::{Call, LeaseId};
use quorate_types::{Timestamp, UnixMillis, WriterId};
use quorate_wire::{Malformed, Reader, Words, Writer};

/// The highest version of a key: far more updates than there will ever be. One at the end of its
/// range would leave no higher one.
pub(crate) const VERSION_MAX: u64 = 1 << 62;

/// A peer message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message<'a> {
    /// Invalidate a key and keep this newer value (N3.3).
    Inv(Inv<'a>),
    /// An INV was received; the sender's copy is at least as new.
    Ack(Ack<'a>),
    /// Every live replica has acknowledged: the value may be read.
    Val(Val<'a>),
    /// Is this node still a member, in this epoch? (§4.3.6, leaseless reads)
    MemberCheck {
        /// Which batch of reads waits for the answer.
        batch: u64,
    },
    /// It is.
    MemberCheckAck {
        /// Which batch of reads was asked for.
        batch: u64,
    },
    /// A shadow replica asks for the next records (§4.3.3).
    ChunkRead {
        /// Comes back in the answer; later answers to earlier requests are ignored.
        request: u64,
        /// Where the copy goes on.
        cursor: Cursor,
    },
    /// Some records of an active replica.
    Chunk(Chunk<'a>),
    /// A shadow replica asks for values that were too large for their chunk. Each comes as an INV,
    /// and a VAL if it may be read.
    ValueRead {
        /// The keys, each with its length.
        keys: &'a [u8],
    },
    /// A shadow replica has records of an earlier life: in which of these buckets does the receiver
    /// hold others?
    Compare {
        /// Comes back in the answer, and seeds the hashes of the digests.
        request: u64,
        /// A bucket has two to the power of this many places.
        shift: u8,
        /// The first bucket.
        first: u64,
        /// For this bucket and those that follow, the sum of the hashes of the sender's records.
        digests: Words<'a>,
    },
    /// In these.
    Compared {
        /// The request that it answers.
        request: u64,
        /// How many records the sender has. If they are too many for buckets of this size, nothing was
        /// compared.
        records: u64,
        /// The buckets, in order.
        buckets: Words<'a>,
    },
    /// A shadow asks for what it lacks in some buckets. The answer is a chunk.
    DifferenceRead {
        /// Comes back in the answer, and seeds the hashes.
        request: u64,
        /// A bucket has two to the power of this many places.
        shift: u8,
        /// The buckets, in order.
        buckets: Words<'a>,
        /// The hashes of the sender's records in them.
        held: Words<'a>,
    },
    /// Nobody shall write an absent key at or below this version any more (pitfall H8).
    FloorPrepare {
        /// Names the round.
        round: u64,
        /// The proposed floor.
        version: u64,
    },
    /// Everything that might have written below the floor is finished here.
    FloorReady {
        /// The round.
        round: u64,
        /// The highest floor that this replica has prepared.
        next_floor: u64,
        /// Whether it holds nothing from its log that others may lack.
        is_swept: bool,
    },
    /// All replicas are ready: new versions of absent keys are above this one.
    FloorCommit {
        /// The round.
        round: u64,
        /// The version.
        version: u64,
        /// Whether it is the floor, so that tombstones up to this version may go.
        raises: bool,
    },
}

/// `INV{key, ts, rmw, value}`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inv<'a> {
    /// The coordinator's pending op; comes back in the ACK.
    pub cookie: Slot,
    /// The key.
    pub key: &'a [u8],
    /// The version of the update.
    pub timestamp: Timestamp,
    /// Whether the update is a read-modify-write.
    pub rmw: bool,
    /// The value; nothing deletes the key.
    pub content: Option<Content<'a>>,
    /// The version of the collection that the bytes of the value are a delta for. Without it they are
    /// the whole value.
    pub base: Option<Timestamp>,
    /// The call that the update is an attempt at.
    pub completion: Option<Completion<'a>>,
}

/// What becomes the record of a call once the update that carries it is Valid (RIFL §2.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion<'a> {
    /// The call.
    pub call: Call,
    /// The date of the attempt: [`quorate_rifl::Permit::date`].
    pub date: u64,
    /// The answer, encoded by [`quorate_machine::Command::encode_reply`].
    pub answer: &'a [u8],
}

/// Where a copy goes on: first all records, then all sessions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Cursor {
    /// At this place of the donor's scan; 0 begins.
    Records(u64),
    /// At this session, with the calls from this one on.
    Sessions(LeaseId, u64),
}

impl Cursor {
    /// Where a copy begins.
    pub const START: Self = Self::Records(0);
    /// Where the records are all copied.
    pub const SESSIONS: Self = Self::Sessions(LeaseId(0), 0);
}

/// Stands in the timestamp of a tombstone that no client asked for: what a key that was forgotten
/// below the floor answers to a leftover update (pitfall H8). Larger than every minted writer.
pub(crate) const NOBODY: WriterId = WriterId(u32::MAX);

impl Inv<'_> {
    /// The version of what the update was built on (see pitfall H11 in the crate's documentation).
    pub fn base_version(&self) -> u64 {
        if self.timestamp.writer == NOBODY {
            // The key was deleted at or below this version, and forgotten.
            return self.timestamp.version;
        }
        self.timestamp.version.saturating_sub(if self.rmw { 1 } else { 2 })
    }
}

/// `ACK{ts}`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ack<'a> {
    /// The coordinator's pending op.
    pub cookie: Slot,
    /// The timestamp of the INV, not of the local copy.
    pub timestamp: Timestamp,
    /// The key, if followers broadcast acknowledgements (O3); otherwise empty.
    pub key: &'a [u8],
}

/// `VAL{key, ts}`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Val<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The version that may be read.
    pub timestamp: Timestamp,
}

/// Records for a shadow replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chunk<'a> {
    /// The request that it answers.
    pub request: u64,
    /// Where the next chunk begins; nothing after the last.
    pub next: Option<Cursor>,
    /// The donor's floor.
    pub floor: u64,
    /// The donor's prepared floor.
    pub next_floor: u64,
    /// Whether a key that the donor lacks may be in the log of another replica.
    pub in_doubt: bool,
    /// Encoded [`Entry`]s.
    pub entries: &'a [u8],
    /// Of the records that a shadow said it has ([`Message::DifferenceRead`]), the hashes of those that
    /// the donor does not hold, or holds in another version.
    pub gone: Words<'a>,
    /// Sessions, after all records: [`quorate_rifl::ResultTracker::encode_from`].
    pub sessions: &'a [u8],
}

/// One record of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The version.
    pub timestamp: Timestamp,
    /// Whether the version was written by a read-modify-write.
    pub rmw: bool,
    /// Whether the donor's copy was Valid.
    pub valid: bool,
    /// The bytes of a value, and a call's answer, that are too large for a chunk and that the shadow
    /// has to ask for ([`Message::ValueRead`]).
    pub apart: Option<u32>,
    /// The value; nothing is a tombstone (or a value that is too large).
    pub content: Option<Content<'a>>,
    /// The call that the version is an attempt at, if it is not Valid at the donor. Without its
    /// answer if that has to be asked for.
    pub completion: Option<Completion<'a>>,
}

const FLAG_RMW: u8 = 1;
const FLAG_VALUE: u8 = 2;
const FLAG_EXPIRY: u8 = 4;
const FLAG_VALID: u8 = 8;
const FLAG_APART: u8 = 16;
const FLAG_CALL: u8 = 32;
const FLAG_DELTA: u8 = 64;

impl<'a> Message<'a> {
    /// Writes the message.
    pub fn encode(&self, writer: &mut Writer<'_>) {
        match *self {
            Self::Inv(inv) => {
                writer.u8(1);
                writer.u64(inv.cookie.to_u64());
                writer.timestamp(inv.timestamp);
                let flags = flag(inv.rmw, FLAG_RMW)
                    | flag(inv.completion.is_some(), FLAG_CALL)
                    | flag(inv.base.is_some(), FLAG_DELTA);
                let forgets = mutant!("hermes_inv_without_kind");
                write_content_head(writer, flags, inv.content, forgets);
                writer.bytes(inv.key);
                write_completion(writer, inv.completion);
                if let Some(base) = inv.base {
                    writer.u32(base.writer.0);
                }
                writer.rest(inv.content.map_or(&[], |content| content.bytes));
            }
            Self::Ack(ack) => {
                writer.u8(2);
                writer.u64(ack.cookie.to_u64());
                writer.timestamp(ack.timestamp);
                writer.rest(ack.key);
            }
            Self::Val(val) => {
                writer.u8(3);
                writer.timestamp(val.timestamp);
                writer.rest(val.key);
            }
            Self::MemberCheck { batch } => words(writer, 4, &[batch]),
            Self::MemberCheckAck { batch } => words(writer, 5, &[batch]),
            Self::ChunkRead { request, cursor } => {
                words(writer, 6, &[request]);
                write_cursor(writer, Some(cursor));
            }
            Self::Chunk(chunk) => {
                words(writer, 7, &[chunk.request]);
                write_cursor(writer, chunk.next);
                writer.u64(chunk.floor);
                writer.u64(chunk.next_floor);
                writer.u8(u8::from(chunk.in_doubt));
                writer.bytes(chunk.entries);
                writer.bytes(chunk.gone.bytes());
                writer.rest(chunk.sessions);
            }
            Self::ValueRead { keys } => {
                writer.u8(14);
                writer.rest(keys);
            }
            Self::Compare { request, shift, first, digests } => {
                words(writer, 15, &[request]);
                writer.u8(shift);
                writer.u64(first);
                writer.rest(digests.bytes());
            }
            Self::Compared { request, records, buckets } => {
                words(writer, 16, &[request, records]);
                writer.rest(buckets.bytes());
            }
            Self::DifferenceRead { request, shift, buckets, held } => {
                words(writer, 17, &[request]);
                writer.u8(shift);
                writer.bytes(buckets.bytes());
                writer.rest(held.bytes());
            }
            Self::FloorPrepare { round, version } => words(writer, 8, &[round, version]),
            Self::FloorReady { round, next_floor, is_swept } => {
                words(writer, 9, &[round, next_floor]);
                writer.u8(u8::from(is_swept));
            }
            Self::FloorCommit { round, version, raises } => {
                words(writer, 10, &[round, version]);
                writer.u8(u8::from(raises));
            }
        }
    }

    /// Reads a message.
    ///
    /// # Errors
    /// If no correct peer of this version sends these bytes.
    #[inline]
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        let message = match reader.u8()? {
            1 => {
                let cookie = Slot::from_u64(reader.u64()?);
                let timestamp = reader.timestamp()?;
                let head = read_content_head(&mut reader)?;
                let key = reader.bytes()?;
                let completion = head.completion(&mut reader)?;
                let base = head.base(timestamp, &mut reader)?;
                Self::Inv(Inv {
                    cookie,
                    key,
                    timestamp,
                    rmw: head.flags & FLAG_RMW != 0,
                    content: head.content(reader.rest())?,
                    base,
                    completion,
                })
            }
            2 => Self::Ack(Ack {
                cookie: Slot::from_u64(reader.u64()?),
                timestamp: reader.timestamp()?,
                key: reader.rest(),
            }),
            3 => Self::Val(Val { timestamp: reader.timestamp()?, key: reader.rest() }),
            4 => Self::MemberCheck { batch: reader.u64()? },
            5 => Self::MemberCheckAck { batch: reader.u64()? },
            6 => Self::ChunkRead {
                request: reader.u64()?,
                cursor: read_cursor(&mut reader)?.ok_or(Malformed("hermes: no cursor"))?,
            },
            7 => Self::Chunk(Chunk {
                request: reader.u64()?,
                next: read_cursor(&mut reader)?,
                floor: reader.u64()?,
                next_floor: reader.u64()?,
                in_doubt: read_flag(&mut reader)?,
                entries: reader.bytes()?,
                gone: Words::read(reader.bytes()?)?,
                sessions: reader.rest(),
            }),
            8 => Self::FloorPrepare { round: reader.u64()?, version: reader.u64()? },
            9 => Self::FloorReady {
                round: reader.u64()?,
                next_floor: reader.u64()?,
                is_swept: read_flag(&mut reader)?,
            },
            10 => Self::FloorCommit {
                round: reader.u64()?,
                version: reader.u64()?,
                raises: read_flag(&mut reader)?,
            },
            14 => Self::ValueRead { keys: reader.rest() },
            15 => Self::Compare {
                request: reader.u64()?,
                shift: reader.u8()?,
                first: reader.u64()?,
                digests: Words::read(reader.rest())?,
            },
            16 => Self::Compared {
                request: reader.u64()?,
                records: reader.u64()?,
                buckets: Words::read(reader.rest())?,
            },
            17 => Self::DifferenceRead {
                request: reader.u64()?,
                shift: reader.u8()?,
                buckets: Words::read(reader.bytes()?)?,
                held: Words::read(reader.rest())?,
            },
            _ => return Err(Malformed("hermes: unknown message")),
        };
        reader.end()?;
        Ok(message)
    }
}

impl<'a> Entry<'a> {
    /// Appends the entry to a chunk.
    pub fn encode(&self, writer: &mut Writer<'_>) {
        writer.timestamp(self.timestamp);
        let flags = flag(self.rmw, FLAG_RMW)
            | flag(self.valid, FLAG_VALID)
            | flag(self.apart.is_some(), FLAG_APART)
            | flag(self.completion.is_some(), FLAG_CALL);
        write_content_head(writer, flags, self.content, mutant!("hermes_copy_without_kind"));
        writer.bytes(self.key);
        write_completion(writer, self.completion);
        match self.apart {
            Some(bytes) => writer.u32(bytes),
            None => writer.bytes(self.content.map_or(&[], |content| content.bytes)),
        }
    }

    /// Takes an entry off the front of a chunk.
    ///
    /// # Errors
    /// If no correct peer of this version sends these bytes.
    pub fn decode(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let timestamp = reader.timestamp()?;
        let head = read_content_head(reader)?;
        let key = reader.bytes()?;
        let completion = head.completion(reader)?;
        let is_apart = head.flags & FLAG_APART != 0;
        let apart = if is_apart { Some(reader.u32()?) } else { None };
        let bytes = if is_apart { &[] } else { reader.bytes()? };
        Ok(Self {
            key,
            completion,
            timestamp,
            rmw: head.flags & FLAG_RMW != 0,
            valid: head.flags & FLAG_VALID != 0,
            apart,
            content: head.content(bytes)?,
        })
    }
}

fn flag(set: bool, bit: u8) -> u8 {
    if set { bit } else { 0 }
}

fn words(writer: &mut Writer<'_>, kind: u8, words: &[u64]) {
    writer.u8(kind);
    words.iter().for_each(|word| writer.u64(*word));
}

fn write_completion(writer: &mut Writer<'_>, completion: Option<Completion<'_>>) {
    let Some(completion) = completion else { return };
    completion.call.encode(writer);
    writer.u64(completion.date);
    writer.bytes(completion.answer);
}

fn write_cursor(writer: &mut Writer<'_>, cursor: Option<Cursor>) {
    match cursor {
        None => writer.u8(0),
        Some(Cursor::Records(place)) => words(writer, 1, &[place]),
        Some(Cursor::Sessions(lease, sequence)) => words(writer, 2, &[lease.0, sequence]),
    }
}

fn read_flag(reader: &mut Reader<'_>) -> Result<bool, Malformed> {
    match reader.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Malformed("hermes: a flag that is neither 0 nor 1")),
    }
}

fn read_cursor(reader: &mut Reader<'_>) -> Result<Option<Cursor>, Malformed> {
    Ok(match reader.u8()? {
        0 => None,
        1 => Some(Cursor::Records(reader.u64()?)),
        2 => Some(Cursor::Sessions(LeaseId(reader.u64()?), reader.u64()?)),
        _ => return Err(Malformed("hermes: unknown cursor")),
    })
}

/// A mutant forgets what the bytes are.
fn write_content_head(
    writer: &mut Writer<'_>,
    flags: u8,
    content: Option<Content<'_>>,
    forgets: bool,
) {
    let expiry = content.and_then(|content| content.expire_at);
    let flags = flags | flag(content.is_some(), FLAG_VALUE) | flag(expiry.is_some(), FLAG_EXPIRY);
    writer.u8(flags);
    let known = content.filter(|_| !forgets);
    writer.u8(known.map_or(ValueKind::String, |content| content.kind) as u8);
    writer.u64(expiry.map_or(0, |at| at.0));
}

struct ContentHead {
    flags: u8,
    kind: ValueKind,
    expiry: u64,
}

fn read_content_head(reader: &mut Reader<'_>) -> Result<ContentHead, Malformed> {
    let flags = reader.u8()?;
    let kind = ValueKind::from_u8(reader.u8()?).ok_or(Malformed("hermes: unknown value kind"))?;
    Ok(ContentHead { flags, kind, expiry: reader.u64()? })
}

impl ContentHead {
    /// The base of a delta: what is changed has a version, and the update is one above it.
    fn base(
        &self,
        timestamp: Timestamp,
        reader: &mut Reader<'_>,
    ) -> Result<Option<Timestamp>, Malformed> {
        if self.flags & FLAG_DELTA == 0 {
            return Ok(None);
        }
        let is_update = self.flags & (FLAG_RMW | FLAG_VALUE) == FLAG_RMW | FLAG_VALUE;
        if !is_update || !is_collection(self.kind) || timestamp.version < 2 {
            return Err(Malformed("hermes: a delta of no collection"));
        }
        Ok(Some(Timestamp::new(timestamp.version - 1, WriterId(reader.u32()?))))
    }

    fn completion<'a>(&self, reader: &mut Reader<'a>) -> Result<Option<Completion<'a>>, Malformed> {
        if self.flags & FLAG_CALL == 0 {
            return Ok(None);
        }
        let (call, date) = (Call::decode(reader)?, reader.u64()?);
        Ok(Some(Completion { call, date, answer: reader.bytes()? }))
    }

    fn content<'a>(&self, bytes: &'a [u8]) -> Result<Option<Content<'a>>, Malformed> {
        if self.flags & FLAG_VALUE == 0 {
            return if bytes.is_empty() { Ok(None) } else { Err(Malformed("hermes: stray value")) };
        }
        let expire_at = (self.flags & FLAG_EXPIRY != 0).then_some(UnixMillis(self.expiry));
        Ok(Some(Content { bytes, kind: self.kind, expire_at }))
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn encoded(message: &Message<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        message.encode(&mut Writer(&mut bytes));
        bytes
    }

    fn call() -> Call {
        Call { lease: LeaseId(5), sequence: 7, first_incomplete: 6, digest: 8 }
    }

    fn completion() -> Completion<'static> {
        Completion { call: call(), date: 9, answer: b"done" }
    }

    #[test]
    fn golden_bytes_of_the_three_messages_of_an_update() {
        let cookie = Slot { index: 1, generation: 2 };
        let timestamp = Timestamp::new(4, WriterId(0x0500_0003));
        let content =
            Content { bytes: b"v", kind: ValueKind::String, expire_at: Some(UnixMillis(9)) };
        let inv = Message::Inv(Inv {
            cookie,
            key: b"k",
            timestamp,
            rmw: true,
            content: Some(content),
            base: None,
            completion: None,
        });
        assert_eq!(
            encoded(&inv),
            *b"\x01\x01\0\0\0\x02\0\0\0\x04\0\0\0\0\0\0\0\x03\0\0\x05\x07\0\x09\0\0\0\0\0\0\0\x01\0\0\0kv"
        );
        let ack = Message::Ack(Ack { cookie, timestamp, key: b"" });
        assert_eq!(encoded(&ack), *b"\x02\x01\0\0\0\x02\0\0\0\x04\0\0\0\0\0\0\0\x03\0\0\x05");
        let val = Message::Val(Val { key: b"k", timestamp });
        assert_eq!(encoded(&val), *b"\x03\x04\0\0\0\0\0\0\0\x03\0\0\x05k");
        for message in [inv, ack, val] {
            assert_eq!(Message::decode(&encoded(&message)), Ok(message));
        }
    }

    #[test]
    fn golden_bytes_of_a_delta() {
        let timestamp = Timestamp::new(4, WriterId(0x0500_0003));
        let inv = Inv {
            cookie: Slot { index: 1, generation: 2 },
            key: b"k",
            timestamp,
            rmw: true,
            content: Some(Content { bytes: b"v", kind: ValueKind::Hash, expire_at: None }),
            base: Some(Timestamp::new(3, WriterId(0x0600_0001))),
            completion: None,
        };
        let bytes = encoded(&Message::Inv(inv));
        assert_eq!(
            bytes,
            *b"\x01\x01\0\0\0\x02\0\0\0\x04\0\0\0\0\0\0\0\x03\0\0\x05\x43\x02\0\0\0\0\0\0\0\0\
               \x01\0\0\0k\x01\0\0\x06v"
        );
        assert_eq!(Message::decode(&bytes), Ok(Message::Inv(inv)));
        let with_flags = |flags: u8| {
            let mut bytes = bytes.clone();
            bytes[21] = flags;
            bytes
        };
        for flags in [FLAG_DELTA, FLAG_DELTA | FLAG_VALUE, FLAG_DELTA | FLAG_RMW] {
            assert!(Message::decode(&with_flags(flags)).is_err(), "a delta of no collection");
        }
    }

    #[test]
    fn every_message_comes_back_and_no_cut_is_taken_for_whole() {
        let timestamp = Timestamp::new(4, WriterId(3));
        let fixed = [
            Message::MemberCheck { batch: 1 },
            Message::MemberCheckAck { batch: 1 },
            Message::ChunkRead { request: 1, cursor: Cursor::Records(2) },
            Message::ChunkRead { request: 1, cursor: Cursor::Sessions(LeaseId(2), 3) },
            Message::FloorPrepare { round: 1, version: 2 },
            Message::FloorReady { round: 1, next_floor: 2, is_swept: true },
            Message::FloorReady { round: 1, next_floor: 2, is_swept: false },
            Message::FloorCommit { round: 1, version: 2, raises: true },
            Message::FloorCommit { round: 1, version: 2, raises: false },
        ];
        for message in fixed {
            let bytes = encoded(&message);
            assert_eq!(Message::decode(&bytes), Ok(message));
            for cut in 0..bytes.len() {
                assert!(Message::decode(&bytes[..cut]).is_err(), "{message:?} cut at {cut}");
            }
            assert!(Message::decode(&[&bytes[..], &[0]].concat()).is_err());
        }
        let words = Words::of(b"\x05\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\x01");
        assert_eq!(words.iter().collect::<Vec<u64>>(), [5, 6 | 1 << 56]);
        let open = [
            Message::Inv(Inv {
                cookie: Slot::NONE,
                key: b"k",
                timestamp,
                rmw: false,
                content: None,
                base: None,
                completion: None,
            }),
            Message::Inv(Inv {
                cookie: Slot::NONE,
                key: b"k",
                timestamp,
                rmw: true,
                content: None,
                base: None,
                completion: Some(completion()),
            }),
            Message::Chunk(Chunk {
                request: 1,
                next: Some(Cursor::START),
                floor: 3,
                next_floor: 4,
                in_doubt: false,
                entries: b"e",
                gone: Words::NONE,
                sessions: b"s",
            }),
            Message::Chunk(Chunk {
                request: 1,
                next: Some(Cursor::START),
                floor: 3,
                next_floor: 4,
                in_doubt: true,
                entries: b"e",
                gone: words,
                sessions: b"",
            }),
            Message::Compare { request: 1, shift: 2, first: 3, digests: words },
            Message::Compared { request: 1, records: 2, buckets: words },
            Message::DifferenceRead { request: 1, shift: 2, buckets: words, held: Words::NONE },
            Message::DifferenceRead { request: 1, shift: 2, buckets: words, held: words },
            Message::ValueRead { keys: b"\x01\0\0\0k" },
        ];
        for message in open {
            assert_eq!(Message::decode(&encoded(&message)), Ok(message));
        }
        let compared = encoded(&Message::Compared { request: 1, records: 2, buckets: words });
        assert_eq!(
            compared,
            *b"\x10\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\
               \x05\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\x01"
        );
        assert!(Message::decode(&compared[..compared.len() - 1]).is_err(), "a piece of a word");
    }

    #[test]
    fn entries_come_back() {
        let entry = Entry {
            key: b"key",
            timestamp: Timestamp::new(4, WriterId(3)),
            rmw: false,
            valid: true,
            apart: None,
            content: Some(Content { bytes: b"", kind: ValueKind::String, expire_at: None }),
            completion: None,
        };
        let apart = Entry { apart: Some(70_000), content: None, ..entry };
        let in_doubt = Entry { valid: false, completion: Some(completion()), ..entry };
        for entry in [entry, apart, in_doubt] {
            let mut bytes = Vec::new();
            entry.encode(&mut Writer(&mut bytes));
            let mut reader = Reader(&bytes);
            assert_eq!(Entry::decode(&mut reader), Ok(entry));
            assert_eq!(reader.end(), Ok(()));
            for cut in 0..bytes.len() {
                assert!(Entry::decode(&mut Reader(&bytes[..cut])).is_err());
            }
        }
    }

    #[test]
    fn the_base_of_an_update_follows_from_its_version_and_kind() {
        let inv = |version, rmw| Inv {
            cookie: Slot::NONE,
            key: b"k",
            timestamp: Timestamp::new(version, WriterId(0)),
            rmw,
            content: None,
            base: None,
            completion: None,
        };
        assert_eq!(inv(7, true).base_version(), 6);
        assert_eq!(inv(7, false).base_version(), 5);
    }
}
