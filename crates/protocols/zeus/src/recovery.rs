//! A new view: everything that is under way goes on among its members.
//!
//! Each node sends what it has under way again, also for coordinators that are gone if it has applied
//! it. What no live node has applied was committed nowhere, and is gone. When all that a node had
//! under way at the beginning of the epoch is applied by all followers, it has *recovered*. When all
//! live nodes have, keys without a live owner belong to their default one, which has everything then.
//! Keys whose owners live don't stop.
//!
//! What a node replays counts as applied there when its own log has it, as that of any follower.
//!
//! A replayed transaction may be read only after that, too: one that went before it and read what it
//! has overwritten may still be on its way to a reader.
//!
//! RECOVERED carries the clock of the sender's lane, and the lanes of a node tell each other theirs. What a
//! transaction has read is written later under a newer version, since the clock goes with a key, from lane to
//! lane and from owner to owner. When its owner is gone only what the transaction has *written* says how far
//! the clock had come, and that may be of another lane's number. So each default owner begins above all that
//! any lane of any member has seen.

use alloc::vec::Vec;
use core::mem;

use quorate_machine::{
    Backoff, Command, Completion, Effects, LaneShared, Outcome, Refusal, Table, mutant,
};
use quorate_types::{Instant, LaneId, MemberNumber, NodeId, NodeSet, Now, View};

use crate::called::Answered;
use crate::commit::followers;
use crate::fields::{Items, Slots};
use crate::follower::{Applied, Replay, Stream};
use crate::lanes::Stage;
use crate::message::{Message, Update};
use crate::meta::Meta;
use crate::state::Zeus;

/// The cell in which a lane tells the others its clock when it has recovered.
const CLOCK_CELL: usize = 3;

/// What has to be finished of earlier epochs.
#[derive(Clone, Hash, Debug)]
pub(crate) struct Recovery {
    /// The last slot of this node's pipeline that was under way.
    own: u64,
    /// Whether this node has recovered.
    is_told: bool,
    /// The nodes that have.
    heard: NodeSet,
    wait: Backoff,
}

impl Recovery {
    /// The nodes that have recovered in this epoch.
    pub(crate) fn heard(&self) -> NodeSet {
        self.heard
    }
}

impl<T: Table<Meta = Meta> + LaneShared, X: Command<Owned = X>> Zeus<T, X> {
    /// A newer view is in force on all lanes.
    pub(crate) fn begin_epoch(&mut self, now: Now, view: &View, effects: &mut impl Effects<Self>) {
        let layout = self.layout_of(view).into();
        let before = mem::replace(&mut self.layout, layout);
        self.turn.begin_epoch(self.layout.live.without(self.layout.node));
        self.log.parts.begin_epoch();
        let was_shadow = before.is_live() && !before.is_active();
        if !self.layout.is_active() {
            self.refuse_all(effects);
        }
        if !self.layout.is_live() {
            self.answer_unknown(effects);
            self.wake_at = Instant::NEVER;
            return;
        }
        if was_shadow && self.layout.is_active() {
            effects.probe("zeus: a replica has joined");
        }
        self.take_restored(view, effects);
        self.begin_revival(&before);
        self.send_parts(effects);
        let wait = self.wait(now);
        let own = self.pipeline.last();
        self.recovery = Some(Recovery { own, is_told: false, heard: NodeSet::EMPTY, wait });
        self.floor.abort_round();
        self.lanes.watched.clear();
        self.renew_readers();
        self.forget_agreements();
        self.renew_streams(now);
        self.begin_copy(now, &before, effects);
        self.renew_slots(now, effects);
        self.renew_rounds(now, effects);
        self.renew_requests(now, effects);
        self.renew_questions(now, effects);
        self.renew_looks();
        self.changed.extend(self.transactions.waited_for());
    }

    /// What is under way may have happened.
    pub(crate) fn answer_unknown(&mut self, effects: &mut impl Effects<Self>) {
        let answers: Vec<_> = self.pipeline.take_answers().collect();
        for answer in answers {
            self.answer(answer.client, Completion::new(Outcome::Unknown), effects);
        }
    }

    /// Begins to replay what the coordinators that are gone have left, and all waits anew.
    fn renew_streams(&mut self, now: Now) {
        let layout = self.layout.clone();
        let wait = self.wait(now);
        self.streams.values_mut().for_each(Stream::ask_again);
        if !mutant!("zeus_wait_outlives_epoch") {
            let applied = self.streams.values_mut().flat_map(|stream| stream.applied.values_mut());
            applied.for_each(|applied| applied.wait = wait.clone());
        }
        let gone = self.streams.iter_mut().filter(|(from, _)| layout.node_of(**from).is_none());
        for (_, stream) in gone {
            stream.forget_held();
            for applied in stream.applied.values_mut() {
                let items = Items::trusted(&applied.items);
                // This node, too, may have to apply it to keys that it has come to keep.
                let followers = followers(&layout, items, &applied.call);
                applied.replay = Some(Replay { followers, ..Replay::default() });
            }
        }
    }

    /// The coordinators that are gone.
    fn gone(&self) -> Vec<MemberNumber> {
        let members = self.streams.keys().copied();
        members.filter(|member| self.layout.node_of(*member).is_none()).collect()
    }

    /// Sends the replays whose turn it is: all that they depend on is applied everywhere. Otherwise a
    /// node could be left with a transaction and without what it has read. What a floor has passed was known to
    /// be committed before, and others may have deleted and forgotten its keys since: to a node that learns
    /// them it would bring back what nobody else has.
    fn send_replays(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        let floors = self.known_floors();
        for coordinator in self.gone() {
            while let Some(slot) = self.streams[&coordinator].next_replay() {
                let stream = &self.streams[&coordinator];
                let Applied { version, items, .. } =
                    stream.applied.get(slot).expect("it was found");
                let is_passed = self.is_passed(&floors, *version, Items::trusted(items));
                if slot > stream.committed && is_passed && !mutant!("zeus_forgotten_replayed") {
                    self.on_committed(now, coordinator, slot, effects);
                    continue;
                }
                let wait = self.wait(now);
                let stream = self.streams.get_mut(&coordinator).expect("it was found");
                let applied = stream.applied.get_mut(slot).expect("it was found");
                applied.wait = wait;
                let replay = applied.replay.as_mut().expect("it was found");
                replay.is_sent = true;
                let followers = replay.followers;
                effects.probe("zeus: a transaction is replayed");
                self.counters.replayed += 1;
                self.send_replay(coordinator, slot, followers, effects);
                self.complete_replay(now, coordinator, slot, effects);
            }
        }
    }

    /// Notes that this node has applied all that it replays, once that is so.
    fn complete_replay(
        &mut self,
        now: Now,
        coordinator: MemberNumber,
        slot: u64,
        effects: &mut impl Effects<Self>,
    ) {
        if self.complete(now, coordinator, slot, effects) {
            self.log.note_replayed();
            self.on_replay_applied(self.layout.node, coordinator, slot, effects);
        }
    }

    fn send_replay(
        &self,
        coordinator: MemberNumber,
        slot: u64,
        to: NodeSet,
        effects: &mut impl Effects<Self>,
    ) {
        let stream = &self.streams[&coordinator];
        let applied = stream.applied.get(slot).expect("it was found");
        let items = Items::trusted(&applied.items);
        let depends_on = Slots::NONE;
        let (committed, version) = (stream.committed.min(slot - 1), applied.version);
        let call = Answered::trusted(&applied.call);
        let update = Update { coordinator, slot, committed, version, depends_on, items, call };
        effects.broadcast(to.without(self.layout.node), &Message::Update(update));
    }

    /// A follower has applied what this node replays.
    pub(crate) fn on_replay_applied(
        &mut self,
        from: NodeId,
        coordinator: MemberNumber,
        slot: u64,
        effects: &mut impl Effects<Self>,
    ) {
        let stream = self.streams.get_mut(&coordinator);
        let applied = stream.and_then(|stream| stream.applied.get_mut(slot));
        let Some(replay) = applied.and_then(|applied| applied.replay.as_mut()) else {
            return effects.ignored("zeus: R-ACK of no replay");
        };
        replay.applied.insert(from);
        if mutant!("zeus_replay_validated_early") && replay.is_done() {
            let applied =
                self.streams[&coordinator].applied.get(slot).expect("it was found").clone();
            self.validate(&applied, effects);
        }
    }

    /// Whether this node, and then whether every node, has recovered.
    pub(crate) fn check_recovered(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        if self.recovery.is_some() && self.knows_floors() {
            self.send_replays(now, effects);
        }
        let Some(recovery) = &self.recovery else { return };
        let gone = self.gone();
        let replays = gone.iter().all(|from| self.streams[from].is_replayed());
        let replays = replays && self.log.has_replayed(&gone) && !self.is_reviving();
        if !recovery.is_told && (self.pipeline.committed < recovery.own || !replays) {
            return;
        }
        let (node, live) = (self.layout.node, self.layout.live);
        let wait = self.wait(now);
        let recovery = self.recovery.as_mut().expect("it is under way");
        if !mem::replace(&mut recovery.is_told, true) {
            recovery.heard.insert(node);
            recovery.wait = wait;
            let (clock, promised) = (self.clock, self.floor.promised);
            let message = Message::Recovered { clock, promised, asks: false };
            effects.broadcast(live.without(node), &message);
        }
        if !live.is_subset(recovery.heard) && !mutant!("zeus_barrier_of_one") {
            return;
        }
        effects.probe("zeus: all nodes have recovered");
        self.recovery = None;
        self.readers.forget_former();
        for coordinator in self.gone() {
            let stream = self.streams.remove(&coordinator).expect("it was found");
            for (slot, applied) in stream.applied.iter() {
                self.complete_call((coordinator, slot), &applied.call);
                self.validate(applied, effects);
            }
        }
        if self.config.lanes > 1 {
            self.table.set_cell(CLOCK_CELL, self.clock);
        }
        self.reach(now, Stage::Recovered, self.layout.epoch, effects);
    }

    /// All lanes of this node have recovered.
    pub(crate) fn end_recovery(&mut self, effects: &mut impl Effects<Self>) {
        self.lanes.has_recovered = true;
        if !mutant!("zeus_recovered_clock_of_one_lane") {
            for lane in (0..self.config.lanes).map(LaneId) {
                self.observe(self.table.cell_of(lane, CLOCK_CELL));
            }
        }
        self.end_revival(effects);
        self.append_promised(effects);
        self.changed.extend(self.transactions.waited_for());
        self.changed.extend(self.rounds.keys_that(|_, _| true));
    }

    pub(crate) fn on_recovered(
        &mut self,
        from: NodeId,
        clock: u64,
        promised: u64,
        asks: bool,
        effects: &mut impl Effects<Self>,
    ) {
        self.observe(clock);
        if !mutant!("zeus_promise_not_told") {
            self.floor.promised = self.floor.promised.max(promised);
        }
        let is_told = self.recovery.as_ref().is_none_or(|recovery| recovery.is_told);
        if let Some(recovery) = &mut self.recovery {
            recovery.heard.insert(from);
        }
        self.note_recovered(from);
        if asks && is_told {
            let (clock, promised) = (self.clock, self.floor.promised);
            effects.send(from, &Message::Recovered { clock, promised, asks: false });
        }
    }

    /// Sends again what is due of a recovery.
    pub(crate) fn repeat_recovery(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        let Some(recovery) = &mut self.recovery else { return };
        if recovery.wait.deadline() <= now.monotonic {
            self.config.wait_longer(&mut recovery.wait, now);
            let missing = self.layout.live.difference(recovery.heard).without(self.layout.node);
            if recovery.is_told {
                let (clock, promised) = (self.clock, self.floor.promised);
                effects.broadcast(missing, &Message::Recovered { clock, promised, asks: true });
            }
        }
        for coordinator in self.gone() {
            let stream = self.streams.get_mut(&coordinator).expect("it was found");
            let mut due = Vec::new();
            for (slot, applied) in stream.applied.iter_mut() {
                let Some(replay) = applied.replay.as_ref().filter(|replay| replay.is_sent) else {
                    continue;
                };
                if applied.wait.deadline() <= now.monotonic && !replay.is_done() {
                    let missing = replay.followers.difference(replay.applied);
                    self.config.wait_longer(&mut applied.wait, now);
                    due.push((slot, missing));
                }
            }
            for (slot, missing) in due {
                self.send_replay(coordinator, slot, missing, effects);
                if missing.contains(self.layout.node) {
                    self.complete_replay(now, coordinator, slot, effects);
                }
            }
        }
    }

    pub(crate) fn next_recovery(&self) -> Instant {
        self.recovery.as_ref().map_or(Instant::NEVER, |recovery| recovery.wait.deadline())
    }

    /// Why clients of this node are refused, if they are.
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        let will_serve = self.lanes.will_serve(self.config.node, self.life);
        (!will_serve.unwrap_or(self.layout.is_active())).then_some(Refusal::NotServing)
    }
}
