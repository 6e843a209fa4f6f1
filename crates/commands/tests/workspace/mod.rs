//! The smallest thing that commands can run on, and answers in a form to compare and to read.

use std::collections::BTreeMap;

use quorate_commands::{Call, OwnedArgs, Reply, Split, resolve};
use quorate_machine::{Access, Change, Content, Current, Operation, ValueKind};
use quorate_types::{Timestamp, UnixMillis};

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
            Reply::Map(pairs) => Self::Array(
                pairs.into_iter().flat_map(|(key, value)| [key.into(), value.into()]).collect(),
            ),
            Reply::Error(text) => Self::Error(text.into_owned()),
            other => panic!("no command here answers {other:?}"),
        }
    }
}

/// Bytes and expiry.
pub(crate) type Value = (Vec<u8>, Option<UnixMillis>);

/// Keys in memory and the commands on them.
#[derive(Default)]
pub(crate) struct Workspace {
    pub(crate) values: BTreeMap<Vec<u8>, Value>,
    pub(crate) now: UnixMillis,
}

impl Workspace {
    pub(crate) fn current(&self, key: &[u8]) -> Current<'_> {
        let content = self.values.get(key).map(|(bytes, expire_at)| Content {
            bytes,
            kind: ValueKind::String,
            expire_at: *expire_at,
        });
        let content = content.filter(|content| !content.is_expired(self.now));
        Current { content, timestamp: Timestamp::ZERO }
    }

    pub(crate) fn change(&mut self, key: &[u8], change: Change<'_>) {
        match change {
            Change::Keep => {}
            Change::Set { bytes, expire_at, .. } => {
                self.values.insert(key.to_vec(), (bytes.into_owned(), expire_at));
            }
            Change::Expire(expire_at) => {
                self.values.get_mut(key).expect("only a value can expire").1 = expire_at;
            }
            Change::Delete => {
                self.values.remove(key);
            }
        }
    }

    pub(crate) fn run(&mut self, words: &Words) -> Answer {
        let args = OwnedArgs::new(words.iter().map(Vec::as_slice));
        let args = args.borrow();
        let spec = match resolve(args) {
            Ok(spec) => spec,
            Err(error) => return error.into(),
        };
        let call = Call { spec, args };
        if spec.split == Split::None || call.keys().count() == 1 {
            return self.call(call).into();
        }
        let parts: Vec<_> = (0..call.keys().count()).map(|index| call.split(index)).collect();
        let answers = parts.iter().map(|part| self.call(part.call()));
        if spec.split == Split::Array {
            return Answer::Array(answers.map(Answer::from).collect());
        }
        let counts = answers.map(|reply| match reply {
            Reply::Int(count) => count,
            other => panic!("a part of a sum is a number, not {other:?}"),
        });
        Answer::Int(counts.sum())
    }

    /// Runs a call and checks what its access promises.
    fn call(&mut self, call: Call<'_>) -> Reply<'static> {
        let Some(key) = call.keys().next() else {
            return call.answer_alone(self.now).expect("a command without key").into_owned();
        };
        let validated = call.validate();
        let (reply, change) = call.execute(self.now, self.current(key));
        let shown = || show(&call.args.iter().map(<[u8]>::to_vec).collect());
        if let Err(error) = validated {
            assert_eq!(reply, error, "validated otherwise: {}", shown());
        }
        match call.access() {
            Access::Read => assert_eq!(change, Change::Keep, "a read changed: {}", shown()),
            Access::Write => {
                assert!(!matches!(change, Change::Keep | Change::Expire(_)), "kept: {}", shown());
                let absent = Current { content: None, timestamp: Timestamp::ZERO };
                assert_eq!(call.execute(self.now, absent), (reply.clone(), change.clone()));
            }
            Access::Update => {}
        }
        let (reply, change) = (reply.into_owned(), owned(change));
        self.change(key, change);
        reply
    }
}

/// A copy that borrows nothing.
pub(crate) fn owned(change: Change<'_>) -> Change<'static> {
    match change {
        Change::Set { bytes, kind, expire_at } => {
            Change::Set { bytes: bytes.into_owned().into(), kind, expire_at }
        }
        Change::Expire(expire_at) => Change::Expire(expire_at),
        Change::Delete => Change::Delete,
        Change::Keep => Change::Keep,
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
