//! Keys whose changes somebody waits for: what blocks clients until a key has something, or tells
//! them that it changed, asks the store to list its changes.
//!
//! A key is watched by its bytes and as often as it was asked for. A change of a watched value is
//! listed by the thread that makes it, under the record's lock, once until the list is taken. While
//! nothing is watched, that costs a change one load of a number on a cache line of its lane
//! ([`crate::counters::Counters`]); while other keys are, a hash and another load.
//!
//! Nothing is missed. [`crate::Store::watch`] passes through the locks of the key's shard and record
//! behind the moment from which changes are listed: a change that was made before is seen by
//! whatever the watcher reads from then on, and a later one finds the key watched.

use std::collections::BTreeMap;

use quorate_machine::ValueKind;

use crate::sync::{Count, Mutex, MutexGuard, Ordering};

/// Numbers of watched keys by a part of their hashes.
const SLOTS: usize = 1024;

/// A watched key has changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Changed {
    /// The key.
    pub key: Box<[u8]>,
    /// What it held after its last change. `None` if it has no value.
    pub kind: Option<ValueKind>,
}

/// The watched keys of a store.
pub(crate) struct Watches {
    slots: Box<[Count]>,
    /// How many changes are listed.
    listed: Count,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    watched: BTreeMap<Box<[u8]>, Watched>,
    changes: Vec<Changed>,
}

struct Watched {
    count: usize,
    /// Where its change is listed.
    listed: Option<usize>,
}

impl Default for Watches {
    fn default() -> Self {
        let slots = (0..SLOTS).map(|_| Count::new(0)).collect();
        Self { slots, listed: Count::new(0), state: Mutex::new(State::default()) }
    }
}

impl Watches {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds the watches")
    }

    fn slot(&self, hash: u64) -> &Count {
        &self.slots[hash as usize % SLOTS]
    }

    /// Watches a key once more.
    pub(crate) fn add(&self, hash: u64, key: &[u8]) {
        self.slot(hash).fetch_add(1, Ordering::Relaxed);
        let mut state = self.state();
        match state.watched.get_mut(key) {
            Some(watched) => watched.count += 1,
            None => drop(state.watched.insert(key.into(), Watched { count: 1, listed: None })),
        }
    }

    /// Watches a key once less.
    ///
    /// # Panics
    /// If it isn't watched.
    pub(crate) fn remove(&self, hash: u64, key: &[u8]) {
        let mut state = self.state();
        let watched = state.watched.get_mut(key).expect("a key is unwatched as often as watched");
        watched.count -= 1;
        if watched.count == 0 {
            state.watched.remove(key);
        }
        drop(state);
        self.slot(hash).fetch_sub(1, Ordering::Relaxed);
    }

    /// A value has changed. The caller holds its record's lock, and takes no other.
    #[cold]
    pub(crate) fn note(&self, hash: u64, key: &[u8], kind: Option<ValueKind>) {
        if self.slot(hash).load(Ordering::Relaxed) == 0 {
            return;
        }
        let State { watched, changes } = &mut *self.state();
        let Some(watched) = watched.get_mut(key) else { return };
        self.list(watched, changes, key, kind);
    }

    /// Every value may have changed.
    pub(crate) fn note_all(&self) {
        let State { watched, changes } = &mut *self.state();
        for (key, watched) in watched {
            self.list(watched, changes, key, None);
        }
    }

    fn list(
        &self,
        watched: &mut Watched,
        changes: &mut Vec<Changed>,
        key: &[u8],
        kind: Option<ValueKind>,
    ) {
        match watched.listed {
            Some(at) => changes[at].kind = kind,
            None => {
                watched.listed = Some(changes.len());
                changes.push(Changed { key: key.into(), kind });
                self.listed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Whether any change is listed. A thread sees its own.
    #[inline]
    pub(crate) fn has_changes(&self) -> bool {
        self.listed.load(Ordering::Relaxed) > 0
    }

    /// Takes the list, in the order in which the keys came on it.
    pub(crate) fn take(&self) -> Vec<Changed> {
        let State { watched, changes } = &mut *self.state();
        let changes = std::mem::take(changes);
        for changed in &changes {
            if let Some(watched) = watched.get_mut(&changed.key) {
                watched.listed = None;
            }
        }
        self.listed.fetch_sub(changes.len() as u64, Ordering::Relaxed);
        changes
    }
}
