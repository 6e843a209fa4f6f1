//! How fast a server is asked, so that its other clients hardly notice.

use std::time::{Duration, Instant};

use clap::Args;

const MIB: f64 = 1024.0 * 1024.0;

#[derive(Args, Clone, Debug)]
pub(crate) struct PaceOptions {
    /// Read no more than so many MiB a second, and few keys at once, so that other clients hardly notice
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: Option<u32>,
}

/// Spreads what is read evenly over time. What was missed is not made up for: nothing is read faster than
/// the rate, however short the time.
#[derive(Debug)]
pub(crate) struct Pace {
    bytes_per_second: Option<f64>,
    /// When more may be read.
    next: Instant,
    /// How long it waited so far.
    waited: Duration,
}

impl Pace {
    pub(crate) fn new(options: &PaceOptions) -> Self {
        let bytes_per_second = options.rate.map(|rate| f64::from(rate) * MIB);
        Self { bytes_per_second, next: Instant::now(), waited: Duration::ZERO }
    }

    /// Whether there is a rate to keep.
    pub(crate) fn is_limited(&self) -> bool {
        self.bytes_per_second.is_some()
    }

    /// From here on, as fast as it goes. How long it has waited so far.
    pub(crate) fn hurry(&mut self) -> Duration {
        self.bytes_per_second = None;
        self.waited
    }

    /// Waits until more may be read: when that is.
    pub(crate) fn wait(&mut self) -> Instant {
        let now = Instant::now();
        if !self.is_limited() || self.next <= now {
            return now;
        }
        std::thread::sleep(self.next - now);
        let then = Instant::now();
        self.waited += then - now;
        then
    }

    /// So many bytes were read, of which the first were asked for at `begin`.
    pub(crate) fn read(&mut self, begin: Instant, bytes: u64) {
        if let Some(rate) = self.bytes_per_second {
            self.next = begin.max(self.next) + Duration::from_secs_f64(bytes as f64 / rate);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_spread_and_nothing_is_made_up_for() {
        let mut pace = Pace::new(&PaceOptions { rate: Some(4) });
        let begin = pace.next;
        let at = |ms| begin + Duration::from_millis(ms);
        pace.read(begin, 1024 * 1024);
        assert_eq!(pace.next, at(250));
        pace.read(at(250), 512 * 1024);
        assert_eq!(pace.next, at(375));
        // Far too late.
        pace.read(at(5000), 1024 * 1024);
        assert_eq!(pace.next, at(5250));
        pace.hurry();
        pace.read(at(5250), 1024 * 1024);
        assert_eq!(pace.next, at(5250));
    }
}
