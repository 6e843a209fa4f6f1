//! Nodes that come back from logs whose ends are lost: none says which keys there are before it has heard
//! the others.

use quorate_commands::OwnedCall;
use quorate_machine::Outcome;
use quorate_node::{Durability, EngineConfig, KeyspaceConfig};
use quorate_types::{Duration, KeyspaceId, LaneId, NodeId, hash_key, lane_of_hash};

use crate::support::{Cluster, at, config};

const DB: KeyspaceId = KeyspaceId(0);
const NODES: u16 = 3;

fn cluster(lanes: u16, engine: EngineConfig, durability: Durability) -> Cluster {
    let mut keyspace = KeyspaceConfig::new(DB, "db", engine);
    keyspace.durability = durability;
    Cluster::restored(
        (1..=NODES).map(|node| config(NodeId(node), NODES, lanes, vec![keyspace.clone()])),
    )
}

/// Whether a node may lack keys, as one of its lanes knows.
fn is_in_doubt(cluster: &mut Cluster, node: usize) -> bool {
    let host = cluster.host((node, 0));
    host.lane.engine(DB).expect("it is there").is_in_doubt()
}

/// Lanes read each other's records without asking. One that has come back from its log, and does not know yet
/// which keys it lacks, lets no other say that a key is absent.
#[test]
fn absence_is_not_read_while_its_lane_may_lack_keys() {
    const LANES: u16 = 2;
    let engine = EngineConfig::named("hermes").expect("it is in the list");
    let mut keyspace = KeyspaceConfig::new(DB, "db", engine);
    keyspace.durability = Durability::Async;
    let keyspaces = vec![keyspace];
    let mut cluster =
        Cluster::new((1..=NODES).map(|node| config(NodeId(node), NODES, LANES, keyspaces.clone())));
    cluster.pass(Duration::from_secs(1));
    let keys: Vec<String> = (0..16).map(|number| format!("absent:{number}")).collect();
    let told = |cluster: &mut Cluster, of_lane: u16| {
        let now = at(cluster.time);
        let is_of =
            |key: &&String| lane_of_hash(hash_key(key.as_bytes()), LANES) == LaneId(of_lane);
        let (mut asked, mut told) = (0, 0);
        for key in keys.iter().filter(is_of) {
            let call = OwnedCall::new([&b"GET"[..], key.as_bytes()]).expect("a known command");
            for place in [(0, 0), (0, 1)] {
                asked += 1;
                let lane = &mut cluster.host(place).lane;
                told += usize::from(lane.read(now, DB, &call.call(), |_| ()).is_some());
            }
        }
        assert!(asked > 0, "each lane has some of the keys");
        (told, asked)
    };
    for lane in [0, 1] {
        let (told, asked) = told(&mut cluster, lane);
        assert_eq!(told, asked, "nobody doubts");
    }
    cluster.host((0, 1)).lane.restored();
    let (here, asked) = told(&mut cluster, 0);
    assert_eq!(here, asked, "the other lane has all its keys");
    assert_eq!(told(&mut cluster, 1).0, 0);
}

#[test]
fn a_listing_waits_for_nodes_in_doubt() {
    let spreads = || EngineConfig::first_with(|can| can.spreads && can.durable);
    let hermes = || EngineConfig::named("hermes").expect("it is in the list");
    let cases = [
        (1, spreads(), Durability::Async),
        (2, spreads(), Durability::Async),
        (2, hermes(), Durability::Async),
        // Its logs may be of a time when nothing waited for them.
        (2, hermes(), Durability::Sync),
    ];
    for (lanes, engine, durability) in cases {
        let mut cluster = cluster(lanes, engine, durability);
        let mut open = Vec::new();
        for node in 0..usize::from(NODES) {
            assert!(is_in_doubt(&mut cluster, node), "they have not heard each other");
            let (now, tags) = (at(cluster.time), [cluster.tag(), cluster.tag()]);
            let host = cluster.host((node, 0));
            assert!(!host.lane.lists_alone(DB));
            host.lane.list(now, DB, tags[0], (0, 100, None), &mut host.out);
            host.lane.count(now, DB, tags[1], 0, &mut host.out);
            open.extend(tags);
        }
        let until = cluster.time + Duration::from_secs(2);
        while !open.is_empty() {
            assert!(cluster.time < until, "no answer in two seconds");
            cluster.turn(Duration::from_micros(100));
            let in_doubt = (0..usize::from(NODES)).any(|node| is_in_doubt(&mut cluster, node));
            for node in 0..usize::from(NODES) {
                for (tag, outcome) in cluster.host((node, 0)).out.listed.drain(..) {
                    assert!(matches!(outcome, Outcome::Done(_)), "{outcome:?}");
                    assert!(!in_doubt, "node {node} lists while one is in doubt");
                    open.retain(|other| *other != tag);
                }
            }
        }
        assert!(cluster.host((0, 0)).lane.lists_alone(DB));
    }
}
