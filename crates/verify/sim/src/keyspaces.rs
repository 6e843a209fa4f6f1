//! The keyspaces of a run.
//!
//! Every run has keyspace 0, with the engine that the options name. Some runs have one or two more,
//! of either engine, on other nodes or in other partitions, each with clients, records and guests
//! of its own. They share lanes, leases, links and sessions, and nothing else. All of them use the
//! same keys, so a value that gets into the wrong one shows. Client 3 of one keyspace is client 3
//! of the others: a process that uses several databases at the same time.

use std::fmt;
use std::str::FromStr;

use quorate_commands::{Op, OwnedCall};
use quorate_hermes::{Options as HermesOptions, Reads};
use quorate_machine::Rng;
use quorate_meerkat::{Isolation, Options as MeerkatOptions};
use quorate_node::{Durability, EngineConfig, KeyspaceConfig, NodeConfig};
use quorate_types::{Duration, KeyspaceId, NodeId, NodeSet, Tag};

use crate::command::Command;
use crate::process::Entry;
use crate::setup::{draw_partitions, show_groups};
use crate::shapes::{COLLECT_SOON, Shape};
use crate::{Engine, Faults, Options};

/// The most keyspaces that a run has beside the first one.
const BESIDE_MAX: usize = 2;
/// The lowest of the bits of a tag that name the keyspace of the client. The bits below hold the
/// client and its op.
const TAG_SHIFT: u32 = 56;
/// The bits of a tag that name the keyspace.
const TAG_MASK: u64 = 0xf << TAG_SHIFT;

/// Which keyspaces a run has beside the first one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Beside {
    /// The seed decides: most runs have none.
    Any,
    /// Keyspaces of these engines.
    These(Vec<Engine>),
}

impl Beside {
    /// There is one keyspace.
    pub const NONE: Self = Self::These(Vec::new());

    /// Whether every run has a keyspace of this engine beside the first one.
    pub(crate) fn has(&self, engine: Engine) -> bool {
        matches!(self, Self::These(engines) if engines.contains(&engine))
    }
}

impl fmt::Display for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any"),
            Self::These(engines) if engines.is_empty() => f.write_str("none"),
            Self::These(engines) => {
                let names: Vec<&str> = engines.iter().map(|engine| engine.name()).collect();
                f.write_str(&names.join(","))
            }
        }
    }
}

impl FromStr for Beside {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "any" => return Ok(Self::Any),
            "none" => return Ok(Self::NONE),
            _ => {}
        }
        let engines: Vec<Engine> =
            text.split(',').map(|name| name.trim().parse()).collect::<Result<_, _>>()?;
        if let Some(rival) = engines.iter().find(|engine| engine.is_alone()) {
            return Err(format!("{rival} is measured alone; use hermes and meerkat here"));
        }
        if engines.len() > BESIDE_MAX {
            return Err(format!(
                "a run has at most {BESIDE_MAX} keyspaces beside the first one; name fewer"
            ));
        }
        Ok(Self::These(engines))
    }
}

/// A keyspace beside the first one.
pub(crate) struct Neighbour {
    pub(crate) engine: EngineConfig,
    /// The nodes that have it, if not all of them.
    pub(crate) replicas: Option<NodeSet>,
    pub(crate) partitions: Vec<Option<NodeSet>>,
    pub(crate) guests: u16,
    pub(crate) shape: Shape,
}

impl Neighbour {
    /// Draws neighbours from a stream of their own, so that a seed has the same cluster and faults
    /// with and without them.
    pub(crate) fn draw(seed: u64, options: &Options, nodes: u16) -> Vec<Self> {
        let mut rng = Rng::new(seed ^ u64::from_le_bytes(*b"keyspace"));
        let mut drawn = || if rng.chance(1, 2) { Engine::Hermes } else { Engine::Meerkat };
        let [first, second] = [drawn(), drawn()];
        let engines = match &options.beside {
            _ if options.engine.is_alone() => Vec::new(),
            Beside::These(engines) => engines.clone(),
            Beside::Any => match rng.below(16) {
                0..=2 => vec![first],
                3 => vec![first, second],
                _ => Vec::new(),
            },
        };
        engines.into_iter().map(|engine| Self::of(engine, options, nodes, &mut rng)).collect()
    }

    fn of(engine: Engine, options: &Options, nodes: u16, rng: &mut Rng) -> Self {
        let shape = Shape::draw(rng.next_u64(), &Options { engine, ..options.clone() });
        let mut replicas = draw_replicas(nodes, rng);
        let (engine, partitions, guests) = match engine {
            Engine::Meerkat => {
                let strict = rng.chance(1, 2);
                let isolation = if strict { Isolation::Strict } else { Isolation::Serializable };
                let skew = [1, 5, 50, 200][rng.below(4) as usize];
                let partitions = draw_partitions(nodes, rng);
                // As in a configuration: a node with a part of the keyspace is a replica of it.
                let kept = partitions.iter().flatten().copied().reduce(NodeSet::union);
                replicas = kept.or(replicas);
                let engine = EngineConfig::Meerkat(MeerkatOptions {
                    isolation: options.isolation.unwrap_or(isolation),
                    max_clock_skew: Duration::from_millis(skew),
                });
                (engine, partitions, [0, 0, 1, 2][rng.below(4) as usize])
            }
            _ => {
                let reads = if rng.chance(1, 5) { Reads::Quorum } else { Reads::Leased };
                let (ack_broadcast, collect_every) = (rng.chance(1, 4), shape.collect_every);
                let options = HermesOptions { reads, ack_broadcast, collect_every };
                (EngineConfig::Hermes(options), vec![None], 0)
            }
        };
        Self { engine, replicas, partitions, guests, shape }
    }

    /// Adds it to every node's configuration.
    pub(crate) fn add_to(&self, nodes: &mut [NodeConfig]) {
        for config in nodes {
            let id = KeyspaceId(config.keyspaces.len() as u8);
            let (replicas, partitions) = (self.replicas, self.partitions.clone());
            let engine = self.engine.clone();
            config.keyspaces.push(KeyspaceConfig {
                durability: Durability::Memory,
                id,
                name: format!("db{}", id.0),
                replicas,
                partitions,
                engine,
            });
        }
    }
}

impl fmt::Display for Neighbour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { engine, replicas, partitions, guests, shape } = self;
        write!(f, "; beside it {} on {}", engine.name(), show_groups(&[*replicas]))?;
        if let EngineConfig::Meerkat(MeerkatOptions { isolation, max_clock_skew }) = engine {
            let skew = max_clock_skew.as_nanos() / 1_000_000;
            let groups = show_groups(partitions);
            write!(f, ", {isolation:?}, partitions on {groups}, {guests} guests, skew {skew} ms")?;
        }
        write!(f, "{shape}")
    }
}

/// The nodes of a keyspace, if it is not on all nodes: three, or now and then a single one. A
/// keyspace that survives no loss keeps the nemesis from killing its nodes.
fn draw_replicas(nodes: u16, rng: &mut Rng) -> Option<NodeSet> {
    let size = match rng.below(8) {
        0 if nodes > 1 => 1,
        1..=4 if nodes > 3 => 3,
        _ => return None,
    };
    let mut group = NodeSet::EMPTY;
    while group.len() < size {
        group.insert(NodeId(1 + rng.below(u64::from(nodes)) as u16));
    }
    Some(group)
}

/// A keyspace of a world.
pub(crate) struct Keyspace {
    pub(crate) id: KeyspaceId,
    pub(crate) engine: EngineConfig,
    pub(crate) durability: Durability,
    /// The replica group of each partition.
    pub(crate) groups: Vec<NodeSet>,
}

impl Keyspace {
    pub(crate) fn all(configs: &[NodeConfig]) -> Vec<Self> {
        let nodes: NodeSet = configs.iter().map(|config| config.node).collect();
        let keyspaces = configs[0].keyspaces.iter();
        keyspaces
            .map(|KeyspaceConfig { id, engine, durability, replicas, partitions, .. }| {
                let all = replicas.unwrap_or(nodes);
                let groups = partitions.iter().map(|group| group.unwrap_or(all)).collect();
                Self { id: *id, engine: engine.clone(), durability: *durability, groups }
            })
            .collect()
    }

    /// Whether it has transactions.
    pub(crate) fn is_transactional(&self) -> bool {
        self.engine.capabilities().transactions
    }

    /// The guarantee for transactions, if the keyspace has any. The order of real time rests on
    /// clocks.
    pub(crate) fn isolation(&self, faults: Faults) -> Option<Isolation> {
        match &self.engine {
            EngineConfig::Hermes(_) => None,
            EngineConfig::Meerkat(_) if faults.break_clocks() => Some(Isolation::Serializable),
            EngineConfig::Meerkat(options) => Some(options.isolation),
            EngineConfig::Zeus(_) | EngineConfig::Local(_) => Some(Isolation::Strict),
            // A primary orders by real time; timestamps of clients' nodes don't.
            #[cfg(feature = "baselines")]
            EngineConfig::KuaFu(()) | EngineConfig::Fasst(()) => Some(Isolation::Strict),
            #[cfg(feature = "baselines")]
            EngineConfig::Tapir(()) | EngineConfig::MeerkatPb(()) => Some(Isolation::Serializable),
        }
    }

    /// Whether each key is at some of the nodes, which the engine chooses.
    pub(crate) fn spreads(&self) -> bool {
        self.engine.capabilities().spreads
    }

    /// How many nodes have each key, if each is at some of them: 0 if that follows from how many there are.
    pub(crate) fn group_size(&self) -> Option<usize> {
        self.engine.group_size()
    }

    /// Whether it has ranges of keys.
    pub(crate) fn is_ordered(&self) -> bool {
        matches!(&self.engine, EngineConfig::Local(options) if options.ordered)
    }

    /// Whether nothing is left of deleted keys, soon after the last of them has gone.
    pub(crate) fn forgets_soon(&self) -> bool {
        matches!(&self.engine, EngineConfig::Zeus(options) if options.collect_every == COLLECT_SOON)
    }

    /// Most nodes that have a key besides those that must: its owner, and such as read it often.
    pub(crate) fn other_copies_max(&self) -> usize {
        match &self.engine {
            EngineConfig::Zeus(options) => 1 + options.extra_readers as usize,
            _ => 1,
        }
    }

    /// How long a watch of an absent key holds, in world time, if nobody makes the key: shorter than on
    /// the clock of any node, be it twice as fast.
    pub(crate) fn watches_last(&self) -> u64 {
        match &self.engine {
            EngineConfig::Zeus(options) => {
                let span = u64::try_from(options.collect_every.as_nanos());
                span.expect("a number of seconds") * 2 / 5
            }
            _ => u64::MAX,
        }
    }

    /// Whether reads rest on leases, and so on the rates of clocks.
    pub(crate) fn reads_under_lease(&self) -> bool {
        matches!(&self.engine, EngineConfig::Hermes(options) if options.reads == Reads::Leased)
    }

    /// The client's command for this one call.
    pub(crate) fn command(&self, call: OwnedCall) -> Command {
        Command(Op::Call(call))
    }

    /// The entries of a node, by partition.
    pub(crate) fn by_partition(&self, contents: Vec<Entry>) -> Vec<Vec<Entry>> {
        let count = self.groups.len();
        let mut parts = vec![Vec::new(); count];
        for entry in contents {
            let partition = quorate_types::partition_of(entry.0.as_bytes(), count);
            parts[usize::from(partition)].push(entry);
        }
        parts
    }
}

/// A client, by its number in a keyspace.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct ClientId {
    pub(crate) keyspace: KeyspaceId,
    pub(crate) index: usize,
}

impl ClientId {
    /// The id in one number.
    pub(crate) fn word(self) -> u64 {
        mark(self.keyspace) | self.index as u64
    }

    /// The tag of one of its ops.
    pub(crate) fn tag(self, op: u64) -> Tag {
        Tag(mark(self.keyspace) | (self.index as u64) << 32 | op)
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.keyspace {
            KeyspaceId(0) => write!(f, "{}", self.index),
            KeyspaceId(keyspace) => write!(f, "{} in {keyspace}", self.index),
        }
    }
}

/// The bits of a tag by which clients of this keyspace ask.
pub(crate) fn mark(keyspace: KeyspaceId) -> u64 {
    u64::from(keyspace.0) << TAG_SHIFT
}

/// Whether a client of this keyspace has asked.
pub(crate) fn is_of(tag: Tag, keyspace: KeyspaceId) -> bool {
    tag.0 & TAG_MASK == mark(keyspace)
}

/// A tag without its keyspace.
pub(crate) fn unmarked(tag: Tag) -> u64 {
    tag.0 & !TAG_MASK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_engines_come_back() {
        for text in ["any", "none", "hermes", "meerkat,hermes"] {
            assert_eq!(text.parse::<Beside>().unwrap().to_string(), text);
        }
        assert!("tapir".parse::<Beside>().unwrap_err().contains("alone"));
        assert!("hermes,hermes,meerkat".parse::<Beside>().unwrap_err().contains("at most 2"));
    }

    #[test]
    fn a_tag_names_its_client() {
        let client = ClientId { keyspace: KeyspaceId(2), index: 7 };
        let tag = client.tag(9);
        assert!(is_of(tag, KeyspaceId(2)) && !is_of(tag, KeyspaceId(0)));
        assert_eq!(unmarked(tag), 7 << 32 | 9);
    }
}
