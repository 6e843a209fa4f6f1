//! Commands on a string as a whole or on a range of its bytes.

use alloc::borrow::Cow;
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;

use quorate_machine::{Access, Change, Current, ValueKind};
use quorate_types::{UnixMillis, limits};

use crate::hash::expiring::own_expiry;
use crate::number::integer;
use crate::options::{Command, Condition, Options, Unit, absolute, digest_of};
use crate::several::wrong_number_of_arguments;
use crate::{Args, Reply, generic};

/// An answer and a change, or an error and no change.
pub(crate) type Outcome<'a> = Result<(Reply<'a>, Change<'a>), Reply<'static>>;

/// An error changes nothing.
pub(crate) fn change_unless_error(outcome: Outcome<'_>) -> (Reply<'_>, Change<'_>) {
    outcome.unwrap_or_else(|error| (error, Change::Keep))
}

/// Defines functions behind commands of one key, by what they answer and change or by their error.
macro_rules! key_functions {
    ($($name:ident => $function:expr;)*) => {
        $(pub(crate) fn $name<'a>(
            args: $crate::Args<'a>,
            now: quorate_types::UnixMillis,
            current: quorate_machine::Current<'a>,
        ) -> ($crate::Reply<'a>, quorate_machine::Change<'a>) {
            type Function = for<'b> fn(
                $crate::Args<'b>,
                quorate_types::UnixMillis,
                quorate_machine::Current<'b>,
            ) -> $crate::string::Outcome<'b>;
            let function: Function = $function;
            $crate::string::change_unless_error(function(args, now, current))
        })*
    };
}
pub(crate) use key_functions;

/// The answer to a command whose key holds a value of another type.
pub(crate) const WRONGTYPE: Reply<'static> =
    Reply::error("WRONGTYPE Operation against a key holding the wrong kind of value");

/// The string that the key holds, if it holds anything.
#[inline]
pub(crate) fn string_of(current: Current<'_>) -> Result<Option<&[u8]>, Reply<'static>> {
    match current.content {
        None => Ok(None),
        Some(content) if content.kind == ValueKind::String => Ok(Some(content.bytes)),
        Some(_) => Err(WRONGTYPE),
    }
}

/// The bytes of the string that the key holds; no bytes if the key is absent.
pub(crate) fn bytes_of(current: Current<'_>) -> Result<&[u8], Reply<'static>> {
    Ok(string_of(current)?.unwrap_or_default())
}

/// The expiry that the key has. That of its record may be earlier, where all fields of a hash expire.
pub(crate) fn expiry_of(current: Current<'_>) -> Option<UnixMillis> {
    current.content.and_then(own_expiry)
}

/// Stores a string with an expiry; deletes the key if the expiry has passed already.
pub(crate) fn set_string<'a>(
    bytes: impl Into<Cow<'a, [u8]>>,
    expire_at: Option<UnixMillis>,
    now: UnixMillis,
) -> Change<'a> {
    if expire_at.is_some_and(|at| at <= now) {
        return Change::Delete;
    }
    Change::Set { bytes: bytes.into(), kind: ValueKind::String, expire_at }
}

/// Another string with the expiry of the one before.
pub(crate) fn replace_string(bytes: Vec<u8>, current: Current<'_>) -> Change<'_> {
    Change::Set { bytes: bytes.into(), kind: ValueKind::String, expire_at: expiry_of(current) }
}

/// What `GET` answers.
#[inline]
fn value_of(current: Current<'_>) -> Result<Reply<'_>, Reply<'static>> {
    Ok(string_of(current)?.map_or(Reply::Null, |bytes| Reply::Bulk(bytes.into())))
}

pub(crate) fn get<'a>(_: Args<'a>, _: UnixMillis, current: Current<'a>) -> (Reply<'a>, Change<'a>) {
    (value_of(current).unwrap_or_else(|error| error), Change::Keep)
}

/// Every key of one call is the same key here.
pub(crate) fn mget<'a>(
    args: Args<'a>,
    _: UnixMillis,
    current: Current<'a>,
) -> (Reply<'a>, Change<'a>) {
    let value = value_of(current).unwrap_or(Reply::Null);
    (Reply::Array(vec![value; args.len() - 1]), Change::Keep)
}

pub(crate) fn set<'a>(
    args: Args<'a>,
    now: UnixMillis,
    current: Current<'a>,
) -> (Reply<'a>, Change<'a>) {
    change_unless_error(try_set(args, now, current))
}

fn try_set<'a>(args: Args<'a>, now: UnixMillis, current: Current<'a>) -> Outcome<'a> {
    let value = args.get(2);
    if args.len() == 3 {
        return Ok((Reply::Ok, set_string(value, None, now)));
    }
    let options = Options::parse(Command::Set, args, 3)?;
    let mut expire_at = options.expire_at("set", now)?;
    let present = current.content.is_some();
    let met = match options.condition {
        Some(condition) => condition.holds(string_of(current)?),
        None => true,
    };
    let refused = !met || (options.only_absent && present) || (options.only_present && !present);
    let reply = match (options.get, refused) {
        (true, _) => value_of(current)?,
        (false, true) => Reply::Null,
        (false, false) => Reply::Ok,
    };
    if refused {
        return Ok((reply, Change::Keep));
    }
    if options.keep_ttl {
        expire_at = expiry_of(current);
    }
    Ok((reply, set_string(value, expire_at, now)))
}

pub(crate) fn set_access(args: Args<'_>) -> Access {
    if args.len() == 3 {
        return Access::Write;
    }
    match Options::parse(Command::Set, args, 3) {
        Ok(options) if options == (Options { expiry: options.expiry, ..Options::default() }) => {
            options.expiry.map_or(Access::Write, |(unit, time)| expiry_access("set", unit, time))
        }
        Ok(_) => Access::Update,
        Err(_) => Access::Read,
    }
}

/// The access of a blind write with an expiry time. A write must write, so a time that is an error
/// makes it a read, and one that may be an error by the time it runs makes it an update.
fn expiry_access(name: &str, unit: Unit, time: &[u8]) -> Access {
    const FAR: UnixMillis = UnixMillis(1 << 62);
    match absolute(name, unit, time, UnixMillis(0)) {
        Err(_) => Access::Read,
        Ok(_) if absolute(name, unit, time, FAR).is_err() => Access::Update,
        Ok(_) => Access::Write,
    }
}

pub(crate) fn setnx<'a>(
    args: Args<'a>,
    now: UnixMillis,
    current: Current<'a>,
) -> (Reply<'a>, Change<'a>) {
    match current.content {
        Some(_) => (Reply::Int(0), Change::Keep),
        None => (Reply::Int(1), set_string(args.get(2), None, now)),
    }
}

pub(crate) fn setex<'a>(
    args: Args<'a>,
    now: UnixMillis,
    _: Current<'a>,
) -> (Reply<'a>, Change<'a>) {
    change_unless_error(set_for("setex", Unit::Ex, args, now))
}

pub(crate) fn psetex<'a>(
    args: Args<'a>,
    now: UnixMillis,
    _: Current<'a>,
) -> (Reply<'a>, Change<'a>) {
    change_unless_error(set_for("psetex", Unit::Px, args, now))
}

fn set_for<'a>(name: &str, unit: Unit, args: Args<'a>, now: UnixMillis) -> Outcome<'a> {
    let expire_at = absolute(name, unit, args.get(2), now)?;
    Ok((Reply::Ok, set_string(args.get(3), Some(expire_at), now)))
}

pub(crate) fn setex_access(args: Args<'_>) -> Access {
    expiry_access("setex", Unit::Ex, args.get(2))
}

pub(crate) fn psetex_access(args: Args<'_>) -> Access {
    expiry_access("psetex", Unit::Px, args.get(2))
}

pub(crate) fn getset<'a>(
    args: Args<'a>,
    now: UnixMillis,
    current: Current<'a>,
) -> (Reply<'a>, Change<'a>) {
    change_unless_error(value_of(current).map(|value| (value, set_string(args.get(2), None, now))))
}

pub(crate) fn getdel<'a>(
    _: Args<'a>,
    _: UnixMillis,
    current: Current<'a>,
) -> (Reply<'a>, Change<'a>) {
    let change = if current.content.is_some() { Change::Delete } else { Change::Keep };
    change_unless_error(value_of(current).map(|value| (value, change)))
}

/// `DELIFEQ key value`, as Valkey 9 has it.
pub(crate) fn delifeq<'a>(
    args: Args<'a>,
    _: UnixMillis,
    current: Current<'a>,
) -> (Reply<'a>, Change<'a>) {
    change_unless_error(delete_if(Condition::Is(args.get(2)), current))
}

/// `DIGEST key`, as Redis 8.4 has it.
pub(crate) fn digest<'a>(
    _: Args<'a>,
    _: UnixMillis,
    current: Current<'a>,
) -> (Reply<'a>, Change<'a>) {
    let text = |value| Reply::Bulk(format!("{:016x}", digest_of(value)).into_bytes().into());
    let answer = string_of(current).map(|value| value.map_or(Reply::Null, text));
    (answer.unwrap_or_else(|error| error), Change::Keep)
}

/// `DELEX key [IFEQ | IFNE value | IFDEQ | IFDNE digest]`, as Redis 8.4 has it: without a condition, a
/// `DEL`.
pub(crate) fn delex<'a>(
    args: Args<'a>,
    now: UnixMillis,
    current: Current<'a>,
) -> (Reply<'a>, Change<'a>) {
    if args.len() == 2 {
        return generic::del(args, now, current);
    }
    change_unless_error(try_delex(args, current))
}

fn try_delex<'a>(args: Args<'a>, current: Current<'a>) -> Outcome<'a> {
    if args.len() != 4 {
        return Err(wrong_number_of_arguments(args));
    }
    match current.content {
        None => return Ok((Reply::Int(0), Change::Keep)),
        Some(content) if content.kind != ValueKind::String => {
            return Err(Reply::error(
                "ERR Key should be of string type if conditions are specified",
            ));
        }
        Some(_) => {}
    }
    let condition = Condition::parse(args.get(2), args.get(3))?;
    let unknown = Reply::error("ERR Invalid condition. Use IFEQ, IFNE, IFDEQ, or IFDNE");
    delete_if(condition.ok_or(unknown)?, current)
}

/// Deletes the string that meets the condition.
fn delete_if<'a>(condition: Condition<'_>, current: Current<'a>) -> Outcome<'a> {
    match string_of(current)? {
        Some(value) if condition.holds(Some(value)) => Ok((Reply::Int(1), Change::Delete)),
        _ => Ok((Reply::Int(0), Change::Keep)),
    }
}

pub(crate) fn getex<'a>(
    args: Args<'a>,
    now: UnixMillis,
    current: Current<'a>,
) -> (Reply<'a>, Change<'a>) {
    change_unless_error(try_getex(args, now, current))
}

fn try_getex<'a>(args: Args<'a>, now: UnixMillis, current: Current<'a>) -> Outcome<'a> {
    let options = Options::parse(Command::Getex, args, 2)?;
    // An absent key is answered before the time is looked at, as in Redis.
    let Some(value) = string_of(current)? else { return Ok((Reply::Null, Change::Keep)) };
    let change = match options.expire_at("getex", now)? {
        Some(at) if at <= now => Change::Delete,
        Some(at) => Change::Expire(Some(at)),
        None if options.persist && expiry_of(current).is_some() => Change::Expire(None),
        None => Change::Keep,
    };
    Ok((Reply::Bulk(value.into()), change))
}

pub(crate) fn getex_access(args: Args<'_>) -> Access {
    match Options::parse(Command::Getex, args, 2) {
        Ok(options) if options != Options::default() => Access::Update,
        _ => Access::Read,
    }
}

pub(crate) fn append<'a>(
    args: Args<'a>,
    _: UnixMillis,
    current: Current<'a>,
) -> (Reply<'a>, Change<'a>) {
    change_unless_error(try_append(args, current))
}

fn try_append<'a>(args: Args<'a>, current: Current<'a>) -> Outcome<'a> {
    let (old, tail) = (bytes_of(current)?, args.get(2));
    // A key that is absent takes any value that a request can carry.
    if current.content.is_some() {
        check_length(old.len() as u64, tail.len())?;
    }
    let mut bytes = Vec::with_capacity(old.len() + tail.len());
    bytes.extend_from_slice(old);
    bytes.extend_from_slice(tail);
    Ok((Reply::Int(bytes.len() as i64), replace_string(bytes, current)))
}

pub(crate) fn strlen<'a>(
    _: Args<'a>,
    _: UnixMillis,
    current: Current<'a>,
) -> (Reply<'a>, Change<'a>) {
    let length = bytes_of(current).map(|bytes| Reply::Int(bytes.len() as i64));
    (length.unwrap_or_else(|error| error), Change::Keep)
}

fn check_length(offset: u64, added: usize) -> Result<(), Reply<'static>> {
    if offset + added as u64 <= limits::VALUE_BYTES_MAX as u64 {
        return Ok(());
    }
    Err(Reply::error("ERR string exceeds maximum allowed size (proto-max-bulk-len)"))
}

pub(crate) fn setrange<'a>(
    args: Args<'a>,
    _: UnixMillis,
    current: Current<'a>,
) -> (Reply<'a>, Change<'a>) {
    change_unless_error(try_setrange(args, current))
}

fn try_setrange<'a>(args: Args<'a>, current: Current<'a>) -> Outcome<'a> {
    let offset = u64::try_from(integer(args.get(2))?)
        .map_err(|_| Reply::error("ERR offset is out of range"))?;
    let (old, patch) = (bytes_of(current)?, args.get(3));
    if patch.is_empty() {
        return Ok((Reply::Int(old.len() as i64), Change::Keep));
    }
    check_length(offset, patch.len())?;
    let offset = offset as usize;
    let end = offset + patch.len();
    let mut bytes = vec![0; old.len().max(end)];
    bytes[..old.len()].copy_from_slice(old);
    bytes[offset..end].copy_from_slice(patch);
    Ok((Reply::Int(bytes.len() as i64), replace_string(bytes, current)))
}

pub(crate) fn getrange<'a>(
    args: Args<'a>,
    _: UnixMillis,
    current: Current<'a>,
) -> (Reply<'a>, Change<'a>) {
    let range = integer(args.get(2)).and_then(|start| Ok((start, integer(args.get(3))?)));
    let reply = range.and_then(|(start, end)| {
        let bytes = bytes_of(current)?;
        let (start, end) = clamp_range(start, end, bytes.len());
        Ok(Reply::Bulk(bytes[start..end].into()))
    });
    (reply.unwrap_or_else(|error| error), Change::Keep)
}

/// The half-open range that an inclusive one with negative (from the end) indexes means within
/// `length` elements.
pub(crate) fn clamp_range(start: i64, end: i64, length: usize) -> (usize, usize) {
    // Two negative indexes in the wrong order are empty even where clamping would make them meet.
    if start < 0 && end < 0 && start > end {
        return (0, 0);
    }
    let length = length as i64;
    let from_end = |index: i64| if index < 0 { (length + index).max(0) } else { index };
    let (start, end) = (from_end(start), from_end(end).min(length - 1));
    if start > end { (0, 0) } else { (start as usize, end as usize + 1) }
}
