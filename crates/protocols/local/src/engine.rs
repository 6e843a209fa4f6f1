//! As the engine of a keyspace.

use alloc::vec;
use alloc::vec::Vec;

use quorate_engine::{
    CallsHome, Capabilities, Context, Engine, OptionKind, OptionSpec, OptionValue,
};
use quorate_machine::{Command, Effects, LaneShared, OrderedTable};
use quorate_types::{EngineId, Incarnation, Now, Tag};
use quorate_wire::{Malformed, Writer};

use crate::meta::Meta;
use crate::state::{Config, Local};

/// The number in the header of its messages, if it had any.
pub const ID: EngineId = EngineId(7);

/// What a user of a keyspace may choose.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// Whether the keys are kept in order, for `KEYRANGE`.
    pub ordered: bool,
}

impl quorate_engine::Options for Options {
    const SPECS: &'static [OptionSpec] = &[OptionSpec {
        name: "ordered",
        kind: OptionKind::Flag,
        doc: "Keys are also kept in the order of their bytes, for `KEYRANGE`: some 40 bytes more and \
              the key once more for each, and new keys cost more to set.",
    }];

    fn set(&mut self, name: &str, value: OptionValue<'_>) {
        match (name, value) {
            ("ordered", OptionValue::Flag(flag)) => self.ordered = flag,
            _ => unreachable!("{name} = {value} was checked against the options"),
        }
    }

    fn get(&self, name: &str) -> OptionValue<'static> {
        match name {
            "ordered" => OptionValue::Flag(self.ordered),
            _ => unreachable!("there is no option {name}"),
        }
    }
}

impl<T, X> Engine for Local<T, X>
where
    T: OrderedTable<Meta = Meta> + LaneShared,
    X: Command<Owned = X>,
{
    const ID: EngineId = ID;
    const NAME: &'static str = "local";
    const SUMMARY: &'static str =
        "one copy on the only node of a cluster: every command, nothing replicated";
    const CAPABILITIES: Capabilities = Capabilities {
        transactions: true,
        calls: Some(CallsHome::Lease),
        large_collections: true,
        replicated: false,
        durable: true,
        ..Capabilities::REPLICATED
    };

    type Command = X;
    type Options = Options;
    type Table = T;
    type Shared = ();

    fn new(context: Context<T, ()>, _: &Options) -> Self {
        let Context { node, incarnation, lane, lanes, table, .. } = context;
        Self::new(Config { node, incarnation, lane, lanes }, table)
    }

    fn keeps_order(options: &Options) -> bool {
        options.ordered
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

    #[inline]
    fn encode(message: &core::convert::Infallible, _: &mut Writer<'_>) {
        match *message {}
    }

    #[inline]
    fn decode(_: &[u8]) -> Result<core::convert::Infallible, Malformed> {
        Err(Malformed("an engine of one node has no messages"))
    }

    fn reads_locally(&self) -> bool {
        true
    }

    fn warm_entries<'a>(&self, entries: impl Iterator<Item = &'a [u8]>) {
        self.table.warm(entries.filter_map(crate::log::key_of));
    }

    fn end_turn(&mut self, _: Now, _: &mut impl Effects<Self>) {}

    /// The records are the only copy: the new life goes on with them.
    fn reset(&mut self, _: Now, incarnation: Incarnation, _: &mut impl Effects<Self>) {
        self.life = incarnation;
        self.serves = false;
    }

    fn pending(&self) -> usize {
        self.ops.len()
    }

    fn is_caught_up(&self) -> bool {
        true
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let counters = &self.counters;
        vec![
            ("commits", counters.commits),
            ("reads", counters.reads),
            ("abandoned", counters.abandoned),
            ("expired", counters.expired),
            ("tombstones_removed", counters.tombstones_removed),
        ]
    }

    fn gauges(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("ops", self.ops.len() as u64),
            ("waiting", (self.queue.len() + self.origins.waiting().count()) as u64),
            ("unconfirmed", self.log.unconfirmed.len() as u64),
            ("sessions", self.tracker.len() as u64),
        ]
    }
}
