//! The atomics, locks, threads and waiting for everything that threads share: the standard
//! library's, loom's or shuttle's.

#[cfg(loom)]
pub use loom::{
    sync::{
        Condvar, Mutex, MutexGuard, RwLock,
        atomic::{AtomicBool, AtomicPtr, AtomicU16, AtomicU32, AtomicU64, Ordering, fence},
    },
    thread,
};
#[cfg(shuttle)]
pub use shuttle::{
    sync::{
        Condvar, Mutex, MutexGuard, RwLock,
        atomic::{AtomicBool, AtomicPtr, AtomicU16, AtomicU32, AtomicU64, Ordering, fence},
    },
    thread, thread_local,
};
#[cfg(not(any(loom, shuttle)))]
pub use std::{
    sync::{
        Condvar, Mutex, MutexGuard, RwLock,
        atomic::{AtomicBool, AtomicPtr, AtomicU16, AtomicU32, AtomicU64, Ordering, fence},
    },
    thread, thread_local,
};

/// Whether this build is for models. Bounds are small there, so that few steps reach them.
pub const IS_MODEL: bool = cfg!(any(loom, shuttle));

/// A count, which orders nothing: models leave counts out and check fewer interleavings.
#[cfg(any(loom, shuttle))]
pub type Count = std::sync::atomic::AtomicU64;
/// A count, which orders nothing: models leave counts out and check fewer interleavings.
#[cfg(not(any(loom, shuttle)))]
pub type Count = AtomicU64;

/// Waits for another thread that holds something for a few instructions: spins, and yields once
/// that thread seems to have lost its processor.
#[derive(Debug, Default)]
pub struct Backoff {
    #[cfg(not(any(loom, shuttle)))]
    inner: crossbeam_utils::Backoff,
}

impl Backoff {
    /// Waits a little, longer each time.
    #[cfg(not(any(loom, shuttle)))]
    pub fn wait(&self) {
        self.inner.snooze();
    }

    /// Lets the model run another thread; a model can't make progress by spinning.
    #[cfg(any(loom, shuttle))]
    pub fn wait(&self) {
        thread::yield_now();
    }
}
