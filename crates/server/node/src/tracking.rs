//! Keys whose changes clients of this node are told of, because they keep what they have read of them
//! (`CLIENT TRACKING`).
//!
//! The node hears of a change through its replica of the key ([`quorate_storage::Store::watch`]),
//! whichever node made it. A lane that takes the list of changes looks up here which lanes want to
//! know, and tells them by mail. A key is forgotten with its first change: who reads it again
//! tracks it again.
//!
//! What a front end does with an invalidation rests on three rules:
//! - A key is tracked *before* it is read, and the change of a key that is watched is listed. So a
//!   change that the read has not seen is told.
//! - The front end tells its client behind every reply that is still to come. So what is told of a
//!   key reaches the client behind whatever older value it is answered.
//! - A read that is answered here is never older than a change of which this replica had heard when
//!   the key was tracked. That holds for what runs on this replica. A command that another node ran
//!   may have seen less: its keys count as changed once it is answered.
//!
//! While the node is without a lease, others may write what it doesn't hear of. So the clients are
//! told that everything may have changed, at the moment at which the lease lapses: no view without
//! this node comes before that. If the same life gets a lease again, it was a member all along, and
//! each acknowledged update has waited for its replica. A new life begins with empty stores, and all
//! that was watched in them counts as changed.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use quorate_commands::{Op, Reply};
use quorate_machine::{Command, Outcome, mutant};
use quorate_storage::{Changed, Changes};
use quorate_sync::primitives::{Mutex, MutexGuard};
use quorate_types::{Instant, KeyspaceId, LaneId, Now, Tag};

use crate::{Done, Lane, Mail, Outbox};

pub(crate) const PROBES: &[&str] = &[LAPSED, DOUBTED];

const LAPSED: &str = "tracking: the lease lapsed";
const DOUBTED: &str = "tracking: another node answered";

/// What clients must no longer rely on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Invalidation {
    /// Keys of a keyspace.
    Keys(KeyspaceId, Changes),
    /// Anything at all.
    Everything,
}

/// Which lanes of the node want to hear of which keys.
#[derive(Debug, Default)]
pub(crate) struct Tracked(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Of each key the lanes, one bit each. Each of these keys is watched once.
    keyspaces: BTreeMap<KeyspaceId, BTreeMap<Box<[u8]>, u64>>,
    /// The lanes that hear of every change that is listed.
    broad: u64,
}

impl Tracked {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one lane knows of its clients that keep what they read.
#[derive(Debug, Default)]
pub(crate) struct Tracking {
    /// Whether there are any.
    active: bool,
    /// Whether they were told that the lease has lapsed.
    lapsed: bool,
    /// How often each prefix is tracked.
    prefixes: usize,
    /// Prefixes that other lanes have yet to hear of, with how many have.
    unheard: BTreeMap<Tag, usize>,
}

fn bit(lane: LaneId) -> u64 {
    1 << lane.0
}

fn lanes_of(bits: u64) -> impl Iterator<Item = LaneId> {
    (0..64).filter(move |lane| bits >> lane & 1 == 1).map(LaneId)
}

impl Lane {
    /// Whether any client of this lane keeps what it reads. While one does, the lane hears of a lease
    /// that lapses.
    pub fn set_tracking(&mut self, active: bool) {
        self.tracking.active = active;
    }

    /// The next change of a key is told through [`Outbox::invalidated`], unless this returns false:
    /// then the node has no replica of the key. To be called before the key is read.
    pub fn track(&mut self, keyspace: KeyspaceId, key: &[u8]) -> bool {
        let hears = self.engine(keyspace).is_some_and(|engine| engine.holds(key));
        let Some(store) = self.shared.store(keyspace).filter(|_| hears) else { return false };
        let mut state = self.shared.tracked.state();
        let keys = state.keyspaces.entry(keyspace).or_default();
        match keys.get_mut(key) {
            Some(lanes) => *lanes |= bit(self.id),
            None => {
                keys.insert(key.into(), bit(self.id));
                // No other lane may find it tracked before it is watched.
                store.watch(key);
                if mutant!("node_key_not_watched") {
                    store.unwatch(key);
                }
            }
        }
        true
    }

    /// Nobody on this lane wants to hear of a key any more.
    pub fn untrack(&mut self, keyspace: KeyspaceId, key: &[u8]) {
        let mut state = self.shared.tracked.state();
        let Some(keys) = state.keyspaces.get_mut(&keyspace) else { return };
        let Some(lanes) = keys.get_mut(key) else { return };
        *lanes &= !bit(self.id);
        if *lanes == 0 {
            keys.remove(key);
            if let Some(store) = self.shared.store(keyspace) {
                store.unwatch(key);
            }
        }
    }

    /// Whether this node hears of the changes of every key: it has replicas of all.
    pub fn hears_all(&self) -> bool {
        self.engines.iter().flatten().all(crate::KeyspaceLane::holds_all)
    }

    /// Every change of a key that begins so is told through [`Outbox::invalidated`] from the moment on
    /// at which this completes with [`Reply::Ok`]: once the other lanes know. By then all lanes have
    /// published anew what they count. Ends with [`Lane::untrack_prefix`].
    ///
    /// If they are `coalesced`, a change is told together with others, and a key once until this is called
    /// again on any lane, for whichever prefixes.
    pub fn track_prefixes(
        &mut self,
        now: Now,
        tag: Tag,
        prefixes: &[&[u8]],
        coalesced: bool,
        out: &mut Outbox,
    ) {
        self.publish(now);
        for (_, store) in self.shared.stores() {
            prefixes.iter().for_each(|prefix| store.watch_prefix(prefix, coalesced));
        }
        self.tracking.prefixes += prefixes.len();
        self.shared.tracked.state().broad |= bit(self.id);
        // What was told before this lane wanted to hear of it is told anew.
        if !mutant!("node_broadcast_arms_nothing") {
            self.shared.stores().for_each(|(_, store)| store.arm());
        }
        let others = (0..self.shared.config.lanes).map(LaneId).filter(|lane| *lane != self.id);
        let others = others.map(|lane| (lane, Mail::Watch { from: self.id, tag }));
        let before = out.mail.len();
        out.mail.extend(others);
        match out.mail.len() - before {
            0 => out.done.push(Done::new(tag, Outcome::Done(Reply::Ok))),
            others => drop(self.tracking.unheard.insert(tag, others)),
        }
    }

    /// Another lane has heard of the prefixes that this one watches.
    pub(crate) fn watch_heard(&mut self, tag: Tag, out: &mut Outbox) {
        let missing = self.tracking.unheard.get_mut(&tag).expect("only what was asked is answered");
        *missing -= 1;
        if *missing == 0 {
            self.tracking.unheard.remove(&tag);
            out.done.push(Done::new(tag, Outcome::Done(Reply::Ok)));
        }
    }

    /// A prefix is tracked once less.
    pub fn untrack_prefix(&mut self, prefix: &[u8], coalesced: bool) {
        self.shared.stores().for_each(|(_, store)| store.unwatch_prefix(prefix, coalesced));
        self.tracking.prefixes -= 1;
        if self.tracking.prefixes == 0 {
            self.shared.tracked.state().broad &= !bit(self.id);
        }
    }

    /// Keys have changed on this node: tells the lanes that want to know.
    pub(crate) fn tell_trackers(
        &mut self,
        keyspace: KeyspaceId,
        changes: Changes,
        out: &mut Outbox,
    ) {
        let mut told: BTreeMap<LaneId, Changes> = BTreeMap::new();
        let mut state = self.shared.tracked.state();
        let State { keyspaces, broad } = &mut *state;
        let mut keys = keyspaces.get_mut(&keyspace);
        for changed in changes.keys {
            let mut lanes = *broad;
            if let Some(keys) = &mut keys
                && let Some(readers) = keys.remove(&changed.key)
            {
                lanes |= readers;
                if let Some(store) = self.shared.store(keyspace) {
                    store.unwatch(&changed.key);
                }
            }
            for lane in lanes_of(lanes) {
                told.entry(lane).or_default().keys.push(changed.clone());
            }
        }
        for lane in lanes_of(*broad).filter(|_| changes.more) {
            told.entry(lane).or_default().more = true;
        }
        drop(state);
        for (lane, changes) in told {
            let invalidation = Invalidation::Keys(keyspace, changes);
            if lane == self.id {
                out.invalidated.push(invalidation);
            } else if !mutant!("node_other_lanes_not_told") {
                out.mail.push((lane, Mail::Invalidated(invalidation)));
            }
        }
    }

    /// Another node has answered an op. What it has seen of the keys may be older than what this node
    /// had heard of when they were tracked.
    pub(crate) fn doubt_keys(&mut self, keyspace: KeyspaceId, op: &Op, out: &mut Outbox) {
        if !self.tracking.active {
            return;
        }
        let mut keys = Vec::new();
        op.visit_keys(&mut |key| {
            keys.push(Changed { key: key.into(), kind: None, writer: None });
        });
        keys.retain(|changed| {
            let state = self.shared.tracked.state();
            let readers = state.keyspaces.get(&keyspace).and_then(|keys| keys.get(&changed.key));
            (readers.copied().unwrap_or(0) | state.broad) & bit(self.id) != 0
        });
        if keys.is_empty() {
            return;
        }
        keys.iter().for_each(|changed| self.untrack(keyspace, &changed.key));
        crate::lane::count(&mut out.probes, DOUBTED);
        out.invalidated.push(Invalidation::Keys(keyspace, Changes { keys, more: false }));
    }

    /// When the lease lapses, if that is to be told.
    pub(crate) fn tracking_deadline(&self) -> Instant {
        match self.tracking {
            Tracking { active: true, lapsed: false, .. } => self.shared.lease_until(),
            _ => Instant::NEVER,
        }
    }

    /// Tells the clients of a lease that has lapsed.
    pub(crate) fn tick_tracking(&mut self, now: Now, out: &mut Outbox) {
        if !self.tracking.active {
            return;
        }
        let lapsed = self.shared.lease_until() <= now.monotonic;
        let before = std::mem::replace(&mut self.tracking.lapsed, lapsed);
        if lapsed && !before && !mutant!("node_lapse_not_told") {
            crate::lane::count(&mut out.probes, LAPSED);
            out.invalidated.push(Invalidation::Everything);
        }
    }
}
