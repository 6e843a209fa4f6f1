//! Snapshots, step by step.

use quorate_disk::Files;
use quorate_durability::{
    DiskError, LogError, SnapshotEvent, SnapshotReader, SnapshotWriter, snapshots,
};
use quorate_types::{KeyspaceId, Lsn};

use crate::host::{Script, no_files};
use crate::world::ME;

fn begin(files: &mut Files, start: u64) -> SnapshotWriter {
    let listed = snapshots(files, ME).expect("sound headers");
    SnapshotWriter::begin(ME, Lsn(start), listed, start, files)
}

/// Does what is under way.
fn settle(writer: &mut SnapshotWriter, files: &mut Files) -> Option<SnapshotEvent> {
    let mut event = None;
    while !files.is_idle() {
        if let Some(completion) = files.step() {
            event = writer.complete(completion, files).or(event);
        }
    }
    event
}

fn add(writer: &mut SnapshotWriter, bytes: &[u8], files: &mut Files) {
    writer.add(4, KeyspaceId(1), |out| out.extend_from_slice(bytes), files);
}

/// A snapshot of these entries from `start` to `end`, all of which is durable.
fn whole(files: &mut Files, start: u64, entries: &[Vec<u8>]) -> Option<SnapshotEvent> {
    let mut writer = begin(files, start);
    for entry in entries {
        add(&mut writer, entry, files);
        settle(&mut writer, files);
    }
    writer.finish(Lsn(start + 5), files);
    writer.log_is_durable(Lsn(start + 5), files);
    settle(&mut writer, files)
}

fn entries_of(files: &mut Files, index: usize) -> Result<Vec<Vec<u8>>, LogError> {
    let (complete, _) = snapshots(files, ME).expect("sound headers");
    let mut reader = SnapshotReader::new(complete[index].clone());
    let mut entries = Vec::new();
    while let Some(entry) = reader.next(files)? {
        assert_eq!((entry.kind, entry.keyspace), (4, KeyspaceId(1)));
        entries.push(entry.bytes.to_vec());
    }
    Ok(entries)
}

fn some(lengths: &[usize]) -> Vec<Vec<u8>> {
    lengths.iter().enumerate().map(|(index, length)| vec![index as u8 + 1; *length]).collect()
}

#[test]
fn entries_of_any_length_come_back() {
    let mut files = no_files();
    let entries = some(&[0, 10, 300_000, 100_000, 100_000, 262_144 - 27, 1, 600_000]);
    let event = whole(&mut files, 7, &entries);
    assert_eq!(event, Some(SnapshotEvent::Durable { recyclable: Lsn::START }));
    let (complete, others) = snapshots(&mut files, ME).expect("sound headers");
    assert_eq!((complete.len(), others.len()), (1, 0));
    assert_eq!((complete[0].start, complete[0].end, complete[0].number), (Lsn(7), Lsn(12), 1));
    assert_eq!(entries_of(&mut files, 0), Ok(entries));
}

#[test]
fn an_empty_snapshot_is_one() {
    let mut files = no_files();
    whole(&mut files, 0, &[]);
    assert_eq!(entries_of(&mut files, 0), Ok(Vec::new()));
}

#[test]
fn two_are_kept_and_the_log_is_kept_for_both() {
    let mut files = no_files();
    for round in 0..5_u64 {
        let event = whole(&mut files, 10 * round, &some(&[10 + round as usize]));
        let recyclable = Lsn(10 * round.saturating_sub(1));
        assert_eq!(event, Some(SnapshotEvent::Durable { recyclable }));
        let (complete, others) = snapshots(&mut files, ME).expect("sound headers");
        assert_eq!((complete.len(), others.len()), (2.min(round as usize + 1), 0));
        assert_eq!(complete[0].start, Lsn(10 * round), "the newest comes first");
    }
}

/// What the snapshot has seen of the log must outlive a power cut before the snapshot does.
#[test]
fn a_snapshot_is_complete_only_when_the_log_is_durable_so_far() {
    let mut files = no_files();
    let mut writer = begin(&mut files, 3);
    add(&mut writer, b"sees entry 5", &mut files);
    writer.finish(Lsn(5), &mut files);
    assert_eq!(settle(&mut writer, &mut files), None);
    writer.log_is_durable(Lsn(4), &mut files);
    assert_eq!(settle(&mut writer, &mut files), None);
    assert!(snapshots(&mut files, ME).expect("sound headers").0.is_empty());
    writer.log_is_durable(Lsn(5), &mut files);
    assert!(settle(&mut writer, &mut files).is_some());
    assert_eq!(entries_of(&mut files, 0), Ok(vec![b"sees entry 5".to_vec()]));
}

#[test]
fn a_half_written_one_is_ignored_and_goes_when_the_next_is_durable() {
    let mut files = no_files();
    whole(&mut files, 1, &some(&[10]));
    let mut writer = begin(&mut files, 9);
    add(&mut writer, &[1; 300_000], &mut files);
    settle(&mut writer, &mut files);
    drop(writer);
    let (complete, others) = snapshots(&mut files, ME).expect("sound headers");
    assert_eq!((complete.len(), complete[0].start, others.len()), (1, Lsn(1), 1));
    whole(&mut files, 20, &some(&[10]));
    let (complete, others) = snapshots(&mut files, ME).expect("sound headers");
    assert_eq!((complete.len(), others.len()), (2, 0));
}

#[test]
fn rot_of_any_byte_is_noticed() {
    let mut files = no_files();
    let entries = some(&[10, 300_000, 20]);
    whole(&mut files, 1, &entries);
    let file = snapshots(&mut files, ME).expect("sound headers").0[0].file.clone();
    let content = files.content(&file);
    let last = content.len() - 4096;
    let places = (0..64).chain(4096..4150).chain((8192..last).step_by(997)).chain(last..last + 51);
    for at in places {
        files.damage(&file, at as u64, &[content[at] ^ 4]);
        match snapshots(&mut files, ME) {
            Ok((complete, others)) if complete.is_empty() => assert_eq!(others.len(), 1),
            Ok(_) => match entries_of(&mut files, 0) {
                // Padding.
                Ok(read) => assert_eq!((read == entries, content[at]), (true, 0), "byte {at}"),
                Err(LogError::Rot { file: named, .. }) => assert_eq!(named, file),
                Err(other) => panic!("{other:?}"),
            },
            Err(other) => panic!("{other:?}"),
        }
        files.damage(&file, at as u64, &[content[at]]);
    }
}

#[test]
fn a_full_disk_and_a_failing_one_are_told() {
    for (error, event) in [
        (DiskError::Full, SnapshotEvent::Full),
        (DiskError::Io, SnapshotEvent::Dead),
        (DiskError::Flush, SnapshotEvent::Dead),
    ] {
        let mut disk = Script::default();
        let mut writer = SnapshotWriter::begin(ME, Lsn(1), (Vec::new(), Vec::new()), 1, &mut disk);
        let (_, mut completion) = disk.done();
        completion.result = Err(error);
        assert_eq!(writer.complete(completion, &mut disk), Some(event));
        assert_eq!(disk.0.len(), usize::from(error == DiskError::Full), "its file is removed");
    }
}

#[test]
fn a_disk_that_does_not_keep_up_is_told_to_the_engine() {
    let mut disk = Script::default();
    let mut writer = SnapshotWriter::begin(ME, Lsn(1), (Vec::new(), Vec::new()), 1, &mut disk);
    let mut added = 0;
    while writer.takes_more() {
        writer.add(1, KeyspaceId(0), |out| out.extend_from_slice(&[1; 1000]), &mut disk);
        added += 1;
    }
    assert_eq!((added, disk.0.len()), (521, 1), "half a megabyte waits");
}
