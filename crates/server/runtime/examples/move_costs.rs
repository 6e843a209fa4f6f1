//! What it costs all nodes together, without sockets and clients, to move a key and to read what is
//! here, with the engine that moves keys:
//! `cargo run --release -p quorate-runtime --example move_costs`.
//!
//! Three nodes of one lane each, in one thread; 63 transactions are under way at a time. `stay` and
//! `move` are blocks of a `GET` and a `SET` of one key: of one that is where the transaction is, and of
//! one that another node has used last. So a move costs what they differ by. `mget` is a block of three
//! `GET`s. Time is the thread's processor time, the median of several rounds in which the kinds take
//! turns, with their range.
//!
//! `-- KIND` runs one kind alone, for a tool that counts instructions in [`measured`]:
//! `bench/perf/moves.py`.

use std::sync::Arc;

use quorate_commands::{Block, Op, OwnedCall};
use quorate_machine::Outcome;
use quorate_node::{EngineConfig, KeyspaceConfig, MemoryCluster, NodeAddress, NodeConfig, Shared};
use quorate_types::{Duration, Instant, KeyspaceId, NodeId, Now, Tag, UnixNanos};
use rustix::time::{ClockId, clock_gettime};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const NODES: u16 = 3;
const KEYSPACE: KeyspaceId = KeyspaceId(0);
/// Transactions under way, as many at each node.
const CLIENTS: usize = 63;
const KEYS: usize = 30_030;
const ROUNDS: usize = 9;
/// What a turn takes, as the nodes see it: so long that no key moves four times in a tenth of a second.
const TURN: Duration = Duration::from_micros(50);

/// The operation that a round does once on each key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Reads and writes a key where it is.
    Stay,
    /// Reads and writes a key at another node than the one before.
    Move,
    /// Reads three keys, at any node.
    Mget,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Stay, Self::Move, Self::Mget];

    const fn name(self) -> &'static str {
        match self {
            Self::Stay => "stay",
            Self::Move => "move",
            Self::Mget => "mget",
        }
    }
}

struct Cluster {
    time: Duration,
    cluster: MemoryCluster,
    /// At which node keys are; each round of moves brings them to the next one.
    shift: usize,
}

fn main() {
    let mut cluster = Cluster::new();
    // Keys appear and buffers grow before anything is counted.
    cluster.round(Kind::Stay);
    match std::env::args().nth(1) {
        Some(name) => {
            let kind = Kind::ALL.into_iter().find(|known| known.name() == name);
            let kind = kind.expect("the argument is stay, move or mget");
            cluster.round(kind);
            let requests = cluster.requests(kind);
            measured(&mut cluster, requests);
            println!("{KEYS} ops");
        }
        None => compare(&mut cluster),
    }
}

/// What is counted. A tool finds it by its name.
#[inline(never)]
fn measured(cluster: &mut Cluster, requests: Vec<(usize, Op)>) {
    cluster.run(requests);
}

fn compare(cluster: &mut Cluster) {
    let mut figures = Kind::ALL.map(|_| Vec::new());
    for round in 0..=ROUNDS {
        for (kind, figures) in Kind::ALL.into_iter().zip(&mut figures) {
            let requests = cluster.requests(kind);
            let started = processor_time();
            cluster.run(requests);
            // The first is for the caches.
            if round > 0 {
                figures.push((processor_time() - started) / KEYS as u64);
            }
        }
    }
    for (kind, mut figures) in Kind::ALL.into_iter().zip(figures) {
        figures.sort_unstable();
        let (least, most) = (figures[0], figures[figures.len() - 1]);
        println!("{:<5} {:>6} ns ({least} to {most})", kind.name(), figures[figures.len() / 2]);
    }
}

impl Cluster {
    fn new() -> Self {
        let nodes: Vec<_> = (1..=NODES).map(|node| shared(NodeId(node))).collect();
        let time = Duration::from_secs(1);
        let cluster = MemoryCluster::cluster(&nodes, at(time)).pop().expect("one lane");
        let mut this = Self { time, cluster, shift: 0 };
        while !nodes.iter().all(|node| node.is_active()) {
            this.turn(Duration::from_millis(1));
            assert!(this.time < Duration::from_secs(20), "the nodes find no view");
        }
        this
    }

    fn turn(&mut self, time: Duration) {
        self.cluster.end_turn(at(self.time));
        self.time += time;
        self.cluster.begin_turn(at(self.time));
    }

    /// The transactions of a round, each with its node.
    fn requests(&mut self, kind: Kind) -> Vec<(usize, Op)> {
        self.shift += usize::from(kind == Kind::Move);
        let request = |number: usize| {
            // All of them, in an order that no cache foresees.
            let key = |number: usize| format!("{:024}", number * 12_289 % KEYS).into_bytes();
            let own = key(number);
            let value = [b'v'; 24];
            let calls = match kind {
                Kind::Stay | Kind::Move => {
                    vec![call(&[b"GET", &own]), call(&[b"SET", &own, &value])]
                }
                Kind::Mget => {
                    let keys = [own, key(number + 1), key(number + 2)];
                    keys.iter().map(|key| call(&[b"GET", key])).collect()
                }
            };
            let node = (number + self.shift) % usize::from(NODES);
            (node, Op::Block(Block { watches: Vec::new(), calls }))
        };
        (0..KEYS).map(request).collect()
    }

    fn round(&mut self, kind: Kind) {
        let requests = self.requests(kind);
        self.run(requests);
    }

    /// Carries these out, some at a time.
    fn run(&mut self, requests: Vec<(usize, Op)>) {
        let mut requests = requests.into_iter();
        while requests.len() > 0 {
            let now = at(self.time);
            let mut open = 0;
            for (client, (node, op)) in requests.by_ref().take(CLIENTS).enumerate() {
                let host = &mut self.cluster.hosts[node];
                host.lane.submit(
                    now,
                    KEYSPACE,
                    Tag(client as u64),
                    client as u64,
                    op,
                    &mut host.out,
                );
                open += 1;
            }
            while open > 0 {
                self.turn(TURN);
                for host in &mut self.cluster.hosts {
                    for done in host.out.done.drain(..) {
                        assert!(matches!(done.outcome, Outcome::Done(_)), "{:?}", done.outcome);
                        open -= 1;
                    }
                }
            }
        }
    }
}

fn call(words: &[&[u8]]) -> OwnedCall {
    OwnedCall::new(words.iter().copied()).expect("these commands exist")
}

fn shared(node: NodeId) -> Arc<Shared> {
    let keyspaces = vec![KeyspaceConfig::new(KEYSPACE, "default", EngineConfig::zeus())];
    let addresses = (1..=NODES).map(|node| NodeAddress::in_memory(NodeId(node)));
    Shared::new(NodeConfig::new(node, 1, addresses.collect(), keyspaces))
}

fn at(time: Duration) -> Now {
    let nanos = time.as_nanos() as u64;
    Now { monotonic: Instant(nanos), unix: UnixNanos((1 << 60) + nanos) }
}

fn processor_time() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
