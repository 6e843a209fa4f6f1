//! Hashes: fields and their values.

use alloc::borrow::Cow;
use alloc::vec;
use alloc::vec::Vec;

use quorate_machine::{Change, Current, ValueKind};
use quorate_types::UnixMillis;

use crate::long_double::LongDouble;
use crate::number::{format_integer, integer, parse_integer};
use crate::options::{SYNTAX, is_word};
use crate::packed::{Builder, Members, Packed, replace};
use crate::sample::{Count, Scan, rng, scanned};
use crate::several::wrong_number_of_arguments;
use crate::string::{Outcome, key_functions};
use crate::{Args, Reply};

/// Fields of a hash in Redis's compact encoding (`hash-max-listpack-entries`).
const COMPACT_FIELDS_MAX: usize = 512;
/// Bytes of a field or a value in it (`hash-max-listpack-value`).
const COMPACT_BYTES_MAX: usize = 64;
const LARGE: u8 = 1;

type Fields<'a> = Members<'a, Cow<'a, [u8]>>;

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
        let mut fields = members(hash);
        let value = |field| match fields.get(field) {
            Some(Cow::Borrowed(value)) => Reply::Bulk((*value).into()),
            _ => Reply::Null,
        };
        Ok((Reply::Array(args.iter().skip(2).map(value).collect()), Change::Keep))
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
    if hash.form == LARGE { "hashtable" } else { "listpack" }
}

fn held(current: Current<'_>) -> Result<Option<Packed<'_>>, Reply<'static>> {
    Packed::of(current, ValueKind::Hash)
}

fn members(hash: Packed<'_>) -> Fields<'_> {
    Members::new(hash.fields().map(|(field, value)| (field, Cow::Borrowed(value))))
}

fn find<'a>(hash: Packed<'a>, wanted: &[u8]) -> Option<&'a [u8]> {
    hash.fields().find(|(field, _)| *field == wanted).map(|(_, value)| value)
}

fn bulk(bytes: Option<&[u8]>) -> Reply<'_> {
    bytes.map_or(Reply::Null, |bytes| Reply::Bulk(bytes.into()))
}

/// The change that leaves these fields in the key.
fn store<'a>(
    fields: &Fields<'_>,
    form: u8,
    current: Current<'_>,
) -> Result<Change<'a>, Reply<'static>> {
    let is_long = |bytes: &[u8]| bytes.len() > COMPACT_BYTES_MAX;
    let is_large = form == LARGE
        || fields.len() > COMPACT_FIELDS_MAX
        || fields.iter().any(|(field, value)| is_long(field) || is_long(value));
    let mut builder = Builder::new(u8::from(is_large), fields.len() * 16);
    for (field, value) in fields.iter() {
        builder.item(field);
        builder.item(value);
    }
    replace(builder.finish(fields.len()), ValueKind::Hash, current)
}

fn set_fields<'a>(
    args: Args<'a>,
    current: Current<'a>,
) -> Result<(i64, Change<'a>), Reply<'static>> {
    if !args.len().is_multiple_of(2) {
        return Err(wrong_number_of_arguments(args));
    }
    let hash = Packed::or_empty(current, ValueKind::Hash)?;
    let mut fields = members(hash);
    let mut new = 0;
    for at in (2..args.len()).step_by(2) {
        new += i64::from(fields.set(args.get(at), args.get(at + 1).into()).is_none());
    }
    Ok((new, store(&fields, hash.form, current)?))
}

fn try_hsetnx<'a>(args: Args<'a>, current: Current<'a>) -> Outcome<'a> {
    let hash = Packed::or_empty(current, ValueKind::Hash)?;
    if find(hash, args.get(2)).is_some() {
        return Ok((Reply::Int(0), Change::Keep));
    }
    let mut fields = members(hash);
    fields.set(args.get(2), args.get(3).into());
    Ok((Reply::Int(1), store(&fields, hash.form, current)?))
}

fn try_hdel<'a>(args: Args<'a>, current: Current<'a>) -> Outcome<'a> {
    let Some(hash) = held(current)? else { return Ok((Reply::Int(0), Change::Keep)) };
    let mut fields = members(hash);
    let removed = args.iter().skip(2).filter(|field| fields.remove(field).is_some()).count();
    let change = if removed == 0 { Change::Keep } else { store(&fields, hash.form, current)? };
    Ok((Reply::Int(removed as i64), change))
}

fn try_hincrby<'a>(args: Args<'a>, current: Current<'a>) -> Outcome<'a> {
    let amount = integer(args.get(3))?;
    let hash = Packed::or_empty(current, ValueKind::Hash)?;
    let mut fields = members(hash);
    let old = fields.get(args.get(2)).map_or(Ok(0), |value| {
        parse_integer(value).ok_or(Reply::error("ERR hash value is not an integer"))
    })?;
    let new =
        old.checked_add(amount).ok_or(Reply::error("ERR increment or decrement would overflow"))?;
    fields.set(args.get(2), Cow::Owned(format_integer(new, &mut [0; 20]).to_vec()));
    Ok((Reply::Int(new), store(&fields, hash.form, current)?))
}

fn try_hincrbyfloat<'a>(args: Args<'a>, current: Current<'a>) -> Outcome<'a> {
    let amount =
        LongDouble::parse(args.get(3)).ok_or(Reply::error("ERR value is not a valid float"))?;
    let amount = amount.finite().ok_or(Reply::error("ERR value is NaN or Infinity"))?;
    let hash = Packed::or_empty(current, ValueKind::Hash)?;
    let mut fields = members(hash);
    let old = fields.get(args.get(2)).map_or(Ok(LongDouble::ZERO), |value| {
        LongDouble::parse(value).ok_or(Reply::error("ERR hash value is not a float"))
    })?;
    let new = old
        .add(amount)
        .finite()
        .ok_or(Reply::error("ERR increment would produce NaN or Infinity"))?;
    let text = new.format();
    fields.set(args.get(2), Cow::Owned(text.clone()));
    Ok((Reply::Bulk(text.into()), store(&fields, hash.form, current)?))
}

fn try_hrandfield<'a>(args: Args<'a>, now: UnixMillis, current: Current<'a>) -> Outcome<'a> {
    let mut draw = rng(args, now, current);
    if args.len() == 2 {
        let Some(hash) = held(current)? else { return Ok((Reply::Null, Change::Keep)) };
        let at = draw.below(hash.count as u64) as usize;
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
