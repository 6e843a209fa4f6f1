//! A stream in Redis's files: its nodes, each a listpack; then what it knows of itself; then its groups.
//!
//! ```text
//! node:  id of its first entry | listpack: live | deleted | count, names of fields | 0 | entries
//! entry: flags | ms | seq | values, or count, fields and values | elements so far
//! ```
//! The milliseconds and the number count from those of the node's first entry. An entry whose fields are
//! the node's has values only.

use alloc::borrow::Cow;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use quorate_machine::mutant;
use quorate_rdb::{
    Cursor, Listpack, chunk, listpack, take, write_length, write_number, write_string,
};

use super::StreamId;
use super::bytes::{Damaged, put_item, put_number};
use super::groups::{Consumer, Group, Pending, UNKNOWN};
use super::packed::{CHUNK_ENTRIES_MAX, Chunk, Stream};
use crate::dump::value::are_different;
use crate::number::{format_integer, parse_integer};

/// Flags of an entry: it is deleted; it has the fields of its node.
const DELETED: i64 = 1;
const SAME_FIELDS: i64 = 2;
const RAW_ID_BYTES: usize = 16;

/// Writes a stream as Redis 7.0 does, which keeps the bytes of deleted entries.
pub(crate) fn write(bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Damaged> {
    let stream = Stream::read(bytes)?;
    write_length(stream.chunk_count(), out);
    for chunk in stream.chunks() {
        let chunk = chunk?;
        write_string(&raw_id(chunk.first), out);
        write_string(&node(&chunk)?, out);
    }
    write_number(stream.length.into(), out);
    for id in [stream.last, stream.first_id()?, stream.max_deleted] {
        write_id(id, out);
    }
    write_number(stream.added, out);
    let groups = stream.groups()?;
    write_length(groups.len(), out);
    groups.iter().for_each(|group| write_group(group, out));
    Ok(())
}

fn raw_id(id: StreamId) -> [u8; RAW_ID_BYTES] {
    (u128::from(id.ms) << 64 | u128::from(id.seq)).to_be_bytes()
}

fn write_id(id: StreamId, out: &mut Vec<u8>) {
    write_number(id.ms, out);
    write_number(id.seq, out);
}

fn node(chunk: &Chunk<'_>) -> Result<Vec<u8>, Damaged> {
    let mut listpack = Listpack::new();
    let put = |number: i64, listpack: &mut Listpack| {
        listpack.push(format_integer(number, &mut [0; 20]));
    };
    let names = chunk.names()?;
    let entries = chunk.entries().collect::<Result<Vec<_>, _>>()?;
    for number in [entries.len() as i64, 0, names.len() as i64] {
        put(number, &mut listpack);
    }
    names.iter().for_each(|name| listpack.push(name));
    put(0, &mut listpack);
    for entry in entries {
        let (same, count) = (entry.has_fields_of_chunk(), entry.count as i64);
        put(if same { SAME_FIELDS } else { 0 }, &mut listpack);
        put(entry.id.ms.wrapping_sub(chunk.first.ms).cast_signed(), &mut listpack);
        put(entry.id.seq.wrapping_sub(chunk.first.seq).cast_signed(), &mut listpack);
        if !same {
            put(count, &mut listpack);
        }
        for (at, item) in entry.items().enumerate() {
            let item = item?;
            if !same || at % 2 == 1 {
                listpack.push(item);
            }
        }
        put(if same { count + 3 } else { 2 * count + 4 }, &mut listpack);
    }
    Ok(listpack.finish())
}

fn write_group(group: &Group<'_>, out: &mut Vec<u8>) {
    write_string(group.name, out);
    write_id(group.last, out);
    write_number(group.read.unwrap_or(UNKNOWN).cast_unsigned(), out);
    write_length(group.pending.len(), out);
    for pending in &group.pending {
        out.extend_from_slice(&raw_id(pending.id));
        out.extend_from_slice(&pending.delivered.to_le_bytes());
        write_number(pending.count, out);
    }
    let consumers = group.consumers_by_name();
    write_length(consumers.len(), out);
    for (at, consumer, count) in consumers {
        write_string(consumer.name, out);
        out.extend_from_slice(&consumer.seen.to_le_bytes());
        write_length(count, out);
        let its_own = group.pending.iter().filter(|pending| pending.consumer == at);
        its_own.for_each(|pending| out.extend_from_slice(&raw_id(pending.id)));
    }
}

/// Reads a stream as Redis 7.0 writes it, or as those before it did, which don't say what was deleted
/// and how many entries there were. Nothing if it is damaged.
pub(crate) fn read(counted: bool, reader: &mut Cursor<'_>) -> Option<Vec<u8>> {
    let mut chunks = Chunks::default();
    for _ in 0..reader.length().ok()? {
        let first = parse_raw_id(&reader.string().ok()?)?;
        chunks.node(first, &reader.string().ok()?)?;
    }
    let length = reader.number().ok()?;
    let last = read_id(reader)?;
    if length != u64::from(chunks.length) || chunks.last.is_some_and(|before| last < before) {
        return None;
    }
    let (mut added, mut max_deleted) = (length, StreamId::MIN);
    if counted {
        // The first entry is found without being told.
        read_id(reader)?;
        max_deleted = read_id(reader)?;
        added = reader.number().ok()?;
    }
    let header = Stream { length: chunks.length, added, last, max_deleted, ..Stream::default() };
    let ungrouped = header.bytes(chunks.tail, &[], &[&chunks.bytes]);
    let stream = Stream::read(&ungrouped).ok()?;
    let mut groups = BTreeMap::new();
    for _ in 0..reader.length().ok()? {
        let (name, group) = read_group(counted, &stream, reader)?;
        if groups.insert(name, group).is_some() {
            return None;
        }
    }
    let groups: Vec<&[u8]> = groups.values().map(|group| &group[..]).collect();
    Some(header.bytes(chunks.tail, &groups, &[&chunks.bytes]))
}

/// Reads a group: its name, and its bytes in a stream.
fn read_group(
    counted: bool,
    stream: &Stream<'_>,
    reader: &mut Cursor<'_>,
) -> Option<(Vec<u8>, Vec<u8>)> {
    let name = reader.string().ok()?.into_owned();
    let last = read_id(reader)?;
    let read = if counted {
        Some(reader.number().ok()?.cast_signed()).filter(|read| *read != UNKNOWN)
    } else {
        stream.count_up_to(last).ok()?
    };
    // Whose an entry is, is said behind all of them.
    let mut pending: Vec<(Pending, bool)> = Vec::new();
    for _ in 0..reader.length().ok()? {
        let id = parse_raw_id(take(&mut reader.rest, RAW_ID_BYTES)?)?;
        let delivered = u64::from_le_bytes(chunk(&mut reader.rest)?);
        let count = reader.number().ok()?;
        if pending.last().is_some_and(|(before, _)| before.id >= id) {
            return None;
        }
        pending.push((Pending { id, consumer: 0, delivered, count }, false));
    }
    let mut consumers: Vec<(Cow<'_, [u8]>, u64)> = Vec::new();
    for consumer in 0..reader.length().ok()? {
        let name = reader.string().ok()?;
        consumers.push((name, u64::from_le_bytes(chunk(&mut reader.rest)?)));
        for _ in 0..reader.length().ok()? {
            let id = parse_raw_id(take(&mut reader.rest, RAW_ID_BYTES)?)?;
            let at = pending.binary_search_by_key(&id, |(pending, _)| pending.id).ok()?;
            if core::mem::replace(&mut pending[at].1, true) {
                return None;
            }
            pending[at].0.consumer = consumer;
        }
    }
    are_different(consumers.iter().map(|(name, _)| &**name))?;
    if !pending.iter().all(|(_, is_somebodys)| *is_somebodys) {
        return None;
    }
    let mut group = Group::new(&name, last, read);
    let consumer = |(name, seen): &'_ (Cow<'_, [u8]>, u64)| (name.to_vec(), *seen);
    let consumers: Vec<_> = consumers.iter().map(consumer).collect();
    group.consumers = consumers.iter().map(|(name, seen)| Consumer { name, seen: *seen }).collect();
    group.pending = pending.into_iter().map(|(pending, _)| pending).collect();
    let (bytes, _) = group.encode();
    Some((name, bytes))
}

fn parse_raw_id(bytes: &[u8]) -> Option<StreamId> {
    let id = u128::from_be_bytes(bytes.try_into().ok()?);
    Some(StreamId { ms: (id >> 64) as u64, seq: id as u64 })
}

fn read_id(reader: &mut Cursor<'_>) -> Option<StreamId> {
    Some(StreamId { ms: reader.number().ok()?, seq: reader.number().ok()? })
}

/// Chunks that are being read.
#[derive(Default)]
struct Chunks {
    bytes: Vec<u8>,
    /// Where the last one begins.
    tail: usize,
    /// How many entries they have.
    length: u32,
    /// The last entry, which may be deleted.
    last: Option<StreamId>,
}

impl Chunks {
    /// Adds the entries of a node. One of a Redis that allows more of them than a chunk has becomes
    /// several chunks.
    fn node(&mut self, first: StreamId, bytes: &[u8]) -> Option<()> {
        if !self.is_next(first) {
            return None;
        }
        let mut elements = Vec::new();
        listpack(bytes, |element| {
            elements.push(element);
            Some(())
        })?;
        let mut elements = Elements(&elements);
        let [live, deleted, names] = [elements.number()?, elements.number()?, elements.number()?];
        let names = elements.take(names)?;
        if elements.number()? != 0 {
            return None;
        }
        let mut fields = Vec::new();
        put_number(names.len() as u64, &mut fields);
        names.iter().for_each(|name| put_item(name, &mut fields));
        let node_bytes = u32::try_from(bytes.len()).ok()?;
        let empty =
            |first| Chunk { first, last: first, live: 0, deleted: 0, node_bytes, body: &[], at: 0 };
        let (mut chunk, mut entries) = (empty(first), Vec::new());
        let (mut live_found, mut deleted_found) = (0, 0);
        while !elements.0.is_empty() {
            let entry = elements.entry(first, names)?;
            if entry.id < first || !self.is_next(entry.id) {
                return None;
            }
            self.last = Some(entry.id);
            if usize::from(chunk.live) + usize::from(chunk.deleted) == CHUNK_ENTRIES_MAX {
                self.push(&chunk, &fields, &entries);
                (chunk, entries) = (empty(entry.id), Vec::new());
            }
            chunk.last = entry.id;
            if entry.is_deleted {
                chunk.deleted += 1;
                deleted_found += 1;
            } else {
                chunk.live += 1;
                live_found += 1;
                entries.extend(chunk.entry(entry.id, entry.is_same, entry.items.into_iter()));
            }
        }
        self.push(&chunk, &fields, &entries);
        ((live_found, deleted_found) == (live, deleted)).then_some(())
    }

    /// Whether an entry may come behind those that were read: they are found by their order.
    fn is_next(&self, id: StreamId) -> bool {
        self.last.is_none_or(|last| last < id) || mutant!("commands_stream_restored_unordered")
    }

    fn push(&mut self, chunk: &Chunk<'_>, fields: &[u8], entries: &[u8]) {
        if chunk.live > 0 {
            self.tail = self.bytes.len();
            chunk.write(fields, entries, &mut self.bytes);
            self.length += u32::from(chunk.live);
        }
    }
}

/// An entry of a node.
struct NodeEntry<'a> {
    id: StreamId,
    is_deleted: bool,
    /// Whether its fields are those of the node.
    is_same: bool,
    /// Fields and values in turns.
    items: Vec<&'a [u8]>,
}

/// The elements of a node that are still to be read.
struct Elements<'e, 'a>(&'e [Cow<'a, [u8]>]);

impl<'e, 'a> Elements<'e, 'a> {
    fn number(&mut self) -> Option<i64> {
        let (element, rest) = self.0.split_first()?;
        self.0 = rest;
        parse_integer(element)
    }

    fn take(&mut self, count: i64) -> Option<&'e [Cow<'a, [u8]>]> {
        let (taken, rest) = self.0.split_at_checked(usize::try_from(count).ok()?)?;
        self.0 = rest;
        Some(taken)
    }

    fn entry(&mut self, first: StreamId, names: &'e [Cow<'a, [u8]>]) -> Option<NodeEntry<'e>> {
        let begin = self.0.len();
        let [flags, ms, seq] = [self.number()?, self.number()?, self.number()?];
        let is_same = flags & SAME_FIELDS != 0;
        let items: Vec<&[u8]> = if is_same {
            let values = self.take(i64::try_from(names.len()).ok()?)?;
            names.iter().zip(values).flat_map(|(name, value)| [&**name, &**value]).collect()
        } else {
            let count = self.number()?.checked_mul(2)?;
            self.take(count)?.iter().map(|item| &**item).collect()
        };
        let elements = begin - self.0.len();
        let id = StreamId {
            ms: first.ms.wrapping_add(ms.cast_unsigned()),
            seq: first.seq.wrapping_add(seq.cast_unsigned()),
        };
        let is_whole = self.number()? == elements as i64 && !items.is_empty();
        is_whole.then_some(NodeEntry { id, is_deleted: flags & DELETED != 0, is_same, items })
    }
}
