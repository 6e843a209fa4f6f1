//! A stream's bytes: see [`crate::stream`] for their form.

use alloc::vec::Vec;
use core::iter;

use quorate_machine::{Current, ValueKind, mutant};

use super::StreamId;
use super::bytes::{Damaged, put_item, put_number, take, take_item, take_number};
use crate::Reply;
use crate::string::WRONGTYPE;

/// Bytes before the groups.
const HEADER_BYTES: usize = 52;
/// Bytes of a chunk before its fields.
const CHUNK_BYTES: usize = 42;
/// Entries of a chunk, deleted ones included (`stream-node-max-entries`).
pub(super) const CHUNK_ENTRIES_MAX: usize = 100;
/// Bytes of a node of Redis (`stream-node-max-bytes`).
const NODE_BYTES_MAX: usize = 4096;
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
    /// Where in `chunks` the last one begins.
    pub(super) tail: usize,
    pub(super) groups: &'a [u8],
    pub(super) chunks: &'a [u8],
}

impl<'a> Stream<'a> {
    /// What the key holds, if it holds anything.
    ///
    /// # Errors
    /// If it holds something else.
    pub(crate) fn of(current: Current<'a>) -> Result<Option<Self>, Reply<'static>> {
        match current.content {
            None => Ok(None),
            Some(content) if content.kind != ValueKind::Stream => Err(WRONGTYPE),
            Some(content) => Ok(Some(Self::read(content.bytes)?)),
        }
    }

    pub(super) fn read(bytes: &'a [u8]) -> Result<Self, Damaged> {
        let mut rest = bytes;
        let length = u32::from_le_bytes(take(&mut rest)?);
        let tail = u32::from_le_bytes(take(&mut rest)?) as usize;
        let groups = u32::from_le_bytes(take(&mut rest)?) as usize;
        let added = u64::from_le_bytes(take(&mut rest)?);
        let last = take_id(&mut rest)?;
        let max_deleted = take_id(&mut rest)?;
        let (groups, chunks) = rest.split_at_checked(groups).ok_or(Damaged)?;
        Ok(Self { length, added, last, max_deleted, tail, groups, chunks })
    }

    /// The bytes of a stream with this header, whose groups and chunks stand in these stretches one
    /// behind the other.
    pub(super) fn bytes(&self, groups: &[&[u8]], chunks: &[&[u8]]) -> Vec<u8> {
        let bytes = |stretches: &[&[u8]]| stretches.iter().map(|part| part.len()).sum::<usize>();
        let groups_bytes = bytes(groups);
        let mut out = Vec::with_capacity(HEADER_BYTES + groups_bytes + bytes(chunks));
        out.extend_from_slice(&self.length.to_le_bytes());
        out.extend_from_slice(&bounded(self.tail).to_le_bytes());
        out.extend_from_slice(&bounded(groups_bytes).to_le_bytes());
        out.extend_from_slice(&self.added.to_le_bytes());
        put_id(self.last, &mut out);
        put_id(self.max_deleted, &mut out);
        groups.iter().chain(chunks).for_each(|part| out.extend_from_slice(part));
        out
    }

    /// The bytes of the stream with other groups.
    pub(super) fn with_groups(&self, groups: &[&[u8]]) -> Vec<u8> {
        self.bytes(groups, &[self.chunks])
    }

    /// The bytes of the stream with another header.
    pub(super) fn unchanged(&self) -> Vec<u8> {
        self.bytes(&[self.groups], &[self.chunks])
    }

    pub(super) fn chunks(&self) -> Chunks<'a> {
        Chunks { rest: self.chunks }
    }

    /// The entries with ids in this range, ascending.
    pub(super) fn entries(
        &self,
        from: StreamId,
        to: StreamId,
    ) -> impl Iterator<Item = Result<Entry<'a>, Damaged>> + use<'a> {
        let chunks =
            self.chunks().filter(move |chunk| chunk.or_damaged(|chunk| chunk.last >= from));
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
        let meets = |chunk: Chunk<'_>| chunk.last >= from && chunk.first <= to;
        let chunks: Vec<_> = self.chunks().filter(|chunk| chunk.or_damaged(meets)).collect();
        let entries = chunks.into_iter().rev().flat_map(|chunk| {
            let entries: Vec<_> = Entries::of(chunk).collect();
            entries.into_iter().rev()
        });
        entries.filter(move |entry| entry.or_damaged(|entry| (from..=to).contains(&entry.id)))
    }

    /// The first entry.
    pub(super) fn first_entry(&self) -> Result<Option<Entry<'a>>, Damaged> {
        self.entries(StreamId::MIN, StreamId::MAX).next().transpose()
    }

    /// The last entry.
    pub(super) fn last_entry(&self) -> Result<Option<Entry<'a>>, Damaged> {
        // Chunks without entries are rare, so the last one as a rule has it.
        let tail = Chunks { rest: self.chunks.get(self.tail..).unwrap_or_default() };
        for chunk in tail {
            if let Some(entry) = Entries::of(chunk).last() {
                return entry.map(Some);
            }
        }
        self.entries_back(StreamId::MIN, StreamId::MAX).next().transpose()
    }

    /// The id of the first entry; the smallest one if there is none.
    pub(super) fn first_id(&self) -> Result<StreamId, Damaged> {
        Ok(self.first_entry()?.map_or(StreamId::MIN, |entry| entry.id))
    }

    /// The stream with one more entry, of fields and values that take turns. Everything before it
    /// is copied as it is.
    pub(super) fn append<'b>(
        &self,
        id: StreamId,
        items: impl ExactSizeIterator<Item = &'b [u8]> + Clone,
    ) -> Result<Vec<u8>, Damaged> {
        let bytes: usize = items.clone().map(<[u8]>::len).sum();
        let names = || items.clone().step_by(2);
        let mut header = Self { length: self.length.saturating_add(1), last: id, ..*self };
        header.added = self.added.wrapping_add(1);
        let (before, open) = self.chunks.split_at_checked(self.tail).ok_or(Damaged)?;
        let open = Chunks { rest: open }.next().transpose()?.filter(|chunk| {
            chunk.node_bytes as usize + bytes < NODE_BYTES_MAX
                && usize::from(chunk.live) + usize::from(chunk.deleted) < CHUNK_ENTRIES_MAX
        });
        let Some(open) = open else {
            let mut fields = Vec::new();
            put_number(names().len() as u64, &mut fields);
            names().for_each(|name| put_item(name, &mut fields));
            let mut chunk =
                Chunk { first: id, last: id, live: 1, deleted: 0, node_bytes: 0, body: &[] };
            let entry = chunk.entry(id, true, items.clone());
            let node = NODE_BYTES_MIN
                + [1, 0, names().len() as i64, 0].map(node::number).iter().sum::<usize>();
            let node = node + names().map(node::text).sum::<usize>();
            chunk.node_bytes = bounded(node + chunk.entry_node_bytes(id, true, items));
            header.tail = self.chunks.len();
            let head = chunk.head(fields.len() + entry.len());
            return Ok(header.bytes(&[self.groups], &[self.chunks, &head, &fields, &entry]));
        };
        let same = open.has_fields(names())?;
        let entry = open.entry(id, same, items.clone());
        let node_bytes = open.node_bytes as usize + open.entry_node_bytes(id, same, items);
        let chunk =
            Chunk { last: id, live: open.live + 1, node_bytes: bounded(node_bytes), ..open };
        let head = chunk.head(open.body.len() + entry.len());
        Ok(header.bytes(&[self.groups], &[before, &head, open.body, &entry]))
    }

    /// The stream without these entries, which are in order, and how many of them it had.
    pub(super) fn without(&self, ids: &[StreamId]) -> Result<(usize, Vec<u8>), Damaged> {
        let mut chunks = Vec::with_capacity(self.chunks.len());
        let mut header = *self;
        header.tail = 0;
        let mut deleted = 0;
        for chunk in self.chunks() {
            let chunk = chunk?;
            let from = ids.partition_point(|id| *id < chunk.first);
            let ids = &ids[from..from + ids[from..].partition_point(|id| *id <= chunk.last)];
            let (begin, before) = (chunks.len(), deleted);
            let mut body = Vec::new();
            if !ids.is_empty() {
                for entry in Entries::of(Ok(chunk)) {
                    let entry = entry?;
                    if ids.binary_search(&entry.id).is_err() {
                        body.extend_from_slice(entry.raw);
                    } else {
                        header.max_deleted = header.max_deleted.max(entry.id);
                        deleted += 1;
                    }
                }
            }
            match deleted - before {
                0 => chunk.write(chunk.body, &[], &mut chunks),
                gone if gone == usize::from(chunk.live) => continue,
                gone => chunk.less(gone).write(chunk.fields()?, &body, &mut chunks),
            }
            header.tail = begin;
        }
        header.length = self.length.saturating_sub(bounded(deleted));
        Ok((deleted, header.bytes(&[self.groups], &[&chunks])))
    }

    /// The stream without its oldest entries, as many as `trim` says, and how many these were.
    ///
    /// Chunks are Redis's nodes, so this takes what Redis takes, also where it need not be exact.
    pub(super) fn trim(&self, trim: &Trim) -> Result<(usize, Vec<u8>), Damaged> {
        let mut header = *self;
        let mut kept = self.chunks();
        let mut deleted = 0;
        let mut part = Vec::new();
        loop {
            let rest = kept.rest;
            let Some(chunk) = kept.next().transpose()? else { break };
            let live = usize::from(chunk.live);
            let goes = match trim.to {
                TrimTo::Length(length) if u64::from(header.length) <= length => None,
                _ if trim.limit > 0 && (deleted + live) as u64 > trim.limit => None,
                TrimTo::Length(length) => {
                    Some(u64::from(header.length).saturating_sub(live as u64) >= length)
                }
                TrimTo::Id(id) => Some(chunk.last < id),
            };
            if goes == Some(true) {
                header.length = header.length.saturating_sub(chunk.live.into());
                deleted += live;
                continue;
            }
            kept.rest = rest;
            if goes == Some(false)
                && (mutant!("commands_stream_nodes_are_cut") || !trim.approximate)
            {
                let (gone, entries) = header.trim_chunk(&chunk, trim.to)?;
                kept.next();
                chunk.less(gone).write(chunk.fields()?, entries, &mut part);
                header.length = header.length.saturating_sub(bounded(gone));
                deleted += gone;
            }
            break;
        }
        let end = part.len() + kept.rest.len();
        let from_end = self.chunks.len().saturating_sub(self.tail);
        // The last chunk is the last one still, unless it is the one that was cut.
        header.tail = if kept.rest.is_empty() { 0 } else { end.saturating_sub(from_end) };
        Ok((deleted, header.bytes(&[self.groups], &[&part, kept.rest])))
    }

    /// How many of the first entries of a chunk go, and the bytes of the others.
    fn trim_chunk(&self, chunk: &Chunk<'a>, to: TrimTo) -> Result<(usize, &'a [u8]), Damaged> {
        let mut entries = Entries::of(Ok(*chunk));
        let mut gone = 0;
        loop {
            let rest = entries.rest;
            let Some(entry) = entries.next().transpose()? else { return Ok((gone, rest)) };
            let stays = match to {
                TrimTo::Length(length) => u64::from(self.length) <= length + gone as u64,
                TrimTo::Id(id) => entry.id >= id,
            };
            if stays {
                return Ok((gone, rest));
            }
            gone += 1;
        }
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
}

impl<'a> Chunk<'a> {
    fn head(&self, body: usize) -> [u8; CHUNK_BYTES] {
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
    fn less(self, gone: usize) -> Self {
        let gone = gone.min(usize::from(self.live)) as u8;
        Self { live: self.live - gone, deleted: self.deleted.saturating_add(gone), ..self }
    }

    /// The bytes with the names of its fields.
    fn fields(&self) -> Result<&'a [u8], Damaged> {
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
    pub(super) fn entries(self) -> impl Iterator<Item = Result<Entry<'a>, Damaged>> {
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
pub(super) struct Chunks<'a> {
    rest: &'a [u8],
}

impl<'a> Chunks<'a> {
    fn read(&mut self) -> Result<Chunk<'a>, Damaged> {
        let mut rest = core::mem::take(&mut self.rest);
        let body = u32::from_le_bytes(take(&mut rest)?) as usize;
        let node_bytes = u32::from_le_bytes(take(&mut rest)?);
        let [live, deleted] = take(&mut rest)?;
        let first = take_id(&mut rest)?;
        let last = take_id(&mut rest)?;
        let (body, rest) = rest.split_at_checked(body).ok_or(Damaged)?;
        self.rest = rest;
        Ok(Chunk { first, last, live, deleted, node_bytes, body })
    }
}

impl<'a> Iterator for Chunks<'a> {
    type Item = Result<Chunk<'a>, Damaged>;

    /// Nothing comes behind what is damaged.
    fn next(&mut self) -> Option<Self::Item> {
        (!self.rest.is_empty()).then(|| self.read())
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
    raw: &'a [u8],
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
trait OrDamaged<T> {
    fn or_damaged(&self, holds: impl FnOnce(T) -> bool) -> bool;
}

impl<T: Copy> OrDamaged<T> for Result<T, Damaged> {
    fn or_damaged(&self, holds: impl FnOnce(T) -> bool) -> bool {
        self.ok().is_none_or(holds)
    }
}

/// Finds entries by their ids, in any order.
pub(super) struct Index<'a> {
    chunks: Vec<Chunk<'a>>,
}

impl<'a> Index<'a> {
    pub(super) fn of(stream: &Stream<'a>) -> Result<Self, Damaged> {
        Ok(Self { chunks: stream.chunks().collect::<Result<_, _>>()? })
    }

    pub(super) fn find(&self, id: StreamId) -> Result<Option<Entry<'a>>, Damaged> {
        let at = self.chunks.partition_point(|chunk| chunk.last < id);
        let Some(chunk) = self.chunks.get(at).filter(|chunk| chunk.first <= id) else {
            return Ok(None);
        };
        for entry in Entries::of(Ok(*chunk)) {
            let entry = entry?;
            if entry.id >= id {
                return Ok(Some(entry).filter(|entry| entry.id == id));
            }
        }
        Ok(None)
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
fn bounded(length: usize) -> u32 {
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
