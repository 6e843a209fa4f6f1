//! The hash index: shards of cache-line buckets that point to records.
//!
//! A bucket is one cache line: seven slots and the way to an overflow bucket. A slot is a pointer
//! whose upper 16 bits hold a tag, 16 bits of the key's hash, so that a lookup touches the wrong
//! record only rarely. The bits of a hash:
//! ```text
//! 63       32 31    16 15      8 7     0
//! lane        tag      bucket... shard       (the bucket number goes on into the tag)
//! ```
//! Readers take no lock. Inserting, removing and growing take the shard's mutex. A shard grows
//! alone, by doubling its array: the new array is filled, published with one store, and the old one
//! retired; so the longest stall is one shard's. The bit that decides which of its two new buckets
//! a record goes to is in the tag (except in small arrays), so growing reads the array from front
//! to back and hardly ever a record. Slots never move within an array, so that a reader can't miss
//! a record that is present throughout.

use core::array;
use core::ptr::{self, NonNull};

use quorate_machine::Meta;
use quorate_types::hash_key;

use crate::counters::Counters;
use crate::reclaim::Guard;
use crate::record::{CACHE_LINE, Header, RecordPtr};
use crate::sequence::assert_none_held;
use crate::sync::{Alive, AtomicPtr, Count, IS_MODEL, Mutex, MutexGuard, Ordering, note_write};

/// Shards of a part, as a power of two. Models have one, small enough to grow within a few steps.
pub(crate) const SHARD_BITS: u32 = if IS_MODEL { 0 } else { 8 };
/// Slots of a bucket.
const SLOTS: usize = if IS_MODEL { 2 } else { 7 };
/// Records per bucket beyond which a shard grows.
const LOAD_MAX: usize = if IS_MODEL { 1 } else { 5 };
/// The lowest bit of the tag in a hash and in a pointer.
const TAG_AT: u32 = 16;
const TAG_BITS: u32 = 16;
const TAG_SHIFT: u32 = usize::BITS - TAG_BITS;
/// The largest array, as a power of two.
const ARRAY_BITS_MAX: u32 = 31;

/// A pointer with a 16-bit tag in its upper part.
struct Tagged<T>(*mut T);

impl<T> Tagged<T> {
    fn new(pointer: NonNull<T>, tag: u16) -> Self {
        let address = pointer.addr().get();
        assert!(address >> TAG_SHIFT == 0, "user memory lies below 2^48");
        Self(pointer.as_ptr().map_addr(|address| address | (usize::from(tag) << TAG_SHIFT)))
    }

    fn tag(&self) -> u16 {
        (self.0.addr() >> TAG_SHIFT) as u16
    }

    fn pointer(&self) -> Option<NonNull<T>> {
        NonNull::new(self.0.map_addr(|address| address & !(usize::MAX << TAG_SHIFT)))
    }
}

/// Bytes of the key and the value behind it that are fetched with a record.
const WARM_BYTES: usize = 128;

/// Asks the processor to fetch the cache line at any address from memory. Does nothing on
/// processors without such a request.
#[inline]
fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: it reads nothing that the program sees, and faults at no address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

fn tag_of(hash: u64) -> u16 {
    (hash >> TAG_AT) as u16
}

#[repr(C, align(64))]
struct Bucket {
    slots: [AtomicPtr<Header>; SLOTS],
    overflow: AtomicPtr<Bucket>,
    alive: Alive,
}

impl Bucket {
    fn new() -> Self {
        Self {
            slots: array::from_fn(|_| AtomicPtr::new(ptr::null_mut())),
            overflow: AtomicPtr::new(ptr::null_mut()),
            alive: Alive::new(),
        }
    }

    /// This bucket and those that overflowed from it.
    fn chain(&self) -> impl Iterator<Item = &Bucket> {
        self.alive.assert();
        core::iter::successors(Some(self), |bucket| {
            // SAFETY: an overflow bucket lives as long as its array, and a borrower of a bucket
            // keeps the array alive.
            unsafe { bucket.overflow.load(Ordering::Acquire).as_ref() }
        })
    }

    /// The filled slots of the chain.
    fn entries(&self) -> impl Iterator<Item = (NonNull<Header>, u16)> {
        self.chain().flat_map(|bucket| &bucket.slots).filter_map(|slot| {
            let entry = Tagged(slot.load(Ordering::Acquire));
            entry.pointer().map(|pointer| (pointer, entry.tag()))
        })
    }

    /// Fills an empty slot of the chain. Returns whether that took another bucket. For the mutex's
    /// holder.
    fn fill(&self, record: NonNull<Header>, tag: u16) -> bool {
        let entry = Tagged::new(record, tag).0;
        let mut last = self;
        for bucket in self.chain() {
            last = bucket;
            if let Some(slot) =
                bucket.slots.iter().find(|slot| slot.load(Ordering::Relaxed).is_null())
            {
                // A reader that finds the record finds it initialized.
                slot.store(entry, Ordering::Release);
                return false;
            }
        }
        let more = Bucket::new();
        more.slots[0].store(entry, Ordering::Relaxed);
        last.overflow.store(Box::into_raw(Box::new(more)), Ordering::Release);
        true
    }
}

/// A bucket array: 2^bits buckets and their overflow buckets.
#[derive(Clone, Copy)]
struct Array {
    buckets: NonNull<Bucket>,
    bits: u32,
}

impl Array {
    fn new(bits: u32) -> Self {
        let buckets: Box<[Bucket]> = (0..1usize << bits).map(|_| Bucket::new()).collect();
        note_write(NonNull::from(&buckets[0]), size_of_val(&buckets[..]));
        let buckets = NonNull::from(Box::leak(buckets)).cast();
        Self { buckets, bits }
    }

    fn len(self) -> usize {
        1 << self.bits
    }

    /// The buckets.
    ///
    /// # Safety
    /// The array lives as long as the result is used.
    unsafe fn buckets<'a>(self) -> &'a [Bucket] {
        // SAFETY: `new` leaked that many buckets; they are never borrowed mutably while alive.
        unsafe { NonNull::slice_from_raw_parts(self.buckets, self.len()).as_ref() }
    }

    /// Frees the buckets without the records.
    ///
    /// # Safety
    /// The array is alive, and no thread uses it from now on.
    unsafe fn free(self) {
        let buckets = ptr::slice_from_raw_parts_mut(self.buckets.as_ptr(), self.len());
        // SAFETY: `new` leaked the box with this length; the caller gives it up.
        let buckets = unsafe { Box::from_raw(buckets) };
        for bucket in &buckets {
            bucket.alive.end();
            let mut overflow = bucket.overflow.load(Ordering::Relaxed);
            while !overflow.is_null() {
                // SAFETY: `fill` leaked the box, and only its array leads to it.
                let bucket = unsafe { Box::from_raw(overflow) };
                overflow = bucket.overflow.load(Ordering::Relaxed);
                bucket.alive.end();
                Alive::keep_marked(bucket);
            }
        }
        Alive::keep_marked(buckets);
    }

    /// The number of the bucket of a hash.
    fn number_of(self, hash: u64) -> usize {
        (hash >> SHARD_BITS) as usize & (self.len() - 1)
    }
}

/// The data that a shard's mutex guards, besides the array and the count.
#[derive(Debug)]
struct Writer {
    overflows: usize,
}

/// One shard: an array of buckets that grows on its own.
#[repr(align(64))]
pub(crate) struct Shard {
    /// The array, with its size in bits as the tag, so that one load gives both.
    array: AtomicPtr<Bucket>,
    /// The number of records, changed under the mutex.
    records: Count,
    writer: Mutex<Writer>,
}

/// A shard whose mutex is held.
pub(crate) struct LockedShard<'a> {
    shard: &'a Shard,
    writer: MutexGuard<'a, Writer>,
}

impl Shard {
    /// An empty shard of one bucket.
    pub(crate) fn new() -> Self {
        Self {
            array: AtomicPtr::new(Self::pack(Array::new(0))),
            records: Count::new(0),
            writer: Mutex::new(Writer { overflows: 0 }),
        }
    }

    /// Memory of an empty shard, in bytes.
    pub(crate) const EMPTY_BYTES: usize = size_of::<Self>() + size_of::<Bucket>();

    fn pack(array: Array) -> *mut Bucket {
        Tagged::new(array.buckets, u16::try_from(array.bits).expect("at most 31")).0
    }

    fn array(&self) -> Array {
        let packed = Tagged(self.array.load(Ordering::Acquire));
        let buckets = packed.pointer().expect("a shard always has an array");
        Array { buckets, bits: u32::from(packed.tag()) }
    }

    /// The record of a key.
    #[inline]
    pub(crate) fn find<M: Meta>(
        &self,
        hash: u64,
        key: &[u8],
        _pinned: &Guard,
    ) -> Option<RecordPtr<M>> {
        let array = self.array();
        // SAFETY: the array was the shard's while this thread was pinned, so it is not freed
        // before the pin is gone.
        let bucket = unsafe { &array.buckets()[array.number_of(hash)] };
        let tag = tag_of(hash);
        for bucket in bucket.chain() {
            for slot in &bucket.slots {
                let entry = Tagged(slot.load(Ordering::Acquire));
                if entry.tag() == tag
                    && let Some(pointer) = entry.pointer()
                {
                    // SAFETY: likewise for records: removed ones are retired.
                    let record = unsafe { RecordPtr::<M>::from_ptr(pointer) };
                    if record.key() == key {
                        return Some(record);
                    }
                }
            }
        }
        None
    }

    /// Fetches the bucket of a key from memory.
    #[inline]
    pub(crate) fn warm_bucket(&self, hash: u64, _pinned: &Guard) {
        let array = self.array();
        // SAFETY: as in `find`.
        let bucket = unsafe { &array.buckets()[array.number_of(hash)] };
        prefetch(ptr::from_ref(bucket).cast());
    }

    /// Fetches the record of a key from memory, and the records of its bucket with the same tag.
    #[inline]
    pub(crate) fn warm_record<M: Meta>(&self, hash: u64, _pinned: &Guard) {
        let array = self.array();
        // SAFETY: as in `find`.
        let bucket = unsafe { &array.buckets()[array.number_of(hash)] };
        let tag = tag_of(hash);
        for slot in &bucket.slots {
            let entry = Tagged(slot.load(Ordering::Relaxed));
            if entry.tag() == tag
                && let Some(pointer) = entry.pointer()
            {
                // As far as a usual key and a short value reach.
                let record = pointer.as_ptr().cast::<u8>();
                for at in (0..RecordPtr::<M>::KEY_AT + WARM_BYTES).step_by(CACHE_LINE) {
                    prefetch(record.wrapping_add(at));
                }
            }
        }
    }

    /// Whether the shard has the record at an address. The address may be that of a freed record,
    /// and is not read. If the shard has the record, it is alive as long as the caller is pinned.
    pub(crate) fn contains(&self, hash: u64, record: NonNull<Header>, _pinned: &Guard) -> bool {
        let array = self.array();
        // SAFETY: as in `find`.
        let bucket = unsafe { &array.buckets()[array.number_of(hash)] };
        bucket.entries().any(|entry| entry == (record, tag_of(hash)))
    }

    /// The number of records.
    pub(crate) fn records(&self) -> u64 {
        self.records.load(Ordering::Relaxed)
    }

    /// Visits the records of one bucket and returns the cursor of the next one, 0 at the end.
    ///
    /// Cursors count with their bits reversed. When the array doubles, bucket `b` becomes `b` and
    /// `b + len`; in reversed order those two are neighbours, so visited buckets stay before the
    /// cursor.
    pub(crate) fn visit<M: Meta>(
        &self,
        cursor: u32,
        _pinned: &Guard,
        visit: &mut dyn FnMut(RecordPtr<M>),
    ) -> u32 {
        let array = self.array();
        let mask = u32::try_from(array.len() - 1).expect("at most 31 bits");
        // SAFETY: as in `find`.
        let bucket = unsafe { &array.buckets()[(cursor & mask) as usize] };
        for (pointer, _) in bucket.entries() {
            // SAFETY: as in `find`.
            visit(unsafe { RecordPtr::from_ptr(pointer) });
        }
        (cursor | !mask).reverse_bits().wrapping_add(1).reverse_bits()
    }

    /// Takes the mutex. Its holder may lock a record, but not the other way round.
    pub(crate) fn lock(&self) -> LockedShard<'_> {
        assert_none_held();
        let writer = self.writer.lock().expect("no holder panics between two changes");
        LockedShard { shard: self, writer }
    }

    /// Frees the array and its records.
    ///
    /// # Safety
    /// No thread uses the shard or its records from now on.
    pub(crate) unsafe fn free<M: Meta>(&mut self) {
        // SAFETY: by the caller.
        unsafe { free_all::<M>(self.array()) };
    }
}

/// Frees an array and the records in it.
///
/// # Safety
/// Both are alive, and no thread uses them from now on.
unsafe fn free_all<M: Meta>(array: Array) {
    // SAFETY: by the caller. Each record stands in one slot.
    unsafe {
        for bucket in array.buckets() {
            for (pointer, _) in bucket.entries() {
                RecordPtr::<M>::from_ptr(pointer).free();
            }
        }
        array.free();
    }
}

impl LockedShard<'_> {
    /// Adds a record whose key is not in the shard.
    pub(crate) fn insert<M: Meta>(
        &mut self,
        hash: u64,
        record: RecordPtr<M>,
        pinned: &Guard,
        counters: &Counters,
    ) {
        let before = self.bytes();
        // Once the record is in the index, other threads may change it, and count that.
        let weight = record.weight();
        let records = self.shard.records();
        let array = self.shard.array();
        if records >= (array.len() * LOAD_MAX) as u64 && array.bits < ARRAY_BITS_MAX {
            self.grow::<M>(pinned);
        }
        let array = self.shard.array();
        // SAFETY: arrays are replaced under the mutex only.
        let bucket = unsafe { &array.buckets()[array.number_of(hash)] };
        self.writer.overflows += usize::from(bucket.fill(record.as_ptr(), tag_of(hash)));
        self.shard.records.store(records + 1, Ordering::Relaxed);
        counters.shift_index(before, self.bytes());
        counters.add(weight);
    }

    /// Takes a record out. Returns whether it was in.
    pub(crate) fn remove<M: Meta>(&mut self, hash: u64, record: RecordPtr<M>) -> bool {
        let array = self.shard.array();
        // SAFETY: arrays are replaced under the mutex only.
        let bucket = unsafe { &array.buckets()[array.number_of(hash)] };
        let slot = bucket
            .chain()
            .flat_map(|bucket| &bucket.slots)
            .find(|slot| Tagged(slot.load(Ordering::Relaxed)).pointer() == Some(record.as_ptr()));
        if let Some(slot) = slot {
            slot.store(ptr::null_mut(), Ordering::Release);
            self.shard.records.store(self.shard.records() - 1, Ordering::Relaxed);
        }
        slot.is_some()
    }

    /// Replaces the array by an empty one and retires it with its records.
    pub(crate) fn reset<M: Meta>(&mut self, pinned: &Guard, counters: &Counters) {
        let before = self.bytes();
        let old = self.shard.array();
        self.shard.array.store(Shard::pack(Array::new(0)), Ordering::Release);
        self.shard.records.store(0, Ordering::Relaxed);
        *self.writer = Writer { overflows: 0 };
        counters.shift_index(before, self.bytes());
        let mut bytes = before;
        // SAFETY: this thread is pinned, so memory that it retires below is still alive here.
        for (pointer, _) in unsafe { old.buckets() }.iter().flat_map(Bucket::entries) {
            // SAFETY: as above.
            let record = unsafe { RecordPtr::<M>::from_ptr(pointer) };
            record.sequence().lock();
            record.sequence().begin_write();
            record.mark_removed();
            let weight = record.weight();
            record.sequence().unlock();
            counters.remove(weight);
            bytes += weight.bytes;
        }
        // SAFETY: the shard leads to the new array only, so threads that pin from now on can reach
        // neither the old one nor its records; they are freed here only.
        unsafe { pinned.retire(bytes, move || free_all::<M>(old)) };
    }

    /// Takes over the array of a shard, with its records, and leaves it this one's, which is empty. Who uses a
    /// record of it meanwhile goes on.
    pub(crate) fn exchange<M: Meta>(
        &mut self,
        other: &mut LockedShard<'_>,
        own_counters: &Counters,
        other_counters: &Counters,
    ) {
        assert!(self.shard.records() == 0, "what is here would be in the other store");
        let before = [self.bytes(), other.bytes()];
        let (own, array) = (self.shard.array(), other.shard.array());
        let records = other.shard.records();
        other.shard.array.store(Shard::pack(own), Ordering::Release);
        self.shard.array.store(Shard::pack(array), Ordering::Release);
        other.shard.records.store(0, Ordering::Relaxed);
        self.shard.records.store(records, Ordering::Relaxed);
        core::mem::swap(&mut *self.writer, &mut *other.writer);
        own_counters.shift_index(before[0], self.bytes());
        other_counters.shift_index(before[1], other.bytes());
        // SAFETY: arrays and their records are freed under the mutex only, or with the store.
        for (pointer, _) in unsafe { array.buckets() }.iter().flat_map(Bucket::entries) {
            // SAFETY: as above.
            let record = unsafe { RecordPtr::<M>::from_ptr(pointer) };
            record.sequence().lock();
            let weight = record.weight();
            record.sequence().unlock();
            other_counters.remove(weight);
            own_counters.add(weight);
        }
    }

    fn bytes(&self) -> usize {
        let buckets = self.shard.array().len() + self.writer.overflows;
        size_of::<Shard>() + buckets * size_of::<Bucket>()
    }

    /// Doubles the array.
    fn grow<M: Meta>(&mut self, pinned: &Guard) {
        let old = self.shard.array();
        let new = Array::new(old.bits + 1);
        // SAFETY: the old array is replaced under the mutex only, the new one is ours.
        let (from, to) = unsafe { (old.buckets(), new.buckets()) };
        let mut overflows = 0;
        for (number, bucket) in from.iter().enumerate() {
            for (pointer, tag) in bucket.entries() {
                // SAFETY: records leave under the mutex only.
                let record = unsafe { RecordPtr::<M>::from_ptr(pointer) };
                let upper = decisive_bit(SHARD_BITS + old.bits, tag, record);
                let target = &to[number + if upper { from.len() } else { 0 }];
                overflows += usize::from(target.fill(pointer, tag));
            }
        }
        self.shard.array.store(Shard::pack(new), Ordering::Release);
        let bytes = (old.len() + self.writer.overflows) * size_of::<Bucket>();
        self.writer.overflows = overflows;
        // SAFETY: the shard leads to the new array only; the old one is freed here only, without
        // its records.
        unsafe { pinned.retire(bytes, move || old.free()) };
    }
}

/// One bit of a record's hash, from the tag if the tag has it.
fn decisive_bit<M: Meta>(bit: u32, tag: u16, record: RecordPtr<M>) -> bool {
    match bit.checked_sub(TAG_AT) {
        Some(bit) if bit < TAG_BITS => (tag >> bit) & 1 == 1,
        _ => (hash_key(record.key()) >> bit) & 1 == 1,
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_a_cache_line() {
        assert_eq!((size_of::<Bucket>(), align_of::<Bucket>()), (64, 64));
        assert_eq!(size_of::<Shard>(), 64);
    }
}
