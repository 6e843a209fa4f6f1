//! Sets.
//!
//! A set of integers is their sequence in order, each of two, four or eight bytes, as its form says;
//! any other set is items in the order in which they came.

use alloc::borrow::Cow;
use alloc::vec;
use alloc::vec::Vec;

use quorate_collections::{self as collections, Delta, Step};
use quorate_machine::{Change, Content, Current, ValueKind};
use quorate_types::UnixMillis;

use crate::list::positive_count;
use crate::named::Named;
use crate::number::{format_integer, parse_integer};
use crate::options::SYNTAX;
use crate::packed::{Builder, Packed, STRINGS, replace};
use crate::sample::{Count, Scan, distinct, rng, scanned};
use crate::string::{Outcome, key_functions};
use crate::{Args, Reply, large};

/// Members of a set in Redis's compact encoding, which only integers have (`set-max-intset-entries`).
const COMPACT_MEMBERS_MAX: usize = 512;

key_functions! {
    sadd => |args, _, current| try_sadd(args, current);
    srem => |args, _, current| try_srem(args, current);
    scard => |_, _, current| Ok((Reply::Int(Set::of(current)?.len() as i64), Change::Keep));
    sismember => |args, _, current| {
        Ok((Reply::Int(i64::from(Set::of(current)?.contains(args.get(2)))), Change::Keep))
    };
    smismember => |args, _, current| {
        let set = Set::of(current)?;
        if let Set::Large(large) = set {
            let is_member = |member| Reply::Int(i64::from(large.contains(member)));
            return Ok((Reply::Array(args.iter().skip(2).map(is_member).collect()), Change::Keep));
        }
        let mut named = Named::new(args.iter().skip(2));
        let mut members = set.members();
        while !named.all_met()
            && let Some(member) = members.next()
        {
            named.meet(&member);
        }
        let is_member = |member| Reply::Int(i64::from(named.is_met(member)));
        Ok((Reply::Array(args.iter().skip(2).map(is_member).collect()), Change::Keep))
    };
    smembers => |_, _, current| {
        Ok((Reply::Set(Set::of(current)?.members().map(Reply::Bulk).collect()), Change::Keep))
    };
    spop => |args, now, current| try_spop(args, now, current);
    srandmember => |args, now, current| try_srandmember(args, now, current);
    sscan => |args, _, current| {
        let scan = Scan::parse(args)?;
        let Some(set) = Set::held(current)? else {
            return Ok((scanned(0, Vec::new()), Change::Keep));
        };
        let scan = scan.options(args)?;
        let (next, part) = match set {
            Set::Integers(_) => scan.part(true, set.members()),
            Set::Strings(_) => scan.part(false, set.members()),
            Set::Large(large) => {
                let (place, count) = scan.wanted();
                let (next, part) = scan.part_of(large.part(place, count));
                (next, part.into_iter().map(Cow::Borrowed).collect())
            }
        };
        Ok((scanned(next, part.into_iter().map(Reply::Bulk).collect()), Change::Keep))
    };
}

/// A set as it lies in a value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Set<'a> {
    Integers(Integers<'a>),
    Strings(Packed<'a>),
    Large(&'a collections::Set),
}

/// Integers in order, each of so many bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Integers<'a> {
    bytes: &'a [u8],
    form: u8,
}

impl<'a> Set<'a> {
    const EMPTY: Set<'static> = Set::Integers(Integers { bytes: &[], form: 0 });

    /// What the key holds, if it holds anything.
    ///
    /// # Errors
    /// If it holds something else.
    pub(crate) fn held(current: Current<'a>) -> Result<Option<Self>, Reply<'static>> {
        match current.large.and_then(|large| large.set()) {
            Some(large) => Ok(Some(Self::Large(large))),
            None => Ok(Packed::of(current, ValueKind::Set)?.map(Self::read)),
        }
    }

    /// The same, empty if the key holds nothing.
    pub(crate) fn of(current: Current<'a>) -> Result<Self, Reply<'static>> {
        Ok(Self::held(current)?.unwrap_or(Self::EMPTY))
    }

    pub(crate) fn read(packed: Packed<'a>) -> Self {
        match packed.form {
            form @ 0..STRINGS => Self::Integers(Integers { bytes: packed.items, form }),
            _ => Self::Strings(packed),
        }
    }

    /// The set in the bytes of a value.
    pub(crate) fn of_bytes(bytes: &'a [u8]) -> Self {
        Self::read(Packed::read(Content { bytes, kind: ValueKind::Set, expire_at: None }))
    }

    /// What `OBJECT ENCODING` says of it.
    pub(crate) fn encoding(self) -> &'static str {
        if matches!(self, Self::Integers(_)) { "intset" } else { "hashtable" }
    }

    pub(crate) fn len(self) -> usize {
        match self {
            Self::Integers(integers) => integers.len(),
            Self::Strings(strings) => strings.count,
            Self::Large(large) => large.len(),
        }
    }

    pub(crate) fn contains(self, member: &[u8]) -> bool {
        match self {
            Self::Integers(integers) => {
                parse_integer(member).is_some_and(|number| integers.contains(number))
            }
            Self::Strings(strings) => strings.items().any(|held| held == member),
            Self::Large(large) => large.contains(member),
        }
    }

    pub(crate) fn members(self) -> impl Iterator<Item = Cow<'a, [u8]>> + Clone {
        let (integers, strings, large) = match self {
            Self::Integers(integers) => (Some(integers), None, None),
            Self::Strings(strings) => (None, Some(strings.items()), None),
            Self::Large(large) => (None, None, Some(large.members_from(0))),
        };
        let text = |number| Cow::Owned(format_integer(number, &mut [0; 20]).to_vec());
        let integers = integers.into_iter().flat_map(Integers::iter).map(text);
        let strings = strings.into_iter().flatten().chain(large.into_iter().flatten());
        integers.chain(strings.map(Cow::Borrowed))
    }
}

impl<'a> Integers<'a> {
    pub(crate) fn new(bytes: &'a [u8], form: u8) -> Self {
        Self { bytes, form }
    }

    /// The width of each, and they.
    pub(crate) fn bytes(self) -> (usize, &'a [u8]) {
        (self.width(), self.bytes)
    }

    fn width(self) -> usize {
        2 << self.form
    }

    fn len(self) -> usize {
        self.bytes.len() / self.width()
    }

    fn number(bytes: &[u8]) -> i64 {
        match *bytes {
            [a, b] => i16::from_le_bytes([a, b]).into(),
            [a, b, c, d] => i32::from_le_bytes([a, b, c, d]).into(),
            _ => bytes.first_chunk().map_or(0, |bytes| i64::from_le_bytes(*bytes)),
        }
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = i64> + Clone + use<'a> {
        self.bytes.chunks_exact(self.width()).map(Self::number)
    }

    fn contains(self, number: i64) -> bool {
        let (chunk, width) = (|at: usize| &self.bytes[at * self.width()..], self.width());
        let (mut from, mut to) = (0, self.len());
        while from < to {
            let middle = from.midpoint(to);
            match Self::number(&chunk(middle)[..width]).cmp(&number) {
                core::cmp::Ordering::Equal => return true,
                core::cmp::Ordering::Less => from = middle + 1,
                core::cmp::Ordering::Greater => to = middle,
            }
        }
        false
    }
}

/// The value that holds these integers, which are in order, as wide as it was at least. Too many of them
/// are strings.
pub(crate) fn of_integers(numbers: &[i64], form: u8) -> Vec<u8> {
    if numbers.len() > COMPACT_MEMBERS_MAX {
        let mut builder = Builder::new(STRINGS, numbers.len() * 8);
        numbers.iter().for_each(|number| builder.item(format_integer(*number, &mut [0; 20])));
        return builder.finish(numbers.len());
    }
    let ends = [numbers.first(), numbers.last()];
    let needed = |end: Option<&i64>| match end.copied().unwrap_or_default() {
        -0x8000..0x8000 => 0,
        -0x8000_0000..0x8000_0000 => 1,
        _ => 2,
    };
    let form = ends.map(needed).into_iter().fold(form, u8::max);
    let mut builder = Builder::new(form, numbers.len() << (form + 1));
    numbers.iter().for_each(|number| builder.raw(&number.to_le_bytes()[..2 << form]));
    builder.finish(numbers.len())
}

/// The value of a new set with these members, which are all different.
pub(crate) fn of_members(members: &[Cow<'_, [u8]>]) -> Vec<u8> {
    if is_compact(members) {
        let mut numbers: Vec<_> =
            members.iter().filter_map(|member| parse_integer(member)).collect();
        numbers.sort_unstable();
        return of_integers(&numbers, 0);
    }
    let mut builder = Builder::new(STRINGS, members.iter().map(|member| member.len() + 1).sum());
    members.iter().for_each(|member| builder.item(member));
    builder.finish(members.len())
}

/// Whether a new set of these members would be a set of integers.
pub(crate) fn is_compact(members: &[Cow<'_, [u8]>]) -> bool {
    members.len() <= COMPACT_MEMBERS_MAX
        && members.iter().all(|member| parse_integer(member).is_some())
}

/// Adds members to a set. How many weren't there yet, and the change if any.
pub(crate) fn add<'a, 'm>(
    set: Set<'_>,
    members: impl Iterator<Item = &'m [u8]> + Clone,
    current: Current<'_>,
) -> Result<(usize, Change<'a>), Reply<'static>> {
    let integers;
    let strings = match set {
        Set::Large(large) => {
            let named = Named::new(members);
            let (mut delta, mut added) = (Delta::new(), 0);
            let names = (0..named.len()).map(|number| named.get(number).name);
            for name in names.filter(|name| !large.contains(name)) {
                delta.push(Step::Add(name));
                added += 1;
            }
            return Ok((added, large::change(delta, large.len() + added, current)?));
        }
        Set::Strings(strings) => strings,
        Set::Integers(held) => {
            let mut numbers: Vec<_> = held.iter().collect();
            let new: Option<Vec<i64>> = members.clone().map(parse_integer).collect();
            if let Some(new) = new {
                numbers.extend(new);
                // Two sequences, the first in order.
                numbers.sort();
                numbers.dedup();
                let added = numbers.len().saturating_sub(held.len());
                let change = match added {
                    0 => Change::Keep,
                    _ => replace(of_integers(&numbers, held.form), ValueKind::Set, current)?,
                };
                return Ok((added, change));
            }
            let names: Vec<_> = Set::Integers(held).members().collect();
            let mut builder = Builder::new(STRINGS, names.len() * 8);
            names.iter().for_each(|name| builder.item(name));
            integers = builder.finish(names.len());
            Packed::read(Content { bytes: &integers, kind: ValueKind::Set, expire_at: None })
        }
    };
    let mut named = Named::new(members);
    let mut items = strings.items();
    while !named.all_met()
        && let Some(member) = items.next()
    {
        named.meet(member);
    }
    let new: Vec<_> = named.unmet().iter().map(|member| member.name).collect();
    if new.is_empty() {
        return Ok((0, Change::Keep));
    }
    let end = strings.items.len();
    let bytes = strings.splice(STRINGS, strings.count + new.len(), end..end, &new);
    Ok((new.len(), replace(bytes, ValueKind::Set, current)?))
}

/// Removes members from a set. How many were there, and the change if any.
pub(crate) fn remove<'a, 'm>(
    set: Set<'_>,
    members: impl Iterator<Item = &'m [u8]>,
    current: Current<'_>,
) -> Result<(usize, Change<'a>), Reply<'static>> {
    let (removed, bytes) = match set {
        Set::Large(large) => {
            let named = Named::new(members);
            let (mut delta, mut removed) = (Delta::new(), 0);
            let names = (0..named.len()).map(|number| named.get(number).name);
            for name in names.filter(|name| large.contains(name)) {
                delta.push(Step::Remove(name));
                removed += 1;
            }
            return Ok((removed, large::change(delta, large.len() - removed, current)?));
        }
        Set::Strings(strings) => {
            let mut named = Named::new(members);
            let bytes = named.remove_from(strings, 1);
            (named.count_met(), bytes)
        }
        Set::Integers(held) => {
            let mut gone: Vec<i64> = members.filter_map(parse_integer).collect();
            gone.sort_unstable();
            let stays = |number: &i64| gone.binary_search(number).is_err();
            let numbers: Vec<_> = held.iter().filter(stays).collect();
            (held.len() - numbers.len(), of_integers(&numbers, held.form))
        }
    };
    let change = if removed == 0 { Change::Keep } else { replace(bytes, ValueKind::Set, current)? };
    Ok((removed, change))
}

fn try_sadd<'a>(args: Args<'a>, current: Current<'a>) -> Outcome<'a> {
    let (added, change) = add(Set::of(current)?, args.iter().skip(2), current)?;
    Ok((Reply::Int(added as i64), change))
}

fn try_srem<'a>(args: Args<'a>, current: Current<'a>) -> Outcome<'a> {
    let Some(set) = Set::held(current)? else { return Ok((Reply::Int(0), Change::Keep)) };
    let (removed, change) = remove(set, args.iter().skip(2), current)?;
    Ok((Reply::Int(removed as i64), change))
}

fn try_spop<'a>(args: Args<'a>, now: UnixMillis, current: Current<'a>) -> Outcome<'a> {
    let count = match args.len() {
        2 => None,
        3 => Some(positive_count(args.get(2))?),
        _ => return Err(SYNTAX),
    };
    let nothing = if count.is_some() { Reply::Set(vec![]) } else { Reply::Null };
    let Some(set) = Set::held(current)? else { return Ok((nothing, Change::Keep)) };
    if count == Some(0) {
        return Ok((nothing, Change::Keep));
    }
    let places = distinct(count.unwrap_or(1), set.len(), &mut rng(args, now, current));
    let taken = at_places(set, &places);
    let (_, change) = remove(set, taken.iter().map(|member| &**member), current)?;
    let mut taken = taken.into_iter().map(Reply::Bulk);
    let reply = match count {
        Some(_) => Reply::Set(taken.collect()),
        None => taken.next().unwrap_or(Reply::Null),
    };
    Ok((reply, change))
}

/// The members at these places, which are in order.
fn at_places<'a>(set: Set<'a>, places: &[usize]) -> Vec<Cow<'a, [u8]>> {
    if let Set::Large(large) = set {
        let member = |place: &usize| large.members_from(*place).next().map(Cow::Borrowed);
        return places.iter().filter_map(member).collect();
    }
    let (mut members, mut next) = (set.members(), 0);
    let member = |place: &usize| {
        let member = members.nth(place - next);
        next = place + 1;
        member
    };
    places.iter().map_while(member).collect()
}

fn try_srandmember<'a>(args: Args<'a>, now: UnixMillis, current: Current<'a>) -> Outcome<'a> {
    let mut draw = rng(args, now, current);
    let count = match args.len() {
        2 => {
            let Some(set) = Set::held(current)? else { return Ok((Reply::Null, Change::Keep)) };
            let at = draw.below(set.len().max(1) as u64) as usize;
            let drawn = at_places(set, &[at]).pop();
            return Ok((drawn.map_or(Reply::Null, Reply::Bulk), Change::Keep));
        }
        3 => Count::parse(args.get(2))?,
        _ => return Err(SYNTAX),
    };
    let set = Set::of(current)?;
    let drawn = match count {
        Count::Distinct(_) => at_places(set, &count.draw(set.len(), &mut draw)?),
        Count::Repeated(_) if matches!(set, Set::Large(_)) => {
            at_places(set, &count.draw(set.len(), &mut draw)?)
        }
        Count::Repeated(_) => {
            let members: Vec<_> = set.members().collect();
            let places = count.draw(members.len(), &mut draw)?;
            places.into_iter().map(|at| members[at].clone()).collect()
        }
    };
    Ok((Reply::Array(drawn.into_iter().map(Reply::Bulk).collect()), Change::Keep))
}
