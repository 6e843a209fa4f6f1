//! Where a thread sleeps.
//!
//! A knock is a system call and, on another core, some 40 us until the other runs; so a thread
//! is woken only if it really sleeps, which one flag tells.

use quorate_machine::mutant;

use crate::primitives::{AtomicBool, Ordering, fence};

/// What ends a sleep, also one that is about to begin.
pub trait Wake {
    /// Ends the owner's sleep, or the next one if it does not sleep yet.
    fn wake(&self);
}

/// Where a thread sleeps and can be woken.
#[derive(Debug)]
pub struct Door<W> {
    asleep: AtomicBool,
    bell: W,
}

impl<W: Wake> Door<W> {
    /// The door of a thread that `bell` wakes.
    pub fn new(bell: W) -> Self {
        Self { asleep: AtomicBool::new(false), bell }
    }

    /// What wakes the owner.
    pub fn bell(&self) -> &W {
        &self.bell
    }

    /// Wakes the thread if it sleeps. Call after the work was put where the thread looks for it.
    #[inline]
    pub fn knock(&self) {
        if !mutant!("sync_knock_without_fence") {
            // Pairs with the fence of `lie_down`: either this load sees the flag, or the sleeper's
            // last look sees the work.
            fence(Ordering::SeqCst);
        }
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::AcqRel) {
            self.bell.wake();
        }
    }

    /// Says that the owner is about to sleep, and has it look for work once more; whether it may
    /// sleep. To be followed by [`Door::get_up`] in either case.
    #[inline]
    #[must_use]
    pub fn lie_down(&self, has_work: impl FnOnce() -> bool) -> bool {
        if mutant!("sync_flag_after_look") {
            let idle = !has_work();
            self.raise_flag();
            return idle;
        }
        self.raise_flag();
        !has_work()
    }

    /// A swap where a store would do: loom takes a store and a concurrent swap to be unordered, and
    /// would report what the memory model rules out. It costs nothing beside the sleep.
    fn raise_flag(&self) {
        self.asleep.swap(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Says that the owner is awake. It must look for work after this.
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
        let door = Door::new(Rings::default());
        door.knock();
        assert_eq!(door.bell().0.get(), 0, "nobody slept");
        assert!(door.lie_down(|| false));
        door.knock();
        door.knock();
        assert_eq!(door.bell().0.get(), 1);
        door.get_up();
        assert!(!door.lie_down(|| true), "who has work does not sleep");
        door.get_up();
        door.knock();
        assert_eq!(door.bell().0.get(), 1);
    }
}
