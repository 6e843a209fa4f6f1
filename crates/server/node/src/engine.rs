//! One lane of a keyspace: its engine, known by the contract alone, and where the engine's effects
//! go.

use std::fmt::Debug;
use std::sync::Arc;

use quorate_commands::{Op, Reply};
use quorate_engine::{CallsHome, Capabilities, Context, Delivery, Engine, Pins, Place};
use quorate_machine::{
    Command, Completion, Effects, Event, Gate, Machine, Meta, Outcome, Refusal, Request, SavePoint,
    Table, Unreadable,
};
use quorate_rifl::{Kept, LeaseEnd, LeaseId, Sessions};
use quorate_storage::{LaneTable, SharedTable, Store};
use quorate_types::{
    Epoch, Incarnation, Instant, KeyspaceId, LaneId, Lsn, NodeId, NodeSet, Now, Tag, View,
    WriterId, partition_of,
};
use quorate_wire::{GuestMessage, Header, Kind, ListingMessage, Malformed, PubSubMessage, Reader};

use crate::engines::{EngineLane, EngineMail, each};
use crate::forwarding::{Forwarding, Submission};
use crate::lane::count;
use crate::lane_log::LaneLog;
use crate::listing::Source;
use crate::pins::KnownPins;
use crate::{Done, Durability, EngineFacts, KeyspaceConfig, Mail, Outbox, Shared};

/// An engine's words in a record.
pub(crate) type MetaOf<E> = <<E as Engine>::Table as Table>::Meta;

/// A peer message in words, for traces.
pub fn describe_message(header: &Header, body: &[u8]) -> String {
    fn show<M: Debug>(message: Result<M, Malformed>) -> Result<String, Malformed> {
        message.map(|message| format!("{message:?}"))
    }
    let text = match header.kind {
        Kind::Membership => show(quorate_membership::Message::decode(Reader(body))),
        Kind::Engine(engine) => crate::engines::describe(engine, body),
        Kind::Guest => show(GuestMessage::decode(body)),
        Kind::Listing => show(ListingMessage::decode(body)),
        Kind::Forward => show(crate::forwarding::Message::decode(body)),
        Kind::PubSub => show(PubSubMessage::decode(body)),
        Kind::Session => show(quorate_rifl::Message::decode(body)),
        Kind::Room => show(Reader(body).u8()),
    };
    let text = text.unwrap_or_else(|error| error.to_string());
    format!("{:?} {text}", header.epoch)
}

/// An engine of the list, with what the list's expansion adds.
pub(crate) trait Listed: Engine<Command = Op, Outcome = Outcome<Reply<'static>>> {
    /// What it says to its siblings, in the list's form.
    fn wrap(mail: Self::Mail) -> EngineMail;
}

/// How a lane sees the records of a store.
pub(crate) trait OpenTable<M: Meta> {
    fn open(store: &Arc<Store<M>>, lane: LaneId) -> Self;
}

impl<M: Meta> OpenTable<M> for LaneTable<M> {
    fn open(store: &Arc<Store<M>>, lane: LaneId) -> Self {
        store.table(lane.0)
    }
}

impl<M: Meta> OpenTable<M> for SharedTable<M> {
    fn open(store: &Arc<Store<M>>, lane: LaneId) -> Self {
        store.shared_table(lane.0)
    }
}

/// What a lane of an engine is told at its start, besides its options and records.
pub(crate) struct Seat<'a> {
    shared: &'a Shared,
    lane: LaneId,
    incarnation: Incarnation,
    keyspace: &'a KeyspaceConfig,
    seed: u64,
}

impl Seat<'_> {
    /// The engine's machine.
    pub(crate) fn take<E>(
        &self,
        options: &E::Options,
        store: &Arc<Store<MetaOf<E>>>,
        shared: &Arc<E::Shared>,
    ) -> Box<E>
    where
        E: Engine<Table: OpenTable<MetaOf<E>>>,
    {
        let config = &self.shared.config;
        let context = Context {
            node: config.node,
            incarnation: self.incarnation,
            lane: self.lane,
            lanes: config.lanes,
            replicas: self.keyspace.replicas,
            partitions: self.keyspace.partitions.clone(),
            message_loss_timeout: config.message_loss_timeout,
            op_timeout: config.op_timeout,
            seed: self.seed,
            table: E::Table::open(store, self.lane),
            shared: Arc::clone(shared),
        };
        Box::new(E::new(context, options))
    }
}

/// One lane of a keyspace.
pub struct KeyspaceLane {
    keyspace: KeyspaceId,
    engine: EngineLane,
    capabilities: Capabilities,
    /// Whether answers of the engine rest on the node's lease.
    leased: bool,
    /// Whether every active replica has what was acknowledged.
    acknowledges_from_all: bool,
    /// Whether reads of one key may be answered from the local record, if there can be one.
    reads_locally: bool,
    /// If some of its partitions have no replica here: how many there are, and those that have.
    held: Option<(usize, u64)>,
    /// Whether this node holds the keyspace's records.
    is_replica: bool,
    /// Commands that other nodes run for this one.
    pub(crate) forwarding: Forwarding,
    /// What survives of it when power is lost.
    durability: Durability,
    /// Where units of its keys are pinned.
    pins: KnownPins,
    /// Where its records are.
    sources: Vec<Source>,
    /// Every replica group.
    groups: Vec<Source>,
}

impl KeyspaceLane {
    pub(crate) fn new(
        shared: &Shared,
        lane: LaneId,
        incarnation: Incarnation,
        keyspace: &KeyspaceConfig,
        seed: u64,
    ) -> Self {
        let store = shared.store(keyspace.id).expect("every configured keyspace has a store");
        let node = shared.config.node;
        let is_replica = keyspace.replicas.is_none_or(|group| group.contains(node));
        let seat = Seat { shared, lane, incarnation, keyspace, seed };
        let engine = EngineLane::new(&keyspace.engine, store, &seat);
        Self {
            keyspace: keyspace.id,
            capabilities: keyspace.engine.capabilities(),
            leased: each!(&engine, engine => engine.is_leased()),
            acknowledges_from_all: each!(&engine, engine => engine.acknowledges_from_all()),
            reads_locally: is_replica && each!(&engine, engine => engine.reads_locally()),
            held: held_partitions(keyspace, node),
            is_replica,
            forwarding: Forwarding::new(&shared.config, incarnation),
            durability: keyspace.durability,
            pins: KnownPins::new(shared, keyspace),
            sources: Source::all(keyspace, node),
            groups: Source::groups(keyspace),
            engine,
        }
    }

    /// Whether answers of the engine rest on the node's lease.
    pub(crate) fn is_leased(&self) -> bool {
        self.leased
    }

    /// What survives of it when power is lost.
    pub(crate) fn durability(&self) -> Durability {
        self.durability
    }

    /// The kind of its entries in the log: what numbers its engine.
    pub(crate) fn kind(&self) -> u8 {
        fn kind<E: Engine>(_: &E) -> u8 {
            E::ID.0
        }
        each!(&self.engine, engine => kind(&**engine))
    }

    /// Takes in an entry that an earlier process has left.
    pub(crate) fn restore(&mut self, kind: u8, entry: &[u8]) -> Result<(), String> {
        if kind != self.kind() {
            return Err(format!(
                "keyspace {} had another engine, and its entries mean nothing to this one; choose the \
                 engine again that it had, or another directory",
                self.keyspace
            ));
        }
        let restored = each!(&mut self.engine, engine => engine.restore(entry));
        restored.map_err(|Unreadable(why)| {
            format!(
                "keyspace {}: {why}; start the program that wrote it, or a newer one",
                self.keyspace
            )
        })
    }

    /// Has what these entries are about fetched from memory.
    pub(crate) fn warm_entries<'a>(&self, entries: impl Iterator<Item = &'a [u8]>) {
        each!(&self.engine, engine => Engine::warm_entries(&**engine, entries));
    }

    /// Every entry of every lane of this node is in.
    pub(crate) fn restored(&mut self) {
        each!(&mut self.engine, engine => engine.restored());
    }

    /// Takes in what has waited for an entry of another lane; see [`Engine::restore_parked`].
    pub(crate) fn restore_parked(&mut self) -> bool {
        each!(&mut self.engine, engine => engine.restore_parked())
    }

    /// Hands out entries that bring back what has to survive; see [`Machine::save`].
    pub(crate) fn save(
        &mut self,
        from: SavePoint,
        bytes: usize,
        write: &mut dyn FnMut(&[u8]),
    ) -> Option<SavePoint> {
        let mut write = write;
        each!(&mut self.engine, engine => engine.save(from, bytes, &mut write))
    }

    /// Whether one command or block may change several keys.
    pub(crate) fn has_transactions(&self) -> bool {
        self.capabilities.transactions
    }

    /// Whether the engine places commands on other nodes.
    #[inline]
    pub(crate) fn places(&self) -> bool {
        self.capabilities.places
    }

    /// Whether this node holds the keyspace's records.
    pub(crate) fn is_replica(&self) -> bool {
        self.is_replica
    }

    /// Where a command of this node's clients should run.
    #[inline]
    pub(crate) fn place<P>(&mut self, now: Now, origin: u64, op: &P) -> Place
    where
        P: Command<Owned = Op, Reply = Reply<'static>>,
    {
        each!(&mut self.engine, engine => Engine::place(&mut **engine, now, origin, op, &self.pins))
    }

    /// How many units of keys are pinned, and where this one is. `None` where keys don't move.
    pub fn pins(&self, unit: &[u8]) -> Option<(u64, Option<NodeId>)> {
        self.pins.count().map(|count| (count, self.pins.node_of(unit)))
    }

    /// On which lane a session's call runs, if the engine has them.
    pub(crate) fn calls_home(&self) -> Option<CallsHome> {
        self.capabilities.calls
    }

    /// Whether every active replica has what was acknowledged; otherwise a majority has it.
    pub(crate) fn acknowledges_from_all(&self) -> bool {
        self.acknowledges_from_all
    }

    /// Where its keys are listed.
    pub(crate) fn listing_sources(&self) -> &[Source] {
        if self.acknowledges_from_all { &self.sources } else { &self.groups }
    }

    /// Every replica group.
    pub(crate) fn groups(&self) -> &[Source] {
        &self.groups
    }

    /// Where its records are: one source if this node has all of them.
    pub(crate) fn sources(&self) -> &[Source] {
        &self.sources
    }

    /// Whether a key's readable record may be answered from without asking the machine, and its
    /// absence, too.
    pub(crate) fn reads_locally(&self, key: &[u8]) -> bool {
        self.reads_locally && self.holds(key)
    }

    /// Whether this node has a replica of the key, and so hears of its changes.
    pub fn holds(&self, key: &[u8]) -> bool {
        self.is_replica
            && self.holds_partition_of(key)
            && (!self.capabilities.spreads || each!(&self.engine, engine => engine.holds(key)))
    }

    /// Whether that is so for every key.
    pub(crate) fn holds_all(&self) -> bool {
        let all = !self.capabilities.spreads || each!(&self.engine, engine => engine.holds_all());
        self.is_replica && self.held.is_none() && all
    }

    /// Whether each key is at some of the members, which follow from the view.
    pub(crate) fn spreads(&self) -> bool {
        self.capabilities.spreads
    }

    /// Whether this node tells of the key where all active members do; see [`Engine::lists`].
    pub(crate) fn lists(&self, key: &[u8]) -> bool {
        each!(&self.engine, engine => engine.lists(key))
    }

    /// Whether this node may lack keys that it is to tell of; see [`Engine::is_in_doubt`].
    pub fn is_in_doubt(&self) -> bool {
        each!(&self.engine, engine => engine.is_in_doubt())
    }

    /// Whether logs of other lanes may bring back what this one's copy has replaced; see
    /// [`Engine::outdates_logs`].
    pub fn outdates_logs(&self) -> bool {
        each!(&self.engine, engine => engine.outdates_logs())
    }

    /// The commits of which some replica may not have heard; see [`Engine::untold`].
    pub fn untold(&self) -> Vec<(u64, NodeSet)> {
        each!(&self.engine, engine => engine.untold())
    }

    pub(crate) fn logs_renewed(&mut self) {
        each!(&mut self.engine, engine => engine.logs_renewed());
    }

    /// How many live members besides this node have what it changes, if that follows from the view.
    pub(crate) fn other_copies(&self) -> Option<usize> {
        self.capabilities.spreads.then(|| each!(&self.engine, engine => engine.other_copies()))
    }

    #[inline]
    fn holds_partition_of(&self, key: &[u8]) -> bool {
        let is_held = |(count, held): (usize, u64)| held & 1 << partition_of(key, count) != 0;
        self.held.is_none_or(is_held)
    }

    /// Runs a command on this node. A session's call is only for an engine that has them
    /// ([`quorate_engine::Capabilities::calls`]).
    #[inline]
    pub(crate) fn run<C>(&mut self, now: Now, submission: Submission<C>, sink: &mut Sink<'_>)
    where
        C: Command<Owned = Op, Reply = Reply<'static>>,
    {
        let Submission { tag, origin, op, permit, .. } = submission;
        if sink.disk_is_full && (permit.is_some() || op.updates()) {
            return sink.refuse(tag, Refusal::DiskFull);
        }
        match permit {
            None => each!(&mut self.engine, engine => {
                Engine::submit(&mut **engine, now, tag, origin, op, sink);
            }),
            Some(permit) => {
                let request = Request { origin, command: op.into_owned() };
                each!(&mut self.engine, engine => engine.call(now, tag, permit, request, sink));
            }
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
        #[inline]
        fn step<E: Listed>(
            machine: &mut E,
            now: Now,
            from: NodeId,
            header: &Header,
            body: &[u8],
            sink: &mut Sink<'_>,
        ) -> Result<(), Malformed> {
            if header.kind != Kind::Engine(E::ID) {
                return Err(Malformed("a message for another engine than the keyspace's"));
            }
            let event = Event::Message { from, epoch: header.epoch, body: E::decode(body)? };
            machine.step(now, event, sink);
            Ok(())
        }
        each!(&mut self.engine, engine => step(&mut **engine, now, from, header, body, sink))
    }

    /// Has what these messages are about fetched from memory.
    pub(crate) fn warm<'a>(&self, messages: impl Iterator<Item = &'a [u8]>) {
        each!(&self.engine, engine => Engine::warm(&**engine, messages));
    }

    /// Hands over what the sibling on another lane says.
    pub(crate) fn deliver(
        &mut self,
        now: Now,
        from: LaneId,
        mail: EngineMail,
        sink: &mut Sink<'_>,
    ) {
        self.engine.deliver(now, from, mail, sink);
    }

    /// A client coordinates transactions of its own from now on, reached under `node`.
    pub(crate) fn guest_joined(&mut self, writer: WriterId, node: NodeId) {
        each!(&mut self.engine, engine => Engine::guest_joined(&mut **engine, writer, node));
    }

    /// It is gone.
    pub(crate) fn guest_left(&mut self, node: NodeId) {
        each!(&mut self.engine, engine => Engine::guest_left(&mut **engine, node));
    }

    /// The date that an attempt at a call has at least if it begins now.
    pub(crate) fn date(&self, now: Now) -> u64 {
        each!(&self.engine, engine => engine.date(now))
    }

    /// Sessions with records here, in order, after this one.
    pub(crate) fn leases_after(&self, after: Option<LeaseId>, max: usize) -> Vec<LeaseId> {
        each!(&self.engine, engine => engine.leases_after(after, max))
    }

    /// Shows the records of calls; see [`Sessions::each_record`].
    pub fn each_record(&self, visit: &mut impl FnMut(usize, LeaseId, u64, Kept<'_>)) {
        each!(&self.engine, engine => engine.each_record(visit));
    }

    /// Frees the records of a session that has ended.
    pub(crate) fn end_session(&mut self, end: &LeaseEnd) {
        each!(&mut self.engine, engine => engine.end_session(end));
    }

    /// A view is in force. `survivors` are its live members that were live in the view before under
    /// the same incarnation. Without them this node is not live in the view.
    pub(crate) fn install(
        &mut self,
        now: Now,
        view: &View,
        survivors: Option<NodeSet>,
        sink: &mut Sink<'_>,
    ) {
        each!(&mut self.engine, engine => engine.step(now, Event::View(view), sink));
        match survivors {
            Some(survivors) => self.restart_forwarding(now, view, survivors, sink),
            None => self.abandon_forwarding(sink),
        }
    }

    pub(crate) fn tick(&mut self, now: Now, sink: &mut Sink<'_>) {
        each!(&mut self.engine, engine => engine.step(now, Event::Tick, sink));
        if self.forwarding.next_deadline() <= now.monotonic {
            self.tick_forwarding(now, sink);
        }
    }

    pub(crate) fn durable(&mut self, now: Now, lsn: Lsn, sink: &mut Sink<'_>) {
        each!(&mut self.engine, engine => engine.step(now, Event::Durable(lsn), sink));
    }

    pub(crate) fn end_turn(&mut self, now: Now, sink: &mut Sink<'_>) {
        each!(&mut self.engine, engine => engine.end_turn(now, sink));
    }

    pub(crate) fn short_of_memory(&mut self, now: Now, sink: &mut Sink<'_>) {
        each!(&mut self.engine, engine => Engine::short_of_memory(&mut **engine, now, sink));
    }

    pub(crate) fn reset(&mut self, now: Now, incarnation: Incarnation, sink: &mut Sink<'_>) {
        each!(&mut self.engine, engine => Engine::reset(&mut **engine, now, incarnation, sink));
        self.reset_forwarding(incarnation, sink);
    }

    pub(crate) fn next_deadline(&self) -> Instant {
        let engine = each!(&self.engine, engine => engine.next_deadline());
        engine.min(self.forwarding.next_deadline())
    }

    /// Whether it holds everything that the active members hold.
    pub fn is_caught_up(&self) -> bool {
        !self.is_replica || each!(&self.engine, engine => engine.is_caught_up())
    }

    /// Ops started, queued or forwarded.
    pub fn pending(&self) -> usize {
        each!(&self.engine, engine => engine.pending()) + self.forwarding.len()
    }

    /// What it counts, and what it holds at the moment.
    pub fn facts(&self) -> EngineFacts {
        let mut facts = each!(&self.engine, engine => EngineFacts {
            keyspace: self.keyspace,
            counters: Engine::counters(&**engine),
            gauges: Engine::gauges(&**engine),
            caught_up: self.is_caught_up(),
            copied: engine.copied(),
        });
        if self.places() {
            facts.counters.push(("forwarded", self.forwarding.forwarded()));
            facts.counters.push(("forwarded_updates", self.forwarding.forwarded_updates()));
            facts.gauges.push(("ops_forwarded", self.forwarding.len() as u64));
        }
        facts
    }

    pub(crate) fn check_invariants(&self) {
        each!(&self.engine, engine => engine.check_invariants());
        self.forwarding.check_invariants();
    }
}

/// See [`KeyspaceLane::held`].
fn held_partitions(keyspace: &KeyspaceConfig, node: NodeId) -> Option<(usize, u64)> {
    let is_held = |group: &Option<NodeSet>| {
        group.or(keyspace.replicas).is_none_or(|group| group.contains(node))
    };
    let held = keyspace.partitions.iter().map(is_held).enumerate();
    let held = held.fold(0, |set, (partition, held)| set | u64::from(held) << partition);
    let count = keyspace.partitions.len();
    (held.count_ones() as usize != count).then_some((count, held))
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
    pub(crate) durability: Durability,
    /// Whether no update may begin.
    pub(crate) disk_is_full: bool,
    pub(crate) log: Option<&'a mut LaneLog>,
}

impl<E: Listed> Effects<E> for Sink<'_> {
    #[inline]
    fn append(&mut self, encode: impl FnOnce(&mut Vec<u8>)) -> Lsn {
        match &mut self.log {
            Some(log) if self.durability != Durability::Memory => {
                log.append((self.keyspace, E::ID.0, self.durability), encode)
            }
            _ => Lsn::START,
        }
    }

    #[inline]
    fn send(&mut self, to: NodeId, message: &E::Message<'_>) {
        Effects::<E>::broadcast(self, NodeSet::only(to), message);
    }

    #[inline]
    fn broadcast(&mut self, to: NodeSet, message: &E::Message<'_>) {
        let encode = self.encoding::<E>(message);
        match E::delivery(message) {
            Delivery::Lazy => self.out.frame_lazily(to, encode),
            Delivery::Now => self.out.frame(to, encode),
        }
    }

    fn send_behind(&mut self, gate: Gate, to: NodeSet, message: &E::Message<'_>) {
        let encode = self.encoding::<E>(message);
        self.out.frame_behind(self.narrowed(gate), to, encode);
    }

    fn mail(&mut self, to: LaneId, mail: E::Mail) {
        let mail = Mail::Engine { from: self.lane, keyspace: self.keyspace, mail: E::wrap(mail) };
        self.out.mail.push((to, mail));
    }

    #[inline]
    fn complete(&mut self, tag: Tag, outcome: Outcome<Reply<'static>>) {
        self.done(Done::new(tag, outcome));
    }

    #[inline]
    fn complete_on(&mut self, tag: Tag, completion: Completion<Outcome<Reply<'static>>>) {
        let Completion { outcome, gate, at } = completion;
        let gate = self.narrowed(gate);
        let done = Done { tag, outcome, lease_bound: gate.lease, at };
        if let Some(done) = self.out.hold_until_durable(gate, done) {
            self.done(done);
        }
    }

    fn ignored(&mut self, reason: &'static str) {
        count(self.ignored, reason);
    }

    fn refused(&mut self, reason: &'static str) {
        *self.refusal = Some(reason);
    }

    fn expired(&mut self, key: &[u8]) {
        if self.out.tells_expired {
            self.out.expired.push((self.keyspace, key.into()));
        }
    }

    fn probe(&mut self, name: &'static str) {
        count(&mut self.out.probes, name);
    }
}

impl Sink<'_> {
    fn encoding<'m, 'b, E: Listed>(
        &self,
        message: &'m E::Message<'b>,
    ) -> impl FnOnce(&mut Vec<u8>) + use<'m, 'b, E> {
        let (keyspace, epoch) = (self.keyspace, self.epoch);
        move |buffer| {
            Header::frame(buffer, Kind::Engine(E::ID), keyspace, epoch, |writer| {
                E::encode(message, writer);
            });
        }
    }

    /// What the engine asks for, as far as its options let its answers rest on the lease.
    fn narrowed(&self, gate: Gate) -> Gate {
        Gate { lease: gate.lease && self.lease_bound, ..gate }
    }

    pub(crate) fn done(&mut self, done: Done) {
        if done.tag.0 & self.internal != 0 {
            self.internal_done.push(done);
        } else {
            self.out.done.push(done);
        }
    }
}
