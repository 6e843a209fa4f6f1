//! The engines of a lane: the only place that knows which ones exist.

use quorate_commands::{Op, Reply};
use quorate_hermes::Hermes;
use quorate_machine::{Effects, Event, Machine, Operation, Outcome, Protocol};
use quorate_storage::LaneTable;
use quorate_types::{
    Epoch, Incarnation, Instant, KeyspaceId, LaneId, NodeId, NodeSet, Now, Tag, Timestamp, View,
};
use quorate_wire::{Header, Kind, Malformed, Reader};

use crate::lane::count;
use crate::{Done, EngineConfig, EngineFacts, KeyspaceConfig, Outbox, ReadMode, Shared};

/// Every probe of every machine of a lane.
pub const PROBES: &[&[&str]] =
    &[<HermesMachine as Protocol>::PROBES, <quorate_membership::Membership as Protocol>::PROBES];

/// A peer message in words, for traces.
pub fn describe_message(header: &Header, body: &[u8]) -> String {
    let text = match header.kind {
        Kind::Membership => {
            quorate_membership::Message::decode(Reader(body)).map(|message| format!("{message:?}"))
        }
        Kind::Hermes => quorate_hermes::Message::decode(body).map(|message| format!("{message:?}")),
        Kind::Meerkat => Err(Malformed("unknown keyspace")),
    };
    let text = text.unwrap_or_else(|error| error.to_string());
    format!("{:?} {text}", header.epoch)
}

/// The Hermes machine as this node runs it.
pub(crate) type HermesMachine = Hermes<LaneTable<quorate_hermes::Meta>, Op>;

/// The engine of one keyspace on one lane. An enum and not a trait object, because an op is generic
/// over the form its arguments have.
pub struct Engine {
    keyspace: KeyspaceId,
    leased: bool,
    /// Whether this node holds the keyspace's records.
    is_replica: bool,
    machine: Machines,
}

enum Machines {
    Hermes(Box<HermesMachine>),
}

impl Engine {
    pub(crate) fn new(
        shared: &Shared,
        lane: LaneId,
        incarnation: Incarnation,
        keyspace: &KeyspaceConfig,
        seed: u64,
    ) -> Self {
        let config = &shared.config;
        let EngineConfig::Hermes { reads, ack_broadcast } = keyspace.engine;
        let store = shared.store(keyspace.id).expect("every configured keyspace has a store");
        let machine = Hermes::new(
            quorate_hermes::Config {
                replicas: keyspace.replicas,
                message_loss_timeout: config.message_loss_timeout,
                op_timeout: config.op_timeout,
                ack_broadcast,
                reads: match reads {
                    ReadMode::Leased => quorate_hermes::Reads::Leased,
                    ReadMode::Quorum => quorate_hermes::Reads::Quorum,
                },
                ..quorate_hermes::Config::new(config.node, incarnation, seed)
            },
            store.table(lane.0),
        );
        Self {
            keyspace: keyspace.id,
            leased: reads == ReadMode::Leased,
            is_replica: keyspace.replicas.is_none_or(|group| group.contains(config.node)),
            machine: Machines::Hermes(Box::new(machine)),
        }
    }

    /// Whether answers of this engine rest on the node's lease.
    pub(crate) fn is_leased(&self) -> bool {
        self.leased
    }

    /// Whether a readable record may be answered from without asking the machine.
    pub(crate) fn reads_locally(&self) -> bool {
        self.leased && self.is_replica
    }

    /// The version that a key without record has.
    pub(crate) fn absent_timestamp(&self) -> Timestamp {
        Timestamp::ZERO
    }

    pub(crate) fn submit<P>(&mut self, now: Now, tag: Tag, origin: u64, op: &P, sink: &mut Sink<'_>)
    where
        P: Operation<Owned = Op, Reply = Reply<'static>>,
    {
        match &mut self.machine {
            Machines::Hermes(machine) => machine.submit(now, tag, origin, op, sink),
        }
    }

    pub(crate) fn receive(
        &mut self,
        now: Now,
        from: NodeId,
        epoch: Epoch,
        body: &[u8],
        sink: &mut Sink<'_>,
    ) -> Result<(), Malformed> {
        match &mut self.machine {
            Machines::Hermes(machine) => {
                let body = quorate_hermes::Message::decode(body)?;
                machine.step(now, Event::Message { from, epoch, body }, sink);
            }
        }
        Ok(())
    }

    pub(crate) fn install(&mut self, now: Now, view: &View, sink: &mut Sink<'_>) {
        match &mut self.machine {
            Machines::Hermes(machine) => machine.step(now, Event::View(view), sink),
        }
    }

    pub(crate) fn tick(&mut self, now: Now, sink: &mut Sink<'_>) {
        match &mut self.machine {
            Machines::Hermes(machine) => machine.step(now, Event::Tick, sink),
        }
    }

    pub(crate) fn end_turn(&mut self, now: Now, sink: &mut Sink<'_>) {
        match &mut self.machine {
            Machines::Hermes(machine) => machine.flush(now, sink),
        }
    }

    pub(crate) fn reset(&mut self, now: Now, incarnation: Incarnation, sink: &mut Sink<'_>) {
        match &mut self.machine {
            Machines::Hermes(machine) => machine.reset(now, incarnation, sink),
        }
    }

    pub(crate) fn next_deadline(&self) -> Instant {
        match &self.machine {
            Machines::Hermes(machine) => machine.next_deadline(),
        }
    }

    /// Whether it holds everything that the active members hold.
    pub fn is_caught_up(&self) -> bool {
        match &self.machine {
            Machines::Hermes(machine) => !self.is_replica || machine.is_caught_up(),
        }
    }

    /// Ops started or queued.
    pub fn pending(&self) -> usize {
        match &self.machine {
            Machines::Hermes(machine) => machine.pending(),
        }
    }

    pub(crate) fn facts(&self) -> EngineFacts {
        match &self.machine {
            Machines::Hermes(machine) => EngineFacts {
                keyspace: self.keyspace,
                counters: machine.counters().to_vec(),
                gauges: machine.gauges().to_vec(),
                caught_up: self.is_caught_up(),
                copied: machine.copied(),
            },
        }
    }

    pub(crate) fn check_invariants(&self) {
        match &self.machine {
            Machines::Hermes(machine) => machine.check_invariants(),
        }
    }
}

/// Where the effects of an engine go: messages are encoded straight into the peers' buffers.
pub(crate) struct Sink<'a> {
    pub(crate) out: &'a mut Outbox,
    /// Tags with this bit are the lane's own.
    pub(crate) internal: u64,
    pub(crate) internal_done: &'a mut Vec<Done>,
    pub(crate) ignored: &'a mut Vec<(&'static str, u64)>,
    pub(crate) keyspace: KeyspaceId,
    pub(crate) epoch: Epoch,
    pub(crate) lease_bound: bool,
}

impl Effects<HermesMachine> for Sink<'_> {
    fn send(&mut self, to: NodeId, message: &quorate_hermes::Message<'_>) {
        self.broadcast(NodeSet::only(to), message);
    }

    fn broadcast(&mut self, to: NodeSet, message: &quorate_hermes::Message<'_>) {
        let (keyspace, epoch) = (self.keyspace, self.epoch);
        let encode = |buffer: &mut Vec<u8>| {
            Header::frame(buffer, Kind::Hermes, keyspace, epoch, |writer| message.encode(writer));
        };
        // The answer to a steered op rests on this node's lease as a client's answer does.
        if self.lease_bound && matches!(message, quorate_hermes::Message::Steered { .. }) {
            self.out.frame_sealed(to, encode);
        } else if matches!(message, quorate_hermes::Message::Val(_)) {
            self.out.frame_lazily(to, encode);
        } else {
            self.out.frame(to, encode);
        }
    }

    fn complete(&mut self, tag: Tag, outcome: Outcome<Reply<'static>>) {
        self.done(Done { tag, outcome, lease_bound: false });
    }

    fn complete_read(&mut self, tag: Tag, outcome: Outcome<Reply<'static>>) {
        self.done(Done { tag, outcome, lease_bound: self.lease_bound });
    }

    fn ignored(&mut self, reason: &'static str) {
        count(self.ignored, reason);
    }

    fn probe(&mut self, name: &'static str) {
        count(&mut self.out.probes, name);
    }
}

impl Sink<'_> {
    fn done(&mut self, done: Done) {
        if done.tag.0 & self.internal != 0 {
            self.internal_done.push(done);
        } else {
            self.out.done.push(done);
        }
    }
}
