//! Messages between logs, and their bytes.

use alloc::vec::Vec;
use core::fmt::Debug;

use quorate_wire::{Malformed, Reader, Writer};

use crate::{Ballot, SlotNumber, Stream};

/// The content of a slot. Opaque to the log but for equality and bytes.
pub trait Entry: Clone + PartialEq + Debug {
    /// Appends the bytes that [`Entry::decode`] reads back.
    fn encode(&self, out: &mut Vec<u8>);

    /// Reads the bytes of one entry, all of them.
    ///
    /// # Errors
    /// If no correct peer wrote the bytes.
    fn decode(bytes: &[u8]) -> Result<Self, Malformed>;
}

impl Entry for Vec<u8> {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }

    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        Ok(bytes.into())
    }
}

/// One message of one log.
#[derive(Clone, PartialEq, Hash, Debug)]
pub struct Message<E> {
    /// The stream of the log.
    pub stream: Stream,
    /// The content.
    pub body: Body<E>,
}

/// The content of a message. The host delivers it with its sender, a [`crate::Voter`].
#[derive(Clone, PartialEq, Hash, Debug)]
pub enum Body<E> {
    /// "Promise me this ballot for all slots from this one on."
    Prepare {
        /// The proposal number.
        ballot: Ballot,
        /// The first slot that the proposer doesn't know to be chosen.
        from: SlotNumber,
    },
    /// "Promised, and this is what I have accepted from there on."
    Promise {
        /// The promised ballot.
        ballot: Ballot,
        /// As in the Prepare.
        from: SlotNumber,
        /// Accepted entries in ascending order of slot, each with its ballot.
        accepted: Vec<(SlotNumber, Ballot, E)>,
    },
    /// "Accept this entry."
    Accept {
        /// The proposal number.
        ballot: Ballot,
        /// The slot of the entry.
        slot: SlotNumber,
        /// The entry.
        entry: E,
    },
    /// "Accepted."
    Accepted {
        /// As in the Accept.
        ballot: Ballot,
        /// As in the Accept.
        slot: SlotNumber,
    },
    /// "I have promised a higher ballot."
    Reject {
        /// The ballot that was refused.
        ballot: Ballot,
        /// The ballot to outbid.
        promised: Ballot,
    },
    /// "This is chosen."
    Learn {
        /// The slot.
        slot: SlotNumber,
        /// Its entry, for good.
        entry: E,
    },
    /// "Tell me what is chosen."
    Fetch {
        /// The first slot of interest.
        from: SlotNumber,
    },
}

impl<E> Body<E> {
    /// The slot that the message is about, or the first one; 0 if it is about no slot.
    pub(crate) fn slot(&self) -> SlotNumber {
        match *self {
            Self::Prepare { from: slot, .. }
            | Self::Promise { from: slot, .. }
            | Self::Accept { slot, .. }
            | Self::Accepted { slot, .. }
            | Self::Learn { slot, .. }
            | Self::Fetch { from: slot } => slot,
            Self::Reject { .. } => SlotNumber(0),
        }
    }
}

pub(crate) fn put_entry<E: Entry>(entry: &E, writer: &mut Writer<'_>) {
    let start = writer.0.len();
    writer.u32(0);
    entry.encode(writer.0);
    let length = u32::try_from(writer.0.len() - start - 4).expect("limits bound entries");
    writer.0[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

pub(crate) fn take_entry<E: Entry>(reader: &mut Reader<'_>) -> Result<E, Malformed> {
    E::decode(reader.bytes()?)
}

pub(crate) fn take_slot(reader: &mut Reader<'_>) -> Result<SlotNumber, Malformed> {
    reader.u64().map(SlotNumber)
}

impl<E: Entry> Message<E> {
    /// Appends the message: `stream u32 | kind u8 | fields in the order of their declaration`;
    /// entries have their length before them.
    pub fn encode(&self, writer: &mut Writer<'_>) {
        writer.u32(self.stream.0);
        match &self.body {
            Body::Prepare { ballot, from } => {
                writer.u8(1);
                ballot.encode(writer);
                writer.u64(from.0);
            }
            Body::Promise { ballot, from, accepted } => {
                writer.u8(2);
                ballot.encode(writer);
                writer.u64(from.0);
                writer.u32(u32::try_from(accepted.len()).expect("a window of slots is small"));
                for (slot, ballot, entry) in accepted {
                    writer.u64(slot.0);
                    ballot.encode(writer);
                    put_entry(entry, writer);
                }
            }
            Body::Accept { ballot, slot, entry } => {
                writer.u8(3);
                ballot.encode(writer);
                writer.u64(slot.0);
                put_entry(entry, writer);
            }
            Body::Accepted { ballot, slot } => {
                writer.u8(4);
                ballot.encode(writer);
                writer.u64(slot.0);
            }
            Body::Reject { ballot, promised } => {
                writer.u8(5);
                ballot.encode(writer);
                promised.encode(writer);
            }
            Body::Learn { slot, entry } => {
                writer.u8(6);
                writer.u64(slot.0);
                put_entry(entry, writer);
            }
            Body::Fetch { from } => {
                writer.u8(7);
                writer.u64(from.0);
            }
        }
    }

    /// Takes one message off the front of `reader`.
    ///
    /// # Errors
    /// If no correct peer sent it.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let stream = Stream(reader.u32()?);
        let body = match reader.u8()? {
            1 => Body::Prepare { ballot: Ballot::decode(reader)?, from: take_slot(reader)? },
            2 => {
                let ballot = Ballot::decode(reader)?;
                let from = take_slot(reader)?;
                // The count must not claim memory: each round of the loop consumes input.
                let mut accepted = Vec::new();
                for _ in 0..reader.u32()? {
                    let slot = take_slot(reader)?;
                    accepted.push((slot, Ballot::decode(reader)?, take_entry(reader)?));
                }
                Body::Promise { ballot, from, accepted }
            }
            3 => Body::Accept {
                ballot: Ballot::decode(reader)?,
                slot: take_slot(reader)?,
                entry: take_entry(reader)?,
            },
            4 => Body::Accepted { ballot: Ballot::decode(reader)?, slot: take_slot(reader)? },
            5 => {
                Body::Reject { ballot: Ballot::decode(reader)?, promised: Ballot::decode(reader)? }
            }
            6 => Body::Learn { slot: take_slot(reader)?, entry: take_entry(reader)? },
            7 => Body::Fetch { from: take_slot(reader)? },
            _ => return Err(Malformed("unknown log message")),
        };
        Ok(Self { stream, body })
    }
}

/// Appends several messages for one peer as one: `count u32 | messages`.
pub fn encode_batch<'a, E: Entry + 'a>(
    messages: impl ExactSizeIterator<Item = &'a Message<E>>,
    writer: &mut Writer<'_>,
) {
    writer.u32(u32::try_from(messages.len()).expect("a batch is what one turn sends"));
    for message in messages {
        message.encode(writer);
    }
}

/// Reads bytes that [`encode_batch`] wrote, one message after the other into `deliver`.
///
/// # Errors
/// If no correct peer sent it; the messages before the damage have been delivered by then.
pub fn decode_batch<E: Entry>(
    reader: &mut Reader<'_>,
    mut deliver: impl FnMut(Message<E>),
) -> Result<(), Malformed> {
    for _ in 0..reader.u32()? {
        deliver(Message::decode(reader)?);
    }
    reader.end()
}
