//! When memory that readers may still look at is given back: epoch-based reclamation.

/// Keeps what its holder can reach from being freed. Pinning costs some ten nanoseconds, so a lane
/// pins once per batch of reads; while the lane holds one, further pins on its thread cost almost
/// nothing. Held for long, it keeps every thread's garbage from being freed.
pub struct Guard {
    #[cfg(not(loom))]
    epoch: crossbeam_epoch::Guard,
}

/// Pins the thread.
#[cfg(not(loom))]
#[inline]
pub(crate) fn pin() -> Guard {
    Guard { epoch: crossbeam_epoch::pin() }
}

/// Models have no reclamation: what is retired is leaked, so no access is ever to freed memory and
/// the models need not follow the collector.
#[cfg(loom)]
pub(crate) fn pin() -> Guard {
    Guard {}
}

/// Garbage from this size on is handed to the collector at once instead of being gathered, bytes.
#[cfg(not(loom))]
const LARGE: usize = 64 * 1024;

impl Guard {
    /// Lets go of everything seen so far and pins anew: for a thread that holds a guard for long.
    pub fn refresh(&mut self) {
        #[cfg(not(loom))]
        self.epoch.repin();
    }

    /// Calls `free` once no thread that is pinned now is pinned still. `bytes` is how much memory
    /// waits for it.
    ///
    /// # Safety
    /// What `free` frees can't be reached by a thread that pins from now on, and nobody else frees
    /// it. `free` may run on any thread.
    pub(crate) unsafe fn retire(&self, bytes: usize, free: impl FnOnce()) {
        #[cfg(not(loom))]
        {
            // SAFETY: the caller passes on the same promise; `free` owns what it captures.
            unsafe { self.epoch.defer_unchecked(free) };
            if bytes >= LARGE {
                self.epoch.flush();
            }
        }
        #[cfg(loom)]
        {
            let _leaked = (bytes, free);
        }
    }
}

impl core::fmt::Debug for Guard {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Guard").finish_non_exhaustive()
    }
}
