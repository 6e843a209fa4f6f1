//! Commands on the entries of one stream.

use alloc::vec::Vec;

use quorate_machine::{Change, Current, mutant};
use quorate_types::UnixMillis;

use super::StreamId;
use super::answer::Answer;
use super::bytes::Damaged;
use super::edit::{Changed, Edit, Trim, TrimTo};
use super::id::Given;
use super::packed::{CHUNK_ENTRIES_MAX, Stream};
use crate::number::integer;
use crate::options::{SYNTAX, c_string, is_word};
use crate::several::wrong_number_of_arguments;
use crate::string::{Outcome, key_functions};
use crate::{Args, Reply};

/// Entries that an approximate trim takes at most, unless it says another number.
const TRIM_LIMIT: u64 = 100 * CHUNK_ENTRIES_MAX as u64;

key_functions! {
    xadd => |args, now, current| try_xadd(args, now, current);
    xlen => |_, _, current| {
        let length = Stream::of(current)?.map_or(0, |stream| stream.length);
        Ok((Reply::Int(length.into()), Change::Keep))
    };
    xrange => |args, _, current| range(args, current, false);
    xrevrange => |args, _, current| range(args, current, true);
    xdel => |args, _, current| try_xdel(args, current);
    xtrim => |args, _, current| try_xtrim(args, current);
    xsetid => |args, _, current| try_xsetid(args, current);
}

/// The id that a new entry is to have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NewId {
    /// `*`.
    Any,
    Given(Given),
}

impl NewId {
    /// The id of an entry that comes after `last`, if there is one.
    fn after(self, last: StreamId, now: UnixMillis) -> Option<StreamId> {
        let id = match self {
            Self::Any if now.0 > last.ms => StreamId { ms: now.0, seq: 0 },
            Self::Any => last.next()?,
            Self::Given(Given::Whole(id)) => id,
            Self::Given(Given::OfMillisecond(ms)) if ms == last.ms => {
                StreamId { ms, seq: last.seq.checked_add(1)? }
            }
            Self::Given(Given::OfMillisecond(ms)) => StreamId { ms, seq: 0 },
        };
        Some(id).filter(|id| mutant!("commands_stream_ids_go_back") || *id > last)
    }
}

/// The arguments of `XADD` and `XTRIM` before an id.
#[derive(Debug, Default)]
struct Options {
    only_present: bool,
    trim: Option<Trim>,
    id: Option<NewId>,
    /// Where the arguments behind them begin.
    end: usize,
}

impl Options {
    fn parse(args: Args<'_>, adds: bool) -> Result<Self, Reply<'static>> {
        let mut options = Self::default();
        let mut limit = None;
        let mut at = 2;
        while at < args.len() && options.id.is_none() {
            let word = args.get(at);
            let value = (at + 1 < args.len()).then(|| args.get(at + 1));
            at += 1;
            match value {
                _ if adds && c_string(word) == b"*" => options.id = Some(NewId::Any),
                Some(_) if is_word(word, "MAXLEN") || is_word(word, "MINID") => {
                    at = options.parse_trim(args, at, is_word(word, "MAXLEN"))?;
                }
                Some(value) if is_word(word, "LIMIT") => {
                    let number = u64::try_from(integer(value)?)
                        .map_err(|_| Reply::error("ERR The LIMIT argument must be >= 0."))?;
                    limit = Some(number);
                    at += 1;
                }
                _ if adds && is_word(word, "NOMKSTREAM") => options.only_present = true,
                _ if adds => options.id = Some(NewId::Given(Given::parse(word, 0)?)),
                _ => return Err(SYNTAX),
            }
        }
        options.end = at;
        options.set_limit(limit)?;
        if !adds && options.trim.is_none() {
            return Err(Reply::error(
                "ERR syntax error, XTRIM must be called with a trimming strategy",
            ));
        }
        Ok(options)
    }

    /// Reads `[=|~] length` or `[=|~] id` from argument `at` on, and tells where it ends.
    fn parse_trim(
        &mut self,
        args: Args<'_>,
        mut at: usize,
        by_length: bool,
    ) -> Result<usize, Reply<'static>> {
        if self.trim.is_some() {
            return Err(Reply::error(
                "ERR syntax error, MAXLEN and MINID options at the same time are not compatible",
            ));
        }
        let sign = Some(c_string(args.get(at))).filter(|_| at + 1 < args.len());
        let approximate = sign == Some(b"~");
        if approximate || sign == Some(b"=") {
            at += 1;
        }
        let to = if by_length {
            let length = u64::try_from(integer(args.get(at))?)
                .map_err(|_| Reply::error("ERR The MAXLEN argument must be >= 0."))?;
            TrimTo::Length(length)
        } else {
            TrimTo::Id(StreamId::parse(args.get(at), 0)?)
        };
        self.trim = Some(Trim { to, approximate, limit: 0 });
        Ok(at + 1)
    }

    fn set_limit(&mut self, limit: Option<u64>) -> Result<(), Reply<'static>> {
        match (&mut self.trim, limit) {
            (None, Some(1..)) => Err(Reply::error(
                "ERR syntax error, LIMIT cannot be used without specifying a trimming strategy",
            )),
            (Some(Trim { approximate: false, .. }) | None, Some(_)) => Err(Reply::error(
                "ERR syntax error, LIMIT cannot be used without the special ~ option",
            )),
            (Some(trim), _) if trim.approximate => {
                trim.limit = limit.unwrap_or(TRIM_LIMIT);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

fn try_xadd<'a>(args: Args<'a>, now: UnixMillis, current: Current<'a>) -> Outcome<'a> {
    let options = Options::parse(args, true)?;
    let items = args.iter().skip(options.end);
    let id = options.id.filter(|_| items.len() > 0 && items.len().is_multiple_of(2));
    let id = id.ok_or_else(|| wrong_number_of_arguments(args))?;
    if id == NewId::Given(Given::Whole(StreamId::MIN)) {
        return Err(Reply::error("ERR The ID specified in XADD must be greater than 0-0"));
    }
    let stream = match Stream::of(current)? {
        None if options.only_present => return Ok((Reply::Null, Change::Keep)),
        stream => stream.unwrap_or_default(),
    };
    if stream.last == StreamId::MAX {
        return Err(Reply::error(
            "ERR The stream has exhausted the last possible ID, unable to add more items",
        ));
    }
    let id = id.after(stream.last, now).ok_or(Reply::error(
        "ERR The ID specified in XADD is equal or smaller than the target stream top item",
    ))?;
    let mut edit = Edit::new(stream);
    edit.append(id, items)?;
    let length = edit.after.length;
    let mut changed = edit.finish();
    if let Some(trim) = options.trim {
        // The first chunk is as it was, unless it is the one that has the new entry.
        let first = stream.chunks().next().transpose()?;
        let has_others = stream.chunks().nth(1).is_some();
        if !first.is_some_and(|first| has_others && trim.takes_nothing(&first, length)) {
            changed = trimmed(changed, &trim, current)?;
        }
    }
    Ok((id.reply(), changed.store(current)?))
}

/// What becomes of a stream that is trimmed when it has changed.
fn trimmed(changed: Changed, trim: &Trim, current: Current<'_>) -> Result<Changed, Damaged> {
    let mut large = None;
    let mut edit = Edit::new(changed.look(current.large, &mut large)?);
    if edit.trim(trim)? == 0 {
        return Ok(changed);
    }
    let later = edit.finish();
    Ok(changed.then(later))
}

fn try_xtrim<'a>(args: Args<'a>, current: Current<'a>) -> Outcome<'a> {
    let trim = Options::parse(args, false)?.trim.expect("it is wrong without");
    let Some(stream) = Stream::of(current)? else { return Ok((Reply::Int(0), Change::Keep)) };
    let mut edit = Edit::new(stream);
    let deleted = edit.trim(&trim)?;
    let change = if deleted == 0 { Change::Keep } else { edit.finish().store(current)? };
    Ok((Reply::Int(deleted as i64), change))
}

fn range<'a>(args: Args<'a>, current: Current<'a>, back: bool) -> Outcome<'a> {
    let (from, to) = if back { (args.get(3), args.get(2)) } else { (args.get(2), args.get(3)) };
    let (from, to) = (StreamId::parse_start(from)?, StreamId::parse_end(to)?);
    let mut count = None;
    let mut words = args.iter().skip(4);
    while let Some(word) = words.next() {
        let value = words.next().filter(|_| is_word(word, "COUNT")).ok_or(SYNTAX)?;
        count = Some(u64::try_from(integer(value)?).unwrap_or(0));
    }
    let reply = match Stream::of(current)? {
        None => Reply::Array(Vec::new()),
        Some(_) if count == Some(0) => Reply::NullArray,
        Some(stream) => Reply::Array(if back {
            Answer::new().entries(stream.entries_back(from, to), count)?
        } else {
            Answer::new().entries(stream.entries(from, to), count)?
        }),
    };
    Ok((reply, Change::Keep))
}

fn try_xdel<'a>(args: Args<'a>, current: Current<'a>) -> Outcome<'a> {
    let Some(stream) = Stream::of(current)? else { return Ok((Reply::Int(0), Change::Keep)) };
    let mut ids = parse_ids(args, 2)?;
    ids.sort_unstable();
    ids.dedup();
    let mut edit = Edit::new(stream);
    let deleted = edit.delete(&ids)?;
    let change = if deleted == 0 { Change::Keep } else { edit.finish().store(current)? };
    Ok((Reply::Int(deleted as i64), change))
}

/// The ids from an argument on.
pub(super) fn parse_ids(args: Args<'_>, from: usize) -> Result<Vec<StreamId>, Reply<'static>> {
    args.iter().skip(from).map(|id| StreamId::parse(id, 0)).collect()
}

fn try_xsetid<'a>(args: Args<'a>, current: Current<'a>) -> Outcome<'a> {
    let id = StreamId::parse(args.get(2), 0)?;
    let (mut added, mut max_deleted) = (None, StreamId::MIN);
    let mut words = args.iter().skip(3);
    while let Some(word) = words.next() {
        let value = words.next().ok_or(SYNTAX)?;
        if is_word(word, "ENTRIESADDED") {
            let number = u64::try_from(integer(value)?)
                .map_err(|_| Reply::error("ERR entries_added must be positive"))?;
            added = Some(number);
        } else if is_word(word, "MAXDELETEDID") {
            max_deleted = StreamId::parse(value, 0)?;
            if id < max_deleted {
                return Err(Reply::error(
                    "ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id",
                ));
            }
        } else {
            return Err(SYNTAX);
        }
    }
    let stream = Stream::of(current)?.ok_or(Reply::error("ERR no such key"))?;
    if stream.last_entry()?.is_some_and(|entry| id < entry.id) {
        return Err(Reply::error(
            "ERR The ID specified in XSETID is smaller than the target stream top item",
        ));
    }
    if stream.length > 0 && added.is_some_and(|added| added < stream.length.into()) {
        return Err(Reply::error(
            "ERR The entries_added specified in XSETID is smaller than the target stream length",
        ));
    }
    let mut edit = Edit::new(stream);
    edit.after.last = id;
    edit.after.added = added.unwrap_or(stream.added);
    if max_deleted != StreamId::MIN {
        edit.after.max_deleted = max_deleted;
    }
    Ok((Reply::Ok, edit.finish().store(current)?))
}
