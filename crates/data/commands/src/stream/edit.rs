//! Changes of a stream: those of its chunks and of a group, as the bytes of a packed stream or as the delta
//! of a large one.

use alloc::vec::Vec;
use core::ops::Range;

use quorate_collections::{self as collections, Collection, Delta, Splice, Step};
use quorate_machine::{Change, Current, ValueKind, mutant};
use quorate_types::limits;

use super::StreamId;
use super::bytes::Damaged;
use super::groups::{Group, Place};
use super::packed::{
    CHUNK_BYTES, CHUNK_ENTRIES_MAX, Chunk, NODE_BYTES_MAX, OrDamaged, Parts, Stream,
};
use crate::Reply;
use crate::packed::{LARGE_TOO_LARGE, replace};
use crate::string::expiry_of;

/// Bytes of the length of a chunk or a group.
pub(super) const LENGTH_BYTES: usize = 4;

/// Bytes that go, and those that come in their place.
type Patch = (Range<usize>, Vec<u8>);

/// A change of a stream while it is put together. Chunks are changed in their order, and each once.
pub(super) struct Edit<'a> {
    before: Stream<'a>,
    /// What the stream counts from now on.
    pub(super) after: Stream<'a>,
    form: Form,
}

enum Form {
    Packed {
        groups: Vec<Patch>,
        chunks: Vec<Patch>,
        /// Whether the last of these is a new chunk.
        is_pushed: bool,
    },
    Large {
        delta: Delta,
        /// How many bytes the stream grows by.
        growth: isize,
    },
}

impl<'a> Edit<'a> {
    pub(super) fn new(before: Stream<'a>) -> Self {
        let form = match before.parts {
            Parts::Packed { .. } => {
                Form::Packed { groups: Vec::new(), chunks: Vec::new(), is_pushed: false }
            }
            Parts::Large(_) => Form::Large { delta: Delta::new(), growth: 0 },
        };
        Self { before, after: before, form }
    }

    /// Gives a chunk another head, and replaces these stretches of its body, which are in order.
    fn change(&mut self, chunk: &Chunk<'a>, head: &Chunk<'_>, body: &[(Range<usize>, &[u8])]) {
        let length =
            |length: usize, (range, put): &(Range<usize>, &[u8])| length + put.len() - range.len();
        let head = head.head(body.iter().fold(chunk.body.len(), length));
        match &mut self.form {
            Form::Packed { chunks, .. } => {
                let from = chunk.at + CHUNK_BYTES;
                chunks.push((chunk.at..from, head.into()));
                let moved = |range: &Range<usize>| from + range.start..from + range.end;
                chunks.extend(body.iter().map(|(range, put)| (moved(range), put.to_vec())));
            }
            Form::Large { delta, growth } => {
                let first = chunk.first.number();
                let (cut, put) = (collections::CHUNK_HEAD_BYTES, without_length(&head));
                delta.push(Step::Chunk { first, splice: Splice { at: 0, cut, put } });
                let body = match mutant!("commands_stream_large_deletes_one") {
                    true => &body[..body.len().min(1)],
                    false => body,
                };
                // The last one first, so that the others are where they were.
                for (range, put) in body.iter().rev() {
                    let at = collections::CHUNK_HEAD_BYTES + range.start;
                    let splice = Splice { at, cut: range.len(), put };
                    delta.push(Step::Chunk { first, splice });
                    *growth += put.len() as isize - range.len() as isize;
                }
            }
        }
    }

    /// Takes a chunk away.
    fn remove(&mut self, chunk: &Chunk<'a>) {
        let bytes = CHUNK_BYTES + chunk.body.len();
        match &mut self.form {
            Form::Packed { chunks, .. } => chunks.push((chunk.at..chunk.at + bytes, Vec::new())),
            Form::Large { delta, growth } => {
                let cut = collections::CHUNK_HEAD_BYTES + chunk.body.len();
                let splice = Splice { at: 0, cut, put: &[] };
                delta.push(Step::Chunk { first: chunk.first.number(), splice });
                *growth -= bytes as isize;
            }
        }
    }

    /// Adds a chunk behind all others.
    fn push(&mut self, chunk: &Chunk<'_>, body: &[u8]) {
        let bytes = [&chunk.head(body.len()), body].concat();
        match &mut self.form {
            Form::Packed { chunks, is_pushed, .. } => {
                let Parts::Packed { chunks: held, .. } = self.before.parts else {
                    unreachable!("it is packed")
                };
                chunks.push((held.len()..held.len(), bytes));
                *is_pushed = true;
            }
            Form::Large { delta, growth } => {
                let splice = Splice { at: 0, cut: 0, put: without_length(&bytes) };
                delta.push(Step::Chunk { first: chunk.first.number(), splice });
                *growth += bytes.len() as isize;
            }
        }
    }

    /// Puts this group, or none, where one with this name stands or would.
    pub(super) fn set_group(&mut self, place: &Place<'a>, name: &[u8], group: Option<&Group<'_>>) {
        let (bytes, head) = group.map(Group::encode).unwrap_or_default();
        let held = place.held;
        match &mut self.form {
            Form::Packed { groups, .. } => groups.push((place.range(), bytes)),
            Form::Large { delta, growth } => {
                *growth += bytes.len() as isize - place.range().len() as isize;
                let new = without_length(&bytes);
                let mut splice = |at: usize, held: &[u8], new: &[u8]| {
                    let (skip, cut, put) = difference(held, new);
                    if cut > 0 || !put.is_empty() {
                        let splice = Splice { at: at + skip, cut, put };
                        delta.push(Step::Group { name, splice });
                    }
                };
                if held.is_empty() || new.is_empty() {
                    return splice(0, held, new);
                }
                // Both ends of it change with what is pending, and little between them.
                let (held, held_pending) = held.split_at(place.head);
                let (new, new_pending) = new.split_at(head - LENGTH_BYTES);
                splice(held.len(), held_pending, new_pending);
                splice(0, held, new);
            }
        }
    }

    /// Adds an entry, of fields and values that take turns.
    pub(super) fn append<'b>(
        &mut self,
        id: StreamId,
        items: impl ExactSizeIterator<Item = &'b [u8]> + Clone,
    ) -> Result<(), Damaged> {
        self.after.length = self.after.length.saturating_add(1);
        self.after.added = self.after.added.wrapping_add(1);
        self.after.last = id;
        let bytes: usize = items.clone().map(<[u8]>::len).sum();
        let last = self.before.open_chunk()?;
        let has_room = |chunk: &Chunk<'_>| {
            chunk.node_bytes as usize + bytes < NODE_BYTES_MAX
                && usize::from(chunk.live) + usize::from(chunk.deleted) < CHUNK_ENTRIES_MAX
        };
        if let Some(open) = last.filter(has_room) {
            let (head, entry) = open.with_entry(id, items)?;
            self.change(&open, &head, &[(open.body.len()..open.body.len(), &entry)]);
            return Ok(());
        }
        // `XSETID` may have set the stream back before entries that are deleted.
        if let Some(full) = last.filter(|full| full.last >= id) {
            let last = id.previous().filter(|last| *last >= full.first).ok_or(Damaged)?;
            self.change(&full, &Chunk { last, ..full }, &[]);
        }
        let (chunk, body) = Chunk::of_entry(id, items);
        self.push(&chunk, &body);
        Ok(())
    }

    /// Takes out those of these entries, which are in order, that are there. How many they are.
    pub(super) fn delete(&mut self, ids: &[StreamId]) -> Result<usize, Damaged> {
        let (mut left, mut deleted) = (ids, 0);
        let mut packed = self.before.chunks();
        while let Some(id) = left.first() {
            let chunk = match self.before.parts {
                Parts::Packed { .. } => {
                    packed.find(|chunk| chunk.or_damaged(|chunk| chunk.last >= *id))
                }
                Parts::Large(_) => self.before.chunks_from(*id).next(),
            };
            let Some(chunk) = chunk.transpose()? else { break };
            let these;
            (these, left) = left.split_at(left.partition_point(|id| *id <= chunk.last));
            deleted += self.delete_of_chunk(&chunk, these)?;
        }
        self.after.length = self.after.length.saturating_sub(deleted);
        Ok(deleted as usize)
    }

    fn delete_of_chunk(&mut self, chunk: &Chunk<'a>, ids: &[StreamId]) -> Result<u32, Damaged> {
        let mut at = chunk.fields()?.len();
        let mut cuts: Vec<(Range<usize>, &[u8])> = Vec::new();
        for entry in chunk.entries() {
            let entry = entry?;
            let end = at + entry.raw.len();
            if ids.binary_search(&entry.id).is_ok() {
                self.after.max_deleted = self.after.max_deleted.max(entry.id);
                cuts.push((at..end, &[]));
            }
            at = end;
        }
        match cuts.len() {
            0 => {}
            gone if gone == usize::from(chunk.live) => self.remove(chunk),
            gone => self.change(chunk, &chunk.less(gone), &cuts),
        }
        Ok(u32::try_from(cuts.len()).unwrap_or(u32::MAX))
    }

    /// Takes out the oldest entries, as many as `trim` says. How many these were.
    ///
    /// Chunks are Redis's nodes, so this takes what Redis takes, also where it need not be exact.
    pub(super) fn trim(&mut self, trim: &Trim) -> Result<usize, Damaged> {
        let mut deleted = 0;
        for chunk in self.before.chunks() {
            let chunk = chunk?;
            match trim.takes_all(&chunk, self.after.length, deleted) {
                None => break,
                Some(true) => {
                    self.remove(&chunk);
                    self.after.length = self.after.length.saturating_sub(chunk.live.into());
                    deleted += u64::from(chunk.live);
                }
                Some(false) => {
                    if mutant!("commands_stream_nodes_are_cut") || !trim.approximate {
                        let gone = self.trim_chunk(&chunk, trim.to)?;
                        self.after.length = self.after.length.saturating_sub(gone);
                        deleted += u64::from(gone);
                    }
                    break;
                }
            }
        }
        Ok(deleted as usize)
    }

    /// Takes out the oldest entries of a chunk.
    fn trim_chunk(&mut self, chunk: &Chunk<'a>, to: TrimTo) -> Result<u32, Damaged> {
        let from = chunk.fields()?.len();
        let (mut end, mut gone) = (from, 0);
        for entry in chunk.entries() {
            let entry = entry?;
            let stays = match to {
                TrimTo::Length(length) => {
                    u64::from(self.after.length) <= length.saturating_add(gone.into())
                }
                TrimTo::Id(id) => entry.id >= id,
            };
            if stays {
                break;
            }
            end += entry.raw.len();
            gone += 1;
        }
        if gone > 0 {
            self.change(chunk, &chunk.less(gone as usize), &[(from..end, &[])]);
        }
        Ok(gone)
    }

    /// What becomes of the stream.
    pub(super) fn finish(self) -> Changed {
        let after = self.after;
        match (self.form, self.before.parts) {
            (
                Form::Packed { groups, chunks, is_pushed },
                Parts::Packed { tail, groups: held_groups, chunks: held },
            ) => {
                let tail = tail_behind(tail, &chunks, is_pushed, held.len());
                let groups = patched(held_groups, &groups);
                let chunks = patched(held, &chunks);
                let bytes = after.bytes(tail.unwrap_or(0), &groups, &chunks);
                let bytes = match tail {
                    Some(_) => bytes,
                    None => after.bytes(last_chunk(&bytes).unwrap_or(0), &groups, &chunks),
                };
                Changed::Packed(bytes)
            }
            (Form::Large { delta, growth }, _) => {
                let (steps, mut delta) = (delta.into_bytes(), Delta::new());
                let counters = after.counters();
                let is_counted = counters != self.before.counters()
                    && !mutant!("commands_stream_delta_forgets_counters");
                if steps.is_empty() || is_counted {
                    delta.push(Step::Counters(&counters));
                }
                let mut delta = delta.into_bytes();
                delta.extend(steps);
                Changed::Large { delta, growth }
            }
            (Form::Packed { .. }, Parts::Large(_)) => unreachable!("the form is the stream's"),
        }
    }
}

/// The bytes of a chunk or a group without its length.
fn without_length(bytes: &[u8]) -> &[u8] {
    bytes.get(LENGTH_BYTES..).unwrap_or_default()
}

/// The stretches of these bytes with what comes in the place of others.
fn patched<'b>(bytes: &'b [u8], patches: &'b [Patch]) -> Vec<&'b [u8]> {
    let mut stretches = Vec::with_capacity(2 * patches.len() + 1);
    let mut at = 0;
    for (range, put) in patches {
        stretches.push(&bytes[at..range.start]);
        stretches.push(&put[..]);
        at = range.end;
    }
    stretches.push(&bytes[at..]);
    stretches
}

/// Where the last chunk begins behind a change, if that can be told without looking.
fn tail_behind(tail: usize, chunks: &[Patch], is_pushed: bool, held: usize) -> Option<usize> {
    let before = if is_pushed { held } else { tail };
    let earlier =
        chunks.iter().take_while(|(range, _)| range.end <= before && range.start < before);
    let moved =
        earlier.fold(before, |at, (range, put)| (at + put.len()).saturating_sub(range.len()));
    let is_gone = |(range, put): &Patch| range.start == tail && put.is_empty();
    (is_pushed || !chunks.iter().any(is_gone)).then_some(moved)
}

/// Where the last chunk of a packed stream begins.
fn last_chunk(bytes: &[u8]) -> Option<usize> {
    let chunks = Stream::read(bytes).ok()?.chunks();
    chunks.last()?.ok().map(|last| last.at)
}

/// Bytes that are compared at once.
const BLOCK_BYTES: usize = 64;

/// Where these differ: behind so many bytes, so many bytes of the first, and what the other has there.
fn difference<'b>(held: &[u8], new: &'b [u8]) -> (usize, usize, &'b [u8]) {
    // Most of what is long is the same.
    let same_block = |(one, other): &(&[u8], &[u8])| one == other;
    let same = |(one, other): &(&u8, &u8)| one == other;
    let blocks = held.chunks_exact(BLOCK_BYTES).zip(new.chunks_exact(BLOCK_BYTES));
    let before = BLOCK_BYTES * blocks.take_while(same_block).count();
    let before = before + held[before..].iter().zip(&new[before..]).take_while(same).count();
    let (mut left, mut put) = (&held[before..], &new[before..]);
    let blocks = left.rchunks_exact(BLOCK_BYTES).zip(put.rchunks_exact(BLOCK_BYTES));
    let behind = BLOCK_BYTES * blocks.take_while(same_block).count();
    (left, put) = (&left[..left.len() - behind], &put[..put.len() - behind]);
    let behind = left.iter().rev().zip(put.iter().rev()).take_while(same).count();
    (before, left.len() - behind, &put[..put.len() - behind])
}

/// What becomes of a stream.
pub(super) enum Changed {
    /// Its bytes.
    Packed(Vec<u8>),
    /// A delta, and how many bytes it grows by.
    Large { delta: Vec<u8>, growth: isize },
}

impl Changed {
    /// The stream as it is then. `large` is what it was, if it is large.
    pub(super) fn look<'b>(
        &'b self,
        large: Option<&Collection>,
        changed: &'b mut Option<Collection>,
    ) -> Result<Stream<'b>, Damaged> {
        match self {
            Self::Packed(bytes) => Stream::read(bytes),
            Self::Large { delta, .. } => {
                let large = changed.insert(large.expect("it is large").clone());
                let made = large.apply(delta, &mut Vec::new());
                made.expect("a command makes deltas of what it saw");
                Stream::of_large(large.stream().expect("it is a stream"))
            }
        }
    }

    /// Both changes, one behind the other.
    pub(super) fn then(self, later: Self) -> Self {
        match (self, later) {
            (Self::Large { mut delta, growth }, Self::Large { delta: later, growth: more }) => {
                delta.extend(later);
                Self::Large { delta, growth: growth + more }
            }
            (_, later) => later,
        }
    }

    /// The change of the key.
    ///
    /// # Errors
    /// If the stream would be longer than one may be.
    pub(super) fn store<'c>(self, current: Current<'_>) -> Result<Change<'c>, Reply<'static>> {
        let (delta, growth) = match self {
            Self::Packed(bytes) => return replace(bytes, ValueKind::Stream, current),
            Self::Large { delta, growth } => (delta, growth),
        };
        let held = current.large.map_or(0, Collection::packed_len);
        if growth > 0 && held.saturating_add_signed(growth) > limits::COLLECTION_BYTES_MAX {
            return Err(LARGE_TOO_LARGE);
        }
        Ok(Change::Delta { bytes: delta.into(), expire_at: expiry_of(current) })
    }
}

/// Which entries are too many.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Trim {
    pub(super) to: TrimTo,
    /// Whether only whole chunks go.
    pub(super) approximate: bool,
    /// The most entries that go; 0 for any number.
    pub(super) limit: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TrimTo {
    /// So many entries stay.
    Length(u64),
    /// Entries from this one on stay.
    Id(StreamId),
}

impl Trim {
    /// Whether all of the first chunk goes, of a stream of so many entries that has lost so many; `None`
    /// if nothing does.
    fn takes_all(&self, chunk: &Chunk<'_>, length: u32, deleted: u64) -> Option<bool> {
        let live = u64::from(chunk.live);
        match self.to {
            TrimTo::Length(most) if u64::from(length) <= most => None,
            _ if self.limit > 0 && deleted + live > self.limit => None,
            TrimTo::Length(most) => Some(u64::from(length).saturating_sub(live) >= most),
            TrimTo::Id(id) => Some(chunk.last < id),
        }
    }

    /// Whether nothing goes of a stream of so many entries that begins with this chunk.
    pub(super) fn takes_nothing(&self, chunk: &Chunk<'_>, length: u32) -> bool {
        match self.takes_all(chunk, length, 0) {
            None => true,
            Some(all) => !all && self.approximate && !mutant!("commands_stream_nodes_are_cut"),
        }
    }
}

#[cfg(test)]
mod tests {
    use quorate_machine::Rng;

    use super::*;

    #[test]
    fn a_difference_makes_the_one_the_other() {
        let mut rng = Rng::new(4);
        for _ in 0..2_000 {
            let mut draw = |most| (0..rng.below(most)).map(|_| rng.below(2) as u8).collect();
            let (head, tail): (Vec<u8>, Vec<u8>) = (draw(300), draw(300));
            let [held, new]: [Vec<u8>; 2] =
                [draw(4), draw(4)].map(|part: Vec<u8>| [&head[..], &part, &tail].concat());
            let (at, cut, put) = difference(&held, &new);
            assert!(at >= head.len() && cut <= 3 && put.len() <= 3);
            assert_eq!([&held[..at], put, &held[at + cut..]].concat(), new);
        }
    }
}
