//! Commands on a string as an array of bits, the most significant bit of each byte first.

use alloc::vec;
use alloc::vec::Vec;

use quorate_machine::{Access, Change, Current, ValueKind, Workspace};
use quorate_types::{UnixMillis, limits};

use crate::number::{integer, parse_integer};
use crate::options::{SYNTAX, is_word};
use crate::string::{
    Outcome, bytes_of, change_unless_error, clamp_range, replace_string, string_of,
};
use crate::{Args, Reply};

/// Where a bit lies.
struct Place {
    byte: usize,
    mask: u8,
}

impl Place {
    fn parse(argument: &[u8]) -> Result<Self, Reply<'static>> {
        let offset = parse_integer(argument).and_then(|offset| u64::try_from(offset).ok());
        match offset {
            Some(offset) if offset >> 3 < limits::VALUE_BYTES_MAX as u64 => {
                Ok(Self { byte: (offset >> 3) as usize, mask: 0x80 >> (offset & 7) })
            }
            _ => Err(Reply::error("ERR bit offset is not an integer or out of range")),
        }
    }

    fn of(&self, bytes: &[u8]) -> bool {
        bytes.get(self.byte).is_some_and(|byte| byte & self.mask != 0)
    }
}

pub(crate) fn getbit<'a>(
    args: Args<'a>,
    _: UnixMillis,
    current: Current<'a>,
) -> (Reply<'a>, Change<'a>) {
    let bit = Place::parse(args.get(2)).and_then(|place| Ok(place.of(bytes_of(current)?)));
    (bit.map_or_else(|error| error, |bit| Reply::Int(i64::from(bit))), Change::Keep)
}

pub(crate) fn setbit<'a>(
    args: Args<'a>,
    _: UnixMillis,
    current: Current<'a>,
) -> (Reply<'a>, Change<'a>) {
    change_unless_error(try_setbit(args, current))
}

fn try_setbit<'a>(args: Args<'a>, current: Current<'a>) -> Outcome<'a> {
    let place = Place::parse(args.get(2))?;
    let on = match args.get(3) {
        b"0" => false,
        b"1" => true,
        _ => return Err(Reply::error("ERR bit is not an integer or out of range")),
    };
    let old = bytes_of(current)?;
    let was = place.of(old);
    if was == on && place.byte < old.len() {
        // As in Redis, a bit that stays as it is doesn't count as a change for `WATCH`.
        return Ok((Reply::Int(i64::from(was)), Change::Keep));
    }
    let mut bytes = vec![0; old.len().max(place.byte + 1)];
    bytes[..old.len()].copy_from_slice(old);
    if on {
        bytes[place.byte] |= place.mask;
    } else {
        bytes[place.byte] &= !place.mask;
    }
    Ok((Reply::Int(i64::from(was)), replace_string(bytes, current)))
}

pub(crate) fn bitcount<'a>(
    args: Args<'a>,
    _: UnixMillis,
    current: Current<'a>,
) -> (Reply<'a>, Change<'a>) {
    let count = try_bitcount(args, current);
    (count.map_or_else(|error| error, |count| Reply::Int(count as i64)), Change::Keep)
}

fn try_bitcount(args: Args<'_>, current: Current<'_>) -> Result<u64, Reply<'static>> {
    // An absent key has no bits whatever the other arguments say, as in Redis.
    let Some(bytes) = string_of(current)? else { return Ok(0) };
    let (start, end, unit) = match args.len() {
        2 => return Ok(count_ones(bytes)),
        4 => (args.get(2), args.get(3), None),
        5 => (args.get(2), args.get(3), Some(args.get(4))),
        _ => return Err(SYNTAX),
    };
    let (start, end) = (integer(start)?, integer(end)?);
    if start < 0 && end < 0 && start > end {
        return Ok(0);
    }
    let in_bits = match unit {
        None => false,
        Some(word) if is_word(word, "BYTE") => false,
        Some(word) if is_word(word, "BIT") => true,
        Some(_) => return Err(SYNTAX),
    };
    if !in_bits {
        let (start, end) = clamp_range(start, end, bytes.len());
        return Ok(count_ones(&bytes[start..end]));
    }
    let (start, end) = clamp_range(start, end, bytes.len() * 8);
    Ok(count_bits(bytes, start, end))
}

fn count_ones(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks();
    let in_words: u64 =
        words.iter().map(|word| u64::from(u64::from_ne_bytes(*word).count_ones())).sum();
    in_words + rest.iter().map(|byte| u64::from(byte.count_ones())).sum::<u64>()
}

/// Counts the bits from `start` to before `end`.
fn count_bits(bytes: &[u8], start: usize, end: usize) -> u64 {
    if start == end {
        return 0;
    }
    let (first, last) = (start / 8, (end - 1) / 8);
    let before = bytes[first] & !(0xff >> (start % 8));
    let after = bytes[last] & (0x7f >> ((end - 1) % 8));
    count_ones(&bytes[first..=last]) - u64::from(before.count_ones() + after.count_ones())
}

pub(crate) fn bitpos<'a>(
    args: Args<'a>,
    _: UnixMillis,
    current: Current<'a>,
) -> (Reply<'a>, Change<'a>) {
    (try_bitpos(args, current).map_or_else(|error| error, Reply::Int), Change::Keep)
}

fn try_bitpos(args: Args<'_>, current: Current<'_>) -> Result<i64, Reply<'static>> {
    let wanted = match integer(args.get(2))? {
        0 => false,
        1 => true,
        _ => return Err(Reply::error("ERR The bit argument must be 1 or 0.")),
    };
    // An absent key is zeros without end whatever the other arguments say, as in Redis.
    let Some(bytes) = string_of(current)? else { return Ok(if wanted { -1 } else { 0 }) };
    if args.len() > 6 {
        return Err(SYNTAX);
    }
    let start = if args.len() > 3 { integer(args.get(3))? } else { 0 };
    let in_bits = match args.iter().nth(5) {
        None => false,
        Some(word) if is_word(word, "BIT") => true,
        Some(word) if is_word(word, "BYTE") => false,
        Some(_) => return Err(SYNTAX),
    };
    let end = args.iter().nth(4).map(integer).transpose()?;
    let unit = if in_bits { 1 } else { 8 };
    let length = (bytes.len() * 8 / unit) as i64;
    let from_end = |index: i64| if index < 0 { (length + index).max(0) } else { index };
    let (start, last) = (from_end(start), end.map_or(length, from_end).min(length - 1));
    if start > last {
        return Ok(-1);
    }
    let found = find_bit(bytes, wanted, start as usize * unit, (last as usize + 1) * unit);
    Ok(match found {
        Some(at) => at as i64,
        // Behind a string whose end nobody named come zeros.
        None if !wanted && end.is_none() => bytes.len() as i64 * 8,
        None => -1,
    })
}

/// The first bit from `start` to before `end` that is `wanted`.
fn find_bit(bytes: &[u8], wanted: bool, start: usize, end: usize) -> Option<usize> {
    let others = if wanted { 0 } else { 0xff };
    let (first, last) = (start / 8, (end - 1) / 8);
    let within = (bytes[first] ^ others) & (0xff >> (start % 8));
    let at = if within != 0 {
        first * 8 + within.leading_zeros() as usize
    } else {
        let at = first + 1 + find_other(&bytes[first + 1..=last], others)?;
        at * 8 + (bytes[at] ^ others).leading_zeros() as usize
    };
    (at < end).then_some(at)
}

/// The first byte that is not `others`, looked for a word at a time.
fn find_other(bytes: &[u8], others: u8) -> Option<usize> {
    let (words, rest) = bytes.as_chunks::<8>();
    let differs = |byte: &u8| *byte != others;
    match words.iter().position(|word| *word != [others; 8]) {
        Some(word) => Some(word * 8 + words[word].iter().position(differs)?),
        None => Some(words.len() * 8 + rest.iter().position(differs)?),
    }
}

#[derive(Clone, Copy)]
enum BitOperation {
    And,
    Or,
    Xor,
    Not,
}

impl BitOperation {
    fn parse(args: Args<'_>) -> Result<Self, Reply<'static>> {
        let operation = match args.get(1) {
            word if is_word(word, "AND") => Self::And,
            word if is_word(word, "OR") => Self::Or,
            word if is_word(word, "XOR") => Self::Xor,
            word if is_word(word, "NOT") => Self::Not,
            _ => return Err(SYNTAX),
        };
        if matches!(operation, Self::Not) && args.len() != 4 {
            return Err(Reply::error("ERR BITOP NOT must be called with a single source key."));
        }
        Ok(operation)
    }
}

impl BitOperation {
    /// Combines with a source that is no longer; what it lacks counts as zeros.
    fn combine(self, bytes: &mut [u8], source: &[u8]) {
        let (bytes, beyond) = bytes.split_at_mut(source.len());
        // Without a look at the operation or a bound for each byte, these run a vector at a time.
        let pairs = bytes.iter_mut().zip(source);
        match self {
            Self::And => {
                pairs.for_each(|(byte, other)| *byte &= other);
                beyond.fill(0);
            }
            Self::Or => pairs.for_each(|(byte, other)| *byte |= other),
            Self::Xor => pairs.for_each(|(byte, other)| *byte ^= other),
            Self::Not => unreachable!("NOT has one source"),
        }
    }
}

/// What `BITOP` does to its key if every key is the same one; a read, which answers an error,
/// otherwise.
pub(crate) fn bitop_access(args: Args<'_>) -> Access {
    let one_key = args.iter().skip(3).all(|key| key == args.get(2));
    if one_key && BitOperation::parse(args).is_ok() { Access::Update } else { Access::Read }
}

/// Strings that are shorter than the longest count as filled up with zeros.
pub(crate) fn bitop(
    args: Args<'_>,
    _: UnixMillis,
    workspace: &mut dyn Workspace,
) -> Reply<'static> {
    let operation = match BitOperation::parse(args) {
        Ok(operation) => operation,
        Err(error) => return error,
    };
    let mut result: Option<Vec<u8>> = None;
    for key in args.iter().skip(3) {
        let source = match bytes_of(workspace.read(key)) {
            Ok(source) => source,
            Err(error) => return error,
        };
        let Some(bytes) = &mut result else {
            result = Some(source.into());
            continue;
        };
        bytes.resize(bytes.len().max(source.len()), 0);
        operation.combine(bytes, source);
    }
    let mut bytes = result.expect("the arity demands a source");
    if matches!(operation, BitOperation::Not) {
        bytes.iter_mut().for_each(|byte| *byte = !*byte);
    }
    let length = bytes.len();
    let target = args.get(2);
    if length > 0 {
        let change = Change::Set { bytes: bytes.into(), kind: ValueKind::String, expire_at: None };
        workspace.write(target, change);
    } else if workspace.read(target).content.is_some() {
        workspace.write(target, Change::Delete);
    }
    Reply::Int(length as i64)
}
