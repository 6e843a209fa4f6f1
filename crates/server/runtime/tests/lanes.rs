//! Several lanes of three nodes on real threads, with clients at sockets. Also what ThreadSanitizer
//! runs (`cargo xtask tsan`): everything that threads of the runtime share is touched here.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use quorate_node::{EngineConfig, KeyspaceConfig, NodeAddress, NodeConfig};
use quorate_runtime::{HostedNode, NodeHandle, Options, Runtime};
use quorate_types::{KeyspaceId, NodeId};

const NODES: usize = 3;
const LANES: u16 = 2;
const CLIENTS: usize = 4;
/// Of each kind, by each client.
const OPS: usize = 100;
const KEYS: usize = 5;
/// Longest that anything may take.
const PATIENCE: Duration = Duration::from_secs(60);

struct Cluster {
    clients: Vec<String>,
    processes: Vec<Runtime>,
}

impl Cluster {
    /// Database 0 on meerkat, database 1 on hermes. The nodes share threads, as in `quorate dev`,
    /// or have sockets between them, as processes have.
    fn start(together: bool) -> Self {
        let listen = || TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = |socket: &TcpListener| socket.local_addr().expect("it listens").to_string();
        let sockets: Vec<_> = (0..NODES).map(|_| (listen(), listen())).collect();
        let addresses: Vec<NodeAddress> = sockets
            .iter()
            .zip(1..)
            .map(|((peer, client), number)| NodeAddress {
                node: NodeId(number),
                peer: address(peer),
                client: address(client),
                admin: String::new(),
            })
            .collect();
        let hosted = sockets.into_iter().zip(&addresses).map(|((peer, client), own)| HostedNode {
            config: config(own.node, &addresses),
            client,
            peer: Some(peer),
            guests: false,
            settings: quorate_resp::Settings::default(),
            password: None,
            disk: None,
        });
        let start = |nodes| quorate_runtime::start(nodes, Options::default()).expect("threads");
        let processes: Vec<Runtime> = if together {
            vec![start(hosted.collect())]
        } else {
            hosted.map(|node| start(vec![node])).collect()
        };
        let clients = addresses.into_iter().map(|address| address.client).collect();
        let cluster = Self { clients, processes };
        let begin = Instant::now();
        while cluster.nodes().any(|node| node.not_serving().is_some()) {
            assert!(begin.elapsed() < PATIENCE, "the nodes don't serve");
            thread::yield_now();
        }
        cluster
    }

    fn nodes(&self) -> impl Iterator<Item = &NodeHandle> {
        self.processes.iter().flat_map(|process| process.handle().nodes())
    }

    fn stop(self) {
        self.processes.iter().for_each(|process| process.handle().stop());
        self.processes.into_iter().for_each(Runtime::join);
    }
}

fn config(node: NodeId, addresses: &[NodeAddress]) -> NodeConfig {
    let keyspace =
        |number, engine| KeyspaceConfig::new(KeyspaceId(number), format!("db{number}"), engine);
    let keyspaces = vec![keyspace(0, EngineConfig::meerkat()), keyspace(1, EngineConfig::hermes())];
    NodeConfig {
        cluster: "lanes".to_owned(),
        // The test shares its processors with others; a lease that lapses is no part of it.
        lease: Duration::from_secs(2),
        op_timeout: Duration::from_secs(20),
        seed: quorate_runtime::random_seed(),
        ..NodeConfig::new(node, LANES, addresses.to_vec(), keyspaces)
    }
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(address: &str) -> Self {
        let stream = TcpStream::connect(address).expect("a node listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket has timeouts");
        Self(BufReader::new(stream))
    }

    /// Sends a command and takes its answer: one line, and those of its elements.
    fn ask(&mut self, command: &str) -> String {
        self.0.get_mut().write_all(format!("{command}\r\n").as_bytes()).expect("connected");
        self.answer()
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("an answer in time");
        let mut answer = line.trim_end().to_owned();
        let elements = answer.strip_prefix('*').map_or(0, |count| count.parse().unwrap_or(0));
        let rest = answer.strip_prefix('$').is_some_and(|length| length != "-1");
        for _ in 0..elements + i64::from(rest) {
            let element = self.answer();
            answer = format!("{answer} {element}");
        }
        answer
    }

    /// Moves one from a key to another, again until it is done.
    fn transfer(&mut self, from: usize, to: usize) {
        for command in ["MULTI", &format!("DECR k{from}"), &format!("INCR k{to}")] {
            let answer = self.ask(command);
            assert!(answer.starts_with('+'), "{command}: {answer}");
        }
        let answer = self.ask("EXEC");
        if answer.starts_with("-TRYAGAIN") {
            return self.transfer(from, to);
        }
        assert!(answer.starts_with("*2 :"), "EXEC: {answer}");
    }

    fn number(&mut self, key: &str) -> i64 {
        let answer = self.ask(&format!("GET {key}"));
        let value = answer.split_once(' ').map_or("0", |(_, value)| value);
        value.parse().unwrap_or_else(|_| panic!("GET {key}: {answer}"))
    }
}

/// One client: transfers between common keys, then counts in common counters.
fn work(address: &str, number: usize) {
    let mut client = Client::connect(address);
    for op in 0..OPS {
        client.transfer((op + number) % KEYS, (op * 3 + number + 1) % KEYS);
    }
    assert_eq!(client.ask("SELECT 1"), "+OK");
    for op in 0..OPS {
        let answer = client.ask(&format!("INCR c{}", op % KEYS));
        assert!(answer.starts_with(':'), "INCR: {answer}");
    }
}

fn lanes_keep_sums(together: bool) {
    let cluster = Cluster::start(together);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let address = &cluster.clients[number % NODES];
                scope.spawn(move || work(address, number))
            })
            .collect();
        // As an operator looks on.
        while workers.iter().any(|worker| !worker.is_finished()) {
            let lanes: usize = cluster.nodes().map(|node| node.facts().lanes.len()).sum();
            assert_eq!(lanes, NODES * usize::from(LANES));
            thread::yield_now();
        }
    });
    for address in &cluster.clients {
        let mut client = Client::connect(address);
        let sum: i64 = (0..KEYS).map(|key| client.number(&format!("k{key}"))).sum();
        assert_eq!(sum, 0, "transfers make nothing");
        assert_eq!(client.ask("SELECT 1"), "+OK");
        let sum: i64 = (0..KEYS).map(|key| client.number(&format!("c{key}"))).sum();
        assert_eq!(sum, (CLIENTS * OPS) as i64, "no count is lost");
    }
    cluster.stop();
}

#[test]
fn lanes_of_nodes_that_share_threads_keep_sums() {
    lanes_keep_sums(true);
}

#[test]
fn lanes_of_nodes_with_sockets_between_them_keep_sums() {
    lanes_keep_sums(false);
}
