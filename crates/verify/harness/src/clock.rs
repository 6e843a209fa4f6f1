//! The clocks of a node.

use quorate_types::{Instant, Now, UnixNanos};

use crate::cluster::{BEGIN, WALL};

/// How the clocks of a node differ from true time.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// What the monotonic clock shows at the beginning, in nanoseconds.
    pub origin: u64,
    /// By how many millionths both clocks are fast.
    pub fast_ppm: i64,
    /// By how many nanoseconds the wall clock is ahead at the beginning.
    pub ahead: i64,
}

impl Default for Clock {
    fn default() -> Self {
        Self { origin: BEGIN.0, fast_ppm: 0, ahead: 0 }
    }
}

impl Clock {
    /// What the clocks show at a moment.
    pub fn show(&self, moment: Instant) -> Now {
        let elapsed = i128::from(moment.0 - BEGIN.0) * i128::from(1_000_000 + self.fast_ppm);
        let elapsed = (elapsed / 1_000_000) as u64;
        let unix = (WALL + elapsed).saturating_add_signed(self.ahead);
        Now { monotonic: Instant(self.origin + elapsed), unix: UnixNanos(unix) }
    }
}
