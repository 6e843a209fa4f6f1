//! Ranges of members by rank, score or name: a range is a stretch of the bytes.

use alloc::vec::Vec;

use quorate_collections::{self as collections, Delta, Step};
use quorate_machine::{Access, Change, Current, Workspace};
use quorate_types::UnixMillis;

use super::{Entries, Entry, SortedSet, reply, store_new};
use crate::double::parse_bound;
use crate::number::integer;
use crate::options::{SYNTAX, is_word};
use crate::string::{Outcome, key_functions};
use crate::{Args, Reply, large};

key_functions! {
    zrange => |args, _, current| Query::parse(args, 1, Kind::Any)?.answer(current);
    zrevrange => |args, _, current| Query::parse(args, 1, Kind::Only(By::Rank, true))?.answer(current);
    zrangebyscore => |args, _, current| {
        Query::parse(args, 1, Kind::Only(By::Score, false))?.answer(current)
    };
    zrevrangebyscore => |args, _, current| {
        Query::parse(args, 1, Kind::Only(By::Score, true))?.answer(current)
    };
    zrangebylex => |args, _, current| {
        Query::parse(args, 1, Kind::Only(By::Lex, false))?.answer(current)
    };
    zrevrangebylex => |args, _, current| {
        Query::parse(args, 1, Kind::Only(By::Lex, true))?.answer(current)
    };
    zcount => |args, _, current| count(args, By::Score, current);
    zlexcount => |args, _, current| count(args, By::Lex, current);
    zremrangebyrank => |args, _, current| remove(args, By::Rank, current);
    zremrangebyscore => |args, _, current| remove(args, By::Score, current);
    zremrangebylex => |args, _, current| remove(args, By::Lex, current);
}

/// What the bounds of a range are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum By {
    Rank,
    Score,
    Lex,
}

/// Which ranges a command takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Those that its options say.
    Any,
    /// This kind, reversed or not.
    Only(By, bool),
}

/// The bounds of a range, the lower one first.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Bounds<'a> {
    /// Negative ones count from the end.
    Rank(i64, i64),
    /// Each with whether it is itself outside.
    Score([(f64, bool); 2]),
    Lex([LexBound<'a>; 2]),
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum LexBound<'a> {
    /// Before every member.
    Least,
    /// Behind every member.
    Greatest,
    /// With whether it is itself outside.
    Member(&'a [u8], bool),
}

impl<'a> Bounds<'a> {
    fn parse(by: By, from: &'a [u8], to: &'a [u8]) -> Result<Self, Reply<'static>> {
        match by {
            By::Rank => Ok(Self::Rank(integer(from)?, integer(to)?)),
            By::Score => score_bound(from)
                .and_then(|from| Some(Self::Score([from, score_bound(to)?])))
                .ok_or(Reply::error("ERR min or max is not a float")),
            By::Lex => LexBound::parse(from)
                .and_then(|from| Some(Self::Lex([from, LexBound::parse(to)?])))
                .ok_or(Reply::error("ERR min or max not valid string range item")),
        }
    }

    /// Whether a member is not before the range.
    fn is_from(&self, entry: &Entry<'_>) -> bool {
        match self {
            Self::Rank(..) => true,
            Self::Score([(bound, open), _]) => {
                if *open {
                    entry.score > *bound
                } else {
                    entry.score >= *bound
                }
            }
            Self::Lex([from, _]) => match from {
                LexBound::Least => true,
                LexBound::Greatest => false,
                LexBound::Member(bound, true) => entry.member > *bound,
                LexBound::Member(bound, false) => entry.member >= *bound,
            },
        }
    }

    /// Whether a member is not behind the range.
    fn is_to(&self, entry: &Entry<'_>) -> bool {
        match self {
            Self::Rank(..) => true,
            Self::Score([_, (bound, open)]) => {
                if *open {
                    entry.score < *bound
                } else {
                    entry.score <= *bound
                }
            }
            Self::Lex([_, to]) => match to {
                LexBound::Least => false,
                LexBound::Greatest => true,
                LexBound::Member(bound, true) => entry.member < *bound,
                LexBound::Member(bound, false) => entry.member <= *bound,
            },
        }
    }

    /// Whether no member could be in the range.
    fn is_empty(&self) -> bool {
        match self {
            Self::Rank(..) => false,
            Self::Score([(from, from_open), (to, to_open)]) => {
                from > to || from == to && (*from_open || *to_open)
            }
            Self::Lex([LexBound::Member(from, from_open), LexBound::Member(to, to_open)]) => {
                from > to || from == to && (*from_open || *to_open)
            }
            Self::Lex([from, to]) => *from == LexBound::Greatest || *to == LexBound::Least,
        }
    }
}

/// A score with whether it is itself outside the range.
fn score_bound(word: &[u8]) -> Option<(f64, bool)> {
    match word {
        [b'(', score @ ..] => Some((parse_bound(score)?, true)),
        score => Some((parse_bound(score)?, false)),
    }
}

impl<'a> LexBound<'a> {
    fn parse(word: &'a [u8]) -> Option<Self> {
        match word {
            // What follows a zero byte doesn't count.
            [b'-'] | [b'-', 0, ..] => Some(Self::Least),
            [b'+'] | [b'+', 0, ..] => Some(Self::Greatest),
            [b'(', member @ ..] => Some(Self::Member(member, true)),
            [b'[', member @ ..] => Some(Self::Member(member, false)),
            _ => None,
        }
    }
}

/// A stretch of a sorted set: of a packed one, the bytes before it, its own and those behind it.
#[derive(Clone, Copy, Debug)]
struct Stretch<'a> {
    before: &'a [u8],
    inside: &'a [u8],
    behind: &'a [u8],
    /// The rank of its first member, if the set is large.
    first: usize,
    /// Members inside.
    count: usize,
}

impl<'a> SortedSet<'a> {
    /// The change that takes a stretch of members away, so many from this rank on of a large one.
    pub(super) fn without<'b>(
        &self,
        first: usize,
        count: usize,
        current: Current<'_>,
    ) -> Result<Change<'b>, Reply<'static>> {
        let mut delta = Delta::new();
        for entry in self.entries_from(first).take(count) {
            delta.push(Step::Remove(entry.member));
        }
        large::change(delta, self.count - count, current)
    }

    /// The members of a stretch of it.
    fn inside(&self, stretch: &Stretch<'a>) -> Vec<Entry<'a>> {
        match self.large {
            None => Entries { rest: stretch.inside }.collect(),
            Some(large) => large.entries_from(stretch.first).take(stretch.count).collect(),
        }
    }

    /// The stretch of a large one that a range is. Members of several scores have no order by name: then
    /// all are looked at, as where it is packed.
    fn large_stretch(&self, large: &'a collections::SortedSet, bounds: &Bounds<'_>) -> Stretch<'a> {
        let ends = || {
            let mut first = large.entries_from(0).map(|entry| entry.score);
            let mut last = large.entries_from(large.len() - 1).map(|entry| entry.score);
            (first.next(), last.next())
        };
        let (first, count) = match bounds {
            Bounds::Rank(start, end) => ranks(*start, *end, large.len()),
            _ if bounds.is_empty() => (0, 0),
            Bounds::Lex(_) if ends().0 != ends().1 => {
                let entries = || large.entries_from(0);
                let first = entries().take_while(|entry| !bounds.is_from(entry)).count();
                (first, entries().skip(first).take_while(|entry| bounds.is_to(entry)).count())
            }
            _ => {
                let first = large.partition_point(|entry| !bounds.is_from(entry));
                let end = large.partition_point(|entry| bounds.is_to(entry));
                (first, end.saturating_sub(first))
            }
        };
        Stretch { before: &[], inside: &[], behind: &[], first, count }
    }

    /// The members in a range, in forward order. A range by name of members with several scores has no
    /// meaning; it is what Redis finds walking a listpack from the end where an answer begins.
    /// At most so many are looked for from its first one on, unless it is reversed.
    fn stretch(&self, bounds: &Bounds<'_>, reverse: bool, most: usize) -> Stretch<'a> {
        if let Some(large) = self.large {
            return self.large_stretch(large, bounds);
        }
        match bounds {
            Bounds::Rank(start, end) => {
                let (start, count) = ranks(*start, *end, self.count);
                self.cut(self.packed_entries(), start, count)
            }
            _ if bounds.is_empty() || self.is_outside(bounds) => {
                self.cut(self.packed_entries(), 0, 0)
            }
            Bounds::Lex(_) if reverse && !self.is_large() => {
                let (start, count) = self.backward(bounds);
                self.cut(self.packed_entries(), start, count)
            }
            _ => {
                let mut entries = self.packed_entries();
                let mut start = entries.clone();
                while entries.next().is_some_and(|entry| !bounds.is_from(&entry)) {
                    start = entries.clone();
                }
                let most = if reverse { usize::MAX } else { most };
                let inside = start.clone().take_while(|entry| bounds.is_to(entry));
                self.cut(start.clone(), 0, inside.take(most).count())
            }
        }
    }

    /// Whether the first or the last member says that none is in the range. Where all scores are equal
    /// or the range is one of scores, this says nothing new.
    fn is_outside(&self, bounds: &Bounds<'_>) -> bool {
        let is_named = matches!(bounds, Bounds::Lex(_)) && !self.is_large();
        is_named
            && (self.entries().last().is_none_or(|last| !bounds.is_from(&last))
                || self.entries().next().is_none_or(|first| !bounds.is_to(&first)))
    }

    /// Where the last member that is not behind the range ends a run of members that are not before it:
    /// the rank of the first one in it, and how many they are.
    fn backward(&self, bounds: &Bounds<'_>) -> (usize, usize) {
        let (mut run, mut found) = (0, (0, 0));
        for (rank, entry) in self.entries().enumerate() {
            if !bounds.is_from(&entry) {
                run = rank + 1;
            }
            if bounds.is_to(&entry) {
                found = (run, rank + 1 - run);
            }
        }
        found
    }

    /// So many members, after some that are skipped, of those that are left.
    fn cut(&self, mut entries: Entries<'a>, skipped: usize, count: usize) -> Stretch<'a> {
        entries.by_ref().take(skipped).for_each(drop);
        let start = self.bytes.len() - entries.rest.len();
        let count = entries.by_ref().take(count).count();
        let end = self.bytes.len() - entries.rest.len();
        let (before, inside) = (&self.bytes[..start], &self.bytes[start..end]);
        Stretch { before, inside, behind: &self.bytes[end..], first: 0, count }
    }
}

/// The first rank and the number of those from `start` to `end`, negative ones from the end, among so
/// many.
fn ranks(start: i64, end: i64, length: usize) -> (usize, usize) {
    let length = length as i64;
    let from_end = |rank: i64| if rank < 0 { length + rank } else { rank };
    let (start, end) = (from_end(start).max(0), from_end(end).min(length - 1));
    if start > end { (0, 0) } else { (start as usize, (end - start) as usize + 1) }
}

/// A range as `ZRANGE` and its relatives state it.
#[derive(Clone, Copy, Debug)]
struct Query<'a> {
    bounds: Bounds<'a>,
    reverse: bool,
    with_scores: bool,
    /// Members of the range that are skipped; all if it is negative.
    offset: i64,
    /// The most that are answered; all if it is negative.
    limit: i64,
}

impl<'a> Query<'a> {
    /// Reads `key from to` and options, the key at argument `at`.
    fn parse(args: Args<'a>, at: usize, kind: Kind) -> Result<Self, Reply<'static>> {
        let stores = at == 2;
        let (mut by, mut reverse) = match kind {
            Kind::Any => (None, None),
            Kind::Only(by, reverse) => (Some(by), Some(reverse)),
        };
        let (mut with_scores, mut offset, mut limit) = (false, 0, -1);
        let mut words = args.iter().skip(at + 3);
        while let Some(word) = words.next() {
            if !stores && is_word(word, "WITHSCORES") {
                with_scores = true;
            } else if is_word(word, "LIMIT") && words.clone().nth(1).is_some() {
                let mut number = || integer(words.next().expect("two words follow"));
                (offset, limit) = (number()?, number()?);
            } else if reverse.is_none() && is_word(word, "REV") {
                reverse = Some(true);
            } else if by.is_none() && is_word(word, "BYLEX") {
                by = Some(By::Lex);
            } else if by.is_none() && is_word(word, "BYSCORE") {
                by = Some(By::Score);
            } else {
                return Err(SYNTAX);
            }
        }
        let (by, reverse) = (by.unwrap_or(By::Rank), reverse.unwrap_or(false));
        if by == By::Rank && limit != -1 {
            return Err(Reply::error(
                "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or \
                 BYLEX",
            ));
        }
        if by == By::Lex && with_scores {
            return Err(Reply::error(
                "ERR syntax error, WITHSCORES not supported in combination with BYLEX",
            ));
        }
        let (from, to) = (args.get(at + 1), args.get(at + 2));
        let swapped = reverse && by != By::Rank;
        let (from, to) = if swapped { (to, from) } else { (from, to) };
        let mut bounds = Bounds::parse(by, from, to)?;
        if let Bounds::Rank(start, end) = bounds {
            // An offset without a limit says nothing about ranks.
            offset = 0;
            if reverse {
                bounds = Bounds::Rank(-1 - end, -1 - start);
            }
        }
        Ok(Self { bounds, reverse, with_scores, offset, limit })
    }

    /// What the query finds, in forward order.
    fn find(&self, set: SortedSet<'a>) -> Stretch<'a> {
        let offset = usize::try_from(self.offset).unwrap_or(usize::MAX);
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
        let stretch = set.stretch(&self.bounds, self.reverse, offset.saturating_add(limit));
        let left = stretch.count.saturating_sub(offset);
        let count = left.min(limit);
        let skipped = match self.reverse {
            true => left - count,
            false => stretch.count - left,
        };
        if set.large.is_some() {
            return Stretch { first: stretch.first + skipped, count, ..stretch };
        }
        SortedSet { bytes: stretch.inside, ..set }.cut(
            Entries { rest: stretch.inside },
            skipped,
            count,
        )
    }

    /// The members that the query finds, in its order.
    fn members(&self, set: SortedSet<'a>) -> Vec<Entry<'a>> {
        let mut found = set.inside(&self.find(set));
        if self.reverse {
            found.reverse();
        }
        found
    }

    fn answer(&self, current: Current<'a>) -> Outcome<'a> {
        let set = SortedSet::or_empty(current)?;
        Ok((reply(self.members(set), self.with_scores), Change::Keep))
    }
}

fn count<'a>(args: Args<'a>, by: By, current: Current<'a>) -> Outcome<'a> {
    let bounds = Bounds::parse(by, args.get(2), args.get(3))?;
    let count = SortedSet::or_empty(current)?.stretch(&bounds, false, usize::MAX).count;
    Ok((Reply::Int(count as i64), Change::Keep))
}

fn remove<'a>(args: Args<'a>, by: By, current: Current<'a>) -> Outcome<'a> {
    let bounds = Bounds::parse(by, args.get(2), args.get(3))?;
    let set = SortedSet::or_empty(current)?;
    let Stretch { before, behind, first, count, .. } = set.stretch(&bounds, false, usize::MAX);
    if count == 0 {
        return Ok((Reply::Int(0), Change::Keep));
    }
    let change = match set.large {
        None => set.keep(set.count.saturating_sub(count), [before, behind], current)?,
        Some(_) => set.without(first, count, current)?,
    };
    Ok((Reply::Int(count as i64), change))
}

/// What `ZRANGESTORE` does to its key if both are the same one.
pub(crate) fn zrangestore_access(args: Args<'_>) -> Access {
    if args.get(1) == args.get(2) { Access::Update } else { Access::Read }
}

/// `ZRANGESTORE target source from to [BYSCORE | BYLEX] [REV] [LIMIT offset count]`.
pub(crate) fn zrangestore(
    args: Args<'_>,
    _: UnixMillis,
    workspace: &mut dyn Workspace,
) -> Reply<'static> {
    let stored = Query::parse(args, 2, Kind::Any).and_then(|query| {
        let set = SortedSet::or_empty(workspace.read(args.get(2)))?;
        let found = set.inside(&query.find(set));
        Ok((found.len(), store_new(&found)?))
    });
    match stored {
        Ok((count, change)) => super::combine::write(args.get(1), count, change, workspace),
        Err(error) => error,
    }
}
