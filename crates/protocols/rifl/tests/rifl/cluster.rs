//! Lease managers of one lane on several nodes, with clocks that differ and drift, a network that
//! delays, loses and repeats, and views that come at different times.

use std::collections::BTreeMap;

use quorate_machine::{Effects, Event, Machine, Rng};
use quorate_rifl::{
    Answer, Config, Grant, Key, LeaseEnd, LeaseId, LeaseManager, Lost, Message, Request,
};
use quorate_types::{
    Duration, Epoch, Incarnation, Instant, LaneId, Member, MemberNumber, NodeId, Now, Role, Tag,
    UnixNanos, View,
};

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const TERM: u64 = 2_000 * MS;
/// Most leases that a lease manager gives out.
pub(crate) const LEASES_MAX: usize = 1_000;

#[derive(Default)]
struct Out {
    sent: Vec<(NodeId, Message)>,
    done: Vec<(Tag, Answer)>,
}

impl Effects<LeaseManager> for Out {
    fn send(&mut self, to: NodeId, message: &Message) {
        self.sent.push((to, message.clone()));
    }

    fn complete(&mut self, tag: Tag, answer: Answer) {
        self.done.push((tag, answer));
    }
}

pub(crate) struct Node {
    pub(crate) lease_manager: LeaseManager,
    /// How this node's clocks are wrong: the monotonic one's origin and rate, the wall clock's
    /// offset.
    origin: u64,
    drift_ppm: i64,
    pub(crate) skew: i64,
    pub(crate) epoch: Epoch,
}

impl Node {
    pub(crate) fn now(&self, time: u64) -> Now {
        let elapsed = time as i64 + time as i64 / 1_000_000 * self.drift_ppm;
        let monotonic = Instant(self.origin + elapsed as u64);
        Now { monotonic, unix: UnixNanos((1_000_000 * MS as i64 + elapsed + self.skew) as u64) }
    }
}

struct Flight {
    at: u64,
    from: (NodeId, u32),
    to: NodeId,
    epoch: Epoch,
    message: Message,
}

/// The faults of clocks and network.
#[derive(Clone, Copy)]
pub(crate) struct Weather {
    pub(crate) delay: u64,
    pub(crate) loss_percent: u64,
    pub(crate) repeat_percent: u64,
}

pub(crate) const CALM: Weather = Weather { delay: MS, loss_percent: 0, repeat_percent: 0 };

pub(crate) struct Cluster {
    pub(crate) time: u64,
    pub(crate) rng: Rng,
    pub(crate) weather: Weather,
    pub(crate) nodes: BTreeMap<NodeId, Node>,
    pub(crate) view: View,
    flights: Vec<Flight>,
    next_tag: u64,
    pub(crate) answers: BTreeMap<Tag, Answer>,
    pub(crate) verdicts: Vec<(NodeId, LeaseEnd)>,
    /// Everything ever granted and everything ever declared expired, in order.
    granted: BTreeMap<LeaseId, u64>,
    expired: BTreeMap<LeaseId, u64>,
}

pub(crate) fn member(node: u16, number: u32, role: Role) -> Member {
    let address = String::new();
    Member {
        node: NodeId(node),
        incarnation: Incarnation(u64::from(number)),
        number: MemberNumber(number),
        role,
        peer_address: address.clone(),
        client_address: address.clone(),
        admin_address: address,
    }
}

impl Cluster {
    /// Nodes 1 to `count` with numbers alike, in their first view.
    pub(crate) fn new(count: u16, seed: u64) -> Self {
        let mut cluster = Self {
            time: 0,
            rng: Rng::new(seed),
            weather: CALM,
            nodes: BTreeMap::new(),
            view: View::default(),
            flights: Vec::new(),
            next_tag: 0,
            answers: BTreeMap::new(),
            verdicts: Vec::new(),
            granted: BTreeMap::new(),
            expired: BTreeMap::new(),
        };
        for node in 1..=count {
            cluster.start(node, u32::from(node));
        }
        let members = (1..=count).map(|node| member(node, u32::from(node), Role::Active)).collect();
        cluster.install(members);
        for node in 1..=count {
            cluster.tell(node);
        }
        cluster
    }

    /// A process starts, with clocks of its own.
    pub(crate) fn start(&mut self, node: u16, number: u32) {
        let incarnation = Incarnation(u64::from(number));
        let config = Config {
            term: Duration::from_nanos(TERM),
            leases_max: LEASES_MAX,
            key: Key([u64::from(number), 7]),
            round: Duration::from_millis(100),
            op_timeout: Duration::from_millis(800),
            ..Config::new(NodeId(node), incarnation, LaneId(0))
        };
        let origin = self.rng.below(1_000_000) * MS;
        let drift_ppm = self.rng.below(1_000) as i64 - 500;
        let skew = self.rng.below(400 * MS) as i64 - 200 * MS as i64;
        let (lease_manager, epoch) = (LeaseManager::new(config), Epoch(0));
        self.nodes.insert(NodeId(node), Node { lease_manager, origin, drift_ppm, skew, epoch });
    }

    /// The next view; [`Cluster::tell`] shows it to a node.
    pub(crate) fn install(&mut self, members: Vec<Member>) {
        let last = members.iter().map(|member| member.number).max().unwrap_or_default();
        let epoch = Epoch(self.view.epoch.0 + 1);
        self.view = View {
            epoch,
            cluster: Incarnation(1),
            members,
            last_number: last.max(self.view.last_number),
        };
    }

    pub(crate) fn tell(&mut self, node: u16) {
        let view = self.view.clone();
        if let Some(node) = self.nodes.get_mut(&NodeId(node)) {
            node.epoch = view.epoch;
        }
        self.step(NodeId(node), Event::View(&view));
    }

    pub(crate) fn request(&mut self, node: u16, request: Request) -> Tag {
        self.next_tag += 1;
        let tag = Tag(self.next_tag);
        self.step(NodeId(node), Event::Request { tag, request });
        tag
    }

    pub(crate) fn sweep(&mut self, node: u16, leases: &[LeaseId]) {
        let mut out = Out::default();
        let Some(found) = self.nodes.get_mut(&NodeId(node)) else { return };
        found.lease_manager.sweep(found.now(self.time), leases, &mut out);
        self.carry_out(NodeId(node), out);
    }

    fn step(&mut self, node: NodeId, event: Event<'_, LeaseManager>) {
        let mut out = Out::default();
        let Some(found) = self.nodes.get_mut(&node) else { return };
        found.lease_manager.step(found.now(self.time), event, &mut out);
        found.lease_manager.check_invariants();
        self.carry_out(node, out);
    }

    fn carry_out(&mut self, node: NodeId, out: Out) {
        let found = self.nodes.get_mut(&node).expect("it has just acted");
        let epoch = found.epoch;
        let verdicts = found.lease_manager.take_verdicts();
        let number = self.view.member(node).map_or(0, |member| member.number.0);
        for (to, message) in out.sent {
            self.see_grant(&message);
            let Weather { delay, loss_percent, repeat_percent } = self.weather;
            let copies = 1 + u64::from(self.rng.below(100) < repeat_percent);
            for _ in 0..copies {
                if self.rng.below(100) >= loss_percent {
                    let at = self.time + delay / 4 + self.rng.below(delay);
                    let message = message.clone();
                    self.flights.push(Flight { at, from: (node, number), to, epoch, message });
                }
            }
        }
        for (tag, answer) in out.done {
            if let Answer::Granted(grant) = answer {
                self.note_grant(grant.lease, grant.until);
            }
            assert!(self.answers.insert(tag, answer).is_none(), "{tag} is answered twice");
        }
        for verdict in verdicts {
            self.verdicts.push((node, verdict));
            if verdict.lost == Lost::Expired {
                let granted = self.granted.get(&verdict.lease).copied().unwrap_or_default();
                assert!(
                    verdict.granted >= granted,
                    "{:?} is over as of {} and was granted until {granted}",
                    verdict.lease,
                    verdict.granted
                );
                self.expired.entry(verdict.lease).or_insert(verdict.granted);
            }
        }
    }

    /// A grant counts from its sending, not from its first use.
    fn see_grant(&mut self, message: &Message) {
        match &message.body {
            quorate_rifl::Body::Grant { lease, until, .. } => self.note_grant(*lease, *until),
            quorate_rifl::Body::Gone { leases } => {
                for (lease, lost) in leases {
                    if *lost == Lost::Expired {
                        self.expired.entry(*lease).or_insert(message.clock);
                    }
                }
            }
            _ => {}
        }
    }

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

    /// Lets time pass, in steps of a millisecond.
    pub(crate) fn run(&mut self, span: u64) {
        let end = self.time + span;
        while self.time < end {
            self.time += MS;
            let (due, later) = core::mem::take(&mut self.flights)
                .into_iter()
                .partition::<Vec<_>, _>(|flight| flight.at <= self.time);
            self.flights = later;
            for Flight { from, to, epoch, message, .. } in due {
                // Connections end with the process at either side.
                let number = self.view.member(from.0).map_or(0, |member| member.number.0);
                if self.nodes.contains_key(&to) && (number == from.1 || number == 0) {
                    self.step(to, Event::Message { from: from.0, epoch, body: message });
                }
            }
            let nodes: Vec<NodeId> = self.nodes.keys().copied().collect();
            for node in nodes {
                let found = &self.nodes[&node];
                if found.lease_manager.next_deadline() <= found.now(self.time).monotonic {
                    self.step(node, Event::Tick);
                }
            }
        }
    }

    /// The answer to a request, given time.
    pub(crate) fn ask(&mut self, node: u16, request: Request) -> Answer {
        let tag = self.request(node, request);
        for _ in 0..1000 {
            if let Some(answer) = self.answers.get(&tag) {
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
