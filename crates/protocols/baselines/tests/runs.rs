//! Random runs of each system, with messages of different links in any order: what committed is
//! equivalent to the same transactions one after the other in order of their timestamps, and the
//! replicas hold the same in the end. FaSST's order is not that of its versions: there the order of
//! each key's versions, of what was read, and of real time have no circle.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::marker::PhantomData;
use std::sync::Arc;

use quorate_baselines::{Baseline, Common, Config, Fasst, KuaFu, MeerkatPb, System, Tapir};
use quorate_engine::Engine;
use quorate_harness::{Cluster, Packet, Process, Subject};
use quorate_machine::{
    Change, Command, Event, Machine, Outcome, Record, Refusal, Rng, Table, ValueKind, Verdict,
    Workspace,
};
use quorate_meerkat::{Message, Meta, Request};
use quorate_storage::{SharedTable, Store};
use quorate_types::{Duration, Role, Tag, Timestamp, UnixMillis};
use quorate_wire::Writer;

const LANES: u16 = 2;
const KEYS: u64 = 6;
const CLIENTS: u64 = 8;

/// Reads some keys, writes its number to the first ones of them, and to a key of its own: the
/// version of that one is its timestamp. It has none if it only reads.
#[derive(Clone, Debug)]
struct Txn {
    number: u64,
    keys: Vec<u64>,
    writes: usize,
    only_reads: bool,
}

fn name(key: u64) -> Vec<u8> {
    format!("key {key}").into_bytes()
}

fn mark(number: u64) -> Vec<u8> {
    format!("mark {number}").into_bytes()
}

fn set(number: u64) -> Change<'static> {
    let bytes = Cow::Owned(number.to_le_bytes().to_vec());
    Change::Set { bytes, kind: ValueKind::String, expire_at: None }
}

impl Command for Txn {
    type Owned = Self;
    /// What the keys held.
    type Reply = Vec<Option<u64>>;

    fn run<W: Workspace>(&self, _now: UnixMillis, workspace: &mut W) -> Verdict<Self::Reply> {
        let mut held = Vec::new();
        for &key in &self.keys {
            let content = workspace.read(&name(key)).content;
            held.push(
                content
                    .map(|content| u64::from_le_bytes(content.bytes.try_into().expect("a number"))),
            );
        }
        for &key in &self.keys[..self.writes] {
            workspace.write(&name(key), set(self.number));
        }
        if !self.only_reads {
            workspace.write(&mark(self.number), set(self.number));
        }
        Verdict::Commit(held)
    }

    fn visit_keys(&self, visit: &mut dyn FnMut(&[u8])) {
        self.keys.iter().for_each(|key| visit(&name(*key)));
        if !self.only_reads {
            visit(&mark(self.number));
        }
    }

    fn updates(&self) -> bool {
        !self.only_reads
    }

    fn into_owned(self) -> Self {
        self
    }
}

type Rival<S> = Baseline<S, SharedTable<Meta>, Txn>;

/// Machines over one store for each node.
struct Rivals<S> {
    stores: Vec<Arc<Store<Meta>>>,
    commons: Vec<Arc<Common>>,
    /// One for each machine, by node and lane.
    seeds: Vec<u64>,
    system: PhantomData<S>,
}

impl<S: System> Subject for Rivals<S> {
    type Machine = Rival<S>;

    fn lanes(&self) -> u16 {
        LANES
    }

    fn start(&self, process: Process) -> Rival<S> {
        let Process { node, lane, .. } = process;
        let index = usize::from(node.0) - 1;
        let seed = self.seeds[index * usize::from(LANES) + usize::from(lane.0)];
        let config = Config { node, lane, op_timeout: Duration::from_secs(1000), seed };
        let table = self.stores[index].shared_table(lane.0);
        Baseline::new(config, table, Arc::clone(&self.commons[index]))
    }

    fn encode(message: &Message<'_>, bytes: &mut Vec<u8>) {
        message.encode(&mut Writer(bytes));
    }

    fn decode(bytes: &[u8]) -> Message<'_> {
        Message::decode(bytes).expect("just encoded")
    }
}

struct World<S: System> {
    rng: Rng,
    cluster: Cluster<Rivals<S>>,
    /// Transactions that are not answered.
    open: u64,
    issued: Vec<Txn>,
    /// What each transaction read, if it committed.
    committed: BTreeMap<u64, Vec<Option<u64>>>,
    refused: Vec<u64>,
    /// When each transaction began and was answered, in steps of this count.
    steps: u64,
    begun: Vec<u64>,
    ended: BTreeMap<u64, u64>,
}

impl<S: System> World<S> {
    fn new(nodes: u16, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let mut cluster = Cluster::new(Rivals {
            stores: (0..nodes).map(|_| Store::new(LANES)).collect(),
            commons: (0..nodes).map(|_| Arc::default()).collect(),
            seeds: (0..nodes * LANES).map(|_| rng.next_u64()).collect(),
            system: PhantomData,
        });
        (1..=nodes).for_each(|node| cluster.start(node, 0));
        for (node, host) in &mut cluster.hosts {
            // Clocks that differ: nothing rests on them but how often transactions lose.
            host.clock.ahead = i64::from(*node) * 30_000;
        }
        cluster.found();
        let (committed, refused) = (BTreeMap::new(), Vec::new());
        let (begun, ended) = (Vec::new(), BTreeMap::new());
        Self {
            rng,
            cluster,
            open: 0,
            issued: Vec::new(),
            committed,
            refused,
            steps: 0,
            begun,
            ended,
        }
    }

    fn note_answers(&mut self) {
        for (number, outcome) in std::mem::take(&mut self.cluster.fresh_outcomes) {
            self.open -= 1;
            self.steps += 1;
            self.ended.insert(number, self.steps);
            match outcome {
                Outcome::Done(held) => _ = self.committed.insert(number, held),
                Outcome::Refused(Refusal::Conflict) => self.refused.push(number),
                other => panic!("{other:?} without a fault"),
            }
        }
        self.cluster.fresh_packets.clear();
    }

    /// Every machine, by node and lane.
    fn machines(&self) -> impl Iterator<Item = (u16, u16, &Rival<S>)> {
        self.cluster.hosts.iter().flat_map(|(node, host)| {
            (0..).zip(&host.machines).map(|(lane, machine)| (*node, lane, machine))
        })
    }

    /// Some client begins a transaction, always at the same machine.
    fn begin(&mut self) {
        let client = self.rng.below(CLIENTS);
        let mut keys: Vec<u64> = (0..KEYS).collect();
        for at in (1..keys.len()).rev() {
            keys.swap(at, self.rng.below(at as u64 + 1) as usize);
        }
        keys.truncate(1 + self.rng.below(3) as usize);
        let only_reads = S::SHARDED && self.rng.chance(1, 4);
        let most = if only_reads { 0 } else { keys.len() as u64 };
        let writes = self.rng.below(most + 1) as usize;
        let number = self.issued.len() as u64;
        let txn = Txn { number, keys, writes, only_reads };
        self.steps += 1;
        self.begun.push(self.steps);
        self.issued.push(txn.clone());
        self.open += 1;
        let machine = (client % (self.cluster.hosts.len() as u64 * u64::from(LANES))) as u16;
        let request = Request { origin: client, command: txn };
        let event = Event::Request { tag: Tag(number), request };
        self.cluster.step_on(machine / LANES + 1, machine % LANES, event);
        self.note_answers();
    }

    /// The oldest message of some link arrives, if one is under way.
    fn deliver(&mut self) -> bool {
        let link = |packet: &Packet<Rivals<S>>| (packet.from, packet.to, packet.lane);
        let busy: BTreeSet<_> = self.cluster.pool.iter().map(link).collect();
        if busy.is_empty() {
            return false;
        }
        let chosen = busy.iter().nth(self.rng.below(busy.len() as u64) as usize);
        let first = self.cluster.pool.iter().position(|packet| Some(&link(packet)) == chosen);
        let packet = self.cluster.pool.remove(first.expect("the link is busy"));
        self.cluster.inject(&packet);
        self.note_answers();
        true
    }

    fn pass(&mut self, nanos: u64) {
        self.cluster.advance(Duration::from_nanos(nanos));
        let now = self.cluster.now.monotonic;
        let due = self.machines().filter(|(.., machine)| machine.next_deadline() <= now);
        let due: Vec<_> = due.map(|(node, lane, _)| (node, lane)).collect();
        for (node, lane) in due {
            self.cluster.step_on(node, lane, Event::Tick);
            self.note_answers();
        }
    }

    fn run(&mut self, transactions: usize) {
        while self.issued.len() < transactions {
            let nanos = self.rng.below(10_000);
            self.pass(nanos);
            if self.open < CLIENTS && self.rng.chance(1, 4) {
                self.begin();
            } else {
                self.deliver();
            }
        }
        while self.open > 0 || self.deliver() {
            self.pass(10_000);
            self.deliver();
        }
    }

    /// Every key's value and version at a node.
    fn contents(&self, node: usize) -> BTreeMap<Vec<u8>, (u64, Timestamp)> {
        let mut contents = BTreeMap::new();
        for lane in 0..LANES {
            let mut table = self.cluster.subject.stores[node].shared_table(lane);
            let mut keys: Vec<Vec<u8>> = Vec::new();
            assert_eq!(table.scan_keys(0, usize::MAX >> 8, &mut |key| keys.push(key.into())), 0);
            for key in keys {
                let record = table.lock_existing(&key).expect("nothing is removed");
                assert!(record.locked_state().is_empty(), "a transaction is still registered");
                if let Some(content) = record.content() {
                    let number = u64::from_le_bytes(content.bytes.try_into().expect("a number"));
                    contents.insert(key.clone(), (number, record.meta().wts));
                }
            }
        }
        contents
    }

    /// What all nodes hold together, and that a key's primary and backups hold the same.
    fn merged(&self) -> BTreeMap<Vec<u8>, (u64, Timestamp)> {
        let nodes = self.cluster.hosts.len();
        let mut merged: BTreeMap<Vec<u8>, ((u64, Timestamp), usize)> = BTreeMap::new();
        for (key, held) in (0..nodes).flat_map(|node| self.contents(node)) {
            let (first, holders) = merged.entry(key.clone()).or_insert((held, 0));
            assert_eq!(*first, held, "replicas of {key:?} differ");
            *holders += 1;
        }
        let whole = |(key, (held, holders))| {
            assert_eq!(holders, nodes.min(3), "replicas of {key:?}");
            (key, held)
        };
        merged.into_iter().map(whole).collect()
    }

    /// Looks for a circle among what committed: of the versions of each key, of who read which, and
    /// of who was answered before who began.
    fn judge_graph(&self) {
        let contents = self.merged();
        // The writers of each key in the order of its versions.
        let mut writers: BTreeMap<u64, Vec<(Timestamp, u64)>> = BTreeMap::new();
        for &number in self.committed.keys() {
            let txn = &self.issued[number as usize];
            if !txn.only_reads {
                let (_, version) = contents.get(&mark(number)).expect("it left its mark");
                for key in &txn.keys[..txn.writes] {
                    writers.entry(*key).or_default().push((*version, number));
                }
            }
        }
        for &number in &self.refused {
            assert!(!contents.contains_key(&mark(number)), "{number} was refused and is there");
        }
        for (key, writers) in &mut writers {
            writers.sort_unstable();
            let last = writers.last().expect("somebody wrote it").1;
            assert_eq!(contents[&name(*key)].0, last, "the last write of key {key}");
        }
        let mut after: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        let mut edge = |from: u64, to: u64| {
            if from != to {
                after.entry(from).or_default().insert(to);
            }
        };
        for writers in writers.values() {
            writers.windows(2).for_each(|pair| edge(pair[0].1, pair[1].1));
        }
        for (&number, held) in &self.committed {
            for (key, held) in self.issued[number as usize].keys.iter().zip(held) {
                let writers = writers.get(key).map_or(&[][..], Vec::as_slice);
                let at = held.map(|writer| {
                    let at = writers.iter().position(|(_, other)| *other == writer);
                    at.expect("what was read was committed")
                });
                if let Some(at) = at {
                    edge(writers[at].1, number);
                }
                let next = at.map_or(0, |at| at + 1);
                if let Some((_, next)) = writers.get(next) {
                    edge(number, *next);
                }
            }
            let later = self
                .committed
                .keys()
                .filter(|later| self.begun[**later as usize] > self.ended[&number]);
            later.for_each(|later| edge(number, *later));
        }
        let mut left: BTreeSet<u64> = self.committed.keys().copied().collect();
        while !left.is_empty() {
            let mut into = BTreeSet::new();
            for from in &left {
                into.extend(after.get(from).into_iter().flatten());
            }
            let free: Vec<u64> = left.difference(&into).copied().collect();
            assert!(!free.is_empty(), "no order explains {left:?}");
            free.iter().for_each(|number| _ = left.remove(number));
        }
    }

    /// Runs what committed again, one after the other in order of timestamps.
    fn judge(&self) {
        if S::SHARDED {
            return self.judge_graph();
        }
        let contents = self.contents(0);
        for node in 1..self.cluster.hosts.len() {
            assert_eq!(self.contents(node), contents, "node {node} differs from the first");
        }
        assert!(
            self.cluster.subject.commons.iter().all(|common| common.is_empty()),
            "something is left over"
        );
        let mut order: Vec<(Timestamp, u64)> = Vec::new();
        for &number in self.committed.keys() {
            let (_, version) = contents.get(&mark(number)).expect("what committed left its mark");
            order.push((*version, number));
        }
        for &number in &self.refused {
            assert!(!contents.contains_key(&mark(number)), "{number} was refused and is there");
        }
        order.sort_unstable();
        let mut state: BTreeMap<u64, u64> = BTreeMap::new();
        for (version, number) in order {
            let txn = &self.issued[number as usize];
            let held: Vec<Option<u64>> =
                txn.keys.iter().map(|key| state.get(key).copied()).collect();
            assert_eq!(self.committed[&number], held, "{txn:?} at {version:?} read another past");
            state.extend(txn.keys[..txn.writes].iter().map(|key| (*key, number)));
        }
        for (key, number) in state {
            assert_eq!(contents[&name(key)].0, number, "the last write of key {key}");
        }
    }
}

/// Returns how much was counted of each name.
fn runs<S: System>() -> BTreeMap<&'static str, u64> {
    let mut counted = BTreeMap::new();
    for seed in 0..40 {
        let nodes = if seed % 4 == 3 { 5 } else { 3 };
        let mut world = World::<S>::new(nodes, seed);
        world.run(300);
        assert!(world.committed.len() > 200, "{} of 300 committed", world.committed.len());
        world.judge();
        for (name, count) in world.machines().flat_map(|(.., machine)| machine.counters()) {
            *counted.entry(name).or_default() += count;
        }
    }
    counted
}

#[test]
fn kuafu_is_serializable() {
    let counted = runs::<KuaFu>();
    assert!(counted["aborts_stale_read"] > 0 && counted["retries"] > 0, "{counted:?}");
}

#[test]
fn tapir_is_serializable() {
    let counted = runs::<Tapir>();
    for name in ["commits_fast", "commits_slow", "aborts_read_later", "retries"] {
        assert!(counted[name] > 0, "{counted:?}");
    }
}

#[test]
fn meerkat_pb_is_serializable() {
    let counted = runs::<MeerkatPb>();
    assert!(counted["aborts_stale_read"] > 0 && counted["aborts_read_later"] > 0, "{counted:?}");
}

#[test]
fn fasst_is_strictly_serializable() {
    let counted = runs::<Fasst>();
    for name in ["commits_fast", "aborts_stale_read", "aborts_pending_writer", "retries"] {
        assert!(counted[name] > 0, "{counted:?}");
    }
}

#[test]
fn one_node_alone_commits() {
    fn run<S: System>() {
        let mut world = World::<S>::new(1, 7);
        world.run(100);
        world.judge();
        assert!(world.committed.len() > 50);
    }
    run::<KuaFu>();
    run::<Tapir>();
    run::<MeerkatPb>();
    run::<Fasst>();
}

#[test]
#[should_panic(expected = "without recovery")]
fn the_loss_of_a_node_stops_it_with_a_sentence() {
    let mut world = World::<MeerkatPb>::new(3, 1);
    world.cluster.set_role(3, Role::Down);
}
