//! Answers that are ahead of the replicas.
//!
//! A coordinator of `meerkat` answers once enough replicas have voted, and tells all of them then how the
//! transaction has ended; each appends the end to its log when it hears of it (docs/src/durability.md). So
//! what a disk has not kept was appended late, and answered a message's time before that: this notes since
//! when each replica may have had ends to hear.

use std::collections::BTreeMap;

use quorate_types::{KeyspaceId, NodeId, NodeSet};

use crate::world::World;

/// The commits of one coordinator of which some replica may not have heard: since when, and which replicas.
#[derive(Default)]
pub(crate) struct Untold(BTreeMap<(KeyspaceId, u64), (u64, NodeSet)>);

impl Untold {
    /// Notes all commits of a keyspace, by version, that some replica may not have heard of.
    pub(crate) fn note(&mut self, time: u64, keyspace: KeyspaceId, commits: &[(u64, NodeSet)]) {
        if commits.is_empty() && self.0.is_empty() {
            return;
        }
        let mut before = std::mem::take(&mut self.0);
        let known = commits.iter().map(|&(version, replicas)| {
            let key = (keyspace, version);
            let since = before.get(&key).map_or(time, |(since, _)| *since);
            (key, (since, replicas))
        });
        let known: Vec<_> = known.collect();
        before.retain(|(of, _), _| *of != keyspace);
        before.extend(known);
        self.0 = before;
    }

    /// Since when a replica may have had something to hear.
    fn since(&self, replica: NodeId) -> Option<u64> {
        let of = self.0.values().filter(|(_, replicas)| replicas.contains(replica));
        of.map(|(since, _)| *since).min()
    }
}

impl World {
    /// Notes what a lane has committed without all replicas knowing it.
    pub(crate) fn note_untold(&mut self, node: usize, lane: usize) {
        let time = self.time;
        let host = &mut self.nodes[node].lanes[lane];
        for keyspace in &self.keyspaces {
            if let Some(engine) = host.lane.engine(keyspace.id) {
                host.untold.note(time, keyspace.id, &engine.untold());
            }
        }
    }

    /// The time of the first answer that may rest on what a lane of a node is about to append. A coordinator
    /// that has ended is heard no more, but others tell of its ends.
    pub(crate) fn answered_since(&self, node: usize, lane: usize) -> u64 {
        let replica = self.nodes[node].id;
        let nodes = self.nodes.iter().filter_map(|other| other.lanes.get(lane));
        let guests = self.guests.iter().map(|guest| &guest.untold);
        let coordinators = nodes.map(|host| &host.untold).chain(guests);
        let since = coordinators.filter_map(|untold| untold.since(replica)).min();
        since.unwrap_or(self.time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYSPACE: KeyspaceId = KeyspaceId(1);

    fn nodes<const N: usize>(nodes: [u16; N]) -> NodeSet {
        nodes.into_iter().map(NodeId).collect()
    }

    #[test]
    fn an_answer_counts_from_when_it_was_given_until_the_replica_has_heard() {
        let mut untold = Untold::default();
        untold.note(5, KEYSPACE, &[(70, nodes([2, 3]))]);
        untold.note(9, KEYSPACE, &[(70, nodes([3])), (80, nodes([2, 3]))]);
        let since = |untold: &Untold| [1, 2, 3].map(|node| untold.since(NodeId(node)));
        assert_eq!(since(&untold), [None, Some(9), Some(5)]);
        untold.note(11, KeyspaceId(2), &[(70, nodes([1]))]);
        assert_eq!(since(&untold), [Some(11), Some(9), Some(5)]);
        untold.note(12, KEYSPACE, &[]);
        assert_eq!(since(&untold), [Some(11), None, None]);
    }
}
