//! Failure detection: which members are silent, and which of them have to leave.
//!
//! A lease that lapses stops a node from serving, which keeps clients safe. Leaving the view is a
//! decision that several members make, slowly:
//! - A member is *unheard* here if its connection broke, or if it is silent for longer than its
//!   silences have lately been, by a margin ([`crate::Config::suspect_after`]). The margin grows
//!   with the silences that ended well, as in the accrual detector (Hayashibara et al., SRDS 2004),
//!   and with this node's own delays: a slow node trusts its suspicions less, unless another node
//!   confirms them (Lifeguard, DSN 2018).
//! - Every renewal lists the members that its sender hears. A member leaves at once if most of the
//!   heard members don't hear it (Rapid, ATC 2018): it has crashed, or is cut off.
//! - If some hear it and some don't, a link is broken. After [`crate::Config::link_patience`] one
//!   end leaves, the same one at every member, and it is admitted again only once all hear it.

use quorate_machine::mutant;
use quorate_types::{Duration, Incarnation, Instant, Member, NodeId, NodeSet, Role};

use crate::machine::is_shadow;
use crate::peer::Peer;
use crate::{Membership, change};

/// How long the longest silence is remembered.
const SILENCE_MEMORY: Duration = Duration::from_secs(60);

/// The longest delay of about the last minute.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Delay {
    longest: Duration,
    at: Instant,
}

impl Delay {
    pub(crate) fn note(&mut self, delay: Duration, now: Instant) {
        if delay >= self.longest(now) {
            *self = Self { longest: delay, at: now };
        }
    }

    pub(crate) fn longest(&self, now: Instant) -> Duration {
        if now.since(self.at) < SILENCE_MEMORY { self.longest } else { Duration::ZERO }
    }
}

impl Membership {
    /// How long the member `node` may be silent before it counts as unheard. Once another member
    /// confirms its silence, the bound is the usual one for every member: two members with
    /// different bounds would take a mute node for a broken link, and the wrong one would leave.
    fn patience_with(&self, node: NodeId, peer: &Peer) -> Duration {
        let confirms = |other: NodeId| {
            let peer = self.peers.get(&other).filter(|peer| self.recently(peer.heard));
            peer.and_then(|peer| peer.hears).is_some_and(|heard| !heard.contains(node))
        };
        let others = self.view.live().without(node).without(self.me.node);
        let confirmed = others.into_iter().any(confirms);
        if confirmed && !mutant!("membership_silence_unconfirmed") {
            return self.config.suspect_after;
        }
        self.patience(peer)
    }

    /// How long `peer` may be silent, by this node's own observations.
    fn patience(&self, peer: &Peer) -> Duration {
        let usual = peer.silence.longest(self.now) + self.lateness.longest(self.now);
        (self.config.suspect_after + usual).min(self.config.suspect_after_max)
    }

    /// Whether patience follows observations.
    fn adapts(&self) -> bool {
        self.config.suspect_after_max > self.config.suspect_after
    }

    /// The incarnation that the view names was heard.
    pub(crate) fn heard_from(&mut self, node: NodeId) {
        let (now, adapts) = (self.now, self.adapts());
        let usual = self.config.heartbeat.max(self.config.quiet_max()) * 2;
        let peer = self.peers.entry(node).or_default();
        let silence = now.since(peer.heard);
        if adapts && silence > usual {
            peer.silence.note(silence, now);
        }
        peer.heard = now;
        peer.silent = false;
        peer.lost = false;
    }

    /// Notes which live members others are about to be told are unheard.
    pub(crate) fn note_silent(&mut self, heard: NodeSet) {
        for node in self.view.live().difference(heard) {
            if let Some(peer) = self.peers.get_mut(&node) {
                peer.silent |= self.now.since(peer.heard) >= self.config.suspect_after;
            }
        }
    }

    /// A node that comes late, because its process was stopped or had no processor, has heard no
    /// member meanwhile, which says nothing about the others: that time doesn't count as their
    /// silence, and each has at least a heartbeat's time to be heard. Otherwise the node would
    /// suspect every member whose messages happen to be behind others in its queues.
    pub(crate) fn excuse_silence_since(&mut self, due: Instant) {
        let (now, heartbeat) = (self.now, self.config.heartbeat);
        let late = now.since(due);
        if late < heartbeat / 2 || mutant!("membership_silence_while_away") {
            return;
        }
        if self.adapts() {
            self.lateness.note(late, now);
        }
        let mut peers = core::mem::take(&mut self.peers);
        for peer in peers.values_mut() {
            let patience = self.patience(peer);
            // A member that was silent for too long before that still counts as silent.
            if due.since(peer.heard) < patience {
                let excused = now - patience.saturating_sub(heartbeat);
                peer.heard = (peer.heard + late).max(excused).min(now);
            }
        }
        self.peers = peers;
    }

    /// Whether this node hears the live member `node`, which has not said that it leaves.
    pub(crate) fn hears(&self, node: NodeId) -> bool {
        if node == self.me.node {
            return true;
        }
        let Some((peer, member)) = self.peers.get(&node).zip(self.view.member(node)) else {
            return false;
        };
        let restarted = peer.confirmed.0 != 0
            && peer.confirmed != member.incarnation
            && peer.announced > peer.heard;
        let cut = peer.cut_since.is_some_and(|since| {
            self.now.since(since) >= self.config.suspect_after && !mutant!("membership_lane_cut")
        });
        let silence = self.now.since(peer.heard);
        // The shortest patience is checked first: a member that was just heard needs no witnesses.
        let heard = silence < self.config.suspect_after || silence < self.patience_with(node, peer);
        // What was said stands until the member is heard: others may have followed it, and if each took back
        // what it had said because of what the other one had said before, they would tell each other so
        // without end.
        let was_silent = peer.silent && !mutant!("membership_silence_taken_back");
        heard && !was_silent && !peer.lost && !peer.leaving && !restarted && !cut
    }

    /// When the member `node`, heard now, will count as unheard if it stays silent.
    pub(crate) fn unheard_at(&self, node: NodeId) -> Instant {
        let Some(peer) = self.peers.get(&node) else { return Instant::NEVER };
        let silent = peer.heard + self.patience_with(node, peer);
        peer.cut_since.map_or(silent, |since| silent.min(since + self.config.suspect_after))
    }

    /// The live members that this node hears, itself included.
    pub(crate) fn heard(&self) -> NodeSet {
        self.view.live().into_iter().filter(|node| self.hears(*node)).collect()
    }

    /// The nodes outside that this node could let in.
    pub(crate) fn admits(&self) -> NodeSet {
        let members = self.view.members.iter();
        members.map(|member| member.node).filter(|node| self.joining(*node).is_some()).collect()
    }

    /// The live members that seem to have crashed.
    pub fn suspects(&self) -> NodeSet {
        self.view.live().difference(self.heard())
    }

    /// Whether the live member `node` seems to have crashed.
    pub(crate) fn is_suspected(&self, node: NodeId) -> bool {
        !self.hears(node)
    }

    /// The voters that this node takes for alive, itself included.
    pub(crate) fn responsive(&self) -> NodeSet {
        let voters = self.view.members.iter();
        let live = |member: &Member| {
            member.role != Role::Down && (self.hears(member.node) || self.is_leaving(member.node))
        };
        voters
            .filter(|member| live(member) || self.votes_still(member))
            .map(|member| member.node)
            .collect()
    }

    /// Whether a member has said that it leaves. It votes to the end.
    pub(crate) fn is_leaving(&self, node: NodeId) -> bool {
        self.peers.get(&node).is_some_and(|peer| peer.leaving && !peer.lost)
    }

    /// Whether a voter that was expelled still casts that vote while it asks to join.
    pub(crate) fn votes_still(&self, member: &Member) -> bool {
        self.peers.get(&member.node).is_some_and(|peer| {
            peer.votes_as == member.incarnation
                && member.incarnation != Incarnation(0)
                && self.recently(peer.announced)
                && !peer.lost
        })
    }

    pub(crate) fn recently(&self, at: Instant) -> bool {
        self.now.since(at) < self.config.suspect_after.max(self.config.heartbeat * 3)
    }

    /// The members that the live member `node` hears, if it has said so in this life; this node hears `heard`.
    fn heard_by(&self, node: NodeId, heard: NodeSet) -> Option<NodeSet> {
        if node == self.me.node {
            return Some(heard);
        }
        self.peers.get(&node)?.hears
    }

    /// The live members that most of the heard members, this node included, don't hear, and those
    /// that have said that they leave.
    pub(crate) fn crashed(&self) -> NodeSet {
        self.crashed_of(self.heard())
    }

    /// The same, if this node hears `heard`.
    fn crashed_of(&self, heard: NodeSet) -> NodeSet {
        let unheard_by_most = |node: NodeId| {
            let observers = heard.without(node);
            let says_so = |observer: &NodeId| {
                self.heard_by(*observer, heard).is_some_and(|set| !set.contains(node))
            };
            let alone = mutant!("membership_one_observer");
            observers.into_iter().filter(says_so).count() * 2 > observers.len() || alone
        };
        let suspects = self.view.live().difference(heard);
        suspects
            .into_iter()
            .filter(|node| self.peers.get(node).is_some_and(|peer| peer.leaving))
            .chain(suspects.into_iter().filter(|node| unheard_by_most(*node)))
            .collect()
    }

    /// The member that has to leave so that all the others hear each other, if a link between two
    /// of them is broken: the one with most broken links, a shadow before an active member, the
    /// highest id. All members with the same reports choose the same one.
    pub(crate) fn behind_broken_link(&self) -> Option<NodeId> {
        let heard = self.heard();
        let members = self.view.live().difference(self.crashed_of(heard));
        let unheard = |from: NodeId| {
            let hears = self.heard_by(from, heard);
            hears.map_or(NodeSet::EMPTY, |hears| members.difference(hears.with(from)))
        };
        if members.into_iter().all(|node| unheard(node).is_empty()) {
            return None;
        }
        let broken = |node: NodeId| {
            let deaf = members.into_iter().filter(|other| unheard(*other).contains(node));
            deaf.fold(unheard(node), NodeSet::with).len()
        };
        members
            .into_iter()
            .map(|node| (broken(node), is_shadow(&self.view, node), node))
            .filter(|(links, _, node)| *links > 0 && self.can_go(NodeSet::only(*node)))
            .max()
            .map(|(_, _, node)| node)
    }

    /// Notes the time since when the same member has been behind a broken link.
    pub(crate) fn note_broken_link(&mut self) {
        let node = self.behind_broken_link();
        if self.broken_link.map(|(node, _)| node) != node {
            self.broken_link = node.map(|node| (node, self.now));
        }
    }

    /// Whether the cluster can go on without these members: with an active one in each group.
    pub(crate) fn can_go(&self, gone: NodeSet) -> bool {
        change::without(&self.view, gone, &self.config).is_some()
    }

    /// Whether every live member that is heard could let `node` in, and `node` hears each of them.
    /// A node that reached only some of them would hold up all writes, and be expelled again.
    pub(crate) fn is_reached_by_all(&self, node: NodeId) -> bool {
        let Some(peer) = self.peers.get(&node) else { return false };
        let (reaches, strangers) = (peer.reaches, peer.strangers);
        let members = self.heard().without(node).difference(strangers);
        let admitted = |member: NodeId| {
            member == self.me.node
                || self.peers.get(&member).is_some_and(|peer| peer.admits.contains(node))
        };
        mutant!("membership_joins_over_a_broken_link")
            || members.is_subset(reaches) && members.into_iter().all(admitted)
    }
}
