//! Operations on single keys, seen as transactions of one operation.

use std::collections::BTreeMap;

use crate::history::{Action, Answer, Bytes, Operation, Outcome};
use crate::txn::{TxnHistory, TxnOp, TxnOutcome, TxnRecord, split_list};

/// All transactions of a history, and the keys whose operations can't be seen as reads and writes
/// of values that are known.
pub(crate) fn all_transactions(history: &TxnHistory) -> (Vec<TxnRecord>, Vec<(Bytes, String)>) {
    let mut records = history.transactions.clone();
    let mut unjudged = BTreeMap::new();
    let lists: BTreeMap<&Bytes, ()> = list_keys(history);
    let mut id = records.iter().map(|record| record.id).max().map_or(0, |id| id.wrapping_add(1));
    for operation in &history.operations {
        match steps(operation, lists.contains_key(&operation.key)) {
            Ok(ops) if ops.is_empty() => {}
            Ok(ops) => {
                records.push(record(operation, id, ops));
                id = id.wrapping_add(1);
            }
            Err(reason) => {
                unjudged.insert(operation.key.clone(), reason);
            }
        }
    }
    (records, unjudged.into_iter().collect())
}

/// Keys that hold lists: somebody appends to them.
fn list_keys(history: &TxnHistory) -> BTreeMap<&Bytes, ()> {
    let in_transactions = history.transactions.iter().flat_map(|record| &record.ops);
    let in_transactions = in_transactions
        .filter(|op| matches!(op, TxnOp::Append { .. } | TxnOp::ReadList { .. }))
        .map(TxnOp::key);
    let alone = history.operations.iter();
    let alone = alone.filter(|o| matches!(o.action, Action::Append(_))).map(|o| &o.key);
    in_transactions.chain(alone).map(|key| (key, ())).collect()
}

fn record(operation: &Operation, id: u64, ops: Vec<TxnOp>) -> TxnRecord {
    let outcome = match operation.outcome {
        Outcome::Done { at, .. } => TxnOutcome::Committed { at },
        Outcome::Refused { at } => TxnOutcome::Aborted { at },
        Outcome::Unknown => TxnOutcome::Unknown,
    };
    let (process, invoke) = (operation.process, operation.invoke);
    TxnRecord { process, id, invoke, outcome, timestamp: None, ops }
}

/// What an operation read and wrote, as far as that is known. An answer that only says what a key
/// did not hold is left out.
fn steps(operation: &Operation, list: bool) -> Result<Vec<TxnOp>, String> {
    let key = &operation.key;
    let read = |value: Option<Bytes>| match list {
        false => Ok(TxnOp::read(key.clone(), value)),
        true => match split_list(value.as_ref().map(|value| value.0.as_slice())) {
            Some(elements) => Ok(TxnOp::read_list(key.clone(), elements)),
            None => Err("it is appended to, but does not hold a list".to_owned()),
        },
    };
    let write = |value: Bytes| TxnOp::write(key.clone(), Some(value));
    let answer = match &operation.outcome {
        Outcome::Done { answer, .. } => Some(answer),
        Outcome::Refused { .. } | Outcome::Unknown => None,
    };
    let number = match answer {
        Some(Answer::Integer(n)) => Some(*n),
        _ => None,
    };
    Ok(match &operation.action {
        Action::Get => match answer {
            Some(Answer::Value(value)) => vec![read(value.clone())?],
            _ => Vec::new(),
        },
        Action::Set(value) => vec![write(value.clone())],
        Action::GetSet(value) => match answer {
            Some(Answer::Value(before)) => vec![read(before.clone())?, write(value.clone())],
            _ => vec![write(value.clone())],
        },
        Action::Del if number == Some(0) => vec![read(None)?],
        Action::Del => vec![TxnOp::write(key.clone(), None)],
        Action::SetNx(value) => match number {
            Some(0) => Vec::new(),
            Some(_) => vec![read(None)?, write(value.clone())],
            None => vec![write(value.clone())],
        },
        Action::Cas { expected, value } => match number {
            Some(0) => Vec::new(),
            Some(_) => vec![read(expected.clone())?, write(value.clone())],
            None => vec![write(value.clone())],
        },
        Action::Incr(by) => incremented(operation, *by, number)?,
        Action::Append(argument) => match split_list(Some(&argument.0)).as_deref() {
            Some([element]) => vec![TxnOp::append(key.clone(), element.clone())],
            _ => return Err(format!("{argument} was appended, which is not one element")),
        },
    })
}

fn incremented(operation: &Operation, by: i64, sum: Option<i64>) -> Result<Vec<TxnOp>, String> {
    let key = &operation.key;
    let text = |n: i64| Some(Bytes::from(n.to_string()));
    match (&operation.outcome, sum) {
        (Outcome::Refused { .. }, _) => Ok(Vec::new()),
        (Outcome::Unknown, _) => {
            Err("what an increment of unknown outcome would have written is not known".to_owned())
        }
        (Outcome::Done { .. }, None) => Ok(Vec::new()),
        // An absent key counts as 0, so it may have been either.
        (Outcome::Done { .. }, Some(sum)) if sum == by => {
            Ok(vec![TxnOp::write(key.clone(), text(sum))])
        }
        (Outcome::Done { .. }, Some(sum)) => Ok(vec![
            TxnOp::read(key.clone(), text(sum.wrapping_sub(by))),
            TxnOp::write(key.clone(), text(sum)),
        ]),
    }
}
