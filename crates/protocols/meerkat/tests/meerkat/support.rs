//! Some machines, a pool of messages that the test delivers by hand, and virtual time.
//!
//! Beside the stage stands a ledger: what every transaction did, and how it ended. No transaction
//! ever ends in two ways, wherever and whenever somebody says how it did.

use std::collections::{BTreeMap, BTreeSet};

use quorate_machine::{Completion, Effects, Event, Machine, MapTable, Outcome};
use quorate_meerkat::{
    Answered, Config, Isolation, Kind, Mail, Meerkat, Merged, Message, Meta, Request,
};
use quorate_rifl::{LeaseId, Permit, Sessions as _};
use quorate_types::{
    Duration, Epoch, Incarnation, Instant, LaneId, Member, MemberNumber, NodeId, Now, Role, Tag,
    Timestamp, UnixNanos, View,
};

use crate::entries::{Entry, entries};
use crate::packets::{Packet, body_of, encoded, id_of};
use crate::txn::{Reply, Txn, txn};

pub(crate) use crate::entries::body_bytes;

pub(crate) type Node = Meerkat<MapTable<Meta>, Txn>;

/// The message loss timeout of every test.
pub(crate) const MLT: Duration = Duration::from_millis(20);

/// Wall time at the start of every test, in nanoseconds.
pub(crate) const WALL: u64 = 1_000_000_000_000;

/// What a machine said, in order.
enum Said {
    Sent(NodeId, Vec<u8>),
    Completed(Tag, Outcome<Reply>, Option<Timestamp>),
}

/// What one step did.
#[derive(Default)]
struct Outbox {
    node: NodeId,
    said: Vec<Said>,
    ignored: Vec<&'static str>,
    refused: Vec<&'static str>,
    probes: Vec<&'static str>,
}

impl Effects<Node> for Outbox {
    fn send(&mut self, to: NodeId, message: &Message<'_>) {
        assert_ne!(to, self.node, "a node sends nothing to itself");
        self.said.push(Said::Sent(to, encoded(message)));
    }

    fn complete(&mut self, tag: Tag, outcome: Outcome<Reply>) {
        self.said.push(Said::Completed(tag, outcome, None));
    }

    fn complete_on(&mut self, tag: Tag, completion: Completion<Outcome<Reply>>) {
        self.said.push(Said::Completed(tag, completion.outcome, completion.at));
    }

    fn mail(&mut self, to: LaneId, mail: Mail) {
        panic!("a node of one lane has nobody to tell {to:?} {mail:?}");
    }

    fn ignored(&mut self, reason: &'static str) {
        self.ignored.push(reason);
    }

    fn refused(&mut self, reason: &'static str) {
        self.refused.push(reason);
    }

    fn probe(&mut self, name: &'static str) {
        assert!(
            <Node as quorate_machine::Protocol>::PROBES.contains(&name),
            "{name:?} is not listed in PROBES"
        );
        self.probes.push(name);
    }
}

/// One process.
pub(crate) struct Host {
    pub(crate) machine: Node,
    pub(crate) incarnation: Incarnation,
    pub(crate) up: bool,
    /// How far its wall clock is ahead, in nanoseconds.
    pub(crate) ahead: i64,
}

/// What is known of all transactions.
#[derive(Default)]
pub(crate) struct Ledger {
    /// The sets of each attempt in each partition.
    sets: BTreeMap<(Timestamp, u16), Vec<Entry>>,
    /// The attempts at each call.
    pub(crate) calls: BTreeMap<(LeaseId, u64), BTreeSet<Timestamp>>,
    /// How it ended.
    pub(crate) ends: BTreeMap<Timestamp, bool>,
    /// The timestamp at which an answered transaction took effect.
    pub(crate) stamps: BTreeMap<u64, Timestamp>,
}

impl Ledger {
    /// What a transaction read and wrote; empty for a read-only one.
    pub(crate) fn sets_of(&self, id: Timestamp) -> impl Iterator<Item = &Entry> {
        self.sets.range((id, 0)..=(id, u16::MAX)).flat_map(|(_, entries)| entries)
    }

    pub(crate) fn end(&mut self, id: Timestamp, commit: bool) {
        let known = *self.ends.entry(id).or_insert(commit);
        assert_eq!(known, commit, "{id:?} ended in two ways");
    }
}

/// The whole stage.
pub(crate) struct Cluster {
    pub(crate) hosts: BTreeMap<u16, Host>,
    pub(crate) pool: Vec<Packet>,
    pub(crate) now: Now,
    pub(crate) view: View,
    pub(crate) outcomes: BTreeMap<u64, Outcome<Reply>>,
    /// Answers since the test last looked, in order.
    pub(crate) fresh_outcomes: Vec<(u64, Outcome<Reply>)>,
    /// Messages sent since the test last looked, in order.
    pub(crate) fresh_packets: Vec<Packet>,
    pub(crate) ignored: BTreeMap<&'static str, u64>,
    /// Why the lie that a test has just told was refused.
    refused: Option<&'static str>,
    pub(crate) lies: bool,
    pub(crate) probes: BTreeMap<&'static str, u64>,
    pub(crate) ledger: Ledger,
    /// Attempts in order of appearance, for traces.
    pub(crate) names: Vec<Timestamp>,
    next_tag: u64,
    next_incarnation: u64,
    pub(crate) configure: fn(&mut Config),
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

    /// Clocks that are ahead by so many nanoseconds, and machines with these seeds.
    pub(crate) fn seeded(
        count: u16,
        mut ahead: impl FnMut(u16) -> i64,
        seed: impl Fn(u16) -> u64,
        configure: fn(&mut Config),
    ) -> Self {
        let mut cluster = Self {
            hosts: BTreeMap::new(),
            pool: Vec::new(),
            now: Now { monotonic: Instant(1_000_000_000), unix: UnixNanos(WALL) },
            view: View { cluster: Incarnation(1), ..View::default() },
            outcomes: BTreeMap::new(),
            fresh_outcomes: Vec::new(),
            fresh_packets: Vec::new(),
            ignored: BTreeMap::new(),
            refused: None,
            lies: false,
            probes: BTreeMap::new(),
            ledger: Ledger::default(),
            names: Vec::new(),
            next_tag: 1,
            next_incarnation: 1,
            configure,
        };
        for node in 1..=count {
            cluster.start(node, seed(node), ahead(node));
        }
        let roles: Vec<(u16, Role)> = (1..=count).map(|node| (node, Role::Active)).collect();
        cluster.install(&roles);
        cluster.deliver_all();
        cluster.fresh_packets.clear();
        cluster
    }

    /// Starts a process that remembers nothing, under a fresh incarnation.
    pub(crate) fn start(&mut self, node: u16, seed: u64, ahead: i64) {
        let incarnation = Incarnation(self.next_incarnation);
        self.next_incarnation += 1;
        let mut config = Config::new(NodeId(node), incarnation, LaneId(0), 1, seed);
        config.message_loss_timeout = MLT;
        (self.configure)(&mut config);
        let machine = Meerkat::new(config, MapTable::default());
        self.hosts.insert(node, Host { machine, incarnation, up: true, ahead });
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

    /// The roles of the last view.
    pub(crate) fn roles(&self) -> Vec<(u16, Role)> {
        self.view.members.iter().map(|member| (member.node.0, member.role)).collect()
    }

    /// The same with this one's role changed.
    pub(crate) fn roles_with(&self, node: u16, role: Role) -> Vec<(u16, Role)> {
        let mut roles: BTreeMap<u16, Role> = self.roles().into_iter().collect();
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

    /// Crashes processes and tells the others in one view.
    pub(crate) fn expel(&mut self, nodes: &[u16]) {
        for &node in nodes {
            self.crash(node);
        }
        let mut roles = self.roles();
        for (_, role) in roles.iter_mut().filter(|(node, _)| nodes.contains(node)) {
            *role = Role::Down;
        }
        self.install(&roles);
    }

    /// An expelled process begins a new life, whatever it has heard of.
    pub(crate) fn begin_life(&mut self, node: u16) {
        let incarnation = Incarnation(self.next_incarnation);
        self.next_incarnation += 1;
        let now = self.now_at(node);
        let host = self.hosts.get_mut(&node).expect("a known node");
        host.incarnation = incarnation;
        let mut outbox = Outbox { node: NodeId(node), ..Outbox::default() };
        host.machine.reset(now, incarnation, &mut outbox);
        self.carry_out(node, outbox);
    }

    /// Starts a crashed process anew, as a shadow.
    pub(crate) fn rejoin(&mut self, node: u16) {
        self.start(node, u64::from(node) * 7919 + self.next_incarnation, 0);
        let roles = self.roles_with(node, Role::Shadow);
        self.install(&roles);
    }

    /// The time as a node's clocks show it.
    pub(crate) fn now_at(&self, node: u16) -> Now {
        let unix = UnixNanos(self.now.unix.0.saturating_add_signed(self.hosts[&node].ahead));
        Now { monotonic: self.now.monotonic, unix }
    }

    pub(crate) fn step(&mut self, node: u16, event: Event<'_, Node>) {
        let now = self.now_at(node);
        let host = self.hosts.get_mut(&node).expect("a known node");
        if !host.up {
            return;
        }
        let mut outbox = Outbox { node: NodeId(node), ..Outbox::default() };
        host.machine.step(now, event, &mut outbox);
        host.machine.check_invariants();
        self.carry_out(node, outbox);
    }

    fn carry_out(&mut self, node: u16, outbox: Outbox) {
        let epoch = self.hosts[&node].machine.epoch();
        for said in outbox.said {
            match said {
                Said::Sent(to, bytes) => {
                    let packet = Packet { from: NodeId(node), to, epoch, bytes };
                    self.note(&packet);
                    self.fresh_packets.push(packet.clone());
                    if self.hosts.get(&to.0).is_some_and(|host| host.up) {
                        self.pool.push(packet);
                    }
                }
                Said::Completed(tag, outcome, at) => {
                    let before = self.outcomes.insert(tag.0, outcome.clone());
                    assert_eq!(before, None, "op {} is answered once", tag.0);
                    if let Some(at) = at {
                        self.ledger.stamps.insert(tag.0, at);
                        if self.ledger.sets_of(at).next().is_some() {
                            self.ledger.end(at, true);
                        }
                    }
                    self.fresh_outcomes.push((tag.0, outcome));
                }
            }
        }
        for (key, record) in self.hosts[&node].machine.records() {
            if let Some(commit) = record.decision {
                self.ledger.end(key.id(), commit);
            }
        }
        for reason in outbox.refused {
            assert!(self.lies, "what a correct peer says is refused: {reason}");
            self.refused = Some(reason);
        }
        for reason in outbox.ignored {
            *self.ignored.entry(reason).or_default() += 1;
        }
        for name in outbox.probes {
            *self.probes.entry(name).or_default() += 1;
            if name == "meerkat: epoch released" {
                self.note_released(node);
            }
        }
    }

    fn note(&mut self, packet: &Packet) {
        let message = packet.message();
        if let Some(id) = id_of(&message.kind) {
            if !self.names.contains(&id) {
                self.names.push(id);
            }
            if let Some(body) = body_of(&message.kind) {
                let sets = entries(body);
                let part = (id, message.partition);
                let known = self.ledger.sets.entry(part).or_insert_with(|| sets.clone());
                assert!(self.lies || *known == sets, "{id:?} has two bodies: {known:?}, {sets:?}");
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

    /// What an epoch change has settled is final once anybody may act on it.
    fn note_released(&mut self, node: u16) {
        let Some(bytes) = self.hosts[&node].machine.merged() else { return };
        let merged = Merged::decode(bytes).expect("leaders send well-formed records");
        for (key, settled) in merged.settled {
            self.ledger.end(key.id(), settled.commit);
        }
    }

    /// A client of its own asks; the tag names the op.
    pub(crate) fn submit(&mut self, node: u16, text: &str) -> u64 {
        self.submit_as(node, 1_000_000 + self.next_tag, txn(text))
    }

    pub(crate) fn submit_as(&mut self, node: u16, origin: u64, txn: Txn) -> u64 {
        let tag = self.next_tag;
        self.next_tag += 1;
        let event = Event::Request { tag: Tag(tag), request: Request { origin, command: txn } };
        self.step(node, event);
        tag
    }

    /// A client's call, under a permit that the test makes up.
    pub(crate) fn call_as(&mut self, node: u16, origin: u64, permit: Permit, txn: Txn) -> u64 {
        let tag = self.next_tag;
        self.next_tag += 1;
        let now = self.now_at(node);
        let host = self.hosts.get_mut(&node).expect("a known node");
        let mut outbox = Outbox { node: NodeId(node), ..Outbox::default() };
        host.machine.call(now, Tag(tag), permit, Request { origin, command: txn }, &mut outbox);
        host.machine.check_invariants();
        self.carry_out(node, outbox);
        tag
    }

    pub(crate) fn outcome(&self, tag: u64) -> Option<&Outcome<Reply>> {
        self.outcomes.get(&tag)
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

    /// Hands over a message that the test makes up, of the epoch in force.
    pub(crate) fn tell(&mut self, from: u16, to: u16, kind: Kind<'_>) {
        let bytes = encoded(&Message { partition: 0, kind });
        let epoch = self.view.epoch;
        self.inject(&Packet { from: NodeId(from), to: NodeId(to), epoch, bytes });
    }

    /// As [`Cluster::tell`], what no correct peer says; why it was refused, if it was.
    pub(crate) fn lie(&mut self, from: u16, to: u16, kind: Kind<'_>) -> Option<&'static str> {
        self.lies = true;
        self.tell(from, to, kind);
        self.lies = false;
        self.refused.take()
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
        self.now.unix = UnixNanos(WALL + self.now.monotonic.0 - 1_000_000_000);
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
        self.run_some(span, |_| true);
    }

    /// The same with matching messages delivered and all others lost.
    pub(crate) fn run_some(&mut self, span: Duration, wanted: impl Fn(&Packet) -> bool) {
        let end = self.now.monotonic + span;
        loop {
            self.deliver_some(&wanted);
            self.pool.clear();
            let up = self.hosts.values().filter(|host| host.up);
            let next = up.map(|host| host.machine.next_deadline()).min();
            let next = next.unwrap_or(end).max(self.now.monotonic + Duration::from_micros(10));
            if next >= end {
                break;
            }
            self.tick(next.since(self.now.monotonic));
        }
        self.tick(end.since(self.now.monotonic));
        self.deliver_some(&wanted);
        self.pool.clear();
    }

    /// Runs a transaction to its end in a healthy cluster.
    #[track_caller]
    pub(crate) fn run(&mut self, node: u16, text: &str) -> Vec<Option<String>> {
        let tag = self.submit(node, text);
        self.deliver_all();
        self.read_by(tag).into_iter().map(|value| value.map(str::to_owned)).collect()
    }
}
