//! Short sweeps that every test run makes; `quorate sim` makes the long ones.

use quorate_sim::{Faults, Options, run, sweep};

fn assert_passes(faults: Faults, seeds: u64) {
    let options = Options { faults, ..Options::new() };
    let result = sweep(1..seeds + 1, &options, 1, |_| ());
    let failures: Vec<String> = result.failures.iter().map(ToString::to_string).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert_eq!(result.passed, seeds);
    assert!(result.ops[0] > 500 * seeds, "clients got something done: {:?}", result.ops);
}

#[test]
fn a_quiet_cluster_refuses_and_forgets_nothing() {
    let options = Options { faults: Faults::NONE, ..Options::new() };
    let run = run(1, &options).unwrap_or_else(|failure| panic!("{failure}"));
    let [done, refused, unknown] = run.ops;
    assert!(done > 1_000);
    assert_eq!(unknown, 0);
    // Only before the first view is in force.
    assert!(refused < 100, "{refused} refused");
}

#[test]
fn clusters_survive_every_fault() {
    // The mutants' runner asks for more.
    let seeds = std::env::var("QUORATE_SEEDS").map_or(12, |text| text.parse().expect("a number"));
    assert_passes(Faults::ALL, seeds);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let options = Options { trace: true, ..Options::new() };
    let [first, second] = [0, 1].map(|_| run(7, &options).unwrap_or_else(|f| panic!("{f}")));
    assert_eq!(first.digest, second.digest);
    assert_eq!(first.trace, second.trace);
}
