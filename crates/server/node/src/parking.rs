//! What happens while a node can't serve: ops that have not begun wait, and so do answers that rest
//! on the lease.
//!
//! A lease lapses when the process or its network was held up for longer than the lease lasts. That
//! stops the node, which is a matter of safety, and is usually over a moment later. Until then an op
//! that arrives is *parked*, and begins once the node serves. After [`quorate_types::Duration`]
//! `op_timeout` without serving, what is parked is refused, and so is at once whatever comes, until
//! the node serves again.

use std::collections::VecDeque;

use quorate_commands::{Op, Reply};
use quorate_machine::{Command, Outcome, Refusal, Seal, mutant};
use quorate_types::{
    Duration, Incarnation, Instant, KeyspaceId, LaneId, Now, Tag, hash_key, lane_of_hash, limits,
};

use crate::engine::KeyspaceLane;
use crate::lane::INTERNAL;
use crate::{Done, Lane, Mail, Outbox, SessionCall};

/// How often a lane looks whether the node serves again, while something waits for it. Lane 0 hears
/// of it at once.
const POLL: Duration = Duration::from_millis(2);

/// An op that has not begun.
#[derive(Debug)]
pub(crate) enum Parked {
    Op { keyspace: KeyspaceId, tag: Tag, origin: u64, op: Op },
    Call { from: LaneId, tag: Tag, call: SessionCall },
}

impl Parked {
    fn updates(&self) -> bool {
        match self {
            Self::Op { op, .. } => op.updates(),
            Self::Call { .. } => true,
        }
    }

    fn keyspace(&self) -> KeyspaceId {
        match self {
            Self::Op { keyspace, .. } => *keyspace,
            Self::Call { call, .. } => call.keyspace,
        }
    }
}

/// What waits on a lane until the node serves again.
#[derive(Debug, Default)]
pub(crate) struct Parking {
    ops: VecDeque<Parked>,
    /// Since when an op has found the node not serving.
    since: Option<Instant>,
    /// The answers that rest on the lease: since when they wait, and in which life they were read.
    unsealed: Option<(Instant, Incarnation)>,
    poll_at: Option<Instant>,
}

impl Parking {
    pub(crate) fn next_deadline(&self) -> Instant {
        self.poll_at.unwrap_or(Instant::NEVER)
    }

    /// The node begins a new life: what was read in the former one must not leave any more.
    pub(crate) fn forget_life(&mut self, now: Instant, former: Incarnation) {
        if !mutant!("node_seal_forgets_the_life") {
            self.unsealed = Some((now, former));
        }
    }
}

impl Lane {
    /// Whether this node may take client ops now, or soon, so that they wait for it; and if not, why,
    /// as a sentence for the client.
    ///
    /// # Errors
    /// That sentence, once ops have waited in vain.
    pub fn takes_ops(&self, now: Now) -> Result<(), &'static str> {
        let op_timeout = self.shared.config.op_timeout;
        let in_vain = |since: Instant| now.monotonic.since(since) >= op_timeout;
        if self.parking.since.is_some_and(in_vain) { self.serving(now) } else { Ok(()) }
    }

    /// Whether this node serves now, and if not, why, as a sentence for the client.
    ///
    /// # Errors
    /// That sentence.
    pub fn serving(&self, now: Now) -> Result<(), &'static str> {
        if !self.shared.is_active() {
            return Err("this node is not an active member of the cluster yet; \
                        use another node or wait until it has caught up");
        }
        if !self.has_contact(now, self.engines.iter().flatten().any(KeyspaceLane::is_leased)) {
            return Err(
                "this node has no contact with a majority of the cluster; use another node",
            );
        }
        Ok(())
    }

    /// Whether ops on this keyspace may start now.
    pub(crate) fn takes(&self, now: Now, keyspace: KeyspaceId) -> bool {
        let needs_lease = self.engine(keyspace).is_some_and(KeyspaceLane::is_leased);
        self.shared.is_active() && self.has_contact(now, needs_lease)
    }

    /// Whether ops may start, as far as the node's lease tells. Those of an engine that doesn't
    /// need it would still get nowhere without a majority; but they outlast a change of the view, in
    /// which all leases lapse once.
    pub(crate) fn has_contact(&self, now: Now, needs_lease: bool) -> bool {
        let config = &self.shared.config;
        let longer = if needs_lease { Duration::ZERO } else { config.lease };
        self.shared.lease_until() + longer > now.monotonic
    }

    /// Whether nothing is parked and ops may start: nobody overtakes what is parked.
    #[inline]
    pub(crate) fn is_open(
        &mut self,
        now: Now,
        keyspace: KeyspaceId,
        updates: bool,
        out: &mut Outbox,
    ) -> bool {
        if !self.parking.ops.is_empty() {
            self.unpark(now, out);
        }
        let keeps_up = self.log_keeps_up();
        let open = self.parking.ops.is_empty()
            && self.takes(now, keyspace)
            && out.has_room()
            && (keeps_up || !updates);
        if open && keeps_up {
            self.parking.since = None;
        }
        open
    }

    /// Whether the disk keeps up with what this lane's engines append, or does not have to.
    #[inline]
    fn log_keeps_up(&self) -> bool {
        self.log.as_ref().is_none_or(|log| log.keeps_up())
    }

    /// Whether reads of local records may be answered now.
    #[inline]
    pub(crate) fn may_read(&self, now: Now) -> bool {
        self.parking.ops.is_empty() && self.serving(now).is_ok()
    }

    /// Submits an op; its answer comes through [`Outbox::done`] of this lane, whichever lane runs
    /// it. Ops of one `origin` that have a key in common take effect in order. One of several keys
    /// is for an engine with transactions. While the node can't serve, the op
    /// waits for it up to `op_timeout`.
    pub fn submit<P>(
        &mut self,
        now: Now,
        keyspace: KeyspaceId,
        tag: Tag,
        origin: u64,
        op: P,
        out: &mut Outbox,
    ) where
        P: Command<Owned = Op, Reply = Reply<'static>>,
    {
        assert!(tag.0 & INTERNAL == 0, "drivers leave the highest bit of a tag clear");
        self.submit_any(now, keyspace, tag, origin, op, out);
    }

    /// As [`Lane::submit`], also under a tag of the lane's own.
    pub(crate) fn submit_any<P>(
        &mut self,
        now: Now,
        keyspace: KeyspaceId,
        tag: Tag,
        origin: u64,
        op: P,
        out: &mut Outbox,
    ) where
        P: Command<Owned = Op, Reply = Reply<'static>>,
    {
        if self.is_open(now, keyspace, op.updates(), out) {
            return self.begin_op(now, keyspace, tag, origin, op, out);
        }
        self.park(now, Parked::Op { keyspace, tag, origin, op: op.into_owned() }, out);
    }

    /// Runs an op here, or on the lane of its key if the engine changes one key at a time.
    fn begin_op<P>(
        &mut self,
        now: Now,
        keyspace: KeyspaceId,
        tag: Tag,
        origin: u64,
        op: P,
        out: &mut Outbox,
    ) where
        P: Command<Owned = Op, Reply = Reply<'static>>,
    {
        let lane = self.lane_of_op(keyspace, &op);
        if lane == self.id {
            self.run(now, keyspace, tag, origin, op, out);
        } else {
            let mail = Mail::Submit { from: self.id, keyspace, tag, origin, op: op.into_owned() };
            out.mail.push((lane, mail));
        }
    }

    #[inline]
    fn lane_of_op(&self, keyspace: KeyspaceId, op: &impl Command) -> LaneId {
        let lanes = self.shared.config.lanes;
        if lanes == 1 || self.engine(keyspace).is_some_and(KeyspaceLane::has_transactions) {
            return self.id;
        }
        lane_of_hash(hash_key(op.key()), lanes)
    }

    /// Keeps an op until the node serves, or refuses it if others have waited in vain.
    pub(crate) fn park(&mut self, now: Now, parked: Parked, out: &mut Outbox) {
        let since = *self.parking.since.get_or_insert(now.monotonic);
        if now.monotonic.since(since) >= self.shared.config.op_timeout {
            return self.turn_away(parked, self.refusal(), out);
        }
        if self.parking.ops.len() >= limits::OPS_PENDING_MAX {
            return self.turn_away(parked, Refusal::Busy, out);
        }
        self.counts.parked += 1;
        self.parking.ops.push_back(parked);
        self.parking.poll_at = Some(now.monotonic + POLL);
    }

    /// What is told to who has waited in vain.
    fn refusal(&self) -> Refusal {
        if self.log_keeps_up() { Refusal::NotServing } else { Refusal::Busy }
    }

    fn turn_away(&mut self, parked: Parked, refusal: Refusal, out: &mut Outbox) {
        match parked {
            Parked::Op { tag, .. } => {
                self.answer_at_last(Done::new(tag, Outcome::Refused(refusal)), out);
            }
            Parked::Call { from, tag, .. } => self.refuse_call(from, tag, refusal, out),
        }
    }

    /// Begins what is parked, in order, if the node serves again; refuses it after too long.
    fn unpark(&mut self, now: Now, out: &mut Outbox) {
        let since = self.parking.since.unwrap_or(now.monotonic);
        let in_vain = now.monotonic.since(since) >= self.shared.config.op_timeout;
        let mut is_held_up = false;
        for parked in std::mem::take(&mut self.parking.ops) {
            // A read does not overtake an update of its client that waits for the disk.
            is_held_up |= parked.updates() && !self.log_keeps_up();
            if self.takes(now, parked.keyspace()) && out.has_room() && !is_held_up {
                match parked {
                    Parked::Op { keyspace, tag, origin, op } => {
                        self.begin_op(now, keyspace, tag, origin, op, out);
                    }
                    Parked::Call { from, tag, call } => self.begin_call(now, from, tag, call, out),
                }
            } else if in_vain {
                self.turn_away(parked, self.refusal(), out);
            } else {
                self.parking.ops.push_back(parked);
            }
        }
        if self.parking.ops.is_empty() && !in_vain {
            self.parking.since = None;
        }
    }

    /// Looks after what waits until the node serves again.
    pub(crate) fn tend_parking(&mut self, now: Now, out: &mut Outbox) {
        let due = self.parking.next_deadline() <= now.monotonic;
        if !self.parking.ops.is_empty() && (due || self.serving(now).is_ok()) {
            self.unpark(now, out);
        }
        if !due {
            return;
        }
        let waits = !self.parking.ops.is_empty() || self.parking.unsealed.is_some();
        self.parking.poll_at = waits.then_some(now.monotonic + POLL);
    }

    /// Whether answers that rest on the lease may leave; `more` says that the driver has such
    /// answers. `now` must be read after the last read of the turn: a process that was stopped in
    /// between would otherwise answer with what was current before it was stopped (pitfall H3).
    ///
    /// An answer may also wait for the next lease of the same life. A life that gets one was a
    /// member all along, so every update that was acknowledged meanwhile has waited for this replica,
    /// and what it had read was current when it read it.
    pub fn seal(&mut self, now: Now, more: bool, out: &mut Outbox) -> Seal {
        let holds = if mutant!("node_lease_checked_before_read") {
            self.lease_at_start
        } else {
            self.shared.lease_until() > now.monotonic && self.shared.is_active()
        };
        let rests = more || self.has_read || out.rests_on_lease();
        let seal = match self.parking.unsealed {
            _ if holds => Seal::Holds,
            Some((since, life)) if rests => {
                let late = now.monotonic.since(since) >= self.shared.config.op_timeout;
                if late || life != self.incarnation { Seal::Lost } else { Seal::Waits }
            }
            Some((_, life)) if life != self.incarnation => Seal::Lost,
            None if rests => {
                self.counts.seals_failed += 1;
                self.parking.unsealed = Some((now.monotonic, self.incarnation));
                self.parking.poll_at = Some(now.monotonic + POLL);
                Seal::Waits
            }
            _ => Seal::Waits,
        };
        if seal != Seal::Waits {
            self.has_read = false;
            self.parking.unsealed = None;
        }
        for done in out.sealed(seal) {
            self.answer_at_last(done, out);
        }
        seal
    }
}

#[cfg(test)]
mod tests;
