//! Entries out of the parts of batches.

use quorate_types::{KeyspaceId, Lsn};

use crate::format::{ENTRY_BYTES_MAX, Entry, take_part};

/// A batch whose entries are given out, and an entry of several parts that is not whole yet.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    batch: Vec<u8>,
    used: usize,
    place: Lsn,
    joined: Vec<u8>,
    joining: Option<(u8, KeyspaceId)>,
}

/// Where a whole entry is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Whole {
    pub(crate) place: Lsn,
    kind: u8,
    keyspace: KeyspaceId,
    /// In the batch, unless it was joined.
    range: Option<(usize, usize)>,
}

impl Parts {
    /// Takes over the entries of a batch whose first has the place behind `after`, without those up
    /// to `known`. False if they are not `count` well-formed parts.
    pub(crate) fn load(&mut self, entries: &[u8], count: u64, after: Lsn, known: Lsn) -> bool {
        self.batch.clear();
        self.batch.extend_from_slice(entries);
        (self.used, self.place) = (0, after);
        let mut rest = entries;
        let mut found = 0;
        while let Some(_part) = take_part(&mut rest) {
            found += 1;
            if after.0 + found == known.0 {
                self.used = entries.len() - rest.len();
                self.place = known;
            }
        }
        let sound = rest.is_empty() && found == count;
        if !sound {
            self.used = self.batch.len();
        }
        sound
    }

    /// Another part of the entry is lost: forgets those that were read.
    pub(crate) fn interrupt(&mut self) {
        self.joining = None;
    }

    /// The next whole entry behind the place `from`; `None` if another batch is needed.
    pub(crate) fn next(&mut self, from: Lsn) -> Result<Option<Whole>, &'static str> {
        loop {
            let mut rest = &self.batch[self.used..];
            let Some(part) = take_part(&mut rest) else { return Ok(None) };
            let Entry { kind, keyspace, bytes } = part.entry;
            let (more, continues) = (part.more, part.continues);
            let end = self.batch.len() - rest.len();
            let start = end - bytes.len();
            self.used = end;
            self.place.0 += 1;
            let place = self.place;
            if !continues {
                self.joining = None;
            }
            if place <= from && !more {
                self.joining = None;
                continue;
            }
            if !continues && !more {
                return Ok(Some(Whole { place, kind, keyspace, range: Some((start, end)) }));
            }
            if !continues {
                self.joined.clear();
                self.joining = Some((kind, keyspace));
            } else if self.joining != Some((kind, keyspace)) {
                // Its beginning lies in a segment that is gone.
                continue;
            }
            if self.joined.len() + (end - start) > ENTRY_BYTES_MAX {
                self.joining = None;
                return Err("an entry is too large");
            }
            self.joined.extend_from_slice(&self.batch[start..end]);
            if !more {
                self.joining = None;
                return Ok(Some(Whole { place, kind, keyspace, range: None }));
            }
        }
    }

    /// The entries of the batch that come next, up to one of several parts.
    pub(crate) fn ahead(&self) -> impl Iterator<Item = Entry<'_>> {
        let mut rest = &self.batch[self.used..];
        core::iter::from_fn(move || {
            let part = take_part(&mut rest)?;
            (!part.more && !part.continues).then_some(part.entry)
        })
    }

    /// The entry that the last call has found.
    pub(crate) fn entry(&self, whole: Whole) -> Entry<'_> {
        let bytes = match whole.range {
            Some((start, end)) => &self.batch[start..end],
            None => &self.joined[..],
        };
        Entry { kind: whole.kind, keyspace: whole.keyspace, bytes }
    }
}
