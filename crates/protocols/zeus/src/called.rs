//! What messages say of calls of sessions.
//!
//! ```text
//! call:   shard u8 | call | date u64 | answer bytes
//! known:  0 u8, room u64 | 1 u8, answer bytes | 2 u8 to 6 u8: why the call is refused
//! cursor: shard u8 | lease u64 | sequence u64
//! part:   shard u8 | bytes: sessions, as `quorate_rifl::ResultTracker` writes them
//! ```

use alloc::vec::Vec;

use quorate_machine::{CallError, Refusal};
use quorate_rifl::{Call, LeaseId};
use quorate_wire::{Malformed, Reader, Writer};

use crate::fields::{read_flag, read_shards};
use crate::layout::Shards;

/// What nodes say about calls, apart from the transactions that carry them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallMessage<'a> {
    /// Owner of a call's home key outside its group → active member of the group: what became of it?
    Find {
        /// Comes back in the answer.
        request: u64,
        /// The shard of its home key.
        shard: u8,
        /// The call.
        call: Call,
        /// The date of the attempt that is to be.
        date: u64,
    },
    /// Its answer.
    Found {
        /// As in the request.
        request: u64,
        /// What the member knows.
        known: Known<'a>,
    },
    /// Joining replica → active member of its groups, after the records: which calls do you know?
    Read {
        /// Comes back in the answer.
        request: u64,
        /// Where to go on.
        from: CallsCursor,
        /// The shards that it wants.
        shards: Shards,
    },
    /// Its answer.
    Copy {
        /// As in the request.
        request: u64,
        /// Where to go on, unless this is the end.
        next: Option<CallsCursor>,
        /// Calls of some of the shards.
        parts: Parts<'a>,
    },
}

/// Calls of some shards, checked but for the sessions in them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parts<'a>(&'a [u8]);

/// A place among the calls that a member knows: a shard, and a session's record there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CallsCursor {
    /// The shard.
    pub shard: u8,
    /// The session, and the first of its records.
    pub record: (LeaseId, u64),
}

/// What a member of the group of a call's home key knows of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Known<'a> {
    /// Nothing: it may be attempted.
    New {
        /// For how many bytes of answers the session has room.
        room: u64,
    },
    /// It has taken effect, with this answer.
    Answered(&'a [u8]),
    /// It may not be attempted.
    Refused(Refusal),
}

/// A call that a transaction is an attempt at, with its answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answered<'a> {
    /// The shard of its home key, whose group keeps its record.
    pub shard: u8,
    /// The call.
    pub call: Call,
    /// The date of the attempt.
    pub date: u64,
    /// The answer.
    pub answer: &'a [u8],
}

/// Why a call is refused, as it travels.
const REFUSALS: [Refusal; 5] = [
    Refusal::LeaseNeeded,
    Refusal::CallError(CallError::Stale),
    Refusal::CallError(CallError::BeyondWindow),
    Refusal::CallError(CallError::Different),
    Refusal::CallError(CallError::Closed),
];

impl<'a> Known<'a> {
    fn encode(self, writer: &mut Writer<'_>) {
        match self {
            Self::New { room } => {
                writer.u8(0);
                writer.u64(room);
            }
            Self::Answered(answer) => {
                writer.u8(1);
                writer.bytes(answer);
            }
            Self::Refused(why) => {
                let at = REFUSALS.iter().position(|other| *other == why);
                writer.u8(2 + at.expect("a call is refused for one of these") as u8);
            }
        }
    }

    fn decode(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        match reader.u8()? {
            0 => Ok(Self::New { room: reader.u64()? }),
            1 => Ok(Self::Answered(reader.bytes()?)),
            why => {
                let why = REFUSALS.get(usize::from(why) - 2);
                why.map(|why| Self::Refused(*why)).ok_or(Malformed("unknown refusal of a call"))
            }
        }
    }
}

impl<'a> Answered<'a> {
    /// A call in bytes of its own; none if there is no call.
    pub(crate) fn write(call: Option<Self>) -> Vec<u8> {
        let mut bytes = Vec::new();
        if let Some(call) = call {
            call.encode(&mut Writer(&mut bytes));
        }
        bytes
    }

    /// What [`Answered::write`] wrote.
    pub(crate) fn trusted(bytes: &'a [u8]) -> Option<Self> {
        (!bytes.is_empty()).then(|| Self::read(&mut Reader(bytes)).expect("it was written here"))
    }

    pub(crate) fn encode(&self, writer: &mut Writer<'_>) {
        writer.u8(self.shard);
        self.call.encode(writer);
        writer.u64(self.date);
        writer.bytes(self.answer);
    }

    pub(crate) fn read(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let (shard, call) = (reader.u8()?, Call::decode(reader)?);
        Ok(Self { shard, call, date: reader.u64()?, answer: reader.bytes()? })
    }
}

impl<'a> Parts<'a> {
    /// Appends a part to a list.
    pub(crate) fn push(bytes: &mut Vec<u8>, shard: u8, sessions: &[u8]) {
        let mut writer = Writer(bytes);
        writer.u8(shard);
        writer.bytes(sessions);
    }

    /// A list from its bytes.
    ///
    /// # Errors
    /// If they are damaged.
    pub fn check(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        while !reader.0.is_empty() {
            reader.u8()?;
            reader.bytes()?;
        }
        Ok(Self(bytes))
    }

    /// Each shard, and its sessions.
    pub fn iter(self) -> impl Iterator<Item = (u8, &'a [u8])> {
        let mut reader = Reader(self.0);
        core::iter::from_fn(move || {
            let part =
                |reader: &mut Reader<'a>| Ok::<_, Malformed>((reader.u8()?, reader.bytes()?));
            (!reader.0.is_empty()).then(|| part(&mut reader).expect("it was checked"))
        })
    }
}

impl CallsCursor {
    /// The first call of a shard.
    pub const fn begin(shard: u8) -> Self {
        Self { shard, record: (LeaseId(0), 0) }
    }

    fn encode(self, writer: &mut Writer<'_>) {
        writer.u8(self.shard);
        writer.u64(self.record.0.0);
        writer.u64(self.record.1);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self { shard: reader.u8()?, record: (LeaseId(reader.u64()?), reader.u64()?) })
    }
}

const FIND: u8 = 16;
const FOUND: u8 = 17;
const CALLS_READ: u8 = 18;
const CALLS: u8 = 19;

impl<'a> CallMessage<'a> {
    pub(crate) fn encode(&self, writer: &mut Writer<'_>) {
        match *self {
            Self::Find { request, shard, call, date } => {
                writer.u8(FIND);
                writer.u64(request);
                writer.u8(shard);
                call.encode(writer);
                writer.u64(date);
            }
            Self::Found { request, known } => {
                writer.u8(FOUND);
                writer.u64(request);
                known.encode(writer);
            }
            Self::Read { request, from, shards } => {
                writer.u8(CALLS_READ);
                writer.u64(request);
                from.encode(writer);
                shards.0.iter().for_each(|word| writer.u64(*word));
            }
            Self::Copy { request, next, parts } => {
                writer.u8(CALLS);
                writer.u64(request);
                writer.u8(u8::from(next.is_some()));
                if let Some(next) = next {
                    next.encode(writer);
                }
                writer.bytes(parts.0);
            }
        }
    }

    /// Reads the fields of a message of this kind; `None` if the kind is no such one.
    pub(crate) fn read(kind: u8, reader: &mut Reader<'a>) -> Result<Option<Self>, Malformed> {
        Ok(Some(match kind {
            FIND => Self::Find {
                request: reader.u64()?,
                shard: reader.u8()?,
                call: Call::decode(reader)?,
                date: reader.u64()?,
            },
            FOUND => Self::Found { request: reader.u64()?, known: Known::decode(reader)? },
            CALLS_READ => Self::Read {
                request: reader.u64()?,
                from: CallsCursor::decode(reader)?,
                shards: read_shards(reader)?,
            },
            CALLS => Self::Copy {
                request: reader.u64()?,
                next: match read_flag(reader)? {
                    true => Some(CallsCursor::decode(reader)?),
                    false => None,
                },
                parts: Parts::check(reader.bytes()?)?,
            },
            _ => return Ok(None),
        }))
    }
}
