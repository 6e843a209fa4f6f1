//! The losses that a world can still bear, and those it has borne, with unfinished work.

use quorate_node::Durability;
use quorate_types::placement;
use quorate_types::{NodeId, NodeSet, Role, View};

use crate::guests::Guest;
use crate::keyspaces::Keyspace;
use crate::operator::{Ask, ToCome, Wish};
use crate::process::{LaneHost, Node};
use crate::world::{MS, World};

impl World {
    /// Whether the death of this node leaves a majority of replicas that hold everything: a cluster
    /// in memory promises nothing beyond that.
    pub(crate) fn may_kill(&self, victim: usize) -> bool {
        // A node that was just disturbed may be expelled any moment now.
        if self.time < self.quiet_at {
            return false;
        }
        self.lasts(self.holders().without(self.nodes[victim].id), self.voters_to_come())
    }

    /// Whether the change that an operator asks for leaves such a majority. A single member can't
    /// be joined: there would be no majority until the newcomer runs.
    pub(crate) fn may_ask(&self, ask: Ask) -> bool {
        let node = NodeSet::only(self.nodes[ask.node].id);
        let to_come = self.voters_to_come();
        let ToCome { voters, taken, departing } = to_come;
        let stays_more_than_one =
            || voters.difference(taken.union(departing).union(node)).len() > 1;
        // Where nothing is to be copied a node leaves at once.
        let takes = ask.wish == Wish::RemoveNow || !self.spreads();
        match ask.wish {
            Wish::Add => {
                self.lasts(self.holders(), ToCome { voters: voters.union(node), ..to_come })
            }
            Wish::Keep | Wish::Recover => true,
            Wish::Remove | Wish::RemoveNow if takes => {
                let to_come = ToCome { voters: voters.difference(node), taken, departing };
                stays_more_than_one() && self.lasts(self.holders().difference(node), to_come)
            }
            Wish::Remove | Wish::RemoveNow => {
                let to_come = ToCome { departing: departing.union(node), ..to_come };
                stays_more_than_one() && self.lasts(self.holders(), to_come)
            }
        }
    }

    /// Whether the `holders` that stay are a majority of each group, before and after the changes of the
    /// membership that may come.
    fn lasts(&self, holders: NodeSet, to_come: ToCome) -> bool {
        let ToCome { voters, taken, departing } = to_come;
        let placed = self.newest_view().map(|view| view.placed).unwrap_or_default();
        [NodeSet::EMPTY, departing].into_iter().all(|gone| {
            let safe = holders.difference(taken).difference(gone);
            // An added node counts as a voter before it holds anything, a removed one no more.
            let voters = voters.difference(gone);
            // Where each key is at some of the nodes, one that is removed with its copies leaves a hole
            // until data is placed anew. One that leaves after that takes no copies.
            self.all_groups(|group| safe.is_majority_of(group.intersection(voters)))
                && (!self.spreads() || safe.is_majority_of(placed.difference(gone)))
        })
    }

    /// Whether some keyspace keeps each key at some of the nodes.
    pub(crate) fn spreads(&self) -> bool {
        self.keyspaces.iter().any(Keyspace::spreads)
    }

    /// Whether some replica that holds everything goes on while `victims` are stopped or cut off.
    /// Stopped replicas forget nothing, so any number of them may stop.
    pub(crate) fn may_silence(&self, victims: NodeSet) -> bool {
        let ToCome { taken, departing, .. } = self.voters_to_come();
        let safe = self.holders().difference(victims).difference(taken.union(departing));
        // Where each key is at some of the nodes, any minority of them may be all but one of those.
        let all: NodeSet = self.nodes.iter().map(|node| node.id).collect();
        self.all_groups(|group| !safe.intersection(group).is_empty())
            && (!self.spreads() || safe.is_majority_of(all))
    }

    pub(crate) fn all_groups(&self, holds: impl Fn(NodeSet) -> bool) -> bool {
        let all = self.nodes.iter().map(|node| node.id).collect();
        holds(all) && self.groups().all(holds)
    }

    /// Nodes that hold everything and are not disturbed.
    pub(crate) fn holders(&self) -> NodeSet {
        let Some(newest) = self.newest_view() else { return NodeSet::EMPTY };
        // While engines are still taking over a new view, it protects no node: of the replicas of
        // one epoch, a minority may be lost before the next epoch is released.
        let through = |host: &LaneHost| {
            // Who is revived with other data has yet to take what a keyspace in memory had from the others.
            let has_all = |keyspace: &Keyspace| {
                let forgets = keyspace.durability == Durability::Memory;
                host.lane.engine(keyspace.id).is_none_or(|engine| {
                    engine.is_caught_up() && !(forgets && engine.is_in_doubt())
                })
            };
            self.keyspaces.iter().all(has_all)
        };
        let holds = |node: &Node| {
            let member = newest.member(node.id);
            node.up
                && !node.is_stopped()
                && !self.isolated.contains(node.id)
                && node.lanes.iter().all(through)
                && member.is_some_and(|member| {
                    member.role == Role::Active && member.incarnation == node.lane(0).incarnation()
                })
        };
        self.nodes.iter().filter(|node| holds(node)).map(|node| node.id).collect()
    }

    /// Notes a disturbance that may yet cost a node its place in the view.
    pub(crate) fn disturbed(&mut self) {
        self.quiet_at = self.quiet_at.max(self.time + self.disturbance());
    }

    /// How long a disturbance may take to cost a node its place in the view, as a rule.
    pub(crate) fn disturbance(&self) -> u64 {
        let silence = self.nodes[0].config.suspect_after.as_nanos();
        300 * MS + 2 * u64::try_from(silence).unwrap_or(u64::MAX / 4)
    }

    /// Whether a majority of some view's voters lost its memory, or of some partition's replicas:
    /// beyond what a cluster in memory survives. Message loss alone can expel one node while the
    /// nemesis kills another.
    pub(crate) fn majority_lost(&self) -> bool {
        // What has a disk comes back.
        !self.has_disks() && self.has_lost_majority()
    }

    fn has_lost_majority(&self) -> bool {
        self.newest_view().is_some_and(|view| {
            let (voters, lost) = (view.voters(), self.lost(view));
            let left = voters.difference(lost);
            let ended = |group: NodeSet| !left.is_majority_of(group.intersection(voters));
            ended(voters) || self.groups().any(ended)
        }) || self.partition_stuck()
    }

    /// The members of a view whose process has ended, or has lost its memory since.
    fn lost(&self, view: &View) -> NodeSet {
        let lost = view.members.iter().filter(|member| {
            let now = &self.nodes[self.index(member.node)];
            !now.up || !now.lives.contains(&member.incarnation)
        });
        lost.map(|member| member.node).collect()
    }

    /// Whether the members that can vote now, and are not cut off, fall short of a majority of all
    /// members or of some partition's replicas. Of two nodes that do not reach each other one
    /// votes.
    pub(crate) fn lacks_votes(&self) -> bool {
        // Nodes before the cut can't vote in a view that only a node behind the cut knows.
        let connected = self.nodes.iter().filter(|node| !self.isolated.contains(node.id));
        let Some(view) = Self::newest_view_of(connected).or_else(|| self.newest_view()) else {
            return false;
        };
        let stopped = self.nodes.iter().filter(|node| node.is_stopped()).map(|node| node.id);
        let lost = self.lost(view).union(stopped.collect()).difference(self.isolated);
        let voters = view.voters();
        !self.all_groups(|group| {
            let voters = group.intersection(voters);
            let cut = voters.intersection(self.isolated).len().min(1);
            (voters.intersection(lost).len() + cut) * 2 < voters.len()
        })
    }

    /// Whether a node that has yet to copy can't: all nodes that have some of its keys are cut off. Nobody
    /// may remove them from the view.
    pub(crate) fn lacks_donors(&self, node: NodeId) -> bool {
        let Some(view) = self.newest_view() else { return false };
        let spread = self.keyspaces.iter().filter_map(|keyspace| keyspace.group_size());
        let shards = spread.flat_map(|replicas| placement::groups(view.placed, replicas));
        lacks_donors(view, node, self.isolated, self.groups().chain(shards))
    }

    /// Whether an engine reports that too few replicas of some partition are left, while the nodes
    /// are a majority and go on from view to view. It can't happen where all partitions are on all
    /// nodes.
    fn partition_stuck(&self) -> bool {
        let all = self.nodes.len();
        let spread = |keyspace: &&Keyspace| keyspace.groups.iter().any(|group| group.len() < all);
        self.keyspaces.iter().filter(spread).any(|keyspace| !self.stuck_nodes(keyspace).is_empty())
    }

    /// Whether some keyspace waits until a cut ends. All that have what a group has may be behind it, if others
    /// have left the view shortly before: nobody may remove them. And where promises wait for no log, a node
    /// that was started anew has forgotten what it had promised; with another one cut off, too few may be left
    /// that remember.
    pub(crate) fn waits_for_the_cut_off(&self) -> bool {
        let is_behind = |view: &View, group: NodeSet| {
            let active = group.intersection(view.active());
            !active.is_empty() && active.is_subset(self.isolated)
        };
        let mut groups = self.groups();
        if self.newest_view().is_some_and(|view| groups.any(|group| is_behind(view, group))) {
            return true;
        }
        let forgets = |keyspace: &&Keyspace| keyspace.durability == Durability::Async;
        let mut forgetful = self.keyspaces.iter().filter(forgets);
        !self.isolated.is_empty()
            && forgetful.any(|keyspace| !self.stuck_nodes(keyspace).is_empty())
    }

    /// The nodes whose engine reports that too few replicas of a keyspace are left.
    pub(crate) fn stuck_nodes(&self, keyspace: &Keyspace) -> NodeSet {
        let is_stuck = |host: &LaneHost| {
            let facts = host.lane.engine(keyspace.id).map(quorate_node::KeyspaceLane::facts);
            facts.is_some_and(|facts| facts.gauges.contains(&("stuck", 1)))
        };
        let stuck = |node: &&Node| node.up && node.lanes.iter().any(is_stuck);
        self.nodes.iter().filter(stuck).map(|node| node.id).collect()
    }

    /// Transactions that some lane has not decided, or that a client of some lane waits for.
    pub(crate) fn undecided(&self) -> Option<String> {
        let transactional = self.keyspaces.iter().filter(|keyspace| keyspace.is_transactional());
        let lanes = || self.nodes.iter().flat_map(|node| node.lanes.iter().map(move |l| (node, l)));
        let all = transactional.flat_map(|keyspace| lanes().map(move |lane| (keyspace, lane)));
        let of_nodes = { all }.find_map(|(keyspace, (node, host))| {
            let facts = host.lane.engine(keyspace.id)?.facts();
            let gauge = |name| facts.gauges.iter().find(|(known, _)| *known == name);
            let left = UNDONE.into_iter().filter_map(gauge).find(|(_, value)| *value > 0);
            let (name, count) = left?;
            Some(format!("{:?} lane {:?} is left with {count} {name}", node.id, host.lane.id()))
        });
        of_nodes.or_else(|| self.guests.iter().find_map(Guest::undone))
    }
}

/// Whether a node of a view has yet to copy what some of these groups have, and every one that could give it
/// away is isolated.
fn lacks_donors(
    view: &View,
    node: NodeId,
    isolated: NodeSet,
    mut groups: impl Iterator<Item = NodeSet>,
) -> bool {
    let active = view.active();
    let lacks = |group: NodeSet| {
        let donors = group.intersection(active);
        group.contains(node) && !donors.is_empty() && donors.is_subset(isolated)
    };
    !active.contains(node) && groups.any(lacks)
}

/// An engine has unfinished work while any of these gauges is above 0.
const UNDONE: [&str; 10] = [
    "undecided",
    "attempts",
    "waiting",
    "recovering",
    "frozen",
    "replicating",
    "shared_entries",
    "pipeline",
    "requests",
    "rounds",
];

#[cfg(test)]
mod tests {
    use quorate_types::{Incarnation, Member, MemberNumber};

    use super::*;

    /// Nodes 1 to 6; the last two have come back without anything.
    #[test]
    fn who_has_yet_to_copy_lacks_donors_if_all_of_a_group_are_cut_off() {
        let of = |nodes: &[u16]| nodes.iter().copied().map(NodeId).collect::<NodeSet>();
        let member = |node: u16| Member {
            node: NodeId(node),
            incarnation: Incarnation(node.into()),
            number: MemberNumber(node.into()),
            role: if node < 5 { Role::Active } else { Role::Shadow },
            peer_address: String::new(),
            client_address: String::new(),
            admin_address: String::new(),
        };
        let view = View { members: (1..=6).map(member).collect(), ..View::default() };
        let lacks = |node: u16, isolated: &[u16], group: &[u16]| {
            lacks_donors(&view, NodeId(node), of(isolated), [of(group)].into_iter())
        };
        assert!(lacks(5, &[1], &[1, 5, 6]));
        assert!(lacks(5, &[1, 2], &[1, 2, 5]));
        assert!(!lacks(5, &[1], &[1, 2, 5]), "the other one has everything");
        assert!(!lacks(5, &[1], &[1, 6, 2]), "it need not copy this");
        assert!(!lacks(2, &[1], &[1, 2, 5]), "it has everything itself");
        assert!(!lacks(5, &[], &[5, 6]), "nobody ever had it");
    }
}
