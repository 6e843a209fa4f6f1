//! Strings and lengths in Redis's files.

use alloc::borrow::Cow;
use alloc::vec::Vec;

use quorate_types::limits;

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

/// Never compressed, which every Redis reads as well.
pub(crate) fn write_string(bytes: &[u8], out: &mut Vec<u8>) {
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
            write_length(bytes.len(), out);
            out.extend_from_slice(bytes);
        }
    }
}

pub(crate) fn write_length(length: usize, out: &mut Vec<u8>) {
    write_number(length as u64, out);
}

/// A number in the form of a length.
pub(crate) fn write_number(number: u64, out: &mut Vec<u8>) {
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

/// What is left to read of a payload, and how many bytes its compressed strings may still become: some
/// bytes can stand for a hundred times as many.
pub(crate) struct Reader<'a> {
    pub(crate) rest: &'a [u8],
    pub(crate) room: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(rest: &'a [u8]) -> Self {
        Self { rest, room: 2 * limits::VALUE_BYTES_MAX }
    }

    pub(crate) fn length(&mut self) -> Option<usize> {
        read_length(&mut self.rest)
    }

    /// What [`write_number`] wrote.
    pub(crate) fn number(&mut self) -> Option<u64> {
        read_number(&mut self.rest)
    }

    pub(crate) fn string(&mut self) -> Option<Cow<'a, [u8]>> {
        let input = &mut self.rest;
        let special = input.first().filter(|&&first| first & SPECIAL == SPECIAL).copied();
        let Some(special) = special else {
            let length = read_length(input)?;
            return take(input, length).map(Cow::Borrowed);
        };
        take(input, 1)?;
        let number: i64 = match special & !SPECIAL {
            INT_8 => i8::from_le_bytes(chunk(input)?).into(),
            INT_16 => i16::from_le_bytes(chunk(input)?).into(),
            INT_32 => i32::from_le_bytes(chunk(input)?).into(),
            COMPRESSED => {
                let (compressed, length) = (read_length(input)?, read_length(input)?);
                self.room = self.room.checked_sub(length)?;
                return decompress(take(input, compressed)?, length).map(Cow::Owned);
            }
            _ => return None,
        };
        Some(Cow::Owned(format_integer(number, &mut [0; 20]).into()))
    }
}

fn read_length(input: &mut &[u8]) -> Option<usize> {
    usize::try_from(read_number(input)?).ok()
}

fn read_number(input: &mut &[u8]) -> Option<u64> {
    let [first] = chunk(input)?;
    match first {
        LENGTH_32 => Some(u32::from_be_bytes(chunk(input)?).into()),
        LENGTH_64 => Some(u64::from_be_bytes(chunk(input)?)),
        0..0x40 => Some(first.into()),
        0x40..0x80 => {
            let [second] = chunk(input)?;
            Some(u64::from(first & 0x3f) << 8 | u64::from(second))
        }
        _ => None,
    }
}

pub(crate) fn take<'a>(input: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, rest) = input.split_at_checked(count)?;
    *input = rest;
    Some(taken)
}

pub(crate) fn chunk<const N: usize>(input: &mut &[u8]) -> Option<[u8; N]> {
    take(input, N)?.try_into().ok()
}

/// LZF: runs of bytes as they are, and copies of up to 264 bytes from up to 8 KiB before.
fn decompress(mut input: &[u8], length: usize) -> Option<Vec<u8>> {
    // Two bytes and a third give at most 264.
    if length > limits::VALUE_BYTES_MAX || length / 264 > input.len() {
        return None;
    }
    let mut out = Vec::with_capacity(length);
    while !input.is_empty() {
        let [control] = chunk(&mut input)?;
        if control < 0x20 {
            out.extend_from_slice(take(&mut input, usize::from(control) + 1)?);
        } else {
            let mut count = usize::from(control >> 5) + 2;
            if control >> 5 == 7 {
                let [more] = chunk(&mut input)?;
                count += usize::from(more);
            }
            let [low] = chunk(&mut input)?;
            let distance = (usize::from(control & 0x1f) << 8 | usize::from(low)) + 1;
            let from = out.len().checked_sub(distance)?;
            // A copy may run into itself.
            (from..from + count).for_each(|at| out.push(out[at]));
        }
        if out.len() > length {
            return None;
        }
    }
    (out.len() == length).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_compressed_strings_are_refused() {
        let whole = b"\x03abca\xe0\x2d\x02\x01bc";
        assert_eq!(decompress(whole, 60).as_deref(), Some(&b"abc".repeat(20)[..]));
        for cut in 0..whole.len() {
            assert_eq!(decompress(&whole[..cut], 60), None);
        }
        assert_eq!(decompress(whole, 59), None);
        assert_eq!(decompress(b"\x00a\x20\x01", 4), None, "from before the beginning");
        assert_eq!(decompress(b"\x00a", usize::MAX), None);
    }
}
