//! The names of anomalies, and accounts of them.

use std::fmt;

use crate::txn::TxnRecord;

/// The kinds of anomalies, named after Adya ("Weak Consistency", 1999) and Elle (Kingsbury and
/// Alvaro 2020).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AnomalyKind {
    /// G1a: a transaction that took effect read what an aborted one wrote.
    AbortedRead,
    /// G1b: a transaction read what another one wrote and then overwrote itself.
    IntermediateRead,
    /// A transaction's reads contradict its own earlier reads or writes.
    Internal,
    /// A read of a value that no transaction wrote.
    Phantom,
    /// A list holds an element twice that was appended once.
    DuplicateElement,
    /// Two reads of a list, and neither is the beginning of the other; or a list that does not
    /// keep the order of one transaction's appends.
    IncompatibleOrder,
    /// Two transactions read the same version of a key and both replaced it.
    LostUpdate,
    /// A cycle of overwritten writes only.
    G0 {
        /// Whether the cycle needs the order of real time.
        realtime: bool,
    },
    /// A cycle of overwritten writes and of reads of what others wrote.
    G1c {
        /// Whether the cycle needs the order of real time.
        realtime: bool,
    },
    /// A cycle with exactly one read of a version that another transaction then overwrote: read
    /// skew.
    GSingle {
        /// Whether the cycle needs the order of real time.
        realtime: bool,
    },
    /// A cycle with at least two such reads: write skew.
    G2Item {
        /// Whether the cycle needs the order of real time.
        realtime: bool,
    },
    /// Two transactions that took effect have the same timestamp, and one of them was answered before
    /// the other began.
    DuplicateTimestamp,
    /// A value is not the one that was written with its version.
    WrongVersion,
    /// The transactions do not take effect in the order of their timestamps. There may be
    /// another order that explains what clients saw.
    TimestampOrder,
    /// The accounts of a bank do not add up.
    BankSum,
}

impl AnomalyKind {
    /// The name, as in the literature where there is one.
    pub fn name(self) -> &'static str {
        match self {
            Self::AbortedRead => "G1a",
            Self::IntermediateRead => "G1b",
            Self::Internal => "internal",
            Self::Phantom => "phantom-read",
            Self::DuplicateElement => "duplicate-element",
            Self::IncompatibleOrder => "incompatible-order",
            Self::LostUpdate => "lost-update",
            Self::G0 { realtime: false } => "G0",
            Self::G0 { realtime: true } => "G0-realtime",
            Self::G1c { realtime: false } => "G1c",
            Self::G1c { realtime: true } => "G1c-realtime",
            Self::GSingle { realtime: false } => "G-single",
            Self::GSingle { realtime: true } => "G-single-realtime",
            Self::G2Item { realtime: false } => "G2-item",
            Self::G2Item { realtime: true } => "G2-item-realtime",
            Self::DuplicateTimestamp => "duplicate-timestamp",
            Self::WrongVersion => "wrong-version",
            Self::TimestampOrder => "timestamp-order",
            Self::BankSum => "bank-sum",
        }
    }

    /// What it means, in a few words.
    fn meaning(self) -> &'static str {
        match self {
            Self::AbortedRead => "a read of what an aborted transaction wrote",
            Self::IntermediateRead => "a read of a transaction's unfinished work",
            Self::Internal => "a transaction contradicts itself",
            Self::Phantom => "a read of what nobody wrote",
            Self::DuplicateElement => "an element was appended once and is there twice",
            Self::IncompatibleOrder => "reads disagree on the order of a list",
            Self::LostUpdate => "two transactions replaced the same version",
            Self::G0 { .. } => "writes overwrite each other in a circle",
            Self::G1c { .. } => "information flows in a circle",
            Self::GSingle { .. } => "a read missed a write that it had to see",
            Self::G2Item { .. } => "reads missed each other's writes",
            Self::DuplicateTimestamp => "one timestamp for two transactions",
            Self::WrongVersion => "a version does not hold what was written with it",
            Self::TimestampOrder => "a read contradicts the order of timestamps",
            Self::BankSum => "money appeared or disappeared",
        }
    }
}

impl fmt::Display for AnomalyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Proof that a history breaks its guarantee. Its `Display` is an account that a person can
/// follow, over several lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Anomaly {
    /// Which kind.
    pub kind: AnomalyKind,
    /// Positions in the checked slice of the transactions that take part: in the order of the
    /// cycle if it is one.
    pub transactions: Vec<usize>,
    /// What happened, a sentence each; of a cycle, one for each edge.
    pub steps: Vec<String>,
    /// The transactions, written out.
    shown: Vec<String>,
}

impl Anomaly {
    pub(crate) fn new(
        kind: AnomalyKind,
        records: &[TxnRecord],
        transactions: Vec<usize>,
        steps: Vec<String>,
    ) -> Self {
        let shown = transactions.iter().map(|txn| records[*txn].to_string()).collect();
        Self { kind, transactions, steps, shown }
    }
}

impl fmt::Display for Anomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.kind, self.kind.meaning())?;
        for shown in &self.shown {
            writeln!(f, "  {shown}")?;
        }
        let last = self.steps.len().saturating_sub(1);
        for (i, step) in self.steps.iter().enumerate() {
            write!(f, "{}. {step}{}", i + 1, if i == last { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl std::error::Error for Anomaly {}
