//! What is told of an op once it has taken effect: events of keys, as Redis's keyspace notifications
//! tell them, and messages that scripts publish.
//!
//! Such notes are a part of the answer ([`Reply::Noted`]). So they belong to one run of the op: those
//! of a run that doesn't count are gone with its answer. In a block each answer has its own.
//!
//! Events are noted for ops that are asked for it ([`crate::Op::noted`]). They follow from the command
//! and from what it wrote, at the place where it ran: only there is known which keys of a `DEL` were
//! there, or that an `LPOP` took the last element.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use quorate_machine::{Change, Current, Unordered, ValueKind, Workspace, mutant};
use quorate_types::{Publication, Topic, UnixMillis, limits};
use quorate_wire::{Malformed, Reader, Writer};

use crate::hash::expiring::holds_expired;
use crate::{Args, Call, Reply, hash};

/// Classes of events, and where they are told: the bits of `notify-keyspace-events`.
pub mod class {
    /// `K`: in the channel of the key.
    pub const KEYSPACE: u32 = 1 << 0;
    /// `E`: in the channel of the event.
    pub const KEYEVENT: u32 = 1 << 1;
    /// `g`: what every type has.
    pub const GENERIC: u32 = 1 << 2;
    /// `$`: strings.
    pub const STRING: u32 = 1 << 3;
    /// `l`: lists.
    pub const LIST: u32 = 1 << 4;
    /// `s`: sets.
    pub const SET: u32 = 1 << 5;
    /// `h`: hashes.
    pub const HASH: u32 = 1 << 6;
    /// `z`: sorted sets.
    pub const ZSET: u32 = 1 << 7;
    /// `x`: a value was deleted because it had expired.
    pub const EXPIRED: u32 = 1 << 8;
    /// `e`: a value was deleted for want of memory. Nothing is evicted here.
    pub const EVICTED: u32 = 1 << 9;
    /// `t`: streams.
    pub const STREAM: u32 = 1 << 10;
    /// `m`: a key that was read has no value.
    pub const KEY_MISS: u32 = 1 << 11;
    /// `d`: of modules. There are none here.
    pub const MODULE: u32 = 1 << 13;
    /// `n`: a key has a value that had none.
    pub const NEW: u32 = 1 << 14;
    /// `A`: all but the last two.
    pub const ALL: u32 =
        GENERIC | STRING | LIST | SET | HASH | ZSET | EXPIRED | EVICTED | STREAM | MODULE;
    /// Each with its letter, in the order in which `CONFIG GET` shows them.
    pub(super) const LETTERS: [(char, u32); 14] = [
        ('g', GENERIC),
        ('$', STRING),
        ('l', LIST),
        ('s', SET),
        ('h', HASH),
        ('z', ZSET),
        ('x', EXPIRED),
        ('e', EVICTED),
        ('t', STREAM),
        ('d', MODULE),
        ('n', NEW),
        ('K', KEYSPACE),
        ('E', KEYEVENT),
        ('m', KEY_MISS),
    ];
}

/// The classes that a value of `notify-keyspace-events` names; `None` if it has an unknown letter.
pub fn parse_classes(text: &[u8]) -> Option<u32> {
    text.iter().try_fold(0, |classes, &byte| match byte {
        b'A' => Some(classes | class::ALL),
        byte => {
            let known = class::LETTERS.iter().find(|(letter, _)| *letter == char::from(byte))?;
            Some(classes | known.1)
        }
    })
}

/// The classes in letters, as `CONFIG GET` shows them.
pub fn show_classes(classes: u32) -> String {
    let all = classes & class::ALL == class::ALL;
    let covered = if all { class::ALL | class::NEW } else { 0 };
    let letters = class::LETTERS.iter();
    let shown = letters.filter(|(_, bit)| classes & bit != 0 && covered & bit == 0);
    all.then_some('A').into_iter().chain(shown.map(|(letter, _)| *letter)).collect()
}

/// Something that happened to a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyEvent {
    /// The number of the keyspace.
    pub keyspace: u8,
    /// A bit of [`class`].
    pub class: u32,
    /// The event's name.
    pub name: Cow<'static, str>,
    /// The key.
    pub key: Box<[u8]>,
}

/// Something to be told once an op has taken effect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Note {
    /// Something happened to a key.
    Event(KeyEvent),
    /// A script has published a message.
    Message(Publication),
}

/// An answer with notes of what is to be told with it.
#[derive(Clone, PartialEq, Debug)]
pub struct Noted {
    /// The answer.
    pub reply: Reply<'static>,
    /// What is to be told, in order.
    pub notes: Vec<Note>,
}

const EVENT: u8 = 0;
const CHANNEL: u8 = 1;
const SHARD: u8 = 2;

impl Note {
    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        let texts = match self {
            Self::Event(event) => event.name.len() + event.key.len(),
            Self::Message(publication) => publication.bytes(),
        };
        size_of::<Self>() + texts
    }

    fn write(&self, writer: &mut Writer<'_>) {
        match self {
            Self::Event(event) => {
                writer.u8(EVENT);
                writer.u8(event.keyspace);
                writer.u32(event.class);
                writer.bytes(event.name.as_bytes());
                writer.bytes(&event.key);
            }
            Self::Message(Publication { topic, channel, message }) => {
                writer.u8(if *topic == Topic::Shard { SHARD } else { CHANNEL });
                writer.bytes(channel);
                writer.bytes(message);
            }
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let topic = match reader.u8()? {
            EVENT => {
                return Ok(Self::Event(KeyEvent {
                    keyspace: reader.u8()?,
                    class: reader.u32()?,
                    name: Cow::Owned(reader.string(EVENT_BYTES_MAX)?),
                    key: reader.bytes()?.into(),
                }));
            }
            CHANNEL => Topic::Channel,
            SHARD => Topic::Shard,
            _ => return Err(Malformed("unknown kind of note")),
        };
        let (channel, message) = (reader.bytes()?.into(), reader.bytes()?.into());
        Ok(Self::Message(Publication { topic, channel, message }))
    }
}

impl Noted {
    pub(crate) fn write(&self, writer: &mut Writer<'_>) {
        writer.u32(u32::try_from(self.notes.len()).expect("limits bound a transaction"));
        self.notes.iter().for_each(|note| note.write(writer));
        self.reply.write(writer);
    }

    /// The list grows with what is really there: a count can promise more than the input holds.
    pub(crate) fn read(reader: &mut Reader<'_>, depth: u32) -> Result<Self, Malformed> {
        let mut notes = Vec::new();
        for _ in 0..reader.u32()? {
            notes.push(Note::read(reader)?);
        }
        Ok(Self { reply: Reply::read(reader, depth + 1)?, notes })
    }
}

/// Which events of an op are to be noted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// The number of the op's keyspace.
    pub(crate) keyspace: u8,
    /// Bits of [`class`].
    pub(crate) classes: u32,
}

impl Wanted {
    /// No event.
    pub(crate) const NOTHING: Self = Self { keyspace: 0, classes: 0 };
}

/// Messages that one script publishes at most.
pub const MESSAGES_MAX: usize = limits::TXN_KEYS_MAX;
/// Bytes of the notes of one script at most: they travel with its answer.
pub const NOTES_BYTES_MAX: usize = limits::REPLY_BYTES_MAX;

/// The notes of a command that runs.
#[derive(Debug)]
pub struct Notes {
    wanted: Wanted,
    notes: Vec<Note>,
    messages: usize,
    bytes: usize,
}

impl Notes {
    pub(crate) const fn new(wanted: Wanted) -> Self {
        Self { wanted, notes: Vec::new(), messages: 0, bytes: 0 }
    }

    /// Whether events are noted.
    pub(crate) const fn has_events(&self) -> bool {
        self.wanted.classes != 0
    }

    /// Bytes that they take.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether there are more than a script may have. Those beyond are left out, and the script is to
    /// be undone.
    pub fn is_exceeded(&self) -> bool {
        let exceeded = self.messages > MESSAGES_MAX || self.bytes > NOTES_BYTES_MAX;
        exceeded && !mutant!("commands_messages_unbounded")
    }

    /// A script publishes a message.
    pub(crate) fn publish(&mut self, topic: Topic, channel: &[u8], message: &[u8]) {
        self.messages += 1;
        let (channel, message) = (channel.into(), message.into());
        self.add(Note::Message(Publication { topic, channel, message }));
    }

    fn add_event(&mut self, class: u32, name: Cow<'static, str>, key: &[u8]) {
        if self.wanted.classes & class != 0 {
            let keyspace = self.wanted.keyspace;
            self.add(Note::Event(KeyEvent { keyspace, class, name, key: key.into() }));
        }
    }

    fn add(&mut self, note: Note) {
        self.bytes += note.bytes();
        if !self.is_exceeded() {
            self.notes.push(note);
        }
    }

    /// The answer to the command, with its notes if there are any.
    pub(crate) fn attach(self, reply: Reply<'static>) -> Reply<'static> {
        match self.notes {
            notes if notes.is_empty() => reply,
            notes => Reply::Noted(Box::new(Noted { reply, notes })),
        }
    }
}

/// Longest name of an event.
const EVENT_BYTES_MAX: usize = 64;

/// What a command did to a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wrote {
    /// It has this value now, which expires or not.
    Value {
        expires: bool,
    },
    /// It expires at another time, or never.
    Expiry {
        expires: bool,
    },
    Nothing,
}

impl Wrote {
    fn of(change: &Change<'_>) -> Option<Self> {
        Some(match change {
            Change::Keep => return None,
            Change::Set { expire_at, .. } => Self::Value { expires: expire_at.is_some() },
            Change::Delta { .. } => Self::Value { expires: false },
            Change::Expire(expire_at) => Self::Expiry { expires: expire_at.is_some() },
            Change::Delete => Self::Nothing,
        })
    }
}

#[derive(Debug)]
struct Write {
    key: Box<[u8]>,
    wrote: Wrote,
    /// Whether it had no value before, if that is of interest.
    is_new: bool,
    /// Whether fields that had expired were dropped, if that is of interest.
    drops_expired: bool,
}

/// A workspace that remembers what a call writes.
pub(crate) struct Recorder<'w> {
    workspace: &'w mut dyn Workspace,
    classes: u32,
    now: UnixMillis,
    writes: Vec<Write>,
}

impl<'w> Recorder<'w> {
    pub(crate) fn new(workspace: &'w mut dyn Workspace, notes: &Notes, now: UnixMillis) -> Self {
        Self { workspace, classes: notes.wanted.classes, now, writes: Vec::new() }
    }

    /// The call has run.
    pub(crate) fn note(self, call: &Call<'_>, notes: &mut Notes) {
        note(call, self.now, &self.writes, notes);
    }
}

impl Workspace for Recorder<'_> {
    fn read(&mut self, key: &[u8]) -> Current<'_> {
        self.workspace.read(key)
    }

    fn write(&mut self, key: &[u8], change: Change<'_>) {
        if let Some(wrote) = Wrote::of(&change) {
            let is_new = self.classes & class::NEW != 0
                && matches!(wrote, Wrote::Value { .. })
                && self.workspace.read(key).content.is_none();
            let drops_expired = self.classes & class::HASH != 0
                && may_drop(&change)
                && holds_expired(self.workspace.read(key), self.now);
            self.writes.push(Write { key: key.into(), wrote, is_new, drops_expired });
        }
        self.workspace.write(key, change);
    }

    fn range(
        &mut self,
        from: &[u8],
        to: Option<&[u8]>,
        limit: usize,
        visit: &mut dyn FnMut(&[u8], Current<'_>),
    ) -> Result<(), Unordered> {
        self.workspace.range(from, to, limit, visit)
    }

    fn warm(&self, keys: &mut dyn Iterator<Item = &[u8]>) {
        self.workspace.warm(keys);
    }

    fn is_full(&self) -> bool {
        self.workspace.is_full()
    }
}

/// Whether a change may leave out fields of a hash that have expired.
fn may_drop(change: &Change<'_>) -> bool {
    matches!(change, Change::Set { kind: ValueKind::Hash, .. } | Change::Delete)
}

/// Notes that a call has changed its one key so, which held this before.
pub(crate) fn note_one(
    call: &Call<'_>,
    now: UnixMillis,
    change: &Change<'_>,
    held: Current<'_>,
    notes: &mut Notes,
) {
    if let (Some(wrote), Some(key)) = (Wrote::of(change), call.keys().next()) {
        let is_new = held.content.is_none() && matches!(wrote, Wrote::Value { .. });
        let drops_expired = may_drop(change) && holds_expired(held, now);
        let write = Write { key: key.into(), wrote, is_new, drops_expired };
        note(call, now, &[write], notes);
    }
}

/// Notes the events of what a call has written.
fn note(call: &Call<'_>, now: UnixMillis, writes: &[Write], notes: &mut Notes) {
    let mut add = |class: u32, event: Cow<'static, str>, key: &[u8]| {
        notes.add_event(class, event, key);
    };
    let wrote = |key: &[u8]| writes.iter().rfind(|write| *write.key == *key).map(|last| last.wrote);
    let name = call.spec.name;
    let (one, other) = (call.args.get(1), if call.args.len() > 2 { call.args.get(2) } else { b"" });
    match name {
        "rename" | "renamenx" if !writes.is_empty() => {
            note_new(writes, &mut add);
            add(class::GENERIC, "rename_from".into(), one);
            add(class::GENERIC, "rename_to".into(), other);
        }
        "lmove" | "rpoplpush" | "blmove" | "brpoplpush" if !writes.is_empty() => {
            let (pop, push) = move_events(name, call.args);
            note_new(writes, &mut add);
            add(class::LIST, push.into(), other);
            add(class::LIST, pop.into(), one);
            if wrote(one) == Some(Wrote::Nothing) {
                add(class::GENERIC, "del".into(), one);
            }
        }
        "smove" if !writes.is_empty() => {
            add(class::SET, "srem".into(), one);
            if wrote(one) == Some(Wrote::Nothing) {
                add(class::GENERIC, "del".into(), one);
            }
            note_new(writes, &mut add);
            if wrote(other).is_some() {
                add(class::SET, "sadd".into(), other);
            }
        }
        _ => {
            for write in writes {
                note_new(core::slice::from_ref(write), &mut add);
                note_write(call, now, write, &mut add);
            }
        }
    }
}

/// Notes the keys that had no value.
fn note_new(writes: &[Write], add: &mut impl FnMut(u32, Cow<'static, str>, &[u8])) {
    for write in writes.iter().filter(|write| write.is_new) {
        add(class::NEW, "new".into(), &write.key);
    }
}

/// The events of a move between lists: of its source and of its destination.
fn move_events(name: &str, args: Args<'_>) -> (&'static str, &'static str) {
    let is_left = |at: usize| args.len() > at && args.get(at).eq_ignore_ascii_case(b"left");
    let (from_left, to_left) = match name {
        "lmove" | "blmove" => (is_left(3), is_left(4)),
        _ => (false, true),
    };
    (if from_left { "lpop" } else { "rpop" }, if to_left { "lpush" } else { "rpush" })
}

/// Notes what a call has done to one of its keys.
fn note_write(
    call: &Call<'_>,
    now: UnixMillis,
    write: &Write,
    add: &mut impl FnMut(u32, Cow<'static, str>, &[u8]),
) {
    let key = &*write.key;
    let stores = matches!(call.spec.name, "bitop" | "sort") || call.spec.name.ends_with("store");
    let (class, event) = event(call);
    if class == class::HASH {
        return note_hash(call, now, write, add);
    }
    match write.wrote {
        // Redis tells of the consumer that these may make, and not of themselves.
        Wrote::Value { .. }
            if matches!(call.spec.name, "xreadgroup" | "xack" | "xclaim" | "xautoclaim") => {}
        Wrote::Expiry { expires } => {
            add(class::GENERIC, if expires { "expire" } else { "persist" }.into(), key);
        }
        Wrote::Nothing if class == class::GENERIC || class == class::STRING || stores => {
            add(class::GENERIC, "del".into(), key);
        }
        Wrote::Nothing => {
            add(class, event, key);
            add(class::GENERIC, "del".into(), key);
        }
        Wrote::Value { expires } => {
            let is_set = matches!(call.spec.name, "set" | "setex" | "psetex");
            let keeps =
                || call.args.iter().skip(3).any(|word| word.eq_ignore_ascii_case(b"keepttl"));
            add(class, event, key);
            if is_set && expires && !keeps() {
                add(class::GENERIC, "expire".into(), key);
            }
        }
    }
}

/// Notes what a call on a hash has done to it.
fn note_hash(
    call: &Call<'_>,
    now: UnixMillis,
    write: &Write,
    add: &mut impl FnMut(u32, Cow<'static, str>, &[u8]),
) {
    let key = &*write.key;
    let (event, second) = hash::expiry::events(call.spec.name, call.args, now);
    if write.drops_expired {
        add(class::HASH, "hexpired".into(), key);
    }
    add(class::HASH, event.into(), key);
    if let Some(event) = second {
        add(class::HASH, event.into(), key);
    }
    if write.wrote == Wrote::Nothing {
        add(class::GENERIC, "del".into(), key);
    }
}

/// The class and the name of the event of a call that gives a key a value, or takes one.
fn event(call: &Call<'_>) -> (u32, Cow<'static, str>) {
    let has = |word: &[u8]| call.args.iter().skip(2).any(|arg| arg.eq_ignore_ascii_case(word));
    let name = call.spec.name;
    let event = match name {
        "setex" | "psetex" | "setnx" | "getset" | "mset" | "msetnx" | "bitop" => "set",
        "incr" | "decr" | "decrby" => "incrby",
        "bitfield" => "setbit",
        // A hash with expiring fields is written anew.
        "pexpire" | "expireat" | "pexpireat" => "expire",
        "lpushx" => "lpush",
        "rpushx" => "rpush",
        "blpop" => "lpop",
        "brpop" => "rpop",
        "lmpop" | "blmpop" if has(b"left") => "lpop",
        "lmpop" | "blmpop" => "rpop",
        "zadd" if has(b"incr") => "zincr",
        "zincrby" => "zincr",
        "geoadd" => "zadd",
        "bzpopmin" => "zpopmin",
        "bzpopmax" => "zpopmax",
        "zmpop" | "bzmpop" if has(b"min") => "zpopmin",
        "zmpop" | "bzmpop" => "zpopmax",
        "georadius" | "georadiusbymember" => "georadiusstore",
        "pfmerge" | "pfdebug" => "pfadd",
        "copy" => "copy_to",
        "sort" => "sortstore",
        name if name.contains('|') => return (class_of(call), name.replace('|', "-").into()),
        name => name,
    };
    let class = if name == "sort" { class::LIST } else { class_of(call) };
    (class, event.into())
}

/// The class of a command's events, by the group of commands that it belongs to.
fn class_of(call: &Call<'_>) -> u32 {
    match call.spec.docs.group {
        "string" | "bitmap" | "hyperloglog" => class::STRING,
        "list" => class::LIST,
        "set" => class::SET,
        "hash" => class::HASH,
        "sorted-set" | "geo" => class::ZSET,
        "stream" => class::STREAM,
        _ => class::GENERIC,
    }
}
