//! What nobody asks for: values past their time, and tombstones that no `WATCH` can mean any more.

use alloc::boxed::Box;
use alloc::vec;

use quorate_machine::{
    Change, Command, Effects, LaneShared, OrderedTable, Record as _, Scan, mutant,
};
use quorate_types::{Duration, Instant, Now, Timestamp};

use crate::meta::Meta;
use crate::state::{Lanes, Local};

/// How often a lane looks at some of its records.
const EVERY: Duration = Duration::from_millis(100);
/// How many it looks at.
const RECORDS: usize = 1024;
/// How old a tombstone gets at least.
const TOMBSTONE_AGE: Duration = Duration::from_secs(10);

/// Where a lane is in its records.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sweep {
    pub(crate) due: Instant,
    scan: Scan,
}

impl<T, X> Local<T, X>
where
    T: OrderedTable<Meta = Meta> + LaneShared,
    X: Command<Owned = X>,
{
    /// Deletes expired values among the next records, and removes old tombstones. Leaves a lane alone
    /// that is held: its keys are another transaction's.
    pub(crate) fn sweep(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        if now.monotonic < self.sweep.due {
            return;
        }
        // A lane may be held for as long as a flush takes, and is not to be woken all the while.
        self.sweep.due = now.monotonic + EVERY;
        if self.is_blocked() {
            return;
        }
        for key in self.sweep.scan.next_keys(&self.table, RECORDS) {
            self.look_at(now, &key, effects);
        }
    }

    fn look_at(&mut self, now: Now, key: &[u8], effects: &mut impl Effects<Self>) {
        let Some(record) = self.table.lock_existing(key) else { return };
        let version = record.meta().version;
        let content = record.content();
        let expired = content.is_some_and(|content| content.is_expired(now.wall()));
        let is_tombstone = content.is_none();
        drop(record);
        if expired {
            self.delete_expired(now, key.into(), version, effects);
        } else if is_tombstone
            && now.unix.0 >= version.version.saturating_add(TOMBSTONE_AGE.as_nanos() as u64)
        {
            effects.probe("local: tombstone removed");
            self.counters.tombstones_removed += 1;
            if !mutant!("local_forgets_deletes") {
                self.table.raise_highest(version.version);
            }
            self.table.remove_if(key, |record| record.content().is_none());
        }
    }

    /// Deletes a value that has expired.
    pub(crate) fn delete_expired(
        &mut self,
        now: Now,
        key: Box<[u8]>,
        version: Timestamp,
        effects: &mut impl Effects<Self>,
    ) {
        effects.probe("local: expired value deleted");
        self.counters.expired += 1;
        effects.expired(&key);
        let at = self.issue(now, 0);
        // It was absent since its time was over: a `WATCH` that saw that holds on.
        let version = if mutant!("local_expiry_is_a_change") { at } else { version };
        let changes = vec![(key, Timestamp::ZERO, Change::Delete)];
        self.commit((at, version), Lanes::only(self.config.lane), None, changes, effects);
    }
}
