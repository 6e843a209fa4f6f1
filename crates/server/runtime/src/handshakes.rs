//! Peer connections that have not introduced themselves yet. Lane 0 of a node accepts them, reads
//! their hello and hands them to the lane they are for. A stranger is told why it is
//! disconnected.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::Duration;

use mio::net::TcpStream;
use quorate_types::Instant;
use quorate_wire::Hello;

use crate::link::{Received, receive};

/// Connections that may be waiting to introduce themselves. One more takes the place of that which
/// has been silent longest: peers introduce themselves at once.
pub(crate) const STRANGERS_MAX: usize = 128;
/// How long an introduction may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Peer connections of one node that have not introduced themselves.
#[derive(Default)]
pub(crate) struct PendingHandshakes {
    waiting: Vec<Option<PendingHandshake>>,
    pub(crate) refused: u64,
}

struct PendingHandshake {
    stream: TcpStream,
    address: SocketAddr,
    input: Vec<u8>,
    until: Instant,
}

/// A connection that introduced itself properly.
pub(crate) struct Introduced {
    pub(crate) stream: TcpStream,
    pub(crate) hello: Hello,
    /// Bytes that came after the hello.
    pub(crate) rest: Vec<u8>,
}

impl PendingHandshakes {
    /// Takes in a new connection. `register` is told its number.
    pub(crate) fn welcome(
        &mut self,
        now: Instant,
        mut stream: TcpStream,
        address: SocketAddr,
        register: impl FnOnce(&mut TcpStream, usize) -> io::Result<()>,
    ) {
        let index = self.place();
        if let Err(error) = register(&mut stream, index) {
            tracing::warn!(sender = %address.ip(), %error, "a peer connection could not be watched");
            return;
        }
        let handshake =
            PendingHandshake { stream, address, input: Vec::new(), until: now + PATIENCE };
        if index == self.waiting.len() {
            self.waiting.push(Some(handshake));
        } else {
            self.waiting[index] = Some(handshake);
        }
    }

    /// A free place, if need be that of the handshake that came first.
    fn place(&mut self) -> usize {
        let free = self.waiting.iter().position(Option::is_none);
        let index = free.unwrap_or(self.waiting.len());
        if index < STRANGERS_MAX {
            return index;
        }
        let handshakes = self.waiting.iter().enumerate();
        let since = handshakes.filter_map(|(index, place)| Some((place.as_ref()?.until, index)));
        let (_, first) = since.min().expect("no place is free");
        if let Some(mut handshake) = self.waiting[first].take() {
            self.refused += 1;
            handshake.refuse("too many connections don't introduce themselves");
        }
        first
    }

    /// Reads the hello of a connection. `check` decides whether it is a peer; `release` ends the watch
    /// over a connection that is handed on.
    pub(crate) fn listen(
        &mut self,
        index: usize,
        check: impl FnOnce(&Hello) -> Result<(), String>,
        release: impl FnOnce(&mut TcpStream) -> io::Result<()>,
    ) -> Option<Introduced> {
        let handshake = self.waiting.get_mut(index)?.as_mut()?;
        let verdict = handshake.read_hello();
        let hello = match verdict {
            Ok(None) => return None,
            Ok(Some(hello)) => check(&hello).map(|()| hello),
            Err(reason) => Err(reason),
        };
        let mut handshake = self.waiting[index].take()?;
        match hello {
            Ok(hello) => match release(&mut handshake.stream) {
                Ok(()) => {
                    Some(Introduced { stream: handshake.stream, hello, rest: handshake.input })
                }
                Err(error) => {
                    tracing::warn!(%error, "a peer connection could not be handed on");
                    None
                }
            },
            Err(reason) => {
                self.refused += 1;
                handshake.refuse(&reason);
                None
            }
        }
    }

    /// Disconnects peers that have not introduced themselves in time.
    pub(crate) fn expire(&mut self, now: Instant) {
        for place in &mut self.waiting {
            if place.as_ref().is_some_and(|handshake| handshake.until <= now) {
                self.refused += 1;
                if let Some(mut handshake) = place.take() {
                    handshake.refuse("no introduction came in time");
                }
            }
        }
    }

    /// When [`PendingHandshakes::expire`] next has something to do.
    pub(crate) fn deadline(&self) -> Instant {
        let deadlines = self.waiting.iter().flatten().map(|handshake| handshake.until);
        deadlines.min().unwrap_or(Instant::NEVER)
    }

    /// Disconnects everybody.
    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
    }
}

impl PendingHandshake {
    /// The hello, if it is complete, which leaves the bytes after it in `input`.
    fn read_hello(&mut self) -> Result<Option<Hello>, String> {
        // Reads to the end of what is there, as edge-triggered events demand, yet never more than
        // a hello and what one read brings along: a peer waits for our hello before it goes on.
        loop {
            match receive(&self.stream, &mut self.input, Hello::BYTES_MAX) {
                Ok(Received::Nothing) => return Ok(None),
                Ok(Received::Closed) => return Err("closed before its introduction".to_owned()),
                Ok(Received::Some { .. }) => {}
                Err(error) => return Err(error.to_string()),
            }
            let mut rest = &self.input[..];
            match Hello::decode(&mut rest) {
                Ok(None) => {}
                Ok(Some(hello)) => {
                    let used = self.input.len() - rest.len();
                    self.input.drain(..used);
                    return Ok(Some(hello));
                }
                Err(refusal) => return Err(refusal.to_string()),
            }
        }
    }

    /// Says why, as a line of text that starts like a Redis error: its reader, person or program,
    /// most likely meant the client port.
    fn refuse(&mut self, reason: &str) {
        tracing::warn!(sender = %self.address.ip(), reason, "peer connection refused");
        let text = format!("-REFUSED {reason}\r\n");
        if let Err(error) = self.stream.write(text.as_bytes()) {
            tracing::debug!(%error, "the refused side was not told why");
        }
        // Reading what is left lets the system close in an orderly way: with unread bytes it
        // would reset the connection and the text could be lost.
        self.input.clear();
        for _ in 0..16 {
            match receive(&self.stream, &mut self.input, 4096) {
                Ok(Received::Some { .. }) => self.input.clear(),
                _ => break,
            }
        }
    }
}
