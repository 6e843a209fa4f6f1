//! Histories in which what was answered last may be lost: examples, and agreement with a checker that tries
//! every order.

use quorate_check::{
    Action, Answer, Bytes, Loss, Operation, Outcome, Verdict, check_history_with_losses,
};
use quorate_machine::Rng;

use crate::brute_force::run;
use crate::support::{done, get, history, int, saw, set, unknown};

fn is_right(operations: Vec<Operation>, losses: &[Loss]) -> bool {
    check_history_with_losses(&history(operations), |_| losses).verdict() == Verdict::Ok
}

const LOSS: Loss = Loss { from: 30, at: 50, all: false };

#[test]
fn what_was_answered_last_is_lost_and_nothing_before() {
    let before = [done(1, 10, 20, set("a"), Answer::Ok), done(1, 31, 35, set("b"), Answer::Ok)];
    let read = |value| {
        let mut operations = before.to_vec();
        operations.push(done(2, 60, 70, get(), saw(value)));
        operations
    };
    assert!(is_right(read("a"), &[LOSS]) && is_right(read("b"), &[LOSS]));
    assert!(!is_right(read("a"), &[]), "nothing may be lost");
    assert!(!is_right(read(""), &[LOSS]), "it was answered before");
}

#[test]
fn what_is_lost_is_a_suffix() {
    let append =
        |at, value: &str, length| done(1, at, at + 1, Action::Append(value.into()), int(length));
    let ends = |value: &str| {
        let appends = [append(10, "a", 1), append(31, "b", 2), append(40, "c", 3)];
        let mut operations = appends.to_vec();
        operations.push(done(2, 60, 70, get(), saw(value)));
        is_right(operations, &[LOSS])
    };
    assert!(["a", "ab", "abc"].into_iter().all(ends));
    assert!(!["ac", "bc", "b", ""].into_iter().any(ends));
}

#[test]
fn nobody_misses_it_before_it_is_lost() {
    let early = vec![
        done(1, 31, 35, set("b"), Answer::Ok),
        done(2, 40, 45, get(), saw("")),
        done(2, 60, 70, get(), saw("")),
    ];
    assert!(!is_right(early, &[LOSS]));
}

#[test]
fn it_does_not_come_back_unless_it_was_never_answered() {
    let after = |first: Operation| {
        vec![first, done(2, 60, 70, get(), saw("")), done(2, 80, 90, get(), saw("b"))]
    };
    assert!(!is_right(after(done(1, 31, 35, set("b"), Answer::Ok)), &[LOSS]));
    assert!(is_right(after(unknown(1, 31, set("b"))), &[LOSS]));
}

#[test]
fn an_operation_under_way_may_leave_what_it_had_tried() {
    let ends = |since: u64, value: &str| {
        let operations = vec![
            done(1, 10, 20, set("3"), Answer::Ok),
            done(2, 35, 36, set("10"), Answer::Ok),
            done(3, since, 40, Action::Incr(1), int(11)),
            done(1, 60, 70, get(), saw(value)),
        ];
        is_right(operations, &[LOSS])
    };
    // It answers what it made of 10, and had made 4 of 3 before.
    assert!(["3", "4", "10", "11"].into_iter().all(|value| ends(31, value)));
    assert!(!["5", "12", ""].into_iter().any(|value| ends(31, value)));
    assert!(["3", "10", "11"].into_iter().all(|value| ends(37, value)));
    assert!(!ends(37, "4"), "it was asked for after 10 was there");
}

#[test]
fn each_loss_has_its_own_choice() {
    let second = Loss { from: 100, at: 120, all: false };
    let reads = |values: [&str; 2]| {
        let [first, last] = values;
        vec![
            done(1, 35, 40, set("a"), Answer::Ok),
            done(2, 60, 70, get(), saw(first)),
            done(1, 101, 105, set("b"), Answer::Ok),
            done(2, 130, 140, get(), saw(last)),
        ]
    };
    for (values, wanted) in [
        (["a", "b"], true),
        (["a", "a"], true),
        (["", "b"], true),
        (["", ""], true),
        (["a", ""], false),
        (["", "a"], false),
    ] {
        assert_eq!(is_right(reads(values), &[LOSS, second]), wanted, "{values:?}");
    }
}

#[test]
fn everything_may_be_lost_at_once() {
    let read = |all, value| {
        let operations = vec![
            done(1, 10, 12, set("a"), Answer::Ok),
            done(1, 15, 20, set("b"), Answer::Ok),
            done(1, 31, 35, set("c"), Answer::Ok),
            done(2, 60, 70, get(), saw(value)),
        ];
        is_right(operations, &[Loss { all, ..LOSS }])
    };
    assert!(["b", "c"].into_iter().all(|value| read(true, value) && read(false, value)));
    assert!(read(true, "") && !read(false, "") && !read(true, "a"));
}

type Value = Option<Vec<u8>>;

/// Whether an operation has answered that it changed something.
fn changes(operation: &Operation) -> bool {
    let Outcome::Done { answer, .. } = &operation.outcome else { return false };
    match operation.action {
        Action::Get => false,
        Action::SetNx(_) | Action::Del => *answer != int(0),
        _ => true,
    }
}

/// Whether the operations of `rest`, a bit each, the choice of what is kept and the loss can follow one
/// another.
fn has_order(
    operations: &[Operation],
    rest: u32,
    loss: Loss,
    (state, kept, is_lost): (&Value, Option<&Value>, bool),
) -> bool {
    let left = || (0..operations.len()).filter(move |i| rest & 1 << i != 0);
    let comes_first = |time: u64| {
        !left().any(|j| operations[j].done_at().is_some_and(|at| at < time))
            && (is_lost || loss.at >= time)
    };
    if is_lost && !left().any(|i| operations[i].done_at().is_some()) {
        return true;
    }
    if kept.is_none() && !is_lost && comes_first(loss.from) {
        let is_tried = |i: &usize| changes(&operations[*i]) && comes_first(operations[*i].invoke);
        let attempts = left().filter(is_tried).map(|i| run(&operations[i].action, state).0);
        let mut choices = attempts.chain([state.clone()]);
        if choices.any(|kept| has_order(operations, rest, loss, (state, Some(&kept), false))) {
            return true;
        }
    }
    if let Some(kept) = kept
        && comes_first(loss.at)
        && (has_order(operations, rest, loss, (kept, None, true))
            || loss.all && has_order(operations, rest, loss, (&None, None, true)))
    {
        return true;
    }
    left().any(|i| {
        let operation = &operations[i];
        if !comes_first(operation.invoke) {
            return false;
        }
        let (next, answer) = run(&operation.action, state);
        let fits = match &operation.outcome {
            Outcome::Done { answer: seen, .. } => *seen == answer,
            _ => true,
        };
        fits && has_order(operations, rest & !(1 << i), loss, (&next, kept, is_lost))
    })
}

/// Operations at even times and a loss at odd ones. Every fourth has no answer. Some answers are spoiled in
/// half of the histories.
fn random_loss(rng: &mut Rng, kinds: u64) -> (Vec<Operation>, Loss) {
    let from = rng.below(30);
    let at = from + rng.below(15);
    let chosen = 2 * (from + rng.below(at - from + 1)) + 1;
    let all = rng.chance(1, 3);
    let loss = Loss { from: 2 * from + 1, at: 2 * at + 1, all };
    let is_all_lost = all && rng.chance(1, 2);
    let (mut points, mut operations) = (Vec::new(), Vec::new());
    for process in 0..4 + rng.below(3) {
        let value = Bytes::from(["1", "2", "x"][rng.below(3) as usize]);
        let action = match rng.below(kinds) {
            0 | 1 => Action::Get,
            2 => Action::Set(value),
            3 => Action::Append(value),
            4 => Action::Incr(1),
            5 => Action::SetNx(value),
            _ => Action::Del,
        };
        let (invoke, span) = (rng.below(45), rng.below(12));
        let is_unknown = rng.chance(1, 4);
        let point = invoke + rng.below(if is_unknown { 40 } else { span + 1 });
        if !is_unknown || rng.chance(3, 4) {
            points.push((2 * point, process as usize));
        }
        let outcome = match is_unknown {
            true => Outcome::Unknown,
            false => Outcome::Done { at: 2 * (invoke + span), answer: Answer::Ok },
        };
        let (key, invoke) = ("k".into(), 2 * invoke);
        operations.push(Operation { process, key, action, invoke, outcome });
    }
    points.extend([(chosen, usize::MAX - 1), (loss.at, usize::MAX)]);
    points.sort_unstable();
    let is_spoiled = rng.chance(1, 2);
    let (mut state, mut kept) = (None, None);
    for (_, index) in points {
        match index {
            usize::MAX if is_all_lost => state = None,
            usize::MAX => state = kept.clone(),
            at if at == usize::MAX - 1 => kept.clone_from(&state),
            index => {
                let Operation { action, outcome, .. } = &mut operations[index];
                let (next, answer) = run(action, &state);
                if let Outcome::Done { answer: seen, .. } = outcome {
                    let other = rng.chance(2, 3).then(|| b"1".to_vec());
                    let is_wrong = is_spoiled && rng.chance(1, 2);
                    *seen = if is_wrong { run(action, &other).1 } else { answer };
                }
                state = next;
            }
        }
    }
    (operations, loss)
}

#[test]
fn agrees_with_every_order() {
    // Registers, registers and texts, everything.
    for (seed, kinds, rounds) in [(1, 3, 6_000), (2, 4, 6_000), (3, 7, 12_000)] {
        let mut rng = Rng::new(seed);
        let mut accepted = 0;
        for round in 0..rounds {
            let (operations, loss) = random_loss(&mut rng, kinds);
            let all = (1 << operations.len()) - 1;
            let expected = has_order(&operations, all, loss, (&None, None, false));
            let (history, losses) = (history(operations), [loss]);
            let report = check_history_with_losses(&history, |_| &losses);
            assert_ne!(report.verdict(), Verdict::Undecided, "{report}");
            let found = report.verdict() == Verdict::Ok;
            assert_eq!(
                found, expected,
                "round {round}: {loss:?} {:#?}\n{report}",
                history.operations
            );
            accepted += u32::from(found);
        }
        assert!(
            accepted > rounds / 10 && accepted < rounds - rounds / 10,
            "{accepted} of {rounds}"
        );
    }
}
