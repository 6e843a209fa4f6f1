//! Nodes, clocks and events of one run.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::fmt;
use std::sync::Arc;

use quorate_commands::{Call, OwnedCall, Reply, Txn};
use quorate_machine::{Access, Operation, Outcome, Refusal, Rng};
use quorate_node::{EngineConfig, Lane, Mail, NodeConfig, Outbox, SessionCall, Shared};
use quorate_types::{
    Duration, Incarnation, Instant, KeyspaceId, LaneId, NodeId, NodeSet, Now, Role, Tag, Timestamp,
    UnixNanos,
};

use crate::Faults;
use crate::guests::Guest;
use crate::network::{Fates, Network, describe, hash};
use crate::script::{Fate, Fault, MessageId, Process};
use crate::trace::{At, Trace};

/// One millisecond in the unit of virtual time.
pub(crate) const MS: u64 = 1_000_000;
/// Wall-clock time at the start of every world.
pub(crate) const WALL_START: u64 = 1_700_000_000_000 * MS;

/// Something that will happen.
#[derive(Debug)]
pub(crate) enum Event {
    /// A peer message arrives.
    Packet {
        to: usize,
        link: u64,
        lane: u16,
        from: NodeId,
        incarnation: Incarnation,
        bytes: Vec<u8>,
    },
    /// Mail between two lanes of a node arrives.
    Mail { node: usize, life: u64, lane: u16, mail: Box<Mail> },
    /// A lane's deadline.
    Wake { node: usize, life: u64, lane: u16 },
    /// A stopped process goes on.
    Resume { node: usize, life: u64 },
    /// A node learns that a connection broke.
    PeerLost { node: usize, life: u64, lost: NodeId },
    /// Whatever the layer above scheduled.
    Client(usize),
    /// A client gives up waiting.
    ClientTimeout { client: usize, op: u64 },
    /// A client's request reaches its node.
    Request { client: usize, op: u64 },
    /// A client with a session looks at what it has to do.
    Session(usize),
    /// Such a client tries a call again.
    SessionAgain { client: usize, lease: quorate_rifl::LeaseId, sequence: u64 },
    /// A request of such a client reaches its node.
    SessionTry { number: u64 },
    /// Such a client gives up waiting for the answer.
    SessionTimeout { number: u64 },
    /// A guest looks after its connections.
    GuestTend { guest: usize, life: u64 },
    /// A guest's deadline.
    GuestWake { guest: usize, life: u64 },
    /// A stopped guest goes on.
    GuestResume { guest: usize, life: u64 },
    /// A node's message reaches a guest.
    GuestHears { guest: usize, life: u64, connection: u64, from: usize, bytes: Vec<u8> },
    /// A guest's connection reaches a node, with what it says first.
    GuestConnects {
        node: usize,
        life: u64,
        id: NodeId,
        connection: u64,
        lane: u16,
        session: Incarnation,
        bytes: Vec<u8>,
    },
    /// A guest's message reaches a node.
    GuestSays { node: usize, life: u64, id: NodeId, connection: u64, bytes: Vec<u8> },
    /// A node learns that a guest's connection is gone.
    GuestLost { node: usize, life: u64, id: NodeId, connection: u64 },
    /// The nemesis draws something.
    Nemesis,
    /// A script has something break, or mended.
    Fault(Fault),
    /// The nemesis undoes something.
    Undo(crate::nemesis::Undo),
}

/// What a client asks of a node.
#[derive(Clone, Debug)]
pub(crate) enum Command {
    /// A command on one key, of a keyspace without transactions.
    Op(OwnedCall),
    /// A transaction.
    Txn(Txn),
}

impl Command {
    /// The command, if a local record might answer it.
    fn single_read(&self) -> Option<Call<'_>> {
        let (Self::Op(call) | Self::Txn(Txn::Call(call))) = self else { return None };
        let call = call.call();
        let single = matches!(call.single_key(), Ok(Some(_))) && call.keys().count() == 1;
        (single && call.access() == Access::Read).then_some(call)
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let write = |f: &mut fmt::Formatter<'_>, call: &OwnedCall| {
            let words = call.call().args.iter().map(|word| word.escape_ascii().to_string());
            f.write_str(&words.collect::<Vec<_>>().join(" "))
        };
        match self {
            Self::Op(call) | Self::Txn(Txn::Call(call)) => write(f, call),
            Self::Txn(Txn::Block(block)) => {
                for (key, watch) in &block.watches {
                    write!(f, "[{} at {:?}] ", key.escape_ascii(), watch.timestamp)?;
                }
                for (at, call) in block.calls.iter().enumerate() {
                    f.write_str(if at == 0 { "" } else { "; " })?;
                    write(f, call)?;
                }
                Ok(())
            }
            Self::Txn(Txn::Versions(keys)) => {
                let keys = keys.iter().map(|key| key.escape_ascii().to_string());
                write!(f, "WATCH {}", keys.collect::<Vec<_>>().join(" "))
            }
        }
    }
}

/// An answer on its way to a client.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) tag: Tag,
    pub(crate) outcome: Outcome<Reply<'static>>,
    /// When it took effect in the serial order, if the engine says so.
    pub(crate) at: Option<Timestamp>,
}

struct Scheduled {
    at: u64,
    number: u64,
    event: Event,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}
impl Eq for Scheduled {}
impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> Ordering {
        // The heap gives the largest first; we want the earliest.
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

/// From when on a turn is interrupted, after how many turns of that very moment, and for how long.
type Interruption = (u64, u64, u64);

/// When turns are interrupted: drawn, or as a script has it.
pub(crate) struct Interruptions {
    rng: Rng,
    /// Of 100 000 turns.
    pub(crate) chance: u64,
    /// For each lane, in order.
    script: BTreeMap<(usize, u16), VecDeque<Interruption>>,
    /// Those that came about.
    pub(crate) done: Vec<(u64, Fault)>,
}

/// A key with a value: its name, its version, and the value.
pub(crate) type Entry = (String, String, String);

/// One process.
pub(crate) struct Node {
    pub(crate) id: NodeId,
    config: NodeConfig,
    pub(crate) shared: Arc<Shared>,
    lanes: Vec<LaneHost>,
    pub(crate) up: bool,
    /// Counts the processes of this node.
    pub(crate) life: u64,
    /// Counts its incarnations: what was sent to an earlier one is lost, as connections break.
    pub(crate) link: u64,
    /// The incarnations of the process that runs: what it knew in an earlier one is not lost.
    lives: Vec<Incarnation>,
    /// Guests that are connected, with their lanes and the numbers of their connections.
    pub(crate) seats: BTreeMap<NodeId, (u16, u64)>,
    /// When each lane had its last turn, and how many it had had before at that moment.
    turns: Vec<(u64, u64)>,
    pub(crate) paused: bool,
    backlog: Vec<Event>,
    rate_ppm: i64,
    offset: u64,
    /// How far the wall clock is from the true time.
    pub(crate) wall_error: i64,
}

struct LaneHost {
    lane: Lane,
    out: Outbox,
    reads: Vec<Answer>,
    wake_at: u64,
    /// The turn was interrupted before its output left.
    interrupted: bool,
    /// The process was stopped when a turn had just read the clock, this long ago: the first
    /// request that it finds in its sockets afterwards is handled by that reading.
    clock_read_at: Option<u64>,
}

impl Node {
    fn clock(&self, at: u64) -> Now {
        let drift = i128::from(at) * i128::from(self.rate_ppm) / 1_000_000;
        let local = u64::try_from(i128::from(at) + drift).expect("clocks run forward");
        let wall = (WALL_START + at).saturating_add_signed(self.wall_error);
        Now { monotonic: Instant(self.offset + local), unix: UnixNanos(wall) }
    }

    /// What the node does or waits for.
    pub(crate) fn phase(&self, at: u64) -> String {
        self.lanes[0].lane.phase(self.clock(at))
    }

    /// A lane of the process.
    pub(crate) fn lane(&self, lane: usize) -> &Lane {
        &self.lanes[lane].lane
    }

    /// Every key that has a value here, with its version and value, in order of key.
    pub(crate) fn contents(&self) -> Vec<Entry> {
        let store = self.shared.store(KeyspaceId(0)).expect("every world has keyspace 0");
        let mut contents = Vec::new();
        store.dump(&mut |key, version, readable, value| {
            if value.is_some() || !readable {
                contents.push((
                    String::from_utf8_lossy(key).into_owned(),
                    format!("{version:?} {readable}"),
                    String::from_utf8_lossy(value.unwrap_or_default()).into_owned(),
                ));
            }
        });
        contents.sort();
        contents.dedup();
        contents
    }

    /// When, in world time, this node's clock will show `local`; rounded up.
    fn world_time(&self, local: Instant) -> u64 {
        let elapsed = i128::from(local.0.saturating_sub(self.offset));
        let at = elapsed * 1_000_000 / i128::from(1_000_000 + self.rate_ppm) + 1;
        u64::try_from(at).unwrap_or(u64::MAX)
    }
}

/// Everything that exists in a run, except for clients and nemesis.
pub(crate) struct World {
    pub(crate) time: u64,
    pub(crate) rng: Rng,
    queue: BinaryHeap<Scheduled>,
    scheduled: u64,
    pub(crate) nodes: Vec<Node>,
    pub(crate) network: Network,
    pub(crate) trace: Trace,
    pub(crate) guests: Vec<Guest>,
    /// The replica group of each partition.
    pub(crate) groups: Vec<NodeSet>,
    /// When a message counts as lost.
    pub(crate) loss_timeout: Duration,
    pub(crate) fates: Fates,
    pub(crate) interruptions: Interruptions,
    /// Faults have ended: what a script says of messages counts no more, except for their order.
    pub(crate) healed: bool,
    /// Numbers the connections of guests.
    pub(crate) connections: u64,
    /// When the effects of the last disturbance have shown.
    pub(crate) quiet_at: u64,
    /// Nodes that the nemesis has cut off.
    pub(crate) isolated: NodeSet,
    /// Answers that have just left a node, for the clients.
    pub(crate) answers: Vec<Answer>,
    /// What keepers of leases have said, for clients with sessions.
    pub(crate) leased: Vec<(Tag, quorate_rifl::Answer)>,
    /// A node that dies after so many more engine messages, if that leaves a majority.
    pub(crate) ambush: Option<(usize, u64)>,
    /// Nodes that have just died, for the clients.
    pub(crate) died: Vec<usize>,
    /// Guests that have just died, for the clients.
    pub(crate) died_guests: Vec<usize>,
    /// Those of the dead that were ambushed, for the nemesis.
    pub(crate) ambushed: Vec<Process>,
    /// Rare branches reached, and how often.
    pub(crate) probes: BTreeMap<&'static str, u64>,
    /// Peer messages sent.
    pub(crate) messages: u64,
    /// Those of engines by kind, while somebody wants to know; the rest is membership.
    pub(crate) kinds: Option<BTreeMap<String, u64>>,
}

impl World {
    pub(crate) fn new(
        configs: Vec<NodeConfig>,
        network: Network,
        faults: Faults,
        mut rng: Rng,
        trace: bool,
    ) -> Self {
        let drift_ppm = i64::from(configs[0].clock_drift_ppm);
        let mut world = Self {
            time: 0,
            queue: BinaryHeap::new(),
            scheduled: 0,
            nodes: Vec::new(),
            network,
            trace: Trace::new(trace),
            guests: Vec::new(),
            groups: Self::groups_of(&configs),
            loss_timeout: configs[0].message_loss_timeout,
            fates: Fates::new(rng.fork()),
            interruptions: Interruptions {
                rng: rng.fork(),
                chance: if faults.pause { 4 } else { 0 },
                script: BTreeMap::new(),
                done: Vec::new(),
            },
            healed: false,
            connections: 0,
            quiet_at: 0,
            isolated: NodeSet::EMPTY,
            answers: Vec::new(),
            leased: Vec::new(),
            ambush: None,
            died: Vec::new(),
            died_guests: Vec::new(),
            ambushed: Vec::new(),
            probes: BTreeMap::new(),
            messages: 0,
            kinds: None,
            rng: rng.fork(),
        };
        for config in configs {
            // Half the bound each way: the bound is on the difference between two clocks.
            let rate_ppm = if faults.drift {
                rng.below(drift_ppm as u64 + 1) as i64 - drift_ppm / 2
            } else {
                0
            };
            let node = Node {
                lives: Vec::new(),
                seats: BTreeMap::new(),
                turns: vec![(u64::MAX, 0); usize::from(config.lanes)],
                id: config.node,
                shared: Shared::new(config.clone()),
                config,
                lanes: Vec::new(),
                up: false,
                life: 0,
                link: 0,
                paused: false,
                backlog: Vec::new(),
                rate_ppm,
                offset: rng.below(1 << 40),
                wall_error: 0,
            };
            world.nodes.push(node);
        }
        for node in 0..world.nodes.len() {
            world.start(node);
        }
        world
    }

    fn groups_of(configs: &[NodeConfig]) -> Vec<NodeSet> {
        let all: NodeSet = configs.iter().map(|config| config.node).collect();
        match &configs[0].keyspaces[0].engine {
            EngineConfig::Meerkat { partitions, .. } => {
                partitions.iter().map(|group| group.unwrap_or(all)).collect()
            }
            EngineConfig::Hermes { .. } | EngineConfig::Baseline(_) => vec![all],
        }
    }

    /// Follows a script from now on: of messages, and of turns that are interrupted.
    pub(crate) fn follow(&mut self, fates: BTreeMap<MessageId, Fate>, faults: &[(u64, Fault)]) {
        self.fates.script = Some(fates);
        self.interruptions.chance = 0;
        for (at, fault) in faults {
            if let Fault::Interrupt { node, lane, turn, span } = *fault {
                let due = self.interruptions.script.entry((node, lane)).or_default();
                due.push_back((*at, turn, span));
            }
        }
    }

    pub(crate) fn schedule(&mut self, at: u64, event: Event) {
        self.scheduled += 1;
        self.queue.push(Scheduled { at: at.max(self.time), number: self.scheduled, event });
    }

    /// The next event, having moved time to it.
    pub(crate) fn next(&mut self, until: u64) -> Option<Event> {
        if self.queue.peek().is_none_or(|next| next.at > until) {
            self.time = until;
            return None;
        }
        let next = self.queue.pop()?;
        self.time = next.at;
        Some(next.event)
    }

    /// Lanes of each node.
    pub(crate) fn lanes(&self) -> u16 {
        self.nodes[0].config.lanes
    }

    pub(crate) fn index(&self, node: NodeId) -> usize {
        usize::from(node.0) - 1
    }

    // --- processes -----------------------------------------------------------------------------

    /// Starts a process: fresh incarnation, empty memory.
    pub(crate) fn start(&mut self, node: usize) {
        let seed = self.rng.next_u64();
        let incarnation = Incarnation(self.rng.next_u64().max(1));
        let time = self.time;
        let this = &mut self.nodes[node];
        this.config.seed = seed;
        this.shared = Shared::new(this.config.clone());
        this.life += 1;
        this.link += 1;
        this.lives = vec![incarnation];
        this.up = true;
        this.paused = false;
        this.backlog.clear();
        this.seats.clear();
        let now = this.clock(time);
        this.lanes = (0..this.config.lanes)
            .map(|lane| LaneHost {
                lane: Lane::new(Arc::clone(&this.shared), LaneId(lane), incarnation, now),
                out: Outbox::new(),
                reads: Vec::new(),
                wake_at: u64::MAX,
                interrupted: false,
                clock_read_at: None,
            })
            .collect();
        let id = this.id;
        self.trace.event(&[time, 1, u64::from(id.0)], || format!("{} start {id:?}", At(time)));
        for lane in 0..self.nodes[node].lanes.len() {
            self.finish_turn(node, lane);
        }
    }

    /// Ends a process without warning; what it had not sent is lost.
    pub(crate) fn kill(&mut self, node: usize) {
        let (time, id) = (self.time, self.nodes[node].id);
        self.disturbed();
        self.died.push(node);
        self.nodes[node].up = false;
        self.nodes[node].life += 1;
        self.nodes[node].link += 1;
        self.nodes[node].backlog.clear();
        self.trace.event(&[time, 2, u64::from(id.0)], || format!("{} kill {id:?}", At(time)));
        for other in 0..self.nodes.len() {
            // A broken connection is a hint that may come at once, late, or (here) never.
            if other != node && self.nodes[other].up && self.rng.chance(1, 2) {
                let life = self.nodes[other].life;
                let at = self.time + self.rng.below(20 * MS);
                self.schedule(at, Event::PeerLost { node: other, life, lost: id });
            }
        }
    }

    /// Stops a process for a while; it notices nothing.
    pub(crate) fn pause(&mut self, node: usize, span: u64) {
        let (time, id) = (self.time, self.nodes[node].id);
        self.nodes[node].paused = true;
        for host in &mut self.nodes[node].lanes {
            host.clock_read_at = Some(time);
        }
        let life = self.nodes[node].life;
        self.trace.event(&[time, 3, u64::from(id.0), span], || {
            format!("{} pause {id:?} for {} ms", At(time), span / MS)
        });
        self.schedule(time + span, Event::Resume { node, life });
    }

    fn resume(&mut self, node: usize) {
        let (time, id) = (self.time, self.nodes[node].id);
        self.nodes[node].paused = false;
        self.disturbed();
        self.trace.event(&[time, 4, u64::from(id.0)], || format!("{} resume {id:?}", At(time)));
        for lane in 0..self.nodes[node].lanes.len() {
            if std::mem::take(&mut self.nodes[node].lanes[lane].interrupted) {
                self.flush(node, lane);
            }
        }
        // What its clients sent meanwhile comes first: that is the harder case.
        let (requests, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.nodes[node].backlog)
            .into_iter()
            .partition(|event| matches!(event, Event::Request { .. } | Event::SessionTry { .. }));
        for event in requests.into_iter().chain(rest) {
            self.schedule(time, event);
        }
    }

    // --- events --------------------------------------------------------------------------------

    /// Handles an event of the world; gives back those that belong to clients and nemesis.
    pub(crate) fn handle(&mut self, event: Event) -> Option<Event> {
        let (node, life) = match &event {
            Event::Packet { to, link, .. } if self.nodes[*to].link == *link => {
                (*to, self.nodes[*to].life)
            }
            Event::Packet { .. } => return None,
            Event::GuestTend { .. }
            | Event::GuestWake { .. }
            | Event::GuestResume { .. }
            | Event::GuestHears { .. } => {
                self.handle_guest(event);
                return None;
            }
            Event::GuestConnects { node, life, .. }
            | Event::GuestSays { node, life, .. }
            | Event::GuestLost { node, life, .. }
            | Event::Mail { node, life, .. }
            | Event::Wake { node, life, .. }
            | Event::Resume { node, life }
            | Event::PeerLost { node, life, .. } => (*node, *life),
            _ => return Some(event),
        };
        if !self.nodes[node].up || self.nodes[node].life != life {
            return None;
        }
        if let Event::Resume { .. } = event {
            self.resume(node);
            return None;
        }
        if self.nodes[node].paused {
            self.nodes[node].backlog.push(event);
            return None;
        }
        let time = self.time;
        match event {
            Event::Packet { lane, from, incarnation, bytes, .. } => {
                let id = self.nodes[node].id;
                self.trace
                    .event(&[time, 5, u64::from(from.0), u64::from(id.0), hash(&bytes)], || {
                        format!("{} {from:?} -> {id:?}/{lane} {}", At(time), describe(&bytes))
                    });
                self.turn(node, usize::from(lane), |lane, now, out| {
                    lane.receive(now, from, incarnation, &bytes, out)
                        .expect("nodes of one build understand each other");
                    None
                });
            }
            Event::Mail { lane, mail, .. } => {
                self.turn(node, usize::from(lane), |lane, now, out| {
                    lane.deliver(now, *mail, out);
                    None
                });
            }
            Event::Wake { lane, .. } => {
                let host = &mut self.nodes[node].lanes[usize::from(lane)];
                if host.wake_at <= time {
                    host.wake_at = u64::MAX;
                    self.turn(node, usize::from(lane), |_, _, _| None);
                }
            }
            Event::PeerLost { lost, .. } => {
                self.turn(node, 0, |lane, now, out| {
                    lane.peer_lost(now, lost, out);
                    None
                });
            }
            event @ (Event::GuestConnects { .. }
            | Event::GuestSays { .. }
            | Event::GuestLost { .. }) => self.handle_seat(event),
            _ => unreachable!("the other events were handled above"),
        }
        None
    }

    /// Keeps an event for when a stopped process goes on.
    pub(crate) fn hold(&mut self, node: usize, event: Event) {
        self.nodes[node].backlog.push(event);
    }

    /// Whether the death of this node leaves a majority of replicas that hold everything: a cluster
    /// in memory promises nothing beyond that.
    pub(crate) fn may_kill(&self, victim: usize) -> bool {
        // A node that was just disturbed may be expelled any moment now.
        if self.time < self.quiet_at {
            return false;
        }
        let safe = self.holders().without(self.nodes[victim].id);
        self.all_groups(|group| safe.intersection(group).len() * 2 > group.len())
    }

    /// Whether some replica that holds everything goes on while these are stopped or cut off. They
    /// forget nothing, so there may be any number of them.
    pub(crate) fn may_silence(&self, victims: NodeSet) -> bool {
        let safe = self.holders().difference(victims);
        self.all_groups(|group| !safe.intersection(group).is_empty())
    }

    fn all_groups(&self, holds: impl Fn(NodeSet) -> bool) -> bool {
        let all = self.nodes.iter().map(|node| node.id).collect();
        holds(all) && self.groups.iter().all(|group| holds(*group))
    }

    /// Nodes that hold everything and are not disturbed.
    fn holders(&self) -> NodeSet {
        let up = self.nodes.iter().filter(|node| node.up);
        let Some(newest) = up.map(|node| node.lane(0).view()).max_by_key(|view| view.epoch) else {
            return NodeSet::EMPTY;
        };
        // A view whose engines are not through with the change protects nobody yet: of the replicas
        // of one epoch, a minority may be lost before the next one is released.
        let through = |host: &LaneHost| {
            host.lane.engine(KeyspaceId(0)).is_some_and(quorate_node::Engine::is_caught_up)
        };
        let holds = |node: &Node| {
            let member = newest.member(node.id);
            node.up
                && !node.paused
                && !self.isolated.contains(node.id)
                && node.lanes.iter().all(through)
                && member.is_some_and(|member| {
                    member.role == Role::Active && member.incarnation == node.lane(0).incarnation()
                })
        };
        self.nodes.iter().filter(|node| holds(node)).map(|node| node.id).collect()
    }

    /// Something happened that may yet cost a node its place in the view.
    pub(crate) fn disturbed(&mut self) {
        self.quiet_at = self.time + 400 * MS;
    }

    /// Whether a majority of some view's voters lost its memory, or of some partition's replicas:
    /// beyond what a cluster in memory survives. Message loss alone can expel one node while the
    /// nemesis kills another.
    pub(crate) fn majority_lost(&self) -> bool {
        self.nodes.iter().filter(|node| node.up).any(|node| {
            let view = node.lane(0).view();
            let lost = view.members.iter().filter(|member| {
                let now = &self.nodes[self.index(member.node)];
                !now.up || !now.lives.contains(&member.incarnation)
            });
            let lost: NodeSet = lost.map(|member| member.node).collect();
            let of_group = |group: &NodeSet| lost.intersection(*group).len() * 2 > group.len();
            lost.len() * 2 > view.members.len() || self.groups.iter().any(of_group)
        }) || self.partition_stuck()
    }

    /// Whether an engine says that too few replicas of some partition are left, while the nodes are a
    /// majority and go on from view to view. That can't be where all partitions are on all nodes.
    fn partition_stuck(&self) -> bool {
        let all = self.nodes.len();
        let stuck = |host: &LaneHost| {
            let facts = host.lane.engine(KeyspaceId(0)).map(quorate_node::Engine::facts);
            facts.is_some_and(|facts| facts.gauges.contains(&("stuck", 1)))
        };
        self.groups.iter().any(|group| group.len() < all)
            && self.nodes.iter().filter(|node| node.up).flat_map(|node| &node.lanes).any(stuck)
    }

    /// A client's op reaches a node: answered from the local record, or submitted.
    pub(crate) fn execute(
        &mut self,
        node: usize,
        lane: usize,
        tag: Tag,
        origin: u64,
        command: &Command,
    ) {
        let keyspace = KeyspaceId(0);
        let read_at = self.nodes[node].lanes[lane].clock_read_at.take();
        self.turn_at(read_at.unwrap_or(self.time), node, lane, |lane, now, out| {
            if let Some(call) = command.single_read().filter(|_| lane.serving(now).is_ok()) {
                let reply = lane.read(now, keyspace, &call, |reply: Reply<'_>| reply.into_owned());
                if let Some(reply) = reply {
                    return Some(Answer { tag, outcome: Outcome::Done(reply), at: None });
                }
            }
            match command {
                Command::Op(call) => lane.submit(now, keyspace, tag, origin, call.call(), out),
                Command::Txn(Txn::Call(call)) => {
                    lane.transact(now, keyspace, tag, origin, call.call(), out);
                }
                Command::Txn(txn) => {
                    lane.transact(now, keyspace, tag, origin, txn.clone(), out);
                }
            }
            None
        });
    }

    /// A client's request for a lease reaches a node.
    pub(crate) fn lease(
        &mut self,
        node: usize,
        lane: usize,
        tag: Tag,
        request: quorate_rifl::Request,
    ) {
        let read_at = self.nodes[node].lanes[lane].clock_read_at.take();
        self.turn_at(read_at.unwrap_or(self.time), node, lane, |lane, now, out| {
            lane.lease(now, tag, request, out);
            None
        });
    }

    /// A session's call reaches a node.
    pub(crate) fn call(&mut self, node: usize, lane: usize, tag: Tag, call: SessionCall) {
        let read_at = self.nodes[node].lanes[lane].clock_read_at.take();
        self.turn_at(read_at.unwrap_or(self.time), node, lane, |lane, now, out| {
            lane.call(now, tag, call, out);
            None
        });
    }

    /// One loop turn of a lane.
    pub(crate) fn turn(
        &mut self,
        node: usize,
        lane: usize,
        event: impl FnOnce(&mut Lane, Now, &mut Outbox) -> Option<Answer>,
    ) {
        self.nodes[node].lanes[lane].clock_read_at = None;
        self.turn_at(self.time, node, lane, event);
    }

    /// One loop turn of a lane that read the clock at `read_at`.
    fn turn_at(
        &mut self,
        read_at: u64,
        node: usize,
        lane: usize,
        event: impl FnOnce(&mut Lane, Now, &mut Outbox) -> Option<Answer>,
    ) {
        let now = self.nodes[node].clock(read_at);
        let host = &mut self.nodes[node].lanes[lane];
        host.lane.begin_turn(now);
        let answer = event(&mut host.lane, now, &mut host.out);
        host.reads.extend(answer);
        self.finish_turn(node, lane);
    }

    /// Timers, the end of the turn, and the flush, unless the process is stopped just before it.
    fn finish_turn(&mut self, node: usize, lane: usize) {
        let now = self.nodes[node].clock(self.time);
        let host = &mut self.nodes[node].lanes[lane];
        host.lane.tick(now, &mut host.out);
        host.lane.end_turn(now, &mut host.out);
        host.lane.check_invariants();
        match self.draw_interruption(node, lane) {
            Some(span) => {
                self.nodes[node].lanes[lane].interrupted = true;
                self.pause(node, span);
            }
            None => self.flush(node, lane),
        }
    }

    /// For how long the process stops before this turn's output leaves, if it does.
    fn draw_interruption(&mut self, node: usize, lane: usize) -> Option<u64> {
        let (last, turns) = &mut self.nodes[node].turns[lane];
        *turns = if *last == self.time { *turns + 1 } else { 0 };
        *last = self.time;
        let turn = *turns;
        let this = &mut self.interruptions;
        let lane = lane as u16;
        let span = if this.chance > 0 && this.rng.chance(this.chance, 100_000) {
            50 * MS + this.rng.below(600 * MS)
        } else {
            // The first turn from then on: fewer events than were recorded make other turns.
            let due = this.script.get_mut(&(node, lane))?;
            let &(at, skip, span) = due.front()?;
            if self.time < at {
                return None;
            }
            if self.time == at && skip > 0 {
                due[0].1 -= 1;
                return None;
            }
            due.pop_front();
            span
        };
        if self.healed || !self.may_silence(NodeSet::only(self.nodes[node].id)) {
            return None;
        }
        let fault = Fault::Interrupt { node, lane, turn, span };
        self.interruptions.done.push((self.time, fault));
        Some(span)
    }

    /// What a turn wants sent leaves: after the seal, as in the runtime.
    fn flush(&mut self, node: usize, lane: usize) {
        let now = self.nodes[node].clock(self.time);
        let host = &mut self.nodes[node].lanes[lane];
        let sealed = host.lane.seal(now, &mut host.out);
        for answer in host.reads.drain(..) {
            let refused = Outcome::Refused(Refusal::NotServing);
            let outcome = if sealed { answer.outcome } else { refused };
            self.answers.push(Answer { tag: answer.tag, outcome, at: None });
        }
        self.leased.append(&mut host.out.leased);
        for done in host.out.done.drain(..) {
            // An answer that rests on a lapsed lease must not leave. Whether the op changed
            // anything is then not the client's to know.
            let stale = done.lease_bound && !sealed && matches!(done.outcome, Outcome::Done(_));
            let outcome = if stale { Outcome::Unknown } else { done.outcome };
            self.answers.push(Answer { tag: done.tag, outcome, at: done.at });
        }
        let incarnation = host.lane.incarnation();
        for (name, times) in host.out.probes.drain(..) {
            *self.probes.entry(name).or_default() += times;
        }
        let rejoined = host.out.rejoined.take();
        let mail: Vec<(LaneId, Mail)> = host.out.mail.drain(..).collect();
        let packets: Vec<(NodeId, Vec<u8>)> = host
            .out
            .take_waiting()
            .into_iter()
            .map(|peer| (peer, std::mem::take(host.out.peer(peer))))
            .collect();
        if let Some(incarnation) = rejoined {
            self.nodes[node].lives.push(incarnation);
            self.nodes[node].link += 1;
            self.nodes[node].seats.clear();
        }
        let life = self.nodes[node].life;
        for (to, mail) in mail {
            // Mail between lanes is in order.
            let at = self.time + 1_000;
            self.schedule(at, Event::Mail { node, life, lane: to.0, mail: Box::new(mail) });
        }
        for (peer, bytes) in packets {
            self.transmit(node, lane as u16, peer, incarnation, &bytes);
            if self.nodes[node].life != life {
                return;
            }
        }
        self.rearm(node, lane);
    }

    /// Whether the keyspace has transactions.
    pub(crate) fn is_transactional(&self) -> bool {
        self.nodes[0].config.keyspaces[0].engine.is_transactional()
    }

    /// Transactions that some lane has no decision about, or that some lane's clients wait for.
    pub(crate) fn undecided(&self) -> Option<String> {
        if !self.is_transactional() {
            return None;
        }
        let lanes = self.nodes.iter().flat_map(|node| node.lanes.iter().map(move |l| (node, l)));
        let of_nodes = lanes.into_iter().find_map(|(node, host)| {
            let facts = host.lane.engine(KeyspaceId(0))?.facts();
            let gauge = |name| facts.gauges.iter().find(|(known, _)| *known == name);
            let left = UNDONE.into_iter().filter_map(gauge).find(|(_, value)| *value > 0);
            let (name, count) = left?;
            Some(format!("{:?} lane {:?} is left with {count} {name}", node.id, host.lane.id()))
        });
        of_nodes.or_else(|| self.guests.iter().find_map(Guest::undone))
    }

    fn rearm(&mut self, node: usize, lane: usize) {
        let this = &self.nodes[node];
        let deadline = this.lanes[lane].lane.next_deadline();
        if deadline == Instant::NEVER {
            return;
        }
        let at = this.world_time(deadline).max(self.time + 1);
        let life = this.life;
        let host = &mut self.nodes[node].lanes[lane];
        if at < host.wake_at {
            host.wake_at = at;
            self.schedule(at, Event::Wake { node, life, lane: lane as u16 });
        }
    }
}

/// What an engine has not finished while any of these gauges is above 0.
const UNDONE: [&str; 7] =
    ["undecided", "attempts", "waiting", "recovering", "frozen", "replicating", "shared_entries"];
