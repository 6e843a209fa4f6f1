//! What a seed chooses before a run begins.

use quorate_machine::Rng;
use quorate_node::{EngineConfig, Isolation, KeyspaceConfig, NodeAddress, NodeConfig, ReadMode};
use quorate_types::{Duration, KeyspaceId, NodeId, NodeSet};

use crate::options::Engine;
use crate::world::{MS, Network};
use crate::{Faults, Options};

/// Everything that is fixed before a run.
pub(crate) struct Setup {
    /// In words.
    pub(crate) text: String,
    pub(crate) faults: Faults,
    pub(crate) engine: EngineConfig,
    pub(crate) nodes: Vec<NodeConfig>,
    pub(crate) network: Network,
}

impl Setup {
    /// Draws what the options leave open.
    pub(crate) fn draw(options: &Options, rng: &mut Rng) -> Self {
        let faults = options.faults.swarm(rng);
        match options.engine {
            Engine::Hermes => Self::hermes(options, faults, rng),
            Engine::Meerkat => Self::meerkat(options, faults, rng),
        }
    }

    fn hermes(options: &Options, faults: Faults, rng: &mut Rng) -> Self {
        let nodes = options.nodes.unwrap_or_else(|| if rng.chance(1, 4) { 5 } else { 3 });
        let lanes = options.lanes.unwrap_or_else(|| 1 + rng.below(2) as u16);
        let reads = if rng.chance(1, 5) { ReadMode::Quorum } else { ReadMode::Leased };
        let ack_broadcast = rng.chance(1, 4);
        let network = draw_network(faults, nodes, rng);
        let text = format!(
            "{nodes} nodes, {lanes} lanes, reads {reads:?}, ack_broadcast {ack_broadcast}, {faults}"
        );
        let engine = EngineConfig::Hermes { reads, ack_broadcast };
        let nodes = configs(nodes, lanes, engine.clone(), rng);
        Self { text, faults, engine, nodes, network }
    }

    fn meerkat(options: &Options, faults: Faults, rng: &mut Rng) -> Self {
        let pick = |of: &[u64], rng: &mut Rng| of[rng.below(of.len() as u64) as usize];
        let drawn = pick(&[3, 3, 3, 3, 5, 5, 5, 7], rng) as u16;
        let nodes = options.nodes.unwrap_or(drawn);
        let drawn = 1 + rng.below(3) as u16;
        let lanes = options.lanes.unwrap_or(drawn);
        let drawn = if rng.chance(1, 2) { Isolation::Strict } else { Isolation::Serializable };
        let isolation = options.isolation.unwrap_or(drawn);
        let skew = pick(&[1, 5, 50, 200], rng);
        let loss_timeout = pick(&[5, 20, 20, 50], rng);
        let partitions = pick(&[1, 1, 2, 3], rng) as usize;
        let network = draw_network(faults, nodes, rng);
        let text = format!(
            "{nodes} nodes, {lanes} lanes, {isolation:?}, {partitions} partitions, clock skew up \
             to {skew} ms, messages count as lost after {loss_timeout} ms, {faults}"
        );
        let engine = EngineConfig::Meerkat {
            isolation,
            max_clock_skew: Duration::from_millis(skew),
            partitions: vec![None; partitions],
        };
        let mut nodes = configs(nodes, lanes, engine.clone(), rng);
        for config in &mut nodes {
            config.message_loss_timeout = Duration::from_millis(loss_timeout);
        }
        Self { text, faults, engine, nodes, network }
    }
}

fn draw_network(faults: Faults, nodes: u16, rng: &mut Rng) -> Network {
    let pick = |enabled: bool, most: u64, rng: &mut Rng| if enabled { rng.below(most) } else { 0 };
    Network {
        delay: MS / 20,
        jitter: if faults.reordering { 1 + rng.below(5 * MS) } else { 0 },
        loss: pick(faults.loss, 80, rng),
        duplication: pick(faults.duplication, 100, rng),
        straggling: pick(faults.reordering, 20, rng),
        cut: vec![NodeSet::EMPTY; usize::from(nodes)],
    }
}

/// A cluster of `nodes` nodes with one keyspace.
pub(crate) fn configs(
    nodes: u16,
    lanes: u16,
    engine: EngineConfig,
    rng: &mut Rng,
) -> Vec<NodeConfig> {
    let addresses: Vec<NodeAddress> = (1..=nodes)
        .map(|node| NodeAddress {
            node: NodeId(node),
            peer: format!("node{node}:7400"),
            client: format!("node{node}:6379"),
            admin: format!("node{node}:9400"),
        })
        .collect();
    (1..=nodes)
        .map(|node| NodeConfig {
            node: NodeId(node),
            cluster: "sim".into(),
            lanes,
            nodes: addresses.clone(),
            lease: NodeConfig::LEASE,
            clock_drift_ppm: NodeConfig::CLOCK_DRIFT_PPM,
            message_loss_timeout: NodeConfig::MESSAGE_LOSS_TIMEOUT,
            op_timeout: NodeConfig::OP_TIMEOUT,
            keyspaces: vec![KeyspaceConfig {
                id: KeyspaceId(0),
                name: "default".into(),
                replicas: None,
                engine: engine.clone(),
            }],
            seed: rng.next_u64(),
        })
        .collect()
}
