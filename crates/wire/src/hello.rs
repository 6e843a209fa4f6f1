//! The first message in both directions of a peer connection.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use quorate_types::{Incarnation, LaneId, NodeId};

use crate::{Malformed, Reader, VERSION, Writer};

/// Who is at the other end. Sent by both sides before anything else.
///
/// ```text
/// magic "QRT1" | version u16 | node u16 | incarnation u64 | lane u16 | lanes u16 | cluster string
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    /// The layout version of the sender.
    pub version: u16,
    /// The sender's id.
    pub node: NodeId,
    /// The sender's life.
    pub incarnation: Incarnation,
    /// Which of its lanes this connection belongs to.
    pub lane: LaneId,
    /// How many lanes it has; all nodes of a cluster have the same.
    pub lanes: u16,
    /// The name of its cluster.
    pub cluster: String,
}

/// Why a connection is not one of ours.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HelloRefusal {
    /// Not our protocol.
    Garbage,
    /// Another version of it.
    Version(u16),
    /// Another cluster.
    Cluster(String),
    /// Another number of lanes.
    Lanes(u16),
}

impl fmt::Display for HelloRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Garbage => write!(
                f,
                "this port speaks Quorate's peer protocol; use the client port for Redis clients"
            ),
            Self::Version(theirs) => write!(
                f,
                "peer speaks wire version {theirs}, this node {VERSION}; run the same release on both"
            ),
            Self::Cluster(theirs) => {
                write!(
                    f,
                    "peer belongs to cluster '{theirs}'; check [cluster] name in both configs"
                )
            }
            Self::Lanes(theirs) => {
                write!(
                    f,
                    "peer runs {theirs} lanes; set [cluster] lanes to the same number on all nodes"
                )
            }
        }
    }
}

impl Hello {
    /// The first four bytes.
    pub const MAGIC: [u8; 4] = *b"QRT1";
    /// The most bytes a hello can have.
    pub const BYTES_MAX: usize = 24 + CLUSTER_BYTES_MAX;

    /// Appends the hello.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&Self::MAGIC);
        let mut writer = Writer(out);
        writer.u16(self.version);
        writer.u16(self.node.0);
        writer.u64(self.incarnation.0);
        writer.u16(self.lane.0);
        writer.u16(self.lanes);
        writer.bytes(self.cluster.as_bytes());
    }

    /// Takes a hello off the front of `input`; nothing if it is not complete yet.
    pub fn decode(input: &mut &[u8]) -> Result<Option<Self>, HelloRefusal> {
        let seen = input.len().min(4);
        if input[..seen] != Self::MAGIC[..seen] {
            return Err(HelloRefusal::Garbage);
        }
        let mut reader = Reader(&input[seen..]);
        // The version is judged before anything that another version may lay out differently.
        match reader.u16() {
            Err(_) => return Ok(None),
            Ok(VERSION) => {}
            Ok(other) => return Err(HelloRefusal::Version(other)),
        }
        match Self::fields(&mut reader) {
            Ok(hello) => {
                *input = reader.0;
                Ok(Some(hello))
            }
            Err(_) if input.len() < Self::BYTES_MAX => Ok(None),
            Err(_) => Err(HelloRefusal::Garbage),
        }
    }

    fn fields(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            version: VERSION,
            node: NodeId(reader.u16()?),
            incarnation: Incarnation(reader.u64()?),
            lane: LaneId(reader.u16()?),
            lanes: reader.u16()?,
            cluster: reader.string(CLUSTER_BYTES_MAX)?,
        })
    }

    /// Whether the sender belongs with a node of this cluster name and lane count.
    pub fn check(&self, cluster: &str, lanes: u16) -> Result<(), HelloRefusal> {
        if self.cluster != cluster {
            return Err(HelloRefusal::Cluster(self.cluster.clone()));
        }
        if self.lanes != lanes || self.lane.0 >= lanes {
            return Err(HelloRefusal::Lanes(self.lanes));
        }
        Ok(())
    }
}

/// Longest cluster name.
const CLUSTER_BYTES_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello {
            version: VERSION,
            node: NodeId(2),
            incarnation: Incarnation(7),
            lane: LaneId(0),
            lanes: 1,
            cluster: "c".into(),
        }
    }

    #[test]
    fn golden_bytes_of_a_hello() {
        let mut out = Vec::new();
        hello().encode(&mut out);
        assert_eq!(out, *b"QRT1\x01\0\x02\0\x07\0\0\0\0\0\0\0\0\0\x01\0\x01\0\0\0c");
        for cut in 0..out.len() {
            assert_eq!(Hello::decode(&mut &out[..cut]), Ok(None));
        }
        assert_eq!(Hello::decode(&mut &out[..]), Ok(Some(hello())));
    }

    #[test]
    fn strangers_are_told_why() {
        assert_eq!(Hello::decode(&mut &b"GET / HTTP"[..]), Err(HelloRefusal::Garbage));
        assert_eq!(Hello::decode(&mut &b"QRT1\x09\0"[..]), Err(HelloRefusal::Version(9)));
        assert_eq!(hello().check("other", 1), Err(HelloRefusal::Cluster("c".into())));
        assert_eq!(hello().check("c", 2), Err(HelloRefusal::Lanes(1)));
        assert_eq!(hello().check("c", 1), Ok(()));
    }
}
