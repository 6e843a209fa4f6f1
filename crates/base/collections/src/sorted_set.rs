//! Large sorted sets: the score of each member, and the members in the order of their scores.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cmp::Ordering;

use crate::hashed::{Members, Part, Score};
use crate::packed::{self, Items};
use crate::tree::{By, Layout, Leaf, Tree};

const SCORE_BYTES: usize = size_of::<f64>();

/// A member with its score.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Entry<'a> {
    /// Never NaN.
    pub score: f64,
    /// Its name.
    pub member: &'a [u8],
}

impl<'a> Entry<'a> {
    /// Whether this one stands before, at or behind another.
    #[inline]
    pub fn order(&self, other: &Entry<'_>) -> Ordering {
        let by_score = self.score.partial_cmp(&other.score).unwrap_or(Ordering::Equal);
        by_score.then_with(|| self.member.cmp(other.member))
    }

    /// The first of these packed members, and the rest.
    #[inline]
    pub fn split_first(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (score, behind) = bytes.split_first_chunk::<SCORE_BYTES>()?;
        let mut items = Items { rest: behind };
        let member = items.next()?;
        let score = f64::from_le_bytes(*score);
        (!score.is_nan()).then_some((Entry { score, member }, items.rest))
    }
}

/// What separates two leaves.
#[derive(Clone, Debug)]
struct Bound {
    score: f64,
    member: Box<[u8]>,
}

impl Bound {
    fn entry(&self) -> Entry<'_> {
        Entry { score: self.score, member: &self.member }
    }
}

#[derive(Clone, Debug)]
struct ByScore;

impl Layout for ByScore {
    type Bound = Bound;

    #[inline]
    fn item_len(items: &[u8]) -> Option<usize> {
        let (_, rest) = Entry::split_first(items)?;
        Some(items.len() - rest.len())
    }

    fn bound(items: &[u8]) -> Bound {
        let (first, _) = Entry::split_first(items).expect("a leaf has an item");
        Bound { score: first.score, member: first.member.into() }
    }
}

/// A sorted set.
#[derive(Clone, Default, Debug)]
pub struct SortedSet {
    scores: Members<Score>,
    order: Tree<ByScore>,
}

impl SortedSet {
    /// That of packed members; `None` if they are damaged, out of order, or have a member twice.
    pub(crate) fn build(items: &[u8]) -> Option<Self> {
        let (mut rest, mut last, mut scores) = (items, None::<Entry<'_>>, Vec::new());
        while let Some((entry, behind)) = Entry::split_first(rest) {
            if last.is_some_and(|last| last.order(&entry) != Ordering::Less) {
                return None;
            }
            packed::put_item(entry.member, &mut scores);
            scores.extend_from_slice(&entry.score.to_le_bytes());
            (rest, last) = (behind, Some(entry));
        }
        if !rest.is_empty() {
            return None;
        }
        let mut rest = items;
        let order = Tree::build(core::iter::from_fn(|| {
            let (item, behind) = rest.split_at(ByScore::item_len(rest)?);
            rest = behind;
            Some((item, false))
        }));
        Some(Self { scores: Members::build(&scores)?, order })
    }

    /// How many members.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn bytes(&self) -> usize {
        self.order.bytes()
    }

    pub(crate) fn memory(&self) -> usize {
        self.order.memory() + self.scores.tree().memory()
    }

    pub(crate) fn leaves(&self) -> impl Iterator<Item = &[u8]> {
        self.order.leaves()
    }

    /// The score of a member.
    pub fn score(&self, member: &[u8]) -> Option<f64> {
        self.scores.get(member).map(read_score)
    }

    /// A member with its score.
    pub fn entry<'a>(&self, member: &'a [u8]) -> Option<Entry<'a>> {
        Some(Entry { score: self.score(member)?, member })
    }

    /// Members in order, from this rank on.
    pub fn entries_from(&self, rank: usize) -> impl Iterator<Item = Entry<'_>> + Clone {
        let items = self.order.items_from(rank);
        items.filter_map(|item| Entry::split_first(item).map(|(entry, _)| entry))
    }

    /// How many members come first for which this holds, which holds for none behind one for which it
    /// doesn't.
    pub fn partition_point(&self, mut is_before: impl FnMut(&Entry<'_>) -> bool) -> usize {
        let mut seek = By(|bound: &Bound| is_before(&bound.entry()));
        let (leaf, first) = self.order.leaf(&mut seek);
        first + leaf_point(leaf, is_before).1
    }

    /// The rank of a member.
    pub fn rank(&self, member: &[u8]) -> Option<usize> {
        let wanted = self.entry(member)?;
        Some(self.partition_point(|entry| entry.order(&wanted) == Ordering::Less))
    }

    /// Members in the order of their hashes; see [`crate::Hash::part`].
    pub fn part(&self, place: u64, count: usize) -> Part<Entry<'_>> {
        let (next, part) = self.scores.part(place, count);
        let entry = |(member, score)| Entry { member, score: read_score(score) };
        (next, part.into_iter().map(entry).collect())
    }

    /// Sets the score of a member, and returns the old score.
    pub(crate) fn put(&mut self, entry: Entry<'_>) -> Option<f64> {
        let old = self.scores.put(entry.member, &entry.score.to_le_bytes());
        let old = old.map(|bytes| read_score(&bytes));
        if let Some(score) = old {
            self.take_from_order(Entry { score, ..entry });
        }
        let (length, used) = packed::length(entry.member.len());
        let score = entry.score.to_le_bytes();
        self.edit_order(entry, |leaf, at| {
            leaf.insert(at, &[&score, &length[..used], entry.member]);
        });
        old
    }

    /// Removes a member, and returns its score.
    pub(crate) fn remove(&mut self, member: &[u8]) -> Option<f64> {
        let score = read_score(&self.scores.remove(member)?);
        self.take_from_order(Entry { score, member });
        Some(score)
    }

    fn take_from_order(&mut self, entry: Entry<'_>) {
        self.edit_order(entry, |leaf, at| {
            let length = ByScore::item_len(&leaf.items[at..]).expect("each member has its place");
            leaf.remove(at..at + length);
        });
    }

    /// Changes the leaf to which an entry belongs, at its place there.
    fn edit_order(&mut self, entry: Entry<'_>, change: impl FnOnce(&mut Leaf, usize)) {
        let mut seek = By(|bound: &Bound| bound.entry().order(&entry) != Ordering::Greater);
        self.order.edit(&mut seek, |leaf, _| {
            let is_before = |held: &Entry<'_>| held.order(&entry) == Ordering::Less;
            let (at, _) = leaf_point(leaf, is_before);
            change(leaf, at);
        });
    }
}

/// Where the members of a leaf begin for which something holds no more, and how many there are before.
fn leaf_point(leaf: &Leaf, mut is_before: impl FnMut(&Entry<'_>) -> bool) -> (usize, usize) {
    let (mut rest, mut count) = (&leaf.items[..], 0);
    while let Some((entry, behind)) = Entry::split_first(rest)
        && is_before(&entry)
    {
        (rest, count) = (behind, count + 1);
    }
    (leaf.items.len() - rest.len(), count)
}

fn read_score(bytes: &[u8]) -> f64 {
    f64::from_le_bytes(*bytes.first_chunk().expect("a score has eight bytes"))
}

#[cfg(test)]
impl SortedSet {
    pub(crate) fn check(&self) {
        self.order.check();
        self.scores.tree().check();
        assert_eq!(self.order.len(), self.scores.tree().len());
    }
}
