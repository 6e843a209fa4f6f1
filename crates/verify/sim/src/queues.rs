//! Clients that put elements into collections and take them out, each once: work queues.

use std::fmt;
use std::str::FromStr;

use quorate_check::{Answer, Bytes, Queues};
use quorate_commands::{OwnedCall, Reply};
use quorate_machine::{Outcome, Rng};

use crate::collections;
use crate::process::Entry;

/// The prefix of these keys.
const PREFIX: &str = "queue:";
/// Steps after which clients go on to other queues, and leave what is in these.
const LIFE: u64 = 300;

/// A step of a client: a command and what it does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct QueueStep {
    words: Vec<String>,
    does: Does,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Does {
    /// Its last word is the element.
    Put,
    Take,
    /// Takes an element from one queue and puts it into another one.
    Move,
    /// Makes the group of a stream, or finds that it is there.
    Group,
    /// Adds an entry to a stream, with an id that the stream chooses. Its last word is the element.
    Add,
    /// Takes the next entry of a stream for a group. The entry stays in the stream.
    Deliver,
}

impl QueueStep {
    /// Draws a step; `moves` says whether one may touch two keys.
    pub(crate) fn draw(unique: u64, moves: bool, rng: &mut Rng) -> Self {
        let age = unique / LIFE;
        let mut key = |of: &str| format!("{PREFIX}{of}:{age}:{}", rng.below(2));
        let (one, other, set, sorted) = (key("list"), key("list"), key("set"), key("sorted"));
        let (stream, other_set) = (key("stream"), key("set"));
        let element = format!("q{unique}");
        let timeout = ["0.01", "0.1", "0.3"][rng.below(3) as usize];
        let words = match rng.below(30) {
            0..=2 => format!("RPUSH {one} {element}"),
            3 => format!("LPUSH {one} {element}"),
            4..=5 => format!("LPOP {one}"),
            6 => format!("RPOP {one}"),
            7 if moves => format!("LMOVE {one} {other} LEFT RIGHT"),
            8 if moves => format!("BLMOVE {one} {other} RIGHT LEFT {timeout}"),
            9 => format!("ZPOPMIN {sorted}"),
            12..=14 => format!("BLPOP {one} {other} {timeout}"),
            15 => format!("BRPOP {one} {timeout}"),
            16 => format!("BLMPOP {timeout} 2 {one} {other} RIGHT COUNT 2"),
            17 => format!("BZPOPMAX {sorted} {timeout}"),
            18..=19 => format!("SADD {set} {element}"),
            20 => format!("SPOP {set}"),
            21 => format!("XGROUP CREATE {stream} g 0 MKSTREAM"),
            22..=24 => format!("XADD {stream} * n {element}"),
            25 => format!("XREADGROUP GROUP g c{} COUNT 1 STREAMS {stream} >", rng.below(3)),
            26..=27 => {
                let millis = [10, 100, 300][rng.below(3) as usize];
                let consumer = rng.below(3);
                format!("XREADGROUP GROUP g c{consumer} COUNT 2 BLOCK {millis} STREAMS {stream} >")
            }
            28..=29 if moves => format!("SMOVE {set} {other_set} q{}", unique.saturating_sub(5)),
            _ => format!("ZADD {sorted} {} {element}", rng.below(10)),
        };
        words.parse().expect("it draws what it can read")
    }

    /// The command.
    pub(crate) fn call(&self) -> OwnedCall {
        OwnedCall::new(self.words.iter().map(String::as_bytes)).expect("clients know the commands")
    }

    /// Notes its end. The client waited from the first to the second of the times.
    pub(crate) fn end(
        &self,
        outcome: &Outcome<Reply<'static>>,
        span @ (began, ended): (u64, u64),
        queues: &mut Queues,
    ) -> Result<(), String> {
        let element = || Bytes::from(self.words.last().map_or("", String::as_str));
        match (self.does, outcome) {
            (_, Outcome::Refused(_)) | (Does::Group, _) => {}
            (Does::Move, _) => queues.moved(span),
            // It stays, so it isn't lost with an answer.
            (Does::Add, Outcome::Unknown) => queues.put(element(), None),
            (Does::Deliver, Outcome::Unknown) => {}
            (Does::Add, Outcome::Done(Reply::Bulk(id))) => {
                let id = id_of(id).ok_or(format!("{self} was given {}", id.escape_ascii()))?;
                queues.put(element(), None);
                queues.added(&self.words[1], element(), id, (began, ended));
            }
            (Does::Deliver, Outcome::Done(Reply::Error(text))) if text.starts_with("NOGROUP") => {}
            (Does::Deliver, Outcome::Done(reply)) => {
                let entries = entries(reply).ok_or(format!("{self} was answered {reply:?}"))?;
                entries.into_iter().for_each(|element| queues.got(element, span));
            }
            (Does::Put, Outcome::Unknown) => queues.put(element(), None),
            (Does::Take, Outcome::Unknown) => {
                let most = if self.words[0] == "BLMPOP" { 2 } else { 1 };
                (0..most).for_each(|_| queues.lost_answer());
            }
            (Does::Put, Outcome::Done(Reply::Int(1..))) => queues.put(element(), Some(span)),
            (Does::Take, Outcome::Done(reply)) if self.words[0].starts_with('B') => {
                for element in elements(reply).ok_or(format!("{self} was answered {reply:?}"))? {
                    queues.got(element, span);
                }
            }
            (Does::Take, Outcome::Done(reply)) => match collections::to_answer(reply) {
                Answer::Value(None) => {}
                Answer::Value(Some(element)) => queues.got(element, span),
                Answer::Array(items) => match &items[..] {
                    [] => {}
                    [Answer::Value(Some(element)), _] => queues.got(element.clone(), span),
                    _ => return Err(format!("{self} was answered {reply:?}")),
                },
                _ => return Err(format!("{self} was answered {reply:?}")),
            },
            (Does::Put | Does::Add, Outcome::Done(reply)) => {
                return Err(format!("{self} was answered {reply:?}"));
            }
        }
        Ok(())
    }
}

impl fmt::Display for QueueStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words.join(" "))
    }
}

impl FromStr for QueueStep {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
        let does = match words[0].as_str() {
            "RPUSH" | "LPUSH" | "SADD" | "ZADD" => Does::Put,
            "LPOP" | "RPOP" | "SPOP" | "ZPOPMIN" => Does::Take,
            "BLPOP" | "BRPOP" | "BLMPOP" | "BZPOPMAX" => Does::Take,
            "LMOVE" | "BLMOVE" | "SMOVE" => Does::Move,
            "XGROUP" => Does::Group,
            "XADD" => Does::Add,
            "XREADGROUP" => Does::Deliver,
            _ => return Err(format!("'{text}' is no step with a queue")),
        };
        match words.iter().any(|word| word.starts_with(PREFIX)) {
            true => Ok(Self { words, does }),
            false => Err(format!("'{text}' touches no queue")),
        }
    }
}

/// What a command that waited has taken: key and element, key and several, or key, member and score.
fn elements(reply: &Reply<'_>) -> Option<Vec<Bytes>> {
    let text = |reply: &Reply<'_>| match reply {
        Reply::Bulk(bytes) => Some(Bytes::from(String::from_utf8_lossy(bytes).as_ref())),
        _ => None,
    };
    match reply {
        Reply::Null | Reply::NullArray => Some(Vec::new()),
        Reply::Array(items) => match &items[..] {
            [_, Reply::Array(items)] => items.iter().map(text).collect(),
            [_, element] | [_, element, _] => text(element).map(|element| vec![element]),
            _ => None,
        },
        _ => None,
    }
}

/// The elements of entries that were delivered.
fn entries(reply: &Reply<'_>) -> Option<Vec<Bytes>> {
    let of_entry = |entry: &Reply<'_>| {
        let Reply::Array(parts) = entry else { return None };
        let [_, Reply::Array(fields)] = &parts[..] else { return None };
        let [_, Reply::Bulk(element)] = &fields[..] else { return None };
        Some(Bytes(element.to_vec()))
    };
    match reply {
        Reply::Null | Reply::NullArray => Some(Vec::new()),
        Reply::Keyed(of_keys) => match &of_keys[..] {
            [(_, Reply::Array(entries))] => entries.iter().map(of_entry).collect(),
            _ => None,
        },
        _ => None,
    }
}

fn id_of(bytes: &[u8]) -> Option<(u64, u64)> {
    let (millis, sequence) = std::str::from_utf8(bytes).ok()?.split_once('-')?;
    Some((millis.parse().ok()?, sequence.parse().ok()?))
}

/// A command that waits for ever, and what ends that: at the end of a run, at this node.
pub(crate) fn closing(node: usize) -> [QueueStep; 2] {
    [format!("BLPOP {PREFIX}list:last 0"), format!("RPUSH {PREFIX}list:last last{node}")]
        .map(|words| words.parse().expect("they are steps with queues"))
}

/// An element that was added to a stream and is not there at the end.
pub(crate) fn lost(queues: &Queues, contents: &[Entry]) -> Option<String> {
    let there = |key: &str, element: &Bytes| {
        let held = contents.iter().find(|(other, ..)| other == key);
        let mut words = held.into_iter().flat_map(|(_, _, text)| text.split(' '));
        words.any(|word| word.as_bytes() == element.0)
    };
    let lost = queues.all_added().find(|(key, element)| !there(key, element));
    lost.map(|(key, element)| format!("{element} is missing from {key} at the end"))
}

/// What is left in all queues.
pub(crate) fn left(contents: &[Entry]) -> Vec<Bytes> {
    let queues = contents.iter().filter(|(key, ..)| key.starts_with(PREFIX));
    queues.flat_map(|(_, _, text)| collections::elements_of(text).unwrap_or_default()).collect()
}
