//! The only place that reads clocks.

use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use quorate_types::{Instant, Now, UnixNanos};
use rustix::time::{ClockId, clock_gettime};

/// The environment variable that names a file with milliseconds to add to the wall clock, read
/// again and again. For tests of what a stepping clock does: a process can't set the system's.
const STEPS_FILE: &str = "QUORATE_TEST_CLOCK_STEPS";
/// How often that file is read.
const STEPS_EVERY: Duration = Duration::from_millis(20);

/// Nanoseconds added to the wall clock, 0 outside tests.
static STEPPED: AtomicI64 = AtomicI64::new(0);

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
        unix: UnixNanos(stepped(wall.tv_sec as u64 * 1_000_000_000 + wall.tv_nsec as u64)),
    }
}

/// Reads the monotonic clock alone.
#[inline]
pub(crate) fn monotonic() -> Instant {
    let boot = clock_gettime(ClockId::Boottime);
    Instant(boot.tv_sec as u64 * 1_000_000_000 + boot.tv_nsec as u64)
}

#[inline]
fn stepped(nanos: u64) -> u64 {
    nanos.saturating_add_signed(STEPPED.load(Ordering::Relaxed))
}

/// Lets a test step the wall clock of this process, if its environment says so.
pub(crate) fn follow_steps() -> std::io::Result<()> {
    let Some(file) = std::env::var_os(STEPS_FILE).map(PathBuf::from) else { return Ok(()) };
    tracing::warn!(file = %file.display(), "the wall clock is stepped by a test");
    std::thread::Builder::new().name("clock steps".into()).spawn(move || {
        loop {
            // A file that is missing, or being written, steps nothing.
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            if let Some(nanos) = parse_step(&text) {
                STEPPED.store(nanos, Ordering::Relaxed);
            }
            std::thread::sleep(STEPS_EVERY);
        }
    })?;
    Ok(())
}

/// Milliseconds on a line of their own, in nanoseconds.
fn parse_step(text: &str) -> Option<i64> {
    let millis: i64 = text.strip_suffix('\n')?.parse().ok()?;
    millis.checked_mul(1_000_000)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_step_is_a_whole_line_of_milliseconds() {
        assert_eq!(super::parse_step("-20\n"), Some(-20_000_000));
        for text in ["", "5", "5 \n", "x\n", "9223372036854775807\n"] {
            assert_eq!(super::parse_step(text), None, "{text:?}");
        }
    }

    #[test]
    fn the_monotonic_clock_does_not_step_back_and_the_wall_clock_is_of_this_century() {
        let first = super::now();
        let second = super::now();
        assert!(second.monotonic >= first.monotonic);
        assert!(first.wall().0 > 1_000_000_000_000);
    }
}
