//! How fast a server is asked, so that its other clients hardly notice.

use std::time::{Duration, Instant};

use clap::Args;

const MIB: f64 = 1024.0 * 1024.0;
/// What is asked for at once is what the rate allows in this time, of so many keys at most: others wait for it,
/// but every question costs the server and this process about as much as ten keys.
const TICK: Duration = Duration::from_millis(4);
const KEYS_PER_TICK: usize = 64;
/// How many keys are asked for while nothing is known of their size.
const KEYS_AT_FIRST: f64 = 16.0;

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
    /// About how many bytes a key has, of those that were read last.
    bytes_per_key: f64,
}

impl Pace {
    pub(crate) fn new(options: &PaceOptions) -> Self {
        let bytes_per_second = options.rate.map(|rate| f64::from(rate) * MIB);
        let bytes_per_key =
            bytes_per_second.unwrap_or_default() * TICK.as_secs_f64() / KEYS_AT_FIRST;
        Self { bytes_per_second, next: Instant::now(), waited: Duration::ZERO, bytes_per_key }
    }

    /// How many keys to ask for at once, if there is a rate to keep.
    pub(crate) fn keys_at_once(&self) -> Option<usize> {
        let bytes = self.bytes_per_second? * TICK.as_secs_f64();
        Some(((bytes / self.bytes_per_key) as usize).clamp(1, KEYS_PER_TICK))
    }

    /// From here on, as fast as it goes. How long it has waited so far.
    pub(crate) fn hurry(&mut self) -> Duration {
        self.bytes_per_second = None;
        self.waited
    }

    /// Waits until more may be read: when that is.
    pub(crate) fn wait(&mut self) -> Instant {
        let now = Instant::now();
        if self.bytes_per_second.is_none() || self.next <= now {
            return now;
        }
        std::thread::sleep(self.next - now);
        let then = Instant::now();
        self.waited += then - now;
        then
    }

    /// So many bytes of so many keys were read, of which the first were asked for at `begin`.
    pub(crate) fn read(&mut self, begin: Instant, bytes: u64, keys: usize) {
        let each = (bytes as f64 / keys.max(1) as f64).max(1.0);
        self.bytes_per_key = (self.bytes_per_key + each) / 2.0;
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
        pace.read(begin, 1024 * 1024, 1);
        assert_eq!(pace.next, at(250));
        pace.read(at(250), 512 * 1024, 1);
        assert_eq!(pace.next, at(375));
        // Far too late.
        pace.read(at(5000), 1024 * 1024, 1);
        assert_eq!(pace.next, at(5250));
        pace.hurry();
        pace.read(at(5250), 1024 * 1024, 1);
        assert_eq!(pace.next, at(5250));
    }
    #[test]
    fn few_keys_are_asked_for_at_once_if_they_are_large() {
        let pace = |bytes: u64| {
            let mut pace = Pace::new(&PaceOptions { rate: Some(16) });
            assert_eq!(pace.keys_at_once(), Some(16), "nothing is known of them");
            (0..30).for_each(|_| pace.read(pace.next, 16 * bytes, 16));
            pace.keys_at_once()
        };
        // 64 KiB are read in each tick.
        let asked = [0, 100, 1000, 4096, 1024 * 1024].map(pace);
        assert_eq!(asked, [Some(64), Some(64), Some(64), Some(16), Some(1)]);
        assert_eq!(Pace::new(&PaceOptions { rate: None }).keys_at_once(), None);
    }
}
