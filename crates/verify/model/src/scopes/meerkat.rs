//! Meerkat's scopes: three replicas, and transactions that conflict.

use quorate_meerkat::Isolation::{self, Serializable, Strict};
use quorate_types::{Duration, NodeId, NodeSet};

use super::{Entry, Size};
use crate::explore::explore;
use crate::meerkat::Transactions;
use crate::scope::{Change, Made, Prior, Scope};
use crate::served::Asked;
use crate::txn::{Step, Txn};
use crate::votes;

/// Three replicas and these transactions, each at a node.
pub(super) fn cluster(
    name: &'static str,
    isolation: Isolation,
    txns: &[(u16, &[Step])],
) -> Scope<Transactions> {
    let plain = |(node, steps): &(u16, &[Step])| (*node, Asked::Plain(Txn(steps.to_vec())), None);
    asked(name, isolation, &txns.iter().map(plain).collect::<Vec<_>>())
}

/// The same for any requests of clients. A request with a second number waits for the answer to the
/// request of that number.
pub(super) fn asked(
    name: &'static str,
    isolation: Isolation,
    calls: &[(u16, Asked<Txn>, Option<usize>)],
) -> Scope<Transactions> {
    let engine = Transactions {
        isolation,
        message_loss_timeout: Duration::from_millis(20),
        recovery_timeout: Duration::from_secs(10),
        large: NodeSet::EMPTY,
        calls: calls.iter().map(|(_, asked, _)| asked.clone()).collect(),
    };
    let mut scope = Scope::new(name, engine, 3);
    let made = |(node, _, after): &(u16, Asked<Txn>, Option<usize>)| Made {
        node: NodeId(*node),
        after: *after,
    };
    scope.calls = calls.iter().map(made).collect();
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

/// The coordinator is taken out of the view while it runs. Its transaction may wait for ever: a
/// process that is out of the view ends, or begins anew.
fn expelled(name: &'static str) -> Scope<Transactions> {
    let mut scope = epoch(name, Serializable);
    scope.budget.crashes = 0;
    scope.changes = vec![Change::Without(NodeId(3))];
    scope.rests = false;
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

/// As `combined`, and the coordinator comes back; only the leader's timer runs out.
fn returns(name: &'static str) -> Scope<Transactions> {
    let mut scope = combined(name);
    scope.budget.timers = vec![1, 0, 0];
    scope.changes.extend([Change::Rejoin(NodeId(3)), Change::Promote(NodeId(3))]);
    scope
}

/// As `epoch`, whose two transactions conflict, with a loss and with `duplicates`.
fn combined_pair(name: &'static str, duplicates: u8) -> Scope<Transactions> {
    let mut scope = epoch(name, Serializable);
    scope.budget.loss = 1;
    scope.budget.duplicates = duplicates;
    scope
}

/// Five replicas. The first transaction reads a key that the second overwrites later, so both may
/// commit. The first has three of four votes when the exploration begins; then both coordinators
/// crash, and three replicas have to find out which commits were announced.
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

/// A replica that holds a key is taken out while it lives, perhaps in the midst of a transaction
/// over that key, and comes back by comparing.
fn returned(name: &'static str) -> Scope<Transactions> {
    let txns: [(u16, &[Step]); 2] =
        [(1, &[Step::Append("k", "a")]), (2, &[Step::Append("k", "b")])];
    let mut scope = cluster(name, Serializable, &txns);
    let three = NodeId(3);
    scope.first_calls = 1;
    scope.changes = vec![Change::Without(three), Change::Return(three), Change::Promote(three)];
    scope.rests = true;
    scope
}

/// The same without a transaction under way. Meanwhile one of the keys was deleted, and the others
/// have forgotten it; and while the replica compares, a transaction reads the other key.
fn returned_deleted(name: &'static str) -> Scope<Transactions> {
    let txns: [(u16, &[Step]); 3] = [
        (1, &[Step::Write("k", "a"), Step::Write("m", "b")]),
        (1, &[Step::Delete("m")]),
        (2, &[Step::Read("k"), Step::Write("n", "c")]),
    ];
    let mut scope = cluster(name, Serializable, &txns);
    let three = NodeId(3);
    scope.first_calls = 1;
    scope.prelude = vec![
        Prior::View(Change::Without(three)),
        Prior::Call(1),
        Prior::Passes(Duration::from_secs(3)),
    ];
    scope.changes = vec![Change::Return(three), Change::Promote(three)];
    scope.rests = true;
    scope
}

/// A list that all three replicas hold, and these transactions. Two of them keep it large.
fn large(name: &'static str, txns: &[(u16, &[Step])]) -> Scope<Transactions> {
    let prior: [(u16, &[Step]); 1] = [(1, &[Step::Put("k", "a")])];
    let mut scope = cluster(name, Serializable, &[&prior[..], txns].concat());
    scope.engine.large = [NodeId(1), NodeId(3)].into_iter().collect();
    scope.first_calls = 1;
    scope.rests = true;
    scope
}

/// Two changes of one list. A replica may hear of the later one's commit first.
fn deltas(name: &'static str) -> Scope<Transactions> {
    large(name, &[(3, &[Step::Push("k", "b")]), (2, &[Step::Push("k", "c")])])
}

/// The same, and a coordinator may crash.
fn deltas_epoch(name: &'static str) -> Scope<Transactions> {
    let mut scope = deltas(name);
    scope.budget.crashes = 1;
    scope.may_crash = NodeSet::only(NodeId(3));
    scope.changes = vec![Change::WithoutCrashed];
    scope
}

/// A replica that holds the list crashes and comes back without it, while a change is made.
fn deltas_rejoin(name: &'static str) -> Scope<Transactions> {
    let mut scope = large(name, &[(1, &[Step::Push("k", "b")])]);
    scope.budget.crashes = 1;
    scope.may_crash = NodeSet::only(NodeId(3));
    scope.changes =
        vec![Change::WithoutCrashed, Change::Rejoin(NodeId(3)), Change::Promote(NodeId(3))];
    scope
}

/// Two transactions of one node meet that of another there, wait for its end and share an attempt.
fn shared(name: &'static str) -> Scope<Transactions> {
    let appends: [(u16, &[Step]); 3] = [
        (2, &[Step::Append("k", "a")]),
        (3, &[Step::Append("k", "b")]),
        (3, &[Step::Append("k", "c")]),
    ];
    let mut scope = cluster(name, Strict, &appends);
    let arrives = Prior::Arrives(NodeId(2), NodeId(3));
    scope.prelude = vec![Prior::Call(0), arrives, Prior::Call(1), Prior::Call(2)];
    scope.rests = true;
    scope
}

/// Three of one node, which may crash.
fn shared_epoch(name: &'static str) -> Scope<Transactions> {
    let appends: [(u16, &[Step]); 3] = [
        (3, &[Step::Append("k", "a")]),
        (3, &[Step::Append("k", "b")]),
        (3, &[Step::Append("k", "c")]),
    ];
    let mut scope = cluster(name, Strict, &appends);
    scope.rests = true;
    scope.budget.crashes = 1;
    scope.may_crash = NodeSet::only(NodeId(3));
    scope.changes = vec![Change::WithoutCrashed];
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

/// A node has come back as a learner and copied everything. The coordinator of a transaction that
/// has one of two votes may crash, and two changes of epoch follow before the learner is active.
fn learner(name: &'static str) -> Scope<Transactions> {
    let mut scope = cluster(name, Serializable, &[(3, &[Step::Append("k", "a")])]);
    let [one, two, three] = [1, 2, 3].map(NodeId);
    scope.prelude = vec![
        Prior::Crash(two),
        Prior::View(Change::WithoutCrashed),
        Prior::View(Change::Rejoin(two)),
        Prior::Call(0),
        Prior::Arrives(three, one),
    ];
    scope.budget.crashes = 1;
    scope.may_crash = NodeSet::only(three);
    scope.changes = vec![Change::WithoutCrashed, Change::Same, Change::Promote(two)];
    scope.rests = true;
    scope
}

/// The date up to which leases are granted: far beyond the clocks of a scope.
const GRANTED: u64 = 1_000_000_000;

/// A try at a call of one of two sessions; the client has the answers of all calls below `first`.
pub(super) fn attempt(session: u64, sequence: u64, first: u64, steps: &[Step]) -> Asked<Txn> {
    Asked::attempt([session, sequence, first], GRANTED, Txn(steps.to_vec()))
}

/// Two sessions; one tries its call at two replicas. The other session's call, which mostly changes
/// nothing, follows the answer to the second try (P3).
fn calls(name: &'static str) -> Scope<Transactions> {
    let mine = attempt(0, 0, 0, &[Step::Append("k", "a")]);
    let theirs = attempt(1, 0, 0, &[Step::Claim("k", "b")]);
    let calls = [(1, mine.clone(), None), (2, mine, None), (3, theirs, Some(1))];
    Scope { rests: true, ..asked(name, Strict, &calls) }
}

/// The coordinator of the first try crashes, and others may finish that try.
fn calls_crash(name: &'static str) -> Scope<Transactions> {
    let mine = attempt(0, 0, 0, &[Step::Append("k", "a")]);
    let mut scope = asked(name, Strict, &[(3, mine.clone(), None), (2, mine, None)]);
    scope.budget.crashes = 1;
    scope.may_crash = NodeSet::only(NodeId(3));
    scope.changes = vec![Change::WithoutCrashed];
    scope.rests = true;
    scope
}

/// The coordinator crashes when both other replicas have voted, or hears their votes. While one
/// replica takes over, the call is tried at the other.
fn calls_takeover(name: &'static str) -> Scope<Transactions> {
    // Two attempts at the call conflict at no key.
    let mine = attempt(0, 0, 0, &[Step::Write("k", "a")]);
    let mut scope = asked(name, Strict, &[(3, mine.clone(), None), (2, mine, None)]);
    scope.engine.recovery_timeout = Duration::from_millis(1);
    let [one, two, three] = [1, 2, 3].map(NodeId);
    scope.prelude = vec![Prior::Call(0), Prior::Arrives(three, one), Prior::Arrives(three, two)];
    scope.in_order = true;
    scope.budget.timers = vec![1, 0, 0];
    scope.budget.crashes = 1;
    scope.may_crash = NodeSet::only(NodeId(3));
    scope
}

/// The coordinator crashes and comes back, and the call is tried again there after the answer to an
/// earlier try (P1).
fn calls_return(name: &'static str, tries: &[(u16, Option<usize>)]) -> Scope<Transactions> {
    let mine = attempt(0, 0, 0, &[Step::Append("k", "a")]);
    let calls: Vec<_> = tries.iter().map(|(node, after)| (*node, mine.clone(), *after)).collect();
    let mut scope = asked(name, Strict, &calls);
    scope.budget.crashes = 1;
    scope.may_crash = NodeSet::only(NodeId(3));
    scope.changes =
        vec![Change::WithoutCrashed, Change::Rejoin(NodeId(3)), Change::Promote(NodeId(3))];
    scope.rests = true;
    scope
}

/// A call is acknowledged by the next one, while a late duplicate of it arrives elsewhere.
fn calls_acknowledged(name: &'static str) -> Scope<Transactions> {
    let first = attempt(0, 0, 0, &[Step::Append("k", "a")]);
    let calls = [
        (1, first.clone(), None),
        (1, attempt(0, 1, 1, &[Step::Append("k", "b")]), Some(0)),
        (2, first.clone(), Some(0)),
        (3, first, Some(1)),
    ];
    Scope { rests: true, ..asked(name, Strict, &calls) }
}

/// A session is forgotten by two replicas in their own time, and late duplicates arrive at both.
fn calls_expired(name: &'static str) -> Scope<Transactions> {
    let first = attempt(0, 0, 0, &[Step::Append("k", "a")]);
    let end = Asked::end(0, GRANTED);
    let calls = [
        (1, first.clone(), None),
        (2, end.clone(), Some(0)),
        (3, end, Some(0)),
        (2, first.clone(), Some(0)),
        (3, first, Some(2)),
        // Its lease lasts longer.
        (2, Asked::attempt([1, 0, 0], 2 * GRANTED, Txn(vec![Step::Append("k", "b")])), Some(1)),
    ];
    Scope { rests: true, ..asked(name, Strict, &calls) }
}

pub(super) fn entries() -> Vec<Entry> {
    vec![
        Entry {
            name: "meerkat-deltas",
            size: Size::Small,
            states: Some(9726),
            reaches: &["meerkat: a commit whose base is not here"],
            run: |name, limits| explore(&deltas(name), limits),
        },
        Entry {
            name: "meerkat-deltas-epoch",
            size: Size::Gate,
            states: Some(27_594),
            reaches: &["meerkat: epoch change"],
            run: |name, limits| explore(&deltas_epoch(name), limits),
        },
        Entry {
            name: "meerkat-deltas-rejoin",
            size: Size::Small,
            states: Some(8286),
            reaches: &["meerkat: a learner asks for a base"],
            run: |name, limits| explore(&deltas_rejoin(name), limits),
        },
        Entry {
            name: "meerkat-shared",
            size: Size::Small,
            states: Some(38),
            reaches: &["meerkat: transactions combined"],
            run: |name, limits| explore(&shared(name), limits),
        },
        Entry {
            name: "meerkat-shared-epoch",
            size: Size::Gate,
            states: Some(125_441),
            reaches: &["meerkat: transactions combined"],
            run: |name, limits| explore(&shared_epoch(name), limits),
        },
        Entry {
            name: "meerkat-votes-3",
            size: Size::Small,
            states: Some(38_778),
            reaches: &[],
            run: |name, limits| votes::explore(name, 3, 2, false, limits),
        },
        Entry {
            name: "meerkat-votes-5",
            size: Size::Gate,
            states: Some(160_214),
            reaches: &[],
            run: |name, limits| votes::explore(name, 5, 1, false, limits),
        },
        Entry {
            name: "meerkat-votes-7",
            size: Size::Gate,
            states: Some(41_890),
            reaches: &[],
            run: |name, limits| votes::explore(name, 7, 0, false, limits),
        },
        Entry {
            name: "meerkat-votes-refused",
            size: Size::Gate,
            states: Some(217_838),
            reaches: &[],
            run: |name, limits| votes::explore(name, 5, 1, true, limits),
        },
        Entry {
            name: "meerkat-night-votes-5",
            size: Size::Night,
            states: Some(2_157_162),
            reaches: &[],
            run: |name, limits| votes::explore(name, 5, 2, false, limits),
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
            states: Some(82_985),
            reaches: &["meerkat: slow path"],
            run: |name, limits| explore(&lossy(name, Serializable), limits),
        },
        Entry {
            name: "meerkat-lossy-strict",
            size: Size::Gate,
            states: Some(68_951),
            reaches: &["meerkat: slow path", "meerkat: commit-wait"],
            run: |name, limits| explore(&lossy(name, Strict), limits),
        },
        Entry {
            name: "meerkat-night-lossy",
            size: Size::Night,
            states: Some(3_253_145),
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
            size: Size::Night,
            states: Some(543_655),
            reaches: &["meerkat: decided as a backup"],
            run: |name, limits| explore(&takeover(name, Serializable), limits),
        },
        Entry {
            name: "meerkat-takeover-strict",
            size: Size::Gate,
            states: Some(393_845),
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
            name: "meerkat-expelled",
            size: Size::Gate,
            states: Some(99_821),
            reaches: &["meerkat: epoch released"],
            run: |name, limits| explore(&expelled(name), limits),
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
            states: Some(1_781),
            reaches: &["meerkat: epoch released"],
            run: |name, limits| explore(&epochs(name), limits),
        },
        Entry {
            name: "meerkat-combined",
            size: Size::Night,
            states: Some(1_470_175),
            reaches: &["meerkat: epoch released", "meerkat: slow path"],
            run: |name, limits| explore(&combined(name), limits),
        },
        Entry {
            name: "meerkat-combined-pair",
            size: Size::Gate,
            states: Some(92_307),
            reaches: &["meerkat: epoch released"],
            run: |name, limits| explore(&combined_pair(name, 0), limits),
        },
        Entry {
            name: "meerkat-night-combined",
            size: Size::Night,
            states: Some(1_310_672),
            reaches: &["meerkat: epoch released"],
            run: |name, limits| explore(&combined_pair(name, 1), limits),
        },
        Entry {
            name: "meerkat-night-return",
            size: Size::Night,
            states: Some(8_466_424),
            reaches: &["meerkat: epoch released"],
            run: |name, limits| explore(&returns(name), limits),
        },
        Entry {
            name: "meerkat-five",
            size: Size::Small,
            states: Some(47_609),
            reaches: &["meerkat: epoch released"],
            run: |name, limits| explore(&five(name), limits),
        },
        Entry {
            name: "meerkat-calls",
            size: Size::Gate,
            states: Some(40_794),
            reaches: &[
                "meerkat: call answered from its record",
                "meerkat: call waits for another attempt at it",
            ],
            run: |name, limits| explore(&calls(name), limits),
        },
        Entry {
            name: "meerkat-calls-crash",
            size: Size::Small,
            states: Some(9221),
            reaches: &["meerkat: call answered from its record", "meerkat: epoch released"],
            run: |name, limits| explore(&calls_crash(name), limits),
        },
        Entry {
            name: "meerkat-calls-takeover",
            size: Size::Small,
            states: Some(3198),
            reaches: &["meerkat: call answered from its record", "meerkat: decided as a backup"],
            run: |name, limits| explore(&calls_takeover(name), limits),
        },
        Entry {
            name: "meerkat-calls-return",
            size: Size::Small,
            states: Some(6_306),
            reaches: &["meerkat: call answered from its record", "meerkat: epoch released"],
            run: |name, limits| explore(&calls_return(name, &[(3, None), (3, Some(0))]), limits),
        },
        Entry {
            name: "meerkat-night-calls-return",
            size: Size::Night,
            states: Some(689_317),
            reaches: &["meerkat: epoch released"],
            run: |name, limits| {
                explore(&calls_return(name, &[(3, None), (2, None), (3, Some(1))]), limits)
            },
        },
        Entry {
            name: "meerkat-calls-acknowledged",
            size: Size::Small,
            states: Some(519),
            reaches: &[],
            run: |name, limits| explore(&calls_acknowledged(name), limits),
        },
        Entry {
            name: "meerkat-calls-expired",
            size: Size::Small,
            states: Some(15_611),
            reaches: &[],
            run: |name, limits| explore(&calls_expired(name), limits),
        },
        Entry {
            name: "meerkat-learner",
            size: Size::Small,
            states: Some(470),
            reaches: &["meerkat: a learner brings what it has not installed"],
            run: |name, limits| explore(&learner(name), limits),
        },
        Entry {
            name: "meerkat-returned",
            size: Size::Small,
            states: Some(9_011),
            reaches: &["meerkat: a record of an earlier life stays"],
            run: |name, limits| explore(&returned(name), limits),
        },
        Entry {
            name: "meerkat-returned-deleted",
            size: Size::Small,
            states: Some(1233),
            reaches: &[
                "meerkat: a record of an earlier life goes",
                "meerkat: a record of an earlier life stays",
            ],
            run: |name, limits| explore(&returned_deleted(name), limits),
        },
        Entry {
            name: "meerkat-rejoin",
            size: Size::Small,
            states: Some(4_948),
            reaches: &["meerkat: epoch released"],
            run: |name, limits| explore(&rejoin(name), limits),
        },
    ]
}
