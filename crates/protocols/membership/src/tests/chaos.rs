//! Long seeded runs under all faults.

use alloc::vec::Vec;

use quorate_check::Seeds;
use quorate_types::{NodeId, NodeSet};

use super::world::{MS, World};
use crate::Request;

struct Plan {
    nodes: u16,
    /// The bound of drift that the nodes are told.
    drift_ppm: u32,
    /// The true bound of drift, either way.
    true_drift_ppm: i64,
    rounds: u64,
    nervous: bool,
}

impl Plan {
    fn world(&self, seed: u64) -> World {
        let mut world = World::new(seed, self.nodes);
        world.drift_ppm = self.drift_ppm;
        world.nervous = self.nervous;
        for node in world.nodes.keys().copied().collect::<Vec<_>>() {
            let span = self.true_drift_ppm;
            let drawn = world.rng.below(3);
            world.nodes.get_mut(&node).unwrap().rate_ppm = [-span, 0, span][drawn as usize];
        }
        world
    }
}

/// One fault, from the seed.
fn disturb(world: &mut World, nodes: u16) {
    // A leaving node ends soon, whether the others agreed or not.
    for node in 1..=nodes {
        let machine = world.nodes[&NodeId(node)].machine.as_ref();
        if machine.is_some_and(|machine| machine.leaving.is_some()) {
            world.kill(node);
        }
    }
    let node = 1 + world.rng.below(u64::from(nodes)) as u16;
    match world.rng.below(11) {
        0 | 1 => {
            let pause = 20 + world.rng.below(if world.nervous { 500 } else { 1_500 });
            world.pause(node, pause);
        }
        2 | 3 => {
            let bits = world.rng.next_u64() & ((1 << (nodes + 1)) - 2);
            world.cut = Some(NodeSet::from_bits(bits));
        }
        4 | 5 => world.cut = None,
        6 if world.keeps_majority(NodeId(node)) => world.crash(node),
        7 if world.keeps_majority(NodeId(node)) => {
            world.kill(node);
            world.start(node);
        }
        8 => {
            world.loss_percent = world.rng.below(30);
            world.delay_max = MS / 10 + world.rng.below(20 * MS);
        }
        9 if world.nodes[&NodeId(node)].machine.is_some() && world.keeps_majority(NodeId(node)) => {
            world.request(node, Request::Leave);
        }
        _ => {}
    }
    for node in 1..=nodes {
        let stopped = world.nodes[&NodeId(node)].machine.is_none();
        if stopped && world.rng.chance(1, 2) {
            world.start(node);
        }
    }
}

/// Runs the plan; true at the first violation.
fn violates(plan: &Plan, seed: u64) -> bool {
    let mut world = plan.world(seed);
    for node in 1..=plan.nodes {
        world.start(node);
    }
    for _ in 0..plan.rounds {
        let span = 10 + world.rng.below(200);
        if world.finds_violation(span) {
            return true;
        }
        world.catch_up();
        disturb(&mut world, plan.nodes);
    }
    false
}

#[test]
fn a_lease_never_outlives_its_view_and_the_cluster_heals() {
    let (mut healed, mut lost) = (0, 0);
    let mut probes = Vec::new();
    for seed in Seeds::new(0..240) {
        let nodes = [3, 5, 2, 4][seed as usize % 4];
        let drift = [1_000, 100_000][seed as usize / 4 % 2];
        let nervous = seed / 8 % 2 == 0;
        let true_drift_ppm = i64::from(drift);
        let plan = Plan { nodes, drift_ppm: drift, true_drift_ppm, rounds: 60, nervous };
        let mut world = plan.world(seed);
        for node in 1..=nodes {
            world.start(node);
        }
        for _ in 0..plan.rounds {
            let span = 10 + world.rng.below(200);
            world.run(span);
            world.catch_up();
            disturb(&mut world, nodes);
        }
        (world.cut, world.loss_percent, world.delay_max) = (None, 0, MS);
        for node in 1..=nodes {
            if world.nodes[&NodeId(node)].machine.is_none() {
                world.start(node);
            }
        }
        probes.extend(world.probes.keys().copied());
        // A view under way may name a killed node as the only active one.
        world.run(3_000);
        if !world.keeps_majority(NodeId(0)) {
            lost += 1;
            continue;
        }
        world.run_until_serving(&(1..=nodes).collect::<Vec<_>>(), 5000);
        healed += 1;
    }
    assert!(healed > 100, "{healed} healed, {lost} lost their majority");
    for probe in <crate::Membership as quorate_machine::Protocol>::PROBES {
        // Founding has a test of its own.
        assert!(probe == &GIVEN_UP || probes.contains(probe), "never reached: {probe}");
    }
}

const GIVEN_UP: &str = "membership: a vote for a first view is given up";

/// Nodes restart in the middle of founding, with slow and lossy messages: in the end there is one
/// cluster, or none because a majority of it was lost.
#[test]
fn restarts_while_a_cluster_is_founded_leave_one_cluster() {
    let (mut healed, mut given_up) = (0, false);
    for seed in Seeds::new(0..200) {
        let nodes = [3, 2, 5][seed as usize % 3];
        let mut world = World::new(seed, nodes);
        (world.loss_percent, world.delay_max) = (10, 30 * MS);
        for node in 1..=nodes {
            world.start(node);
        }
        for _ in 0..30 {
            let span = 1 + world.rng.below(60);
            world.run(span);
            // Most of all the founder restarts.
            let node = [1, 1 + world.rng.below(u64::from(nodes)) as u16][seed as usize / 3 % 2];
            if world.keeps_majority(NodeId(node)) {
                world.crash(node);
                world.start(node);
            }
        }
        (world.loss_percent, world.delay_max) = (0, MS);
        given_up |= world.probes.contains_key(GIVEN_UP);
        // Messages under way may still found a cluster that has lost its majority by then.
        world.run(400);
        if world.keeps_majority(NodeId(0)) {
            world.run_until_serving(&(1..=nodes).collect::<Vec<_>>(), 3000);
            healed += 1;
        }
    }
    assert!(healed > 100, "{healed} formed");
    assert!(given_up, "never reached: {GIVEN_UP}");
}

/// A check that finds nothing proves nothing: clocks beyond the bound must be found out.
#[test]
fn drift_beyond_the_bound_is_noticed() {
    let true_drift_ppm = 200_000;
    let plan = Plan { nodes: 3, drift_ppm: 1_000, true_drift_ppm, rounds: 60, nervous: true };
    assert!((0..100).any(|seed| violates(&plan, seed)));
}
