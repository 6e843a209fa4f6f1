//! When memory that readers may still look at is given back: epoch-based reclamation, by a library.
//! Models have their own, which they can follow: with loom nothing is given back, with shuttle
//! everything as soon as the promise allows it.

use quorate_machine::mutant;

#[cfg(shuttle)]
use self::at_once as collector;
#[cfg(not(any(loom, shuttle)))]
use self::epochs as collector;
#[cfg(loom)]
use self::never as collector;

/// Keeps what its holder can reach from being freed. Pinning costs some ten nanoseconds, so a lane
/// pins once per batch of reads; while the lane holds one, further pins on its thread cost almost
/// nothing. Held for long, it keeps every thread's garbage from being freed.
pub struct Guard(collector::Pin);

/// Pins the thread.
#[inline]
pub(crate) fn pin() -> Guard {
    Guard(collector::pin())
}

impl Guard {
    /// Lets go of everything seen so far and pins anew: for a thread that holds a guard for long.
    pub fn refresh(&mut self) {
        self.0.refresh();
    }

    /// Calls `free` once no thread that is pinned now is pinned still. `bytes` is how much memory
    /// waits for it.
    ///
    /// # Safety
    /// What `free` frees can't be reached by a thread that pins from now on, and nobody else frees
    /// it. `free` may run on any thread.
    pub(crate) unsafe fn retire(&self, bytes: usize, free: impl FnOnce()) {
        if mutant!("storage_freed_under_readers") {
            return free();
        }
        // SAFETY: the caller passes on the same promise.
        unsafe { self.0.retire(bytes, free) };
    }
}

impl core::fmt::Debug for Guard {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Guard").finish_non_exhaustive()
    }
}

#[cfg(not(any(loom, shuttle)))]
mod epochs {
    /// Garbage from this size on is handed to the collector at once instead of being gathered,
    /// bytes.
    const LARGE: usize = 64 * 1024;

    pub(super) struct Pin(crossbeam_epoch::Guard);

    #[inline]
    pub(super) fn pin() -> Pin {
        Pin(crossbeam_epoch::pin())
    }

    impl Pin {
        pub(super) fn refresh(&mut self) {
            self.0.repin();
        }

        /// # Safety
        /// As for [`super::Guard::retire`].
        pub(super) unsafe fn retire(&self, bytes: usize, free: impl FnOnce()) {
            // SAFETY: by the caller; `free` owns what it captures.
            unsafe { self.0.defer_unchecked(free) };
            if bytes >= LARGE {
                self.0.flush();
            }
        }
    }
}

/// What is retired is leaked, so no access is ever to freed memory and the models need not follow a
/// collector.
#[cfg(loom)]
mod never {
    pub(super) struct Pin;

    pub(super) fn pin() -> Pin {
        Pin
    }

    impl Pin {
        pub(super) fn refresh(&mut self) {}

        /// # Safety
        /// As for [`super::Guard::retire`].
        pub(super) unsafe fn retire(&self, bytes: usize, free: impl FnOnce()) {
            let _leaked = (bytes, free);
        }
    }
}

/// What is retired goes with the last pin that was there. A library waits longer, often until every
/// pin is gone: who looks at something without a pin would hardly ever be caught.
#[cfg(shuttle)]
mod at_once {
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    /// One pin, by number.
    pub(super) struct Pin(u64);

    struct Garbage {
        awaits: BTreeSet<u64>,
        free: Box<dyn FnOnce()>,
    }

    struct State {
        next: u64,
        pins: BTreeSet<u64>,
        garbage: Vec<Garbage>,
    }

    thread_local! {
        /// All threads of a schedule are one to the system, and nothing in here lets another run.
        static STATE: RefCell<State> =
            const { RefCell::new(State { next: 0, pins: BTreeSet::new(), garbage: Vec::new() }) };
    }

    pub(super) fn pin() -> Pin {
        STATE.with_borrow_mut(|state| {
            state.next += 1;
            state.pins.insert(state.next);
            Pin(state.next)
        })
    }

    impl Pin {
        pub(super) fn refresh(&mut self) {
            *self = pin();
        }

        /// # Safety
        /// As for [`super::Guard::retire`].
        pub(super) unsafe fn retire(&self, _bytes: usize, free: impl FnOnce()) {
            let free: Box<dyn FnOnce() + '_> = Box::new(free);
            // SAFETY: by the caller `free` owns what it captures, whose memory stays until it runs.
            let free =
                unsafe { core::mem::transmute::<Box<dyn FnOnce() + '_>, Box<dyn FnOnce()>>(free) };
            STATE.with_borrow_mut(|state| {
                let awaits = state.pins.clone();
                state.garbage.push(Garbage { awaits, free });
            });
        }
    }

    impl Drop for Pin {
        fn drop(&mut self) {
            let free: Vec<Garbage> = STATE.with_borrow_mut(|state| {
                state.pins.remove(&self.0);
                for garbage in &mut state.garbage {
                    garbage.awaits.remove(&self.0);
                }
                state.garbage.extract_if(.., |garbage| garbage.awaits.is_empty()).collect()
            });
            free.into_iter().for_each(|garbage| (garbage.free)());
        }
    }
}
