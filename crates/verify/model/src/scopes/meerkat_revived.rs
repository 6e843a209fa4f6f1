//! Meerkat's scopes in which the power goes everywhere, and logs lose their ends.

use quorate_meerkat::Isolation::Serializable;
use quorate_types::{NodeId, NodeSet};

use super::meerkat::{asked, attempt};
use super::revived::{behind, revived, with_shadow};
use super::{Entry, Size};
use crate::explore::explore;
use crate::meerkat::Transactions;
use crate::scope::{Change, Scope};
use crate::served::Asked;
use crate::txn::Step::{self, Append, Read, Write};
use crate::txn::Txn;

/// Clients make these calls. The first is answered before the power goes.
fn calls_before(
    name: &'static str,
    entries: u8,
    calls: &[(u16, Asked<Txn>, Option<usize>)],
) -> Scope<Transactions> {
    let scope = asked(name, Serializable, calls);
    revived(Scope { first_calls: 1, in_order: true, ..scope }, entries)
}

fn plain(steps: &[Step]) -> Asked<Txn> {
    Asked::Plain(Txn(steps.to_vec()))
}

/// Two transactions. The second is coordinated by this node.
fn updates(name: &'static str, entries: u8, coordinator: u16) -> Scope<Transactions> {
    let write = (1, plain(&[Write("k", "a")]), None);
    let append = (coordinator, plain(&[Append("k", "b")]), None);
    calls_before(name, entries, &[write, append])
}

/// A read where what was written may be lost.
fn reads(name: &'static str, entries: u8) -> Scope<Transactions> {
    let write = (1, plain(&[Write("k", "a")]), None);
    let read = (3, plain(&[Read("k")]), None);
    calls_before(name, entries, &[write, read])
}

/// A call of a session is tried again where its record may be lost.
fn calls(name: &'static str, entries: u8) -> Scope<Transactions> {
    let mine = attempt(0, 0, 0, &[Append("k", "a")]);
    calls_before(name, entries, &[(1, mine.clone(), None), (3, mine, None)])
}

/// A node crashes and comes back by comparing what it has on its disk. The log has lost its end.
fn rejoins_from_log(name: &'static str, entries: u8) -> Scope<Transactions> {
    let mut scope = updates(name, entries, 1);
    scope.budget.crashes = 1;
    scope.may_crash = NodeSet::only(NodeId(3));
    let three = NodeId(3);
    scope.changes = vec![Change::WithoutCrashed, Change::Rejoin(three), Change::Promote(three)];
    scope
}

/// A node crashes after all have come back, perhaps before all know that they have.
fn crash(name: &'static str, entries: u8) -> Scope<Transactions> {
    let mut scope = calls_before(name, entries, &[(1, plain(&[Write("k", "a")]), None)]);
    scope.budget.crashes = 1;
    scope.may_crash = NodeSet::only(NodeId(1));
    scope.changes.push(Change::WithoutCrashed);
    scope
}

/// A write at the node whose log loses nothing, while the third is away.
fn shadow(name: &'static str, loser: u16, entries: u8) -> Scope<Transactions> {
    let write = (3 - loser, plain(&[Write("k", "a")]), None);
    with_shadow(calls_before(name, entries, &[write]), loser)
}

pub(super) fn entries() -> Vec<Entry> {
    vec![
        Entry {
            name: "meerkat-revived",
            size: Size::Gate,
            states: Some(124_364),
            reaches: &["meerkat: goes on from its log"],
            run: |name, limits| explore(&updates(name, 4, 1), limits),
        },
        Entry {
            name: "meerkat-revived-coordinator",
            size: Size::Gate,
            states: Some(195_657),
            reaches: &["meerkat: goes on from its log"],
            run: |name, limits| explore(&updates(name, 4, 3), limits),
        },
        Entry {
            name: "meerkat-rejoin-from-log",
            size: Size::Small,
            states: Some(47_375),
            reaches: &[],
            run: |name, limits| explore(&rejoins_from_log(name, 4), limits),
        },
        Entry {
            name: "meerkat-revived-reads",
            size: Size::Small,
            states: Some(69_823),
            reaches: &["meerkat: goes on from its log"],
            run: |name, limits| explore(&reads(name, 6), limits),
        },
        Entry {
            name: "meerkat-revived-calls",
            size: Size::Small,
            states: Some(62_458),
            reaches: &["meerkat: goes on from its log"],
            run: |name, limits| explore(&calls(name, 6), limits),
        },
        Entry {
            name: "meerkat-revived-crash",
            size: Size::Small,
            states: Some(35_155),
            reaches: &["meerkat: goes on from its log"],
            run: |name, limits| explore(&crash(name, 2), limits),
        },
        Entry {
            name: "meerkat-revived-behind",
            size: Size::Night,
            states: Some(647_592),
            reaches: &["meerkat: goes on from its log"],
            run: |name, limits| explore(&behind(updates(name, 2, 1)), limits),
        },
        Entry {
            name: "meerkat-revived-shadow",
            size: Size::Small,
            states: Some(60_489),
            reaches: &["meerkat: goes on from its log"],
            run: |name, limits| explore(&shadow(name, 1, 4), limits),
        },
        Entry {
            name: "meerkat-revived-shadow-behind",
            size: Size::Gate,
            states: Some(91_465),
            reaches: &["meerkat: goes on from its log"],
            run: |name, limits| explore(&shadow(name, 2, 4), limits),
        },
        Entry {
            name: "meerkat-night-revived",
            size: Size::Night,
            states: Some(1_717_165),
            reaches: &["meerkat: goes on from its log"],
            run: |name, limits| explore(&behind(updates(name, 4, 3)), limits),
        },
    ]
}
