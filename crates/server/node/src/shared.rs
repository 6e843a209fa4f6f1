//! What the lanes of a node share.

use std::sync::{Arc, PoisonError};

use quorate_sync::primitives::{AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering};
use quorate_types::{Instant, KeyspaceId, LaneId, limits};

use crate::blocking::Lines;
use crate::listeners::Listeners;
use crate::pins::PINS;
use crate::tracking::Tracked;
use crate::{ControlFacts, KeyspaceStore, LaneFacts, NodeConfig, PlacementFacts, StoreFacts};

/// Shared by the lanes of one node. On the hot path it is only read.
#[derive(Debug)]
pub struct Shared {
    /// What the node was told at its start.
    pub config: NodeConfig,
    stores: Vec<Option<KeyspaceStore>>,
    /// Who waits for which key.
    pub(crate) lines: Lines,
    lease_until: AtomicU64,
    active: AtomicBool,
    control: Mutex<ControlFacts>,
    lanes: Vec<Mutex<LaneFacts>>,
    pub(crate) listeners: Listeners,
    /// Which keys the clients keep that read them.
    pub(crate) tracked: Tracked,
    /// The lanes that write a snapshot or were asked for one, as bits.
    saving: AtomicU64,
    /// When each lane has completed its newest snapshot, in milliseconds since 1970; 0 before the first.
    saved_at: Vec<AtomicU64>,
}

impl Shared {
    /// The shared part of a node that has just started.
    pub fn new(config: NodeConfig) -> Arc<Self> {
        let mut stores = vec![None; limits::KEYSPACES_MAX + 1];
        for keyspace in &config.keyspaces {
            let store = keyspace.engine.new_store(config.lanes, config.packed_bytes_max);
            stores[usize::from(keyspace.id.0)] = Some(store);
        }
        let saved_at = (0..config.lanes).map(|_| AtomicU64::new(0)).collect();
        let lanes = (0..config.lanes).map(|_| Mutex::default()).collect();
        Arc::new(Self {
            config,
            stores,
            lines: Lines::default(),
            lease_until: AtomicU64::new(0),
            active: AtomicBool::new(false),
            control: Mutex::default(),
            lanes,
            listeners: Listeners::default(),
            tracked: Tracked::default(),
            saving: AtomicU64::new(0),
            saved_at,
        })
    }

    /// The records of a keyspace.
    pub fn store(&self, keyspace: KeyspaceId) -> Option<&KeyspaceStore> {
        self.stores.get(usize::from(keyspace.0))?.as_ref()
    }

    /// Every keyspace with its records.
    pub(crate) fn stores(&self) -> impl Iterator<Item = (KeyspaceId, &KeyspaceStore)> {
        let numbered = (0..).map(KeyspaceId).zip(&self.stores);
        numbered.filter_map(|(id, store)| Some((id, store.as_ref()?)))
    }

    /// Until when this node may answer from its own records.
    pub fn lease_until(&self) -> Instant {
        Instant(self.lease_until.load(Ordering::Acquire))
    }

    pub(crate) fn set_lease_until(&self, until: Instant) {
        self.lease_until.store(until.0, Ordering::Release);
    }

    /// Whether this node serves clients in the view in force.
    pub fn is_active(&self) -> bool {
        self.active.load(Ordering::Acquire)
    }

    pub(crate) fn set_active(&self, active: bool) {
        self.active.store(active, Ordering::Release);
    }

    /// Whether a lane writes a snapshot or was asked for one.
    pub fn is_saving(&self) -> bool {
        self.saving.load(Ordering::Acquire) != 0
    }

    /// When every lane has completed a snapshot, in milliseconds since 1970. `None` before that.
    pub fn saved_at(&self) -> Option<u64> {
        let oldest = self.saved_at.iter().map(|at| at.load(Ordering::Acquire)).min();
        oldest.filter(|at| *at > 0)
    }

    pub(crate) fn lane_saved_at(&self, lane: LaneId) -> u64 {
        self.saved_at[usize::from(lane.0)].load(Ordering::Acquire)
    }

    /// A lane begins or ends a snapshot.
    pub(crate) fn set_saving(&self, lane: LaneId, saves: bool, saved_at: u64) {
        self.saved_at[usize::from(lane.0)].store(saved_at, Ordering::Release);
        let bit = 1 << lane.0;
        if saves {
            self.saving.fetch_or(bit, Ordering::AcqRel);
        } else {
            self.saving.fetch_and(!bit, Ordering::AcqRel);
        }
    }

    /// What the membership machine knew last.
    pub fn control_facts(&self) -> ControlFacts {
        lock(&self.control).clone()
    }

    pub(crate) fn publish_control(&self, facts: ControlFacts) {
        *lock(&self.control) = facts;
    }

    /// What each lane counted, as of its last publication.
    pub fn lane_facts(&self) -> Vec<LaneFacts> {
        self.lanes.iter().map(|lane| lock(lane).clone()).collect()
    }

    pub(crate) fn publish_lane(&self, lane: usize, facts: LaneFacts) {
        *lock(&self.lanes[lane]) = facts;
    }

    /// Updates that may have ended and whose end some live replica may not know, as of the lanes' last
    /// publications.
    pub fn unsettled(&self) -> u64 {
        let lanes = self.lane_facts();
        let gauges = lanes.iter().flat_map(|lane| &lane.engines).flat_map(|engine| &engine.gauges);
        gauges.filter(|(name, _)| *name == "unsettled").map(|(_, count)| count).sum()
    }

    /// Where transactions run, as of the lanes' last publications. `None` if no keys move here.
    pub fn placement_facts(&self) -> Option<PlacementFacts> {
        let pins = self.store(PINS)?.stats().with_value;
        let mut facts = PlacementFacts { pins, ..PlacementFacts::default() };
        let lanes = self.lane_facts();
        let moves = |keyspace| {
            let config = self.config.keyspace(keyspace);
            config.is_some_and(|config| config.engine.capabilities().moves_keys())
        };
        for engine in lanes.iter().flat_map(|lane| &lane.engines).filter(|e| moves(e.keyspace)) {
            for (name, count) in engine.counters.iter().chain(&engine.gauges) {
                let fact = match *name {
                    "moves" => &mut facts.moves,
                    "commits" => &mut facts.commits,
                    "waited" => &mut facts.waited,
                    "forwarded_updates" => &mut facts.forwarded,
                    "bounced" => &mut facts.bounced,
                    "bouncing" => &mut facts.bouncing,
                    "copies_dropped" => &mut facts.copies_dropped,
                    _ => continue,
                };
                *fact += count;
            }
        }
        Some(facts)
    }

    /// What a keyspace of this node holds.
    pub fn store_facts(&self, keyspace: KeyspaceId) -> StoreFacts {
        let Some(store) = self.store(keyspace) else { return StoreFacts::default() };
        let stats = store.stats();
        StoreFacts {
            keys: stats.with_value,
            expiring: stats.with_expiry,
            tombstones: stats.records - stats.with_value,
            bytes: stats.bytes,
        }
    }

    /// Bytes of all records and indexes of this node.
    pub fn memory_used(&self) -> u64 {
        self.stores.iter().flatten().map(|store| store.stats().bytes).sum()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Facts are replaced whole; a panic elsewhere can't leave them half written.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
