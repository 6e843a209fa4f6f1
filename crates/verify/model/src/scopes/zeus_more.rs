//! More of Zeus's scopes: calls of sessions, five nodes, groups that change, and readers without copies.
//! Where keys live see `zeus.rs`.

use std::time::Duration;

use quorate_types::{NodeId, NodeSet};

use super::zeus::{asked, cluster};
use super::{Entry, Size};
use crate::explore::explore;
use crate::scope::{Change, Prior, Scope};
use crate::served::Asked;
use crate::txn::Step::{self, Append, Claim, Read, Write};
use crate::txn::Txn;
use crate::zeus::Owners;

/// The date up to which leases are granted: far beyond the clocks of a scope.
const GRANTED: u64 = 1_000_000_000;

/// A try at a call of one of two sessions; the client has the answers of all calls below `first`.
fn attempt(session: u64, sequence: u64, first: u64, steps: &[Step]) -> Asked<Txn> {
    Asked::attempt([session, sequence, first], GRANTED, Txn(steps.to_vec()))
}

/// A node of these may crash, and leaves the view then.
fn may_crash(scope: Scope<Owners>, node: u16) -> Scope<Owners> {
    let mut scope = scope;
    scope.budget.crashes = 1;
    scope.may_crash = NodeSet::only(NodeId(node));
    scope.changes = vec![Change::WithoutCrashed];
    scope
}

/// The same, and messages from one node to another arrive in the order in which they were sent.
fn in_order(scope: Scope<Owners>) -> Scope<Owners> {
    Scope { in_order: true, ..scope }
}

/// Two sessions; one tries its call at two nodes. The other session's call, which mostly changes nothing,
/// follows the answer to the second try.
fn calls(name: &'static str) -> Scope<Owners> {
    let mine = attempt(0, 0, 0, &[Append("y", "a")]);
    let theirs = attempt(1, 0, 0, &[Claim("y", "b")]);
    let calls = [(1, mine.clone(), None), (2, mine, None), (3, theirs, Some(1))];
    Scope { rests: true, ..asked(name, 3, 3, &calls) }
}

/// The node of the first try owns the key and may crash.
fn calls_crash(name: &'static str) -> Scope<Owners> {
    let mine = attempt(0, 0, 0, &[Append("y", "a")]);
    let scope = asked(name, 3, 3, &[(1, mine.clone(), None), (2, mine, None)]);
    Scope { rests: true, ..may_crash(scope, 1) }
}

/// Two nodes outside the group of the key try the call.
fn calls_outside(name: &'static str) -> Scope<Owners> {
    let mine = attempt(0, 0, 0, &[Append("d", "a")]);
    Scope { rests: true, ..asked(name, 4, 2, &[(1, mine.clone(), None), (4, mine, None)]) }
}

/// The node of the first try crashes and comes back, and the call is tried again there.
fn calls_return(name: &'static str) -> Scope<Owners> {
    let mine = attempt(0, 0, 0, &[Append("y", "a")]);
    let tries = [(1, mine.clone(), None), (1, mine, Some(0))];
    let mut scope = may_crash(asked(name, 2, 2, &tries), 1);
    scope.changes.extend([Change::Rejoin(NodeId(1)), Change::Promote(NodeId(1))]);
    scope
}

/// A call is acknowledged by the next one, while a late duplicate of it arrives elsewhere.
fn calls_acknowledged(name: &'static str) -> Scope<Owners> {
    let first = attempt(0, 0, 0, &[Append("y", "a")]);
    let calls = [
        (1, first.clone(), None),
        (1, attempt(0, 1, 1, &[Append("y", "b")]), Some(0)),
        (2, first, Some(0)),
    ];
    Scope { rests: true, ..asked(name, 3, 3, &calls) }
}

/// A session is forgotten by two nodes in their own time, and late duplicates arrive at both.
fn calls_expired(name: &'static str) -> Scope<Owners> {
    let first = attempt(0, 0, 0, &[Append("y", "a")]);
    let end = Asked::end(0, GRANTED);
    let calls = [
        (1, first.clone(), None),
        (2, end.clone(), Some(0)),
        (3, end, Some(0)),
        (2, first.clone(), Some(0)),
        (3, first, Some(2)),
    ];
    Scope { rests: true, ..asked(name, 3, 3, &calls) }
}

/// A member is about to leave while its keys are used: another learns them, data is placed without it, and
/// it is removed.
fn departs(name: &'static str) -> Scope<Owners> {
    let txns: [(u16, &[Step]); 2] = [(1, &[Write("y", "a")]), (2, &[Append("y", "b")])];
    let mut scope = cluster(name, 3, 2, &txns);
    let node = NodeId(2);
    scope.first_calls = 1;
    scope.prelude = vec![Prior::View(Change::Depart(node))];
    scope.changes = vec![Change::Place, Change::Remove(node)];
    scope.rests = true;
    scope
}

/// Of five nodes each has one part: the directory, an owner outside it, and who wants the key with its
/// data.
fn five(name: &'static str) -> Scope<Owners> {
    let txns: [(u16, &[Step]); 4] = [
        (2, &[Write("d", "a")]),
        (1, &[Append("d", "b")]),
        (4, &[Append("d", "c")]),
        (5, &[Append("d", "e")]),
    ];
    let mut scope = cluster(name, 5, 2, &txns);
    scope.first_calls = 2;
    scope.rests = true;
    scope
}

/// A member is removed and another node learns its keys, which it leaves when the member is back. What is
/// left there is old when the member is removed again.
fn returns(name: &'static str) -> Scope<Owners> {
    let txns: [(u16, &[Step]); 3] =
        [(1, &[Write("y", "a")]), (1, &[Append("y", "b")]), (3, &[Append("y", "c")])];
    let mut scope = cluster(name, 3, 2, &txns);
    let node = NodeId(2);
    let views = [
        Change::Remove(node),
        Change::Place,
        Change::Add(node),
        Change::Promote(node),
        Change::Place,
    ];
    scope.first_calls = 1;
    scope.prelude = views.map(Prior::View).to_vec();
    scope.prelude.extend([Prior::Call(1), Prior::Passes(Duration::from_millis(1))]);
    scope.changes = vec![Change::Remove(node), Change::Place];
    scope.rests = true;
    scope
}

/// A node outside the groups of two keys reads both, while they are written together.
fn remote_read(name: &'static str) -> Scope<Owners> {
    let txns: [(u16, &[Step]); 3] = [
        (2, &[Write("d", "a"), Write("m", "a")]),
        (2, &[Append("d", "b"), Append("m", "b")]),
        (1, &[Read("d"), Read("m")]),
    ];
    let mut scope = cluster(name, 4, 2, &txns);
    scope.first_calls = 1;
    scope.rests = true;
    scope
}

/// Two nodes read two keys, of which each is at one other node, which writes it.
fn validated_read(name: &'static str) -> Scope<Owners> {
    let txns: [(u16, &[Step]); 4] = [
        (1, &[Read("d"), Read("m")]),
        (4, &[Read("d"), Read("m")]),
        (2, &[Write("d", "a")]),
        (3, &[Write("m", "a")]),
    ];
    Scope { rests: true, ..cluster(name, 4, 1, &txns) }
}

/// A node reads two keys without a copy while one of them is written, with a follower; the member that it
/// asks may not know yet whether that is committed.
fn validated_read_early(name: &'static str) -> Scope<Owners> {
    let txns: [(u16, &[Step]); 2] = [(1, &[Read("d"), Read("g")]), (2, &[Write("d", "a")])];
    Scope { rests: true, ..cluster(name, 4, 2, &txns) }
}

/// The same, and the member may crash.
fn validated_read_crash(name: &'static str) -> Scope<Owners> {
    may_crash(validated_read_early(name), 3)
}

/// A request is repeated on its way, and served when the key has gone on to another node: its arbiters
/// agree to what nobody waits for.
fn resume(name: &'static str) -> Scope<Owners> {
    let txns: [(u16, &[Step]); 3] =
        [(2, &[Write("d", "a")]), (1, &[Append("d", "b")]), (4, &[Append("d", "c")])];
    let mut scope = cluster(name, 4, 2, &txns);
    scope.first_calls = 1;
    scope.budget.duplicates = 1;
    scope.rests = true;
    scope
}

/// More of Zeus's part of the list.
pub(super) fn entries() -> Vec<Entry> {
    let recorded = &["zeus: a call is answered from its record"];
    vec![
        Entry {
            name: "zeus-calls",
            size: Size::Small,
            states: Some(18_966),
            reaches: recorded,
            run: |name, limits| explore(&in_order(calls(name)), limits),
        },
        Entry {
            name: "zeus-calls-crash",
            size: Size::Small,
            states: Some(10_833),
            reaches: recorded,
            run: |name, limits| explore(&in_order(calls_crash(name)), limits),
        },
        Entry {
            name: "zeus-night-calls-crash",
            size: Size::Night,
            states: Some(387_057),
            reaches: recorded,
            run: |name, limits| explore(&calls_crash(name), limits),
        },
        Entry {
            name: "zeus-calls-outside",
            size: Size::Small,
            states: Some(7_358),
            reaches: &["zeus: a call is asked about"],
            run: |name, limits| explore(&in_order(calls_outside(name)), limits),
        },
        Entry {
            name: "zeus-calls-return",
            size: Size::Small,
            states: Some(1_064),
            reaches: recorded,
            run: |name, limits| explore(&calls_return(name), limits),
        },
        Entry {
            name: "zeus-calls-acknowledged",
            size: Size::Gate,
            states: Some(29_065),
            reaches: recorded,
            run: |name, limits| explore(&calls_acknowledged(name), limits),
        },
        Entry {
            name: "zeus-calls-expired",
            size: Size::Night,
            states: Some(205_136),
            reaches: recorded,
            run: |name, limits| explore(&calls_expired(name), limits),
        },
        Entry {
            name: "zeus-own-five",
            size: Size::Small,
            states: Some(13_914),
            reaches: &["zeus: a former owner drops its copy"],
            run: |name, limits| explore(&in_order(five(name)), limits),
        },
        Entry {
            name: "zeus-own-return",
            size: Size::Small,
            states: Some(1_828),
            reaches: &["zeus: a node comes back to a shard that it has left"],
            run: |name, limits| explore(&in_order(returns(name)), limits),
        },
        Entry {
            name: "zeus-night-own-return",
            size: Size::Night,
            states: Some(360_496),
            reaches: &["zeus: a node comes back to a shard that it has left"],
            run: |name, limits| explore(&returns(name), limits),
        },
        Entry {
            name: "zeus-own-depart",
            size: Size::Night,
            states: Some(84_681),
            reaches: &[],
            run: |name, limits| explore(&in_order(departs(name)), limits),
        },
        Entry {
            name: "zeus-own-resume",
            size: Size::Gate,
            states: Some(74_348),
            reaches: &["zeus: a round that nobody waits for is resumed"],
            run: |name, limits| explore(&in_order(resume(name)), limits),
        },
        Entry {
            name: "zeus-remote-read",
            size: Size::Small,
            states: Some(422),
            reaches: &["zeus: a reader's copies are confirmed"],
            run: |name, limits| explore(&remote_read(name), limits),
        },
        Entry {
            name: "zeus-validated-read",
            size: Size::Gate,
            states: Some(176_736),
            reaches: &[
                "zeus: a reader's copies are confirmed",
                "zeus: what a reader has seen has changed",
            ],
            run: |name, limits| explore(&in_order(validated_read(name)), limits),
        },
        Entry {
            name: "zeus-validated-read-early",
            size: Size::Gate,
            states: Some(2_240),
            reaches: &["zeus: a member is asked for what is not committed"],
            run: |name, limits| explore(&validated_read_early(name), limits),
        },
        Entry {
            name: "zeus-validated-read-crash",
            size: Size::Gate,
            states: Some(38_559),
            reaches: &["zeus: a reader's copies are confirmed"],
            run: |name, limits| explore(&in_order(validated_read_crash(name)), limits),
        },
    ]
}
