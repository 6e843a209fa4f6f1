//! The client: commands, and transactions with their retries.

use std::fmt;
use std::sync::Arc;

use crate::builder::Builder;
use crate::calls::{Command, Effect, ask_again, perform};
use crate::connection::Dial;
use crate::error::Error;
use crate::guest::CoordinatorBuilder;
use crate::over_resp::OverResp;
use crate::pipeline::Pipeline;
use crate::pool::{Options, Pool};
use crate::reply::Reply;
use crate::request::{check_key, check_value};
use crate::retry::Attempts;
use crate::sessions::{OpenCall, Sessions};
use crate::transport::Transport;
use crate::txn::{Txn, run};

/// Commands that change the state of a connection, or the replies that come over it.
const STATEFUL: &[&str] = &[
    "ASKING",
    "AUTH",
    "DISCARD",
    "EXEC",
    "HELLO",
    "MONITOR",
    "MULTI",
    "PSUBSCRIBE",
    "PSYNC",
    "PUNSUBSCRIBE",
    "QUIT",
    "READONLY",
    "READWRITE",
    "RESET",
    "SELECT",
    "SSUBSCRIBE",
    "SUBSCRIBE",
    "SUNSUBSCRIBE",
    "SYNC",
    "UNSUBSCRIBE",
    "UNWATCH",
    "WATCH",
];

/// A client of a cluster, through any of its nodes. Clones share their connections.
///
/// Calls go round the nodes. A call that a node has refused or not received is tried at another
/// one. So is an update that may have happened: it is a call of a session, which takes effect once.
/// Where there are no sessions it is not tried again, see [`Error::Unknown`].
#[derive(Clone)]
pub struct Client {
    pool: Arc<Pool>,
    transport: Arc<dyn Transport>,
    sessions: Arc<Sessions>,
}

impl Client {
    /// Connects to a cluster, with the defaults of [`crate::limits`] and database 0. Each address
    /// is `host:port`; one is enough, with more of them the client survives the loss of a node.
    ///
    /// # Errors
    /// [`Error::Address`]; [`Error::NoNode`] if none can be reached.
    pub async fn connect(addresses: &[impl AsRef<str>]) -> Result<Self, Error> {
        Self::builder(addresses).connect().await
    }

    /// Begins a client with other settings than the defaults.
    pub fn builder(addresses: &[impl AsRef<str>]) -> Builder {
        Builder::new(addresses)
    }

    /// Begins a client that coordinates its transactions itself, in the cluster of this name. Each
    /// address is the *peer* address of a node, `host:port`; one is enough to find the others. The
    /// nodes must have `[cluster] guests = true`.
    pub fn coordinator(
        cluster: impl Into<String>,
        addresses: &[impl AsRef<str>],
    ) -> CoordinatorBuilder {
        CoordinatorBuilder::new(cluster.into(), addresses)
    }

    /// Connects over this network.
    pub(crate) async fn open(options: Options, dial: Arc<dyn Dial>) -> Result<Self, Error> {
        let pool = Pool::new(options, dial);
        let sessions = Arc::new(Sessions::new(pool.options.sessions));
        let over_resp = OverResp { pool: pool.clone(), sessions: sessions.clone() };
        let client = Self { transport: Arc::new(over_resp), pool, sessions };
        let mut attempts = client.attempts();
        loop {
            match client.pool.borrow(None).await {
                Ok(_) => return Ok(client),
                Err(failure) => attempts.again(failure, client.pool.has_fresh_node()).await?,
            }
        }
    }

    /// The value of a key, or `None` if it has no value (`GET`).
    ///
    /// # Errors
    /// Never [`Error::Unknown`]: a read without an answer is repeated.
    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>, Error> {
        let key = key.as_ref();
        check_key(key)?;
        let reply = self.call(&[b"GET", key], Effect::Read).await?;
        optional("GET", reply)
    }

    /// Sets a key, without an expiry (`SET`).
    ///
    /// # Errors
    /// [`Error::Unknown`] if the value may be set or not.
    pub async fn set(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<(), Error> {
        let (key, value) = (key.as_ref(), value.as_ref());
        check_key(key)?;
        check_value(value)?;
        let reply = self.call(&[b"SET", key, value], Effect::Update).await?;
        ok("SET", &reply)
    }

    /// Deletes a key, and says whether it had a value (`DEL`).
    ///
    /// # Errors
    /// [`Error::Unknown`] if the key may be deleted or not.
    pub async fn del(&self, key: impl AsRef<[u8]>) -> Result<bool, Error> {
        let key = key.as_ref();
        check_key(key)?;
        let reply = self.call(&[b"DEL", key], Effect::Update).await?;
        integer("DEL", &reply).map(|deleted| deleted > 0)
    }

    /// Adds one to a key that holds an integer, 0 if it has no value, and returns the sum (`INCR`).
    ///
    /// # Errors
    /// [`Error::Unknown`] if it may have been added or not. [`Error::Server`] if the value is no
    /// integer.
    pub async fn incr(&self, key: impl AsRef<[u8]>) -> Result<i64, Error> {
        let key = key.as_ref();
        check_key(key)?;
        let reply = self.call(&[b"INCR", key], Effect::Update).await?;
        integer("INCR", &reply)
    }

    /// The values of several keys (`MGET`). In a keyspace with transactions they are those of one
    /// moment.
    ///
    /// # Errors
    /// Never [`Error::Unknown`]: a read without an answer is repeated.
    pub async fn mget(&self, keys: &[impl AsRef<[u8]>]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let mut words: Vec<&[u8]> = vec![b"MGET"];
        for key in keys {
            check_key(key.as_ref())?;
            words.push(key.as_ref());
        }
        match self.call(&words, Effect::Read).await? {
            Reply::Array(values) if values.len() == keys.len() => {
                values.into_iter().map(|value| optional("MGET", value)).collect()
            }
            other => Err(unexpected("MGET", &other)),
        }
    }

    /// Sets several keys at one moment, without an expiry (`MSET`).
    ///
    /// # Errors
    /// [`Error::Unknown`] if the values may be set or not. [`Error::Server`] with `CROSSKEY` in a
    /// keyspace without transactions.
    pub async fn mset(&self, pairs: &[(impl AsRef<[u8]>, impl AsRef<[u8]>)]) -> Result<(), Error> {
        if pairs.is_empty() {
            return Ok(());
        }
        let mut words: Vec<&[u8]> = vec![b"MSET"];
        for (key, value) in pairs {
            check_key(key.as_ref())?;
            check_value(value.as_ref())?;
            words.extend([key.as_ref(), value.as_ref()]);
        }
        let reply = self.call(&words, Effect::Update).await?;
        ok("MSET", &reply)
    }

    /// Any other command, its name first.
    ///
    /// # Errors
    /// [`Error::Stateful`] for commands that would change the shared connection. [`Error::Unknown`]
    /// if the command may have been executed or not; the client doesn't know which commands only
    /// read.
    pub async fn command<W: AsRef<[u8]>>(
        &self,
        words: impl IntoIterator<Item = W>,
    ) -> Result<Reply, Error> {
        let words: Vec<W> = words.into_iter().collect();
        let words: Vec<&[u8]> = words.iter().map(AsRef::as_ref).collect();
        check_stateless(&words)?;
        self.call(&words, Effect::Update).await
    }

    /// Runs a transaction: the closure reads and writes through a [`Txn`], and its reads and writes
    /// happen at one moment, or not at all.
    ///
    /// The closure runs again, from its start and with a new `Txn`, if another transaction changed
    /// a key that it had read, or if a node failed before the commit was under way. So it must have
    /// no other effects than those on the `Txn`. To give up, return [`Error::aborted`]; that
    /// decision may rest on values of different moments. To decide on values of one moment, return
    /// `Ok(Err(..))`: a transaction that ends in `Ok` has its reads checked even if it writes
    /// nothing.
    ///
    /// On a task of its own (`tokio::spawn`), let the closure own what it uses, with `async move`
    /// and clones: the compiler can't yet see that a closure that borrows may change threads.
    ///
    /// # Errors
    /// [`Error::Unknown`] if the answer to the commit of writes was lost and no node could tell its
    /// outcome before the attempts were used up; without sessions, as soon as the answer is lost.
    /// [`Error::Conflict`], [`Error::TryAgain`] and [`Error::NoNode`] if the attempts were used up.
    /// Otherwise the error that the closure returned.
    pub async fn txn<T, F>(&self, body: F) -> Result<T, Error>
    where
        F: AsyncFnMut(&mut Txn) -> Result<T, Error>,
    {
        self.try_txn(body).await
    }

    /// The same as [`Client::txn`], with an error type of your own.
    ///
    /// # Errors
    /// As [`Client::txn`].
    pub async fn try_txn<T, E, F>(&self, body: F) -> Result<T, E>
    where
        F: AsyncFnMut(&mut Txn) -> Result<T, E>,
        E: From<Error>,
    {
        run(self.transport.as_ref(), self.pool.options.retries, body).await
    }

    fn attempts(&self) -> Attempts {
        Attempts::new(self.pool.options.retries)
    }

    /// Asks again about a call whose outcome was unknown ([`Error::Unknown`]). A call that has
    /// happened is not repeated: the answer is the one that it had then. A call that has not
    /// happened does now.
    ///
    /// The exception is the commit of a transaction, which does not happen now, because the keys
    /// that it has read may have changed: the answer is [`Reply::Array`] if it has happened, and
    /// [`Reply::NullArray`] if it has not and never will.
    ///
    /// # Errors
    /// As for the call itself; [`Error::Unknown`] without a call once its session has ended.
    pub async fn ask_again(&self, call: OpenCall) -> Result<Reply, Error> {
        match ask_again(&self.pool, &self.sessions, call, &mut self.attempts()).await {
            Ok(Reply::Error(error)) => Err(error.into()),
            end => end,
        }
    }

    /// Begins a pipeline: commands that are sent together.
    pub fn pipeline(&self) -> Pipeline {
        Pipeline::new(self.clone())
    }

    async fn call(&self, words: &[&[u8]], kind: Effect) -> Result<Reply, Error> {
        let mut commands = [Command::new(words, kind)];
        self.perform(&mut commands).await;
        let [command] = commands;
        command.end()
    }

    /// Sends commands until each has ended.
    pub(crate) async fn perform(&self, commands: &mut [Command]) {
        let held = self.sessions.hold(None);
        perform(&self.pool, held, commands, &mut self.attempts()).await;
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("pool", &self.pool).finish_non_exhaustive()
    }
}

/// Refuses commands that a shared connection can't take.
pub(crate) fn check_stateless(words: &[&[u8]]) -> Result<(), Error> {
    let name = words.first().map(|name| String::from_utf8_lossy(name).to_uppercase());
    let name = name.unwrap_or_default();
    let second = words.get(1).copied().unwrap_or_default();
    let turns_replies_off = name == "CLIENT"
        && [b"REPLY".as_slice(), b"TRACKING"].iter().any(|word| word.eq_ignore_ascii_case(second));
    if name.is_empty() || turns_replies_off || STATEFUL.contains(&&*name) {
        let command = if name.is_empty() { "an empty command".to_owned() } else { name };
        return Err(Error::Stateful { command });
    }
    Ok(())
}

fn optional(command: &'static str, reply: Reply) -> Result<Option<Vec<u8>>, Error> {
    match reply {
        Reply::Bulk(value) => Ok(Some(value)),
        Reply::Null => Ok(None),
        other => Err(unexpected(command, &other)),
    }
}

fn integer(command: &'static str, reply: &Reply) -> Result<i64, Error> {
    match reply {
        Reply::Integer(number) => Ok(*number),
        other => Err(unexpected(command, other)),
    }
}

fn ok(command: &'static str, reply: &Reply) -> Result<(), Error> {
    if reply.is_ok() { Ok(()) } else { Err(unexpected(command, reply)) }
}

fn unexpected(command: &'static str, reply: &Reply) -> Error {
    Error::UnexpectedReply { command, reply: reply.kind() }
}
