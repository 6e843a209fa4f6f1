//! A guest's connections to the nodes.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use quorate_frame::{BadFrame, Frames, Outgoing};
use quorate_types::{Incarnation, LaneId, NodeId};
use quorate_wire::{Hello, VERSION};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::connection::{Dial, Stream};
use crate::limits;

/// Bytes that one read takes at most.
const READ_BYTES: usize = 64 * 1024;
/// First and longest pause before a node is called again.
const PAUSE_FIRST: Duration = Duration::from_millis(10);
const PAUSE_LONGEST: Duration = Duration::from_millis(500);

/// A guest's introduction.
#[derive(Clone, Debug)]
pub(super) struct Introduction {
    pub(super) cluster: String,
    pub(super) session: Incarnation,
    pub(super) connect_timeout: Duration,
}

/// A connection on which both sides have introduced themselves.
pub(super) struct Introduced {
    pub(super) stream: Box<dyn Stream>,
    pub(super) theirs: Hello,
    /// Bytes after the node's introduction.
    pub(super) rest: Vec<u8>,
}

impl Introduction {
    /// Connects to a node's lane.
    ///
    /// # Errors
    /// When the node can't be reached, or refuses; then its own sentence is the error.
    pub(super) async fn connect(
        &self,
        dial: &dyn Dial,
        address: &str,
        lane: LaneId,
        lanes: u16,
    ) -> io::Result<Introduced> {
        let limit = self.connect_timeout;
        match timeout(limit, self.greet(dial, address, lane, lanes)).await {
            Ok(result) => result,
            Err(_) => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("no answer within {limit:?}; is that its peer address?"),
            )),
        }
    }

    async fn greet(
        &self,
        dial: &dyn Dial,
        address: &str,
        lane: LaneId,
        lanes: u16,
    ) -> io::Result<Introduced> {
        let mut stream = dial.dial(address).await?;
        let ours = Hello {
            version: VERSION,
            node: Hello::GUEST,
            incarnation: self.session,
            lane,
            lanes,
            lease_us: 0,
            clock_drift_ppm: 0,
            cluster: self.cluster.clone(),
        };
        let mut bytes = Vec::new();
        ours.encode(&mut bytes);
        stream.write_all(&bytes).await?;
        stream.flush().await?;
        let mut input = Vec::new();
        loop {
            if stream.read_buf(&mut input).await? == 0 {
                // A refusal is a line of text before the end.
                return Err(refusal(&input));
            }
            if input.first() == Some(&b'-') {
                if input.ends_with(b"\n") {
                    return Err(refusal(&input));
                }
                continue;
            }
            let mut rest = &input[..];
            let hello = Hello::decode(&mut rest).map_err(|refusal| {
                io::Error::new(io::ErrorKind::InvalidData, refusal.to_string())
            })?;
            if let Some(theirs) = hello {
                if theirs.is_guest() {
                    return Err(io::Error::other("another client is at this address"));
                }
                return Ok(Introduced { stream, theirs, rest: rest.to_vec() });
            }
        }
    }
}

/// The error of a connection whose bytes can't be trusted.
pub(super) fn damaged(frame: BadFrame) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, frame)
}

/// The error of a connection on which no node introduced itself. A node that refuses gives the
/// reason in a line of text. A client port takes the introduction for a Redis command: it waits for
/// the end of the line, and answers with an error of Redis if the session's number happens to hold
/// one.
fn refusal(input: &[u8]) -> io::Error {
    let (kind, text) = match input.strip_prefix(b"-REFUSED ") {
        Some(reason) => {
            let reason = String::from_utf8_lossy(reason).trim_end().to_owned();
            (io::ErrorKind::ConnectionRefused, reason)
        }
        None if input.is_empty() => {
            let text = "the node closed the connection; is that its peer address?";
            (io::ErrorKind::UnexpectedEof, text.to_owned())
        }
        None => {
            let line = String::from_utf8_lossy(input);
            let text = format!(
                "what answers there is no peer port ({}); is that its peer address?",
                line.trim_end().escape_debug()
            );
            (io::ErrorKind::InvalidData, text)
        }
    };
    io::Error::new(kind, text)
}

/// An event of a node's connection.
pub(super) enum News {
    /// It is made: the guest must enter the node. Each connection has a number of its own.
    Up(u64),
    /// Whole messages.
    Messages(Vec<u8>),
    /// It is lost, or could not be made.
    Down,
}

/// A session's link to one node. Its task calls the node again and again, and ends with this value.
pub(super) struct Link {
    pub(super) address: String,
    pub(super) is_up: bool,
    outgoing: mpsc::UnboundedSender<(u64, Vec<u8>)>,
    /// The number of the connection: messages for an earlier one are not sent on it.
    number: u64,
    /// Bytes on their way to the socket.
    waiting: Arc<AtomicUsize>,
    task: tokio::task::AbortHandle,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The parts of a link's task.
pub(super) struct Line {
    pub(super) introduction: Introduction,
    pub(super) dial: Arc<dyn Dial>,
    pub(super) node: NodeId,
    pub(super) address: String,
    pub(super) lane: LaneId,
    pub(super) lanes: u16,
    pub(super) news: mpsc::Sender<(NodeId, News)>,
}

impl Link {
    /// Begins to call a node; `first` is an established connection.
    pub(super) fn open(line: Line, first: Option<Introduced>) -> Self {
        let (outgoing, incoming) = mpsc::unbounded_channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let address = line.address.clone();
        let is_up = first.is_some();
        let task = tokio::spawn(line.run(first, incoming, waiting.clone())).abort_handle();
        Self { address, is_up, outgoing, number: 0, waiting, task }
    }

    /// A connection stands.
    pub(super) fn came_up(&mut self, number: u64) {
        self.is_up = true;
        self.number = number;
    }

    /// Sends whole messages, unless the node reads too slowly: the protocol repairs the loss.
    pub(super) fn send(&self, messages: Vec<u8>) {
        let size = messages.len();
        if !self.is_up || self.waiting.load(Ordering::Relaxed) > limits::GUEST_BACKLOG_BYTES_MAX {
            return;
        }
        self.waiting.fetch_add(size, Ordering::Relaxed);
        // A task that has ended has reported so.
        let _ = self.outgoing.send((self.number, messages));
    }
}

impl Line {
    async fn run(
        self,
        mut connection: Option<Introduced>,
        mut outgoing: mpsc::UnboundedReceiver<(u64, Vec<u8>)>,
        waiting: Arc<AtomicUsize>,
    ) {
        let mut number = 0;
        let mut pause = PAUSE_FIRST;
        loop {
            let known = connection.take();
            let was_known = known.is_some();
            let introduced = match known {
                Some(introduced) => Ok(introduced),
                None => {
                    let dial = self.dial.as_ref();
                    self.introduction.connect(dial, &self.address, self.lane, self.lanes).await
                }
            };
            if let Ok(introduced) = introduced
                && introduced.theirs.node == self.node
            {
                if !was_known {
                    number += 1;
                    if self.news.send((self.node, News::Up(number))).await.is_err() {
                        return;
                    }
                }
                pause = PAUSE_FIRST;
                // The end is reported whatever its reason.
                let _ = self.carry(number, introduced, &mut outgoing, &waiting).await;
                if self.news.send((self.node, News::Down)).await.is_err() {
                    return;
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_LONGEST);
        }
    }

    /// Carries messages in both directions until the connection ends.
    async fn carry(
        &self,
        number: u64,
        introduced: Introduced,
        outgoing: &mut mpsc::UnboundedReceiver<(u64, Vec<u8>)>,
        waiting: &AtomicUsize,
    ) -> io::Result<()> {
        let (mut reader, mut writer) = tokio::io::split(introduced.stream);
        let mut input = introduced.rest;
        let read = async {
            let mut frames = Frames::default();
            loop {
                let mut rest = &input[..];
                while let Some(messages) = frames.split(&mut rest).map_err(damaged)? {
                    let news = News::Messages(messages.into_owned());
                    if self.news.send((self.node, news)).await.is_err() {
                        return Ok(());
                    }
                }
                let used = input.len() - rest.len();
                input.drain(..used);
                input.reserve(READ_BYTES);
                if reader.read_buf(&mut input).await? == 0 {
                    return Ok(());
                }
            }
        };
        let write = async {
            let mut unsent = Outgoing::default();
            while let Some((meant_for, mut messages)) = outgoing.recv().await {
                waiting.fetch_sub(messages.len(), Ordering::Relaxed);
                if meant_for != number {
                    continue;
                }
                unsent.push(&mut messages);
                while !unsent.is_empty() {
                    let parts = unsent.unsent().map(IoSlice::new);
                    let written = writer.write_vectored(&parts).await?;
                    if written == 0 {
                        return Err(io::ErrorKind::WriteZero.into());
                    }
                    unsent.advance(written);
                }
                writer.flush().await?;
            }
            Ok(())
        };
        tokio::select! {
            end = read => end,
            end = write => end,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_the_nodes_own_sentence_and_another_answer_asks_for_the_address() {
        let refused = refusal(b"-REFUSED this node has 16 clients\r\n");
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(refused.to_string(), "this node has 16 clients");
        let closed = refusal(b"");
        assert_eq!(closed.kind(), io::ErrorKind::UnexpectedEof);
        let redis = refusal(b"-ERR unknown command 'QRT1\x07', with args beginning with: \r\n");
        assert_eq!(redis.kind(), io::ErrorKind::InvalidData);
        assert!(redis.to_string().contains(r"unknown command \'QRT1\u{7}\'"), "{redis}");
        for error in [closed, redis] {
            assert!(error.to_string().contains("peer address"), "{error}");
        }
    }
}
