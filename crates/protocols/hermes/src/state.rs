//! What one Hermes machine holds.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use quorate_machine::{
    Command, Deadlines, DetMap, Journal, Rng, Slab, Slot, Table, Timeouts, Unhashed, mutant,
};
use quorate_rifl::ResultTracker;
use quorate_types::{
    Duration, Epoch, Incarnation, Instant, Lsn, MemberNumber, NodeId, NodeSet, Timestamp, View,
};

use crate::Meta;
use crate::collector::Tombstones;
use crate::deltas::Deltas;
use crate::join::Copying;
use crate::ops::{AttemptId, Pending, Queue, Tentative};
use crate::reads::QuorumReads;
use crate::records::Gathering;
use crate::recovery::Sweep;
use crate::tombstones::Floors;

/// How reads are made safe.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reads {
    /// By the node's lease, which the driver checks after the read.
    Leased,
    /// By a majority's word after the read (§4.3.6): no clock, one message per batch.
    Quorum,
}

/// What a machine is told at its start.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Config {
    /// This node.
    pub node: NodeId,
    /// This life of it.
    pub incarnation: Incarnation,
    /// The replica group; every member if nothing is said.
    pub replicas: Option<NodeSet>,
    /// When a message counts as lost (the thesis's mlt).
    pub message_loss_timeout: Duration,
    /// How long a client's op may take.
    pub op_timeout: Duration,
    /// Followers acknowledge to everyone, so that nobody waits for a VAL (O3).
    pub ack_broadcast: bool,
    /// How reads are made safe.
    pub reads: Reads,
    /// Fewer tombstones than this wait for [`Config::collect_every`].
    pub tombstones_min: usize,
    /// How often the floor rises while there are few tombstones.
    pub collect_every: Duration,
    /// Seeds virtual ids and jitter.
    pub seed: u64,
}

impl Config {
    /// The defaults.
    pub fn new(node: NodeId, incarnation: Incarnation, seed: u64) -> Self {
        Self {
            node,
            incarnation,
            replicas: None,
            message_loss_timeout: Duration::from_millis(20),
            op_timeout: Duration::from_secs(2),
            ack_broadcast: false,
            reads: Reads::Leased,
            tombstones_min: 10_000,
            collect_every: Duration::from_secs(10),
            seed,
        }
    }
}

/// Counts since the start.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) writes: u64,
    pub(crate) rmws: u64,
    pub(crate) queued_reads: u64,
    pub(crate) rmw_aborts: u64,
    pub(crate) superseded_writes: u64,
    pub(crate) replays: u64,
    pub(crate) retransmissions: u64,
    pub(crate) expired: u64,
    pub(crate) tombstones_collected: u64,
    pub(crate) copied: u64,
    pub(crate) kept: u64,
    pub(crate) unknown: u64,
    pub(crate) refused: u64,
}

/// Hermes: one lane of one keyspace of one node. See the crate's documentation.
#[derive(Clone, Hash, Debug)]
pub struct Hermes<T: Table<Meta = Meta>, O: Command> {
    pub(crate) config: Config,
    pub(crate) table: T,
    pub(crate) rng: Rng,
    pub(crate) view: View,
    /// This node's number in the view; stands in its timestamps.
    pub(crate) number: MemberNumber,
    /// Whether this incarnation is live in the view.
    pub(crate) live: bool,
    /// Whether this incarnation was live once and is not any more: it never is again (N8-11).
    pub(crate) retired: bool,
    /// Counts the lives of this process; stands in its records.
    pub(crate) life: u16,
    /// Whether there may be records of earlier lives.
    pub(crate) has_base: bool,
    /// The cluster that the records are of; 0 before the first view.
    pub(crate) cluster: Incarnation,
    /// What was appended to the lane's log.
    pub(crate) journal: Journal,
    /// Updates of this node whose entries may not be durable, in the order of the log.
    pub(crate) undurable: VecDeque<(Lsn, Slot)>,
    /// Whether a log was restored, and no view has decided what becomes of it.
    pub(crate) restored: bool,
    /// How far the log must be durable for what was copied as a shadow.
    pub(crate) copied_at: Lsn,
    /// Whether it is a replica of this keyspace.
    pub(crate) is_replica: bool,
    /// Live replicas besides this node: who must acknowledge.
    pub(crate) peers: NodeSet,
    /// Replicas that serve, this node included if it does.
    pub(crate) active: NodeSet,
    pub(crate) ops: Slab<Pending<T::Handle, O>>,
    pub(crate) next_number: u64,
    /// When to send pending updates again.
    pub(crate) resends: Timeouts<Slot>,
    pub(crate) queues: BTreeMap<T::Handle, Queue<O>>,
    pub(crate) waiting: usize,
    /// The key whose queue is being served.
    pub(crate) serving: Option<T::Handle>,
    /// When to look at which queue; the queue's number makes the order the same in every run.
    pub(crate) queue_checks: Deadlines<(u64, T::Handle)>,
    pub(crate) next_queue: u64,
    /// O3: who acknowledged the newest version of a key that is not readable here.
    pub(crate) ack_sets: BTreeMap<T::Handle, (Timestamp, NodeSet)>,
    /// Hashes of keys whose read-modify-writes were superseded lately: how often, and until when
    /// it counts.
    pub(crate) hot: BTreeMap<u64, (u32, Instant)>,
    pub(crate) sweep: Sweep,
    pub(crate) copying: Copying,
    pub(crate) floors: Floors,
    /// Records of calls that others are asked for.
    pub(crate) gathering: Option<Gathering>,
    /// The smallest number of a replica that came back with this one: what has a smaller one is of lives
    /// before that.
    pub(crate) lives_since: MemberNumber,
    pub(crate) tombstones: Tombstones<T::Handle>,
    pub(crate) reads: QuorumReads<O::Reply>,
    pub(crate) expiry: crate::expiry::Expiry,
    /// What became of each call.
    pub(crate) tracker: ResultTracker<AttemptId<T::Handle>>,
    /// The calls whose versions are the newest of their keys, and not Valid.
    pub(crate) tentative: DetMap<T::Handle, Tentative>,
    /// What undecided versions of large values changed.
    pub(crate) deltas: Deltas<T::Handle>,
    /// Keys that have not been Valid since a newer version overtook an update with a call that this
    /// replica drove, each with the number of that update.
    pub(crate) overtaken: BTreeMap<T::Handle, u64>,
    pub(crate) counters: Unhashed<Counters>,
    pub(crate) scratch: Unhashed<Vec<u8>>,
    /// The answer of a call while it is written.
    pub(crate) answer_scratch: Unhashed<Vec<u8>>,
}

impl<T: Table<Meta = Meta>, O: Command<Owned = O>> Hermes<T, O> {
    /// A machine that knows no view yet: it refuses everything until one names it.
    pub fn new(config: Config, table: T) -> Self {
        Self {
            rng: Rng::new(config.seed),
            config,
            table,
            view: View::default(),
            number: MemberNumber(0),
            live: false,
            retired: false,
            life: 0,
            has_base: false,
            cluster: Incarnation(0),
            journal: Journal::default(),
            undurable: VecDeque::new(),
            restored: false,
            copied_at: Lsn::START,
            is_replica: false,
            peers: NodeSet::EMPTY,
            active: NodeSet::EMPTY,
            ops: Slab::default(),
            next_number: 0,
            resends: Timeouts::default(),
            queues: BTreeMap::new(),
            waiting: 0,
            serving: None,
            queue_checks: Deadlines::default(),
            next_queue: 0,
            ack_sets: BTreeMap::new(),
            hot: BTreeMap::new(),
            sweep: Sweep::default(),
            copying: Copying::default(),
            floors: Floors::default(),
            gathering: None,
            lives_since: MemberNumber(0),
            tombstones: Tombstones::default(),
            reads: QuorumReads::default(),
            expiry: crate::expiry::Expiry::default(),
            tracker: ResultTracker::default(),
            tentative: DetMap::default(),
            deltas: Deltas::default(),
            overtaken: BTreeMap::new(),
            counters: Unhashed::default(),
            scratch: Unhashed::default(),
            answer_scratch: Unhashed::default(),
        }
    }

    /// The records.
    pub fn table(&self) -> &T {
        &self.table
    }

    /// The records, for tests and tools that set the stage.
    pub fn table_mut(&mut self) -> &mut T {
        &mut self.table
    }

    /// The epoch in force.
    pub fn epoch(&self) -> Epoch {
        self.view.epoch
    }

    /// Client ops started or queued.
    pub fn pending(&self) -> usize {
        self.ops.len() + self.waiting + self.reads.len()
    }

    /// Whether this replica holds everything that the active ones hold.
    pub fn is_caught_up(&self) -> bool {
        self.copying.is_done() && self.journal.is_durable(self.copied_at)
    }

    /// Whether other replicas may have kept keys in their logs that this one has lost. Promises that wait for
    /// the log now may not have waited in an earlier life.
    pub fn is_in_doubt(&self) -> bool {
        let trusts =
            self.journal.appended() > Lsn::START && mutant!("hermes_trusts_a_log_of_another_time");
        self.floors.is_in_doubt() && !trusts && !mutant!("hermes_lists_in_doubt")
    }

    /// Records copied so far as a shadow.
    pub fn copied(&self) -> u64 {
        self.counters.copied
    }

    /// Records of earlier lives that a donor turned out to hold, and that were not copied.
    pub fn kept(&self) -> u64 {
        self.counters.kept
    }

    /// Counts since the start, by name, in a stable order.
    pub fn counters(&self) -> [(&'static str, u64); 13] {
        let counters = &self.counters;
        [
            ("writes", counters.writes),
            ("rmws", counters.rmws),
            ("queued_reads", counters.queued_reads),
            ("rmw_aborts", counters.rmw_aborts),
            ("superseded_writes", counters.superseded_writes),
            ("replays", counters.replays),
            ("retransmissions", counters.retransmissions),
            ("expired", counters.expired),
            ("tombstones_collected", counters.tombstones_collected),
            ("records_copied", counters.copied),
            ("records_kept", counters.kept),
            ("unknown", counters.unknown),
            ("refused", counters.refused),
        ]
    }

    /// What is in flight now, by name, in a stable order.
    pub fn gauges(&self) -> [(&'static str, u64); 5] {
        [
            ("updates_pending", self.ops.len() as u64),
            ("ops_waiting", self.waiting as u64),
            ("keys_waited_for", self.queues.len() as u64),
            ("sessions", self.tracker.len() as u64),
            ("tombstones", self.tombstones.len() as u64),
        ]
    }

    /// The version below which no update of an absent key is under way any more (pitfall H8).
    pub fn floor(&self) -> u64 {
        self.floors.floor
    }
}
