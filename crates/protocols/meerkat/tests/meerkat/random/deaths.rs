//! Runs in which all nodes of a group die for good while those of another live, and others take their
//! place. What is judged is the data of the group that lives.

use std::collections::BTreeMap;

use quorate_types::{Role, Timestamp};

use super::{PLAN, Plan, Run, sweep};
use crate::losses::two_groups;
use crate::support::serializable;
use crate::txn::Txn;

/// The nodes of the group that dies.
const DYING: std::ops::RangeInclusive<u16> = 1..=3;
/// One of those that live.
const LIVING: u16 = 4;

impl Run {
    /// All of the group's members die, and a person gives up their data. Transactions over both groups that
    /// a dead node of the other one has coordinated are settled by then: nobody else knows whether they
    /// were given up and begun anew.
    pub(super) fn end_group(&mut self) {
        let epoch = self.cluster.view.epoch;
        let is_steady = self.cluster.roles().into_iter().all(|(node, role)| {
            let machine = self.cluster.hosts[&node].up.then(|| self.cluster.machine(node));
            let goes_on = machine.is_some_and(|lane| lane.is_normal() && lane.epoch() == epoch);
            DYING.contains(&node) || role == Role::Down || goes_on
        });
        let has_data =
            |run: &Self, node| run.role(node) == Role::Active && run.cluster.hosts[&node].up;
        if !is_steady || !DYING.into_iter().any(|node| has_data(self, node)) {
            return;
        }
        for node in DYING {
            self.forgetful.insert(node);
            self.cluster.crash(node);
        }
        self.doubt_ends();
        let mut roles = self.cluster.roles();
        for (_, role) in roles.iter_mut().filter(|(node, _)| DYING.contains(node)) {
            *role = Role::Down;
        }
        let view = self.cluster.decide(&roles);
        self.disorder.announce(&view);
    }

    /// How transactions of the group ended may have died with it, as far as no client was told.
    fn doubt_ends(&mut self) {
        let told: Vec<Timestamp> = self.cluster.stamps.values().copied().collect();
        let is_known = |run: &mut Self, id: Timestamp| {
            told.contains(&id)
                || run.cluster.live().into_iter().any(|node| {
                    let records = run.cluster.machine(node).records();
                    records.iter().any(|(key, record)| key.id() == id && record.decision.is_some())
                })
        };
        let ids: Vec<Timestamp> = self.cluster.subject.ledger.ends.keys().copied().collect();
        for id in ids {
            let ledger = &self.cluster.subject.ledger;
            let dies = ledger.sets_of(id).any(|entry| !self.cluster.holds(LIVING, &entry.key));
            if dies && !is_known(self, id) {
                self.cluster.subject.ledger.doubted.insert(id);
            }
        }
    }

    /// A node of the group that dies coordinates nothing that others take part in.
    pub(super) fn keep_within_group(&self, node: u16, txn: &mut Txn) {
        if self.plan.deaths > 0 && DYING.contains(&node) {
            let is_theirs = |key: &str| self.cluster.holds(LIVING, key);
            let first = is_theirs(txn.0[0].key());
            txn.0.retain(|step| is_theirs(step.key()) == first);
        }
    }

    /// In the group that lives each transaction has read what the ones before it left, and all that has
    /// committed is there.
    pub(super) fn check_living(&mut self) {
        let mut state: BTreeMap<String, (Timestamp, Option<String>)> = BTreeMap::new();
        let ledger = &self.cluster.subject.ledger;
        for (stamp, _) in ledger.ends.iter().filter(|(_, commit)| **commit) {
            let living =
                { ledger.sets_of(*stamp) }.filter(|entry| self.cluster.holds(LIVING, &entry.key));
            for entry in living {
                let (version, held) = state.get(&entry.key).cloned().unwrap_or_default();
                if let Some(base) = entry.base {
                    let covers = version <= base || entry.absent && held.is_none();
                    assert!(covers && base < *stamp, "{stamp:?} read {} at {base:?}", entry.key);
                    assert!(held.is_none() || version == base, "{stamp:?}: {}", entry.key);
                }
                if let Some(write) = &entry.write {
                    state.insert(entry.key.clone(), (*stamp, write.clone()));
                }
            }
        }
        for key in (0..self.plan.keys).map(|key| format!("k{key}")) {
            if self.cluster.holds(LIVING, &key) {
                let held = state.get(&key).and_then(|(_, value)| value.clone());
                for node in self.holders(&key) {
                    assert_eq!(self.cluster.stored(node, &key), held, "{key} at {node} at the end");
                }
            }
        }
    }
}

#[test]
fn a_group_may_die_for_good() {
    let plan = Plan {
        nodes: 6,
        keys: 4,
        steps: 600,
        deaths: 6,
        trouble: 20,
        sent: 15,
        configure: two_groups,
        ..PLAN
    };
    let two_serializable_groups = |config: &mut _| {
        two_groups(config);
        serializable(config);
    };
    let mut probes = sweep(150, plan);
    probes.extend(sweep(100, Plan { configure: two_serializable_groups, skew: 5_000_000, ..plan }));
    probes.extend(sweep(100, Plan { lost: 150, repeated: 150, ..plan }));
    assert!(probes.contains_key("meerkat: a group goes on with what its eldest member has"));
}
