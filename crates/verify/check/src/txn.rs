//! The parts of a history of transactions: steps, outcomes, records.

use std::fmt;

use quorate_types::Timestamp;

use crate::history::{Bytes, Header, Operation, Seconds};

/// One step of a transaction, in the order in which the transaction took them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TxnOp {
    /// Read a value.
    Read {
        /// The key.
        key: Bytes,
        /// What it held; `None` if it was absent.
        value: Option<Bytes>,
        /// The timestamp of the transaction that wrote the value read, where the recorder could
        /// learn it. For an absent key: the timestamp of its deletion, or any moment up to which
        /// the key is known to have had no value.
        version: Option<Timestamp>,
    },
    /// Stored a value, or deleted the key with `None`. Only a change of the key is a write:
    /// deleting an absent key is not.
    Write {
        /// The key.
        key: Bytes,
        /// What it holds afterwards.
        value: Option<Bytes>,
    },
    /// Added an element to the end of a list.
    Append {
        /// The key.
        key: Bytes,
        /// The element. No other transaction that may commit appends the same one to this key.
        element: Bytes,
    },
    /// Read a whole list.
    ReadList {
        /// The key.
        key: Bytes,
        /// Its elements, oldest first. An absent key is an empty list.
        elements: Vec<Bytes>,
        /// As in [`TxnOp::Read`].
        version: Option<Timestamp>,
    },
}

impl TxnOp {
    /// A read that learned no version.
    pub fn read(key: impl Into<Bytes>, value: Option<Bytes>) -> Self {
        Self::Read { key: key.into(), value, version: None }
    }

    /// A write; `None` deletes.
    pub fn write(key: impl Into<Bytes>, value: Option<Bytes>) -> Self {
        Self::Write { key: key.into(), value }
    }

    /// An append.
    pub fn append(key: impl Into<Bytes>, element: impl Into<Bytes>) -> Self {
        Self::Append { key: key.into(), element: element.into() }
    }

    /// A read of a list that learned no version.
    pub fn read_list(key: impl Into<Bytes>, elements: Vec<Bytes>) -> Self {
        Self::ReadList { key: key.into(), elements, version: None }
    }

    /// The key that it touches.
    pub fn key(&self) -> &Bytes {
        match self {
            Self::Read { key, .. }
            | Self::Write { key, .. }
            | Self::Append { key, .. }
            | Self::ReadList { key, .. } => key,
        }
    }

    /// Whether it changes its key.
    pub fn changes(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::Append { .. })
    }
}

impl fmt::Display for TxnOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read { key, value, version } => {
                write!(f, "read {key} = {}", Content(value.as_ref()))?;
                show_version(f, version)
            }
            Self::Write { key, value: Some(value) } => write!(f, "wrote {key} = {value}"),
            Self::Write { key, value: None } => write!(f, "deleted {key}"),
            Self::Append { key, element } => write!(f, "appended {element} to {key}"),
            Self::ReadList { key, elements, version } => {
                write!(f, "read {key} = {}", List(elements))?;
                show_version(f, version)
            }
        }
    }
}

fn show_version(f: &mut fmt::Formatter<'_>, version: &Option<Timestamp>) -> fmt::Result {
    match version {
        Some(version) => write!(f, " (version {version:?})"),
        None => Ok(()),
    }
}

/// The value of a key, for messages.
pub(crate) struct Content<'a>(pub(crate) Option<&'a Bytes>);

impl fmt::Display for Content<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(value) => write!(f, "{value}"),
            None => f.write_str("absent"),
        }
    }
}

/// How many elements of a list a message shows, the last ones.
const ELEMENTS_SHOWN_MAX: usize = 6;

/// The elements of a list, for messages.
pub(crate) struct List<'a>(pub(crate) &'a [Bytes]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hidden = self.0.len().saturating_sub(ELEMENTS_SHOWN_MAX);
        f.write_str("[")?;
        if hidden > 0 {
            write!(f, "{hidden} elements, ")?;
        }
        for (i, element) in self.0[hidden..].iter().enumerate() {
            write!(f, "{}{element}", if i == 0 { "" } else { ", " })?;
        }
        f.write_str("]")
    }
}

/// How a transaction ended, as its client saw it. Times are nanoseconds on the history's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxnOutcome {
    /// It took effect once, as a whole.
    Committed {
        /// When the client learned it.
        at: u64,
    },
    /// It never took effect and never will. The checkers ignore its reads.
    Aborted {
        /// When the client learned it.
        at: u64,
    },
    /// It may have taken effect, or may yet. If it did, its reads took effect with it; a read
    /// without an answer is left out of the record.
    Unknown,
}

/// One transaction of one client: one attempt. A client that tries again after an abort makes
/// another record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxnRecord {
    /// The client. The checkers order transactions by their times alone.
    pub process: u64,
    /// The number in messages, as in "T7". Best unique; nothing else depends on it.
    pub id: u64,
    /// Nanoseconds on the history's clock, taken before the first request was sent.
    pub invoke: u64,
    /// How it ended.
    pub outcome: TxnOutcome,
    /// The timestamp at which it claims to have taken effect: the version of its writes. Those that
    /// were under way at the same time may share it; they took effect in the order of their answers.
    pub timestamp: Option<Timestamp>,
    /// What it did, in order.
    pub ops: Vec<TxnOp>,
}

impl TxnRecord {
    /// When the client of a committed transaction learned of it.
    pub fn committed_at(&self) -> Option<u64> {
        match self.outcome {
            TxnOutcome::Committed { at } => Some(at),
            TxnOutcome::Aborted { .. } | TxnOutcome::Unknown => None,
        }
    }

    /// Whether it surely has no effect.
    pub fn is_aborted(&self) -> bool {
        matches!(self.outcome, TxnOutcome::Aborted { .. })
    }
}

/// How many operations of a transaction a message shows.
const OPS_SHOWN_MAX: usize = 12;

impl fmt::Display for TxnRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "T{}  {} .. ", self.id, Seconds(self.invoke))?;
        let end = match self.outcome {
            TxnOutcome::Committed { at } => {
                write!(f, "{}", Seconds(at))?;
                "committed"
            }
            TxnOutcome::Aborted { at } => {
                write!(f, "{}", Seconds(at))?;
                "aborted"
            }
            TxnOutcome::Unknown => {
                f.write_str("?")?;
                "outcome unknown"
            }
        };
        write!(f, "  process {}, {end}", self.process)?;
        if let Some(timestamp) = self.timestamp {
            write!(f, " at {timestamp:?}")?;
        }
        for (i, op) in self.ops.iter().take(OPS_SHOWN_MAX).enumerate() {
            write!(f, "{}{op}", if i == 0 { ": " } else { "; " })?;
        }
        match self.ops.len().saturating_sub(OPS_SHOWN_MAX) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

/// The operations and transactions of the clients of one run.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct TxnHistory {
    /// What the history says about itself.
    pub header: Header,
    /// Operations on single keys, in any order. Each is a transaction of its own.
    pub operations: Vec<Operation>,
    /// Transactions, in any order.
    pub transactions: Vec<TxnRecord>,
}

/// The byte before every element of a list that is kept in a Redis string.
const SEPARATOR: u8 = b',';

/// The argument of `APPEND` that adds `element` to a list kept in a Redis string: `,element`.
/// No element may contain a comma.
pub fn list_argument(element: &[u8]) -> Vec<u8> {
    let mut argument = Vec::with_capacity(element.len() + 1);
    argument.push(SEPARATOR);
    argument.extend_from_slice(element);
    argument
}

/// The elements of a list kept in a Redis string: `,a,b,c` is a, b, c; an absent or empty string
/// is the empty list. `None` if the string is not of that form.
pub fn split_list(value: Option<&[u8]>) -> Option<Vec<Bytes>> {
    match value {
        None | Some([]) => Some(Vec::new()),
        Some([SEPARATOR, rest @ ..]) => {
            Some(rest.split(|byte| *byte == SEPARATOR).map(Bytes::from).collect())
        }
        Some(_) => None,
    }
}
