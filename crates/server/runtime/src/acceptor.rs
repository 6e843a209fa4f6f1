//! The listening sockets of this process's nodes, on thread 0.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry};
use quorate_types::Instant;

use crate::token::Source;

/// Connections accepted from one port in one turn at most.
const ACCEPTS_PER_TURN: usize = 64;
/// Clients that may be on their way to the thread that serves them; others wait in the system's
/// queue. Nobody counts them as clients yet.
pub(crate) const IN_TRANSIT_MAX: usize = 64;
/// How long to wait after the system refused to accept, for want of file descriptors mostly.
const PAUSE: Duration = Duration::from_millis(100);
/// How long to wait for clients in transit to arrive.
const TRANSIT: Duration = Duration::from_millis(1);

/// Which port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Port {
    Client,
    Peer,
}

/// The ports of every node of this process.
pub(crate) struct Acceptor {
    /// By node: its client port, its peer port.
    ports: Vec<[Option<Listening>; 2]>,
    next_thread: usize,
    /// By node: a token that each of its clients in transit has a share of.
    transits: Vec<Transit>,
    /// Set while the system refuses to accept.
    paused_until: Option<Instant>,
}

/// What a client in transit carries, so that the acceptor can count them.
pub(crate) type Transit = Arc<()>;

struct Listening {
    listener: TcpListener,
    ready: bool,
    share: usize,
}

impl Acceptor {
    /// Watches the ports.
    pub(crate) fn new(
        registry: &Registry,
        listeners: Vec<(std::net::TcpListener, Option<std::net::TcpListener>)>,
    ) -> io::Result<Self> {
        let mut ports = Vec::new();
        for (host, (client, peer)) in listeners.into_iter().enumerate() {
            let client = Listening::new(registry, client, Source::ClientListener { host })?;
            let peer = match peer {
                Some(peer) => Some(Listening::new(registry, peer, Source::PeerListener { host })?),
                None => None,
            };
            ports.push([Some(client), peer]);
        }
        let transits = ports.iter().map(|_| Transit::default()).collect();
        Ok(Self { ports, next_thread: 0, transits, paused_until: None })
    }

    /// Connections may be waiting at a port.
    pub(crate) fn ready(&mut self, port: Port, host: usize) {
        if let Some(port) = &mut self.ports[host][port as usize] {
            port.ready = true;
        }
    }

    /// The next connection of a port, within this turn's share.
    pub(crate) fn accept(
        &mut self,
        port: Port,
        host: usize,
        now: Instant,
    ) -> Option<(TcpStream, SocketAddr)> {
        if self.paused_until.is_some_and(|until| until > now) {
            return None;
        }
        self.paused_until = None;
        if port == Port::Client && Arc::strong_count(&self.transits[host]) > IN_TRANSIT_MAX {
            self.paused_until = Some(now + TRANSIT);
            return None;
        }
        let port = self.ports[host][port as usize].as_mut()?;
        while port.ready && port.share > 0 {
            port.share -= 1;
            match port.listener.accept() {
                Ok(accepted) => return Some(accepted),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => port.ready = false,
                // The client gave up between its call and our answer.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::error!(%error, "cannot accept connections; raise the open files limit");
                    self.paused_until = Some(now + PAUSE);
                    return None;
                }
            }
        }
        None
    }

    /// Gives the ports of a node their share of the next turn.
    pub(crate) fn turn_over(&mut self, host: usize) {
        for port in self.ports[host].iter_mut().flatten() {
            port.share = ACCEPTS_PER_TURN;
        }
    }

    /// For a client of a node that is handed to another thread.
    pub(crate) fn transit(&self, host: usize) -> Transit {
        Arc::clone(&self.transits[host])
    }

    /// The thread for the next client: each in turn.
    pub(crate) fn next_thread(&mut self, threads: usize) -> usize {
        let thread = self.next_thread;
        self.next_thread = (thread + 1) % threads;
        thread
    }

    /// Whether connections are known to wait.
    pub(crate) fn has_work(&self) -> bool {
        self.paused_until.is_none() && self.ports.iter().flatten().flatten().any(|port| port.ready)
    }

    /// When to try again.
    pub(crate) fn deadline(&self) -> Instant {
        self.paused_until.unwrap_or(Instant::NEVER)
    }
}

impl Listening {
    fn new(
        registry: &Registry,
        listener: std::net::TcpListener,
        source: Source,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let mut listener = TcpListener::from_std(listener);
        registry.register(&mut listener, source.token(), Interest::READABLE)?;
        Ok(Self { listener, ready: true, share: ACCEPTS_PER_TURN })
    }
}
