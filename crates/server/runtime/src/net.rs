//! Sockets: listening and tuning.

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;
/// How long sent bytes may stay unacknowledged before a peer connection counts as lost. Leases and
/// heartbeats find a dead peer sooner; this frees the socket of one that vanished without a word.
const PEER_SILENCE_MAX: Duration = Duration::from_secs(3);
/// How many bytes a peer connection takes that can't be sent yet. What is beyond stays with the link,
/// where a small message overtakes what is left of a large one.
const PEER_NOT_SENT_BYTES: u32 = 2 * quorate_frame::FRAME_BYTES_MAX as u32;
/// How soon the system probes an idle client connection, and how often after that: finds clients
/// whose machine vanished (Redis's `tcp-keepalive 300`).
const CLIENT_KEEPALIVE: Duration = Duration::from_secs(300);

/// Why an address can't be listened on.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The address is not one.
    #[error("'{address}' is not an address: {source}; write host:port, like 127.0.0.1:6379")]
    Address {
        /// As it was given.
        address: String,
        /// What the resolver said.
        source: io::Error,
    },
    /// Another process has it.
    #[error("port {port} is in use: another process already listens on {address}")]
    InUse {
        /// As it was given.
        address: String,
        /// Its port.
        port: u16,
    },
    /// Anything else.
    #[error("cannot listen on {address}: {source}")]
    Other {
        /// As it was given.
        address: String,
        /// What the system said.
        source: io::Error,
    },
}

/// Listens on `address` (`host:port`).
///
/// # Errors
/// A sentence that names the address and what is wrong with it.
pub fn listen(address: &str) -> Result<TcpListener, ListenError> {
    let resolved = address
        .to_socket_addrs()
        .and_then(|mut found| {
            found.next().ok_or_else(|| io::Error::other("the name has no address"))
        })
        .map_err(|source| ListenError::Address { address: address.to_owned(), source })?;
    bind(resolved).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => {
            ListenError::InUse { address: address.to_owned(), port: resolved.port() }
        }
        _ => ListenError::Other { address: address.to_owned(), source },
    })
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // A restarted node must get its port back although connections of its last life linger.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Sets a client connection's options. A failure costs speed, nothing else.
pub(crate) fn tune_client(stream: &mio::net::TcpStream) {
    let socket = SockRef::from(stream);
    let keepalive =
        TcpKeepalive::new().with_time(CLIENT_KEEPALIVE).with_interval(CLIENT_KEEPALIVE / 3);
    if let Err(error) = socket.set_tcp_nodelay(true).and(socket.set_tcp_keepalive(&keepalive)) {
        tracing::debug!(%error, "client socket options were refused");
    }
}

/// Sets a peer connection's options. A failure costs speed, nothing else.
pub(crate) fn tune_peer(stream: &mio::net::TcpStream) {
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new()
        .with_time(PEER_SILENCE_MAX / 3)
        .with_interval(PEER_SILENCE_MAX / 3)
        .with_retries(2);
    let result = socket
        .set_tcp_nodelay(true)
        .and(socket.set_tcp_notsent_lowat(PEER_NOT_SENT_BYTES))
        .and(socket.set_tcp_user_timeout(Some(PEER_SILENCE_MAX)))
        .and(socket.set_tcp_keepalive(&keepalive));
    if let Err(error) = result {
        tracing::debug!(%error, "peer socket options were refused");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_is_named() {
        let first = listen("127.0.0.1:0").unwrap();
        let address = first.local_addr().unwrap();
        let error = listen(&address.to_string()).unwrap_err();
        assert!(matches!(error, ListenError::InUse { port, .. } if port == address.port()));
        assert!(error.to_string().contains(&address.port().to_string()), "{error}");
    }

    #[test]
    fn nonsense_is_not_an_address() {
        let error = listen("nonsense").unwrap_err();
        assert!(error.to_string().contains("'nonsense'"), "{error}");
    }
}
