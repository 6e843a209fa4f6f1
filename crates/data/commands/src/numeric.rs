//! Commands on a string that is a number.

use alloc::vec::Vec;

use quorate_machine::{Change, Current};
use quorate_types::UnixMillis;

use crate::long_double::LongDouble;
use crate::number::{format_integer, integer};
use crate::string::{Outcome, change_unless_error, replace_string, string_of};
use crate::{Args, Reply};

pub(crate) fn incr<'a>(
    _: Args<'a>,
    _: UnixMillis,
    current: Current<'a>,
) -> (Reply<'a>, Change<'a>) {
    change_unless_error(add(1, current))
}

pub(crate) fn decr<'a>(
    _: Args<'a>,
    _: UnixMillis,
    current: Current<'a>,
) -> (Reply<'a>, Change<'a>) {
    change_unless_error(add(-1, current))
}

pub(crate) fn incrby<'a>(
    args: Args<'a>,
    _: UnixMillis,
    current: Current<'a>,
) -> (Reply<'a>, Change<'a>) {
    change_unless_error(integer(args.get(2)).and_then(|amount| add(amount, current)))
}

pub(crate) fn decrby<'a>(
    args: Args<'a>,
    _: UnixMillis,
    current: Current<'a>,
) -> (Reply<'a>, Change<'a>) {
    let amount = integer(args.get(2)).and_then(|amount| {
        amount.checked_neg().ok_or(Reply::error("ERR decrement would overflow"))
    });
    change_unless_error(amount.and_then(|amount| add(amount, current)))
}

/// Adds to the number that the key holds; an absent key holds 0.
fn add(amount: i64, current: Current<'_>) -> Outcome<'_> {
    let old = string_of(current)?.map_or(Ok(0), integer)?;
    let new =
        old.checked_add(amount).ok_or(Reply::error("ERR increment or decrement would overflow"))?;
    let bytes = format_integer(new, &mut [0; 20]).to_vec();
    Ok((Reply::Int(new), replace_string(bytes, current)))
}

pub(crate) fn incrbyfloat<'a>(
    args: Args<'a>,
    _: UnixMillis,
    current: Current<'a>,
) -> (Reply<'a>, Change<'a>) {
    change_unless_error(try_incrbyfloat(args, current))
}

fn try_incrbyfloat<'a>(args: Args<'a>, current: Current<'a>) -> Outcome<'a> {
    const NOT_A_FLOAT: Reply<'static> = Reply::error("ERR value is not a valid float");
    let old = match string_of(current)? {
        None => LongDouble::ZERO,
        Some(bytes) => LongDouble::parse(bytes).ok_or(NOT_A_FLOAT)?,
    };
    let amount = LongDouble::parse(args.get(2)).ok_or(NOT_A_FLOAT)?;
    let new = old
        .add(amount)
        .finite()
        .ok_or(Reply::error("ERR increment would produce NaN or Infinity"))?;
    let text: Vec<u8> = new.format();
    Ok((Reply::Bulk(text.clone().into()), replace_string(text, current)))
}
