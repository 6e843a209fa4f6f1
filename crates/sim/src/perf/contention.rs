//! What it costs two processors to use the same thing at the same time, measured.
//!
//! Two threads do the same many times in a row, in short bursts that begin together. Others may use
//! the machine, too: a burst in which one thread stood still while the other ran shows no
//! contention, and one in which the holder of a mutex was interrupted shows a time slice. Bursts
//! whose halves did not overlap are dropped, and the median of the rest counts.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::Instant;

use quorate_baselines::{Common, Tentative};
use quorate_types::{Timestamp, WriterId};

use super::inputs::{Contention, Shared};

/// Bursts of each kind.
const BURSTS: usize = 400;
/// Rounds in a burst: about a tenth of a millisecond, far below a time slice.
const ROUNDS: u64 = 1_000;
/// The least part of the longer half that the shorter half of a burst must cover.
const OVERLAP_MIN: f64 = 0.8;
/// Bytes of a transaction's sets: one key and one value of 64 bytes, and what frames them.
const BODY: usize = 160;

/// Something that threads do with what they share. Told which thread it is, and how often this one
/// did it before.
type Round<'a> = &'a (dyn Fn(u64, u64) + Sync);

/// Measures all of it; takes a second.
pub(super) fn measure() -> Contention {
    let counter = AtomicU64::new(0);
    let counter = shared(1, &|_, _| {
        black_box(counter.fetch_add(1, Ordering::AcqRel));
    });
    let mutex = Mutex::new(0_u64);
    let mutex = shared(1, &|_, _| {
        *mutex.lock().expect("nobody panics while holding it") += 1;
    });
    let common = Common::default();
    let record = shared(2, &|thread, number| {
        let id = Timestamp::new(number + 1, WriterId(thread as u32));
        let body = vec![0; BODY];
        common.insert(id, Tentative { body, registered: true, accepted: None });
        black_box(common.remove(id));
    });
    let common = Common::default();
    let log = shared(3, &|_, _| {
        let place = common.append(&[0; BODY]);
        black_box(common.take(place));
        common.done(place);
    });
    Contention { counter, mutex, record, log }
}

/// The cost of one use, of which each round makes `uses`.
fn shared(uses: u64, round: Round<'_>) -> Shared {
    let alone = bursts(1, round);
    let contended = bursts(2, round);
    let per_use = |nanos: f64| nanos / (ROUNDS * uses) as f64;
    Shared {
        alone: per_use(alone),
        // Both threads made their rounds in that time. Two threads are never faster than one.
        contended: per_use(contended / 2.0).max(per_use(alone)),
    }
}

/// The median length of a burst in nanoseconds, with so many threads.
fn bursts(threads: u64, round: Round<'_>) -> f64 {
    let barrier = Barrier::new(threads as usize);
    let (ready, stop) = (AtomicU32::new(0), AtomicBool::new(false));
    let begin = Instant::now();
    let halves: Vec<Vec<(f64, f64)>> = std::thread::scope(|scope| {
        let run = |thread: u64| {
            let (barrier, ready, stop) = (&barrier, &ready, &stop);
            move || {
                let mut halves = Vec::with_capacity(BURSTS);
                for burst in 0..BURSTS as u64 {
                    barrier.wait();
                    // The barrier wakes one thread after the other: meet once more, awake.
                    ready.fetch_add(1, Ordering::AcqRel);
                    let all = (burst as u32 + 1) * threads as u32;
                    while ready.load(Ordering::Acquire) < all && !stop.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                    let from = begin.elapsed().as_nanos() as f64;
                    for number in 0..ROUNDS {
                        round(thread, burst * ROUNDS + number);
                    }
                    halves.push((from, begin.elapsed().as_nanos() as f64));
                }
                halves
            }
        };
        let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(run(thread))).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| {
                stop.store(true, Ordering::Relaxed);
                std::panic::resume_unwind(panic)
            })
        };
        threads.into_iter().map(join).collect()
    });
    let mut lengths: Vec<f64> = (0..BURSTS).filter_map(|burst| length(&halves, burst)).collect();
    if lengths.is_empty() {
        // Never together: the longest halves are as close to contention as it gets.
        lengths.extend(halves.iter().flatten().map(|(from, to)| to - from));
    }
    super::measure::median(&mut lengths)
}

/// How long a burst took, if all its threads ran side by side.
fn length(halves: &[Vec<(f64, f64)>], burst: usize) -> Option<f64> {
    let all = halves.iter().map(|half| half[burst]);
    let (mut first, mut last, mut from, mut to) = (f64::MAX, 0.0_f64, 0.0_f64, f64::MAX);
    for (begin, end) in all {
        (first, last) = (first.min(begin), last.max(end));
        (from, to) = (from.max(begin), to.min(end));
    }
    let (union, common) = (last - first, to - from);
    (common >= OVERLAP_MIN * union).then_some(union)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_that_did_not_overlap_are_dropped() {
        let halves = [vec![(0.0, 100.0), (0.0, 100.0)], vec![(5.0, 98.0), (90.0, 200.0)]];
        assert_eq!(length(&halves, 0), Some(100.0));
        assert_eq!(length(&halves, 1), None);
        assert_eq!(length(&halves[..1], 1), Some(100.0));
    }
}
