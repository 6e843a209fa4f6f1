//! A cluster in virtual time: drifting clocks, a bad network, pauses, crashes.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;

use quorate_machine::{Effects, Event, Machine, Rng};
use quorate_types::{
    Duration, Epoch, Incarnation, Instant, Lsn, NodeId, NodeSet, Now, Role, Tag, UnixNanos, View,
};
use quorate_wire::{Reader, Writer};

use crate::machine::{is_shadow, voters};
use crate::{Body, Config, MemberConfig, Membership, MembershipError, Message, Request, Store};

pub(super) const MS: u64 = 1_000_000;

#[derive(Default)]
struct Outputs {
    sent: Vec<(NodeId, Vec<u8>)>,
    completed: Vec<(Tag, Result<Epoch, MembershipError>)>,
    probes: Vec<&'static str>,
}

impl Effects<Membership> for Outputs {
    fn send(&mut self, to: NodeId, message: &Message) {
        let mut bytes = Vec::new();
        message.encode(&mut Writer(&mut bytes));
        self.sent.push((to, bytes));
    }

    fn complete(&mut self, tag: Tag, outcome: Result<Epoch, MembershipError>) {
        self.completed.push((tag, outcome));
    }

    fn probe(&mut self, name: &'static str) {
        self.probes.push(name);
    }
}

pub(super) struct Node {
    pub(super) machine: Option<Membership>,
    genesis: Vec<MemberConfig>,
    /// The clock runs at (1 + this / 10^6) times true time.
    pub(super) rate_ppm: i64,
    clock_offset: u64,
    paused_until: u64,
    /// Its disk, if nodes have any.
    pub(super) disk: Disk,
    /// The records that its stores have, of which cluster.
    pub(super) records: (Incarnation, BTreeSet<Record>),
}

/// A record: the group whose nodes have it, all of them if it is empty, and its number.
pub(super) type Record = (Group, u64);
/// The bits of a group of nodes.
type Group = u64;

/// The disk of a node: its voter's state. Records are durable at once.
#[derive(Default)]
pub(super) struct Disk {
    /// The durable state.
    pub(super) state: Option<Vec<u8>>,
    /// States that are being written: when each will be durable, and its number.
    pub(super) writing: Vec<(u64, u64, Vec<u8>)>,
    /// Whether the stores' log is damaged.
    pub(super) is_damaged: bool,
}

impl Node {
    fn local(&self, now: u64) -> Instant {
        let scaled = i128::from(now) * (1_000_000 + i128::from(self.rate_ppm)) / 1_000_000;
        Instant(self.clock_offset + scaled as u64)
    }

    /// The first true time at which the clock shows `local` or more.
    fn due(&self, local: Instant) -> u64 {
        if local == Instant::NEVER {
            return u64::MAX;
        }
        let span = i128::from(local.0.saturating_sub(self.clock_offset));
        let rate = 1_000_000 + i128::from(self.rate_ppm);
        ((span * 1_000_000 + rate - 1) / rate) as u64
    }
}

/// Whether a message from one node to another gets lost.
pub(super) type Loses = fn(u16, u16, &Body) -> bool;

pub(super) struct World {
    pub(super) rng: Rng,
    pub(super) now: u64,
    pub(super) nodes: BTreeMap<NodeId, Node>,
    wire: BTreeMap<(u64, u64), (NodeId, NodeId, Vec<u8>)>,
    sequence: u64,
    /// Groups that can't reach each other.
    pub(super) cut: Option<NodeSet>,
    /// Picks messages that get lost, by sender and receiver.
    pub(super) loses: Loses,
    pub(super) loss_percent: u64,
    pub(super) delay_max: u64,
    pub(super) drift_ppm: u32,
    /// Suspicion after two thirds of a lease, as if every stall were a crash.
    pub(super) nervous: bool,
    pub(super) groups: Vec<NodeSet>,
    /// The sizes of groups that follow from where data is placed.
    pub(super) moving: Vec<usize>,
    /// Whether nodes have disks, and how long a flush takes at most.
    pub(super) flush_max: Option<u64>,
    pub(super) revive_majority: bool,
    pub(super) quorum_groups: Vec<NodeSet>,
    /// The records that clients were told of, by cluster.
    pub(super) acknowledged: BTreeMap<Incarnation, BTreeSet<Record>>,
    incarnations: u64,
    /// Every view that any node ever installed.
    pub(super) installed: BTreeMap<(Incarnation, Epoch), Arc<View>>,
    pub(super) completed: BTreeMap<Tag, Result<Epoch, MembershipError>>,
    pub(super) probes: BTreeMap<&'static str, u64>,
    pub(super) messages: u64,
    /// The writes of drivers: one for all messages of a step to one peer.
    pub(super) writes: u64,
    /// Steps that no message or request caused.
    pub(super) timers: u64,
}

/// Whether a node has what is written to a group.
fn has(group: Group, node: NodeId) -> bool {
    group == 0 || NodeSet::from_bits(group).contains(node)
}

pub(super) fn nodes(ids: &[u16]) -> NodeSet {
    ids.iter().map(|id| NodeId(*id)).collect()
}

/// The removal of a node, once others have copied what it has.
pub(super) fn remove(node: NodeId) -> Request {
    Request::Remove { node, at_once: false }
}

/// The removal of a node with its copies.
pub(super) fn remove_now(node: NodeId) -> Request {
    Request::Remove { node, at_once: true }
}

pub(super) fn addresses(node: u16) -> MemberConfig {
    MemberConfig {
        node: NodeId(node),
        peer_address: format!("h{node}:1"),
        client_address: format!("h{node}:2"),
        admin_address: format!("h{node}:3"),
    }
}

impl World {
    /// A world of `nodes` configured nodes, none started.
    pub(super) fn new(seed: u64, nodes: u16) -> Self {
        let mut world = Self {
            rng: Rng::new(seed),
            now: 0,
            nodes: BTreeMap::new(),
            wire: BTreeMap::new(),
            sequence: 0,
            cut: None,
            loses: |_, _, _| false,
            loss_percent: 0,
            delay_max: MS / 10,
            drift_ppm: 1_000,
            nervous: false,
            groups: Vec::new(),
            moving: Vec::new(),
            flush_max: None,
            revive_majority: false,
            quorum_groups: Vec::new(),
            acknowledged: BTreeMap::new(),
            incarnations: seed << 20,
            installed: BTreeMap::new(),
            completed: BTreeMap::new(),
            probes: BTreeMap::new(),
            messages: 0,
            writes: 0,
            timers: 0,
        };
        let genesis: Vec<MemberConfig> = (1..=nodes).map(addresses).collect();
        for node in 1..=nodes {
            world.configure(node, genesis.clone());
        }
        world
    }

    pub(super) fn configure(&mut self, node: u16, genesis: Vec<MemberConfig>) {
        let clock_offset = self.rng.below(1 << 40);
        let node_state = Node {
            machine: None,
            genesis,
            rate_ppm: 0,
            clock_offset,
            paused_until: 0,
            disk: Disk::default(),
            records: Default::default(),
        };
        self.nodes.insert(NodeId(node), node_state);
    }

    /// Three (or so) nodes that have founded a cluster.
    pub(super) fn formed(seed: u64, nodes: u16) -> Self {
        Self::new(seed, nodes).form(nodes)
    }

    /// As [`World::formed`], and every stall counts as a crash.
    pub(super) fn formed_nervous(seed: u64, nodes: u16) -> Self {
        let mut world = Self::new(seed, nodes);
        world.nervous = true;
        world.form(nodes)
    }

    pub(super) fn form(mut self, nodes: u16) -> Self {
        for node in 1..=nodes {
            self.start(node);
        }
        self.run_until_serving(&(1..=nodes).collect::<Vec<_>>(), 1000);
        self
    }

    pub(super) fn start(&mut self, node: u16) {
        self.incarnations += 1;
        let incarnation = Incarnation(self.incarnations);
        let now = self.now(node);
        let (drift_ppm, nervous, groups) = (self.drift_ppm, self.nervous, self.groups.clone());
        let (moving, majority) = (self.moving.clone(), self.revive_majority);
        let has_disk = self.flush_max.is_some();
        let state = self.nodes.get_mut(&NodeId(node)).unwrap();
        let mut config = Config::new(NodeId(node), incarnation, state.genesis.clone());
        (config.drift_ppm, config.groups) = (drift_ppm, groups);
        (config.moving, config.revive_majority) = (moving, majority);
        config.quorum_groups = self.quorum_groups.clone();
        if nervous {
            config.suspect_after = config.lease * 2 / 3;
            config.suspect_after_max = config.suspect_after;
            config.link_patience = Duration::ZERO;
        }
        if !has_disk || state.disk.state.is_none() {
            state.records = Default::default();
        }
        let store = if state.disk.is_damaged { Store::Damaged } else { Store::Intact };
        state.machine = Some(match has_disk {
            false => Membership::new(config, now),
            true => Membership::with_disk(config, now, state.disk.state.as_deref(), store)
                .expect("an earlier process wrote the state"),
        });
        self.write_state(NodeId(node));
    }

    /// A disk that is still writing a state keeps it or loses it.
    pub(super) fn crash(&mut self, node: u16) {
        let has_disk = self.flush_max.is_some();
        let kept = if has_disk { self.rng.below(3) as usize } else { 0 };
        let state = self.nodes.get_mut(&NodeId(node)).unwrap();
        state.machine = None;
        for (_, _, bytes) in state.disk.writing.drain(..).take(kept) {
            state.disk.state = Some(bytes);
        }
    }

    /// The disk of a node that does not run is lost, and replaced by an empty one.
    pub(super) fn lose_disk(&mut self, node: u16) {
        let state = self.nodes.get_mut(&NodeId(node)).unwrap();
        (state.disk, state.records) = (Disk::default(), Default::default());
    }

    /// Begins to write the state of a node, if it has changed.
    fn write_state(&mut self, node: NodeId) {
        let machine = self.nodes.get_mut(&node).unwrap().machine.as_mut();
        let Some((number, bytes)) = machine.and_then(Membership::take_unsaved) else { return };
        let flush_max = self.flush_max.expect("only with a disk");
        let after = self.now + MS / 10 + self.rng.below(flush_max);
        let writing = &mut self.nodes.get_mut(&node).unwrap().disk.writing;
        let before = writing.last().map_or(0, |(at, ..)| *at);
        writing.push((after.max(before), number, bytes));
    }

    /// The group to which a client at this node writes: the first one of the node, or all nodes.
    fn group_at(&self, node: NodeId) -> Group {
        let mut groups = self.groups.iter().filter(|group| group.contains(node));
        groups.next().map_or(0, |group| group.bits())
    }

    /// A client's update at an active member: told when every live member of its group has it.
    pub(super) fn write_record(&mut self, node: u16) -> bool {
        let Some(machine) = &self.nodes[&NodeId(node)].machine else { return false };
        let view = machine.view().clone();
        let takes_part = |member: NodeId| {
            let machine = self.nodes.get(&member).and_then(|node| node.machine.as_ref());
            machine.is_some_and(|machine| *machine.view() == view) && !self.is_paused(member)
        };
        let group = self.group_at(NodeId(node));
        let replicas: NodeSet = view.live().into_iter().filter(|node| has(group, *node)).collect();
        if !view.active().contains(NodeId(node)) || !replicas.into_iter().all(takes_part) {
            return false;
        }
        self.sequence += 1;
        let record = (group, self.sequence);
        for member in replicas {
            self.nodes.get_mut(&member).unwrap().records.1.insert(record);
        }
        self.acknowledged.entry(view.cluster).or_default().insert(record);
        true
    }

    /// What a group was told does not count any more.
    pub(super) fn accept_loss(&mut self, group: NodeSet) {
        for told in self.acknowledged.values_mut() {
            told.retain(|record| record.0 != group.bits());
        }
    }

    /// A node enters a view: as a shadow it has nothing that counts.
    fn enter_view(&mut self, node: NodeId) {
        let state = self.nodes.get_mut(&node).unwrap();
        let Some(machine) = &state.machine else { return };
        let view = machine.view();
        if view.epoch.0 == 0 || machine.expelled() {
            return;
        }
        // A recovered cluster goes on with what its first active members have.
        let is_founded = state.records.0 != view.cluster && view.epoch == Epoch(1);
        if is_founded || is_shadow(view, node) && !machine.caught_up {
            state.records.1.clear();
        }
        state.records.0 = view.cluster;
    }

    /// Crashes a node whose peers notice by the broken connection.
    pub(super) fn kill(&mut self, node: u16) {
        self.crash(node);
        for peer in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.request(peer.0, Request::PeerLost(NodeId(node)));
        }
    }

    pub(super) fn pause(&mut self, node: u16, for_ms: u64) {
        self.nodes.get_mut(&NodeId(node)).unwrap().paused_until = self.now + for_ms * MS;
    }

    pub(super) fn machine(&self, node: u16) -> &Membership {
        self.nodes[&NodeId(node)].machine.as_ref().unwrap()
    }

    pub(super) fn reason(&self, node: u16) -> alloc::string::String {
        self.machine(node).status(self.now(node).monotonic).reason
    }

    pub(super) fn now(&self, node: u16) -> Now {
        let monotonic = self.nodes[&NodeId(node)].local(self.now);
        Now { monotonic, unix: UnixNanos(0) }
    }

    pub(super) fn is_paused(&self, node: NodeId) -> bool {
        self.nodes[&node].paused_until > self.now
    }

    pub(super) fn request(&mut self, node: u16, request: Request) -> Tag {
        self.sequence += 1;
        let tag = Tag(self.sequence);
        self.step(NodeId(node), Event::Request { tag, request });
        tag
    }

    fn step(&mut self, node: NodeId, event: Event<'_, Membership>) {
        let now = self.now(node.0);
        let Some(machine) = self.nodes.get_mut(&node).unwrap().machine.as_mut() else { return };
        let mut outputs = Outputs::default();
        let before = machine.view().clone();
        machine.step(now, event, &mut outputs);
        machine.check_invariants();
        let expelled = machine.expelled();
        let is_new = *machine.view() != before;
        if !expelled && machine.view().epoch.0 > 0 {
            let view = machine.view().clone();
            let key = (view.cluster, view.epoch);
            let first = self.installed.entry(key).or_insert_with(|| view.clone());
            assert_eq!(*first, view, "two views for one epoch");
        }
        if is_new {
            self.enter_view(node);
        }
        self.writes += outputs.sent.iter().map(|(to, _)| *to).collect::<NodeSet>().len() as u64;
        for (to, bytes) in outputs.sent {
            self.transmit(node, to, &bytes);
        }
        self.completed.extend(outputs.completed);
        for probe in outputs.probes {
            assert!(<Membership as quorate_machine::Protocol>::PROBES.contains(&probe));
            *self.probes.entry(probe).or_default() += 1;
        }
        if expelled {
            self.incarnations += 1;
            let incarnation = Incarnation(self.incarnations);
            let state = self.nodes.get_mut(&node).unwrap();
            let next = state.machine.take().map(|old| old.into_next_life(incarnation, now));
            state.machine = next;
        }
        self.write_state(node);
    }

    /// A member hears of another one now which members that hears.
    pub(super) fn tell_heard(&mut self, from: u16, to: u16, hears: NodeSet) {
        let view = self.machine(to).view().clone();
        let incarnation = view.member(NodeId(from)).expect("a member").incarnation;
        let body = Body::Renew {
            sent: None,
            caught_up: false,
            is_complete: false,
            hears,
            admits: NodeSet::EMPTY,
        };
        let body = Message { incarnation, cluster: view.cluster, epoch: view.epoch, body };
        self.step(NodeId(to), Event::Message { from: NodeId(from), epoch: view.epoch, body });
    }

    fn transmit(&mut self, from: NodeId, to: NodeId, bytes: &[u8]) {
        self.messages += 1;
        let connected = self.cut.is_none_or(|side| side.contains(from) == side.contains(to));
        let message = Message::decode(Reader(bytes)).expect("every message can be read");
        let lost = !connected || (self.loses)(from.0, to.0, &message.body);
        if lost || !self.nodes.contains_key(&to) {
            return;
        }
        let copies = u64::from(!self.rng.chance(self.loss_percent, 100))
            + u64::from(self.rng.chance(self.loss_percent, 100));
        for _ in 0..copies {
            let mut delay = MS / 50 + self.rng.below(self.delay_max);
            if self.rng.chance(self.loss_percent, 200) {
                delay += self.rng.below(300 * MS);
            }
            self.sequence += 1;
            self.wire.insert((self.now + delay, self.sequence), (from, to, bytes.into()));
        }
    }

    /// Advances to the next message or deadline, if it lies before `end`.
    fn advance(&mut self, end: u64) -> bool {
        let message = self.wire.first_key_value().map_or(u64::MAX, |((at, _), _)| *at);
        let wake = self.nodes.iter().filter_map(|(id, node)| {
            let deadline = node.machine.as_ref()?.next_deadline();
            Some((node.due(deadline).max(node.paused_until).max(self.now), *id))
        });
        let (wake, node) = wake.min().unwrap_or((u64::MAX, NodeId(0)));
        let writes = self.nodes.iter().filter_map(|(id, node)| {
            let (at, ..) = node.disk.writing.first()?;
            Some(((*at).max(node.paused_until).max(self.now), *id))
        });
        let (durable, disk) = writes.min().unwrap_or((u64::MAX, NodeId(0)));
        let next = message.min(wake).min(durable);
        if next >= end {
            self.now = end;
            return false;
        }
        self.now = self.now.max(next);
        if durable == next {
            let state = self.nodes.get_mut(&disk).unwrap();
            let (_, number, bytes) = state.disk.writing.remove(0);
            state.disk.state = Some(bytes);
            self.step(disk, Event::Durable(Lsn(number)));
        } else if wake < message {
            self.timers += 1;
            self.step(node, Event::Tick);
        } else if let Some((_, (from, to, bytes))) = self.wire.pop_first() {
            if self.is_paused(to) {
                // Messages that arrive meanwhile wait in the socket.
                self.sequence += 1;
                let at = self.nodes[&to].paused_until;
                self.wire.insert((at, self.sequence), (from, to, bytes));
            } else {
                let body = Message::decode(Reader(&bytes)).expect("peers are correct");
                self.step(to, Event::Message { from, epoch: body.epoch, body });
            }
        }
        true
    }

    /// Runs for so many milliseconds, checking the leases at every step.
    pub(super) fn run(&mut self, for_ms: u64) {
        let end = self.now + for_ms * MS;
        while self.advance(end) {
            if let Some(violation) = self.violation() {
                panic!("at {} us: {violation}", self.now / 1000);
            }
        }
    }

    /// Runs on, to the first violation of a lease or to the end. Returns whether there was a
    /// violation.
    pub(super) fn finds_violation(&mut self, for_ms: u64) -> bool {
        let end = self.now + for_ms * MS;
        while self.advance(end) {
            if self.violation().is_some() {
                return true;
            }
        }
        false
    }

    /// The lease rule: a node that believes itself operational is live in every newer view that any
    /// node has installed; and no two clusters are operational at once.
    pub(super) fn violation(&self) -> Option<alloc::string::String> {
        let mut clusters = Vec::new();
        for (id, node) in &self.nodes {
            let Some(machine) = &node.machine else { continue };
            if machine.lease_until() <= node.local(self.now) {
                continue;
            }
            clusters.push(machine.view().cluster);
            let told = self.acknowledged.get(&machine.view().cluster);
            let is_active = machine.view().active().contains(*id);
            let lacks = |record: &Record| has(record.0, *id) && !node.records.1.contains(record);
            if is_active && told.is_some_and(|told| told.iter().any(lacks)) {
                return Some(format!(
                    "{id:?} serves in {:?} without what clients were told: {:?} of {told:?}",
                    machine.view(),
                    node.records
                ));
            }
            let own = (machine.view().cluster, machine.view().epoch);
            let end = (machine.view().cluster, Epoch(u64::MAX));
            for ((_, epoch), view) in self.installed.range(own..end) {
                if !view.is_live(*id, machine.me.incarnation) {
                    return Some(format!(
                        "{id:?} is operational in {:?}, and gone in {epoch:?}",
                        machine.view().epoch
                    ));
                }
            }
        }
        clusters.dedup();
        (clusters.len() > 1).then(|| format!("clusters {clusters:?} at once"))
    }

    pub(super) fn is_serving(&self, node: u16) -> bool {
        let machine = self.nodes[&NodeId(node)].machine.as_ref();
        machine.is_some_and(|machine| {
            machine.view().active().contains(NodeId(node))
                && machine.lease_until() > self.now(node).monotonic
        })
    }

    /// Shadows have nothing to copy here.
    pub(super) fn catch_up(&mut self) {
        for id in self.nodes.keys().copied().collect::<Vec<_>>() {
            let Some(machine) = &self.nodes[&id].machine else { continue };
            let epoch = machine.view().epoch;
            if machine.view().shadows().contains(id) && !machine.caught_up && !self.is_paused(id) {
                if !self.copy_records(id) {
                    continue;
                }
                self.request(id.0, Request::CaughtUp { epoch });
            }
        }
    }

    /// Copies what an active member of the same view has, for each group of the node.
    fn copy_records(&mut self, node: NodeId) -> bool {
        let view = self.machine(node.0).view().clone();
        let groups = self.groups.iter().map(|group| group.bits()).filter(|group| has(*group, node));
        for group in groups.chain([0]).collect::<Vec<_>>() {
            let is_donor = |donor: &NodeId| {
                let machine = self.nodes.get(donor).and_then(|node| node.machine.as_ref());
                has(group, *donor) && machine.is_some_and(|machine| *machine.view() == view)
            };
            let Some(donor) = view.active().into_iter().find(is_donor) else {
                let mut told = self.acknowledged.values().flatten();
                if told.all(|record| record.0 != group) {
                    continue;
                }
                return false;
            };
            let mut records = self.nodes[&donor].records.1.clone();
            records.retain(|record| record.0 == group);
            self.nodes.get_mut(&node).unwrap().records.1.extend(records);
        }
        true
    }

    /// Runs until all of `nodes` serve in one epoch; returns the number of milliseconds.
    pub(super) fn run_until_serving(&mut self, nodes: &[u16], within_ms: u64) -> u64 {
        let begin = self.now;
        loop {
            let epochs: Vec<_> =
                nodes.iter().map(|node| self.nodes[&NodeId(*node)].machine.as_ref()).collect();
            let epoch = epochs[0].map(|machine| machine.view().epoch);
            let agree =
                epochs.iter().all(|machine| machine.map(|machine| machine.view().epoch) == epoch);
            if agree && nodes.iter().all(|node| self.is_serving(*node)) {
                return (self.now - begin) / MS;
            }
            if self.now - begin >= within_ms * MS {
                let status: Vec<_> = nodes
                    .iter()
                    .map(|node| {
                        let machine = self.nodes[&NodeId(*node)].machine.as_ref();
                        machine.map(|machine| machine.status(self.now(*node).monotonic))
                    })
                    .collect();
                panic!("{nodes:?} don't serve after {within_ms} ms: {status:#?}");
            }
            self.run(1);
            self.catch_up();
        }
    }

    /// Whether, by the view of every running member, a majority of the voters other than `but`
    /// still runs in the life that the view names, and an active member does.
    pub(super) fn keeps_majority(&self, but: NodeId) -> bool {
        let runs = |node: NodeId, as_voter: bool, incarnation| {
            let machine = self.nodes.get(&node).and_then(|node| node.machine.as_ref());
            let life = machine.map(|machine| if as_voter { machine.voter } else { machine.me });
            node != but && life.is_some_and(|life| life.incarnation == incarnation)
        };
        self.nodes.values().filter_map(|node| node.machine.as_ref()).all(|machine| {
            let voters = voters(&machine.view);
            let running = voters.iter().filter(|voter| runs(voter.node, true, voter.incarnation));
            let mut members = machine.view.members.iter();
            let serves = |member: &quorate_types::Member| {
                member.role == Role::Active && runs(member.node, false, member.incarnation)
            };
            machine.log.is_none() || running.count() * 2 > voters.len() && members.any(serves)
        })
    }
}
