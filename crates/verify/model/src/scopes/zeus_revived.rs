//! Zeus's scopes in which the power goes everywhere, and logs lose their ends.

use super::revived::{behind, revived, with_shadow};
use super::zeus::asked;
use super::{Entry, Size};
use crate::explore::explore;
use crate::scope::Scope;
use crate::served::Asked;
use crate::txn::Step::{self, Append, Delete, Read, Write};
use crate::txn::Txn;
use crate::zeus::Owners;

/// Clients make these calls. The first is answered before the power goes.
fn calls_before(
    name: &'static str,
    nodes: u16,
    entries: u8,
    calls: &[(u16, Asked<Txn>, Option<usize>)],
) -> Scope<Owners> {
    let scope = asked(name, nodes, usize::from(nodes), calls);
    revived(Scope { first_calls: 1, ..scope }, entries)
}

fn plain(steps: &[Step]) -> Asked<Txn> {
    Asked::Plain(Txn(steps.to_vec()))
}

/// A write, and a read where it may be lost.
fn writes(name: &'static str, nodes: u16, entries: u8) -> Scope<Owners> {
    let write = (1, plain(&[Write("y", "a")]), None);
    let append = (1, plain(&[Append("y", "b")]), None);
    let read = (nodes, plain(&[Read("y")]), None);
    calls_before(name, nodes, entries, &[write, append, read])
}

/// Two writes.
fn updates(name: &'static str, nodes: u16, entries: u8) -> Scope<Owners> {
    let write = (1, plain(&[Write("y", "a")]), None);
    let append = (1, plain(&[Append("y", "b")]), None);
    calls_before(name, nodes, entries, &[write, append])
}

/// A key is deleted, and written anew where the deletion may be lost.
fn deleted(name: &'static str, nodes: u16, entries: u8) -> Scope<Owners> {
    let write = (1, plain(&[Write("y", "a")]), None);
    let delete = (1, plain(&[Delete("y")]), None);
    let append = (nodes, plain(&[Append("y", "b")]), Some(1));
    calls_before(name, nodes, entries, &[write, delete, append])
}

/// A transaction writes two keys. The second one moves.
fn moves(name: &'static str, nodes: u16, entries: u8) -> Scope<Owners> {
    let write = (1, plain(&[Write("y", "a"), Write("x", "a")]), None);
    let append = (2, plain(&[Append("x", "b")]), None);
    calls_before(name, nodes, entries, &[write, append])
}

/// A call of a session is tried again where its record may be lost.
fn calls(name: &'static str, nodes: u16, entries: u8) -> Scope<Owners> {
    let attempt = |session, text| Asked::attempt([session, 0, 0], 9, Txn(vec![Append("y", text)]));
    let (mine, theirs) = (attempt(0, "a"), attempt(1, "b"));
    let asked = [(1, mine.clone(), None), (nodes, mine, None), (1, theirs, Some(1))];
    calls_before(name, nodes, entries, &asked)
}

/// A write at the node whose log loses nothing, while the third is away.
fn shadow(name: &'static str, loser: u16, entries: u8) -> Scope<Owners> {
    let write = (3 - loser, plain(&[Write("y", "a")]), None);
    let scope = calls_before(name, 3, entries, &[write]);
    with_shadow(Scope { in_order: true, ..scope }, loser)
}

pub(super) fn entries() -> Vec<Entry> {
    vec![
        Entry {
            name: "zeus-revived",
            size: Size::Small,
            states: Some(17_435),
            reaches: &["zeus: takes in what its log has lost"],
            run: |name, limits| explore(&writes(name, 2, 8), limits),
        },
        Entry {
            name: "zeus-revived-deleted",
            size: Size::Small,
            states: Some(16_559),
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
            states: Some(60_211),
            reaches: &["zeus: takes in what its log has lost"],
            run: |name, limits| explore(&behind(writes(name, 2, 6)), limits),
        },
        Entry {
            name: "zeus-revived-behind-moves",
            size: Size::Small,
            states: Some(11_884),
            reaches: &["zeus: takes in what its log has lost"],
            run: |name, limits| explore(&behind(moves(name, 2, 4)), limits),
        },
        Entry {
            name: "zeus-revived-behind-deleted",
            size: Size::Small,
            states: Some(43_229),
            reaches: &["zeus: takes in what its log has lost"],
            run: |name, limits| explore(&behind(deleted(name, 2, 4)), limits),
        },
        Entry {
            name: "zeus-night-revived-shadow",
            size: Size::Night,
            states: Some(242_439),
            reaches: &["zeus: takes in what its log has lost"],
            run: |name, limits| explore(&shadow(name, 1, 4), limits),
        },
        Entry {
            name: "zeus-night-revived-shadow-behind",
            size: Size::Night,
            states: Some(248_913),
            reaches: &["zeus: takes in what its log has lost"],
            run: |name, limits| explore(&shadow(name, 2, 4), limits),
        },
        Entry {
            name: "zeus-night-revived",
            size: Size::Night,
            states: Some(1_382_697),
            reaches: &["zeus: takes in what its log has lost"],
            run: |name, limits| explore(&Scope { in_order: true, ..updates(name, 3, 4) }, limits),
        },
    ]
}
