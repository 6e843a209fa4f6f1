//! Commands on keys of any kind.

use quorate_machine::{Change, Current};
use quorate_types::{UnixMillis, limits};

use crate::number::{integer, parse_integer};
use crate::options::{SYNTAX, is_word};
use crate::{Args, CROSSKEY, Reply};

/// `DEL` and `UNLINK`. Every key of one call is the same key here, and it is deleted once.
pub(crate) fn del<'a>(_: Args<'a>, _: UnixMillis, current: Current<'a>) -> (Reply<'a>, Change<'a>) {
    match current.content {
        Some(_) => (Reply::Int(1), Change::Delete),
        None => (Reply::Int(0), Change::Keep),
    }
}

/// `EXISTS` and `TOUCH`. Every key of one call is the same key here, and each mention counts.
pub(crate) fn exists<'a>(
    args: Args<'a>,
    _: UnixMillis,
    current: Current<'a>,
) -> (Reply<'a>, Change<'a>) {
    let mentions = if current.content.is_some() { args.len() as i64 - 1 } else { 0 };
    (Reply::Int(mentions), Change::Keep)
}

pub(crate) fn type_of<'a>(
    _: Args<'a>,
    _: UnixMillis,
    current: Current<'a>,
) -> (Reply<'a>, Change<'a>) {
    let name = if current.content.is_some() { "string" } else { "none" };
    (Reply::status(name), Change::Keep)
}

/// The longest string that Redis stores next to its header.
const EMBEDDED_BYTES_MAX: usize = 44;

pub(crate) fn object_encoding<'a>(
    _: Args<'a>,
    _: UnixMillis,
    current: Current<'a>,
) -> (Reply<'a>, Change<'a>) {
    let reply = match current.content {
        None => Reply::Null,
        Some(content) if parse_integer(content.bytes).is_some() => Reply::text("int"),
        Some(content) if content.bytes.len() <= EMBEDDED_BYTES_MAX => Reply::text("embstr"),
        Some(_) => Reply::text("raw"),
    };
    (reply, Change::Keep)
}

/// Always an error: a copy has two keys, or one key in two keyspaces.
pub(crate) fn copy<'a>(args: Args<'a>, _: UnixMillis, _: Current<'a>) -> (Reply<'a>, Change<'a>) {
    let reply = match copy_to_other_keyspace(args) {
        Err(error) => error,
        Ok(false) if args.get(1) == args.get(2) => {
            Reply::error("ERR source and destination objects are the same")
        }
        Ok(_) => Reply::error(CROSSKEY),
    };
    (reply, Change::Keep)
}

/// Whether the options name a keyspace.
fn copy_to_other_keyspace(args: Args<'_>) -> Result<bool, Reply<'static>> {
    let mut named = false;
    let mut options = args.iter().skip(3);
    while let Some(word) = options.next() {
        if is_word(word, "REPLACE") {
            continue;
        }
        let number = options.next().filter(|_| is_word(word, "DB")).ok_or(SYNTAX)?;
        let number = i32::try_from(integer(number)?).map_err(|_| {
            Reply::error("ERR value is out of range, value must between -2147483648 and 2147483647")
        })?;
        let known = usize::try_from(number).is_ok_and(|number| number < limits::KEYSPACES_MAX);
        if !known {
            return Err(Reply::error("ERR DB index is out of range"));
        }
        named = true;
    }
    Ok(named)
}
