//! Where an op runs: on this replica, or on the one that owns its key.
//!
//! Read-modify-writes that race for a key abort each other. Once that has happened to a key, its
//! read-modify-writes run at one hashed replica, its *owner*, where they queue instead (the thesis's
//! "opportunistic leader", §4.3.5). Nothing depends on it. A node outside the keyspace's replica group
//! runs none of its ops.

use quorate_engine::Place;
use quorate_machine::{Access, Command, Record, Slot, Table};
use quorate_types::{Duration, Instant, Now, hash_key};

use crate::{Hermes, Meta};

/// Superseded read-modify-writes after which a key counts as hot.
const CONFLICTS_MIN: u32 = 3;
/// How long a conflict counts.
const CONFLICT_MEMORY: Duration = Duration::from_millis(500);
/// Keys whose conflicts are remembered.
const HOT_KEYS_MAX: usize = 1024;

impl<T: Table<Meta = Meta>, O: Command<Owned = O>> Hermes<T, O> {
    /// Where an op of a client of this node should run.
    #[inline]
    pub fn place(&mut self, now: Now, op: &impl Command) -> Place {
        if self.is_replica && !self.is_contended(now, op) {
            return Place::Here;
        }
        match self.owner(hash_key(op.key())) {
            None => Place::Unknown,
            Some(owner) if owner == self.config.node => Place::Here,
            Some(owner) => Place::At(owner),
        }
    }

    /// Whether the op loses races that it would not lose at the owner of its key.
    ///
    /// Only a key that has nothing pending or queued here counts: then every earlier op of the same
    /// origin has ended.
    fn is_contended(&mut self, now: Now, op: &impl Command) -> bool {
        if self.hot.is_empty() || op.access() != Access::Update {
            return false;
        }
        if let Some(handle) = self.table.find(op.key())
            && (self.queues.contains_key(&handle)
                || self.table.lock(handle).meta().op != Slot::NONE)
        {
            return false;
        }
        self.hot
            .get(&hash_key(op.key()))
            .is_some_and(|(conflicts, until)| *conflicts >= CONFLICTS_MIN && *until > now.monotonic)
    }

    /// A read-modify-write lost a race for this key.
    pub(crate) fn note_conflict(&mut self, now: Now, handle: T::Handle) {
        if self.hot.len() >= HOT_KEYS_MAX {
            self.hot.retain(|_, (_, until)| *until > now.monotonic);
            if self.hot.len() >= HOT_KEYS_MAX {
                return;
            }
        }
        let hash = hash_key(self.table.lock(handle).key());
        let (conflicts, until) = self.hot.entry(hash).or_insert((0, Instant::ZERO));
        *conflicts = if *until > now.monotonic { *conflicts + 1 } else { 1 };
        *until = now.monotonic + CONFLICT_MEMORY;
    }
}
