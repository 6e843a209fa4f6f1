//! A table in which a test does something at the moment at which a machine looks at a record.

use quorate_machine::{LaneShared, OrderedTable, Table};
use quorate_types::LaneId;

/// Calls `before_lock` with the table and the key before each lock of a record that a machine asks for
/// by its key. What another lane could do at that moment, the test can do there. Records that were set aside
/// are not observed.
#[derive(Debug)]
pub struct Observed<T, F> {
    table: T,
    before_lock: Option<F>,
}

impl<T: Table, F: FnMut(&mut T, &[u8])> Observed<T, F> {
    /// Over a table.
    pub fn new(table: T, before_lock: F) -> Self {
        Self { table, before_lock: Some(before_lock) }
    }

    fn note_lock(&mut self, key: &[u8]) {
        if let Some(before_lock) = &mut self.before_lock {
            before_lock(&mut self.table, key);
        }
    }
}

impl<T: Table + 'static, F: FnMut(&mut T, &[u8]) + 'static> Table for Observed<T, F> {
    type Meta = T::Meta;
    type Handle = T::Handle;
    type Record<'a>
        = T::Record<'a>
    where
        Self: 'a;

    fn find(&self, key: &[u8]) -> Option<Self::Handle> {
        self.table.find(key)
    }

    fn warm<'a>(&self, keys: impl Iterator<Item = &'a [u8]>) {
        self.table.warm(keys);
    }

    fn find_or_insert(&mut self, key: &[u8]) -> Self::Handle {
        self.table.find_or_insert(key)
    }

    fn lock(&mut self, handle: Self::Handle) -> Self::Record<'_> {
        self.table.lock(handle)
    }

    fn lock_key(&mut self, key: &[u8], value_len: usize) -> Self::Record<'_> {
        self.note_lock(key);
        self.table.lock_key(key, value_len)
    }

    fn lock_key_unsized(&mut self, key: &[u8]) -> Self::Record<'_> {
        self.note_lock(key);
        self.table.lock_key_unsized(key)
    }

    fn lock_existing(&mut self, key: &[u8]) -> Option<Self::Record<'_>> {
        self.note_lock(key);
        self.table.lock_existing(key)
    }

    fn remove_if(&mut self, key: &[u8], dead: impl FnOnce(&Self::Record<'_>) -> bool) -> bool {
        self.note_lock(key);
        self.table.remove_if(key, dead)
    }

    fn remove(&mut self, handle: Self::Handle) {
        self.table.remove(handle);
    }

    fn scan(&self, cursor: u64, limit: usize, visit: &mut dyn FnMut(Self::Handle)) -> u64 {
        self.table.scan(cursor, limit, visit)
    }

    fn scan_keys(&self, cursor: u64, limit: usize, visit: &mut dyn FnMut(&[u8])) -> u64 {
        self.table.scan_keys(cursor, limit, visit)
    }

    fn scan_places(
        &self,
        from: u64,
        limit: usize,
        visit: &mut dyn FnMut(u64, Self::Handle),
    ) -> u64 {
        self.table.scan_places(from, limit, visit)
    }

    fn len(&self) -> usize {
        self.table.len()
    }

    fn reset(&mut self) {
        self.table.reset();
    }

    fn set_aside(&mut self) -> Self {
        Self { table: self.table.set_aside(), before_lock: None }
    }
}

impl<T: OrderedTable + 'static, F: FnMut(&mut T, &[u8]) + 'static> OrderedTable for Observed<T, F> {
    fn keeps_order(&self) -> bool {
        self.table.keeps_order()
    }

    fn range(
        &self,
        from: &[u8],
        to: Option<&[u8]>,
        limit: usize,
        visit: &mut dyn FnMut(&[u8], Self::Handle),
    ) {
        self.table.range(from, to, limit, visit);
    }
}

impl<T: LaneShared, F> LaneShared for Observed<T, F> {
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
