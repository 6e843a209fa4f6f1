//! Lists.

use alloc::vec;
use alloc::vec::Vec;

use quorate_collections::{self as collections, Delta, Step};
use quorate_machine::{Access, Change, Current, ValueKind, Workspace};
use quorate_types::{UnixMillis, limits};

use crate::number::{integer, parse_integer};
use crate::options::{SYNTAX, is_word};
use crate::packed::{Builder, LENGTH_BYTES_MAX, Packed, replace};
use crate::string::{Outcome, key_functions};
use crate::{Args, Reply, large};

/// An end of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    Left,
    Right,
}

key_functions! {
    lpush => |args, _, current| push(End::Left, true, args, current);
    rpush => |args, _, current| push(End::Right, true, args, current);
    lpushx => |args, _, current| push(End::Left, false, args, current);
    rpushx => |args, _, current| push(End::Right, false, args, current);
    lpop => |args, _, current| pop(End::Left, args, current);
    rpop => |args, _, current| pop(End::Right, args, current);
    llen => |_, _, current| {
        Ok((Reply::Int(List::held(current)?.map_or(0, List::len) as i64), Change::Keep))
    };
    lindex => |args, _, current| {
        let Some(list) = List::held(current)? else { return Ok((Reply::Null, Change::Keep)) };
        let at = position(integer(args.get(2))?, list.len());
        let item = at.and_then(|at| list.items_from(at).next());
        Ok((item.map_or(Reply::Null, bulk), Change::Keep))
    };
    lset => |args, _, current| try_lset(args, current);
    lrange => |args, _, current| {
        let (start, end) = (integer(args.get(2))?, integer(args.get(3))?);
        let list = List::of(current)?;
        let (start, end) = range(start, end, list.len());
        Ok((Reply::Array(list.items_from(start).take(end - start).map(bulk).collect()), Change::Keep))
    };
    ltrim => |args, _, current| {
        let (start, end) = (integer(args.get(2))?, integer(args.get(3))?);
        let Some(list) = List::held(current)? else { return Ok((Reply::Ok, Change::Keep)) };
        let (start, end) = range(start, end, list.len());
        if end - start == list.len() {
            return Ok((Reply::Ok, Change::Keep));
        }
        let change = match list {
            List::Packed(packed) => {
                let mut items = packed.items();
                items.by_ref().take(start).for_each(drop);
                let from = items.rest;
                items.by_ref().take(end - start).for_each(drop);
                let kept = &from[..from.len() - items.rest.len()];
                store(end - start, &[kept], current)?
            }
            List::Large(large) => {
                let mut delta = Delta::new();
                cut(end, large.len() - end, &mut delta);
                cut(0, start, &mut delta);
                large::change(delta, end - start, current)?
            }
        };
        Ok((Reply::Ok, change))
    };
    lrem => |args, _, current| try_lrem(args, current);
    linsert => |args, _, current| try_linsert(args, current);
    lpos => |args, _, current| try_lpos(args, current);
}

/// A list as it lies in a value.
#[derive(Clone, Copy)]
enum List<'a> {
    Packed(Packed<'a>),
    Large(&'a collections::List),
}

impl<'a> List<'a> {
    /// What the key holds, if it holds anything.
    ///
    /// # Errors
    /// If it holds something else.
    fn held(current: Current<'a>) -> Result<Option<Self>, Reply<'static>> {
        match current.large.and_then(|large| large.list()) {
            Some(large) => Ok(Some(Self::Large(large))),
            None => Ok(Packed::of(current, ValueKind::List)?.map(Self::Packed)),
        }
    }

    /// The same, empty if the key holds nothing.
    fn of(current: Current<'a>) -> Result<Self, Reply<'static>> {
        Ok(Self::held(current)?.unwrap_or(Self::Packed(Packed::EMPTY)))
    }

    fn len(self) -> usize {
        match self {
            Self::Packed(packed) => packed.count,
            Self::Large(large) => large.len(),
        }
    }

    /// The items from this one on.
    fn items_from(self, at: usize) -> impl Iterator<Item = &'a [u8]> + Clone {
        let (packed, large) = match self {
            Self::Packed(packed) => (Some(packed.items().skip(at)), None),
            Self::Large(large) => (None, Some(large.items_from(at))),
        };
        packed.into_iter().flatten().chain(large.into_iter().flatten())
    }
}

/// Takes items out of a large list.
fn cut(at: usize, count: usize, delta: &mut Delta) {
    if count > 0 {
        delta.push(Step::Cut { at, count });
    }
}

fn bulk(bytes: &[u8]) -> Reply<'_> {
    Reply::Bulk(bytes.into())
}

/// The place that an index, from the end if negative, names among so many.
fn position(index: i64, length: usize) -> Option<usize> {
    let at = if index < 0 { index.checked_add(length as i64)? } else { index };
    usize::try_from(at).ok().filter(|&at| at < length)
}

/// The half-open range that an inclusive one with indexes from the end, if negative, means among so
/// many. Unlike with a string, one that ends before the beginning is empty.
fn range(start: i64, end: i64, length: usize) -> (usize, usize) {
    let from_end = |index: i64| if index < 0 { index.saturating_add(length as i64) } else { index };
    let (start, end) = (from_end(start).max(0), from_end(end).min(length as i64 - 1));
    if start > end { (0, 0) } else { (start as usize, end as usize + 1) }
}

/// The change that leaves so many items, which stand in these stretches one behind the other.
fn store<'a>(
    count: usize,
    stretches: &[&[u8]],
    current: Current<'_>,
) -> Result<Change<'a>, Reply<'static>> {
    let mut builder = Builder::new(0, stretches.iter().map(|stretch| stretch.len()).sum());
    stretches.iter().for_each(|stretch| builder.raw(stretch));
    replace(builder.finish(count), ValueKind::List, current)
}

fn push<'a>(end: End, make: bool, args: Args<'a>, current: Current<'a>) -> Outcome<'a> {
    let list = match List::held(current)? {
        None if !make => return Ok((Reply::Int(0), Change::Keep)),
        list => list.unwrap_or(List::Packed(Packed::EMPTY)),
    };
    let count = list.len() + args.len() - 2;
    let reply = Reply::Int(count as i64);
    let list = match list {
        List::Packed(packed) => packed,
        List::Large(large) => {
            let mut delta = Delta::new();
            match end {
                End::Left => {
                    delta.insert(0, (2..args.len()).rev().map(|at| args.get(at)));
                }
                End::Right => delta.insert(large.len(), args.iter().skip(2)),
            }
            return Ok((reply, large::change(delta, count, current)?));
        }
    };
    let new: usize = args.iter().skip(2).map(|item| item.len() + 5).sum();
    let mut builder = Builder::new(0, list.items.len() + new);
    match end {
        End::Left => {
            (2..args.len()).rev().for_each(|at| builder.item(args.get(at)));
            builder.raw(list.items);
        }
        End::Right => {
            builder.raw(list.items);
            args.iter().skip(2).for_each(|item| builder.item(item));
        }
    }
    Ok((reply, replace(builder.finish(count), ValueKind::List, current)?))
}

/// Takes so many items from an end, the outermost first, and the change that leaves the others.
fn take<'a, 'b>(
    list: List<'a>,
    end: End,
    count: usize,
    current: Current<'_>,
) -> Result<(Vec<&'a [u8]>, Change<'b>), Reply<'static>> {
    let packed = match list {
        List::Packed(packed) => packed,
        List::Large(large) => {
            let count = count.min(large.len());
            let at = if end == End::Left { 0 } else { large.len() - count };
            let mut taken: Vec<_> = large.items_from(at).take(count).collect();
            if end == End::Right {
                taken.reverse();
            }
            let mut delta = Delta::new();
            cut(at, count, &mut delta);
            return Ok((taken, large::change(delta, large.len() - count, current)?));
        }
    };
    let (taken, kept) = take_packed(packed, end, count);
    let change = store(packed.count.saturating_sub(taken.len()), &[kept], current)?;
    Ok((taken, change))
}

/// Takes so many items from an end, the outermost first. The stretch that stays is the other part.
fn take_packed(list: Packed<'_>, end: End, count: usize) -> (Vec<&[u8]>, &[u8]) {
    let mut items = list.items();
    match end {
        End::Left => {
            let taken = items.by_ref().take(count).collect();
            (taken, items.rest)
        }
        End::Right => {
            items.by_ref().take(list.count.saturating_sub(count)).for_each(drop);
            let kept = &list.items[..list.items.len() - items.rest.len()];
            let mut taken: Vec<_> = items.collect();
            taken.reverse();
            (taken, kept)
        }
    }
}

fn pop<'a>(end: End, args: Args<'a>, current: Current<'a>) -> Outcome<'a> {
    let count = match args.len() {
        2 => None,
        3 => Some(positive_count(args.get(2))?),
        _ => return Err(crate::several::wrong_number_of_arguments(args)),
    };
    let Some(list) = List::held(current)? else {
        let nothing = if count.is_some() { Reply::NullArray } else { Reply::Null };
        return Ok((nothing, Change::Keep));
    };
    if count == Some(0) {
        return Ok((Reply::Array(vec![]), Change::Keep));
    }
    let (taken, change) = take(list, end, count.unwrap_or(1), current)?;
    let mut taken = taken.into_iter().map(bulk);
    let reply = match count {
        Some(_) => Reply::Array(taken.collect()),
        None => taken.next().unwrap_or(Reply::Null),
    };
    Ok((reply, change))
}

/// A count that may be nothing.
pub(crate) fn positive_count(word: &[u8]) -> Result<usize, Reply<'static>> {
    parse_integer(word)
        .and_then(|count| usize::try_from(count).ok())
        .ok_or(Reply::error("ERR value is out of range, must be positive"))
}

fn try_lset<'a>(args: Args<'a>, current: Current<'a>) -> Outcome<'a> {
    let list = List::held(current)?.ok_or(Reply::error("ERR no such key"))?;
    let at = position(integer(args.get(2))?, list.len())
        .ok_or(Reply::error("ERR index out of range"))?;
    let list = match list {
        List::Packed(packed) => packed,
        List::Large(large) => {
            let mut delta = Delta::new();
            cut(at, 1, &mut delta);
            delta.insert(at, [args.get(3)].into_iter());
            return Ok((Reply::Ok, large::change(delta, large.len(), current)?));
        }
    };
    let mut items = list.items();
    items.by_ref().take(at).for_each(drop);
    let from = list.position(&items);
    items.next();
    let bytes = list.splice(0, list.count, from..list.position(&items), &[args.get(3)]);
    Ok((Reply::Ok, replace(bytes, ValueKind::List, current)?))
}

fn try_lrem<'a>(args: Args<'a>, current: Current<'a>) -> Outcome<'a> {
    let (count, wanted) = (integer(args.get(2))?, args.get(3));
    let Some(list) = List::held(current)? else { return Ok((Reply::Int(0), Change::Keep)) };
    let most = match count.unsigned_abs() as usize {
        0 => usize::MAX,
        most => most,
    };
    let numbers = list.items_from(0).enumerate().filter(|(_, item)| *item == wanted);
    let mut found: Vec<usize> = numbers.map(|(number, _)| number).collect();
    let removed = found.len().min(most);
    if removed == 0 {
        return Ok((Reply::Int(0), Change::Keep));
    }
    if count < 0 {
        found.drain(..found.len() - removed);
    }
    found.truncate(removed);
    let change = match list {
        List::Packed(packed) => {
            let mut builder = Builder::new(0, packed.items.len());
            let (mut items, mut number, mut from) = (packed.items(), 0, packed.items);
            for place in found {
                // The items before it stay.
                items.by_ref().take(place - number).for_each(drop);
                builder.raw(&from[..from.len() - items.rest.len()]);
                items.next();
                (number, from) = (place + 1, items.rest);
            }
            builder.raw(from);
            let bytes = builder.finish(packed.count.saturating_sub(removed));
            replace(bytes, ValueKind::List, current)?
        }
        List::Large(large) => {
            let mut delta = Delta::new();
            found.into_iter().rev().for_each(|at| cut(at, 1, &mut delta));
            large::change(delta, large.len() - removed, current)?
        }
    };
    Ok((Reply::Int(removed as i64), change))
}

fn try_linsert<'a>(args: Args<'a>, current: Current<'a>) -> Outcome<'a> {
    let behind = match args.get(2) {
        word if is_word(word, "AFTER") => true,
        word if is_word(word, "BEFORE") => false,
        _ => return Err(SYNTAX),
    };
    let Some(list) = List::held(current)? else { return Ok((Reply::Int(0), Change::Keep)) };
    let Some(found) = list.items_from(0).position(|item| item == args.get(3)) else {
        return Ok((Reply::Int(-1), Change::Keep));
    };
    let (at, count) = (found + usize::from(behind), list.len() + 1);
    let change = match list {
        List::Packed(packed) => {
            let mut items = packed.items();
            items.by_ref().take(at).for_each(drop);
            let place = packed.position(&items);
            let bytes = packed.splice(0, count, place..place, &[args.get(4)]);
            replace(bytes, ValueKind::List, current)?
        }
        List::Large(_) => {
            let mut delta = Delta::new();
            delta.insert(at, [args.get(4)].into_iter());
            large::change(delta, count, current)?
        }
    };
    Ok((Reply::Int(count as i64), change))
}

fn try_lpos<'a>(args: Args<'a>, current: Current<'a>) -> Outcome<'a> {
    let (mut rank, mut count, mut looked_at) = (1, None, 0);
    let mut words = args.iter().skip(3);
    while let Some(word) = words.next() {
        let value = words.next().ok_or(SYNTAX)?;
        let positive = |text| {
            let number = parse_integer(value).and_then(|number| u64::try_from(number).ok());
            number.ok_or(Reply::error(text))
        };
        if is_word(word, "RANK") {
            rank = integer(value)?;
            if rank == 0 {
                return Err(Reply::error(
                    "ERR RANK can't be zero: use 1 to start from the first match, 2 from the \
                     second ... or use negative to start from the end of the list",
                ));
            }
        } else if is_word(word, "COUNT") {
            count = Some(positive("ERR COUNT can't be negative")?);
        } else if is_word(word, "MAXLEN") {
            looked_at = positive("ERR MAXLEN can't be negative")?;
        } else {
            return Err(SYNTAX);
        }
    }
    let list = List::of(current)?;
    let most = |number: u64| if number == 0 { usize::MAX } else { number as usize };
    // The smallest number has no positive one: Redis negates it and takes it for less than one.
    let skipped = rank.checked_abs().map_or(0, |rank| rank as usize - 1);
    let wanted = most(count.unwrap_or(1));
    let here = |(at, item): (usize, &[u8])| (item == args.get(2)).then_some(at);
    let found: Vec<usize> = if rank > 0 {
        let looked = list.items_from(0).enumerate().take(most(looked_at));
        looked.filter_map(here).skip(skipped).take(wanted).collect()
    } else {
        let from = list.len().saturating_sub(most(looked_at));
        let numbered =
            list.items_from(from).enumerate().map(|(number, item)| (from + number, item));
        let found: Vec<_> = numbered.filter_map(here).collect();
        found.into_iter().rev().skip(skipped).take(wanted).collect()
    };
    let mut found = found.into_iter().map(|at| Reply::Int(at as i64));
    let reply = match count {
        Some(_) => Reply::Array(found.collect()),
        None => found.next().unwrap_or(Reply::Null),
    };
    Ok((reply, Change::Keep))
}

impl End {
    pub(crate) fn parse(word: &[u8]) -> Result<Self, Reply<'static>> {
        match word {
            word if is_word(word, "LEFT") => Ok(Self::Left),
            word if is_word(word, "RIGHT") => Ok(Self::Right),
            _ => Err(SYNTAX),
        }
    }
}

pub(crate) fn lmove(
    args: Args<'_>,
    _: UnixMillis,
    workspace: &mut dyn Workspace,
) -> Reply<'static> {
    let ends = End::parse(args.get(3)).and_then(|from| Ok((from, End::parse(args.get(4))?)));
    let moved = ends.and_then(|(from, to)| move_item(args, from, to, workspace));
    moved.unwrap_or_else(|error| error)
}

pub(crate) fn rpoplpush(
    args: Args<'_>,
    _: UnixMillis,
    workspace: &mut dyn Workspace,
) -> Reply<'static> {
    move_item(args, End::Right, End::Left, workspace).unwrap_or_else(|error| error)
}

/// What `LMOVE` and `RPOPLPUSH` do to their key if both are the same one.
pub(crate) fn move_access(args: Args<'_>) -> Access {
    if args.get(1) == args.get(2) { Access::Update } else { Access::Read }
}

fn move_item(
    args: Args<'_>,
    from: End,
    to: End,
    workspace: &mut dyn Workspace,
) -> Result<Reply<'static>, Reply<'static>> {
    let (source, target) = (args.get(1), args.get(2));
    let current = workspace.read(source);
    let Some(list) = List::held(current)? else { return Ok(Reply::Null) };
    let (taken, rest) = take(list, from, 1, current)?;
    let item = Vec::from(taken.first().copied().unwrap_or_default());
    if source == target {
        let change = match list {
            List::Packed(packed) => {
                let (_, kept) = take_packed(packed, from, 1);
                let left = packed.count.saturating_sub(1);
                replace(with(kept, left, to, &item), ValueKind::List, current)?.into_owned()
            }
            List::Large(large) => {
                let left = large.len() - 1;
                let mut delta = Delta::new();
                cut(if from == End::Left { 0 } else { left }, 1, &mut delta);
                delta.insert(if to == End::Left { 0 } else { left }, [&item[..]].into_iter());
                large::change(delta, large.len(), current)?
            }
        };
        workspace.write(target, change);
        return Ok(Reply::Bulk(item.into()));
    }
    // What the target is to hold is known before anything is written: an error changes nothing.
    let current = workspace.read(target);
    let change = match List::of(current)? {
        List::Packed(packed) => {
            let bytes = with(packed.items, packed.count, to, &item);
            replace(bytes, ValueKind::List, current)?
        }
        List::Large(large) => {
            let mut delta = Delta::new();
            delta.insert(if to == End::Left { 0 } else { large.len() }, [&item[..]].into_iter());
            large::change(delta, large.len() + 1, current)?
        }
    };
    workspace.write(source, rest);
    workspace.write(target, change);
    Ok(Reply::Bulk(item.into()))
}

/// The bytes of a list of so many items with one more at an end.
fn with(items: &[u8], count: usize, end: End, item: &[u8]) -> Vec<u8> {
    let mut builder = Builder::new(0, items.len() + item.len() + LENGTH_BYTES_MAX);
    if end == End::Left {
        builder.item(item);
    }
    builder.raw(items);
    if end == End::Right {
        builder.item(item);
    }
    builder.finish(count + 1)
}

/// `LMPOP numkeys key ... LEFT|RIGHT [COUNT count]`.
pub(crate) fn lmpop(
    args: Args<'_>,
    _: UnixMillis,
    workspace: &mut dyn Workspace,
) -> Reply<'static> {
    pop_first(args, || Ok(()), workspace).unwrap_or_else(|error| error)
}

/// What a command does to its key that changes the first one of those counted: if all are the same one;
/// a read, which answers an error, otherwise.
pub(crate) fn counted_access(args: Args<'_>) -> Access {
    let Ok(keys) = counted_keys(args, 1) else { return Access::Read };
    let same = args.iter().skip(3).take(keys - 1).all(|key| key == args.get(2));
    if same { Access::Update } else { Access::Read }
}

/// `LMPOP`, if nothing else is wrong with the call than its own arguments.
pub(crate) fn pop_first(
    args: Args<'_>,
    check: impl FnOnce() -> Result<(), Reply<'static>>,
    workspace: &mut dyn Workspace,
) -> Result<Reply<'static>, Reply<'static>> {
    let keys = counted_keys(args, 1)?;
    let end = End::parse(args.iter().nth(2 + keys).ok_or(SYNTAX)?)?;
    let count = pop_count(args, 3 + keys)?;
    check()?;
    for key in args.iter().skip(2).take(keys) {
        if let Some(taken) = pop_from(key, end, count, workspace)? {
            return Ok(Reply::Array(vec![Reply::Bulk(Vec::from(key).into()), Reply::Array(taken)]));
        }
    }
    Ok(Reply::NullArray)
}

/// Takes up to so many items from an end of a key's list, the outermost first. Nothing if it has none.
///
/// # Errors
/// If the key holds something else.
pub(crate) fn pop_from(
    key: &[u8],
    end: End,
    count: usize,
    workspace: &mut dyn Workspace,
) -> Result<Option<Vec<Reply<'static>>>, Reply<'static>> {
    let current = workspace.read(key);
    let Some(list) = List::held(current)? else { return Ok(None) };
    let (taken, change) = take(list, end, count, current)?;
    let taken = taken.into_iter().map(|item| Reply::Bulk(Vec::from(item).into())).collect();
    workspace.write(key, change);
    Ok(Some(taken))
}

/// How many keys the argument at this place announces.
///
/// # Errors
/// If that is no positive number, or more than there are arguments behind it.
pub(crate) fn counted_keys(args: Args<'_>, at: usize) -> Result<usize, Reply<'static>> {
    let keys = parse_integer(args.get(at))
        .filter(|keys| (1..=i64::from(i32::MAX)).contains(keys))
        .ok_or(Reply::error("ERR numkeys should be greater than 0"))?;
    Some(keys as usize).filter(|keys| at + keys < args.len()).ok_or(SYNTAX)
}

/// The option `COUNT count` of commands that take from the first key that has something; 1 without.
pub(crate) fn pop_count(args: Args<'_>, from: usize) -> Result<usize, Reply<'static>> {
    let mut count = None;
    let mut words = args.iter().skip(from);
    while let Some(word) = words.next() {
        let value = words.next().filter(|_| count.is_none() && is_word(word, "COUNT"));
        let number = parse_integer(value.ok_or(SYNTAX)?).filter(|number| *number > 0);
        count = Some(number.ok_or(Reply::error("ERR count should be greater than 0"))?);
    }
    Ok(count.map_or(1, |count| (count as usize).min(limits::VALUE_BYTES_MAX)))
}
