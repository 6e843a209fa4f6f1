//! Sets of nodes as one word.

use core::fmt;

use crate::{NodeId, limits};

/// A set of node ids, one bit each.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct NodeSet(u64);

impl NodeSet {
    /// The set without members.
    pub const EMPTY: Self = Self(0);

    /// The set with one member.
    pub fn only(node: NodeId) -> Self {
        let mut set = Self::EMPTY;
        set.insert(node);
        set
    }

    /// The set whose bit *i* is member *i*.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Bit *i* is member *i*.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Adds a member.
    pub fn insert(&mut self, node: NodeId) {
        assert!(node.0 <= limits::NODE_ID_MAX, "node id {node} exceeds {}", limits::NODE_ID_MAX);
        self.0 |= 1 << node.0;
    }

    /// Removes a member.
    pub fn remove(&mut self, node: NodeId) {
        self.0 &= !Self::only(node).0;
    }

    /// The set and one more member.
    pub fn with(mut self, node: NodeId) -> Self {
        self.insert(node);
        self
    }

    /// The set less one member.
    pub fn without(mut self, node: NodeId) -> Self {
        self.remove(node);
        self
    }

    /// Whether `node` is a member.
    pub fn contains(self, node: NodeId) -> bool {
        node.0 <= limits::NODE_ID_MAX && self.0 & (1 << node.0) != 0
    }

    /// Whether every member is one of `other`.
    pub const fn is_subset(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    /// Members of both.
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Members of either.
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Members of this set that are not in `other`.
    pub const fn difference(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// How many members.
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether there are none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether this set holds more than half of `of`.
    pub const fn is_majority_of(self, of: Self) -> bool {
        self.intersection(of).len() * 2 > of.len()
    }

    /// The smallest id.
    pub fn first(self) -> Option<NodeId> {
        self.into_iter().next()
    }

    /// The member at position `index`, counted from the smallest id.
    pub fn nth(self, index: usize) -> Option<NodeId> {
        self.into_iter().nth(index)
    }
}

impl IntoIterator for NodeSet {
    type Item = NodeId;
    type IntoIter = NodeSetIter;

    fn into_iter(self) -> NodeSetIter {
        NodeSetIter(self.0)
    }
}

/// Members in ascending order of id.
#[derive(Clone, Debug)]
pub struct NodeSetIter(u64);

impl Iterator for NodeSetIter {
    type Item = NodeId;

    fn next(&mut self) -> Option<NodeId> {
        if self.0 == 0 {
            return None;
        }
        let node = NodeId(self.0.trailing_zeros() as u16);
        self.0 &= self.0 - 1;
        Some(node)
    }
}

impl FromIterator<NodeId> for NodeSet {
    fn from_iter<I: IntoIterator<Item = NodeId>>(nodes: I) -> Self {
        nodes.into_iter().fold(Self::EMPTY, Self::with)
    }
}

impl fmt::Debug for NodeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(*self).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn majorities_of_three_and_four() {
        let of: NodeSet = (1..=3).map(NodeId).collect();
        assert!(!NodeSet::only(NodeId(1)).is_majority_of(of));
        assert!(of.without(NodeId(2)).is_majority_of(of));
        let of = of.with(NodeId(4));
        assert!(!NodeSet::only(NodeId(1)).with(NodeId(4)).is_majority_of(of));
        // Outsiders don't count.
        assert!(!NodeSet::only(NodeId(1)).with(NodeId(9)).with(NodeId(8)).is_majority_of(of));
    }

    #[test]
    fn members_come_in_order() {
        let set: NodeSet = [5, 63, 0, 9].into_iter().map(NodeId).collect();
        let ids: alloc::vec::Vec<u16> = set.into_iter().map(|node| node.0).collect();
        assert_eq!(ids, [0, 5, 9, 63]);
    }
}
