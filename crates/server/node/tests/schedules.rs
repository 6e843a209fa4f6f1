//! Whole lanes over the records that they share, with the mail between them, under many schedules:
//! `RUSTFLAGS="--cfg shuttle" cargo test -p quorate-node --test schedules`.
#![cfg(shuttle)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quorate_commands::{Block, Op, OwnedCall};
use quorate_machine::Outcome;
use quorate_node::{
    EngineConfig, KeyspaceConfig, KeyspaceStore, MemoryCluster, NodeAddress, NodeConfig, Shared,
};
use quorate_sync::primitives::thread;
use quorate_sync::schedules::explore;
use quorate_types::{Duration, Instant, KeyspaceId, NodeId, Now, Tag, UnixNanos, hash_key};

const KEYSPACE: KeyspaceId = KeyspaceId(0);
const LANES: u16 = 2;
const KEYS: [&[u8]; 3] = [b"left", b"middle", b"right"];
/// Turns after which what a lane waits for will not come.
const TURNS_MAX: u32 = 20_000;

/// The time of all lanes, which passes a little with each turn.
struct Clock(AtomicU64);

impl Clock {
    fn pass(&self, time: Duration) -> Now {
        let nanos = self.0.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
        Now { monotonic: Instant(nanos), unix: UnixNanos(1 << 60 | nanos) }
    }
}

fn node(number: u16, nodes: u16) -> Arc<Shared> {
    let keyspaces = vec![KeyspaceConfig::new(KEYSPACE, "default", EngineConfig::meerkat())];
    let addresses = (1..=nodes).map(|node| NodeAddress::in_memory(NodeId(node)));
    Shared::new(NodeConfig::new(NodeId(number), LANES, addresses.collect(), keyspaces))
}

/// One lane of every node, on a thread of its own.
struct Lane {
    cluster: MemoryCluster,
    nodes: Vec<Arc<Shared>>,
    clock: Arc<Clock>,
    tag: u64,
}

impl Lane {
    fn turn(&mut self, time: Duration) {
        let now = self.clock.pass(time);
        self.cluster.begin_turn(now);
        self.cluster.end_turn(now);
        thread::yield_now();
    }

    /// Turns until every node serves and this lane has all that the others have.
    fn start(&mut self) {
        for _ in 0..TURNS_MAX {
            let active = self.nodes.iter().all(|node| node.is_active());
            let mut hosts = self.cluster.hosts.iter();
            if active && hosts.all(|host| host.lane.engine(KEYSPACE).expect("set").is_caught_up()) {
                return;
            }
            self.turn(Duration::from_millis(1));
        }
        panic!("the nodes found no view");
    }

    /// Takes one from a key and gives it to the next, at one of the nodes.
    fn transfer(&mut self, at: usize, from: usize) {
        let call = |words: &[&[u8]]| OwnedCall::new(words.iter().copied()).expect("known");
        let (from, to) = (KEYS[from % KEYS.len()], KEYS[(from + 1) % KEYS.len()]);
        let calls = vec![call(&[b"DECR", from]), call(&[b"INCR", to])];
        let txn = Op::Block(Block { watches: Vec::new(), calls });
        let now = self.clock.pass(Duration::from_nanos(200));
        self.tag += 1;
        self.cluster.begin_turn(now);
        let host = &mut self.cluster.hosts[at];
        host.lane.submit(now, KEYSPACE, Tag(self.tag), self.tag, txn, &mut host.out);
        for _ in 0..TURNS_MAX {
            self.turn(Duration::from_micros(2));
            if let Some(answer) = self.cluster.hosts[at].out.done.pop() {
                assert!(matches!(answer.outcome, Outcome::Done(_)), "{answer:?}");
                return;
            }
        }
        panic!("a transaction has no end");
    }
}

fn value(node: &Shared, key: &[u8]) -> i64 {
    let Some(KeyspaceStore::Meerkat(store, _)) = node.store(KEYSPACE) else {
        panic!("as configured")
    };
    let mut scratch = Vec::new();
    match store.read(key, hash_key(key), &store.pin(), &mut scratch) {
        Some(snapshot) if snapshot.value.is_some() => {
            std::str::from_utf8(&scratch).expect("digits").parse().expect("a number")
        }
        _ => 0,
    }
}

fn lanes_transfer(nodes: u16, transfers: usize) {
    let nodes: Vec<_> = (1..=nodes).map(|number| node(number, nodes)).collect();
    let clock = Arc::new(Clock(AtomicU64::new(1_000_000_000)));
    let clusters = MemoryCluster::cluster(&nodes, clock.pass(Duration::ZERO));
    // A lane goes on until all are done, as lanes do: the others' ops may need it.
    let busy = Arc::new(AtomicU64::new(u64::from(LANES)));
    let lanes: Vec<_> = clusters
        .into_iter()
        .enumerate()
        .map(|(number, cluster)| {
            let (nodes, clock, busy) = (nodes.clone(), Arc::clone(&clock), Arc::clone(&busy));
            thread::spawn(move || {
                let at = number % nodes.len();
                let mut lane = Lane { cluster, nodes, clock, tag: 0 };
                lane.start();
                (0..transfers).for_each(|step| lane.transfer(at, number + step));
                busy.fetch_sub(1, Ordering::Relaxed);
                while busy.load(Ordering::Relaxed) > 0 {
                    lane.turn(Duration::from_micros(2));
                }
                // What the coordinators know, the other replicas hear.
                (0..20).for_each(|_| lane.turn(Duration::from_millis(1)));
            })
        })
        .collect();
    lanes.into_iter().for_each(|lane| lane.join().unwrap());
    let mut expected = [0; KEYS.len()];
    for from in (0..usize::from(LANES)).flat_map(|lane| lane..lane + transfers) {
        expected[from % KEYS.len()] -= 1;
        expected[(from + 1) % KEYS.len()] += 1;
    }
    for node in &nodes {
        assert_eq!(KEYS.map(|key| value(node, key)), expected, "of node {}", node.config.node);
    }
}

#[test]
fn lanes_of_one_node_transfer_between_the_same_keys() {
    explore(4_000, || lanes_transfer(1, 3));
}

#[test]
fn lanes_of_three_nodes_transfer_between_the_same_keys() {
    explore(2_000, || lanes_transfer(3, 2));
}
