//! What scripts publish, on whole lanes in one process: each script once, whatever it took to commit.

use quorate_machine::{Outcome, Refusal};
use quorate_node::{EngineConfig, KeyspaceConfig};
use quorate_types::{Duration, KeyspaceId, NodeId};

use crate::support::script;
use crate::support::{Cluster, Place, command, config};

const KEYSPACE: KeyspaceId = KeyspaceId(0);
const LANES: u16 = 2;
const SCRIPTS_AT_EACH: usize = 20;

/// Runs scripts on one key everywhere at once. Returns how many were done, and how often they ran.
fn contend(engine: EngineConfig, nodes: u16) -> (u64, u64) {
    script::install();
    let keyspaces = vec![KeyspaceConfig::new(KEYSPACE, "default", engine)];
    let config = |node| config(NodeId(node), nodes, LANES, keyspaces.clone());
    let mut cluster = Cluster::new((1..=nodes).map(config));
    let lanes = 0..usize::from(LANES);
    let places: Vec<Place> = (0..usize::from(nodes))
        .flat_map(|node| lanes.clone().map(move |lane| (node, lane)))
        .collect();
    let runs = script::RUNS.get();
    let all = places.iter().cycle().take(places.len() * SCRIPTS_AT_EACH);
    for place in all.clone() {
        cluster.submit(*place, KEYSPACE, command(&script::on("k")));
    }
    let (mut numbers, mut conflicts) = (Vec::new(), 0);
    while numbers.len() + conflicts < all.clone().count() {
        cluster.turn(Duration::from_micros(200));
        for place in &places {
            for done in cluster.host(*place).out.done.drain(..) {
                match done.outcome {
                    Outcome::Done(reply) => {
                        numbers.push(script::told(&reply).expect("it is told of each"));
                    }
                    Outcome::Refused(Refusal::Conflict) => conflicts += 1,
                    other => panic!("{other:?}"),
                }
            }
        }
    }
    // The messages of a run that didn't count would be another's again.
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=numbers.len() as i64).collect::<Vec<_>>());
    (numbers.len() as u64, script::RUNS.get() - runs)
}

#[test]
fn only_the_run_that_commits_publishes() {
    let (done, runs) = contend(EngineConfig::meerkat(), 3);
    assert!(runs > done, "{runs} runs of {done} scripts: none has run twice");
    contend(EngineConfig::hermes(), 3);
}
