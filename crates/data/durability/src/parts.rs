//! Entries out of the parts of batches.

use core::ops::Range;

use quorate_types::{KeyspaceId, Lsn};

use crate::format::{ENTRY_BYTES_MAX, Entry, take_part};

/// Where the next entries of a batch lie, and an entry of several parts that is not whole yet. The bytes of
/// the batch stay where they were read; every call is given them.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    /// Where the rest of the batch is.
    rest: Range<usize>,
    place: Lsn,
    joined: Vec<u8>,
    joining: Option<(u8, KeyspaceId)>,
}

/// Where a whole entry is.
#[derive(Clone, Debug)]
pub(crate) struct Whole {
    pub(crate) place: Lsn,
    kind: u8,
    keyspace: KeyspaceId,
    /// Where the batch has it, unless it was joined.
    range: Option<Range<usize>>,
}

impl Parts {
    /// Begins with the entries of a batch, which lie in this range of the bytes. The first has the place
    /// behind `after`; those up to `known` are left out. False if they are not `count` well-formed parts.
    pub(crate) fn load(
        &mut self,
        bytes: &[u8],
        entries: Range<usize>,
        count: u64,
        after: Lsn,
        known: Lsn,
    ) -> bool {
        (self.rest, self.place) = (entries.clone(), after);
        let mut rest = &bytes[entries.clone()];
        let mut found = 0;
        while let Some(_part) = take_part(&mut rest) {
            found += 1;
            if after.0 + found == known.0 {
                self.rest.start = entries.end - rest.len();
                self.place = known;
            }
        }
        let sound = rest.is_empty() && found == count;
        if !sound {
            self.rest = 0..0;
        }
        sound
    }

    /// Another part of the entry is lost: forgets those that were read.
    pub(crate) fn interrupt(&mut self) {
        self.joining = None;
    }

    /// The next whole entry behind the place `from`; `None` if another batch is needed: then nothing
    /// is wanted of these bytes any more.
    pub(crate) fn next(&mut self, batch: &[u8], from: Lsn) -> Result<Option<Whole>, &'static str> {
        loop {
            let mut rest = &batch[self.rest.clone()];
            let Some(part) = take_part(&mut rest) else {
                self.rest = 0..0;
                return Ok(None);
            };
            let Entry { kind, keyspace, bytes } = part.entry;
            let (more, continues) = (part.more, part.continues);
            let end = self.rest.end - rest.len();
            let range = end - bytes.len()..end;
            self.rest.start = end;
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
                return Ok(Some(Whole { place, kind, keyspace, range: Some(range) }));
            }
            if !continues {
                self.joined.clear();
                self.joining = Some((kind, keyspace));
            } else if self.joining != Some((kind, keyspace)) {
                // Its beginning lies in a segment that is gone.
                continue;
            }
            if self.joined.len() + bytes.len() > ENTRY_BYTES_MAX {
                self.joining = None;
                return Err("an entry is too large");
            }
            self.joined.extend_from_slice(bytes);
            if !more {
                self.joining = None;
                return Ok(Some(Whole { place, kind, keyspace, range: None }));
            }
        }
    }

    /// The entries of the batch that come next, up to one of several parts.
    pub(crate) fn ahead<'a>(&self, batch: &'a [u8]) -> impl Iterator<Item = Entry<'a>> + use<'a> {
        let mut rest = &batch[self.rest.clone()];
        core::iter::from_fn(move || {
            let part = take_part(&mut rest)?;
            (!part.more && !part.continues).then_some(part.entry)
        })
    }

    /// The entry that the last call has found.
    pub(crate) fn entry<'a>(&'a self, batch: &'a [u8], whole: Whole) -> Entry<'a> {
        let bytes = match whole.range {
            Some(range) => &batch[range],
            None => &self.joined[..],
        };
        Entry { kind: whole.kind, keyspace: whole.keyspace, bytes }
    }
}
