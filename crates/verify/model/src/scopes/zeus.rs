//! Zeus's scopes. Which group a key has follows from its name. With three nodes all are in every
//! group, and the first is the default owner: `x` 1, 3, 2; `y` 1, 2, 3; `k` 2, 3, 1; `z` 3, 2, 1. With
//! four nodes and two replicas: `c` 1, 4; `d` 2, 3; `g` 4, 2; `h` 1, 3; `m` 3, 2.

use quorate_types::{NodeId, NodeSet};
use quorate_zeus::Config;

use super::{Entry, Size};
use crate::explore::explore;
use crate::scope::{Change, Made, Scope};
use crate::served::Asked;
use crate::txn::Step::{self, Append, Claim, Delete, Push, Put, Read, Write};
use crate::txn::Txn;
use crate::zeus::Owners;

/// These transactions, each at a node.
pub(super) fn cluster(
    name: &'static str,
    nodes: u16,
    replicas: usize,
    txns: &[(u16, &[Step])],
) -> Scope<Owners> {
    let plain = |(node, steps): &(u16, &[Step])| (*node, Asked::Plain(Txn(steps.to_vec())), None);
    let txns: Vec<_> = txns.iter().map(plain).collect();
    asked(name, nodes, replicas, &txns)
}

/// The same with calls of sessions, and such as follow the answer to another.
pub(super) fn asked(
    name: &'static str,
    nodes: u16,
    replicas: usize,
    asked: &[(u16, Asked<Txn>, Option<usize>)],
) -> Scope<Owners> {
    let calls: Vec<Asked<Txn>> = asked.iter().map(|(_, asked, _)| asked.clone()).collect();
    let txns = calls.iter().filter_map(|asked| match asked {
        Asked::Plain(txn) | Asked::Try(_, _, txn) => Some(txn),
        Asked::End(_) => None,
    });
    let steps = txns.flat_map(|txn| txn.0.iter());
    let mut keys: Vec<&'static str> = steps
        .map(|step| match step {
            Read(key)
            | Write(key, _)
            | Append(key, _)
            | Claim(key, _)
            | Put(key, _)
            | Push(key, _)
            | Delete(key) => *key,
        })
        .collect();
    keys.sort_unstable();
    keys.dedup();
    let (large, extra_after) = (NodeSet::EMPTY, Config::EXTRA_AFTER);
    let mut scope = Scope::new(name, Owners { replicas, keys, calls, large, extra_after }, nodes);
    let made = |(node, _, after): &(u16, Asked<Txn>, Option<usize>)| Made {
        node: NodeId(*node),
        after: *after,
    };
    scope.calls = asked.iter().map(made).collect();
    scope
}

/// Two nodes want a key at once that a third has written.
fn race(name: &'static str) -> Scope<Owners> {
    let txns: [(u16, &[Step]); 3] =
        [(1, &[Write("y", "a")]), (2, &[Append("y", "b")]), (3, &[Append("y", "c")])];
    let mut scope = cluster(name, 3, 3, &txns);
    scope.first_calls = 1;
    scope.rests = true;
    scope
}

/// A key moves while messages are lost and repeated.
fn lossy(name: &'static str, duplicates: u8) -> Scope<Owners> {
    let txns: [(u16, &[Step]); 2] = [(1, &[Write("y", "a")]), (2, &[Append("y", "b")])];
    let mut scope = cluster(name, 3, 3, &txns);
    scope.first_calls = 1;
    scope.budget.loss = 1;
    scope.budget.duplicates = duplicates;
    scope.budget.timers = vec![1, 1, 0];
    scope.rests = true;
    scope
}

/// A node of these may crash while a key moves from node 1 to node 2.
fn crash(name: &'static str, crashes: u16) -> Scope<Owners> {
    let txns: [(u16, &[Step]); 3] =
        [(1, &[Write("y", "a")]), (2, &[Append("y", "b")]), (3, &[Read("y")])];
    let mut scope = cluster(name, 3, 3, &txns);
    scope.first_calls = 1;
    scope.budget.crashes = 1;
    scope.may_crash = NodeSet::only(NodeId(crashes));
    scope.changes = vec![Change::WithoutCrashed];
    scope.rests = true;
    scope
}

/// A key goes to a node outside its group, with its data, and from there to another one.
fn outside(name: &'static str, duplicates: u8) -> Scope<Owners> {
    let txns: [(u16, &[Step]); 3] =
        [(2, &[Write("d", "a")]), (1, &[Append("d", "b")]), (4, &[Append("d", "c")])];
    let mut scope = cluster(name, 4, 2, &txns);
    scope.first_calls = 2;
    scope.budget.duplicates = duplicates;
    scope.rests = true;
    scope
}

/// The same, and the owner outside the group, or a member of the group, may crash.
fn outside_crash(name: &'static str, crashes: u16) -> Scope<Owners> {
    let mut scope = outside(name, 0);
    scope.budget.crashes = 1;
    scope.may_crash = NodeSet::only(NodeId(crashes));
    scope.changes = vec![Change::WithoutCrashed];
    scope
}

/// One transaction reads a key, which then moves and is written: a reader must not see the second
/// transaction and miss the first.
fn handover_reads(name: &'static str) -> Scope<Owners> {
    let txns: [(u16, &[Step]); 2] =
        [(1, &[Read("y"), Write("x", "a")]), (2, &[Write("y", "b"), Write("k", "b")])];
    let mut scope = cluster(name, 3, 3, &txns);
    scope.rests = true;
    scope
}

/// Transactions of one pipeline with other followers each, which depend on one another, and whose
/// coordinator may crash: node 4 follows the second and not the first, which that one depends on.
fn pipeline_split(name: &'static str) -> Scope<Owners> {
    let txns: [(u16, &[Step]); 2] =
        [(1, &[Write("h", "a")]), (1, &[Append("h", "b"), Write("c", "b")])];
    let mut scope = cluster(name, 4, 2, &txns);
    scope.budget.crashes = 1;
    scope.may_crash = NodeSet::only(NodeId(1));
    scope.changes = vec![Change::WithoutCrashed];
    scope.rests = true;
    scope
}

/// A transaction overwrites what one before it in the pipeline has read: it does not depend on that
/// one, and nobody may see it without it.
fn write_after_read(name: &'static str) -> Scope<Owners> {
    let txns: [(u16, &[Step]); 2] = [(1, &[Read("c"), Write("h", "a")]), (1, &[Write("c", "b")])];
    let mut scope = cluster(name, 4, 2, &txns);
    scope.budget.crashes = 1;
    scope.may_crash = NodeSet::only(NodeId(1));
    scope.changes = vec![Change::WithoutCrashed];
    scope.rests = true;
    scope
}

/// Two writers, and readers of both keys on all nodes.
fn long_fork(name: &'static str) -> Scope<Owners> {
    let txns: [(u16, &[Step]); 3] =
        [(1, &[Append("y", "a")]), (2, &[Append("k", "b")]), (3, &[Read("k"), Read("y")])];
    let mut scope = cluster(name, 3, 3, &txns);
    scope.rests = true;
    scope
}

/// Each has what the other needs.
fn deadlock(name: &'static str) -> Scope<Owners> {
    let txns: [(u16, &[Step]); 2] =
        [(1, &[Append("y", "a"), Append("k", "a")]), (2, &[Append("k", "b"), Append("y", "b")])];
    let mut scope = cluster(name, 2, 2, &txns);
    scope.rests = true;
    scope
}

/// The default owner of a key is taken out of the view, comes back, and is its default owner again;
/// a node may miss the views in between.
fn default_owner(name: &'static str) -> Scope<Owners> {
    let txns: [(u16, &[Step]); 2] = [(1, &[Append("y", "a")]), (2, &[Append("y", "b")])];
    let mut scope = cluster(name, 2, 2, &txns);
    scope.budget.crashes = 1;
    scope.may_crash = NodeSet::only(NodeId(1));
    scope.changes =
        vec![Change::WithoutCrashed, Change::Rejoin(NodeId(1)), Change::Promote(NodeId(1))];
    scope
}

/// A list that three nodes hold, and these changes of it. Two nodes keep it large.
fn large(name: &'static str, txns: &[(u16, &[Step])]) -> Scope<Owners> {
    let first: &[(u16, &[Step])] = &[(1, &[Put("y", "a")])];
    let mut scope = cluster(name, 3, 3, &[first, txns].concat());
    scope.engine.large = [NodeId(1), NodeId(3)].into_iter().collect();
    scope.first_calls = 1;
    scope.rests = true;
    scope
}

/// Two changes, and the list moves between them.
fn deltas(name: &'static str) -> Scope<Owners> {
    large(name, &[(1, &[Push("y", "b")]), (2, &[Push("y", "c")])])
}

/// Two changes of one pipeline, whose coordinator may crash.
fn deltas_crash(name: &'static str) -> Scope<Owners> {
    let mut scope = large(name, &[(1, &[Push("y", "b")]), (1, &[Push("y", "c")])]);
    scope.budget.crashes = 1;
    scope.may_crash = NodeSet::only(NodeId(1));
    scope.changes = vec![Change::WithoutCrashed];
    scope
}

/// A replica crashes and comes back without the list, while a change is made.
fn deltas_rejoin(name: &'static str) -> Scope<Owners> {
    let mut scope = large(name, &[(1, &[Push("y", "b")])]);
    scope.budget.crashes = 1;
    scope.may_crash = NodeSet::only(NodeId(3));
    scope.changes =
        vec![Change::WithoutCrashed, Change::Rejoin(NodeId(3)), Change::Promote(NodeId(3))];
    scope
}

/// The same, and the coordinator may crash before it is back: what is replayed to it changes what it
/// lacks.
fn deltas_replay(name: &'static str) -> Scope<Owners> {
    let mut scope = large(name, &[(1, &[Push("y", "b")])]);
    scope.budget.crashes = 2;
    scope.may_crash = [NodeId(1), NodeId(3)].into_iter().collect();
    scope.changes = vec![
        Change::WithoutCrashed,
        Change::Rejoin(NodeId(3)),
        Change::WithoutCrashed,
        Change::Promote(NodeId(3)),
    ];
    scope
}

/// Zeus's part of the list.
pub(super) fn entries() -> Vec<Entry> {
    vec![
        Entry {
            name: "zeus-own-race",
            size: Size::Small,
            states: Some(17_391),
            reaches: &["zeus: a round is superseded", "zeus: a request lost to another"],
            run: |name, limits| explore(&race(name), limits),
        },
        Entry {
            name: "zeus-own-lossy",
            size: Size::Gate,
            states: Some(53_067),
            reaches: &["zeus: a round is driven again"],
            run: |name, limits| explore(&lossy(name, 0), limits),
        },
        Entry {
            name: "zeus-night-own-lossy",
            size: Size::Night,
            states: Some(510_680),
            reaches: &["zeus: a round is driven again"],
            run: |name, limits| explore(&lossy(name, 1), limits),
        },
        Entry {
            name: "zeus-own-crash-owner",
            size: Size::Small,
            states: Some(3_447),
            reaches: &["zeus: a default owner claims a key"],
            run: |name, limits| explore(&crash(name, 1), limits),
        },
        Entry {
            name: "zeus-own-crash-requester",
            size: Size::Small,
            states: Some(1_645),
            reaches: &["zeus: a round is settled without its requester"],
            run: |name, limits| explore(&crash(name, 2), limits),
        },
        Entry {
            name: "zeus-outside",
            size: Size::Small,
            states: Some(43),
            reaches: &["zeus: a former owner drops its copy"],
            run: |name, limits| explore(&outside(name, 0), limits),
        },
        Entry {
            name: "zeus-request-twice",
            size: Size::Gate,
            states: Some(35_095),
            reaches: &["zeus: a former owner drops its copy"],
            run: |name, limits| explore(&outside(name, 2), limits),
        },
        Entry {
            name: "zeus-outside-crash-owner",
            size: Size::Gate,
            states: Some(93_857),
            reaches: &["zeus: all nodes have recovered"],
            run: |name, limits| explore(&outside_crash(name, 1), limits),
        },
        Entry {
            name: "zeus-outside-crash-driver",
            size: Size::Night,
            states: Some(327_682),
            reaches: &["zeus: all nodes have recovered"],
            run: |name, limits| explore(&outside_crash(name, 2), limits),
        },
        Entry {
            name: "zeus-handover-reads",
            size: Size::Gate,
            states: Some(40_774),
            reaches: &["zeus: the owner defers its answer"],
            run: |name, limits| explore(&handover_reads(name), limits),
        },
        Entry {
            name: "zeus-pipeline-split",
            size: Size::Small,
            states: Some(9_132),
            reaches: &[
                "zeus: a transaction is replayed",
                "zeus: a transaction waits for what it depends on",
            ],
            run: |name, limits| explore(&pipeline_split(name), limits),
        },
        Entry {
            name: "zeus-write-after-read",
            size: Size::Small,
            states: Some(4_409),
            reaches: &["zeus: a transaction is replayed"],
            run: |name, limits| explore(&write_after_read(name), limits),
        },
        Entry {
            name: "zeus-long-fork",
            size: Size::Small,
            states: Some(4_849),
            reaches: &["zeus: a reader waits for a commit"],
            run: |name, limits| explore(&long_fork(name), limits),
        },
        Entry {
            name: "zeus-deadlock",
            size: Size::Small,
            states: Some(10_805),
            reaches: &["zeus: the owner defers its answer"],
            run: |name, limits| explore(&deadlock(name), limits),
        },
        Entry {
            name: "zeus-default-owner",
            size: Size::Night,
            states: Some(97_939),
            reaches: &["zeus: a replica has joined"],
            run: |name, limits| explore(&default_owner(name), limits),
        },
        Entry {
            name: "zeus-deltas",
            size: Size::Gate,
            states: Some(17_102),
            reaches: &["zeus: ownership acquired"],
            run: |name, limits| explore(&deltas(name), limits),
        },
        Entry {
            name: "zeus-deltas-crash",
            size: Size::Small,
            states: Some(2_643),
            reaches: &["zeus: a transaction is replayed"],
            run: |name, limits| explore(&deltas_crash(name), limits),
        },
        Entry {
            name: "zeus-deltas-rejoin",
            size: Size::Gate,
            states: Some(49_332),
            reaches: &["zeus: a follower lacks what a transaction changes"],
            run: |name, limits| explore(&deltas_rejoin(name), limits),
        },
        Entry {
            name: "zeus-deltas-replay",
            size: Size::Gate,
            states: Some(67_723),
            reaches: &[
                "zeus: a follower is told all of a value",
                "zeus: a transaction is replayed",
            ],
            run: |name, limits| explore(&deltas_replay(name), limits),
        },
    ]
}
