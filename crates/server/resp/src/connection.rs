//! One client connection: buffers, session state, replies that are still to come.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use quorate_commands::{Spec, flag};
use quorate_machine::Slot;
use quorate_rifl::Numbering;
use quorate_types::{Instant, Tag};

use crate::calls::Attached;
use crate::encode::Protocol;
use crate::limits;
use crate::monitor::Feed;
use crate::notify::HeldNotes;
use crate::parser::Parser;
use crate::pending::{Exec, Gather, Pending, Watching};
use crate::pubsub::Subscriptions;
use crate::reads::SubmittedReads;
use crate::shared::ClientFacts;
use crate::tracking::{ClientTracking, Told};
use crate::transaction::Transaction;
use crate::turn::Taken;
use crate::walk::Walk;

/// Names a connection of one front end; names nothing once the connection is closed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnectionId(
    /// The place in the front end's table and which tenant of it.
    pub Slot,
);

/// Reply bytes that the socket has not taken yet.
#[derive(Debug, Default)]
pub struct OutputBuffer {
    bytes: Vec<u8>,
    sent: usize,
}

impl OutputBuffer {
    /// What to write next.
    pub fn unsent(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    /// How many bytes are unsent.
    pub fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Whether everything was sent.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The socket took `count` bytes.
    ///
    /// # Panics
    /// If there were fewer.
    pub(crate) fn advance(&mut self, count: usize) {
        assert!(count <= self.len(), "the socket took more bytes than it was given");
        self.sent += count;
        if self.sent == self.bytes.len() {
            self.bytes.clear();
            self.sent = 0;
            self.shrink(limits::BUFFER_KEEP_BYTES);
        } else if self.sent >= self.bytes.len() / 2 && self.sent >= limits::READ_BYTES {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.sent = 0;
    }

    /// Gives memory back while there is nothing to send, except for so many bytes.
    pub(crate) fn shrink(&mut self, keep: usize) {
        if self.is_empty() && self.bytes.capacity() > keep {
            self.bytes = Vec::new();
        }
    }
}

/// How far a connection is from its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Life {
    Open,
    /// No further command is executed; the replies so far are sent, then the connection closes.
    Closing,
    /// Closes at once, whatever was not sent.
    Dead,
}

/// What a client has said about itself and its requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct Session {
    pub(crate) protocol: Protocol,
    pub(crate) database: u8,
    pub(crate) authenticated: bool,
    /// Which replies the client wants.
    pub(crate) wants: Wants,
}

/// What `CLIENT REPLY` has said.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Wants {
    #[default]
    Every,
    /// Not that of the next command.
    NotNext,
    None,
}

/// A place in the order of replies.
#[derive(Debug)]
pub(crate) enum Reply {
    /// Encoded, waiting for those before it.
    Ready(Vec<u8>),
    /// One op or transaction.
    Op { spec: &'static Spec, protocol: Protocol, update: bool },
    /// A call of the attached session.
    Call { spec: &'static Spec, protocol: Protocol },
    /// `SESSION OPEN`, `RENEW` or `CLOSE`, asked for at this time.
    Lease(Asked),
    /// A command over several keys.
    Gather(Box<Gather>),
    /// `WATCH`.
    Watch(Box<Watching>),
    /// `PLACEMENT GET` of a key of this unit.
    Placement(Box<Placing>),
    /// `EXEC`.
    Exec(Box<Exec>),
    /// `KEYS` and the like. Nothing is before it, and nothing behind it is executed.
    Walk(Box<Walk>),
    /// Confirmations of subscriptions, until other nodes know of them, or of what is tracked, until
    /// other lanes do.
    Subscribed(Vec<u8>),
    /// No reply: what another client is told behind those before it.
    Redirected(Told),
    /// `WAIT`: so many replicas, or until then; looked at again when `poll` has come.
    Wait { wanted: i64, until: Instant, poll: Instant },
    /// No reply: those behind it are held back until then.
    Pause { until: Instant },
    /// No reply: the command behind it, which may change something or not, waits for the end of a
    /// `CLIENT PAUSE`, looked at again when `poll` has come.
    Held { may_change: bool, poll: Instant },
}

/// A question where a key lives.
#[derive(Clone, Debug)]
pub(crate) struct Placing {
    pub(crate) spec: &'static Spec,
    pub(crate) protocol: Protocol,
    pub(crate) database: u8,
    pub(crate) unit: Box<[u8]>,
}

/// A request for a session's lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) spec: &'static Spec,
    pub(crate) protocol: Protocol,
    /// When it was sent.
    pub(crate) since: Instant,
    /// The token of the session that the client showed; `None` if a session is to begin.
    pub(crate) token: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) input: Vec<u8>,
    /// Bytes of `input` that the counters have seen.
    pub(crate) counted: usize,
    pub(crate) parser: Parser,
    /// Whether the parser holds a command that waits until earlier replies are complete.
    pub(crate) parked: bool,
    /// Whether nothing further is executed until every reply so far is complete.
    pub(crate) barrier: bool,
    /// The reply to a command over several keys that goes on in another turn.
    pub(crate) feeding: Option<u64>,
    /// What it has taken of a turn of the loop.
    pub(crate) share: Taken,
    /// Whether what it sent waits for another turn.
    pub(crate) postponed: bool,
    pub(crate) output: OutputBuffer,
    pub(crate) replies: VecDeque<Reply>,
    /// The number of the front of `replies`.
    pub(crate) first: u64,
    /// Encoded bytes that wait in `replies`.
    pub(crate) ready_bytes: usize,
    /// What is to be told with answers, once the replies before them are complete.
    pub(crate) notes: HeldNotes,
    /// Bytes that unfinished commands over several keys hold in `replies`.
    pub(crate) gathered_bytes: usize,
    /// Bytes of the ops in progress, and of what those behind others are known to answer. They are
    /// in the lane's part of the account until the ops end, even if the connection ends before.
    pub(crate) in_flight_bytes: usize,
    /// How many they may be before further commands wait: less than
    /// [`limits::IN_FLIGHT_BYTES_MAX`] if the limit of unsent replies is low, since all of them may be
    /// answered at once.
    pub(crate) in_flight_bytes_max: usize,
    /// What this connection is in the lane's part of the account besides those.
    pub(crate) charged: u64,
    /// Submitted ops that a local read must not overtake and that are not answered yet: those that
    /// may change a key, and every transaction, which may see more than this node's replica holds.
    pub(crate) updates: u32,
    /// Submitted reads that a local read of the same key must not overtake.
    pub(crate) reads: SubmittedReads,
    /// Records that the commands of the block that is executed may still look at.
    pub(crate) walk_left: usize,
    pub(crate) session: Session,
    pub(crate) transaction: Transaction,
    /// What it listens to, if it does.
    pub(crate) subscriptions: Option<Box<Subscriptions>>,
    /// What it wants to be told of, if it keeps what it reads.
    pub(crate) tracking: Option<Box<ClientTracking>>,
    /// What the client that it has named for that is to be told now.
    pub(crate) redirected: Vec<Told>,
    /// The session whose calls this connection makes.
    pub(crate) attached: Option<Box<Attached>>,
    /// The numbers of its commands, if `SESSION AUTO` has asked for them.
    pub(crate) numbering: Option<Box<Numbering>>,
    /// The command that waits, whose reply is the only one that is to come.
    pub(crate) blocked: Option<Tag>,
    pub(crate) life: Life,
    /// Bytes of an argument that was refused for its length and that are read and dropped before the
    /// connection closes: a system that closes a socket with unread bytes in it tells the client so,
    /// and the client then never sees the answer.
    pub(crate) skip: u64,
    /// Whether the client doesn't want the reply of the command that is being executed.
    pub(crate) mute: bool,
    /// The numbers of unfinished replies that the client doesn't want.
    unwanted: BTreeSet<u64>,
    /// Whether replies of this turn rest on local reads, so on the lease.
    pub(crate) lease_bound: bool,
    /// Whether all that could be sent says that the commands of a block are queued whose `EXEC` is
    /// under way: it is of no use before the answer to that, and travels with it.
    pub(crate) held: bool,
    pub(crate) dirty: bool,
    /// Since when the unsent bytes have been above the soft limit.
    pub(crate) over_soft_limit: Option<Instant>,
    /// Since when it owes a password, as far as that was looked for.
    pub(crate) owes_password: Option<Instant>,
    /// Wrong passwords it gave.
    pub(crate) auth_failures: u32,
    /// What it is told of the commands of all clients, if it has asked for that.
    pub(crate) monitor: Option<Arc<Feed>>,
    pub(crate) facts: Arc<ClientFacts>,
}

impl Reply {
    /// The command that it answers, if it is one of those whose time is told.
    pub(crate) fn spec(&self) -> Option<&'static Spec> {
        match self {
            Self::Op { spec, .. } | Self::Call { spec, .. } => Some(spec),
            Self::Lease(asked) => Some(asked.spec),
            Self::Gather(gather) => Some(gather.spec),
            Self::Exec(exec) => Some(exec.spec),
            _ => None,
        }
    }
}

impl Connection {
    pub(crate) fn new(facts: Arc<ClientFacts>, authenticated: bool) -> Self {
        Self {
            input: Vec::new(),
            counted: 0,
            parser: Parser::default(),
            parked: false,
            barrier: false,
            feeding: None,
            share: Taken::default(),
            postponed: false,
            output: OutputBuffer::default(),
            replies: VecDeque::new(),
            first: 0,
            ready_bytes: 0,
            notes: HeldNotes::default(),
            gathered_bytes: 0,
            in_flight_bytes: 0,
            in_flight_bytes_max: limits::IN_FLIGHT_BYTES_MAX,
            charged: 0,
            updates: 0,
            reads: SubmittedReads::default(),
            walk_left: 0,
            session: Session { authenticated, ..Session::default() },
            transaction: Transaction::default(),
            subscriptions: None,
            tracking: None,
            redirected: Vec::new(),
            attached: None,
            numbering: None,
            blocked: None,
            life: Life::Open,
            skip: 0,
            mute: false,
            unwanted: BTreeSet::new(),
            lease_bound: false,
            held: false,
            dirty: false,
            over_soft_limit: None,
            owes_password: None,
            auth_failures: 0,
            monitor: None,
            facts,
        }
    }

    /// Answers a command at once: `write` appends the bytes where they belong.
    #[inline]
    pub(crate) fn write<R>(&mut self, write: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        if self.mute {
            return write(&mut Vec::new());
        }
        if self.replies.is_empty() {
            return write(&mut self.output.bytes);
        }
        let bytes = self.last_ready();
        let before = bytes.len();
        let result = write(bytes);
        let after = bytes.len();
        self.ready_bytes = (self.ready_bytes + after).saturating_sub(before);
        result
    }

    /// Appends what the client is told besides replies, behind the replies to what it has asked for,
    /// except one that only waits.
    pub(crate) fn push_message(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let only_waits =
            self.replies.len() == 1 && matches!(self.replies.front(), Some(Reply::Wait { .. }));
        if only_waits {
            return write(&mut self.output.bytes);
        }
        let mute = std::mem::take(&mut self.mute);
        self.write(write);
        self.mute = mute;
    }

    /// Whether its only command in progress waits for something that others may do.
    pub(crate) fn only_waits(&self) -> bool {
        let waits = matches!(self.replies.front(), Some(Reply::Wait { .. }));
        self.replies.len() == 1 && (waits || self.blocked.is_some())
    }

    /// Whether what it waits for is to read something.
    pub(crate) fn waits_to_read(&self) -> bool {
        let front = self.replies.front().and_then(Reply::spec);
        self.blocked.is_some() && front.is_some_and(|spec| spec.flags.has(flag::READONLY))
    }

    /// Appends what the client is told although a reply is still to come.
    pub(crate) fn begin_message(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.output.bytes);
    }

    /// Another client is told something behind the replies to what this one has asked for.
    pub(crate) fn redirect_behind(&mut self, told: Told) {
        self.ready_bytes += told.bytes();
        self.replies.push_back(Reply::Redirected(told));
    }

    fn last_ready(&mut self) -> &mut Vec<u8> {
        if !matches!(self.replies.back(), Some(Reply::Ready(_))) {
            self.replies.push_back(Reply::Ready(Vec::new()));
        }
        match self.replies.back_mut() {
            Some(Reply::Ready(bytes)) => bytes,
            _ => unreachable!("a ready reply was just put there"),
        }
    }

    /// Takes a place in the order of replies.
    pub(crate) fn push(&mut self, reply: Reply) -> u64 {
        self.replies.push_back(reply);
        let number = self.first + self.replies.len() as u64 - 1;
        if self.mute {
            self.unwanted.insert(number);
        }
        number
    }

    /// The unfinished reply of this number.
    pub(crate) fn reply(&mut self, number: u64) -> Option<&mut Reply> {
        let index = number.checked_sub(self.first)?;
        self.replies.get_mut(usize::try_from(index).ok()?)
    }

    /// Whether it waits for `KEYS` or the like.
    #[inline]
    pub(crate) fn has_walk(&self) -> bool {
        matches!(self.replies.front(), Some(Reply::Walk(_)))
    }

    fn walk_bytes(&self) -> usize {
        match self.replies.front() {
            Some(Reply::Walk(walk)) => walk.bytes(),
            _ => 0,
        }
    }

    /// Appends a part of the first reply that is not complete.
    pub(crate) fn begin_reply(&mut self, number: u64, write: impl FnOnce(&mut Vec<u8>)) {
        assert_eq!(number, self.first, "what comes later must not be sent before");
        if self.unwanted.contains(&number) {
            write(&mut Vec::new());
        } else {
            write(&mut self.output.bytes);
        }
    }

    /// Ends the reply that [`Connection::begin_reply`] has written.
    pub(crate) fn finish_begun(&mut self, number: u64) {
        self.finish(number, |_| {});
    }

    /// Completes the reply of this number: `write` appends its bytes. Returns whether bytes can
    /// now be sent that could not before.
    pub(crate) fn finish(&mut self, number: u64, write: impl FnOnce(&mut Vec<u8>)) -> bool {
        let unwanted = self.unwanted.remove(&number);
        if number != self.first {
            let mut bytes = Vec::new();
            write(&mut bytes);
            if unwanted {
                bytes.clear();
            }
            self.ready_bytes += bytes.len();
            if let Some(reply) = self.reply(number) {
                *reply = Reply::Ready(bytes);
            }
            return false;
        }
        if unwanted {
            write(&mut Vec::new());
        } else {
            write(&mut self.output.bytes);
        }
        self.held = false;
        self.replies.pop_front();
        self.first += 1;
        while let Some(Reply::Ready(_) | Reply::Redirected(_)) = self.replies.front() {
            match self.replies.pop_front() {
                Some(Reply::Ready(bytes)) => {
                    self.ready_bytes = self.ready_bytes.saturating_sub(bytes.len());
                    self.output.bytes.extend_from_slice(&bytes);
                }
                Some(Reply::Redirected(told)) => {
                    self.ready_bytes = self.ready_bytes.saturating_sub(told.bytes());
                    self.redirected.push(told);
                }
                _ => unreachable!("the front was looked at a moment ago"),
            }
            self.first += 1;
        }
        if self.replies.is_empty() {
            self.barrier = false;
            self.ready_bytes = 0;
        }
        true
    }

    /// An op that was submitted has ended.
    pub(crate) fn ended(&mut self, pending: &Pending) {
        self.in_flight_bytes -= pending.bytes;
        if let Some(hash) = pending.read {
            self.reads.remove(hash);
        }
    }

    /// Encoded bytes that are not sent yet.
    #[inline]
    pub(crate) fn written(&self) -> usize {
        self.output.len() + self.ready_bytes
    }

    /// What its replies take before they are sent: encoded bytes, and the keys of a list.
    #[inline]
    pub(crate) fn unsent(&self) -> usize {
        self.written() + self.walk_bytes()
    }

    /// Whether commands must wait: for earlier replies, or for the client to read.
    pub(crate) fn is_paused(&self) -> bool {
        self.barrier
            || (self.parked && !self.replies.is_empty())
            || (self.notes.bytes() >= limits::OUTPUT_PAUSE_BYTES && !self.replies.is_empty())
            || self.replies.len() >= limits::PIPELINE_REPLIES_MAX
            || self.written() >= limits::OUTPUT_PAUSE_BYTES
            || self.in_flight_bytes >= self.in_flight_bytes_max
    }

    /// Bytes that the connection holds, ops in progress aside.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>()
            + self.input.capacity()
            + self.parser.bytes()
            + self.output.bytes.capacity()
            + self.replies.capacity() * size_of::<Reply>()
            + self.ready_bytes
            + self.notes.bytes()
            + self.gathered_bytes
            + self.reads.bytes()
            + self.transaction.bytes()
            + self.walk_bytes()
            + self.subscriptions.as_ref().map_or(0, |subscriptions| subscriptions.bytes())
            + self.tracking.as_ref().map_or(0, |tracking| tracking.bytes())
            + self.numbering.as_ref().map_or(0, |numbering| numbering.bytes())
    }

    /// Whether everything owed was sent and nothing more is to come.
    pub(crate) fn is_finished(&self) -> bool {
        match self.life {
            Life::Open => false,
            Life::Closing => self.replies.is_empty() && self.output.is_empty() && self.skip == 0,
            Life::Dead => true,
        }
    }

    /// Drops what is owed and ends the connection.
    pub(crate) fn kill(&mut self) {
        self.life = Life::Dead;
        self.held = false;
        self.output.clear();
        self.replies.clear();
        self.ready_bytes = 0;
        self.gathered_bytes = 0;
    }

    /// Copies what `CLIENT LIST` shows.
    pub(crate) fn publish(&self, now: Instant) {
        let facts = &self.facts;
        facts.active.store(now.0, Relaxed);
        facts.input_bytes.store(self.input.len() as u64, Relaxed);
        facts.input_capacity.store((self.input.capacity() - self.input.len()) as u64, Relaxed);
        facts.output_bytes.store(self.written() as u64, Relaxed);
        facts.blocked.store(self.barrier, Relaxed);
    }
}
