//! Hashes: fields and their values.

mod edit;
pub(crate) mod expiring;
pub(crate) mod expiry;

pub(crate) use edit::expire_key;

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use quorate_collections::{self as collections, Delta, Step};
use quorate_machine::{Change, Content, Current, ValueKind, mutant};
use quorate_types::UnixMillis;

use edit::Edit;
use expiring::{Expiring, Field};

use crate::long_double::LongDouble;
use crate::named::{Member, Named};
use crate::number::{format_integer, integer, parse_integer};
use crate::options::{SYNTAX, is_word};
use crate::packed::{BEYOND_COMPACT, Builder, EXPIRING, LENGTH_BYTES_MAX, Packed, replace};
use crate::sample::{Count, Scan, rng, scanned};
use crate::several::wrong_number_of_arguments;
use crate::string::{Outcome, key_functions};
use crate::{Args, Reply, large};

/// Fields of a hash in Redis's compact encoding (`hash-max-listpack-entries`).
const COMPACT_FIELDS_MAX: usize = 512;
/// Bytes of a field or a value in it (`hash-max-listpack-value`).
const COMPACT_BYTES_MAX: usize = 64;

key_functions! {
    hset => |args, now, current| set_fields(args, now, current).map(|(new, change)| (Reply::Int(new), change));
    hmset => |args, now, current| set_fields(args, now, current).map(|(_, change)| (Reply::Ok, change));
    hsetnx => |args, now, current| try_hsetnx(args, now, current);
    hget => |args, now, current| {
        let hash = Hash::held(current)?;
        Ok((bulk(hash.and_then(|hash| hash.get(args.get(2), now))), Change::Keep))
    };
    hmget => |args, now, current| Ok((Reply::Array(values(Hash::of(current)?, args, now)), Change::Keep));
    hdel => |args, now, current| try_hdel(args, now, current);
    hlen => |_, now, current| Ok((Reply::Int(Hash::of(current)?.len(now) as i64), Change::Keep));
    hstrlen => |args, now, current| {
        let value = Hash::of(current)?.get(args.get(2), now);
        Ok((Reply::Int(value.map_or(0, <[u8]>::len) as i64), Change::Keep))
    };
    hexists => |args, now, current| {
        let value = Hash::of(current)?.get(args.get(2), now);
        Ok((Reply::Int(i64::from(value.is_some())), Change::Keep))
    };
    hgetall => |_, now, current| {
        let pair = |(field, value)| (bulk(Some(field)), bulk(Some(value)));
        Ok((Reply::Map(Hash::of(current)?.fields_from(0, now).map(pair).collect()), Change::Keep))
    };
    hkeys => |_, now, current| {
        let fields = Hash::of(current)?.fields_from(0, now);
        Ok((Reply::Array(fields.map(|(field, _)| bulk(Some(field))).collect()), Change::Keep))
    };
    hvals => |_, now, current| {
        let fields = Hash::of(current)?.fields_from(0, now);
        Ok((Reply::Array(fields.map(|(_, value)| bulk(Some(value))).collect()), Change::Keep))
    };
    hincrby => |args, now, current| try_hincrby(args, now, current);
    hincrbyfloat => |args, now, current| try_hincrbyfloat(args, now, current);
    hrandfield => |args, now, current| try_hrandfield(args, now, current);
    hscan => |args, now, current| {
        let scan = Scan::parse(args)?;
        let Some(hash) = Hash::held(current)? else {
            return Ok((scanned(0, Vec::new()), Change::Keep));
        };
        let scan = scan.options(args)?;
        let pair = |(field, value)| Pair { field, value };
        let (next, part) = match hash {
            Hash::Packed(_) => {
                let compact = hash.form() != BEYOND_COMPACT;
                scan.part(compact, hash.fields_from(0, now).map(pair))
            }
            Hash::Large(large) => {
                let (place, count) = scan.wanted();
                let (next, part) = large.part(place, count);
                scan.part_of((next, part.into_iter().map(pair).collect()))
            }
        };
        let part = part.into_iter().flat_map(|pair| [bulk(Some(pair.field)), bulk(Some(pair.value))]);
        Ok((scanned(next, part.collect()), Change::Keep))
    };
}

/// A hash as it lies in a value.
#[derive(Clone, Copy)]
enum Hash<'a> {
    /// Of some, fields expire ([`Hash::expiring`]), and what has expired by the moment of the command isn't
    /// there.
    Packed(Packed<'a>),
    Large(&'a collections::Hash),
}

impl<'a> Hash<'a> {
    /// What the key holds, if it holds anything.
    ///
    /// # Errors
    /// If it holds something else.
    fn held(current: Current<'a>) -> Result<Option<Self>, Reply<'static>> {
        match current.large.and_then(|large| large.hash()) {
            Some(large) => Ok(Some(Self::Large(large))),
            None => Ok(Packed::of(current, ValueKind::Hash)?.map(Self::Packed)),
        }
    }

    /// It, if it is one with expiring fields.
    #[inline]
    fn expiring(self, now: UnixMillis) -> Option<Expiring<'a>> {
        match self {
            Self::Packed(packed) => Expiring::of(packed, now),
            Self::Large(_) => None,
        }
    }

    /// The same, empty if the key holds nothing.
    fn of(current: Current<'a>) -> Result<Self, Reply<'static>> {
        Ok(Self::held(current)?.unwrap_or(Self::Packed(Packed::EMPTY)))
    }

    fn len(self, now: UnixMillis) -> usize {
        match self {
            Self::Packed(packed) => match self.expiring(now) {
                Some(hash) => hash.fields().count(),
                None => packed.count,
            },
            Self::Large(large) => large.len(),
        }
    }

    /// The value of a field.
    fn get(self, field: &[u8], now: UnixMillis) -> Option<&'a [u8]> {
        match self {
            Self::Packed(packed) => match self.expiring(now) {
                Some(hash) => hash.get(field).map(|held| held.value),
                None => place(packed, field).map(|(value, _)| value),
            },
            Self::Large(large) => large.get(field),
        }
    }

    /// The fields with their values, from one number on.
    fn fields_from(
        self,
        number: usize,
        now: UnixMillis,
    ) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let (packed, large) = match self {
            Self::Packed(packed) => (Some(packed), None),
            Self::Large(large) => (None, Some(large.fields_from(number))),
        };
        let expiring = self.expiring(now).map(|hash| hash.fields().skip(number));
        let packed =
            packed.filter(|_| expiring.is_none()).map(|packed| packed.fields().skip(number));
        let expiring = expiring.into_iter().flatten().map(|field| (field.name, field.value));
        packed.into_iter().flatten().chain(expiring).chain(large.into_iter().flatten())
    }

    /// The fields with their values and expiries.
    fn fields(self, now: UnixMillis) -> impl Iterator<Item = Field<'a>> {
        let expiring = self.expiring(now).map(Expiring::fields);
        let others = if expiring.is_some() { None } else { Some(self.fields_from(0, now)) };
        let endless = |(name, value)| Field { name, value, expire_at: None };
        expiring.into_iter().flatten().chain(others.into_iter().flatten().map(endless))
    }

    /// The form of its packed bytes if no field expires.
    fn form(self) -> u8 {
        match self {
            Self::Packed(packed) => packed.form & !EXPIRING,
            Self::Large(_) => BEYOND_COMPACT,
        }
    }

    /// The fields with these numbers, which are in order.
    fn at_places(
        self,
        places: impl Iterator<Item = usize>,
        now: UnixMillis,
    ) -> Vec<(&'a [u8], &'a [u8])> {
        match self {
            Self::Packed(_) => {
                let fields: Vec<_> = self.fields_from(0, now).collect();
                places.filter_map(|at| fields.get(at).copied()).collect()
            }
            Self::Large(large) => places.filter_map(|at| large.fields_from(at).next()).collect(),
        }
    }
}

/// A field with its value, told apart by the field.
#[derive(Clone, Copy)]
struct Pair<'a> {
    field: &'a [u8],
    value: &'a [u8],
}

impl AsRef<[u8]> for Pair<'_> {
    fn as_ref(&self) -> &[u8] {
        self.field
    }
}

/// What `OBJECT ENCODING` says of a hash.
pub(crate) fn encoding(hash: Packed<'_>) -> &'static str {
    match hash.form {
        0 => "listpack",
        EXPIRING => "listpackex",
        _ => "hashtable",
    }
}

/// Whether a hash is beyond Redis's compact encoding.
pub(crate) fn is_large(hash: Packed<'_>) -> bool {
    hash.form & BEYOND_COMPACT != 0
}

/// The value of a field in the bytes of a hash.
pub(crate) fn value_in<'a>(
    content: Content<'a>,
    field: &[u8],
    now: UnixMillis,
) -> Option<&'a [u8]> {
    Hash::Packed(Packed::read(content)).get(field, now)
}

/// The form of a new hash with these fields.
pub(crate) fn form_of(hash: Packed<'_>) -> u8 {
    form(0, hash.count, hash.items())
}

/// The value of a field, and the bytes of the hash that hold it.
fn place<'a>(hash: Packed<'a>, wanted: &[u8]) -> Option<(&'a [u8], Range<usize>)> {
    let mut items = hash.items();
    loop {
        let is_here = items.next()? == wanted;
        let from = hash.position(&items);
        let value = items.next()?;
        if is_here {
            return Some((value, from..hash.position(&items)));
        }
    }
}

fn bulk(bytes: Option<&[u8]>) -> Reply<'_> {
    bytes.map_or(Reply::Null, |bytes| Reply::Bulk(bytes.into()))
}

/// What `HMGET` answers of each of its fields.
fn values<'a>(hash: Hash<'a>, args: Args<'a>, now: UnixMillis) -> Vec<Reply<'a>> {
    let hash = match hash {
        Hash::Packed(packed) if packed.form & EXPIRING == 0 => packed,
        Hash::Large(large) => {
            return args.iter().skip(2).map(|field| bulk(large.get(field))).collect();
        }
        Hash::Packed(_) => {
            let names = args.iter().skip(2);
            let edit = Edit::new(hash, now, names.clone());
            return names.map(|name| bulk(edit.get(name).map(|field| field.value))).collect();
        }
    };
    let mut named = Named::new(args.iter().skip(2));
    let mut found = vec![None; named.len()];
    let mut fields = hash.fields();
    while !named.all_met()
        && let Some((field, value)) = fields.next()
    {
        if let Some(number) = named.meet(field) {
            found[number] = Some(value);
        }
    }
    let value = |field| named.find(field).and_then(|number| found[number]);
    args.iter().skip(2).map(|field| bulk(value(field))).collect()
}

/// The form of a hash that has had this form, has so many fields, and gets these fields or values.
fn form<'a>(form: u8, count: usize, mut new: impl Iterator<Item = &'a [u8]>) -> u8 {
    let is_large = form == BEYOND_COMPACT
        || count > COMPACT_FIELDS_MAX
        || new.any(|bytes| bytes.len() > COMPACT_BYTES_MAX);
    u8::from(is_large)
}

fn set_fields<'a>(
    args: Args<'a>,
    now: UnixMillis,
    current: Current<'a>,
) -> Result<(i64, Change<'a>), Reply<'static>> {
    if !args.len().is_multiple_of(2) {
        return Err(wrong_number_of_arguments(args));
    }
    let mut named = Named::new(args.iter().skip(2).step_by(2));
    let value = |member: Member<'_>| args.get(3 + 2 * member.last);
    let hash = match Hash::held(current)? {
        None => Packed::EMPTY,
        Some(Hash::Packed(packed)) if packed.form & EXPIRING == 0 => packed,
        Some(hash @ Hash::Packed(_)) => return set_expiring(hash, args, now, current),
        Some(Hash::Large(large)) => {
            let (mut delta, mut new) = (Delta::new(), 0);
            for field in (0..named.len()).map(|number| named.get(number)) {
                new += usize::from(large.get(field.name).is_none());
                delta.push(Step::Put { field: field.name, value: value(field) });
            }
            return Ok((new as i64, large::change(delta, large.len() + new, current)?));
        }
    };
    let given: usize = args.iter().skip(2).map(|word| word.len() + LENGTH_BYTES_MAX).sum();
    let mut builder = Builder::new(0, hash.items.len() + given);
    let (mut items, mut copied) = (hash.items(), 0);
    while !named.all_met()
        && let Some(field) = items.next()
    {
        let from = hash.position(&items);
        if items.next().is_some()
            && let Some(number) = named.meet(field)
        {
            builder.raw(&hash.items[copied..from]);
            builder.item(value(named.get(number)));
            copied = hash.position(&items);
        }
    }
    builder.raw(&hash.items[copied..]);
    let new = named.unmet();
    for member in &new {
        builder.item(member.name);
        builder.item(value(*member));
    }
    let count = hash.count + new.len();
    builder.set_form(form(hash.form, count, args.iter().skip(2)));
    Ok((new.len() as i64, replace(builder.finish(count), ValueKind::Hash, current)?))
}

/// [`set_fields`] where fields of the hash expire; those that it sets don't any more. What ordinary hashes do
/// is faster with this in a function of its own.
#[cold]
fn set_expiring<'a>(
    hash: Hash<'a>,
    args: Args<'a>,
    now: UnixMillis,
    current: Current<'a>,
) -> Result<(i64, Change<'a>), Reply<'static>> {
    let names = args.iter().skip(2).step_by(2);
    let (mut edit, mut new) = (Edit::new(hash, now, names.clone()), 0);
    for (name, value) in names.zip(args.iter().skip(3).step_by(2)) {
        let held = edit.get(name);
        new += i64::from(held.is_none());
        let kept = held.filter(|_| mutant!("commands_hset_keeps_the_expiry"));
        edit.set(name, value, kept.and_then(|held| held.expire_at));
    }
    Ok((new, edit.finish(current)?))
}

/// The change that gives one field a value; its expiry stays. A new one comes behind all others.
fn put<'a, 'b>(
    hash: Hash<'b>,
    now: UnixMillis,
    field: &'b [u8],
    value: &'b [u8],
    current: Current<'_>,
) -> Result<Change<'a>, Reply<'static>> {
    let hash = match hash {
        Hash::Packed(packed) if packed.form & EXPIRING == 0 => packed,
        Hash::Packed(_) => return put_expiring(hash, now, field, value, current),
        Hash::Large(large) => {
            let mut delta = Delta::new();
            delta.push(Step::Put { field, value });
            return large::change(delta, large.len() + 1, current);
        }
    };
    let place = place(hash, field).map(|(_, place)| place);
    let (count, end) = (hash.count + usize::from(place.is_none()), hash.items.len());
    let form = form(hash.form, count, [field, value].into_iter());
    let bytes = match place {
        Some(place) => hash.splice(form, count, place, &[value]),
        None => hash.splice(form, count, end..end, &[field, value]),
    };
    replace(bytes, ValueKind::Hash, current)
}

/// [`put`] where fields of the hash expire.
#[cold]
fn put_expiring<'a, 'b>(
    hash: Hash<'b>,
    now: UnixMillis,
    field: &'b [u8],
    value: &'b [u8],
    current: Current<'_>,
) -> Result<Change<'a>, Reply<'static>> {
    let mut edit = Edit::new(hash, now, [field].into_iter());
    let kept = edit.get(field).and_then(|held| held.expire_at);
    edit.set(field, value, kept);
    edit.finish(current)
}

fn try_hsetnx<'a>(args: Args<'a>, now: UnixMillis, current: Current<'a>) -> Outcome<'a> {
    let hash = Hash::of(current)?;
    if hash.get(args.get(2), now).is_some() {
        return Ok((Reply::Int(0), Change::Keep));
    }
    Ok((Reply::Int(1), put(hash, now, args.get(2), args.get(3), current)?))
}

fn try_hdel<'a>(args: Args<'a>, now: UnixMillis, current: Current<'a>) -> Outcome<'a> {
    let Some(hash) = Hash::held(current)? else { return Ok((Reply::Int(0), Change::Keep)) };
    let mut named = Named::new(args.iter().skip(2));
    let (removed, change) = match hash {
        Hash::Packed(packed) if packed.form & EXPIRING == 0 => {
            let bytes = named.remove_from(packed, 2);
            match named.count_met() {
                0 => (0, Change::Keep),
                removed => (removed, replace(bytes, ValueKind::Hash, current)?),
            }
        }
        Hash::Packed(_) => remove_expiring(hash, args, now, current)?,
        Hash::Large(large) => {
            let (mut delta, mut removed) = (Delta::new(), 0);
            let fields = (0..named.len()).map(|number| named.get(number).name);
            for field in fields.filter(|field| large.get(field).is_some()) {
                delta.push(Step::Remove(field));
                removed += 1;
            }
            (removed, large::change(delta, large.len() - removed, current)?)
        }
    };
    Ok((Reply::Int(removed as i64), change))
}

/// How many of the fields a call removes, and the change, where fields of the hash expire.
#[cold]
fn remove_expiring<'a>(
    hash: Hash<'a>,
    args: Args<'a>,
    now: UnixMillis,
    current: Current<'a>,
) -> Result<(usize, Change<'a>), Reply<'static>> {
    let (mut edit, mut removed) = (Edit::new(hash, now, args.iter().skip(2)), 0);
    for name in args.iter().skip(2) {
        removed += usize::from(edit.get(name).is_some());
        edit.remove(name);
    }
    Ok((removed, edit.finish(current)?))
}

fn try_hincrby<'a>(args: Args<'a>, now: UnixMillis, current: Current<'a>) -> Outcome<'a> {
    let amount = integer(args.get(3))?;
    let hash = Hash::of(current)?;
    let old = hash.get(args.get(2), now).map_or(Ok(0), |value| {
        parse_integer(value).ok_or(Reply::error("ERR hash value is not an integer"))
    })?;
    let new =
        old.checked_add(amount).ok_or(Reply::error("ERR increment or decrement would overflow"))?;
    let text = format_integer(new, &mut [0; 20]).to_vec();
    Ok((Reply::Int(new), put(hash, now, args.get(2), &text, current)?))
}

fn try_hincrbyfloat<'a>(args: Args<'a>, now: UnixMillis, current: Current<'a>) -> Outcome<'a> {
    let amount =
        LongDouble::parse(args.get(3)).ok_or(Reply::error("ERR value is not a valid float"))?;
    let amount = amount.finite().ok_or(Reply::error("ERR value is NaN or Infinity"))?;
    let hash = Hash::of(current)?;
    let old = hash.get(args.get(2), now).map_or(Ok(LongDouble::ZERO), |value| {
        LongDouble::parse(value).ok_or(Reply::error("ERR hash value is not a float"))
    })?;
    let new = old
        .add(amount)
        .finite()
        .ok_or(Reply::error("ERR increment would produce NaN or Infinity"))?;
    let text = new.format();
    let change = put(hash, now, args.get(2), &text, current)?;
    Ok((Reply::Bulk(text.into()), change))
}

fn try_hrandfield<'a>(args: Args<'a>, now: UnixMillis, current: Current<'a>) -> Outcome<'a> {
    let mut draw = rng(args, now, current);
    if args.len() == 2 {
        let Some(hash) = Hash::held(current)? else { return Ok((Reply::Null, Change::Keep)) };
        let at = draw.below(hash.len(now).max(1) as u64) as usize;
        let drawn = hash.fields_from(at, now).next().map(|(field, _)| field);
        return Ok((bulk(drawn), Change::Keep));
    }
    let count = Count::parse(args.get(2))?;
    let with_values = args.len() > 3;
    if args.len() > 4 || with_values && !is_word(args.get(3), "WITHVALUES") {
        return Err(SYNTAX);
    }
    if with_values && count.is_beyond_half() {
        return Err(Reply::error("ERR value is out of range"));
    }
    let Some(hash) = Hash::held(current)? else {
        return Ok((Reply::Array(vec![]), Change::Keep));
    };
    let places = count.draw(hash.len(now), &mut draw)?;
    let drawn = hash.at_places(places.into_iter(), now).into_iter();
    let reply = if with_values {
        Reply::Pairs(drawn.map(|(field, value)| (bulk(Some(field)), bulk(Some(value)))).collect())
    } else {
        Reply::Array(drawn.map(|(field, _)| bulk(Some(field))).collect())
    };
    Ok((reply, Change::Keep))
}
