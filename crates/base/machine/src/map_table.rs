//! A table for tests and exhaustive exploration: an ordered map, cloneable, comparable, hashable.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use quorate_types::{LaneId, UnixMillis, hash_key};

use quorate_collections::{Collection, ValueKind, is_collection, may_be_large};

use crate::{CELLS, Content, LaneShared, Meta, OrderedTable, PLACES, Record, Table, range_bounds};

/// A [`Table`] over an ordered map. The handle of a record is its number in order of insertion.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct MapTable<M: Meta> {
    by_key: BTreeMap<Vec<u8>, u32>,
    records: BTreeMap<u32, MapRecord<M>>,
    next: u32,
    highest: u64,
    cells: [u64; CELLS],
    packed_bytes_max: usize,
}

/// One record of a [`MapTable`].
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct MapRecord<M: Meta> {
    key: Vec<u8>,
    meta: M,
    locked_state: M::LockedState,
    value: Option<(Value, Option<UnixMillis>)>,
    packed_bytes_max: usize,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Value {
    Packed(Vec<u8>, ValueKind),
    Large(Collection),
}

impl<M: Meta> MapRecord<M> {
    fn content(&self) -> Option<Content<'_>> {
        let (value, expire_at) = self.value.as_ref()?;
        let (bytes, kind) = match value {
            Value::Packed(bytes, kind) => (&bytes[..], *kind),
            Value::Large(collection) => (&[][..], collection.kind()),
        };
        Some(Content { bytes, kind, expire_at: *expire_at })
    }
}

impl<M: Meta> Default for MapTable<M> {
    fn default() -> Self {
        Self::new(usize::MAX)
    }
}

impl<M: Meta> MapTable<M> {
    /// An empty one, in which collections of more bytes than that are large.
    pub fn new(packed_bytes_max: usize) -> Self {
        Self {
            by_key: BTreeMap::new(),
            records: BTreeMap::new(),
            next: 0,
            highest: 0,
            cells: [0; CELLS],
            packed_bytes_max,
        }
    }

    /// The value of a key, if it is large. For checks.
    pub fn large(&self, key: &[u8]) -> Option<&Collection> {
        self.records.get(self.by_key.get(key)?)?.large()
    }

    /// What every record holds, in order of insertion: key, words, locked state, value. For checks.
    pub fn entries(
        &self,
    ) -> impl Iterator<Item = (&[u8], M, &M::LockedState, Option<Content<'_>>)> {
        self.records
            .values()
            .map(|record| (&record.key[..], record.meta, &record.locked_state, record.content()))
    }
}

impl<M: Meta> MapRecord<M> {
    fn large(&self) -> Option<&Collection> {
        match &self.value {
            Some((Value::Large(collection), _)) => Some(collection),
            _ => None,
        }
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
        MapRecord::content(self)
    }

    fn set_content(&mut self, Content { bytes, kind, expire_at }: Content<'_>) {
        self.value = Some((Value::Packed(bytes.into(), kind), expire_at));
        if bytes.len() > self.packed_bytes_max && may_be_large(kind, bytes) {
            self.large_mut();
        }
    }

    fn large(&self) -> Option<&Collection> {
        MapRecord::large(self)
    }

    fn large_mut(&mut self) -> Option<&mut Collection> {
        let (value, _) = self.value.as_mut()?;
        if let Value::Packed(bytes, kind) = value
            && is_collection(*kind)
            && let Ok(collection) = Collection::unpack(*kind, bytes)
        {
            *value = Value::Large(collection);
        }
        if let Value::Large(collection) = value { Some(collection) } else { None }
    }

    fn set_expiry(&mut self, expire_at: Option<UnixMillis>) {
        if let Some(value) = &mut self.value {
            value.1 = expire_at;
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

    fn warm<'a>(&self, keys: impl Iterator<Item = &'a [u8]>) {
        keys.for_each(drop);
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
                packed_bytes_max: self.packed_bytes_max,
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

    fn set_aside(&mut self) -> Self {
        let by_key = core::mem::take(&mut self.by_key);
        let records = core::mem::take(&mut self.records);
        Self { by_key, records, next: self.next, ..Self::new(self.packed_bytes_max) }
    }
}

impl<M: Meta> OrderedTable for MapTable<M> {
    fn range(
        &self,
        from: &[u8],
        to: Option<&[u8]>,
        limit: usize,
        visit: &mut dyn FnMut(&[u8], u32),
    ) {
        let Some(bounds) = range_bounds(from, to) else { return };
        for (key, &handle) in self.by_key.range::<[u8], _>(bounds).take(limit) {
            visit(key, handle);
        }
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

    fn raised_by(&self, _: LaneId) -> u64 {
        self.highest
    }

    fn least(&self, cell: usize) -> u64 {
        self.cells[cell]
    }

    fn cell_of(&self, _: LaneId, cell: usize) -> u64 {
        self.cells[cell]
    }

    fn set_cell(&mut self, cell: usize, number: u64) {
        self.cells[cell] = number;
    }
}
