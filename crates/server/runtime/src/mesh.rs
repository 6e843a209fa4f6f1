//! How the lanes of this process reach each other: [`quorate_sync`] over the system's way to wake a
//! poll.

use std::io;

use mio::{Registry, Token, Waker};
use quorate_node::Mail;
use quorate_sync::Wake;

/// Where a thread sleeps and can be woken.
pub(crate) type Parker = quorate_sync::Parker<Bell>;

/// One thread's ends of the rings. Every envelope belongs to an op that its lane has accepted
/// (bounded by [`quorate_types::limits::OPS_PENDING_MAX`]) or to a view, so what waits for room in a
/// ring is bounded too.
pub(crate) type Post = quorate_sync::Post<Envelope, Bell>;

/// Ends a thread's poll.
#[derive(Debug)]
pub(crate) struct Bell(Waker);

/// A parker of the thread that polls `registry`.
pub(crate) fn parker(registry: &Registry, token: Token) -> io::Result<Parker> {
    Ok(Parker::new(Bell(Waker::new(registry, token)?)))
}

impl Wake for Bell {
    fn wake(&self) {
        if let Err(error) = self.0.wake() {
            tracing::error!(%error, "a lane could not be woken");
        }
    }
}

/// Mail for the lane of a hosted node.
#[derive(Debug)]
pub(crate) struct Envelope {
    /// Which of the nodes hosted by this process.
    pub(crate) host: usize,
    /// The mail.
    pub(crate) mail: Mail,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_unpark_ends_the_poll_of_a_sleeper_only() {
        let mut poll = mio::Poll::new().unwrap();
        let parker = parker(poll.registry(), Token(0)).unwrap();
        let mut events = mio::Events::with_capacity(4);
        parker.unpark();
        poll.poll(&mut events, Some(Duration::ZERO)).unwrap();
        assert!(events.is_empty(), "nobody slept");
        assert!(parker.park(|| false));
        parker.unpark();
        poll.poll(&mut events, Some(Duration::from_secs(10))).unwrap();
        assert!(!events.is_empty());
    }
}
