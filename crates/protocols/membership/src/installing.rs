//! Following the configuration log: its messages, and the installation of the views that it has chosen.

use alloc::sync::Arc;
use alloc::vec::Vec;

use quorate_machine::Effects;
use quorate_paxos::{self as paxos, Log, Outbox, SlotNumber, Voter};
use quorate_types::{Incarnation, NodeId, NodeSet, View};

use crate::machine::{Change, Pending, STREAM, voters};
use crate::{Body, Membership, MembershipError, Store, ViewEntry};

/// Chosen views that a voter keeps for the campaigns of laggards, which jump over older ones.
const VIEWS_KEPT: u64 = 16;

impl Membership {
    pub(crate) fn on_log(
        &mut self,
        from: Voter,
        cluster: Incarnation,
        message: paxos::Message<ViewEntry>,
        effects: &mut impl Effects<Self>,
    ) {
        if message.stream != STREAM {
            return effects.ignored("unknown stream");
        }
        if !are_in_their_slots(cluster, &message.body) {
            return effects.refused("membership: a view of another cluster or slot");
        }
        if self.has_left() {
            return match cluster == self.left {
                true => self.on_recovered(message.body, effects),
                false => effects.ignored("the cluster that this node has left"),
            };
        }
        // A view includes the changes of all views before it.
        if let paxos::Body::Learn { entry, .. } = message.body {
            return self.on_chosen(from, entry, effects);
        }
        let Self { log, out, view, promises, now, .. } = self;
        let Some(log) = log else { return effects.ignored("log message outside the view") };
        let gate = |_: SlotNumber, next: &ViewEntry| promises.withhold(view, &next.0);
        if let Err(malformed) = log.on_message(*now, from, message.body, &gate, out) {
            return effects.refused(malformed.0);
        }
        self.flush(effects);
    }

    fn on_chosen(&mut self, from: Voter, entry: ViewEntry, effects: &mut impl Effects<Self>) {
        if self.log.is_none() {
            return self.on_chosen_outside(from, entry, effects);
        }
        if entry.0.epoch.0 > self.view.epoch.0 + 1 {
            effects.probe("membership: a lagging node jumps over views");
        }
        let Self { log, out, .. } = self;
        if let Some(log) = log
            && let Err(malformed) = log.jump(SlotNumber(entry.0.epoch.0), entry, out)
        {
            return effects.refused(malformed.0);
        }
        self.flush(effects);
    }

    /// Sends the log's messages and installs its chosen views.
    pub(crate) fn flush(&mut self, effects: &mut impl Effects<Self>) {
        let messages = core::mem::take(&mut self.out.messages);
        for (to, message) in messages {
            self.send(to, Body::Log(message), effects);
        }
        let chosen = core::mem::take(&mut self.out.chosen);
        for (_, _, entry) in chosen {
            self.install(entry.0, effects);
        }
    }

    /// Puts a chosen view in force.
    pub(crate) fn install(&mut self, view: Arc<View>, effects: &mut impl Effects<Self>) {
        assert!(view.epoch > self.view.epoch, "epochs only grow");
        let jumped = view.epoch.0 > self.view.epoch.0 + 1;
        if jumped || voters(&view) != voters(&self.view) {
            self.promises.voters_changed(self.now + self.config.promise());
        }
        let slot = SlotNumber(view.epoch.0);
        let names_me =
            view.member(self.me.node).is_some_and(|own| own.incarnation == self.me.incarnation);
        let was_admitted = names_me || self.is_live();
        if names_me && self.voter != self.me {
            // Admitted: the former life has cast its last vote.
            self.voter = self.me;
            self.log = None;
        }
        if names_me {
            (self.store, self.lives) = (Store::None, Vec::new());
            self.left = Incarnation(0);
        }
        if let Some(life) = self.earlier_life_in(&view) {
            // A life was admitted that ended before it knew. It has promised nothing.
            effects.probe("membership: a life was admitted that ended before it knew");
            self.voter = Voter { node: self.me.node, incarnation: life };
            self.log = None;
            let later = self.lives.iter().skip_while(|other| **other != life).skip(1);
            self.lives = later.copied().collect();
        }
        let mut log = self.log.take().unwrap_or_else(|| self.log_of(&view));
        log.set_voters(slot.next(), Some(slot.next()), voters(&view));
        log.forget_before(SlotNumber(slot.0.saturating_sub(VIEWS_KEPT)));
        self.log = Some(log);
        for member in &view.members {
            let is_new = self
                .view
                .member(member.node)
                .is_none_or(|before| before.incarnation != member.incarnation);
            if member.node != self.me.node {
                let peer = self.peers.entry(member.node).or_default();
                peer.is_complete = false;
                if is_new {
                    // A process that held the id before has to prove itself again.
                    if peer.challenged != member.incarnation {
                        (peer.challenged, peer.nonce, peer.owed) = (member.incarnation, 0, 0);
                    }
                    (peer.confirmed, peer.is_member) = (member.incarnation, false);
                    peer.heard = self.now;
                    peer.silent = false;
                    peer.lost = false;
                    peer.caught_up = false;
                    peer.leaving = false;
                    (peer.hears, peer.admits) = (None, NodeSet::EMPTY);
                }
            }
        }
        self.promises.enter(&view);
        self.view = view;
        self.vote = None;
        self.founding.withdraw();
        self.lease.enter_epoch();
        self.wish_since = None;
        self.stuck_since = None;
        if self.is_live() {
            // `known` may be a view of a cluster that has ended.
            self.known = self.nothing.clone();
            // A lease of the new epoch must not wait for the next heartbeat.
            self.heartbeat_at = self.now;
        } else if was_admitted {
            self.expel(effects);
        } else if self.view.member(self.voter.node).is_none() {
            // The former life's vote is gone too: the node is an outsider like any other.
            (self.voter, self.log) = (self.me, None);
            self.known = core::mem::take(&mut self.view);
        }
        self.answer_requests(effects);
    }

    /// The log of a voter that knows `view` to be chosen, and has promised nothing.
    pub(crate) fn log_of(&mut self, view: &Arc<View>) -> Log<ViewEntry> {
        let settings = paxos::Settings {
            resend: self.config.heartbeat,
            backoff: self.config.heartbeat / 8,
            ..paxos::Settings::default()
        };
        let (slot, seed) = (SlotNumber(view.epoch.0), self.rng.next_u64());
        let mut log = Log::new(STREAM, self.voter, slot, settings, seed);
        let jumped = log.jump(slot, ViewEntry(view.clone()), &mut Outbox::default());
        jumped.expect("nothing is chosen in an empty log");
        log.set_voters(slot.next(), Some(slot.next()), voters(view));
        log
    }

    /// The earlier life of this node that a view names, if that life ended before it knew the view.
    pub(crate) fn earlier_life_in(&self, view: &View) -> Option<Incarnation> {
        let own = view.member(self.me.node)?.incarnation;
        self.lives.contains(&own).then_some(own)
    }

    pub(crate) fn expel(&mut self, effects: &mut impl Effects<Self>) {
        effects.probe("membership: the node learns that it is expelled");
        self.expelled = true;
        for Pending { tag, change, .. } in core::mem::take(&mut self.pending) {
            // The view by which the node learns that it is out may be the requested one.
            let done = matches!(self.change_for(&change), Ok(None)) && change != Change::CaughtUp;
            let answer = if done { Ok(self.view.epoch) } else { Err(MembershipError::NotAMember) };
            self.answer(tag, answer, effects);
        }
        if let Some(tag) = self.leaving {
            self.answer(tag, Ok(self.view.epoch), effects);
        }
    }

    /// Tells the newest view to a node that lags.
    pub(crate) fn teach(&mut self, to: NodeId, effects: &mut impl Effects<Self>) {
        let slot = SlotNumber(self.view.epoch.0);
        let body = paxos::Body::Learn { slot, entry: ViewEntry(self.view.clone()) };
        self.send(to, Body::Log(paxos::Message { stream: STREAM, body }), effects);
    }
}

/// Whether every view that a message of a cluster's log carries is one of that cluster and has its
/// epoch's slot, as every proposed view has.
fn are_in_their_slots(cluster: Incarnation, body: &paxos::Body<ViewEntry>) -> bool {
    let is_in_slot = |slot: &SlotNumber, entry: &ViewEntry| {
        let view = &entry.0;
        view.cluster == cluster && view.epoch.0 == slot.0 && *slot <= paxos::SLOT_MAX
    };
    match body {
        paxos::Body::Accept { slot, entry, .. } | paxos::Body::Learn { slot, entry } => {
            is_in_slot(slot, entry)
        }
        paxos::Body::Promise { accepted, .. } => {
            accepted.iter().all(|(slot, _, entry)| is_in_slot(slot, entry))
        }
        _ => true,
    }
}
