//! A lane's log on a simulated disk, without a lane.

use std::cell::RefCell;
use std::collections::VecDeque;

use quorate_disk::{Device, DeviceFaults, Files};
use quorate_durability::{Disk, DiskError};
use quorate_types::{Duration, Incarnation, LaneId, NodeId, UnixNanos};

use super::*;
use crate::snapshots::At;
use quorate_machine::SavePoint;

const ME: Identity = Identity { cluster: Incarnation(7), node: NodeId(1), lane: LaneId(0) };
const SMALL: LogConfig = LogConfig {
    fsync_interval: Duration::from_millis(10),
    snapshot_after: 64 * 1024,
    segment_bytes: 1024 * 1024,
};
const KEYSPACE: KeyspaceId = KeyspaceId(3);
const KIND: u8 = 2;

/// A log, the disk under it, and what it has asked for.
struct Host {
    files: Files,
    log: LaneLog,
    now: Now,
    /// Whose each request under way is, by the number under which the disk knows it.
    under_way: Vec<(u64, DiskOwner, quorate_durability::Ticket)>,
    counted: u64,
    durable: Lsn,
}

impl Host {
    fn new() -> Self {
        Self::on(Files::new(Device::new(16 << 20, 512, DeviceFaults::default(), 1), 1))
    }

    fn on(mut files: Files) -> Self {
        let found = LaneFound::look(&mut files, ME).expect("sound files");
        let now = Now { monotonic: Instant(1), unix: UnixNanos(1) };
        let log = LaneLog::resume(found, SMALL, 9);
        Self { files, log, now, under_way: Vec::new(), counted: 0, durable: Lsn::START }
    }

    fn append(&mut self, durability: Durability, bytes: &[u8]) -> Lsn {
        self.log.append((KEYSPACE, KIND, durability), |out| out.extend_from_slice(bytes))
    }

    /// Ends a turn, and hands out what was asked for.
    fn turn(&mut self) -> usize {
        self.log.tend(self.now);
        self.submit()
    }

    fn submit(&mut self) -> usize {
        let requests = std::mem::take(&mut self.log.requests);
        let count = requests.len();
        for DiskRequest { owner, ticket, request } in requests {
            self.counted += 1;
            self.under_way.push((self.counted, owner, ticket));
            self.files.submit(quorate_durability::Ticket(self.counted), request);
        }
        count
    }

    /// Does everything that was asked for, and what follows from it, be it a little later.
    fn settle(&mut self) {
        self.turn();
        while !self.files.is_idle() || self.log.delay.deadline() != Instant::NEVER {
            if self.files.is_idle() {
                self.now.monotonic = self.log.delay.deadline();
            }
            self.turn();
            self.step();
        }
    }

    /// Does one thing that was asked for.
    fn step(&mut self) {
        let Some(mut completion) = self.files.step() else { return };
        let at = self.under_way.iter().position(|(number, ..)| *number == completion.ticket.0);
        let (_, owner, ticket) = self.under_way.swap_remove(at.expect("it was asked for"));
        completion.ticket = ticket;
        self.end(owner, completion);
    }

    fn end(&mut self, owner: DiskOwner, completion: quorate_durability::Completion) {
        let took = Duration::from_micros(100);
        let error = "lane-0000-00000000.segment: it broke".to_owned();
        let done = DiskDone { owner, completion, took, error };
        if let Some(durable) = self.log.done(self.now, done) {
            self.durable = durable;
        }
        self.submit();
    }

    fn wait(&mut self, span: Duration) {
        self.now.monotonic += span;
    }

    /// The process ends, and another one begins. Gives what it restores.
    fn restart(self) -> (Self, Vec<Vec<u8>>) {
        let mut host = Self::on(self.files);
        let found = LaneFound::look(&mut host.files, ME).expect("sound files");
        let mut restored = Restored::default();
        found.replay(&mut host.files, &mut restored).expect("sound files");
        assert!(restored.shown.borrow().is_empty(), "what was shown has come");
        (host, restored.entries)
    }

    fn snapshot(&mut self, entries: &[&[u8]]) {
        let (start, now) = (self.log.log.appended(), self.now);
        self.log.snapshots.begin(now, start, &mut self.log.requests);
        for entry in entries {
            self.log.snapshots.add(KEYSPACE, KIND, entry, &mut self.log.requests);
        }
        self.log.end_snapshot(BTreeSet::new());
        self.settle();
    }
}

/// What was restored, each entry after it was shown or without.
#[derive(Default)]
struct Restored {
    entries: Vec<Vec<u8>>,
    shown: RefCell<VecDeque<Vec<u8>>>,
}

impl Restore for Restored {
    fn entry(&mut self, entry: Entry<'_>) -> Result<(), String> {
        assert_eq!((entry.keyspace, entry.kind), (KEYSPACE, KIND));
        let shown = self.shown.get_mut().pop_front();
        assert!(shown.is_none_or(|shown| shown == entry.bytes));
        self.entries.push(entry.bytes.to_vec());
        Ok(())
    }

    fn ahead<'a>(&self, keyspace: KeyspaceId, entries: impl Iterator<Item = &'a [u8]>) {
        assert_eq!(keyspace, KEYSPACE);
        let mut shown = self.shown.borrow_mut();
        assert!(shown.is_empty(), "they are shown once");
        shown.extend(entries.map(<[u8]>::to_vec));
    }
}

#[test]
fn what_comes_next_is_shown_before_it_comes() {
    let mut host = Host::new();
    host.settle();
    let entries: Vec<Vec<u8>> = (0..100u8).map(|number| vec![number; 9]).collect();
    for some in entries.chunks(40) {
        for entry in some {
            host.append(Durability::Sync, entry);
        }
        host.settle();
    }
    let (_, restored) = host.restart();
    assert_eq!(restored, entries);
}

#[test]
fn a_batch_waits_for_as_many_as_waited_before() {
    let mut host = Host::new();
    host.settle();
    for number in 0..3 {
        host.append(Durability::Sync, &[number]);
    }
    host.settle();
    let ended = host.now.monotonic;
    host.append(Durability::Sync, b"first");
    assert_eq!(host.turn(), 0, "the others will come as well");
    assert!(host.log.next_deadline() > ended);
    host.append(Durability::Sync, b"second");
    host.append(Durability::Sync, b"third");
    assert!(host.turn() > 0, "all are there");
    host.settle();
    let last = host.append(Durability::Sync, b"fourth");
    assert_eq!(host.turn(), 0);
    host.now.monotonic = host.log.next_deadline();
    assert!(host.turn() > 0, "they do not come");
    host.settle();
    assert_eq!(host.durable, last);
}

#[test]
fn a_promise_waits_for_its_flush_and_another_does_not() {
    let mut host = Host::new();
    host.settle();
    let promised = host.append(Durability::Sync, b"one");
    assert_ne!(promised, Lsn::START);
    assert!(host.turn() > 0, "it is begun at the end of the turn");
    assert!(host.log.is_awaited());
    host.settle();
    assert_eq!(host.durable, promised);
    assert_eq!(host.append(Durability::Async, b"two"), Lsn::START);
    assert_eq!(host.turn(), 0, "nobody waits for it");
    assert!(!host.log.is_awaited());
    assert_eq!(host.log.next_deadline(), host.now.monotonic + SMALL.fsync_interval);
    host.wait(SMALL.fsync_interval);
    host.settle();
    assert_eq!(host.durable, Lsn(promised.0 + 1));
    assert_eq!(host.log.facts.flushes.iter().sum::<u64>(), 2);
}

#[test]
fn a_copy_that_no_promise_waits_for_is_flushed_at_once_in_each_epoch() {
    let mut host = Host::new();
    host.settle();
    for epoch in [Epoch(3), Epoch(4)] {
        host.append(Durability::Async, b"copied");
        assert!(!host.log.keeps_copy(epoch));
        // What comes later is nobody's copy.
        host.append(Durability::Async, b"new");
        assert!(!host.log.keeps_copy(epoch));
        host.settle();
        assert!(host.log.keeps_copy(epoch), "it has not waited for the interval");
        host.append(Durability::Async, b"newer");
        assert!(host.log.keeps_copy(epoch));
    }
    let (mut host, entries) = host.restart();
    assert!(entries.contains(&b"copied".to_vec()));
    assert!(!host.log.keeps_copy(Epoch(5)), "what was found may be in a cache only");
    host.settle();
    assert!(host.log.keeps_copy(Epoch(5)));
}

#[test]
fn the_next_batch_has_what_the_turn_brings_in_which_the_last_one_ends() {
    let mut host = Host::new();
    host.settle();
    host.append(Durability::Sync, b"one");
    assert_eq!(host.turn(), 1);
    host.append(Durability::Sync, b"two");
    assert_eq!(host.turn(), 0, "one batch is under way");
    let flushes = |host: &Host| host.log.facts.flushes.iter().sum::<u64>();
    while flushes(&host) == 0 {
        host.step();
    }
    assert!(!host.log.log.is_writing(), "the turn goes on");
    let last = host.append(Durability::Sync, b"three");
    host.settle();
    assert_eq!((host.durable, flushes(&host)), (last, 2));
    let blocks = host.log.facts.written_bytes;
    assert!(blocks > 0 && blocks.is_multiple_of(4096), "{blocks} bytes");
}

#[test]
fn what_was_found_is_written_again_before_anything_rests_on_it() {
    let mut host = Host::new();
    host.append(Durability::Sync, b"one");
    host.settle();
    let (mut host, entries) = host.restart();
    assert_eq!(entries, [b"one"]);
    assert!(!host.log.is_ready());
    host.settle();
    assert!(host.log.is_ready());
}

/// A process that has just begun finds no room, and says so; the next one finds some.
fn cannot_begin_until_there_is_room(mut host: Host) -> Host {
    assert!(!host.log.is_ready() && !host.log.cannot_begin());
    host.settle();
    assert!(!host.log.is_ready() && host.log.cannot_begin());
    host.files.set_reserved(0);
    let mut host = host.restart().0;
    host.settle();
    assert!(host.log.is_ready() && !host.log.cannot_begin());
    host
}

#[test]
fn a_log_without_room_for_its_last_batch_cannot_begin_and_says_so_at_once() {
    let mut host = Host::new();
    host.settle();
    // The segment has no room for another batch, and there is no next one.
    host.files.set_reserved(u64::MAX);
    while host.log.waiting() == 0 {
        host.append(Durability::Sync, &[7; 100_000]);
        host.settle();
        assert!(!host.log.cannot_begin(), "it has begun");
    }
    cannot_begin_until_there_is_room(host.restart().0);
}

#[test]
fn a_log_without_room_for_its_first_segment_cannot_begin_and_loses_nothing() {
    let mut files = Files::new(Device::new(16 << 20, 512, DeviceFaults::default(), 1), 1);
    files.set_reserved(u64::MAX);
    let mut host = cannot_begin_until_there_is_room(Host::on(files));
    // It has one now, and a full disk is no reason not to begin.
    host.files.set_reserved(u64::MAX);
    let mut host = host.restart().0;
    host.settle();
    assert!(host.log.is_ready() && !host.log.cannot_begin());
}

/// Damages the last batch, and gives what comes back.
fn with_a_rotten_tail(mut host: Host) -> Vec<Vec<u8>> {
    const FILE: &str = "lane-0000-00000000.segment";
    let content = host.files.content(FILE);
    let mut blocks = content.chunks(4096).enumerate().skip(1);
    let (last, block) = blocks.rfind(|(_, block)| block[4] != 0).expect("a batch");
    host.files.damage(FILE, last as u64 * 4096 + 28, &[!block[28]]);
    host.restart().1
}

#[test]
fn a_log_that_rests_or_is_closed_loses_nothing_if_its_last_batch_rots() {
    let written = || {
        let mut host = Host::new();
        for entry in [b"one", b"two"] {
            host.append(Durability::Sync, entry);
            host.settle();
        }
        host
    };
    let all = [b"one".to_vec(), b"two".to_vec()];
    // Nobody could say of a lone one whether it was torn when the power went.
    assert_eq!(with_a_rotten_tail(written()), all[..1]);
    let mut host = written();
    while host.log.next_deadline() != Instant::NEVER {
        host.now.monotonic = host.log.next_deadline();
        host.settle();
    }
    assert_eq!(with_a_rotten_tail(host), all);
    let mut host = written();
    while !host.log.close(host.now) {
        host.submit();
        host.step();
    }
    assert_eq!(with_a_rotten_tail(host), all);
}

#[test]
fn a_snapshot_replaces_what_came_before_it() {
    let mut host = Host::new();
    host.append(Durability::Sync, b"old");
    host.settle();
    host.snapshot(&[b"state"]);
    host.append(Durability::Sync, b"new");
    host.settle();
    let (host, entries) = host.restart();
    assert_eq!(entries, [&b"state"[..], b"new"]);
    assert_eq!(host.log.facts.restored_entries, 2);
}

#[test]
fn a_log_is_renewed_by_a_snapshot_that_begins_later() {
    let mut host = Host::new();
    host.settle();
    let (asking, other, now) = (LaneId(1), LaneId(2), host.now);
    let told = |host: &mut Host| host.log.renewed().collect::<Vec<_>>();
    host.log.renew(asking, 3);
    assert!(host.log.snapshots.is_due(now.monotonic) && told(&mut host).is_empty());
    let start = host.log.log.appended();
    host.log.snapshots.begin(now, start, &mut host.log.requests);
    // This one may have what they have let go of meanwhile.
    host.log.renew(asking, 4);
    host.log.renew(other, 1);
    host.log.end_snapshot(BTreeSet::new());
    host.settle();
    assert!(told(&mut host).is_empty() && host.log.snapshots.is_due(now.monotonic));
    host.snapshot(&[]);
    assert_eq!(told(&mut host), [(asking, 4), (other, 1)]);
    assert!(told(&mut host).is_empty() && !host.log.snapshots.is_due(now.monotonic));
}

#[test]
fn a_snapshot_is_due_once_the_log_has_grown_and_not_sooner_than_the_last_one_was_large() {
    let mut host = Host::new();
    host.settle();
    let now = host.now.monotonic;
    assert!(!host.log.snapshots.is_due(now));
    host.append(Durability::Sync, &vec![1; 64 * 1024]);
    host.settle();
    assert!(host.log.snapshots.is_due(now));
    host.snapshot(&[&vec![2; 200 * 1024]]);
    host.append(Durability::Sync, &vec![1; 64 * 1024]);
    host.settle();
    assert!(!host.log.snapshots.is_due(now), "the state is larger than that");
    host.log.snapshots.ask();
    assert!(host.log.snapshots.is_due(now));
}

/// Each batch takes a block of the disk. A lone client fills it with those, however little it writes.
#[test]
fn a_snapshot_is_due_by_what_small_batches_take_on_the_disk() {
    let mut host = Host::new();
    host.settle();
    for _ in 0..SMALL.snapshot_after / 4096 {
        assert!(!host.log.snapshots.is_due(host.now.monotonic));
        host.append(Durability::Sync, b"small");
        host.settle();
    }
    assert!(host.log.snapshots.is_due(host.now.monotonic));
    let (host, _) = host.restart();
    assert!(host.log.snapshots.is_due(host.now.monotonic), "the next process counts them, too");
}

#[test]
fn a_full_disk_refuses_and_recovers_by_itself() {
    let mut host = Host::new();
    let room = host.files.room();
    host.files.set_reserved(room);
    host.append(Durability::Sync, b"one");
    host.settle();
    assert!(host.log.is_full() && host.log.keeps_up());
    let retry_at = host.now.monotonic + LogConfig::RETRY;
    host.turn();
    assert_eq!(host.log.retry_at, retry_at);
    host.wait(LogConfig::RETRY);
    assert!(host.log.is_full(), "while it looks for room, too");
    host.settle();
    assert!(host.log.is_full());
    host.files.set_reserved(0);
    host.wait(LogConfig::RETRY);
    host.settle();
    assert!(!host.log.is_full());
    assert_eq!(host.durable, Lsn(1), "what was appended is kept");
}

#[test]
fn what_waits_for_a_slow_disk_is_bounded() {
    let mut host = Host::new();
    let entry = vec![1; 1024 * 1024];
    let bound = Options::default().pending_bytes_max / entry.len();
    for _ in 0..bound {
        assert!(host.log.keeps_up());
        host.append(Durability::Async, &entry);
    }
    assert!(!host.log.keeps_up());
}

#[test]
fn a_snapshot_without_room_is_tried_again_later() {
    let mut host = Host::new();
    host.append(Durability::Sync, b"one");
    host.settle();
    let room = host.files.room();
    host.files.set_reserved(room);
    host.snapshot(&[&vec![2; 200 * 1024]]);
    let mut facts = LogFacts::default();
    host.log.snapshots.tell(host.now, &mut facts);
    assert!(facts.snapshot_failed && facts.snapshot_wanted && !facts.snapshot_under_way);
    assert_eq!(host.log.snapshots.next_deadline(), host.now.monotonic + LogConfig::SNAPSHOT_RETRY);
    let (_, entries) = host.restart();
    assert_eq!(entries, [b"one"]);
}

#[test]
fn a_snapshot_counts_when_the_logs_of_all_lanes_have_what_it_has_seen() {
    let mut host = Host::new();
    host.append(Durability::Sync, b"one");
    host.settle();
    for number in 1..=2 {
        let (start, now) = (host.log.log.appended(), host.now);
        host.log.snapshots.begin(now, start, &mut host.log.requests);
        host.log.snapshots.add(KEYSPACE, KIND, b"saved", &mut host.log.requests);
        host.log.end_snapshot([1, 2].map(LaneId).into());
        assert_eq!(host.log.snapshots.next_deadline(), Instant::ZERO, "others are to be asked");
        assert_eq!(host.log.snapshots.ask_lanes(), Some((number, vec![LaneId(1), LaneId(2)])));
        assert_eq!(host.log.snapshots.ask_lanes(), None);
        assert_eq!(host.log.snapshots.next_deadline(), Instant::NEVER);
        host.settle();
        host.log.lane_is_durable(LaneId(1), number);
        host.log.lane_is_durable(LaneId(1), number);
        host.log.lane_is_durable(LaneId(2), number - 1);
        host.settle();
        assert!(host.log.snapshots.is_saving(), "one lane has not said so of this snapshot");
        host.log.lane_is_durable(LaneId(2), number);
        host.settle();
        assert!(!host.log.snapshots.is_saving());
    }
    let (_, entries) = host.restart();
    assert_eq!(entries, [b"saved"]);
}

#[test]
fn a_failed_flush_ends_the_process() {
    let mut host = Host::new();
    host.append(Durability::Sync, b"one");
    host.log.tend(host.now);
    let DiskRequest { owner, ticket, .. } = host.log.requests.remove(0);
    let result = Err(DiskError::Flush);
    host.end(owner, quorate_durability::Completion { ticket, result, bytes: Vec::new() });
    let why = host.log.failed.expect("it has failed");
    assert!(why.contains("segment: it broke") && why.contains("start the node again"), "{why}");
}

#[test]
fn a_snapshot_goes_through_the_keyspaces() {
    let at = At { keyspace: KEYSPACE, point: SavePoint::START };
    let point = SavePoint { part: 1, at: [2, 3] };
    let on = at.followed_by(Some(point));
    assert_eq!((on.keyspace, on.point), (KEYSPACE, point));
    let next = on.followed_by(None);
    assert_eq!((next.keyspace, next.point), (KeyspaceId(4), SavePoint::START));
}
