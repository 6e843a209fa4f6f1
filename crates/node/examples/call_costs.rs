//! What a session's call costs more than its command, on three replicas together, without sockets:
//! `cargo run --release -p quorate-node --example call_costs [-- SESSIONS]`.
//!
//! Three nodes of one lane each, in one thread. Fifty clients have one `SET` under way each, plain or
//! as the call of their session, in turns. Time is the thread's processor time, which other processes
//! disturb least; each figure is the median of several rounds, with their range, in nanoseconds for
//! each op on all nodes. With SESSIONS, so many other sessions with one record each are there, too.

use std::sync::Arc;

use quorate_commands::{Op, OwnedCall, Txn, Work};
use quorate_machine::Outcome;
use quorate_node::{
    EngineConfig, KeyspaceConfig, NodeAddress, NodeConfig, SessionCall, Shared, Strand,
};
use quorate_rifl::{Answer, Call, Grant, Request};
use quorate_types::{Duration, Instant, KeyspaceId, NodeId, Now, Tag, UnixNanos};
use rustix::time::{ClockId, clock_gettime};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const NODES: u16 = 3;
const CLIENTS: usize = 50;
const KEYS: usize = 100_000;
const ROUNDS: usize = 9;
const OPS: usize = 100_000;

struct Cluster {
    time: Duration,
    strand: Strand,
}

/// The session of a client.
struct Client {
    grant: Grant,
    sequence: u64,
}

fn main() {
    let others: usize = std::env::args()
        .nth(1)
        .map_or(0, |sessions| sessions.parse().expect("the argument is a number of sessions"));
    let mut cluster = Cluster::new(others + CLIENTS * 2);
    for (number, engine) in [(0, "hermes"), (1, "meerkat")] {
        let keyspace = KeyspaceId(number);
        for other in 0..others {
            let mut client = cluster.open();
            cluster.run(keyspace, &mut [Some(&mut client)], |_| other);
        }
        let mut clients: Vec<Client> = (0..CLIENTS).map(|_| cluster.open()).collect();
        let (mut plain, mut calls) = (Vec::new(), Vec::new());
        for round in 0..=ROUNDS {
            let mut one = cluster.round(keyspace, &mut clients, round % 2 == 1);
            let mut other = cluster.round(keyspace, &mut clients, round % 2 == 0);
            if round % 2 == 1 {
                (one, other) = (other, one);
            }
            // The first is for the caches.
            if round > 0 {
                plain.push(one);
                calls.push(other);
            }
        }
        report(engine, "SET", &mut plain);
        report(engine, "SET as a call", &mut calls);
    }
}

fn report(engine: &str, name: &str, figures: &mut [u64]) {
    figures.sort_unstable();
    let (least, most) = (figures[0], figures[figures.len() - 1]);
    println!("{engine:<8} {name:<14} {:>6} ns ({least} to {most})", figures[figures.len() / 2]);
}

impl Cluster {
    fn new(sessions_max: usize) -> Self {
        let nodes: Vec<_> = (1..=NODES).map(|node| shared(NodeId(node), sessions_max)).collect();
        let time = Duration::from_secs(1);
        let mut strands = Strand::cluster(&nodes, at(time));
        let strand = strands.pop().expect("one lane");
        let mut this = Self { time, strand };
        while !nodes.iter().all(|node| node.is_active()) {
            this.turn(Duration::from_millis(1));
            assert!(this.time < Duration::from_secs(20), "the nodes find no view");
        }
        this
    }

    fn turn(&mut self, time: Duration) {
        self.time += time;
        let now = at(self.time);
        self.strand.begin_turn(now);
        self.strand.end_turn(now);
    }

    fn open(&mut self) -> Client {
        loop {
            let now = at(self.time);
            let host = &mut self.strand.hosts[0];
            host.lane.lease(now, Tag(0), Request::Open, &mut host.out);
            for _ in 0..1_000 {
                match self.strand.hosts[0].out.leased.pop() {
                    Some((_, Answer::Granted(grant))) => return Client { grant, sequence: 0 },
                    Some(_) => break,
                    None => self.turn(Duration::from_millis(1)),
                }
            }
        }
    }

    /// Nanoseconds of an op.
    fn round(&mut self, keyspace: KeyspaceId, clients: &mut [Client], called: bool) -> u64 {
        let mut state = 1_usize;
        let mut key = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % KEYS
        };
        let started = processor_time();
        for _ in 0..OPS / CLIENTS {
            let mut who: Vec<Option<&mut Client>> =
                clients.iter_mut().map(|client| called.then_some(client)).collect();
            self.run(keyspace, &mut who, &mut key);
        }
        (processor_time() - started) / OPS as u64
    }

    /// One op of each client, plain if it has no session.
    fn run(
        &mut self,
        keyspace: KeyspaceId,
        clients: &mut [Option<&mut Client>],
        mut key: impl FnMut(usize) -> usize,
    ) {
        let now = at(self.time);
        for (number, client) in clients.iter_mut().enumerate() {
            let key = format!("key:{:012}", key(number));
            let words: [&[u8]; 3] = [b"SET", key.as_bytes(), &[b'v'; 100]];
            let owned = OwnedCall::new(words).expect("a command");
            let (tag, origin) = (Tag(number as u64), number as u64);
            let host = &mut self.strand.hosts[0];
            let (lane, out) = (&mut host.lane, &mut host.out);
            match client {
                None if keyspace == KeyspaceId(0) => {
                    lane.submit(now, keyspace, tag, origin, owned.call(), out);
                }
                None => lane.transact(now, keyspace, tag, origin, owned.call(), out),
                Some(client) => {
                    let work = match keyspace {
                        KeyspaceId(0) => Work::Op(Op::Call(owned)),
                        _ => Work::Txn(Txn::Call(owned)),
                    };
                    let Client { grant, sequence } = **client;
                    let (lease, digest) = (grant.lease, work.digest());
                    let call = Call { lease, sequence, first_incomplete: sequence, digest };
                    client.sequence += 1;
                    lane.call(now, tag, SessionCall { keyspace, origin, call, grant, work }, out);
                }
            }
        }
        let mut answered = 0;
        while answered < clients.len() {
            let out = &mut self.strand.hosts[0].out;
            for (tag, answer) in out.leased.drain(..) {
                let Answer::Granted(grant) = answer else { panic!("{answer:?}") };
                let client = clients[tag.0 as usize].as_mut().expect("it has a session");
                client.grant = grant;
            }
            for done in out.done.drain(..) {
                assert!(matches!(done.outcome, Outcome::Done(_)), "{:?}", done.outcome);
                answered += 1;
            }
            self.turn(Duration::from_micros(20));
        }
    }
}

fn shared(node: NodeId, sessions_max: usize) -> Arc<Shared> {
    let addresses = (1..=NODES).map(|number| NodeAddress {
        node: NodeId(number),
        peer: String::new(),
        client: String::new(),
        admin: String::new(),
    });
    let keyspace = |number, engine| KeyspaceConfig {
        id: KeyspaceId(number),
        name: format!("number {number}"),
        replicas: None,
        engine,
    };
    Shared::new(NodeConfig {
        node,
        cluster: "costs".to_owned(),
        lanes: 1,
        nodes: addresses.collect(),
        lease: NodeConfig::LEASE,
        suspect_after: NodeConfig::SUSPECT_AFTER,
        clock_drift_ppm: NodeConfig::CLOCK_DRIFT_PPM,
        message_loss_timeout: NodeConfig::MESSAGE_LOSS_TIMEOUT,
        op_timeout: NodeConfig::OP_TIMEOUT,
        sessions_max,
        session_term: NodeConfig::SESSION_TERM,
        keyspaces: vec![keyspace(0, EngineConfig::HERMES), keyspace(1, EngineConfig::meerkat())],
        seed: u64::from(node.0),
    })
}

fn at(time: Duration) -> Now {
    let nanos = time.as_nanos() as u64;
    Now { monotonic: Instant(nanos), unix: UnixNanos((1 << 60) + nanos) }
}

fn processor_time() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
