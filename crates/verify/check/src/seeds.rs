//! The seeds of a test that runs many, one after the other.

use std::ops::Range;
use std::thread;

/// Seeds in turn. A test that panics prints the seed and how many seeds it took:
/// `seed 4 fails, after 5 seeds`. `cargo xtask mutants` reads the last words of that line.
///
/// ```
/// for seed in quorate_check::Seeds::new(0..20) {
///     assert!(seed < 20);
/// }
/// ```
#[derive(Debug)]
pub struct Seeds {
    all: Range<u64>,
    next: u64,
}

impl Seeds {
    /// The seeds of `all`. In the environment `SEED=5` replaces them by seed 5 alone, and
    /// `TIMES=50` makes the range 50 times as long.
    pub fn new(all: Range<u64>) -> Self {
        let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
        let all = match number("SEED") {
            Some(only) => only..only + 1,
            None => all.start..all.start + (all.end - all.start) * number("TIMES").unwrap_or(1),
        };
        Self { next: all.start, all }
    }
}

impl Iterator for Seeds {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let seed = self.next;
        self.next = (seed + 1).min(self.all.end);
        self.all.contains(&seed).then_some(seed)
    }
}

impl Drop for Seeds {
    fn drop(&mut self) {
        if thread::panicking() && self.next > self.all.start {
            let count = self.next - self.all.start;
            eprintln!("seed {} fails, after {count} seeds", self.next - 1);
        }
    }
}
