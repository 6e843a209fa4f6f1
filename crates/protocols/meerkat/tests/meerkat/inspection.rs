//! What a test sees of the machines, and what it asserts of all of them.

use quorate_machine::{Record as _, Table};
use quorate_meerkat::{Config, Meta, Pending, RecordKey, TxnRecord, Vote};
use quorate_types::{Incarnation, LaneId, NodeId, Timestamp, WriterId};

use crate::entries::{text, value_text};
use crate::support::Cluster;

impl Cluster {
    pub(crate) fn meta(&mut self, node: u16, key: &str) -> Meta {
        let table = self.machine(node).table_mut();
        table.find(key.as_bytes()).map_or(Meta::default(), |handle| table.lock(handle).meta())
    }

    /// Who is registered at a key.
    pub(crate) fn pending(&mut self, node: u16, key: &str) -> Pending {
        let table = self.machine(node).table_mut();
        let handle = table.find(key.as_bytes());
        handle.map_or(Pending::default(), |handle| table.lock(handle).locked_state().clone())
    }

    /// What a key holds at a node.
    pub(crate) fn stored(&mut self, node: u16, key: &str) -> Option<String> {
        let table = self.machine(node).table_mut();
        let handle = table.find(key.as_bytes())?;
        let record = table.lock(handle);
        Some(value_text(record.content()?, record.large()))
    }

    /// Whether there is a record, be it a tombstone.
    pub(crate) fn has_record(&mut self, node: u16, key: &str) -> bool {
        self.machine(node).table_mut().find(key.as_bytes()).is_some()
    }

    /// The record of a transaction.
    pub(crate) fn record(&self, node: u16, id: Timestamp) -> Option<&TxnRecord> {
        self.hosts[&node].machine().records().get(&RecordKey::new(id, 0))
    }

    pub(crate) fn vote(&self, node: u16, id: Timestamp) -> Option<Vote> {
        self.record(node, id).and_then(|record| record.vote)
    }

    pub(crate) fn decision(&self, node: u16, id: Timestamp) -> Option<bool> {
        self.record(node, id).and_then(|record| record.decision)
    }

    /// A count of the machine, by its name.
    pub(crate) fn counter(&mut self, node: u16, name: &str) -> u64 {
        let counters = self.machine(node).counters();
        counters.iter().find(|(known, _)| *known == name).expect("a counter of this name").1
    }

    /// What the machine shows now, by its name.
    pub(crate) fn gauge(&mut self, node: u16, name: &str) -> u64 {
        let gauges = self.machine(node).gauges();
        gauges.iter().find(|(known, _)| *known == name).expect("a gauge of this name").1
    }

    /// The id of a node's latest attempt that it has told anybody of.
    #[track_caller]
    pub(crate) fn last_attempt(&self, node: u16) -> Timestamp {
        let number = self.view.member(NodeId(node)).expect("a member").number;
        let own = self.subject.names.iter().filter(|id| id.writer == WriterId::new(number, 0));
        *own.max().expect("it has tried something")
    }

    /// Whether a node has a replica of a key.
    pub(crate) fn holds(&self, node: u16, key: &str) -> bool {
        let mut config = Config::new(NodeId(node), Incarnation(0), LaneId(0), 1, 0);
        (self.subject.configure)(&mut config);
        let slot = usize::from(quorate_types::hash_slot(key.as_bytes()));
        let replicas = config.partitions[slot * config.partitions.len() / 16384];
        replicas.is_none_or(|replicas| replicas.contains(NodeId(node)))
    }

    /// Nodes that are up and live in the view.
    pub(crate) fn live(&self) -> Vec<u16> {
        let nodes = self.view.live().into_iter().map(|node| node.0);
        nodes.filter(|node| self.hosts[node].up).collect()
    }

    /// Asserts that all live replicas hold the same value at the same version.
    #[track_caller]
    pub(crate) fn assert_everywhere(&mut self, key: &str, value: Option<&str>) {
        let live = self.live();
        let version = self.meta(live[0], key).wts;
        for node in live {
            assert_eq!(self.stored(node, key).as_deref(), value, "{key} at {node}");
            assert_eq!(self.meta(node, key).wts, version, "{key} at {node}");
        }
    }

    /// Asserts that nothing is left of any transaction.
    #[track_caller]
    pub(crate) fn assert_quiet(&mut self) {
        // Guests are no members.
        for (node, host) in self.hosts.iter().filter(|(_, host)| host.up) {
            let machine = host.machine();
            assert_eq!(machine.pending(), 0, "open ops of node {node}");
            let attempts = machine.gauges().into_iter().find(|(name, _)| *name == "attempts");
            assert_eq!(attempts, Some(("attempts", 0)), "attempts of node {node}");
        }
        for node in self.live() {
            let machine = self.machine(node);
            assert!(machine.records().is_empty(), "node {node}: {:?}", machine.records());
            for tracker in machine.trackers() {
                assert_eq!(tracker.in_progress(), 0, "attempts at calls that are over, at {node}");
            }
            let table = machine.table_mut();
            let mut keys = Vec::new();
            table.scan(0, usize::MAX, &mut |handle| keys.push(handle));
            for handle in keys {
                let record = table.lock(handle);
                let (key, locked_state) = (text(record.key()), record.locked_state().clone());
                assert!(locked_state.is_empty(), "{key} at node {node}: {locked_state:?}");
            }
        }
    }
}
