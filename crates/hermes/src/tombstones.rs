//! Collecting tombstones (pitfall H8).
//!
//! A deleted key keeps its record, since a late message of an earlier update would otherwise find
//! nothing newer and bring the old value back. The record may go once no such message can be
//! *acted on*: that is what the **floor** is for. An absent key counts as Valid at version
//! `floor`: an INV at or below it is not adopted, and whoever gives a value to a key without one
//! (absent, or a tombstone that others may have collected) takes a version above it.
//!
//! Such an INV is mostly a late duplicate. But it can also be a leftover: a read-modify-write that
//! its coordinator gave up for a newer version, and that some replica still holds and replays after
//! those who held the newer version died. Acknowledging it would let it commit everywhere but here.
//! So it is answered with a tombstone that outranks it, at the floor and by nobody
//! (`message::NOBODY`), which spreads like any update. Nothing that a client was told of is lost: a
//! write that was pending when the key was forgotten was concurrent with the delete and takes
//! effect before it; a read-modify-write that is still pending at its coordinator can only have
//! been forgotten because it was a delete itself, and done.
//!
//! The replicas raise the floor together, in rounds led by the smallest active replica:
//! 1. `FLOOR_PREPARE(V)`: from now on (`next_floor` is V, `floor` is not yet) updates of keys
//!    without a value wait until the round is over, because replicas that prepared and replicas
//!    that did not would disagree on what an update of an absent key outranks.
//! 2. `FLOOR_READY`: everything that this replica had pending at the prepare is finished, and no
//!    update of a dead coordinator is left here (the sweep is over). So when all are ready, every
//!    update at or below V is at every live replica, and whatever message of it still travels is a
//!    duplicate.
//! 3. `FLOOR_COMMIT(V)`: `floor := V`, and Valid tombstones up to V are removed.
//!
//! From then on an update of an absent key has a version above V. Tombstones made later at or
//! below V (of keys whose versions were lower) may go as soon as they are Valid: every live replica
//! has acknowledged them, whatever was smaller is over, and a concurrent larger write that is
//! not here yet is treated as a leftover.
//!
//! `next_floor` never falls, and nobody commits V before all live replicas have prepared it; so a
//! replica whose floor is V knows that no other will write an absent key at or below V, even if a
//! view change cuts the round short: one that prepared and missed the commit still waits. Every
//! epoch begins with a round, which closes what the previous one left open. Messages of older epochs
//! are dropped by the epoch rule.
//!
//! A shadow takes part, but keeps floor 0 while it copies: absent may mean "not copied yet". At the
//! end it takes over its donor's floor, or what was committed since.

use alloc::vec::Vec;

use quorate_machine::{Effects, Operation, Record, Table, mutant};
use quorate_types::{Instant, NodeId, NodeSet, Now};

use crate::message::Message;
use crate::{Hermes, Meta, State};

/// Records that the collector looks at in one tick.
const COLLECT_RECORDS: usize = 1_000;

/// The floor and the round that may be raising it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Floors {
    /// Absent keys are Valid at this version.
    pub(crate) floor: u64,
    /// Updates of absent keys take versions above this one.
    pub(crate) next_floor: u64,
    /// While copying as a shadow: the highest floor committed by the others.
    shadow: Option<u64>,
    /// The highest version of a tombstone made here since the last round.
    highest: u64,
    /// Tombstones made here since the last round, or left over by it.
    made: usize,
    lead: Option<Lead>,
    follow: Option<Follow>,
    /// The last round that was led to its end, to answer who missed that.
    finished: Option<(u64, u64)>,
    /// The last round that was begun or heard of in this epoch. Rounds count up, so that a late
    /// duplicate of an earlier one is known.
    last: u64,
    /// When a round is due, or the present one needs a push.
    check_at: Instant,
    /// Whether this epoch has had no round yet.
    first: bool,
    /// Where the removal of tombstones goes on.
    collecting: Option<u64>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Lead {
    round: u64,
    version: u64,
    ready: NodeSet,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Follow {
    round: u64,
    leader: NodeId,
    /// Updates up to this number must finish.
    drain: u64,
}

impl Default for Floors {
    fn default() -> Self {
        Self {
            floor: 0,
            next_floor: 0,
            shadow: None,
            highest: 0,
            made: 0,
            lead: None,
            follow: None,
            finished: None,
            last: 0,
            check_at: Instant::NEVER,
            first: false,
            collecting: None,
        }
    }
}

impl Floors {
    /// Whether replicas may disagree on the version of an absent key.
    pub(crate) fn is_open(&self) -> bool {
        self.next_floor != self.floor
    }

    pub(crate) fn note_tombstone(&mut self, deleted: bool, version: u64) {
        if deleted {
            self.made += 1;
            self.highest = self.highest.max(version);
        }
    }

    pub(crate) fn raise_next(&mut self, version: u64) {
        self.next_floor = self.next_floor.max(version);
    }

    /// A new epoch: its leader begins with a round.
    pub(crate) fn abort_round(&mut self, now: Instant) {
        self.lead = None;
        self.follow = None;
        self.finished = None;
        self.last = 0;
        self.first = true;
        self.check_at = now;
    }

    /// This node is out.
    pub(crate) fn abandon_round(&mut self) {
        self.abort_round(Instant::NEVER);
        self.collecting = None;
    }

    pub(crate) fn begin_shadow(&mut self) {
        self.shadow = Some(0);
        self.floor = 0;
    }

    pub(crate) fn finish_shadow(&mut self, donor_floor: u64) {
        if let Some(committed) = self.shadow.take() {
            self.floor = donor_floor.max(committed);
            self.next_floor = self.next_floor.max(self.floor);
        }
    }

    /// No shadow (any more) in this view.
    pub(crate) fn open_shadow(&mut self) {
        self.finish_shadow(0);
    }
}

impl<T: Table<Meta = Meta>, O: Operation<Owned = O>> Hermes<T, O> {
    /// When a round is due, or needs a push. Too many tombstones make it due at once.
    pub(crate) fn floor_deadline(&self) -> Instant {
        let many = self.floors.made > self.config.tombstones_max;
        if many && self.floors.lead.is_none() && self.leads() {
            return Instant::ZERO;
        }
        self.floors.check_at
    }

    /// Whether this replica leads rounds.
    fn leads(&self) -> bool {
        self.live && self.active.first() == Some(self.config.node)
    }

    pub(crate) fn on_floor_timeout(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        let mlt = self.config.message_loss_timeout;
        if self.floors.collecting.is_some() {
            self.collect_some();
        }
        if let Some(lead) = &self.floors.lead {
            // Whoever has not answered may have missed the question.
            let missing = self.peers.difference(lead.ready);
            let message = Message::FloorPrepare { round: lead.round, version: lead.version };
            effects.broadcast(missing, &message);
        }
        if self.floors.follow.is_some() {
            self.clear_doubts(now, effects);
        }
        self.try_ready(effects);
        let wanted = self.floors.first
            || self.floors.is_open()
            || self.floors.made > self.config.tombstones_max
            || self.floors.highest > self.floors.floor;
        if self.leads() && self.floors.lead.is_none() && wanted {
            let version = self.floors.next_floor.max(self.floors.highest);
            self.begin_round(version, effects);
        }
        let busy = self.floors.lead.is_some() || self.floors.follow.is_some();
        self.floors.check_at = if self.floors.collecting.is_some() {
            now.monotonic + mlt / 10
        } else if busy {
            now.monotonic + mlt
        } else if self.leads() {
            now.monotonic + self.config.collect_every
        } else {
            Instant::NEVER
        };
    }

    fn begin_round(&mut self, version: u64, effects: &mut impl Effects<Self>) {
        effects.probe("hermes: floor round begins");
        let round = self.floors.last + 1;
        self.floors.first = false;
        self.floors.lead = Some(Lead { round, version, ready: NodeSet::EMPTY });
        effects.broadcast(self.peers, &Message::FloorPrepare { round, version });
        self.prepare_floor(self.config.node, round, version, effects);
    }

    pub(crate) fn on_floor_prepare(
        &mut self,
        now: Now,
        from: NodeId,
        round: u64,
        version: u64,
        effects: &mut impl Effects<Self>,
    ) {
        if round < self.floors.last {
            return effects.ignored("hermes: FLOOR_PREPARE of an earlier round");
        }
        if round > self.floors.last {
            self.prepare_floor(from, round, version, effects);
        }
        self.try_ready(effects);
        if self.floors.follow.is_some() {
            self.floors.check_at = now.monotonic + self.config.message_loss_timeout;
        }
    }

    fn prepare_floor(
        &mut self,
        leader: NodeId,
        round: u64,
        version: u64,
        effects: &mut impl Effects<Self>,
    ) {
        self.floors.raise_next(version);
        self.floors.last = round;
        self.floors.follow = Some(Follow { round, leader, drain: self.next_number });
        self.try_ready(effects);
    }

    /// Says that everything at or below the prepared floor is finished here, once it is.
    fn try_ready(&mut self, effects: &mut impl Effects<Self>) {
        let Some(follow) = &mut self.floors.follow else { return };
        if !self.sweep.is_over() {
            // What the sweep replays must finish, too.
            follow.drain = self.next_number;
            return;
        }
        let drained = self.ops.iter().all(|(_, op)| op.number > follow.drain);
        let drain = follow.drain;
        if !drained || self.doubts_before(drain) {
            return;
        }
        let Some(follow) = &self.floors.follow else { return };
        let (leader, round) = (follow.leader, follow.round);
        if leader == self.config.node {
            self.on_floor_ready(leader, round, self.floors.next_floor, effects);
        } else {
            self.send_ready(leader, round, effects);
        }
    }

    fn send_ready(&mut self, to: NodeId, round: u64, effects: &mut impl Effects<Self>) {
        let next_floor = self.floors.next_floor;
        effects.send(to, &Message::FloorReady { round, next_floor });
    }

    pub(crate) fn on_floor_ready(
        &mut self,
        from: NodeId,
        round: u64,
        next_floor: u64,
        effects: &mut impl Effects<Self>,
    ) {
        if let Some((finished, version)) = self.floors.finished
            && finished == round
        {
            return effects.send(from, &Message::FloorCommit { round, version });
        }
        let Some(lead) = self.floors.lead.as_mut().filter(|lead| lead.round == round) else {
            return effects.ignored("hermes: FLOOR_READY of another round");
        };
        if next_floor > lead.version {
            // A round of an earlier epoch had prepared more.
            effects.probe("hermes: floor round starts over");
            return self.begin_round(next_floor, effects);
        }
        lead.ready.insert(from);
        if self.peers.with(self.config.node).is_subset(lead.ready) {
            let version = lead.version;
            self.floors.lead = None;
            self.floors.finished = Some((round, version));
            effects.broadcast(self.peers, &Message::FloorCommit { round, version });
            self.commit_floor(version, effects);
        }
    }

    pub(crate) fn on_floor_commit(
        &mut self,
        now: Now,
        round: u64,
        version: u64,
        effects: &mut impl Effects<Self>,
    ) {
        if self.floors.follow.as_ref().is_none_or(|follow| follow.round != round) {
            return effects.ignored("hermes: FLOOR_COMMIT of another round");
        }
        self.commit_floor(version, effects);
        self.floors.check_at = now.monotonic;
    }

    fn commit_floor(&mut self, version: u64, effects: &mut impl Effects<Self>) {
        self.floors.follow = None;
        debug_assert!(version <= self.floors.next_floor, "a floor is prepared before it is raised");
        if let Some(committed) = &mut self.floors.shadow {
            *committed = version.max(*committed);
            return;
        }
        self.floors.floor = self.floors.floor.max(version);
        if self.floors.made > 0 {
            effects.probe("hermes: tombstones collected");
            self.floors.collecting = Some(0);
        }
        self.floors.made = 0;
        // Read-modify-writes of absent keys were held back.
        self.check_all_queues(Instant::ZERO);
    }

    fn collect_some(&mut self) {
        let Some(cursor) = self.floors.collecting else { return };
        let mut handles = Vec::new();
        let next = self.table.scan(cursor, COLLECT_RECORDS, &mut |handle| handles.push(handle));
        for handle in handles {
            let record = self.table.lock(handle);
            let meta = record.meta();
            let absent = record.content().is_none() && !meta.is_blank();
            let dead =
                meta.state == State::Valid && absent && meta.timestamp.version <= self.floors.floor;
            drop(record);
            if dead && !self.queues.contains_key(&handle) {
                self.counters.tombstones_collected += 1;
                self.forget(handle);
            } else if absent {
                // For a later round.
                self.floors.made += 1;
            }
        }
        self.floors.collecting = (next != 0).then_some(next);
    }

    /// Removes a record and whatever else is known by its handle.
    pub(crate) fn forget(&mut self, handle: T::Handle) {
        debug_assert!(!self.queues.contains_key(&handle), "a key that is waited for stays");
        debug_assert!(!self.tentative.contains_key(&handle), "a call that is tentative stays");
        self.ack_sets.remove(&handle);
        self.table.remove(handle);
    }

    /// A mutant's shortcut: the record of a deleted key goes as soon as the delete is done.
    pub(crate) fn drop_tombstone_early(&mut self, handle: T::Handle) {
        if mutant!("hermes_tombstone_dropped_early") {
            let record = self.table.lock(handle);
            let dead = record.content().is_none() && record.meta().state == State::Valid;
            drop(record);
            let named = self.ops.iter().any(|(_, op)| op.handle == handle);
            if dead && !named && !self.queues.contains_key(&handle) {
                self.forget(handle);
            }
        }
    }
}
