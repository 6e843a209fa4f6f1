//! An in-memory [`Backend`] and a driver, for tests of the Redis front end and of what is built on
//! it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::sync::Arc;

use quorate_commands::{Call, Op, OwnedCall, Reply, Wait};
use quorate_machine::{
    Access, Change, Command, Content, Current, Outcome, Placed, Refusal, Rng, Seal, ValueKind,
    Verdict, Workspace,
};
use quorate_rifl::{Answer as Lease, Found, Genuine, Grant, LeaseId, Lost, Request, ResultTracker};
use quorate_types::placement::pin_key;
use quorate_types::{
    Duration, Instant, LaneId, MemberNumber, NodeId, NodeSet, Now, Publication, Tag, Timestamp,
    Topic, UnixMillis, WriterId, limits,
};

use quorate_resp::{
    Attempt as Called, Backend, Blocking, ConnectionId, Frontend, Invalidation, KeyspaceFacts,
    Listed, MemoryFacts, PlacementFacts, ServerFacts, Shared, glob_match,
};

/// What a session's number differs by from its token.
const TOKENS: u64 = 0x5eed_0000_0000_0000;

/// A value, what it is, and when it expires.
type Value = (Vec<u8>, ValueKind, Option<UnixMillis>);

#[derive(Clone, Debug, Default)]
struct Entry {
    value: Option<Value>,
    timestamp: Timestamp,
}

impl Entry {
    fn current(&self, now: UnixMillis) -> Current<'_> {
        Current {
            content: content(self.value.as_ref(), now),
            large: None,
            timestamp: self.timestamp,
        }
    }
}

fn content(value: Option<&Value>, now: UnixMillis) -> Option<Content<'_>> {
    let (bytes, kind, expire_at) = value?;
    let content = Content { bytes, kind: *kind, expire_at: *expire_at };
    (!content.is_expired(now)).then_some(content)
}

/// The value after a change; `None` if the key has no value to be changed.
fn changed(value: Option<Value>, change: Change<'_>) -> Option<Option<Value>> {
    match change {
        Change::Keep => None,
        Change::Set { bytes, kind, expire_at } => Some(Some((bytes.into_owned(), kind, expire_at))),
        Change::Expire(expire_at) => value.map(|(bytes, kind, _)| Some((bytes, kind, expire_at))),
        Change::Delete => Some(None),
        Change::Delta { .. } => unreachable!("values are packed here"),
    }
}

/// A keyspace under one transaction.
struct Attempt<'a> {
    entries: &'a BTreeMap<Vec<u8>, Entry>,
    now: UnixMillis,
    /// What the transaction has touched, and its changes.
    touched: BTreeMap<Vec<u8>, Option<Option<Value>>>,
}

impl Workspace for Attempt<'_> {
    fn read(&mut self, key: &[u8]) -> Current<'_> {
        let entry = self.entries.get(key);
        let timestamp = entry.map_or(Timestamp::ZERO, |entry| entry.timestamp);
        let change = self.touched.entry(key.to_vec()).or_default().as_ref();
        let value = change.map_or(entry.and_then(|entry| entry.value.as_ref()), Option::as_ref);
        Current { content: content(value, self.now), large: None, timestamp }
    }

    fn placement(&mut self, _: &[u8]) -> Option<Placed> {
        Some(Placed { owner: Some(NodeId(1)), readers: NodeSet::only(NodeId(1)), moves: 5 })
    }

    fn write(&mut self, key: &[u8], change: Change<'_>) {
        let Current { content, .. } = self.read(key);
        let value =
            content.map(|content| (content.bytes.to_vec(), content.kind, content.expire_at));
        if let Some(value) = changed(value, change) {
            self.touched.insert(key.to_vec(), Some(value));
        }
    }
}

#[derive(Debug)]
enum Work {
    /// Asked for by this client.
    Op(u64, Op),
    Call(Called),
    Flush,
    Announce,
}

impl Work {
    /// The keys that it touches; a flush touches none by name.
    fn keys(&self) -> BTreeSet<Vec<u8>> {
        let mut keys = BTreeSet::new();
        // One session's calls may overtake each other.
        if let Self::Op(_, op) = self {
            op.visit_keys(&mut |key| {
                keys.insert(key.to_vec());
            });
        }
        keys
    }

    /// Whether the two may not change places.
    fn is_ordered(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Flush, Self::Flush) => true,
            _ => !self.keys().is_disjoint(&other.keys()),
        }
    }
}

/// A single replica that answers what was submitted when it is told to: in order, or in a random
/// order that keeps the order of ops and transactions that share a key.
#[derive(Debug)]
pub struct MemoryBackend {
    keyspaces: BTreeMap<u8, BTreeMap<Vec<u8>, Entry>>,
    queue: VecDeque<(u8, Tag, Work)>,
    /// Commands that wait, in order of arrival.
    blocked: VecDeque<(u8, Tag, Blocking)>,
    /// Those whose wait was ended.
    unblocked: VecDeque<(Tag, Reply<'static>)>,
    version: u64,
    /// Keyspaces whose engine runs transactions over several keys; 1 unless this is changed.
    pub transactional: BTreeSet<u8>,
    /// Keyspaces whose keys move between nodes; none unless this is changed.
    pub moving: BTreeSet<u8>,
    /// How many units [`Backend::pins`] says are pinned, beside those that are.
    pub pins: u64,
    /// Keyspaces whose engine has no sessions; none unless this is changed.
    pub without_sessions: BTreeSet<u8>,
    /// Until when each session's lease is granted, and whether it was closed.
    pub leases: BTreeMap<LeaseId, (u64, bool)>,
    /// Whether it can tell what clients show of sessions.
    pub heard_of_sessions: bool,
    /// Most leases that are given out.
    pub leases_max: usize,
    tracker: ResultTracker<Tag>,
    leased: VecDeque<(Tag, Lease)>,
    /// Draws the order of completions, if it is to be random.
    pub shuffle: Option<Rng>,
    /// Where [`Backend::random`] draws from; always 0 without it.
    pub random: Option<Rng>,
    /// Whether reads may be answered at once.
    pub local_reads: bool,
    /// Reads answered at once so far.
    pub reads: u64,
    /// Ops and transactions submitted so far.
    pub submitted: u64,
    /// How the next ops and transactions end instead of being executed.
    pub refuse: VecDeque<Outcome<Reply<'static>>>,
    /// What [`Backend::replicas`] says.
    pub replicas: usize,
    /// What [`Backend::serving`] says.
    pub serving: Result<(), &'static str>,
    /// What [`Backend::memory`] says is used.
    pub used: u64,
    /// What [`Backend::facts`] says of the turns of each lane.
    pub longest_turns: Vec<u64>,
    /// The node's incarnation.
    pub incarnation: u64,
    /// Whether [`Backend::shutdown`] was called.
    pub stopped: bool,
    /// Whether the keys of every keyspace must be asked for with [`Backend::list`].
    pub elsewhere: bool,
    /// Answers to [`Backend::list`] that are on their way.
    pub listed: VecDeque<(Tag, Outcome<Listed>)>,
    /// What each read, scan, op and transaction takes of [`Backend::clock`]'s time.
    pub cost: Duration,
    /// How late it is by that clock.
    pub clock: Instant,
    touched: u64,
    /// How many clients listen to each name.
    pub listening: BTreeMap<(Topic, Vec<u8>), u32>,
    /// Whether other nodes have yet to hear who listens here, until they are told.
    pub announces: bool,
    /// Clients elsewhere to whom each message goes.
    pub listeners_elsewhere: u64,
    /// What was published so far.
    pub published: Vec<Arc<Publication>>,
    /// The keys that the front end tracks.
    pub tracked: BTreeSet<(u8, Vec<u8>)>,
    /// The prefixes that it tracks.
    pub prefixes: Vec<Vec<u8>>,
    /// Those whose changes are coalesced. They are told like the others here.
    pub coalesced: Vec<Vec<u8>>,
    /// Keys of whose changes this node doesn't hear.
    pub unheard: BTreeSet<Vec<u8>>,
    /// What it is told of them.
    pub invalidated: VecDeque<Invalidation>,
}

impl Default for MemoryBackend {
    /// Sixteen empty keyspaces, and that of pins.
    fn default() -> Self {
        Self {
            keyspaces: (0..=limits::PINS_KEYSPACE)
                .map(|number| (number, BTreeMap::new()))
                .collect(),
            queue: VecDeque::new(),
            blocked: VecDeque::new(),
            unblocked: VecDeque::new(),
            version: 0,
            transactional: BTreeSet::from([1]),
            moving: BTreeSet::new(),
            pins: 0,
            without_sessions: BTreeSet::new(),
            leases: BTreeMap::new(),
            heard_of_sessions: true,
            leases_max: 4,
            tracker: ResultTracker::default(),
            leased: VecDeque::new(),
            shuffle: None,
            random: None,
            local_reads: true,
            reads: 0,
            submitted: 0,
            refuse: VecDeque::new(),
            replicas: 2,
            serving: Ok(()),
            used: 0,
            longest_turns: Vec::new(),
            incarnation: 1,
            stopped: false,
            elsewhere: false,
            listed: VecDeque::new(),
            cost: Duration::ZERO,
            clock: Instant::ZERO,
            touched: 0,
            listening: BTreeMap::new(),
            announces: false,
            listeners_elsewhere: 0,
            published: Vec::new(),
            tracked: BTreeSet::new(),
            prefixes: Vec::new(),
            coalesced: Vec::new(),
            unheard: BTreeSet::new(),
            invalidated: VecDeque::new(),
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
        if let Some((tag, reply)) = self.serve_blocked(now) {
            return Some((tag, Outcome::Done(reply)));
        }
        let index = self.pick()?;
        let (keyspace, tag, work) = self.queue.remove(index)?;
        if let Some(outcome) = self.refuse.pop_front() {
            return Some((tag, outcome));
        }
        let reply = match work {
            Work::Announce => Reply::Ok,
            Work::Flush => {
                let keys: Vec<_> =
                    self.live(keyspace, now.wall()).map(|(key, _)| key.clone()).collect();
                self.keyspaces.entry(keyspace).or_default().values_mut().for_each(|entry| {
                    entry.value = None;
                });
                self.note(keyspace, &keys, None);
                Reply::Ok
            }
            Work::Op(origin, op) => match self.run_for(origin, keyspace, now.wall(), &op) {
                Ok(reply) => reply,
                Err(refusal) => return Some((tag, Outcome::Refused(refusal))),
            },
            Work::Call(called) => match self.carry_out(keyspace, now, tag, &called) {
                Ok(reply) => reply,
                Err(refusal) => return Some((tag, Outcome::Refused(refusal))),
            },
        };
        Some((tag, Outcome::Done(reply)))
    }

    /// How many commands wait.
    pub fn blocked(&self) -> usize {
        self.blocked.len()
    }

    /// Answers a command that waited: the first that finds something, or whose time is over.
    fn serve_blocked(&mut self, now: Now) -> Option<(Tag, Reply<'static>)> {
        if let Some(unblocked) = self.unblocked.pop_front() {
            return Some(unblocked);
        }
        for at in 0..self.blocked.len() {
            let (keyspace, tag, Blocking { call, until, .. }) = self.blocked[at].clone();
            let reply = self.try_blocked(keyspace, now, &call);
            let late = Wait::is_nothing(&reply) && until <= now.monotonic;
            if late || !Wait::is_nothing(&reply) {
                self.blocked.remove(at);
                return Some((tag, if late { Wait::NOTHING } else { reply }));
            }
        }
        None
    }

    /// What the command finds, key by key where there are no transactions.
    fn try_blocked(&mut self, keyspace: u8, now: Now, call: &OwnedCall) -> Reply<'static> {
        let keys: Vec<&[u8]> = call.call().awaited_keys().collect();
        let at_once = if self.transactional(keyspace) { keys.len() } else { 1 };
        for keys in keys.chunks(at_once) {
            let op = Op::Call(call.call().on_awaited(keys));
            let reply = self.run(keyspace, now.wall(), &op).expect("a small call");
            if !Wait::is_nothing(&reply) {
                return reply;
            }
        }
        Wait::NOTHING
    }

    /// The answer of a call's record, or the call with a record made of its answer.
    fn carry_out(
        &mut self,
        keyspace: u8,
        now: Now,
        tag: Tag,
        called: &Called,
    ) -> Result<Reply<'static>, Refusal> {
        match self.tracker.find(&called.call).map_err(Refusal::CallError)? {
            Found::Completed(answer) => return Ok(Reply::decode(answer).expect("as encoded")),
            Found::InProgress(_) => unreachable!("one call is carried out at a time"),
            Found::New => {}
        }
        let reply = self.run(keyspace, now.wall(), &called.op)?;
        let mut answer = Vec::new();
        Op::encode_reply(&reply, &mut answer);
        self.tracker.complete(&called.call, tag, 1, answer.as_slice());
        Ok(reply)
    }

    /// The session's lease if it lives.
    fn grant(&self, now: Now, lease: LeaseId) -> Lease {
        match self.leases.get(&lease) {
            Some(&(_, true)) => Lease::Lost(Lost::Closed),
            Some(&(until, false)) if now.unix.0 <= until => {
                Lease::Granted(Grant { lease, until, owner: lease.member() })
            }
            // As one of a member that is gone, for which there is no place here.
            None if self.leases.len() >= self.leases_max => Lease::Full,
            _ => Lease::Lost(Lost::Expired),
        }
    }

    /// What a lease manager has said.
    pub fn take_lease(&mut self) -> Option<(Tag, Lease)> {
        self.leased.pop_front()
    }

    /// The first work, or a random one that no earlier work on its keys holds up.
    fn pick(&mut self) -> Option<usize> {
        let count = self.queue.len();
        if count == 0 {
            return None;
        }
        let Some(rng) = &mut self.shuffle else { return Some(0) };
        let mut chosen = rng.below(count as u64) as usize;
        loop {
            let (keyspace, _, work) = &self.queue[chosen];
            let held_up_by = self
                .queue
                .iter()
                .take(chosen)
                .position(|(other, _, earlier)| other == keyspace && earlier.is_ordered(work));
            match held_up_by {
                Some(earlier) => chosen = earlier,
                None => return Some(chosen),
            }
        }
    }

    /// Keys have changed.
    pub fn note(&mut self, keyspace: u8, keys: &[Vec<u8>], writer: Option<NonZeroU64>) {
        let heard = keys.iter().filter(|key| {
            self.tracked.remove(&(keyspace, key.to_vec()))
                || self.prefixes.iter().chain(&self.coalesced).any(|prefix| key.starts_with(prefix))
        });
        let keys: Vec<_> = heard.map(|key| (key.as_slice().into(), writer)).collect();
        if !keys.is_empty() {
            self.invalidated.push_back(Invalidation::Keys { keyspace, keys, more: false });
        }
    }

    /// Runs an op for a client, and notes what it changes.
    fn run_for(
        &mut self,
        client: u64,
        keyspace: u8,
        now: UnixMillis,
        op: &Op,
    ) -> Result<Reply<'static>, Refusal> {
        let before = self.version;
        let reply = self.run(keyspace, now, op)?;
        let entries = self.keyspaces.get(&keyspace).into_iter().flatten();
        let changed = entries.filter(|(_, entry)| entry.timestamp.version > before);
        let keys: Vec<_> = changed.map(|(key, _)| key.clone()).collect();
        self.note(keyspace, &keys, NonZeroU64::new(client));
        Ok(reply)
    }

    /// Runs an op on its one key, or as a transaction if the keyspace has them.
    fn run(&mut self, keyspace: u8, now: UnixMillis, op: &Op) -> Result<Reply<'static>, Refusal> {
        match self.transactional(keyspace) {
            true => self.transact(keyspace, now, op),
            false => Ok(self.apply(keyspace, now, op)),
        }
    }

    fn apply(&mut self, keyspace: u8, now: UnixMillis, op: &Op) -> Reply<'static> {
        let entries = self.keyspaces.entry(keyspace).or_default();
        let entry = entries.entry(op.key().to_vec()).or_default();
        let (reply, change) = op.apply(now, entry.current(now));
        if let Some(value) = changed(entry.value.clone(), change) {
            self.version += 1;
            let timestamp = Timestamp::new(self.version, WriterId::new(MemberNumber(1), 0));
            *entry = Entry { value, timestamp };
        }
        reply
    }

    /// Runs a transaction and makes its changes, all with one version.
    fn transact(
        &mut self,
        keyspace: u8,
        now: UnixMillis,
        txn: &Op,
    ) -> Result<Reply<'static>, Refusal> {
        let entries = self.keyspaces.entry(keyspace).or_default();
        let mut attempt = Attempt { entries, now, touched: BTreeMap::new() };
        let verdict = txn.run(now, &mut attempt);
        let touched = attempt.touched;
        if touched.len() > limits::TXN_KEYS_MAX {
            return Err(Refusal::TooLarge);
        }
        let reply = match verdict {
            Verdict::Abandon(reply) => return Ok(reply),
            Verdict::Commit(reply) => reply,
        };
        self.version += 1;
        let timestamp = Timestamp::new(self.version, WriterId::new(MemberNumber(1), 0));
        for (key, value) in touched {
            if let Some(value) = value {
                entries.insert(key, Entry { value, timestamp });
            }
        }
        Ok(reply)
    }

    fn live(&self, keyspace: u8, now: UnixMillis) -> impl Iterator<Item = (&Vec<u8>, ValueKind)> {
        let entries = self.keyspaces.get(&keyspace).into_iter().flatten();
        entries.filter_map(move |(key, entry)| Some((key, entry.current(now).content?.kind)))
    }
}

impl Backend for MemoryBackend {
    fn keyspace(&self, number: u8) -> Option<KeyspaceFacts> {
        let entries = self.keyspaces.get(&number).filter(|_| number < limits::PINS_KEYSPACE)?;
        let values = || entries.values().filter_map(|entry| entry.value.as_ref());
        Some(KeyspaceFacts {
            number,
            name: format!("db{number}"),
            engine: "memory",
            replicas: 1,
            keys: values().count() as u64,
            expires: values().filter(|(_, _, expire_at)| expire_at.is_some()).count() as u64,
        })
    }

    fn transactional(&self, keyspace: u8) -> bool {
        self.transactional.contains(&keyspace)
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
        self.clock += self.cost;
        let entry = self.keyspaces.get(&keyspace)?.get(call.key());
        let absent = Entry::default();
        let current = entry.unwrap_or(&absent).current(now.wall());
        self.touched += current.content.map_or(0, |content| content.bytes.len() as u64);
        assert_eq!(call.access(), Access::Read, "only reads are read");
        Some(with(call.execute(now.wall(), current).0))
    }

    fn touched(&mut self) -> u64 {
        std::mem::take(&mut self.touched)
    }

    fn clock(&mut self) -> Instant {
        self.clock
    }

    fn submit<P>(&mut self, keyspace: u8, _: Now, tag: Tag, origin: u64, op: P)
    where
        P: Command<Owned = Op, Reply = Reply<'static>>,
    {
        self.clock += self.cost;
        self.submitted += 1;
        self.queue.push_back((keyspace, tag, Work::Op(origin, op.into_owned())));
    }

    fn block(&mut self, keyspace: u8, now: Now, tag: Tag, _: u64, mut blocking: Blocking) {
        while let Some(read) = blocking.call.call().ends_wanted() {
            let end = self.run(keyspace, now.wall(), &Op::Call(read)).expect("a small call");
            match blocking.call.call().with_end(&end) {
                Ok(call) => blocking.call = call,
                Err(error) => return self.unblocked.push_back((tag, error)),
            }
        }
        self.blocked.push_back((keyspace, tag, blocking));
    }

    fn unblock(&mut self, tag: Tag, answer: Reply<'static>) {
        if let Some(at) = self.blocked.iter().position(|(_, other, _)| *other == tag) {
            self.blocked.remove(at);
            self.unblocked.push_back((tag, answer));
        }
    }

    fn has_sessions(&self, keyspace: u8) -> bool {
        !self.without_sessions.contains(&keyspace)
    }

    fn session_term(&self) -> Duration {
        limits::LEASE_TERM
    }

    fn session_token(&self, lease: LeaseId) -> u64 {
        lease.0 ^ TOKENS
    }

    fn is_genuine(&self, lease: LeaseId, token: u64) -> Genuine {
        if self.heard_of_sessions {
            if token == self.session_token(lease) { Genuine::Yes } else { Genuine::No }
        } else {
            Genuine::Unready
        }
    }

    fn lease(&mut self, now: Now, tag: Tag, request: Request) {
        let until = now.unix.0 + limits::LEASE_TERM.as_nanos() as u64;
        let answer = match request {
            Request::Open if self.leases.len() >= self.leases_max => Lease::Full,
            Request::Open => {
                let lease = LeaseId::new(MemberNumber(1), LaneId(0), self.leases.len() as u64);
                self.leases.insert(lease, (until, false));
                self.grant(now, lease)
            }
            Request::Renew { lease, .. } | Request::Close { lease } => {
                let closes = matches!(request, Request::Close { .. });
                if let Lease::Granted(_) = self.grant(now, lease) {
                    self.leases.insert(lease, (until, closes));
                }
                if closes {
                    self.tracker.close(lease);
                }
                self.grant(now, lease)
            }
        };
        self.leased.push_back((tag, answer));
    }

    fn call(&mut self, keyspace: u8, now: Now, tag: Tag, _: u64, called: Called) {
        if now.unix.0 > called.grant.until {
            let lease = called.call.lease;
            self.lease(now, tag, Request::Renew { lease, told: called.grant.until, above: 0 });
            if !matches!(self.leased.back(), Some((_, Lease::Granted(_)))) {
                return;
            }
        }
        self.submitted += 1;
        self.queue.push_back((keyspace, tag, Work::Call(called)));
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
        visit: &mut dyn FnMut(&[u8], ValueKind),
    ) -> Option<u64> {
        if self.elsewhere {
            return None;
        }
        self.clock += self.cost;
        let mut keys = self.live(keyspace, now.wall()).skip(cursor as usize);
        keys.by_ref().take(limit).for_each(|(key, kind)| visit(key, kind));
        Some(if keys.next().is_some() { cursor + limit as u64 } else { 0 })
    }

    fn lists_alone(&self, _: u8) -> bool {
        !self.elsewhere
    }

    fn list(
        &mut self,
        keyspace: u8,
        now: Now,
        tag: Tag,
        cursor: u64,
        limit: usize,
        kind: Option<ValueKind>,
    ) {
        let mut keys = self.live(keyspace, now.wall()).skip(cursor as usize);
        let wanted =
            |(key, of): (&Vec<u8>, _)| kind.is_none_or(|kind| kind == of).then(|| key.clone());
        let listed: Vec<_> = keys.by_ref().take(limit).filter_map(wanted).collect();
        let next = if keys.next().is_some() { cursor + limit as u64 } else { 0 };
        drop(keys);
        let count = listed.len() as u64;
        self.listed.push_back((tag, Outcome::Done(Listed { next, keys: listed, count })));
    }

    fn count(&mut self, keyspace: u8, now: Now, tag: Tag, _: u64) {
        let count = self.live(keyspace, now.wall()).count() as u64;
        let listed = Listed { next: 0, keys: Vec::new(), count };
        self.listed.push_back((tag, Outcome::Done(listed)));
    }

    fn listen(&mut self, _: Now, topic: Topic, name: &[u8], clients: u32) {
        match clients {
            0 => self.listening.remove(&(topic, name.to_vec())),
            clients => self.listening.insert((topic, name.to_vec()), clients),
        };
    }

    fn is_announced(&self) -> bool {
        !self.announces
    }

    fn announce(&mut self, _: Now, tag: Tag) {
        self.queue.push_back((0, tag, Work::Announce));
    }

    fn publish(&mut self, _: Now, publication: &Arc<Publication>) -> u64 {
        self.published.push(Arc::clone(publication));
        let hears = |topic: Topic, name: &[u8]| match (publication.topic, topic) {
            (Topic::Channel, Topic::Pattern) => glob_match(name, &publication.channel, false),
            (published, topic) => published == topic && *name == *publication.channel,
        };
        let here = self.listening.iter().filter(|((topic, name), _)| hears(*topic, name));
        here.map(|(_, clients)| u64::from(*clients)).sum::<u64>() + self.listeners_elsewhere
    }

    fn listeners(&self, topic: Topic, name: &[u8]) -> u64 {
        self.listening.get(&(topic, name.to_vec())).map_or(0, |clients| u64::from(*clients))
    }

    fn visit_names(&self, topic: Topic, visit: &mut dyn FnMut(&[u8])) {
        let names = self.listening.keys().filter(|(other, _)| *other == topic);
        names.for_each(|(_, name)| visit(name));
    }

    fn set_tracking(&mut self, _: bool) {}

    fn track(&mut self, keyspace: u8, key: &[u8]) -> bool {
        let hears = !self.unheard.contains(key);
        if hears {
            self.tracked.insert((keyspace, key.to_vec()));
        }
        hears
    }

    fn untrack(&mut self, keyspace: u8, key: &[u8]) {
        self.tracked.remove(&(keyspace, key.to_vec()));
    }

    fn hears_all(&self) -> bool {
        self.unheard.is_empty()
    }

    fn track_prefixes(&mut self, tag: Tag, prefixes: &[&[u8]], coalesced: bool) {
        let list = if coalesced { &mut self.coalesced } else { &mut self.prefixes };
        list.extend(prefixes.iter().map(|prefix| prefix.to_vec()));
        self.queue.push_back((0, tag, Work::Announce));
    }

    fn untrack_prefix(&mut self, prefix: &[u8], coalesced: bool) {
        let list = if coalesced { &mut self.coalesced } else { &mut self.prefixes };
        let at = list.iter().position(|known| known == prefix);
        list.swap_remove(at.expect("only what is tracked ends"));
    }

    fn random(&mut self) -> u64 {
        self.random.as_mut().map_or(0, Rng::next_u64)
    }

    fn random_cursor(&self, _: u8, random: u64) -> u64 {
        random
    }

    fn key_count(&self, keyspace: u8) -> Option<u64> {
        (!self.elsewhere).then(|| self.keyspace(keyspace).map_or(0, |facts| facts.keys))
    }

    fn memory_usage(&mut self, keyspace: u8, now: Now, key: &[u8]) -> Option<u64> {
        let entry = self.keyspaces.get(&keyspace)?.get(key)?;
        let content = entry.current(now.wall()).content?;
        Some((key.len() + content.bytes.len()) as u64)
    }

    fn pins(&self, keyspace: u8, unit: &[u8]) -> Option<(u64, Option<u16>)> {
        let kept = self.keyspaces.get(&limits::PINS_KEYSPACE);
        let kept = kept.filter(|_| self.moving.contains(&keyspace))?;
        let entry = kept.get(&pin_key(keyspace, unit)).and_then(|entry| entry.value.as_ref());
        let node = entry.map(|(bytes, ..)| std::str::from_utf8(bytes).expect("a number"));
        let count = kept.values().filter(|entry| entry.value.is_some()).count() as u64;
        Some((count + self.pins, node.map(|node| node.parse().expect("a number"))))
    }

    fn placement(&self) -> Option<PlacementFacts> {
        let (pins, _) = self.moving.first().and_then(|keyspace| self.pins(*keyspace, b""))?;
        Some(PlacementFacts { moves: 7, local_share: 999, bounced: (2, 1), pins })
    }

    fn replicas(&self, _: u8) -> usize {
        self.replicas
    }

    fn memory(&self) -> MemoryFacts {
        MemoryFacts { used: self.used, peak: self.used, resident: 0 }
    }

    fn facts(&self) -> ServerFacts {
        ServerFacts {
            version: "test".to_owned(),
            cluster: "a\nname".to_owned(),
            node: 1,
            incarnation: self.incarnation,
            role: "active",
            longest_turns_micros: self.longest_turns.clone(),
            members: vec![(1, "active", "one:1".to_owned()), (2, "down", "two:2".to_owned())],
            ..Default::default()
        }
    }

    fn unsettled(&self) -> u64 {
        3
    }

    fn reset_stats(&mut self) {
        self.longest_turns = Vec::new();
    }

    fn serving(&self) -> Result<(), &'static str> {
        self.serving
    }

    fn takes_ops(&self) -> Result<(), &'static str> {
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
