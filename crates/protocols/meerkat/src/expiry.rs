//! Values past their time. A transaction that finds one deletes it (`work.rs`), and the first replica
//! of a partition deletes the values that no transaction looks for.

use quorate_machine::{Command, Effects, LaneShared, Record as _, Slot, Table, Workspace as _};
use quorate_types::Now;

use crate::coordinator::FLOOR;
use crate::meta::Meta;
use crate::state::Meerkat;
use crate::work::LocalRun;

/// Transactions of all kinds that a lane has under way when it leaves expired values for later.
const BUSY: usize = 256;

impl<T, X> Meerkat<T, X>
where
    T: Table<Meta = Meta> + LaneShared,
    X: Command<Owned = X>,
{
    /// Deletes a key whose value has expired, by a transaction that nobody waits for: it reads the
    /// value, so it does nothing to a newer one, and if it fails the next sweep comes again.
    pub(crate) fn delete_expired(
        &mut self,
        now: Now,
        key: &[u8],
        effects: &mut impl Effects<Self>,
    ) {
        let first = self.group(self.partition_of(key)).and_then(|group| group.live.first());
        if first != Some(self.config.node) || self.attempts.len() >= BUSY {
            return;
        }
        let expired = self.table.lock_existing(key).is_some_and(|record| {
            record.content().is_some_and(|content| content.is_expired(now.wall()))
        });
        if !expired {
            return;
        }
        self.work.clear();
        let floor = self.table.least(FLOOR);
        let mut run = LocalRun {
            table: &mut self.table,
            work: &mut self.work,
            now: now.wall(),
            floor,
            is_local: |_: &[u8]| true,
            sends_deltas: true,
        };
        // Reading it is what deletes it.
        run.read(key);
        if self.work.is_read_only() {
            return;
        }
        effects.expired(key);
        let id = self.issue(now, self.work.newest_base());
        let attempt = self.new_attempt(now, Slot::NONE, false);
        self.begin_update(now, id, attempt, effects);
    }
}
