//! Where keys live: a function of the view, computed anew with each and never stored.
//!
//! The *group* of a shard are the first few of the nodes over which the view places data, in an order
//! that is the shard's own (`quorate_types::placement`). Its active members have all that was ever
//! committed in it: they are the directory of the shard's keys and, in order, their default owners.
//!
//! While members come and go, the view names two sets of nodes: over which data is placed, and over
//! which it should be. A member of the group that should be and not of the one that is *learns* the
//! shard: it is an arbiter and a follower, and copies, and nobody relies on it. When all members say
//! that they have copied everything, a later view places data over the new nodes. So a node never
//! serves a shard before it has it, and who leaves a group stays until then.

use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

use quorate_machine::mutant;
use quorate_rifl::Permit;
use quorate_types::placement::{self, SHARDS, shard_of};
use quorate_types::{Epoch, Incarnation, MemberNumber, NodeId, NodeSet, Role, View};

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
    /// The nodes over which data is placed.
    placed: NodeSet,
    /// Whether no shard would lose its last active member if data were placed as it should be.
    pub(crate) may_place: bool,
    pub(crate) members: Vec<(MemberNumber, NodeId)>,
    shards: Vec<Shard>,
    view: View,
    /// Whether the members of all groups are the same nodes. Only the order in which they are default
    /// owners needs a key's shard then.
    is_same: bool,
    /// Whether every key may be read from this node.
    reads_all: bool,
    /// Whether this node has come back from its log with all of its shards, and not all nodes have recovered
    /// since (`revival.rs`).
    pub(crate) revived: bool,
    /// Whether it may lack what it has promised besides. It serves nobody then.
    pub(crate) in_doubt: bool,
    /// Whether a member may have been revived, and not all nodes have recovered since. It may lack what only a node
    /// outside its group has.
    pub(crate) meets_revived: bool,
}

/// Where one shard lives.
#[derive(Clone, Debug)]
struct Shard {
    /// Whether this node is of the group that it has.
    is_placed: bool,
    /// The active members of that group, in its order.
    directory: Vec<NodeId>,
    /// Whether these are as many as are to keep each key.
    is_whole: bool,
    /// The same in no order.
    holders: NodeSet,
    /// The live members of that group, and of the one that it should have.
    keepers: NodeSet,
    /// The active members of both.
    readers: NodeSet,
    /// If all have died that had it: who begins it anew, with what any live member has of it. Otherwise its
    /// keepers copy it from an active member of the group.
    heirs: NodeSet,
}

impl Hash for Layout {
    /// Everything else follows from these for one configuration.
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.epoch, self.number, &self.members, self.active, self.placed).hash(state);
        let hears = (self.revived, self.in_doubt, self.meets_revived);
        (self.view.departing, hears).hash(state);
    }
}

/// A set of shards.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Shards(pub(crate) [u64; SHARDS / 64]);

impl Shards {
    /// The shards for which `is` holds.
    pub fn that(mut is: impl FnMut(usize) -> bool) -> Self {
        let mut shards = Self::default();
        for shard in (0..SHARDS).filter(|shard| is(*shard)) {
            shards.0[shard / 64] |= 1 << (shard % 64);
        }
        shards
    }

    /// Whether a shard is one of them.
    pub fn contains(&self, shard: usize) -> bool {
        self.0[shard / 64] >> (shard % 64) & 1 == 1
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// In order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        (0..SHARDS).filter(|shard| self.contains(*shard))
    }
}

impl Layout {
    pub(crate) fn new(view: &View, node: NodeId, life: Incarnation, replicas: usize) -> Self {
        let is_live = view.is_live(node, life);
        let own = view.member(node).filter(|_| is_live).map(|member| member.number);
        let live = view.members.iter().filter(|member| member.role != Role::Down);
        let placed = match mutant!("zeus_group_of_voters") {
            true => view.voters(),
            false => view.placed,
        };
        let to_place = view.to_place();
        let active = view.active();
        let mut may_place = true;
        let mut shard = |shard| {
            let group = placement::group(shard, placed, replicas);
            let next = placement::group_set(shard, to_place, replicas);
            let directory: Vec<NodeId> =
                group.iter().copied().filter(|node| active.contains(*node)).collect();
            let has_all: NodeSet = directory.iter().copied().collect();
            may_place &= has_all.is_empty() || !next.intersection(active).is_empty();
            let keepers = group.iter().copied().fold(next, NodeSet::with).intersection(view.live());
            let heirs = if directory.is_empty() { keepers } else { NodeSet::EMPTY };
            Shard {
                heirs,
                is_placed: group.contains(&node),
                is_whole: directory.len() >= placement::group_size(replicas, placed.len()),
                keepers,
                readers: match mutant!("zeus_leaver_reads") {
                    true => has_all,
                    false => has_all.intersection(next),
                },
                holders: has_all,
                directory,
            }
        };
        let shards: Vec<Shard> = (0..SHARDS).map(&mut shard).collect();
        let members = |shard: &Shard| (shard.keepers, shard.readers, shard.holders);
        let reads_all = shards.iter().all(|shard| shard.readers.contains(node));
        let is_same = shards.iter().all(|shard| members(shard) == members(&shards[0]));
        Self {
            epoch: view.epoch,
            node,
            number: own.unwrap_or_default(),
            live: view.live(),
            active,
            placed,
            may_place,
            members: live.map(|member| (member.number, member.node)).collect(),
            shards,
            view: view.clone(),
            is_same,
            reads_all,
            revived: false,
            in_doubt: false,
            meets_revived: false,
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

    /// Whether some active member was no member before. A node that joins is a shadow first. So this one is revived,
    /// or this node has missed views.
    pub(crate) fn has_new_active(&self, before: &Self) -> bool {
        let is_new = |member: &&(MemberNumber, NodeId)| !before.members.contains(member);
        self.members.iter().filter(is_new).any(|(_, node)| self.active.contains(*node))
    }

    // --- shards ----------------------------------------------------------------------------------

    /// Whether this node keeps a shard's keys up to date.
    pub(crate) fn keeps(&self, shard: usize) -> bool {
        self.is_live() && self.shards[shard].keepers.contains(self.node)
    }

    /// Whether it is of the group that the shard has.
    pub(crate) fn is_placed(&self, shard: usize) -> bool {
        self.is_live() && self.shards[shard].is_placed
    }

    /// Whether it keeps the shard's keys up to date and may not have all of them.
    pub(crate) fn learns(&self, shard: usize) -> bool {
        self.keeps(shard) && (self.revived || !self.has_all(shard))
    }

    /// Whether it learns a shard that somebody has.
    pub(crate) fn copies(&self, shard: usize) -> bool {
        self.learns(shard) && !self.inherits(shard)
    }

    /// Whether it begins a shard anew: all have died that had it, and others may have some of it.
    pub(crate) fn inherits(&self, shard: usize) -> bool {
        self.shards[shard].heirs.contains(self.node)
    }

    /// Whether another node gets whatever this one has of a shard: nobody has all of it, or that node had
    /// it before the power went.
    pub(crate) fn tells_all(&self, node: NodeId, shard: usize) -> bool {
        self.has_all_at(node, shard) || self.shards[shard].heirs.contains(node)
    }

    /// The first node that has all of a shard.
    pub(crate) fn donor(&self, shard: usize) -> Option<NodeId> {
        self.shards[shard].directory.first().copied()
    }

    /// Whether it has all that was ever committed of the shard, and is asked about it. What a revived node
    /// lacks of it, it learns.
    pub(crate) fn has_all(&self, shard: usize) -> bool {
        self.is_active() && self.is_placed(shard)
    }

    /// Whether another node has all that was ever committed of the shard.
    pub(crate) fn has_all_at(&self, node: NodeId, shard: usize) -> bool {
        self.shards[shard].directory.contains(&node)
    }

    /// Whether this node copies a shard from another one.
    pub(crate) fn copies_from(&self, node: NodeId, shard: usize) -> bool {
        let hears_all = self.inherits(shard) || self.has_all(shard) && self.revived;
        match hears_all || self.has_all(shard) {
            true => hears_all && self.live.contains(node),
            false => self.donor(shard) == Some(node),
        }
    }

    /// Whether another node may copy a shard from this one. Who is to have all of it before anybody else has
    /// gets whatever this node has; a learner waits until this node has all of it.
    pub(crate) fn gives_to(&self, node: NodeId, shard: usize) -> bool {
        self.tells_all(node, shard) || self.has_all(shard) && !self.revived
    }

    /// The live members that keep the shard up to date.
    pub(crate) fn keepers(&self, shard: usize) -> NodeSet {
        self.shards.get(shard).map(|shard| shard.keepers).unwrap_or_default()
    }

    /// One of the members that have all of a shard, each in its turn.
    pub(crate) fn member_with_all(&self, shard: usize, turn: usize) -> Option<NodeId> {
        let directory = &self.shards.get(shard)?.directory;
        directory.get(turn % directory.len().max(1)).copied()
    }

    /// Whether a call may be attempted in this view.
    pub(crate) fn covers(&self, permit: &Permit) -> bool {
        permit.covers(&self.view, permit.date)
    }

    // --- keys ------------------------------------------------------------------------------------

    fn shard(&self, key: &[u8]) -> Option<&Shard> {
        self.shards.get(shard_of(key))
    }

    /// A shard with the members of the key's group, in any order.
    fn members_of(&self, key: &[u8]) -> Option<&Shard> {
        if self.is_same { self.shards.first() } else { self.shard(key) }
    }

    /// The live members that keep a key up to date, besides its owner: those of its group, and those
    /// that are about to be.
    pub(crate) fn group(&self, key: &[u8]) -> NodeSet {
        self.members_of(key).map(|shard| shard.keepers).unwrap_or_default()
    }

    /// Whether this node is one of them.
    pub(crate) fn in_group(&self, key: &[u8]) -> bool {
        self.group(key).contains(self.node)
    }

    /// The members that have all that was committed of a key, in the order of its group.
    pub(crate) fn directory(&self, key: &[u8]) -> &[NodeId] {
        self.shard(key).map(|shard| &*shard.directory).unwrap_or_default()
    }

    /// Whether they are as many as are to keep the key.
    pub(crate) fn is_whole(&self, key: &[u8]) -> bool {
        self.shard(key).is_some_and(|shard| shard.is_whole)
    }

    /// Whether a node is one of them.
    pub(crate) fn is_in_directory(&self, node: NodeId, key: &[u8]) -> bool {
        self.members_of(key).is_some_and(|shard| shard.holders.contains(node))
    }

    /// The members that may be read a key from: those that have it and will go on to. No write waits
    /// for a node to hear that it has left the group, so one that is about to leave reads no more.
    pub(crate) fn readers(&self, key: &[u8]) -> NodeSet {
        self.members_of(key).map(|shard| shard.readers).unwrap_or_default()
    }

    /// Whether this node is one of them.
    pub(crate) fn reads(&self, key: &[u8]) -> bool {
        self.readers(key).contains(self.node) && !self.in_doubt
    }

    /// Whether it is so for every key, as far as it knows where any is.
    pub(crate) fn reads_all(&self) -> bool {
        self.reads_all && !self.in_doubt || self.shards.is_empty()
    }

    /// How many live members besides this node keep a key up to date: of the key with the fewest.
    pub(crate) fn fewest_others(&self) -> usize {
        let others = self.shards.iter().map(|shard| shard.keepers.without(self.node).len());
        others.min().unwrap_or(0)
    }

    /// The owner of a key whose owner is not a live member, or that never had one.
    pub(crate) fn default_owner(&self, key: &[u8]) -> Option<NodeId> {
        self.directory(key).first().copied()
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
    fn no_minority_of_the_voters_is_a_whole_group() {
        let sizes = [(1, 3), (2, 3), (3, 3), (4, 3), (5, 3), (6, 3), (7, 4), (8, 4), (9, 5)];
        for (voters, size) in sizes {
            let view = view_of(voters as u16, Epoch(1));
            let layout = Layout::new(&view, NodeId(1), Incarnation(1), 0);
            assert!(layout.shards.iter().all(|shard| shard.keepers.len() == size.min(voters)));
            assert_eq!(layout.reads_all(), voters <= size);
            assert_eq!(layout.fewest_others(), size.min(voters) - 1);
        }
    }
}
