//! Units of keys that operators have pinned to nodes.
//!
//! A keyspace whose keys move ([`quorate_engine::Capabilities::moves_keys`]) has an internal one beside
//! it, of an engine that keeps every record on every member. There each pin is a record
//! ([`quorate_types::placement::pin_key`]). Nodes read their own copy without asking whether it is the
//! latest: a pin is a hint, and what is sent to a node runs there in any case.

use quorate_engine::Pins;
use quorate_types::placement::pin_key;
use quorate_types::{KeyspaceId, NodeId, limits};

use crate::{EngineConfig, KeyspaceConfig, KeyspaceStore, Shared};

/// The internal keyspace of pins.
pub const PINS: KeyspaceId = KeyspaceId(limits::PINS_KEYSPACE);

/// The keyspaces, and that of pins if the keys of any of them move.
pub fn with_pins(mut keyspaces: Vec<KeyspaceConfig>) -> Vec<KeyspaceConfig> {
    let moves = |keyspace: &KeyspaceConfig| keyspace.engine.capabilities().moves_keys();
    if keyspaces.iter().any(moves) {
        let engine = EngineConfig::first_with(|can| can.replicated && !can.transactions);
        let mut pins = KeyspaceConfig::new(PINS, "pins", engine);
        if pins.engine.capabilities().durable {
            // Pins survive what any keyspace survives.
            let durability = keyspaces.iter().map(|keyspace| keyspace.durability).max();
            pins.durability = durability.unwrap_or_default();
        }
        keyspaces.push(pins);
    }
    keyspaces
}

/// The pins of one keyspace, as this node knows them.
#[derive(Debug)]
pub(crate) struct KnownPins {
    keyspace: KeyspaceId,
    store: Option<KeyspaceStore>,
}

impl KnownPins {
    pub(crate) fn new(shared: &Shared, keyspace: &KeyspaceConfig) -> Self {
        let store = shared.store(PINS).filter(|_| keyspace.engine.capabilities().moves_keys());
        Self { keyspace: keyspace.id, store: store.cloned() }
    }

    /// How many units of any keyspace are pinned; `None` where keys don't move or nothing keeps pins.
    pub(crate) fn count(&self) -> Option<u64> {
        self.store.as_ref().map(|store| store.stats().with_value)
    }
}

impl Pins for KnownPins {
    fn is_empty(&self) -> bool {
        self.count().is_none_or(|count| count == 0)
    }

    fn node_of(&self, unit: &[u8]) -> Option<NodeId> {
        let node = self.store.as_ref()?.glance(&pin_key(self.keyspace.0, unit))?;
        std::str::from_utf8(&node).ok()?.parse().ok().map(NodeId)
    }
}
