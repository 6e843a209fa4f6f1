//! The parts of a history: operations, their actions, answers and outcomes.

use std::fmt;

use crate::collection::CollectionCommand;

/// A key or a value. Any bytes are legal, as in Redis.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes(pub Vec<u8>);

/// How many bytes of a value a message shows before it is cut.
const SHOWN_BYTES_MAX: usize = 48;

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.len() <= SHOWN_BYTES_MAX {
            return write!(f, "\"{}\"", self.0.escape_ascii());
        }
        let head = &self.0[..SHOWN_BYTES_MAX];
        write!(f, "\"{}\"... ({} bytes)", head.escape_ascii(), self.0.len())
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<&str> for Bytes {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().to_vec())
    }
}

impl From<String> for Bytes {
    fn from(text: String) -> Self {
        Self(text.into_bytes())
    }
}

impl From<&[u8]> for Bytes {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

/// The request of a client. The semantics are those of the Redis command of that name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// `GET`: answers the value, or nothing when the key is absent.
    Get,
    /// `SET`: stores the value whatever was there.
    Set(Bytes),
    /// `DEL`: answers 1 if the key was there, else 0.
    Del,
    /// `INCRBY`: an absent key counts as 0; answers the sum, or an error when the value is not
    /// an integer in canonical decimal form or the sum leaves 64 bits.
    Incr(i64),
    /// `GETSET`: stores the value and answers the previous one.
    GetSet(Bytes),
    /// `SETNX`: stores the value if the key is absent and answers 1, else 0.
    SetNx(Bytes),
    /// Compare and set: stores `value` if the key holds `expected` (`None`: is absent) and
    /// answers 1, else 0.
    Cas {
        /// What the key must hold.
        expected: Option<Bytes>,
        /// What it holds afterwards.
        value: Bytes,
    },
    /// `APPEND`: adds to the end of the value and answers its new length in bytes.
    Append(Bytes),
    /// A command on a collection. On keys with such commands strings are set, read and deleted by
    /// commands, too.
    Command(CollectionCommand),
}

impl Action {
    /// The name of the action in a history file.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Set(_) => "set",
            Self::Del => "del",
            Self::Incr(_) => "incr",
            Self::GetSet(_) => "getset",
            Self::SetNx(_) => "setnx",
            Self::Cas { .. } => "cas",
            Self::Append(_) => "append",
            Self::Command(_) => "command",
        }
    }

    /// Whether `answer` is of the kind that this action can give.
    pub fn admits(&self, answer: &Answer) -> bool {
        match (self, answer) {
            (Self::Get | Self::GetSet(_), Answer::Value(_)) => true,
            (Self::Set(_), Answer::Ok) => true,
            (Self::Del | Self::SetNx(_) | Self::Cas { .. }, Answer::Integer(n)) => {
                *n == 0 || *n == 1
            }
            (Self::Incr(_), Answer::Integer(_) | Answer::Error(_)) => true,
            (Self::Append(_), Answer::Integer(n)) => *n >= 0,
            (Self::Command(_), _) => true,
            _ => false,
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name();
        match self {
            Self::Get | Self::Del => f.write_str(name),
            Self::Incr(by) => write!(f, "{name} {by}"),
            Self::Set(value) | Self::GetSet(value) | Self::SetNx(value) | Self::Append(value) => {
                write!(f, "{name} {value}")
            }
            Self::Cas { expected: Some(expected), value } => {
                write!(f, "{name} {expected} to {value}")
            }
            Self::Cas { expected: None, value } => write!(f, "{name} absent to {value}"),
            Self::Command(command) => write!(f, "{command}"),
        }
    }
}

/// The answer of a completed operation to its client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// The `+OK` of a `set`.
    Ok,
    /// The value of a `get`, or the previous value of a `getset`; `None` for an absent key.
    Value(Option<Bytes>),
    /// The sum of an `incr`, the length of an `append`, 1 or 0 of a `del`, `setnx` or `cas`.
    Integer(i64),
    /// An `incr` that saw a value which can't be incremented. An error that says nothing about
    /// the value belongs into [`Outcome::Refused`]. Also a command on a collection that saw a value
    /// of another type.
    Error(String),
    /// Several answers of a command on a collection.
    Array(Vec<Answer>),
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ok => f.write_str("OK"),
            Self::Value(None) => f.write_str("absent"),
            Self::Value(Some(value)) => write!(f, "{value}"),
            Self::Integer(n) => write!(f, "{n}"),
            Self::Error(text) => write!(f, "error {text:?}"),
            Self::Array(items) => {
                f.write_str("[")?;
                for (at, item) in items.iter().enumerate() {
                    write!(f, "{}{item}", if at == 0 { "" } else { ", " })?;
                }
                f.write_str("]")
            }
        }
    }
}

/// How an operation ended, as its client saw it. Times are nanoseconds on the history's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It took effect once, and gave this answer at this time.
    Done {
        /// When the answer arrived.
        at: u64,
        /// The answer.
        answer: Answer,
    },
    /// It never took effect and never will.
    Refused {
        /// When the refusal arrived.
        at: u64,
    },
    /// It may have taken effect, or may yet.
    Unknown,
}

/// One operation of one client on one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The client. A process may have several operations in flight; the checkers order operations
    /// by their times alone.
    pub process: u64,
    /// The key.
    pub key: Bytes,
    /// What was asked.
    pub action: Action,
    /// Nanoseconds on the history's clock, taken before the request was sent.
    pub invoke: u64,
    /// How it ended.
    pub outcome: Outcome,
}

impl Operation {
    /// When the answer of a done operation arrived.
    pub fn done_at(&self) -> Option<u64> {
        match self.outcome {
            Outcome::Done { at, .. } => Some(at),
            Outcome::Refused { .. } | Outcome::Unknown => None,
        }
    }
}

/// Seconds with nanoseconds, for messages.
pub(crate) struct Seconds(pub(crate) u64);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}s", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (process, action, invoke) = (self.process, &self.action, Seconds(self.invoke));
        match &self.outcome {
            Outcome::Done { at, answer } => {
                let at = Seconds(*at);
                write!(f, "{invoke} .. {at}  process {process}: {action} -> {answer}")
            }
            Outcome::Refused { at } => {
                let at = Seconds(*at);
                write!(f, "{invoke} .. {at}  process {process}: {action} -> refused")
            }
            Outcome::Unknown => {
                write!(f, "{invoke} .. ?  process {process}: {action} -> unknown")
            }
        }
    }
}

/// What every key held before the first operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Initial {
    /// No key held a value.
    #[default]
    Absent,
    /// The keys held values that the history does not name. The check is weaker: the first
    /// observation of a key fixes what it held.
    Any,
}

/// The header of a history.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Header {
    /// What keys held at the start.
    pub initial: Initial,
    /// Free text for people: the seed, the command line, the engine.
    pub note: String,
}

/// The operations of the clients of one run.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct History {
    /// What the history says about itself.
    pub header: Header,
    /// The operations, in any order.
    pub operations: Vec<Operation>,
}
