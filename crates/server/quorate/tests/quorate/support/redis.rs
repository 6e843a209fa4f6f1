//! A real redis-server to compare with, and connections that keep every byte of a reply.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use super::{PATIENCE, free_ports};

/// A redis-server on a port of its own, gone with this value.
pub(crate) struct Redis {
    process: Child,
    pub(crate) port: u16,
}

impl Redis {
    /// Starts it with more options.
    pub(crate) fn start(more: &[&str]) -> Self {
        // Somebody else may take the port between the choice and the start.
        for _ in 0..5 {
            if let Some(redis) = Self::start_on(free_ports(1)[0], more) {
                return redis;
            }
        }
        panic!("redis-server found no free port");
    }

    fn start_on(port: u16, more: &[&str]) -> Option<Self> {
        let mut process = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--appendonly", "no"])
            .args(["--save", ""])
            .args(more)
            .current_dir(std::env::temp_dir())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| {
                panic!(
                    "this test compares with a real redis-server, which didn't start ({error}); \
                     install Redis 7.0 with tools/setup"
                )
            });
        let mut log = BufReader::new(process.stdout.take().expect("it was piped"));
        let mut redis = Self { process, port };
        let mut line = String::new();
        while !line.contains("eady to accept connections") {
            line.clear();
            if log.read_line(&mut line).expect("its log is text") == 0 {
                let _ = redis.process.wait();
                return None;
            }
        }
        // Whatever it logs from now on is of no interest, but the pipe must not fill up.
        std::thread::spawn(move || io::copy(&mut log, &mut io::sink()));
        Some(redis)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // Both can only fail if it is gone already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A command, its name first.
pub(crate) type Words = Vec<Vec<u8>>;

/// A command as clients send it.
pub(crate) fn encode(words: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        let word = word.as_ref();
        bytes.extend(format!("${}\r\n", word.len()).into_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// A connection whose replies are the bytes that came, one reply at a time.
pub(crate) struct Raw(BufReader<TcpStream>);

impl Raw {
    /// Connects to a server that runs.
    pub(crate) fn new(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("the server accepts clients");
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self(BufReader::new(stream))
    }

    /// Sends a command and reads its reply.
    pub(crate) fn ask(&mut self, words: &[impl AsRef<[u8]>]) -> io::Result<Vec<u8>> {
        self.send(&encode(words))?;
        self.receive()
    }

    /// Sends bytes.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.get_mut().write_all(bytes)
    }

    /// Sends bytes from elsewhere, so that a server whose replies fill the socket is still read.
    pub(crate) fn send_behind(&self, bytes: Vec<u8>) {
        let mut stream = self.0.get_ref().try_clone().expect("a second handle");
        // The replies tell whether it arrived.
        std::thread::spawn(move || stream.write_all(&bytes));
    }

    /// Reads one reply, whole.
    pub(crate) fn receive(&mut self) -> io::Result<Vec<u8>> {
        let mut reply = Vec::new();
        let mut missing: i64 = 1;
        while missing > 0 {
            missing -= 1;
            let start = reply.len();
            if self.0.read_until(b'\n', &mut reply)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let line = String::from_utf8_lossy(&reply[start..]).into_owned();
            let number = || line[1..].trim_end().parse::<i64>();
            let bad = |_| io::Error::new(io::ErrorKind::InvalidData, line.clone());
            match line.as_bytes()[0] {
                b'$' | b'=' | b'!' => {
                    let length = number().map_err(bad)?;
                    if length >= 0 {
                        let more = reply.len() + length as usize + 2;
                        let start = reply.len();
                        reply.resize(more, 0);
                        self.0.read_exact(&mut reply[start..])?;
                    }
                }
                b'*' | b'~' | b'>' => missing += number().map_err(bad)?.max(0),
                b'%' => missing += 2 * number().map_err(bad)?.max(0),
                _ => {}
            }
        }
        Ok(reply)
    }

    /// Everything until the server closes the connection.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        // A reset after the last bytes is an end as well.
        let _ = self.0.read_to_end(&mut bytes);
        bytes
    }
}
