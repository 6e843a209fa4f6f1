//! The control part of a node: its membership machine, run by lane 0.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use quorate_machine::{Effects, Event, Machine, Rng};
use quorate_membership::{
    Config, MemberConfig, Membership, MembershipError, Message, Phase, Request, StateError, Status,
    Store,
};
use quorate_types::{
    Epoch, Incarnation, Instant, KeyspaceId, LaneId, Lsn, NodeId, NodeSet, Now, Tag, View,
};
use quorate_wire::{Header, Kind, Malformed, Reader};

use crate::lane::count;
use crate::{ControlFacts, MemberFacts, Outbox, SERVING, Shared};

/// The tag of requests that nobody waits for.
const NOBODY: Tag = Tag(0);

/// A change of the membership that a person asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// Make room for a node that will join.
    Add(MemberConfig),
    /// Take a node out: once others have copied what it has, unless `at_once`.
    Remove {
        /// Which one.
        node: NodeId,
        /// Its copies go with it.
        at_once: bool,
    },
    /// A node that is about to leave stays.
    Keep(NodeId),
    /// Go on without these nodes, whose loss a person accepts, from what is on the disks of the others.
    Recover {
        /// The nodes that are lost, or whose disks are.
        lost: NodeSet,
    },
}

/// What leads to the next view, as far as this node takes part in it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Moves {
    /// The live members that seem to have crashed.
    pub suspects: NodeSet,
    /// Whether this node has proposed a view and waits for the votes.
    pub proposing: bool,
    /// The nodes of open requests to add one.
    pub newcomers: NodeSet,
}

/// The membership machine and what its decisions mean for the lanes.
pub(crate) struct Control {
    shared: Arc<Shared>,
    machine: Membership,
    incarnation: Incarnation,
    views: u64,
    rejoins: u64,
    /// When this process took part in forming the cluster.
    formed: Option<Instant>,
    moves: Moves,
    /// The lanes that hold everything, in which epoch.
    caught_up: (Epoch, Vec<LaneId>),
    /// The other lanes whose connection to a peer is broken.
    cut: BTreeMap<NodeId, BTreeSet<LaneId>>,
    /// This node leaves for good: it begins no next life.
    leaving: bool,
}

impl Control {
    pub(crate) fn new(shared: Arc<Shared>, incarnation: Incarnation, seed: u64, now: Now) -> Self {
        let machine = build(&shared, incarnation, seed, now);
        Self {
            shared,
            machine,
            incarnation,
            views: 0,
            rejoins: 0,
            formed: None,
            moves: Moves::default(),
            caught_up: (Epoch(0), Vec::new()),
            cut: BTreeMap::new(),
            leaving: false,
        }
    }

    /// Goes on, before the first step, from what the disk of this node has: the voter's state that was saved
    /// last, if any, and what the lanes' stores have got back.
    pub(crate) fn restore(
        &mut self,
        now: Now,
        state: Option<&[u8]>,
        store: Store,
        seed: u64,
    ) -> Result<(), StateError> {
        let config = membership_config(&self.shared, self.incarnation, seed);
        self.machine = Membership::with_disk(config, now, state, store)?;
        Ok(())
    }

    /// The voter's state that has to become durable, with its number, if the caller does not have it yet.
    pub(crate) fn voter_state_to_save(&mut self) -> Option<(u64, Vec<u8>)> {
        self.machine.take_unsaved()
    }

    /// The voter's states up to this number are durable.
    pub(crate) fn voter_state_saved(&mut self, now: Now, number: u64, out: &mut Outbox) {
        self.step(now, Event::Durable(Lsn(number)), out);
    }

    pub(crate) fn view(&self) -> &Arc<View> {
        self.machine.view()
    }

    pub(crate) fn moves(&self) -> Moves {
        self.moves
    }

    /// The nodes of open requests to add one, with their addresses.
    pub(crate) fn newcomers(&self) -> impl Iterator<Item = &MemberConfig> {
        self.machine.newcomers()
    }

    pub(crate) fn next_deadline(&self) -> Instant {
        self.machine.next_deadline()
    }

    /// What the node does or waits for, as a sentence.
    pub(crate) fn phase(&self, now: Instant) -> String {
        sentence(self.machine.status(now))
    }

    pub(crate) fn check_invariants(&self) {
        self.machine.check_invariants();
    }

    pub(crate) fn receive(
        &mut self,
        now: Now,
        from: NodeId,
        body: &[u8],
        out: &mut Outbox,
    ) -> Result<(), Malformed> {
        let body = Message::decode(Reader(body))?;
        let epoch = self.view().epoch;
        match self.step(now, Event::Message { from, epoch, body }, out) {
            Some(reason) => Err(Malformed(reason)),
            None => Ok(()),
        }
    }

    pub(crate) fn tick(&mut self, now: Now, out: &mut Outbox) {
        self.step(now, Event::Tick, out);
    }

    pub(crate) fn peer_lost(&mut self, now: Now, node: NodeId, out: &mut Outbox) {
        self.step(now, Event::Request { tag: NOBODY, request: Request::PeerLost(node) }, out);
    }

    pub(crate) fn peer_found(&mut self, now: Now, node: NodeId, out: &mut Outbox) {
        self.step(now, Event::Request { tag: NOBODY, request: Request::PeerFound(node) }, out);
    }

    /// Another lane's connection to a peer broke, or stands again.
    pub(crate) fn lane_link(
        &mut self,
        now: Now,
        lane: LaneId,
        node: NodeId,
        up: bool,
        out: &mut Outbox,
    ) {
        let cut = self.cut.entry(node).or_default();
        let was_whole = cut.is_empty();
        if up {
            cut.remove(&lane)
        } else {
            cut.insert(lane)
        };
        let request = match (was_whole, cut.is_empty()) {
            (true, false) => Request::LaneLost(node),
            (false, true) => Request::LanesFound(node),
            _ => return,
        };
        self.step(now, Event::Request { tag: NOBODY, request }, out);
    }

    /// Gives the lease up and asks to be taken out of the view.
    pub(crate) fn leave(&mut self, now: Now, tag: Tag, out: &mut Outbox) {
        self.leaving = true;
        self.step(now, Event::Request { tag, request: Request::Leave }, out);
    }

    pub(crate) fn change(&mut self, now: Now, tag: Tag, change: Change, out: &mut Outbox) {
        let request = match change {
            Change::Add(member) => Request::Add(member),
            Change::Remove { node, at_once } => Request::Remove { node, at_once },
            Change::Keep(node) => Request::Keep(node),
            Change::Recover { lost } => Request::Recover { lost },
        };
        self.step(now, Event::Request { tag, request }, out);
    }

    /// A lane holds everything. Once all do, the members are asked to let this node serve.
    pub(crate) fn caught_up(&mut self, now: Now, lane: LaneId, epoch: Epoch, out: &mut Outbox) {
        if epoch != self.view().epoch {
            return;
        }
        if self.caught_up.0 != epoch {
            self.caught_up = (epoch, Vec::new());
        }
        if !self.caught_up.1.contains(&lane) {
            self.caught_up.1.push(lane);
            if self.caught_up.1.len() == usize::from(self.shared.config.lanes) {
                let request = Request::CaughtUp { epoch };
                self.step(now, Event::Request { tag: NOBODY, request }, out);
            }
        }
    }

    /// The node's next incarnation, if its members have expelled the present one.
    pub(crate) fn take_rejoin(&mut self, now: Now, rng: &mut Rng) -> Option<Incarnation> {
        if !self.machine.expelled() || self.leaving {
            return None;
        }
        self.incarnation = fresh_incarnation(rng);
        let blank = build(&self.shared, self.incarnation, rng.next_u64(), now);
        let former = std::mem::replace(&mut self.machine, blank);
        self.machine = former.into_next_life(self.incarnation, now);
        self.rejoins += 1;
        self.shared.set_lease_until(Instant::ZERO);
        Some(self.incarnation)
    }

    /// Publishes what is known for the administration endpoint.
    pub(crate) fn publish(&mut self, now: Now) {
        let status = self.machine.status(now.monotonic);
        let view = Arc::clone(self.view());
        let address = |node, pick: fn(&quorate_types::Member) -> &String| {
            view.member(node).map(|member| pick(member).clone()).unwrap_or_default()
        };
        let members = status
            .members
            .iter()
            .map(|member| MemberFacts {
                node: member.node,
                incarnation: member.incarnation,
                role: member.role,
                last_heard: member.last_heard,
                suspected: member.suspected,
                leaving: member.departing,
                has_copied: member.has_copied,
                peer: address(member.node, |member| &member.peer_address),
                client: address(member.node, |member| &member.client_address),
                admin: address(member.node, |member| &member.admin_address),
            })
            .collect();
        self.shared.publish_control(ControlFacts {
            phase: sentence(status),
            epoch: self.machine.view().epoch,
            incarnation: self.incarnation,
            lease_remaining: self.machine.lease_until().since(now.monotonic),
            views: self.views,
            rejoins: self.rejoins,
            formed: self.formed,
            members,
        });
    }

    /// Gives the reason why the event was refused, if it was.
    fn step(
        &mut self,
        now: Now,
        event: Event<'_, Membership>,
        out: &mut Outbox,
    ) -> Option<&'static str> {
        let before = self.machine.view().epoch;
        let mut sink = ControlSink { out, refusal: None };
        self.machine.step(now, event, &mut sink);
        let refusal = sink.refusal;
        let epoch = self.machine.view().epoch;
        self.views += epoch.0.saturating_sub(before.0);
        if before == Epoch(0) && epoch == Epoch(1) {
            self.formed = Some(now.monotonic);
        }
        let (suspects, proposing) = (self.machine.suspects(), self.machine.is_proposing());
        let newcomers = self.machine.newcomers().map(|config| config.node).collect();
        self.moves = Moves { suspects, proposing, newcomers };
        self.shared.set_lease_until(self.machine.lease_until());
        refusal
    }
}

/// A number that no earlier life of the node had: 64 random bits, never 0.
pub(crate) fn fresh_incarnation(rng: &mut Rng) -> Incarnation {
    Incarnation(rng.next_u64().max(1))
}

fn build(shared: &Shared, incarnation: Incarnation, seed: u64, now: Now) -> Membership {
    Membership::new(membership_config(shared, incarnation, seed), now)
}

fn membership_config(shared: &Shared, incarnation: Incarnation, seed: u64) -> Config {
    let config = &shared.config;
    let genesis = config
        .nodes
        .iter()
        .map(|node| MemberConfig {
            node: node.node,
            peer_address: node.peer.clone(),
            client_address: node.client.clone(),
            admin_address: node.admin.clone(),
        })
        .collect();
    Config {
        lease: config.lease,
        drift_ppm: config.clock_drift_ppm,
        heartbeat: Config::heartbeat_of(config.lease),
        suspect_after: config.suspect_after,
        suspect_after_max: config.suspect_after_max(),
        link_patience: config.suspect_after,
        groups: config.groups_of(|_| true),
        moving: config.moving(),
        quorum_groups: config.groups_of(|engine| engine.capabilities().quorums),
        revive_majority: config.has_quorums_everywhere(),
        revive_patience: config.revive_patience,
        seed,
        ..Config::new(config.node, incarnation, genesis)
    }
}

/// What the node does, and if it doesn't serve, why.
fn sentence(status: Status) -> String {
    let phase = match status.phase {
        Phase::Outside => "outside",
        Phase::CatchingUp => "catching up",
        Phase::Serving => return SERVING.into(),
        Phase::WithoutLease => "without a lease",
        Phase::Expelled => "expelled",
    };
    format!("{phase}: {}", status.reason)
}

struct ControlSink<'a> {
    out: &'a mut Outbox,
    /// Why the message that is being handled is refused.
    refusal: Option<&'static str>,
}

impl Effects<Membership> for ControlSink<'_> {
    fn send(&mut self, to: NodeId, message: &Message) {
        self.broadcast(NodeSet::only(to), message);
    }

    fn broadcast(&mut self, to: NodeSet, message: &Message) {
        self.out.frame(to, |buffer| {
            Header::frame(buffer, Kind::Membership, KeyspaceId(0), Epoch(0), |writer| {
                message.encode(writer);
            });
        });
    }

    fn refused(&mut self, reason: &'static str) {
        self.refusal = Some(reason);
    }

    fn probe(&mut self, name: &'static str) {
        count(&mut self.out.probes, name);
    }

    fn complete(&mut self, tag: Tag, outcome: Result<Epoch, MembershipError>) {
        if tag != NOBODY {
            self.out.control.push((tag, outcome.map_err(|error| error.to_string())));
        }
    }
}
