//! What the log asks of the disk, request by request.

use quorate_durability::{Completion, DiskError, Log, Options, Request, Room};
use quorate_types::{KeyspaceId, Lsn};

use crate::host::{Host, Script, no_files, nothing_found, segment};
use crate::world::SMALL;

/// A log whose first segment is prepared.
fn prepared(options: Options) -> (Log, Script) {
    let mut log = Log::resume(nothing_found(&mut no_files()), options, 5);
    let mut disk = Script::default();
    log.write(&mut disk);
    loop {
        let (request, completion) = disk.done();
        log.complete(completion, &mut disk);
        if request == Request::FlushDirectory {
            assert!(disk.0.is_empty(), "nothing more is prepared: {:?}", disk.0);
            return (log, disk);
        }
    }
}

fn append(log: &mut Log, bytes: usize) -> Lsn {
    log.append(1, KeyspaceId(0), |out| out.resize(out.len() + bytes, 7))
}

#[test]
fn a_segment_is_made_of_zeros_before_its_header_and_its_name_are_durable() {
    let options = Options { segment_bytes: 3 << 20, ..SMALL };
    let mut log = Log::resume(nothing_found(&mut no_files()), options, 5);
    let mut disk = Script::default();
    log.write(&mut disk);
    let mut seen = Vec::new();
    while !disk.0.is_empty() {
        let (request, completion) = disk.done();
        seen.push(match request {
            Request::Create { .. } => "create".into(),
            Request::Zero { offset, bytes, flush, .. } => format!("zero {offset} {bytes} {flush}"),
            Request::Write { offset, bytes, flush, .. } => {
                format!("write {offset} {} {flush}", bytes.len())
            }
            other => format!("{other:?}"),
        });
        log.complete(completion, &mut disk);
    }
    let expected = [
        "create",
        "zero 0 1048576 false",
        "zero 1048576 1048576 false",
        "zero 2097152 1048576 true",
        "write 0 4096 true",
        "FlushDirectory",
    ];
    assert_eq!(seen, expected);
}

#[test]
fn what_comes_while_a_batch_is_under_way_is_the_next_one() {
    let (mut log, mut disk) = prepared(SMALL);
    assert_eq!(append(&mut log, 10), Lsn(1));
    assert_eq!(append(&mut log, 10), Lsn(2));
    log.write(&mut disk);
    append(&mut log, 10);
    append(&mut log, 10);
    log.write(&mut disk);
    assert_eq!(disk.0.len(), 1, "one batch is under way");
    let (request, completion) = disk.done();
    let Request::Write { file, offset, bytes, flush } = request else { panic!("{request:?}") };
    assert_eq!((file, offset, bytes.len(), flush), (segment(0), 4096, 4096, true));
    assert_eq!(log.complete(completion, &mut disk), Some(Lsn(2)));
    // The first batch is durable: the second, and the next segment.
    assert_eq!(disk.0.len(), 2);
    let (_, completion) = disk.done();
    log.complete(completion, &mut disk);
    while log.durable() < Lsn(4) {
        let (_, completion) = disk.done();
        log.complete(completion, &mut disk);
    }
}

#[test]
fn a_log_says_when_too_much_waits() {
    let (mut log, mut disk) = prepared(Options { pending_bytes_max: 10_000, ..SMALL });
    append(&mut log, 6000);
    log.write(&mut disk);
    assert_eq!(log.room(), Room::Open);
    append(&mut log, 4000);
    assert_eq!(log.room(), Room::Congested);
    while log.durable() < Lsn(2) {
        let (_, completion) = disk.done();
        log.complete(completion, &mut disk);
    }
    assert_eq!((log.room(), log.pending_bytes()), (Room::Open, 0));
}

#[test]
fn a_failed_flush_ends_the_log() {
    for error in [DiskError::Flush, DiskError::Io] {
        let (mut log, mut disk) = prepared(SMALL);
        append(&mut log, 10);
        log.write(&mut disk);
        let (_, completion) = disk.done();
        let failed = Completion { result: Err(error), ..completion };
        assert_eq!(log.complete(failed, &mut disk), None);
        log.write(&mut disk);
        log.retry(&mut disk);
        assert_eq!((log.room(), disk.0.len()), (Room::Dead, 0), "nothing is written any more");
    }
}

#[test]
fn a_batch_without_room_is_written_again_when_there_is_some() {
    let (mut log, mut disk) = prepared(SMALL);
    append(&mut log, 10);
    log.write(&mut disk);
    let (request, completion) = disk.done();
    log.complete(Completion { result: Err(DiskError::Full), ..completion }, &mut disk);
    assert_eq!(log.room(), Room::Full);
    append(&mut log, 10);
    log.retry(&mut disk);
    let (again, completion) = disk.done();
    assert_eq!(again, request);
    log.complete(Completion { result: Err(DiskError::Full), ..completion }, &mut disk);
    assert_eq!(log.room(), Room::Full);
    log.retry(&mut disk);
    assert_eq!(log.room(), Room::Full, "nobody knows yet");
    let (_, completion) = disk.done();
    assert_eq!(log.complete(completion, &mut disk), Some(Lsn(1)));
    // The next segment is part of what is tried.
    while !disk.0.is_empty() {
        assert_eq!(log.room(), Room::Full);
        let (_, completion) = disk.done();
        log.complete(completion, &mut disk);
    }
    assert_eq!(log.room(), Room::Open);
}

/// One segment is in reserve: the disk is full when no further one can be made.
#[test]
fn a_full_disk_is_said_while_there_is_still_a_segment_to_write_to() {
    let mut host = Host::new();
    host.batch(b"first");
    let room = host.files.room();
    host.files.set_reserved(room);
    let mut written = 1;
    while host.log.room() == Room::Open {
        written += 1;
        assert_eq!(host.batch(&[1; 3000]), Lsn(written));
    }
    assert_eq!(host.log.room(), Room::Full);
    host.log.retry(&mut host.files);
    assert_eq!(host.log.room(), Room::Full, "nobody knows yet");
    host.settle();
    assert_eq!(host.log.room(), Room::Full);
    let full_at = written;
    while host.batch(&[2; 3000]) == Lsn(written + 1) {
        written += 1;
    }
    assert!(written - full_at >= 6, "{} batches of the reserve", written - full_at);
    assert!(host.log.pending_bytes() > 3000, "the last one waits");
    host.files.set_reserved(0);
    host.log.retry(&mut host.files);
    assert_eq!(host.settle(), Lsn(written + 1));
    assert_eq!(host.log.room(), Room::Open);
    assert_eq!(host.entries().expect("a sound log").len() as u64, written + 1);
}

/// The most segments that are there while a snapshot follows the log.
fn most_segments(host: &mut Host) -> usize {
    let mut most = 0;
    for _ in 0..200 {
        let durable = host.batch(&[1; 3000]);
        host.log.recycle(Lsn(durable.0.saturating_sub(3)), &mut host.files);
        host.settle();
        most =
            most.max(quorate_durability::Directory::files(&mut host.files).expect("files").len());
    }
    most
}

#[test]
fn segments_below_a_snapshot_are_used_again_and_the_disk_does_not_grow() {
    let most = most_segments(&mut Host::new());
    assert!(most <= 6, "{most} segments");
}

#[test]
fn the_segment_that_a_log_goes_on_in_after_a_restart_is_used_again() {
    let mut host = Host::new();
    host.batch(b"one");
    host.batch(b"two");
    host.restart();
    assert_eq!(most_segments(&mut host), most_segments(&mut Host::new()));
}
