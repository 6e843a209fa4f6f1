//! The accesses of transactions to single keys, as operations: the part of a history that the
//! search on single keys can judge.
//!
//! A transaction that reads a key and changes it is one operation where there is one that does
//! both, and else two of the same time, which says less.

use std::collections::{BTreeMap, BTreeSet};

use crate::history::{Action, Answer, Bytes, Operation, Outcome};
use crate::txn::{TxnOutcome, TxnRecord, list_argument};

use super::access::{Access, Conditions, Index, Seen};

/// The operations of each key: those of the history, and those that stand for accesses of its
/// transactions.
pub(super) fn by_key(
    operations: &[Operation],
    records: &[TxnRecord],
) -> BTreeMap<Bytes, Vec<Operation>> {
    let mut keys: BTreeMap<Bytes, Vec<Operation>> = BTreeMap::new();
    // Keys that may hold an empty value: the key is present, and yet the same list as an absent
    // one.
    let mut texts: BTreeSet<&Bytes> = BTreeSet::new();
    for operation in operations {
        if !matches!(operation.action, Action::Get | Action::Append(_) | Action::Del) {
            texts.insert(&operation.key);
        }
        keys.entry(operation.key.clone()).or_default().push(operation.clone());
    }
    let conditions = Conditions::new();
    let index = Index::new(records, &conditions);
    for access in &index.accesses {
        let (key, uses) = (index.key(access.key), index.uses[access.key as usize]);
        let answers = match (uses.register, uses.list) {
            (true, true) => continue,
            // A list that only transactions touch is judged in full by the check of lists.
            (_, true) if !keys.contains_key(key) => continue,
            (_, true) => of_list(access, !texts.contains(key)),
            _ => of_register(access),
        };
        let record = &index.records[access.txn as usize];
        let answers = answers.into_iter().filter_map(|answered| operation(record, key, answered));
        keys.entry(key.clone()).or_default().extend(answers);
    }
    keys
}

/// An action, and its answer if it took effect. [`Answer::Ok`] stands for an answer that is not
/// known.
type Answered = (Action, Answer);

fn operation(record: &TxnRecord, key: &Bytes, (action, answer): Answered) -> Option<Operation> {
    let outcome = match record.outcome {
        TxnOutcome::Committed { at } => Outcome::Done { at, answer },
        // A read counts for nothing unless its transaction took effect.
        _ if action == Action::Get => return None,
        TxnOutcome::Aborted { at } => Outcome::Refused { at },
        TxnOutcome::Unknown => Outcome::Unknown,
    };
    let (process, invoke) = (record.process, record.invoke);
    Some(Operation { process, key: key.clone(), action, invoke, outcome })
}

fn of_register(access: &Access<'_>) -> Vec<Answered> {
    let seen = match access.read {
        Some(Seen::Value(value)) => Some(Answer::Value(value.cloned())),
        _ => None,
    };
    let get = |seen: Answer| (Action::Get, seen);
    match (access.written.last(), seen) {
        (None, seen) => seen.map(get).into_iter().collect(),
        (Some(Some(value)), Some(seen)) => vec![(Action::GetSet((*value).clone()), seen)],
        (Some(Some(value)), None) => vec![(Action::Set((*value).clone()), Answer::Ok)],
        (Some(None), seen) => {
            seen.map(get).into_iter().chain([(Action::Del, Answer::Ok)]).collect()
        }
    }
}

/// The access as operations on the Redis string that holds the list. An empty list may be an absent
/// key or an empty string.
fn of_list(access: &Access<'_>, absent_if_empty: bool) -> Vec<Answered> {
    let text = |elements: &mut dyn Iterator<Item = &Bytes>| {
        Bytes(elements.flat_map(|element| list_argument(&element.0)).collect())
    };
    let seen = match access.read {
        Some(Seen::List(elements)) => Some(text(&mut elements.iter())),
        _ => None,
    };
    let mut answers = Vec::new();
    if let Some(seen) = &seen
        && (absent_if_empty || !seen.0.is_empty())
    {
        let value = Some(seen.clone()).filter(|seen| !seen.0.is_empty());
        answers.push((Action::Get, Answer::Value(value)));
    }
    if !access.appended.is_empty() {
        let added = text(&mut access.appended.iter().copied());
        let length = seen.map(|seen| seen.0.len() + added.0.len());
        let answer = length.map_or(Answer::Ok, |length| Answer::Integer(length as i64));
        answers.push((Action::Append(added), answer));
    }
    answers
}
