//! Values in Redis's files: a byte that says the type and the form, and then the value in it.

use alloc::borrow::Cow;
use alloc::vec::Vec;

use quorate_machine::{Change, Content, ValueKind, mutant};
use quorate_rdb::{
    Cursor, Listpack, chunk, listpack, take, write_length, write_number, write_string, ziplist,
};
use quorate_types::{UnixMillis, limits};

use crate::double::{format_double, parse_double};
use crate::hash;
use crate::hash::expiring::{Expiring, Field, Writing};
use crate::number::{format_integer, parse_integer};
use crate::packed::{Builder, Packed};
use crate::set::{self, Set};
use crate::sorted_set::{self, Entry, SortedSet};
use crate::{Reply, stream};

const STRING: u8 = 0;
const LIST: u8 = 1;
const SET: u8 = 2;
const SORTED_SET_TEXT: u8 = 3;
const HASH: u8 = 4;
const SORTED_SET: u8 = 5;
const LIST_ZIPLIST: u8 = 10;
const SET_INTEGERS: u8 = 11;
const SORTED_SET_ZIPLIST: u8 = 12;
const HASH_ZIPLIST: u8 = 13;
const LIST_ZIPLISTS: u8 = 14;
const STREAM_UNCOUNTED: u8 = 15;
const HASH_LISTPACK: u8 = 16;
const SORTED_SET_LISTPACK: u8 = 17;
const LIST_LISTPACKS: u8 = 18;
const STREAM: u8 = 19;
const SET_LISTPACK: u8 = 20;
/// Hashes with expiring fields.
const HASH_EXPIRING: u8 = 24;
const HASH_LISTPACK_EXPIRING: u8 = 25;

/// A node of a list: one element as it is, or a listpack.
const NODE_PLAIN: usize = 1;
const NODE_PACKED: usize = 2;
/// Bytes of a node to which Redis adds no further element (`list-max-listpack-size` -2), and what it
/// takes an element for besides its own bytes.
const NODE_BYTES_MAX: usize = 8192;
const NODE_ELEMENT_BYTES: usize = 8;

/// The latest expiry of a field that Redis stores: 48 bits.
const EXPIRY_MAX: u64 = (1 << 48) - 2;

/// Bytes in which the text of a score says its length; longer ones are those of no number and of the
/// infinities.
const NAN: u8 = 253;
const INFINITE: u8 = 254;
const NEGATIVE_INFINITE: u8 = 255;

/// Writes a value as Redis 7.0 does that compresses nothing, where that is determined: a set of strings
/// and a large hash are in no order there. A hash with expiring fields is written as Redis 7.4 does,
/// without the fields that have expired.
///
/// # Errors
/// If the value is damaged.
pub(super) fn write(
    content: Content<'_>,
    now: UnixMillis,
    out: &mut Vec<u8>,
) -> Result<(), Reply<'static>> {
    let packed = || Packed::read(content);
    match content.kind {
        ValueKind::Hash => match Expiring::of(packed(), now) {
            Some(expiring) => write_expiring(expiring, hash::is_large(packed()), out),
            None => write_hash(packed(), out),
        },
        ValueKind::List => write_list(packed(), out),
        ValueKind::Set => write_set(Set::read(packed()), out),
        ValueKind::SortedSet => write_sorted_set(content, out),
        ValueKind::Stream => {
            out.push(STREAM);
            stream::write_dump(content.bytes, out)?;
        }
        _ => {
            out.push(STRING);
            write_string(content.bytes, out);
        }
    }
    Ok(())
}

fn write_hash(hash: Packed<'_>, out: &mut Vec<u8>) {
    if hash::is_large(hash) {
        out.push(HASH);
        write_length(hash.fields().count(), out);
        hash.fields()
            .flat_map(|(field, value)| [field, value])
            .for_each(|part| write_string(part, out));
        return;
    }
    out.push(HASH_LISTPACK);
    write_listpack(hash.fields().flat_map(|(field, value)| [field.into(), value.into()]), out);
}

/// Whether what was written is a hash with expiring fields.
pub(super) fn is_expiring(written: &[u8]) -> bool {
    matches!(written.first(), Some(&(HASH_EXPIRING | HASH_LISTPACK_EXPIRING)))
}

/// Begins with the earliest expiry. In a listpack fields are ordered by expiry, those without one last,
/// and each has its own behind its value, or 0. Otherwise it stands before the field, counted from the
/// earliest one, which is 1.
fn write_expiring(hash: Expiring<'_>, is_large: bool, out: &mut Vec<u8>) {
    let mut fields: Vec<_> = hash.fields().collect();
    let expiries = fields.iter().filter_map(|field| field.expire_at);
    let earliest = expiries.min().map_or(0, |at| at.0);
    out.push(if is_large { HASH_EXPIRING } else { HASH_LISTPACK_EXPIRING });
    out.extend_from_slice(&earliest.to_le_bytes());
    if is_large {
        write_length(fields.len(), out);
        for Field { name, value, expire_at } in fields {
            write_number(expire_at.map_or(0, |at| at.0 - earliest + 1), out);
            write_string(name, out);
            write_string(value, out);
        }
        return;
    }
    fields.sort_by_key(|field| (field.expire_at.is_none(), field.expire_at));
    let parts = fields.into_iter().flat_map(|Field { name, value, expire_at }| {
        let expiry = expire_at.map_or(0, |at| at.0.cast_signed());
        let expiry = format_integer(expiry, &mut [0; 20]).to_vec();
        [name.into(), value.into(), Cow::Owned(expiry)]
    });
    write_listpack(parts, out);
}

fn write_listpack<'a>(elements: impl Iterator<Item = Cow<'a, [u8]>>, out: &mut Vec<u8>) {
    let mut listpack = Listpack::new();
    elements.for_each(|element| listpack.push(&element));
    write_string(&listpack.finish(), out);
}

fn write_list(list: Packed<'_>, out: &mut Vec<u8>) {
    let (mut nodes, mut listpack) = (Vec::new(), Listpack::new());
    for element in list.items() {
        let length = listpack.len() + element.len() + NODE_ELEMENT_BYTES;
        if length > NODE_BYTES_MAX && !listpack.is_empty() {
            nodes.push(core::mem::replace(&mut listpack, Listpack::new()).finish());
        }
        listpack.push(element);
    }
    nodes.push(listpack.finish());
    out.push(LIST_LISTPACKS);
    write_length(nodes.len(), out);
    for node in nodes {
        write_length(NODE_PACKED, out);
        write_string(&node, out);
    }
}

fn write_set(set: Set<'_>, out: &mut Vec<u8>) {
    match set {
        Set::Integers(integers) => {
            let (width, bytes) = integers.bytes();
            let count = bytes.len() / width;
            let mut blob = Vec::with_capacity(8 + bytes.len());
            [width, count]
                .iter()
                .for_each(|number| blob.extend_from_slice(&(*number as u32).to_le_bytes()));
            blob.extend_from_slice(&bytes[..count * width]);
            out.push(SET_INTEGERS);
            write_string(&blob, out);
        }
        Set::Strings(_) | Set::Large(_) => {
            out.push(SET);
            write_length(set.members().count(), out);
            set.members().for_each(|member| write_string(&member, out));
        }
    }
}

fn write_sorted_set(content: Content<'_>, out: &mut Vec<u8>) {
    let set = SortedSet::read(content);
    if set.is_large() {
        let entries: Vec<_> = set.entries().collect();
        out.push(SORTED_SET);
        write_length(entries.len(), out);
        // The last one first: then each is added in front.
        for entry in entries.iter().rev() {
            write_string(entry.member, out);
            out.extend_from_slice(&entry.score.to_le_bytes());
        }
        return;
    }
    out.push(SORTED_SET_LISTPACK);
    let score = |score| Cow::Owned(score_bytes(score));
    write_listpack(set.entries().flat_map(|entry| [entry.member.into(), score(entry.score)]), out);
}

/// A score as Redis writes it to a listpack: more of the whole numbers as integers than elsewhere.
fn score_bytes(score: f64) -> Vec<u8> {
    const WHOLE_MAX: f64 = (i64::MAX / 2) as f64;
    let whole = score as i64;
    if score.abs() <= WHOLE_MAX && whole as f64 == score {
        return format_integer(whole, &mut [0; 20]).to_vec();
    }
    format_double(score).into_bytes()
}

/// Reads a value of any form that Redis 2.6 to 7.0 writes, without modules, and hashes and sets of Redis
/// 7.4. Nothing if it is damaged, empty, or longer than a value may be.
pub(super) fn read(body: &[u8]) -> Option<(Vec<u8>, ValueKind)> {
    let (&form, rest) = body.split_first()?;
    let mut reader = super::cursor(rest);
    let (bytes, kind) = match form {
        STRING => {
            return short(reader.string().ok()?.into_owned())
                .map(|bytes| (bytes, ValueKind::String));
        }
        STREAM | STREAM_UNCOUNTED => {
            let stream = stream::read_dump(form == STREAM, &mut reader)?;
            return short(stream).map(|bytes| (bytes, ValueKind::Stream));
        }
        LIST | LIST_ZIPLIST | LIST_ZIPLISTS | LIST_LISTPACKS => {
            (read_list(form, &mut reader)?, ValueKind::List)
        }
        HASH | HASH_ZIPLIST | HASH_LISTPACK => (read_hash(form, &mut reader)?, ValueKind::Hash),
        HASH_EXPIRING | HASH_LISTPACK_EXPIRING => {
            (read_expiring(form, &mut reader)?, ValueKind::Hash)
        }
        SET | SET_LISTPACK => (read_set(form, &mut reader)?, ValueKind::Set),
        SET_INTEGERS => (read_integers(&reader.string().ok()?)?, ValueKind::Set),
        SORTED_SET_TEXT | SORTED_SET | SORTED_SET_ZIPLIST | SORTED_SET_LISTPACK => {
            (read_sorted_set(form, &mut reader)?, ValueKind::SortedSet)
        }
        _ => return None,
    };
    let content = Content { bytes: &bytes, kind, expire_at: None };
    if Packed::read(content).count == 0 {
        return None;
    }
    Some((short(bytes)?, kind))
}

/// The value, if it is no longer than one may be.
fn short(bytes: Vec<u8>) -> Option<Vec<u8>> {
    (bytes.len() <= limits::VALUE_BYTES_MAX).then_some(bytes)
}

/// Elements that are being read, one after the other.
struct Elements {
    builder: Builder,
    count: usize,
}

impl Elements {
    fn new() -> Self {
        Self { builder: Builder::new(0, 0), count: 0 }
    }

    fn push(&mut self, element: &[u8]) -> Option<()> {
        self.builder.item(element);
        self.count += 1;
        (self.builder.len() <= limits::VALUE_BYTES_MAX).then_some(())
    }

    /// So many strings.
    fn strings(&mut self, count: usize, reader: &mut Cursor<'_>) -> Option<()> {
        (0..count).try_for_each(|_| self.push(&reader.string().ok()?))
    }
}

fn read_list(form: u8, reader: &mut Cursor<'_>) -> Option<Vec<u8>> {
    let mut elements = Elements::new();
    match form {
        LIST => elements.strings(reader.length().ok()?, reader)?,
        LIST_ZIPLIST => ziplist(&reader.string().ok()?, |element| elements.push(&element))?,
        _ => {
            for _ in 0..reader.length().ok()? {
                let node = if form == LIST_ZIPLISTS { 0 } else { reader.length().ok()? };
                let bytes = reader.string().ok()?;
                match node {
                    0 if form == LIST_ZIPLISTS => {
                        ziplist(&bytes, |element| elements.push(&element))?
                    }
                    NODE_PLAIN => elements.push(&bytes)?,
                    NODE_PACKED => listpack(&bytes, |element| elements.push(&element))?,
                    _ => return None,
                }
            }
        }
    }
    Some(elements.builder.finish(elements.count))
}

fn read_hash(form: u8, reader: &mut Cursor<'_>) -> Option<Vec<u8>> {
    let mut elements = Elements::new();
    match form {
        HASH => elements.strings(reader.length().ok()?.checked_mul(2)?, reader)?,
        HASH_ZIPLIST => ziplist(&reader.string().ok()?, |element| elements.push(&element))?,
        _ => listpack(&reader.string().ok()?, |element| elements.push(&element))?,
    }
    if !elements.count.is_multiple_of(2) {
        return None;
    }
    let mut bytes = elements.builder.finish(elements.count / 2);
    let content = Content { bytes: &bytes, kind: ValueKind::Hash, expire_at: None };
    let hash = Packed::read(content);
    are_different(hash.fields().map(|(field, _)| field))?;
    bytes[0] = hash::form_of(hash);
    Some(bytes)
}

/// Reads a hash with expiring fields, and some may have by now.
fn read_expiring(form: u8, reader: &mut Cursor<'_>) -> Option<Vec<u8>> {
    let earliest = u64::from_le_bytes(chunk(&mut reader.rest)?);
    // Fields and their values, and the expiries in the same order.
    let (mut elements, mut expiries) = (Elements::new(), Vec::new());
    if form == HASH_EXPIRING {
        for _ in 0..reader.length().ok()? {
            expiries.push(match reader.number().ok()? {
                0 => 0,
                later => earliest.checked_add(later - 1)?,
            });
            elements.strings(2, reader)?;
        }
    } else {
        let mut place = 0;
        listpack(&reader.string().ok()?, |element| {
            place = (place + 1) % 3;
            if place > 0 {
                return elements.push(&element);
            }
            expiries.push(u64::try_from(parse_integer(&element)?).ok()?);
            Some(())
        })?;
    }
    if elements.count != 2 * expiries.len() || expiries.iter().any(|at| *at > EXPIRY_MAX) {
        return None;
    }
    let bytes = elements.builder.finish(expiries.len());
    let content = Content { bytes: &bytes, kind: ValueKind::Hash, expire_at: None };
    let hash = Packed::read(content);
    are_different(hash.fields().map(|(field, _)| field))?;
    let mut writing = Writing::new(hash::form_of(hash), None, bytes.len() + 8 * expiries.len());
    for ((name, value), at) in hash.fields().zip(expiries) {
        writing.push(Field { name, value, expire_at: Some(UnixMillis(at)).filter(|_| at != 0) });
    }
    Some(writing.finish())
}

pub(crate) fn are_different<'a>(names: impl Iterator<Item = &'a [u8]>) -> Option<()> {
    let mut names: Vec<_> = names.collect();
    names.sort_unstable();
    let different = names.is_sorted_by(|one, other| one < other);
    (different || mutant!("commands_member_restored_twice")).then_some(())
}

fn read_set(form: u8, reader: &mut Cursor<'_>) -> Option<Vec<u8>> {
    let mut elements = Elements::new();
    match form {
        SET => elements.strings(reader.length().ok()?, reader)?,
        _ => listpack(&reader.string().ok()?, |element| elements.push(&element))?,
    }
    let bytes = elements.builder.finish(elements.count);
    let content = Content { bytes: &bytes, kind: ValueKind::Set, expire_at: None };
    let members = Packed::read(content).items();
    are_different(members.clone())?;
    Some(set::of_members(&members.map(Cow::Borrowed).collect::<Vec<_>>()))
}

/// A set of integers: their width, their number, and they in order.
fn read_integers(mut blob: &[u8]) -> Option<Vec<u8>> {
    let width = u32::from_le_bytes(chunk(&mut blob)?);
    let count = u32::from_le_bytes(chunk(&mut blob)?);
    let form = [2, 4, 8].iter().position(|known| *known == width)? as u8;
    if u64::from(count) * u64::from(width) != blob.len() as u64 {
        return None;
    }
    let numbers: Vec<_> = set::Integers::new(blob, form).iter().collect();
    let is_short = numbers.len() <= limits::VALUE_BYTES_MAX / 2;
    let is_whole = is_short && numbers.is_sorted_by(|one, other| one < other);
    is_whole.then(|| set::of_integers(&numbers, form))
}

fn read_sorted_set(form: u8, reader: &mut Cursor<'_>) -> Option<Vec<u8>> {
    // Members, and their scores in the same order.
    let (mut members, mut scores) = (Elements::new(), Vec::new());
    match form {
        SORTED_SET | SORTED_SET_TEXT => {
            for _ in 0..reader.length().ok()? {
                members.push(&reader.string().ok()?)?;
                scores.push(match form {
                    SORTED_SET => f64::from_le_bytes(chunk(&mut reader.rest)?),
                    _ => score_text(reader)?,
                });
            }
        }
        _ => {
            let mut is_score = false;
            let mut visit = |element: Cow<'_, [u8]>| {
                match is_score {
                    true => scores.push(parse_double(&element)?),
                    false => members.push(&element)?,
                }
                is_score = !is_score;
                Some(())
            };
            let blob = reader.string().ok()?;
            match form {
                SORTED_SET_ZIPLIST => ziplist(&blob, &mut visit)?,
                _ => listpack(&blob, &mut visit)?,
            }
        }
    }
    if members.count != scores.len() || scores.iter().any(|score| score.is_nan()) {
        return None;
    }
    let bytes = members.builder.finish(members.count);
    let content = Content { bytes: &bytes, kind: ValueKind::List, expire_at: None };
    let members = Packed::read(content).items();
    are_different(members.clone())?;
    let entry = |(member, score)| Entry { score, member };
    let mut entries: Vec<_> = members.zip(scores).map(entry).collect();
    entries.sort_unstable_by(Entry::order);
    match sorted_set::store_new(&entries).ok()?? {
        Change::Set { bytes, .. } => Some(bytes.into_owned()),
        _ => None,
    }
}

fn score_text(reader: &mut Cursor<'_>) -> Option<f64> {
    let [length] = chunk(&mut reader.rest)?;
    match length {
        NAN => None,
        INFINITE => Some(f64::INFINITY),
        NEGATIVE_INFINITE => Some(f64::NEG_INFINITY),
        length => parse_double(take(&mut reader.rest, length.into())?),
    }
}
