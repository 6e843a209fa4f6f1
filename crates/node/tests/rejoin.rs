//! A node comes back to a cluster that holds much: whole nodes with one lane each, in virtual time,
//! over links that hold and carry no more than real ones.

use std::collections::VecDeque;
use std::sync::Arc;

use quorate_commands::{Op, OwnedCall, Reply};
use quorate_machine::Outcome;
use quorate_node::{
    EngineConfig, Host, KeyspaceConfig, KeyspaceStore, Lane, NodeAddress, NodeConfig, Outbox,
    Shared,
};
use quorate_types::{
    Duration, Incarnation, Instant, KeyspaceId, LaneId, NodeId, Now, Tag, UnixNanos, hash_key,
    limits,
};

const KEYSPACE: KeyspaceId = KeyspaceId(0);
const NODES: u16 = 3;
const TURN: Duration = Duration::from_millis(1);
/// What a link carries in a turn: 10 Gbit/s.
const TURN_BYTES: usize = 1_250_000;
/// Commands in flight while a test fills the store.
const WINDOW: usize = 8;

fn shared(node: NodeId) -> Arc<Shared> {
    let addresses = (1..=NODES).map(|number| NodeAddress {
        node: NodeId(number),
        peer: String::new(),
        client: String::new(),
        admin: String::new(),
    });
    Shared::new(NodeConfig {
        node,
        cluster: "rejoin".to_owned(),
        lanes: 1,
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
            replicas: None,
            engine: EngineConfig::HERMES,
        }],
        seed: u64::from(node.0),
    })
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
    time: Duration,
    nodes: Vec<Arc<Shared>>,
    hosts: Vec<Host>,
    links: Vec<Vec<Link>>,
    /// The node that is stopped, as by SIGSTOP.
    stopped: Option<usize>,
    /// Frames that found a full link.
    lost: u64,
    tag: u64,
    done: u64,
}

impl Cluster {
    fn new() -> Self {
        let nodes: Vec<_> = (1..=NODES).map(|node| shared(NodeId(node))).collect();
        let time = Duration::from_secs(1);
        let host = |shared: &Arc<Shared>| {
            let node = shared.config.node;
            let incarnation = Incarnation(u64::from(node.0) << 48);
            let lane = Lane::new(Arc::clone(shared), LaneId(0), incarnation, at(time));
            Host { node, lane, out: Outbox::new() }
        };
        let hosts = nodes.iter().map(host).collect();
        let link = || (0..NODES).map(|_| Link::default()).collect();
        let links = (0..NODES).map(|_| link()).collect();
        let mut this = Self { time, nodes, hosts, links, stopped: None, lost: 0, tag: 0, done: 0 };
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
            assert_eq!(answer.outcome, Outcome::Done(Reply::Ok));
            self.done += 1;
        }
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
            // A process that is stopped reads nothing.
            self.lost += u64::from(!self.links[from][to].send(incarnation, frame));
        }
    }

    /// Stores this many values of this length through one node.
    fn fill(&mut self, keys: usize, bytes: usize) {
        let value = vec![b'v'; bytes];
        for number in 0..keys {
            self.tag += 1;
            let key = key(number);
            let call = OwnedCall::new([&b"SET"[..], &key, &value]).expect("a command");
            let (now, tag) = (at(self.time), Tag(self.tag));
            let host = &mut self.hosts[0];
            host.lane.submit(now, KEYSPACE, tag, self.tag, Op::Call(call), &mut host.out);
            while self.tag - self.done >= WINDOW as u64 {
                self.turn();
            }
        }
        self.run_until(Duration::from_secs(10), |cluster| cluster.done == cluster.tag);
    }

    /// Stops a node until the others have gone on without it, and lets it go on.
    fn pause(&mut self, node: usize) {
        self.stopped = Some(node);
        self.run_until(Duration::from_secs(2), |cluster| {
            cluster.hosts[0].lane.view().active().len() < usize::from(NODES)
        });
        self.stopped = None;
        self.links.iter_mut().for_each(|links| links[node] = Link::default());
        self.run_until(Duration::from_secs(2), |cluster| !cluster.nodes[node].is_active());
    }

    fn length(&self, node: usize, key: &[u8]) -> Option<usize> {
        let Some(KeyspaceStore::Hermes(store)) = self.nodes[node].store(KEYSPACE) else {
            panic!("as configured")
        };
        let mut scratch = Vec::new();
        let record = store.read(key, hash_key(key), &store.pin(), &mut scratch)?;
        record.value.map(|_| scratch.len())
    }
}

fn at(time: Duration) -> Now {
    let nanos = time.as_nanos() as u64;
    Now { monotonic: Instant(nanos), unix: UnixNanos(1 << 60 | nanos) }
}

fn key(number: usize) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

/// What the last node copies when it comes back, and how long that takes.
fn comes_back_to(keys: usize, bytes: usize) {
    let mut cluster = Cluster::new();
    cluster.fill(keys, bytes);
    cluster.pause(2);
    let took = cluster.run_until(Duration::from_secs(20), Cluster::is_whole);
    for number in 0..keys {
        assert_eq!(cluster.length(2, &key(number)), Some(bytes), "key {number}");
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
