//! One attempt of a transaction, as its closure sees it.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::error::Error;
use crate::request::{check_key, check_value};
use crate::retry::{Attempts, Failure, Retries};
use crate::transport::{Expiry, Session, Transport, Write, Writes};

/// Why a transaction can't go on after its closure has dropped the future of a read.
const DROPPED: &str = "a read was not waited for";

/// Reads and writes of one attempt of a transaction. [`crate::Client::txn`] makes it.
///
/// - A read brings the latest value, and the commit succeeds only if the value is still the latest.
///   Each key is read once; reading it again gives the same value.
/// - A write is kept here until the commit, and seen by later reads of this transaction.
/// - Values read at different moments need not fit together before the commit has checked them. An
///   attempt in which they don't is repeated, but until then the closure sees them: it should
///   answer surprising values with an error, not with a panic.
pub struct Txn {
    session: Box<dyn Session>,
    reads: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    writes: Writes,
    /// The failure that ended this attempt before its commit.
    over: Option<Failure>,
}

impl Txn {
    pub(crate) fn new(session: Box<dyn Session>) -> Self {
        Self { session, reads: BTreeMap::new(), writes: Writes::new(), over: None }
    }

    /// Commits if the closure succeeded, and gives up otherwise.
    pub(crate) async fn end<T, E: From<Error>>(
        self,
        result: Result<T, E>,
        attempts: &mut Attempts,
    ) -> Result<Result<T, E>, Failure> {
        match self.over {
            // The closure may run again, whatever it made of the failure.
            Some(failure) if failure.is_transient() || result.is_ok() => {
                self.session.abort().await;
                return Err(failure);
            }
            _ if result.is_err() => {
                self.session.abort().await;
                return Ok(result);
            }
            _ => {}
        }
        for (key, write) in &self.writes {
            let checked = check_key(key).and_then(|()| match write {
                Write::Set { value, .. } => check_value(value),
                Write::Delete => Ok(()),
            });
            if let Err(error) = checked {
                self.session.abort().await;
                return Err(Failure::Final(error));
            }
        }
        self.session.commit(self.writes, attempts).await?;
        Ok(result)
    }

    /// The value of a key, or `None` if it has none.
    ///
    /// [`Error::Restart`] if this attempt has ended; return it from the closure. [`Error::Server`]
    /// if the node refuses for good, and [`Error::TooLarge`] for the key; then the transaction may
    /// go on without the value.
    pub async fn get(&mut self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>, Error> {
        let key = key.as_ref();
        if !self.knows(key) {
            self.fetch(&[key]).await?;
        }
        Ok(self.known(key))
    }

    /// The values of several keys, in one round trip.
    ///
    /// # Errors
    /// As [`Txn::get`].
    pub async fn mget(&mut self, keys: &[impl AsRef<[u8]>]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        let mut missing: Vec<&[u8]> =
            keys.iter().map(AsRef::as_ref).filter(|key| !self.knows(key)).collect();
        missing.sort_unstable();
        missing.dedup();
        if !missing.is_empty() {
            self.fetch(&missing).await?;
        }
        Ok(keys.iter().map(|key| self.known(key.as_ref())).collect())
    }

    /// Sets a key, without an expiry, when the transaction commits.
    pub fn set(&mut self, key: impl AsRef<[u8]>, value: impl Into<Vec<u8>>) {
        self.write(key.as_ref(), value.into(), Expiry::Never);
    }

    /// Sets a key when the transaction commits. The value expires `expiry` after that, in whole
    /// milliseconds rounded up, at least one and at most [`crate::limits::EXPIRY_MAX`].
    pub fn set_for(&mut self, key: impl AsRef<[u8]>, value: impl Into<Vec<u8>>, expiry: Duration) {
        self.write(key.as_ref(), value.into(), Expiry::After(expiry));
    }

    /// Deletes a key when the transaction commits. A key that has no value stays without one.
    pub fn delete(&mut self, key: impl AsRef<[u8]>) {
        self.writes.insert(key.as_ref().to_vec(), Write::Delete);
    }

    /// Adds one to a key that holds an integer, 0 if it has no value, and returns the sum. An
    /// expiry of the key stays.
    ///
    /// # Errors
    /// [`Error::NotAnInteger`], which leaves the transaction as it was, and those of [`Txn::get`].
    pub async fn incr(&mut self, key: impl AsRef<[u8]>) -> Result<i64, Error> {
        self.incr_by(key, 1).await
    }

    /// Adds to a key that holds an integer, 0 if it has no value, and returns the sum. An expiry of
    /// the key stays.
    ///
    /// # Errors
    /// [`Error::NotAnInteger`], which leaves the transaction as it was, and those of [`Txn::get`].
    pub async fn incr_by(&mut self, key: impl AsRef<[u8]>, by: i64) -> Result<i64, Error> {
        let key = key.as_ref();
        let value = self.get(key).await?;
        let number = value.as_deref().map_or(Some(0), integer);
        let Some(sum) = number.and_then(|number| number.checked_add(by)) else {
            return Err(Error::NotAnInteger { key: String::from_utf8_lossy(key).into_owned() });
        };
        let expiry = match self.writes.get(key) {
            Some(Write::Set { expiry, .. }) => *expiry,
            Some(Write::Delete) => Expiry::Never,
            None => Expiry::Keep,
        };
        self.write(key, sum.to_string().into_bytes(), expiry);
        Ok(sum)
    }

    fn write(&mut self, key: &[u8], value: Vec<u8>, expiry: Expiry) {
        self.writes.insert(key.to_vec(), Write::Set { value, expiry });
    }

    fn knows(&self, key: &[u8]) -> bool {
        self.writes.contains_key(key) || self.reads.contains_key(key)
    }

    fn known(&self, key: &[u8]) -> Option<Vec<u8>> {
        match self.writes.get(key) {
            Some(Write::Set { value, .. }) => Some(value.clone()),
            Some(Write::Delete) => None,
            None => self.reads.get(key).cloned().flatten(),
        }
    }

    async fn fetch(&mut self, keys: &[&[u8]]) -> Result<(), Error> {
        if let Some(failure) = &self.over {
            return Err(over(failure));
        }
        for key in keys {
            check_key(key)?;
        }
        // If the closure drops this future, the connection is in the middle of a reply.
        self.over = Some(Failure::Final(Error::aborted(DROPPED)));
        let values = self.session.read(keys).await;
        self.over = None;
        match values {
            Ok(values) => {
                self.reads.extend(keys.iter().map(|key| key.to_vec()).zip(values));
                Ok(())
            }
            Err(Failure::Final(error)) => Err(error),
            Err(failure) => {
                let error = over(&failure);
                self.over = Some(failure);
                Err(error)
            }
        }
    }
}

/// Runs a transaction's closure until it commits, gives up, or the attempts are used up.
pub(crate) async fn run<T, E, F>(
    transport: &dyn Transport,
    retries: Retries,
    mut body: F,
) -> Result<T, E>
where
    F: AsyncFnMut(&mut Txn) -> Result<T, E>,
    E: From<Error>,
{
    let mut attempts = Attempts::new(retries);
    loop {
        let failure = match transport.begin().await {
            Ok(session) => {
                let mut txn = Txn::new(session);
                let result = body(&mut txn).await;
                match txn.end(result, &mut attempts).await {
                    Ok(result) => return result,
                    Err(failure) => failure,
                }
            }
            Err(failure) => failure,
        };
        attempts.again(failure, transport.has_fresh_node()).await?;
    }
}

impl fmt::Debug for Txn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Txn")
            .field("reads", &self.reads.len())
            .field("writes", &self.writes.len())
            .field("over", &self.over)
            .finish_non_exhaustive()
    }
}

/// The error of a read after the end of its attempt.
fn over(failure: &Failure) -> Error {
    let reason = match failure {
        Failure::Conflict => "a conflict".to_owned(),
        Failure::TryAgain(reason) | Failure::Node(reason) => reason.clone(),
        Failure::Final(_) => return Error::aborted(DROPPED),
    };
    Error::Restart { reason }
}

/// An integer exactly as Redis writes it: no plus, no white space, no leading zeros.
fn integer(text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?;
    let number: i64 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_those_of_redis() {
        assert_eq!(integer(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(integer(b"0"), Some(0));
        for text in ["", "+1", " 1", "01", "-0", "1.0", "9223372036854775808"] {
            assert_eq!(integer(text.as_bytes()), None, "{text}");
        }
    }
}
