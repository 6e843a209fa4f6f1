//! Settings of a client.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use tokio::io::{AsyncRead, AsyncWrite};

use crate::client::Client;
use crate::connection::{By, Dial, Tcp};
use crate::error::Error;
use crate::limits;
use crate::pool::Options;
use crate::retry::Retries;

/// Settings of a client, which begin as the defaults in [`crate::limits`].
#[derive(Clone)]
#[must_use = "a builder does nothing before `connect`"]
pub struct Builder {
    options: Options,
    dial: Arc<dyn Dial>,
}

impl Builder {
    pub(crate) fn new(addresses: &[impl AsRef<str>]) -> Self {
        let retries = Retries {
            attempts: limits::ATTEMPTS,
            first: limits::BACKOFF_FIRST,
            longest: limits::BACKOFF_LONGEST,
            patience: limits::PATIENCE,
        };
        Self {
            options: Options {
                addresses: addresses.iter().map(|address| address.as_ref().to_owned()).collect(),
                database: 0,
                password: None,
                timeout: limits::TIMEOUT,
                connect_timeout: limits::CONNECT_TIMEOUT,
                pool_size: limits::POOL_SIZE,
                sessions: true,
                routes: true,
                retries,
            },
            dial: Arc::new(Tcp),
        }
    }

    /// The number of the keyspace (`SELECT`).
    pub fn database(mut self, number: u8) -> Self {
        self.options.database = number;
        self
    }

    /// The nodes' `requirepass`.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.options.password = Some(password.into());
        self
    }

    /// How long the replies of one request may take, and how long a call waits for a connection to
    /// become free.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options.timeout = timeout;
        self
    }

    /// How long one attempt to connect may take.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.options.connect_timeout = timeout;
        self
    }

    /// The most connections, over all nodes; at least one. A transaction keeps one to itself until
    /// it ends. Where requests go to where their keys live, it is the most in use at a time; as many
    /// to each node may stay open.
    pub fn pool_size(mut self, connections: usize) -> Self {
        self.options.pool_size = connections.clamp(1, tokio::sync::Semaphore::MAX_PERMITS);
        self
    }

    /// Whether updates are calls of sessions, which a node executes once however often it is asked:
    /// then they are tried again after any failure. They are by default, unless the server knows no
    /// sessions.
    pub fn sessions(mut self, sessions: bool) -> Self {
        self.options.sessions = sessions;
        self
    }

    /// Whether requests go where their first key lives, in keyspaces whose keys move (engine
    /// zeus). They do by default. Otherwise requests go round the nodes, and keys move behind them
    /// or are forwarded.
    pub fn routes(mut self, routes: bool) -> Self {
        self.options.routes = routes;
        self
    }

    /// How often a call is attempted, at least once.
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.options.retries.attempts = attempts.max(1);
        self
    }

    /// The pause before the second attempt, which doubles with each further one, up to the longest.
    pub fn backoff(mut self, first: Duration, longest: Duration) -> Self {
        self.options.retries.first = first.min(longest);
        self.options.retries.longest = longest;
        self
    }

    /// How long a call goes on starting new attempts.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.options.retries.patience = patience;
        self
    }

    /// Replaces plain TCP by another way to connect to the address of a node: TLS, a proxy, or a
    /// simulated network. `connect_timeout` covers everything the connector does, a TLS handshake
    /// included. The stream must not hold back written bytes when it is flushed.
    ///
    /// ```no_run
    /// use tokio::net::TcpStream;
    ///
    /// # async fn example() -> Result<(), quorate_client::Error> {
    /// let client = quorate_client::Client::builder(&["10.0.0.1:6379"])
    ///     .connector(|address| async move {
    ///         let stream = TcpStream::connect(address).await?;
    ///         stream.set_nodelay(true)?;
    ///         Ok(stream) // Or what a TLS library makes of it.
    ///     })
    ///     .connect()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn connector<F, C, S>(mut self, connect: F) -> Self
    where
        F: Fn(String) -> C + Send + Sync + 'static,
        C: Future<Output = io::Result<S>> + Send,
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        self.dial = Arc::new(By(connect));
        self
    }

    /// Connects to one of the nodes.
    ///
    /// # Errors
    /// [`Error::Address`]; [`Error::NoNode`] if none can be reached; [`Error::Server`] if a node
    /// refuses the password or the database.
    pub async fn connect(self) -> Result<Client, Error> {
        if self.options.addresses.is_empty() {
            return Err(Error::Address { address: String::new() });
        }
        if let Some(address) = self.options.addresses.iter().find(|address| !is_address(address)) {
            return Err(Error::Address { address: address.clone() });
        }
        Client::open(self.options, self.dial).await
    }
}

impl fmt::Debug for Builder {
    /// The password is left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("addresses", &self.options.addresses)
            .field("database", &self.options.database)
            .finish_non_exhaustive()
    }
}

/// Whether this is `host:port`.
pub(crate) fn is_address(text: &str) -> bool {
    text.rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_host_and_a_port() {
        assert!(is_address("127.0.0.1:6379") && is_address("[::1]:6379") && is_address("a:1"));
        for text in ["", "localhost", ":6379", "a:", "a:65536", "redis://a"] {
            assert!(!is_address(text), "{text}");
        }
    }
}
