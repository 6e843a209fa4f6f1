//! A queue from one thread to one other: a library's, or in models one with the same promises.

#[cfg(not(any(loom, shuttle)))]
pub(crate) use rtrb::{Consumer, Producer, PushError, RingBuffer};

#[cfg(any(loom, shuttle))]
pub(crate) use self::model::{Consumer, Producer, PushError, RingBuffer};

/// The library's atomics are the standard library's, which models don't follow. This ring orders
/// the accesses that the library's ring orders, and no others: a thread that sees the count of
/// pushed entries sees the entries. Asking whether it is empty looks at counts only, so it orders
/// as little as there.
#[cfg(any(loom, shuttle))]
mod model {
    use std::sync::Arc;

    use crate::primitives::{AtomicU64, Mutex, Ordering};

    pub(crate) enum PushError<T> {
        Full(T),
    }

    pub(crate) struct Empty;

    pub(crate) struct RingBuffer;

    struct Shared<T> {
        slots: Vec<Mutex<Option<T>>>,
        pushed: AtomicU64,
        popped: AtomicU64,
    }

    pub(crate) struct Producer<T>(Arc<Shared<T>>, u64);
    pub(crate) struct Consumer<T>(Arc<Shared<T>>, u64);

    impl RingBuffer {
        #[expect(clippy::new_ret_no_self, reason = "as the library")]
        pub(crate) fn new<T>(room: usize) -> (Producer<T>, Consumer<T>) {
            let slots = (0..room).map(|_| Mutex::new(None)).collect();
            let (pushed, popped) = (AtomicU64::new(0), AtomicU64::new(0));
            let shared = Arc::new(Shared { slots, pushed, popped });
            (Producer(Arc::clone(&shared), 0), Consumer(shared, 0))
        }
    }

    impl<T> Shared<T> {
        fn slot(&self, number: u64) -> &Mutex<Option<T>> {
            &self.slots[number as usize % self.slots.len()]
        }
    }

    impl<T> Producer<T> {
        pub(crate) fn push(&mut self, value: T) -> Result<(), PushError<T>> {
            let Self(shared, pushed) = self;
            if *pushed - shared.popped.load(Ordering::Acquire) == shared.slots.len() as u64 {
                return Err(PushError::Full(value));
            }
            let before = shared.slot(*pushed).lock().expect("no holder panics").replace(value);
            assert!(before.is_none(), "a slot is filled once it was emptied");
            *pushed += 1;
            shared.pushed.store(*pushed, Ordering::Release);
            Ok(())
        }
    }

    impl<T> Consumer<T> {
        pub(crate) fn is_empty(&self) -> bool {
            self.0.pushed.load(Ordering::Acquire) == self.1
        }

        pub(crate) fn pop(&mut self) -> Result<T, Empty> {
            if self.is_empty() {
                return Err(Empty);
            }
            let Self(shared, popped) = self;
            let value = shared.slot(*popped).lock().expect("no holder panics").take();
            *popped += 1;
            shared.popped.store(*popped, Ordering::Release);
            Ok(value.expect("what was pushed is there"))
        }
    }
}
