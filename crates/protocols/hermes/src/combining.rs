//! Combining: ops that wait for one key share an update.
//!
//! One update of a key is under way at a time, and each takes a round trip. So what has queued behind
//! it meanwhile runs together when its turn comes: one op after the other, each on what the one before
//! has left, and all their changes are one version, one INV, one round trip. Every client hears the
//! answer that its op gave in its place. Nobody can see a version in between, which is a history that
//! ops in this order may have anyway.
//!
//! What is combined ends together: done, unknown, or superseded and run again, in its order. Plain
//! writes are combined with each other only, since a write never runs again; what they replaced in
//! between was never there. Calls go alone: a version has the record of one. Reads are served before.

use alloc::vec::Vec;

use quorate_machine::{
    Access, Change, Command, Current, Effects, OneKey, Outcome, Record, Refusal, Table, Workspace,
    mutant,
};
use quorate_types::{Now, Tag, Timestamp};

use crate::message::NOBODY;
use crate::ops::{Combined, UpdateContext, Waiter};
use crate::{Hermes, Meta};

/// Ops that share an update, at most.
const COMBINED_MAX: usize = 256;
/// Bytes of changes from which on no further op joins.
const COMBINED_BYTES_MAX: usize = 64 * 1024;

impl<T: Table<Meta = Meta>, O: Command<Owned = O>> Hermes<T, O> {
    /// Runs an update of a Valid key, and with it what may share it.
    pub(crate) fn run_combined(
        &mut self,
        now: Now,
        handle: T::Handle,
        first: Waiter<O>,
        effects: &mut impl Effects<Self>,
    ) {
        let access = first.run.op.access();
        if first.run.permit.is_some() || mutant!("hermes_nothing_combined") {
            return self.run(now, handle, first, effects);
        }
        let alike = self.take_alike(now, handle, access, COMBINED_MAX - 1);
        if alike.is_empty() {
            return self.run(now, handle, first, effects);
        }
        effects.probe("hermes: ops combined");
        let record = self.table.lock(handle);
        let meta = record.meta();
        let absent = record.content().is_none();
        let mut current = Current { timestamp: meta.timestamp, ..Current::ABSENT };
        let mut expired = false;
        if access != Access::Write
            && let Some(content) = record.content()
        {
            expired = content.is_expired(now.wall());
            if !expired {
                current = Current { content: Some(content), large: record.large(), ..current };
            }
        }
        let mut key = OneKey::new(current).into_owned();
        drop(record);
        let mut done: Vec<Combined<O>> = Vec::new();
        let mut waiters = core::iter::once(first).chain(alike);
        while key.change_bytes() <= COMBINED_BYTES_MAX
            && let Some(Waiter { tag, run, .. }) = waiters.next()
        {
            let reply = apply(&run.op, now, &mut key);
            if key.is_changed() && !mutant!("hermes_combined_changes_unwatched") {
                // It is no version that anybody has seen.
                key.set_timestamp(Timestamp::new(meta.timestamp.version + 1, NOBODY));
            }
            done.push(Combined { tag, reply, run });
        }
        let rest: Vec<Waiter<O>> = waiters.collect();
        for waiter in rest.into_iter().rev() {
            self.requeue(now, handle, waiter);
        }
        let change = match key.finish() {
            // Replicate the deletion before answering "absent" because of an expiry.
            Change::Keep if expired => Change::Delete,
            change => change,
        };
        let changes = change != Change::Keep && !(change == Change::Delete && absent);
        if changes && self.has_no_version_left(meta.timestamp.version) {
            for op in done {
                self.answer(op.tag, Outcome::Refused(Refusal::Busy), effects);
            }
            return;
        }
        if !changes {
            for op in done {
                self.answer_read(op.tag, op.reply, effects);
            }
            return;
        }
        self.counters.expired += u64::from(expired);
        if expired {
            let key = self.table.lock(handle).key().to_vec();
            effects.expired(&key);
        }
        let mut done = done.into_iter();
        let Combined { tag, reply, run: first } = done.next().expect("the first op has run");
        let (rmw, answer, combined) = (access != Access::Write, Some((tag, reply)), done.collect());
        let run = UpdateContext { rmw, answer, combined, completion: None };
        let slot = self.update(now, handle, &change, run, effects);
        if rmw && let Some(pending) = self.ops.get_mut(slot) {
            pending.again = Some(first);
        }
    }

    /// Tells everybody who waits for an update that it is done.
    pub(crate) fn answer_done(
        &mut self,
        answer: Option<(Tag, O::Reply)>,
        combined: Vec<Combined<O>>,
        effects: &mut impl Effects<Self>,
    ) {
        let combined = combined.into_iter().map(|op| (op.tag, op.reply));
        for (tag, reply) in answer.into_iter().chain(combined) {
            self.answer(tag, Outcome::Done(reply), effects);
        }
    }

    /// Tells the same clients that the fate of the update is unknown.
    pub(crate) fn answer_unknown(
        &mut self,
        answer: Option<(Tag, O::Reply)>,
        combined: Vec<Combined<O>>,
        effects: &mut impl Effects<Self>,
    ) {
        let combined = combined.into_iter().map(|op| op.tag);
        for tag in answer.map(|(tag, _)| tag).into_iter().chain(combined) {
            self.answer(tag, Outcome::Unknown, effects);
        }
    }
}

/// Runs an op on what the ops before it have left.
fn apply<O: Command>(op: &O, now: Now, key: &mut OneKey<'static>) -> O::Reply {
    let (reply, change) = op.apply(now.wall(), key.read(b""));
    let change = change.into_owned();
    key.write(b"", change);
    reply
}
