//! The small scopes, each with its asserted number of states. A machine without a guard
//! (`cargo xtask mutants`) has other states, and only a violation counts.

use quorate_model::explore::Limits;
use quorate_model::scopes::{Entry, Size, all};

fn explore(protocol: &str, chosen: impl Fn(&Entry) -> bool) {
    let counts = std::env::var_os("QUORATE_MODEL_COUNTS").is_none();
    let entries = all();
    let mut own = entries.iter().filter(|entry| entry.name.starts_with(protocol)).peekable();
    assert!(own.peek().is_some(), "{protocol} has no scope");
    for entry in own.filter(|entry| chosen(entry)) {
        let report = entry.explore(Limits { threads: 1, steps_max: None });
        if let Err(reason) = entry.judge(&report, counts) {
            panic!("{reason}");
        }
    }
}

fn small(entry: &Entry) -> bool {
    entry.size == Size::Small
}

#[test]
fn meerkat() {
    explore("meerkat", small);
}

#[test]
fn hermes() {
    explore("hermes", small);
}

#[test]
fn zeus() {
    explore("zeus", small);
}

#[test]
fn paxos() {
    explore("paxos", small);
}

#[test]
fn membership() {
    explore("membership", small);
}

#[test]
fn names_are_unique_and_every_number_is_known() {
    let entries = all();
    for (at, entry) in entries.iter().enumerate() {
        assert!(entries[..at].iter().all(|other| other.name != entry.name), "{}", entry.name);
        assert!(entry.states.is_some(), "{}", entry.name);
    }
}
