//! Calls of sessions: each takes effect once, however often it is tried. A session's records lie on
//! the lane of its lease, where all tries of a call meet.

use alloc::vec::Vec;

use quorate_machine::{
    Command, Completion, Effects, LaneShared, OrderedTable, Outcome, Refusal, mutant,
};
use quorate_rifl::{Found, LeaseEnd, LeaseId, Lost, Permit, Sessions};
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
        let Outcome::Done(reply) = &ran.outcome else {
            return self.tracker.abandon(&permit.call, ());
        };
        let mut answer = Vec::new();
        X::encode_reply(reply, &mut answer);
        self.tracker.complete(&permit.call, (), permit.date.max(ran.at.version), &answer[..]);
    }
}
