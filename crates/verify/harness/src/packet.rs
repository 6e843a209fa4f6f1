//! Messages in flight.

use std::fmt;
use std::marker::PhantomData;

use quorate_types::{Epoch, LaneId, NodeId};

use crate::outbox::encoded;
use crate::subject::{MessageOf, Subject};

/// A message in flight.
pub struct Packet<S> {
    /// The sender.
    pub from: NodeId,
    /// The receiver.
    pub to: NodeId,
    /// The lane, of the sender and of the receiver.
    pub lane: LaneId,
    /// The epoch that the sender was in.
    pub epoch: Epoch,
    /// The encoded message.
    pub bytes: Vec<u8>,
    /// The protocol that the bytes belong to.
    pub subject: PhantomData<fn() -> S>,
}

impl<S: Subject> Packet<S> {
    /// A message that a test makes up, on lane 0.
    pub fn new(from: u16, to: u16, epoch: Epoch, message: &MessageOf<'_, S>) -> Self {
        let (from, to, bytes) = (NodeId(from), NodeId(to), encoded::<S>(message));
        Self { from, to, lane: LaneId(0), epoch, bytes, subject: PhantomData }
    }

    /// What it says.
    pub fn message(&self) -> MessageOf<'_, S> {
        S::decode(&self.bytes)
    }

    /// The kind of message, in one word.
    pub fn kind(&self) -> &'static str {
        S::kind(&self.message())
    }

    /// Whether the message is of this kind, between these nodes; 0 stands for any node, `any` for
    /// any kind.
    pub fn is(&self, from: u16, to: u16, kind: &str) -> bool {
        (from == 0 || self.from.0 == from)
            && (to == 0 || self.to.0 == to)
            && (kind == "any" || self.kind() == kind)
    }
}

impl<S> Clone for Packet<S> {
    fn clone(&self) -> Self {
        Self { bytes: self.bytes.clone(), ..*self }
    }
}

impl<S> PartialEq for Packet<S> {
    fn eq(&self, other: &Self) -> bool {
        let ends = |packet: &Self| (packet.from, packet.to, packet.lane, packet.epoch);
        ends(self) == ends(other) && self.bytes == other.bytes
    }
}

impl<S> Eq for Packet<S> {}

impl<S: Subject> fmt::Debug for Packet<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = S::describe(&self.message());
        write!(f, "{}->{} e{} {words}", self.from, self.to, self.epoch)
    }
}
