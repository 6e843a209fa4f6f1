//! The services that a transaction needs of its transport.
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
/// The changes of a transaction, by key.
pub(crate) type Writes = BTreeMap<Vec<u8>, Write>;

/// The change of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Write {
    /// It gets a value.
    Set {
        /// The value.
        value: Vec<u8>,
        /// Its expiry.
        expiry: Expiry,
    },
    /// The key is deleted.
    Delete,
}

/// The expiry of a value that is set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Expiry {
    /// None.
    Never,
    /// The expiry of the earlier value.
    Keep,
    /// This long after the commit.
    After(Duration),
}

/// Where transactions begin.
pub(crate) trait Transport: Send + Sync {
    /// Begins one attempt.
    fn begin(&self) -> Pending<'_, Result<Box<dyn Session>, Failure>>;

    /// Whether an attempt after a node's failure would go to another node at once.
    fn has_fresh_node(&self) -> bool;
}

/// One attempt of one transaction.
pub(crate) trait Session: Send {
    /// Reads keys. The commit succeeds only if they still hold the values read. A
    /// [`Failure::Final`] leaves the session as it is; any other failure ends it.
    fn read<'a>(&'a mut self, keys: &'a [&'a [u8]]) -> Pending<'a, Result<Values, Failure>>;

    /// Makes the changes at one moment, if all values read are still current. It ends in one of
    /// four ways: committed; [`Failure::Conflict`]; unknown, which is a [`Failure::Final`] with
    /// [`crate::Error::Unknown`]; or another failure, and nothing has changed. Asking again about
    /// the outcome takes attempts of the transaction.
    fn commit(
        self: Box<Self>,
        writes: Writes,
        attempts: &mut Attempts,
    ) -> Pending<'_, Result<(), Failure>>;

    /// Gives up.
    fn abort(self: Box<Self>) -> Pending<'static, ()>;
}
