//! Zero coordination as a test: two lanes of every node of a cluster run transactions on different
//! keys. With Meerkat they write no common cache line, on any node; with the rivals that share a
//! log or a record they do, and the same test says so.
//!
//! What is recorded is what `quorate_storage::trace` documents. Upkeep, which looks at a few records
//! some times a second whosever they are, is left out: too little time passes here.

use std::collections::BTreeSet;

use quorate_commands::{Block, Op, OwnedCall};
use quorate_machine::Outcome;
use quorate_node::{EngineConfig, KeyspaceConfig, KeyspaceStore};
use quorate_storage::trace;
use quorate_types::{Duration, KeyspaceId, NodeId, Tag};

use crate::support::{Cluster, at, config};

const KEYSPACE: KeyspaceId = KeyspaceId(0);
const NODES: u16 = 3;
const LANES: u16 = 2;
const KEYS: u64 = 100;
const TRANSACTIONS: u64 = 500;

fn cluster(engine: &EngineConfig) -> Cluster {
    let keyspaces = vec![KeyspaceConfig::new(KEYSPACE, "default", engine.clone())];
    let node = |node| config(NodeId(node), NODES, LANES, keyspaces.clone());
    let mut cluster = Cluster::new((1..=NODES).map(node));
    while !cluster.is_caught_up() {
        cluster.turn(Duration::from_millis(1));
    }
    cluster
}

impl Cluster {
    fn is_caught_up(&self) -> bool {
        let mut hosts = self.lanes.iter().flat_map(|lane| &lane.hosts);
        hosts.all(|host| host.lane.engine(KEYSPACE).expect("configured").is_caught_up())
    }

    /// Runs transactions on one lane of all nodes, each on two of the given keys.
    fn transact(&mut self, lane: usize, key: impl Fn(u64) -> Vec<u8>) {
        let mut done = 0;
        for number in 0..TRANSACTIONS {
            let txn = read_modify_write([key(number), key(number * 7 + 3)]);
            let now = at(self.time);
            self.lanes[lane].begin_turn(now);
            let host = self.host((number as usize % usize::from(NODES), lane));
            host.lane.submit(now, KEYSPACE, Tag(number), number, txn, &mut host.out);
            while done <= number {
                self.time += Duration::from_nanos(200);
                self.turn_of(lane);
                for host in &mut self.lanes[lane].hosts {
                    for answer in host.out.done.drain(..) {
                        assert!(matches!(answer.outcome, Outcome::Done(_)), "{answer:?}");
                        done += 1;
                    }
                }
            }
        }
    }
}

fn read_modify_write(keys: [Vec<u8>; 2]) -> Op {
    let call = |words: &[&[u8]]| OwnedCall::new(words.iter().copied()).expect("known commands");
    let calls = keys.iter().flat_map(|key| {
        [call(&[b"GET", key]), call(&[b"SET", key, b"a value as long as the one before"])]
    });
    Op::Block(Block { watches: Vec::new(), calls: calls.collect() })
}

/// How many lines two lanes both write, each over all nodes, that work on these keys.
fn common_lines(engine: &EngineConfig, keys: [fn(u64) -> Vec<u8>; 2]) -> usize {
    let mut cluster = cluster(engine);
    // Making records writes the index, which all share: that comes before.
    for (lane, key) in keys.into_iter().enumerate() {
        cluster.transact(lane, key);
    }
    let store = cluster.nodes[0].store(KEYSPACE).expect("configured").clone();
    let (KeyspaceStore::Meerkat(store, _)
    | KeyspaceStore::KuaFu(store, _)
    | KeyspaceStore::Tapir(store, _)
    | KeyspaceStore::MeerkatPb(store, _)
    | KeyspaceStore::Fasst(store, _)) = store
    else {
        panic!("an engine with transactions")
    };
    // What one lane sets free must not serve the other within the recording.
    let _nothing_is_freed = store.pin();
    let lines: Vec<BTreeSet<usize>> = keys
        .into_iter()
        .enumerate()
        .map(|(lane, key)| {
            trace::begin();
            cluster.transact(lane, key);
            trace::end()
        })
        .collect();
    let records = KEYS as usize * usize::from(NODES);
    assert!(lines.iter().all(|lines| lines.len() >= records), "what was written was recorded");
    lines[0].intersection(&lines[1]).count()
}

fn key(number: u64) -> Vec<u8> {
    format!("key {number:>10}").into_bytes()
}

/// Neighbours in memory belong to different lanes, and each lane has keys of both parts.
const DISJOINT: [fn(u64) -> Vec<u8>; 2] =
    [|number| key(number % KEYS * 2), |number| key(number % KEYS * 2 + 1)];

#[test]
fn meerkat_shares_nothing_but_the_records_of_common_keys() {
    assert_eq!(common_lines(&EngineConfig::meerkat(), DISJOINT), 0);
}

#[test]
fn a_common_key_shows() {
    let overlapping: [fn(u64) -> Vec<u8>; 2] = [DISJOINT[0], |number| match number % KEYS {
        0 => key(0),
        other => key(other * 2 + 1),
    }];
    assert!(common_lines(&EngineConfig::meerkat(), overlapping) > 0);
}

#[test]
fn meerkat_pb_shares_nothing_either() {
    assert_eq!(common_lines(&EngineConfig::meerkat_pb(), DISJOINT), 0);
}

#[test]
fn fasst_shares_nothing_either() {
    assert_eq!(common_lines(&EngineConfig::fasst(), DISJOINT), 0);
}

#[test]
fn lanes_of_kuafu_meet_at_counter_and_log() {
    assert!(common_lines(&EngineConfig::kuafu(), DISJOINT) > 0);
}

#[test]
fn lanes_of_tapir_meet_at_the_record() {
    assert!(common_lines(&EngineConfig::tapir(), DISJOINT) > 0);
}
