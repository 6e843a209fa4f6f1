//! A connection that waits: commands out, replies in.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;

/// The longest string of a reply, in bytes: what any Redis takes unless it is told otherwise.
const BULK_BYTES_MAX: u64 = 512 * 1024 * 1024;
/// The longest line of a reply, and the most replies in one.
const LINE_BYTES_MAX: u64 = 64 * 1024;
const ARRAY_MAX: i64 = 1024 * 1024;
/// What ends a line and a string.
const END_OF_LINE: &[u8] = b"\r\n";
/// Bytes that are read at once.
const BUFFER_BYTES: usize = 64 * 1024;
/// How deep replies lie in each other.
const DEPTH_MAX: u32 = 8;

/// What the server answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Reply {
    Status(String),
    Error(String),
    Int(i64),
    Bulk(Vec<u8>),
    Array(Vec<Reply>),
    /// What nobody has asked for at that moment; of RESP3, as are maps, which are read as arrays.
    Push(Vec<Reply>),
    Null,
}

/// Appends a command.
pub(crate) fn command<'a>(words: impl ExactSizeIterator<Item = &'a [u8]>, out: &mut Vec<u8>) {
    header(b'*', words.len(), out);
    for word in words {
        header(b'$', word.len(), out);
        out.extend_from_slice(word);
        out.extend_from_slice(END_OF_LINE);
    }
}

/// A backup writes some ten of these for each key.
fn header(kind: u8, number: usize, out: &mut Vec<u8>) {
    out.push(kind);
    let (begin, mut rest) = (out.len(), number);
    while rest > 0 || out.len() == begin {
        out.push(b'0' + (rest % 10) as u8);
        rest /= 10;
    }
    out[begin..].reverse();
    out.extend_from_slice(END_OF_LINE);
}

pub(crate) struct Connection {
    stream: BufReader<TcpStream>,
    /// The line that was read last, without its end.
    line: Vec<u8>,
}

impl Connection {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self { stream: BufReader::with_capacity(BUFFER_BYTES, stream), line: Vec::new() }
    }

    /// The socket, to be written to or closed while another thread reads.
    pub(crate) fn socket(&self) -> &TcpStream {
        self.stream.get_ref()
    }

    /// Sends commands. Their answers are read afterwards, so together they should be short.
    pub(crate) fn send(&mut self, commands: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(commands)
    }

    /// Reads the next reply.
    pub(crate) fn reply(&mut self) -> io::Result<Reply> {
        self.nested(DEPTH_MAX)
    }

    fn nested(&mut self, depth: u32) -> io::Result<Reply> {
        self.read_line()?;
        let (kind, rest) = self.line.split_first().ok_or_else(|| strange(&self.line))?;
        let text = || String::from_utf8(rest.to_vec()).unwrap_or_else(|_| lossy(rest));
        let number = || {
            let number =
                std::str::from_utf8(rest).ok().and_then(|digits| digits.parse::<i64>().ok());
            number.ok_or_else(|| strange(&self.line))
        };
        match kind {
            b'+' => Ok(Reply::Status(text())),
            b'-' => Ok(Reply::Error(text())),
            b':' => Ok(Reply::Int(number()?)),
            b'_' => Ok(Reply::Null),
            b'$' | b'*' if number()? < 0 => Ok(Reply::Null),
            b'$' => {
                let length = number()?.unsigned_abs();
                self.bulk(length).map(Reply::Bulk)
            }
            b'*' | b'>' | b'%' if depth > 0 && number()? <= ARRAY_MAX => {
                let (kind, number) = (*kind, number()?);
                let each = if kind == b'%' { 2 } else { 1 };
                let parts = (0..each * number).map(|_| self.nested(depth - 1));
                let parts = parts.collect::<io::Result<_>>()?;
                Ok(if kind == b'>' { Reply::Push(parts) } else { Reply::Array(parts) })
            }
            _ => Err(strange(&self.line)),
        }
    }

    fn read_line(&mut self) -> io::Result<()> {
        self.line.clear();
        (&mut self.stream).take(LINE_BYTES_MAX).read_until(b'\n', &mut self.line)?;
        if self.line.is_empty() {
            return Err(closed());
        }
        let text = self.line.strip_suffix(END_OF_LINE).ok_or_else(|| strange(&self.line))?;
        self.line.truncate(text.len());
        Ok(())
    }

    fn bulk(&mut self, length: u64) -> io::Result<Vec<u8>> {
        if length > BULK_BYTES_MAX {
            return Err(strange(&self.line));
        }
        let wanted = length as usize + END_OF_LINE.len();
        // Grows as bytes come.
        let mut bytes = Vec::with_capacity(wanted.min(BUFFER_BYTES));
        while bytes.len() < wanted {
            let come = self.stream.fill_buf()?;
            let some = come.len().min(wanted - bytes.len());
            if some == 0 {
                return Err(closed());
            }
            bytes.extend_from_slice(&come[..some]);
            self.stream.consume(some);
        }
        bytes.truncate(length as usize);
        Ok(bytes)
    }
}

fn lossy(text: &[u8]) -> String {
    String::from_utf8_lossy(text).into_owned()
}

fn closed() -> io::Error {
    io::Error::new(ErrorKind::UnexpectedEof, "the target closed the connection")
}

fn strange(line: &[u8]) -> io::Error {
    let start: String = lossy(line).chars().take(60).collect();
    let text = format!("the target doesn't answer as a Redis does, but {start:?}; check --target");
    io::Error::new(ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn commands_are_written() {
        let mut out = Vec::new();
        let words: [&[u8]; 3] = [b"SET", b"", &[b'x'; 1203]];
        command(words.into_iter(), &mut out);
        let wanted = format!("*3\r\n$3\r\nSET\r\n$0\r\n\r\n$1203\r\n{}\r\n", "x".repeat(1203));
        assert_eq!(String::from_utf8(out).expect("it is text"), wanted);
    }

    #[test]
    fn replies_are_read_and_what_is_none_is_said() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it is bound");
        let answers =
            b"+OK\r\n-ERR no\r\n:-7\r\n$3\r\na\r\n\r\n$-1\r\n*2\r\n:1\r\n*1\r\n$0\r\n\r\n*-1\r\n\
            %1\r\n+a\r\n:1\r\n>2\r\n+invalidate\r\n_\r\nHTTP/1.1 400\r\n";
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            stream.write_all(answers).expect("it reads");
        });
        let mut connection = Connection::new(TcpStream::connect(address).expect("it listens"));
        let wanted = [
            Reply::Status("OK".into()),
            Reply::Error("ERR no".into()),
            Reply::Int(-7),
            Reply::Bulk(b"a\r\n".into()),
            Reply::Null,
            Reply::Array(vec![Reply::Int(1), Reply::Array(vec![Reply::Bulk(Vec::new())])]),
            Reply::Null,
            Reply::Array(vec![Reply::Status("a".into()), Reply::Int(1)]),
            Reply::Push(vec![Reply::Status("invalidate".into()), Reply::Null]),
        ];
        for wanted in wanted {
            assert_eq!(connection.reply().expect("a reply"), wanted);
        }
        let error = connection.reply().expect_err("no reply");
        assert!(error.to_string().contains("HTTP/1.1 400"), "{error}");
        server.join().expect("it has written all");
        assert_eq!(connection.reply().expect_err("closed").kind(), ErrorKind::UnexpectedEof);
    }
}
