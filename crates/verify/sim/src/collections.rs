//! Commands on single hashes, lists, sets, sorted sets and streams, and scripts of such: the draws of
//! clients, what the answers mean to the checker, and what replicas hold at the end.
//!
//! Keys are `one:TYPE:AGE`. Clients fight for the keys of one age and then go on to the next one,
//! so that no judge has many ops of unknown outcome on a key. On keys of the type `any` commands of
//! all types meet.

use std::fmt::Write as _;

use quorate_check::{Action, Answer, Bytes, CollectionCommand, Invocation, Recorder, TxnHistory};
use quorate_collections::packed::HEADER_BYTES;
use quorate_commands::{OwnedCall, Reply};
use quorate_machine::{Collection, Content, Current, Outcome, Rng, ValueKind};
use quorate_types::UnixMillis;

use crate::intent::Intent;
use crate::process::Entry;
use crate::queues::QueueStep;

/// The prefix of these keys.
pub(crate) const PREFIX: &str = "one:";
/// The end of the names of those that expire.
const EXPIRES: &str = "t";
/// Ops on the keys of one age.
const LIFE: u64 = 60;
/// Fields of a hash, and members of a set.
const PARTS: u64 = 5;

/// The types of keys.
const TYPES: [&str; 6] = ["hash", "list", "set", "sorted", "stream", "any"];
/// One in so many commands goes into a script.
const SCRIPTS: u64 = 6;

/// Whether clients let this key expire.
pub(crate) fn expires(key: &Bytes) -> bool {
    key.0.starts_with(PREFIX.as_bytes()) && key.0.ends_with(EXPIRES.as_bytes())
}

/// The draws of all clients of a keyspace. They come from a stream of their own, so that clients
/// draw the same other ops with and without them.
pub(crate) struct Collections {
    pub(crate) rng: Rng,
    drawn: u64,
    /// Whether values expire.
    expiry: bool,
}

impl Collections {
    pub(crate) fn new(seed: u64, expiry: bool) -> Self {
        Self { rng: Rng::new(seed ^ u64::from_le_bytes(*b"bytypes.")), drawn: 0, expiry }
    }

    /// Draws an intent now and then. Without `reads` it is one that updates, and without `moves` one
    /// that touches one key.
    pub(crate) fn draw(&mut self, reads: bool, moves: bool) -> Option<Intent> {
        if !self.rng.chance(2, 5) {
            return None;
        }
        if self.rng.chance(1, 4) {
            self.drawn += 1;
            return Some(Intent::Queue(QueueStep::draw(self.drawn, moves, &mut self.rng)));
        }
        let rng = &mut self.rng;
        self.drawn += 1;
        let age = self.drawn / LIFE;
        // Two types at a time.
        let turn = age + rng.below(2) * (1 + age % 2);
        let of = TYPES[(turn % TYPES.len() as u64) as usize];
        let fades = self.expiry && age.is_multiple_of(2);
        let key = format!("{PREFIX}{of}:{age}{}", if fades { EXPIRES } else { "" });
        if fades && rng.chance(1, 15) {
            return Some(Intent::Fade { key, millis: 1 + rng.below(300) });
        }
        let is_any = of == "any";
        let of = if of == "any" { TYPES[rng.below(TYPES.len() as u64) as usize] } else { of };
        let words = match draw_words(of, reads, self.drawn, rng) {
            words if !is_any && rng.chance(1, SCRIPTS) => {
                script(vec![words, draw_words(of, reads, self.drawn, rng)])
            }
            words => words,
        };
        let words = waiting(words, !is_any, rng);
        Some(Intent::Single { key, action: command(words.split(' ')) })
    }

    /// The ops on each type that must succeed at the end: one of them for each round.
    pub(crate) fn closing(round: usize, node: usize) -> Option<Vec<Intent>> {
        if round == TYPES.len() {
            return Some(crate::queues::closing(node).map(Intent::Queue).to_vec());
        }
        let of = TYPES.get(round).filter(|of| **of != "any")?;
        let key = format!("{PREFIX}{of}:last");
        let words = match *of {
            "hash" => ["HINCRBY n 1", "HGETALL"],
            "set" => ["SADD m", "SMEMBERS"],
            "sorted" => ["ZINCRBY 1 m", "ZRANGE 0 -1 WITHSCORES"],
            "stream" => ["XADD 0-* n v", "XRANGE - +"],
            _ => ["RPUSH e", "LRANGE 0 -1"],
        };
        let single =
            |words: &str| Intent::Single { key: key.clone(), action: command(words.split(' ')) };
        Some(words.map(single).to_vec())
    }
}

/// Bytes that no collection in Redis's compact encoding has together: such a hash or sorted set may be
/// large.
const LONG: &str = "................................................................";

fn draw_words(of: &str, reads: bool, unique: u64, rng: &mut Rng) -> String {
    let part = rng.below(PARTS);
    let choice = if reads { rng.below(16) } else { rng.below(10) };
    match (of, choice) {
        ("hash", 0..=2) => format!("HSET f{part} v{unique}"),
        ("hash", 3) => format!("HSET f{part} v{unique}{LONG}"),
        ("hash", 4) => format!("HSET f{part} v{unique} f{} w{unique}", (part + 1) % PARTS),
        ("hash", 5) => format!("HSETNX f{part} v{unique}"),
        ("hash", 6..=7) => format!("HINCRBY n {}", 1 + rng.below(3)),
        ("hash", 8..=9) => format!("HDEL f{part}"),
        ("hash", 10) => "HLEN".into(),
        ("hash", 11) => format!("HGET f{part}"),
        ("hash", 12) => format!("HMGET f{part} f{}", (part + 2) % PARTS),
        ("hash", _) => "HGETALL".into(),
        ("list", 0..=2) => format!("RPUSH e{unique}"),
        ("list", 3) => format!("RPUSH e{unique} d{unique}"),
        ("list", 4..=5) => format!("LPUSH e{unique}"),
        ("list", 6) => "LPOP".into(),
        ("list", 7) => "RPOP".into(),
        ("list", 8) => format!("LSET {part} s{unique}"),
        ("list", 9) => "LPOP".into(),
        ("list", 10) => "LLEN".into(),
        ("list", 11) => format!("LINDEX {part}"),
        ("list", _) => "LRANGE 0 -1".into(),
        ("set", 0..=2) => format!("SADD m{part}"),
        ("set", 3) => format!("SADD m{part} m{}", (part + 1) % PARTS),
        ("set", 4..=5) => format!("SADD e{unique}"),
        ("set", 6..=9) => format!("SREM m{part}"),
        ("set", 10) => "SCARD".into(),
        ("set", 11) => format!("SISMEMBER m{part}"),
        ("set", _) => "SMEMBERS".into(),
        ("sorted", 0..=3) => format!("ZADD {unique} m{part}"),
        ("sorted", 4) => format!("ZADD {unique} m{part} {part} m{LONG}"),
        ("sorted", 5..=6) => format!("ZINCRBY {} m{part}", 1 + rng.below(3)),
        ("sorted", 7..=8) => format!("ZREM m{part}"),
        ("sorted", 9) => "ZPOPMIN".into(),
        ("sorted", 10) => "ZCARD".into(),
        ("sorted", 11) => format!("ZSCORE m{part}"),
        ("sorted", 12) => format!("ZRANK m{part}"),
        ("sorted", _) => "ZRANGE 0 -1 WITHSCORES".into(),
        ("stream", 0..=2) => format!("XADD {unique}-0 n v{unique}"),
        ("stream", 3) => format!("XADD {}-* n w{unique}", unique.saturating_sub(part)),
        ("stream", 4..=5) => "XGROUP CREATE g 0 MKSTREAM".into(),
        ("stream", 6..=7) => format!("XREADGROUP GROUP g c{part} COUNT {} STREAMS >", 1 + part % 2),
        ("stream", 8) => format!("XACK g {}-0 {}-0", unique.saturating_sub(part), unique / 2),
        ("stream", 9) if part == 0 => format!("XDEL {}-0", unique.saturating_sub(5)),
        ("stream", 9) if part == 1 => "XTRIM MAXLEN 5".into(),
        ("stream", 9) => format!("XAUTOCLAIM g c{part} 0 0 COUNT 2"),
        ("stream", 10) => "XLEN".into(),
        ("stream", 11..=12) => format!("XREAD COUNT 2 STREAMS {}-0", unique.saturating_sub(part)),
        ("stream", 13) => "XPENDING g".into(),
        ("stream", _) => "XRANGE - +".into(),
        (_, 0..=3) => format!("SET v{unique}"),
        (_, 10) => "GET".into(),
        (_, 11..) => "EXISTS".into(),
        (_, _) => "DEL".into(),
    }
}

/// Some reads of streams wait.
fn waiting(words: String, blocks: bool, rng: &mut Rng) -> String {
    let may_wait = words.starts_with("XREAD") && blocks && rng.chance(1, 2);
    let millis = [10, 100, 300][rng.below(3) as usize];
    if may_wait { words.replace(" STREAMS", &format!(" BLOCK {millis} STREAMS")) } else { words }
}

/// The words of a script that runs these commands on its key, one after the other; of the first, if it
/// answers something else in a script.
fn script(mut commands: Vec<String>) -> String {
    if commands.iter().any(|words| !CollectionCommand::may_be_in_script(words)) {
        return commands.swap_remove(0);
    }
    let (mut calls, mut arguments) = (Vec::new(), Vec::new());
    for words in &commands {
        let mut words = words.split(' ');
        let mut call = format!("redis.call('{}',KEYS[1]", words.next().unwrap_or_default());
        for word in words {
            arguments.push(word);
            let _ = write!(call, ",ARGV[{}]", arguments.len());
        }
        calls.push(call + ")");
    }
    let source = format!("return{{{}}}", calls.join(","));
    [&["EVAL", &source, "1"], &arguments[..]].concat().join(" ")
}

/// A command's words with its key among them.
pub(crate) fn words_on(key: &str, command: &CollectionCommand) -> Vec<Bytes> {
    let words = command.words();
    let at = match words.iter().position(|word| word.0 == b"STREAMS") {
        Some(at) => at + 1,
        None if words[0].0 == b"EVAL" => 3,
        None if words[0].0 == b"XGROUP" => 2,
        None => 1,
    };
    let (before, behind) = words.split_at(at);
    [before, &[key.into()], behind].concat()
}

/// The action of a command's words.
pub(crate) fn command<'a>(words: impl Iterator<Item = &'a str>) -> Action {
    Action::Command(CollectionCommand::new(words).expect("clients draw what can be judged"))
}

/// The call of a command on a key.
pub(crate) fn to_call(key: &str, command: &CollectionCommand) -> OwnedCall {
    let words = words_on(key, command);
    OwnedCall::new(words.iter().map(|word| &word.0[..])).expect("clients draw known commands")
}

/// The meaning of an answer.
pub(crate) fn to_answer(reply: &Reply<'_>) -> Answer {
    let all = |replies: &[Reply<'_>]| Answer::Array(replies.iter().map(to_answer).collect());
    match reply {
        Reply::Ok => Answer::Ok,
        Reply::Int(number) => Answer::Integer(*number),
        Reply::Bulk(bytes) => Answer::Value(Some(Bytes(bytes.to_vec()))),
        Reply::Status(text) => Answer::Value(Some((&**text).into())),
        Reply::Double(number) => Answer::Value(Some(number.to_string().into())),
        Reply::Null | Reply::NullArray => Answer::Value(None),
        Reply::Error(text) => Answer::Error(text.to_string()),
        Reply::Array(replies) | Reply::Set(replies) => all(replies),
        Reply::Keyed(of_keys) => match &of_keys[..] {
            [(_, entries)] => to_answer(entries),
            _ => panic!("a command on one stream was answered {reply:?}"),
        },
        Reply::Map(pairs) | Reply::Pairs(pairs) => {
            let both = pairs.iter().flat_map(|(one, other)| [to_answer(one), to_answer(other)]);
            Answer::Array(both.collect())
        }
        other => panic!("a command on a collection was answered {other:?}"),
    }
}

/// Ends the request that a key expire: its deletion may happen from then on, or never.
pub(crate) fn faded(
    expiry: Invocation,
    outcome: &Outcome<Reply<'static>>,
    history: &Recorder<TxnHistory>,
) {
    match outcome {
        Outcome::Refused(_) | Outcome::Done(Reply::Int(0)) => history.refused(expiry),
        Outcome::Unknown | Outcome::Done(_) => history.unknown(expiry),
    }
}

/// The command that reads all of a value of this kind.
fn read_of(kind: ValueKind) -> CollectionCommand {
    let words: &[&str] = match kind {
        ValueKind::String => &["GET"],
        ValueKind::Hash => &["HGETALL"],
        ValueKind::List => &["LRANGE", "0", "-1"],
        ValueKind::Set => &["SMEMBERS"],
        ValueKind::SortedSet => &["ZRANGE", "0", "-1", "WITHSCORES"],
        ValueKind::Stream => &["XRANGE", "-", "+"],
    };
    CollectionCommand::new(words.iter().copied()).expect("it can be judged")
}

/// A collection as text: its kind, a digest of its bytes, and its items. It is the same text for the
/// same collection, in whatever order a replica keeps what has no order.
pub(crate) fn shown(key: &[u8], content: Content<'_>) -> String {
    let key = String::from_utf8_lossy(key);
    let call = to_call(&key, &read_of(content.kind));
    let bytes = in_order(content).unwrap_or_else(|| content.bytes.to_vec());
    let content = Content { bytes: &bytes, ..content };
    let current = Current { content: Some(content), ..Current::ABSENT };
    let (reply, _) = call.call().execute(UnixMillis(0), current);
    let mut text = format!("{:?} {:x}", content.kind, quorate_types::hash_key(content.bytes));
    show(&to_answer(&reply), &mut text);
    text
}

/// The bytes of a hash or a set with its members in the order of their bytes.
fn in_order(content: Content<'_>) -> Option<Vec<u8>> {
    let has_no_order = matches!(content.kind, ValueKind::Hash | ValueKind::Set);
    let large = Collection::unpack(content.kind, content.bytes).ok().filter(|_| has_no_order)?;
    let (head, _) = content.bytes.split_at_checked(HEADER_BYTES)?;
    Some([head, &large.sorted()].concat())
}

fn show(answer: &Answer, text: &mut String) {
    match answer {
        Answer::Array(items) => items.iter().for_each(|item| show(item, text)),
        Answer::Value(Some(item)) => {
            let _ = write!(text, " {}", String::from_utf8_lossy(&item.0));
        }
        other => panic!("{other} in a collection"),
    }
}

/// The elements of a list, or the members of a set or a sorted set, from its text.
pub(crate) fn elements_of(text: &str) -> Option<Vec<Bytes>> {
    let mut words = text.split(' ');
    let every = match words.next()? {
        "List" | "Set" => 1,
        "SortedSet" => 2,
        _ => return None,
    };
    words.next()?;
    Some(words.step_by(every).map(Bytes::from).collect())
}

/// A read of a whole key at the end, and its answer.
pub(crate) fn last_read(held: Option<&Entry>) -> (Action, Answer) {
    let kinds =
        [ValueKind::Hash, ValueKind::List, ValueKind::Set, ValueKind::SortedSet, ValueKind::Stream];
    let text = held.map_or("", |(_, _, text)| text.as_str());
    let mut words = text.split(' ');
    let name = words.next().unwrap_or_default();
    match kinds.into_iter().find(|kind| format!("{kind:?}") == name) {
        Some(kind) => {
            let items = words.skip(1).map(|word| Answer::Value(Some(word.into())));
            let mut items: Vec<Answer> = items.collect();
            if kind == ValueKind::Stream {
                // Each entry is an id, a field and a value.
                let entry = |words: &[Answer]| {
                    Answer::Array(vec![words[0].clone(), Answer::Array(words[1..].to_vec())])
                };
                items = items.chunks(3).map(entry).collect();
            }
            (Action::Command(read_of(kind)), Answer::Array(items))
        }
        None => {
            let value = (!text.is_empty()).then(|| text.into());
            (Action::Command(read_of(ValueKind::String)), Answer::Value(value))
        }
    }
}

#[cfg(test)]
mod tests {
    use quorate_check::{History, Operation, Verdict, check_history};
    use quorate_machine::Change;

    use super::*;

    /// The judge's model is written apart from the commands. Here one client asks one key, so every
    /// answer must be the model's.
    #[test]
    fn the_judge_answers_as_the_commands_do() {
        quorate_scripts::install();
        let mut rng = Rng::new(1);
        for of in TYPES {
            for round in 0..200 {
                let mut held: Option<(Vec<u8>, ValueKind)> = None;
                let mut operations = Vec::new();
                for at in 0..60 {
                    let count = TYPES.len() as u64;
                    let of = if of == "any" { TYPES[rng.below(count) as usize] } else { of };
                    let mut words = draw_words(of, true, at, &mut rng);
                    if rng.chance(1, 4) {
                        words = script(vec![words, draw_words(of, true, at, &mut rng)]);
                    }
                    let action = command(words.split(' '));
                    let Action::Command(asked) = &action else { unreachable!("it is a command") };
                    let call = to_call("k", asked);
                    let content = held.as_ref().map(|(bytes, kind)| Content {
                        bytes,
                        kind: *kind,
                        expire_at: None,
                    });
                    let current = Current { content, ..Current::ABSENT };
                    let (reply, change) = call.call().execute(UnixMillis(0), current);
                    let (answer, change) = (to_answer(&reply), change.into_owned());
                    // A read for a group makes its consumer, which shows in no answer here.
                    let makes_consumer = words.starts_with("XREADGROUP");
                    if asked.changes_nothing(&answer) && !makes_consumer {
                        assert!(matches!(change, Change::Keep), "{asked}: {change:?}");
                    }
                    match change {
                        Change::Set { bytes, kind, .. } => held = Some((bytes.into_owned(), kind)),
                        Change::Delete => held = None,
                        _ => {}
                    }
                    let outcome = quorate_check::Outcome::Done { at: 2 * at + 1, answer };
                    let (process, invoke, key) = (0, 2 * at, "k".into());
                    operations.push(Operation { process, key, action, invoke, outcome });
                }
                let report = check_history(&History { operations, ..History::default() });
                assert_eq!(report.verdict(), Verdict::Ok, "{of}, round {round}: {report}");
            }
        }
    }
}
