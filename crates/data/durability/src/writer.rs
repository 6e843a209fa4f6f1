//! Writes the log of one lane: group commit into segments that are prepared ahead.
//!
//! ```text
//!  append ──► gathered batches ──► one batch under way ──► durable
//!                                    │ (written and flushed as one request)
//!  segments: [pool: below the snapshot] [in use ... current] [next: prepared]
//! ```
//!
//! The rules that recovery relies on, each with its reason in design note 012:
//!
//! 1. A batch is written only after the one before it is durable.
//! 2. A batch after which a segment takes no other one (it is *sealed*) is written only while the
//!    next segment is prepared and durable.
//! 3. A segment is prepared only after the first batch of the one before it is durable.
//! 4. Places only grow; a segment is used again only when nothing in it is needed, the oldest first.
//! 5. After a failed flush nothing more is written.
//! 6. After a restart the last batch is written again, behind itself, before anything new. The driver has
//!    that done, too, when nothing has come for a while, and at an end in order ([`Log::repeat_tail`]).

use std::collections::VecDeque;
use std::mem;

use quorate_machine::{Rng, mutant};
use quorate_types::{KeyspaceId, Lsn};

use crate::format::{
    self, ALIGN, BATCH_BYTES_MAX, FileKind, HEAD_BYTES, HEADER_BYTES, Header, Identity, KIND_MAX,
    SEGMENT_BYTES,
};
use crate::frames::Source;
use crate::gather::{Gather, Gathered};
use crate::names::{self, SEGMENT};
use crate::reader::{Found, Segment, Tail};
use crate::{Completion, Disk, DiskError, Name, Request, Ticket};

/// How many bytes are written with zeros at once when a segment is made.
const ZERO_BYTES: u64 = 1024 * 1024;

/// The sizes of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Bytes of a segment: a multiple of 4 KiB, of three batches at least. 64 MiB.
    pub segment_bytes: u64,
    /// Most bytes of a batch: a multiple of 4 KiB up to 16 MiB. 1 MiB. A directory keeps what it was
    /// made with.
    pub batch_bytes_max: u32,
    /// How many appended bytes may wait for the disk before [`Room::Congested`]. 64 MiB.
    pub pending_bytes_max: usize,
    /// How many segments are kept to be used again; more are removed. 2.
    pub spare_segments: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            segment_bytes: SEGMENT_BYTES,
            batch_bytes_max: 1024 * 1024,
            pending_bytes_max: 64 * 1024 * 1024,
            spare_segments: 2,
        }
    }
}

/// Whether a log takes more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Room {
    /// It does.
    Open,
    /// As much waits for the disk as may. Begin no update until it is open again; what is under way
    /// may still append.
    Congested,
    /// The disk is full. Refuse updates. What was appended is kept, and is written as long as the
    /// current segment and the prepared one last; the rest when there is room again.
    Full,
    /// The disk has failed, and the log writes nothing more: stop the process. What was not durable before may or
    /// may not come back.
    Dead,
}

#[derive(Clone, Debug)]
struct Current {
    file: Name,
    header: Header,
    /// Where the next batch begins.
    end: u64,
    /// The place before its first batch, if recovery has found one.
    first: Option<Lsn>,
    /// Whether a batch of it is durable: what recovery has found may lie in a cache.
    holds: bool,
}

/// A segment with a durable batch.
#[derive(Clone, Debug)]
struct Used {
    file: Name,
    bytes: u64,
    /// The place before its first entry.
    first: Lsn,
}

#[derive(Clone, Debug)]
enum Next {
    Nothing,
    Preparing {
        file: Name,
        header: Header,
        stage: Stage,
        ticket: Ticket,
    },
    Ready {
        file: Name,
        header: Header,
    },
    /// There was no room for it; the part of its file that was made goes first.
    Removing {
        file: Name,
        ticket: Ticket,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Create,
    /// So many bytes are zero.
    Zero(u64),
    Header,
    /// Of a new file: its name.
    Directory,
    /// Removes one of the files in whose place this one is.
    Remove,
}

#[derive(Clone, Debug)]
struct UnderWay {
    ticket: Ticket,
    /// The place before its first entry.
    after: Lsn,
    until: Lsn,
    count: u32,
    /// With padding.
    bytes: u64,
    is_copy: bool,
}

/// The log of one lane. See the module's documentation.
///
/// At the end of each turn the driver calls [`Log::write`]; each completion goes to
/// [`Log::complete`], which says how far the log is durable.
#[derive(Debug)]
pub struct Log {
    identity: Identity,
    options: Options,
    batch_bytes_max: u32,
    align: u32,
    rng: Rng,
    tickets: u64,
    current: Option<Current>,
    next: Next,
    used: VecDeque<Used>,
    pool: VecDeque<(Name, u64)>,
    /// A file that holds nothing: it is made anew.
    remade: Option<Name>,
    /// Files that hold nothing, and go when there is a segment. One may be the first segment of all without
    /// a batch: it may be in a cache only, or be all that says that a log was prepared.
    obsolete: Vec<Name>,
    /// The number of the next segment that is prepared.
    number: u64,
    /// The next name.
    slot: u64,
    gathered: Gather,
    under_way: Option<UnderWay>,
    /// The last batch that is durable, if there is no copy of it.
    tail: Option<Gathered>,
    appended: Lsn,
    durable: Lsn,
    recyclable: Lsn,
    /// Batches are begun until the log is durable up to here.
    wanted: Lsn,
    bytes_on_disk: u64,
    full: bool,
    /// Whether it is full, and what found it so is being tried again.
    tries: bool,
    dead: bool,
}

impl Log {
    /// A log that goes on after what recovery has found, which may be nothing. `seed` decides the
    /// salts: it must be drawn from the system, so that nobody who appends can know them.
    ///
    /// Nothing that was found is durable before [`Log::complete`] says so: it may lie in a cache.
    ///
    /// # Panics
    /// If the options are not within their ranges.
    pub fn resume(found: Found, options: Options, seed: u64) -> Self {
        let batch = options.batch_bytes_max;
        assert!(batch > 0 && batch <= BATCH_BYTES_MAX && batch.is_multiple_of(ALIGN), "batches");
        let least = HEADER_BYTES as u64 + 3 * u64::from(batch);
        assert!(options.segment_bytes >= least && options.segment_bytes.is_multiple_of(4096));
        let align = if mutant!("durability_batches_share_sectors") { 4 } else { ALIGN };
        let mut spare = found.spare;
        let mut log = Self {
            identity: found.identity,
            options,
            batch_bytes_max: batch,
            align,
            rng: Rng::new(seed),
            tickets: 0,
            current: None,
            next: Next::Nothing,
            used: VecDeque::new(),
            pool: VecDeque::new(),
            remade: spare.pop(),
            obsolete: spare,
            number: 1,
            slot: found.slot,
            gathered: Gather::new(batch),
            under_way: None,
            tail: None,
            appended: found.end,
            durable: found.last.as_ref().map_or(found.end, |(after, _, _)| *after),
            recyclable: Lsn::START,
            wanted: Lsn(u64::MAX),
            bytes_on_disk: 0,
            full: false,
            tries: false,
            dead: false,
        };
        if let Some(header) = found.segments.last().map(|segment| &segment.source.header) {
            (log.batch_bytes_max, log.align) = (header.batch_bytes_max, header.align);
            log.gathered = Gather::new(header.batch_bytes_max);
        }
        let last = found.last.as_ref().map(|(after, _, _)| *after);
        log.adopt(found.segments, found.tail, last);
        if let Some((after, count, bytes)) = found.last
            && !mutant!("durability_tail_not_repeated")
        {
            log.gathered.push_front(Gathered { bytes, count, after: Some(after), is_copy: true });
        }
        log
    }

    fn adopt(&mut self, segments: Vec<Segment>, tail: Option<Tail>, last_batch: Option<Lsn>) {
        for (index, segment) in segments.into_iter().enumerate() {
            let Segment { source: Source { name: file, header, .. }, first } = segment;
            if let Some(tail) = tail
                && index <= tail.index
            {
                let (last, end) = (tail.index, tail.end);
                self.number = header.number + 1;
                let first = first.unwrap_or(header.after);
                let bytes = header.file_bytes;
                if index == last {
                    // An earlier batch of it was durable before the last one was written.
                    let copies = last_batch.is_none_or(|last| last <= first)
                        && (tail.is_at_the_beginning()
                            || mutant!("durability_tail_behind_rot_is_first"));
                    let holds = !copies || mutant!("durability_found_is_durable");
                    let end = if copies { copy_place(&tail) } else { end };
                    if holds && !mutant!("durability_found_segment_never_used_again") {
                        self.used.push_back(Used { file: file.clone(), bytes, first });
                    }
                    self.current = Some(Current { file, header, end, first: Some(first), holds });
                } else {
                    self.used.push_back(Used { file, bytes, first });
                }
            } else if self.current.as_ref().is_some_and(|it| it.header.is_sealed(it.end)) {
                // The segment before it was sealed, so this one is durable.
                self.number = header.number + 1;
                self.next = Next::Ready { file, header };
            } else if self.current.is_some() || mutant!("durability_first_segment_made_anew") {
                // It holds nothing, and may be in a cache only.
                self.obsolete.extend(self.remade.replace(file));
            } else {
                self.obsolete.push(file);
            }
        }
    }

    // --- what the caller sees ------------------------------------------------------------------

    /// The place of the last entry that was appended.
    pub fn appended(&self) -> Lsn {
        self.appended
    }

    /// Bytes of files that the batches of this process take which are durable: a batch takes blocks of its
    /// own, be it ever so small.
    pub fn bytes_on_disk(&self) -> u64 {
        self.bytes_on_disk
    }

    /// Everything up to here is durable.
    pub fn durable(&self) -> Lsn {
        self.durable
    }

    /// Whether updates may begin.
    pub fn room(&self) -> Room {
        if self.dead {
            Room::Dead
        } else if self.full {
            Room::Full
        } else if self.pending_bytes() >= self.options.pending_bytes_max {
            Room::Congested
        } else {
            Room::Open
        }
    }

    /// Bytes that were appended and are not durable.
    pub fn pending_bytes(&self) -> usize {
        self.gathered.bytes() + self.under_way.as_ref().map_or(0, |batch| batch.bytes as usize)
    }

    /// Whether a batch is on its way to the disk.
    pub fn is_writing(&self) -> bool {
        self.under_way.is_some()
    }

    /// Whether there is a segment to write to.
    pub fn has_segment(&self) -> bool {
        self.current.is_some() || matches!(self.next, Next::Ready { .. })
    }

    /// Whether nothing is under way and nothing waits.
    pub fn is_idle(&self) -> bool {
        let preparing = matches!(self.next, Next::Preparing { .. } | Next::Removing { .. });
        self.under_way.is_none() && self.gathered.is_empty() && !preparing
    }

    /// Appends an entry; `encode` writes its bytes. Returns the place behind it, which is durable
    /// when [`Log::complete`] has said so.
    ///
    /// # Panics
    /// If the kind is not an engine's, or the entry has more than
    /// [`ENTRY_BYTES_MAX`](crate::ENTRY_BYTES_MAX) bytes.
    pub fn append(
        &mut self,
        kind: u8,
        keyspace: KeyspaceId,
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> Lsn {
        assert!(kind <= KIND_MAX, "kind {kind} belongs to the log");
        self.appended.0 += self.gathered.append(kind, keyspace, encode);
        self.appended
    }

    /// From now on a batch is begun only if it is full, or if [`Log::want`] has asked for what it holds.
    /// Otherwise the log flushes as soon as it can.
    pub fn hold_back(&mut self) {
        self.wanted = Lsn::START;
    }

    /// What was appended up to here is to be durable soon: the next call of [`Log::write`] begins it.
    pub fn want(&mut self, place: Lsn) {
        self.wanted = self.wanted.max(place);
    }

    /// Has the last batch written once more, behind itself, if nothing else is to be written. From then
    /// on nothing is missing if one of the two rots; of a lone one nobody could say that it was ever whole.
    pub fn repeat_tail(&mut self, disk: &mut impl Disk) {
        let rests = self.under_way.is_none() && self.gathered.is_empty();
        if !rests || self.full || self.dead || mutant!("durability_tail_is_there_once") {
            return;
        }
        if let Some(mut tail) = self.tail.take() {
            let length = format::u32_at(&tail.bytes, 0) as usize;
            tail.bytes.truncate(HEAD_BYTES + length);
            self.gathered.push_front(tail);
            self.write(disk);
        }
    }

    /// Whether all that was appended is durable, and its last batch is there twice.
    pub fn is_closed(&self) -> bool {
        self.under_way.is_none() && self.gathered.is_empty() && self.tail.is_none()
    }

    /// What lies below is not needed any more: a snapshot holds it. Segments that hold nothing else
    /// are used again.
    pub fn recycle(&mut self, below: Lsn, disk: &mut impl Disk) {
        self.recyclable = self.recyclable.max(below.min(self.durable));
        let mut freed = false;
        while let Some(second) = self.used.get(1) {
            let needed = second.first > self.recyclable && !mutant!("durability_recycled_early");
            if needed {
                break;
            }
            let Used { file, bytes, .. } = self.used.pop_front().expect("there are two");
            self.pool.push_back((file, bytes));
            freed = true;
        }
        while self.pool.len() > self.options.spare_segments {
            let (file, _) = self.pool.pop_front().expect("it is not empty");
            self.submit(Request::Remove { file }, disk);
        }
        if freed {
            self.retry(disk);
        }
    }

    /// Tries again what found the disk full. For the driver to call now and then. The log is full until
    /// that has been done.
    pub fn retry(&mut self, disk: &mut impl Disk) {
        self.tries = self.full;
        self.full &= !mutant!("durability_full_disk_has_room_while_it_is_tried");
        self.write(disk);
        if self.under_way.is_none() {
            self.end_trial();
        }
    }

    /// Starts what can be started: the next batch if none is under way, the next segment.
    pub fn write(&mut self, disk: &mut impl Disk) {
        if !self.dead && (!self.full || self.tries) {
            self.prepare(disk);
        }
        if !self.dead {
            self.start_batch(disk);
        }
    }

    /// Nothing that was tried has failed, so there is room again, unless a segment is still being prepared.
    fn end_trial(&mut self) {
        let preparing = matches!(self.next, Next::Preparing { .. } | Next::Removing { .. });
        if self.tries && !preparing {
            (self.full, self.tries) = (false, false);
        }
    }

    fn note_full(&mut self) {
        (self.full, self.tries) = (true, false);
    }

    /// Takes the end of a request. Returns how far the log is durable if that has changed.
    pub fn complete(&mut self, completion: Completion, disk: &mut impl Disk) -> Option<Lsn> {
        let Completion { ticket, result, bytes } = completion;
        if self.dead {
            return None;
        }
        let is_batch = self.under_way.as_ref().is_some_and(|batch| batch.ticket == ticket);
        let preparing = match &self.next {
            Next::Preparing { ticket: mine, .. } => *mine == ticket,
            _ => false,
        };
        let before = self.durable;
        if let Next::Removing { file, ticket: mine } = &self.next
            && *mine == ticket
        {
            // A file that can't be removed is made anew all the same.
            self.remade = Some(file.clone());
            self.next = Next::Nothing;
        }
        match result {
            Ok(()) if is_batch => self.batch_is_durable(bytes),
            Ok(()) if preparing => self.next_stage(disk),
            Err(DiskError::Full) if is_batch => self.hold(bytes),
            Err(DiskError::Full) if preparing => self.give_up_preparing(disk),
            Err(DiskError::Flush) if is_batch && mutant!("durability_fsync_retry") => {
                self.hold(bytes)
            }
            // What it should have covered is anywhere, and no later flush would tell.
            Err(_) if is_batch || preparing => self.dead = true,
            // A file that can't be removed stays.
            _ => {}
        }
        self.write(disk);
        if is_batch || self.under_way.is_none() {
            self.end_trial();
        }
        (self.durable > before).then_some(self.durable)
    }

    // --- batches -------------------------------------------------------------------------------

    fn start_batch(&mut self, disk: &mut impl Disk) {
        if self.under_way.is_some() || self.gathered.is_empty() || !self.is_due() {
            return;
        }
        let is_sealed =
            self.current.as_ref().is_none_or(|current| current.header.is_sealed(current.end));
        if is_sealed {
            let Next::Ready { .. } = self.next else { return };
            let Next::Ready { file, header } = mem::replace(&mut self.next, Next::Nothing) else {
                unreachable!("it was ready")
            };
            let end = HEADER_BYTES as u64;
            self.current = Some(Current { file, header, end, first: None, holds: false });
        }
        let current = self.current.as_mut().expect("there is a segment now");
        let batch = self.gathered.front().expect("it is not empty");
        let bytes = current.header.padded(batch.bytes.len());
        let seals = current.header.is_sealed(current.end + bytes);
        let may_seal =
            matches!(self.next, Next::Ready { .. }) || mutant!("durability_sealed_without_next");
        // Neither the first batch of a segment nor its copy can seal it: it has room for three.
        if seals && !may_seal {
            return;
        }
        let mut batch = self.gathered.pop().expect("it is not empty");
        let after = batch.after.unwrap_or(self.durable);
        format::seal(&mut batch.bytes, current.header.salt, current.end, batch.count, after);
        batch.bytes.resize(bytes as usize, 0);
        let (file, offset) = (current.file.clone(), current.end);
        let until = Lsn(after.0 + u64::from(batch.count));
        let flush = !mutant!("durability_early_release");
        let ticket = self.submit(
            Request::Write { file, offset, bytes: mem::take(&mut batch.bytes), flush },
            disk,
        );
        let Gathered { count, is_copy, .. } = batch;
        self.under_way = Some(UnderWay { ticket, after, until, count, bytes, is_copy });
    }

    /// Whether the next batch should be written now.
    fn is_due(&self) -> bool {
        let is_copy = self.gathered.front().is_some_and(|batch| batch.after.is_some());
        self.durable < self.wanted || is_copy || self.gathered.has_full()
    }

    fn batch_is_durable(&mut self, memory: Vec<u8>) {
        let batch = self.under_way.take().expect("its completion came");
        let current = self.current.as_mut().expect("a batch lies in a segment");
        current.end += batch.bytes;
        self.bytes_on_disk += batch.bytes;
        if !mem::replace(&mut current.holds, true) {
            let (file, bytes) = (current.file.clone(), current.header.file_bytes);
            let first = current.first.unwrap_or(batch.after);
            self.used.push_back(Used { file, bytes, first });
        }
        self.durable = self.durable.max(batch.until);
        let (count, after) = (batch.count, Some(batch.after));
        let mine = Gathered { bytes: memory, count, after, is_copy: true };
        let (kept, spare) =
            if batch.is_copy { (None, Some(mine)) } else { (Some(mine), self.tail.take()) };
        self.tail = kept;
        if let Some(Gathered { bytes, .. }) = spare {
            self.gathered.reuse(bytes);
        }
    }

    /// Keeps a batch for which there was no room.
    fn hold(&mut self, mut bytes: Vec<u8>) {
        let batch = self.under_way.take().expect("its completion came");
        let length = format::u32_at(&bytes, 0) as usize;
        bytes.truncate(HEAD_BYTES + length);
        let UnderWay { count, after, is_copy, .. } = batch;
        let held = Gathered { bytes, count, after: Some(after), is_copy };
        self.gathered.push_front(held);
        if !mutant!("durability_fsync_retry") {
            self.note_full();
        }
    }

    // --- segments ------------------------------------------------------------------------------

    /// Begins to prepare the next segment, if it is time.
    fn prepare(&mut self, disk: &mut impl Disk) {
        let may = self.current.as_ref().is_none_or(|current| current.holds)
            || mutant!("durability_prepared_early");
        if !matches!(self.next, Next::Nothing) || !may {
            return;
        }
        let least = HEADER_BYTES as u64 + 3 * u64::from(self.batch_bytes_max);
        let file_bytes = self.options.segment_bytes.max(least);
        let (file, stage) = if let Some(file) = self.remade.take() {
            (file, Stage::Create)
        } else if let Some((file, bytes)) = self.pool.pop_front() {
            (file, if bytes == file_bytes { Stage::Header } else { Stage::Create })
        } else {
            self.slot += 1;
            (names::name(self.identity.lane, self.slot - 1, SEGMENT), Stage::Create)
        };
        let header = Header {
            kind: FileKind::Segment,
            identity: self.identity,
            number: self.number,
            after: self.durable,
            salt: self.rng.next_u64(),
            file_bytes,
            batch_bytes_max: self.batch_bytes_max,
            align: self.align,
        };
        self.next = Next::Preparing { file, header, stage, ticket: Ticket(0) };
        self.run_stage(disk);
    }

    fn run_stage(&mut self, disk: &mut impl Disk) {
        let Next::Preparing { file, header, stage, .. } = &self.next else { return };
        let file = file.clone();
        let flush = !mutant!("durability_header_not_flushed");
        let request = match *stage {
            Stage::Create => Request::Create { file },
            Stage::Zero(offset) => {
                let bytes = (header.file_bytes - offset).min(ZERO_BYTES) as u32;
                let flush = offset + u64::from(bytes) == header.file_bytes;
                Request::Zero { file, offset, bytes, flush }
            }
            Stage::Header => Request::Write { file, offset: 0, bytes: header.encode(), flush },
            Stage::Directory => Request::FlushDirectory,
            Stage::Remove => Request::Remove { file: self.obsolete.pop().expect("there is one") },
        };
        let started = self.submit(request, disk);
        if let Next::Preparing { ticket, .. } = &mut self.next {
            *ticket = started;
        }
    }

    fn next_stage(&mut self, disk: &mut impl Disk) {
        let Next::Preparing { file, header, stage, .. } = &mut self.next else { return };
        *stage = match *stage {
            Stage::Create => Stage::Zero(0),
            Stage::Zero(offset) if offset + ZERO_BYTES < header.file_bytes => {
                Stage::Zero(offset + ZERO_BYTES)
            }
            Stage::Zero(_) => Stage::Header,
            Stage::Header if !mutant!("durability_directory_not_flushed") => Stage::Directory,
            // Nobody is told of it before they are gone: of first segments that hold nothing, the oldest counts.
            Stage::Directory | Stage::Remove
                if !self.obsolete.is_empty() && !mutant!("durability_obsolete_left") =>
            {
                Stage::Remove
            }
            Stage::Remove => Stage::Directory,
            Stage::Header | Stage::Directory => {
                self.next = Next::Ready { file: file.clone(), header: header.clone() };
                self.number += 1;
                return;
            }
        };
        self.run_stage(disk);
    }

    /// There is no room for another segment: gives back what it has taken.
    fn give_up_preparing(&mut self, disk: &mut impl Disk) {
        let Next::Preparing { file, .. } = mem::replace(&mut self.next, Next::Nothing) else {
            return;
        };
        self.note_full();
        let ticket = self.submit(Request::Remove { file: file.clone() }, disk);
        self.next = Next::Removing { file, ticket };
    }

    fn submit(&mut self, request: Request, disk: &mut impl Disk) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        disk.submit(ticket, request);
        ticket
    }
}

impl Tail {
    /// Whether nothing can have been written before it in its segment but a copy of it: that is as long.
    fn is_at_the_beginning(&self) -> bool {
        let before = self.offset - HEADER_BYTES as u64;
        before == 0 || before == self.end - self.offset
    }
}

/// Where the last batch is written again in a segment that holds nothing but copies of it. It takes
/// two places at most, since the segment must not be sealed before it holds a durable batch.
fn copy_place(tail: &Tail) -> u64 {
    let start = HEADER_BYTES as u64;
    if tail.twin && !mutant!("durability_copy_over_the_first") {
        // If the second was durable, its flush has covered the first, too.
        tail.offset
    } else if tail.twin || tail.offset > start {
        // The first is lost.
        start
    } else {
        tail.end
    }
}
