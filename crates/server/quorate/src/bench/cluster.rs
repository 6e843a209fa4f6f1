//! A whole cluster in this process, without sockets: what a peer is told is handed over in memory,
//! and clients are calls. So a measurement shows what the engine costs and nothing else. A thread
//! drives each lane of all nodes round and round and never sleeps, as a transport that bypasses the
//! kernel would.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::bail;
use quorate_commands::{Block, Op, OwnedCall, Reply, Watch};
use quorate_machine::{Outcome, Refusal};
use quorate_node::{
    EngineConfig, Host, KeyspaceConfig, MemoryCluster, NodeAddress, NodeConfig, Shared,
};
use quorate_types::{KeyspaceId, NodeId, Now, Tag};
use quorate_workloads::redis::{Framing, each_command, each_get, each_put};
use quorate_workloads::{
    Answer, Feed, Layout, LoadError, Plan, Report, Source, Target, Tells, Transaction, run as drive,
};

/// The keyspace that is measured.
const KEYSPACE: KeyspaceId = KeyspaceId(0);
/// How long the nodes may take to agree on their first view.
const FOUNDING_MAX: Duration = Duration::from_secs(10);
/// How long all clients may wait before the cluster counts as stuck.
const PATIENCE: Duration = Duration::from_secs(30);
/// Answers between two reports of progress.
const ANSWERS_BETWEEN_PROGRESS: u64 = 1024;
/// How long a thread may have to wait for its processor before that is the nodes' death: on a busy
/// machine they would otherwise expel each other, all of them on one thread.
const STALL_MAX: Duration = Duration::from_secs(20);

/// The nodes of a cluster, all lanes of it.
pub(super) struct Cluster {
    nodes: Vec<Arc<Shared>>,
    lanes: Vec<MemoryCluster>,
}

impl Cluster {
    /// Starts a cluster and waits until every node takes transactions. With `replicas`, the keys are
    /// cut into a partition for each node, kept by so many nodes from that one on.
    ///
    /// # Errors
    /// When the nodes find no view.
    pub(super) fn start(
        engine: &EngineConfig,
        nodes: u16,
        lanes: u16,
        replicas: Option<u16>,
    ) -> anyhow::Result<Self> {
        let mut keyspace = KeyspaceConfig::new(KEYSPACE, "default", engine.clone());
        if let Some(replicas) = replicas.filter(|replicas| *replicas < nodes) {
            let node = |number: u16| NodeId(number % nodes + 1);
            let group = |first: u16| (first..first + replicas).map(node).collect();
            keyspace.partitions = (0..nodes).map(|first| Some(group(first))).collect();
        }
        let ids = (1..=nodes).map(NodeId);
        let shared: Vec<Arc<Shared>> =
            ids.map(|node| Shared::new(config(&keyspace, node, nodes, lanes))).collect();
        let lanes = MemoryCluster::cluster(&shared, quorate_runtime::now());
        let mut cluster = Self { lanes, nodes: shared };
        cluster.found()?;
        Ok(cluster)
    }

    fn found(&mut self) -> anyhow::Result<()> {
        let begin = Instant::now();
        while !self.lanes.iter().flat_map(|lane| &lane.hosts).all(is_ready) {
            self.lanes.iter_mut().for_each(turn);
            if begin.elapsed() > FOUNDING_MAX {
                bail!("the nodes found no view: {}", self.phases());
            }
        }
        Ok(())
    }

    fn phases(&self) -> String {
        let now = quorate_runtime::now();
        let hosts = self.lanes[0].hosts.iter();
        hosts.map(|host| format!("node {}: {}; ", host.node, host.lane.phase(now))).collect()
    }

    /// Runs a plan with a source on each lane, each on a thread of its own; lanes beyond the jobs
    /// have no clients. Returns what came of it. `progress` is told now and then how many requests
    /// of a lane were answered.
    ///
    /// # Errors
    /// As [`drive`].
    pub(super) fn run<S: Source<Request = Transaction> + Send>(
        &mut self,
        shape: Shape,
        jobs: &mut [(Plan, S)],
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Report, LoadError> {
        let running = &AtomicUsize::new(jobs.len());
        let mut jobs = jobs.iter_mut();
        let results: Vec<_> = std::thread::scope(|scope| {
            let lanes = self.lanes.iter_mut();
            let threads: Vec<_> = lanes
                .map(|lane| {
                    let job = jobs.next();
                    scope.spawn(move || work(lane, shape, job, running, progress))
                })
                .collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().filter_map(join).collect()
        });
        let mut results = results.into_iter();
        let mut report = results.next().expect("there is a job")?;
        for result in results {
            report.absorb(&result?);
        }
        Ok(report)
    }

    /// What all engines of all nodes counted, by name.
    pub(super) fn counters(&mut self) -> Vec<(&'static str, u64)> {
        let now = quorate_runtime::now();
        for host in self.lanes.iter_mut().flat_map(|lane| &mut lane.hosts) {
            host.lane.publish(now);
        }
        let mut sums: Vec<(&'static str, u64)> = Vec::new();
        let lanes = self.nodes.iter().flat_map(|node| node.lane_facts());
        for (name, count) in lanes.flat_map(|lane| lane.engines).flat_map(|facts| facts.counters) {
            match sums.iter_mut().find(|(known, _)| *known == name) {
                Some((_, sum)) => *sum += count,
                None => sums.push((name, count)),
            }
        }
        sums
    }
}

fn config(keyspace: &KeyspaceConfig, node: NodeId, nodes: u16, lanes: u16) -> NodeConfig {
    let addresses = (1..=nodes).map(|node| NodeAddress::in_memory(NodeId(node)));
    let keyspaces = vec![keyspace.clone()];
    NodeConfig {
        lease: STALL_MAX,
        op_timeout: STALL_MAX,
        seed: quorate_runtime::random_seed(),
        ..NodeConfig::new(node, lanes, addresses.collect(), keyspaces)
    }
}

/// How transactions become commands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) layout: Layout,
    pub(super) framing: Framing,
    /// How many nodes are asked for transactions that no node is the home of.
    pub(super) ask: u16,
}

impl Shape {
    fn spell(self, transaction: &Transaction, scratch: &mut Vec<u8>) -> Op {
        let mut calls = Vec::with_capacity(transaction.gets.len() + transaction.puts.len());
        each_command(self.layout, transaction, scratch, |words| calls.push(call(words)));
        match calls.pop() {
            Some(call) if self.framing == Framing::Single => Op::Call(call),
            last => {
                calls.extend(last);
                Op::Block(Block { watches: Vec::new(), calls })
            }
        }
    }

    /// The keys that a transaction reads.
    fn keys(self, transaction: &Transaction) -> impl Iterator<Item = Box<[u8]>> {
        transaction.gets.iter().map(move |key| {
            let mut name = Vec::new();
            self.layout.key(*key, &mut name);
            name.into_boxed_slice()
        })
    }
}

fn call(words: &[&[u8]]) -> OwnedCall {
    OwnedCall::new(words.iter().copied()).expect("workloads spell commands that there are")
}

/// Whether the node takes transactions on this lane.
fn is_ready(host: &Host) -> bool {
    host.lane.shared().is_active()
        && host.lane.engine(KEYSPACE).is_some_and(|engine| engine.is_caught_up())
}

/// One round without clients.
fn turn(lane: &mut MemoryCluster) {
    let now = quorate_runtime::now();
    lane.begin_turn(now);
    lane.end_turn(now);
}

/// What the thread of a lane does in a run.
fn work<S: Source<Request = Transaction>>(
    lane: &mut MemoryCluster,
    shape: Shape,
    job: Option<&mut (Plan, S)>,
    running: &AtomicUsize,
    progress: &(dyn Fn(u64) + Sync),
) -> Option<Result<Report, LoadError>> {
    let result = job.map(|(plan, source)| {
        let mut clients = Clients { lane, shape, scratch: Vec::new(), open: Vec::new() };
        let progress = &mut |answered: u64| {
            if answered.is_multiple_of(ANSWERS_BETWEEN_PROGRESS) {
                progress(answered);
            }
        };
        let report = drive(plan, source, &mut clients, progress);
        running.fetch_sub(1, Ordering::AcqRel);
        report
    });
    // Other lanes may yet wait for what this lane holds or knows.
    while running.load(Ordering::Acquire) > 0 {
        turn(lane);
    }
    result
}

/// The clients of a lane, dealt out over its nodes.
struct Clients<'a> {
    lane: &'a mut MemoryCluster,
    shape: Shape,
    scratch: Vec<u8>,
    /// What each client has under way.
    open: Vec<Open>,
}

/// What a client waits for.
enum Open {
    /// A transaction that was sent whole, and tells this.
    Whole(Tells),
    /// A transaction that reads first, at this node: the versions of its keys.
    Versions(usize, Transaction),
    /// Then their numbers.
    Numbers(usize, Transaction, Vec<(Box<[u8]>, Watch)>),
    /// Then its writes, which add this to numbers.
    Writes(i64),
}

impl Clients<'_> {
    fn submit(&mut self, now: Now, client: usize, node: usize, op: Op) {
        let host = &mut self.lane.hosts[node];
        let tag = Tag(client as u64);
        host.lane.submit(now, KEYSPACE, tag, tag.0, op, &mut host.out);
    }

    fn begin(&mut self, now: Now, client: usize, transaction: &Transaction) {
        let nodes = self.lane.hosts.len();
        let asked = client % usize::from(self.shape.ask);
        let node = transaction.node.map_or(asked, usize::from) % nodes;
        let (op, open) = if self.shape.framing.has_two_steps(transaction) {
            let keys = self.shape.keys(transaction).collect();
            (Op::Versions(keys), Open::Versions(node, transaction.clone()))
        } else {
            let op = self.shape.spell(transaction, &mut self.scratch);
            (op, Open::Whole(transaction.tells))
        };
        if self.open.len() <= client {
            self.open.resize_with(client + 1, || Open::Whole(Tells::Nothing));
        }
        self.open[client] = open;
        self.submit(now, client, node, op);
    }

    /// Takes what was answered; the answer, unless the client goes on.
    fn took(
        &mut self,
        now: Now,
        client: usize,
        outcome: Outcome<Reply<'static>>,
    ) -> Option<Answer> {
        let open = std::mem::replace(&mut self.open[client], Open::Whole(Tells::Nothing));
        match (open, outcome) {
            (Open::Versions(node, transaction), Outcome::Done(Reply::Array(versions))) => {
                let watch = |version| match version {
                    Reply::Version(timestamp, existed) => Watch { existed, timestamp },
                    other => unreachable!("versions were asked for: {other:?}"),
                };
                let keys = self.shape.keys(&transaction);
                let watches = keys.zip(versions.into_iter().map(watch)).collect();
                let mut calls = Vec::new();
                each_get(self.shape.layout, &transaction, &mut self.scratch, |words| {
                    calls.push(call(words));
                });
                self.open[client] = Open::Numbers(node, transaction, watches);
                let watches = Vec::new();
                self.submit(now, client, node, Op::Block(Block { watches, calls }));
                None
            }
            (Open::Numbers(node, transaction, watches), Outcome::Done(Reply::Array(numbers))) => {
                let found: Vec<i64> =
                    numbers.iter().map(|reply| number(reply).unwrap_or_default()).collect();
                let puts = transaction.decide(&found);
                if puts.is_empty() {
                    return Some(Answer::Told(Some(0)));
                }
                let mut calls = Vec::new();
                each_put(self.shape.layout, &puts, &mut self.scratch, |words| {
                    calls.push(call(words));
                });
                self.open[client] = Open::Writes(Transaction::added(&puts));
                self.submit(now, client, node, Op::Block(Block { watches, calls }));
                None
            }
            (Open::Writes(added), outcome) => Some(match judge(outcome, Tells::Nothing) {
                answer if answer.is_done() => Answer::Told(Some(added)),
                other => other,
            }),
            (Open::Whole(tells), outcome) => Some(judge(outcome, tells)),
            (_, outcome) => Some(judge(outcome, Tells::Nothing)),
        }
    }
}

/// The number that a reply shows.
fn number(reply: &Reply<'_>) -> Option<i64> {
    match reply {
        Reply::Int(number) => Some(*number),
        Reply::Bulk(bytes) => std::str::from_utf8(bytes).ok()?.parse().ok(),
        _ => None,
    }
}

/// The end of a transaction, with what its client wants to be told.
fn judge(outcome: Outcome<Reply<'static>>, tells: Tells) -> Answer {
    match outcome {
        Outcome::Done(Reply::Array(replies)) => {
            let (mut answer, mut integers) = (Answer::Good, 0);
            for reply in &replies {
                match reply {
                    Reply::Error(error) => return Answer::Failed(error.to_string()),
                    Reply::Null => answer = Answer::Missed,
                    Reply::Int(integer) => integers += integer,
                    _ => {}
                }
            }
            if tells == Tells::Integers { Answer::Told(Some(integers)) } else { answer }
        }
        // A watched key changed.
        Outcome::Done(Reply::NullArray) => Answer::Aborted,
        Outcome::Done(Reply::Error(error)) => Answer::Failed(error.into_owned()),
        Outcome::Done(reply) if tells == Tells::Value => Answer::Told(number(&reply)),
        Outcome::Done(Reply::Null) => Answer::Missed,
        Outcome::Done(_) => Answer::Good,
        Outcome::Refused(Refusal::Conflict) => Answer::Aborted,
        Outcome::Refused(refusal) => Answer::Failed(format!("refused: {refusal:?}")),
        Outcome::Unknown => Answer::Failed("nobody knows whether it happened".to_owned()),
    }
}

impl Target for Clients<'_> {
    type Request = Transaction;

    fn drive(&mut self, feed: &mut Feed<'_, Transaction>) -> Result<(), LoadError> {
        let mut free: Vec<usize> = (0..feed.clients()).collect();
        let mut last_answer = Instant::now();
        loop {
            let (time, now) = (Instant::now(), quorate_runtime::now());
            self.lane.begin_turn(now);
            for client in free.drain(..) {
                while let Some(transaction) = feed.next(client, time) {
                    self.begin(now, client, transaction);
                }
            }
            if feed.is_idle() {
                return Ok(());
            }
            self.lane.end_turn(now);
            let time = Instant::now();
            let mut heard = false;
            for index in 0..self.lane.hosts.len() {
                let mut done = std::mem::take(&mut self.lane.hosts[index].out.done);
                for done in done.drain(..) {
                    let client = done.tag.0 as usize;
                    heard = true;
                    if let Some(answer) = self.took(now, client, done.outcome) {
                        feed.ended(client, answer, time);
                        free.push(client);
                    }
                }
                // An engine may answer at once what a client goes on with.
                done.append(&mut self.lane.hosts[index].out.done);
                self.lane.hosts[index].out.done = done;
            }
            if heard {
                last_answer = time;
            } else if time - last_answer > PATIENCE {
                return Err(LoadError::Silent { patience: PATIENCE, waiting: feed.waiting() });
            }
        }
    }
}

/// Clients without a cluster: every transaction is drawn, spelled, copied as a cluster does, and
/// answered at once. What this costs, the load generator costs.
pub(super) struct Nobody(pub(super) Shape);

impl Target for Nobody {
    type Request = Transaction;

    fn drive(&mut self, feed: &mut Feed<'_, Transaction>) -> Result<(), LoadError> {
        let mut scratch = Vec::new();
        loop {
            let time = Instant::now();
            let mut any = false;
            for client in 0..feed.clients() {
                while let Some(transaction) = feed.next(client, time) {
                    any = true;
                    std::hint::black_box(self.0.spell(transaction, &mut scratch));
                    feed.ended(client, Answer::Good, time);
                }
            }
            if !any {
                return Ok(());
            }
        }
    }
}
