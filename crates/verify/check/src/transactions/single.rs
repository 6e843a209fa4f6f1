//! Operations on single keys, seen as transactions of one operation.

use std::collections::BTreeMap;

use crate::direct::value_seen;
use crate::history::{Action, Answer, Bytes, Operation, Outcome};
use crate::txn::{TxnHistory, TxnOp, TxnOutcome, TxnRecord, list_argument, split_list};

use super::access::{Condition, Conditions};

/// All transactions of a history.
#[derive(Debug, Default)]
pub(crate) struct AllTransactions {
    pub(crate) records: Vec<TxnRecord>,
    pub(super) conditions: Conditions,
    /// Keys whose operations can't be seen as reads and writes of known values, and why. No record
    /// touches them.
    pub(crate) unjudged: Vec<(Bytes, String)>,
}

/// All transactions of a history: its own, and its operations on keys that `wanted` admits.
pub(crate) fn all_transactions(
    history: &TxnHistory,
    wanted: impl Fn(&Bytes) -> bool,
) -> AllTransactions {
    let mut all = AllTransactions { records: history.transactions.clone(), ..Default::default() };
    let mut unjudged = BTreeMap::new();
    let lists = longest_lists(history);
    let ids = all.records.iter().map(|record| record.id);
    let mut id = ids.max().map_or(0, |id| id.wrapping_add(1));
    for operation in history.operations.iter().filter(|operation| wanted(&operation.key)) {
        match Steps::new(operation, lists.get(&operation.key)) {
            Ok(Steps { ops, condition: None }) if ops.is_empty() => {}
            Ok(Steps { ops, condition }) => {
                let key = &operation.key;
                let condition = condition.map(|condition| (key.clone(), condition));
                all.conditions.extend(condition.map(|condition| (all.records.len(), condition)));
                all.records.push(record(operation, id, ops));
                id = id.wrapping_add(1);
            }
            Err(reason) => {
                unjudged.insert(operation.key.clone(), reason);
            }
        }
    }
    // The remaining operations on such a key would lack writes whose effects others saw.
    all.records.iter_mut().for_each(|r| r.ops.retain(|op| !unjudged.contains_key(op.key())));
    all.conditions.retain(|_, (key, _)| !unjudged.contains_key(key));
    all.unjudged = unjudged.into_iter().collect();
    all
}

/// The longest list that an operation saw in each key that operations append to.
fn longest_lists(history: &TxnHistory) -> BTreeMap<&Bytes, Vec<Bytes>> {
    let mut longest: BTreeMap<&Bytes, Vec<Bytes>> = BTreeMap::new();
    for op in history.transactions.iter().flat_map(|record| &record.ops) {
        if matches!(op, TxnOp::Append { .. } | TxnOp::ReadList { .. }) {
            longest.entry(op.key()).or_default();
        }
    }
    for operation in &history.operations {
        if matches!(operation.action, Action::Append(_)) {
            longest.entry(&operation.key).or_default();
        }
    }
    let mut see = |key: &Bytes, elements: &[Bytes]| {
        if let Some(known) = longest.get_mut(key).filter(|known| known.len() < elements.len()) {
            *known = elements.to_vec();
        }
    };
    let committed = |record: &&TxnRecord| record.committed_at().is_some();
    for op in history.transactions.iter().filter(committed).flat_map(|record| &record.ops) {
        if let TxnOp::ReadList { key, elements, .. } = op {
            see(key, elements);
        }
    }
    for operation in &history.operations {
        if let Some(elements) = value_seen(operation).and_then(|text| split_list(Some(&text.0))) {
            see(&operation.key, &elements);
        }
    }
    longest
}

/// The beginning of a list that has so many bytes as a Redis string.
fn of_length(elements: &[Bytes], length: u64) -> Option<&[Bytes]> {
    let mut bytes = 0;
    let ends = elements.iter().map(|element| {
        bytes += list_argument(&element.0).len() as u64;
        bytes
    });
    let count = std::iter::once(0).chain(ends).position(|end| end == length)?;
    Some(&elements[..count])
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

/// The reads and writes of an operation, as far as they are known.
#[derive(Default)]
struct Steps {
    ops: Vec<TxnOp>,
    condition: Option<Condition>,
}

impl From<Vec<TxnOp>> for Steps {
    fn from(ops: Vec<TxnOp>) -> Self {
        Self { ops, condition: None }
    }
}

impl Steps {
    /// `list` is the longest list that any operation saw in the key, if it holds one.
    fn new(operation: &Operation, list: Option<&Vec<Bytes>>) -> Result<Self, String> {
        let key = &operation.key;
        let read = |value: Option<Bytes>| match list {
            None => Ok(TxnOp::read(key.clone(), value)),
            Some(_) => match split_list(value.as_ref().map(|value| value.0.as_slice())) {
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
        let not = |value| Self { ops: Vec::new(), condition: Some(Condition::Not(value)) };
        Ok(match &operation.action {
            Action::Get => match answer {
                Some(Answer::Value(value)) => vec![read(value.clone())?].into(),
                _ => Self::default(),
            },
            Action::Set(value) => vec![write(value.clone())].into(),
            Action::GetSet(value) => match answer {
                Some(Answer::Value(before)) => {
                    vec![read(before.clone())?, write(value.clone())].into()
                }
                _ => vec![write(value.clone())].into(),
            },
            Action::Del => match number {
                Some(0) => vec![read(None)?].into(),
                Some(_) => Self { ops: vec![TxnOp::write(key.clone(), None)], ..not(None) },
                None => vec![TxnOp::write(key.clone(), None)].into(),
            },
            Action::SetNx(value) => match number {
                Some(0) => not(None),
                Some(_) => vec![read(None)?, write(value.clone())].into(),
                None => vec![write(value.clone())].into(),
            },
            Action::Cas { expected, value } => match number {
                Some(0) => not(expected.clone()),
                Some(_) => vec![read(expected.clone())?, write(value.clone())].into(),
                None => vec![write(value.clone())].into(),
            },
            Action::Command(_) => {
                return Err("commands on collections are judged on their key alone".to_owned());
            }
            Action::Incr(by) => Self::incremented(operation, *by, number)?,
            Action::Append(argument) => {
                let length = number.map(|n| n.saturating_sub(argument.0.len() as i64));
                let length = length.and_then(|before| u64::try_from(before).ok());
                Self::appended(key, argument, length, list.map_or(&[], Vec::as_slice))?
            }
        })
    }

    fn incremented(operation: &Operation, by: i64, sum: Option<i64>) -> Result<Self, String> {
        let key = &operation.key;
        let text = |n: i64| Bytes::from(n.to_string());
        let write = |sum| TxnOp::write(key.clone(), Some(text(sum)));
        match (&operation.outcome, sum) {
            (Outcome::Refused { .. }, _) => Ok(Self::default()),
            (Outcome::Unknown, _) => {
                Err("what an increment of unknown outcome would have written \
                                          is not known"
                    .to_owned())
            }
            (Outcome::Done { .. }, None) => {
                Ok(Self { ops: Vec::new(), condition: Some(Condition::NotAddable(by)) })
            }
            // An absent key counts as 0, so the key held 0 or was absent.
            (Outcome::Done { .. }, Some(sum)) if sum == by => {
                Ok(Self { ops: vec![write(sum)], condition: Some(Condition::AbsentOr(text(0))) })
            }
            (Outcome::Done { .. }, Some(sum)) => {
                let before = TxnOp::read(key.clone(), Some(text(sum.wrapping_sub(by))));
                Ok(vec![before, write(sum)].into())
            }
        }
    }

    /// `before` is the length of the list without the new element, if the answer tells it. It also
    /// names the elements where a read saw a longer list, since every list is the beginning of a
    /// longer one.
    fn appended(
        key: &Bytes,
        argument: &Bytes,
        before: Option<u64>,
        longest: &[Bytes],
    ) -> Result<Self, String> {
        let elements = split_list(Some(&argument.0)).unwrap_or_default();
        let [element] = elements.as_slice() else {
            return Err(format!("{argument} was appended, which is not one element"));
        };
        let append = TxnOp::append(key.clone(), element.clone());
        Ok(match before.map(|length| (length, of_length(longest, length))) {
            None => vec![append].into(),
            Some((_, Some(elements))) => {
                vec![TxnOp::read_list(key.clone(), elements.to_vec()), append].into()
            }
            Some((length, None)) => {
                Self { ops: vec![append], condition: Some(Condition::Length(length)) }
            }
        })
    }
}
