//! The smallest thing that commands can run on, and answers in a form to compare and to read.

use quorate_collections::packed::{EXPIRING, HEADER_BYTES, Items};
use quorate_commands::{
    Call, MapWorkspace, OwnedArgs, Reply, Split, format_decimal, format_double, resolve,
};
use quorate_machine::{Access, Change, Collection, Command, Current, ValueKind, Verdict};
use quorate_types::{Timestamp, UnixMillis, WriterId};

/// A command, its name first.
pub(crate) type Words = Vec<Vec<u8>>;

/// An answer as RESP2 carries it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    Status(String),
    Error(String),
    Int(i64),
    Bulk(Vec<u8>),
    Null,
    NullArray,
    Array(Vec<Answer>),
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Status(text) => write!(f, "+{text}"),
            Self::Error(text) => write!(f, "-{text}"),
            Self::Int(number) => write!(f, ":{number}"),
            Self::Bulk(bytes) => write!(f, "\"{}\"", bytes.escape_ascii()),
            Self::Null => write!(f, "null"),
            Self::NullArray => write!(f, "null array"),
            Self::Array(answers) => f.debug_list().entries(answers).finish(),
        }
    }
}

impl From<Reply<'_>> for Answer {
    fn from(reply: Reply<'_>) -> Self {
        let all = |replies: Vec<Reply<'_>>| replies.into_iter().map(Self::from).collect();
        match reply {
            Reply::Ok => Self::Status("OK".into()),
            Reply::Status(text) => Self::Status(text.into_owned()),
            Reply::Int(number) => Self::Int(number),
            Reply::Bulk(bytes) => Self::Bulk(bytes.into_owned()),
            Reply::Null => Self::Null,
            Reply::NullArray => Self::NullArray,
            Reply::Array(replies) | Reply::Set(replies) => Self::Array(all(replies)),
            Reply::Map(pairs) | Reply::Pairs(pairs) => Self::Array(
                pairs.into_iter().flat_map(|(key, value)| [key.into(), value.into()]).collect(),
            ),
            Reply::Double(number) => Self::Bulk(format_double(number).into()),
            Reply::Decimal(number) => Self::Bulk(format_decimal(number).into()),
            Reply::Keyed(pairs) => Self::Array(
                pairs
                    .into_iter()
                    .map(|(key, value)| Self::Array(vec![key.into(), value.into()]))
                    .collect(),
            ),
            Reply::Error(text) => Self::Error(text.into_owned()),
            other => panic!("no command here answers {other:?}"),
        }
    }
}

/// Keys in memory and the commands on them, each a transaction. What a command on one key does is
/// compared with what it does as an operation of an engine that changes one key at a time, and with
/// what it does where all collections are large.
pub(crate) struct Store {
    pub(crate) keys: MapWorkspace,
    /// The same keys.
    pub(crate) large: MapWorkspace,
    pub(crate) now: UnixMillis,
    pub(crate) version: u64,
}

impl Default for Store {
    fn default() -> Self {
        Self {
            keys: MapWorkspace::default(),
            large: MapWorkspace::new(Some(0)),
            now: UnixMillis::default(),
            version: 0,
        }
    }
}

impl Store {
    pub(crate) fn current(&self, key: &[u8]) -> Current<'_> {
        self.keys.get(self.now, key)
    }

    pub(crate) fn run(&mut self, words: &Words) -> Answer {
        let args = OwnedArgs::new(words.iter().map(Vec::as_slice));
        let args = args.borrow();
        match resolve(args) {
            Ok(spec) => self.call(Call::new(spec, args)).into(),
            Err(error) => error.into(),
        }
    }

    /// Runs a transaction of calls of these commands. Where all collections are large it answers and
    /// leaves the same, as far as that has an order and is not drawn at random.
    pub(crate) fn transact<T>(&mut self, names: &[&str], transaction: &T) -> Verdict<Reply<'static>>
    where
        T: Command<Reply = Reply<'static>>,
    {
        self.version += 1;
        let timestamp = Timestamp::new(self.version, WriterId(1));
        let verdict = self.keys.run(self.now, timestamp, transaction);
        let large = self.large.run(self.now, timestamp, transaction);
        if names.iter().any(|name| ["spop", "srandmember", "hrandfield", "dump"].contains(name)) {
            self.large = self.keys.with_large(0);
            return verdict;
        }
        // Where the parts of a scan end is each form's own affair.
        if names.iter().any(|name| ["hscan", "sscan", "zscan"].contains(name)) {
            return verdict;
        }
        let unordered = ["hkeys", "hvals", "hgetall", "smembers"];
        let is_ordered = !names.iter().any(|name| unordered.contains(name));
        match (&verdict, &large) {
            (Verdict::Commit(reply), Verdict::Commit(other))
            | (Verdict::Abandon(reply), Verdict::Abandon(other)) => {
                let (reply, other) = (canonical(reply, is_ordered), canonical(other, is_ordered));
                assert_eq!(reply, other, "large, another answer of {names:?}");
            }
            _ => panic!("large, another verdict of {names:?}"),
        }
        transaction.visit_keys(&mut |key| {
            let (current, large) = (self.keys.get(self.now, key), self.large.get(self.now, key));
            assert_eq!(large.timestamp, current.timestamp, "large, changed otherwise: {names:?}");
            assert_eq!(unpacked(large), unpacked(current), "large, another value: {names:?}");
        });
        verdict
    }

    /// Runs a call and checks what its access promises.
    fn call(&mut self, call: Call<'_>) -> Reply<'static> {
        let shown = show(&call.args.iter().map(<[u8]>::to_vec).collect());
        let before: Vec<_> = call.keys().map(|key| self.current(key).timestamp).collect();
        let alone = self.call_on_one_key(call, &shown);
        let Verdict::Commit(reply) = self.transact(&[call.spec.name], &call) else {
            panic!("abandoned: {shown}")
        };
        if let Err(error) = call.validate() {
            assert_eq!(reply, error, "validated otherwise: {shown}");
        }
        let after = call.keys().map(|key| self.current(key).timestamp);
        assert!(
            call.updates() && !reply.is_error() || after.eq(before),
            "a read or an error changed: {shown}",
        );
        match alone {
            Some((other, content)) => {
                assert_eq!(reply, other, "one key, another answer: {shown}");
                let key = call.keys().next().expect("it has one");
                assert_eq!(value(self.current(key)), content, "one key, another value: {shown}");
            }
            None if !reply.is_error() && call.spec.name == "mset" => {
                assert_eq!(self.keys.read_set().next(), None, "a blind write read: {shown}");
            }
            None => {}
        }
        reply
    }

    /// What a call answers as an operation on one key, and what it leaves there; `None` if the
    /// call is no such operation.
    fn call_on_one_key(&self, call: Call<'_>, shown: &str) -> Option<(Reply<'static>, Value)> {
        let key = call.keys().next()?;
        let current = self.current(key);
        if call.single_key().is_err() {
            if call.spec.split == Split::None {
                let (reply, change) = call.execute(self.now, current);
                assert!(reply.is_error(), "changed several keys: {shown}");
                assert_eq!((call.access(), change), (Access::Read, Change::Keep), "{shown}");
            }
            return None;
        }
        let (reply, change) = call.execute(self.now, current);
        match call.access() {
            Access::Read => assert_eq!(change, Change::Keep, "a read changed: {shown}"),
            Access::Write => {
                assert!(!matches!(change, Change::Keep | Change::Expire(_)), "kept: {shown}");
                let absent = Current::ABSENT;
                assert_eq!(call.execute(self.now, absent), (reply.clone(), change.clone()));
            }
            Access::Update => {}
        }
        Some((reply.into_owned(), changed(value(current), change)))
    }
}

/// An answer whose parts, where they have no order, are in one.
fn canonical(reply: &Reply<'static>, is_ordered: bool) -> String {
    let all = |replies: &[Reply<'static>]| -> Vec<String> {
        replies.iter().map(|reply| canonical(reply, is_ordered)).collect()
    };
    let sorted = |mut texts: Vec<String>, is_ordered: bool| {
        if !is_ordered {
            texts.sort();
        }
        format!("[{}]", texts.join(" "))
    };
    match reply {
        Reply::Set(members) => sorted(all(members), false),
        Reply::Array(replies) => sorted(all(replies), is_ordered),
        Reply::Map(pairs) => sorted(pairs.iter().map(|pair| format!("{pair:?}")).collect(), false),
        other => format!("{other:?}"),
    }
}

/// A value in a form that is the same whether it is packed or large.
fn unpacked(current: Current<'_>) -> Option<(ValueKind, Vec<u8>, Option<UnixMillis>)> {
    let content = current.content?;
    let unpacked = Collection::unpack(content.kind, content.bytes).ok();
    let bytes = match current.large.or(unpacked.as_ref()) {
        Some(large) => [&[large.form()], &large.sorted()[..]].concat(),
        None if content.kind == ValueKind::Hash && content.bytes[0] & EXPIRING != 0 => {
            in_order(content.bytes)
        }
        None => content.bytes.to_vec(),
    };
    Some((content.kind, bytes, content.expire_at))
}

/// A hash with expiring fields with the fields in the order of their names: each form keeps its own.
fn in_order(bytes: &[u8]) -> Vec<u8> {
    let Some((head, mut rest)) = bytes.split_at_checked(HEADER_BYTES + 8) else {
        return bytes.to_vec();
    };
    let mut fields = Vec::new();
    while let Some((expiry, behind)) = rest.split_first_chunk::<8>() {
        let mut items = Items { rest: behind };
        fields.push((items.next(), items.next(), *expiry));
        rest = items.rest;
    }
    fields.sort();
    [head, format!("{fields:?}").as_bytes()].concat()
}

/// Bytes and expiry.
pub(crate) type Value = Option<(Vec<u8>, Option<UnixMillis>)>;

/// What a key holds.
pub(crate) fn value(current: Current<'_>) -> Value {
    current.content.map(|content| (content.bytes.to_vec(), content.expire_at))
}

/// What a key holds after a change.
pub(crate) fn changed(value: Value, change: Change<'_>) -> Value {
    match change {
        Change::Keep => value,
        Change::Set { bytes, expire_at, .. } => Some((bytes.into_owned(), expire_at)),
        Change::Expire(expire_at) => Some((value.expect("only a value can expire").0, expire_at)),
        Change::Delete => None,
        Change::Delta { .. } => unreachable!("values are packed here"),
    }
}

/// A command for a failure message.
pub(crate) fn show(words: &Words) -> String {
    let shown = words.iter().map(|word| match word.len() {
        0..100 => word.escape_ascii().to_string(),
        length => format!("<{length} bytes>"),
    });
    shown.map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(" ")
}

/// Commands and the answers of a Redis 7.0.15.
pub(crate) const EXAMPLES: &str = include_str!("../examples.txt");

/// The commands and answers of a text in which each command follows `> ` and its answer the next
/// line. Words are separated by spaces, `""` is an empty one.
pub(crate) fn examples(text: &'static str) -> Vec<(Words, &'static str)> {
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let (pairs, rest) = lines.as_chunks();
    assert!(rest.is_empty(), "every command has an answer");
    let word = |word: &str| if word == "\"\"" { vec![] } else { word.as_bytes().to_vec() };
    let pair = |[command, answer]: &[&'static str; 2]| {
        let command = command.strip_prefix("> ").expect("a command follows `> `");
        (command.split(' ').map(word).collect(), *answer)
    };
    pairs.iter().map(pair).collect()
}
