//! What stands under the slots of a pipeline, from the first that is not done.

use alloc::collections::VecDeque;

/// A map from slots in which most are added at the end and taken from the front.
#[derive(Clone, Hash, Debug)]
pub(crate) struct Window<V>(VecDeque<(u64, V)>);

impl<V> Default for Window<V> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<V> Window<V> {
    fn place(&self, slot: u64) -> Result<usize, usize> {
        match self.0.back() {
            Some((last, _)) if *last >= slot => self.0.binary_search_by_key(&slot, |(at, _)| *at),
            _ => Err(self.0.len()),
        }
    }

    pub(crate) fn contains(&self, slot: u64) -> bool {
        self.place(slot).is_ok()
    }

    pub(crate) fn get(&self, slot: u64) -> Option<&V> {
        self.place(slot).ok().map(|at| &self.0[at].1)
    }

    pub(crate) fn get_mut(&mut self, slot: u64) -> Option<&mut V> {
        self.place(slot).ok().map(|at| &mut self.0[at].1)
    }

    /// Puts a value under a slot, and drops what stood there.
    pub(crate) fn insert(&mut self, slot: u64, value: V) {
        match self.place(slot) {
            Ok(at) => self.0[at].1 = value,
            Err(at) if at == self.0.len() => self.0.push_back((slot, value)),
            Err(at) => self.0.insert(at, (slot, value)),
        }
    }

    pub(crate) fn remove(&mut self, slot: u64) -> Option<V> {
        let at = self.place(slot).ok()?;
        self.0.remove(at).map(|(_, value)| value)
    }

    /// Takes the first, if its slot is not after this one.
    pub(crate) fn pop_upto(&mut self, upto: u64) -> Option<(u64, V)> {
        self.0.front().is_some_and(|(slot, _)| *slot <= upto).then(|| self.0.pop_front())?
    }

    /// In the order of slots, as all that follow.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &V)> {
        self.0.iter().map(|(slot, value)| (*slot, value))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut V)> {
        self.0.iter_mut().map(|(slot, value)| (*slot, value))
    }

    /// From this slot on.
    pub(crate) fn from(&self, slot: u64) -> impl Iterator<Item = (u64, &V)> {
        let at = self.place(slot).unwrap_or_else(|at| at);
        self.0.iter().skip(at).map(|(slot, value)| (*slot, value))
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.0.iter().map(|(_, value)| value)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.0.iter_mut().map(|(_, value)| value)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;
    use alloc::vec::Vec;

    use quorate_machine::Rng;

    use super::*;

    #[test]
    fn it_holds_what_an_ordered_map_holds() {
        let mut rng = Rng::new(3);
        let (mut window, mut map) = (Window::default(), BTreeMap::new());
        for step in 0..10_000_u64 {
            let slot = step / 10 + rng.below(20);
            match rng.below(4) {
                0 => assert_eq!(window.remove(slot), map.remove(&slot)),
                1 if step % 50 == 1 => {
                    while let Some((slot, value)) = window.pop_upto(step / 10) {
                        assert_eq!(map.pop_first(), Some((slot, value)));
                    }
                    assert!(map.first_key_value().is_none_or(|(slot, _)| *slot > step / 10));
                }
                _ => {
                    window.insert(slot, step);
                    map.insert(slot, step);
                }
            }
            assert_eq!(window.get(slot), map.get(&slot));
            assert_eq!(window.contains(slot), map.contains_key(&slot));
            assert_eq!((window.len(), window.is_empty()), (map.len(), map.is_empty()));
            let later: Vec<_> = map.range(slot..).map(|(slot, value)| (*slot, value)).collect();
            assert_eq!(window.from(slot).collect::<Vec<_>>(), later);
        }
        assert!(window.values().eq(map.values()));
    }
}
