//! Forgetting deleted keys: the list of tombstones, and the passes over it.
//!
//! Every record that becomes a tombstone is put into a list, so that collecting costs what was
//! deleted and not what is stored. A pass looks at each entry once: those that the floor has passed
//! are removed (`tombstones.rs` says why that is safe), those whose key has a value again leave the
//! list, and the rest waits for a later pass. There is one whenever the floor has risen, and one in
//! [`Config::collect_every`] otherwise, since a tombstone may be made below the floor.
//!
//! Nobody reads most deleted keys again, so nobody would miss the VAL of one: what two passes find
//! Invalid is replayed.

use alloc::collections::VecDeque;

use quorate_machine::{Command, Effects, Record, Table, mutant};
use quorate_types::{Instant, Now};

use crate::{Config, Hermes, Meta, State};

/// Tombstones that the collector looks at in one tick.
const COLLECT_RECORDS: usize = 1_000;
/// Of the records, the part that may be tombstones before a round begins before its time.
const TOMBSTONES_PART: usize = 8;

/// The records that were deleted and not forgotten, oldest first.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Tombstones<H> {
    list: VecDeque<Tombstone<H>>,
    /// How many of them, from the front, the pass under way has not looked at.
    left: usize,
    /// How many are too many, as the last pass has counted the records.
    most: Option<usize>,
    next_at: Instant,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Tombstone<H> {
    handle: H,
    /// Whether the last pass found it Invalid.
    invalid: bool,
}

impl<H> Default for Tombstones<H> {
    fn default() -> Self {
        Self { list: VecDeque::new(), left: 0, most: None, next_at: Instant::NEVER }
    }
}

impl<H: Copy + PartialEq> Tombstones<H> {
    /// Notes that a record may have become a tombstone. Whether it is in the list now.
    pub(crate) fn note(
        &mut self,
        config: &Config,
        now: Now,
        handle: H,
        deleted: bool,
        meta: &Meta,
    ) -> bool {
        if deleted && !meta.listed {
            self.list.push_back(Tombstone { handle, invalid: false });
            self.next_at = self.next_at.min(now.monotonic + config.collect_every);
        }
        deleted || meta.listed
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there are so many that the floor should rise before its time.
    pub(crate) fn are_many(&self, config: &Config) -> bool {
        self.list.len() > self.most.unwrap_or(0).max(config.tombstones_min)
    }

    pub(crate) fn next_deadline(&self) -> Instant {
        self.next_at
    }

    /// The floor has risen: looks at all of them.
    pub(crate) fn begin_pass(&mut self, records: usize) {
        self.left = self.list.len();
        self.most = Some(records / TOMBSTONES_PART);
        if self.left > 0 {
            self.next_at = Instant::ZERO;
        }
    }

    /// This node is in a view again.
    pub(crate) fn wake(&mut self, now: Instant) {
        if !self.list.is_empty() {
            self.next_at = self.next_at.min(now);
        }
    }

    /// This node is out.
    pub(crate) fn rest(&mut self) {
        self.left = 0;
        self.next_at = Instant::NEVER;
    }
}

impl<T: Table<Meta = Meta>, O: Command<Owned = O>> Hermes<T, O> {
    /// Looks at some more tombstones.
    pub(crate) fn on_collect_timeout(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        self.tombstones.next_at = now.monotonic + self.config.collect_every;
        if !self.active.contains(self.config.node) {
            return;
        }
        if self.tombstones.left == 0 {
            self.tombstones.begin_pass(self.table.len());
        }
        let looked_at = self.tombstones.left.min(COLLECT_RECORDS);
        self.tombstones.left -= looked_at;
        let before = self.counters.tombstones_collected;
        for _ in 0..looked_at {
            self.look_at_tombstone(now, effects);
        }
        if self.counters.tombstones_collected > before {
            effects.probe("hermes: tombstones collected");
        }
        self.tombstones.next_at = if self.tombstones.left > 0 {
            now.monotonic + self.config.message_loss_timeout / 10
        } else if self.tombstones.list.is_empty() {
            Instant::NEVER
        } else {
            now.monotonic + self.config.collect_every
        };
    }

    /// Takes the oldest tombstone out of the list, and puts it back at the end unless it can go.
    fn look_at_tombstone(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        let Some(Tombstone { handle, invalid }) = self.tombstones.list.pop_front() else { return };
        let mut record = self.table.lock(handle);
        let meta = record.meta();
        debug_assert!(meta.listed, "what is in the list says so");
        let absent = record.content().is_none();
        let passed = meta.state == State::Valid && meta.timestamp.version <= self.floors.floor;
        let over = absent && passed && !self.queues.contains_key(&handle);
        if over || !absent {
            record.set_meta(Meta { listed: false, ..meta });
            drop(record);
            if over {
                self.counters.tombstones_collected += 1;
                self.forget(handle);
            }
            return;
        }
        drop(record);
        let is_invalid = meta.state == State::Invalid;
        self.tombstones.list.push_back(Tombstone { handle, invalid: is_invalid });
        if is_invalid && invalid && !mutant!("hermes_lost_tombstone_stays") {
            effects.probe("hermes: tombstone without VAL replayed");
            self.replay(now, handle, effects);
        }
    }

    /// Removes a record and whatever else is known by its handle.
    pub(crate) fn forget(&mut self, handle: T::Handle) {
        debug_assert!(!self.queues.contains_key(&handle), "a key that is waited for stays");
        debug_assert!(!self.tentative.contains_key(&handle), "a call that is tentative stays");
        debug_assert!(!self.table.lock(handle).meta().listed, "the list names what is there");
        self.ack_sets.remove(&handle);
        self.table.remove(handle);
    }

    /// A mutant's shortcut: the record of a deleted key goes as soon as the delete is done.
    pub(crate) fn drop_tombstone_early(&mut self, handle: T::Handle) {
        if mutant!("hermes_tombstone_dropped_early") {
            let mut record = self.table.lock(handle);
            let meta = record.meta();
            let dead = record.content().is_none() && meta.state == State::Valid;
            let named = self.ops.iter().any(|(_, op)| op.handle == handle);
            if dead && !named && !self.queues.contains_key(&handle) {
                record.set_meta(Meta { listed: false, ..meta });
                drop(record);
                self.tombstones.list.retain(|tombstone| tombstone.handle != handle);
                self.tombstones.left = self.tombstones.left.min(self.tombstones.list.len());
                self.forget(handle);
            }
        }
    }
}
