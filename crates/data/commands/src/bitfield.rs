//! `BITFIELD`: integers of any width up to 64 bits at any bit of a string.

use alloc::borrow::Cow;
use alloc::vec::Vec;

use quorate_machine::{Access, Change, Current};
use quorate_types::{UnixMillis, limits};

use crate::number::{integer, parse_integer};
use crate::options::{SYNTAX, c_string, is_word};
use crate::string::{Outcome, bytes_of, change_unless_error, replace_string};
use crate::{Args, Reply};

/// What becomes of a number that its field can't hold.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Overflow {
    Wrap,
    Saturate,
    Fail,
}

#[derive(Clone, Copy)]
enum Action {
    Get,
    Set(i64),
    Increment(i64),
}

/// A field: `i8`, `u5` and the like at a bit.
#[derive(Clone, Copy)]
struct Field {
    signed: bool,
    bits: u32,
    offset: u64,
}

/// One subcommand.
struct Step {
    field: Field,
    action: Action,
    overflow: Overflow,
}

pub(crate) fn bitfield<'a>(
    args: Args<'a>,
    _: UnixMillis,
    current: Current<'a>,
) -> (Reply<'a>, Change<'a>) {
    change_unless_error(parse(args).and_then(|steps| run(&steps, current)))
}

pub(crate) fn bitfield_ro<'a>(
    args: Args<'a>,
    _: UnixMillis,
    current: Current<'a>,
) -> (Reply<'a>, Change<'a>) {
    change_unless_error(parse(args).and_then(|steps| {
        if writes(&steps) {
            return Err(Reply::error("ERR BITFIELD_RO only supports the GET subcommand"));
        }
        run(&steps, current)
    }))
}

pub(crate) fn bitfield_access(args: Args<'_>) -> Access {
    if parse(args).is_ok_and(|steps| writes(&steps)) { Access::Update } else { Access::Read }
}

/// Whether the subcommands are there and read only, whatever is wrong with their arguments.
pub(crate) fn only_gets(args: Args<'_>) -> bool {
    let mut at = 2;
    while at < args.len() {
        let left = args.len() - at - 1;
        let word = args.get(at);
        at += match () {
            () if is_word(word, "GET") && left >= 2 => 3,
            () if is_word(word, "OVERFLOW") && left >= 1 => 2,
            () => return false,
        };
    }
    true
}

fn writes(steps: &[Step]) -> bool {
    steps.iter().any(|step| !matches!(step.action, Action::Get))
}

fn parse(args: Args<'_>) -> Result<Vec<Step>, Reply<'static>> {
    let mut steps = Vec::new();
    let mut overflow = Overflow::Wrap;
    let mut at = 2;
    while at < args.len() {
        let (word, left) = (args.get(at), args.len() - at - 1);
        if is_word(word, "OVERFLOW") && left >= 1 {
            overflow = match args.get(at + 1) {
                word if is_word(word, "WRAP") => Overflow::Wrap,
                word if is_word(word, "SAT") => Overflow::Saturate,
                word if is_word(word, "FAIL") => Overflow::Fail,
                _ => return Err(Reply::error("ERR Invalid OVERFLOW type specified")),
            };
            at += 2;
            continue;
        }
        let (is_get, is_set) = (is_word(word, "GET"), is_word(word, "SET"));
        let words = if is_get { 2 } else { 3 };
        if !(is_get || is_set || is_word(word, "INCRBY")) || left < words {
            return Err(SYNTAX);
        }
        let field = Field::parse(args.get(at + 1), args.get(at + 2))?;
        let action = match (is_get, is_set) {
            (true, _) => Action::Get,
            (_, true) => Action::Set(integer(args.get(at + 3))?),
            _ => Action::Increment(integer(args.get(at + 3))?),
        };
        if !is_get && field.bytes() > limits::VALUE_BYTES_MAX {
            return Err(BAD_OFFSET);
        }
        steps.push(Step { field, action, overflow });
        at += 1 + words;
    }
    Ok(steps)
}

const BAD_OFFSET: Reply<'static> = Reply::error("ERR bit offset is not an integer or out of range");

fn run<'a>(steps: &[Step], current: Current<'a>) -> Outcome<'a> {
    let old = bytes_of(current)?;
    let written = steps.iter().filter(|step| !matches!(step.action, Action::Get));
    let length = written.map(|step| step.field.bytes()).max().unwrap_or(0);
    let mut bytes = Cow::Borrowed(old);
    if length > old.len() {
        bytes.to_mut().resize(length, 0);
    }
    // As in Redis, what leaves the string as it was is no change for `WATCH`.
    let mut changed = length > old.len();
    let mut replies = Vec::with_capacity(steps.len());
    for Step { field, action, overflow } in steps {
        let held = field.read(&bytes);
        let (wanted, increment) = match *action {
            Action::Get => {
                replies.push(Reply::Int(held));
                continue;
            }
            Action::Set(value) => (field.widen(value), None),
            Action::Increment(by) => (i128::from(held) + i128::from(by), Some(by)),
        };
        let Some(value) = field.fit(wanted, *overflow) else {
            replies.push(Reply::Null);
            continue;
        };
        replies.push(Reply::Int(if increment.is_some() { value } else { held }));
        if value != held {
            changed = true;
            field.write(bytes.to_mut(), value);
        }
    }
    let change = if changed { replace_string(bytes.into_owned(), current) } else { Change::Keep };
    Ok((Reply::Array(replies), change))
}

impl Field {
    fn parse(kind: &[u8], offset: &[u8]) -> Result<Self, Reply<'static>> {
        let kind = c_string(kind);
        let signed = kind.first() == Some(&b'i');
        let most = if signed { 64 } else { 63 };
        let bits = kind
            .strip_prefix(if signed { b"i" } else { b"u" })
            .and_then(parse_integer)
            .filter(|bits| (1..=most).contains(bits))
            .ok_or(Reply::error(
                "ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not \
                 supported but i64 is.",
            ))?;
        let (number, unit) = match offset {
            [b'#', number @ ..] => (number, bits),
            number => (number, 1),
        };
        let offset = parse_integer(number)
            .and_then(|offset| offset.checked_mul(unit))
            .and_then(|offset| u64::try_from(offset).ok())
            .filter(|offset| offset >> 3 < limits::VALUE_BYTES_MAX as u64)
            .ok_or(BAD_OFFSET)?;
        Ok(Self { signed, bits: bits as u32, offset })
    }

    /// The length of the shortest string that holds it.
    fn bytes(self) -> usize {
        ((self.offset + u64::from(self.bits) - 1) / 8 + 1) as usize
    }

    /// The bytes that it touches: at most nine.
    fn window(self) -> core::ops::Range<usize> {
        (self.offset / 8) as usize..self.bytes()
    }

    /// How far its last bit is from that of its window.
    fn shift(self) -> u32 {
        (self.bytes() as u64 * 8 - self.offset) as u32 - self.bits
    }

    fn mask(self) -> u128 {
        (1 << self.bits) - 1
    }

    /// Bits behind the end of the string are zero.
    fn read(self, bytes: &[u8]) -> i64 {
        let raw = self.raw(bytes) >> self.shift() & self.mask();
        let negative = self.signed && raw >> (self.bits - 1) != 0;
        if negative { (raw | !self.mask()) as i64 } else { raw as i64 }
    }

    fn raw(self, bytes: &[u8]) -> u128 {
        let byte = |at| u128::from(bytes.get(at).copied().unwrap_or(0));
        self.window().fold(0, |raw, at| raw << 8 | byte(at))
    }

    fn write(self, bytes: &mut [u8], value: i64) {
        let kept = self.raw(bytes) & !(self.mask() << self.shift());
        let mut raw = kept | (value as u128 & self.mask()) << self.shift();
        for at in self.window().rev() {
            bytes[at] = raw as u8;
            raw >>= 8;
        }
    }

    /// The argument of `SET`: a negative one for a field without a sign is a large one.
    fn widen(self, value: i64) -> i128 {
        if self.signed { value.into() } else { value.cast_unsigned().into() }
    }

    /// The number that is stored for this one; `None` if it does not fit and the overflow fails.
    fn fit(self, wanted: i128, overflow: Overflow) -> Option<i64> {
        let (low, high) = if self.signed {
            (-(1_i128 << (self.bits - 1)), (1_i128 << (self.bits - 1)) - 1)
        } else {
            (0, (1_i128 << self.bits) - 1)
        };
        if (low..=high).contains(&wanted) {
            return Some(wanted as i64);
        }
        match overflow {
            Overflow::Wrap => {
                let raw = wanted as u128 & self.mask();
                let negative = self.signed && raw >> (self.bits - 1) != 0;
                Some(if negative { (raw | !self.mask()) as i64 } else { raw as i64 })
            }
            Overflow::Saturate => Some(wanted.clamp(low, high) as i64),
            Overflow::Fail => None,
        }
    }
}
