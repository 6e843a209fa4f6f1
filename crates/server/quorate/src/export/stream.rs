//! A stream that is too long for one answer: its entries in pieces, what it knows of itself, its groups.
//!
//! The bytes are those of Redis 7.0; `crates/data/rdb/src/reader/stream.rs` has their order.

use anyhow::anyhow;
use quorate_rdb::{Listpack, format_integer, write_length, write_number, write_string};

use super::large::{ITEMS_AT_ONCE, ask, ask_for_some, strange, strings};
use crate::transfer::{Connection, Reply, Trouble};

/// Entries of a node, as many as a Redis puts into one.
const NODE_ENTRIES_MAX: usize = 100;
/// Flag of an entry whose fields are those of its node's first one.
const SAME_FIELDS: i64 = 2;

/// The id of an entry.
type Id = (u64, u64);

struct Entry {
    id: Id,
    /// Fields and values in turns.
    items: Vec<Vec<u8>>,
}

/// Reads a stream, and gives it without the byte of its form.
pub(super) fn read(connection: &mut Connection, key: &[u8]) -> Result<Vec<u8>, Trouble> {
    let (mut nodes, mut count, mut length, mut first) = (Vec::new(), 0, 0, (0, 0));
    let (mut from, mut at_once) = ("-".to_owned(), ITEMS_AT_ONCE);
    loop {
        let limit = at_once.to_string();
        let words = [b"XRANGE", key, from.as_bytes(), b"+", b"COUNT", limit.as_bytes()];
        let Some(reply) = ask_for_some(connection, &words, &mut at_once)? else { continue };
        let entries = array(reply)?.into_iter().map(entry).collect::<Result<Vec<_>, _>>()?;
        let Some(last) = entries.last() else { break };
        if length == 0 {
            first = entries[0].id;
        }
        length += entries.len() as u64;
        from = format!("({}", text(last.id));
        for node in entries.chunks(NODE_ENTRIES_MAX) {
            write_node(node, &mut nodes);
            count += 1;
        }
    }
    let mut out = Vec::new();
    write_length(count, &mut out);
    out.append(&mut nodes);
    let about = fields(ask(connection, &[b"XINFO", b"STREAM", key])?)?;
    write_number(length, &mut out);
    write_id(about.id("last-generated-id")?, &mut out);
    write_id(first, &mut out);
    write_id(about.id("max-deleted-entry-id")?, &mut out);
    write_number(about.number("entries-added")?.unwrap_or(length), &mut out);
    let groups = array(ask(connection, &[b"XINFO", b"GROUPS", key])?)?;
    write_length(groups.len(), &mut out);
    for group in groups {
        write_group(connection, key, &fields(group)?, &mut out)?;
    }
    Ok(out)
}

fn write_node(entries: &[Entry], out: &mut Vec<u8>) {
    let mut listpack = Listpack::new();
    let put = |number: i64, listpack: &mut Listpack| {
        listpack.push(format_integer(number, &mut [0; 20]));
    };
    let (first, names) = (entries[0].id, entries[0].items.iter().step_by(2));
    for number in [entries.len() as i64, 0, names.len() as i64] {
        put(number, &mut listpack);
    }
    names.clone().for_each(|name| listpack.push(name));
    put(0, &mut listpack);
    for entry in entries {
        let is_same = entry.items.iter().step_by(2).eq(names.clone());
        let count = entry.items.len() as i64 / 2;
        put(if is_same { SAME_FIELDS } else { 0 }, &mut listpack);
        put(entry.id.0.wrapping_sub(first.0).cast_signed(), &mut listpack);
        put(entry.id.1.wrapping_sub(first.1).cast_signed(), &mut listpack);
        if !is_same {
            put(count, &mut listpack);
        }
        for (at, item) in entry.items.iter().enumerate() {
            if !is_same || at % 2 == 1 {
                listpack.push(item);
            }
        }
        put(if is_same { count + 3 } else { 2 * count + 4 }, &mut listpack);
    }
    write_string(&raw_id(first), out);
    write_string(&listpack.finish(), out);
}

fn write_group(
    connection: &mut Connection,
    key: &[u8],
    group: &Fields,
    out: &mut Vec<u8>,
) -> Result<(), Trouble> {
    let Some(Reply::Bulk(name)) = group.get("name") else { return Err(group.lacks("name")) };
    write_string(name, out);
    write_id(group.id("last-delivered-id")?, out);
    write_number(group.number("entries-read")?.unwrap_or(u64::MAX), out);
    // What is pending says for how long.
    let now_ms = now_ms(ask(connection, &[b"TIME"])?)?;
    let mut pending = Vec::new();
    let (mut from, limit) = ("-".to_owned(), ITEMS_AT_ONCE.to_string());
    loop {
        let words = [b"XPENDING", key, name, from.as_bytes(), b"+", limit.as_bytes()];
        let some = array(ask(connection, &words)?)?;
        for one in some {
            let parts = <[Reply; 4]>::try_from(array(one)?);
            let Ok([Reply::Bulk(id), Reply::Bulk(consumer), Reply::Int(idle), Reply::Int(count)]) =
                parts
            else {
                return Err(anyhow!("the target answered XPENDING with something else").into());
            };
            let delivered = now_ms.saturating_sub(idle.unsigned_abs());
            pending.push((parse_id(&id)?, consumer, delivered, count.unsigned_abs()));
        }
        let next = pending.last().map(|(id, ..)| format!("({}", text(*id)));
        match next {
            Some(next) if next != from => from = next,
            _ => break,
        }
    }
    write_length(pending.len(), out);
    for (id, _, delivered, count) in &pending {
        out.extend_from_slice(&raw_id(*id));
        out.extend_from_slice(&delivered.to_le_bytes());
        write_number(*count, out);
    }
    let consumers = array(ask(connection, &[b"XINFO", b"CONSUMERS", key, name])?)?;
    write_length(consumers.len(), out);
    for consumer in consumers {
        let consumer = fields(consumer)?;
        let Some(Reply::Bulk(name)) = consumer.get("name") else {
            return Err(consumer.lacks("name"));
        };
        let idle = consumer.number("idle")?.unwrap_or(0);
        write_string(name, out);
        out.extend_from_slice(&now_ms.saturating_sub(idle).to_le_bytes());
        let its_own = || pending.iter().filter(|(_, owner, ..)| owner == name);
        write_length(its_own().count(), out);
        its_own().for_each(|(id, ..)| out.extend_from_slice(&raw_id(*id)));
    }
    Ok(())
}

/// What `XINFO` answers: names and what they are, in turns.
struct Fields(Vec<Reply>);

impl Fields {
    fn get(&self, name: &str) -> Option<&Reply> {
        let mut pairs = self.0.chunks_exact(2);
        pairs.find(|pair| pair[0] == Reply::Bulk(name.into())).map(|pair| &pair[1])
    }

    fn id(&self, name: &str) -> Result<Id, Trouble> {
        match self.get(name) {
            Some(Reply::Bulk(id)) => parse_id(id),
            _ => Err(self.lacks(name)),
        }
    }

    /// A number, unless the target doesn't know it.
    fn number(&self, name: &str) -> Result<Option<u64>, Trouble> {
        match self.get(name) {
            Some(Reply::Int(number)) => Ok(u64::try_from(*number).ok()),
            Some(Reply::Null) | None => Ok(None),
            Some(_) => Err(self.lacks(name)),
        }
    }

    fn lacks(&self, name: &str) -> Trouble {
        anyhow!("the target answered XINFO without {name}").into()
    }
}

fn fields(reply: Reply) -> Result<Fields, Trouble> {
    array(reply).map(Fields)
}

fn array(reply: Reply) -> Result<Vec<Reply>, Trouble> {
    match reply {
        Reply::Array(parts) => Ok(parts),
        other => Err(strange("a command on a stream", &other)),
    }
}

fn entry(reply: Reply) -> Result<Entry, Trouble> {
    match <[Reply; 2]>::try_from(array(reply)?) {
        Ok([Reply::Bulk(id), items]) => Ok(Entry { id: parse_id(&id)?, items: strings(items)? }),
        _ => Err(anyhow!("the target answered XRANGE with something else").into()),
    }
}

/// Milliseconds since 1970, of what `TIME` answers.
fn now_ms(reply: Reply) -> Result<u64, Trouble> {
    let parts = strings(reply)?;
    let number =
        |at: usize| -> Option<u64> { std::str::from_utf8(parts.get(at)?).ok()?.parse().ok() };
    let now = number(0).zip(number(1)).map(|(seconds, micros)| 1000 * seconds + micros / 1000);
    now.ok_or_else(|| anyhow!("the target answered TIME with something else").into())
}

fn parse_id(bytes: &[u8]) -> Result<Id, Trouble> {
    let parsed = std::str::from_utf8(bytes).ok().and_then(|text| {
        let (ms, seq) = text.split_once('-')?;
        Some((ms.parse().ok()?, seq.parse().ok()?))
    });
    parsed.ok_or_else(|| anyhow!("the target says {:?} for an id", bytes.escape_ascii()).into())
}

fn text((ms, seq): Id) -> String {
    format!("{ms}-{seq}")
}

fn raw_id((ms, seq): Id) -> [u8; 16] {
    (u128::from(ms) << 64 | u128::from(seq)).to_be_bytes()
}

fn write_id((ms, seq): Id, out: &mut Vec<u8>) {
    write_number(ms, out);
    write_number(seq, out);
}
