//! Two threads take turns in running a lane, so that a disk that hangs does not stop it.
//!
//! A thread that writes to a disk can't know when the call returns. So before it writes a batch it leaves the
//! lane where the second thread can take it, and takes it back afterwards: usually two locks without
//! contention. The second thread looks now and then while batches are written. If one takes longer than
//! [`PATIENCE`], it takes the lane and goes on with heartbeats, reads and all that needs no disk. When the
//! write of the first thread returns, the two have changed places.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a lane may be gone at least before the other thread takes it, and twice that at most: less
/// than a heartbeat is missed for.
pub(crate) const PATIENCE: Duration = Duration::from_millis(20);

/// Where a lane is left. See the module's documentation.
#[derive(Debug)]
pub(crate) struct Relief<L> {
    state: Mutex<State<L>>,
    changed: Condvar,
    patience: Duration,
}

#[derive(Debug)]
struct State<L> {
    /// The lane, while its thread writes.
    left: Option<L>,
    /// How often it was left.
    times: u64,
    /// The other thread sleeps until the lane is left again.
    sleeps: bool,
    /// The lane has ended.
    ended: bool,
}

impl<L> Relief<L> {
    pub(crate) fn new(patience: Duration) -> Self {
        let state = State { left: None, times: 0, sleeps: false, ended: false };
        Self { state: Mutex::new(state), changed: Condvar::new(), patience }
    }

    /// Does what may take long, for the lane. `None` in its place: the other thread has taken it.
    pub(crate) fn lend<R>(&self, lane: L, work: impl FnOnce() -> R) -> (Option<L>, R) {
        let mut state = self.lock();
        state.left = Some(lane);
        state.times += 1;
        let mine = state.times;
        if std::mem::take(&mut state.sleeps) {
            self.changed.notify_one();
        }
        drop(state);
        let result = work();
        let mut state = self.lock();
        let lane = if state.times == mine { state.left.take() } else { None };
        (lane, result)
    }

    /// Waits until the lane has been gone for too long, and takes it. `None`: it has ended.
    pub(crate) fn take_over(&self) -> Option<L> {
        let mut state = self.lock();
        let mut seen = None;
        loop {
            let is_same = seen == Some(state.times);
            if state.ended {
                return None;
            } else if is_same && state.left.is_some() {
                return state.left.take();
            } else if is_same {
                state.sleeps = true;
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            } else {
                seen = Some(state.times);
                let waited = self.changed.wait_timeout(state, self.patience);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }

    /// The lane has ended, and nobody needs to take it over.
    pub(crate) fn end(&self) {
        self.lock().ended = true;
        self.changed.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State<L>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use crossbeam_channel::bounded;

    use super::*;

    #[test]
    fn a_lane_whose_work_is_quick_stays_with_its_thread() {
        let relief = Relief::new(Duration::from_secs(3600));
        thread::scope(|scope| {
            let other = scope.spawn(|| relief.take_over());
            for lane in 0..1000 {
                assert_eq!(relief.lend(lane, || lane + 1), (Some(lane), lane + 1));
            }
            relief.end();
            assert_eq!(other.join().expect("it returns"), None);
        });
    }

    #[test]
    fn a_lane_whose_work_hangs_goes_on_with_the_other_thread() {
        let relief = Relief::new(Duration::from_millis(1));
        let (let_go, hangs) = bounded::<()>(1);
        thread::scope(|scope| {
            let first = scope.spawn(|| relief.lend("lane", || hangs.recv()));
            assert_eq!(relief.take_over(), Some("lane"));
            // What the other thread lends is no business of the first one's, which is still away.
            let (again, _) = relief.lend("lane", || let_go.send(()).map(|()| first.join()));
            assert_eq!(again, Some("lane"));
        });
    }
}
