//! Short ways to write histories down.

use quorate_check::{Action, Answer, Bytes, History, Operation, Outcome};

pub(crate) fn get() -> Action {
    Action::Get
}

pub(crate) fn set(value: &str) -> Action {
    Action::Set(value.into())
}

pub(crate) fn cas(expected: Option<&str>, value: &str) -> Action {
    Action::Cas { expected: expected.map(Bytes::from), value: value.into() }
}

/// The answer of a read: `""` stands for an absent key.
pub(crate) fn saw(value: &str) -> Answer {
    Answer::Value((!value.is_empty()).then(|| value.into()))
}

pub(crate) fn int(n: i64) -> Answer {
    Answer::Integer(n)
}

pub(crate) fn done(
    process: u64,
    invoke: u64,
    at: u64,
    action: Action,
    answer: Answer,
) -> Operation {
    let outcome = Outcome::Done { at, answer };
    Operation { process, key: "k".into(), action, invoke, outcome }
}

pub(crate) fn unknown(process: u64, invoke: u64, action: Action) -> Operation {
    Operation { process, key: "k".into(), action, invoke, outcome: Outcome::Unknown }
}

pub(crate) fn refused(process: u64, invoke: u64, at: u64, action: Action) -> Operation {
    Operation { process, key: "k".into(), action, invoke, outcome: Outcome::Refused { at } }
}

pub(crate) fn history(operations: Vec<Operation>) -> History {
    History { operations, ..History::default() }
}
