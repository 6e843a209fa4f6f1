//! Time as an argument. Machines never read a clock; drivers hand them [`Now`].

use core::ops::{Add, AddAssign, Sub};

/// A span of time in nanoseconds.
pub use core::time::Duration;

/// A reading of one node's monotonic clock, in nanoseconds since an arbitrary origin. Readings of
/// two nodes are not comparable; leases compare only spans of one clock (bounded drift, Hermes
/// N3.6).
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

/// Wall-clock time in milliseconds since 1970, as Redis's expiry commands use it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct UnixMillis(pub u64);

/// Wall-clock time in nanoseconds since 1970, from which hybrid logical clocks start. Clocks of two
/// nodes differ; a protocol names the greatest difference it bears.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct UnixNanos(pub u64);

impl UnixNanos {
    /// The same moment in the unit of expiry.
    pub const fn millis(self) -> UnixMillis {
        UnixMillis(self.0 / 1_000_000)
    }
}

impl From<UnixMillis> for UnixNanos {
    fn from(millis: UnixMillis) -> Self {
        Self(millis.0.saturating_mul(1_000_000))
    }
}

/// Both clocks, read once per loop turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Now {
    /// For timers and leases.
    pub monotonic: Instant,
    /// For expiry and for timestamps.
    pub unix: UnixNanos,
}

impl Now {
    /// Wall-clock time in the unit of expiry.
    #[inline]
    pub const fn wall(self) -> UnixMillis {
        self.unix.millis()
    }
}
