//! Listpacks and ziplists: the forms in which Redis keeps small collections and writes them to its files.
//!
//! Every element is a string. One that is an integer in its only decimal form is written as one.

use alloc::borrow::Cow;
use alloc::vec::Vec;

use crate::bytes::{chunk, take};
use crate::number::{format_integer, parse_integer};

/// Bytes before the elements of a listpack: those of all of it, and how many elements there are.
pub const LISTPACK_HEADER_BYTES: usize = 4 + 2;
/// A number of elements that says that nobody knows it.
const UNKNOWN: u16 = u16::MAX;
const END: u8 = 0xff;
/// Bytes before the elements of a ziplist: those of all of it, where the last is, how many there are.
const ZIPLIST_HEADER_BYTES: usize = 4 + 4 + 2;

/// A listpack that is being written.
#[derive(Debug)]
pub struct Listpack {
    bytes: Vec<u8>,
    count: usize,
}

impl Default for Listpack {
    fn default() -> Self {
        Self::new()
    }
}

impl Listpack {
    /// One without elements.
    pub fn new() -> Self {
        Self { bytes: Vec::from([0; LISTPACK_HEADER_BYTES]), count: 0 }
    }

    /// Bytes of all of it, its end included.
    pub fn len(&self) -> usize {
        self.bytes.len() + 1
    }

    /// Whether it has no elements yet.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds an element.
    pub fn push(&mut self, element: &[u8]) {
        let start = self.bytes.len();
        match parse_integer(element) {
            Some(number) => self.integer(number),
            None => self.string(element),
        }
        backwards(self.bytes.len() - start, &mut self.bytes);
        self.count += 1;
    }

    fn integer(&mut self, number: i64) {
        let bytes = number.to_le_bytes();
        let (mark, width) = match number {
            0..=127 => return self.bytes.push(number as u8),
            -4096..=4095 => {
                let number = number as u16 & 0x1fff;
                return self.bytes.extend_from_slice(&[0xc0 | (number >> 8) as u8, number as u8]);
            }
            -0x8000..=0x7fff => (0xf1, 2),
            -0x80_0000..=0x7f_ffff => (0xf2, 3),
            -0x8000_0000..=0x7fff_ffff => (0xf3, 4),
            _ => (0xf4, 8),
        };
        self.bytes.push(mark);
        self.bytes.extend_from_slice(&bytes[..width]);
    }

    fn string(&mut self, element: &[u8]) {
        let length = u32::try_from(element.len()).expect("values are bounded");
        match length {
            0..64 => self.bytes.push(0x80 | length as u8),
            64..4096 => self.bytes.extend_from_slice(&[0xe0 | (length >> 8) as u8, length as u8]),
            _ => {
                self.bytes.push(0xf0);
                self.bytes.extend_from_slice(&length.to_le_bytes());
            }
        }
        self.bytes.extend_from_slice(element);
    }

    /// Its bytes.
    pub fn finish(mut self) -> Vec<u8> {
        self.bytes.push(END);
        let length = u32::try_from(self.bytes.len()).expect("values are bounded");
        let count = u16::try_from(self.count).unwrap_or(UNKNOWN);
        self.bytes[..4].copy_from_slice(&length.to_le_bytes());
        self.bytes[4..6].copy_from_slice(&count.to_le_bytes());
        self.bytes
    }
}

/// Visits the elements of a listpack. `None` if it is damaged or the visitor says so.
pub fn listpack<'a>(bytes: &'a [u8], visit: impl FnMut(Cow<'a, [u8]>) -> Option<()>) -> Option<()> {
    let mut rest = bytes;
    let length = u32::from_le_bytes(chunk(&mut rest)?);
    let count = u16::from_le_bytes(chunk(&mut rest)?);
    if length as usize != bytes.len() {
        return None;
    }
    elements(rest, (count != UNKNOWN).then_some(count), listpack_element, visit)
}

/// The same of a ziplist.
pub fn ziplist(bytes: &[u8], visit: impl FnMut(Cow<'_, [u8]>) -> Option<()>) -> Option<()> {
    let length = u32::from_le_bytes(*bytes.first_chunk()?);
    let count = u16::from_le_bytes(*bytes.get(8..)?.first_chunk()?);
    let rest = bytes.get(ZIPLIST_HEADER_BYTES..)?;
    if length as usize != bytes.len() {
        return None;
    }
    elements(rest, (count != UNKNOWN).then_some(count), ziplist_element, visit)
}

fn elements<'a>(
    mut rest: &'a [u8],
    count: Option<u16>,
    element: fn(&mut &'a [u8]) -> Option<Cow<'a, [u8]>>,
    mut visit: impl FnMut(Cow<'a, [u8]>) -> Option<()>,
) -> Option<()> {
    let mut seen = 0;
    while *rest.first()? != END {
        visit(element(&mut rest)?)?;
        seen += 1;
    }
    (rest.len() == 1 && count.is_none_or(|count| usize::from(count) == seen)).then_some(())
}

fn listpack_element<'a>(rest: &mut &'a [u8]) -> Option<Cow<'a, [u8]>> {
    let whole = *rest;
    let [mark] = chunk(rest)?;
    let element = match mark {
        0..0x80 => text(mark.into()),
        0x80..0xc0 => take(rest, usize::from(mark & 0x3f))?.into(),
        0xc0..0xe0 => {
            let [low] = chunk(rest)?;
            let number = i64::from(mark & 0x1f) << 8 | i64::from(low);
            text(if number < 4096 { number } else { number - 8192 })
        }
        0xe0..0xf0 => {
            let [low] = chunk(rest)?;
            take(rest, usize::from(mark & 0xf) << 8 | usize::from(low))?.into()
        }
        0xf0 => {
            let length = u32::from_le_bytes(chunk(rest)?);
            take(rest, length as usize)?.into()
        }
        0xf1 => text(integer(take(rest, 2)?)),
        0xf2 => text(integer(take(rest, 3)?)),
        0xf3 => text(integer(take(rest, 4)?)),
        0xf4 => text(integer(take(rest, 8)?)),
        0xf5.. => return None,
    };
    let mut length = Vec::with_capacity(5);
    backwards(whole.len() - rest.len(), &mut length);
    (take(rest, length.len())? == length).then_some(element)
}

/// The length of an element, so that a listpack can be walked from behind: seven bits to a byte, the
/// highest first.
fn backwards(length: usize, out: &mut Vec<u8>) {
    let more = match length {
        0..=127 => 0,
        128..16_383 => 1,
        16_383..2_097_151 => 2,
        2_097_151..268_435_455 => 3,
        _ => 4,
    };
    out.push((length >> (7 * more)) as u8);
    (0..more).rev().for_each(|at| out.push((length >> (7 * at)) as u8 | 0x80));
}

fn ziplist_element<'a>(rest: &mut &'a [u8]) -> Option<Cow<'a, [u8]>> {
    // The length of the element before, in one byte or five.
    let [before] = chunk(rest)?;
    if before == 0xfe {
        take(rest, 4)?;
    }
    let [mark] = chunk(rest)?;
    Some(match mark {
        0..0x40 => take(rest, mark.into())?.into(),
        0x40..0x80 => {
            let [low] = chunk(rest)?;
            take(rest, usize::from(mark & 0x3f) << 8 | usize::from(low))?.into()
        }
        0x80 => {
            let length = u32::from_be_bytes(chunk(rest)?);
            take(rest, length as usize)?.into()
        }
        0xc0 => text(integer(take(rest, 2)?)),
        0xd0 => text(integer(take(rest, 4)?)),
        0xe0 => text(integer(take(rest, 8)?)),
        0xf0 => text(integer(take(rest, 3)?)),
        0xfe => text(integer(take(rest, 1)?)),
        0xf1..=0xfd => text(i64::from(mark & 0xf) - 1),
        _ => return None,
    })
}

/// A signed number of at most eight bytes, the lowest first.
fn integer(bytes: &[u8]) -> i64 {
    let unused = 64 - 8 * bytes.len() as u32;
    let number = bytes.iter().rev().fold(0, |number, byte| number << 8 | i64::from(*byte));
    number << unused >> unused
}

fn text<'a>(number: i64) -> Cow<'a, [u8]> {
    format_integer(number, &mut [0; 20]).to_vec().into()
}
