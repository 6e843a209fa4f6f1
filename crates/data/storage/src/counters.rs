//! The contents of a store, counted exactly.

use std::num::NonZeroU64;
use std::sync::Arc;

use quorate_machine::ValueKind;

use crate::sync::{Count, Ordering};
use crate::watches::Watches;

/// Counts of a store's contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Records, tombstones included.
    pub records: u64,
    /// Records with a value, whether or not it has expired.
    pub with_value: u64,
    /// Records with a value that has an expiry.
    pub with_expiry: u64,
    /// Memory in bytes: records, values outside of their records, and the index. Sizes are those
    /// asked of the allocator, rounded up to its usual size classes. Removed memory no longer
    /// counts, even if it waits for readers before it is freed.
    pub bytes: u64,
}

impl Stats {
    /// Sums the changes of the lanes. Exact while no lane writes; amid changes a sum may include an
    /// effect without its cause, and is made plausible.
    pub(crate) fn sum<'a>(lanes: impl Iterator<Item = &'a Counters>) -> Self {
        let mut sums = [0u64; 4];
        for lane in lanes {
            let counters = [&lane.records, &lane.with_value, &lane.with_expiry, &lane.bytes];
            for (sum, counter) in sums.iter_mut().zip(counters) {
                *sum = sum.wrapping_add(counter.load(Ordering::Relaxed));
            }
        }
        let [records, with_value, with_expiry, bytes] = sums.map(|sum| sum.cast_signed().max(0));
        let with_value = with_value.min(records);
        let with_expiry = with_expiry.min(with_value);
        let [records, with_value, with_expiry, bytes] =
            [records, with_value, with_expiry, bytes].map(i64::cast_unsigned);
        Self { records, with_value, with_expiry, bytes }
    }
}

/// One lane's changes to the store's contents: differences, which are negative if the lane removes
/// more than it adds (then they wrap; the sum over the lanes is right).
///
/// Alone on their cache line. Each lane has its own for all the parts that it writes: lanes that
/// write different records write no common line. An update writes only the counters that it
/// changes.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Counters {
    records: Count,
    with_value: Count,
    with_expiry: Count,
    bytes: Count,
    /// How many keys and prefixes of the store are watched, the same number for each lane.
    pub(crate) watched: Count,
    /// For whom the lane makes changes at the moment; 0 for nobody in particular.
    pub(crate) writer: Count,
    /// Those keys.
    pub(crate) watches: Arc<Watches>,
    /// Collections of more bytes are large, if any are.
    pub(crate) packed_bytes_max: Option<usize>,
}

/// One record's share of the counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Weight {
    pub(crate) value: bool,
    pub(crate) expiry: bool,
    pub(crate) bytes: usize,
}

impl Counters {
    /// Of a lane of the store whose watched keys these are, where collections of more bytes than that
    /// are large.
    pub(crate) fn new(watches: Arc<Watches>, packed_bytes_max: Option<usize>) -> Self {
        Self { watches, packed_bytes_max, ..Self::default() }
    }

    /// Whether changes of some keys are to be listed.
    #[inline]
    pub(crate) fn is_any_watched(&self) -> bool {
        self.watched.load(Ordering::Relaxed) != 0
    }

    /// A watched value may have changed. The caller holds its record's lock.
    #[cold]
    pub(crate) fn note(&self, hash: u64, key: &[u8], kind: Option<ValueKind>) {
        let writer = NonZeroU64::new(self.writer.load(Ordering::Relaxed));
        self.watches.note(hash, key, kind, writer);
    }

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
}

#[inline]
fn shift(counter: &Count, before: usize, after: usize) {
    if before != after {
        counter.fetch_add((after as u64).wrapping_sub(before as u64), Ordering::Relaxed);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn what_one_lane_adds_another_may_remove() {
        let lanes = [Counters::default(), Counters::default()];
        let weight = Weight { value: true, expiry: true, bytes: 100 };
        lanes[0].add(weight);
        lanes[0].add(weight);
        lanes[1].remove(weight);
        let one = Stats { records: 1, with_value: 1, with_expiry: 1, bytes: 100 };
        assert_eq!(Stats::sum(lanes.iter()), one);
        lanes[1].remove(weight);
        assert_eq!(Stats::sum(lanes.iter()), Stats::default());
    }

    #[test]
    fn a_sum_in_the_midst_of_changes_is_plausible() {
        let lanes = [Counters::default(), Counters::default()];
        // As if the lane that added the record had been looked at before it did.
        lanes[1].remove(Weight { value: false, expiry: false, bytes: 100 });
        assert_eq!(Stats::sum(lanes.iter()), Stats::default());
        let none = Weight { value: false, expiry: false, bytes: 0 };
        lanes[0].shift(none, Weight { value: true, expiry: true, bytes: 0 });
        assert_eq!(Stats::sum(lanes.iter()), Stats::default());
    }
}
