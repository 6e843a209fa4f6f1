//! The sequence lock: one 32-bit word that excludes writers from each other and tells readers, who
//! take no lock, whether their copy was whole.

use quorate_machine::mutant;

use crate::sync::{AtomicU32, Backoff, Ordering, fence};

/// A thread holds the lock.
const LOCKED: u32 = 1;
/// The holder has changed something, so the record is not whole.
const WRITING: u32 = 2;
/// One version; it overflows after 2^30 writes, which no reader's window spans.
const STEP: u32 = 4;

#[cfg(all(debug_assertions, not(loom)))]
crate::sync::thread_local! {
    /// Whether this thread holds a record's lock.
    static HOLDING: core::cell::Cell<bool> = const { core::cell::Cell::new(false) };
}

/// In debug builds, panics if this thread holds a record's lock: before it waits for another lock.
#[inline]
pub(crate) fn assert_none_held() {
    #[cfg(all(debug_assertions, not(loom)))]
    assert!(!HOLDING.with(core::cell::Cell::get), "who holds a record's lock takes no other lock");
}

/// A sequence lock. Holding it and writing under it are different: readers go on reading while a
/// holder only looks, and turn back from its first change until it releases the lock. So they see
/// all of a holder's changes or none (pitfall H0).
pub(crate) struct Sequence(AtomicU32);

/// The version a reader saw before it began to copy.
#[derive(Clone, Copy)]
pub(crate) struct Version(u32);

impl Sequence {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Waits until the lock is free, and takes it.
    ///
    /// A thread that holds one record's lock takes no other lock, of a record or of a shard: with
    /// locks of records last and one at a time, no circle of waiting threads arises. Debug builds
    /// check it.
    #[inline]
    pub(crate) fn lock(&self) {
        assert_none_held();
        #[cfg(all(debug_assertions, not(loom)))]
        HOLDING.with(|holding| holding.set(true));
        if !self.try_lock() {
            self.lock_contended();
        }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        let word = self.0.load(Ordering::Relaxed);
        word & LOCKED == 0
            && self
                .0
                .compare_exchange(word, word | LOCKED, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
    }

    #[cold]
    fn lock_contended(&self) {
        let backoff = Backoff::default();
        while !self.try_lock() {
            backoff.wait();
        }
    }

    /// Turns readers away before the holder's first change.
    #[inline]
    pub(crate) fn begin_write(&self) {
        // Only the holder changes the word while `LOCKED` is set, so this need not be one step.
        let word = self.0.load(Ordering::Relaxed);
        debug_assert!(word & LOCKED != 0, "only the holder writes");
        self.0.store(word | WRITING, Ordering::Relaxed);
        if !mutant!("storage_write_without_fence") {
            // Pairs with the fence in `unchanged`: a reader that saw a change sees `WRITING` too.
            fence(Ordering::Release);
        }
    }

    /// Releases the lock, under a new version if there was a [`Sequence::begin_write`].
    #[inline]
    pub(crate) fn unlock(&self) {
        let word = self.0.load(Ordering::Relaxed);
        debug_assert!(word & LOCKED != 0, "only the holder unlocks");
        let open = word & !(LOCKED | WRITING);
        let next = if word & WRITING != 0 { open.wrapping_add(STEP) } else { open };
        self.0.store(next, Ordering::Release);
        #[cfg(all(debug_assertions, not(loom)))]
        HOLDING.with(|holding| holding.set(false));
    }

    /// The version to copy under, unless a writer is at work.
    #[inline]
    pub(crate) fn begin_read(&self) -> Option<Version> {
        let word = self.0.load(Ordering::Acquire);
        (word & WRITING == 0).then_some(Version(word & !LOCKED))
    }

    /// Whether everything copied since `version` was seen belongs together.
    #[inline]
    pub(crate) fn unchanged(&self, version: Version) -> bool {
        // Keeps the copying loads before the load of the word.
        fence(Ordering::Acquire);
        self.0.load(Ordering::Relaxed) & !LOCKED == version.0
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::sync::AtomicU64;

    struct Pair {
        sequence: Sequence,
        first: AtomicU64,
        second: AtomicU64,
    }

    impl Pair {
        fn shared() -> Arc<Self> {
            let (first, second) = (AtomicU64::new(0), AtomicU64::new(0));
            Arc::new(Self { sequence: Sequence::new(), first, second })
        }

        fn add_one(&self) {
            self.sequence.lock();
            let (first, second) =
                (self.first.load(Ordering::Relaxed), self.second.load(Ordering::Relaxed));
            assert_eq!(first, second, "a holder sees the last holder's changes whole");
            self.sequence.begin_write();
            self.first.store(first + 1, Ordering::Relaxed);
            self.second.store(second + 1, Ordering::Relaxed);
            self.sequence.unlock();
        }

        fn read(&self) -> u64 {
            loop {
                if let Some(version) = self.sequence.begin_read() {
                    let first = self.first.load(Ordering::Relaxed);
                    let second = self.second.load(Ordering::Relaxed);
                    if self.sequence.unchanged(version) {
                        assert_eq!(first, second, "a torn pair was taken for whole");
                        return first;
                    }
                }
                thread::yield_now();
            }
        }
    }

    #[test]
    fn a_reader_never_takes_a_torn_pair() {
        loom::model(|| {
            let pair = Pair::shared();
            let writer = thread::spawn({
                let pair = pair.clone();
                move || {
                    pair.add_one();
                    pair.add_one();
                }
            });
            let before = pair.read();
            let after = pair.read();
            assert!(before <= after, "versions go forward");
            writer.join().unwrap();
            assert_eq!(pair.read(), 2);
        });
    }

    #[test]
    fn writers_exclude_each_other() {
        loom::model(|| {
            let pair = Pair::shared();
            let writer = thread::spawn({
                let pair = pair.clone();
                move || pair.add_one()
            });
            pair.add_one();
            writer.join().unwrap();
            assert_eq!(pair.read(), 2);
        });
    }

    #[test]
    fn a_holder_that_only_looks_disturbs_no_reader() {
        loom::model(|| {
            let pair = Pair::shared();
            let holder = thread::spawn({
                let pair = pair.clone();
                move || {
                    pair.sequence.lock();
                    pair.sequence.unlock();
                    pair.add_one();
                }
            });
            pair.read();
            holder.join().unwrap();
        });
    }
}
