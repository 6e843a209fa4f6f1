//! A real redis-server.

use std::io::{self, BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

/// A redis-server on a port of its own, gone with this value.
pub(crate) struct Redis {
    process: Child,
    port: u16,
}

impl Redis {
    /// Starts it with more options.
    pub(crate) fn start(more: &[&str]) -> Self {
        // Another process may take the port between the choice and the start.
        for _ in 0..5 {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
            let port = listener.local_addr().expect("it is bound").port();
            drop(listener);
            if let Some(redis) = Self::start_on(port, more) {
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
                    "this test needs a real redis-server, which didn't start ({error}); \
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
        // The further log is of no interest, but the pipe must not fill up.
        std::thread::spawn(move || io::copy(&mut log, &mut io::sink()));
        Some(redis)
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // Both fail only if the server is gone already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
