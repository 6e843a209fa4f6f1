//! What one run of a transaction has read and written.

use alloc::vec::Vec;
use core::hash::{Hash, Hasher};
use core::ops::Range;

use quorate_machine::{
    Change, Collection, Content, Current, LaneShared, OneKey, Placed, Record as _, Table,
    ValueKind, Workspace, mutant,
};
use quorate_types::{LaneId, Timestamp, UnixMillis, lane_of_key, limits};

use crate::extra_readers::ExtraReaders;
use crate::floor::{KNOWN, floor_version};
use crate::keys::Keys;
use crate::layout::Layout;
use crate::meta::{Extra, Meta};
use crate::remote::Fetched;
use crate::state::Key;

/// Bytes of values for which a reader keeps room for the next one.
const ROOM_KEPT: usize = 16 * 1024;

/// The records as one run sees them.
pub(crate) struct Records<'a, T, U> {
    pub(crate) table: &'a mut T,
    /// What other nodes have told of keys without a copy here.
    pub(crate) fetched: &'a Fetched,
    pub(crate) now: UnixMillis,
    /// Whether a key may be used.
    pub(crate) may_use: U,
    pub(crate) layout: &'a Layout,
    /// Who else has copies of this lane's keys, as far as this node owns them.
    pub(crate) readers: &'a ExtraReaders,
    /// Lanes of the node.
    pub(crate) lanes: u16,
}

/// What a run has come across.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Keys that it has found on the way and that may not be used here. It runs again with them.
    pub(crate) missing: Vec<Key>,
    /// Keys whose values have expired.
    pub(crate) expired: Vec<Key>,
    /// Bytes of keys, and of values that were read or written.
    bytes: usize,
}

/// What a transaction has read and written that may write.
#[derive(Debug, Default)]
pub(crate) struct Work {
    pub(crate) keys: Keys<OneKey<'static>>,
    pub(crate) found: Found,
}

/// A transaction that may write, on the records.
pub(crate) struct Run<'a, T, U> {
    pub(crate) records: Records<'a, T, U>,
    pub(crate) work: &'a mut Work,
}

/// What a transaction has read that writes nothing. Between steps it is empty, and only room for the next
/// one's.
#[derive(Debug, Default)]
pub(crate) struct ReadSet {
    pub(crate) keys: Keys<Held>,
    pub(crate) found: Found,
    /// The bytes of all values, in the order of the keys.
    values: Vec<u8>,
}

/// What a key held when a reader came to it.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) timestamp: Timestamp,
    content: Option<HeldContent>,
}

#[derive(Debug)]
struct HeldContent {
    /// Its place among the values.
    bytes: Range<usize>,
    kind: ValueKind,
    expire_at: Option<UnixMillis>,
    large: Option<Collection>,
}

/// A transaction that only reads, on the records: an expired value it leaves to one that may delete it.
pub(crate) struct Reading<'a, T, U> {
    pub(crate) records: Records<'a, T, U>,
    pub(crate) read_set: &'a mut ReadSet,
}

impl Found {
    fn is_too_much(&self, keys: usize) -> bool {
        keys > limits::TXN_KEYS_MAX || self.bytes > limits::TXN_READ_BYTES_MAX
    }
}

impl Work {
    /// Takes back all changes.
    pub(crate) fn abandon(&mut self) {
        self.found.expired.clear();
        self.keys.values_mut().for_each(|key| *key = OneKey::new(Current::ABSENT));
    }

    pub(crate) fn is_full(&self) -> bool {
        self.found.is_too_much(self.keys.len())
    }
}

impl Clone for ReadSet {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Hash for ReadSet {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl ReadSet {
    pub(crate) fn is_full(&self) -> bool {
        self.found.is_too_much(self.keys.len())
    }

    /// Forgets all, and keeps some room for another reader.
    pub(crate) fn clear(&mut self) {
        self.keys.clear();
        self.found = Found::default();
        self.values.clear();
        self.values.shrink_to(ROOM_KEPT);
    }
}

/// The version that a key shows that was seen to have no record: the floor of its own lane, which raises
/// it before it forgets anything, whichever lane looks.
pub(crate) fn absent_version(table: &impl LaneShared, lanes: u16, key: &[u8]) -> Timestamp {
    let lane = match mutant!("zeus_absent_version_of_one_lane") {
        true => LaneId(0),
        false => lane_of_key(key, lanes),
    };
    floor_version(table.raised_by(lane))
}

/// A version below all that will ever be written of a key: the floor that its lane knows. Records may be
/// forgotten only up to the one before it.
pub(crate) fn known_version(table: &impl LaneShared, lanes: u16, key: &[u8]) -> Timestamp {
    floor_version(table.cell_of(lane_of_key(key, lanes), KNOWN))
}

impl<T: Table<Meta = Meta> + LaneShared, U: Fn(&Meta, &[u8]) -> bool> Records<'_, T, U> {
    /// Looks at a key, if it may be used; `see` is told what it holds, and whether that has expired and so
    /// is not there.
    fn look<R>(
        &mut self,
        found: &mut Found,
        name: &[u8],
        see: impl FnOnce(Current<'_>, bool) -> R,
    ) -> R {
        found.bytes += name.len();
        if let Some(copy) = self.fetched.get(name) {
            return see_content(self.now, found, name, copy.version, copy.content(), None, see);
        }
        let record = self.table.lock_existing(name);
        let meta = record.as_ref().map(|record| record.meta()).unwrap_or_default();
        if !(self.may_use)(&meta, name) {
            found.missing.push(name.into());
            return see(Current::ABSENT, false);
        }
        if let Some(record) = &record {
            let (content, large) = (record.content(), record.large());
            return see_content(self.now, found, name, meta.version, content, large, see);
        }
        drop(record);
        // Only now: the floor may have risen just before the record was forgotten.
        let timestamp = absent_version(self.table, self.lanes, name);
        see(Current { timestamp, ..Current::ABSENT }, false)
    }

    /// A version below all that will ever be written of a key, for `WATCH`: it is looked at before the key.
    fn known(&self, name: &[u8]) -> Timestamp {
        match self.fetched.get(name) {
            Some(copy) => copy.known,
            None => known_version(self.table, self.lanes, name),
        }
    }

    fn placement(&mut self, name: &[u8]) -> Placed {
        let mut readers = self.layout.readers(name).union(self.readers.of(name));
        let (owner, moves) = match self.fetched.get(name) {
            Some(copy) => (copy.owner, copy.moves),
            None => {
                let record = self.table.lock_existing(name);
                let meta = record.map(|record| record.meta()).unwrap_or_default();
                if meta.extra == Extra::Kept {
                    readers.insert(self.layout.node);
                }
                (meta.owner, meta.moves)
            }
        };
        let owner = self.layout.owner(owner, name);
        Placed { owner, readers, moves }
    }
}

fn see_content<R>(
    now: UnixMillis,
    found: &mut Found,
    name: &[u8],
    timestamp: Timestamp,
    content: Option<Content<'_>>,
    large: Option<&Collection>,
    see: impl FnOnce(Current<'_>, bool) -> R,
) -> R {
    let absent = Current { timestamp, ..Current::ABSENT };
    match content {
        None => see(absent, false),
        Some(content) if content.is_expired(now) => {
            found.expired.push(name.into());
            see(absent, true)
        }
        Some(_) => see(Current { content, large, timestamp }, false),
    }
}

/// What `WATCH` notes of a key that holds this, of which `known` was known before.
fn watched(known: Timestamp, current: Current<'_>) -> (Timestamp, bool) {
    match current.content.is_some() || mutant!("zeus_watch_of_absence_at_last_change") {
        true => (current.timestamp, current.content.is_some()),
        false => (current.timestamp.max(known), false),
    }
}

impl<T: Table<Meta = Meta> + LaneShared, U: Fn(&Meta, &[u8]) -> bool> Run<'_, T, U> {
    /// A key, without its value if nothing reads it before it is replaced.
    fn key_for(&mut self, name: &[u8], reads: bool) -> &mut OneKey<'static> {
        let place = self.work.keys.place(name).unwrap_or_else(|| {
            let key = self.load(name, reads);
            self.work.keys.add(name, key)
        });
        self.work.keys.at(place)
    }

    fn load(&mut self, name: &[u8], reads: bool) -> OneKey<'static> {
        let mut bytes = 0;
        let key = self.records.look(&mut self.work.found, name, |current, is_expired| {
            if !reads {
                let absent = Current { timestamp: current.timestamp, ..Current::ABSENT };
                let mut key = OneKey::new(absent);
                delete_if(is_expired, name, &mut key);
                return key;
            }
            bytes = current.content.map_or(0, |content| content.bytes.len());
            let mut key = OneKey::new(current).into_owned();
            delete_if(is_expired, name, &mut key);
            key
        });
        self.work.found.bytes += bytes;
        key
    }
}

/// Deletes an expired value. Otherwise a node whose clock is behind would return it afterwards.
fn delete_if(is_expired: bool, name: &[u8], key: &mut OneKey<'static>) {
    if is_expired {
        key.write(name, Change::Delete);
    }
}

impl<T: Table<Meta = Meta> + LaneShared, U: Fn(&Meta, &[u8]) -> bool> Workspace for Run<'_, T, U> {
    fn read(&mut self, name: &[u8]) -> Current<'_> {
        self.key_for(name, true).read(name)
    }

    fn watch(&mut self, name: &[u8]) -> (Timestamp, bool) {
        // Before the look at the key: whatever changes it from then on is above that floor.
        let known = self.records.known(name);
        watched(known, self.read(name))
    }

    fn placement(&mut self, name: &[u8]) -> Option<Placed> {
        Some(self.records.placement(name))
    }

    fn write(&mut self, name: &[u8], change: Change<'_>) {
        let found = &mut self.work.found;
        let reads = match &change {
            Change::Keep => return,
            Change::Set { bytes, .. } => {
                found.bytes += bytes.len();
                false
            }
            Change::Delta { bytes, .. } => {
                found.bytes += bytes.len();
                true
            }
            Change::Delete => false,
            Change::Expire(_) => true,
        };
        self.key_for(name, reads).write(name, change);
    }

    fn warm(&self, keys: &mut dyn Iterator<Item = &[u8]>) {
        self.records.table.warm(keys);
    }

    fn is_full(&self) -> bool {
        self.work.is_full()
    }
}

impl<T: Table<Meta = Meta> + LaneShared, U: Fn(&Meta, &[u8]) -> bool> Workspace
    for Reading<'_, T, U>
{
    fn read(&mut self, name: &[u8]) -> Current<'_> {
        let ReadSet { keys, found, values } = &mut *self.read_set;
        let place = keys.place(name).unwrap_or_else(|| {
            let begin = values.len();
            let held = self.records.look(found, name, |current, _| {
                let content = current.content.map(|content| {
                    values.extend_from_slice(content.bytes);
                    HeldContent {
                        bytes: begin..values.len(),
                        kind: content.kind,
                        expire_at: content.expire_at,
                        large: current.large.cloned(),
                    }
                });
                Held { timestamp: current.timestamp, content }
            });
            found.bytes += values.len() - begin;
            keys.add(name, held)
        });
        let Held { timestamp, content } = &*keys.at(place);
        let Some(held) = content else {
            return Current { timestamp: *timestamp, ..Current::ABSENT };
        };
        let HeldContent { bytes, kind, expire_at, large } = held;
        let content = Content { bytes: &values[bytes.clone()], kind: *kind, expire_at: *expire_at };
        Current { content: Some(content), large: large.as_ref(), timestamp: *timestamp }
    }

    fn watch(&mut self, name: &[u8]) -> (Timestamp, bool) {
        // Before the look at the key: whatever changes it from then on is above that floor.
        let known = self.records.known(name);
        watched(known, self.read(name))
    }

    fn placement(&mut self, name: &[u8]) -> Option<Placed> {
        Some(self.records.placement(name))
    }

    fn write(&mut self, _: &[u8], change: Change<'_>) {
        assert_eq!(change, Change::Keep, "a command that says it updates nothing");
    }

    fn warm(&self, keys: &mut dyn Iterator<Item = &[u8]>) {
        self.records.table.warm(keys);
    }

    fn is_full(&self) -> bool {
        self.read_set.is_full()
    }
}
