//! The choices of a seed before a run begins.

use quorate_engine::OptionValue;
use quorate_hermes::{Options as HermesOptions, Reads};
use quorate_machine::Rng;
use quorate_meerkat::{Isolation, Options as MeerkatOptions};
use quorate_node::{EngineConfig, KeyspaceConfig, NodeAddress, NodeConfig};
use quorate_types::{Duration, KeyspaceId, NodeId, NodeSet, limits};

use crate::links::LinkTable;
use crate::network::Network;
use crate::options::Engine;
use crate::shapes::Shape;
use crate::world::MS;
use crate::{Faults, Options};

/// Bytes that may wait for a peer on links with a bandwidth: far more than one chunk of a join.
pub(crate) const BUFFER_BYTES: usize = 4 * limits::CHUNK_BYTES;

/// Everything that is fixed before a run, except for the keyspaces beside the first one.
pub(crate) struct Setup {
    /// The choices in words.
    pub(crate) text: String,
    pub(crate) faults: Faults,
    pub(crate) nodes: Vec<NodeConfig>,
    pub(crate) network: Network,
    /// Clients that coordinate transactions of the first keyspace themselves, in processes of their
    /// own.
    pub(crate) guests: u16,
}

impl Setup {
    /// Draws the options that are left open.
    pub(crate) fn draw(seed: u64, options: &Options, shape: &Shape, rng: &mut Rng) -> Self {
        let mut faults = options.faults.swarm(seed, rng);
        if options.disks {
            // What an operator asks for while all power goes is not simulated.
            faults.members = false;
        } else {
            faults = faults.without_disks();
        }
        match options.engine {
            Engine::Hermes => Self::hermes(options, shape, faults, rng),
            Engine::Meerkat => Self::meerkat(options, shape, faults, rng),
            Engine::Zeus => Self::zeus(options, shape, faults, rng),
            Engine::Local => Self::local(options, faults, rng),
            #[cfg(feature = "baselines")]
            Engine::KuaFu => Self::rival(EngineConfig::kuafu(), options, faults, rng),
            #[cfg(feature = "baselines")]
            Engine::Tapir => Self::rival(EngineConfig::tapir(), options, faults, rng),
            #[cfg(feature = "baselines")]
            Engine::MeerkatPb => Self::rival(EngineConfig::meerkat_pb(), options, faults, rng),
            #[cfg(feature = "baselines")]
            Engine::Fasst => Self::rival(EngineConfig::fasst(), options, faults, rng),
            #[cfg(not(feature = "baselines"))]
            rival => unreachable!("the options were checked, and {rival} is not here"),
        }
    }

    fn hermes(options: &Options, shape: &Shape, faults: Faults, rng: &mut Rng) -> Self {
        let drawn = if rng.chance(1, 4) { 5 } else { 3 };
        let nodes = options.nodes.or(shape.nodes).unwrap_or(drawn);
        let lanes = options.lanes.unwrap_or_else(|| 1 + rng.below(2) as u16);
        let reads = if rng.chance(1, 5) { Reads::Quorum } else { Reads::Leased };
        let ack_broadcast = rng.chance(1, 4);
        let network = draw_network(faults, nodes, lanes, rng);
        let mut text = format!(
            "{nodes} nodes, {lanes} lanes, reads {reads:?}, ack_broadcast {ack_broadcast}, {faults}"
        );
        let collect_every = shape.collect_every;
        let engine = EngineConfig::Hermes(HermesOptions { reads, ack_broadcast, collect_every });
        let group = shape.draw_group(nodes, rng);
        if let Some(group) = group {
            text.push_str(&format!(", keyspace on {}", show_groups(&[Some(group)])));
        }
        let mut nodes = configs(nodes, lanes, engine, rng);
        nodes.iter_mut().for_each(|config| config.keyspaces[0].replicas = group);
        draw_patience(&mut nodes, rng);
        Self { text, faults, nodes, network, guests: 0 }
    }

    /// Clusters in which every node has every key, and larger ones. Groups that a minority of the nodes
    /// could be all of are left out: they promise less.
    fn zeus(options: &Options, shape: &Shape, faults: Faults, rng: &mut Rng) -> Self {
        let pick = |of: &[u64], rng: &mut Rng| of[rng.below(of.len() as u64) as usize];
        let drawn = pick(&[3, 3, 3, 4, 5, 5, 6, 7], rng) as u16;
        let nodes = options.nodes.or(shape.nodes).unwrap_or(drawn);
        let loss_timeout = pick(&[5, 20, 20, 50], rng);
        let replicas = if rng.chance(1, 4) { u64::from(nodes) } else { 0 };
        let drawn = 1 + rng.below(3) as u16;
        let lanes = options.lanes.unwrap_or(drawn);
        // One read from outside its group is enough for a copy of a key, or it takes many.
        let extra_after = if loss_timeout < 50 { 1 } else { 16 };
        let network = draw_network(faults, nodes, lanes, rng);
        let text = format!(
            "{nodes} nodes, {lanes} lanes, replicas {replicas}, extra readers after {extra_after} reads, \
             messages count as lost after {loss_timeout} ms, {faults}"
        );
        let mut engine = EngineConfig::zeus();
        if let EngineConfig::Zeus(options) = &mut engine {
            options.extra_after = extra_after;
            (options.replicas, options.collect_every) = (replicas, shape.collect_every);
        }
        let mut nodes = configs(nodes, lanes, engine, rng);
        draw_patience(&mut nodes, rng);
        for config in &mut nodes {
            config.message_loss_timeout = Duration::from_millis(loss_timeout);
        }
        Self { text, faults, nodes, network, guests: 0 }
    }

    /// One node, with more lanes than elsewhere: what crosses them is all that can go wrong.
    fn local(options: &Options, faults: Faults, rng: &mut Rng) -> Self {
        let drawn = 1 + rng.below(4) as u16;
        let lanes = options.lanes.unwrap_or(drawn);
        let network = draw_network(faults, 1, lanes, rng);
        let ordered = rng.chance(1, 2);
        let order = if ordered { ", keys in order" } else { "" };
        let text = format!("1 node, {lanes} lanes{order}, {faults}");
        let mut engine = EngineConfig::local();
        engine.set("ordered", OptionValue::Flag(ordered)).expect("the engine has the option");
        let nodes = configs(1, lanes, engine, rng);
        Self { text, faults, nodes, network, guests: 0 }
    }

    /// The rivals survive no loss and have no recovery: only delays and clocks are left to disturb.
    #[cfg(feature = "baselines")]
    fn rival(engine: EngineConfig, options: &Options, faults: Faults, rng: &mut Rng) -> Self {
        let drawn = if rng.chance(1, 3) && options.engine != Engine::Fasst { 5 } else { 3 };
        let nodes = options.nodes.unwrap_or(drawn);
        let drawn = 1 + rng.below(3) as u16;
        let lanes = options.lanes.unwrap_or(drawn);
        let network =
            Network { straggling: 0, ordered: true, ..draw_network(faults, nodes, lanes, rng) };
        let text = format!("{nodes} nodes, {lanes} lanes, {faults}");
        let nodes = configs(nodes, lanes, engine, rng);
        Self { text, faults, nodes, network, guests: 0 }
    }

    fn meerkat(options: &Options, shape: &Shape, faults: Faults, rng: &mut Rng) -> Self {
        let pick = |of: &[u64], rng: &mut Rng| of[rng.below(of.len() as u64) as usize];
        let drawn = pick(&[3, 3, 3, 3, 5, 5, 5, 7], rng) as u16;
        let nodes = options.nodes.or(shape.nodes).unwrap_or(drawn);
        let drawn = 1 + rng.below(3) as u16;
        let lanes = options.lanes.unwrap_or(drawn);
        let drawn = if rng.chance(1, 2) { Isolation::Strict } else { Isolation::Serializable };
        let isolation = options.isolation.unwrap_or(drawn);
        let skew = pick(&[1, 5, 50, 200], rng);
        let loss_timeout = pick(&[5, 20, 20, 50], rng);
        let partitions = draw_partitions(nodes, rng);
        let drawn = pick(&[0, 0, 1, 2], rng) as u16;
        let guests = options.guests.unwrap_or(drawn);
        let network = draw_network(faults, nodes, lanes, rng);
        let text = format!(
            "{nodes} nodes, {lanes} lanes, {isolation:?}, partitions on {}, {guests} guests, clock \
             skew up to {skew} ms, messages count as lost after {loss_timeout} ms, {faults}",
            show_groups(&partitions)
        );
        let max_clock_skew = Duration::from_millis(skew);
        let engine = EngineConfig::Meerkat(MeerkatOptions { isolation, max_clock_skew });
        let mut nodes = configs(nodes, lanes, engine, rng);
        draw_patience(&mut nodes, rng);
        for config in &mut nodes {
            config.message_loss_timeout = Duration::from_millis(loss_timeout);
            config.keyspaces[0].partitions.clone_from(&partitions);
        }
        Self { text, faults, nodes, network, guests }
    }
}

/// In every other run a stall counts as a crash.
fn draw_patience(nodes: &mut [NodeConfig], rng: &mut Rng) {
    if rng.chance(1, 2) {
        nodes.iter_mut().for_each(|config| config.suspect_after = NodeConfig::LEASE * 2 / 3);
    }
}

/// The replica groups of some partitions: all nodes, or, where there are enough, some of them.
pub(crate) fn draw_partitions(nodes: u16, rng: &mut Rng) -> Vec<Option<NodeSet>> {
    let count = 1 + rng.below(4) as usize;
    if nodes < 4 || rng.chance(1, 2) {
        return vec![None; count];
    }
    let mut draw_group = || {
        // A group that survives no loss is useless in a test of losses.
        let size = if nodes > 5 && rng.chance(1, 3) { 5 } else { 3 };
        let mut group = NodeSet::EMPTY;
        while group.len() < size {
            group.insert(NodeId(1 + rng.below(u64::from(nodes)) as u16));
        }
        group
    };
    (0..count).map(|_| Some(draw_group())).collect()
}

pub(crate) fn show_groups(partitions: &[Option<NodeSet>]) -> String {
    let show = |group: &Option<NodeSet>| match group {
        None => "all".to_owned(),
        Some(group) => {
            let nodes: Vec<String> = group.into_iter().map(|node| node.0.to_string()).collect();
            nodes.join("+")
        }
    };
    partitions.iter().map(show).collect::<Vec<_>>().join(" and ")
}

fn draw_network(faults: Faults, nodes: u16, lanes: u16, rng: &mut Rng) -> Network {
    let pick = |enabled: bool, most: u64, rng: &mut Rng| if enabled { rng.below(most) } else { 0 };
    Network {
        delay: MS / 20,
        jitter: if faults.reordering { 1 + rng.below(5 * MS) } else { 0 },
        loss: pick(faults.loss, 80, rng),
        duplication: pick(faults.duplication, 100, rng),
        straggling: pick(faults.reordering, 20, rng),
        ordered: false,
        pace: if faults.bandwidth { MS << rng.below(5) >> 7 } else { 0 },
        // Runs have less data than machines: a lower bound makes them reach it.
        buffer_bytes: if faults.bandwidth { BUFFER_BYTES } else { limits::PEER_BUFFER_BYTES_MAX },
        calm: false,
        links: LinkTable::new(usize::from(nodes), lanes),
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
    let keyspaces = vec![KeyspaceConfig::new(KeyspaceId(0), "default", engine.clone())];
    let config = |node| {
        let seed = rng.next_u64();
        // Collections here are small; nodes need not agree on which of them are large.
        let packed_bytes_max = if seed.is_multiple_of(3) { limits::PACKED_BYTES_MAX } else { 0 };
        NodeConfig {
            cluster: "sim".into(),
            seed,
            packed_bytes_max,
            ..NodeConfig::new(NodeId(node), lanes, addresses.clone(), keyspaces.clone())
        }
    };
    (1..=nodes).map(config).collect()
}
