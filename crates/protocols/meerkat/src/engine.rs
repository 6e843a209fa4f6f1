//! Meerkat as the engine of a keyspace.

use alloc::vec::Vec;

use quorate_engine::{
    CallsHome, Capabilities, Context, Delivery, Engine, OptionKind, OptionSpec, OptionValue,
    Readable,
};
use quorate_machine::{Command, Effects, LaneShared, Table};
use quorate_types::{
    Duration, EngineId, Incarnation, NodeId, NodeSet, Now, Tag, Timestamp, WriterId,
};
use quorate_wire::{Malformed, Reader, Writer};

use crate::{Config, Isolation, Meerkat, Message, Meta, Pending};

/// The number in the header of Meerkat's messages.
pub const ID: EngineId = EngineId(3);

/// Longest difference of two wall clocks, in milliseconds: a commit may have to wait for it.
const CLOCK_SKEW_MS_MAX: u64 = 10_000;

/// What a user of a keyspace may choose.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// What transactions may rely on.
    pub isolation: Isolation,
    /// The most that two nodes' wall clocks differ.
    pub max_clock_skew: Duration,
}

impl Options {
    /// Default for [`Options::max_clock_skew`]: what badly kept clocks do.
    pub const MAX_CLOCK_SKEW: Duration = Duration::from_millis(50);

    /// What a guest is told of them.
    ///
    /// ```text
    /// strict u8 | max_clock_skew u64, in nanoseconds
    /// ```
    pub fn to_terms(&self) -> Vec<u8> {
        let mut terms = Vec::new();
        let mut writer = Writer(&mut terms);
        writer.u8(u8::from(self.isolation == Isolation::Strict));
        writer.u64(u64::try_from(self.max_clock_skew.as_nanos()).unwrap_or(u64::MAX));
        terms
    }

    /// Reads what [`Options::to_terms`] wrote.
    ///
    /// # Errors
    /// When the bytes say something else.
    pub fn from_terms(terms: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(terms);
        let isolation = match reader.u8()? {
            0 => Isolation::Serializable,
            1 => Isolation::Strict,
            _ => return Err(Malformed("neither 0 nor 1")),
        };
        let max_clock_skew = Duration::from_nanos(reader.u64()?);
        reader.end()?;
        Ok(Self { isolation, max_clock_skew })
    }
}

impl Default for Options {
    fn default() -> Self {
        Self { isolation: Isolation::Strict, max_clock_skew: Self::MAX_CLOCK_SKEW }
    }
}

const STRICT: &str = "strict";
const SERIALIZABLE: &str = "serializable";

impl quorate_engine::Options for Options {
    const SPECS: &'static [OptionSpec] = &[
        OptionSpec {
            name: "isolation",
            kind: OptionKind::Choice(&[STRICT, SERIALIZABLE]),
            doc: "Committed transactions are as if they had run one after the other. `strict`: in \
                  an order in which one that begins after another was answered also comes after \
                  it, whichever nodes they went through. `serializable`: in some order; a read may \
                  then be answered from a state that is no longer the newest.",
        },
        OptionSpec {
            name: "max_clock_skew_ms",
            kind: OptionKind::Number { min: 0, max: CLOCK_SKEW_MS_MAX },
            doc: "The most by which the wall clocks of two nodes differ, in milliseconds. `strict` \
                  rests on it for transactions that not every live node has heard of when they are \
                  decided, because one doesn't answer, or because no partition that they write has \
                  a replica there: those wait so long before their client is told. Not used with \
                  `serializable`.",
        },
    ];

    fn set(&mut self, name: &str, value: OptionValue<'_>) {
        match (name, value) {
            ("isolation", OptionValue::Word(STRICT)) => self.isolation = Isolation::Strict,
            ("isolation", OptionValue::Word(_)) => self.isolation = Isolation::Serializable,
            ("max_clock_skew_ms", OptionValue::Number(millis)) => {
                self.max_clock_skew = Duration::from_millis(millis.unsigned_abs());
            }
            _ => unreachable!("{name} = {value} was checked against the options"),
        }
    }

    fn get(&self, name: &str) -> OptionValue<'static> {
        match (name, self.isolation) {
            ("isolation", Isolation::Strict) => OptionValue::Word(STRICT),
            ("isolation", Isolation::Serializable) => OptionValue::Word(SERIALIZABLE),
            ("max_clock_skew_ms", _) => OptionValue::Number(self.max_clock_skew.as_millis() as i64),
            _ => unreachable!("there is no option {name}"),
        }
    }
}

/// A record holds committed versions only.
impl Readable for Meta {
    fn is_readable(&self) -> bool {
        true
    }

    fn version(&self) -> Timestamp {
        self.timestamp()
    }

    fn is_settled(state: &Pending) -> bool {
        !state.iter().any(|registered| registered.writes)
    }
}

impl<T, X> Engine for Meerkat<T, X>
where
    T: Table<Meta = Meta> + LaneShared,
    X: Command<Owned = X>,
{
    const ID: EngineId = ID;
    const NAME: &'static str = "meerkat";
    const SUMMARY: &'static str = "leaderless transactions over any keys: serializable, strictly \
                                   or not";
    const CAPABILITIES: Capabilities = Capabilities {
        transactions: true,
        guests: true,
        calls: Some(CallsHome::Lease),
        partitions: true,
        large_collections: true,
        quorums: true,
        durable: true,
        ..Capabilities::REPLICATED
    };

    type Command = X;
    type Options = Options;
    type Table = T;
    type Shared = ();

    fn new(context: Context<T, ()>, options: &Options) -> Self {
        let base = Config::new(
            context.node,
            context.incarnation,
            context.lane,
            context.lanes,
            context.seed,
        );
        let replicas = context.replicas;
        let config = Config {
            partitions: context.partitions.iter().map(|group| group.or(replicas)).collect(),
            isolation: options.isolation,
            max_clock_skew: options.max_clock_skew,
            message_loss_timeout: context.message_loss_timeout,
            op_timeout: context.op_timeout,
            ..base
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
        C: Command<Owned = X, Reply = X::Reply>,
    {
        Self::submit(self, now, tag, origin, command, effects);
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
        if message.is_lazy() { Delivery::Lazy } else { Delivery::Now }
    }

    fn acknowledges_from_all(&self) -> bool {
        false
    }

    fn reads_locally(&self) -> bool {
        self.config.isolation == Isolation::Serializable
    }

    fn warm_entries<'a>(&self, entries: impl Iterator<Item = &'a [u8]>) {
        self.table.warm(entries.filter_map(crate::restore::key_of));
    }

    fn restore_parked(&mut self) -> bool {
        self.retry_parked()
    }

    fn end_turn(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        self.flush(now, effects);
    }

    fn reset(&mut self, now: Now, incarnation: Incarnation, effects: &mut impl Effects<Self>) {
        Self::reset(self, now, incarnation, effects);
    }

    fn guest_terms(options: &Options) -> Vec<u8> {
        options.to_terms()
    }

    fn guest_joined(&mut self, writer: WriterId, node: NodeId) {
        Self::guest_joined(self, writer, node);
    }

    fn guest_left(&mut self, node: NodeId) {
        Self::guest_left(self, node);
    }

    fn pending(&self) -> usize {
        Self::pending(self)
    }

    fn outdates_logs(&self) -> bool {
        Self::outdates_logs(self)
    }

    fn logs_renewed(&mut self) {
        Self::logs_renewed(self);
    }

    fn untold(&self) -> Vec<(u64, NodeSet)> {
        Self::untold(self)
    }

    fn is_caught_up(&self) -> bool {
        Self::is_caught_up(self)
    }

    fn copied(&self) -> u64 {
        Self::copied(self)
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        Self::counters(self)
    }

    fn gauges(&self) -> Vec<(&'static str, u64)> {
        Self::gauges(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_are_read_back_and_damage_is_an_error() {
        let options = Options {
            isolation: Isolation::Serializable,
            max_clock_skew: Duration::from_nanos(258),
        };
        let terms = options.to_terms();
        assert_eq!(terms, [0, 2, 1, 0, 0, 0, 0, 0, 0], "the layout changed without a new VERSION");
        assert_eq!(Options::from_terms(&terms), Ok(options));
        assert!(Options::from_terms(&terms[1..]).is_err());
        assert!(Options::from_terms(&[2, 0, 0, 0, 0, 0, 0, 0, 0]).is_err());
        assert!(Options::from_terms(&[&terms[..], &[0]].concat()).is_err());
    }
}
