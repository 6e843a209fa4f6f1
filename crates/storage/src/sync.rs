//! The atomics, mutex and waiting that the rest of the crate uses: the standard library's, or
//! loom's when a model is checked (`--cfg loom`), or those that record writes (`trace-writes`).

#[cfg(loom)]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicPtr, AtomicU16, AtomicU32, AtomicU64, Ordering, fence},
};
#[cfg(not(any(loom, feature = "trace-writes")))]
pub(crate) use std::sync::{
    Mutex,
    atomic::{AtomicPtr, AtomicU16, AtomicU32, AtomicU64},
};
#[cfg(not(loom))]
pub(crate) use std::sync::{
    MutexGuard,
    atomic::{Ordering, fence},
};

#[cfg(all(feature = "trace-writes", not(loom)))]
pub(crate) use crate::trace::{AtomicPtr, AtomicU16, AtomicU32, AtomicU64, Mutex};

/// A count, which orders nothing: models leave counts out and check fewer interleavings.
#[cfg(not(loom))]
pub(crate) type Count = AtomicU64;
#[cfg(loom)]
pub(crate) type Count = std::sync::atomic::AtomicU64;

/// This thread writes memory without one of the atomics. Recorded with `trace-writes`, otherwise
/// nothing.
#[inline]
pub(crate) fn note_write<T>(at: core::ptr::NonNull<T>, bytes: usize) {
    #[cfg(all(feature = "trace-writes", not(loom)))]
    crate::trace::written(at.addr().get(), bytes);
    #[cfg(not(all(feature = "trace-writes", not(loom))))]
    let _not_recorded = (at, bytes);
}

/// Waiting for another thread that holds something for a few instructions: spins, and yields once
/// that thread seems to have lost its processor.
#[derive(Default)]
pub(crate) struct Backoff {
    #[cfg(not(loom))]
    inner: crossbeam_utils::Backoff,
}

impl Backoff {
    /// Waits a little, longer each time.
    #[cfg(not(loom))]
    pub(crate) fn wait(&self) {
        self.inner.snooze();
    }

    /// Lets the model run another thread; a model can't make progress by spinning.
    #[cfg(loom)]
    pub(crate) fn wait(&self) {
        loom::thread::yield_now();
    }
}

/// Stands for plain memory that is written once, before other threads find it, so that a model
/// notices if they could find it too early. Nothing outside of models.
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
        // Making a cell is no access to loom; this is.
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

/// Stands for plain memory that a lock guards, so that a model notices two threads at it. Nothing
/// outside of models.
pub(crate) struct Exclusive {
    #[cfg(loom)]
    access: loom::cell::UnsafeCell<()>,
}

impl Exclusive {
    /// The memory is written by who makes it.
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
