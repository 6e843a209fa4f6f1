//! When to ask again for what may have been lost.

use quorate_machine::mutant;
use quorate_types::{Duration, Instant, Now};

/// A wait that doubles each time it was in vain, up to a maximum: the first one, twice as long, four
/// times and so on. On a slow link what asks again too soon stands in line before the answers. So the
/// wait stays long for what is sent next on the link, until [`Patience::ease`] halves it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Patience {
    again_at: Instant,
    doublings: u32,
}

impl Patience {
    /// Waits for nothing.
    pub(crate) const AT_REST: Self = Self { again_at: Instant::NEVER, doublings: 0 };

    /// When to ask again.
    pub(crate) fn deadline(&self) -> Instant {
        self.again_at
    }

    /// Something is sent for the first time; `first` is the shortest wait.
    pub(crate) fn begin(&mut self, now: Now, first: Duration) {
        self.again_at = now.monotonic + first * (1 << self.doublings);
    }

    /// Whether to send now, for the first time or again.
    pub(crate) fn is_over(&mut self, now: Now, first: Duration, doublings_max: u32) -> bool {
        if self.again_at > now.monotonic {
            return false;
        }
        if self.again_at > Instant::ZERO && !mutant!("meerkat_patience_never_grows") {
            self.doublings = (self.doublings + 1).min(doublings_max);
        }
        self.begin(now, first);
        true
    }

    /// An answer came.
    pub(crate) fn ease(&mut self) {
        self.doublings = self.doublings.saturating_sub(1);
    }
}
