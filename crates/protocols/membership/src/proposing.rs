//! The next view: which one this node wants, and how it gets the view chosen.

use alloc::sync::Arc;

use quorate_machine::{Effects, mutant};
use quorate_paxos::{SlotNumber, Voter};
use quorate_types::{Incarnation, Instant, Member, NodeId, NodeSet, Role, View};

use crate::lease::dropped;
use crate::machine::{Change, is_shadow};
use crate::{MemberConfig, Membership, MembershipError, ViewEntry, change};

impl Membership {
    /// Proposes the view that this node wants next, if any, when it is its turn; completes what
    /// another proposer left behind.
    pub(crate) fn propose(&mut self, effects: &mut impl Effects<Self>) {
        self.note_broken_link();
        self.note_revivable();
        self.wake_at = self.next_suspicion();
        if self.leaving.is_some() {
            // A leaving node votes to the end, but proposes nothing.
            return;
        }
        if !self.responsive().is_majority_of(self.view.voters()) {
            // No view can be chosen, and asking would only disturb those that can choose one.
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
        let Some(next) = self.wish() else {
            self.wish_since = None;
            // Promises take a round trip; leases lapse meanwhile.
            if !leading && !self.suspects().is_empty() && self.rank() == 0 {
                self.campaign(effects);
            }
            return;
        };
        let since = *self.wish_since.get_or_insert(self.now);
        let turn = since + self.stagger() * self.rank();
        if self.now < turn {
            self.wake_at = self.wake_at.min(turn);
            return;
        }
        if !leading {
            self.campaign(effects);
        }
        self.propose_view(next, effects);
    }

    pub(crate) fn propose_view(&mut self, next: View, effects: &mut impl Effects<Self>) {
        let next = if self.config.moving.is_empty() { next.into_placed() } else { next };
        for node in self.view.departing.difference(next.voters()) {
            effects.probe(match self.view.live().contains(node) {
                true => "membership: a departing member is removed",
                false => "membership: a departing member that is down is removed",
            });
        }
        let replaces = |gone: Voter| next.live().contains(gone.node);
        if dropped(&self.view, &next).any(replaces) {
            effects.probe("membership: a live member's slot goes to its next incarnation");
        }
        let life = |view: &View, node| view.member(node).map(|member| member.incarnation);
        let is_new = |node| life(&self.view, node) != life(&next, node);
        if next.active().into_iter().any(is_new) {
            effects.probe("membership: a view is revived from disks");
        }
        let Self { log, out, view, promises, now, .. } = self;
        let Some(log) = log.as_mut().filter(|log| log.next().0 == next.epoch.0) else { return };
        let gate = |_: SlotNumber, next: &ViewEntry| promises.withhold(view, &next.0);
        // Without a lead yet, the promises under way will call this again.
        if log.propose(*now, ViewEntry(Arc::new(next)), &gate, out).is_ok() {
            self.flush(effects);
        }
    }

    pub(crate) fn campaign(&mut self, effects: &mut impl Effects<Self>) {
        let Self { log, out, view, promises, now, wake_at, .. } = self;
        let Some(log) = log else { return };
        let gate = |_: SlotNumber, next: &ViewEntry| promises.withhold(view, &next.0);
        log.campaign(*now, &gate, out);
        if !log.is_campaigning() {
            *wake_at = log.campaign_not_before().min(*wake_at);
        }
        self.flush(effects);
    }

    /// Another node's proposal waits. If it waits longer than any lease, its proposer has died, and
    /// the entry, which may be chosen, has to be completed.
    pub(crate) fn outbid_when_stuck(&mut self, effects: &mut impl Effects<Self>) {
        let since = *self.stuck_since.get_or_insert(self.now);
        let patience = self.config.promise() * 2 + self.stagger() * (2 * self.rank() + 2);
        if self.now < since + patience {
            self.wake_at = self.wake_at.min(since + patience);
            return;
        }
        effects.probe("membership: a member outbids a silent proposer");
        self.stuck_since = Some(self.now);
        self.wake_at = self.wake_at.min(self.now + patience);
        self.campaign(effects);
    }

    /// How many other nodes come first when all want the same view: active members in order of id,
    /// then shadows.
    fn rank(&self) -> u32 {
        if self.pending.iter().any(|pending| pending.change != Change::CaughtUp) {
            // Only this node knows of an administrator's request.
            return 0;
        }
        let key = |member: &Member| (member.role != Role::Active, member.node);
        let Some(mine) = self.view.member(self.me.node).map(key) else { return 0 };
        let heard = self.heard();
        let before = |member: &&Member| heard.contains(member.node) && key(member) < mine;
        self.view.members.iter().filter(before).count() as u32
    }

    /// When a live member will be suspected, or a suspected one may be removed.
    fn next_suspicion(&self) -> Instant {
        let mut wake = Instant::NEVER;
        for member in self.view.members.iter().filter(|member| member.role != Role::Down) {
            if member.node == self.me.node {
                continue;
            }
            let at = if self.is_suspected(member.node) {
                self.promises
                    .free_to_remove(Voter { node: member.node, incarnation: member.incarnation })
            } else {
                self.unheard_at(member.node)
            };
            if at > self.now {
                wake = wake.min(at);
            }
        }
        let patient = self.broken_link.map(|(_, since)| since + self.config.link_patience);
        patient.filter(|until| *until > self.now).map_or(wake, |until| wake.min(until))
    }

    /// The next view that this node wants, if any: first one that is revived from disks, then joins,
    /// then removals of the dead, then of those that were asked to leave and may, then promotions,
    /// then data that has arrived, then the administrator's requests.
    fn wish(&self) -> Option<View> {
        self.wish_to_revive()
            .or_else(|| self.wish_to_replace())
            .or_else(|| self.wish_to_remove())
            .or_else(|| self.wish_to_dismiss())
            .or_else(|| self.wish_to_promote())
            .or_else(|| self.wish_to_place())
            .or_else(|| {
                let mut changes = self.pending.iter();
                changes.find_map(|pending| self.change_for(&pending.change).ok().flatten())
            })
    }

    /// A node's next incarnation takes its slot. Its predecessor is dead, and removing that one
    /// first would gain nothing.
    fn wish_to_replace(&self) -> Option<View> {
        self.view.members.iter().find_map(|member| {
            let (incarnation, addresses) = self.joining(member.node)?;
            if self.awaits_its_group(member.node) || !self.is_reached_by_all(member.node) {
                return None;
            }
            change::joined(&self.view, incarnation, addresses)
        })
    }

    /// A member that was asked to leave goes when it has nothing that others lack, unless the others can't
    /// go on without it.
    fn wish_to_dismiss(&self) -> Option<View> {
        if mutant!("membership_departing_forgotten") {
            return None;
        }
        let (me, responsive) = (self.me.node, self.responsive());
        let mut may_go = self
            .view
            .departing
            .into_iter()
            .filter(|node| !change::holds_copies(&self.view, *node, &self.config));
        let without = |node| change::removed(&self.view, node, me, responsive, &self.config);
        may_go.find_map(|node| without(node).ok().flatten())
    }

    /// A shadow removes no member: it may have come before all its connections, and the cluster
    /// needs an active member to go on anyway.
    fn wish_to_remove(&self) -> Option<View> {
        if is_shadow(&self.view, self.me.node) {
            return None;
        }
        let free = |node: &NodeId| {
            let member = self.view.member(*node);
            member.is_some_and(|&Member { node, incarnation, .. }| {
                self.promises.free_to_remove(Voter { node, incarnation }) <= self.now
            })
        };
        // If only another lane of a member is cut off, the member's heartbeats renew its lease
        // until a view without the member is proposed.
        let cut = |node: &NodeId| {
            let peer = self.peers.get(node);
            peer.is_some_and(|peer| peer.cut_since.is_some())
                && !mutant!("membership_cut_lane_renews")
        };
        let crashed = self.crashed().into_iter().filter(|node| free(node) || cut(node));
        let crashed: NodeSet = crashed.filter(|node| !self.may_be_last(*node)).collect();
        if let Some(next) = self.without(crashed) {
            return Some(next);
        }
        // Some members still hear it, and renew its lease until a view without it is proposed.
        let (node, since) = self.broken_link?;
        let patient = self.now < since + self.config.link_patience;
        if node == self.me.node || patient { None } else { self.without(NodeSet::only(node)) }
    }

    /// The view without these members, except for the last active ones of a group.
    fn without(&self, gone: NodeSet) -> Option<View> {
        let mut rest = gone;
        for node in gone {
            if change::without(&self.view, rest, &self.config).is_some() {
                break;
            }
            rest.remove(node);
        }
        if rest.is_empty() { None } else { change::without(&self.view, rest, &self.config) }
    }

    fn wish_to_promote(&self) -> Option<View> {
        let ready = |node| {
            node == self.me.node && self.caught_up
                || !self.is_suspected(node)
                    && self.peers.get(&node).is_some_and(|peer| peer.caught_up)
        };
        let node = self.view.shadows().into_iter().find(|node| ready(*node))?;
        change::promoted(&self.view, node)
    }

    /// Every live member says in this very epoch that it has copied what falls to it. What was said in
    /// an earlier one was about other members.
    fn wish_to_place(&self) -> Option<View> {
        let has_all =
            |node| self.has_copied(node) || mutant!("membership_places_before_all_have_copied");
        let all = self.view.live().into_iter().all(has_all);
        if all { change::placed(&self.view, &self.config) } else { None }
    }

    /// Whether a live member says in this epoch that it has copied what falls to it.
    pub(crate) fn has_copied(&self, node: NodeId) -> bool {
        match node == self.me.node {
            true => self.complete_in == self.view.epoch,
            false => self.peers.get(&node).is_some_and(|peer| peer.is_complete),
        }
    }

    /// The view with one more voter. A node that is added has no process in the view and can't vote, so a cluster of
    /// one would have no majority. It takes in a process that is here in the same step.
    fn with_one_more(&self, config: &MemberConfig) -> Result<Option<View>, MembershipError> {
        let added = change::added(&self.view, config, self.responsive());
        let is_alone = self.view.voters() == NodeSet::only(self.me.node)
            && !mutant!("membership_lone_member_stays_alone");
        let is_here = |(_, told): &(Incarnation, &MemberConfig)| *told == config;
        match added {
            Err(MembershipError::TooFewForOneMore(node)) if is_alone => {
                let newcomer = self.outside(node).filter(is_here);
                let newcomer = newcomer.filter(|_| self.is_reached_by_all(node));
                let next =
                    newcomer.and_then(|(life, told)| change::added_alive(&self.view, life, told));
                next.map_or(Err(MembershipError::NotHereYet(node)), |next| Ok(Some(next)))
            }
            added => added,
        }
    }

    /// The view that a request asks for; `None` if it is in force already.
    pub(crate) fn change_for(&self, change: &Change) -> Result<Option<View>, MembershipError> {
        match change {
            Change::CaughtUp if is_shadow(&self.view, self.me.node) => {
                Ok(change::promoted(&self.view, self.me.node))
            }
            Change::CaughtUp => Ok(None),
            Change::Add(config) => self.with_one_more(config),
            Change::Remove { node, at_once } => {
                let (me, responsive) = (self.me.node, self.responsive());
                let next = if *at_once { change::removed } else { change::departing };
                next(&self.view, *node, me, responsive, &self.config)
            }
            Change::Keep(node) => change::kept(&self.view, *node),
            Change::GiveUp(lost) => self.given_up(*lost),
        }
    }
}
