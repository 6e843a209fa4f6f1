//! Calls of sessions: each takes effect once, however often and wherever it is tried.
//!
//! A call's transaction carries the call and its answer in the part of the *home* partition: that of
//! the key with the smallest hash among those that the command names. There they are checked, marked
//! and installed in the same steps as the keys, on the lane that the session's id names, so that any
//! two attempts meet at every replica. The argument is in `docs/design/006-sessions.md`.

use alloc::vec::Vec;

use quorate_machine::{
    CallError, Command, Effects, LaneShared, Outcome, Refusal, Slot, Table, mutant,
};
use quorate_rifl::{Call, Found, Kept, LeaseEnd, LeaseId, Lost, Permit, Sessions};
use quorate_types::{NodeId, Now, Tag, Timestamp};
use quorate_wire::Writer;

use crate::Request;
use crate::attempt::{Attempt, Part, Stage};
use crate::body::{Answered, Body};
use crate::message::{Kind, Message};
use crate::meta::Meta;
use crate::occ::{Conflict, Reason};
use crate::state::{Counter, Meerkat};
use crate::txn_record::RecordKey;

/// What became of the calls of this lane's sessions in one partition; an attempt is a transaction.
pub type ResultTracker = quorate_rifl::ResultTracker<Timestamp>;

/// An op that is a session's call, until it is answered.
#[derive(Clone, Hash, Debug)]
pub(crate) struct Called {
    pub(crate) permit: Permit,
    /// The partition in which its record is kept.
    pub(crate) home: u16,
    /// Whether a replica of that partition has said that it is new, for the attempt to come.
    asked: bool,
    /// Another attempt at it may have taken effect, or may yet.
    elsewhere: bool,
}

/// What a replica knows of a call.
enum Known<R> {
    Nothing,
    /// How it is answered, now and ever.
    Answer(Outcome<R>),
    /// Another attempt at it is not decided yet.
    Attempt(Timestamp),
}

impl<R> Known<R> {
    fn of<X: Command<Reply = R>>(found: Result<Found<'_, Timestamp>, CallError>) -> Self {
        match found {
            Ok(Found::New) => Self::Nothing,
            Ok(Found::Completed(answer)) => {
                Self::Answer(X::decode_reply(answer).map_or(Outcome::Unknown, Outcome::Done))
            }
            Ok(Found::InProgress(id)) => Self::Attempt(id),
            Err(why) => Self::Answer(Outcome::Refused(Refusal::CallError(why))),
        }
    }
}

/// Whether two transactions are attempts at one call.
pub(crate) fn are_one_call(a: Body<'_>, b: Body<'_>) -> bool {
    let name =
        |body: Body<'_>| body.call().map(|Answered { call, .. }| (call.lease, call.sequence));
    name(a).is_some() && name(a) == name(b)
}

impl<T, X> Sessions for Meerkat<T, X>
where
    T: Table<Meta = Meta> + LaneShared,
    X: Command<Owned = X>,
{
    fn call(
        &mut self,
        now: Now,
        tag: Tag,
        permit: Permit,
        request: Request<X>,
        effects: &mut impl Effects<Self>,
    ) {
        let Request { origin, command: txn } = request;
        if !txn.updates() {
            // To run it twice changes nothing, and the second answer is as good as the first.
            return self.submit(now, tag, origin, txn, effects);
        }
        if let Err(why) = permit.call.check() {
            return effects.complete(tag, Outcome::Refused(Refusal::CallError(why)));
        }
        let mut home = None;
        txn.visit_keys(&mut |key| {
            let found = (quorate_types::hash_key(key), self.partition_of(key));
            home = Some(home.map_or(found, |known| found.min(known)));
        });
        // A script may find all its keys on the way. Its home is the same wherever it is called.
        let (_, home) = home.unwrap_or_else(|| (0, self.partition_of(b"")));
        let call = Called { permit, home, asked: false, elsewhere: false };
        self.take(now, tag, origin, Some(call), txn, effects);
    }

    fn date(&self, now: Now) -> u64 {
        self.clock(now)
    }

    fn leases_after(&self, after: Option<LeaseId>, max: usize) -> Vec<LeaseId> {
        let each = self.trackers.iter().flat_map(|tracker| tracker.leases_after(after).take(max));
        let mut leases: Vec<LeaseId> = each.collect();
        leases.sort_unstable();
        leases.dedup();
        leases.truncate(max);
        leases
    }

    fn each_record(&self, visit: &mut impl FnMut(usize, LeaseId, u64, Kept<'_>)) {
        for (partition, tracker) in self.trackers.iter().enumerate() {
            tracker.each_record(&mut |lease, number, kept| visit(partition, lease, number, kept));
        }
    }

    fn end_session(&mut self, verdict: &LeaseEnd) {
        self.ended_sessions.push(*verdict);
        self.forget_session(verdict);
    }
}

impl<T, X> Meerkat<T, X>
where
    T: Table<Meta = Meta> + LaneShared,
    X: Command<Owned = X>,
{
    /// Frees the records of a session that has ended, unless a call is in progress.
    pub(crate) fn forget_session(&mut self, verdict: &LeaseEnd) {
        for tracker in &mut self.trackers {
            match verdict.lost {
                Lost::Expired => tracker.discard(verdict.lease, verdict.granted),
                Lost::Closed => tracker.close(verdict.lease),
            };
        }
    }
}

impl<T, X> Meerkat<T, X>
where
    T: Table<Meta = Meta> + LaneShared,
    X: Command<Owned = X>,
{
    // --- the coordinator -------------------------------------------------------------------------

    /// Whether an attempt may be made at an op now, as far as its being a call goes. Otherwise it is
    /// answered, waits for another attempt, or asks a replica that knows.
    pub(crate) fn may_attempt(
        &mut self,
        now: Now,
        slot: Slot,
        effects: &mut impl Effects<Self>,
    ) -> bool {
        let Some(call) = self.ops.get(slot).and_then(|op| op.call.as_ref()) else { return true };
        let (home, asked) = (usize::from(call.home), call.asked);
        if asked || mutant!("meerkat_call_not_looked_up") {
            return true;
        }
        if !self.votes_on(call.home) {
            self.ask(now, slot, effects);
            return false;
        }
        let known = Known::of::<X>(self.trackers[home].find(&call.permit.call));
        self.answer_by_state(now, slot, known, effects)
    }

    /// Does what the state of a call asks for, unless it is new: then an attempt may be made.
    fn answer_by_state(
        &mut self,
        now: Now,
        slot: Slot,
        known: Known<X::Reply>,
        effects: &mut impl Effects<Self>,
    ) -> bool {
        match known {
            Known::Nothing => return true,
            Known::Answer(outcome) => {
                effects.probe("meerkat: call answered from its record");
                self.count(Counter::CallsAnsweredAgain);
                self.finish(slot, outcome, effects);
            }
            Known::Attempt(id) => {
                effects.probe("meerkat: call waits for another attempt at it");
                let conflict = Conflict { reason: Reason::CallInProgress, with: id };
                self.retry(now, slot, conflict, false, effects);
            }
        }
        false
    }

    /// What an attempt that has failed means for the call: why it is refused for good, if it is.
    pub(crate) fn lose_call(&mut self, slot: Slot, reason: Reason) -> Option<Refusal> {
        let call = self.ops.get_mut(slot)?.call.as_mut()?;
        call.asked = false;
        call.elsewhere |= matches!(reason, Reason::CallInProgress | Reason::CallKnown);
        match reason {
            Reason::SessionClosed => Some(Refusal::CallError(CallError::Closed)),
            Reason::SessionFull => Some(Refusal::SessionFull),
            _ => None,
        }
    }

    /// What to answer instead of a refusal, which would say that nothing has happened.
    pub(crate) fn refused(&self, slot: Slot, refusal: Refusal) -> Outcome<X::Reply> {
        let call = self.ops.get(slot).and_then(|op| op.call.as_ref());
        let elsewhere = call.is_some_and(|call| call.elsewhere);
        let elsewhere = elsewhere && !mutant!("meerkat_call_refused_though_tried");
        if elsewhere { Outcome::Unknown } else { Outcome::Refused(refusal) }
    }

    /// Whether an op's attempt may have this timestamp: its lease must cover it.
    pub(crate) fn is_covered(&self, slot: Slot, id: Timestamp) -> bool {
        let call = self.ops.get(slot).and_then(|op| op.call.as_ref());
        call.is_none_or(|call| call.permit.covers(&self.view, id.version))
            || mutant!("meerkat_call_not_covered")
    }

    /// Whether an attempt that nobody has decided may go on into a new epoch. That of a client which
    /// waits no longer may not: its lease is not known here any more.
    pub(crate) fn survives_epoch(&self, id: Timestamp) -> bool {
        let Some(attempt) = self.attempts.get(&id.version) else { return false };
        let is_call = |part: &Part| Body::trusted(&part.body).call().is_some();
        if !attempt.parts.iter().any(is_call) || mutant!("meerkat_call_outlives_its_grant") {
            return true;
        }
        let waits = self.ops.get(attempt.slot).is_some_and(|op| op.attempt == Some(id.version));
        waits && self.is_covered(attempt.slot, id)
    }

    /// Asks a replica of the home partition what became of a call.
    fn ask(&mut self, now: Now, slot: Slot, effects: &mut impl Effects<Self>) {
        let request = self.issue(now, 0).version;
        let Some(op) = self.ops.get_mut(slot) else { return };
        let call = op.call.as_ref().expect("only a call is asked about");
        let mut body = Vec::new();
        call.permit.call.encode(&mut Writer(&mut body));
        let parts = [Part { partition: call.home, body, ..Part::default() }].into();
        op.attempt = Some(request);
        self.attempts.insert(request, Attempt::question(now, slot, Stage::Asking, parts));
        self.send_find(request, effects);
        self.resends.push(now.monotonic + self.config.message_loss_timeout, request);
    }

    pub(crate) fn send_find(&mut self, request: u64, effects: &mut impl Effects<Self>) {
        let spin = self.rng.next_u64() as usize;
        let Some(attempt) = self.attempts.get(&request) else { return };
        let call = self.ops.get(attempt.slot).and_then(|op| op.call.as_ref());
        let Some(call) = call else { return };
        let Some(group) = self.group(call.home) else { return };
        if let Some(node) = group.live.nth(spin % group.live.len().max(1)) {
            let kind = Kind::Find { request, call: call.permit.call };
            effects.send(node, &Message { partition: call.home, kind });
        }
    }

    /// FOUND.
    pub(crate) fn on_found(
        &mut self,
        now: Now,
        request: u64,
        clock: u64,
        found: Result<Found<'_, Timestamp>, CallError>,
        effects: &mut impl Effects<Self>,
    ) {
        self.observe(now, clock);
        if self.attempts.get(&request).is_none_or(|attempt| attempt.stage != Stage::Asking) {
            return effects.ignored("meerkat: FOUND of a call that is not asked about any more");
        }
        let Some(attempt) = self.attempts.remove(&request) else { return };
        let Some(op) = self.ops.get_mut(attempt.slot) else { return };
        op.attempt = None;
        if let Some(call) = &mut op.call {
            call.asked = true;
        }
        if self.answer_by_state(now, attempt.slot, Known::of::<X>(found), effects) {
            self.start(now, attempt.slot, effects);
        }
    }

    // --- the replica -----------------------------------------------------------------------------

    /// FIND.
    pub(crate) fn on_find(
        &mut self,
        now: Now,
        from: NodeId,
        partition: u16,
        request: u64,
        call: &Call,
        effects: &mut impl Effects<Self>,
    ) {
        self.observe(now, request);
        let clock = self.clock(now);
        let found = self.trackers[usize::from(partition)].find(call);
        let kind = Kind::Found { request, clock, found };
        effects.send(from, &Message { partition, kind });
    }

    /// Whether an attempt at a call may be let pass here.
    pub(crate) fn judge_call(
        &self,
        id: Timestamp,
        partition: u16,
        answered: &Answered<'_>,
    ) -> Result<(), Conflict> {
        let Answered { call, answer } = answered;
        let tracker = &self.trackers[usize::from(partition)];
        let conflict = |reason, with| Err(Conflict { reason, with });
        match tracker.find(call) {
            _ if mutant!("meerkat_call_voted_unseen") => {}
            Ok(Found::New) => {}
            Ok(Found::InProgress(other)) => return conflict(Reason::CallInProgress, other),
            Err(CallError::Closed) => return conflict(Reason::SessionClosed, id),
            Ok(Found::Completed(_)) | Err(_) => {
                return conflict(Reason::CallKnown, Timestamp::ZERO);
            }
        }
        if let Err(above) = tracker.admits(call.lease, id.version) {
            return conflict(Reason::CallForgotten, Timestamp::new(above, id.writer));
        }
        if !tracker.has_room(call.lease, answer.len()) {
            return conflict(Reason::SessionFull, id);
        }
        Ok(())
    }

    /// Takes note of an attempt that was let pass.
    pub(crate) fn mark_call(&mut self, id: Timestamp, partition: u16, body: Body<'_>) {
        if let Some(Answered { call, answer }) = body.call()
            && !mutant!("meerkat_call_voted_unseen")
        {
            self.trackers[usize::from(partition)].begin(&call, id, answer.len());
        }
    }

    /// An attempt that was let pass has come to nothing.
    pub(crate) fn unmark_call(&mut self, id: Timestamp, partition: u16, body: Body<'_>) {
        if let Some(Answered { call, .. }) = body.call() {
            self.trackers[usize::from(partition)].abandon(&call, id);
        }
    }

    /// Keeps the record of a call, in the step that installs its effect.
    pub(crate) fn complete_call(&mut self, id: Timestamp, partition: u16, body: Body<'_>) {
        if let Some(Answered { call, answer }) = body.call() {
            self.trackers[usize::from(partition)].complete(&call, id, id.version, answer);
        }
    }

    /// As [`Meerkat::complete_call`], for what an epoch change has settled.
    pub(crate) fn complete_merged_calls(&mut self, calls: Vec<(RecordKey, Vec<u8>)>) {
        for (key, body) in calls {
            self.complete_call(key.id(), key.partition, Body::trusted(&body));
        }
    }
}
