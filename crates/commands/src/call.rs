//! A command with its arguments.

use alloc::format;
use alloc::vec;
use alloc::vec::Vec;

use quorate_machine::{Access, Change, Current, Operation};
use quorate_types::{Timestamp, UnixMillis};
use quorate_wire::{Malformed, Reader, Writer};

use crate::resolve::arity_error;
use crate::spec::{AccessRule, ConnectionCommand, Run, ServerCommand, Spec, Split};
use crate::{Args, CROSSKEY, Op, OwnedArgs, Reply, Span, describe, help, table};

/// A command with its arguments, whose number is one that the command takes
/// ([`crate::resolve`] checks it).
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The command.
    pub spec: &'static Spec,
    /// Its arguments, its name (and the subcommand's) included.
    pub args: Args<'a>,
}

impl<'a> Call<'a> {
    /// Runs the command on what its key holds; pure. A command without a key answers what
    /// [`Call::answer_alone`] does, or an error if only a connection or a node can answer.
    #[inline]
    pub fn execute(self, now: UnixMillis, current: Current<'a>) -> (Reply<'a>, Change<'a>) {
        debug_assert!(self.spec.takes(self.args.len()), "{} with a wrong arity", self.spec.name);
        match self.spec.run {
            Run::Key(run) => run(self.args, now, current),
            _ => (self.answer_alone(now).unwrap_or(NOT_HERE), Change::Keep),
        }
    }

    /// The answer of a command that needs neither a key nor anything else: `PING`, `ECHO`, `TIME`
    /// (with the resolution of `now`), `COMMAND` and the `HELP` subcommands.
    pub fn answer_alone(self, now: UnixMillis) -> Option<Reply<'a>> {
        Some(match self.spec.run {
            Run::Help => help(self.spec),
            Run::Connection(ConnectionCommand::Ping) => match self.args.len() {
                1 => Reply::status("PONG"),
                2 => Reply::Bulk(self.args.get(1).into()),
                _ => arity_error(self.spec),
            },
            Run::Connection(ConnectionCommand::Echo) => Reply::Bulk(self.args.get(1).into()),
            Run::Server(ServerCommand::Time) => {
                let part = |number: u64| Reply::Bulk(format!("{number}").into_bytes().into());
                Reply::Array(vec![part(now.0 / 1000), part(now.0 % 1000 * 1000)])
            }
            Run::Server(which) => return describe::answer(which, self.args),
            _ => return None,
        })
    }

    /// The error that the call will answer whatever its key holds and whenever it runs, so that it
    /// needn't be submitted. Not every such error is found.
    pub fn validate(self) -> Result<(), Reply<'static>> {
        if !self.spec.takes(self.args.len()) {
            return Err(arity_error(self.spec));
        }
        // `INCRBYFLOAT` alone looks at the value before its argument.
        if !matches!(self.spec.run, Run::Key(_)) || self.spec.name == "incrbyfloat" {
            return Ok(());
        }
        let absent = Current { content: None, timestamp: Timestamp::ZERO };
        match self.execute(UnixMillis(0), absent).0 {
            error @ Reply::Error(_) => Err(error.into_owned()),
            _ => Ok(()),
        }
    }

    /// Its keys, in order, repeated ones repeatedly.
    pub fn keys(self) -> Keys<'a> {
        let positions = self.spec.keys;
        let count = self.args.len() as i64;
        let last = i64::from(positions.last);
        let last = if last < 0 { count + last } else { last };
        Keys {
            args: self.args,
            next: i64::from(positions.first),
            last: if positions.first == 0 { -1 } else { last.min(count - 1) },
            step: i64::from(positions.step).max(1),
        }
    }

    /// The one key it touches, none if it has no keys, or [`CROSSKEY`] if there are several.
    pub fn single_key(self) -> Result<Option<&'a [u8]>, Reply<'static>> {
        let mut keys = self.keys();
        let first = keys.next();
        if keys.all(|key| Some(key) == first) { Ok(first) } else { Err(Reply::error(CROSSKEY)) }
    }

    /// The call on its key number `index` alone, for a command whose [`Spec::split`] is not
    /// [`Split::None`]. A part of `MGET` is a `GET`, so the array's elements are the parts'
    /// answers.
    ///
    /// # Panics
    /// If there are not that many keys.
    pub fn split(self, index: usize) -> Part<'a> {
        debug_assert!(self.spec.split != Split::None, "{} doesn't come apart", self.spec.name);
        let at = self.spec.keys.first as usize + index * self.spec.keys.step as usize;
        let spec = match self.spec.split {
            Split::Array => table::lookup(b"get").expect("GET is in the table"),
            _ => self.spec,
        };
        Part { spec, buffer: self.args.buffer, spans: [self.args.spans[0], self.args.spans[at]] }
    }

    /// A copy that borrows nothing.
    pub fn to_owned_call(self) -> OwnedCall {
        OwnedCall { spec: self.spec, args: self.args.to_owned() }
    }

    pub(crate) fn write(self, writer: &mut Writer<'_>) {
        writer.u16(self.spec.id);
        self.args.encode(writer);
    }
}

/// The answer inside a transaction to what only a connection or a node can do.
const NOT_HERE: Reply<'static> = Reply::error("ERR Command not allowed inside a transaction");

/// The keys of a call.
#[derive(Clone, Debug)]
pub struct Keys<'a> {
    args: Args<'a>,
    next: i64,
    last: i64,
    step: i64,
}

impl<'a> Iterator for Keys<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.next > self.last {
            return None;
        }
        let key = self.args.get(self.next as usize);
        self.next += self.step;
        Some(key)
    }
}

/// One key's part of a call over several keys.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    spec: &'static Spec,
    buffer: &'a [u8],
    spans: [Span; 2],
}

impl Part<'_> {
    /// The call.
    #[inline]
    pub fn call(&self) -> Call<'_> {
        Call { spec: self.spec, args: Args { buffer: self.buffer, spans: &self.spans } }
    }
}

/// A command with arguments of its own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnedCall {
    spec: &'static Spec,
    args: OwnedArgs,
}

impl OwnedCall {
    /// Resolves and copies a command, its name first; the error is what Redis answers.
    pub fn new<'a>(arguments: impl IntoIterator<Item = &'a [u8]>) -> Result<Self, Reply<'static>> {
        let args = OwnedArgs::new(arguments);
        let spec = crate::resolve(args.borrow())?;
        Ok(Self { spec, args })
    }

    /// The call.
    #[inline]
    pub fn call(&self) -> Call<'_> {
        Call { spec: self.spec, args: self.args.borrow() }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let spec = table::by_id(reader.u16()?).ok_or(Malformed("unknown command"))?;
        let args = OwnedArgs::decode(reader)?;
        if !spec.takes(args.borrow().len()) {
            return Err(Malformed("wrong number of arguments"));
        }
        Ok(Self { spec, args })
    }
}

impl Operation for Call<'_> {
    type Owned = Op;
    type Reply = Reply<'static>;

    /// # Panics
    /// If the command has no key: it is not an operation then.
    #[inline]
    fn key(&self) -> &[u8] {
        assert!(self.spec.has_keys(), "{} has no key", self.spec.name);
        self.args.get(self.spec.keys.first as usize)
    }

    #[inline]
    fn access(&self) -> Access {
        match self.spec.access {
            AccessRule::Read => Access::Read,
            AccessRule::Update => Access::Update,
            AccessRule::OfCall(access) => access(self.args),
        }
    }

    fn apply<'a>(&'a self, now: UnixMillis, current: Current<'a>) -> (Reply<'static>, Change<'a>) {
        let (reply, change) = self.execute(now, current);
        (reply.into_owned(), change)
    }

    fn to_owned(&self) -> Op {
        Op::Call(self.to_owned_call())
    }

    fn encode(&self, out: &mut Vec<u8>) {
        Op::encode_call(*self, out);
    }

    fn decode(bytes: &[u8]) -> Option<Op> {
        Op::decode(bytes)
    }

    fn encode_reply(reply: &Reply<'static>, out: &mut Vec<u8>) {
        reply.encode(out);
    }

    fn decode_reply(bytes: &[u8]) -> Option<Reply<'static>> {
        Reply::decode(bytes)
    }
}
