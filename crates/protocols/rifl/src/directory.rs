//! A directory of leases, whose counters follow each other: pages of neighbours.
//!
//! Sessions that are begun one after the other have consecutive counters, so most places of a page
//! are taken, and a session is found by its place there: without a search, if its page was used
//! lately. Counters that lie far apart have a page each, which holds only their values.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt::{self, Debug};
use core::hash::{Hash, Hasher};
use core::iter;

use quorate_machine::mutant;

use crate::LeaseId;

/// Leases of one page differ in this many of their last bits.
const PAGE_BITS: u32 = 6;
/// Pages that are remembered as used lately.
const RECENT: usize = 16;

/// A value for each of some leases, in their order.
#[derive(Clone)]
pub(crate) struct Directory<V> {
    pages: Vec<Page<V>>,
    /// The index of each page.
    order: BTreeMap<u64, u32>,
    /// The indices of pages that were used lately, by [`hint`]. Another page may have the index by
    /// now.
    recent: [u32; RECENT],
    len: usize,
}

/// The values of leases with one page number, for the `taken` places, in order.
#[derive(Clone)]
struct Page<V> {
    number: u64,
    /// A bit for each place.
    taken: u64,
    values: Vec<V>,
}

const fn page_of(lease: LeaseId) -> u64 {
    lease.0 >> PAGE_BITS
}

const fn bit_of(lease: LeaseId) -> u64 {
    1 << (lease.0 & ((1 << PAGE_BITS) - 1))
}

/// Neighbouring pages of a lane, and the same pages of other lanes and members, have different
/// hints.
const fn hint(page: u64) -> usize {
    ((page ^ page >> 28 ^ page >> 34) % RECENT as u64) as usize
}

impl<V> Default for Directory<V> {
    fn default() -> Self {
        Self { pages: Vec::new(), order: BTreeMap::new(), recent: [0; RECENT], len: 0 }
    }
}

impl<V> Directory<V> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    fn place(&self, number: u64) -> Option<usize> {
        let recent = self.recent[hint(number)] as usize;
        let is_it = |page: &Page<V>| page.number == number || mutant!("rifl_page_believed");
        if self.pages.get(recent).is_some_and(is_it) {
            return Some(recent);
        }
        self.order.get(&number).map(|place| *place as usize)
    }

    #[inline]
    pub(crate) fn get(&self, lease: LeaseId) -> Option<&V> {
        let page = &self.pages[self.place(page_of(lease))?];
        page.index(lease).map(|index| &page.values[index])
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, lease: LeaseId) -> Option<&mut V> {
        let number = page_of(lease);
        let place = self.place(number)?;
        self.recent[hint(number)] = place as u32;
        let page = &mut self.pages[place];
        page.index(lease).map(|index| &mut page.values[index])
    }

    pub(crate) fn contains(&self, lease: LeaseId) -> bool {
        self.get(lease).is_some()
    }

    /// Puts a value under a lease that has none.
    pub(crate) fn insert(&mut self, lease: LeaseId, value: V) -> &mut V {
        let number = page_of(lease);
        let place = self.place(number).unwrap_or_else(|| {
            let place = self.pages.len();
            self.pages.push(Page { number, taken: 0, values: Vec::new() });
            self.order.insert(number, u32::try_from(place).expect("memory is smaller than that"));
            place
        });
        self.len += 1;
        self.pages[place].insert(lease, value)
    }

    pub(crate) fn remove(&mut self, lease: LeaseId) -> Option<V> {
        let place = self.place(page_of(lease))?;
        let page = &mut self.pages[place];
        let index = page.index(lease)?;
        page.taken ^= bit_of(lease);
        let value = page.values.remove(index);
        shrink(&mut page.values);
        self.len -= 1;
        if page.taken == 0 {
            self.order.remove(&page.number);
            self.pages.swap_remove(place);
            if let Some(moved) = self.pages.get(place) {
                self.order.insert(moved.number, place as u32);
            }
            shrink(&mut self.pages);
        }
        Some(value)
    }

    /// In order of lease.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (LeaseId, &V)> {
        self.order.values().flat_map(|place| self.pages[*place as usize].iter())
    }

    /// Leases in order, after this one.
    pub(crate) fn leases_after(&self, after: Option<LeaseId>) -> impl Iterator<Item = LeaseId> {
        let from = after.map_or(0, page_of);
        let pages = self.order.range(from..).map(|(_, place)| &self.pages[*place as usize]);
        pages.flat_map(Page::leases).skip_while(move |lease| Some(*lease) <= after)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.pages.iter().flat_map(|page| &page.values)
    }
}

impl<V> Page<V> {
    /// The index of a lease's value among the values.
    #[inline]
    fn index(&self, lease: LeaseId) -> Option<usize> {
        let bit = bit_of(lease);
        if self.taken & bit == 0 {
            return None;
        }
        let before = self.taken & (bit - 1);
        // Mostly all places before it are taken; counting them takes a dozen instructions more.
        let is_full = before == bit - 1;
        let count = if is_full { bit.trailing_zeros() } else { before.count_ones() };
        Some(count as usize)
    }

    fn insert(&mut self, lease: LeaseId, value: V) -> &mut V {
        let bit = bit_of(lease);
        assert_eq!(self.taken & bit, 0, "{lease:?} has a value");
        let index = (self.taken & (bit - 1)).count_ones() as usize;
        if self.values.len() == self.values.capacity() {
            // A page with one value gets no spare room: there may be as many pages as leases.
            self.values.reserve_exact(self.values.len().max(1));
        }
        self.taken |= bit;
        self.values.insert(index, value);
        &mut self.values[index]
    }

    fn leases(&self) -> impl Iterator<Item = LeaseId> {
        let (first, mut left) = (self.number << PAGE_BITS, self.taken);
        iter::from_fn(move || {
            let bit = (left != 0).then(|| u64::from(left.trailing_zeros()))?;
            left &= left - 1;
            Some(LeaseId(first | bit))
        })
    }

    fn iter(&self) -> impl Iterator<Item = (LeaseId, &V)> {
        self.leases().zip(&self.values)
    }
}

/// Gives memory back if three of four places are unused.
fn shrink<T>(values: &mut Vec<T>) {
    if values.len() <= values.capacity() / 4 {
        values.shrink_to(values.len() * 2);
    }
}

// Equal contents are equal, wherever the pages lie.

impl<V: PartialEq> PartialEq for Directory<V> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl<V: Eq> Eq for Directory<V> {}

impl<V: Hash> Hash for Directory<V> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.len.hash(state);
        self.iter().for_each(|entry| entry.hash(state));
    }
}

impl<V: Debug> Debug for Directory<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use alloc::format;
    use core::hash::BuildHasher;
    use std::hash::RandomState;

    use quorate_machine::Rng;

    use super::*;

    /// One of a few leases; some have consecutive counters.
    fn draw(rng: &mut Rng) -> LeaseId {
        LeaseId(rng.below(3) << 40 | rng.below(2) << 34 | rng.below(4) << 20 | rng.below(150))
    }

    #[test]
    fn it_holds_what_an_ordered_map_holds() {
        let mut rng = Rng::new(3);
        let (mut directory, mut ordered) = (Directory::default(), BTreeMap::new());
        for number in 0..60_000_u64 {
            let lease = draw(&mut rng);
            // The directory fills up, and is emptied again.
            let inserts = (number / 10_000) % 2 == 0;
            match (rng.below(4) == 0) != inserts {
                true if !ordered.contains_key(&lease) => {
                    ordered.insert(lease, number);
                    assert_eq!(*directory.insert(lease, number), number);
                }
                true => *directory.get_mut(lease).expect("it is there") += ordered[&lease] & 1,
                false => assert_eq!(directory.remove(lease), ordered.remove(&lease)),
            }
            if let Some(value) = ordered.get_mut(&lease) {
                *value = *directory.get(lease).expect("it is there");
            }
            let other = draw(&mut rng);
            assert_eq!(directory.get(other), ordered.get(&other));
            assert_eq!(directory.get_mut(other), ordered.get_mut(&other));
            assert_eq!(directory.len(), ordered.len());
            if number % 500 == 0 {
                assert!(directory.iter().eq(ordered.iter().map(|(lease, value)| (*lease, value))));
                let after: Vec<LeaseId> = directory.leases_after(Some(other)).collect();
                let expected = ordered.keys().copied().filter(|lease| *lease > other);
                assert_eq!(after, expected.collect::<Vec<_>>());
                assert!(directory.leases_after(None).eq(ordered.keys().copied()));
                assert_eq!(format!("{directory:?}"), format!("{ordered:?}"));
            }
        }
    }

    #[test]
    fn its_past_makes_no_difference() {
        let (mut grown, mut short) = (Directory::default(), Directory::default());
        for counter in 0..1000 {
            grown.insert(LeaseId(counter), counter);
        }
        for counter in 0..997 {
            grown.remove(LeaseId(counter));
        }
        for counter in (997..1000).rev() {
            short.insert(LeaseId(counter), counter);
        }
        let hasher = RandomState::new();
        assert_eq!(grown, short);
        assert_eq!(hasher.hash_one(&grown), hasher.hash_one(&short));
        short.remove(LeaseId(998));
        assert_ne!(grown, short);
    }
}
