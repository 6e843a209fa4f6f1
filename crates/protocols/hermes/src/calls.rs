//! Calls of sessions: exactly once, however often and wherever they are tried.
//!
//! A call that may change something runs as a read-modify-write, even if it changes nothing. Its
//! INV carries the call and the answer, its *completion*. A replica keeps that beside the key as
//! *tentative* as long as the version is the newest one and not Valid, passes it on whenever it
//! passes the version on, and makes it a record of its tracker in the step in which the version
//! becomes Valid. Ops run on Valid keys only: a retry waits until its key is Valid, and then finds
//! the record if the call has taken effect.
//!
//! When a newer version covers a tentative one, the version that the newer one was built on tells
//! whether the call has taken effect: see [`Hermes::cover`], and `docs/design/006-sessions.md` for
//! why that is so. A floor may be raised only when no call is in doubt that an update of an absent
//! key might later cover: see [`Hermes::doubts_before`].

use alloc::vec::Vec;

use quorate_machine::{
    Access, CallError, Command, Effects, Outcome, Record, Refusal, Slot, Table, mutant,
};
use quorate_rifl::{
    AnswerBytes, Found, Kept, LeaseEnd, LeaseId, Lost, Permit, ResultTracker, Sessions,
};
use quorate_types::{Now, Tag, Timestamp, limits};

use crate::message::Completion;
use crate::ops::{OpContext, Tentative};
use crate::{Hermes, Meta, Request, State};

/// Most bytes of key, value and answer in one INV, which has to fit into a message.
const INV_BYTES_MAX: usize = limits::KEY_BYTES_MAX + limits::VALUE_BYTES_MAX + 512;

impl<T: Table<Meta = Meta>, O: Command<Owned = O>> Sessions for Hermes<T, O> {
    fn call(
        &mut self,
        now: Now,
        tag: Tag,
        permit: Permit,
        request: Request<O>,
        effects: &mut impl Effects<Self>,
    ) {
        self.take(now, tag, request.origin, request.command, Some(permit), effects);
    }

    /// Attempts have no dates of their own here.
    fn date(&self, _now: Now) -> u64 {
        0
    }

    fn leases_after(&self, after: Option<LeaseId>, max: usize) -> Vec<LeaseId> {
        self.tracker.leases_after(after).take(max).collect()
    }

    fn each_record(&self, visit: &mut impl FnMut(usize, LeaseId, u64, Kept<'_>)) {
        self.tracker.each_record(&mut |lease, number, kept| visit(0, lease, number, kept));
        for (_, Tentative { call, .. }) in self.tentative.sorted() {
            visit(0, call.lease, call.sequence, Kept::Undecided);
        }
    }

    fn end_session(&mut self, verdict: &LeaseEnd) {
        // A session that is busy is asked about again.
        let _ = match verdict.lost {
            Lost::Expired => self.tracker.discard(verdict.lease, verdict.granted),
            Lost::Closed => self.tracker.close(verdict.lease),
        };
    }
}

impl<T: Table<Meta = Meta>, O: Command<Owned = O>> Hermes<T, O> {
    /// What became of each call, as far as this replica knows.
    pub fn tracker(&self) -> &ResultTracker<(T::Handle, Timestamp)> {
        &self.tracker
    }

    /// What an op on a Valid key is to hear without being run, if it is a call that has taken
    /// effect, or may not be attempted.
    pub(crate) fn fate_of_call(&self, attempt: &OpContext) -> Option<Outcome<O::Reply>> {
        let permit = attempt.permit.as_ref()?;
        if attempt.number > 0 && mutant!("hermes_call_not_looked_up_again") {
            return None;
        }
        match self.tracker.find(&permit.call) {
            Ok(Found::New) => {}
            // Its version was Valid here: there is nothing to prove about the answer.
            Ok(Found::Completed(answer)) => {
                return Some(O::decode_reply(answer).map_or(Outcome::Unknown, Outcome::Done));
            }
            // An attempt at this command would have its key, which is Valid.
            Ok(Found::InProgress(_)) => {
                return Some(Outcome::Refused(Refusal::CallError(CallError::Different)));
            }
            Err(improper) => return Some(Outcome::Refused(Refusal::CallError(improper))),
        }
        if attempt.access == Access::Read {
            return None;
        }
        if self.lacks_records() {
            return Some(Outcome::Refused(Refusal::Busy));
        }
        let admitted = self.tracker.admits(permit.call.lease, permit.date).is_ok()
            || mutant!("hermes_forgotten_session_admitted");
        let covered =
            permit.covers(&self.view, permit.date) || mutant!("hermes_call_without_grant");
        (!admitted || !covered).then_some(Outcome::Refused(Refusal::LeaseNeeded))
    }

    /// The completion of a call that is to be attempted: its answer, if that can be kept and sent;
    /// `bytes` is how much key and value take.
    pub(crate) fn completion_of(
        &mut self,
        permit: &Permit,
        reply: &O::Reply,
        bytes: usize,
    ) -> Result<AnswerBytes, Refusal> {
        self.answer_scratch.clear();
        O::encode_reply(reply, &mut self.answer_scratch);
        let length = self.answer_scratch.len();
        if length + bytes > INV_BYTES_MAX {
            Err(Refusal::TooLarge)
        } else if !self.tracker.has_room(permit.call.lease, length) {
            Err(Refusal::SessionFull)
        } else {
            Ok(AnswerBytes::new(&self.answer_scratch))
        }
    }

    /// A newer version, built on version `base`, takes the place of one that may be a call's.
    ///
    /// If the base is below the call's version, the newer update's coordinator did not hold that,
    /// and refuses it from then on, as this replica does from now on: the call has not taken effect
    /// and never will. Otherwise it has: the base was Valid, and were it another version, this
    /// replica would not hold the call's. Unless it came back with that from a log that has lost what took its
    /// place: then who holds the newer version knows, and is asked.
    pub(crate) fn cover(
        &mut self,
        handle: T::Handle,
        meta: Meta,
        base: u64,
        effects: &mut impl Effects<Self>,
    ) {
        if meta.state == State::Valid {
            debug_assert!(!self.tentative.contains_key(&handle), "a Valid version is settled");
            return;
        }
        let Some(tentative) = self.tentative.remove(&handle) else { return };
        let former = tentative.timestamp.writer.member() < self.lives_since;
        if former && self.floors.is_in_doubt() && !mutant!("hermes_former_call_decided_by_numbers")
        {
            effects.probe("hermes: a call from the log is covered");
            self.tracker.abandon(&tentative.call, (handle, tentative.timestamp));
            return self.doubt_records();
        }
        let took_effect = base >= tentative.timestamp.version;
        if (took_effect && !mutant!("hermes_covered_call_dropped"))
            || mutant!("hermes_overtaken_call_completed")
        {
            effects.probe("hermes: call completed by a newer version");
            self.complete(handle, tentative);
            return;
        }
        effects.probe("hermes: call overtaken");
        self.tracker.abandon(&tentative.call, (handle, tentative.timestamp));
        if meta.op != Slot::NONE
            && let Some(op) = self.ops.get(meta.op)
        {
            self.overtaken.entry(handle).or_insert(op.number);
        }
    }

    /// The newest version of a key is Valid: if it is a call's, the call has taken effect. In the
    /// same step, before any op runs on the key.
    pub(crate) fn complete_valid_call(&mut self, handle: T::Handle) {
        if !self.overtaken.is_empty() {
            self.overtaken.remove(&handle);
        }
        if let Some(tentative) = self.tentative.remove(&handle) {
            self.complete(handle, tentative);
        }
    }

    pub(crate) fn complete(&mut self, handle: T::Handle, tentative: Tentative) {
        let Tentative { timestamp, call, date, answer } = tentative;
        self.tracker.complete(&call, (handle, timestamp), date, answer);
    }

    /// The completion that came with a version which this replica now takes over.
    pub(crate) fn keep_completion(
        &mut self,
        handle: T::Handle,
        timestamp: Timestamp,
        completion: Option<&Completion<'_>>,
    ) {
        let Some(completion) = completion else { return };
        let tentative = Tentative::of(timestamp, completion);
        if mutant!("hermes_call_completed_at_inv") {
            return self.complete(handle, tentative);
        }
        self.tentative.insert(handle, tentative);
    }

    /// The call of a version that is here already, and may be so without its call: a shadow has it
    /// from a chunk in which it was Valid, and may have passed it on to another shadow, whose donor
    /// does not know yet that it is. Whether it was news.
    pub(crate) fn learn_call(
        &mut self,
        handle: T::Handle,
        meta: Meta,
        completion: Option<&Completion<'_>>,
    ) -> bool {
        let known = completion.is_none() || self.tentative.contains_key(&handle);
        if known || mutant!("hermes_call_not_learnt") {
            return false;
        }
        self.keep_completion(handle, meta.timestamp, completion);
        if meta.state == State::Valid {
            self.complete_valid_call(handle);
        }
        true
    }

    /// Whether an update up to this number that was driven from here and carried a call was
    /// overtaken by a version that is not Valid here yet.
    ///
    /// Some replica may hold the call's version still. Once the newer one is Valid, none does. Until
    /// then no floor may pass: an update of an absent key is built on the floor, which says nothing
    /// about what was overtaken.
    pub(crate) fn doubts_before(&self, number: u64) -> bool {
        self.overtaken.values().any(|overtaken| *overtaken <= number)
            && !mutant!("hermes_floor_passes_overtaken_calls")
    }

    /// Whether a call is tentative here whose coordinator is gone: nobody else has to drive it.
    pub(crate) fn has_orphaned_call(&self) -> bool {
        self.tentative.any(|_, tentative| self.is_gone(tentative.timestamp.writer))
            && !mutant!("hermes_floor_passes_orphaned_calls")
    }

    /// Drives what keeps the floor from rising, since nobody else may.
    pub(crate) fn clear_doubts(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        // In the order of updates and calls: that of handles differs from run to run.
        let overtaken = self.overtaken.iter().map(|(handle, number)| ((0, *number), *handle));
        let tentative = self.tentative.sorted().into_iter();
        let orphaned =
            tentative.filter(|(_, tentative)| self.is_gone(tentative.timestamp.writer)).map(
                |(handle, tentative)| ((tentative.call.lease.0, tentative.call.sequence), *handle),
            );
        let mut keys: Vec<((u64, u64), T::Handle)> = overtaken.collect();
        keys.sort_unstable();
        let mut calls: Vec<((u64, u64), T::Handle)> = orphaned.collect();
        calls.sort_unstable();
        for (_, handle) in keys.into_iter().chain(calls) {
            if self.table.lock(handle).meta().state == State::Invalid {
                self.replay(now, handle, effects);
            }
        }
    }

    /// Answers an op that leaves its key as it was, whatever that is.
    pub(crate) fn answer_unstarted(
        &mut self,
        handle: T::Handle,
        tag: Tag,
        outcome: Outcome<O::Reply>,
        effects: &mut impl Effects<Self>,
    ) {
        if self.table.lock(handle).meta().is_blank() && !self.queues.contains_key(&handle) {
            self.forget(handle);
        }
        self.answer(tag, outcome, effects);
    }

    /// This node is out: its attempts may be finished by others.
    pub(crate) fn abandon_calls(&mut self) {
        self.tracker.abandon_all();
    }

    /// A new life knows of no call.
    pub(crate) fn forget_calls(&mut self) {
        self.tracker = ResultTracker::default();
        self.tentative.clear();
        self.overtaken.clear();
    }
}
