//! A disk in virtual time: sectors behind a volatile cache, with the faults that real ones have.
//!
//! What is written lies in the cache, where reads find it, until a flush makes it durable. When the
//! power goes, every sector that no flush has covered is kept or lost, whole or in part, as the seed
//! decides: all of a write, a prefix, a suffix, or sectors here and there. What an honest flush has
//! covered stays. Every other fault is asked for in [`DeviceFaults`] or by a method, and counted under
//! a name of [`DEVICE_EVENTS`], so that a test can show that it occurred.
//!
//! The disk is as large as it will ever be, as a log has it that fills preallocated segments. It
//! reads no clock: its driver says what time it is.

use std::collections::BTreeMap;
use std::ops::Range;

use quorate_machine::Rng;
use quorate_types::{Duration, Instant};

use crate::fates::Fates;

/// How long an ordinary flush takes at most, and at least a twentieth of that.
const FLUSH_MAX: Duration = Duration::from_millis(2);
/// How much longer one takes at most that stalls.
const STALL_MAX: Duration = Duration::from_secs(2);

/// How many reads are sound at least, behind a rotten one: what reads again may find it whole.
const READS_BETWEEN_ROT: u32 = 64;

/// Everything that a disk counts.
pub const DEVICE_EVENTS: &[&str] = &[
    "flush",
    "flush fails",
    "flush lies",
    "flush stalls",
    "full",
    "power cut: sector garbled",
    "power cut: sector kept",
    "power cut: sector lost",
    "power cut: sector torn",
    "power cut: write torn, interleaved",
    "power cut: write torn, prefix kept",
    "power cut: write torn, suffix kept",
    "read fails",
    "read is rotten",
    "sector misdirected",
    "sector rotten",
    "write",
    "write fails",
    "write is short",
];

/// Which faults a disk has, each as how often of a thousand times it occurs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeviceFaults {
    /// A write takes only the first of its bytes.
    pub short_write: u32,
    /// A write fails and changes nothing.
    pub write_error: u32,
    /// A read fails.
    pub read_error: u32,
    /// A flush fails. Some of its sectors are durable; the others are not, although reads still
    /// find them, and no later flush covers them.
    pub flush_error: u32,
    /// A flush takes up to seconds.
    pub stall: u32,
    /// A flush says that it is done and has covered nothing.
    pub lie: u32,
    /// A sector that a flush covers lands in another place.
    pub misdirection: u32,
    /// A bit of what is read has tipped on the way; of one of so many reads in a row as
    /// `READS_BETWEEN_ROT` says.
    pub read_rot: u32,
    /// A sector that is torn by a power cut holds neither what was written nor what was there.
    pub garbled: u32,
}

/// Why a disk did not do what it was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceError {
    /// No byte fits any more (ENOSPC).
    Full,
    /// The device failed (EIO).
    Io,
}

/// Contents by sector number.
type Sectors = BTreeMap<u64, Vec<u8>>;

/// Bytes that take memory together: a disk takes as much as has been written.
const CHUNK: usize = 64 * 1024;

/// What was never written.
static ZEROS: [u8; 4096] = [0; 4096];

/// The bytes of a disk, zeros to begin with.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Store {
    bytes: usize,
    chunks: Vec<Option<Box<[u8]>>>,
}

impl Store {
    fn new(bytes: usize) -> Self {
        Self { bytes, chunks: vec![None; bytes.div_ceil(CHUNK)] }
    }

    /// The bytes of a sector.
    fn get(&self, span: Range<usize>) -> &[u8] {
        let (chunk, start) = (span.start / CHUNK, span.start % CHUNK);
        match &self.chunks[chunk] {
            Some(bytes) => &bytes[start..start + span.len()],
            None => &ZEROS[..span.len()],
        }
    }

    /// The bytes of a sector, or of a part of one, to be changed.
    fn get_mut(&mut self, span: Range<usize>) -> &mut [u8] {
        let (chunk, start) = (span.start / CHUNK, span.start % CHUNK);
        let bytes = self.chunks[chunk].get_or_insert_with(|| vec![0; CHUNK].into_boxed_slice());
        &mut bytes[start..start + span.len()]
    }

    fn wipe(&mut self, span: Range<usize>) {
        if self.chunks[span.start / CHUNK].is_some() {
            self.get_mut(span).fill(0);
        }
    }
}

#[derive(Clone, Debug)]
struct Flush {
    due: Instant,
    sectors: Sectors,
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Device {
    sector: usize,
    faults: DeviceFaults,
    durable: Store,
    /// Written since the last flush began.
    cached: Sectors,
    flush: Option<Flush>,
    /// What a failed flush has not covered: reads find it, flushes don't.
    forgotten: Sectors,
    /// How many reads are not rotten from now on.
    sound_reads: u32,
    rng: Rng,
    counts: BTreeMap<&'static str, u64>,
}

impl Device {
    /// A disk of `bytes` zeros, with sectors of 512 or 4096 bytes.
    ///
    /// # Panics
    /// If the sectors have another size, or don't fill the disk.
    pub fn new(bytes: usize, sector: usize, faults: DeviceFaults, seed: u64) -> Self {
        assert!(matches!(sector, 512 | 4096), "a sector has 512 or 4096 bytes, not {sector}");
        assert!(bytes.is_multiple_of(sector), "a disk has no part of a sector");
        Self {
            sector,
            faults,
            durable: Store::new(bytes),
            cached: Sectors::new(),
            flush: None,
            forgotten: Sectors::new(),
            sound_reads: 0,
            rng: Rng::new(seed),
            counts: BTreeMap::new(),
        }
    }

    /// Bytes of a sector.
    pub fn sector_bytes(&self) -> usize {
        self.sector
    }

    /// Bytes of the disk.
    pub fn size(&self) -> usize {
        self.durable.bytes
    }

    /// How often each of [`DEVICE_EVENTS`] has occurred.
    pub fn counts(&self) -> &BTreeMap<&'static str, u64> {
        &self.counts
    }

    /// Has other faults from now on.
    pub fn set_faults(&mut self, faults: DeviceFaults) {
        self.faults = faults;
    }

    /// Writes bytes at a place. Returns how many of them were taken, from the first on.
    ///
    /// # Errors
    /// When none was.
    pub fn write(&mut self, at: usize, bytes: &[u8]) -> Result<usize, DeviceError> {
        if self.draw(self.faults.write_error, "write fails") {
            return Err(DeviceError::Io);
        }
        let mut taken = bytes.len().min(self.size().saturating_sub(at));
        if taken < bytes.len() {
            self.count("full");
        }
        if taken == 0 && !bytes.is_empty() {
            return Err(DeviceError::Full);
        }
        if taken > 1 && self.draw(self.faults.short_write, "write is short") {
            taken = 1 + self.rng.below(taken as u64 - 1) as usize;
        }
        self.count("write");
        let mut done = 0;
        while done < taken {
            let (number, offset) = ((at + done) / self.sector, (at + done) % self.sector);
            let length = (self.sector - offset).min(taken - done);
            let mut content = self.content(number as u64).to_vec();
            content[offset..offset + length].copy_from_slice(&bytes[done..done + length]);
            self.cached.insert(number as u64, content);
            done += length;
        }
        Ok(taken)
    }

    /// Reads from a place: what was written last, durable or not.
    ///
    /// # Errors
    /// When the device fails.
    ///
    /// # Panics
    /// If the place is not on the disk.
    pub fn read(&mut self, at: usize, into: &mut [u8]) -> Result<(), DeviceError> {
        assert!(at + into.len() <= self.size(), "a read stays on the disk");
        if self.draw(self.faults.read_error, "read fails") {
            return Err(DeviceError::Io);
        }
        let mut done = 0;
        while done < into.len() {
            let (number, offset) = ((at + done) / self.sector, (at + done) % self.sector);
            let length = (self.sector - offset).min(into.len() - done);
            let content = self.content(number as u64);
            into[done..done + length].copy_from_slice(&content[offset..offset + length]);
            done += length;
        }
        self.sound_reads = self.sound_reads.saturating_sub(1);
        if self.sound_reads == 0
            && !into.is_empty()
            && self.draw(self.faults.read_rot, "read is rotten")
        {
            self.sound_reads = READS_BETWEEN_ROT;
            let at = self.rng.below(into.len() as u64) as usize;
            into[at] ^= 1 << self.rng.below(8);
        }
        Ok(())
    }

    /// What reads find in a sector.
    fn content(&self, number: u64) -> &[u8] {
        let flushing = self.flush.as_ref().and_then(|flush| flush.sectors.get(&number));
        let newest = self.cached.get(&number).or(flushing).or(self.forgotten.get(&number));
        newest.map_or_else(|| self.durable.get(self.span(number)), Vec::as_slice)
    }

    fn span(&self, number: u64) -> Range<usize> {
        let start = number as usize * self.sector;
        start..start + self.sector
    }

    // --- flushes -------------------------------------------------------------------------------

    /// Begins to make durable what has been written so far.
    ///
    /// # Panics
    /// If a flush is under way.
    pub fn flush(&mut self, now: Instant) {
        assert!(self.flush.is_none(), "one flush at a time");
        let least = FLUSH_MAX / 20;
        let mut takes = least + self.rng.span_below(FLUSH_MAX - least);
        if self.draw(self.faults.stall, "flush stalls") {
            takes += self.rng.span_below(STALL_MAX);
        }
        let sectors = std::mem::take(&mut self.cached);
        self.flush = Some(Flush { due: now + takes, sectors });
    }

    /// When the flush under way ends; [`Instant::NEVER`] if none is.
    pub fn next_deadline(&self) -> Instant {
        self.flush.as_ref().map_or(Instant::NEVER, |flush| flush.due)
    }

    /// How the flush ended, once it has.
    pub fn flushed(&mut self, now: Instant) -> Option<Result<(), DeviceError>> {
        let flush = self.flush.take_if(|flush| flush.due <= now)?;
        self.count("flush");
        if self.draw(self.faults.lie, "flush lies") {
            // What was written since is newer.
            for (number, content) in flush.sectors {
                self.cached.entry(number).or_insert(content);
            }
            return Some(Ok(()));
        }
        let fails = self.draw(self.faults.flush_error, "flush fails");
        for (number, content) in flush.sectors {
            if fails && self.rng.chance(1, 2) {
                self.forgotten.insert(number, content);
            } else {
                self.persist(number, &content);
            }
        }
        Some(if fails { Err(DeviceError::Io) } else { Ok(()) })
    }

    /// Makes the sectors durable at once that `covers` names, as far as they have been written.
    ///
    /// # Errors
    /// If the flush fails.
    ///
    /// # Panics
    /// If another flush is under way.
    pub fn flush_sectors(&mut self, covers: impl Fn(u64) -> bool) -> Result<(), DeviceError> {
        let all = std::mem::take(&mut self.cached);
        let (mine, others): (Sectors, Sectors) =
            all.into_iter().partition(|(number, _)| covers(*number));
        self.cached = mine;
        self.flush(Instant::ZERO);
        let ended = self.flushed(Instant::NEVER).expect("it is due");
        self.cached.extend(others);
        ended
    }

    /// Has zeros in a sector, durably, as a file system gives out room of a file that is gone.
    pub fn wipe(&mut self, number: u64) {
        self.cached.remove(&number);
        self.forgotten.remove(&number);
        let span = self.span(number);
        self.durable.wipe(span);
    }

    fn persist(&mut self, number: u64, content: &[u8]) {
        self.forgotten.remove(&number);
        let mut place = number;
        if self.draw(self.faults.misdirection, "sector misdirected") {
            // Near where it belongs, as a wrong bit of an address or a lost track does it.
            let sectors = (self.size() / self.sector) as u64;
            place = (number + 1 + self.rng.below(4)) % sectors;
        }
        let span = self.span(place);
        self.durable.get_mut(span).copy_from_slice(content);
    }

    // --- what happens to it --------------------------------------------------------------------

    /// The power goes and comes back: what no flush has covered is kept, lost or torn.
    pub fn power_cut(&mut self) {
        self.forgotten.clear();
        let flushing = self.flush.take().map(|flush| flush.sectors).unwrap_or_default();
        // A flush that was under way may have got anywhere, and the cache writes back when it likes.
        for sectors in [flushing, std::mem::take(&mut self.cached)] {
            self.tear(sectors);
        }
    }

    fn tear(&mut self, sectors: Sectors) {
        let count = sectors.len() as u64;
        if count == 0 {
            return;
        }
        let fates = Fates::draw(&mut self.rng, count);
        let mut kept_any = [false; 2];
        for (index, (number, content)) in (0..).zip(sectors) {
            let kept = fates.is_kept(index, &mut self.rng);
            kept_any[usize::from(kept)] = true;
            if self.rng.chance(1, 8) {
                self.tear_sector(number, &content);
            } else if kept {
                self.count("power cut: sector kept");
                let span = self.span(number);
                self.durable.get_mut(span).copy_from_slice(&content);
            } else {
                self.count("power cut: sector lost");
            }
        }
        if kept_any == [true; 2] {
            self.count(fates.event());
        }
    }

    /// One part of a sector is what was written, the other what was there.
    fn tear_sector(&mut self, number: u64, content: &[u8]) {
        if self.draw(self.faults.garbled, "power cut: sector garbled") {
            let span = self.span(number);
            for byte in self.durable.get_mut(span) {
                *byte = self.rng.next_u64() as u8;
            }
            return;
        }
        self.count("power cut: sector torn");
        let (span, border) =
            (self.span(number), 1 + self.rng.below(self.sector as u64 - 1) as usize);
        let part = if self.rng.chance(1, 2) { 0..border } else { border..self.sector };
        self.durable.get_mut(span)[part.clone()].copy_from_slice(&content[part]);
    }

    /// A few bits rot in a sector that holds something, among the first `bytes` of the disk. Returns
    /// which byte is the first that changed, if the disk holds any.
    pub fn rot(&mut self, bytes: usize) -> Option<usize> {
        let holds =
            |number: &u64| self.durable.get(self.span(*number)).iter().any(|byte| *byte != 0);
        let written: Vec<u64> = (0..(bytes / self.sector) as u64).filter(holds).collect();
        if written.is_empty() {
            return None;
        }
        let number = written[self.rng.below(written.len() as u64) as usize];
        let first = self.span(number).start + self.rng.below(self.sector as u64) as usize;
        let end = self.span(number).end.min(first + 1 + self.rng.below(8) as usize);
        for byte in self.durable.get_mut(first..end) {
            *byte ^= 1 << self.rng.below(8);
        }
        self.count("sector rotten");
        Some(first)
    }

    /// What reads find, without faults.
    pub fn peek(&self, at: usize, length: usize) -> Vec<u8> {
        let (first, end) = (at / self.sector, (at + length).div_ceil(self.sector));
        let sectors = (first..end).flat_map(|number| self.content(number as u64));
        sectors.skip(at % self.sector).take(length).copied().collect()
    }

    /// A byte has another value, in the cache and for good.
    pub fn damage(&mut self, at: usize, byte: u8) {
        let (number, offset) = ((at / self.sector) as u64, at % self.sector);
        if let Some(content) = self.cached.get_mut(&number) {
            content[offset] = byte;
        }
        self.durable.get_mut(at..at + 1)[0] = byte;
    }

    // --- chance --------------------------------------------------------------------------------

    fn draw(&mut self, of_thousand: u32, name: &'static str) -> bool {
        let occurs = of_thousand > 0 && self.rng.chance(u64::from(of_thousand), 1000);
        if occurs {
            self.count(name);
        }
        occurs
    }

    fn count(&mut self, name: &'static str) {
        *self.counts.entry(name).or_default() += 1;
    }
}

#[cfg(test)]
mod tests;
