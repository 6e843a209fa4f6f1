//! The log of a lane: what its engines append, when that is flushed, and what follows from it.
//!
//! One log serves the engines of all keyspaces of the lane. Where promises wait for it (`sync`), a batch
//! is begun at the end of the turn; where they do not (`async`), within an interval. What was durable
//! opens gates and is told to the engines. Requests to the disk go out through
//! [`Outbox::disk`], and their ends come back through [`Lane::disk_done`].

use std::collections::BTreeSet;

use quorate_durability::{Directory, Entry, Identity, Log, Options, Room};
use quorate_machine::{Rng, WARM_TOGETHER, mutant};
use quorate_types::{Epoch, Instant, KeyspaceId, LaneId, Lsn, Now};

use crate::commit_delay::CommitDelay;
use crate::disk::{DiskDone, DiskOwner, DiskRequest, Requests};
use crate::engine::KeyspaceLane;
use crate::facts::{FLUSH_BUCKETS, LogFacts};
use crate::recovery::{LaneFound, Restore};
use crate::sessions::CLOCK_ENTRY;
use crate::snapshots::{Ended, Snapshots};
use crate::{Durability, Lane, LogConfig, Mail, Outbox};

/// Bytes that the log adds to each entry.
const ENTRY_OVERHEAD: u64 = 7;

/// The log of one lane. See the module's documentation.
pub(crate) struct LaneLog {
    log: Log,
    config: LogConfig,
    requests: Vec<DiskRequest>,
    /// The place up to which promises wait.
    promised: Lsn,
    /// When a batch begins for which promises wait.
    delay: CommitDelay,
    /// The place of what nobody waits for and whose time has come.
    due: Lsn,
    /// When what nobody waits for is flushed.
    flush_at: Instant,
    /// When a full disk is tried again.
    retry_at: Instant,
    /// When the last batch is written once more, if nothing comes before.
    repeat_at: Instant,
    /// The end of what recovery has found. Nothing may rest on it before it is durable for certain.
    found_end: Lsn,
    /// Nothing was found, not even an empty segment. Who has promised anything has one.
    is_new: bool,
    /// The epoch in which everything was copied, and how far the log went when it was.
    copied: (Epoch, Lsn),
    pub(crate) snapshots: Snapshots,
    /// Lanes whose snapshots wait until this log is durable up to a place.
    awaited: Vec<(Lsn, LaneId, u32)>,
    /// Lanes that wait for a snapshot, by its number, and their questions.
    renewals: Vec<(u32, LaneId, u32)>,
    /// Why the process must end.
    failed: Option<String>,
    pub(crate) facts: LogFacts,
}

impl LaneLog {
    /// Goes on behind what recovery has found.
    fn resume(found: LaneFound, config: LogConfig, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let (found_end, is_new) = (found.found.end(), !found.found.has_segments());
        let facts = LogFacts {
            restored_entries: found.entries,
            restored_bytes: found.bytes,
            ..LogFacts::default()
        };
        let options = Options {
            segment_bytes: config.segment_bytes,
            batch_bytes_max: config.batch_bytes_max(),
            ..Options::default()
        };
        let mut log = Log::resume(found.found, options, rng.next_u64());
        log.hold_back();
        let snapshots =
            Snapshots::new(found.identity, found.snapshots, found.log_bytes, config, rng);
        let mut opened = Self {
            log,
            config,
            requests: Vec::new(),
            promised: Lsn::START,
            delay: CommitDelay::new(),
            due: Lsn::START,
            flush_at: Instant::NEVER,
            retry_at: Instant::NEVER,
            repeat_at: Instant::NEVER,
            found_end,
            is_new,
            copied: (Epoch(0), Lsn::START),
            snapshots,
            awaited: Vec::new(),
            renewals: Vec::new(),
            failed: None,
            facts,
        };
        // The last batch that was found may lie in a cache only; it is written again.
        opened.write();
        opened
    }

    /// Appends an entry of an engine. Gives the place on which promises rest: with `async` on none.
    pub(crate) fn append(
        &mut self,
        (keyspace, kind, durability): (KeyspaceId, u8, Durability),
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> Lsn {
        let mut bytes = ENTRY_OVERHEAD;
        let place = self.log.append(kind, keyspace, |out| {
            let start = out.len();
            encode(out);
            bytes += (out.len() - start) as u64;
        });
        self.facts.appended_entries += 1;
        self.facts.appended_bytes += bytes;
        self.snapshots.log_has_an_entry_more();
        if mutant!("node_blocks_not_counted") {
            self.snapshots.log_has_grown(bytes);
        }
        if durability != Durability::Sync {
            return Lsn::START;
        }
        self.promised = place;
        place
    }

    /// Whether promises wait for a flush.
    fn is_awaited(&self) -> bool {
        self.promised > self.log.durable()
    }

    /// How many entries are not durable.
    fn waiting(&self) -> u64 {
        self.log.appended().0 - self.log.durable().0
    }

    /// Whether the disk keeps up, so that updates may begin.
    pub(crate) fn keeps_up(&self) -> bool {
        !matches!(self.log.room(), Room::Congested) || mutant!("node_log_without_bound")
    }

    /// Whether there is no room on the disk.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self.log.room(), Room::Full) && !mutant!("node_full_disk_takes_updates")
    }

    /// Whether everything that recovery has found is durable for certain, and what comes has a place.
    fn is_ready(&self) -> bool {
        self.is_found_durable()
            && (self.log.has_segment() || self.is_full() && !self.needs_segment())
    }

    /// Whether there must be a segment before this node says anything: a process that finds none
    /// later takes its log for lost.
    fn needs_segment(&self) -> bool {
        self.is_new && !self.log.has_segment() && !mutant!("node_begins_without_a_log")
    }

    fn is_found_durable(&self) -> bool {
        self.log.durable() >= self.found_end || mutant!("node_found_is_durable")
    }

    /// All that this lane copies in an epoch is there: has it flushed, and says whether it is durable. Others rely
    /// on an active member to come back with what it had copied, also where promises do not wait for the log.
    pub(crate) fn keeps_copy(&mut self, epoch: Epoch) -> bool {
        if self.copied.0 != epoch {
            self.copied = (epoch, self.log.appended());
            self.due = self.log.appended();
        }
        self.log.durable() >= self.copied.1 || mutant!("node_copy_not_flushed")
    }

    /// Whether the disk has no room for the first segment, or for the last batch, which is written once more
    /// before this node says anything. Nobody is served then, so there is no reason to wait.
    fn cannot_begin(&self) -> bool {
        let waits = self.is_full() && !self.log.is_writing() && self.requests.is_empty();
        let lacks_room = !self.is_found_durable() || self.needs_segment();
        waits && lacks_room && !mutant!("node_waits_for_room_to_begin")
    }

    pub(crate) fn next_deadline(&self) -> Instant {
        let waits_until =
            if self.log.is_writing() { Instant::NEVER } else { self.delay.deadline() };
        let soon = waits_until.min(self.flush_at).min(self.retry_at).min(self.repeat_at);
        soon.min(self.snapshots.next_deadline())
    }

    /// Begins what is due, at the end of a turn.
    fn tend(&mut self, now: Now) {
        if self.log.appended() > self.log.durable() && self.flush_at == Instant::NEVER {
            let late = if mutant!("node_flushes_late") { 40 } else { 1 };
            self.flush_at = now.monotonic + self.config.fsync_interval * late;
        }
        if self.flush_at <= now.monotonic {
            self.flush_at = Instant::NEVER;
            self.due = self.log.appended();
        }
        if self.retry_at <= now.monotonic {
            self.retry_at = Instant::NEVER;
            self.log.retry(&mut requests(&mut self.requests, DiskOwner::Log));
        }
        if self.repeat_at <= now.monotonic {
            self.repeat_at = Instant::NEVER;
            if !mutant!("node_resting_log_has_no_copy") {
                self.log.repeat_tail(&mut requests(&mut self.requests, DiskOwner::Log));
            }
        }
        // While a batch is under way, the next one gathers: also what the turn brings in which that one
        // ends, which is why the log is told here and not when an entry comes.
        if !self.log.is_writing() || mutant!("node_batch_within_a_turn") {
            self.log.want(self.due);
            if self.is_awaited() && self.delay.may_begin(now.monotonic, self.waiting()) {
                self.log.want(self.promised);
            }
        }
        self.write();
        if self.is_full() && self.retry_at == Instant::NEVER {
            self.retry_at = now.monotonic + LogConfig::RETRY;
        }
    }

    /// Has all of it written, and the last batch twice. Returns whether that is done.
    fn close(&mut self, now: Now) -> bool {
        self.log.want(self.log.appended());
        self.repeat_at = now.monotonic;
        self.tend(now);
        let is_durable = self.log.durable() == self.log.appended();
        let is_there = is_durable && (self.log.is_closed() || self.is_full());
        is_there || self.log.room() == Room::Dead
    }

    fn write(&mut self) {
        self.log.write(&mut requests(&mut self.requests, DiskOwner::Log));
    }

    /// Takes the end of a request. Gives how far the log is durable, if that has changed.
    fn done(&mut self, now: Now, done: DiskDone) -> Option<Lsn> {
        let DiskDone { owner, completion, took, error } = done;
        let mut durable = None;
        match owner {
            DiskOwner::Log => {
                let bytes = completion.bytes.len() as u64;
                let disk = &mut requests(&mut self.requests, DiskOwner::Log);
                let (before, until_now) = (self.log.bytes_on_disk(), self.log.durable());
                durable = self.log.complete(completion, disk);
                if !mutant!("node_blocks_not_counted") {
                    self.snapshots.log_has_grown(self.log.bytes_on_disk() - before);
                }
                if let Some(until) = durable {
                    self.repeat_at = now.monotonic + LogConfig::REPEAT_AFTER;
                    let entries = until.0 - until_now.0;
                    self.delay.batch_ended(now.monotonic, took, entries, self.waiting());
                    self.facts.flushed(took, bytes);
                    self.snapshots.log_is_durable(until, &mut self.requests);
                }
            }
            DiskOwner::Voter => unreachable!("the voter's file is no part of the log"),
            DiskOwner::Snapshot(number) => {
                let ended = self.snapshots.done(now, number, completion, &mut self.requests);
                match ended {
                    Some(Ended::Durable { recyclable }) => {
                        let disk = &mut requests(&mut self.requests, DiskOwner::Log);
                        self.log.recycle(recyclable, disk);
                    }
                    Some(Ended::Dead) => self.fail(&error),
                    None => {}
                }
            }
        }
        if self.log.room() == Room::Dead {
            self.fail(&error);
        }
        durable
    }

    /// All entries of the snapshot under way are in. It counts when the log is durable as far as they have
    /// seen it, and so are those of these lanes, which may have written what is in them.
    fn end_snapshot(&mut self, others: BTreeSet<LaneId>) {
        let end = self.log.appended();
        self.log.want(end);
        let is_alone = others.is_empty() || mutant!("node_snapshot_of_one_lane");
        self.snapshots.all_in(end, others);
        if is_alone {
            self.snapshots.finish(self.log.durable(), &mut self.requests);
        }
    }

    /// Another lane's log is durable as far as a snapshot has seen it.
    fn lane_is_durable(&mut self, lane: LaneId, snapshot: u32) {
        if self.snapshots.has_seen_durable(snapshot, lane) {
            self.snapshots.finish(self.log.durable(), &mut self.requests);
        }
    }

    /// A lane waits for a snapshot that begins later than now. The one that is under way doesn't.
    fn renew(&mut self, lane: LaneId, number: u32) {
        self.renewals.retain(|(_, asked_by, _)| *asked_by != lane);
        let next = self.snapshots.next_number();
        let next = if mutant!("node_snapshot_under_way_renews") { next - 1 } else { next };
        self.renewals.push((next, lane, number));
        self.snapshots.ask();
    }

    /// The lanes that need not wait any longer, and their questions.
    fn renewed(&mut self) -> impl Iterator<Item = (LaneId, u32)> {
        let newest = self.snapshots.newest_number();
        let over = self.renewals.extract_if(.., move |(snapshot, ..)| *snapshot <= newest);
        over.map(|(_, lane, number)| (lane, number))
    }

    fn fail(&mut self, error: &str) {
        self.failed.get_or_insert_with(|| disk_failed(error));
    }
}

/// Why the process ends.
pub(crate) fn disk_failed(error: &str) -> String {
    format!(
        "the disk has failed: {error}. What it should have kept may be lost, and no later try could tell, \
         so this process ends. Check the disk, then start the node again: it reads what is sound and \
         copies the rest from the others"
    )
}

fn requests(list: &mut Vec<DiskRequest>, owner: DiskOwner) -> Requests<'_> {
    Requests { owner, list }
}

/// A lane that takes in what its log holds.
struct Restoring<'a> {
    lane: &'a mut Lane,
    progress: &'a mut dyn FnMut(u64, u64),
    entries: u64,
    bytes: u64,
    /// Each entry looks at records several times.
    pinned: Option<quorate_storage::Guard>,
}

impl Restore for Restoring<'_> {
    fn entry(&mut self, entry: Entry<'_>) -> Result<(), String> {
        const PROGRESS_EVERY: u64 = 16 * 1024;
        let Entry { keyspace, kind, bytes } = entry;
        if self.entries.is_multiple_of(WARM_TOGETHER as u64) {
            // What was let go of is freed only while nothing is pinned.
            self.pinned = None;
            self.pinned = Some(quorate_storage::pin());
        }
        self.entries += 1;
        self.bytes += bytes.len() as u64;
        if self.entries.is_multiple_of(PROGRESS_EVERY) {
            (self.progress)(self.entries, self.bytes);
        }
        if kind == CLOCK_ENTRY {
            return self.lane.restore_lease_manager(bytes);
        }
        let engine = self.lane.engines.get_mut(usize::from(keyspace.0)).and_then(Option::as_mut);
        let engine = engine.filter(|engine| engine.durability() != Durability::Memory);
        let engine = engine.ok_or_else(|| {
            format!(
                "it is of keyspace {keyspace}, which the configuration doesn't have or keeps in memory; \
                 give it durability again, or choose another directory"
            )
        })?;
        engine.restore(kind, bytes)
    }

    fn ahead<'a>(&self, keyspace: KeyspaceId, entries: impl Iterator<Item = &'a [u8]>) {
        match self.lane.engine(keyspace) {
            Some(engine) => engine.warm_entries(entries),
            None => entries.for_each(drop),
        }
    }
}

impl Lane {
    /// Gives this lane its log and hands what earlier processes have left to the engines, before the
    /// first event. `seed` must be drawn from the system: nobody who appends may know it. `progress`
    /// hears now and then how many entries and bytes are in.
    ///
    /// # Errors
    /// If the log has entries for which there is no engine, or which it can't read, or if the files
    /// have changed since they were looked through. The lane can't be used then.
    pub fn open_log(
        &mut self,
        found: LaneFound,
        directory: &mut impl Directory,
        seed: u64,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(), String> {
        let mut restoring = Restoring { lane: self, progress, entries: 0, bytes: 0, pinned: None };
        found.replay(directory, &mut restoring)?;
        (restoring.progress)(restoring.entries, restoring.bytes);
        let config = self.shared.config.log;
        self.log = Some(Box::new(LaneLog::resume(found, config, seed)));
        Ok(())
    }

    /// Every lane of this node has opened its log, and one of them held something. A keyspace in memory has
    /// lost everything, like one whose log is lost: the node may be active at once, since it has the data of
    /// others, and members that have lived on have what this keyspace had.
    pub fn restored(&mut self) {
        let forgets = |engine: &KeyspaceLane| {
            engine.durability() == Durability::Memory && mutant!("node_memory_has_no_past")
        };
        let engines = self.engines.iter_mut().flatten().filter(|engine| !forgets(engine));
        engines.for_each(KeyspaceLane::restored);
    }

    /// Takes in what this lane's log holds and what has waited for an entry of another lane, as far as that is
    /// there. Whether anything was. Not needed to go on: the first view sees to it.
    pub fn restore_parked(&mut self) -> bool {
        let engines = self.engines.iter_mut().flatten();
        engines.map(KeyspaceLane::restore_parked).fold(false, |any, more| any | more)
    }

    /// Whether something that the log does not keep durably yet is promised to somebody.
    pub fn awaits_log(&self) -> bool {
        self.log.as_ref().is_some_and(|log| log.is_awaited())
    }

    /// How far this lane's log goes, and how far it is durable.
    pub fn log_ends(&self) -> Option<(Lsn, Lsn)> {
        self.log.as_ref().map(|log| (log.log.appended(), log.log.durable()))
    }

    /// Whether the disk has no room for what this lane's engines append.
    pub fn is_disk_full(&self) -> bool {
        self.room.is_own_full()
    }

    /// Whether what was restored is durable for certain. Until then a driver hands in nothing but the
    /// ends of requests.
    pub fn is_ready(&self) -> bool {
        self.log.as_ref().is_none_or(|log| log.is_ready())
    }

    /// Begins what is due on the disk. Call it once in each turn, after the last [`Lane::end_turn`], and
    /// carry out what [`Outbox::disk`] holds then.
    pub fn write_log(&mut self, now: Now, out: &mut Outbox) {
        self.write_voter(now, out);
        let may_write = self.is_voter_saved() || mutant!("node_log_before_its_voter");
        if self.log.is_none() || !may_write {
            return;
        }
        self.save_some(now);
        let Some(log) = &mut self.log else { return };
        log.tend(now);
        if log.cannot_begin() && out.failed.is_none() {
            out.failed = Some(
                "the disk has no room for a new segment of the log, which this node needs before it can say \
                 what it has. Make room, then start the node again"
                    .into(),
            );
        }
        out.disk.append(&mut log.requests);
        let is_full = log.is_full();
        self.tend_room(now, is_full, out);
    }

    /// Takes the end of a request to the disk. What waited for it leaves.
    pub fn disk_done(&mut self, now: Now, done: DiskDone, out: &mut Outbox) {
        if done.owner == DiskOwner::Voter {
            return self.voter_done(now, done.completion, &done.error, out);
        }
        let is_of_snapshot = matches!(done.owner, DiskOwner::Snapshot(_));
        let Some(log) = &mut self.log else { return };
        let durable = log.done(now, done);
        out.disk.append(&mut log.requests);
        if out.failed.is_none() {
            out.failed = log.failed.take();
        }
        if is_of_snapshot {
            self.tell_saving();
            self.tell_renewed(out);
        }
        if let Some(durable) = durable {
            self.tell_snapshots(durable, out);
            self.durable(now, durable, out);
        }
    }

    /// Tells other lanes whose snapshots have waited for the log of this one.
    fn tell_snapshots(&mut self, durable: Lsn, out: &mut Outbox) {
        let Some(log) = &mut self.log else { return };
        for (_, lane, snapshot) in log.awaited.extract_if(.., |(place, ..)| *place <= durable) {
            out.mail.push((lane, Mail::LogDurable { from: self.id, snapshot }));
        }
    }

    /// A snapshot of another lane waits for what this one has appended.
    pub(crate) fn await_log(&mut self, lane: LaneId, snapshot: u32, out: &mut Outbox) {
        let Some(log) = &mut self.log else { return };
        let place = log.log.appended();
        log.log.want(place);
        if place <= log.log.durable() {
            out.mail.push((lane, Mail::LogDurable { from: self.id, snapshot }));
        } else {
            log.awaited.push((place, lane, snapshot));
        }
    }

    pub(crate) fn log_of_lane_is_durable(&mut self, lane: LaneId, snapshot: u32) {
        if let Some(log) = &mut self.log {
            log.lane_is_durable(lane, snapshot);
        }
    }

    /// Asks other lanes for what a snapshot waits for.
    pub(crate) fn ask_for_logs(&mut self, out: &mut Outbox) {
        let asked = self.log.as_mut().and_then(|log| log.snapshots.ask_lanes());
        for (snapshot, lane) in asked
            .into_iter()
            .flat_map(|(number, lanes)| lanes.into_iter().map(move |it| (number, it)))
        {
            out.mail.push((lane, Mail::AwaitLog { from: self.id, snapshot }));
        }
    }

    /// The process ends: asks for what is not durable yet, and for a copy of the last batch. Returns whether
    /// everything is there.
    pub fn close_log(&mut self, now: Now, out: &mut Outbox) -> bool {
        let Some(log) = &mut self.log else { return true };
        let is_closed = log.close(now);
        out.disk.append(&mut log.requests);
        is_closed
    }

    /// Asks for a snapshot of every lane of this node.
    pub fn save(&mut self, out: &mut Outbox) {
        for lane in (0..self.shared.config.lanes).map(LaneId) {
            // Seen at once by who asks whether they are complete.
            let saved_at = self.shared.lane_saved_at(lane);
            self.shared.set_saving(lane, true, saved_at);
            out.mail.push((lane, Mail::Save));
        }
    }

    /// Asks for a snapshot of this lane.
    pub(crate) fn ask_snapshot(&mut self) {
        if let Some(log) = &mut self.log {
            log.snapshots.ask();
        }
        self.tell_saving();
    }

    /// Asks for a snapshot of this lane that begins later than now, for another one.
    pub(crate) fn renew_log(&mut self, lane: LaneId, number: u32) {
        if let Some(log) = &mut self.log {
            log.renew(lane, number);
        }
        self.tell_saving();
    }

    /// Tells the lanes that have waited for the newest snapshot.
    fn tell_renewed(&mut self, out: &mut Outbox) {
        let Some(log) = &mut self.log else { return };
        let told = log.renewed();
        out.mail.extend(told.map(|(lane, number)| (lane, Mail::Renewed { from: self.id, number })));
    }

    /// Has the other lanes see whether this one writes a snapshot.
    fn tell_saving(&self) {
        if let Some(log) = &self.log {
            let saved_at = log.snapshots.newest_at().map_or(0, |at| at.0);
            self.shared.set_saving(self.id, log.snapshots.is_saving(), saved_at);
        }
    }

    /// Takes a bounded part of a snapshot, if one is due or under way.
    fn save_some(&mut self, now: Now) {
        let Some(log) = &mut self.log else { return };
        if log.snapshots.is_due(now.monotonic) {
            // The beginning of replay: whatever is appended from here on is read again.
            let start = log.log.appended();
            log.snapshots.begin(now, start, &mut log.requests);
            let LaneLog { snapshots, requests, .. } = &mut **log;
            self.sessions.save(|entry| snapshots.add(KeyspaceId(0), CLOCK_ENTRY, entry, requests));
            self.tell_saving();
        }
        let Some(log) = &mut self.log else { return };
        let Some(mut at) = log.snapshots.takes_more() else { return };
        let mut left = Snapshots::BYTES_PER_TURN;
        while left > 0 {
            let number = usize::from(at.keyspace.0);
            let Some(engine) = self.engines.get_mut(number) else {
                let lanes = (0..self.shared.config.lanes).map(LaneId);
                return log.end_snapshot(lanes.filter(|lane| *lane != self.id).collect());
            };
            let next = match engine.as_mut().filter(|it| it.durability() != Durability::Memory) {
                Some(engine) => {
                    let (kind, keyspace) = (engine.kind(), at.keyspace);
                    let (snapshots, disk) = (&mut log.snapshots, &mut log.requests);
                    let mut taken = 0;
                    let next = engine.save(at.point, left, &mut |entry| {
                        taken += entry.len();
                        snapshots.add(keyspace, kind, entry, disk);
                    });
                    left = left.saturating_sub(taken.max(1));
                    next
                }
                None => None,
            };
            at = at.followed_by(next);
        }
        log.snapshots.go_on_at(at);
    }

    /// What an administrator may know of the log.
    pub(crate) fn log_facts(&self, now: Now) -> Option<LogFacts> {
        let log = self.log.as_ref()?;
        let mut facts = log.facts.clone();
        facts.pending_bytes = log.log.pending_bytes() as u64;
        facts.is_full = log.is_full();
        log.snapshots.tell(now, &mut facts);
        Some(facts)
    }
}

impl LogFacts {
    fn flushed(&mut self, took: quorate_types::Duration, bytes: u64) {
        self.written_bytes += bytes;
        let micros = took.as_micros() as u64;
        let bucket = (u64::BITS - micros.leading_zeros()) as usize;
        self.flushes[bucket.min(FLUSH_BUCKETS - 1)] += 1;
        self.flush_micros += micros;
    }
}

/// Who a lane's files belong to.
pub fn identity(config: &crate::NodeConfig, lane: quorate_types::LaneId) -> Identity {
    Identity { cluster: config.log_cluster(), node: config.node, lane }
}

#[cfg(test)]
mod tests;
