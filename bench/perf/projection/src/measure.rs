//! The costs of handlers, measured: the machines of all four systems, three replicas in one thread,
//! without a network.
//!
//! Transactions go through in batches, and each batch in phases: all messages of one kind to one
//! node are decoded and handled, and the answers encoded, in one stretch that is timed as a whole.
//! A stretch is far shorter than a time slice, so most are not interrupted; the median over all
//! batches counts.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant as Clock;

use quorate_baselines::{self as baselines, Baseline, Common};
use quorate_machine::{
    Change, Command, Content, Effects, Event, Machine, Outcome, Protocol, Record, Table, ValueKind,
    Verdict, Workspace,
};
use quorate_meerkat::{self as meerkat, Isolation, Kind, Meerkat, Message, Meta, Request};
use quorate_storage::{SharedTable, Store};
use quorate_types::{
    Duration, Epoch, Incarnation, Instant, LaneId, Member, MemberNumber, NodeId, NodeSet, Now,
    Role, Tag, Timestamp, UnixMillis, UnixNanos, View, WriterId,
};
use quorate_wire::Writer;
use quorate_workloads::{Generator, Layout, Source, Workload};

use super::contention::{self, TooBusy};
use super::inputs::{Handlers, Measured, PerSystem, System};

/// Transactions under way at once.
const BATCH: usize = 64;
/// Batches that are not counted.
const WARM_UP: usize = 40;
/// The fewest messages of a stretch that is timed.
const STRETCH_MIN: usize = 16;
/// Nanoseconds after which a stretch counts as interrupted, and not at all.
const INTERRUPTED: f64 = 1e6;
/// Nanoseconds of the machines' clock for each batch: a lane at a million transactions a second.
const BATCH_TIME: u64 = 64_000;
/// The wall clock at the beginning.
const WALL: u64 = 1 << 60;
const NODES: u16 = 3;
const VALUE: [u8; 64] = [b'v'; 64];

/// How much is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Effort {
    /// Batches of 64 transactions for each system and workload.
    pub(crate) batches: usize,
    /// Keys that each replica holds; enough that they don't fit into a cache.
    pub(crate) keys: u64,
}

impl Effort {
    /// Takes some seconds.
    pub(crate) const FULL: Self = Self { batches: 400, keys: 200_000 };
}

/// Measures everything on this machine. `report` hears what comes next.
///
/// # Errors
/// If the machine is too busy to show contention.
pub(crate) fn measure(effort: Effort, report: &mut dyn FnMut(&str)) -> Result<Measured, TooBusy> {
    report("contention");
    let contention = contention::measure()?;
    let mut of = |workload: Workload| {
        let mut one = |system| {
            report(&format!("{} {}", system_name(system), workload.name()));
            handlers(system, workload, effort)
        };
        PerSystem {
            meerkat: one(System::Meerkat),
            meerkat_pb: one(System::MeerkatPb),
            tapir: one(System::Tapir),
            kuafu: one(System::KuaFu),
        }
    };
    Ok(Measured { ycsb_t: of(Workload::YcsbT), retwis: of(Workload::Retwis), contention })
}

const fn system_name(system: System) -> &'static str {
    system.name()
}

/// The middle one, or the upper one of two.
pub(super) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Keys to read and keys to write.
#[derive(Clone, Debug, Default)]
struct Load {
    gets: Vec<Vec<u8>>,
    puts: Vec<Vec<u8>>,
}

impl Command for Load {
    type Owned = Self;
    type Reply = ();

    fn run<W: Workspace>(&self, _now: UnixMillis, workspace: &mut W) -> Verdict<()> {
        for key in &self.gets {
            std::hint::black_box(workspace.read(key));
        }
        for key in &self.puts {
            let bytes = Cow::Borrowed(&VALUE[..]);
            let change = Change::Set { bytes, kind: ValueKind::String, expire_at: None };
            workspace.write(key, change);
        }
        Verdict::Commit(())
    }

    fn visit_keys(&self, visit: &mut dyn FnMut(&[u8])) {
        self.gets.iter().chain(&self.puts).for_each(|key| visit(key));
    }

    fn updates(&self) -> bool {
        !self.puts.is_empty()
    }

    fn into_owned(self) -> Self {
        self
    }
}

/// The phases that are timed apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Phase {
    Submit,
    Validate,
    Vote,
    Check,
    Checked,
    Accept,
    Accepted,
    Decided,
    Other,
}

fn phase(kind: &Kind<'_>) -> Phase {
    match kind {
        Kind::Validate { .. } => Phase::Validate,
        Kind::Vote { .. } => Phase::Vote,
        Kind::Check { .. } => Phase::Check,
        Kind::Checked { .. } => Phase::Checked,
        Kind::Accept { .. } => Phase::Accept,
        Kind::Accepted { .. } => Phase::Accepted,
        Kind::Decided { .. } => Phase::Decided,
        _ => Phase::Other,
    }
}

/// The messages of a node, one behind the other in one buffer, as in the runtime.
#[derive(Default)]
struct Said {
    bytes: Vec<u8>,
    messages: Vec<(NodeId, Phase, Range<usize>)>,
    done: usize,
    lost: usize,
}

impl Said {
    fn push(&mut self, to: NodeId, message: &Message<'_>) {
        let start = self.bytes.len();
        message.encode(&mut Writer(&mut self.bytes));
        self.messages.push((to, phase(&message.kind), start..self.bytes.len()));
    }

    fn complete(&mut self, outcome: &Outcome<()>) {
        match outcome {
            Outcome::Done(()) => self.done += 1,
            Outcome::Refused(_) | Outcome::Unknown => self.lost += 1,
        }
    }
}

type Engine = Meerkat<SharedTable<Meta>, Load>;
type Rival<S> = Baseline<S, SharedTable<Meta>, Load>;

impl Effects<Engine> for Said {
    fn send(&mut self, to: NodeId, message: &Message<'_>) {
        self.push(to, message);
    }

    fn complete(&mut self, _tag: Tag, outcome: Outcome<()>) {
        self.complete(&outcome);
    }
}

impl<S: baselines::System> Effects<Rival<S>> for Said {
    fn send(&mut self, to: NodeId, message: &Message<'_>) {
        self.push(to, message);
    }

    fn complete(&mut self, _tag: Tag, outcome: Outcome<()>) {
        self.complete(&outcome);
    }
}

/// A machine of either kind, behind one type.
trait Node {
    fn event(&mut self, now: Now, event: NodeEvent<'_>, said: &mut Said);
    fn deadline(&self) -> Instant;
}

enum NodeEvent<'a> {
    View(&'a View),
    Message(NodeId, &'a [u8]),
    Request(Tag, Load),
    Tick,
}

impl<M> Node for M
where
    M: Machine + for<'a> Protocol<Message<'a> = Message<'a>, Request<'a> = Request<Load>>,
    Said: Effects<M>,
{
    fn event(&mut self, now: Now, event: NodeEvent<'_>, said: &mut Said) {
        let event = match event {
            NodeEvent::View(view) => Event::View(view),
            NodeEvent::Message(from, bytes) => {
                let body = Message::decode(bytes).expect("what was encoded a moment ago");
                Event::Message { from, epoch: Epoch(1), body }
            }
            NodeEvent::Request(tag, txn) => {
                Event::Request { tag, request: Request { origin: tag.0, command: txn } }
            }
            NodeEvent::Tick => Event::Tick,
        };
        self.step(now, event, said);
    }

    fn deadline(&self) -> Instant {
        self.next_deadline()
    }
}

/// Times of one kind of work at one node.
#[derive(Default)]
struct Times {
    /// Nanoseconds per message in each stretch that was long enough.
    stretches: Vec<f64>,
    nanos: f64,
    messages: usize,
}

impl Times {
    /// Nanoseconds of one message.
    fn each(&mut self) -> f64 {
        match self.stretches.is_empty() {
            true => self.nanos / self.messages.max(1) as f64,
            false => median(&mut self.stretches),
        }
    }
}

/// The sender of a message, and the place of the message in the sender's buffer.
type Spoken = (usize, Range<usize>);

struct Bench {
    nodes: Vec<Box<dyn Node>>,
    tables: Vec<SharedTable<Meta>>,
    said: Vec<Said>,
    time: u64,
    /// By node, from 1 on.
    times: BTreeMap<(u16, Phase), Times>,
    next_tag: u64,
}

/// The cluster's only view.
fn view() -> View {
    let member = |number: u16| Member {
        node: NodeId(number),
        incarnation: Incarnation(u64::from(number)),
        number: MemberNumber(u32::from(number)),
        role: Role::Active,
        peer_address: String::new(),
        client_address: String::new(),
        admin_address: String::new(),
    };
    View {
        epoch: Epoch(1),
        cluster: Incarnation(1),
        members: (1..=NODES).map(member).collect(),
        last_number: MemberNumber(u32::from(NODES)),
        placed: (1..=NODES).map(NodeId).collect(),
        departing: NodeSet::EMPTY,
    }
}

fn machine(system: System, node: u16, table: SharedTable<Meta>) -> Box<dyn Node> {
    let config = baselines::Config {
        node: NodeId(node),
        lane: LaneId(0),
        op_timeout: Duration::from_secs(1000),
        seed: u64::from(node),
    };
    let common = Arc::new(Common::default());
    match system {
        System::Meerkat => {
            let incarnation = Incarnation(u64::from(node));
            let config = meerkat::Config {
                isolation: Isolation::Serializable,
                ..meerkat::Config::new(NodeId(node), incarnation, LaneId(0), 1, u64::from(node))
            };
            Box::new(Engine::new(config, table))
        }
        System::MeerkatPb => Box::new(Rival::<baselines::MeerkatPb>::new(config, table, common)),
        System::Tapir => Box::new(Rival::<baselines::Tapir>::new(config, table, common)),
        System::KuaFu => Box::new(Rival::<baselines::KuaFu>::new(config, table, common)),
    }
}

impl Bench {
    fn new(system: System, keys: u64) -> Self {
        let stores: Vec<_> = (0..NODES).map(|_| Store::<Meta>::new(1)).collect();
        let nodes = (1..=NODES).zip(&stores);
        let mut bench = Self {
            nodes: nodes
                .map(|(node, store)| machine(system, node, store.shared_table(0)))
                .collect(),
            tables: stores.iter().map(|store| store.shared_table(0)).collect(),
            said: (0..NODES).map(|_| Said::default()).collect(),
            time: 1,
            times: BTreeMap::new(),
            next_tag: 0,
        };
        bench.fill(keys);
        let view = view();
        for node in 0..bench.nodes.len() {
            let now = bench.now();
            bench.nodes[node].event(now, NodeEvent::View(&view), &mut bench.said[node]);
        }
        bench.deliver_all();
        bench
    }

    fn now(&self) -> Now {
        Now { monotonic: Instant(self.time), unix: UnixNanos(WALL + self.time) }
    }

    fn fill(&mut self, keys: u64) {
        let mut name = Vec::new();
        for key in 0..keys {
            name.clear();
            Layout::PAPER.key(key, &mut name);
            for table in &mut self.tables {
                let mut record = table.lock_key(&name, VALUE.len());
                let content = Content { bytes: &VALUE, kind: ValueKind::String, expire_at: None };
                record.set_content(content);
                record.set_meta(Meta { wts: Timestamp::new(1, WriterId(1)), ..Meta::default() });
            }
        }
    }

    /// Handles all messages, one kind at one node after the other.
    fn deliver_all(&mut self) {
        loop {
            let mut heaps: BTreeMap<(NodeId, Phase), Vec<Spoken>> = BTreeMap::new();
            let spoken: Vec<Vec<u8>> =
                self.said.iter_mut().map(|said| std::mem::take(&mut said.bytes)).collect();
            for (from, said) in self.said.iter_mut().enumerate() {
                for (to, phase, range) in said.messages.drain(..) {
                    heaps.entry((to, phase)).or_default().push((from, range));
                }
            }
            if heaps.is_empty() {
                return;
            }
            let now = self.now();
            for ((to, phase), heap) in heaps {
                let index = usize::from(to.0) - 1;
                let (node, said) = (&mut self.nodes[index], &mut self.said[index]);
                let begin = Clock::now();
                for (from, range) in &heap {
                    let bytes = &spoken[*from][range.clone()];
                    let sender = NodeId(*from as u16 + 1);
                    node.event(now, NodeEvent::Message(sender, bytes), said);
                }
                let nanos = begin.elapsed().as_nanos() as f64;
                self.note(to.0, phase, nanos, heap.len());
            }
        }
    }

    fn note(&mut self, node: u16, phase: Phase, nanos: f64, messages: usize) {
        let times = self.times.entry((node, phase)).or_default();
        times.nanos += if nanos < INTERRUPTED { nanos } else { 0.0 };
        times.messages += messages;
        if messages >= STRETCH_MIN {
            times.stretches.push(nanos / messages as f64);
        }
    }

    /// Runs a batch, which `node` coordinates.
    fn batch(&mut self, node: u16, source: &mut Generator) {
        self.time += BATCH_TIME;
        let now = self.now();
        let loads: Vec<Load> = (0..BATCH).map(|_| spell(source)).collect();
        let index = usize::from(node) - 1;
        let begin = Clock::now();
        for load in loads {
            self.next_tag += 1;
            let request = NodeEvent::Request(Tag(self.next_tag), load);
            self.nodes[index].event(now, request, &mut self.said[index]);
        }
        self.note(node, Phase::Submit, begin.elapsed().as_nanos() as f64, BATCH);
        self.deliver_all();
        for index in 0..self.nodes.len() {
            if self.nodes[index].deadline() <= now.monotonic {
                let begin = Clock::now();
                self.nodes[index].event(now, NodeEvent::Tick, &mut self.said[index]);
                self.note(index as u16 + 1, Phase::Other, begin.elapsed().as_nanos() as f64, 1);
            }
        }
        self.deliver_all();
    }

    /// Reads keys as a replica does for a coordinator elsewhere; returns nanoseconds for each.
    fn gets(&mut self, source: &mut Generator, batches: usize) -> f64 {
        let mut out: Vec<u8> = Vec::new();
        let mut stretches = Vec::new();
        for _ in 0..batches {
            let keys: Vec<Vec<u8>> =
                (0..BATCH).filter_map(|_| spell(source).gets.into_iter().next()).collect();
            out.clear();
            let table = &mut self.tables[1];
            let begin = Clock::now();
            for key in &keys {
                let Some(record) = table.lock_existing(key) else { continue };
                let version = record.meta().wts;
                let mut writer = Writer(&mut out);
                writer.u64(version.version);
                writer.bytes(record.content().map_or(&[][..], |content| content.bytes));
            }
            stretches.push(begin.elapsed().as_nanos() as f64 / BATCH as f64);
            std::hint::black_box(&out);
        }
        median(&mut stretches)
    }

    fn each(&mut self, node: u16, phase: Phase) -> f64 {
        self.times.get_mut(&(node, phase)).map_or(0.0, Times::each)
    }

    /// Nanoseconds of this work at a node, for each of `transactions` transactions.
    fn share(&self, node: u16, phase: Phase, transactions: usize) -> f64 {
        self.times.get(&(node, phase)).map_or(0.0, |times| times.nanos / transactions as f64)
    }

    fn per_txn(&mut self, node: u16, phase: Phase, transactions: usize) -> f64 {
        let messages = self.times.get(&(node, phase)).map_or(0, |times| times.messages);
        self.each(node, phase) * messages as f64 / transactions as f64
    }
}

fn spell(source: &mut Generator) -> Load {
    let transaction = source.next();
    let name = |key: u64| {
        let mut name = Vec::new();
        Layout::PAPER.key(key, &mut name);
        name
    };
    Load {
        gets: transaction.gets.iter().map(|key| name(*key)).collect(),
        puts: transaction.puts.iter().map(|put| name(put.key)).collect(),
    }
}

/// The costs of one system under one workload, with evenly distributed keys.
fn handlers(system: System, workload: Workload, effort: Effort) -> Handlers {
    let mut bench = Bench::new(system, effort.keys);
    let mut source = Generator::new(workload, effort.keys, 0.0, 1)
        .expect("there are enough keys for every workload");
    // The primary of the systems that have one is node 1; the coordinator is another.
    let (coordinator, replica) = (3, 2);
    for _ in 0..WARM_UP {
        bench.batch(coordinator, &mut source);
    }
    bench.times.clear();
    for _ in 0..effort.batches {
        bench.batch(coordinator, &mut source);
    }
    let lost: usize = bench.said.iter().map(|said| said.lost).sum();
    let done: usize = bench.said.iter().map(|said| said.done).sum();
    assert!(done > lost, "{} of {} transactions committed", done, done + lost);
    let transactions = effort.batches * BATCH;
    let primary = if system.has_primary() { 1 } else { replica };
    let told = [Phase::Submit, Phase::Vote, Phase::Checked, Phase::Other];
    let mut at_coordinator: f64 =
        told[..3].iter().map(|phase| bench.per_txn(coordinator, *phase, transactions)).sum();
    at_coordinator += bench.share(coordinator, Phase::Other, transactions);
    let checking = [1, 2].into_iter().find(|node| {
        bench.times.get(&(*node, Phase::Check)).is_some_and(|times| times.messages > 0)
    });
    Handlers {
        get: bench.gets(&mut source, effort.batches),
        validate: bench.each(primary, Phase::Validate),
        check: checking.map_or(0.0, |node| bench.each(node, Phase::Check)),
        decided: if system.has_primary() { 0.0 } else { bench.each(replica, Phase::Decided) },
        accept: if system.has_primary() { bench.each(replica, Phase::Accept) } else { 0.0 },
        accepted: if system.has_primary() { bench.each(primary, Phase::Accepted) } else { 0.0 },
        upkeep: bench.share(replica, Phase::Other, transactions),
        coordinator: at_coordinator,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LITTLE: Effort = Effort { batches: 4, keys: 2_000 };

    #[test]
    fn every_system_does_what_it_is_measured_for() {
        for system in System::ALL {
            let costs = handlers(system, Workload::Retwis, LITTLE);
            assert!(costs.get > 0.0 && costs.validate > 0.0 && costs.coordinator > 0.0);
            assert_eq!(costs.check > 0.0, system == System::Meerkat, "{system:?}: {costs:?}");
            assert_eq!(costs.accept > 0.0, system.has_primary(), "{system:?}: {costs:?}");
            assert_eq!(costs.accepted > 0.0, system.has_primary(), "{system:?}: {costs:?}");
            assert_eq!(costs.decided > 0.0, !system.has_primary(), "{system:?}: {costs:?}");
        }
    }

    #[test]
    fn the_median_is_the_middle_one() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut []), 0.0);
    }
}
