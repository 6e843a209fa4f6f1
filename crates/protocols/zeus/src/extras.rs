//! What the owner of a key and its extra readers say to each other.
//!
//! ```text
//! WANT:                            key bytes, number u64, reader u16
//! GRANT:                           key bytes, number u64, version timestamp, owner u32, moves u32, content
//! KEEP, LEAVE, WITHDRAW, GONE:     key bytes, number u64
//! ```
//! The number is the reader's: which of the requests of its lane this is about. A request that has ended
//! never begins again.

use quorate_machine::Content;
use quorate_types::{MemberNumber, NodeId, Timestamp};
use quorate_wire::{Malformed, Reader, Writer};

use crate::fields::{read_content, read_key, read_member, write_content};

/// What the owner of a key and a node outside its group say about a copy for that node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExtraMessage<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Which request of the reader.
    pub number: u64,
    /// What is said of it.
    pub step: ExtraStep<'a>,
}

/// One step in the life of an extra copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExtraStep<'a> {
    /// Reader → directory node → owner: I read this key often, and want a copy.
    Want {
        /// The reader, which the owner answers, also if another node has passed the request on.
        reader: NodeId,
    },
    /// Owner → reader: here it is, and from now on you follow the key. Sent again until it is confirmed.
    Grant {
        /// The version, which is committed.
        version: Timestamp,
        /// The member that the key was moved to last.
        owner: MemberNumber,
        /// How often it has moved. Only shown to people.
        moves: u32,
        /// The value.
        content: Content<'a>,
    },
    /// Reader → owner: I have it.
    Keep,
    /// Reader → owner: I have dropped it. Sent again until it is answered by WITHDRAW.
    Leave,
    /// Owner → reader: drop it; or: there is no copy for this request. Answered by GONE.
    Withdraw,
    /// Reader → owner: there is no copy for this request, and never will be.
    Gone,
}

const WANT: u8 = 24;
const GRANT: u8 = 25;
const KEEP: u8 = 26;
const LEAVE: u8 = 27;
const WITHDRAW: u8 = 28;
const GONE: u8 = 29;

impl<'a> ExtraMessage<'a> {
    pub(crate) fn encode(&self, writer: &mut Writer<'_>) {
        writer.u8(match self.step {
            ExtraStep::Want { .. } => WANT,
            ExtraStep::Grant { .. } => GRANT,
            ExtraStep::Keep => KEEP,
            ExtraStep::Leave => LEAVE,
            ExtraStep::Withdraw => WITHDRAW,
            ExtraStep::Gone => GONE,
        });
        writer.bytes(self.key);
        writer.u64(self.number);
        match self.step {
            ExtraStep::Want { reader } => writer.u16(reader.0),
            ExtraStep::Grant { version, owner, moves, content } => {
                writer.timestamp(version);
                writer.u32(owner.0);
                writer.u32(moves);
                write_content(writer, Some(content));
            }
            ExtraStep::Keep | ExtraStep::Leave | ExtraStep::Withdraw | ExtraStep::Gone => {}
        }
    }

    /// Reads the fields of a message of this kind; `None` if the kind is no such one.
    pub(crate) fn read(kind: u8, reader: &mut Reader<'a>) -> Result<Option<Self>, Malformed> {
        if !(WANT..=GONE).contains(&kind) {
            return Ok(None);
        }
        let (key, number) = (read_key(reader)?, reader.u64()?);
        let step = match kind {
            WANT => ExtraStep::Want { reader: NodeId(reader.u16()?) },
            GRANT => ExtraStep::Grant {
                version: reader.timestamp()?,
                owner: read_member(reader)?,
                moves: reader.u32()?,
                content: read_content(reader)?.ok_or(Malformed("no value"))?,
            },
            KEEP => ExtraStep::Keep,
            LEAVE => ExtraStep::Leave,
            WITHDRAW => ExtraStep::Withdraw,
            _ => ExtraStep::Gone,
        };
        Ok(Some(Self { key, number, step }))
    }
}
