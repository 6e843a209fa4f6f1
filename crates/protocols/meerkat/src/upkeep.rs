//! Timers: message loss, takeovers, pauses, watermarks, and the records of deleted keys.

use alloc::vec::Vec;

use quorate_machine::{
    Command, Effects, LaneShared, Outcome, Record as _, Refusal, Slot, Table, mutant,
};
use quorate_types::{Duration, Instant, NodeSet, Now, Role, WriterId};

use crate::attempt::Stage;
use crate::coordinator::{FLOOR, SAVED};
use crate::message::{Kind, Message};
use crate::meta::Meta;
use crate::state::{Meerkat, Phase};

/// How often a lane that has transactions tells up to where its own are final.
const ANNOUNCE_BUSY: Duration = Duration::from_millis(50);
/// How often one that has none does.
const ANNOUNCE_IDLE: Duration = Duration::from_secs(1);
/// Deleted keys whose records are looked at in one go.
const GRAVES_AT_ONCE: usize = 256;
/// Records that the sweep looks at in one go, for deleted keys that nobody remembers.
const SWEEP_AT_ONCE: usize = 256;

impl<T, X> Meerkat<T, X>
where
    T: Table<Meta = Meta> + LaneShared,
    X: Command<Owned = X>,
{
    /// When something is due.
    pub(crate) fn deadline(&self) -> Instant {
        let normal = if self.phase == Phase::Normal {
            let takeover =
                self.recoveries.values().map(|recovery| recovery.patience.deadline()).min();
            [
                self.fast_checks.next_deadline(),
                self.resends.next_deadline(),
                self.suspects.next_deadline(),
                self.unnamed.next_deadline(),
                self.backoffs.next_deadline(),
                self.commit_waits.next_deadline(),
                takeover.unwrap_or(Instant::NEVER),
                self.acks_due,
                self.announce_due,
                self.copying.next_deadline(),
            ]
            .into_iter()
            .min()
            .expect("the list is not empty")
        } else {
            Instant::NEVER
        };
        let normal = if self.is_reconciling() { self.copying.next_deadline() } else { normal };
        normal.min(self.op_deadlines.next_deadline()).min(self.change_deadline())
    }

    pub(crate) fn on_tick(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        while let Some((_, slot)) = self.op_deadlines.pop_due(now) {
            self.on_op_timeout(slot, effects);
        }
        if self.change_deadline() <= now.monotonic {
            self.on_change_timeout(now, effects);
        }
        if self.phase == Phase::Normal {
            self.tick_normal(now, effects);
        } else if self.is_reconciling() {
            self.on_copy_timeout(now, effects);
        }
    }

    fn tick_normal(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        while let Some((_, version)) = self.fast_checks.pop_due(now) {
            if self.attempts.get(&version).is_some_and(|a| a.stage == Stage::Voting) {
                self.evaluate(now, version, true, effects);
            }
        }
        while let Some((_, version)) = self.resends.pop_due(now) {
            self.resend(now, version, effects);
        }
        while let Some((_, version)) = self.commit_waits.pop_due(now) {
            self.try_commit(now, version, effects);
        }
        while let Some((_, (key, joined))) = self.suspects.pop_due(now) {
            self.on_suspect_timeout(now, key, joined, effects);
        }
        while let Some((_, key)) = self.unnamed.pop_due(now) {
            self.name_commit(now, key, effects);
        }
        while let Some((_, slot)) = self.backoffs.pop_due(now) {
            self.ready.push_back(slot);
        }
        self.on_recovery_timeout(now, effects);
        if self.acks_due <= now.monotonic {
            self.flush_acks(effects);
        }
        if self.announce_due <= now.monotonic {
            self.on_announce_timeout(now, effects);
        }
        self.on_copy_timeout(now, effects);
        self.run_ready(now, effects);
    }

    /// A client has waited long enough.
    fn on_op_timeout(&mut self, slot: Slot, effects: &mut impl Effects<Self>) {
        let Some(op) = self.ops.get(slot) else { return };
        let attempt = op.attempt.and_then(|version| self.attempts.get(&version));
        // An update whose votes are out may yet commit.
        let open = attempt.is_some_and(|attempt| attempt.is_of(slot) && attempt.is_open_update());
        let outcome = if open { Outcome::Unknown } else { self.refused(slot, Refusal::TimedOut) };
        self.finish(slot, outcome, effects);
    }

    /// Answers every client: this node can't any more.
    pub(crate) fn abandon_ops(&mut self, effects: &mut impl Effects<Self>) {
        let slots: Vec<Slot> = self.ops.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            let op = self.ops.get(slot).expect("just listed");
            let attempt = op.attempt.and_then(|version| self.attempts.get(&version));
            let open = attempt.is_some_and(|a| a.is_of(slot) && a.is_open_update());
            let refused = self.refused(slot, Refusal::NotServing);
            self.finish(slot, if open { Outcome::Unknown } else { refused }, effects);
        }
        self.lines.clear();
        self.blocked_on.clear();
        self.baseless.clear();
        self.backoffs.clear();
        self.pausing.clear();
        self.turns.clear();
        self.ready.clear();
        self.op_deadlines.clear();
    }

    /// Reads that wait for confirmation begin again in the next epoch.
    pub(crate) fn drop_checks(&mut self) {
        for version in self.attempts.versions() {
            if !self.attempts[&version].is_question() {
                continue;
            }
            let Some(mut attempt) = self.attempts.remove(&version) else { continue };
            let slot = self.disband(attempt.slot, core::mem::take(&mut attempt.combined));
            self.recycle(attempt);
            self.enter_line(slot);
        }
    }

    /// Tells the other replicas up to where this lane's transactions are final, and collects what
    /// that lets go.
    fn on_announce_timeout(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        let busy = !self.attempts.is_empty() || !self.records.is_empty();
        let pause = if busy || self.was_busy { ANNOUNCE_BUSY } else { ANNOUNCE_IDLE };
        self.was_busy = busy;
        self.announce_due = now.monotonic + pause;
        // A snapshot of a shadow may have what a comparison lets go of later.
        if !self.active && !mutant!("meerkat_shadow_publishes_a_floor") {
            return;
        }
        if self.attempts.is_empty() {
            // Nothing will be started below the clock: an idle lane holds nobody back.
            let clock = self.clock(now);
            self.last_issued = self.last_issued.max(clock);
        }
        let stable = self.own_stable().min(self.guests_low());
        self.advance_stable(self.writer(), stable);
        if stable > self.announced || busy {
            self.announced = stable;
            self.announce(stable, effects);
        }
        if self.config.guest.is_some() {
            return;
        }
        self.forget_guests(now);
        let floor = self.lane_floor().max(self.floor_published);
        self.floor_published = floor;
        self.table.set_cell(FLOOR, floor);
        self.drop_footprints(now);
        self.append_stable(effects);
        self.collect(now, effects);
    }

    /// Tells each replica, and the other members of the clock.
    fn announce(&mut self, stable: u64, effects: &mut impl Effects<Self>) {
        // That this lane has gone on in its epoch is on disk before the others' floors rise.
        let gate = self.journal.gate();
        let mut told = NodeSet::only(self.config.node);
        for partition in 0..self.groups.len() as u16 {
            let group = self.groups[usize::from(partition)];
            let replicas = group.live.union(group.learners).without(self.config.node);
            if !replicas.is_empty() {
                let message = Message { partition, kind: Kind::Stable { stable } };
                effects.send_behind(gate, replicas, &message);
            }
            told = told.union(replicas);
        }
        let others = self.view.active().difference(told);
        if !others.is_empty() && self.config.guest.is_none() {
            let message = Message { partition: 0, kind: Kind::Stable { stable } };
            effects.send_behind(gate, others, &message);
        }
    }

    pub(crate) fn all_are_released(&self) -> bool {
        let is_written = self.journal.is_durable(self.resumed_at);
        self.view.live().is_subset(self.released_by) && is_written
            || mutant!("meerkat_floor_before_release")
    }

    /// The smallest watermark of all coordinators of this lane: everything up to it is final and
    /// installed on all replicas. The merged record of the last epoch belongs to that, and may have
    /// transactions of a coordinator that is gone. So the floor is unknown until every member has
    /// gone on in this epoch.
    pub(crate) fn lane_floor(&self) -> u64 {
        if !self.all_are_released() {
            return 0;
        }
        let lane = self.config.lane.0 as u8;
        let members = self.view.members.iter().filter(|member| member.role != Role::Down);
        members
            .map(|member| {
                let writer = WriterId::new(member.number, lane);
                if writer == self.writer() {
                    return self.own_stable().min(self.guests_low());
                }
                self.stable.get(&writer).copied().unwrap_or(0)
            })
            .min()
            .unwrap_or(0)
    }

    /// Sweeps a part of this lane's records: removes those of deleted keys that the floor has passed,
    /// and deletes values past their time that nobody asks for.
    fn collect(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        let mut floor = self.table.least(FLOOR);
        if self.shares_logs() && !mutant!("meerkat_deletions_forgotten_before_saved") {
            // Another lane's log may have an older version of a key that was deleted since.
            floor = floor.min(self.table.least(SAVED));
        }
        for _ in 0..GRAVES_AT_ONCE {
            let Some((_, key)) = self.tombstones.pop_front_if(|(version, _)| *version <= floor)
            else {
                break;
            };
            self.remove_dead(&key, floor);
        }
        for key in self.sweep.next_keys(&self.table, SWEEP_AT_ONCE) {
            self.remove_dead(&key, floor);
            self.delete_expired(now, &key, effects);
        }
    }

    fn remove_dead(&mut self, key: &[u8], floor: u64) {
        let dead = |record: &T::Record<'_>| {
            let meta = record.meta();
            record.content().is_none()
                && record.locked_state().is_empty()
                && meta.wts.version <= floor
                && meta.rts.version <= floor
        };
        // Most are not; looking first leaves the index alone.
        if self.table.lock_existing(key).is_some_and(|record| dead(&record)) {
            self.table.remove_if(key, dead);
        }
    }
}
