//! What a loss of power may take with it where promises do not wait for the log (`async`): that of all nodes,
//! or of so many that nobody is left who has what some keys' replicas had promised.
//!
//! An update that is answered is in the logs of its replicas, and on their disks when the interval and a
//! flush are over (docs/src/durability.md); `untold.rs` says where the answer comes before that. So the world
//! notes for each lane the time of the first entry that its disk may not have. When no node is left that runs,
//! these say up to which time each node has kept everything, and what a keyspace may lose: what was answered
//! later, and no more. Of each key that is a suffix of its versions.
//!
//! All replicas had what was acknowledged, and all take in the newest that any has kept: so what the best of
//! them has kept is not lost. But that takes a while. If that node is out of the view before the others have it,
//! or all power goes once more and its disk is damaged, then the ends of the logs of the others are lost, as the
//! interval allows.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use quorate_check::Loss;
use quorate_machine::Outcome;
use quorate_node::{Durability, EngineConfig, KeyspaceLane};
use quorate_types::placement::{self, SHARDS};
use quorate_types::{
    Epoch, KeyspaceId, Lsn, MemberNumber, NodeId, NodeSet, Role, Tag, View, partition_of,
};

use crate::keyspaces::Keyspace;
use crate::process::{LaneHost, Node};
use crate::world::{Answer, MS, World};

/// How much later than said a lane may begin a flush: its turns are not arbitrarily close.
const LATE_MAX: u64 = MS;

/// When a lane has appended what its disk may not have yet, in order.
#[derive(Default)]
pub(crate) struct Unflushed(VecDeque<Appended>);

/// What a lane has appended in a turn.
struct Appended {
    at: u64,
    /// The first time at which it may have been answered.
    answered: u64,
    end: Lsn,
}

impl Unflushed {
    /// Notes how far a log goes at the end of a turn, and how far it is durable.
    pub(crate) fn note(&mut self, at: u64, answered: u64, (end, durable): (Lsn, Lsn)) {
        let known = self.0.back().map_or(durable, |last| last.end);
        if end > known {
            self.0.push_back(Appended { at, answered, end });
        }
        while self.0.pop_front_if(|first| first.end <= durable).is_some() {}
    }

    /// The time of the first entry that may not be durable.
    fn since(&self) -> Option<u64> {
        self.0.front().map(|first| first.at)
    }

    /// The first time at which what may not be durable may have been answered.
    fn answered_since(&self) -> Option<u64> {
        self.0.iter().map(|appended| appended.answered).min()
    }
}

/// What clients wait for. A node that lives on may answer after an outage what it did before it, and then the
/// client doesn't hear it: it could not tell whether that is lost.
#[derive(Default)]
pub(crate) struct Awaited {
    asked: BTreeMap<u64, KeyspaceId>,
    unheard: BTreeSet<u64>,
}

impl Awaited {
    /// A node is asked for something.
    pub(crate) fn ask(&mut self, tag: Tag, keyspace: KeyspaceId) {
        self.asked.insert(tag.0, keyspace);
    }

    /// What a keyspace has been asked for so far may be lost, whatever the answer says.
    fn lose(&mut self, keyspace: KeyspaceId) {
        let lost = self.asked.iter().filter(|(_, of)| **of == keyspace);
        self.unheard.extend(lost.map(|(tag, _)| *tag));
    }

    /// What a client hears of an answer.
    pub(crate) fn answer(&mut self, mut answer: Answer) -> Answer {
        self.asked.remove(&answer.tag.0);
        if self.unheard.remove(&answer.tag.0) && matches!(answer.outcome, Outcome::Done(_)) {
            answer.outcome = Outcome::Unknown;
        }
        answer
    }
}

/// What a node had when its process ended, or when others ended and it went on.
#[derive(Clone, Copy)]
pub(crate) struct Left {
    /// It has kept everything that it had appended before this time.
    until: u64,
    /// It has kept everything that was answered before this time, if that may be answered before it is appended.
    answered_until: u64,
    /// Whether it was among those that have everything.
    is_holder: bool,
}

impl Left {
    /// What a node has left before its first process has ended.
    pub(crate) const NOTHING: Self = Self { until: 0, answered_until: 0, is_holder: false };
}

/// A time at which no node was left that ran, or no replica of some keys.
pub(crate) struct Outage {
    at: u64,
    /// When it was over for those that lived on: all of them had a view in which some that it took serve again.
    /// Before that they may show what others have lost.
    over: Option<u64>,
    /// The last member before it, and the first view in which a later one of the same nodes serves.
    last_number: MemberNumber,
    back: Option<Epoch>,
    /// The last time that power went before any node was in a view again.
    until: u64,
    /// By index of the node: what those had that were active members.
    left: Vec<Option<Left>>,
    /// Those that were active, whatever their disks have kept.
    active: NodeSet,
    /// The active ones that go on, and have in memory what they had.
    survivors: NodeSet,
    /// The nodes among which keys are placed.
    placed: NodeSet,
    /// The keyspaces in which some node may have lacked what another had come back with.
    in_doubt: Vec<KeyspaceId>,
    /// The keyspaces that lost a node before the others had what it had come back with.
    lost_in_doubt: Vec<KeyspaceId>,
    /// The nodes whose disks are lost as well, if a person has accepted it.
    ruined: NodeSet,
}

impl Outage {
    /// Whether a keyspace may have lost anything then.
    fn may_lose(&self, keyspace: &Keyspace) -> bool {
        !self.ruined.is_empty() || is_kept_in_memory(keyspace)
    }

    /// Which nodes have the keys of each shard or partition.
    fn groups(&self, keyspace: &Keyspace) -> Vec<NodeSet> {
        match keyspace.group_size() {
            Some(size) => {
                (0..SHARDS).map(|shard| placement::group_set(shard, self.placed, size)).collect()
            }
            None => keyspace.groups.clone(),
        }
    }

    /// Whether a group has lost what it had promised: all of its active members, or so many that no quorum
    /// is left which has decided.
    fn loses(&self, keyspace: &Keyspace, group: NodeSet) -> bool {
        let has_quorum = match keyspace.engine {
            EngineConfig::Meerkat(_) => self.survivors.is_majority_of(group),
            _ => !self.survivors.intersection(group).is_empty(),
        };
        !self.active.intersection(group).is_empty() && !has_quorum
    }

    /// The groups that have lost what they had promised.
    fn dark_groups(&self, keyspace: &Keyspace) -> impl Iterator<Item = NodeSet> {
        self.groups(keyspace).into_iter().filter(|group| self.loses(keyspace, *group))
    }
}

/// What a keyspace may have lost of the keys of each shard or partition, in order.
pub(crate) struct ByGroup {
    /// None for none of any.
    losses: Vec<Vec<Loss>>,
    /// Whether these are shards.
    spreads: bool,
}

impl ByGroup {
    /// Nothing.
    #[cfg(test)]
    pub(crate) const NONE: Self = Self { losses: Vec::new(), spreads: false };

    /// What may be lost of a key.
    pub(crate) fn of(&self, key: &[u8]) -> &[Loss] {
        if self.losses.is_empty() {
            return &[];
        }
        let group = match self.spreads {
            true => placement::shard_of(key),
            false => usize::from(partition_of(key, self.losses.len())),
        };
        &self.losses[group]
    }
}

/// Losses one after the other: what all have come back with is on their disks before they serve.
fn in_turn(lost: impl Iterator<Item = Loss>) -> Vec<Loss> {
    let mut losses: Vec<Loss> = Vec::new();
    for loss in lost {
        let before = losses.last().map_or(0, |loss| loss.at + 1);
        losses.push(Loss { from: loss.from.max(before), ..loss });
    }
    losses
}

/// Whether what a keyspace promises is at first in memory only, or for good.
fn is_kept_in_memory(keyspace: &Keyspace) -> bool {
    keyspace.durability != Durability::Sync
}

/// What is to be known of a loss while a run goes on.
#[derive(Clone, Copy)]
pub(crate) struct Losing {
    pub(crate) loss: Loss,
    /// Whether a part of a transaction may be lost, and not all of it.
    pub(crate) torn: bool,
}

impl World {
    /// Notes what each lane of a node has appended, and how much of it is durable.
    pub(crate) fn note_unflushed(&mut self, node: usize) {
        let time = self.time;
        for lane in 0..self.nodes[node].lanes.len() {
            let answered = self.answered_since(node, lane);
            let LaneHost { lane, unflushed, .. } = &mut self.nodes[node].lanes[lane];
            if let Some(ends) = lane.log_ends() {
                unflushed.note(time, answered, ends);
            }
        }
    }

    /// A process ends.
    pub(crate) fn note_left(&mut self, node: usize) {
        self.note_unflushed(node);
        let lanes = || self.nodes[node].lanes.iter().map(|host| &host.unflushed);
        let until = lanes().filter_map(Unflushed::since).min().unwrap_or(self.time);
        let unheard = (0..self.nodes[node].lanes.len()).map(|lane| self.answered_since(node, lane));
        let answered = lanes().filter_map(Unflushed::answered_since).chain(unheard).min();
        let answered_until = answered.unwrap_or(self.time);
        let is_holder = self.holders().contains(self.nodes[node].id);
        self.nodes[node].left = Left { until, answered_until, is_holder };
    }

    /// What is appended is asked of the disk within the interval, unless a request is under way before.
    pub(crate) fn check_interval(&mut self, node: usize) {
        self.note_unflushed(node);
        let this = &self.nodes[node];
        let Some(disk) = &this.disk else { return };
        let interval = this.config.log.fsync_interval.as_nanos() as u64;
        // A clock may be slower than others, within its bound.
        let interval = interval + interval / 1_000_000 * u64::from(this.config.clock_drift_ppm);
        for (lane, host) in this.lanes.iter().enumerate() {
            let waits = host.unflushed.since().map_or(0, |since| self.time - since);
            let is_asked = disk.is_under_way(lane as u16);
            let is_excused = host.was_stopped_since(self.time.saturating_sub(waits))
                || host.lane.is_disk_full()
                || !this.monotonic.was_always_right();
            assert!(
                waits <= interval + LATE_MAX || is_asked || is_excused,
                "{:?} lane {lane} has held back for {} us what it had appended",
                this.id,
                waits / 1_000
            );
        }
    }

    /// The processes of these nodes are about to end.
    pub(crate) fn note_outage(&mut self, dark: NodeSet) {
        self.note_outage_of(dark, NodeSet::EMPTY);
    }

    /// The same; the disks of `ruined` go as well, so many that a person has to accept it, if of any.
    pub(crate) fn note_outage_of(&mut self, dark: NodeSet, ruined: NodeSet) {
        let Some(view) = self.newest_view() else { return };
        let (active, placed, last_number) = (view.active(), view.placed, view.last_number);
        if active.is_empty() {
            // Nobody has served since the last one.
            if let Some(outage) = self.outages.last_mut() {
                outage.until = self.time;
            }
            return;
        }
        let survivors = self.survivors(dark);
        for node in 0..self.nodes.len() {
            if self.nodes[node].up && dark.contains(self.nodes[node].id) {
                self.note_left(node);
            }
        }
        let all = self.nodes.iter();
        let keeps = |node: &Node| active.contains(node.id) && !ruined.contains(node.id);
        let left = |(index, node): (usize, &Node)| match survivors.contains(node.id) {
            true => self.has_in_memory(index),
            false => node.left,
        };
        let left = all.enumerate().map(|it| keeps(it.1).then(|| left(it))).collect();
        let (in_doubt, lost_in_doubt) = (self.keyspaces_in_doubt(active), Vec::new());
        let (at, until) = (self.time, self.time);
        let over = survivors.is_empty().then_some(at);
        let mut outage = Outage {
            at,
            over,
            last_number,
            back: None,
            until,
            left,
            active,
            survivors: self.firm(survivors),
            placed,
            in_doubt,
            lost_in_doubt,
            ruined,
        };
        let kept = self.keyspaces.iter().filter(|keyspace| outage.may_lose(keyspace));
        let lost = kept.filter(|keyspace| outage.dark_groups(keyspace).next().is_some());
        let lost: Vec<KeyspaceId> = lost.map(|keyspace| keyspace.id).collect();
        if lost.is_empty() {
            return;
        }
        outage.survivors = survivors;
        lost.into_iter().for_each(|keyspace| self.awaited.lose(keyspace));
        self.outages.push(outage);
        self.losses_changed = true;
    }

    /// What a node has that goes on: all that it has heard of. It may lose its place in the view yet, so nobody
    /// can count on what it alone has.
    fn has_in_memory(&self, node: usize) -> Left {
        let lanes = 0..self.nodes[node].lanes.len();
        let answered = lanes.map(|lane| self.answered_since(node, lane)).min();
        let answered_until = answered.unwrap_or(self.time);
        Left { until: self.time, answered_until, is_holder: false }
    }

    /// The active members that have in memory what they had, and go on when these end.
    pub(crate) fn survivors(&self, dark: NodeSet) -> NodeSet {
        let Some(view) = self.newest_view() else { return NodeSet::EMPTY };
        let is_member = |node: &&Node| {
            let incarnation = node.lane(0).incarnation();
            view.member(node.id).is_some_and(|member| member.incarnation == incarnation)
        };
        let up = self.nodes.iter().filter(|node| node.up && !dark.contains(node.id));
        let up: NodeSet = up.filter(is_member).map(|node| node.id).collect();
        up.intersection(view.active())
    }

    /// Those of the survivors whom nothing has disturbed that may yet cost them their places in the view. Another
    /// one may be on its way out, in favour of those that end now: what it has is of no use then.
    fn firm(&self, survivors: NodeSet) -> NodeSet {
        if self.time < self.quiet_at {
            return NodeSet::EMPTY;
        }
        survivors.intersection(self.holders())
    }

    /// Whether power may go now, after it went where some replicas lived on: what the others had promised by
    /// then is on disks, so that each loss has its own time.
    pub(crate) fn may_lose_power(&self) -> bool {
        let Some(outage) = self.outages.last().filter(|it| !it.survivors.is_empty()) else {
            return true;
        };
        self.nodes.iter().all(|node| {
            let since = node.lanes.iter().filter_map(|host| host.unflushed.answered_since()).min();
            let until = if node.up { since.unwrap_or(self.time) } else { node.left.answered_until };
            outage.over.is_some_and(|over| until > over) || !outage.active.contains(node.id)
        })
    }

    /// The keyspaces in which some active node may lack what another has come back with.
    fn keyspaces_in_doubt(&self, active: NodeSet) -> Vec<KeyspaceId> {
        let doubts = |keyspace: &KeyspaceId| !self.in_doubt(*keyspace, active).is_empty();
        self.keyspaces.iter().map(|keyspace| keyspace.id).filter(doubts).collect()
    }

    /// The active nodes that may lack what another has come back with.
    fn in_doubt(&self, keyspace: KeyspaceId, active: NodeSet) -> NodeSet {
        let doubts = |node: &&Node| {
            let mut engines = node.lanes.iter().filter_map(|host| host.lane.engine(keyspace));
            node.up && active.contains(node.id) && engines.any(KeyspaceLane::is_in_doubt)
        };
        self.nodes.iter().filter(doubts).map(|node| node.id).collect()
    }

    /// Notes which nodes are in doubt, for the next view: who has it waits no longer for those that have left.
    pub(crate) fn note_doubts(&mut self) {
        let Some(view) = self.newest_view().filter(|_| !self.outages.is_empty()) else { return };
        let active = view.active();
        let ids = self.keyspaces.iter().map(|keyspace| keyspace.id);
        self.doubts = ids.map(|id| (id, self.in_doubt(id, active))).collect();
    }

    /// A view is seen for the first time. Somebody who was active when all power went may be no part of it.
    pub(crate) fn note_lost_in_doubt(&mut self, view: &View) {
        let active = view.active();
        let mut lost = self.keyspaces_in_doubt(active);
        let before = self.doubts.iter().filter(|(_, nodes)| !nodes.intersection(active).is_empty());
        lost.extend(before.map(|(keyspace, _)| *keyspace));
        let Some(outage) = self.outages.last_mut() else { return };
        if !outage.active.is_subset(active) {
            outage.lost_in_doubt.extend(lost);
            self.losses_changed = true;
        }
    }

    /// A node has a view: an outage that others have lived through may be over.
    pub(crate) fn note_back(&mut self, view: &View) {
        let Some(outage) = self.outages.last_mut().filter(|outage| outage.over.is_none()) else {
            return;
        };
        let lost = outage.active.difference(outage.survivors);
        let mut active = view.members.iter().filter(|member| member.role == Role::Active);
        if outage.back.is_none()
            && active.any(|it| lost.contains(it.node) && it.number > outage.last_number)
        {
            outage.back = Some(view.epoch);
            // A view may have been chosen by then that nobody had in force, and may have left some out.
            let goes_on = |node: &NodeId| {
                let member = view.member(*node).filter(|member| member.role == Role::Active);
                member.is_some_and(|member| member.number <= outage.last_number)
            };
            outage.survivors = outage.survivors.into_iter().filter(goes_on).collect();
            self.losses_changed = true;
        }
        let Some(back) = outage.back else { return };
        // A process that is in no view answers nobody.
        let mut epochs = self.nodes.iter().filter(|node| node.up).map(|it| it.lane(0).view().epoch);
        if epochs.all(|epoch| epoch >= back || epoch == Epoch(0)) {
            outage.over = Some(self.time);
            self.losses_changed = true;
        }
    }

    /// The disk of a node is damaged: what it had may be nowhere.
    pub(crate) fn note_damaged(&mut self, node: usize) {
        let time = self.time;
        let [before @ .., outage] = &mut self.outages[..] else { return };
        if outage.until != time {
            return;
        }
        outage.left[node] = None;
        if let Some(before) = before.last_mut() {
            before.lost_in_doubt.extend(&outage.in_doubt);
        }
        self.losses_changed = true;
    }

    /// What a keyspace may have lost, in order.
    pub(crate) fn losses(&self, keyspace: &Keyspace) -> Vec<Loss> {
        in_turn((0..self.outages.len()).filter_map(|number| self.loss(keyspace, number)))
    }

    /// The same of each shard or partition by itself.
    pub(crate) fn losses_by_group(&self, keyspace: &Keyspace) -> ByGroup {
        let spreads = keyspace.group_size().is_some();
        if !self.outages.iter().any(|outage| outage.may_lose(keyspace)) {
            return ByGroup { losses: Vec::new(), spreads };
        }
        let groups: Vec<_> = self.outages.iter().map(|outage| outage.groups(keyspace)).collect();
        let loss_of = |number: usize, group: usize| {
            let group = groups[number][group];
            let loses = self.outages[number].loses(keyspace, group);
            loses.then(|| self.loss_of(keyspace, number, [group])).flatten()
        };
        let all = 0..self.outages.len();
        let losses_of = |group| in_turn(all.clone().filter_map(|number| loss_of(number, group)));
        let count = if spreads { SHARDS } else { keyspace.groups.len() };
        ByGroup { losses: (0..count).map(losses_of).collect(), spreads }
    }

    /// What a keyspace may have lost in the outage of this number.
    fn loss(&self, keyspace: &Keyspace, number: usize) -> Option<Loss> {
        self.loss_of(keyspace, number, self.outages[number].dark_groups(keyspace))
    }

    /// What these groups may have lost, all of them dark.
    fn loss_of(
        &self,
        keyspace: &Keyspace,
        number: usize,
        groups: impl IntoIterator<Item = NodeSet>,
    ) -> Option<Loss> {
        let outage = &self.outages[number];
        if !outage.may_lose(keyspace) {
            return None;
        }
        let is_lost_in_doubt = self.is_lost_in_doubt(keyspace, number);
        let kept =
            groups.into_iter().map(|group| self.kept(keyspace, outage, group, is_lost_in_doubt));
        // Copies outside the group of a key are read until all have heard of the view behind it.
        let at = match keyspace.spreads() {
            true => outage.over.unwrap_or(self.time),
            false => outage.at,
        };
        let all = !outage.ruined.is_empty() || keyspace.durability == Durability::Memory;
        Some(Loss { from: kept.min()?, at, all })
    }

    /// Whether what one node alone had kept of a keyspace may be lost: in the view behind an outage, or behind
    /// a later one that came before all had it.
    fn is_lost_in_doubt(&self, keyspace: &Keyspace, at: usize) -> bool {
        let outage = &self.outages[at];
        if !outage.survivors.is_empty() {
            return true;
        }
        let goes_on = |next: &Outage| next.in_doubt.contains(&keyspace.id);
        outage.lost_in_doubt.contains(&keyspace.id)
            || self.outages.get(at + 1).is_some_and(goes_on)
                && self.is_lost_in_doubt(keyspace, at + 1)
    }

    /// The time up to which the members of a group have kept everything together.
    fn kept(
        &self,
        keyspace: &Keyspace,
        outage: &Outage,
        group: NodeSet,
        is_lost_in_doubt: bool,
    ) -> u64 {
        if keyspace.durability == Durability::Memory {
            return 0;
        }
        let left = || {
            let index = |node: NodeId| outage.left[self.index(node)];
            group.into_iter().filter_map(index)
        };
        let is_of_quorums = matches!(keyspace.engine, EngineConfig::Meerkat(_));
        // Under `sync` an answer waits for the disks of those that have decided.
        let is_ahead = is_of_quorums && keyspace.durability == Durability::Async;
        let until = |left: Left| if is_ahead { left.answered_until } else { left.until };
        let by_all = left().map(until).min().unwrap_or(0);
        // A minority of disks may have nothing of what the others have decided.
        if is_of_quorums && !group.difference(outage.ruined).is_majority_of(group) {
            return 0;
        }
        // What was decided by a quorum may have been decided by those that have lost their votes.
        if is_of_quorums || is_lost_in_doubt {
            return by_all;
        }
        // All live replicas had what was acknowledged, and all take in the newest that any has kept.
        let by_any = left().filter(|left| left.is_holder).map(|left| left.until).max();
        by_any.unwrap_or(by_all)
    }

    /// The last loss of a keyspace, if there was one, with those before that it may have made larger.
    pub(crate) fn losing(&self, keyspace: &Keyspace) -> Option<Losing> {
        let mut loss = *self.losses(keyspace).last()?;
        for (number, outage) in self.outages.iter().enumerate().rev() {
            let Some(Loss { from, .. }) = self.loss(keyspace, number) else { continue };
            loss.from = loss.from.min(from);
            if !outage.in_doubt.contains(&keyspace.id) {
                break;
            }
        }
        Some(Losing { loss, torn: self.tears(keyspace) })
    }

    /// Whether a part of a transaction may be lost: unless every node has every key, and all of it is in one
    /// log (docs/design/011-zeus.md).
    pub(crate) fn tears(&self, keyspace: &Keyspace) -> bool {
        let nodes = self.nodes.len();
        let has_all = |size| placement::group_size(size, nodes) >= nodes;
        let is_whole = matches!(keyspace.engine, EngineConfig::Zeus(_))
            && self.lanes() == 1
            && keyspace.group_size().is_some_and(has_all);
        !is_whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With these alone the power has stayed.
    fn outage(survivors: NodeSet) -> Outage {
        let active = (1..=5).map(NodeId).collect();
        Outage {
            at: 0,
            over: None,
            last_number: MemberNumber::default(),
            back: None,
            until: 0,
            left: Vec::new(),
            active,
            survivors,
            placed: active,
            in_doubt: Vec::new(),
            lost_in_doubt: Vec::new(),
            ruined: NodeSet::EMPTY,
        }
    }

    #[test]
    fn a_group_loses_something_if_nobody_is_left_who_has_all() {
        let group = |nodes: [u16; 3]| nodes.into_iter().map(NodeId).collect::<NodeSet>();
        let groups = vec![group([1, 2, 3]), group([3, 4, 5])];
        let dark = |engine, survivors: &[u16]| {
            let durability = Durability::Async;
            let keyspace =
                Keyspace { id: KeyspaceId(0), engine, durability, groups: groups.clone() };
            let outage = outage(survivors.iter().copied().map(NodeId).collect());
            outage.dark_groups(&keyspace).collect::<Vec<_>>()
        };
        let hermes = |survivors| dark(EngineConfig::hermes(), survivors);
        let meerkat = |survivors| dark(EngineConfig::meerkat(), survivors);
        assert_eq!((hermes(&[4, 5]), meerkat(&[4, 5])), (vec![groups[0]], vec![groups[0]]));
        // One replica of hermes has all, and a minority of meerkat's has not.
        assert_eq!((hermes(&[3]), meerkat(&[3])), (vec![], groups.clone()));
        assert_eq!((hermes(&[]), meerkat(&[1, 3, 4])), (groups.clone(), vec![]));
    }

    #[test]
    fn a_key_loses_what_its_group_has_lost() {
        let loss = Loss { from: 1, at: 2, all: false };
        let only = |group: usize, count: usize| {
            let mut losses = vec![Vec::new(); count];
            losses[group].push(loss);
            losses
        };
        let keys = || (0..1_000).map(|number| format!("key:{number}").into_bytes());
        let parts = ByGroup { losses: only(1, 3), spreads: false };
        let shards = ByGroup { losses: only(7, SHARDS), spreads: true };
        let (mut of_part, mut of_shard) = (0, 0);
        for key in keys() {
            assert_eq!(!parts.of(&key).is_empty(), partition_of(&key, 3) == 1);
            assert_eq!(!shards.of(&key).is_empty(), placement::shard_of(&key) == 7);
            of_part += parts.of(&key).len();
            of_shard += shards.of(&key).len();
            assert!(ByGroup::NONE.of(&key).is_empty());
        }
        assert!((200..500).contains(&of_part) && (1..20).contains(&of_shard));
    }
}
