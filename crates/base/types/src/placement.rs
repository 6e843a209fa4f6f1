//! Which nodes hold which keys, where not every member has all of them: a function of the nodes over
//! which a view places data, so nobody stores it.
//!
//! A key belongs to one of [`SHARDS`] shards by its hash slot, so keys with one hash tag stay
//! together. The *group* of a shard is the first few nodes in an order that is its own (rendezvous
//! hashing): a node that comes or goes moves the shards that name it, and no others.

use alloc::vec::Vec;

use crate::{NodeId, NodeSet, hash_key, hash_slot};

/// Shards of a keyspace: 64 hash slots of a Redis cluster each.
pub const SHARDS: usize = 256;

/// The key under which the pin of a unit of a keyspace is kept. Its value is the id of a node in decimal.
pub fn pin_key(keyspace: u8, unit: &[u8]) -> Vec<u8> {
    [&[keyspace], unit].concat()
}

/// The shard of a key.
pub fn shard_of(key: &[u8]) -> usize {
    usize::from(hash_slot(key)) * SHARDS / 16384
}

/// How many nodes keep each key, if there are as many: the number that was said, or with 0 so many that a
/// minority of the nodes is never all of them, and 3 at least.
pub fn group_size(replicas: usize, nodes: usize) -> usize {
    let minority = nodes.saturating_sub(1) / 2;
    if replicas == 0 { (minority + 1).max(3) } else { replicas }
}

/// What the nodes of a shard are in order of, the first by name its default owner.
pub fn rank(shard: usize, node: NodeId) -> impl Ord {
    let [low, high] = node.0.to_le_bytes();
    core::cmp::Reverse(hash_key(&[shard as u8, low, high]))
}

/// The group of a shard, in its order: that of the nodes' hashes together with it. With 0 replicas it has
/// as many nodes as survive the loss of any minority, and 3 at least.
pub fn group(shard: usize, placed: NodeSet, replicas: usize) -> Vec<NodeId> {
    let mut nodes: Vec<NodeId> = placed.into_iter().collect();
    nodes.sort_by_cached_key(|node| rank(shard, *node));
    nodes.truncate(group_size(replicas, placed.len()));
    nodes
}

/// The members of [`group`].
pub fn group_set(shard: usize, placed: NodeSet, replicas: usize) -> NodeSet {
    let size = group_size(replicas, placed.len());
    let mut nodes = placed;
    while nodes.len() > size {
        let last = nodes.into_iter().max_by_key(|node| rank(shard, *node));
        nodes = last.map_or(nodes, |last| nodes.without(last));
    }
    nodes
}

/// The groups of all shards, each once.
pub fn groups(placed: NodeSet, replicas: usize) -> Vec<NodeSet> {
    if group_size(replicas, placed.len()) >= placed.len() {
        return alloc::vec![placed];
    }
    let mut groups = Vec::new();
    for shard in 0..SHARDS {
        let group = group_set(shard, placed, replicas);
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(count: u16) -> NodeSet {
        (1..=count).map(NodeId).collect()
    }

    #[test]
    fn a_node_that_comes_moves_the_shards_that_name_it_and_no_others() {
        let groups = |count| (0..SHARDS).map(move |shard| group(shard, nodes(count), 3));
        let moved = groups(5).zip(groups(6)).filter(|(five, six)| five != six).count();
        let named = groups(6).filter(|group| group.contains(&NodeId(6))).count();
        assert_eq!(moved, named);
        assert!((90..170).contains(&named), "{named} of {SHARDS}, and half of them is fair");
    }

    #[test]
    fn a_group_survives_the_loss_of_any_minority_if_nothing_else_is_said() {
        for (count, size) in [(1, 1), (2, 2), (3, 3), (5, 3), (6, 3), (7, 4), (9, 5)] {
            assert_eq!(group(0, nodes(count), 0).len(), size, "{count} nodes");
        }
    }

    #[test]
    fn the_members_of_a_group_are_those_that_are_first_in_its_order() {
        for (count, replicas) in [(0, 0), (1, 0), (3, 0), (5, 0), (5, 2), (7, 0), (9, 9), (4, 7)] {
            let sets: Vec<NodeSet> = (0..SHARDS)
                .map(|shard| {
                    let set = group_set(shard, nodes(count), replicas);
                    let ordered = group(shard, nodes(count), replicas);
                    assert_eq!(set, ordered.into_iter().collect(), "shard {shard} of {count}");
                    set
                })
                .collect();
            let all = groups(nodes(count), replicas);
            assert!(sets.iter().all(|set| all.contains(set)));
            assert!(all.iter().all(|set| sets.contains(set)));
        }
    }

    #[test]
    fn the_order_is_pinned_because_nodes_of_two_builds_must_agree() {
        assert_eq!(group(0, nodes(5), 5), [5, 2, 3, 1, 4].map(NodeId));
    }

    #[test]
    fn keys_with_one_tag_share_a_shard() {
        assert_eq!(shard_of(b"{user}.a"), shard_of(b"{user}.b"));
        assert!((0..200_u8).any(|n| shard_of(&[n]) != shard_of(b"{user}.a")));
    }
}
