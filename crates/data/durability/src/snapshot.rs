//! Snapshots: what an engine holds, written in bounded steps while the log goes on.
//!
//! A snapshot is *fuzzy*: each of its entries was taken at a moment of its own. It names the place
//! of the log at which it **started**; replay from there on brings everything to one moment, since
//! entries of the log are absolute (pitfall L6). Its final record is written only when the log is
//! durable as far as the last entry has seen it: otherwise a snapshot could hold what the next power
//! cut takes out of the log. A file without a final record is no snapshot.

use quorate_machine::{Rng, mutant};
use quorate_types::{KeyspaceId, Lsn};

use crate::format::{
    self, ALIGN, Entry, FileKind, HEAD_BYTES, HEADER_BYTES, Header, HeaderError, Identity,
    KIND_COMPLETE, KIND_MAX, put_part_head, take_part, u64_at,
};
use crate::frames::{Source, Window, read_header};
use crate::gather::Gather;
use crate::names::{self, SNAPSHOT};
use crate::parts::Parts;
use crate::{Completion, Directory, Disk, DiskError, LogError, Name, Request, Ticket};

/// Most bytes of a batch.
const BATCH_BYTES: u32 = 256 * 1024;
/// How many bytes may wait for the disk.
const PENDING_BYTES: usize = 2 * BATCH_BYTES as usize;
/// Bytes of the batch with the final record: one sector.
const FINAL_BYTES: u64 = ALIGN as u64;

/// A complete snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotFound {
    /// Its file.
    pub file: Name,
    /// Snapshots of a lane are counted.
    pub number: u64,
    /// The place of the log behind which replay begins.
    pub start: Lsn,
    /// The place of the log that its last entry has seen: the log ends there or later.
    pub end: Lsn,
    source: Source,
    /// Where the final record is, and how many parts come before it.
    final_offset: u64,
    parts: Lsn,
}

/// Lists the complete snapshots of a lane, the newest first, and the files of those that are not,
/// which may be removed.
///
/// # Errors
/// If one belongs to somebody else or a newer program.
pub fn snapshots(
    directory: &mut impl Directory,
    identity: Identity,
) -> Result<(Vec<SnapshotFound>, Vec<Name>), LogError> {
    let (mut complete, mut others) = (Vec::new(), Vec::new());
    let mut window = Window::default();
    for file in directory.files().map_err(LogError::Directory)? {
        if names::slot_of(&file.name, identity.lane, SNAPSHOT).is_none() {
            continue;
        }
        let header = match read_header(directory, &file.name, file.bytes) {
            Ok(Ok(header)) if header.kind == FileKind::Snapshot => header,
            Ok(Err(HeaderError::Newer(version))) => {
                return Err(LogError::Newer { file: file.name, version });
            }
            _ => {
                others.push(file.name);
                continue;
            }
        };
        if header.identity != identity {
            let found = header.identity;
            return Err(LogError::Foreign { file: file.name, found, expected: identity });
        }
        let source = Source { name: file.name.clone(), header, bytes: file.bytes };
        match final_record(directory, &mut window, source) {
            Some(found) => complete.push(found),
            None => others.push(file.name),
        }
    }
    complete.sort_by_key(|found| std::cmp::Reverse(found.number));
    Ok((complete, others))
}

/// Reads the final record, if there is a sound one at the end of the file.
fn final_record(
    directory: &mut impl Directory,
    window: &mut Window,
    source: Source,
) -> Option<SnapshotFound> {
    let final_offset = source.bytes.checked_sub(FINAL_BYTES)?;
    if final_offset < HEADER_BYTES as u64 || !final_offset.is_multiple_of(FINAL_BYTES) {
        return None;
    }
    let batch = window.batch_twice(directory, &source, final_offset)?;
    let bytes = window.at(directory, &source, final_offset, batch.bytes);
    let mut rest = &bytes[HEAD_BYTES..];
    let Entry { kind, bytes, .. } = take_part(&mut rest)?.entry;
    if kind != KIND_COMPLETE || bytes.len() != 24 || u64_at(bytes, 16) != final_offset {
        return None;
    }
    let (start, end) = (Lsn(u64_at(bytes, 0)), Lsn(u64_at(bytes, 8)));
    if start != source.header.after || end < start {
        return None;
    }
    Some(SnapshotFound {
        file: source.name.clone(),
        number: source.header.number,
        start: if mutant!("durability_fuzzy_end") { end } else { start },
        end,
        source,
        final_offset,
        parts: batch.after,
    })
}

/// Reads a snapshot. Its memory is bounded by the largest batch and the largest entry.
#[derive(Debug)]
pub struct SnapshotReader {
    found: SnapshotFound,
    window: Window,
    offset: u64,
    expected: Lsn,
    parts: Parts,
}

impl SnapshotReader {
    /// Reads from the first entry on.
    pub fn new(found: SnapshotFound) -> Self {
        Self {
            found,
            window: Window::default(),
            offset: HEADER_BYTES as u64,
            expected: Lsn::START,
            parts: Parts::default(),
        }
    }

    /// The next entry; `None` behind the last.
    ///
    /// # Errors
    /// If the snapshot is damaged: read the one before it, from whose start the log is kept.
    pub fn next(&mut self, directory: &mut impl Directory) -> Result<Option<Entry<'_>>, LogError> {
        loop {
            let whole = self.parts.next(self.window.bytes(), Lsn::START);
            if let Some(whole) = whole.map_err(|why| self.malformed(why))? {
                return Ok(Some(self.parts.entry(self.window.bytes(), whole)));
            }
            if self.offset == self.found.final_offset && self.expected == self.found.parts {
                return Ok(None);
            }
            self.next_batch(directory)?;
        }
    }

    fn next_batch(&mut self, directory: &mut impl Directory) -> Result<(), LogError> {
        let source = &self.found.source;
        let batch = self.window.batch_twice(directory, source, self.offset);
        let fits = batch.filter(|batch| {
            let end = self.offset + source.header.padded(batch.bytes);
            batch.after == self.expected && end <= self.found.final_offset
        });
        let Some(batch) = fits else {
            let (file, offset) = (source.name.clone(), self.offset);
            if let Some((file, offset)) = self.window.take_unreadable() {
                return Err(LogError::Unreadable { file, offset });
            }
            let (first, last) = (Lsn(self.expected.0 + 1), self.found.parts);
            return Err(LogError::Rot { file, offset, first, last });
        };
        self.window.take_unreadable();
        let (bytes, entries) = (self.window.bytes(), self.window.entries(batch));
        let count = batch.until.0 - batch.after.0;
        let sound = self.parts.load(bytes, entries, count, batch.after, batch.after);
        self.offset += source.header.padded(batch.bytes);
        self.expected = batch.until;
        if sound { Ok(()) } else { Err(self.malformed("its entries are not as many as it says")) }
    }

    fn malformed(&self, why: &'static str) -> LogError {
        LogError::Malformed { file: self.found.file.clone(), offset: self.offset, why }
    }
}

/// The end of writing a snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SnapshotEvent {
    /// It is complete and durable. It and the one before it are kept, older ones are removed. The
    /// log may be recycled below this place ([`Log::recycle`](crate::Log::recycle)).
    Durable {
        /// The place from which replay of the older of the two begins.
        recyclable: Lsn,
    },
    /// There is no room for it. Its file is removed; begin another when there is room.
    Full,
    /// The disk has failed. Stop the process, as after a failed flush of the log.
    Dead,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Create,
    Header,
    /// Nothing is under way.
    Idle,
    Batch,
    /// All batches become durable.
    Flush,
    Final,
    Directory,
    Ended,
}

/// Writes one snapshot of one lane.
///
/// The engine adds entries while [`SnapshotWriter::takes_more`], a bounded number in each turn, and
/// then says [`SnapshotWriter::finish`].
#[derive(Debug)]
pub struct SnapshotWriter {
    file: Name,
    header: Header,
    kept: Vec<SnapshotFound>,
    other: Vec<Name>,
    gathered: Gather,
    tickets: u64,
    stage: Stage,
    /// The request under way.
    ticket: Ticket,
    offset: u64,
    parts: Lsn,
    /// How many parts and bytes the batch under way has.
    writing: (u64, u64),
    /// What the last entry has seen of the log.
    end: Option<Lsn>,
    log_durable: Lsn,
    /// It is complete.
    is_durable: bool,
}

impl SnapshotWriter {
    /// Begins a snapshot. `start` is [`Log::appended`](crate::Log::appended) now, before the first
    /// entry is taken; `complete` and `other` are what [`snapshots`] has listed. Of these files only
    /// the newest complete one is left once the new one is durable; until then all are. `seed` is
    /// drawn from the system.
    pub fn begin(
        identity: Identity,
        start: Lsn,
        (complete, other): (Vec<SnapshotFound>, Vec<Name>),
        seed: u64,
        disk: &mut impl Disk,
    ) -> Self {
        let slots = complete.iter().map(|found| &found.file).chain(&other);
        let slot = slots.filter_map(|file| names::slot_of(file, identity.lane, SNAPSHOT)).max();
        let file = names::name(identity.lane, slot.map_or(0, |slot| slot + 1), SNAPSHOT);
        let header = Header {
            kind: FileKind::Snapshot,
            identity,
            number: complete.iter().map(|found| found.number).max().unwrap_or(0) + 1,
            after: start,
            salt: Rng::new(seed).next_u64(),
            file_bytes: 0,
            batch_bytes_max: BATCH_BYTES,
            align: ALIGN,
        };
        let mut writer = Self {
            file: file.clone(),
            header,
            kept: complete,
            other,
            gathered: Gather::new(BATCH_BYTES),
            tickets: 0,
            stage: Stage::Create,
            ticket: Ticket(0),
            offset: HEADER_BYTES as u64,
            parts: Lsn::START,
            writing: (0, 0),
            end: None,
            log_durable: Lsn::START,
            is_durable: false,
        };
        writer.ticket = writer.submit(Request::Create { file }, disk);
        writer
    }

    /// Whether the disk keeps up. If not, add nothing in this turn.
    pub fn takes_more(&self) -> bool {
        self.gathered.bytes() < PENDING_BYTES
    }

    /// Adds an entry; `encode` writes its bytes.
    ///
    /// # Panics
    /// If the kind is not an engine's, the entry has more than
    /// [`ENTRY_BYTES_MAX`](crate::ENTRY_BYTES_MAX) bytes, or the snapshot is finished.
    pub fn add(
        &mut self,
        kind: u8,
        keyspace: KeyspaceId,
        encode: impl FnOnce(&mut Vec<u8>),
        disk: &mut impl Disk,
    ) {
        assert!(kind <= KIND_MAX, "kind {kind} belongs to the log");
        assert!(self.end.is_none(), "a finished snapshot takes no entry");
        self.gathered.append(kind, keyspace, encode);
        self.write(disk);
    }

    /// Says that all entries were added. `end` is [`Log::appended`](crate::Log::appended) now.
    pub fn finish(&mut self, end: Lsn, disk: &mut impl Disk) {
        self.end = Some(end.max(self.header.after));
        self.write(disk);
    }

    /// Says how far the log is durable.
    pub fn log_is_durable(&mut self, until: Lsn, disk: &mut impl Disk) {
        self.log_durable = until;
        self.write(disk);
    }

    /// Takes the end of a request.
    pub fn complete(
        &mut self,
        completion: Completion,
        disk: &mut impl Disk,
    ) -> Option<SnapshotEvent> {
        if completion.ticket != self.ticket || self.stage == Stage::Ended {
            return None;
        }
        match completion.result {
            Ok(()) => {}
            Err(DiskError::Full) => {
                self.stage = Stage::Ended;
                self.submit(Request::Remove { file: self.file.clone() }, disk);
                return Some(SnapshotEvent::Full);
            }
            Err(_) => {
                self.stage = Stage::Ended;
                return Some(SnapshotEvent::Dead);
            }
        }
        self.stage = match self.stage {
            Stage::Create => {
                let (file, bytes) = (self.file.clone(), self.header.encode());
                self.ticket =
                    self.submit(Request::Write { file, offset: 0, bytes, flush: false }, disk);
                Stage::Header
            }
            Stage::Batch => {
                self.parts.0 += self.writing.0;
                self.offset += self.writing.1;
                self.gathered.reuse(completion.bytes);
                Stage::Idle
            }
            Stage::Flush => {
                self.write_final(disk);
                Stage::Final
            }
            Stage::Final => {
                self.ticket = self.submit(Request::FlushDirectory, disk);
                Stage::Directory
            }
            Stage::Directory => return Some(self.end_of_it(disk)),
            Stage::Header | Stage::Idle | Stage::Ended => Stage::Idle,
        };
        self.write(disk);
        None
    }

    /// What the next snapshot begins with, once this one has come to its end: the complete ones, the
    /// newest first, and the files of others.
    pub fn end(self) -> (Vec<SnapshotFound>, Vec<Name>) {
        if !self.is_durable {
            return (self.kept, self.other);
        }
        let bytes = self.offset + FINAL_BYTES;
        let newest = SnapshotFound {
            file: self.file.clone(),
            number: self.header.number,
            start: self.header.after,
            end: self.end.unwrap_or(self.header.after),
            final_offset: self.offset,
            parts: self.parts,
            source: Source { name: self.file, header: self.header, bytes },
        };
        (std::iter::once(newest).chain(self.kept).collect(), Vec::new())
    }

    /// Bytes of its file so far.
    pub fn bytes(&self) -> u64 {
        self.offset
    }

    fn write(&mut self, disk: &mut impl Disk) {
        if self.stage != Stage::Idle {
            return;
        }
        let (file, offset) = (self.file.clone(), self.offset);
        // Until more comes, a batch that is not full may still fill.
        let is_due = self.end.is_some() || self.gathered.bytes() >= BATCH_BYTES as usize;
        if is_due && let Some(mut batch) = self.gathered.pop() {
            let padded = self.header.padded(batch.bytes.len());
            format::seal(&mut batch.bytes, self.header.salt, offset, batch.count, self.parts);
            batch.bytes.resize(padded as usize, 0);
            self.writing = (u64::from(batch.count), padded);
            let bytes = batch.bytes;
            self.ticket = self.submit(Request::Write { file, offset, bytes, flush: false }, disk);
            self.stage = Stage::Batch;
            return;
        }
        let may_end = |end| end <= self.log_durable || mutant!("durability_snapshot_ahead");
        if self.end.is_some_and(may_end) {
            let flush = !mutant!("durability_snapshot_final_unordered");
            let bytes = Vec::new();
            self.ticket = self.submit(Request::Write { file, offset, bytes, flush }, disk);
            self.stage = Stage::Flush;
        }
    }

    fn write_final(&mut self, disk: &mut impl Disk) {
        let end = self.end.expect("it is finished");
        let content = [self.header.after.0, end.0, self.offset].map(u64::to_le_bytes).concat();
        let mut bytes = vec![0; HEAD_BYTES];
        let entry = Entry { kind: KIND_COMPLETE, keyspace: KeyspaceId(0), bytes: &content };
        put_part_head(&mut bytes, false, false, entry);
        bytes.extend_from_slice(&content);
        format::seal(&mut bytes, self.header.salt, self.offset, 1, self.parts);
        bytes.resize(FINAL_BYTES as usize, 0);
        let (file, offset) = (self.file.clone(), self.offset);
        self.ticket = self.submit(Request::Write { file, offset, bytes, flush: true }, disk);
    }

    fn end_of_it(&mut self, disk: &mut impl Disk) -> SnapshotEvent {
        self.stage = Stage::Ended;
        self.is_durable = true;
        let old = self.kept.split_off(self.kept.len().min(1));
        for file in old.into_iter().map(|old| old.file).chain(std::mem::take(&mut self.other)) {
            self.submit(Request::Remove { file }, disk);
        }
        // The one before is the way back if this one rots; without it, all of the log is.
        let before = self.kept.first().map_or(Lsn::START, |old| old.start);
        let recyclable =
            if mutant!("durability_kept_snapshot_cut_off") { self.header.after } else { before };
        SnapshotEvent::Durable { recyclable }
    }

    fn submit(&mut self, request: Request, disk: &mut impl Disk) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        disk.submit(ticket, request);
        ticket
    }
}
