//! What recovery finds, and what it refuses.

use quorate_durability::{Directory, FORMAT_VERSION, Identity, Log, LogError, Reader, Start};
use quorate_types::{Incarnation, LaneId, Lsn, NodeId};

use crate::host::{Host, no_files, nothing_found, place, read, segment};
use crate::world::{ME, SMALL};

/// A log over several segments: eight batches fill one.
fn long(batches: u64) -> Host {
    let mut host = Host::new();
    for number in 1..=batches {
        assert_eq!(host.batch(&number.to_le_bytes()), Lsn(number));
    }
    host
}

fn error(host: &mut Host) -> LogError {
    host.entries().expect_err("it is damaged")
}

fn flip(host: &mut Host, file: &str, at: u64) {
    let byte = host.files.content(file)[at as usize];
    host.files.damage(file, at, &[byte ^ 0x10]);
}

#[test]
fn an_empty_directory_is_an_empty_log() {
    assert_eq!(nothing_found(&mut no_files()).end(), Lsn::START);
}

#[test]
fn entries_of_any_length_come_back() {
    let mut host = Host::new();
    let lengths = [0, 1, 100, 8192 - 27, 8192 - 26, 0, 20_000, 8192 * 3 - 81, 5];
    let mut expected = Vec::new();
    for (turn, length) in lengths.iter().cycle().take(60).enumerate() {
        let bytes = vec![turn as u8; *length];
        expected.push((host.append(&bytes), bytes));
        if turn % 4 == 0 {
            host.settle();
        }
    }
    host.settle();
    assert_eq!(host.entries().expect("a sound log"), expected);
    host.restart();
    assert_eq!(host.entries().expect("a sound log"), expected);
    // And from the middle, behind a whole entry.
    let (from, _) = expected[40];
    let (entries, _) = read(&mut host.files, ME, Start::After(from)).expect("a sound log");
    assert_eq!(entries, expected[41..]);
}

#[test]
fn a_large_entry_whose_last_part_is_torn_is_none() {
    let mut host = Host::new();
    host.batch(b"whole");
    host.append(&[9; 20_000]);
    host.settle();
    assert_eq!(host.entries().expect("a sound log").len(), 2);
    // Two parts of 8 KiB, and a rest.
    host.files.damage(&segment(0), place(1) + 2 * 8192 + 30, &[1]);
    assert_eq!(host.entries().expect("a torn end").len(), 1);
    host.restart();
    let next = host.batch(b"next");
    let entries = host.entries().expect("a sound log");
    assert_eq!(entries[1], (next, b"next".to_vec()));
}

#[test]
fn rot_of_any_byte_is_reported_or_harmless() {
    let mut host = long(20);
    let sound = host.entries().expect("a sound log");
    let (mut reported, mut harmless, mut torn) = (0, 0, 0);
    for slot in 0..3 {
        let file = segment(slot);
        let used: Vec<u64> =
            (0..10).flat_map(|batch| (0..70).map(move |at| batch * 4096 + at)).collect();
        for at in used.into_iter().chain([4000, 4092, 4095]) {
            flip(&mut host, &file, at);
            match host.entries() {
                Ok(entries) if entries == sound => harmless += 1,
                Ok(entries) => {
                    assert_eq!(entries, sound[..19], "{file} at {at}");
                    torn += 1;
                }
                Err(error) => {
                    let text = error.to_string();
                    assert!(text.contains("lane-0001-0000000"), "{text}");
                    reported += 1;
                }
            }
            flip(&mut host, &file, at);
        }
    }
    // 19 batches of 35 bytes, three headers; the last batch; padding and what was never written.
    assert_eq!((reported, torn), (19 * 35 + 3 * 73, 35), "{harmless} harmless");
}

/// What one log can't tell of its last batch otherwise: whether it was torn, or has rotted.
#[test]
fn rot_of_any_byte_is_reported_or_harmless_once_the_last_batch_is_there_twice() {
    // The last batch and its copy, beside each other, on both sides of a border, and alone in a segment.
    for batches in [1, 7, 8, 9] {
        let mut host = long(batches);
        host.repeat_tail();
        let sound = host.entries().expect("a sound log");
        assert_eq!(sound.len(), batches as usize);
        for restarted in [false, true] {
            for slot in 0..4 {
                let file = segment(slot);
                if !host.has(&file) {
                    continue;
                }
                let each =
                    (0..10).flat_map(|at| (0..36).step_by(5).map(move |byte| at * 4096 + byte));
                for at in each {
                    flip(&mut host, &file, at);
                    if let Ok(entries) = host.entries() {
                        assert_eq!(entries, sound, "{batches}, {restarted}: {file} at {at}");
                    }
                    flip(&mut host, &file, at);
                }
            }
            host.restart();
            assert_eq!(host.entries().expect("a sound log"), sound);
        }
        // It goes on.
        let next = host.batch(b"next");
        let entries = host.entries().expect("a sound log");
        assert_eq!(entries.last(), Some(&(next, b"next".to_vec())));
    }
}

#[test]
fn the_last_batch_is_repeated_once_and_only_where_nothing_else_is_to_be_written() {
    let mut host = long(3);
    assert!(!host.log.is_closed());
    host.repeat_tail();
    assert!(host.log.is_closed());
    let there = host.log.bytes_on_disk();
    host.repeat_tail();
    assert_eq!(host.log.bytes_on_disk(), there, "it is there twice");
    host.append(b"waits");
    host.log.repeat_tail(&mut host.files);
    host.settle();
    assert_eq!(host.log.bytes_on_disk(), there + 4096);
    assert_eq!(host.entries().expect("a sound log").len(), 4);
}

#[test]
fn rot_says_which_places_are_missing() {
    let mut host = long(20);
    for batch in [3, 4] {
        flip(&mut host, &segment(0), place(batch) + 30);
    }
    let (file, offset) = (segment(0), place(3));
    assert_eq!(error(&mut host), LogError::Rot { file, offset, first: Lsn(4), last: Lsn(5) });
    let text = error(&mut host).to_string();
    assert!(text.starts_with("lane-0001-00000000.segment, offset 16384: entries 4 to 5"), "{text}");
    // A tool reads on.
    let mut reader = Reader::open(&mut host.files, ME, Start::Oldest).expect("sound headers");
    let (mut entries, mut errors) = (0, 0);
    loop {
        match reader.next(&mut host.files) {
            Ok(Some(_)) => entries += 1,
            Ok(None) => break,
            Err(_) => errors += 1,
        }
    }
    assert_eq!((entries, errors), (18, 1));
    let refused = reader.finish(&mut host.files, Lsn::START);
    refused.expect_err("a log with a hole is not gone on with");
}

#[test]
fn rot_below_what_is_needed_is_harmless() {
    let mut host = long(12);
    let from = Start::After(Lsn(3));
    flip(&mut host, &segment(0), place(0) + 30);
    assert_eq!(read(&mut host.files, ME, from).expect("all that is needed").0.len(), 9);
    for batch in 1..6 {
        flip(&mut host, &segment(0), place(batch) + 30);
    }
    let rot = read(&mut host.files, ME, from).expect_err("4 to 6 are needed");
    let (file, offset) = (segment(0), place(0));
    assert_eq!(rot, LogError::Rot { file, offset, first: Lsn(4), last: Lsn(6) });
    // Nothing that is left says where the log ended; what the caller needs does.
    let mut host = long(1);
    flip(&mut host, &segment(0), place(0) + 30);
    host.files.delete(&segment(1));
    let short = read(&mut host.files, ME, from).expect_err("it was longer");
    assert_eq!(short, LogError::Ends { at: Lsn::START, needed: Lsn(3) });
}

/// Found by fuzzing: a log in a segment that nothing was known to have begun waited for ever for the
/// next one.
#[test]
fn a_last_batch_behind_rot_that_nobody_needs_is_gone_on_with() {
    let mut host = long(7);
    for batch in 0..6 {
        flip(&mut host, &segment(0), place(batch) + 30);
    }
    let (entries, found) = read(&mut host.files, ME, Start::After(Lsn(6))).expect("7 is there");
    assert_eq!(entries.len(), 1);
    host.log = Log::resume(found, SMALL, 12);
    assert_eq!(host.settle(), Lsn(7));
    for number in 8..=14 {
        assert_eq!(host.batch(b"next"), Lsn(number));
        let (entries, _) = read(&mut host.files, ME, Start::After(Lsn(6))).expect("a sound log");
        assert_eq!(entries.len() as u64, number - 6);
    }
}

#[test]
fn the_end_of_a_segment_that_rots_is_missed_by_the_next() {
    let mut host = long(12);
    flip(&mut host, &segment(0), place(7) + 30);
    let (file, offset) = (segment(0), place(7));
    assert_eq!(error(&mut host), LogError::Rot { file, offset, first: Lsn(8), last: Lsn(8) });
}

/// A segment is prepared only when the one before it holds a durable batch.
#[test]
fn a_segment_that_has_a_successor_was_not_empty() {
    let mut host = long(1);
    flip(&mut host, &segment(0), place(0) + 30);
    let (file, offset) = (segment(0), place(0));
    assert_eq!(error(&mut host), LogError::Rot { file, offset, first: Lsn(1), last: Lsn(1) });
}

/// The header of the next segment says what was durable when it was prepared.
#[test]
fn a_header_remembers_what_was_durable() {
    let mut host = Host::new();
    host.settle();
    let room = host.files.room();
    host.files.set_reserved(room);
    for number in 1..=3_u64 {
        assert_eq!(host.batch(&number.to_le_bytes()), Lsn(number));
    }
    host.files.set_reserved(0);
    host.log.retry(&mut host.files);
    host.settle();
    assert_eq!(host.entries().expect("a sound log").len(), 3);
    for batch in [1, 2] {
        flip(&mut host, &segment(0), place(batch) + 30);
    }
    let (file, offset) = (segment(0), place(1));
    assert_eq!(error(&mut host), LogError::Rot { file, offset, first: Lsn(2), last: Lsn(3) });
}

#[test]
fn a_batch_that_was_written_again_stands_for_the_first() {
    let mut host = long(4);
    host.restart();
    host.batch(&5_u64.to_le_bytes());
    let sound = host.entries().expect("a sound log");
    for batch in [3, 4] {
        flip(&mut host, &segment(0), place(batch) + 30);
        assert_eq!(host.entries().expect("the other is there"), sound);
        flip(&mut host, &segment(0), place(batch) + 30);
    }
    assert_eq!(sound.len(), 5);
}

#[test]
fn a_batch_in_another_place_is_not_believed() {
    let mut host = long(4);
    let batch = host.files.content(&segment(0))[place(3) as usize..place(4) as usize].to_vec();
    flip(&mut host, &segment(0), place(3) + 30);
    host.files.damage(&segment(0), place(5), &batch);
    assert_eq!(host.entries().expect("a torn end").len(), 3);
}

#[test]
fn what_an_earlier_use_of_a_segment_has_left_is_not_believed() {
    let mut host = Host::new();
    let mut durable = Lsn::START;
    for _ in 0..60 {
        durable = host.batch(&[1; 100]);
        host.log.recycle(Lsn(durable.0 - 1), &mut host.files);
        host.settle();
    }
    let from = Lsn(durable.0 - 1);
    let (entries, found) = read(&mut host.files, ME, Start::After(from)).expect("a sound log");
    assert_eq!((entries.len(), found.end()), (1, durable));
}

// --- whole files -------------------------------------------------------------------------------

#[test]
fn a_missing_segment_is_named() {
    for (slot, number) in [(1, 2), (2, 3)] {
        let mut host = long(20);
        host.files.delete(&segment(slot));
        let found = error(&mut host);
        let named = match (&found, slot) {
            (LogError::Missing { number: missing }, _) => *missing == number,
            (LogError::Begins { at, needed }, 1) => (*at, *needed) == (Lsn(16), Lsn::START),
            _ => false,
        };
        assert!(named, "{found:?}");
    }
    let mut host = long(20);
    host.files.delete(&segment(0));
    assert_eq!(error(&mut host), LogError::Begins { at: Lsn(8), needed: Lsn::START });
    // What a snapshot holds is not missed.
    let from = Start::After(Lsn(9));
    assert_eq!(read(&mut host.files, ME, from).expect("all that is needed").0.len(), 11);
    for slot in 1..4 {
        host.files.delete(&segment(slot));
    }
    let all_gone = read(&mut host.files, ME, from).expect_err("nothing is there");
    assert_eq!(all_gone, LogError::Ends { at: Lsn::START, needed: Lsn(9) });
}

#[test]
fn a_prepared_segment_alone_is_not_an_empty_log() {
    let mut host = long(3);
    host.files.delete(&segment(0));
    assert_eq!(error(&mut host), LogError::Missing { number: 1 });
}

#[test]
fn a_sealed_segment_has_a_successor() {
    let mut host = long(8);
    host.files.delete(&segment(1));
    assert_eq!(error(&mut host), LogError::Missing { number: 2 });
    let mut host = long(7);
    host.files.delete(&segment(1));
    assert_eq!(host.entries().expect("it was not needed yet").len(), 7);
}

#[test]
fn damaged_headers_are_an_error_unless_the_segment_was_being_prepared() {
    let mut host = long(12);
    // Segment 3 is prepared and holds nothing, so nothing is being prepared.
    flip(&mut host, &segment(1), 20);
    assert_eq!(error(&mut host), LogError::Header { file: segment(1) });
    flip(&mut host, &segment(1), 20);
    flip(&mut host, &segment(2), 20);
    assert_eq!(host.entries().expect("it was being prepared").len(), 12);
    flip(&mut host, &segment(0), 20);
    assert_eq!(error(&mut host), LogError::Header { file: segment(2) });
    let mut host = Host::new();
    host.batch(b"one");
    host.files.delete(&segment(1));
    flip(&mut host, &segment(0), 20);
    assert_eq!(error(&mut host), LogError::Header { file: segment(0) });
}

#[test]
fn files_of_others_are_refused() {
    let mut host = long(2);
    let others = [Identity { cluster: Incarnation(7), ..ME }, Identity { node: NodeId(9), ..ME }];
    for other in others {
        let refused = read(&mut host.files, other, Start::Oldest).expect_err("another's");
        let file = segment(0);
        assert_eq!(refused, LogError::Foreign { file, found: ME, expected: other });
    }
    let lane = Identity { lane: LaneId(2), ..ME };
    assert!(read(&mut host.files, lane, Start::Oldest).expect("no files").0.is_empty());
    let content = host.files.content(&segment(0));
    host.files.put("lane-0002-00000000.segment", &content);
    let refused = read(&mut host.files, lane, Start::Oldest).expect_err("another lane's");
    assert!(refused.to_string().contains("lane 1 of node 2"), "{refused}");
}

#[test]
fn a_newer_version_is_named() {
    let mut host = long(2);
    let mut header = host.files.content(&segment(0))[..4096].to_vec();
    header[8..10].copy_from_slice(&(FORMAT_VERSION + 1).to_le_bytes());
    let sum = crc32c::crc32c(&header[..4092]);
    header[4092..].copy_from_slice(&sum.to_le_bytes());
    host.files.damage(&segment(0), 0, &header);
    let newer = LogError::Newer { file: segment(0), version: FORMAT_VERSION + 1 };
    assert_eq!(error(&mut host), newer);
}

#[test]
fn a_file_that_is_too_short_or_there_twice_is_named() {
    let mut host = long(2);
    let content = host.files.content(&segment(0));
    host.files.put("lane-0001-00000009.segment", &content);
    let twice = error(&mut host);
    assert!(matches!(twice, LogError::Duplicate { number: 1, .. }), "{twice:?}");
    host.files.delete("lane-0001-00000009.segment");
    host.files.put(&segment(0), &content[..8192]);
    let (file, expected) = (segment(0), content.len() as u64);
    assert_eq!(error(&mut host), LogError::Truncated { file, bytes: 8192, expected });
}

#[test]
fn the_caller_may_know_that_more_was_durable() {
    let mut host = long(3);
    let mut reader = Reader::open(&mut host.files, ME, Start::After(Lsn::START)).expect("sound");
    while reader.next(&mut host.files).expect("sound").is_some() {}
    let short = reader.finish(&mut host.files, Lsn(4)).expect_err("it ends at 3");
    assert_eq!(short, LogError::Ends { at: Lsn(3), needed: Lsn(4) });
}

#[test]
fn restarts_alone_do_not_fill_segments() {
    for entries in [1, 5] {
        let mut host = long(entries);
        for _ in 0..100 {
            host.restart();
            assert_eq!(host.log.durable(), Lsn(entries));
        }
        let entries = host.entries().expect("a sound log").len() as u64;
        assert_eq!(entries, host.log.appended().0);
        host.files.files().expect("it can be listed");
    }
}
