//! Streams: their nodes, what they know of themselves, their groups.
//!
//! ```text
//! node:  id of its first entry | listpack: live | deleted | count, names of fields | 0 | entries
//! entry: flags | ms | seq | values, or count, fields and values | elements so far
//! group: name | last id | read | pending: id, delivered, count | consumers
//! consumer: name | seen | active | ids of what is pending for it
//! ```
//! The milliseconds and the number count from those of the node's first entry. An entry whose fields are
//! the node's has values only.

use alloc::borrow::Cow;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use quorate_machine::mutant;

use super::{Fault, Item, StreamId, damaged};
use crate::bytes::Cursor;
use crate::error::Problem;
use crate::form::Form;
use crate::listpack::listpack;
use crate::number::parse_integer;

/// Flags of an entry: it is deleted; it has the fields of its node.
const DELETED: i64 = 1;
const SAME_FIELDS: i64 = 2;
/// What a group's number of read entries is if nobody knows it.
const UNKNOWN: u64 = u64::MAX;

const NODE_DAMAGED: Problem =
    Problem::Damaged("entries of a stream whose bytes don't fit together");

/// What comes next.
#[derive(Clone, Debug)]
pub(super) enum Part {
    Nodes { form: Form, left: u64 },
    Groups { form: Form, left: u64 },
    Pending { form: Form, groups: u64, left: u64 },
    Consumers { form: Form, groups: u64, left: u64 },
    OfConsumer { form: Form, groups: u64, consumers: u64, left: u64 },
}

/// What is known of the stream that is being read.
#[derive(Clone, Default, Debug)]
pub(super) struct Streaming {
    /// Its last entry so far, which may be deleted.
    last: Option<StreamId>,
    /// How many entries were told.
    length: u64,
    /// What is pending in the group that is being read: whose it is stands behind all of it.
    pending: Vec<Pending>,
    /// How many of these have found their consumer.
    owned: usize,
}

#[derive(Clone, Debug)]
struct Pending {
    id: StreamId,
    delivered_ms: u64,
    count: u64,
    is_owned: bool,
}

impl Part {
    /// Reads the next part. Whether there was none left.
    pub(super) fn step(
        &mut self,
        cursor: &mut Cursor<'_>,
        items: &mut VecDeque<Item>,
        streaming: &mut Streaming,
    ) -> Result<bool, Fault> {
        *self = match *self {
            Self::Nodes { form, left: 0 } => {
                let item = streaming.about(form, cursor)?;
                let groups = cursor.number()?;
                items.push_back(item);
                Self::Groups { form, left: groups }
            }
            Self::Nodes { form, left } => {
                let first = raw_id(&cursor.string()?)?;
                streaming.node(first, &cursor.string()?, items).ok_or(NODE_DAMAGED)?;
                Self::Nodes { form, left: left - 1 }
            }
            Self::Groups { left: 0, .. } => return Ok(true),
            Self::Groups { form, left } => {
                let name = cursor.string()?.into_owned();
                let last = id(cursor)?;
                let read = match form {
                    Form::StreamUncounted => None,
                    _ => Some(cursor.number()?).filter(|read| *read != UNKNOWN),
                };
                let pending = cursor.number()?;
                items.push_back(Item::Group { name, last, read });
                (streaming.pending, streaming.owned) = (Vec::new(), 0);
                Self::Pending { form, groups: left - 1, left: pending }
            }
            Self::Pending { form, groups, left: 0 } => {
                Self::Consumers { form, groups, left: cursor.number()? }
            }
            Self::Pending { form, groups, left } => {
                streaming.pending(cursor)?;
                Self::Pending { form, groups, left: left - 1 }
            }
            Self::Consumers { form, groups, left: 0 } => {
                if streaming.owned != streaming.pending.len() {
                    return damaged("an entry that is pending for nobody");
                }
                Self::Groups { form, left: groups }
            }
            Self::Consumers { form, groups, left } => {
                let name = cursor.string()?.into_owned();
                // When it was seen, and when it last got something.
                cursor.take(if form == Form::StreamActive { 16 } else { 8 })?;
                let pending = cursor.number()?;
                items.push_back(Item::Consumer(name));
                Self::OfConsumer { form, groups, consumers: left - 1, left: pending }
            }
            Self::OfConsumer { form, groups, consumers, left: 0 } => {
                Self::Consumers { form, groups, left: consumers }
            }
            Self::OfConsumer { form, groups, consumers, left } => {
                items.push_back(streaming.owned(cursor)?);
                Self::OfConsumer { form, groups, consumers, left: left - 1 }
            }
        };
        Ok(false)
    }
}

impl Streaming {
    fn about(&self, form: Form, cursor: &mut Cursor<'_>) -> Result<Item, Fault> {
        let length = cursor.number()?;
        let last = id(cursor)?;
        if length != self.length || self.last.is_some_and(|entry| last < entry) {
            return damaged("a stream that says other than its entries do");
        }
        let (mut max_deleted, mut added) = (None, None);
        if form != Form::StreamUncounted {
            // The first entry is known.
            id(cursor)?;
            max_deleted = Some(id(cursor)?);
            added = Some(cursor.number()?);
        }
        Ok(Item::Stream { length, last, max_deleted, added })
    }

    fn pending(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Fault> {
        let id = raw_id(cursor.take(16)?)?;
        let delivered_ms = u64::from_le_bytes(cursor.chunk()?);
        let count = cursor.number()?;
        if self.pending.last().is_some_and(|before| before.id >= id) {
            return damaged("pending entries in no order");
        }
        self.pending.push(Pending { id, delivered_ms, count, is_owned: false });
        Ok(())
    }

    fn owned(&mut self, cursor: &mut Cursor<'_>) -> Result<Item, Fault> {
        let id = raw_id(cursor.take(16)?)?;
        let found = self.pending.binary_search_by_key(&id, |pending| pending.id);
        let pending =
            found.ok().map(|at| &mut self.pending[at]).filter(|pending| !pending.is_owned);
        let Some(pending) = pending else {
            return damaged("an entry that is pending for a consumer and not for its group");
        };
        pending.is_owned = true;
        self.owned += 1;
        let Pending { delivered_ms, count, .. } = *pending;
        Ok(Item::Pending { id, delivered_ms, count })
    }

    /// Adds the entries of a node. None of them if one is damaged.
    fn node(&mut self, first: StreamId, bytes: &[u8], items: &mut VecDeque<Item>) -> Option<()> {
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
        let (mut entries, mut deleted_found, mut last) = (Vec::new(), 0, self.last);
        while !elements.0.is_empty() {
            let (entry, is_deleted) = elements.entry(first, names)?;
            let Item::Entry { id, .. } = entry else { return None };
            // They are added in this order.
            let ascends = last.is_none_or(|last| last < id) && first <= id;
            if !ascends && !mutant!("rdb_entries_in_any_order") {
                return None;
            }
            last = Some(id);
            match is_deleted {
                true => deleted_found += 1,
                false => entries.push(entry),
            }
        }
        if (entries.len() as i64, deleted_found) != (live, deleted) {
            return None;
        }
        self.last = last;
        self.length += entries.len() as u64;
        items.extend(entries);
        Some(())
    }
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

    /// An entry, and whether it is deleted.
    fn entry(&mut self, first: StreamId, names: &'e [Cow<'a, [u8]>]) -> Option<(Item, bool)> {
        let begin = self.0.len();
        let [flags, ms, seq] = [self.number()?, self.number()?, self.number()?];
        let items: Vec<Vec<u8>> = if flags & SAME_FIELDS != 0 {
            let values = self.take(i64::try_from(names.len()).ok()?)?;
            let pairs = names.iter().zip(values);
            pairs.flat_map(|(name, value)| [name.to_vec(), value.to_vec()]).collect()
        } else {
            let count = self.number()?.checked_mul(2)?;
            self.take(count)?.iter().map(|item| item.to_vec()).collect()
        };
        let elements = begin - self.0.len();
        let id = StreamId {
            ms: first.ms.wrapping_add(ms.cast_unsigned()),
            seq: first.seq.wrapping_add(seq.cast_unsigned()),
        };
        let is_whole = self.number()? == elements as i64 && !items.is_empty();
        is_whole.then_some((Item::Entry { id, items }, flags & DELETED != 0))
    }
}

fn raw_id(bytes: &[u8]) -> Result<StreamId, Fault> {
    let bytes = bytes
        .try_into()
        .map_err(|_| Problem::Damaged("an id of a stream's node of another length"))?;
    let id = u128::from_be_bytes(bytes);
    Ok(StreamId { ms: (id >> 64) as u64, seq: id as u64 })
}

fn id(cursor: &mut Cursor<'_>) -> Result<StreamId, Fault> {
    Ok(StreamId { ms: cursor.number()?, seq: cursor.number()? })
}
