//! Noises: they disturb a machine without a fault.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quorate_machine::Rng;

use super::systems::System;

/// Busy loops for each processor.
const LOOPS_PER_PROCESSOR: usize = 4;
/// How often a machine stalls.
const STALL_EVERY: Duration = Duration::from_secs(1);
/// How long it stalls, in milliseconds: at least, and below.
const STALL_MS: std::ops::Range<u64> = 100..450;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, clap::ValueEnum)]
pub(crate) enum Noise {
    /// Nothing
    Quiet,
    /// Four busy loops for each processor
    Busy,
    /// Each second, the processes of a machine drawn at random stand still for 100 to 450 ms
    Stalls,
}

impl Noise {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Quiet => "quiet",
            Self::Busy => "busy",
            Self::Stalls => "stalls",
        }
    }

    /// Disturbs for this long. The same seed gives the same stalls to every system with as many
    /// machines, and stalls of the same times and lengths to all systems.
    pub(super) fn make(
        self,
        system: &dyn System,
        length: Duration,
        seed: u64,
    ) -> anyhow::Result<()> {
        let end = Instant::now() + length;
        match self {
            Self::Quiet => std::thread::sleep(length),
            Self::Busy => busy(end),
            Self::Stalls => stalls(system, end, &mut Rng::new(seed))?,
        }
        Ok(())
    }
}

fn busy(end: Instant) {
    let loops = std::thread::available_parallelism().map_or(2, usize::from) * LOOPS_PER_PROCESSOR;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..loops {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    spin_loop();
                }
            });
        }
        std::thread::sleep(end.saturating_duration_since(Instant::now()));
        stop.store(true, Ordering::Relaxed);
    });
}

fn stalls(system: &dyn System, end: Instant, random: &mut Rng) -> anyhow::Result<()> {
    let mut second = Instant::now();
    while second + STALL_EVERY <= end {
        let millis = STALL_MS.start + random.below(STALL_MS.end - STALL_MS.start);
        // The stall ends before the next second begins.
        let at = second + Duration::from_millis(random.below(1000 - STALL_MS.end));
        let machine = random.below(1 << 16) as usize % system.machines();
        std::thread::sleep(at.saturating_duration_since(Instant::now()));
        system.stop(machine)?;
        std::thread::sleep(Duration::from_millis(millis));
        system.go_on(machine)?;
        second += STALL_EVERY;
        std::thread::sleep(second.saturating_duration_since(Instant::now()));
    }
    Ok(())
}
