//! How long the turns of a lane's loop take.
//!
//! A turn that the system interrupted took longer by the wall clock than it worked, and one that
//! slept in the system worked less: what counts is the smaller of both times. To ask for the thread's
//! processor time is a system call, which an ordinary turn is spared: the first turn of each
//! [`READ_EVERY`] asks for it as it begins, and so does a turn as it ends that was slow by the wall
//! clock. In between lies the processor time of the turn, and of less than [`READ_EVERY`] before it.

use std::time::Duration;

use quorate_types::Instant;
use rustix::time::{ClockId, clock_gettime};

/// A turn that took longer than this by the wall clock is slow.
const SLOW: Duration = Duration::from_millis(1);
/// How old the last reading of the processor time may be when a turn begins.
const READ_EVERY: Duration = Duration::from_millis(1);

/// Measures the turns of one thread.
#[derive(Debug, Default)]
pub(crate) struct Stopwatch {
    begun: Instant,
    /// When the processor time was read last, and what it was.
    read_at: Instant,
    read: Duration,
}

impl Stopwatch {
    /// A turn begins. `processor_time` is asked for the thread's.
    #[inline]
    pub(crate) fn begin(&mut self, now: Instant, processor_time: impl FnOnce() -> Duration) {
        self.begun = now;
        if now.since(self.read_at) >= READ_EVERY {
            (self.read_at, self.read) = (now, processor_time());
        }
    }

    /// The turn ends. Returns how long it took if it was slow, and at most that.
    #[inline]
    pub(crate) fn end(
        &mut self,
        now: Instant,
        processor_time: impl FnOnce() -> Duration,
    ) -> Option<Duration> {
        let wall = now.since(self.begun);
        if wall < SLOW {
            return None;
        }
        let before = std::mem::replace(&mut self.read, processor_time());
        self.read_at = now;
        Some(wall.min(self.read.saturating_sub(before)))
    }
}

/// Processor time of the calling thread.
pub(crate) fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant(micros * 1000)
    }

    fn cpu(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    #[test]
    fn a_slow_turn_took_the_smaller_of_wall_and_processor_time() {
        let mut watch = Stopwatch::default();
        watch.begin(at(10_000), || cpu(500));
        assert_eq!(watch.end(at(13_000), || cpu(2_500)), Some(cpu(2_000)), "it was interrupted");
        watch.begin(at(20_000), || cpu(2_500));
        assert_eq!(watch.end(at(23_000), || cpu(5_500)), Some(cpu(3_000)), "it was not");
        // What the thread did between the last reading and the turn isn't the turn's.
        watch.begin(at(23_900), || panic!("the last reading is fresh"));
        assert_eq!(watch.end(at(25_900), || cpu(8_400)), Some(cpu(2_000)));
    }

    #[test]
    fn an_ordinary_turn_asks_nothing_of_the_system() {
        let mut watch = Stopwatch::default();
        watch.begin(at(10_000), || cpu(500));
        for turn in 0..9 {
            let begin = 10_000 + turn * 100;
            watch.begin(at(begin), || {
                assert_eq!(turn, 0, "it was read in this millisecond");
                cpu(500)
            });
            let end = watch.end(at(begin + 100), || panic!("the turn was not slow"));
            assert_eq!(end, None);
        }
    }
}
