//! Members drawn at random, and members visited a part at a time.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use quorate_collections::{Part, place_of};
use quorate_machine::{Current, Rng};
use quorate_types::{UnixMillis, hash_key, limits};

use crate::number::{format_integer, integer};
use crate::options::{SYNTAX, is_word};
use crate::room::ANSWER_TOO_LONG;
use crate::{Args, Reply, glob_match};

/// A generator that draws the same for the same call on the same version at the same time, wherever
/// and however often it runs, and something else otherwise.
pub(crate) fn rng(args: Args<'_>, now: UnixMillis, current: Current<'_>) -> Rng {
    let begin = now.0 ^ args.seed;
    let words = args.iter().fold(begin, |seed, word| seed.rotate_left(5) ^ hash_key(word));
    let writer = u64::from(current.timestamp.writer.0);
    Rng::new(words ^ current.timestamp.version.rotate_left(32) ^ writer.rotate_left(17))
}

/// How many of `length` members to draw: a positive count draws each at most once, in no particular
/// order, a negative one draws so many times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Count {
    Distinct(usize),
    Repeated(usize),
}

impl Count {
    /// # Errors
    /// If it is no number, or one whose magnitude is beyond `limit`.
    pub(crate) fn parse(word: &[u8]) -> Result<Self, Reply<'static>> {
        match integer(word)? {
            i64::MIN => Err(Reply::error(
                "ERR value is out of range, value must between -9223372036854775807 and \
                 9223372036854775807",
            )),
            count if count < 0 => Ok(Self::Repeated(count.unsigned_abs() as usize)),
            count => Ok(Self::Distinct(count.unsigned_abs() as usize)),
        }
    }

    /// Whether it asks for more than half of what a number can count.
    pub(crate) fn is_beyond_half(self) -> bool {
        let (Self::Distinct(count) | Self::Repeated(count)) = self;
        count > i64::MAX as usize / 2
    }

    /// Positions among `length` members.
    ///
    /// # Errors
    /// If they would be more than an answer can have.
    pub(crate) fn draw(self, length: usize, rng: &mut Rng) -> Result<Vec<usize>, Reply<'static>> {
        match self {
            _ if length == 0 => Ok(Vec::new()),
            Self::Repeated(count) if count > limits::REPLY_BYTES_MAX / size_of::<Reply<'_>>() => {
                Err(Reply::error(ANSWER_TOO_LONG))
            }
            Self::Repeated(count) => {
                Ok((0..count).map(|_| rng.below(length as u64) as usize).collect())
            }
            Self::Distinct(count) => Ok(distinct(count, length, rng)),
        }
    }
}

/// Different positions below `length`, in order; all of them if `count` is no less. Of more than half of
/// them those are chosen that stay behind, so that the work follows the smaller part.
pub(crate) fn distinct(count: usize, length: usize, rng: &mut Rng) -> Vec<usize> {
    let count = count.min(length);
    if count > length / 2 {
        let mut behind = chosen(length - count, length, rng).into_iter().peekable();
        return (0..length).filter(|at| behind.next_if_eq(at).is_none()).collect();
    }
    chosen(count, length, rng).into_iter().collect()
}

/// Floyd's choice: of every so many positions each is as likely as any other.
fn chosen(count: usize, length: usize, rng: &mut Rng) -> BTreeSet<usize> {
    let mut chosen = BTreeSet::new();
    for last in length - count..length {
        let drawn = rng.below(last as u64 + 1) as usize;
        if !chosen.insert(drawn) {
            chosen.insert(last);
        }
    }
    chosen
}

/// What `HSCAN`, `SSCAN` and `ZSCAN` are asked for.
#[derive(Debug)]
pub(crate) struct Scan<'a> {
    cursor: u64,
    count: usize,
    pattern: Option<&'a [u8]>,
}

/// Parts of a scan: those of a large collection are larger than `COUNT` says.
const PARTS_MAX: usize = 64;

impl<'a> Scan<'a> {
    /// Reads `key cursor [MATCH pattern] [COUNT count]`.
    pub(crate) fn parse(args: Args<'a>) -> Result<Self, Reply<'static>> {
        let cursor = cursor(args.get(2)).ok_or(Reply::error("ERR invalid cursor"))?;
        Ok(Self { cursor, count: 10, pattern: None })
    }

    /// Reads the options, which Redis looks at only when the key is there and of the right type.
    pub(crate) fn options(mut self, args: Args<'a>) -> Result<Self, Reply<'static>> {
        let mut words = args.iter().skip(3);
        while let Some(word) = words.next() {
            let value = words.next().ok_or(SYNTAX)?;
            if is_word(word, "COUNT") {
                let count = integer(value)?;
                self.count =
                    usize::try_from(count).ok().filter(|&count| count > 0).ok_or(SYNTAX)?;
            } else if is_word(word, "MATCH") {
                self.pattern = Some(value).filter(|pattern| *pattern != b"*");
            } else {
                return Err(SYNTAX);
            }
        }
        Ok(self)
    }

    fn matches(&self, member: &[u8]) -> bool {
        self.pattern.is_none_or(|pattern| glob_match(pattern, member, false))
    }

    /// The next part of the members, and where the scan goes on. A `compact` collection is one part,
    /// as in Redis. Others are visited in the order of their hashes, so that a member that is there
    /// all the time is visited, whatever comes and goes meanwhile.
    pub(crate) fn part<M: AsRef<[u8]> + Clone>(
        &self,
        compact: bool,
        members: impl Iterator<Item = M>,
    ) -> (u64, Vec<M>) {
        if compact {
            return (0, members.filter(|member| self.matches(member.as_ref())).collect());
        }
        let place = |member: &M| place_of(member.as_ref());
        let mut left: Vec<(u64, M)> = members.map(|member| (place(&member), member)).collect();
        // Each part looks at all members, so there are at most so many parts.
        let count = self.count.max(left.len() / PARTS_MAX);
        left.retain(|(place, _)| *place >= self.cursor);
        let mut next = 0;
        if count < left.len() {
            let (_, (last, _), behind) = left.select_nth_unstable_by_key(count - 1, |(at, _)| *at);
            // Members of one place stay together.
            let last = *last;
            let behind = behind.iter().map(|(place, _)| *place).filter(|place| *place > last);
            next = behind.min().unwrap_or(0);
            left.retain(|(place, _)| *place <= last);
        }
        let part = left.into_iter().map(|(_, member)| member);
        (next, part.filter(|member| self.matches(member.as_ref())).collect())
    }
}

impl Scan<'_> {
    /// The same of a large collection, which gives its members from a place on.
    pub(crate) fn part_of<M: AsRef<[u8]>>(&self, part: Part<M>) -> (u64, Vec<M>) {
        let (next, part) = part;
        let matching = part.into_iter().filter(|member| self.matches(member.as_ref()));
        (next.unwrap_or(0), matching.collect())
    }

    /// The place where it begins, and how many members it asks for.
    pub(crate) fn wanted(&self) -> (u64, usize) {
        (self.cursor, self.count)
    }
}

/// The answer of a scan.
pub(crate) fn scanned<'a>(next: u64, part: Vec<Reply<'a>>) -> Reply<'a> {
    let next = format_integer(next.cast_signed(), &mut [0; 20]).to_vec();
    Reply::Array([Reply::Bulk(next.into()), Reply::Array(part)].into())
}

/// A number as C reads it: nothing at all is 0, and one with a minus counts from the largest one down.
fn cursor(text: &[u8]) -> Option<u64> {
    let (negative, digits) = match text {
        [] => return Some(0),
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] | digits => (false, digits),
    };
    let is_number = digits.first().is_some_and(u8::is_ascii_digit);
    let number: u64 = core::str::from_utf8(digits).ok().filter(|_| is_number)?.parse().ok()?;
    Some(if negative { number.wrapping_neg() } else { number })
}

#[cfg(test)]
mod tests {
    use alloc::format;
    use alloc::string::String;

    use super::*;

    #[test]
    fn distinct_positions_are_distinct_and_all_come_up() {
        let mut rng = Rng::new(1);
        let mut seen = BTreeSet::new();
        for _ in 0..200 {
            let drawn = distinct(3, 10, &mut rng);
            assert_eq!(drawn.iter().collect::<BTreeSet<_>>().len(), 3);
            seen.extend(drawn);
        }
        assert!(seen.iter().copied().eq(0..10));
        assert!(distinct(20, 4, &mut rng).into_iter().eq(0..4));
    }

    /// Members come and go while a scan runs; those that stay are all visited.
    #[test]
    fn a_scan_visits_what_stays() {
        let staying: Vec<String> = (0..1000).map(|number| format!("stays {number}")).collect();
        let (mut cursor, mut seen, mut round) = (0, BTreeSet::new(), 0);
        loop {
            let passing: Vec<String> = (0..round * 7).map(|n| format!("{round} {n}")).collect();
            let scan = Scan { cursor, count: 50, pattern: None };
            let members = staying.iter().chain(&passing);
            let (next, part) = scan.part(false, members);
            assert!(part.len() >= 50 || next == 0);
            seen.extend(part.into_iter().filter(|name| name.starts_with("stays")).cloned());
            (cursor, round) = (next, round + 1);
            if cursor == 0 {
                break;
            }
        }
        assert_eq!(seen.len(), staying.len());
        assert!(round < 25, "{round} parts");
    }
}
