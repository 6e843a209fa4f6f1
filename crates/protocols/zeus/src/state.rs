//! The state of a lane.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;

use quorate_machine::{
    Backoff, Command, DetMap, Effects, LaneShared, Record as _, Rng, Table, Timeouts, mutant,
};
use quorate_types::placement::shard_of;
use quorate_types::{
    Duration, Incarnation, Instant, LaneId, MemberNumber, NodeId, Now, Timestamp, View, WriterId,
    lane_of_key,
};

use crate::calls::Calls;
use crate::commit::Pipeline;
use crate::directory::Round;
use crate::engine::Options;
use crate::extra_copies::ExtraCopies;
use crate::extra_readers::ExtraReaders;
use crate::fields::Requester;
use crate::floor::Floor;
use crate::follower::Stream;
use crate::join::Joining;
use crate::lanes::Lanes;
use crate::layout::Layout;
use crate::log::Log;
use crate::meta::{DataState, Extra, Meta, OwnerState};
use crate::ownership::Acquisition;
use crate::placement::Bounces;
use crate::recovery::Recovery;
use crate::relief::Relief;
use crate::remote::Remote;
use crate::sweep::Sweep;
use crate::transactions::Transactions;
use crate::turn::Turn;
use crate::workspace::ReadSet;

/// The name of a key.
pub(crate) type Key = Box<[u8]>;

/// How often the wait for an answer doubles at most, each time that it was in vain.
const DOUBLINGS_MAX: u32 = 4;

/// What a lane is told at its start.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Config {
    /// This node.
    pub node: NodeId,
    /// This life of it.
    pub incarnation: Incarnation,
    /// This lane.
    pub lane: LaneId,
    /// Lanes of the node.
    pub lanes: u16,
    /// Members of each group: the copies of a key besides that of an owner outside. 0 for as many as
    /// survive the loss of any minority of the voters, and 3 at least.
    pub replicas: usize,
    /// When a message counts as lost and is sent again. The wait doubles each time that it was in vain,
    /// up to 16 times this.
    pub message_loss_timeout: Duration,
    /// How long a transaction may wait for its keys.
    pub op_timeout: Duration,
    /// How old a deleted key gets before it is forgotten, and how often the floor may rise.
    pub collect_every: Duration,
    /// Most nodes outside a key's group that keep a copy of it because they read it often; 0 for none.
    pub extra_readers: usize,
    /// After how many reads of a key within a second or so that other nodes have answered this one asks for a
    /// copy.
    pub extra_after: u32,
    /// Seeds jitter.
    pub seed: u64,
}

impl Config {
    /// Default for [`Config::extra_after`].
    pub const EXTRA_AFTER: u32 = 16;

    /// With the usual times, and three members in each group.
    pub fn new(node: NodeId, incarnation: Incarnation, lane: LaneId, seed: u64) -> Self {
        Self {
            node,
            incarnation,
            lane,
            lanes: 1,
            replicas: 3,
            message_loss_timeout: Duration::from_millis(20),
            op_timeout: Duration::from_secs(2),
            collect_every: Options::COLLECT_EVERY,
            extra_readers: Options::EXTRA_READERS,
            extra_after: Self::EXTRA_AFTER,
            seed,
        }
    }
}

impl Config {
    /// Whether a key belongs to this lane.
    pub(crate) fn is_own(&self, key: &[u8]) -> bool {
        self.lanes == 1 || lane_of_key(key, self.lanes) == self.lane
    }

    /// Something is sent again, since nothing has come of it: the next wait is longer.
    pub(crate) fn wait_longer(&self, wait: &mut Backoff, now: Now) {
        let most = if mutant!("zeus_waits_without_bound") { 30 } else { DOUBLINGS_MAX };
        wait.grow(if mutant!("zeus_waits_stay_short") { 0 } else { most });
        wait.begin(now, self.message_loss_timeout);
    }
}

/// One lane.
#[derive(Clone, Hash)]
pub struct Zeus<T: Table<Meta = Meta> + LaneShared, X: Command> {
    pub(crate) config: Config,
    pub(crate) life: Incarnation,
    pub(crate) table: T,
    pub(crate) layout: Arc<Layout>,
    pub(crate) rng: Rng,
    /// The hybrid clock: at least what any timestamp has shown that was seen or issued here.
    pub(crate) clock: u64,
    /// Requests for ownership so far.
    pub(crate) requests: u64,
    /// Keys that this node wants to own.
    pub(crate) acquisitions: DetMap<Key, Acquisition>,
    /// Keys whose owner is not settled, as this node knows as one of their arbiters.
    pub(crate) rounds: DetMap<Key, Round>,
    /// This node's transactions that not all followers have applied.
    pub(crate) pipeline: Pipeline<X::Reply>,
    /// What other coordinators have sent.
    pub(crate) streams: BTreeMap<MemberNumber, Stream>,
    /// What is to be finished before keys without a live owner belong to their default one.
    pub(crate) recovery: Option<Recovery>,
    pub(crate) joining: Option<Joining>,
    /// What is left of earlier lives.
    pub(crate) former: Option<T>,
    pub(crate) sweep: Sweep,
    pub(crate) floor: Floor,
    pub(crate) transactions: Transactions<X>,
    pub(crate) calls: Calls,
    pub(crate) remote: Remote<X::Reply>,
    /// Copies of keys outside their groups that this node reads often.
    pub(crate) copies: ExtraCopies,
    /// Nodes that have such copies of keys that this lane owns.
    pub(crate) readers: ExtraReaders,
    pub(crate) relief: Relief,
    pub(crate) lanes: Lanes<X>,
    pub(crate) bounces: Bounces,
    pub(crate) turn: Turn,
    pub(crate) log: Log,
    /// Keys of which something has changed in this step that transactions or rounds may wait for.
    pub(crate) changed: BTreeSet<Key>,
    /// Requests whose turn has come in this step.
    pub(crate) next: BTreeMap<Key, Requester>,
    pub(crate) op_timeouts: Timeouts<u64>,
    pub(crate) reader_timeouts: Timeouts<u64>,
    /// When the first thing is due that may have to be sent again.
    pub(crate) wake_at: Instant,
    /// Room for what a transaction reads that ends in its step.
    pub(crate) read_set: ReadSet,
    pub(crate) counters: Counters,
}

/// Counts since the start. What they show decides nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) commits: u64,
    pub(crate) reads: u64,
    pub(crate) acquired: u64,
    pub(crate) given: u64,
    pub(crate) replayed: u64,
    /// Transactions that write, or read as owners, and had to wait for keys.
    pub(crate) waited: u64,
    /// Moves of keys from one live node to another that this node has seen as an arbiter or requester.
    pub(crate) moves: u64,
    /// Units that have begun to bounce.
    pub(crate) bounced: u64,
    pub(crate) copied: u64,
    /// Records of earlier lives that a donor had as well.
    pub(crate) kept: u64,
    /// Reads of keys without copies here that have ended without a move.
    pub(crate) remote_reads: u64,
    /// Times that one had to begin again.
    pub(crate) remote_repeats: u64,
    /// Reads of keys without a copy here that brought the keys here in the end.
    pub(crate) remote_moves: u64,
    /// Extra copies that this node has got, and such that have ended.
    pub(crate) copies_begun: u64,
    pub(crate) copies_ended: u64,
    /// Copies outside the groups of their keys that have given way since memory was short.
    pub(crate) copies_dropped: u64,
    /// Extra readers that keys owned here have got and lost.
    pub(crate) readers_added: u64,
    pub(crate) readers_ended: u64,
}

impl core::hash::Hash for Counters {
    fn hash<H: core::hash::Hasher>(&self, _: &mut H) {}
}

impl<T: Table<Meta = Meta> + LaneShared, X: Command> Zeus<T, X> {
    /// A lane that knows no view yet.
    pub fn new(config: Config, table: T) -> Self {
        let lanes = config.lanes;
        Self {
            life: config.incarnation,
            rng: Rng::new(config.seed),
            config,
            table,
            layout: Arc::default(),
            clock: 0,
            requests: 0,
            acquisitions: DetMap::default(),
            rounds: DetMap::default(),
            pipeline: Pipeline::default(),
            streams: BTreeMap::new(),
            recovery: None,
            joining: None,
            former: None,
            sweep: Sweep::default(),
            floor: Floor::default(),
            transactions: Transactions::default(),
            calls: Calls::default(),
            remote: Remote::default(),
            copies: ExtraCopies::default(),
            readers: ExtraReaders::default(),
            relief: Relief::default(),
            lanes: Lanes::new(lanes),
            bounces: Bounces::default(),
            turn: Turn::default(),
            log: Log::default(),
            changed: BTreeSet::new(),
            next: BTreeMap::new(),
            op_timeouts: Timeouts::default(),
            reader_timeouts: Timeouts::default(),
            wake_at: Instant::NEVER,
            read_set: ReadSet::default(),
            counters: Counters::default(),
        }
    }

    /// The records.
    pub fn table(&self) -> &T {
        &self.table
    }

    pub(crate) fn layout_of(&self, view: &View) -> Layout {
        Layout::new(view, self.config.node, self.life, self.config.replicas)
    }

    // --- time ------------------------------------------------------------------------------------

    /// A timestamp above all that were issued or seen here.
    pub(crate) fn issue(&mut self, now: Now) -> Timestamp {
        self.clock = now.unix.0.max(self.clock + 1);
        let lane = u8::try_from(self.config.lane.0).expect("a lane fits into a virtual id");
        Timestamp::new(self.clock, WriterId::new(self.layout.number, lane))
    }

    pub(crate) fn observe(&mut self, clock: u64) {
        self.clock = self.clock.max(clock);
    }

    /// Something is sent for the first time, or there is reason to hope again.
    pub(crate) fn wait(&mut self, now: Now) -> Backoff {
        let mut wait = Backoff::default();
        wait.begin(now, self.config.message_loss_timeout);
        self.wake_at = self.wake_at.min(wait.deadline());
        wait
    }

    // --- records ---------------------------------------------------------------------------------

    /// Whether a key belongs to this lane.
    pub(crate) fn is_own(&self, key: &[u8]) -> bool {
        self.config.is_own(key)
    }

    /// The words of a key without a record. Where a node has not copied what there is, it knows nothing of
    /// what was forgotten; nor does a lane know what another has copied.
    pub(crate) fn absent(&self, key: &[u8]) -> Meta {
        let is_copied = self.joining.as_ref().is_none_or(|joining| joining.has_copied(key));
        let is_known = self.is_own(key) && self.layout.in_group(key);
        if !is_known || !(is_copied || mutant!("zeus_absent_before_copied")) {
            return Meta::default();
        }
        let at = self.floor.absent_at();
        // The logs that a revived node comes back from have no rounds. Until all have told it of their own, the floor
        // says nothing of the round by which one of them owns a key.
        let has_rounds = !self.layout.revived
            || self.joining.as_ref().is_none_or(|it| !it.is_unheard(shard_of(key)))
            || mutant!("zeus_floor_above_an_owner");
        let round = if has_rounds { at } else { Timestamp::ZERO };
        Meta { version: at, round, ..Meta::default() }
    }

    pub(crate) fn meta(&mut self, key: &[u8]) -> Meta {
        let known = self.table.lock_existing(key).map(|record| record.meta()).unwrap_or_default();
        // The usual record has a round, and then it has all its words.
        if known.round == Timestamp::ZERO { known.or(self.absent(key)) } else { known }
    }

    /// Changes the words of a record in one go: another lane may change others of them.
    pub(crate) fn change_meta(&mut self, key: &[u8], change: impl FnOnce(&mut Meta)) {
        let absent = self.absent(key);
        let mut record = self.table.lock_key_unsized(key);
        let mut meta = record.meta().or(absent);
        change(&mut meta);
        record.set_meta(meta);
        self.sweep.note(key, record.content());
    }

    /// The owner of a key, as this node knows.
    pub(crate) fn owner_of(&self, meta: &Meta, key: &[u8]) -> Option<NodeId> {
        self.layout.owner(meta.owner, key)
    }

    /// Whether this node is the owner of a key by name.
    pub(crate) fn owns_by_name(&mut self, key: &[u8]) -> bool {
        let owner = self.meta(key).owner;
        self.layout.node_of(owner) == Some(self.layout.node)
    }

    /// Forgets a key; whether there was anything to forget.
    pub(crate) fn drop_record(&mut self, key: &[u8], effects: &mut impl Effects<Self>) -> bool
    where
        X: Command<Owned = X>,
    {
        let was_there = self.table.remove_if(key, |_| true);
        if was_there {
            self.append_gone(key, effects);
        }
        was_there
    }

    /// How a transaction may use a key here.
    pub(crate) fn rights(&self) -> Rights<'_> {
        Rights { layout: &self.layout, has_recovered: self.lanes.has_recovered }
    }
}

/// What this node may do with keys, by their words.
#[derive(Clone, Copy)]
pub(crate) struct Rights<'a> {
    pub(crate) layout: &'a Layout,
    /// Whether keys without a live owner belong to their default one.
    pub(crate) has_recovered: bool,
}

impl Rights<'_> {
    /// Whether a transaction that writes anything may use the key: only its owner may, also to read
    /// it. A reader that validated what it has read would let two transactions each miss what the
    /// other writes.
    pub(crate) fn may_own(&self, meta: &Meta, key: &[u8]) -> bool {
        self.owns(meta, key) && meta.state == OwnerState::Valid && meta.data != DataState::Invalid
    }

    fn owns(&self, meta: &Meta, key: &[u8]) -> bool {
        match self.layout.node_of(meta.owner) {
            Some(node) => node == self.layout.node,
            None => self.has_recovered && self.layout.default_owner(key) == Some(self.layout.node),
        }
    }

    /// Whether this node has a copy that is kept up to date: as a member of the group, as the owner
    /// until it gives the key away, or as one that reads the key often.
    pub(crate) fn has_copy(&self, meta: &Meta, key: &[u8]) -> bool {
        let is_extra = meta.extra == Extra::Kept
            || meta.extra == Extra::Wanted && mutant!("zeus_copy_read_before_grant");
        self.layout.reads(key) || is_extra || self.owns(meta, key)
    }

    /// Whether a transaction that only reads may use the key.
    pub(crate) fn may_read(&self, meta: &Meta, key: &[u8]) -> bool {
        let is_committed = meta.data == DataState::Valid || mutant!("zeus_reads_uncommitted");
        self.has_copy(meta, key) && is_committed
    }
}
