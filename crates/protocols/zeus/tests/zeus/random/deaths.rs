//! Runs in which every member that has a group's data dies for good while other nodes live. The data that
//! only they had is given up; a node outside the group goes on with the keys that it owns.

use std::collections::{BTreeMap, BTreeSet};

use quorate_check::{Bytes, TxnOp, TxnOutcome, TxnRecord};
use quorate_harness::Logs;
use quorate_types::{Role, placement};

use super::{PLAN, Plan, Run, sweep};

impl Run {
    /// All members die that have the data of some key's group, and perhaps who copies it from them.
    pub(super) fn end_group(&mut self) {
        let key = format!("k{}", self.rng.below(self.plan.keys));
        let all_die = self.rng.chance(1, 2);
        let is_hit = |role: Option<Role>| match role {
            Some(Role::Shadow) => all_die,
            role => role == Some(Role::Active),
        };
        let group = self.group_of(placement::shard_of(key.as_bytes()));
        let dying: Vec<u16> = group.filter(|node| is_hit(self.role(*node))).collect();
        let is_active = |node: u16| self.role(node) == Some(Role::Active);
        let lives = |node: u16| !dying.contains(&node) && self.cluster.hosts[&node].up;
        let is_any_left = self.nodes().any(|node| is_active(node) && lives(node));
        if !is_any_left || !dying.iter().any(|node| is_active(*node)) {
            return;
        }
        dying.iter().for_each(|node| self.cluster.crash(*node));
        self.note_given_up();
        let mut roles = self.cluster.roles();
        for (_, role) in roles.iter_mut().filter(|(node, _)| dying.contains(node)) {
            *role = Role::Down;
        }
        let view = self.cluster.decide(&roles);
        self.disorder.announce(&view);
    }

    /// Processes have ended. A key may be lost if all members of its group were among them.
    pub(super) fn note_given_up(&mut self) {
        if self.plan.deaths == 0 {
            return;
        }
        self.clock += 1;
        let has_data = |key: &String| {
            let mut group = self.group_of(placement::shard_of(key.as_bytes()));
            let lives = |node| self.cluster.hosts[&node].up;
            group.any(|node| self.role(node) == Some(Role::Active) && lives(node))
        };
        let lost: Vec<String> = self.keys().into_iter().filter(|key| !has_data(key)).collect();
        self.given_up.extend(lost.into_iter().map(|key| (self.clock, key)));
    }

    /// A member of a group that has no live member.
    pub(super) fn lost_member(&self) -> Option<u16> {
        let is_down = |node: &u16| self.role(*node) == Some(Role::Down);
        let groups = self
            .keys()
            .into_iter()
            .map(|key| self.group_of(placement::shard_of(key.as_bytes())).collect::<Vec<u16>>());
        let lives = |node: &u16| matches!(self.role(*node), Some(Role::Active | Role::Shadow));
        let mut lost = groups.filter(|group| !group.iter().any(lives));
        lost.find_map(|group| group.into_iter().find(is_down))
    }

    /// The history with each key named anew whenever its group has died: what was read of it afterwards may
    /// be as old as what was left of it anywhere. What was under way then tells nothing of the key.
    pub(super) fn by_eras(&self, records: Vec<TxnRecord>) -> Vec<TxnRecord> {
        if self.given_up.is_empty() {
            return records;
        }
        let era = |key: &Bytes, at: u64| {
            let of_key = self.given_up.iter().filter(|(_, other)| other.as_bytes() == key.0);
            of_key.filter(|(given_up, _)| *given_up < at).count()
        };
        let name = |key: &Bytes, era: usize| {
            Bytes([&key.0[..], b"#", era.to_string().as_bytes()].concat())
        };
        let mut judged = Vec::new();
        let mut written = BTreeSet::new();
        let mut read = BTreeMap::new();
        for mut record in records {
            let end = match record.outcome {
                TxnOutcome::Committed { at } | TxnOutcome::Aborted { at } => at,
                TxnOutcome::Unknown => u64::MAX,
            };
            let mut ops = Vec::new();
            for op in core::mem::take(&mut record.ops) {
                let first = era(op.key(), record.invoke);
                let key = name(op.key(), first);
                match op {
                    op if era(op.key(), end) != first => {
                        if let TxnOp::Write { key, value: None } = op {
                            let eras = first + 1..=era(&key, end);
                            judged.extend(eras.map(|era| TxnRecord {
                                outcome: TxnOutcome::Unknown,
                                timestamp: None,
                                ops: vec![TxnOp::Write { key: name(&key, era), value: None }],
                                ..record.clone()
                            }));
                        }
                    }
                    TxnOp::Read { value, version, .. } => {
                        if let (Some(value), Some(version)) = (&value, version) {
                            read.insert((key.clone(), version), value.clone());
                        }
                        ops.push(TxnOp::Read { key, value, version });
                    }
                    TxnOp::Write { value, .. } => {
                        written.extend(record.timestamp.map(|at| (key.clone(), at)));
                        ops.push(TxnOp::Write { key, value });
                    }
                    op => unreachable!("no transaction of these runs is {op}"),
                }
            }
            judged.push(TxnRecord { ops, ..record });
        }
        // What was left of a key was written before.
        let left = read.into_iter().filter(|(of, _)| !written.contains(of)).enumerate();
        judged.extend(left.map(|(at, ((key, version), value))| TxnRecord {
            process: u64::MAX,
            id: 1_000_000 + at as u64,
            invoke: 0,
            outcome: TxnOutcome::Committed { at: u64::MAX },
            timestamp: Some(version),
            ops: vec![TxnOp::Write { key, value: Some(value) }],
        }));
        judged
    }
}

#[test]
fn owners_outlive_groups_that_die_for_good() {
    let plan = Plan {
        nodes: 4,
        replicas: 2,
        keys: 4,
        skew: 0,
        trouble: 40,
        deaths: 10,
        sent: 20,
        steps: 600,
        ..PLAN
    };
    let mut probes = BTreeMap::new();
    let mut add = |more: BTreeMap<&'static str, u64>| {
        more.into_iter().for_each(|(name, count)| *probes.entry(name).or_insert(0) += count);
    };
    add(sweep(50, plan));
    add(sweep(30, Plan { nodes: 6, replicas: 2, keys: 6, lost: 200, repeated: 200, ..plan }));
    add(sweep(30, Plan { nodes: 5, replicas: 3, ..plan }));
    add(sweep(30, Plan { replicas: 1, ..plan }));
    add(sweep(30, Plan { lanes: 2, keys: 6, ..plan }));
    add(sweep(30, Plan { lists: true, ..plan }));
    add(sweep(30, Plan { lists: true, lanes: 2, keys: 6, lost: 200, ..plan }));
    let moves = Plan { spares: 2, keys: 6, moves: 20, ..plan };
    add(sweep(30, moves));
    add(sweep(30, Plan { lists: true, lost: 200, ..moves }));
    add(sweep(30, Plan { collect_ms: 20, deletes: 6, steps: 1000, ..plan }));
    add(sweep(30, Plan { collect_ms: 20, deletes: 6, steps: 1000, ..moves }));
    add(sweep(30, Plan { extra_after: 1, nodes: 6, ..plan }));
    add(sweep(30, Plan { logs: Logs::Sync, ..plan }));
    for (name, least) in [("zeus: a key has no directory", 100), ("zeus: begins a shard anew", 100)]
    {
        let count = probes.get(name).copied().unwrap_or(0);
        assert!(count > least, "seldom: {name}: {count} times");
    }
}
