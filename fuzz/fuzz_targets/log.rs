//! The files of a node's directory as nobody wrote them: segments and snapshots whose checksums are
//! right, so that the reader gets to what is behind them, and damage.
//!
//! Nothing may panic, and no length may be believed. A log that is read to its end is gone on with,
//! and then holds what was read and what was appended.
#![no_main]

use std::collections::{BTreeMap, VecDeque};

use libfuzzer_sys::fuzz_target;
use quorate_durability::{
    Completion, Directory, Disk, DiskError, FileEntry, Found, Identity, Log, LogError, Name,
    Options, Reader, Request, SnapshotReader, Start, Ticket, VOTER_FILE, VoterFile, snapshots,
};
use quorate_types::{Incarnation, KeyspaceId, LaneId, Lsn, NodeId};

const ME: Identity = Identity { cluster: Incarnation(1), node: NodeId(1), lane: LaneId(0) };
const SALT: u64 = 0x5a17;
const HEADER: usize = 4096;

/// A directory in memory, which does everything at once.
#[derive(Default)]
struct Memory {
    files: BTreeMap<Name, Vec<u8>>,
    done: VecDeque<Completion>,
}

impl Directory for Memory {
    fn files(&mut self) -> Result<Vec<FileEntry>, DiskError> {
        let entry = |(name, bytes): (&Name, &Vec<u8>)| FileEntry {
            name: name.clone(),
            bytes: bytes.len() as u64,
        };
        Ok(self.files.iter().map(entry).collect())
    }

    fn read(&mut self, file: &str, offset: u64, into: &mut [u8]) -> Result<(), DiskError> {
        let bytes = self.files.get(file).ok_or(DiskError::Io)?;
        let from = bytes.get(offset as usize..).ok_or(DiskError::Io)?;
        into.copy_from_slice(from.get(..into.len()).ok_or(DiskError::Io)?);
        Ok(())
    }
}

impl Disk for Memory {
    fn submit(&mut self, ticket: Ticket, request: Request) {
        let mut written = Vec::new();
        match request {
            Request::Create { file } => _ = self.files.insert(file, Vec::new()),
            Request::Zero { file, offset, bytes, .. } => {
                self.put(&file, offset as usize, &vec![0; bytes as usize]);
            }
            Request::Write { file, offset, bytes, .. } => {
                self.put(&file, offset as usize, &bytes);
                written = bytes;
            }
            Request::Remove { file } => _ = self.files.remove(&file),
            Request::FlushDirectory => {}
        }
        self.done.push_back(Completion { ticket, result: Ok(()), bytes: written });
    }
}

impl Memory {
    fn put(&mut self, file: &Name, offset: usize, bytes: &[u8]) {
        let content = self.files.entry(file.clone()).or_default();
        content.resize(content.len().max(offset + bytes.len()), 0);
        content[offset..offset + bytes.len()].copy_from_slice(bytes);
    }
}

/// The input, byte by byte.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    fn bytes(&mut self, length: usize) -> &[u8] {
        let (bytes, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        bytes
    }
}

fn header(input: &mut Input<'_>, kind: u8, blocks: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(b"quorate\n");
    bytes.extend_from_slice(&[1, 0, kind, 0, 1, 0, 0, 0]);
    bytes.extend_from_slice(&1_u64.to_le_bytes());
    bytes.extend_from_slice(&u64::from(input.byte() % 8).to_le_bytes());
    bytes.extend_from_slice(&u64::from(input.byte() % 32).to_le_bytes());
    bytes.extend_from_slice(&SALT.to_le_bytes());
    let length = if kind == 1 { (HEADER + blocks * 4096) as u64 } else { 0 };
    bytes.extend_from_slice(&length.to_le_bytes());
    let align = 1_u32 << (input.byte() % 14);
    bytes.extend_from_slice(&4096_u32.to_le_bytes());
    bytes.extend_from_slice(&align.to_le_bytes());
    bytes.resize(HEADER, 0);
    // A field that nobody would write.
    if input.byte() > 200 {
        let (at, value) = (usize::from(input.byte() % 64), input.byte());
        bytes[at] = value;
    }
    let sum = crc32c::crc32c(&bytes[..HEADER - 4]);
    bytes[HEADER - 4..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn batch(input: &mut Input<'_>, offset: usize, kind: u8) -> Vec<u8> {
    let (after, count) = (input.byte(), input.byte());
    let mut body = Vec::new();
    for _ in 0..count % 4 {
        let (length, flags) = (usize::from(input.byte()), input.byte() % 4);
        let content = input.bytes(length);
        body.extend_from_slice(&(content.len() as u32).to_le_bytes());
        body.extend_from_slice(&[flags, kind, 0]);
        body.extend_from_slice(content);
    }
    // Entries that nobody would write.
    let odd = usize::from(input.byte()).saturating_sub(200);
    body.extend_from_slice(input.bytes(odd));
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&u32::from(count % 4 + count / 250).to_le_bytes());
    bytes.extend_from_slice(&u64::from(after % 32).to_le_bytes());
    let place = [SALT.to_le_bytes(), (offset as u64).to_le_bytes(), [0; 8]].concat();
    let sum = crc32c::crc32c_append(crc32c::crc32c(&place[..16]), &bytes);
    bytes.extend_from_slice(&crc32c::crc32c_append(sum, &body).to_le_bytes());
    bytes.extend_from_slice(&body);
    bytes
}

fn directory(input: &mut Input<'_>) -> Memory {
    let mut memory = Memory::default();
    let mut last: Option<(Name, usize)> = None;
    while !input.0.is_empty() {
        match input.byte() % 8 {
            kind @ (0 | 1) => {
                let slot = input.byte() % 4;
                let blocks = 3 + usize::from(input.byte() % 3);
                let of = if kind == 0 { "segment" } else { "snapshot" };
                let name: Name = format!("lane-0000-{slot:08}.{of}").into();
                let head = header(input, kind + 1, blocks);
                let mut bytes = head;
                if kind == 0 {
                    bytes.resize(HEADER + blocks * 4096, 0);
                }
                memory.files.insert(name.clone(), bytes);
                last = Some((name, HEADER));
            }
            2..=4 => {
                let Some((name, offset)) = &mut last else { continue };
                let kind = if input.byte() == 255 { 240 } else { 1 };
                let bytes = batch(input, *offset, kind);
                let align = if input.byte() < 128 { 1 } else { 4096 };
                let is_snapshot = name.ends_with("snapshot");
                let room = memory.files[name].len();
                if is_snapshot || *offset + bytes.len() <= room {
                    memory.put(&name.clone(), *offset, &bytes);
                    let next = (*offset + bytes.len()).next_multiple_of(align);
                    if is_snapshot {
                        memory.put(&name.clone(), next - 1, &[0]);
                    }
                    *offset = next;
                }
            }
            5 => {
                let at = usize::from(input.byte()) * 256 + usize::from(input.byte());
                let value = input.byte();
                let Some((name, _)) = &last else { continue };
                let content = memory.files.get_mut(name).expect("it was made");
                if let Some(byte) = content.get_mut(at) {
                    *byte ^= value;
                }
            }
            6 => {
                let blocks = usize::from(input.byte() % 8);
                let Some((name, _)) = &last else { continue };
                memory.files.get_mut(name).expect("it was made").truncate(blocks * 2048);
            }
            _ => {
                let length = usize::from(input.byte());
                let content = input.bytes(length).to_vec();
                memory.files.insert(VOTER_FILE.into(), vec![0; 128 * 1024]);
                memory.put(&VOTER_FILE.into(), 65_536 * (length % 2), &content);
            }
        }
    }
    memory
}

type Entries = Vec<(Lsn, u8, Vec<u8>)>;

fn read(memory: &mut Memory, start: Start) -> Result<(Entries, Found), LogError> {
    let mut reader = Reader::open(memory, ME, start)?;
    let mut entries = Vec::new();
    let mut damaged = None;
    // A tool reads on; that has an end, too.
    for _ in 0..10_000 {
        match reader.next(memory) {
            Ok(Some((place, entry))) => entries.push((place, entry.kind, entry.bytes.to_vec())),
            Ok(None) => {
                if let Some(error) = damaged {
                    return Err(error);
                }
                return Ok((entries, reader.finish(memory, Lsn::START)?));
            }
            Err(error) => {
                assert!(error.to_string().len() > 20, "an error says what to do");
                damaged = Some(error);
            }
        }
    }
    panic!("the reader does not come to an end");
}

fuzz_target!(|data: &[u8]| {
    let mut memory = directory(&mut Input(data));
    _ = VoterFile::load(&mut memory, ME);
    if let Ok((complete, _)) = snapshots(&mut memory, ME) {
        for found in complete {
            let mut reader = SnapshotReader::new(found);
            while let Ok(Some(_)) = reader.next(&mut memory) {}
        }
    }
    _ = read(&mut memory, Start::Oldest);
    let start = Start::After(Lsn(u64::from(data.first().copied().unwrap_or(0) % 4)));
    let Ok((mut entries, found)) = read(&mut memory, start) else { return };
    let options = Options {
        segment_bytes: 16_384,
        batch_bytes_max: 4096,
        pending_bytes_max: 1 << 20,
        spare_segments: 1,
    };
    let mut log = Log::resume(found, options, 1);
    for _ in 0..3 {
        let place = log.append(2, KeyspaceId(0), |out| out.extend_from_slice(b"appended"));
        entries.push((place, 2, b"appended".to_vec()));
        log.write(&mut memory);
        while let Some(completion) = memory.done.pop_front() {
            log.complete(completion, &mut memory);
        }
        assert_eq!(log.durable(), place);
    }
    let again = read(&mut memory, start);
    let (again, _) = again.unwrap_or_else(|error| {
        let mut lines = Vec::new();
        for file in memory.files.keys().cloned().collect::<Vec<_>>() {
            _ = quorate_durability::inspect::show(&mut memory, &file, &mut |line| lines.push(line));
        }
        panic!("what was gone on with is sound: {error}: {lines:#?}")
    });
    assert_eq!(again, entries);
});
