//! Three whole nodes in one process, a pool of honest messages, and what was ever said.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use quorate_commands::{Op, OwnedCall};
use quorate_node::{
    EngineConfig, KeyspaceConfig, Lane, NodeAddress, NodeConfig, Outbox, SessionCall, Shared,
};
use quorate_rifl::{Answer, Call, Grant, Request};
use quorate_types::{
    Duration, Epoch, Incarnation, Instant, KeyspaceId, LaneId, NodeId, NodeSet, Now, Tag, UnixNanos,
};
use quorate_wire::{Header, Kind, Malformed};

pub(crate) const NODES: u16 = 3;
pub(crate) const LANES: u16 = 2;
pub(crate) const KEYSPACE: KeyspaceId = KeyspaceId(0);
/// Under which the nodes reach the guest.
pub(crate) const GUEST: NodeId = NodeId(63);
/// Messages of one kind that are remembered.
const KEPT: usize = 6;
/// Messages that are under way at once, at most: beyond it nodes do nothing but answer each other.
const UNDER_WAY_MAX: usize = 20_000;

/// Rounds in which the lanes of a node tell each other something, in one turn.
const ROUNDS_MAX: usize = 3;

/// A message with its header, on a lane of two nodes.
#[derive(Clone)]
pub(crate) struct Packet {
    pub(crate) from: NodeId,
    pub(crate) to: NodeId,
    pub(crate) lane: usize,
    pub(crate) bytes: Vec<u8>,
}

pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) shared: Arc<Shared>,
    pub(crate) lanes: Vec<(Lane, Outbox)>,
}

/// Which nodes have the records.
pub(crate) struct Placement {
    pub(crate) replicas: Option<NodeSet>,
    pub(crate) partitions: Vec<Option<NodeSet>>,
}

impl Placement {
    /// Every node has all of them.
    pub(crate) fn everywhere() -> Self {
        Self { replicas: None, partitions: vec![None] }
    }

    /// The first two nodes have all of them.
    pub(crate) fn on_two() -> Self {
        Self { replicas: Some(NodeSet::only(NodeId(1)).with(NodeId(2))), ..Self::everywhere() }
    }
}

pub(crate) struct World {
    time: Duration,
    pub(crate) nodes: Vec<Node>,
    pool: Vec<Packet>,
    /// The node that nobody reaches.
    pub(crate) cut: Option<NodeId>,
    /// Messages that do not arrive.
    pub(crate) is_lost: fn(&Packet) -> bool,
    /// What was said lately, by the number that tells its kind.
    pub(crate) said: BTreeMap<(Kind, u8), VecDeque<Packet>>,
    /// Whether members are sure to speak the truth: then they understand each other.
    pub(crate) members_are_honest: bool,
    /// Messages that were refused.
    pub(crate) refused: u64,
    pub(crate) grant: Option<Grant>,
    sequence: u64,
    tag: u64,
}

fn shared(node: NodeId, place: &Placement, engine: &EngineConfig) -> Arc<Shared> {
    let keyspaces = vec![KeyspaceConfig {
        replicas: place.replicas,
        partitions: place.partitions.clone(),
        ..KeyspaceConfig::new(KEYSPACE, "default", engine.clone())
    }];
    let addresses = (1..=NODES).map(|node| NodeAddress::in_memory(NodeId(node)));
    Shared::new(NodeConfig {
        sessions_max: 64,
        session_term: Duration::from_secs(60),
        ..NodeConfig::new(node, LANES, addresses.collect(), keyspaces)
    })
}

/// Where the number stands in a body that tells the kind of a message, or of a log's message.
fn kind_of(header: &Header, body: &[u8]) -> u8 {
    let at = match header.kind {
        Kind::Engine(quorate_meerkat::ID) => 2,
        Kind::Session => 8,
        // kind u8, three words, then a message of a log: stream u32, kind u8.
        Kind::Membership if body.first() == Some(&6) => 29,
        _ => 0,
    };
    // The kinds of a log's messages behind those of the membership.
    let above = if at == 29 { 100 } else { 0 };
    body.get(at).copied().unwrap_or_default().saturating_add(above)
}

impl World {
    pub(crate) fn new(engine: &EngineConfig, place: &Placement) -> Self {
        let time = Duration::from_secs(1);
        let nodes = (1..=NODES).map(NodeId).map(|id| {
            let shared = shared(id, place, engine);
            let incarnation = Incarnation(u64::from(id.0) << 48 | 1);
            let lane = |lane| Lane::new(Arc::clone(&shared), LaneId(lane), incarnation, at(time));
            let lanes = (0..LANES).map(|number| (lane(number), Outbox::new())).collect();
            Node { id, shared, lanes }
        });
        let mut world = Self {
            time,
            nodes: nodes.collect(),
            pool: Vec::new(),
            cut: None,
            is_lost: |_| false,
            said: BTreeMap::new(),
            members_are_honest: true,
            refused: 0,
            grant: None,
            sequence: 0,
            tag: 0,
        };
        while !world.nodes.iter().all(|node| node.shared.is_active()) {
            world.pass(1);
            assert!(world.time < Duration::from_secs(20), "the nodes find no view");
        }
        let tag = world.next_tag();
        let now = world.now();
        let (lane, out) = &mut world.nodes[0].lanes[0];
        lane.lease(now, tag, Request::Open, out);
        world.pass(50);
        world
    }

    pub(crate) fn now(&self) -> Now {
        at(self.time)
    }

    pub(crate) fn next_tag(&mut self) -> Tag {
        self.tag += 1;
        Tag(self.tag)
    }

    pub(crate) fn epoch_of(&self, node: usize, lane: usize) -> Epoch {
        self.nodes[node].lanes[lane].0.view().epoch
    }

    /// A client's command at a node, on one key or two.
    pub(crate) fn submit(&mut self, node: usize, words: &[&[u8]], as_call: bool) -> Tag {
        let (tag, now) = (self.next_tag(), self.now());
        let owned = OwnedCall::new(words.iter().copied()).expect("a command");
        let lane = usize::from(self.tag.is_multiple_of(2));
        let (lane, out) = &mut self.nodes[node].lanes[lane];
        if let Some(grant) = self.grant.filter(|_| as_call) {
            let op = Op::Call(owned);
            let (sequence, digest) = (self.sequence, op.digest());
            self.sequence += 1;
            let first_incomplete = sequence.saturating_sub(3);
            let call = Call { lease: grant.lease, sequence, first_incomplete, digest };
            let call = SessionCall { keyspace: KEYSPACE, origin: 1, call, grant, op };
            lane.call(now, tag, call, out);
        } else {
            lane.submit(now, KEYSPACE, tag, self.tag, owned.call(), out);
        }
        self.deliver_mail(node);
        tag
    }

    /// What a node answered to an op that was submitted there, if it did.
    pub(crate) fn take_done(&mut self, node: usize) -> Vec<quorate_node::Done> {
        let lanes = self.nodes[node].lanes.iter_mut();
        lanes.flat_map(|(_, out)| std::mem::take(&mut out.done)).collect()
    }

    /// Milliseconds in which nobody lies.
    pub(crate) fn pass(&mut self, milliseconds: u32) {
        for _ in 0..milliseconds {
            self.time += Duration::from_millis(1);
            (0..self.nodes.len()).for_each(|node| self.deliver_mail(node));
            // What is said meanwhile arrives in the next one.
            for packet in std::mem::take(&mut self.pool) {
                self.deliver(&packet);
            }
            assert!(self.pool.len() < UNDER_WAY_MAX, "answers breed answers");
        }
    }

    /// The latest of the meant messages under way to a node, if there is one.
    pub(crate) fn under_way(
        &self,
        to: NodeId,
        is_meant: impl Fn(&Packet) -> bool,
    ) -> Option<&Packet> {
        self.pool.iter().rev().find(|packet| packet.to == to && is_meant(packet))
    }

    fn deliver(&mut self, packet: &Packet) {
        let is_cut = |node| self.cut == Some(node);
        let is_lost = is_cut(packet.from) || is_cut(packet.to) || (self.is_lost)(packet);
        if is_lost || packet.to == GUEST {
            return;
        }
        let to = usize::from(packet.to.0 - 1);
        if to >= self.nodes.len() {
            // A lie has named a member that does not exist.
            return;
        }
        let result = self.hear(to, packet);
        assert!(
            result.is_ok() || !self.members_are_honest,
            "{} refuses {}: {}: {result:?}",
            packet.to,
            packet.from,
            describe(packet)
        );
    }

    /// Hands a message to a node, as its connection does: what is refused ends the connection.
    pub(crate) fn hear(&mut self, node: usize, packet: &Packet) -> Result<(), Malformed> {
        let now = self.now();
        let from = packet.from;
        let incarnation = match self.nodes.get(usize::from(from.0 - 1)) {
            Some(sender) => sender.lanes[packet.lane].0.incarnation(),
            None => Incarnation(7),
        };
        let (lane, out) = &mut self.nodes[node].lanes[packet.lane];
        let result = lane.receive(now, from, incarnation, &packet.bytes, out);
        lane.check_invariants();
        if result.is_err() && from != GUEST {
            self.refused += 1;
            lane.peer_lost(now, from, out);
            lane.peer_found(now, from, incarnation, out);
        }
        self.deliver_mail(node);
        result
    }

    /// Ends a turn of each lane of a node, and passes on what its lanes say.
    pub(crate) fn deliver_mail(&mut self, node: usize) {
        let now = self.now();
        let Node { id, lanes, .. } = &mut self.nodes[node];
        // A lane that has caught up tells lane 0 so in every turn.
        for _ in 0..ROUNDS_MAX {
            let mut mail = Vec::new();
            for (number, (lane, out)) in lanes.iter_mut().enumerate() {
                if lane.next_deadline() <= now.monotonic {
                    lane.tick(now, out);
                }
                lane.end_turn(now, out);
                lane.seal(now, false, out);
                lane.check_invariants();
                mail.append(&mut out.mail);
                let _ = out.take_urgent();
                for peer in out.take_waiting() {
                    let bytes = std::mem::take(out.peer(peer));
                    let mut rest = &bytes[..];
                    let mut from = &bytes[..];
                    while let Ok(Some((header, body))) = Header::split(&mut rest) {
                        let message = from[..Header::BYTES + body.len()].to_vec();
                        from = rest;
                        let packet = Packet { from: *id, to: peer, lane: number, bytes: message };
                        let said =
                            self.said.entry((header.kind, kind_of(&header, body))).or_default();
                        if said.len() == KEPT {
                            said.pop_front();
                        }
                        said.push_back(packet.clone());
                        self.pool.push(packet);
                    }
                }
                for (_, answer) in std::mem::take(&mut out.leased) {
                    if let Answer::Granted(grant) = answer {
                        self.grant = Some(grant);
                    }
                }
            }
            if mail.is_empty() {
                return;
            }
            for (to, mail) in mail {
                let (lane, out) = &mut lanes[usize::from(to.0)];
                lane.deliver(now, mail, out);
            }
        }
    }
}

pub(crate) fn describe(packet: &Packet) -> String {
    match Header::split(&mut &packet.bytes[..]) {
        Ok(Some((header, body))) => quorate_node::describe_message(&header, body),
        _ => "no frame".to_owned(),
    }
}

fn at(time: Duration) -> Now {
    let nanos = time.as_nanos() as u64;
    Now { monotonic: Instant(nanos), unix: UnixNanos((1 << 60) + nanos) }
}
