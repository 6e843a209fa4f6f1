//! The first message in both directions of a peer connection.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use quorate_types::{Incarnation, LaneId, NodeId};

use crate::{Malformed, Reader, VERSION, Writer};

/// The identity of the sender. Both sides send it before anything else.
///
/// ```text
/// magic "QRT1" | version u16 | node u16 | incarnation u64 | lane u16 | lanes u16 | lease_us u32
/// | clock_drift_ppm u32 | cluster string
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    /// The layout version of the sender.
    pub version: u16,
    /// The sender's id; [`Hello::GUEST`] if it is no node but a client that coordinates its
    /// transactions itself.
    pub node: NodeId,
    /// The sender's life; a guest's session.
    pub incarnation: Incarnation,
    /// The sender's lane of this connection.
    pub lane: LaneId,
    /// How many lanes the sender has; all nodes of a cluster have the same number. 0 from a guest
    /// that does not know it yet: the answer tells.
    pub lanes: u16,
    /// The sender's length of a lease, in microseconds.
    pub lease_us: u32,
    /// The sender's bound on the drift of clocks, in parts per million.
    pub clock_drift_ppm: u32,
    /// The name of the sender's cluster.
    pub cluster: String,
}

/// Why a connection is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HelloRefusal {
    /// Another protocol.
    Garbage,
    /// Another version of the protocol.
    Version(u16),
    /// Another cluster.
    Cluster(String),
    /// Another number of lanes.
    Lanes(u16),
    /// A guest asks for a lane that the node does not have.
    GuestLane {
        /// The lane it asked for.
        lane: u16,
        /// How many lanes there are.
        lanes: u16,
    },
    /// Another length of leases: a promise could be shorter than the lease that relies on it.
    Lease {
        /// The peer's lease, in microseconds.
        lease_us: u32,
        /// The peer's drift bound, in parts per million.
        clock_drift_ppm: u32,
    },
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
            Self::Lease { lease_us, clock_drift_ppm } => write!(
                f,
                "peer has lease_ms = {} and clock_drift_ppm = {clock_drift_ppm}; set both to the \
                 same in [cluster] on all nodes",
                f64::from(*lease_us) / 1000.0
            ),
            Self::GuestLane { lane, lanes } => write!(
                f,
                "a client wants lane {lane}, and this node has {lanes}; connect to lane 0 and read \
                 the number of lanes from the answer"
            ),
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
    /// The node id of guests, which no node has.
    pub const GUEST: NodeId = NodeId(0);
    /// The first four bytes.
    pub const MAGIC: [u8; 4] = *b"QRT1";
    /// The most bytes a hello can have.
    pub const BYTES_MAX: usize = 32 + CLUSTER_BYTES_MAX;

    /// Appends the hello.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&Self::MAGIC);
        let mut writer = Writer(out);
        writer.u16(self.version);
        writer.u16(self.node.0);
        writer.u64(self.incarnation.0);
        writer.u16(self.lane.0);
        writer.u16(self.lanes);
        writer.u32(self.lease_us);
        writer.u32(self.clock_drift_ppm);
        writer.bytes(self.cluster.as_bytes());
    }

    /// Takes a hello off the front of `input`; `None` if the hello has not arrived completely.
    pub fn decode(input: &mut &[u8]) -> Result<Option<Self>, HelloRefusal> {
        let seen = input.len().min(4);
        if input[..seen] != Self::MAGIC[..seen] {
            return Err(HelloRefusal::Garbage);
        }
        let mut reader = Reader(&input[seen..]);
        // The version is checked before any field that another version may lay out differently.
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
            lease_us: reader.u32()?,
            clock_drift_ppm: reader.u32()?,
            cluster: reader.string(CLUSTER_BYTES_MAX)?,
        })
    }

    /// Whether the sender can be a peer of the node that sends `ours`.
    pub fn check(&self, ours: &Self) -> Result<(), HelloRefusal> {
        if self.cluster != ours.cluster {
            return Err(HelloRefusal::Cluster(self.cluster.clone()));
        }
        if self.lanes != ours.lanes || self.lane.0 >= ours.lanes {
            return Err(HelloRefusal::Lanes(self.lanes));
        }
        let (lease_us, clock_drift_ppm) = (self.lease_us, self.clock_drift_ppm);
        if (lease_us, clock_drift_ppm) != (ours.lease_us, ours.clock_drift_ppm) {
            return Err(HelloRefusal::Lease { lease_us, clock_drift_ppm });
        }
        Ok(())
    }

    /// Whether the sender is a guest.
    pub fn is_guest(&self) -> bool {
        self.node == Self::GUEST
    }

    /// Whether the sender can be a guest of the node that sends `ours`. Leases don't matter to a
    /// guest.
    pub fn check_guest(&self, ours: &Self) -> Result<(), HelloRefusal> {
        if self.cluster != ours.cluster {
            return Err(HelloRefusal::Cluster(self.cluster.clone()));
        }
        let (lane, lanes) = (self.lane.0, ours.lanes);
        if lane >= lanes || (self.lanes != 0 && self.lanes != lanes) {
            return Err(HelloRefusal::GuestLane { lane, lanes });
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
            lease_us: 150_000,
            clock_drift_ppm: 1000,
            cluster: "c".into(),
        }
    }

    #[test]
    fn golden_bytes_of_a_hello() {
        let mut out = Vec::new();
        hello().encode(&mut out);
        assert_eq!(
            out,
            *b"QRT1\x11\0\x02\0\x07\0\0\0\0\0\0\0\0\0\x01\0\xf0\x49\x02\0\xe8\x03\0\0\x01\0\0\0c"
        );
        for cut in 0..out.len() {
            assert_eq!(Hello::decode(&mut &out[..cut]), Ok(None));
        }
        assert_eq!(Hello::decode(&mut &out[..]), Ok(Some(hello())));
    }

    #[test]
    fn strangers_are_told_why() {
        assert_eq!(Hello::decode(&mut &b"GET / HTTP"[..]), Err(HelloRefusal::Garbage));
        let old = VERSION - 1;
        let of_old = [&b"QRT1"[..], &old.to_le_bytes()].concat();
        assert_eq!(Hello::decode(&mut &of_old[..]), Err(HelloRefusal::Version(old)));
        let other = Hello { cluster: "other".into(), ..hello() };
        assert_eq!(hello().check(&other), Err(HelloRefusal::Cluster("c".into())));
        assert_eq!(hello().check(&Hello { lanes: 2, ..hello() }), Err(HelloRefusal::Lanes(1)));
        let refusal = hello().check(&Hello { lease_us: 1_000, ..hello() }).unwrap_err();
        assert!(alloc::format!("{refusal}").contains("lease_ms = 150"), "{refusal}");
        assert_eq!(hello().check(&hello()), Ok(()));
    }

    #[test]
    fn a_guest_needs_the_name_and_a_lane_and_no_lease() {
        let guest = |lane, lanes| Hello {
            node: Hello::GUEST,
            lane: LaneId(lane),
            lanes,
            lease_us: 0,
            clock_drift_ppm: 0,
            ..hello()
        };
        let ours = Hello { lanes: 4, ..hello() };
        assert!(guest(0, 0).is_guest() && !ours.is_guest());
        assert_eq!(guest(0, 0).check_guest(&ours), Ok(()));
        assert_eq!(guest(3, 4).check_guest(&ours), Ok(()));
        let refusal = HelloRefusal::GuestLane { lane: 4, lanes: 4 };
        assert_eq!(guest(4, 0).check_guest(&ours), Err(refusal));
        assert!(guest(0, 2).check_guest(&ours).is_err(), "it thinks of another cluster");
        let other = Hello { cluster: "other".into(), ..ours };
        assert!(matches!(guest(0, 0).check_guest(&other), Err(HelloRefusal::Cluster(_))));
    }
}
