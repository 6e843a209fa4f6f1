//! Commands on the expiry of a key.

use alloc::format;
use alloc::string::String;

use quorate_machine::{Change, Current};
use quorate_types::UnixMillis;

use crate::hash::expire_key;
use crate::hash::expiring::own_expiry;
use crate::number::integer;
use crate::options::{c_string, invalid_expire_time, is_word};
use crate::string::{Outcome, change_unless_error, expiry_of};
use crate::{Args, Reply};

macro_rules! expire_command {
    ($name:ident, $text:literal, $factor:literal, $relative:literal) => {
        pub(crate) fn $name<'a>(
            args: Args<'a>,
            now: UnixMillis,
            current: Current<'a>,
        ) -> (Reply<'a>, Change<'a>) {
            let base = if $relative { now } else { UnixMillis(0) };
            change_unless_error(expire_generic($text, $factor, base, args, now, current))
        }
    };
}

expire_command!(expire, "expire", 1000, true);
expire_command!(pexpire, "pexpire", 1, true);
expire_command!(expireat, "expireat", 1000, false);
expire_command!(pexpireat, "pexpireat", 1, false);

#[derive(Default)]
struct Conditions {
    /// Only if there is no expiry.
    nx: bool,
    /// Only if there is one.
    xx: bool,
    /// Only if the new one is later.
    gt: bool,
    /// Only if the new one is earlier.
    lt: bool,
}

impl Conditions {
    fn parse(args: Args<'_>) -> Result<Self, Reply<'static>> {
        let mut conditions = Self::default();
        for word in args.iter().skip(3) {
            let condition = match word {
                word if is_word(word, "NX") => &mut conditions.nx,
                word if is_word(word, "XX") => &mut conditions.xx,
                word if is_word(word, "GT") => &mut conditions.gt,
                word if is_word(word, "LT") => &mut conditions.lt,
                word => return Err(unsupported(word)),
            };
            *condition = true;
        }
        if conditions.nx && (conditions.xx || conditions.gt || conditions.lt) {
            return Err(Reply::error(
                "ERR NX and XX, GT or LT options at the same time are not compatible",
            ));
        }
        if conditions.gt && conditions.lt {
            return Err(Reply::error("ERR GT and LT options at the same time are not compatible"));
        }
        Ok(conditions)
    }

    /// Whether they let a key with expiry `held` have expiry `wanted` instead. A key without
    /// expiry counts as one that expires after all time.
    fn allow(&self, held: Option<UnixMillis>, wanted: i128) -> bool {
        let held = held.map(|at| i128::from(at.0));
        !(self.nx && held.is_some()
            || self.xx && held.is_none()
            || self.gt && held.is_none_or(|held| wanted <= held)
            || self.lt && held.is_some_and(|held| wanted >= held))
    }
}

fn unsupported(word: &[u8]) -> Reply<'static> {
    // Redis cuts line breaks off the end of an error and replaces the others.
    let word = c_string(word);
    let length = word.iter().rposition(|byte| !b"\r\n".contains(byte)).map_or(0, |last| last + 1);
    Reply::Error(format!("ERR Unsupported option {}", quote(&word[..length])).into())
}

/// Text of a client as it may stand in an error: on one line.
pub(crate) fn quote(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).replace(['\r', '\n'], " ")
}

fn expire_generic<'a>(
    name: &str,
    factor: i64,
    base: UnixMillis,
    args: Args<'a>,
    now: UnixMillis,
    current: Current<'a>,
) -> Outcome<'a> {
    let conditions = Conditions::parse(args)?;
    let base = i64::try_from(base.0).unwrap_or(i64::MAX);
    let at = integer(args.get(2))?
        .checked_mul(factor)
        .and_then(|span| span.checked_add(base))
        .ok_or_else(|| invalid_expire_time(name))?;
    if current.content.is_none() || !conditions.allow(expiry_of(current), i128::from(at)) {
        return Ok((Reply::Int(0), Change::Keep));
    }
    let change = match u64::try_from(at) {
        Ok(at) if at > now.0 => change_to(Some(UnixMillis(at)), now, current)?,
        _ => Change::Delete,
    };
    Ok((Reply::Int(1), change))
}

/// The change that gives a key that holds something this expiry.
fn change_to<'a>(
    expire_at: Option<UnixMillis>,
    now: UnixMillis,
    current: Current<'_>,
) -> Result<Change<'a>, Reply<'static>> {
    Ok(expire_key(current, expire_at, now)?.unwrap_or(Change::Expire(expire_at)))
}

pub(crate) fn persist<'a>(
    _: Args<'a>,
    now: UnixMillis,
    current: Current<'a>,
) -> (Reply<'a>, Change<'a>) {
    change_unless_error(match expiry_of(current) {
        Some(_) => change_to(None, now, current).map(|change| (Reply::Int(1), change)),
        None => Ok((Reply::Int(0), Change::Keep)),
    })
}

pub(crate) fn ttl<'a>(
    _: Args<'a>,
    now: UnixMillis,
    current: Current<'a>,
) -> (Reply<'a>, Change<'a>) {
    tell(current, |at| seconds(at.0.saturating_sub(now.0)))
}

pub(crate) fn pttl<'a>(
    _: Args<'a>,
    now: UnixMillis,
    current: Current<'a>,
) -> (Reply<'a>, Change<'a>) {
    tell(current, |at| at.0.saturating_sub(now.0))
}

pub(crate) fn expiretime<'a>(
    _: Args<'a>,
    _: UnixMillis,
    current: Current<'a>,
) -> (Reply<'a>, Change<'a>) {
    tell(current, |at| seconds(at.0))
}

pub(crate) fn pexpiretime<'a>(
    _: Args<'a>,
    _: UnixMillis,
    current: Current<'a>,
) -> (Reply<'a>, Change<'a>) {
    tell(current, |at| at.0)
}

/// Milliseconds as seconds, rounded to the nearest.
fn seconds(millis: u64) -> u64 {
    millis.saturating_add(500) / 1000
}

/// -2 without a key, -1 without an expiry.
fn tell<'a>(current: Current<'a>, number: impl Fn(UnixMillis) -> u64) -> (Reply<'a>, Change<'a>) {
    let reply = match current.content.map(own_expiry) {
        None => -2,
        Some(None) => -1,
        Some(Some(at)) => number(at).cast_signed(),
    };
    (Reply::Int(reply), Change::Keep)
}
