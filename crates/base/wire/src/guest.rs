//! Messages between a node and a guest: before the guest coordinates transactions, and whenever the
//! view changes. A guest is a client that speaks the protocol of an engine itself; it has no
//! replica, no vote and no node id.
//!
//! ```text
//! kind u8 | fields ...
//! ```
//! The keyspace and the epoch are in the header ([`crate::Header`]).

use alloc::string::String;
use alloc::vec::Vec;

use quorate_types::{NodeSet, View, WriterId, limits};

use crate::{Malformed, Reader, Writer, read_view, write_view};

/// Longest reason of a refusal.
const TEXT_BYTES_MAX: usize = 1024;
/// Most bytes of [`Welcome::terms`].
pub const TERMS_BYTES_MAX: usize = 1024;

/// A message between a node and a guest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GuestMessage {
    /// Guest → one node: give me an id, under which I coordinate transactions of the keyspace.
    Join,
    /// Guest → every other node: this is my id, which another node gave me.
    Enter {
        /// The id.
        writer: WriterId,
    },
    /// Node → guest, in answer to `Join`.
    Welcome(Welcome),
    /// Node → guest, in answer to `Join` or `Enter`: refused, with the remedy.
    Refused {
        /// A sentence for people.
        text: String,
    },
    /// Node → guest, in answer to `Enter`, and with every new view.
    View(View),
}

/// The answer to a guest that joins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Welcome {
    /// The guest's id.
    pub writer: WriterId,
    /// The engine's terms for coordinators of its transactions, in its own bytes: at most
    /// [`TERMS_BYTES_MAX`].
    pub terms: Vec<u8>,
    /// The replica group of each partition; `None` stands for every voter.
    pub partitions: Vec<Option<NodeSet>>,
    /// The view in force.
    pub view: View,
}

const JOIN: u8 = 1;
const ENTER: u8 = 2;
const WELCOME: u8 = 3;
const REFUSED: u8 = 4;
const VIEW: u8 = 5;

impl GuestMessage {
    /// Appends the message.
    pub fn encode(&self, writer: &mut Writer<'_>) {
        match self {
            Self::Join => writer.u8(JOIN),
            Self::Enter { writer: id } => {
                writer.u8(ENTER);
                writer.u32(id.0);
            }
            Self::Welcome(welcome) => {
                writer.u8(WELCOME);
                writer.u32(welcome.writer.0);
                assert!(welcome.terms.len() <= TERMS_BYTES_MAX, "an engine's terms are short");
                writer.bytes(&welcome.terms);
                let count = u16::try_from(welcome.partitions.len());
                writer.u16(count.expect("PARTITIONS_MAX is small"));
                for group in &welcome.partitions {
                    // No group is empty, so 0 can stand for "every voter".
                    writer.u64(group.map_or(0, NodeSet::bits));
                }
                write_view(&welcome.view, writer);
            }
            Self::Refused { text } => {
                writer.u8(REFUSED);
                writer.bytes(text.as_bytes());
            }
            Self::View(view) => {
                writer.u8(VIEW);
                write_view(view, writer);
            }
        }
    }

    /// Reads a message.
    ///
    /// # Errors
    /// When the bytes are no message of this version.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        let message = match reader.u8()? {
            JOIN => Self::Join,
            ENTER => Self::Enter { writer: WriterId(reader.u32()?) },
            WELCOME => Self::Welcome(Self::welcome(&mut reader)?),
            REFUSED => Self::Refused { text: reader.string(TEXT_BYTES_MAX)? },
            VIEW => Self::View(read_view(&mut reader)?),
            _ => return Err(Malformed("unknown message between node and guest")),
        };
        reader.end()?;
        Ok(message)
    }

    fn welcome(reader: &mut Reader<'_>) -> Result<Welcome, Malformed> {
        let writer = WriterId(reader.u32()?);
        let terms = reader.bytes()?;
        if terms.len() > TERMS_BYTES_MAX {
            return Err(Malformed("terms beyond the limit"));
        }
        let terms = terms.to_vec();
        let count = reader.u16()?;
        if count == 0 || count > limits::PARTITIONS_MAX {
            return Err(Malformed("partitions beyond the limits"));
        }
        let mut partitions = Vec::with_capacity(usize::from(count));
        for _ in 0..count {
            let bits = reader.u64()?;
            partitions.push((bits != 0).then(|| NodeSet::from_bits(bits)));
        }
        let view = read_view(reader)?;
        Ok(Welcome { writer, terms, partitions, view })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_types::{Epoch, Incarnation, Member, MemberNumber, NodeId, NodeSet, Role};

    fn view() -> View {
        let member = Member {
            node: NodeId(2),
            incarnation: Incarnation(9),
            number: MemberNumber(4),
            role: Role::Active,
            peer_address: "p".into(),
            client_address: "c".into(),
            admin_address: String::new(),
        };
        View {
            epoch: Epoch(7),
            cluster: Incarnation(8),
            members: [member].into(),
            last_number: MemberNumber(4),
            placed: NodeSet::only(NodeId(2)),
            departing: NodeSet::EMPTY,
        }
    }

    fn golden(message: GuestMessage, expected: &[u8]) {
        let mut bytes = Vec::new();
        message.encode(&mut Writer(&mut bytes));
        assert_eq!(bytes, expected, "the layout changed without a new VERSION");
        assert_eq!(GuestMessage::decode(&bytes), Ok(message));
        for cut in 0..bytes.len() {
            assert!(GuestMessage::decode(&bytes[..cut]).is_err(), "cut at {cut}");
        }
        bytes.push(0);
        assert!(GuestMessage::decode(&bytes).is_err());
    }

    const VIEW_BYTES: &[u8] = b"\x07\0\0\0\0\0\0\0\x08\0\0\0\0\0\0\0\x04\0\0\0\
        \x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\
        \x02\0\x09\0\0\0\0\0\0\0\x04\0\0\0\x01\x01\0\0\0p\x01\0\0\0c\0\0\0\0";

    #[test]
    fn golden_bytes() {
        golden(GuestMessage::Join, &[1]);
        golden(GuestMessage::Enter { writer: WriterId(0x4100_0003) }, &[2, 3, 0, 0, 0x41]);
        golden(GuestMessage::Refused { text: "no".into() }, b"\x04\x02\0\0\0no");
        golden(GuestMessage::View(view()), &[&[5], VIEW_BYTES].concat());
        let welcome = Welcome {
            writer: WriterId(0x4100_0003),
            terms: b"by".to_vec(),
            partitions: [None, Some(NodeSet::only(NodeId(1)))].into(),
            view: view(),
        };
        let fields = b"\x03\x03\0\0\x41\x02\0\0\0by\x02\0\
            \0\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0";
        golden(GuestMessage::Welcome(welcome), &[fields.as_slice(), VIEW_BYTES].concat());
    }

    #[test]
    fn damage_is_an_error() {
        assert!(GuestMessage::decode(&[6]).is_err());
        assert!(GuestMessage::decode(&[3, 0, 0, 0, 0, 2]).is_err());
    }
}
