//! Members in the order of their hashes, each with something behind it.

use alloc::vec::Vec;
use core::marker::PhantomData;
use core::ops::Range;

use quorate_types::hash_key;

use crate::packed::{self, Items};
use crate::tree::{By, Layout, Leaf, Tree};

/// Bits of a member's hash that order members.
const PLACE_BITS: u32 = 48;

/// Members from a place on, and the place at which the next ones begin, if any follow.
pub type Part<M> = (Option<u64>, Vec<M>);

/// Where a member stands. Members of one place stand together.
pub fn place_of(member: &[u8]) -> u64 {
    hash_key(member) >> (u64::BITS - PLACE_BITS)
}

/// What lies behind a member.
pub(crate) trait Tail: Clone + 'static {
    /// How many bytes of this that is.
    fn len(bytes: &[u8]) -> Option<usize>;
}

/// Nothing.
#[derive(Clone, Debug)]
pub(crate) struct NoTail;
/// A value, which is an item.
#[derive(Clone, Debug)]
pub(crate) struct Value;
/// A score.
#[derive(Clone, Debug)]
pub(crate) struct Score;

impl Tail for NoTail {
    fn len(_: &[u8]) -> Option<usize> {
        Some(0)
    }
}

impl Tail for Value {
    #[inline]
    fn len(bytes: &[u8]) -> Option<usize> {
        let mut items = Items { rest: bytes };
        items.next()?;
        Some(bytes.len() - items.rest.len())
    }
}

impl Tail for Score {
    fn len(bytes: &[u8]) -> Option<usize> {
        (bytes.len() >= size_of::<f64>()).then_some(size_of::<f64>())
    }
}

/// The layout of such members. They lie in no order inside a leaf.
#[derive(Clone, Debug)]
pub(crate) struct ByHash<T>(PhantomData<T>);

impl<T: Tail> ByHash<T> {
    /// The first member of these bytes, what lies behind it, and the rest.
    #[inline]
    fn first(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
        let mut items = Items { rest: bytes };
        let member = items.next()?;
        let (tail, rest) = items.rest.split_at_checked(T::len(items.rest)?)?;
        Some((member, tail, rest))
    }
}

impl<T: Tail> Layout for ByHash<T> {
    type Bound = u64;

    #[inline]
    fn item_len(items: &[u8]) -> Option<usize> {
        let (_, _, rest) = Self::first(items)?;
        Some(items.len() - rest.len())
    }

    fn bound(items: &[u8]) -> u64 {
        Self::first(items).map_or(0, |(member, ..)| place_of(member))
    }

    fn divide(leaf: &mut Leaf) -> Option<(u64, Leaf)> {
        let mut members = Vec::with_capacity(leaf.count);
        let mut rest = &leaf.items[..];
        while let Some((member, _, behind)) = Self::first(rest) {
            members.push((place_of(member), &rest[..rest.len() - behind.len()]));
            rest = behind;
        }
        members.sort_by_key(|(place, _)| *place);
        let half = members.len() / 2;
        // Members of one place are not separated.
        let (least, middle) = (members[0].0, members[half].0);
        let later = || members.iter().map(|(place, _)| *place).find(|place| *place > least);
        let bound = if middle > least { middle } else { later()? };
        let part = |from: &[(u64, &[u8])]| {
            let items = from.iter().flat_map(|(_, item)| *item).copied().collect();
            Leaf::new(items, from.len())
        };
        let (left, right) = members.split_at(members.partition_point(|(place, _)| *place < bound));
        let (left, right) = (part(left), part(right));
        *leaf = left;
        Some((bound, right))
    }
}

/// Where a member lies in a leaf: all of it, and what is behind it.
struct Found {
    item: Range<usize>,
    tail: Range<usize>,
}

fn find<T: Tail>(leaf: &Leaf, wanted: &[u8]) -> Option<Found> {
    let mut rest = &leaf.items[..];
    loop {
        let (member, tail, behind) = ByHash::<T>::first(rest)?;
        if member == wanted {
            let at = |rest: &[u8]| leaf.items.len() - rest.len();
            let end = at(behind);
            return Some(Found { item: at(rest)..end, tail: end - tail.len()..end });
        }
        rest = behind;
    }
}

/// Members, each with something behind it.
#[derive(Clone, Debug)]
pub(crate) struct Members<T: Tail>(Tree<ByHash<T>>);

impl<T: Tail> Default for Members<T> {
    fn default() -> Self {
        Self(Tree::default())
    }
}

impl<T: Tail> Members<T> {
    /// Those of packed items; `None` if they are damaged, or have a member twice.
    pub(crate) fn build(mut items: &[u8]) -> Option<Self> {
        let mut members = Vec::new();
        while !items.is_empty() {
            let (member, _, rest) = ByHash::<T>::first(items)?;
            members.push((place_of(member), member, &items[..items.len() - rest.len()]));
            items = rest;
        }
        members.sort_unstable_by_key(|(place, member, _)| (*place, *member));
        if members.windows(2).any(|pair| pair[0].1 == pair[1].1) {
            return None;
        }
        let mut last = None;
        Some(Self(Tree::build(members.into_iter().map(|(place, _, item)| {
            let stays = last.replace(place) == Some(place);
            (item, stays)
        }))))
    }

    pub(crate) fn tree(&self) -> &Tree<ByHash<T>> {
        &self.0
    }

    /// What lies behind a member.
    pub(crate) fn get(&self, member: &[u8]) -> Option<&[u8]> {
        let place = place_of(member);
        let (leaf, _) = self.0.leaf(&mut By(|bound: &u64| *bound <= place));
        Some(&leaf.items[find::<T>(leaf, member)?.tail])
    }

    /// Adds a member, or replaces what lies behind it; gives what lay there.
    pub(crate) fn put(&mut self, member: &[u8], tail: &[u8]) -> Option<Vec<u8>> {
        let place = place_of(member);
        self.0.edit(&mut By(|bound: &u64| *bound <= place), |leaf, _| {
            match find::<T>(leaf, member) {
                Some(found) if found.tail.len() == tail.len() => {
                    let bytes = &mut leaf.items[found.tail];
                    let old = bytes.to_vec();
                    bytes.copy_from_slice(tail);
                    Some(old)
                }
                Some(found) => {
                    let old = leaf.items.drain(found.tail.clone()).collect();
                    leaf.put(found.tail.start, &[tail]);
                    Some(old)
                }
                None => {
                    let (length, used) = packed::length(member.len());
                    leaf.insert(leaf.items.len(), &[&length[..used], member, tail]);
                    None
                }
            }
        })
    }

    /// Removes a member; gives what lay behind it.
    pub(crate) fn remove(&mut self, member: &[u8]) -> Option<Vec<u8>> {
        let place = place_of(member);
        self.0.edit(&mut By(|bound: &u64| *bound <= place), |leaf, _| {
            let found = find::<T>(leaf, member)?;
            let old = leaf.items[found.tail].to_vec();
            leaf.remove(found.item);
            Some(old)
        })
    }

    /// Members with what lies behind them, from one number on.
    pub(crate) fn from(&self, number: usize) -> impl Iterator<Item = (&[u8], &[u8])> + Clone {
        self.0.items_from(number).filter_map(|item| {
            let (member, tail, _) = ByHash::<T>::first(item)?;
            Some((member, tail))
        })
    }

    /// Members from a place on, at least `count` of them unless there are fewer, and the place at which
    /// the next ones begin, if any follow. A walk from place to place visits every member that is there
    /// all the time.
    pub(crate) fn part(&self, place: u64, count: usize) -> Part<(&[u8], &[u8])> {
        let (mut from, mut found) = (place, Vec::new());
        loop {
            let (leaf, next) = self.0.leaf_and_bound(&mut By(|bound: &u64| *bound <= from));
            let mut rest = &leaf.items[..];
            while let Some((member, tail, behind)) = ByHash::<T>::first(rest) {
                if place_of(member) >= place {
                    found.push((member, tail));
                }
                rest = behind;
            }
            match next {
                Some(next) if found.len() < count => from = *next,
                next => return (next.copied(), found),
            }
        }
    }
}
