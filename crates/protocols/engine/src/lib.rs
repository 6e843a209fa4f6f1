//! The contract between an engine and a node.
//!
//! An *engine* keeps a keyspace: on each lane of each node runs one machine of it. To the contract
//! of machines ([`quorate_machine`]) and of sessions ([`quorate_rifl`]), [`Engine`] adds what a
//! node asks of an engine besides events: its name, what it can do, its options as data, the bytes
//! of its messages and when they may leave. A node knows engines by this trait alone; the list of
//! those it has stands in one file of `quorate-node`.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod capabilities;
mod options;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Debug;

use quorate_machine::{Command, Effects, Meta, Outcome, Request, Table};
use quorate_rifl::Sessions;
use quorate_types::{
    Duration, EngineId, Incarnation, LaneId, NodeId, NodeSet, Now, Tag, Timestamp, WriterId,
};
use quorate_wire::{Malformed, Writer};

pub use capabilities::{CallsHome, Capabilities};
pub use options::{OptionKind, OptionSpec, OptionValue, Options, Unfit};

/// What a lock-free reader asks of an engine's words in a record.
pub trait Readable: Meta {
    /// Whether the value may be returned.
    fn is_readable(&self) -> bool;
    /// The version of the value.
    fn version(&self) -> Timestamp;
    /// Whether no update of the key is registered here that has yet to be written, and may have been
    /// acknowledged.
    fn is_settled(state: &Self::LockedState) -> bool {
        let _ = state;
        true
    }
}

/// When a message that waits for no gate leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delivery {
    /// With the next flush.
    Now,
    /// With the next flush that something else causes: nobody's answer depends on it.
    Lazy,
}

/// Where a command should run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// On this node.
    Here,
    /// On that node, which runs it whatever its own engine says of the place.
    At(NodeId),
    /// Nowhere at present: no node is known that could run it.
    Unknown,
}

/// The units that were pinned to nodes: where transactions on them are to run. A unit is a hash tag,
/// or else a whole key ([`quorate_types::unit_of`]).
pub trait Pins {
    /// Whether nothing is pinned.
    fn is_empty(&self) -> bool;
    /// The node that a unit is pinned to, which need not be a member.
    fn node_of(&self, unit: &[u8]) -> Option<NodeId>;
}

/// No pins.
#[derive(Clone, Copy, Debug)]
pub struct NoPins;

impl Pins for NoPins {
    fn is_empty(&self) -> bool {
        true
    }

    fn node_of(&self, _: &[u8]) -> Option<NodeId> {
        None
    }
}

/// What one lane of an engine is told at its start.
#[derive(Clone, Debug)]
pub struct Context<T, S> {
    /// This node.
    pub node: NodeId,
    /// This life of it.
    pub incarnation: Incarnation,
    /// This lane.
    pub lane: LaneId,
    /// Lanes of the node.
    pub lanes: u16,
    /// The replica group of the keyspace; every member if nothing is said.
    pub replicas: Option<NodeSet>,
    /// The replica group of each partition; every replica of the keyspace if nothing is said.
    /// Never empty; one partition for an engine that has none.
    pub partitions: Vec<Option<NodeSet>>,
    /// When a message counts as lost and is sent again.
    pub message_loss_timeout: Duration,
    /// How long an op may take before its client is told `UNKNOWN` or `TRYAGAIN`.
    pub op_timeout: Duration,
    /// Seeds jitter and virtual ids.
    pub seed: u64,
    /// The records.
    pub table: T,
    /// What the lanes of this node share besides records.
    pub shared: Arc<S>,
}

/// The answer to an engine's commands.
pub type Reply<E> = <<E as Engine>::Command as Command>::Reply;

/// One lane of an engine, as its node sees it.
pub trait Engine:
    for<'a> Sessions<Request<'a> = Request<Self::Command>, Outcome = Outcome<Reply<Self>>>
{
    /// The number that stands in the header of its messages.
    const ID: EngineId;
    /// The name that users give.
    const NAME: &'static str;
    /// What it is, in half a sentence without a full stop, for `--help` and the documentation.
    const SUMMARY: &'static str;
    /// What it can do.
    const CAPABILITIES: Capabilities;

    /// What clients ask for, in the form that can wait.
    type Command: Command<Owned = Self::Command>;
    /// What a user may choose.
    type Options: Options;
    /// How it sees its records.
    type Table: Table<Meta: Readable>;
    /// What its lanes share besides records; `()` if nothing.
    type Shared: Default + Debug + Send + Sync;

    /// A lane that knows no view yet.
    fn new(context: Context<Self::Table, Self::Shared>, options: &Self::Options) -> Self
    where
        Self: Sized;

    /// Takes a command; answered by [`Effects::complete`] with the same tag, once. As
    /// [`quorate_machine::Event::Request`], without copying its arguments. Commands of one origin
    /// that have a key in common take effect in order. One of several keys only with
    /// [`Capabilities::transactions`].
    fn submit<C>(
        &mut self,
        now: Now,
        tag: Tag,
        origin: u64,
        command: C,
        effects: &mut impl Effects<Self>,
    ) where
        C: Command<Owned = Self::Command, Reply = Reply<Self>>;

    /// Where a command of this node's clients should run, with [`Capabilities::places`]. The node
    /// forwards it there, at most once, and keeps the later commands of its origin on its key back
    /// until it is answered; all later ones of its origin with [`Capabilities::transactions`]. So an
    /// engine sends a command away only if it has nothing under way that its origin has asked for
    /// with a key of the command. `pins` are hints of operators, for engines whose keys move.
    fn place<C>(&mut self, now: Now, origin: u64, command: &C, pins: &impl Pins) -> Place
    where
        C: Command<Owned = Self::Command, Reply = Reply<Self>>,
    {
        let _ = (now, origin, command, pins);
        Place::Here
    }

    /// Members of the group of each key, with [`Capabilities::spreads`]; 0 for as many as survive the loss
    /// of any minority of the members ([`quorate_types::placement`]).
    fn group_size(options: &Self::Options) -> Option<usize> {
        let _ = options;
        None
    }

    /// Why these options don't go together with promises that wait for the log, if they don't.
    fn unfit_for_sync(options: &Self::Options) -> Option<&'static str> {
        let _ = options;
        None
    }

    /// Whether its records are to be kept in the order of their keys, besides.
    fn keeps_order(options: &Self::Options) -> bool {
        let _ = options;
        false
    }

    // --- messages ------------------------------------------------------------------------------

    /// Appends a message.
    fn encode(message: &Self::Message<'_>, writer: &mut Writer<'_>);

    /// Reads what [`Engine::encode`] wrote.
    ///
    /// # Errors
    /// When the bytes are no message of this version.
    fn decode(bytes: &[u8]) -> Result<Self::Message<'_>, Malformed>;

    /// When a message leaves, unless it waits for a gate.
    fn delivery(message: &Self::Message<'_>) -> Delivery {
        let _ = message;
        Delivery::Now
    }

    // --- reads ---------------------------------------------------------------------------------

    /// Whether its answers rest on the node's lease.
    fn is_leased(&self) -> bool {
        false
    }

    /// Whether every active replica has what was acknowledged. Otherwise a majority of the group has
    /// it, as a record or as one that is about to be written.
    fn acknowledges_from_all(&self) -> bool {
        true
    }

    /// Whether a read of one key may be answered from this node's record of it, without asking the
    /// machine, and its absence, too.
    fn reads_locally(&self) -> bool {
        false
    }

    // --- copies: with Capabilities::spreads ------------------------------------------------------

    /// Whether this node has a copy of the key, or would have if the key were there, and hears of
    /// each of its changes.
    fn holds(&self, key: &[u8]) -> bool {
        let _ = key;
        true
    }

    /// Whether that is so for every key.
    fn holds_all(&self) -> bool {
        true
    }

    /// Whether this node tells of the key when all active members say which keys there are. In each
    /// view one of them does, which has all of the key that was acknowledged.
    fn lists(&self, key: &[u8]) -> bool {
        let _ = key;
        true
    }

    /// Whether this node may lack keys that it is to tell of, since it has come back from its log and others have
    /// kept more. It tells of none until it has heard them.
    fn is_in_doubt(&self) -> bool {
        false
    }

    /// Whether the logs of this node's other lanes may bring back what the copy of this lane has replaced: until
    /// each of them begins behind it.
    fn outdates_logs(&self) -> bool {
        false
    }

    /// The log of every lane begins behind what this lane has copied.
    fn logs_renewed(&mut self) {}

    /// The commits that were answered here and of which some replica may not have heard: the version, and
    /// those replicas. For checks in a simulation.
    fn untold(&self) -> Vec<(u64, NodeSet)> {
        Vec::new()
    }

    /// How many live members besides this node have a copy of a key that this node changes: of the
    /// key with the fewest.
    fn other_copies(&self) -> usize {
        0
    }

    // --- turns and lives -----------------------------------------------------------------------

    /// Has what these messages are about fetched from memory: they are about to be handled, one after
    /// the other.
    fn warm<'a>(&self, messages: impl Iterator<Item = &'a [u8]>) {
        let _ = messages;
    }

    /// The same of entries that are about to be restored.
    fn warm_entries<'a>(&self, entries: impl Iterator<Item = &'a [u8]>) {
        let _ = entries;
    }

    /// Takes in what its log has brought back and what waits for an entry of another lane, as far as that is
    /// there now. Whether anything was. The first view after a restart does so in any case; this is for those
    /// who compare what logs hold with what is in memory.
    fn restore_parked(&mut self) -> bool {
        false
    }

    /// Closes the batches of a turn.
    fn end_turn(&mut self, now: Now, effects: &mut impl Effects<Self>);

    /// The node is short of memory: what this lane keeps that nothing rests on may give way, some of it at
    /// each call. It may be called in every turn, and updates are refused soon if memory gets no less.
    fn short_of_memory(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        let _ = (now, effects);
    }

    /// Begins a new life: answers what is under way, and forgets it.
    fn reset(&mut self, now: Now, incarnation: Incarnation, effects: &mut impl Effects<Self>);

    // --- guests: with Capabilities::guests -----------------------------------------------------

    /// What a guest must know of these options to coordinate transactions, in the engine's own
    /// bytes.
    fn guest_terms(options: &Self::Options) -> Vec<u8> {
        let _ = options;
        Vec::new()
    }

    /// A client coordinates transactions of its own from now on under this id, reached at `node`.
    fn guest_joined(&mut self, writer: WriterId, node: NodeId) {
        unreachable!("{writer:?} at {node} joined an engine without guests");
    }

    /// It is gone.
    fn guest_left(&mut self, node: NodeId) {
        unreachable!("a guest at {node} left an engine without guests");
    }

    // --- status --------------------------------------------------------------------------------

    /// Ops started or queued.
    fn pending(&self) -> usize;

    /// Whether it holds everything that the active replicas hold.
    fn is_caught_up(&self) -> bool;

    /// Records copied so far as a shadow.
    fn copied(&self) -> u64 {
        0
    }

    /// Counts since the start, by name, in a stable order.
    fn counters(&self) -> Vec<(&'static str, u64)>;

    /// What there is now, by name, in a stable order.
    fn gauges(&self) -> Vec<(&'static str, u64)>;
}
