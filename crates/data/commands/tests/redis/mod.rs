//! A real redis-server to compare with.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use quorate_types::limits;

use crate::workspace::{Answer, Words};

/// A redis-server of our own, gone when this is dropped.
pub(crate) struct Redis {
    process: Child,
    directory: PathBuf,
    stream: BufReader<UnixStream>,
}

impl Redis {
    pub(crate) fn start() -> Self {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let directory =
            std::env::temp_dir().join(format!("quorate-commands-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory for redis-server");
        let socket = directory.join("socket");
        let mut process = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
            .arg(&socket)
            .arg("--dir")
            .arg(&directory)
            // What `DUMP` says is then what it says here.
            .args(["--rdbcompression", "no"])
            .args(["--proto-max-bulk-len", &limits::VALUE_BYTES_MAX.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| {
                panic!(
                    "this test compares with a real redis-server, which didn't start ({error}); \
                     install Redis 7.0 with `apt-get install redis-server`"
                )
            });
        let mut log = BufReader::new(process.stdout.take().expect("it was piped"));
        let mut line = String::new();
        while !line.contains("ready to accept connections") {
            line.clear();
            let read = log.read_line(&mut line).expect("its log is text");
            assert!(read > 0, "redis-server ended before it was ready");
        }
        // Whatever it logs from now on is of no interest, but the pipe must not fill up.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        let stream = UnixStream::connect(&socket).expect("it said that it was ready");
        Self { process, directory, stream: BufReader::new(stream) }
    }

    /// Sends commands at once and reads their answers.
    pub(crate) fn pipeline<'a>(
        &mut self,
        commands: impl IntoIterator<Item = &'a Words>,
    ) -> Vec<Answer> {
        let mut bytes = Vec::new();
        let mut count = 0;
        for words in commands {
            write!(bytes, "*{}\r\n", words.len()).expect("memory");
            for word in words {
                write!(bytes, "${}\r\n", word.len()).expect("memory");
                bytes.extend_from_slice(word);
                bytes.extend_from_slice(b"\r\n");
            }
            count += 1;
        }
        // Written from elsewhere, so that a server whose answers fill the socket keeps reading.
        let mut output = self.stream.get_ref().try_clone().expect("a second handle");
        let writer = std::thread::spawn(move || output.write_all(&bytes));
        let answers = (0..count).map(|_| self.answer()).collect();
        writer.join().expect("it doesn't panic").expect("redis-server takes commands");
        answers
    }

    pub(crate) fn call(&mut self, words: &[&str]) -> Answer {
        let words: Words = words.iter().map(|word| word.as_bytes().to_vec()).collect();
        self.pipeline([&words]).remove(0)
    }

    fn answer(&mut self) -> Answer {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line).expect("redis-server answers");
        let line = String::from_utf8_lossy(line.strip_suffix(b"\r\n").expect("a whole line"));
        let (kind, rest) = line.split_at(1);
        let number = || rest.parse::<i64>().expect("a number");
        match kind {
            "+" => Answer::Status(rest.into()),
            "-" => Answer::Error(rest.into()),
            ":" => Answer::Int(number()),
            "$" if number() < 0 => Answer::Null,
            "$" => {
                let mut bytes = vec![0; number() as usize + 2];
                self.stream.read_exact(&mut bytes).expect("a whole string");
                bytes.truncate(bytes.len() - 2);
                Answer::Bulk(bytes)
            }
            "*" if number() < 0 => Answer::NullArray,
            "*" => Answer::Array((0..number()).map(|_| self.answer()).collect()),
            _ => panic!("unexpected answer {line}"),
        }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // Both can only fail if it is gone already.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
