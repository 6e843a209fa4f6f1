//! Hybrid time: one time that several nodes keep, though each has clocks of its own.

use quorate_types::Instant;

/// A hybrid clock, in nanoseconds since 1970: a node's monotonic clock run on from a reading of its
/// wall clock or of another node's hybrid clock. It never goes back, and never shows less than a
/// reading that it was brought to and the time that has passed since.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct HybridClock {
    /// How far it is ahead of the monotonic clock.
    ahead: u64,
}

impl HybridClock {
    /// The clock that is so many nanoseconds ahead of the monotonic one.
    #[inline]
    pub const fn ahead_by(ahead: u64) -> Self {
        Self { ahead }
    }

    /// How far it is ahead of the monotonic clock, in nanoseconds.
    pub const fn ahead(self) -> u64 {
        self.ahead
    }

    /// What it shows.
    #[inline]
    pub const fn read(self, monotonic: Instant) -> u64 {
        monotonic.0.saturating_add(self.ahead)
    }

    /// Moves it ahead to a reading, if it shows less; says whether it did.
    #[inline]
    pub fn reach(&mut self, monotonic: Instant, reading: u64) -> bool {
        let before = self.ahead;
        self.ahead = before.max(reading.saturating_sub(monotonic.0));
        self.ahead > before
    }
}
