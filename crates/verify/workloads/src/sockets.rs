//! A target behind TCP: one thread, one epoll, many connections.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use mio::{Events, Interest, Poll, Token};

use crate::{Answer, Feed, LoadError, Target};

/// Longest silence of all servers before the run is given up.
const SILENCE_MAX: Duration = Duration::from_secs(20);
/// Longest time that making a connection may take.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// How often in a row a client's connection may be closed without an answer.
const LOSSES_MAX: u32 = 8;
/// Bytes asked for in one read.
const READ_BYTES: usize = 64 * 1024;

/// Part of the input that was understood.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// How many bytes it took.
    pub used: usize,
    /// The answer that it completed, if it did.
    pub answer: Option<Answer>,
}

/// The peer doesn't speak this dialect, or refuses a command on which every request rests. Says
/// what the peer did, as the rest of a sentence that begins with its address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Misunderstood(pub String);

/// The protocol of one connection, with its state.
pub trait Dialect {
    /// A request.
    type Request;

    /// Appends the first commands of a new connection.
    fn greet(&mut self, out: &mut Vec<u8>);

    /// Appends one request.
    fn request(&mut self, request: &Self::Request, out: &mut Vec<u8>);

    /// Understands the beginning of the input, which is not empty; `None` if more bytes are needed.
    /// Answers come in the order of the requests. May append bytes that the protocol demands in
    /// return.
    ///
    /// # Errors
    /// [`Misunderstood`] if going on makes no sense.
    fn answer(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<Option<Step>, Misunderstood>;

    /// The peer's complaint in an answer that is not complete.
    fn complaint(&self) -> Option<&str> {
        None
    }
}

impl<D: Dialect + ?Sized> Dialect for Box<D> {
    type Request = D::Request;

    fn greet(&mut self, out: &mut Vec<u8>) {
        (**self).greet(out);
    }

    fn request(&mut self, request: &Self::Request, out: &mut Vec<u8>) {
        (**self).request(request, out);
    }

    fn answer(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<Option<Step>, Misunderstood> {
        (**self).answer(input, out)
    }

    fn complaint(&self) -> Option<&str> {
        (**self).complaint()
    }
}

/// Servers that are reached over TCP. Each client has a connection. The requests under way on a
/// lost connection fail, and a new connection takes its place.
pub struct Sockets<D, F> {
    targets: Vec<SocketAddr>,
    dialect: F,
    poll: Poll,
    connections: Vec<Connection<D>>,
    scratch: Vec<u8>,
}

struct Connection<D> {
    stream: mio::net::TcpStream,
    /// The index of its target.
    target: usize,
    dialect: D,
    input: Vec<u8>,
    output: Vec<u8>,
    /// How many bytes of the output were sent.
    sent: usize,
    /// Requests that are not answered.
    waiting: usize,
    /// How often in a row the connection was closed without an answer.
    losses: u32,
}

/// The result of a read or write.
enum Io {
    /// The connection stands.
    Stands,
    /// The peer has closed it.
    Lost,
}

impl<D: Dialect, F: FnMut() -> D> Sockets<D, F> {
    /// Connects; connections are dealt out over the targets in turn. Each gets a dialect from
    /// `dialect`.
    ///
    /// # Errors
    /// [`LoadError::Unreachable`] names the target that refuses.
    ///
    /// # Panics
    /// If there is no target.
    pub fn connect(
        targets: &[SocketAddr],
        connections: usize,
        mut dialect: F,
    ) -> Result<Self, LoadError> {
        assert!(!targets.is_empty(), "there is nowhere to connect to");
        let poll = Poll::new().map_err(LoadError::Events)?;
        let mut sockets = Vec::with_capacity(connections);
        for index in 0..connections {
            let target = index % targets.len();
            let made = open(targets[target], target, dialect());
            let mut connection =
                made.map_err(|error| LoadError::Unreachable { target: targets[target], error })?;
            register(&poll, &mut connection, index)?;
            sockets.push(connection);
        }
        Ok(Self {
            targets: targets.to_vec(),
            dialect,
            poll,
            connections: sockets,
            scratch: vec![0; READ_BYTES],
        })
    }

    /// Sends what the client may begin now.
    fn begin(
        &mut self,
        index: usize,
        feed: &mut Feed<'_, D::Request>,
        now: Instant,
    ) -> Result<(), LoadError> {
        let connection = &mut self.connections[index];
        while let Some(request) = feed.next(index, now) {
            connection.dialect.request(request, &mut connection.output);
            connection.waiting += 1;
        }
        let flushed = flush(connection);
        self.judge(index, flushed, feed)
    }

    /// Reads the bytes that have arrived; to the end if the peer has `closed` the connection.
    fn on_readable(
        &mut self,
        index: usize,
        closed: bool,
        feed: &mut Feed<'_, D::Request>,
    ) -> Result<(), LoadError> {
        loop {
            let connection = &mut self.connections[index];
            let count = match connection.stream.read(&mut self.scratch) {
                Ok(0) => return self.judge(index, Ok(Io::Lost), feed),
                Ok(count) => count,
                Err(error) => {
                    let state = of_error(error);
                    return self.judge(index, state, feed);
                }
            };
            connection.input.extend_from_slice(&self.scratch[..count]);
            let now = Instant::now();
            self.on_input(index, feed, now)?;
            self.begin(index, feed, now)?;
            // A short read has emptied the socket: the next bytes raise a new event. A close that
            // came with the bytes raises none.
            if count < READ_BYTES && !closed {
                return Ok(());
            }
        }
    }

    fn on_input(
        &mut self,
        index: usize,
        feed: &mut Feed<'_, D::Request>,
        now: Instant,
    ) -> Result<(), LoadError> {
        let connection = &mut self.connections[index];
        let target = self.targets[connection.target];
        let misunderstood = |what: Misunderstood| LoadError::Misunderstood { target, what: what.0 };
        let mut used = 0;
        while used < connection.input.len() {
            let step = connection.dialect.answer(&connection.input[used..], &mut connection.output);
            let Some(step) = step.map_err(misunderstood)? else { break };
            used += step.used;
            let Some(answer) = step.answer else { continue };
            if connection.waiting == 0 {
                let what = format!("sends an answer that nothing asked for: {answer:?}");
                return Err(misunderstood(Misunderstood(what)));
            }
            connection.waiting -= 1;
            connection.losses = 0;
            feed.ended(index, answer, now);
        }
        connection.input.drain(..used);
        Ok(())
    }

    /// Goes on, or replaces a lost connection by a new one.
    fn judge(
        &mut self,
        index: usize,
        state: io::Result<Io>,
        feed: &mut Feed<'_, D::Request>,
    ) -> Result<(), LoadError> {
        let connection = &self.connections[index];
        let target = self.targets[connection.target];
        match state {
            Ok(Io::Stands) => Ok(()),
            Ok(Io::Lost) => self.replace(index, feed),
            Err(error) => Err(LoadError::Broken { target, error }),
        }
    }

    fn replace(&mut self, index: usize, feed: &mut Feed<'_, D::Request>) -> Result<(), LoadError> {
        let lost = &mut self.connections[index];
        // The stream may be gone from the epoll already, which is as good.
        let _ = self.poll.registry().deregister(&mut lost.stream);
        let complaint = lost.dialect.complaint().unwrap_or("the connection was lost").to_owned();
        let losses = lost.losses + 1;
        if losses > LOSSES_MAX {
            return Err(LoadError::Closes { target: self.targets[lost.target], complaint });
        }
        let (waiting, first) = (lost.waiting, lost.target + 1);
        self.connections[index] = self.open_any(first)?;
        self.connections[index].losses = losses;
        register(&self.poll, &mut self.connections[index], index)?;
        let now = Instant::now();
        for _ in 0..waiting {
            feed.ended(index, Answer::Failed(complaint.clone()), now);
        }
        self.begin(index, feed, now)
    }

    /// A connection to the first target from this one on that accepts it.
    fn open_any(&mut self, first: usize) -> Result<Connection<D>, LoadError> {
        let mut offset = 0;
        loop {
            let place = (first + offset) % self.targets.len();
            let target = self.targets[place];
            match open(target, place, (self.dialect)()) {
                Ok(connection) => return Ok(connection),
                Err(error) if offset + 1 == self.targets.len() => {
                    return Err(LoadError::Unreachable { target, error });
                }
                Err(_) => offset += 1,
            }
        }
    }
}

impl<D: Dialect, F: FnMut() -> D> Target for Sockets<D, F> {
    type Request = D::Request;

    fn drive(&mut self, feed: &mut Feed<'_, D::Request>) -> Result<(), LoadError> {
        let now = Instant::now();
        for index in 0..self.connections.len().min(feed.clients()) {
            self.begin(index, feed, now)?;
        }
        let mut events = Events::with_capacity(1024);
        while !feed.is_idle() {
            match self.poll.poll(&mut events, Some(SILENCE_MAX)) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(LoadError::Events(error)),
            }
            if events.is_empty() {
                return Err(LoadError::Silent { patience: SILENCE_MAX, waiting: feed.waiting() });
            }
            for event in &events {
                let index = event.token().0;
                if event.is_readable() {
                    self.on_readable(index, event.is_read_closed(), feed)?;
                } else {
                    let flushed = flush(&mut self.connections[index]);
                    self.judge(index, flushed, feed)?;
                }
            }
        }
        Ok(())
    }
}

fn open<D: Dialect>(address: SocketAddr, target: usize, dialect: D) -> io::Result<Connection<D>> {
    let stream = TcpStream::connect_timeout(&address, CONNECT_MAX)?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    let mut connection = Connection {
        stream: mio::net::TcpStream::from_std(stream),
        target,
        dialect,
        input: Vec::new(),
        output: Vec::new(),
        sent: 0,
        waiting: 0,
        losses: 0,
    };
    connection.dialect.greet(&mut connection.output);
    Ok(connection)
}

fn register<D>(poll: &Poll, connection: &mut Connection<D>, index: usize) -> Result<(), LoadError> {
    let interest = Interest::READABLE | Interest::WRITABLE;
    let registry = poll.registry();
    registry.register(&mut connection.stream, Token(index), interest).map_err(LoadError::Events)
}

fn flush<D>(connection: &mut Connection<D>) -> io::Result<Io> {
    while connection.sent < connection.output.len() {
        match connection.stream.write(&connection.output[connection.sent..]) {
            Ok(count) => connection.sent += count,
            Err(error) => return of_error(error),
        }
    }
    connection.output.clear();
    connection.sent = 0;
    Ok(Io::Stands)
}

fn of_error(error: io::Error) -> io::Result<Io> {
    match error.kind() {
        // The next event of the socket brings the bytes of an interrupted call.
        ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(Io::Stands),
        ErrorKind::ConnectionReset
        | ErrorKind::ConnectionAborted
        | ErrorKind::BrokenPipe
        | ErrorKind::NotConnected
        | ErrorKind::TimedOut => Ok(Io::Lost),
        _ => Err(error),
    }
}

#[cfg(test)]
#[path = "sockets_tests.rs"]
mod tests;
