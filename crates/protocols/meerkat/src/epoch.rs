//! The epoch change (§5.3.1) as part of installing a view: freeze, merge, adopt, release.
//!
//! ```text
//! view ─► every lane freezes and hands its records to lane 0
//!         lane 0 of each member ── FROZEN ──► leader: merges
//!         leader ── ADOPT ──► all: kept, not acted on ── ADOPTED ──► leader
//!         leader, once all have it ── RELEASE ──► all: install, hand lanes their share, go on
//! ```
//! The leader is the smallest active member of the view; a dead one is replaced by the next view.
//! What a member has adopted is what it reports from then on, so that two changes in a row can't
//! come to different results (N4.2c). Nobody acts on a result before all members keep it.
//!
//! Learners report as well. One that has adopted a result and not heard of its release may be the
//! only one that still has the sets of what committed, since members drop them with the release. And a
//! process that was expelled keeps what it would have reported: its records are as frozen as those of
//! a member. A process that was started anew has nothing to tell.

mod leader;
mod release;

use alloc::boxed::Box;
use alloc::vec::Vec;

use quorate_machine::{Backoff, Command, Effects, LaneShared, Table, mutant};
use quorate_types::{
    Duration, Epoch, Incarnation, Instant, LaneId, NodeId, NodeSet, Now, Quorums, Role, View,
    limits,
};

use crate::calls::ResultTracker;
use crate::coordinator::FLOOR;
use crate::join::COPY_TIMEOUTS;
use crate::merge::{Electorate, Groups, Merged, Report};
use crate::message::{Kind, Message};
use crate::meta::Meta;
use crate::records::Records;
use crate::restore::Restored;
use crate::state::{Group, Isolation, Meerkat, Phase};
use crate::txn_record::RecordKey;
use leader::Lead;

/// Bytes of a report or a merged record in one message.
const PART_BYTES: usize = limits::CHUNK_BYTES;
/// Doublings after which the patience with a part that is on its way grows no more.
const PART_DOUBLINGS_MAX: u32 = 3;

/// The transactions of calls, encoded.
type Calls = Vec<(RecordKey, Vec<u8>)>;

/// What the lanes of a node say to each other.
#[derive(Clone, Debug)]
pub enum Mail {
    /// A lane has frozen; lane 0 keeps its records.
    Frozen {
        /// The epoch that it froze for.
        epoch: Epoch,
        /// Its records.
        records: Records,
        /// The largest timestamp at which it confirmed reads.
        read_high: u64,
        /// What it has brought back from its log.
        restored: Option<Box<Restored>>,
        /// Whether it takes in first what the other replicas have.
        doubts: bool,
    },
    /// Lanes that came back are to take in what these shadows have.
    TakeIn {
        /// The epoch that they froze for.
        epoch: Epoch,
        /// The shadows.
        former: NodeSet,
    },
    /// A lane that came back has taken in what the other replicas have.
    Settled {
        /// The epoch that it froze for.
        epoch: Epoch,
    },
    /// A lane's life has ended; lane 0 keeps its records until the next one knows more.
    Left {
        /// Its records.
        records: Records,
        /// The largest timestamp at which it confirmed reads.
        read_high: u64,
    },
    /// Lane 0 has installed the merged record: go on.
    Resume {
        /// The epoch that was released.
        epoch: Epoch,
        /// No write at or below it.
        floor: u64,
        /// The lane's share of the merged record.
        records: Records,
        /// The sets of what committed and was a call of the lane's sessions.
        calls: Calls,
    },
}

/// An epoch change as lane 0 sees it.
#[derive(Clone, Hash, Debug, Default)]
pub(crate) struct Change {
    /// The last epoch that this node has adopted.
    last_normal: Epoch,
    /// Who could vote in it.
    electorate: Electorate,
    /// Lanes that have frozen for the epoch of the view.
    frozen: u64,
    /// Those of them that take in first what other replicas have.
    doubtful: u64,
    /// Shadows whose state this node has taken in, or is about to.
    taken_in: NodeSet,
    /// What they knew, of the last released epoch.
    records: Records,
    read_high: u64,
    /// What was adopted and is not released.
    adopted: Option<Merged>,
    /// The table and `former` are of another cluster than the view.
    foreign: bool,
    /// This node begins a new life, and lanes may not have handed over yet what they knew in the last.
    blank: bool,
    /// What it would have reported in its last life; until this one has adopted something.
    former: Option<Report>,
    /// What the lanes of this process have brought back from their logs.
    restored: Vec<Restored>,
    /// This node's report, encoded.
    report: Vec<u8>,
    /// The part of it that the leader was sent last.
    told: Option<u32>,
    /// With that part.
    patience: Backoff,
    /// The merged record as it comes in.
    incoming: Vec<u8>,
    incoming_parts: u32,
    total_parts: Option<u32>,
    released: Option<Epoch>,
    lead: Option<Lead>,
    resend_at: Instant,
}

/// How long a part is given at first. One that is sent again while it is on its way takes the link from
/// itself.
fn patience_with(part: &[u8], timeout: Duration) -> Duration {
    if mutant!("meerkat_parts_sent_too_soon") {
        return timeout;
    }
    timeout * (1 + (COPY_TIMEOUTS - 1) * part.len() as u32 / PART_BYTES as u32)
}

pub(crate) fn parts_of(bytes: &[u8]) -> u32 {
    bytes.len().div_ceil(PART_BYTES).max(1) as u32
}

pub(crate) fn part(bytes: &[u8], number: u32) -> &[u8] {
    let start = (number as usize * PART_BYTES).min(bytes.len());
    &bytes[start..(start + PART_BYTES).min(bytes.len())]
}

impl<T, X> Meerkat<T, X>
where
    T: Table<Meta = Meta> + LaneShared,
    X: Command<Owned = X>,
{
    /// A newer view: freezes this lane in the same step, before any message of the new epoch.
    pub(crate) fn on_view(&mut self, now: Now, view: &View, effects: &mut impl Effects<Self>) {
        if view.epoch <= self.view.epoch {
            return effects.ignored("meerkat: view that is not newer");
        }
        self.view = view.clone();
        if self.config.guest.is_some() {
            return self.visit(now, effects);
        }
        let me = view.member(self.config.node);
        let me = me.filter(|member| member.incarnation == self.config.incarnation);
        let Some(me) = me.filter(|member| member.role != Role::Down) else {
            if self.restored.is_some() {
                return effects.ignored("meerkat: view from before this process was admitted");
            }
            return self.leave(effects);
        };
        self.member = me.number;
        self.active = me.role == Role::Active;
        let restored = self.take_restored(now, effects);
        self.enter_cluster(effects);
        // The hybrid clock follows the wall clock from view to view, forward only.
        self.observe(now, now.unix.0);
        self.regroup();
        if !self.active && !self.copying.is_done() {
            self.trackers.iter_mut().for_each(ResultTracker::begin_copy);
        }
        self.phase = Phase::Frozen;
        self.recoveries.clear();
        self.suspects.clear();
        self.unnamed.clear();
        self.acks.clear();
        self.acks_due = Instant::NEVER;
        self.commit_waits.clear();
        self.fast_checks.clear();
        self.undurable.clear();
        self.blocked_on.clear();
        self.baseless.clear();
        self.drop_checks();
        let (records, read_high) = self.take_records();
        let epoch = self.epoch();
        self.begin_reconciling();
        let doubts = self.is_reconciling();
        if self.config.lane.0 == 0 {
            self.begin_change(now, effects);
            self.note_restored(LaneId(0), restored, doubts);
            self.on_lane_frozen(now, LaneId(0), epoch, records, read_high, effects);
        } else {
            let restored = restored.map(Box::new);
            let mail = Mail::Frozen { epoch, records, read_high, restored, doubts };
            effects.mail(LaneId(0), mail);
            if mutant!("meerkat_lane_resumes_alone") {
                self.resume(now, self.epoch_floor, Records::new(), Calls::new(), effects);
            }
        }
        self.reconcile(now, effects);
    }

    /// A guest has no replica: it goes on in the new epoch at once, with what is undecided.
    fn visit(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        self.active = true;
        self.regroup();
        self.observe(now, now.unix.0);
        self.commit_waits.clear();
        self.fast_checks.clear();
        self.blocked_on.clear();
        self.baseless.clear();
        self.drop_checks();
        self.resume(now, 0, Records::new(), Calls::new(), effects);
    }

    /// This process is no member of the view: it was expelled, or has not joined yet.
    fn leave(&mut self, effects: &mut impl Effects<Self>) {
        self.phase = Phase::Out;
        self.active = false;
        self.abandon_ops(effects);
        self.recoveries.clear();
        let (records, read_high) = self.take_records();
        self.attempts.clear();
        if self.config.guest.is_some() {
            // A guest has one lane, which need not be lane 0, and keeps nothing for its next stay.
        } else if self.config.lane.0 == 0 {
            self.on_lane_left(records, read_high);
        } else {
            effects.mail(LaneId(0), Mail::Left { records, read_high });
        }
    }

    /// What this lane knows, to be kept by lane 0.
    fn take_records(&mut self) -> (Records, u64) {
        let mut records = core::mem::take(&mut self.records);
        records.extend(self.footprints.drain(..));
        if *self.keeps_log && self.handed.is_none() {
            // A snapshot that is taken before this lane goes on has them.
            let floor = self.reserved.until;
            let installed = self.table.least(FLOOR);
            let resumed = (*self.resumed, floor);
            let handed = Restored::of_epoch(self.cluster, resumed, installed, records.clone());
            *self.handed = Some(Box::new(handed));
        }
        self.report_ends(&mut records);
        if !mutant!("meerkat_calls_marked_over_epochs") {
            self.trackers.iter_mut().for_each(ResultTracker::abandon_all);
        }
        (records, core::mem::take(&mut self.read_high))
    }

    /// Keeps what a lane knew when its epoch or its life ended. Its mail may come after lane 0 has
    /// begun the next life.
    fn on_lane_left(&mut self, records: Records, read_high: u64) {
        let Some(change) = &mut self.change else { return };
        if !change.blank {
            change.records.extend(records);
            change.read_high = change.read_high.max(read_high);
        } else if let Some(former) = &mut change.former {
            former.records.extend(records);
            former.floor = former.floor.max(read_high);
        }
    }

    fn regroup(&mut self) {
        let electorate = self.electorate();
        let live = self.view.live();
        let groups = self.groups_config();
        self.groups = (0..self.config.partitions.len() as u16)
            .map(|partition| {
                let (quorums, active): (Quorums, NodeSet) = groups.quorums(partition, electorate);
                let replicas = self.config.partitions[usize::from(partition)];
                let learners = live.difference(electorate.active);
                let learners = replicas.map_or(learners, |set| learners.intersection(set));
                Group { live: active, learners, quorums }
            })
            .collect();
    }

    pub(crate) fn electorate(&self) -> Electorate {
        Electorate { voters: self.view.voters(), active: self.view.active() }
    }

    fn groups_config(&self) -> Groups<'_> {
        Groups {
            replicas: &self.config.partitions,
            unanimous: self.config.isolation == Isolation::Strict,
            lost: 0,
        }
    }

    /// The partitions whose groups have no active member in the view, as a bit set: a person has given up
    /// their data. Nothing else makes such a view.
    fn lost(&self) -> u64 {
        if mutant!("meerkat_lost_group_awaited") {
            return 0;
        }
        let lost = self.groups.iter().zip(0..).filter(|(group, _)| group.live.is_empty());
        lost.fold(0, |set, (_, partition)| set | 1 << partition)
    }

    fn leader(&self) -> Option<NodeId> {
        self.view.active().first()
    }

    fn leads(&self) -> bool {
        self.leader() == Some(self.config.node)
    }

    fn begin_change(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        let leads = self.leads();
        let change = self.change.as_mut().expect("lane 0 changes epochs");
        change.frozen = 0;
        change.doubtful = 0;
        change.taken_in = NodeSet::EMPTY;
        change.report.clear();
        change.told = None;
        change.patience = Backoff::default();
        change.incoming.clear();
        change.incoming_parts = 0;
        change.total_parts = None;
        change.released = None;
        change.lead = leads.then(Lead::default);
        change.resend_at = now.monotonic + self.config.message_loss_timeout;
        effects.probe("meerkat: epoch change");
    }

    pub(crate) fn on_mail(
        &mut self,
        now: Now,
        from: LaneId,
        mail: Mail,
        effects: &mut impl Effects<Self>,
    ) {
        match mail {
            Mail::Frozen { epoch, records, read_high, restored, doubts } => {
                let is_now = epoch == self.epoch();
                self.note_restored(from, restored.map(|restored| *restored), doubts && is_now);
                self.on_lane_frozen(now, from, epoch, records, read_high, effects);
            }
            Mail::TakeIn { epoch, former } if epoch == self.epoch() => {
                self.reconcile_with(now, former, effects);
            }
            Mail::Settled { epoch } if epoch == self.epoch() => {
                self.on_lane_settled(now, from, effects);
            }
            Mail::TakeIn { .. } | Mail::Settled { .. } => {
                effects.ignored("meerkat: mail of an epoch that is over")
            }
            Mail::Left { records, read_high } => self.on_lane_left(records, read_high),
            Mail::Resume { epoch, floor, records, calls } => {
                if epoch == self.epoch() && self.phase == Phase::Frozen {
                    self.resume(now, floor, records, calls, effects);
                } else {
                    effects.ignored("meerkat: release of an epoch that is over");
                }
            }
        }
    }

    /// Keeps what a lane has brought back, until all have said it.
    fn note_restored(&mut self, lane: LaneId, restored: Option<Restored>, doubts: bool) {
        let change = self.change.as_mut().expect("lane 0 changes epochs");
        change.restored.extend(restored);
        change.doubtful |= u64::from(doubts) << lane.0;
    }

    /// A lane has taken in what the other replicas have.
    pub(crate) fn on_lane_settled(
        &mut self,
        now: Now,
        lane: LaneId,
        effects: &mut impl Effects<Self>,
    ) {
        let change = self.change.as_mut().expect("lane 0 changes epochs");
        change.doubtful &= !(1 << lane.0);
        let all = change.frozen.count_ones() == u32::from(self.config.lanes);
        if !all || self.phase != Phase::Frozen {
            return;
        }
        if !self.has_report() {
            self.end_freeze(now, effects);
        } else if self.has_taken_in() {
            self.tell_taken_in(now, effects);
        }
    }

    /// TAKE_IN: too few that know of the last epoch are active, and these shadows have kept what the others may
    /// lack.
    pub(crate) fn on_take_in(
        &mut self,
        now: Now,
        from: NodeId,
        former: NodeSet,
        effects: &mut impl Effects<Self>,
    ) {
        if !self.has_report() || self.leader() != Some(from) || !self.active {
            return effects.ignored("meerkat: TAKE_IN before this member has reported");
        }
        self.take_in(now, former, effects);
    }

    /// Has all lanes take in what shadows have kept, and says so.
    fn take_in(&mut self, now: Now, former: NodeSet, effects: &mut impl Effects<Self>) {
        let shadows = self.view.live().difference(self.view.active());
        let former = former.intersection(shadows);
        let (lanes, epoch) = (self.config.lanes, self.epoch());
        let change = self.change.as_mut().expect("lane 0 changes epochs");
        if change.taken_in != former {
            effects.probe("meerkat: takes in what a shadow has kept");
            change.taken_in = former;
            change.doubtful = u64::MAX >> (u64::BITS - u32::from(lanes));
            for lane in 1..lanes {
                effects.mail(LaneId(lane), Mail::TakeIn { epoch, former });
            }
            return self.reconcile_with(now, former, effects);
        }
        change.taken_in = former;
        if self.has_taken_in() {
            self.tell_taken_in(now, effects);
        }
    }

    /// Whether no lane of this node has anything to take in any more.
    fn has_taken_in(&self) -> bool {
        self.change.as_ref().is_some_and(|change| change.doubtful == 0)
    }

    fn tell_taken_in(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        let (Some(leader), Some(change)) = (self.leader(), &self.change) else { return };
        let former = change.taken_in;
        if leader == self.config.node {
            self.on_taken_in(now, leader, former, effects);
        } else {
            let kind = Kind::TakenIn { former };
            effects.send(leader, &Message { partition: 0, kind });
        }
    }

    fn on_lane_frozen(
        &mut self,
        now: Now,
        from: LaneId,
        epoch: Epoch,
        records: Records,
        read_high: u64,
        effects: &mut impl Effects<Self>,
    ) {
        if epoch != self.epoch() {
            return self.on_lane_left(records, read_high);
        }
        let lanes = u32::from(self.config.lanes);
        let change = self.change.as_mut().expect("lane 0 changes epochs");
        change.records.extend(records);
        change.read_high = change.read_high.max(read_high);
        change.frozen |= 1 << from.0;
        let all = change.frozen.count_ones() == lanes || mutant!("meerkat_lanes_freeze_apart");
        if !all || self.phase != Phase::Frozen {
            return;
        }
        // Every lane has handed over what it knew in its last life.
        change.blank = false;
        let restored = core::mem::take(&mut change.restored);
        if !restored.is_empty() {
            let former = self.compose_report(now, restored, effects);
            self.change.as_mut().expect("it was just there").former = former;
        }
        self.forget_other_cluster(effects);
        self.end_freeze(now, effects);
    }

    /// Writes the report, once no lane has doubts any more.
    fn end_freeze(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        if self.change.as_ref().is_some_and(|change| change.doubtful != 0) {
            return;
        }
        self.make_report(now);
        if self.leads() {
            self.take_own_report();
            self.send_freezes(effects);
            self.try_merge(now, effects);
        }
    }

    /// A view of another cluster than the one before. Lives count anew, and lane 0 will forget what
    /// they left.
    fn enter_cluster(&mut self, effects: &mut impl Effects<Self>) {
        let former = core::mem::replace(&mut self.cluster, self.view.cluster);
        let is_ours = former.shares_data_with(self.cluster);
        if former != self.cluster {
            if !is_ours {
                *self.handed = None;
            }
            self.append_cluster(effects);
        }
        if is_ours || former.0 == 0 || mutant!("meerkat_base_of_another_cluster") {
            return;
        }
        self.life = 0;
        if let Some(change) = &mut self.change {
            change.foreign = true;
        }
    }

    /// What an earlier life left of another cluster goes: epochs, clocks and member numbers began anew
    /// in this one, so neither its versions nor its report mean anything, and a founder serves
    /// without having compared. No lane touches the table until it is released.
    fn forget_other_cluster(&mut self, effects: &mut impl Effects<Self>) {
        let change = self.change.as_mut().expect("lane 0 changes epochs");
        if core::mem::take(&mut change.foreign) {
            effects.probe("meerkat: records of another cluster go");
            change.former = None;
            self.table.reset();
        }
    }

    /// Writes down what this node knows, of this life or of its last one.
    fn make_report(&mut self, now: Now) {
        let clock = self.clock(now);
        let mut report = self.report(now);
        let change = self.change.as_mut().expect("lane 0 changes epochs");
        if report.last_normal == Epoch(0)
            && let Some(former) = &change.former
        {
            report = former.clone();
            report.clock = report.clock.max(clock);
        }
        change.report.clear();
        report.encode(&mut change.report);
    }

    /// What this life has adopted, or what its lanes had when they froze.
    fn report(&self, now: Now) -> Report {
        let change = self.change.as_ref().expect("lane 0 changes epochs");
        let records = match &change.adopted {
            Some(adopted) => adopted.records(),
            None => change.records.clone(),
        };
        Report {
            last_normal: change.last_normal,
            electorate: change.electorate,
            doubtful: false,
            given_up: NodeSet::EMPTY,
            floor: self.epoch_floor.max(change.read_high),
            installed: self.table.least(FLOOR),
            clock: self.clock(now),
            records,
        }
    }

    /// Whether all lanes of this node have frozen and the report stands.
    fn has_report(&self) -> bool {
        self.change.as_ref().is_some_and(|change| !change.report.is_empty())
    }

    // --- every member --------------------------------------------------------------------------

    /// FREEZE: this node is frozen by its view; the leader wants its report.
    pub(crate) fn on_freeze(
        &mut self,
        now: Now,
        from: NodeId,
        number: u32,
        effects: &mut impl Effects<Self>,
    ) {
        if !self.has_report() || self.leader() != Some(from) {
            return effects.ignored("meerkat: FREEZE before all lanes are frozen");
        }
        let timeout = self.config.message_loss_timeout;
        let change = self.change.as_mut().expect("lane 0 changes epochs");
        let (parts, bytes) = (parts_of(&change.report), part(&change.report, number));
        let first = patience_with(bytes, timeout);
        // The leader asks at every timeout, since this node may not have been ready when it did first.
        if change.told.replace(number) != Some(number) {
            change.patience.begin(now, first);
        } else if !change.patience.is_over(now, first, PART_DOUBLINGS_MAX) {
            return effects.ignored("meerkat: FREEZE while the part is on its way");
        }
        if number < parts {
            let kind = Kind::Frozen { part: number, parts, bytes };
            effects.send(from, &Message { partition: 0, kind });
        }
    }

    /// ADOPT: a part of the merged record.
    pub(crate) fn on_adopt(
        &mut self,
        now: Now,
        from: NodeId,
        number: u32,
        parts: u32,
        bytes: &[u8],
        effects: &mut impl Effects<Self>,
    ) {
        if !self.has_report() || self.leader() != Some(from) {
            return effects.ignored("meerkat: ADOPT before all lanes are frozen");
        }
        let change = self.change.as_mut().expect("lane 0 changes epochs");
        if number == change.incoming_parts && change.total_parts.is_none() {
            change.incoming.extend_from_slice(bytes);
            change.incoming_parts += 1;
            if change.incoming_parts == parts {
                let bytes = core::mem::take(&mut change.incoming);
                let Ok(merged) = Merged::decode(&bytes) else {
                    return effects.refused("meerkat: damaged merged record");
                };
                if let Some(reason) = self.refuse_merged(now, &merged) {
                    return effects.refused(reason);
                }
                let change = self.change.as_mut().expect("lane 0 changes epochs");
                change.total_parts = Some(parts);
                self.adopt(now, merged, effects);
            }
        }
        self.send_adopted(effects);
    }

    /// What was adopted and is not released, with its epoch.
    pub(crate) fn unreleased(&self) -> Option<(Epoch, Electorate, &Merged)> {
        let change = self.change.as_ref()?;
        let merged = change.adopted.as_ref()?;
        Some((change.last_normal, change.electorate, merged))
    }

    fn send_adopted(&mut self, effects: &mut impl Effects<Self>) {
        let (Some(leader), Some(change)) = (self.leader(), &self.change) else { return };
        let kind = Kind::Adopted { parts: change.incoming_parts };
        if change.total_parts.is_none() || mutant!("meerkat_adopted_before_durable") {
            return effects.send(leader, &Message { partition: 0, kind });
        }
        self.promise_to(leader, 0, kind, effects);
    }

    /// Keeps the merged record, without acting on it.
    fn adopt(&mut self, now: Now, merged: Merged, effects: &mut impl Effects<Self>) {
        self.observe(now, merged.clock);
        self.append_adopted(&merged, effects);
        let electorate = self.electorate();
        let epoch = self.epoch();
        let change = self.change.as_mut().expect("lane 0 changes epochs");
        change.last_normal = epoch;
        change.electorate = electorate;
        change.adopted = Some(merged);
        change.former = None;
    }

    /// The message loss timer of a change.
    pub(crate) fn on_change_timeout(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        let change = self.change.as_mut().expect("lane 0 changes epochs");
        change.resend_at = now.monotonic + self.config.message_loss_timeout;
        let kept = change.incoming_parts > 0;
        if self.leads() {
            if self.has_report() {
                self.send_freezes(effects);
                self.send_take_ins(now, effects);
                self.send_adopts(now, effects);
            }
        } else if kept {
            self.send_adopted(effects);
        }
    }

    pub(crate) fn change_deadline(&self) -> Instant {
        match &self.change {
            Some(change) if self.phase == Phase::Frozen => change.resend_at,
            _ => Instant::NEVER,
        }
    }

    /// Begins a new life under a fresh incarnation: everything is forgotten but what this node
    /// would have reported, and what its table holds, to be compared (`difference.rs`).
    pub fn reset(&mut self, now: Now, incarnation: Incarnation, effects: &mut impl Effects<Self>) {
        if self.restored.is_some() {
            // No view has named this process yet: what came back waits for the first that does.
            self.config.incarnation = incarnation;
            return;
        }
        self.leave(effects);
        self.end_life(now);
        self.config.incarnation = incarnation;
        self.view = View::default();
        self.member = quorate_types::MemberNumber(0);
        self.groups.clear();
        self.suspects.clear();
        self.unnamed.clear();
        self.stable.clear();
        self.released_by = NodeSet::EMPTY;
        self.acks.clear();
        self.fast_checks.clear();
        self.resends.clear();
        self.commit_waits.clear();
        self.epoch_floor = 0;
        self.last_issued = 0;
        self.announced = 0;
        self.copying = crate::join::Copying::default();
        // What came back in doubt, and was expelled before anything was released, may still be needed.
        if !self.doubts {
            self.let_go_of_restored();
        }
        self.revives = false;
        self.unheard = NodeSet::EMPTY;
        self.takes_in = false;
        self.floor_published = 0;
        self.absence_floor = 0;
        self.table.set_cell(FLOOR, 0);
    }

    /// Keeps what this life would have reported, if it has taken part in anything; otherwise what
    /// the one before it knew.
    fn end_life(&mut self, now: Now) {
        if self.change.is_none() {
            return;
        }
        let report = self.report(now);
        let change = self.change.as_mut().expect("it was just there");
        let mut former = change.former.take();
        if report.last_normal > Epoch(0) {
            former = Some(report);
        }
        if mutant!("meerkat_expelled_forgets") {
            former = None;
        }
        // Lanes that had frozen have handed over what came back; the others do so in the next life.
        let restored = core::mem::take(&mut change.restored);
        let foreign = change.foreign;
        **change = Change { foreign, blank: true, former, restored, ..Change::default() };
    }
}
