//! The shape of `quorate.toml`. Numbers are read wide and checked by the caller, whose messages
//! say more than a reader's.

use serde::Deserialize;
use toml::Spanned;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub(super) cluster: Cluster,
    #[serde(default)]
    pub(super) limits: Limits,
    #[serde(default)]
    pub(super) security: Security,
    #[serde(default)]
    pub(super) admin: Admin,
    #[serde(default)]
    pub(super) runtime: Runtime,
    #[serde(default)]
    pub(super) node: Vec<Node>,
    #[serde(default)]
    pub(super) keyspace: Vec<Keyspace>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Cluster {
    pub(super) name: Spanned<String>,
    pub(super) lanes: Option<Spanned<i64>>,
    pub(super) lease_ms: Option<Spanned<i64>>,
    pub(super) suspect_ms: Option<Spanned<i64>>,
    pub(super) clock_drift_ppm: Option<Spanned<i64>>,
    #[serde(default)]
    pub(super) guests: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Limits {
    pub(super) maxmemory: Option<Spanned<String>>,
    pub(super) maxmemory_clients: Option<Spanned<String>>,
    pub(super) maxclients: Option<Spanned<i64>>,
    pub(super) sessions_max: Option<Spanned<i64>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Security {
    pub(super) requirepass: Option<Spanned<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Admin {
    #[serde(default)]
    pub(super) hosts: Vec<Spanned<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Runtime {
    #[serde(default)]
    pub(super) pin: bool,
    pub(super) busy_poll_us: Option<Spanned<i64>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Node {
    pub(super) id: Spanned<i64>,
    pub(super) peer: Spanned<String>,
    pub(super) client: Spanned<String>,
    pub(super) admin: Spanned<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Keyspace {
    pub(super) db: Spanned<i64>,
    pub(super) name: Spanned<String>,
    pub(super) engine: Engine,
    pub(super) nodes: Option<Spanned<NodeList>>,
    pub(super) replicas: Option<Spanned<i64>>,
    // Of hermes.
    pub(super) reads: Option<Spanned<Reads>>,
    pub(super) ack_broadcast: Option<Spanned<bool>>,
    // Of meerkat.
    pub(super) isolation: Option<Spanned<Isolation>>,
    pub(super) max_clock_skew_ms: Option<Spanned<i64>>,
    pub(super) partitions: Option<Spanned<i64>>,
    pub(super) partition_nodes: Option<Spanned<Vec<Spanned<NodeList>>>>,
}

/// Ids of nodes, not checked yet.
pub(super) type NodeList = Vec<Spanned<i64>>;

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Engine {
    Hermes,
    Meerkat,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Reads {
    Leased,
    Quorum,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Isolation {
    Strict,
    Serializable,
}
