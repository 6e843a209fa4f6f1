//! An in-memory [`Backend`] and a driver, for tests of this crate and of what is built on it.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use quorate_commands::{Call, Op, Reply};
use quorate_machine::{Access, Change, Content, Current, Operation, Outcome, Rng, ValueKind};
use quorate_types::{Duration, MemberNumber, Now, Tag, Timestamp, UnixMillis, WriterId};

use crate::backend::{Backend, KeyspaceFacts, MemoryFacts, ServerFacts};
use crate::connection::ConnectionId;
use crate::frontend::Frontend;
use crate::shared::Shared;

#[derive(Clone, Debug, Default)]
struct Entry {
    value: Option<(Vec<u8>, Option<UnixMillis>)>,
    timestamp: Timestamp,
}

impl Entry {
    fn current(&self, now: UnixMillis) -> Current<'_> {
        let content = self.value.as_ref().map(|(bytes, expire_at)| Content {
            bytes,
            kind: ValueKind::String,
            expire_at: *expire_at,
        });
        Current { content: content.filter(|c| !c.is_expired(now)), timestamp: self.timestamp }
    }
}

#[derive(Debug)]
enum Work {
    Op(Op),
    Flush,
}

/// A single replica that answers submitted ops when it is told to: in order, or in a random order
/// that keeps the order of ops on one key.
#[derive(Debug)]
pub struct MemoryBackend {
    keyspaces: BTreeMap<u8, BTreeMap<Vec<u8>, Entry>>,
    queue: VecDeque<(u8, Tag, Work)>,
    version: u64,
    /// Draws the order of completions, if it is to be random.
    pub shuffle: Option<Rng>,
    /// Whether reads may be answered at once.
    pub local_reads: bool,
    /// Reads answered at once so far.
    pub reads: u64,
    /// Ops submitted so far.
    pub submitted: u64,
    /// How the next ops end instead of being executed.
    pub refuse: VecDeque<Outcome<Reply<'static>>>,
    /// What [`Backend::replicas`] says.
    pub replicas: usize,
    /// What [`Backend::serving`] says.
    pub serving: Result<(), &'static str>,
    /// What [`Backend::memory`] says is used.
    pub used: u64,
    /// Whether [`Backend::shutdown`] was called.
    pub stopped: bool,
}

impl Default for MemoryBackend {
    /// Sixteen empty keyspaces.
    fn default() -> Self {
        Self {
            keyspaces: (0..16).map(|number| (number, BTreeMap::new())).collect(),
            queue: VecDeque::new(),
            version: 0,
            shuffle: None,
            local_reads: true,
            reads: 0,
            submitted: 0,
            refuse: VecDeque::new(),
            replicas: 2,
            serving: Ok(()),
            used: 0,
            stopped: false,
        }
    }
}

impl MemoryBackend {
    /// Ops waiting to be executed.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Executes one waiting op.
    pub fn execute(&mut self, now: Now) -> Option<(Tag, Outcome<Reply<'static>>)> {
        let index = self.pick()?;
        let (keyspace, tag, work) = self.queue.remove(index)?;
        if let Some(outcome) = self.refuse.pop_front() {
            return Some((tag, outcome));
        }
        let reply = match work {
            Work::Flush => {
                self.keyspaces.entry(keyspace).or_default().values_mut().for_each(|entry| {
                    entry.value = None;
                });
                Reply::Ok
            }
            Work::Op(op) => self.apply(keyspace, now.wall(), &op),
        };
        Some((tag, Outcome::Done(reply)))
    }

    /// The first op, or a random one that no earlier op on its key holds up.
    fn pick(&mut self) -> Option<usize> {
        let count = self.queue.len();
        if count == 0 {
            return None;
        }
        let Some(rng) = &mut self.shuffle else { return Some(0) };
        let chosen = rng.below(count as u64) as usize;
        let key = |work: &Work| match work {
            Work::Op(op) => Some(op.key().to_vec()),
            Work::Flush => None,
        };
        let (keyspace, _, work) = &self.queue[chosen];
        let wanted = key(work);
        self.queue.iter().position(|(other, _, work)| other == keyspace && key(work) == wanted)
    }

    fn apply(&mut self, keyspace: u8, now: UnixMillis, op: &Op) -> Reply<'static> {
        let entries = self.keyspaces.entry(keyspace).or_default();
        let entry = entries.entry(op.key().to_vec()).or_default();
        let (reply, change) = op.apply(now, entry.current(now));
        let value = match change {
            Change::Keep => return reply,
            Change::Set { bytes, expire_at, .. } => Some((bytes.into_owned(), expire_at)),
            Change::Expire(expire_at) => entry.value.take().map(|(bytes, _)| (bytes, expire_at)),
            Change::Delete => None,
        };
        entry.value = value;
        self.version += 1;
        entry.timestamp = Timestamp::new(self.version, WriterId::new(MemberNumber(1), 0));
        reply
    }

    fn live(&self, keyspace: u8, now: UnixMillis) -> impl Iterator<Item = &Vec<u8>> {
        let entries = self.keyspaces.get(&keyspace).into_iter().flatten();
        entries.filter(move |(_, entry)| entry.current(now).content.is_some()).map(|(key, _)| key)
    }
}

impl Backend for MemoryBackend {
    fn keyspace(&self, number: u8) -> Option<KeyspaceFacts> {
        let entries = self.keyspaces.get(&number)?;
        let values = || entries.values().filter_map(|entry| entry.value.as_ref());
        Some(KeyspaceFacts {
            number,
            name: format!("db{number}"),
            engine: "memory",
            replicas: 1,
            keys: values().count() as u64,
            expires: values().filter(|(_, expire_at)| expire_at.is_some()).count() as u64,
        })
    }

    fn read<R>(
        &mut self,
        keyspace: u8,
        now: Now,
        call: &Call<'_>,
        with: impl FnOnce(Reply<'_>) -> R,
    ) -> Option<R> {
        if !self.local_reads || self.serving.is_err() {
            return None;
        }
        self.reads += 1;
        let entry = self.keyspaces.get(&keyspace)?.get(call.key());
        let absent = Entry::default();
        let current = entry.unwrap_or(&absent).current(now.wall());
        assert_eq!(call.access(), Access::Read, "only reads are read");
        Some(with(call.execute(now.wall(), current).0))
    }

    fn submit<P>(&mut self, keyspace: u8, _: Now, tag: Tag, _: u64, op: &P)
    where
        P: Operation<Owned = Op, Reply = Reply<'static>>,
    {
        self.submitted += 1;
        self.queue.push_back((keyspace, tag, Work::Op(op.to_owned())));
    }

    fn flush(&mut self, keyspace: u8, _: Now, tag: Tag) {
        self.queue.push_back((keyspace, tag, Work::Flush));
    }

    fn scan(
        &mut self,
        keyspace: u8,
        now: Now,
        cursor: u64,
        limit: usize,
        visit: &mut dyn FnMut(&[u8]),
    ) -> u64 {
        let mut keys = self.live(keyspace, now.wall()).skip(cursor as usize);
        keys.by_ref().take(limit).for_each(|key| visit(key));
        if keys.next().is_some() { cursor + limit as u64 } else { 0 }
    }

    fn random_key(&mut self, keyspace: u8, now: Now) -> Option<Vec<u8>> {
        self.live(keyspace, now.wall()).next().cloned()
    }

    fn key_count(&self, keyspace: u8) -> u64 {
        self.keyspace(keyspace).map_or(0, |facts| facts.keys)
    }

    fn memory_usage(&mut self, keyspace: u8, now: Now, key: &[u8]) -> Option<u64> {
        let entry = self.keyspaces.get(&keyspace)?.get(key)?;
        let content = entry.current(now.wall()).content?;
        Some((key.len() + content.bytes.len()) as u64)
    }

    fn replicas(&self, _: u8) -> usize {
        self.replicas
    }

    fn memory(&self) -> MemoryFacts {
        MemoryFacts { used: self.used, peak: self.used, resident: 0 }
    }

    fn facts(&self) -> ServerFacts {
        ServerFacts { version: "test".to_owned(), node: 1, role: "active", ..Default::default() }
    }

    fn serving(&self) -> Result<(), &'static str> {
        self.serving
    }

    fn shutdown(&mut self) {
        self.stopped = true;
    }
}

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

    /// Executes one waiting op; whether there was one.
    pub fn complete_one(&mut self) -> bool {
        let Some((tag, outcome)) = self.backend.execute(self.now) else { return false };
        self.frontend.complete(tag, outcome, self.now, &mut self.backend);
        true
    }

    /// Ends a turn and takes what the client is sent.
    pub fn take(&mut self, id: ConnectionId) -> Vec<u8> {
        self.frontend.seal(self.lease);
        let mut taken = Vec::new();
        loop {
            let bytes = match self.frontend.output(id) {
                Some(output) if !output.is_empty() => output.unsent().to_vec(),
                _ => return taken,
            };
            taken.extend_from_slice(&bytes);
            self.frontend.written(id, bytes.len(), self.now, &mut self.backend);
            self.frontend.seal(self.lease);
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
