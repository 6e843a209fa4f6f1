//! Tables that keep their keys in order.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use core::ops::Bound;

use quorate_types::LaneId;

use crate::{LaneShared, Table};

/// A table whose keys can be visited in their order, which is that of their bytes.
pub trait OrderedTable: Table {
    /// Whether this one was made to keep its keys in order: without that, [`OrderedTable::range`] may
    /// not be asked for.
    fn keeps_order(&self) -> bool {
        true
    }

    /// Visits the records of the keys from `from` on and, if there is a `to`, below it, in order and
    /// at most `limit` of them. The range goes on behind the last key visited. Tombstones are visited,
    /// too.
    fn range(
        &self,
        from: &[u8],
        to: Option<&[u8]>,
        limit: usize,
        visit: &mut dyn FnMut(&[u8], Self::Handle),
    );
}

/// The bounds of a range of keys in an ordered map.
pub type RangeBounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// The bounds of a range for an ordered map; `None` if no key can lie in it.
pub fn range_bounds<'a>(from: &'a [u8], to: Option<&'a [u8]>) -> Option<RangeBounds<'a>> {
    let end = to.map_or(Bound::Unbounded, Bound::Excluded);
    to.is_none_or(|to| from < to).then_some((Bound::Included(from), end))
}

/// Keeps the keys of a table in order, beside it. The table must have one writer: a record that a
/// sibling makes or removes is not seen here. A range over a node's lanes merges theirs.
#[derive(Clone, Debug, Default)]
pub struct Ordered<T> {
    table: T,
    keys: BTreeSet<Box<[u8]>>,
}

impl<T: Table> Ordered<T> {
    /// Over an empty table.
    ///
    /// # Panics
    /// If it has records.
    pub fn new(table: T) -> Self {
        assert!(table.is_empty(), "the keys of a table are kept in order from its first record on");
        Self { table, keys: BTreeSet::new() }
    }

    /// The table.
    pub fn table(&self) -> &T {
        &self.table
    }
}

impl<T: Table> Table for Ordered<T> {
    type Meta = T::Meta;
    type Handle = T::Handle;
    type Record<'a>
        = T::Record<'a>
    where
        T: 'a;

    fn owns(&self, key: &[u8]) -> bool {
        self.table.owns(key)
    }

    fn set_writer(&mut self, origin: u64) {
        self.table.set_writer(origin);
    }

    fn find(&self, key: &[u8]) -> Option<T::Handle> {
        self.table.find(key)
    }

    fn find_or_insert(&mut self, key: &[u8]) -> T::Handle {
        self.table.find(key).unwrap_or_else(|| {
            self.keys.insert(key.into());
            self.table.find_or_insert(key)
        })
    }

    fn find_or_insert_sized(&mut self, key: &[u8], value_len: usize) -> T::Handle {
        self.table.find(key).unwrap_or_else(|| {
            self.keys.insert(key.into());
            self.table.find_or_insert_sized(key, value_len)
        })
    }

    fn lock(&mut self, handle: T::Handle) -> T::Record<'_> {
        self.table.lock(handle)
    }

    fn warm<'a>(&self, keys: impl Iterator<Item = &'a [u8]>) {
        self.table.warm(keys);
    }

    fn remove_if(&mut self, key: &[u8], dead: impl FnOnce(&T::Record<'_>) -> bool) -> bool {
        let removed = self.table.remove_if(key, dead);
        if removed {
            self.keys.remove(key);
        }
        removed
    }

    fn remove(&mut self, handle: T::Handle) {
        let record = self.table.lock(handle);
        self.keys.remove(crate::Record::key(&record));
        drop(record);
        self.table.remove(handle);
    }

    fn scan(&self, cursor: u64, limit: usize, visit: &mut dyn FnMut(T::Handle)) -> u64 {
        self.table.scan(cursor, limit, visit)
    }

    fn scan_keys(&self, cursor: u64, limit: usize, visit: &mut dyn FnMut(&[u8])) -> u64 {
        self.table.scan_keys(cursor, limit, visit)
    }

    fn scan_places(&self, from: u64, limit: usize, visit: &mut dyn FnMut(u64, T::Handle)) -> u64 {
        self.table.scan_places(from, limit, visit)
    }

    fn len(&self) -> usize {
        self.table.len()
    }

    fn reset(&mut self) {
        self.keys.clear();
        self.table.reset();
    }

    fn set_aside(&mut self) -> Self {
        Self { table: self.table.set_aside(), keys: core::mem::take(&mut self.keys) }
    }
}

impl<T: Table> OrderedTable for Ordered<T> {
    fn range(
        &self,
        from: &[u8],
        to: Option<&[u8]>,
        limit: usize,
        visit: &mut dyn FnMut(&[u8], T::Handle),
    ) {
        let Some(bounds) = range_bounds(from, to) else { return };
        for key in self.keys.range::<[u8], _>(bounds).take(limit) {
            let handle = self.table.find(key).expect("a key in order has a record");
            visit(key, handle);
        }
    }
}

impl<T: LaneShared> LaneShared for Ordered<T> {
    fn highest(&self) -> u64 {
        self.table.highest()
    }

    fn raise_highest(&mut self, to: u64) {
        self.table.raise_highest(to);
    }

    fn raised_by(&self, lane: LaneId) -> u64 {
        self.table.raised_by(lane)
    }

    fn least(&self, cell: usize) -> u64 {
        self.table.least(cell)
    }

    fn cell_of(&self, lane: LaneId, cell: usize) -> u64 {
        self.table.cell_of(lane, cell)
    }

    fn set_cell(&mut self, cell: usize, number: u64) {
        self.table.set_cell(cell, number);
    }
}
