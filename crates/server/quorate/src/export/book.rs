//! Where each key stands in a file that is being written, so that one that changes meanwhile can be taken out
//! of it again. Some 70 bytes of memory for each key.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasher;
use std::ops::Range;

use quorate_rdb::Kind;

struct Place {
    at: u64,
    length: u32,
    kind: Kind,
}

#[derive(Default)]
pub(super) struct Book {
    hashers: (RandomState, RandomState),
    places: HashMap<(u64, u64), Place>,
    /// Keys that could not be read, and why.
    pub(super) unread: BTreeMap<(u64, Vec<u8>), String>,
    /// Bytes that keys had in the file which were taken out of it.
    pub(super) blanked: u64,
}

impl Book {
    fn name(&self, database: u64, key: &[u8]) -> (u64, u64) {
        let name = (database, key);
        (self.hashers.0.hash_one(name), self.hashers.1.hash_one(name))
    }

    pub(super) fn has(&self, database: u64, key: &[u8]) -> bool {
        self.places.contains_key(&self.name(database, key))
    }

    /// A key stands in the file now.
    ///
    /// # Panics
    /// If it stood there already: no Redis reads such a file.
    pub(super) fn enter(&mut self, database: u64, key: &[u8], place: Range<u64>, kind: Kind) {
        let length = u32::try_from(place.end - place.start).expect("a key has less than 4 GiB");
        let place = Place { at: place.start, length, kind };
        let before = self.places.insert(self.name(database, key), place);
        assert!(before.is_none(), "a key stands in a file once");
    }

    /// A key was read once more, or is gone. Where it stood in the file, if it did, and what it was.
    pub(super) fn strike(&mut self, database: u64, key: &[u8]) -> Option<(Range<u64>, Kind)> {
        if !self.unread.is_empty() {
            self.unread.remove(&(database, key.to_owned()));
        }
        let Place { at, length, kind } = self.places.remove(&self.name(database, key))?;
        self.blanked += u64::from(length);
        Some((at..at + u64::from(length), kind))
    }
}
