//! The checkers' verdict on the clients' records.

use std::collections::{BTreeMap, BTreeSet};

use quorate_check::{
    Action, Answer, Bytes, History, Model, Operation, Outcome, TxnHistory, TxnOp, TxnRecord,
    Verdict, check_history_with_losses, check_transactions, split_list,
};
use quorate_meerkat::Isolation;

use crate::clients::Seen;
use crate::collections;
use crate::lapses;
use crate::parts;
use crate::process::Entry;
use crate::risks::Risks;
use crate::transactions::Transactions;

/// The first answer, if any, that no correct keyspace gives its clients. Ops that changed nothing
/// and were under way in one of the `unleased` times may have read outdated values, and are not
/// judged.
pub(crate) fn contradiction(
    seen: &Seen,
    isolation: Option<Isolation>,
    unleased: &[(u64, u64)],
    risks: Risks<'_>,
) -> Option<String> {
    if let Some(complaint) = seen.complaints.first() {
        return Some(complaint.clone());
    }
    if let Err(wrong) = seen.queues.check() {
        return Some(wrong);
    }
    let wrong = judge_singles(seen, risks, |op| !changed_nothing(op) || !overlaps(op, unleased));
    if wrong.is_some() {
        return wrong;
    }
    let model = match isolation? {
        Isolation::Strict => Model::StrictSerializable,
        Isolation::Serializable => Model::Serializable,
    };
    let records = &seen.history.transactions;
    let wrong = risks.find_in_eras(records, |records| judge_transactions(records, model));
    let purses = || risks.check_bank(records, &Transactions::purses());
    let accounts = || risks.check_bank(&seen.bank.transactions, &Transactions::accounts());
    wrong.or_else(purses).or_else(accounts)
}

fn judge_transactions(records: &[TxnRecord], model: Model) -> Option<String> {
    match check_transactions(records, model) {
        Err(anomaly) => Some(anomaly.to_string()),
        // Deletions may leave open which version a read of an absent key saw.
        Ok(summary) if !summary.unjudged.is_empty() => Some(summary.to_string()),
        Ok(_) => None,
    }
}

/// Whether an op that changed nothing has read an outdated value.
pub(crate) fn had_stale_reads(seen: &Seen, risks: Risks<'_>) -> bool {
    judge_singles(seen, risks, |_| true).is_some()
}

/// A contradiction among those ops on single keys that `counts` admits.
fn judge_singles(
    seen: &Seen,
    risks: Risks<'_>,
    counts: impl Fn(&Operation) -> bool,
) -> Option<String> {
    let operations = &seen.history.operations;
    let singles = History {
        header: seen.history.header.clone(),
        operations: operations.iter().filter(|op| counts(op)).cloned().collect(),
    };
    let report = check_history_with_losses(&singles, |key| risks.by_group.of(&key.0));
    (report.verdict() == Verdict::Violation).then(|| report.to_string())
}

/// Whether an op is known to have changed nothing.
fn changed_nothing(op: &Operation) -> bool {
    let Outcome::Done { answer, .. } = &op.outcome else { return false };
    match op.action {
        Action::Get => true,
        Action::Del | Action::SetNx(_) | Action::Cas { .. } => *answer == Answer::Integer(0),
        Action::Set(_) | Action::Incr(_) | Action::GetSet(_) | Action::Append(_) => false,
        Action::Command(ref command) => command.changes_nothing(answer),
    }
}

/// Whether a client waited for an op during one of these times.
fn overlaps(op: &Operation, times: &[(u64, u64)]) -> bool {
    let end = op.done_at().unwrap_or(u64::MAX);
    times.iter().any(|(from, to)| op.invoke < *to && *from < end)
}

/// One more read of each key that clients used, after all their ops: the content that the replicas
/// hold. The content of a key that expires shows nothing.
pub(crate) fn last_reads(history: &TxnHistory, contents: &[Entry], time: u64) -> Vec<Operation> {
    let contents: BTreeMap<&[u8], &Entry> =
        contents.iter().map(|entry| (entry.0.as_bytes(), entry)).collect();
    let keys = history.operations.iter().map(|op| &op.key).filter(|key| !lapses::expires(key));
    let keys: BTreeSet<&Bytes> = keys.collect();
    let read = |key: &Bytes| {
        let held = contents.get(&key.0[..]).copied();
        let (action, answer) = if key.0.starts_with(collections::PREFIX.as_bytes()) {
            collections::last_read(held)
        } else {
            let value = held.map(|(_, _, value)| Bytes::from(value.as_str()));
            (Action::Get, Answer::Value(value))
        };
        let outcome = Outcome::Done { at: time + 1, answer };
        Operation { process: u64::MAX, key: key.clone(), action, invoke: time, outcome }
    };
    keys.into_iter().map(read).collect()
}

/// An element that a committed transaction appended and that is missing at the end. Without an
/// order of real time the checker of histories could put every later reader before the append.
pub(crate) fn lost_appends(
    history: &TxnHistory,
    contents: &[Entry],
    risks: Risks<'_>,
) -> Option<String> {
    let elements_of = |(key, _, value): &Entry| match key {
        key if key.starts_with("list:") => split_list(Some(value.as_bytes())),
        key if key.starts_with(parts::LISTS) => collections::elements_of(value),
        _ => None,
    };
    let lists = contents.iter().filter_map(|entry| Some((entry.0.as_str(), elements_of(entry)?)));
    let lists: BTreeMap<&str, Vec<Bytes>> = lists.collect();
    let committed = history.transactions.iter().filter(|record| record.committed_at().is_some());
    let committed = committed.filter(|record| !risks.takes(record));
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A client sets a key from 10 to 20, and another one reads that it is absent from 30 to 40.
    fn lost_set() -> Seen {
        let op = |process, action, invoke, answer| Operation {
            process,
            key: Bytes::from("key:0"),
            action,
            invoke,
            outcome: Outcome::Done { at: invoke + 10, answer },
        };
        let set = op(0, Action::Set(Bytes::from("v")), 10, Answer::Ok);
        let get = op(1, Action::Get, 30, Answer::Value(None));
        let history = TxnHistory { operations: vec![set, get], ..TxnHistory::default() };
        Seen {
            history,
            bank: TxnHistory::default(),
            queues: quorate_check::Queues::default(),
            moved: crate::moves::Moved::default(),
            complaints: Vec::new(),
        }
    }

    #[test]
    fn a_read_may_be_old_while_a_clock_runs_wrong_and_at_no_other_time() {
        let seen = lost_set();
        for unleased in [&[][..], &[(0, 29), (41, 50)]] {
            let wrong = contradiction(&seen, None, unleased, Risks::NONE);
            assert!(wrong.is_some(), "{unleased:?}");
        }
        for unleased in [(0, 31), (35, 36), (39, 50)] {
            let wrong = contradiction(&seen, None, &[unleased], Risks::NONE);
            assert_eq!(wrong, None, "{unleased:?}");
        }
    }

    #[test]
    fn an_acknowledged_set_is_there_at_the_end_whatever_clocks_did() {
        let unleased = [(0, 45)];
        let entry = |value: &str| ("key:0".to_owned(), String::new(), value.to_owned());
        for (contents, is_right) in
            [(vec![entry("v")], true), (vec![entry("u")], false), (vec![], false)]
        {
            let mut seen = lost_set();
            let last = last_reads(&seen.history, &contents, 50);
            seen.history.operations.extend(last);
            let wrong = contradiction(&seen, None, &unleased, Risks::NONE);
            assert_eq!(wrong.is_none(), is_right, "{contents:?}");
        }
    }
}
