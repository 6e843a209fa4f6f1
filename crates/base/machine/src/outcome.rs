//! What a client asks a machine, and how that ends.

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
    /// The disk of a node that would have to keep it is full.
    DiskFull,
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
