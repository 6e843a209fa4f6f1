//! Ops that wait for their key.
//!
//! A key that is not Valid, or that has ops waiting already, queues what comes. On every Valid
//! transition all reads are served first (pitfall H5), except those behind an update of their own
//! origin, so that a client's pipelined commands on one key take effect in order; then one update
//! starts, which the others mostly share (`combining.rs`). A queue also runs its key's message loss
//! timer: a key that looks the same for too long has lost its VAL or its coordinator, and is replayed.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use quorate_machine::{Access, Command, Effects, Outcome, Record, Refusal, Table, mutant};
use quorate_types::{Duration, Instant, Now, limits};

use crate::ops::{OpContext, Queue, RetryState, Waiter};
use crate::{Hermes, Meta, State};

/// The first backoff of a superseded read-modify-write; doubles with each attempt.
const BACKOFF: Duration = Duration::from_micros(100);
/// Doublings after which the backoff grows no more.
const BACKOFF_DOUBLINGS_MAX: u32 = 6;

impl<T: Table<Meta = Meta>, O: Command<Owned = O>> Hermes<T, O> {
    /// Puts an op at the end of its key's queue and serves what can be served.
    pub(crate) fn enqueue(
        &mut self,
        now: Now,
        handle: T::Handle,
        waiter: Waiter<O>,
        effects: &mut impl Effects<Self>,
    ) {
        let queue = self.queue(now, handle);
        if queue.waiters.len() >= limits::WAITERS_PER_KEY_MAX
            && !mutant!("hermes_queue_without_limit")
        {
            return self.answer(waiter.tag, Outcome::Refused(Refusal::Busy), effects);
        }
        let read = is_read(&waiter);
        queue.reads += usize::from(read);
        queue.waiters.push_back(waiter);
        self.waiting += 1;
        self.counters.queued_reads += u64::from(read);
        let meta = self.table.lock(handle).meta();
        match meta.state {
            State::Valid => self.serve(now, handle, effects),
            // Nobody else drives it, as every key after the loss of all power.
            State::Invalid if self.is_orphan(&meta) => self.replay(now, handle, effects),
            _ => {}
        }
    }

    /// Puts an op that runs again back in front of whatever came after it.
    pub(crate) fn requeue(&mut self, now: Now, handle: T::Handle, waiter: Waiter<O>) {
        let queue = self.queue(now, handle);
        queue.reads += usize::from(is_read(&waiter));
        queue.waiters.push_front(waiter);
        self.waiting += 1;
    }

    fn queue(&mut self, now: Now, handle: T::Handle) -> &mut Queue<O> {
        let loss_at = now.monotonic + self.config.message_loss_timeout;
        let (checks, number) = (&mut self.queue_checks, &mut self.next_queue);
        self.queues.entry(handle).or_insert_with(|| {
            *number += 1;
            checks.insert(loss_at, (*number, handle));
            Queue {
                waiters: Default::default(),
                reads: 0,
                number: *number,
                check_at: loss_at,
                seen: None,
                loss_at,
                stalls: 0,
            }
        })
    }

    /// The jittered pause before a superseded read-modify-write runs again (H6).
    pub(crate) fn backoff(&mut self, attempts: u32) -> Duration {
        self.rng.span_below(BACKOFF * (1 << attempts.min(BACKOFF_DOUBLINGS_MAX)))
    }

    /// Serves a Valid key's queue: every read that may go, then updates until one is pending.
    pub(crate) fn serve(&mut self, now: Now, handle: T::Handle, effects: &mut impl Effects<Self>) {
        let outer = self.serving.replace(handle);
        // What has waited is of several clients, and not only of the one whose op runs now.
        self.table.set_writer(0);
        loop {
            if !mutant!("hermes_reads_after_writes") {
                self.serve_reads(now, handle, effects);
            }
            if !self.is_valid(handle) {
                break;
            }
            let Some(waiter) = self.take_update(now, handle) else {
                if mutant!("hermes_reads_after_writes") {
                    self.serve_reads(now, handle, effects);
                }
                break;
            };
            self.run_combined(now, handle, waiter, effects);
            if !self.is_valid(handle) {
                break;
            }
        }
        self.serving = outer;
        self.reschedule_queue(now, handle);
    }

    fn is_valid(&mut self, handle: T::Handle) -> bool {
        self.queues.contains_key(&handle) && self.table.lock(handle).meta().state == State::Valid
    }

    fn serve_reads(&mut self, now: Now, handle: T::Handle, effects: &mut impl Effects<Self>) {
        let mut updating: BTreeSet<u64> = BTreeSet::new();
        let mut at = 0;
        let Some(queue) = self.queues.get(&handle) else { return };
        // A queue of updates only must not be looked through for each of them.
        let mut left = queue.reads;
        while left > 0 {
            let Some(queue) = self.queues.get_mut(&handle) else { break };
            let Some(waiter) = queue.waiters.get(at) else { break };
            let origin = waiter.run.origin;
            if !is_read(waiter) {
                updating.insert(origin);
                at += 1;
                continue;
            }
            left -= 1;
            if updating.contains(&origin) {
                at += 1;
            } else {
                let waiter = queue.waiters.remove(at).expect("looked at a moment ago");
                queue.reads -= 1;
                let reads = queue.reads;
                self.waiting -= 1;
                self.run(now, handle, waiter, effects);
                if !self.is_valid(handle) {
                    // The read met an expired value, and its deletion is now pending.
                    return;
                }
                if self.queues.get(&handle).is_some_and(|queue| queue.reads > reads) {
                    // It did, and with a single live replica the deletion is done.
                    return self.serve_reads(now, handle, effects);
                }
            }
        }
    }

    /// The first update whose time has come and whose origin has no earlier one in the queue.
    fn take_update(&mut self, now: Now, handle: T::Handle) -> Option<Waiter<O>> {
        let open = self.floors.is_open();
        let record = self.table.lock(handle);
        let absent = record.content().is_none();
        drop(record);
        let queue = self.queues.get_mut(&handle)?;
        let mut earlier: BTreeSet<u64> = BTreeSet::new();
        for at in 0..queue.waiters.len() {
            let waiter = &queue.waiters[at];
            let access = waiter.run.op.access();
            if access == Access::Read {
                continue;
            }
            let due = waiter.not_before <= now.monotonic && !(absent && open);
            if due && !earlier.contains(&waiter.run.origin) {
                self.waiting -= 1;
                return queue.waiters.remove(at);
            }
            earlier.insert(waiter.run.origin);
        }
        None
    }

    /// The further updates of the queue that may share one: due, of this access, no calls, in the
    /// order of each origin, and in their order.
    pub(crate) fn take_alike(
        &mut self,
        now: Now,
        handle: T::Handle,
        access: Access,
        most: usize,
    ) -> Vec<Waiter<O>> {
        let mut alike = Vec::new();
        let Some(queue) = self.queues.get_mut(&handle) else { return alike };
        if queue.waiters.len() == queue.reads {
            return alike;
        }
        let mut earlier: BTreeSet<u64> = BTreeSet::new();
        for waiter in core::mem::take(&mut queue.waiters) {
            let RetryState { op, origin, permit, .. } = &waiter.run;
            let is_due = waiter.not_before <= now.monotonic && alike.len() < most;
            let is_alike = op.access() == access && permit.is_none();
            if is_due && is_alike && !earlier.contains(origin) {
                alike.push(waiter);
            } else {
                earlier.insert(*origin);
                queue.waiters.push_back(waiter);
            }
        }
        self.waiting -= alike.len();
        alike
    }

    pub(crate) fn run(
        &mut self,
        now: Now,
        handle: T::Handle,
        waiter: Waiter<O>,
        effects: &mut impl Effects<Self>,
    ) {
        let RetryState { op, origin, attempts, give_up_at, permit } = waiter.run;
        let access = op.access();
        let attempt = OpContext { access, origin, number: attempts, give_up_at, permit };
        self.execute(now, handle, waiter.tag, op, attempt, effects);
    }

    /// Forgets an empty queue; sets the next look at one that is not.
    fn reschedule_queue(&mut self, now: Now, handle: T::Handle) {
        let Some(queue) = self.queues.get(&handle) else { return };
        if queue.waiters.is_empty() {
            let queue = self.queues.remove(&handle).expect("looked at a moment ago");
            self.queue_checks.remove(queue.check_at, (queue.number, handle));
            let record = self.table.lock(handle);
            let unused = record_is_blank(&record) && record.meta().state == State::Valid;
            drop(record);
            if unused {
                self.forget(handle);
            }
            return;
        }
        let backoff = queue.waiters.iter().map(|waiter| waiter.not_before);
        let due = backoff.filter(|at| *at > now.monotonic).min();
        let next = due.unwrap_or(Instant::NEVER).min(queue.loss_at.max(now.monotonic));
        self.check_queue_at(handle, next);
    }

    pub(crate) fn check_queue_at(&mut self, handle: T::Handle, at: Instant) {
        if let Some(queue) = self.queues.get_mut(&handle) {
            self.queue_checks.remove(queue.check_at, (queue.number, handle));
            queue.check_at = at;
            self.queue_checks.insert(at, (queue.number, handle));
        }
    }

    /// Looks at every queue at the next tick, in the order of their creation: records lie at
    /// addresses that differ from run to run, and a run must be repeatable.
    pub(crate) fn check_all_queues(&mut self, at: Instant) {
        let mut queued: Vec<(u64, T::Handle)> =
            self.queues.iter().map(|(handle, queue)| (queue.number, *handle)).collect();
        queued.sort_unstable();
        for (_, handle) in queued {
            self.check_queue_at(handle, at);
        }
    }

    /// The timer of a queue fires: give up on ops that waited too long, start those whose backoff
    /// has passed, and look whether the key is stuck.
    pub(crate) fn on_queue_timeout(
        &mut self,
        now: Now,
        handle: T::Handle,
        effects: &mut impl Effects<Self>,
    ) {
        self.give_up(now, handle, effects);
        let meta = self.table.lock(handle).meta();
        if meta.state == State::Valid {
            self.serve(now, handle, effects);
        } else {
            self.check_stall(now, handle, meta, effects);
        }
        let mlt = self.config.message_loss_timeout;
        if let Some(queue) = self.queues.get_mut(&handle)
            && queue.loss_at <= now.monotonic
        {
            queue.loss_at = now.monotonic + mlt;
        }
        self.reschedule_queue(now, handle);
    }

    fn check_stall(
        &mut self,
        now: Now,
        handle: T::Handle,
        meta: Meta,
        effects: &mut impl Effects<Self>,
    ) {
        let orphan = self.is_orphan(&meta);
        let queue = self.queues.get_mut(&handle).expect("only keys with a queue are checked");
        let overdue = queue.loss_at <= now.monotonic;
        if overdue {
            queue.stalls = if queue.seen == Some(meta) { queue.stalls + 1 } else { 0 };
            queue.seen = Some(meta);
        }
        let stalls = queue.stalls;
        if meta.state != State::Invalid {
            // The op that drives the key sends again by itself.
            return;
        }
        // One replica replays first; the others only if that did not help (N7-17).
        let patience = if self.owns(handle) { 1 } else { 2 };
        if orphan || (overdue && stalls >= patience) {
            if !orphan {
                effects.probe("hermes: replay while the coordinator lives");
            }
            self.replay(now, handle, effects);
        }
    }

    /// Answers the ops of a queue whose time is up.
    fn give_up(&mut self, now: Now, handle: T::Handle, effects: &mut impl Effects<Self>) {
        let valid = self.table.lock(handle).meta().state == State::Valid;
        let Some(queue) = self.queues.get_mut(&handle) else { return };
        let late = |waiter: &Waiter<O>| waiter.run.give_up_at <= now.monotonic;
        if !queue.waiters.iter().any(late) {
            return;
        }
        let (late, kept): (Vec<_>, Vec<_>) = queue.waiters.drain(..).partition(late);
        queue.reads = kept.iter().filter(|waiter| is_read(waiter)).count();
        queue.waiters.extend(kept);
        self.waiting -= late.len();
        for waiter in late {
            // An attempt that was superseded has ended only once a larger version is Valid here:
            // until then another replica may still replay it (H1).
            let may_be_replayed = waiter.run.attempts > 0 && !valid;
            let outcome = if may_be_replayed && !mutant!("hermes_abort_reported_early") {
                Outcome::Unknown
            } else {
                Outcome::Refused(Refusal::TimedOut)
            };
            self.answer(waiter.tag, outcome, effects);
        }
    }
}

fn is_read<O: Command>(waiter: &Waiter<O>) -> bool {
    waiter.run.op.access() == Access::Read
}

fn record_is_blank<R: Record<Meta = Meta>>(record: &R) -> bool {
    record.meta().is_blank() && record.content().is_none()
}
