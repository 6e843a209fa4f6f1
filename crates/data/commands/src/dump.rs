//! `DUMP` and `RESTORE`: a value in the form in which Redis writes it to its files, so that it can
//! be taken from one server to another.

use alloc::vec::Vec;

use quorate_machine::{Change, Current};
use quorate_types::{UnixMillis, limits};

use crate::number::{format_integer, integer, parse_integer};
use crate::options::{SYNTAX, is_word};
use crate::string::{Outcome, change_unless_error, set_string};
use crate::{Args, Reply};

/// The version of the form, which ends a payload before its checksum.
const VERSION: u16 = 10;
const FOOTER_BYTES: usize = 2 + 8;
/// The first byte of a payload: what kind of value it is.
const STRING: u8 = 0;

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
pub(crate) fn dump<'a>(
    _: Args<'a>,
    _: UnixMillis,
    current: Current<'a>,
) -> (Reply<'a>, Change<'a>) {
    let Some(content) = current.content else { return (Reply::Null, Change::Keep) };
    let mut out = Vec::with_capacity(content.bytes.len() + 16);
    out.push(STRING);
    write_string(content.bytes, &mut out);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&crc64(&out).to_le_bytes());
    (Reply::Bulk(out.into()), Change::Keep)
}

fn write_string(bytes: &[u8], out: &mut Vec<u8>) {
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
            let length = u32::try_from(bytes.len()).expect("values are bounded");
            match length {
                0..0x40 => out.push(length as u8),
                0x40..0x4000 => {
                    out.extend_from_slice(&[LENGTH_14 | (length >> 8) as u8, length as u8])
                }
                _ => {
                    out.push(LENGTH_32);
                    out.extend_from_slice(&length.to_be_bytes());
                }
            }
            out.extend_from_slice(bytes);
        }
    }
}

pub(crate) fn restore<'a>(
    args: Args<'a>,
    now: UnixMillis,
    current: Current<'a>,
) -> (Reply<'a>, Change<'a>) {
    change_unless_error(try_restore(args, now, current))
}

fn try_restore<'a>(args: Args<'a>, now: UnixMillis, current: Current<'a>) -> Outcome<'a> {
    let (replace, absolute) = options(args)?;
    if !replace && current.content.is_some() {
        return Err(Reply::error("BUSYKEY Target key name already exists."));
    }
    let span = u64::try_from(integer(args.get(2))?)
        .map_err(|_| Reply::error("ERR Invalid TTL value, must be >= 0"))?;
    let bytes = read_payload(args.get(3))?;
    let expire_at = match (span, absolute) {
        (0, _) => None,
        (at, true) => Some(UnixMillis(at)),
        // As in Redis, a key whose span overflows a signed number expires at once.
        (span, false) => {
            let at = now.0.saturating_add(span);
            Some(UnixMillis(if i64::try_from(at).is_ok() { at } else { 0 }))
        }
    };
    Ok((
        Reply::Ok,
        match set_string(bytes, expire_at, now) {
            Change::Delete if current.content.is_none() => Change::Keep,
            change => change,
        },
    ))
}

/// Whether the options say `REPLACE` and `ABSTTL`. Nothing is evicted here, so how long a value has
/// been idle and how often it is used are of no interest.
fn options(args: Args<'_>) -> Result<(bool, bool), Reply<'static>> {
    let (mut replace, mut absolute) = (false, false);
    let (mut idle, mut frequency) = (false, false);
    let mut words = args.iter().skip(4);
    while let Some(word) = words.next() {
        if is_word(word, "REPLACE") {
            replace = true;
        } else if is_word(word, "ABSTTL") {
            absolute = true;
        } else if is_word(word, "IDLETIME") && !frequency {
            if integer(words.next().ok_or(SYNTAX)?)? < 0 {
                return Err(Reply::error("ERR Invalid IDLETIME value, must be >= 0"));
            }
            idle = true;
        } else if is_word(word, "FREQ") && !idle {
            if !(0..=255).contains(&integer(words.next().ok_or(SYNTAX)?)?) {
                return Err(Reply::error("ERR Invalid FREQ value, must be >= 0 and <= 255"));
            }
            frequency = true;
        } else {
            return Err(SYNTAX);
        }
    }
    Ok((replace, absolute))
}

/// The string in a payload.
fn read_payload(payload: &[u8]) -> Result<Vec<u8>, Reply<'static>> {
    const DAMAGED: Reply<'static> = Reply::error("ERR DUMP payload version or checksum are wrong");
    let at = payload.len().checked_sub(FOOTER_BYTES).ok_or(DAMAGED)?;
    let (body, footer) = payload.split_at(at);
    let (version, checksum) = footer.split_first_chunk().ok_or(DAMAGED)?;
    let sum = crc64(&payload[..at + 2]).to_le_bytes();
    if u16::from_le_bytes(*version) > VERSION || *checksum != sum {
        return Err(DAMAGED);
    }
    let string = body.split_first().filter(|(kind, _)| **kind == STRING);
    string
        .and_then(|(_, rest)| read_string(&mut { rest }))
        .filter(|bytes| bytes.len() <= limits::VALUE_BYTES_MAX)
        .ok_or(Reply::error("ERR Bad data format"))
}

fn read_string(input: &mut &[u8]) -> Option<Vec<u8>> {
    let special = input.first().filter(|&&first| first & SPECIAL == SPECIAL).copied();
    let Some(special) = special else {
        let length = read_length(input)?;
        return take(input, length).map(Vec::from);
    };
    take(input, 1)?;
    let number: i64 = match special & !SPECIAL {
        INT_8 => i8::from_le_bytes(chunk(input)?).into(),
        INT_16 => i16::from_le_bytes(chunk(input)?).into(),
        INT_32 => i32::from_le_bytes(chunk(input)?).into(),
        COMPRESSED => {
            let (compressed, length) = (read_length(input)?, read_length(input)?);
            return decompress(take(input, compressed)?, length);
        }
        _ => return None,
    };
    Some(format_integer(number, &mut [0; 20]).into())
}

fn read_length(input: &mut &[u8]) -> Option<usize> {
    let [first] = chunk(input)?;
    match first {
        LENGTH_32 => usize::try_from(u32::from_be_bytes(chunk(input)?)).ok(),
        LENGTH_64 => usize::try_from(u64::from_be_bytes(chunk(input)?)).ok(),
        0..0x40 => Some(first.into()),
        0x40..0x80 => {
            let [second] = chunk(input)?;
            Some(usize::from(first & 0x3f) << 8 | usize::from(second))
        }
        _ => None,
    }
}

fn take<'a>(input: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, rest) = input.split_at_checked(count)?;
    *input = rest;
    Some(taken)
}

fn chunk<const N: usize>(input: &mut &[u8]) -> Option<[u8; N]> {
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

/// The checksum of Redis's files: the polynomial of Jones, bits reflected.
fn crc64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |crc, byte| CRC64[usize::from(crc as u8 ^ byte)] ^ crc >> 8)
}

static CRC64: [u64; 256] = {
    const POLYNOMIAL: u64 = 0xad93_d235_94c9_35a9;
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u64;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 != 0 { crc >> 1 ^ POLYNOMIAL.reverse_bits() } else { crc >> 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_redis() {
        assert_eq!(crc64(b"123456789"), 0xe9c6_d914_c4b8_d9ca);
    }

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
