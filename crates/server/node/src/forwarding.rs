//! Commands that run on another node than the one that a client asked.
//!
//! An engine says where a command should run ([`quorate_engine::Engine::place`]). If that is another
//! node, the lane forwards the command to the same lane there, waits for the answer, and passes it on.
//!
//! A forwarded command runs at most once. It keeps its sequence number when it is sent again, and the
//! receiver remembers which numbers of a sender's life it has run. Numbers begin elsewhere in each
//! life, so that an answer to an earlier life is not taken for one to this life. A request from before
//! the sender's or the receiver's present life is not run. If no answer comes, the fate of an update
//! is unknown; a read whose node is gone is placed again.
//!
//! Commands of one origin on one key take effect in order: while one of them is forwarded, the later
//! ones wait. Where commands have several keys, all later ones of the origin do.
//!
//! ```text
//! 1 FORWARD    sequence u64 | origin u64 | is a call u8 | permit, if it is | command ...
//! 2 FORWARDED  sequence u64 | outcome u8 | reply ...
//! ```

use std::collections::BTreeMap;

use quorate_commands::{Op, Reply};
use quorate_engine::{CallsHome, Place};
use quorate_machine::{CallError, Command, Gate, Origins, Outcome, Refusal, Share, mutant};
use quorate_rifl::Permit;
use quorate_types::{
    Duration, Epoch, Incarnation, Instant, KeyspaceId, LaneId, NodeId, NodeSet, Now, Tag, View,
    hash_key, lane_of_hash, limits,
};
use quorate_wire::{Header, Kind, Malformed, Reader, Writer};

use crate::engine::{KeyspaceLane, Sink};
use crate::lane::{Internal, count};
use crate::{Done, Lane, Outbox};

/// What a simulator looks for.
pub(crate) const PROBES: &[&str] = &["node: a read is placed again", "node: command forwarded"];

/// Sequence numbers that a receiver remembers of each sender; older ones are not run.
const WINDOW: u64 = 64 * 1024;
/// Most bytes of a forwarded command or its answer, which have to fit into a message.
const BYTES_MAX: usize = limits::MESSAGE_BYTES_MAX - 512;

const DONE: u8 = 0;
const UNKNOWN: u8 = 1;
/// The number of the first of [`REFUSALS`].
const REFUSED: u8 = 2;
/// What a forwarded command may be refused for, by number.
const REFUSALS: [Refusal; 13] = [
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
    Refusal::Conflict,
    Refusal::DiskFull,
];

/// A message between the lanes of one number on two nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Message<'a> {
    /// Run this command.
    Forward {
        /// Counts the commands that this life of the sender has forwarded from this lane.
        sequence: u64,
        origin: u64,
        /// The command is a session's call, and may be attempted.
        permit: Option<Permit>,
        /// The command, encoded.
        op: &'a [u8],
    },
    /// The answer.
    Forwarded { sequence: u64, outcome: &'a [u8] },
}

impl<'a> Message<'a> {
    fn encode(&self, writer: &mut Writer<'_>) {
        match *self {
            Self::Forward { sequence, origin, permit, op } => {
                writer.u8(1);
                writer.u64(sequence);
                writer.u64(origin);
                writer.u8(permit.is_some().into());
                if let Some(permit) = permit {
                    permit.encode(writer);
                }
                writer.rest(op);
            }
            Self::Forwarded { sequence, outcome } => {
                writer.u8(2);
                writer.u64(sequence);
                writer.rest(outcome);
            }
        }
    }

    /// Reads a message.
    ///
    /// # Errors
    /// If no correct peer of this version sends these bytes.
    pub(crate) fn decode(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        Ok(match reader.u8()? {
            1 => Self::Forward {
                sequence: reader.u64()?,
                origin: reader.u64()?,
                permit: match reader.u8()? {
                    0 => None,
                    1 => Some(Permit::decode(&mut reader)?),
                    _ => return Err(Malformed("a forwarded command is a call or none")),
                },
                op: reader.rest(),
            },
            2 => Self::Forwarded { sequence: reader.u64()?, outcome: reader.rest() },
            _ => return Err(Malformed("unknown message about a forwarded command")),
        })
    }
}

/// A command of a client of this node.
#[derive(Clone, Debug)]
pub(crate) struct Submission<C> {
    pub(crate) tag: Tag,
    pub(crate) origin: u64,
    pub(crate) op: C,
    /// The command is a session's call, and may be attempted.
    pub(crate) permit: Option<Permit>,
    /// Where it is to run, if not where the engine places it.
    pub(crate) place: Option<Place>,
}

impl<C: Command<Owned = Op>> Submission<C> {
    /// A command that is no call, to run where the engine places it.
    pub(crate) fn new(tag: Tag, origin: u64, op: C) -> Self {
        Self { tag, origin, op, permit: None, place: None }
    }

    /// A number for its origin and key, or for its origin alone: a later command may have any of its
    /// keys. Two of them may share one, and then wait for each other.
    fn line(&self, of_origin: bool) -> u64 {
        let origin = if mutant!("node_line_is_overtaken") { self.tag.0 } else { self.origin };
        let key = if of_origin { 0 } else { hash_key(self.op.key()) };
        key.rotate_left(32) ^ origin.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    fn into_owned(self) -> Submission<Op> {
        let Self { tag, origin, op, permit, place } = self;
        Submission { tag, origin, op: op.into_owned(), permit, place }
    }
}

/// A command that waits behind a forwarded one.
#[derive(Debug)]
struct Waiting {
    submission: Submission<Op>,
    give_up_at: Instant,
}

/// A command whose answer is to come from another node.
#[derive(Debug)]
struct Sent {
    waiting: Waiting,
    to: NodeId,
    resend_at: Instant,
}

/// The sequence numbers of one sender whose commands were run: everything in a sliding window.
#[derive(Debug, Default)]
struct Seen {
    highest: u64,
    words: BTreeMap<u64, u64>,
}

impl Seen {
    /// Whether the number is new. It is not new from now on.
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

/// The commands of one lane of a keyspace that it forwarded, and those that other nodes forwarded
/// to it.
#[derive(Debug)]
pub(crate) struct Forwarding {
    /// The last sequence number.
    last: u64,
    sent: BTreeMap<u64, Sent>,
    /// The commands of one origin on one key, or of one origin ([`Submission::line`]): one is sent,
    /// the others wait.
    lines: Origins<Waiting>,
    /// How many wait.
    waiting: usize,
    seen: BTreeMap<NodeId, Seen>,
    /// The epochs in which the present lives of members began, this node's included.
    since: BTreeMap<NodeId, Epoch>,
    check_at: Instant,
    resend_after: Duration,
    op_timeout: Duration,
    /// Commands that were forwarded since the start.
    forwarded: u64,
    /// Of these, those that may change something.
    forwarded_updates: u64,
}

impl Forwarding {
    pub(crate) fn new(config: &crate::NodeConfig, incarnation: Incarnation) -> Self {
        Self {
            last: Self::first(incarnation),
            sent: BTreeMap::new(),
            lines: Origins::default(),
            waiting: 0,
            seen: BTreeMap::new(),
            since: BTreeMap::new(),
            check_at: Instant::NEVER,
            resend_after: config.message_loss_timeout * 2,
            op_timeout: config.op_timeout,
            forwarded: 0,
            forwarded_updates: 0,
        }
    }

    /// The number before the first of a life, which forwards fewer than 2^32 commands.
    fn first(incarnation: Incarnation) -> u64 {
        (incarnation.0 & 0x7fff_ffff) << 32
    }

    /// Commands that are sent or wait.
    pub(crate) fn len(&self) -> usize {
        self.sent.len() + self.waiting
    }

    pub(crate) fn next_deadline(&self) -> Instant {
        self.check_at
    }

    /// Commands that were forwarded since the start.
    pub(crate) fn forwarded(&self) -> u64 {
        self.forwarded
    }

    /// Of these, those that may change something.
    pub(crate) fn forwarded_updates(&self) -> u64 {
        self.forwarded_updates
    }

    /// Whether a request of another node was sent before its present life or this node's began.
    fn is_outdated(&self, from: NodeId, node: NodeId, epoch: Epoch) -> bool {
        let is_older = |node| self.since.get(&node).is_some_and(|since| epoch < *since);
        (is_older(from) || is_older(node)) && !mutant!("node_earlier_life_acts")
    }

    fn taken_from_line(&mut self, begun: Vec<Waiting>) -> Option<Waiting> {
        self.waiting -= begun.len();
        // Each has its line to itself.
        begun.into_iter().next()
    }

    pub(crate) fn check_invariants(&self) {
        assert_eq!(self.lines.waiting().count(), self.waiting, "waiting commands are counted");
        self.lines.check_invariants();
    }
}

impl KeyspaceLane {
    /// Takes a command of a client of this node, and runs it where the engine places it.
    #[inline]
    pub(crate) fn take<C>(&mut self, now: Now, submission: Submission<C>, sink: &mut Sink<'_>)
    where
        C: Command<Owned = Op, Reply = Reply<'static>>,
    {
        if self.runs_here(now, &submission) {
            self.run(now, submission, sink);
        } else {
            self.send_away(now, submission.into_owned(), sink);
        }
    }

    #[inline]
    fn runs_here<C>(&mut self, now: Now, submission: &Submission<C>) -> bool
    where
        C: Command<Owned = Op, Reply = Reply<'static>>,
    {
        !self.places()
            || (self.forwarding.lines.is_free(self.line(submission))
                && self.place_of(now, submission) == Place::Here)
    }

    /// Where a command is to run.
    #[inline]
    fn place_of<C>(&mut self, now: Now, submission: &Submission<C>) -> Place
    where
        C: Command<Owned = Op, Reply = Reply<'static>>,
    {
        match submission.place {
            Some(place) => place,
            None => self.place(now, submission.origin, &submission.op),
        }
    }

    fn line<C: Command<Owned = Op>>(&self, submission: &Submission<C>) -> u64 {
        submission.line(self.has_transactions() && !mutant!("node_line_of_first_key"))
    }

    /// Forwards a command, or keeps it back while an earlier one of its line is forwarded.
    fn send_away(&mut self, now: Now, submission: Submission<Op>, sink: &mut Sink<'_>) {
        if self.pending() >= limits::OPS_PENDING_MAX {
            return sink.refuse(submission.tag, Refusal::Busy);
        }
        let line = self.line(&submission);
        let give_up_at = now.monotonic + self.forwarding.op_timeout;
        let waiting = Waiting { submission, give_up_at };
        let Some(waiting) = self.forwarding.lines.begin(line, Share::Alone, waiting) else {
            self.forwarding.waiting += 1;
            return;
        };
        let place = self.place_of(now, &waiting.submission);
        if !self.start(now, place, waiting, sink) {
            self.advance_line(now, line, sink);
        }
    }

    /// Starts a command whose turn it is in its line. Whether it is forwarded, and the line waits.
    fn start(&mut self, now: Now, place: Place, waiting: Waiting, sink: &mut Sink<'_>) -> bool {
        match place {
            Place::At(to) => self.forward(now, to, waiting, sink),
            Place::Here => {
                self.run(now, waiting.submission, sink);
                false
            }
            Place::Unknown => {
                sink.refuse(waiting.submission.tag, Refusal::NotServing);
                false
            }
        }
    }

    /// Sends a command to another node. Whether its answer is to come from there.
    fn forward(&mut self, now: Now, to: NodeId, waiting: Waiting, sink: &mut Sink<'_>) -> bool {
        let Waiting { submission, give_up_at } = waiting;
        let Submission { tag, origin, op, permit, place } = submission;
        let mut bytes = Vec::new();
        op.encode(&mut bytes);
        if bytes.len() > BYTES_MAX {
            // A replica can run it, at the price of races that it may lose.
            if self.is_replica() {
                self.run(now, Submission { tag, origin, op, permit, place }, sink);
            } else {
                sink.refuse(tag, Refusal::TooLarge);
            }
            return false;
        }
        let permit = permit.filter(|_| !mutant!("node_forwarded_without_session"));
        sink.probe_node("node: command forwarded");
        let forwarding = &mut self.forwarding;
        forwarding.forwarded += 1;
        forwarding.forwarded_updates += u64::from(op.updates());
        forwarding.last += 1;
        let sequence = forwarding.last;
        sink.forward(to, &Message::Forward { sequence, origin, permit, op: &bytes });
        let resend_at = now.monotonic + forwarding.resend_after;
        let submission = Submission { tag, origin, op, permit, place };
        let sent = Sent { waiting: Waiting { submission, give_up_at }, to, resend_at };
        forwarding.sent.insert(sequence, sent);
        forwarding.check_at = forwarding.check_at.min(resend_at);
        true
    }

    /// The forwarded command at the head of a line has ended: starts the next ones, up to one that is
    /// forwarded again.
    fn advance_line(&mut self, now: Now, line: u64, sink: &mut Sink<'_>) {
        loop {
            let begun = self.forwarding.lines.end(line);
            let Some(waiting) = self.forwarding.taken_from_line(begun) else { return };
            if waiting.give_up_at <= now.monotonic {
                sink.refuse(waiting.submission.tag, Refusal::TimedOut);
                continue;
            }
            let place = self.place_of(now, &waiting.submission);
            if self.start(now, place, waiting, sink) {
                return;
            }
        }
    }

    /// The answer of a forwarded command. Gives the command back.
    fn hear_answer(
        &mut self,
        now: Now,
        from: NodeId,
        sequence: u64,
        outcome: &[u8],
        sink: &mut Sink<'_>,
    ) -> Option<Op> {
        if self.forwarding.sent.get(&sequence).is_none_or(|sent| sent.to != from) {
            count(sink.ignored, "node: answer of a forwarded command that has ended");
            return None;
        }
        let submission = self.forwarding.sent.remove(&sequence)?.waiting.submission;
        sink.done(Done::new(submission.tag, decode_outcome(outcome)));
        self.advance_line(now, self.line(&submission), sink);
        Some(submission.op)
    }

    /// Sends again what was not answered, and gives up what waited too long.
    pub(crate) fn tick_forwarding(&mut self, now: Now, sink: &mut Sink<'_>) {
        let forwarding = &mut self.forwarding;
        let resend_at = now.monotonic + forwarding.resend_after;
        let (mut late, mut bytes) = (Vec::new(), Vec::new());
        for (&sequence, sent) in &mut forwarding.sent {
            if sent.waiting.give_up_at <= now.monotonic {
                late.push(sequence);
            } else if sent.resend_at <= now.monotonic {
                sent.resend_at = resend_at;
                let Submission { origin, op, permit, .. } = &sent.waiting.submission;
                bytes.clear();
                op.encode(&mut bytes);
                let (origin, permit) = (*origin, *permit);
                sink.forward(sent.to, &Message::Forward { sequence, origin, permit, op: &bytes });
            }
        }
        for sequence in late {
            let line = self.give_up(sequence, sink);
            self.advance_line(now, line, sink);
        }
        let idle = self.forwarding.sent.is_empty();
        self.forwarding.check_at = if idle { Instant::NEVER } else { resend_at };
    }

    /// Answers a forwarded command whose own answer does not come. Returns its line.
    fn give_up(&mut self, sequence: u64, sink: &mut Sink<'_>) -> u64 {
        let sent = self.forwarding.sent.remove(&sequence).expect("listed a moment ago");
        let submission = sent.waiting.submission;
        let outcome = match submission.op.updates() {
            false => Outcome::Refused(Refusal::TimedOut),
            true => Outcome::Unknown,
        };
        sink.done(Done::new(submission.tag, outcome));
        self.line(&submission)
    }

    /// A view was installed. A command that was forwarded to a member which is gone gets no answer.
    pub(crate) fn restart_forwarding(
        &mut self,
        now: Now,
        view: &View,
        survivors: NodeSet,
        sink: &mut Sink<'_>,
    ) {
        let forwarding = &mut self.forwarding;
        forwarding.seen.retain(|node, _| survivors.contains(*node));
        for node in view.live().difference(survivors) {
            forwarding.since.insert(node, view.epoch);
        }
        let sent = forwarding.sent.iter();
        let lost = sent.filter(|(_, sent)| !survivors.contains(sent.to));
        for sequence in Vec::from_iter(lost.map(|(sequence, _)| *sequence)) {
            let sent = &self.forwarding.sent[&sequence];
            if sent.waiting.submission.op.updates() {
                let line = self.give_up(sequence, sink);
                self.advance_line(now, line, sink);
                continue;
            }
            // A read changes nothing and can be asked for again.
            sink.probe_node("node: a read is placed again");
            let Sent { mut waiting, .. } =
                self.forwarding.sent.remove(&sequence).expect("it was seen");
            waiting.submission.place = None;
            let line = self.line(&waiting.submission);
            let place = self.place_of(now, &waiting.submission);
            if !self.start(now, place, waiting, sink) {
                self.advance_line(now, line, sink);
            }
        }
    }

    /// This node is out: updates that it forwarded may have run, and what waited for them has not.
    pub(crate) fn abandon_forwarding(&mut self, sink: &mut Sink<'_>) {
        for sequence in Vec::from_iter(self.forwarding.sent.keys().copied()) {
            self.give_up(sequence, sink);
        }
        for waiting in self.forwarding.lines.waiting() {
            sink.refuse(waiting.submission.tag, Refusal::NotServing);
        }
        self.forwarding.lines = Origins::default();
        self.forwarding.waiting = 0;
        self.forwarding.check_at = Instant::NEVER;
    }

    /// A new life begins.
    pub(crate) fn reset_forwarding(&mut self, incarnation: Incarnation, sink: &mut Sink<'_>) {
        self.abandon_forwarding(sink);
        self.forwarding.last = Forwarding::first(incarnation);
        self.forwarding.seen.clear();
        self.forwarding.since.clear();
    }
}

impl Lane {
    /// Hears of a forwarded command, or of the answer to one.
    pub(crate) fn hear_forward(
        &mut self,
        now: Now,
        from: NodeId,
        header: &Header,
        body: &[u8],
        out: &mut Outbox,
    ) -> Result<(), Malformed> {
        let keyspace = header.keyspace;
        if !self.engine(keyspace).is_some_and(KeyspaceLane::places) {
            return Err(Malformed("a forwarded command for a keyspace that places none"));
        }
        match Message::decode(body)? {
            Message::Forward { sequence, origin, permit, op } => {
                let has_transactions =
                    self.engine(keyspace).is_some_and(KeyspaceLane::has_transactions);
                let op = if has_transactions { Op::decode_any(op) } else { Op::decode(op) };
                let op = op.ok_or(Malformed("damaged forwarded command"))?;
                if !self.is_home_of(keyspace, &op, permit.as_ref()) {
                    return Err(Malformed("a forwarded command of another lane"));
                }
                if let Some(reason) = self.ignore_forward(from, header, sequence) {
                    count(&mut self.counts.ignored, reason);
                    return Ok(());
                }
                let tag = self.internal_tag(Internal::Forwarded { from, keyspace, sequence });
                // Origins of different nodes are different origins.
                let origin = origin ^ (u64::from(from.0) + 1).rotate_right(16);
                self.counts.submitted += 1;
                let (engine, mut sink) = self.engine_and_sink(keyspace, out);
                let submission = Submission { permit, ..Submission::new(tag, origin, op) };
                engine.run(now, submission, &mut sink);
            }
            // An answer stays true, and its number was never used by another life of this node.
            Message::Forwarded { sequence, outcome } => {
                let (engine, mut sink) = self.engine_and_sink(keyspace, out);
                let answered = engine.hear_answer(now, from, sequence, outcome, &mut sink);
                if let Some(op) = answered {
                    self.doubt_keys(keyspace, &op, out);
                }
            }
        }
        self.answer_internal(out);
        Ok(())
    }

    /// Whether a correct peer sends this command to this lane.
    fn is_home_of(&self, keyspace: KeyspaceId, op: &Op, permit: Option<&Permit>) -> bool {
        let Some(engine) = self.engine(keyspace) else { return false };
        let lanes = self.shared.config.lanes;
        let is_at_home = |home: LaneId| home == self.id;
        let by_key = || is_at_home(lane_of_hash(hash_key(op.key()), lanes));
        let mut fits_keys = true;
        op.visit_keys(&mut |key| fits_keys &= key.len() <= limits::KEY_BYTES_MAX);
        let fits = match (permit, engine.calls_home()) {
            (None, _) => engine.has_transactions() || by_key(),
            (Some(_), Some(CallsHome::Key)) => by_key(),
            (Some(permit), Some(CallsHome::Lease)) => is_at_home(permit.call.lease.lane()),
            (Some(_), Some(CallsHome::Keys)) => true,
            (Some(_), None) => false,
        };
        fits && fits_keys
    }

    /// Why a forwarded command is not run. It may be older than the view, but not than its sender's
    /// life or this node's.
    fn ignore_forward(
        &mut self,
        from: NodeId,
        header: &Header,
        sequence: u64,
    ) -> Option<&'static str> {
        let (node, epoch) = (self.shared.config.node, self.view.epoch);
        let forwarding = &mut self.engines[usize::from(header.keyspace.0)].as_mut()?.forwarding;
        if header.epoch > epoch {
            // The sender sends again until this node has the view, too.
            Some("node: forwarded command of a newer epoch")
        } else if forwarding.is_outdated(from, node, header.epoch) {
            Some("node: forwarded command of an earlier life")
        } else if !forwarding.seen.entry(from).or_default().admit(sequence)
            && !mutant!("node_forwarded_twice")
        {
            Some("node: forwarded command seen before")
        } else {
            None
        }
    }

    /// Sends the answer of a forwarded command back.
    pub(crate) fn answer_forwarded(
        &mut self,
        (to, keyspace, sequence): (NodeId, KeyspaceId, u64),
        done: &Done,
        out: &mut Outbox,
    ) {
        let outcome = encode_outcome(&done.outcome);
        let (_, mut sink) = self.engine_and_sink(keyspace, out);
        let rests_on_lease = done.lease_bound && !mutant!("node_forwarded_read_leaves_early");
        let gate = if rests_on_lease { Gate::LEASE } else { Gate::OPEN };
        sink.forward_behind(gate, to, &Message::Forwarded { sequence, outcome: &outcome });
    }
}

impl Sink<'_> {
    pub(crate) fn refuse(&mut self, tag: Tag, refusal: Refusal) {
        self.done(Done::new(tag, Outcome::Refused(refusal)));
    }

    fn probe_node(&mut self, name: &'static str) {
        count(&mut self.out.probes, name);
    }

    fn forward(&mut self, to: NodeId, message: &Message<'_>) {
        self.forward_behind(Gate::OPEN, to, message);
    }

    fn forward_behind(&mut self, gate: Gate, to: NodeId, message: &Message<'_>) {
        let (keyspace, epoch) = (self.keyspace, self.epoch);
        self.out.frame_behind(gate, NodeSet::only(to), |buffer| {
            Header::frame(buffer, Kind::Forward, keyspace, epoch, |writer| message.encode(writer));
        });
    }
}

fn encode_outcome(outcome: &Outcome<Reply<'static>>) -> Vec<u8> {
    let mut bytes = Vec::new();
    match outcome {
        Outcome::Done(reply) => {
            bytes.push(DONE);
            if mutant!("node_forwarded_notes_left_out") {
                Op::encode_reply(reply, &mut bytes);
            } else {
                reply.encode(&mut bytes);
            }
        }
        Outcome::Unknown => bytes.push(UNKNOWN),
        Outcome::Refused(refusal) => {
            let number = REFUSALS.iter().position(|known| known == refusal);
            bytes.push(number.map_or(UNKNOWN, |number| number as u8 + REFUSED));
        }
    }
    if bytes.len() > BYTES_MAX {
        // The command was run, and its answer can't be told.
        bytes = vec![UNKNOWN];
    }
    bytes
}

fn decode_outcome(bytes: &[u8]) -> Outcome<Reply<'static>> {
    match bytes.split_first() {
        Some((&DONE, reply)) => Reply::decode(reply).map_or(Outcome::Unknown, Outcome::Done),
        Some((number, _)) => {
            let index = usize::from(number.wrapping_sub(REFUSED));
            REFUSALS.get(index).map_or(Outcome::Unknown, |refusal| Outcome::Refused(*refusal))
        }
        None => Outcome::Unknown,
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
