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
        let (one, other, sorted) = (key("list"), key("list"), key("sorted"));
        let element = format!("q{unique}");
        let words = match rng.below(12) {
            0..=2 => format!("RPUSH {one} {element}"),
            3 => format!("LPUSH {one} {element}"),
            4..=5 => format!("LPOP {one}"),
            6 => format!("RPOP {one}"),
            7..=8 if moves => format!("LMOVE {one} {other} LEFT RIGHT"),
            9 => format!("ZPOPMIN {sorted}"),
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
            (Does::Take, Outcome::Unknown) => queues.lost_answer(),
            (Does::Put, Outcome::Done(Reply::Int(1..))) => queues.put(element(), true),
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
            "LMOVE" => Does::Move,
            _ => return Err(format!("'{text}' is no step with a queue")),
        };
        match words.get(1) {
            Some(key) if key.starts_with(PREFIX) => Ok(Self { words, does }),
            _ => Err(format!("'{text}' touches no queue")),
        }
    }
}

/// What is left in all queues.
pub(crate) fn left(contents: &[Entry]) -> Vec<Bytes> {
    let queues = contents.iter().filter(|(key, ..)| key.starts_with(PREFIX));
    queues.flat_map(|(_, _, text)| collections::elements_of(text).unwrap_or_default()).collect()
}
