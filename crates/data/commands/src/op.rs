//! What an engine queues.

use alloc::boxed::Box;
use alloc::vec::Vec;

use quorate_machine::{Access, Change, Command, Current, Verdict, Workspace, mutant};
use quorate_types::{NodeId, UnixMillis};
use quorate_wire::{Malformed, Reader, Writer};

use crate::notes::{Notes, Wanted, class, note_one};
use crate::{Block, Call, OwnedCall, Reply};

/// A client operation that borrows nothing.
///
/// It reads a key only if its answer or its changes depend on what the key holds: `SET` and `MSET`
/// read none. An error answers its own command only; that command changes nothing then, and the
/// others of a block run as if it weren't there.
///
/// Encoded as (integers little-endian, `bytes` with a length of four bytes before them):
/// ```text
/// call       0 | id u16 | count u32 | count * argument bytes
/// block      1 | count u32 | count * (key bytes | existed u8 | version u64 | writer u32)
///              | count u32 | count * (id u16 | count u32 | count * argument bytes)
/// versions   2 | count u32 | count * key bytes
/// placement  4 | key bytes
/// noted      3 | keyspace u8 | classes u32 | a call or a block
/// ```
/// An id is a [`crate::Spec::id`], which nodes of one version agree on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// One command over any number of keys.
    Call(OwnedCall),
    /// A `MULTI`/`EXEC` block: answers [`Reply::Array`], or [`Reply::NullArray`] if a watch fails.
    Block(Block),
    /// Reads the versions of keys and whether they have values, for `WATCH`: answers a
    /// [`Reply::Array`] of [`Reply::Version`], all as of one moment.
    Versions(Vec<Box<[u8]>>),
    /// Asks where a key lives: answers [`Reply::Null`] where keys don't move, and else a
    /// [`Reply::Array`] of numbers: the owner or null, how often the key has moved, the readers. Only
    /// the owner knows all of it.
    Placement(Box<[u8]>),
    /// A command or block whose answers tell what it did to keys: [`Reply::Noted`].
    Noted {
        /// The number of the keyspace, to be repeated.
        keyspace: u8,
        /// The classes that are wanted: bits of [`crate::class`].
        classes: u32,
        /// The command or block.
        op: Box<Op>,
    },
}

const CALL: u8 = 0;
const BLOCK: u8 = 1;
const VERSIONS: u8 = 2;
const NOTED: u8 = 3;
const PLACEMENT: u8 = 4;

impl Op {
    /// A digest of the commands and their arguments, the same at every try and on every node: it
    /// tells another command under the same number. A block has that of its commands in order;
    /// what is watched doesn't count, since a try elsewhere watches anew.
    pub fn digest(&self) -> u32 {
        match self {
            Self::Call(call) => digest(core::slice::from_ref(call)),
            Self::Block(block) => digest(&block.calls).rotate_left(1),
            Self::Noted { op, .. } => op.digest(),
            Self::Versions(_) | Self::Placement(_) => {
                unreachable!("what changes nothing is no call of a session")
            }
        }
    }

    fn first_key(&self) -> Option<&[u8]> {
        match self {
            Self::Call(call) => call.call().keys().next(),
            Self::Block(block) => block.keys().next(),
            Self::Versions(keys) => keys.first().map(|key| &**key),
            Self::Placement(key) => Some(key),
            Self::Noted { op, .. } => op.first_key(),
        }
    }

    fn encode_call(call: Call<'_>, out: &mut Vec<u8>) {
        let mut writer = Writer(out);
        writer.u8(CALL);
        call.write(&mut writer);
    }

    /// The same, with notes of these classes, if it changes anything.
    pub fn noted(self, keyspace: u8, classes: u32) -> Self {
        match self {
            Self::Call(_) | Self::Block(_) if Command::updates(&self) => {
                Self::Noted { keyspace, classes, op: Box::new(self) }
            }
            _ => self,
        }
    }

    /// Runs it, and notes what it does.
    fn run_noted<W: Workspace>(
        &self,
        wanted: Wanted,
        now: UnixMillis,
        workspace: &mut W,
    ) -> Verdict<Reply<'static>> {
        match self {
            Self::Call(call) => call.call().run_noting(now, workspace, wanted),
            Self::Block(block) => block.run(now, workspace, wanted),
            Self::Versions(_) | Self::Placement(_) | Self::Noted { .. } => {
                unreachable!("notes are asked of commands and blocks")
            }
        }
    }

    /// Runs it on its only key, and notes what it does.
    fn apply_noted<'a>(
        &'a self,
        wanted: Wanted,
        now: UnixMillis,
        current: Current<'a>,
    ) -> (Reply<'static>, Change<'a>) {
        match self {
            Self::Call(call) if call.call().is_script() => {
                call.call().run_script_on_one_key(now, current, wanted)
            }
            Self::Call(call) => {
                let (reply, change) = self.apply(now, current);
                let mut notes = Notes::new(wanted);
                note_one(&call.call(), now, &change, current, &mut notes);
                (notes.attach(reply), change)
            }
            Self::Block(block) => block.apply(now, current, wanted),
            Self::Versions(_) | Self::Placement(_) | Self::Noted { .. } => {
                unreachable!("notes are asked of commands and blocks")
            }
        }
    }

    fn read(mut reader: Reader<'_>) -> Result<Self, Malformed> {
        let op = match reader.u8()? {
            CALL => Self::Call(OwnedCall::read(&mut reader)?),
            BLOCK => Self::Block(Block::read(&mut reader)?),
            VERSIONS => {
                let mut keys = Vec::new();
                for _ in 0..reader.u32()? {
                    keys.push(reader.bytes()?.into());
                }
                Self::Versions(keys)
            }
            PLACEMENT => Self::Placement(reader.bytes()?.into()),
            NOTED => {
                let (keyspace, classes) = (reader.u8()?, reader.u32()?);
                let op = match reader.0.first() {
                    Some(&(CALL | BLOCK)) => Box::new(Self::read(reader)?),
                    _ => return Err(Malformed("notes of what changes nothing")),
                };
                return Ok(Self::Noted { keyspace, classes, op });
            }
            _ => return Err(Malformed("unknown kind of operation")),
        };
        reader.end()?;
        match op.first_key() {
            Some(_) => Ok(op),
            None => Err(Malformed("an operation without a key")),
        }
    }

    /// Reads what [`Command::encode`] wrote of an operation on any number of keys, one at least;
    /// `None` if the bytes are damaged. [`Command::decode`] reads what has one key.
    pub fn decode_any(bytes: &[u8]) -> Option<Self> {
        Self::read(Reader(bytes)).ok()
    }

    /// Whether it may be given to an engine of single keys. A call that names several answers an
    /// error there, or takes them for one.
    fn has_one_key(&self) -> bool {
        match self {
            Self::Call(_) => true,
            Self::Block(block) => block.keys().all(|key| Some(key) == self.first_key()),
            Self::Versions(keys) => keys.len() == 1,
            Self::Placement(_) => true,
            Self::Noted { op, .. } => op.has_one_key(),
        }
    }
}

fn digest(calls: &[OwnedCall]) -> u32 {
    (calls.iter().fold(0, |digest, call| call.digest(digest)) >> 32) as u32
}

fn version(current: &Current<'_>) -> Reply<'static> {
    Reply::Version(current.timestamp, current.content.is_some())
}

impl Command for Op {
    type Owned = Self;
    type Reply = Reply<'static>;

    fn visit_keys(&self, visit: &mut dyn FnMut(&[u8])) {
        match self {
            Self::Call(call) => call.call().keys().for_each(visit),
            Self::Block(block) => block.keys().for_each(visit),
            Self::Versions(keys) => keys.iter().for_each(|key| visit(key)),
            Self::Placement(key) => visit(key),
            Self::Noted { op, .. } => op.visit_keys(visit),
        }
    }

    fn updates(&self) -> bool {
        match self {
            Self::Call(call) => call.call().updates(),
            Self::Block(block) => block.updates(),
            Self::Versions(_) | Self::Placement(_) => false,
            Self::Noted { op, .. } => Command::updates(&**op),
        }
    }

    /// Of a block, the first key of its first command that may change anything: what it watches and
    /// reads before is looked at where that is.
    fn anchor(&self) -> Option<&[u8]> {
        match self {
            Self::Call(_) | Self::Versions(_) | Self::Placement(_) => None,
            Self::Block(block) => {
                let mut calls = block.calls.iter().map(OwnedCall::call);
                calls.find(|call| call.updates())?.keys().next()
            }
            Self::Noted { op, .. } => op.anchor(),
        }
    }

    fn ranges(&self) -> bool {
        match self {
            Self::Call(call) => Command::ranges(&call.call()),
            Self::Block(block) => block.calls.iter().any(|call| Command::ranges(&call.call())),
            Self::Versions(_) | Self::Placement(_) => false,
            Self::Noted { op, .. } => Command::ranges(&**op),
        }
    }

    fn asks_placement(&self) -> bool {
        matches!(self, Self::Placement(_))
    }

    fn run<W: Workspace>(&self, now: UnixMillis, workspace: &mut W) -> Verdict<Reply<'static>> {
        match self {
            Self::Call(call) => Command::run(&call.call(), now, workspace),
            Self::Block(block) => block.run(now, workspace, Wanted::NOTHING),
            Self::Versions(keys) => {
                let versions = keys.iter().map(|key| {
                    let (timestamp, exists) = workspace.watch(key);
                    Reply::Version(timestamp, exists)
                });
                Verdict::Commit(Reply::Array(versions.collect()))
            }
            Self::Placement(key) => Verdict::Commit(match workspace.placement(key) {
                None => Reply::Null,
                Some(placed) => {
                    let node = |node: NodeId| Reply::Int(node.0.into());
                    let owner = placed.owner.map_or(Reply::Null, node);
                    let told = [owner, Reply::Int(placed.moves.into())];
                    Reply::Array(
                        told.into_iter().chain(placed.readers.into_iter().map(node)).collect(),
                    )
                }
            }),
            Self::Noted { keyspace, classes, op } => {
                op.run_noted(Wanted { keyspace: *keyspace, classes: *classes }, now, workspace)
            }
        }
    }

    fn into_owned(self) -> Self {
        self
    }

    fn key(&self) -> &[u8] {
        self.first_key().expect("an operation of one key has it")
    }

    fn access(&self) -> Access {
        match self {
            Self::Call(call) => call.call().access(),
            Self::Block(block) => block.access(),
            Self::Versions(_) | Self::Placement(_) => Access::Read,
            // Whether the key is new only a look at it tells.
            Self::Noted { classes, op, .. } => match op.access() {
                Access::Write if classes & class::NEW != 0 => Access::Update,
                access => access,
            },
        }
    }

    fn apply<'a>(&'a self, now: UnixMillis, current: Current<'a>) -> (Reply<'static>, Change<'a>) {
        match self {
            Self::Call(call) => {
                let (reply, change) = call.call().execute(now, current);
                (reply.within_limit().into_owned(), change)
            }
            Self::Block(block) => block.apply(now, current, Wanted::NOTHING),
            Self::Versions(_) => (Reply::Array([version(&current)].into()), Change::Keep),
            Self::Placement(_) => (Reply::Null, Change::Keep),
            Self::Noted { keyspace, classes, op } => {
                op.apply_noted(Wanted { keyspace: *keyspace, classes: *classes }, now, current)
            }
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Call(call) => Self::encode_call(call.call(), out),
            Self::Block(block) => {
                let mut writer = Writer(out);
                writer.u8(BLOCK);
                block.write(&mut writer);
            }
            Self::Versions(keys) => {
                let mut writer = Writer(out);
                writer.u8(VERSIONS);
                writer.u32(u32::try_from(keys.len()).expect("limits bound a transaction"));
                keys.iter().for_each(|key| writer.bytes(key));
            }
            Self::Placement(key) => {
                let mut writer = Writer(out);
                writer.u8(PLACEMENT);
                writer.bytes(key);
            }
            Self::Noted { keyspace, classes, op } => {
                let mut writer = Writer(out);
                writer.u8(NOTED);
                writer.u8(*keyspace);
                writer.u32(*classes);
                op.encode(out);
            }
        }
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        Self::decode_any(bytes).filter(Self::has_one_key)
    }

    fn encode_reply(reply: &Reply<'static>, out: &mut Vec<u8>) {
        reply.encode_kept(out);
    }

    fn decode_reply(bytes: &[u8]) -> Option<Reply<'static>> {
        Reply::decode(bytes)
    }
}

impl Command for Call<'_> {
    type Owned = Op;
    type Reply = Reply<'static>;

    fn visit_keys(&self, visit: &mut dyn FnMut(&[u8])) {
        self.keys().for_each(visit);
    }

    fn updates(&self) -> bool {
        Call::updates(*self)
    }

    /// Keys that it finds by what others hold may be anywhere, as those of a range.
    #[inline]
    fn ranges(&self) -> bool {
        let finds_keys = self.is_script() && !mutant!("commands_script_keys_are_named");
        self.is_range() || finds_keys || self.finds_keys()
    }

    #[inline]
    fn run<W: Workspace>(&self, now: UnixMillis, workspace: &mut W) -> Verdict<Reply<'static>> {
        self.run_noting(now, workspace, Wanted::NOTHING)
    }

    fn into_owned(self) -> Op {
        Op::Call(self.to_owned_call())
    }

    /// # Panics
    /// If the command has no key.
    #[inline]
    fn key(&self) -> &[u8] {
        assert!(self.spec.has_keys(), "{} has no key", self.spec.name);
        if self.spec.has_movable_keys() {
            return self.keys().next().expect("a command that is placed by its key has one");
        }
        self.args.get(self.spec.keys.first as usize)
    }

    #[inline]
    fn access(&self) -> Access {
        Call::access(*self)
    }

    fn apply<'a>(&'a self, now: UnixMillis, current: Current<'a>) -> (Reply<'static>, Change<'a>) {
        let (reply, change) = self.execute(now, current);
        (reply.within_limit().into_owned(), change)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        Op::encode_call(*self, out);
    }

    fn decode(bytes: &[u8]) -> Option<Op> {
        Op::decode(bytes)
    }

    fn encode_reply(reply: &Reply<'static>, out: &mut Vec<u8>) {
        reply.encode_kept(out);
    }

    fn decode_reply(bytes: &[u8]) -> Option<Reply<'static>> {
        Reply::decode(bytes)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::Block;

    fn call(words: &[&str]) -> OwnedCall {
        OwnedCall::new(words.iter().map(|word| word.as_bytes())).expect("a command")
    }

    fn single(words: &[&str]) -> u32 {
        Op::Call(call(words)).digest()
    }

    #[test]
    fn a_digest_tells_commands_and_arguments_apart_but_not_spellings() {
        assert_eq!(single(&["INCR", "key"]), single(&["incr", "key"]));
        let others = [
            single(&["DECR", "key"]),
            single(&["INCR", "kez"]),
            single(&["INCRBY", "key", "1"]),
            single(&["INCRBY", "key", "2"]),
            single(&["SET", "ab", "c"]),
            single(&["SET", "a", "bc"]),
        ];
        for (at, digest) in others.iter().enumerate() {
            assert!(!others[..at].contains(digest), "number {at}");
        }
        assert_eq!(single(&["INCR", "key"]), PINNED, "other nodes have other digests now");
    }

    #[test]
    fn a_block_has_the_digest_of_its_commands_in_order() {
        let block = |calls: &[&[&str]]| {
            let calls = calls.iter().map(|words| call(words)).collect();
            Op::Block(Block { watches: vec![], calls }).digest()
        };
        let (one, other): (&[&str], &[&str]) = (&["INCR", "a"], &["INCR", "b"]);
        assert_ne!(block(&[one, other]), block(&[other, one]));
        assert_ne!(block(&[one]), block(&[one, one]));
        assert_ne!(block(&[one]), single(one), "a block answers an array");
        assert_eq!(block(&[one, other]), block(&[one, other]));
    }

    const PINNED: u32 = 1_203_170_730;
}
