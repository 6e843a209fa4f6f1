//! A place for a thread to sleep.
//!
//! An unpark is a system call, and on another core it takes some 40 us until the thread runs; so a
//! thread is woken only if it really sleeps, which one flag shows.

use quorate_machine::mutant;

use crate::primitives::{AtomicBool, Ordering, fence};

/// A means to end a sleep, also one that is about to begin.
pub trait Wake {
    /// Ends the owner's sleep, or the next one if it does not sleep yet.
    fn wake(&self);
}

/// A place for a thread to sleep and to be woken.
#[derive(Debug)]
pub struct Parker<W> {
    asleep: AtomicBool,
    bell: W,
}

impl<W: Wake> Parker<W> {
    /// The parker of a thread that `bell` wakes.
    pub fn new(bell: W) -> Self {
        Self { asleep: AtomicBool::new(false), bell }
    }

    /// The bell that wakes the owner.
    pub fn bell(&self) -> &W {
        &self.bell
    }

    /// Wakes the thread if it sleeps. Call this after putting the work where the thread looks for
    /// it.
    #[inline]
    pub fn unpark(&self) {
        if !mutant!("sync_unpark_without_fence") {
            // Pairs with the fence of `park`: either this load sees the flag, or the sleeper's
            // last look sees the work.
            fence(Ordering::SeqCst);
        }
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::AcqRel) {
            self.bell.wake();
        }
    }

    /// Raises the flag that the owner sleeps, and lets the owner look for work once more. Returns
    /// whether it may sleep. Call [`Parker::get_up`] afterwards in either case.
    #[inline]
    #[must_use]
    pub fn park(&self, has_work: impl FnOnce() -> bool) -> bool {
        if mutant!("sync_flag_after_look") {
            let idle = !has_work();
            self.raise_flag();
            return idle;
        }
        self.raise_flag();
        !has_work()
    }

    /// A swap where a store would do: loom takes a store and a concurrent swap to be unordered, and
    /// would report a run that the memory model rules out. It costs nothing beside the sleep.
    fn raise_flag(&self) {
        self.asleep.swap(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Lowers the flag: the owner is awake. It must look for work after this.
    #[inline]
    pub fn get_up(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use core::cell::Cell;

    use super::*;

    #[derive(Default)]
    struct Rings(Cell<u32>);

    impl Wake for Rings {
        fn wake(&self) {
            self.0.set(self.0.get() + 1);
        }
    }

    #[test]
    fn only_a_sleeper_is_woken_and_once() {
        let parker = Parker::new(Rings::default());
        parker.unpark();
        assert_eq!(parker.bell().0.get(), 0, "nobody slept");
        assert!(parker.park(|| false));
        parker.unpark();
        parker.unpark();
        assert_eq!(parker.bell().0.get(), 1);
        parker.get_up();
        assert!(!parker.park(|| true), "who has work does not sleep");
        parker.get_up();
        parker.unpark();
        assert_eq!(parker.bell().0.get(), 1);
    }
}
