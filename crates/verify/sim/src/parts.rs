//! Steps of transactions on parts of collections.
//!
//! To the judges each field of a hash and each member of a set is a register of its own, and a read
//! of the whole collection is a read of all of them, absent ones included. A list to which elements
//! are only added is a list to them, too. So they need to know nothing of collections.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use quorate_check::{Bytes, TxnOp};
use quorate_commands::{OwnedCall, Reply};
use quorate_machine::Rng;

/// The prefix of lists of parts.
pub(crate) const LISTS: &str = "parts:list:";
/// The prefix of hashes of parts.
const HASHES: &str = "parts:hash:";
/// Steps after which clients go on to fresh keys: a check of lists reads them whole.
const LIFE: u64 = 150;
/// The prefix of sorted sets of parts.
const SCORES: &str = "parts:sorted:";
/// The prefix of unions of these.
const UNIONS: &str = "parts:union:";
/// The fields of a hash.
const FIELDS: u64 = 5;
/// The members of a sorted set.
const MEMBERS: u64 = 4;

/// One command of a transaction on a collection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum PartStep {
    /// Adds an element to the end of a list.
    Push(String, String),
    /// Reads a list.
    Elements(String),
    /// Sets a field.
    SetField(String, String, String),
    /// Reads a field.
    Field(String, String),
    /// Deletes a field.
    DropField(String, String),
    /// Reads all fields.
    Fields(String),
    /// Gives a member a score.
    SetScore(String, String, u64),
    /// Reads a member's score.
    Score(String, String),
    /// Removes a member.
    DropMember(String, String),
    /// Reads all members and scores, in order.
    Scores(String),
    /// Stores the union of two sorted sets, with the higher one of two scores.
    Union { to: String, from: [String; 2] },
    /// Reads a union, which is compared with what it is made of.
    Whole(String),
}

impl PartStep {
    fn words(&self) -> Vec<String> {
        if let Self::SetScore(key, member, score) = self {
            let score = score.to_string();
            return vec!["ZADD".into(), key.clone(), score, member.clone()];
        }
        let words = match self {
            Self::Push(key, element) => vec!["RPUSH", key, element],
            Self::Elements(key) => vec!["LRANGE", key, "0", "-1"],
            Self::SetField(key, field, value) => vec!["HSET", key, field, value],
            Self::Field(key, field) => vec!["HGET", key, field],
            Self::DropField(key, field) => vec!["HDEL", key, field],
            Self::Fields(key) => vec!["HGETALL", key],
            Self::SetScore(..) => unreachable!("it has a number among its words"),
            Self::Score(key, member) => vec!["ZSCORE", key, member],
            Self::DropMember(key, member) => vec!["ZREM", key, member],
            Self::Scores(key) | Self::Whole(key) => vec!["ZRANGE", key, "0", "-1", "WITHSCORES"],
            Self::Union { to, from: [one, other] } => {
                vec!["ZUNIONSTORE", to, "2", one, other, "AGGREGATE", "MAX"]
            }
        };
        words.into_iter().map(str::to_owned).collect()
    }

    /// Whether it answers in a script as it does alone: no map, and no floating-point number.
    pub(crate) fn may_be_in_script(&self) -> bool {
        !matches!(
            self,
            Self::Fields(_)
                | Self::Score(..)
                | Self::Scores(_)
                | Self::Union { .. }
                | Self::Whole(_)
        )
    }

    /// The command.
    pub(crate) fn call(&self) -> OwnedCall {
        OwnedCall::new(self.words().iter().map(String::as_bytes))
            .expect("clients know the commands")
    }

    /// Its effect, if it happens and its answer is never seen.
    pub(crate) fn intent(&self) -> Vec<TxnOp> {
        match self {
            Self::Push(key, element) => vec![TxnOp::append(&**key, &**element)],
            Self::SetField(key, field, value) => {
                vec![TxnOp::write(part(key, field), Some(value.as_str().into()))]
            }
            Self::DropField(key, field) => vec![TxnOp::write(part(key, field), None)],
            Self::SetScore(key, member, score) => {
                vec![TxnOp::write(part(key, member), Some(score.to_string().into()))]
            }
            Self::DropMember(key, member) => vec![TxnOp::write(part(key, member), None)],
            Self::Elements(_)
            | Self::Field(..)
            | Self::Fields(_)
            | Self::Score(..)
            | Self::Scores(_)
            | Self::Union { .. }
            | Self::Whole(_) => Vec::new(),
        }
    }

    /// Its effect, by its answer. `None` if its command never answers so.
    pub(crate) fn effect(&self, reply: &Reply<'_>) -> Option<Vec<TxnOp>> {
        Some(match (self, reply) {
            (Self::Push(..), Reply::Int(1..)) => self.intent(),
            (Self::Elements(key), Reply::Array(items)) => {
                let elements = items.iter().map(bytes_of).collect::<Option<_>>()?;
                vec![TxnOp::read_list(&**key, elements)]
            }
            // It tells whether the field is new.
            (Self::SetField(key, field, _), Reply::Int(1)) => {
                let absent = TxnOp::read(part(key, field), None);
                std::iter::once(absent).chain(self.intent()).collect()
            }
            (Self::SetField(..), Reply::Int(0)) => self.intent(),
            (Self::Field(key, field), Reply::Null) => vec![TxnOp::read(part(key, field), None)],
            (Self::Field(key, field), reply) => {
                vec![TxnOp::read(part(key, field), Some(bytes_of(reply)?))]
            }
            (Self::DropField(..), Reply::Int(1)) => self.intent(),
            (Self::DropField(key, field), Reply::Int(0)) => {
                vec![TxnOp::read(part(key, field), None)]
            }
            (Self::Fields(key), Reply::Map(pairs)) => {
                let pairs = pairs.iter().map(|(one, two)| Some((bytes_of(one)?, bytes_of(two)?)));
                read_all(key, "f", FIELDS, pairs.collect::<Option<_>>()?)?
            }
            (Self::SetScore(key, member, _), Reply::Int(1)) => {
                let absent = TxnOp::read(part(key, member), None);
                std::iter::once(absent).chain(self.intent()).collect()
            }
            (Self::SetScore(..), Reply::Int(0)) => self.intent(),
            (Self::Score(key, member), Reply::Null) => vec![TxnOp::read(part(key, member), None)],
            (Self::Score(key, member), Reply::Double(score)) => {
                vec![TxnOp::read(part(key, member), Some(score.to_string().into()))]
            }
            (Self::DropMember(..), Reply::Int(1)) => self.intent(),
            (Self::DropMember(key, member), Reply::Int(0)) => {
                vec![TxnOp::read(part(key, member), None)]
            }
            (Self::Scores(key), reply) => {
                let scores = scores_of(reply)?.into_iter();
                let text = |(member, score): (Bytes, f64)| (member, score.to_string().into());
                read_all(key, "m", MEMBERS, scores.map(text).collect())?
            }
            // See `check_unions`.
            (Self::Union { .. }, Reply::Int(_)) | (Self::Whole(_), Reply::Pairs(_)) => Vec::new(),
            _ => return None,
        })
    }
}

/// Steps of a transaction, on few keys. Values are unique.
pub(crate) fn draw(unique: u64, rng: &mut Rng) -> Vec<PartStep> {
    let age = unique / LIFE;
    let sorted = |number: u64| format!("{SCORES}{age}:{number}");
    if rng.chance(1, 12) {
        let (from, to) = ([sorted(0), sorted(1)], format!("{UNIONS}{age}"));
        let [one, other] = from.clone().map(PartStep::Scores);
        return vec![PartStep::Union { to: to.clone(), from }, one, other, PartStep::Whole(to)];
    }
    let only_reads = rng.chance(1, 5);
    let count = 1 + rng.below(4);
    let mut step = |at: u64| {
        let key = |prefix: &str, rng: &mut Rng| format!("{prefix}{age}:{}", rng.below(2));
        let reads = only_reads || rng.chance(2, 5);
        if rng.chance(1, 3) {
            let (key, member) = (sorted(rng.below(2)), format!("m{}", rng.below(MEMBERS)));
            return match (reads, rng.below(8)) {
                (true, 0..=2) => PartStep::Score(key, member),
                (true, _) => PartStep::Scores(key),
                (false, 0) => PartStep::DropMember(key, member),
                (false, _) => PartStep::SetScore(key, member, unique * 4 + at),
            };
        }
        match (rng.chance(1, 2), reads) {
            (true, true) => PartStep::Elements(key(LISTS, rng)),
            (true, false) => PartStep::Push(key(LISTS, rng), format!("e{unique}.{at}")),
            (false, reads) => {
                let (key, field) = (key(HASHES, rng), format!("f{}", rng.below(FIELDS)));
                match (reads, rng.below(8)) {
                    (true, 0..=2) => PartStep::Field(key, field),
                    (true, _) => PartStep::Fields(key),
                    (false, 0) => PartStep::DropField(key, field),
                    (false, _) => PartStep::SetField(key, field, format!("v{unique}.{at}")),
                }
            }
        }
    };
    (0..count).map(&mut step).collect()
}

/// The steps that must succeed at the end.
pub(crate) fn closing(unique: u64) -> Vec<PartStep> {
    let [list, hash] = [LISTS, HASHES].map(|prefix| format!("{prefix}{}:0", unique / LIFE));
    vec![
        PartStep::Push(list.clone(), format!("e{unique}.0")),
        PartStep::SetField(hash.clone(), "f0".into(), format!("v{unique}.1")),
        PartStep::Elements(list),
        PartStep::Fields(hash),
    ]
}

/// The members of a sorted set with their scores. `None` if they are not in order.
fn scores_of(reply: &Reply<'_>) -> Option<Vec<(Bytes, f64)>> {
    let Reply::Pairs(pairs) = reply else { return None };
    let pair = |(member, score): &(Reply<'_>, Reply<'_>)| match score {
        Reply::Double(score) => Some((bytes_of(member)?, *score)),
        _ => None,
    };
    let scores: Vec<(Bytes, f64)> = pairs.iter().map(pair).collect::<Option<_>>()?;
    scores.is_sorted_by(|(one, low), (two, high)| (low, one) < (high, two)).then_some(scores)
}

/// Compares each union with what it is made of, where a transaction reads all three.
pub(crate) fn check_unions(steps: &[&PartStep], replies: &[Reply<'_>]) -> Result<(), String> {
    let [PartStep::Union { .. }, PartStep::Scores(_), PartStep::Scores(_), PartStep::Whole(_)] =
        steps
    else {
        return Ok(());
    };
    let all = replies[1..].iter().map(scores_of).collect::<Option<Vec<_>>>();
    let wrong = || format!("a union was answered {replies:?}");
    let [one, other, union] = &all.ok_or_else(wrong)?[..] else { return Err(wrong()) };
    let mut expected: BTreeMap<&Bytes, f64> = BTreeMap::new();
    for (member, score) in one.iter().chain(other) {
        let held = expected.entry(member).or_insert(*score);
        *held = held.max(*score);
    }
    let found: BTreeMap<&Bytes, f64> =
        union.iter().map(|(member, score)| (member, *score)).collect();
    let count = Reply::Int(expected.len() as i64);
    if found == expected && replies[0] == count { Ok(()) } else { Err(wrong()) }
}

/// Reads of every part that a collection can have.
fn read_all(
    key: &str,
    letter: &str,
    count: u64,
    mut pairs: Vec<(Bytes, Bytes)>,
) -> Option<Vec<TxnOp>> {
    let fields = (0..count).map(|part| format!("{letter}{part}"));
    let read = |field: String| {
        let at = pairs.iter().position(|(one, _)| one.0 == field.as_bytes());
        TxnOp::read(part(key, &field), at.map(|at| pairs.swap_remove(at).1))
    };
    let ops = fields.map(read).collect();
    // Any other part, or one that is there twice, is nonsense.
    pairs.is_empty().then_some(ops)
}

/// The register of a part.
fn part(key: &str, name: &str) -> Bytes {
    format!("{key}/{name}").into()
}

fn bytes_of(reply: &Reply<'_>) -> Option<Bytes> {
    match reply {
        Reply::Bulk(bytes) => Some(Bytes(bytes.to_vec())),
        _ => None,
    }
}

impl fmt::Display for PartStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words().join(" "))
    }
}

impl FromStr for PartStep {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let own = |text: &str| text.to_owned();
        Ok(match text.split(' ').collect::<Vec<_>>()[..] {
            ["RPUSH", key, element] => Self::Push(own(key), own(element)),
            ["LRANGE", key, "0", "-1"] => Self::Elements(own(key)),
            ["HSET", key, field, value] => Self::SetField(own(key), own(field), own(value)),
            ["HGET", key, field] => Self::Field(own(key), own(field)),
            ["HDEL", key, field] => Self::DropField(own(key), own(field)),
            ["HGETALL", key] => Self::Fields(own(key)),
            ["ZADD", key, score, member] => {
                let score = score.parse().map_err(|_| format!("'{score}' is no score"))?;
                Self::SetScore(own(key), own(member), score)
            }
            ["ZSCORE", key, member] => Self::Score(own(key), own(member)),
            ["ZREM", key, member] => Self::DropMember(own(key), own(member)),
            ["ZRANGE", key, "0", "-1", "WITHSCORES"] if key.starts_with(UNIONS) => {
                Self::Whole(own(key))
            }
            ["ZRANGE", key, "0", "-1", "WITHSCORES"] => Self::Scores(own(key)),
            ["ZUNIONSTORE", to, "2", one, other, "AGGREGATE", "MAX"] => {
                Self::Union { to: own(to), from: [own(one), own(other)] }
            }
            _ => return Err(format!("'{text}' is nothing that a client asks")),
        })
    }
}
