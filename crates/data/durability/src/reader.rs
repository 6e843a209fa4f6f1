//! Recovery: finds the segments of a lane, orders them, and reads their entries.
//!
//! Where a segment holds no sound batch at the next place, the reader looks behind it:
//!
//! | behind it | verdict |
//! | --- | --- |
//! | nothing sound, in this segment or a later one | the end of the log: torn, or never written |
//! | a sound batch that begins at the next place | nothing is missing: the batch was written again |
//! | a sound batch that begins later | rot, with the places that are missing |
//!
//! This decides since a batch is written only after the one before it is durable. The end is taken
//! for one only if the segment was not sealed or has a successor, no header names a greater place,
//! and no byte behind it was unreadable.

use quorate_machine::mutant;
use quorate_types::Lsn;

use crate::format::{Entry, FileKind, HEADER_BYTES, HeaderError, Identity};
use crate::frames::{Batch, Source, Window, read_header};
use crate::names::{self, SEGMENT};
use crate::parts::{Parts, Whole};
use crate::{Directory, LogError, Name};

/// From where on a log is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// Behind this place, from where on everything is needed: [`Lsn::START`], or the place at which
    /// a snapshot began.
    After(Lsn),
    /// From the oldest segment that is there, for tools.
    Oldest,
}

/// A segment, and the place before its first batch if that is sound.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) source: Source,
    pub(crate) first: Option<Lsn>,
}

/// Where the last batch is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tail {
    /// Its segment.
    pub(crate) index: usize,
    pub(crate) offset: u64,
    /// Where the next batch would begin.
    pub(crate) end: u64,
    /// The batch before it is a copy of it.
    pub(crate) twin: bool,
}

/// What is behind the last entry, for [`Log::resume`](crate::Log::resume).
#[derive(Debug)]
pub struct Found {
    pub(crate) identity: Identity,
    pub(crate) segments: Vec<Segment>,
    pub(crate) tail: Option<Tail>,
    /// The last batch: the place before it, its parts, its bytes with a head.
    pub(crate) last: Option<(Lsn, u32, Vec<u8>)>,
    /// Files that hold nothing: their preparation was cut short, or another was prepared in their place.
    pub(crate) spare: Vec<Name>,
    /// The first slot that no name has.
    pub(crate) slot: u64,
    pub(crate) end: Lsn,
}

impl Found {
    /// Whether there is a segment, be it an empty one.
    pub fn has_segments(&self) -> bool {
        !self.segments.is_empty()
    }

    /// The place of the last entry.
    pub fn end(&self) -> Lsn {
        self.end
    }

    /// From where on rot looks like a write that was cut short: the file of the last batch, and where that
    /// begins. `None` without a batch.
    pub fn tail(&self) -> Option<(&Name, u64)> {
        let tail = self.tail?;
        let file = &self.segments[tail.index].source.name;
        // The header of the only segment may be one that was being written.
        Some((file, if self.segments.len() == 1 { 0 } else { tail.offset }))
    }
}

/// Reads the log of one lane. Its memory is bounded by the largest batch and the largest entry.
#[derive(Debug)]
pub struct Reader {
    identity: Identity,
    segments: Vec<Segment>,
    spare: Vec<Name>,
    slot: u64,
    /// Entries up to here are not given out.
    from: Lsn,
    window: Window,
    index: usize,
    offset: u64,
    /// The place behind what was read.
    expected: Lsn,
    /// The last sound batch, with the index of its segment.
    last: Option<(usize, Batch)>,
    /// The one before it is a copy of it.
    twin: bool,
    /// Bytes of the batches that were read, as they lie in their files.
    passed: u64,
    parts: Parts,
    ended: bool,
    damaged: bool,
    unreadable: Option<(Name, u64)>,
}

impl Reader {
    /// Finds the segments of a lane.
    ///
    /// # Errors
    /// If one belongs to somebody else or a newer program, is damaged, or is missing; or if the log
    /// begins behind the place from which it is needed.
    pub fn open(
        directory: &mut impl Directory,
        identity: Identity,
        start: Start,
    ) -> Result<Self, LogError> {
        let mut window = Window::default();
        let Listed { mut sources, mut spare, slot } = list(directory, identity)?;
        let slot_of = |source: &Source| names::slot_of(&source.name, identity.lane, SEGMENT);
        sources.sort_by_key(|source| (source.header.number, slot_of(source)));
        choose_first(directory, &mut window, &mut sources, &mut spare);
        for pair in sources.windows(2) {
            let [one, two] = pair else { unreachable!("two at a time") };
            if one.header.number == two.header.number {
                let (file, other) = (two.name.clone(), one.name.clone());
                return Err(LogError::Duplicate { file, other, number: one.header.number });
            }
        }
        // What lies before a gap was removed, and is there again because the power went.
        let chained = |pair: &[Source]| pair[0].header.number + 1 == pair[1].header.number;
        let gap = sources.windows(2).rposition(|pair| !chained(pair));
        sources.drain(..gap.map_or(0, |gap| gap + 1));
        let segments: Vec<Segment> = sources
            .into_iter()
            .map(|source| {
                let batch = window.batch_twice(directory, &source, HEADER_BYTES as u64);
                Segment { source, first: batch.map(|batch| batch.after) }
            })
            .collect();
        check_chain(directory, &mut window, &segments, &spare)?;
        let (from, index, expected) = beginning(&segments, start)?;
        window.take_unreadable();
        Ok(Self {
            identity,
            segments,
            spare: spare.into_iter().map(|(name, _)| name).collect(),
            slot,
            from,
            window,
            index,
            offset: HEADER_BYTES as u64,
            expected,
            last: None,
            twin: false,
            passed: 0,
            parts: Parts::default(),
            ended: false,
            damaged: false,
            unreadable: None,
        })
    }

    /// The next entry, with the place behind it; `None` at the end of the log.
    ///
    /// # Errors
    /// If entries are lost. After [`LogError::Rot`] and [`LogError::Malformed`] the next call goes on
    /// behind what is lost, for tools; the log can't be resumed then.
    pub fn next(
        &mut self,
        directory: &mut impl Directory,
    ) -> Result<Option<(Lsn, Entry<'_>)>, LogError> {
        let found = self.advance(directory);
        self.damaged |= found.is_err();
        let whole = found?;
        let bytes = self.window.bytes();
        Ok(whole.map(|whole| (whole.place, self.parts.entry(bytes, whole))))
    }

    /// Entries that come next, as many as are in memory and whole, for who fetches what they are about from
    /// memory. Some may be left out by [`Self::next`].
    pub fn ahead(&self) -> impl Iterator<Item = Entry<'_>> {
        self.parts.ahead(self.window.bytes())
    }

    /// How many bytes of files hold what was read.
    pub fn bytes_on_disk(&self) -> u64 {
        self.passed
    }

    /// What the log goes on behind. All entries must have been read.
    ///
    /// # Errors
    /// If something is lost, or the log ends before `durable`, which the caller knows to have been
    /// durable: the end of a snapshot, or what peers have heard.
    ///
    /// # Panics
    /// If the end has not been reached.
    pub fn finish(
        mut self,
        directory: &mut impl Directory,
        durable: Lsn,
    ) -> Result<Found, LogError> {
        assert!(self.ended || self.damaged, "read all entries before the log is resumed");
        let durable = durable.max(self.from);
        if self.damaged || self.expected < durable {
            return Err(LogError::Ends { at: self.expected, needed: durable });
        }
        let mut last = None;
        let mut tail = None;
        if let Some((index, batch)) = self.last {
            let source = &self.segments[index].source;
            let count = (batch.until.0 - batch.after.0) as u32;
            self.window.clear();
            if self.window.batch_twice(directory, source, batch.offset) != Some(batch) {
                let file = source.name.clone();
                return Err(LogError::Unreadable { file, offset: batch.offset });
            }
            let bytes = self.window.at(directory, source, batch.offset, batch.bytes).to_vec();
            last = Some((batch.after, count, bytes));
            let end = batch.offset + source.header.padded(batch.bytes);
            tail = Some(Tail { index, offset: batch.offset, end, twin: self.twin });
        }
        let Self { identity, segments, spare, slot, expected: end, .. } = self;
        Ok(Found { identity, segments, tail, last, spare, slot, end })
    }

    fn advance(&mut self, directory: &mut impl Directory) -> Result<Option<Whole>, LogError> {
        loop {
            match self.parts.next(self.window.bytes(), self.from) {
                Err(why) => return Err(self.malformed(why)),
                Ok(Some(whole)) => return Ok(Some(whole)),
                Ok(None) if !self.next_batch(directory)? => return Ok(None),
                Ok(None) => {}
            }
        }
    }

    fn malformed(&self, why: &'static str) -> LogError {
        let (index, batch) = self.last.as_ref().expect("a batch was read");
        let file = self.segments[*index].source.name.clone();
        LogError::Malformed { file, offset: batch.offset, why }
    }

    /// Goes to the next batch with entries that are new. Returns false at the end of the log.
    fn next_batch(&mut self, directory: &mut impl Directory) -> Result<bool, LogError> {
        loop {
            if self.ended || self.index == self.segments.len() {
                self.ended = true;
                return Ok(false);
            }
            let source = &self.segments[self.index].source;
            let here = self.window.batch_twice(directory, source, self.offset);
            let (index, batch) = match here {
                Some(batch) => (self.index, batch),
                None => match self.sound_batch_behind(directory) {
                    Some(found) => found,
                    None => return self.end().map(|()| false),
                },
            };
            let hole = (self.segments[self.index].source.name.clone(), self.offset);
            let source = &self.segments[index].source;
            self.index = index;
            self.offset = batch.offset + source.header.padded(batch.bytes);
            self.passed += self.offset - batch.offset;
            let expected = self.expected;
            // What is known already is the last batch, written again, and nothing else.
            let repeats = batch.until == expected || self.last.is_none();
            let fits = batch.after >= expected || repeats && batch.until >= expected;
            if !fits || batch.until < source.header.after {
                self.last = Some((index, batch));
                return Err(self.malformed("its places don't follow those of the batch before it"));
            }
            // Where nothing is missing, what could not be read was not needed.
            self.unreadable = None;
            self.window.take_unreadable();
            if batch.after > expected.max(self.from) {
                // The next call reads this batch again, and goes on.
                (self.expected, self.offset) = (batch.after, batch.offset);
                self.parts.interrupt();
                let (file, offset) = hole;
                let (first, last) = (Lsn(expected.max(self.from).0 + 1), batch.after);
                return Err(LogError::Rot { file, offset, first, last });
            }
            // What is missing lies below what is needed.
            let expected = expected.max(batch.after);
            self.twin = self.last.is_some_and(|(at, last)| {
                at == index && last.after == batch.after && last.until == batch.until
            });
            self.last = Some((index, batch));
            self.segments[index].first.get_or_insert(batch.after);
            if batch.until > expected {
                self.take(directory, index, batch, expected)?;
                return Ok(true);
            }
        }
    }

    /// Has the entries of a batch ready, without the entries that are known already.
    fn take(
        &mut self,
        directory: &mut impl Directory,
        index: usize,
        batch: Batch,
        expected: Lsn,
    ) -> Result<(), LogError> {
        let source = &self.segments[index].source;
        // The search for it may have left another part of the file in memory; what is used is what
        // was checked.
        if self.window.batch_twice(directory, source, batch.offset) != Some(batch) {
            return Err(LogError::Unreadable { file: source.name.clone(), offset: batch.offset });
        }
        let (bytes, entries) = (self.window.bytes(), self.window.entries(batch));
        let count = batch.until.0 - batch.after.0;
        let sound = self.parts.load(bytes, entries, count, batch.after, expected);
        self.expected = batch.until;
        if sound { Ok(()) } else { Err(self.malformed("its entries are not as many as it says")) }
    }

    /// The first sound batch behind this place, in this segment or a later one. Looks twice, as a
    /// bit may have tipped on the way.
    fn sound_batch_behind(&mut self, directory: &mut impl Directory) -> Option<(usize, Batch)> {
        let first = self.search(directory);
        self.window.clear();
        let second = self.search(directory);
        self.unreadable = self.window.take_unreadable();
        let place = |found: &(usize, Batch)| (found.0, found.1.offset);
        first.into_iter().chain(second).min_by_key(place)
    }

    fn search(&mut self, directory: &mut impl Directory) -> Option<(usize, Batch)> {
        for index in self.index..self.segments.len() {
            let source = &self.segments[index].source;
            let from = match index == self.index {
                true if mutant!("durability_rot_truncated") => source.bytes,
                true => self.offset + u64::from(source.header.align),
                false => HEADER_BYTES as u64,
            };
            let found = self.window.next_batch(directory, source, from, self.expected);
            if let Some(batch) = found {
                return Some((index, batch));
            }
        }
        None
    }

    /// Accepts the end of the log, if it is one.
    fn end(&mut self) -> Result<(), LogError> {
        let Segment { source, .. } = &self.segments[self.index];
        if let Some((file, offset)) = self.unreadable.take() {
            self.ended = true;
            return Err(LogError::Unreadable { file, offset });
        }
        self.ended = true;
        let promised = self.segments.iter().map(|segment| segment.source.header.after).max();
        if let Some(last) = promised.filter(|last| *last > self.expected)
            && !mutant!("durability_header_place_ignored")
        {
            let (file, first) = (source.name.clone(), Lsn(self.expected.0 + 1));
            self.expected = last;
            return Err(LogError::Rot { file, offset: self.offset, first, last });
        }
        // Each segment but the newest has held a durable batch.
        let empty = self.last.map_or(0, |(index, _)| index + 1);
        if let [Segment { source, .. }, _, ..] = &self.segments[empty..] {
            let (file, first) = (source.name.clone(), Lsn(self.expected.0 + 1));
            return Err(LogError::Rot { file, offset: HEADER_BYTES as u64, first, last: first });
        }
        let sealed = source.header.is_sealed(self.offset) && self.index + 1 == self.segments.len();
        if sealed && !mutant!("durability_seal_unchecked") {
            return Err(LogError::Missing { number: source.header.number + 1 });
        }
        Ok(())
    }
}

struct Listed {
    sources: Vec<Source>,
    /// Files without a sound header, and their lengths.
    spare: Vec<(Name, u64)>,
    slot: u64,
}

fn list(directory: &mut impl Directory, identity: Identity) -> Result<Listed, LogError> {
    let files = directory.files().map_err(LogError::Directory)?;
    let mut listed = Listed { sources: Vec::new(), spare: Vec::new(), slot: 0 };
    for file in files {
        let Some(slot) = names::slot_of(&file.name, identity.lane, SEGMENT) else { continue };
        listed.slot = listed.slot.max(slot + 1);
        let unreadable = |_| LogError::Unreadable { file: file.name.clone(), offset: 0 };
        let header = match read_header(directory, &file.name, file.bytes).map_err(unreadable)? {
            Ok(header) if header.kind == FileKind::Segment => header,
            Err(HeaderError::Newer(version)) => {
                return Err(LogError::Newer { file: file.name, version });
            }
            _ => {
                listed.spare.push((file.name, file.bytes));
                continue;
            }
        };
        if header.identity != identity {
            let found = header.identity;
            return Err(LogError::Foreign { file: file.name, found, expected: identity });
        }
        if file.bytes < header.file_bytes {
            let (bytes, expected) = (file.bytes, header.file_bytes);
            return Err(LogError::Truncated { file: file.name, bytes, expected });
        }
        let bytes = header.file_bytes;
        listed.sources.push(Source { name: file.name, header, bytes });
    }
    Ok(listed)
}

/// Several first segments are there if one was prepared in place of the others: the one that holds something
/// counts, or the oldest if none does, since nobody has been told of a newer one before the older ones were
/// gone. The others are spare.
fn choose_first(
    directory: &mut impl Directory,
    window: &mut Window,
    sources: &mut Vec<Source>,
    spare: &mut Vec<(Name, u64)>,
) {
    let firsts = sources.iter().take_while(|source| source.header.number == 1).count();
    if firsts < 2 {
        return;
    }
    let mut empty: Vec<Source> = Vec::new();
    let mut holding: Vec<Source> = Vec::new();
    for source in sources.drain(..firsts) {
        let holds = holds_batch(directory, window, &source);
        if holds { &mut holding } else { &mut empty }.push(source);
    }
    if holding.is_empty() {
        let counts = if mutant!("durability_newest_empty_counts") { empty.len() - 1 } else { 0 };
        holding.push(empty.remove(counts));
    }
    sources.splice(0..0, holding);
    spare.extend(empty.into_iter().map(|source| (source.name, source.bytes)));
}

fn holds_batch(directory: &mut impl Directory, window: &mut Window, segment: &Source) -> bool {
    window.next_batch(directory, segment, HEADER_BYTES as u64, Lsn::START).is_some()
}

/// Whether what is missing or damaged can be so without a loss.
fn check_chain(
    directory: &mut impl Directory,
    window: &mut Window,
    segments: &[Segment],
    spare: &[(Name, u64)],
) -> Result<(), LogError> {
    let lost = |(file, _): &(Name, u64)| Err(LogError::Header { file: file.clone() });
    let Some(newest) = segments.last() else {
        // The very first segment was prepared when the power went; then it holds zeros.
        let used = spare.iter().find(|(name, bytes)| !is_zero(directory, name, *bytes));
        return used.map_or(Ok(()), lost);
    };
    let number = newest.source.header.number;
    let holds = newest.first.is_some() || holds_batch(directory, window, &newest.source);
    // A segment is prepared only when the one before it holds a durable batch, and one at a time; the first
    // one again and again, until it holds something.
    if (holds || number > 1)
        && let Some(file) = spare.get(usize::from(holds))
        && !mutant!("durability_torn_header_believed")
    {
        return lost(file);
    }
    if !holds && number > 1 && segments.len() == 1 {
        return Err(LogError::Missing { number: number - 1 });
    }
    Ok(())
}

/// Whether a file holds nothing but zeros behind its header.
fn is_zero(directory: &mut impl Directory, name: &Name, bytes: u64) -> bool {
    let mut block = vec![0; 64 * 1024];
    let mut at = HEADER_BYTES as u64;
    while at < bytes {
        let length = (bytes - at).min(block.len() as u64) as usize;
        // Twice, as a bit may have tipped on the way.
        let mut zero = false;
        for _ in 0..2 {
            let read = directory.read(name, at, &mut block[..length]);
            zero |= read.is_ok() && block[..length].iter().all(|byte| *byte == 0);
        }
        if !zero {
            return false;
        }
        at += length as u64;
    }
    true
}

/// The place after which entries are needed, the first segment to read, and the place before that
/// segment's first entry.
fn beginning(segments: &[Segment], start: Start) -> Result<(Lsn, usize, Lsn), LogError> {
    let first = segments.first().map(|segment| {
        let floor = segment.source.header.after;
        // The first segment of all begins at the start, whatever its first batch has become.
        segment.first.filter(|_| segment.source.header.number > 1).unwrap_or(floor)
    });
    let from = match start {
        Start::Oldest => return Ok((Lsn::START, 0, first.unwrap_or(Lsn::START))),
        Start::After(from) => from,
    };
    let suffices = |segment: &Segment| segment.first.is_some_and(|first| first <= from);
    if let Some(index) = segments.iter().rposition(suffices) {
        let expected = segments[index].first.expect("it has a first batch");
        return Ok((from, index, expected));
    }
    match (segments.first(), first) {
        (None, _) if from > Lsn::START => Err(LogError::Ends { at: Lsn::START, needed: from }),
        (Some(_), Some(at)) if at > from && !mutant!("durability_beginning_unchecked") => {
            Err(LogError::Begins { at, needed: from })
        }
        // Its first batch is not sound: what is missing shows where the next one begins.
        (_, at) => Ok((from, 0, at.unwrap_or(from))),
    }
}
