//! A process with a log on a simulated disk, and the judge of what comes back.
//!
//! The process is the smallest engine: a few keys, each entry sets one. A snapshot takes one key at a
//! time while others change. The judge knows everything that was appended, and what was called
//! durable.

use std::collections::BTreeMap;

use quorate_disk::{Device, DeviceFaults, Files};
use quorate_durability::{
    Completion, Directory, Disk, DiskError, Entry, FileEntry, Identity, Log, LogError, Name,
    Options, Reader, Request, Room, SnapshotEvent, SnapshotReader, SnapshotWriter, Start, Ticket,
    snapshots,
};
use quorate_machine::Rng;
use quorate_types::{Incarnation, KeyspaceId, LaneId, Lsn, NodeId};

pub(crate) const ME: Identity =
    Identity { cluster: Incarnation(0xc1), node: NodeId(2), lane: LaneId(1) };
pub(crate) const SMALL: Options = Options {
    segment_bytes: 40 * 1024,
    batch_bytes_max: 8 * 1024,
    pending_bytes_max: 64 * 1024,
    spare_segments: 2,
};
const DISK_BYTES: usize = 1 << 20;
const KEYS: u64 = 6;
const SET: u8 = 1;
const HELD: u8 = 2;

/// Whose requests are under way: the log's or the snapshot's.
pub(crate) struct Port<'a> {
    pub(crate) files: &'a mut Files,
    pub(crate) owner: u64,
}

impl Disk for Port<'_> {
    fn submit(&mut self, ticket: Ticket, request: Request) {
        self.files.submit(Ticket(ticket.0 * 4 + self.owner), request);
    }
}

impl Directory for Port<'_> {
    fn files(&mut self) -> Result<Vec<FileEntry>, DiskError> {
        self.files.files()
    }

    fn read(&mut self, file: &str, offset: u64, into: &mut [u8]) -> Result<(), DiskError> {
        self.files.read(file, offset, into)
    }
}

/// What a run is to show.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Plan {
    pub(crate) actions: u64,
    pub(crate) faults: DeviceFaults,
    /// Of a thousand actions, how many are crashes.
    pub(crate) crashes: u64,
    /// The power goes after this step of the disk, instead.
    pub(crate) cut_after: Option<u64>,
    /// Nothing is appended in so many actions of the beginning.
    pub(crate) appends_after: u64,
    /// Whether bytes rot while the power is off.
    pub(crate) rots: bool,
    /// Whether others fill the disk, and empty it.
    pub(crate) fills: bool,
    pub(crate) snapshots: bool,
}

impl Plan {
    /// Whether a flush may not have covered what it said.
    fn forgives_losses(&self) -> bool {
        self.faults.lie > 0 || self.faults.misdirection > 0
    }
}

/// The result of a run.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) steps: u64,
    pub(crate) recoveries: u64,
    pub(crate) entries: u64,
    /// Recoveries that found the log damaged, which ended the run.
    pub(crate) damaged: u64,
    /// The last of those errors.
    pub(crate) error: Option<LogError>,
    /// Entries that were called durable and are gone.
    pub(crate) lost: u64,
    pub(crate) full: u64,
    pub(crate) dead: u64,
    pub(crate) snapshots: u64,
    /// Recoveries that began with a snapshot.
    pub(crate) from_snapshot: u64,
    pub(crate) disk_events: BTreeMap<&'static str, u64>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Set {
    place: Lsn,
    key: u8,
    value: Vec<u8>,
}

type State = BTreeMap<u8, Vec<u8>>;

struct Snapshot {
    writer: SnapshotWriter,
    next_key: u64,
    finished: bool,
}

pub(crate) struct World {
    plan: Plan,
    seed: u64,
    rng: Rng,
    pub(crate) files: Files,
    log: Option<Log>,
    snapshot: Option<Snapshot>,
    state: State,
    /// Everything that was appended and not lost, in order.
    history: Vec<Set>,
    /// What was called durable, each time.
    told: Vec<Lsn>,
    /// The place up to which a process has found the log, until all of that is durable again.
    found: Lsn,
    /// Whether a process has said that there is a segment to write to.
    prepared: bool,
    pub(crate) report: Report,
}

/// Runs a plan.
pub(crate) fn run(plan: Plan, seed: u64) -> Report {
    let mut world = World::new(plan, seed);
    world.live();
    world.report
}

impl World {
    pub(crate) fn new(plan: Plan, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let sector = if rng.chance(1, 2) { 512 } else { 4096 };
        let device = Device::new(DISK_BYTES, sector, plan.faults, rng.next_u64());
        Self {
            plan,
            seed,
            files: Files::new(device, rng.next_u64()),
            rng,
            log: None,
            snapshot: None,
            state: State::new(),
            history: Vec::new(),
            told: vec![Lsn::START],
            found: Lsn::START,
            prepared: false,
            report: Report::default(),
        }
    }

    fn told(&self) -> Lsn {
        *self.told.last().expect("the start always is")
    }

    fn live(&mut self) {
        if !self.recover() {
            return;
        }
        for action in 0..self.plan.actions {
            if !self.act(action >= self.plan.appends_after) {
                return self.count_events();
            }
        }
        // What was appended becomes durable once the disk behaves.
        self.files.set_reserved(0);
        let honest = DeviceFaults::default();
        if self.plan.faults.garbled == 0 && !self.plan.rots && !self.plan.forgives_losses() {
            self.files.device().set_faults(honest);
            let log = self.log.as_mut().expect("a process runs");
            log.retry(&mut Port { files: &mut self.files, owner: 0 });
            while !self.files.is_idle() {
                self.step();
            }
            let log = self.log.as_ref().expect("a process runs");
            if log.room() != Room::Dead {
                assert!(log.is_idle(), "seed {}: {:?}", self.seed, log.room());
                assert_eq!(log.durable(), log.appended(), "seed {}", self.seed);
            }
        }
        self.crash(true);
        self.recover();
        self.count_events();
    }

    fn count_events(&mut self) {
        for (name, count) in self.files.device().counts() {
            *self.report.disk_events.entry(name).or_default() += count;
        }
    }

    /// Returns false when the run has ended.
    fn act(&mut self, appends: bool) -> bool {
        let crashes = self.plan.cut_after.is_none();
        if crashes && self.rng.chance(self.plan.crashes, 1000) {
            let power = self.rng.chance(2, 3);
            self.crash(power);
            return self.recover();
        }
        match self.rng.below(20) {
            0..=4 if appends => self.append(),
            5 if self.plan.fills => {
                let bytes = if self.rng.chance(1, 2) { DISK_BYTES as u64 } else { 0 };
                self.files.set_reserved(bytes);
            }
            6 => {
                let log = self.log.as_mut().expect("a process runs");
                log.retry(&mut Port { files: &mut self.files, owner: 0 });
            }
            7 | 8 if self.plan.snapshots => self.advance_snapshot(),
            _ => {
                self.step();
                if self.plan.cut_after == Some(self.report.steps) {
                    self.crash(true);
                    return self.recover();
                }
            }
        }
        if self.log.as_ref().expect("a process runs").room() == Room::Dead {
            self.report.dead += 1;
            // The process stops; the power goes, or not.
            let power = self.rng.chance(1, 2);
            self.crash(power);
            return self.recover();
        }
        true
    }

    fn append(&mut self) {
        let log = self.log.as_mut().expect("a process runs");
        if log.room() == Room::Full {
            self.report.full += 1;
        }
        if log.room() != Room::Open {
            return;
        }
        for _ in 0..1 + self.rng.below(4) {
            let key = self.rng.below(KEYS) as u8;
            let most = if self.rng.chance(1, 12) { 20_000 } else { 300 };
            let length = self.rng.below(most) as usize;
            let mut value = vec![self.rng.next_u64() as u8; length];
            value.extend_from_slice(&self.report.entries.to_le_bytes());
            self.report.entries += 1;
            let place = log.append(SET, KeyspaceId(key % 2), |out| {
                out.push(key);
                out.extend_from_slice(&value);
            });
            self.state.insert(key, value.clone());
            self.history.push(Set { place, key, value });
        }
        // Within a turn, or at its end.
        if self.rng.chance(3, 4) {
            log.write(&mut Port { files: &mut self.files, owner: 0 });
        }
    }

    fn step(&mut self) {
        if self.files.is_idle() {
            return;
        }
        self.report.steps += 1;
        self.finish_step();
        let log = self.log.as_ref().expect("a process runs, or another has begun");
        self.prepared |= log.has_segment() && log.durable() >= self.found;
    }

    fn finish_step(&mut self) {
        let Some(Completion { ticket, result, bytes }) = self.files.step() else { return };
        let owner = ticket.0 % 4;
        let completion = Completion { ticket: Ticket(ticket.0 / 4), result, bytes };
        let mut port = Port { files: &mut self.files, owner };
        if owner == 0 {
            let log = self.log.as_mut().expect("a process runs");
            if let Some(durable) = log.complete(completion, &mut port) {
                if durable > self.told() {
                    self.told.push(durable);
                }
                let mut port = Port { files: &mut self.files, owner: 1 };
                if let Some(snapshot) = &mut self.snapshot {
                    snapshot.writer.log_is_durable(durable, &mut port);
                }
            }
        } else if let Some(snapshot) = &mut self.snapshot {
            let event = snapshot.writer.complete(completion, &mut port);
            let Some(event) = event else { return };
            self.snapshot = None;
            match event {
                SnapshotEvent::Durable { recyclable } => {
                    self.report.snapshots += 1;
                    let log = self.log.as_mut().expect("a process runs");
                    log.recycle(recyclable, &mut Port { files: &mut self.files, owner: 0 });
                }
                SnapshotEvent::Full => {}
                SnapshotEvent::Dead => self.crash(false),
            }
            if self.log.is_none() {
                self.recover();
            }
        }
    }

    fn advance_snapshot(&mut self) {
        let log = self.log.as_ref().expect("a process runs");
        let (appended, durable) = (log.appended(), log.durable());
        let seed = self.rng.next_u64();
        if self.snapshot.is_none() {
            // As much as a directory that can't be read now allows.
            let Ok(listed) = snapshots(&mut self.files, ME) else { return };
            let mut port = Port { files: &mut self.files, owner: 1 };
            let mut writer = SnapshotWriter::begin(ME, appended, listed, seed, &mut port);
            writer.log_is_durable(durable, &mut port);
            self.snapshot = Some(Snapshot { writer, next_key: 0, finished: false });
            return;
        }
        let snapshot = self.snapshot.as_mut().expect("it was begun");
        let mut port = Port { files: &mut self.files, owner: 1 };
        if snapshot.finished || !snapshot.writer.takes_more() {
            return;
        }
        if snapshot.next_key == KEYS {
            snapshot.finished = true;
            return snapshot.writer.finish(appended, &mut port);
        }
        let key = snapshot.next_key as u8;
        snapshot.next_key += 1;
        if let Some(value) = self.state.get(&key) {
            let encode = |out: &mut Vec<u8>| {
                out.push(key);
                out.extend_from_slice(value);
            };
            snapshot.writer.add(HELD, KeyspaceId(0), encode, &mut port);
        }
    }

    // --- crashes and recovery ------------------------------------------------------------------

    fn crash(&mut self, power: bool) {
        self.log = None;
        self.snapshot = None;
        if power {
            self.files.power_cut();
        } else {
            self.files.process_crash();
        }
        if self.plan.rots && self.rng.chance(1, 3) {
            self.rot();
        }
    }

    fn rot(&mut self) {
        let names: Vec<Name> =
            self.files.files().expect("it can be listed").into_iter().map(|it| it.name).collect();
        if names.is_empty() {
            return;
        }
        let name = names[self.rng.below(names.len() as u64) as usize].clone();
        let content = self.files.content(&name);
        let written: Vec<usize> =
            (0..content.len()).step_by(512).filter(|at| content[*at] != 0).collect();
        if written.is_empty() {
            return;
        }
        let sector = written[self.rng.below(written.len() as u64) as usize];
        let at = sector + self.rng.below(8) as usize;
        self.files.damage(&name, at as u64, &[content[at] ^ 1 << self.rng.below(8)]);
    }

    /// Returns false if what was found can't be gone on with.
    fn recover(&mut self) -> bool {
        self.report.recoveries += 1;
        match self.try_recover() {
            Ok(()) => true,
            Err(error) => {
                let may = self.plan.rots || self.plan.forgives_losses();
                let transient =
                    self.plan.faults.read_error > 0 && matches!(error, LogError::Unreadable { .. });
                assert!(
                    may || transient,
                    "seed {}: a sound log is called damaged: {error}",
                    self.seed
                );
                self.report.damaged += 1;
                self.report.error = Some(error);
                false
            }
        }
    }

    fn try_recover(&mut self) -> Result<(), LogError> {
        let (complete, _) = snapshots(&mut self.files, ME)?;
        let (mut state, mut start, mut end) = (State::new(), Lsn::START, Lsn::START);
        for found in complete {
            let (from, until) = (found.start, found.end);
            match held(&mut self.files, SnapshotReader::new(found)) {
                Ok(held) => {
                    (state, start, end) = (held, from, until);
                    self.report.from_snapshot += 1;
                    break;
                }
                Err(error) => {
                    let may = self.plan.rots
                        || self.plan.forgives_losses()
                        || self.plan.faults.read_error > 0;
                    assert!(may, "seed {}: a sound snapshot is called damaged: {error}", self.seed);
                }
            }
        }
        let mut reader = Reader::open(&mut self.files, ME, Start::After(start))?;
        let mut known = self.history.iter().skip_while(|set| set.place <= start);
        while let Some((place, entry)) = reader.next(&mut self.files)? {
            let set = set_of(place, entry);
            let expected = known.next();
            assert!(
                expected == Some(&set),
                "seed {}: behind {start}, told {}: entry {place} has key {} and {} bytes, not {:?}",
                self.seed,
                self.told(),
                set.key,
                set.value.len(),
                expected.map(|set| (set.place, set.key, set.value.len())),
            );
            state.insert(set.key, set.value);
        }
        let found = reader.finish(&mut self.files, end)?;
        let end = found.end();
        if self.prepared && !found.has_segments() {
            let may = self.plan.rots || self.plan.forgives_losses();
            assert!(may, "seed {}: what was prepared is gone", self.seed);
            self.prepared = false;
        }
        self.found = end;
        let mut floor = self.told();
        if self.plan.rots && self.told.len() > 1 {
            // The last durable batch can't be told from a torn one.
            floor = self.told[self.told.len() - 2];
        }
        if end < floor {
            assert!(
                self.plan.forgives_losses(),
                "seed {}: {floor} was durable, and the log ends at {end}",
                self.seed
            );
            self.report.lost += floor.0 - end.0;
        }
        self.history.retain(|set| set.place <= end);
        let mut expected = State::new();
        expected.extend(self.history.iter().map(|set| (set.key, set.value.clone())));
        assert_eq!(state, expected, "seed {}: the state at {end}", self.seed);
        self.state = state;
        self.told.retain(|told| *told <= end);
        let mut log = Log::resume(found, SMALL, self.rng.next_u64());
        log.write(&mut Port { files: &mut self.files, owner: 0 });
        self.log = Some(log);
        Ok(())
    }
}

fn held(files: &mut Files, mut reader: SnapshotReader) -> Result<State, LogError> {
    let mut state = State::new();
    while let Some(entry) = reader.next(files)? {
        assert_eq!(entry.kind, HELD);
        state.insert(entry.bytes[0], entry.bytes[1..].to_vec());
    }
    Ok(state)
}

fn set_of(place: Lsn, entry: Entry<'_>) -> Set {
    let key = entry.bytes[0];
    assert_eq!((entry.kind, entry.keyspace), (SET, KeyspaceId(key % 2)));
    Set { place, key, value: entry.bytes[1..].to_vec() }
}
