//! Nodes of a cluster in this process, each on threads of its own, with sockets between them.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use quorate_node::{EngineConfig, KeyspaceConfig, NodeAddress, NodeConfig};
use quorate_runtime::{HostedNode, NodeHandle, Options, Runtime};
use quorate_types::{KeyspaceId, NodeId};

/// Longest that anything may take before a test gives up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// The cluster's name.
pub(crate) const NAME: &str = "guests";

/// Running nodes, stopped with this value.
pub(crate) struct Cluster {
    addresses: Vec<NodeAddress>,
    nodes: Vec<Option<Runtime>>,
    lanes: u16,
    guests: bool,
}

impl Cluster {
    /// Three nodes that take guests.
    pub(crate) fn start(lanes: u16) -> Self {
        Self::with(lanes, true, false)
    }

    /// The same in one process, as `quorate dev` runs them.
    pub(crate) fn start_together(lanes: u16) -> Self {
        Self::with(lanes, true, true)
    }

    /// Three nodes with database 0 on meerkat and database 1 on hermes.
    pub(crate) fn with(lanes: u16, guests: bool, together: bool) -> Self {
        let ports: Vec<TcpListener> =
            (0..6).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port is free")).collect();
        let address = |index: usize| ports[index].local_addr().expect("it listens").to_string();
        let addresses: Vec<NodeAddress> = (0..3)
            .map(|index| NodeAddress {
                node: NodeId(index as u16 + 1),
                peer: address(2 * index),
                client: address(2 * index + 1),
                admin: String::new(),
            })
            .collect();
        let mut cluster = Self { addresses, nodes: Vec::new(), lanes, guests };
        let mut ports = ports.into_iter();
        let mut hosted = (0..3).map(|index| {
            let mut next = || ports.next().expect("two for each node");
            cluster.hosted(index, next(), next())
        });
        let nodes: Vec<Runtime> = if together {
            vec![start(hosted.collect())]
        } else {
            hosted.by_ref().map(|node| start(vec![node])).collect()
        };
        cluster.nodes = nodes.into_iter().map(Some).collect();
        cluster.wait_until_serving();
        cluster
    }

    fn hosted(&self, index: usize, peer: TcpListener, client: TcpListener) -> HostedNode {
        let keyspace =
            |number, engine| KeyspaceConfig::new(KeyspaceId(number), format!("db{number}"), engine);
        let (node, addresses) = (self.addresses[index].node, self.addresses.clone());
        let keyspaces =
            vec![keyspace(0, EngineConfig::meerkat()), keyspace(1, EngineConfig::hermes())];
        let config = NodeConfig {
            cluster: NAME.to_owned(),
            // Tests share their processors with others; lapsed leases are not their subject.
            lease: Duration::from_millis(600),
            op_timeout: Duration::from_secs(5),
            seed: quorate_runtime::random_seed(),
            ..NodeConfig::new(node, self.lanes, addresses, keyspaces)
        };
        HostedNode {
            config,
            client,
            peer: Some(peer),
            guests: self.guests,
            settings: quorate_resp::Settings::default(),
            password: None,
            disk: None,
        }
    }

    /// Stops a node for good.
    pub(crate) fn stop(&mut self, index: usize) {
        let node = self.nodes[index].take().expect("it runs");
        node.handle().stop();
        node.join();
    }

    /// Starts a node that was stopped, and waits until it has caught up.
    pub(crate) fn restart(&mut self, index: usize) {
        let listen = |address: &str| quorate_runtime::listen(address).expect("the port is free");
        let (peer, client) =
            (listen(&self.addresses[index].peer), listen(&self.addresses[index].client));
        let node = self.hosted(index, peer, client);
        self.nodes[index] = Some(start(vec![node]));
        self.wait_until_serving();
    }

    fn wait_until_serving(&self) {
        wait_until("the nodes serve", || self.running().all(|node| node.not_serving().is_none()));
    }

    fn running(&self) -> impl Iterator<Item = &NodeHandle> {
        self.nodes.iter().flatten().flat_map(|process| process.handle().nodes())
    }

    /// The peer address of a node.
    pub(crate) fn peer(&self, index: usize) -> &str {
        &self.addresses[index].peer
    }

    /// Peer addresses.
    pub(crate) fn peers(&self) -> Vec<String> {
        self.addresses.iter().map(|node| node.peer.clone()).collect()
    }

    /// Addresses for ordinary clients.
    pub(crate) fn clients(&self) -> Vec<String> {
        self.addresses.iter().map(|node| node.client.clone()).collect()
    }

    /// The sum of a gauge over all lanes of all nodes.
    pub(crate) fn gauge(&self, name: &str) -> u64 {
        let lanes = self.running().flat_map(|node| node.facts().lanes);
        lanes
            .flat_map(|lane| lane.engines)
            .flat_map(|engine| engine.gauges)
            .filter(|(known, _)| *known == name)
            .map(|(_, value)| value)
            .sum()
    }

    /// Connections of guests, over all nodes.
    pub(crate) fn guests(&self) -> u64 {
        let io = self.running().flat_map(|node| node.facts().io);
        io.map(|facts| facts.guests).sum()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node in self.nodes.iter().flatten() {
            node.handle().stop();
        }
    }
}

fn start(nodes: Vec<HostedNode>) -> Runtime {
    quorate_runtime::start(nodes, Options::default()).expect("the threads start")
}

/// Waits until `holds` is true.
pub(crate) fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
