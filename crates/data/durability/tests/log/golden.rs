//! The bytes of every file. A change of them is a new version of the format.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use quorate_disk::Files;
use quorate_durability::{
    Log, SnapshotReader, SnapshotWriter, Start, VOTER_FILE, VoterFile, snapshots,
};
use quorate_types::{KeyspaceId, LaneId, Lsn};

use crate::host::{no_files, nothing_found, read, segment};
use crate::world::{ME, SMALL};

const SNAPSHOT: &str = "lane-0001-00000000.snapshot";

/// What a file holds, without the lines that are zero.
fn dump(bytes: &[u8]) -> String {
    let mut text = format!("bytes {}\n", bytes.len());
    for (index, line) in bytes.chunks(16).enumerate() {
        if line.iter().any(|byte| *byte != 0) {
            write!(text, "{:06x}", index * 16).expect("text takes all");
            line.iter().for_each(|byte| write!(text, " {byte:02x}").expect("text takes all"));
            text.push('\n');
        }
    }
    text
}

fn undump(text: &str) -> Vec<u8> {
    let mut lines = text.lines();
    let length = lines.next().and_then(|line| line.strip_prefix("bytes ")).expect("a length");
    let mut bytes = vec![0; length.parse().expect("a number")];
    for line in lines {
        let (at, rest) = line.split_once(' ').expect("a place and bytes");
        let at = usize::from_str_radix(at, 16).expect("a place");
        for (index, byte) in rest.split(' ').enumerate() {
            bytes[at + index] = u8::from_str_radix(byte, 16).expect("a byte");
        }
    }
    bytes
}

/// Compares with the golden file and returns it, or writes it if `QUORATE_WRITE_GOLDEN` is set.
fn golden(name: &str, bytes: &[u8]) -> Vec<u8> {
    let path =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{name}.hex"));
    let text = dump(bytes);
    if std::env::var_os("QUORATE_WRITE_GOLDEN").is_some() {
        fs::write(&path, &text).expect("the file can be written");
    }
    let kept = fs::read_to_string(&path).expect("a golden file");
    assert_eq!(text, kept, "{name}: the format has changed");
    undump(&kept)
}

fn segment_entries() -> Vec<Vec<u8>> {
    vec![b"SET k v".to_vec(), Vec::new(), b"another batch".to_vec(), vec![0xab; 8200]]
}

#[test]
fn a_segment_has_these_bytes() {
    let mut files = no_files();
    let mut log = Log::resume(nothing_found(&mut files), SMALL, 2026);
    for (index, entry) in segment_entries().iter().enumerate() {
        log.append(7, KeyspaceId(3), |out| out.extend_from_slice(entry));
        if index > 0 {
            log.write(&mut files);
            while !files.is_idle() {
                if let Some(completion) = files.step() {
                    log.complete(completion, &mut files);
                }
            }
        }
    }
    let bytes = golden("segment", &files.content(&segment(0)));
    let next = golden("segment_prepared", &files.content(&segment(1)));
    let mut files = no_files();
    files.put(&segment(0), &bytes);
    files.put(&segment(1), &next);
    let (entries, found) =
        read(&mut files, ME, Start::After(Lsn::START)).expect("the golden files are sound");
    let entries: Vec<Vec<u8>> = entries.into_iter().map(|(_, entry)| entry).collect();
    assert_eq!((entries, found.end()), (segment_entries(), Lsn(5)));
}

#[test]
fn a_snapshot_has_these_bytes() {
    let mut files = no_files();
    let listed = (Vec::new(), Vec::new());
    let mut writer = SnapshotWriter::begin(ME, Lsn(17), listed, 2026, &mut files);
    writer.add(4, KeyspaceId(1), |out| out.extend_from_slice(b"k v"), &mut files);
    writer.add(4, KeyspaceId(2), |out| out.extend_from_slice(b"l w"), &mut files);
    writer.finish(Lsn(20), &mut files);
    writer.log_is_durable(Lsn(20), &mut files);
    while !files.is_idle() {
        if let Some(completion) = files.step() {
            writer.complete(completion, &mut files);
        }
    }
    let bytes = golden("snapshot", &files.content(SNAPSHOT));
    let mut files: Files = no_files();
    files.put(SNAPSHOT, &bytes);
    let (complete, _) = snapshots(&mut files, ME).expect("the golden file is sound");
    assert_eq!((complete[0].start, complete[0].end, complete[0].number), (Lsn(17), Lsn(20), 1));
    let mut reader = SnapshotReader::new(complete[0].clone());
    let mut entries = Vec::new();
    while let Some(entry) = reader.next(&mut files).expect("the golden file is sound") {
        entries.push((entry.kind, entry.keyspace, entry.bytes.to_vec()));
    }
    let expected = [(4, KeyspaceId(1), b"k v".to_vec()), (4, KeyspaceId(2), b"l w".to_vec())];
    assert_eq!(entries, expected);
}

#[test]
fn a_voters_file_has_these_bytes() {
    let me = quorate_durability::Identity { lane: LaneId(0), ..ME };
    let mut files = no_files();
    let (mut voter, _) = VoterFile::load(&mut files, me).expect("no file");
    voter.save(b"promised ballot 9", &mut files);
    while !files.is_idle() {
        if let Some(completion) = files.step() {
            voter.complete(completion, &mut files);
        }
    }
    let bytes = golden("voter", &files.content(VOTER_FILE));
    let mut files = no_files();
    files.put(VOTER_FILE, &bytes);
    let (_, state) = VoterFile::load(&mut files, me).expect("the golden file is sound");
    assert_eq!(state.as_deref(), Some(&b"promised ballot 9"[..]));
}
