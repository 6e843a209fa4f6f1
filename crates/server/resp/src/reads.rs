//! What one connection is reading at the engines.

use std::collections::BTreeMap;

use quorate_commands::Call;
use quorate_types::hash_key;

/// The keys of one connection's submitted reads that are not answered yet.
///
/// The engine may answer such a read with a value that is newer than what this node's replica holds
/// now. A later read of the key that is answered from the replica at once would then show the client
/// an older value behind a newer one, so it is submitted too: an engine keeps the order of one
/// connection's ops on one key.
///
/// Keys are known by their hashes alone. A read of another key with the same hash, or of the same
/// key in another keyspace, is submitted without need.
#[derive(Debug, Default)]
pub(crate) struct SubmittedReads {
    /// How many reads of each key there are.
    counts: BTreeMap<u64, u32>,
}

impl SubmittedReads {
    /// A read of the key with this hash was submitted.
    pub(crate) fn add(&mut self, hash: u64) {
        *self.counts.entry(hash).or_default() += 1;
    }

    /// A read that was added has its answer.
    ///
    /// # Panics
    /// If no read of a key with this hash was added.
    pub(crate) fn remove(&mut self, hash: u64) {
        let count = self.counts.get_mut(&hash).expect("a read that ends was submitted");
        *count -= 1;
        if *count == 0 {
            self.counts.remove(&hash);
        }
    }

    /// Whether they read any of a call's keys.
    #[inline]
    pub(crate) fn touch(&self, call: &Call<'_>) -> bool {
        !self.counts.is_empty() && call.keys().any(|key| self.counts.contains_key(&hash_key(key)))
    }

    /// About how many bytes the keys take.
    pub(crate) fn bytes(&self) -> usize {
        self.counts.len() * size_of::<(u64, u32)>()
    }
}
