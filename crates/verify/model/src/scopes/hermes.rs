//! Hermes's scopes: ops that race for one key.

use quorate_types::{Duration, NodeId, NodeSet, hash_key};

use super::{Entry, Size};
use crate::explore::explore;
use crate::hermes::Register;
use crate::register::KEY;
use crate::register::Op::{self, Append, Get, Push, Put, Set};
use crate::scope::{Change, Made, Scope};
use crate::served::Asked;

/// Replicas and these ops, each at a node, in any order. An op with a second number waits for the
/// answer to the op of that number.
fn cluster(name: &'static str, nodes: u16, calls: &[(u16, Op, Option<usize>)]) -> Scope<Register> {
    let plain = |(node, op, after): &(u16, Op, Option<usize>)| (*node, Asked::Plain(*op), *after);
    asked(name, nodes, &calls.iter().map(plain).collect::<Vec<_>>())
}

/// The same for any requests of clients.
pub(super) fn asked(
    name: &'static str,
    nodes: u16,
    calls: &[(u16, Asked<Op>, Option<usize>)],
) -> Scope<Register> {
    let calls_made = calls.iter().map(|(_, asked, _)| asked.clone()).collect();
    let engine = Register {
        calls: calls_made,
        large: NodeSet::EMPTY,
        collect_every: Duration::from_secs(3600),
    };
    let mut scope = Scope::new(name, engine, nodes);
    let made = |(node, _, after): &(u16, Asked<Op>, Option<usize>)| Made {
        node: NodeId(*node),
        after: *after,
    };
    scope.calls = calls.iter().map(made).collect();
    scope.settle = Duration::from_millis(200);
    scope
}

fn writes(name: &'static str) -> Scope<Register> {
    let calls = [(1, Set(b'a'), None), (2, Set(b'b'), None), (3, Get, None)];
    Scope { rests: true, ..cluster(name, 3, &calls) }
}

fn updates(name: &'static str) -> Scope<Register> {
    let calls = [(1, Append(b'a'), None), (2, Append(b'b'), None), (3, Get, None)];
    Scope { rests: true, ..cluster(name, 3, &calls) }
}

/// Two racing writes, a read-modify-write on the smaller, and a read of the larger (H12).
fn mixed(name: &'static str) -> Scope<Register> {
    let calls =
        [(2, Set(b'x'), None), (1, Set(b'y'), None), (1, Append(b'z'), Some(1)), (2, Get, Some(0))];
    Scope { rests: true, ..cluster(name, 3, &calls) }
}

fn lossy(name: &'static str, calls: &[(u16, Op, Option<usize>)]) -> Scope<Register> {
    let mut scope = cluster(name, 3, calls);
    scope.budget.loss = 1;
    scope.budget.duplicates = 1;
    scope.budget.timers = vec![1, 0, 1];
    scope.rests = true;
    scope
}

/// The node that acts first for the key: it replays what seems lost after two timeouts.
fn owner(nodes: u16) -> u16 {
    (hash_key(KEY.as_bytes()) % u64::from(nodes)) as u16 + 1
}

/// A read-modify-write that another node replays while its coordinator lives, and a second one
/// built on it (H11).
fn replayed(name: &'static str) -> Scope<Register> {
    let owner = owner(3);
    let calls = [(owner % 3 + 1, Append(b'a'), None), (owner, Append(b'b'), None)];
    let mut scope = cluster(name, 3, &calls);
    scope.budget.timers[usize::from(owner) - 1] = 2;
    scope
}

/// The published counter-example: acknowledgements of an epoch that has ended.
fn crash(name: &'static str) -> Scope<Register> {
    let calls = [(1, Append(b'a'), None), (2, Append(b'b'), None)];
    let mut scope = cluster(name, 3, &calls);
    scope.budget.crashes = 1;
    scope.may_crash = NodeSet::only(NodeId(2));
    scope.changes = vec![Change::WithoutCrashed];
    scope.budget.timers = vec![0, 0, 1];
    scope.rests = true;
    scope
}

/// The second node is taken out of the view while it runs, and comes back as another member.
fn expelled(name: &'static str) -> Scope<Register> {
    let mut scope = crash(name);
    scope.budget.crashes = 0;
    scope.changes = vec![Change::Without(NodeId(2)), Change::Rejoin(NodeId(2))];
    scope
}

/// A node that holds the key is taken out of the view while it runs, perhaps in the midst of a
/// read-modify-write of another one, and comes back by comparing.
fn returned(name: &'static str) -> Scope<Register> {
    let calls = [(1, Set(b'a'), None), (2, Append(b'b'), None)];
    let mut scope = cluster(name, 3, &calls);
    let three = NodeId(3);
    scope.first_calls = 1;
    scope.changes = vec![Change::Without(three), Change::Return(three), Change::Promote(three)];
    scope.rests = true;
    scope
}

/// H1: five nodes, and the coordinators of two read-modify-writes crash.
fn double_crash(name: &'static str) -> Scope<Register> {
    let calls = [(4, Append(b'b'), None), (5, Append(b'a'), None)];
    let mut scope = cluster(name, 5, &calls);
    scope.budget.crashes = 2;
    scope.may_crash = [NodeId(4), NodeId(5)].into_iter().collect();
    scope.changes = vec![Change::WithoutCrashed];
    scope
}

/// A node that crashes, comes back under a new number and writes again (H2).
pub(super) fn rejoin(name: &'static str) -> Scope<Register> {
    let calls = [(1, Set(b'a'), None), (1, Set(b'b'), None)];
    let mut scope = cluster(name, 3, &calls);
    scope.budget.crashes = 1;
    scope.may_crash = NodeSet::only(NodeId(1));
    scope.changes =
        vec![Change::WithoutCrashed, Change::Rejoin(NodeId(1)), Change::Promote(NodeId(1))];
    scope.rests = true;
    scope
}

/// Everything at once: a message is lost, one arrives twice, timers run out, a coordinator crashes
/// and leaves the view.
fn combined(name: &'static str, calls: &[(u16, Op, Option<usize>)]) -> Scope<Register> {
    let mut scope = lossy(name, calls);
    scope.budget.crashes = 1;
    scope.may_crash = NodeSet::only(NodeId(2));
    scope.changes = vec![Change::WithoutCrashed];
    scope
}

/// As `combined`, and the coordinator comes back.
fn returns(name: &'static str, timers: [u8; 3]) -> Scope<Register> {
    let mut scope = combined(name, &[(2, Append(b'a'), None), (1, Set(b'b'), None)]);
    scope.budget.timers = timers.to_vec();
    scope.changes.extend([Change::Rejoin(NodeId(2)), Change::Promote(NodeId(2))]);
    scope
}

/// The date up to which every lease is granted.
const GRANTED: u64 = 9;

/// A try at a call of one of two sessions; the client has the answers of all calls below `first`.
pub(super) fn attempt(session: u64, sequence: u64, first: u64, op: Op) -> Asked<Op> {
    Asked::attempt([session, sequence, first], GRANTED, op)
}

/// Two sessions; one tries its call at two replicas.
fn calls(name: &'static str) -> Scope<Register> {
    let (mine, theirs) = (attempt(0, 0, 0, Append(b'a')), attempt(1, 0, 0, Append(b'b')));
    let calls = [(1, mine.clone(), None), (2, mine, None), (3, theirs, None)];
    Scope { rests: true, ..asked(name, 3, &calls) }
}

/// The coordinator of the first try crashes, and others may finish that try. The other session's
/// call follows the answer to the second try.
fn calls_crash(name: &'static str) -> Scope<Register> {
    let (mine, theirs) = (attempt(0, 0, 0, Append(b'a')), attempt(1, 0, 0, Append(b'b')));
    let calls = [(2, mine.clone(), None), (1, mine, None), (3, theirs, Some(1))];
    let mut scope = asked(name, 3, &calls);
    scope.budget.crashes = 1;
    scope.may_crash = NodeSet::only(NodeId(2));
    scope.changes = vec![Change::WithoutCrashed];
    scope.budget.timers = vec![0, 0, 1];
    scope.rests = true;
    scope
}

/// A call that another node replays while its coordinator lives, and then tries again (H11).
fn calls_replayed(name: &'static str) -> Scope<Register> {
    let owner = owner(3);
    let (mine, theirs) = (attempt(0, 0, 0, Append(b'a')), attempt(1, 0, 0, Append(b'b')));
    let calls = [(owner % 3 + 1, mine, None), (owner, theirs, None)];
    let mut scope = asked(name, 3, &calls);
    scope.budget.timers[usize::from(owner) - 1] = 2;
    scope
}

/// The coordinator crashes and comes back, and the call is tried again there (P1).
fn calls_return(name: &'static str) -> Scope<Register> {
    let (mine, theirs) = (attempt(0, 0, 0, Append(b'a')), attempt(1, 0, 0, Append(b'b')));
    let mut scope =
        asked(name, 3, &[(1, mine.clone(), None), (2, theirs, None), (1, mine, Some(1))]);
    scope.budget.crashes = 1;
    scope.may_crash = NodeSet::only(NodeId(1));
    scope.changes =
        vec![Change::WithoutCrashed, Change::Rejoin(NodeId(1)), Change::Promote(NodeId(1))];
    scope.rests = true;
    scope
}

/// A call is acknowledged by the next one, while a late duplicate of it arrives elsewhere.
fn calls_acknowledged(name: &'static str) -> Scope<Register> {
    let first = attempt(0, 0, 0, Append(b'a'));
    let calls = [
        (1, first.clone(), None),
        (1, attempt(0, 1, 1, Append(b'b')), Some(0)),
        (2, first.clone(), None),
        (3, first, Some(1)),
    ];
    Scope { rests: true, ..asked(name, 3, &calls) }
}

/// A session is forgotten by two replicas in their own time, and late duplicates arrive at both.
fn calls_expired(name: &'static str) -> Scope<Register> {
    let first = attempt(0, 0, 0, Append(b'a'));
    let end = Asked::end(0, GRANTED);
    let calls = [
        (1, first.clone(), None),
        (2, end.clone(), Some(0)),
        (3, end, Some(0)),
        (2, first.clone(), Some(0)),
        (3, first, Some(2)),
        (2, attempt(1, 0, 0, Append(b'b')), None),
    ];
    Scope { rests: true, ..asked(name, 3, &calls) }
}

/// A replay while the coordinator lives, and then it crashes.
fn replayed_crash(name: &'static str) -> Scope<Register> {
    let mut scope = replayed(name);
    scope.budget.crashes = 1;
    scope.may_crash = NodeSet::only(scope.calls[0].node);
    scope.changes = vec![Change::WithoutCrashed];
    scope.rests = true;
    scope
}

/// A list that all three nodes hold, and these ops on it. Two nodes keep it large.
fn large(name: &'static str, calls: &[(u16, Op, Option<usize>)]) -> Scope<Register> {
    let prior = [(1, Put(b'a'), None)];
    let mut scope = cluster(name, 3, &[&prior[..], calls].concat());
    scope.engine.large = [NodeId(1), NodeId(3)].into_iter().collect();
    scope.first_calls = 1;
    scope.rests = true;
    scope
}

/// Two changes of one version, and a read.
fn deltas(name: &'static str) -> Scope<Register> {
    large(name, &[(1, Push(b'b'), None), (2, Push(b'c'), None), (3, Get, None)])
}

/// A change races with two plain writes. The smaller write may be done first, and then be changed.
fn deltas_writes(name: &'static str) -> Scope<Register> {
    large(name, &[(2, Put(b'x'), None), (1, Put(b'y'), None), (1, Push(b'z'), Some(2))])
}

/// The coordinator of a change may crash, and a replica replays it.
fn deltas_crash(name: &'static str) -> Scope<Register> {
    let mut scope = large(name, &[(1, Push(b'b'), None), (2, Push(b'c'), None)]);
    scope.budget.crashes = 1;
    scope.may_crash = NodeSet::only(NodeId(2));
    scope.changes = vec![Change::WithoutCrashed];
    scope.budget.timers = vec![0, 0, 1];
    scope
}

/// A node that holds the list crashes and comes back without it, while two changes are made.
fn deltas_rejoin(name: &'static str) -> Scope<Register> {
    let mut scope = large(name, &[(1, Push(b'b'), None)]);
    scope.budget.crashes = 1;
    scope.may_crash = NodeSet::only(NodeId(3));
    scope.changes =
        vec![Change::WithoutCrashed, Change::Rejoin(NodeId(3)), Change::Promote(NodeId(3))];
    scope
}

/// Changes that wait for one key share an update, and another node changes the key meanwhile.
fn combined_updates(name: &'static str) -> Scope<Register> {
    let (one, other) = (Push(b'b'), Push(b'd'));
    large(name, &[(1, one, None), (1, Push(b'c'), None), (1, Get, None), (2, other, None)])
}

const UPDATES: [(u16, Op, Option<usize>); 2] = [(1, Append(b'a'), None), (2, Append(b'b'), None)];
const PAIR: [(u16, Op, Option<usize>); 2] = [(1, Append(b'a'), None), (2, Set(b'b'), None)];

pub(super) fn entries() -> Vec<Entry> {
    vec![
        Entry {
            name: "hermes-writes",
            size: Size::Small,
            states: Some(2447),
            reaches: &[],
            run: |name, limits| explore(&writes(name), limits),
        },
        Entry {
            name: "hermes-updates",
            size: Size::Small,
            states: Some(2865),
            reaches: &["hermes: read-modify-write superseded"],
            run: |name, limits| explore(&updates(name), limits),
        },
        Entry {
            name: "hermes-mixed",
            size: Size::Small,
            states: Some(12_637),
            reaches: &["hermes: write waits for a read-modify-write"],
            run: |name, limits| explore(&mixed(name), limits),
        },
        Entry {
            name: "hermes-lossy",
            size: Size::Gate,
            states: Some(330_955),
            reaches: &[],
            run: |name, limits| explore(&lossy(name, &PAIR), limits),
        },
        Entry {
            name: "hermes-replayed",
            size: Size::Night,
            states: Some(451_478),
            reaches: &[
                "hermes: replay while the coordinator lives",
                "hermes: replayed read-modify-write answered as done",
            ],
            run: |name, limits| explore(&replayed(name), limits),
        },
        Entry {
            name: "hermes-crash",
            size: Size::Small,
            states: Some(1507),
            reaches: &["hermes: sweep replays an orphan"],
            run: |name, limits| explore(&crash(name), limits),
        },
        Entry {
            name: "hermes-expelled",
            size: Size::Gate,
            states: Some(27_691),
            reaches: &[],
            run: |name, limits| explore(&expelled(name), limits),
        },
        Entry {
            name: "hermes-double-crash",
            size: Size::Gate,
            states: Some(176_167),
            reaches: &[],
            run: |name, limits| explore(&double_crash(name), limits),
        },
        Entry {
            name: "hermes-combined",
            size: Size::Gate,
            states: Some(552_782),
            reaches: &["hermes: sweep replays an orphan"],
            run: |name, limits| explore(&combined(name, &PAIR), limits),
        },
        Entry {
            name: "hermes-return",
            size: Size::Night,
            states: Some(1_358_971),
            reaches: &["hermes: sweep replays an orphan"],
            run: |name, limits| explore(&returns(name, [0; 3]), limits),
        },
        Entry {
            name: "hermes-night-updates",
            size: Size::Night,
            states: Some(561_706),
            reaches: &["hermes: sweep replays an orphan"],
            run: |name, limits| explore(&combined(name, &UPDATES), limits),
        },
        Entry {
            name: "hermes-night-replayed",
            size: Size::Night,
            states: Some(587_982),
            reaches: &[
                "hermes: replay while the coordinator lives",
                "hermes: sweep replays an orphan",
            ],
            run: |name, limits| explore(&replayed_crash(name), limits),
        },
        Entry {
            name: "hermes-night-return",
            size: Size::Night,
            states: Some(1_209_474),
            reaches: &["hermes: sweep replays an orphan"],
            run: |name, limits| explore(&returns(name, [0, 0, 1]), limits),
        },
        Entry {
            name: "hermes-night-return-timed",
            size: Size::Night,
            states: Some(7_249_749),
            reaches: &["hermes: sweep replays an orphan"],
            run: |name, limits| explore(&returns(name, [1, 0, 0]), limits),
        },
        Entry {
            name: "hermes-calls",
            size: Size::Gate,
            states: Some(38_758),
            reaches: &["hermes: call overtaken", "hermes: call completed by a newer version"],
            run: |name, limits| explore(&calls(name), limits),
        },
        Entry {
            name: "hermes-calls-crash",
            size: Size::Gate,
            states: Some(8835),
            reaches: &["hermes: sweep replays an orphan", "hermes: call overtaken"],
            run: |name, limits| explore(&calls_crash(name), limits),
        },
        Entry {
            name: "hermes-calls-return",
            size: Size::Gate,
            states: Some(49_316),
            reaches: &["hermes: sweep replays an orphan"],
            run: |name, limits| explore(&calls_return(name), limits),
        },
        Entry {
            name: "hermes-night-calls-replayed",
            size: Size::Night,
            states: Some(540_269),
            reaches: &["hermes: replay while the coordinator lives"],
            run: |name, limits| explore(&calls_replayed(name), limits),
        },
        Entry {
            name: "hermes-calls-acknowledged",
            size: Size::Gate,
            states: Some(876),
            reaches: &[],
            run: |name, limits| explore(&calls_acknowledged(name), limits),
        },
        Entry {
            name: "hermes-calls-expired",
            size: Size::Gate,
            states: Some(27_413),
            reaches: &[],
            run: |name, limits| explore(&calls_expired(name), limits),
        },
        Entry {
            name: "hermes-returned",
            size: Size::Small,
            states: Some(2898),
            reaches: &[],
            run: |name, limits| explore(&returned(name), limits),
        },
        Entry {
            name: "hermes-deltas",
            size: Size::Small,
            states: Some(2865),
            reaches: &["hermes: read-modify-write superseded"],
            run: |name, limits| explore(&deltas(name), limits),
        },
        Entry {
            name: "hermes-deltas-writes",
            size: Size::Small,
            states: Some(7431),
            reaches: &["hermes: delta on a base that is not here"],
            run: |name, limits| explore(&deltas_writes(name), limits),
        },
        Entry {
            name: "hermes-deltas-crash",
            size: Size::Small,
            states: Some(1507),
            reaches: &["hermes: sweep replays an orphan"],
            run: |name, limits| explore(&deltas_crash(name), limits),
        },
        Entry {
            name: "hermes-deltas-rejoin",
            size: Size::Small,
            states: Some(3557),
            reaches: &["hermes: delta on a base that is not here"],
            run: |name, limits| explore(&deltas_rejoin(name), limits),
        },
        Entry {
            name: "hermes-shared-updates",
            size: Size::Gate,
            states: Some(137_871),
            reaches: &["hermes: ops combined", "hermes: read-modify-write superseded"],
            run: |name, limits| explore(&combined_updates(name), limits),
        },
        Entry {
            name: "hermes-rejoin",
            size: Size::Small,
            states: Some(13_565),
            reaches: &[],
            run: |name, limits| explore(&rejoin(name), limits),
        },
    ]
}
