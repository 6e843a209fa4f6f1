//! A client's intent, as data: drawn from a seed, or read from a script.

use std::fmt;
use std::str::FromStr;

use quorate_check::{Action, Bytes, CollectionCommand};

use crate::collections;
use crate::moves::Moves;
use crate::queues::QueueStep;
use crate::steps::{Form, Step};

/// One intent of a client, from its first command to its last.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Intent {
    /// A command on one key, recorded as such.
    Single { key: String, action: Action },
    /// Sets a key that expires after `millis` milliseconds.
    Lapse { key: String, value: String, millis: u64 },
    /// Puts an element into a queue, takes one, or moves one.
    Queue(QueueStep),
    /// Lets a collection expire after `millis` milliseconds.
    Fade { key: String, millis: u64 },
    /// Watches a key that no other client touches, and sets it for `millis` milliseconds.
    Own { key: String, value: String, millis: u64 },
    /// A command alone, a block of them, or a script.
    Steps { steps: Vec<Step>, form: Form },
    /// Moves elements between collections, and reads these.
    Moves(Moves),
    /// Watches two purses, reads them, and moves money from the first to the second.
    Transfer { keys: [String; 2], amount: i64, unique: u64 },
    /// Watches keys, reads them, and writes, which need not be the same ones.
    Update { reads: Vec<String>, writes: Vec<(String, String)> },
    /// Gives both keys of the pair a value.
    Pair(String),
    /// Deletes the pair.
    Unpair,
    /// Swaps the two keys of the pair.
    Swap,
    /// Reads the pair.
    Look,
}

/// The keys that are judged one by one.
fn is_single(key: &str) -> bool {
    ["key:", "count:", "fresh:", "ttl:", collections::PREFIX]
        .iter()
        .any(|prefix| key.starts_with(prefix))
}

fn action_words(key: &str, action: &Action) -> String {
    let text = |value: &Bytes| String::from_utf8_lossy(&value.0).into_owned();
    match action {
        Action::Get => format!("GET {key}"),
        Action::Set(value) => format!("SET {key} {}", text(value)),
        Action::Del => format!("DEL {key}"),
        Action::Incr(by) => format!("INCRBY {key} {by}"),
        Action::GetSet(value) => format!("GETSET {key} {}", text(value)),
        Action::SetNx(value) => format!("SETNX {key} {}", text(value)),
        Action::Append(value) => format!("APPEND {key} {}", text(value)),
        Action::Command(command) => {
            collections::words_on(key, command).iter().map(text).collect::<Vec<_>>().join(" ")
        }
        Action::Cas { .. } => unreachable!("clients draw no compare-and-set"),
    }
}

impl fmt::Display for Intent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Single { key, action } => f.write_str(&action_words(key, action)),
            Self::Lapse { key, value, millis } => write!(f, "SET {key} {value} PX {millis}"),
            Self::Queue(step) => write!(f, "{step}"),
            Self::Fade { key, millis } => write!(f, "PEXPIRE {key} {millis}"),
            Self::Own { key, value, millis } => {
                write!(f, "WATCH {key}; SET {key} {value} PX {millis}; EXEC")
            }
            Self::Moves(moves) => write!(f, "{moves}"),
            Self::Steps { steps, form: Form::Command } if steps.len() == 1 => {
                write!(f, "{}", steps[0])
            }
            Self::Steps { steps, form } => {
                f.write_str(match form {
                    Form::Script { names_keys: true } => "SCRIPT KEYS; ",
                    Form::Script { names_keys: false } => "SCRIPT ARGV; ",
                    Form::Command | Form::Block => "MULTI; ",
                })?;
                steps.iter().try_for_each(|step| write!(f, "{step}; "))?;
                f.write_str("EXEC")
            }
            Self::Transfer { keys: [from, to], amount, unique } => {
                write!(f, "WATCH {from} {to}; MOVE {amount} as {unique}")
            }
            Self::Update { reads, writes } => {
                write!(f, "WATCH {}; ", reads.join(" "))?;
                writes.iter().try_for_each(|(key, value)| write!(f, "SET {key} {value}; "))?;
                f.write_str("EXEC")
            }
            Self::Pair(value) => write!(f, "PAIR {value}"),
            Self::Unpair => f.write_str("UNPAIR"),
            Self::Swap => f.write_str("SWAP"),
            Self::Look => f.write_str("LOOK"),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Append(key, element) => write!(f, "APPEND {key} {element}"),
            Self::GetList(key) | Self::Get(key) => write!(f, "GET {key}"),
            Self::GetAll(keys) => write!(f, "MGET {}", keys.join(" ")),
            Self::Range { name, count, limit } => write!(f, "KEYRANGE {name} {count} {limit}"),
            Self::Set(key, value) => write!(f, "SET {key} {value}"),
            Self::GetSet(key, value) => write!(f, "GETSET {key} {value}"),
            Self::SetIfAbsent(key, value) => write!(f, "SETNX {key} {value}"),
            Self::SetAllIfAbsent(pairs) => {
                f.write_str("MSETNX")?;
                pairs.iter().try_for_each(|(key, value)| write!(f, " {key} {value}"))
            }
            Self::Del(key) => write!(f, "DEL {key}"),
            Self::Part(step) => write!(f, "{step}"),
            Self::Add(key, amount) => write!(f, "INCRBY {key} {amount}"),
        }
    }
}

impl FromStr for Step {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split(' ').collect();
        let own = |text: &str| text.to_owned();
        Ok(match words[..] {
            ["APPEND", key, element] => Self::Append(own(key), own(element)),
            ["GET", key] if key.starts_with("list:") => Self::GetList(own(key)),
            ["GET", key] => Self::Get(own(key)),
            ["MGET", ref keys @ ..] => Self::GetAll(keys.iter().map(|key| own(key)).collect()),
            ["KEYRANGE", name, count, limit] => {
                let number =
                    |text: &str| text.parse().map_err(|_| format!("'{text}' is no number"));
                let (count, limit) = (number(count)?, number(limit)? as usize);
                Self::Range { name: own(name), count, limit }
            }
            ["SET", key, value] => Self::Set(own(key), own(value)),
            ["GETSET", key, value] => Self::GetSet(own(key), own(value)),
            ["SETNX", key, value] => Self::SetIfAbsent(own(key), own(value)),
            ["MSETNX", ref pairs @ ..] if pairs.len() % 2 == 0 => {
                let pairs = pairs.chunks(2).map(|pair| (own(pair[0]), own(pair[1])));
                Self::SetAllIfAbsent(pairs.collect())
            }
            ["DEL", key] => Self::Del(own(key)),
            ["INCRBY", key, amount] => {
                let amount = amount.parse().map_err(|_| format!("'{amount}' is no amount"))?;
                Self::Add(own(key), amount)
            }
            _ => Self::Part(text.parse()?),
        })
    }
}

fn parse_lapse(text: &str) -> Option<(String, String, u64)> {
    let ["SET", key, value, "PX", millis] = text.split(' ').collect::<Vec<_>>()[..] else {
        return None;
    };
    Some((key.to_owned(), value.to_owned(), millis.parse().ok()?))
}

fn parse_single(text: &str) -> Option<Intent> {
    let words: Vec<&str> = text.split(' ').collect();
    let at = words.iter().position(|word| is_single(word))?;
    let key = words[at];
    let action = match words[..] {
        ["PEXPIRE", key, millis] => {
            return Some(Intent::Fade { key: key.to_owned(), millis: millis.parse().ok()? });
        }
        _ if key.starts_with(collections::PREFIX) => {
            let words = [&words[..at], &words[at + 1..]].concat();
            Action::Command(CollectionCommand::new(words).ok()?)
        }
        ["GET", _] => Action::Get,
        ["DEL", _] => Action::Del,
        ["INCRBY", _, by] => Action::Incr(by.parse().ok()?),
        ["SET", _, value] => Action::Set(value.into()),
        ["GETSET", _, value] => Action::GetSet(value.into()),
        ["SETNX", _, value] => Action::SetNx(value.into()),
        ["APPEND", _, value] => Action::Append(value.into()),
        _ => return None,
    };
    Some(Intent::Single { key: key.to_owned(), action })
}

impl FromStr for Intent {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is nothing that a client asks");
        let parts: Vec<&str> = text.split("; ").collect();
        Ok(match parts[..] {
            ["LOOK"] => Self::Look,
            ["SWAP"] => Self::Swap,
            ["UNPAIR"] => Self::Unpair,
            ["MOVES", ..] => Self::Moves(text.parse()?),
            [begin @ ("MULTI" | "SCRIPT KEYS" | "SCRIPT ARGV"), ref steps @ .., "EXEC"] => {
                let steps: Result<_, String> = steps.iter().map(|step| step.parse()).collect();
                let form = match begin {
                    "MULTI" => Form::Block,
                    begin => Form::Script { names_keys: begin.ends_with("KEYS") },
                };
                Self::Steps { steps: steps?, form }
            }
            [watch, order] if order.starts_with("MOVE ") => {
                let ["WATCH", from, to] = watch.split(' ').collect::<Vec<_>>()[..] else {
                    return Err(wrong());
                };
                let [_, amount, "as", unique] = order.split(' ').collect::<Vec<_>>()[..] else {
                    return Err(wrong());
                };
                let keys = [from.to_owned(), to.to_owned()];
                let amount = amount.parse().map_err(|_| wrong())?;
                Self::Transfer { keys, amount, unique: unique.parse().map_err(|_| wrong())? }
            }
            [watch, lapse, "EXEC"]
                if let Some((key, value, millis)) = parse_lapse(lapse)
                    && watch.strip_prefix("WATCH ") == Some(&key) =>
            {
                Self::Own { key, value, millis }
            }
            [watch, ref sets @ .., "EXEC"] if watch.starts_with("WATCH ") => {
                let reads = watch.split(' ').skip(1).map(str::to_owned).collect();
                let set = |set: &&str| match set.parse() {
                    Ok(Step::Set(key, value)) => Ok((key, value)),
                    _ => Err(wrong()),
                };
                Self::Update { reads, writes: sets.iter().map(set).collect::<Result<_, _>>()? }
            }
            [single] if let Some((key, value, millis)) = parse_lapse(single) => {
                Self::Lapse { key, value, millis }
            }
            [single] if let Ok(step) = single.parse() => Self::Queue(step),
            [single] => match (single.strip_prefix("PAIR "), parse_single(single)) {
                (Some(value), _) => Self::Pair(value.to_owned()),
                (None, Some(intent)) => intent,
                (None, None) => Self::Steps { steps: vec![single.parse()?], form: Form::Command },
            },
            _ => return Err(wrong()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_clients_ask_comes_back() {
        for text in [
            "GET key:1",
            "APPEND key:1 ,7",
            "HSET one:hash:3 f1 v7",
            "LRANGE one:list:3 0 -1",
            "DEL one:any:4",
            "PEXPIRE one:any:4 25",
            "XADD one:stream:4 7-* n v7",
            "XGROUP CREATE one:stream:4 g 0 MKSTREAM",
            "XREADGROUP GROUP g c1 COUNT 2 BLOCK 100 STREAMS one:stream:4 >",
            "EVAL return{redis.call('HSET',KEYS[1],ARGV[1],ARGV[2])} 1 one:hash:3 f1 v7",
            "LMOVE queue:list:0:1 queue:list:0:0 LEFT RIGHT",
            "ZPOPMIN queue:sorted:0:0",
            "BLPOP queue:list:0:0 queue:list:0:1 0.1",
            "BLMPOP 0.1 2 queue:list:0:0 queue:list:0:1 RIGHT COUNT 2",
            "SPOP queue:set:0:0",
            "DEL fresh:17",
            "SET ttl:3 v40 PX 25",
            "WATCH mine:2; SET mine:2 v41 PX 30; EXEC",
            "INCRBY count:0 1",
            "LRANGE parts:list:0:1 0 -1",
            "MULTI; RPUSH parts:list:0:1 e5.0; HSET parts:hash:0:1 f1 v5.1; HGETALL parts:hash:0:1; EXEC",
            "MULTI; ZUNIONSTORE parts:union:0 2 parts:sorted:0:0 parts:sorted:0:1 AGGREGATE MAX; ZADD parts:sorted:0:1 7 m1; ZRANGE parts:union:0 0 -1 WITHSCORES; EXEC",
            "GET list:0:1",
            "MSETNX reg:0 v1 reg:1 v2",
            "KEYRANGE reg 6 3",
            "MULTI; APPEND list:0:1 e5.0; GET list:0:2; EXEC",
            "MULTI; INCRBY account:1 -5; INCRBY account:2 5; EXEC",
            "SCRIPT KEYS; INCRBY account:1 -5; INCRBY account:2 5; EXEC",
            "SCRIPT ARGV; RPUSH parts:list:0:1 e5.0; HGET parts:hash:0:1 f1; EXEC",
            "MOVES; LMOVE moved:list:0:1 moved:list:0:2 LEFT RIGHT; LRANGE moved:list:0:0 0 -1; LRANGE moved:list:0:1 0 -1; LRANGE moved:list:0:2 0 -1; EXEC",
            "WATCH purse:0 purse:2; MOVE 17 as 88",
            "WATCH tweet:1 tweet:2; SET tweet:1 v8.0; SET tweet:9 v8.1; EXEC",
            "PAIR p17",
            "UNPAIR",
            "SWAP",
            "LOOK",
        ] {
            let intent: Intent = text.parse().unwrap();
            assert_eq!(intent.to_string(), text);
        }
        assert!("EAT reg:0".parse::<Intent>().unwrap_err().contains("EAT"));
    }
}
