//! What the checkers say about what clients saw.

use std::collections::BTreeMap;

use quorate_check::{
    Bytes, History, Model, TxnHistory, TxnOp, Verdict, check_bank, check_history,
    check_transactions, split_list,
};
use quorate_node::Isolation;

use crate::clients::Seen;
use crate::process::Entry;
use crate::transactions::Transactions;

/// What no correct keyspace shows its clients, if they saw such a thing.
pub(crate) fn contradiction(seen: &Seen, isolation: Option<Isolation>) -> Option<String> {
    if let Some(complaint) = seen.complaints.first() {
        return Some(complaint.clone());
    }
    let singles = History {
        header: seen.history.header.clone(),
        operations: seen.history.operations.clone(),
    };
    let report = check_history(&singles);
    if report.verdict() == Verdict::Violation {
        return Some(report.to_string());
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
