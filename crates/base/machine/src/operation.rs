//! Client operations on one key, as machines see them.

use alloc::borrow::Cow;
use alloc::vec::Vec;
use core::fmt::Debug;

use quorate_types::{Timestamp, UnixMillis};

use crate::{Content, ValueKind};

/// What an operation does to its key, which decides the protocol's path for it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    /// Changes nothing.
    Read,
    /// Sets or deletes the key whatever it held, and answers the same whatever it held. Never
    /// aborts.
    Write,
    /// Its change or its answer depends on what the key held: a read-modify-write.
    Update,
}

/// What a key holds when an operation runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Current<'a> {
    /// The value, or nothing. A value past its expiry has been taken out already.
    pub content: Option<Content<'a>>,
    /// The version of the key, for `WATCH`. An absent key has the timestamp of its tombstone, or
    /// [`Timestamp::ZERO`].
    pub timestamp: Timestamp,
}

/// What an operation wants its key to hold from now on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change<'a> {
    /// Nothing changes: the operation was, after all, a read.
    Keep,
    /// A new value.
    Set {
        /// The bytes.
        bytes: Cow<'a, [u8]>,
        /// What they are.
        kind: ValueKind,
        /// When they expire, absolute.
        expire_at: Option<UnixMillis>,
    },
    /// The same value with another expiry.
    Expire(Option<UnixMillis>),
    /// The same object, changed in place. The base of the change is the version that the operation
    /// saw ([`Current::timestamp`]), which its engine knows.
    Delta(Cow<'a, [u8]>),
    /// No value.
    Delete,
}

/// A deterministic function over one key: the same key content, time and arguments give the same
/// change and the same answer on every node.
pub trait Operation: Sized {
    /// The form that can wait in a queue or cross to another lane.
    type Owned: Operation<Reply = Self::Reply, Owned = Self::Owned> + Clone + Debug + 'static;
    /// The answer. Borrows nothing.
    type Reply: Clone + Debug + 'static;

    /// The key it touches.
    fn key(&self) -> &[u8];

    /// What it does to the key.
    fn access(&self) -> Access;

    /// Runs it.
    fn apply<'a>(&'a self, now: UnixMillis, current: Current<'a>) -> (Self::Reply, Change<'a>);

    /// With arguments of its own: copied ones, unless it had some.
    fn into_owned(self) -> Self::Owned;

    /// Appends a form that [`Operation::decode`] reads back on another node of the same version.
    fn encode(&self, out: &mut Vec<u8>);

    /// Reads what [`Operation::encode`] wrote; `None` if the bytes are damaged.
    fn decode(bytes: &[u8]) -> Option<Self::Owned>;

    /// Appends a form of an answer that [`Operation::decode_reply`] reads back.
    fn encode_reply(reply: &Self::Reply, out: &mut Vec<u8>);

    /// Reads what [`Operation::encode_reply`] wrote; `None` if the bytes are damaged.
    fn decode_reply(bytes: &[u8]) -> Option<Self::Reply>;
}

/// A client's command for [`crate::Machine::step`]. An engine's `submit` takes the same without
/// copying its arguments.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request<C> {
    /// Commands of one origin that have a key in common take effect in order.
    pub origin: u64,
    /// The command.
    pub command: C,
}

/// The answer to a submitted op. There is no "failed" for what may have happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome<R> {
    /// It happened, exactly once, and this is its answer.
    Done(R),
    /// It did not happen and will not.
    Refused(Refusal),
    /// It may or may not have happened.
    Unknown,
}

/// Whether answers that rest on a node's lease may leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seal {
    /// They may: the lease held after they were read.
    Holds,
    /// Not now. They wait for the node's next lease.
    Waits,
    /// Never.
    Lost,
}

/// Why an op was not even started.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Refusal {
    /// This node is not serving: outside the view, without a lease, or still catching up.
    NotServing,
    /// A queue is at its limit.
    Busy,
    /// The op waited for its turn until its time ran out.
    TimedOut,
    /// `maxmemory` is reached.
    OutOfMemory,
    /// Other transactions on the same keys got in its way each time it was tried.
    Conflict,
    /// It is larger than a message may be.
    TooLarge,
    /// The lease of its session covers no attempt at it now: it must be renewed first.
    LeaseNeeded,
    /// Its session holds as many bytes of answers as it may.
    SessionFull,
    /// Its session's calls can't include it, now or ever.
    CallError(CallError),
}

/// Why a session's call is refused for good. None of these leaves a record.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum CallError {
    /// The client has acknowledged it: a late duplicate.
    Stale,
    /// It is too far from the first incomplete call.
    BeyondWindow,
    /// Another command had this number.
    Different,
    /// The session was closed.
    Closed,
}
