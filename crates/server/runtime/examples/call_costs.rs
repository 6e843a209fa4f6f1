//! What a session's call costs more than its command, and a script more than the block of its commands,
//! from the bytes that a client sends to those that it gets, on three replicas together and without
//! sockets:
//! `cargo run --release -p quorate-runtime --example call_costs`.
//!
//! Three nodes of one lane each, in one thread (one node for the engine without replication); fifty
//! clients of the first one have one op under way each. Time is the thread's processor time, which
//! other processes disturb least: each figure is the median of several rounds, in which plain commands
//! and calls take turns, with their range.
//!
//! `-- ENGINE KIND` runs one kind of op alone (`set`, `get`, `exec`, `eval`, `auto`, `call`), for a tool that counts
//! instructions in [`measured`]: `bench/perf/instructions.py`. With `--sessions N`, so many other
//! sessions with one record each are there, too.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use quorate_commands::{Call, Op, Reply};
use quorate_machine::{Command, Outcome, ValueKind};
use quorate_node::{
    EngineConfig, Host, KeyspaceConfig, Lane, MemoryCluster, NodeAddress, NodeConfig, Outbox,
    SessionCall, Shared,
};
use quorate_resp::{
    Attempt, Backend, Blocking, ConnectionId, Frontend, KeyspaceFacts, MemoryFacts, ServerFacts,
    Settings,
};
use quorate_rifl::{Genuine, LeaseId, Request};
use quorate_types::{
    Duration, Instant, KeyspaceId, NodeId, Now, Publication, Tag, Topic, UnixNanos,
};
use rustix::time::{ClockId, clock_gettime};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const NODES: u16 = 3;
const CLIENTS: usize = 50;
const KEYS: usize = 10_000;
const ROUNDS: usize = 9;
const OPS: usize = 50_000;
/// Ops of a run in which instructions are counted, which is fifty times slower.
const OPS_COUNTED: usize = 10_000;
/// By number of keyspace. The last has a cluster of one node.
const ENGINES: [(u8, &str); 4] = [(0, "hermes"), (1, "meerkat"), (3, "zeus"), (2, "local")];
const LOCAL: u8 = 2;

/// How a client writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Without a session.
    Plain,
    /// A `GET`, which one replica answers.
    Get,
    /// A `SET` and a `GET` of the same key between `MULTI` and `EXEC`.
    Exec,
    /// The same as a script.
    Eval,
    /// As a call behind `SESSION AUTO`.
    Auto,
    /// As a call that says its number.
    Spelt,
}

impl Kind {
    const ALL: [Self; 6] =
        [Self::Plain, Self::Get, Self::Exec, Self::Eval, Self::Auto, Self::Spelt];

    const fn has_session(self) -> bool {
        matches!(self, Self::Auto | Self::Spelt)
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Plain => "set",
            Self::Get => "get",
            Self::Exec => "exec",
            Self::Eval => "eval",
            Self::Auto => "auto",
            Self::Spelt => "call",
        }
    }
}

fn main() {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut others = 0;
    if let Some(at) = arguments.iter().position(|argument| argument == "--sessions") {
        others = arguments[at + 1].parse().expect("a number of sessions follows --sessions");
        arguments.drain(at..=at + 1);
    }
    match arguments.as_slice() {
        [] => compare(others),
        [engine, kind] => {
            let known = ENGINES.iter().find(|(_, name)| name == engine);
            let (number, _) = known.expect("the first argument is hermes, meerkat, zeus or local");
            let kind = Kind::ALL.into_iter().find(|known| known.name() == kind);
            let kind = kind.expect("the second argument is set, get, exec, eval, auto or call");
            let mut cluster = Cluster::new(*number, others);
            let mut writers = cluster.clients(Kind::Plain);
            for key in 0..KEYS {
                let writer = &mut writers[key % CLIENTS];
                let request = writer.op(key);
                cluster.ask(&mut writers[key % CLIENTS], &request);
            }
            let mut clients = cluster.clients(kind);
            // Buffers grow and keys appear before anything is counted.
            let requests = cluster.requests(&mut clients, KEYS * 2);
            cluster.round(&mut clients, &requests);
            let requests = cluster.requests(&mut clients, OPS_COUNTED);
            measured(&mut cluster, &mut clients, &requests);
            println!("{OPS_COUNTED} ops");
        }
        _ => panic!("call_costs [ENGINE KIND] [--sessions N]"),
    }
}

/// What is counted. A tool finds it by its name.
#[inline(never)]
fn measured(cluster: &mut Cluster, clients: &mut [Client], requests: &[Vec<u8>]) {
    cluster.round(clients, requests);
}

fn compare(others: usize) {
    for (number, engine) in ENGINES {
        let mut cluster = Cluster::new(number, others);
        let mut kinds = Kind::ALL.map(|kind| (kind, cluster.clients(kind), Vec::new()));
        for round in 0..=ROUNDS {
            // None always comes after the same other.
            kinds.rotate_left(1);
            for (_, clients, figures) in &mut kinds {
                let requests = cluster.requests(clients, OPS);
                let started = processor_time();
                cluster.round(clients, &requests);
                // The first is for the caches.
                if round > 0 {
                    figures.push((processor_time() - started) / OPS as u64);
                }
            }
        }
        kinds.sort_by_key(|(kind, ..)| *kind as u8);
        for (kind, _, mut figures) in kinds {
            figures.sort_unstable();
            let (least, most) = (figures[0], figures[figures.len() - 1]);
            let (name, middle) = (kind.name(), figures[figures.len() / 2]);
            println!("{engine:<8} {name:<5} {middle:>6} ns ({least} to {most})");
        }
    }
}

/// One client, which waits for each answer.
struct Client {
    connection: ConnectionId,
    kind: Kind,
    sequence: u64,
    reply: Vec<u8>,
}

/// The nodes, and the front end of the first.
struct Cluster {
    time: Duration,
    state: usize,
    cluster: MemoryCluster,
    frontend: Frontend,
    dirty: Vec<ConnectionId>,
    database: u8,
}

impl Cluster {
    /// With so many sessions that have one record each.
    fn new(database: u8, others: usize) -> Self {
        let sessions_max = others + 8 * CLIENTS;
        let count = if database == LOCAL { 1 } else { NODES };
        let shared = |node| shared(NodeId(node), count, sessions_max);
        let nodes: Vec<_> = (1..=count).map(shared).collect();
        let time = Duration::from_secs(1);
        let mut clusters = MemoryCluster::cluster(&nodes, at(time));
        let cluster = clusters.pop().expect("one lane");
        let frontend = Frontend::new(quorate_resp::Shared::new(Settings::default(), None));
        let mut this = Self { time, state: 1, cluster, frontend, dirty: Vec::new(), database };
        while !nodes.iter().all(|node| node.is_active()) {
            this.turn(Duration::from_millis(1));
            assert!(this.time < Duration::from_secs(20), "the nodes find no view");
        }
        for other in 0..others {
            let mut client = this.client(Kind::Spelt);
            let request = client.op(other);
            this.ask(&mut client, &request);
            this.frontend.close(client.connection);
        }
        this
    }

    fn turn(&mut self, time: Duration) {
        self.time += time;
        let now = at(self.time);
        self.cluster.begin_turn(now);
        self.cluster.end_turn(now);
        let Host { lane, out, .. } = &mut self.cluster.hosts[0];
        let (leased, done) = (std::mem::take(&mut out.leased), std::mem::take(&mut out.done));
        let mut backend = LaneBackend { lane, out };
        for (tag, answer) in leased {
            self.frontend.leased(tag, answer, now, &mut backend);
        }
        for done in done {
            assert!(matches!(done.outcome, Outcome::Done(_)), "{:?}", done.outcome);
            self.frontend.complete(done.tag, done.outcome, now, &mut backend);
        }
    }

    fn clients(&mut self, kind: Kind) -> Vec<Client> {
        (0..CLIENTS).map(|_| self.client(kind)).collect()
    }

    fn client(&mut self, kind: Kind) -> Client {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let connection = self.frontend.open(at(self.time), address, address);
        let connection = connection.expect("there are few clients");
        let mut client = Client { connection, kind, sequence: 0, reply: Vec::new() };
        let database = self.database.to_string();
        self.ask(&mut client, &command(&[b"SELECT", database.as_bytes()]));
        if kind.has_session() {
            self.ask(&mut client, &command(&[b"SESSION", b"OPEN"]));
        }
        if kind == Kind::Auto {
            self.ask(&mut client, &command(&[b"SESSION", b"AUTO", b"0"]));
        }
        client
    }

    /// Lets the front end take what a client sends.
    fn send(&mut self, client: &mut Client, request: &[u8]) {
        client.reply.clear();
        let now = at(self.time);
        let buffer = self.frontend.read_buffer(client.connection).expect("it is connected");
        buffer.extend_from_slice(request);
        let Host { lane, out, .. } = &mut self.cluster.hosts[0];
        self.frontend.process(client.connection, now, &mut LaneBackend { lane, out });
    }

    fn ask(&mut self, client: &mut Client, request: &[u8]) {
        self.send(client, request);
        while client.reply.is_empty() {
            self.seal();
            self.take_replies(std::slice::from_mut(client));
            self.turn(Duration::from_micros(20));
        }
        assert_ne!(client.reply[0], b'-', "{}", client.reply.escape_ascii());
    }

    /// What the clients send in a round of so many ops.
    fn requests(&mut self, clients: &mut [Client], ops: usize) -> Vec<Vec<u8>> {
        let count = clients.len();
        let mut state = self.state;
        let mut request = |number: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            clients[number % count].op((state >> 33) % KEYS)
        };
        let requests = (0..ops - ops % count).map(&mut request).collect();
        self.state = state;
        requests
    }

    /// Carries these out, one of each client at a time.
    fn round(&mut self, clients: &mut [Client], requests: &[Vec<u8>]) {
        for requests in requests.chunks(clients.len()) {
            let now = at(self.time);
            let Host { lane, out, .. } = &mut self.cluster.hosts[0];
            self.frontend.begin_turn(now, &mut LaneBackend { lane, out });
            for (client, request) in clients.iter_mut().zip(requests) {
                self.send(client, request);
            }
            self.seal();
            self.take_replies(clients);
            while !clients.iter().all(Client::is_answered) {
                self.turn(Duration::from_micros(20));
                self.seal();
                self.take_replies(clients);
            }
            assert!(clients.iter().all(Client::is_answered), "a client was refused");
        }
    }

    /// Lets go what rests on the node's lease.
    fn seal(&mut self) {
        let Host { lane, out, .. } = &mut self.cluster.hosts[0];
        let seal = lane.seal(at(self.time), self.frontend.needs_seal(), out);
        self.frontend.seal(seal);
    }

    /// Gives clients what there is for them.
    fn take_replies(&mut self, clients: &mut [Client]) {
        let now = at(self.time);
        self.frontend.take_dirty(&mut self.dirty);
        for id in &self.dirty {
            // As in an event loop, the socket leads to its connection at once.
            let first = clients[0].connection.0.to_u64() as u32;
            let place = (id.0.to_u64() as u32).wrapping_sub(first) as usize;
            let client = &mut clients[place];
            assert_eq!(client.connection, *id, "clients of one kind lie in a row");
            let output = self.frontend.output(*id).expect("no reply waits for a lease");
            client.reply.extend_from_slice(output.unsent());
            let count = output.unsent().len();
            let Host { lane, out, .. } = &mut self.cluster.hosts[0];
            self.frontend.written(*id, count, now, &mut LaneBackend { lane, out });
        }
    }
}

impl Client {
    /// Whether its request is answered, and well.
    fn is_answered(&self) -> bool {
        match self.kind {
            Kind::Plain | Kind::Auto | Kind::Spelt => self.reply == b"+OK\r\n",
            Kind::Get | Kind::Eval => self.reply.starts_with(b"$"),
            Kind::Exec => self.reply.windows(5).any(|part| part == b"*2\r\n+"),
        }
    }

    /// Its next op.
    fn op(&mut self, key: usize) -> Vec<u8> {
        let (key, number) = (format!("key:{key:012}"), self.sequence.to_string());
        let set = [b"SET".as_slice(), key.as_bytes(), &[b'v'; 100]];
        let get = [b"GET".as_slice(), key.as_bytes()];
        self.sequence += 1;
        match self.kind {
            Kind::Get => return command(&get),
            Kind::Exec => {
                let parts =
                    [command(&[b"MULTI"]), command(&set), command(&get), command(&[b"EXEC"])];
                return parts.concat();
            }
            Kind::Eval => {
                let source =
                    b"redis.call('set', KEYS[1], ARGV[1]) return redis.call('get', KEYS[1])";
                return command(&[b"EVAL", source, b"1", set[1], set[2]]);
            }
            Kind::Plain | Kind::Auto | Kind::Spelt => {}
        }
        if self.kind == Kind::Spelt {
            let head = [b"SESSION", b"CALL".as_slice(), number.as_bytes(), number.as_bytes()];
            command(&[head.as_slice(), &set].concat())
        } else {
            command(&set)
        }
    }
}

/// A command as it is sent.
fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
    out
}

/// The first node as its front end sees it, for the time of one call.
struct LaneBackend<'a> {
    lane: &'a mut Lane,
    out: &'a mut Outbox,
}

/// What the clients here don't ask for is answered as by an empty node.
impl Backend for LaneBackend<'_> {
    fn keyspace(&self, _number: u8) -> Option<KeyspaceFacts> {
        None
    }

    fn has_keyspace(&self, number: u8) -> bool {
        self.lane.shared().store(KeyspaceId(number)).is_some()
    }

    fn transactional(&self, keyspace: u8) -> bool {
        let store = self.lane.shared().store(KeyspaceId(keyspace));
        store.is_some_and(|store| store.capabilities().transactions)
    }

    fn read<R>(
        &mut self,
        keyspace: u8,
        now: Now,
        call: &Call<'_>,
        with: impl FnOnce(Reply<'_>) -> R,
    ) -> Option<R> {
        self.lane.read(now, KeyspaceId(keyspace), call, with)
    }

    fn touched(&mut self) -> u64 {
        self.lane.take_touched()
    }

    fn clock(&mut self) -> Instant {
        Instant::ZERO
    }

    fn submit<P>(&mut self, keyspace: u8, now: Now, tag: Tag, origin: u64, op: P)
    where
        P: Command<Owned = Op, Reply = Reply<'static>>,
    {
        self.lane.submit(now, KeyspaceId(keyspace), tag, origin, op, self.out);
    }

    fn block(&mut self, _: u8, _: Now, _: Tag, _: u64, _: Blocking) {
        unreachable!("no client waits here");
    }

    fn unblock(&mut self, _: Tag, _: Reply<'static>) {}

    fn set_tracking(&mut self, _: bool) {}

    fn track(&mut self, _: u8, _: &[u8]) -> bool {
        false
    }

    fn untrack(&mut self, _: u8, _: &[u8]) {}

    fn hears_all(&self) -> bool {
        false
    }

    fn track_prefixes(&mut self, _: Tag, _: &[&[u8]], _: bool) {
        unreachable!("no client tracks keys here");
    }

    fn untrack_prefix(&mut self, _: &[u8], _: bool) {}

    fn has_sessions(&self, keyspace: u8) -> bool {
        let keyspace = self.lane.shared().config.keyspace(KeyspaceId(keyspace));
        keyspace.is_some_and(|keyspace| keyspace.engine.capabilities().calls.is_some())
    }

    fn session_term(&self) -> Duration {
        self.lane.shared().config.session_term
    }

    fn session_token(&self, lease: LeaseId) -> u64 {
        self.lane.session_token(lease)
    }

    fn is_genuine(&self, lease: LeaseId, token: u64) -> Genuine {
        self.lane.is_genuine(lease, token)
    }

    fn lease(&mut self, now: Now, tag: Tag, request: Request) {
        self.lane.lease(now, tag, request, self.out);
    }

    fn call(&mut self, keyspace: u8, now: Now, tag: Tag, origin: u64, attempt: Attempt) {
        let Attempt { call, grant, op } = attempt;
        let keyspace = KeyspaceId(keyspace);
        self.lane.call(now, tag, SessionCall { keyspace, origin, call, grant, op }, self.out);
    }

    fn flush(&mut self, keyspace: u8, now: Now, tag: Tag) {
        self.lane.flush_keyspace(now, KeyspaceId(keyspace), tag, self.out);
    }

    fn scan(
        &mut self,
        _keyspace: u8,
        _now: Now,
        _cursor: u64,
        _limit: usize,
        _visit: &mut dyn FnMut(&[u8], ValueKind),
    ) -> Option<u64> {
        Some(0)
    }

    fn lists_alone(&self, _keyspace: u8) -> bool {
        true
    }

    fn list(
        &mut self,
        keyspace: u8,
        now: Now,
        tag: Tag,
        cursor: u64,
        limit: usize,
        kind: Option<ValueKind>,
    ) {
        self.lane.list(now, KeyspaceId(keyspace), tag, (cursor, limit, kind), self.out);
    }

    fn count(&mut self, keyspace: u8, now: Now, tag: Tag, cursor: u64) {
        self.lane.count(now, KeyspaceId(keyspace), tag, cursor, self.out);
    }

    /// Only for scripts that other nodes load, and none is.
    fn listen(&mut self, _: Now, _: Topic, _: &[u8], _: u32) {}

    fn is_announced(&self) -> bool {
        true
    }

    fn announce(&mut self, _: Now, _: Tag) {
        unreachable!("nobody listens")
    }

    fn publish(&mut self, _: Now, _: &Arc<Publication>) -> u64 {
        unreachable!("nobody publishes")
    }

    fn listeners(&self, _: Topic, _: &[u8]) -> u64 {
        0
    }

    fn visit_names(&self, _: Topic, _: &mut dyn FnMut(&[u8])) {}

    fn random(&mut self) -> u64 {
        0
    }

    fn random_cursor(&self, _keyspace: u8, _random: u64) -> u64 {
        0
    }

    fn key_count(&self, _keyspace: u8) -> Option<u64> {
        None
    }

    fn memory_usage(&mut self, _keyspace: u8, _now: Now, _key: &[u8]) -> Option<u64> {
        None
    }

    fn replicas(&self, keyspace: u8) -> usize {
        self.lane.other_replicas(KeyspaceId(keyspace))
    }

    fn memory(&self) -> MemoryFacts {
        MemoryFacts::default()
    }

    fn facts(&self) -> ServerFacts {
        ServerFacts::default()
    }

    fn reset_stats(&mut self) {}

    fn serving(&self) -> Result<(), &'static str> {
        Ok(())
    }

    fn takes_ops(&self) -> Result<(), &'static str> {
        Ok(())
    }

    fn shutdown(&mut self) {}
}

fn shared(node: NodeId, nodes: u16, sessions_max: usize) -> Arc<Shared> {
    let keyspace = |number, engine| {
        KeyspaceConfig::new(KeyspaceId(number), format!("number {number}"), engine)
    };
    let keyspaces = vec![
        keyspace(0, EngineConfig::hermes()),
        keyspace(1, EngineConfig::meerkat()),
        keyspace(LOCAL, EngineConfig::local()),
        keyspace(3, EngineConfig::zeus()),
    ];
    let addresses = (1..=nodes).map(|node| NodeAddress::in_memory(NodeId(node)));
    let config = NodeConfig::new(node, 1, addresses.collect(), keyspaces);
    Shared::new(NodeConfig { sessions_max, ..config })
}

fn at(time: Duration) -> Now {
    let nanos = time.as_nanos() as u64;
    Now { monotonic: Instant(nanos), unix: UnixNanos((1 << 60) + nanos) }
}

fn processor_time() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
