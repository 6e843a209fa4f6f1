//! Peer messages and their layouts.
//!
//! ```text
//! kind u8 | fields in the order of their declaration
//! update:  its fields | 0 u8 or 1 u8, call
//! ```
//! Integers are little-endian; `fields.rs` has the layouts of what messages are made of. The epoch is in the
//! header of the frame ([`quorate_wire::Header`]).

use quorate_machine::Content;
use quorate_types::{MemberNumber, Timestamp};
use quorate_wire::{Malformed, Reader, Writer};

use crate::called::{Answered, CallMessage};
use crate::difference::DifferenceMessage;
use crate::extras::ExtraMessage;
use crate::fields::{
    Entries, Items, Requester, Settled, Slots, read_content, read_flag, read_item, read_key,
    read_member, read_shards, write_content,
};
use crate::floor::FloorStep;
use crate::layout::Shards;
use crate::looks::LookMessage;

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
        /// If that is gone, so that nobody owns the key by name, the sender's hybrid clock: above all that has read
        /// the key. Otherwise 0, for the owner knows.
        clock: u64,
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
    /// About what a learner has left of an earlier life.
    Difference(DifferenceMessage<'a>),
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
            Self::Val { key, round, owner, clock } => {
                writer.u8(VAL);
                writer.bytes(key);
                writer.timestamp(round);
                writer.u32(owner.0);
                writer.u64(clock);
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
            Self::Difference(message) => message.encode(writer),
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
                clock: reader.u64()?,
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
            _ => {
                Self::read_other(kind, &mut reader)?.ok_or(Malformed("unknown kind of message"))?
            }
        };
        reader.end()?;
        Ok(message)
    }

    /// Reads the fields of a message whose kind another file has.
    fn read_other(kind: u8, reader: &mut Reader<'a>) -> Result<Option<Self>, Malformed> {
        if let Some(message) = CallMessage::read(kind, reader)? {
            return Ok(Some(Self::Call(message)));
        }
        if let Some(message) = LookMessage::read(kind, reader)? {
            return Ok(Some(Self::Look(message)));
        }
        if let Some(message) = DifferenceMessage::read(kind, reader)? {
            return Ok(Some(Self::Difference(message)));
        }
        Ok(ExtraMessage::read(kind, reader)?.map(Self::Extra))
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
    use alloc::vec::Vec;

    use super::*;
    use crate::fields::Item;

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
        Message::Val { key, round, owner, clock: 0 }.encode(&mut Writer(&mut bytes));
        assert!(Message::keys_ahead(&bytes).eq([key]));
        assert_eq!(Message::keys_ahead(&bytes[..7]).count(), 0);
    }
}
