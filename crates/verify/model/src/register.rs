//! The ops of a scope on one key.

use std::borrow::Cow;
use std::fmt;

use quorate_machine::{Access, Change, Command, Current, ValueKind};
use quorate_types::UnixMillis;

use crate::history::Store;
use crate::lists;

/// An op on the key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Op {
    /// Reads it.
    Get,
    /// Writes it without reading.
    Set(u8),
    /// Appends to it, and answers its old value: a read-modify-write.
    Append(u8),
    /// As `Set`, a list of one item.
    Put(u8),
    /// As `Append`, an item to a list.
    Push(u8),
    /// Deletes it.
    Delete,
}

/// The key of every op.
pub(crate) const KEY: &str = "k";

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Get => write!(f, "get {KEY}"),
            Self::Set(value) => write!(f, "set {KEY}={}", char::from(value)),
            Self::Append(tail) => write!(f, "append {KEY}+{}", char::from(tail)),
            Self::Put(item) => write!(f, "put {KEY}={}", char::from(item)),
            Self::Push(item) => write!(f, "push {KEY}+{}", char::from(item)),
            Self::Delete => write!(f, "delete {KEY}"),
        }
    }
}

impl Op {
    /// Runs it on a store of its own.
    pub(crate) fn run_alone(self, store: &mut Store) -> String {
        let value = store.entry(KEY.to_owned()).or_default();
        match self {
            Self::Get => value.clone(),
            Self::Set(new) | Self::Put(new) => {
                *value = char::from(new).to_string();
                String::new()
            }
            Self::Append(tail) | Self::Push(tail) => {
                let before = value.clone();
                value.push(char::from(tail));
                before
            }
            Self::Delete => std::mem::take(value),
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn string(bytes: Vec<u8>) -> Change<'static> {
    Change::Set { bytes: Cow::Owned(bytes), kind: ValueKind::String, expire_at: None }
}

impl Command for Op {
    type Owned = Self;
    type Reply = String;

    fn visit_keys(&self, visit: &mut dyn FnMut(&[u8])) {
        visit(self.key());
    }

    fn key(&self) -> &[u8] {
        KEY.as_bytes()
    }

    fn access(&self) -> Access {
        match self {
            Self::Get => Access::Read,
            Self::Set(_) | Self::Put(_) => Access::Write,
            Self::Append(_) | Self::Push(_) | Self::Delete => Access::Update,
        }
    }

    fn apply<'a>(&'a self, _now: UnixMillis, current: Current<'a>) -> (String, Change<'a>) {
        let text = |content| lists::text(content, current.large);
        let held = current.content.map(text).unwrap_or_default();
        match *self {
            Self::Put(item) => (String::new(), lists::put(&[item])),
            Self::Push(item) => (held, lists::push(current, &[item])),
            Self::Get => (held, Change::Keep),
            Self::Set(value) => (String::new(), string(vec![value])),
            Self::Append(tail) => {
                let mut whole = held.clone().into_bytes();
                whole.push(tail);
                (held, string(whole))
            }
            Self::Delete if current.content.is_none() => (held, Change::Keep),
            Self::Delete => (held, Change::Delete),
        }
    }

    fn into_owned(self) -> Self {
        self
    }

    fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Self::Get => out.push(0),
            Self::Set(value) => out.extend([1, value]),
            Self::Append(tail) => out.extend([2, tail]),
            Self::Put(item) => out.extend([3, item]),
            Self::Push(item) => out.extend([4, item]),
            Self::Delete => out.push(5),
        }
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        match *bytes {
            [0] => Some(Self::Get),
            [1, value] => Some(Self::Set(value)),
            [2, tail] => Some(Self::Append(tail)),
            [3, item] => Some(Self::Put(item)),
            [4, item] => Some(Self::Push(item)),
            [5] => Some(Self::Delete),
            _ => None,
        }
    }

    fn encode_reply(reply: &String, out: &mut Vec<u8>) {
        out.extend(reply.as_bytes());
    }

    fn decode_reply(bytes: &[u8]) -> Option<String> {
        Some(text(bytes))
    }
}
