//! Random runs in which clients with sessions make calls and try them again.
//!
//! In the history that is judged a call is one transaction, whatever became of its tries.

use std::collections::BTreeMap;

use quorate_harness::Logs;
use quorate_machine::Outcome;
use quorate_types::{Duration, Timestamp};

use super::{Asked, PLAN, Plan, Run, run, sweep};
use crate::sessions::CallName;
use crate::txn::{Reply, Txn};

impl Run {
    /// Tries a call at a node, for the first time or again.
    pub(super) fn try_call(&mut self, node: u16, name: CallName, first: u64, txn: Txn) {
        let Some(permit) = self.sessions.permit(&self.cluster, name) else { return };
        if !self.cluster.hosts[&node].up {
            return;
        }
        self.clock += 1;
        let invoke = self.clock;
        let incarnation = self.cluster.hosts[&node].incarnation;
        let (origin, lane) = (10_000 + self.clock, self.rng.below(self.plan.lanes.into()) as u16);
        let tag = self.cluster.call_on(node, lane, origin, permit, txn.clone());
        let (sent_at, call) = (self.cluster.now.monotonic, Some((name, first)));
        self.asked.insert(tag, Asked { origin, txn, invoke, sent_at, node, incarnation, call });
    }

    /// What clients with sessions do beside making new calls.
    pub(super) fn call_again(&mut self) {
        self.sessions.act(&mut self.cluster, &mut self.rng);
        let again = self.sessions.again(&mut self.rng);
        if let Some((name, first, txn)) = again {
            let node = self.node();
            self.try_call(node, name, first, txn);
        }
    }

    /// Tries calls until their answers are known.
    pub(super) fn end_calls(&mut self) {
        for _ in 0..3 {
            let node = self.cluster.view.active().first().expect("somebody serves").0;
            for (name, first, txn) in self.sessions.open_calls(&self.cluster) {
                self.try_call(node, name, first, txn);
            }
            self.cluster.run_for(Duration::from_millis(500));
            self.note_answers();
        }
        self.sessions.check(&self.cluster);
    }

    /// How a transaction has ended; of a call, what all its tries say together.
    pub(super) fn end_of(&self, tag: u64) -> Option<&(Outcome<Reply>, u64)> {
        let Some((_, first)) = self.asked[&tag].call else { return self.answered.get(&tag) };
        let is_try = |asked: &Asked| asked.call.is_some_and(|(_, other)| other == first);
        let tries = self.asked.iter().filter(|(_, asked)| is_try(asked));
        let ends: Vec<_> = tries.map(|(tag, _)| self.answered.get(tag)).collect();
        let done = ends.iter().flatten().filter(|(outcome, _)| matches!(outcome, Outcome::Done(_)));
        let refused =
            |end: &Option<&(Outcome<Reply>, u64)>| matches!(end, Some((Outcome::Refused(_), _)));
        match done.min_by_key(|(_, at)| *at) {
            Some(done) => Some(done),
            None if ends.iter().all(refused) => ends.into_iter().flatten().last(),
            None => None,
        }
    }

    /// The version at which some try at a transaction was told that it took effect.
    pub(super) fn stamp_of(&self, tag: u64) -> Option<Timestamp> {
        let Some((_, first)) = self.asked[&tag].call else {
            return self.cluster.stamps.get(&tag).copied();
        };
        let is_try = |asked: &Asked| asked.call.is_some_and(|(_, other)| other == first);
        let mut tries = self.asked.iter().filter(|(_, asked)| is_try(asked));
        tries.find_map(|(tag, _)| self.cluster.stamps.get(tag).copied())
    }
}

#[test]
fn calls_take_effect_once() {
    let plan = Plan { calls: 70, steps: 400, sent: 8, ..PLAN };
    let mut probes = BTreeMap::new();
    let mut add = |more: BTreeMap<&'static str, u64>| {
        more.into_iter().for_each(|(name, count)| *probes.entry(name).or_insert(0) += count);
    };
    add(sweep(30, Plan { lost: 0, repeated: 0, trouble: 0, patient: true, ..plan }));
    add(sweep(50, Plan { trouble: 30, ..plan }));
    add(sweep(30, Plan { nodes: 5, keys: 4, trouble: 20, ..plan }));
    add(sweep(50, Plan { nodes: 4, replicas: 2, keys: 4, trouble: 20, ..plan }));
    add(sweep(30, Plan { lanes: 2, nodes: 4, replicas: 2, keys: 4, trouble: 20, ..plan }));
    for name in [
        "zeus: a call is answered from its record",
        "zeus: a call is answered by an attempt under way",
        "zeus: a call is asked about",
        "zeus: a home key has moved while its group was asked",
    ] {
        assert!(probes.get(name).is_some_and(|count| *count > 10), "never: {name}");
    }
}

#[test]
fn calls_take_effect_once_while_data_moves() {
    let plan = Plan { calls: 70, steps: 600, spares: 2, keys: 6, trouble: 20, moves: 20, ..PLAN };
    sweep(40, Plan { nodes: 4, replicas: 2, ..plan });
    // Who has asked the group for a call comes into it.
    run(448, Plan { nodes: 4, replicas: 2, ..plan }, &mut BTreeMap::new());
    sweep(20, Plan { nodes: 5, ..plan });
    sweep(20, Plan { nodes: 4, replicas: 2, lost: 200, repeated: 200, moves: 50, ..plan });
    sweep(20, Plan { nodes: 4, replicas: 2, lanes: 2, ..plan });
}

#[test]
fn calls_take_effect_once_across_the_loss_of_all_power() {
    let plan = Plan { calls: 70, steps: 500, sent: 8, logs: Logs::Sync, ..PLAN };
    let probes = sweep(75, Plan { trouble: 20, ..plan });
    assert!(probes.get("zeus: a call is answered from its record").is_some_and(|it| *it > 10));
    sweep(50, Plan { nodes: 4, replicas: 2, keys: 4, trouble: 20, ..plan });
    let moves = Plan { spares: 2, keys: 6, trouble: 20, moves: 20, ..plan };
    sweep(30, Plan { nodes: 4, replicas: 2, ..moves });
}
