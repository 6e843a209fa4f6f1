//! What machines share about the log of their lane.

use alloc::vec::Vec;

use quorate_types::Lsn;

use crate::{Effects, Gate, Protocol};

/// Why an entry can't be restored: no process of this version writes such bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unreadable(pub &'static str);

/// Where a machine goes on with what it saves. Only the machine that gave it out reads it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct SavePoint {
    /// Which of the things that the machine saves one after the other.
    pub part: u8,
    /// How far in it.
    pub at: [u64; 2],
}

impl SavePoint {
    /// The beginning.
    pub const START: Self = Self { part: 0, at: [0; 2] };
}

/// What a machine has appended to the log of its lane, and how far that is durable. Under a driver
/// without a log everything is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Journal {
    appended: Lsn,
    durable: Lsn,
}

impl Default for Journal {
    fn default() -> Self {
        Self { appended: Lsn::START, durable: Lsn::START }
    }
}

impl Journal {
    /// Appends an entry. Gives its place.
    #[inline]
    pub fn append<P: Protocol + ?Sized>(
        &mut self,
        effects: &mut impl Effects<P>,
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> Lsn {
        self.appended = effects.append(encode).max(self.appended);
        self.appended
    }

    /// The place of the newest entry.
    #[inline]
    pub fn appended(&self) -> Lsn {
        self.appended
    }

    /// A gate behind everything that was appended.
    #[inline]
    pub fn gate(&self) -> Gate {
        if self.is_durable(self.appended) { Gate::OPEN } else { Gate::durable(self.appended) }
    }

    /// Whether the log is durable up to `lsn`.
    #[inline]
    pub fn is_durable(&self, lsn: Lsn) -> bool {
        lsn <= self.durable
    }

    /// [`crate::Event::Durable`] has come.
    pub fn note_durable(&mut self, lsn: Lsn) {
        self.durable = self.durable.max(lsn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_log_nothing_waits() {
        let journal = Journal::default();
        assert_eq!(journal.gate(), Gate::OPEN);
        assert!(journal.is_durable(journal.appended()));
    }

    #[test]
    fn a_gate_is_behind_what_was_appended_last_until_that_is_durable() {
        let mut journal = Journal { appended: Lsn(7), durable: Lsn(3) };
        assert_eq!(journal.gate(), Gate::durable(Lsn(7)));
        journal.note_durable(Lsn(6));
        assert_eq!(journal.gate(), Gate::durable(Lsn(7)));
        journal.note_durable(Lsn(7));
        assert_eq!(journal.gate(), Gate::OPEN);
        journal.note_durable(Lsn(5));
        assert!(journal.is_durable(Lsn(7)), "what is durable stays so");
    }
}
