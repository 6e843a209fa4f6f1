//! Views: the agreed membership of an epoch (Hermes §2.2, §4.3.3).

use alloc::string::String;
use alloc::vec::Vec;

use crate::{Epoch, Incarnation, MemberNumber, NodeId, NodeSet};

/// A member's role in a view.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Role {
    /// Holds everything and serves clients.
    Active,
    /// Takes part in every update while it copies missing data; serves no client (Hermes §4.3.3,
    /// shadow replica).
    Shadow,
    /// A voter without a live process: crashed, expelled, or added and not started yet.
    Down,
}

/// One voter of a view.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Member {
    /// The configured id.
    pub node: NodeId,
    /// The process that holds the id in this view.
    pub incarnation: Incarnation,
    /// The number in the timestamps of this incarnation. 0 while `incarnation` is 0.
    pub number: MemberNumber,
    /// Its role.
    pub role: Role,
    /// The address for its peers, `host:port`.
    pub peer_address: String,
    /// The address for its clients, `host:port`.
    pub client_address: String,
    /// The address of its administration endpoint, `host:port`.
    pub admin_address: String,
}

/// The members of the cluster during one epoch.
///
/// All members vote on the next view, dead or alive, so that two views in succession always share
/// a majority; only the live ones (active or shadow) must acknowledge updates.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct View {
    /// Counted up by 1 with every view. 0 is the empty view before the first.
    pub epoch: Epoch,
    /// The cluster of this view, named by the incarnation of its founder. Epochs and member numbers
    /// begin anew with every cluster, so neither means anything in another, except in one that was
    /// recovered from it ([`Incarnation::shares_data_with`]). 0 in the empty view.
    pub cluster: Incarnation,
    /// The voters, in ascending order of node id.
    pub members: Vec<Member>,
    /// The largest member number handed out so far.
    pub last_number: MemberNumber,
    /// The nodes over which data is placed that not every member has. They are not the voters: who was
    /// added is not among them before it has copied what falls to it, and who was removed stays,
    /// holding nothing, until others have copied what fell to it. So all nodes compute the same
    /// places from one view, whatever views they have missed.
    pub placed: NodeSet,
    /// The members that an operator has asked to leave, and that are still here: data is placed without
    /// them first, and then they are removed.
    pub departing: NodeSet,
}

impl View {
    /// The member with this id.
    pub fn member(&self, node: NodeId) -> Option<&Member> {
        self.members.iter().find(|member| member.node == node)
    }

    /// Every voter.
    pub fn voters(&self) -> NodeSet {
        self.members.iter().map(|member| member.node).collect()
    }

    /// The members that must acknowledge updates: active and shadow.
    pub fn live(&self) -> NodeSet {
        self.with_role(|role| role != Role::Down)
    }

    /// The members that serve clients.
    pub fn active(&self) -> NodeSet {
        self.with_role(|role| role == Role::Active)
    }

    /// The members that are catching up.
    pub fn shadows(&self) -> NodeSet {
        self.with_role(|role| role == Role::Shadow)
    }

    /// The nodes over which data should be placed: the voters, except such as have never held any and
    /// don't live, and such as are about to leave.
    pub fn to_place(&self) -> NodeSet {
        self.voters().intersection(self.placed.union(self.live())).difference(self.departing)
    }

    /// Whether data is where it should be, so that nobody has anything to copy for the sake of
    /// others.
    pub fn is_placed(&self) -> bool {
        self.placed == self.to_place()
    }

    /// The same with all data where it should be.
    #[must_use]
    pub fn into_placed(self) -> Self {
        Self { placed: self.to_place(), ..self }
    }

    /// Whether this very incarnation is live in this view.
    pub fn is_live(&self, node: NodeId, incarnation: Incarnation) -> bool {
        self.member(node)
            .is_some_and(|member| member.incarnation == incarnation && member.role != Role::Down)
    }

    /// The live members that were live under the same incarnation in `earlier`: their
    /// acknowledgements of that time still count. A node that came back is a new member (pitfall
    /// H2).
    pub fn survivors(&self, earlier: &View) -> NodeSet {
        self.members
            .iter()
            .filter(|member| {
                member.role != Role::Down && earlier.is_live(member.node, member.incarnation)
            })
            .map(|member| member.node)
            .collect()
    }

    fn with_role(&self, wanted: impl Fn(Role) -> bool) -> NodeSet {
        self.members.iter().filter(|member| wanted(member.role)).map(|member| member.node).collect()
    }
}
