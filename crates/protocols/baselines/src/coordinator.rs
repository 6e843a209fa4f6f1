//! What all systems do at the client's node: run transactions, try them again, answer.

use std::collections::BTreeMap;

use quorate_machine::{
    Command, Completion, Effects, Outcome, Refusal, Share, Slot, Table, Verdict,
};
use quorate_meerkat::{Conflict, Meta, backoff};
use quorate_types::{Instant, NodeSet, Now, Tag, Timestamp, limits};

use crate::fasst::Shards;
use crate::{Baseline, RETRIES, System};

/// A client's transaction until it is answered.
#[derive(Debug)]
pub(crate) struct Op<X: Command> {
    tag: Tag,
    origin: u64,
    pub(crate) txn: X,
    /// How often it lost.
    lost: u32,
    /// The next timestamp must be above what was in the way.
    above: u64,
    backoff: Option<Instant>,
    /// The answer, if the attempt that is under way commits.
    pub(crate) reply: Option<X::Reply>,
    /// FaSST: keys that it has turned out to touch, and whether it writes them.
    pub(crate) more: BTreeMap<Vec<u8>, bool>,
}

/// One try, under a timestamp of its own.
#[derive(Debug)]
pub(crate) struct Try {
    pub(crate) slot: Slot,
    pub(crate) ok: NodeSet,
    pub(crate) abort: NodeSet,
    /// What was proposed on TAPIR's slow path. From then on votes decide nothing.
    pub(crate) proposal: Option<bool>,
    pub(crate) accepted: NodeSet,
    /// The last conflict that a replica named.
    pub(crate) conflict: Option<Conflict>,
    /// FaSST: its keys, by primary.
    pub(crate) shards: Option<Shards>,
    /// FaSST: the version of what it writes.
    pub(crate) id: Option<Timestamp>,
}

impl Try {
    /// One that nobody has answered.
    pub(crate) fn new(slot: Slot) -> Self {
        Self {
            slot,
            ok: NodeSet::EMPTY,
            abort: NodeSet::EMPTY,
            proposal: None,
            accepted: NodeSet::EMPTY,
            conflict: None,
            shards: None,
            id: None,
        }
    }
}

impl<S, T, X> Baseline<S, T, X>
where
    S: System,
    T: Table<Meta = Meta>,
    X: Command<Owned = X>,
{
    /// Takes a client's transaction; answered by [`Effects::complete`] with the same tag, once.
    /// Transactions of one origin run one after the other.
    pub fn submit<P>(
        &mut self,
        now: Now,
        tag: Tag,
        origin: u64,
        txn: P,
        effects: &mut impl Effects<Self>,
    ) where
        P: Command<Owned = X, Reply = X::Reply>,
    {
        if self.group.is_none() {
            return effects.complete(tag, Outcome::Refused(Refusal::NotServing));
        }
        if self.ops.len() >= limits::OPS_PENDING_MAX {
            return effects.complete(tag, Outcome::Refused(Refusal::Busy));
        }
        let slot = self.ops.insert(Op {
            tag,
            origin,
            txn: txn.into_owned(),
            lost: 0,
            above: 0,
            backoff: None,
            reply: None,
            more: BTreeMap::new(),
        });
        self.deadlines.push(now.monotonic + self.config.op_timeout, slot);
        if self.origins.begin(origin, Share::Alone, slot).is_some() {
            self.start(now, slot, effects);
        }
        self.run_ready(now, effects);
    }

    /// Starts the ops whose turn has come.
    pub(crate) fn run_ready(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        while let Some(slot) = self.ready.pop_front() {
            self.start(now, slot, effects);
        }
    }

    /// Runs a transaction and begins an attempt at it.
    fn start(&mut self, now: Now, slot: Slot, effects: &mut impl Effects<Self>) {
        let Some(op) = self.ops.get_mut(slot) else { return };
        op.backoff = None;
        if S::SHARDED {
            return self.execute(now, slot, effects);
        }
        let reply = match self.execution.run(&mut self.table, now.wall(), &op.txn) {
            Verdict::Abandon(reply) => return self.finish(slot, Outcome::Done(reply), effects),
            Verdict::Commit(reply) => reply,
        };
        if self.execution.is_empty() {
            return self.finish(slot, Outcome::Done(reply), effects);
        }
        if self.execution.len() > limits::TXN_KEYS_MAX
            || self.execution.bytes() > limits::TXN_BYTES_MAX
        {
            return self.finish(slot, Outcome::Refused(Refusal::TooLarge), effects);
        }
        op.reply = Some(reply);
        let above = op.above.max(self.execution.newest_base());
        let version = now.unix.0.max(self.last_issued + 1).max(above + 1);
        self.last_issued = version;
        let id = Timestamp::new(version, self.group().writer);
        let mut body = self.buffer();
        self.execution.encode(&mut body);
        self.attempts.insert(version, Try::new(slot));
        if S::LEADERLESS {
            self.ask_all(now, id, body, effects);
        } else {
            self.ask_primary(now, id, body, effects);
        }
    }

    /// An attempt has committed.
    pub(crate) fn committed(
        &mut self,
        version: u64,
        counter: usize,
        effects: &mut impl Effects<Self>,
    ) {
        let Some(attempt) = self.attempts.remove(&version) else {
            return effects.ignored("baselines: the end of a finished attempt");
        };
        self.counters[counter] += 1;
        let Some(op) = self.ops.get_mut(attempt.slot) else { return };
        let Some(reply) = op.reply.take() else { return };
        let (tag, done) = (op.tag, Outcome::Done(reply));
        if S::ORDERED || S::SHARDED {
            // Its place is a number of the primary's, which the coordinator never learns; or one
            // among those of each of its keys.
            effects.complete(tag, done);
        } else {
            let at = Timestamp::new(version, self.group().writer);
            effects.complete_on(tag, Completion::new(done).at(at));
        }
        self.end_op(attempt.slot);
    }

    /// An attempt has lost: tries again after a pause.
    pub(crate) fn lost(&mut self, now: Now, version: u64, effects: &mut impl Effects<Self>) {
        let Some(attempt) = self.attempts.remove(&version) else { return };
        let slot = attempt.slot;
        let Some(op) = self.ops.get_mut(slot) else { return };
        op.reply = None;
        op.lost += 1;
        op.above = op.above.max(attempt.conflict.map_or(0, |conflict| conflict.with.version));
        if op.lost >= limits::TXN_ATTEMPTS_MAX {
            return self.finish(slot, Outcome::Refused(Refusal::Conflict), effects);
        }
        let at = now.monotonic + backoff(op.lost, &mut self.rng);
        op.backoff = Some(at);
        self.backoffs.insert(at, slot);
        self.counters[RETRIES] += 1;
    }

    /// Answers a client; the next one of its origin may go.
    pub(crate) fn finish(
        &mut self,
        slot: Slot,
        outcome: Outcome<X::Reply>,
        effects: &mut impl Effects<Self>,
    ) {
        if let Some(op) = self.ops.get(slot) {
            effects.complete(op.tag, outcome);
            self.end_op(slot);
        }
    }

    /// Forgets a transaction that was answered.
    fn end_op(&mut self, slot: Slot) {
        let Some(op) = self.ops.remove(slot) else { return };
        if let Some(at) = op.backoff {
            self.backoffs.remove(at, slot);
        }
        self.deadlines.oldest(|slot| self.ops.get(*slot).is_some());
        if self.origins.withdraw(op.origin, |waiting| *waiting == slot).is_none() {
            self.ready.extend(self.origins.end(op.origin));
        }
    }

    pub(crate) fn on_tick(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        while let Some((_, slot)) = self.backoffs.pop_due(now) {
            self.ready.push_back(slot);
        }
        while let Some((_, slot)) = self.deadlines.pop_due(now) {
            let Some(op) = self.ops.get(slot) else { continue };
            // An attempt whose end is not known may yet commit.
            let open = op.reply.is_some();
            let refused = Outcome::Refused(Refusal::TimedOut);
            self.finish(slot, if open { Outcome::Unknown } else { refused }, effects);
        }
    }
}
