//! Operations on single keys and transactions in one history.
//!
//! Linearizability is a local property (Herlihy and Wing 1990): under strict serializability, all
//! keys that transactions touch are one object, and each other key is one. So the search alone
//! judges a key that no transaction touches, and it is exact. On the other keys the search judges
//! what single keys show, and the check of transactions the rest, for which an operation on a
//! single key is a transaction of one operation. Where the answers of operations don't name the
//! values they saw (`setnx` that answered 0, `append`) and leave them open, that check is
//! undecided.

use std::collections::BTreeSet;
use std::fmt;

use crate::history::{Bytes, Operation, Outcome};
use crate::report::{Options, Report, Verdict, check_key};
use crate::txn::TxnHistory;

use super::anomaly::Anomaly;
use super::{Model, TxnOptions, TxnSummary, all_transactions, keys};

/// Operations of one key that the search looks at where it knows no order of time, in
/// which case all of them are in flight at once.
const UNORDERED_MAX: usize = 64;
/// The budget of the search on a key that the check of transactions judges too: for each key, and
/// for each operation on it. A few times what easily judged histories take.
const SHARED_BUDGET: u64 = 10_000;
const SHARED_BUDGET_PER_OPERATION: u64 = 32;

/// The result of a history with transactions. Its `Display` is what `quorate check` prints.
#[derive(Clone, Debug)]
pub struct TxnReport {
    /// The guarantee.
    pub model: Model,
    /// What each key showed by itself. Undecided are only keys that no transaction touches.
    pub keys: Report,
    /// What transactions showed. [`Anomaly::transactions`] counts those of the history first, and
    /// then the operations on keys that transactions touch.
    pub transactions: Result<TxnSummary, Anomaly>,
}

impl TxnReport {
    /// The verdict. An anomaly outweighs undecided keys.
    pub fn verdict(&self) -> Verdict {
        match (self.keys.verdict(), &self.transactions) {
            (Verdict::Violation, _) | (_, Err(_)) => Verdict::Violation,
            (Verdict::Undecided, Ok(_)) => Verdict::Undecided,
            (Verdict::Ok, Ok(summary)) => summary.verdict(),
        }
    }
}

impl fmt::Display for TxnReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.transactions {
            Ok(summary) => summary.describe(f)?,
            Err(anomaly) => writeln!(f, "{anomaly}\n")?,
        }
        self.keys.describe(f)?;
        match self.verdict() {
            Verdict::Ok => write!(f, "ok: the history is {}", self.model),
            Verdict::Violation => write!(f, "violation: the history is not {}", self.model),
            Verdict::Undecided => write!(f, "undecided: not everything could be judged"),
        }
    }
}

/// Checks a whole history: its transactions together with its operations on single keys, and each
/// key by itself.
pub fn check_txn_history(history: &TxnHistory, model: Model) -> TxnReport {
    let shared: BTreeSet<&Bytes> = history
        .transactions
        .iter()
        .filter(|record| !record.is_aborted())
        .flat_map(|record| record.ops.iter().map(|op| op.key()))
        .collect();
    let strict = model == Model::StrictSerializable;
    let all = all_transactions(history, |key| !strict || shared.contains(key));
    let options = TxnOptions { model, initial: history.header.initial };
    let mut transactions = super::check(&all.records, &all.conditions, options, true, true);
    if let Ok(summary) = &mut transactions {
        summary.unjudged.extend(all.unjudged);
    }
    let mut report = Report::default();
    report.count(&history.operations);
    for (key, mut operations) in keys::by_key(&history.operations, &history.transactions) {
        let mut options = Options::default();
        if !strict {
            if operations.len() > UNORDERED_MAX {
                continue;
            }
            forget_times(&mut operations);
        }
        if !strict || shared.contains(&key) {
            let all = operations.len() as u64;
            options.budget = SHARED_BUDGET + SHARED_BUDGET_PER_OPERATION * all;
        }
        let operations: Vec<&Operation> = operations.iter().collect();
        check_key(&key, &operations, &[], history.header.initial, &options, &mut report);
    }
    // Where the check of transactions decided, an undecided search changes nothing; where it did
    // not, its own verdict says so.
    report.undecided.retain(|undecided| strict && !shared.contains(&undecided.key));
    TxnReport { model, keys: report, transactions }
}

/// Makes all operations of a key concurrent.
fn forget_times(operations: &mut [Operation]) {
    let begun = operations.iter().map(|operation| operation.invoke).min().unwrap_or(0);
    let ended = operations.iter().filter_map(Operation::done_at).max().unwrap_or(0);
    for operation in operations {
        operation.invoke = begun;
        if let Outcome::Done { at, .. } = &mut operation.outcome {
            *at = ended;
        }
    }
}
