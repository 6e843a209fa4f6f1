//! Serializability and strict serializability of transactions.
//!
//! Two checkers look at the same history and share nothing but the search for cycles:
//!
//! - **By values** ([`check_values`]): trusts only what clients wrote and read. After Elle
//!   (Kingsbury and Alvaro, VLDB 2020): list-append histories give the order of all versions away;
//!   registers whose values are written once give some of it.
//! - **By versions** ([`check_versions`]): trusts that the versions of reads and the timestamps of
//!   transactions belong to the values read and written; then it is exact. It also replays the
//!   transactions in the order of their timestamps.
//!
//! Both build a graph (Adya, "Weak Consistency", 1999) whose edges say "must come before": *ww*
//! from a write to the one that replaced it, *wr* from a write to a read of it, *rw* from a read
//! to the write that replaced what it read, and under strict serializability *real time* from a
//! transaction that had ended to one that began afterwards. A history is serializable exactly if
//! the graph of its true version orders has no cycle. A cycle is reported by its strongest name.
//!
//! Nothing here searches through orders, so nothing is ever undecided for lack of time. A
//! read that several transactions may have caused, even by the order of real time, orders nothing,
//! and the verdict is *undecided* then unless versions tell whose write it saw.
//!
//! Transactions of unknown outcome count as committed if something that took effect saw their
//! writes, and as absent otherwise: a write that nobody saw can be ordered after everything.

mod access;
mod anomaly;
mod bank;
mod candidates;
mod explain;
mod graph;
mod keys;
mod lists;
mod mixed;
mod observe;
mod registers;
mod single;
mod versions;

use std::fmt;

use crate::history::{Bytes, Initial};
use crate::report::Verdict;
use crate::txn::{TxnOutcome, TxnRecord};

use access::{Conditions, Index};
use graph::{EdgeKind, Graph, Label};
use observe::{Knowledge, Observed};
use versions::Versioned;

pub use anomaly::{Anomaly, AnomalyKind};
pub use bank::{BankSummary, balance, bank_total, check_bank};
pub use mixed::{TxnReport, check_txn_history};
pub(crate) use single::{AllTransactions, all_transactions};

/// The guarantee to check a history for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Model {
    /// Some order of the transactions, one after the other, explains what every one of them read.
    Serializable,
    /// The same, and a transaction that had ended when another began comes before it.
    #[default]
    StrictSerializable,
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Serializable => "serializable",
            Self::StrictSerializable => "strictly serializable",
        })
    }
}

/// The guarantee to check, and what is known of the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct TxnOptions {
    /// The guarantee.
    pub model: Model,
    /// What keys held at the start. With [`Initial::Any`] a value that no transaction wrote is
    /// taken for the content at the start; no transaction may write that value again.
    pub initial: Initial,
}

impl From<Model> for TxnOptions {
    fn from(model: Model) -> Self {
        Self { model, initial: Initial::Absent }
    }
}

/// Counts of a history without anomalies.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct TxnSummary {
    /// The guarantee.
    pub model: Model,
    /// Transactions in the history.
    pub transactions: usize,
    /// Transactions that committed.
    pub committed: usize,
    /// Transactions that aborted.
    pub aborted: usize,
    /// Transactions whose fate their clients did not learn.
    pub unknown: usize,
    /// Transactions of unknown outcome that took effect, because a read saw their writes.
    pub inferred: usize,
    /// Distinct keys.
    pub keys: usize,
    /// Edges of the larger graph.
    pub edges: usize,
    /// Reads, and answers of single operations, that order nothing, because several transactions
    /// may have written the value they saw, and no versions tell which one did.
    pub ambiguous_reads: usize,
    /// Reads that the check by versions followed; 0 if the history carries no versions.
    pub versioned_reads: usize,
    /// Transactions that were replayed in the order of their timestamps.
    pub replayed: usize,
    /// Transactions that changed something at a moment that the check by versions does not know.
    pub unplaced: usize,
    /// Keys that the check by values could not judge, and why.
    pub unjudged: Vec<(Bytes, String)>,
}

impl TxnSummary {
    /// [`Verdict::Ok`], or [`Verdict::Undecided`] if there are keys that could not be judged, or
    /// reads that order nothing.
    pub fn verdict(&self) -> Verdict {
        match self.unjudged.is_empty() && self.ambiguous_reads == 0 {
            true => Verdict::Ok,
            false => Verdict::Undecided,
        }
    }

    /// The counts, without the verdict.
    fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (key, reason) in &self.unjudged {
            writeln!(f, "key {key}: not judged, {reason}")?;
        }
        writeln!(
            f,
            "{} transactions on {} keys: {} committed, {} aborted, {} unknown, of which {} took \
             effect; {} edges",
            self.transactions,
            self.keys,
            self.committed,
            self.aborted,
            self.unknown,
            self.inferred,
            self.edges
        )?;
        if self.ambiguous_reads > 0 {
            let reads = self.ambiguous_reads;
            writeln!(f, "{reads} reads not judged: more than one write may have caused them")?;
        }
        if self.versioned_reads > 0 || self.replayed > 0 {
            writeln!(
                f,
                "by versions: {} reads followed, {} transactions replayed in order of timestamp, \
                 {} of unknown timestamp",
                self.versioned_reads, self.replayed, self.unplaced
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for TxnSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.describe(f)?;
        match self.verdict() {
            Verdict::Undecided => {
                let (keys, reads) = (self.unjudged.len(), self.ambiguous_reads);
                write!(f, "undecided: {keys} keys and {reads} reads not judged")
            }
            _ => write!(f, "ok: the history is {}", self.model),
        }
    }
}

/// Checks transactions by their values, and by their versions too if they carry any.
///
/// # Errors
/// The first anomaly, that of the check by values before that of the check by versions.
pub fn check_transactions(
    records: &[TxnRecord],
    options: impl Into<TxnOptions>,
) -> Result<TxnSummary, Anomaly> {
    check(records, &Conditions::new(), options.into(), true, true)
}

/// Checks transactions by their values alone. Trusts no version numbers.
///
/// # Errors
/// The first anomaly.
pub fn check_values(
    records: &[TxnRecord],
    options: impl Into<TxnOptions>,
) -> Result<TxnSummary, Anomaly> {
    check(records, &Conditions::new(), options.into(), true, false)
}

/// Checks transactions by their versions and timestamps alone.
///
/// # Errors
/// The first anomaly.
pub fn check_versions(
    records: &[TxnRecord],
    options: impl Into<TxnOptions>,
) -> Result<TxnSummary, Anomaly> {
    check(records, &Conditions::new(), options.into(), false, true)
}

fn check(
    records: &[TxnRecord],
    conditions: &Conditions,
    options: TxnOptions,
    by_values: bool,
    by_versions: bool,
) -> Result<TxnSummary, Anomaly> {
    let index = Index::new(records, conditions);
    let mut knowledge = observe::learn(&index, &options);
    let mut observed = Observed::default();
    if by_values {
        observed = observe::check(&knowledge)?;
    }
    let mut versioned = Versioned::default();
    if by_versions && versions::carried(&index) {
        versioned = versions::check(&mut knowledge)?;
    }
    Ok(summarize(&knowledge, options.model, observed, versioned))
}

fn summarize(
    knowledge: &Knowledge<'_>,
    model: Model,
    observed: Observed,
    versioned: Versioned,
) -> TxnSummary {
    let index = knowledge.index;
    let ambiguous = observed.ambiguous.iter();
    let mut summary = TxnSummary {
        model,
        transactions: index.records.len(),
        inferred: observe::inferred(index, &knowledge.present),
        keys: index.keys.len(),
        edges: observed.edges.max(versioned.edges),
        ambiguous_reads: ambiguous.filter(|read| !versioned.followed.contains(read)).count(),
        versioned_reads: versioned.reads,
        replayed: versioned.replayed,
        unplaced: versioned.unplaced,
        unjudged: observed.unjudged,
        ..TxnSummary::default()
    };
    for record in index.records {
        match record.outcome {
            TxnOutcome::Committed { .. } => summary.committed += 1,
            TxnOutcome::Aborted { .. } => summary.aborted += 1,
            TxnOutcome::Unknown => summary.unknown += 1,
        }
    }
    summary
}

/// Adds the order of real time among the transactions that took effect, as a chain of relays in the
/// order in which they began: a transaction that has ended enters the chain at the first one that
/// began later. Times that touch count as concurrent.
fn add_real_time(index: &Index<'_>, present: &[bool], graph: &mut Graph) {
    let mut begun: Vec<(u64, u32)> = (0..index.records.len() as u32)
        .filter(|txn| present[*txn as usize])
        .map(|txn| (index.records[txn as usize].invoke, txn))
        .collect();
    begun.sort_unstable();
    let relays: Vec<u32> = begun.iter().map(|_| graph.relay()).collect();
    for (i, (_, txn)) in begun.iter().enumerate() {
        graph.forward(relays[i], *txn);
        if let Some(next) = relays.get(i + 1) {
            graph.forward(relays[i], *next);
        }
        let Some(ended) = index.records[*txn as usize].committed_at() else { continue };
        let first = begun.partition_point(|(invoke, _)| *invoke <= ended);
        if let Some(relay) = relays.get(first) {
            graph.add(*txn, *relay, Label::new(EdgeKind::RealTime, 0));
        }
    }
}
