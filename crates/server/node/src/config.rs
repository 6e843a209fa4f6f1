//! What a node is told at its start.

use std::collections::BTreeSet;

use crate::EngineConfig;
use quorate_types::placement::group_size;
use quorate_types::{Duration, Incarnation, KeyspaceId, NodeId, NodeSet, hash_key, limits};

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

impl NodeAddress {
    /// A node that no socket reaches, since all of its peers are in the same process.
    pub fn in_memory(node: NodeId) -> Self {
        Self { node, peer: String::new(), client: String::new(), admin: String::new() }
    }
}

/// What survives of a keyspace when power is lost.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Durability {
    /// What live nodes hold, and nothing of a cluster whose nodes all stop.
    #[default]
    Memory,
    /// All but the last moments, if all nodes stop at once.
    Async,
    /// Whatever was acknowledged.
    Sync,
}

impl Durability {
    /// Every one, with its name in a configuration.
    pub const ALL: [(&'static str, Self); 3] =
        [("memory", Self::Memory), ("async", Self::Async), ("sync", Self::Sync)];

    /// The one of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, durability)| *durability)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        let named = Self::ALL.iter().find(|(_, durability)| *durability == self);
        named.expect("all are listed").0
    }
}

/// How a node writes its log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogConfig {
    /// How soon what nobody waits for is flushed; default 10 ms.
    pub fsync_interval: Duration,
    /// After how many bytes of a lane's log a snapshot of the lane begins, or after as many as the last
    /// snapshot had, if those are more; default 256 MiB.
    pub snapshot_after: u64,
    /// Bytes of a segment of the log: a multiple of 4 KiB, from 1 MiB on; default 64 MiB.
    pub segment_bytes: u64,
}

impl LogConfig {
    /// How soon a log that has found the disk full looks for room again.
    pub const RETRY: Duration = Duration::from_secs(1);
    /// How long after its last batch a log writes that once more, if nothing has come.
    pub const REPEAT_AFTER: Duration = Duration::from_secs(1);
    /// How soon a snapshot is begun again for which there was no room.
    pub const SNAPSHOT_RETRY: Duration = Duration::from_secs(10);

    /// Most bytes of a batch: a segment holds several.
    pub(crate) fn batch_bytes_max(&self) -> u32 {
        (self.segment_bytes / 8 / 4096 * 4096).clamp(64 * 1024, 1024 * 1024) as u32
    }
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            fsync_interval: Duration::from_millis(10),
            snapshot_after: 256 * 1024 * 1024,
            segment_bytes: quorate_durability::SEGMENT_BYTES,
        }
    }
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
    /// Beyond how many bytes a collection is large, where the engine has large ones; default
    /// [`quorate_types::limits::PACKED_BYTES_MAX`]. Nodes need not agree on it.
    pub packed_bytes_max: usize,
    /// How long active members that are missing are waited for when a cluster could be revived from disks
    /// without them; default [`NodeConfig::REVIVE_PATIENCE`].
    pub revive_patience: Duration,
    /// How the log is written, if the driver gives the lanes one.
    pub log: LogConfig,
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

    /// Default for [`NodeConfig::revive_patience`].
    pub const REVIVE_PATIENCE: Duration = Duration::from_secs(10);

    /// A node with every default, of a cluster without a name, seeded by its id.
    pub fn new(
        node: NodeId,
        lanes: u16,
        nodes: Vec<NodeAddress>,
        keyspaces: Vec<KeyspaceConfig>,
    ) -> Self {
        Self {
            node,
            cluster: String::new(),
            lanes,
            nodes,
            lease: Self::LEASE,
            suspect_after: Self::SUSPECT_AFTER,
            clock_drift_ppm: Self::CLOCK_DRIFT_PPM,
            message_loss_timeout: Self::MESSAGE_LOSS_TIMEOUT,
            op_timeout: Self::OP_TIMEOUT,
            sessions_max: Self::SESSIONS_MAX,
            session_term: Self::SESSION_TERM,
            packed_bytes_max: limits::PACKED_BYTES_MAX,
            revive_patience: Self::REVIVE_PATIENCE,
            keyspaces,
            log: LogConfig::default(),
            seed: u64::from(node.0),
        }
    }

    /// How long a member may be silent at most before it is suspected, whatever silences were seen.
    pub fn suspect_after_max(&self) -> Duration {
        self.suspect_after * Self::SUSPECT_MAX_TIMES
    }

    /// What the files of the log call the cluster: the name's hash.
    pub(crate) fn log_cluster(&self) -> Incarnation {
        Incarnation(hash_key(self.cluster.as_bytes()))
    }

    /// Whether a keyspace survives the loss of all power, so that the node needs a log.
    pub fn is_durable(&self) -> bool {
        self.keyspaces.iter().any(|keyspace| keyspace.durability != Durability::Memory)
    }

    /// The replica groups of keyspaces of some engines, and of their partitions, that are not on every
    /// member.
    pub(crate) fn groups_of(&self, engines: impl Fn(&EngineConfig) -> bool) -> Vec<NodeSet> {
        let mut groups: Vec<NodeSet> = Vec::new();
        for keyspace in self.keyspaces.iter().filter(|keyspace| engines(&keyspace.engine)) {
            let parts = keyspace.partitions.iter();
            groups.extend(parts.filter_map(|group| group.or(keyspace.replicas)));
        }
        groups.sort_unstable_by_key(|group| group.bits());
        groups.dedup();
        groups
    }

    /// Whether some engine needs what a majority of all members has.
    pub(crate) fn has_quorums_everywhere(&self) -> bool {
        let has_quorums = |keyspace: &&KeyspaceConfig| keyspace.engine.capabilities().quorums;
        self.keyspaces.iter().filter(has_quorums).any(|keyspace| {
            keyspace.partitions.iter().any(|group| group.or(keyspace.replicas).is_none())
        })
    }

    /// The sizes of the groups of the keyspaces whose keys are placed by the view.
    pub(crate) fn moving(&self) -> Vec<usize> {
        let sizes = self.keyspaces.iter().filter_map(|keyspace| keyspace.engine.group_size());
        let sizes: BTreeSet<usize> = sizes.collect();
        sizes.into_iter().collect()
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
    /// The replica group of each partition, one or more; every replica of the keyspace if nothing is
    /// said. Several only if the engine has partitions.
    pub partitions: Vec<Option<NodeSet>>,
    /// The engine and its options.
    pub engine: EngineConfig,
    /// What survives of it when power is lost. Only what the engine can do
    /// ([`EngineConfig::check_durability`]).
    pub durability: Durability,
}

impl KeyspaceConfig {
    /// How many nodes are to have each key, of those in the configuration or, if a view decides, of those
    /// over which it places data.
    pub fn copies(&self, nodes: usize, placed: usize) -> usize {
        match (self.engine.group_size(), self.replicas) {
            (Some(replicas), _) => group_size(replicas, placed).min(placed),
            (None, Some(replicas)) => replicas.len(),
            (None, None) => nodes,
        }
    }

    /// A keyspace on every member, in one partition.
    pub fn new(id: KeyspaceId, name: impl Into<String>, engine: EngineConfig) -> Self {
        Self {
            id,
            name: name.into(),
            replicas: None,
            partitions: vec![None],
            engine,
            durability: Durability::Memory,
        }
    }
}

#[cfg(test)]
mod tests {
    use quorate_engine::OptionValue;

    use super::*;

    #[test]
    fn a_keyspace_has_as_many_copies_as_its_engine_keeps() {
        let copies = |engine, nodes, placed| {
            KeyspaceConfig::new(KeyspaceId(0), "db", engine).copies(nodes, placed)
        };
        let first = || EngineConfig::first_with(|can| !can.spreads);
        assert_eq!((copies(first(), 3, 3), copies(first(), 6, 5)), (3, 6));
        let spread = || EngineConfig::first_with(|can| can.spreads);
        assert_eq!(
            (copies(spread(), 6, 6), copies(spread(), 6, 7), copies(spread(), 3, 2)),
            (3, 4, 2)
        );
        let mut four = spread();
        four.set("replicas", OptionValue::Number(4)).expect("it has the option");
        assert_eq!((copies(four.clone(), 6, 6), copies(four, 6, 3)), (4, 3));
    }
}
