//! Lease managers of one lane on several nodes, with clocks that differ and drift, a network that
//! delays, loses and repeats, and views that come at different times.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};

use quorate_harness::{Clock, Logs, Packet, Process, Step, Subject};
use quorate_machine::{Machine, Rng};
use quorate_rifl::{
    Answer, Body, Config, Grant, Key, LeaseEnd, LeaseId, LeaseManager, Lost, Message, Request,
};
use quorate_types::{Duration, Incarnation, NodeId, Role};
use quorate_wire::Writer;

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const TERM: u64 = 2_000 * MS;
/// Most leases that a lease manager gives out.
pub(crate) const LEASES_MAX: usize = 1_000;

/// Lease managers, and everything ever granted and ever declared expired.
#[derive(Default)]
pub(crate) struct Managers {
    granted: BTreeMap<LeaseId, u64>,
    expired: BTreeMap<LeaseId, u64>,
}

impl Managers {
    fn note_grant(&mut self, lease: LeaseId, until: u64) {
        if let Some(over) = self.expired.get(&lease) {
            // An answer under way may come late, but its grant is below the end.
            assert!(
                until <= *over,
                "{lease:?} is granted until {until}, and was over as of {over}"
            );
        }
        let known = self.granted.entry(lease).or_default();
        *known = until.max(*known);
    }

    fn note_end(&mut self, verdict: &LeaseEnd) {
        let LeaseEnd { lease, granted, .. } = *verdict;
        let known = self.granted.get(&lease).copied().unwrap_or_default();
        assert!(
            granted >= known,
            "{lease:?} is over as of {granted} and was granted until {known}"
        );
        self.expired.entry(lease).or_insert(granted);
    }
}

impl Subject for Managers {
    type Machine = LeaseManager;

    fn start(&self, process: Process) -> LeaseManager {
        LeaseManager::new(Config {
            term: Duration::from_nanos(TERM),
            leases_max: LEASES_MAX,
            key: Key([process.incarnation.0, 7]),
            round: Duration::from_millis(100),
            op_timeout: Duration::from_millis(800),
            ..Config::new(process.node, process.incarnation, process.lane)
        })
    }

    fn encode(message: &Message, bytes: &mut Vec<u8>) {
        message.encode(&mut Writer(bytes));
    }

    fn decode(bytes: &[u8]) -> Message {
        Message::decode(bytes).expect("just encoded")
    }

    fn note(&mut self, step: &Step<'_, Self>) {
        for message in step.packets.iter().map(Packet::message) {
            match &message.body {
                // A grant counts from its sending, not from its first use.
                Body::Grant { lease, until, .. } => self.note_grant(*lease, *until),
                Body::Gone { leases } => {
                    for (lease, _) in leases.iter().filter(|(_, lost)| *lost == Lost::Expired) {
                        self.expired.entry(*lease).or_insert(message.clock);
                    }
                }
                _ => {}
            }
        }
        for (_, completion) in step.answers {
            if let Answer::Granted(grant) = completion.outcome {
                self.note_grant(grant.lease, grant.until);
            }
        }
    }
}

/// A message on its way, with the life of its sender.
struct Flight {
    at: u64,
    sender: Incarnation,
    packet: Packet<Managers>,
}

/// The faults of the network.
#[derive(Clone, Copy)]
pub(crate) struct Weather {
    pub(crate) delay: u64,
    pub(crate) loss_percent: u64,
    pub(crate) repeat_percent: u64,
}

pub(crate) const CALM: Weather = Weather { delay: MS, loss_percent: 0, repeat_percent: 0 };

pub(crate) struct Cluster {
    cluster: quorate_harness::Cluster<Managers>,
    pub(crate) rng: Rng,
    pub(crate) weather: Weather,
    flights: Vec<Flight>,
    pub(crate) verdicts: Vec<(NodeId, LeaseEnd)>,
}

impl Deref for Cluster {
    type Target = quorate_harness::Cluster<Managers>;

    fn deref(&self) -> &Self::Target {
        &self.cluster
    }
}

impl DerefMut for Cluster {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.cluster
    }
}

impl Cluster {
    /// Nodes 1 to `count`, in their first view.
    pub(crate) fn new(count: u16, seed: u64) -> Self {
        Self::of(count, seed, Logs::None)
    }

    /// The same with logs, which are flushed every millisecond.
    pub(crate) fn logging(count: u16, seed: u64) -> Self {
        Self::of(count, seed, Logs::Sync)
    }

    fn of(count: u16, seed: u64, logs: Logs) -> Self {
        let mut cluster = Self {
            cluster: quorate_harness::Cluster::new(Managers::default()),
            rng: Rng::new(seed),
            weather: CALM,
            flights: Vec::new(),
            verdicts: Vec::new(),
        };
        cluster.keep_logs(logs);
        (1..=count).for_each(|node| cluster.start(node));
        cluster.found();
        cluster.carry_out();
        cluster
    }

    /// A process starts, with clocks of its own.
    pub(crate) fn start(&mut self, node: u16) {
        self.cluster.start(node, 0);
        let ahead = self.rng.below(400 * MS) as i64 - 200 * MS as i64;
        self.set_clocks(node, ahead);
    }

    /// The power of all nodes is gone, and these start again with wall clocks that are so far ahead. The
    /// others are down.
    pub(crate) fn lose_power(&mut self, back: &[u16], ahead: impl Fn(u16) -> i64) {
        let mut rng = self.rng.clone();
        for node in self.nodes() {
            if self.hosts[&node].up {
                self.cluster.cut_power(node, &mut rng);
            }
        }
        self.rng = rng;
        self.flights.clear();
        for node in back {
            self.restart(*node, 0);
            self.set_clocks(*node, ahead(*node));
        }
        let role = |node| if back.contains(&node) { Role::Active } else { Role::Down };
        let roles: Vec<_> = self.nodes().into_iter().map(|node| (node, role(node))).collect();
        self.decide(&roles);
        back.iter().for_each(|node| self.tell(*node));
    }

    /// These lose power while others live, and come back at once as active members, as where they are all
    /// that have some data. Their wall clocks are so far ahead.
    pub(crate) fn lose_power_beside_others(&mut self, nodes: &[u16], ahead: i64) {
        for node in nodes {
            self.cluster.cut_power_unflushed(*node);
            self.restart(*node, 0);
            self.set_clocks(*node, ahead);
        }
        let roles = self.roles();
        self.decide(&roles);
        self.nodes().into_iter().for_each(|node| self.tell(node));
    }

    fn set_clocks(&mut self, node: u16, ahead: i64) {
        // Some machines have just begun.
        let origin = match self.rng.below(4) {
            0 => self.rng.below(TERM / 16),
            _ => self.rng.below(1_000_000) * MS,
        };
        let fast_ppm = self.rng.below(1_000) as i64 - 500;
        self.set_clock(node, Clock { origin, fast_ppm, ahead });
    }

    /// Decides a view in which a node has this role. No node is told.
    pub(crate) fn decide_role(&mut self, node: u16, role: Role) {
        let roles = self.roles_with(node, role);
        self.decide(&roles);
    }

    /// A node hears of the latest view, if it runs.
    pub(crate) fn tell(&mut self, node: u16) {
        let view = self.view.clone();
        self.install_on(node, &view);
        self.carry_out();
    }

    pub(crate) fn request(&mut self, node: u16, request: Request) -> u64 {
        let tag = self.cluster.request(node, request);
        self.carry_out();
        tag
    }

    pub(crate) fn sweep(&mut self, node: u16, leases: &[LeaseId]) {
        self.act(node, |manager, now, out| manager.sweep(now, leases, out));
        self.carry_out();
    }

    /// Sends off what the last step said, and takes note of what it has ended.
    fn carry_out(&mut self) {
        self.pool.clear();
        for packet in std::mem::take(&mut self.fresh_packets) {
            let Weather { delay, loss_percent, repeat_percent } = self.weather;
            let sender = self.hosts[&packet.from.0].incarnation;
            let copies = 1 + u64::from(self.rng.below(100) < repeat_percent);
            for _ in 0..copies {
                if self.rng.below(100) >= loss_percent {
                    let at = self.nanos() + delay / 4 + self.rng.below(delay);
                    self.flights.push(Flight { at, sender, packet: packet.clone() });
                }
            }
        }
        for node in self.nodes() {
            for verdict in self.machine(node).take_verdicts() {
                if verdict.lost == Lost::Expired {
                    self.subject.note_end(&verdict);
                }
                self.verdicts.push((NodeId(node), verdict));
            }
        }
    }

    /// True time, in nanoseconds.
    pub(crate) fn nanos(&self) -> u64 {
        self.now.monotonic.0
    }

    /// Lets time pass, in steps of a millisecond.
    pub(crate) fn run(&mut self, span: u64) {
        let end = self.nanos() + span;
        while self.nanos() < end {
            self.advance(Duration::from_millis(1));
            if self.flush_logs() {
                self.carry_out();
            }
            let now = self.nanos();
            let due: Vec<_> = self.flights.extract_if(.., |flight| flight.at <= now).collect();
            for Flight { sender, packet, .. } in due {
                // Connections end with the process at either side.
                let host = &self.hosts[&packet.from.0];
                if host.up && host.incarnation == sender {
                    self.inject(&packet);
                    self.carry_out();
                }
            }
            for node in self.nodes() {
                let deadline = self.machine(node).next_deadline();
                if deadline <= self.now_at(node).monotonic {
                    self.tick_node(node);
                    self.carry_out();
                }
            }
        }
    }

    /// The answer to a request, given time.
    pub(crate) fn ask(&mut self, node: u16, request: Request) -> Answer {
        let tag = self.request(node, request);
        for _ in 0..1000 {
            if let Some(answer) = self.outcome(tag) {
                return *answer;
            }
            self.run(MS);
        }
        panic!("{request:?} is not answered");
    }

    pub(crate) fn open(&mut self, node: u16) -> Grant {
        match self.ask(node, Request::Open) {
            Answer::Granted(grant) => grant,
            other => panic!("a lease was refused: {other:?}"),
        }
    }
}
