//! An op on its way: who waits for it, what it takes to run it again, and what an update carries.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use quorate_machine::{Access, Command};
use quorate_rifl::{AnswerBytes, Call, Permit};
use quorate_types::{Instant, Lsn, NodeSet, Tag, Timestamp};

use crate::Meta;
use crate::message::Completion;

/// Why an update is pending.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum PendingKind {
    /// A client's write: never aborts.
    Write,
    /// A client's read-modify-write, or an expiry.
    Rmw,
    /// Someone else's update, driven again; with an answer if it superseded a client's write.
    Replay,
}

/// A pending update, found by the cookie in its acknowledgements.
#[derive(Clone, Hash, Debug)]
pub(crate) struct Pending<H, O: Command> {
    pub(crate) kind: PendingKind,
    pub(crate) handle: H,
    pub(crate) timestamp: Timestamp,
    /// The RMW flag of the update, which for a replay is the original's.
    pub(crate) rmw: bool,
    pub(crate) acks: NodeSet,
    /// Counts pending updates of this machine, for the collector's "everything before now".
    pub(crate) number: u64,
    pub(crate) started: Instant,
    pub(crate) resend_at: Instant,
    /// When its INV last left.
    pub(crate) sent_at: Instant,
    /// How often it was sent again in this view because nobody had answered in time.
    pub(crate) tries: u32,
    /// How far the log must be durable for this node's own copy.
    pub(crate) lsn: Lsn,
    pub(crate) answer: Option<(Tag, O::Reply)>,
    /// What to run again if the read-modify-write is superseded.
    pub(crate) again: Option<RetryState<O>>,
    /// Ops that ran behind that one, and end with it (`combining.rs`).
    pub(crate) combined: Vec<Combined<O>>,
}

/// An op that shares the update of another one.
#[derive(Clone, Hash, Debug)]
pub(crate) struct Combined<O: Command> {
    pub(crate) tag: Tag,
    pub(crate) reply: O::Reply,
    /// What to run again if the update is superseded.
    pub(crate) run: RetryState<O>,
}

/// What it takes to run a superseded read-modify-write again.
#[derive(Clone, Hash, Debug)]
pub(crate) struct RetryState<O> {
    pub(crate) op: O,
    pub(crate) origin: u64,
    pub(crate) attempts: u32,
    pub(crate) give_up_at: Instant,
    /// The op is a session's call, and may be attempted.
    pub(crate) permit: Option<Permit>,
}

/// An op that waits for its key to become Valid.
#[derive(Clone, Hash, Debug)]
pub(crate) struct Waiter<O> {
    /// Who waits for the op.
    pub(crate) tag: Tag,
    pub(crate) run: RetryState<O>,
    /// Not before this time: the backoff of a superseded read-modify-write.
    pub(crate) not_before: Instant,
}

/// The ops that wait for one key, in order of arrival.
#[derive(Clone, Hash, Debug)]
pub(crate) struct Queue<O> {
    pub(crate) waiters: VecDeque<Waiter<O>>,
    /// How many of them are reads.
    pub(crate) reads: usize,
    /// Counts queues, so that they have an order that does not depend on where records lie.
    pub(crate) number: u64,
    /// When to look at the key again.
    pub(crate) check_at: Instant,
    /// What the key looked like at the last check; unchanged means that a message was lost.
    pub(crate) seen: Option<Meta>,
    /// When the message loss timer of the key runs out.
    pub(crate) loss_at: Instant,
    /// Checks that found the key unchanged.
    pub(crate) stalls: u32,
}

/// On whose behalf an update starts.
pub(crate) struct UpdateContext<O: Command> {
    /// Whether it is a read-modify-write.
    pub(crate) rmw: bool,
    /// Who is told, and what, once it is committed.
    pub(crate) answer: Option<(Tag, O::Reply)>,
    /// Who else is told.
    pub(crate) combined: Vec<Combined<O>>,
    /// The call that it is an attempt at, and the answer, encoded.
    pub(crate) completion: Option<(Permit, AnswerBytes)>,
}

/// What an op does with its key, where it comes from, and how often it has run already.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpContext {
    pub(crate) access: Access,
    pub(crate) origin: u64,
    pub(crate) number: u32,
    pub(crate) give_up_at: Instant,
    pub(crate) permit: Option<Permit>,
}

/// An attempt at a call: the key, and the version that the attempt gives it.
pub(crate) type AttemptId<H> = (H, Timestamp);

/// The completion of a call whose version is not Valid here.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Tentative {
    /// The version that the call gave the key.
    pub(crate) timestamp: Timestamp,
    pub(crate) call: Call,
    /// The date of the attempt.
    pub(crate) date: u64,
    pub(crate) answer: AnswerBytes,
}

impl Tentative {
    pub(crate) fn of(timestamp: Timestamp, completion: &Completion<'_>) -> Self {
        let Completion { call, date, answer } = *completion;
        Self { timestamp, call, date, answer: AnswerBytes::new(answer) }
    }

    /// As it travels.
    pub(crate) fn completion(&self) -> Completion<'_> {
        Completion { call: self.call, date: self.date, answer: self.answer.bytes() }
    }
}
