//! Steps of transactions on parts of collections.
//!
//! To the judges each field of a hash and each member of a set is a register of its own, and a read
//! of the whole collection is a read of all of them, absent ones included. A list to which elements
//! are only added is a list to them, too. So they need to know nothing of collections.

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
/// The fields of a hash.
const FIELDS: u64 = 5;

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
}

impl PartStep {
    fn words(&self) -> Vec<&str> {
        match self {
            Self::Push(key, element) => vec!["RPUSH", key, element],
            Self::Elements(key) => vec!["LRANGE", key, "0", "-1"],
            Self::SetField(key, field, value) => vec!["HSET", key, field, value],
            Self::Field(key, field) => vec!["HGET", key, field],
            Self::DropField(key, field) => vec!["HDEL", key, field],
            Self::Fields(key) => vec!["HGETALL", key],
        }
    }

    /// The command.
    pub(crate) fn call(&self) -> OwnedCall {
        OwnedCall::new(self.words().into_iter().map(str::as_bytes))
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
            Self::Elements(_) | Self::Field(..) | Self::Fields(_) => Vec::new(),
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
                read_all(key, pairs.collect::<Option<_>>()?)?
            }
            _ => return None,
        })
    }
}

/// Steps of a transaction, on few keys. Values are unique.
pub(crate) fn draw(unique: u64, rng: &mut Rng) -> Vec<PartStep> {
    let age = unique / LIFE;
    let only_reads = rng.chance(1, 5);
    let count = 1 + rng.below(4);
    let mut step = |at: u64| {
        let key = |prefix: &str, rng: &mut Rng| format!("{prefix}{age}:{}", rng.below(2));
        let reads = only_reads || rng.chance(2, 5);
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

/// Reads of every field that a hash can have.
fn read_all(key: &str, mut pairs: Vec<(Bytes, Bytes)>) -> Option<Vec<TxnOp>> {
    let fields = (0..FIELDS).map(|field| format!("f{field}"));
    let read = |field: String| {
        let at = pairs.iter().position(|(one, _)| one.0 == field.as_bytes());
        TxnOp::read(part(key, &field), at.map(|at| pairs.swap_remove(at).1))
    };
    let ops = fields.map(read).collect();
    // Any other field, or one that is there twice, is nonsense.
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
            _ => return Err(format!("'{text}' is nothing that a client asks")),
        })
    }
}
