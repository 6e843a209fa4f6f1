//! The status of a node, for users.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;

use quorate_paxos::Voter;
use quorate_types::{
    Duration, Epoch, Incarnation, Instant, MemberNumber, NodeId, NodeSet, Role, View,
};

use crate::Membership;

/// The phase of a node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Phase {
    /// In no view: founding, joining, or kept out.
    Outside,
    /// Live, copying missing data.
    CatchingUp,
    /// Active and under a lease.
    Serving,
    /// Active, but without a lease.
    WithoutLease,
    /// No longer a member in this life.
    Expelled,
}

/// One member as this node sees it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct MemberStatus {
    /// Its id.
    pub node: NodeId,
    /// Its life in the view.
    pub incarnation: Incarnation,
    /// Its number in timestamps.
    pub number: MemberNumber,
    /// Its role.
    pub role: Role,
    /// How long ago it was last heard; `None` for this node itself and for down members.
    pub last_heard: Option<Duration>,
    /// Whether it seems to have crashed.
    pub suspected: bool,
    /// Whether it is about to leave, by an operator's request.
    pub departing: bool,
    /// Whether it has, in this epoch, all that falls to it, as far as this node has heard. It is so for
    /// all members while data is where it should be.
    pub has_copied: bool,
}

/// The result of [`Membership::status`].
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Status {
    /// The phase of this node.
    pub phase: Phase,
    /// The reason why it isn't serving, with the remedy; empty if it serves.
    pub reason: String,
    /// The epoch of the newest view it knows.
    pub epoch: Epoch,
    /// The members of that view.
    pub members: Vec<MemberStatus>,
    /// The rest of the lease.
    pub lease_remaining: Duration,
}

pub(crate) fn list(nodes: NodeSet) -> String {
    let mut text = String::from(if nodes.len() == 1 { "node " } else { "nodes " });
    for (index, node) in nodes.into_iter().enumerate() {
        let separator = if index == 0 { "" } else { ", " };
        // Writing to a string can't fail.
        let _ = write!(text, "{separator}{node}");
    }
    text
}

impl Membership {
    /// For users, as of `now`.
    pub fn status(&self, now: Instant) -> Status {
        let view = self.newest_view();
        let lease_remaining = self.lease_until().since(now);
        let phase = match view.member(self.me.node).filter(|_| self.is_live()) {
            _ if self.expelled => Phase::Expelled,
            None => Phase::Outside,
            Some(own) if own.role == Role::Shadow => Phase::CatchingUp,
            Some(_) if lease_remaining.is_zero() => Phase::WithoutLease,
            Some(_) => Phase::Serving,
        };
        let reason = match phase {
            Phase::Serving => String::new(),
            Phase::CatchingUp => self.why_copying(),
            Phase::Expelled => {
                "the other nodes went on without this one; it joins again by itself".into()
            }
            Phase::WithoutLease => self.why_without_lease(),
            Phase::Outside => self.why_outside(),
        };
        Status {
            phase,
            reason,
            epoch: view.epoch,
            members: self.members(view, now),
            lease_remaining,
        }
    }

    fn members(&self, view: &View, now: Instant) -> Vec<MemberStatus> {
        let inside = self.is_live();
        view.members
            .iter()
            .map(|member| {
                let is_peer = inside && member.role != Role::Down && member.node != self.me.node;
                let peer = self.peers.get(&member.node).filter(|_| is_peer);
                MemberStatus {
                    node: member.node,
                    incarnation: member.incarnation,
                    number: member.number,
                    role: member.role,
                    last_heard: peer.map(|peer| now.since(peer.heard)),
                    suspected: is_peer && self.is_suspected(member.node),
                    departing: view.departing.contains(member.node),
                    has_copied: view.is_placed() || inside && self.has_copied(member.node),
                }
            })
            .collect()
    }

    fn why_copying(&self) -> String {
        self.why_group_waits().unwrap_or_else(|| "copying the data of the other nodes".into())
    }

    fn why_without_lease(&self) -> String {
        if let Some(text) = self.majority_lost(&self.view) {
            return text;
        }
        let silent = self.view.voters().difference(self.responsive());
        if silent.is_empty() {
            return "waiting for a majority to renew the lease".into();
        }
        format!(
            "no majority of the {} members is reachable: {} not heard; start them or mend the \
             network",
            self.view.members.len(),
            list(silent)
        )
    }

    /// The newer one of the view in force and a known view without this node.
    pub(crate) fn newest_view(&self) -> &View {
        if self.view.epoch > self.known.epoch { &self.view } else { &self.known }
    }

    fn why_outside(&self) -> String {
        let view = self.newest_view();
        if let Some(text) = self.why_not_revived() {
            return text;
        }
        if view.epoch.0 > 0 {
            let epoch = view.epoch;
            if let Some(text) = self.why_others_wait().or_else(|| self.majority_lost(view)) {
                return text;
            }
            if view.member(self.me.node).is_none() {
                return format!(
                    "node {me} is not a member of the cluster (epoch {epoch}): run `quorate member \
                     add {me}` against one that is",
                    me = self.me.node
                );
            }
            return self
                .why_group_waits()
                .unwrap_or_else(|| format!("joining the cluster, which is in epoch {epoch}"));
        }
        let configured: NodeSet = self.config.genesis.iter().map(|member| member.node).collect();
        let present = |node: &NodeId| {
            *node == self.me.node
                || self
                    .peers
                    .get(node)
                    .is_some_and(|peer| peer.confirmed.0 != 0 && self.recently(peer.announced))
        };
        let missing: NodeSet = configured.into_iter().filter(|node| !present(node)).collect();
        if missing.is_empty() {
            return "forming the cluster".into();
        }
        format!(
            "waiting for {}: a new cluster forms when all configured nodes run; one that runs already takes \
             this node in after `quorate member add {}`",
            list(missing),
            self.me.node
        )
    }

    /// The sentence for a view that can't be left any more, because a majority of its voters has
    /// restarted without its state.
    fn majority_lost(&self, view: &View) -> Option<String> {
        let lost: NodeSet = view
            .members
            .iter()
            .filter(|member| {
                let own = Voter { node: member.node, incarnation: member.incarnation };
                if self.votes_still(member) || own == self.voter {
                    return false;
                }
                let now_held = if member.node == self.me.node {
                    self.me.incarnation
                } else {
                    self.peers.get(&member.node).map(|peer| peer.confirmed).unwrap_or_default()
                };
                now_held.0 != 0 && now_held != member.incarnation
            })
            .map(|member| member.node)
            .collect();
        let holders = view.live().difference(lost);
        if holders.is_majority_of(view.voters()) || lost.len() * 2 < view.members.len() {
            return None;
        }
        let (who, verb) = match holders.is_empty() {
            true => ("the cluster".into(), "has ended"),
            false => (list(holders), "cannot go on"),
        };
        let remedy = match self.keeper.is_some() && !holders.is_empty() {
            true => "restart it, and `quorate recover` there goes on with what it has",
            false => "stop all nodes and start them together to begin with an empty cluster",
        };
        Some(format!(
            "{who} in epoch {} {verb} because {} lost their state: a majority of the members was \
             lost; {remedy}",
            view.epoch,
            list(lost)
        ))
    }
}
