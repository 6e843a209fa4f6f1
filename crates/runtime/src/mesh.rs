//! How the threads of a process reach each other: a ring for each ordered pair of threads, and a
//! door to knock on where a thread sleeps.
//!
//! A knock is a system call and, on another core, some 40 us until the other runs; so a thread
//! is woken only if it really sleeps, which one flag tells.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use mio::{Registry, Token, Waker};
use quorate_node::Mail;
use rtrb::{Consumer, Producer, RingBuffer};

/// Mail that a ring holds; what doesn't fit waits with the sender.
const RING_PARCELS: usize = 4096;

/// Where a thread sleeps and can be woken.
#[derive(Debug)]
pub(crate) struct Door {
    asleep: AtomicBool,
    waker: Waker,
}

impl Door {
    /// A door of the thread that polls `registry`.
    pub(crate) fn new(registry: &Registry, token: Token) -> io::Result<Self> {
        Ok(Self { asleep: AtomicBool::new(false), waker: Waker::new(registry, token)? })
    }

    /// Wakes the thread if it sleeps. Call after the work was put where the thread looks for it.
    #[inline]
    pub(crate) fn knock(&self) {
        // Pairs with the fence of `lie_down`: either this load sees the flag, or the sleeper's
        // last look sees the work.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed)
            && self.asleep.swap(false, Ordering::AcqRel)
            && let Err(error) = self.waker.wake()
        {
            tracing::error!(%error, "a lane could not be woken");
        }
    }

    /// Says that the owner is about to sleep. It must look for work once more before it does.
    #[inline]
    pub(crate) fn lie_down(&self) {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Says that the owner is awake.
    #[inline]
    pub(crate) fn get_up(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }
}

/// Mail for the lane of a hosted node.
#[derive(Debug)]
pub(crate) struct Parcel {
    /// Which of the nodes hosted by this process.
    pub(crate) host: usize,
    /// The mail.
    pub(crate) mail: Mail,
}

/// One thread's ends of the rings.
pub(crate) struct Post {
    outgoing: Vec<Option<Outgoing>>,
    incoming: Vec<Consumer<Parcel>>,
}

struct Outgoing {
    ring: Producer<Parcel>,
    /// What the ring had no room for. Every parcel belongs to an op that its lane has accepted
    /// (bounded by [`quorate_types::limits::OPS_PENDING_MAX`]) or to a view, so this is bounded
    /// too.
    overflow: VecDeque<Parcel>,
    door: Arc<Door>,
    knock: bool,
}

impl Post {
    /// The post of every thread, connected with one another.
    pub(crate) fn connect(doors: &[Arc<Door>]) -> Vec<Self> {
        let mut posts: Vec<Self> =
            doors.iter().map(|_| Self { outgoing: Vec::new(), incoming: Vec::new() }).collect();
        for from in 0..doors.len() {
            for (to, door) in doors.iter().enumerate() {
                if from == to {
                    posts[from].outgoing.push(None);
                    continue;
                }
                let (ring, consumer) = RingBuffer::new(RING_PARCELS);
                let door = Arc::clone(door);
                let overflow = VecDeque::new();
                posts[from].outgoing.push(Some(Outgoing { ring, overflow, door, knock: false }));
                posts[to].incoming.push(consumer);
            }
        }
        posts
    }

    /// Sends mail to another thread; it leaves for good with [`Post::knock`].
    #[inline]
    pub(crate) fn send(&mut self, to: usize, parcel: Parcel) {
        let outgoing = self.outgoing[to].as_mut().expect("a lane sends no mail to itself");
        outgoing.knock = true;
        if !outgoing.overflow.is_empty() {
            outgoing.overflow.push_back(parcel);
            return;
        }
        if let Err(rtrb::PushError::Full(parcel)) = outgoing.ring.push(parcel) {
            outgoing.overflow.push_back(parcel);
        }
    }

    /// Wakes the threads that got mail since the last call.
    #[inline]
    pub(crate) fn knock(&mut self) {
        for outgoing in self.outgoing.iter_mut().flatten() {
            while let Some(parcel) = outgoing.overflow.pop_front() {
                if let Err(rtrb::PushError::Full(parcel)) = outgoing.ring.push(parcel) {
                    outgoing.overflow.push_front(parcel);
                    break;
                }
                outgoing.knock = true;
            }
            if std::mem::take(&mut outgoing.knock) {
                outgoing.door.knock();
            }
        }
    }

    /// Whether mail waits here for room in a ring: then sleeping must be short.
    pub(crate) fn is_stuck(&self) -> bool {
        self.outgoing.iter().flatten().any(|outgoing| !outgoing.overflow.is_empty())
    }

    /// Whether mail has come.
    pub(crate) fn has_mail(&self) -> bool {
        self.incoming.iter().any(|ring| !ring.is_empty())
    }

    /// Takes the next mail.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<Parcel> {
        self.incoming.iter_mut().find_map(|ring| ring.pop().ok())
    }
}

#[cfg(test)]
mod tests {
    use quorate_types::{Epoch, LaneId};

    use super::*;

    fn parcel(number: u64) -> Parcel {
        Parcel { host: 0, mail: Mail::CaughtUp { from: LaneId(0), epoch: Epoch(number) } }
    }

    fn number(parcel: &Parcel) -> u64 {
        match parcel.mail {
            Mail::CaughtUp { epoch, .. } => epoch.0,
            _ => panic!("another mail"),
        }
    }

    fn doors(count: usize) -> (Vec<mio::Poll>, Vec<Arc<Door>>) {
        (0..count)
            .map(|_| {
                let poll = mio::Poll::new().unwrap();
                let door = Door::new(poll.registry(), Token(0)).unwrap();
                (poll, Arc::new(door))
            })
            .unzip()
    }

    #[test]
    fn mail_stays_in_order_when_a_ring_overflows() {
        let (_polls, doors) = doors(2);
        let mut posts = Post::connect(&doors);
        let total = RING_PARCELS as u64 * 2 + 10;
        for n in 0..total {
            posts[0].send(1, parcel(n));
        }
        assert!(posts[0].is_stuck());
        let mut seen = 0;
        while seen < total {
            while let Some(parcel) = posts[1].take() {
                assert_eq!(number(&parcel), seen);
                seen += 1;
            }
            posts[0].knock();
        }
        assert!(!posts[0].is_stuck() && !posts[1].has_mail());
    }

    #[test]
    fn only_a_sleeper_is_woken() {
        let (mut polls, doors) = doors(1);
        let mut events = mio::Events::with_capacity(4);
        doors[0].knock();
        polls[0].poll(&mut events, Some(std::time::Duration::ZERO)).unwrap();
        assert!(events.is_empty(), "nobody slept");
        doors[0].lie_down();
        doors[0].knock();
        polls[0].poll(&mut events, Some(std::time::Duration::from_secs(10))).unwrap();
        assert!(!events.is_empty());
    }
}
