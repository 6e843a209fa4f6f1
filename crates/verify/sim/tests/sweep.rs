//! Short sweeps that every test run makes; `quorate sim` makes the long ones.

use std::ops::ControlFlow;

use quorate_node::Durability;
use quorate_sim::{
    Beside, Engine, Faults, Options, Script, Workload, record, replay, run, shrink, sweep,
};
use quorate_types::Duration;

/// The mutants' runner asks for more.
fn seeds() -> u64 {
    asked_for().unwrap_or(12)
}

/// Of what the steps `sim` of the gate run with many.
fn first_seeds() -> u64 {
    asked_for().unwrap_or(3)
}

fn asked_for() -> Option<u64> {
    std::env::var("QUORATE_SEEDS").ok().map(|text| text.parse().expect("a number"))
}

/// A cluster with one keyspace.
fn alone(engine: Engine) -> Options {
    Options { beside: Beside::NONE, ..Options::of(engine) }
}

/// All pass. How often each rare branch was reached.
fn assert_passes(options: &Options, seeds: u64, least_ops: u64) -> Vec<(&'static str, u64)> {
    let result = sweep(1..seeds + 1, options, 1, |_| ControlFlow::Continue(()));
    if let Some(failure) = result.failures.first() {
        // Recorded and shrunk as `quorate sim` does it, for the person who reads the failure.
        let script = record(failure.seed, options).1.expect("it failed a moment ago");
        let short = shrink(&script, 100, |_, _| ()).expect("it fails");
        let read: Script = short.to_string().parse().expect("scripts are written to be read");
        let again = replay(&read, false).expect_err("it is the script of a failure");
        assert_eq!(again.kind, failure.kind);
        panic!("{failure}\nafter {} seeds\n{short}", failure.seed);
    }
    assert_eq!(result.passed, seeds);
    assert!(result.ops[0] > least_ops * seeds, "clients got something done: {:?}", result.ops);
    let strange = result.probes.iter().find(|(name, _)| !options.has_probe(name));
    assert_eq!(strange, None, "only the branches of {} belong here", options.engine);
    result.probes
}

fn assert_quiet(engine: Engine) {
    let options = Options { engine, faults: Faults::NONE, ..Options::new() };
    let run = run(1, &options).unwrap_or_else(|failure| panic!("{failure}"));
    let [done, refused, unknown] = run.ops;
    assert!(done > 1_000);
    assert_eq!(unknown, 0);
    // Only ops before the first view are refused.
    assert!(refused < 100, "{refused} refused");
}

fn assert_repeats(engine: Engine) {
    let safety_phase = Duration::from_secs(4);
    let options = Options { engine, trace: true, safety_phase, ..Options::new() };
    let [first, second] = [0, 1].map(|_| run(7, &options).unwrap_or_else(|f| panic!("{f}")));
    assert_eq!(first.digest, second.digest);
    assert_eq!(first.trace, second.trace);
    assert_eq!(first.history, second.history);
}

#[test]
fn a_quiet_cluster_refuses_and_forgets_nothing() {
    assert_quiet(Engine::Hermes);
    assert_quiet(Engine::Meerkat);
    assert_quiet(Engine::Zeus);
    assert_quiet(Engine::Local);
}

#[test]
fn clusters_survive_every_fault() {
    assert_passes(&alone(Engine::Hermes), first_seeds(), 500);
}

#[test]
fn transactions_survive_every_fault() {
    assert_passes(&alone(Engine::Meerkat), first_seeds(), 500);
}

#[test]
fn transactions_at_the_owners_of_their_keys_survive_every_fault() {
    assert_passes(&alone(Engine::Zeus), first_seeds(), 500);
}

/// Each key is at some of the nodes, and what has no copy here is read elsewhere, or copied if it is read
/// often.
#[test]
fn keys_that_are_at_some_of_the_nodes_survive_every_fault() {
    let options = Options { nodes: Some(6), ..alone(Engine::Zeus) };
    let probes = assert_passes(&options, seeds() / 3, 500);
    for name in ["zeus: a reader gets a copy", "zeus: an owner withdraws extra copies"] {
        let count = probes.iter().find(|(known, _)| *known == name).map(|(_, count)| *count);
        assert!(count.is_some_and(|count| count > 0), "never: {name}");
    }
}

#[test]
fn transactions_over_the_lanes_of_one_node_survive_what_it_does() {
    assert_passes(&alone(Engine::Local), first_seeds(), 500);
}

fn with_disks(engine: Engine) -> Options {
    Options { disks: true, ..alone(engine) }
}

/// Nodes have disks, with all faults of disks, and now and then the power of all of them goes. Everything
/// that may happen does, and engines go on from their logs.
#[test]
fn nodes_with_disks_survive_what_disks_do() {
    let mut reached = Vec::new();
    for (engine, seeds) in [(Engine::Hermes, 19), (Engine::Meerkat, 4), (Engine::Local, 4)] {
        let probes = assert_passes(&with_disks(engine), seeds, 200);
        reached.extend(probes.into_iter().filter(|(_, times)| *times > 0).map(|(name, _)| name));
    }
    let restores = ["hermes: goes on from its log", "meerkat: goes on from its log"];
    // The first takes rot in the newest one, the second a segment that is as full as the disk.
    let rare = ["disk: an older snapshot counts", "disk: has no room for a node that begins"];
    let is_rare = |name: &&str| rare.contains(name);
    let options = with_disks(Engine::Hermes);
    for wanted in options.disk_probes().filter(|name| !is_rare(name)).chain(restores) {
        assert!(reached.contains(&wanted), "never: {wanted}");
    }
}

/// Promises do not wait for disks. Nothing is lost while any node lives; with all power, what was
/// answered last, a suffix of each key.
#[test]
fn what_was_answered_last_may_be_lost_with_all_power() {
    for (engine, count) in
        [(Engine::Hermes, 6), (Engine::Meerkat, 4), (Engine::Zeus, 4), (Engine::Local, 4)]
    {
        let durability = Some(Durability::Async);
        let count = asked_for().unwrap_or(count);
        let probes = assert_passes(&Options { durability, ..with_disks(engine) }, count, 200);
        let reached =
            |wanted: &str| probes.iter().any(|(name, times)| *name == wanted && *times > 0);
        assert!(reached("disk: the power of all nodes goes"));
        if matches!(engine, Engine::Meerkat | Engine::Zeus) {
            assert!(reached(&format!("{engine}: takes in what its log has lost")));
        }
    }
}

/// A keyspace in memory on nodes that keep logs of others, or of none yet. The power of some nodes goes, or of
/// all, and those that come back with their data are active at once: of a group of which others have lived on,
/// they have nothing.
#[test]
fn a_keyspace_in_memory_is_taken_from_those_that_have_lived_on() {
    for engine in [Engine::Hermes, Engine::Zeus] {
        let durability = Some(Durability::Memory);
        let options = Options { durability, nodes: Some(5), ..with_disks(engine) };
        let count = asked_for().unwrap_or(if engine == Engine::Zeus { 4 } else { 2 });
        let probes = assert_passes(&options, count, 200);
        let reached =
            |wanted: &str| probes.iter().any(|(name, times)| *name == wanted && *times > 0);
        assert!(reached("disk: the power of a group goes"));
    }
}

/// Transactions over several lanes are in the logs of all of them.
#[test]
fn lanes_with_disks_survive_what_disks_do() {
    for (lanes, count) in [(1, seeds() / 3), (2, seeds() / 2)] {
        let options = Options { lanes: Some(lanes), ..with_disks(Engine::Zeus) };
        let probes = assert_passes(&options, count, 200);
        let reached =
            |wanted: &str| probes.iter().any(|(name, times)| *name == wanted && *times > 0);
        assert!(reached("zeus: goes on from its log"));
        assert!(lanes == 1 || reached("zeus: a transaction is in the logs of several lanes"));
    }
}

#[test]
fn clients_that_coordinate_survive_every_fault() {
    assert_passes(&Options { guests: Some(2), ..alone(Engine::Meerkat) }, seeds() / 3, 500);
}

#[test]
fn partitions_on_some_of_the_nodes_survive_every_fault() {
    assert_passes(&Options { nodes: Some(5), ..alone(Engine::Meerkat) }, seeds() / 3, 500);
}

/// Keyspaces of the same engine and of different ones, three at a time in the last case.
#[test]
fn keyspaces_side_by_side_survive_every_fault() {
    for (engine, beside) in [
        (Engine::Hermes, vec![Engine::Hermes]),
        (Engine::Hermes, vec![Engine::Meerkat]),
        (Engine::Meerkat, vec![Engine::Hermes]),
        (Engine::Meerkat, vec![Engine::Meerkat, Engine::Hermes]),
    ] {
        let options = Options { beside: Beside::These(beside), ..Options::of(engine) };
        assert_passes(&options, seeds() / 4, 1_000);
    }
}

/// A lease rests on the rates of clocks. Where rates break their bound, reads of Hermes may be
/// outdated; outdated reads show that the clocks are bad enough. All else holds, and with quorum
/// reads and with Meerkat everything holds.
#[test]
fn clocks_that_break_their_bound_cost_fresh_reads_and_nothing_else() {
    let faults = Faults { rate: true, leap: true, partition: true, pause: true, ..Faults::NONE };
    let options = |engine| Options { faults, clients: 16, keys: 2, ..alone(engine) };
    let result = sweep(0..seeds(), &options(Engine::Hermes), 1, |_| ControlFlow::Continue(()));
    assert!(result.failures.is_empty(), "{:?}", result.failures);
    assert!(result.stale > 0, "no read was old");
    assert_passes(&options(Engine::Meerkat), seeds() / 3, 50);
}

/// Of three nodes one can be removed at a time, and none may die meanwhile; of five, more can.
#[test]
fn members_that_come_and_go_survive_every_fault() {
    assert_passes(&Options { nodes: Some(5), ..alone(Engine::Hermes) }, seeds() / 3, 500);
}

#[test]
fn retwis_and_ycsb_t_survive_every_fault() {
    for workload in [Workload::Retwis, Workload::YcsbT] {
        assert_passes(&Options { workload, ..alone(Engine::Meerkat) }, seeds() / 3, 500);
    }
}

#[test]
fn rivals_survive_delays_and_clocks() {
    for engine in [Engine::KuaFu, Engine::Tapir, Engine::MeerkatPb, Engine::Fasst] {
        assert_passes(&alone(engine), seeds() / 3, 500);
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    assert_repeats(Engine::Hermes);
    assert_repeats(Engine::Meerkat);
    assert_repeats(Engine::Zeus);
}

/// A stopped sweep reports a range of seeds, so it must have run all of them.
#[test]
fn a_sweep_that_stops_has_run_seeds_without_a_gap() {
    let options =
        Options { safety_phase: Duration::from_millis(500), ..Options::of(Engine::Hermes) };
    let result = sweep(5..1_000, &options, 1, |done| match done {
        3.. => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    });
    assert_eq!(result.seeds.start, 5);
    assert_eq!(result.passed, result.seeds.end - result.seeds.start);
    assert!((3..100).contains(&result.passed), "{} were run", result.passed);
}

/// A run depends on nothing but its script: everything that was drawn is written down.
#[test]
fn a_script_gives_the_run_that_it_was_written_for() {
    for engine in [Engine::Hermes, Engine::Meerkat, Engine::Zeus, Engine::Tapir] {
        for seed in 1..4 {
            let guests = (engine == Engine::Meerkat).then_some(2);
            let sessions = (engine != Engine::Tapir).then_some(2);
            let beside = match (engine, seed) {
                (Engine::Tapir, _) | (_, 1) => Beside::NONE,
                (_, 2) => Beside::These(vec![Engine::Meerkat]),
                _ => Beside::These(vec![Engine::Hermes, Engine::Meerkat]),
            };
            let safety_phase = Duration::from_secs(4);
            let options = Options { guests, sessions, beside, safety_phase, ..Options::of(engine) };
            let (result, script) = record(seed, &options);
            let drawn = result.unwrap_or_else(|failure| panic!("{failure}"));
            let text = script.expect("it was recorded").to_string();
            let script: Script = text.parse().expect("scripts are written to be read");
            let again = replay(&script, false).unwrap_or_else(|failure| panic!("{failure}"));
            assert_eq!(again.digest, drawn.digest, "{engine}, seed {seed}");
            assert_eq!(again.history, drawn.history);
        }
    }
}
