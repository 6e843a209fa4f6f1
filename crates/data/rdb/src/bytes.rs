//! Lengths and strings of Redis's files.

use alloc::borrow::Cow;
use alloc::vec::Vec;

use crate::limits::STRING_BYTES_MAX;
use crate::lzf;
use crate::number::{format_integer, parse_integer};

/// What the upper two bits of the first byte of a string say, and the lower six where these say
/// that the string is in a special form.
const LENGTH_14: u8 = 0x40;
const LENGTH_32: u8 = 0x80;
const LENGTH_64: u8 = 0x81;
const SPECIAL: u8 = 0xc0;
const INT_8: u8 = 0;
const INT_16: u8 = 1;
const INT_32: u8 = 2;
const COMPRESSED: u8 = 3;
/// Longer strings aren't tried as integers.
const INTEGER_BYTES_MAX: usize = 11;

/// Writes a string, never compressed, which every Redis reads as well.
pub fn write_string(bytes: &[u8], out: &mut Vec<u8>) {
    let number = Some(bytes).filter(|bytes| bytes.len() <= INTEGER_BYTES_MAX);
    match number.and_then(parse_integer).and_then(|number| i32::try_from(number).ok()) {
        Some(number) => {
            if let Ok(number) = i8::try_from(number) {
                out.push(SPECIAL | INT_8);
                out.extend_from_slice(&number.to_le_bytes());
            } else if let Ok(number) = i16::try_from(number) {
                out.push(SPECIAL | INT_16);
                out.extend_from_slice(&number.to_le_bytes());
            } else {
                out.push(SPECIAL | INT_32);
                out.extend_from_slice(&number.to_le_bytes());
            }
        }
        None => {
            write_number(bytes.len() as u64, out);
            out.extend_from_slice(bytes);
        }
    }
}

/// Writes a length.
pub fn write_length(length: usize, out: &mut Vec<u8>) {
    write_number(length as u64, out);
}

/// Writes a number in the form of a length.
pub fn write_number(number: u64, out: &mut Vec<u8>) {
    match (number, u32::try_from(number)) {
        (0..0x40, _) => out.push(number as u8),
        (0x40..0x4000, _) => {
            out.extend_from_slice(&[LENGTH_14 | (number >> 8) as u8, number as u8]);
        }
        (_, Ok(number)) => {
            out.push(LENGTH_32);
            out.extend_from_slice(&number.to_be_bytes());
        }
        _ => {
            out.push(LENGTH_64);
            out.extend_from_slice(&number.to_be_bytes());
        }
    }
}

/// Writes a number in the form of a length, in 1, 2 or 5 bytes, though fewer might do.
pub(crate) fn write_number_wide(number: u64, width: usize, out: &mut Vec<u8>) {
    match width {
        1 => out.push(number as u8),
        2 => out.extend_from_slice(&[LENGTH_14 | (number >> 8) as u8, number as u8]),
        _ => {
            out.push(LENGTH_32);
            out.extend_from_slice(&(number as u32).to_be_bytes());
        }
    }
}

/// Why nothing was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// The bytes end before what begins in them, which needs at least so many more.
    Short(u64),
    /// Redis never writes such bytes.
    Wrong(&'static str),
}

/// What is still to be read of some bytes.
pub struct Cursor<'a> {
    /// The bytes.
    pub rest: &'a [u8],
    /// How many bytes compressed strings may still become: some can stand for a hundred times as many.
    pub room: usize,
}

impl<'a> Cursor<'a> {
    /// At the beginning of bytes whose compressed strings may have so many bytes together.
    pub fn new(rest: &'a [u8], room: usize) -> Self {
        Self { rest, room }
    }

    /// The next bytes.
    ///
    /// # Errors
    /// Unless there are so many.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], Stop> {
        let short = Stop::Short((count as u64).saturating_sub(self.rest.len() as u64));
        take(&mut self.rest, count).ok_or(short)
    }

    /// The same, in an array.
    ///
    /// # Errors
    /// Unless there are so many.
    pub fn chunk<const N: usize>(&mut self) -> Result<[u8; N], Stop> {
        let short = Stop::Short(N.saturating_sub(self.rest.len()) as u64);
        chunk(&mut self.rest).ok_or(short)
    }

    /// A number in the form of a length.
    ///
    /// # Errors
    /// Unless there is one.
    pub fn number(&mut self) -> Result<u64, Stop> {
        let [first] = self.chunk()?;
        match first {
            LENGTH_32 => Ok(u32::from_be_bytes(self.chunk()?).into()),
            LENGTH_64 => Ok(u64::from_be_bytes(self.chunk()?)),
            0..0x40 => Ok(first.into()),
            0x40..0x80 => {
                let [second] = self.chunk()?;
                Ok(u64::from(first & 0x3f) << 8 | u64::from(second))
            }
            _ => Err(Stop::Wrong("a byte that begins no length")),
        }
    }

    /// A length, which no memory could hold if it were no number of this machine.
    ///
    /// # Errors
    /// Unless there is one.
    pub fn length(&mut self) -> Result<usize, Stop> {
        usize::try_from(self.number()?).map_err(|_| Stop::Wrong("a length beyond all memory"))
    }

    /// A string in any of its forms.
    ///
    /// # Errors
    /// Unless there is one, of a length that a string may have.
    pub fn string(&mut self) -> Result<Cow<'a, [u8]>, Stop> {
        let special = self.rest.first().filter(|&&first| first & SPECIAL == SPECIAL).copied();
        let Some(special) = special else {
            let length = bounded(self.length()?)?;
            return self.take(length).map(Cow::Borrowed);
        };
        self.take(1)?;
        let number: i64 = match special & !SPECIAL {
            INT_8 => i8::from_le_bytes(self.chunk()?).into(),
            INT_16 => i16::from_le_bytes(self.chunk()?).into(),
            INT_32 => i32::from_le_bytes(self.chunk()?).into(),
            COMPRESSED => return self.compressed().map(Cow::Owned),
            _ => return Err(Stop::Wrong("a string in a form that Redis does not have")),
        };
        Ok(Cow::Owned(format_integer(number, &mut [0; 20]).into()))
    }

    fn compressed(&mut self) -> Result<Vec<u8>, Stop> {
        let (compressed, length) = (bounded(self.length()?)?, bounded(self.length()?)?);
        let compressed = self.take(compressed)?;
        const TOO_LONG: Stop = Stop::Wrong("compressed strings that are too long together");
        self.room = self.room.checked_sub(length).ok_or(TOO_LONG)?;
        lzf::decompress(compressed, length).ok_or(Stop::Wrong("a damaged compressed string"))
    }
}

fn bounded(length: usize) -> Result<usize, Stop> {
    if length > STRING_BYTES_MAX {
        return Err(Stop::Wrong("a string longer than 512 MiB (STRING_BYTES_MAX)"));
    }
    Ok(length)
}

/// Takes bytes away, unless there are fewer.
pub fn take<'a>(input: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, rest) = input.split_at_checked(count)?;
    *input = rest;
    Some(taken)
}

/// The same, in an array.
pub fn chunk<const N: usize>(input: &mut &[u8]) -> Option<[u8; N]> {
    take(input, N)?.try_into().ok()
}
