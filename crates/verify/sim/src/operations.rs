//! Single-key commands of clients, for keyspaces whose engine has no transactions, and for the
//! counters of the others.

use quorate_check::{Action, Answer, Bytes};
use quorate_commands::{OwnedCall, Reply};
use quorate_machine::Rng;

use crate::collections;
use crate::intent::Intent;

/// Keys take turns between counters, where a lost or doubled update shows as a number, and
/// registers, where it shows as a value that should not be there.
pub(crate) fn draw_action(rng: &mut Rng, key: usize, unique: u64) -> Action {
    let value = || Bytes::from(format!("v{unique}"));
    let counter = key.is_multiple_of(2);
    match rng.below(20) {
        0..=6 => Action::Get,
        7..=14 if counter => Action::Incr(1),
        15..=17 if counter => Action::Incr(10),
        18 if counter => Action::Set(Bytes::from(format!("{}", unique * 1000))),
        7..=10 => Action::Set(value()),
        11..=12 => Action::GetSet(value()),
        13..=14 => Action::SetNx(value()),
        15..=16 => Action::Append(Bytes::from(format!(",{unique}"))),
        _ => Action::Del,
    }
}

/// An intent with a key that is made once and soon deleted. `reads` says whether to read such keys,
/// too.
pub(crate) fn draw_churn(rng: &mut Rng, unique: u64, reads: bool) -> Intent {
    let recent = unique.saturating_sub(1 + rng.below(60));
    let (number, action) = match rng.below(8) {
        0..=3 => (unique, Action::Set(Bytes::from(format!("v{unique}")))),
        4 if reads => (recent, Action::Get),
        _ => (recent, Action::Del),
    };
    Intent::Single { key: format!("fresh:{number}"), action }
}

/// The command of the action.
pub(crate) fn to_call(name: &str, action: &Action) -> OwnedCall {
    let key = name.as_bytes();
    let by;
    let arguments: Vec<&[u8]> = match action {
        Action::Get => vec![b"GET", key],
        Action::Set(value) => vec![b"SET", key, &value.0],
        Action::Del => vec![b"DEL", key],
        Action::Incr(amount) => {
            by = amount.to_string();
            vec![b"INCRBY", key, by.as_bytes()]
        }
        Action::GetSet(value) => vec![b"GETSET", key, &value.0],
        Action::SetNx(value) => vec![b"SETNX", key, &value.0],
        Action::Append(value) => vec![b"APPEND", key, &value.0],
        Action::Command(command) => return collections::to_call(name, command),
        Action::Cas { .. } => unreachable!("clients draw no compare-and-set"),
    };
    OwnedCall::new(arguments).expect("clients draw known commands")
}

/// The meaning of the command's answer.
pub(crate) fn to_answer(action: &Action, reply: &Reply<'_>) -> Answer {
    if let Action::Command(_) = action {
        return collections::to_answer(reply);
    }
    match reply {
        Reply::Ok => Answer::Ok,
        Reply::Int(number) => Answer::Integer(*number),
        Reply::Bulk(bytes) => Answer::Value(Some(Bytes(bytes.to_vec()))),
        Reply::Null => Answer::Value(None),
        Reply::Error(text) => Answer::Error(text.to_string()),
        other => panic!("{action} was answered {other:?}"),
    }
}
