//! A connection that waits: commands out, replies in.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;

/// The longest string of a reply, in bytes: what any Redis takes unless it is told otherwise.
const BULK_BYTES_MAX: u64 = 512 * 1024 * 1024;
/// The longest line of a reply, and the most replies in one.
const LINE_BYTES_MAX: u64 = 64 * 1024;
const ARRAY_MAX: i64 = 1024 * 1024;
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
    out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

pub(crate) struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self { stream: BufReader::with_capacity(64 * 1024, stream) }
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
        let line = self.line()?;
        let (kind, rest) = line.split_at_checked(1).ok_or_else(|| strange(&line))?;
        let number = || rest.parse::<i64>().map_err(|_| strange(&line));
        match kind {
            "+" => Ok(Reply::Status(rest.to_owned())),
            "-" => Ok(Reply::Error(rest.to_owned())),
            ":" => Ok(Reply::Int(number()?)),
            "_" => Ok(Reply::Null),
            "$" | "*" if number()? < 0 => Ok(Reply::Null),
            "$" => self.bulk(number()?.unsigned_abs()).map(Reply::Bulk),
            "*" | ">" | "%" if depth > 0 && number()? <= ARRAY_MAX => {
                let each = if kind == "%" { 2 } else { 1 };
                let parts = (0..each * number()?).map(|_| self.nested(depth - 1));
                let parts = parts.collect::<io::Result<_>>()?;
                Ok(if kind == ">" { Reply::Push(parts) } else { Reply::Array(parts) })
            }
            _ => Err(strange(&line)),
        }
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        (&mut self.stream).take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Err(io::Error::new(
                ErrorKind::UnexpectedEof,
                "the target closed the connection",
            ));
        }
        let text = String::from_utf8_lossy(&line);
        text.strip_suffix("\r\n").map(str::to_owned).ok_or_else(|| strange(&text))
    }

    fn bulk(&mut self, length: u64) -> io::Result<Vec<u8>> {
        if length > BULK_BYTES_MAX {
            return Err(strange(&format!("${length}")));
        }
        // Grows as bytes come.
        let mut bytes = Vec::new();
        (&mut self.stream).take(length + 2).read_to_end(&mut bytes)?;
        if bytes.len() as u64 != length + 2 {
            return Err(io::Error::new(
                ErrorKind::UnexpectedEof,
                "the target closed the connection",
            ));
        }
        bytes.truncate(length as usize);
        Ok(bytes)
    }
}

fn strange(line: &str) -> io::Error {
    let start: String = line.chars().take(60).collect();
    let text = format!("the target doesn't answer as a Redis does, but {start:?}; check --target");
    io::Error::new(ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

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
