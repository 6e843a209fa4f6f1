//! A register and counter as [`Command`]: small, with every kind of access.

use std::borrow::Cow;

use quorate_machine::{Access, Change, Collection, Command, Content, Current, ValueKind};
use quorate_types::{Timestamp, UnixMillis, WriterId};
use quorate_wire::{Reader, Writer};

/// What an op does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Verb {
    Get,
    /// Reads the version, as `WATCH` does.
    Version,
    /// A plain write; past its expiry at once, it deletes.
    Set(Vec<u8>, Option<u64>),
    Incr,
    Append(Vec<u8>),
    Del,
    SetNx(Vec<u8>),
    /// Sets, and answers what was there.
    Swap(Vec<u8>),
    /// Sets the expiry of a value that is there.
    Expire(u64),
    /// Replaces the value by a hash, packed.
    Make(Vec<u8>),
    /// Changes a hash, if one is there, by a delta.
    Change(Vec<u8>),
    /// Swaps, if the key still has this version, as a block does that watches it.
    Watched(Timestamp, Vec<u8>),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Op {
    pub(crate) key: Vec<u8>,
    pub(crate) verb: Verb,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Reply {
    Ok,
    Value(Option<Vec<u8>>),
    Int(i64),
    NotANumber,
    Version(Timestamp),
}

fn op(key: &str, verb: Verb) -> Op {
    Op { key: key.as_bytes().to_vec(), verb }
}

pub(crate) fn get(key: &str) -> Op {
    op(key, Verb::Get)
}

pub(crate) fn version(key: &str) -> Op {
    op(key, Verb::Version)
}

pub(crate) fn set(key: &str, value: &str) -> Op {
    op(key, Verb::Set(value.as_bytes().to_vec(), None))
}

/// A write whose value expires at a time of the wall clock, in milliseconds.
pub(crate) fn set_until(key: &str, value: &str, at: u64) -> Op {
    op(key, Verb::Set(value.as_bytes().to_vec(), Some(at)))
}

/// A delete that is a plain write: it answers the same whatever the key held.
pub(crate) fn wipe(key: &str) -> Op {
    op(key, Verb::Set(Vec::new(), Some(0)))
}

pub(crate) fn incr(key: &str) -> Op {
    op(key, Verb::Incr)
}

pub(crate) fn append(key: &str, value: &str) -> Op {
    op(key, Verb::Append(value.as_bytes().to_vec()))
}

pub(crate) fn del(key: &str) -> Op {
    op(key, Verb::Del)
}

pub(crate) fn set_nx(key: &str, value: &str) -> Op {
    op(key, Verb::SetNx(value.as_bytes().to_vec()))
}

pub(crate) fn swap(key: &str, value: &str) -> Op {
    op(key, Verb::Swap(value.as_bytes().to_vec()))
}

pub(crate) fn expire(key: &str, at: u64) -> Op {
    op(key, Verb::Expire(at))
}

pub(crate) fn make(key: &str, whole: &[u8]) -> Op {
    op(key, Verb::Make(whole.to_vec()))
}

pub(crate) fn change(key: &str, delta: &[u8]) -> Op {
    op(key, Verb::Change(delta.to_vec()))
}

pub(crate) fn unless_changed(key: &str, version: Timestamp, value: &str) -> Op {
    op(key, Verb::Watched(version, value.as_bytes().to_vec()))
}

pub(crate) fn value(text: &str) -> Reply {
    Reply::Value(Some(text.as_bytes().to_vec()))
}

pub(crate) const ABSENT: Reply = Reply::Value(None);

fn string(bytes: Vec<u8>, expire_at: Option<UnixMillis>) -> Change<'static> {
    Change::Set { bytes: Cow::Owned(bytes), kind: ValueKind::String, expire_at }
}

impl Command for Op {
    type Owned = Self;
    type Reply = Reply;

    fn visit_keys(&self, visit: &mut dyn FnMut(&[u8])) {
        visit(self.key());
    }

    fn key(&self) -> &[u8] {
        &self.key
    }

    fn access(&self) -> Access {
        match self.verb {
            Verb::Get | Verb::Version => Access::Read,
            Verb::Set(..) | Verb::Make(_) => Access::Write,
            _ => Access::Update,
        }
    }

    fn apply<'a>(&'a self, now: UnixMillis, current: Current<'a>) -> (Reply, Change<'a>) {
        let old = current.content;
        let expiry = old.and_then(|content| content.expire_at);
        match &self.verb {
            Verb::Get => (Reply::Value(old.map(|content| content.bytes.to_vec())), Change::Keep),
            Verb::Version => (Reply::Version(current.timestamp), Change::Keep),
            Verb::Set(_, Some(at)) if *at <= now.0 => (Reply::Ok, Change::Delete),
            Verb::Set(value, at) => (Reply::Ok, string(value.clone(), at.map(UnixMillis))),
            Verb::Incr => {
                let text = old.map_or(&b"0"[..], |content| content.bytes);
                // As Redis: "00" is not a number.
                let number: Option<i64> = std::str::from_utf8(text)
                    .ok()
                    .and_then(|text| text.parse().ok())
                    .filter(|number: &i64| number.to_string().as_bytes() == text);
                match number.and_then(|number| number.checked_add(1)) {
                    Some(sum) => (Reply::Int(sum), string(sum.to_string().into_bytes(), expiry)),
                    None => (Reply::NotANumber, Change::Keep),
                }
            }
            Verb::Append(tail) => {
                let mut bytes = old.map_or(Vec::new(), |content| content.bytes.to_vec());
                bytes.extend_from_slice(tail);
                (Reply::Int(bytes.len() as i64), string(bytes, expiry))
            }
            Verb::Del => match old {
                Some(_) => (Reply::Int(1), Change::Delete),
                None => (Reply::Int(0), Change::Keep),
            },
            Verb::SetNx(value) => match old {
                Some(_) => (Reply::Int(0), Change::Keep),
                None => (Reply::Int(1), string(value.clone(), None)),
            },
            Verb::Watched(version, _) if *version != current.timestamp => (ABSENT, Change::Keep),
            Verb::Swap(value) | Verb::Watched(_, value) => {
                let held = old.map(|content| content.bytes.to_vec());
                (Reply::Value(held), string(value.clone(), None))
            }
            Verb::Expire(at) => match old {
                Some(_) => (Reply::Int(1), Change::Expire(Some(UnixMillis(*at)))),
                None => (Reply::Int(0), Change::Keep),
            },
            Verb::Make(whole) => {
                let (bytes, kind) = (Cow::Borrowed(&whole[..]), ValueKind::Hash);
                (Reply::Ok, Change::Set { bytes, kind, expire_at: None })
            }
            Verb::Change(delta) => match (old, current.large) {
                (Some(Content { kind: ValueKind::Hash, .. }), Some(_)) => {
                    let bytes = Cow::Borrowed(&delta[..]);
                    (Reply::Int(1), Change::Delta { bytes, expire_at: expiry })
                }
                (Some(Content { bytes, kind: ValueKind::Hash, .. }), None) => {
                    let mut hash = Collection::unpack(ValueKind::Hash, bytes).expect("a hash");
                    hash.apply(delta, &mut Vec::new()).expect("a delta");
                    let mut bytes = Vec::new();
                    hash.pack(&mut bytes);
                    let (bytes, kind) = (Cow::Owned(bytes), ValueKind::Hash);
                    (Reply::Int(1), Change::Set { bytes, kind, expire_at: expiry })
                }
                _ => (Reply::Int(0), Change::Keep),
            },
        }
    }

    fn into_owned(self) -> Self {
        self
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let watched;
        let (number, bytes, at): (u8, &[u8], u64) = match &self.verb {
            Verb::Watched(version, value) => {
                watched = [&version.writer.0.to_le_bytes()[..], value].concat();
                (11, &watched, version.version)
            }
            Verb::Get => (0, &[], 0),
            Verb::Set(value, None) => (1, value, 0),
            Verb::Set(value, Some(at)) => (2, value, *at),
            Verb::Incr => (3, &[], 0),
            Verb::Append(value) => (4, value, 0),
            Verb::Del => (5, &[], 0),
            Verb::SetNx(value) => (6, value, 0),
            Verb::Expire(at) => (7, &[], *at),
            Verb::Swap(value) => (8, value, 0),
            Verb::Make(whole) => (9, whole, 0),
            Verb::Change(delta) => (10, delta, 0),
            Verb::Version => (12, &[], 0),
        };
        let mut writer = Writer(out);
        writer.u8(number);
        writer.u64(at);
        writer.bytes(&self.key);
        writer.rest(bytes);
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let number = reader.u8().ok()?;
        let at = reader.u64().ok()?;
        let key = reader.bytes().ok()?.to_vec();
        let rest = reader.rest().to_vec();
        let verb = match number {
            0 => Verb::Get,
            1 => Verb::Set(rest, None),
            2 => Verb::Set(rest, Some(at)),
            3 => Verb::Incr,
            4 => Verb::Append(rest),
            5 => Verb::Del,
            6 => Verb::SetNx(rest),
            7 => Verb::Expire(at),
            8 => Verb::Swap(rest),
            9 => Verb::Make(rest),
            10 => Verb::Change(rest),
            11 => {
                let (writer, value) = rest.split_first_chunk()?;
                let version = Timestamp::new(at, WriterId(u32::from_le_bytes(*writer)));
                Verb::Watched(version, value.to_vec())
            }
            12 => Verb::Version,
            _ => return None,
        };
        Some(Self { key, verb })
    }

    fn encode_reply(reply: &Reply, out: &mut Vec<u8>) {
        let mut writer = Writer(out);
        match reply {
            Reply::Ok => writer.u8(0),
            Reply::Value(None) => writer.u8(1),
            Reply::Value(Some(value)) => {
                writer.u8(2);
                writer.rest(value);
            }
            Reply::Int(number) => {
                writer.u8(3);
                writer.u64(*number as u64);
            }
            Reply::NotANumber => writer.u8(4),
            Reply::Version(version) => {
                writer.u8(5);
                writer.timestamp(*version);
            }
        }
    }

    fn decode_reply(bytes: &[u8]) -> Option<Reply> {
        let mut reader = Reader(bytes);
        Some(match reader.u8().ok()? {
            0 => Reply::Ok,
            1 => Reply::Value(None),
            2 => Reply::Value(Some(reader.rest().to_vec())),
            3 => Reply::Int(reader.u64().ok()? as i64),
            4 => Reply::NotANumber,
            5 => Reply::Version(reader.timestamp().ok()?),
            _ => return None,
        })
    }
}

#[test]
fn ops_and_replies_come_back() {
    let ops = [
        get("k"),
        version("k"),
        set("k", "v"),
        set_until("k", "v", 9),
        wipe("k"),
        incr("k"),
        append("k", "v"),
        del("k"),
        set_nx("k", ""),
        expire("k", 9),
        swap("k", "v"),
        make("k", b"v"),
        change("k", b"v"),
    ];
    for op in ops {
        let mut bytes = Vec::new();
        op.encode(&mut bytes);
        assert_eq!(Op::decode(&bytes), Some(op));
    }
    let version = Reply::Version(Timestamp::new(7, WriterId(9)));
    let replies =
        [Reply::Ok, ABSENT, value(""), value("v"), Reply::Int(-3), Reply::NotANumber, version];
    for reply in replies {
        let mut bytes = Vec::new();
        Op::encode_reply(&reply, &mut bytes);
        assert_eq!(Op::decode_reply(&bytes), Some(reply));
    }
}
