//! Runs in which nodes outside the groups of keys get copies of what they read.

use std::collections::BTreeMap;

use super::{Logs, PLAN, Plan, sweep};

#[test]
fn reads_of_extra_copies_are_strictly_serializable() {
    let plan =
        Plan { nodes: 6, replicas: 2, keys: 4, sent: 20, steps: 500, extra_after: 1, ..PLAN };
    let mut probes = BTreeMap::new();
    let mut add = |more: BTreeMap<&'static str, u64>| {
        more.into_iter().for_each(|(name, count)| *probes.entry(name).or_insert(0) += count);
    };
    add(sweep(50, Plan { lost: 0, repeated: 0, trouble: 0, ..plan }));
    add(sweep(50, plan));
    add(sweep(30, Plan { nodes: 5, replicas: 1, keys: 3, ..plan }));
    add(sweep(50, Plan { lanes: 2, trouble: 30, ..plan }));
    add(sweep(50, Plan { nodes: 7, lost: 200, repeated: 300, trouble: 40, ..plan }));
    let moves = Plan { spares: 2, trouble: 20, moves: 20, ..plan };
    add(sweep(30, Plan { nodes: 5, ..moves }));
    add(sweep(30, Plan { nodes: 4, lanes: 2, lists: true, ..moves }));
    add(sweep(30, Plan { lists: true, lost: 200, ..plan }));
    let forgets = Plan { collect_ms: 20, deletes: 8, watches: 30, steps: 1000, ..plan };
    add(sweep(30, Plan { keys: 4, ..forgets }));
    add(sweep(30, Plan { nodes: 4, spares: 2, moves: 20, trouble: 20, ..forgets }));
    add(sweep(30, Plan { lanes: 2, trouble: 20, ..forgets }));
    for (name, least) in [
        ("zeus: a reader gets a copy", 1_000),
        ("zeus: an owner withdraws extra copies", 300),
        ("zeus: a copy is withdrawn", 1_000),
        ("zeus: a reader drops its copy", 100),
    ] {
        let count = probes.get(name).copied().unwrap_or(0);
        assert!(count > least, "seldom: {name}: {count} times");
    }
}

/// What comes back from a log are no extra copies: their owners don't know of them.
#[test]
fn extra_copies_end_when_all_power_is_lost() {
    let plan = Plan { nodes: 6, replicas: 2, keys: 4, sent: 20, steps: 500, ..PLAN };
    let probes = sweep(50, Plan { logs: Logs::Sync, extra_after: 1, ..plan });
    for name in ["zeus: goes on from its log", "zeus: a reader gets a copy"] {
        assert!(probes.get(name).is_some_and(|count| *count > 100), "seldom: {name}: {probes:?}");
    }
}
