//! Peer messages and their bytes.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use quorate_paxos as paxos;
use quorate_types::{Epoch, Incarnation, Instant, NodeId, NodeSet, View, limits};
use quorate_wire::{Malformed, Reader, Writer, read_view, write_view};

use crate::{MemberConfig, Store};

/// The last epoch that there may be: views don't change so often.
const EPOCH_MAX: Epoch = Epoch(1 << 48);
/// Longest `host:port`.
const ADDRESS_BYTES_MAX: usize = 300;

/// A view as an entry of the configuration log.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ViewEntry(pub Arc<View>);

/// A message from one membership machine to another.
#[derive(Clone, PartialEq, Hash, Debug)]
pub struct Message {
    /// The life of the sender.
    pub incarnation: Incarnation,
    /// The cluster of `epoch`, as in [`View::cluster`]; 0 if the sender knows of no view.
    pub cluster: Incarnation,
    /// The newest epoch that the sender knows.
    pub epoch: Epoch,
    /// The content.
    pub body: Body,
}

/// The content of a message.
#[derive(Clone, PartialEq, Hash, Debug)]
pub enum Body {
    /// "I am here." Outside a view, every heartbeat; inside, as an answer to one.
    Announce {
        /// The incarnation that the sender believes it is talking to; 0 if none yet.
        to: Incarnation,
        /// A nonce for `to` to return, as a proof of life.
        nonce: u64,
        /// The last nonce that named the sender's incarnation.
        answer: u64,
        /// Whether the sender is in a view.
        is_member: bool,
        /// What the stores of the former life have got back from the disk, if the sender is outside.
        store: Store,
        /// The founding round that the sender is in; it never goes back to a lower one.
        round: u64,
        /// The former life, expelled but not crashed, whose vote the sender still casts; 0 if none.
        votes_as: Incarnation,
        /// The members that the sender hears, from outside.
        reaches: NodeSet,
        /// The members whose addresses the sender, outside, does not know: it was not configured
        /// with them, and hears them only once it is in the view.
        strangers: NodeSet,
        /// The sender's addresses.
        addresses: MemberConfig,
    },
    /// "Vote for this first view."
    Found {
        /// The number of this founder's proposal.
        round: u64,
        /// The view of epoch 1.
        view: ViewEntry,
    },
    /// "Voted."
    Founded {
        /// The founder's incarnation.
        to: Incarnation,
        /// As in the Found.
        round: u64,
    },
    /// "I live; renew my lease."
    Renew {
        /// The sending time on the sender's clock; `None` if others' grants suffice.
        sent: Option<Instant>,
        /// The sender is a shadow that holds everything.
        caught_up: bool,
        /// The sender, whatever its role, has in this epoch all that falls to it.
        is_complete: bool,
        /// The live members that the sender hears, on every lane.
        hears: NodeSet,
        /// The nodes outside that the sender could let in.
        admits: NodeSet,
    },
    /// "Renewed."
    Grant {
        /// The incarnation whose lease it is.
        to: Incarnation,
        /// As in the Renew.
        sent: Instant,
    },
    /// "I leave for good, and rely on no lease any more: go on without me."
    Leave,
    /// A message of the configuration log.
    Log(paxos::Message<ViewEntry>),
}

impl Message {
    /// Appends the message: `kind u8 | incarnation u64 | cluster u64 | epoch u64 | fields in the
    /// order of their declaration`. Of an Announce, `is_member` and `store` are one byte.
    pub fn encode(&self, writer: &mut Writer<'_>) {
        writer.u8(match self.body {
            Body::Announce { .. } => 1,
            Body::Found { .. } => 2,
            Body::Founded { .. } => 3,
            Body::Renew { .. } => 4,
            Body::Grant { .. } => 5,
            Body::Log(_) => 6,
            Body::Leave => 7,
        });
        writer.u64(self.incarnation.0);
        writer.u64(self.cluster.0);
        writer.u64(self.epoch.0);
        match &self.body {
            Body::Announce {
                to,
                nonce,
                answer,
                is_member,
                store,
                round,
                votes_as,
                reaches,
                strangers,
                addresses,
            } => {
                writer.u64(to.0);
                writer.u64(*nonce);
                writer.u64(*answer);
                writer.u8(match (is_member, store) {
                    (true, _) => 1,
                    (false, Store::None) => 0,
                    (false, Store::Damaged) => 2,
                    (false, Store::Intact) => 3,
                });
                writer.u64(*round);
                writer.u64(votes_as.0);
                writer.u64(reaches.bits());
                writer.u64(strangers.bits());
                writer.u16(addresses.node.0);
                writer.bytes(addresses.peer_address.as_bytes());
                writer.bytes(addresses.client_address.as_bytes());
                writer.bytes(addresses.admin_address.as_bytes());
            }
            Body::Found { round, view } => {
                writer.u64(*round);
                write_view(&view.0, writer);
            }
            Body::Founded { to, round } => {
                writer.u64(to.0);
                writer.u64(*round);
            }
            Body::Renew { sent, caught_up, is_complete, hears, admits } => {
                writer.u8(u8::from(sent.is_some()));
                writer.u64(sent.unwrap_or_default().0);
                writer.u8(u8::from(*caught_up));
                writer.u8(u8::from(*is_complete));
                writer.u64(hears.bits());
                writer.u64(admits.bits());
            }
            Body::Leave => {}
            Body::Grant { to, sent } => {
                writer.u64(to.0);
                writer.u64(sent.0);
            }
            Body::Log(message) => message.encode(writer),
        }
    }

    /// Reads a message that fills `reader`.
    ///
    /// # Errors
    /// If no correct peer of this version sent it.
    pub fn decode(mut reader: Reader<'_>) -> Result<Self, Malformed> {
        let reader = &mut reader;
        let kind = reader.u8()?;
        let incarnation = Incarnation(reader.u64()?);
        let cluster = Incarnation(reader.u64()?);
        let epoch = Epoch(reader.u64()?);
        let body = match kind {
            1 => announce(reader)?,
            2 => Body::Found { round: reader.u64()?, view: read_entry(reader)? },
            3 => Body::Founded { to: Incarnation(reader.u64()?), round: reader.u64()? },
            4 => Body::Renew {
                sent: asked_at(reader)?,
                caught_up: flag(reader)?,
                is_complete: flag(reader)?,
                hears: nodes(reader)?,
                admits: nodes(reader)?,
            },
            5 => Body::Grant { to: Incarnation(reader.u64()?), sent: Instant(reader.u64()?) },
            6 => Body::Log(paxos::Message::decode(reader)?),
            7 => Body::Leave,
            _ => return Err(Malformed("unknown membership message")),
        };
        reader.end()?;
        Ok(Self { incarnation, cluster, epoch, body })
    }
}

impl paxos::Entry for ViewEntry {
    fn encode(&self, out: &mut Vec<u8>) {
        write_view(&self.0, &mut Writer(out));
    }

    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        let entry = read_entry(&mut reader)?;
        reader.end()?;
        Ok(entry)
    }
}

/// A view that a member can have proposed.
pub(crate) fn read_entry(reader: &mut Reader<'_>) -> Result<ViewEntry, Malformed> {
    let view = read_view(reader)?;
    if !(Epoch(1)..=EPOCH_MAX).contains(&view.epoch)
        || view.cluster.0 == 0
        || view.active().is_empty()
    {
        return Err(Malformed("a view of no epoch or cluster, or without an active member"));
    }
    Ok(ViewEntry(Arc::new(view)))
}

fn announce(reader: &mut Reader<'_>) -> Result<Body, Malformed> {
    let (to, nonce, answer) = (Incarnation(reader.u64()?), reader.u64()?, reader.u64()?);
    let (is_member, store) = match reader.u8()? {
        0 => (false, Store::None),
        1 => (true, Store::None),
        2 => (false, Store::Damaged),
        3 => (false, Store::Intact),
        _ => return Err(Malformed("unknown standing")),
    };
    Ok(Body::Announce {
        to,
        nonce,
        answer,
        is_member,
        store,
        round: reader.u64()?,
        votes_as: Incarnation(reader.u64()?),
        reaches: nodes(reader)?,
        strangers: nodes(reader)?,
        addresses: MemberConfig {
            node: node(reader)?,
            peer_address: address(reader)?,
            client_address: address(reader)?,
            admin_address: address(reader)?,
        },
    })
}

fn node(reader: &mut Reader<'_>) -> Result<NodeId, Malformed> {
    match reader.u16()? {
        id @ 1..=limits::NODE_ID_MAX => Ok(NodeId(id)),
        _ => Err(Malformed("node id out of range")),
    }
}

fn nodes(reader: &mut Reader<'_>) -> Result<NodeSet, Malformed> {
    let set = NodeSet::from_bits(reader.u64()?);
    if set.bits() & 1 == 0 { Ok(set) } else { Err(Malformed("node id out of range")) }
}

fn address(reader: &mut Reader<'_>) -> Result<String, Malformed> {
    reader.string(ADDRESS_BYTES_MAX)
}

/// The time of the request for a grant, if the message has one.
fn asked_at(reader: &mut Reader<'_>) -> Result<Option<Instant>, Malformed> {
    match (flag(reader)?, Instant(reader.u64()?)) {
        (true, sent) => Ok(Some(sent)),
        (false, Instant::ZERO) => Ok(None),
        (false, _) => Err(Malformed("the time of a request that is not made")),
    }
}

fn flag(reader: &mut Reader<'_>) -> Result<bool, Malformed> {
    match reader.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Malformed("a flag is 0 or 1")),
    }
}
