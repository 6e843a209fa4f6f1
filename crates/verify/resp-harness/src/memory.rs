//! The in-memory backend as a state: its keyspaces, what waits to be executed, and what a test sets and
//! looks at.

mod backend;
mod entries;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZeroU64;
use std::sync::Arc;

use quorate_commands::{Op, OwnedCall, Reply, Wait};
use quorate_machine::{Command, Outcome, Refusal, Rng, ValueKind, Verdict};
use quorate_resp::{Attempt as Called, Backend, Blocking, Invalidation, Listed};
use quorate_rifl::{Answer as Lease, Found, Grant, LeaseId, Lost, ResultTracker};
use quorate_types::{
    Duration, Instant, MemberNumber, Now, Publication, Tag, Timestamp, Topic, UnixMillis, WriterId,
    limits,
};

use entries::{Attempt, Entry, changed};

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
