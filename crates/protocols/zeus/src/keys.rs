//! The keys of a run.

use alloc::vec::Vec;

use quorate_machine::{DetMap, OneKey};

use crate::state::Key;

/// As many keys are looked for one after the other; with more there is an index.
const FEW: usize = 8;

/// What each key holds that a run has touched, in the order in which it has.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    entries: Vec<(Key, OneKey<'static>)>,
    /// Where each is. Empty while there are few.
    places: DetMap<Key, usize>,
}

impl Keys {
    /// Where a key is.
    pub(crate) fn place(&self, name: &[u8]) -> Option<usize> {
        match self.entries.len() > FEW {
            true => self.places.get(name).copied(),
            false => self.entries.iter().position(|(key, _)| **key == *name),
        }
    }

    /// Adds a key that is not there; where it is then.
    pub(crate) fn add(&mut self, name: &[u8], key: OneKey<'static>) -> usize {
        let at = self.entries.len();
        self.entries.push((name.into(), key));
        if at >= FEW {
            let first = if at == FEW { 0 } else { at };
            for (place, (key, _)) in self.entries.iter().enumerate().skip(first) {
                self.places.insert(key.clone(), place);
            }
        }
        at
    }

    /// A key by its place.
    pub(crate) fn at(&mut self, place: usize) -> &mut OneKey<'static> {
        &mut self.entries[place].1
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &(Key, OneKey<'static>)> {
        self.entries.iter()
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &OneKey<'static>> {
        self.entries.iter().map(|(_, key)| key)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut OneKey<'static>> {
        self.entries.iter_mut().map(|(_, key)| key)
    }

    pub(crate) fn into_entries(self) -> Vec<(Key, OneKey<'static>)> {
        self.entries
    }
}

#[cfg(test)]
mod tests {
    use quorate_machine::Current;

    use super::*;

    #[test]
    fn each_key_is_found_where_it_was_added() {
        let mut keys = Keys::default();
        for at in 0..100_u8 {
            assert_eq!(keys.place(&[at]), None);
            assert_eq!(keys.add(&[at], OneKey::new(Current::ABSENT)), usize::from(at));
            for known in 0..=at {
                assert_eq!(keys.place(&[known]), Some(usize::from(known)));
            }
        }
        assert_eq!(keys.len(), 100);
    }
}
