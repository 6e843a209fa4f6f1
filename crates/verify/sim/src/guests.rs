//! Guests of a world: clients that coordinate their transactions themselves, over the peer
//! protocol.
//!
//! A guest is a process of its own, with clocks, connections and deaths. It joins at one node,
//! enters the others under the id that it was given, follows their views, and runs the engine's
//! machine without a replica, as `quorate-client` does. When it dies, the replicas finish what it
//! began.

use std::collections::BTreeMap;

use quorate_commands::{Op, Reply};
use quorate_machine::{
    Completion, Effects, Event as Step, HybridClock, Machine as _, MapTable, Outcome, Refusal, Rng,
};
use quorate_meerkat::{Config, Kind, Meerkat, Message, Meta, Options};
use quorate_types::{
    Epoch, Incarnation, Instant, KeyspaceId, LaneId, NodeId, NodeSet, Now, Role, Tag, Timestamp,
    UnixNanos, View, WriterId, limits,
};
use quorate_wire::{GuestMessage, Header, Hello, Kind as Part, Welcome};

use crate::network::{describe, hash};
use crate::script::Process;
use crate::trace::At;
use crate::untold::Untold;
use crate::world::{Answer, Event, MS, WALL_START, World};

type Machine = Meerkat<MapTable<Meta>, Op>;

/// The pause between two looks at the connections.
const TENDING: u64 = 40 * MS;
/// How long a guest waits for the answer to its introduction before it connects anew.
const INTRODUCTION: u64 = 300 * MS;
/// How long a guest may be without a majority before its stay ends.
const SEPARATION_MAX: u64 = 4_000 * MS;

/// The state of a guest's stay in a cluster, from its welcome to its end.
struct Stay {
    machine: Machine,
    writer: WriterId,
    /// Nodes that have let it in.
    entered: NodeSet,
    members: NodeSet,
    /// The live members.
    live: NodeSet,
    /// The time since when it has not reached a majority.
    apart: Option<u64>,
    /// The time of the cluster, as the nodes have told it.
    cluster: HybridClock,
}

/// A connection to one node.
#[derive(Clone, Copy, Default)]
struct Line {
    /// Its number; 0 stands for no connection.
    connection: u64,
    /// The node's `link` when the connection was made.
    node_link: u64,
    since: u64,
}

/// The effects of the machine.
#[derive(Default)]
struct Out {
    keyspace: KeyspaceId,
    epoch: Epoch,
    peers: BTreeMap<NodeId, Vec<u8>>,
    done: Vec<(Tag, Outcome<Reply<'static>>, Option<Timestamp>)>,
    probes: Vec<&'static str>,
}

impl Effects<Machine> for Out {
    fn send(&mut self, to: NodeId, message: &Message<'_>) {
        let (keyspace, epoch) = (self.keyspace, self.epoch);
        let buffer = self.peers.entry(to).or_default();
        Header::frame(buffer, Part::Engine(quorate_meerkat::ID), keyspace, epoch, |writer| {
            message.encode(writer)
        });
    }

    fn complete(&mut self, tag: Tag, outcome: Outcome<Reply<'static>>) {
        self.done.push((tag, outcome, None));
    }

    fn complete_on(&mut self, tag: Tag, completion: Completion<Outcome<Reply<'static>>>) {
        self.done.push((tag, completion.outcome, completion.at));
    }

    fn probe(&mut self, name: &'static str) {
        self.probes.push(name);
    }
}

/// One process.
pub(crate) struct Guest {
    /// The id by which every node reaches it.
    pub(crate) id: NodeId,
    /// The keyspace of its transactions.
    pub(crate) keyspace: KeyspaceId,
    pub(crate) up: bool,
    pub(crate) paused: bool,
    /// Counts its processes.
    pub(crate) life: u64,
    /// Nodes that it can't reach, in either direction.
    pub(crate) cut: NodeSet,
    /// It dies after this many more messages.
    pub(crate) ambush: Option<u64>,
    rng: Rng,
    session: Incarnation,
    lane: u16,
    rate_ppm: i64,
    offset: u64,
    wall_error: i64,
    stay: Option<Stay>,
    lines: Vec<Line>,
    out: Out,
    backlog: Vec<Event>,
    wake_at: u64,
    /// What it has committed without all replicas knowing it.
    pub(crate) untold: Untold,
}

impl Guest {
    fn monotonic(&self, at: u64) -> Instant {
        let drift = i128::from(at) * i128::from(self.rate_ppm) / 1_000_000;
        let local = u64::try_from(i128::from(at) + drift).expect("clocks run forward");
        Instant(self.offset + local)
    }

    /// The time for expiry: the earlier of the cluster's clock and the guest's own.
    fn now(&self, at: u64, cluster: HybridClock) -> Now {
        let monotonic = self.monotonic(at);
        let own = (WALL_START + at).saturating_add_signed(self.wall_error);
        Now { monotonic, unix: UnixNanos(own.min(cluster.read(monotonic))) }
    }

    fn world_time(&self, local: Instant) -> u64 {
        let elapsed = i128::from(local.0.saturating_sub(self.offset));
        let at = elapsed * 1_000_000 / i128::from(1_000_000 + self.rate_ppm) + 1;
        u64::try_from(at).unwrap_or(u64::MAX)
    }

    /// Whether it takes transactions.
    pub(crate) fn serves(&self) -> bool {
        self.up && self.stay.is_some()
    }

    /// The unfinished work, if any.
    pub(crate) fn undone(&self) -> Option<String> {
        let stay = self.stay.as_ref()?;
        let left = stay
            .machine
            .gauges()
            .into_iter()
            .find(|(name, value)| ["attempts", "waiting"].contains(name) && *value > 0);
        left.map(|(name, count)| format!("guest {:?} is left with {count} {name}", self.id))
    }
}

/// The id of a guest. Ids of guests count down, ids of nodes up.
pub(crate) fn guest_id(guest: usize) -> NodeId {
    NodeId(limits::NODE_ID_MAX - guest as u16)
}

/// The first message on a connection: it names the sender.
fn introduce(keyspace: KeyspaceId, epoch: Epoch, message: &GuestMessage) -> Vec<u8> {
    let mut bytes = Vec::new();
    Header::frame(&mut bytes, Part::Guest, keyspace, epoch, |writer| message.encode(writer));
    bytes
}

impl World {
    /// Adds a guest of a keyspace that begins at once.
    pub(crate) fn add_guest(&mut self, keyspace: KeyspaceId, mut rng: Rng, drift_ppm: u64) {
        let guest = self.guests.len();
        let rate_ppm = rng.below(drift_ppm + 1) as i64 - drift_ppm as i64 / 2;
        self.guests.push(Guest {
            id: guest_id(guest),
            keyspace,
            up: false,
            paused: false,
            life: 0,
            cut: NodeSet::EMPTY,
            ambush: None,
            session: Incarnation(0),
            lane: 0,
            rate_ppm,
            offset: 1 + rng.below(1 << 40),
            wall_error: 0,
            stay: None,
            lines: vec![Line::default(); self.nodes.len()],
            out: Out::default(),
            backlog: Vec::new(),
            wake_at: u64::MAX,
            untold: Untold::default(),
            rng,
        });
        self.start_guest(guest);
    }

    /// The guest with this id.
    pub(crate) fn guest_of(&self, id: NodeId) -> Option<usize> {
        self.guests.iter().position(|guest| guest.id == id)
    }

    /// Starts a guest's process.
    pub(crate) fn start_guest(&mut self, guest: usize) {
        let time = self.time;
        let this = &mut self.guests[guest];
        this.up = true;
        this.life += 1;
        this.ambush = None;
        let life = this.life;
        self.trace.event(&[time, 30, guest as u64], || format!("{} start guest {guest}", At(time)));
        self.schedule(time, Event::GuestTend { guest, life });
    }

    /// Ends a guest's process without warning.
    pub(crate) fn kill_guest(&mut self, guest: usize) {
        let time = self.time;
        self.trace.event(&[time, 31, guest as u64], || format!("{} kill guest {guest}", At(time)));
        let this = &mut self.guests[guest];
        this.up = false;
        this.paused = false;
        this.life += 1;
        this.stay = None;
        this.wake_at = u64::MAX;
        this.backlog.clear();
        this.out = Out::default();
        self.drop_lines(guest);
        self.died_guests.push(guest);
    }

    /// Stops a guest's process for a while; it notices nothing.
    pub(crate) fn pause_guest(&mut self, guest: usize, span: u64) {
        let time = self.time;
        let this = &mut self.guests[guest];
        this.paused = true;
        let life = this.life;
        self.trace.event(&[time, 32, guest as u64, span], || {
            format!("{} pause guest {guest} for {} ms", At(time), span / MS)
        });
        self.schedule(time + span, Event::GuestResume { guest, life });
    }

    /// Every connection of a guest ends, and each node hears of it sooner or later.
    fn drop_lines(&mut self, guest: usize) {
        for node in 0..self.nodes.len() {
            self.drop_line(guest, node);
        }
    }

    fn drop_line(&mut self, guest: usize, node: usize) {
        let line = std::mem::take(&mut self.guests[guest].lines[node]);
        if let Some(stay) = &mut self.guests[guest].stay {
            stay.entered.remove(self.nodes[node].id);
        }
        if line.connection == 0 {
            return;
        }
        let rng = &mut self.guests[guest].rng;
        // A process that dies closes its connections; a machine that dies doesn't.
        let slow = rng.chance(1, 4);
        let at = self.time + if slow { rng.below(1_500 * MS) } else { rng.below(20 * MS) };
        let life = self.nodes[node].life;
        let id = self.guests[guest].id;
        self.schedule(at, Event::GuestLost { node, life, id, connection: line.connection });
    }

    /// Handles an event of a guest's process, or an event at a node that concerns a guest.
    pub(crate) fn handle_guest(&mut self, event: Event) {
        let (guest, life) = match &event {
            Event::GuestTend { guest, life }
            | Event::GuestWake { guest, life }
            | Event::GuestResume { guest, life }
            | Event::GuestHears { guest, life, .. } => (*guest, *life),
            other => unreachable!("not a guest's event: {other:?}"),
        };
        let this = &mut self.guests[guest];
        if !this.up || this.life != life {
            return;
        }
        if let Event::GuestResume { .. } = event {
            this.paused = false;
            for event in std::mem::take(&mut this.backlog) {
                self.schedule(self.time, event);
            }
            return;
        }
        if this.paused {
            return this.backlog.push(event);
        }
        match event {
            Event::GuestTend { .. } => self.tend(guest),
            Event::GuestWake { .. } => {
                if this.wake_at <= self.time {
                    this.wake_at = u64::MAX;
                    self.step_guest(guest, Step::Tick);
                }
            }
            Event::GuestHears { connection, from, bytes, .. } => {
                if this.lines[from].connection == connection {
                    self.guest_hears(guest, from, &bytes);
                }
            }
            _ => unreachable!("matched above"),
        }
    }

    /// Keeps an event for when a stopped guest goes on.
    pub(crate) fn hold_for_guest(&mut self, guest: usize, event: Event) {
        self.guests[guest].backlog.push(event);
    }

    /// Looks after the connections.
    fn tend(&mut self, guest: usize) {
        let time = self.time;
        for node in 0..self.nodes.len() {
            let line = self.guests[guest].lines[node];
            let gone = !self.nodes[node].up || self.nodes[node].link != line.node_link;
            let cut = self.guests[guest].cut.contains(self.nodes[node].id);
            if line.connection != 0 && (gone || (cut && time - line.since > INTRODUCTION)) {
                self.drop_line(guest, node);
            }
        }
        if self.guests[guest].stay.is_none() {
            self.join(guest);
        } else {
            self.enter_all(guest);
            self.look_for_majority(guest);
        }
        let life = self.guests[guest].life;
        if self.guests[guest].up {
            self.schedule(time + TENDING, Event::GuestTend { guest, life });
        }
    }

    fn join(&mut self, guest: usize) {
        let waiting = |line: &Line| line.connection != 0 && self.time - line.since < INTRODUCTION;
        if self.guests[guest].lines.iter().any(waiting) {
            return;
        }
        self.drop_lines(guest);
        let lanes = u64::from(self.lanes());
        let this = &mut self.guests[guest];
        this.session = Incarnation(this.rng.next_u64().max(1));
        this.lane = this.rng.below(lanes) as u16;
        let keyspace = this.keyspace;
        let node = this.rng.below(self.nodes.len() as u64) as usize;
        self.connect(guest, node, introduce(keyspace, Epoch(0), &GuestMessage::Join));
    }

    fn enter_all(&mut self, guest: usize) {
        for node in 0..self.nodes.len() {
            let this = &self.guests[guest];
            let Some(stay) = &this.stay else { return };
            let id = self.nodes[node].id;
            let line = this.lines[node];
            let waits = line.connection != 0 && self.time - line.since < INTRODUCTION;
            if !stay.live.contains(id) || stay.entered.contains(id) || waits {
                continue;
            }
            let enter = GuestMessage::Enter { writer: stay.writer };
            let bytes = introduce(this.keyspace, this.out.epoch, &enter);
            self.drop_line(guest, node);
            self.connect(guest, node, bytes);
        }
    }

    fn look_for_majority(&mut self, guest: usize) {
        let time = self.time;
        let Some(stay) = &mut self.guests[guest].stay else { return };
        if stay.entered.is_majority_of(stay.members) {
            stay.apart = None;
        } else if time - *stay.apart.get_or_insert(time) > SEPARATION_MAX {
            self.end_stay(guest);
        }
    }

    /// Ends a stay: ops that may have happened are unknown, the rest have not; the guest will join
    /// anew.
    fn end_stay(&mut self, guest: usize) {
        let time = self.time;
        self.trace.event(&[time, 33, guest as u64], || {
            format!("{} the stay of guest {guest} is over", At(time))
        });
        let this = &mut self.guests[guest];
        let session = this.session;
        if let Some(mut stay) = this.stay.take() {
            let now = this.now(time, stay.cluster);
            stay.machine.reset(now, session, &mut this.out);
        }
        this.out.peers.clear();
        self.drop_lines(guest);
        self.flush_guest(guest);
    }

    fn connect(&mut self, guest: usize, node: usize, bytes: Vec<u8>) {
        let id = self.nodes[node].id;
        if !self.nodes[node].up || self.guests[guest].cut.contains(id) {
            return;
        }
        self.connections += 1;
        let connection = self.connections;
        let (life, node_link) = (self.nodes[node].life, self.nodes[node].link);
        let delay = self.network.delay + self.guests[guest].rng.below(MS);
        let this = &mut self.guests[guest];
        this.lines[node] = Line { connection, node_link, since: self.time };
        let (lane, session, id) = (this.lane, this.session, this.id);
        let event = Event::GuestConnects { node, life, id, connection, lane, session, bytes };
        self.schedule(self.time + delay, event);
    }

    fn guest_hears(&mut self, guest: usize, from: usize, bytes: &[u8]) {
        let mut rest = bytes;
        while let Some((header, body)) =
            Header::split(&mut rest).expect("nodes send whole messages")
        {
            match header.kind {
                Part::Engine(quorate_meerkat::ID) => {
                    let body = Message::decode(body).expect("one build understands itself");
                    let (time, sender) = (self.time, self.nodes[from].id);
                    let monotonic = self.guests[guest].monotonic(time);
                    if let (Kind::Values { clock, .. }, Some(stay)) =
                        (&body.kind, &mut self.guests[guest].stay)
                    {
                        stay.cluster.reach(monotonic, *clock);
                    }
                    let event = Step::Message { from: sender, epoch: header.epoch, body };
                    self.step_guest(guest, event);
                }
                Part::Guest => {
                    let message = GuestMessage::decode(body).expect("one build understands itself");
                    self.guest_told(guest, from, message);
                }
                _ => unreachable!("nodes tell guests nothing else"),
            }
        }
    }

    fn guest_told(&mut self, guest: usize, from: usize, message: GuestMessage) {
        let node = self.nodes[from].id;
        match message {
            GuestMessage::Welcome(welcome) if self.guests[guest].stay.is_none() => {
                self.begin_stay(guest, node, welcome);
            }
            GuestMessage::View(view) => {
                if let Some(stay) = &mut self.guests[guest].stay {
                    stay.entered.insert(node);
                    self.install_guest(guest, &view);
                }
            }
            GuestMessage::Refused { .. } if self.guests[guest].stay.is_some() => {
                self.end_stay(guest);
            }
            GuestMessage::Refused { .. } => self.drop_line(guest, from),
            _ => {}
        }
    }

    fn begin_stay(&mut self, guest: usize, node: NodeId, welcome: Welcome) {
        let (time, lanes) = (self.time, self.lanes());
        let loss_timeout = self.loss_timeout;
        self.trace.event(&[time, 34, guest as u64, u64::from(welcome.writer.0)], || {
            format!("{} guest {guest} joins at {node:?} as {:?}", At(time), welcome.writer)
        });
        let this = &mut self.guests[guest];
        let seed = this.rng.next_u64();
        let terms = Options::from_terms(&welcome.terms).expect("a node's terms are whole");
        let config = Config {
            partitions: welcome.partitions,
            isolation: terms.isolation,
            max_clock_skew: terms.max_clock_skew,
            message_loss_timeout: loss_timeout,
            guest: Some(welcome.writer),
            ..Config::new(Hello::GUEST, this.session, LaneId(this.lane), lanes, seed)
        };
        this.out = Out { keyspace: this.keyspace, ..Out::default() };
        this.stay = Some(Stay {
            machine: Machine::new(config, MapTable::default()),
            writer: welcome.writer,
            entered: NodeSet::only(node),
            members: NodeSet::EMPTY,
            live: NodeSet::EMPTY,
            apart: None,
            cluster: HybridClock::default(),
        });
        self.install_guest(guest, &welcome.view);
        self.enter_all(guest);
    }

    fn install_guest(&mut self, guest: usize, view: &View) {
        let this = &mut self.guests[guest];
        let Some(stay) = &mut this.stay else { return };
        if view.epoch <= stay.machine.epoch() {
            return;
        }
        this.out.epoch = view.epoch;
        stay.members = view.voters();
        let live = view.members.iter().filter(|member| member.role != Role::Down);
        stay.live = live.map(|member| member.node).collect();
        stay.entered = stay.entered.intersection(stay.live);
        self.step_guest(guest, Step::View(view));
    }

    fn step_guest(&mut self, guest: usize, event: Step<'_, Machine>) {
        let time = self.time;
        let this = &mut self.guests[guest];
        let Some(stay) = &this.stay else { return };
        let now = this.now(time, stay.cluster);
        let Some(stay) = &mut this.stay else { return };
        stay.machine.step(now, event, &mut this.out);
        stay.machine.flush(now, &mut this.out);
        stay.machine.check_invariants();
        self.flush_guest(guest);
    }

    /// A client's transaction reaches the guest in its own process.
    pub(crate) fn ask_guest(&mut self, guest: usize, tag: Tag, txn: &Op) {
        let time = self.time;
        let this = &mut self.guests[guest];
        let Some(stay) = &this.stay else {
            let outcome = Outcome::Refused(Refusal::NotServing);
            return self.answers.push(Answer { tag, outcome, at: None });
        };
        let now = this.now(time, stay.cluster);
        let Some(stay) = &mut this.stay else { return };
        self.flow.begin_op();
        stay.machine.submit(now, tag, tag.0, txn.clone(), &mut this.out);
        stay.machine.flush(now, &mut this.out);
        self.flush_guest(guest);
    }

    fn flush_guest(&mut self, guest: usize) {
        let time = self.time;
        let this = &mut self.guests[guest];
        if let Some(stay) = &this.stay {
            this.untold.note(time, this.keyspace, &stay.machine.untold());
        }
        for (tag, outcome, at) in this.out.done.drain(..) {
            self.answers.push(Answer { tag, outcome, at });
        }
        for name in this.out.probes.drain(..) {
            *self.probes.entry(name).or_default() += 1;
        }
        let peers = std::mem::take(&mut this.out.peers);
        for (to, bytes) in peers {
            if !self.guest_says(guest, to, &bytes) {
                return;
            }
        }
        let this = &mut self.guests[guest];
        let Some(stay) = &this.stay else { return };
        let deadline = stay.machine.next_deadline();
        if deadline == Instant::NEVER {
            return;
        }
        let at = this.world_time(deadline).max(self.time + 1);
        if at < this.wake_at {
            this.wake_at = at;
            let life = this.life;
            self.schedule(at, Event::GuestWake { guest, life });
        }
    }

    /// Sends messages one by one; says whether the guest is still alive afterwards.
    fn guest_says(&mut self, guest: usize, to: NodeId, bytes: &[u8]) -> bool {
        let node = self.index(to);
        let mut rest = bytes;
        loop {
            let before = rest;
            let header = Header::split(&mut rest).expect("machines send whole messages");
            let Some((header, _)) = header else { return true };
            if let Some(left) = &mut self.guests[guest].ambush {
                if *left == 0 {
                    self.kill_guest(guest);
                    self.ambushed.push(Process::Guest(guest));
                    return false;
                }
                *left -= 1;
            }
            let this = &self.guests[guest];
            let line = this.lines[node];
            let entered = this.stay.as_ref().is_some_and(|stay| stay.entered.contains(to));
            if line.connection == 0 || !entered {
                continue;
            }
            let message = &before[..before.len() - rest.len()];
            let (id, lane, cut) = (this.id, this.lane, this.cut.contains(to));
            self.messages += 1;
            self.flow.count(id, &header, message);
            for delay in self.carry(id, to, lane, cut, message).into_iter().flatten() {
                let event = Event::GuestSays {
                    node,
                    life: self.nodes[node].life,
                    id,
                    connection: line.connection,
                    bytes: message.to_vec(),
                };
                self.schedule(self.time + delay, event);
            }
        }
    }

    /// Sends a node's message to a guest.
    pub(crate) fn tell_guest(&mut self, from: usize, lane: u16, to: NodeId, message: &[u8]) {
        let Some(guest) = self.guest_of(to) else { return };
        let Some(&(_, connection)) = self.nodes[from].seats.get(&to) else { return };
        let (sender, life) = (self.nodes[from].id, self.guests[guest].life);
        let cut = self.guests[guest].cut.contains(sender);
        let mut rest = message;
        let header = Header::split(&mut rest).ok().flatten();
        let delays = match header {
            // A message that opens the connection is lost only if the connection is.
            Some((header, _)) if header.kind == Part::Guest => {
                [(!cut).then_some(self.network.delay), None]
            }
            _ => self.carry(sender, to, lane, cut, message),
        };
        for delay in delays.into_iter().flatten() {
            let bytes = message.to_vec();
            let event = Event::GuestHears { guest, life, connection, from, bytes };
            self.schedule(self.time + delay, event);
        }
    }

    /// A node's side of a guest's connections.
    pub(crate) fn handle_seat(&mut self, event: Event) {
        match event {
            Event::GuestConnects { node, id, connection, lane, session, bytes, .. } => {
                let hung_up =
                    |guest: usize| self.guests[guest].lines[node].connection != connection;
                if self.guest_of(id).is_none_or(hung_up) {
                    // While this node stood still, the guest connected anew, perhaps to another
                    // lane.
                    return;
                }
                if let Some((old, _)) = self.nodes[node].seats.insert(id, (lane, connection)) {
                    self.turn(node, usize::from(old), |lane, now, _| {
                        lane.guest_lost(now, id);
                        None
                    });
                }
                let incarnation = session;
                self.turn(node, usize::from(lane), |lane, now, out| {
                    lane.guest_connected(id, session);
                    // The lane may have begun a new life this very moment.
                    let _ = lane.receive(now, id, incarnation, &bytes, out);
                    None
                });
            }
            Event::GuestSays { node, id, connection, bytes, .. } => {
                let Some(&(lane, _)) =
                    self.nodes[node].seats.get(&id).filter(|seat| seat.1 == connection)
                else {
                    return;
                };
                let time = self.time;
                let to = self.nodes[node].id;
                let words = [time, 35, u64::from(id.0), u64::from(to.0), hash(&bytes)];
                self.trace.event(&words, || {
                    format!("{} guest {id:?} -> {to:?}/{lane} {}", At(time), describe(&bytes))
                });
                self.turn(node, usize::from(lane), |lane, now, out| {
                    let _ = lane.receive(now, id, Incarnation(0), &bytes, out);
                    None
                });
            }
            Event::GuestLost { node, id, connection, .. } => {
                let seat = self.nodes[node].seats.get(&id).copied();
                if let Some((lane, _)) = seat.filter(|seat| seat.1 == connection) {
                    self.nodes[node].seats.remove(&id);
                    self.turn(node, usize::from(lane), |lane, now, _| {
                        lane.guest_lost(now, id);
                        None
                    });
                }
            }
            other => unreachable!("no connection of a guest: {other:?}"),
        }
    }

    /// Sets a guest's wall clock.
    pub(crate) fn set_guest_clock(&mut self, guest: usize, error: i64) {
        self.guests[guest].wall_error = error;
    }
}
