//! The keys of a run.

use alloc::vec::Vec;
use core::mem;

use quorate_machine::DetMap;

use crate::state::Key;

/// As many keys are looked for one after the other; with more there is an index.
const FEW: usize = 8;
/// Bytes of names for which room is kept between runs.
const ROOM_KEPT: usize = 1024;

/// The keys that a run has touched, in the order in which it has, and what is kept of each. Names lie one
/// behind the other in one buffer: a key costs no allocation.
#[derive(Debug)]
pub(crate) struct Keys<V> {
    names: Vec<u8>,
    entries: Vec<Entry<V>>,
    /// Where each is. Empty while there are few.
    places: DetMap<Key, usize>,
}

#[derive(Debug)]
struct Entry<V> {
    /// Where its name ends, which begins where the one before ends.
    end: usize,
    kept: V,
}

impl<V> Default for Keys<V> {
    fn default() -> Self {
        Self { names: Vec::new(), entries: Vec::new(), places: DetMap::default() }
    }
}

impl<V> Keys<V> {
    /// Where a key is.
    pub(crate) fn place(&self, name: &[u8]) -> Option<usize> {
        match self.entries.len() > FEW {
            true => self.places.get(name).copied(),
            false => self.names().position(|key| key == name),
        }
    }

    /// Adds a key that is not there; where it is then.
    pub(crate) fn add(&mut self, name: &[u8], kept: V) -> usize {
        let at = self.entries.len();
        self.names.extend_from_slice(name);
        self.entries.push(Entry { end: self.names.len(), kept });
        if at >= FEW {
            let first = if at == FEW { 0 } else { at };
            let mut places = mem::take(&mut self.places);
            for (place, key) in self.names().enumerate().skip(first) {
                places.insert(key.into(), place);
            }
            self.places = places;
        }
        at
    }

    /// What is kept of a key, by its place.
    pub(crate) fn at(&mut self, place: usize) -> &mut V {
        &mut self.entries[place].kept
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.iter().map(|(name, _)| name)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], &V)> {
        let mut begin = 0;
        self.entries.iter().map(move |entry| {
            let begin = mem::replace(&mut begin, entry.end);
            (&self.names[begin..entry.end], &entry.kept)
        })
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.entries.iter().map(|entry| &entry.kept)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.entries.iter_mut().map(|entry| &mut entry.kept)
    }

    /// Takes what is kept of the keys out, with their names.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = (&[u8], V)> {
        let (names, mut begin) = (&self.names, 0);
        self.places.clear();
        self.entries.drain(..).map(move |entry| {
            let begin = mem::replace(&mut begin, entry.end);
            (&names[begin..entry.end], entry.kept)
        })
    }

    /// Forgets all keys, and keeps the room for a few others.
    pub(crate) fn clear(&mut self) {
        self.names.clear();
        self.names.shrink_to(ROOM_KEPT);
        self.entries.clear();
        self.entries.shrink_to(FEW);
        if !self.places.is_empty() {
            self.places = DetMap::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn each_key_is_found_where_it_was_added() {
        let mut keys = Keys::default();
        for at in 0..100_u8 {
            assert_eq!(keys.place(&vec![at; usize::from(at)]), None);
            // Names of several lengths, one of them empty.
            let name = vec![at; usize::from(at)];
            assert_eq!(keys.add(&name, at), usize::from(at));
            for known in 0..=at {
                let name = vec![known; usize::from(known)];
                assert_eq!(keys.place(&name), Some(usize::from(known)));
            }
        }
        assert_eq!(keys.len(), 100);
        let drained = keys.drain().map(|(name, at)| (name.len(), at));
        assert!(drained.eq((0..100).map(|at| (usize::from(at), at))));
        keys.clear();
        assert_eq!((keys.len(), keys.place(&[1])), (0, None));
    }
}
