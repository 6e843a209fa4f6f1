//! `DUMP` and `RESTORE`: a value in the form in which Redis writes it to its files, so that it can
//! be taken from one server to another.

pub(crate) mod value;

use alloc::vec::Vec;

use quorate_machine::{Change, Content, Current, ValueKind};
use quorate_rdb::{Cursor, crc64, write_string};
use quorate_types::{UnixMillis, limits};

use crate::hash::expire_key;
use crate::number::integer;
use crate::options::{SYNTAX, is_word};
use crate::string::{Outcome, change_unless_error};
use crate::{Args, Reply};

/// The version of the form, which ends a payload before its checksum: that of Redis 7.0.
const VERSION: u16 = 10;
/// That of Redis 7.4, in which fields of a hash expire. Payloads of later ones aren't taken.
const VERSION_EXPIRING: u16 = 12;
const FOOTER_BYTES: usize = 2 + 8;

/// Never compressed, which every Redis reads as well.
pub(crate) fn dump<'a>(
    _: Args<'a>,
    now: UnixMillis,
    current: Current<'a>,
) -> (Reply<'a>, Change<'a>) {
    let Some(content) = current.content else { return (Reply::Null, Change::Keep) };
    let mut out = Vec::with_capacity(content.bytes.len() + 16);
    if let Err(damaged) = value::write(content, now, &mut out) {
        return (damaged, Change::Keep);
    }
    let version = if value::is_expiring(&out) { VERSION_EXPIRING } else { VERSION };
    out.extend_from_slice(&version.to_le_bytes());
    out.extend_from_slice(&crc64(&out).to_le_bytes());
    (Reply::Bulk(out.into()), Change::Keep)
}

pub(crate) fn restore<'a>(
    args: Args<'a>,
    now: UnixMillis,
    current: Current<'a>,
) -> (Reply<'a>, Change<'a>) {
    change_unless_error(try_restore(args, now, current))
}

fn try_restore<'a>(args: Args<'a>, now: UnixMillis, current: Current<'a>) -> Outcome<'a> {
    let (replace, absolute) = options(args)?;
    if !replace && current.content.is_some() {
        return Err(Reply::error("BUSYKEY Target key name already exists."));
    }
    let span = u64::try_from(integer(args.get(2))?)
        .map_err(|_| Reply::error("ERR Invalid TTL value, must be >= 0"))?;
    let (bytes, kind) = read_payload(args.get(3))?;
    let expire_at = match (span, absolute) {
        (0, _) => None,
        (at, true) => Some(UnixMillis(at)),
        // As in Redis, a key whose span overflows a signed number expires at once.
        (span, false) => {
            let at = now.0.saturating_add(span);
            Some(UnixMillis(if i64::try_from(at).is_ok() { at } else { 0 }))
        }
    };
    let change = match expire_at {
        Some(at) if at <= now => Change::Delete,
        _ => {
            let content = Content { bytes: &bytes, kind, expire_at: None };
            let restored = Current { content: Some(content), ..Current::ABSENT };
            let hash = expire_key(restored, expire_at, now)?;
            hash.unwrap_or(Change::Set { bytes: bytes.into(), kind, expire_at })
        }
    };
    let is_nothing = change == Change::Delete && current.content.is_none();
    Ok((Reply::Ok, if is_nothing { Change::Keep } else { change }))
}

/// Whether the options say `REPLACE` and `ABSTTL`. Nothing is evicted here, so how long a value has
/// been idle and how often it is used are of no interest.
fn options(args: Args<'_>) -> Result<(bool, bool), Reply<'static>> {
    let (mut replace, mut absolute) = (false, false);
    let (mut idle, mut frequency) = (false, false);
    let mut words = args.iter().skip(4);
    while let Some(word) = words.next() {
        if is_word(word, "REPLACE") {
            replace = true;
        } else if is_word(word, "ABSTTL") {
            absolute = true;
        } else if is_word(word, "IDLETIME") && !frequency {
            if integer(words.next().ok_or(SYNTAX)?)? < 0 {
                return Err(Reply::error("ERR Invalid IDLETIME value, must be >= 0"));
            }
            idle = true;
        } else if is_word(word, "FREQ") && !idle {
            if !(0..=255).contains(&integer(words.next().ok_or(SYNTAX)?)?) {
                return Err(Reply::error("ERR Invalid FREQ value, must be >= 0 and <= 255"));
            }
            frequency = true;
        } else {
            return Err(SYNTAX);
        }
    }
    Ok((replace, absolute))
}

/// The value in a payload.
fn read_payload(payload: &[u8]) -> Result<(Vec<u8>, ValueKind), Reply<'static>> {
    value::read(checked(payload)?).ok_or(Reply::error("ERR Bad data format"))
}

/// A payload without its footer, if the checksum there is right.
fn checked(payload: &[u8]) -> Result<&[u8], Reply<'static>> {
    const DAMAGED: Reply<'static> = Reply::error("ERR DUMP payload version or checksum are wrong");
    let at = payload.len().checked_sub(FOOTER_BYTES).ok_or(DAMAGED)?;
    let (body, footer) = payload.split_at(at);
    let (version, checksum) = footer.split_first_chunk().ok_or(DAMAGED)?;
    let sum = crc64(&payload[..at + 2]).to_le_bytes();
    if u16::from_le_bytes(*version) > VERSION_EXPIRING || *checksum != sum {
        return Err(DAMAGED);
    }
    Ok(body)
}

/// At the beginning of a payload's body.
fn cursor(body: &[u8]) -> Cursor<'_> {
    Cursor::new(body, 2 * limits::VALUE_BYTES_MAX)
}

/// The first byte of a library of functions in a payload of `FUNCTION DUMP`.
const LIBRARY: u8 = 245;

/// The payload of `FUNCTION DUMP`: the sources of libraries, as Redis writes and reads them.
pub fn libraries_dump<'a>(sources: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut out = Vec::new();
    for source in sources {
        out.push(LIBRARY);
        write_string(source, &mut out);
    }
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&crc64(&out).to_le_bytes());
    out
}

/// The sources in a payload of `FUNCTION DUMP`.
///
/// # Errors
/// What `FUNCTION RESTORE` answers to a damaged payload.
pub fn parse_libraries_dump(payload: &[u8]) -> Result<Vec<Vec<u8>>, Reply<'static>> {
    let mut reader = cursor(checked(payload)?);
    let mut sources = Vec::new();
    while let Some((kind, rest)) = reader.rest.split_first() {
        let is_library = *kind == LIBRARY;
        reader.rest = rest;
        let source = if is_library { reader.string().ok() } else { None };
        let source = source.ok_or(Reply::error("ERR given type is not a function"))?;
        sources.push(source.into_owned());
    }
    Ok(sources)
}
