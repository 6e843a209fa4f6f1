//! A lane's view of the store: what its machine writes through.

use core::fmt;
use core::ptr::NonNull;
use std::sync::Arc;

use quorate_machine::{Content, Meta, Record, Table};
use quorate_types::{UnixMillis, hash_key, lane_of_hash};

use crate::counters::Weight;
use crate::reclaim;
use crate::record::{Garbage, Header, RecordPtr};
use crate::store::{Budget, Part, Store};

/// The largest value, in bytes, that a record without a hint gets room for: the room is a guess,
/// and a wrong one is waste.
const GUESS_MAX: u32 = 256;

/// The part of a store that one lane owns, as its machine sees it.
///
/// Lookups and locks work from several threads at once, but a [`Handle`] is checked only as far as
/// that is free: it must be of this table and of a record that was not removed since.
pub struct LaneTable<M: Meta> {
    store: Arc<Store<M>>,
    lane: u16,
    /// The length of the last value set: the room that the next record gets if nobody says better.
    guess: u32,
}

/// Names a record of a [`LaneTable`]: its address. The order of handles means nothing and differs
/// between runs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Handle(NonNull<Header>);

// SAFETY: a handle is an address; what it leads to is used only through a table, under the
// record's lock.
unsafe impl Send for Handle {}
// SAFETY: likewise.
unsafe impl Sync for Handle {}

/// A locked record.
pub struct LockedRecord<'a, M: Meta> {
    record: RecordPtr<M>,
    part: &'a Part,
    guess: &'a mut u32,
    /// What the record weighed before the first change of its value; `None` before any.
    before: Option<Weight>,
    writing: bool,
}

impl<M: Meta> LaneTable<M> {
    pub(crate) fn new(store: Arc<Store<M>>, lane: u16) -> Self {
        assert!(lane < store.lanes(), "lane {lane} of a store of {} lanes", store.lanes());
        Self { store, lane, guess: 0 }
    }

    /// The store that the table is a part of.
    pub fn store(&self) -> &Arc<Store<M>> {
        &self.store
    }

    fn part(&self) -> &Part {
        self.store.part(self.lane)
    }

    /// The hash of a key of this lane. A key of another lane would be lost to readers.
    fn hash_of(&self, key: &[u8]) -> u64 {
        let hash = hash_key(key);
        let lane = lane_of_hash(hash, self.store.lanes()).0;
        assert!(lane == self.lane, "a key of lane {lane} came to lane {}", self.lane);
        hash
    }

    /// The record of a handle, which the table's owner keeps from being removed.
    fn record(&self, handle: Handle) -> RecordPtr<M> {
        // SAFETY: only this table makes handles and only its `remove` and `reset` end records;
        // both say that the handle is dead from then on, so the record is alive. Its words are
        // those of `M`, because a store has one type of them.
        unsafe { RecordPtr::from_ptr(handle.0) }
    }
}

impl<M: Meta> Table for LaneTable<M> {
    type Meta = M;
    type Handle = Handle;
    type Record<'a> = LockedRecord<'a, M>;

    #[inline]
    fn find(&self, key: &[u8]) -> Option<Handle> {
        let hash = self.hash_of(key);
        let record = self.part().shard_of(hash).find::<M>(hash, key, &reclaim::pin())?;
        Some(Handle(record.as_ptr()))
    }

    fn find_or_insert(&mut self, key: &[u8]) -> Handle {
        self.find_or_insert_sized(key, self.guess as usize)
    }

    #[inline]
    fn find_or_insert_sized(&mut self, key: &[u8], value_len: usize) -> Handle {
        let hash = self.hash_of(key);
        let part = self.part();
        let shard = part.shard_of(hash);
        let pinned = reclaim::pin();
        if let Some(record) = shard.find::<M>(hash, key, &pinned) {
            return Handle(record.as_ptr());
        }
        let mut shard_locked = shard.lock();
        // Another thread may have inserted it before this one had the mutex.
        let record = shard.find::<M>(hash, key, &pinned).unwrap_or_else(|| {
            let record = RecordPtr::<M>::new(key, value_len);
            shard_locked.insert(hash, record, &pinned, &part.counters);
            record
        });
        Handle(record.as_ptr())
    }

    #[inline]
    fn lock(&mut self, handle: Handle) -> LockedRecord<'_, M> {
        let record = self.record(handle);
        record.sequence().lock();
        assert!(!record.is_removed(), "a handle names a record until it is removed");
        LockedRecord {
            record,
            part: self.store.part(self.lane),
            guess: &mut self.guess,
            before: None,
            writing: false,
        }
    }

    fn remove(&mut self, handle: Handle) {
        let record = self.record(handle);
        let hash = hash_key(record.key());
        let part = self.part();
        let pinned = reclaim::pin();
        let was_in = part.shard_of(hash).lock().remove(hash, record);
        assert!(was_in, "a record is removed once");
        record.sequence().lock();
        record.sequence().begin_write();
        record.mark_removed();
        let weight = record.weight();
        record.sequence().unlock();
        part.counters.remove(weight);
        // SAFETY: the record is no longer in the index, so who pins from now on can't find it; the
        // assertion above lets only one caller come here, and its handles are dead.
        unsafe { pinned.retire(weight.bytes, move || record.free()) };
    }

    fn scan(&self, cursor: u64, limit: usize, visit: &mut dyn FnMut(Handle)) -> u64 {
        let mut budget = Budget { records: limit.max(1), buckets: usize::MAX };
        self.part().scan(cursor, &mut budget, &reclaim::pin(), &mut |record: RecordPtr<M>| {
            visit(Handle(record.as_ptr()));
        })
    }

    fn len(&self) -> usize {
        usize::try_from(self.part().counters.records()).expect("records lie in memory")
    }

    fn reset(&mut self) {
        self.part().reset::<M>();
    }
}

impl<M: Meta> fmt::Debug for LaneTable<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaneTable").field("lane", &self.lane).field("records", &self.len()).finish()
    }
}

impl<M: Meta> LockedRecord<'_, M> {
    /// Before the first change.
    #[inline]
    fn begin_write(&mut self) {
        if !self.writing {
            self.record.sequence().begin_write();
            self.writing = true;
        }
    }

    /// Before a change of the value.
    #[inline]
    fn begin_value(&mut self) {
        self.begin_write();
        if self.before.is_none() {
            self.before = Some(self.record.weight());
        }
    }

    fn retire(garbage: Option<Garbage>) {
        if let Some(garbage) = garbage {
            // SAFETY: the record no longer leads to the buffer, so it is alive until this frees it.
            let bytes = unsafe { garbage.bytes() };
            // SAFETY: for the same reason who pins from now on can't reach it, and nobody else
            // frees it.
            unsafe { reclaim::pin().retire(bytes, move || garbage.free()) };
        }
    }
}

impl<M: Meta> Record for LockedRecord<'_, M> {
    type Meta = M;

    #[inline]
    fn key(&self) -> &[u8] {
        self.record.key()
    }

    #[inline]
    fn meta(&self) -> M {
        self.record.meta()
    }

    #[inline]
    fn set_meta(&mut self, meta: M) {
        self.begin_write();
        self.record.set_meta(meta);
    }

    #[inline]
    fn annex(&self) -> &M::Annex {
        // SAFETY: this guard holds the lock, and whatever changes the annex borrows it mutably.
        unsafe { self.record.annex() }
    }

    #[inline]
    fn annex_mut(&mut self) -> &mut M::Annex {
        // SAFETY: this guard holds the lock and is borrowed mutably.
        unsafe { self.record.annex_mut() }
    }

    #[inline]
    fn content(&self) -> Option<Content<'_>> {
        // SAFETY: this guard holds the lock, and whatever changes the value borrows it mutably.
        unsafe { self.record.content() }
    }

    #[inline]
    fn set_content(&mut self, content: Content<'_>) {
        self.begin_value();
        Self::retire(self.record.set_content(content));
        *self.guess = (content.bytes.len() as u32).min(GUESS_MAX);
    }

    fn set_expiry(&mut self, expire_at: Option<UnixMillis>) {
        self.begin_value();
        self.record.set_expiry(expire_at);
    }

    fn clear(&mut self) {
        self.begin_value();
        Self::retire(self.record.clear());
    }
}

impl<M: Meta> Drop for LockedRecord<'_, M> {
    #[inline]
    fn drop(&mut self) {
        if let Some(before) = self.before {
            self.part.counters.shift(before, self.record.weight());
        }
        self.record.sequence().unlock();
    }
}
