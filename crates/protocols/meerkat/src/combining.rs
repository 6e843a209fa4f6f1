//! Combining: transactions that wait for one another share an attempt.
//!
//! Of transactions that write one key, one is under way at a time. What has come to wait for it
//! meanwhile runs together when its turn comes: one after the other in one workspace, each on what
//! the one before has left, and all that they read and write is one transaction to the protocol: one
//! timestamp, one validation, one round trip. Every client hears the answer that its own gave in its
//! place. Nobody can see what was there in between, which is a history that they may have anyway.
//!
//! What is combined ends together: committed, unknown, or to be tried again, together again. Calls
//! go alone, since a transaction carries the answer of one. So do transactions that only read, which
//! stand in nobody's way and show versions.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::mem;

use quorate_machine::{Command, Effects, LaneShared, Slot, Table, Verdict, mutant};
use quorate_types::{Now, Timestamp, hash_key, partition_of};

use crate::meta::Meta;
use crate::state::Meerkat;

/// Transactions that share an attempt with the first, at most.
pub(crate) const COMBINED_MAX: usize = 255;
/// Bytes that these read and write, from which on no further one joins.
const COMBINED_BYTES_MAX: usize = 256 * 1024;

/// What becomes of those that wait for a transaction when an attempt at it begins.
#[derive(Debug, Default)]
pub(crate) struct Combined {
    /// They share the attempt; their answers are in their ops.
    pub(crate) members: Vec<Slot>,
    /// They wait until it has ended.
    waiting: Vec<Slot>,
    /// They have no key in common with it.
    apart: Vec<Slot>,
}

impl<T, X> Meerkat<T, X>
where
    T: Table<Meta = Meta> + LaneShared,
    X: Command<Owned = X>,
{
    /// Runs what waits for an op in the workspace in which that has just run: its followers, theirs,
    /// and what stands behind each of them in its origin's line; no more than `most`.
    ///
    /// # Errors
    /// How many may be combined, if one more has spoilt the workspace: it gave up after it had
    /// written, or is too much, or needs what isn't here.
    pub(crate) fn combine(
        &mut self,
        now: Now,
        slot: Slot,
        most: usize,
        effects: &mut impl Effects<Self>,
    ) -> Result<Combined, usize> {
        let mut combined = Combined::default();
        let shares = self.may_combine(slot) && self.work.fetched.is_empty();
        let mut candidates = VecDeque::new();
        self.list_candidates(slot, &mut candidates);
        let room = self.work.bytes() + COMBINED_BYTES_MAX;
        while let Some((other, follows)) = candidates.pop_front() {
            let waits = |op: &&crate::attempt::Op<_, _>| op.attempt.is_none() && op.reply.is_none();
            if self.ops.get(other).filter(waits).is_none() {
                continue;
            }
            let (meets, is_near) = self.compare_keys(other);
            if !meets {
                combined.apart.extend(follows.then_some(other));
                continue;
            }
            let has_room = combined.members.len() < most && self.work.bytes() < room
                || mutant!("meerkat_combines_without_end");
            if !(shares && is_near && has_room && self.may_combine(other)) {
                combined.waiting.extend(follows.then_some(other));
                continue;
            }
            if !self.join(now, other) {
                for member in combined.members.iter().chain([&slot]) {
                    self.ops.get_mut(*member).expect("it has just run").reply = None;
                }
                effects.probe("meerkat: combined anew without one");
                return Err(combined.members.len());
            }
            combined.members.push(other);
            self.list_candidates(other, &mut candidates);
        }
        if !combined.members.is_empty() {
            effects.probe("meerkat: transactions combined");
        }
        Ok(combined)
    }

    /// Lists what waits for an op: its followers, and what stands behind it in its origin's line.
    fn list_candidates(&self, slot: Slot, candidates: &mut VecDeque<(Slot, bool)>) {
        let Some(op) = self.ops.get(slot) else { return };
        candidates.extend(op.followers.iter().map(|follower| (*follower, true)));
        candidates.extend(self.next_in_line(slot).map(|next| (next, false)));
    }

    /// Lets those that were combined take part in an attempt, and the others wait for it or go on.
    pub(crate) fn assign(&mut self, slot: Slot, version: u64, combined: &mut Combined) {
        for member in &combined.members {
            self.end_pause(*member);
            self.enter_line(*member);
            if let Some(op) = self.ops.get_mut(*member) {
                op.attempt = Some(version);
                op.followers.clear();
            }
        }
        self.ready.extend(combined.apart.drain(..));
        if let Some(op) = self.ops.get_mut(slot) {
            op.followers = mem::take(&mut combined.waiting);
        }
    }

    /// An attempt has ended without effect: those that shared it wait for the first of them, to be
    /// tried again with it. Returns that one, if there is any that still waits for its answer.
    pub(crate) fn disband(&mut self, slot: Slot, mut members: Vec<Slot>) -> Slot {
        if mutant!("meerkat_combined_forgotten") {
            members.clear();
        }
        members.insert(0, slot);
        members.retain(|member| match self.ops.get_mut(*member) {
            Some(op) => {
                op.attempt = None;
                op.reply = None;
                true
            }
            None => false,
        });
        match members[..] {
            [] => slot,
            [alone] => alone,
            [any, ..] => {
                // The others stand in their lines already.
                self.enter_line(slot);
                self.gather(members).unwrap_or(any)
            }
        }
    }

    /// Runs one more op in the workspace. Returns whether that went well.
    fn join(&mut self, now: Now, slot: Slot) -> bool {
        if !mutant!("meerkat_combined_writes_watched") {
            self.work.hide_versions();
        }
        let written = self.work.writes();
        let Some(verdict) = self.execute(now, slot) else { return false };
        let gave_up = matches!(verdict, Verdict::Abandon(_))
            && self.work.writes() != written
            && !mutant!("meerkat_combined_keeps_abandoned");
        if gave_up
            || self.work.is_too_large()
            || !self.work.missing.is_empty()
            || (self.predecessor(slot).is_some() && !mutant!("meerkat_combined_out_of_line"))
        {
            return false;
        }
        let (Verdict::Commit(reply) | Verdict::Abandon(reply)) = verdict;
        if let Some(op) = self.ops.get_mut(slot) {
            op.reply = Some(reply);
        }
        true
    }

    /// Whether an op is of a kind that shares attempts.
    fn may_combine(&self, slot: Slot) -> bool {
        let of_kind = |op: &crate::attempt::Op<X, X::Reply>| {
            (op.call.is_none() || mutant!("meerkat_call_combined")) && op.txn.updates()
        };
        self.config.guest.is_none()
            && self.ops.get(slot).is_some_and(of_kind)
            && !mutant!("meerkat_nothing_combined")
    }

    /// Whether an op has a key in common with the last run, as far as its keys are known; and whether
    /// it has none in a partition that the run has not touched.
    fn compare_keys(&self, slot: Slot) -> (bool, bool) {
        let Some(op) = self.ops.get(slot) else { return (false, false) };
        let partitions = self.config.partitions.len();
        if op.txn.ranges() {
            return (true, partitions == 1);
        }
        let touched = self.work.items().map(|item| partition_of(item.key, partitions));
        let touched = if partitions == 1 { 1 } else { touched.fold(0u64, |set, at| set | 1 << at) };
        let (mut meets, mut is_near) = (false, true);
        op.txn.visit_keys(&mut |key| {
            meets |= self.work.touches(key, hash_key(key));
            is_near &= touched & 1 << partition_of(key, partitions) != 0;
        });
        (meets, is_near)
    }

    /// Whether an op has run in the workspace of the attempt that is about to begin.
    pub(crate) fn has_run(&self, slot: Slot) -> bool {
        self.ops.get(slot).is_some_and(|op| op.reply.is_some() && op.attempt.is_none())
    }

    /// Answers the clients of an attempt that has committed, in the order in which they ran.
    pub(crate) fn answer_all(
        &mut self,
        slot: Slot,
        members: Vec<Slot>,
        at: Timestamp,
        effects: &mut impl Effects<Self>,
    ) {
        for slot in core::iter::once(slot).chain(members) {
            self.answer(slot, at, effects);
        }
    }
}
