//! Direct checks of one key: linearizability implies each of them, each takes linear time, and each
//! says in one sentence what went wrong.

use std::collections::HashMap;

use crate::history::{Action, Answer, Bytes, Initial, Operation, Outcome};

/// Finds anomalies of one key that need no search. The operations may be in any order.
pub(crate) fn check(operations: &[&Operation], initial: Initial) -> Vec<String> {
    let mut anomalies = phantom_reads(operations, initial);
    if initial == Initial::Absent {
        anomalies.extend(missing_writes(operations));
        anomalies.extend(counter_total(operations));
    }
    anomalies
}

/// The value that an operation saw in the key, where its answer names it.
pub(crate) fn value_seen(operation: &Operation) -> Option<&Bytes> {
    match &operation.outcome {
        Outcome::Done { answer: Answer::Value(value), .. } => value.as_ref(),
        _ => None,
    }
}

/// The value that an operation stores as a whole, if it takes effect.
pub(crate) fn value_stored(operation: &Operation) -> Option<&Bytes> {
    match &operation.action {
        Action::Set(value)
        | Action::GetSet(value)
        | Action::SetNx(value)
        | Action::Cas { value, .. } => Some(value),
        Action::Get | Action::Del | Action::Incr(_) | Action::Append(_) | Action::Command(_) => {
            None
        }
    }
}

/// Reads of values that no operation can have written, on keys whose values are only stored whole.
fn phantom_reads(operations: &[&Operation], initial: Initial) -> Vec<String> {
    let derived = |operation: &&Operation| {
        matches!(operation.action, Action::Incr(_) | Action::Append(_) | Action::Command(_))
            && !matches!(operation.outcome, Outcome::Refused { .. })
    };
    if initial == Initial::Any || operations.iter().any(derived) {
        return Vec::new();
    }
    let mut writers: HashMap<&Bytes, Vec<&Operation>> = HashMap::new();
    for operation in operations {
        if let Some(value) = value_stored(operation) {
            writers.entry(value).or_default().push(operation);
        }
    }
    let mut anomalies = Vec::new();
    for reader in operations {
        let Some(value) = value_seen(reader) else { continue };
        let writers = writers.get(value).map_or(&[][..], Vec::as_slice);
        let real = |w: &&&Operation| !matches!(w.outcome, Outcome::Refused { .. });
        let read_at = reader.done_at();
        if writers.iter().any(|w| real(&w) && Some(w.invoke) <= read_at) {
            continue;
        }
        let later = writers.iter().find(real);
        anomalies.push(match (later, writers.first()) {
            (Some(writer), _) => {
                format!("a value was read before it was written\n  {reader}\n  {writer}")
            }
            (None, Some(writer)) => {
                format!("the effect of a refused operation was read\n  {writer}\n  {reader}")
            }
            (None, None) => format!("a value that nobody wrote was read\n  {reader}"),
        });
    }
    anomalies
}

/// Acknowledged writes that a later read does not show, on keys that are only read and set, with
/// a different value each time.
///
/// A write is missing if the read began after its acknowledgement, yet saw a value whose own
/// write had been acknowledged before the missing one began, or saw nothing.
fn missing_writes(operations: &[&Operation]) -> Vec<String> {
    let mut writer_of: HashMap<&Bytes, &Operation> = HashMap::new();
    let mut writes: Vec<(u64, &Operation)> = Vec::new();
    let mut reads: Vec<(&Operation, Option<&Bytes>)> = Vec::new();
    for &operation in operations {
        match (&operation.action, &operation.outcome) {
            (_, Outcome::Refused { .. }) => {}
            (Action::Set(value), outcome) => {
                if writer_of.insert(value, operation).is_some() {
                    return Vec::new();
                }
                if let Outcome::Done { at, .. } = outcome {
                    writes.push((*at, operation));
                }
            }
            (Action::Get, Outcome::Done { answer: Answer::Value(value), .. }) => {
                reads.push((operation, value.as_ref()));
            }
            (Action::Get, _) => {}
            _ => return Vec::new(),
        }
    }
    writes.sort_unstable_by_key(|(at, _)| *at);
    reads.sort_unstable_by_key(|(read, _)| read.invoke);
    let mut anomalies = Vec::new();
    let mut acknowledged = writes.into_iter().peekable();
    // Of the writes acknowledged before a read begins, the one that began last is the strictest.
    let mut newest: Option<&Operation> = None;
    for (read, value) in reads {
        while let Some((_, write)) = acknowledged.next_if(|(at, _)| *at < read.invoke) {
            newest = newest.filter(|newest| newest.invoke >= write.invoke).or(Some(write));
        }
        let Some(missing) = newest else { continue };
        let seen = value.and_then(|value| writer_of.get(value));
        let is_older = match (value, seen) {
            (None, _) => true,
            (Some(_), Some(writer)) => writer.done_at().is_some_and(|at| at < missing.invoke),
            (Some(_), None) => false,
        };
        if is_older {
            let older = seen.map(|writer| format!("\n  {writer}")).unwrap_or_default();
            anomalies.push(format!(
                "an acknowledged write is missing from a later read{older}\n  {missing}\n  {read}"
            ));
        }
    }
    anomalies
}

/// Totals out of bounds, on keys that are only incremented and read.
///
/// A read that begins after every acknowledged increment has returned shows their sum, plus any
/// part of the unknown ones.
fn counter_total(operations: &[&Operation]) -> Vec<String> {
    let mut acknowledged: i128 = 0;
    let mut unknown: (i128, i128) = (0, 0);
    let mut settled = 0;
    let mut increments: u64 = 0;
    let mut reads = Vec::new();
    for operation in operations {
        match (&operation.action, &operation.outcome) {
            (_, Outcome::Refused { .. }) | (Action::Get, Outcome::Unknown) => {}
            (Action::Incr(by), Outcome::Done { at, answer: Answer::Integer(_) }) => {
                acknowledged += i128::from(*by);
                increments += 1;
                settled = settled.max(*at);
            }
            (Action::Incr(by), Outcome::Unknown) => {
                unknown.0 += i128::from((*by).min(0));
                unknown.1 += i128::from((*by).max(0));
                increments += 1;
            }
            (Action::Get, Outcome::Done { answer: Answer::Value(value), .. }) => {
                reads.push((operation, value.as_ref()));
            }
            _ => return Vec::new(),
        }
    }
    if increments == 0 {
        return Vec::new();
    }
    let (least, most) = (acknowledged + unknown.0, acknowledged + unknown.1);
    let mut anomalies = Vec::new();
    for (read, value) in reads.into_iter().filter(|(read, _)| read.invoke > settled) {
        let text = value.map_or(Some("0"), |value| std::str::from_utf8(&value.0).ok());
        let Some(total) = text.and_then(|text| text.parse::<i128>().ok()) else { continue };
        let what = match total {
            _ if total < least => "an acknowledged increment is lost",
            _ if total > most => "an increment took effect twice",
            _ => continue,
        };
        anomalies.push(format!(
            "{what}: the acknowledged increments add up to {acknowledged}, with the unknown ones \
             the total lies between {least} and {most}, but {total} was read\n  {read}"
        ));
    }
    anomalies
}
