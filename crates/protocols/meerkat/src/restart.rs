//! Own attempts at the end of an epoch and at the beginning of the next one: over, or validated anew.

use alloc::vec::Vec;

use quorate_machine::{Command, Effects, LaneShared, Table, mutant};
use quorate_types::{Lsn, NodeSet, Now, Timestamp};

use crate::attempt::{Part, Stage};
use crate::body::Body;
use crate::message::Vote;
use crate::meta::Meta;
use crate::records::Records;
use crate::state::Meerkat;
use crate::txn_record::{RecordKey, TxnRecord};

impl<T, X> Meerkat<T, X>
where
    T: Table<Meta = Meta> + LaneShared,
    X: Command<Owned = X>,
{
    /// Own attempts of the last epoch: over, or validated anew under the same id.
    pub(crate) fn restart_attempts(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        let versions = self.attempts.versions();
        self.resends.clear();
        for version in versions {
            let id = Timestamp::new(version, self.writer());
            let Some(attempt) = self.attempts.get_mut(&version) else { continue };
            attempt.seen = NodeSet::only(self.config.node);
            attempt.superseded = false;
            attempt.timeouts = 0;
            attempt.durable_at = Lsn::START;
            if let Stage::Closing { commit } = attempt.stage {
                self.close_settled(version, commit);
                continue;
            }
            attempt.stage = Stage::Voting;
            attempt.parts.iter_mut().for_each(Part::restart);
            let ends: Vec<Option<bool>> = attempt
                .parts
                .iter()
                .map(|part| {
                    let record = self.records.get(&RecordKey::new(id, part.partition));
                    record.and_then(|record| record.decision)
                })
                .collect();
            if let Some(commit) = ends.into_iter().flatten().next() {
                let active = self.view.active();
                if let Some(attempt) = self.attempts.get_mut(&version) {
                    attempt.seen = active;
                }
                self.decide(now, version, commit, effects);
            } else if !self.survives_epoch(id) {
                effects.probe("meerkat: a call's attempt ends with its epoch");
                self.decide(now, version, false, effects);
            } else {
                self.revalidate(now, version, effects);
            }
            if self.attempts.get(&version).is_some() {
                self.resends.push(now.monotonic + self.config.message_loss_timeout, version);
            }
        }
        let stable = self.own_stable();
        self.advance_stable(self.writer(), stable);
    }

    /// An own transaction that has ended in an earlier epoch is over. Every replica that goes on in this one
    /// has its end: the change has found the votes that decided it, or, of a member's, its own word for the
    /// end ([`Meerkat::report_ends`]). A guest's word counts for nothing. Where replicas have lost their
    /// votes with the power, the change may have settled something else, or may know nothing of it, and
    /// nobody would acknowledge the guest's end.
    fn close_settled(&mut self, version: u64, commit: bool) {
        let id = Timestamp::new(version, self.writer());
        for part in &self.attempts[&version].parts {
            let record = self.records.get(&RecordKey::new(id, part.partition));
            let end = record.and_then(|record| record.decision);
            assert!(
                end == Some(commit) || self.config.guest.is_some(),
                "transaction {id:?} was decided here, and differently by the epoch change: {end:?}"
            );
        }
        if self.config.guest.is_some() && mutant!("meerkat_settled_kept_open") {
            return;
        }
        if let Some(attempt) = self.attempts.remove(&version) {
            self.recycle(attempt);
        }
    }

    /// Adds the ends of own transactions to what this lane reports of its epoch, for partitions without a
    /// replica here. Their replicas may have lost what they voted for, and the ends are known until all of
    /// them have acknowledged them.
    pub(crate) fn report_ends(&self, records: &mut Records) {
        if mutant!("meerkat_own_ends_not_reported") {
            return;
        }
        for version in self.attempts.versions() {
            let attempt = &self.attempts[&version];
            let Stage::Closing { commit } = attempt.stage else { continue };
            let participants = attempt.participants();
            for part in &attempt.parts {
                let key = RecordKey::new(Timestamp::new(version, self.writer()), part.partition);
                let body = if commit { part.body.clone() } else { Vec::new() };
                let decision = Some(commit);
                let end = TxnRecord { participants, body, decision, ..TxnRecord::default() };
                records.get_or_insert_with(key, || end);
            }
        }
    }

    /// Validates an attempt in the new epoch. Nobody had decided it in the old one.
    fn revalidate(&mut self, now: Now, version: u64, effects: &mut impl Effects<Self>) {
        let id = Timestamp::new(version, self.writer());
        let participants = self.attempts[&version].participants();
        for index in 0..self.attempts[&version].parts.len() {
            let partition = self.attempts[&version].parts[index].partition;
            let key = RecordKey::new(id, partition);
            if !self.votes_on(partition) {
                continue;
            }
            let vote = self.judge_anew(now, key, index, participants, effects);
            let node = self.config.node;
            let attempt = self.attempts.get_mut(&version).expect("its caller looked at it");
            match vote {
                Ok(()) => attempt.parts[index].ok.insert(node),
                Err(conflict) => {
                    attempt.parts[index].abort.insert(node);
                    attempt.meets(conflict);
                }
            }
        }
        self.send_validates(id, effects);
        self.inform_others(version, effects);
        self.fast_checks.push(now.monotonic + self.config.message_loss_timeout / 4, version);
        self.evaluate(now, version, false, effects);
    }

    /// This replica's verdict on an own transaction that the last epoch did not know of.
    fn judge_anew(
        &mut self,
        now: Now,
        key: RecordKey,
        index: usize,
        participants: u64,
        effects: &mut impl Effects<Self>,
    ) -> Vote {
        let body = self.attempts[&key.version].parts[index].body.clone();
        let vote = self.judge(key.id(), key.partition, Body::trusted(&body));
        let record = TxnRecord::voted(participants, body, vote, now.monotonic);
        self.records.insert(key, record);
        if vote.is_ok() {
            self.append_vote(key, effects);
            self.wait_for_log(key.version);
        }
        vote
    }
}
