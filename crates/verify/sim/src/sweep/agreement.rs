//! What nodes hold at rest, and whether replicas agree on it.

use std::collections::BTreeMap;

use quorate_types::{NodeId, NodeSet};

use super::Simulation;
use crate::keyspaces::Keyspace;
use crate::process::{Entry, Node, only_in};

impl Simulation<'_> {
    /// The difference between two replicas, if any two differ, or unfinished work.
    pub(super) fn disagreement(&self) -> Option<String> {
        let differs =
            self.world.keyspaces.iter().find_map(|keyspace| self.disagreement_of(keyspace));
        differs.or_else(|| self.world.undecided())
    }

    /// The difference between two replicas of a keyspace, if any two differ, or between a node's
    /// accounting and its records.
    fn disagreement_of(&self, keyspace: &Keyspace) -> Option<String> {
        if keyspace.spreads() {
            return self.disagreement_of_spread(keyspace);
        }
        let nodes = self.world.nodes.iter();
        let stores: Vec<Vec<Vec<Entry>>> =
            nodes.map(|node| keyspace.by_partition(node.contents(keyspace.id))).collect();
        let empty = Vec::new();
        for (partition, group) in keyspace.groups.iter().enumerate() {
            let first = self.first_of(*group);
            let expected = &stores[first][partition];
            for (index, node) in self.world.nodes.iter().enumerate() {
                let held = &stores[index][partition];
                let wanted = if group.contains(node.id) { expected } else { &empty };
                if held != wanted {
                    return Some(format!(
                        "replicas disagree on partition {partition} of keyspace {}: {:?} should \
                         hold {:?}, and should not hold {:?}",
                        keyspace.id.0,
                        node.id,
                        only_in(wanted, held),
                        only_in(held, wanted)
                    ));
                }
            }
        }
        self.world.nodes.iter().find_map(|node| node.misaccount(keyspace.id))
    }

    /// As [`Self::disagreement_of`], where each key is at some of the nodes: those that must have it
    /// have the same, and so do its owner and those that read it often; nobody else has it.
    fn disagreement_of_spread(&self, keyspace: &Keyspace) -> Option<String> {
        let mut keys: BTreeMap<String, Vec<(NodeId, bool, Entry)>> = BTreeMap::new();
        for node in &self.world.nodes {
            for entry in node.contents(keyspace.id) {
                let holds = self.holds(node, keyspace, &entry.0);
                keys.entry(entry.0.clone()).or_default().push((node.id, holds, entry));
            }
        }
        let wrong = keys.into_iter().find(|(key, copies)| {
            let must =
                self.world.nodes.iter().filter(|node| self.holds(node, keyspace, key)).count();
            let has = copies.iter().filter(|(_, holds, _)| *holds).count();
            let others = copies.len() - has;
            let is_same = copies.iter().all(|(_, _, entry)| *entry == copies[0].2);
            !is_same || has != must || others > keyspace.other_copies_max()
        });
        if let Some((key, copies)) = wrong {
            return Some(format!("replicas disagree on {key}: {copies:?}"));
        }
        self.world.nodes.iter().find_map(|node| node.misaccount(keyspace.id))
    }

    /// Whether a node must have a key.
    fn holds(&self, node: &Node, keyspace: &Keyspace, key: &str) -> bool {
        node.lane(0).engine(keyspace.id).is_some_and(|engine| engine.holds(key.as_bytes()))
    }

    fn first_of(&self, group: NodeSet) -> usize {
        let first = group.into_iter().next().expect("no group is empty");
        self.world.index(first)
    }

    pub(super) fn all_contents(&self) -> Vec<Vec<Entry>> {
        self.world.keyspaces.iter().map(|keyspace| self.contents(keyspace)).collect()
    }

    /// The content of a keyspace, each partition from its first replica.
    pub(super) fn contents(&self, keyspace: &Keyspace) -> Vec<Entry> {
        if keyspace.spreads() {
            let all = self.world.nodes.iter().flat_map(|node| {
                let contents = node.contents(keyspace.id).into_iter();
                contents.filter(|entry| self.holds(node, keyspace, &entry.0))
            });
            return all
                .map(|entry| (entry.0.clone(), entry))
                .collect::<BTreeMap<_, _>>()
                .into_values()
                .collect();
        }
        let parts = keyspace.groups.iter().enumerate().flat_map(|(partition, group)| {
            let node = &self.world.nodes[self.first_of(*group)];
            keyspace.by_partition(node.contents(keyspace.id)).swap_remove(partition)
        });
        parts.collect()
    }
}
