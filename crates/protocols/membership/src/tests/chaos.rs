//! Long seeded runs under all faults.

use alloc::vec::Vec;

use quorate_check::Seeds;
use quorate_types::{Epoch, NodeId, NodeSet};

use super::world::{MS, World, addresses};
use crate::Request;

struct Plan {
    nodes: u16,
    /// The bound of drift that the nodes are told.
    drift_ppm: u32,
    /// The true bound of drift, either way.
    true_drift_ppm: i64,
    rounds: u64,
    nervous: bool,
    /// Whether keys are at some of the nodes, and operators remove nodes, keep them and add them again.
    moves: bool,
}

impl Plan {
    fn world(&self, seed: u64) -> World {
        let mut world = World::new(seed, self.nodes);
        world.drift_ppm = self.drift_ppm;
        world.nervous = self.nervous;
        world.moving = if self.moves { [2].to_vec() } else { Vec::new() };
        for node in world.nodes.keys().copied().collect::<Vec<_>>() {
            let span = self.true_drift_ppm;
            let drawn = world.rng.below(3);
            world.nodes.get_mut(&node).unwrap().rate_ppm = [-span, 0, span][drawn as usize];
        }
        world
    }
}

/// A leaving node ends soon, whether the others agreed or not.
fn end_leaving(world: &mut World, nodes: u16) {
    for node in 1..=nodes {
        let machine = world.nodes[&NodeId(node)].machine.as_ref();
        if machine.is_some_and(|machine| machine.leaving.is_some()) {
            world.kill(node);
        }
    }
}

/// One fault, from the seed.
fn disturb(world: &mut World, plan: &Plan, asked: &mut NodeSet) {
    let nodes = plan.nodes;
    end_leaving(world, nodes);
    let node = 1 + world.rng.below(u64::from(nodes)) as u16;
    match world.rng.below(if plan.moves { 15 } else { 11 }) {
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
        kind @ 11.. => {
            let subject = NodeId(1 + world.rng.below(u64::from(nodes)) as u16);
            let at_once = world.rng.chance(1, 4);
            // A proposal may be chosen long after.
            if kind > 12 && at_once {
                asked.insert(subject);
            }
            world.request(
                node,
                match kind {
                    11 => Request::Add(addresses(subject.0)),
                    12 => Request::Keep(subject),
                    _ => Request::Remove { node: subject, at_once },
                },
            );
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

/// Some nodes have copied what falls to them.
fn copy_some(world: &mut World, plan: &Plan) {
    for node in (1..=plan.nodes).filter(|_| plan.moves) {
        let machine = world.nodes[&NodeId(node)].machine.as_ref();
        let Some(epoch) = machine.map(|machine| machine.view().epoch) else { continue };
        if world.rng.chance(1, 2) && !world.is_paused(NodeId(node)) {
            world.request(node, Request::CaughtUp { epoch });
        }
    }
}

/// A member that holds copies leaves after data was placed without it, but for those whose removal at
/// once was `asked` for.
fn check_departures(world: &World, asked: NodeSet) {
    for ((cluster, epoch), view) in &world.installed {
        let next = world.installed.get(&(*cluster, Epoch(epoch.0 + 1)));
        let Some(next) = next.filter(|_| !world.moving.is_empty()) else { continue };
        let gone = view.voters().difference(next.voters());
        let lost = gone.intersection(view.active()).intersection(view.placed);
        assert!(lost.is_subset(asked), "{lost:?} is removed with its copies: {view:?}, {next:?}");
    }
}

/// All that were removed are added again, and all data is copied. `false` if they can't be added, as
/// one alone is left.
fn add_all(world: &mut World, plan: &Plan) -> bool {
    for _ in 0..6 {
        for node in 1..=plan.nodes {
            let views = (1..=plan.nodes).map(|other| world.machine(other).view());
            let view = views.max_by_key(|view| view.epoch).expect("there are nodes").clone();
            if view.voters().len() == 1 {
                return false;
            }
            let Some(at) = view.active().into_iter().find(|at| world.is_serving(at.0)) else {
                break;
            };
            if view.member(NodeId(node)).is_none() {
                world.request(at.0, Request::Add(addresses(node)));
            } else if world.rng.chance(1, 2) {
                world.request(at.0, Request::Keep(NodeId(node)));
            }
            copy_some(world, plan);
            world.run(200);
            world.catch_up();
        }
    }
    true
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
        disturb(&mut world, plan, &mut NodeSet::EMPTY.clone());
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
        let moves = seed / 16 % 2 == 1;
        let plan = Plan { nodes, drift_ppm: drift, true_drift_ppm, rounds: 60, nervous, moves };
        let mut asked = NodeSet::EMPTY;
        let mut world = plan.world(seed);
        for node in 1..=nodes {
            world.start(node);
        }
        for _ in 0..plan.rounds {
            let span = 10 + world.rng.below(200);
            world.run(span);
            world.catch_up();
            copy_some(&mut world, &plan);
            disturb(&mut world, &plan, &mut asked);
        }
        (world.cut, world.loss_percent, world.delay_max) = (None, 0, MS);
        end_leaving(&mut world, nodes);
        for node in 1..=nodes {
            if world.nodes[&NodeId(node)].machine.is_none() {
                world.start(node);
            }
        }
        probes.extend(world.probes.keys().copied());
        // A view under way may name a killed node as the only active one.
        world.run(3_000);
        check_departures(&world, asked);
        if !world.keeps_majority(NodeId(0)) {
            lost += 1;
            continue;
        }
        if moves && !add_all(&mut world, &plan) {
            lost += 1;
            continue;
        }
        world.run_until_serving(&(1..=nodes).collect::<Vec<_>>(), 5000);
        healed += 1;
    }
    assert!(healed > 100, "{healed} healed, {lost} lost their majority");
    for probe in <crate::Membership as quorate_machine::Protocol>::PROBES {
        // Founding and disks have tests of their own.
        let is_elsewhere = probe == &GIVEN_UP || WITH_DISKS.contains(probe);
        assert!(is_elsewhere || probes.contains(probe), "never reached: {probe}");
    }
}

/// What only nodes with disks reach.
pub(super) const WITH_DISKS: [&str; 3] = [
    "membership: a node leaves its cluster for a recovered one",
    "membership: a life was admitted that ended before it knew",
    "membership: a view is revived from disks",
];

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
    let plan = Plan {
        nodes: 3,
        drift_ppm: 1_000,
        true_drift_ppm,
        rounds: 60,
        nervous: true,
        moves: false,
    };
    assert!((0..100).any(|seed| violates(&plan, seed)));
}
