//! One keyspace of one node, shared by its lanes.

use core::fmt;
use core::marker::PhantomData;
use std::num::NonZeroU64;
use std::sync::Arc;

use quorate_machine::{Collection, Meta, PLACES};
use quorate_types::{LaneId, hash_key, lane_of_hash, limits::LANES_MAX};

use crate::counters::{Counters, Stats};
use crate::index::{SHARD_BITS, Shard};
use crate::lane_shared::LaneNumbers;
use crate::order::Order;
use crate::reclaim::{self, Guard};
use crate::record::RecordPtr;
use crate::shared_table::SharedTable;
use crate::snapshot::Snapshot;
use crate::sync::{AtomicU32, Count, Ordering};
use crate::table::LaneTable;
use crate::watches::{Changes, Watches};

/// Is told a key, its record, and what the record's lock protects.
pub type VisitLocked<'a, M> = dyn FnMut(&[u8], Snapshot<M>, &<M as Meta>::LockedState) + 'a;

/// The records of one keyspace on one node. Any thread reads without a lock; each lane writes its
/// part through its [`LaneTable`], or all of them through its [`SharedTable`].
pub struct Store<M: Meta> {
    parts: Box<[Part]>,
    /// Each lane's changes, over all parts.
    counters: Box<[Counters]>,
    /// The numbers of each lane for the others.
    numbers: Box<[LaneNumbers]>,
    /// Whether its records were set aside by another store, of which threads may still know them.
    is_set_aside: bool,
    meta: PhantomData<fn() -> M>,
}

/// The records whose keys' hashes name one lane.
pub(crate) struct Part {
    shards: Box<[Shard]>,
    /// Its keys in order, if the store keeps one.
    order: Option<Order>,
    /// Not 0 while a key without a record may have a value.
    absence_doubted: AtomicU32,
}

/// What a store keeps besides records with packed values.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Keeps {
    /// The order of its keys, so that ranges of them can be visited. Each key takes memory twice, and
    /// a new one is entered twice.
    pub order: bool,
    /// Collections of more bytes than that, as large values. Without it all values are packed.
    pub packed_bytes_max: Option<usize>,
}

/// Empty buckets that one call of [`Store::scan`] passes for each record it may visit, and at least:
/// the shards of some lanes that hold few keys, so that one call is enough for them. To pass so many
/// takes some microseconds.
const EMPTY_PER_RECORD: usize = 16;
const EMPTY_AT_LEAST: usize = 8 << SHARD_BITS;
/// The lowest bits of the shard and of the part in a cursor; the bucket is below.
const SHARD_AT: u32 = 32;
const PART_AT: u32 = 40;

impl<M: Meta> Store<M> {
    /// An empty store with a part for each of 1 to [`LANES_MAX`] lanes.
    pub fn new(lanes: u16) -> Arc<Self> {
        Self::keeping(lanes, Keeps::default())
    }

    /// The same, which keeps what is said here.
    pub fn keeping(lanes: u16, keeps: Keeps) -> Arc<Self> {
        Arc::new(Self::empty(lanes, keeps))
    }

    fn empty(lanes: u16, Keeps { order, packed_bytes_max }: Keeps) -> Self {
        assert!((1..=LANES_MAX).contains(&lanes), "a node has 1 to {LANES_MAX} lanes");
        let watches = Arc::new(Watches::default());
        let counters: Box<[Counters]> =
            (0..lanes).map(|_| Counters::new(Arc::clone(&watches), packed_bytes_max)).collect();
        let parts = counters.iter().map(|counters| Part::new(counters, order)).collect();
        let numbers = (0..lanes).map(|_| LaneNumbers::default()).collect();
        Self { parts, counters, numbers, is_set_aside: false, meta: PhantomData }
    }

    /// How many lanes there are.
    pub fn lanes(&self) -> u16 {
        u16::try_from(self.parts.len()).expect("checked when the store was made")
    }

    /// The part of one lane, for the machine that owns it. There is one machine per lane and
    /// keyspace; a second table of the same lane would remove records to which the first has
    /// handles.
    pub fn table(self: &Arc<Self>, lane: u16) -> LaneTable<M> {
        LaneTable::new(Arc::clone(self), lane)
    }

    /// All records, for the machine of one lane that shares them with its siblings on the other
    /// lanes. A store is used through lane tables or through shared tables, never both.
    pub fn shared_table(self: &Arc<Self>, lane: u16) -> SharedTable<M> {
        SharedTable::new(Arc::clone(self), lane)
    }

    /// Prevents the freeing of memory that the calling thread reads. Once per batch of reads is
    /// enough.
    #[inline]
    pub fn pin(&self) -> Guard {
        reclaim::pin()
    }

    /// Whether a key with this hash may have a value although there is no record of it. Who wants to take
    /// absence for an answer asks before it looks for the record: records come before the doubt ends.
    #[inline]
    pub fn is_absence_doubted(&self, hash: u64) -> bool {
        self.part_of(hash).absence_doubted.load(Ordering::Acquire) != 0
    }

    /// The record of a key as it is at one moment, with its value's bytes in `scratch` (emptied if
    /// there is no value). `hash` is the key's [`hash_key`]. `None` if there is no record.
    ///
    /// Takes no lock at first, but waits for a writer that is changing the record, and in the end
    /// takes the record's lock. So a thread that holds the lock of any record must read none.
    #[inline]
    pub fn read(
        &self,
        key: &[u8],
        hash: u64,
        pinned: &Guard,
        scratch: &mut Vec<u8>,
    ) -> Option<Snapshot<M>> {
        Some(self.find(key, hash, pinned)?.snapshot(Some(scratch)))
    }

    /// The record of a key as it is at one moment, with its value if that is large. Takes the record's
    /// lock for a moment; what comes back shares its content with the record, and does not change.
    pub fn read_large(
        &self,
        key: &[u8],
        hash: u64,
        pinned: &Guard,
    ) -> Option<(Snapshot<M>, Option<Collection>)> {
        Some(self.find(key, hash, pinned)?.snapshot_large())
    }

    /// As [`Store::read`], without the value's bytes.
    #[inline]
    pub fn peek(&self, key: &[u8], hash: u64, pinned: &Guard) -> Option<Snapshot<M>> {
        Some(self.find(key, hash, pinned)?.snapshot(None))
    }

    #[inline]
    fn find(&self, key: &[u8], hash: u64, pinned: &Guard) -> Option<RecordPtr<M>> {
        debug_assert_eq!(hash, hash_key(key), "the hash is that of the key");
        self.shard_of(hash).find(hash, key, pinned)
    }

    /// Whether its keys can be visited in their order.
    pub fn keeps_order(&self) -> bool {
        self.parts[0].order.is_some()
    }

    /// The first keys with a record from `from` on and, if there is a `to`, below it, at most `limit`
    /// of them. What other threads insert or remove meanwhile may show or not.
    pub fn range(&self, from: &[u8], to: Option<&[u8]>, limit: usize) -> Vec<Box<[u8]>> {
        let mut keys = Vec::new();
        for part in &self.parts {
            let order = part.order.as_ref().expect("only a store that keeps an order has ranges");
            order.first(from, to, limit, &mut keys);
        }
        keys.sort_unstable();
        keys.truncate(limit);
        keys
    }

    /// The order of the part that has the keys with this hash, if the store keeps one.
    #[inline]
    pub(crate) fn order_of(&self, hash: u64) -> Option<&Order> {
        self.part_of(hash).order.as_ref()
    }

    #[inline]
    fn part_of(&self, hash: u64) -> &Part {
        &self.parts[usize::from(lane_of_hash(hash, self.parts.len() as u16).0)]
    }

    pub(crate) fn part(&self, lane: u16) -> &Part {
        &self.parts[usize::from(lane)]
    }

    #[inline]
    pub(crate) fn shard_of(&self, hash: u64) -> &Shard {
        self.part_of(hash).shard_of(hash)
    }

    /// The counters of a lane's changes.
    #[inline]
    pub(crate) fn counters(&self, lane: u16) -> &Counters {
        &self.counters[usize::from(lane)]
    }

    pub(crate) fn numbers(&self) -> &[LaneNumbers] {
        &self.numbers
    }

    /// Visits some records of all lanes, from `cursor` (0 begins), and returns the next cursor, 0
    /// at the end. Stops once about `limit` records were visited, or many more empty buckets; so
    /// it may return without a visit before the end. Every record present during a whole iteration
    /// is visited at least once, some twice. Any number is a legal cursor.
    pub fn scan(
        &self,
        cursor: u64,
        limit: usize,
        visit: &mut dyn FnMut(&[u8], Snapshot<M>),
    ) -> u64 {
        let pinned = self.pin();
        self.scan_records(cursor, limit, &pinned, &mut |record| {
            visit(record.key(), record.snapshot(None));
        })
    }

    /// As [`Store::scan`], each record under its lock, with the state that it protects.
    pub fn scan_locked(&self, cursor: u64, limit: usize, visit: &mut VisitLocked<'_, M>) -> u64 {
        let pinned = self.pin();
        self.scan_records(cursor, limit, &pinned, &mut |record| visit_locked(record, visit))
    }

    fn scan_records(
        &self,
        cursor: u64,
        limit: usize,
        pinned: &Guard,
        visit: &mut dyn FnMut(RecordPtr<M>),
    ) -> u64 {
        let mut budget = Budget::of(limit);
        let mut within = cursor & ((1 << PART_AT) - 1);
        let first = usize::try_from(cursor >> PART_AT).unwrap_or(usize::MAX);
        for (number, part) in self.parts.iter().enumerate().skip(first) {
            within = part.scan(within, &mut budget, pinned, visit);
            if within != 0 {
                return within | (number as u64) << PART_AT;
            }
            if budget.is_spent() && number + 1 < self.parts.len() {
                return (number as u64 + 1) << PART_AT;
            }
        }
        0
    }

    /// As [`Store::scan`], but only the records of one lane.
    pub fn scan_lane(
        &self,
        lane: LaneId,
        cursor: u64,
        limit: usize,
        visit: &mut dyn FnMut(&[u8], Snapshot<M>),
    ) -> u64 {
        let pinned = self.pin();
        self.part(lane.0).scan(cursor, &mut Budget::of(limit), &pinned, &mut |record| {
            visit(record.key(), record.snapshot(None));
        })
    }

    /// As [`Store::scan_locked`], but only the records of one lane.
    pub fn scan_lane_locked(
        &self,
        lane: LaneId,
        cursor: u64,
        limit: usize,
        visit: &mut VisitLocked<'_, M>,
    ) -> u64 {
        let pinned = self.pin();
        let part = self.part(lane.0);
        part.scan(cursor, &mut Budget::of(limit), &pinned, &mut |record| {
            visit_locked(record, visit);
        })
    }

    /// A cursor of [`Store::scan`] at a place that `random` chooses, in this store or in another
    /// one of as many lanes.
    pub fn random_cursor(&self, random: u64) -> u64 {
        let part = (random >> PART_AT) % self.parts.len() as u64;
        let shard = (random >> SHARD_AT) % (1 << SHARD_BITS);
        part << PART_AT | shard << SHARD_AT | random & u64::from(u32::MAX)
    }

    /// Counts of the store's contents. Reads a few counters per lane.
    pub fn stats(&self) -> Stats {
        Stats::sum(self.counters.iter())
    }

    /// Memory of one key in bytes: its record, its value and its slot in the index. `None` if
    /// there is no record.
    pub fn memory_of(&self, key: &[u8], hash: u64, pinned: &Guard) -> Option<usize> {
        let record = self.find(key, hash, pinned)?;
        record.sequence().lock();
        let bytes = record.weight().bytes;
        record.sequence().unlock();
        Some(bytes + size_of::<usize>())
    }

    /// Removes every record of every lane. Handles to them are dead from now on, so the machines
    /// that own the lanes must have none.
    pub fn reset(&self) {
        for (part, counters) in self.parts.iter().zip(&self.counters) {
            part.reset::<M>(counters);
        }
        self.watches().note_all();
    }

    /// Takes the records of one lane out, into a store of their own, which keeps no order. None is moved in
    /// memory. Other threads may go on reading them for as long as they are pinned.
    pub(crate) fn set_aside(&self, lane: u16) -> Arc<Self> {
        let counters = self.counters(lane);
        let keeps = Keeps { order: false, packed_bytes_max: counters.packed_bytes_max };
        let mut aside = Self::empty(self.lanes(), keeps);
        aside.is_set_aside = true;
        aside.part(lane).take_records::<M>(self.part(lane), aside.counters(lane), counters);
        self.watches().note_all();
        Arc::new(aside)
    }

    // --- changes -------------------------------------------------------------------------------

    pub(crate) fn watches(&self) -> &Watches {
        &self.counters[0].watches
    }

    /// From now on each change of this key's value on this node is listed for
    /// [`Store::take_changes`], by any lane: a change that the list doesn't have, reads show
    /// that begin after this returns. Ends with as many calls of [`Store::unwatch`].
    ///
    /// Waits for the holder of the record's lock, so a thread that holds one must not call this.
    pub fn watch(&self, key: &[u8]) {
        let hash = hash_key(key);
        self.watches().add(hash, key);
        self.count_watched(|watched| watched.fetch_add(1, Ordering::Relaxed));
        let pinned = self.pin();
        // A lane that inserts or locks the record later finds the key watched.
        drop(self.shard_of(hash).lock());
        if let Some(record) = self.find(key, hash, &pinned)
            && record.lock_present()
        {
            record.sequence().unlock();
        }
    }

    /// Ends one [`Store::watch`] of the key.
    ///
    /// # Panics
    /// If there was none.
    pub fn unwatch(&self, key: &[u8]) {
        self.count_watched(|watched| watched.fetch_sub(1, Ordering::Relaxed));
        self.watches().remove(hash_key(key), key);
    }

    /// The changes of all keys that begin so are listed for [`Store::take_changes`], of more than
    /// [`crate::LISTED_MAX`] only that there are. Ends with as many calls of
    /// [`Store::unwatch_prefix`].
    ///
    /// If they are `coalesced`, a key is listed once until [`Store::arm`], and announced with up to
    /// [`crate::COALESCED_MAX`] others.
    ///
    /// A thread that writes learns of it with whatever this one says to it next: what it lists is
    /// complete from then on.
    pub fn watch_prefix(&self, prefix: &[u8], coalesced: bool) {
        self.watches().add_prefix(prefix, coalesced);
        self.count_watched(|watched| watched.fetch_add(1, Ordering::Relaxed));
    }

    /// Ends one [`Store::watch_prefix`].
    ///
    /// # Panics
    /// If there was none.
    pub fn unwatch_prefix(&self, prefix: &[u8], coalesced: bool) {
        self.count_watched(|watched| watched.fetch_sub(1, Ordering::Relaxed));
        self.watches().remove_prefix(prefix, coalesced);
    }

    /// Announces what is listed ([`Store::has_changes`]). Coalesced changes that are made from now on are
    /// listed, also of keys that were listed before.
    pub fn arm(&self) {
        self.watches().arm();
    }

    fn count_watched(&self, count: impl Fn(&Count) -> u64) {
        for counters in &self.counters {
            count(&counters.watched);
        }
    }

    /// Whether changes of some keys are to be listed.
    #[inline]
    pub fn is_any_watched(&self, lane: u16) -> bool {
        self.counters(lane).is_any_watched()
    }

    /// The changes that this lane makes from now on are for this client, or for nobody in particular.
    pub fn set_writer(&self, lane: u16, writer: Option<NonZeroU64>) {
        let writer = writer.map_or(0, NonZeroU64::get);
        self.counters(lane).writer.store(writer, Ordering::Relaxed);
    }

    /// Whether a change is listed. A thread is told of its own changes at once, and of those of
    /// others in the end.
    #[inline]
    pub fn has_changes(&self) -> bool {
        self.watches().has_changes()
    }

    /// Takes the list of watched keys whose values have changed, each key once. A key that has been
    /// unwatched meanwhile may be on it. After [`Store::reset`] every watched key is.
    pub fn take_changes(&self) -> Changes {
        self.watches().take()
    }
}

impl<M: Meta> Drop for Store<M> {
    fn drop(&mut self) {
        if self.is_set_aside {
            // Who has found a record in the other store may read it, or hold its lock.
            self.reset();
        }
        for shard in self.parts.iter_mut().flat_map(|part| &mut part.shards) {
            // SAFETY: neither a reader nor a table borrows the store any more. Memory that was
            // retired before is no longer in a shard.
            unsafe { shard.free::<M>() };
        }
    }
}

impl<M: Meta> fmt::Debug for Store<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("lanes", &self.lanes()).field("stats", &self.stats()).finish()
    }
}

/// The place at which a scan of one lane reaches a key: a number that grows during the scan. Stores
/// with the same number of lanes have a key at the same place, however many records they hold.
pub fn place_in_lane(key: &[u8]) -> u64 {
    place_of(hash_key(key))
}

/// The place at which a scan of all lanes reaches a key.
pub fn place_in_store(key: &[u8], lanes: u16) -> u64 {
    let hash = hash_key(key);
    u64::from(lane_of_hash(hash, lanes).0) << PART_AT | place_of(hash)
}

/// The first place that a scan from `cursor` reaches.
pub fn place_of_cursor(cursor: u64) -> u64 {
    reverse_bucket(cursor)
}

/// Shows a record under its lock, unless it has been removed.
fn visit_locked<M: Meta>(record: RecordPtr<M>, visit: &mut VisitLocked<'_, M>) {
    // The scan is pinned, so the record can be locked.
    if !record.lock_present() {
        return;
    }
    // SAFETY: this thread holds the lock until the end of the visit, and only the lock's holder
    // borrows the state.
    let state = unsafe { record.locked_state() };
    visit(record.key(), record.snapshot(None), state);
    record.sequence().unlock();
}

/// The place of a key with this hash, in the order in which a scan goes through a part.
fn place_of(hash: u64) -> u64 {
    let shard = hash & ((1 << SHARD_BITS) - 1);
    shard << SHARD_AT | u64::from(((hash >> SHARD_BITS) as u32).reverse_bits())
}

/// Converts a scan's cursor to a place, and back.
fn reverse_bucket(cursor: u64) -> u64 {
    let bucket = cursor as u32;
    cursor - u64::from(bucket) + u64::from(bucket.reverse_bits())
}

const _: () = assert!(SHARD_AT + SHARD_BITS <= PLACES.ilog2(), "places have room for every shard");

/// The bounds of a scan.
pub(crate) struct Budget {
    pub(crate) records: usize,
    pub(crate) buckets: usize,
}

impl Budget {
    fn of(limit: usize) -> Self {
        let records = limit.max(1);
        Self { records, buckets: records.saturating_mul(EMPTY_PER_RECORD).max(EMPTY_AT_LEAST) }
    }

    fn is_spent(&self) -> bool {
        self.records == 0 || self.buckets == 0
    }
}

impl Part {
    fn new(counters: &Counters, ordered: bool) -> Self {
        let shards: Box<[Shard]> = (0..1usize << SHARD_BITS).map(|_| Shard::new()).collect();
        counters.shift_index(0, shards.len() * Shard::EMPTY_BYTES);
        Self { shards, order: ordered.then(Order::new), absence_doubted: AtomicU32::new(0) }
    }

    pub(crate) fn set_absence_doubted(&self, is_doubted: bool) {
        self.absence_doubted.store(u32::from(is_doubted), Ordering::Release);
    }

    /// The number of records. Reads every shard's count.
    pub(crate) fn records(&self) -> u64 {
        self.shards.iter().map(Shard::records).sum()
    }

    #[inline]
    pub(crate) fn shard_of(&self, hash: u64) -> &Shard {
        &self.shards[hash as usize & ((1 << SHARD_BITS) - 1)]
    }

    /// Visits records from `cursor` until the budget is spent. Returns the next cursor, 0 at the
    /// end.
    pub(crate) fn scan<M: Meta>(
        &self,
        cursor: u64,
        budget: &mut Budget,
        pinned: &Guard,
        visit: &mut dyn FnMut(RecordPtr<M>),
    ) -> u64 {
        let mut shard = (cursor >> SHARD_AT) as usize;
        let mut bucket = cursor as u32;
        while !budget.is_spent() && shard < self.shards.len() {
            budget.buckets -= 1;
            bucket = self.shards[shard].visit(bucket, pinned, &mut |record| {
                budget.records = budget.records.saturating_sub(1);
                visit(record);
            });
            shard += usize::from(bucket == 0);
        }
        if shard < self.shards.len() { (shard as u64) << SHARD_AT | u64::from(bucket) } else { 0 }
    }

    /// As [`Part::scan`], in the order of places and with each record's place. Scans visit buckets
    /// in that order: a place is a cursor whose bucket has its bits reversed.
    pub(crate) fn scan_places<M: Meta>(
        &self,
        from: u64,
        budget: &mut Budget,
        pinned: &Guard,
        visit: &mut dyn FnMut(u64, RecordPtr<M>),
    ) -> u64 {
        let next = self.scan(reverse_bucket(from), budget, pinned, &mut |record: RecordPtr<M>| {
            let place = place_of(hash_key(record.key()));
            // The bucket may begin before `from`, if it comes from a larger table.
            if place >= from {
                visit(place, record);
            }
        });
        reverse_bucket(next)
    }

    /// Takes all records of a part over. This one is empty, and no other thread knows it.
    fn take_records<M: Meta>(&self, other: &Self, own: &Counters, others: &Counters) {
        for (shard, other) in self.shards.iter().zip(&other.shards) {
            let mut other = other.lock();
            shard.lock().exchange::<M>(&mut other, own, others);
        }
        if let Some(order) = &other.order {
            order.clear(others);
        }
    }

    /// Removes every record.
    pub(crate) fn reset<M: Meta>(&self, counters: &Counters) {
        let pinned = reclaim::pin();
        for shard in &self.shards {
            shard.lock().reset::<M>(&pinned, counters);
        }
        if let Some(order) = &self.order {
            order.clear(counters);
        }
    }
}
