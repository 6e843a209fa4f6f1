//! The cost of one thing that two processors use at the same time, measured.
//!
//! Two threads do the same work over and over, in short bursts that begin and end together. Other
//! programs may use the machine, too: a burst in which one thread stood still shows no contention,
//! and one in which the holder of a mutex was interrupted shows a time slice. Such bursts are
//! dropped, and the median of the rest counts.

use std::hint::black_box;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use quorate_baselines::{Common, Tentative};
use quorate_types::{Timestamp, WriterId};

use super::inputs::{Contention, Shared};

/// Bursts of each kind.
const BURSTS: u64 = 150;
/// The fewest that must not have been interrupted.
const BURSTS_MIN: usize = 20;
/// Nanoseconds that a burst lasts: far below a time slice.
const BURST: u64 = 400_000;
/// Nanoseconds by which a thread may begin or end later than another. A thread that sleeps for a
/// mutex needs some 50 µs to wake; an interrupted one, a time slice.
const LATE: f64 = 100_000.0;
/// Rounds between two looks at the clock.
const ROUNDS: u64 = 16;
/// How often new threads are tried.
const ATTEMPTS: u32 = 10;
/// Nanoseconds after which no further burst begins: on a busy machine two threads seldom meet.
const TIME_MAX: u64 = 3_000_000_000;
/// Bytes of a transaction's sets: one key and one value of 64 bytes, and what frames them.
const BODY: usize = 160;

/// Too few bursts were left alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "contention can't be measured: two threads ran side by side without interruption only {0} \
     times, and {BURSTS_MIN} are needed; others use the processors, or there is only one"
)]
pub(crate) struct TooBusy(usize);

/// A use of shared things. Gets the number of the thread, and how often that thread did it before.
type Round<'a> = &'a (dyn Fn(u64, u64) + Sync);

/// Measures everything; takes a second, and some more on a busy machine.
///
/// # Errors
/// If two threads hardly ever ran side by side: then contention can't be told.
pub(super) fn measure() -> Result<Contention, TooBusy> {
    let counter = AtomicU64::new(0);
    let counter = shared(1, &|_, _| {
        black_box(counter.fetch_add(1, Ordering::AcqRel));
    })?;
    let mutex = Mutex::new(0_u64);
    let mutex = shared(1, &|_, _| {
        *mutex.lock().expect("nobody panics while holding it") += 1;
    })?;
    let common = Common::default();
    let record = shared(2, &|thread, number| {
        let id = Timestamp::new(number + 1, WriterId(thread as u32));
        let body = vec![0; BODY];
        common.insert(id, Tentative { body, registered: true, accepted: None });
        black_box(common.remove(id));
    })?;
    let common = Common::default();
    let log = shared(3, &|_, _| {
        let place = common.append(&[0; BODY]);
        black_box(common.take(place));
        common.done(place);
    })?;
    Ok(Contention { counter, mutex, record, log })
}

/// The cost of one use. Each round makes `uses` of them.
fn shared(uses: u64, round: Round<'_>) -> Result<Shared, TooBusy> {
    let per_use = |nanos: f64| nanos / uses as f64;
    let (alone, contended) = (per_use(settled(1, round)?), per_use(settled(2, round)?));
    // Two threads that take turns are never faster than one.
    Ok(Shared { alone, contended: contended.max(alone) })
}

/// As [`bursts`], with new threads if the first ones were put on one processor.
fn settled(threads: u64, round: Round<'_>) -> Result<f64, TooBusy> {
    let mut result = bursts(threads, round);
    for _ in 1..ATTEMPTS {
        if result.is_ok() {
            break;
        }
        result = bursts(threads, round);
    }
    result
}

/// One thread's part of a burst.
#[derive(Clone, Copy, Debug)]
struct Half {
    /// Nanoseconds since the beginning of all.
    from: f64,
    to: f64,
    rounds: u64,
}

/// Where threads meet before a burst.
struct Meeting {
    threads: u64,
    clock: Instant,
    arrived: AtomicU64,
    /// The time until which the burst lasts; 0 before all threads have arrived.
    until: AtomicU64,
    number: AtomicU64,
}

impl Meeting {
    fn nanos(&self) -> u64 {
        self.clock.elapsed().as_nanos() as u64
    }

    /// Waits for the others. Returns the time until which to work; `None` after the last burst.
    fn wait(&self, number: u64) -> Option<u64> {
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == (number + 1) * self.threads {
            let over = number >= BURSTS || self.nanos() > TIME_MAX;
            let until = if over { u64::MAX } else { self.nanos() + BURST };
            self.until.store(until, Ordering::Release);
            self.number.store(number + 1, Ordering::Release);
        }
        while self.number.load(Ordering::Acquire) <= number {
            std::hint::spin_loop();
        }
        Some(self.until.load(Ordering::Acquire)).filter(|until| *until != u64::MAX)
    }
}

/// The median time between two rounds of any thread, in nanoseconds, with this many threads.
fn bursts(threads: u64, round: Round<'_>) -> Result<f64, TooBusy> {
    let (arrived, until, number) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let meeting = &Meeting { threads, clock: Instant::now(), arrived, until, number };
    let work = |thread: u64| {
        let (mut halves, mut rounds) = (Vec::new(), 0);
        while let Some(until) = meeting.wait(halves.len() as u64) {
            let (from, before) = (meeting.nanos(), rounds);
            while meeting.nanos() < until {
                for _ in 0..ROUNDS {
                    round(thread, rounds);
                    rounds += 1;
                }
            }
            let to = meeting.nanos() as f64;
            halves.push(Half { from: from as f64, to, rounds: rounds - before });
        }
        halves
    };
    let halves: Vec<Vec<Half>> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    });
    let count = halves.iter().map(Vec::len).min().unwrap_or(0);
    let burst = |number: usize| halves.iter().map(|half| half[number]).collect::<Vec<_>>();
    typical((0..count).filter_map(|number| cost(&burst(number))).collect())
}

/// The median, if there are enough bursts: too few show nothing, least of all the absence of
/// contention.
fn typical(mut costs: Vec<f64>) -> Result<f64, TooBusy> {
    if costs.len() < BURSTS_MIN {
        return Err(TooBusy(costs.len()));
    }
    Ok(super::measure::median(&mut costs))
}

/// Nanoseconds between two rounds, if all threads ran side by side: an interrupted thread begins
/// late or ends late.
fn cost(halves: &[Half]) -> Option<f64> {
    let from = halves.iter().map(|half| half.from).fold(f64::MAX, f64::min);
    let to = halves.iter().map(|half| half.to).fold(0.0, f64::max);
    let rounds: u64 = halves.iter().map(|half| half.rounds).sum();
    let late = halves.iter().any(|half| half.from - from > LATE || to - half.to > LATE);
    (!late && to - from < BURST as f64 + LATE && rounds > 0).then(|| (to - from) / rounds as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_few_bursts_are_an_error_and_no_figure() {
        assert_eq!(typical(vec![1.0; BURSTS_MIN - 1]), Err(TooBusy(BURSTS_MIN - 1)));
        assert_eq!(typical(Vec::new()), Err(TooBusy(0)));
        assert_eq!(typical(vec![1.0; BURSTS_MIN]), Ok(1.0));
    }

    #[test]
    fn bursts_that_did_not_overlap_are_dropped() {
        let half = |from: f64, to: f64| Half { from, to, rounds: 1_000 };
        let burst = BURST as f64;
        assert_eq!(cost(&[half(0.0, burst), half(10.0, burst)]), Some(burst / 2_000.0));
        assert_eq!(cost(&[half(0.0, burst)]), Some(burst / 1_000.0));
        assert_eq!(cost(&[half(0.0, burst), half(2.0 * LATE, burst)]), None, "it began late");
        assert_eq!(cost(&[half(0.0, burst), half(0.0, burst + 2.0 * LATE)]), None, "it ended late");
        assert_eq!(cost(&[half(0.0, burst + 2.0 * LATE)]), None, "it was interrupted");
    }
}
