//! A stream's chunks and entries, packed or large: see [`crate::stream`] for their bytes.

use alloc::vec::Vec;
use core::iter;

use quorate_collections as collections;
use quorate_machine::{Current, ValueKind, mutant};

use super::StreamId;
use super::bytes::{Damaged, put_item, put_number, take, take_item, take_number};
use crate::Reply;
use crate::string::WRONGTYPE;

/// Bytes before the groups.
const HEADER_BYTES: usize = 52;
/// Bytes of a chunk before its fields.
pub(super) const CHUNK_BYTES: usize = 4 + collections::CHUNK_HEAD_BYTES;
/// Entries of a chunk, deleted ones included (`stream-node-max-entries`).
pub(super) const CHUNK_ENTRIES_MAX: usize = 100;
/// Bytes of a node of Redis (`stream-node-max-bytes`).
pub(super) const NODE_BYTES_MAX: usize = 4096;
/// Bytes of a node of Redis without elements.
const NODE_BYTES_MIN: usize = 7;

/// A stream as it lies in a value.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stream<'a> {
    /// How many entries.
    pub(super) length: u32,
    /// How many entries were ever added.
    pub(super) added: u64,
    /// The largest id that an entry ever had.
    pub(super) last: StreamId,
    /// The largest id of an entry that was deleted.
    pub(super) max_deleted: StreamId,
    pub(super) parts: Parts<'a>,
}

/// The groups and the chunks of a stream, in either form.
#[derive(Clone, Copy, Debug)]
pub(super) enum Parts<'a> {
    Packed {
        /// Where in `chunks` the last one begins.
        tail: usize,
        groups: &'a [u8],
        chunks: &'a [u8],
    },
    Large(&'a collections::Stream),
}

impl Default for Parts<'_> {
    fn default() -> Self {
        Self::Packed { tail: 0, groups: &[], chunks: &[] }
    }
}

impl<'a> Stream<'a> {
    /// What the key holds, if it holds anything.
    ///
    /// # Errors
    /// If it holds something else.
    pub(crate) fn of(current: Current<'a>) -> Result<Option<Self>, Reply<'static>> {
        match (current.content, current.large.and_then(|large| large.stream())) {
            (_, Some(large)) => Ok(Some(Self::of_large(large)?)),
            (None, _) => Ok(None),
            (Some(content), _) if content.kind != ValueKind::Stream => Err(WRONGTYPE),
            (Some(content), _) => Ok(Some(Self::read(content.bytes)?)),
        }
    }

    pub(super) fn read(bytes: &'a [u8]) -> Result<Self, Damaged> {
        let mut rest = bytes;
        let length = take(&mut rest)?;
        let tail = u32::from_le_bytes(take(&mut rest)?) as usize;
        let groups = u32::from_le_bytes(take(&mut rest)?) as usize;
        let stream = Self::count(length, &mut rest)?;
        let (groups, chunks) = rest.split_at_checked(groups).ok_or(Damaged)?;
        Ok(Self { parts: Parts::Packed { tail, groups, chunks }, ..stream })
    }

    pub(super) fn of_large(large: &'a collections::Stream) -> Result<Self, Damaged> {
        let mut rest = &large.counters()[..];
        let length = take(&mut rest)?;
        Ok(Self { parts: Parts::Large(large), ..Self::count(length, &mut rest)? })
    }

    /// A stream of so many entries, which counts what follows.
    fn count(length: [u8; 4], rest: &mut &[u8]) -> Result<Self, Damaged> {
        Ok(Self {
            length: u32::from_le_bytes(length),
            added: u64::from_le_bytes(take(rest)?),
            last: take_id(rest)?,
            max_deleted: take_id(rest)?,
            parts: Parts::default(),
        })
    }

    /// What it counts: its length, and the rest.
    fn counted(&self) -> ([u8; 4], Vec<u8>) {
        let mut rest = Vec::with_capacity(collections::COUNTERS_BYTES);
        rest.extend_from_slice(&self.added.to_le_bytes());
        put_id(self.last, &mut rest);
        put_id(self.max_deleted, &mut rest);
        (self.length.to_le_bytes(), rest)
    }

    /// The counters of a large stream that counts the same.
    pub(super) fn counters(&self) -> [u8; collections::COUNTERS_BYTES] {
        let (length, rest) = self.counted();
        [&length, &rest[..]].concat().try_into().expect("it has these parts")
    }

    /// The bytes of a stream that counts the same, whose groups and chunks stand in these stretches one
    /// behind the other.
    pub(super) fn bytes(&self, tail: usize, groups: &[&[u8]], chunks: &[&[u8]]) -> Vec<u8> {
        let bytes = |stretches: &[&[u8]]| stretches.iter().map(|part| part.len()).sum::<usize>();
        let groups_bytes = bytes(groups);
        let (length, rest) = self.counted();
        let mut out = Vec::with_capacity(HEADER_BYTES + groups_bytes + bytes(chunks));
        out.extend_from_slice(&length);
        out.extend_from_slice(&bounded(tail).to_le_bytes());
        out.extend_from_slice(&bounded(groups_bytes).to_le_bytes());
        out.extend_from_slice(&rest);
        groups.iter().chain(chunks).for_each(|part| out.extend_from_slice(part));
        out
    }

    /// How many chunks.
    pub(super) fn chunk_count(&self) -> usize {
        match self.parts {
            Parts::Packed { .. } => self.chunks().count(),
            Parts::Large(large) => large.chunk_count(),
        }
    }

    pub(super) fn chunks(&self) -> Chunks<'a> {
        match self.parts {
            Parts::Packed { chunks, .. } => Chunks::Packed { all: chunks, at: 0 },
            Parts::Large(large) => Chunks::Large(large.chunks_from(0)),
        }
    }

    /// The chunks that may have entries from this id on.
    pub(super) fn chunks_from(
        &self,
        from: StreamId,
    ) -> impl Iterator<Item = Result<Chunk<'a>, Damaged>> + use<'a> {
        let chunks = match self.parts {
            Parts::Packed { .. } => self.chunks(),
            Parts::Large(large) => {
                let skipped = usize::from(mutant!("commands_stream_seek_misses_a_chunk"));
                Chunks::Large(large.chunks_from(large.chunk_of(from.number()) + skipped))
            }
        };
        chunks.filter(move |chunk| chunk.or_damaged(|chunk| chunk.last >= from))
    }

    /// The chunks that may have entries up to this id, the last one first.
    fn chunks_back(
        &self,
        to: StreamId,
    ) -> impl Iterator<Item = Result<Chunk<'a>, Damaged>> + use<'a> {
        let is_meant =
            move |chunk: &Result<_, _>| chunk.or_damaged(|chunk: Chunk<'_>| chunk.first <= to);
        let (packed, large) = match self.parts {
            Parts::Packed { .. } => (self.chunks().take_while(is_meant).collect::<Vec<_>>(), None),
            Parts::Large(large) => (Vec::new(), Some(large)),
        };
        let numbers = large.map(|large| (large, large.chunk_of(to.number())));
        let large = numbers.into_iter().flat_map(|(large, last)| {
            (0..=last).rev().filter_map(|number| Chunks::Large(large.chunks_from(number)).next())
        });
        packed.into_iter().rev().chain(large.filter(is_meant))
    }

    /// The last chunk, to which entries are added until it is full.
    pub(super) fn open_chunk(&self) -> Result<Option<Chunk<'a>>, Damaged> {
        let mut last = match self.parts {
            Parts::Packed { tail, chunks, .. } if tail > chunks.len() => return Err(Damaged),
            Parts::Packed { tail, chunks, .. } => Chunks::Packed { all: chunks, at: tail },
            Parts::Large(large) => {
                Chunks::Large(large.chunks_from(large.chunk_count().saturating_sub(1)))
            }
        };
        last.next().transpose()
    }

    /// The entries with ids in this range, ascending.
    pub(super) fn entries(
        &self,
        from: StreamId,
        to: StreamId,
    ) -> impl Iterator<Item = Result<Entry<'a>, Damaged>> + use<'a> {
        let chunks = self.chunks_from(from);
        let chunks = chunks.take_while(move |chunk| chunk.or_damaged(|chunk| chunk.first <= to));
        let entries = chunks.flat_map(Entries::of);
        let entries = entries.filter(move |entry| entry.or_damaged(|entry| entry.id >= from));
        entries.take_while(move |entry| entry.or_damaged(|entry| entry.id <= to))
    }

    /// The same, descending.
    pub(super) fn entries_back(
        &self,
        from: StreamId,
        to: StreamId,
    ) -> impl Iterator<Item = Result<Entry<'a>, Damaged>> + use<'a> {
        let chunks = self.chunks_back(to);
        let chunks = chunks.take_while(move |chunk| chunk.or_damaged(|chunk| chunk.last >= from));
        let entries = chunks.flat_map(|chunk| {
            let entries: Vec<_> = Entries::of(chunk).collect();
            entries.into_iter().rev()
        });
        entries.filter(move |entry| entry.or_damaged(|entry| (from..=to).contains(&entry.id)))
    }

    /// The entry with this id.
    pub(super) fn find(&self, id: StreamId) -> Result<Option<Entry<'a>>, Damaged> {
        self.entries(id, id).next().transpose()
    }

    /// The first entry.
    pub(super) fn first_entry(&self) -> Result<Option<Entry<'a>>, Damaged> {
        self.entries(StreamId::MIN, StreamId::MAX).next().transpose()
    }

    /// The last entry.
    pub(super) fn last_entry(&self) -> Result<Option<Entry<'a>>, Damaged> {
        // Chunks without entries are rare, so the last one as a rule has it.
        if let Some(open) = self.open_chunk()?
            && let Some(entry) = open.entries().last()
        {
            return entry.map(Some);
        }
        self.entries_back(StreamId::MIN, StreamId::MAX).next().transpose()
    }

    /// The id of the first entry; the smallest one if there is none.
    pub(super) fn first_id(&self) -> Result<StreamId, Damaged> {
        Ok(self.first_entry()?.map_or(StreamId::MIN, |entry| entry.id))
    }
}

/// Some entries one behind the other: a node of Redis.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk<'a> {
    /// The id that its entries count from: that of its first one, which may be deleted by now.
    pub(super) first: StreamId,
    /// The id of its last entry, which may be deleted by now.
    pub(super) last: StreamId,
    pub(super) live: u8,
    pub(super) deleted: u8,
    /// How many bytes the node would have.
    pub(super) node_bytes: u32,
    /// Names of fields, and entries.
    pub(super) body: &'a [u8],
    /// Where it begins among the packed chunks.
    pub(super) at: usize,
}

impl<'a> Chunk<'a> {
    /// A new one, for an entry with these fields and values, and its body.
    pub(super) fn of_entry<'b>(
        id: StreamId,
        items: impl ExactSizeIterator<Item = &'b [u8]> + Clone,
    ) -> (Self, Vec<u8>) {
        let names = || items.clone().step_by(2);
        let mut body = Vec::new();
        put_number(names().len() as u64, &mut body);
        names().for_each(|name| put_item(name, &mut body));
        let mut chunk =
            Self { first: id, last: id, live: 1, deleted: 0, node_bytes: 0, body: &[], at: 0 };
        body.extend(chunk.entry(id, true, items.clone()));
        let node = NODE_BYTES_MIN
            + [1, 0, names().len() as i64, 0].map(node::number).iter().sum::<usize>();
        let node = node + names().map(node::text).sum::<usize>();
        chunk.node_bytes = bounded(node + chunk.entry_node_bytes(id, true, items));
        (chunk, body)
    }

    /// It with one more entry, and the bytes that come behind its body.
    pub(super) fn with_entry<'b>(
        self,
        id: StreamId,
        items: impl ExactSizeIterator<Item = &'b [u8]> + Clone,
    ) -> Result<(Self, Vec<u8>), Damaged> {
        let same = self.has_fields(items.clone().step_by(2))?;
        let entry = self.entry(id, same, items.clone());
        let node_bytes = self.node_bytes as usize + self.entry_node_bytes(id, same, items);
        Ok((Self { last: id, live: self.live + 1, node_bytes: bounded(node_bytes), ..self }, entry))
    }

    /// Its bytes before the body.
    pub(super) fn head(&self, body: usize) -> [u8; CHUNK_BYTES] {
        let mut head = Vec::with_capacity(CHUNK_BYTES);
        head.extend_from_slice(&bounded(body).to_le_bytes());
        head.extend_from_slice(&self.node_bytes.to_le_bytes());
        head.extend_from_slice(&[self.live, self.deleted]);
        put_id(self.first, &mut head);
        put_id(self.last, &mut head);
        head.try_into().expect("it has these parts")
    }

    pub(super) fn write(&self, fields: &[u8], entries: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(&self.head(fields.len() + entries.len()));
        out.extend_from_slice(fields);
        out.extend_from_slice(entries);
    }

    /// The chunk when so many of its entries are deleted. Redis marks them and keeps their bytes.
    pub(super) fn less(self, gone: usize) -> Self {
        let gone = gone.min(usize::from(self.live)) as u8;
        Self { live: self.live - gone, deleted: self.deleted.saturating_add(gone), ..self }
    }

    /// The bytes with the names of its fields.
    pub(super) fn fields(&self) -> Result<&'a [u8], Damaged> {
        let mut rest = self.body;
        let count = take_number(&mut rest)?;
        for _ in 0..count {
            take_item(&mut rest)?;
        }
        Ok(&self.body[..self.body.len() - rest.len()])
    }

    /// The names of its fields.
    pub(super) fn names(&self) -> Result<Vec<&'a [u8]>, Damaged> {
        let mut rest = self.body;
        (0..take_number(&mut rest)?).map(|_| take_item(&mut rest)).collect()
    }

    /// Its entries.
    pub(super) fn entries(self) -> Entries<'a> {
        Entries::of(Ok(self))
    }

    /// Whether these are its fields.
    fn has_fields<'b>(
        &self,
        mut names: impl ExactSizeIterator<Item = &'b [u8]>,
    ) -> Result<bool, Damaged> {
        let mut rest = self.body;
        if take_number(&mut rest)? != names.len() as u64 {
            return Ok(false);
        }
        let mut is_same = |name| take_item(&mut rest).map(|held| held == name);
        names.try_fold(true, |same, name| Ok(same && is_same(name)?))
    }

    /// The bytes of an entry.
    pub(super) fn entry<'b>(
        &self,
        id: StreamId,
        same: bool,
        items: impl ExactSizeIterator<Item = &'b [u8]>,
    ) -> Vec<u8> {
        let count = items.len() / 2;
        let mut entry = Vec::new();
        put_number(id.ms.wrapping_sub(self.first.ms), &mut entry);
        let base = if id.ms == self.first.ms { self.first.seq } else { 0 };
        put_number(id.seq.wrapping_sub(base), &mut entry);
        put_number(if same { 0 } else { count as u64 }, &mut entry);
        let (skip, step) = if same { (1, 2) } else { (0, 1) };
        items.skip(skip).step_by(step).for_each(|item| put_item(item, &mut entry));
        let mut bytes = Vec::with_capacity(entry.len() + 3);
        put_item(&entry, &mut bytes);
        bytes
    }

    /// How many bytes an entry takes in the node.
    fn entry_node_bytes<'b>(
        &self,
        id: StreamId,
        same: bool,
        items: impl ExactSizeIterator<Item = &'b [u8]>,
    ) -> usize {
        let count = items.len() as i64 / 2;
        let ms = id.ms.wrapping_sub(self.first.ms).cast_signed();
        let seq = id.seq.wrapping_sub(self.first.seq).cast_signed();
        // Flags, the id, and how many elements these are.
        let elements = if same { count + 3 } else { 2 * count + 4 };
        let fixed = [0, ms, seq, elements].map(node::number).iter().sum::<usize>();
        let (skip, step) = if same { (1, 2) } else { (0, 1) };
        let names = if same { 0 } else { node::number(count) };
        fixed + names + items.skip(skip).step_by(step).map(node::text).sum::<usize>()
    }
}

/// Chunks, read one after the other.
#[derive(Clone, Debug)]
pub(super) enum Chunks<'a> {
    Packed { all: &'a [u8], at: usize },
    Large(collections::Chunks<'a>),
}

impl<'a> Chunks<'a> {
    /// The first chunk of these bytes, which begins at this place, and where the next one does.
    fn read(mut rest: &'a [u8], at: usize) -> Result<(Chunk<'a>, usize), Damaged> {
        let body = u32::from_le_bytes(take(&mut rest)?) as usize;
        let node_bytes = u32::from_le_bytes(take(&mut rest)?);
        let [live, deleted] = take(&mut rest)?;
        let first = take_id(&mut rest)?;
        let last = take_id(&mut rest)?;
        let body = rest.get(..body).ok_or(Damaged)?;
        let chunk = Chunk { first, last, live, deleted, node_bytes, body, at };
        Ok((chunk, at + CHUNK_BYTES + body.len()))
    }
}

impl<'a> Iterator for Chunks<'a> {
    type Item = Result<Chunk<'a>, Damaged>;

    /// Nothing comes behind what is damaged.
    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::Packed { all, at } => {
                let rest = all.get(*at..).filter(|rest| !rest.is_empty())?;
                let read = Self::read(rest, *at);
                *at = read.map_or(all.len(), |(_, next)| next);
                Some(read.map(|(chunk, _)| chunk))
            }
            Self::Large(chunks) => Some(Self::read(chunks.next()?, 0).map(|(chunk, _)| chunk)),
        }
    }
}

/// An entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<'a> {
    pub(super) id: StreamId,
    /// How many fields it has.
    pub(super) count: usize,
    /// The names of its fields, unless they stand before their values.
    names: Option<&'a [u8]>,
    items: &'a [u8],
    /// All of it.
    pub(super) raw: &'a [u8],
}

impl<'a> Entry<'a> {
    /// At least so many bytes are in its fields and values; names that it shares count for each
    /// entry.
    pub(super) fn bytes(&self) -> usize {
        self.items.len() + self.names.map_or(0, <[u8]>::len)
    }

    /// Whether its fields are those of its chunk.
    pub(super) fn has_fields_of_chunk(&self) -> bool {
        self.names.is_some()
    }

    /// Fields and values in turns.
    pub(super) fn items(&self) -> impl Iterator<Item = Result<&'a [u8], Damaged>> + use<'a> {
        let (mut names, mut items) = (self.names, self.items);
        let mut left = self.count * 2;
        iter::from_fn(move || {
            left = left.checked_sub(1)?;
            Some(match &mut names {
                Some(names) if left % 2 == 1 => take_item(names),
                _ => take_item(&mut items),
            })
        })
    }
}

/// The entries of a chunk.
#[derive(Clone, Debug)]
pub(super) struct Entries<'a> {
    first: StreamId,
    names: &'a [u8],
    count: usize,
    rest: &'a [u8],
    damaged: bool,
}

impl<'a> Entries<'a> {
    fn of(chunk: Result<Chunk<'a>, Damaged>) -> Self {
        let read = |chunk: Chunk<'a>| {
            let fields = chunk.fields()?;
            let mut names = fields;
            let count = take_number(&mut names)? as usize;
            let rest = &chunk.body[fields.len()..];
            Ok(Self { first: chunk.first, names, count, rest, damaged: false })
        };
        let damaged = Self { first: StreamId::MIN, names: &[], count: 0, rest: &[], damaged: true };
        chunk.and_then(read).unwrap_or(damaged)
    }

    fn read(&mut self) -> Result<Entry<'a>, Damaged> {
        let all = core::mem::take(&mut self.rest);
        let mut rest = all;
        let mut entry = take_item(&mut rest)?;
        let ms = take_number(&mut entry)?;
        let seq = take_number(&mut entry)?;
        let base = if ms == 0 { self.first.seq } else { 0 };
        let id = StreamId {
            ms: self.first.ms.checked_add(ms).ok_or(Damaged)?,
            seq: base.checked_add(seq).ok_or(Damaged)?,
        };
        let (names, count) = match take_number(&mut entry)? as usize {
            0 => (Some(self.names), self.count),
            count => (None, count),
        };
        // Every item takes a byte at least.
        if count > entry.len() {
            return Err(Damaged);
        }
        self.rest = rest;
        let raw = &all[..all.len() - rest.len()];
        Ok(Entry { id, count, names, items: entry, raw })
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>, Damaged>;

    /// Nothing comes behind what is damaged.
    fn next(&mut self) -> Option<Self::Item> {
        if core::mem::take(&mut self.damaged) {
            return Some(Err(Damaged));
        }
        (!self.rest.is_empty()).then(|| self.read())
    }
}

/// What is damaged passes every condition, so that it is noticed.
pub(super) trait OrDamaged<T> {
    fn or_damaged(&self, holds: impl FnOnce(T) -> bool) -> bool;
}

impl<T: Copy> OrDamaged<T> for Result<T, Damaged> {
    fn or_damaged(&self, holds: impl FnOnce(T) -> bool) -> bool {
        self.ok().is_none_or(holds)
    }
}

/// Finds entries by their ids, in any order.
pub(super) enum Index<'a> {
    Packed(Vec<Chunk<'a>>),
    Large(Stream<'a>),
}

impl<'a> Index<'a> {
    pub(super) fn of(stream: &Stream<'a>) -> Result<Self, Damaged> {
        Ok(match stream.parts {
            Parts::Packed { .. } => Self::Packed(stream.chunks().collect::<Result<_, _>>()?),
            Parts::Large(_) => Self::Large(*stream),
        })
    }

    pub(super) fn find(&self, id: StreamId) -> Result<Option<Entry<'a>>, Damaged> {
        let chunks = match self {
            Self::Packed(chunks) => chunks,
            Self::Large(stream) => return stream.find(id),
        };
        let at = chunks.partition_point(|chunk| chunk.last < id);
        let Some(chunk) = chunks.get(at).filter(|chunk| chunk.first <= id) else {
            return Ok(None);
        };
        let mut entries = chunk.entries();
        entries
            .find(|entry| entry.or_damaged(|entry| entry.id >= id))
            .transpose()
            .map(|entry| entry.filter(|entry| entry.id == id))
    }
}

fn take_id(rest: &mut &[u8]) -> Result<StreamId, Damaged> {
    let ms = u64::from_le_bytes(take(rest)?);
    Ok(StreamId { ms, seq: u64::from_le_bytes(take(rest)?) })
}

fn put_id(id: StreamId, out: &mut Vec<u8>) {
    out.extend_from_slice(&id.ms.to_le_bytes());
    out.extend_from_slice(&id.seq.to_le_bytes());
}

/// A length as the form has it: of a value, or of what could be appended to one.
pub(super) fn bounded(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// How long the elements of a node of Redis (a listpack) are. That decides which entries share one,
/// and so what `~` trims.
mod node {
    use crate::number::parse_integer;

    /// An integer.
    pub(super) fn number(value: i64) -> usize {
        // The element, and how long it is.
        1 + match value {
            0..=127 => 1,
            -4096..=4095 => 2,
            -0x8000..=0x7fff => 3,
            -0x80_0000..=0x7f_ffff => 4,
            -0x8000_0000..=0x7fff_ffff => 5,
            _ => 9,
        }
    }

    /// A string, which may be an integer.
    pub(super) fn text(bytes: &[u8]) -> usize {
        if let Some(value) = parse_integer(bytes) {
            return number(value);
        }
        let element = bytes.len()
            + match bytes.len() {
                0..64 => 1,
                64..4096 => 2,
                _ => 5,
            };
        let length = match element {
            0..=127 => 1,
            128..16_383 => 2,
            16_383..2_097_151 => 3,
            2_097_151..268_435_455 => 4,
            _ => 5,
        };
        element + length
    }
}
