//! What the checkers say about what clients saw.

use std::collections::BTreeMap;

use quorate_check::{
    Action, Answer, Bytes, History, Model, Operation, Outcome, TxnHistory, TxnOp, Verdict,
    check_bank, check_history, check_transactions, split_list,
};
use quorate_node::Isolation;

use crate::clients::Seen;
use crate::process::Entry;
use crate::transactions::Transactions;

/// What no correct keyspace shows its clients, if they saw such a thing. With `stale_reads` ops that
/// changed nothing may have seen what was true earlier, and are not judged.
pub(crate) fn contradiction(
    seen: &Seen,
    isolation: Option<Isolation>,
    stale_reads: bool,
) -> Option<String> {
    if let Some(complaint) = seen.complaints.first() {
        return Some(complaint.clone());
    }
    let wrong = judge_singles(seen, |op| !stale_reads || !changed_nothing(op));
    if wrong.is_some() {
        return wrong;
    }
    let model = match isolation? {
        Isolation::Strict => Model::StrictSerializable,
        Isolation::Serializable => Model::Serializable,
    };
    let records = &seen.history.transactions;
    match check_transactions(records, model) {
        Err(anomaly) => return Some(anomaly.to_string()),
        // Deletions may leave open what a read of an absent key saw.
        Ok(summary) if !summary.unjudged.is_empty() => return Some(summary.to_string()),
        Ok(_) => {}
    }
    let purses = check_bank(records, &Transactions::purses(), 0);
    let accounts = check_bank(&seen.bank.transactions, &Transactions::accounts(), 0);
    purses.and(accounts).err().map(|anomaly| anomaly.to_string())
}

/// Whether clients saw with an op that changed nothing what was not true any more.
pub(crate) fn had_stale_reads(seen: &Seen) -> bool {
    judge_singles(seen, |_| true).is_some()
}

/// What contradicts itself among the ops on single keys that count.
fn judge_singles(seen: &Seen, counts: impl Fn(&Operation) -> bool) -> Option<String> {
    let operations = &seen.history.operations;
    let singles = History {
        header: seen.history.header.clone(),
        operations: operations.iter().filter(|op| counts(op)).cloned().collect(),
    };
    let report = check_history(&singles);
    (report.verdict() == Verdict::Violation).then(|| report.to_string())
}

/// Whether an op is known to have changed nothing.
fn changed_nothing(op: &Operation) -> bool {
    let Outcome::Done { answer, .. } = &op.outcome else { return false };
    match op.action {
        Action::Get => true,
        Action::Del | Action::SetNx(_) | Action::Cas { .. } => *answer == Answer::Integer(0),
        Action::Set(_) | Action::Incr(_) | Action::GetSet(_) | Action::Append(_) => false,
    }
}

/// An element that a committed transaction appended and that is gone at the end. Without an order
/// of real time the checker of histories could put every later reader before the append.
pub(crate) fn lost_appends(history: &TxnHistory, contents: &[Entry]) -> Option<String> {
    let lists: BTreeMap<&str, Vec<Bytes>> = contents
        .iter()
        .filter(|(key, ..)| key.starts_with("list:"))
        .filter_map(|(key, _, value)| Some((key.as_str(), split_list(Some(value.as_bytes()))?)))
        .collect();
    let committed = history.transactions.iter().filter(|record| record.committed_at().is_some());
    let appends = committed.flat_map(|record| record.ops.iter().map(move |op| (record, op)));
    for (record, op) in appends {
        let TxnOp::Append { key, element } = op else { continue };
        let name = String::from_utf8_lossy(&key.0);
        if !lists.get(&*name).is_some_and(|elements| elements.contains(element)) {
            return Some(format!("{element} is missing from {key} at the end: {record}"));
        }
    }
    None
}
