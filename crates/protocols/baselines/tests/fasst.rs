//! The steps of FaSST's distributed commit, one by one.

use std::collections::BTreeMap;
use std::sync::Arc;

use quorate_baselines::{Baseline, Common, Config, Fasst};
use quorate_engine::Engine;
use quorate_harness::{Cluster, Packet, Process, Subject};
use quorate_machine::{
    Change, Command, Event, Outcome, Record, Request, Table, ValueKind, Verdict, Workspace,
};
use quorate_meerkat::{Kind, Message, Meta};
use quorate_storage::{SharedTable, Store};
use quorate_types::{Duration, NodeId, Tag, UnixMillis, partition_of};
use quorate_wire::Writer;

/// Reads some keys and writes a byte to others; or, if the first key that it reads has no value, to
/// so many of them.
#[derive(Clone, Debug, Default)]
struct Txn {
    reads: Vec<Vec<u8>>,
    writes: Vec<(Vec<u8>, u8)>,
    if_absent: Option<usize>,
    /// Keys that it reads last and does not name.
    found: Vec<Vec<u8>>,
}

impl Command for Txn {
    type Owned = Self;
    type Reply = Vec<Option<u8>>;

    fn run<W: Workspace>(&self, _now: UnixMillis, workspace: &mut W) -> Verdict<Self::Reply> {
        let mut held = Vec::new();
        for key in &self.reads {
            held.push(workspace.read(key).content.map(|content| content.bytes[0]));
        }
        let is_absent = held.first() == Some(&None);
        let writes = self.if_absent.filter(|_| is_absent).unwrap_or(self.writes.len());
        for (key, value) in &self.writes[..writes] {
            let bytes = vec![*value].into();
            let kind = ValueKind::String;
            workspace.write(key, Change::Set { bytes, kind, expire_at: None });
        }
        for key in &self.found {
            held.push(workspace.read(key).content.map(|content| content.bytes[0]));
        }
        Verdict::Commit(held)
    }

    fn visit_keys(&self, visit: &mut dyn FnMut(&[u8])) {
        self.reads.iter().for_each(|key| visit(key));
        self.writes.iter().for_each(|(key, _)| visit(key));
    }

    fn updates(&self) -> bool {
        !self.writes.is_empty()
    }

    fn into_owned(self) -> Self {
        self
    }
}

struct Nodes {
    stores: Vec<Arc<Store<Meta>>>,
}

type Machine = Baseline<Fasst, SharedTable<Meta>, Txn>;

impl Subject for Nodes {
    type Machine = Machine;

    fn start(&self, process: Process) -> Machine {
        let Process { node, lane, .. } = process;
        let config = Config { node, lane, op_timeout: Duration::from_secs(1000), seed: 1 };
        let table = self.stores[usize::from(node.0) - 1].shared_table(lane.0);
        Baseline::new(config, table, Arc::<Common>::default())
    }

    fn encode(message: &Message<'_>, bytes: &mut Vec<u8>) {
        message.encode(&mut Writer(bytes));
    }

    fn decode(bytes: &[u8]) -> Message<'_> {
        Message::decode(bytes).expect("just encoded")
    }
}

struct World {
    cluster: Cluster<Nodes>,
    nodes: u16,
    tags: u64,
}

impl World {
    fn new(nodes: u16) -> Self {
        let stores = (0..nodes).map(|_| Store::new(1)).collect();
        let mut cluster = Cluster::new(Nodes { stores });
        (1..=nodes).for_each(|node| cluster.start(node, 0));
        cluster.found();
        Self { cluster, nodes, tags: 0 }
    }

    /// A key whose primary is this node.
    fn key(&self, node: u16, number: u32) -> Vec<u8> {
        let of_node = |key: &Vec<u8>| partition_of(key, self.nodes.into()) + 1 == node;
        let keys = (0..).map(|salt: u32| format!("key {number} {salt}").into_bytes());
        keys.into_iter().find(of_node).expect("every node has keys")
    }

    fn begin(&mut self, node: u16, command: Txn) -> u64 {
        self.tags += 1;
        let request = Request { origin: self.tags, command };
        self.cluster.step_on(node, 0, Event::Request { tag: Tag(self.tags), request });
        self.tags
    }

    /// Delivers the messages that are under way now.
    fn hop(&mut self) -> Vec<String> {
        let packets: Vec<Packet<Nodes>> = std::mem::take(&mut self.cluster.pool);
        let mut said = Vec::new();
        for packet in packets {
            said.push(describe(&packet));
            self.cluster.inject(&packet);
        }
        said.sort();
        said
    }

    /// Delivers everything, and lets pauses pass.
    fn settle(&mut self) {
        for _ in 0..100 {
            while !self.cluster.pool.is_empty() {
                self.hop();
            }
            self.cluster.advance(Duration::from_micros(500));
            for node in 1..=self.nodes {
                self.cluster.step_on(node, 0, Event::Tick);
            }
        }
    }

    fn outcome(&self, tag: u64) -> Option<Vec<Option<u8>>> {
        match self.cluster.outcome(tag)? {
            Outcome::Done(held) => Some(held.clone()),
            other => panic!("{other:?}"),
        }
    }

    fn run(&mut self, node: u16, command: Txn) -> Vec<Option<u8>> {
        let tag = self.begin(node, command);
        self.settle();
        self.outcome(tag).expect("everything was delivered")
    }

    /// What a node's own record of a key holds, and whether it is locked.
    fn record(&self, node: u16, key: &[u8]) -> (Option<u8>, bool) {
        let mut table = self.cluster.subject.stores[usize::from(node) - 1].shared_table(0);
        let Some(record) = table.lock_existing(key) else { return (None, false) };
        let value = record.content().map(|content| content.bytes[0]);
        (value, !record.locked_state().is_empty())
    }

    fn counted(&mut self) -> BTreeMap<&'static str, u64> {
        let mut sums = BTreeMap::new();
        for node in 1..=self.nodes {
            for (name, count) in Engine::counters(self.cluster.machine(node)) {
                *sums.entry(name).or_default() += count;
            }
        }
        sums
    }
}

fn describe(packet: &Packet<Nodes>) -> String {
    let what = match Nodes::decode(&packet.bytes).kind {
        Kind::Validate { stable: 0, .. } => "EXECUTE",
        Kind::Validate { .. } => "CHECK",
        Kind::Values { .. } => "VALUES",
        Kind::Vote { vote: Ok(()), .. } => "VOTE for",
        Kind::Vote { .. } => "VOTE against",
        Kind::Accept { .. } => "LOG",
        Kind::Accepted { .. } => "LOGGED",
        Kind::Decided { commit: true, .. } => "COMMIT",
        Kind::Decided { .. } => "UNLOCK",
        other => panic!("{other:?}"),
    };
    let (NodeId(from), NodeId(to)) = (packet.from, packet.to);
    format!("{from}->{to} {what}")
}

fn write(key: &[u8], value: u8) -> Txn {
    Txn { writes: vec![(key.to_vec(), value)], ..Txn::default() }
}

fn read(keys: &[&[u8]]) -> Txn {
    Txn { reads: keys.iter().map(|key| key.to_vec()).collect(), ..Txn::default() }
}

#[test]
fn a_write_of_one_remote_key_locks_logs_and_commits() {
    let mut world = World::new(6);
    let key = world.key(2, 0);
    let tag = world.begin(1, write(&key, 7));
    assert_eq!(world.hop(), ["1->2 EXECUTE"]);
    assert_eq!(world.record(2, &key), (None, true), "locked, not written");
    assert_eq!(world.hop(), ["2->1 VALUES"]);
    // Everything it read is locked: nothing is to be checked.
    assert_eq!(world.hop(), ["1->3 LOG", "1->4 LOG"]);
    assert_eq!(world.outcome(tag), None, "not before all backups have it");
    assert_eq!(world.hop(), ["3->1 LOGGED", "4->1 LOGGED"]);
    assert_eq!(world.outcome(tag), Some(vec![]));
    assert_eq!(world.hop(), ["1->2 COMMIT"]);
    assert!(world.hop().is_empty());
    for (node, held) in [(1, None), (2, Some(7)), (3, Some(7)), (4, Some(7)), (5, None)] {
        assert_eq!(world.record(node, &key), (held, false), "node {node}");
    }
}

#[test]
fn what_is_read_and_not_locked_is_checked() {
    let mut world = World::new(3);
    let (mine, theirs) = (world.key(1, 0), world.key(2, 0));
    let tag = world.begin(1, Txn { reads: vec![theirs.clone()], ..write(&mine, 5) });
    assert_eq!(world.hop(), ["1->2 EXECUTE"]);
    assert!(!world.record(2, &theirs).1, "what is only read is not locked");
    assert_eq!(world.hop(), ["2->1 VALUES"]);
    assert_eq!(world.hop(), ["1->2 CHECK"]);
    assert_eq!(world.hop(), ["2->1 VOTE for"]);
    assert_eq!(world.hop(), ["1->2 LOG", "1->3 LOG"]);
    world.settle();
    assert_eq!(world.outcome(tag), Some(vec![None]));
}

#[test]
fn what_changed_since_it_was_read_aborts() {
    let mut world = World::new(3);
    let (mine, theirs) = (world.key(1, 0), world.key(2, 0));
    let tag = world.begin(1, Txn { reads: vec![theirs.clone()], ..write(&mine, 5) });
    world.hop();
    // The answer is under way while another transaction changes what it says.
    let values = std::mem::take(&mut world.cluster.pool);
    assert_eq!(world.run(2, write(&theirs, 9)), []);
    world.cluster.pool = values;
    assert_eq!(world.hop(), ["2->1 VALUES"]);
    assert_eq!(world.hop(), ["1->2 CHECK"]);
    assert_eq!(world.hop(), ["2->1 VOTE against"]);
    assert_eq!(world.record(1, &mine), (None, false), "its own lock is gone");
    assert_eq!(world.counted()["aborts_stale_read"], 1);
    world.settle();
    assert_eq!(world.outcome(tag), Some(vec![Some(9)]), "tried again, it reads the new value");
}

#[test]
fn a_locked_key_is_neither_locked_nor_read_nor_left_locked_by_others() {
    let mut world = World::new(3);
    let (one, two) = (world.key(2, 0), world.key(3, 0));
    let first = world.begin(1, write(&one, 1));
    world.hop();
    assert!(world.record(2, &one).1);
    // A second transaction gets the one lock and not the other.
    let both = Txn { writes: vec![(one.clone(), 2), (two.clone(), 2)], ..Txn::default() };
    let held = std::mem::take(&mut world.cluster.pool);
    let second = world.begin(1, both);
    assert_eq!(world.hop(), ["1->2 EXECUTE", "1->3 EXECUTE"]);
    assert!(world.record(3, &two).1);
    assert_eq!(world.hop(), ["2->1 VOTE against", "3->1 VALUES"]);
    let unlocks = world.hop();
    assert_eq!(unlocks, ["1->2 UNLOCK", "1->3 UNLOCK"]);
    assert!(!world.record(3, &two).1, "it waits with nothing locked");
    assert!(world.record(2, &one).1, "and has not taken the first one's lock away");
    let third = world.begin(3, read(&[&one]));
    assert_eq!(world.hop(), ["3->2 EXECUTE"]);
    assert_eq!(world.hop(), ["2->3 VOTE against"]);
    world.cluster.pool.extend(held);
    world.settle();
    assert_eq!(world.outcome(first), Some(vec![]));
    assert_eq!(world.outcome(second), Some(vec![]));
    assert!(world.outcome(third).is_some());
    assert!(world.counted()["aborts_pending_writer"] >= 2);
}

#[test]
fn reads_of_one_key_take_one_round_trip_and_of_several_two() {
    let mut world = World::new(6);
    let (one, two) = (world.key(2, 0), world.key(5, 0));
    assert_eq!(world.run(4, write(&one, 3)), []);
    let tag = world.begin(1, read(&[&one]));
    assert_eq!(
        (world.hop(), world.hop()),
        (vec!["1->2 EXECUTE".into()], vec!["2->1 VALUES".into()])
    );
    assert_eq!(world.outcome(tag), Some(vec![Some(3)]));
    let tag = world.begin(1, read(&[&one, &two]));
    assert_eq!(world.hop(), ["1->2 EXECUTE", "1->5 EXECUTE"]);
    assert_eq!(world.hop(), ["2->1 VALUES", "5->1 VALUES"]);
    assert_eq!(world.hop(), ["1->2 CHECK", "1->5 CHECK"]);
    assert_eq!(world.hop(), ["2->1 VOTE for", "5->1 VOTE for"]);
    assert_eq!(world.outcome(tag), Some(vec![Some(3), None]));
    assert!(world.hop().is_empty());
}

#[test]
fn a_write_that_was_not_foreseen_is_tried_again_with_its_lock() {
    let mut world = World::new(3);
    let (there, one, two) = (world.key(1, 0), world.key(2, 0), world.key(3, 0));
    assert_eq!(world.run(3, write(&there, 4)), []);
    let writes = vec![(one.clone(), 8), (two.clone(), 9)];
    let reads = vec![there.clone()];
    // Over absent keys it writes the first alone.
    let half = Txn { reads, writes, if_absent: Some(1), ..Txn::default() };
    assert_eq!(world.run(1, half.clone()), [Some(4)]);
    assert_eq!(
        (world.record(2, &one), world.record(3, &two)),
        ((Some(8), false), (Some(9), false))
    );
    assert_eq!(world.counted()["retries"], 1);
    // If nothing is foreseen, everything is locked at once.
    let nothing = Txn { if_absent: Some(0), ..half };
    assert_eq!(world.run(1, nothing), [Some(4)]);
    assert_eq!(world.counted()["retries"], 1);
    assert!(!world.record(1, &there).1, "what was locked and not written is unlocked");
}

#[test]
fn keys_that_are_found_on_the_way_are_fetched_and_checked() {
    let mut world = World::new(3);
    let (named, found) = (world.key(1, 0), world.key(2, 0));
    assert_eq!(world.run(3, write(&found, 6)), []);
    let script = Txn { found: vec![found], ..write(&named, 1) };
    let tag = world.begin(1, script);
    assert_eq!(world.hop(), ["1->2 EXECUTE"]);
    assert_eq!(world.hop(), ["2->1 VALUES"]);
    assert_eq!(world.hop(), ["1->2 CHECK"]);
    world.settle();
    assert_eq!(world.outcome(tag), Some(vec![Some(6)]));
}

#[test]
fn one_node_alone_asks_nobody() {
    let mut world = World::new(1);
    let key = world.key(1, 0);
    let tag = world.begin(1, Txn { reads: vec![key.clone()], ..write(&key, 1) });
    assert_eq!(world.outcome(tag), Some(vec![None]));
    assert!(world.cluster.pool.is_empty());
    assert_eq!(world.record(1, &key), (Some(1), false));
}
