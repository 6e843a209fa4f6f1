//! A Redis client that blocks, connects once and repeats nothing.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A server's reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Reply {
    Status(String),
    Error(String),
    Integer(i64),
    Bulk(Option<Vec<u8>>),
    Array(Vec<Reply>),
}

/// A connection.
pub(crate) struct Connection(BufReader<TcpStream>);

impl Connection {
    /// Connects; nothing may take longer than `patience`.
    pub(crate) fn open(address: &str, patience: Duration) -> io::Result<Self> {
        let address: SocketAddr = address.parse().map_err(io::Error::other)?;
        let stream = TcpStream::connect_timeout(&address, patience)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        stream.set_nodelay(true)?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Sends a command and reads its reply. After an error the connection is of no use.
    pub(crate) fn ask(&mut self, words: &[&str]) -> io::Result<Reply> {
        self.send(words)?;
        self.receive()
    }

    /// Sends a command.
    pub(crate) fn send(&mut self, words: &[&str]) -> io::Result<()> {
        let mut bytes = format!("*{}\r\n", words.len());
        for word in words {
            bytes += &format!("${}\r\n{word}\r\n", word.len());
        }
        self.0.get_mut().write_all(bytes.as_bytes())
    }

    /// Whether the server has closed the connection between two requests.
    pub(crate) fn is_closed(&self) -> bool {
        let stream = self.0.get_ref();
        let closed = stream.set_nonblocking(true).and_then(|()| stream.peek(&mut [0]));
        let quiet = closed.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        stream.set_nonblocking(false).is_err() || !quiet
    }

    /// Reads the reply to the oldest unanswered command.
    pub(crate) fn receive(&mut self) -> io::Result<Reply> {
        let mut line = String::new();
        if self.0.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let bad = || io::Error::new(io::ErrorKind::InvalidData, line.clone());
        let (kind, rest) = line.trim_end().split_at_checked(1).ok_or_else(bad)?;
        let number = || rest.parse::<i64>().map_err(|_| bad());
        match kind {
            "+" => Ok(Reply::Status(rest.to_owned())),
            "-" => Ok(Reply::Error(rest.to_owned())),
            ":" => Ok(Reply::Integer(number()?)),
            "$" => {
                let Ok(length) = usize::try_from(number()?) else { return Ok(Reply::Bulk(None)) };
                let mut bytes = vec![0; length + 2];
                self.0.read_exact(&mut bytes)?;
                bytes.truncate(length);
                Ok(Reply::Bulk(Some(bytes)))
            }
            "*" => {
                (0..number()?).map(|_| self.receive()).collect::<io::Result<_>>().map(Reply::Array)
            }
            _ => Err(bad()),
        }
    }
}
