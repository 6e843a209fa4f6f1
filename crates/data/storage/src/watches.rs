//! Keys whose changes somebody waits for: what blocks clients until a key has something, or tells
//! them that it changed, asks the store to list its changes.
//!
//! A key is watched by its bytes and as often as it was asked for; so are all keys that begin with a
//! prefix. A change of a watched value is listed by the thread that makes it, under the record's
//! lock, once until the list is taken. While nothing is watched, that costs a change one load of a
//! number on a cache line of its lane ([`crate::counters::Counters`]); while other keys are, a hash
//! and another load; while prefixes are, a lock and a search.
//!
//! The list is bounded: of keys that are watched by their bytes it has each once, and of the others
//! at most [`LISTED_MAX`]. Beyond that it only says that there were more.
//!
//! Nothing is missed. [`crate::Store::watch`] passes through the locks of the key's shard and record
//! behind the moment from which changes are listed: a change that was made before is seen by
//! whatever the watcher reads from then on, and a later one finds the key watched.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use quorate_machine::ValueKind;

use crate::sync::{Count, Mutex, MutexGuard, Ordering};

/// Numbers of watched keys by a part of their hashes.
const SLOTS: usize = 1024;
/// Changes that are listed at most for the sake of prefixes.
pub const LISTED_MAX: usize = 4096;

/// A watched key has changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Changed {
    /// The key.
    pub key: Box<[u8]>,
    /// What it held after its last change. `None` if it has no value.
    pub kind: Option<ValueKind>,
    /// For whom all of its changes were made, if that was one ([`crate::Store::set_writer`]).
    pub writer: Option<NonZeroU64>,
}

/// What has changed since the list was taken last.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Changes {
    /// Watched keys, in the order in which they came on the list.
    pub keys: Vec<Changed>,
    /// Whether any key of a watched prefix may have changed, besides those.
    pub more: bool,
}

/// The watched keys of a store.
pub(crate) struct Watches {
    slots: Box<[Count]>,
    /// How many prefixes are watched.
    prefixes: Count,
    /// How many changes are listed.
    listed: Count,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// How often each key is watched.
    watched: BTreeMap<Box<[u8]>, usize>,
    /// How often each prefix is, by its length.
    prefixes: BTreeMap<usize, BTreeMap<Box<[u8]>, usize>>,
    changes: Changes,
    /// Where each key stands in the list.
    places: BTreeMap<Box<[u8]>, usize>,
    /// How many stand there for the sake of a prefix.
    broad: usize,
}

impl State {
    fn has_prefix_of(&self, key: &[u8]) -> bool {
        let mut shorter = self.prefixes.range(..=key.len());
        shorter.any(|(length, prefixes)| prefixes.contains_key(&key[..*length]))
    }
}

impl Default for Watches {
    fn default() -> Self {
        let slots = (0..SLOTS).map(|_| Count::new(0)).collect();
        let zero = || Count::new(0);
        Self { slots, prefixes: zero(), listed: zero(), state: Mutex::new(State::default()) }
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
        add(&mut self.state().watched, key);
    }

    /// Watches a key once less.
    ///
    /// # Panics
    /// If it isn't watched.
    pub(crate) fn remove(&self, hash: u64, key: &[u8]) {
        remove(&mut self.state().watched, key);
        self.slot(hash).fetch_sub(1, Ordering::Relaxed);
    }

    /// Watches the keys with a prefix once more.
    pub(crate) fn add_prefix(&self, prefix: &[u8]) {
        self.prefixes.fetch_add(1, Ordering::Relaxed);
        add(self.state().prefixes.entry(prefix.len()).or_default(), prefix);
    }

    /// Watches them once less.
    ///
    /// # Panics
    /// If they aren't watched.
    pub(crate) fn remove_prefix(&self, prefix: &[u8]) {
        let mut state = self.state();
        let of_length = state.prefixes.get_mut(&prefix.len());
        let of_length = of_length.expect("a prefix is unwatched as often as watched");
        remove(of_length, prefix);
        if of_length.is_empty() {
            state.prefixes.remove(&prefix.len());
        }
        drop(state);
        self.prefixes.fetch_sub(1, Ordering::Relaxed);
    }

    /// A value has changed. The caller holds its record's lock, and takes no other.
    #[cold]
    pub(crate) fn note(
        &self,
        hash: u64,
        key: &[u8],
        kind: Option<ValueKind>,
        writer: Option<NonZeroU64>,
    ) {
        let any_prefix = self.prefixes.load(Ordering::Relaxed) != 0;
        if self.slot(hash).load(Ordering::Relaxed) == 0 && !any_prefix {
            return;
        }
        let mut state = self.state();
        if state.watched.contains_key(key) {
            self.list(&mut state, key, kind, writer);
        } else if state.has_prefix_of(key) {
            if state.broad < LISTED_MAX || state.places.contains_key(key) {
                state.broad += usize::from(self.list(&mut state, key, kind, writer));
            } else if !std::mem::replace(&mut state.changes.more, true) {
                self.listed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Every value may have changed.
    pub(crate) fn note_all(&self) {
        let mut state = self.state();
        for key in state.watched.keys().cloned().collect::<Vec<_>>() {
            self.list(&mut state, &key, None, None);
        }
        if !state.prefixes.is_empty() && !std::mem::replace(&mut state.changes.more, true) {
            self.listed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Puts a change on the list. Whether the key was not there.
    fn list(
        &self,
        state: &mut State,
        key: &[u8],
        kind: Option<ValueKind>,
        writer: Option<NonZeroU64>,
    ) -> bool {
        if let Some(at) = state.places.get(key) {
            let changed = &mut state.changes.keys[*at];
            changed.kind = kind;
            changed.writer = changed.writer.filter(|first| Some(*first) == writer);
            return false;
        }
        state.places.insert(key.into(), state.changes.keys.len());
        state.changes.keys.push(Changed { key: key.into(), kind, writer });
        self.listed.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Whether any change is listed. A thread sees its own.
    #[inline]
    pub(crate) fn has_changes(&self) -> bool {
        self.listed.load(Ordering::Relaxed) > 0
    }

    /// Takes the list.
    pub(crate) fn take(&self) -> Changes {
        let mut state = self.state();
        state.places.clear();
        state.broad = 0;
        let changes = std::mem::take(&mut state.changes);
        let listed = changes.keys.len() + usize::from(changes.more);
        self.listed.fetch_sub(listed as u64, Ordering::Relaxed);
        changes
    }
}

fn add(watched: &mut BTreeMap<Box<[u8]>, usize>, key: &[u8]) {
    match watched.get_mut(key) {
        Some(count) => *count += 1,
        None => drop(watched.insert(key.into(), 1)),
    }
}

fn remove(watched: &mut BTreeMap<Box<[u8]>, usize>, key: &[u8]) {
    let count = watched.get_mut(key).expect("a key is unwatched as often as watched");
    *count -= 1;
    if *count == 0 {
        watched.remove(key);
    }
}
