//! One connection to one node: requests out, replies in.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use quorate_machine::mutant;
use quorate_rifl::ClientLease;

use crate::parser::{Bounds, Parser};
use crate::reply::Reply;
use crate::request::Request;

/// A future behind a pointer, for traits that are used as objects.
pub(crate) type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Bytes in both directions.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A way to reach nodes.
pub(crate) trait Dial: Send + Sync {
    /// Connects to an address.
    fn dial<'a>(&'a self, address: &'a str) -> Pending<'a, io::Result<Box<dyn Stream>>>;
}

/// Connects with a user's function ([`crate::Builder::connector`]).
pub(crate) struct By<F>(pub(crate) F);

impl<F, C, S> Dial for By<F>
where
    F: Fn(String) -> C + Send + Sync,
    C: Future<Output = io::Result<S>> + Send,
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    fn dial<'a>(&'a self, address: &'a str) -> Pending<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(async move { Ok(Box::new(self.0(address.to_owned()).await?) as Box<dyn Stream>) })
    }
}

/// Connects over TCP.
#[derive(Debug)]
pub(crate) struct Tcp;

impl Dial for Tcp {
    fn dial<'a>(&'a self, address: &'a str) -> Pending<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream) as Box<dyn Stream>)
        })
    }
}

/// A request without all of its replies. The connection can't be used any more.
#[derive(Debug)]
pub(crate) struct Lost {
    /// Whether the whole request left. If not, its last command was not executed.
    pub(crate) sent: bool,
    /// The reason.
    pub(crate) reason: String,
    /// The replies that came before it.
    pub(crate) replies: Vec<Reply>,
}

/// A node's numbering of the commands of a connection (`SESSION AUTO`). The node counts every
/// command, and so does the client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbers {
    /// The session whose calls the updates are, by the client's own number; `None` after
    /// `AUTO OFF`.
    pub(crate) session: Option<u64>,
    /// The number of the next command.
    pub(crate) next: u64,
    /// How many commands may be unanswered at a time.
    pub(crate) depth: usize,
}

/// The session that a node knows a connection for.
#[derive(Clone, Copy)]
pub(crate) struct Attached {
    /// The client's own number.
    pub(crate) number: u64,
    /// What this connection was told last. Others may have been told of a later renewal.
    pub(crate) client_lease: ClientLease,
}

/// A connection.
pub(crate) struct Connection {
    stream: Box<dyn Stream>,
    parser: Parser,
    /// False from the start of a request to its last reply. It stays false if the request's future
    /// was dropped half-way, since replies would go to the wrong request.
    sound: bool,
    /// Whether the node watches keys for it.
    pub(crate) watching: bool,
    /// The session that is attached to it.
    pub(crate) session: Option<Box<Attached>>,
    /// How its commands are numbered, if the node can number them.
    pub(crate) numbers: Option<Box<Numbers>>,
}

impl Connection {
    pub(crate) fn new(stream: Box<dyn Stream>) -> Self {
        let parser = Parser::new(Bounds::default());
        Self { stream, parser, sound: true, watching: false, session: None, numbers: None }
    }

    /// Begins a request with the command that makes its updates plain commands.
    pub(crate) fn stop_numbering(&mut self, request: &mut Request) {
        if let Some(numbers) = &mut self.numbers
            && numbers.session.take().is_some()
            && !mutant!("client_plain_update_numbered")
        {
            request.push_numbering(&[b"SESSION", b"AUTO", b"OFF"]);
        }
    }

    /// Begins a request with a command that takes a number where commands are numbered, and is in no
    /// count of them.
    pub(crate) fn ask(&mut self, words: &[&[u8]], request: &mut Request) {
        request.push_numbering(words);
        if let Some(numbers) = &mut self.numbers
            && !mutant!("client_question_uncounted")
        {
            numbers.next += 1;
        }
    }

    /// Whether another call may use it.
    pub(crate) fn is_clean(&self) -> bool {
        self.sound && !self.watching
    }

    /// Whether it can be used at all.
    pub(crate) fn is_sound(&self) -> bool {
        self.sound
    }

    /// Whether an idle connection is still open: neither bytes nor its end have arrived.
    pub(crate) fn is_quiet(&mut self) -> bool {
        let mut byte = [0];
        let mut space = ReadBuf::new(&mut byte);
        let mut context = Context::from_waker(Waker::noop());
        Pin::new(&mut self.stream).poll_read(&mut context, &mut space).is_pending()
    }

    /// Sends a request and waits for its replies, reading while it writes.
    pub(crate) async fn exchange(
        &mut self,
        request: &Request,
        timeout: Duration,
    ) -> Result<Vec<Reply>, Lost> {
        self.sound = false;
        if let Some(numbers) = &mut self.numbers {
            numbers.next += request.counted() as u64;
        }
        let mut replies = Vec::with_capacity(request.commands());
        let mut unsent = request.bytes();
        let exchange =
            poll_fn(|cx| self.poll_exchange(cx, &mut unsent, request.commands(), &mut replies));
        let result = match tokio::time::timeout(timeout, exchange).await {
            Ok(result) => result,
            Err(_) => Err(format!("no reply within {timeout:?}")),
        };
        match result {
            Ok(()) => {
                self.sound = self.parser.is_empty();
                Ok(replies)
            }
            Err(mut reason) => {
                // A node that closes a connection names the reason in its last reply.
                if let Some(Reply::Error(error)) = replies.last() {
                    reason = format!("{reason} after '{error}'");
                }
                Err(Lost { sent: unsent.is_empty(), reason, replies })
            }
        }
    }

    fn poll_exchange(
        &mut self,
        cx: &mut Context<'_>,
        unsent: &mut &[u8],
        commands: usize,
        replies: &mut Vec<Reply>,
    ) -> Poll<Result<(), String>> {
        let sending = self.poll_send(cx, unsent);
        let (blocked, mut broken) = match sending {
            Poll::Ready(Ok(())) => (false, None),
            Poll::Ready(Err(reason)) => (true, Some(reason)),
            Poll::Pending => (true, None),
        };
        // Replies of the node count, even if it takes no more of the request.
        loop {
            while let Some(reply) = self.parser.next().map_err(|error| error.to_string())? {
                if matches!(reply, Reply::Push(_)) {
                    continue;
                }
                replies.push(reply);
                if replies.len() == commands {
                    return Poll::Ready(match blocked {
                        false => Ok(()),
                        true => Err("the node answered before it was asked".to_owned()),
                    });
                }
            }
            let mut bytes = [0; 8 * 1024];
            let mut space = ReadBuf::new(&mut bytes);
            let end = match Pin::new(&mut self.stream).poll_read(cx, &mut space) {
                Poll::Pending if broken.is_none() => return Poll::Pending,
                Poll::Ready(Ok(())) if !space.filled().is_empty() => {
                    self.parser.feed(space.filled());
                    continue;
                }
                Poll::Pending => String::new(),
                Poll::Ready(Ok(())) => "the node closed the connection".to_owned(),
                Poll::Ready(Err(error)) => error.to_string(),
            };
            return Poll::Ready(Err(broken.take().unwrap_or(end)));
        }
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, unsent: &mut &[u8]) -> Poll<Result<(), String>> {
        while !unsent.is_empty() {
            match ready!(Pin::new(&mut self.stream).poll_write(cx, unsent)) {
                Ok(0) => return Poll::Ready(Err("the connection takes no bytes".to_owned())),
                Ok(written) => *unsent = &unsent[written..],
                Err(error) => return Poll::Ready(Err(error.to_string())),
            }
        }
        Pin::new(&mut self.stream).poll_flush(cx).map_err(|error| error.to_string())
    }
}
