//! Large streams: chunks of entries, found by their ids, and groups of consumers, found by their names.
//!
//! ```text
//! packed: length u32 | tail u32 | bytes of groups u32 | added u64 | last id | max deleted id
//!         | groups, by name | chunks, by id
//! group:  bytes u32 | name | what the commands on it know
//! chunk:  bytes of the body u32 | node bytes u32 | live u8 | deleted u8 | first id | last id | body
//! ```
//! The commands on streams know what entries and groups are. Here a group is some bytes that begin with
//! its name, and a chunk some that begin with a head. `tail` is where the last chunk begins.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;

use crate::Damaged;
use crate::packed;
use crate::tree::{By, Items, Layout, Leaf, Tree};

/// Bytes of what a stream counts: its length, how many entries were added, the last id and the largest
/// deleted one.
pub const COUNTERS_BYTES: usize = 44;
/// Bytes of a chunk before its body, without the length of the body.
pub const CHUNK_HEAD_BYTES: usize = 38;
/// Bytes of a length.
const LENGTH_BYTES: usize = 4;
/// Packed bytes before the groups.
const HEADER_BYTES: usize = COUNTERS_BYTES + 2 * LENGTH_BYTES;
/// Where a chunk has its ids, behind the length.
const FIRST_ID: usize = 6;
const LAST_ID: usize = 22;
/// Where counters have the last id.
const LAST_COUNTED: usize = 12;

/// What takes the place of some bytes of a group or a chunk, whose lengths don't count as bytes of it. One
/// that isn't there has no bytes, and one that has none left is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Splice<'a> {
    /// Where they begin.
    pub at: usize,
    /// How many go.
    pub cut: usize,
    /// What comes there.
    pub put: &'a [u8],
}

impl Splice<'_> {
    /// Where those that go end, if these bytes have so many.
    fn end(&self, held: &[u8]) -> Option<usize> {
        self.at.checked_add(self.cut).filter(|end| *end <= held.len())
    }

    /// The first bytes of what these bytes become.
    fn head(&self, held: &[u8], count: usize) -> Vec<u8> {
        let after = held[..self.at].iter().chain(self.put).chain(&held[self.at + self.cut..]);
        after.take(count).copied().collect()
    }
}

/// What lies in a tree of a stream: a length, and bytes that tell by what they are found.
trait Part: Layout<Bound: Ord> {
    /// Bytes of it that its length doesn't count, behind the length.
    const UNCOUNTED: usize;

    /// By what it is found. `None` if it is damaged.
    fn key(part: &[u8]) -> Option<Self::Bound>;

    /// How many of its bytes tell that, and whether it fits.
    fn head_len(key: &Self::Bound) -> usize;

    /// Whether it may stand between these two, and before a leaf with this bound.
    fn fits(part: &[u8], between: [Option<&[u8]>; 2], bound: Option<&Self::Bound>) -> bool;
}

/// The bytes of the first of these parts, its length included.
fn part_len<P: Part>(parts: &[u8]) -> Option<usize> {
    let (length, rest) = parts.split_first_chunk::<LENGTH_BYTES>()?;
    let length = (u32::from_le_bytes(*length) as usize).checked_add(P::UNCOUNTED)?;
    (length <= rest.len()).then_some(LENGTH_BYTES + length)
}

/// Groups by name.
#[derive(Clone, Debug)]
struct ByName;

impl Layout for ByName {
    type Bound = Box<[u8]>;

    #[inline]
    fn item_len(parts: &[u8]) -> Option<usize> {
        part_len::<Self>(parts)
    }

    fn bound(parts: &[u8]) -> Self::Bound {
        Self::key(&parts[LENGTH_BYTES..]).expect("a leaf has whole parts")
    }
}

impl Part for ByName {
    const UNCOUNTED: usize = 0;

    /// A length that is written with more bytes than it takes would not be found again.
    fn key(part: &[u8]) -> Option<Self::Bound> {
        let name = packed::Items { rest: part }.next()?;
        let (length, used) = packed::length(name.len());
        part.starts_with(&length[..used]).then(|| name.into())
    }

    fn head_len(key: &Self::Bound) -> usize {
        packed::length(key.len()).1 + key.len()
    }

    fn fits(part: &[u8], [before, _]: [Option<&[u8]>; 2], _: Option<&Self::Bound>) -> bool {
        before.is_none_or(|before| Self::key(before) < Self::key(part))
    }
}

/// Chunks by their first ids, the milliseconds in the upper half.
#[derive(Clone, Debug)]
struct ById;

impl Layout for ById {
    type Bound = u128;

    #[inline]
    fn item_len(parts: &[u8]) -> Option<usize> {
        part_len::<Self>(parts)
    }

    fn bound(parts: &[u8]) -> u128 {
        Self::key(&parts[LENGTH_BYTES..]).expect("a leaf has whole parts")
    }
}

impl Part for ById {
    const UNCOUNTED: usize = CHUNK_HEAD_BYTES;

    #[inline]
    fn key(part: &[u8]) -> Option<u128> {
        id(part, FIRST_ID)
    }

    fn head_len(_: &u128) -> usize {
        CHUNK_HEAD_BYTES
    }

    /// The ids of chunks ascend, so that one is found that has an id between its first and its last.
    fn fits(part: &[u8], [before, behind]: [Option<&[u8]>; 2], bound: Option<&u128>) -> bool {
        let (Some(first), Some(last)) = (id(part, FIRST_ID), id(part, LAST_ID)) else {
            return false;
        };
        first <= last
            && before.is_none_or(|before| id(before, LAST_ID) < Some(first))
            && behind.is_none_or(|behind| Some(last) < id(behind, FIRST_ID))
            && bound.is_none_or(|bound| last < *bound)
    }
}

/// The id at a place.
#[inline]
fn id(bytes: &[u8], at: usize) -> Option<u128> {
    let (ms, rest) = bytes.get(at..)?.split_first_chunk()?;
    let (seq, _) = rest.split_first_chunk()?;
    Some(u128::from(u64::from_le_bytes(*ms)) << 64 | u128::from(u64::from_le_bytes(*seq)))
}

/// The tree of packed parts; `None` if they are damaged or out of order.
fn build<P: Part>(parts: &[u8]) -> Option<Tree<P>> {
    let (mut rest, mut before) = (parts, None);
    while !rest.is_empty() {
        let (part, behind) = rest.split_at(P::item_len(rest)?);
        let part = &part[LENGTH_BYTES..];
        P::key(part).filter(|_| P::fits(part, [before, None], None))?;
        (rest, before) = (behind, Some(part));
    }
    let mut rest = parts;
    Some(Tree::build(core::iter::from_fn(|| {
        let (part, behind) = rest.split_at(P::item_len(rest)?);
        rest = behind;
        Some((part, false))
    })))
}

/// To the leaf where a part with this key lies, or would.
fn to<P: Part>(key: &P::Bound) -> By<impl FnMut(&P::Bound) -> bool> {
    By(move |bound: &P::Bound| bound <= key)
}

/// Where in a leaf the part with this key lies, or would, and how many parts come before it.
fn place<P: Part>(leaf: &Leaf, key: &P::Bound) -> (Range<usize>, usize) {
    let (mut at, mut number) = (0, 0);
    while let Some(length) = P::item_len(&leaf.items[at..]) {
        let held = P::bound(&leaf.items[at..]);
        if held >= *key {
            return (at..at + if held == *key { length } else { 0 }, number);
        }
        (at, number) = (at + length, number + 1);
    }
    (at..at, number)
}

/// The part with this number, without its length.
fn numbered<P: Part>(tree: &Tree<P>, number: usize) -> Option<&[u8]> {
    tree.items_from(number).next().map(|part| &part[LENGTH_BYTES..])
}

/// Replaces bytes of the part with this key, and appends those that go. What is no part then is an error,
/// and nothing has changed.
fn replace<P: Part>(
    tree: &mut Tree<P>,
    key: &P::Bound,
    splice: Splice<'_>,
    gone: &mut Vec<u8>,
) -> Result<(), Damaged> {
    let (leaf, bound) = tree.leaf_and_bound(&mut to::<P>(key));
    let (place, before) = place::<P>(leaf, key);
    let held = leaf.items[place.clone()].get(LENGTH_BYTES..).unwrap_or_default();
    let end = splice.end(held).ok_or(Damaged)?;
    let is_new = held.is_empty();
    let length = held.len() - splice.cut + splice.put.len();
    let head_len = P::head_len(key);
    if length == 0 && is_new {
        return Ok(());
    }
    // Behind the head anything may stand.
    if length > 0 && (is_new || splice.at < head_len) {
        let head = splice.head(held, head_len);
        let number = tree.leaf(&mut to::<P>(key)).1 + before;
        let before = number.checked_sub(1).and_then(|before| numbered(tree, before));
        let behind = numbered(tree, number + usize::from(!is_new));
        if P::key(&head).as_ref() != Some(key) || !P::fits(&head, [before, behind], bound) {
            return Err(Damaged);
        }
    }
    gone.extend_from_slice(&held[splice.at..end]);
    let counted = u32::try_from(length.saturating_sub(P::UNCOUNTED)).map_err(|_| Damaged)?;
    tree.edit(&mut to::<P>(key), |leaf, _| {
        if length == 0 {
            leaf.remove(place);
        } else if is_new {
            leaf.insert(place.start, &[&counted.to_le_bytes(), splice.put]);
        } else {
            leaf.splice(place.start, LENGTH_BYTES, &counted.to_le_bytes());
            leaf.splice(place.start + LENGTH_BYTES + splice.at, splice.cut, splice.put);
        }
    });
    Ok(())
}

/// A stream.
#[derive(Clone, Debug)]
pub struct Stream {
    counters: [u8; COUNTERS_BYTES],
    groups: Tree<ByName>,
    chunks: Tree<ById>,
}

impl Stream {
    /// That of packed bytes; `None` if they are damaged.
    pub(crate) fn unpack(bytes: &[u8]) -> Option<Self> {
        let (length, rest) = bytes.split_first_chunk::<LENGTH_BYTES>()?;
        let (tail, rest) = rest.split_first_chunk()?;
        let (groups, rest) = rest.split_first_chunk()?;
        let (others, rest) = rest.split_first_chunk::<{ COUNTERS_BYTES - LENGTH_BYTES }>()?;
        let (groups, chunks) = rest.split_at_checked(u32::from_le_bytes(*groups) as usize)?;
        let mut counters = [0; COUNTERS_BYTES];
        counters[..LENGTH_BYTES].copy_from_slice(length);
        counters[LENGTH_BYTES..].copy_from_slice(others);
        let stream = Self { counters, groups: build(groups)?, chunks: build(chunks)? };
        let is_right = stream.tail() == u32::from_le_bytes(*tail) as usize
            && stream.has_counted(&stream.counters);
        is_right.then_some(stream)
    }

    /// Appends the packed bytes.
    pub(crate) fn pack(&self, out: &mut Vec<u8>) {
        let number =
            |number: usize| u32::try_from(number).expect("limits bound a collection").to_le_bytes();
        out.extend_from_slice(&self.counters[..LENGTH_BYTES]);
        out.extend_from_slice(&number(self.tail()));
        out.extend_from_slice(&number(self.groups.bytes()));
        out.extend_from_slice(&self.counters[LENGTH_BYTES..]);
        self.groups.leaves().for_each(|leaf| out.extend_from_slice(leaf));
        self.chunks.leaves().for_each(|leaf| out.extend_from_slice(leaf));
    }

    pub(crate) fn packed_len(&self) -> usize {
        HEADER_BYTES + self.groups.bytes() + self.chunks.bytes()
    }

    pub(crate) fn memory(&self) -> usize {
        self.groups.memory() + self.chunks.memory()
    }

    /// Where the last chunk begins.
    fn tail(&self) -> usize {
        let last = self.chunks.len().checked_sub(1);
        let last = last.and_then(|last| self.chunks.items_from(last).next());
        last.map_or(0, |last| self.chunks.bytes() - last.len())
    }

    /// Whether no chunk begins behind the last id that these counters have: what is added comes behind.
    fn has_counted(&self, counters: &[u8]) -> bool {
        let last = self.chunks.len().checked_sub(1).and_then(|last| numbered(&self.chunks, last));
        last.and_then(ById::key) <= id(counters, LAST_COUNTED)
    }

    /// How many entries it says that it has.
    pub fn len(&self) -> usize {
        let length = self.counters.first_chunk().expect("it has counters");
        u32::from_le_bytes(*length) as usize
    }

    /// Whether it says that it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What it counts, as in the packed bytes.
    pub fn counters(&self) -> &[u8; COUNTERS_BYTES] {
        &self.counters
    }

    /// The groups by name, without their lengths.
    pub fn groups(&self) -> impl Iterator<Item = &[u8]> {
        self.groups.items_from(0).map(|group| &group[LENGTH_BYTES..])
    }

    /// How many groups.
    pub fn group_count(&self) -> usize {
        self.groups.len()
    }

    /// The group with this name, without its length.
    pub fn group(&self, name: &[u8]) -> Option<&[u8]> {
        let key = name.into();
        let (leaf, _) = self.groups.leaf(&mut to::<ByName>(&key));
        leaf.items[place::<ByName>(leaf, &key).0].get(LENGTH_BYTES..)
    }

    /// How many chunks.
    pub fn chunk_count(&self) -> usize {
        self.chunks.len()
    }

    /// The number of the first chunk that may have an entry with this id, or one behind it.
    pub fn chunk_of(&self, sought: u128) -> usize {
        let (leaf, first) = self.chunks.leaf(&mut to::<ById>(&sought));
        let (place, before) = place::<ById>(leaf, &sought);
        let is_before = place.is_empty() && first + before > 0;
        first + before - usize::from(is_before)
    }

    /// The chunks from this number on, as they are in the packed bytes.
    pub fn chunks_from(&self, number: usize) -> Chunks<'_> {
        Chunks { items: self.chunks.items_from(number) }
    }

    /// Other counters, and those that were there before.
    pub(crate) fn count(
        &mut self,
        counters: &[u8; COUNTERS_BYTES],
    ) -> Result<[u8; COUNTERS_BYTES], Damaged> {
        if !self.has_counted(counters) {
            return Err(Damaged);
        }
        Ok(core::mem::replace(&mut self.counters, *counters))
    }

    /// Replaces bytes of a group, and appends those that go.
    pub(crate) fn change_group(
        &mut self,
        name: &[u8],
        splice: Splice<'_>,
        gone: &mut Vec<u8>,
    ) -> Result<(), Damaged> {
        replace(&mut self.groups, &name.into(), splice, gone)
    }

    /// Replaces bytes of a chunk, and appends those that go.
    pub(crate) fn change_chunk(
        &mut self,
        first: u128,
        splice: Splice<'_>,
        gone: &mut Vec<u8>,
    ) -> Result<(), Damaged> {
        if Some(first) > id(&self.counters, LAST_COUNTED) {
            return Err(Damaged);
        }
        replace(&mut self.chunks, &first, splice, gone)
    }
}

/// Chunks, one after the other.
#[derive(Clone, Debug)]
pub struct Chunks<'a> {
    items: Items<'a, ById>,
}

impl<'a> Iterator for Chunks<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        self.items.next()
    }
}

#[cfg(test)]
impl Stream {
    pub(crate) fn check(&self) {
        self.groups.check();
        self.chunks.check();
    }
}
