//! The few numbers that lanes share besides records.

use quorate_machine::{CELLS, LaneShared, Meta};

use crate::shared_table::SharedTable;
use crate::sync::{Count, Ordering};

/// What one lane tells the others: written by this lane alone, and on cache lines of its own, so
/// that it is no place where lanes meet that have nothing to do with each other. What the lanes
/// have in common is computed by who wants to know.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct LaneNumbers {
    highest: Count,
    cells: [Count; CELLS],
}

/// All in one order (`SeqCst`): who sets a cell and then looks at a record, and who looks at the
/// cells after changing that record, do not miss each other.
impl<M: Meta> LaneShared for SharedTable<M> {
    fn highest(&self) -> u64 {
        let lanes = self.store().numbers().iter();
        lanes.map(|lane| lane.highest.load(Ordering::SeqCst)).max().unwrap_or(0)
    }

    fn raise_highest(&mut self, to: u64) {
        let own = &self.own_numbers().highest;
        if own.load(Ordering::Relaxed) < to {
            own.fetch_max(to, Ordering::SeqCst);
        }
    }

    fn least(&self, cell: usize) -> u64 {
        let lanes = self.store().numbers().iter();
        lanes.map(|lane| lane.cells[cell].load(Ordering::SeqCst)).min().unwrap_or(0)
    }

    fn set_cell(&mut self, cell: usize, number: u64) {
        self.own_numbers().cells[cell].store(number, Ordering::SeqCst);
    }
}
