//! Runs in which nodes are short of memory.

use std::collections::BTreeMap;

use quorate_zeus::Extra;

use super::{Logs, PLAN, Plan, Run, sweep};

impl Run {
    /// Every lane of a node hears that memory is short. It asks for no extra copies for longer than most of
    /// a run lasts; so where there are to be some, it is a node that has one.
    pub(super) fn run_short(&mut self) {
        let has_copy = |node: &u16| {
            let keys = self.keys().into_iter();
            let mut records = keys.filter_map(|key| self.cluster.record(*node, &key));
            records.any(|(meta, _)| meta.extra == Extra::Kept)
        };
        let with_copy = self.nodes().find(has_copy);
        let is_any = self.plan.extra_after > 1;
        let Some(node) = with_copy.or_else(|| is_any.then(|| self.node())) else { return };
        for lane in 0..self.plan.lanes {
            self.cluster.act_on(node, lane, |machine, now, outbox| {
                machine.short_of_memory(now, outbox);
            });
        }
    }
}

#[test]
fn copies_that_give_way_are_missed_by_nobody() {
    let plan = Plan { nodes: 6, replicas: 2, keys: 4, sent: 20, steps: 500, short: 150, ..PLAN };
    let mut probes = BTreeMap::new();
    let mut add = |more: BTreeMap<&'static str, u64>| {
        more.into_iter().for_each(|(name, count)| *probes.entry(name).or_insert(0) += count);
    };
    for extra_after in [1, 16] {
        let plan = Plan { extra_after, ..plan };
        let calm = Plan { lost: 0, repeated: 0, trouble: 0, ..plan };
        add(sweep(30, calm));
        add(sweep(30, plan));
        add(sweep(30, Plan { lanes: 2, trouble: 30, ..plan }));
        // Copies last for a while where little is under way.
        add(sweep(70, Plan { steps: 3000, sent: 4, trouble: 2, ..plan }));
        add(sweep(30, Plan { patient: true, lanes: 2, ..calm }));
        add(sweep(30, Plan { nodes: 7, lost: 200, repeated: 300, trouble: 40, ..plan }));
        let moves = Plan { nodes: 4, spares: 2, trouble: 20, moves: 20, ..plan };
        add(sweep(30, Plan { lanes: 2, lists: true, ..moves }));
        add(sweep(30, Plan { collect_ms: 20, deletes: 8, watches: 30, steps: 1000, ..plan }));
        add(sweep(30, Plan { logs: Logs::Sync, calls: 30, ..plan }));
    }
    for (name, least) in [
        ("zeus: an extra copy gives way", 60),
        ("zeus: an owner outside the group gives its key back", 150),
    ] {
        let count = probes.get(name).copied().unwrap_or(0);
        assert!(count > least, "seldom: {name}: {count} times");
    }
}
