//! Client operations over several keys, as machines see them.

use alloc::vec::Vec;
use core::fmt::Debug;

use quorate_types::UnixMillis;

use crate::{Change, Current};

/// The keys of a keyspace as one transaction sees them: as they were read, with the transaction's
/// own changes on top. Nothing happens to the keyspace before the transaction commits.
pub trait Workspace {
    /// What the key holds now. A value past its expiry has been taken out already; the version is
    /// that of the committed value that was read, whatever this transaction did to the key since.
    fn read(&mut self, key: &[u8]) -> Current<'_>;

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

/// A deterministic function over a workspace. It may run several times, on newer versions each
/// time, before it commits once.
pub trait Transaction: Sized {
    /// The form that can wait in a queue.
    type Owned: Transaction<Reply = Self::Reply, Owned = Self::Owned> + Clone + Debug + 'static;
    /// The answer. Borrows nothing.
    type Reply: Clone + Debug + 'static;

    /// Runs it.
    fn run<W: Workspace>(&self, now: UnixMillis, workspace: &mut W) -> Verdict<Self::Reply>;

    /// Whether it may change anything.
    fn updates(&self) -> bool;

    /// Copies what it borrows.
    fn into_owned(self) -> Self::Owned;

    // --- sessions: what is never called under one leaves these out ------------------------------

    /// Visits the keys that it names, which are the same at every run. It may touch fewer.
    fn visit_keys(&self, visit: &mut dyn FnMut(&[u8])) {
        let _ = visit;
        unreachable!("a transaction that is called under a session names its keys");
    }

    /// Appends a form of an answer that [`Transaction::decode_reply`] reads back.
    fn encode_reply(reply: &Self::Reply, out: &mut Vec<u8>) {
        let _ = (reply, out);
        unreachable!("a transaction that is called under a session has answers to be kept");
    }

    /// Reads what [`Transaction::encode_reply`] wrote; `None` if the bytes are damaged.
    fn decode_reply(bytes: &[u8]) -> Option<Self::Reply> {
        let _ = bytes;
        unreachable!("a transaction that is called under a session has answers to be kept");
    }
}
