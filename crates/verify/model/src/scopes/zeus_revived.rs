//! Zeus's scopes in which the power goes everywhere, and logs lose their ends.

use quorate_types::{Duration, NodeId, NodeSet};

use super::zeus::asked;
use super::{Entry, Size};
use crate::explore::explore;
use crate::scope::{Change, Prior, Scope};
use crate::served::Asked;
use crate::txn::Step::{self, Append, Delete, Read, Write};
use crate::txn::Txn;
use crate::zeus::Owners;

/// The first call is answered before. Then the power goes everywhere while clients write, and what the last
/// node has written last is lost. What clients have heard is on the disks of the others.
fn revived(
    name: &'static str,
    nodes: u16,
    entries: u8,
    calls: &[(u16, Asked<Txn>, Option<usize>)],
) -> Scope<Owners> {
    let mut scope = asked(name, nodes, usize::from(nodes), calls);
    scope.first_calls = 1;
    scope.has_logs = true;
    scope.budget.entries = entries;
    scope.changes = vec![Change::Revive(NodeSet::only(NodeId(nodes)))];
    scope.rests = true;
    scope
}

fn plain(steps: &[Step]) -> Asked<Txn> {
    Asked::Plain(Txn(steps.to_vec()))
}

/// A write, and a read where it may be lost.
fn writes(name: &'static str, nodes: u16, entries: u8) -> Scope<Owners> {
    let write = (1, plain(&[Write("y", "a")]), None);
    let append = (1, plain(&[Append("y", "b")]), None);
    let read = (nodes, plain(&[Read("y")]), None);
    revived(name, nodes, entries, &[write, append, read])
}

/// Two writes, one of which was answered before.
fn updates(name: &'static str, nodes: u16, entries: u8) -> Scope<Owners> {
    let write = (1, plain(&[Write("y", "a")]), None);
    let append = (1, plain(&[Append("y", "b")]), None);
    revived(name, nodes, entries, &[write, append])
}

/// A key is deleted, and written anew where the deletion may be lost.
fn deleted(name: &'static str, nodes: u16, entries: u8) -> Scope<Owners> {
    let write = (1, plain(&[Write("y", "a")]), None);
    let delete = (1, plain(&[Delete("y")]), None);
    let append = (nodes, plain(&[Append("y", "b")]), Some(1));
    revived(name, nodes, entries, &[write, delete, append])
}

/// Two keys of one transaction, the second of which moves.
fn moves(name: &'static str, nodes: u16, entries: u8) -> Scope<Owners> {
    let write = (1, plain(&[Write("y", "a"), Write("x", "a")]), None);
    let append = (2, plain(&[Append("x", "b")]), None);
    revived(name, nodes, entries, &[write, append])
}

/// A call of a session is tried again where its record may be lost.
fn calls(name: &'static str, nodes: u16, entries: u8) -> Scope<Owners> {
    let attempt = |session, text| Asked::attempt([session, 0, 0], 9, Txn(vec![Append("y", text)]));
    let (mine, theirs) = (attempt(0, "a"), attempt(1, "b"));
    let asked = [(1, mine.clone(), None), (nodes, mine, None), (1, theirs, Some(1))];
    revived(name, nodes, entries, &asked)
}

/// Two come back, one of which has lost the end of its log, and the third begins without a disk and copies
/// from them.
fn shadow(name: &'static str, loser: u16, entries: u8) -> Scope<Owners> {
    let write = (3 - loser, plain(&[Write("y", "a")]), None);
    let mut scope = revived(name, 3, entries, &[write]);
    let (loser, three) = (NodeId(loser), NodeId(3));
    scope.in_order = true;
    scope.first_calls = 0;
    scope.prelude = vec![
        Prior::Crash(three),
        Prior::View(Change::WithoutCrashed),
        Prior::Call(0),
        Prior::Passes(Duration::from_millis(1)),
    ];
    scope.changes = vec![
        Change::Revive(NodeSet::only(loser)),
        Change::Remove(three),
        Change::Add(three),
        Change::Promote(three),
    ];
    scope
}

/// All have lost what they have written last, each another part. What clients have heard may be lost.
fn behind(mut scope: Scope<Owners>) -> Scope<Owners> {
    scope.changes = vec![Change::Revive((1..=scope.nodes).map(NodeId).collect())];
    scope
}

pub(super) fn entries() -> Vec<Entry> {
    vec![
        Entry {
            name: "zeus-revived",
            size: Size::Small,
            states: Some(16_370),
            reaches: &["zeus: takes in what its log has lost"],
            run: |name, limits| explore(&writes(name, 2, 8), limits),
        },
        Entry {
            name: "zeus-revived-deleted",
            size: Size::Small,
            states: Some(13_788),
            reaches: &["zeus: takes in what its log has lost"],
            run: |name, limits| explore(&deleted(name, 2, 8), limits),
        },
        Entry {
            name: "zeus-revived-moves",
            size: Size::Small,
            states: Some(4642),
            reaches: &["zeus: takes in what its log has lost"],
            run: |name, limits| explore(&moves(name, 2, 6), limits),
        },
        Entry {
            name: "zeus-revived-calls",
            size: Size::Small,
            states: Some(6035),
            reaches: &["zeus: takes in what its log has lost"],
            run: |name, limits| explore(&calls(name, 2, 8), limits),
        },
        Entry {
            name: "zeus-revived-behind",
            size: Size::Small,
            states: Some(54_528),
            reaches: &["zeus: takes in what its log has lost"],
            run: |name, limits| explore(&behind(writes(name, 2, 6)), limits),
        },
        Entry {
            name: "zeus-revived-behind-moves",
            size: Size::Small,
            states: Some(11_362),
            reaches: &["zeus: takes in what its log has lost"],
            run: |name, limits| explore(&behind(moves(name, 2, 4)), limits),
        },
        Entry {
            name: "zeus-revived-behind-deleted",
            size: Size::Small,
            states: Some(35_426),
            reaches: &["zeus: takes in what its log has lost"],
            run: |name, limits| explore(&behind(deleted(name, 2, 4)), limits),
        },
        Entry {
            name: "zeus-revived-shadow",
            size: Size::Gate,
            states: Some(216_951),
            reaches: &["zeus: takes in what its log has lost"],
            run: |name, limits| explore(&shadow(name, 1, 4), limits),
        },
        Entry {
            name: "zeus-revived-shadow-behind",
            size: Size::Gate,
            states: Some(222_474),
            reaches: &["zeus: takes in what its log has lost"],
            run: |name, limits| explore(&shadow(name, 2, 4), limits),
        },
        Entry {
            name: "zeus-night-revived",
            size: Size::Night,
            states: Some(1_284_201),
            reaches: &["zeus: takes in what its log has lost"],
            run: |name, limits| explore(&Scope { in_order: true, ..updates(name, 3, 4) }, limits),
        },
    ]
}
