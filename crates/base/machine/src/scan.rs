//! A walk over the records of a table, some of them in each turn.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::Table;

/// Where a walk stands that takes a few records at a time. It begins again once it has come to the
/// end. A record that is present during a whole pass is met in it at least once, also if the table
/// grows meanwhile.
///
/// A step has a budget: how many records it looks at, or a few more where a table keeps several in
/// one place. What a step gives may be gone, or another thing, by the time it is used: so its records
/// are locked and looked at one by one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Scan {
    cursor: u64,
}

impl Scan {
    /// Goes on where [`Scan::cursor`] said; 0 begins.
    pub const fn at(cursor: u64) -> Self {
        Self { cursor }
    }

    /// The place of the next step, in the numbers of this table alone; 0 at the beginning.
    pub fn cursor(self) -> u64 {
        self.cursor
    }

    /// Whether the last step reached the end of the table.
    pub fn is_at_end(self) -> bool {
        self.cursor == 0
    }

    /// Takes the next records, by their handles: for a table whose records nobody else removes.
    pub fn next_handles<T: Table>(&mut self, table: &T, budget: usize) -> Vec<T::Handle> {
        let mut handles = Vec::new();
        self.cursor = table.scan(self.cursor, budget, &mut |handle| handles.push(handle));
        handles
    }

    /// Takes the next records, by their keys: safe while siblings remove records.
    pub fn next_keys<T: Table>(&mut self, table: &T, budget: usize) -> Vec<Box<[u8]>> {
        let mut keys = Vec::new();
        self.cursor = table.scan_keys(self.cursor, budget, &mut |key| keys.push(key.into()));
        keys
    }

    /// As [`Scan::next_keys`], of this lane and of its siblings.
    pub fn next_of_all<T: Table>(&mut self, table: &T, budget: usize) -> Vec<Box<[u8]>> {
        let mut keys = Vec::new();
        self.cursor = table.scan_all_keys(self.cursor, budget, &mut |key| keys.push(key.into()));
        keys
    }
}
