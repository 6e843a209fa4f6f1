//! A table for tests and exhaustive exploration: an ordered map, cloneable, comparable, hashable.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use quorate_types::{UnixMillis, hash_key};

use crate::{CELLS, Content, LaneShared, Meta, PLACES, Record, Table, ValueKind};

/// A [`Table`] over an ordered map. The handle of a record is its number in order of insertion.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct MapTable<M: Meta> {
    by_key: BTreeMap<Vec<u8>, u32>,
    records: BTreeMap<u32, MapRecord<M>>,
    next: u32,
    highest: u64,
    cells: [u64; CELLS],
}

/// One record of a [`MapTable`].
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct MapRecord<M: Meta> {
    key: Vec<u8>,
    meta: M,
    locked_state: M::LockedState,
    value: Option<(Vec<u8>, ValueKind, Option<UnixMillis>)>,
}

impl<M: Meta> MapTable<M> {
    /// What every record holds, in order of insertion: key, words, locked state, value. For checks.
    pub fn entries(
        &self,
    ) -> impl Iterator<Item = (&[u8], M, &M::LockedState, Option<Content<'_>>)> {
        self.records.values().map(|record| {
            let content = record.value.as_ref().map(|(bytes, kind, expire_at)| Content {
                bytes,
                kind: *kind,
                expire_at: *expire_at,
            });
            (&record.key[..], record.meta, &record.locked_state, content)
        })
    }
}

impl<M: Meta> Record for &mut MapRecord<M> {
    type Meta = M;

    fn key(&self) -> &[u8] {
        &self.key
    }

    fn meta(&self) -> M {
        self.meta
    }

    fn set_meta(&mut self, meta: M) {
        self.meta = meta;
    }

    fn locked_state(&self) -> &M::LockedState {
        &self.locked_state
    }

    fn locked_state_mut(&mut self) -> &mut M::LockedState {
        &mut self.locked_state
    }

    fn content(&self) -> Option<Content<'_>> {
        let (bytes, kind, expire_at) = self.value.as_ref()?;
        Some(Content { bytes, kind: *kind, expire_at: *expire_at })
    }

    fn set_content(&mut self, content: Content<'_>) {
        self.value = Some((content.bytes.into(), content.kind, content.expire_at));
    }

    fn set_expiry(&mut self, expire_at: Option<UnixMillis>) {
        if let Some(value) = &mut self.value {
            value.2 = expire_at;
        }
    }

    fn clear(&mut self) {
        self.value = None;
    }
}

impl<M: Meta> Table for MapTable<M> {
    type Meta = M;
    type Handle = u32;
    type Record<'a>
        = &'a mut MapRecord<M>
    where
        M: 'a;

    fn find(&self, key: &[u8]) -> Option<u32> {
        self.by_key.get(key).copied()
    }

    fn find_or_insert(&mut self, key: &[u8]) -> u32 {
        if let Some(handle) = self.find(key) {
            return handle;
        }
        let handle = self.next;
        self.next += 1;
        self.by_key.insert(key.into(), handle);
        self.records.insert(
            handle,
            MapRecord {
                key: key.into(),
                meta: M::default(),
                locked_state: M::LockedState::default(),
                value: None,
            },
        );
        handle
    }

    fn lock(&mut self, handle: u32) -> &mut MapRecord<M> {
        self.records.get_mut(&handle).expect("a handle names a record until it is removed")
    }

    fn remove(&mut self, handle: u32) {
        let record = self.records.remove(&handle).expect("a record is removed once");
        self.by_key.remove(&record.key);
    }

    fn scan(&self, cursor: u64, limit: usize, visit: &mut dyn FnMut(u32)) -> u64 {
        let from = u32::try_from(cursor).unwrap_or(u32::MAX);
        let mut left = self.records.range(from..);
        for (&handle, _) in left.by_ref().take(limit.max(1)) {
            visit(handle);
        }
        left.next().map_or(0, |(&handle, _)| u64::from(handle))
    }

    fn scan_keys(&self, cursor: u64, limit: usize, visit: &mut dyn FnMut(&[u8])) -> u64 {
        self.scan(cursor, limit, &mut |handle| visit(&self.records[&handle].key))
    }

    fn scan_places(&self, from: u64, limit: usize, visit: &mut dyn FnMut(u64, u32)) -> u64 {
        let place = |key: &[u8]| hash_key(key) % PLACES;
        let mut records: Vec<(u64, u32)> =
            self.by_key.iter().map(|(key, &handle)| (place(key), handle)).collect();
        records.retain(|(place, _)| *place >= from);
        records.sort_unstable();
        for (number, &(place, handle)) in records.iter().enumerate() {
            if number >= limit.max(1) && place != records[number - 1].0 {
                return place;
            }
            visit(place, handle);
        }
        0
    }

    fn len(&self) -> usize {
        self.records.len()
    }

    fn reset(&mut self) {
        self.by_key.clear();
        self.records.clear();
    }
}

/// A map has one lane.
impl<M: Meta> LaneShared for MapTable<M> {
    fn highest(&self) -> u64 {
        self.highest
    }

    fn raise_highest(&mut self, to: u64) {
        self.highest = self.highest.max(to);
    }

    fn least(&self, cell: usize) -> u64 {
        self.cells[cell]
    }

    fn set_cell(&mut self, cell: usize, number: u64) {
        self.cells[cell] = number;
    }
}
