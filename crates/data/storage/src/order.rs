//! The keys of a part in the order of their bytes, beside its index.

use std::collections::BTreeSet;

use quorate_machine::range_bounds;

use crate::counters::Counters;
use crate::sync::{Mutex, MutexGuard};

/// About what a key takes here besides its bytes: a pointer and a length in a node of the tree that is
/// two thirds full, and what the allocator adds.
const KEY_BYTES: usize = 40;

/// The keys of one part that have records. Changed under the mutex of the shard whose record comes or
/// goes, so both always agree for a lane that holds all keys.
pub(crate) struct Order(Mutex<BTreeSet<Box<[u8]>>>);

impl Order {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(BTreeSet::new()))
    }

    fn keys(&self) -> MutexGuard<'_, BTreeSet<Box<[u8]>>> {
        self.0.lock().expect("no thread panics while it holds the keys")
    }

    pub(crate) fn insert(&self, key: &[u8], counters: &Counters) {
        if self.keys().insert(key.into()) {
            counters.shift_index(0, KEY_BYTES + key.len());
        }
    }

    pub(crate) fn remove(&self, key: &[u8], counters: &Counters) {
        if self.keys().remove(key) {
            counters.shift_index(KEY_BYTES + key.len(), 0);
        }
    }

    pub(crate) fn clear(&self, counters: &Counters) {
        let keys = std::mem::take(&mut *self.keys());
        keys.iter().for_each(|key| counters.shift_index(KEY_BYTES + key.len(), 0));
    }

    /// Adds the first keys from `from` on and below `to`, at most `limit` of them.
    pub(crate) fn first(
        &self,
        from: &[u8],
        to: Option<&[u8]>,
        limit: usize,
        keys: &mut Vec<Box<[u8]>>,
    ) {
        let Some(bounds) = range_bounds(from, to) else { return };
        keys.extend(self.keys().range::<[u8], _>(bounds).take(limit).cloned());
    }
}
