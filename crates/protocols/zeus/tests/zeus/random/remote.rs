//! Runs in which most reads are of keys without a copy where they are read.

use std::collections::BTreeMap;

use super::{PLAN, Plan, sweep};

#[test]
fn reads_of_keys_without_copies_are_strictly_serializable() {
    let plan = Plan { nodes: 6, replicas: 2, keys: 6, sent: 20, steps: 500, ..PLAN };
    let mut probes = BTreeMap::new();
    let mut add = |more: BTreeMap<&'static str, u64>| {
        more.into_iter().for_each(|(name, count)| *probes.entry(name).or_insert(0) += count);
    };
    add(sweep(50, Plan { lost: 0, repeated: 0, trouble: 0, ..plan }));
    add(sweep(50, plan));
    add(sweep(30, Plan { nodes: 5, replicas: 1, keys: 3, ..plan }));
    add(sweep(30, Plan { lanes: 2, trouble: 30, ..plan }));
    add(sweep(30, Plan { nodes: 7, lost: 200, repeated: 300, trouble: 40, ..plan }));
    let moves = Plan { spares: 2, trouble: 20, moves: 20, ..plan };
    add(sweep(30, Plan { nodes: 5, ..moves }));
    add(sweep(30, Plan { nodes: 4, lanes: 2, lists: true, ..moves }));
    let forgets = Plan { collect_ms: 20, deletes: 8, watches: 30, steps: 1000, ..plan };
    add(sweep(30, Plan { keys: 4, ..forgets }));
    add(sweep(30, Plan { nodes: 4, spares: 2, moves: 20, trouble: 20, ..forgets }));
    for (name, least) in [
        ("zeus: a reader's copies are confirmed", 1_000),
        ("zeus: what a reader has seen has changed", 100),
        ("zeus: a member is asked for what is not committed", 100),
        ("zeus: a reader asks again", 100),
        ("zeus: a reader becomes an owner", 10),
    ] {
        let count = probes.get(name).copied().unwrap_or(0);
        assert!(count > least, "seldom: {name}: {count} times");
    }
}
