//! Deltas: what changes in a collection, as bytes.
//!
//! ```text
//! step* = PUT item item      a field of a hash gets this value
//!       | ADD item           a set gets this member
//!       | SCORE f64 item     a member of a sorted set gets this score
//!       | REMOVE item        a field or a member goes
//!       | CUT u32 u32        so many items of a list go, from this number on
//!       | INSERT u32 u32 item*   so many items come before the one with this number
//!       | FORM u8            the form of the packed bytes is this one from now on
//!       | COUNTERS 44 bytes  a stream counts this from now on
//!       | GROUP item splice  bytes of the group with this name are replaced
//!       | CHUNK u64 u64 splice   bytes of the chunk that begins with this id are replaced
//! splice = u32 u32 u32 bytes from this number on so many bytes go, and so many come
//! ```
//! Steps are absolute, and happen one after the other: numbers of items are those at that moment.

use alloc::vec::Vec;

use crate::packed::{self, Items};
use crate::stream::{COUNTERS_BYTES, Splice};
use crate::{Entry, ValueKind};

const PUT: u8 = 1;
const ADD: u8 = 2;
const SCORE: u8 = 3;
const REMOVE: u8 = 4;
const CUT: u8 = 5;
const INSERT: u8 = 6;
const FORM: u8 = 7;
const COUNTERS: u8 = 8;
const GROUP: u8 = 9;
const CHUNK: u8 = 10;

/// One step of a delta.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Step<'a> {
    /// A field of a hash gets a value.
    Put {
        /// The field.
        field: &'a [u8],
        /// The value.
        value: &'a [u8],
    },
    /// A set gets a member.
    Add(&'a [u8]),
    /// A member of a sorted set gets a score.
    Score(Entry<'a>),
    /// A field or a member goes.
    Remove(&'a [u8]),
    /// Items of a list go.
    Cut {
        /// The number of the first of them.
        at: usize,
        /// How many.
        count: usize,
    },
    /// A list gets items, before the one with this number.
    Insert {
        /// The number of the first of them, from now on.
        at: usize,
        /// How many.
        count: usize,
        /// They, packed.
        items: &'a [u8],
    },
    /// The form of the packed bytes is this one from now on.
    Form(u8),
    /// A stream counts this from now on.
    Counters(&'a [u8; COUNTERS_BYTES]),
    /// Bytes of a group of a stream are replaced.
    Group {
        /// The name of the group.
        name: &'a [u8],
        /// Which bytes, and by what.
        splice: Splice<'a>,
    },
    /// Bytes of a chunk of a stream are replaced.
    Chunk {
        /// The id with which the chunk begins, the milliseconds in the upper half.
        first: u128,
        /// Which bytes, and by what.
        splice: Splice<'a>,
    },
}

/// A delta that is being written.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Delta {
    bytes: Vec<u8>,
}

impl Delta {
    /// One that changes nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Its bytes.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Appends a step.
    pub fn push(&mut self, step: Step<'_>) {
        write(step, &mut self.bytes);
    }

    /// Appends a step by which a list gets these items.
    pub fn insert<'i>(&mut self, at: usize, items: impl Iterator<Item = &'i [u8]>) {
        let (mut packed, mut count) = (Vec::new(), 0);
        for item in items {
            packed::put_item(item, &mut packed);
            count += 1;
        }
        self.push(Step::Insert { at, count, items: &packed });
    }
}

/// Appends the bytes of a step.
pub(crate) fn write(step: Step<'_>, out: &mut Vec<u8>) {
    let number =
        |number: usize| u32::try_from(number).expect("limits bound a collection").to_le_bytes();
    match step {
        Step::Put { field, value } => {
            out.push(PUT);
            packed::put_item(field, out);
            packed::put_item(value, out);
        }
        Step::Add(member) => {
            out.push(ADD);
            packed::put_item(member, out);
        }
        Step::Score(Entry { score, member }) => {
            out.push(SCORE);
            out.extend_from_slice(&score.to_le_bytes());
            packed::put_item(member, out);
        }
        Step::Remove(name) => {
            out.push(REMOVE);
            packed::put_item(name, out);
        }
        Step::Cut { at, count } => {
            out.push(CUT);
            out.extend_from_slice(&number(at));
            out.extend_from_slice(&number(count));
        }
        Step::Insert { at, count, items } => {
            out.push(INSERT);
            out.extend_from_slice(&number(at));
            out.extend_from_slice(&number(count));
            out.extend_from_slice(items);
        }
        Step::Form(form) => out.extend_from_slice(&[FORM, form]),
        Step::Counters(counters) => {
            out.push(COUNTERS);
            out.extend_from_slice(counters);
        }
        Step::Group { name, splice } => {
            out.push(GROUP);
            packed::put_item(name, out);
            write_splice(splice, out);
        }
        Step::Chunk { first, splice } => {
            out.push(CHUNK);
            out.extend_from_slice(&((first >> u64::BITS) as u64).to_le_bytes());
            out.extend_from_slice(&(first as u64).to_le_bytes());
            write_splice(splice, out);
        }
    }
}

fn write_splice(splice: Splice<'_>, out: &mut Vec<u8>) {
    for number in [splice.at, splice.cut, splice.put.len()] {
        let number = u32::try_from(number).expect("limits bound a collection");
        out.extend_from_slice(&number.to_le_bytes());
    }
    out.extend_from_slice(splice.put);
}

/// The first splice of these bytes, and the rest.
fn split_splice(bytes: &[u8]) -> Option<(Splice<'_>, &[u8])> {
    let (at, rest) = bytes.split_first_chunk()?;
    let (cut, rest) = rest.split_first_chunk()?;
    let (put, rest) = rest.split_first_chunk()?;
    let [at, cut, put] = [at, cut, put].map(|bytes| u32::from_le_bytes(*bytes) as usize);
    let (put, rest) = rest.split_at_checked(put)?;
    Some((Splice { at, cut, put }, rest))
}

impl<'a> Step<'a> {
    /// The first step of these bytes, and the rest. `None` if they are damaged.
    pub(crate) fn split_first(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (&tag, rest) = bytes.split_first()?;
        match tag {
            PUT => {
                let mut items = Items { rest };
                let (field, value) = (items.next()?, items.next()?);
                Some((Step::Put { field, value }, items.rest))
            }
            ADD | REMOVE => {
                let mut items = Items { rest };
                let name = items.next()?;
                let step = if tag == ADD { Step::Add(name) } else { Step::Remove(name) };
                Some((step, items.rest))
            }
            SCORE => {
                let (entry, rest) = Entry::split_first(rest)?;
                Some((Step::Score(entry), rest))
            }
            CUT | INSERT => {
                let (at, rest) = rest.split_first_chunk()?;
                let (count, rest) = rest.split_first_chunk()?;
                let [at, count] = [at, count].map(|bytes| u32::from_le_bytes(*bytes) as usize);
                if tag == CUT {
                    return Some((Step::Cut { at, count }, rest));
                }
                let mut items = Items { rest };
                if items.by_ref().take(count).count() < count {
                    return None;
                }
                let inserted = &rest[..rest.len() - items.rest.len()];
                Some((Step::Insert { at, count, items: inserted }, items.rest))
            }
            FORM => {
                let (&form, rest) = rest.split_first()?;
                Some((Step::Form(form), rest))
            }
            COUNTERS => {
                let (counters, rest) = rest.split_first_chunk()?;
                Some((Step::Counters(counters), rest))
            }
            GROUP => {
                let mut items = Items { rest };
                let name = items.next()?;
                let (splice, rest) = split_splice(items.rest)?;
                Some((Step::Group { name, splice }, rest))
            }
            CHUNK => {
                let (ms, rest) = rest.split_first_chunk()?;
                let (seq, rest) = rest.split_first_chunk()?;
                let [ms, seq] = [ms, seq].map(|bytes| u128::from(u64::from_le_bytes(*bytes)));
                let (splice, rest) = split_splice(rest)?;
                Some((Step::Chunk { first: ms << u64::BITS | seq, splice }, rest))
            }
            _ => None,
        }
    }

    /// Whether a collection of this kind and so many items can take this step. Then `length` is how many
    /// a list has behind it.
    pub(crate) fn fits(&self, kind: ValueKind, length: &mut usize) -> bool {
        match *self {
            Self::Put { .. } => kind == ValueKind::Hash,
            Self::Add(_) => kind == ValueKind::Set,
            Self::Score(_) => kind == ValueKind::SortedSet,
            Self::Remove(_) => {
                matches!(kind, ValueKind::Hash | ValueKind::Set | ValueKind::SortedSet)
            }
            Self::Cut { at, count } => {
                let fits = kind == ValueKind::List && at.saturating_add(count) <= *length;
                *length = length.saturating_sub(count);
                fits
            }
            Self::Insert { at, count, .. } => {
                let fits = kind == ValueKind::List && at <= *length;
                *length = length.saturating_add(count);
                fits
            }
            Self::Form(form) => match kind {
                ValueKind::Hash => form & packed::EXPIRING == 0,
                _ => kind != ValueKind::Stream,
            },
            Self::Counters(_) | Self::Group { .. } | Self::Chunk { .. } => {
                kind == ValueKind::Stream
            }
        }
    }
}
