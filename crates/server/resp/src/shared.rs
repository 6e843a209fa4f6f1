//! What the lanes of a node share: settings, counters, the list of clients.
//!
//! Nothing here is locked for a command that touches keys: settings are atomics, each lane writes
//! counters of its own, and the list of clients is locked only when a connection opens, closes or
//! is listed.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use quorate_commands::{Spec, table};
use quorate_scripts::Cache;
use quorate_types::{Duration, Instant};

use crate::account::Holding;
use crate::latency::Spikes;
use crate::monitor::Monitors;
use crate::pause::Pause;
use crate::placement::Rate;
use crate::settings::Settings;
use crate::slowlog::SlowLog;
use crate::tracking::{self, Inbox, TrackingFacts};

/// The state of one node's front ends, one per lane.
#[derive(Debug)]
pub struct Shared {
    /// What `CONFIG` reads and changes.
    pub settings: Settings,
    /// The scripts that `EVALSHA` finds.
    pub(crate) scripts: Cache,
    password: RwLock<Option<String>>,
    password_set: AtomicBool,
    clients: Mutex<BTreeMap<u64, Arc<ClientFacts>>>,
    connected: AtomicU64,
    next_client: AtomicU64,
    /// How often `CLIENT KILL` has named a client.
    pub(crate) kills: AtomicU64,
    /// How often `CLIENT UNBLOCK` has.
    pub(crate) unblocks: AtomicU64,
    pub(crate) lanes: Mutex<Vec<Arc<LaneStats>>>,
    /// The guests of all lanes.
    pub(crate) guests: Mutex<Vec<Arc<Holding>>>,
    /// What those clients and guests held that are to be disconnected for it and are not yet.
    pub(crate) leaving_bytes: AtomicU64,
    pub(crate) slow_log: SlowLog,
    pub(crate) spikes: Spikes,
    pub(crate) monitors: Monitors,
    pub(crate) pause: Pause,
    /// How often keys move.
    pub(crate) moves: Rate,
    /// What the clients of all lanes track.
    pub(crate) tracking: tracking::Totals,
    /// What the counters stood at when `CONFIG RESETSTAT` was last called.
    baseline: Mutex<Totals>,
    histogram_baseline: Mutex<Vec<[u64; BUCKETS]>>,
}

/// One connection, as `CLIENT LIST` on any lane shows it. Written by its own lane only.
#[derive(Debug)]
pub(crate) struct ClientFacts {
    pub(crate) id: u64,
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
    pub(crate) opened: Instant,
    pub(crate) names: Mutex<ClientNames>,
    pub(crate) active: AtomicU64,
    pub(crate) database: AtomicU8,
    pub(crate) protocol: AtomicU8,
    pub(crate) no_evict: AtomicBool,
    pub(crate) no_touch: AtomicBool,
    /// `CLIENT KILL` named it: its lane closes it.
    pub(crate) killed: AtomicBool,
    /// Commands queued by `MULTI` plus one; 0 outside.
    pub(crate) queued: AtomicU64,
    /// By topic, how many names it listens to.
    pub(crate) subscriptions: [AtomicU64; 3],
    pub(crate) tracking: TrackingFacts,
    /// Where its lane is left what it is told on behalf of other clients.
    pub(crate) inbox: Arc<Inbox>,
    /// Its place among the connections of its lane.
    pub(crate) place: AtomicU64,
    pub(crate) blocked: AtomicBool,
    /// What it waits for, and whether `CLIENT UNBLOCK` has named it: see [`crate::blocking`].
    pub(crate) wait: AtomicU8,
    pub(crate) input_bytes: AtomicU64,
    pub(crate) input_capacity: AtomicU64,
    pub(crate) output_bytes: AtomicU64,
    pub(crate) holding: Holding,
    /// The last command's id plus one.
    pub(crate) command: AtomicU64,
}

/// What a client calls itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClientNames {
    pub(crate) name: String,
    pub(crate) library: String,
    pub(crate) library_version: String,
}

/// One lane's counters. Only that lane writes them, so an increment is a load and a store.
#[derive(Debug)]
pub struct LaneStats {
    /// Commands executed.
    pub commands: AtomicU64,
    /// Connections accepted.
    pub connections: AtomicU64,
    /// Connections refused because of `maxclients`.
    pub rejected: AtomicU64,
    /// Bytes read from clients.
    pub input_bytes: AtomicU64,
    /// Bytes written to clients.
    pub output_bytes: AtomicU64,
    /// Error replies.
    pub errors: AtomicU64,
    /// Reads answered from this node's replica.
    pub local_reads: AtomicU64,
    /// Ops submitted to an engine.
    pub submitted: AtomicU64,
    /// Local reads that found a value.
    pub hits: AtomicU64,
    /// Local reads that found none.
    pub misses: AtomicU64,
    /// Clients that this lane chose to be disconnected, because all held too much together.
    pub evicted: AtomicU64,
    /// Clients that were disconnected because they had read too little of the messages that they
    /// subscribed to.
    pub subscribers_cut: AtomicU64,
    /// Other clients that were disconnected because they had read too little of their replies.
    pub readers_cut: AtomicU64,
    /// Messages delivered, counted once for each subscriber.
    pub messages_delivered: AtomicU64,
    /// Messages that were lost for the subscribers of this lane, because too much waited for them.
    pub messages_dropped: AtomicU64,
    /// Bytes that the clients and guests of this lane hold.
    pub held_bytes: AtomicU64,
    per_command: Vec<CommandStats>,
    /// Error replies by their first word. There are few such words, as no client chooses one.
    per_code: Mutex<BTreeMap<String, u64>>,
}

#[derive(Debug, Default)]
struct CommandStats {
    calls: AtomicU64,
    rejected: AtomicU64,
    failed: AtomicU64,
    micros: AtomicU64,
    /// How many took how long: up to each power of two of microseconds.
    histogram: OnceLock<Box<[AtomicU64; BUCKETS]>>,
}

/// The buckets of a histogram; the last one has no end.
const BUCKETS: usize = 31;

/// The counters of all lanes, summed.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// See [`LaneStats::commands`].
    pub commands: u64,
    /// See [`LaneStats::connections`].
    pub connections: u64,
    /// See [`LaneStats::rejected`].
    pub rejected: u64,
    /// See [`LaneStats::input_bytes`].
    pub input_bytes: u64,
    /// See [`LaneStats::output_bytes`].
    pub output_bytes: u64,
    /// See [`LaneStats::errors`].
    pub errors: u64,
    /// See [`LaneStats::local_reads`].
    pub local_reads: u64,
    /// See [`LaneStats::submitted`].
    pub submitted: u64,
    /// See [`LaneStats::hits`].
    pub hits: u64,
    /// See [`LaneStats::misses`].
    pub misses: u64,
    /// See [`LaneStats::evicted`].
    pub evicted: u64,
    /// See [`LaneStats::subscribers_cut`].
    pub subscribers_cut: u64,
    /// See [`LaneStats::readers_cut`].
    pub readers_cut: u64,
    /// See [`LaneStats::messages_delivered`].
    pub messages_delivered: u64,
    /// See [`LaneStats::messages_dropped`].
    pub messages_dropped: u64,
    /// Per command with calls: its name, calls, calls rejected before execution, calls that
    /// failed.
    pub per_command: Vec<(&'static str, u64, u64, u64)>,
    /// In the same order, the microseconds that were measured.
    pub micros: Vec<u64>,
    /// Error replies by their first word.
    pub per_code: BTreeMap<String, u64>,
}

/// Adds to a counter that only this lane writes.
#[inline]
pub(crate) fn add(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(count), Relaxed);
}

/// A mutex guards plain data here, which a panic of another thread leaves whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// The state of a node whose operator chose these settings.
    pub fn new(settings: Settings, password: Option<String>) -> Arc<Self> {
        let shared = Self {
            settings,
            scripts: Cache::default(),
            password: RwLock::default(),
            password_set: AtomicBool::new(false),
            clients: Mutex::default(),
            connected: AtomicU64::new(0),
            next_client: AtomicU64::new(1),
            kills: AtomicU64::new(0),
            unblocks: AtomicU64::new(0),
            lanes: Mutex::default(),
            guests: Mutex::default(),
            leaving_bytes: AtomicU64::new(0),
            slow_log: SlowLog::default(),
            spikes: Spikes::default(),
            monitors: Monitors::default(),
            pause: Pause::default(),
            moves: Rate::default(),
            tracking: tracking::Totals::default(),
            baseline: Mutex::default(),
            histogram_baseline: Mutex::default(),
        };
        shared.set_password(password);
        Arc::new(shared)
    }

    /// Sets `requirepass`; an empty one means that none is required.
    pub fn set_password(&self, password: Option<String>) {
        let password = password.filter(|password| !password.is_empty());
        let mut guard = self.password.write().unwrap_or_else(PoisonError::into_inner);
        self.password_set.store(password.is_some(), Relaxed);
        *guard = password;
    }

    /// Whether clients must authenticate.
    #[inline]
    pub fn has_password(&self) -> bool {
        self.password_set.load(Relaxed)
    }

    pub(crate) fn password(&self) -> String {
        self.password.read().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or_default()
    }

    /// Whether these are the credentials of the one user there is. Takes the same time wherever
    /// the password differs.
    pub(crate) fn authenticates(&self, user: &[u8], password: &[u8]) -> bool {
        let guard = self.password.read().unwrap_or_else(PoisonError::into_inner);
        let matches = guard.as_ref().is_none_or(|expected| {
            let expected = expected.as_bytes();
            let differing = expected.iter().zip(password).fold(0, |bits, (a, b)| bits | (a ^ b));
            expected.len() == password.len() && differing == 0
        });
        user == b"default" && matches
    }

    /// Clients connected to any lane.
    pub fn connected(&self) -> u64 {
        self.connected.load(Relaxed)
    }

    /// The counters of all lanes since the last `CONFIG RESETSTAT`.
    pub fn totals(&self) -> Totals {
        let mut totals = self.raw_totals();
        totals.subtract(&lock(&self.baseline));
        totals
    }

    /// How many calls of each command took how long since the last `CONFIG RESETSTAT`, by powers of two
    /// of microseconds. Between two readings of the clock there are several short commands: those that
    /// were not measured took less than a microsecond or two, and count as one. The command at hand is
    /// not counted yet.
    pub(crate) fn histograms(
        &self,
        at_hand: Option<&'static Spec>,
    ) -> Vec<(&'static str, [u64; BUCKETS])> {
        let mut measured = self.raw_histograms();
        let baseline = lock(&self.histogram_baseline);
        for (count, base) in measured.iter_mut().flatten().zip(baseline.iter().flatten()) {
            *count = count.saturating_sub(*base);
        }
        let rows = self.totals().per_command.into_iter().zip(measured);
        let of_row = |((name, calls, ..), mut counts): ((_, u64, _, _), [u64; BUCKETS])| {
            let calls = calls - u64::from(at_hand.is_some_and(|spec| spec.name == name)).min(calls);
            counts[0] += calls.saturating_sub(counts.iter().sum());
            counts.iter().any(|count| *count > 0).then_some((name, counts))
        };
        rows.filter_map(of_row).collect()
    }

    /// Of each command, how many calls were measured to take how long since the node started.
    fn raw_histograms(&self) -> Vec<[u64; BUCKETS]> {
        let lanes = lock(&self.lanes);
        let of_row = |(place, _): (usize, &'static Spec)| {
            let mut sums = [0; BUCKETS];
            for lane in lanes.iter() {
                let Some(histogram) = lane.per_command[place].histogram.get() else { continue };
                for (sum, count) in sums.iter_mut().zip(histogram.iter()) {
                    *sum += count.load(Relaxed);
                }
            }
            sums
        };
        rows().map(of_row).collect()
    }

    pub(crate) fn reset_stats(&self) {
        *lock(&self.histogram_baseline) = self.raw_histograms();
        *lock(&self.baseline) = self.raw_totals();
    }

    fn raw_totals(&self) -> Totals {
        let mut totals = Totals {
            per_command: rows().map(|(_, spec)| (spec.name, 0, 0, 0)).collect(),
            micros: rows().map(|_| 0).collect(),
            ..Totals::default()
        };
        for lane in lock(&self.lanes).iter() {
            totals.add(lane);
        }
        totals
    }

    pub(crate) fn register_lane(&self) -> Arc<LaneStats> {
        let stats = Arc::new(LaneStats::new());
        lock(&self.lanes).push(Arc::clone(&stats));
        stats
    }

    /// Lists a new client, unless there are too many.
    pub(crate) fn register_client(
        &self,
        peer: SocketAddr,
        local: SocketAddr,
        opened: Instant,
        inbox: &Arc<Inbox>,
    ) -> Option<Arc<ClientFacts>> {
        if self.connected.fetch_add(1, Relaxed) >= self.settings.max_clients.load(Relaxed) {
            self.connected.fetch_sub(1, Relaxed);
            return None;
        }
        let facts = Arc::new(ClientFacts {
            id: self.next_client.fetch_add(1, Relaxed),
            peer,
            local,
            opened,
            names: Mutex::default(),
            active: AtomicU64::new(opened.0),
            database: AtomicU8::new(0),
            protocol: AtomicU8::new(2),
            no_evict: AtomicBool::new(false),
            no_touch: AtomicBool::new(false),
            killed: AtomicBool::new(false),
            queued: AtomicU64::new(0),
            subscriptions: Default::default(),
            tracking: TrackingFacts::default(),
            inbox: Arc::clone(inbox),
            place: AtomicU64::new(0),
            blocked: AtomicBool::new(false),
            wait: AtomicU8::new(0),
            input_bytes: AtomicU64::new(0),
            input_capacity: AtomicU64::new(0),
            output_bytes: AtomicU64::new(0),
            holding: Holding::default(),
            command: AtomicU64::new(0),
        });
        lock(&self.clients).insert(facts.id, Arc::clone(&facts));
        Some(facts)
    }

    /// Takes a client off the list. Its lane disconnects it.
    pub(crate) fn kill_client(&self, facts: &ClientFacts) {
        facts.killed.store(true, Relaxed);
        self.forget_client(facts.id);
        self.kills.fetch_add(1, Relaxed);
    }

    pub(crate) fn forget_client(&self, id: u64) {
        if lock(&self.clients).remove(&id).is_some() {
            self.connected.fetch_sub(1, Relaxed);
        }
    }

    pub(crate) fn client(&self, id: u64) -> Option<Arc<ClientFacts>> {
        lock(&self.clients).get(&id).cloned()
    }

    pub(crate) fn clients(&self) -> Vec<Arc<ClientFacts>> {
        lock(&self.clients).values().cloned().collect()
    }
}

impl LaneStats {
    fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            commands: zero(),
            connections: zero(),
            rejected: zero(),
            input_bytes: zero(),
            output_bytes: zero(),
            errors: zero(),
            local_reads: zero(),
            submitted: zero(),
            hits: zero(),
            misses: zero(),
            evicted: zero(),
            subscribers_cut: zero(),
            readers_cut: zero(),
            messages_delivered: zero(),
            messages_dropped: zero(),
            held_bytes: zero(),
            per_command: std::iter::repeat_with(CommandStats::default)
                .take(table().len() * (1 + SUBCOMMANDS_MAX))
                .collect(),
            per_code: Mutex::default(),
        }
    }

    #[inline]
    pub(crate) fn called(&self, spec: &'static Spec) {
        add(&self.commands, 1);
        if let Some(stats) = self.per_command.get(place(spec)) {
            add(&stats.calls, 1);
        }
    }

    /// An error reply, by its text.
    pub(crate) fn error(&self, text: &str) {
        add(&self.errors, 1);
        let code = text.split(' ').next().unwrap_or(text);
        let mut codes = lock(&self.per_code);
        match codes.get_mut(code) {
            Some(count) => *count += 1,
            None => drop(codes.insert(code.to_owned(), 1)),
        }
    }

    /// A command that was executed has failed.
    pub(crate) fn failed(&self, spec: &'static Spec, text: &str) {
        self.error(text);
        if let Some(stats) = self.per_command.get(place(spec)) {
            add(&stats.failed, 1);
        }
    }

    /// A command took so long, as far as the clock was read.
    pub(crate) fn took(&self, spec: &'static Spec, took: Duration) {
        let Some(stats) = self.per_command.get(place(spec)) else { return };
        let micros = took.as_micros() as u64;
        add(&stats.micros, micros);
        let bucket = (micros.max(1).next_power_of_two().ilog2() as usize).min(BUCKETS - 1);
        let zeros = || Box::new([const { AtomicU64::new(0) }; BUCKETS]);
        add(&stats.histogram.get_or_init(zeros)[bucket], 1);
    }

    /// A command was refused before it was executed.
    pub(crate) fn was_rejected(&self, spec: &'static Spec, text: &str) {
        self.error(text);
        if let Some(stats) = self.per_command.get(place(spec)) {
            add(&stats.rejected, 1);
        }
    }
}

/// Places for subcommands behind each command.
const SUBCOMMANDS_MAX: usize = 32;

/// A row's place among the counters: commands first, then the subcommands of each.
#[inline]
pub(crate) fn place(spec: &'static Spec) -> usize {
    let id = usize::from(spec.id);
    match id >> 8 {
        0 => id,
        parent => table().len() + (parent - 1) * SUBCOMMANDS_MAX + (id & 0xff),
    }
}

/// Every row that has a place, with it.
fn rows() -> impl Iterator<Item = (usize, &'static Spec)> {
    table()
        .iter()
        .flat_map(|spec| std::iter::once(spec).chain(spec.subcommands))
        .map(|spec| (place(spec), spec))
}

impl Totals {
    fn add(&mut self, lane: &LaneStats) {
        for (total, counter) in self.counters().into_iter().zip([
            &lane.commands,
            &lane.connections,
            &lane.rejected,
            &lane.input_bytes,
            &lane.output_bytes,
            &lane.errors,
            &lane.local_reads,
            &lane.submitted,
            &lane.hits,
            &lane.misses,
            &lane.evicted,
            &lane.subscribers_cut,
            &lane.readers_cut,
            &lane.messages_delivered,
            &lane.messages_dropped,
        ]) {
            *total += counter.load(Relaxed);
        }
        for (total, (place, _)) in self.per_command.iter_mut().zip(rows()) {
            let stats = &lane.per_command[place];
            total.1 += stats.calls.load(Relaxed);
            total.2 += stats.rejected.load(Relaxed);
            total.3 += stats.failed.load(Relaxed);
        }
        for (total, (place, _)) in self.micros.iter_mut().zip(rows()) {
            *total += lane.per_command[place].micros.load(Relaxed);
        }
        for (code, count) in lock(&lane.per_code).iter() {
            *self.per_code.entry(code.clone()).or_default() += count;
        }
    }

    fn subtract(&mut self, earlier: &Totals) {
        let mut earlier = earlier.clone();
        for (total, base) in self.counters().into_iter().zip(earlier.counters()) {
            *total = total.saturating_sub(*base);
        }
        for (total, base) in self.per_command.iter_mut().zip(&earlier.per_command) {
            total.1 = total.1.saturating_sub(base.1);
            total.2 = total.2.saturating_sub(base.2);
            total.3 = total.3.saturating_sub(base.3);
        }
        for (total, base) in self.micros.iter_mut().zip(&earlier.micros) {
            *total = total.saturating_sub(*base);
        }
        for (code, count) in &earlier.per_code {
            if let Some(total) = self.per_code.get_mut(code) {
                *total = total.saturating_sub(*count);
            }
        }
        self.per_code.retain(|_, count| *count > 0);
    }

    fn counters(&mut self) -> [&mut u64; 15] {
        [
            &mut self.commands,
            &mut self.connections,
            &mut self.rejected,
            &mut self.input_bytes,
            &mut self.output_bytes,
            &mut self.errors,
            &mut self.local_reads,
            &mut self.submitted,
            &mut self.hits,
            &mut self.misses,
            &mut self.evicted,
            &mut self.subscribers_cut,
            &mut self.readers_cut,
            &mut self.messages_delivered,
            &mut self.messages_dropped,
        ]
    }
}
