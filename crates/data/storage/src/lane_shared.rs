//! The few numbers that lanes share besides records.

use quorate_machine::{CELLS, LaneShared, Meta};
use quorate_types::LaneId;

use crate::shared_table::SharedTable;
use crate::sync::{Count, Ordering};

/// The numbers of one lane for the others: only this lane writes them, on cache lines of its own,
/// so that lanes without a common task write no common line. A lane that needs a number over all
/// lanes computes it.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct LaneNumbers {
    highest: Count,
    cells: [Count; CELLS],
}

/// All accesses are in one order (`SeqCst`): a lane that sets a cell and then looks at a record,
/// and a lane that changes that record and then looks at the cells, can't both miss the other's
/// write.
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

    fn raised_by(&self, lane: LaneId) -> u64 {
        self.store().numbers()[usize::from(lane.0)].highest.load(Ordering::SeqCst)
    }

    fn least(&self, cell: usize) -> u64 {
        let lanes = self.store().numbers().iter();
        lanes.map(|lane| lane.cells[cell].load(Ordering::SeqCst)).min().unwrap_or(0)
    }

    fn cell_of(&self, lane: LaneId, cell: usize) -> u64 {
        self.store().numbers()[usize::from(lane.0)].cells[cell].load(Ordering::SeqCst)
    }

    fn set_cell(&mut self, cell: usize, number: u64) {
        self.own_numbers().cells[cell].store(number, Ordering::SeqCst);
    }
}
