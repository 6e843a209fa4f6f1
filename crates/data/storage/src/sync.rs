//! The crate's means to synchronise: [`quorate_sync::primitives`], or in builds with debug
//! assertions atomics that can record writes; and, for models only, stand-ins for plain memory.

#[cfg(all(debug_assertions, not(loom)))]
pub(crate) use quorate_sync::primitives::thread_local;
#[cfg(any(not(debug_assertions), loom, shuttle))]
pub(crate) use quorate_sync::primitives::{
    AtomicPtr, AtomicU16, AtomicU32, AtomicU64, Count, Mutex,
};
pub(crate) use quorate_sync::primitives::{Backoff, IS_MODEL, MutexGuard, Ordering, fence};

#[cfg(all(debug_assertions, not(any(loom, shuttle))))]
pub(crate) use crate::trace::{
    AtomicPtr, AtomicU16, AtomicU32, AtomicU64, AtomicU64 as Count, Mutex,
};

/// Notes that this thread writes memory without one of the atomics. For tests that record the
/// writes of threads (see `trace`).
#[inline]
pub(crate) fn note_write<T>(at: core::ptr::NonNull<T>, bytes: usize) {
    #[cfg(all(debug_assertions, not(any(loom, shuttle))))]
    crate::trace::written(at.addr().get(), bytes);
    let _ = (at, bytes);
}
/// Stands for plain memory that is written once, before other threads find it, so that a model
/// notices threads that could find it too early. Empty outside of models.
pub(crate) struct WrittenOnce {
    #[cfg(loom)]
    access: loom::cell::UnsafeCell<()>,
}

impl WrittenOnce {
    /// The memory is written.
    pub(crate) fn new() -> Self {
        let once = Self {
            #[cfg(loom)]
            access: loom::cell::UnsafeCell::new(()),
        };
        // To loom, making a cell is no access; this is one.
        #[cfg(loom)]
        once.access.with_mut(|_| ());
        once
    }

    /// The memory is read.
    #[inline]
    pub(crate) fn read(&self) {
        #[cfg(loom)]
        self.access.with(|_| ());
    }
}

/// Stands for plain memory that a lock guards, so that a model notices two threads at it. Empty
/// outside of models.
pub(crate) struct Exclusive {
    #[cfg(loom)]
    access: loom::cell::UnsafeCell<()>,
}

impl Exclusive {
    /// The maker of the memory writes it.
    pub(crate) fn new() -> Self {
        let exclusive = Self {
            #[cfg(loom)]
            access: loom::cell::UnsafeCell::new(()),
        };
        exclusive.write();
        exclusive
    }

    /// The memory is read under the lock.
    #[inline]
    pub(crate) fn read(&self) {
        #[cfg(loom)]
        self.access.with(|_| ());
    }

    /// The memory is written under the lock.
    #[inline]
    pub(crate) fn write(&self) {
        #[cfg(loom)]
        self.access.with_mut(|_| ());
    }
}

/// Marks memory that is in use, so that a schedule that reads freed memory fails: with shuttle
/// freed memory stays readable (see `memory`). Empty outside of schedules.
pub(crate) struct Alive {
    #[cfg(shuttle)]
    alive: std::sync::atomic::AtomicBool,
}

impl Alive {
    /// The memory is in use.
    pub(crate) fn new() -> Self {
        Self {
            #[cfg(shuttle)]
            alive: true.into(),
        }
    }

    /// A thread reads the memory.
    #[inline]
    pub(crate) fn assert(&self) {
        #[cfg(shuttle)]
        assert!(self.alive.load(Ordering::Relaxed), "freed memory is looked at");
    }

    /// Frees marked memory, or keeps it where marks are checked.
    #[inline]
    pub(crate) fn keep_marked<T: ?Sized>(freed: Box<T>) {
        if cfg!(shuttle) {
            Box::leak(freed);
        }
    }

    /// The memory is freed.
    #[inline]
    pub(crate) fn end(&self) {
        #[cfg(shuttle)]
        assert!(self.alive.swap(false, Ordering::Relaxed), "memory is freed twice");
    }
}
