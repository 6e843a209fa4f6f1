//! Commands on the expiry of fields, as Redis 7.4 and 8.0 have them.

use alloc::format;
use alloc::vec::Vec;

use quorate_machine::{Access, Change, Current};
use quorate_types::UnixMillis;

use super::edit::Edit;
use super::{Hash, bulk};
use crate::expiry::quote;
use crate::number::{integer, parse_integer};
use crate::options::{SYNTAX, Unit, c_string, invalid_expire_time, is_word};
use crate::several::wrong_number_of_arguments;
use crate::string::{Outcome, key_functions};
use crate::{Args, Reply, lookup};

/// The latest expiry of a field, in milliseconds since 1970: Redis takes 46 bits.
const EXPIRY_MAX: i64 = (1 << 46) - 1;

/// What the commands answer of each field.
const ABSENT: i64 = -2;
const ENDLESS: i64 = -1;
const REFUSED: i64 = 0;
const DONE: i64 = 1;
const DELETED: i64 = 2;

key_functions! {
    hexpire => |args, now, current| try_hexpire(args, Unit::Ex, now, current);
    hpexpire => |args, now, current| try_hexpire(args, Unit::Px, now, current);
    hexpireat => |args, now, current| try_hexpire(args, Unit::ExAt, now, current);
    hpexpireat => |args, now, current| try_hexpire(args, Unit::PxAt, now, current);
    httl => |args, now, current| tell(args, now, current, |at| seconds(at - now.0));
    hpttl => |args, now, current| tell(args, now, current, |at| at - now.0);
    hexpiretime => |args, now, current| tell(args, now, current, seconds);
    hpexpiretime => |args, now, current| tell(args, now, current, |at| at);
    hpersist => |args, now, current| try_hpersist(args, now, current);
    hgetdel => |args, now, current| try_hgetdel(args, now, current);
    hgetex => |args, now, current| try_hgetex(args, now, current);
    hsetex => |args, now, current| try_hsetex(args, now, current);
}

/// The expiry of a field that a time means, which may lie in the past.
fn moment(
    unit: Unit,
    time: &[u8],
    args: Args<'_>,
    now: UnixMillis,
) -> Result<UnixMillis, Reply<'static>> {
    let time = integer(time)?;
    if time < 0 {
        return Err(Reply::error("ERR invalid expire time, must be >= 0"));
    }
    match unit.moment(time, now).filter(|at| *at <= EXPIRY_MAX) {
        Some(at) => Ok(UnixMillis(at.cast_unsigned())),
        None => Err(invalid_expire_time(name_of(args))),
    }
}

fn name_of(args: Args<'_>) -> &'static str {
    lookup(args.get(0)).expect("the command was found by this name").name
}

/// Milliseconds as seconds, rounded up.
fn seconds(millis: u64) -> u64 {
    millis.div_ceil(1000)
}

/// When an expiry may be set.
#[derive(Clone, Copy)]
enum Condition {
    Always,
    /// Only if the field has no expiry.
    Nx,
    /// Only if the field has an expiry.
    Xx,
    /// Only if the new one is later.
    Gt,
    /// Only if the new one is earlier.
    Lt,
}

impl Condition {
    const ALL: [(Self, &'static str); 4] =
        [(Self::Nx, "NX"), (Self::Xx, "XX"), (Self::Gt, "GT"), (Self::Lt, "LT")];

    /// Whether a field with expiry `held` may have expiry `wanted` instead. One without counts as one
    /// that expires after all time.
    fn allows(self, held: Option<UnixMillis>, wanted: UnixMillis) -> bool {
        match self {
            Self::Always => true,
            Self::Nx => held.is_none(),
            Self::Xx => held.is_some(),
            Self::Gt => held.is_some_and(|held| wanted > held),
            Self::Lt => held.is_none_or(|held| wanted < held),
        }
    }
}

/// The fields behind `FIELDS numfields`, which stand from argument `at` on.
fn fields<'a>(
    args: Args<'a>,
    at: usize,
    not_positive: &'static str,
) -> Result<impl Iterator<Item = &'a [u8]> + Clone, Reply<'static>> {
    if !is_word(args.get(at), "FIELDS") {
        return Err(Reply::error(
            "ERR Mandatory argument FIELDS is missing or not at the right position",
        ));
    }
    if at + 1 == args.len() {
        return Err(wrong_number_of_arguments(args));
    }
    let count = parse_integer(args.get(at + 1)).filter(|count| *count > 0);
    let count = count.ok_or(Reply::error(not_positive))?;
    if usize::try_from(count) != Ok(args.len() - at - 2) {
        return Err(Reply::error(
            "ERR The `numfields` parameter must match the number of arguments",
        ));
    }
    Ok(args.iter().skip(at + 2))
}

const NOT_POSITIVE: &str = "ERR Number of fields must be a positive integer";
const NOT_GREATER: &str = "ERR Parameter `numFields` should be greater than 0";

fn try_hexpire<'a>(
    args: Args<'a>,
    unit: Unit,
    now: UnixMillis,
    current: Current<'a>,
) -> Outcome<'a> {
    let hash = Hash::of(current)?;
    let at = moment(unit, args.get(2), args, now)?;
    let word = args.get(3);
    let condition = Condition::ALL.iter().find(|(_, name)| is_word(word, name));
    let (condition, next) = condition.map_or((Condition::Always, 3), |(known, _)| (*known, 4));
    let fields = fields(args, next, NOT_GREATER)?;
    let mut edit = Edit::new(hash, now, fields.clone());
    let mut answer = |name| match edit.get(name) {
        None => ABSENT,
        Some(field) if !condition.allows(field.expire_at, at) => REFUSED,
        Some(_) if at <= now => {
            edit.remove(name);
            DELETED
        }
        Some(field) => {
            edit.expire(field, Some(at));
            DONE
        }
    };
    let answers = fields.map(|name| Reply::Int(answer(name))).collect();
    Ok((Reply::Array(answers), edit.finish(current)?))
}

/// Answers a number for each field that expires.
fn tell<'a>(
    args: Args<'a>,
    now: UnixMillis,
    current: Current<'a>,
    number: impl Fn(u64) -> u64,
) -> Outcome<'a> {
    let hash = Hash::of(current)?;
    let fields = fields(args, 2, NOT_POSITIVE)?;
    let edit = Edit::new(hash, now, fields.clone());
    let answer = |name| match edit.get(name).map(|field| field.expire_at) {
        None => ABSENT,
        Some(None) => ENDLESS,
        Some(Some(at)) => number(at.0).cast_signed(),
    };
    Ok((Reply::Array(fields.map(|name| Reply::Int(answer(name))).collect()), Change::Keep))
}

fn try_hpersist<'a>(args: Args<'a>, now: UnixMillis, current: Current<'a>) -> Outcome<'a> {
    let hash = Hash::of(current)?;
    let fields = fields(args, 2, NOT_POSITIVE)?;
    let mut edit = Edit::new(hash, now, fields.clone());
    let mut answer = |name| match edit.get(name) {
        None => ABSENT,
        Some(field) if field.expire_at.is_none() => ENDLESS,
        Some(field) => {
            edit.expire(field, None);
            DONE
        }
    };
    let answers = fields.map(|name| Reply::Int(answer(name))).collect();
    Ok((Reply::Array(answers), edit.finish(current)?))
}

fn try_hgetdel<'a>(args: Args<'a>, now: UnixMillis, current: Current<'a>) -> Outcome<'a> {
    let hash = Hash::of(current)?;
    let fields = fields(args, 2, NOT_POSITIVE)?;
    let mut edit = Edit::new(hash, now, fields.clone());
    let answer = |name| {
        let value = edit.get(name).map(|field| field.value);
        edit.remove(name);
        bulk(value)
    };
    let answers = fields.map(answer).collect();
    Ok((Reply::Array(answers), edit.finish(current)?))
}

/// What `HGETEX` does to the expiry of each field.
#[derive(Clone, Copy)]
enum Wanted {
    Kept,
    Gone,
    At(UnixMillis),
}

/// Reads the option of `HGETEX`, and where `FIELDS` must stand behind it.
fn hgetex_option(args: Args<'_>, now: UnixMillis) -> Result<(Wanted, usize), Reply<'static>> {
    let word = args.get(2);
    if let Some(unit) = Unit::parse(word) {
        return Ok((Wanted::At(moment(unit, args.get(3), args, now)?), 4));
    }
    Ok(if is_word(word, "PERSIST") { (Wanted::Gone, 3) } else { (Wanted::Kept, 2) })
}

pub(crate) fn hgetex_access(args: Args<'_>) -> Access {
    match hgetex_option(args, UnixMillis(0)) {
        Ok((Wanted::Kept, _)) | Err(_) => Access::Read,
        Ok(_) => Access::Update,
    }
}

fn try_hgetex<'a>(args: Args<'a>, now: UnixMillis, current: Current<'a>) -> Outcome<'a> {
    let hash = Hash::of(current)?;
    let (wanted, next) = hgetex_option(args, now)?;
    let fields = fields(args, next, NOT_POSITIVE)?;
    let mut edit = Edit::new(hash, now, fields.clone());
    let mut answers = Vec::new();
    for name in fields {
        let field = edit.get(name);
        answers.push(bulk(field.map(|field| field.value)));
        match (field, wanted) {
            (Some(_), Wanted::At(at)) if at <= now => edit.remove(name),
            (Some(field), Wanted::At(at)) => edit.expire(field, Some(at)),
            (Some(field), Wanted::Gone) if field.expire_at.is_some() => edit.expire(field, None),
            _ => {}
        }
    }
    Ok((Reply::Array(answers), edit.finish(current)?))
}

/// The options of `HSETEX`.
#[derive(Default)]
struct Setting {
    only_absent: bool,
    only_present: bool,
    keep_ttl: bool,
    expire_at: Option<UnixMillis>,
    /// Where the fields and their values begin.
    first: usize,
}

impl Setting {
    fn parse(args: Args<'_>, now: UnixMillis) -> Result<Self, Reply<'static>> {
        let mut setting = Self::default();
        let mut at = 2;
        while at < args.len() {
            let word = args.get(at);
            if is_word(word, "FIELDS") {
                setting.first = at + 2;
                setting.check_count(args)?;
                return Ok(setting);
            } else if let Some(unit) = Unit::parse(word) {
                setting.check_expiry()?;
                if at + 1 == args.len() {
                    return Err(Reply::error("ERR missing expire time"));
                }
                setting.expire_at = Some(moment(unit, args.get(at + 1), args, now)?);
                at += 1;
            } else if is_word(word, "KEEPTTL") {
                setting.check_expiry()?;
                setting.keep_ttl = true;
            } else if is_word(word, "FXX") || is_word(word, "FNX") {
                if setting.only_absent || setting.only_present {
                    return Err(Reply::error(
                        "ERR Only one of FXX or FNX arguments can be specified",
                    ));
                }
                setting.only_present = is_word(word, "FXX");
                setting.only_absent = !setting.only_present;
            } else {
                return Err(Reply::Error(
                    format!("ERR unknown argument: {}", quote(c_string(word))).into(),
                ));
            }
            at += 1;
        }
        Err(SYNTAX)
    }

    /// Of the options about the expiry, one may be there.
    fn check_expiry(&self) -> Result<(), Reply<'static>> {
        if self.keep_ttl || self.expire_at.is_some() {
            return Err(Reply::error(
                "ERR Only one of EX, PX, EXAT, PXAT or KEEPTTL arguments can be specified",
            ));
        }
        Ok(())
    }

    fn check_count(&self, args: Args<'_>) -> Result<(), Reply<'static>> {
        if self.first + 1 >= args.len() {
            return Err(wrong_number_of_arguments(args));
        }
        let count = parse_integer(args.get(self.first - 1));
        let count = count.filter(|count| (1..=i64::from(i32::MAX)).contains(count));
        let count = count.ok_or(Reply::error("ERR invalid number of fields"))?;
        if (count as usize).checked_mul(2) != Some(args.len() - self.first) {
            return Err(wrong_number_of_arguments(args));
        }
        Ok(())
    }
}

fn try_hsetex<'a>(args: Args<'a>, now: UnixMillis, current: Current<'a>) -> Outcome<'a> {
    let setting = Setting::parse(args, now)?;
    let hash = Hash::of(current)?;
    let names = args.iter().skip(setting.first).step_by(2);
    let values = args.iter().skip(setting.first + 1).step_by(2);
    let mut edit = Edit::new(hash, now, names.clone());
    let is_refused = names.clone().any(|name| match edit.get(name) {
        Some(_) => setting.only_absent,
        None => setting.only_present,
    });
    if is_refused {
        return Ok((Reply::Int(0), Change::Keep));
    }
    for (name, value) in names.zip(values) {
        if setting.expire_at.is_some_and(|at| at <= now) {
            edit.remove(name);
            continue;
        }
        let held = edit.get(name).and_then(|field| field.expire_at);
        edit.set(name, value, if setting.keep_ttl { held } else { setting.expire_at });
    }
    Ok((Reply::Int(1), edit.finish(current)?))
}

/// The events of a call that has changed a hash, as Redis names them; the second one is only there for
/// some.
pub(crate) fn events(
    name: &'static str,
    args: Args<'_>,
    now: UnixMillis,
) -> (&'static str, Option<&'static str>) {
    let event = |at: UnixMillis| if at <= now { "hdel" } else { "hexpire" };
    let of_unit = |unit: Unit| moment(unit, args.get(2), args, now).map_or("hexpire", event);
    match name {
        "hexpire" => (of_unit(Unit::Ex), None),
        "hpexpire" => (of_unit(Unit::Px), None),
        "hexpireat" => (of_unit(Unit::ExAt), None),
        "hpexpireat" => (of_unit(Unit::PxAt), None),
        "hgetdel" => ("hdel", None),
        "hgetex" => match hgetex_option(args, now) {
            Ok((Wanted::At(at), _)) => (event(at), None),
            _ => ("hpersist", None),
        },
        "hsetex" => {
            let expire_at = Setting::parse(args, now).ok().and_then(|setting| setting.expire_at);
            ("hset", expire_at.map(event))
        }
        "hmset" | "hsetnx" => ("hset", None),
        name => (name, None),
    }
}
