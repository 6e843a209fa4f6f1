//! Commands on the consumer groups of one stream.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;

use quorate_machine::{Change, Current};
use quorate_types::UnixMillis;

use super::StreamId;
use super::answer::Answer;
use super::entries::parse_ids;
use super::groups::{Group, Pending, no_group, no_group_of_key};
use super::packed::{Index, Stream};
use crate::expiry::quote;
use crate::number::{integer, parse_integer};
use crate::options::{SYNTAX, c_string, is_word};
use crate::string::{Outcome, key_functions};
use crate::{Args, Reply};

key_functions! {
    xgroup_create => |args, _, current| try_create(args, current);
    xgroup_setid => |args, _, current| try_setid(args, current);
    xgroup_destroy => |args, _, current| {
        let stream = present(current)?;
        Ok(match stream.find_group(args.get(3))? {
            Ok((place, _)) => (Reply::Int(1), stream.with_group(&place, args.get(3), None).store(current)?),
            Err(_) => (Reply::Int(0), Change::Keep),
        })
    };
    xgroup_createconsumer => |args, now, current| {
        let stream = present(current)?;
        let (place, mut group) = stream
            .find_group(args.get(3))?
            .map_err(|_| no_group_of_key(args.get(2), args.get(3)))?;
        if group.find_consumer(args.get(4)).is_some() {
            return Ok((Reply::Int(0), Change::Keep));
        }
        group.consumer(args.get(4), now.0);
        Ok((Reply::Int(1), stream.with_group(&place, group.name, Some(&group)).store(current)?))
    };
    xgroup_delconsumer => |args, _, current| {
        let stream = present(current)?;
        let (place, mut group) = stream
            .find_group(args.get(3))?
            .map_err(|_| no_group_of_key(args.get(2), args.get(3)))?;
        let Some(at) = group.find_consumer(args.get(4)) else {
            return Ok((Reply::Int(0), Change::Keep));
        };
        let pending = group.remove_consumer(at);
        let change = stream.with_group(&place, group.name, Some(&group)).store(current)?;
        Ok((Reply::Int(pending as i64), change))
    };
    xack => |args, _, current| try_xack(args, current);
    xpending => |args, now, current| try_xpending(args, now, current);
    xclaim => |args, now, current| try_xclaim(args, now, current);
    xautoclaim => |args, now, current| try_xautoclaim(args, now, current);
}

/// The stream that a subcommand of `XGROUP` needs.
fn present(current: Current<'_>) -> Result<Stream<'_>, Reply<'static>> {
    Stream::of(current)?.ok_or(Reply::error(
        "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use \
         the MKSTREAM option to create an empty stream automatically.",
    ))
}

/// The error of a subcommand whose arguments Redis doesn't understand.
pub(super) fn wrong_subcommand(args: Args<'_>) -> Reply<'static> {
    let [container, name] = [0, 1].map(|at| quote(c_string(args.get(at))));
    let name: alloc::string::String = name.chars().take(128).collect();
    let container = container.to_ascii_uppercase();
    let text = format!(
        "ERR unknown subcommand or wrong number of arguments for '{name}'. Try {container} HELP."
    );
    Reply::Error(text.into())
}

/// The options `MKSTREAM`, where it is one, and `ENTRIESREAD` of a subcommand of `XGROUP`.
fn group_options(args: Args<'_>, makes: bool) -> Result<(bool, Option<i64>), Reply<'static>> {
    let (mut make, mut read) = (false, None);
    let mut words = args.iter().skip(5);
    while let Some(word) = words.next() {
        if makes && is_word(word, "MKSTREAM") {
            make = true;
            continue;
        }
        let value = words.next().filter(|_| is_word(word, "ENTRIESREAD"));
        let number = integer(value.ok_or_else(|| wrong_subcommand(args))?)?;
        if number < -1 {
            return Err(Reply::error("ERR value for ENTRIESREAD must be positive or -1"));
        }
        read = Some(number).filter(|number| *number >= 0);
    }
    Ok((make, read))
}

fn try_create<'a>(args: Args<'a>, current: Current<'a>) -> Outcome<'a> {
    let (make, read) = group_options(args, true)?;
    let stream = match Stream::of(current)? {
        None if make => Stream::default(),
        _ => present(current)?,
    };
    if args.len() > 8 {
        return Err(wrong_subcommand(args));
    }
    let last = match c_string(args.get(4)) {
        b"$" => stream.last,
        _ => StreamId::parse(args.get(4), 0)?,
    };
    let Err(place) = stream.find_group(args.get(3))? else {
        return Err(Reply::error("BUSYGROUP Consumer Group name already exists"));
    };
    let group = Group::new(args.get(3), last, read);
    Ok((Reply::Ok, stream.with_group(&place, group.name, Some(&group)).store(current)?))
}

fn try_setid<'a>(args: Args<'a>, current: Current<'a>) -> Outcome<'a> {
    let (_, read) = group_options(args, false)?;
    let stream = present(current)?;
    let (place, mut group) =
        stream.find_group(args.get(3))?.map_err(|_| no_group_of_key(args.get(2), args.get(3)))?;
    if ![5, 7].contains(&args.len()) {
        return Err(wrong_subcommand(args));
    }
    group.last = match c_string(args.get(4)) {
        b"$" => stream.last,
        _ => StreamId::parse_or_end(args.get(4), 0)?,
    };
    group.read = read;
    Ok((Reply::Ok, stream.with_group(&place, group.name, Some(&group)).store(current)?))
}

fn try_xack<'a>(args: Args<'a>, current: Current<'a>) -> Outcome<'a> {
    let nothing = Ok((Reply::Int(0), Change::Keep));
    let Some(stream) = Stream::of(current)? else { return nothing };
    let Ok((place, mut group)) = stream.find_group(args.get(2))? else { return nothing };
    let mut ids = parse_ids(args, 3)?;
    ids.sort_unstable();
    let before = group.pending.len();
    group.pending.retain(|pending| ids.binary_search(&pending.id).is_err());
    let acknowledged = before - group.pending.len();
    if acknowledged == 0 {
        return nothing;
    }
    let change = stream.with_group(&place, group.name, Some(&group)).store(current)?;
    Ok((Reply::Int(acknowledged as i64), change))
}

fn try_xpending<'a>(args: Args<'a>, now: UnixMillis, current: Current<'a>) -> Outcome<'a> {
    let range = PendingRange::parse(args)?;
    let missing = || no_group(args.get(1), args.get(2), "");
    let stream = Stream::of(current)?.ok_or_else(missing)?;
    let (_, group) = stream.find_group(args.get(2))?.map_err(|_| missing())?;
    let reply = match range {
        None => summary(&group),
        Some(range) => range.answer(&group, now)?,
    };
    Ok((reply, Change::Keep))
}

/// How much is pending, between which ids, and with whom.
fn summary<'a>(group: &Group<'a>) -> Reply<'a> {
    let (Some(first), Some(last)) = (group.pending.first(), group.pending.last()) else {
        return Reply::Array(vec![Reply::Int(0), Reply::Null, Reply::Null, Reply::NullArray]);
    };
    let consumers = group.consumers_by_name().into_iter().filter(|(.., count)| *count > 0);
    let consumers = consumers.map(|(_, consumer, count)| {
        let count = format!("{count}").into_bytes();
        Reply::Array(vec![Reply::Bulk(consumer.name.into()), Reply::Bulk(count.into())])
    });
    Reply::Array(vec![
        Reply::Int(group.pending.len() as i64),
        first.id.reply(),
        last.id.reply(),
        Reply::Array(consumers.collect()),
    ])
}

/// Which pending entries `XPENDING` asks for.
struct PendingRange<'a> {
    idle_ms: i64,
    from: StreamId,
    to: StreamId,
    count: u64,
    consumer: Option<&'a [u8]>,
}

impl<'a> PendingRange<'a> {
    /// `None` where the arguments ask for the summary.
    fn parse(args: Args<'a>) -> Result<Option<Self>, Reply<'static>> {
        if args.len() == 3 {
            return Ok(None);
        }
        if !(6..=9).contains(&args.len()) {
            return Err(SYNTAX);
        }
        let mut at = 3;
        let mut idle_ms = 0;
        if is_word(args.get(at), "IDLE") {
            idle_ms = integer(args.get(at + 1))?;
            if args.len() < 8 {
                return Err(SYNTAX);
            }
            at += 2;
        }
        let count = u64::try_from(integer(args.get(at + 2))?).unwrap_or(0);
        let from = StreamId::parse_start(args.get(at))?;
        let to = StreamId::parse_end(args.get(at + 1))?;
        let consumer = args.iter().nth(at + 3);
        Ok(Some(Self { idle_ms, from, to, count, consumer }))
    }

    fn answer(&self, group: &Group<'a>, now: UnixMillis) -> Result<Reply<'a>, Reply<'static>> {
        let wanted = match self.consumer.map(|name| group.find_consumer(name)) {
            Some(None) => return Ok(Reply::Array(Vec::new())),
            Some(wanted) => wanted,
            None => None,
        };
        let from = group.pending.partition_point(|pending| pending.id < self.from);
        let all = group.pending[from..].iter().take_while(|pending| pending.id <= self.to);
        let own = all.filter(|pending| wanted.is_none_or(|wanted| wanted == pending.consumer));
        let old = own.filter(|pending| self.idle_ms == 0 || idle(pending, now) >= self.idle_ms);
        let mut answer = Answer::new();
        let line = |pending: &Pending| {
            answer.part(Reply::Array(vec![
                pending.id.reply(),
                Reply::Bulk(group.consumers[pending.consumer].name.into()),
                Reply::Int(idle(pending, now).max(0)),
                Reply::Int(pending.count.cast_signed()),
            ]))
        };
        let count = usize::try_from(self.count).unwrap_or(usize::MAX);
        Ok(Reply::Array(old.take(count).map(line).collect::<Result<_, _>>()?))
    }
}

/// Milliseconds since an entry was delivered.
fn idle(pending: &Pending, now: UnixMillis) -> i64 {
    now.0.cast_signed().wrapping_sub(pending.delivered.cast_signed())
}

/// What `XCLAIM` does with the entries that it names.
#[derive(Clone, Copy, Debug, Default)]
struct Claim {
    /// When they were delivered, in milliseconds since 1970, as the client says.
    delivered: Option<i64>,
    count: Option<u64>,
    /// Whether entries that are not pending become so.
    force: bool,
    /// Whether the answer has the ids only.
    only_ids: bool,
    last: StreamId,
}

impl Claim {
    /// Reads the options from an argument on.
    fn parse(args: Args<'_>, from: usize, now: UnixMillis) -> Result<Self, Reply<'static>> {
        let mut claim = Self::default();
        let mut at = from;
        while at < args.len() {
            let word = args.get(at);
            let value = (at + 1 < args.len()).then(|| args.get(at + 1));
            let number = |value, error| parse_integer(value).ok_or(Reply::error(error));
            at += 2;
            match value {
                _ if is_word(word, "FORCE") => (claim.force, at) = (true, at - 1),
                _ if is_word(word, "JUSTID") => (claim.only_ids, at) = (true, at - 1),
                Some(value) if is_word(word, "IDLE") => {
                    let idle = number(value, "ERR Invalid IDLE option argument for XCLAIM")?;
                    claim.delivered = Some(now.0.cast_signed().wrapping_sub(idle));
                }
                Some(value) if is_word(word, "TIME") => {
                    let time = number(value, "ERR Invalid TIME option argument for XCLAIM")?;
                    claim.delivered = Some(time);
                }
                Some(value) if is_word(word, "RETRYCOUNT") => {
                    let count = number(value, "ERR Invalid RETRYCOUNT option argument for XCLAIM")?;
                    claim.count = u64::try_from(count).ok();
                }
                Some(value) if is_word(word, "LASTID") => claim.last = StreamId::parse(value, 0)?,
                _ => {
                    let word = quote(c_string(word));
                    let text = format!("ERR Unrecognized XCLAIM option '{word}'");
                    return Err(Reply::Error(text.into()));
                }
            }
        }
        Ok(claim)
    }
}

fn try_xclaim<'a>(args: Args<'a>, now: UnixMillis, current: Current<'a>) -> Outcome<'a> {
    let missing = || no_group(args.get(1), args.get(2), "");
    let stream = Stream::of(current)?.ok_or_else(missing)?;
    let (place, mut group) = stream.find_group(args.get(2))?.map_err(|_| missing())?;
    let min_idle = min_idle(args, "ERR Invalid min-idle-time argument for XCLAIM")?;
    let ids = args.iter().skip(5).map_while(|id| StreamId::parse(id, 0).ok());
    let ids: Vec<_> = ids.collect();
    let claim = Claim::parse(args, 5 + ids.len(), now)?;
    let mut changed = claim.last > group.last;
    group.last = group.last.max(claim.last);
    let delivered = claim.delivered.and_then(|at| u64::try_from(at).ok());
    let delivered = delivered.filter(|at| *at <= now.0).unwrap_or(now.0);
    let mut pending = Claimed::of(&mut group);
    let index = Index::of(&stream)?;
    let mut answer = Answer::new();
    let mut replies = Vec::new();
    for id in ids {
        let Some(entry) = index.find(id)? else {
            // A deleted entry is pending no more.
            changed |= pending.remove(id);
            continue;
        };
        let held = pending.get(id);
        if held.is_none() && !claim.force {
            continue;
        }
        if min_idle > 0 && held.is_some_and(|held| idle(&held, now) < min_idle) {
            continue;
        }
        let counted = held.map_or(1, |held| held.count);
        let count = claim.count.unwrap_or(counted.wrapping_add(u64::from(!claim.only_ids)));
        let consumer = group.consumer(args.get(3), now.0);
        pending.set(Pending { id, consumer, delivered, count });
        changed = true;
        replies.push(match claim.only_ids {
            true => answer.part(id.reply())?,
            false => answer.entry(entry)?,
        });
    }
    pending.apply(&mut group);
    let made = || stream.with_group(&place, group.name, Some(&group));
    let change = if changed { made().store(current)? } else { Change::Keep };
    Ok((Reply::Array(replies), change))
}

fn min_idle(args: Args<'_>, error: &'static str) -> Result<i64, Reply<'static>> {
    parse_integer(args.get(4)).map(|idle| idle.max(0)).ok_or(Reply::error(error))
}

/// The pending entries of a group while some of them change hands: looked up in any order, and put
/// together once.
struct Claimed {
    held: Vec<Pending>,
    /// What became of an entry; `None` if it is pending no more.
    changed: BTreeMap<StreamId, Option<Pending>>,
}

impl Claimed {
    fn of(group: &mut Group<'_>) -> Self {
        Self { held: core::mem::take(&mut group.pending), changed: BTreeMap::new() }
    }

    fn get(&self, id: StreamId) -> Option<Pending> {
        if let Some(changed) = self.changed.get(&id) {
            return *changed;
        }
        let at = self.held.binary_search_by_key(&id, |pending| pending.id).ok()?;
        Some(self.held[at])
    }

    fn set(&mut self, pending: Pending) {
        self.changed.insert(pending.id, Some(pending));
    }

    /// Whether it was pending.
    fn remove(&mut self, id: StreamId) -> bool {
        let held = self.get(id).is_some();
        self.changed.insert(id, None);
        held
    }

    fn apply(self, group: &mut Group<'_>) {
        let Self { held, mut changed } = self;
        let kept = held
            .into_iter()
            .filter_map(|pending| changed.remove(&pending.id).unwrap_or(Some(pending)));
        let mut pending: Vec<_> = kept.collect();
        if !changed.is_empty() {
            pending.extend(changed.into_values().flatten());
            pending.sort_unstable_by_key(|pending| pending.id);
        }
        group.pending = pending;
    }
}

/// Entries that `XAUTOCLAIM` looks at for each that it may claim.
const LOOKS: u64 = 10;

fn try_xautoclaim<'a>(args: Args<'a>, now: UnixMillis, current: Current<'a>) -> Outcome<'a> {
    let min_idle = min_idle(args, "ERR Invalid min-idle-time argument for XAUTOCLAIM")?;
    let from = StreamId::parse_start(args.get(5))?;
    let (mut count, mut only_ids) = (100, false);
    let mut words = args.iter().skip(6);
    while let Some(word) = words.next() {
        if is_word(word, "JUSTID") {
            only_ids = true;
            continue;
        }
        let value = words.next().filter(|_| is_word(word, "COUNT")).ok_or(SYNTAX)?;
        // 16 bytes for each are what Redis can count.
        count = parse_integer(value)
            .and_then(|count| u64::try_from(count).ok())
            .filter(|count| (1..=i64::MAX as u64 / 16).contains(count))
            .ok_or(Reply::error("ERR COUNT must be > 0"))?;
    }
    let missing = || no_group(args.get(1), args.get(2), "");
    let stream = Stream::of(current)?.ok_or_else(missing)?;
    let (place, mut group) = stream.find_group(args.get(2))?.map_err(|_| missing())?;
    let index = Index::of(&stream)?;
    let mut answer = Answer::new();
    let (mut claimed, mut deleted) = (Vec::new(), Vec::new());
    let mut looks = count.saturating_mul(LOOKS);
    let mut at = group.pending.partition_point(|pending| pending.id < from);
    let mut gone = Vec::new();
    while let Some(pending) = group.pending.get(at).copied().filter(|_| looks > 0 && count > 0) {
        looks -= 1;
        at += 1;
        let Some(entry) = index.find(pending.id)? else {
            deleted.push(answer.part(pending.id.reply())?);
            gone.push(pending.id);
            count -= 1;
            continue;
        };
        if min_idle > 0 && idle(&pending, now) < min_idle {
            continue;
        }
        let consumer = group.consumer(args.get(3), now.0);
        let times = pending.count.wrapping_add(u64::from(!only_ids));
        group.pending[at - 1] =
            Pending { id: pending.id, consumer, delivered: now.0, count: times };
        claimed.push(match only_ids {
            true => answer.part(pending.id.reply())?,
            false => answer.entry(entry)?,
        });
        count -= 1;
    }
    let next = group.pending.get(at).map_or(StreamId::MIN, |pending| pending.id);
    let changed = !claimed.is_empty() || !gone.is_empty();
    group.pending.retain(|pending| gone.binary_search(&pending.id).is_err());
    let made = || stream.with_group(&place, group.name, Some(&group));
    let change = if changed { made().store(current)? } else { Change::Keep };
    Ok((Reply::Array(vec![next.reply(), Reply::Array(claimed), Reply::Array(deleted)]), change))
}
