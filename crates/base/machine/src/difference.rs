//! What two tables differ in: the walk of a replica that compares what it has with another's records
//! and copies only what is different. What a record's hash says, and what becomes of it, is up to the
//! protocol.
//!
//! The places of keys ([`Table::scan_places`]) are divided into buckets of some eight records. Who
//! compares sends the digest of each bucket of a range, which is the sum of the hashes of its records,
//! and hears which ones differ. Of those it sends the hashes themselves, and gets what the other holds
//! besides, and word of what the other does not hold. A hash has to be seeded by the random name of the
//! question, so that no client can choose keys that are taken for each other. The other keeps nothing
//! between questions; who compares keeps its place ([`Comparing`]).

use alloc::vec::Vec;
use core::ops::Range;

use crate::{PLACES, Table, mutant};

/// Records for which there is a bucket.
const BUCKET_RECORDS: u64 = 8;
/// Most buckets that are compared at a time.
const BUCKETS_MAX: usize = 256;
/// Doublings that a table may have seen since the size of its buckets was chosen.
const GROWTH_MAX: u8 = 3;

/// How far a replica has come that compares.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Comparing {
    /// A bucket has two to the power of this many places.
    shift: u8,
    /// What lies before this place is settled.
    place: u64,
    /// The end of the range that was compared last.
    end: u64,
    /// Its buckets that differ and are not settled, in order.
    differing: Vec<u64>,
}

impl Comparing {
    /// For a table of so many records.
    pub fn new(records: usize) -> Self {
        Self { shift: shift_for(records as u64), place: 0, end: 0, differing: Vec::new() }
    }

    /// A bucket has two to the power of this many places.
    pub fn shift(&self) -> u8 {
        self.shift
    }

    /// Whether what differs is asked for next, and not the digests of the next buckets.
    pub fn asks_for_records(&self) -> bool {
        !self.differing.is_empty()
    }

    /// The buckets that differ and are not settled, in order.
    pub fn asked(&self) -> &[u64] {
        &self.differing
    }

    /// What to ask the other replica now.
    pub fn question<T: Table>(
        &self,
        table: &mut T,
        mut hash_of: impl FnMut(&mut T, T::Handle) -> Option<u64>,
    ) -> Question {
        let shift = self.shift;
        if !self.asks_for_records() {
            let buckets = self.next_buckets();
            let first = buckets.start;
            return Question::Digests { first, digests: digests(table, shift, buckets, hash_of) };
        }
        let mut held = Vec::new();
        for &bucket in &self.differing {
            let records = records_in(table, shift, bucket..bucket + 1);
            held.extend(records.into_iter().filter_map(|(_, handle)| hash_of(table, handle)));
        }
        Question::Records { buckets: self.differing.clone(), held }
    }

    fn next_buckets(&self) -> Range<u64> {
        let first = self.place >> self.shift;
        first..(first + BUCKETS_MAX as u64).min(PLACES >> self.shift)
    }

    /// Takes the answer to a question of digests: how many records the other has, and which buckets
    /// differ. Gives the records in the buckets that do not differ, which are settled; none of them
    /// if the other has too many records for buckets of this size. `None` if this answers no such
    /// question.
    pub fn take_answer<T: Table>(
        &mut self,
        table: &T,
        records: u64,
        buckets: impl Iterator<Item = u64> + Clone,
    ) -> Option<Vec<T::Handle>> {
        let range = self.next_buckets();
        if self.asks_for_records() || !rise_within(buckets.clone(), &range) {
            return None;
        }
        if is_too_coarse(self.shift, records) {
            self.shift = shift_for(records);
            return Some(Vec::new());
        }
        self.end = range.end << self.shift;
        self.differing = buckets.collect();
        let equal = records_in(table, self.shift, range).into_iter();
        let equal = equal.filter(|(bucket, _)| self.differing.binary_search(bucket).is_err());
        Some(equal.map(|(_, handle)| handle).collect())
    }

    /// Takes the answer to a question of records: the buckets before the place `until` are settled.
    /// Gives their records, each with whether the other has said that it does not hold it.
    pub fn take_records<T: Table>(
        &mut self,
        table: &mut T,
        until: u64,
        gone: impl Iterator<Item = u64>,
        mut hash_of: impl FnMut(&mut T, T::Handle) -> Option<u64>,
    ) -> Vec<(T::Handle, bool)> {
        let (shift, mut gone) = (self.shift, Vec::from_iter(gone));
        gone.sort_unstable();
        let settled = self.differing.partition_point(|bucket| (bucket + 1) << shift <= until);
        let mut records = Vec::new();
        for bucket in self.differing.drain(..settled) {
            for (_, handle) in records_in(table, shift, bucket..bucket + 1) {
                let hash = hash_of(table, handle);
                records.push((handle, hash.is_some_and(|hash| gone.binary_search(&hash).is_ok())));
            }
        }
        records
    }

    /// Goes on to what differs, or to the next range, in a table of so many records. Whether there is
    /// anything left.
    pub fn go_on(&mut self, records: usize) -> bool {
        if !self.asks_for_records() {
            self.place = self.place.max(self.end);
            self.shift = self.shift.min(shift_for(records as u64));
        }
        self.place < PLACES
    }

    /// No answer comes: another replica gives none for buckets that its table has outgrown, and this
    /// one, of so many records, has then grown as much. Compares what is not settled in smaller ones.
    /// Whether it does: then the question is another one and needs another name, since a late answer speaks
    /// of the larger buckets.
    #[must_use]
    pub fn shrink_buckets(&mut self, records: usize) -> bool {
        let shrinks = is_too_coarse(self.shift, records as u64);
        let shrinks = shrinks && !mutant!("machine_outgrown_buckets_kept");
        if shrinks {
            self.shift = shift_for(records as u64);
            self.differing.clear();
            self.end = self.place;
        }
        shrinks
    }
}

/// What a replica that compares asks next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Question {
    /// Which buckets, from this one on, have other digests.
    Digests {
        /// The first bucket.
        first: u64,
        /// Its digest and those of the buckets after it.
        digests: Vec<u64>,
    },
    /// What some buckets hold besides records with these hashes.
    Records {
        /// The buckets, in order.
        buckets: Vec<u64>,
        /// The hashes of what the asking replica holds in them.
        held: Vec<u64>,
    },
}

/// The size of buckets for so many records.
fn shift_for(records: u64) -> u8 {
    let buckets = (records / BUCKET_RECORDS).clamp(1, PLACES).next_power_of_two();
    (PLACES.ilog2() - buckets.ilog2()) as u8
}

/// Whether a bucket of this size would have too many of so many records.
fn is_too_coarse(shift: u8, records: u64) -> bool {
    shift > shift_for(records) + 1
}

/// The same of buckets that were chosen when the table was smaller.
pub fn is_outgrown(shift: u8, records: usize) -> bool {
    shift > shift_for(records as u64) + GROWTH_MAX
}

fn rise_within(mut buckets: impl Iterator<Item = u64>, range: &Range<u64>) -> bool {
    let mut least = range.start;
    buckets.all(|bucket| {
        let fits = bucket >= least && bucket < range.end;
        least = bucket + u64::from(fits);
        fits
    })
}

/// How many buckets of this size there are.
fn buckets_of(shift: u8) -> u64 {
    PLACES.checked_shr(u32::from(shift)).unwrap_or(0)
}

/// The answer to a question of digests: the buckets, from `first` on, in which this table holds
/// something else. None of them if they are too large for what is here. `None` if no correct replica
/// asks so.
pub fn compare<T: Table>(
    table: &mut T,
    shift: u8,
    first: u64,
    theirs: impl ExactSizeIterator<Item = u64>,
    hash_of: impl FnMut(&mut T, T::Handle) -> Option<u64>,
) -> Option<Vec<u64>> {
    let end = first.saturating_add(theirs.len() as u64);
    if !(1..=BUCKETS_MAX).contains(&theirs.len()) || end > buckets_of(shift) {
        return None;
    }
    if is_too_coarse(shift, table.len() as u64) {
        return Some(Vec::new());
    }
    let own = digests(table, shift, first..end, hash_of);
    let both = (first..end).zip(own.into_iter().zip(theirs));
    Some(both.filter(|(_, (own, theirs))| own != theirs).map(|(bucket, _)| bucket).collect())
}

/// Whether a correct replica may ask for what these buckets hold.
pub fn may_ask_for(shift: u8, buckets: impl ExactSizeIterator<Item = u64>) -> bool {
    (1..=BUCKETS_MAX).contains(&buckets.len()) && rise_within(buckets, &(0..buckets_of(shift)))
}

/// The records in some buckets, with those.
fn records_in<T: Table>(table: &T, shift: u8, buckets: Range<u64>) -> Vec<(u64, T::Handle)> {
    let (mut place, end) = (buckets.start << shift, buckets.end << shift);
    // No more than are expected, as a scan does not know where to end.
    let limit = buckets.count() * BUCKET_RECORDS as usize;
    let mut records = Vec::new();
    while place < end {
        let next = table.scan_places(place, limit, &mut |place, handle| {
            if place < end {
                records.push((place >> shift, handle));
            }
        });
        if next == 0 {
            break;
        }
        place = next;
    }
    records
}

/// The records of a bucket that have hashes, with those.
pub fn hashes_in<T: Table>(
    table: &mut T,
    shift: u8,
    bucket: u64,
    mut hash_of: impl FnMut(&mut T, T::Handle) -> Option<u64>,
) -> Vec<(T::Handle, u64)> {
    let records = records_in(table, shift, bucket..bucket + 1).into_iter();
    records.filter_map(|(_, handle)| Some((handle, hash_of(table, handle)?))).collect()
}

/// For each bucket the sum of the hashes of its records; one without a hash does not count.
fn digests<T: Table>(
    table: &mut T,
    shift: u8,
    buckets: Range<u64>,
    mut hash_of: impl FnMut(&mut T, T::Handle) -> Option<u64>,
) -> Vec<u64> {
    let mut digests = Vec::from_iter(buckets.clone().map(|_| 0u64));
    for (bucket, handle) in records_in(table, shift, buckets.clone()) {
        let digest = &mut digests[(bucket - buckets.start) as usize];
        *digest = digest.wrapping_add(hash_of(table, handle).unwrap_or(0));
    }
    digests
}

/// The hashes of what the asking replica has, as the other one goes through them.
#[derive(Debug)]
pub struct Held(Vec<(u64, bool)>);

impl Held {
    /// Those that a question names.
    pub fn new(hashes: impl Iterator<Item = u64>) -> Self {
        let mut held = Vec::from_iter(hashes.map(|hash| (hash, false)));
        held.sort_unstable();
        Self(held)
    }

    /// The records of a bucket that the asking replica lacks. The others are found, which is
    /// remembered; one without a hash is neither.
    pub fn lacking<T: Table>(
        &mut self,
        table: &mut T,
        shift: u8,
        bucket: u64,
        hash_of: impl FnMut(&mut T, T::Handle) -> Option<u64>,
    ) -> Vec<T::Handle> {
        let records = hashes_in(table, shift, bucket, hash_of).into_iter();
        records.filter(|(_, hash)| !self.find(*hash)).map(|(handle, _)| handle).collect()
    }

    /// Whether the asking replica has a record with this hash, which is remembered.
    pub fn find(&mut self, hash: u64) -> bool {
        let place = self.0.binary_search_by_key(&hash, |(held, _)| *held);
        place.is_ok_and(|place| {
            self.0[place].1 = true;
            true
        })
    }

    /// Those that were not found.
    pub fn gone(&self) -> impl Iterator<Item = u64> {
        self.0.iter().filter(|(_, found)| !found).map(|(hash, _)| *hash)
    }
}
