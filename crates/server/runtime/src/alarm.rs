//! Wakes a thread that polls at a moment for which the timeout of the poll, in whole milliseconds, is too
//! coarse.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::fs::Timespec;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

/// A poll's timeouts are rounded up to multiples of this.
pub(crate) const POLL_UNIT: Duration = Duration::from_millis(1);

/// The alarm of one thread.
#[derive(Debug)]
pub(crate) struct Alarm {
    timer: OwnedFd,
}

impl Alarm {
    /// An alarm that is not set. The poll tells of it under this token.
    pub(crate) fn new(registry: &Registry, token: Token) -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        // Told of once each time that it goes off, so nobody has to read from it.
        registry.register(&mut SourceFd(&timer.as_raw_fd()), token, Interest::READABLE)?;
        Ok(Self { timer })
    }

    /// Has the poll return after this span, which is not zero, at the latest.
    pub(crate) fn set(&self, span: Duration) -> io::Result<()> {
        let never_again = Timespec { tv_sec: 0, tv_nsec: 0 };
        let after = Timespec::try_from(span).map_err(io::Error::other)?;
        let times = Itimerspec { it_interval: never_again, it_value: after };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &times)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mio::{Events, Poll};

    #[test]
    fn it_goes_off_each_time_that_it_was_set() {
        let mut poll = Poll::new().unwrap();
        let alarm = Alarm::new(poll.registry(), Token(7)).unwrap();
        let mut events = Events::with_capacity(4);
        for _ in 0..3 {
            alarm.set(Duration::from_micros(100)).unwrap();
            poll.poll(&mut events, Some(Duration::from_secs(60))).unwrap();
            assert_eq!(events.iter().map(|event| event.token()).collect::<Vec<_>>(), [Token(7)]);
        }
        poll.poll(&mut events, Some(Duration::ZERO)).unwrap();
        assert!(events.is_empty(), "and not again");
    }
}
