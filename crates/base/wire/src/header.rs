//! The header of every peer message.

use quorate_types::{EngineId, Epoch, KeyspaceId, limits};

use crate::{Malformed, Reader, Writer};
use alloc::vec::Vec;

/// The machine of the receiving lane that a message is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// The membership machine (lane 0 only).
    Membership,
    /// The machine of a keyspace, which must be of this engine.
    Engine(EngineId),
    /// Between a node and a client that coordinates its transactions itself
    /// ([`crate::GuestMessage`]).
    Guest,
    /// The lease manager of sessions.
    Session,
    /// Between lanes of two nodes, about the keys of a keyspace ([`crate::ListingMessage`]).
    Listing,
    /// Between lanes of two nodes: a command that runs on the other one, and its answer.
    Forward,
    /// Between lanes of two nodes, about what is published and who listens
    /// ([`crate::PubSubMessage`]).
    PubSub,
    /// Between lanes of two nodes: whether the sender's disk has no room, one byte.
    Room,
}

const MEMBERSHIP: u8 = 1;
const GUEST: u8 = 4;
const SESSION: u8 = 5;
const LISTING: u8 = 6;
const FORWARD: u8 = 8;
const PUBSUB: u8 = 9;
const ROOM: u8 = 11;

impl Kind {
    /// Whether a number may be an engine's: 0 and those of the other kinds may not.
    pub const fn is_for_engines(number: u8) -> bool {
        !matches!(number, 0 | MEMBERSHIP | GUEST | SESSION | LISTING | FORWARD | PUBSUB | ROOM)
    }

    fn from_u8(number: u8) -> Option<Self> {
        match number {
            0 => None,
            MEMBERSHIP => Some(Self::Membership),
            GUEST => Some(Self::Guest),
            SESSION => Some(Self::Session),
            LISTING => Some(Self::Listing),
            FORWARD => Some(Self::Forward),
            PUBSUB => Some(Self::PubSub),
            ROOM => Some(Self::Room),
            engine => Some(Self::Engine(EngineId(engine))),
        }
    }

    #[inline]
    const fn to_u8(self) -> u8 {
        match self {
            Self::Membership => MEMBERSHIP,
            Self::Engine(EngineId(engine)) => engine,
            Self::Guest => GUEST,
            Self::Session => SESSION,
            Self::Listing => LISTING,
            Self::Forward => FORWARD,
            Self::PubSub => PUBSUB,
            Self::Room => ROOM,
        }
    }
}

/// The 16 bytes before every message.
///
/// ```text
/// 0      4     5         6          8        16
/// | length | kind | keyspace | partition | epoch | body ...
/// ```
/// `length` counts the body alone. The sender is known from the connection (see [`crate::Hello`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Bytes of the body.
    pub length: u32,
    /// The machine it is for.
    pub kind: Kind,
    /// The keyspace; 0 for messages that belong to none.
    pub keyspace: KeyspaceId,
    /// The shard of the keyspace; 0 so far.
    pub partition: u16,
    /// The sender's epoch.
    pub epoch: Epoch,
}

impl Header {
    /// Bytes of a header.
    pub const BYTES: usize = 16;

    /// Appends one message: the header, then the body that `body` writes.
    #[inline]
    pub fn frame(
        out: &mut Vec<u8>,
        kind: Kind,
        keyspace: KeyspaceId,
        epoch: Epoch,
        body: impl FnOnce(&mut Writer<'_>),
    ) {
        let start = out.len();
        let mut writer = Writer(out);
        writer.u32(0);
        writer.u8(kind.to_u8());
        writer.u8(keyspace.0);
        writer.u16(0);
        writer.u64(epoch.0);
        body(&mut writer);
        let length = out.len() - start - Self::BYTES;
        assert!(length <= limits::MESSAGE_BYTES_MAX, "a message of {length} bytes was built");
        out[start..start + 4].copy_from_slice(&(length as u32).to_le_bytes());
    }

    /// Takes one message off the front of `input`: its header and its body. `None` if the message
    /// has not arrived completely.
    #[inline]
    pub fn split<'a>(input: &mut &'a [u8]) -> Result<Option<(Self, &'a [u8])>, Malformed> {
        if input.len() < Self::BYTES {
            return Ok(None);
        }
        let mut reader = Reader(input);
        let length = reader.u32()?;
        let kind = Kind::from_u8(reader.u8()?).ok_or(Malformed("unknown kind"))?;
        let keyspace = KeyspaceId(reader.u8()?);
        let partition = reader.u16()?;
        let epoch = Epoch(reader.u64()?);
        if length as usize > limits::MESSAGE_BYTES_MAX {
            return Err(Malformed("length beyond the limit"));
        }
        let Some((body, rest)) = reader.0.split_at_checked(length as usize) else {
            return Ok(None);
        };
        *input = rest;
        Ok(Some((Self { length, kind, keyspace, partition, epoch }, body)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes_of_a_message() {
        let mut out = Vec::new();
        Header::frame(
            &mut out,
            Kind::Engine(EngineId(2)),
            KeyspaceId(3),
            Epoch(0x0102),
            |writer| {
                writer.bytes(b"ab");
            },
        );
        assert_eq!(
            out,
            [6, 0, 0, 0, 2, 3, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, b'a', b'b'],
            "the layout changed without a new VERSION"
        );
        let mut input = &out[..];
        let (header, body) = Header::split(&mut input).unwrap().unwrap();
        assert_eq!(
            (header.kind, header.keyspace, header.epoch),
            (Kind::Engine(EngineId(2)), KeyspaceId(3), Epoch(0x0102))
        );
        assert_eq!(body, &out[16..]);
        assert!(input.is_empty());
    }

    #[test]
    fn an_incomplete_message_waits_and_an_oversized_one_is_refused() {
        let mut out = Vec::new();
        Header::frame(&mut out, Kind::Membership, KeyspaceId(0), Epoch(1), |writer| writer.u64(9));
        for cut in 0..out.len() {
            assert_eq!(Header::split(&mut &out[..cut]), Ok(None));
        }
        out[..4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(Header::split(&mut &out[..]), Err(Malformed("length beyond the limit")));
    }
}
