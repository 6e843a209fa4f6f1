//! Hermes on the cluster of `quorate_harness`, and what tests ask of it.

use std::fmt::Write as _;
use std::ops::{Deref, DerefMut};

use quorate_engine::Place;
use quorate_harness::{Logs, Outbox, Process, Subject};
use quorate_hermes::{Config, Hermes, Message, Meta, Request, State};
use quorate_machine::{Command, MapTable, Outcome, Record, Rng, Table};
use quorate_rifl::{Call, Found, Grant, Permit, Sessions, owner_of};
use quorate_types::{Duration, Epoch, Incarnation, Now, Role, Timestamp};
use quorate_wire::Writer;

use crate::op::{Op, Reply};

/// The message loss timeout of every test.
pub(crate) const MLT: Duration = Duration::from_millis(20);

/// How far from its date a permit of a test reaches, in nanoseconds.
pub(crate) const TERM: u64 = 1_000_000_000_000;

/// Wall time at the start of every test, in milliseconds.
pub(crate) const WALL: u64 = quorate_harness::WALL / 1_000_000;

pub(crate) type Node = Hermes<MapTable<Meta>, Op>;
pub(crate) type Packet = quorate_harness::Packet<Replicas>;

/// Replicas.
pub(crate) struct Replicas {
    configure: fn(&mut Config),
    /// Beyond how many bytes a collection is large, at each node.
    packed_bytes_max: fn(u16) -> usize,
}

impl Subject for Replicas {
    type Machine = Node;

    fn start(&self, process: Process) -> Node {
        let mut config = Config::new(process.node, process.incarnation, process.seed);
        config.message_loss_timeout = MLT;
        (self.configure)(&mut config);
        Hermes::new(config, MapTable::new((self.packed_bytes_max)(process.node.0)))
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
        kind(message)
    }

    fn describe(message: &Message<'_>) -> String {
        describe(message)
    }

    fn end_turn(machine: &mut Node, now: Now, outbox: &mut Outbox<Self>) {
        machine.flush(now, outbox);
    }

    fn begin_life(
        machine: &mut Node,
        now: Now,
        incarnation: Incarnation,
        outbox: &mut Outbox<Self>,
    ) {
        machine.reset(now, incarnation, outbox);
    }
}

pub(crate) fn encoded(message: &Message<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(&mut Writer(&mut bytes));
    bytes
}

/// A seed whose first draws, and so the virtual ids of a machine's first updates, are these.
pub(crate) fn seed_for(salts: &[u8]) -> u64 {
    (0..)
        .find(|&seed| {
            let mut rng = Rng::new(seed);
            salts.iter().all(|&salt| rng.next_u64() as u8 == salt)
        })
        .expect("some seed begins like this")
}

pub(crate) fn kind(message: &Message<'_>) -> &'static str {
    match message {
        Message::Inv(_) => "inv",
        Message::Ack(_) => "ack",
        Message::Val(_) => "val",
        Message::MemberCheck { .. } => "mcheck",
        Message::MemberCheckAck { .. } => "mcheck_ack",
        Message::ChunkRead { .. } => "chunk_read",
        Message::Chunk(_) => "chunk",
        Message::ValueRead { .. } => "value_read",
        Message::Compare { .. } => "compare",
        Message::Compared { .. } => "compared",
        Message::DifferenceRead { .. } => "difference_read",
        Message::FloorPrepare { .. } => "floor_prepare",
        Message::FloorReady { .. } => "floor_ready",
        Message::FloorCommit { .. } => "floor_commit",
    }
}

/// `version.member`: virtual ids are left out, since they only break ties.
pub(crate) fn short(timestamp: Timestamp) -> String {
    format!("{}.{}", timestamp.version, timestamp.writer.member())
}

/// A message in words. Random names of rounds and requests are left out.
pub(crate) fn describe(message: &Message<'_>) -> String {
    let mut text = kind(message).to_owned();
    match message {
        Message::Inv(inv) => {
            let kind = if inv.rmw { "rmw" } else { "write" };
            let key = inv.key.escape_ascii();
            write!(text, " {key} {} {kind} ", short(inv.timestamp)).expect("to a string");
            match inv.content {
                None => text.push_str("(deleted)"),
                Some(content) if content.bytes.len() > 40 => {
                    write!(text, "({} bytes)", content.bytes.len()).expect("to a string");
                }
                Some(content) => {
                    write!(text, "{:?}", content.bytes.escape_ascii().to_string())
                        .expect("to a string");
                }
            }
            if let Some(completion) = inv.completion {
                let call = completion.call;
                write!(text, " call {:?}#{}", call.lease, call.sequence).expect("to a string");
            }
        }
        Message::Ack(ack) => {
            write!(text, " {}", short(ack.timestamp)).expect("to a string");
            if !ack.key.is_empty() {
                write!(text, " {}", ack.key.escape_ascii()).expect("to a string");
            }
        }
        Message::Val(val) => {
            write!(text, " {} {}", val.key.escape_ascii(), short(val.timestamp))
                .expect("to a string");
        }
        Message::MemberCheck { batch } | Message::MemberCheckAck { batch } => {
            write!(text, " {batch}").expect("to a string");
        }
        Message::Chunk(chunk) => {
            let end = if chunk.next.is_none() { " last" } else { "" };
            write!(text, "{end} floor {}", chunk.floor).expect("to a string");
        }
        Message::FloorPrepare { version, .. } | Message::FloorCommit { version, .. } => {
            write!(text, " {version}").expect("to a string");
        }
        Message::FloorReady { next_floor, .. } => {
            write!(text, " {next_floor}").expect("to a string");
        }
        Message::Compare { digests, .. } => {
            write!(text, " {} buckets", digests.len()).expect("to a string");
        }
        Message::Compared { buckets, .. } => {
            write!(text, " {} differ", buckets.len()).expect("to a string");
        }
        Message::DifferenceRead { buckets, held, .. } => {
            write!(text, " {} buckets, {} held", buckets.len(), held.len()).expect("to a string");
        }
        Message::ChunkRead { .. } | Message::ValueRead { .. } => {}
    }
    text
}

/// An answer in words.
pub(crate) fn describe_outcome(outcome: &Outcome<Reply>) -> String {
    match outcome {
        Outcome::Done(Reply::Ok) => "OK".to_owned(),
        Outcome::Done(Reply::Value(None)) => "absent".to_owned(),
        Outcome::Done(Reply::Value(Some(value))) => {
            format!("{:?}", value.escape_ascii().to_string())
        }
        Outcome::Done(Reply::Int(number)) => number.to_string(),
        Outcome::Done(Reply::NotANumber) => "not a number".to_owned(),
        Outcome::Done(Reply::Version(version)) => short(*version),
        Outcome::Refused(why) => format!("refused, {why:?}"),
        Outcome::Unknown => "unknown".to_owned(),
    }
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
    /// Nodes 1 to `count`, all active in epoch 1, with a larger node winning the first ties.
    pub(crate) fn new(count: u16) -> Self {
        Self::with(count, |_| {})
    }

    pub(crate) fn with(count: u16, configure: fn(&mut Config)) -> Self {
        Self::seeded(count, |node| seed_for(&[node as u8, node as u8]), configure)
    }

    pub(crate) fn seeded(
        count: u16,
        seed: impl Fn(u16) -> u64,
        configure: fn(&mut Config),
    ) -> Self {
        let replicas = Replicas { configure, packed_bytes_max: |_| usize::MAX };
        Self(quorate_harness::Cluster::founded(replicas, count, seed))
    }

    /// Nodes 1 to `count` with disks, all active in epoch 1.
    pub(crate) fn logging(
        count: u16,
        logs: Logs,
        seed: impl Fn(u16) -> u64,
        configure: fn(&mut Config),
        packed_bytes_max: fn(u16) -> usize,
    ) -> Self {
        let mut cluster = quorate_harness::Cluster::new(Replicas { configure, packed_bytes_max });
        cluster.keep_logs(logs);
        (1..=count).for_each(|node| cluster.start(node, seed(node)));
        cluster.found();
        Self(cluster)
    }

    /// Three nodes where collections of more bytes than that are large.
    pub(crate) fn large(seed: impl Fn(u16) -> u64, packed_bytes_max: fn(u16) -> usize) -> Self {
        let replicas = Replicas { configure: |_| {}, packed_bytes_max };
        Self(quorate_harness::Cluster::founded(replicas, 3, seed))
    }

    /// Where an op of a client of this node should run.
    pub(crate) fn place(&mut self, node: u16, op: &Op) -> Place {
        let now = self.now_at(node);
        self.machine(node).place(now, op)
    }

    /// A session's client asks, under a grant of the lease's present owner; the tag names the try.
    pub(crate) fn call(&mut self, node: u16, call: Call, op: Op) -> u64 {
        let permit = self.permit(call);
        self.call_with(node, permit, op)
    }

    pub(crate) fn call_with(&mut self, node: u16, permit: Permit, op: Op) -> u64 {
        let tag = self.tag();
        let request = Request { origin: 1_000_000 + tag.0, command: op };
        self.act(node, |machine, now, outbox| machine.call(now, tag, permit, request, outbox));
        tag.0
    }

    /// A permit for a call, dated now.
    pub(crate) fn permit(&self, call: Call) -> Permit {
        let owner = owner_of(&self.view, call.lease).expect("somebody is active").number;
        let date = self.now.monotonic.0;
        let grant = Grant { lease: call.lease, until: date + TERM, owner };
        Permit { call, grant, date }
    }

    /// The answer that a replica has a record of.
    pub(crate) fn record(&mut self, node: u16, call: &Call) -> Option<Reply> {
        match self.machine(node).tracker().find(call) {
            Ok(Found::Completed(answer)) => Op::decode_reply(answer),
            _ => None,
        }
    }

    #[track_caller]
    pub(crate) fn assert_done(&self, tag: u64, reply: Reply) {
        assert_eq!(self.outcome(tag), Some(&Outcome::Done(reply)), "op {tag}");
    }

    pub(crate) fn meta(&mut self, node: u16, key: &str) -> Meta {
        let table = self.machine(node).table_mut();
        table.find(key.as_bytes()).map_or(Meta::default(), |handle| table.lock(handle).meta())
    }

    pub(crate) fn state(&mut self, node: u16, key: &str) -> State {
        self.meta(node, key).state
    }

    /// What the record holds, readable or not.
    pub(crate) fn stored(&mut self, node: u16, key: &str) -> Option<String> {
        let table = self.machine(node).table_mut();
        let handle = table.find(key.as_bytes())?;
        let record = table.lock(handle);
        let bytes = record.content()?.bytes.to_vec();
        Some(String::from_utf8(bytes).expect("tests store text"))
    }

    /// Whether there is a record, be it a tombstone.
    pub(crate) fn has_record(&mut self, node: u16, key: &str) -> bool {
        self.machine(node).table().find(key.as_bytes()).is_some()
    }

    /// A count of the machine, by its name.
    pub(crate) fn counter(&mut self, node: u16, name: &str) -> u64 {
        let counters = self.machine(node).counters();
        counters.iter().find(|(known, _)| *known == name).expect("a counter of this name").1
    }

    /// Runs an op to its end in a healthy cluster.
    #[track_caller]
    pub(crate) fn run(&mut self, node: u16, op: Op) -> Reply {
        let tag = self.submit(node, op);
        self.deliver_all();
        match self.outcome(tag) {
            Some(Outcome::Done(reply)) => reply.clone(),
            other => panic!("op {tag}: {other:?}"),
        }
    }

    /// Asserts that all live replicas hold the same readable value.
    #[track_caller]
    pub(crate) fn assert_everywhere(&mut self, key: &str, value: Option<&str>) {
        for member in self.view.members.clone() {
            if member.role == Role::Down {
                continue;
            }
            let node = member.node.0;
            assert_eq!(self.state(node, key), State::Valid, "{key} at {node}");
            assert_eq!(self.stored(node, key).as_deref(), value, "{key} at {node}");
        }
    }
}
