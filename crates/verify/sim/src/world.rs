//! Time and events of one run.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use quorate_commands::Reply;
use quorate_machine::{Outcome, Rng};
use quorate_node::{Mail, NodeConfig, Shared};
use quorate_types::{
    Duration, Epoch, Incarnation, KeyspaceId, NodeId, NodeSet, Publication, Tag, Timestamp,
};

use crate::Faults;
use crate::channels::{Act, Place};
use crate::disk_faults::{Rot, WithARequest};
use crate::disks::NodeDisk;
use crate::flow::Flow;
use crate::guests::Guest;
use crate::keyspaces::{ClientId, Keyspace};
use crate::losses::{Awaited, Left, Outage};
use crate::monotonic::Monotonic;
use crate::network::{Fates, Network, describe, hash};
use crate::operator::{Operator, Ruin};
use crate::process::Node;
use crate::script::{Fate, Fault, MessageId, Process};
use crate::trace::{At, Trace};
use crate::turns::Interruptions;

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
    /// A request of a node to its disk ends.
    Disk { node: usize, life: u64 },
    /// A disk has room again, and is as fast as it was.
    DiskMends { node: usize },
    /// A stopped process goes on.
    Resume { node: usize, life: u64 },
    /// A lane of a node learns that its connection to a peer is gone.
    PeerLost { node: usize, life: u64, lane: u16, lost: NodeId },
    /// A lane's connection to a peer stands again.
    PeerFound { node: usize, life: u64, lane: u16, found: usize },
    /// Connections that have been cut for long are given up.
    GiveUp,
    /// The clock of a node runs right again.
    RateEnds { node: usize },
    /// A client's next op is due.
    Client(ClientId),
    /// A client gives up waiting.
    ClientTimeout { client: ClientId, op: u64 },
    /// A client's request reaches its node.
    Request { client: ClientId, op: u64 },
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
    /// Some records of a keyspace are loaded.
    Load(KeyspaceId),
    /// An operator's request reaches a node.
    Asked { node: usize, life: u64, number: u64 },
    /// The operator asks for a change.
    Operator,
    /// The operator wants all nodes to be members.
    Restore,
    /// The operator accepts that disks are lost.
    AcceptLoss,
    /// A client publishes or listens.
    Channels,
    /// One does on a lane that stood still.
    Channel { place: Place, act: Act },
    /// The nemesis draws faults.
    Nemesis,
    /// A fault of a script begins or ends.
    Fault(Fault),
    /// The nemesis ends a fault.
    Undo(crate::nemesis::Undo),
}

/// An answer on its way to a client.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) tag: Tag,
    pub(crate) outcome: Outcome<Reply<'static>>,
    /// The time at which it took effect in the serial order, if the engine says so.
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

/// Everything in a run, except for clients and nemesis.
pub(crate) struct World {
    pub(crate) time: u64,
    pub(crate) rng: Rng,
    queue: BinaryHeap<Scheduled>,
    scheduled: u64,
    pub(crate) nodes: Vec<Node>,
    pub(crate) network: Network,
    pub(crate) trace: Trace,
    pub(crate) guests: Vec<Guest>,
    /// In order of number.
    pub(crate) keyspaces: Vec<Keyspace>,
    /// The least and the largest error of a wall clock so far, in nanoseconds.
    pub(crate) wall_errors: (i64, i64),
    /// The time after which a message counts as lost.
    pub(crate) loss_timeout: Duration,
    pub(crate) fates: Fates,
    pub(crate) interruptions: Interruptions,
    /// Faults have ended: a script's fates of messages count no more, except for their order.
    pub(crate) healed: bool,
    /// Numbers the connections of guests.
    pub(crate) connections: u64,
    /// The time when the effects of the last disturbance have shown.
    pub(crate) quiet_at: u64,
    /// The time of the last change that clients may notice, unless changes are continuous.
    pub(crate) changed_at: Option<u64>,
    /// The operator, who adds and removes members.
    pub(crate) operator: Operator,
    /// Nodes that the nemesis has cut off.
    pub(crate) isolated: NodeSet,
    /// Answers that have just left a node, for the clients.
    pub(crate) answers: Vec<Answer>,
    /// What lanes have heard of what was published elsewhere, for the clients that listen.
    pub(crate) published: Vec<(Place, Arc<Publication>)>,
    pub(crate) ruin: Option<Ruin>,
    /// Keyspaces whose durability may change when a node starts again.
    pub(crate) mixed: Vec<KeyspaceId>,
    /// Answers of lease managers, for clients with sessions.
    pub(crate) leased: Vec<(Tag, quorate_rifl::Answer)>,
    /// A node that dies after this many more engine messages, if that leaves a majority.
    pub(crate) ambush: Option<(usize, u64)>,
    /// What happens while some request to a disk is under way.
    pub(crate) with_a_request: WithARequest,
    /// When no active member ran for the last time, so that nobody remembers what is on no disk, nor what time it
    /// was.
    pub(crate) powerless_at: Option<u64>,
    /// The times at which no node was left that ran, or no replica of some keys.
    pub(crate) outages: Vec<Outage>,
    /// Who was in doubt at the end of the last turn, for each keyspace.
    pub(crate) doubts: Vec<(KeyspaceId, NodeSet)>,
    /// Clients are to be told of the last outage.
    pub(crate) losses_changed: bool,
    /// What clients wait for.
    pub(crate) awaited: Awaited,
    /// Which disks may rot, and have.
    pub(crate) rot: Rot,
    /// Nodes that have just died, for the clients.
    pub(crate) died: Vec<usize>,
    /// Guests that have just died, for the clients.
    pub(crate) died_guests: Vec<usize>,
    /// The dead that were ambushed, for the nemesis.
    pub(crate) ambushed: Vec<Process>,
    /// Rare branches reached, and how often.
    pub(crate) probes: BTreeMap<&'static str, u64>,
    /// Peer messages sent.
    pub(crate) messages: u64,
    /// By sender and kind.
    pub(crate) flow: Flow,
}

impl World {
    pub(crate) fn new(
        configs: Vec<NodeConfig>,
        network: Network,
        faults: Faults,
        mut rng: Rng,
        disks: Option<Rng>,
        trace: bool,
    ) -> Self {
        let drift_ppm = i64::from(configs[0].clock_drift_ppm);
        let mut disks = disks;
        let mut world = Self {
            time: 0,
            queue: BinaryHeap::new(),
            scheduled: 0,
            nodes: Vec::new(),
            network,
            trace: Trace::new(trace),
            guests: Vec::new(),
            keyspaces: Keyspace::all(&configs),
            wall_errors: (0, 0),
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
            changed_at: Some(0),
            operator: Operator::default(),
            isolated: NodeSet::EMPTY,
            answers: Vec::new(),
            published: Vec::new(),
            ruin: None,
            mixed: Vec::new(),
            leased: Vec::new(),
            ambush: None,
            with_a_request: WithARequest::default(),
            powerless_at: None,
            outages: Vec::new(),
            doubts: Vec::new(),
            losses_changed: false,
            awaited: Awaited::default(),
            rot: Rot::default(),
            died: Vec::new(),
            died_guests: Vec::new(),
            ambushed: Vec::new(),
            probes: BTreeMap::new(),
            messages: 0,
            flow: Flow::default(),
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
                seen: (Incarnation(0), Epoch(0)),
                seats: BTreeMap::new(),
                turns: vec![(u64::MAX, 0); usize::from(config.lanes)],
                id: config.node,
                shared: Shared::new(config.clone()),
                config,
                lanes: Vec::new(),
                up: false,
                life: 0,
                link: 0,
                monotonic: Monotonic::new(rng.below(1 << 40), rate_ppm),
                wall_error: 0,
                disk: disks.as_mut().map(|rng| NodeDisk::new(rng.fork())),
                left: Left::NOTHING,
            };
            world.nodes.push(node);
        }
        for node in 0..world.nodes.len() {
            world.start(node);
        }
        world
    }

    /// Follows a script from now on: the fates of its messages, and its interrupted turns.
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

    /// Moves time to the next event and returns it.
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

    // --- events --------------------------------------------------------------------------------

    /// Handles an event of the world; returns events of clients and nemesis.
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
            | Event::Disk { node, life }
            | Event::Asked { node, life, .. }
            | Event::PeerLost { node, life, .. }
            | Event::PeerFound { node, life, .. } => (*node, *life),
            Event::GiveUp => {
                self.give_up_links();
                return None;
            }
            Event::AcceptLoss => {
                self.accept_loss();
                return None;
            }
            Event::RateEnds { node } => {
                self.mend_rate(*node, false);
                return None;
            }
            Event::DiskMends { node } => {
                self.mend_disk(*node);
                return None;
            }
            _ => return Some(event),
        };
        if !self.nodes[node].up || self.nodes[node].life != life {
            return None;
        }
        if let Event::Resume { .. } = event {
            self.resume(node);
            return None;
        }
        if let Event::Disk { .. } = event {
            self.disk_event(node);
            return None;
        }
        let event = self.hold(node, self.lane_of(node, &event), event)?;
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
                    host.due.count(time);
                    self.turn(node, usize::from(lane), |_, _, _| None);
                }
            }
            Event::Asked { number, .. } => self.asked(node, number),
            Event::PeerLost { lane, lost, .. } => {
                self.turn(node, usize::from(lane), |lane, now, out| {
                    lane.peer_lost(now, lost, out);
                    None
                });
            }
            Event::PeerFound { lane, found, .. } if self.nodes[found].up => {
                let peer = &self.nodes[found];
                let (id, incarnation) = (peer.id, peer.lane(usize::from(lane)).incarnation());
                self.turn(node, usize::from(lane), |lane, now, out| {
                    lane.peer_found(now, id, incarnation, out);
                    None
                });
            }
            Event::PeerFound { .. } => {}
            event @ (Event::GuestConnects { .. }
            | Event::GuestSays { .. }
            | Event::GuestLost { .. }) => self.handle_seat(event),
            _ => unreachable!("the other events were handled above"),
        }
        None
    }

    /// The lane that handles an event of a node.
    fn lane_of(&self, node: usize, event: &Event) -> u16 {
        match event {
            Event::Packet { lane, .. }
            | Event::Mail { lane, .. }
            | Event::Wake { lane, .. }
            | Event::PeerLost { lane, .. }
            | Event::PeerFound { lane, .. }
            | Event::GuestConnects { lane, .. } => *lane,
            Event::Asked { .. } => 0,
            Event::GuestSays { id, .. } | Event::GuestLost { id, .. } => {
                self.nodes[node].seats.get(id).map_or(0, |(lane, _)| *lane)
            }
            other => unreachable!("no event of a lane: {other:?}"),
        }
    }

    /// Counts a rare event.
    pub(crate) fn probe(&mut self, name: &'static str, times: u64) {
        *self.probes.entry(name).or_default() += times;
    }

    /// Whether nodes have disks.
    pub(crate) fn has_disks(&self) -> bool {
        self.nodes[0].disk.is_some()
    }

    /// Notes a change that clients may notice.
    pub(crate) fn changed(&mut self) {
        self.changed_at = Some(self.time);
    }

    /// The keyspace of this number.
    pub(crate) fn keyspace(&self, id: KeyspaceId) -> &Keyspace {
        &self.keyspaces[usize::from(id.0)]
    }

    /// The replica groups of all partitions of all keyspaces.
    pub(crate) fn groups(&self) -> impl Iterator<Item = NodeSet> {
        self.keyspaces.iter().flat_map(|keyspace| keyspace.groups.iter().copied())
    }
}
