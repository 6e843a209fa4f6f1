//! What a lane of Meerkat holds.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec;
use alloc::vec::Vec;

use quorate_machine::{
    Command, Deadlines, DetMap, HybridClock, Journal, LaneShared, Rng, Scan, Slab, Slot, Table,
    Timeouts, Unhashed, mutant,
};
use quorate_rifl::LeaseEnd;
use quorate_types::{
    Duration, Epoch, Incarnation, Instant, LaneId, Lsn, MemberNumber, NodeId, NodeSet, Now,
    Quorums, Role, Timestamp, View, WriterId, limits, partition_of,
};

use crate::attempt::{Attempt, Op};
use crate::attempts::Attempts;
use crate::calls::ResultTracker;
use crate::epoch::Change;
use crate::join::Copying;
use crate::log::{Reserved, ResumedEntry};
use crate::meta::Meta;
use crate::occ::Reason;
use crate::records::Records;
use crate::recovery::Recovery;
use crate::restore::Restored;
use crate::txn_record::{RecordKey, TxnRecord};
use crate::work::Work;

/// What transactions may rely on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Isolation {
    /// The outcome is that of some serial order (the paper's guarantee). Reads of one key are
    /// answered from the local replica and may be old.
    Serializable,
    /// That order is also the order of real time: whatever begins after another transaction's
    /// answer comes after it.
    Strict,
}

/// What a lane is told at its start.
#[derive(Clone, Hash, Debug)]
pub struct Config {
    /// This node.
    pub node: NodeId,
    /// This life of it.
    pub incarnation: Incarnation,
    /// This lane.
    pub lane: LaneId,
    /// Lanes of the node.
    pub lanes: u16,
    /// The replica group of each partition; every voter if nothing is said. Never empty.
    pub partitions: Vec<Option<NodeSet>>,
    /// What transactions may rely on.
    pub isolation: Isolation,
    /// The most that two nodes' wall clocks differ. Strict isolation rests on it only for
    /// transactions that were decided while a live replica was silent: they wait this long.
    pub max_clock_skew: Duration,
    /// Most transactions that this lane coordinates at once: not answered yet, or decided and not
    /// acknowledged by every replica. Beyond it a new one is refused.
    pub pending_max: usize,
    /// When a message counts as lost and is sent again.
    pub message_loss_timeout: Duration,
    /// How long a transaction may take before its client is told `UNKNOWN` or `TRYAGAIN`.
    pub op_timeout: Duration,
    /// How long a replica waits for the end of a transaction before it takes over from its
    /// coordinator.
    pub recovery_timeout: Duration,
    /// Seeds jitter.
    pub seed: u64,
    /// The writer id of a guest: a client that coordinates its transactions itself, from outside
    /// the cluster, and holds no records. A node's own is made of its member number and lane.
    pub guest: Option<WriterId>,
}

impl Config {
    /// The defaults for one partition on every node.
    pub fn new(
        node: NodeId,
        incarnation: Incarnation,
        lane: LaneId,
        lanes: u16,
        seed: u64,
    ) -> Self {
        Self {
            node,
            incarnation,
            lane,
            lanes,
            partitions: vec![None],
            isolation: Isolation::Strict,
            max_clock_skew: Duration::from_millis(50),
            pending_max: limits::OPS_PENDING_MAX,
            message_loss_timeout: Duration::from_millis(20),
            op_timeout: Duration::from_secs(2),
            recovery_timeout: Duration::from_millis(100),
            seed,
            guest: None,
        }
    }
}

/// The replica group of a partition in the epoch in force.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Group {
    /// Replicas that vote.
    pub(crate) live: NodeSet,
    /// Replicas that are catching up: they get every decision and vote on nothing.
    pub(crate) learners: NodeSet,
    pub(crate) quorums: Quorums,
}

/// Whether transactions are taken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Phase {
    /// Not a live member.
    Out,
    /// A view was installed and its epoch is not released yet.
    Frozen,
    /// The epoch of the view is released.
    Normal,
}

/// What was counted, by name.
pub(crate) const COUNTERS: [&str; 22] = [
    "commits_fast",
    "commits_slow",
    "reads_confirmed",
    "retries",
    "aborts_stale_read",
    "aborts_pending_writer",
    "aborts_read_later",
    "aborts_pending_reader",
    "aborts_timestamp_too_low",
    "aborts_below_floor",
    "aborts_call_in_progress",
    "aborts_call_known",
    "aborts_call_forgotten",
    "aborts_session_closed",
    "aborts_session_full",
    "aborts_lost",
    "recoveries",
    "commit_waits",
    "records_dropped",
    "calls_answered_again",
    "clocks_apart",
    "records_kept",
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Counter {
    CommitsFast = 0,
    CommitsSlow = 1,
    ReadsConfirmed = 2,
    Retries = 3,
    /// The first of one for each [`crate::Reason`].
    Aborts = 4,
    AbortsLost = Self::Aborts as isize + Reason::ALL.len() as isize,
    Recoveries,
    CommitWaits,
    RecordsDropped,
    CallsAnsweredAgain,
    /// An idle node's clock was further ahead of this one than `max_clock_skew`.
    ClocksApart,
    /// Of an earlier life, since a donor holds the same.
    RecordsKept,
}

const _: () = assert!(Counter::RecordsKept as usize == COUNTERS.len() - 1);

/// One lane of one keyspace: coordinator of its clients' transactions and replica for those of the
/// same lane elsewhere.
#[derive(Clone, Hash)]
pub struct Meerkat<T: Table<Meta = Meta> + LaneShared, X: Command> {
    pub(crate) config: Config,
    pub(crate) table: T,
    pub(crate) rng: Rng,
    // --- the epoch ---
    pub(crate) view: View,
    pub(crate) phase: Phase,
    pub(crate) active: bool,
    /// The number of this life, once a view has admitted it.
    pub(crate) member: MemberNumber,
    pub(crate) groups: Vec<Group>,
    /// No write at or below it: an earlier epoch may have read there without a record.
    pub(crate) epoch_floor: u64,
    /// The largest timestamp at which this lane confirmed reads in this epoch.
    pub(crate) read_high: u64,
    /// On lane 0.
    pub(crate) change: Option<Box<Change>>,
    pub(crate) copying: Copying,
    /// The cluster of the last view; 0 before the first.
    pub(crate) cluster: Incarnation,
    /// Counts the lives of this process in that cluster.
    pub(crate) life: u32,
    // --- replica ---
    pub(crate) records: Records,
    /// Committed transactions that every replica knows the end of, as long as one that is not
    /// decided yet may have to be weighed against them (N4.3).
    pub(crate) footprints: VecDeque<(RecordKey, TxnRecord)>,
    pub(crate) spare_bodies: Unhashed<Vec<Vec<u8>>>,
    /// Undecided records in order of arrival, each with the view that this replica had joined then.
    pub(crate) suspects: Timeouts<(RecordKey, u64)>,
    /// Commits that this replica took on a guest's word, and when they are named to those that may not
    /// know of them.
    pub(crate) unnamed: Timeouts<RecordKey>,
    pub(crate) recoveries: BTreeMap<Timestamp, Recovery>,
    /// Per coordinator: everything up to here is final on all replicas.
    pub(crate) stable: BTreeMap<WriterId, u64>,
    /// By partition: what became of the calls of this lane's sessions.
    pub(crate) trackers: Vec<ResultTracker>,
    /// Members that are known to have applied the merged record of the last epoch.
    pub(crate) released_by: NodeSet,
    /// Ids that wait for company, by whom they are told, in which partition, and as what.
    pub(crate) acks: BTreeMap<(NodeId, u16, crate::message::Notice), Vec<u8>>,
    pub(crate) acks_due: Instant,
    /// Clients that coordinate their transactions themselves, by the id under which this node
    /// reaches them.
    pub(crate) guests: BTreeMap<WriterId, NodeId>,
    /// Deleted keys whose records can go once the floor has passed them.
    pub(crate) tombstones: VecDeque<(u64, Box<[u8]>)>,
    pub(crate) sweep: Scan,
    pub(crate) floor_published: u64,
    /// What this life has copied came without deletions that the donors had forgotten. They were not
    /// above this, the clock of everybody when an epoch began after the copy.
    pub(crate) absence_floor: u64,
    // --- coordinator ---
    pub(crate) ops: Slab<Op<X, X::Reply>>,
    pub(crate) attempts: Attempts,
    pub(crate) spare_attempts: Unhashed<Vec<Attempt>>,
    pub(crate) next_sequence: u64,
    pub(crate) last_issued: u64,
    pub(crate) announced: u64,
    pub(crate) announce_due: Instant,
    pub(crate) was_busy: bool,
    /// Ops that wait to be tried (again), by origin, in order of submission.
    pub(crate) lines: BTreeMap<u64, Vec<(u64, Slot)>>,
    /// By origin and hash of a key: the op that is under way there.
    pub(crate) under_way: DetMap<(u64, u64), Slot>,
    /// Ops that wait for the end of a transaction that this lane has a record of.
    pub(crate) blocked_on: BTreeMap<Timestamp, Vec<Slot>>,
    /// Commits that have not ended here because what they change is not: by the transaction that
    /// brings it.
    pub(crate) baseless: BTreeMap<Timestamp, Vec<RecordKey>>,
    pub(crate) backoffs: Deadlines<Slot>,
    /// By hash of a key: an op that pauses and will be tried again there.
    pub(crate) pausing: DetMap<u64, Slot>,
    /// By hash of a key: until when other nodes have their turn there.
    pub(crate) turns: BTreeMap<u64, Instant>,
    /// Ops to look at before this event ends.
    pub(crate) ready: VecDeque<Slot>,
    pub(crate) fast_checks: Timeouts<u64>,
    pub(crate) resends: Timeouts<u64>,
    pub(crate) commit_waits: Deadlines<u64>,
    pub(crate) op_deadlines: Timeouts<Slot>,
    pub(crate) work: Unhashed<Work>,
    pub(crate) counters: Unhashed<[u64; COUNTERS.len()]>,
    /// How far the hybrid clock was ahead of the wall clock when another node's was heard last, in
    /// nanoseconds.
    pub(crate) clock_lead: Unhashed<u64>,
    // --- the log ---
    pub(crate) journal: Journal,
    /// Own attempts by the place of their newest entry, as long as it is not durable.
    pub(crate) undurable: VecDeque<(Lsn, u64)>,
    pub(crate) reserved: Unhashed<Reserved>,
    /// The place at which this lane has appended that it goes on in the epoch in force.
    pub(crate) resumed_at: Lsn,
    /// What it has appended there.
    pub(crate) resumed: Unhashed<ResumedEntry>,
    /// Ends of sessions that are not appended yet.
    pub(crate) ended_sessions: Unhashed<Vec<LeaseEnd>>,
    /// Whether records were dropped since the log was told of it.
    pub(crate) dropped: Unhashed<bool>,
    /// What came back from the log, until a view names this process.
    pub(crate) restored: Option<Box<Restored>>,
    /// What came back is this replica's state, and no epoch was released since.
    pub(crate) revives: bool,
    /// Promises of the life that left it did not wait for its log, so other replicas may hold what is
    /// lost here.
    pub(crate) doubts: bool,
    /// The replicas whose state this lane has yet to take in.
    pub(crate) unheard: NodeSet,
    /// Whether this lane takes in what others have, since one of them may have kept more.
    pub(crate) takes_in: bool,
    /// What this lane has handed to lane 0, for snapshots, from a freeze or from a restart until it goes on.
    pub(crate) handed: Unhashed<Option<Box<Restored>>>,
    /// Whether the driver keeps what is appended.
    pub(crate) keeps_log: Unhashed<bool>,
    /// Whether another lane's log may have a newer version of what this lane has copied, one that is lost.
    pub(crate) has_replaced_lost: bool,
    /// The floor when the last snapshot began, and whether that was handed out to its end.
    pub(crate) saved: Unhashed<(u64, bool)>,
}

impl<T, X> Meerkat<T, X>
where
    T: Table<Meta = Meta> + LaneShared,
    X: Command<Owned = X>,
{
    /// A lane that knows no view yet.
    pub fn new(config: Config, table: T) -> Self {
        let partitions = config.partitions.len();
        assert!(
            (1..=usize::from(limits::PARTITIONS_MAX)).contains(&partitions),
            "1 to 64 partitions"
        );
        Self {
            rng: Rng::new(config.seed),
            table,
            view: View::default(),
            phase: Phase::Out,
            active: false,
            member: MemberNumber(0),
            groups: Vec::new(),
            epoch_floor: 0,
            read_high: 0,
            change: (config.lane.0 == 0).then(Box::default),
            copying: Copying::default(),
            cluster: Incarnation(0),
            life: 0,
            records: Records::new(),
            footprints: VecDeque::new(),
            spare_bodies: Unhashed::default(),
            suspects: Timeouts::default(),
            unnamed: Timeouts::default(),
            recoveries: BTreeMap::new(),
            stable: BTreeMap::new(),
            trackers: vec![ResultTracker::default(); partitions],
            released_by: NodeSet::EMPTY,
            acks: BTreeMap::new(),
            acks_due: Instant::NEVER,
            guests: BTreeMap::new(),
            tombstones: VecDeque::new(),
            sweep: Scan::default(),
            floor_published: 0,
            absence_floor: 0,
            ops: Slab::default(),
            attempts: Attempts::default(),
            spare_attempts: Unhashed::default(),
            next_sequence: 0,
            last_issued: 0,
            announced: 0,
            announce_due: Instant::NEVER,
            was_busy: false,
            lines: BTreeMap::new(),
            under_way: DetMap::default(),
            blocked_on: BTreeMap::new(),
            baseless: BTreeMap::new(),
            backoffs: Deadlines::default(),
            pausing: DetMap::default(),
            turns: BTreeMap::new(),
            ready: VecDeque::new(),
            fast_checks: Timeouts::default(),
            resends: Timeouts::default(),
            commit_waits: Deadlines::default(),
            op_deadlines: Timeouts::default(),
            work: Unhashed::default(),
            counters: Unhashed([0; COUNTERS.len()]),
            clock_lead: Unhashed(0),
            journal: Journal::default(),
            undurable: VecDeque::new(),
            reserved: Unhashed::default(),
            resumed_at: Lsn::START,
            resumed: Unhashed::default(),
            ended_sessions: Unhashed::default(),
            dropped: Unhashed::default(),
            restored: None,
            revives: false,
            doubts: false,
            unheard: NodeSet::EMPTY,
            takes_in: false,
            handed: Unhashed::default(),
            keeps_log: Unhashed::default(),
            has_replaced_lost: false,
            saved: Unhashed::default(),
            config,
        }
    }

    /// Whether other lanes of this node may have appended, in logs without an order between them, what this
    /// one reads of their keys.
    pub(crate) fn shares_logs(&self) -> bool {
        *self.keeps_log && self.config.lanes > 1
    }

    /// The partition of a key.
    pub(crate) fn partition_of(&self, key: &[u8]) -> u16 {
        partition_of(key, self.config.partitions.len())
    }

    pub(crate) fn group(&self, partition: u16) -> Option<&Group> {
        self.groups.get(usize::from(partition))
    }

    /// Whether the configuration has a node hold a partition's records.
    pub(crate) fn is_placed_at(&self, node: NodeId, partition: u16) -> bool {
        let replicas = self.config.partitions[usize::from(partition)];
        replicas.is_none_or(|group| group.contains(node))
    }

    /// Whether this node votes on a partition's transactions.
    pub(crate) fn votes_on(&self, partition: u16) -> bool {
        self.group(partition).is_some_and(|group| group.live.contains(self.config.node))
    }

    /// Whether this node holds a partition's records, perhaps not all of them yet.
    pub(crate) fn holds(&self, partition: u16) -> bool {
        self.group(partition)
            .is_some_and(|group| group.live.union(group.learners).contains(self.config.node))
    }

    /// The epoch of the latest view that this lane has heard of.
    pub fn epoch(&self) -> Epoch {
        self.view.epoch
    }

    pub(crate) fn count(&mut self, counter: Counter) {
        self.counters[counter as usize] += 1;
    }

    pub(crate) fn count_conflict(&mut self, conflict: crate::Conflict) {
        self.counters[Counter::Aborts as usize + conflict.reason as usize] += 1;
    }

    // --- hybrid logical clock ------------------------------------------------------------------

    /// This node's hybrid clock: the wall clock as it was at the start, run on by the monotonic
    /// one, and moved ahead whenever a message shows that another node's is. Never goes back, and
    /// is the same for all lanes of the node.
    pub(crate) fn clock(&self, now: Now) -> u64 {
        HybridClock::ahead_by(self.table.highest()).read(now.monotonic)
    }

    /// Takes note of a timestamp: from now on this node issues larger ones. That is what makes the
    /// order of timestamps follow real time (see the crate's documentation).
    #[inline]
    pub(crate) fn observe(&mut self, now: Now, version: u64) {
        let mut clock = HybridClock::ahead_by(self.table.highest());
        // Past it, not at it: of two timestamps of one moment, the writer's number decides.
        if clock.reach(now.monotonic, version.saturating_add(1)) {
            self.table.raise_highest(clock.ahead());
        }
    }

    /// As [`Meerkat::observe`], for what another node's clock showed a moment ago: measures how far
    /// this one was behind.
    pub(crate) fn follow_clock(&mut self, now: Now, theirs: u64) {
        let behind = theirs.saturating_sub(self.clock(now));
        if behind > self.config.max_clock_skew.as_nanos() as u64 {
            self.count(Counter::ClocksApart);
        }
        self.observe(now, theirs);
        *self.clock_lead = self.clock(now).saturating_sub(now.unix.0);
    }

    /// A timestamp that is above `above`, everything this lane has issued, and everything that was
    /// answered anywhere before now.
    pub(crate) fn issue(&mut self, now: Now, above: u64) -> Timestamp {
        let version = self.clock(now).max(self.last_issued + 1).max(above + 1);
        self.last_issued = version;
        self.observe(now, version);
        Timestamp::new(version, self.writer())
    }

    pub(crate) fn writer(&self) -> WriterId {
        if let Some(writer) = self.config.guest {
            return writer;
        }
        let lane = u8::try_from(self.config.lane.0).expect("a lane fits into a virtual id");
        WriterId::new(self.member, lane)
    }

    /// The node that coordinates a transaction, if it is live.
    pub(crate) fn coordinator_of(&self, id: Timestamp) -> Option<NodeId> {
        let number = id.writer.member();
        self.view
            .members
            .iter()
            .find(|member| member.number == number && member.role != Role::Down)
            .map(|member| member.node)
            .filter(|_| !id.writer.is_guest())
            .or_else(|| self.guests.get(&id.writer).copied())
    }

    // --- facts ---------------------------------------------------------------------------------

    /// What was counted, by name.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        COUNTERS.into_iter().zip(*self.counters).collect()
    }

    /// What there is now, by name.
    pub fn gauges(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("records", self.records.len() as u64),
            ("undecided", self.undecided() as u64),
            ("attempts", self.attempts.len() as u64),
            ("waiting", self.lines.values().map(Vec::len).sum::<usize>() as u64),
            ("recovering", self.recoveries.len() as u64),
            ("tombstones", self.tombstones.len() as u64),
            ("sessions", self.trackers.iter().map(ResultTracker::len).sum::<usize>() as u64),
            ("frozen", u64::from(self.phase == Phase::Frozen)),
            ("stuck", u64::from(self.phase == Phase::Frozen && self.stuck().is_some())),
            ("clock_lead_us", *self.clock_lead / 1000),
            ("unsettled", self.unsettled() as u64),
        ]
    }

    /// Updates that may have ended and whose end some live replica may not know: those that this lane
    /// coordinates, what it knows of guests' as a replica, and all that a change of the epoch settles.
    /// While no lane of any node has one, a replica has every update that another has.
    fn unsettled(&self) -> usize {
        if mutant!("meerkat_unsettled_until_answered") {
            return self.pending();
        }
        let is_open = |record: &TxnRecord| record.decision.is_none() || !record.unaware.is_empty();
        let guests = self.records.of_guests().filter(|record| is_open(record)).count();
        let changing = usize::from(self.phase == Phase::Frozen);
        self.attempts.updates().count() + guests + changing
    }

    fn undecided(&self) -> usize {
        self.records.iter().filter(|(_, record)| record.decision.is_none()).count()
    }

    /// Transactions of clients that are not answered yet.
    pub fn pending(&self) -> usize {
        self.ops.len()
    }

    /// Whether this node may take transactions now.
    pub fn is_normal(&self) -> bool {
        self.phase == Phase::Normal && self.active
    }

    /// Whether it holds everything that the active members hold.
    pub fn is_caught_up(&self) -> bool {
        let is_whole = self.active || self.copying.is_done() && self.is_copy_durable();
        self.phase == Phase::Normal && is_whole
    }

    /// Whether the log of another lane may have a version that is lost, in the place of which this lane has copied
    /// an older one.
    pub fn outdates_logs(&self) -> bool {
        self.has_replaced_lost
    }

    /// The log of every lane begins behind all that this one has copied.
    pub fn logs_renewed(&mut self) {
        self.has_replaced_lost = false;
    }

    /// Records that were copied from another replica to catch up.
    pub fn copied(&self) -> u64 {
        self.copying.copied()
    }

    /// The records in force, for checks in a simulation.
    pub fn records(&self) -> &Records {
        &self.records
    }

    /// What became of calls, by partition, for checks in a simulation.
    pub fn trackers(&self) -> &[ResultTracker] {
        &self.trackers
    }

    /// The store, to be looked at.
    pub fn table(&self) -> &T {
        &self.table
    }

    /// The store, for checks in a simulation.
    pub fn table_mut(&mut self) -> &mut T {
        &mut self.table
    }

    /// The isolation that transactions have.
    pub fn isolation(&self) -> Isolation {
        self.config.isolation
    }
}
