//! Ops, from a client to an answer or to the update that they ask for (§4.3.2).

use alloc::vec::Vec;

use quorate_machine::{
    Access, Change, Command, Content, Current, Effects, Outcome, Record, Refusal, Table, mutant,
};
use quorate_rifl::Permit;
use quorate_types::{Now, Tag, limits};

use crate::ops::{OpContext, RetryState, UpdateContext, Waiter};
use crate::{Hermes, Meta, State};

impl<T: Table<Meta = Meta>, O: Command<Owned = O>> Hermes<T, O> {
    /// Takes a client's op. It runs at once if its key is Valid; its arguments are copied only if
    /// it has to wait, or may have to run again.
    pub fn submit<P>(
        &mut self,
        now: Now,
        tag: Tag,
        origin: u64,
        op: P,
        effects: &mut impl Effects<Self>,
    ) where
        P: Command<Owned = O, Reply = O::Reply>,
    {
        self.take(now, tag, origin, op, None, effects);
    }

    /// Takes an op, which may be a call, of a client of this node.
    pub(crate) fn take<P>(
        &mut self,
        now: Now,
        tag: Tag,
        origin: u64,
        op: P,
        permit: Option<Permit>,
        effects: &mut impl Effects<Self>,
    ) where
        P: Command<Owned = O, Reply = O::Reply>,
    {
        if !self.active.contains(self.config.node) {
            return self.answer(tag, Outcome::Refused(Refusal::NotServing), effects);
        }
        if self.pending() >= limits::OPS_PENDING_MAX {
            return self.answer(tag, Outcome::Refused(Refusal::Busy), effects);
        }
        self.admit(now, tag, origin, op, permit, effects);
    }

    /// Runs an op on this replica, now or when its key is Valid.
    pub(crate) fn admit<P>(
        &mut self,
        now: Now,
        tag: Tag,
        origin: u64,
        op: P,
        permit: Option<Permit>,
        effects: &mut impl Effects<Self>,
    ) where
        P: Command<Owned = O, Reply = O::Reply>,
    {
        let handle = self.table.find_or_insert(op.key());
        if self.floors.is_in_doubt() {
            self.doubt_absence(now, handle, effects);
        }
        let give_up_at = now.monotonic + self.config.op_timeout;
        let access = op.access();
        let queued = !self.queues.is_empty() && self.queues.contains_key(&handle);
        let blind = access == Access::Write && permit.is_none();
        if blind && !queued && self.write_at_once(now, handle, tag, &op, effects) {
            return;
        }
        if queued || !self.can_run(handle, access) {
            let run = RetryState { op: op.into_owned(), origin, attempts: 0, give_up_at, permit };
            let waiter = Waiter { tag, run, not_before: now.monotonic };
            return self.enqueue(now, handle, waiter, effects);
        }
        let attempt = OpContext { access, origin, number: 0, give_up_at, permit };
        self.execute(now, handle, tag, op, attempt, effects);
    }

    /// Runs an op on a Valid key: answers it, or starts the update that it asks for.
    pub(crate) fn execute<P>(
        &mut self,
        now: Now,
        handle: T::Handle,
        tag: Tag,
        op: P,
        attempt: OpContext,
        effects: &mut impl Effects<Self>,
    ) where
        P: Command<Owned = O, Reply = O::Reply>,
    {
        let access = attempt.access;
        if let Some(outcome) = self.fate_of_call(&attempt) {
            return self.answer_unstarted(handle, tag, outcome, effects);
        }
        let mut scratch = core::mem::take(&mut self.scratch);
        let record = self.table.lock(handle);
        let meta = record.meta();
        debug_assert_eq!(meta.state, State::Valid, "ops run on Valid keys");
        let absent = record.content().is_none();
        let mut current = Current { timestamp: meta.timestamp, ..Current::ABSENT };
        let (mut expired, mut large) = (false, None);
        if access != Access::Write {
            // A write answers the same whatever the key held; everything else sees a copy, so that
            // its change may borrow from what it saw.
            if let Some(content) = record.content() {
                expired = content.is_expired(now.wall());
                if !expired {
                    scratch.clear();
                    scratch.extend_from_slice(content.bytes);
                    current.content = Some(Content { bytes: &scratch, ..content });
                    large = record.large().cloned();
                }
            }
        }
        drop(record);
        let is_expired_read = expired && access == Access::Read;
        if is_expired_read
            && !self.has_no_version_left(meta.timestamp.version)
            && !mutant!("hermes_expired_version_shown")
        {
            // Its answer may show a version, and `WATCH` needs that of the deletion.
            self.scratch = scratch;
            let OpContext { origin, number: attempts, give_up_at, permit, .. } = attempt;
            let run = RetryState { op: op.into_owned(), origin, attempts, give_up_at, permit };
            self.requeue(now, handle, Waiter { tag, run, not_before: now.monotonic });
            return self.delete_expired(now, handle, effects);
        }
        let (reply, change) = match large {
            None => op.apply(now.wall(), current),
            Some(large) => {
                let seen = Current { large: Some(&large), ..current };
                let (reply, change) = op.apply(now.wall(), seen);
                // The copy is dropped here, so that the record's value is changed in place.
                (reply, change.into_owned())
            }
        };
        // Replicate the deletion before answering "absent" because of an expiry.
        let change = if expired && change == Change::Keep { Change::Delete } else { change };
        // A call leaves a record whatever it answers (P3). What only reads leaves none.
        let permit = attempt.permit.filter(|_| access != Access::Read);
        // A delete of an absent key changes nothing, so it counts as a read whatever the op was.
        let changes = change != Change::Keep && !(change == Change::Delete && absent);
        if changes && self.has_no_version_left(meta.timestamp.version) {
            self.scratch = scratch;
            let refused = Outcome::Refused(Refusal::Busy);
            return self.answer_unstarted(handle, tag, refused, effects);
        }
        if !changes && (permit.is_none() || mutant!("hermes_failed_call_unrecorded")) {
            if meta.is_blank() && !self.queues.contains_key(&handle) {
                self.forget(handle);
            }
            self.answer_read(tag, reply, effects);
        } else {
            let completion = match permit {
                None => None,
                Some(permit) => {
                    let bytes = op.key().len() + self.change_bytes(handle, &change);
                    match self.completion_of(&permit, &reply, bytes) {
                        Ok(answer) => Some((permit, answer)),
                        Err(refusal) => {
                            self.scratch = scratch;
                            let refused = Outcome::Refused(refusal);
                            return self.answer_unstarted(handle, tag, refused, effects);
                        }
                    }
                }
            };
            self.counters.expired += u64::from(expired);
            if expired {
                effects.expired(op.key());
            }
            let rmw = access != Access::Write
                || (completion.is_some() && !mutant!("hermes_call_as_write"));
            let answer = Some((tag, reply));
            let run = UpdateContext { rmw, answer, combined: Vec::new(), completion };
            let slot = self.update(now, handle, &change, run, effects);
            if rmw && let Some(pending) = self.ops.get_mut(slot) {
                let OpContext { origin, number: attempts, give_up_at, permit, .. } = attempt;
                let op = op.into_owned();
                pending.again = Some(RetryState { op, origin, attempts, give_up_at, permit });
            }
        }
        self.scratch = scratch;
    }

    /// How many bytes of value an INV carries after this change.
    fn change_bytes(&mut self, handle: T::Handle, change: &Change<'_>) -> usize {
        match change {
            Change::Delete => 0,
            Change::Delta { bytes, .. } | Change::Set { bytes, .. } => bytes.len(),
            Change::Keep | Change::Expire(_) => {
                self.table.lock(handle).content().map_or(0, |content| content.bytes.len())
            }
        }
    }
}
