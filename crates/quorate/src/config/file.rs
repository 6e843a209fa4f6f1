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
    pub(super) clock_drift_ppm: Option<Spanned<i64>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Limits {
    pub(super) maxmemory: Option<Spanned<String>>,
    pub(super) maxclients: Option<Spanned<i64>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Security {
    pub(super) requirepass: Option<Spanned<String>>,
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
    pub(super) nodes: Option<Spanned<Vec<Spanned<i64>>>>,
    pub(super) replicas: Option<Spanned<i64>>,
    pub(super) reads: Option<Reads>,
    #[serde(default)]
    pub(super) ack_broadcast: bool,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Engine {
    Hermes,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Reads {
    Leased,
    Quorum,
}
