//! Gates: what an answer or a message waits for before it leaves its node.
//!
//! A machine executes at once and says with each promise what that promise rests on. The driver
//! holds it back until then, so no machine has a queue of finished work of its own.

use alloc::collections::VecDeque;

use quorate_types::{Lsn, Timestamp};

use crate::mutant;

/// What must be true before an answer or a message leaves.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Gate {
    /// The node's lease held after the machine read what this rests on.
    pub lease: bool,
    /// The node's log is durable up to here.
    pub lsn: Lsn,
}

impl Gate {
    /// Nothing: it leaves at once.
    pub const OPEN: Self = Self { lease: false, lsn: Lsn::START };
    /// It rests on a read of this node's records.
    pub const LEASE: Self = Self { lease: true, lsn: Lsn::START };

    /// It rests on what was appended up to `lsn`.
    pub const fn durable(lsn: Lsn) -> Self {
        Self { lease: false, lsn }
    }
}

/// Whether answers that rest on a node's lease may leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seal {
    /// They may: the lease held after they were read.
    Holds,
    /// Not now. They wait for the node's next lease.
    Waits,
    /// Never.
    Lost,
}

/// The answer to a request, and on what terms it leaves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Completion<O> {
    /// The answer.
    pub outcome: O,
    /// What it waits for.
    pub gate: Gate,
    /// When it took effect in the serial order, if the protocol has one: what it wrote has that
    /// version.
    pub at: Option<Timestamp>,
}

impl<O> Completion<O> {
    /// An answer that waits for nothing and tells no place in an order.
    pub const fn new(outcome: O) -> Self {
        Self { outcome, gate: Gate::OPEN, at: None }
    }

    /// It leaves behind this gate.
    #[must_use]
    pub fn behind(self, gate: Gate) -> Self {
        Self { gate, ..self }
    }

    /// It took effect at this place of the serial order.
    #[must_use]
    pub fn at(self, at: Timestamp) -> Self {
        Self { at: Some(at), ..self }
    }
}

/// What waits for its gate, in the order in which it was put in. What becomes free at one moment is
/// given out in that order; nothing waits for an earlier item whose gate is another one.
#[derive(Clone, Debug)]
pub struct Gated<T> {
    waiting: VecDeque<(Gate, T)>,
    durable: Lsn,
}

impl<T> Default for Gated<T> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), durable: Lsn::START }
    }
}

impl<T> Gated<T> {
    /// Whether the log is durable up to `lsn`.
    #[inline]
    pub fn is_durable(&self, lsn: Lsn) -> bool {
        lsn <= self.durable
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Keeps an item until its gate opens.
    pub fn push(&mut self, gate: Gate, item: T) {
        self.waiting.push_back((gate, item));
    }

    /// Whether an item waits for the lease.
    pub fn rests_on_lease(&self) -> bool {
        self.waiting.iter().any(|(gate, _)| gate.lease)
    }

    /// The log is durable up to `lsn`, which never goes back.
    ///
    /// # Panics
    /// If it went back.
    pub fn set_durable(&mut self, lsn: Lsn) {
        assert!(lsn >= self.durable, "a log that was durable up to {:?} stays so", self.durable);
        self.durable = lsn;
    }

    /// Whether the lease held after the last read. If it did, no item waits for it any more. If it is
    /// lost, the items that wait for it are given out as `lost`, whatever else they wait for.
    pub fn set_lease(&mut self, seal: Seal, mut lost: impl FnMut(T)) {
        match seal {
            Seal::Waits => {}
            Seal::Holds => self.waiting.iter_mut().for_each(|(gate, _)| gate.lease = false),
            Seal::Lost => {
                for (gate, item) in core::mem::take(&mut self.waiting) {
                    if gate.lease {
                        lost(item);
                    } else {
                        self.waiting.push_back((gate, item));
                    }
                }
            }
        }
    }

    /// Gives out each item whose gate is open.
    pub fn release(&mut self, mut each: impl FnMut(T)) {
        for (gate, item) in core::mem::take(&mut self.waiting) {
            let durable = self.is_durable(gate.lsn)
                || mutant!("machine_gate_opens_early") && gate.lsn.0 == self.durable.0 + 1;
            if durable && !gate.lease {
                each(item);
            } else {
                self.waiting.push_back((gate, item));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn released(gated: &mut Gated<u8>) -> Vec<u8> {
        let mut items = Vec::new();
        gated.release(|item| items.push(item));
        items
    }

    fn both(lsn: u64) -> Gate {
        Gate { lease: true, lsn: Lsn(lsn) }
    }

    #[test]
    fn each_item_leaves_when_its_own_gate_opens_and_in_order() {
        let mut gated = Gated::default();
        gated.push(Gate::durable(Lsn(2)), 1);
        gated.push(Gate::LEASE, 2);
        gated.push(Gate::durable(Lsn(1)), 3);
        gated.push(both(2), 4);
        gated.push(Gate::durable(Lsn(2)), 5);
        assert!(released(&mut gated).is_empty());
        gated.set_durable(Lsn(1));
        assert_eq!(released(&mut gated), [3]);
        gated.set_durable(Lsn(2));
        assert_eq!(released(&mut gated), [1, 5]);
        assert!(gated.rests_on_lease());
        gated.set_lease(Seal::Waits, |_| panic!("nothing is lost"));
        assert!(released(&mut gated).is_empty());
        gated.set_lease(Seal::Holds, |_| panic!("nothing is lost"));
        assert!(!gated.rests_on_lease());
        assert_eq!(released(&mut gated), [2, 4]);
    }

    #[test]
    fn a_lease_that_held_after_the_read_is_not_asked_for_again() {
        let mut gated = Gated::default();
        gated.push(both(1), 1);
        gated.set_lease(Seal::Holds, |_| panic!("nothing is lost"));
        gated.set_lease(Seal::Lost, |_| panic!("its lease held"));
        assert!(released(&mut gated).is_empty());
        gated.set_durable(Lsn(1));
        assert_eq!(released(&mut gated), [1]);
    }

    #[test]
    fn a_lost_lease_takes_what_waits_for_the_log_too() {
        let mut gated = Gated::default();
        gated.push(both(1), 1);
        gated.push(Gate::durable(Lsn(1)), 2);
        let mut lost = Vec::new();
        gated.set_lease(Seal::Lost, |item| lost.push(item));
        assert_eq!(lost, [1]);
        gated.set_durable(Lsn(1));
        assert_eq!(released(&mut gated), [2]);
    }

    #[test]
    #[should_panic = "stays so"]
    fn a_log_does_not_become_less_durable() {
        let mut gated = Gated::<u8>::default();
        gated.set_durable(Lsn(2));
        gated.set_durable(Lsn(1));
    }
}
