//! What a transaction needs from whatever runs it.
//!
//! [`crate::Txn`] keeps the reads and the writes; a transport brings reads and decides the commit.
//! One talks RESP to any node ([`crate::over_resp`]), the other coordinates by itself
//! ([`crate::guest`]).

use std::collections::BTreeMap;
use std::time::Duration;

use crate::connection::Pending;
use crate::retry::{Attempts, Failure};

/// The values of keys, in the order in which they were asked for.
pub(crate) type Values = Vec<Option<Vec<u8>>>;
/// What a transaction changes, by key.
pub(crate) type Writes = BTreeMap<Vec<u8>, Write>;

/// What becomes of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Write {
    /// It gets a value.
    Set {
        /// The value.
        value: Vec<u8>,
        /// Until when.
        expiry: Expiry,
    },
    /// It goes.
    Delete,
}

/// When a value that is set expires.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Expiry {
    /// Never.
    Never,
    /// When the value before it would have.
    Keep,
    /// So long after the commit.
    After(Duration),
}

/// Where transactions begin.
pub(crate) trait Transport: Send + Sync {
    /// Begins one attempt.
    fn begin(&self) -> Pending<'_, Result<Box<dyn Session>, Failure>>;

    /// Whether an attempt that failed at its node would go to another one at once.
    fn has_fresh_node(&self) -> bool;
}

/// One attempt of one transaction.
pub(crate) trait Session: Send {
    /// Reads keys. The commit succeeds only if they still hold what was read. A failure that is
    /// [`Failure::Final`] leaves the session as it is; any other ends it.
    fn read<'a>(&'a mut self, keys: &'a [&'a [u8]]) -> Pending<'a, Result<Values, Failure>>;

    /// Makes the changes at one moment, if all that was read is still current. It ends in one of
    /// four ways: committed; [`Failure::Conflict`]; unknown, which is a [`Failure::Final`] with
    /// [`crate::Error::Unknown`]; or another failure, and nothing has changed. To ask again what
    /// became of it takes attempts of the transaction.
    fn commit(
        self: Box<Self>,
        writes: Writes,
        attempts: &mut Attempts,
    ) -> Pending<'_, Result<(), Failure>>;

    /// Gives up.
    fn abort(self: Box<Self>) -> Pending<'static, ()>;
}
