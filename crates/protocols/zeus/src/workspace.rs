//! What one run of a transaction has read and written.

use alloc::vec::Vec;

use quorate_machine::{
    Change, Content, Current, LaneShared, OneKey, Placed, Record as _, Table, Workspace, mutant,
};
use quorate_types::{LaneId, Timestamp, UnixMillis, lane_of_key, limits};

use crate::extra_readers::ExtraReaders;
use crate::floor::{KNOWN, floor_version};
use crate::keys::Keys;
use crate::layout::Layout;
use crate::meta::{Extra, Meta};
use crate::remote::Fetched;
use crate::state::Key;

/// The keys that a run has touched.
#[derive(Debug, Default)]
pub(crate) struct Work {
    pub(crate) keys: Keys,
    /// Keys that it has found on the way and that may not be used here. It runs again with them.
    pub(crate) missing: Vec<Key>,
    /// Keys whose values have expired.
    pub(crate) expired: Vec<Key>,
    /// Bytes of keys, and of values that were read or written.
    bytes: usize,
}

/// The records as one run sees them.
pub(crate) struct Run<'a, T, U> {
    pub(crate) table: &'a mut T,
    pub(crate) work: &'a mut Work,
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
    /// Whether expired values are deleted. A transaction that only reads leaves that to one that may.
    pub(crate) deletes_expired: bool,
}

impl Work {
    /// Takes back all changes.
    pub(crate) fn abandon(&mut self) {
        self.expired.clear();
        self.keys.values_mut().for_each(|key| *key = OneKey::new(Current::ABSENT));
    }

    pub(crate) fn is_full(&self) -> bool {
        self.keys.len() > limits::TXN_KEYS_MAX || self.bytes > limits::TXN_READ_BYTES_MAX
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

impl<T: Table<Meta = Meta> + LaneShared, U: Fn(&Meta, &[u8]) -> bool> Run<'_, T, U> {
    fn key(&mut self, name: &[u8]) -> &mut OneKey<'static> {
        self.key_for(name, true)
    }

    /// A key, without its value if nothing reads it before it is replaced.
    fn key_for(&mut self, name: &[u8], reads: bool) -> &mut OneKey<'static> {
        let place = self.work.keys.place(name).unwrap_or_else(|| {
            let key = self.load(name, reads);
            self.work.keys.add(name, key)
        });
        self.work.keys.at(place)
    }

    fn load(&mut self, name: &[u8], reads: bool) -> OneKey<'static> {
        self.work.bytes += name.len();
        if let Some(copy) = self.fetched.get(name) {
            let timestamp = copy.version;
            let absent = Current { timestamp, ..Current::ABSENT };
            let Some(content) = copy.content() else { return OneKey::new(absent) };
            if content.is_expired(self.now) {
                self.work.expired.push(name.into());
                return OneKey::new(absent);
            }
            self.work.bytes += content.bytes.len();
            let content: Option<Content<'_>> = Some(content);
            return OneKey::new(Current { content, large: None, timestamp }).into_owned();
        }
        let record = self.table.lock_existing(name);
        let meta = record.as_ref().map(|record| record.meta()).unwrap_or_default();
        if !(self.may_use)(&meta, name) {
            self.work.missing.push(name.into());
            return OneKey::new(Current::ABSENT);
        }
        if record.is_none() {
            drop(record);
            // Only now: the floor may have risen just before the record was forgotten.
            let timestamp = absent_version(self.table, self.lanes, name);
            return OneKey::new(Current { timestamp, ..Current::ABSENT });
        }
        let record = record.expect("it was seen");
        let timestamp = meta.version;
        let absent = Current { timestamp, ..Current::ABSENT };
        let Some(content) = record.content() else { return OneKey::new(absent) };
        if content.is_expired(self.now) {
            self.work.expired.push(name.into());
            let mut key = OneKey::new(absent);
            if self.deletes_expired {
                // Otherwise a node whose clock is behind would return it afterwards.
                key.write(name, Change::Delete);
            }
            return key;
        }
        if !reads {
            return OneKey::new(absent);
        }
        self.work.bytes += content.bytes.len();
        let large = record.large();
        let content: Option<Content<'_>> = Some(content);
        OneKey::new(Current { content, large, timestamp }).into_owned()
    }
}

impl<T: Table<Meta = Meta> + LaneShared, U: Fn(&Meta, &[u8]) -> bool> Workspace for Run<'_, T, U> {
    fn read(&mut self, name: &[u8]) -> Current<'_> {
        self.key(name).read(name)
    }

    fn watch(&mut self, name: &[u8]) -> (Timestamp, bool) {
        // Before the look at the key: whatever changes it from then on is above that floor.
        let known = match self.fetched.get(name) {
            Some(copy) => copy.known,
            None => known_version(self.table, self.lanes, name),
        };
        let current = self.read(name);
        match current.content.is_some() || mutant!("zeus_watch_of_absence_at_last_change") {
            true => (current.timestamp, current.content.is_some()),
            false => (current.timestamp.max(known), false),
        }
    }

    fn placement(&mut self, name: &[u8]) -> Option<Placed> {
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
        Some(Placed { owner, readers, moves })
    }

    fn write(&mut self, name: &[u8], change: Change<'_>) {
        let reads = match &change {
            Change::Keep => return,
            Change::Set { bytes, .. } => {
                self.work.bytes += bytes.len();
                false
            }
            Change::Delta { bytes, .. } => {
                self.work.bytes += bytes.len();
                true
            }
            Change::Delete => false,
            Change::Expire(_) => true,
        };
        self.key_for(name, reads).write(name, change);
    }

    fn warm(&self, keys: &mut dyn Iterator<Item = &[u8]>) {
        self.table.warm(keys);
    }

    fn is_full(&self) -> bool {
        self.work.is_full()
    }
}
