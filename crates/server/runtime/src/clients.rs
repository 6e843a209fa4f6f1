//! The client sockets of one lane of one node: moves bytes between them and the front end.
//!
//! Sockets are watched edge-triggered for both directions from the start, so that no system call
//! is spent on changing the watch: Linux reports room to write only after a write did not fit.

use std::io::{self, Write};
use std::net::SocketAddr;

use mio::net::TcpStream;
use quorate_resp::{Backend, ConnectionId, Frontend};
use quorate_types::Now;

use crate::link::{Received, receive};

/// Bytes that one turn reads from all clients at most before heartbeats get their turn. What it
/// executes for them is bounded in time ([`Frontend::is_turn_over`]): a turn that outlasts the lease
/// would cost the node its place in the view.
const ALL_BYTES_PER_TURN: u64 = 4 * 1024 * 1024;
/// Bytes that one turn reads from one client at most before the others get their turn.
const READ_BYTES_PER_TURN: usize = 256 * 1024;
/// Bytes that one turn writes to one client at most: a socket may take megabytes at once, and the
/// system's copy of them is part of the turn.
const WRITE_BYTES_PER_TURN: usize = 256 * 1024;

/// One connected client.
struct Client {
    stream: TcpStream,
    id: ConnectionId,
    /// The socket may hold bytes: an edge came and no short read since.
    readable: bool,
    /// The client has sent everything it ever will.
    hung_up: bool,
    /// It stands in `ready`.
    queued: bool,
    /// The last write did not fit.
    blocked: bool,
    /// The flush that has looked at it last.
    flushed: u64,
}

/// The client sockets of one lane of one node.
#[derive(Default)]
pub(crate) struct Clients {
    /// By the slot that the front end gave the connection.
    sockets: Vec<Option<Client>>,
    /// Clients to read from in this turn.
    ready: Vec<usize>,
    /// Clients that have bytes to read and commands that wait: read from once these went on.
    stalled: Vec<usize>,
    /// Connections to write to at the end of the turn, besides those the front end names: there is
    /// room again, or the last turn's share was taken.
    unblocked: Vec<ConnectionId>,
    dirty: Vec<ConnectionId>,
    spare: Vec<usize>,
    /// How many there were.
    flushes: u64,
    pub(crate) bytes_received: u64,
    pub(crate) bytes_sent: u64,
}

impl Clients {
    /// Takes in a new client, or tells it why not. `register` is told its number.
    pub(crate) fn open(
        &mut self,
        now: Now,
        mut stream: TcpStream,
        peer: SocketAddr,
        frontend: &mut Frontend,
        register: impl FnOnce(&mut TcpStream, usize) -> io::Result<()>,
    ) {
        let local = stream.local_addr().unwrap_or(peer);
        let id = match frontend.open(now, peer, local) {
            Ok(id) => id,
            Err(refusal) => {
                // A fresh socket has room for one line; if not, closing says enough.
                let _ = stream.write(refusal);
                return;
            }
        };
        let slot = id.0.index as usize;
        if let Err(error) = register(&mut stream, slot) {
            tracing::warn!(%peer, %error, "a client connection could not be watched");
            frontend.close(id);
            return;
        }
        crate::net::tune_client(&stream);
        if slot >= self.sockets.len() {
            self.sockets.resize_with(slot + 1, || None);
        }
        self.sockets[slot] = Some(Client {
            stream,
            id,
            readable: true,
            hung_up: false,
            queued: true,
            blocked: false,
            flushed: 0,
        });
        // The first command often arrives before the watch begins.
        self.ready.push(slot);
    }

    /// Notes what the poll said about a client.
    #[inline]
    pub(crate) fn on_event(&mut self, slot: usize, event: &mio::event::Event) {
        // An event of a socket that was closed in this turn may find its successor in the slot;
        // an attempt to read from that does no harm.
        let Some(Some(client)) = self.sockets.get_mut(slot) else { return };
        if event.is_readable() || event.is_read_closed() || event.is_error() {
            client.readable = true;
            client.hung_up |= event.is_read_closed() || event.is_error();
            if !client.queued {
                client.queued = true;
                self.ready.push(slot);
            }
        }
        if client.blocked && event.is_writable() {
            client.blocked = false;
            self.unblocked.push(client.id);
        }
    }

    /// Reads from every client that has something to say, and executes it.
    ///
    /// `clock` is read after the bytes were: an op that is older by the clock than its arrival could
    /// be put in the past of what was acknowledged before its client asked.
    pub(crate) fn read<B: Backend>(
        &mut self,
        clock: impl Fn() -> Now,
        frontend: &mut Frontend,
        backend: &mut B,
    ) {
        let mut ready = std::mem::replace(&mut self.ready, std::mem::take(&mut self.spare));
        let begun = self.bytes_received;
        let mut waiting = ready.drain(..);
        for slot in waiting.by_ref() {
            self.read_one(slot, &clock, frontend, backend);
            if self.bytes_received - begun >= ALL_BYTES_PER_TURN || frontend.is_turn_over() {
                break;
            }
        }
        self.ready.extend(waiting);
        self.spare = ready;
    }

    fn read_one<B: Backend>(
        &mut self,
        slot: usize,
        clock: &impl Fn() -> Now,
        frontend: &mut Frontend,
        backend: &mut B,
    ) {
        let Some(Some(client)) = self.sockets.get_mut(slot) else { return };
        client.queued = false;
        let mut share = READ_BYTES_PER_TURN;
        while client.readable {
            if !frontend.wants_read(client.id) {
                self.stalled.push(slot);
                return;
            }
            if share == 0 {
                client.queued = true;
                self.ready.push(slot);
                return;
            }
            let Some(buffer) = frontend.read_buffer(client.id) else { return };
            match receive(&client.stream, buffer, 1) {
                Ok(Received::Some { bytes, drained }) => {
                    self.bytes_received += bytes as u64;
                    share = share.saturating_sub(bytes);
                    // A short read means that the socket is empty, unless its end has come.
                    client.readable = !drained || client.hung_up;
                    frontend.process(client.id, clock(), backend);
                }
                Ok(Received::Nothing) => {
                    client.readable = false;
                    frontend.nothing_read(client.id);
                }
                Ok(Received::Closed) => {
                    // Replies to what it sent before are still owed: it may only have shut down
                    // its sending side.
                    client.readable = false;
                    frontend.end_of_input(client.id);
                }
                Err(_) => {
                    let id = client.id;
                    self.close(id, frontend);
                    return;
                }
            }
        }
    }

    /// Writes what the front end has for its clients, one system call and one share each. Call after
    /// the seal.
    pub(crate) fn flush<B: Backend>(&mut self, now: Now, frontend: &mut Frontend, backend: &mut B) {
        self.flushes += 1;
        let mut dirty = std::mem::take(&mut self.dirty);
        frontend.take_dirty(&mut dirty);
        dirty.append(&mut self.unblocked);
        for id in dirty.drain(..) {
            self.flush_one(id, now, frontend, backend);
        }
        self.dirty = dirty;
    }

    #[inline]
    fn flush_one<B: Backend>(
        &mut self,
        id: ConnectionId,
        now: Now,
        frontend: &mut Frontend,
        backend: &mut B,
    ) {
        let Some(Some(client)) = self.sockets.get_mut(id.0.index as usize) else { return };
        // Who has more to send and something new is named twice, and has one share.
        if client.id != id || client.flushed == self.flushes {
            return;
        }
        client.flushed = self.flushes;
        let Some(output) = frontend.output(id) else { return };
        let mut lost = false;
        if !output.is_empty() && !client.blocked {
            let share = output.len().min(WRITE_BYTES_PER_TURN);
            let has_more = output.len() > share;
            match write(&client.stream, &output.unsent()[..share]) {
                Ok(written) => {
                    client.blocked = written < share;
                    if has_more && !client.blocked {
                        self.unblocked.push(id);
                    }
                    self.bytes_sent += written as u64;
                    frontend.written(id, written, now, backend);
                }
                Err(_) => lost = true,
            }
        }
        if lost || frontend.wants_close(id) {
            self.close(id, frontend);
        }
    }

    fn close(&mut self, id: ConnectionId, frontend: &mut Frontend) {
        // Dropping the socket closes it, which also ends the watch.
        self.sockets[id.0.index as usize] = None;
        frontend.close(id);
    }

    /// Whether another turn has work without any new event.
    pub(crate) fn has_work(&mut self, frontend: &Frontend) -> bool {
        let (sockets, ready) = (&mut self.sockets, &mut self.ready);
        self.stalled.retain(|&slot| {
            let Some(Some(client)) = sockets.get_mut(slot) else { return false };
            if !frontend.wants_read(client.id) {
                return true;
            }
            if !client.queued {
                client.queued = true;
                ready.push(slot);
            }
            false
        });
        let has_bytes = !self.ready.is_empty() || !self.unblocked.is_empty();
        has_bytes || frontend.is_dirty() || frontend.has_postponed()
    }

    /// Whether some client has not taken all its replies yet.
    pub(crate) fn is_blocked(&self) -> bool {
        !self.unblocked.is_empty() || self.sockets.iter().flatten().any(|client| client.blocked)
    }

    /// Closes every client.
    pub(crate) fn close_all(&mut self, frontend: &mut Frontend) {
        for client in self.sockets.drain(..).flatten() {
            frontend.close(client.id);
        }
    }
}

/// Writes once; 0 if the socket is full.
#[inline]
fn write(mut stream: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    loop {
        match stream.write(bytes) {
            Ok(written) => return Ok(written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(0),
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io::{ErrorKind, Read};
    use std::net::{TcpListener, TcpStream as Stream};

    use quorate_resp::{Settings, Shared};
    use quorate_resp_harness::MemoryBackend;
    use quorate_types::{Instant, UnixNanos};

    use super::*;

    /// The two ends of a connection.
    fn connection() -> (Stream, Stream, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let address = listener.local_addr().expect("it is bound");
        let client = Stream::connect(address).expect("somebody listens");
        let (stream, peer) = listener.accept().expect("somebody has connected");
        (client, stream, peer)
    }

    #[test]
    fn the_clock_is_read_after_the_bytes_that_it_dates() {
        let (mut client, stream, peer) = connection();
        let observer = stream.try_clone().expect("a socket can be observed");
        client.write_all(b"*1\r\n$4\r\nPING\r\n").expect("the socket is open");
        // Waits until the bytes are there.
        assert_eq!(observer.peek(&mut [0]).expect("the socket is open"), 1);
        stream.set_nonblocking(true).expect("a socket can be");

        let (mut frontend, mut backend) =
            (Frontend::new(Shared::new(Settings::default(), None)), MemoryBackend::default());
        let (mut clients, readings) = (Clients::default(), Cell::new(0));
        let start = Now { monotonic: Instant(1), unix: UnixNanos(1) };
        clients.open(start, TcpStream::from_std(stream), peer, &mut frontend, |_, _| Ok(()));
        let clock = || {
            let left = observer.peek(&mut [0]).expect_err("bytes arrived and were not read yet");
            assert_eq!(left.kind(), ErrorKind::WouldBlock);
            readings.set(readings.get() + 1);
            start
        };
        frontend.begin_turn(start, &mut backend);
        clients.read(clock, &mut frontend, &mut backend);
        assert_eq!(readings.get(), 1, "one reading for what was read at once");
        clients.flush(start, &mut frontend, &mut backend);
        let mut answer = [0; 7];
        client.read_exact(&mut answer).expect("the node answers");
        assert_eq!(&answer, b"+PONG\r\n");
    }

    #[test]
    fn a_turn_writes_no_more_than_a_clients_share() {
        let (mut client, stream, peer) = connection();
        client.write_all(&b"COMMAND DOCS\r\n".repeat(8)).expect("the socket is open");
        assert_eq!(stream.peek(&mut [0]).expect("the socket is open"), 1);
        stream.set_nonblocking(true).expect("a socket can be");

        let (mut frontend, mut backend) =
            (Frontend::new(Shared::new(Settings::default(), None)), MemoryBackend::default());
        let mut clients = Clients::default();
        let start = Now { monotonic: Instant(1), unix: UnixNanos(1) };
        clients.open(start, TcpStream::from_std(stream), peer, &mut frontend, |_, _| Ok(()));
        frontend.begin_turn(start, &mut backend);
        clients.read(|| start, &mut frontend, &mut backend);
        let mut received = 0;
        loop {
            clients.flush(start, &mut frontend, &mut backend);
            let sent = clients.bytes_sent as usize - received;
            assert!(sent <= WRITE_BYTES_PER_TURN, "{sent} bytes in one turn");
            if sent == 0 {
                break;
            }
            client.read_exact(&mut vec![0; sent]).expect("the node has sent that many");
            received += sent;
            // What the poll would say of a socket that was full.
            for client in clients.sockets.iter_mut().flatten() {
                if std::mem::take(&mut client.blocked) {
                    clients.unblocked.push(client.id);
                }
            }
        }
        assert!(received > WRITE_BYTES_PER_TURN, "{received} bytes are more than one share");
        assert!(!clients.is_blocked() && !clients.has_work(&frontend), "all of it was sent");
    }
}
