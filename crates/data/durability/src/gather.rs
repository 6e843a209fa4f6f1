//! Entries that wait for the disk, as the batches that they will be.

use std::collections::VecDeque;
use std::mem;

use quorate_types::{KeyspaceId, Lsn};

use crate::format::{ENTRY_BYTES_MAX, Entry, HEAD_BYTES, PART_BYTES, put_part_head};

/// A batch that gathers or waits.
#[derive(Clone, Debug)]
pub(crate) struct Gathered {
    /// Its bytes, with room for the head.
    pub(crate) bytes: Vec<u8>,
    /// Its parts of entries.
    pub(crate) count: u32,
    /// Where it belongs, for a batch that is written again.
    pub(crate) after: Option<Lsn>,
    /// Whether it is there already, and is written again as a copy.
    pub(crate) is_copy: bool,
}

/// The batches that wait, the oldest first.
#[derive(Debug)]
pub(crate) struct Gather {
    batches: VecDeque<Gathered>,
    bytes: usize,
    batch_bytes_max: usize,
    /// Memory of an earlier batch.
    idle: Vec<u8>,
}

impl Gather {
    pub(crate) fn new(batch_bytes_max: u32) -> Self {
        let batch_bytes_max = batch_bytes_max as usize;
        Self { batches: VecDeque::new(), bytes: 0, batch_bytes_max, idle: Vec::new() }
    }

    /// Bytes that wait.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn front(&self) -> Option<&Gathered> {
        self.batches.front()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// Whether the oldest batch takes no more.
    pub(crate) fn has_full(&self) -> bool {
        self.batches.len() > 1
    }

    pub(crate) fn pop(&mut self) -> Option<Gathered> {
        let batch = self.batches.pop_front()?;
        self.bytes -= batch.bytes.len();
        Some(batch)
    }

    /// Puts a batch before the others.
    pub(crate) fn push_front(&mut self, batch: Gathered) {
        self.bytes += batch.bytes.len();
        self.batches.push_front(batch);
    }

    /// Gives memory back.
    pub(crate) fn reuse(&mut self, memory: Vec<u8>) {
        if self.idle.capacity() == 0 {
            self.idle = memory;
        }
    }

    /// Adds an entry, whose bytes `encode` writes. Returns how many parts it has.
    pub(crate) fn append(
        &mut self,
        kind: u8,
        keyspace: KeyspaceId,
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> u64 {
        if self.batches.back().is_none_or(|batch| batch.after.is_some()) {
            self.begin();
        }
        let batch = self.batches.back_mut().expect("one was begun");
        let start = batch.bytes.len();
        put_part_head(&mut batch.bytes, false, false, Entry { kind, keyspace, bytes: &[] });
        encode(&mut batch.bytes);
        let length = batch.bytes.len() - start - PART_BYTES;
        assert!(length <= ENTRY_BYTES_MAX, "an entry of {length} bytes");
        if batch.bytes.len() <= self.batch_bytes_max {
            batch.bytes[start..start + 4].copy_from_slice(&(length as u32).to_le_bytes());
            batch.count += 1;
            self.bytes += PART_BYTES + length;
            return 1;
        }
        // It does not fit behind the others.
        let entry = batch.bytes.split_off(start);
        if batch.count == 0 {
            self.bytes -= HEAD_BYTES;
            self.batches.pop_back();
        }
        self.append_parts(Entry { kind, keyspace, bytes: &entry[PART_BYTES..] })
    }

    fn begin(&mut self) {
        let mut bytes = mem::take(&mut self.idle);
        bytes.clear();
        bytes.resize(HEAD_BYTES, 0);
        self.bytes += HEAD_BYTES;
        self.batches.push_back(Gathered { bytes, count: 0, after: None, is_copy: false });
    }

    /// An entry in batches of its own, in as many parts as it takes.
    fn append_parts(&mut self, entry: Entry<'_>) -> u64 {
        let most = self.batch_bytes_max - HEAD_BYTES - PART_BYTES;
        let parts = entry.bytes.len().div_ceil(most).max(1);
        for index in 0..parts {
            self.begin();
            let end = entry.bytes.len().min((index + 1) * most);
            let bytes = &entry.bytes[index * most..end];
            let batch = self.batches.back_mut().expect("one was begun");
            put_part_head(&mut batch.bytes, index + 1 < parts, index > 0, Entry { bytes, ..entry });
            batch.bytes.extend_from_slice(bytes);
            batch.count = 1;
            self.bytes += PART_BYTES + bytes.len();
        }
        parts as u64
    }
}
