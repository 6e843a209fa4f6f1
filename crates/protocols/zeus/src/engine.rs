//! As the engine of a keyspace.

use alloc::vec;
use alloc::vec::Vec;

use quorate_engine::{
    CallsHome, Capabilities, Context, Delivery, Engine, OptionKind, OptionSpec, OptionValue, Pins,
    Place,
};
use quorate_machine::{Command, Effects, LaneShared, Table};
use quorate_types::{Duration, EngineId, Incarnation, Now, Tag, limits};
use quorate_wire::{Malformed, Writer};

use crate::message::Message;
use crate::meta::Meta;
use crate::state::{Config, Zeus};

/// The number in the header of its messages.
pub const ID: EngineId = EngineId(10);

/// What a user of a keyspace may choose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Members of the group of each key; 0 for as many as survive the loss of any minority of the
    /// voters, and 3 at least.
    pub replicas: u64,
    /// Most nodes outside the group of a key that keep a copy of it because they read it often.
    pub extra_readers: u64,
    /// How old a deleted key gets before it is forgotten; no configuration file sets it.
    pub collect_every: Duration,
    /// After how many reads of a key that others answer a node asks for a copy; no configuration file sets
    /// it.
    pub extra_after: u32,
}

impl Options {
    /// Default for [`Options::collect_every`]. An `EXEC` that comes sooner after its `WATCH` never
    /// fails without need.
    pub const COLLECT_EVERY: Duration = Duration::from_secs(10);
    /// Default for [`Options::extra_readers`].
    pub const EXTRA_READERS: usize = 2;
}

impl Default for Options {
    fn default() -> Self {
        Self {
            replicas: 0,
            extra_readers: Self::EXTRA_READERS as u64,
            collect_every: Self::COLLECT_EVERY,
            extra_after: Config::EXTRA_AFTER,
        }
    }
}

impl quorate_engine::Options for Options {
    const SPECS: &'static [OptionSpec] = &[
        OptionSpec {
            name: "replicas",
            kind: OptionKind::Number { min: 0, max: limits::MEMBERS_MAX as u64 },
            doc: "How many nodes keep a copy of each key; 0 for 3, or for more where a minority of the \
              nodes is 3 or more. Fewer cost less, and lose what they keep if all of them fail.",
        },
        OptionSpec {
            name: "extra_readers",
            kind: OptionKind::Number { min: 0, max: limits::MEMBERS_MAX as u64 },
            doc: "How many more nodes may keep a copy of a key because they read it often; each costs two \
              messages for a write of the key. 0 for none.",
        },
    ];

    fn set(&mut self, name: &str, value: OptionValue<'_>) {
        match (name, value) {
            ("replicas", OptionValue::Number(number)) => {
                self.replicas = u64::try_from(number).expect("it was checked against the options");
            }
            ("extra_readers", OptionValue::Number(number)) => {
                self.extra_readers =
                    u64::try_from(number).expect("it was checked against the options");
            }
            _ => unreachable!("{name} = {value} was checked against the options"),
        }
    }

    fn get(&self, name: &str) -> OptionValue<'static> {
        match name {
            "replicas" => OptionValue::Number(self.replicas as i64),
            "extra_readers" => OptionValue::Number(self.extra_readers as i64),
            _ => unreachable!("there is no option {name}"),
        }
    }
}

impl<T: Table<Meta = Meta> + LaneShared, X: Command<Owned = X>> Engine for Zeus<T, X> {
    const ID: EngineId = ID;
    const NAME: &'static str = "zeus";
    const SUMMARY: &'static str = "transactions over any keys, each on the node that owns its data, \
                                   which moves to where it is used";
    const CAPABILITIES: Capabilities = Capabilities {
        transactions: true,
        calls: Some(CallsHome::Keys),
        places: true,
        spreads: true,
        large_collections: true,
        durable: true,
        ..Capabilities::REPLICATED
    };

    type Command = X;
    type Options = Options;
    type Table = T;
    type Shared = ();

    fn new(context: Context<T, ()>, options: &Options) -> Self {
        let Context { node, incarnation, lane, lanes, seed, table, .. } = context;
        let (message_loss_timeout, op_timeout) = (context.message_loss_timeout, context.op_timeout);
        let replicas = usize::try_from(options.replicas).expect("a number of members");
        let config = Config::new(node, incarnation, lane, seed);
        let extra_readers = usize::try_from(options.extra_readers).expect("a number of members");
        let Options { collect_every, extra_after, .. } = *options;
        let config = Config {
            lanes,
            replicas,
            message_loss_timeout,
            op_timeout,
            collect_every,
            extra_readers,
            extra_after,
            ..config
        };
        Self::new(config, table)
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
        C: Command<Owned = X, Reply = X::Reply>,
    {
        Self::submit(self, now, tag, origin, command, effects);
    }

    fn place<C>(&mut self, now: Now, origin: u64, command: &C, pins: &impl Pins) -> Place
    where
        C: Command<Owned = X, Reply = X::Reply>,
    {
        Self::place(self, now, origin, command, pins)
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
            Message::Committed { .. } => Delivery::Lazy,
            _ => Delivery::Now,
        }
    }

    fn is_leased(&self) -> bool {
        true
    }

    /// A copy that is Valid is as new as any answer: all live members of the group have applied what
    /// was acknowledged.
    fn reads_locally(&self) -> bool {
        true
    }

    fn holds(&self, key: &[u8]) -> bool {
        self.layout.is_active() && !self.lanes.is_stopped() && self.layout.reads(key)
    }

    fn holds_all(&self) -> bool {
        self.layout.reads_all()
    }

    fn lists(&self, key: &[u8]) -> bool {
        self.layout.default_owner(key) == Some(self.layout.node)
    }

    fn is_in_doubt(&self) -> bool {
        self.is_in_doubt()
    }

    fn other_copies(&self) -> usize {
        self.layout.fewest_others()
    }

    fn group_size(options: &Options) -> Option<usize> {
        Some(usize::try_from(options.replicas).expect("a number of members"))
    }

    fn warm<'a>(&self, messages: impl Iterator<Item = &'a [u8]>) {
        self.table.warm(messages.flat_map(Message::keys_ahead));
    }

    fn warm_entries<'a>(&self, entries: impl Iterator<Item = &'a [u8]>) {
        self.table.warm(entries.filter_map(crate::log::key_of));
    }

    fn end_turn(&mut self, _: Now, effects: &mut impl Effects<Self>) {
        Self::flush(self, effects);
    }

    fn short_of_memory(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        Self::short_of_memory(self, now, effects);
    }

    fn reset(&mut self, _: Now, incarnation: Incarnation, effects: &mut impl Effects<Self>) {
        Self::reset(self, incarnation, effects);
    }

    fn pending(&self) -> usize {
        Self::pending(self)
    }

    fn is_caught_up(&self) -> bool {
        Self::is_caught_up(self)
    }

    fn copied(&self) -> u64 {
        self.counters.copied
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let counters = &self.counters;
        vec![
            ("commits", counters.commits),
            ("reads", counters.reads),
            ("acquired", counters.acquired),
            ("given", counters.given),
            ("replayed", counters.replayed),
            ("waited", counters.waited),
            ("moves", counters.moves),
            ("bounced", counters.bounced),
            ("kept", counters.kept),
            ("remote_reads", counters.remote_reads),
            ("remote_repeats", counters.remote_repeats),
            ("remote_moves", counters.remote_moves),
            ("copies_begun", counters.copies_begun),
            ("copies_ended", counters.copies_ended),
            ("copies_dropped", counters.copies_dropped),
            ("readers_added", counters.readers_added),
            ("readers_ended", counters.readers_ended),
        ]
    }

    fn gauges(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("waiting", self.transactions.len() as u64),
            ("pipeline", self.pipeline.len() as u64),
            ("looks", self.remote.len() as u64),
            ("requests", self.acquisitions.len() as u64),
            ("rounds", self.rounds.len() as u64),
            ("sessions", self.calls.sessions()),
            ("bouncing", self.bounces.len() as u64),
            ("extra_copies", self.copies.len() as u64),
            ("extra_copy_bytes", self.copies.bytes() as u64),
            ("extra_readers", self.readers.len() as u64),
        ]
    }
}
