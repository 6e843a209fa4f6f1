//! Voters, and the order of proposals.

use quorate_types::{Incarnation, NodeId};
use quorate_wire::{Malformed, Reader, Writer};

/// The number of a log among those that one host drives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Stream(pub u32);

/// One acceptor: a node during one life. It forgets everything when it crashes, so its successor
/// under the same node id is another voter.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Voter {
    /// The node it runs on.
    pub node: NodeId,
    /// The life of that node.
    pub incarnation: Incarnation,
}

/// A proposal number. Unique to its proposer's incarnation, because the proposer is part of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Ballot {
    /// Counted up by a proposer that outbids another.
    pub round: u64,
    /// The proposer.
    pub proposer: Voter,
}

impl Ballot {
    /// Below every ballot that is used.
    pub const ZERO: Self =
        Self { round: 0, proposer: Voter { node: NodeId(0), incarnation: Incarnation(0) } };

    pub(crate) fn encode(self, writer: &mut Writer<'_>) {
        writer.u64(self.round);
        writer.u16(self.proposer.node.0);
        writer.u64(self.proposer.incarnation.0);
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            round: reader.u64()?,
            proposer: Voter {
                node: NodeId(reader.u16()?),
                incarnation: Incarnation(reader.u64()?),
            },
        })
    }
}
