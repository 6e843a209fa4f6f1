//! Ops that another replica coordinates.
//!
//! Read-modify-writes that race for a key abort each other. Once that happens to a key, its
//! read-modify-writes are forwarded to one hashed replica, where they queue instead (the thesis's
//! "opportunistic leader", §4.3.5): best effort, nothing depends on it. A node that is not in the
//! keyspace's replica group forwards everything.
//!
//! A forwarded op runs at most once: it keeps its sequence number when it is sent again, and the
//! receiver remembers which numbers of a sender's life it has seen. Numbers begin elsewhere in each
//! life, so that an answer to an earlier one is not taken for this one's, and a request that is
//! older than its sender's or its receiver's life is not run. If no answer comes, the fate of an
//! update is unknown.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use quorate_machine::{
    Access, CallError, Command, Effects, Gate, Outcome, Record, Refusal, Slot, Table, mutant,
};
use quorate_rifl::Permit;
use quorate_types::{
    Duration, Epoch, Incarnation, Instant, NodeId, NodeSet, Now, Tag, hash_key, limits,
};

use crate::message::{Forward, Message};
use crate::ops::Client;
use crate::{Hermes, Meta};

/// Superseded read-modify-writes after which a key counts as hot.
const CONFLICTS_MIN: u32 = 3;
/// How long a conflict counts.
const CONFLICT_MEMORY: Duration = Duration::from_millis(500);
/// Keys whose conflicts are remembered.
const HOT_KEYS_MAX: usize = 1024;
/// Sequence numbers that a receiver remembers of each sender; older ones are not run.
const WINDOW: u64 = 64 * 1024;

/// Most bytes of a forwarded op or its answer, which have to fit into a message.
const STEERED_BYTES_MAX: usize = limits::MESSAGE_BYTES_MAX - 512;

const DONE: u8 = 0;
const UNKNOWN: u8 = 1;
/// The number of the first of [`REFUSALS`].
const REFUSED: u8 = 2;
/// What a forwarded op may be refused for, by number.
const REFUSALS: [Refusal; 11] = [
    Refusal::NotServing,
    Refusal::Busy,
    Refusal::TimedOut,
    Refusal::OutOfMemory,
    Refusal::TooLarge,
    Refusal::LeaseNeeded,
    Refusal::SessionFull,
    Refusal::CallError(CallError::Stale),
    Refusal::CallError(CallError::BeyondWindow),
    Refusal::CallError(CallError::Different),
    Refusal::CallError(CallError::Closed),
];

/// Ops forwarded to others, and what others forwarded here.
#[derive(Clone, Hash, Debug)]
pub(crate) struct Forwarding<O> {
    last: u64,
    sent: BTreeMap<u64, Sent<O>>,
    /// For each origin and key hash with a forwarded op: the ops that wait for its answer.
    lines: BTreeMap<(u64, u64), VecDeque<Held<O>>>,
    held: usize,
    seen: BTreeMap<NodeId, Seen>,
    /// The epochs in which the present lives of members began, this node's included.
    since: BTreeMap<NodeId, Epoch>,
    check_at: Instant,
}

#[derive(Clone, Hash, Debug)]
struct Held<O> {
    tag: Tag,
    op: O,
    permit: Option<Permit>,
    give_up_at: Instant,
}

#[derive(Clone, Hash, Debug)]
struct Sent<O> {
    tag: Tag,
    origin: u64,
    op: O,
    permit: Option<Permit>,
    to: NodeId,
    resend_at: Instant,
    give_up_at: Instant,
}

impl<O: Command> Sent<O> {
    /// The origin and key whose ops take effect in order.
    fn line(&self) -> (u64, u64) {
        (self.origin, hash_key(self.op.key()))
    }
}

/// The sequence numbers of one sender that were run: everything in a sliding window.
#[derive(Clone, Hash, Debug, Default)]
struct Seen {
    highest: u64,
    words: BTreeMap<u64, u64>,
}

impl Seen {
    /// Whether the number is new; it is not from now on.
    fn admit(&mut self, sequence: u64) -> bool {
        if self.highest.saturating_sub(sequence) >= WINDOW {
            return false;
        }
        if sequence > self.highest {
            self.highest = sequence;
            let oldest = self.highest.saturating_sub(WINDOW) / 64;
            while self.words.first_key_value().is_some_and(|(word, _)| *word < oldest) {
                self.words.pop_first();
            }
        }
        let word = self.words.entry(sequence / 64).or_default();
        let bit = 1 << (sequence % 64);
        let new = *word & bit == 0;
        *word |= bit;
        new
    }
}

impl<O> Default for Forwarding<O> {
    fn default() -> Self {
        Self {
            last: 0,
            sent: BTreeMap::new(),
            lines: BTreeMap::new(),
            held: 0,
            seen: BTreeMap::new(),
            since: BTreeMap::new(),
            check_at: Instant::NEVER,
        }
    }
}

impl<O> Forwarding<O> {
    pub(crate) fn new(incarnation: Incarnation) -> Self {
        // An incarnation forwards fewer than 2^32 ops.
        Self { last: (incarnation.0 & 0x7fff_ffff) << 32, ..Self::default() }
    }

    /// Whether a request was sent before this life of its sender or of this node began.
    pub(crate) fn is_outdated(
        &self,
        from: NodeId,
        node: NodeId,
        epoch: Epoch,
    ) -> Option<&'static str> {
        let older = |node| self.since.get(&node).is_some_and(|since| epoch < *since);
        let outdated = older(from) || older(node);
        (outdated && !mutant!("hermes_earlier_life_acts"))
            .then_some("hermes: FORWARD of an earlier life")
    }

    pub(crate) fn len(&self) -> usize {
        self.sent.len() + self.held
    }

    pub(crate) fn next_deadline(&self) -> Instant {
        self.check_at
    }
}

impl<T: Table<Meta = Meta>, O: Command<Owned = O>> Hermes<T, O> {
    /// Whether the op is one that keeps losing races which its key's owner would not have.
    ///
    /// Only a key that has nothing pending or queued here is forwarded: every earlier op
    /// from the same origin has ended then.
    pub(crate) fn is_better_forwarded<P: Command>(&mut self, now: Now, op: &P) -> bool {
        if self.hot.is_empty() || op.access() != Access::Update {
            return false;
        }
        if let Some(handle) = self.table.find(op.key())
            && (self.queues.contains_key(&handle)
                || self.table.lock(handle).meta().op != Slot::NONE)
        {
            return false;
        }
        let hash = hash_key(op.key());
        let hot = self.hot.get(&hash).is_some_and(|(conflicts, until)| {
            *conflicts >= CONFLICTS_MIN && *until > now.monotonic
        });
        hot && self.owner(hash).is_some_and(|owner| owner != self.config.node)
    }

    /// A read-modify-write lost a race for this key.
    pub(crate) fn note_conflict(&mut self, now: Now, handle: T::Handle) {
        if self.hot.len() >= HOT_KEYS_MAX {
            self.hot.retain(|_, (_, until)| *until > now.monotonic);
            if self.hot.len() >= HOT_KEYS_MAX {
                return;
            }
        }
        let hash = hash_key(self.table.lock(handle).key());
        let (conflicts, until) = self.hot.entry(hash).or_insert((0, Instant::ZERO));
        *conflicts = if *until > now.monotonic { *conflicts + 1 } else { 1 };
        *until = now.monotonic + CONFLICT_MEMORY;
    }

    /// Keeps an op back while an earlier one of its origin on its key is on its way to another
    /// replica, so that they take effect in order. Gives it back if there is none.
    pub(crate) fn hold_behind_forwarded<P>(
        &mut self,
        now: Now,
        tag: Tag,
        origin: u64,
        op: P,
        permit: Option<Permit>,
    ) -> Option<P>
    where
        P: Command<Owned = O, Reply = O::Reply>,
    {
        if self.forwarding.lines.is_empty() {
            return Some(op);
        }
        let Some(line) = self.forwarding.lines.get_mut(&(origin, hash_key(op.key()))) else {
            return Some(op);
        };
        let give_up_at = now.monotonic + self.config.op_timeout;
        line.push_back(Held { tag, op: op.into_owned(), permit, give_up_at });
        self.forwarding.held += 1;
        None
    }

    /// The forwarded op at the head of a line was answered: the next ones go, up to one that is
    /// forwarded again.
    fn advance_line(&mut self, now: Now, line: (u64, u64), effects: &mut impl Effects<Self>) {
        let mut rest = self.forwarding.lines.remove(&line).unwrap_or_default();
        while let Some(held) = rest.pop_front() {
            self.forwarding.held -= 1;
            if held.give_up_at <= now.monotonic {
                let refused = Outcome::Refused(Refusal::TimedOut);
                self.answer(Client::Local(held.tag), refused, effects);
                continue;
            }
            self.take(now, held.tag, line.0, held.op, held.permit, effects);
            if let Some(behind) = self.forwarding.lines.get_mut(&line) {
                behind.append(&mut rest);
            }
        }
    }

    /// Sends an op to the replica that owns its key.
    pub(crate) fn forward<P>(
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
        let Some(to) = self.owner(hash_key(op.key())) else {
            let refused = Outcome::Refused(Refusal::NotServing);
            return self.answer(Client::Local(tag), refused, effects);
        };
        if to == self.config.node {
            return self.admit(now, Client::Local(tag), origin, op, permit, effects);
        }
        let mut bytes = Vec::new();
        op.encode(&mut bytes);
        if bytes.len() > STEERED_BYTES_MAX {
            // A transaction of many large values doesn't fit into a message.
            if self.is_replica {
                return self.admit(now, Client::Local(tag), origin, op, permit, effects);
            }
            let refused = Outcome::Refused(Refusal::Busy);
            return self.answer(Client::Local(tag), refused, effects);
        }
        let permit = permit.filter(|_| !mutant!("hermes_forwarded_without_session"));
        effects.probe("hermes: op forwarded");
        self.counters.forwarded += 1;
        self.forwarding.last += 1;
        let sequence = self.forwarding.last;
        effects.send(to, &Message::Forward(Forward { sequence, origin, permit, op: &bytes }));
        let resend_at = now.monotonic + self.config.message_loss_timeout * 2;
        let give_up_at = now.monotonic + self.config.op_timeout;
        let op = op.into_owned();
        self.forwarding.lines.entry((origin, hash_key(op.key()))).or_default();
        let sent = Sent { tag, origin, op, permit, to, resend_at, give_up_at };
        self.forwarding.sent.insert(sequence, sent);
        self.forwarding.check_at = self.forwarding.check_at.min(resend_at);
    }

    /// A peer wants an op run here.
    pub(crate) fn on_forward(
        &mut self,
        now: Now,
        from: NodeId,
        forward: &Forward<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        let Forward { sequence, origin, permit, op } = *forward;
        if !self.forwarding.seen.entry(from).or_default().admit(sequence) {
            return effects.ignored("hermes: FORWARD seen before");
        }
        let client = Client::Forwarded { from, sequence };
        if !self.active.contains(self.config.node) {
            return self.answer(client, Outcome::Refused(Refusal::NotServing), effects);
        }
        let Some(op) = O::decode(op) else {
            return self.answer(client, Outcome::Refused(Refusal::Busy), effects);
        };
        if let Some(reason) = self.refuse_update(op.key(), 0, 0) {
            return effects.refused(reason);
        }
        // Origins of different nodes are different origins.
        let origin = origin ^ (u64::from(from.0) + 1).rotate_right(16);
        self.admit(now, client, origin, op, permit, effects);
    }

    /// Sends the answer of a forwarded op back.
    pub(crate) fn answer_forwarded(
        &mut self,
        to: NodeId,
        sequence: u64,
        outcome: &Outcome<O::Reply>,
        effects: &mut impl Effects<Self>,
    ) {
        let mut bytes = Vec::new();
        match outcome {
            Outcome::Done(reply) => {
                bytes.push(DONE);
                O::encode_reply(reply, &mut bytes);
            }
            Outcome::Unknown => bytes.push(UNKNOWN),
            Outcome::Refused(refusal) => {
                // Single keys don't conflict.
                let number = REFUSALS.iter().position(|known| known == refusal);
                bytes.push(number.map_or(UNKNOWN, |number| number as u8 + REFUSED));
            }
        }
        if bytes.len() > STEERED_BYTES_MAX {
            // The op was run, and its answer can't be told.
            bytes = Vec::from([UNKNOWN]);
        }
        // It may rest on what this node read.
        let answer = Message::Forwarded { sequence, outcome: &bytes };
        effects.send_behind(Gate::LEASE, NodeSet::only(to), &answer);
    }

    /// The answer of a forwarded op.
    pub(crate) fn on_forwarded(
        &mut self,
        now: Now,
        from: NodeId,
        sequence: u64,
        bytes: &[u8],
        effects: &mut impl Effects<Self>,
    ) {
        let Some(sent) = self.forwarding.sent.get(&sequence).filter(|sent| sent.to == from) else {
            return effects.ignored("hermes: FORWARDED of a finished op");
        };
        let outcome = match bytes.split_first() {
            Some((&DONE, reply)) => match O::decode_reply(reply) {
                Some(reply) => Outcome::Done(reply),
                None => Outcome::Unknown,
            },
            Some((number, _)) => {
                let index = usize::from(number.wrapping_sub(REFUSED));
                REFUSALS.get(index).map_or(Outcome::Unknown, |refusal| Outcome::Refused(*refusal))
            }
            None => Outcome::Unknown,
        };
        let (tag, line) = (sent.tag, sent.line());
        self.forwarding.sent.remove(&sequence);
        self.answer(Client::Local(tag), outcome, effects);
        self.advance_line(now, line, effects);
    }

    pub(crate) fn on_forward_timeout(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        let resend_at = now.monotonic + self.config.message_loss_timeout * 2;
        let mut late = Vec::new();
        let mut bytes = Vec::new();
        for (&sequence, sent) in &mut self.forwarding.sent {
            if sent.give_up_at <= now.monotonic {
                late.push(sequence);
            } else if sent.resend_at <= now.monotonic {
                sent.resend_at = resend_at;
                bytes.clear();
                sent.op.encode(&mut bytes);
                let (origin, permit) = (sent.origin, sent.permit);
                let message = Message::Forward(Forward { sequence, origin, permit, op: &bytes });
                effects.send(sent.to, &message);
            }
        }
        for sequence in late {
            let line = self.give_up_forwarded(sequence, effects);
            self.advance_line(now, line, effects);
        }
        self.forwarding.check_at =
            if self.forwarding.sent.is_empty() { Instant::NEVER } else { resend_at };
    }

    fn give_up_forwarded(&mut self, sequence: u64, effects: &mut impl Effects<Self>) -> (u64, u64) {
        let sent = self.forwarding.sent.remove(&sequence).expect("listed a moment ago");
        let outcome = if sent.op.access() == Access::Read {
            Outcome::Refused(Refusal::TimedOut)
        } else {
            Outcome::Unknown
        };
        self.answer(Client::Local(sent.tag), outcome, effects);
        sent.line()
    }

    /// A view was installed: what was forwarded to a member that is gone gets no answer.
    pub(crate) fn restart_forwarding(
        &mut self,
        now: Now,
        survivors: NodeSet,
        effects: &mut impl Effects<Self>,
    ) {
        self.forwarding.seen.retain(|node, _| survivors.contains(*node));
        let epoch = self.view.epoch;
        for node in self.view.live().difference(survivors) {
            self.forwarding.since.insert(node, epoch);
        }
        let lost: Vec<u64> = self
            .forwarding
            .sent
            .iter()
            .filter(|(_, sent)| !survivors.contains(sent.to))
            .map(|(sequence, _)| *sequence)
            .collect();
        for sequence in lost {
            let line = if self.forwarding.sent[&sequence].op.access() == Access::Read {
                // A read changes nothing and can be asked for again.
                let sent = self.forwarding.sent.remove(&sequence).expect("listed a moment ago");
                let line = sent.line();
                let Sent { tag, op, permit, give_up_at, .. } = sent;
                let again = Held { tag, op, permit, give_up_at };
                self.forwarding.lines.entry(line).or_default().push_front(again);
                self.forwarding.held += 1;
                line
            } else {
                self.give_up_forwarded(sequence, effects)
            };
            self.advance_line(now, line, effects);
        }
    }

    /// This node is out: updates that it forwarded may have run.
    pub(crate) fn abandon_forwarding(&mut self, effects: &mut impl Effects<Self>) {
        let all: Vec<u64> = self.forwarding.sent.keys().copied().collect();
        for sequence in all {
            self.give_up_forwarded(sequence, effects);
        }
        for held in core::mem::take(&mut self.forwarding.lines).into_values().flatten() {
            let refused = Outcome::Refused(Refusal::NotServing);
            self.answer(Client::Local(held.tag), refused, effects);
        }
        self.forwarding = Forwarding::new(self.config.incarnation);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_number_runs_once() {
        let mut seen = Seen::default();
        assert!(seen.admit(5));
        assert!(!seen.admit(5));
        assert!(seen.admit(3), "reordering is normal");
        assert!(!seen.admit(3));
        assert!(seen.admit(5 + WINDOW));
        assert!(!seen.admit(4), "too old to tell");
        assert!(seen.words.len() as u64 <= WINDOW / 64 + 2);
    }
}
