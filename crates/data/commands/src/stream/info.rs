//! `XINFO`: what is known of a stream, its groups and their consumers.

use alloc::vec;
use alloc::vec::Vec;

use quorate_machine::{Change, Current};
use quorate_types::UnixMillis;

use super::StreamId;
use super::answer::Answer;
use super::bytes::Damaged;
use super::consumers::wrong_subcommand;
use super::groups::{Group, no_group_of_key};
use super::packed::Stream;
use crate::number::integer;
use crate::options::is_word;
use crate::string::{Outcome, key_functions};
use crate::{Args, Reply};

/// The answer where there is no stream.
pub(super) const NO_KEY: Reply<'static> = Reply::error("ERR no such key");
/// Entries that `XINFO STREAM FULL` tells of, unless it says another number.
const FULL_COUNT: u64 = 10;

key_functions! {
    xinfo_stream => |args, _, current| try_stream(args, current);
    xinfo_groups => |_, _, current| {
        let stream = present(current)?;
        let mut answer = Answer::new();
        let mut replies = Vec::new();
        for group in stream.groups()? {
            let mut lines = vec![
                ("name", Reply::Bulk(group.name.into())),
                ("consumers", Reply::Int(group.consumers.len() as i64)),
                ("pending", Reply::Int(group.pending.len() as i64)),
            ];
            lines.extend(progress(&group, &stream)?);
            replies.push(answer.part(map(lines))?);
        }
        Ok((Reply::Array(replies), Change::Keep))
    };
    xinfo_consumers => |args, now, current| try_consumers(args, now, current);
}

fn present(current: Current<'_>) -> Result<Stream<'_>, Reply<'static>> {
    Stream::of(current)?.ok_or(NO_KEY)
}

fn map<'a>(lines: Vec<(&'static str, Reply<'a>)>) -> Reply<'a> {
    Reply::Map(lines.into_iter().map(|(name, value)| (Reply::text(name), value)).collect())
}

/// How far a group has come.
fn progress<'a>(
    group: &Group<'_>,
    stream: &Stream<'_>,
) -> Result<[(&'static str, Reply<'a>); 3], Damaged> {
    let number = |number: Option<i64>| number.map_or(Reply::Null, Reply::Int);
    Ok([
        ("last-delivered-id", group.last.reply()),
        ("entries-read", number(group.read)),
        ("lag", number(group.lag(stream)?)),
    ])
}

fn try_consumers<'a>(args: Args<'a>, now: UnixMillis, current: Current<'a>) -> Outcome<'a> {
    let stream = present(current)?;
    let group = stream.find_group(args.get(3))?;
    let (_, group) = group.map_err(|_| no_group_of_key(args.get(2), args.get(3)))?;
    let mut answer = Answer::new();
    let lines = group.consumers_by_name().into_iter().map(|(_, consumer, pending)| {
        answer.part(map(vec![
            ("name", Reply::Bulk(consumer.name.into())),
            ("pending", Reply::Int(pending as i64)),
            ("idle", Reply::Int(now.0.saturating_sub(consumer.seen).cast_signed())),
        ]))
    });
    Ok((Reply::Array(lines.collect::<Result<_, _>>()?), Change::Keep))
}

/// How many entries of each list `FULL` tells, `None` for all of them. Without `FULL`, no answer
/// has lists.
fn full(args: Args<'_>) -> Result<Option<Option<u64>>, Reply<'static>> {
    match args.len() {
        3 => return Ok(None),
        4 | 6 if is_word(args.get(3), "FULL") => {}
        _ => return Err(wrong_subcommand(args)),
    }
    if args.len() == 4 {
        return Ok(Some(Some(FULL_COUNT)));
    }
    if !is_word(args.get(4), "COUNT") {
        return Err(wrong_subcommand(args));
    }
    let count = u64::try_from(integer(args.get(5))?).unwrap_or(FULL_COUNT);
    Ok(Some(Some(count).filter(|count| *count > 0)))
}

fn try_stream<'a>(args: Args<'a>, current: Current<'a>) -> Outcome<'a> {
    let stream = present(current)?;
    let full = full(args)?;
    let keys = stream.chunks().map(|chunk| Ok(chunk?.first));
    let keys = keys.collect::<Result<Vec<_>, Damaged>>()?;
    let mut lines = vec![
        ("length", Reply::Int(stream.length.into())),
        ("radix-tree-keys", Reply::Int(keys.len() as i64)),
        ("radix-tree-nodes", Reply::Int(tree_nodes(&keys))),
        ("last-generated-id", stream.last.reply()),
        ("max-deleted-entry-id", stream.max_deleted.reply()),
        ("entries-added", Reply::Int(stream.added.cast_signed())),
        ("recorded-first-entry-id", stream.first_id()?.reply()),
    ];
    let mut answer = Answer::new();
    let Some(count) = full else {
        lines.push(("groups", Reply::Int(stream.group_count() as i64)));
        for (name, entry) in
            [("first-entry", stream.first_entry()?), ("last-entry", stream.last_entry()?)]
        {
            lines.push((name, entry.map_or(Ok(Reply::Null), |entry| answer.entry(entry))?));
        }
        return Ok((map(lines), Change::Keep));
    };
    let entries = answer.entries(stream.entries(StreamId::MIN, StreamId::MAX), count)?;
    lines.push(("entries", Reply::Array(entries)));
    let groups = stream.groups()?.into_iter();
    let groups = groups.map(|group| full_group(group, &stream, count, &mut answer));
    lines.push(("groups", Reply::Array(groups.collect::<Result<_, _>>()?)));
    Ok((map(lines), Change::Keep))
}

fn full_group<'a>(
    group: Group<'a>,
    stream: &Stream<'_>,
    count: Option<u64>,
    answer: &mut Answer,
) -> Result<Reply<'a>, Reply<'static>> {
    let count = count.map_or(usize::MAX, |count| usize::try_from(count).unwrap_or(usize::MAX));
    let mut lines = vec![("name", Reply::Bulk(group.name.into()))];
    lines.extend(progress(&group, stream)?);
    lines.push(("pel-count", Reply::Int(group.pending.len() as i64)));
    let line = |pending: &super::groups::Pending| {
        answer.part(Reply::Array(vec![
            pending.id.reply(),
            Reply::Bulk(group.consumers[pending.consumer].name.into()),
            Reply::Int(pending.delivered.cast_signed()),
            Reply::Int(pending.count.cast_signed()),
        ]))
    };
    let pending = group.pending.iter().take(count).map(line).collect::<Result<_, _>>()?;
    lines.push(("pending", Reply::Array(pending)));
    let mut of_consumers = vec![Vec::new(); group.consumers.len()];
    for pending in &group.pending {
        let held = &mut of_consumers[pending.consumer];
        if held.len() < count {
            held.push(answer.part(Reply::Array(vec![
                pending.id.reply(),
                Reply::Int(pending.delivered.cast_signed()),
                Reply::Int(pending.count.cast_signed()),
            ]))?);
        }
    }
    let consumers = group.consumers_by_name().into_iter().map(|(at, consumer, pending)| {
        let part = answer.part(map(vec![
            ("name", Reply::Bulk(consumer.name.into())),
            ("seen-time", Reply::Int(consumer.seen.cast_signed())),
            ("pel-count", Reply::Int(pending as i64)),
        ]))?;
        let Reply::Map(mut lines) = part else { unreachable!("it is a map") };
        let held = core::mem::take(&mut of_consumers[at]);
        lines.push((Reply::text("pending"), Reply::Array(held)));
        Ok(Reply::Map(lines))
    });
    lines.push(("consumers", Reply::Array(consumers.collect::<Result<_, Reply<'static>>>()?)));
    Ok(map(lines))
}

/// How many nodes Redis's radix tree has with these ids, which are in order, as keys.
fn tree_nodes(ids: &[StreamId]) -> i64 {
    let key = |id: &StreamId| (u128::from(id.ms) << 64 | u128::from(id.seq)).to_be_bytes();
    let keys: Vec<_> = ids.iter().map(key).collect();
    if keys.is_empty() { 1 } else { nodes_below(&keys, 0) }
}

/// The nodes for keys, in order and without repetition, that agree in so many bytes.
fn nodes_below(keys: &[[u8; 16]], depth: usize) -> i64 {
    let (Some(first), Some(last)) = (keys.first(), keys.last()) else { return 0 };
    let common = first.iter().zip(last).take_while(|(one, other)| one == other).count();
    // What all have in common is one node.
    let chain = i64::from(common > depth);
    if common == first.len() {
        return chain + 1;
    }
    let children = keys.chunk_by(|one, other| one[common] == other[common]);
    chain + 1 + children.map(|keys| nodes_below(keys, common + 1)).sum::<i64>()
}
