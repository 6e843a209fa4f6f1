//! Whole nodes in one process, in virtual time: what the tests of nodes share.

pub(crate) mod script;

use std::sync::Arc;

use quorate_commands::{Op, OwnedCall};
use quorate_node::{Host, KeyspaceConfig, MemoryCluster, NodeAddress, NodeConfig, Shared};
use quorate_types::{Duration, Instant, KeyspaceId, NodeId, Now, Tag, UnixNanos};

/// Time after which a test gives up.
const PATIENCE: Duration = Duration::from_secs(20);

/// What the clocks of all nodes show.
pub(crate) fn at(time: Duration) -> Now {
    let nanos = time.as_nanos() as u64;
    Now { monotonic: Instant(nanos), unix: UnixNanos((1 << 60) + nanos) }
}

/// A node of a cluster that nodes 1 to `count` found.
pub(crate) fn config(
    node: NodeId,
    count: u16,
    lanes: u16,
    keyspaces: Vec<KeyspaceConfig>,
) -> NodeConfig {
    let addresses = (1..=count).map(|node| NodeAddress::in_memory(NodeId(node)));
    NodeConfig::new(node, lanes, addresses.collect(), keyspaces)
}

/// A client's command.
pub(crate) fn command<W: AsRef<[u8]>>(words: &[W]) -> Op {
    Op::Call(OwnedCall::new(words.iter().map(AsRef::as_ref)).expect("a known command"))
}

/// A client's place: which of the nodes, and which of its lanes.
pub(crate) type Place = (usize, usize);

/// Nodes whose time passes when a test says so.
pub(crate) struct Cluster {
    pub(crate) time: Duration,
    pub(crate) nodes: Vec<Arc<Shared>>,
    /// The lane of each number of every node.
    pub(crate) lanes: Vec<MemoryCluster>,
    /// By how much the wall clocks that the other lanes read are behind those that lane 0 reads.
    behind: Duration,
    /// Requests so far.
    pub(crate) asked: u64,
}

impl Cluster {
    /// Nodes that have found a view.
    pub(crate) fn new(configs: impl IntoIterator<Item = NodeConfig>) -> Self {
        Self::founded_behind(configs, Duration::ZERO)
    }

    /// A cluster in which the wall clocks of all nodes are set back after lane 0 has read them.
    pub(crate) fn founded_behind(
        configs: impl IntoIterator<Item = NodeConfig>,
        behind: Duration,
    ) -> Self {
        let mut cluster = Self::started(configs);
        cluster.behind = behind;
        cluster.find_view();
        cluster
    }

    /// Nodes that come back from logs that are empty.
    pub(crate) fn restored(configs: impl IntoIterator<Item = NodeConfig>) -> Self {
        let mut cluster = Self::started(configs);
        let hosts = cluster.lanes.iter_mut().flat_map(|lane| &mut lane.hosts);
        hosts.for_each(|host| host.lane.restored());
        cluster.find_view();
        cluster
    }

    fn started(configs: impl IntoIterator<Item = NodeConfig>) -> Self {
        let nodes: Vec<_> = configs.into_iter().map(Shared::new).collect();
        let (time, behind) = (Duration::from_secs(1), Duration::ZERO);
        let lanes = MemoryCluster::cluster(&nodes, at(time));
        Self { time, nodes, lanes, behind, asked: 0 }
    }

    fn find_view(&mut self) {
        while !self.serves() {
            self.turn(Duration::from_millis(1));
            assert!(self.time < PATIENCE, "the nodes find no view");
        }
    }

    fn serves(&self) -> bool {
        let mut lanes = self.lanes.iter().flat_map(|lane| &lane.hosts);
        self.nodes.iter().all(|node| node.is_active())
            && lanes.all(|host| host.lane.serving(at(self.time)).is_ok())
    }

    /// Keys with a value that each node holds, be they expired or not.
    pub(crate) fn keys(&self, keyspace: KeyspaceId) -> Vec<u64> {
        self.nodes.iter().map(|node| node.store_facts(keyspace).keys).collect()
    }

    /// Time passes, and every lane of every node takes a turn.
    pub(crate) fn turn(&mut self, time: Duration) {
        self.time += time;
        (0..self.lanes.len()).for_each(|lane| self.turn_of(lane));
    }

    /// A lane of every node takes a turn.
    pub(crate) fn turn_of(&mut self, lane: usize) {
        let mut now = at(self.time);
        if lane > 0 {
            now.unix.0 -= self.behind.as_nanos() as u64;
        }
        self.lanes[lane].begin_turn(now);
        self.lanes[lane].end_turn(now);
    }

    /// Time passes in turns of two milliseconds.
    pub(crate) fn pass(&mut self, time: Duration) {
        let until = self.time + time;
        while self.time < until {
            self.turn(Duration::from_millis(2));
        }
    }

    pub(crate) fn host(&mut self, (node, lane): Place) -> &mut Host {
        &mut self.lanes[lane].hosts[node]
    }

    /// A tag that names one request.
    pub(crate) fn tag(&mut self) -> Tag {
        self.asked += 1;
        Tag(self.asked)
    }

    /// A client of its own asks.
    pub(crate) fn submit(&mut self, place: Place, keyspace: KeyspaceId, op: Op) -> Tag {
        let (now, tag) = (at(self.time), self.tag());
        let host = self.host(place);
        host.lane.submit(now, keyspace, tag, tag.0, op, &mut host.out);
        tag
    }
}
