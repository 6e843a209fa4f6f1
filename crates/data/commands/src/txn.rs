//! What an engine with transactions over several keys runs.

use alloc::boxed::Box;
use alloc::vec::Vec;

use quorate_machine::{Transaction, Verdict, Workspace, mutant};
use quorate_types::UnixMillis;

use crate::meter::{BLOCK_TOO_MUCH, Metered, TOO_MUCH};
use crate::room::{BLOCK_TOO_LONG, Room};
use crate::{Call, OwnedCall, Reply, Watch};

/// A transaction over any keys that borrows nothing.
///
/// It reads a key only if its answer or its changes depend on what the key holds: `SET` and `MSET`
/// read none. An error answers its own command only; that command changes nothing then, and the
/// others of a block run as if it weren't there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Txn {
    /// One command over any number of keys.
    Call(OwnedCall),
    /// A `MULTI`/`EXEC` block: answers [`Reply::Array`], or [`Reply::NullArray`] if a watch fails.
    Block(Block),
    /// Reads the versions of keys and whether they have values, for `WATCH`: answers a
    /// [`Reply::Array`] of [`Reply::Version`], all as of one moment.
    Versions(Vec<Box<[u8]>>),
}

/// A `MULTI`/`EXEC` block over any keys: all of it happens at once, or nothing if a watch fails.
/// Each call sees what the calls before it did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Block {
    /// What was seen of keys before.
    pub watches: Vec<(Box<[u8]>, Watch)>,
    /// The calls in order; those without a key are answered too, by [`Call::answer_alone`].
    pub calls: Vec<OwnedCall>,
}

impl Block {
    /// Whether it may change anything.
    pub fn updates(&self) -> bool {
        self.calls.iter().any(|call| call.call().updates())
    }

    fn run(&self, now: UnixMillis, workspace: &mut impl Workspace) -> Verdict<Reply<'static>> {
        for (key, watch) in &self.watches {
            if !watch.holds(&workspace.read(key)) {
                return Verdict::Abandon(Reply::NullArray);
            }
        }
        match run_in_order(&self.calls, now, workspace) {
            Ok(answers) => Verdict::Commit(answers),
            Err(too_long) if mutant!("commands_refused_block_commits") => Verdict::Commit(too_long),
            Err(too_long) => Verdict::Abandon(too_long),
        }
    }
}

/// What calls answer one after the other; an error if that is too long together, or if they look at
/// too much, after which nothing of it may happen.
pub(crate) fn run_in_order(
    calls: &[OwnedCall],
    now: UnixMillis,
    workspace: &mut impl Workspace,
) -> Result<Reply<'static>, Reply<'static>> {
    let mut room = Room::new();
    let mut metered = Metered::new(workspace);
    let mut answers = Vec::new();
    for call in calls {
        answers.push(call.call().run_over(now, &mut metered, &mut room));
        if metered.is_exceeded() {
            return Err(BLOCK_TOO_MUCH);
        }
        if room.is_exceeded() {
            return Err(BLOCK_TOO_LONG);
        }
        if metered.is_full() {
            break;
        }
    }
    Ok(Reply::Array(answers))
}

impl Transaction for Txn {
    type Owned = Self;
    type Reply = Reply<'static>;

    fn run<W: Workspace>(&self, now: UnixMillis, workspace: &mut W) -> Verdict<Reply<'static>> {
        match self {
            Self::Call(call) => call.call().run(now, workspace),
            Self::Block(block) => block.run(now, workspace),
            Self::Versions(keys) => {
                let mut version = |key: &[u8]| {
                    let current = workspace.read(key);
                    Reply::Version(current.timestamp, current.content.is_some())
                };
                let versions = keys.iter().map(|key| version(key)).collect();
                Verdict::Commit(Reply::Array(versions))
            }
        }
    }

    fn into_owned(self) -> Self {
        self
    }

    fn visit_keys(&self, visit: &mut dyn FnMut(&[u8])) {
        match self {
            Self::Call(call) => call.call().keys().for_each(visit),
            Self::Block(block) => {
                block.watches.iter().for_each(|(key, _)| visit(key));
                block.calls.iter().flat_map(|call| call.call().keys()).for_each(visit);
            }
            Self::Versions(keys) => keys.iter().for_each(|key| visit(key)),
        }
    }

    fn updates(&self) -> bool {
        match self {
            Self::Call(call) => call.call().updates(),
            Self::Block(block) => block.updates(),
            Self::Versions(_) => false,
        }
    }

    fn encode_reply(reply: &Reply<'static>, out: &mut Vec<u8>) {
        reply.encode(out);
    }

    fn decode_reply(bytes: &[u8]) -> Option<Reply<'static>> {
        Reply::decode(bytes)
    }
}

impl Transaction for Call<'_> {
    type Owned = Txn;
    type Reply = Reply<'static>;

    #[inline]
    fn run<W: Workspace>(&self, now: UnixMillis, workspace: &mut W) -> Verdict<Reply<'static>> {
        let mut metered = Metered::new(workspace);
        let reply = self.run_over(now, &mut metered, &mut Room::new());
        if metered.is_exceeded() { Verdict::Abandon(TOO_MUCH) } else { Verdict::Commit(reply) }
    }

    fn into_owned(self) -> Txn {
        Txn::Call(self.to_owned_call())
    }

    fn visit_keys(&self, visit: &mut dyn FnMut(&[u8])) {
        self.keys().for_each(visit);
    }

    fn updates(&self) -> bool {
        Call::updates(*self)
    }

    fn encode_reply(reply: &Reply<'static>, out: &mut Vec<u8>) {
        reply.encode(out);
    }

    fn decode_reply(bytes: &[u8]) -> Option<Reply<'static>> {
        Reply::decode(bytes)
    }
}
