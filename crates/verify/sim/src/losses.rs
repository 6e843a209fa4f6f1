//! What a loss of all power may take with it where promises do not wait for the log (`async`).
//!
//! An update that is answered is in the logs of its replicas, and on their disks when the interval and a
//! flush are over (docs/src/durability.md). So the world notes for each lane the time of the first entry that
//! its disk may not have. When no node is left that runs, these say up to which time each node has kept
//! everything, and what a keyspace may lose: what was answered later, and no more. Of each key that is a
//! suffix of its versions.
//!
//! All replicas had what was acknowledged, and all take in the newest that any has kept: so what the best of
//! them has kept is not lost. But that takes a while. If that node is out of the view before the others have it,
//! or all power goes once more and its disk is damaged, then the ends of the logs of the others are lost, as the
//! interval allows.

use std::collections::VecDeque;

use quorate_check::Loss;
use quorate_node::{Durability, EngineConfig, KeyspaceLane};
use quorate_types::placement::{self, SHARDS};
use quorate_types::{KeyspaceId, Lsn, NodeId, NodeSet, View};

use crate::keyspaces::Keyspace;
use crate::process::LaneHost;
use crate::world::{MS, World};

/// How much later than said a lane may begin a flush: its turns are not arbitrarily close.
const LATE_MAX: u64 = MS;

/// When a lane has appended what its disk may not have yet, in order.
#[derive(Default)]
pub(crate) struct Unflushed(VecDeque<(u64, Lsn)>);

impl Unflushed {
    /// Notes how far a log goes at the end of a turn, and how far it is durable.
    pub(crate) fn note(&mut self, time: u64, (appended, durable): (Lsn, Lsn)) {
        let known = self.0.back().map_or(durable, |(_, last)| *last);
        if appended > known {
            self.0.push_back((time, appended));
        }
        while self.0.pop_front_if(|(_, lsn)| *lsn <= durable).is_some() {}
    }

    /// The time of the first entry that may not be durable.
    fn since(&self) -> Option<u64> {
        self.0.front().map(|(time, _)| *time)
    }
}

/// What a node had when its process ended.
#[derive(Clone, Copy)]
pub(crate) struct Left {
    /// Everything that it had appended before this time was durable.
    until: u64,
    /// Whether it was among those that have everything.
    is_holder: bool,
}

impl Left {
    /// What a node has left before its first process has ended.
    pub(crate) const NOTHING: Self = Self { until: 0, is_holder: false };
}

/// A time at which no node was left that ran.
pub(crate) struct Outage {
    at: u64,
    /// The last time that power went before any node was in a view again.
    until: u64,
    /// By index of the node: what those had that were active members.
    left: Vec<Option<Left>>,
    /// Those that were active, whatever their disks have kept.
    active: NodeSet,
    /// The nodes among which keys are placed.
    placed: NodeSet,
    /// The keyspaces in which some node may have lacked what another had come back with.
    in_doubt: Vec<KeyspaceId>,
    /// The keyspaces that lost a node before the others had what it had come back with.
    lost_in_doubt: Vec<KeyspaceId>,
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
        for LaneHost { lane, unflushed, .. } in &mut self.nodes[node].lanes {
            if let Some(ends) = lane.log_ends() {
                unflushed.note(time, ends);
            }
        }
    }

    /// A process ends.
    pub(crate) fn note_left(&mut self, node: usize) {
        self.note_unflushed(node);
        let since = self.nodes[node].lanes.iter().filter_map(|host| host.unflushed.since());
        let until = since.min().unwrap_or(self.time);
        let is_holder = self.holders().contains(self.nodes[node].id);
        self.nodes[node].left = Left { until, is_holder };
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

    /// The processes of all nodes are about to end.
    pub(crate) fn note_outage(&mut self) {
        let Some(view) = self.newest_view() else { return };
        let (active, placed) = (view.active(), view.placed);
        if active.is_empty() {
            // Nobody has served since the last one.
            if let Some(outage) = self.outages.last_mut() {
                outage.until = self.time;
            }
            return;
        }
        for node in 0..self.nodes.len() {
            if self.nodes[node].up {
                self.note_left(node);
            }
        }
        let all = self.nodes.iter();
        let left = all.map(|node| active.contains(node.id).then_some(node.left)).collect();
        let (in_doubt, lost_in_doubt) = (self.keyspaces_in_doubt(active), Vec::new());
        let (at, until) = (self.time, self.time);
        self.outages.push(Outage { at, until, left, active, placed, in_doubt, lost_in_doubt });
        self.losses_changed = true;
    }

    /// The keyspaces in which some active node may lack what another has come back with.
    fn keyspaces_in_doubt(&self, active: NodeSet) -> Vec<KeyspaceId> {
        let up = || self.nodes.iter().filter(|node| node.up && active.contains(node.id));
        let doubts = |keyspace: &&Keyspace| {
            let mut lanes = up().flat_map(|node| &node.lanes);
            lanes.any(|host| host.lane.engine(keyspace.id).is_some_and(KeyspaceLane::is_in_doubt))
        };
        self.keyspaces.iter().filter(doubts).map(|keyspace| keyspace.id).collect()
    }

    /// A view is seen for the first time. Somebody who was active when all power went may be no part of it.
    pub(crate) fn note_lost_in_doubt(&mut self, view: &View) {
        let lost = self.keyspaces_in_doubt(view.active());
        let Some(outage) = self.outages.last_mut() else { return };
        if !outage.active.is_subset(view.active()) {
            outage.lost_in_doubt.extend(lost);
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
        if keyspace.durability != Durability::Async {
            return Vec::new();
        }
        let mut losses: Vec<Loss> = Vec::new();
        for (at, outage) in self.outages.iter().enumerate() {
            let is_lost_in_doubt = self.is_lost_in_doubt(keyspace, at);
            let groups: Vec<NodeSet> = match keyspace.group_size() {
                Some(size) => (0..SHARDS)
                    .map(|shard| placement::group(shard, outage.placed, size).into_iter().collect())
                    .collect(),
                None => keyspace.groups.clone(),
            };
            let kept = |group| self.kept(keyspace, outage, group, is_lost_in_doubt);
            let kept = groups.into_iter().map(kept);
            let from = kept.min().unwrap_or(outage.at);
            // What all have come back with is on their disks before they serve.
            let before = losses.last().map_or(0, |loss| loss.at + 1);
            losses.push(Loss { from: from.max(before), at: outage.at });
        }
        losses
    }

    /// Whether what one node alone had kept of a keyspace may be lost: in the view behind an outage, or behind
    /// a later one that came before all had it.
    fn is_lost_in_doubt(&self, keyspace: &Keyspace, at: usize) -> bool {
        let outage = &self.outages[at];
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
        let left = || {
            let index = |node: NodeId| outage.left[self.index(node)];
            group.into_iter().filter_map(index)
        };
        let by_all = left().map(|left| left.until).min().unwrap_or(0);
        // What was decided by a quorum may have been decided by those that have lost their votes.
        if matches!(keyspace.engine, EngineConfig::Meerkat(_)) || is_lost_in_doubt {
            return by_all;
        }
        // All live replicas had what was acknowledged, and all take in the newest that any has kept.
        let by_any = left().filter(|left| left.is_holder).map(|left| left.until).max();
        by_any.unwrap_or(by_all)
    }

    /// The last loss of a keyspace, if there was one, with those before that it may have made larger.
    pub(crate) fn losing(&self, keyspace: &Keyspace) -> Option<Losing> {
        let losses = self.losses(keyspace);
        let mut loss = *losses.last()?;
        let latest = losses.iter().zip(&self.outages).rev();
        for (Loss { from, .. }, outage) in latest {
            loss.from = loss.from.min(*from);
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
