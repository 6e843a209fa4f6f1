//! The shape of `quorate.toml`. The reader takes numbers of any size and leaves their check to the
//! caller, whose messages say more.

use std::fmt;

use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
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
    pub(super) disk: Disk,
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
    #[serde(default)]
    pub(super) enable_debug_command: DebugCommand,
}

/// Who may use `DEBUG`, by the numbers of the front end's setting.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum DebugCommand {
    #[default]
    No,
    Local,
    Yes,
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

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Disk {
    pub(super) dir: Option<Spanned<String>>,
    pub(super) fsync_interval_ms: Option<Spanned<i64>>,
    pub(super) revive_patience_ms: Option<Spanned<i64>>,
    pub(super) snapshot_after: Option<Spanned<String>>,
    pub(super) segment: Option<Spanned<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Node {
    pub(super) id: Spanned<i64>,
    pub(super) peer: Spanned<String>,
    pub(super) client: Spanned<String>,
    pub(super) admin: Spanned<String>,
}

/// A keyspace: the settings that every keyspace has, and the options of its engine.
#[derive(Debug)]
pub(super) struct Keyspace {
    pub(super) db: Spanned<i64>,
    pub(super) name: Spanned<String>,
    pub(super) engine: Spanned<String>,
    pub(super) nodes: Option<Spanned<NodeList>>,
    pub(super) replicas: Option<Spanned<i64>>,
    pub(super) partitions: Option<Spanned<i64>>,
    pub(super) partition_nodes: Option<Spanned<Vec<Spanned<NodeList>>>>,
    pub(super) durability: Option<Spanned<String>>,
    pub(super) options: Vec<(String, Spanned<OptionText>)>,
}

/// Ids of nodes, not checked yet.
pub(super) type NodeList = Vec<Spanned<i64>>;

/// The value of an engine's option, not checked yet.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "an option is true, false, a whole number or a word")]
pub(super) enum OptionText {
    Flag(bool),
    Number(i64),
    Word(String),
}

impl<'de> Deserialize<'de> for Keyspace {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(KeyspaceVisitor)
    }
}

struct KeyspaceVisitor;

impl<'de> Visitor<'de> for KeyspaceVisitor {
    type Value = Keyspace;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the keys of a keyspace")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Keyspace, A::Error> {
        let (mut db, mut name, mut engine, mut nodes) = (None, None, None, None);
        let (mut replicas, mut partitions, mut partition_nodes) = (None, None, None);
        let mut durability = None;
        let mut options = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "db" => db = Some(map.next_value()?),
                "name" => name = Some(map.next_value()?),
                "engine" => engine = Some(map.next_value()?),
                "nodes" => nodes = Some(map.next_value()?),
                "replicas" => replicas = Some(map.next_value()?),
                "partitions" => partitions = Some(map.next_value()?),
                "partition_nodes" => partition_nodes = Some(map.next_value()?),
                "durability" => durability = Some(map.next_value()?),
                _ => options.push((key, map.next_value()?)),
            }
        }
        let missing = A::Error::missing_field;
        Ok(Keyspace {
            db: db.ok_or_else(|| missing("db"))?,
            name: name.ok_or_else(|| missing("name"))?,
            engine: engine.ok_or_else(|| missing("engine"))?,
            nodes,
            replicas,
            partitions,
            partition_nodes,
            durability,
            options,
        })
    }
}
