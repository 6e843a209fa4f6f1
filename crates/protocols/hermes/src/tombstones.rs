//! Collecting tombstones (pitfall H8).
//!
//! A deleted key keeps its record, since a late message of an earlier update would otherwise find
//! nothing newer and bring the old value back. The record may go once no such message can be
//! *acted on*: that is what the **floor** is for. An absent key counts as Valid at version
//! `floor`: an INV at or below it is not adopted. A coordinator that gives a value to a key
//! without one (absent, or a tombstone that others may have collected) takes a version above it.
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
//!    without a value wait until the round has ended, because replicas that prepared and replicas
//!    that did not would disagree on what an update of an absent key outranks.
//! 2. `FLOOR_READY`: everything that this replica had pending at the prepare is finished, and no
//!    call is tentative here whose coordinator is gone. So when all are ready, every update at or
//!    below V is at every live replica, and whatever message of it still travels is a duplicate;
//!    or its coordinator is gone, some live replica does not hold it, and it has not been
//!    acknowledged by all: then nobody has read it or heard of it, and it may end as a leftover.
//! 3. `FLOOR_COMMIT(V)`: `floor := V`, and Valid tombstones up to V are removed (`collector.rs`).
//!
//! From then on an update of an absent key has a version above V. Tombstones made later at or
//! below V (of keys whose versions were lower) may go as soon as they are Valid: every live replica
//! has acknowledged them, all smaller writes have ended, and a concurrent larger write that has
//! not arrived here yet is treated as a leftover.
//!
//! `next_floor` never falls, and nobody commits V before all live replicas have prepared it; so a
//! replica whose floor is V knows that no other will write an absent key at or below V, even if a
//! view change cuts the round short: one that prepared and missed the commit still waits. Every
//! epoch begins with a round, which closes what the previous one left open, and raises the floor no
//! further: where nothing was left open, nobody waits for it. Messages of older epochs are dropped
//! by the epoch rule.
//!
//! A round makes updates of absent keys wait for what is in flight, so there are few: one in
//! [`Config::collect_every`](crate::Config::collect_every), and if tombstones are many, at most
//! [`ROUNDS_MAX`] in that time.
//!
//! A shadow takes part, but keeps floor 0 while it copies: absent may mean "not copied yet". At the
//! end it takes over its donor's floor, or what was committed since.
//!
//! After the loss of all power, absent may mean that the end of this replica's log is lost, and not
//! that of others: where promises do not wait for the log, or where the last batch has rotted. What is
//! below the floor that a log holds is not lost, since everything that had to end before that floor
//! was committed stands before it in the log. But to raise the floor further would take an update that
//! others have kept for a leftover. So the replicas are *in doubt* until each has replayed all that it
//! came back with (`recovery.rs`): until then a round only agrees on the version above which updates
//! of absent keys go on, and FLOOR_COMMIT says that it does not raise the floor. An absent key counts as a
//! tombstone at the floor that nobody has confirmed: who asks for it replays that, and hears of
//! what others have kept.

use quorate_machine::{Command, Effects, Record, Table, mutant};
use quorate_types::{Instant, Lsn, NodeId, NodeSet, Now, Timestamp};

use crate::message::{Message, NOBODY};
use crate::{Hermes, Meta, State};

/// Rounds that may begin in the time in which one is due anyway.
const ROUNDS_MAX: u32 = 100;

/// The floor and the round that may be raising it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Floors {
    /// Absent keys are Valid at this version.
    pub(crate) floor: u64,
    /// Updates of absent keys take versions above this one.
    pub(crate) next_floor: u64,
    /// While copying as a shadow: the highest floor committed by the others.
    shadow: Option<u64>,
    /// The highest version of a tombstone made here.
    highest: u64,
    lead: Option<Lead>,
    follow: Option<Follow>,
    /// The last round that was led to its end, to answer who missed that.
    finished: Option<Finished>,
    /// The last round that was begun or heard of in this epoch. Rounds count up, so that a late
    /// duplicate of an earlier one is known.
    last: u64,
    /// When a round is due, or the present one needs a push.
    check_at: Instant,
    /// When the last round was begun that was led here.
    begun_at: Instant,
    /// Whether this epoch has had no round yet.
    first: bool,
    /// Whether the floor came from a log, this replica's or its donor's, and no round has confirmed it
    /// since: others may have come back with a higher one.
    doubted: bool,
    /// What the last rounds have agreed on that did not raise the floor. New versions of absent keys
    /// are above it.
    agreed: u64,
    /// Whether this replica came back from a log, and may hold what others lack.
    came_back: bool,
    /// Whether it has lived on while others came back from their logs: of each key they may lack the newest
    /// version, or have an older one.
    pub(crate) lived_on: bool,
    /// Whether a key that is absent here may be in the log of another replica.
    in_doubt: bool,
    /// How far the log must be durable for what this replica has prepared.
    prepared_at: Lsn,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Lead {
    round: u64,
    version: u64,
    ready: NodeSet,
    /// Whether nobody has said yet that it may hold what others lack.
    raises: bool,
}

/// How a round has ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Finished {
    pub(crate) round: u64,
    pub(crate) version: u64,
    pub(crate) raises: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Follow {
    round: u64,
    leader: NodeId,
    /// Updates up to this number must finish.
    drain: u64,
    /// Whether all that this replica came back with was being replayed by then, or had been.
    is_swept: bool,
    /// Whether the leader was told that they have.
    told: bool,
}

impl Default for Floors {
    fn default() -> Self {
        Self {
            floor: 0,
            next_floor: 0,
            shadow: None,
            highest: 0,
            lead: None,
            follow: None,
            finished: None,
            last: 0,
            check_at: Instant::NEVER,
            begun_at: Instant::ZERO,
            first: false,
            doubted: false,
            agreed: 0,
            came_back: false,
            lived_on: false,
            in_doubt: false,
            prepared_at: Lsn::START,
        }
    }
}

impl Floors {
    /// Whether replicas may disagree on the version of an absent key.
    pub(crate) fn is_open(&self) -> bool {
        self.next_floor != self.base() || self.doubted
    }

    /// New versions of absent keys are above this one.
    pub(crate) fn base(&self) -> u64 {
        self.floor.max(self.agreed)
    }

    /// Whether a key that is absent here may be in the log of another replica.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.in_doubt
    }

    /// Takes in what a log says.
    pub(crate) fn restore(&mut self, floor: u64, next_floor: u64) {
        if (floor, next_floor) == (0, 0) {
            *self = Self::default();
        }
        self.floor = self.floor.max(floor);
        self.next_floor = self.next_floor.max(next_floor).max(self.floor);
    }

    /// Others may have higher floors, and keys that are absent here; and if this replica `came_back` from a
    /// log, it may hold what others lack.
    pub(crate) fn doubt(&mut self, came_back: bool) {
        self.doubted = !mutant!("hermes_restored_floor_not_doubted");
        self.came_back = came_back && !mutant!("hermes_floor_rises_in_doubt");
    }

    /// Whether others may lack the version that is here.
    pub(crate) fn may_be_lost_by_others(&self, meta: &Meta) -> bool {
        self.lived_on && meta.state == State::Valid && !meta.is_blank()
    }

    /// Whether an older write must hear of this version: it may be a read-modify-write that did not see it, or
    /// be lost elsewhere.
    pub(crate) fn has_unsettled(&self, meta: &Meta) -> bool {
        meta.unsettled && !mutant!("hermes_write_under_rmw_acknowledged")
            || self.may_be_lost_by_others(meta) && !mutant!("hermes_lost_version_not_told_of")
    }

    pub(crate) fn note_version(&mut self, deleted: bool, version: u64) {
        if deleted {
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
    }

    pub(crate) fn begin_shadow(&mut self) {
        self.shadow = Some(0);
        self.floor = 0;
        self.agreed = 0;
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

impl<T: Table<Meta = Meta>, O: Command<Owned = O>> Hermes<T, O> {
    /// When a round is due, or needs a push. Too many tombstones make it due earlier.
    pub(crate) fn floor_deadline(&self) -> Instant {
        if self.floors.lead.is_none() && self.leads() && self.are_tombstones_many() {
            self.floors.check_at.min(self.earliest_round())
        } else {
            self.floors.check_at
        }
    }

    /// Whether this replica leads rounds.
    fn leads(&self) -> bool {
        self.live && self.active.first() == Some(self.config.node)
    }

    fn are_tombstones_many(&self) -> bool {
        self.floors.highest > self.floors.floor && self.tombstones.are_many(&self.config)
    }

    /// The time before which tombstones make no round due, however many they are.
    fn earliest_round(&self) -> Instant {
        self.floors.begun_at + self.config.collect_every / ROUNDS_MAX
    }

    fn is_round_due(&self, now: Instant) -> bool {
        let floors = &self.floors;
        floors.first
            || floors.is_open()
            || floors.in_doubt && self.sweep.is_over()
            || floors.highest > floors.floor && floors.begun_at + self.config.collect_every <= now
            || self.are_tombstones_many() && self.earliest_round() <= now
    }

    pub(crate) fn on_floor_timeout(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        if let Some(lead) = &self.floors.lead {
            // A replica that has not answered may have missed the question.
            let missing = self.peers.difference(lead.ready);
            let message = Message::FloorPrepare { round: lead.round, version: lead.version };
            effects.broadcast(missing, &message);
        } else if self.leads() && self.is_round_due(now.monotonic) {
            let version = if self.floors.first { 0 } else { self.floors.highest };
            self.floors.begun_at = now.monotonic;
            self.begin_round(version.max(self.floors.next_floor), effects);
        }
        if self.floors.follow.is_some() {
            self.clear_doubts(now, effects);
            self.try_ready(effects);
        }
        let busy = self.floors.lead.is_some() || self.floors.follow.is_some();
        self.floors.check_at = if busy {
            now.monotonic + self.config.message_loss_timeout
        } else if self.leads() && self.floors.in_doubt {
            now.monotonic + self.config.message_loss_timeout * 2
        } else if self.leads() {
            now.monotonic + self.config.collect_every
        } else {
            Instant::NEVER
        };
    }

    /// A loop turn ends, in which the last update may have finished that a round waits for.
    pub(crate) fn end_floor_turn(&mut self, effects: &mut impl Effects<Self>) {
        if self.floors.follow.as_ref().is_some_and(|follow| !follow.told) {
            self.try_ready(effects);
        }
    }

    /// Notes whether a key that is absent here may be in the log of another replica, and tells other lanes,
    /// which read records without asking.
    pub(crate) fn set_doubt(&mut self, in_doubt: bool) {
        self.floors.in_doubt = in_doubt;
        self.table.set_absence_doubted(in_doubt);
    }

    /// A key that is absent here, while it may be in the log of another replica, counts as deleted at the
    /// floor, as far as this replica knows: who asks for it replays that, and meets what others have.
    pub(crate) fn doubt_absence(
        &mut self,
        now: Now,
        handle: T::Handle,
        effects: &mut impl Effects<Self>,
    ) {
        if self.peers.is_empty() || mutant!("hermes_absence_not_doubted") {
            return;
        }
        let mut record = self.table.lock(handle);
        let meta = record.meta();
        if !meta.is_blank() || meta.state != State::Valid {
            return;
        }
        effects.probe("hermes: absence is doubted");
        let listed = self.tombstones.note(&self.config, now, handle, true, &meta);
        record.set_meta(Meta {
            timestamp: Timestamp::new(self.floors.floor, NOBODY),
            state: State::Invalid,
            rmw: true,
            unsettled: true,
            listed,
            life: self.life,
            ..meta
        });
    }

    fn begin_round(&mut self, version: u64, effects: &mut impl Effects<Self>) {
        effects.probe("hermes: floor round begins");
        let round = self.floors.last + 1;
        self.floors.first = false;
        self.floors.lead = Some(Lead { round, version, ready: NodeSet::EMPTY, raises: true });
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
        if self.floors.follow.is_some() {
            self.clear_doubts(now, effects);
            self.try_ready(effects);
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
        self.append_floors(effects);
        self.floors.prepared_at = self.journal.appended();
        self.floors.last = round;
        // What is being replayed is among what the round waits for.
        let is_swept = !self.floors.came_back || self.sweep.is_over() || self.peers.is_empty();
        let drain = self.next_number;
        self.floors.follow = Some(Follow { round, leader, drain, is_swept, told: false });
    }

    /// Says that everything at or below the prepared floor is finished here, once it is.
    fn try_ready(&mut self, effects: &mut impl Effects<Self>) {
        let orphaned = self.has_orphaned_call();
        let Some(follow) = &mut self.floors.follow else { return };
        if orphaned {
            // Its replay must finish, too.
            follow.drain = self.next_number;
            return;
        }
        let drain = follow.drain;
        if !self.journal.is_durable(self.floors.prepared_at) {
            // It is said at the end of the turn in which it is.
            return;
        }
        if self.ops.iter().any(|(_, op)| op.number <= drain) || self.doubts_before(drain) {
            return;
        }
        let Some(follow) = &mut self.floors.follow else { return };
        follow.told = true;
        let &mut Follow { leader, round, is_swept, .. } = follow;
        let next_floor = self.floors.next_floor;
        if leader == self.config.node {
            self.on_floor_ready(leader, round, (next_floor, is_swept), effects);
        } else {
            effects.send(leader, &Message::FloorReady { round, next_floor, is_swept });
        }
    }

    pub(crate) fn on_floor_ready(
        &mut self,
        from: NodeId,
        round: u64,
        (next_floor, is_swept): (u64, bool),
        effects: &mut impl Effects<Self>,
    ) {
        if let Some(finished) = self.floors.finished.filter(|finished| finished.round == round) {
            let Finished { round, version, raises } = finished;
            return effects.send(from, &Message::FloorCommit { round, version, raises });
        }
        let Some(lead) = self.floors.lead.as_mut().filter(|lead| lead.round == round) else {
            return effects.ignored("hermes: FLOOR_READY of another round");
        };
        if next_floor > lead.version {
            // A round of an earlier epoch had prepared more.
            effects.probe("hermes: floor round starts over");
            self.begin_round(next_floor, effects);
            return self.try_ready(effects);
        }
        lead.ready.insert(from);
        lead.raises &= is_swept;
        if self.peers.with(self.config.node).is_subset(lead.ready) {
            let (version, raises) = (lead.version, lead.raises);
            self.floors.lead = None;
            let finished = Finished { round, version, raises };
            self.floors.finished = Some(finished);
            effects.broadcast(self.peers, &Message::FloorCommit { round, version, raises });
            self.commit_floor(finished, effects);
        }
    }

    pub(crate) fn on_floor_commit(
        &mut self,
        now: Now,
        finished: Finished,
        effects: &mut impl Effects<Self>,
    ) {
        if self.floors.follow.as_ref().is_none_or(|follow| follow.round != finished.round) {
            return effects.ignored("hermes: FLOOR_COMMIT of another round");
        }
        self.commit_floor(finished, effects);
        self.floors.check_at = now.monotonic;
    }

    fn commit_floor(
        &mut self,
        Finished { version, raises, .. }: Finished,
        effects: &mut impl Effects<Self>,
    ) {
        self.floors.follow = None;
        self.floors.doubted = false;
        debug_assert!(version <= self.floors.next_floor, "a floor is prepared before it is raised");
        self.set_doubt(!raises);
        if !raises {
            effects.probe("hermes: floor round raises nothing");
            self.floors.agreed = version.max(self.floors.agreed);
            return self.check_all_queues(Instant::ZERO);
        }
        self.floors.came_back = false;
        self.floors.lived_on = false;
        if let Some(committed) = &mut self.floors.shadow {
            *committed = version.max(*committed);
            return;
        }
        let risen = version > self.floors.floor;
        self.floors.floor = self.floors.floor.max(version);
        if risen {
            self.append_floors(effects);
        }
        self.tombstones.begin_pass(self.table.len());
        // Read-modify-writes of absent keys were held back.
        self.check_all_queues(Instant::ZERO);
    }
}
