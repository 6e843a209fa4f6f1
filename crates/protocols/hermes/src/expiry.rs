//! Active expiry: values past their time are deleted even if nobody asks for them.
//!
//! Each replica looks through its records a little at a time and deletes the expired ones that it
//! owns, as read-modify-writes without a client: an update that races with one wins. One that is
//! Invalid, perhaps because its VAL was lost, is replayed first. A read that finds an expired value has it
//! deleted in the same way, and runs when that is done.

use alloc::vec::Vec;

use quorate_machine::{Change, Command, Effects, Record, Scan, Table, mutant};
use quorate_types::{Duration, Instant, Now, UnixMillis};

use crate::ops::UpdateContext;
use crate::{Hermes, Meta, State};

/// Records looked at in one tick.
const RECORDS: usize = 500;
/// Time between ticks while little is expired.
const CALM: Duration = Duration::from_millis(100);
/// Time between ticks while much is.
const EAGER: Duration = Duration::from_millis(2);
/// Deletions in flight beyond which a tick starts none: clients' updates go first.
const PENDING_MAX: usize = 1_000;

/// Where the search for expired values stands.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Expiry {
    scan: Scan,
    /// Whether this pass has met a value that will expire.
    met: bool,
    next_at: Instant,
}

impl Default for Expiry {
    fn default() -> Self {
        Self { scan: Scan::default(), met: false, next_at: Instant::NEVER }
    }
}

impl Expiry {
    pub(crate) fn next_deadline(&self) -> Instant {
        self.next_at
    }

    /// A value with this expiry was stored.
    #[inline]
    pub(crate) fn note(&mut self, now: Instant, expire_at: Option<UnixMillis>) {
        if expire_at.is_some() {
            self.met = true;
            if self.next_at == Instant::NEVER {
                self.next_at = now + CALM;
            }
        }
    }
}

impl<T: Table<Meta = Meta>, O: Command<Owned = O>> Hermes<T, O> {
    pub(crate) fn on_expiry_timeout(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        self.expiry.next_at = now.monotonic + CALM;
        if !self.active.contains(self.config.node) || self.ops.len() > PENDING_MAX {
            return;
        }
        let handles = self.expiry.scan.next_handles(&self.table, RECORDS);
        let looked_at = handles.len();
        let mut expired = 0;
        for handle in handles {
            let record = self.table.lock(handle);
            let Some(content) = record.content() else { continue };
            let due = content.is_expired(now.wall());
            self.expiry.met |= content.expire_at.is_some();
            let meta = record.meta();
            let state = meta.state;
            drop(record);
            let due = due && !self.has_no_version_left(meta.timestamp.version);
            if !due || self.queues.contains_key(&handle) || !self.owns(handle) {
                continue;
            }
            if state == State::Valid {
                expired += 1;
                self.delete_expired(now, handle, effects);
            } else if state == State::Invalid && !mutant!("hermes_lost_expired_value_stays") {
                effects.probe("hermes: expired value without VAL replayed");
                self.replay(now, handle, effects);
            }
        }
        if expired * 10 > looked_at {
            self.expiry.next_at = now.monotonic + EAGER;
        }
        if self.expiry.scan.is_at_end() && !core::mem::take(&mut self.expiry.met) {
            self.expiry.next_at = Instant::NEVER;
        }
    }

    /// Deletes an expired value, by an update of its own that nobody waits for.
    pub(crate) fn delete_expired(
        &mut self,
        now: Now,
        handle: T::Handle,
        effects: &mut impl Effects<Self>,
    ) {
        self.counters.expired += 1;
        effects.expired(self.table.lock(handle).key());
        let (answer, completion) = (None, None);
        let run = UpdateContext { rmw: true, answer, combined: Vec::new(), completion };
        self.update(now, handle, &Change::Delete, run, effects);
    }
}
