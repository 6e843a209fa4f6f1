//! Large lists.

use alloc::vec::Vec;

use crate::packed::{self, Items};
use crate::tree::{At, Layout, Tree};

/// Items, which are found by their number.
#[derive(Clone, Debug)]
struct Numbered;

impl Layout for Numbered {
    type Bound = ();

    #[inline]
    fn item_len(items: &[u8]) -> Option<usize> {
        let mut rest = Items { rest: items };
        rest.next()?;
        Some(items.len() - rest.rest.len())
    }

    fn bound(_: &[u8]) {}
}

/// A list.
#[derive(Clone, Default, Debug)]
pub struct List {
    items: Tree<Numbered>,
}

impl List {
    /// The list of packed items; `None` if they are damaged.
    pub(crate) fn build(items: &[u8]) -> Option<Self> {
        let mut rest = items;
        let tree = Tree::build(core::iter::from_fn(|| {
            let (item, behind) = rest.split_at(Numbered::item_len(rest)?);
            rest = behind;
            Some((item, false))
        }));
        (tree.bytes() == items.len()).then_some(Self { items: tree })
    }

    /// How many items.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn bytes(&self) -> usize {
        self.items.bytes()
    }

    pub(crate) fn memory(&self) -> usize {
        self.items.memory()
    }

    pub(crate) fn leaves(&self) -> impl Iterator<Item = &[u8]> {
        self.items.leaves()
    }

    /// The items from this one on.
    pub fn items_from(&self, at: usize) -> impl Iterator<Item = &[u8]> + Clone {
        self.items.items_from(at).filter_map(|item| Items { rest: item }.next())
    }

    /// Puts an item before the one with this number.
    pub(crate) fn insert(&mut self, at: usize, item: &[u8]) {
        let (length, used) = packed::length(item.len());
        self.items.edit(&mut At(at), |leaf, left| {
            let place = offset(&leaf.items, left.0);
            leaf.insert(place, &[&length[..used], item]);
        });
    }

    /// Takes out items from this number on, at most so many and at least one of those that are there.
    /// Appends them, packed, and gives how many they are.
    pub(crate) fn remove(&mut self, at: usize, most: usize, out: &mut Vec<u8>) -> usize {
        self.items.edit(&mut At(at), |leaf, left| {
            let from = offset(&leaf.items, left.0);
            let count = most.min(leaf.count.saturating_sub(left.0));
            let to = from + offset(&leaf.items[from..], count);
            leaf.count -= count;
            out.extend(leaf.items.drain(from..to));
            count
        })
    }
}

/// Where the item with this number begins.
fn offset(items: &[u8], number: usize) -> usize {
    let mut rest = Items { rest: items };
    rest.by_ref().take(number).for_each(drop);
    items.len() - rest.rest.len()
}

#[cfg(test)]
impl List {
    pub(crate) fn check(&self) {
        self.items.check();
    }
}
