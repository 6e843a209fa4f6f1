//! The cluster.

use std::collections::BTreeMap;
use std::marker::PhantomData;

use quorate_machine::{Event, Machine, Protocol, Request, Rng};
use quorate_types::{
    Duration, Epoch, Incarnation, Instant, LaneId, Lsn, MemberNumber, NodeId, NodeSet, Now, Role,
    Tag, Timestamp, UnixNanos, View,
};

use crate::clock::Clock;
use crate::logs::{Held, LaneLog, Logs};
use crate::outbox::Outbox;
use crate::packet::Packet;
use crate::subject::{MessageOf, OutcomeOf, Process, Step, Subject};
use crate::views::member;

/// Monotonic time at the beginning of every test.
pub(crate) const BEGIN: Instant = Instant(1_000_000_000);

/// Wall time at the beginning of every test, in nanoseconds.
pub const WALL: u64 = 1_000_000_000_000;

/// Messages that may beget one another before a test takes them for endless.
const DELIVERIES_MAX: u64 = 1_000_000;

/// The least time that passes at once while a cluster runs from deadline to deadline.
const STEP_MIN: Duration = Duration::from_micros(10);

/// A node's process.
pub struct Host<M> {
    /// Its machines, by lane.
    pub machines: Vec<M>,
    /// Its present life.
    pub incarnation: Incarnation,
    /// Whether it runs.
    pub up: bool,
    /// Its clocks.
    pub clock: Clock,
    /// The epoch of the view that it was last told.
    pub epoch: Epoch,
}

impl<M> Host<M> {
    /// A process that runs, with true clocks.
    pub fn new(machines: Vec<M>, incarnation: Incarnation) -> Self {
        Self { machines, incarnation, up: true, clock: Clock::default(), epoch: Epoch(0) }
    }

    /// The machine of lane 0.
    pub fn machine(&self) -> &M {
        &self.machines[0]
    }

    /// The machine of lane 0.
    pub fn machine_mut(&mut self) -> &mut M {
        &mut self.machines[0]
    }
}

/// Mail between two lanes of a node.
pub struct Letter<S: Subject> {
    /// The node.
    pub node: u16,
    /// The sender.
    pub from: LaneId,
    /// The receiver.
    pub to: LaneId,
    /// What it says.
    pub mail: <S::Machine as Protocol>::Mail,
}

/// Nodes, what is in flight between them, and time.
pub struct Cluster<S: Subject> {
    /// The protocol.
    pub subject: S,
    /// The processes, by node id.
    pub hosts: BTreeMap<u16, Host<S::Machine>>,
    /// Messages in flight, in the order in which they were sent.
    pub pool: Vec<Packet<S>>,
    /// Mail between lanes that has not arrived, in the order in which it was sent.
    pub mail: Vec<Letter<S>>,
    /// True time.
    pub now: Now,
    /// The latest view.
    pub view: View,
    /// Every answer, by the tag of its request.
    pub outcomes: BTreeMap<u64, OutcomeOf<S>>,
    /// When each answered request took effect, in the protocol's serial order.
    pub stamps: BTreeMap<u64, Timestamp>,
    /// Answers since the test last looked, in order.
    pub fresh_outcomes: Vec<(u64, OutcomeOf<S>)>,
    /// Messages sent since the test last looked, in order.
    pub fresh_packets: Vec<Packet<S>>,
    /// How often input was ignored, by reason.
    pub ignored: BTreeMap<&'static str, u64>,
    /// How often each rare branch was reached.
    pub probes: BTreeMap<&'static str, u64>,
    /// Whether every step ends a loop turn.
    pub turns: bool,
    /// Whether every step is followed by a check of the machine's invariants.
    pub checks: bool,
    /// Whether the test makes up messages that no correct peer sends.
    pub lies: bool,
    /// What promises of nodes that start wait for.
    pub(crate) logs: Logs,
    /// The logs of each node's lanes.
    pub(crate) disks: BTreeMap<u16, Vec<LaneLog<S>>>,
    /// Why the last of them was refused.
    refused: Option<&'static str>,
    next_tag: u64,
    next_incarnation: u64,
}

// --- processes and views -------------------------------------------------------------------------

impl<S: Subject> Cluster<S> {
    /// No process yet.
    pub fn new(subject: S) -> Self {
        Self {
            subject,
            hosts: BTreeMap::new(),
            pool: Vec::new(),
            mail: Vec::new(),
            now: Now { monotonic: BEGIN, unix: UnixNanos(WALL) },
            view: View { cluster: Incarnation(1), ..View::default() },
            outcomes: BTreeMap::new(),
            stamps: BTreeMap::new(),
            fresh_outcomes: Vec::new(),
            fresh_packets: Vec::new(),
            ignored: BTreeMap::new(),
            probes: BTreeMap::new(),
            turns: true,
            checks: true,
            lies: false,
            logs: Logs::None,
            disks: BTreeMap::new(),
            refused: None,
            next_tag: 1,
            next_incarnation: 1,
        }
    }

    /// Nodes 1 to `count`, all active in epoch 1.
    pub fn founded(subject: S, count: u16, seed: impl Fn(u16) -> u64) -> Self {
        let mut cluster = Self::new(subject);
        (1..=count).for_each(|node| cluster.start(node, seed(node)));
        cluster.found();
        cluster
    }

    /// Decides a view in which every process is active, and tells all.
    pub fn found(&mut self) {
        let roles: Vec<_> = self.hosts.keys().map(|node| (*node, Role::Active)).collect();
        self.install(&roles);
    }

    /// Starts a process that remembers nothing, under a fresh incarnation, with true clocks.
    pub fn start(&mut self, node: u16, seed: u64) {
        self.format(node);
        let (incarnation, now) = (self.incarnation(), self.now);
        let machines = (0..self.subject.lanes()).map(|lane| {
            let (node, lane) = (NodeId(node), LaneId(lane));
            self.subject.start(Process { node, lane, incarnation, seed, now })
        });
        let host = Host::new(machines.collect(), incarnation);
        self.hosts.insert(node, host);
    }

    pub(crate) fn incarnation(&mut self) -> Incarnation {
        let incarnation = Incarnation(self.next_incarnation);
        self.next_incarnation += 1;
        incarnation
    }

    /// A process ends; what is in flight to it is lost.
    pub fn crash(&mut self, node: u16) {
        self.host_mut(node).up = false;
        self.pool.retain(|packet| packet.to.0 != node);
        self.mail.retain(|letter| letter.node != node);
    }

    /// Crashes processes, and tells the others in one view.
    pub fn expel(&mut self, nodes: &[u16]) {
        nodes.iter().for_each(|node| self.crash(*node));
        let mut roles = self.roles();
        for (_, role) in roles.iter_mut().filter(|(node, _)| nodes.contains(node)) {
            *role = Role::Down;
        }
        self.install(&roles);
    }

    /// Starts a crashed process anew, as a shadow.
    pub fn rejoin(&mut self, node: u16) {
        self.start(node, u64::from(node) * 7919 + self.next_incarnation);
        self.set_role(node, Role::Shadow);
    }

    /// A process that stood still while the others went on without it begins another life.
    pub fn begin_life(&mut self, node: u16) {
        let incarnation = self.incarnation();
        let host = self.host_mut(node);
        (host.incarnation, host.up) = (incarnation, true);
        for lane in 0..self.subject.lanes() {
            self.act_on(node, lane, |machine, now, outbox| {
                S::begin_life(machine, now, incarnation, outbox);
            });
        }
    }

    /// The same, and a view has it as a shadow.
    pub fn come_back(&mut self, node: u16) {
        self.begin_life(node);
        self.set_role(node, Role::Shadow);
    }

    /// The view after this one, with these roles; a process that was not in the last one gets a
    /// fresh number. No node is told.
    pub fn decide(&mut self, roles: &[(u16, Role)]) -> View {
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
            members.push(member(NodeId(node), incarnation, number, role));
        }
        let (epoch, cluster) = (Epoch(self.view.epoch.0 + 1), self.view.cluster);
        let placed = match self.view.epoch {
            Epoch(0) => roles.iter().map(|(node, _)| NodeId(*node)).collect(),
            _ => self.view.placed,
        };
        let voters: NodeSet = members.iter().map(|member| member.node).collect();
        let departing = self.view.departing.intersection(voters);
        self.view = View { epoch, cluster, members, last_number, placed, departing };
        self.view.clone()
    }

    /// The view after this one, in which data is where it should be. No node is told.
    pub fn decide_placed(&mut self) -> View {
        let epoch = Epoch(self.view.epoch.0 + 1);
        self.view = View { epoch, ..self.view.clone() }.into_placed();
        self.view.clone()
    }

    /// The view after this one, in which a member is about to leave, or stays after all. No node is told.
    pub fn decide_departing(&mut self, node: u16, departs: bool) -> View {
        let epoch = Epoch(self.view.epoch.0 + 1);
        let others = self.view.departing.without(NodeId(node));
        let departing = if departs { others.with(NodeId(node)) } else { others };
        self.view = View { epoch, departing, ..self.view.clone() };
        self.view.clone()
    }

    /// The next view will be the first of another cluster.
    pub fn found_anew(&mut self) {
        let cluster = Incarnation(self.view.cluster.0 + 1);
        self.view = View { cluster, ..View::default() };
    }

    /// The next view will be the first of a cluster that is recovered from this one.
    pub fn recover(&mut self) {
        let founder = Incarnation(((self.view.cluster.0 >> 32) + 1) << 32);
        self.view.cluster = self.view.cluster.recovered_by(founder);
    }

    /// Decides a view and tells every process that is up.
    pub fn install(&mut self, roles: &[(u16, Role)]) {
        let view = self.decide(roles);
        self.nodes().into_iter().for_each(|node| self.install_on(node, &view));
    }

    /// The same view under the next epoch, told to every process that is up.
    pub fn renew_view(&mut self) {
        self.install(&self.roles());
    }

    /// The next view, in which a node has this role, told to every process that is up.
    pub fn set_role(&mut self, node: u16, role: Role) {
        self.install(&self.roles_with(node, role));
    }

    /// The next view, without this node, told to every process that is up.
    pub fn remove(&mut self, node: u16) {
        let mut roles = self.roles();
        roles.retain(|(other, _)| *other != node);
        self.install(&roles);
    }

    /// The next view, in which data is where it should be, told to every process that is up.
    pub fn place(&mut self) {
        let view = self.decide_placed();
        self.nodes().into_iter().for_each(|node| self.install_on(node, &view));
    }

    /// The next view, in which a member is about to leave, or stays after all, told to every process that
    /// is up.
    pub fn depart(&mut self, node: u16, departs: bool) {
        let view = self.decide_departing(node, departs);
        self.nodes().into_iter().for_each(|node| self.install_on(node, &view));
    }

    /// Tells every lane of a node of a view, if it is up.
    pub fn install_on(&mut self, node: u16, view: &View) {
        let host = self.host_mut(node);
        host.epoch = if host.up { view.epoch } else { host.epoch };
        (0..self.hosts[&node].machines.len() as u16)
            .for_each(|lane| self.step_on(node, lane, Event::View(view)));
    }

    /// The roles of the latest view.
    pub fn roles(&self) -> Vec<(u16, Role)> {
        self.view.members.iter().map(|member| (member.node.0, member.role)).collect()
    }

    /// The same with this node's role changed.
    pub fn roles_with(&self, node: u16, role: Role) -> Vec<(u16, Role)> {
        let mut roles: BTreeMap<u16, Role> = self.roles().into_iter().collect();
        roles.insert(node, role);
        roles.into_iter().collect()
    }

    /// Every node that has a process, be it down.
    pub fn nodes(&self) -> Vec<u16> {
        self.hosts.keys().copied().collect()
    }

    /// Sets a node's clocks.
    pub fn set_clock(&mut self, node: u16, clock: Clock) {
        self.host_mut(node).clock = clock;
    }

    fn host_mut(&mut self, node: u16) -> &mut Host<S::Machine> {
        self.hosts.get_mut(&node).expect("a known node")
    }

    /// The machine of lane 0 of a node.
    pub fn machine(&mut self, node: u16) -> &mut S::Machine {
        self.machine_on(node, 0)
    }

    /// The machine of a lane of a node.
    pub fn machine_on(&mut self, node: u16, lane: u16) -> &mut S::Machine {
        &mut self.host_mut(node).machines[usize::from(lane)]
    }

    /// How often a rare branch was reached.
    pub fn probed(&self, name: &str) -> u64 {
        self.probes.get(name).copied().unwrap_or(0)
    }
}

// --- steps ---------------------------------------------------------------------------------------

impl<S: Subject> Cluster<S> {
    /// A step of lane 0 of a node, if it is up.
    pub fn step(&mut self, node: u16, event: Event<'_, S::Machine>) {
        self.step_on(node, 0, event);
    }

    /// A step of a lane of a node, if it is up.
    pub fn step_on(&mut self, node: u16, lane: u16, event: Event<'_, S::Machine>) {
        self.act_on(node, lane, |machine, now, outbox| machine.step(now, event, outbox));
    }

    /// Anything that lane 0 of a node does, if it is up.
    pub fn act(&mut self, node: u16, act: impl FnOnce(&mut S::Machine, Now, &mut Outbox<S>)) {
        self.act_on(node, 0, act);
    }

    /// Anything that a lane of a node does, if it is up.
    pub fn act_on(
        &mut self,
        node: u16,
        lane: u16,
        act: impl FnOnce(&mut S::Machine, Now, &mut Outbox<S>),
    ) {
        let (now, turns, checks) = (self.now_at(node), self.turns, self.checks);
        let host = self.hosts.get_mut(&node).expect("a known node");
        if !host.up {
            return;
        }
        let machine = &mut host.machines[usize::from(lane)];
        let mut outbox = Outbox::new(NodeId(node));
        if let Some(log) = self.disks.get(&node).map(|lanes| &lanes[usize::from(lane)]) {
            outbox = outbox.with_log(log.appended(), self.logs.waits(node));
        }
        act(machine, now, &mut outbox);
        if turns {
            S::end_turn(machine, now, &mut outbox);
        }
        if checks {
            machine.check_invariants();
        }
        self.carry_out(node, LaneId(lane), outbox);
    }

    /// Ends a loop turn of a node.
    pub fn end_turn(&mut self, node: u16) {
        self.act(node, S::end_turn);
    }

    fn carry_out(&mut self, node: u16, lane: LaneId, outbox: Outbox<S>) {
        let host = &self.hosts[&node];
        let machine = &host.machines[usize::from(lane.0)];
        let (from, epoch) = (NodeId(node), S::epoch(machine, host.epoch));
        let waits: BTreeMap<usize, Lsn> = outbox.behind.into_iter().collect();
        let sent = outbox.sent.into_iter();
        let packets = sent.map(|(to, bytes)| {
            let subject = PhantomData;
            Packet { from, to, lane, epoch, bytes, subject }
        });
        let packets: Vec<_> = packets.collect();
        let (answers, probes, lies) = (outbox.completed, outbox.probes, self.lies);
        self.subject.note(&Step {
            node,
            machine,
            packets: &packets,
            answers: &answers,
            probes: &probes,
            lies,
        });
        if let Some(log) = self.log_mut(node, lane.0) {
            log.append(outbox.appended);
        }
        for (at, packet) in packets.into_iter().enumerate() {
            let lsn = waits.get(&at).copied().unwrap_or(Lsn::START);
            self.hold(node, lane, lsn, Held::Message(packet));
        }
        for (to, mail) in outbox.mail {
            assert!(to.0 < self.subject.lanes(), "a node of so few lanes has no {to:?} to tell");
            self.mail.push(Letter { node, from: lane, to, mail });
        }
        for (tag, completion) in answers {
            self.hold(node, lane, completion.gate.lsn, Held::Answer(tag, completion));
        }
        for reason in outbox.refused {
            assert!(lies, "what a correct peer says is refused: {reason}");
            self.refused = Some(reason);
        }
        for reason in outbox.ignored {
            *self.ignored.entry(reason).or_default() += 1;
        }
        for name in probes {
            *self.probes.entry(name).or_default() += 1;
        }
    }

    /// Lets something go once the log of its lane is durable up to a place.
    fn hold(&mut self, node: u16, lane: LaneId, lsn: Lsn, held: Held<S>) {
        let free = match self.log_mut(node, lane.0) {
            Some(log) => log.hold(lsn, held),
            None => Some(held),
        };
        if let Some(held) = free {
            self.let_go(held);
        }
    }

    /// A message leaves, or an answer is heard.
    pub(crate) fn let_go(&mut self, held: Held<S>) {
        match held {
            Held::Message(packet) => {
                self.fresh_packets.push(packet.clone());
                if self.hosts.get(&packet.to.0).is_some_and(|host| host.up) {
                    self.pool.push(packet);
                }
            }
            Held::Answer(tag, completion) => {
                let before = self.outcomes.insert(tag.0, completion.outcome.clone());
                assert_eq!(before, None, "op {} is answered once", tag.0);
                self.stamps.extend(completion.at.map(|at| (tag.0, at)));
                self.fresh_outcomes.push((tag.0, completion.outcome));
            }
        }
    }
}

// --- requests ------------------------------------------------------------------------------------

impl<S: Subject> Cluster<S> {
    /// The tag of the next request.
    pub fn next_tag(&self) -> u64 {
        self.next_tag
    }

    /// A tag for a request.
    pub fn tag(&mut self) -> Tag {
        self.next_tag += 1;
        Tag(self.next_tag - 1)
    }

    /// A driver asks lane 0 of a node; returns the tag.
    pub fn request(&mut self, node: u16, request: <S::Machine as Protocol>::Request<'_>) -> u64 {
        let tag = self.tag();
        self.step(node, Event::Request { tag, request });
        tag.0
    }

    /// A client of its own asks; returns the tag.
    pub fn submit<C>(&mut self, node: u16, command: C) -> u64
    where
        S::Machine: for<'a> Protocol<Request<'a> = Request<C>>,
    {
        self.submit_as(node, 1_000_000 + self.next_tag, command)
    }

    /// A client asks; commands of one origin have an order. Returns the tag.
    pub fn submit_as<C>(&mut self, node: u16, origin: u64, command: C) -> u64
    where
        S::Machine: for<'a> Protocol<Request<'a> = Request<C>>,
    {
        self.request(node, Request { origin, command })
    }

    /// The answer to a request, if there is one yet.
    pub fn outcome(&self, tag: u64) -> Option<&OutcomeOf<S>> {
        self.outcomes.get(&tag)
    }

    /// Asserts that a request has no answer yet.
    ///
    /// # Panics
    /// If it has.
    #[track_caller]
    pub fn assert_open(&self, tag: u64) {
        assert_eq!(self.outcome(tag), None, "op {tag}");
    }
}

// --- messages ------------------------------------------------------------------------------------

impl<S: Subject> Cluster<S> {
    /// Hands over a message without taking it out of the pool.
    pub fn inject(&mut self, packet: &Packet<S>) {
        let Packet { from, to, lane, epoch, .. } = *packet;
        self.step_on(to.0, lane.0, Event::Message { from, epoch, body: packet.message() });
    }

    /// Hands over a message that the test makes up, of the epoch in force.
    pub fn tell(&mut self, from: u16, to: u16, message: &MessageOf<'_, S>) {
        let packet = Packet::new(from, to, self.view.epoch, message);
        self.inject(&packet);
    }

    /// As [`Cluster::tell`], what no correct peer says; why it was refused, if it was.
    pub fn lie(&mut self, from: u16, to: u16, message: &MessageOf<'_, S>) -> Option<&'static str> {
        self.lies = true;
        self.tell(from, to, message);
        self.lies = false;
        self.refused.take()
    }

    /// Delivers the oldest message of this kind; 0 is any node, `any` any kind.
    ///
    /// # Panics
    /// If there is none.
    #[track_caller]
    pub fn deliver(&mut self, from: u16, to: u16, kind: &str) -> Packet<S> {
        let at = self.pool.iter().position(|packet| packet.is(from, to, kind));
        let Some(at) = at else { panic!("no {kind} {from}->{to} among {:#?}", self.pool) };
        let packet = self.pool.remove(at);
        self.inject(&packet);
        packet
    }

    /// Takes matching messages out of the pool: lost, or kept for later.
    pub fn take(&mut self, from: u16, to: u16, kind: &str) -> Vec<Packet<S>> {
        self.pool.extract_if(.., |packet| packet.is(from, to, kind)).collect()
    }

    /// Delivers all mail between lanes and matching messages, and those that they cause, until none is
    /// left.
    ///
    /// # Panics
    /// If they don't end.
    pub fn deliver_some(&mut self, wanted: impl Fn(&Packet<S>) -> bool) {
        let mut left = DELIVERIES_MAX;
        loop {
            self.deliver_all_mail();
            let Some(at) = self.pool.iter().position(&wanted) else {
                if self.flush_logs() {
                    continue;
                }
                return;
            };
            left -= 1;
            assert!(left > 0, "messages beget messages without end");
            let packet = self.pool.remove(at);
            self.inject(&packet);
        }
    }

    /// Delivers every message, and those that they cause.
    pub fn deliver_all(&mut self) {
        self.deliver_some(|_| true);
    }

    /// Delivers the oldest mail from one lane of a node to another; whether there was any.
    pub fn deliver_mail(&mut self, node: u16, from: u16, to: u16) -> bool {
        let link = (node, LaneId(from), LaneId(to));
        let own = |letter: &Letter<S>| (letter.node, letter.from, letter.to) == link;
        let found = self.mail.iter().position(own);
        found.map(|at| self.open(at)).is_some()
    }

    /// Delivers the oldest mail of some pair of lanes; whether there was any.
    pub fn deliver_any_mail(&mut self, rng: &mut Rng) -> bool {
        let Some(at) = (!self.mail.is_empty()).then(|| rng.below(self.mail.len() as u64)) else {
            return false;
        };
        let letter = &self.mail[at as usize];
        let (node, from, to) = (letter.node, letter.from, letter.to);
        self.deliver_mail(node, from.0, to.0)
    }

    /// Delivers all mail between lanes, and what it causes.
    ///
    /// # Panics
    /// If that doesn't end.
    pub fn deliver_all_mail(&mut self) {
        let mut left = DELIVERIES_MAX;
        while !self.mail.is_empty() {
            left -= 1;
            assert!(left > 0, "mail begets mail without end");
            self.open(0);
        }
    }

    fn open(&mut self, at: usize) {
        let Letter { node, from, to, mail } = self.mail.remove(at);
        self.step_on(node, to.0, Event::Mail { from, mail });
    }
}

// --- time ----------------------------------------------------------------------------------------

impl<S: Subject> Cluster<S> {
    /// The time as a node's clocks show it.
    pub fn now_at(&self, node: u16) -> Now {
        self.hosts[&node].clock.show(self.now.monotonic)
    }

    /// Lets time pass without telling any node.
    pub fn advance(&mut self, span: Duration) {
        self.now.monotonic += span;
        self.now.unix = UnixNanos(WALL + self.now.monotonic.since(BEGIN).as_nanos() as u64);
    }

    /// A node looks at the time.
    pub fn tick_node(&mut self, node: u16) {
        (0..self.hosts[&node].machines.len() as u16)
            .for_each(|lane| self.step_on(node, lane, Event::Tick));
    }

    /// Lets time pass and ticks every process.
    pub fn tick(&mut self, span: Duration) {
        self.advance(span);
        self.nodes().into_iter().for_each(|node| self.tick_node(node));
    }

    /// Lets time pass from deadline to deadline, with every message delivered.
    pub fn run_for(&mut self, span: Duration) {
        self.run_some(span, |_| true);
    }

    /// The same with matching messages delivered and all others lost. Clocks are true ones.
    pub fn run_some(&mut self, span: Duration, wanted: impl Fn(&Packet<S>) -> bool) {
        let end = self.now.monotonic + span;
        loop {
            self.deliver_some(&wanted);
            self.pool.clear();
            let up = self.hosts.values().filter(|host| host.up).flat_map(|host| &host.machines);
            let next = up.map(Machine::next_deadline).min();
            let next = next.unwrap_or(end).max(self.now.monotonic + STEP_MIN);
            if next >= end {
                break;
            }
            self.tick(next.since(self.now.monotonic));
        }
        self.tick(end.since(self.now.monotonic));
        self.deliver_some(&wanted);
        self.pool.clear();
    }
}
