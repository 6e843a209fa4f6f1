//! When to ask again for what may have been lost.

use quorate_types::{Duration, Instant, Now};

use crate::mutant;

/// A wait that doubles each time it was in vain, up to a maximum: the first one, twice as long, four
/// times and so on. On a slow link what asks again too soon stands in line before the answers. So the
/// wait stays long for what is sent next on the link, until [`Backoff::ease`] halves it. An answer to what was
/// asked twice says nothing of how long an answer takes (Karn and Partridge, SIGCOMM 1987).
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Backoff {
    again_at: Instant,
    /// When half of the wait is over.
    half_at: Instant,
    doublings: u32,
    /// Whether what is asked now was asked before.
    is_repeated: bool,
}

impl Backoff {
    /// Waits for nothing.
    pub const AT_REST: Self = Self {
        again_at: Instant::NEVER,
        half_at: Instant::NEVER,
        doublings: 0,
        is_repeated: false,
    };

    /// When to ask again.
    pub fn deadline(&self) -> Instant {
        self.again_at
    }

    /// Something is sent; `first` is the shortest wait.
    pub fn begin(&mut self, now: Now, first: Duration) {
        let wait = first * (1 << self.doublings);
        (self.again_at, self.half_at) = (now.monotonic + wait, now.monotonic + wait / 2);
    }

    /// Whether to send now, for the first time or again.
    pub fn is_over(&mut self, now: Now, first: Duration, doublings_max: u32) -> bool {
        if self.again_at > now.monotonic {
            return false;
        }
        if self.again_at > Instant::ZERO {
            self.grow(doublings_max);
        }
        self.begin(now, first);
        true
    }

    /// No answer came.
    pub fn grow(&mut self, doublings_max: u32) {
        if !mutant!("machine_backoff_never_grows") {
            self.doublings = (self.doublings + 1).min(doublings_max);
        }
        self.is_repeated = true;
    }

    /// An answer came. Half the wait is enough for the next one if it was for this one.
    pub fn ease(&mut self, now: Now) {
        let is_early = now.monotonic <= self.half_at;
        let was_repeated = core::mem::take(&mut self.is_repeated);
        if is_early && !was_repeated || mutant!("machine_backoff_eased_in_vain") {
            self.doublings = self.doublings.saturating_sub(1);
        }
    }
}
