//! Scopes of the layers under the engines: the configuration log, and views with their leases.

use quorate_membership::Request;
use quorate_types::{Duration, Epoch, NodeId, NodeSet};

use super::{Entry, Size};
use crate::explore::explore;
use crate::membership::Members;
use crate::paxos::Duel;
use crate::scope::{Made, Prior, Scope};

/// Two proposers, of three voters. How often they campaign is bounded by their timers.
fn duel(name: &'static str) -> Scope<Duel> {
    let mut scope = Scope::new(name, Duel { calls: vec![b'a', b'b'] }, 3);
    scope.has_views = false;
    scope.copies = 1;
    scope.calls = [1, 2].map(|node| Made { node: NodeId(node), after: None }).to_vec();
    scope
}

/// The proposers hear of each other only through the third voter.
fn pivot(name: &'static str, timers: [u8; 3]) -> Scope<Duel> {
    let mut scope = duel(name);
    scope.cut = vec![(NodeId(1), NodeId(2))];
    scope.budget.timers = timers.to_vec();
    scope
}

/// Every node hears of every other, on connections in order.
fn connected(name: &'static str) -> Scope<Duel> {
    Scope { in_order: true, ..duel(name) }
}

/// As `connected`, and the first proposer may campaign again.
fn duel_again(name: &'static str) -> Scope<Duel> {
    let mut scope = connected(name);
    scope.budget.timers = vec![1, 0, 0];
    scope
}

/// As `pivot`, and a message is lost.
fn paxos_lossy(name: &'static str) -> Scope<Duel> {
    let mut scope = pivot(name, [0, 1, 0]);
    scope.budget.loss = 1;
    scope
}

/// As `pivot`; both proposers may campaign again, and the first may crash.
fn paxos_crash(name: &'static str) -> Scope<Duel> {
    let mut scope = pivot(name, [1, 1, 0]);
    scope.budget.crashes = 1;
    scope.may_crash = NodeSet::only(NodeId(1));
    scope
}

/// Three members. Leases last for 150 ms and are renewed every 100 ms. A silent member is suspected
/// when a driver says that its connection broke: at once, the worst of all times. The clocks of
/// nodes 1 and 2 are as fast, and that of node 3 as slow, as the members are told to expect.
fn members(name: &'static str, timers: [u8; 3], calls: &[(u16, Request)]) -> Scope<Members> {
    let engine = Members {
        nodes: 3,
        lease: Duration::from_millis(150),
        heartbeat: Duration::from_millis(100),
        suspect_after: Duration::from_millis(300),
        drift_ppm: 1_000,
        last: Epoch(2),
        calls: calls.iter().map(|(_, request)| request.clone()).collect(),
        disks: false,
        revive_patience: Duration::ZERO,
    };
    let mut scope = Scope::new(name, engine, 3);
    scope.has_views = false;
    scope.in_order = true;
    scope.calls = calls.iter().map(|(node, _)| Made { node: NodeId(*node), after: None }).collect();
    scope.settle = Duration::from_millis(350);
    scope.fast = vec![2_000, 2_000, 0];
    scope.budget.timers = timers.to_vec();
    scope
}

/// Node 3 stops, and the others remove it.
fn removal(name: &'static str, timers: [u8; 3]) -> Scope<Members> {
    let calls = [(1, Request::PeerLost(NodeId(3))), (2, Request::PeerLost(NodeId(3)))];
    Scope { paused: NodeSet::only(NodeId(3)), ..members(name, timers, &calls) }
}

/// The connection between nodes 1 and 3 breaks, and node 2 alone grants node 3 its lease.
fn leases(name: &'static str, timers: [u8; 3]) -> Scope<Members> {
    let calls = [(1, Request::PeerLost(NodeId(3)))];
    Scope { cut: vec![(NodeId(1), NodeId(3))], ..members(name, timers, &calls) }
}

/// The same, and node 2's grant is on its way to node 3 for long.
fn late_grant(name: &'static str, timers: [u8; 3]) -> Scope<Members> {
    let [one, two, three] = [1, 2, 3].map(NodeId);
    let mut scope = leases(name, timers);
    scope.prelude = vec![
        Prior::Tick(three),
        Prior::Arrives(three, two),
        Prior::Arrives(two, one),
        Prior::Arrives(one, two),
    ];
    scope
}

/// Node 2 alone has granted node 3 its lease. Node 2 restarts, reaches both others, and takes its
/// slot; then the others lose node 3.
fn successor(name: &'static str, timers: [u8; 3]) -> Scope<Members> {
    let lost = |node| (node, Request::PeerLost(NodeId(3)));
    let mut scope = members(name, timers, &[lost(1), lost(2)]);
    let [one, two, three] = [1, 2, 3].map(NodeId);
    scope.prelude = vec![
        Prior::Tick(three),
        Prior::Arrives(three, two),
        Prior::Arrives(two, three),
        Prior::Tick(one),
        Prior::AllLost,
        Prior::Restart(two),
        Prior::Tick(two),
        Prior::Arrives(two, three),
        Prior::Arrives(three, two),
        Prior::Arrives(two, three),
        Prior::Arrives(two, one),
        Prior::Arrives(one, two),
        Prior::Arrives(two, one),
    ];
    scope.engine.last = Epoch(3);
    scope
}

/// Members with disks, whose leases are short: what matters is which view comes next.
fn on_disks(name: &'static str, timers: [u8; 3], calls: &[(u16, Request)]) -> Scope<Members> {
    let mut scope = members(name, timers, calls);
    scope.engine.disks = true;
    scope.engine.lease = Duration::from_millis(10);
    scope.fast = Vec::new();
    scope
}

/// The nodes come back from their disks, and what they say first is lost: so their promises have lapsed
/// when they are heard.
fn come_back(nodes: &[u16]) -> Vec<Prior> {
    let nodes = || nodes.iter().copied().map(NodeId);
    let first = nodes().flat_map(|node| [Prior::Tick(node), Prior::Arrives(node, node)]);
    let restarts = nodes().map(Prior::Restart);
    let then = nodes().map(Prior::Tick);
    restarts.chain(first).chain([Prior::AllLost]).chain(then).collect()
}

/// Two nodes that have announced themselves hear each other, and have yet to prove that they live.
fn meet(one: NodeId, other: NodeId) -> [Prior; 2] {
    [Prior::Arrives(one, other), Prior::Arrives(other, one)]
}

/// Node 3 was removed before the power went everywhere: what is on its disk is older.
fn revived_with_stale(name: &'static str, timers: [u8; 3]) -> Scope<Members> {
    let lost = |node| (node, Request::PeerLost(NodeId(3)));
    let mut scope = on_disks(name, timers, &[lost(1), lost(2)]);
    let [one, two, three] = [1, 2, 3].map(NodeId);
    scope.prelude = vec![
        Prior::Crash(three),
        Prior::Call(0),
        Prior::Call(1),
        Prior::Passes(Duration::from_millis(150)),
        Prior::Crash(one),
        Prior::Crash(two),
    ];
    scope.prelude.extend(come_back(&[1, 2, 3]));
    scope.prelude.extend(meet(one, two));
    scope.prelude.extend(meet(three, two));
    scope.cut = vec![(one, three)];
    scope.engine.last = Epoch(3);
    scope
}

/// Nodes 1 and 2 come back and stand for the next view each, and node 2 restarts. Node 3 does not come.
fn revived_rivals(name: &'static str, timers: [u8; 3], restarts: u8) -> Scope<Members> {
    let mut scope = on_disks(name, timers, &[]);
    scope.prelude = (1..=3).map(|node| Prior::Crash(NodeId(node))).collect();
    scope.prelude.extend(come_back(&[1, 2]));
    scope.prelude.extend(meet(NodeId(1), NodeId(2)));
    scope.cut = vec![(NodeId(1), NodeId(3)), (NodeId(2), NodeId(3))];
    scope.budget.restarts = restarts;
    scope.may_crash = NodeSet::only(NodeId(2));
    scope
}

/// Node 3 stops, the others remove it, and node 2 restarts meanwhile.
fn removal_with_restart(name: &'static str, timers: [u8; 3]) -> Scope<Members> {
    let mut scope = removal(name, timers);
    scope.engine.disks = true;
    scope.budget.restarts = 1;
    scope.may_crash = NodeSet::only(NodeId(2));
    scope
}

pub(super) fn entries() -> Vec<Entry> {
    vec![
        Entry {
            name: "paxos-pivot",
            size: Size::Small,
            states: Some(86_470),
            reaches: &[],
            run: |name, limits| explore(&pivot(name, [0, 1, 0]), limits),
        },
        Entry {
            name: "paxos-duel",
            size: Size::Gate,
            states: Some(770_205),
            reaches: &[],
            run: |name, limits| explore(&connected(name), limits),
        },
        Entry {
            name: "paxos-lossy",
            size: Size::Gate,
            states: Some(236_963),
            reaches: &[],
            run: |name, limits| explore(&paxos_lossy(name), limits),
        },
        Entry {
            name: "paxos-night-duel",
            size: Size::Night,
            states: Some(17_957_077),
            reaches: &[],
            run: |name, limits| explore(&duel_again(name), limits),
        },
        Entry {
            name: "paxos-night-crash",
            size: Size::Night,
            states: Some(3_922_162),
            reaches: &[],
            run: |name, limits| explore(&paxos_crash(name), limits),
        },
        Entry {
            name: "membership-removal",
            size: Size::Small,
            states: Some(35_993),
            reaches: &[],
            run: |name, limits| explore(&removal(name, [1, 1, 0]), limits),
        },
        Entry {
            name: "membership-renewal",
            size: Size::Gate,
            states: Some(468_411),
            reaches: &["membership: a grant is refused to a member that is being removed"],
            run: |name, limits| explore(&leases(name, [1, 0, 1]), limits),
        },
        Entry {
            name: "membership-night-late-grant",
            size: Size::Night,
            states: Some(2_219_371),
            reaches: &[],
            run: |name, limits| explore(&late_grant(name, [0, 1, 1]), limits),
        },
        Entry {
            name: "membership-night-successor",
            size: Size::Night,
            states: Some(3_181_229),
            reaches: &["membership: a live member's slot goes to its next incarnation"],
            run: |name, limits| explore(&successor(name, [0, 0, 0]), limits),
        },
        Entry {
            name: "membership-removal-twice",
            size: Size::Night,
            states: Some(867_158),
            reaches: &[],
            run: |name, limits| explore(&removal(name, [2, 1, 0]), limits),
        },
        Entry {
            name: "membership-revived-stale",
            size: Size::Small,
            states: Some(3_558),
            reaches: &["membership: a view is revived from disks"],
            run: |name, limits| explore(&revived_with_stale(name, [0, 0, 0]), limits),
        },
        Entry {
            name: "membership-revived-rivals",
            size: Size::Small,
            states: Some(11_005),
            reaches: &["membership: a view is revived from disks"],
            run: |name, limits| explore(&revived_rivals(name, [1, 1, 0], 0), limits),
        },
        Entry {
            name: "membership-revived-restart",
            size: Size::Small,
            states: Some(3_243),
            reaches: &["membership: a view is revived from disks"],
            run: |name, limits| explore(&revived_rivals(name, [0, 1, 0], 1), limits),
        },
        Entry {
            name: "membership-removal-restart",
            size: Size::Small,
            states: Some(27_574),
            reaches: &[],
            run: |name, limits| explore(&removal_with_restart(name, [0, 1, 0]), limits),
        },
        Entry {
            name: "membership-night-removal",
            size: Size::Night,
            states: Some(20_030_805),
            reaches: &[],
            run: |name, limits| explore(&removal(name, [2, 2, 0]), limits),
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explore::Limits;

    const LIMITS: Limits = Limits { threads: 1, steps_max: None };

    /// The scopes depend on the drift of clocks, and break slightly above its bound.
    #[test]
    fn clocks_that_differ_by_more_than_the_bound_break_a_lease() {
        let mut scope = removal("membership-removal", [1, 1, 0]);
        assert_eq!(explore(&scope, LIMITS).violation, None);
        scope.engine.drift_ppm = 990;
        let trace = explore(&scope, LIMITS).violation.expect("the bound is too small");
        let reason = trace.last().expect("a trace ends with a reason");
        assert!(reason.contains("holds its lease and is not live"), "{reason}");
    }
}
