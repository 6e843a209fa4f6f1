//! A small language of transactions: `read=a write=b:5 append=c:x put=l:x push=l:y del=d unless=e`.

use std::borrow::Cow;
use std::fmt;

use quorate_collections::{Delta, packed};
use quorate_machine::{Change, Collection, Command, Content, ValueKind, Verdict, Workspace};
use quorate_types::{Timestamp, UnixMillis};
use quorate_wire::{Reader, Writer};

/// What a transaction does, in order.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Step {
    Read(String),
    /// Looks at a key as `WATCH` does.
    Watch(String),
    Write(String, String),
    /// Reads the value and writes it with a tail: a read-modify-write.
    Append(String, String),
    /// Writes a list of one item.
    Put(String, String),
    /// Writes a list of so many items of twelve bytes.
    Fill(String, usize),
    /// As `Append`, of a list and an item.
    Push(String, String),
    Del(String),
    /// Reads the key that the value of this one names, which the transaction does not.
    Follow(String),
    /// Names a key and does nothing with it.
    Name(String),
    /// Gives up if the key exists: nothing of the transaction happens.
    Unless(String),
    /// Sets a time at which the value of a key expires, in milliseconds since 1970.
    Expire(String, u64),
}

impl Step {
    pub(crate) fn is_update(&self) -> bool {
        !matches!(self, Self::Read(_) | Self::Watch(_) | Self::Follow(_) | Self::Unless(_))
    }

    pub(crate) fn key(&self) -> &str {
        let (Self::Read(key)
        | Self::Watch(key)
        | Self::Write(key, _)
        | Self::Append(key, _)
        | Self::Put(key, _)
        | Self::Fill(key, _)
        | Self::Push(key, _)
        | Self::Del(key)
        | Self::Follow(key)
        | Self::Name(key)
        | Self::Unless(key)
        | Self::Expire(key, _)) = self;
        key
    }
}

/// A transaction.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Txn(pub(crate) Vec<Step>);

/// What one read found: the version that a client sees, and the value.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Seen {
    pub(crate) key: String,
    pub(crate) version: Timestamp,
    pub(crate) value: Option<String>,
}

impl Seen {
    /// Whether nobody can have changed the key since a look at it, by the rule of `EXEC`.
    pub(crate) fn is_as(&self, looked: &Self) -> bool {
        let is_absent = self.value.is_none() && looked.value.is_none();
        self.version == looked.version || is_absent && self.version < looked.version
    }
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
        ("watch", key) => Step::Watch(key.to_owned()),
        ("write", rest) => Step::Write(pair(rest).0, pair(rest).1),
        ("append", rest) => Step::Append(pair(rest).0, pair(rest).1),
        ("put", rest) => Step::Put(pair(rest).0, pair(rest).1),
        ("fill", rest) => Step::Fill(pair(rest).0, pair(rest).1.parse().expect("a number")),
        ("push", rest) => Step::Push(pair(rest).0, pair(rest).1),
        ("del", key) => Step::Del(key.to_owned()),
        ("follow", key) => Step::Follow(key.to_owned()),
        ("name", key) => Step::Name(key.to_owned()),
        ("unless", key) => Step::Unless(key.to_owned()),
        ("expire", rest) => Step::Expire(pair(rest).0, pair(rest).1.parse().expect("a time")),
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
                Step::Watch(key) => write!(f, "watch={key}")?,
                Step::Write(key, value) => write!(f, "write={key}:{value}")?,
                Step::Append(key, tail) => write!(f, "append={key}:{tail}")?,
                Step::Put(key, item) => write!(f, "put={key}:{item}")?,
                Step::Fill(key, count) => write!(f, "fill={key}:{count}")?,
                Step::Push(key, item) => write!(f, "push={key}:{item}")?,
                Step::Del(key) => write!(f, "del={key}")?,
                Step::Follow(key) => write!(f, "follow={key}")?,
                Step::Name(key) => write!(f, "name={key}")?,
                Step::Unless(key) => write!(f, "unless={key}")?,
                Step::Expire(key, at) => write!(f, "expire={key}:{at}")?,
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
        return workspace.write(key.as_bytes(), Change::Delta { bytes, expire_at: None });
    }
    let mut list = Collection::unpack(ValueKind::List, content.bytes).expect("a list");
    delta.insert(list.len(), [item.as_bytes()].into_iter());
    list.apply(&delta.into_bytes(), &mut Vec::new()).expect("a delta of this list");
    let mut whole = Vec::new();
    list.pack(&mut whole);
    put(workspace, key, whole);
}

/// The packed list of one item.
pub(crate) fn list_of(item: &str) -> Vec<u8> {
    let mut list = packed::Builder::new(0, item.len());
    list.item(item.as_bytes());
    list.finish(1)
}

/// A value as text: that of a list is the text of its items.
pub(crate) fn value_text(content: Content<'_>, large: Option<&Collection>) -> String {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("tests store text");
    let items = |list: &Collection| list.list().expect("a list").items_from(0).map(text).collect();
    match (content.kind, large) {
        (ValueKind::List, Some(large)) => items(large),
        (ValueKind::List, None) => {
            items(&Collection::unpack(ValueKind::List, content.bytes).expect("a list"))
        }
        _ => text(content.bytes),
    }
}

/// What a delta appends to a list, as text.
pub(crate) fn appended(delta: &[u8]) -> String {
    let length = delta.get(1..5).map_or(0, |at| u32::from_le_bytes(at.try_into().expect("four")));
    let mut fill = packed::Builder::new(0, 0);
    (0..length).for_each(|_| fill.item(b"?"));
    let fill = fill.finish(length as usize);
    let mut list = Collection::unpack(ValueKind::List, &fill).expect("a list");
    list.apply(delta, &mut Vec::new()).expect("a delta of such a list");
    let items = list.list().expect("a list").items_from(length as usize);
    items.map(|item| String::from_utf8(item.to_vec()).expect("tests store text")).collect()
}

impl Command for Txn {
    type Owned = Self;
    type Reply = Reply;

    fn run<W: Workspace>(&self, _now: UnixMillis, workspace: &mut W) -> Verdict<Reply> {
        let mut reply = Vec::new();
        for step in &self.0 {
            match step {
                Step::Read(key) => reply.push(look(workspace, key)),
                Step::Watch(key) => {
                    let (version, _) = workspace.watch(key.as_bytes());
                    reply.push(Seen { version, ..look(workspace, key) });
                }
                Step::Write(key, value) => set(workspace, key, value.clone()),
                Step::Append(key, tail) => {
                    let seen = look(workspace, key);
                    let whole = seen.value.clone().unwrap_or_default() + tail;
                    set(workspace, key, whole);
                    reply.push(seen);
                }
                Step::Put(key, item) => put(workspace, key, list_of(item)),
                Step::Fill(key, count) => {
                    let mut list = packed::Builder::new(0, 13 * count);
                    (0..*count).for_each(|n| list.item(format!(",{n:011}").as_bytes()));
                    put(workspace, key, list.finish(*count));
                }
                Step::Push(key, item) => {
                    reply.push(look(workspace, key));
                    push(workspace, key, item);
                }
                Step::Del(key) => workspace.write(key.as_bytes(), Change::Delete),
                Step::Follow(key) => {
                    let seen = look(workspace, key);
                    let next = seen.value.clone();
                    reply.push(seen);
                    reply.extend(next.map(|next| look(workspace, &next)));
                }
                Step::Name(_) => {}
                Step::Unless(key) => {
                    if look(workspace, key).value.is_some() {
                        return Verdict::Abandon(Vec::new());
                    }
                }
                Step::Expire(key, at) => {
                    let change = Change::Expire(Some(UnixMillis(*at)));
                    workspace.write(key.as_bytes(), change);
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
        self.0.iter().any(Step::is_update)
    }

    fn anchor(&self) -> Option<&[u8]> {
        self.0.iter().find(|step| step.is_update()).map(|step| step.key().as_bytes())
    }

    fn ranges(&self) -> bool {
        self.0.iter().any(|step| matches!(step, Step::Follow(_)))
    }

    fn encode_reply(reply: &Reply, out: &mut Vec<u8>) {
        let mut writer = Writer(out);
        for seen in reply {
            writer.bytes(seen.key.as_bytes());
            writer.timestamp(seen.version);
            writer.u8(u8::from(seen.value.is_some()));
            writer.bytes(seen.value.as_deref().unwrap_or_default().as_bytes());
        }
    }

    fn decode_reply(bytes: &[u8]) -> Option<Reply> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("tests store text");
        let mut reader = Reader(bytes);
        let mut reply = Vec::new();
        while !reader.0.is_empty() {
            let key = text(reader.bytes().ok()?);
            let version = reader.timestamp().ok()?;
            let exists = reader.u8().ok()? == 1;
            let value = text(reader.bytes().ok()?);
            reply.push(Seen { key, version, value: exists.then_some(value) });
        }
        Some(reply)
    }
}
