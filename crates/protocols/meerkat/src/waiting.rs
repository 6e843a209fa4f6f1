//! What an op waits for before it is tried (again): for its turn in its origin's line, for another
//! op, for the end of a transaction that is in the way, or for the end of a pause.
//!
//! Nobody waits in a circle. An op of another origin is waited for only if it is the first of its
//! line, and the op that waits stands in a line by then. So along a chain of waits each op has entered its
//! line later than the one before, and the chain ends at an op that is about to be tried.

use alloc::vec::Vec;

use quorate_machine::{Command, LaneShared, Slot, Table, mutant};
use quorate_types::{Duration, Instant, Now, Timestamp, hash_key};

use crate::attempt::Attempt;
use crate::body::Body;
use crate::execution::backoff;
use crate::meta::Meta;
use crate::occ::{Conflict, Reason};
use crate::state::Meerkat;

/// Keys at which other nodes have their turn, at most.
const TURNS_MAX: usize = 1024;
/// The longest turn.
const TURN_MAX: Duration = Duration::from_millis(5);

impl<T, X> Meerkat<T, X>
where
    T: Table<Meta = Meta> + LaneShared,
    X: Command<Owned = X>,
{
    // --- lines ---------------------------------------------------------------------------------

    /// Stands an op in its origin's line, in order of submission.
    pub(crate) fn enter_line(&mut self, slot: Slot) {
        let Some(op) = self.ops.get_mut(slot).filter(|op| !op.in_line) else { return };
        op.in_line = true;
        let line = self.lines.entry(op.origin).or_default();
        let at = line.partition_point(|(sequence, _)| *sequence < op.sequence);
        line.insert(at, (op.sequence, slot));
    }

    fn place_in_line(&self, slot: Slot) -> Option<(&Vec<(u64, Slot)>, usize)> {
        let op = self.ops.get(slot)?;
        let line = self.lines.get(&op.origin)?;
        Some((line, line.partition_point(|(sequence, _)| *sequence < op.sequence)))
    }

    /// What must take effect before an op, since it stands before it in its origin's line.
    pub(crate) fn before_in_line(&self, slot: Slot) -> Option<Slot> {
        let (line, at) = self.place_in_line(slot)?;
        at.checked_sub(1).map(|before| line[before].1)
    }

    /// Whether an op is the first of its line, or would be.
    pub(crate) fn is_first_in_line(&self, slot: Slot) -> bool {
        self.before_in_line(slot).is_none()
    }

    /// What stands behind an op in its origin's line.
    pub(crate) fn next_in_line(&self, slot: Slot) -> Option<Slot> {
        let (line, at) = self.place_in_line(slot)?;
        let own = line.get(at).is_some_and(|(_, other)| *other == slot);
        line.get(at + usize::from(own)).map(|(_, next)| *next)
    }

    // --- other ops -----------------------------------------------------------------------------

    /// The ops that waited behind this one wait for its attempt now, or for nothing.
    pub(crate) fn pass_followers(&mut self, slot: Slot, id: Option<Timestamp>) {
        let Some(op) = self.ops.get_mut(slot).filter(|op| !op.followers.is_empty()) else { return };
        let followers = core::mem::take(&mut op.followers);
        match id {
            Some(id) => self.blocked_on.entry(id).or_default().extend(followers),
            None => self.ready.extend(followers),
        }
    }

    /// An earlier op of the same origin that is under way at a key of the last run, and has not run
    /// in that workspace itself. It may yet be run again, and this one must not take effect before.
    pub(crate) fn predecessor(&self, slot: Slot) -> Option<Slot> {
        let op = self.ops.get(slot)?;
        let under_way = |hash| self.under_way.get(&(op.origin, hash)).copied();
        let is_earlier = |other: &Slot| {
            self.ops.get(*other).is_some_and(|other| other.sequence < op.sequence)
                && !self.has_run(*other)
        };
        self.work.hashes().filter_map(under_way).find(is_earlier)
    }

    /// Waits for another op.
    pub(crate) fn follow(&mut self, other: Slot, slot: Slot) {
        self.enter_line(slot);
        if let Some(other) = self.ops.get_mut(other) {
            other.followers.push(slot);
        }
    }

    /// Notes that an op is under way at the keys of the last run.
    pub(crate) fn claim_keys(&mut self, slot: Slot) {
        let Some(op) = self.ops.get_mut(slot) else { return };
        let origin = op.origin;
        let mut keys = core::mem::take(&mut op.keys);
        for key in keys.drain(..) {
            self.leave_key(origin, key, slot);
        }
        keys.extend(self.work.hashes());
        for key in &keys {
            self.under_way.insert((origin, *key), slot);
        }
        if let Some(op) = self.ops.get_mut(slot) {
            op.keys = keys;
        }
    }

    pub(crate) fn leave_key(&mut self, origin: u64, key: u64, slot: Slot) {
        self.under_way.remove_if(&(origin, key), |other| *other == slot);
    }

    /// Those that waited go on: what only reads on its own, the others behind the first of them,
    /// which this returns. Who isn't the first of its line goes on when it is.
    pub(crate) fn gather(&mut self, slots: Vec<Slot>) -> Option<Slot> {
        let mut first = None;
        let mut rest = Vec::with_capacity(slots.len());
        for slot in slots {
            let Some(op) = self.ops.get(slot) else { continue };
            let waits_in_line =
                !self.is_first_in_line(slot) && !mutant!("meerkat_waits_in_a_circle");
            match first {
                _ if !op.txn.updates() => self.ready.push_back(slot),
                _ if waits_in_line || first == Some(slot) => {}
                None => first = Some(slot),
                Some(_) => rest.push(slot),
            }
        }
        if let Some(op) = first.and_then(|first| self.ops.get_mut(first)) {
            // In front of those that wait for it already.
            rest.append(&mut op.followers);
            op.followers = rest;
        }
        first
    }

    // --- transactions in the way ---------------------------------------------------------------

    /// The transaction in the way, if this lane will learn of its end: one of its own, or one that
    /// it has a record of.
    pub(crate) fn blocker(&self, conflict: Conflict) -> Option<Timestamp> {
        let waits = [Reason::PendingReader, Reason::PendingWriter, Reason::CallInProgress];
        if !waits.contains(&conflict.reason) {
            return None;
        }
        let id = conflict.with;
        let own = id.writer == self.writer()
            && self.attempts.get(&id.version).is_some_and(Attempt::is_open_update);
        let known = self.records.of(id).any(|(_, record)| record.decision.is_none());
        (own || known).then_some(id)
    }

    /// Lets those go on that waited for a transaction.
    pub(crate) fn wake_parked(&mut self, id: Timestamp) {
        let Some(slots) = self.blocked_on.remove(&id) else { return };
        let next = self.gather(slots);
        self.ready.extend(next);
    }

    /// As [`Meerkat::wake_parked`], after a transaction that others have beaten: who waits for it is
    /// in their way, too, and pauses as it does. Otherwise the nodes that fight for a key would all
    /// send their next one at once, again and again, and nobody would ever win.
    pub(crate) fn scatter_parked(&mut self, now: Now, id: Timestamp) {
        let Some(slots) = self.blocked_on.remove(&id) else { return };
        let Some(slot) = self.gather(slots) else { return };
        if let Some(op) = self.ops.get_mut(slot) {
            // It has not lost itself: a pause is no attempt.
            op.pauses += 1;
            self.pause(now, slot);
        }
    }

    // --- pauses --------------------------------------------------------------------------------

    /// An op pauses, longer the more often it has lost. What comes for its keys meanwhile waits for
    /// it, and is tried with it: others would only be in its way.
    pub(crate) fn pause(&mut self, now: Now, slot: Slot) {
        let Some(op) = self.ops.get(slot) else { return };
        let span = backoff(op.attempts + op.pauses, &mut self.rng);
        self.pause_until(slot, now.monotonic + span);
    }

    pub(crate) fn pause_until(&mut self, slot: Slot, until: Instant) {
        self.end_pause(slot);
        let Some(op) = self.ops.get_mut(slot) else { return };
        op.backoff = Some(until);
        self.backoffs.insert(until, slot);
        for key in &op.keys {
            self.pausing.insert(*key, slot);
        }
    }

    /// Nobody waits for the end of its pause any more.
    pub(crate) fn end_pause(&mut self, slot: Slot) {
        let Some(op) = self.ops.get_mut(slot) else { return };
        let Some(until) = op.backoff.take() else { return };
        self.backoffs.remove(until, slot);
        for key in &op.keys {
            self.pausing.remove_if(key, |other| *other == slot);
        }
    }

    /// An own update has committed. If it was in another node's way, that one, which hears of the end
    /// half a round trip later, has its turn at the keys now: for as long as this one took, nothing
    /// is tried here. Otherwise the node that has won once would win for ever.
    pub(crate) fn leave_turn(&mut self, now: Now, version: u64) {
        let Some(attempt) = self.attempts.get(&version).filter(|attempt| attempt.obstructs) else {
            return;
        };
        if self.turns.len() >= TURNS_MAX {
            self.turns.retain(|_, until| *until > now.monotonic);
        }
        if mutant!("meerkat_winner_goes_on") {
            return;
        }
        let room = TURNS_MAX.saturating_sub(self.turns.len());
        let span = now.monotonic.since(attempt.started).min(TURN_MAX);
        let items = attempt.parts.iter().flat_map(|part| Body::trusted(&part.body).iter());
        for item in items.filter(|item| item.write.is_some()).take(room) {
            self.turns.insert(hash_key(item.key), now.monotonic + span);
        }
    }

    /// Until when other nodes have their turn at a key that an op's last run wrote.
    pub(crate) fn turn_of_others(&mut self, now: Now) -> Option<Instant> {
        if self.turns.is_empty() || self.work.is_read_only() {
            return None;
        }
        let mut latest = None;
        for hash in self.work.hashes() {
            match self.turns.get(&hash) {
                Some(until) if *until > now.monotonic => latest = latest.max(Some(*until)),
                Some(_) => drop(self.turns.remove(&hash)),
                None => {}
            }
        }
        latest
    }

    /// Another op that pauses at a key of this one's last run, and is tried at the end of the pause.
    pub(crate) fn pausing_at_its_keys(&self, slot: Slot) -> Option<Slot> {
        let op = self.ops.get(slot)?;
        if self.pausing.is_empty() || !op.txn.updates() {
            return None;
        }
        let pausing = |hash| self.pausing.get(&hash).copied();
        let others = self.work.hashes().filter_map(pausing).filter(|other| *other != slot);
        { others }
            .find(|other| self.is_first_in_line(*other) || mutant!("meerkat_waits_in_a_circle"))
    }
}
