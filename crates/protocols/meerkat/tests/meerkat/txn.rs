//! A small language of transactions: `read=a write=b:5 append=c:x del=d`.

use std::borrow::Cow;
use std::fmt;

use quorate_collections::Delta;
use quorate_machine::{Change, Collection, Command, ValueKind, Verdict, Workspace};
use quorate_types::{Timestamp, UnixMillis, WriterId};
use quorate_wire::{Reader, Writer};

use crate::entries::{list_of, value_text};

/// What a transaction does, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    Read(String),
    Write(String, String),
    /// Reads the value and writes it with a tail: a read-modify-write.
    Append(String, String),
    Del(String),
    /// Writes a list of one item.
    Put(String, String),
    /// As `Append`, of a list and an item.
    Push(String, String),
    /// Ends the transaction without a change if the key holds a value.
    Unless(String),
}

impl Step {
    pub(crate) fn key(&self) -> &str {
        let (Self::Read(key)
        | Self::Write(key, _)
        | Self::Append(key, _)
        | Self::Del(key)
        | Self::Put(key, _)
        | Self::Push(key, _)
        | Self::Unless(key)) = self;
        key
    }
}

/// A transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Txn(pub(crate) Vec<Step>);

impl Txn {
    /// Whether what it finds decides if it changes anything.
    pub(crate) fn may_abandon(&self) -> bool {
        self.0.iter().any(|step| matches!(step, Step::Unless(_)))
    }
}

/// What one read found: the version that a client sees, and the value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    pub(crate) key: String,
    pub(crate) version: Timestamp,
    pub(crate) value: Option<String>,
}

pub(crate) type Reply = Vec<Seen>;

/// The transaction that some words stand for.
pub(crate) fn txn(text: &str) -> Txn {
    let pair = |rest: &str| {
        let (key, value) = rest.split_once(':').expect("key:value");
        (key.to_owned(), value.to_owned())
    };
    let step = |word: &str| match word.split_once('=').expect("verb=what") {
        ("read", key) => Step::Read(key.to_owned()),
        ("write", rest) => Step::Write(pair(rest).0, pair(rest).1),
        ("append", rest) => Step::Append(pair(rest).0, pair(rest).1),
        ("del", key) => Step::Del(key.to_owned()),
        ("put", rest) => Step::Put(pair(rest).0, pair(rest).1),
        ("push", rest) => Step::Push(pair(rest).0, pair(rest).1),
        ("unless", key) => Step::Unless(key.to_owned()),
        (other, _) => panic!("unknown verb {other:?}"),
    };
    Txn(text.split_whitespace().map(step).collect())
}

impl fmt::Display for Txn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, step) in self.0.iter().enumerate() {
            f.write_str(if at == 0 { "" } else { " " })?;
            match step {
                Step::Read(key) => write!(f, "read={key}")?,
                Step::Write(key, value) => write!(f, "write={key}:{value}")?,
                Step::Append(key, tail) => write!(f, "append={key}:{tail}")?,
                Step::Del(key) => write!(f, "del={key}")?,
                Step::Put(key, item) => write!(f, "put={key}:{item}")?,
                Step::Push(key, item) => write!(f, "push={key}:{item}")?,
                Step::Unless(key) => write!(f, "unless={key}")?,
            }
        }
        Ok(())
    }
}

fn look(workspace: &mut impl Workspace, key: &str) -> Seen {
    let current = workspace.read(key.as_bytes());
    let value = current.content.map(|content| value_text(content, current.large));
    Seen { key: key.to_owned(), version: current.timestamp, value }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("tests store text")
}

fn set(workspace: &mut impl Workspace, key: &str, value: String) {
    let bytes = Cow::Owned(value.into_bytes());
    let change = Change::Set { bytes, kind: ValueKind::String, expire_at: None };
    workspace.write(key.as_bytes(), change);
}

fn put(workspace: &mut impl Workspace, key: &str, list: Vec<u8>) {
    let change = Change::Set { bytes: list.into(), kind: ValueKind::List, expire_at: None };
    workspace.write(key.as_bytes(), change);
}

/// Appends to a list, which changes a large one in place.
fn push(workspace: &mut impl Workspace, key: &str, item: &str) {
    let current = workspace.read(key.as_bytes());
    let Some(content) = current.content else { return put(workspace, key, list_of(item)) };
    let mut delta = Delta::new();
    if let Some(large) = current.large {
        delta.insert(large.len(), [item.as_bytes()].into_iter());
        let bytes = delta.into_bytes().into();
        workspace.write(key.as_bytes(), Change::Delta { bytes, expire_at: None });
        return;
    }
    let mut list = Collection::unpack(ValueKind::List, content.bytes).expect("a list");
    delta.insert(list.len(), [item.as_bytes()].into_iter());
    list.apply(&delta.into_bytes(), &mut Vec::new()).expect("a delta of this list");
    let mut whole = Vec::new();
    list.pack(&mut whole);
    put(workspace, key, whole);
}

impl Command for Txn {
    type Owned = Self;
    type Reply = Reply;

    fn run<W: Workspace>(&self, _now: UnixMillis, workspace: &mut W) -> Verdict<Reply> {
        let mut reply = Vec::new();
        for step in &self.0 {
            match step {
                Step::Read(key) => reply.push(look(workspace, key)),
                Step::Write(key, value) => set(workspace, key, value.clone()),
                Step::Append(key, tail) => {
                    let seen = look(workspace, key);
                    let whole = seen.value.clone().unwrap_or_default() + tail;
                    set(workspace, key, whole);
                    reply.push(seen);
                }
                Step::Put(key, item) => put(workspace, key, list_of(item)),
                Step::Push(key, item) => {
                    reply.push(look(workspace, key));
                    push(workspace, key, item);
                }
                Step::Del(key) => workspace.write(key.as_bytes(), Change::Delete),
                Step::Unless(key) => {
                    if look(workspace, key).value.is_some() {
                        return Verdict::Abandon(Vec::new());
                    }
                }
            }
        }
        Verdict::Commit(reply)
    }

    fn into_owned(self) -> Self {
        self
    }

    fn visit_keys(&self, visit: &mut dyn FnMut(&[u8])) {
        self.0.iter().for_each(|step| visit(step.key().as_bytes()));
    }

    fn updates(&self) -> bool {
        self.0.iter().any(|step| !matches!(step, Step::Read(_)))
    }

    fn encode_reply(reply: &Reply, out: &mut Vec<u8>) {
        let mut writer = Writer(out);
        for seen in reply {
            writer.bytes(seen.key.as_bytes());
            writer.u64(seen.version.version);
            writer.u32(seen.version.writer.0);
            writer.u8(u8::from(seen.value.is_some()));
            writer.bytes(seen.value.as_deref().unwrap_or_default().as_bytes());
        }
    }

    fn decode_reply(bytes: &[u8]) -> Option<Reply> {
        let mut reader = Reader(bytes);
        let mut reply = Vec::new();
        while !reader.0.is_empty() {
            let key = text(reader.bytes().ok()?);
            let version = Timestamp::new(reader.u64().ok()?, WriterId(reader.u32().ok()?));
            let exists = reader.u8().ok()? == 1;
            let value = text(reader.bytes().ok()?);
            reply.push(Seen { key, version, value: exists.then_some(value) });
        }
        Some(reply)
    }
}
