//! The engines of a lane: the only place that knows which ones exist.

use std::sync::Arc;

use quorate_baselines::Baseline;
use quorate_commands::{Op, Reply, Txn, Work};
use quorate_hermes::Hermes;
use quorate_machine::{Effects, Event, Machine, Operation, Outcome, Protocol, Transaction};
use quorate_meerkat::{Isolation, Meerkat, partition_of};
use quorate_rifl::{LeaseEnd, LeaseId, Permit, Sessions as _};
use quorate_storage::{LaneTable, SharedTable, Store};
use quorate_types::{
    Epoch, Incarnation, Instant, KeyspaceId, LaneId, NodeId, NodeSet, Now, Tag, Timestamp, View,
    WriterId,
};
use quorate_wire::{GuestMessage, Header, Kind, ListingMessage, Malformed, Reader};

use crate::lane::count;
use crate::listing::Source;
use crate::{
    Done, EngineConfig, EngineFacts, KeyspaceConfig, KeyspaceStore, Mail, Outbox, ReadMode, Shared,
};

/// Every probe of every machine of a lane.
pub const PROBES: &[&[&str]] = &[
    <HermesMachine as Protocol>::PROBES,
    <MeerkatMachine as Protocol>::PROBES,
    <quorate_membership::Membership as Protocol>::PROBES,
    <quorate_rifl::LeaseManager as Protocol>::PROBES,
];

/// An empty store for an engine.
pub(crate) fn new_store(engine: &EngineConfig, lanes: u16) -> KeyspaceStore {
    match engine {
        EngineConfig::Hermes { .. } => KeyspaceStore::Hermes(Store::new(lanes)),
        EngineConfig::Meerkat { .. } => KeyspaceStore::Meerkat(Store::new(lanes)),
        EngineConfig::Baseline(_) => KeyspaceStore::Baseline(Store::new(lanes), Arc::default()),
    }
}

/// A peer message in words, for traces.
pub fn describe_message(header: &Header, body: &[u8]) -> String {
    let text = match header.kind {
        Kind::Membership => {
            quorate_membership::Message::decode(Reader(body)).map(|message| format!("{message:?}"))
        }
        Kind::Hermes => quorate_hermes::Message::decode(body).map(|message| format!("{message:?}")),
        Kind::Meerkat => {
            quorate_meerkat::Message::decode(body).map(|message| format!("{message:?}"))
        }
        Kind::Guest => GuestMessage::decode(body).map(|message| format!("{message:?}")),
        Kind::Listing => ListingMessage::decode(body).map(|message| format!("{message:?}")),
        Kind::Session => quorate_rifl::Message::decode(body).map(|message| format!("{message:?}")),
    };
    let text = text.unwrap_or_else(|error| error.to_string());
    format!("{:?} {text}", header.epoch)
}

/// The Hermes machine as this node runs it.
pub(crate) type HermesMachine = Hermes<LaneTable<quorate_hermes::Meta>, Op>;
/// The Meerkat machine as this node runs it.
pub(crate) type MeerkatMachine = Meerkat<SharedTable<quorate_meerkat::Meta>, Txn>;
/// The machine of Meerkat's rivals as this node runs it.
pub(crate) type BaselineMachine = Baseline<SharedTable<quorate_meerkat::Meta>, Txn>;

/// The engine of one keyspace on one lane. An enum and not a trait object, because an op is generic
/// over the form its arguments have.
pub struct Engine {
    keyspace: KeyspaceId,
    leased: bool,
    /// Whether reads of one key may be answered from the local record, if there can be one.
    reads_locally: bool,
    /// If some of its partitions have no replica here: how many there are, and those that have.
    held: Option<(usize, u64)>,
    /// Whether this node holds the keyspace's records.
    is_replica: bool,
    /// Where its keys are listed.
    sources: Vec<Source>,
    machine: Machines,
}

enum Machines {
    Hermes(Box<HermesMachine>),
    Meerkat(Box<MeerkatMachine>),
    Baseline(Box<BaselineMachine>),
}

/// Does the same with the machine of either engine.
macro_rules! each {
    ($engine:expr, $machine:ident => $body:expr) => {
        match $engine {
            Machines::Hermes($machine) => $body,
            Machines::Meerkat($machine) => $body,
            Machines::Baseline($machine) => $body,
        }
    };
}

impl Engine {
    pub(crate) fn new(
        shared: &Shared,
        lane: LaneId,
        incarnation: Incarnation,
        keyspace: &KeyspaceConfig,
        seed: u64,
    ) -> Self {
        let store = shared.store(keyspace.id).expect("every configured keyspace has a store");
        let is_replica = keyspace.replicas.is_none_or(|group| group.contains(shared.config.node));
        let (leased, reads_locally, machine) = match (&keyspace.engine, store) {
            (EngineConfig::Hermes { reads, .. }, KeyspaceStore::Hermes(store)) => {
                let leased = *reads == ReadMode::Leased;
                let machine = hermes(shared, lane, incarnation, keyspace, seed, store);
                (leased, leased && is_replica, Machines::Hermes(Box::new(machine)))
            }
            (EngineConfig::Meerkat { isolation, .. }, KeyspaceStore::Meerkat(store)) => {
                let reads_locally = *isolation == Isolation::Serializable;
                let machine = meerkat(shared, lane, incarnation, keyspace, seed, store);
                (false, reads_locally && is_replica, Machines::Meerkat(Box::new(machine)))
            }
            (EngineConfig::Baseline(system), KeyspaceStore::Baseline(store, common)) => {
                assert!(keyspace.replicas.is_none(), "{} is on all nodes", system.name());
                let config = quorate_baselines::Config {
                    system: *system,
                    node: shared.config.node,
                    lane,
                    op_timeout: shared.config.op_timeout,
                    seed,
                };
                let table = store.shared_table(lane.0);
                let machine = Baseline::new(config, table, Arc::clone(common));
                (false, false, Machines::Baseline(Box::new(machine)))
            }
            _ => unreachable!("a keyspace's store is made for its engine"),
        };
        let held = held_partitions(keyspace, shared.config.node);
        let sources = Source::all(keyspace, shared.config.node);
        Self { keyspace: keyspace.id, leased, reads_locally, held, is_replica, sources, machine }
    }

    /// Whether answers of this engine rest on the node's lease.
    pub(crate) fn is_leased(&self) -> bool {
        self.leased
    }

    /// Where the keys of its keyspace are listed.
    pub(crate) fn sources(&self) -> &[Source] {
        &self.sources
    }

    /// Whether it runs transactions over several keys.
    pub(crate) fn is_transactional(&self) -> bool {
        matches!(self.machine, Machines::Meerkat(_) | Machines::Baseline(_))
    }

    /// Whether a key's readable record may be answered from without asking the machine, and its
    /// absence, too.
    pub(crate) fn reads_locally(&self, key: &[u8]) -> bool {
        let is_held = |(count, held): (usize, u64)| held & 1 << partition_of(key, count) != 0;
        self.reads_locally && self.held.is_none_or(is_held)
    }

    pub(crate) fn submit<P>(&mut self, now: Now, tag: Tag, origin: u64, op: P, sink: &mut Sink<'_>)
    where
        P: Operation<Owned = Op, Reply = Reply<'static>>,
    {
        match &mut self.machine {
            Machines::Hermes(machine) => machine.submit(now, tag, origin, op, sink),
            Machines::Meerkat(_) | Machines::Baseline(_) => {
                unreachable!("a keyspace with transactions takes nothing else")
            }
        }
    }

    pub(crate) fn transact<P>(
        &mut self,
        now: Now,
        tag: Tag,
        origin: u64,
        txn: P,
        sink: &mut Sink<'_>,
    ) where
        P: Transaction<Owned = Txn, Reply = Reply<'static>>,
    {
        match &mut self.machine {
            Machines::Hermes(_) => unreachable!("only a keyspace with transactions is given one"),
            Machines::Meerkat(machine) => machine.submit(now, tag, origin, txn, sink),
            Machines::Baseline(machine) => machine.submit(now, tag, origin, txn, sink),
        }
    }

    pub(crate) fn receive(
        &mut self,
        now: Now,
        from: NodeId,
        header: &Header,
        body: &[u8],
        sink: &mut Sink<'_>,
    ) -> Result<(), Malformed> {
        let epoch = header.epoch;
        match (&mut self.machine, header.kind) {
            (Machines::Hermes(machine), Kind::Hermes) => {
                let body = quorate_hermes::Message::decode(body)?;
                machine.step(now, Event::Message { from, epoch, body }, sink);
            }
            (Machines::Meerkat(machine), Kind::Meerkat) => {
                let body = quorate_meerkat::Message::decode(body)?;
                machine.step(now, Event::Message { from, epoch, body }, sink);
            }
            (Machines::Baseline(machine), Kind::Meerkat) => {
                let body = quorate_meerkat::Message::decode(body)?;
                machine.step(now, Event::Message { from, epoch, body }, sink);
            }
            _ => return Err(Malformed("a message for another engine than the keyspace's")),
        }
        Ok(())
    }

    /// Hands over what the sibling on another lane says.
    pub(crate) fn deliver(
        &mut self,
        now: Now,
        from: LaneId,
        mail: quorate_meerkat::Mail,
        sink: &mut Sink<'_>,
    ) {
        match &mut self.machine {
            Machines::Hermes(_) | Machines::Baseline(_) => {
                unreachable!("these siblings never talk")
            }
            Machines::Meerkat(machine) => machine.step(now, Event::Mail { from, mail }, sink),
        }
    }

    /// A client coordinates transactions of its own from now on, reached under `node`.
    pub(crate) fn guest_joined(&mut self, writer: WriterId, node: NodeId) {
        match &mut self.machine {
            Machines::Hermes(_) | Machines::Baseline(_) => {
                unreachable!("guests join keyspaces of the meerkat engine")
            }
            Machines::Meerkat(machine) => machine.guest_joined(writer, node),
        }
    }

    /// It is gone.
    pub(crate) fn guest_left(&mut self, node: NodeId) {
        match &mut self.machine {
            Machines::Hermes(_) | Machines::Baseline(_) => {
                unreachable!("guests join keyspaces of the meerkat engine")
            }
            Machines::Meerkat(machine) => machine.guest_left(node),
        }
    }

    /// Carries out a session's call. Only an engine that has sessions is given one
    /// ([`EngineConfig::has_sessions`]).
    pub(crate) fn call(
        &mut self,
        now: Now,
        tag: Tag,
        permit: Permit,
        origin: u64,
        work: Work,
        sink: &mut Sink<'_>,
    ) {
        match (&mut self.machine, work) {
            (Machines::Hermes(machine), Work::Op(op)) => {
                let request = quorate_hermes::Request { origin, op };
                machine.call(now, tag, permit, request, sink);
            }
            (Machines::Meerkat(machine), Work::Txn(txn)) => {
                let request = quorate_meerkat::Request { origin, txn };
                machine.call(now, tag, permit, request, sink);
            }
            _ => unreachable!("a call is for an engine that has sessions and for its kind of work"),
        }
    }

    /// The date that an attempt at a call has at least if it begins now.
    pub(crate) fn date(&self, now: Now) -> u64 {
        match &self.machine {
            Machines::Hermes(machine) => machine.date(now),
            Machines::Meerkat(machine) => machine.date(now),
            Machines::Baseline(_) => 0,
        }
    }

    /// Sessions with records here, in order, after this one.
    pub(crate) fn leases_after(&self, after: Option<LeaseId>, max: usize) -> Vec<LeaseId> {
        match &self.machine {
            Machines::Hermes(machine) => machine.leases_after(after, max),
            Machines::Meerkat(machine) => machine.leases_after(after, max),
            Machines::Baseline(_) => Vec::new(),
        }
    }

    /// Frees the records of a session that has ended.
    pub(crate) fn end_session(&mut self, verdict: &LeaseEnd) {
        match &mut self.machine {
            Machines::Hermes(machine) => machine.end_session(verdict),
            Machines::Meerkat(machine) => machine.end_session(verdict),
            Machines::Baseline(_) => {}
        }
    }

    pub(crate) fn install(&mut self, now: Now, view: &View, sink: &mut Sink<'_>) {
        each!(&mut self.machine, machine => machine.step(now, Event::View(view), sink));
    }

    pub(crate) fn tick(&mut self, now: Now, sink: &mut Sink<'_>) {
        each!(&mut self.machine, machine => machine.step(now, Event::Tick, sink));
    }

    pub(crate) fn end_turn(&mut self, now: Now, sink: &mut Sink<'_>) {
        each!(&mut self.machine, machine => machine.flush(now, sink));
    }

    pub(crate) fn reset(&mut self, now: Now, incarnation: Incarnation, sink: &mut Sink<'_>) {
        each!(&mut self.machine, machine => machine.reset(now, incarnation, sink));
    }

    pub(crate) fn next_deadline(&self) -> Instant {
        each!(&self.machine, machine => machine.next_deadline())
    }

    /// Whether it holds everything that the active members hold.
    pub fn is_caught_up(&self) -> bool {
        !self.is_replica || each!(&self.machine, machine => machine.is_caught_up())
    }

    /// Ops started or queued.
    pub fn pending(&self) -> usize {
        each!(&self.machine, machine => machine.pending())
    }

    /// What it counts, and what it holds at the moment.
    pub fn facts(&self) -> EngineFacts {
        each!(&self.machine, machine => EngineFacts {
            keyspace: self.keyspace,
            counters: machine.counters().to_vec(),
            gauges: machine.gauges().to_vec(),
            caught_up: self.is_caught_up(),
            copied: machine.copied(),
        })
    }

    pub(crate) fn check_invariants(&self) {
        each!(&self.machine, machine => machine.check_invariants());
    }
}

/// See [`Engine::held`].
fn held_partitions(keyspace: &KeyspaceConfig, node: NodeId) -> Option<(usize, u64)> {
    let EngineConfig::Meerkat { partitions, .. } = &keyspace.engine else { return None };
    let is_held = |group: &Option<NodeSet>| {
        group.or(keyspace.replicas).is_none_or(|group| group.contains(node))
    };
    let held = partitions.iter().map(is_held).enumerate();
    let held = held.fold(0, |set, (partition, held)| set | u64::from(held) << partition);
    (held.count_ones() as usize != partitions.len()).then_some((partitions.len(), held))
}

fn hermes(
    shared: &Shared,
    lane: LaneId,
    incarnation: Incarnation,
    keyspace: &KeyspaceConfig,
    seed: u64,
    store: &Arc<Store<quorate_hermes::Meta>>,
) -> HermesMachine {
    let EngineConfig::Hermes { reads, ack_broadcast, collect_every } = keyspace.engine else {
        unreachable!("a keyspace's store is made for its engine")
    };
    let config = &shared.config;
    Hermes::new(
        quorate_hermes::Config {
            replicas: keyspace.replicas,
            message_loss_timeout: config.message_loss_timeout,
            op_timeout: config.op_timeout,
            ack_broadcast,
            collect_every,
            reads: match reads {
                ReadMode::Leased => quorate_hermes::Reads::Leased,
                ReadMode::Quorum => quorate_hermes::Reads::Quorum,
            },
            ..quorate_hermes::Config::new(config.node, incarnation, seed)
        },
        store.table(lane.0),
    )
}

fn meerkat(
    shared: &Shared,
    lane: LaneId,
    incarnation: Incarnation,
    keyspace: &KeyspaceConfig,
    seed: u64,
    store: &Arc<Store<quorate_meerkat::Meta>>,
) -> MeerkatMachine {
    let EngineConfig::Meerkat { isolation, max_clock_skew, partitions } = &keyspace.engine else {
        unreachable!("a keyspace's store is made for its engine")
    };
    let config = &shared.config;
    let groups = partitions.iter().map(|group| group.or(keyspace.replicas)).collect();
    Meerkat::new(
        quorate_meerkat::Config {
            partitions: groups,
            isolation: *isolation,
            max_clock_skew: *max_clock_skew,
            message_loss_timeout: config.message_loss_timeout,
            op_timeout: config.op_timeout,
            ..quorate_meerkat::Config::new(config.node, incarnation, lane, config.lanes, seed)
        },
        store.shared_table(lane.0),
    )
}

/// Where the effects of an engine go: messages are encoded straight into the peers' buffers.
pub(crate) struct Sink<'a> {
    pub(crate) out: &'a mut Outbox,
    /// Tags with this bit are the lane's own.
    pub(crate) internal: u64,
    pub(crate) internal_done: &'a mut Vec<Done>,
    pub(crate) ignored: &'a mut Vec<(&'static str, u64)>,
    /// Why the message that is being handled is refused.
    pub(crate) refusal: &'a mut Option<&'static str>,
    pub(crate) keyspace: KeyspaceId,
    pub(crate) lane: LaneId,
    pub(crate) epoch: Epoch,
    pub(crate) lease_bound: bool,
}

impl Effects<HermesMachine> for Sink<'_> {
    fn send(&mut self, to: NodeId, message: &quorate_hermes::Message<'_>) {
        Effects::<HermesMachine>::broadcast(self, NodeSet::only(to), message);
    }

    fn broadcast(&mut self, to: NodeSet, message: &quorate_hermes::Message<'_>) {
        let (keyspace, epoch) = (self.keyspace, self.epoch);
        let encode = |buffer: &mut Vec<u8>| {
            Header::frame(buffer, Kind::Hermes, keyspace, epoch, |writer| message.encode(writer));
        };
        // The answer to a forwarded op rests on this node's lease as a client's answer does.
        if self.lease_bound && matches!(message, quorate_hermes::Message::Forwarded { .. }) {
            self.out.frame_sealed(to, encode);
        } else if matches!(message, quorate_hermes::Message::Val(_)) {
            self.out.frame_lazily(to, encode);
        } else {
            self.out.frame(to, encode);
        }
    }

    fn complete(&mut self, tag: Tag, outcome: Outcome<Reply<'static>>) {
        self.done(Done::new(tag, outcome));
    }

    fn complete_read(&mut self, tag: Tag, outcome: Outcome<Reply<'static>>) {
        self.done(Done { lease_bound: self.lease_bound, ..Done::new(tag, outcome) });
    }

    fn ignored(&mut self, reason: &'static str) {
        count(self.ignored, reason);
    }

    fn refused(&mut self, reason: &'static str) {
        *self.refusal = Some(reason);
    }

    fn probe(&mut self, name: &'static str) {
        count(&mut self.out.probes, name);
    }
}

impl Effects<MeerkatMachine> for Sink<'_> {
    fn send(&mut self, to: NodeId, message: &quorate_meerkat::Message<'_>) {
        self.frame_meerkat(NodeSet::only(to), message);
    }

    fn broadcast(&mut self, to: NodeSet, message: &quorate_meerkat::Message<'_>) {
        self.frame_meerkat(to, message);
    }

    fn mail(&mut self, to: LaneId, mail: quorate_meerkat::Mail) {
        let mail = Mail::Engine { from: self.lane, keyspace: self.keyspace, mail };
        self.out.mail.push((to, mail));
    }

    fn complete(&mut self, tag: Tag, outcome: Outcome<Reply<'static>>) {
        self.done(Done::new(tag, outcome));
    }

    fn complete_at(&mut self, tag: Tag, outcome: Outcome<Reply<'static>>, at: Timestamp) {
        self.done(Done { at: Some(at), ..Done::new(tag, outcome) });
    }

    fn ignored(&mut self, reason: &'static str) {
        count(self.ignored, reason);
    }

    fn refused(&mut self, reason: &'static str) {
        *self.refusal = Some(reason);
    }

    fn probe(&mut self, name: &'static str) {
        count(&mut self.out.probes, name);
    }
}

/// The rivals speak with Meerkat's messages: what serialization costs is the same for all.
impl Effects<BaselineMachine> for Sink<'_> {
    fn send(&mut self, to: NodeId, message: &quorate_meerkat::Message<'_>) {
        self.frame_meerkat(NodeSet::only(to), message);
    }

    fn broadcast(&mut self, to: NodeSet, message: &quorate_meerkat::Message<'_>) {
        self.frame_meerkat(to, message);
    }

    fn complete(&mut self, tag: Tag, outcome: Outcome<Reply<'static>>) {
        self.done(Done::new(tag, outcome));
    }

    fn complete_at(&mut self, tag: Tag, outcome: Outcome<Reply<'static>>, at: Timestamp) {
        self.done(Done { at: Some(at), ..Done::new(tag, outcome) });
    }

    fn ignored(&mut self, reason: &'static str) {
        count(self.ignored, reason);
    }

    fn refused(&mut self, reason: &'static str) {
        *self.refusal = Some(reason);
    }
}

impl Sink<'_> {
    fn frame_meerkat(&mut self, to: NodeSet, message: &quorate_meerkat::Message<'_>) {
        let (keyspace, epoch) = (self.keyspace, self.epoch);
        let encode = |buffer: &mut Vec<u8>| {
            Header::frame(buffer, Kind::Meerkat, keyspace, epoch, |writer| message.encode(writer));
        };
        if message.is_lazy() {
            self.out.frame_lazily(to, encode);
        } else {
            self.out.frame(to, encode);
        }
    }

    fn done(&mut self, done: Done) {
        if done.tag.0 & self.internal != 0 {
            self.internal_done.push(done);
        } else {
            self.out.done.push(done);
        }
    }
}
