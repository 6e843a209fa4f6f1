//! Meerkat on the cluster of `quorate_harness`, and what tests ask of it.
//!
//! Beside the cluster stands a ledger: what every transaction did, and how it ended. No transaction
//! ever ends in two ways, wherever and whenever somebody says how it did.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};

use quorate_harness::{Clock, Logs, Outbox, Process, Step, Subject};
use quorate_machine::{MapTable, Outcome};
use quorate_meerkat::{Answered, Config, Isolation, Kind, Meerkat, Merged, Message, Meta, Request};
use quorate_rifl::{LeaseId, Permit, Sessions as _};
use quorate_types::{Duration, Epoch, Incarnation, Now, Timestamp};
use quorate_wire::Writer;

use crate::entries::{Entry, entries};
use crate::packets::{Packet, body_of, id_of, kind_name};
use crate::txn::{Txn, txn};

pub(crate) use crate::entries::body_bytes;

pub(crate) type Node = Meerkat<MapTable<Meta>, Txn>;

/// The message loss timeout of every test.
pub(crate) const MLT: Duration = Duration::from_millis(20);

/// Wall time at the start of every test, in nanoseconds.
pub(crate) const WALL: u64 = quorate_harness::WALL;

/// What is known of all transactions.
#[derive(Default)]
pub(crate) struct Ledger {
    /// The sets of each attempt in each partition.
    sets: BTreeMap<(Timestamp, u16), Vec<Entry>>,
    /// The attempts at each call.
    pub(crate) calls: BTreeMap<(LeaseId, u64), BTreeSet<Timestamp>>,
    /// How it ended.
    pub(crate) ends: BTreeMap<Timestamp, bool>,
    /// Whether what was decided may be lost with the power.
    pub(crate) is_lossy: bool,
    /// Transactions that ended only at nodes which may have died for good: their end may be lost.
    pub(crate) doubted: BTreeSet<Timestamp>,
}

impl Ledger {
    /// What a transaction read and wrote; empty for a read-only one.
    pub(crate) fn sets_of(&self, id: Timestamp) -> impl Iterator<Item = &Entry> {
        self.sets.range((id, 0)..=(id, u16::MAX)).flat_map(|(_, entries)| entries)
    }

    pub(crate) fn end(&mut self, id: Timestamp, commit: bool) {
        if self.doubted.remove(&id) {
            self.ends.insert(id, commit);
        }
        let known = *self.ends.entry(id).or_insert(commit);
        assert!(known == commit || self.is_lossy, "{id:?} ended in two ways");
    }
}

/// Replicas, and what is known of their transactions.
pub(crate) struct Replicas {
    pub(crate) configure: fn(&mut Config),
    /// From how many bytes on each node's collections are large.
    pub(crate) packed_bytes_max: fn(u16) -> usize,
    pub(crate) lanes: u16,
    pub(crate) logs: Logs,
    pub(crate) ledger: Ledger,
    /// Attempts in order of appearance, for traces.
    pub(crate) names: Vec<Timestamp>,
}

impl Replicas {
    pub(crate) fn new(lanes: u16, configure: fn(&mut Config)) -> Self {
        let packed_bytes_max = |_| usize::MAX;
        Self {
            configure,
            packed_bytes_max,
            lanes,
            logs: Logs::None,
            ledger: Ledger::default(),
            names: Vec::new(),
        }
    }

    fn note_sent(&mut self, packet: &Packet, lies: bool) {
        let message = packet.message();
        if let Some(id) = id_of(&message.kind) {
            if !self.names.contains(&id) {
                self.names.push(id);
            }
            if let Some(body) = body_of(&message.kind) {
                let sets = entries(body);
                let part = (id, message.partition);
                let known = self.ledger.sets.entry(part).or_insert_with(|| sets.clone());
                assert!(lies || *known == sets, "{id:?} has two bodies: {known:?}, {sets:?}");
                if let Some(Answered { call, .. }) = body.call() {
                    let attempts = self.ledger.calls.entry((call.lease, call.sequence));
                    attempts.or_default().insert(id);
                }
            }
        }
        if let Kind::Decided { id, commit, .. } = message.kind {
            self.ledger.end(id, commit);
        }
    }

    /// What an epoch change has settled is final once a member may act on it.
    fn note_released(&mut self, machine: &Node) {
        let Some(bytes) = machine.merged() else { return };
        let merged = Merged::decode(bytes).expect("leaders send well-formed records");
        for (key, settled) in merged.settled {
            self.ledger.end(key.id(), settled.commit);
        }
    }
}

impl Subject for Replicas {
    type Machine = Node;

    fn lanes(&self) -> u16 {
        self.lanes
    }

    fn start(&self, process: Process) -> Node {
        let Process { node, incarnation, lane, seed, .. } = process;
        let mut config = Config::new(node, incarnation, lane, self.lanes, seed);
        config.message_loss_timeout = MLT;
        (self.configure)(&mut config);
        Meerkat::new(config, MapTable::new((self.packed_bytes_max)(node.0)))
    }

    fn epoch(machine: &Node, _told: Epoch) -> Epoch {
        machine.epoch()
    }

    fn encode(message: &Message<'_>, bytes: &mut Vec<u8>) {
        message.encode(&mut Writer(bytes));
    }

    fn decode(bytes: &[u8]) -> Message<'_> {
        Message::decode(bytes).expect("machines send well-formed messages")
    }

    fn kind(message: &Message<'_>) -> &'static str {
        kind_name(&message.kind)
    }

    fn describe(message: &Message<'_>) -> String {
        format!("{:?}", message.kind)
    }

    fn begin_life(
        machine: &mut Node,
        now: Now,
        incarnation: Incarnation,
        outbox: &mut Outbox<Self>,
    ) {
        machine.reset(now, incarnation, outbox);
    }

    fn note(&mut self, step: &Step<'_, Self>) {
        step.packets.iter().for_each(|packet| self.note_sent(packet, step.lies));
        for at in step.answers.iter().filter_map(|(_, completion)| completion.at) {
            if self.ledger.sets_of(at).next().is_some() {
                self.ledger.end(at, true);
            }
        }
        for (key, record) in step.machine.records().iter() {
            if let Some(commit) = record.decision {
                self.ledger.end(key.id(), commit);
            }
        }
        if step.probes.contains(&"meerkat: epoch released") {
            self.note_released(step.machine);
        }
    }
}

/// A cluster of replicas with one lane.
pub(crate) struct Cluster(quorate_harness::Cluster<Replicas>);

impl Deref for Cluster {
    type Target = quorate_harness::Cluster<Replicas>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Cluster {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

/// Serializable isolation, for [`Cluster::with`].
pub(crate) fn serializable(config: &mut Config) {
    config.isolation = Isolation::Serializable;
}

impl Cluster {
    /// Nodes 1 to `count`, all active in epoch 1, under strict isolation.
    pub(crate) fn new(count: u16) -> Self {
        Self::with(count, |_| {})
    }

    pub(crate) fn with(count: u16, configure: fn(&mut Config)) -> Self {
        Self::seeded(count, |_| 0, u64::from, configure)
    }

    /// Nodes whose collections are large from so many bytes on, under serializable isolation.
    pub(crate) fn large(count: u16, packed_bytes_max: fn(u16) -> usize) -> Self {
        let replicas = Replicas { packed_bytes_max, ..Replicas::new(1, serializable) };
        Self::of(replicas, count, |_| 0, u64::from)
    }

    /// Clocks that are ahead by so many nanoseconds, and machines with these seeds.
    pub(crate) fn seeded(
        count: u16,
        ahead: impl FnMut(u16) -> i64,
        seed: impl Fn(u16) -> u64,
        configure: fn(&mut Config),
    ) -> Self {
        Self::of(Replicas::new(1, configure), count, ahead, seed)
    }

    pub(crate) fn of(
        replicas: Replicas,
        count: u16,
        mut ahead: impl FnMut(u16) -> i64,
        seed: impl Fn(u16) -> u64,
    ) -> Self {
        let logs = replicas.logs;
        let mut cluster = Self(quorate_harness::Cluster::new(replicas));
        cluster.subject.ledger.is_lossy = logs == Logs::Async;
        cluster.keep_logs(logs);
        (1..=count).for_each(|node| cluster.start_ahead(node, seed(node), ahead(node)));
        cluster.found();
        cluster.deliver_all();
        cluster.fresh_packets.clear();
        cluster
    }

    /// Starts a process whose wall clock is ahead by so many nanoseconds.
    pub(crate) fn start_ahead(&mut self, node: u16, seed: u64, ahead: i64) {
        self.start(node, seed);
        self.set_clock(node, Clock { ahead, ..Clock::default() });
    }

    /// A client of its own asks; the tag names the op.
    pub(crate) fn submit(&mut self, node: u16, text: &str) -> u64 {
        self.0.submit(node, txn(text))
    }

    /// A client's call, under a permit that the test makes up.
    pub(crate) fn call_as(&mut self, node: u16, origin: u64, permit: Permit, txn: Txn) -> u64 {
        let tag = self.tag();
        let request = Request { origin, command: txn };
        self.act(node, |machine, now, outbox| machine.call(now, tag, permit, request, outbox));
        tag.0
    }

    /// The values that a finished transaction has read, in order.
    #[track_caller]
    pub(crate) fn read_by(&self, tag: u64) -> Vec<Option<&str>> {
        match self.outcome(tag) {
            Some(Outcome::Done(reply)) => reply.iter().map(|seen| seen.value.as_deref()).collect(),
            other => panic!("op {tag}: {other:?}"),
        }
    }

    #[track_caller]
    pub(crate) fn assert_done(&self, tag: u64) {
        let outcome = self.outcome(tag);
        assert!(matches!(outcome, Some(Outcome::Done(_))), "op {tag}: {outcome:?}");
    }

    /// Hands over a message that the test makes up, of the epoch in force.
    pub(crate) fn tell(&mut self, from: u16, to: u16, kind: Kind<'_>) {
        self.0.tell(from, to, &Message { partition: 0, kind });
    }

    /// As [`Cluster::tell`], what no correct peer says; why it was refused, if it was.
    pub(crate) fn lie(&mut self, from: u16, to: u16, kind: Kind<'_>) -> Option<&'static str> {
        self.0.lie(from, to, &Message { partition: 0, kind })
    }

    /// Runs a transaction to its end in a healthy cluster.
    #[track_caller]
    pub(crate) fn run(&mut self, node: u16, text: &str) -> Vec<Option<String>> {
        let tag = self.submit(node, text);
        self.deliver_all();
        self.read_by(tag).into_iter().map(|value| value.map(str::to_owned)).collect()
    }
}
