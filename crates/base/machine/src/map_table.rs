//! A table for tests and exhaustive exploration: an ordered map, cloneable, comparable, hashable.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use quorate_types::{UnixMillis, hash_key};

use crate::{
    CELLS, Content, LaneShared, Meta, NoObject, Object, OrderedTable, PLACES, Record, Table,
    ValueKind, range_bounds,
};

/// A [`Table`] over an ordered map. The handle of a record is its number in order of insertion.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct MapTable<M: Meta, V: Object = NoObject> {
    by_key: BTreeMap<Vec<u8>, u32>,
    records: BTreeMap<u32, MapRecord<M, V>>,
    next: u32,
    highest: u64,
    cells: [u64; CELLS],
}

/// One record of a [`MapTable`].
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct MapRecord<M: Meta, V: Object = NoObject> {
    key: Vec<u8>,
    meta: M,
    locked_state: M::LockedState,
    value: Option<(Value<V>, Option<UnixMillis>)>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Value<V> {
    Packed(Vec<u8>, ValueKind),
    Object(V),
}

impl<M: Meta, V: Object> MapRecord<M, V> {
    fn content(&self) -> Option<Content<'_>> {
        let (value, expire_at) = self.value.as_ref()?;
        let (bytes, kind) = match value {
            Value::Packed(bytes, kind) => (&bytes[..], *kind),
            Value::Object(_) => (&[][..], ValueKind::Object),
        };
        Some(Content { bytes, kind, expire_at: *expire_at })
    }
}

impl<M: Meta, V: Object> Default for MapTable<M, V> {
    fn default() -> Self {
        Self {
            by_key: BTreeMap::new(),
            records: BTreeMap::new(),
            next: 0,
            highest: 0,
            cells: [0; CELLS],
        }
    }
}

impl<M: Meta, V: Object> MapTable<M, V> {
    /// What every record holds, in order of insertion: key, words, locked state, value. For checks.
    pub fn entries(
        &self,
    ) -> impl Iterator<Item = (&[u8], M, &M::LockedState, Option<Content<'_>>)> {
        self.records
            .values()
            .map(|record| (&record.key[..], record.meta, &record.locked_state, record.content()))
    }
}

impl<M: Meta, V: Object> Record for &mut MapRecord<M, V> {
    type Meta = M;
    type Object = V;

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
        assert_ne!(kind, ValueKind::Object, "bytes are a packed value");
        self.value = Some((Value::Packed(bytes.into(), kind), expire_at));
    }

    fn object(&self) -> Option<&V> {
        match &self.value {
            Some((Value::Object(object), _)) => Some(object),
            _ => None,
        }
    }

    fn object_mut(&mut self) -> Option<&mut V> {
        match &mut self.value {
            Some((Value::Object(object), _)) => Some(object),
            _ => None,
        }
    }

    fn set_object(&mut self, object: V, expire_at: Option<UnixMillis>) {
        self.value = Some((Value::Object(object), expire_at));
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

impl<M: Meta, V: Object> Table for MapTable<M, V> {
    type Meta = M;
    type Object = V;
    type Handle = u32;
    type Record<'a>
        = &'a mut MapRecord<M, V>
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

    fn lock(&mut self, handle: u32) -> &mut MapRecord<M, V> {
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

impl<M: Meta, V: Object> OrderedTable for MapTable<M, V> {
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
impl<M: Meta, V: Object> LaneShared for MapTable<M, V> {
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
