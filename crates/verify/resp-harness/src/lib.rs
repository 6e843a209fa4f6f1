//! An in-memory [`Backend`](quorate_resp::Backend) and a driver, for tests of the Redis front end and of
//! what is built on it.

mod memory;

use std::net::SocketAddr;
use std::sync::Arc;

use quorate_machine::Seal;
use quorate_resp::{ConnectionId, Frontend, Shared};
use quorate_types::{Duration, Now, UnixMillis};

pub use memory::MemoryBackend;

/// A front end with its backend and a clock, driven by hand.
pub struct Harness {
    /// The front end.
    pub frontend: Frontend,
    /// What is behind it.
    pub backend: MemoryBackend,
    /// The time.
    pub now: Now,
    /// Whether the lease holds at the end of each turn.
    pub lease: bool,
}

impl Harness {
    /// A front end of its own node.
    pub fn new(shared: Arc<Shared>) -> Self {
        Self {
            frontend: Frontend::new(shared),
            backend: MemoryBackend::default(),
            now: Now { unix: UnixMillis(1_700_000_000_000).into(), ..Now::default() },
            lease: true,
        }
    }

    /// Connects a client.
    ///
    /// # Errors
    /// What it is told if there are too many.
    pub fn open(&mut self) -> Result<ConnectionId, &'static [u8]> {
        let address = SocketAddr::from(([127, 0, 0, 1], 6379));
        self.frontend.open(self.now, address, address)
    }

    /// Connects a client that there is room for.
    ///
    /// # Panics
    /// If there are too many clients.
    pub fn connect(&mut self) -> ConnectionId {
        self.open().expect("there are fewer than maxclients clients")
    }

    /// A client sends bytes, which are processed; nothing completes yet.
    pub fn feed(&mut self, id: ConnectionId, bytes: &[u8]) {
        if let Some(buffer) = self.frontend.read_buffer(id) {
            buffer.extend_from_slice(bytes);
            self.frontend.process(id, self.now, &mut self.backend);
        }
    }

    /// Begins another turn.
    pub fn begin_turn(&mut self) {
        self.frontend.begin_turn(self.now, &mut self.backend);
    }

    /// Executes one waiting op; whether there was one.
    pub fn complete_one(&mut self) -> bool {
        if let Some((tag, answer)) = self.backend.take_lease() {
            self.frontend.leased(tag, answer, self.now, &mut self.backend);
            return true;
        }
        if let Some((tag, listed)) = self.backend.listed.pop_front() {
            self.frontend.listed(tag, listed, self.now, &mut self.backend);
            return true;
        }
        if let Some(invalidation) = self.backend.invalidated.pop_front() {
            self.frontend.invalidated(invalidation);
            return true;
        }
        let Some((tag, outcome)) = self.backend.execute(self.now) else { return false };
        self.frontend.complete(tag, outcome, self.now, &mut self.backend);
        true
    }

    /// Ends a turn and takes what the client is sent.
    pub fn take(&mut self, id: ConnectionId) -> Vec<u8> {
        self.frontend.seal(if self.lease { Seal::Holds } else { Seal::Lost });
        let mut taken = Vec::new();
        loop {
            let bytes = match self.frontend.output(id) {
                Some(output) if !output.is_empty() => output.unsent().to_vec(),
                _ => return taken,
            };
            taken.extend_from_slice(&bytes);
            self.frontend.written(id, bytes.len(), self.now, &mut self.backend);
            self.frontend.seal(if self.lease { Seal::Holds } else { Seal::Lost });
        }
    }

    /// A client sends bytes; everything completes; what it is sent.
    pub fn send(&mut self, id: ConnectionId, bytes: &[u8]) -> Vec<u8> {
        self.feed(id, bytes);
        let mut taken = self.take(id);
        while self.complete_one() {
            taken.extend(self.take(id));
        }
        taken
    }

    /// [`Harness::send`] in text, with a line end.
    pub fn talk(&mut self, id: ConnectionId, line: &str) -> String {
        let bytes = self.send(id, format!("{line}\r\n").as_bytes());
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Lets time pass.
    pub fn pass(&mut self, millis: u64) {
        self.now.monotonic += Duration::from_millis(millis);
        self.now.unix.0 += millis * 1_000_000;
        self.frontend.tick(self.now, &mut self.backend);
    }
}
