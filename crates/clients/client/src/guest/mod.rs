//! A client that coordinates its transactions itself, over the nodes' own protocol.
//!
//! The machine is the nodes' own ([`quorate_meerkat`]), without a replica: it reads from any
//! replica, asks all of them to validate, decides, and tells them. `ask.rs` has its transactions,
//! `session.rs` the task that owns it, `link.rs` the connections.

mod ask;
mod link;
mod session;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use quorate_machine::{Outcome, Refusal};
use quorate_types::{Incarnation, KeyspaceId};
use tokio::sync::{Mutex, mpsc, oneshot};

use crate::builder::is_address;
use crate::connection::{Dial, Pending, Tcp};
use crate::error::Error;
use crate::limits;
use crate::retry::{Attempts, Failure, Retries};
use crate::transport::{Session, Transport, Values, Writes};
use crate::txn::{Txn, run};
use ask::{Answer, Ask, Seen};
use link::Introduction;
use session::{Applicant, End, Job};

/// Settings of a [`Coordinator`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing before `connect`"]
pub struct CoordinatorBuilder {
    cluster: String,
    addresses: Vec<String>,
    keyspace: u8,
    connect_timeout: Duration,
    retries: Retries,
}

impl CoordinatorBuilder {
    pub(crate) fn new(cluster: String, addresses: &[impl AsRef<str>]) -> Self {
        Self {
            cluster,
            addresses: addresses.iter().map(|address| address.as_ref().to_owned()).collect(),
            keyspace: 0,
            connect_timeout: limits::CONNECT_TIMEOUT,
            retries: Retries {
                attempts: limits::ATTEMPTS,
                first: limits::BACKOFF_FIRST,
                longest: limits::BACKOFF_LONGEST,
                patience: limits::PATIENCE,
            },
        }
    }

    /// The number of the keyspace, whose engine must be meerkat.
    pub fn keyspace(mut self, number: u8) -> Self {
        self.keyspace = number;
        self
    }

    /// How long one attempt to connect to a node may take.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How often a transaction is attempted, at least once.
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.retries.attempts = attempts.max(1);
        self
    }

    /// The pause before the second attempt, which doubles with each further one, up to the longest.
    pub fn backoff(mut self, first: Duration, longest: Duration) -> Self {
        self.retries.first = first.min(longest);
        self.retries.longest = longest;
        self
    }

    /// How long a transaction goes on starting new attempts.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.retries.patience = patience;
        self
    }

    /// Joins the cluster at one of the nodes, and connects to all of them.
    ///
    /// # Errors
    /// [`Error::Address`]; [`Error::NoNode`] if none can be reached, or if none lets this client
    /// coordinate transactions: then it names the reason.
    pub async fn connect(self) -> Result<Coordinator, Error> {
        self.connect_over(Arc::new(Tcp)).await
    }

    /// The same over another network.
    pub(crate) async fn connect_over(self, dial: Arc<dyn Dial>) -> Result<Coordinator, Error> {
        let bad = self.addresses.iter().find(|address| !is_address(address)).cloned();
        if self.addresses.is_empty() || bad.is_some() {
            return Err(Error::Address { address: bad.unwrap_or_default() });
        }
        let applicant = Applicant {
            addresses: self.addresses,
            introduction: Introduction {
                cluster: self.cluster,
                session: Incarnation(0),
                connect_timeout: self.connect_timeout,
            },
            keyspace: KeyspaceId(self.keyspace),
            dial,
        };
        let transport = AsGuest { applicant, session: Mutex::new(None) };
        let mut attempts = Attempts::new(self.retries);
        while let Err(failure) = transport.session().await {
            attempts.again(failure, false).await?;
        }
        Ok(Coordinator { transport: Arc::new(transport), retries: self.retries })
    }
}

/// A client that coordinates its transactions itself. [`crate::Client::coordinator`] begins one.
///
/// It joins the cluster as a guest: without a replica and without a vote, but with the protocol of
/// the nodes. One round trip commits a transaction without conflicts; through a node there is one
/// more on the way to the node. If this client dies in the middle of a transaction, the replicas
/// find that out within some 100 ms and finish it.
///
/// Clones share one session, and one task that coordinates for all of them: it runs on the runtime
/// on which [`CoordinatorBuilder::connect`] was called. When the last clone is dropped, the task
/// ends as soon as every node knows the outcome of every transaction.
#[derive(Clone)]
pub struct Coordinator {
    transport: Arc<AsGuest>,
    retries: Retries,
}

impl Coordinator {
    /// Runs a transaction: the closure reads and writes through a [`Txn`], and its reads and writes
    /// happen at one moment, or not at all. The documentation of [`crate::Client::txn`] holds here
    /// as well.
    ///
    /// # Errors
    /// As [`crate::Client::txn`]; [`Error::Unknown`] also if a majority of the nodes was lost while
    /// the commit of writes was under way.
    pub async fn txn<T, F>(&self, body: F) -> Result<T, Error>
    where
        F: AsyncFnMut(&mut Txn) -> Result<T, Error>,
    {
        self.try_txn(body).await
    }

    /// The same as [`Coordinator::txn`], with an error type of your own.
    ///
    /// # Errors
    /// As [`Coordinator::txn`].
    pub async fn try_txn<T, E, F>(&self, body: F) -> Result<T, E>
    where
        F: AsyncFnMut(&mut Txn) -> Result<T, E>,
        E: From<Error>,
    {
        run(self.transport.as_ref(), self.retries, body).await
    }
}

impl fmt::Debug for Coordinator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses = &self.transport.applicant.addresses;
        f.debug_struct("Coordinator").field("addresses", addresses).finish_non_exhaustive()
    }
}

/// The transport of a guest.
struct AsGuest {
    applicant: Applicant,
    /// The current session. The first attempt that finds it ended begins the next one, and others
    /// wait.
    session: Mutex<Option<mpsc::Sender<Job>>>,
}

impl AsGuest {
    async fn session(&self) -> Result<mpsc::Sender<Job>, Failure> {
        let mut session = self.session.lock().await;
        if let Some(session) = session.as_ref().filter(|session| !session.is_closed()) {
            return Ok(session.clone());
        }
        let fresh = self.applicant.join().await.map_err(Failure::Node)?;
        *session = Some(fresh.clone());
        Ok(fresh)
    }
}

impl Transport for AsGuest {
    fn begin(&self) -> Pending<'_, Result<Box<dyn Session>, Failure>> {
        Box::pin(async move {
            let jobs = self.session().await?;
            Ok(Box::new(GuestSession { jobs, seen: BTreeMap::new() }) as Box<dyn Session>)
        })
    }

    fn has_fresh_node(&self) -> bool {
        false
    }
}

/// One attempt of one transaction.
struct GuestSession {
    jobs: mpsc::Sender<Job>,
    seen: BTreeMap<Vec<u8>, Seen>,
}

impl Session for GuestSession {
    fn read<'a>(&'a mut self, keys: &'a [&'a [u8]]) -> Pending<'a, Result<Values, Failure>> {
        Box::pin(async move {
            let ask = Ask::Read(keys.iter().map(|key| key.to_vec()).collect());
            match self.ask(ask).await {
                Some(Outcome::Done(Answer::Values(values, seen))) => {
                    self.seen.extend(keys.iter().map(|key| key.to_vec()).zip(seen));
                    Ok(values)
                }
                end => Err(failure(end, false)),
            }
        })
    }

    fn commit(
        self: Box<Self>,
        writes: Writes,
        _attempts: &mut Attempts,
    ) -> Pending<'_, Result<(), Failure>> {
        let update = !writes.is_empty();
        Box::pin(async move {
            if !update && self.seen.is_empty() {
                return Ok(());
            }
            let seen = self.seen.iter().map(|(key, seen)| (key.clone(), *seen)).collect();
            let ask = Ask::Commit { seen, writes: Arc::new(writes) };
            match self.ask(ask).await {
                Some(Outcome::Done(Answer::Committed)) => Ok(()),
                Some(Outcome::Done(Answer::Conflict)) => Err(Failure::Conflict),
                end => Err(failure(end, update)),
            }
        })
    }

    fn abort(self: Box<Self>) -> Pending<'static, ()> {
        // No node knows of it yet.
        Box::pin(std::future::ready(()))
    }
}

impl GuestSession {
    /// Asks the coordinating task to run something; `None` if the task has ended, perhaps after it
    /// ran that.
    async fn ask(&self, ask: Ask) -> Option<End> {
        let (answer, end) = oneshot::channel();
        if self.jobs.send((ask, answer)).await.is_err() {
            return Some(Outcome::Refused(Refusal::NotServing));
        }
        end.await.ok()
    }
}

/// The meaning of an end other than success for the next attempt. `update` says whether the
/// transaction may have changed anything.
fn failure(end: Option<End>, update: bool) -> Failure {
    let unknown = |reason: &str| match update {
        true => Failure::Final(Error::unknown(reason)),
        false => Failure::TryAgain(reason.to_owned()),
    };
    match end {
        None => unknown("the task that coordinates has ended; is its runtime still there?"),
        Some(Outcome::Unknown) => {
            unknown("too few nodes answered in time to know how the transaction ended")
        }
        Some(Outcome::Refused(refused)) => {
            let reason = session::refusal(refused).to_owned();
            match refused {
                Refusal::NotServing => Failure::Node(reason),
                Refusal::TooLarge | Refusal::OutOfMemory => {
                    Failure::Final(Error::Server { code: "ERR".to_owned(), message: reason })
                }
                _ => Failure::TryAgain(reason),
            }
        }
        Some(Outcome::Done(_)) => unknown("the answer to another question"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_have_happened_is_unknown() {
        let is_unknown = |end, update| matches!(failure(end, update), Failure::Final(error) if error.is_unknown());
        for end in [None, Some(Outcome::Unknown)] {
            assert!(is_unknown(end.clone(), true));
            assert!(matches!(failure(end, false), Failure::TryAgain(_)));
        }
        for refusal in [Refusal::NotServing, Refusal::Busy, Refusal::TimedOut, Refusal::Conflict] {
            assert!(failure(Some(Outcome::Refused(refusal)), true).is_transient());
        }
        assert!(!failure(Some(Outcome::Refused(Refusal::TooLarge)), true).is_transient());
    }

    #[tokio::test]
    async fn addresses_are_checked() {
        for addresses in [vec![], vec!["localhost"]] {
            let error = crate::Client::coordinator("c", &addresses).connect().await.unwrap_err();
            assert!(matches!(error, Error::Address { .. }), "{error}");
        }
    }
}
