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
}

impl QueueStep {
    /// Draws a step; `moves` says whether one may touch two keys.
    pub(crate) fn draw(unique: u64, moves: bool, rng: &mut Rng) -> Self {
        let age = unique / LIFE;
        let mut key = |of: &str| format!("{PREFIX}{of}:{age}:{}", rng.below(2));
        let (one, other, set, sorted) = (key("list"), key("list"), key("set"), key("sorted"));
        let element = format!("q{unique}");
        let timeout = ["0.01", "0.1", "0.3"][rng.below(3) as usize];
        let words = match rng.below(21) {
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
            _ => format!("ZADD {sorted} {} {element}", rng.below(10)),
        };
        words.parse().expect("it draws what it can read")
    }

    /// The command.
    pub(crate) fn call(&self) -> OwnedCall {
        OwnedCall::new(self.words.iter().map(String::as_bytes)).expect("clients know the commands")
    }

    /// Notes its end.
    pub(crate) fn end(
        &self,
        outcome: &Outcome<Reply<'static>>,
        queues: &mut Queues,
    ) -> Result<(), String> {
        let element = || Bytes::from(self.words.last().map_or("", String::as_str));
        match (self.does, outcome) {
            (_, Outcome::Refused(_)) | (Does::Move, _) => {}
            (Does::Put, Outcome::Unknown) => queues.put(element(), false),
            (Does::Take, Outcome::Unknown) => {
                let most = if self.words[0] == "BLMPOP" { 2 } else { 1 };
                (0..most).for_each(|_| queues.lost_answer());
            }
            (Does::Put, Outcome::Done(Reply::Int(1..))) => queues.put(element(), true),
            (Does::Take, Outcome::Done(reply)) if self.words[0].starts_with('B') => {
                for element in elements(reply).ok_or(format!("{self} was answered {reply:?}"))? {
                    queues.got(element);
                }
            }
            (Does::Take, Outcome::Done(reply)) => match collections::to_answer(reply) {
                Answer::Value(None) => {}
                Answer::Value(Some(element)) => queues.got(element),
                Answer::Array(items) => match &items[..] {
                    [] => {}
                    [Answer::Value(Some(element)), _] => queues.got(element.clone()),
                    _ => return Err(format!("{self} was answered {reply:?}")),
                },
                _ => return Err(format!("{self} was answered {reply:?}")),
            },
            (Does::Put, Outcome::Done(reply)) => {
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
            "LMOVE" | "BLMOVE" => Does::Move,
            _ => return Err(format!("'{text}' is no step with a queue")),
        };
        match words.get(if does == Does::Take && words[0] == "BLMPOP" { 3 } else { 1 }) {
            Some(key) if key.starts_with(PREFIX) => Ok(Self { words, does }),
            _ => Err(format!("'{text}' touches no queue")),
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

/// A command that waits for ever, and what ends that: at the end of a run, at this node.
pub(crate) fn closing(node: usize) -> [QueueStep; 2] {
    [format!("BLPOP {PREFIX}list:last 0"), format!("RPUSH {PREFIX}list:last last{node}")]
        .map(|words| words.parse().expect("they are steps with queues"))
}

/// What is left in all queues.
pub(crate) fn left(contents: &[Entry]) -> Vec<Bytes> {
    let queues = contents.iter().filter(|(key, ..)| key.starts_with(PREFIX));
    queues.flat_map(|(_, _, text)| collections::elements_of(text).unwrap_or_default()).collect()
}
