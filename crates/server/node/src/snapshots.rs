//! Snapshots of a lane, written while it serves: a bounded part in each turn, so that no client waits for
//! one, and without a copy of the memory.

use std::collections::BTreeSet;

use quorate_durability::{
    Completion, Identity, Name, SnapshotEvent, SnapshotFound, SnapshotWriter,
};
use quorate_machine::{Rng, SavePoint};
use quorate_types::{Instant, KeyspaceId, LaneId, Lsn, Now, UnixMillis};

use crate::LogConfig;
use crate::disk::{DiskOwner, DiskRequest, Requests};
use crate::facts::LogFacts;

/// Where a snapshot goes on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At {
    pub(crate) keyspace: KeyspaceId,
    pub(crate) point: SavePoint,
}

impl At {
    /// Where it goes on after a part: at this point of the same engine, or with the next one.
    pub(crate) fn followed_by(self, next: Option<SavePoint>) -> Self {
        match next {
            Some(point) => Self { point, ..self },
            None => Self { keyspace: KeyspaceId(self.keyspace.0 + 1), point: SavePoint::START },
        }
    }
}

/// What the end of a snapshot means for the log.
pub(crate) enum Ended {
    /// What lies below this place is not needed any more.
    Durable { recyclable: Lsn },
    /// The disk has failed.
    Dead,
}

/// The end of a snapshot whose entries are all in. Lanes may write each other's keys: what they have seen of
/// the logs of other lanes has to be durable, too.
struct Last {
    /// The place up to which the last entry has seen the log of this lane.
    end: Lsn,
    /// The lanes whose logs are awaited.
    lanes: BTreeSet<LaneId>,
    /// Whether they have been asked.
    is_asked: bool,
}

/// The snapshot under way, and when the next one is due.
pub(crate) struct Snapshots {
    identity: Identity,
    config: LogConfig,
    rng: Rng,
    /// The complete ones, the newest first, and the files of others, while none is under way.
    kept: (Vec<SnapshotFound>, Vec<Name>),
    under_way: Option<(SnapshotWriter, Option<At>)>,
    last: Option<Last>,
    /// Snapshots that were begun by this process.
    begun: u32,
    /// Somebody has asked for one.
    asked: bool,
    /// Bytes of files that the log has taken since the newest snapshot began: of small batches many times
    /// what was appended.
    grown: u64,
    /// Likewise, entries.
    grown_entries: u64,
    /// When the next one may begin: later, if the disk was full.
    not_before: Instant,
    /// Bytes of the newest one. A data set that is larger than the log that grows beside it is not
    /// written more often than the log.
    newest_bytes: u64,
    /// When the newest one of this process was complete, and how long it took.
    newest_at: Option<UnixMillis>,
    newest_number: u32,
    begun_at: Instant,
    took_seconds: u64,
    completed: u64,
    has_failed: bool,
}

impl Snapshots {
    /// Bytes that a snapshot takes of the engines in one turn, and an entry more.
    pub(crate) const BYTES_PER_TURN: usize = 256 * 1024;

    pub(crate) fn new(
        identity: Identity,
        kept: (Vec<SnapshotFound>, Vec<Name>),
        grown: u64,
        config: LogConfig,
        rng: Rng,
    ) -> Self {
        Self {
            identity,
            config,
            rng,
            kept,
            under_way: None,
            last: None,
            begun: 0,
            asked: false,
            grown,
            grown_entries: 0,
            not_before: Instant::ZERO,
            newest_bytes: 0,
            newest_at: None,
            newest_number: 0,
            begun_at: Instant::ZERO,
            took_seconds: 0,
            completed: 0,
            has_failed: false,
        }
    }

    pub(crate) fn log_has_an_entry_more(&mut self) {
        self.grown_entries += 1;
    }

    pub(crate) fn log_has_grown(&mut self, bytes: u64) {
        self.grown += bytes;
    }

    /// Somebody wants one.
    pub(crate) fn ask(&mut self) {
        self.asked = true;
        self.has_failed = false;
        self.not_before = Instant::ZERO;
    }

    /// Whether one is under way, or was asked for and is not put off.
    pub(crate) fn is_saving(&self) -> bool {
        self.under_way.is_some() || self.asked && !self.has_failed
    }

    /// When the newest one of this process was complete.
    pub(crate) fn newest_at(&self) -> Option<UnixMillis> {
        self.newest_at
    }

    /// The number of the next one that begins.
    pub(crate) fn next_number(&self) -> u32 {
        self.begun + 1
    }

    /// The number of the newest one of this process that is complete; 0 before the first.
    pub(crate) fn newest_number(&self) -> u32 {
        self.newest_number
    }

    /// Whether one should begin.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.under_way.is_none() && self.wants() && self.not_before <= now
    }

    fn wants(&self) -> bool {
        self.asked || self.grown >= self.config.snapshot_after.max(self.newest_bytes)
    }

    pub(crate) fn next_deadline(&self) -> Instant {
        match &self.under_way {
            Some(_) if self.last.as_ref().is_some_and(|last| !last.is_asked) => Instant::ZERO,
            Some((writer, Some(_))) if writer.takes_more() => Instant::ZERO,
            None if self.wants() => self.not_before,
            _ => Instant::NEVER,
        }
    }

    /// Begins one, from which replay of the log begins behind `start`.
    pub(crate) fn begin(&mut self, now: Now, start: Lsn, list: &mut Vec<DiskRequest>) {
        self.begun += 1;
        self.asked = false;
        (self.grown, self.grown_entries) = (0, 0);
        self.begun_at = now.monotonic;
        let kept = std::mem::take(&mut self.kept);
        let disk = &mut Requests { owner: DiskOwner::Snapshot(self.begun), list };
        let writer = SnapshotWriter::begin(self.identity, start, kept, self.rng.next_u64(), disk);
        let at = At { keyspace: KeyspaceId(0), point: SavePoint::START };
        self.under_way = Some((writer, Some(at)));
    }

    /// Where the snapshot under way goes on, if the disk keeps up with it.
    pub(crate) fn takes_more(&self) -> Option<At> {
        self.under_way.as_ref().and_then(|(writer, at)| at.filter(|_| writer.takes_more()))
    }

    pub(crate) fn add(
        &mut self,
        keyspace: KeyspaceId,
        kind: u8,
        entry: &[u8],
        list: &mut Vec<DiskRequest>,
    ) {
        let disk = &mut Requests { owner: DiskOwner::Snapshot(self.begun), list };
        let (writer, _) = self.under_way.as_mut().expect("a snapshot is under way");
        writer.add(kind, keyspace, |out| out.extend_from_slice(entry), disk);
    }

    pub(crate) fn go_on_at(&mut self, next: At) {
        if let Some((_, at)) = &mut self.under_way {
            *at = Some(next);
        }
    }

    /// Every entry is in, and the last has seen the log up to `end`, and those of these lanes as they are
    /// now.
    pub(crate) fn all_in(&mut self, end: Lsn, lanes: BTreeSet<LaneId>) {
        let (_, at) = self.under_way.as_mut().expect("a snapshot is under way");
        *at = None;
        self.last = Some(Last { end, lanes, is_asked: false });
    }

    /// The lanes that are to be asked about their logs, and the number of the snapshot.
    pub(crate) fn ask_lanes(&mut self) -> Option<(u32, Vec<LaneId>)> {
        let last = self.last.as_mut().filter(|last| !last.is_asked)?;
        last.is_asked = true;
        Some((self.begun, last.lanes.iter().copied().collect()))
    }

    /// The log of a lane is durable as far as the snapshot of this number has seen it. Whether that was the
    /// last to wait for.
    pub(crate) fn has_seen_durable(&mut self, number: u32, lane: LaneId) -> bool {
        let last = self.last.as_mut().filter(|_| number == self.begun);
        last.is_some_and(|last| last.lanes.remove(&lane) && last.lanes.is_empty())
    }

    /// All that the entries have seen of other lanes is durable.
    pub(crate) fn finish(&mut self, durable: Lsn, list: &mut Vec<DiskRequest>) {
        let disk = &mut Requests { owner: DiskOwner::Snapshot(self.begun), list };
        let (writer, _) = self.under_way.as_mut().expect("a snapshot is under way");
        let Last { end, .. } = self.last.take().expect("all entries are in");
        writer.log_is_durable(durable, disk);
        writer.finish(end, disk);
    }

    pub(crate) fn log_is_durable(&mut self, until: Lsn, list: &mut Vec<DiskRequest>) {
        let disk = &mut Requests { owner: DiskOwner::Snapshot(self.begun), list };
        if let Some((writer, _)) = &mut self.under_way {
            writer.log_is_durable(until, disk);
        }
    }

    /// Takes the end of a request of the snapshot of this number.
    pub(crate) fn done(
        &mut self,
        now: Now,
        number: u32,
        completion: Completion,
        list: &mut Vec<DiskRequest>,
    ) -> Option<Ended> {
        // What an earlier snapshot has asked for at its end changes nothing any more.
        let (writer, _) = self.under_way.as_mut().filter(|_| number == self.begun)?;
        let disk = &mut Requests { owner: DiskOwner::Snapshot(number), list };
        let event = writer.complete(completion, disk)?;
        let (writer, _) = self.under_way.take().expect("it was just there");
        self.last = None;
        let bytes = writer.bytes();
        self.kept = writer.end();
        self.took_seconds = now.monotonic.since(self.begun_at).as_secs();
        self.has_failed = !matches!(event, SnapshotEvent::Durable { .. });
        match event {
            SnapshotEvent::Durable { recyclable } => {
                self.newest_bytes = bytes;
                self.newest_at = Some(now.wall());
                self.newest_number = number;
                self.completed += 1;
                Some(Ended::Durable { recyclable })
            }
            SnapshotEvent::Full => {
                self.asked = true;
                self.not_before = now.monotonic + LogConfig::SNAPSHOT_RETRY;
                None
            }
            SnapshotEvent::Dead => Some(Ended::Dead),
        }
    }

    /// What an administrator may know.
    pub(crate) fn tell(&self, now: Now, facts: &mut LogFacts) {
        facts.snapshots = self.completed;
        facts.snapshot_under_way = self.under_way.is_some();
        facts.snapshot_wanted = self.asked;
        facts.snapshot_failed = self.has_failed;
        facts.snapshot_bytes = self.newest_bytes;
        facts.snapshot_at = self.newest_at;
        facts.snapshot_seconds = match self.under_way {
            Some(_) => now.monotonic.since(self.begun_at).as_secs(),
            None => self.took_seconds,
        };
        facts.entries_since_snapshot = self.grown_entries;
        facts.bytes_since_snapshot = self.grown;
    }
}
