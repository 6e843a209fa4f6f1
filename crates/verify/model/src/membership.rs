//! Membership: views and leases on clocks that drift, with nodes that stop and go on.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use quorate_harness::{OutcomeOf, Process, Subject};
use quorate_machine::{Effects, Event, Machine, Protocol};
use quorate_membership::{
    Config, MemberConfig, Membership, MembershipError, Message, Request, Store as Disk,
};
use quorate_types::{Duration, Epoch, Instant, Lsn, NodeId, Now, Role, Tag, View};
use quorate_wire::{Reader, Writer};

use crate::engine::Engine;
use crate::history::{Answer, Store};
use crate::scope::Scope;
use crate::world::World;

/// How the machines are set up.
#[derive(Clone, Debug)]
pub(crate) struct Members {
    pub(crate) nodes: u16,
    pub(crate) lease: Duration,
    pub(crate) heartbeat: Duration,
    pub(crate) suspect_after: Duration,
    /// The most by which clocks may differ, in millionths.
    pub(crate) drift_ppm: u32,
    /// A node that has reached this epoch does nothing more: it grants no lease of an earlier
    /// epoch.
    pub(crate) last: Epoch,
    /// The calls of the drivers.
    pub(crate) calls: Vec<Request>,
    /// Whether voters keep their state on disks.
    pub(crate) disks: bool,
    /// How long members that are missing are waited for before a view is revived without them.
    pub(crate) revive_patience: Duration,
}

/// A member and its disk. A state is durable once the disk's message arrives, and lost if the process ends
/// before.
#[derive(Clone, Hash, Debug)]
pub(crate) struct Host {
    node: NodeId,
    pub(crate) members: Membership,
    durable: Option<Vec<u8>>,
    writing: BTreeMap<u64, Vec<u8>>,
}

/// A message of a member, or of a node's own disk.
#[derive(Clone, Hash, Debug)]
pub(crate) enum Said {
    Peer(Message),
    Durable(u64),
}

impl Protocol for Host {
    type Message<'a> = Said;
    type Request<'a> = Request;
    type Outcome = Result<Epoch, MembershipError>;
    type Mail = std::convert::Infallible;

    const PROBES: &'static [&'static str] = Membership::PROBES;
}

impl Machine for Host {
    fn step(&mut self, now: Now, event: Event<'_, Self>, effects: &mut impl Effects<Self>) {
        let event = match event {
            Event::Message { from, epoch, body: Said::Peer(body) } => {
                Event::Message { from, epoch, body }
            }
            Event::Message { body: Said::Durable(number), .. } => {
                self.durable = self.writing.remove(&number);
                assert!(self.durable.is_some(), "a disk ends what it was asked for");
                Event::Durable(Lsn(number))
            }
            Event::Request { tag, request } => Event::Request { tag, request },
            Event::View(view) => Event::View(view),
            Event::Tick => Event::Tick,
            Event::Durable(lsn) => Event::Durable(lsn),
            Event::Mail { mail, .. } => match mail {},
        };
        self.members.step(now, event, &mut ToPeers(effects));
        if let Some((number, bytes)) = self.members.take_unsaved() {
            self.writing.insert(number, bytes);
            effects.send(self.node, &Said::Durable(number));
        }
    }

    fn next_deadline(&self) -> Instant {
        self.members.next_deadline()
    }

    fn check_invariants(&self) {
        self.members.check_invariants();
    }
}

struct ToPeers<'a, E>(&'a mut E);

impl<E: Effects<Host>> Effects<Membership> for ToPeers<'_, E> {
    fn send(&mut self, to: NodeId, message: &Message) {
        self.0.send(to, &Said::Peer(message.clone()));
    }

    fn complete(&mut self, tag: Tag, outcome: Result<Epoch, MembershipError>) {
        self.0.complete(tag, outcome);
    }

    fn ignored(&mut self, reason: &'static str) {
        self.0.ignored(reason);
    }

    fn refused(&mut self, reason: &'static str) {
        self.0.refused(reason);
    }

    fn probe(&mut self, name: &'static str) {
        self.0.probe(name);
    }
}

impl Members {
    fn begin(&self, process: Process, durable: Option<Vec<u8>>) -> Host {
        let Process { node, incarnation, now, .. } = process;
        let member = |node| MemberConfig {
            node: NodeId(node),
            peer_address: String::new(),
            client_address: String::new(),
            admin_address: String::new(),
        };
        let config = Config {
            lease: self.lease,
            heartbeat: self.heartbeat,
            suspect_after: self.suspect_after,
            suspect_after_max: self.suspect_after,
            link_patience: Duration::ZERO,
            drift_ppm: self.drift_ppm,
            revive_patience: self.revive_patience,
            ..Config::new(node, incarnation, (1..=self.nodes).map(member).collect())
        };
        let members = match self.disks {
            false => Membership::new(config, now),
            true => Membership::with_disk(config, now, durable.as_deref(), Disk::Intact)
                .expect("an earlier process wrote the state"),
        };
        Host { node, members, durable, writing: BTreeMap::new() }
    }
}

impl Subject for Members {
    const HAS_DISK: bool = true;

    type Machine = Host;

    fn start(&self, process: Process) -> Host {
        self.begin(process, None)
    }

    fn encode(message: &Said, out: &mut Vec<u8>) {
        match message {
            Said::Peer(message) => {
                out.push(0);
                message.encode(&mut Writer(out));
            }
            Said::Durable(number) => {
                out.push(1);
                out.extend(number.to_le_bytes());
            }
        }
    }

    fn decode(bytes: &[u8]) -> Said {
        match bytes {
            [0, message @ ..] => Said::Peer(
                Message::decode(Reader(message)).expect("machines send well-formed messages"),
            ),
            [1, number @ ..] => {
                Said::Durable(u64::from_le_bytes(number.try_into().expect("eight bytes")))
            }
            _ => unreachable!("nobody else sends"),
        }
    }

    fn describe(message: &Said) -> String {
        match message {
            Said::Peer(message) => format!("{:?}", message.body),
            Said::Durable(number) => format!("state {number} is durable"),
        }
    }
}

impl Engine for Members {
    /// The view of each epoch.
    type Ledger = BTreeMap<Epoch, Arc<View>>;

    fn hash(machine: &Host, state: &mut impl Hasher) {
        Hash::hash(machine, state);
    }

    fn restart(&self, process: Process, before: &Host) -> Host {
        self.begin(process, before.durable.clone())
    }

    fn is_over(&self, machine: &Host) -> bool {
        machine.members.view().epoch >= self.last
    }

    fn request(&self, call: usize) -> Request {
        self.calls[call].clone()
    }

    fn describe_call(&self, call: usize) -> String {
        format!("{:?}", self.calls[call])
    }

    fn run(&self, _call: usize, _store: &mut Store) -> String {
        String::new()
    }

    fn answer(_outcome: &OutcomeOf<Self>) -> Answer {
        Answer::Unknown
    }

    fn note_sent(
        &self,
        _ledger: &mut Self::Ledger,
        _from: NodeId,
        _bytes: &[u8],
    ) -> Result<(), String> {
        Ok(())
    }

    /// An epoch has one view, ever, whose active members have what clients were told; and while a node
    /// holds its lease, no node is in a view in which the holder is not live.
    fn check(
        &self,
        scope: &Scope<Self>,
        world: &mut World<Self>,
        step: Option<(NodeId, &Host)>,
    ) -> Result<(), String> {
        if let Some((node, _)) = step {
            let view = world.host(node).machine.members.view().clone();
            if view.epoch > Epoch(0) && !world.ledger.contains_key(&view.epoch) {
                Arc::make_mut(&mut world.ledger).insert(view.epoch, view.clone());
                serves_what_was_acknowledged(&world.ledger, &view)?;
            }
            if world.ledger.get(&view.epoch).is_some_and(|known| **known != *view) {
                return Err(format!("epoch {} has two views", view.epoch));
            }
        }
        for (holder, machine) in world.up() {
            if world.clock(scope, holder) >= machine.members.lease_until() {
                continue;
            }
            let own = world.host(holder).incarnation;
            // All views from the holder's on, those of nodes that have since moved on included.
            let views = world.ledger.range(machine.members.view().epoch..);
            if let Some((epoch, _)) = { views }.find(|(_, view)| !view.is_live(holder, own)) {
                return Err(format!("{holder} holds its lease and is not live in epoch {epoch}"));
            }
        }
        Ok(())
    }

    fn is_at_rest(&self, machine: &Host, _now: Instant) -> bool {
        machine.members.expelled() || !machine.members.view().members.is_empty()
    }

    fn check_at_rest(&self, _world: &World<Self>) -> Result<(), String> {
        Ok(())
    }
}

/// A member that is active in a view was active in the one before it, or a shadow that has copied.
fn serves_what_was_acknowledged(
    ledger: &BTreeMap<Epoch, Arc<View>>,
    view: &View,
) -> Result<(), String> {
    let Some(before) = ledger.get(&Epoch(view.epoch.0 - 1)) else { return Ok(()) };
    let has_all = |node: &NodeId| {
        let member = view.member(*node).expect("an active member is one");
        let former = before.member(*node);
        former.is_some_and(|former| match former.role {
            Role::Active => true,
            Role::Shadow => former.incarnation == member.incarnation,
            Role::Down => false,
        })
    };
    match view.active().into_iter().find(|node| !has_all(node)) {
        Some(node) => {
            Err(format!("{node} is active in epoch {} and was not in the one before", view.epoch))
        }
        None => Ok(()),
    }
}
