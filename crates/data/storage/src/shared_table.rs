//! A lane's view of records that all lanes write.

use core::fmt;
use core::num::NonZeroU64;
use core::ptr::NonNull;
use std::sync::Arc;

use quorate_machine::{Meta, OrderedTable, Table};
use quorate_types::hash_key;

use crate::lane_shared::LaneNumbers;
use crate::reclaim;
use crate::record::{Header, RecordPtr};
use crate::store::Store;
use crate::table::{LockedRecord, Writer};

/// All records of a store, as the machine of one of its lanes sees them; its siblings on the other
/// lanes see the same ones.
///
/// Point access ([`Table::find`], [`Table::lock_key`] and their like) reaches every record, while
/// [`Table::scan`] and [`Table::len`] cover the lane's own part: between them, the siblings sweep
/// each record once. [`Table::reset`] empties the whole store, so one lane does it for all, while
/// the others keep still; [`Table::set_aside`] takes the lane's own part. What a sibling still does with a
/// record at that moment is done to one that is set aside.
///
/// Any sibling may remove any record at any moment that it is not locked, so a machine reaches
/// records by key: [`Table::lock_key`], [`Table::lock_existing`], [`Table::remove_if`]. A handle is
/// looked up in the index each time it is used; [`Table::lock`] and [`Table::remove`] panic if its
/// record is gone, and [`Table::try_lock`] says so. If the key has a new record at the same place,
/// the handle names that one.
///
/// Other lanes can find a record that [`Table::lock_key`] makes before it is locked: they may see
/// it with default meta and locked state and without value, and may remove it again (the lock is
/// then that of a new one). So a machine must treat such a record as absent.
///
/// A thread that holds one record's lock takes no other and reads no other record (debug builds
/// panic): so no circle of waiting threads arises, whatever the order in which transactions name
/// their keys.
pub struct SharedTable<M: Meta>(Writer<M>);

/// Names a record of a [`SharedTable`]. The order of handles has no meaning and differs between
/// runs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SharedHandle {
    hash: u64,
    record: NonNull<Header>,
}

// SAFETY: a handle is a hash and an address; the memory there is read only if the index leads there
// too.
unsafe impl Send for SharedHandle {}
// SAFETY: likewise.
unsafe impl Sync for SharedHandle {}

impl<M: Meta> SharedTable<M> {
    pub(crate) fn new(store: Arc<Store<M>>, lane: u16) -> Self {
        Self(Writer::new(store, lane))
    }

    /// The store that the table shows.
    pub fn store(&self) -> &Arc<Store<M>> {
        &self.0.store
    }

    pub(crate) fn own_numbers(&self) -> &LaneNumbers {
        &self.0.store.numbers()[usize::from(self.0.lane)]
    }
}

impl<M: Meta> Table for SharedTable<M> {
    type Meta = M;
    type Handle = SharedHandle;
    type Record<'a> = LockedRecord<'a, M>;

    fn set_writer(&mut self, origin: u64) {
        self.0.store.set_writer(self.0.lane, NonZeroU64::new(origin));
    }

    fn find(&self, key: &[u8]) -> Option<SharedHandle> {
        let hash = hash_key(key);
        let record = self.0.find(hash, key, &reclaim::pin())?;
        Some(SharedHandle { hash, record: record.as_ptr() })
    }

    fn find_or_insert(&mut self, key: &[u8]) -> SharedHandle {
        self.find_or_insert_sized(key, self.0.guess())
    }

    fn find_or_insert_sized(&mut self, key: &[u8], value_len: usize) -> SharedHandle {
        let hash = hash_key(key);
        let record = self.0.find_or_insert(hash, key, value_len, &reclaim::pin());
        SharedHandle { hash, record: record.as_ptr() }
    }

    fn lock(&mut self, handle: SharedHandle) -> LockedRecord<'_, M> {
        self.try_lock(handle).expect("a handle names a record until it is removed")
    }

    fn try_lock(&mut self, handle: SharedHandle) -> Option<LockedRecord<'_, M>> {
        let pinned = reclaim::pin();
        if !self.0.store.shard_of(handle.hash).contains(handle.hash, handle.record, &pinned) {
            return None;
        }
        // SAFETY: the index led there while this thread was pinned, so the record is alive until
        // the pin ends, and from then on if its lock is held. Its words are those of `M`, because a
        // store has one type of them.
        let record = unsafe { RecordPtr::<M>::from_ptr(handle.record) };
        record.lock_present().then(|| self.0.access(record))
    }

    fn warm<'a>(&self, keys: impl Iterator<Item = &'a [u8]>) {
        self.0.warm(keys);
    }

    #[inline]
    fn lock_key(&mut self, key: &[u8], value_len: usize) -> LockedRecord<'_, M> {
        self.0.lock_key(hash_key(key), key, value_len)
    }

    fn lock_key_unsized(&mut self, key: &[u8]) -> LockedRecord<'_, M> {
        self.lock_key(key, self.0.guess())
    }

    #[inline]
    fn lock_existing(&mut self, key: &[u8]) -> Option<LockedRecord<'_, M>> {
        self.0.lock_existing(hash_key(key), key)
    }

    fn remove_if(&mut self, key: &[u8], dead: impl FnOnce(&LockedRecord<'_, M>) -> bool) -> bool {
        self.0.remove_if(hash_key(key), key, dead)
    }

    fn remove(&mut self, handle: SharedHandle) {
        self.0.remove(handle.hash, handle.record);
    }

    fn scan(&self, cursor: u64, limit: usize, visit: &mut dyn FnMut(SharedHandle)) -> u64 {
        self.0.scan(cursor, limit, &mut |record| {
            visit(SharedHandle { hash: hash_key(record.key()), record: record.as_ptr() });
        })
    }

    fn scan_keys(&self, cursor: u64, limit: usize, visit: &mut dyn FnMut(&[u8])) -> u64 {
        self.0.scan(cursor, limit, &mut |record| visit(record.key()))
    }

    fn scan_all_keys(&self, cursor: u64, limit: usize, visit: &mut dyn FnMut(&[u8])) -> u64 {
        self.0.store.scan(cursor, limit, &mut |key, _| visit(key))
    }

    fn scan_places(
        &self,
        from: u64,
        limit: usize,
        visit: &mut dyn FnMut(u64, SharedHandle),
    ) -> u64 {
        self.0.scan_places(from, limit, &mut |place, record| {
            visit(place, SharedHandle { hash: hash_key(record.key()), record: record.as_ptr() });
        })
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn reset(&mut self) {
        self.0.store.reset();
    }

    fn set_aside(&mut self) -> Self {
        Self::new(self.0.store.set_aside(self.0.lane), self.0.lane)
    }
}

impl<M: Meta> OrderedTable for SharedTable<M> {
    fn keeps_order(&self) -> bool {
        self.0.store.keeps_order()
    }

    /// Over the keys of all lanes.
    fn range(
        &self,
        from: &[u8],
        to: Option<&[u8]>,
        limit: usize,
        visit: &mut dyn FnMut(&[u8], SharedHandle),
    ) {
        for key in self.0.store.range(from, to, limit) {
            if let Some(handle) = self.find(&key) {
                visit(&key, handle);
            }
        }
    }
}

impl<M: Meta> fmt::Debug for SharedTable<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (lane, records) = (self.0.lane, self.len());
        f.debug_struct("SharedTable").field("lane", &lane).field("records", &records).finish()
    }
}
