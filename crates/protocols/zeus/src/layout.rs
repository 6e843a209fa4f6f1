//! Where keys live: a function of the view, computed anew with each and never stored.
//!
//! A key belongs to one of [`SHARDS`] shards by its hash slot, so keys with one hash tag stay
//! together. The *group* of a shard is the first few voters of the view in an order that is its own
//! (rendezvous hashing): a member that comes or goes moves the shards that name it, and no others.
//! Its live members are both the directory of the shard's keys and their readers.

use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

use quorate_machine::mutant;
use quorate_types::{
    Epoch, Incarnation, MemberNumber, NodeId, NodeSet, Role, View, hash_key, hash_slot,
};

/// Shards of a keyspace: 64 hash slots of a Redis cluster each.
pub const SHARDS: usize = 256;

/// The members of a view, and the groups that follow from it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layout {
    pub(crate) epoch: Epoch,
    /// This node.
    pub(crate) node: NodeId,
    /// Its number in this life; 0 unless it is live.
    pub(crate) number: MemberNumber,
    pub(crate) live: NodeSet,
    pub(crate) active: NodeSet,
    members: Vec<(MemberNumber, NodeId)>,
    /// The voters in the order of each shard, cut off after `replicas`.
    groups: Vec<Vec<NodeId>>,
}

impl Hash for Layout {
    /// Everything else follows from these for one configuration.
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.epoch, self.number, &self.members, self.active).hash(state);
    }
}

/// The shard of a key.
pub(crate) fn shard_of(key: &[u8]) -> usize {
    usize::from(hash_slot(key)) * SHARDS / 16384
}

/// The voters in the order of a shard: that of their hashes together with it.
fn ranked(shard: usize, voters: NodeSet) -> Vec<NodeId> {
    let rank = |node: &NodeId| {
        let [low, high] = node.0.to_le_bytes();
        core::cmp::Reverse(hash_key(&[shard as u8, low, high]))
    };
    let mut nodes: Vec<NodeId> = voters.into_iter().collect();
    nodes.sort_by_key(rank);
    nodes
}

impl Layout {
    pub(crate) fn new(view: &View, node: NodeId, life: Incarnation, replicas: usize) -> Self {
        let is_live = view.is_live(node, life);
        let own = view.member(node).filter(|_| is_live).map(|member| member.number);
        let live = view.members.iter().filter(|member| member.role != Role::Down);
        let group = |shard| {
            let mut nodes = ranked(shard, view.voters());
            nodes.truncate(replicas);
            nodes
        };
        Self {
            epoch: view.epoch,
            node,
            number: own.unwrap_or_default(),
            live: view.live(),
            active: view.active(),
            members: live.map(|member| (member.number, member.node)).collect(),
            groups: (0..SHARDS).map(group).collect(),
        }
    }

    /// Whether this life of this node is a live member.
    pub(crate) fn is_live(&self) -> bool {
        self.number != MemberNumber(0)
    }

    /// Whether it serves clients.
    pub(crate) fn is_active(&self) -> bool {
        self.is_live() && self.active.contains(self.node)
    }

    /// The live members of a key's group.
    pub(crate) fn group(&self, key: &[u8]) -> NodeSet {
        let Some(ranks) = self.groups.get(shard_of(key)) else { return NodeSet::EMPTY };
        ranks.iter().copied().collect::<NodeSet>().intersection(self.live)
    }

    /// Whether this node is one of them.
    pub(crate) fn in_group(&self, key: &[u8]) -> bool {
        self.group(key).contains(self.node)
    }

    /// The active members of a key's group, in its order.
    pub(crate) fn directory<'a>(&'a self, key: &[u8]) -> impl Iterator<Item = NodeId> + 'a {
        let ranks = self.groups.get(shard_of(key)).map_or(&[][..], |ranks| ranks);
        ranks.iter().copied().filter(|node| self.active.contains(*node))
    }

    /// The owner of a key whose owner is not a live member, or that never had one.
    pub(crate) fn default_owner(&self, key: &[u8]) -> Option<NodeId> {
        self.directory(key).next()
    }

    /// Where a member lives that is live.
    pub(crate) fn node_of(&self, member: MemberNumber) -> Option<NodeId> {
        self.members.iter().find(|(number, _)| *number == member).map(|(_, node)| *node)
    }

    /// The owner of a key that was moved to `owner` last.
    pub(crate) fn owner(&self, owner: MemberNumber, key: &[u8]) -> Option<NodeId> {
        self.node_of(owner).or_else(|| self.default_owner(key))
    }

    /// Who must agree before a key that was moved to `owner` last is moved again.
    pub(crate) fn arbiters(&self, owner: MemberNumber, key: &[u8]) -> NodeSet {
        let group = self.group(key);
        match self.node_of(owner) {
            Some(node) if !mutant!("zeus_owner_not_asked") => group.with(node),
            _ => group,
        }
    }
}

#[cfg(test)]
mod tests {
    use quorate_harness::view_of;

    use super::*;

    #[test]
    fn a_member_that_comes_moves_the_shards_that_name_it_and_no_others() {
        let groups = |nodes| {
            let view = view_of(nodes, Epoch(1));
            Layout::new(&view, NodeId(1), Incarnation(1), 3).groups
        };
        let (five, six) = (groups(5), groups(6));
        let moved = (0..SHARDS).filter(|shard| five[*shard] != six[*shard]).count();
        let named = six.iter().filter(|group| group.contains(&NodeId(6))).count();
        assert_eq!(moved, named);
        assert!((90..170).contains(&named), "{named} of {SHARDS}, and half of them is fair");
    }

    #[test]
    fn the_order_is_pinned_because_nodes_of_two_builds_must_agree() {
        let voters = (1..=5).map(NodeId).collect();
        assert_eq!(ranked(0, voters), [5, 2, 3, 1, 4].map(NodeId));
    }

    #[test]
    fn keys_with_one_tag_share_a_shard() {
        assert_eq!(shard_of(b"{user}.a"), shard_of(b"{user}.b"));
        assert!((0..200_u8).any(|n| shard_of(&[n]) != shard_of(b"{user}.a")));
    }
}
