//! The only place that reads clocks.

use quorate_types::{Instant, Now, UnixNanos};
use rustix::time::{ClockId, clock_gettime};

/// Reads both clocks.
///
/// The monotonic one is `CLOCK_BOOTTIME`, which runs on while the machine is suspended: a node
/// whose machine slept must find its lease expired when it wakes (`CLOCK_MONOTONIC` would stand
/// still and the node would answer from what was current before).
#[inline]
pub fn now() -> Now {
    let wall = clock_gettime(ClockId::Realtime);
    Now {
        monotonic: monotonic(),
        unix: UnixNanos(wall.tv_sec as u64 * 1_000_000_000 + wall.tv_nsec as u64),
    }
}

/// Reads the monotonic clock alone.
#[inline]
pub(crate) fn monotonic() -> Instant {
    let boot = clock_gettime(ClockId::Boottime);
    Instant(boot.tv_sec as u64 * 1_000_000_000 + boot.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_monotonic_clock_does_not_step_back_and_the_wall_clock_is_of_this_century() {
        let first = super::now();
        let second = super::now();
        assert!(second.monotonic >= first.monotonic);
        assert!(first.wall().0 > 1_000_000_000_000);
    }
}
