//! Short sweeps that every test run makes; `quorate sim` makes the long ones.

use quorate_sim::{Engine, Faults, Options, run, sweep};

/// The mutants' runner asks for more.
fn seeds() -> u64 {
    std::env::var("QUORATE_SEEDS").map_or(12, |text| text.parse().expect("a number"))
}

fn assert_passes(engine: Engine, least_ops: u64) {
    let options = Options { engine, ..Options::new() };
    let seeds = seeds();
    let result = sweep(1..seeds + 1, &options, 1, |_| ());
    let failures: Vec<String> = result.failures.iter().map(ToString::to_string).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert_eq!(result.passed, seeds);
    assert!(result.ops[0] > least_ops * seeds, "clients got something done: {:?}", result.ops);
}

fn assert_quiet(engine: Engine) {
    let options = Options { engine, faults: Faults::NONE, ..Options::new() };
    let run = run(1, &options).unwrap_or_else(|failure| panic!("{failure}"));
    let [done, refused, unknown] = run.ops;
    assert!(done > 1_000);
    assert_eq!(unknown, 0);
    // Only before the first view is in force.
    assert!(refused < 100, "{refused} refused");
}

fn assert_repeats(engine: Engine) {
    let options = Options { engine, trace: true, ..Options::new() };
    let [first, second] = [0, 1].map(|_| run(7, &options).unwrap_or_else(|f| panic!("{f}")));
    assert_eq!(first.digest, second.digest);
    assert_eq!(first.trace, second.trace);
    assert_eq!(first.history, second.history);
}

#[test]
fn a_quiet_cluster_refuses_and_forgets_nothing() {
    assert_quiet(Engine::Hermes);
    assert_quiet(Engine::Meerkat);
}

#[test]
fn clusters_survive_every_fault() {
    assert_passes(Engine::Hermes, 500);
}

#[test]
fn transactions_survive_every_fault() {
    assert_passes(Engine::Meerkat, 500);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    assert_repeats(Engine::Hermes);
    assert_repeats(Engine::Meerkat);
}
