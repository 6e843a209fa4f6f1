//! Zeus on the cluster of `quorate_harness`, and what tests ask of it.
//!
//! Beside the cluster stands a ledger: what every transaction wrote at which version. A version names
//! one content of a key, wherever it is found.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use quorate_harness::{Clock, Logs, Outbox, Packet, Process, Step, Subject};
use quorate_machine::{Command as _, Content, Outcome};
use quorate_rifl::{Call, Found, LeaseId, Permit, Sessions as _};
use quorate_storage::{Keeps, SharedTable, Store, ValueInfo};
use quorate_types::{
    Duration, Epoch, Incarnation, LaneId, MemberNumber, NodeId, Now, Role, Timestamp, hash_key,
    lane_of_key, placement,
};
use quorate_wire::Writer;
use quorate_zeus::{
    CallMessage, Config, DataState, DifferenceMessage, Extra, ExtraMessage, ExtraStep, Item,
    LookMessage, Message, Meta, OwnerState, Request, Zeus,
};

use crate::txn::{Reply, Txn, appended, txn, value_text};

pub(crate) type Node = Zeus<SharedTable<Meta>, Txn>;

/// The message loss timeout of every test.
pub(crate) const MLT: Duration = Duration::from_millis(20);

/// Wall time at the start of every test, in nanoseconds.
pub(crate) const WALL: u64 = quorate_harness::WALL;

/// What a transaction wrote: its coordinator, its slot, and each key with what it left there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Written {
    pub(crate) by: (MemberNumber, u64),
    pub(crate) keys: Vec<(String, Option<String>)>,
}

/// Replicas, and what is known of their transactions.
#[derive(Default)]
pub(crate) struct Replicas {
    /// Members of each group; 3 if nothing is said.
    pub(crate) replicas: Option<usize>,
    /// Lanes of each node; 1 if nothing is said.
    pub(crate) lanes: Option<u16>,
    /// The records of each node.
    pub(crate) stores: RefCell<BTreeMap<u16, Arc<Store<Meta>>>>,
    /// From how many bytes on a node keeps collections large; never if nothing is said.
    pub(crate) packed_bytes_max: Option<fn(u16) -> usize>,
    /// How long a transaction may wait; 2 s if nothing is said.
    pub(crate) op_timeout: Option<Duration>,
    /// How old a deleted key gets; 10 s if nothing is said.
    pub(crate) collect_every: Option<Duration>,
    /// After how many reads that others answer a node asks for a copy; 16 if nothing is said.
    pub(crate) extra_after: Option<u32>,
    pub(crate) written: BTreeMap<Timestamp, Written>,
    /// Whether it is not quite known what a transaction wrote.
    pub(crate) has_guessed: Cell<bool>,
    /// Whether nodes keep logs. Who comes back from one does not know which owner that is gone a key had.
    pub(crate) forgets_the_gone: bool,
    /// The versions of each call's attempts.
    pub(crate) attempts: BTreeMap<(LeaseId, u64), BTreeSet<Timestamp>>,
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("tests store text")
}

impl Subject for Replicas {
    type Machine = Node;

    const SNAPSHOTS_AWAIT_LANES: bool = true;

    fn lanes(&self) -> u16 {
        self.lanes.unwrap_or(1)
    }

    fn start(&self, process: Process) -> Node {
        let Process { node, incarnation, lane, seed, .. } = process;
        let mut config = Config::new(node, incarnation, lane, seed + u64::from(lane.0));
        config.lanes = self.lanes();
        let mut stores = self.stores.borrow_mut();
        if lane == LaneId(0) {
            let packed_bytes_max = self.packed_bytes_max.map(|of| of(node.0));
            let keeps = Keeps { packed_bytes_max, ..Keeps::default() };
            stores.insert(node.0, Store::keeping(config.lanes, keeps));
        }
        let table = stores[&node.0].shared_table(lane.0);
        config.message_loss_timeout = MLT;
        config.replicas = self.replicas.unwrap_or(config.replicas);
        config.collect_every = self.collect_every.unwrap_or(config.collect_every);
        config.extra_after = self.extra_after.unwrap_or(config.extra_after);
        config.op_timeout = self.op_timeout.unwrap_or(config.op_timeout);
        Zeus::new(config, table)
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
        match message {
            Message::Req { .. } => "req",
            Message::Inv { .. } => "inv",
            Message::Ack { .. } => "ack",
            Message::Val { .. } => "val",
            Message::Nack { .. } => "nack",
            Message::Update(_) => "r-inv",
            Message::Lacks { .. } => "lacks",
            Message::Whole { .. } => "whole",
            Message::Applied { .. } => "r-ack",
            Message::Committed { .. } => "r-val",
            Message::Recovered { .. } => "recovered",
            Message::Floor { .. } => "floor",
            Message::CopyRead { .. } => "copy_read",
            Message::CopyKey { .. } => "copy_key",
            Message::Copy { .. } => "copy",
            Message::Call(CallMessage::Find { .. }) => "find",
            Message::Call(CallMessage::Found { .. }) => "found",
            Message::Call(CallMessage::Read { .. }) => "calls_read",
            Message::Call(CallMessage::Copy { .. }) => "calls",
            Message::Difference(DifferenceMessage::Compare { .. }) => "compare",
            Message::Difference(DifferenceMessage::Compared { .. }) => "compared",
            Message::Difference(DifferenceMessage::Read { .. }) => "difference_read",
            Message::Difference(DifferenceMessage::Records { .. }) => "difference",
            Message::Look(LookMessage::Look { .. }) => "look",
            Message::Look(LookMessage::Seen { .. }) => "seen",
            Message::Look(LookMessage::Check { .. }) => "check",
            Message::Look(LookMessage::Checked { .. }) => "checked",
            Message::Extra(ExtraMessage { step, .. }) => match step {
                ExtraStep::Want { .. } => "want",
                ExtraStep::Grant { .. } => "grant",
                ExtraStep::Keep => "keep",
                ExtraStep::Leave => "leave",
                ExtraStep::Withdraw => "withdraw",
                ExtraStep::Gone => "gone",
            },
        }
    }

    fn describe(message: &Message<'_>) -> String {
        format!("{message:?}")
    }

    fn end_turn(machine: &mut Node, _now: Now, outbox: &mut Outbox<Self>) {
        machine.flush(outbox);
    }

    fn begin_life(
        machine: &mut Node,
        _now: Now,
        incarnation: Incarnation,
        outbox: &mut Outbox<Self>,
    ) {
        machine.reset(incarnation, outbox);
    }

    fn note(&mut self, step: &Step<'_, Self>) {
        // What is said after a lie may be one, too.
        let packets = if step.lies { &[] } else { step.packets };
        for packet in packets {
            if let Message::Whole { coordinator, slot, key, content } = packet.message() {
                let by = (coordinator, slot);
                // Each lane has slots of its own.
                let lanes = self.lanes();
                let mut written = self.written.iter().filter(|(_, written)| written.by == by);
                let written = written.find(|(at, _)| at.writer.lane(lanes) == packet.lane);
                let keys = &written.expect("it was sent before").1.keys;
                let value = Some(value_text(content, None));
                let is_told = keys.contains(&(text(key), value)) || self.has_guessed.get();
                assert!(is_told, "{content:?} is not what {by:?} left");
            }
            let Message::Update(update) = packet.message() else { continue };
            let by = (update.coordinator, update.slot);
            let items = update.items.iter();
            let keys = items.map(|item| {
                let value = self.value_of(step.node, update.version, &item);
                (text(item.key), value)
            });
            let written = Written { by, keys: keys.collect() };
            let known = self.written.entry(update.version).or_insert_with(|| written.clone());
            // After the loss of all power one that was overwritten may leave out what it changed in place.
            let is_part = written.keys.iter().all(|key| known.keys.contains(key));
            let is_less = known.by == by && is_part && written.keys.len() < known.keys.len();
            if !is_less {
                let is_same = *known == written || known.by == by && self.has_guessed.get();
                assert!(is_same, "a version is one transaction's: {known:?} and {written:?}");
                *known = written;
            }
            if let Some(answered) = update.call {
                let name = (answered.call.lease, answered.call.sequence);
                self.attempts.entry(name).or_default().insert(update.version);
            }
        }
    }
}

impl Replicas {
    /// What a transaction leaves in a key, as a node tells others.
    fn value_of(&self, node: u16, version: Timestamp, item: &Item<'_>) -> Option<String> {
        let content = item.content?;
        let Some(base) = item.base else { return Some(value_text(content, None)) };
        let key = text(item.key);
        let of = |version: Timestamp| {
            let keys = &self.written.get(&version)?.keys;
            Some(keys.iter().find(|(name, _)| *name == key)?.1.clone())
        };
        match (of(base), of(version)) {
            (Some(base), _) => {
                let base = base.expect("what is changed in place is there");
                Some(base + &appended(content.bytes))
            }
            (None, Some(known)) => known,
            // Its base was written when nobody followed, and later changes may have been made in this step.
            (None, None) => {
                let (_, value) = read(&self.stores.borrow()[&node], &key).expect("it is there");
                let (value, tail) = (value.unwrap_or_default(), appended(content.bytes));
                let mut ends = value.match_indices(&tail).map(|(at, found)| at + found.len());
                let is_whole =
                    |end: &usize| value[*end..].is_empty() || value[*end..].starts_with(',');
                // They may have replaced it.
                self.has_guessed.set(true);
                Some(ends.find(is_whole).map_or(tail, |end| value[..end].to_owned()))
            }
        }
    }
}

/// A record: its words and its value.
fn read(store: &Store<Meta>, key: &str) -> Option<(Meta, Option<String>)> {
    let mut bytes = Vec::new();
    let hash = hash_key(key.as_bytes());
    let (snapshot, large) = store.read_large(key.as_bytes(), hash, &store.pin())?;
    if large.is_none() {
        store.read(key.as_bytes(), hash, &store.pin(), &mut bytes)?;
    }
    let value = snapshot.value.map(|ValueInfo { kind, expire_at, .. }| {
        value_text(Content { bytes: &bytes, kind, expire_at }, large.as_ref())
    });
    Some((snapshot.meta, value))
}

/// Whether a message is of a replica that copies what there is, or of its donor.
pub(crate) fn is_copy(packet: &Packet<Replicas>) -> bool {
    [
        "copy_read",
        "copy",
        "calls_read",
        "calls",
        "compare",
        "compared",
        "difference_read",
        "difference",
    ]
    .contains(&packet.kind())
}

/// A cluster of replicas.
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

impl Cluster {
    /// Nodes 1 to `count`, all active in epoch 1.
    pub(crate) fn new(count: u16) -> Self {
        Self::of(Replicas::default(), count, |_| 0, u64::from)
    }

    /// Nodes that keep collections large from so many bytes on, and two replicas of each key if there are
    /// four.
    pub(crate) fn large(count: u16, packed_bytes_max: fn(u16) -> usize) -> Self {
        let (replicas, packed_bytes_max) =
            (Some(if count == 4 { 2 } else { 3 }), Some(packed_bytes_max));
        let replicas = Replicas { replicas, packed_bytes_max, ..Replicas::default() };
        Self::of(replicas, count, |_| 0, u64::from)
    }

    pub(crate) fn of(
        replicas: Replicas,
        count: u16,
        ahead: impl FnMut(u16) -> i64,
        seed: impl Fn(u16) -> u64,
    ) -> Self {
        Self::with_spares(replicas, count, 0, ahead, seed)
    }

    /// The same, with more nodes that are no members.
    pub(crate) fn with_spares(
        replicas: Replicas,
        count: u16,
        spares: u16,
        ahead: impl FnMut(u16) -> i64,
        seed: impl Fn(u16) -> u64,
    ) -> Self {
        Self::logging(replicas, Logs::None, (count, spares), ahead, seed)
    }

    /// The same, with disks.
    pub(crate) fn logging(
        replicas: Replicas,
        logs: Logs,
        (count, spares): (u16, u16),
        mut ahead: impl FnMut(u16) -> i64,
        seed: impl Fn(u16) -> u64,
    ) -> Self {
        let mut cluster = Self(quorate_harness::Cluster::new(replicas));
        cluster.keep_logs(logs);
        cluster.subject.forgets_the_gone = logs != Logs::None;
        let all = 1..=count + spares;
        all.for_each(|node| cluster.start_ahead(node, seed(node), ahead(node)));
        let roles: Vec<_> = (1..=count).map(|node| (node, Role::Active)).collect();
        cluster.install(&roles);
        match logs {
            Logs::Async | Logs::Mixed => cluster.deliver_unflushed(),
            Logs::None | Logs::Sync => cluster.deliver_all(),
        }
        cluster.fresh_packets.clear();
        cluster
    }

    /// Delivers everything, and no log is flushed.
    pub(crate) fn deliver_unflushed(&mut self) {
        loop {
            self.deliver_all_mail();
            let Some(packet) = self.pool.first().cloned() else { return };
            self.pool.remove(0);
            self.inject(&packet);
        }
    }

    /// Runs a transaction to its end, of which no log is durable.
    #[track_caller]
    pub(crate) fn run_unflushed(&mut self, node: u16, text: &str) {
        let tag = self.submit(node, text);
        self.deliver_unflushed();
        self.read_by(tag);
    }

    /// The power of nodes 1 to `count` goes, and nothing is left of what was not durable. All come back.
    pub(crate) fn lose_power(&mut self, count: u16) {
        (1..=count).for_each(|node| self.cut_power_unflushed(node));
        self.pool.clear();
        (1..=count).for_each(|node| self.restart(node, u64::from(node)));
        let roles: Vec<_> = (1..=count).map(|node| (node, Role::Active)).collect();
        self.install(&roles);
    }

    /// The power of three nodes goes, and node 2 alone comes back as a member that has everything.
    pub(crate) fn go_on_from_node_2(&mut self) {
        (1..=3).for_each(|node| self.cut_power_unflushed(node));
        self.restart(2, 8);
        [1, 3].into_iter().for_each(|node| self.start(node, u64::from(node)));
        self.install(&[(1, Role::Shadow), (2, Role::Active), (3, Role::Shadow)]);
    }

    /// Starts a process whose wall clock is ahead by so many nanoseconds.
    pub(crate) fn start_ahead(&mut self, node: u16, seed: u64, ahead: i64) {
        self.start(node, seed);
        self.set_clock(node, Clock { ahead, ..Clock::default() });
    }

    /// Starts a process that restores what its node's disk has, with such a clock.
    pub(crate) fn restart_ahead(&mut self, node: u16, seed: u64, ahead: i64) {
        self.restart(node, seed);
        self.set_clock(node, Clock { ahead, ..Clock::default() });
    }

    /// A client of its own asks; the tag names the op.
    pub(crate) fn submit(&mut self, node: u16, text: &str) -> u64 {
        self.0.submit(node, txn(text))
    }

    /// A client of its own tries a call.
    pub(crate) fn call(&mut self, node: u16, permit: Permit, text: &str) -> u64 {
        let origin = self.tag().0;
        self.call_on(node, 0, origin, permit, txn(text))
    }

    /// The same on a lane.
    pub(crate) fn call_on(
        &mut self,
        node: u16,
        lane: u16,
        origin: u64,
        permit: Permit,
        command: Txn,
    ) -> u64 {
        self.advance(Duration::from_nanos(1));
        let tag = self.tag();
        let request = Request { origin, command };
        self.act_on(node, lane, |machine, now, out| machine.call(now, tag, permit, request, out));
        tag.0
    }

    /// What a node knows of a call whose home key is this one: its answer, if it is completed.
    pub(crate) fn record_of(&self, node: u16, home: &str, call: &Call) -> Option<Reply> {
        let shard = placement::shard_of(home.as_bytes()) as u8;
        match self.machine_of(node, home).tracker(shard)?.find(call) {
            Ok(Found::Completed(answer)) => Txn::decode_reply(answer),
            _ => None,
        }
    }

    /// The values that a finished transaction has read, in order.
    #[track_caller]
    pub(crate) fn read_by(&self, tag: u64) -> Vec<Option<&str>> {
        match self.outcome(tag) {
            Some(Outcome::Done(reply)) => reply.iter().map(|seen| seen.value.as_deref()).collect(),
            other => panic!("op {tag}: {other:?}"),
        }
    }

    /// Runs a transaction to its end in a healthy cluster.
    #[track_caller]
    pub(crate) fn run(&mut self, node: u16, text: &str) -> Vec<Option<String>> {
        let tag = self.submit(node, text);
        self.deliver_all();
        self.read_by(tag).into_iter().map(|value| value.map(str::to_owned)).collect()
    }

    /// A record of a node: its words and its value.
    pub(crate) fn record(&self, node: u16, key: &str) -> Option<(Meta, Option<String>)> {
        let stores = self.subject.stores.borrow();
        read(&stores[&node], key)
    }

    /// The machine of a key's lane.
    pub(crate) fn machine_of(&self, node: u16, key: &str) -> &Node {
        let lane = lane_of_key(key.as_bytes(), self.subject.lanes());
        &self.hosts[&node].machines[usize::from(lane.0)]
    }

    /// Asks a lane of a node.
    pub(crate) fn submit_on(&mut self, node: u16, lane: u16, origin: u64, txn: Txn) -> u64 {
        self.advance(Duration::from_nanos(1));
        let tag = self.tag();
        self.act_on(node, lane, |machine, now, out| machine.submit(now, tag, origin, txn, out));
        tag.0
    }

    /// Whether every lane of a node has copied what it holds.
    pub(crate) fn is_caught_up(&self, node: u16) -> bool {
        self.hosts[&node].machines.iter().all(Node::is_caught_up)
    }

    /// Whether every lane of a node acts in an epoch.
    pub(crate) fn is_in_epoch(&self, node: u16, epoch: Epoch) -> bool {
        self.hosts[&node].machines.iter().all(|machine| machine.epoch() == epoch)
    }

    /// Transactions of a node that are not answered.
    pub(crate) fn pending(&self, node: u16) -> usize {
        self.hosts[&node].machines.iter().map(Node::pending).sum()
    }

    pub(crate) fn meta(&self, node: u16, key: &str) -> Meta {
        self.record(node, key).map(|(meta, _)| meta).unwrap_or_default()
    }

    /// The number of a node in the latest view.
    pub(crate) fn number(&self, node: u16) -> MemberNumber {
        self.view.member(NodeId(node)).expect("it is a member").number
    }

    /// The live members of a key's group in the latest view.
    pub(crate) fn group(&self, key: &str) -> Vec<u16> {
        let node = self.view.live().first().expect("a live node");
        let group = self.hosts[&node.0].machine().group_of(key.as_bytes());
        group.into_iter().map(|node| node.0).collect()
    }

    /// The nodes that would let a transaction write a key.
    pub(crate) fn writers(&self, key: &str) -> Vec<u16> {
        let live = self.view.live().into_iter().map(|node| node.0);
        let writes = |node: &u16| {
            let machine = self.machine_of(*node, key);
            self.hosts[node].up && machine.may_write(&self.meta(*node, key), key.as_bytes())
        };
        live.filter(writes).collect()
    }

    /// The nodes that keep a copy of a key because they read it often, as its owner knows.
    pub(crate) fn extra_readers(&self, key: &str) -> Vec<u16> {
        let owner = *self.writers(key).first().expect("it has an owner");
        let readers = self.machine_of(owner, key).extra_readers_of(key.as_bytes());
        readers.into_iter().map(|node| node.0).collect()
    }

    /// After all is delivered: nothing is under way, the group agrees on each owner and value, and
    /// nobody else has a copy but the owner and its extra readers.
    #[track_caller]
    pub(crate) fn assert_quiet(&self, keys: impl IntoIterator<Item = String>) {
        for node in self.view.live() {
            for (lane, machine) in self.hosts[&node.0].machines.iter().enumerate() {
                assert!(machine.is_at_rest(), "something is under way at lane {lane} of {node}");
            }
        }
        for key in keys {
            let live = self.view.live().into_iter().map(|node| node.0);
            let floor = live.clone().map(|node| self.machine_of(node, &key).floor()).max();
            let floor = floor.expect("a live node");
            let group = self.group(&key);
            let (mut seen, mut copies, mut extra) = (Vec::new(), Vec::new(), Vec::new());
            for node in live {
                let record = self.record(node, &key);
                let owner = record.as_ref().map(|(meta, _)| meta.owner);
                let is_owner = owner == Some(self.number(node));
                if let Some((meta, value)) = &record
                    && meta.extra == Extra::Kept
                {
                    assert!(!group.contains(&node), "{key} at {node} of its group");
                    assert_eq!(meta.data, DataState::Valid, "{key} at {node}");
                    extra.push(node);
                    copies.push((meta.version, value.clone()));
                    continue;
                }
                if !group.contains(&node) && !is_owner {
                    assert_eq!(record, None, "{key} is kept at {node}");
                    continue;
                }
                let (meta, value) = record.unwrap_or_default();
                let states = (meta.data, meta.state);
                assert_eq!(states, (DataState::Valid, OwnerState::Valid), "{key} at {node}");
                // A record of an absent key may be made before its node hears of the floor.
                let is_below = value.is_none() && meta.version <= floor;
                let version = if is_below { Timestamp::ZERO } else { meta.version };
                // A borrower says nothing of the owner.
                let is_default = meta.owner == MemberNumber(0) && meta.round <= floor;
                let is_gone =
                    self.view.live().into_iter().all(|it| self.number(it.0) != meta.owner);
                let is_forgotten = is_gone && self.subject.forgets_the_gone;
                let (round, owner) = match is_default || is_forgotten {
                    true => (Timestamp::ZERO, MemberNumber(0)),
                    false => (meta.round, meta.owner),
                };
                seen.push((version, round, owner, value));
            }
            seen.dedup();
            assert!(seen.len() <= 1, "{key} differs: {seen:?}");
            assert_eq!(self.writers(&key).len(), 1, "{key} has one owner");
            assert_eq!(self.extra_readers(&key), extra, "copies of {key}");
            for copy in copies {
                let of_group = (seen[0].0, seen[0].3.clone());
                assert_eq!(copy, of_group, "{key} differs at an extra reader");
            }
        }
    }
}
