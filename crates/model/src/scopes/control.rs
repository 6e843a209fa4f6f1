//! Scopes of what stands under the engines: the configuration log, and views with their leases.

use quorate_types::{Duration, NodeId, NodeSet};

use super::{Entry, Size};
use crate::explore::explore;
use crate::membership::Members;
use crate::paxos::Duel;
use crate::scope::{Made, Scope};

/// Two proposers.
fn duel(name: &'static str) -> Scope<Duel> {
    let mut scope = Scope::new(name, Duel { calls: vec![b'a', b'b'] }, 3);
    scope.has_views = false;
    scope.copies = 1;
    scope.depth_max = Some(12);
    scope.calls = [1, 2].map(|node| Made { node: NodeId(node), after: None }).to_vec();
    scope
}

fn campaigns(name: &'static str) -> Scope<Duel> {
    let mut scope = duel(name);
    scope.budget.timers = vec![1, 1, 0];
    scope
}

fn paxos_crash(name: &'static str) -> Scope<Duel> {
    let mut scope = duel(name);
    scope.budget.timers = vec![0, 1, 0];
    scope.budget.crashes = 1;
    scope.may_crash = NodeSet::only(NodeId(1));
    scope
}

/// Three members; node 3 stops for as long as it likes, and the others remove it.
fn leases(name: &'static str, timers: [u8; 3]) -> Scope<Members> {
    let engine = Members {
        nodes: 3,
        lease: Duration::from_millis(150),
        heartbeat: Duration::from_millis(100),
        suspect_after: Duration::from_millis(100),
        drift_ppm: 1_000,
    };
    let mut scope = Scope::new(name, engine, 3);
    scope.has_views = false;
    scope.copies = 1;
    scope.depth_max = Some(11);
    scope.settle = Duration::from_millis(350);
    // Node 1's clock is fast by all that is allowed.
    scope.fast = vec![1_000, 0, 0];
    scope.budget.timers = timers.to_vec();
    scope
}

pub(super) fn entries() -> Vec<Entry> {
    vec![
        Entry {
            name: "paxos-duel",
            size: Size::Small,
            states: Some(148_014),
            reaches: &[],
            run: |name, limits| explore(&duel(name), limits),
        },
        Entry {
            name: "paxos-campaigns",
            size: Size::Night,
            states: None,
            reaches: &[],
            run: |name, limits| explore(&campaigns(name), limits),
        },
        Entry {
            name: "paxos-crash",
            size: Size::Night,
            states: Some(591_819),
            reaches: &[],
            run: |name, limits| explore(&paxos_crash(name), limits),
        },
        Entry {
            name: "membership-removal",
            size: Size::Gate,
            states: Some(177_783),
            reaches: &[],
            run: |name, limits| explore(&leases(name, [2, 0, 0]), limits),
        },
        Entry {
            name: "membership-leases",
            size: Size::Night,
            states: None,
            reaches: &[],
            run: |name, limits| explore(&leases(name, [3, 0, 1]), limits),
        },
    ]
}
