//! Members taken from an end, drawn at random, or visited a part at a time.

use alloc::string::String;
use alloc::vec::Vec;

use quorate_machine::{Access, Change, Current, Workspace};
use quorate_types::UnixMillis;

use super::{Entry, SortedSet, bulk, reply};
use crate::double::format_double;
use crate::list::{pop_count, positive_count};
use crate::number::{format_integer, parse_integer};
use crate::options::{SYNTAX, is_word};
use crate::sample::{Count, Scan, rng, scanned};
use crate::string::{Outcome, key_functions};
use crate::{Args, Reply};

/// An end of a sorted set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    Min,
    Max,
}

key_functions! {
    zpopmin => |args, _, current| pop(End::Min, args, current);
    zpopmax => |args, _, current| pop(End::Max, args, current);
    zrandmember => |args, now, current| try_zrandmember(args, now, current);
    zscan => |args, _, current| {
        let scan = Scan::parse(args)?;
        let Some(set) = SortedSet::of(current)? else {
            return Ok((scanned(0, Vec::new()), Change::Keep));
        };
        let scan = scan.options(args)?;
        let named = |entry| Named(entry);
        let (next, part) = match set.large {
            None => scan.part(!set.is_large(), set.entries().map(named)),
            Some(large) => {
                let (place, count) = scan.wanted();
                let (next, part) = large.part(place, count);
                scan.part_of((next, part.into_iter().map(named).collect()))
            }
        };
        let score = |score| match set.is_large() {
            true => format_double(score),
            false => format_compact(score),
        };
        let text = |entry: Entry<'_>| Reply::Bulk(score(entry.score).into_bytes().into());
        let part = part.into_iter().flat_map(|Named(entry)| [bulk(entry.member), text(entry)]);
        Ok((scanned(next, part.collect()), Change::Keep))
    };
}

/// A member with its score, told apart by its name.
#[derive(Clone, Copy)]
struct Named<'a>(Entry<'a>);

impl AsRef<[u8]> for Named<'_> {
    fn as_ref(&self) -> &[u8] {
        self.0.member
    }
}

/// A score as Redis shows what it keeps in a listpack: whole numbers are integers there.
fn format_compact(score: f64) -> String {
    /// Half of what 63 bits hold.
    const WHOLE_MAX: f64 = (i64::MAX / 2) as f64;
    if score.abs() > WHOLE_MAX || score as i64 as f64 != score {
        return format_double(score);
    }
    let digits = format_integer(score as i64, &mut [0; 20]).to_vec();
    String::from_utf8(digits).expect("digits are text")
}

/// Takes so many members from an end, the outermost first, and the change that leaves the others.
pub(crate) fn take<'a, 'b>(
    set: SortedSet<'a>,
    end: End,
    count: usize,
    current: Current<'_>,
) -> Result<(Vec<Entry<'a>>, Change<'b>), Reply<'static>> {
    if let Some(large) = set.large {
        let count = count.min(large.len());
        let first = if end == End::Min { 0 } else { large.len() - count };
        let mut taken: Vec<_> = large.entries_from(first).take(count).collect();
        if end == End::Max {
            taken.reverse();
        }
        return Ok((taken, set.without(first, count, current)?));
    }
    let mut entries = set.packed_entries();
    let (taken, stretch) = match end {
        End::Min => {
            let taken: Vec<_> = entries.by_ref().take(count).collect();
            (taken, entries.rest)
        }
        End::Max => {
            entries.by_ref().take(set.count.saturating_sub(count)).for_each(drop);
            let stretch = &set.bytes[..set.bytes.len() - entries.rest.len()];
            let mut taken: Vec<_> = entries.collect();
            taken.reverse();
            (taken, stretch)
        }
    };
    let change = match taken.len() {
        0 => Change::Keep,
        taken => set.keep(set.count.saturating_sub(taken), [stretch, &[]], current)?,
    };
    Ok((taken, change))
}

fn pop<'a>(end: End, args: Args<'a>, current: Current<'a>) -> Outcome<'a> {
    let count = match args.len() {
        2 => None,
        3 => Some(positive_count(args.get(2))?),
        _ => return Err(SYNTAX),
    };
    let set = SortedSet::or_empty(current)?;
    let (taken, change) = take(set, end, count.unwrap_or(1), current)?;
    if count.is_some() {
        return Ok((reply(taken, true), change));
    }
    let flat = taken.into_iter().flat_map(|entry| [bulk(entry.member), Reply::Double(entry.score)]);
    Ok((Reply::Array(flat.collect()), change))
}

/// What `ZMPOP` does to its key if all are the same one.
pub(crate) fn zmpop_access(args: Args<'_>) -> Access {
    let count = parse_integer(args.get(1)).and_then(|count| usize::try_from(count).ok());
    let is_one_key = |count| args.iter().skip(2).take(count).all(|key| key == args.get(2));
    if count.is_some_and(is_one_key) { Access::Update } else { Access::Read }
}

/// `ZMPOP numkeys key ... MIN|MAX [COUNT count]`.
pub(crate) fn zmpop(
    args: Args<'_>,
    _: UnixMillis,
    workspace: &mut dyn Workspace,
) -> Reply<'static> {
    pop_first(args, || Ok(()), workspace).unwrap_or_else(|error| error)
}

/// `ZMPOP`, if nothing else is wrong with the call than its own arguments.
pub(crate) fn pop_first(
    args: Args<'_>,
    check: impl FnOnce() -> Result<(), Reply<'static>>,
    workspace: &mut dyn Workspace,
) -> Result<Reply<'static>, Reply<'static>> {
    let keys = parse_integer(args.get(1))
        .filter(|keys| *keys > 0)
        .ok_or(Reply::error("ERR numkeys should be greater than 0"))? as usize;
    let end = match args.iter().skip(2).nth(keys).ok_or(SYNTAX)? {
        word if is_word(word, "MIN") => End::Min,
        word if is_word(word, "MAX") => End::Max,
        _ => return Err(SYNTAX),
    };
    let count = pop_count(args, 3 + keys)?;
    check()?;
    for key in args.iter().skip(2).take(keys) {
        let current = workspace.read(key);
        let Some(set) = SortedSet::of(current)? else { continue };
        let (taken, change) = take(set, end, count, current)?;
        let pair = |entry: Entry<'_>| {
            Reply::Array([bulk(entry.member), Reply::Double(entry.score)].into()).into_owned()
        };
        let taken = Reply::Array(taken.into_iter().map(pair).collect());
        workspace.write(key, change);
        return Ok(Reply::Array([bulk(key).into_owned(), taken].into()));
    }
    Ok(Reply::NullArray)
}

/// Takes a member from an end of a key's sorted set: `BZPOPMIN` and `BZPOPMAX`. The key, the member and
/// its score; `None` if there is none.
///
/// # Errors
/// If the key holds something else.
pub(crate) fn pop_one(
    key: &[u8],
    end: End,
    workspace: &mut dyn Workspace,
) -> Result<Option<Reply<'static>>, Reply<'static>> {
    let current = workspace.read(key);
    let Some(set) = SortedSet::of(current)? else { return Ok(None) };
    let (taken, change) = take(set, end, 1, current)?;
    let taken = taken.first().map(|entry| {
        let member = bulk(entry.member).into_owned();
        Reply::Array([bulk(key).into_owned(), member, Reply::Double(entry.score)].into())
    });
    workspace.write(key, change);
    Ok(taken)
}

fn try_zrandmember<'a>(args: Args<'a>, now: UnixMillis, current: Current<'a>) -> Outcome<'a> {
    let mut draw = rng(args, now, current);
    if args.len() == 2 {
        let Some(set) = SortedSet::of(current)? else { return Ok((Reply::Null, Change::Keep)) };
        let at = draw.below(set.count.max(1) as u64) as usize;
        let drawn = set.entries_from(at).next().map_or(Reply::Null, |entry| bulk(entry.member));
        return Ok((drawn, Change::Keep));
    }
    let count = Count::parse(args.get(2))?;
    let with_scores = args.len() > 3;
    if args.len() > 4 || with_scores && !is_word(args.get(3), "WITHSCORES") {
        return Err(SYNTAX);
    }
    if with_scores && count.is_beyond_half() {
        return Err(Reply::error("ERR value is out of range"));
    }
    let set = SortedSet::or_empty(current)?;
    if let Some(large) = set.large {
        let drawn = count.draw(large.len(), &mut draw)?.into_iter().rev();
        let drawn = drawn.filter_map(|at| large.entries_from(at).next()).collect();
        return Ok((reply(drawn, with_scores), Change::Keep));
    }
    let entries: Vec<_> = set.entries().collect();
    if entries.is_empty() {
        return Ok((Reply::Array(Vec::new()), Change::Keep));
    }
    let drawn = count.draw(entries.len(), &mut draw)?;
    // All of them come from the end on, as in Redis.
    let drawn = drawn.into_iter().rev().map(|at| entries[at]).collect();
    Ok((reply(drawn, with_scores), Change::Keep))
}
