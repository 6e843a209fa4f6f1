//! Views that are revived from disks, when the active members of a group are all gone at once.
//!
//! A node that comes back with its disk goes on voting as its former life. So the configuration log goes
//! on where it was, and says which view was the newest: the nodes that were active in it have all that
//! clients were told, and nobody else has (design note 013). The next view takes them in as active
//! members, if enough of them have all their data, and everybody else who is back as a shadow.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use quorate_machine::{Effects, mutant};
use quorate_paxos::Voter;
use quorate_types::{Instant, Member, NodeId, NodeSet, Role, View};

use crate::change::{self, Returning};
use crate::peer::Peer;
use crate::status::list;
use crate::{Membership, Store};

impl Membership {
    /// Whether a message of this voter is the vote of a former life.
    pub(crate) fn is_former_life(&self, voter: Voter) -> bool {
        self.peers.get(&voter.node).is_some_and(|peer| {
            peer.votes_as == voter.incarnation && peer.confirmed != voter.incarnation
        })
    }

    /// The members that run in the life that the view names.
    pub(crate) fn alive(&self) -> NodeSet {
        self.alive_in(&self.view)
    }

    fn alive_in(&self, view: &View) -> NodeSet {
        if self.is_live() {
            // What a node has said in its former life may come after it has said that it is back.
            let is_back = |node: &NodeId| {
                self.joining(*node).is_some() && !mutant!("membership_late_word_of_a_former_life")
            };
            return self.heard().into_iter().filter(|node| !is_back(node)).collect();
        }
        let runs = |member: &&Member| {
            self.peers.get(&member.node).is_some_and(|peer| {
                peer.confirmed == member.incarnation
                    && peer.is_member
                    && peer.is_connected()
                    && self.recently(peer.announced)
            })
        };
        let live = view.members.iter().filter(|member| member.role != Role::Down);
        live.filter(runs).map(|member| member.node).collect()
    }

    /// The node outside that holds a member's id, if it is here: it may be this one.
    pub(crate) fn returning(&self, node: NodeId) -> Option<Returning<'_>> {
        let member = self.view.member(node)?;
        let (incarnation, addresses, votes_as, store) = if node == self.me.node {
            let own = self.config.genesis.iter().find(|member| member.node == node);
            let own = own.filter(|_| !self.is_live())?;
            (self.me.incarnation, own, self.voter.incarnation, self.store)
        } else {
            let (incarnation, addresses) = self.joining(node)?;
            let peer = self.peers.get(&node)?;
            (incarnation, addresses, peer.votes_as, peer.store)
        };
        let was_active = member.role == Role::Active && member.incarnation == votes_as;
        let is_source =
            store == Store::Intact && (was_active || mutant!("membership_revive_stale"));
        Some(Returning { incarnation, addresses, is_source })
    }

    /// The nodes that are back with all that an active member had.
    pub(crate) fn sources(&self) -> NodeSet {
        let is_source =
            |node: &NodeId| self.returning(*node).is_some_and(|returning| returning.is_source);
        self.view.voters().into_iter().filter(is_source).collect()
    }

    /// The active members of groups that have no running active member.
    pub(crate) fn orphaned(&self) -> NodeSet {
        let groups = self.orphaned_groups(&self.view).into_iter();
        groups.fold(NodeSet::EMPTY, NodeSet::union).intersection(self.view.active())
    }

    /// The groups whose active members in `view` have all stopped.
    pub(crate) fn orphaned_groups(&self, view: &View) -> Vec<NodeSet> {
        let running = self.alive_in(view).intersection(view.active());
        let mut groups = change::groups(view, &self.config);
        groups.retain(|group| group.intersection(running).is_empty());
        groups
    }

    /// Whether a node that is back is not admitted as a shadow, since nobody runs who has the data of one
    /// of its groups. It may have that data itself, and is then to be revived with it; or it waits for who
    /// has, or for a person who says that it is lost.
    pub(crate) fn awaits_its_group(&self, node: NodeId) -> bool {
        self.awaited_group(node, &self.view).is_some() && !mutant!("membership_revived_alone")
    }

    /// The group of the node whose active members have all stopped, if there is one. Without disks a shard
    /// waits for nothing: it begins anew with the next of its nodes.
    fn awaited_group(&self, node: NodeId, view: &View) -> Option<NodeSet> {
        let waits = |group: &NodeSet| {
            let is_kept = self.keeper.is_some() || self.config.groups.contains(group);
            group.contains(node) && is_kept
        };
        self.orphaned_groups(view).into_iter().find(waits)
    }

    /// Whether a dead member is not removed yet, since it may be the last one that has all data of a group.
    /// If it is, it comes back with that data on its disk as long as the view says that it is active. Its
    /// group goes on without it when another active member has outlived it, and not before: that one may
    /// have died with it, and only seem to live.
    pub(crate) fn may_be_last(&self, node: NodeId) -> bool {
        let leaves = self.peers.get(&node).is_some_and(|peer| peer.leaving);
        if self.keeper.is_none() || leaves || mutant!("membership_orphans_removed") {
            return false;
        }
        let mut groups = change::active_groups(&self.view, &self.config).into_iter();
        let is_outlived = |group: NodeSet| {
            group.without(node).into_iter().any(|other| self.has_outlived(other, node))
        };
        groups.any(|group| group.contains(node) && !is_outlived(group))
    }

    /// Whether the member `other` has granted a request that this node sent long after it heard `node` last. What
    /// it said of its own accord may come late, after it has died with `node`. Both may have been silent towards
    /// this node for as long as members are between two heartbeats.
    fn has_outlived(&self, other: NodeId, node: NodeId) -> bool {
        if other == self.me.node {
            return true;
        }
        let Some(dead) = self.peers.get(&node) else { return false };
        let lived = match mutant!("membership_late_word_of_the_dead") {
            true => self.peers.get(&other).map_or(Instant::ZERO, |peer| peer.heard),
            false => self.lease.granted_at(other),
        };
        // If another lane alone is cut off, heartbeats go on.
        let silent_since = dead.cut_since.map_or(dead.heard, |cut| cut.min(dead.heard));
        let is_later = lived >= silent_since + self.config.apart();
        self.hears(other) && (is_later || mutant!("membership_outlived_at_once"))
    }

    /// The revived view, if one is needed and enough nodes are back. The active members that are missing
    /// are waited for.
    pub(crate) fn wish_to_revive(&self) -> Option<View> {
        let sources = self.sources();
        if sources.is_empty() || sources.intersection(self.orphaned()).is_empty() {
            return None;
        }
        let next = self.revived()?;
        let missing = self.missing().intersection(self.view.active());
        let is_patient =
            missing.is_empty() || self.patient_until().is_some_and(|until| self.now >= until);
        is_patient.then_some(next)
    }

    /// The voters that neither run nor are back.
    fn missing(&self) -> NodeSet {
        let alive = self.alive();
        let is_here = |node: &NodeId| alive.contains(*node) || self.returning(*node).is_some();
        let here: NodeSet = self.view.voters().into_iter().filter(is_here).collect();
        self.view.voters().difference(here)
    }

    /// The view that takes in all who are back, if they have enough.
    fn revived(&self) -> Option<View> {
        // A member that lives suspects others, and removes them, by the usual rules.
        let down = if self.is_live() { NodeSet::EMPTY } else { self.missing() };
        let back = |node| self.returning(node);
        change::revived(&self.view, self.alive(), down, back, &self.config)
    }

    /// When the active members that are missing have been waited for long enough.
    pub(crate) fn patient_until(&self) -> Option<Instant> {
        Some(self.revivable_since? + self.config.revive_patience)
    }

    /// Notes the time since when a view could be revived.
    pub(crate) fn note_revivable(&mut self) {
        let sources = self.sources();
        let is_revivable = !sources.is_empty() && !sources.intersection(self.orphaned()).is_empty();
        if !is_revivable {
            self.revivable_since = None;
        } else if self.revivable_since.is_none() {
            self.revivable_since = Some(self.now);
        }
    }

    /// The voters that would answer this node, itself included, when it is outside.
    fn voters_here(&self) -> NodeSet {
        let alive = self.alive();
        let votes = |member: &&Member| {
            let own = Voter { node: member.node, incarnation: member.incarnation };
            own == self.voter || alive.contains(member.node) || self.votes_still(member)
        };
        self.view.members.iter().filter(votes).map(|member| member.node).collect()
    }

    /// As a voter outside whose disk came back: has a view chosen that others left behind, or revives one.
    pub(crate) fn revive(&mut self, effects: &mut impl Effects<Self>) {
        let here = self.voters_here();
        let may = !self.has_left() && self.store != Store::None && here.contains(self.me.node);
        if !may || !here.is_majority_of(self.view.voters()) || !self.alive().is_empty() {
            self.wish_since = None;
            return;
        }
        let Some(log) = &self.log else { return };
        let (deciding, leading) = (log.is_deciding(), log.is_leading());
        if deciding {
            return;
        }
        if log.considered(log.next()).next().is_some() {
            return self.outbid_when_stuck(effects);
        }
        self.stuck_since = None;
        self.note_revivable();
        let Some(next) = self.wish_to_revive() else {
            self.wish_since = None;
            let patient = self.patient_until().filter(|until| *until > self.now);
            self.wake_at = patient.map_or(self.wake_at, |until| self.wake_at.min(until));
            return;
        };
        let since = *self.wish_since.get_or_insert(self.now);
        let before = here.into_iter().filter(|node| *node < self.me.node).count() as u32;
        let turn = since + self.stagger() * before;
        if self.now < turn {
            self.wake_at = self.wake_at.min(turn);
            return;
        }
        if !leading {
            self.campaign(effects);
        }
        self.propose_view(next, effects);
    }

    /// Why a node that came back with its disk does not serve yet, as a sentence.
    pub(crate) fn why_not_revived(&self) -> Option<String> {
        if self.store == Store::None || self.log.is_none() || self.is_live() {
            return None;
        }
        let epoch = self.view.epoch;
        let is_foreign = |peer: &&Peer| {
            peer.cluster.0 != 0
                && peer.cluster != self.view.cluster
                && self.recently(peer.announced)
                && peer.is_member
        };
        if self.peers.values().find(is_foreign).is_some() {
            return Some(
                "what is on the disk of this node is of another cluster than the one that runs here: \
                 put its directory aside to join that one with an empty store, or give it the directory \
                 that belongs to it"
                    .into(),
            );
        }
        if !self.alive().is_empty() {
            return None;
        }
        let here = self.voters_here();
        if !here.is_majority_of(self.view.voters()) {
            let missing = list(self.view.voters().difference(here));
            return Some(format!(
                "came back from its disk in epoch {epoch}, and no majority of the members has: start \
                 {missing} with their disks; if those are lost, `quorate recover` goes on without them"
            ));
        }
        let back = |node: NodeId| self.returning(node).is_some();
        let missing: NodeSet = self.view.active().into_iter().filter(|node| !back(*node)).collect();
        match self.revived() {
            Some(_) if !missing.is_empty() => Some(format!(
                "came back from its disk in epoch {epoch}; waits up to {} s for {}",
                self.config.revive_patience.as_millis() / 1000,
                list(missing)
            )),
            Some(_) => {
                Some(format!("came back from its disk in epoch {epoch}: forming the cluster"))
            }
            None => {
                let what = match missing.is_empty() {
                    true => format!("the stores of {} are damaged", list(self.damaged())),
                    false => format!("start {} with their disks", list(missing)),
                };
                Some(format!(
                    "came back from its disk in epoch {epoch}, and too few members that have all that \
                     clients were told are here: {what}; if that data is lost, `quorate recover` goes on \
                     with what is here"
                ))
            }
        }
    }

    /// Why a node is not admitted while others serve, as a sentence: nobody has its group's data.
    pub(crate) fn why_group_waits(&self) -> Option<String> {
        let view = self.newest_view();
        let group = self.awaited_group(self.me.node, view)?;
        let absent = group.intersection(view.active());
        let remedy = match self.keeper.is_some() {
            true => format!("start {} with what is on disk; if that is lost, ", list(absent)),
            false => String::new(),
        };
        let named: Vec<String> = absent.into_iter().map(|node| format!("{node}")).collect();
        Some(format!(
            "no active member of the group of {} runs, so nobody has its data: {remedy}`quorate recover \
             {} --accept-loss` at a node that serves goes on without that data",
            list(group),
            named.join(" ")
        ))
    }

    /// The active members that are back without all they had.
    fn damaged(&self) -> NodeSet {
        self.view.active().difference(self.sources())
    }

    /// Why a node that knows a view from disks of others, and has none itself, does not serve yet.
    pub(crate) fn why_others_wait(&self) -> Option<String> {
        let here = |peer: &&Peer| peer.confirmed.0 != 0 && self.recently(peer.announced);
        let mut peers = self.peers.values().filter(here);
        if peers.clone().any(|peer| peer.is_member) || !peers.any(|peer| peer.store != Store::None)
        {
            return None;
        }
        let lost = |node: &NodeId| {
            let peer = self.peers.get(node).filter(here);
            peer.is_none_or(|peer| peer.store == Store::None)
        };
        let missing = self.newest_view().voters().into_iter().filter(lost).collect();
        Some(format!(
            "waiting for members of the cluster to come back from their disks: {} are not here with \
             theirs; if those are lost, `quorate recover` goes on without them",
            list(missing)
        ))
    }
}
