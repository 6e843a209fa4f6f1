//! What people and dashboards may know of a node. Snapshots: cheap to take, slightly old.

use quorate_types::{Duration, Epoch, Incarnation, Instant, KeyspaceId, NodeId, Role, UnixMillis};

/// The phase of a node that serves.
pub const SERVING: &str = "serving";

/// What the membership machine knows.
#[derive(Clone, Debug, Default)]
pub struct ControlFacts {
    /// One sentence: what the node does now, or what it waits for.
    pub phase: String,
    /// The epoch in force at this node.
    pub epoch: Epoch,
    /// This life of the node.
    pub incarnation: Incarnation,
    /// How much longer the lease lasts; zero without one.
    pub lease_remaining: Duration,
    /// Views installed since the start.
    pub views: u64,
    /// How often this node was expelled and began a new life.
    pub rejoins: u64,
    /// When the cluster was formed, empty, if this process took part in that.
    pub formed: Option<Instant>,
    /// The members, this node included.
    pub members: Vec<MemberFacts>,
}

/// One member as another sees it.
#[derive(Clone, Debug)]
pub struct MemberFacts {
    /// Its id.
    pub node: NodeId,
    /// Its life, 0 before its first start.
    pub incarnation: Incarnation,
    /// What it does in the view.
    pub role: Role,
    /// How long ago it was heard; nothing for oneself or a member never heard.
    pub last_heard: Option<Duration>,
    /// Whether it is suspected to be dead or cut off.
    pub suspected: bool,
    /// Whether it is about to leave, by an operator's request.
    pub leaving: bool,
    /// Whether it has said that it has copied what falls to it. It is so for all members while data is
    /// where it should be.
    pub has_copied: bool,
    /// Peer address.
    pub peer: String,
    /// Client address.
    pub client: String,
    /// Administration address.
    pub admin: String,
}

/// What one lane counted since its start.
#[derive(Clone, Debug, Default)]
pub struct LaneFacts {
    /// Ops submitted to engines on this lane.
    pub submitted: u64,
    /// Reads answered from local records.
    pub local_reads: u64,
    /// Turns whose reads were thrown away because the lease had run out.
    pub seals_failed: u64,
    /// Ops that waited until the node served again.
    pub parked: u64,
    /// Peer messages handled.
    pub messages: u64,
    /// Peer messages dropped, with the reason.
    pub ignored: Vec<(&'static str, u64)>,
    /// Its log, if it has one.
    pub log: Option<LogFacts>,
    /// Its sessions.
    pub sessions: SessionFacts,
    /// Each engine on this lane.
    pub engines: Vec<EngineFacts>,
}

/// How many buckets the histogram of flushes has: bucket *i* counts those that took less than 2^*i*
/// microseconds and not less than half of that, the last one all longer ones.
pub const FLUSH_BUCKETS: usize = 24;

/// What is known of the log of one lane.
#[derive(Clone, Debug, Default)]
pub struct LogFacts {
    /// Entries that were appended since the start.
    pub appended_entries: u64,
    /// Their bytes, with what the log adds to each.
    pub appended_bytes: u64,
    /// Bytes of batches that were written and flushed, with what a batch adds to its entries.
    pub written_bytes: u64,
    /// Bytes that were appended and are not durable yet.
    pub pending_bytes: u64,
    /// Whether there is no room on the disk.
    pub is_full: bool,
    /// How many batches were written and flushed, by the time that it took.
    pub flushes: [u64; FLUSH_BUCKETS],
    /// How long all of them took, in microseconds.
    pub flush_micros: u64,
    /// Entries that were restored at the start.
    pub restored_entries: u64,
    /// Their bytes.
    pub restored_bytes: u64,
    /// Snapshots that were completed since the start.
    pub snapshots: u64,
    /// Whether one is being written.
    pub snapshot_under_way: bool,
    /// Whether one was asked for that has not begun.
    pub snapshot_wanted: bool,
    /// Whether the last one found no room.
    pub snapshot_failed: bool,
    /// Bytes of the last one.
    pub snapshot_bytes: u64,
    /// When the last one of this process was complete.
    pub snapshot_at: Option<UnixMillis>,
    /// How long it took, or how long the one under way takes already, in seconds.
    pub snapshot_seconds: u64,
    /// Entries of the log since the last one began.
    pub entries_since_snapshot: u64,
    /// Their bytes.
    pub bytes_since_snapshot: u64,
}

/// What one lane did for sessions.
#[derive(Clone, Debug, Default)]
pub struct SessionFacts {
    /// Sessions to which this lane has given leases that are not over.
    pub open: u64,
    /// Calls submitted on this lane.
    pub calls: u64,
    /// Calls and requests for a lease that were refused, by reason.
    pub refused: Vec<(&'static str, u64)>,
}

/// What one engine of one lane counted.
#[derive(Clone, Debug, Default)]
pub struct EngineFacts {
    /// The keyspace.
    pub keyspace: KeyspaceId,
    /// Named counters of the engine, in a stable order.
    pub counters: Vec<(&'static str, u64)>,
    /// Named gauges of the engine (pending, waiting, ...), in a stable order.
    pub gauges: Vec<(&'static str, u64)>,
    /// Whether it holds everything; a shadow that still copies does not.
    pub caught_up: bool,
    /// Records copied so far by a shadow.
    pub copied: u64,
}

/// Where transactions run whose keys move, and how often keys do: of all such keyspaces of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PlacementFacts {
    /// Moves of keys between live nodes that this node has seen.
    pub moves: u64,
    /// Transactions that changed something here.
    pub commits: u64,
    /// Of these, and of such as read as owners: those that waited for keys.
    pub waited: u64,
    /// Commands of this node's clients that may change something and ran on another node.
    pub forwarded: u64,
    /// Units of keys that have begun to bounce.
    pub bounced: u64,
    /// Those that bounce now.
    pub bouncing: u64,
    /// Copies outside the groups of their keys that have given way since memory was short.
    pub copies_dropped: u64,
    /// Units that are pinned.
    pub pins: u64,
}

impl PlacementFacts {
    /// Of 1000 commands of this node that may change something, how many ran here at once.
    pub fn local_share(&self) -> u64 {
        let all = self.commits + self.forwarded;
        self.commits.saturating_sub(self.waited) * 1000 / all.max(1)
    }
}

/// What a keyspace of this node holds.
#[derive(Clone, Copy, Debug, Default)]
pub struct StoreFacts {
    /// Keys with a value.
    pub keys: u64,
    /// Of these, keys that expire.
    pub expiring: u64,
    /// Deleted keys whose record is still kept.
    pub tombstones: u64,
    /// Bytes of records and indexes.
    pub bytes: u64,
}
