//! Streams, as functions from what one holds to an answer and what it holds afterwards.
//!
//! Ids that follow from the clock have no place here: what another one would have been is not known.

use std::collections::BTreeMap;

use crate::collection::{Content, Ran, Wrong, number};
use crate::history::{Answer, Bytes};

/// Milliseconds and a sequence number.
type Id = (u64, u64);

/// A stream with its groups.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Stream {
    /// Fields and values by their ids.
    pub(crate) entries: BTreeMap<Id, Vec<Vec<u8>>>,
    /// The largest id that was ever there.
    last: Id,
    groups: BTreeMap<Vec<u8>, Group>,
}

/// A group of consumers. Consumers that nothing was delivered to don't show in any answer.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Group {
    /// The largest id that was delivered.
    delivered: Id,
    /// What was delivered and not acknowledged, and to whom.
    pending: BTreeMap<Id, Vec<u8>>,
}

/// Whether a command is one of streams.
pub(crate) fn is_of_streams(name: &str) -> bool {
    name.starts_with('X')
}

/// Runs a command on what a key holds.
pub(crate) fn run(name: &str, words: &[&[u8]], before: Option<&Content>) -> Result<Ran, Wrong> {
    let mut stream = match before {
        None => None,
        Some(Content::Stream(stream)) => Some(stream.clone()),
        Some(_) => return Err(Wrong::Type),
    };
    let answer = match (name, words) {
        ("XADD", [id, fields @ ..]) if !fields.is_empty() && fields.len().is_multiple_of(2) => {
            let stream = stream.get_or_insert_default();
            let id = next_id(id, stream.last)?;
            stream.last = id;
            stream.entries.insert(id, fields.iter().map(|word| word.to_vec()).collect());
            text(id)
        }
        ("XLEN", []) => count(stream.as_ref().map_or(0, |stream| stream.entries.len())),
        ("XDEL", [id]) => {
            let id = id_of(id)?;
            let held = stream.as_mut().and_then(|stream| stream.entries.remove(&id));
            count(usize::from(held.is_some()))
        }
        ("XTRIM", [b"MAXLEN", length]) => {
            let length = number(length)? as usize;
            let entries = stream.as_mut().map(|stream| &mut stream.entries);
            count(entries.map_or(0, |entries| {
                let over = entries.len().saturating_sub(length);
                (0..over).for_each(|_| drop(entries.pop_first()));
                over
            }))
        }
        ("XRANGE", [b"-", b"+"]) => {
            Answer::Array(stream.iter().flat_map(|stream| &stream.entries).map(shown).collect())
        }
        ("XREAD", [options @ .., b"STREAMS", from]) => {
            let (limit, from) = (count_of(options)?, id_of(from)?);
            stream.as_ref().map_or(NOTHING, |stream| {
                or_nothing(behind(stream, from, limit).map(shown).collect())
            })
        }
        ("XGROUP", [b"CREATE", group, b"0", b"MKSTREAM"]) => {
            let groups = &mut stream.get_or_insert_default().groups;
            if groups.contains_key(*group) {
                return Err(Wrong::Word("BUSYGROUP"));
            }
            groups.insert(group.to_vec(), Group::default());
            Answer::Ok
        }
        ("XREADGROUP", [b"GROUP", group, consumer, options @ .., b"STREAMS", b">"]) => {
            let limit = count_of(options)?;
            let stream = stream.as_mut().ok_or(NO_GROUP)?;
            let delivered = group_of(stream, group)?.delivered;
            let new: Vec<_> = behind(stream, delivered, limit)
                .map(|(id, fields)| (*id, shown((id, fields))))
                .collect();
            let group = group_of(stream, group)?;
            group.delivered = new.last().map_or(delivered, |(id, _)| *id);
            group.pending.extend(new.iter().map(|(id, _)| (*id, consumer.to_vec())));
            or_nothing(new.into_iter().map(|(_, entry)| entry).collect())
        }
        ("XACK", [group, ids @ ..]) if !ids.is_empty() => {
            let ids = ids.iter().map(|id| id_of(id)).collect::<Result<Vec<_>, _>>()?;
            let group = stream.as_mut().and_then(|stream| stream.groups.get_mut(*group));
            count(group.map_or(0, |group| {
                ids.iter().filter(|id| group.pending.remove(id).is_some()).count()
            }))
        }
        ("XAUTOCLAIM", [group, consumer, b"0", b"0", options @ ..]) => {
            let limit = count_of(options)?;
            claim(stream.as_mut().ok_or(NO_GROUP)?, group, consumer, limit)?
        }
        ("XPENDING", [group]) => {
            let stream = stream.as_mut().ok_or(NO_GROUP)?;
            summary(&group_of(stream, group)?.pending)
        }
        _ => return Err(Wrong::Unknown),
    };
    Ok((answer, stream.map(Content::Stream)))
}

const NO_GROUP: Wrong = Wrong::Word("NOGROUP");
/// What a read answers that finds nothing.
const NOTHING: Answer = Answer::Value(None);

fn group_of<'a>(stream: &'a mut Stream, name: &[u8]) -> Result<&'a mut Group, Wrong> {
    stream.groups.get_mut(name).ok_or(NO_GROUP)
}

/// The entries behind an id.
fn behind(
    stream: &Stream,
    id: Id,
    limit: usize,
) -> impl Iterator<Item = (&Id, &Vec<Vec<u8>>)> + use<'_> {
    stream.entries.iter().filter(move |(one, _)| **one > id).take(limit)
}

/// Gives what is pending to a consumer, the oldest first; what is not there any more is pending no
/// more.
fn claim(
    stream: &mut Stream,
    group: &[u8],
    consumer: &[u8],
    limit: usize,
) -> Result<Answer, Wrong> {
    let Stream { entries, groups, .. } = stream;
    let pending = &mut groups.get_mut(group).ok_or(NO_GROUP)?.pending;
    let (mut claimed, mut gone) = (Vec::new(), Vec::new());
    for id in pending.keys().copied().take(limit).collect::<Vec<_>>() {
        match entries.get_key_value(&id) {
            Some(entry) => {
                claimed.push((id, shown(entry)));
                pending.insert(id, consumer.to_vec());
            }
            None => {
                gone.push(text(id));
                pending.remove(&id);
            }
        }
    }
    let last = claimed.last().map(|(id, _)| *id);
    let next = if claimed.len() + gone.len() < limit {
        (0, 0)
    } else {
        let rest = pending.keys().find(|id| last.is_none_or(|last| **id > last));
        rest.copied().unwrap_or_default()
    };
    let claimed = claimed.into_iter().map(|(_, entry)| entry).collect();
    Ok(Answer::Array(vec![text(next), Answer::Array(claimed), Answer::Array(gone)]))
}

/// How many are pending, from where to where, and how many with each consumer.
fn summary(pending: &BTreeMap<Id, Vec<u8>>) -> Answer {
    let (Some((first, _)), Some((last, _))) = (pending.first_key_value(), pending.last_key_value())
    else {
        return Answer::Array(vec![count(0), NOTHING, NOTHING, NOTHING]);
    };
    let mut consumers: BTreeMap<&Vec<u8>, usize> = BTreeMap::new();
    pending.values().for_each(|consumer| *consumers.entry(consumer).or_default() += 1);
    let of_each = consumers.into_iter().map(|(consumer, held)| {
        Answer::Array(vec![bytes(consumer), Answer::Value(Some(held.to_string().into()))])
    });
    Answer::Array(vec![
        count(pending.len()),
        text(*first),
        text(*last),
        Answer::Array(of_each.collect()),
    ])
}

/// The id of an entry that is to be added: whole, or milliseconds and the next number.
fn next_id(word: &[u8], last: Id) -> Result<Id, Wrong> {
    let id = match word.strip_suffix(b"-*") {
        Some(millis) => match number(millis)? as u64 {
            millis if millis == last.0 => (millis, last.1 + 1),
            millis => (millis, 0),
        },
        None => id_of(word)?,
    };
    if id > last { Ok(id) } else { Err(Wrong::Argument) }
}

fn id_of(word: &[u8]) -> Result<Id, Wrong> {
    let mut parts = word.split(|byte| *byte == b'-');
    let mut part = || number(parts.next().ok_or(Wrong::Unknown)?).map(|part| part as u64);
    Ok((part()?, part()?))
}

/// How many entries are wanted. How long a command waits for them says nothing about them.
fn count_of(options: &[&[u8]]) -> Result<usize, Wrong> {
    match options {
        [b"COUNT", limit] | [b"COUNT", limit, b"BLOCK", _] => Ok(number(limit)? as usize),
        _ => Err(Wrong::Unknown),
    }
}

fn count(count: usize) -> Answer {
    Answer::Integer(count as i64)
}

fn bytes(word: &[u8]) -> Answer {
    Answer::Value(Some(Bytes(word.to_vec())))
}

fn text((millis, sequence): Id) -> Answer {
    Answer::Value(Some(format!("{millis}-{sequence}").into()))
}

fn shown((id, fields): (&Id, &Vec<Vec<u8>>)) -> Answer {
    Answer::Array(vec![text(*id), Answer::Array(fields.iter().map(|word| bytes(word)).collect())])
}

fn or_nothing(entries: Vec<Answer>) -> Answer {
    if entries.is_empty() { NOTHING } else { Answer::Array(entries) }
}
