//! Own attempts at the beginning of an epoch: over, told again, or validated anew.

use alloc::vec::Vec;

use quorate_machine::{Command, Effects, LaneShared, Table};
use quorate_types::{Lsn, NodeSet, Now, Timestamp};

use crate::attempt::{Part, Stage};
use crate::body::Body;
use crate::message::Vote;
use crate::meta::Meta;
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
                self.tell_again(now, version, commit, effects);
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

    /// Tells the end of an own transaction to the members of the new epoch. All keep it already if
    /// a replica knew it when the last epoch ended; but no replica of a partition need have known,
    /// if this node has none.
    fn tell_again(
        &mut self,
        now: Now,
        version: u64,
        commit: bool,
        effects: &mut impl Effects<Self>,
    ) {
        let id = Timestamp::new(version, self.writer());
        let Some(attempt) = self.attempts.get_mut(&version) else { return };
        attempt.parts.iter_mut().for_each(|part| part.acked = NodeSet::EMPTY);
        let mut kept = true;
        for part in &attempt.parts {
            let record = self.records.get(&RecordKey::new(id, part.partition));
            let end = record.and_then(|record| record.decision);
            assert!(
                end.is_none_or(|end| end == commit),
                "transaction {id:?} was decided here, and differently by the epoch change"
            );
            kept &= end.is_some();
        }
        if kept {
            if let Some(attempt) = self.attempts.remove(&version) {
                self.recycle(attempt);
            }
            return;
        }
        for index in 0..self.attempts[&version].parts.len() {
            self.tell(now, id, index, commit, effects);
        }
        self.resends.push(now.monotonic + self.config.message_loss_timeout, version);
        self.try_close(version);
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
