//! The cache lines that a thread writes, recorded for tests of disjoint access: two lanes that work
//! on different keys must write no common line, or they slow each other down although their work
//! does not conflict.
//!
//! Only in builds with debug assertions. It records this crate's writes to memory that another
//! thread could reach: sequence locks, words of records and buffers, locked states, counters, the
//! index with its mutexes. It does not record the allocator and the collector of garbage, whose
//! shared lines are touched once per many operations, and memory that a locked state owns
//! elsewhere. Other crates add their own shared cells with [`written`].
//!
//! Memory that one thread's changes release may serve another thread next. That is no sharing, but
//! the lines would look common: so a test holds a [`crate::Guard`] while it records.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::LockResult;
use std::sync::atomic::{self, Ordering};

use crate::record::CACHE_LINE;

thread_local! {
    /// Whether this thread records: all that a write asks where no test does.
    static IS_ON: Cell<bool> = const { Cell::new(false) };
    static LINES: RefCell<Option<BTreeSet<usize>>> = const { RefCell::new(None) };
}

/// Begins to record the writes of this thread, and forgets earlier records.
pub fn begin() {
    LINES.set(Some(BTreeSet::new()));
    IS_ON.set(true);
}

/// Stops recording. The numbers of the cache lines that this thread wrote since [`begin`]: their
/// addresses divided by 64. Empty without a `begin`.
pub fn end() -> BTreeSet<usize> {
    IS_ON.set(false);
    LINES.take().unwrap_or_default()
}

/// This thread writes `len` bytes from an address on, or claims their cache lines in order to
/// write.
pub fn written(address: usize, len: usize) {
    if len == 0 || !IS_ON.get() {
        return;
    }
    // A thread that ends may free garbage after its locals are gone; no test asks for its lines.
    let _ended = LINES.try_with(|lines| {
        if let Some(lines) = &mut *lines.borrow_mut() {
            lines.extend(address / CACHE_LINE..=(address + len - 1) / CACHE_LINE);
        }
    });
}

fn touched<T>(cell: &T) {
    written(core::ptr::from_ref(cell).addr(), size_of::<T>());
}

/// Atomics that record writes: those that storage uses, with the operations that it uses.
macro_rules! atomic {
    ($name:ident $(<$t:ident>)?, $value:ty) => {
        #[repr(transparent)]
        pub(crate) struct $name $(<$t>)? (atomic::$name $(<$t>)?);

        impl $(<$t>)? $name $(<$t>)? {
            pub(crate) fn new(value: $value) -> Self {
                Self(atomic::$name::new(value))
            }

            #[inline]
            pub(crate) fn load(&self, order: Ordering) -> $value {
                self.0.load(order)
            }

            #[inline]
            pub(crate) fn store(&self, value: $value, order: Ordering) {
                touched(self);
                self.0.store(value, order);
            }
        }
    };
}

atomic!(AtomicU16, u16);
atomic!(AtomicU32, u32);
atomic!(AtomicU64, u64);
atomic!(AtomicPtr<T>, *mut T);

impl AtomicU32 {
    /// A failed exchange counts, too: the processor has claimed the line by then.
    pub(crate) fn compare_exchange(
        &self,
        current: u32,
        new: u32,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u32, u32> {
        touched(self);
        self.0.compare_exchange(current, new, success, failure)
    }
}

impl AtomicU64 {
    pub(crate) fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        touched(self);
        self.0.fetch_add(value, order)
    }

    pub(crate) fn fetch_max(&self, value: u64, order: Ordering) -> u64 {
        touched(self);
        self.0.fetch_max(value, order)
    }

    pub(crate) fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
        touched(self);
        self.0.fetch_sub(value, order)
    }
}

impl Default for AtomicU64 {
    fn default() -> Self {
        Self::new(0)
    }
}

/// A mutex that records writes to itself and to its contents.
pub(crate) struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> LockResult<std::sync::MutexGuard<'_, T>> {
        touched(self);
        self.0.lock()
    }
}
