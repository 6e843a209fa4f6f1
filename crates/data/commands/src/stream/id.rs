//! Ids of entries.

use alloc::format;
use alloc::vec::Vec;

use crate::Reply;
use crate::number::parse_integer;
use crate::options::c_string;

/// The id of an entry: milliseconds since 1970 as a rule, and a number among those of the same
/// millisecond.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct StreamId {
    pub(crate) ms: u64,
    pub(crate) seq: u64,
}

pub(super) const INVALID: Reply<'static> =
    Reply::error("ERR Invalid stream ID specified as stream command argument");
/// Longer arguments are no ids.
const ID_BYTES_MAX: usize = 127;

impl StreamId {
    /// Before every entry.
    pub(crate) const MIN: Self = Self { ms: 0, seq: 0 };
    pub(crate) const MAX: Self = Self { ms: u64::MAX, seq: u64::MAX };

    /// The next larger id.
    pub(crate) fn next(self) -> Option<Self> {
        match self.seq.checked_add(1) {
            Some(seq) => Some(Self { seq, ..self }),
            None => Some(Self { ms: self.ms.checked_add(1)?, seq: 0 }),
        }
    }

    /// The next smaller id.
    pub(crate) fn previous(self) -> Option<Self> {
        match self.seq.checked_sub(1) {
            Some(seq) => Some(Self { seq, ..self }),
            None => Some(Self { ms: self.ms.checked_sub(1)?, seq: u64::MAX }),
        }
    }

    /// The milliseconds in the upper half, the number in the lower one.
    pub(super) fn number(self) -> u128 {
        u128::from(self.ms) << u64::BITS | u128::from(self.seq)
    }

    /// Its text.
    pub(crate) fn text(self) -> Vec<u8> {
        format!("{}-{}", self.ms, self.seq).into_bytes()
    }

    pub(super) fn reply(self) -> Reply<'static> {
        Reply::Bulk(self.text().into())
    }

    /// Reads `ms-seq` or `ms`, whose number is then `missing`.
    pub(crate) fn parse(argument: &[u8], missing: u64) -> Result<Self, Reply<'static>> {
        match Given::parse(argument, missing)? {
            Given::Whole(id) => Ok(id),
            Given::OfMillisecond(_) => Err(INVALID),
        }
    }

    /// The same, where `-` and `+` are the smallest and the largest id.
    pub(super) fn parse_or_end(argument: &[u8], missing: u64) -> Result<Self, Reply<'static>> {
        match c_string(argument) {
            _ if argument.len() > ID_BYTES_MAX => Err(INVALID),
            b"-" => Ok(Self::MIN),
            b"+" => Ok(Self::MAX),
            argument => Self::parse(argument, missing),
        }
    }

    /// The first id of an interval; `(` leaves out the one that it names.
    pub(super) fn parse_start(argument: &[u8]) -> Result<Self, Reply<'static>> {
        match argument.strip_prefix(b"(").filter(|id| !id.is_empty()) {
            Some(id) => Self::parse(id, 0)?
                .next()
                .ok_or(Reply::error("ERR invalid start ID for the interval")),
            None => Self::parse_or_end(argument, 0),
        }
    }

    /// The last id of an interval.
    pub(super) fn parse_end(argument: &[u8]) -> Result<Self, Reply<'static>> {
        match argument.strip_prefix(b"(").filter(|id| !id.is_empty()) {
            Some(id) => Self::parse(id, u64::MAX)?
                .previous()
                .ok_or(Reply::error("ERR invalid end ID for the interval")),
            None => Self::parse_or_end(argument, u64::MAX),
        }
    }
}

/// What a client said of the id of a new entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Given {
    Whole(StreamId),
    /// `ms-*`: the number is the next one of that millisecond.
    OfMillisecond(u64),
}

impl Given {
    pub(super) fn parse(argument: &[u8], missing: u64) -> Result<Self, Reply<'static>> {
        if argument.len() > ID_BYTES_MAX {
            return Err(INVALID);
        }
        let text = c_string(argument);
        if text == b"-" || text == b"+" {
            return Err(INVALID);
        }
        let Some(at) = text.iter().position(|&byte| byte == b'-') else {
            let ms = number(text).ok_or(INVALID)?;
            return Ok(Self::Whole(StreamId { ms, seq: missing }));
        };
        let ms = number(&text[..at]).ok_or(INVALID)?;
        match &text[at + 1..] {
            b"*" => Ok(Self::OfMillisecond(ms)),
            seq => {
                let seq = number(seq).ok_or(INVALID)?;
                Ok(Self::Whole(StreamId { ms, seq }))
            }
        }
    }
}

/// A number as Redis takes it here: its decimal form, or else whatever C's `strtoull` reads whole.
fn number(text: &[u8]) -> Option<u64> {
    if let Some(number) = parse_integer(text) {
        return u64::try_from(number).ok();
    }
    let spaces = text.iter().take_while(|byte| matches!(byte, b' ' | b'\t'..=b'\r')).count();
    let (negative, digits) = match &text[spaces..] {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if digits.is_empty() {
        return None;
    }
    let value = digits.iter().try_fold(0_u64, |value, digit| {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 10)?;
        value.checked_mul(10)?.checked_add(digit.into())
    })?;
    Some(if negative { value.wrapping_neg() } else { value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_neighbours_except_at_the_ends() {
        let id = |ms, seq| StreamId { ms, seq };
        assert_eq!(id(1, u64::MAX).next(), Some(id(2, 0)));
        assert_eq!(id(2, 0).previous(), Some(id(1, u64::MAX)));
        assert_eq!((StreamId::MAX.next(), StreamId::MIN.previous()), (None, None));
        assert_eq!(StreamId::MAX.text(), b"18446744073709551615-18446744073709551615");
    }

    #[test]
    fn ids_are_read_as_redis_reads_them() {
        let id = |ms, seq| Ok(StreamId { ms, seq });
        assert_eq!(StreamId::parse(b"5", 9), id(5, 9));
        assert_eq!(StreamId::parse(b"5-3", 9), id(5, 3));
        assert_eq!(StreamId::parse(b"18446744073709551615-0", 9), id(u64::MAX, 0));
        assert_eq!(StreamId::parse(b" +05-\t7", 9), id(5, 7));
        assert_eq!(StreamId::parse(b"1--02", 9), id(1, u64::MAX - 1));
        for text in ["", "-", "+", "a", "1-", "-1", "1-2-3", "1--2", "1-*", "18446744073709551616"]
        {
            assert_eq!(StreamId::parse(text.as_bytes(), 0), Err(INVALID), "{text}");
        }
        assert_eq!(StreamId::parse_or_end(b"+", 0), Ok(StreamId::MAX));
        assert_eq!(StreamId::parse_start(b"(5-3"), id(5, 4));
        assert_eq!(StreamId::parse_end(b"(5"), id(5, u64::MAX - 1));
        assert_eq!(Given::parse(b"7-*", 0), Ok(Given::OfMillisecond(7)));
    }
}
