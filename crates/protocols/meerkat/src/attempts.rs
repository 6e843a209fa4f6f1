//! The attempts of one coordinator, by their versions.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};
use core::ops::Index;

use quorate_machine::DetMap;

use crate::attempt::Attempt;

/// Attempts that are under way. Each is looked up with every message about it, so they stand in a
/// hash map; the updates among them have an order besides.
#[derive(Clone, Debug, Default)]
pub(crate) struct Attempts {
    entries: DetMap<u64, Attempt>,
    /// The versions of updates, ascending. The first one is under way; later ones may have ended.
    updates: VecDeque<u64>,
}

impl Attempts {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    #[inline]
    pub(crate) fn get(&self, version: &u64) -> Option<&Attempt> {
        self.entries.get(version)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, version: &u64) -> Option<&mut Attempt> {
        self.entries.get_mut(version)
    }

    /// Adds an attempt. Its version is above that of every one before it.
    pub(crate) fn insert(&mut self, version: u64, attempt: Attempt) {
        if !attempt.is_question() {
            debug_assert!(self.updates.back().is_none_or(|last| *last < version), "versions rise");
            self.updates.push_back(version);
        }
        self.entries.insert(version, attempt);
    }

    pub(crate) fn remove(&mut self, version: &u64) -> Option<Attempt> {
        let removed = self.entries.remove(version);
        while self.updates.front().is_some_and(|first| !self.entries.contains_key(first)) {
            self.updates.pop_front();
        }
        removed
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.updates.clear();
    }

    /// The version of the oldest update under way.
    pub(crate) fn oldest_update(&self) -> Option<u64> {
        self.updates.front().copied()
    }

    /// The updates under way with their versions, the oldest first.
    pub(crate) fn updates(&self) -> impl Iterator<Item = (u64, &Attempt)> {
        self.updates.iter().filter_map(|version| Some((*version, self.get(version)?)))
    }

    /// All versions, ascending, as a list of its own: the attempts may change while it is followed.
    pub(crate) fn versions(&self) -> Vec<u64> {
        self.entries.sorted().into_iter().map(|(version, _)| *version).collect()
    }
}

impl Index<&u64> for Attempts {
    type Output = Attempt;

    fn index(&self, version: &u64) -> &Attempt {
        self.get(version).expect("an attempt that is under way")
    }
}

impl Hash for Attempts {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.entries.hash(state);
    }
}
