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
//! Who watches a prefix and can wait has changes **coalesced**: a key is listed once until somebody arms
//! the store again, and what is listed so is announced when it is [`COALESCED_MAX`] keys, with whatever is
//! announced at once, or when the store is armed. Which keys were listed is remembered of
//! [`REMEMBERED_MAX`] at most. One that isn't remembered is listed once more, which nobody minds.
//!
//! Nothing is missed. [`crate::Store::watch`] passes through the locks of the key's shard and record
//! behind the moment from which changes are listed: a change that was made before is seen by
//! whatever the watcher reads from then on, and a later one finds the key watched.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use quorate_machine::{ValueKind, mutant};

use crate::sync::{Count, Mutex, MutexGuard, Ordering};

/// Numbers of watched keys by a part of their hashes.
const SLOTS: usize = 1024;
/// Changes that are listed at most for the sake of prefixes.
pub const LISTED_MAX: usize = 4096;
/// Coalesced changes that are announced together.
pub const COALESCED_MAX: usize = 512;
/// Keys that were listed and need not be again, and the longest of them.
const REMEMBERED_MAX: usize = 65_536;
const REMEMBERED_BYTES_MAX: usize = 256;

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
    /// How often each prefix is.
    prefixes: Prefixes,
    /// How often each prefix is for those whose changes are coalesced.
    coalesced: Prefixes,
    /// Keys that were listed for them since the store was armed, by their hashes.
    remembered: BTreeMap<u64, Box<[u8]>>,
    changes: Changes,
    /// Where each key stands in the list.
    places: BTreeMap<Box<[u8]>, usize>,
    /// How many stand there for the sake of a prefix.
    broad: usize,
    /// How many were not announced yet.
    unannounced: usize,
}

/// Numbers of prefixes by their lengths.
#[derive(Default)]
struct Prefixes(BTreeMap<usize, BTreeMap<Box<[u8]>, usize>>);

impl Prefixes {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn has_one_of(&self, key: &[u8]) -> bool {
        let mut shorter = self.0.range(..=key.len());
        shorter.any(|(length, prefixes)| prefixes.contains_key(&key[..*length]))
    }

    fn add(&mut self, prefix: &[u8]) {
        add(self.0.entry(prefix.len()).or_default(), prefix);
    }

    fn remove(&mut self, prefix: &[u8]) {
        let of_length = self.0.get_mut(&prefix.len());
        let of_length = of_length.expect("a prefix is unwatched as often as watched");
        remove(of_length, prefix);
        if of_length.is_empty() {
            self.0.remove(&prefix.len());
        }
    }
}

impl State {
    fn prefixes(&mut self, coalesced: bool) -> &mut Prefixes {
        if coalesced { &mut self.coalesced } else { &mut self.prefixes }
    }

    /// Whether a key was listed since the store was armed. If not, it is remembered that it was.
    fn remembers(&mut self, hash: u64, key: &[u8]) -> bool {
        if self.remembered.get(&hash).is_some_and(|known| **known == *key) {
            return true;
        }
        if self.remembered.len() >= REMEMBERED_MAX {
            self.remembered.clear();
        }
        if key.len() <= REMEMBERED_BYTES_MAX {
            self.remembered.insert(hash, key.into());
        }
        false
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

    /// Watches the keys with a prefix once more, coalesced or each change of them.
    pub(crate) fn add_prefix(&self, prefix: &[u8], coalesced: bool) {
        self.prefixes.fetch_add(1, Ordering::Relaxed);
        self.state().prefixes(coalesced).add(prefix);
    }

    /// Watches them once less.
    ///
    /// # Panics
    /// If they aren't watched.
    pub(crate) fn remove_prefix(&self, prefix: &[u8], coalesced: bool) {
        let mut state = self.state();
        state.prefixes(coalesced).remove(prefix);
        if state.coalesced.is_empty() {
            state.remembered.clear();
            self.announce(&mut state);
        }
        drop(state);
        self.prefixes.fetch_sub(1, Ordering::Relaxed);
    }

    /// What is listed is announced, and coalesced changes are listed anew.
    pub(crate) fn arm(&self) {
        let mut state = self.state();
        if !mutant!("storage_armed_remembers") {
            state.remembered.clear();
        }
        self.announce(&mut state);
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
            Self::list(&mut state, key, kind, writer);
            self.announce(&mut state);
        } else if state.prefixes.has_one_of(key) {
            Self::list_broad(&mut state, key, kind, writer);
            self.announce(&mut state);
        } else if state.coalesced.has_one_of(key) && !state.remembers(hash, key) {
            Self::list_broad(&mut state, key, kind, writer);
            if state.unannounced >= COALESCED_MAX {
                self.announce(&mut state);
            }
        }
    }

    /// What is listed is to be taken.
    fn announce(&self, state: &mut State) {
        let unannounced = std::mem::take(&mut state.unannounced);
        self.listed.fetch_add(unannounced as u64, Ordering::Relaxed);
    }

    /// Puts the change of a key with a prefix on the list, or that there are more.
    fn list_broad(
        state: &mut State,
        key: &[u8],
        kind: Option<ValueKind>,
        writer: Option<NonZeroU64>,
    ) {
        if state.broad < LISTED_MAX || state.places.contains_key(key) {
            state.broad += usize::from(Self::list(state, key, kind, writer));
        } else if !std::mem::replace(&mut state.changes.more, true) {
            state.unannounced += 1;
        }
    }

    /// Every value may have changed.
    pub(crate) fn note_all(&self) {
        let mut state = self.state();
        for key in state.watched.keys().cloned().collect::<Vec<_>>() {
            Self::list(&mut state, &key, None, None);
        }
        let any_prefix = !(state.prefixes.is_empty() && state.coalesced.is_empty());
        if any_prefix && !std::mem::replace(&mut state.changes.more, true) {
            state.unannounced += 1;
        }
        self.announce(&mut state);
    }

    /// Puts a change on the list. Whether the key was not there.
    fn list(
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
        state.unannounced += 1;
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
        let unannounced = std::mem::take(&mut state.unannounced);
        let listed = changes.keys.len() + usize::from(changes.more) - unannounced;
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
