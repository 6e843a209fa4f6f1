//! Values of all forms, item by item.

use alloc::borrow::Cow;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::stream::{self, Streaming};
use super::{Fault, Item, damaged};
use crate::blobs::{integers, zipmap};
use crate::bytes::Cursor;
use crate::error::Problem;
use crate::form::Form;
use crate::listpack::{listpack, ziplist};
use crate::number::{format_integer, parse_integer};

/// A node of a list: one element as it is, or a listpack.
const NODE_PLAIN: u64 = 1;
const NODE_PACKED: u64 = 2;
/// Bytes in which the text of a score says its length; longer ones are those of no number and of the
/// infinities.
const NAN: u8 = 253;
const INFINITE: u8 = 254;
const NEGATIVE_INFINITE: u8 = 255;

const BLOB_DAMAGED: Problem =
    Problem::Damaged("a packed collection whose bytes don't fit together");

/// What is still to be read of a value.
#[derive(Clone, Debug)]
pub(super) enum Value {
    /// A string that holds all of it, or so many such strings.
    Parts {
        form: Form,
        left: u64,
    },
    /// A hash whose fields expire, and the earliest expiry if they are counted from it.
    Expiring {
        earliest: Option<u64>,
        left: u64,
    },
    Stream(stream::Part),
}

impl Value {
    /// Reads what stands before the first part.
    pub(super) fn begin(form: Form, cursor: &mut Cursor<'_>) -> Result<Self, Fault> {
        Ok(match form {
            Form::List
            | Form::Set
            | Form::Hash
            | Form::SortedSet
            | Form::SortedSetText
            | Form::ListZiplists
            | Form::ListListpacks => Self::Parts { form, left: cursor.number()? },
            Form::Stream | Form::StreamUncounted | Form::StreamActive => {
                Self::Stream(stream::Part::Nodes { form, left: cursor.number()? })
            }
            Form::HashExpiring => Self::Expiring {
                earliest: Some(u64::from_le_bytes(cursor.chunk()?)),
                left: cursor.number()?,
            },
            Form::HashExpiringEarly => Self::Expiring { earliest: None, left: cursor.number()? },
            // The earliest expiry stands behind each value as well.
            Form::HashListpackExpiring => {
                cursor.take(8)?;
                Self::Parts { form, left: 1 }
            }
            form => Self::Parts { form, left: 1 },
        })
    }

    /// Reads the next part. Whether there was none left.
    pub(super) fn step(
        &mut self,
        cursor: &mut Cursor<'_>,
        items: &mut VecDeque<Item>,
        streaming: &mut Streaming,
    ) -> Result<bool, Fault> {
        match self {
            Self::Parts { left: 0, .. } | Self::Expiring { left: 0, .. } => return Ok(true),
            Self::Parts { form, left } => {
                read_part(*form, cursor, items)?;
                *left -= 1;
            }
            Self::Expiring { earliest, left } => {
                let expire_at_ms = match (cursor.number()?, *earliest) {
                    (0, _) => None,
                    (at, None) => Some(at),
                    (later, Some(earliest)) => match earliest.checked_add(later - 1) {
                        None => return damaged("a field that expires beyond all time"),
                        at => at,
                    },
                };
                let name = cursor.string()?.into_owned();
                let value = cursor.string()?.into_owned();
                items.push_back(Item::Field { name, value, expire_at_ms });
                *left -= 1;
            }
            Self::Stream(part) => return part.step(cursor, items, streaming),
        }
        Ok(false)
    }
}

fn read_part(form: Form, cursor: &mut Cursor<'_>, items: &mut VecDeque<Item>) -> Result<(), Fault> {
    if form == Form::ListListpacks {
        match cursor.number()? {
            NODE_PLAIN => items.push_back(Item::Element(cursor.string()?.into_owned())),
            NODE_PACKED => blob(form, &cursor.string()?, items)?,
            _ => return damaged("a node of a list of no kind that is known"),
        }
        return Ok(());
    }
    let first = cursor.string()?;
    match form {
        Form::String => items.push_back(Item::String(first.into_owned())),
        Form::List | Form::Set => items.push_back(Item::Element(first.into_owned())),
        Form::Hash => {
            let (name, value) = (first.into_owned(), cursor.string()?.into_owned());
            items.push_back(Item::Field { name, value, expire_at_ms: None });
        }
        Form::SortedSet | Form::SortedSetText => {
            let score = match form {
                Form::SortedSet => f64::from_le_bytes(cursor.chunk()?),
                _ => score_text(cursor)?,
            };
            if score.is_nan() {
                return damaged("a score that is no number");
            }
            items.push_back(Item::Member { member: first.into_owned(), score });
        }
        form => blob(form, &first, items)?,
    }
    Ok(())
}

/// All items of a packed collection, or of a node of a list; none is told if one is damaged.
fn blob(form: Form, bytes: &[u8], items: &mut VecDeque<Item>) -> Result<(), Fault> {
    let mut read = Vec::new();
    let mut collect = |element: Cow<'_, [u8]>| {
        read.push(element.into_owned());
        Some(())
    };
    let is_whole = match form {
        Form::ListZiplist | Form::ListZiplists | Form::HashZiplist | Form::SortedSetZiplist => {
            ziplist(bytes, collect)
        }
        Form::HashZipmap => zipmap(bytes, collect),
        Form::SetIntegers => {
            integers(bytes, |number| collect(Cow::Borrowed(format_integer(number, &mut [0; 20]))))
        }
        _ => listpack(bytes, collect),
    };
    is_whole.ok_or(BLOB_DAMAGED)?;
    let found = items.len();
    let is_complete = match form {
        Form::HashZiplist | Form::HashListpack | Form::HashZipmap => {
            tuples(read, |[name, value]| {
                items.push_back(Item::Field { name, value, expire_at_ms: None });
                Some(())
            })
        }
        Form::HashListpackExpiring | Form::HashListpackExpiringEarly => {
            tuples(read, |[name, value, at]| {
                let at = u64::try_from(parse_integer(&at)?).ok()?;
                let expire_at_ms = Some(at).filter(|at| *at != 0);
                items.push_back(Item::Field { name, value, expire_at_ms });
                Some(())
            })
        }
        Form::SortedSetZiplist | Form::SortedSetListpack => tuples(read, |[member, score]| {
            items.push_back(Item::Member { member, score: parse_score(&score)? });
            Some(())
        }),
        _ => {
            items.extend(read.into_iter().map(Item::Element));
            Some(())
        }
    };
    if is_complete.is_none() {
        items.truncate(found);
    }
    Ok(is_complete.ok_or(BLOB_DAMAGED)?)
}

/// Visits elements in groups. `None` if they don't come out even or the visitor says so.
fn tuples<const N: usize>(
    elements: Vec<Vec<u8>>,
    mut visit: impl FnMut([Vec<u8>; N]) -> Option<()>,
) -> Option<()> {
    if !elements.len().is_multiple_of(N) {
        return None;
    }
    let mut elements = elements.into_iter();
    while elements.len() > 0 {
        visit(core::array::from_fn(|_| elements.next().unwrap_or_default()))?;
    }
    Some(())
}

fn parse_score(text: &[u8]) -> Option<f64> {
    let score: f64 = core::str::from_utf8(text).ok()?.parse().ok()?;
    (!score.is_nan()).then_some(score)
}

fn score_text(cursor: &mut Cursor<'_>) -> Result<f64, Fault> {
    let [length] = cursor.chunk()?;
    Ok(match length {
        NAN => f64::NAN,
        INFINITE => f64::INFINITY,
        NEGATIVE_INFINITE => f64::NEG_INFINITY,
        length => {
            let text = cursor.take(length.into())?;
            parse_score(text).ok_or(Problem::Damaged("a score that is no number"))?
        }
    })
}
