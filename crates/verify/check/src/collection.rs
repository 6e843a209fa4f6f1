//! Commands on hashes, lists, sets, sorted sets and streams, as functions from what a key holds to an answer
//! and what it holds afterwards.
//!
//! Written apart from the server's commands, whose answers it judges. A command is its words
//! without the key, such as `HSET field value`. Commands that choose at random are not here.

use std::collections::{BTreeMap, BTreeSet};

use crate::history::{Answer, Bytes};
use crate::model::parse_canonical;
use crate::stream::{self, Stream};

/// A command on a hash, a list, a set, a sorted set or a stream that can be judged, or a script of
/// such commands on one key: its words without the key, the name in capitals. `docs/src/history.md`
/// lists them.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CollectionCommand(Vec<Bytes>);

impl CollectionCommand {
    /// The command of these words.
    ///
    /// # Errors
    /// If it can't be judged, such as one that chooses at random.
    pub fn new<W: Into<Bytes>>(words: impl IntoIterator<Item = W>) -> Result<Self, String> {
        let command = Self(words.into_iter().map(Into::into).collect());
        match try_run(&command.0, None) {
            Err(Wrong::Unknown) => Err(format!("\"{command}\" is no command that can be judged")),
            _ => Ok(command),
        }
    }

    /// Whether the command of these words may be in a script: it answers as it does alone, in an
    /// order, and without an error on a key of its type.
    pub fn may_be_in_script(words: &str) -> bool {
        const ELSEWHERE: [&str; 8] =
            ["XREAD", "XREADGROUP", "XGROUP", "XADD", "XAUTOCLAIM", "XPENDING", "LSET", "EVAL"];
        let name = words.split(' ').next().unwrap_or_default();
        !UNORDERED.contains(&name) && !ELSEWHERE.contains(&name)
    }

    /// The words, the name first.
    pub fn words(&self) -> &[Bytes] {
        &self.0
    }

    fn name(&self) -> &str {
        name_of(&self.0)
    }

    /// Whether it changes nothing, whatever the key holds.
    pub(crate) fn is_read(&self) -> bool {
        READS.contains(&self.name())
    }

    /// Whether the answer says that it has changed nothing.
    pub fn changes_nothing(&self, answer: &Answer) -> bool {
        match (self.name(), answer) {
            ("EVAL", Answer::Array(answers)) => match calls_of(&self.0) {
                Ok(calls) => calls.iter().zip(answers).all(|(one, said)| one.changes_nothing(said)),
                Err(_) => false,
            },
            // What came before the error stays.
            ("EVAL", _) => false,
            (_, Answer::Error(_)) => true,
            ("SADD" | "SREM" | "HDEL" | "HSETNX" | "ZREM" | "DEL" | "LREM", answer)
            | ("LPUSHX" | "RPUSHX", answer) => *answer == Answer::Integer(0),
            ("LPOP" | "RPOP", answer) => *answer == Answer::Value(None),
            ("ZPOPMIN" | "ZPOPMAX", answer) => *answer == Answer::Array(Vec::new()),
            ("XACK" | "XDEL" | "XTRIM", answer) => *answer == Answer::Integer(0),
            ("XREADGROUP", answer) => *answer == Answer::Value(None),
            ("XAUTOCLAIM", Answer::Array(parts)) => {
                parts[1..].iter().all(|part| *part == Answer::Array(Vec::new()))
            }
            _ => self.is_read(),
        }
    }

    /// The answer with what has no meaning taken out: the order of members, the sentence of an
    /// error.
    pub(crate) fn normal(&self, answer: &Answer) -> Answer {
        match answer {
            Answer::Error(text) => {
                let word = text.split(' ').next().unwrap_or_default();
                // Who waits for a group is told so that its stream is gone.
                Answer::Error(if word == "UNBLOCKED" { "NOGROUP" } else { word }.to_owned())
            }
            Answer::Array(items) if UNORDERED.contains(&self.name()) => {
                let width = if self.name() == "HGETALL" { 2 } else { 1 };
                let mut items: Vec<&[Answer]> = items.chunks(width).collect();
                items.sort_by_cached_key(|items| format!("{items:?}"));
                Answer::Array(items.concat())
            }
            other => other.clone(),
        }
    }

    /// The [normal](Self::normal) answer on this content, and what the key holds afterwards.
    pub(crate) fn run(&self, before: Option<&Content>) -> (Answer, Option<Content>) {
        let unchanged = |error: &str| (Answer::Error(error.to_owned()), before.cloned());
        match try_run(&self.0, before) {
            Ok((answer, after)) => {
                (self.normal(&answer), after.filter(|content| !content.is_empty()))
            }
            Err(Wrong::Type) => unchanged("WRONGTYPE"),
            Err(Wrong::Argument) => unchanged("ERR"),
            Err(Wrong::Word(word)) => unchanged(word),
            Err(Wrong::Unknown) => unreachable!("{self} was checked when it was made"),
        }
    }
}

impl std::fmt::Display for CollectionCommand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (at, word) in self.0.iter().enumerate() {
            write!(f, "{}{}", if at == 0 { "" } else { " " }, word.0.escape_ascii())?;
        }
        Ok(())
    }
}

type Member = Vec<u8>;

/// What a key holds.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Content {
    Text(Vec<u8>),
    Hash(BTreeMap<Member, Vec<u8>>),
    List(Vec<Member>),
    Set(BTreeSet<Member>),
    /// Members with their scores, which are integers here.
    Sorted(BTreeMap<Member, i64>),
    Stream(Stream),
}

impl Content {
    fn is_empty(&self) -> bool {
        match self {
            Self::Text(_) => false,
            Self::Hash(fields) => fields.is_empty(),
            Self::List(elements) => elements.is_empty(),
            Self::Set(members) => members.is_empty(),
            Self::Sorted(scores) => scores.is_empty(),
            Self::Stream(_) => false,
        }
    }

    /// About how many bytes it takes.
    pub(crate) fn bytes(&self) -> usize {
        let sum =
            |items: &mut dyn Iterator<Item = &Member>| items.map(|item| 32 + item.len()).sum();
        match self {
            Self::Text(bytes) => bytes.len(),
            Self::Hash(fields) => sum(&mut fields.iter().flat_map(|(field, value)| [field, value])),
            Self::List(elements) => sum(&mut elements.iter()),
            Self::Set(members) => sum(&mut members.iter()),
            Self::Sorted(scores) => sum(&mut scores.keys()),
            Self::Stream(stream) => sum(&mut stream.entries.values().flatten()),
        }
    }
}

impl std::fmt::Display for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = |bytes: &Vec<u8>| bytes.escape_ascii().to_string();
        let pair = |field: &Vec<u8>, value: String| format!("{}={value}", text(field));
        let (name, items): (_, Vec<String>) = match self {
            Self::Text(bytes) => return write!(f, "\"{}\"", text(bytes)),
            Self::Hash(fields) => {
                ("hash", fields.iter().map(|(field, value)| pair(field, text(value))).collect())
            }
            Self::List(elements) => ("list", elements.iter().map(text).collect()),
            Self::Set(members) => ("set", members.iter().map(text).collect()),
            Self::Sorted(scores) => {
                let scores = scores.iter();
                ("sorted set", scores.map(|(one, score)| pair(one, score.to_string())).collect())
            }
            Self::Stream(stream) => return write!(f, "the {stream:?}"),
        };
        write!(f, "the {name} [{}]", items.join(", "))
    }
}

/// An answer and what the key holds afterwards.
pub(crate) type Ran = (Answer, Option<Content>);

/// The commands that change nothing, whatever the key holds.
const READS: [&str; 23] = [
    "GET",
    "EXISTS",
    "HGET",
    "HMGET",
    "HLEN",
    "HEXISTS",
    "HGETALL",
    "LLEN",
    "LRANGE",
    "LINDEX",
    "SISMEMBER",
    "SCARD",
    "SMEMBERS",
    "ZSCORE",
    "ZCARD",
    "ZRANGE",
    "ZRANK",
    "TYPE",
    "HSTRLEN",
    "XLEN",
    "XRANGE",
    "XREAD",
    "XPENDING",
];

/// The commands whose answers have no order.
const UNORDERED: [&str; 2] = ["HGETALL", "SMEMBERS"];

fn name_of(words: &[Bytes]) -> &str {
    words.first().and_then(|word| std::str::from_utf8(&word.0).ok()).unwrap_or("")
}

fn try_run(words: &[Bytes], before: Option<&Content>) -> Result<Ran, Wrong> {
    let arguments: Vec<&[u8]> = words.iter().skip(1).map(|word| &word.0[..]).collect();
    let name = name_of(words);
    if stream::is_of_streams(name) {
        return stream::run(name, &arguments, before);
    }
    if name == "EVAL" {
        return on_script(words, before);
    }
    match name.as_bytes().first() {
        Some(b'H') => on_hash(name, &arguments, before),
        Some(b'S') if name != "SET" => on_set(name, &arguments, before),
        Some(b'Z') => on_sorted(name, &arguments, before),
        Some(b'L' | b'R') => on_list(name, &arguments, before),
        _ => on_any(name, &arguments, before),
    }
}

/// The commands of a script of the form `return{redis.call('NAME',KEYS[1],ARGV[1]),...}`.
fn calls_of(words: &[Bytes]) -> Result<Vec<CollectionCommand>, Wrong> {
    let [_, source, one, own @ ..] = words else { return Err(Wrong::Unknown) };
    let source = std::str::from_utf8(&source.0).map_err(|_| Wrong::Unknown)?;
    let calls = source.strip_prefix("return{redis.call(").and_then(|rest| rest.strip_suffix(")}"));
    let calls = calls.filter(|_| one.0 == b"1").ok_or(Wrong::Unknown)?;
    let command = |call: &str| {
        let mut parts = call.split(',');
        let name = parts.next().unwrap_or_default().trim_matches('\'');
        if !CollectionCommand::may_be_in_script(name) || parts.next() != Some("KEYS[1]") {
            return Err(Wrong::Unknown);
        }
        let argument = |part: &str| {
            let at = part.strip_prefix("ARGV[").and_then(|rest| rest.strip_suffix(']'));
            let at = at.and_then(|at| at.parse::<usize>().ok()).ok_or(Wrong::Unknown)?;
            own.get(at.wrapping_sub(1)).cloned().ok_or(Wrong::Unknown)
        };
        let words = std::iter::once(Ok(Bytes::from(name))).chain(parts.map(argument));
        CollectionCommand::new(words.collect::<Result<Vec<_>, _>>()?).map_err(|_| Wrong::Unknown)
    };
    calls.split("),redis.call(").map(command).collect()
}

/// Runs a script: one command after the other, the answers in an array. An error ends it, and what came
/// before stays.
fn on_script(words: &[Bytes], before: Option<&Content>) -> Result<Ran, Wrong> {
    let (mut answers, mut held) = (Vec::new(), before.cloned());
    for command in calls_of(words)? {
        let (answer, after) = command.run(held.as_ref());
        held = after;
        match answer {
            Answer::Error(_) => return Ok((answer, held)),
            Answer::Ok => answers.push(Answer::Value(Some("OK".into()))),
            answer => answers.push(answer),
        }
    }
    Ok((Answer::Array(answers), held))
}

/// Why a command has no effect.
pub(crate) enum Wrong {
    Type,
    Argument,
    /// An error of another code word.
    Word(&'static str),
    /// It is not in this model.
    Unknown,
}

fn int(count: usize) -> Answer {
    Answer::Integer(count as i64)
}

fn flag(yes: bool) -> Answer {
    Answer::Integer(i64::from(yes))
}

fn value(bytes: Option<&Vec<u8>>) -> Answer {
    Answer::Value(bytes.map(|bytes| Bytes(bytes.clone())))
}

fn array<'a>(items: impl IntoIterator<Item = &'a Vec<u8>>) -> Answer {
    Answer::Array(items.into_iter().map(|item| value(Some(item))).collect())
}

pub(crate) fn number(word: &[u8]) -> Result<i64, Wrong> {
    parse_canonical(word).ok_or(Wrong::Argument)
}

/// Scores are integers here that a double holds: what Redis makes of others is not in this model.
fn score(word: &[u8]) -> Result<i64, Wrong> {
    let score = parse_canonical(word).filter(|score| score.unsigned_abs() <= 1 << 53);
    score.ok_or(Wrong::Unknown)
}

fn on_any(name: &str, arguments: &[&[u8]], before: Option<&Content>) -> Result<Ran, Wrong> {
    Ok(match (name, arguments, before) {
        ("GET", [], None) => (value(None), None),
        ("GET", [], Some(Content::Text(bytes))) => (value(Some(bytes)), before.cloned()),
        ("GET", [], Some(_)) => return Err(Wrong::Type),
        ("SET", [bytes], _) => (Answer::Ok, Some(Content::Text(bytes.to_vec()))),
        ("DEL", [], _) => (flag(before.is_some()), None),
        ("EXISTS", [], _) => (flag(before.is_some()), before.cloned()),
        ("TYPE", [], _) => {
            let kind = match before {
                None => "none",
                Some(Content::Text(_)) => "string",
                Some(Content::Hash(_)) => "hash",
                Some(Content::List(_)) => "list",
                Some(Content::Set(_)) => "set",
                Some(Content::Sorted(_)) => "zset",
                Some(Content::Stream(_)) => "stream",
            };
            (Answer::Value(Some(kind.into())), before.cloned())
        }
        _ => return Err(Wrong::Unknown),
    })
}

fn on_hash(name: &str, arguments: &[&[u8]], before: Option<&Content>) -> Result<Ran, Wrong> {
    let mut fields = match before {
        None => BTreeMap::new(),
        Some(Content::Hash(fields)) => fields.clone(),
        Some(_) => return Err(Wrong::Type),
    };
    let answer = match (name, arguments) {
        ("HSET", pairs) if pairs.len() >= 2 && pairs.len().is_multiple_of(2) => {
            let set = |pair: &[&[u8]]| fields.insert(pair[0].to_vec(), pair[1].to_vec()).is_none();
            int(pairs.chunks(2).map(set).filter(|new| *new).count())
        }
        ("HSETNX", [field, bytes]) => {
            let is_new = !fields.contains_key(*field);
            fields.entry(field.to_vec()).or_insert_with(|| bytes.to_vec());
            flag(is_new)
        }
        ("HGET", [field]) => value(fields.get(*field)),
        ("HMGET", names) => {
            Answer::Array(names.iter().map(|name| value(fields.get(*name))).collect())
        }
        ("HDEL", names) => int(names.iter().filter(|name| fields.remove(**name).is_some()).count()),
        ("HLEN", []) => int(fields.len()),
        ("HEXISTS", [field]) => flag(fields.contains_key(*field)),
        ("HSTRLEN", [field]) => int(fields.get(*field).map_or(0, Vec::len)),
        ("HGETALL", []) => array(fields.iter().flat_map(|(field, bytes)| [field, bytes])),
        ("HINCRBY", [field, by]) => {
            let held = fields.get(*field).map_or(Ok(0), |held| number(held))?;
            let sum = held.checked_add(number(by)?).ok_or(Wrong::Argument)?;
            fields.insert(field.to_vec(), sum.to_string().into_bytes());
            Answer::Integer(sum)
        }
        _ => return Err(Wrong::Unknown),
    };
    Ok((answer, Some(Content::Hash(fields))))
}

fn on_list(name: &str, arguments: &[&[u8]], before: Option<&Content>) -> Result<Ran, Wrong> {
    let mut elements = match before {
        None => Vec::new(),
        Some(Content::List(elements)) => elements.clone(),
        Some(_) => return Err(Wrong::Type),
    };
    let answer = match (name, arguments) {
        ("LPUSHX" | "RPUSHX", [_, ..]) if before.is_none() => int(0),
        ("LPUSH" | "LPUSHX", new @ [_, ..]) => {
            new.iter().for_each(|element| elements.insert(0, element.to_vec()));
            int(elements.len())
        }
        ("RPUSH" | "RPUSHX", new @ [_, ..]) => {
            elements.extend(new.iter().map(|element| element.to_vec()));
            int(elements.len())
        }
        ("LPOP", []) if elements.is_empty() => value(None),
        ("LPOP", []) => value(Some(&elements.remove(0))),
        ("RPOP", []) => value(elements.pop().as_ref()),
        ("LLEN", []) => int(elements.len()),
        ("LRANGE", [first, last]) => array(&elements[range(first, last, elements.len())?]),
        ("LINDEX", [at]) => value(index(at, elements.len())?.map(|at| &elements[at])),
        ("LSET", [at, element]) => {
            if before.is_none() {
                return Err(Wrong::Argument);
            }
            let at = index(at, elements.len())?.ok_or(Wrong::Argument)?;
            elements[at] = element.to_vec();
            Answer::Ok
        }
        ("LTRIM", [first, last]) => {
            let kept = range(first, last, elements.len())?;
            elements = elements[kept].to_vec();
            Answer::Ok
        }
        ("LREM", [b"0", element]) => {
            let length = elements.len();
            elements.retain(|held| held != element);
            int(length - elements.len())
        }
        _ => return Err(Wrong::Unknown),
    };
    Ok((answer, Some(Content::List(elements))))
}

/// The position that an index names, where negative ones count from the end.
fn index(word: &[u8], length: usize) -> Result<Option<usize>, Wrong> {
    let at = number(word)?;
    let at = if at < 0 { at + length as i64 } else { at };
    Ok(usize::try_from(at).ok().filter(|at| *at < length))
}

fn range(first: &[u8], last: &[u8], length: usize) -> Result<std::ops::Range<usize>, Wrong> {
    let from_end = |at: i64| if at < 0 { at + length as i64 } else { at };
    let first = from_end(number(first)?).max(0) as usize;
    let end = from_end(number(last)?).saturating_add(1).clamp(0, length as i64) as usize;
    Ok(first.min(end)..end)
}

fn on_set(name: &str, arguments: &[&[u8]], before: Option<&Content>) -> Result<Ran, Wrong> {
    let mut members = match before {
        None => BTreeSet::new(),
        Some(Content::Set(members)) => members.clone(),
        Some(_) => return Err(Wrong::Type),
    };
    let answer = match (name, arguments) {
        ("SADD", new @ [_, ..]) => {
            int(new.iter().filter(|member| members.insert(member.to_vec())).count())
        }
        ("SREM", names) => int(names.iter().filter(|member| members.remove(**member)).count()),
        ("SISMEMBER", [member]) => flag(members.contains(*member)),
        ("SCARD", []) => int(members.len()),
        ("SMEMBERS", []) => array(&members),
        _ => return Err(Wrong::Unknown),
    };
    Ok((answer, Some(Content::Set(members))))
}

fn on_sorted(name: &str, arguments: &[&[u8]], before: Option<&Content>) -> Result<Ran, Wrong> {
    let mut scores = match before {
        None => BTreeMap::new(),
        Some(Content::Sorted(scores)) => scores.clone(),
        Some(_) => return Err(Wrong::Type),
    };
    let text = |score: i64| score.to_string().into_bytes();
    let score_of = |score: Option<&i64>| value(score.map(|score| text(*score)).as_ref());
    let answer = match (name, arguments) {
        ("ZADD", pairs) if pairs.len() >= 2 && pairs.len().is_multiple_of(2) => {
            let mut new = 0;
            for pair in pairs.chunks(2) {
                new += usize::from(scores.insert(pair[1].to_vec(), score(pair[0])?).is_none());
            }
            int(new)
        }
        ("ZINCRBY", [by, member]) => {
            let sum = scores.entry(member.to_vec()).or_default();
            *sum = sum.saturating_add(score(by)?);
            score_of(Some(sum))
        }
        ("ZREM", names) => int(names.iter().filter(|name| scores.remove(**name).is_some()).count()),
        ("ZSCORE", [member]) => score_of(scores.get(*member)),
        ("ZCARD", []) => int(scores.len()),
        ("ZRANK", [member]) => match in_order(&scores).iter().position(|(_, one)| one == member) {
            Some(rank) => int(rank),
            None => value(None),
        },
        ("ZRANGE", [b"0", b"-1", b"WITHSCORES"]) => {
            let all = in_order(&scores);
            let items: Vec<Vec<u8>> =
                all.iter().flat_map(|(score, member)| [member.to_vec(), text(*score)]).collect();
            array(&items)
        }
        ("ZPOPMIN" | "ZPOPMAX", []) => {
            let all = in_order(&scores);
            let taken = if name == "ZPOPMIN" { all.first() } else { all.last() };
            let items = taken.map(|(score, member)| [member.to_vec(), text(*score)]);
            if let Some([member, _]) = &items {
                scores.remove(member);
            }
            array(items.iter().flatten())
        }
        _ => return Err(Wrong::Unknown),
    };
    Ok((answer, Some(Content::Sorted(scores))))
}

/// Scores and members in the order of a sorted set.
fn in_order(scores: &BTreeMap<Member, i64>) -> Vec<(i64, &[u8])> {
    let mut all: Vec<(i64, &[u8])> =
        scores.iter().map(|(member, score)| (*score, &member[..])).collect();
    all.sort_unstable();
    all
}
