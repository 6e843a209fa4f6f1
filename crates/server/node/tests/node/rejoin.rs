//! A node comes back to a cluster that holds much, as a new process or as one that was expelled and
//! lived, or is removed and meets another cluster: whole nodes with one lane each, in virtual time,
//! over links that hold and carry no more than real ones.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use quorate_commands::OwnedCall;
use quorate_machine::Outcome;
use quorate_node::{
    Change, EngineConfig, Host, KeyspaceConfig, KeyspaceStore, Lane, MemberConfig, NodeAddress,
    NodeConfig, Outbox, Shared,
};
use quorate_types::{
    Duration, Epoch, Incarnation, KeyspaceId, LaneId, NodeId, Now, Tag, Timestamp, hash_key, limits,
};

use crate::support::at;

const KEYSPACE: KeyspaceId = KeyspaceId(0);
const ALL: [NodeId; 3] = [NodeId(1), NodeId(2), NodeId(3)];
/// The node that leaves and comes back.
const LAST: usize = 2;
const TURN: Duration = Duration::from_millis(1);
/// What a link carries in a turn: 10 Gbit/s.
const TURN_BYTES: usize = 1_250_000;
/// Commands in flight while a test fills the store.
const WINDOW: usize = 8;

/// A node of a cluster that these nodes found together.
fn shared(node: NodeId, founders: &[NodeId], engine: EngineConfig) -> Arc<Shared> {
    let keyspaces = vec![KeyspaceConfig::new(KEYSPACE, "default", engine)];
    let addresses = founders.iter().copied().map(NodeAddress::in_memory);
    Shared::new(NodeConfig::new(node, 1, addresses.collect(), keyspaces))
}

/// What one node has sent to another and has not arrived: the frames, each with its sender's life.
#[derive(Default)]
struct Link {
    frames: VecDeque<(Incarnation, Vec<u8>)>,
    /// Bytes of the frames, less what has been carried of the first.
    left: usize,
}

impl Link {
    /// As the links of the runtime: what would exceed the buffer is lost, a whole turn's messages.
    fn send(&mut self, incarnation: Incarnation, frame: Vec<u8>) -> bool {
        let fits = self.left + frame.len() <= limits::PEER_BUFFER_BYTES_MAX;
        if fits {
            self.left += frame.len();
            self.frames.push_back((incarnation, frame));
        }
        fits
    }

    /// Carries some bytes; gives the frames that have arrived whole.
    fn carry(&mut self, bytes: usize) -> Vec<(Incarnation, Vec<u8>)> {
        self.left = self.left.saturating_sub(bytes);
        let mut waiting: usize = self.frames.iter().map(|(_, frame)| frame.len()).sum();
        let mut arrived = Vec::new();
        while let Some((_, frame)) = self.frames.front()
            && waiting - frame.len() >= self.left
        {
            waiting -= frame.len();
            arrived.extend(self.frames.pop_front());
        }
        arrived
    }
}

struct Cluster {
    engine: EngineConfig,
    time: Duration,
    nodes: Vec<Arc<Shared>>,
    hosts: Vec<Host>,
    links: Vec<Vec<Link>>,
    /// The node that is stopped, as by SIGSTOP.
    stopped: Option<usize>,
    /// Frames that found a full link.
    lost: u64,
    /// Bytes of the frames from and to the last node.
    moved: u64,
    tag: u64,
    done: u64,
    /// The node through which commands and changes of the membership go.
    asked: usize,
    /// The answers to changes of the membership.
    changes: Vec<Result<Epoch, String>>,
}

impl Cluster {
    fn new() -> Self {
        Self::of(EngineConfig::hermes())
    }

    fn of(engine: EngineConfig) -> Self {
        let of_all = |node| shared(node, &ALL, engine.clone());
        let nodes: Vec<_> = ALL.into_iter().map(of_all).collect();
        let time = Duration::from_secs(1);
        let hosts = nodes.iter().map(|shared| host(shared, time)).collect();
        let link = || (0..ALL.len()).map(|_| Link::default()).collect();
        let links = (0..ALL.len()).map(|_| link()).collect();
        let mut this = Self {
            engine,
            time,
            nodes,
            hosts,
            links,
            stopped: None,
            lost: 0,
            moved: 0,
            tag: 0,
            done: 0,
            asked: 0,
            changes: Vec::new(),
        };
        this.run_until(Duration::from_secs(10), Self::is_whole);
        this
    }

    fn is_whole(&self) -> bool {
        let (now, active) = (at(self.time), self.nodes.iter().all(|node| node.is_active()));
        active && self.hosts.iter().all(|host| host.lane.serving(now).is_ok())
    }

    #[track_caller]
    fn run_until(&mut self, most: Duration, reached: impl Fn(&Self) -> bool) -> Duration {
        let begun = self.time;
        while !reached(self) {
            assert!(self.time - begun < most, "not within {most:?}; {} frames lost", self.lost);
            self.turn();
        }
        self.time - begun
    }

    fn turn(&mut self) {
        self.time += TURN;
        let now = at(self.time);
        for from in 0..self.hosts.len() {
            if self.stopped == Some(from) {
                continue;
            }
            let host = &mut self.hosts[from];
            host.lane.begin_turn(now);
            self.receive(now, from);
            self.end_turn(now, from);
        }
    }

    fn receive(&mut self, now: Now, to: usize) {
        for from in 0..self.hosts.len() {
            let sender = self.hosts[from].node;
            for (incarnation, frame) in self.links[from][to].carry(TURN_BYTES) {
                let host = &mut self.hosts[to];
                host.lane
                    .receive(now, sender, incarnation, &frame, &mut host.out)
                    .expect("nodes of one build understand each other");
            }
        }
    }

    fn end_turn(&mut self, now: Now, from: usize) {
        let host = &mut self.hosts[from];
        if host.lane.next_deadline() <= now.monotonic {
            host.lane.tick(now, &mut host.out);
        }
        host.lane.end_turn(now, &mut host.out);
        host.lane.seal(now, false, &mut host.out);
        while let Some((_, mail)) = host.out.mail.pop() {
            host.lane.deliver(now, mail, &mut host.out);
        }
        for answer in host.out.done.drain(..) {
            assert!(matches!(answer.outcome, Outcome::Done(_)), "{:?}", answer.outcome);
            self.done += 1;
        }
        self.changes.extend(host.out.control.drain(..).map(|(_, answer)| answer));
        let _ = host.out.take_urgent();
        if host.out.rejoined.take().is_some() {
            // Its connections are closed, and what was on its way with them is lost.
            for peer in host.out.take_waiting() {
                host.out.peer(peer).clear();
            }
            self.links[from].iter_mut().for_each(|link| *link = Link::default());
        }
        let incarnation = self.hosts[from].lane.incarnation();
        for peer in self.hosts[from].out.take_waiting() {
            let frame = std::mem::take(self.hosts[from].out.peer(peer));
            let to = self.hosts.iter().position(|host| host.node == peer).expect("configured");
            self.moved += if from.max(to) == LAST { frame.len() as u64 } else { 0 };
            // A process that is stopped reads nothing.
            self.lost += u64::from(!self.links[from][to].send(incarnation, frame));
        }
    }

    /// Stores this many values of this length through one node.
    fn fill(&mut self, keys: usize, bytes: usize) {
        let value = vec![b'v'; bytes];
        self.command((0..keys).map(|number| vec![b"SET".to_vec(), key(number), value.clone()]));
    }

    /// Runs commands through the node that is asked.
    fn command(&mut self, commands: impl Iterator<Item = Vec<Vec<u8>>>) {
        for command in commands {
            self.tag += 1;
            let call = OwnedCall::new(command.iter().map(Vec::as_slice)).expect("a command");
            let (now, tag) = (at(self.time), Tag(self.tag));
            let host = &mut self.hosts[self.asked];
            host.lane.submit(now, KEYSPACE, tag, self.tag, call.call(), &mut host.out);
            while self.tag - self.done >= WINDOW as u64 {
                self.turn();
            }
        }
        self.run_until(Duration::from_secs(10), |cluster| cluster.done == cluster.tag);
    }

    /// Changes the membership, and waits for the answer.
    fn change(&mut self, change: Change) {
        let (now, asked) = (at(self.time), self.asked);
        let host = &mut self.hosts[asked];
        host.lane.change_members(now, Tag(1), change, &mut host.out);
        self.run_until(Duration::from_secs(10), |cluster| !cluster.changes.is_empty());
        let answer = self.changes.remove(0);
        assert!(answer.is_ok(), "{answer:?}");
    }

    /// Takes a node out, and starts all others anew, to found another cluster. What the node has
    /// sent meanwhile has arrived.
    fn found_anew_without(&mut self, removed: usize, founders: &[NodeId]) {
        self.asked = usize::from(removed == 0);
        self.change(Change::Remove { node: self.hosts[removed].node, at_once: false });
        self.run_until(Duration::from_secs(10), |cluster| {
            cluster.hosts[removed].lane.view().epoch == Epoch(0)
        });
        for other in (0..self.hosts.len()).filter(|other| *other != removed) {
            self.restart(other, founders);
        }
    }

    /// Starts a node anew, as a process that knows nothing.
    fn restart(&mut self, node: usize, founders: &[NodeId]) {
        self.nodes[node] = shared(self.hosts[node].node, founders, self.engine.clone());
        self.hosts[node] = host(&self.nodes[node], self.time);
        self.links[node].iter_mut().for_each(|link| *link = Link::default());
        self.links.iter_mut().for_each(|links| links[node] = Link::default());
    }

    /// Stops the last node until the others have gone on without it.
    fn stop(&mut self) {
        self.stopped = Some(LAST);
        // A node that was silent before is suspected later.
        self.run_until(Duration::from_secs(10), |cluster| {
            cluster.hosts[0].lane.view().active().len() < ALL.len()
        });
    }

    /// Lets it go on; how long it takes to come back, and how many bytes.
    fn go_on(&mut self) -> (Duration, u64) {
        self.stopped = None;
        self.links.iter_mut().for_each(|links| links[LAST] = Link::default());
        self.run_until(Duration::from_secs(2), |cluster| !cluster.nodes[LAST].is_active());
        let before = self.moved;
        let took = self.run_until(Duration::from_secs(20), Self::is_whole);
        (took, self.moved - before)
    }

    /// Starts it anew, as a process that knows nothing; the same.
    fn start_anew(&mut self) -> (Duration, u64) {
        self.restart(LAST, &ALL);
        self.go_on()
    }

    fn records(&self, node: usize) -> BTreeMap<Vec<u8>, (Timestamp, Vec<u8>)> {
        let mut records = BTreeMap::new();
        let store = self.nodes[node].store(KEYSPACE).expect("as configured");
        store.dump(&mut |key, timestamp, _, content| {
            let value = content.map_or(&b"(deleted)"[..], |content| content.bytes);
            records.insert(key.to_vec(), (timestamp, value.to_vec()));
        });
        records
    }

    fn length(&self, node: usize, key: &[u8]) -> Option<usize> {
        let Some(KeyspaceStore::Hermes(store, _)) = self.nodes[node].store(KEYSPACE) else {
            panic!("as configured")
        };
        let mut scratch = Vec::new();
        let record = store.read(key, hash_key(key), &store.pin(), &mut scratch)?;
        record.value.map(|_| scratch.len())
    }
}

/// A process that has just started.
fn host(shared: &Arc<Shared>, time: Duration) -> Host {
    let node = shared.config.node;
    let incarnation = Incarnation(u64::from(node.0) << 48 | time.as_nanos() as u64);
    let lane = Lane::new(Arc::clone(shared), LaneId(0), incarnation, at(time));
    Host { node, lane, out: Outbox::new() }
}

fn key(number: usize) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

/// A new process copies everything.
fn comes_back_to(keys: usize, bytes: usize) {
    let mut cluster = Cluster::new();
    cluster.fill(keys, bytes);
    cluster.stop();
    let (took, _) = cluster.start_anew();
    for number in 0..keys {
        assert_eq!(cluster.length(LAST, &key(number)), Some(bytes), "key {number}");
    }
    println!("{keys} values of {bytes} bytes: back after {took:?}, {} frames lost", cluster.lost);
}

#[test]
fn a_node_comes_back_to_more_large_values_than_a_link_holds() {
    let bytes = 100 * 1024;
    let keys = limits::PEER_BUFFER_BYTES_MAX / bytes + 200;
    comes_back_to(keys, bytes);
}

#[test]
fn a_node_comes_back_to_the_largest_values() {
    comes_back_to(40, limits::VALUE_BYTES_MAX);
}

#[test]
fn a_node_comes_back_to_thousands_of_middling_values() {
    comes_back_to(4_000, 16 * 1024);
}

/// While it was away some keys changed, and some were deleted and their tombstones forgotten.
#[test]
fn an_expelled_node_copies_what_differs_and_loses_what_was_deleted() {
    const KEYS: usize = 10_000;
    let mut cluster = Cluster::new();
    cluster.fill(KEYS, 64);
    cluster.stop();
    let spread = |from: usize| (from..KEYS).step_by(200).map(key);
    cluster.command(spread(0).map(|key| vec![b"SET".to_vec(), key, b"changed".repeat(9)]));
    cluster.command(spread(1).map(|key| vec![b"DEL".to_vec(), key]));
    cluster.run_until(Duration::from_secs(30), |cluster| {
        cluster.nodes[0].store_facts(KEYSPACE).tombstones == 0
    });
    let (took, difference) = cluster.go_on();
    assert_eq!(cluster.records(LAST), cluster.records(0));
    assert_eq!(cluster.length(LAST, &key(1)), None);
    cluster.stop();
    let (took_anew, copy) = cluster.start_anew();
    assert_eq!(cluster.records(LAST), cluster.records(0));
    println!("{difference} bytes in {took:?}, beside {copy} in {took_anew:?}");
    assert!(difference * 20 < copy, "{difference} bytes, beside {copy}");
}

/// It holds the records of the cluster that it was in, and founds the next one together with nodes
/// that have lost theirs: the lowest id proposes the first view, be it the one that was removed or
/// another. Nobody may hold what nobody has set since.
#[test]
fn a_removed_node_that_founds_anew_has_forgotten_what_it_held() {
    for engine in [EngineConfig::hermes(), EngineConfig::meerkat()] {
        for removed in [0, LAST] {
            let mut cluster = Cluster::of(engine.clone());
            cluster.fill(100, 64);
            assert_eq!(cluster.records(removed).len(), 100);
            cluster.found_anew_without(removed, &ALL);
            cluster.run_until(Duration::from_secs(20), Cluster::is_whole);
            for node in 0..ALL.len() {
                assert_eq!(cluster.records(node).len(), 0, "{engine:?}, node {node}");
            }
            cluster.fill(10, 64);
            cluster
                .run_until(Duration::from_secs(1), |cluster| cluster.records(removed).len() == 10);
        }
    }
}

/// It holds the records of the cluster that it was in, and joins one that was founded without it, in
/// which versions began anew: equal ones are of different values.
#[test]
fn a_removed_node_that_joins_another_cluster_has_forgotten_what_it_held() {
    for engine in [EngineConfig::hermes(), EngineConfig::meerkat()] {
        let mut cluster = Cluster::of(engine.clone());
        cluster.fill(100, 64);
        cluster.found_anew_without(LAST, &ALL[..LAST]);
        cluster.run_until(Duration::from_secs(20), |cluster| {
            cluster.hosts[..LAST].iter().all(|host| host.lane.serving(at(cluster.time)).is_ok())
        });
        cluster.fill(50, 32);
        let address = |node| MemberConfig {
            node,
            peer_address: String::new(),
            client_address: String::new(),
            admin_address: String::new(),
        };
        cluster.change(Change::Add(address(ALL[LAST])));
        cluster.run_until(Duration::from_secs(20), Cluster::is_whole);
        assert_eq!(cluster.records(0).len(), 50);
        assert_eq!(cluster.records(LAST), cluster.records(0), "{engine:?}");
    }
}
