//! A collection as a transaction sees it.

use alloc::vec::Vec;

use crate::Collection;

/// A collection, and what a transaction has changed in it so far. The changes are made only
/// before the next look: a single change of a collection copies nothing of it.
#[derive(Clone, Debug)]
pub struct Draft {
    seen: Collection,
    delta: Vec<u8>,
    /// How much of the delta `seen` has.
    applied: usize,
}

impl Draft {
    /// Of a collection that is not changed yet.
    pub fn new(seen: Collection) -> Self {
        Self { seen, delta: Vec::new(), applied: 0 }
    }

    /// The collection with all changes.
    pub fn look(&mut self) -> &Collection {
        if self.applied < self.delta.len() {
            let made = self.seen.apply(&self.delta[self.applied..], &mut Vec::new());
            made.expect("a command makes deltas of what it saw");
            self.applied = self.delta.len();
        }
        &self.seen
    }

    /// Changes it by a delta of what [`Draft::look`] shows.
    pub fn change(&mut self, delta: &[u8]) {
        self.delta.extend_from_slice(delta);
    }

    /// The changes so far, as one delta.
    pub fn delta(&self) -> &[u8] {
        &self.delta
    }

    /// The changes, as one delta.
    pub fn into_delta(self) -> Vec<u8> {
        self.delta
    }
}
