//! The workspace of one run of a transaction (§5.2.1): what it has read, and its own writes on top,
//! which no replica sees before they are validated.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Range;

use quorate_machine::{
    Change, Collection, Content, Current, DetMap, Draft, Record, Table, ValueKind, Workspace,
    may_be_large,
};
use quorate_types::{Timestamp, UnixMillis, hash_key, limits};

use crate::body::{ITEM_BYTES, Item, Write};
use crate::meta::Meta;
use crate::occ::EVERY_WRITER;

/// Beyond this many keys they are found through an index instead of one by one.
const LINEAR_MAX: usize = 12;

/// Bytes of the arena that stay allocated between runs.
const ARENA_KEEP_BYTES: usize = limits::TXN_BYTES_MAX;

/// A value in the workspace.
#[derive(Clone, Debug)]
struct Stored {
    place: Place,
    kind: ValueKind,
    expire_at: Option<UnixMillis>,
}

#[derive(Clone, Debug)]
enum Place {
    /// Its bytes in the arena.
    Arena(Range<usize>),
    /// The draft of its key: it is large.
    Draft,
}

/// One key that was touched.
#[derive(Clone, Debug)]
struct Touched {
    key: Range<usize>,
    /// The hash of the key.
    hash: u64,
    /// The key touched before this one that has the same hash, if this one is in the index.
    same_hash: Option<usize>,
    /// The version that was read, if the key was.
    base: Option<Timestamp>,
    /// Whether there was none.
    absent: bool,
    /// The version that a client sees: an absent key that has none shows none.
    shown: Timestamp,
    /// What was read, if it is large, with what the transaction has changed in it.
    draft: Option<Draft>,
    /// What was read.
    seen: Option<Stored>,
    /// What was written.
    written: Option<Option<Stored>>,
}

/// The workspace's memory, reused from run to run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Work {
    arena: Vec<u8>,
    touched: Vec<Touched>,
    /// Where the key of a hash that was touched last stands, once there are more than
    /// [`LINEAR_MAX`] keys.
    index: DetMap<u64, usize>,
    /// Bytes of the deltas in the drafts.
    delta_bytes: usize,
    /// How many changes were written.
    writes: usize,
    /// Whether a value had no room.
    full: bool,
    /// Keys of partitions without a replica here whose values are not known yet.
    pub(crate) missing: Vec<Vec<u8>>,
    /// The answer of a call, encoded.
    answer: Vec<u8>,
    /// What was fetched of such keys before this run.
    pub(crate) fetched: BTreeMap<Vec<u8>, Fetched>,
}

/// What another node's replica held.
#[derive(Clone, Hash, Debug)]
pub(crate) struct Fetched {
    pub(crate) base: Timestamp,
    pub(crate) value: Option<(Vec<u8>, ValueKind, Option<UnixMillis>)>,
}

/// One run over the records of this node.
pub(crate) struct LocalRun<'a, T, L> {
    pub(crate) table: &'a mut T,
    pub(crate) work: &'a mut Work,
    pub(crate) now: UnixMillis,
    /// Every transaction up to here is applied on this replica: what a key without a record was
    /// certainly absent until.
    pub(crate) floor: u64,
    /// Whether this node has a replica of the key.
    pub(crate) is_local: L,
    /// Whether what it does to a large value that another node's replica held travels as a delta.
    pub(crate) sends_deltas: bool,
}

impl Work {
    pub(crate) fn clear(&mut self) {
        self.arena.clear();
        self.arena.shrink_to(ARENA_KEEP_BYTES);
        self.delta_bytes = 0;
        self.writes = 0;
        self.full = false;
        self.touched.clear();
        self.index.clear();
        self.missing.clear();
        self.answer.clear();
    }

    /// Keeps what was read alone, once the transaction has run.
    pub(crate) fn forget_writes(&mut self) {
        self.touched.retain(|touched| touched.base.is_some());
        self.touched.iter_mut().for_each(|touched| touched.written = None);
        self.index.clear();
    }

    /// What was written so far shows a version from now on that no client has seen: the transaction
    /// that runs next in this workspace did not write it.
    pub(crate) fn hide_versions(&mut self) {
        for touched in self.touched.iter_mut().filter(|touched| touched.written.is_some()) {
            let read = touched.base.map_or(0, |base| base.version);
            touched.shown = Timestamp::new(read + 1, EVERY_WRITER);
        }
    }

    /// How many changes were written.
    pub(crate) fn writes(&self) -> usize {
        self.writes
    }

    /// Whether a key was touched.
    pub(crate) fn touches(&self, key: &[u8], hash: u64) -> bool {
        self.find(key, hash).is_some()
    }

    /// Keeps the answer of a call, which travels with what it does.
    pub(crate) fn keep_answer(&mut self, encode: impl FnOnce(&mut Vec<u8>)) {
        self.answer.clear();
        encode(&mut self.answer);
    }

    /// The answer that was kept, encoded.
    pub(crate) fn answer(&self) -> &[u8] {
        &self.answer
    }

    /// Where a key stands; it is touched now if it was not before.
    fn position(&mut self, key: &[u8]) -> usize {
        let hash = hash_key(key);
        self.find(key, hash).unwrap_or_else(|| self.insert(key, hash))
    }

    fn find(&self, key: &[u8], hash: u64) -> Option<usize> {
        let is_key = |position: usize| {
            let touched = &self.touched[position];
            touched.hash == hash && &self.arena[touched.key.clone()] == key
        };
        if self.touched.len() <= LINEAR_MAX {
            return (0..self.touched.len()).find(|position| is_key(*position));
        }
        let latest = self.index.get(&hash).copied();
        let same_hash = |position: &usize| self.touched[*position].same_hash;
        core::iter::successors(latest, same_hash).find(|position| is_key(*position))
    }

    fn insert(&mut self, key: &[u8], hash: u64) -> usize {
        let position = self.touched.len();
        let key = self.store(key);
        self.touched.push(Touched {
            key,
            hash,
            same_hash: None,
            base: None,
            absent: false,
            shown: Timestamp::ZERO,
            draft: None,
            seen: None,
            written: None,
        });
        let unlisted = match position {
            ..LINEAR_MAX => position..position,
            LINEAR_MAX => 0..position + 1,
            _ => position..position + 1,
        };
        for position in unlisted {
            let touched = &mut self.touched[position];
            touched.same_hash = self.index.insert(touched.hash, position);
        }
        position
    }

    /// Copies bytes into the arena. What goes beyond the limit of a transaction is left out; the
    /// transaction will be refused.
    fn store(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.arena.len();
        self.full |= bytes.len() > limits::TXN_READ_BYTES_MAX - start;
        if !self.full {
            self.arena.extend_from_slice(bytes);
        }
        start..self.arena.len()
    }

    /// Puts a value into the arena.
    fn store_value(
        &mut self,
        bytes: &[u8],
        kind: ValueKind,
        expire_at: Option<UnixMillis>,
    ) -> Stored {
        Stored { place: Place::Arena(self.store(bytes)), kind, expire_at }
    }

    fn write_of<'a>(&'a self, touched: &'a Touched) -> Option<Write<'a>> {
        let Some(Stored { place, kind, expire_at }) = touched.written.as_ref()? else {
            return Some(Write::Delete);
        };
        let content = |bytes| Content { bytes, kind: *kind, expire_at: *expire_at };
        Some(match (place, &touched.draft) {
            (Place::Arena(range), _) => Write::Set(content(&self.arena[range.clone()])),
            (Place::Draft, draft) => {
                let draft = draft.as_ref().expect("what is large is in its draft");
                Write::Delta(content(draft.delta()))
            }
        })
    }

    /// The keys that were touched, and how many bytes they take.
    pub(crate) fn len(&self) -> usize {
        self.touched.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.arena.len() + self.delta_bytes
    }

    /// Whether its keys and what it writes are more than one message carries, with what stands
    /// around each; or whether it has read more than a transaction may.
    pub(crate) fn is_too_large(&self) -> bool {
        let written = |item: &Item<'_>| item.write.as_ref().map_or(0, Write::len);
        let sent: usize = self.items().map(|item| item.key.len() + written(&item)).sum();
        let fields = self.len().saturating_sub(1) * ITEM_BYTES;
        self.len() > limits::TXN_KEYS_MAX
            || sent + fields + self.answer.len() > limits::TXN_BYTES_MAX
            || self.full
    }

    /// Whether nothing was written.
    pub(crate) fn is_read_only(&self) -> bool {
        self.touched.iter().all(|touched| touched.written.is_none())
    }

    /// The largest version that was read.
    pub(crate) fn newest_base(&self) -> u64 {
        self.touched
            .iter()
            .filter_map(|touched| touched.base)
            .map(|base| base.version)
            .max()
            .unwrap_or(0)
    }

    /// The hash of each key that was touched.
    pub(crate) fn hashes(&self) -> impl Iterator<Item = u64> {
        self.touched.iter().map(|touched| touched.hash)
    }

    /// What the transaction did to each key.
    pub(crate) fn items(&self) -> impl Iterator<Item = Item<'_>> {
        self.touched.iter().map(|touched| Item {
            key: &self.arena[touched.key.clone()],
            base: touched.base,
            absent: touched.absent,
            write: self.write_of(touched),
        })
    }
}

/// The version that a reader of an absent key relies on: its tombstone's, or the floor, which stands
/// for all writers, if that is later.
pub(crate) fn absent_base(wts: Timestamp, floor: u64) -> Timestamp {
    match floor {
        0 => wts,
        floor => wts.max(Timestamp::new(floor, EVERY_WRITER)),
    }
}

impl<T: Table<Meta = Meta>, L: Fn(&[u8]) -> bool> LocalRun<'_, T, L> {
    /// Reads a key into the workspace, once: later reads find the same version.
    fn load(&mut self, position: usize, key: &[u8]) {
        if self.work.touched[position].base.is_some() {
            return;
        }
        if !(self.is_local)(key) {
            return self.load_fetched(position, key);
        }
        let mut shown = Timestamp::ZERO;
        let mut base = absent_base(shown, self.floor);
        let mut seen = None;
        if let Some(record) = self.table.lock_existing(key) {
            shown = record.meta().wts;
            base = absent_base(shown, self.floor);
            if let Some(Content { bytes, kind, expire_at }) = record.content() {
                base = shown;
                seen = Some(match record.large() {
                    Some(large) => {
                        self.work.touched[position].draft = Some(Draft::new(large.clone()));
                        Stored { place: Place::Draft, kind, expire_at }
                    }
                    None => self.work.store_value(bytes, kind, expire_at),
                });
            }
        }
        self.keep(position, base, shown, seen);
    }

    fn load_fetched(&mut self, position: usize, key: &[u8]) {
        let Some(fetched) = self.work.fetched.get(key).cloned() else {
            self.work.missing.push(key.to_vec());
            return self.keep(position, Timestamp::ZERO, Timestamp::ZERO, None);
        };
        let seen = fetched.value.map(|(bytes, kind, expire_at)| {
            let is_large = self.sends_deltas
                && bytes.len() > limits::PACKED_BYTES_MAX
                && may_be_large(kind, &bytes);
            match Collection::unpack(kind, &bytes).ok().filter(|_| is_large) {
                Some(large) => {
                    self.work.touched[position].draft = Some(Draft::new(large));
                    Stored { place: Place::Draft, kind, expire_at }
                }
                None => self.work.store_value(&bytes, kind, expire_at),
            }
        });
        let shown = if seen.is_some() { fetched.base } else { Timestamp::ZERO };
        self.keep(position, fetched.base, shown, seen);
    }

    /// Changes the large value that the transaction sees.
    fn change_draft(
        &mut self,
        position: usize,
        delta: &[u8],
        expire_at: Option<UnixMillis>,
    ) -> Stored {
        let work = &mut *self.work;
        let room = limits::TXN_READ_BYTES_MAX - work.arena.len().min(limits::TXN_READ_BYTES_MAX);
        work.full |= work.delta_bytes + delta.len() > room;
        let draft = work.touched[position].draft.as_mut();
        let draft = draft.expect("who changes a large value has seen it");
        let kind = draft.look().kind();
        if !work.full {
            draft.change(delta);
            work.delta_bytes += delta.len();
        }
        Stored { place: Place::Draft, kind, expire_at }
    }

    fn keep(&mut self, position: usize, base: Timestamp, shown: Timestamp, seen: Option<Stored>) {
        let expired = |stored: &Stored| stored.expire_at.is_some_and(|at| at <= self.now);
        let touched = &mut self.work.touched[position];
        touched.base = Some(base);
        touched.absent = seen.is_none();
        touched.shown = shown;
        if seen.as_ref().is_some_and(expired) {
            // The transaction that finds a value expired deletes it, so that no other node whose
            // clock is behind returns it afterwards.
            touched.written.get_or_insert(None);
        } else {
            touched.seen = seen;
        }
    }
}

impl<T: Table<Meta = Meta>, L: Fn(&[u8]) -> bool> Workspace for LocalRun<'_, T, L> {
    fn read(&mut self, key: &[u8]) -> Current<'_> {
        let position = self.work.position(key);
        // What the transaction has written itself needs no read of what was there before, except
        // that a version is asked for.
        if self.work.touched[position].written.is_none() {
            self.load(position, key);
        }
        let Work { arena, touched, .. } = &mut *self.work;
        let Touched { draft, seen, written, shown, .. } = &mut touched[position];
        let timestamp = *shown;
        let Some(Stored { place, kind, expire_at }) = written.as_ref().unwrap_or(seen) else {
            return Current { timestamp, ..Current::ABSENT };
        };
        let (bytes, large) = match place {
            Place::Arena(range) => (&arena[range.clone()], None),
            Place::Draft => {
                let draft = draft.as_mut().expect("what is large is in its draft");
                (&[][..], Some(draft.look()))
            }
        };
        let content = Content { bytes, kind: *kind, expire_at: *expire_at };
        Current { content: Some(content), large, timestamp }
    }

    fn warm(&self, keys: &mut dyn Iterator<Item = &[u8]>) {
        self.table.warm(keys);
    }

    fn write(&mut self, key: &[u8], change: Change<'_>) {
        let position = self.work.position(key);
        let written = match change {
            Change::Keep => return,
            Change::Set { bytes, kind, expire_at } => {
                Some(self.work.store_value(&bytes, kind, expire_at))
            }
            Change::Delete => None,
            Change::Delta { bytes, expire_at } => {
                Some(self.change_draft(position, &bytes, expire_at))
            }
            Change::Expire(expire_at) => {
                if self.work.touched[position].written.is_none() {
                    self.load(position, key);
                }
                let touched = &self.work.touched[position];
                let stored = touched.written.as_ref().unwrap_or(&touched.seen);
                let Some(stored) = stored else { return };
                Some(Stored { expire_at, ..stored.clone() })
            }
        };
        self.work.touched[position].written = Some(written);
        self.work.writes += 1;
    }

    fn is_full(&self) -> bool {
        self.work.full
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::occ::install;
    use quorate_machine::MapTable;
    use quorate_types::WriterId;

    fn at(version: u64) -> Timestamp {
        Timestamp::new(version, WriterId(1))
    }

    fn set(bytes: &[u8]) -> Change<'_> {
        Change::Set { bytes: bytes.into(), kind: ValueKind::String, expire_at: None }
    }

    fn content(bytes: &[u8], expire_at: Option<u64>) -> Content<'_> {
        Content { bytes, kind: ValueKind::String, expire_at: expire_at.map(UnixMillis) }
    }

    fn install_value(table: &mut MapTable<Meta>, key: &[u8], at: Timestamp, value: Content<'_>) {
        assert!(install(&mut table.lock_key(key, 0), at, None, Write::Set(value)));
    }

    fn table() -> MapTable<Meta> {
        let mut table = MapTable::default();
        install_value(&mut table, b"a", at(5), content(b"one", None));
        install_value(&mut table, b"old", at(6), content(b"x", Some(99)));
        table
    }

    fn run(
        table: &mut MapTable<Meta>,
        work: &mut Work,
        act: impl FnOnce(&mut dyn FnMut(Step<'_>)),
    ) {
        work.clear();
        let mut run = LocalRun {
            table,
            work,
            now: UnixMillis(100),
            floor: 3,
            is_local: |_: &[u8]| true,
            sends_deltas: true,
        };
        act(&mut |step| match step {
            Step::Read(key, expected) => {
                assert_eq!(run.read(key).content.map(|content| content.bytes), expected);
            }
            Step::Write(key, change) => run.write(key, change),
        });
    }

    enum Step<'a> {
        Read(&'a [u8], Option<&'a [u8]>),
        Write(&'a [u8], Change<'a>),
    }

    #[test]
    fn own_writes_are_read_and_blind_writes_read_nothing() {
        let (mut table, mut work) = (table(), Work::default());
        run(&mut table, &mut work, |step| {
            step(Step::Write(b"b", set(b"new")));
            step(Step::Read(b"b", Some(b"new")));
            step(Step::Read(b"a", Some(b"one")));
            step(Step::Write(b"a", Change::Delete));
            step(Step::Read(b"a", None));
        });
        let items: Vec<Item<'_>> = work.items().collect();
        assert_eq!(items[0].base, None, "a blind write");
        assert_eq!(items[1].base, Some(at(5)));
        assert_eq!(items[1].write, Some(Write::Delete));
        assert!(!work.is_read_only());
    }

    #[test]
    fn an_absent_key_is_read_at_the_floor_and_an_expired_one_is_deleted() {
        let (mut table, mut work) = (table(), Work::default());
        run(&mut table, &mut work, |step| {
            step(Step::Read(b"none", None));
            step(Step::Read(b"old", None));
        });
        let items: Vec<Item<'_>> = work.items().collect();
        assert_eq!(items[0].base, Some(Timestamp::new(3, EVERY_WRITER)));
        assert_eq!(items[0].write, None);
        assert_eq!((items[1].base, items[1].write), (Some(at(6)), Some(Write::Delete)));
    }

    #[test]
    fn what_a_transaction_may_not_read_or_write_takes_no_memory() {
        let value = vec![b'v'; limits::VALUE_BYTES_MAX];
        let keys: Vec<Vec<u8>> = (0..40u8).map(|n| [b'k', n].to_vec()).collect();
        let mut table = table();
        for key in &keys {
            install_value(&mut table, key, at(5), content(&value, None));
        }
        for writes in [false, true] {
            let mut work = Work::default();
            let now = UnixMillis(100);
            let is_local = |_: &[u8]| true;
            let mut run = LocalRun {
                table: &mut table,
                work: &mut work,
                now,
                floor: 3,
                is_local,
                sends_deltas: true,
            };
            let mut held = 0;
            for key in &keys {
                if writes {
                    run.write(key, set(&value));
                } else {
                    held += run.read(key).content.map_or(0, |content| content.bytes.len());
                }
            }
            assert!(run.is_full());
            assert!(held <= limits::TXN_READ_BYTES_MAX);
            assert!(work.bytes() <= limits::TXN_READ_BYTES_MAX && work.is_too_large());
            work.clear();
            assert!(!work.is_too_large());
        }
    }

    #[test]
    fn many_keys_are_found_again() {
        let (mut table, mut work) = (table(), Work::default());
        let keys: Vec<Vec<u8>> = (0..40u8).map(|n| [b'k', n].to_vec()).collect();
        run(&mut table, &mut work, |step| {
            for _ in 0..2 {
                for key in &keys {
                    step(Step::Write(key, set(key)));
                    step(Step::Read(key, Some(key)));
                }
            }
        });
        assert_eq!(work.len(), keys.len());
    }

    #[test]
    fn keys_of_one_hash_are_told_apart() {
        let mut work = Work::default();
        let keys: Vec<Vec<u8>> = (0..40u8).map(|n| [b'k', n].to_vec()).collect();
        for (number, key) in keys.iter().enumerate() {
            let hash = number as u64 % 3;
            assert_eq!(work.find(key, hash), None);
            assert_eq!(work.insert(key, hash), number);
        }
        for (number, key) in keys.iter().enumerate() {
            assert_eq!(work.find(key, number as u64 % 3), Some(number));
        }
        work.clear();
        assert_eq!(work.find(&keys[39], 0), None);
    }
}
