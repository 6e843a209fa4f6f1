//! Commands on a whole keyspace, on whole lanes in one process.

use std::collections::BTreeSet;
use std::sync::Arc;

use quorate_commands::{Op, OwnedCall, Reply};
use quorate_machine::Outcome;
use quorate_node::{
    EngineConfig, KeyspaceConfig, Listed, MemoryCluster, NodeAddress, NodeConfig, Shared,
};
use quorate_types::{Duration, Instant, KeyspaceId, NodeId, NodeSet, Now, Tag, UnixNanos};

const KEYSPACE: KeyspaceId = KeyspaceId(0);
const LANES: u16 = 2;
/// Keys that are written before the answers are waited for.
const AT_ONCE: usize = 1000;

/// What one test runs.
struct Setup {
    nodes: u16,
    replicas: Option<NodeSet>,
    partitions: Vec<Option<NodeSet>>,
    engine: EngineConfig,
}

impl Setup {
    /// One node.
    fn of(engine: EngineConfig) -> Self {
        Self { nodes: 1, replicas: None, partitions: vec![None], engine }
    }
}

fn node(setup: &Setup, node: NodeId) -> Arc<Shared> {
    let addresses = (1..=setup.nodes).map(|number| NodeAddress {
        node: NodeId(number),
        peer: String::new(),
        client: String::new(),
        admin: String::new(),
    });
    Shared::new(NodeConfig {
        node,
        cluster: "whole keyspaces".to_owned(),
        lanes: LANES,
        nodes: addresses.collect(),
        lease: NodeConfig::LEASE,
        suspect_after: NodeConfig::SUSPECT_AFTER,
        clock_drift_ppm: NodeConfig::CLOCK_DRIFT_PPM,
        message_loss_timeout: NodeConfig::MESSAGE_LOSS_TIMEOUT,
        op_timeout: NodeConfig::OP_TIMEOUT,
        sessions_max: NodeConfig::SESSIONS_MAX,
        session_term: NodeConfig::SESSION_TERM,
        keyspaces: vec![KeyspaceConfig {
            id: KEYSPACE,
            name: "default".to_owned(),
            replicas: setup.replicas,
            partitions: setup.partitions.clone(),
            engine: setup.engine.clone(),
        }],
        seed: u64::from(node.0),
    })
}

/// A cluster whose time passes when a test says so.
struct Cluster {
    time: Duration,
    nodes: Vec<Arc<Shared>>,
    strands: Vec<MemoryCluster>,
    /// The lane that has the clients.
    lane: usize,
    tag: u64,
}

impl Cluster {
    fn new(setup: &Setup) -> Self {
        let nodes: Vec<_> = (1..=setup.nodes).map(|id| node(setup, NodeId(id))).collect();
        let time = Duration::from_secs(1);
        let strands = MemoryCluster::cluster(&nodes, at(time));
        let mut this = Self { time, nodes, strands, lane: 0, tag: 0 };
        while !this.serves() {
            this.turn(Duration::from_millis(1));
            assert!(this.time < Duration::from_secs(20), "the nodes find no view");
        }
        this
    }

    fn serves(&self) -> bool {
        let mut lanes = self.strands.iter().flat_map(|strand| &strand.hosts);
        lanes.all(|host| host.lane.serving(at(self.time)).is_ok())
    }

    fn turn(&mut self, time: Duration) {
        self.time += time;
        let now = at(self.time);
        self.strands.iter_mut().for_each(|strand| strand.begin_turn(now));
        self.strands.iter_mut().for_each(|strand| strand.end_turn(now));
    }

    /// Turns until everything that was asked for at a node since `tag` is answered.
    fn answers(&mut self, at: usize, since: u64) -> Vec<Outcome<Reply<'static>>> {
        let (until, mut outcomes) = (self.time + Duration::from_secs(10), Vec::new());
        while outcomes.len() < (self.tag - since) as usize {
            let done = self.strands[self.lane].hosts[at].out.done.drain(..);
            outcomes.extend(done.map(|done| done.outcome));
            assert!(self.time < until, "no answer in ten seconds");
            self.turn(Duration::from_micros(100));
        }
        outcomes
    }

    fn submit(&mut self, at_node: usize, words: &[&[u8]]) {
        let (now, tag) = (at(self.time), Tag(self.tag));
        self.tag += 1;
        let call = OwnedCall::new(words.iter().copied()).expect("known");
        let host = &mut self.strands[self.lane].hosts[at_node];
        host.lane.submit(now, KEYSPACE, tag, tag.0, Op::Call(call), &mut host.out);
    }

    /// Writes that many keys through a node.
    fn fill(&mut self, at: usize, keys: usize) {
        let keys: Vec<_> = (0..keys).map(|number| format!("key {number}")).collect();
        for keys in keys.chunks(AT_ONCE) {
            let since = self.tag;
            keys.iter().for_each(|key| self.submit(at, &[b"SET", key.as_bytes(), b"value"]));
            let answers = self.answers(at, since);
            assert!(answers.iter().all(|answer| *answer == Outcome::Done(Reply::Ok)));
        }
    }

    /// Begins to empty the keyspace through a node.
    fn begin_flush(&mut self, at_node: usize) -> u64 {
        let (now, tag) = (at(self.time), self.tag);
        self.tag += 1;
        let host = &mut self.strands[self.lane].hosts[at_node];
        host.lane.flush_keyspace(now, KEYSPACE, Tag(tag), &mut host.out);
        tag
    }

    fn flush(&mut self, at: usize) -> Outcome<Reply<'static>> {
        let since = self.begin_flush(at);
        self.answers(at, since).pop().expect("one was waited for")
    }

    /// Every key that a node lists.
    fn list(&mut self, at_node: usize) -> BTreeSet<Vec<u8>> {
        let (mut keys, mut cursor) = (BTreeSet::new(), 0);
        loop {
            let now = at(self.time);
            let host = &mut self.strands[self.lane].hosts[at_node];
            host.lane.list(now, KEYSPACE, Tag(7), cursor, 100, &mut host.out);
            let listed = loop {
                if let Some((Tag(7), listed)) =
                    self.strands[self.lane].hosts[at_node].out.listed.pop()
                {
                    break listed;
                }
                self.turn(Duration::from_micros(100));
            };
            let Outcome::Done(listed) = listed else { panic!("{listed:?}") };
            keys.extend(listed.keys);
            cursor = listed.next;
            if cursor == 0 {
                return keys;
            }
        }
    }

    /// Keys with a value that each node holds.
    fn keys(&self) -> Vec<u64> {
        self.nodes.iter().map(|node| node.store_facts(KEYSPACE).keys).collect()
    }
}

fn at(time: Duration) -> Now {
    let nanos = time.as_nanos() as u64;
    Now { monotonic: Instant(nanos), unix: UnixNanos(1 << 60 | nanos) }
}

const ENGINES: [fn() -> EngineConfig; 2] = [EngineConfig::hermes, EngineConfig::meerkat];

#[test]
fn a_node_alone_is_emptied_in_bounded_steps() {
    for engine in ENGINES {
        let mut cluster = Cluster::new(&Setup::of(engine()));
        cluster.fill(0, 20_000);
        assert_eq!(cluster.keys(), [20_000]);
        let since = cluster.begin_flush(0);
        let mut before = 20_000;
        while cluster.keys() != [0] {
            cluster.turn(Duration::from_micros(100));
            let [now] = cluster.keys()[..] else { unreachable!("one node") };
            assert!(now < before, "the flush stands still");
            assert!(before - now <= 512, "{} keys in one turn", before - now);
            before = now;
        }
        assert_eq!(cluster.answers(0, since), [Outcome::Done(Reply::Ok)]);
    }
}

fn group(nodes: [u16; 3]) -> Option<NodeSet> {
    Some(nodes.into_iter().map(NodeId).collect())
}

/// Keyspaces of four nodes. Some of the nodes hold nothing, or one partition only.
fn scattered() -> [Setup; 3] {
    let on_three = |engine| Setup { nodes: 4, replicas: group([1, 2, 3]), ..Setup::of(engine) };
    let partitions = vec![group([1, 2, 3]), group([2, 3, 4])];
    [
        on_three(EngineConfig::hermes()),
        on_three(EngineConfig::meerkat()),
        Setup { nodes: 4, partitions, ..Setup::of(EngineConfig::meerkat()) },
    ]
}

#[test]
fn a_flush_reaches_the_keys_that_its_node_does_not_hold() {
    for setup in scattered() {
        let mut cluster = Cluster::new(&setup);
        for at in 0..4 {
            cluster.fill(at, 1000);
            assert!(cluster.keys()[1] > 0, "{:?}", setup.engine);
            assert_eq!(cluster.flush(at), Outcome::Done(Reply::Ok));
            // Replicas may learn of the last deletes a moment after the client.
            (0..20).for_each(|_| cluster.turn(Duration::from_millis(1)));
            assert_eq!(cluster.keys(), [0; 4], "{:?} at node {}", setup.engine, at + 1);
        }
    }
}

/// With meerkat a majority suffices for a write, so the node that is asked may have missed it.
#[test]
fn a_flush_deletes_what_was_acknowledged_before_it_though_its_node_missed_it() {
    let skew = Duration::from_millis(1);
    let options = quorate_meerkat::Options { max_clock_skew: skew, ..Default::default() };
    let setup = Setup { nodes: 3, ..Setup::of(EngineConfig::Meerkat(options)) };
    let mut cluster = Cluster::new(&setup);
    // Lane 0 has the leases.
    cluster.lane = 1;
    cluster.strands[1].deaf = Some(NodeId(1));
    cluster.fill(1, 1000);
    assert_eq!(cluster.keys(), [0, 1000, 1000]);
    cluster.strands[1].deaf = None;
    assert_eq!(cluster.flush(0), Outcome::Done(Reply::Ok));
    (0..50).for_each(|_| cluster.turn(Duration::from_millis(1)));
    assert_eq!(cluster.keys(), [0; 3]);
}

#[test]
fn a_listing_names_every_key_wherever_it_is() {
    for setup in scattered() {
        let mut cluster = Cluster::new(&setup);
        cluster.fill(3, 1000);
        (0..20).for_each(|_| cluster.turn(Duration::from_millis(1)));
        for at in 0..4 {
            assert_eq!(cluster.list(at).len(), 1000, "{:?} at node {}", setup.engine, at + 1);
        }
    }
}

#[test]
fn a_question_that_was_lost_is_put_to_another_replica() {
    let [setup, ..] = scattered();
    let mut cluster = Cluster::new(&setup);
    let now = at(cluster.time);
    let host = &mut cluster.strands[0].hosts[3];
    host.lane.list(now, KEYSPACE, Tag(7), 0, 100, &mut host.out);
    let asked = host.out.take_waiting();
    assert_eq!(asked.len(), 1);
    asked.into_iter().for_each(|replica| host.out.peer(replica).clear());
    let (begun, mut listed) = (cluster.time, None);
    while listed.is_none() {
        cluster.turn(Duration::from_millis(1));
        listed = cluster.strands[0].hosts[3].out.listed.pop();
    }
    assert!(cluster.time - begun < NodeConfig::OP_TIMEOUT);
    let nothing = Listed { next: 0, keys: Vec::new() };
    assert_eq!(listed, Some((Tag(7), Outcome::Done(nothing))));
}
