//! Reads batches out of a file, in memory that what a batch may hold bounds.

use core::ops::Range;

use quorate_machine::mutant;
use quorate_types::Lsn;

use crate::format::{HEAD_BYTES, HEADER_BYTES, Head, Header, HeaderError, checksum};
use crate::{Directory, DiskError, Name};

/// How much is read at once, unless a batch is larger.
const WINDOW_BYTES: u64 = 256 * 1024;
/// How much is read at once where the device fails, to lose no more than it does.
const BLOCK_BYTES: u64 = 4096;

/// A file with a sound header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Source {
    pub(crate) name: Name,
    pub(crate) header: Header,
    /// Its length.
    pub(crate) bytes: u64,
}

/// Reads a header; in a second attempt if the first gives nothing, as a bit may have tipped on the
/// way. Of a file that is too short for one it is damaged.
pub(crate) fn read_header(
    directory: &mut impl Directory,
    file: &Name,
    bytes: u64,
) -> Result<Result<Header, HeaderError>, DiskError> {
    if bytes < HEADER_BYTES as u64 {
        return Ok(Err(HeaderError::Damaged));
    }
    let mut header = Err(HeaderError::Damaged);
    for _ in 0..2 {
        let mut bytes = [0; HEADER_BYTES];
        let mut read = directory.read(file, 0, &mut bytes);
        if read.is_err() {
            read = directory.read(file, 0, &mut bytes);
        }
        read?;
        header = Header::decode(&bytes);
        if header.is_ok() {
            break;
        }
    }
    Ok(header)
}

/// A batch as it was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Batch {
    pub(crate) offset: u64,
    pub(crate) after: Lsn,
    pub(crate) until: Lsn,
    /// The bytes of the head and the entries.
    pub(crate) bytes: usize,
}

/// A part of a file in memory.
#[derive(Debug, Default)]
pub(crate) struct Window {
    file: Option<Name>,
    start: u64,
    bytes: Vec<u8>,
    /// The last batch of these bytes that was found sound.
    sound: Option<Batch>,
    /// The first byte that could not be read since this was asked last, with its file.
    unreadable: Option<(Name, u64)>,
}

impl Window {
    /// Where the device has failed since the last call.
    pub(crate) fn take_unreadable(&mut self) -> Option<(Name, u64)> {
        self.unreadable.take()
    }

    /// Forgets what it has read.
    pub(crate) fn clear(&mut self) {
        self.file = None;
    }

    /// Bytes of a file. What can't be read is zero, and noted. The caller has compared `length` with
    /// the file's own and with what a batch may hold.
    pub(crate) fn at(
        &mut self,
        directory: &mut impl Directory,
        source: &Source,
        offset: u64,
        length: usize,
    ) -> &[u8] {
        let end = offset + length as u64;
        debug_assert!(end <= source.bytes, "the caller has compared it");
        let is_here = self.file.as_ref() == Some(&source.name)
            && offset >= self.start
            && end <= self.start + self.bytes.len() as u64;
        if !is_here {
            self.fill(directory, source, offset, end);
        }
        &self.bytes[self.range(offset, length)]
    }

    /// All bytes that are in memory.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Where these have the entries of a batch that was found last.
    pub(crate) fn entries(&self, batch: Batch) -> Range<usize> {
        self.range(batch.offset + HEAD_BYTES as u64, batch.bytes - HEAD_BYTES)
    }

    fn range(&self, offset: u64, length: usize) -> Range<usize> {
        let from = (offset - self.start) as usize;
        from..from + length
    }

    fn fill(&mut self, directory: &mut impl Directory, source: &Source, offset: u64, end: u64) {
        let end = end.max(offset + WINDOW_BYTES).min(source.bytes);
        self.file = Some(source.name.clone());
        self.start = offset;
        if !mutant!("durability_unread_bytes_are_sound") {
            self.sound = None;
        }
        self.bytes.resize((end - offset) as usize, 0);
        if directory.read(&source.name, offset, &mut self.bytes).is_ok() {
            return;
        }
        let mut at = offset;
        while at < end {
            let next = (at / BLOCK_BYTES + 1) * BLOCK_BYTES;
            let block = &mut self.bytes[(at - offset) as usize..(next.min(end) - offset) as usize];
            let first = directory.read(&source.name, at, block);
            if first.is_err() && directory.read(&source.name, at, block).is_err() {
                block.fill(0);
                self.unreadable.get_or_insert_with(|| (source.name.clone(), at));
            }
            at = next;
        }
    }

    /// The batch that begins at a place of a file, if there is a sound one.
    pub(crate) fn batch(
        &mut self,
        directory: &mut impl Directory,
        source: &Source,
        offset: u64,
    ) -> Option<Batch> {
        if offset + HEAD_BYTES as u64 > source.bytes {
            return None;
        }
        // The same bytes, which nothing has been read over since.
        if let Some(batch) = self.sound.filter(|batch| batch.offset == offset)
            && self.file.as_ref() == Some(&source.name)
        {
            return Some(batch);
        }
        let head = Head::decode(self.at(directory, source, offset, HEAD_BYTES));
        let Header { batch_bytes_max, salt, .. } = source.header;
        if !head.is_possible(offset, batch_bytes_max, source.bytes) {
            return None;
        }
        let bytes = HEAD_BYTES + head.length as usize;
        let batch = Batch { offset, after: head.after, until: head.until(), bytes };
        let entries = self.at(directory, source, offset, bytes);
        let sum = checksum(salt, offset, entries);
        let sound = sum == head.checksum || mutant!("durability_torn_accepted");
        self.sound = sound.then_some(batch);
        self.sound
    }

    /// The same, read a second time if the first gives nothing: a bit may have tipped on the way,
    /// and what is taken for the end of a log is written over.
    pub(crate) fn batch_twice(
        &mut self,
        directory: &mut impl Directory,
        source: &Source,
        offset: u64,
    ) -> Option<Batch> {
        let first = self.batch(directory, source, offset);
        if first.is_some() || mutant!("durability_read_once") {
            return first;
        }
        self.clear();
        self.batch(directory, source, offset)
    }

    /// The first sound batch of a file at a place or behind it that says something of what comes
    /// behind `expected`.
    pub(crate) fn next_batch(
        &mut self,
        directory: &mut impl Directory,
        source: &Source,
        from: u64,
        expected: Lsn,
    ) -> Option<Batch> {
        let step = u64::from(source.header.align);
        let mut at = from;
        while at + HEAD_BYTES as u64 <= source.bytes {
            // Most places hold zeros, or what an earlier use of the file has left, which is older.
            let head = Head::decode(self.at(directory, source, at, HEAD_BYTES));
            if head.length != 0
                && head.until() >= expected
                && let Some(batch) = self.batch(directory, source, at)
            {
                return Some(batch);
            }
            at += step;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use quorate_types::{Incarnation, LaneId, NodeId};

    use super::*;
    use crate::FileEntry;
    use crate::format::{FileKind, Identity};

    struct OneFile(Vec<u8>);

    impl Directory for OneFile {
        fn files(&mut self) -> Result<Vec<FileEntry>, DiskError> {
            Ok(Vec::new())
        }

        fn read(&mut self, _: &str, offset: u64, into: &mut [u8]) -> Result<(), DiskError> {
            into.copy_from_slice(&self.0[offset as usize..][..into.len()]);
            Ok(())
        }
    }

    #[test]
    fn what_was_sound_is_checked_again_when_it_is_read_again() {
        let (salt, at) = (7, HEADER_BYTES as u64);
        let mut batch = vec![1; HEAD_BYTES + 64];
        let head = [64u32.to_le_bytes(), 1u32.to_le_bytes(), [0; 4], [0; 4]].concat();
        batch[..16].copy_from_slice(&head);
        let sum = checksum(salt, at, &batch);
        batch[16..20].copy_from_slice(&sum.to_le_bytes());
        let mut file = vec![0; 2 * WINDOW_BYTES as usize];
        file[HEADER_BYTES..][..batch.len()].copy_from_slice(&batch);
        let bytes = file.len() as u64;
        let header = Header {
            kind: FileKind::Segment,
            identity: Identity { node: NodeId(1), lane: LaneId(0), cluster: Incarnation(1) },
            number: 1,
            after: Lsn::START,
            salt,
            file_bytes: bytes,
            batch_bytes_max: 4096,
            align: 512,
        };
        let source = Source { name: "file".into(), header, bytes };
        let (mut window, mut directory) = (Window::default(), OneFile(file));
        let found = window.batch(&mut directory, &source, at);
        assert!(found.is_some_and(|found| found.bytes == batch.len()));
        directory.0[HEADER_BYTES + HEAD_BYTES] ^= 1;
        assert_eq!(window.batch(&mut directory, &source, at), found, "these bytes are in memory");
        window.at(&mut directory, &source, bytes - 1, 1);
        assert_eq!(window.batch(&mut directory, &source, at), None);
    }
}
