//! `quorate dev`: a whole cluster in this process.

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Context, bail};
use quorate_admin::Endpoint;
use quorate_node::{
    Durability, EngineConfig, KeyspaceConfig, LogConfig, NodeAddress, NodeConfig, with_pins,
};
use quorate_resp::{Settings, Share};
use quorate_runtime::{HostedNode, ListenError, NodeDisk, Options};
use quorate_types::{KeyspaceId, NodeId, limits};

use crate::cli::Dev;
use crate::log::{self, say};
use crate::run;

/// The database whose engine is the first of the list unless `--engine` says otherwise: the fastest on
/// single keys. All others have the engine that refuses no command.
const SINGLE_KEYS_DB: u8 = 1;
/// Bytes of a segment of the log: several nodes share a disk, and each lane has two at least.
const DEV_SEGMENT_BYTES: u64 = 8 * 1024 * 1024;
/// Nodes that can lose one.
const SAFE_NODES: u16 = 3;

/// Starts the cluster and runs it until it is stopped.
pub(crate) fn run(options: &Dev) -> anyhow::Result<()> {
    let logs = log::start("warn")?;
    check_ports(options)?;
    check_durability(options)?;
    if let Some(engine) = &options.engine
        && !engine.capabilities().replicated
        && options.nodes > 1
    {
        bail!(
            "engine {} keeps one copy on the only node of a cluster; add --nodes 1, or choose {}",
            engine.name(),
            EngineConfig::names_with(|can| can.replicated)
        );
    }
    let clients = listen_all(options.port, options.nodes, "--port")?;
    let admins = listen_all(options.admin_port, options.nodes, "--admin-port")?;
    // Peers of one process reach each other in memory: the ports are for guests.
    let peers: Vec<Option<TcpListener>> = match options.peer_port {
        Some(port) => {
            listen_all(port, options.nodes, "--peer-port")?.into_iter().map(Some).collect()
        }
        None => (0..options.nodes).map(|_| None).collect(),
    };
    let mut addresses = Vec::new();
    for (index, (client, admin)) in clients.iter().zip(&admins).enumerate() {
        let peer = peers[index].as_ref().map(TcpListener::local_addr).transpose()?;
        addresses.push(NodeAddress {
            node: NodeId(index as u16 + 1),
            peer: peer.map(|address| address.to_string()).unwrap_or_default(),
            client: client.local_addr()?.to_string(),
            admin: admin.local_addr()?.to_string(),
        });
    }
    let token = || match &options.token_file {
        Some(file) => run::token(file),
        None => Err("start quorate dev with --token-file to change its members".to_owned()),
    };
    let seed = quorate_runtime::random_seed();
    let (mut disks, mut endpoints) = (Vec::new(), Vec::new());
    for (address, listener) in addresses.iter().zip(admins) {
        let node = config(options, address.node, addresses.clone(), seed);
        let directory = directory(options, &node);
        disks.push(directory.as_deref().map(|path| NodeDisk::open(path, &node)).transpose()?);
        endpoints.push(Endpoint { listener, names: Vec::new(), token: token(), directory });
    }
    let nodes: Vec<HostedNode> = clients
        .into_iter()
        .zip(peers)
        .zip(&addresses)
        .zip(disks)
        .map(|(((client, peer), address), disk)| HostedNode {
            config: config(options, address.node, addresses.clone(), seed),
            client,
            guests: peer.is_some(),
            peer,
            settings: settings(usize::from(options.nodes)),
            password: options.requirepass.clone(),
            disk,
        })
        .collect();
    if !options.quiet {
        for address in &addresses {
            let peer = match address.peer.as_str() {
                "" => String::new(),
                peer => format!("  peer {peer}"),
            };
            say(&format!(
                "node {}  redis://{}  admin http://{}{peer}",
                address.node, address.client, address.admin
            ));
        }
    }
    if options.nodes < SAFE_NODES {
        tracing::warn!(
            "{}: no node can be lost without stopping or losing data; --nodes {SAFE_NODES} or more \
             can lose one",
            nodes_text(options.nodes)
        );
    }
    let count = nodes_text(options.nodes);
    let port = addresses[0].client.rsplit_once(':').map_or("", |(_, port)| port).to_owned();
    let runtime = Options { fail: run::fail, ..Options::default() };
    run::run(nodes, endpoints, runtime, &logs, |_| {
        let engines = match &options.engine {
            Some(engine) => format!("engine {}", engine.name()),
            None => {
                let (single, transactions) = (EngineConfig::default(), transactions());
                let number = SINGLE_KEYS_DB;
                format!(
                    "engine {}, database {number} engine {}",
                    transactions.name(),
                    single.name()
                )
            }
        };
        say(&format!("ready: {count}, {engines}; try: redis-cli -p {port} set greeting hello"));
    })
}

/// What each of so many front ends of this process begins with.
fn settings(nodes: usize) -> Settings {
    let settings = Settings::default();
    let share = Share::Bytes(quorate_runtime::default_clients_bytes(nodes));
    settings.max_memory_clients.store(share.to_bits(), Relaxed);
    // Nothing but loopback reaches these nodes.
    settings.debug_command.store(1, Relaxed);
    settings
}

/// The first engine of the list that runs every command over any keys.
fn transactions() -> EngineConfig {
    EngineConfig::first_with(|can| can.transactions)
}

fn config(options: &Dev, node: NodeId, nodes: Vec<NodeAddress>, seed: u64) -> NodeConfig {
    let engine = |number: u8| match &options.engine {
        Some(engine) => engine.clone(),
        None if number == SINGLE_KEYS_DB => EngineConfig::default(),
        None => transactions(),
    };
    let keyspaces = (0..limits::KEYSPACES_MAX as u8)
        .map(|number| {
            let name = if number == 0 { "default".to_owned() } else { format!("db{number}") };
            let engine = engine(number);
            let durability = durability(options, &engine);
            KeyspaceConfig { durability, ..KeyspaceConfig::new(KeyspaceId(number), name, engine) }
        })
        .collect();
    NodeConfig {
        cluster: "dev".to_owned(),
        log: LogConfig { segment_bytes: DEV_SEGMENT_BYTES, ..LogConfig::default() },
        seed: seed ^ u64::from(node.0).wrapping_mul(0x9e37_79b9_7f4a_7c15),
        ..NodeConfig::new(node, options.lanes, nodes, with_pins(keyspaces))
    }
}

/// What survives of a database: what was asked for, if its engine can do that.
fn durability(options: &Dev, engine: &EngineConfig) -> Durability {
    let can = options.dir.is_some() && engine.capabilities().durable;
    if can { options.durability } else { Durability::Memory }
}

/// Where a node has its log, if it has one.
fn directory(options: &Dev, node: &NodeConfig) -> Option<PathBuf> {
    let dir = options.dir.as_ref().filter(|_| node.is_durable())?;
    Some(dir.join(format!("node-{}", node.node)))
}

/// Finds databases for which a directory is no use.
fn check_durability(options: &Dev) -> anyhow::Result<()> {
    if options.dir.is_none() || options.durability == Durability::Memory {
        return Ok(());
    }
    match &options.engine {
        Some(engine) => {
            if let Err(unfit) = engine.check_durability(options.durability) {
                bail!("{}; {}, or leave --dir out", unfit.problem, unfit.remedy);
            }
        }
        None if !transactions().capabilities().durable => {
            tracing::warn!(
                "only databases of engine {} are kept in --dir, and so database {SINGLE_KEYS_DB} alone; \
                 the others live in memory, unless --engine chooses that engine for all",
                EngineConfig::names_with(|can| can.durable)
            );
        }
        None => {}
    }
    Ok(())
}

fn nodes_text(count: u16) -> String {
    format!("{count} node{}", if count == 1 { "" } else { "s" })
}

/// Finds what the two ranges of ports have in common, while it can still be told from a port that
/// another process has.
fn check_ports(options: &Dev) -> anyhow::Result<()> {
    let (first, second) =
        (options.port.min(options.admin_port), options.port.max(options.admin_port));
    if first != 0 && second - first < options.nodes {
        bail!(
            "--port {} and --admin-port {} are too close: {} need {} ports from each on; \
             choose ports further apart",
            options.port,
            options.admin_port,
            nodes_text(options.nodes),
            options.nodes
        );
    }
    Ok(())
}

/// Listens on `count` ports from `first` on, or on as many free ones if `first` is 0.
fn listen_all(first: u16, count: u16, flag: &str) -> anyhow::Result<Vec<TcpListener>> {
    if first != 0 && first.checked_add(count - 1).is_none() {
        bail!("{flag} {first} leaves no room for {count} ports; choose a lower one");
    }
    (0..count)
        .map(|offset| {
            let port = if first == 0 { 0 } else { first + offset };
            quorate_runtime::listen(&format!("127.0.0.1:{port}")).map_err(|error| match error {
                ListenError::InUse { port, .. } => anyhow::anyhow!(
                    "port {port} is in use by another process; \
                     stop that one, or choose other ports with {flag}"
                ),
                error => error.into(),
            })
        })
        .collect::<anyhow::Result<_>>()
        .with_context(|| format!("cannot open the {count} ports of {flag}"))
}
