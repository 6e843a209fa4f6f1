//! A command with its arguments.

use alloc::format;
use alloc::vec;
use alloc::vec::Vec;

use quorate_machine::{
    Access, Change, Command, Content, Current, OneKey, ValueKind, Verdict, WARM_TOGETHER,
    Workspace, mutant,
};
use quorate_types::{UnixMillis, hash_key};
use quorate_wire::{Malformed, Reader, Writer};

use crate::meter::{Metered, TOO_MUCH};
use crate::notes::{Notes, Recorder, Wanted};
use crate::number::parse_integer;
use crate::options::is_word;
use crate::owned_args::mix;
use crate::refused::refusal;
use crate::resolve::arity_error;
use crate::room::Room;
use crate::script::SCRIPT_DIGEST_BYTES;
use crate::spec::{
    AccessRule, ConnectionCommand, KeySpec, Keyed, KeysBegin, KeysFind, KeysFunction, Run,
    ServerCommand, Spec, Split,
};
use crate::{Args, CROSSKEY, OwnedArgs, Reply, Span, describe, help, large, range, sort, table};

/// A command with its arguments, whose number is one that the command takes
/// ([`crate::resolve`] checks it).
///
/// What it does to its key is found once, when it is made.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The command.
    pub spec: &'static Spec,
    /// Its arguments, its name (and the subcommand's) included.
    pub args: Args<'a>,
    pub(crate) access: Access,
}

impl<'a> Call<'a> {
    /// The call of a command that takes so many arguments.
    #[inline]
    pub fn new(spec: &'static Spec, args: Args<'a>) -> Self {
        let access = match spec.access {
            AccessRule::Read => Access::Read,
            AccessRule::Update => Access::Update,
            AccessRule::OfCall(access) => access(args),
        };
        Self { spec, args, access }
    }

    /// Runs the command on what its one key holds; pure. A command without a key answers what
    /// [`Call::answer_alone`] does, or an error if only a connection or a node can answer; one that
    /// changes several keys at once answers [`CROSSKEY`].
    #[inline]
    pub fn execute(self, now: UnixMillis, current: Current<'a>) -> (Reply<'a>, Change<'a>) {
        debug_assert!(self.spec.takes(self.args.len()), "{} with a wrong arity", self.spec.name);
        match self.spec.run {
            Run::Key(Keyed::One(run)) if self.takes_as_is(&current) => run(self.args, now, current),
            Run::Key(Keyed::One(run)) => large::run_packed(run, self.args, now, current),
            Run::Key(Keyed::Several(run)) => self.execute_on_one_key(run, now, current),
            Run::Key(Keyed::Script) => self.run_script_on_one_key(now, current, Wanted::NOTHING),
            _ => (self.answer_alone(now).unwrap_or(NOT_HERE), Change::Keep),
        }
    }

    /// Runs a command over several keys, which must all be the same key. They are compared only if the
    /// call has no other error.
    fn execute_on_one_key(
        self,
        run: KeysFunction,
        now: UnixMillis,
        current: Current<'a>,
    ) -> (Reply<'a>, Change<'a>) {
        let mut key = OneKey::new(current);
        let mut metered = Metered::new(&mut key);
        let reply = self.run_over_keys(run, now, &mut metered);
        let is_exceeded = metered.is_exceeded();
        match self.single_key() {
            Ok(_) if is_exceeded => (TOO_MUCH, Change::Keep),
            Err(crosskey) if key.was_touched() => (crosskey, Change::Keep),
            _ => (reply, key.finish()),
        }
    }

    fn run_over_keys(
        self,
        run: KeysFunction,
        now: UnixMillis,
        workspace: &mut dyn Workspace,
    ) -> Reply<'static> {
        if self.spec.takes_packed {
            large::run_all_packed(run, self.args, now, workspace)
        } else {
            run(self.args, now, workspace)
        }
    }

    /// Whether its function takes what the key holds in this form.
    #[inline]
    fn takes_as_is(&self, current: &Current<'_>) -> bool {
        current.large.is_none() || !self.spec.takes_packed
    }

    /// Runs the command by itself, as [`Call::run_over`] does, and adds the notes of it to its answer.
    #[inline]
    pub(crate) fn run_noting<W: Workspace>(
        self,
        now: UnixMillis,
        workspace: &mut W,
        wanted: Wanted,
    ) -> Verdict<Reply<'static>> {
        let mut metered = Metered::new(workspace);
        let mut notes = Notes::new(wanted);
        match self.run_over(now, &mut metered, &mut Room::new(), &mut notes) {
            _ if metered.is_exceeded() => Verdict::Abandon(TOO_MUCH),
            Verdict::Commit(reply) => Verdict::Commit(notes.attach(reply)),
            Verdict::Abandon(reply) if mutant!("commands_undone_script_publishes") => {
                Verdict::Abandon(notes.attach(reply))
            }
            abandoned => abandoned,
        }
    }

    /// Runs the command over a workspace that has all its keys. Reads no key that it writes
    /// blindly.
    #[inline]
    pub(crate) fn run_over<W: Workspace>(
        self,
        now: UnixMillis,
        workspace: &mut W,
        room: &mut Room,
        notes: &mut Notes,
    ) -> Verdict<Reply<'static>> {
        if self.is_script() {
            return self.run_script(now, workspace, room, notes);
        }
        if !notes.has_events() {
            return Verdict::Commit(self.run_plain(now, workspace, room));
        }
        let mut recorder = Recorder::new(workspace, notes, now);
        let reply = self.run_plain(now, &mut recorder, room);
        recorder.note(&self, notes);
        Verdict::Commit(reply)
    }

    #[inline]
    fn run_plain<W: Workspace>(
        self,
        now: UnixMillis,
        workspace: &mut W,
        room: &mut Room,
    ) -> Reply<'static> {
        match (self.spec.run, self.spec.split) {
            (Run::Key(Keyed::Several(run)), _) => {
                room.hold(self.run_over_keys(run, now, workspace))
            }
            (Run::Key(_), Split::None) => self.run_on_key(now, workspace, room),
            (Run::Key(_), Split::Array) => {
                let count = self.keys().count();
                let mut answers = Vec::with_capacity(count);
                for index in 0..count {
                    self.warm(index, count, workspace);
                    let part = self.split(index);
                    let answer = part.call().run_on_key(now, workspace, room);
                    answers.push(answer.into_element());
                    if room.is_exceeded() {
                        return answers.pop().expect("the answer that had no room");
                    }
                }
                Reply::Array(answers)
            }
            (Run::Key(_), Split::Sum) => {
                let count = self.keys().count();
                let mut part = |index| {
                    self.warm(index, count, workspace);
                    self.split(index).call().run_on_key(now, workspace, &mut Room::new())
                };
                let counts = (0..count).map(|index| match part(index) {
                    Reply::Int(count) => count,
                    other => unreachable!("a part of a sum is a number, not {other:?}"),
                });
                Reply::Int(counts.sum())
            }
            _ => room.hold(self.answer_alone(now).unwrap_or(NOT_HERE)),
        }
    }

    /// Has the next keys of several fetched, when the last ones that were have been used.
    fn warm<W: Workspace>(self, index: usize, count: usize, workspace: &W) {
        if count > 1 && index.is_multiple_of(WARM_TOGETHER) {
            let mut keys = self.keys();
            keys.next += keys.step * index as i64;
            workspace.warm(&mut keys.take(WARM_TOGETHER));
        }
    }

    /// Runs a command over its one key.
    #[inline]
    fn run_on_key<W: Workspace>(
        self,
        now: UnixMillis,
        workspace: &mut W,
        room: &mut Room,
    ) -> Reply<'static> {
        let key = self.key();
        if self.access() == Access::Write {
            let (reply, change) = self.execute(now, Current::ABSENT);
            workspace.write(key, change);
            return room.hold(reply);
        }
        let (reply, change) = self.execute(now, workspace.read(key));
        if change == Change::Keep {
            return room.hold(reply);
        }
        let (reply, change) = (room.hold(reply), change.into_owned());
        workspace.write(key, change);
        reply
    }

    /// What the call does to its key.
    #[inline]
    pub fn access(self) -> Access {
        self.access
    }

    /// Whether it reads ranges of keys, and names none.
    #[inline]
    pub fn is_range(self) -> bool {
        matches!(self.spec.run, Run::Key(Keyed::One(_) | Keyed::Several(_)))
            && !self.spec.has_keys()
    }

    /// Whether the call may change anything, over all its keys. [`Command::access`] says what it
    /// does to one.
    #[inline]
    pub fn updates(self) -> bool {
        self.spec.updates(self.access)
    }

    /// The answer of a command that needs neither a key nor anything else: `PING`, `ECHO`, `TIME`
    /// (with the resolution of `now`), `COMMAND` and the `HELP` subcommands.
    pub fn answer_alone(self, now: UnixMillis) -> Option<Reply<'a>> {
        Some(match self.spec.run {
            Run::Help => help(self.spec),
            Run::Refused => refusal(self.spec),
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

    /// The error that the call will answer whatever its keys hold and whenever it runs, so that it
    /// needn't be submitted. Not every such error is found.
    pub fn validate(self) -> Result<(), Reply<'static>> {
        if !self.spec.takes(self.args.len()) {
            return Err(arity_error(self.spec));
        }
        let reply = match self.spec.run {
            Run::Key(Keyed::Script) => return Ok(()),
            Run::Key(_) if self.is_range() => return range::check(self.args),
            Run::Key(Keyed::One(run)) => {
                let answer = |held| run(self.args, UnixMillis(0), held).0;
                let reply = answer(Current::ABSENT);
                // Many commands look at the type of their key before they look at some argument.
                let is_always = || EMPTY.iter().all(|held| answer(*held) == reply);
                if reply.is_error() && !is_always() {
                    return Ok(());
                }
                reply
            }
            Run::Key(Keyed::Several(run)) => {
                let mut key = OneKey::new(Current::ABSENT);
                let reply = run(self.args, UnixMillis(0), &mut key);
                if key.was_touched() {
                    return Ok(());
                }
                reply
            }
            _ => return Ok(()),
        };
        if reply.is_error() { Err(reply.into_owned()) } else { Ok(()) }
    }

    /// Its keys, in order, repeated ones repeatedly.
    pub fn keys(self) -> Keys<'a> {
        if self.spec.has_movable_keys() {
            if let Some(to) = self.sorts_into() {
                let to = to as i64;
                return Keys { args: self.args, next: 1, last: to, step: to - 1, specs: &[] };
            }
            return Keys {
                args: self.args,
                next: 0,
                last: -1,
                step: 1,
                specs: self.spec.key_specs,
            };
        }
        let positions = self.spec.keys;
        let count = self.args.len() as i64;
        let last = i64::from(positions.last);
        let last = if last < 0 { count + last } else { last };
        Keys {
            args: self.args,
            next: i64::from(positions.first),
            last: if positions.first == 0 { -1 } else { last.min(count - 1) },
            step: i64::from(positions.step).max(1),
            specs: &[],
        }
    }

    /// Where the key stands that takes the result of a `SORT`: Redis's key specification doesn't say.
    fn sorts_into(self) -> Option<usize> {
        if self.spec.name == "sort" { sort::destination(self.args) } else { None }
    }

    /// Whether it reads keys that it doesn't name.
    #[inline]
    pub fn finds_keys(self) -> bool {
        self.spec.has_movable_keys()
            && ["sort", "sort_ro"].contains(&self.spec.name)
            && sort::searches(self.args)
    }

    /// The one key it touches, none if it has no keys, or [`CROSSKEY`] if there are several.
    #[inline]
    pub fn single_key(self) -> Result<Option<&'a [u8]>, Reply<'static>> {
        if self.finds_keys() {
            return Err(Reply::error(CROSSKEY));
        }
        let mut keys = self.keys();
        let first = keys.next();
        let is_only = self.spec.keys.first == self.spec.keys.last && !self.spec.has_movable_keys();
        if is_only || keys.all(|key| Some(key) == first) {
            Ok(first)
        } else {
            Err(Reply::error(CROSSKEY))
        }
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
        let Args { buffer, spans, seed } = self.args;
        Part { spec, buffer, spans: [spans[0], spans[at]], seed }
    }

    /// The same call with another argument in place `index`.
    pub fn with_argument(self, index: usize, argument: &[u8]) -> OwnedCall {
        let arguments = self.args.iter().enumerate();
        let args = arguments.map(|(at, old)| if at == index { argument } else { old });
        OwnedCall::with(self.spec, OwnedArgs::new(args).seeded(self.args.seed))
    }

    /// A copy that borrows nothing.
    pub fn to_owned_call(self) -> OwnedCall {
        OwnedCall { spec: self.spec, args: self.args.to_owned(), access: self.access }
    }

    pub(crate) fn write(self, writer: &mut Writer<'_>) {
        writer.u16(self.spec.id);
        self.args.encode(writer);
    }
}

/// What a key without a value holds.
/// Values of two types: no command takes both.
const EMPTY: [Current<'static>; 2] = [empty(ValueKind::String), empty(ValueKind::Hash)];

const fn empty(kind: ValueKind) -> Current<'static> {
    Current { content: Some(Content { bytes: &[], kind, expire_at: None }), ..Current::ABSENT }
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
    /// Groups of keys that come behind these.
    specs: &'static [KeySpec],
}

impl KeySpec {
    /// The keys of this group among the arguments; none if the arguments don't say where they are.
    pub(crate) fn keys<'a>(&self, args: Args<'a>) -> Keys<'a> {
        let (next, last, step) = self.positions(args).unwrap_or((0, -1, 1));
        Keys { args, next, last, step, specs: &[] }
    }

    /// The first key, the last one, and the distance from one to the next.
    fn positions(&self, args: Args<'_>) -> Option<(i64, i64, i64)> {
        let end = args.len() as i64;
        let begin = match self.begin {
            KeysBegin::Index(index) => index,
            KeysBegin::Keyword(word, from) => {
                let is_here = |at: &i64| is_word(args.get(*at as usize), word);
                let found = if from < 0 {
                    (1..=end + from).rev().find(is_here)
                } else {
                    (from..end).find(is_here)
                };
                found? + 1
            }
            KeysBegin::Unknown => return None,
        };
        let (first, last, step) = match self.find {
            KeysFind::Range { step, limit, .. } if limit > 1 => {
                (begin, begin + (end - begin) / limit - 1, step)
            }
            KeysFind::Range { last, step, .. } => {
                (begin, if last < 0 { end + last } else { begin + last }, step)
            }
            KeysFind::Counted { count, first, step } => {
                let said = args.iter().nth(usize::try_from(begin + count).ok()?)?;
                let count = parse_integer(said).filter(|count| (1..=end).contains(count))?;
                let first = begin + first;
                (first, first + (count - 1) * step, step)
            }
            KeysFind::Unknown => return None,
        };
        (last < end).then_some((first, last, step.max(1)))
    }
}

impl<'a> Iterator for Keys<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        while self.next > self.last {
            let (spec, rest) = self.specs.split_first()?;
            *self = Keys { specs: rest, ..spec.keys(self.args) };
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
    seed: u64,
}

impl Part<'_> {
    /// The call.
    #[inline]
    pub fn call(&self) -> Call<'_> {
        let args = Args { buffer: self.buffer, spans: &self.spans, seed: self.seed };
        Call::new(self.spec, args)
    }
}

/// A command with arguments of its own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnedCall {
    spec: &'static Spec,
    args: OwnedArgs,
    access: Access,
}

impl OwnedCall {
    /// Resolves and copies a command, its name first; the error is what Redis answers.
    pub fn new<'a>(arguments: impl IntoIterator<Item = &'a [u8]>) -> Result<Self, Reply<'static>> {
        let args = OwnedArgs::new(arguments);
        let spec = crate::resolve(args.borrow())?;
        Ok(Self::with(spec, args))
    }

    /// The call.
    #[inline]
    pub fn call(&self) -> Call<'_> {
        Call { spec: self.spec, args: self.args.borrow(), access: self.access }
    }

    /// As [`Call::updates`].
    #[inline]
    pub(crate) fn updates(&self) -> bool {
        self.spec.updates(self.access)
    }

    fn with(spec: &'static Spec, args: OwnedArgs) -> Self {
        let access = Call::new(spec, args.borrow()).access;
        Self { spec, args, access }
    }

    /// Mixes the command and its arguments into a digest.
    pub(crate) fn digest(&self, digest: u64) -> u64 {
        // The table's spelling of the name: how a client spells it makes no difference.
        let digest = mix(digest, hash_key(self.spec.name.as_bytes()));
        let digest = mix(digest, self.args.borrow().len() as u64);
        // A subcommand has its index in the upper byte.
        let names = 1 + usize::from(self.spec.id > u16::from(u8::MAX));
        let call = self.call();
        if call.names_script() {
            // The node of another try may not know the source.
            let script = call.args.get(1);
            let script = &script[..script.len().min(SCRIPT_DIGEST_BYTES)];
            return call.with_argument(1, script).args.digest(names, digest);
        }
        self.args.digest(names, digest)
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let spec = table::by_id(reader.u16()?).ok_or(Malformed("unknown command"))?;
        let args = OwnedArgs::decode(reader)?;
        let has_name = !args.borrow().is_empty();
        // That checks the number of arguments, too.
        if !has_name || crate::resolve(args.borrow()).ok() != Some(spec) {
            return Err(Malformed("a command of another name or number of arguments"));
        }
        Ok(Self::with(spec, args))
    }
}
