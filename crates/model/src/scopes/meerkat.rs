//! Meerkat's scopes: three replicas, and transactions that conflict.

use quorate_meerkat::Isolation::{self, Serializable, Strict};
use quorate_types::{Duration, NodeId, NodeSet};

use super::{Entry, Size};
use crate::explore::explore;
use crate::meerkat::Transactions;
use crate::scope::{Change, Made, Prior, Scope};
use crate::txn::{Step, Txn};
use crate::votes;

/// Three replicas and these transactions, each at a node.
fn cluster(
    name: &'static str,
    isolation: Isolation,
    txns: &[(u16, &[Step])],
) -> Scope<Transactions> {
    let engine = Transactions {
        isolation,
        message_loss_timeout: Duration::from_millis(20),
        recovery_timeout: Duration::from_secs(10),
        calls: txns.iter().map(|(_, steps)| Txn(steps.to_vec())).collect(),
    };
    let mut scope = Scope::new(name, engine, 3);
    scope.calls = txns.iter().map(|(node, _)| Made { node: NodeId(*node), after: None }).collect();
    scope.real_time = isolation == Strict;
    scope
}

/// Two transactions that read and write one key, at nodes 3 and 2: node 1, the first to take over
/// and the leader of epoch changes, coordinates none.
fn pair(name: &'static str, isolation: Isolation) -> Scope<Transactions> {
    cluster(name, isolation, &[(3, &[Step::Append("k", "a")]), (2, &[Step::Append("k", "b")])])
}

fn plain(name: &'static str, isolation: Isolation) -> Scope<Transactions> {
    Scope { rests: true, ..pair(name, isolation) }
}

/// Each reads what the other writes.
fn skew(name: &'static str) -> Scope<Transactions> {
    let txns: [(u16, &[Step]); 2] = [
        (3, &[Step::Read("x"), Step::Write("y", "a")]),
        (2, &[Step::Read("y"), Step::Write("x", "b")]),
    ];
    Scope { rests: true, ..cluster(name, Serializable, &txns) }
}

/// A reader, and a writer whose clock is behind.
fn lagging(name: &'static str) -> Scope<Transactions> {
    let txns: [(u16, &[Step]); 3] =
        [(1, &[Step::Append("k", "a")]), (2, &[Step::Append("k", "b")]), (3, &[Step::Read("k")])];
    let mut scope = cluster(name, Serializable, &txns);
    scope.ahead = vec![10_000, 0, 0];
    scope.first_calls = 1;
    scope.rests = true;
    scope
}

/// One transaction that may have to take the slow path.
fn lossy(name: &'static str, isolation: Isolation) -> Scope<Transactions> {
    let mut scope = cluster(name, isolation, &[(3, &[Step::Append("k", "a")])]);
    scope.budget.loss = 1;
    scope.budget.timers = vec![0, 0, 2];
    scope.rests = true;
    scope
}

/// The same with more of everything.
fn night_lossy(name: &'static str) -> Scope<Transactions> {
    let mut scope = lossy(name, Serializable);
    scope.budget.duplicates = 1;
    scope.budget.timers = vec![0, 1, 2];
    scope
}

fn repeated(name: &'static str) -> Scope<Transactions> {
    let mut scope = pair(name, Serializable);
    scope.budget.duplicates = 1;
    scope.rests = true;
    scope
}

/// Node 3 may crash, and node 1 takes over from it.
fn takeover(name: &'static str, isolation: Isolation) -> Scope<Transactions> {
    let mut scope = cluster(name, isolation, &[(3, &[Step::Append("k", "a")])]);
    scope.engine.recovery_timeout = Duration::from_millis(1);
    scope.budget.timers = vec![1, 0, 0];
    scope.budget.crashes = 1;
    scope.budget.duplicates = 1;
    scope.may_crash = NodeSet::only(NodeId(3));
    scope
}

fn epoch(name: &'static str, isolation: Isolation) -> Scope<Transactions> {
    let mut scope = pair(name, isolation);
    scope.budget.crashes = 1;
    scope.may_crash = NodeSet::only(NodeId(3));
    scope.changes = vec![Change::WithoutCrashed];
    scope.rests = true;
    scope
}

/// Two changes of epoch in a row, and the leader of the first may crash in between.
fn epochs(name: &'static str) -> Scope<Transactions> {
    let mut scope = cluster(name, Serializable, &[(3, &[Step::Append("k", "a")])]);
    scope.budget.crashes = 1;
    scope.may_crash = NodeSet::only(NodeId(1));
    scope.changes = vec![Change::Same, Change::WithoutCrashed];
    scope.rests = true;
    scope
}

/// Everything at once: a message is lost, one arrives twice, timers run out, the coordinator
/// crashes, and the epoch changes.
fn combined(name: &'static str) -> Scope<Transactions> {
    let mut scope = cluster(name, Serializable, &[(3, &[Step::Append("k", "a")])]);
    scope.budget.loss = 1;
    scope.budget.duplicates = 1;
    scope.budget.timers = vec![1, 1, 1];
    scope.budget.crashes = 1;
    scope.may_crash = NodeSet::only(NodeId(3));
    scope.changes = vec![Change::WithoutCrashed];
    scope.rests = true;
    scope
}

/// The same with a second transaction in the way, and without timers.
fn combined_pair(name: &'static str, duplicates: u8) -> Scope<Transactions> {
    let mut scope = epoch(name, Serializable);
    scope.budget.loss = 1;
    scope.budget.duplicates = duplicates;
    scope
}

/// Five replicas. The first transaction reads what the second overwrites later, so both may commit.
/// It has three of four votes when the exploration begins; then both coordinators crash, and what
/// they announced has to be found out from three replicas.
fn five(name: &'static str) -> Scope<Transactions> {
    let txns: [(u16, &[Step]); 2] =
        [(4, &[Step::Read("k"), Step::Write("m", "a")]), (5, &[Step::Write("k", "b")])];
    let mut scope = cluster(name, Serializable, &txns);
    scope.nodes = 5;
    scope.budget.timers = vec![0; 5];
    let [one, four, five] = [1, 4, 5].map(NodeId);
    scope.prelude = vec![
        Prior::Call(0),
        Prior::Arrives(four, five),
        Prior::Arrives(five, four),
        Prior::Arrives(four, one),
        Prior::Arrives(one, four),
        Prior::Call(1),
    ];
    scope.cut = vec![(four, five)];
    scope.in_order = true;
    scope.budget.crashes = 2;
    scope.may_crash = [four, five].into_iter().collect();
    scope.changes = vec![Change::AfterCrashes];
    scope.rests = true;
    scope
}

fn rejoin(name: &'static str) -> Scope<Transactions> {
    let mut scope = cluster(name, Serializable, &[(3, &[Step::Append("k", "a")])]);
    scope.budget.crashes = 1;
    scope.may_crash = NodeSet::only(NodeId(2));
    scope.changes =
        vec![Change::WithoutCrashed, Change::Rejoin(NodeId(2)), Change::Promote(NodeId(2))];
    scope.rests = true;
    scope
}

pub(super) fn entries() -> Vec<Entry> {
    vec![
        Entry {
            name: "meerkat-votes-3",
            size: Size::Small,
            states: Some(38_778),
            reaches: &[],
            run: |name, limits| votes::explore(name, 3, 2, limits),
        },
        Entry {
            name: "meerkat-votes-5",
            size: Size::Small,
            states: Some(160_214),
            reaches: &[],
            run: |name, limits| votes::explore(name, 5, 1, limits),
        },
        Entry {
            name: "meerkat-votes-7",
            size: Size::Gate,
            states: Some(41_890),
            reaches: &[],
            run: |name, limits| votes::explore(name, 7, 0, limits),
        },
        Entry {
            name: "meerkat-night-votes-5",
            size: Size::Night,
            states: Some(2_157_162),
            reaches: &[],
            run: |name, limits| votes::explore(name, 5, 2, limits),
        },
        Entry {
            name: "meerkat-plain",
            size: Size::Small,
            states: Some(9274),
            reaches: &[],
            run: |name, limits| explore(&plain(name, Serializable), limits),
        },
        Entry {
            name: "meerkat-plain-strict",
            size: Size::Small,
            states: Some(9274),
            reaches: &[],
            run: |name, limits| explore(&plain(name, Strict), limits),
        },
        Entry {
            name: "meerkat-skew",
            size: Size::Small,
            states: Some(9274),
            reaches: &[],
            run: |name, limits| explore(&skew(name), limits),
        },
        Entry {
            name: "meerkat-lagging",
            size: Size::Small,
            states: Some(320),
            reaches: &[],
            run: |name, limits| explore(&lagging(name), limits),
        },
        Entry {
            name: "meerkat-lossy",
            size: Size::Gate,
            states: Some(103_797),
            reaches: &["meerkat: slow path"],
            run: |name, limits| explore(&lossy(name, Serializable), limits),
        },
        Entry {
            name: "meerkat-lossy-strict",
            size: Size::Gate,
            states: Some(88_217),
            reaches: &["meerkat: slow path", "meerkat: commit-wait"],
            run: |name, limits| explore(&lossy(name, Strict), limits),
        },
        Entry {
            name: "meerkat-night-lossy",
            size: Size::Night,
            states: Some(3_997_080),
            reaches: &["meerkat: slow path"],
            run: |name, limits| explore(&night_lossy(name), limits),
        },
        Entry {
            name: "meerkat-repeated",
            size: Size::Gate,
            states: Some(212_553),
            reaches: &["meerkat: slow path"],
            run: |name, limits| explore(&repeated(name), limits),
        },
        Entry {
            name: "meerkat-takeover",
            size: Size::Gate,
            states: Some(540_368),
            reaches: &["meerkat: decided as a backup"],
            run: |name, limits| explore(&takeover(name, Serializable), limits),
        },
        Entry {
            name: "meerkat-takeover-strict",
            size: Size::Gate,
            states: Some(383_030),
            reaches: &["meerkat: decided as a backup"],
            run: |name, limits| explore(&takeover(name, Strict), limits),
        },
        Entry {
            name: "meerkat-epoch",
            size: Size::Small,
            states: Some(27_151),
            reaches: &["meerkat: epoch released"],
            run: |name, limits| explore(&epoch(name, Serializable), limits),
        },
        Entry {
            name: "meerkat-epoch-strict",
            size: Size::Small,
            states: Some(27_151),
            reaches: &["meerkat: epoch released"],
            run: |name, limits| explore(&epoch(name, Strict), limits),
        },
        Entry {
            name: "meerkat-epochs",
            size: Size::Small,
            states: Some(1677),
            reaches: &["meerkat: epoch released"],
            run: |name, limits| explore(&epochs(name), limits),
        },
        Entry {
            name: "meerkat-combined",
            size: Size::Gate,
            states: Some(942_179),
            reaches: &["meerkat: epoch released", "meerkat: slow path"],
            run: |name, limits| explore(&combined(name), limits),
        },
        Entry {
            name: "meerkat-combined-pair",
            size: Size::Gate,
            states: Some(91_029),
            reaches: &["meerkat: epoch released"],
            run: |name, limits| explore(&combined_pair(name, 0), limits),
        },
        Entry {
            name: "meerkat-night-combined",
            size: Size::Night,
            states: Some(1_309_387),
            reaches: &["meerkat: epoch released"],
            run: |name, limits| explore(&combined_pair(name, 1), limits),
        },
        Entry {
            name: "meerkat-five",
            size: Size::Small,
            states: Some(47_609),
            reaches: &["meerkat: epoch released"],
            run: |name, limits| explore(&five(name), limits),
        },
        Entry {
            name: "meerkat-rejoin",
            size: Size::Small,
            states: Some(4379),
            reaches: &["meerkat: epoch released"],
            run: |name, limits| explore(&rejoin(name), limits),
        },
    ]
}
