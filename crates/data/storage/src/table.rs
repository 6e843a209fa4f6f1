//! Tables: a lane's view of a store, through which machines write. This module has the common part
//! of both kinds, and the table of a lane that owns its part; the other is in `shared_table`.

use core::fmt;
use core::num::NonZeroU64;
use core::ptr::NonNull;
use std::sync::Arc;

use quorate_machine::{
    Collection, Content, Meta, Record, Table, WARM_TOGETHER, is_collection, may_be_large, mutant,
};
use quorate_types::{UnixMillis, hash_key, lane_of_hash};

use crate::counters::{Counters, Weight};
use crate::index::LockedShard;
use crate::reclaim::{self, Guard};
use crate::record::{Garbage, Header, RecordPtr};
use crate::store::{Budget, Store};

/// The largest value, in bytes, that a record without a hint gets room for: the room is a guess,
/// and a wrong guess wastes memory.
const GUESS_MAX: u32 = 256;

/// The part of a store that one lane owns, as its machine sees it.
///
/// Lookups and locks work from several threads at once, but a [`Handle`] is checked only as far as
/// a check costs nothing: it must be of this table and of a record that was not removed since.
///
/// A thread that holds one record's lock takes no other and reads no other record.
pub struct LaneTable<M: Meta>(Writer<M>);

/// Names a record of a [`LaneTable`]: its address. The order of handles has no meaning and differs
/// between runs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Handle(NonNull<Header>);

// SAFETY: a handle is an address; its record is used only through a table, under the record's lock.
unsafe impl Send for Handle {}
// SAFETY: likewise.
unsafe impl Sync for Handle {}

/// A locked record.
pub struct LockedRecord<'a, M: Meta> {
    record: RecordPtr<M>,
    counters: &'a Counters,
    guess: &'a mut u32,
    /// The weight of the record before the first change of its value; `None` before any.
    before: Option<Weight>,
    writing: bool,
}

/// The writes of one lane to records, for both kinds of tables. Every hash must be that of its key.
///
/// Locks are taken in one order: a shard's mutex, then one record's lock. A record leaves the index
/// under both, so a thread that holds the lock of a record that is not marked as removed keeps the
/// record in the store for as long as it holds the lock.
pub(crate) struct Writer<M: Meta> {
    pub(crate) store: Arc<Store<M>>,
    pub(crate) lane: u16,
    /// The length of the last value set: the room for the next record without a hint.
    guess: u32,
}

impl<M: Meta> Writer<M> {
    pub(crate) fn new(store: Arc<Store<M>>, lane: u16) -> Self {
        assert!(lane < store.lanes(), "lane {lane} of a store of {} lanes", store.lanes());
        Self { store, lane, guess: 0 }
    }

    pub(crate) fn guess(&self) -> usize {
        self.guess as usize
    }

    #[inline]
    pub(crate) fn find(&self, hash: u64, key: &[u8], pinned: &Guard) -> Option<RecordPtr<M>> {
        self.store.shard_of(hash).find(hash, key, pinned)
    }

    /// Fetches the records of these keys from memory.
    pub(crate) fn warm<'a>(&self, mut keys: impl Iterator<Item = &'a [u8]>) {
        let pinned = reclaim::pin();
        loop {
            let mut hashes = [0; WARM_TOGETHER];
            let mut count = 0;
            for key in keys.by_ref().take(WARM_TOGETHER) {
                hashes[count] = hash_key(key);
                self.store.shard_of(hashes[count]).warm_bucket(hashes[count], &pinned);
                count += 1;
            }
            for hash in &hashes[..count] {
                self.store.shard_of(*hash).warm_record::<M>(*hash, &pinned);
            }
            if count < WARM_TOGETHER {
                return;
            }
        }
    }

    /// The record of a key. A record that must be made has room for a value of `value_len` bytes.
    #[inline]
    pub(crate) fn find_or_insert(
        &self,
        hash: u64,
        key: &[u8],
        value_len: usize,
        pinned: &Guard,
    ) -> RecordPtr<M> {
        self.find(hash, key, pinned).unwrap_or_else(|| self.insert(hash, key, value_len, pinned))
    }

    fn insert(&self, hash: u64, key: &[u8], value_len: usize, pinned: &Guard) -> RecordPtr<M> {
        let shard = self.store.shard_of(hash);
        let mut shard_locked = shard.lock();
        // Another thread may have inserted it before this one had the mutex.
        shard.find(hash, key, pinned).unwrap_or_else(|| {
            let record = RecordPtr::new(key, value_len);
            let counters = self.store.counters(self.lane);
            shard_locked.insert(hash, record, pinned, counters);
            if let Some(order) = self.store.order_of(hash) {
                order.insert(key, counters);
            }
            record
        })
    }

    /// Access to a record in the store whose lock the caller has just taken.
    #[inline]
    pub(crate) fn access(&mut self, record: RecordPtr<M>) -> LockedRecord<'_, M> {
        LockedRecord::new(record, self.store.counters(self.lane), &mut self.guess)
    }

    /// [`Table::lock_key`].
    #[inline]
    pub(crate) fn lock_key(
        &mut self,
        hash: u64,
        key: &[u8],
        value_len: usize,
    ) -> LockedRecord<'_, M> {
        loop {
            let pinned = reclaim::pin();
            let record = self.find_or_insert(hash, key, value_len, &pinned);
            // Otherwise a remover took the record out of the index before it released the lock.
            if record.lock_present() {
                return self.access(record);
            }
        }
    }

    /// [`Table::lock_existing`].
    #[inline]
    pub(crate) fn lock_existing(&mut self, hash: u64, key: &[u8]) -> Option<LockedRecord<'_, M>> {
        loop {
            let pinned = reclaim::pin();
            let record = self.find(hash, key, &pinned)?;
            if record.lock_present() {
                return Some(self.access(record));
            }
        }
    }

    /// [`Table::remove_if`].
    pub(crate) fn remove_if(
        &mut self,
        hash: u64,
        key: &[u8],
        dead: impl FnOnce(&LockedRecord<'_, M>) -> bool,
    ) -> bool {
        let pinned = reclaim::pin();
        if self.find(hash, key, &pinned).is_none() {
            return false;
        }
        let shard = self.store.shard_of(hash);
        let mut shard_locked = shard.lock();
        // Under the mutex a found record stays in the index.
        let Some(record) = shard.find::<M>(hash, key, &pinned) else { return false };
        record.sequence().lock();
        let record = LockedRecord::new(record, self.store.counters(self.lane), &mut self.guess);
        let dead = dead(&record);
        if dead {
            record.remove(hash, &mut shard_locked, &pinned);
            if let Some(order) = self.store.order_of(hash) {
                order.remove(key, self.store.counters(self.lane));
            }
        }
        dead
    }

    /// Removes the record at an address, which must be in the store.
    pub(crate) fn remove(&mut self, hash: u64, header: NonNull<Header>) {
        let pinned = reclaim::pin();
        let shard = self.store.shard_of(hash);
        let mut shard_locked = shard.lock();
        assert!(shard.contains(hash, header, &pinned), "a record is removed once");
        // SAFETY: the record is in the index, and stays there under the mutex. Its words are those
        // of `M`, because a store has one type of them.
        let record = unsafe { RecordPtr::<M>::from_ptr(header) };
        record.sequence().lock();
        if let Some(order) = self.store.order_of(hash) {
            order.remove(record.key(), self.store.counters(self.lane));
        }
        LockedRecord::new(record, self.store.counters(self.lane), &mut self.guess).remove(
            hash,
            &mut shard_locked,
            &pinned,
        );
    }

    /// [`Table::scan`] of the lane's own part.
    pub(crate) fn scan(
        &self,
        cursor: u64,
        limit: usize,
        visit: &mut dyn FnMut(RecordPtr<M>),
    ) -> u64 {
        let mut budget = Budget { records: limit.max(1), buckets: usize::MAX };
        self.store.part(self.lane).scan(cursor, &mut budget, &reclaim::pin(), visit)
    }

    /// [`Table::scan_places`] of the lane's own part.
    pub(crate) fn scan_places(
        &self,
        from: u64,
        limit: usize,
        visit: &mut dyn FnMut(u64, RecordPtr<M>),
    ) -> u64 {
        let mut budget = Budget { records: limit.max(1), buckets: usize::MAX };
        self.store.part(self.lane).scan_places(from, &mut budget, &reclaim::pin(), visit)
    }

    /// How many records the lane's own part has.
    pub(crate) fn len(&self) -> usize {
        let records = self.store.part(self.lane).records();
        usize::try_from(records).expect("records lie in memory")
    }
}

impl<M: Meta> LaneTable<M> {
    pub(crate) fn new(store: Arc<Store<M>>, lane: u16) -> Self {
        Self(Writer::new(store, lane))
    }

    /// The store that the table is a part of.
    pub fn store(&self) -> &Arc<Store<M>> {
        &self.0.store
    }

    /// The hash of a key of this lane. A key of another lane belongs to another machine, for which
    /// this one must not answer.
    fn hash_of(&self, key: &[u8]) -> u64 {
        let hash = hash_key(key);
        let (lane, lanes) = (self.0.lane, self.0.store.lanes());
        let owner = lane_of_hash(hash, lanes).0;
        assert!(owner == lane, "a key of lane {owner} came to lane {lane}");
        hash
    }

    /// The record of a handle, which the table's owner keeps from being removed.
    fn record(&self, handle: Handle) -> RecordPtr<M> {
        // SAFETY: only this table makes handles and only its `remove` and `reset` end records; both
        // declare the handle dead from then on, so the record is alive. Its words are those of `M`,
        // because a store has one type of them.
        unsafe { RecordPtr::from_ptr(handle.0) }
    }
}

impl<M: Meta> Table for LaneTable<M> {
    type Meta = M;
    type Handle = Handle;
    type Record<'a> = LockedRecord<'a, M>;

    #[inline]
    fn owns(&self, key: &[u8]) -> bool {
        let lanes = self.0.store.lanes();
        lanes == 1 || lane_of_hash(hash_key(key), lanes).0 == self.0.lane
    }

    #[inline]
    fn set_writer(&mut self, origin: u64) {
        self.0.store.set_writer(self.0.lane, NonZeroU64::new(origin));
    }

    fn set_absence_doubted(&mut self, is_doubted: bool) {
        self.0.store.part(self.0.lane).set_absence_doubted(is_doubted);
    }

    fn find(&self, key: &[u8]) -> Option<Handle> {
        let record = self.0.find(self.hash_of(key), key, &reclaim::pin())?;
        Some(Handle(record.as_ptr()))
    }

    fn warm<'a>(&self, keys: impl Iterator<Item = &'a [u8]>) {
        self.0.warm(keys);
    }

    fn find_or_insert(&mut self, key: &[u8]) -> Handle {
        self.find_or_insert_sized(key, self.0.guess())
    }

    #[inline]
    fn find_or_insert_sized(&mut self, key: &[u8], value_len: usize) -> Handle {
        let hash = self.hash_of(key);
        Handle(self.0.find_or_insert(hash, key, value_len, &reclaim::pin()).as_ptr())
    }

    #[inline]
    fn lock(&mut self, handle: Handle) -> LockedRecord<'_, M> {
        let record = self.record(handle);
        assert!(record.lock_present(), "a handle names a record until it is removed");
        self.0.access(record)
    }

    #[inline]
    fn lock_key(&mut self, key: &[u8], value_len: usize) -> LockedRecord<'_, M> {
        self.0.lock_key(self.hash_of(key), key, value_len)
    }

    fn lock_key_unsized(&mut self, key: &[u8]) -> LockedRecord<'_, M> {
        self.lock_key(key, self.0.guess())
    }

    #[inline]
    fn lock_existing(&mut self, key: &[u8]) -> Option<LockedRecord<'_, M>> {
        self.0.lock_existing(self.hash_of(key), key)
    }

    fn remove_if(&mut self, key: &[u8], dead: impl FnOnce(&LockedRecord<'_, M>) -> bool) -> bool {
        self.0.remove_if(self.hash_of(key), key, dead)
    }

    fn remove(&mut self, handle: Handle) {
        let hash = hash_key(self.record(handle).key());
        self.0.remove(hash, handle.0);
    }

    fn scan(&self, cursor: u64, limit: usize, visit: &mut dyn FnMut(Handle)) -> u64 {
        self.0.scan(cursor, limit, &mut |record| visit(Handle(record.as_ptr())))
    }

    fn scan_keys(&self, cursor: u64, limit: usize, visit: &mut dyn FnMut(&[u8])) -> u64 {
        self.0.scan(cursor, limit, &mut |record| visit(record.key()))
    }

    fn scan_places(&self, from: u64, limit: usize, visit: &mut dyn FnMut(u64, Handle)) -> u64 {
        self.0.scan_places(from, limit, &mut |place, record| visit(place, Handle(record.as_ptr())))
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn reset(&mut self) {
        let store = &self.0.store;
        store.part(self.0.lane).reset::<M>(store.counters(self.0.lane));
        store.watches().note_all();
    }

    fn set_aside(&mut self) -> Self {
        Self::new(self.0.store.set_aside(self.0.lane), self.0.lane)
    }
}

impl<M: Meta> fmt::Debug for LaneTable<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (lane, records) = (self.0.lane, self.len());
        f.debug_struct("LaneTable").field("lane", &lane).field("records", &records).finish()
    }
}

impl<'a, M: Meta> LockedRecord<'a, M> {
    /// Access to a record in the store whose lock the caller has just taken.
    #[inline]
    fn new(record: RecordPtr<M>, counters: &'a Counters, guess: &'a mut u32) -> Self {
        Self { record, counters, guess, before: None, writing: false }
    }

    /// Begins the first change.
    #[inline]
    fn begin_write(&mut self) {
        if !self.writing {
            self.record.sequence().begin_write();
            self.writing = true;
        }
    }

    /// Begins a change of the value.
    #[inline]
    fn begin_value(&mut self) {
        self.begin_write();
        if self.before.is_none() {
            self.before = Some(self.record.weight());
        }
    }

    /// Lists the change of a value that is watched.
    #[cold]
    fn note_change(&self) {
        let (key, kind) = (self.record.key(), self.content().map(|content| content.kind));
        self.counters.note(hash_key(key), key, kind);
    }

    /// Takes the record out of the store. The mutex is that of its shard.
    fn remove(mut self, hash: u64, shard: &mut LockedShard<'_>, pinned: &Guard) {
        self.begin_write();
        let (record, counters) = (self.record, self.counters);
        record.mark_removed();
        let was_in = shard.remove(hash, record);
        assert!(was_in, "a record leaves the index under its lock");
        let weight = record.weight();
        if weight.value && counters.is_any_watched() {
            counters.note(hash, record.key(), None);
        }
        drop(self);
        counters.remove(weight);
        // SAFETY: the record is no longer in the index, so threads that pin from now on can't find
        // it. Only the thread that takes it out gets here, once; handles of it are dead, and
        // threads that wait for its lock are pinned.
        unsafe { pinned.retire(weight.bytes, move || record.free()) };
    }

    fn retire(garbage: Option<Garbage>) {
        if let Some(garbage) = garbage {
            // SAFETY: the record no longer leads to the buffer, so it is alive until this frees it.
            let bytes = unsafe { garbage.bytes() };
            // SAFETY: for the same reason threads that pin from now on can't reach it, and no other
            // code frees it.
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
    fn locked_state(&self) -> &M::LockedState {
        // SAFETY: this guard holds the lock, and every change of the locked state borrows the guard
        // mutably.
        unsafe { self.record.locked_state() }
    }

    #[inline]
    fn locked_state_mut(&mut self) -> &mut M::LockedState {
        // SAFETY: this guard holds the lock and is borrowed mutably.
        unsafe { self.record.locked_state_mut() }
    }

    #[inline]
    fn content(&self) -> Option<Content<'_>> {
        // SAFETY: this guard holds the lock, and every change of the value borrows the guard
        // mutably.
        unsafe { self.record.content() }
    }

    #[inline]
    fn set_content(&mut self, content: Content<'_>) {
        self.begin_value();
        if self.counters.packed_bytes_max.is_some_and(|max| content.bytes.len() > max)
            && may_be_large(content.kind, content.bytes)
            && let Ok(large) = Collection::unpack(content.kind, content.bytes)
        {
            return Self::retire(self.record.set_large(large, content.expire_at));
        }
        Self::retire(self.record.set_content(content));
        *self.guess = (content.bytes.len() as u32).min(GUESS_MAX);
    }

    #[inline]
    fn large(&self) -> Option<&Collection> {
        // SAFETY: this guard holds the lock, and every change of the value borrows the guard
        // mutably.
        unsafe { self.record.large() }
    }

    fn large_mut(&mut self) -> Option<&mut Collection> {
        self.begin_value();
        let content = self.content().filter(|content| is_collection(content.kind));
        if self.large().is_none()
            && let Some(Content { bytes, kind, expire_at }) = content
            && let Ok(large) = Collection::unpack(kind, bytes)
        {
            Self::retire(self.record.set_large(large, expire_at));
        }
        // SAFETY: this guard holds the lock and is borrowed mutably.
        unsafe { self.record.large_mut() }
    }

    fn set_expiry(&mut self, expire_at: Option<UnixMillis>) {
        self.begin_value();
        self.record.set_expiry(expire_at);
    }

    fn clear(&mut self) {
        if self.content().is_none() && !mutant!("storage_absent_key_changes") {
            return;
        }
        self.begin_value();
        Self::retire(self.record.clear());
    }
}

impl<M: Meta> Drop for LockedRecord<'_, M> {
    #[inline]
    fn drop(&mut self) {
        if let Some(before) = self.before {
            self.record.note_large();
            self.counters.shift(before, self.record.weight());
            if self.counters.is_any_watched() {
                self.note_change();
            }
        }
        self.record.sequence().unlock();
    }
}
