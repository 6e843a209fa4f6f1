//! A log on a disk, as small as the rules of one allow.
//!
//! What is appended while a flush is under way is the next batch. A batch begins at a sector, so
//! that no durable byte shares one with bytes that are not, and carries a checksum over its place and
//! all that is in it. No batch is written before the one before it is durable. Hence at most the last
//! batch can be torn: one that is invalid with a valid one behind it was durable, and has rotted.

use quorate_disk::{Device, DeviceError};
use quorate_machine::mutant;
use quorate_types::{Instant, Lsn};

/// Checksum, bytes of the body, and the place before the first record.
const HEADER_BYTES: usize = 4 + 4 + 8;

/// Why a log can't be opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OpenError {
    /// Something that was durable is not as it was.
    Damaged,
    /// The disk can't be read now.
    Unreadable,
}

enum Doing {
    Nothing,
    /// These bytes belong at the end of the log, and so many of them have been written.
    Writing(Vec<u8>, usize),
    Flushing {
        bytes: usize,
        /// What will be durable.
        until: Lsn,
    },
}

pub(crate) struct Log {
    pub(crate) disk: Device,
    /// Where the next batch begins.
    end: usize,
    /// The records of the next batch, each behind its length.
    records: Vec<u8>,
    appended: Lsn,
    /// What the last batch that is durable begins after.
    pub(crate) last_batch: Lsn,
    durable: Lsn,
    doing: Doing,
}

/// What an earlier process has left.
pub(crate) struct Found {
    /// The records, each with the place behind it.
    pub(crate) records: Vec<(Lsn, Vec<u8>)>,
    end: usize,
    last_batch: Lsn,
}

impl Found {
    /// Finds the records of a log, without a torn batch at its end.
    pub(crate) fn on(disk: &mut Device) -> Result<Self, OpenError> {
        let mut bytes = vec![0; disk.size()];
        disk.read(0, &mut bytes).map_err(|_| OpenError::Unreadable)?;
        let sector = disk.sector_bytes();
        let (mut end, mut lsn, mut last_batch) = (0, Lsn::START, Lsn::START);
        let mut records = Vec::new();
        while let Some(batch) = batch_at(&bytes, end, lsn) {
            last_batch = lsn;
            for record in batch.records {
                lsn = Lsn(lsn.0 + 1);
                records.push((lsn, record));
            }
            end = (end + batch.bytes).next_multiple_of(sector);
        }
        let mut behind = (end..bytes.len()).step_by(sector).skip(1);
        let is_damaged = behind.any(|at| is_batch(&bytes, at));
        if is_damaged && !mutant!("sim_log_rot_truncated") {
            return Err(OpenError::Damaged);
        }
        Ok(Self { records, end, last_batch })
    }
}

impl Log {
    /// Goes on behind what was found.
    pub(crate) fn open(disk: Device, found: &Found) -> Self {
        let lsn = found.records.last().map_or(Lsn::START, |(lsn, _)| *lsn);
        Self {
            disk,
            end: found.end,
            records: Vec::new(),
            appended: lsn,
            last_batch: found.last_batch,
            durable: lsn,
            doing: Doing::Nothing,
        }
    }

    pub(crate) fn durable(&self) -> Lsn {
        self.durable
    }

    pub(crate) fn append(&mut self, encode: impl FnOnce(&mut Vec<u8>)) -> Lsn {
        let start = self.records.len();
        self.records.extend_from_slice(&[0; 4]);
        encode(&mut self.records);
        let length = (self.records.len() - start - 4) as u32;
        self.records[start..start + 4].copy_from_slice(&length.to_le_bytes());
        self.appended = Lsn(self.appended.0 + 1);
        self.appended
    }

    /// Does one thing with the disk, if there is one to do now. Returns whether there was.
    pub(crate) fn advance(&mut self, now: Instant) -> Result<bool, DeviceError> {
        match &mut self.doing {
            Doing::Nothing if self.records.is_empty() => Ok(false),
            Doing::Nothing => {
                let records = std::mem::take(&mut self.records);
                self.doing = Doing::Writing(batch(self.end, self.durable, &records), 0);
                self.advance(now)
            }
            Doing::Writing(bytes, written) if *written < bytes.len() => {
                *written += self.disk.write(self.end + *written, &bytes[*written..])?;
                Ok(true)
            }
            Doing::Writing(bytes, _) => {
                self.doing = Doing::Flushing { bytes: bytes.len(), until: self.appended };
                self.disk.flush(now);
                Ok(true)
            }
            Doing::Flushing { .. } => Ok(false),
        }
    }

    /// How far the log is durable, if a flush has just ended.
    pub(crate) fn flushed(&mut self, now: Instant) -> Option<Result<Lsn, DeviceError>> {
        let ended = self.disk.flushed(now)?;
        let Doing::Flushing { bytes, until } = self.doing else { unreachable!("one began it") };
        // Its sectors are anywhere now, and the next flush would not tell.
        if ended.is_err() && !mutant!("sim_log_flush_retried") {
            return Some(Err(DeviceError::Io));
        }
        if ended.is_err() {
            self.disk.flush(now);
            return None;
        }
        self.end = (self.end + bytes).next_multiple_of(self.disk.sector_bytes());
        (self.last_batch, self.durable) = (self.durable, until);
        self.doing = Doing::Nothing;
        Some(Ok(until))
    }
}

fn batch(at: usize, after: Lsn, records: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    bytes.extend_from_slice(&(records.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&after.0.to_le_bytes());
    bytes.extend_from_slice(records);
    let sum = checksum(at, &bytes[4..]);
    bytes[..4].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn checksum(at: usize, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&(at as u64).to_le_bytes()), bytes)
}

struct Batch {
    bytes: usize,
    records: Vec<Vec<u8>>,
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..at + 4)?;
    Some(u32::from_le_bytes(word.try_into().expect("four bytes")))
}

/// The body of the batch at a place, if there is one as it was written.
fn body_at(bytes: &[u8], at: usize) -> Option<&[u8]> {
    let length = word(bytes, at + 4)? as usize;
    let whole = bytes.get(at + 4..at + HEADER_BYTES + length)?;
    (length > 0).then_some(whole)
}

fn is_batch(bytes: &[u8], at: usize) -> bool {
    body_at(bytes, at).is_some_and(|body| word(bytes, at) == Some(checksum(at, body)))
}

/// The batch at a place, if it goes on after `lsn`.
fn batch_at(bytes: &[u8], at: usize, lsn: Lsn) -> Option<Batch> {
    let body = body_at(bytes, at)?;
    if !is_batch(bytes, at) && !mutant!("sim_log_torn_accepted") {
        return None;
    }
    let after = u64::from_le_bytes(body.get(4..12)?.try_into().expect("eight bytes"));
    if after != lsn.0 {
        return None;
    }
    let (mut rest, mut records) = (&body[12..], Vec::new());
    while !rest.is_empty() {
        let length = word(rest, 0)? as usize;
        records.push(rest.get(4..4 + length)?.to_vec());
        rest = &rest[4 + length..];
    }
    Some(Batch { bytes: 4 + body.len(), records })
}
