//! When the leases of one lane end: four bytes for each, since their numbers follow each other.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use core::ops::Bound;

use quorate_types::{Duration, Instant};

use crate::grant::Lost;

const CHUNK: u64 = 64;
const CLOSED: u32 = 1 << 31;

/// Leases that this lane gave out, numbered from 0. Each has a word until its term ends: 1 plus its
/// expiry in seconds since `origin`, rounded up, and `CLOSED` if it is closed. 0 stands for an
/// ended lease.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Terms {
    origin: Option<Instant>,
    next: u64,
    chunks: BTreeMap<u64, Box<[u32; CHUNK as usize]>>,
    open: usize,
    reaped: Option<u64>,
}

impl Terms {
    fn seconds(&self, at: Instant) -> u32 {
        let origin = self.origin.unwrap_or(at);
        let seconds = at.since(origin).as_nanos().div_ceil(1_000_000_000) + 1;
        u32::try_from(seconds).unwrap_or(CLOSED).min(CLOSED - 1)
    }

    fn has_ended(&self, word: u32, now: Instant) -> bool {
        let origin = self.origin.unwrap_or(now);
        let until = Duration::from_secs(u64::from(word & !CLOSED).saturating_sub(1));
        now.since(origin) >= until
    }

    /// Gives out the next lease.
    pub(crate) fn open(&mut self, now: Instant, until: Instant) -> u64 {
        self.origin.get_or_insert(now);
        let counter = self.next;
        self.next += 1;
        self.open += 1;
        self.renew(counter, until);
        counter
    }

    fn place(&mut self, counter: u64) -> &mut u32 {
        let chunk =
            self.chunks.entry(counter / CHUNK).or_insert_with(|| Box::new([0; CHUNK as usize]));
        &mut chunk[(counter % CHUNK) as usize]
    }

    /// Whether a lease has ended, and how.
    pub(crate) fn lost(&self, counter: u64, now: Instant) -> Option<Lost> {
        let word = self
            .chunks
            .get(&(counter / CHUNK))
            .map_or(0, |chunk| chunk[(counter % CHUNK) as usize]);
        if word == 0 || self.has_ended(word, now) {
            Some(Lost::Expired)
        } else {
            (word & CLOSED != 0).then_some(Lost::Closed)
        }
    }

    /// Moves the end of a lease that has not ended.
    pub(crate) fn renew(&mut self, counter: u64, until: Instant) {
        let seconds = self.seconds(until);
        *self.place(counter) = seconds;
    }

    /// Closes a lease that has not ended. It keeps its word until its term ends.
    pub(crate) fn close(&mut self, counter: u64) {
        *self.place(counter) |= CLOSED;
        self.open -= 1;
    }

    /// Leases that are neither closed nor reaped.
    pub(crate) fn len(&self) -> usize {
        self.open
    }

    /// Whether no lease is left, not even a closed one.
    pub(crate) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Frees leases that have ended, in some of the chunks; in all of them after some rounds.
    pub(crate) fn reap(&mut self, now: Instant, chunks: usize) {
        let from = self.reaped.map_or(Bound::Unbounded, Bound::Excluded);
        let numbers = self.chunks.range((from, Bound::Unbounded)).map(|(number, _)| *number);
        let numbers: alloc::vec::Vec<u64> = numbers.take(chunks).collect();
        self.reaped = numbers.last().copied();
        for number in numbers {
            let Some(chunk) = self.chunks.get(&number) else { continue };
            let mut kept = chunk.clone();
            for word in kept.iter_mut().filter(|word| **word != 0) {
                if self.has_ended(*word, now) {
                    self.open -= usize::from(*word & CLOSED == 0);
                    *word = 0;
                }
            }
            let is_full = self.next >= (number + 1) * CHUNK;
            if is_full && kept.iter().all(|word| *word == 0) {
                self.chunks.remove(&number);
            } else {
                self.chunks.insert(number, kept);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant(5_000_000_000) + Duration::from_secs(seconds)
    }

    #[test]
    fn a_lease_ends_at_its_term_and_never_before() {
        let mut terms = Terms::default();
        for counter in 0..200 {
            assert_eq!(terms.open(at(0), at(100 + counter)), counter);
        }
        assert_eq!(terms.lost(0, at(99)), None);
        assert_eq!(terms.lost(0, at(100)), Some(Lost::Expired));
        assert_eq!(terms.lost(150, at(249)), None);
        terms.renew(1, at(500));
        assert_eq!(terms.lost(1, at(499)), None);
        terms.close(2);
        assert_eq!(terms.lost(2, at(101)), Some(Lost::Closed));
        assert_eq!(terms.lost(2, at(102)), Some(Lost::Expired));
        assert_eq!(terms.lost(200, at(0)), Some(Lost::Expired), "never given out");
        assert_eq!(terms.len(), 199);
    }

    #[test]
    fn what_has_ended_is_freed() {
        let mut terms = Terms::default();
        for _ in 0..1000 {
            terms.open(at(0), at(100));
        }
        terms.renew(700, at(200));
        terms.close(3);
        for _ in 0..20 {
            terms.reap(at(150), 1);
        }
        assert_eq!(
            (terms.len(), terms.chunks.len()),
            (1, 2),
            "the one renewed, and the one being filled"
        );
        assert_eq!(terms.lost(700, at(150)), None);
        for _ in 0..20 {
            terms.reap(at(250), 1);
        }
        assert_eq!((terms.len(), terms.chunks.len()), (0, 1));
    }
}
