//! What a machine has to do at which time. It asks for one wake-up, at the earliest of its deadlines
//! ([`crate::Machine::next_deadline`]), and takes out what is due when the tick comes.

use alloc::collections::{BTreeSet, VecDeque};

use quorate_types::{Instant, Now};

/// Deadlines that all lie equally far ahead when they are set, so that they come in the order of
/// entry. Nothing is taken back: an entry that no longer counts is passed over when it is due.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Timeouts<K>(VecDeque<(Instant, K)>);

impl<K> Default for Timeouts<K> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<K: Copy> Timeouts<K> {
    /// Sets a deadline, which is not before any other.
    #[inline]
    pub fn push(&mut self, at: Instant, key: K) {
        self.0.push_back((at, key));
    }

    /// The first deadline; [`Instant::NEVER`] if there is none.
    #[inline]
    pub fn next_deadline(&self) -> Instant {
        self.0.front().map_or(Instant::NEVER, |(at, _)| *at)
    }

    /// Takes the first entry out if it is due.
    pub fn pop_due(&mut self, now: Now) -> Option<(Instant, K)> {
        if self.next_deadline() <= now.monotonic { self.0.pop_front() } else { None }
    }

    /// The oldest entry that counts; those before it are taken out.
    pub fn oldest(&mut self, counts: impl Fn(&K) -> bool) -> Option<K> {
        while let Some((_, key)) = self.0.front() {
            if counts(key) {
                return Some(*key);
            }
            self.0.pop_front();
        }
        None
    }

    /// Takes everything out.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

/// Deadlines in the order of time, those of one moment in the order of their keys. Each can be taken
/// back by who knows its time.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Deadlines<K: Ord>(BTreeSet<(Instant, K)>);

impl<K: Ord> Default for Deadlines<K> {
    fn default() -> Self {
        Self(BTreeSet::new())
    }
}

impl<K: Ord + Copy> Deadlines<K> {
    /// Sets a deadline.
    pub fn insert(&mut self, at: Instant, key: K) {
        self.0.insert((at, key));
    }

    /// Takes a deadline back.
    pub fn remove(&mut self, at: Instant, key: K) {
        self.0.remove(&(at, key));
    }

    /// The first deadline; [`Instant::NEVER`] if there is none.
    #[inline]
    pub fn next_deadline(&self) -> Instant {
        self.0.first().map_or(Instant::NEVER, |(at, _)| *at)
    }

    /// The first entry, if it is due. It stays.
    pub fn first_due(&self, now: Now) -> Option<(Instant, K)> {
        self.0.first().filter(|(at, _)| *at <= now.monotonic).copied()
    }

    /// Takes the first entry out if it is due.
    pub fn pop_due(&mut self, now: Now) -> Option<(Instant, K)> {
        if self.next_deadline() <= now.monotonic { self.0.pop_first() } else { None }
    }

    /// All entries, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &(Instant, K)> {
        self.0.iter()
    }

    /// Takes everything out.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}
