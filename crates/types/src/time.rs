//! Time as an argument. Machines never read a clock; drivers hand them [`Now`].

use core::ops::{Add, AddAssign, Sub};

/// A span of time in nanoseconds.
pub use core::time::Duration;

/// A reading of one node's monotonic clock, in nanoseconds since an arbitrary origin. Readings of
/// two nodes are not comparable; leases compare only spans of one clock (bounded drift, §3.6).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Instant(pub u64);

impl Instant {
    /// Before every reading.
    pub const ZERO: Self = Self(0);
    /// After every reading: a deadline that never comes.
    pub const NEVER: Self = Self(u64::MAX);

    /// Time since `earlier`; zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;
    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, span: Duration) {
        *self = *self + span;
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;
    fn sub(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// Wall-clock time in milliseconds since 1970, as Redis's expiry commands use it. Only expiry
/// depends on it; no safety argument does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct UnixMillis(pub u64);

/// Both clocks, read once per loop turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Now {
    /// For timers and leases.
    pub monotonic: Instant,
    /// For expiry.
    pub wall: UnixMillis,
}
