//! What the connections of a lane track, as a table.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::atomic::Ordering::Relaxed;

use super::Totals;
use crate::connection::ConnectionId;

/// What a key takes in the lane's table and at the node, besides its bytes, which are there thrice.
const KEY_BYTES: usize = 320;
/// What one of its readers takes.
pub(super) const READER_BYTES: usize = 48;

/// The connections that read a key.
type Readers = BTreeSet<ConnectionId>;

/// The connections that track a prefix: those that are told of each change, and those whose changes are
/// coalesced.
#[derive(Debug, Default)]
pub(super) struct Listeners(pub(super) [BTreeSet<ConnectionId>; 2]);

impl Listeners {
    fn of(&mut self, coalesced: bool) -> &mut BTreeSet<ConnectionId> {
        &mut self.0[usize::from(coalesced)]
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(BTreeSet::is_empty)
    }
}

/// What the connections of a lane track.
#[derive(Debug, Default)]
pub(crate) struct Tracking {
    pub(super) clients: BTreeSet<ConnectionId>,
    pub(super) keyspaces: BTreeMap<u8, BTreeMap<Box<[u8]>, Readers>>,
    /// Bytes that the keys and their readers take.
    pub(super) bytes: usize,
    /// The key that was forgotten last for want of room.
    pub(super) evicted: (u8, Box<[u8]>),
    /// Keys that nobody tracks any more, and of which the node has not been told.
    pub(super) forgotten: Vec<(u8, Box<[u8]>)>,
    pub(super) prefixes: BTreeMap<Box<[u8]>, Listeners>,
    /// How many prefixes have each length.
    lengths: BTreeMap<usize, usize>,
    /// Prefixes of which the node has not been told that nobody tracks them any more, coalesced or not.
    pub(super) dropped: Vec<(Box<[u8]>, bool)>,
    /// How often a keyspace had been emptied when the lane looked last.
    pub(super) flushes: u64,
    /// Whether the node knows that there are clients.
    pub(super) announced: bool,
}

impl Tracking {
    /// Adds a reader. Whether it is the key's first.
    pub(super) fn add(
        &mut self,
        keyspace: u8,
        key: &[u8],
        id: ConnectionId,
        totals: &Totals,
    ) -> bool {
        let keys = self.keyspaces.entry(keyspace).or_default();
        let (readers, first) = match keys.get_mut(key) {
            Some(readers) => (readers, false),
            None => (keys.entry(key.into()).or_default(), true),
        };
        if readers.insert(id) {
            totals.items.fetch_add(1, Relaxed);
            self.bytes += READER_BYTES;
        }
        if first {
            totals.keys.fetch_add(1, Relaxed);
            self.bytes += KEY_BYTES + 3 * key.len();
        }
        first
    }

    /// Forgets a key.
    pub(super) fn remove(&mut self, keyspace: u8, key: &[u8], totals: &Totals) -> Readers {
        let keys = self.keyspaces.get_mut(&keyspace);
        let Some(readers) = keys.and_then(|keys| keys.remove(key)) else { return Readers::new() };
        totals.keys.fetch_sub(1, Relaxed);
        totals.items.fetch_sub(readers.len() as u64, Relaxed);
        self.bytes -= KEY_BYTES + 3 * key.len() + readers.len() * READER_BYTES;
        readers
    }

    pub(super) fn is_tracked(&self, keyspace: u8, key: &[u8]) -> bool {
        self.keyspaces.get(&keyspace).is_some_and(|keys| keys.contains_key(key))
    }

    /// The key behind the one that was forgotten last, and around again.
    pub(super) fn next_to_evict(&self) -> Option<(u8, Box<[u8]>)> {
        let (keyspace, key) = &self.evicted;
        let first_of = |(keyspace, keys): (&u8, &BTreeMap<Box<[u8]>, Readers>)| {
            Some((*keyspace, keys.first_key_value()?.0.clone()))
        };
        let behind = (Bound::Excluded(&**key), Bound::Unbounded);
        let same = self.keyspaces.get(keyspace);
        let same = same.and_then(|keys| keys.range::<[u8], _>(behind).next());
        match same {
            Some((key, _)) => Some((*keyspace, key.clone())),
            None => {
                let later = self.keyspaces.range((Bound::Excluded(*keyspace), Bound::Unbounded));
                later.chain(&self.keyspaces).find_map(first_of)
            }
        }
    }

    /// Forgets every key.
    pub(super) fn clear(&mut self, totals: &Totals) {
        for (keyspace, keys) in std::mem::take(&mut self.keyspaces) {
            let items: usize = keys.values().map(Readers::len).sum();
            totals.keys.fetch_sub(keys.len() as u64, Relaxed);
            totals.items.fetch_sub(items as u64, Relaxed);
            self.forgotten.extend(keys.into_keys().map(|key| (keyspace, key)));
        }
        self.bytes = 0;
    }

    /// Adds a client to a prefix. Whether it is the first one that tracks it so.
    pub(super) fn add_prefix(
        &mut self,
        prefix: &[u8],
        coalesced: bool,
        id: ConnectionId,
        totals: &Totals,
    ) -> bool {
        if !self.prefixes.contains_key(prefix) {
            self.prefixes.insert(prefix.into(), Listeners::default());
            *self.lengths.entry(prefix.len()).or_default() += 1;
            totals.prefixes.fetch_add(1, Relaxed);
        }
        let listeners = self.prefixes.get_mut(prefix).expect("it was inserted above");
        let clients = listeners.of(coalesced);
        clients.insert(id) && clients.len() == 1
    }

    pub(super) fn remove_prefix(
        &mut self,
        prefix: &[u8],
        coalesced: bool,
        id: ConnectionId,
        totals: &Totals,
    ) {
        let Some(listeners) = self.prefixes.get_mut(prefix) else { return };
        let clients = listeners.of(coalesced);
        clients.remove(&id);
        if clients.is_empty() {
            self.dropped.push((prefix.into(), coalesced));
        }
        if listeners.is_empty() {
            self.prefixes.remove(prefix);
            totals.prefixes.fetch_sub(1, Relaxed);
            let count = self.lengths.get_mut(&prefix.len()).expect("every prefix is counted");
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&prefix.len());
            }
        }
    }

    /// The prefixes of a key that are tracked.
    pub(super) fn prefixes_of<'k>(&self, key: &'k [u8]) -> impl Iterator<Item = &'k [u8]> {
        let lengths = self.lengths.range(..=key.len());
        lengths.map(|(length, _)| &key[..*length]).filter(|part| self.prefixes.contains_key(*part))
    }
}
