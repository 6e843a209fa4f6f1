//! Hashes: fields and their values.

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use quorate_machine::{Change, Current, ValueKind};
use quorate_types::UnixMillis;

use crate::long_double::LongDouble;
use crate::named::{Member, Named};
use crate::number::{format_integer, integer, parse_integer};
use crate::options::{SYNTAX, is_word};
use crate::packed::{Builder, LENGTH_BYTES_MAX, Packed, replace};
use crate::sample::{Count, Scan, rng, scanned};
use crate::several::wrong_number_of_arguments;
use crate::string::{Outcome, key_functions};
use crate::{Args, Reply};

/// Fields of a hash in Redis's compact encoding (`hash-max-listpack-entries`).
const COMPACT_FIELDS_MAX: usize = 512;
/// Bytes of a field or a value in it (`hash-max-listpack-value`).
const COMPACT_BYTES_MAX: usize = 64;
const LARGE: u8 = 1;

key_functions! {
    hset => |args, _, current| set_fields(args, current).map(|(new, change)| (Reply::Int(new), change));
    hmset => |args, _, current| set_fields(args, current).map(|(_, change)| (Reply::Ok, change));
    hsetnx => |args, _, current| try_hsetnx(args, current);
    hget => |args, _, current| {
        let hash = held(current)?;
        Ok((bulk(hash.and_then(|hash| find(hash, args.get(2)))), Change::Keep))
    };
    hmget => |args, _, current| {
        let hash = held(current)?.unwrap_or(Packed::EMPTY);
        Ok((Reply::Array(values(hash, args)), Change::Keep))
    };
    hdel => |args, _, current| try_hdel(args, current);
    hlen => |_, _, current| {
        let length = held(current)?.map_or(0, |hash| hash.count);
        Ok((Reply::Int(length as i64), Change::Keep))
    };
    hstrlen => |args, _, current| {
        let value = held(current)?.and_then(|hash| find(hash, args.get(2)));
        Ok((Reply::Int(value.map_or(0, <[u8]>::len) as i64), Change::Keep))
    };
    hexists => |args, _, current| {
        let value = held(current)?.and_then(|hash| find(hash, args.get(2)));
        Ok((Reply::Int(i64::from(value.is_some())), Change::Keep))
    };
    hgetall => |_, _, current| {
        let hash = held(current)?.unwrap_or(Packed::EMPTY);
        let pair = |(field, value)| (bulk(Some(field)), bulk(Some(value)));
        Ok((Reply::Map(hash.fields().map(pair).collect()), Change::Keep))
    };
    hkeys => |_, _, current| {
        let hash = held(current)?.unwrap_or(Packed::EMPTY);
        Ok((Reply::Array(hash.fields().map(|(field, _)| bulk(Some(field))).collect()), Change::Keep))
    };
    hvals => |_, _, current| {
        let hash = held(current)?.unwrap_or(Packed::EMPTY);
        Ok((Reply::Array(hash.fields().map(|(_, value)| bulk(Some(value))).collect()), Change::Keep))
    };
    hincrby => |args, _, current| try_hincrby(args, current);
    hincrbyfloat => |args, _, current| try_hincrbyfloat(args, current);
    hrandfield => |args, now, current| try_hrandfield(args, now, current);
    hscan => |args, _, current| {
        let scan = Scan::parse(args)?;
        let Some(hash) = held(current)? else { return Ok((scanned(0, Vec::new()), Change::Keep)) };
        let fields = hash.fields().map(|(field, value)| Pair { field, value });
        let (next, part) = scan.options(args)?.part(hash.form != LARGE, fields);
        let part = part.into_iter().flat_map(|pair| [bulk(Some(pair.field)), bulk(Some(pair.value))]);
        Ok((scanned(next, part.collect()), Change::Keep))
    };
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
    if is_large(hash) { "hashtable" } else { "listpack" }
}

/// Whether a hash is beyond Redis's compact encoding.
pub(crate) fn is_large(hash: Packed<'_>) -> bool {
    hash.form == LARGE
}

/// The form of a new hash with these fields.
pub(crate) fn form_of(hash: Packed<'_>) -> u8 {
    form(0, hash.count, hash.items())
}

fn held(current: Current<'_>) -> Result<Option<Packed<'_>>, Reply<'static>> {
    Packed::of(current, ValueKind::Hash)
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

fn find<'a>(hash: Packed<'a>, wanted: &[u8]) -> Option<&'a [u8]> {
    place(hash, wanted).map(|(value, _)| value)
}

fn bulk(bytes: Option<&[u8]>) -> Reply<'_> {
    bytes.map_or(Reply::Null, |bytes| Reply::Bulk(bytes.into()))
}

/// What `HMGET` answers of each of its fields.
fn values<'a>(hash: Packed<'a>, args: Args<'a>) -> Vec<Reply<'a>> {
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
    let is_large = form == LARGE
        || count > COMPACT_FIELDS_MAX
        || new.any(|bytes| bytes.len() > COMPACT_BYTES_MAX);
    u8::from(is_large)
}

fn set_fields<'a>(
    args: Args<'a>,
    current: Current<'a>,
) -> Result<(i64, Change<'a>), Reply<'static>> {
    if !args.len().is_multiple_of(2) {
        return Err(wrong_number_of_arguments(args));
    }
    let hash = Packed::or_empty(current, ValueKind::Hash)?;
    let mut named = Named::new(args.iter().skip(2).step_by(2));
    let value = |member: Member<'_>| args.get(3 + 2 * member.last);
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

/// The change that gives one field a value in this place, which is behind all others if the field is
/// new.
fn put<'a>(
    hash: Packed<'_>,
    field: &[u8],
    value: &[u8],
    place: Option<Range<usize>>,
    current: Current<'_>,
) -> Result<Change<'a>, Reply<'static>> {
    let (count, end) = (hash.count + usize::from(place.is_none()), hash.items.len());
    let form = form(hash.form, count, [field, value].into_iter());
    let bytes = match place {
        Some(place) => hash.splice(form, count, place, &[value]),
        None => hash.splice(form, count, end..end, &[field, value]),
    };
    replace(bytes, ValueKind::Hash, current)
}

fn try_hsetnx<'a>(args: Args<'a>, current: Current<'a>) -> Outcome<'a> {
    let hash = Packed::or_empty(current, ValueKind::Hash)?;
    if find(hash, args.get(2)).is_some() {
        return Ok((Reply::Int(0), Change::Keep));
    }
    Ok((Reply::Int(1), put(hash, args.get(2), args.get(3), None, current)?))
}

fn try_hdel<'a>(args: Args<'a>, current: Current<'a>) -> Outcome<'a> {
    let Some(hash) = held(current)? else { return Ok((Reply::Int(0), Change::Keep)) };
    let mut named = Named::new(args.iter().skip(2));
    let bytes = named.remove_from(hash, 2);
    let removed = named.count_met();
    let change =
        if removed == 0 { Change::Keep } else { replace(bytes, ValueKind::Hash, current)? };
    Ok((Reply::Int(removed as i64), change))
}

fn try_hincrby<'a>(args: Args<'a>, current: Current<'a>) -> Outcome<'a> {
    let amount = integer(args.get(3))?;
    let hash = Packed::or_empty(current, ValueKind::Hash)?;
    let (old, place) = place(hash, args.get(2)).unzip();
    let old = old.map_or(Ok(0), |value| {
        parse_integer(value).ok_or(Reply::error("ERR hash value is not an integer"))
    })?;
    let new =
        old.checked_add(amount).ok_or(Reply::error("ERR increment or decrement would overflow"))?;
    let text = format_integer(new, &mut [0; 20]).to_vec();
    Ok((Reply::Int(new), put(hash, args.get(2), &text, place, current)?))
}

fn try_hincrbyfloat<'a>(args: Args<'a>, current: Current<'a>) -> Outcome<'a> {
    let amount =
        LongDouble::parse(args.get(3)).ok_or(Reply::error("ERR value is not a valid float"))?;
    let amount = amount.finite().ok_or(Reply::error("ERR value is NaN or Infinity"))?;
    let hash = Packed::or_empty(current, ValueKind::Hash)?;
    let (old, place) = place(hash, args.get(2)).unzip();
    let old = old.map_or(Ok(LongDouble::ZERO), |value| {
        LongDouble::parse(value).ok_or(Reply::error("ERR hash value is not a float"))
    })?;
    let new = old
        .add(amount)
        .finite()
        .ok_or(Reply::error("ERR increment would produce NaN or Infinity"))?;
    let text = new.format();
    let change = put(hash, args.get(2), &text, place, current)?;
    Ok((Reply::Bulk(text.into()), change))
}

fn try_hrandfield<'a>(args: Args<'a>, now: UnixMillis, current: Current<'a>) -> Outcome<'a> {
    let mut draw = rng(args, now, current);
    if args.len() == 2 {
        let Some(hash) = held(current)? else { return Ok((Reply::Null, Change::Keep)) };
        let at = draw.below(hash.count.max(1) as u64) as usize;
        return Ok((bulk(hash.fields().nth(at).map(|(field, _)| field)), Change::Keep));
    }
    let count = Count::parse(args.get(2))?;
    let with_values = args.len() > 3;
    if args.len() > 4 || with_values && !is_word(args.get(3), "WITHVALUES") {
        return Err(SYNTAX);
    }
    if with_values && count.is_beyond_half() {
        return Err(Reply::error("ERR value is out of range"));
    }
    let Some(hash) = held(current)? else { return Ok((Reply::Array(vec![]), Change::Keep)) };
    let fields: Vec<_> = hash.fields().collect();
    let drawn = count.draw(fields.len(), &mut draw)?.into_iter().map(|at| fields[at]);
    let reply = if with_values {
        Reply::Pairs(drawn.map(|(field, value)| (bulk(Some(field)), bulk(Some(value)))).collect())
    } else {
        Reply::Array(drawn.map(|(field, _)| bulk(Some(field))).collect())
    };
    Ok((reply, Change::Keep))
}
