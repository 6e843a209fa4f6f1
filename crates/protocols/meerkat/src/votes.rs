//! The coordinator: counts votes and acceptances, decides, and tells everybody (§5.2.2, §5.2.3).

use alloc::vec::Vec;

use quorate_machine::{Command, Effects, LaneShared, Table, mutant};
use quorate_types::{NodeId, NodeSet, Now, Timestamp};

use crate::attempt::{Attempt, Part, Stage};
use crate::body::Body;
use crate::message::{Kind, Message, Vote};
use crate::meta::Meta;
use crate::occ::{Conflict, Reason};
use crate::state::{Counter, Isolation, Meerkat};
use crate::txn_record::RecordKey;

/// A transaction of so many bytes is sent again one timeout later for each of them.
const LARGE_BYTES: usize = 256 * 1024;

/// What the votes of a partition call for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// More votes.
    Wait,
    /// Nothing: its vote is durable.
    Chosen(bool),
    /// The slow path.
    Propose(bool),
}

impl<T, X> Meerkat<T, X>
where
    T: Table<Meta = Meta> + LaneShared,
    X: Command<Owned = X>,
{
    /// VOTE: counted by replica, within this epoch and view 0.
    pub(crate) fn on_vote(
        &mut self,
        now: Now,
        from: NodeId,
        partition: u16,
        id: Timestamp,
        vote: Vote,
        effects: &mut impl Effects<Self>,
    ) {
        let Some(attempt) = self.open_attempt(id) else {
            return effects.ignored("meerkat: VOTE on a finished attempt");
        };
        attempt.seen.insert(from);
        let Some(part) = attempt.part(partition) else {
            return effects.ignored("meerkat: VOTE of a partition that takes no part");
        };
        match vote {
            Ok(()) => part.ok.insert(from),
            Err(conflict) => {
                part.abort.insert(from);
                attempt.meets(conflict);
                self.count_conflict(conflict);
            }
        }
        self.evaluate(now, id.version, false, effects);
    }

    /// ACCEPTED: the slow path's acknowledgement, of this coordinator or of a backup here.
    pub(crate) fn on_accepted(
        &mut self,
        now: Now,
        from: NodeId,
        partition: u16,
        id: Timestamp,
        view: u64,
        effects: &mut impl Effects<Self>,
    ) {
        if view > 0 {
            return self.on_recovery_accepted(now, from, partition, id, view, effects);
        }
        let Some(attempt) = self.open_attempt(id) else {
            return effects.ignored("meerkat: ACCEPTED of a finished attempt");
        };
        attempt.seen.insert(from);
        if let Some(part) = attempt.part(partition) {
            part.accepted.insert(from);
        }
        self.evaluate(now, id.version, false, effects);
    }

    /// SUPERSEDED: a backup has taken over; its decision will come. Never a guess (N4.4).
    pub(crate) fn on_superseded(
        &mut self,
        now: Now,
        from: NodeId,
        id: Timestamp,
        view: u64,
        effects: &mut impl Effects<Self>,
    ) {
        if let Some(recovery) = self.recoveries.get(&id)
            && view > recovery.view
        {
            self.recoveries.remove(&id);
        }
        match self.open_attempt(id) {
            Some(attempt) => {
                attempt.seen.insert(from);
                attempt.superseded = true;
                effects.probe("meerkat: coordinator superseded");
                if mutant!("meerkat_superseded_guesses") {
                    self.decide(now, id.version, false, effects);
                }
            }
            None => effects.ignored("meerkat: SUPERSEDED about a finished attempt"),
        }
    }

    /// An own update that is not decided.
    fn open_attempt(&mut self, id: Timestamp) -> Option<&mut Attempt> {
        let own = id.writer == self.writer();
        self.attempts.get_mut(&id.version).filter(|attempt| own && attempt.is_open_update())
    }

    /// Does what the votes of an attempt call for. `late` says that those who have not voted by now
    /// may be dead.
    pub(crate) fn evaluate(
        &mut self,
        now: Now,
        version: u64,
        late: bool,
        effects: &mut impl Effects<Self>,
    ) {
        let Some(attempt) = self.attempts.get(&version) else { return };
        if attempt.stage != Stage::Voting {
            return self.try_commit(now, version, effects);
        }
        for index in 0..attempt.parts.len() {
            match self.next_step(version, index, late) {
                Step::Wait => {}
                Step::Chosen(ok) => {
                    let attempt = self.attempts.get_mut(&version).expect("just looked at");
                    attempt.parts[index].chosen = Some(ok);
                }
                Step::Propose(ok) => self.propose(version, index, ok, effects),
            }
        }
        match self.attempts.get(&version).and_then(Attempt::outcome) {
            None => {}
            Some(false) => self.decide(now, version, false, effects),
            Some(true) => {
                self.attempts.get_mut(&version).expect("just looked at").stage = Stage::CommitWait;
                self.try_commit(now, version, effects);
            }
        }
    }

    /// This node, as long as its own entries about an attempt are not on its disk: its vote and its
    /// acceptance count for nothing until then.
    fn unwritten(&self, attempt: &Attempt) -> NodeSet {
        if self.journal.is_durable(attempt.durable_at) {
            return NodeSet::EMPTY;
        }
        NodeSet::only(self.config.node)
    }

    fn next_step(&self, version: u64, index: usize, late: bool) -> Step {
        let attempt = &self.attempts[&version];
        let part = &attempt.parts[index];
        let group = self.groups[usize::from(part.partition)];
        let quorums = group.quorums;
        let unwritten = self.unwritten(attempt);
        // A slow disk is no silent replica.
        let late = late && unwritten.is_empty();
        if part.chosen.is_some() {
            return Step::Wait;
        }
        if let Some(ok) = part.proposal
            && !(mutant!("meerkat_votes_after_proposal") && part.ok.len() >= quorums.fast)
        {
            let accepted = part.accepted.intersection(group.live).difference(unwritten).len();
            return if accepted >= quorums.majority { Step::Chosen(ok) } else { Step::Wait };
        }
        let (ok, abort) = (part.ok.difference(unwritten).len(), part.abort.len());
        if ok >= quorums.fast {
            return Step::Chosen(true);
        }
        // Before anybody has answered in this epoch, the last one may have committed it: a guest
        // keeps no record of how an epoch ended.
        let is_new = ok + abort > 0
            || group.live.is_empty() && self.has_been_asked(attempt)
            || mutant!("meerkat_abort_unasked");
        let too_few = mutant!("meerkat_few_aborts_final") && abort >= quorums.majority;
        if is_new && (abort >= quorums.fast || quorums.abort_is_final(abort) || too_few) {
            return Step::Chosen(false);
        }
        if attempt.superseded {
            return Step::Wait;
        }
        let out = quorums.live - ok - abort;
        let hopeless = ok.max(abort) + out < quorums.fast;
        if !hopeless && !late {
            return Step::Wait;
        }
        if ok >= quorums.majority {
            Step::Propose(true)
        } else if ok + out < quorums.majority || (late && ok + abort >= quorums.majority) {
            Step::Propose(false)
        } else {
            Step::Wait
        }
    }

    /// Whether some replica of each partition that has any has answered in this epoch.
    fn has_been_asked(&self, attempt: &Attempt) -> bool {
        let is_answered = |part: &Part| {
            let nobody = self.groups[usize::from(part.partition)].live.is_empty();
            nobody || !part.ok.union(part.abort).is_empty()
        };
        attempt.parts.iter().all(is_answered) && !mutant!("meerkat_lost_group_asked")
    }

    /// The slow path: a majority must accept the proposal. From here on votes decide nothing (the
    /// one-way door, N3.4-8).
    fn propose(&mut self, version: u64, index: usize, ok: bool, effects: &mut impl Effects<Self>) {
        let id = Timestamp::new(version, self.writer());
        let partition = self.attempts[&version].parts[index].partition;
        let key = RecordKey::new(id, partition);
        if let Some(record) = self.records.get_mut(&key) {
            if record.view > 0 {
                let attempt = self.attempts.get_mut(&version).expect("its caller looked at it");
                attempt.superseded = true;
                return;
            }
            record.accept(0, ok);
        }
        let here = self.records.contains_key(&key) && self.votes_on(partition);
        let node = self.config.node;
        let attempt = self.attempts.get_mut(&version).expect("its caller looked at it");
        let part = &mut attempt.parts[index];
        part.proposal = Some(ok);
        if here {
            part.accepted.insert(node);
            self.append_record(key, effects);
            self.wait_for_log(version);
        }
        effects.probe("meerkat: slow path");
        self.send_accept(version, index, effects);
        let attempt = &self.attempts[&version];
        let accepted = attempt.parts[index].accepted.difference(self.unwritten(attempt));
        let group = self.groups[usize::from(partition)];
        if accepted.intersection(group.live).len() >= group.quorums.majority {
            let attempt = self.attempts.get_mut(&version).expect("just looked at");
            attempt.parts[index].chosen = Some(ok);
        }
    }

    /// Sends ACCEPT to the replicas that have not accepted.
    pub(crate) fn send_accept(&self, version: u64, index: usize, effects: &mut impl Effects<Self>) {
        let attempt = &self.attempts[&version];
        let part = &attempt.parts[index];
        let Some(ok) = part.proposal else { return };
        let id = Timestamp::new(version, self.writer());
        let participants = attempt.participants();
        let body = Some(Body::trusted(&part.body));
        let kind = Kind::Accept { id, view: 0, ok, participants, body };
        let group = self.groups[usize::from(part.partition)];
        let to = group.live.difference(part.accepted).without(self.config.node);
        if !to.is_empty() {
            effects.broadcast(to, &Message { partition: part.partition, kind });
        }
    }

    /// Commits an attempt whose votes allow it. Under strict isolation not before every node that
    /// may start a transaction is past its timestamp: each has answered something about it, or the
    /// configured skew has passed.
    pub(crate) fn try_commit(&mut self, now: Now, version: u64, effects: &mut impl Effects<Self>) {
        let Some(attempt) = self.attempts.get(&version) else { return };
        if attempt.stage != Stage::CommitWait {
            return;
        }
        if self.config.isolation == Isolation::Strict
            && !self.view.active().is_subset(attempt.seen)
            && !mutant!("meerkat_no_commit_wait")
        {
            let until = version.saturating_add(self.config.max_clock_skew.as_nanos() as u64);
            let clock = self.clock(now);
            if clock < until {
                let at = now.monotonic + quorate_types::Duration::from_nanos(until - clock);
                let waits = |(at, other): &(_, _)| *other == version && *at >= now.monotonic;
                if !self.commit_waits.iter().any(waits) {
                    effects.probe("meerkat: commit-wait");
                    self.count(Counter::CommitWaits);
                    self.commit_waits.insert(at, version);
                }
                return;
            }
        }
        self.decide(now, version, true, effects);
    }

    /// The end of an attempt: the client first, then this replica, then the others (§5.2.2 step 3).
    pub(crate) fn decide(
        &mut self,
        now: Now,
        version: u64,
        commit: bool,
        effects: &mut impl Effects<Self>,
    ) {
        let id = Timestamp::new(version, self.writer());
        let attempt = self.attempts.get_mut(&version).expect("only what is open is decided");
        let slow = attempt.parts.iter().any(|part| part.proposal.is_some());
        let (mut slot, conflict) = (attempt.slot, attempt.conflict);
        attempt.stage = Stage::Closing { commit };
        let members = core::mem::take(&mut attempt.combined);
        // What several clients have done, none of them has.
        let alone = self.ops.get(slot).filter(|_| members.is_empty());
        let origin = alone.map_or(0, |op| op.origin);
        if commit {
            self.leave_turn(now, version);
            self.count(if slow { Counter::CommitsSlow } else { Counter::CommitsFast });
            self.answer_all(slot, members, id, effects);
        } else {
            slot = self.disband(slot, members);
            // Who waited for the attempt waits for the next one.
            if self.ops.get(slot).is_some() && self.is_first_in_line(slot) {
                let parked = self.blocked_on.remove(&id).unwrap_or_default();
                let parked = self.gather(parked);
                if let Some(op) = self.ops.get_mut(slot) {
                    op.followers.extend(parked);
                }
            }
        }
        self.table.set_writer(origin);
        for index in 0..self.attempts[&version].parts.len() {
            self.tell(now, id, index, commit, effects);
        }
        self.table.set_writer(0);
        if commit {
            self.wake_parked(id);
        } else {
            self.scatter_parked(now, id);
            self.count(Counter::AbortsLost);
            // Without a reason: replicas were silent, or a backup coordinator gave it up.
            let lost = Conflict { reason: Reason::StaleRead, with: Timestamp::ZERO };
            self.retry(now, slot, conflict.unwrap_or(lost), true, effects);
        }
        if self.try_close(version) {
            self.advance_own_stable();
        }
    }

    /// Ends the transaction in one partition: here, and at all other replicas.
    pub(crate) fn tell(
        &mut self,
        now: Now,
        id: Timestamp,
        index: usize,
        commit: bool,
        effects: &mut impl Effects<Self>,
    ) {
        let partition = self.attempts[&id.version].parts[index].partition;
        let key = RecordKey::new(id, partition);
        if self.records.contains_key(&key) {
            // What it read was here, or is since the epoch in which another replica was asked.
            let has_ended = self.end_record(now, key, commit, effects);
            assert!(has_ended, "{id:?} changes what is not here");
            self.end_dependents(now, id, effects);
            self.wait_for_log(id.version);
        }
        let group = self.groups[usize::from(partition)];
        let part = &self.attempts[&id.version].parts[index];
        let others = group.live.without(self.config.node);
        let message = |body| Message { partition, kind: Kind::Decided { id, commit, body } };
        if !others.is_empty() {
            effects.broadcast(others, &message(None));
        }
        let learners = group.learners.without(self.config.node);
        if !learners.is_empty() && !mutant!("meerkat_learners_not_told") {
            let body = commit.then(|| Body::trusted(&part.body));
            effects.broadcast(learners, &message(body));
        }
    }

    /// The replicas that must know how a transaction ended.
    fn others(&self, partition: u16) -> NodeSet {
        let group = self.groups[usize::from(partition)];
        if mutant!("meerkat_learners_not_told") {
            return group.live.without(self.config.node);
        }
        group.live.union(group.learners).without(self.config.node)
    }

    /// The transactions that have committed here of which some replica may not have heard, and those replicas;
    /// for checks in a simulation.
    pub fn untold(&self) -> Vec<(u64, NodeSet)> {
        let lacking = |attempt: &Attempt| {
            let parts = attempt.parts.iter();
            let lacking = parts.map(|part| self.others(part.partition).difference(part.acked));
            lacking.fold(NodeSet::EMPTY, NodeSet::union)
        };
        let commit = Stage::Closing { commit: true };
        let commits = self.attempts.updates().filter(|(_, attempt)| attempt.stage == commit);
        commits.map(|(version, attempt)| (version, lacking(attempt))).collect()
    }

    /// Forgets a decided attempt once every replica knows its end. Returns whether it did: then
    /// [`Meerkat::advance_own_stable`] may have something to drop.
    pub(crate) fn try_close(&mut self, version: u64) -> bool {
        let Some(attempt) = self.attempts.get(&version) else { return false };
        let known =
            attempt.parts.iter().all(|part| self.others(part.partition).is_subset(part.acked));
        if !known || !matches!(attempt.stage, Stage::Closing { .. }) {
            return false;
        }
        // The others forget the transaction: it must not come back undecided here.
        if !self.unwritten(attempt).is_empty() && !mutant!("meerkat_own_end_forgotten_early") {
            return false;
        }
        if let Some(attempt) = self.attempts.remove(&version) {
            self.recycle(attempt);
        }
        true
    }

    pub(crate) fn advance_own_stable(&mut self) {
        let stable = self.own_stable();
        self.advance_stable(self.writer(), stable);
    }

    /// ACKED: a replica knows the ends of these transactions: own ones, or those of guests that were
    /// named to it.
    pub(crate) fn on_acked(
        &mut self,
        from: NodeId,
        partition: u16,
        bytes: &[u8],
        effects: &mut impl Effects<Self>,
    ) {
        let mut closed = false;
        for id in crate::message::ids(bytes) {
            let own = id.writer == self.writer();
            if !own && id.writer.is_guest() {
                self.note_aware(from, RecordKey::new(id, partition));
                continue;
            }
            let Some(attempt) = self.attempts.get_mut(&id.version).filter(|_| own) else {
                effects.ignored("meerkat: ACKED of a closed attempt");
                continue;
            };
            if let Some(part) = attempt.part(partition) {
                part.acked.insert(from);
            }
            closed |= self.try_close(id.version);
        }
        if closed {
            self.advance_own_stable();
        }
    }

    /// PULL: a replica lacks what a committed transaction did. Of a guest's, every replica may tell
    /// that it has committed.
    pub(crate) fn on_pull(
        &mut self,
        from: NodeId,
        partition: u16,
        id: Timestamp,
        effects: &mut impl Effects<Self>,
    ) {
        let own = id.writer == self.writer();
        let known = self.records.get(&RecordKey::new(id, partition));
        if let Some(record) = known.filter(|record| !own && record.decision == Some(true)) {
            // An answer without the sets would only be asked about again, for ever.
            let Some(body) = record.body() else {
                return effects.ignored("meerkat: PULL of sets that are kept no more");
            };
            let kind = Kind::Decided { id, commit: true, body: Some(body) };
            return effects.send(from, &Message { partition, kind });
        }
        let Some(attempt) = self.attempts.get_mut(&id.version).filter(|_| own) else {
            return effects.ignored("meerkat: PULL of a closed attempt");
        };
        let stage = attempt.stage;
        if let Some(part) = attempt.part(partition)
            && stage == (Stage::Closing { commit: true })
        {
            let body = Some(Body::trusted(&part.body));
            let kind = Kind::Decided { id, commit: true, body };
            effects.send(from, &Message { partition, kind });
        }
    }

    /// Under strict isolation, tells the timestamp of an update to the members that have no replica
    /// of its partitions: what they start after its client is answered must come after it. GET
    /// without a key does that, with the timestamp as its number.
    pub(crate) fn inform_others(&self, version: u64, effects: &mut impl Effects<Self>) {
        let Some(attempt) = self.attempts.get(&version) else { return };
        if self.config.isolation != Isolation::Strict {
            return;
        }
        let asked = attempt.parts.iter().fold(attempt.seen, |asked, part| {
            asked.union(self.groups[usize::from(part.partition)].live)
        });
        let others = self.view.active().difference(asked).without(self.config.node);
        if !others.is_empty() {
            let kind = Kind::Get { request: version, keys: &[] };
            effects.broadcast(others, &Message { partition: 0, kind });
        }
    }

    /// The message loss timer of an attempt: sends again after one, two, four timeouts and so on,
    /// and later if it is large, so that what is only slow is not sent many times over.
    pub(crate) fn resend(&mut self, now: Now, version: u64, effects: &mut impl Effects<Self>) {
        let Some(attempt) = self.attempts.get_mut(&version) else { return };
        attempt.timeouts += 1;
        let bytes: usize = attempt.parts.iter().map(|part| part.body.len()).sum();
        let patience = (bytes / LARGE_BYTES) as u32;
        let due = attempt.timeouts.is_power_of_two() && attempt.timeouts > patience;
        if due {
            self.send_again(now, version, effects);
        } else {
            self.evaluate(now, version, true, effects);
        }
        if self.attempts.get(&version).is_some() {
            self.resends.push(now.monotonic + self.config.message_loss_timeout, version);
        }
    }

    fn send_again(&mut self, now: Now, version: u64, effects: &mut impl Effects<Self>) {
        let Some(attempt) = self.attempts.get(&version) else { return };
        let id = Timestamp::new(version, self.writer());
        match attempt.stage {
            Stage::Fetching => self.send_gets(version, effects),
            Stage::Asking => self.send_find(version, effects),
            Stage::Reading => self.send_checks(id, effects),
            Stage::Voting => {
                self.send_validates(id, effects);
                for index in 0..self.attempts[&version].parts.len() {
                    self.send_accept(version, index, effects);
                }
                self.inform_others(version, effects);
                self.evaluate(now, version, true, effects);
            }
            Stage::CommitWait => {
                self.inform_others(version, effects);
                self.try_commit(now, version, effects);
            }
            Stage::Closing { commit } => {
                for part in &attempt.parts {
                    let to = self.others(part.partition).difference(part.acked);
                    let body = commit.then(|| Body::trusted(&part.body));
                    let kind = Kind::Decided { id, commit, body };
                    if !to.is_empty() {
                        effects.broadcast(to, &Message { partition: part.partition, kind });
                    }
                }
            }
        }
    }

    /// A backup coordinator, or an epoch change, has decided an own transaction.
    pub(crate) fn on_own_decided(
        &mut self,
        now: Now,
        id: Timestamp,
        commit: bool,
        effects: &mut impl Effects<Self>,
    ) {
        if self.open_attempt(id).is_some() {
            effects.probe("meerkat: decided by a backup");
            self.decide(now, id.version, commit, effects);
        }
    }
}
