//! Hermes's scopes in which the power goes everywhere, and logs lose their ends.

use super::hermes::{asked, attempt, rejoin};
use super::revived::{behind, revived, with_shadow};
use super::{Entry, Size};
use crate::explore::explore;
use crate::hermes::Register;
use crate::register::Op::{self, Append, Delete, Get, Set};
use crate::scope::Scope;
use crate::served::Asked;

/// Clients make these calls. The first is answered before the power goes.
fn calls_before(
    name: &'static str,
    nodes: u16,
    entries: u8,
    calls: &[(u16, Asked<Op>, Option<usize>)],
) -> Scope<Register> {
    revived(Scope { first_calls: 1, ..asked(name, nodes, calls) }, entries)
}

/// A write has ended before, an append is under way, and one reads where they may be lost.
fn writes(name: &'static str, nodes: u16, entries: u8) -> Scope<Register> {
    let [set, append, get] = [Set(b'a'), Append(b'b'), Get].map(Asked::Plain);
    let calls = [(1, set, None), (1, append, None), (nodes, get, None)];
    calls_before(name, nodes, entries, &calls)
}

/// A key is deleted, and written anew. Deleted keys are forgotten.
fn deleted(name: &'static str, nodes: u16, entries: u8) -> Scope<Register> {
    let [set, delete, append] = [Set(b'a'), Delete, Append(b'b')].map(Asked::Plain);
    let calls = [(1, set, None), (1, delete, None), (nodes, append, Some(1))];
    calls_before(name, nodes, entries, &calls)
}

/// A call of a session is tried again where its record may be lost.
fn calls(name: &'static str, nodes: u16, entries: u8) -> Scope<Register> {
    let (mine, theirs) = (attempt(0, 0, 0, Append(b'a')), attempt(1, 0, 0, Append(b'b')));
    let calls = [(1, mine.clone(), None), (nodes, mine, None), (1, theirs, Some(1))];
    calls_before(name, nodes, entries, &calls)
}

/// A node crashes and comes back by comparing what it has on its disk. The log has lost its end.
fn rejoins_from_log(name: &'static str) -> Scope<Register> {
    let mut scope = rejoin(name);
    scope.has_logs = true;
    scope.budget.entries = 6;
    scope
}

/// A write at the node whose log loses nothing, while the third is away. Then the third is asked.
fn shadow(name: &'static str, loser: u16, entries: u8) -> Scope<Register> {
    let [set, get] = [Set(b'a'), Get].map(Asked::Plain);
    let calls = [(3 - loser, set, None), (3, get, None)];
    with_shadow(calls_before(name, 3, entries, &calls), loser)
}

pub(super) fn entries() -> Vec<Entry> {
    vec![
        Entry {
            name: "hermes-revived",
            size: Size::Small,
            states: Some(18_067),
            reaches: &["hermes: absence is doubted"],
            run: |name, limits| explore(&writes(name, 2, 6), limits),
        },
        Entry {
            name: "hermes-rejoin-from-log",
            size: Size::Gate,
            states: Some(318_610),
            reaches: &[],
            run: |name, limits| explore(&rejoins_from_log(name), limits),
        },
        Entry {
            name: "hermes-revived-behind",
            size: Size::Small,
            states: Some(38_080),
            reaches: &["hermes: absence is doubted"],
            run: |name, limits| explore(&behind(writes(name, 2, 4)), limits),
        },
        Entry {
            name: "hermes-revived-deleted",
            size: Size::Small,
            states: Some(2015),
            reaches: &["hermes: absence is doubted"],
            run: |name, limits| explore(&deleted(name, 2, 6), limits),
        },
        Entry {
            name: "hermes-revived-calls",
            size: Size::Small,
            states: Some(1395),
            reaches: &["hermes: records of calls are gathered"],
            run: |name, limits| explore(&calls(name, 2, 6), limits),
        },
        Entry {
            name: "hermes-night-revived-shadow",
            size: Size::Night,
            states: Some(632_145),
            reaches: &["hermes: goes on from its log"],
            run: |name, limits| explore(&shadow(name, 1, 4), limits),
        },
        Entry {
            name: "hermes-night-revived-shadow-behind",
            size: Size::Night,
            states: Some(661_524),
            reaches: &["hermes: absence is doubted"],
            run: |name, limits| explore(&shadow(name, 2, 4), limits),
        },
        Entry {
            name: "hermes-revived-three",
            size: Size::Gate,
            states: Some(198_811),
            reaches: &["hermes: absence is doubted"],
            run: |name, limits| explore(&Scope { in_order: true, ..writes(name, 3, 2) }, limits),
        },
    ]
}
