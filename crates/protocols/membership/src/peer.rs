//! This node's knowledge of a peer.

use quorate_types::{Epoch, Incarnation, Instant, NodeSet};

use crate::detector::Delay;
use crate::{MemberConfig, Store};

/// This node's knowledge of a peer id, whichever process holds it.
///
/// Messages of a dead process can arrive late. Before a node founds a cluster with an incarnation,
/// or lets it join, that incarnation has to answer a challenge that named it: only a process that
/// lived after the challenge can answer.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Peer {
    /// When the incarnation that the view names was last heard; zero before that.
    pub(crate) heard: Instant,
    /// The connection broke, and no message has come since.
    pub(crate) lost: bool,
    /// The time since when the connection of some other lane has been broken.
    pub(crate) cut_since: Option<Instant>,
    /// Its silences that ended well.
    pub(crate) silence: Delay,
    /// This node has told others that it was silent for too long, and has not heard it since.
    pub(crate) silent: bool,
    /// The members that it hears; `None` until it has said so in the life that the view names.
    pub(crate) hears: Option<NodeSet>,
    /// The nodes outside that it could let in.
    pub(crate) admits: NodeSet,
    /// The member has said that it leaves, and relies on no lease.
    pub(crate) leaving: bool,
    /// The time of this node's last heartbeat to it.
    pub(crate) told: Instant,
    /// The member in the view says that its lanes hold everything.
    pub(crate) caught_up: bool,
    /// It says so in this epoch, whatever its role.
    pub(crate) is_complete: bool,
    /// The incarnation that is being challenged.
    pub(crate) challenged: Incarnation,
    /// The nonce that it has to return.
    pub(crate) nonce: u64,
    /// The nonce that this node has to return to that incarnation.
    pub(crate) owed: u64,
    /// The nonce that this node returned last.
    pub(crate) answered: u64,
    /// The last incarnation that answered a challenge; 0 if none.
    pub(crate) confirmed: Incarnation,
    /// When the confirmed incarnation last announced itself.
    pub(crate) announced: Instant,
    /// Whether it said that it is in a view.
    pub(crate) is_member: bool,
    /// The founding round that it said it is in.
    pub(crate) round: u64,
    /// The former life whose vote it still casts; 0 if none.
    pub(crate) votes_as: Incarnation,
    /// What the stores of that life have got back from its disk.
    pub(crate) store: Store,
    /// The cluster that it says it knows; 0 if none.
    pub(crate) cluster: Incarnation,
    /// The epoch of the newest view of that cluster that it says it knows.
    pub(crate) epoch: Epoch,
    /// The members that it says it hears, from outside.
    pub(crate) reaches: NodeSet,
    /// The members that it can't hear from outside, since it does not know their addresses.
    pub(crate) strangers: NodeSet,
    /// Its addresses.
    pub(crate) addresses: Option<MemberConfig>,
}

impl Peer {
    /// Whether no lane's connection is known to be broken.
    pub(crate) fn is_connected(&self) -> bool {
        !self.lost && self.cut_since.is_none()
    }

    /// The knowledge that this node's next life keeps: the length of the peer's silences, and its
    /// broken connections.
    pub(crate) fn into_next_life(self) -> Self {
        Self { silence: self.silence, cut_since: self.cut_since, ..Self::default() }
    }
}
