//! Agreement with a checker that tries every order, on every kind of tiny history.

use quorate_check::{Action, Answer, Bytes, Operation, Outcome, Verdict, check_history};
use quorate_machine::Rng;

use crate::support::history;

type Value = Option<Vec<u8>>;

/// The key after `action`, and the answer. Written apart from the checker's model, on purpose.
pub(crate) fn run(action: &Action, state: &Value) -> (Value, Answer) {
    let flag = |yes| Answer::Integer(i64::from(yes));
    match action {
        Action::Get => (state.clone(), Answer::Value(state.clone().map(Bytes))),
        Action::Set(value) => (Some(value.0.clone()), Answer::Ok),
        Action::Del => (None, flag(state.is_some())),
        Action::Incr(by) => {
            let text = state.clone().unwrap_or_else(|| b"0".to_vec());
            let number = String::from_utf8(text.clone()).ok().and_then(|t| t.parse::<i64>().ok());
            let canonical = number.filter(|n| n.to_string().as_bytes() == text);
            match canonical.and_then(|n| n.checked_add(*by)) {
                Some(sum) => (Some(sum.to_string().into_bytes()), Answer::Integer(sum)),
                None => (state.clone(), Answer::Error("ERR".into())),
            }
        }
        Action::GetSet(value) => (Some(value.0.clone()), Answer::Value(state.clone().map(Bytes))),
        Action::SetNx(_) if state.is_some() => (state.clone(), flag(false)),
        Action::SetNx(value) => (Some(value.0.clone()), flag(true)),
        Action::Cas { expected, value } => {
            if expected.as_ref().map(|e| &e.0) == state.as_ref() {
                (Some(value.0.clone()), flag(true))
            } else {
                (state.clone(), flag(false))
            }
        }
        Action::Command(_) => unreachable!("collections have a run of their own"),
        Action::Append(tail) => {
            let joined = [state.clone().unwrap_or_default(), tail.0.clone()].concat();
            let length = joined.len() as i64;
            (Some(joined), Answer::Integer(length))
        }
    }
}

/// Whether the operations of `rest`, a bit each, can follow one another from `state`.
pub(crate) fn has_order<S>(
    operations: &[Operation],
    rest: u32,
    state: &S,
    run: fn(&Action, &S) -> (S, Answer),
) -> bool {
    let left = || (0..operations.len()).filter(move |i| rest & 1 << i != 0);
    let must = |i: &usize| operations[*i].done_at().is_some();
    if !left().any(|i| must(&i)) {
        return true;
    }
    left().any(|i| {
        let operation = &operations[i];
        if matches!(operation.outcome, Outcome::Refused { .. }) {
            return false;
        }
        if left().any(|j| operations[j].done_at().is_some_and(|at| at < operation.invoke)) {
            return false;
        }
        let (next, answer) = run(&operation.action, state);
        let fits = match &operation.outcome {
            Outcome::Done { answer: seen, .. } => *seen == answer,
            _ => true,
        };
        fits && has_order(operations, rest & !(1 << i), &next, run)
    })
}

fn pick<'a>(rng: &mut Rng, from: &[&'a str]) -> &'a str {
    from[rng.below(from.len() as u64) as usize]
}

fn random_action(rng: &mut Rng, kinds: &[u64]) -> Action {
    // Few values, some of them numbers and prefixes of each other, so that effects collide.
    let value = |rng: &mut Rng| Bytes::from(pick(rng, &["1", "2", "12", "x", "y"]));
    match kinds[rng.below(kinds.len() as u64) as usize] {
        0 => Action::Get,
        1 => Action::Set(value(rng)),
        2 => Action::Del,
        3 => Action::Incr([1, 1, 2, -1][rng.below(4) as usize]),
        4 => Action::GetSet(value(rng)),
        5 => Action::SetNx(value(rng)),
        6 => {
            let expected = rng.chance(2, 3).then(|| value(rng));
            Action::Cas { expected, value: value(rng) }
        }
        7 => Action::Incr(1 + rng.below(2) as i64),
        _ => Action::Append(pick(rng, &["1", "2", "x"]).into()),
    }
}

/// A history whose answers are right for a random order, some of them then spoiled.
fn random_history(rng: &mut Rng, kinds: &[u64]) -> Vec<Operation> {
    let count = 2 + rng.below(6);
    // Short spans make little overlap, long ones much.
    let span = 1 + rng.below(8);
    let mut state = None;
    let mut operations = Vec::new();
    for i in 0..count {
        let action = random_action(rng, kinds);
        let point = i * 2;
        let invoke = point.saturating_sub(rng.below(span));
        let at = point + rng.below(span);
        let (next, answer) = run(&action, &state);
        let outcome = match rng.below(10) {
            0 => {
                if rng.chance(1, 2) {
                    state = next;
                }
                Outcome::Unknown
            }
            1 => Outcome::Refused { at },
            2 => {
                // An answer that the action gives in another state.
                let other = rng.chance(3, 4).then(|| pick(rng, &["1", "2", "12", "x", "y"]).into());
                let (_, answer) = run(&action, &other);
                state = next;
                Outcome::Done { at, answer }
            }
            _ => {
                state = next;
                Outcome::Done { at, answer }
            }
        };
        operations.push(Operation { process: i, key: "k".into(), action, invoke, outcome });
    }
    operations
}

/// A history with much overlap, in which every fourth outcome is unknown and its operation takes
/// effect at any time after its invoke, or never. Some answers are spoiled in half of the
/// histories.
fn random_overlap(rng: &mut Rng, kinds: &[u64]) -> Vec<Operation> {
    let count = 5 + rng.below(4);
    let mut points = Vec::new();
    let mut operations = Vec::new();
    for process in 0..count {
        let action = random_action(rng, kinds);
        let invoke = rng.below(40);
        let at = invoke + rng.below(20);
        let is_unknown = rng.chance(1, 4);
        let point = invoke + rng.below(if is_unknown { 40 } else { at - invoke + 1 });
        if !is_unknown || rng.chance(3, 4) {
            points.push((point, process as usize));
        }
        let outcome = match is_unknown {
            true => Outcome::Unknown,
            false => Outcome::Done { at, answer: Answer::Ok },
        };
        operations.push(Operation { process, key: "k".into(), action, invoke, outcome });
    }
    points.sort_unstable();
    let is_spoiled = rng.chance(1, 2);
    let mut state = None;
    for (_, index) in points {
        let Operation { action, outcome, .. } = &mut operations[index];
        let (next, answer) = run(action, &state);
        if let Outcome::Done { answer: seen, .. } = outcome {
            let other = rng.chance(2, 3).then(|| pick(rng, &["1", "2", "12", "x", "y"]).into());
            let is_wrong = is_spoiled && rng.chance(1, 2);
            *seen = if is_wrong { run(action, &other).1 } else { answer };
        }
        state = next;
    }
    operations
}

type Generator = fn(&mut Rng, &[u64]) -> Vec<Operation>;

fn agree(seed: u64, rounds: u32, kinds: &[u64]) {
    agree_on(random_history, seed, rounds, kinds);
}

fn agree_on(generator: Generator, seed: u64, rounds: u32, kinds: &[u64]) {
    let mut rng = Rng::new(seed);
    let mut accepted = 0;
    for round in 0..rounds {
        let operations = generator(&mut rng, kinds);
        let expected = has_order(&operations, (1 << operations.len()) - 1, &None, run);
        let history = history(operations);
        let report = check_history(&history);
        let found = report.verdict() == Verdict::Ok;
        assert_ne!(report.verdict(), Verdict::Undecided, "{report}");
        assert_eq!(found, expected, "round {round}: {:#?}\n{report}", history.operations);
        accepted += u32::from(found);
    }
    // Both answers must be common, or the agreement says little.
    assert!(accepted > rounds / 10 && accepted < rounds - rounds / 10, "{accepted} of {rounds}");
}

#[test]
fn agrees_on_registers() {
    agree(1, 20_000, &[0, 0, 1]);
}

#[test]
fn agrees_on_registers_with_deletes_and_swaps() {
    agree(2, 20_000, &[0, 1, 2, 4]);
}

#[test]
fn agrees_on_counters() {
    agree(3, 20_000, &[0, 3, 3]);
}

#[test]
fn agrees_on_appends() {
    agree(4, 20_000, &[0, 1, 8, 8]);
}

#[test]
fn agrees_on_conditional_writes() {
    agree(5, 20_000, &[0, 1, 2, 5, 6, 6]);
}

#[test]
fn agrees_on_everything_at_once() {
    agree(6, 40_000, &[0, 1, 2, 3, 4, 5, 6, 8]);
}

#[test]
fn agrees_on_counters_that_only_rise() {
    agree(7, 20_000, &[0, 7, 7]);
}

#[test]
fn agrees_on_texts_that_only_grow() {
    agree(8, 20_000, &[0, 8, 8]);
}

#[test]
fn agrees_where_operations_of_unknown_outcome_overlap_others() {
    agree_on(random_overlap, 9, 20_000, &[0, 1, 2, 3, 4, 5, 6, 8]);
    agree_on(random_overlap, 10, 20_000, &[0, 1, 2, 3]);
    agree_on(random_overlap, 11, 20_000, &[0, 1, 2, 4]);
    agree_on(random_overlap, 12, 20_000, &[1, 2, 3, 5]);
}
