//! What nobody asks for: records of shards that this node has left.
//!
//! A walk looks at a few records at a time, and rests when a pass has found nothing more to do.

use quorate_machine::{Command, Effects, Scan, Table};
use quorate_types::placement::shard_of;
use quorate_types::{Duration, Instant, Now};

use crate::join::RECORDS;
use crate::layout::Shards;
use crate::meta::Meta;
use crate::state::Zeus;

/// How often the walk looks at some records.
const EVERY: Duration = Duration::from_millis(10);

/// Where the walk is.
#[derive(Clone, Hash, Debug)]
pub(crate) struct Sweep {
    scan: Scan,
    at: Instant,
    /// Shards that this node has left, of which records may be there.
    pub(crate) left: Shards,
}

impl Default for Sweep {
    fn default() -> Self {
        Self { scan: Scan::default(), at: Instant::NEVER, left: Shards::default() }
    }
}

impl<T: Table<Meta = Meta>, X: Command<Owned = X>> Zeus<T, X> {
    /// Begins a pass, after which nothing is there of these shards.
    pub(crate) fn sweep_shards(&mut self, now: Now, left: Shards) {
        self.sweep.left = left;
        if !left.is_empty() {
            self.sweep.scan = Scan::default();
            self.sweep.at = now.monotonic + EVERY;
            self.wake_at = self.wake_at.min(self.sweep.at);
        }
    }

    /// Looks at the next records, if that is due.
    pub(crate) fn sweep(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        if self.sweep.at > now.monotonic {
            return;
        }
        self.sweep.at = now.monotonic + EVERY;
        for key in self.sweep.scan.next_keys(&self.table, RECORDS) {
            let is_left = self.sweep.left.contains(shard_of(&key)) && self.is_own(&key);
            if is_left && !self.owns_by_name(&key) && !self.rounds.contains_key(&key) {
                effects.probe("zeus: what is left of a shard is dropped");
                self.drop_record(&key);
            }
        }
        if self.sweep.scan.is_at_end() {
            self.sweep.left = Shards::default();
            self.sweep.at = Instant::NEVER;
        }
    }

    pub(crate) fn next_sweep(&self) -> Instant {
        self.sweep.at
    }
}
