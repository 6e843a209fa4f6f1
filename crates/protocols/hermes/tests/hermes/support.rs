//! Some machines, a pool of messages that the test delivers by hand, and virtual time.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use quorate_hermes::{Config, Forward, Hermes, Message, Meta, Request, State};
use quorate_machine::{
    Command, Effects, Event, Machine, MapTable, NoObject, Object, Outcome, Record, Rng, Table,
};
use quorate_rifl::{Call, Found, Grant, Permit, Sessions, owner_of};
use quorate_types::{
    Duration, Epoch, Incarnation, Instant, Member, MemberNumber, NodeId, Now, Role, Tag, Timestamp,
    UnixMillis, View, limits,
};
use quorate_wire::Writer;

use crate::op::{Op, Reply};

pub(crate) type NodeOf<V> = Hermes<MapTable<Meta, V>, Op>;
pub(crate) type Node = NodeOf<NoObject>;

/// The message loss timeout of every test.
pub(crate) const MLT: Duration = Duration::from_millis(20);

/// How far from its date a permit of a test reaches, in nanoseconds.
pub(crate) const TERM: u64 = 1_000_000_000_000;

/// Wall time at the start of every test.
pub(crate) const WALL: u64 = 1_000_000;

/// What one step did.
#[derive(Default)]
pub(crate) struct Outbox {
    pub(crate) node: NodeId,
    pub(crate) sent: Vec<(NodeId, Vec<u8>)>,
    pub(crate) completed: Vec<(Tag, Outcome<Reply>)>,
    pub(crate) ignored: Vec<&'static str>,
    pub(crate) probes: Vec<&'static str>,
}

impl<V: Object> Effects<NodeOf<V>> for Outbox {
    fn send(&mut self, to: NodeId, message: &Message<'_>) {
        assert_ne!(to, self.node, "a node sends nothing to itself");
        self.sent.push((to, encoded(message)));
    }

    fn complete(&mut self, tag: Tag, outcome: Outcome<Reply>) {
        self.completed.push((tag, outcome));
    }

    fn ignored(&mut self, reason: &'static str) {
        self.ignored.push(reason);
    }

    fn probe(&mut self, name: &'static str) {
        assert!(
            <Node as quorate_machine::Protocol>::PROBES.contains(&name),
            "{name:?} is not listed in PROBES"
        );
        self.probes.push(name);
    }
}

pub(crate) fn encoded(message: &Message<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(&mut Writer(&mut bytes));
    assert!(bytes.len() <= limits::MESSAGE_BYTES_MAX, "a message of {} bytes", bytes.len());
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

/// A message under way.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) from: NodeId,
    pub(crate) to: NodeId,
    pub(crate) epoch: Epoch,
    pub(crate) bytes: Vec<u8>,
}

impl Packet {
    pub(crate) fn message(&self) -> Message<'_> {
        Message::decode(&self.bytes).expect("machines send well-formed messages")
    }

    pub(crate) fn kind(&self) -> &'static str {
        kind(&self.message())
    }

    /// Whether the message is of this kind, between these nodes; 0 stands for any.
    pub(crate) fn is(&self, from: u16, to: u16, wanted: &str) -> bool {
        (from == 0 || self.from.0 == from)
            && (to == 0 || self.to.0 == to)
            && (wanted == "any" || self.kind() == wanted)
    }
}

impl std::fmt::Debug for Packet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}->{} e{} {}", self.from, self.to, self.epoch, describe(&self.message()))
    }
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
        Message::Forward(_) => "forward",
        Message::Forwarded { .. } => "forwarded",
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
        Message::Forward(Forward { sequence, .. }) | Message::Forwarded { sequence, .. } => {
            write!(text, " #{sequence}").expect("to a string");
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
        Outcome::Refused(why) => format!("refused, {why:?}"),
        Outcome::Unknown => "unknown".to_owned(),
    }
}

/// One process.
pub(crate) struct Host<V: Object> {
    pub(crate) machine: NodeOf<V>,
    pub(crate) incarnation: Incarnation,
    pub(crate) up: bool,
}

/// The whole stage, with packed values.
pub(crate) type Cluster = ClusterOf<NoObject>;

/// The whole stage.
pub(crate) struct ClusterOf<V: Object> {
    pub(crate) hosts: BTreeMap<u16, Host<V>>,
    pub(crate) pool: Vec<Packet>,
    pub(crate) now: Now,
    pub(crate) view: View,
    pub(crate) outcomes: BTreeMap<u64, Outcome<Reply>>,
    /// Answers since the test last looked, in order.
    pub(crate) fresh_outcomes: Vec<(u64, Outcome<Reply>)>,
    /// Messages sent since the test last looked, in order.
    pub(crate) fresh_packets: Vec<Packet>,
    pub(crate) ignored: BTreeMap<&'static str, u64>,
    pub(crate) probes: BTreeMap<&'static str, u64>,
    /// Whether every step ends a loop turn.
    pub(crate) flushes: bool,
    /// Whether every step is followed by a check of the machine's invariants.
    pub(crate) checks: bool,
    next_tag: u64,
    next_incarnation: u64,
    configure: fn(&mut Config),
}

impl<V: Object> ClusterOf<V> {
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
        let mut cluster = Self {
            hosts: BTreeMap::new(),
            pool: Vec::new(),
            now: Now { monotonic: Instant(1_000_000_000), unix: UnixMillis(WALL).into() },
            view: View { cluster: Incarnation(1), ..View::default() },
            outcomes: BTreeMap::new(),
            fresh_outcomes: Vec::new(),
            fresh_packets: Vec::new(),
            ignored: BTreeMap::new(),
            probes: BTreeMap::new(),
            flushes: true,
            checks: true,
            next_tag: 1,
            next_incarnation: 1,
            configure,
        };
        for node in 1..=count {
            cluster.start(node, seed(node));
        }
        let roles: Vec<(u16, Role)> = (1..=count).map(|node| (node, Role::Active)).collect();
        cluster.install(&roles);
        cluster
    }

    /// Starts a process that remembers nothing, under a fresh incarnation.
    pub(crate) fn start(&mut self, node: u16, seed: u64) {
        let incarnation = Incarnation(self.next_incarnation);
        self.next_incarnation += 1;
        let mut config = Config::new(NodeId(node), incarnation, seed);
        config.message_loss_timeout = MLT;
        (self.configure)(&mut config);
        let machine = Hermes::new(config, MapTable::default());
        self.hosts.insert(node, Host { machine, incarnation, up: true });
    }

    /// The view after this one, with these roles; a process that was not in the last one gets a
    /// fresh number. Nobody is told.
    pub(crate) fn decide(&mut self, roles: &[(u16, Role)]) -> View {
        let mut last_number = self.view.last_number;
        let mut members = Vec::new();
        for &(node, role) in roles {
            let incarnation = self.hosts[&node].incarnation;
            let old = self.view.member(NodeId(node));
            let number = match old.filter(|old| old.incarnation == incarnation) {
                Some(old) => old.number,
                None => {
                    last_number = MemberNumber(last_number.0 + 1);
                    last_number
                }
            };
            members.push(Member {
                node: NodeId(node),
                incarnation,
                number,
                role,
                peer_address: String::new(),
                client_address: String::new(),
                admin_address: String::new(),
            });
        }
        let (epoch, cluster) = (Epoch(self.view.epoch.0 + 1), self.view.cluster);
        self.view = View { epoch, cluster, members, last_number };
        self.view.clone()
    }

    /// The next view will be the first of another cluster.
    pub(crate) fn found_anew(&mut self) {
        let cluster = Incarnation(self.view.cluster.0 + 1);
        self.view = View { cluster, ..View::default() };
    }

    /// Decides a view and tells every process that is up.
    pub(crate) fn install(&mut self, roles: &[(u16, Role)]) {
        let view = self.decide(roles);
        let nodes: Vec<u16> = self.hosts.keys().copied().collect();
        for node in nodes {
            self.install_on(node, &view);
        }
    }

    /// The members of the last view with this one's role changed.
    pub(crate) fn roles_with(&self, node: u16, role: Role) -> Vec<(u16, Role)> {
        let others = self.view.members.iter().map(|member| (member.node.0, member.role));
        let mut roles: BTreeMap<u16, Role> = others.collect();
        roles.insert(node, role);
        roles.into_iter().collect()
    }

    pub(crate) fn install_on(&mut self, node: u16, view: &View) {
        self.step(node, Event::View(view));
    }

    /// A process ends; what is under way to it is lost.
    pub(crate) fn crash(&mut self, node: u16) {
        self.hosts.get_mut(&node).expect("a known node").up = false;
        self.pool.retain(|packet| packet.to.0 != node);
    }

    /// Crashes a process and tells the others in a view.
    pub(crate) fn expel(&mut self, node: u16) {
        self.crash(node);
        let roles = self.roles_with(node, Role::Down);
        self.install(&roles);
    }

    /// Starts a crashed process anew, as a shadow.
    pub(crate) fn rejoin(&mut self, node: u16) {
        self.start(node, u64::from(node) * 7919 + self.next_incarnation);
        let roles = self.roles_with(node, Role::Shadow);
        self.install(&roles);
    }

    /// A process that stood still while the others went on without it goes on: a new life.
    pub(crate) fn wake(&mut self, node: u16) {
        let incarnation = Incarnation(self.next_incarnation);
        self.next_incarnation += 1;
        let host = self.hosts.get_mut(&node).expect("a known node");
        (host.incarnation, host.up) = (incarnation, true);
        self.act(node, |machine, now, outbox| machine.reset(now, incarnation, outbox));
    }

    /// The same, and a view has it as a shadow.
    pub(crate) fn come_back(&mut self, node: u16) {
        self.wake(node);
        let roles = self.roles_with(node, Role::Shadow);
        self.install(&roles);
    }

    pub(crate) fn step(&mut self, node: u16, event: Event<'_, NodeOf<V>>) {
        self.act(node, |machine, now, outbox| machine.step(now, event, outbox));
    }

    fn act(&mut self, node: u16, act: impl FnOnce(&mut NodeOf<V>, Now, &mut Outbox)) {
        let host = self.hosts.get_mut(&node).expect("a known node");
        if !host.up {
            return;
        }
        let mut outbox = Outbox { node: NodeId(node), ..Outbox::default() };
        act(&mut host.machine, self.now, &mut outbox);
        if self.flushes {
            host.machine.flush(self.now, &mut outbox);
        }
        if self.checks {
            host.machine.check_invariants();
        }
        self.carry_out(node, outbox);
    }

    /// Ends a loop turn of a node.
    pub(crate) fn flush(&mut self, node: u16) {
        let host = self.hosts.get_mut(&node).expect("a known node");
        let mut outbox = Outbox { node: NodeId(node), ..Outbox::default() };
        host.machine.flush(self.now, &mut outbox);
        self.carry_out(node, outbox);
    }

    fn carry_out(&mut self, node: u16, outbox: Outbox) {
        let epoch = self.hosts[&node].machine.epoch();
        for (to, bytes) in outbox.sent {
            let packet = Packet { from: NodeId(node), to, epoch, bytes };
            self.fresh_packets.push(packet.clone());
            if self.hosts.get(&to.0).is_some_and(|host| host.up) {
                self.pool.push(packet);
            }
        }
        for (tag, outcome) in outbox.completed {
            let before = self.outcomes.insert(tag.0, outcome.clone());
            assert_eq!(before, None, "op {} is answered once", tag.0);
            self.fresh_outcomes.push((tag.0, outcome));
        }
        for reason in outbox.ignored {
            *self.ignored.entry(reason).or_default() += 1;
        }
        for name in outbox.probes {
            *self.probes.entry(name).or_default() += 1;
        }
    }

    /// A client of its own asks; the tag names the op.
    pub(crate) fn submit(&mut self, node: u16, op: Op) -> u64 {
        let origin = 1_000_000 + self.next_tag;
        self.submit_as(node, origin, op)
    }

    pub(crate) fn submit_as(&mut self, node: u16, origin: u64, op: Op) -> u64 {
        let tag = self.next_tag;
        self.next_tag += 1;
        let event = Event::Request { tag: Tag(tag), request: Request { origin, command: op } };
        self.step(node, event);
        tag
    }

    /// A session's client asks, under a grant of the lease's present owner; the tag names the try.
    pub(crate) fn call(&mut self, node: u16, call: Call, op: Op) -> u64 {
        let permit = self.permit(call);
        self.call_with(node, permit, op)
    }

    pub(crate) fn call_with(&mut self, node: u16, permit: Permit, op: Op) -> u64 {
        let tag = self.next_tag;
        self.next_tag += 1;
        let request = Request { origin: 1_000_000 + tag, command: op };
        self.act(node, |machine, now, outbox| {
            machine.call(now, Tag(tag), permit, request, outbox);
        });
        tag
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

    pub(crate) fn outcome(&self, tag: u64) -> Option<&Outcome<Reply>> {
        self.outcomes.get(&tag)
    }

    #[track_caller]
    pub(crate) fn assert_done(&self, tag: u64, reply: Reply) {
        assert_eq!(self.outcome(tag), Some(&Outcome::Done(reply)), "op {tag}");
    }

    #[track_caller]
    pub(crate) fn assert_open(&self, tag: u64) {
        assert_eq!(self.outcome(tag), None, "op {tag}");
    }

    /// Hands over a message without taking it out of the pool.
    pub(crate) fn inject(&mut self, packet: &Packet) {
        let event =
            Event::Message { from: packet.from, epoch: packet.epoch, body: packet.message() };
        self.step(packet.to.0, event);
    }

    /// Delivers the oldest message of this kind; 0 is any node, `any` any kind.
    #[track_caller]
    pub(crate) fn deliver(&mut self, from: u16, to: u16, kind: &str) -> Packet {
        let at = self.pool.iter().position(|packet| packet.is(from, to, kind));
        let Some(at) = at else { panic!("no {kind} {from}->{to} among {:#?}", self.pool) };
        let packet = self.pool.remove(at);
        self.inject(&packet);
        packet
    }

    /// Takes matching messages out of the pool: lost, or kept for later.
    pub(crate) fn take(&mut self, from: u16, to: u16, kind: &str) -> Vec<Packet> {
        let taken = self.pool.iter().filter(|packet| packet.is(from, to, kind)).cloned().collect();
        self.pool.retain(|packet| !packet.is(from, to, kind));
        taken
    }

    /// Delivers matching messages, and those that they cause, until there are none.
    pub(crate) fn deliver_some(&mut self, wanted: impl Fn(&Packet) -> bool) {
        let mut left = 1_000_000;
        while let Some(at) = self.pool.iter().position(&wanted) {
            left -= 1;
            assert!(left > 0, "messages beget messages without end");
            let packet = self.pool.remove(at);
            self.inject(&packet);
        }
    }

    pub(crate) fn deliver_all(&mut self) {
        self.deliver_some(|_| true);
    }

    /// Lets time pass without telling anybody.
    pub(crate) fn advance(&mut self, span: Duration) {
        self.now.monotonic += span;
        let nanos = self.now.monotonic.0 - 1_000_000_000;
        self.now.unix = UnixMillis(WALL + nanos / 1_000_000).into();
    }

    pub(crate) fn tick_node(&mut self, node: u16) {
        self.step(node, Event::Tick);
    }

    /// Lets time pass and ticks every process.
    pub(crate) fn tick(&mut self, span: Duration) {
        self.advance(span);
        let nodes: Vec<u16> = self.hosts.keys().copied().collect();
        for node in nodes {
            self.tick_node(node);
        }
    }

    /// Lets time pass from deadline to deadline, with every message delivered.
    pub(crate) fn run_for(&mut self, span: Duration) {
        let end = self.now.monotonic + span;
        loop {
            self.deliver_all();
            let up = self.hosts.values().filter(|host| host.up);
            let next = up.map(|host| host.machine.next_deadline()).min();
            let next = next.unwrap_or(end).max(self.now.monotonic + Duration::from_micros(100));
            if next >= end {
                break;
            }
            self.tick(next.since(self.now.monotonic));
        }
        self.tick(end.since(self.now.monotonic));
        self.deliver_all();
    }

    pub(crate) fn machine(&mut self, node: u16) -> &mut NodeOf<V> {
        &mut self.hosts.get_mut(&node).expect("a known node").machine
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

    pub(crate) fn probed(&self, name: &str) -> u64 {
        self.probes.get(name).copied().unwrap_or(0)
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
