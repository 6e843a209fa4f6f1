//! The source of memory for records and buffers: the allocator, or under shuttle a pool that reuses
//! freed memory early and never returns it to the system. So a schedule that uses freed memory
//! finds it marked (`Alive`), or in use for something else.

#[cfg(not(shuttle))]
pub(crate) use std::alloc::{alloc, dealloc};

#[cfg(shuttle)]
pub(crate) use self::pool::{alloc, dealloc};

#[cfg(shuttle)]
mod pool {
    use std::alloc::Layout;
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    use quorate_sync::schedules::coin;

    thread_local! {
        /// Free memory, by size and alignment. All threads of a schedule are one to the system.
        static FREE: RefCell<BTreeMap<(usize, usize), Vec<*mut u8>>> =
            const { RefCell::new(BTreeMap::new()) };
    }

    /// As [`std::alloc::alloc`]; every other time it reuses the memory freed last.
    ///
    /// # Safety
    /// As for [`std::alloc::alloc`].
    pub(crate) unsafe fn alloc(layout: Layout) -> *mut u8 {
        let reused = coin().then(|| {
            FREE.with_borrow_mut(|free| free.get_mut(&(layout.size(), layout.align()))?.pop())
        });
        // SAFETY: by the caller.
        reused.flatten().unwrap_or_else(|| unsafe { std::alloc::alloc(layout) })
    }

    /// Keeps memory for [`alloc`].
    ///
    /// # Safety
    /// As for [`std::alloc::dealloc`].
    pub(crate) unsafe fn dealloc(at: *mut u8, layout: Layout) {
        let key = (layout.size(), layout.align());
        FREE.with_borrow_mut(|free| free.entry(key).or_default().push(at));
    }
}
