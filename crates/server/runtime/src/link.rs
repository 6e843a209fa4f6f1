//! One lane's connection to one peer in another process.
//!
//! There is one connection for each pair of nodes and each lane, used in both directions, so that
//! TCP's acknowledgements ride on the answers. The node with the smaller id dials, the other
//! listens; both introduce themselves with a [`Hello`] before anything else, and the dialling side
//! sends nothing more until it has read the other's. A lost connection is dialled again with
//! growing, jittered pauses; what was on its way is lost, which the protocols repair.

use std::io::{self, IoSlice, Write};
use std::net::SocketAddr;
use std::time::Duration;

use mio::net::TcpStream;
use quorate_frame::{FRAME_BYTES_MAX, Frames, Outgoing, whole_header};
use quorate_types::{Incarnation, Instant, NodeId, limits};
use quorate_wire::{Header, Hello};

/// First pause before a lost connection is dialled again.
const BACKOFF_MIN: Duration = Duration::from_millis(10);
/// Longest pause between two attempts.
const BACKOFF_MAX: Duration = Duration::from_millis(60);
/// How long connecting and introducing may take.
const GREETING_MAX: Duration = Duration::from_secs(1);
/// Bytes of room that a read offers at least.
const READ_BYTES: usize = 64 * 1024;
/// Bytes that one turn reads from one peer at most before others get their turn.
const READ_BYTES_PER_TURN: usize = 512 * 1024;
/// Bytes that one turn writes to one peer before others get their turn: a large message leaves over
/// several turns.
const WRITE_BYTES_PER_TURN: usize = 256 * 1024;
/// Messages of this size are dropped while `BACKLOG_BYTES` wait: what sends them again when no
/// answer comes soon would otherwise queue copy behind copy on a connection that is already late,
/// and everything else, heartbeats too, behind those.
const BULK_BYTES: usize = 1024 * 1024;
/// Unsent bytes from which on bulk is dropped.
const BACKLOG_BYTES: usize = 4 * 1024 * 1024;
/// An empty buffer larger than this is given back.
const KEEP_BYTES_MAX: usize = 4 * 1024 * 1024;

/// What a link counted since the start.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkCounts {
    /// Times the connection came up.
    pub connects: u64,
    /// Times it was lost.
    pub losses: u64,
    /// Frames sent and received.
    pub frames_sent: u64,
    /// Frames received.
    pub frames_received: u64,
    /// Bytes sent.
    pub bytes_sent: u64,
    /// Bytes received.
    pub bytes_received: u64,
    /// Frames dropped because the peer read too slowly or was not connected.
    pub frames_dropped: u64,
    /// Frames that were damaged; each closed the connection.
    pub frames_bad: u64,
}

/// Where a link stands.
enum State {
    /// No connection; if this side dials, the next attempt is at `retry_at`.
    Down,
    /// The peer's name is being resolved on another thread.
    Resolving,
    /// Connecting.
    Dialling(TcpStream),
    /// Connected; the peer has not introduced itself yet.
    Greeting(TcpStream),
    /// Messages flow.
    Up { stream: TcpStream, incarnation: Incarnation },
}

/// What a link wants of its host after an event.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Nothing new.
    Same,
    /// The connection is established and has read its peer's hello.
    CameUp,
    /// The connection is gone, for this reason.
    Lost(String),
}

/// One lane's connection to one peer.
pub(crate) struct Link {
    peer: NodeId,
    address: String,
    dials: bool,
    state: State,
    retry_at: Instant,
    backoff: Duration,
    input: Vec<u8>,
    frames: Frames,
    /// What the socket did not take yet.
    outgoing: Outgoing,
    /// The socket may hold bytes: an edge came and no short read since.
    readable: bool,
    /// The socket has taken all that it was offered.
    writable: bool,
    hung_up: bool,
    /// The reason logged last, so that a peer that stays away is one line and not one per attempt.
    complaint: String,
    pub(crate) counts: LinkCounts,
}

impl Link {
    /// A link without a connection. `dials` says whether this side calls the other.
    pub(crate) fn new(peer: NodeId, address: String, dials: bool) -> Self {
        Self {
            peer,
            address,
            dials,
            state: State::Down,
            retry_at: Instant::ZERO,
            backoff: BACKOFF_MIN,
            input: Vec::new(),
            frames: Frames::default(),
            outgoing: Outgoing::default(),
            readable: false,
            writable: false,
            hung_up: false,
            complaint: String::new(),
            counts: LinkCounts::default(),
        }
    }

    /// A link to a guest, which has connected.
    pub(crate) fn of_guest(node: NodeId) -> Self {
        Self::new(node, String::from("a guest"), false)
    }

    /// Where the peer is dialled.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Learns that the peer has another address.
    pub(crate) fn set_address(&mut self, address: &str) {
        if self.address != address {
            address.clone_into(&mut self.address);
        }
    }

    /// The life of the peer at the other end, once it has introduced itself.
    pub(crate) fn incarnation(&self) -> Option<Incarnation> {
        match self.state {
            State::Up { incarnation, .. } => Some(incarnation),
            _ => None,
        }
    }

    /// Whether messages flow.
    pub(crate) fn is_up(&self) -> bool {
        matches!(self.state, State::Up { .. })
    }

    /// Bytes that wait for the other side to read.
    pub(crate) fn backlog(&self) -> usize {
        self.outgoing.len()
    }

    /// Bytes that its buffers take.
    pub(crate) fn bytes(&self) -> usize {
        self.input.capacity() + self.frames.bytes() + self.outgoing.bytes()
    }

    /// Why there is no connection, for people; empty if nothing went wrong.
    pub(crate) fn complaint(&self) -> &str {
        &self.complaint
    }

    /// When this link next wants [`Link::is_due`] to be asked.
    pub(crate) fn deadline(&self) -> Instant {
        match self.state {
            State::Down if self.dials => self.retry_at,
            State::Dialling(_) | State::Greeting(_) => self.retry_at,
            _ => Instant::NEVER,
        }
    }

    /// Whether the peer should be dialled now.
    pub(crate) fn wants_dial(&self, now: Instant) -> bool {
        self.dials && matches!(self.state, State::Down) && self.retry_at <= now
    }

    /// Whether an attempt has taken too long.
    pub(crate) fn has_stalled(&self, now: Instant) -> bool {
        matches!(self.state, State::Dialling(_) | State::Greeting(_)) && self.retry_at <= now
    }

    /// The peer's name is being looked up.
    pub(crate) fn resolving(&mut self) {
        self.state = State::Resolving;
    }

    /// Begins to connect.
    ///
    /// # Errors
    /// When the system refuses outright.
    pub(crate) fn dial(
        &mut self,
        now: Instant,
        to: SocketAddr,
        register: impl FnOnce(&mut TcpStream) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut stream = TcpStream::connect(to)?;
        register(&mut stream)?;
        self.retry_at = now + GREETING_MAX;
        self.state = State::Dialling(stream);
        Ok(())
    }

    /// Takes over a connection on which the peer has introduced itself, and answers `hello`.
    /// `rest` is what came after its introduction.
    ///
    /// # Errors
    /// When the connection is unusable.
    pub(crate) fn adopt(
        &mut self,
        mut stream: TcpStream,
        theirs: Incarnation,
        rest: &[u8],
        hello: &Hello,
        register: impl FnOnce(&mut TcpStream) -> io::Result<()>,
    ) -> io::Result<()> {
        register(&mut stream)?;
        crate::net::tune_peer(&stream);
        self.clear_buffers();
        self.input.extend_from_slice(rest);
        self.readable = true;
        self.writable = true;
        self.state = State::Up { stream, incarnation: theirs };
        self.greeted();
        self.introduce(hello)
    }

    /// Sends the hello. It is no message and travels in no frame.
    fn introduce(&mut self, hello: &Hello) -> io::Result<()> {
        let mut bytes = Vec::new();
        hello.encode(&mut bytes);
        self.outgoing.push_bytes(&bytes);
        self.write_unsent()
    }

    /// Notes what the poll said about the connection.
    pub(crate) fn on_event(
        &mut self,
        event: &mio::event::Event,
        hello: impl FnOnce() -> Hello,
    ) -> Progress {
        self.readable |= event.is_readable() || event.is_read_closed() || event.is_error();
        self.hung_up |= event.is_read_closed() || event.is_error();
        if !event.is_writable() {
            return Progress::Same;
        }
        self.writable = true;
        let result = match std::mem::replace(&mut self.state, State::Down) {
            State::Dialling(stream) => self.connected(stream, hello),
            state => {
                self.state = state;
                self.write_unsent()
            }
        };
        match result {
            Ok(()) => Progress::Same,
            Err(error) => Progress::Lost(error.to_string()),
        }
    }

    fn connected(&mut self, stream: TcpStream, hello: impl FnOnce() -> Hello) -> io::Result<()> {
        if let Some(error) = stream.take_error()? {
            return Err(error);
        }
        stream.peer_addr()?;
        crate::net::tune_peer(&stream);
        self.clear_buffers();
        self.writable = true;
        self.state = State::Greeting(stream);
        self.introduce(&hello())
    }

    /// Whether the socket may have bytes to read.
    pub(crate) fn wants_read(&self) -> bool {
        self.readable
    }

    /// Reads what has come, within this turn's share. What was read before and not handled comes
    /// first.
    pub(crate) fn read(&mut self) -> Progress {
        if self.has_frame() {
            return Progress::Same;
        }
        let mut share = READ_BYTES_PER_TURN;
        while self.readable && share > 0 {
            let (State::Greeting(stream) | State::Up { stream, .. }) = &self.state else {
                self.readable = false;
                break;
            };
            match receive(stream, &mut self.input, READ_BYTES) {
                Ok(Received::Closed) => return Progress::Lost("the peer closed it".into()),
                Ok(Received::Some { bytes, drained }) => {
                    self.counts.bytes_received += bytes as u64;
                    share = share.saturating_sub(bytes);
                    // A short read means that the socket is empty, unless its end has come.
                    self.readable = !drained || self.hung_up;
                }
                Ok(Received::Nothing) => self.readable = false,
                Err(error) => return Progress::Lost(error.to_string()),
            }
        }
        Progress::Same
    }

    /// Reads the peer's introduction, if it is due: as the dialling side.
    pub(crate) fn greet(&mut self, ours: impl FnOnce() -> Hello) -> Progress {
        if !matches!(self.state, State::Greeting(_)) {
            return Progress::Same;
        }
        let mut rest = &self.input[..];
        let hello = match Hello::decode(&mut rest) {
            Ok(None) => return Progress::Same,
            Ok(Some(hello)) => hello,
            // A refusal is a line of text, see `handshakes.rs`.
            Err(_) if rest.first() == Some(&b'-') => {
                let text = String::from_utf8_lossy(&rest[1..rest.len().min(400)]);
                return Progress::Lost(text.trim_end().to_owned());
            }
            Err(refusal) => return Progress::Lost(refusal.to_string()),
        };
        if let Err(refusal) = hello.check(&ours()) {
            return Progress::Lost(refusal.to_string());
        }
        if hello.node != self.peer {
            return Progress::Lost(format!(
                "node {} answered at the address of node {}; correct [[node]] peer",
                hello.node, self.peer
            ));
        }
        let used = self.input.len() - rest.len();
        self.input.drain(..used);
        let State::Greeting(stream) = std::mem::replace(&mut self.state, State::Down) else {
            unreachable!("checked above")
        };
        self.state = State::Up { stream, incarnation: hello.incarnation };
        self.greeted();
        Progress::CameUp
    }

    /// Whether a complete frame has been read and not been handled.
    pub(crate) fn has_frame(&self) -> bool {
        matches!(self.state, State::Up { .. }) && Frames::is_complete(&self.input)
    }

    /// Hands the complete frames that have been read to `handle`, as long as there is time for it.
    pub(crate) fn frames<E: std::fmt::Display>(
        &mut self,
        mut handle: impl FnMut(Incarnation, &[u8]) -> Result<(), E>,
        has_time: impl Fn() -> bool,
    ) -> Progress {
        let State::Up { incarnation, .. } = self.state else { return Progress::Same };
        let mut rest = &self.input[..];
        loop {
            match self.frames.split(&mut rest) {
                Ok(None) => break,
                Ok(Some(messages)) => {
                    self.counts.frames_received += 1;
                    if let Err(error) = handle(incarnation, &messages) {
                        self.counts.frames_bad += 1;
                        return Progress::Lost(error.to_string());
                    }
                    if !has_time() {
                        break;
                    }
                }
                Err(error) => {
                    self.counts.frames_bad += 1;
                    return Progress::Lost(error.to_string());
                }
            }
        }
        let used = self.input.len() - rest.len();
        if used == self.input.len() {
            self.input.clear();
            self.input.shrink_to(KEEP_BYTES_MAX);
        } else if used > 0 {
            self.input.drain(..used);
        }
        Progress::Same
    }

    /// Sends messages, those that fit into one frame with one system call unless the socket is full.
    /// May take the buffer.
    pub(crate) fn send(&mut self, messages: &mut Vec<u8>) -> Progress {
        let State::Up { stream, .. } = &mut self.state else {
            self.counts.frames_dropped += 1;
            return Progress::Same;
        };
        if !self.outgoing.is_empty() || messages.len() > FRAME_BYTES_MAX {
            self.queue(messages);
            return self.write();
        }
        let header = whole_header(messages);
        self.counts.frames_sent += 1;
        let parts = [IoSlice::new(&header), IoSlice::new(messages)];
        let written = loop {
            match stream.write_vectored(&parts) {
                Ok(written) => break written,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break 0,
                Err(error) => return Progress::Lost(error.to_string()),
            }
        };
        self.counts.bytes_sent += written as u64;
        self.writable = written == header.len() + messages.len();
        self.outgoing.push_bytes(&header[written.min(header.len())..]);
        self.outgoing.push_bytes(&messages[written.saturating_sub(header.len())..]);
        Progress::Same
    }

    /// Lets messages wait behind what is unsent, as far as there is room: an outbox holds no more than
    /// its bound and the message that passed it.
    fn queue(&mut self, messages: &mut Vec<u8>) {
        let waiting = self.outgoing.len();
        if waiting + messages.len() > limits::PEER_BUFFER_BYTES_MAX + limits::MESSAGE_BYTES_MAX {
            self.counts.frames_dropped += 1;
            return;
        }
        if messages.len() >= BULK_BYTES && waiting >= BACKLOG_BYTES {
            self.counts.frames_dropped += 1;
            *messages = without_bulk(messages);
        }
        if !messages.is_empty() {
            self.counts.frames_sent += self.outgoing.push(messages) as u64;
        }
    }

    /// Gives the connection up. The next attempt comes after a pause.
    pub(crate) fn lose(&mut self, now: Instant, jitter: u64, reason: &str) {
        let was_up = self.is_up();
        self.state = State::Down;
        self.clear_buffers();
        self.counts.losses += u64::from(was_up);
        let pause = self.backoff / 2 + self.backoff.mul_f64((jitter % 1024) as f64 / 2048.0);
        self.retry_at = now + pause;
        self.backoff = (self.backoff * 2).min(BACKOFF_MAX);
        if self.complaint != reason {
            reason.clone_into(&mut self.complaint);
            tracing::info!(peer = %self.peer, address = %self.address, reason, "peer connection");
        }
    }

    fn greeted(&mut self) {
        self.backoff = BACKOFF_MIN;
        self.complaint.clear();
        self.counts.connects += 1;
    }

    fn clear_buffers(&mut self) {
        self.input = Vec::new();
        self.frames = Frames::default();
        self.outgoing = Outgoing::default();
        self.readable = false;
        self.writable = false;
        self.hung_up = false;
    }

    /// Whether something is left that the socket may take: [`Link::write`] goes on in the next turn.
    pub(crate) fn wants_write(&self) -> bool {
        self.writable && !self.outgoing.is_empty()
    }

    /// Writes this turn's share of what waits.
    pub(crate) fn write(&mut self) -> Progress {
        match self.write_unsent() {
            Ok(()) => Progress::Same,
            Err(error) => Progress::Lost(error.to_string()),
        }
    }

    fn write_unsent(&mut self) -> io::Result<()> {
        let (State::Greeting(stream) | State::Up { stream, .. }) = &mut self.state else {
            return Ok(());
        };
        let mut share = WRITE_BYTES_PER_TURN;
        while self.writable && !self.outgoing.is_empty() && share > 0 {
            match stream.write_vectored(&self.outgoing.unsent().map(IoSlice::new)) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    self.outgoing.advance(written);
                    self.counts.bytes_sent += written as u64;
                    share = share.saturating_sub(written);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable = false,
                Err(error) => return Err(error),
            }
        }
        self.outgoing.shrink_to(KEEP_BYTES_MAX);
        Ok(())
    }
}

/// Whole messages without the large ones.
fn without_bulk(messages: &[u8]) -> Vec<u8> {
    let mut kept = Vec::new();
    let mut rest = messages;
    loop {
        let start = rest;
        let split = Header::split(&mut rest).expect("this process wrote these messages");
        let Some((_, body)) = split else { return kept };
        if body.len() < BULK_BYTES {
            kept.extend_from_slice(&start[..Header::BYTES + body.len()]);
        }
    }
}

/// What one read of a socket brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Received {
    /// Bytes; `drained` if they were fewer than there was room for.
    Some { bytes: usize, drained: bool },
    /// The socket was empty.
    Nothing,
    /// The other side has sent everything it ever will.
    Closed,
}

/// Reads once into the free capacity of `input`, making room for `room` bytes first if there is
/// less. The buffer is not cleared beforehand and not filled with zeros.
#[inline]
pub(crate) fn receive(
    stream: &TcpStream,
    input: &mut Vec<u8>,
    room: usize,
) -> io::Result<Received> {
    use rustix::net::{RecvFlags, recv};
    if input.capacity() - input.len() < room {
        input.reserve(room);
    }
    let offered = input.capacity() - input.len();
    loop {
        match recv(stream, rustix::buffer::spare_capacity(input), RecvFlags::empty()) {
            Ok((0, _)) => return Ok(Received::Closed),
            Ok((bytes, _)) => return Ok(Received::Some { bytes, drained: bytes < offered }),
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => return Ok(Received::Nothing),
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_types::{Epoch, KeyspaceId};
    use quorate_wire::Kind;

    fn message(out: &mut Vec<u8>, size: usize) {
        Header::frame(
            out,
            Kind::Engine(quorate_types::EngineId(2)),
            KeyspaceId(0),
            Epoch(1),
            |writer| {
                writer.0.extend_from_slice(&vec![7; size]);
            },
        );
    }

    #[test]
    fn small_messages_are_kept_in_their_order() {
        let (mut all, mut small) = (Vec::new(), Vec::new());
        for size in [5, BULK_BYTES, 0, BULK_BYTES - 1, 2 * BULK_BYTES, 9] {
            message(&mut all, size);
            if size < BULK_BYTES {
                message(&mut small, size);
            }
        }
        assert_eq!(without_bulk(&all), small);
        assert_eq!(without_bulk(&[]), []);
    }
}
