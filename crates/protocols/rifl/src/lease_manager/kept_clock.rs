//! The clock over a loss of power.
//!
//! Owners tell from their clocks which leases may have been declared over. A process that begins at its
//! wall clock may be behind what the former one has shown, and would then take a lease for alive whose
//! records are gone. So each lane reserves time in its log, a little ahead of its clock, and shows nothing
//! that is not reserved: no grant, no verdict, no reading for others to count on. The next process begins
//! at the end of the reservation, or at its wall clock if that is ahead. In the second case it shows clock 0
//! until it has reserved time beyond its wall clock. If it showed the end of the old reservation, others
//! would grant leases by that, and these would end as soon as they heard its clock.

use quorate_machine::{Effects, Journal, Unreadable, mutant};
use quorate_types::{Lsn, Now};

use super::LeaseManager;
use crate::Config;

/// The part of a term that is reserved at a time: longer than it is from one sweep to the next, so that a
/// sweep finds the clock kept. Each loss of power takes up to as much from leases.
const PARTS_OF_TERM: u64 = 8;

/// How far the clock is reserved.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct KeptClock {
    /// Durably.
    until: u64,
    /// The newest reservation, and its place in the log.
    appended: Option<(u64, Lsn)>,
    journal: Journal,
}

impl KeptClock {
    pub(super) fn until(&self) -> u64 {
        self.until
    }

    /// Takes in an entry of an earlier process.
    pub(super) fn restore(&mut self, entry: &[u8]) -> Result<(), Unreadable> {
        let bytes = entry.try_into().map_err(|_| Unreadable("rifl: a damaged clock"))?;
        if !mutant!("rifl_clock_forgotten") {
            self.until = self.until.max(u64::from_le_bytes(bytes));
        }
        Ok(())
    }

    /// The entry that a snapshot needs, if any.
    pub(super) fn save(&self, write: &mut impl FnMut(&[u8])) {
        if self.until > 0 {
            write(&self.until.to_le_bytes());
        }
    }

    /// The log is durable up to `lsn`. Whether more of the clock is reserved now.
    pub(super) fn note_durable(&mut self, lsn: Lsn) -> bool {
        self.journal.note_durable(lsn);
        let Some((until, _)) = self.appended.take_if(|(_, lsn)| self.journal.is_durable(*lsn))
        else {
            return false;
        };
        self.until = self.until.max(until);
        true
    }
}

impl LeaseManager {
    /// The next life of this process, which rejoins.
    #[must_use]
    pub fn next_life(&self, config: Config) -> Self {
        Self { kept: self.kept.clone(), ..Self::new(config) }
    }

    /// Reserves more of the clock, if it is nearly used up.
    pub(super) fn keep_clock(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        if self.me.is_none() {
            return;
        }
        let ahead = self.config.term.as_nanos() as u64 / PARTS_OF_TERM;
        let clock = self.clock(now);
        let newest = self.kept.appended.map_or(self.kept.until, |(until, _)| until);
        if clock.saturating_add(ahead / 2) <= newest {
            return;
        }
        let until = clock.saturating_add(ahead);
        let place =
            self.kept.journal.append(effects, |log| log.extend_from_slice(&until.to_le_bytes()));
        self.kept.appended = Some((until, place));
        // Without a log it is.
        self.kept.note_durable(Lsn::START);
    }

    /// Whether the next process will not begin below this clock.
    pub(super) fn is_clock_kept(&self, now: Now) -> bool {
        self.clock(now) <= self.kept.until || mutant!("rifl_clock_unkept")
    }

    /// The clock, as far as others may count on it.
    pub(super) fn shown_clock(&self, now: Now) -> u64 {
        if self.kept.until < self.begun && !mutant!("rifl_time_that_is_over_shown") {
            return 0;
        }
        let shown = self.clock(now).min(self.kept.until);
        if mutant!("rifl_clock_unkept") { self.clock(now) } else { shown }
    }
}
