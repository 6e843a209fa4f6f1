//! What a store holds, counted exactly.

use core::iter::Sum;
// Counters order nothing, so models leave them out and check fewer interleavings.
use std::sync::atomic::{AtomicU64, Ordering};

/// What a store, or one lane's part of it, holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Records, tombstones included.
    pub records: u64,
    /// Records with a value, whether or not it has expired.
    pub with_value: u64,
    /// Records with a value that has an expiry.
    pub with_expiry: u64,
    /// Memory in bytes: records, values outside of their records, and the index. Sizes are what
    /// the allocator is asked for, which is rounded up to its usual size classes. What is removed
    /// no longer counts, even if it waits for readers before it is freed.
    pub bytes: u64,
}

impl Sum for Stats {
    fn sum<I: Iterator<Item = Self>>(parts: I) -> Self {
        parts.fold(Self::default(), |sum, part| Self {
            records: sum.records + part.records,
            with_value: sum.with_value + part.with_value,
            with_expiry: sum.with_expiry + part.with_expiry,
            bytes: sum.bytes + part.bytes,
        })
    }
}

/// The counters of one part, alone on their cache line; an update touches them only if it changes
/// what they count.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Counters {
    records: AtomicU64,
    with_value: AtomicU64,
    with_expiry: AtomicU64,
    bytes: AtomicU64,
}

/// What one record adds to the counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Weight {
    pub(crate) value: bool,
    pub(crate) expiry: bool,
    pub(crate) bytes: usize,
}

impl Counters {
    pub(crate) fn add(&self, weight: Weight) {
        self.records.fetch_add(1, Ordering::Relaxed);
        self.shift(Weight { value: false, expiry: false, bytes: 0 }, weight);
    }

    pub(crate) fn remove(&self, weight: Weight) {
        self.records.fetch_sub(1, Ordering::Relaxed);
        self.shift(weight, Weight { value: false, expiry: false, bytes: 0 });
    }

    /// A record changed.
    #[inline]
    pub(crate) fn shift(&self, before: Weight, after: Weight) {
        shift(&self.with_value, usize::from(before.value), usize::from(after.value));
        shift(&self.with_expiry, usize::from(before.expiry), usize::from(after.expiry));
        shift(&self.bytes, before.bytes, after.bytes);
    }

    /// Part of the index changed its size, in bytes.
    pub(crate) fn shift_index(&self, before: usize, after: usize) {
        shift(&self.bytes, before, after);
    }

    pub(crate) fn records(&self) -> u64 {
        self.records.load(Ordering::Relaxed)
    }

    pub(crate) fn stats(&self) -> Stats {
        Stats {
            records: self.records(),
            with_value: self.with_value.load(Ordering::Relaxed),
            with_expiry: self.with_expiry.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }
}

#[inline]
fn shift(counter: &AtomicU64, before: usize, after: usize) {
    if before != after {
        counter.fetch_add((after as u64).wrapping_sub(before as u64), Ordering::Relaxed);
    }
}
