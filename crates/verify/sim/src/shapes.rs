//! The shapes of a cluster and its data, apart from a few small keys on all of three nodes.

use std::fmt;

use quorate_machine::Rng;
use quorate_types::{Duration, NodeId, NodeSet};

use crate::names::names;
use crate::{Engine, Options};

names! {
    /// The shapes that a seed may choose for a run.
    Shapes, each called "shape":
    /// Thousands of records are there before anything breaks, and some are large.
    size,
    /// Clients make and delete ever new keys.
    churn,
    /// The keyspace is on some of the nodes.
    groups,
    /// Keys expire.
    expiry,
    /// There is one node.
    alone,
    /// Clients use hashes, lists and sets, too.
    types,
    /// Clients publish and listen.
    channels,
}

impl Shapes {
    /// The shapes that a sweep draws from by default.
    pub const USUAL: Self = Self::ALL;
}

/// The shape that a seed chose.
#[derive(Clone)]
pub(crate) struct Shape {
    /// Records that are there from the start.
    pub(crate) records: u32,
    /// How many of them are large.
    pub(crate) large: u32,
    pub(crate) churn: bool,
    /// Whether clients set keys that expire.
    pub(crate) expiry: bool,
    /// Whether clients use hashes, lists and sets, too.
    pub(crate) types: bool,
    /// Whether clients publish and listen.
    pub(crate) channels: bool,
    /// How many nodes, if the other choices determine it.
    pub(crate) nodes: Option<u16>,
    /// How many of the nodes have the keyspace, if not all.
    replicas: Option<usize>,
    /// How often deleted keys are forgotten.
    pub(crate) collect_every: Duration,
}

/// In every other run deleted keys are forgotten soon, also while some node is away.
pub(crate) const COLLECT_SOON: Duration = Duration::from_millis(150);

impl Default for Shape {
    fn default() -> Self {
        Self {
            records: 0,
            large: 0,
            churn: false,
            expiry: false,
            types: false,
            channels: false,
            nodes: None,
            replicas: None,
            collect_every: quorate_hermes::Options::COLLECT_EVERY,
        }
    }
}

impl Shape {
    /// Draws it from a stream of its own, so that a seed has the same faults with and without it.
    pub(crate) fn draw(seed: u64, options: &Options) -> Self {
        let mut rng = Rng::new(seed ^ u64::from_le_bytes(*b"whatform"));
        // Shapes that cost much time or show little are rarer.
        let left_out = Shapes { size: rng.chance(1, 2), alone: rng.chance(3, 4), ..Shapes::NONE };
        let elsewhere = Shapes { types: true, channels: true, ..Shapes::NONE };
        let drawn = options.shapes.draw(elsewhere, &mut rng, (1, 5)).without(left_out);
        let mut apart = Rng::new(seed ^ u64::from_le_bytes(*b"hastypes"));
        let types = crate::names::draw(options.shapes.types, &mut apart, (1, 2));
        let channels = crate::names::draw(options.shapes.channels, &mut apart, (1, 2));
        let [records, large, replicas] = [&[300, 1_000, 3_000], &[0, 8, 24], &[1, 3, 3]]
            .map(|of: &[u32; 3]| of[rng.below(3) as usize]);
        if options.engine.is_rival() {
            return Self::default();
        }
        let of_size = |drawn_count| if drawn.size { drawn_count } else { 0 };
        // Partitions of meerkat have groups of their own.
        let groups = drawn.groups && options.engine == Engine::Hermes;
        let forgets = matches!(options.engine, Engine::Hermes | Engine::Zeus);
        let soon = rng.chance(1, 2) && forgets;
        Self {
            records: options.records.unwrap_or(of_size(records)),
            large: options.large.unwrap_or(of_size(large)),
            churn: drawn.churn,
            expiry: drawn.expiry,
            types,
            channels,
            nodes: match (drawn.alone, groups) {
                (true, _) => Some(1),
                (false, true) => Some(5),
                (false, false) => None,
            },
            replicas: groups.then_some(replicas as usize),
            collect_every: if soon { COLLECT_SOON } else { quorate_hermes::Options::COLLECT_EVERY },
        }
    }

    /// The nodes that have the keyspace, if not all of them.
    pub(crate) fn draw_group(&self, nodes: u16, rng: &mut Rng) -> Option<NodeSet> {
        let count = self.replicas.filter(|count| *count < usize::from(nodes))?;
        let mut group = NodeSet::EMPTY;
        while group.len() < count {
            group.insert(NodeId(1 + rng.below(u64::from(nodes)) as u16));
        }
        Some(group)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.records.max(self.large) > 0 {
            write!(f, ", {} records, {} of them large", self.records, self.large)?;
        }
        f.write_str(if self.churn { ", churn" } else { "" })?;
        f.write_str(if self.expiry { ", expiry" } else { "" })?;
        f.write_str(if self.types { ", types" } else { "" })?;
        f.write_str(if self.channels { ", channels" } else { "" })?;
        f.write_str(if self.collect_every == COLLECT_SOON { ", collects soon" } else { "" })
    }
}
