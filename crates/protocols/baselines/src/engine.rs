//! A baseline as the engine of a keyspace.

use quorate_engine::{Capabilities, Context, Delivery, Engine};
use quorate_machine::{Command, Effects, Table};
use quorate_meerkat::{Message, Meta, Request};
use quorate_rifl::{Kept, LeaseEnd, LeaseId, Permit, Sessions};
use quorate_types::{EngineId, Incarnation, Now, Tag};
use quorate_wire::{Malformed, Writer};

use crate::{Baseline, COUNTERS, Common, Config, System};

impl<S, T, X> Engine for Baseline<S, T, X>
where
    S: System,
    T: Table<Meta = Meta>,
    X: Command<Owned = X>,
{
    const ID: EngineId = S::ID;
    const NAME: &'static str = S::NAME;
    const SUMMARY: &'static str = S::SUMMARY;
    const CAPABILITIES: Capabilities =
        Capabilities { transactions: true, recovers: false, ..Capabilities::REPLICATED };

    type Command = X;
    type Options = ();
    type Table = T;
    type Shared = Common;

    fn new(context: Context<T, Common>, (): &()) -> Self {
        assert!(context.replicas.is_none(), "{} is on all nodes", S::NAME);
        let Context { node, lane, op_timeout, seed, table, shared, .. } = context;
        Self::new(Config { node, lane, op_timeout, seed }, table, shared)
    }

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

    fn encode(message: &Message<'_>, writer: &mut Writer<'_>) {
        message.encode(writer);
    }

    fn decode(bytes: &[u8]) -> Result<Message<'_>, Malformed> {
        Message::decode(bytes)
    }

    fn delivery(message: &Message<'_>) -> Delivery {
        if message.is_lazy() { Delivery::Lazy } else { Delivery::Now }
    }

    fn end_turn(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        self.run_ready(now, effects);
    }

    /// # Panics
    /// Always: what this node held is lost for ever.
    fn reset(&mut self, _: Now, _: Incarnation, _: &mut impl Effects<Self>) {
        panic!(
            "this node was expelled from the cluster, and {} is a measuring instrument without \
             recovery: start the cluster again, with empty memory",
            S::NAME
        );
    }

    fn pending(&self) -> usize {
        self.ops.len()
    }

    /// Whether transactions are taken.
    fn is_caught_up(&self) -> bool {
        self.group.is_some()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        COUNTERS.into_iter().zip(self.counters).collect()
    }

    fn gauges(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("attempts", self.attempts.len() as u64),
            ("replicating", self.replicating.len() as u64),
            ("shared_entries", self.common.len() as u64),
        ]
    }
}

/// It has none.
impl<S, T, X> Sessions for Baseline<S, T, X>
where
    S: System,
    T: Table<Meta = Meta>,
    X: Command<Owned = X>,
{
    fn call(&mut self, _: Now, _: Tag, _: Permit, _: Request<X>, _: &mut impl Effects<Self>) {
        unreachable!("an engine without sessions is given no call");
    }

    fn date(&self, _: Now) -> u64 {
        0
    }

    fn leases_after(&self, _: Option<LeaseId>, _: usize) -> Vec<LeaseId> {
        Vec::new()
    }

    fn each_record(&self, _: &mut impl FnMut(usize, LeaseId, u64, Kept<'_>)) {}

    fn end_session(&mut self, _: &LeaseEnd) {}
}
