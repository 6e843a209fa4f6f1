//! What a node is told at its start.

pub use quorate_baselines::System;
pub use quorate_meerkat::Isolation;
use quorate_types::{Duration, KeyspaceId, NodeId, NodeSet, limits};

/// Where one configured node is reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeAddress {
    /// Its id.
    pub node: NodeId,
    /// Where its peers reach it, `host:port`.
    pub peer: String,
    /// Where its clients reach it, `host:port`.
    pub client: String,
    /// Where its administration endpoint listens, `host:port`.
    pub admin: String,
}

/// Everything a node knows before it meets its peers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeConfig {
    /// This node.
    pub node: NodeId,
    /// The cluster's name; peers of another name are refused.
    pub cluster: String,
    /// Lanes of this node, the same on every node: 1 to [`quorate_types::limits::LANES_MAX`].
    pub lanes: u16,
    /// Every configured node, this one included.
    pub nodes: Vec<NodeAddress>,
    /// How long a lease lasts; default 150 ms (Hermes §4.5.7).
    pub lease: Duration,
    /// A member whose connections stand is suspected once it has been silent for this long, and for
    /// as long again as its silences and this node's own delays have lately been; default 600 ms.
    /// So long a stall costs nobody the membership, and a cut network or a frozen machine is noticed
    /// that late. A process that dies closes its connections, which is noticed at once.
    pub suspect_after: Duration,
    /// The most that two nodes' clocks may differ in rate, in parts per million of a second per
    /// second. Beyond it a lease is no promise.
    pub clock_drift_ppm: u32,
    /// When a message counts as lost and is sent again; default 20 ms.
    pub message_loss_timeout: Duration,
    /// How long an op may take before its client is told `UNKNOWN` or `TRYAGAIN`; default 2 s.
    pub op_timeout: Duration,
    /// Most sessions that this node gives leases to, shared evenly among its lanes; default 1 Mi.
    pub sessions_max: usize,
    /// How long a session's lease lasts without being renewed, the same on every node; default
    /// 30 minutes (RIFL §2.3).
    pub session_term: Duration,
    /// The keyspaces, the same on every node.
    pub keyspaces: Vec<KeyspaceConfig>,
    /// Seeds incarnations, jitter and virtual ids. The runtime draws it from the system, a
    /// simulation from its own seed.
    pub seed: u64,
}

impl NodeConfig {
    /// Default for [`NodeConfig::lease`].
    pub const LEASE: Duration = Duration::from_millis(150);
    /// Default for [`NodeConfig::suspect_after`], in leases.
    pub const SUSPECT_LEASES: u32 = 4;
    /// Default for [`NodeConfig::suspect_after`].
    pub const SUSPECT_AFTER: Duration = Duration::from_millis(600);
    /// How far the silences of others stretch suspicion at most, in times its least.
    const SUSPECT_MAX_TIMES: u32 = 8;
    /// Default for [`NodeConfig::clock_drift_ppm`]: ten times what a bad quartz does.
    pub const CLOCK_DRIFT_PPM: u32 = 1_000;
    /// Default for [`NodeConfig::message_loss_timeout`].
    pub const MESSAGE_LOSS_TIMEOUT: Duration = Duration::from_millis(20);
    /// Default for [`NodeConfig::sessions_max`].
    pub const SESSIONS_MAX: usize = limits::LEASES_PER_LANE_MAX;
    /// Default for [`NodeConfig::session_term`].
    pub const SESSION_TERM: Duration = limits::LEASE_TERM;
    /// Default for [`NodeConfig::op_timeout`].
    pub const OP_TIMEOUT: Duration = Duration::from_secs(2);

    /// How long a member may be silent at most before it is suspected, whatever silences were seen.
    pub fn suspect_after_max(&self) -> Duration {
        self.suspect_after * Self::SUSPECT_MAX_TIMES
    }

    /// The replica groups of all keyspaces and partitions that are not on every member.
    pub(crate) fn groups(&self) -> Vec<NodeSet> {
        let mut groups: Vec<NodeSet> = Vec::new();
        for keyspace in &self.keyspaces {
            match &keyspace.engine {
                EngineConfig::Meerkat { partitions, .. } => {
                    groups
                        .extend(partitions.iter().filter_map(|group| group.or(keyspace.replicas)));
                }
                _ => groups.extend(keyspace.replicas),
            }
        }
        groups.sort_unstable_by_key(|group| group.bits());
        groups.dedup();
        groups
    }

    /// The keyspace of this number.
    pub fn keyspace(&self, id: KeyspaceId) -> Option<&KeyspaceConfig> {
        self.keyspaces.iter().find(|keyspace| keyspace.id == id)
    }
}

/// One keyspace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyspaceConfig {
    /// What `SELECT` takes.
    pub id: KeyspaceId,
    /// For people.
    pub name: String,
    /// Which nodes replicate it; every member if nothing is said.
    pub replicas: Option<NodeSet>,
    /// The engine and its options.
    pub engine: EngineConfig,
}

/// An engine and its options.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EngineConfig {
    /// Invalidation-based replication of single keys.
    Hermes {
        /// How local reads are made safe.
        reads: ReadMode,
        /// Whether followers broadcast their acknowledgements (optimisation O3).
        ack_broadcast: bool,
        /// How often deleted keys are forgotten while they are few.
        collect_every: Duration,
    },
    /// Transactions over several keys, without coordination between lanes or replicas.
    Meerkat {
        /// What transactions may rely on.
        isolation: Isolation,
        /// The most that two nodes' wall clocks differ.
        max_clock_skew: Duration,
        /// The replica group of each partition; every replica of the keyspace if nothing is said.
        partitions: Vec<Option<NodeSet>>,
    },
    /// One of the rivals of Meerkat's paper. A measuring instrument: no configuration file names
    /// it, it has no recovery, and the loss of a node ends it.
    Baseline(System),
}

impl EngineConfig {
    /// The engine with its default options.
    pub const HERMES: Self = Self::Hermes {
        reads: ReadMode::Leased,
        ack_broadcast: false,
        collect_every: Self::COLLECT_EVERY,
    };
    /// Default for how often deleted keys are forgotten: not so often that anybody notices.
    pub const COLLECT_EVERY: Duration = Duration::from_secs(10);

    /// Default for the most that two nodes' wall clocks differ: what badly kept ones do.
    pub const MAX_CLOCK_SKEW: Duration = Duration::from_millis(50);

    /// Meerkat with its default options.
    pub fn meerkat() -> Self {
        Self::Meerkat {
            isolation: Isolation::Strict,
            max_clock_skew: Self::MAX_CLOCK_SKEW,
            partitions: vec![None],
        }
    }

    /// Whether a transaction may span keys.
    pub const fn is_transactional(&self) -> bool {
        matches!(self, Self::Meerkat { .. } | Self::Baseline(_))
    }

    /// Whether it carries out the calls of sessions.
    pub const fn has_sessions(&self) -> bool {
        matches!(self, Self::Hermes { .. } | Self::Meerkat { .. })
    }

    /// The name that configurations use.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Hermes { .. } => "hermes",
            Self::Meerkat { .. } => "meerkat",
            Self::Baseline(system) => system.name(),
        }
    }
}

/// How local reads of a hermes keyspace are made safe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadMode {
    /// By the node's lease: no message.
    Leased,
    /// By a majority's word after the read, one message per batch; needs no clock (Hermes §4.3.6).
    Quorum,
}
