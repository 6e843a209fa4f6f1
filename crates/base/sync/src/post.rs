//! Mail between the threads of a process: a ring for each ordered pair of threads, and a [`Parker`]
//! for each thread that sleeps.

use core::fmt;
use std::collections::VecDeque;
use std::sync::Arc;

use crate::parker::{Parker, Wake};
use crate::primitives::IS_MODEL;
use crate::ring::{Consumer, Producer, PushError, RingBuffer};

/// Envelopes that a ring holds; further ones wait with the sender.
const RING_PARCELS: usize = if IS_MODEL { 1 } else { 4096 };

/// One thread's ends of the rings.
pub struct Post<P, W> {
    outgoing: Vec<Option<Outgoing<P, W>>>,
    incoming: Vec<Consumer<P>>,
}

struct Outgoing<P, W> {
    ring: Producer<P>,
    /// Mail without room in the ring. The sender's own limits bound it.
    overflow: VecDeque<P>,
    parker: Arc<Parker<W>>,
    unpark: bool,
}

impl<P, W: Wake> Post<P, W> {
    /// The post of every thread, connected with one another.
    pub fn connect(parkers: &[Arc<Parker<W>>]) -> Vec<Self> {
        let mut posts: Vec<Self> =
            parkers.iter().map(|_| Self { outgoing: Vec::new(), incoming: Vec::new() }).collect();
        for from in 0..parkers.len() {
            for (to, parker) in parkers.iter().enumerate() {
                if from == to {
                    posts[from].outgoing.push(None);
                    continue;
                }
                let (ring, consumer) = RingBuffer::new(RING_PARCELS);
                let parker = Arc::clone(parker);
                let overflow = VecDeque::new();
                posts[from].outgoing.push(Some(Outgoing { ring, overflow, parker, unpark: false }));
                posts[to].incoming.push(consumer);
            }
        }
        posts
    }

    /// Sends mail to another thread; the thread is woken by [`Post::unpark`].
    #[inline]
    pub fn send(&mut self, to: usize, envelope: P) {
        let outgoing = self.outgoing[to].as_mut().expect("a lane sends no mail to itself");
        outgoing.unpark = true;
        if !outgoing.overflow.is_empty() {
            outgoing.overflow.push_back(envelope);
            return;
        }
        if let Err(PushError::Full(envelope)) = outgoing.ring.push(envelope) {
            outgoing.overflow.push_back(envelope);
        }
    }

    /// Wakes the threads that got mail since the last call.
    #[inline]
    pub fn unpark(&mut self) {
        for outgoing in self.outgoing.iter_mut().flatten() {
            while let Some(envelope) = outgoing.overflow.pop_front() {
                if let Err(PushError::Full(envelope)) = outgoing.ring.push(envelope) {
                    outgoing.overflow.push_front(envelope);
                    break;
                }
                outgoing.unpark = true;
            }
            if std::mem::take(&mut outgoing.unpark) {
                outgoing.parker.unpark();
            }
        }
    }

    /// Whether mail waits here for room in a ring: then sleeping must be short.
    pub fn is_stuck(&self) -> bool {
        self.outgoing.iter().flatten().any(|outgoing| !outgoing.overflow.is_empty())
    }

    /// Whether mail has come.
    pub fn has_mail(&self) -> bool {
        self.incoming.iter().any(|ring| !ring.is_empty())
    }

    /// Takes the next mail.
    #[inline]
    pub fn take(&mut self) -> Option<P> {
        self.incoming.iter_mut().find_map(|ring| ring.pop().ok())
    }
}

impl<P, W> fmt::Debug for Post<P, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Post").field("threads", &self.outgoing.len()).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Silent;

    impl Wake for Silent {
        fn wake(&self) {}
    }

    #[test]
    fn mail_stays_in_order_when_a_ring_overflows() {
        let parkers = [0, 1].map(|_| Arc::new(Parker::new(Silent)));
        let mut posts = Post::connect(&parkers);
        let total = RING_PARCELS as u64 * 2 + 10;
        for n in 0..total {
            posts[0].send(1, n);
        }
        assert!(posts[0].is_stuck());
        let mut seen = 0;
        while seen < total {
            while let Some(number) = posts[1].take() {
                assert_eq!(number, seen);
                seen += 1;
            }
            posts[0].unpark();
        }
        assert!(!posts[0].is_stuck() && !posts[1].has_mail());
    }
}
