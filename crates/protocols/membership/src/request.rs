//! A driver's requests, and their answers.

use alloc::vec::Vec;
use core::fmt;

use quorate_types::{Epoch, NodeId, NodeSet, limits};

use crate::MemberConfig;

/// A driver's request to [`crate::Membership`].
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Request {
    /// This node's lanes hold everything, in this epoch: make it active. Answered when it is
    /// active.
    CaughtUp {
        /// The epoch that the lanes were in.
        epoch: Epoch,
    },
    /// Make room for one more voter. Answered when it is in the view.
    Add(MemberConfig),
    /// Take a voter out of the view. Answered when it is out, or, if it holds copies and `at_once` is not
    /// said, when the view says that it is about to leave ([`quorate_types::View::departing`]): it is
    /// then removed when others have copied what it has, or when it is down.
    Remove {
        /// Which one.
        node: NodeId,
        /// Its copies go with it.
        at_once: bool,
    },
    /// A voter that is about to leave stays. Answered when the view says so.
    Keep(NodeId),
    /// Go on without these nodes, whose loss a person accepts, from what is on the disks of the others. Asked
    /// of a node that came back from its disk and can't go on; answered when the recovered cluster stands.
    /// Or asked of a live member, if all that had the data of a group are gone; answered when the view says
    /// that they are down, and their group goes on with what its other nodes have.
    Recover {
        /// The nodes that are lost, or whose disks are.
        lost: NodeSet,
    },
    /// The connection to this peer broke: suspect it at once. Answered at once.
    PeerLost(NodeId),
    /// A connection to this peer stands again. Answered at once.
    PeerFound(NodeId),
    /// Another lane's connection to this peer broke. Answered at once.
    LaneLost(NodeId),
    /// All other lanes' connections to this peer stand again. Answered at once.
    LanesFound(NodeId),
    /// Give the lease up for good, and take this node out of the view at once. Answered when this
    /// node is out; it serves no client meanwhile, and the driver starts no next life of it.
    Leave,
}

/// Why a membership change was refused. The text tells the user what to do.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum MembershipError {
    /// This node is outside the view.
    NotAMember,
    /// The lanes are in an epoch that this node has not reached, or is not a shadow in.
    WrongEpoch(Epoch),
    /// The id is taken by a member with other addresses.
    AlreadyMember(NodeId),
    /// There is no such member.
    UnknownMember(NodeId),
    /// The id is 0 or above the limit.
    InvalidId(NodeId),
    /// The cluster has as many voters as it can.
    TooMany,
    /// A node can't remove itself.
    RemovesItself,
    /// The member is the only one that serves.
    LastActive(NodeId),
    /// The remaining members would have no majority alive.
    NoMajority(NodeId),
    /// Fewer nodes would be left than each key has copies.
    TooFewForCopies {
        /// The member that was to leave.
        node: NodeId,
        /// The number of copies that the configuration asks for.
        copies: usize,
    },
    /// The member is about to leave.
    Departing(NodeId),
    /// The members alive would be no majority of one member more.
    TooFewForOneMore(NodeId),
    /// A cluster of one takes in only a node whose process it hears, and it does not hear this one.
    NotHereYet(NodeId),
    /// Only a node that came back from its disk, and is in no view, can begin a recovery.
    NotFromDisk,
    /// A recovery that was asked for here has not ended.
    Recovers,
    /// No group has lost its data with these nodes.
    NothingLost {
        /// Which ones.
        nodes: Vec<NodeId>,
    },
    /// Where quorums acknowledge, a group can't be given up alone.
    NeedsQuorums,
    /// A node that was said to be lost is here, with what is on its disk.
    NotLost(NodeId),
    /// Nodes that were not said to be lost are not here, or know more than this one.
    Missing {
        /// Which ones.
        nodes: Vec<NodeId>,
    },
    /// No majority answered in time. The change may still happen.
    TimedOut {
        /// Voters that are not heard.
        silent: Vec<NodeId>,
    },
}

impl MembershipError {
    /// Whether the change is refused for want of members, as far as one node knows now: members may
    /// return, or may have agreed already.
    pub(crate) fn lacks_members(&self) -> bool {
        matches!(self, Self::LastActive(_) | Self::NoMajority(_) | Self::TooFewForOneMore(_))
    }
}

impl fmt::Display for MembershipError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAMember => {
                write!(f, "this node is not in the view; send the request to one that is")
            }
            Self::WrongEpoch(epoch) => {
                write!(f, "this node is not catching up in epoch {epoch}")
            }
            Self::AlreadyMember(node) => write!(
                f,
                "node {node} is a member with other addresses; remove it first to change them"
            ),
            Self::UnknownMember(node) => write!(f, "node {node} is not a member"),
            Self::InvalidId(node) => {
                write!(f, "node id {node} is not between 1 and {}", limits::NODE_ID_MAX)
            }
            Self::TooMany => {
                write!(f, "a cluster has at most {} members; remove one first", limits::MEMBERS_MAX)
            }
            Self::RemovesItself => {
                write!(f, "a node can't remove itself; send the request to another member")
            }
            Self::LastActive(node) => write!(
                f,
                "node {node} is the only one that holds everything; wait until another has caught up"
            ),
            Self::NoMajority(node) => write!(
                f,
                "without node {node} no majority of the members would be alive; start a member that \
                 is down first, or remove that one"
            ),
            Self::TooFewForCopies { node, copies } => write!(
                f,
                "without node {node} too few nodes would be left for the {copies} copies of each key \
                 that `replicas` asks for; add a member first, or remove it with --now, which leaves \
                 one copy less"
            ),
            Self::Departing(node) => write!(
                f,
                "node {node} is a member that is about to leave; `quorate member keep {node}` has it \
                 stay"
            ),
            Self::NotHereYet(node) => write!(
                f,
                "node {node} is not here: a cluster of one takes in a node that runs and that it reaches at \
                 the address given; start it, with this node in its configuration, and repeat the request"
            ),
            Self::TooFewForOneMore(node) => write!(
                f,
                "with node {node} added, the members alive would be no majority until it runs, and \
                 it can't join without one; start the members that are down first, or remove them"
            ),
            Self::NotFromDisk => write!(
                f,
                "this node has nothing to recover from: ask one that came back from its disk and is in \
                 no view"
            ),
            Self::Recovers => write!(f, "a recovery is under way; wait for its end"),
            Self::NothingLost { nodes } => write!(
                f,
                "no group of nodes has lost its data with nodes {nodes:?}; a member that is down needs no \
                 recovery: start it, or remove it with `quorate member remove`"
            ),
            Self::NeedsQuorums => write!(
                f,
                "a keyspace is configured whose updates a majority acknowledges, and of a group that \
                 lost its majority some are here with their data: to go on with that, stop all nodes, \
                 start those that are left, and recover then"
            ),
            Self::NotLost(node) => write!(
                f,
                "node {node} is here and has what is on its disk; name only nodes that are lost"
            ),
            Self::Missing { nodes } => write!(
                f,
                "nodes {nodes:?} are neither here nor named as lost; start them with their disks, or \
                 name them, too"
            ),
            Self::TimedOut { silent } => write!(
                f,
                "no majority of the members agreed in time (silent: {silent:?}); the change may \
                 still happen, see `quorate status`"
            ),
        }
    }
}

impl core::error::Error for MembershipError {}
