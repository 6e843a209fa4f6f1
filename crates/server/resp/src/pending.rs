//! Replies that take several ops: commands over several keys, `WATCH`, `EXEC`.

use quorate_commands::{ANSWER_TOO_LONG, OwnedCall, Reply, Spec, Watch};
use quorate_machine::{CallError, Outcome, Refusal};
use quorate_types::{Instant, limits};

use crate::connection::ConnectionId;
use crate::encode::{Protocol, array_header, encode, error, integer};
use crate::limits as own;

/// Whom an op was submitted for. Its slot in the front end's table is the op's tag.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    /// When it was submitted.
    pub(crate) since: Instant,
    pub(crate) connection: ConnectionId,
    /// The reply's number in the connection's order.
    pub(crate) number: u64,
    /// Which part of the reply.
    pub(crate) part: u32,
    /// What the op is in the lane's part of the account.
    pub(crate) bytes: usize,
    /// The hash of the key, if all that the op does is to read it.
    pub(crate) read: Option<u64>,
}

/// How an op can fail, from harmless to doubtful.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Failure {
    OutOfMemory,
    DiskFull,
    TooLarge,
    AnswerTooLong,
    CallError(CallError),
    SessionFull,
    Busy,
    Conflict,
    TimedOut,
    LeaseNeeded,
    TooManySessions,
    NotServing,
    Expired,
    Unknown,
    /// Some keys of a command were changed and others not.
    Partial,
}

impl Failure {
    /// The error reply: a code word, a sentence, the remedy.
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::OutOfMemory => OOM,
            Self::DiskFull => {
                "MISCONF the disk of a node that would have to keep this is full, so it did not happen; \
                 reads go on. Make room there, and writes are taken again within a second or two"
            }
            Self::Busy => {
                "TRYAGAIN too many operations are in flight; this one did not happen, try again"
            }
            Self::TooLarge => {
                "ERR a transaction reads and writes at most 16384 keys, and 4259840 bytes of keys and \
                 values; this one is larger and did not happen, split it"
            }
            Self::AnswerTooLong => ANSWER_TOO_LONG,
            Self::CallError(CallError::Stale) => {
                "STALE this session has acknowledged the call's number; it is not executed again, \
                 number a new call higher"
            }
            Self::CallError(CallError::BeyondWindow) => {
                "WINDOW the call's number is 512 or more above the first incomplete one; complete \
                 earlier calls first"
            }
            Self::CallError(CallError::Different) => {
                "DIFFERENT another command was called under this number; it is not executed, \
                 number a new call higher"
            }
            Self::CallError(CallError::Closed) => "EXPIRED the session was closed; open a new one",
            Self::SessionFull => {
                "ERR the session holds 8 MiB of answers; acknowledge earlier calls first"
            }
            Self::LeaseNeeded => {
                "TRYAGAIN the session's lease can't be confirmed at this moment; this try did nothing, an \
                 earlier one may have: try again"
            }
            Self::TooManySessions => {
                "MAXSESSIONS this node keeps as many sessions as its limit sessions_max allows; close \
                 sessions that are not needed, use another node, or raise it"
            }
            Self::Expired => {
                "EXPIRED the session's lease is over, or it is none of this cluster; calls without an \
                 answer may or may not have happened, open a new session for others"
            }
            Self::Conflict => {
                "TRYAGAIN other transactions on the same keys came first each time; this one did \
                 not happen, try again"
            }
            Self::TimedOut => {
                "TRYAGAIN the operation waited too long for its turn; it did not happen, try again"
            }
            Self::NotServing => {
                "CLUSTERDOWN this node is not serving (outside the view, without a lease or still \
                 catching up); the operation did not happen, try again or use another node"
            }
            Self::Unknown => {
                "UNKNOWN the operation may or may not have happened; read the key before retrying"
            }
            Self::Partial => {
                "UNKNOWN the operation happened for some of its keys and not, or perhaps not, for \
                 others; read the keys before retrying"
            }
        }
    }
}

impl Failure {
    /// The error reply to a session's call. What is refused leaves no record, but an earlier try
    /// may have left one.
    pub(crate) const fn text_of_call(self) -> &'static str {
        match self {
            Self::Busy | Self::Conflict | Self::TimedOut => {
                "TRYAGAIN this try did nothing, an earlier one may have: too many operations are in \
                 flight, or others came first each time; make the same call again"
            }
            Self::DiskFull => {
                "MISCONF the disk of a node that would have to keep this is full; this try did nothing, an \
                 earlier one may have: make room there, then make the same call again"
            }
            Self::NotServing => {
                "CLUSTERDOWN this node is not serving; this try did nothing, an earlier one may have: \
                 make the same call again at another node"
            }
            Self::Unknown => {
                "UNKNOWN the call may or may not have happened; make the same call again, here or at \
                 another node, to get its answer"
            }
            // Its session is open already: only its renewal finds no place, for now.
            Self::TooManySessions => Self::LeaseNeeded.text(),
            _ => self.text(),
        }
    }
}

pub(crate) const OOM: &str = "OOM command not allowed when used memory > 'maxmemory'.";

/// An op's answer, or how it failed.
pub(crate) fn answer_or_failure<R>(outcome: Outcome<R>) -> Result<R, Failure> {
    match outcome {
        Outcome::Done(reply) => Ok(reply),
        Outcome::Unknown => Err(Failure::Unknown),
        Outcome::Refused(refusal) => Err(match refusal {
            Refusal::NotServing => Failure::NotServing,
            Refusal::Busy => Failure::Busy,
            Refusal::TimedOut => Failure::TimedOut,
            Refusal::OutOfMemory => Failure::OutOfMemory,
            Refusal::DiskFull => Failure::DiskFull,
            Refusal::Conflict => Failure::Conflict,
            Refusal::TooLarge => Failure::TooLarge,
            Refusal::LeaseNeeded => Failure::LeaseNeeded,
            Refusal::SessionFull => Failure::SessionFull,
            Refusal::CallError(why) => Failure::CallError(why),
        }),
    }
}

/// How the answers of a command's parts become one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Merge {
    /// An array of them.
    Array,
    /// Their sum.
    Sum,
    /// `OK` once all are there.
    Ok,
}

/// A command over several keys, key by key.
#[derive(Debug)]
pub(crate) struct Gather {
    pub(crate) spec: &'static Spec,
    pub(crate) protocol: Protocol,
    pub(crate) database: u8,
    pub(crate) update: bool,
    pub(crate) merge: Merge,
    /// The whole command, for the parts not submitted yet.
    pub(crate) call: Option<OwnedCall>,
    /// How many bytes that is.
    pub(crate) call_bytes: usize,
    /// How many parts there are.
    pub(crate) parts: usize,
    /// The first part not submitted yet.
    pub(crate) next: usize,
    /// Parts submitted and not answered.
    pub(crate) in_flight: usize,
    answers: Vec<Vec<u8>>,
    /// Bytes of the answers so far.
    held: usize,
    sum: i64,
    done: usize,
    failure: Option<Failure>,
}

impl Gather {
    pub(crate) fn new(spec: &'static Spec, protocol: Protocol, merge: Merge, parts: usize) -> Self {
        Self {
            spec,
            protocol,
            database: 0,
            update: false,
            merge,
            call: None,
            call_bytes: 0,
            parts,
            next: 0,
            in_flight: 0,
            held: 0,
            answers: if merge == Merge::Array { vec![Vec::new(); parts] } else { Vec::new() },
            sum: 0,
            done: 0,
            failure: None,
        }
    }

    /// A part was answered.
    pub(crate) fn fold(&mut self, part: usize, answer: Result<&Reply<'_>, Failure>) {
        match answer {
            Ok(reply) => {
                self.done += 1;
                match (self.merge, reply) {
                    (Merge::Array, reply) => self.hold(part, reply.element()),
                    (_, Reply::Int(number)) => self.sum += number,
                    _ => {}
                }
            }
            Err(failure) => self.failure = self.failure.max(Some(failure)),
        }
    }

    /// Keeps a part's answer, if there is room for it beside the others. Only what is read is
    /// answered with an array, so to refuse it undoes nothing.
    fn hold(&mut self, part: usize, reply: &Reply<'_>) {
        if self.failure.is_some() {
            return;
        }
        if self.held + reply.bytes() > limits::REPLY_BYTES_MAX {
            self.failure = Some(Failure::AnswerTooLong);
            self.answers = Vec::new();
            return;
        }
        encode(reply, self.protocol, &mut self.answers[part]);
        self.held += self.answers[part].len();
    }

    /// Whether every part that will be submitted is answered. After a failure no further part is.
    pub(crate) fn is_complete(&self) -> bool {
        self.in_flight == 0 && (self.next == self.parts || self.failure.is_some())
    }

    /// Whether a further part may be submitted: only one at a time while the connection's ops in
    /// progress take as many bytes as they may.
    pub(crate) fn wants_more(&self, is_full: bool) -> bool {
        let waits = self.in_flight > 0 && (is_full || self.in_flight >= own::SPLIT_OPS_MAX);
        self.next < self.parts && !waits && self.failure.is_none()
    }

    pub(crate) fn failure(&self) -> Option<Failure> {
        let failure = self.failure?;
        // "It did not happen" would be wrong for a command if some of its parts happened.
        Some(if self.update && self.done > 0 { Failure::Partial } else { failure })
    }

    /// Bytes that the command and the answers so far take.
    pub(crate) fn bytes(&self) -> usize {
        self.held + self.answers.len() * size_of::<Vec<u8>>() + self.call_bytes
    }

    /// Appends the reply.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        if let Some(failure) = self.failure() {
            return error(failure.text(), out);
        }
        match self.merge {
            Merge::Array => {
                array_header(self.answers.len(), out);
                for answer in &self.answers {
                    out.extend_from_slice(answer);
                }
            }
            Merge::Sum => integer(b':', self.sum, out),
            Merge::Ok => out.extend_from_slice(b"+OK\r\n"),
        }
    }
}

/// `WATCH` until the versions are there.
#[derive(Debug)]
pub(crate) struct Watching {
    pub(crate) database: u8,
    pub(crate) keys: Vec<Box<[u8]>>,
    pub(crate) versions: Vec<Option<Watch>>,
    /// Answers still to come: one with every version from a transaction, one for each key
    /// otherwise.
    pub(crate) missing: usize,
    pub(crate) failure: Option<Failure>,
}

impl Watching {
    /// An answer has come, of a transaction or for the key of this number. Whether it was the last.
    pub(crate) fn part_answered(
        &mut self,
        part: usize,
        answer: Result<Reply<'_>, Failure>,
    ) -> bool {
        self.missing -= 1;
        let watch = |reply: &Reply<'_>| match *reply {
            Reply::Version(timestamp, existed) => Some(Watch { existed, timestamp }),
            _ => None,
        };
        match answer {
            Ok(Reply::Array(versions)) => {
                for (held, version) in self.versions[part..].iter_mut().zip(&versions) {
                    *held = watch(version);
                }
            }
            Ok(_) => {}
            Err(failure) => self.failure = self.failure.max(Some(failure)),
        }
        let last = self.missing == 0;
        if last && self.failure.is_none() && self.versions.iter().any(Option::is_none) {
            self.failure = Some(Failure::Unknown);
        }
        last
    }
}

/// `EXEC` until the engine has run the commands that touch keys: as a script on one key, or as a
/// block of a transactional keyspace. What is said of scripts here goes for blocks too.
#[derive(Debug)]
pub(crate) struct Exec {
    pub(crate) spec: &'static Spec,
    pub(crate) protocol: Protocol,
    pub(crate) plan: Vec<Step>,
    /// Answers still to come: one from a script, one from each keyspace that is flushed.
    pub(crate) missing: usize,
    pub(crate) done: usize,
    pub(crate) failure: Option<Failure>,
    /// Whether local reads must wait for it.
    pub(crate) update: bool,
    /// Whether it is a call of the attached session.
    pub(crate) call: bool,
}

/// One queued command of an `EXEC`.
#[derive(Debug)]
pub(crate) enum Step {
    /// The script's next result is its answer.
    Keyed(&'static Spec),
    /// Executed once the script is done.
    Local(OwnedCall),
    /// The flushes that were submitted in the script's place.
    Flush(&'static Spec),
}

const _: () = assert!(
    limits::TXN_KEYS_MAX == 16_384 && limits::TXN_BYTES_MAX == 4_259_840,
    "the text of `Failure::TooLarge` names both limits"
);
