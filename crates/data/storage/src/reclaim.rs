//! Returns memory to the allocator once no reader can look at it: epoch-based reclamation, by a
//! library. Models have their own, which they can follow: with loom it frees nothing, with shuttle
//! it frees everything as soon as the promise allows it.

use quorate_machine::mutant;

#[cfg(shuttle)]
use self::at_once as collector;
#[cfg(not(any(loom, shuttle)))]
use self::epochs as collector;
#[cfg(loom)]
use self::never as collector;

/// Prevents the freeing of memory that its holder can reach. Pinning costs some ten nanoseconds, so
/// a lane pins once per batch of reads; while the lane holds one guard, further pins on its thread
/// cost almost nothing. A guard that is held for long keeps every thread's garbage from being
/// freed.
pub struct Guard(collector::Pin);

/// Pins the thread, whichever store it looks at.
#[inline]
pub fn pin() -> Guard {
    Guard(collector::pin())
}

impl Guard {
    /// Lets go of everything seen so far and pins anew: for a thread that holds a guard for long.
    pub fn refresh(&mut self) {
        self.0.refresh();
    }

    /// Calls `free` once all threads that are pinned now have unpinned. `bytes` is the size of the
    /// memory that waits for it.
    ///
    /// # Safety
    /// Threads that pin from now on can't reach the memory that `free` frees, and no other code
    /// frees it. `free` may run on any thread.
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

/// Retired memory is leaked, so no access is ever to freed memory and the models need not follow a
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

/// Retired memory is freed when the last pin of that time ends. A library waits longer, often until
/// every pin has ended: it would hardly ever reveal a thread that reads without a pin.
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
        /// All threads of a schedule are one to the system, and no code in here lets another run.
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
