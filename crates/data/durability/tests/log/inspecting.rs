//! What a person is told about files.

use quorate_durability::{LogError, SnapshotWriter, VoterFile, inspect};
use quorate_types::{KeyspaceId, LaneId, Lsn};

use crate::host::{Host, place, segment};
use crate::world::ME;

/// A directory with a log, a snapshot and a voter's file.
fn directory() -> Host {
    let mut host = Host::new();
    for number in 1..=12_u64 {
        host.batch(&number.to_le_bytes());
    }
    let files = &mut host.files;
    let mut writer = SnapshotWriter::begin(ME, Lsn(4), (Vec::new(), Vec::new()), 3, files);
    writer.add(4, KeyspaceId(1), |out| out.extend_from_slice(b"k v"), files);
    writer.finish(Lsn(6), files);
    writer.log_is_durable(Lsn(12), files);
    while !files.is_idle() {
        if let Some(completion) = files.step() {
            writer.complete(completion, files);
        }
    }
    let me = quorate_durability::Identity { lane: LaneId(0), ..ME };
    let (mut voter, _) = VoterFile::load(files, me).expect("no file");
    voter.save(b"promise", files);
    while !files.is_idle() {
        if let Some(completion) = files.step() {
            voter.complete(completion, files);
        }
    }
    host
}

fn verified(host: &mut Host) -> (u64, Vec<String>) {
    let mut lines = Vec::new();
    let damaged = inspect::verify(&mut host.files, &mut |line| lines.push(line));
    (damaged.expect("it can be listed"), lines)
}

#[test]
fn files_are_listed() {
    let mut lines = Vec::new();
    let untold = inspect::list(&mut directory().files, &mut |line| lines.push(line));
    assert_eq!(untold, Ok(0));
    let expected = [
        "lane-0001-00000000.segment: segment 1 of lane 1 of node 2 of cluster 00000000000000c1, \
         40960 bytes, prepared when entry 0 was durable",
        "lane-0001-00000000.snapshot: snapshot 1 of lane 1 of node 2 of cluster 00000000000000c1, \
         12288 bytes, replayed from entry 4",
        "lane-0001-00000001.segment: segment 2 of lane 1 of node 2 of cluster 00000000000000c1, \
         40960 bytes, prepared when entry 1 was durable",
        "lane-0001-00000002.segment: segment 3 of lane 1 of node 2 of cluster 00000000000000c1, \
         40960 bytes, prepared when entry 9 was durable",
        "voter: what the node has promised as a voter, 131072 bytes",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn a_segment_is_shown_batch_by_batch() {
    let mut host = Host::new();
    host.append(b"one");
    host.append(b"two");
    host.settle();
    host.append(&[7; 9000]);
    host.settle();
    host.batch(b"last");
    host.files.damage(&segment(0), place(1) + 40, &[1]);
    let mut lines = Vec::new();
    let damaged = inspect::show(&mut host.files, &segment(0), &mut |line| lines.push(line));
    assert_eq!(damaged, Ok(1));
    let expected = [
        "  offset 4096: entries 1 to 2, 40 bytes",
        "    1: kind 7, keyspace 3, 3 bytes",
        "    2: kind 7, keyspace 3, 3 bytes",
        "  offset 8192: damaged up to offset 16384",
        "  offset 16384: entries 4 to 4, 862 bytes",
        "    4: kind 7, keyspace 3, 835 bytes, goes on from the one before",
        "  offset 20480: entries 5 to 5, 31 bytes",
        "    5: kind 7, keyspace 3, 4 bytes",
        "  offset 24576: nothing sound from here on",
    ];
    assert_eq!(lines[1..], expected);
    let unknown = inspect::show(&mut host.files, &segment(7), &mut |_| {});
    assert_eq!(unknown, Err(LogError::Header { file: segment(7) }));
}

#[test]
fn a_sound_directory_is_called_so() {
    let mut host = directory();
    let expected = [
        "lane-0001-00000000.snapshot: sound, 1 entries, replayed from 4",
        "lane 1 of node 2 of cluster 00000000000000c1: sound, 8 entries behind 4, to 12",
        "voter: sound, a state of 7 bytes",
    ];
    assert_eq!(verified(&mut host), (0, expected.map(str::to_owned).to_vec()));
}

#[test]
fn damage_is_named_with_its_file_and_offset() {
    let mut host = directory();
    host.files.damage(&segment(0), place(6) + 30, &[0xee]);
    host.files.damage("voter", 45, &[0xee]);
    host.files.damage("voter", 65_581, &[0xee]);
    let (damaged, lines) = verified(&mut host);
    assert_eq!(damaged, 2);
    assert!(lines[1].starts_with("lane-0001-00000000.segment, offset 28672: entries 7 to 7"));
    assert!(lines[2].starts_with("voter: neither copy"), "{lines:?}");
    // Without the snapshot the log is needed from its start, and is there.
    host.files.damage("lane-0001-00000000.snapshot", 4096 + 28, &[0xee]);
    let (damaged, lines) = verified(&mut host);
    assert_eq!(damaged, 3);
    assert!(lines[0].starts_with("lane-0001-00000000.snapshot, offset 4096"), "{lines:?}");
}
