//! Histories of a simulated register: accepted as they are, refused once an anomaly is planted.

use std::collections::BTreeMap;

use quorate_check::{Action, Answer, History, Operation, Outcome, Verdict, check_history};
use quorate_machine::Rng;

use crate::brute_force::run;
use crate::support::history;

/// The load of a generated history.
#[derive(Clone, Copy)]
struct Load {
    clients: u64,
    operations: u64,
    /// Out of 1000 operations.
    unknown: u64,
    /// Out of 1000 operations.
    refused: u64,
    mix: Mix,
}

#[derive(Clone, Copy, PartialEq)]
enum Mix {
    Register,
    Counter,
    Append,
    Everything,
}

impl Mix {
    fn action(self, rng: &mut Rng, number: u64) -> Action {
        // Every value is written once.
        let value = || format!("v{number}").into();
        match self {
            Self::Register if rng.chance(1, 2) => Action::Set(value()),
            Self::Counter if rng.chance(2, 3) => Action::Incr(1),
            Self::Append if rng.chance(1, 2) => Action::Append(value()),
            Self::Register | Self::Counter | Self::Append => Action::Get,
            Self::Everything => match rng.below(14) {
                0 => Action::Set(value()),
                1 => Action::Set("7".into()),
                2 => Action::Del,
                3 => Action::Incr(rng.below(5) as i64 - 2),
                4 => Action::GetSet(value()),
                5 => Action::SetNx(value()),
                6 => Action::Cas { expected: Some("7".into()), value: value() },
                _ => Action::Get,
            },
        }
    }
}

/// Runs clients against one register. Each operation takes effect at one instant between its
/// invoke and its return; an unknown one much later, or never.
fn generate(rng: &mut Rng, load: Load) -> History {
    let mut operations = Vec::new();
    // Instants at which operations take effect, and the operations' indices.
    let mut points = BTreeMap::new();
    let mut free_at: Vec<u64> = (0..load.clients).collect();
    for number in 0..load.operations {
        let client = (0..free_at.len()).min_by_key(|&i| free_at[i]).expect("there are clients");
        let invoke = free_at[client] + 1 + rng.below(50);
        let point = invoke + 1 + rng.below(100);
        let at = point + 1 + rng.below(100);
        free_at[client] = at;
        let action = load.mix.action(rng, number);
        let dice = rng.below(1000);
        let (outcome, point) = if dice < load.unknown {
            let late = rng.chance(2, 3).then(|| invoke + rng.below(3000));
            (Outcome::Unknown, late)
        } else if dice < load.unknown + load.refused {
            (Outcome::Refused { at }, None)
        } else {
            (Outcome::Done { at, answer: Answer::Ok }, Some(point))
        };
        if let Some(point) = point {
            points.insert((point, number), operations.len());
        }
        let process = client as u64;
        operations.push(Operation { process, key: "k".into(), action, invoke, outcome });
    }
    let mut state = None;
    for index in points.into_values() {
        let (next, answer) = run(&operations[index].action, &state);
        state = next;
        if let Outcome::Done { answer: seen, .. } = &mut operations[index].outcome {
            *seen = answer;
        }
    }
    history(operations)
}

/// Spoils a history so that it surely has no linearization. `None` if there is no place for it.
type Plant = fn(&mut Rng, &mut Vec<Operation>) -> Option<()>;

fn any<T>(rng: &mut Rng, from: Vec<T>) -> Option<T> {
    let count = from.len() as u64;
    (count > 0).then(|| from.into_iter().nth(rng.below(count) as usize)).flatten()
}

fn is_set(operation: &&Operation) -> bool {
    matches!(operation.action, Action::Set(_))
}

fn value_of(write: &Operation) -> Option<Answer> {
    match &write.action {
        Action::Set(value) => Some(Answer::Value(Some(value.clone()))),
        _ => None,
    }
}

fn read(invoke: u64, answer: Answer) -> Operation {
    let outcome = Outcome::Done { at: invoke + 3, answer };
    Operation { process: 99, key: "k".into(), action: Action::Get, invoke, outcome }
}

/// A read of a value after the acknowledgement of a write that began after that of the value.
fn stale_read(rng: &mut Rng, operations: &mut Vec<Operation>) -> Option<()> {
    let done = || operations.iter().filter(is_set).filter(|o| o.done_at().is_some());
    let newer = any(rng, done().collect())?;
    let older = any(rng, done().filter(|o| o.done_at() < Some(newer.invoke)).collect())?;
    let stale = read(newer.done_at()? + 1, value_of(older)?);
    operations.push(stale);
    Some(())
}

/// A read of nothing after the acknowledgement of a write.
fn lost_write(rng: &mut Rng, operations: &mut Vec<Operation>) -> Option<()> {
    let write = any(rng, operations.iter().filter(is_set).collect::<Vec<_>>())?;
    let lost = read(write.done_at()? + 1, Answer::Value(None));
    operations.push(lost);
    Some(())
}

/// A read of a value that a refused write would have stored.
fn refused_read(rng: &mut Rng, operations: &mut Vec<Operation>) -> Option<()> {
    let refused = |o: &&Operation| matches!(o.outcome, Outcome::Refused { .. });
    let write = any(rng, operations.iter().filter(is_set).filter(refused).collect())?;
    let seen = read(write.invoke + 500, value_of(write)?);
    operations.push(seen);
    Some(())
}

/// A read of an older value after a read of an unknown one.
fn flicker(rng: &mut Rng, operations: &mut Vec<Operation>) -> Option<()> {
    let unknown: Vec<Answer> =
        operations.iter().filter(|o| o.outcome == Outcome::Unknown).filter_map(value_of).collect();
    let sees_unknown = |o: &&Operation| match &o.outcome {
        Outcome::Done { answer, .. } => unknown.contains(answer),
        _ => false,
    };
    let first = any(rng, operations.iter().filter(sees_unknown).collect())?;
    let before = |o: &&Operation| o.done_at().is_some_and(|at| at < first.invoke);
    let older = any(rng, operations.iter().filter(is_set).filter(before).collect())?;
    let second = read(first.done_at()? + 1, value_of(older)?);
    operations.push(second);
    Some(())
}

/// Two increments, or two appends, that were told the same result.
fn repeated_result(rng: &mut Rng, operations: &mut [Operation]) -> Option<()> {
    let told = |o: &Operation| match &o.outcome {
        Outcome::Done { answer: Answer::Integer(n), .. } => Some(*n),
        _ => None,
    };
    let all: Vec<usize> =
        (0..operations.len()).filter(|&i| told(&operations[i]).is_some()).collect();
    let (one, other) = (any(rng, all.clone())?, any(rng, all)?);
    if one == other {
        return None;
    }
    operations[one].outcome = match (&operations[one].outcome, told(&operations[other])) {
        (Outcome::Done { at, .. }, Some(n)) => {
            Outcome::Done { at: *at, answer: Answer::Integer(n) }
        }
        _ => return None,
    };
    Some(())
}

fn load(mix: Mix, operations: u64) -> Load {
    Load { clients: 6, operations, unknown: 60, refused: 30, mix }
}

#[test]
fn a_register_in_one_place_is_accepted() {
    for mix in [Mix::Register, Mix::Counter, Mix::Append, Mix::Everything] {
        for seed in 0..150 {
            let history = generate(&mut Rng::new(seed), load(mix, 150));
            let report = check_history(&history);
            assert_eq!(report.verdict(), Verdict::Ok, "seed {seed}: {report}");
        }
    }
}

fn planted(mix: Mix, plant: Plant) {
    let mut tried = 0;
    for seed in 0..150 {
        let mut rng = Rng::new(1000 + seed);
        let mut history = generate(&mut rng, load(mix, 120));
        if plant(&mut rng, &mut history.operations).is_none() {
            continue;
        }
        tried += 1;
        let report = check_history(&history);
        assert_eq!(report.verdict(), Verdict::Violation, "seed {seed}: {report}");
        // The search must find it without help from the direct checks.
        let last = &report.findings.last().expect("a violation has findings").text;
        assert!(last.contains("cannot be placed"), "seed {seed}: {report}");
    }
    assert!(tried >= 50, "only {tried} histories had a place for the anomaly");
}

#[test]
fn a_planted_stale_read_is_found() {
    planted(Mix::Register, stale_read);
}

#[test]
fn a_planted_lost_write_is_found() {
    planted(Mix::Register, lost_write);
}

#[test]
fn a_planted_read_of_a_refused_write_is_found() {
    planted(Mix::Register, refused_read);
}

#[test]
fn a_planted_disappearance_of_an_unknown_write_is_found() {
    planted(Mix::Register, flicker);
}

#[test]
fn a_planted_duplicate_increment_is_found() {
    planted(Mix::Counter, |rng, operations| repeated_result(rng, operations));
}

#[test]
fn a_planted_duplicate_append_length_is_found() {
    planted(Mix::Append, |rng, operations| repeated_result(rng, operations));
}

/// The work must grow with the history's length, not faster: at ten clients, with a percent of
/// unknown outcomes where all writes are of one kind, and with none where they are mixed.
#[test]
fn long_histories_take_linear_work() {
    for (mix, unknown) in [(Mix::Register, 10), (Mix::Counter, 10), (Mix::Everything, 0)] {
        let steps = |operations| {
            let load = Load { clients: 10, operations, unknown, refused: 10, mix };
            let report = check_history(&generate(&mut Rng::new(3), load));
            assert_eq!(report.verdict(), Verdict::Ok, "{report}");
            report.steps
        };
        let (short, long) = (steps(5_000), steps(20_000));
        assert!(long < 6 * short, "4 times the operations took {short} and {long} steps");
        assert!(long < 20_000 * 20, "{long} steps are too many");
    }
}
