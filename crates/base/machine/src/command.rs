//! Client commands, as machines see them.

use alloc::borrow::Cow;
use alloc::vec::Vec;
use core::fmt::Debug;

use quorate_types::{NodeId, NodeSet, Timestamp, UnixMillis};

use quorate_collections::{Collection, ValueKind};

use crate::Content;

/// What a command does to its key, which decides the protocol's path for it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    /// Changes nothing.
    Read,
    /// Sets or deletes the key whatever it held, and answers the same whatever it held. Never
    /// aborts.
    Write,
    /// Its change or its answer depends on what the key held: a read-modify-write.
    Update,
}

/// What a key holds when a command runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Current<'a> {
    /// The value, or nothing. A value past its expiry has been taken out already.
    pub content: Option<Content<'a>>,
    /// The value, if it is large; its content has no bytes then.
    pub large: Option<&'a Collection>,
    /// The version of the key, for `WATCH`. An absent key has the timestamp of its tombstone, or
    /// [`Timestamp::ZERO`].
    pub timestamp: Timestamp,
}

/// What a command wants a key to hold from now on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change<'a> {
    /// Nothing changes: the command was, after all, a read.
    Keep,
    /// A new value.
    Set {
        /// The bytes.
        bytes: Cow<'a, [u8]>,
        /// What they are.
        kind: ValueKind,
        /// When they expire, absolute.
        expire_at: Option<UnixMillis>,
    },
    /// The same value with another expiry.
    Expire(Option<UnixMillis>),
    /// The same large value, changed in place. The base of the change is the version that the command
    /// saw ([`Current::timestamp`]), which its engine knows.
    Delta {
        /// What changes ([`quorate_collections::Delta`]); maybe nothing.
        bytes: Cow<'a, [u8]>,
        /// When the value expires from now on.
        expire_at: Option<UnixMillis>,
    },
    /// No value.
    Delete,
}

impl Current<'_> {
    /// What a key that was never written holds.
    pub const ABSENT: Current<'static> =
        Current { content: None, large: None, timestamp: Timestamp::ZERO };
}

impl Change<'_> {
    /// A change that borrows nothing.
    pub fn into_owned(self) -> Change<'static> {
        match self {
            Self::Keep => Change::Keep,
            Self::Set { bytes, kind, expire_at } => {
                Change::Set { bytes: Cow::Owned(bytes.into_owned()), kind, expire_at }
            }
            Self::Expire(expire_at) => Change::Expire(expire_at),
            Self::Delta { bytes, expire_at } => {
                Change::Delta { bytes: Cow::Owned(bytes.into_owned()), expire_at }
            }
            Self::Delete => Change::Delete,
        }
    }
}

/// The keys of a keyspace as one transaction sees them: as they were read, with the transaction's
/// own changes on top. Nothing happens to the keyspace before the transaction commits.
pub trait Workspace {
    /// What the key holds now. A value past its expiry has been taken out already; the version is
    /// that of the committed value that was read, whatever this transaction did to the key since.
    fn read(&mut self, key: &[u8]) -> Current<'_>;

    /// What `WATCH` notes of a key: a version, and whether the key has a value. Of an absent key it may
    /// be a later version than the last change's, as long as every later change has a larger one.
    fn watch(&mut self, key: &[u8]) -> (Timestamp, bool) {
        let current = self.read(key);
        (current.timestamp, current.content.is_some())
    }

    /// Where a key lives, if keys move from node to node. It is told as it is at this moment: nothing rests
    /// on it.
    fn placement(&mut self, key: &[u8]) -> Option<Placed> {
        let _ = key;
        None
    }

    /// Changes the key. [`Change::Keep`] changes nothing; [`Change::Expire`] of an absent key
    /// neither.
    fn write(&mut self, key: &[u8], change: Change<'_>);

    /// Reads the keys from `from` on and, if there is a `to`, below it, that have a value, in their
    /// order and at most `limit` of them. The transaction's own changes show. Its answer rests on the
    /// whole range up to the last key visited, absent keys included.
    ///
    /// # Errors
    /// If the engine keeps no order, or can't tell whether a range is still what was read.
    fn range(
        &mut self,
        from: &[u8],
        to: Option<&[u8]>,
        limit: usize,
        visit: &mut dyn FnMut(&[u8], Current<'_>),
    ) -> Result<(), Unordered> {
        let _ = (from, to, limit, visit);
        Err(Unordered)
    }

    /// Says that these keys are going to be read soon. It changes nothing.
    fn warm(&self, keys: &mut dyn Iterator<Item = &[u8]>) {
        let _ = keys;
    }

    /// Whether more was read and written than a transaction may: it is going to be refused, and
    /// what it does from now on makes no difference.
    fn is_full(&self) -> bool {
        false
    }
}

/// Where a key lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placed {
    /// The node that may change it.
    pub owner: Option<NodeId>,
    /// The nodes that may be read it from. Not every node knows of those that have a copy because they read
    /// the key often: the owner does.
    pub readers: NodeSet,
    /// How often it has moved, as far as this node has seen. The owner has seen the last move.
    pub moves: u32,
}

/// An engine that has no ranges of keys was asked for one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unordered;

/// How a transaction wants to end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict<R> {
    /// Make the changes, if every key that was read still holds what was read; this is the answer
    /// then.
    Commit(R),
    /// Make no change. The answer rests on committed versions alone and needs no validation: a
    /// watched key has changed.
    Abandon(R),
}

/// One command, block or look at versions of a client: a deterministic function over a workspace. The
/// same contents, time and arguments give the same changes and the same answer on every node. It may
/// run several times, on newer versions each time, before it commits once.
///
/// An engine of single keys is given commands of one key only, and runs them by [`Command::apply`],
/// which copies nothing.
pub trait Command: Sized {
    /// The form that can wait in a queue or cross to another lane.
    type Owned: Command<Reply = Self::Reply, Owned = Self::Owned> + Clone + Debug + 'static;
    /// The answer. Borrows nothing.
    type Reply: Clone + Debug + 'static;

    /// Visits the keys that it names, which are the same at every run. It may touch fewer, and others
    /// only if it says so ([`Command::ranges`]).
    fn visit_keys(&self, visit: &mut dyn FnMut(&[u8]));

    /// Whether it may change anything.
    fn updates(&self) -> bool {
        self.access() != Access::Read
    }

    /// The key that decides where it should run, of those that it names: the first one that it may
    /// change. `None` for the first key that it visits.
    fn anchor(&self) -> Option<&[u8]> {
        None
    }

    /// Whether it touches keys besides those that it names: it reads ranges ([`Workspace::range`]),
    /// or it finds keys on the way.
    fn ranges(&self) -> bool {
        false
    }

    /// Whether all that it asks is where its key lives ([`Workspace::placement`]): it reads no value, and
    /// the key stays where it is.
    fn asks_placement(&self) -> bool {
        false
    }

    /// Runs it.
    fn run<W: Workspace>(&self, now: UnixMillis, workspace: &mut W) -> Verdict<Self::Reply> {
        let (reply, change) = self.apply(now, workspace.read(self.key()));
        let change = change.into_owned();
        workspace.write(self.key(), change);
        Verdict::Commit(reply)
    }

    /// With arguments of its own: copied ones, unless it had some.
    fn into_owned(self) -> Self::Owned;

    // --- one key: what has several leaves these out, and says the above itself ------------------

    /// The only key.
    fn key(&self) -> &[u8] {
        unreachable!("an engine of single keys is given commands that have one");
    }

    /// What it does to its only key.
    fn access(&self) -> Access {
        unreachable!("an engine of single keys is given commands that have one");
    }

    /// Runs it on its only key.
    fn apply<'a>(&'a self, now: UnixMillis, current: Current<'a>) -> (Self::Reply, Change<'a>) {
        let _ = (now, current);
        unreachable!("an engine of single keys is given commands that have one");
    }

    /// Appends a form that [`Command::decode`] reads back on another node of the same version.
    fn encode(&self, out: &mut Vec<u8>) {
        let _ = out;
        unreachable!("what is forwarded has a form for it");
    }

    /// Reads what [`Command::encode`] wrote; `None` if the bytes are damaged, or have not one key.
    fn decode(bytes: &[u8]) -> Option<Self::Owned> {
        let _ = bytes;
        unreachable!("what is forwarded has a form for it");
    }

    // --- answers that are kept ------------------------------------------------------------------

    /// Appends a form of an answer that [`Command::decode_reply`] reads back. What the answer brings
    /// with it that is to happen once may be left out.
    fn encode_reply(reply: &Self::Reply, out: &mut Vec<u8>) {
        let _ = (reply, out);
        unreachable!("what is called under a session has answers to be kept");
    }

    /// Reads what [`Command::encode_reply`] wrote; `None` if the bytes are damaged.
    fn decode_reply(bytes: &[u8]) -> Option<Self::Reply> {
        let _ = bytes;
        unreachable!("what is called under a session has answers to be kept");
    }
}
