//! The state of a lane.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use alloc::vec::Vec;

use quorate_machine::{Command, LaneShared, OrderedTable, Origins, Slab, Slot};
use quorate_rifl::{Permit, ResultTracker};
use quorate_types::{Incarnation, LaneId, NodeId, Tag, Timestamp, View, WriterId};

use crate::log::{Entry, Log};
use crate::meta::Meta;
use crate::sweep::Sweep;
use crate::workspace::{Ran, Touched};

/// What a lane is told at its start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// This node.
    pub node: NodeId,
    /// This life of it.
    pub incarnation: Incarnation,
    /// This lane.
    pub lane: LaneId,
    /// Lanes of the node.
    pub lanes: u16,
}

/// A set of lanes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Lanes(u64);

impl Lanes {
    pub(crate) fn only(lane: LaneId) -> Self {
        Self(1 << lane.0)
    }

    pub(crate) fn all(lanes: u16) -> Self {
        Self(u64::MAX >> (u64::BITS - u32::from(lanes)))
    }

    pub(crate) fn insert(&mut self, lane: LaneId) {
        self.0 |= 1 << lane.0;
    }

    pub(crate) fn without(self, lane: LaneId) -> Self {
        Self(self.0 & !(1 << lane.0))
    }

    pub(crate) fn contains(self, lane: LaneId) -> bool {
        self.0 & 1 << lane.0 != 0
    }

    pub(crate) fn is_within(self, others: Self) -> bool {
        self.0 & !others.0 == 0
    }

    /// As they stand in an entry of the log.
    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    pub(crate) fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn is_one(self) -> bool {
        self.0.is_power_of_two()
    }

    pub(crate) fn first(self) -> LaneId {
        LaneId(self.0.trailing_zeros() as u16)
    }

    /// The next one in ascending order.
    pub(crate) fn after(self, lane: LaneId) -> Option<LaneId> {
        let rest = self.0 & (u64::MAX << lane.0) & !(1 << lane.0);
        (rest != 0).then(|| Self(rest).first())
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = LaneId> {
        (0..64).map(LaneId).filter(move |lane| self.0 & 1 << lane.0 != 0)
    }
}

/// A transaction on its way through the lanes of its keys.
#[derive(Clone, Debug)]
pub struct Turn<X> {
    /// The lane that knows its client.
    pub(crate) from: LaneId,
    /// What it is there.
    pub(crate) slot: Slot,
    /// For whom it runs.
    pub(crate) origin: u64,
    pub(crate) lanes: Lanes,
    /// The largest version that any lane so far has given.
    pub(crate) last: u64,
    /// The call that it is.
    pub(crate) call: Option<Permit>,
    pub(crate) txn: X,
}

/// What lanes say to each other.
#[derive(Clone, Debug)]
pub enum Mail<X: Command> {
    /// It is your turn with this transaction.
    Turn(Box<Turn<X>>),
    /// Your client's transaction has run.
    Ran {
        /// What it is on the receiving lane.
        slot: Slot,
        /// How it ended.
        ran: Ran<X::Reply>,
    },
    /// You are no longer held.
    Release {
        /// The version of the transaction for which you were.
        last: u64,
        /// For whom it ran.
        origin: u64,
        /// The transaction, if there are logs: make its changes of your keys.
        entry: Option<Entry>,
    },
    /// The transaction of this version is durable in my log.
    Kept {
        /// The version.
        at: Timestamp,
    },
    /// The power is back: your log may lack these transactions.
    Restored(Vec<Entry>),
}

/// A transaction of this lane's clients that is under way.
#[derive(Clone, Debug)]
pub(crate) struct Op {
    pub(crate) tag: Tag,
    pub(crate) origin: u64,
    /// The session's call that it is.
    pub(crate) call: Option<Permit>,
}

/// One lane.
pub struct Local<T: OrderedTable<Meta = Meta> + LaneShared, X: Command> {
    pub(crate) config: Config,
    pub(crate) life: Incarnation,
    pub(crate) table: T,
    pub(crate) view: View,
    /// Whether this node is the only live member.
    pub(crate) serves: bool,
    pub(crate) writer: WriterId,
    /// The largest version that this lane has given, or that a transaction has given for which it
    /// was held: at least that of each of its keys.
    pub(crate) last: u64,
    /// A transaction over several lanes has gone on to the next one.
    pub(crate) held: bool,
    /// What waits until the lane is not held.
    pub(crate) queue: VecDeque<Turn<X>>,
    pub(crate) ops: Slab<Op>,
    pub(crate) origins: Origins<Turn<X>>,
    pub(crate) tracker: ResultTracker<()>,
    pub(crate) log: Log<X>,
    pub(crate) sweep: Sweep,
    /// What the transaction that runs has touched, in order of keys.
    pub(crate) touched: Touched,
    pub(crate) counters: Counters,
}

/// Counts since the start.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) commits: u64,
    pub(crate) reads: u64,
    pub(crate) abandoned: u64,
    pub(crate) expired: u64,
    pub(crate) tombstones_removed: u64,
}

impl<T: OrderedTable<Meta = Meta> + LaneShared, X: Command> Local<T, X> {
    /// A lane that knows no view yet.
    pub fn new(config: Config, table: T) -> Self {
        Self {
            life: config.incarnation,
            config,
            table,
            view: View::default(),
            serves: false,
            writer: WriterId(0),
            last: 0,
            held: false,
            queue: VecDeque::new(),
            ops: Slab::default(),
            origins: Origins::default(),
            tracker: ResultTracker::default(),
            log: Log::default(),
            sweep: Sweep::default(),
            touched: Touched::default(),
            counters: Counters::default(),
        }
    }

    /// The records.
    pub fn table(&self) -> &T {
        &self.table
    }
}
