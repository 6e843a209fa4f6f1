//! A whole cluster in this process, without sockets: what a peer is told is handed over in memory,
//! and clients are calls. So a measurement shows what the engine costs and nothing else. A thread
//! drives each lane of all nodes round and round and never sleeps, as a transport that bypasses the
//! kernel would.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::bail;
use quorate_commands::{Block, Op, OwnedCall, Reply};
use quorate_machine::{Outcome, Refusal};
use quorate_node::{
    EngineConfig, Host, KeyspaceConfig, MemoryCluster, NodeAddress, NodeConfig, Shared,
};
use quorate_types::{KeyspaceId, NodeId, Now, Tag};
use quorate_workloads::redis::each_command;
use quorate_workloads::{
    Answer, Feed, Layout, LoadError, Plan, Report, Source, Target, Transaction, run as drive,
};

/// The keyspace that is measured.
const KEYSPACE: KeyspaceId = KeyspaceId(0);
/// How long the nodes may take to agree on their first view.
const FOUNDING_MAX: Duration = Duration::from_secs(10);
/// How long all clients may wait before the cluster counts as stuck.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a thread may have to wait for its processor before that is the nodes' death: on a busy
/// machine they would otherwise expel each other, all of them on one thread.
const STALL_MAX: Duration = Duration::from_secs(20);

/// The nodes of a cluster, all lanes of it.
pub(super) struct Cluster {
    nodes: Vec<Arc<Shared>>,
    lanes: Vec<MemoryCluster>,
}

impl Cluster {
    /// Starts a cluster and waits until every node takes transactions.
    ///
    /// # Errors
    /// When the nodes find no view.
    pub(super) fn start(engine: &EngineConfig, nodes: u16, lanes: u16) -> anyhow::Result<Self> {
        let ids = (1..=nodes).map(NodeId);
        let shared: Vec<Arc<Shared>> =
            ids.map(|node| Shared::new(config(engine, node, nodes, lanes))).collect();
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
    /// have no clients. Returns what came of it, and the sum of all numbers that single commands
    /// answered.
    ///
    /// # Errors
    /// As [`drive`].
    pub(super) fn run<S: Source<Request = Transaction> + Send>(
        &mut self,
        shape: Shape,
        jobs: &mut [(Plan, S)],
    ) -> Result<(Report, i64), LoadError> {
        let running = &AtomicUsize::new(jobs.len());
        let mut jobs = jobs.iter_mut();
        let results: Vec<_> = std::thread::scope(|scope| {
            let lanes = self.lanes.iter_mut();
            let threads: Vec<_> = lanes
                .map(|lane| {
                    let job = jobs.next();
                    scope.spawn(move || work(lane, shape, job, running))
                })
                .collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().filter_map(join).collect()
        });
        let mut results = results.into_iter();
        let (mut report, mut sum) = results.next().expect("there is a job")?;
        for result in results {
            let (other, more) = result?;
            report.absorb(&other);
            sum += more;
        }
        Ok((report, sum))
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

fn config(engine: &EngineConfig, node: NodeId, nodes: u16, lanes: u16) -> NodeConfig {
    let addresses = (1..=nodes).map(|node| NodeAddress::in_memory(NodeId(node)));
    let keyspaces = vec![KeyspaceConfig::new(KEYSPACE, "default", engine.clone())];
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
    /// Whether each is a `MULTI`/`EXEC` block, or one command.
    pub(super) block: bool,
}

impl Shape {
    fn spell(self, transaction: &Transaction, scratch: &mut Vec<u8>) -> Op {
        let mut calls = Vec::with_capacity(transaction.gets.len() + transaction.puts.len());
        each_command(self.layout, transaction, scratch, |words| {
            let call = OwnedCall::new(words.iter().copied());
            calls.push(call.expect("workloads spell commands that there are"));
        });
        match calls.pop() {
            Some(call) if !self.block => Op::Call(call),
            last => {
                calls.extend(last);
                Op::Block(Block { watches: Vec::new(), calls })
            }
        }
    }
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
) -> Option<Result<(Report, i64), LoadError>> {
    let result = job.map(|(plan, source)| {
        let mut clients = Clients { lane, shape, scratch: Vec::new(), sum: 0 };
        let report = drive(plan, source, &mut clients, &mut |_| {});
        running.fetch_sub(1, Ordering::AcqRel);
        Ok((report?, clients.sum))
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
    /// Every number that single commands answered, added up.
    sum: i64,
}

impl Clients<'_> {
    fn begin(&mut self, now: Now, client: usize, transaction: &Transaction) {
        let txn = self.shape.spell(transaction, &mut self.scratch);
        let nodes = self.lane.hosts.len();
        let host = &mut self.lane.hosts[client % nodes];
        let tag = Tag(client as u64);
        host.lane.submit(now, KEYSPACE, tag, tag.0, txn, &mut host.out);
    }

    fn judge(&mut self, outcome: Outcome<Reply<'static>>) -> Answer {
        match outcome {
            Outcome::Done(Reply::Array(replies)) => {
                let mut answer = Answer::Good;
                for reply in &replies {
                    match reply {
                        Reply::Error(error) => return Answer::Failed(error.to_string()),
                        Reply::Null => answer = Answer::Missed,
                        _ => {}
                    }
                }
                answer
            }
            Outcome::Done(Reply::Error(error)) => Answer::Failed(error.into_owned()),
            Outcome::Done(Reply::Null) => Answer::Missed,
            Outcome::Done(Reply::Bulk(bytes)) => {
                let number = std::str::from_utf8(&bytes).ok().and_then(|text| text.parse().ok());
                self.sum += number.unwrap_or(0_i64);
                Answer::Good
            }
            Outcome::Done(_) => Answer::Good,
            Outcome::Refused(Refusal::Conflict) => Answer::Aborted,
            Outcome::Refused(refusal) => Answer::Failed(format!("refused: {refusal:?}")),
            Outcome::Unknown => Answer::Failed("nobody knows whether it happened".to_owned()),
        }
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
            for index in 0..self.lane.hosts.len() {
                let mut done = std::mem::take(&mut self.lane.hosts[index].out.done);
                for done in done.drain(..) {
                    let client = done.tag.0 as usize;
                    let answer = self.judge(done.outcome);
                    feed.ended(client, answer, time);
                    free.push(client);
                }
                self.lane.hosts[index].out.done = done;
            }
            if !free.is_empty() {
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
