//! Going on without nodes that are lost, by a person's decision.
//!
//! What is left of a cluster can't know whether the others are lost or only late. A person can, and says
//! so at one node. All the nodes that are left then found another cluster, with another name, from what
//! is on their disks: the first view of it stands when each of them has voted for it. With that vote a
//! node leaves the old cluster for good, and its disk says so before the vote is told. So if those that
//! are named as lost come late after all, they are no majority, unless they alone were one: then a person
//! has said of a majority that it is lost.

use alloc::sync::Arc;

use quorate_machine::{Effects, mutant};
use quorate_paxos as paxos;
use quorate_types::{Epoch, Incarnation, Instant, NodeId, NodeSet, Role, Tag, View};

use crate::change;
use crate::{Membership, MembershipError, Store, ViewEntry};

/// A recovery that was asked for here and has not ended.
#[derive(Clone, PartialEq, Hash, Debug)]
pub(crate) struct Recovery {
    tag: Tag,
    until: Instant,
}

impl Membership {
    /// Begins to go on without the nodes in `lost`.
    pub(crate) fn recover(&mut self, tag: Tag, lost: NodeSet, effects: &mut impl Effects<Self>) {
        match self.recovered(lost) {
            Err(error) => effects.complete(tag, Err(error)),
            Ok(_) if self.recovery.is_some() => {
                effects.complete(tag, Err(MembershipError::Recovers));
            }
            Ok(view) => {
                self.leave_cluster(view.cluster);
                self.founding.propose(Arc::new(view), self.me.node, self.now);
                let until = self.now + self.config.request_timeout;
                self.recovery = Some(Recovery { tag, until });
            }
        }
    }

    /// The first view of the cluster without the nodes in `lost`.
    fn recovered(&self, lost: NodeSet) -> Result<View, MembershipError> {
        if self.is_live() || self.log.is_none() || self.store == Store::None {
            return Err(MembershipError::NotFromDisk);
        }
        let here = |node: NodeId| self.returning(node);
        let rest = self.view.voters().difference(lost);
        if let Some(node) = self.alive().into_iter().next() {
            return Err(MembershipError::NotLost(node));
        }
        for node in lost {
            let peer = self.peers.get(&node).filter(|peer| self.recently(peer.announced));
            if node == self.me.node || peer.is_some_and(|peer| peer.store != Store::None) {
                return Err(MembershipError::NotLost(node));
            }
        }
        let knows_all = |node: &NodeId| {
            let newer = self.peers.get(node).is_some_and(|peer| peer.epoch > self.view.epoch);
            here(*node).is_some_and(|_| self.store_of(*node) != Store::None) && !newer
        };
        let missing: NodeSet = rest.into_iter().filter(|node| !knows_all(node)).collect();
        if !missing.is_empty() {
            return Err(MembershipError::Missing { nodes: missing.into_iter().collect() });
        }
        // Nodes whose disks are lost are here with empty ones.
        let fresh: NodeSet = lost.into_iter().filter(|node| here(*node).is_some()).collect();
        let mut next = self.view.as_ref().clone();
        next.epoch = Epoch(next.epoch.0 + 1);
        next.cluster = self.view.cluster.recovered_by(self.me.incarnation);
        next.departing = NodeSet::EMPTY;
        next.members.retain(|member| rest.union(fresh).contains(member.node));
        let sources = self.sources().intersection(rest);
        // If nobody has all that clients were told, what this node has is all there is.
        let active = if sources.is_empty() { NodeSet::only(self.me.node) } else { sources };
        let role = |node| if active.contains(node) { Role::Active } else { Role::Shadow };
        let slots = next.members.iter().map(|slot| slot.node);
        let back = slots.filter_map(|node| Some((here(node)?, role(node)))).collect();
        change::take_in(&mut next, back).ok_or(MembershipError::TooMany)?;
        // Data that is at some of the nodes only is where it was, until others have copied it.
        let is_everywhere =
            self.config.moving.is_empty() || mutant!("membership_recovers_all_copies");
        Ok(if is_everywhere { next.into_placed() } else { next })
    }

    /// The view in which the data of groups is given up that only the members in `lost` had. `None` if it is
    /// in force already.
    ///
    /// The nodes that are left of such a group go on as shadows of a group without an active member: so
    /// engines know that nobody has more than the eldest of them. If none of them lives, one that is back
    /// becomes that in the same view, rather one that has something on its disk.
    pub(crate) fn given_up(&self, lost: NodeSet) -> Result<Option<View>, MembershipError> {
        if lost.intersection(self.view.active()).is_empty() {
            return Ok(None);
        }
        let (alive, sources) = (self.alive(), self.sources());
        if let Some(node) = lost.into_iter().find(|node| alive.union(sources).contains(*node)) {
            return Err(MembershipError::NotLost(node));
        }
        let mut heirs = NodeSet::EMPTY;
        for group in self.orphaned_groups(&self.view) {
            let active = group.intersection(self.view.active());
            if active.intersection(lost).is_empty() {
                continue;
            }
            let missing = active.difference(lost);
            if !missing.is_empty() && missing.is_subset(sources) {
                let majority = change::needs_majority(group, &self.view, &self.config);
                let is_enough = change::is_enough(missing, active, majority);
                if !is_enough && !mutant!("membership_gives_up_what_a_minority_has") {
                    return Err(MembershipError::NeedsQuorums);
                }
                // It is about to be revived.
                return Err(MembershipError::NothingLost { nodes: lost.into_iter().collect() });
            }
            if !missing.is_empty() && !mutant!("membership_gives_up_the_missing") {
                return Err(MembershipError::Missing { nodes: missing.into_iter().collect() });
            }
            if !group.intersection(alive.union(heirs)).is_empty() {
                continue;
            }
            let is_back =
                |node: &NodeId| self.returning(*node).is_some() && self.is_reached_by_all(*node);
            let has_nothing = |node: &NodeId| self.store_of(*node) != Store::Intact;
            let heir =
                group.into_iter().filter(is_back).min_by_key(|node| (has_nothing(node), *node));
            heirs = heir.map_or(heirs, |heir| heirs.with(heir));
        }
        let heirs = heirs.into_iter().filter_map(|node| self.returning(node));
        let next = change::given_up(&self.view, lost, heirs);
        let last =
            || MembershipError::LastActive(self.view.active().first().unwrap_or(self.me.node));
        next.map(Some).ok_or_else(last)
    }

    /// What a node outside has got back from its disk.
    fn store_of(&self, node: NodeId) -> Store {
        match node == self.me.node {
            true => self.store,
            false => self.peers.get(&node).map(|peer| peer.store).unwrap_or_default(),
        }
    }

    /// Casts no vote any more in the cluster that this node has a view of.
    fn leave_cluster(&mut self, next: Incarnation) {
        self.left = next;
        if !mutant!("membership_recovers_and_votes") {
            let view = self.view.clone();
            self.log = Some(self.log_of(&view));
        }
    }

    /// Whether this node has agreed to another cluster and votes no more in its own.
    pub(crate) fn has_left(&self) -> bool {
        self.left.0 != 0 && !mutant!("membership_recovers_and_votes")
    }

    /// Whether a first view is one that recovers the cluster of this node, which is in no view.
    pub(crate) fn recovers_this(&self, newest: (Incarnation, Epoch), view: &View) -> bool {
        let (cluster, epoch) = newest;
        let is_back = self.log.is_some() && self.store != Store::None && !self.is_live();
        is_back && cluster == self.view.cluster && epoch >= self.view.epoch && view.epoch > epoch
    }

    /// Agrees to the first view of a recovered cluster. The vote is final.
    pub(crate) fn agree_to_recover(&mut self, view: &View, effects: &mut impl Effects<Self>) {
        effects.probe("membership: a node leaves its cluster for a recovered one");
        self.leave_cluster(view.cluster);
    }

    /// Drives a recovery that was asked for here. Returns whether there is one.
    pub(crate) fn drive_recovery(&mut self, effects: &mut impl Effects<Self>) -> bool {
        let Some(Recovery { tag, until }) = self.recovery else { return false };
        self.resend_proposal(effects);
        if self.is_live() {
            self.recovery = None;
            let epoch = self.view.epoch;
            self.answer(tag, Ok(epoch), effects);
            return true;
        }
        if self.now >= until {
            self.recovery = None;
            let silent = self.founding.silent().into_iter().collect();
            self.founding.withdraw();
            self.answer(tag, Err(MembershipError::TimedOut { silent }), effects);
        }
        true
    }

    /// Learns of a view of the cluster that this node has agreed to.
    pub(crate) fn on_recovered(
        &mut self,
        message: paxos::Body<ViewEntry>,
        effects: &mut impl Effects<Self>,
    ) {
        let paxos::Body::Learn { entry: ViewEntry(view), .. } = message else {
            return effects.ignored("another cluster");
        };
        let own = view.member(self.me.node).map(|member| member.incarnation);
        let names_me = own == Some(self.me.incarnation) || self.earlier_life_in(&view).is_some();
        if view.epoch <= self.view.epoch || !names_me {
            return effects.ignored("a view without this node");
        }
        self.left = Incarnation(0);
        self.install(view, effects);
    }
}
