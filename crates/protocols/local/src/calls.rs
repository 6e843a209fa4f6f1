//! Calls of sessions: each takes effect once, however often it is tried. A session's records lie on
//! the lane of its lease, where all tries of a call meet.

use alloc::vec::Vec;

use quorate_machine::{
    Command, Completion, Effects, LaneShared, OrderedTable, Outcome, Refusal, mutant,
};
use quorate_rifl::{Found, Kept, LeaseEnd, LeaseId, Lost, Permit, ResultTracker, Sessions};
use quorate_types::{Now, Tag};

use crate::Request;
use crate::meta::Meta;
use crate::state::{Local, Op};
use crate::workspace::Ran;

impl<T, X> Sessions for Local<T, X>
where
    T: OrderedTable<Meta = Meta> + LaneShared,
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
            return self.submit(now, tag, origin, txn, effects);
        }
        match self.admit(now, &permit, effects) {
            Some(Outcome::Done(answer)) => {
                let answer = X::decode_reply(&answer);
                let answer = answer.map_or(Outcome::Unknown, Outcome::Done);
                effects.complete_on(tag, Completion::new(answer).behind(self.gate()));
            }
            Some(Outcome::Refused(refusal)) => effects.complete(tag, Outcome::Refused(refusal)),
            Some(Outcome::Unknown) => effects.complete(tag, Outcome::Unknown),
            None => {
                self.tracker.begin(&permit.call, (), 0);
                let slot = self.ops.insert(Op { tag, origin, call: Some(permit) });
                let mut lanes = self.lanes_of(&txn);
                if self.log.is_kept {
                    // The log of this lane has the record, with what the call has changed.
                    lanes.insert(self.config.lane);
                }
                self.line_up(now, origin, slot, lanes, txn, effects);
            }
        }
    }

    fn date(&self, now: Now) -> u64 {
        now.unix.0.max(self.last + 1)
    }

    fn leases_after(&self, after: Option<LeaseId>, max: usize) -> Vec<LeaseId> {
        self.tracker.leases_after(after).take(max).collect()
    }

    fn each_record(&self, visit: &mut impl FnMut(usize, LeaseId, u64, Kept<'_>)) {
        self.tracker.each_record(&mut |lease, number, kept| visit(0, lease, number, kept));
    }

    fn end_session(&mut self, end: &LeaseEnd) {
        match end.lost {
            Lost::Expired => self.tracker.discard(end.lease, end.granted),
            Lost::Closed => self.tracker.close(end.lease),
        };
    }
}

impl<T, X> Local<T, X>
where
    T: OrderedTable<Meta = Meta> + LaneShared,
    X: Command<Owned = X>,
{
    /// Whether an attempt at the call may begin: `None` if so, otherwise its encoded answer, or why not.
    fn admit(
        &mut self,
        now: Now,
        permit: &Permit,
        effects: &mut impl Effects<Self>,
    ) -> Option<Outcome<Vec<u8>>> {
        let refused = |refusal| Some(Outcome::Refused(refusal));
        let call = &permit.call;
        if !self.serves || self.awaits() {
            return refused(Refusal::NotServing);
        }
        if let Err(why) = call.check() {
            return refused(Refusal::CallError(why));
        }
        let at = self.date(now);
        self.tracker.acknowledge(call.lease, call.first_incomplete);
        match self.tracker.find(call) {
            _ if mutant!("local_call_not_looked_up") => {}
            Ok(Found::New) => {}
            Ok(Found::Completed(answer)) => {
                effects.probe("local: call answered from its record");
                return Some(Outcome::Done(answer.to_vec()));
            }
            Ok(Found::InProgress(())) => {
                effects.probe("local: call tried while under way");
                return refused(Refusal::Busy);
            }
            Err(why) => return refused(Refusal::CallError(why)),
        }
        if !permit.covers(&self.view, at) || self.tracker.admits(call.lease, at).is_err() {
            return refused(Refusal::LeaseNeeded);
        }
        if !self.tracker.has_room(call.lease, 0) {
            return refused(Refusal::SessionFull);
        }
        if self.ops.len() >= quorate_types::limits::OPS_PENDING_MAX {
            return refused(Refusal::Busy);
        }
        None
    }

    /// A call's attempt has ended: its record says how, if it had an effect or an answer.
    pub(crate) fn end_call(&mut self, permit: &Permit, ran: &Ran<X::Reply>) {
        match answer_of::<X>(permit, ran) {
            Some((date, answer)) => self.tracker.complete(&permit.call, (), date, &answer[..]),
            None => self.tracker.abandon(&permit.call, ()),
        }
    }

    /// The calls whose entries are in this lane's log and not durable, so that the tracker has no record of them
    /// yet: what a snapshot has to have of them, as their entries stand before its beginning.
    pub(crate) fn calls_to_end(&self) -> ResultTracker<()> {
        let mut calls = ResultTracker::default();
        for end in self.log.to_end() {
            let call = end.turn.call.as_ref();
            let here = call.filter(|permit| permit.call.lease.lane() == self.config.lane);
            if let Some(permit) = here
                && let Some((date, answer)) = answer_of::<X>(permit, &end.ran)
            {
                calls.complete(&permit.call, (), date, &answer[..]);
            }
        }
        calls
    }
}

/// What the record of a call says, and its date, if the attempt had an effect or an answer.
fn answer_of<X: Command>(permit: &Permit, ran: &Ran<X::Reply>) -> Option<(u64, Vec<u8>)> {
    let Outcome::Done(reply) = &ran.outcome else { return None };
    let mut answer = Vec::new();
    X::encode_reply(reply, &mut answer);
    Some((permit.date.max(ran.at.version), answer))
}
