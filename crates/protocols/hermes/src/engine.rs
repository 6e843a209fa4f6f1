//! Hermes as the engine of a keyspace.

use alloc::vec::Vec;

use quorate_engine::{
    CallsHome, Capabilities, Context, Delivery, Engine, OptionKind, OptionSpec, OptionValue, Pins,
    Place, Readable,
};
use quorate_machine::{Command, Effects, Table};
use quorate_types::{Duration, EngineId, Incarnation, Now, Tag, Timestamp};
use quorate_wire::{Malformed, Writer};

use crate::{Config, Hermes, Message, Meta, Reads};

/// The number in the header of Hermes's messages.
pub const ID: EngineId = EngineId(2);

/// What a user of a keyspace may choose.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// How local reads are made safe.
    pub reads: Reads,
    /// Followers acknowledge to everyone, so that nobody waits for a VAL (optimisation O3).
    pub ack_broadcast: bool,
    /// How often deleted keys are forgotten while they are few; no configuration file sets it.
    pub collect_every: Duration,
}

impl Options {
    /// Default for [`Options::collect_every`]: not so often that anybody notices.
    pub const COLLECT_EVERY: Duration = Duration::from_secs(10);
}

impl Default for Options {
    fn default() -> Self {
        let collect_every = Self::COLLECT_EVERY;
        Self { reads: Reads::Leased, ack_broadcast: false, collect_every }
    }
}

const LEASED: &str = "leased";
const QUORUM: &str = "quorum";

impl quorate_engine::Options for Options {
    const SPECS: &'static [OptionSpec] = &[
        OptionSpec {
            name: "reads",
            kind: OptionKind::Choice(&[LEASED, QUORUM]),
            doc: "`leased`: a node answers reads from its own memory while its lease holds. \
                  `quorum`: it also asks a majority after reading, one message for a batch of \
                  reads; slower, and needs no assumption about clocks.",
        },
        OptionSpec {
            name: "ack_broadcast",
            kind: OptionKind::Flag,
            doc: "Replicas send acknowledgements to everyone instead of only to the writer: reads \
                  behind a write wait half a round trip less, at the price of more messages from \
                  four replicas on.",
        },
    ];

    fn set(&mut self, name: &str, value: OptionValue<'_>) {
        match (name, value) {
            ("reads", OptionValue::Word(LEASED)) => self.reads = Reads::Leased,
            ("reads", OptionValue::Word(_)) => self.reads = Reads::Quorum,
            ("ack_broadcast", OptionValue::Flag(flag)) => self.ack_broadcast = flag,
            _ => unreachable!("{name} = {value} was checked against the options"),
        }
    }

    fn get(&self, name: &str) -> OptionValue<'static> {
        match (name, self.reads) {
            ("reads", Reads::Leased) => OptionValue::Word(LEASED),
            ("reads", Reads::Quorum) => OptionValue::Word(QUORUM),
            ("ack_broadcast", _) => OptionValue::Flag(self.ack_broadcast),
            _ => unreachable!("there is no option {name}"),
        }
    }
}

impl Readable for Meta {
    fn is_readable(&self) -> bool {
        Self::is_readable(self)
    }

    fn version(&self) -> Timestamp {
        self.timestamp()
    }
}

impl<T: Table<Meta = Meta>, O: Command<Owned = O>> Engine for Hermes<T, O> {
    const ID: EngineId = ID;
    const NAME: &'static str = "hermes";
    const SUMMARY: &'static str = "invalidation-based replication of single keys: fast and \
                                   linearizable";
    const CAPABILITIES: Capabilities = Capabilities {
        calls: Some(CallsHome::Key),
        places: true,
        large_collections: true,
        durable: true,
        ..Capabilities::REPLICATED
    };

    type Command = O;
    type Options = Options;
    type Table = T;
    type Shared = ();

    fn unfit_for_sync(options: &Options) -> Option<&'static str> {
        options.ack_broadcast.then_some(crate::log::O3_AND_LOG)
    }

    fn new(context: Context<T, ()>, options: &Options) -> Self {
        let config = Config {
            replicas: context.replicas,
            message_loss_timeout: context.message_loss_timeout,
            op_timeout: context.op_timeout,
            ack_broadcast: options.ack_broadcast,
            collect_every: options.collect_every,
            reads: options.reads,
            ..Config::new(context.node, context.incarnation, context.seed)
        };
        Self::new(config, context.table)
    }

    #[inline]
    fn submit<C>(
        &mut self,
        now: Now,
        tag: Tag,
        origin: u64,
        command: C,
        effects: &mut impl Effects<Self>,
    ) where
        C: Command<Owned = O, Reply = O::Reply>,
    {
        Self::submit(self, now, tag, origin, command, effects);
    }

    #[inline]
    fn place<C>(&mut self, now: Now, _: u64, command: &C, _: &impl Pins) -> Place
    where
        C: Command<Owned = O, Reply = O::Reply>,
    {
        Self::place(self, now, command)
    }

    #[inline]
    fn encode(message: &Message<'_>, writer: &mut Writer<'_>) {
        message.encode(writer);
    }

    #[inline]
    fn decode(bytes: &[u8]) -> Result<Message<'_>, Malformed> {
        Message::decode(bytes)
    }

    #[inline]
    fn delivery(message: &Message<'_>) -> Delivery {
        match message {
            Message::Val(_) => Delivery::Lazy,
            _ => Delivery::Now,
        }
    }

    fn is_leased(&self) -> bool {
        self.config.reads == Reads::Leased
    }

    fn reads_locally(&self) -> bool {
        self.config.reads == Reads::Leased
    }

    fn warm_entries<'a>(&self, entries: impl Iterator<Item = &'a [u8]>) {
        self.table.warm(entries.filter_map(crate::log::key_of));
    }

    fn end_turn(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        self.flush(now, effects);
    }

    fn reset(&mut self, now: Now, incarnation: Incarnation, effects: &mut impl Effects<Self>) {
        Self::reset(self, now, incarnation, effects);
    }

    fn is_in_doubt(&self) -> bool {
        Self::is_in_doubt(self)
    }

    fn pending(&self) -> usize {
        Self::pending(self)
    }

    fn is_caught_up(&self) -> bool {
        Self::is_caught_up(self)
    }

    fn copied(&self) -> u64 {
        Self::copied(self)
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        Self::counters(self).to_vec()
    }

    fn gauges(&self) -> Vec<(&'static str, u64)> {
        Self::gauges(self).to_vec()
    }
}
