//! The coordinator: runs a transaction and starts attempts at it (§5.2.1, §5.2.2).

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use quorate_machine::{
    Command, Completion, Effects, LaneShared, Outcome, Refusal, Slot, Table, Verdict, mutant,
};
use quorate_types::{Lsn, NodeSet, Now, Tag, Timestamp, limits, partition_of};

use crate::attempt::{Attempt, Op, Part, Stage};
use crate::body::{Answered, Body, BodyWriter};
use crate::calls::Called;
use crate::combining::COMBINED_MAX;
use crate::message::{Kind, Message};
use crate::meta::Meta;
use crate::occ::{self, Conflict, Reason};
use crate::state::{Counter, Meerkat, Phase};
use crate::txn_record::{RecordKey, TxnRecord};
use crate::work::LocalRun;

/// Attempts whose memory is kept for the next ones.
const SPARE_ATTEMPTS_MAX: usize = 1024;

/// The cell in which each lane tells its siblings up to where everything is applied.
pub(crate) const FLOOR: usize = 0;
/// The cell in which each lane tells its siblings when its oldest undecided transaction came.
pub(crate) const OLDEST: usize = 1;
/// The cell in which each lane tells its siblings up to which floor its log has nothing any more but in its
/// snapshot.
pub(crate) const SAVED: usize = 2;

impl<T, X> Meerkat<T, X>
where
    T: Table<Meta = Meta> + LaneShared,
    X: Command<Owned = X>,
{
    /// Takes a client's transaction; answered by [`Effects::complete`] with the same tag, once.
    /// Transactions of one origin that have a key in common take effect in order.
    pub fn submit<P>(
        &mut self,
        now: Now,
        tag: Tag,
        origin: u64,
        txn: P,
        effects: &mut impl Effects<Self>,
    ) where
        P: Command<Owned = X, Reply = X::Reply>,
    {
        self.take(now, tag, origin, None, txn, effects);
    }

    /// Takes a client's transaction, which may be a call.
    pub(crate) fn take<P>(
        &mut self,
        now: Now,
        tag: Tag,
        origin: u64,
        call: Option<Called>,
        txn: P,
        effects: &mut impl Effects<Self>,
    ) where
        P: Command<Owned = X, Reply = X::Reply>,
    {
        if self.phase == Phase::Out || !self.active {
            return effects.complete(tag, Outcome::Refused(Refusal::NotServing));
        }
        // A decided attempt is kept until every replica knows its end.
        if self.ops.len().max(self.attempts.len()) >= self.config.pending_max {
            return effects.complete(tag, Outcome::Refused(Refusal::Busy));
        }
        self.next_sequence += 1;
        let slot = self.ops.insert(Op {
            tag,
            origin,
            txn: txn.into_owned(),
            call,
            sequence: self.next_sequence,
            attempts: 0,
            pauses: 0,
            above: 0,
            attempt: None,
            in_line: false,
            backoff: None,
            reply: None,
            keys: Vec::new(),
            followers: Vec::new(),
            fetched: BTreeMap::new(),
            rereads: false,
            aware: false,
        });
        self.op_deadlines.push(now.monotonic + self.config.op_timeout, slot);
        if self.lines.contains_key(&origin) || self.phase == Phase::Frozen {
            self.enter_line(slot);
        } else {
            self.start(now, slot, effects);
        }
        self.run_ready(now, effects);
    }

    /// Runs a transaction, and what may share its attempt, and starts an attempt at them.
    pub(crate) fn start(&mut self, now: Now, slot: Slot, effects: &mut impl Effects<Self>) {
        debug_assert_eq!(self.phase, Phase::Normal, "a frozen lane starts nothing");
        if !self.may_attempt(now, slot, effects) {
            return;
        }
        self.end_pause(slot);
        let Some(op) = self.ops.get_mut(slot) else { return };
        self.work.fetched = core::mem::take(&mut op.fetched);
        self.start_with(now, slot, COMBINED_MAX, effects);
    }

    /// Runs an op in the workspace.
    pub(crate) fn execute(&mut self, now: Now, slot: Slot) -> Option<Verdict<X::Reply>> {
        let floor = self.table.least(FLOOR);
        let single = self.config.partitions.len() == 1 && self.holds(0);
        let held: u64 = if single {
            u64::MAX
        } else {
            let node = self.config.node;
            self.groups.iter().enumerate().fold(0, |set, (partition, group)| {
                set | u64::from(group.live.contains(node)) << partition
            })
        };
        let partitions = self.config.partitions.len();
        let mut run = LocalRun {
            table: &mut self.table,
            work: &mut self.work,
            now: now.wall(),
            floor,
            is_local: |key: &[u8]| single || held & 1 << partition_of(key, partitions) != 0,
            sends_deltas: self.config.guest.is_none(),
        };
        Some(self.ops.get(slot)?.txn.run(now.wall(), &mut run))
    }

    /// As [`Meerkat::start`], with at most so many others.
    fn start_with(&mut self, now: Now, slot: Slot, most: usize, effects: &mut impl Effects<Self>) {
        self.work.clear();
        let Some(verdict) = self.execute(now, slot) else { return };
        // A guest learns first what time it is in the cluster.
        let aware = self.ops.get(slot).is_some_and(|op| op.aware);
        let unaware = self.config.guest.is_some() && !aware;
        if self.work.is_too_large() {
            return self.finish(slot, Outcome::Refused(Refusal::TooLarge), effects);
        }
        if let Some(other) = self.predecessor(slot).or_else(|| self.pausing_at_its_keys(slot)) {
            return self.follow(other, slot);
        }
        self.claim_keys(slot);
        if let Some(until) = self.turn_of_others(now) {
            self.enter_line(slot);
            return self.pause_until(slot, until);
        }
        if !self.work.missing.is_empty() || unaware {
            if self.lacks_replicas(None) {
                return self.finish(slot, self.refused(slot, Refusal::NotServing), effects);
            }
            return self.fetch(now, slot, effects);
        }
        let home = self.ops.get(slot).and_then(|op| op.call.as_ref()).map(|call| call.home);
        let reply = match verdict {
            // What another node's replica held may be older than what the client has seen: a watch
            // that fails by it is confirmed as a read. A guest's owner runs its transaction again.
            Verdict::Abandon(reply)
                if !self.work.fetched.is_empty()
                    && self.config.guest.is_none()
                    && !mutant!("meerkat_abandoned_unconfirmed") =>
            {
                self.work.forget_writes();
                reply
            }
            Verdict::Abandon(reply) if home.is_none() => {
                return self.finish(slot, Outcome::Done(reply), effects);
            }
            Verdict::Abandon(reply) => {
                // It changes nothing, but was answered: that stands, too (P3).
                self.work.clear();
                reply
            }
            Verdict::Commit(reply) => reply,
        };
        if self.work.len() == 0 && home.is_none() {
            return self.finish(slot, Outcome::Done(reply), effects);
        }
        if self.lacks_replicas(home) {
            return self.finish(slot, self.refused(slot, Refusal::NotServing), effects);
        }
        if home.is_some() {
            self.work.keep_answer(|bytes| X::encode_reply(&reply, bytes));
            if self.work.is_too_large() {
                return self.finish(slot, self.refused(slot, Refusal::TooLarge), effects);
            }
        }
        let writes = home.is_none() && !self.work.is_read_only();
        let Some(op) = self.ops.get_mut(slot) else { return };
        op.rereads = writes && !op.txn.updates() && !mutant!("meerkat_expired_version_shown");
        op.reply = Some(reply);
        let mut combined = match self.combine(now, slot, most, effects) {
            Ok(combined) => combined,
            Err(fewer) => return self.start_with(now, slot, fewer, effects),
        };
        let above = self.ops.get(slot).map_or(0, |op| op.above);
        let above = above.max(self.work.newest_base());
        let id = self.issue(now, above);
        if !self.is_covered(slot, id) {
            return self.finish(slot, self.refused(slot, Refusal::LeaseNeeded), effects);
        }
        // A call that may change something leaves a record whatever it answers (P3).
        let read =
            self.work.is_read_only() && (home.is_none() || mutant!("meerkat_failures_forgotten"));
        self.assign(slot, id.version, &mut combined);
        let mut attempt = self.new_attempt(now, slot, read);
        attempt.combined = combined.members;
        if read {
            self.begin_read(now, id, attempt, effects);
        } else {
            self.begin_update(now, id, attempt, effects);
        }
    }

    /// Whether so few replicas of a partition that the last run touched, or missed keys of, have all data
    /// that nothing can be decided there.
    fn lacks_replicas(&self, home: Option<u16>) -> bool {
        let partitions = self.config.partitions.len();
        let can_decide =
            |partition| self.group(partition).is_some_and(|group| group.quorums.can_decide());
        let all = self.groups.iter().all(|group| group.quorums.can_decide());
        let missing = self.work.missing.iter().map(|key| &key[..]);
        let touched = self.work.items().map(|item| item.key).chain(missing);
        let touched = touched.map(|key| partition_of(key, partitions));
        !all && !touched.chain(home).all(can_decide)
    }

    /// An attempt with a part for each partition that the workspace touched.
    pub(crate) fn new_attempt(&mut self, now: Now, slot: Slot, read: bool) -> Attempt {
        let mut attempt = self.spare_attempts.pop().unwrap_or_else(|| Attempt {
            slot,
            combined: Vec::new(),
            stage: Stage::Reading,
            parts: Vec::new(),
            seen: NodeSet::EMPTY,
            started: now.monotonic,
            timeouts: 0,
            superseded: false,
            conflict: None,
            obstructs: false,
            durable_at: Lsn::START,
        });
        attempt.slot = slot;
        attempt.stage = if read { Stage::Reading } else { Stage::Voting };
        attempt.started = now.monotonic;
        attempt.timeouts = 0;
        attempt.superseded = false;
        attempt.conflict = None;
        attempt.obstructs = false;
        attempt.durable_at = Lsn::START;
        attempt.seen = NodeSet::only(self.config.node);
        let partitions = self.config.partitions.len();
        let call = self.ops.get(slot).and_then(|op| op.call.as_ref());
        let home = call.map(|call| call.home);
        let call = call.map(|call| Answered { call: call.permit.call, answer: self.work.answer() });
        let touched = self.work.items().map(|item| partition_of(item.key, partitions)).chain(home);
        let touched = touched.fold(0u64, |set, partition| set | 1 << partition);
        let count = touched.count_ones() as usize;
        attempt.parts.truncate(count);
        attempt.parts.resize_with(count, Part::default);
        let numbers = (0..partitions as u16).filter(|number| touched & 1 << number != 0);
        for (part, partition) in attempt.parts.iter_mut().zip(numbers) {
            part.restart();
            part.partition = partition;
            part.body.clear();
            let call = call.filter(|_| home == Some(partition));
            let mut writer = BodyWriter::new(&mut part.body, call);
            for item in self.work.items() {
                if count == 1 || partition_of(item.key, partitions) == partition {
                    writer.item(&item);
                }
            }
            writer.finish();
        }
        attempt
    }

    // --- updates -------------------------------------------------------------------------------

    /// Validates at this node first: what fails here costs no message. Then asks the others.
    pub(crate) fn begin_update(
        &mut self,
        now: Now,
        id: Timestamp,
        mut attempt: Attempt,
        effects: &mut impl Effects<Self>,
    ) {
        let slot = attempt.slot;
        if let Err(conflict) = self.validate_here(id, &mut attempt) {
            return self.fail(now, attempt, conflict, false, effects);
        }
        let participants = attempt.participants();
        for part in &attempt.parts {
            if self.votes_on(part.partition) {
                let mut body = self.spare_bodies.pop().unwrap_or_default();
                body.extend_from_slice(&part.body);
                let record = TxnRecord::voted(participants, body, Ok(()), now.monotonic);
                let key = RecordKey::new(id, part.partition);
                self.records.insert(key, record);
                self.append_vote(key, effects);
            }
        }
        if let Some(op) = self.ops.get_mut(slot) {
            op.attempt = Some(id.version);
        }
        self.pass_followers(slot, Some(id));
        self.attempts.insert(id.version, attempt);
        self.wait_for_log(id.version);
        self.send_validates(id, effects);
        self.inform_others(id.version, effects);
        self.fast_checks.push(now.monotonic + self.config.message_loss_timeout / 4, id.version);
        self.resends.push(now.monotonic + self.config.message_loss_timeout, id.version);
        self.evaluate(now, id.version, false, effects);
    }

    fn validate_here(&mut self, id: Timestamp, attempt: &mut Attempt) -> Result<(), Conflict> {
        for index in 0..attempt.parts.len() {
            let part = &attempt.parts[index];
            if !self.votes_on(part.partition) {
                continue;
            }
            let verdict = self.judge(id, part.partition, Body::trusted(&part.body));
            if let Err(conflict) = verdict {
                for earlier in &attempt.parts[..index] {
                    self.release_at(id, earlier.partition, Body::trusted(&earlier.body));
                }
                return Err(conflict);
            }
            attempt.parts[index].ok = NodeSet::only(self.config.node);
        }
        Ok(())
    }

    /// This replica's verdict on a transaction it sees for the first time.
    pub(crate) fn judge(
        &mut self,
        id: Timestamp,
        partition: u16,
        body: Body<'_>,
    ) -> Result<(), Conflict> {
        if id.version <= self.epoch_floor && !mutant!("meerkat_no_epoch_floor") {
            let with = Timestamp::new(self.epoch_floor, id.writer);
            return Err(Conflict { reason: Reason::BelowFloor, with });
        }
        if let Some(answered) = body.call() {
            self.judge_call(id, partition, &answered)?;
        }
        let whole = self.absence_floor;
        occ::validate(&mut self.table, id, body, |table| table.least(FLOOR).max(whole))?;
        self.mark_call(id, partition, body);
        Ok(())
    }

    /// Takes back what [`Meerkat::judge`] has registered.
    pub(crate) fn release_at(&mut self, id: Timestamp, partition: u16, body: Body<'_>) {
        occ::release(&mut self.table, id, body);
        self.unmark_call(id, partition, body);
    }

    /// Sends VALIDATE to the replicas that have not voted.
    pub(crate) fn send_validates(&mut self, id: Timestamp, effects: &mut impl Effects<Self>) {
        let stable = self.own_stable().min(self.guests_low());
        let Some(attempt) = self.attempts.get(&id.version) else { return };
        let participants = attempt.participants();
        for part in &attempt.parts {
            let Some(group) = self.groups.get(usize::from(part.partition)) else { continue };
            let voted = part.ok.union(part.abort);
            // A backup decides, and may have said so already: who voted tells the end as well.
            let is_asked = attempt.superseded && !mutant!("meerkat_superseded_asks_nobody");
            let heard = if is_asked { NodeSet::EMPTY } else { voted };
            let kind = Kind::Validate { id, stable, participants, body: Body::trusted(&part.body) };
            let to = group.live.difference(heard).without(self.config.node);
            if !to.is_empty() {
                effects.broadcast(to, &Message { partition: part.partition, kind });
            }
        }
        self.announced = self.announced.max(stable);
    }

    // --- reads ---------------------------------------------------------------------------------

    /// A transaction that writes nothing: one round trip to a read quorum, no record, no decision
    /// to tell (N8). Each replica of the quorum confirms that what was read is still there and
    /// lets nobody write below the reader's timestamp from then on.
    fn begin_read(
        &mut self,
        now: Now,
        at: Timestamp,
        mut attempt: Attempt,
        effects: &mut impl Effects<Self>,
    ) {
        let slot = attempt.slot;
        for part in &mut attempt.parts {
            if self.groups[usize::from(part.partition)].live.contains(self.config.node) {
                match self.confirm(at, Body::trusted(&part.body)) {
                    Ok(()) => part.ok.insert(self.config.node),
                    Err(conflict) => return self.fail(now, attempt, conflict, false, effects),
                }
            }
        }
        self.read_high = self.read_high.max(at.version);
        self.reserve(at.version, effects);
        let spin = self.rng.next_u64() as usize;
        for part in &attempt.parts {
            let group = self.groups[usize::from(part.partition)];
            let needed = group.quorums.read().saturating_sub(part.ok.len());
            let others = group.live.difference(part.ok);
            let count = others.len().max(1);
            let chosen: NodeSet =
                (0..needed).filter_map(|i| others.nth((spin.wrapping_add(i)) % count)).collect();
            let kind = Kind::Check { at, body: Body::trusted(&part.body) };
            if !chosen.is_empty() {
                effects.broadcast(chosen, &Message { partition: part.partition, kind });
            }
        }
        if let Some(op) = self.ops.get_mut(slot) {
            op.attempt = Some(at.version);
        }
        self.pass_followers(slot, None);
        self.attempts.insert(at.version, attempt);
        self.resends.push(now.monotonic + self.config.message_loss_timeout, at.version);
        self.evaluate_read(at.version, effects);
    }

    /// Asks every replica that has not confirmed yet.
    pub(crate) fn send_checks(&mut self, at: Timestamp, effects: &mut impl Effects<Self>) {
        let Some(attempt) = self.attempts.get(&at.version) else { return };
        for part in &attempt.parts {
            let Some(group) = self.groups.get(usize::from(part.partition)) else { continue };
            let to = group.live.difference(part.ok).without(self.config.node);
            let kind = Kind::Check { at, body: Body::trusted(&part.body) };
            if part.ok.len() < group.quorums.read() && !to.is_empty() {
                effects.broadcast(to, &Message { partition: part.partition, kind });
            }
        }
    }

    pub(crate) fn on_checked(
        &mut self,
        now: Now,
        from: quorate_types::NodeId,
        partition: u16,
        at: Timestamp,
        result: Result<(), Conflict>,
        effects: &mut impl Effects<Self>,
    ) {
        let reading = |attempt: &&mut Attempt| attempt.stage == Stage::Reading;
        let Some(attempt) = self.attempts.get_mut(&at.version).filter(reading) else {
            return effects.ignored("meerkat: CHECKED of a finished read");
        };
        match result {
            Ok(()) => {
                if let Some(part) = attempt.part(partition) {
                    part.ok.insert(from);
                }
                self.evaluate_read(at.version, effects);
            }
            Err(conflict) => {
                let attempt = self.attempts.remove(&at.version).expect("just looked at");
                self.fail(now, attempt, conflict, true, effects);
            }
        }
    }

    fn evaluate_read(&mut self, version: u64, effects: &mut impl Effects<Self>) {
        let Some(attempt) = self.attempts.get(&version) else { return };
        let confirmed = attempt.parts.iter().all(|part| {
            let group = self.groups[usize::from(part.partition)];
            part.ok.intersection(group.live).len() >= group.quorums.read()
        });
        if !confirmed {
            return;
        }
        self.count(Counter::ReadsConfirmed);
        let Some(mut attempt) = self.attempts.remove(&version) else { return };
        let members = core::mem::take(&mut attempt.combined);
        self.answer_all(attempt.slot, members, Timestamp::new(version, self.writer()), effects);
        self.recycle(attempt);
    }

    // --- the ends of attempts ------------------------------------------------------------------

    /// Answers a client whose attempt has committed.
    pub(crate) fn answer(&mut self, slot: Slot, at: Timestamp, effects: &mut impl Effects<Self>) {
        if let Some(op) = self.ops.get_mut(slot)
            && let Some(reply) = op.reply.take()
        {
            if core::mem::take(&mut op.rereads) && op.attempts < limits::TXN_ATTEMPTS_MAX {
                // The reply shows the version of the expired value; WATCH needs that of its deletion.
                op.attempts += 1;
                op.attempt = None;
                self.enter_line(slot);
                self.ready.push_back(slot);
                return;
            }
            let tag = op.tag;
            let gate = self.reserved_gate(at.version);
            effects.complete_on(tag, Completion::new(Outcome::Done(reply)).at(at).behind(gate));
            self.end_op(slot);
        }
    }

    /// Answers a client that has nothing to rely on at a timestamp.
    pub(crate) fn finish(
        &mut self,
        slot: Slot,
        outcome: Outcome<X::Reply>,
        effects: &mut impl Effects<Self>,
    ) {
        if let Some(op) = self.ops.get(slot) {
            effects.complete(op.tag, outcome);
            self.end_op(slot);
        }
    }

    /// Forgets a transaction that was answered; the next one in its line may go.
    fn end_op(&mut self, slot: Slot) {
        self.end_pause(slot);
        let Some(op) = self.ops.remove(slot) else { return };
        // Nobody waits for the answer to its question any more, or would ask it again.
        let question = op.attempt.filter(|version| {
            let alone = |attempt: &Attempt| attempt.is_question() && attempt.combined.is_empty();
            self.attempts.get(version).is_some_and(alone)
                && !mutant!("meerkat_question_outlives_its_op")
        });
        if let Some(version) = question {
            self.attempts.remove(&version);
        }
        for key in op.keys {
            self.leave_key(op.origin, key, slot);
        }
        // Deadlines come in order of submission: the list is as long as the oldest op is old.
        self.op_deadlines.oldest(|slot| self.ops.get(*slot).is_some());
        let next = self.gather(op.followers);
        self.ready.extend(next);
        if op.in_line
            && let Some(line) = self.lines.get_mut(&op.origin)
        {
            line.retain(|(_, other)| *other != slot);
            match line.first() {
                None => {
                    self.lines.remove(&op.origin);
                }
                Some(&(_, next)) => self.ready.push_back(next),
            }
        }
    }

    /// An attempt that only this node knows, or that reads, has failed.
    fn fail(
        &mut self,
        now: Now,
        mut attempt: Attempt,
        conflict: Conflict,
        lost: bool,
        effects: &mut impl Effects<Self>,
    ) {
        let slot = self.disband(attempt.slot, core::mem::take(&mut attempt.combined));
        self.recycle(attempt);
        self.count_conflict(conflict);
        self.retry(now, slot, conflict, lost, effects);
    }

    /// An attempt failed: tries again once the blocker is gone, if this lane will learn of its end,
    /// or after a pause. `lost` says that other nodes have let another one go first.
    pub(crate) fn retry(
        &mut self,
        now: Now,
        slot: Slot,
        conflict: Conflict,
        lost: bool,
        effects: &mut impl Effects<Self>,
    ) {
        let refused = self.lose_call(slot, conflict.reason);
        let blocker = self.blocker(conflict);
        let Some(op) = self.ops.get_mut(slot) else { return };
        op.attempt = None;
        op.reply = None;
        op.above = op.above.max(conflict.with.version);
        // Waiting ends by itself; losing need not.
        op.attempts += u32::from(lost || blocker.is_none());
        if let Some(refusal) = refused {
            return self.finish(slot, self.refused(slot, refusal), effects);
        }
        if op.attempts >= limits::TXN_ATTEMPTS_MAX {
            return self.finish(slot, self.refused(slot, Refusal::Conflict), effects);
        }
        self.count(Counter::Retries);
        self.enter_line(slot);
        match blocker {
            Some(id) => self.blocked_on.entry(id).or_default().push(slot),
            None => self.pause(now, slot),
        }
    }

    /// Starts the ops whose time has come.
    pub(crate) fn run_ready(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        while let Some(slot) = self.ready.pop_front() {
            if self.phase != Phase::Normal {
                // The release starts every line again.
                continue;
            }
            let Some(op) = self.ops.get(slot) else { continue };
            let is_due = op.backoff.is_none_or(|at| at <= now.monotonic);
            if op.attempt.is_none() && is_due && self.is_first_in_line(slot) {
                self.start(now, slot, effects);
            }
        }
    }

    /// Keeps an attempt's memory for the next one.
    pub(crate) fn recycle(&mut self, mut attempt: Attempt) {
        if self.spare_attempts.len() < SPARE_ATTEMPTS_MAX {
            attempt.shed();
            self.spare_attempts.push(attempt);
        }
    }

    /// Everything that this lane started up to here is final on all replicas.
    pub(crate) fn own_stable(&self) -> u64 {
        self.attempts.oldest_update().map_or(self.last_issued, |version| version - 1)
    }

    /// Confirms every read of a read-only transaction at this replica.
    pub(crate) fn confirm(&mut self, at: Timestamp, body: Body<'_>) -> Result<(), Conflict> {
        let whole = self.absence_floor;
        occ::confirm_reads(&mut self.table, at, body, |table| table.least(FLOOR).max(whole))
    }
}
