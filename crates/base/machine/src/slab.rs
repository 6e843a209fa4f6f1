//! A slab whose indices travel in messages as cookies.

use alloc::vec::Vec;

/// A slab index with the generation of its tenant. It goes out in a request as a cookie and comes
/// back in the acknowledgement, which so finds its op without a lookup, and finds nothing if the
/// op is gone. Generations count in 31 bits, so that the highest bit of [`Slot::to_u64`] is free for
/// the holder of the cookie.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Slot {
    /// Where the tenant lives.
    pub index: u32,
    /// Which tenant of that place.
    pub generation: u32,
}

impl Slot {
    /// Names nothing.
    pub const NONE: Self = Self { index: u32::MAX, generation: u32::MAX };

    /// As one word, for a message.
    pub const fn to_u64(self) -> u64 {
        (self.generation as u64) << 32 | self.index as u64
    }

    /// From the word of a message.
    pub const fn from_u64(word: u64) -> Self {
        Self { index: word as u32, generation: (word >> 32) as u32 }
    }
}

/// The generation after which a place begins at 0 again.
const GENERATION_MAX: u32 = u32::MAX >> 1;

/// Reusable places for pending ops. Allocates only while it grows.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Slab<T> {
    entries: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    /// Takes a place.
    pub fn insert(&mut self, value: T) -> Slot {
        if let Some(index) = self.free.pop() {
            let entry = &mut self.entries[index as usize];
            entry.1 = Some(value);
            return Slot { index, generation: entry.0 };
        }
        let index = u32::try_from(self.entries.len()).expect("limits bound a slab below 2^32");
        self.entries.push((0, Some(value)));
        Slot { index, generation: 0 }
    }

    /// The tenant, unless it has left.
    pub fn get(&self, slot: Slot) -> Option<&T> {
        let (generation, value) = self.entries.get(slot.index as usize)?;
        if *generation == slot.generation { value.as_ref() } else { None }
    }

    /// The tenant, unless it has left.
    pub fn get_mut(&mut self, slot: Slot) -> Option<&mut T> {
        let (generation, value) = self.entries.get_mut(slot.index as usize)?;
        if *generation == slot.generation { value.as_mut() } else { None }
    }

    /// Frees the tenant's place; its slot names nothing from now on.
    pub fn remove(&mut self, slot: Slot) -> Option<T> {
        let entry = self.entries.get_mut(slot.index as usize)?;
        if entry.0 != slot.generation {
            return None;
        }
        let value = entry.1.take()?;
        entry.0 = (entry.0 + 1) & GENERATION_MAX;
        self.free.push(slot.index);
        Some(value)
    }

    /// How many tenants.
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Whether there is no tenant.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All tenants, in order of place.
    pub fn iter(&self) -> impl Iterator<Item = (Slot, &T)> {
        self.entries.iter().enumerate().filter_map(|(index, (generation, value))| {
            Some((Slot { index: index as u32, generation: *generation }, value.as_ref()?))
        })
    }

    /// Removes every tenant; their slots name nothing from now on.
    pub fn clear(&mut self) {
        for index in 0..self.entries.len() as u32 {
            let generation = self.entries[index as usize].0;
            self.remove(Slot { index, generation });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_slot_finds_nothing() {
        let mut slab = Slab::default();
        let first = slab.insert("a");
        assert_eq!(slab.remove(first), Some("a"));
        let second = slab.insert("b");
        assert_eq!(second.index, first.index);
        assert_eq!(slab.get(first), None);
        assert_eq!(slab.remove(first), None);
        assert_eq!(slab.get(Slot::from_u64(second.to_u64())), Some(&"b"));
        assert_eq!(slab.get(Slot::NONE), None);
    }
}
