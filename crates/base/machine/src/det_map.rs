//! A map to look things up in, whose order nobody can see.

use alloc::vec::Vec;
use core::borrow::Borrow;
use core::fmt::{self, Debug};
use core::hash::{BuildHasherDefault, Hash, Hasher};

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use rapidhash::fast::RapidHasher;

/// A hash map that a machine may own: it shows its entries in the order of their keys only, since
/// where they lie depends on all that was ever in it. Where keys are a table's handles, not even that
/// order is the same in every run, and nothing that a machine does may follow it.
///
/// For keys that are looked up far more often than listed. Its memory is kept for reuse: as much as
/// its most entries ever took. Keys are not protected against those who choose them to collide.
#[derive(Clone)]
pub struct DetMap<K, V>(HashMap<K, V, BuildHasherDefault<RapidHasher<'static>>>);

impl<K, V> Default for DetMap<K, V> {
    fn default() -> Self {
        Self(HashMap::default())
    }
}

impl<K: Ord + Hash, V> DetMap<K, V> {
    /// What stands under a key.
    #[inline]
    pub fn get<Q: ?Sized + Eq + Hash>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        if self.0.is_empty() { None } else { self.0.get(key) }
    }

    /// What stands under a key, to be changed.
    #[inline]
    pub fn get_mut<Q: ?Sized + Eq + Hash>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        if self.0.is_empty() { None } else { self.0.get_mut(key) }
    }

    /// A key as it is held here, with what stands under it.
    pub fn get_entry(&self, key: &K) -> Option<(&K, &V)> {
        self.0.get_key_value(key)
    }

    /// What stands under a key, to be changed: a new value if nothing stood there, which the second
    /// part of the answer tells.
    #[inline]
    pub fn get_or_insert_with(&mut self, key: K, value: impl FnOnce() -> V) -> (&mut V, bool) {
        match self.0.entry(key) {
            Entry::Occupied(entry) => (entry.into_mut(), false),
            Entry::Vacant(entry) => (entry.insert(value()), true),
        }
    }

    /// Whether something stands under a key.
    #[inline]
    pub fn contains_key<Q: ?Sized + Eq + Hash>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.get(key).is_some()
    }

    /// Puts a value under a key; gives what stood there.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.0.insert(key, value)
    }

    /// Takes away what stands under a key.
    #[inline]
    pub fn remove<Q: ?Sized + Eq + Hash>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        if self.0.is_empty() { None } else { self.0.remove(key) }
    }

    /// Takes away what stands under a key if the condition holds.
    #[inline]
    pub fn remove_if(&mut self, key: &K, condition: impl FnOnce(&V) -> bool) -> Option<V>
    where
        K: Copy,
    {
        if self.0.is_empty() {
            return None;
        }
        match self.0.entry(*key) {
            Entry::Occupied(entry) if condition(entry.get()) => Some(entry.remove()),
            _ => None,
        }
    }

    /// Takes away everything.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Entries.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The entries in the order of their keys, sorted for this.
    pub fn sorted(&self) -> Vec<(&K, &V)> {
        let mut entries: Vec<(&K, &V)> = self.0.iter().collect();
        entries.sort_unstable_by_key(|(key, _)| *key);
        entries
    }

    /// The sum of what an entry counts.
    pub fn sum(&self, mut count: impl FnMut(&K, &V) -> usize) -> usize {
        self.0.iter().map(|(key, value)| count(key, value)).sum()
    }

    /// The keys, in their order, for whose entries a condition holds.
    pub fn keys_that(&self, mut condition: impl FnMut(&K, &V) -> bool) -> Vec<K>
    where
        K: Clone,
    {
        let entries = self.0.iter().filter(|(key, value)| condition(key, value));
        let mut keys: Vec<K> = entries.map(|(key, _)| key.clone()).collect();
        keys.sort_unstable();
        keys
    }

    /// The least of what is made of the values.
    pub fn least<T: Ord>(&self, of: impl FnMut(&V) -> T) -> Option<T> {
        self.0.values().map(of).min()
    }

    /// Changes every value. What is done with one must not depend on which came before.
    pub fn change_all(&mut self, change: impl FnMut(&mut V)) {
        self.0.values_mut().for_each(change);
    }

    /// Takes away the entries for which a condition does not hold. It must not depend on which one is
    /// asked first.
    pub fn retain(&mut self, mut condition: impl FnMut(&K, &V) -> bool) {
        self.0.retain(|key, value| condition(key, value));
    }

    /// Whether a condition holds for some entry. It must not depend on which one is asked first.
    pub fn any(&self, mut condition: impl FnMut(&K, &V) -> bool) -> bool {
        self.0.iter().any(|(key, value)| condition(key, value))
    }
}

impl<K: Eq + Hash, V: PartialEq> PartialEq for DetMap<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<K: Eq + Hash, V: Eq> Eq for DetMap<K, V> {}

impl<K: Ord + Hash, V: Hash> Hash for DetMap<K, V> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.sorted().hash(state);
    }
}

impl<K: Ord + Hash + Debug, V: Debug> Debug for DetMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.sorted()).finish()
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use alloc::collections::BTreeMap;
    use alloc::format;
    use core::hash::BuildHasher;
    use std::hash::RandomState;

    use super::*;
    use crate::Rng;

    #[test]
    fn it_holds_what_an_ordered_map_holds() {
        let mut rng = Rng::new(7);
        let (mut lookup, mut ordered) = (DetMap::default(), BTreeMap::new());
        for number in 0..20_000_u64 {
            let key = (rng.below(40), rng.below(20));
            match rng.below(5) {
                0 | 1 => assert_eq!(lookup.insert(key, number), ordered.insert(key, number)),
                4 => {
                    let is_new = !ordered.contains_key(&key);
                    let value = lookup.get_or_insert_with(key, || number);
                    assert_eq!(value, (ordered.entry(key).or_insert(number), is_new));
                }
                2 => assert_eq!(lookup.remove(&key), ordered.remove(&key)),
                _ => {
                    let odd = |value: &u64| value % 2 == 1;
                    let expected = ordered.get(&key).copied().filter(odd);
                    assert_eq!(lookup.remove_if(&key, odd), expected);
                    expected.and_then(|_| ordered.remove(&key));
                }
            }
            assert_eq!(lookup.get(&key), ordered.get(&key));
            assert_eq!(lookup.get_entry(&key), ordered.get_key_value(&key));
            assert_eq!(lookup.get_mut(&key), ordered.get_mut(&key));
            assert_eq!(lookup.len(), ordered.len());
        }
        assert_eq!(lookup.sorted(), ordered.iter().collect::<Vec<_>>());
        assert_eq!(format!("{lookup:?}"), format!("{ordered:?}"));
        assert_eq!(lookup.keys_that(|_, _| true), ordered.keys().copied().collect::<Vec<_>>());
        assert_eq!(lookup.least(|value| *value), ordered.values().min().copied());
        lookup.change_all(|value| *value += 1);
        ordered.values_mut().for_each(|value| *value += 1);
        lookup.retain(|_, value| value % 3 == 0);
        ordered.retain(|_, value| *value % 3 == 0);
        assert!(!ordered.is_empty());
        assert_eq!(lookup.sorted(), ordered.iter().collect::<Vec<_>>());
    }

    #[test]
    fn its_past_makes_no_difference() {
        let (mut grown, mut short) = (DetMap::default(), DetMap::default());
        for key in 0..1000 {
            grown.insert(key, key);
        }
        for key in 3..1000 {
            grown.remove(&key);
        }
        for key in (0..3).rev() {
            short.insert(key, key);
        }
        let hasher = RandomState::new();
        assert_eq!(grown, short);
        assert_eq!(hasher.hash_one(&grown), hasher.hash_one(&short));
        short.insert(3, 3);
        assert_ne!(grown, short);
    }
}
