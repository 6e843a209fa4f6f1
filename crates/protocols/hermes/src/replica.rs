//! The normal case: updates, INV, ACK, VAL (§4.3.2, §4.3.5; the table of transitions is N3.4).

use alloc::vec::Vec;

use quorate_machine::{
    Access, Change, Command, Completion, Content, Current, Effects, Gate, Outcome, Record, Slot,
    Table, mutant,
};
use quorate_rifl::Permit;
use quorate_types::{Lsn, NodeId, NodeSet, Now, Tag, Timestamp, WriterId, limits};

use crate::deltas::{DAMAGED_DELTA, Received, inv_of};
use crate::log::{O3_AND_LOG, write_update};
use crate::message::{Ack, Inv, Message, NOBODY, VERSION_MAX, Val};
use crate::ops::{Pending, PendingKind, RetryState, Tentative, UpdateContext, Waiter};
use crate::{Hermes, Meta, State};

impl<T: Table<Meta = Meta>, O: Command<Owned = O>> Hermes<T, O> {
    /// Whether an op with this access may run on the key now.
    pub(crate) fn can_run(&mut self, handle: T::Handle, access: Access) -> bool {
        let record = self.table.lock(handle);
        may_run(&record, access, self.floors.is_open())
    }

    /// Starts a blind write, which needs no look at its key beforehand, if it may run now and sets a
    /// value: one critical section in all. Otherwise nothing has happened.
    pub(crate) fn write_at_once(
        &mut self,
        now: Now,
        handle: T::Handle,
        tag: Tag,
        op: &impl Command<Reply = O::Reply>,
        effects: &mut impl Effects<Self>,
    ) -> bool {
        let (reply, change) = op.apply(now.wall(), Current::ABSENT);
        if !matches!(change, Change::Set { .. }) {
            return false;
        }
        let answer = Some((tag, reply));
        let run = UpdateContext { rmw: false, answer, combined: Vec::new(), completion: None };
        self.update_if(now, handle, &change, run, Unless::Busy, effects).is_some()
    }

    /// Whether an update would need a version beyond the limit, to which only a peer in error can have
    /// brought a key.
    pub(crate) fn has_no_version_left(&self, version: u64) -> bool {
        has_no_version_left(version, self.floors.base())
    }

    /// Starts an update of a key on which it may run. Gives the cookie of the pending update.
    pub(crate) fn update(
        &mut self,
        now: Now,
        handle: T::Handle,
        change: &Change<'_>,
        run: UpdateContext<O>,
        effects: &mut impl Effects<Self>,
    ) -> Slot {
        let slot = self.update_if(now, handle, change, run, Unless::Never, effects);
        slot.expect("only a busy key keeps an update waiting")
    }

    /// Starts an update: new value, new timestamp and state Write in one critical section (H0),
    /// then INV to every live replica. Gives the cookie of the pending update.
    fn update_if(
        &mut self,
        now: Now,
        handle: T::Handle,
        change: &Change<'_>,
        UpdateContext { rmw, answer, combined, completion }: UpdateContext<O>,
        unless: Unless,
        effects: &mut impl Effects<Self>,
    ) -> Option<Slot> {
        let mut record = self.table.lock(handle);
        let meta = record.meta();
        let no_version_left = has_no_version_left(meta.timestamp.version, self.floors.base());
        let is_busy = !may_run(&record, Access::Write, self.floors.is_open()) || no_version_left;
        if unless == Unless::Busy && is_busy {
            return None;
        }
        let salt = self.rng.next_u64() as u8;
        let writer = if mutant!("hermes_node_id_reused") {
            WriterId(u32::from(self.config.node.0))
        } else {
            WriterId::new(self.number, salt)
        };
        // A key without value may be absent elsewhere, which is to say, Valid at the floor.
        let absent = record.content().is_none();
        let floor = if absent { self.floors.base() } else { 0 };
        let base = floor.max(meta.timestamp.version);
        // A write outranks every read-modify-write that it races with (§4.3.5).
        let timestamp = Timestamp::new(base + if rmw { 1 } else { 2 }, writer);
        if record.large().is_some() {
            let changed = self.deltas.change(handle, &mut record, change, timestamp);
            assert!(rmw || !changed, "who changes a large value has seen it");
        }
        match change {
            Change::Keep => debug_assert!(completion.is_some(), "only a call may change nothing"),
            Change::Delete => record.clear(),
            Change::Delta { expire_at, .. } => self.expiry.note(now.monotonic, *expire_at),
            Change::Expire(at) => {
                record.set_expiry(*at);
                self.expiry.note(now.monotonic, *at);
            }
            Change::Set { bytes, kind, expire_at } => {
                record.set_content(Content { bytes, kind: *kind, expire_at: *expire_at });
                self.expiry.note(now.monotonic, *expire_at);
            }
        }
        let deleted = record.content().is_none();
        self.next_number += 1;
        let resend_at = now.monotonic + self.config.message_loss_timeout;
        let slot = self.ops.insert(Pending {
            kind: if rmw { PendingKind::Rmw } else { PendingKind::Write },
            handle,
            timestamp,
            rmw,
            acks: NodeSet::EMPTY,
            number: self.next_number,
            started: now.monotonic,
            resend_at,
            sent_at: now.monotonic,
            tries: 0,
            lsn: Lsn::START,
            answer,
            again: None,
            combined,
        });
        let listed = self.tombstones.note(&self.config, now, handle, deleted, &meta);
        let state = State::Write;
        let life = self.life;
        record.set_meta(Meta { timestamp, state, rmw, unsettled: rmw, op: slot, listed, life });
        let tentative = completion.map(|(Permit { call, date, .. }, answer)| {
            self.tracker.begin(&call, (handle, timestamp), answer.bytes().len());
            Tentative { timestamp, call, date, answer }
        });
        let mut whole = Vec::new();
        let undecided = self.deltas.get(&handle);
        let inv = inv_of(&record, slot, tentative.as_ref(), undecided, &mut whole);
        effects.broadcast(self.peers, &Message::Inv(inv));
        let lsn = self.journal.append(effects, |log| write_update(&inv, log));
        drop(record);
        if let Some(tentative) = tentative {
            self.tentative.insert(handle, tentative);
        }
        self.ops.get_mut(slot).expect("it was inserted above").lsn = lsn;
        self.await_log(slot);
        self.resends.push(resend_at, slot);
        self.floors.note_version(deleted, timestamp.version);
        if rmw {
            self.counters.rmws += 1;
        } else {
            self.counters.writes += 1;
        }
        self.commit_if_acknowledged(now, slot, effects);
        Some(slot)
    }

    /// INV (N3.4): adopt a newer version, and acknowledge in every case that keeps the writer's
    /// order.
    pub(crate) fn on_inv(
        &mut self,
        now: Now,
        from: NodeId,
        inv: &Inv<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        if inv.base.is_some() && self.is_left_over(inv.key) && !mutant!("hermes_delta_drops_base") {
            // Nothing takes its place before all of the value is here: the donor may have vouched for
            // it, and the coordinator may not live to send more.
            return self.ask_for_value(from, inv.key, effects);
        }
        let handle = self.find_or_insert(inv.key, effects);
        let record = self.table.lock(handle);
        let meta = record.meta();
        if meta.is_blank() && inv.timestamp.version <= self.floors.floor {
            drop(record);
            if !self.queues.contains_key(&handle) {
                self.forget(handle);
            }
            return self.on_inv_below_floor(from, inv, effects);
        }
        let newer = inv.timestamp > meta.timestamp
            || (mutant!("hermes_equal_inv_invalidates") && inv.timestamp == meta.timestamp);
        if newer {
            drop(record);
            match self.receive_delta(handle, inv) {
                Received::Changed => {}
                Received::Lacking if mutant!("hermes_lacking_base_acknowledged") => {
                    return self.send_ack(from, inv, effects);
                }
                Received::Lacking => {
                    if meta.is_blank() && !self.queues.contains_key(&handle) {
                        self.forget(handle);
                    }
                    return self.ask_for_value(from, inv.key, effects);
                }
                Received::Damaged => return effects.refused(DAMAGED_DELTA),
            }
            self.cover(handle, meta, inv.base_version(), effects);
            self.supersede(now, meta, inv, effects);
            self.adopt(now, from, handle, inv, effects);
            self.send_ack(from, inv, effects);
        } else if inv.timestamp == meta.timestamp {
            drop(record);
            if self.learn_call(handle, meta, inv.completion.as_ref()) {
                self.append_update(inv, effects);
            }
            self.send_ack(from, inv, effects);
            if self.config.ack_broadcast {
                // Its sender holds this version, too.
                self.count_ack(now, handle, inv.timestamp, from, effects);
            }
        } else if !inv.rmw && !self.floors.has_unsettled(&meta) {
            drop(record);
            self.send_ack(from, inv, effects);
        } else {
            // A stale read-modify-write must not commit, and a write must not before the newer
            // read-modify-write that did not see it (H12), nor before a newer version that its coordinator may
            // have lost: it hears of what overtook it.
            effects.probe(if inv.rmw {
                "hermes: counter-INV"
            } else {
                "hermes: write waits for a read-modify-write"
            });
            let drives = matches!(meta.state, State::Write | State::Replay);
            let cookie = if drives { meta.op } else { Slot::NONE };
            let mut whole = Vec::new();
            let (call, undecided) = (self.tentative.get(&handle), self.deltas.get(&handle));
            let inv = inv_of(&record, cookie, call, undecided, &mut whole);
            effects.send(from, &Message::Inv(inv));
        }
    }

    /// An update of a forgotten key at or below the floor. Mostly a late duplicate, whose sender
    /// ignores what it hears. But it may be what is left of an update that was given up, and that
    /// some replica now replays: it must not come back where others have forgotten the key (H8).
    fn on_inv_below_floor(
        &mut self,
        from: NodeId,
        inv: &Inv<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        effects.probe("hermes: INV below the floor");
        if inv.timestamp.writer == NOBODY {
            return self.send_ack(from, inv, effects);
        }
        let timestamp = Timestamp::new(self.floors.floor, NOBODY);
        let gone = Inv {
            cookie: Slot::NONE,
            timestamp,
            rmw: false,
            content: None,
            base: None,
            completion: None,
            ..*inv
        };
        effects.send(from, &Message::Inv(gone));
    }

    /// What a newer version means for the update that was pending here.
    pub(crate) fn supersede(
        &mut self,
        now: Now,
        meta: Meta,
        inv: &Inv<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        match meta.state {
            State::Valid | State::Invalid | State::Trans => {}
            State::Replay => {
                effects.probe("hermes: replay superseded");
                let op = self.ops.get(meta.op).expect("state Replay has its op");
                if op.answer.is_none() {
                    self.ops.remove(meta.op);
                }
            }
            State::Write => {
                let op = self.ops.get(meta.op).expect("state Write has its op");
                if op.kind == PendingKind::Write {
                    // The op goes on under its own timestamp (O2: no VAL at the end).
                    self.counters.superseded_writes += 1;
                } else {
                    self.supersede_rmw(now, meta, inv, effects);
                }
            }
        }
    }

    /// A read-modify-write of this node met a newer version. Either it had been committed by a
    /// replay of another node, which the newer version was built on (H11), or it can't commit any
    /// more and runs again (H1).
    fn supersede_rmw(
        &mut self,
        now: Now,
        meta: Meta,
        inv: &Inv<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        let op = self.ops.remove(meta.op).expect("state Write has its op");
        if inv.base_version() >= op.timestamp.version && !mutant!("hermes_replayed_rmw_retried") {
            effects.probe("hermes: replayed read-modify-write answered as done");
            self.answer_done(op.answer, op.combined, effects);
            return;
        }
        effects.probe("hermes: read-modify-write superseded");
        self.counters.rmw_aborts += 1;
        self.note_conflict(now, op.handle);
        let first = op.answer.map(|(tag, _)| tag).zip(op.again);
        let combined = op.combined.into_iter().map(|op| (op.tag, op.run));
        let combined = combined.filter(|_| !mutant!("hermes_combined_forgotten"));
        let again: Vec<_> = first.into_iter().chain(combined).collect();
        let Some(attempts) = again.iter().map(|(_, run)| run.attempts + 1).max() else { return };
        let not_before = now.monotonic + self.backoff(attempts);
        for (tag, again) in again.into_iter().rev() {
            let run = RetryState { attempts: again.attempts + 1, ..again };
            self.requeue(now, op.handle, Waiter { tag, run, not_before });
        }
    }

    /// Takes over a newer version: its value is here from now on, unreadable until VAL.
    pub(crate) fn adopt(
        &mut self,
        now: Now,
        from: NodeId,
        handle: T::Handle,
        inv: &Inv<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        let mut record = self.table.lock(handle);
        let meta = record.meta();
        let superseded_write = match meta.state {
            State::Trans => true,
            State::Write | State::Replay => self.ops.get(meta.op).is_some(),
            State::Valid | State::Invalid => false,
        };
        match inv.content {
            Some(content) => {
                self.expiry.note(now.monotonic, content.expire_at);
                // A delta was applied as it was received.
                if inv.base.is_none() {
                    record.set_content(content);
                }
            }
            None => record.clear(),
        }
        let deleted = inv.content.is_none();
        let listed = self.tombstones.note(&self.config, now, handle, deleted, &meta);
        record.set_meta(Meta {
            timestamp: inv.timestamp,
            state: if superseded_write { State::Trans } else { State::Invalid },
            rmw: inv.rmw,
            unsettled: inv.rmw || meta.unsettled,
            op: if superseded_write { meta.op } else { Slot::NONE },
            listed,
            life: self.life,
        });
        drop(record);
        self.append_update(inv, effects);
        self.keep_completion(handle, inv.timestamp, inv.completion.as_ref());
        self.floors.note_version(deleted, inv.timestamp.version);
        if self.config.ack_broadcast {
            self.count_ack(now, handle, inv.timestamp, from, effects);
        }
    }

    /// Behind what was appended: it promises that the sender's version, or a newer one, stays here.
    fn send_ack(&mut self, to: NodeId, inv: &Inv<'_>, effects: &mut impl Effects<Self>) {
        let ack = Ack { cookie: inv.cookie, timestamp: inv.timestamp, key: &[] };
        let (to, key) = if self.config.ack_broadcast {
            (self.peers.with(to), inv.key)
        } else {
            (NodeSet::only(to), &[][..])
        };
        let ack = Message::Ack(Ack { key, ..ack });
        match self.journal.gate() {
            Gate::OPEN => effects.broadcast(to, &ack),
            _ if mutant!("hermes_ack_before_durable") => effects.broadcast(to, &ack),
            gate => effects.send_behind(gate, to, &ack),
        }
    }

    /// An update of this node is not committed before its entry is durable.
    pub(crate) fn await_log(&mut self, slot: Slot) {
        let Some(op) = self.ops.get(slot) else { return };
        if !self.journal.is_durable(op.lsn) {
            assert!(!self.config.ack_broadcast, "{O3_AND_LOG}");
            self.undurable.push_back((op.lsn, slot));
        }
    }

    /// ACK: counts towards the op that its cookie names.
    pub(crate) fn on_ack(
        &mut self,
        now: Now,
        from: NodeId,
        ack: &Ack<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        if self.is_answered_by(ack) {
            let op = self.ops.get_mut(ack.cookie).expect("it is answered");
            op.acks.insert(from);
            let number = op.number;
            self.reads.acknowledged(number, from);
            self.commit_if_acknowledged(now, ack.cookie, effects);
        } else if !ack.key.is_empty() {
            // O3: everybody hears every acknowledgement, and the cookie is another node's.
            match self.find(ack.key) {
                Some(handle) => self.count_ack(now, handle, ack.timestamp, from, effects),
                None => effects.ignored("hermes: ACK of an unknown key"),
            }
        } else {
            effects.ignored("hermes: ACK of a finished op");
        }
        self.release_reads(effects);
    }

    /// Whether an acknowledgement is for the op of this node that its cookie names. One that went to
    /// everybody (O3) may carry another node's cookie, which this node has given to an op of another
    /// key; and a writer's timestamps repeat from key to key.
    fn is_answered_by(&mut self, ack: &Ack<'_>) -> bool {
        let Some(op) = self.ops.get(ack.cookie) else { return false };
        if op.timestamp != ack.timestamp {
            return false;
        }
        let same_key = ack.key.is_empty() || self.table.lock(op.handle).key() == ack.key;
        same_key || mutant!("hermes_broadcast_ack_without_key")
    }

    /// Answers an update once *all* live replicas have acknowledged it, and makes it readable.
    pub(crate) fn commit_if_acknowledged(
        &mut self,
        now: Now,
        slot: Slot,
        effects: &mut impl Effects<Self>,
    ) {
        let Some(op) = self.ops.get(slot) else { return };
        let enough = if mutant!("hermes_reply_on_majority") {
            op.acks.with(self.config.node).is_majority_of(self.peers.with(self.config.node))
        } else {
            self.peers.is_subset(op.acks)
        };
        if !enough {
            return;
        }
        if !self.journal.is_durable(op.lsn) && !mutant!("hermes_commit_before_durable") {
            effects.probe("hermes: commit waits for the log");
            return;
        }
        let op = self.ops.remove(slot).expect("it was there a moment ago");
        self.answer_done(op.answer, op.combined, effects);
        let mut record = self.table.lock(op.handle);
        let mut meta = record.meta();
        assert_eq!(meta.op, slot, "a record names the op that is pending for it");
        meta.op = Slot::NONE;
        if meta.state == State::Trans {
            meta.state = State::Invalid;
            record.set_meta(meta);
            return;
        }
        debug_assert_eq!(meta.timestamp, op.timestamp, "a record names the op that drives it");
        meta.state = State::Valid;
        meta.unsettled = false;
        record.set_meta(meta);
        self.deltas.forget(&op.handle);
        if !self.config.ack_broadcast {
            let val = Val { key: record.key(), timestamp: meta.timestamp };
            effects.broadcast(self.peers, &Message::Val(val));
        }
        drop(record);
        self.complete_valid_call(op.handle);
        self.became_valid(now, op.handle, effects);
    }

    /// VAL: the version may be read, if it is still the newest.
    pub(crate) fn on_val(&mut self, now: Now, val: &Val<'_>, effects: &mut impl Effects<Self>) {
        let Some(handle) = self.find(val.key) else {
            return effects.ignored("hermes: VAL of an unknown key");
        };
        let meta = self.table.lock(handle).meta();
        if meta.timestamp != val.timestamp && !mutant!("hermes_val_without_timestamp") {
            return effects.ignored("hermes: VAL of another version");
        }
        if meta.state == State::Valid {
            return effects.ignored("hermes: VAL of a Valid key");
        }
        self.validate(now, handle, effects);
    }

    /// Makes the newest version readable: everybody has it.
    pub(crate) fn validate(
        &mut self,
        now: Now,
        handle: T::Handle,
        effects: &mut impl Effects<Self>,
    ) {
        let mut record = self.table.lock(handle);
        let meta = record.meta();
        record.set_meta(Meta { state: State::Valid, unsettled: false, op: Slot::NONE, ..meta });
        drop(record);
        self.deltas.forget(&handle);
        self.complete_valid_call(handle);
        if meta.op != Slot::NONE {
            // Someone else finished this op before its own acknowledgements did: by a replay, or,
            // in Trans, by a newer version, which every live replica now holds.
            if meta.state != State::Trans {
                effects.probe("hermes: op finished by another's replay");
            }
            let op = self.ops.remove(meta.op).expect("a record names an op that is pending");
            if !mutant!("hermes_finished_by_another_unanswered") {
                self.answer_done(op.answer, op.combined, effects);
            }
        }
        self.became_valid(now, handle, effects);
    }

    fn became_valid(&mut self, now: Now, handle: T::Handle, effects: &mut impl Effects<Self>) {
        if self.config.ack_broadcast {
            self.ack_sets.remove(&handle);
        }
        // An update that commits at once, as with a single live replica, comes back here from
        // within `serve`, which goes on by itself.
        if self.serving != Some(handle) && self.queues.contains_key(&handle) {
            self.serve(now, handle, effects);
        }
        self.drop_tombstone_early(handle);
    }

    /// O3: a key whose newest version everybody has acknowledged is readable without a VAL.
    fn count_ack(
        &mut self,
        now: Now,
        handle: T::Handle,
        timestamp: Timestamp,
        from: NodeId,
        effects: &mut impl Effects<Self>,
    ) {
        let meta = self.table.lock(handle).meta();
        if timestamp < meta.timestamp
            || (timestamp == meta.timestamp && meta.state == State::Valid)
            || self.ack_sets.len() >= limits::OPS_PENDING_MAX
        {
            return;
        }
        let entry = self.ack_sets.entry(handle).or_insert((timestamp, NodeSet::EMPTY));
        match entry.0.cmp(&timestamp) {
            core::cmp::Ordering::Less => *entry = (timestamp, NodeSet::only(from)),
            core::cmp::Ordering::Equal => entry.1.insert(from),
            core::cmp::Ordering::Greater => return,
        }
        let complete = entry.0 == meta.timestamp && self.peers.is_subset(entry.1);
        if complete && matches!(meta.state, State::Invalid | State::Trans | State::Replay) {
            self.validate(now, handle, effects);
        }
    }

    /// Answers an op that changed nothing.
    pub(crate) fn answer_read(
        &mut self,
        tag: Tag,
        reply: O::Reply,
        effects: &mut impl Effects<Self>,
    ) {
        if self.config.reads == crate::Reads::Quorum {
            self.reads.hold(tag, reply, self.next_number);
        } else {
            let read = Completion::new(Outcome::Done(reply)).behind(Gate::LEASE);
            effects.complete_on(tag, read);
        }
    }

    /// Answers an op.
    pub(crate) fn answer(
        &mut self,
        tag: Tag,
        outcome: Outcome<O::Reply>,
        effects: &mut impl Effects<Self>,
    ) {
        match outcome {
            Outcome::Done(_) => {}
            Outcome::Refused(_) => self.counters.refused += 1,
            Outcome::Unknown => self.counters.unknown += 1,
        }
        effects.complete(tag, outcome);
    }

    /// Sends an INV again to those who have not acknowledged it. A write that was superseded is not
    /// sent again: instead the newer version is driven to its end, which is the end of both.
    pub(crate) fn resend(&mut self, now: Now, slot: Slot, effects: &mut impl Effects<Self>) {
        let Some(op) = self.ops.get_mut(slot) else { return };
        op.resend_at = now.monotonic + self.config.message_loss_timeout;
        op.sent_at = now.monotonic;
        self.resends.push(op.resend_at, slot);
        let mut record = self.table.lock(op.handle);
        let meta = record.meta();
        if meta.state == State::Trans {
            op.kind = PendingKind::Replay;
            op.timestamp = meta.timestamp;
            op.rmw = meta.rmw;
            op.acks = NodeSet::EMPTY;
            op.lsn = self.journal.appended();
            record.set_meta(Meta { state: State::Replay, ..meta });
            self.counters.replays += 1;
            if !self.journal.is_durable(op.lsn) {
                self.undurable.push_back((op.lsn, slot));
            }
        }
        let missing = self.peers.difference(op.acks);
        self.counters.retransmissions += missing.len() as u64;
        let mut whole = Vec::new();
        let (call, undecided) = (self.tentative.get(&op.handle), self.deltas.get(&op.handle));
        let inv = inv_of(&record, slot, call, undecided, &mut whole);
        debug_assert_eq!(inv.timestamp, op.timestamp, "a retransmission is the same update");
        effects.broadcast(missing, &Message::Inv(inv));
    }
}

/// What keeps an update from starting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Unless {
    /// Nothing: the key was looked at in this step.
    Never,
    /// That it may not run on the key now.
    Busy,
}

/// Whether an op with this access may run on a record now. While a floor is being raised, replicas
/// may still disagree on the version of an absent key; updates of absent keys wait (H8).
fn may_run<R: Record<Meta = Meta>>(record: &R, access: Access, floor_is_open: bool) -> bool {
    let held = access != Access::Read && record.content().is_none() && floor_is_open;
    record.meta().state == State::Valid && !held
}

fn has_no_version_left(version: u64, floor: u64) -> bool {
    version.max(floor) > VERSION_MAX - 2
}
