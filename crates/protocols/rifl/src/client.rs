//! The client's side.

use alloc::collections::BTreeSet;

use quorate_types::{Duration, Instant, limits};

/// Numbers a session's calls (the thesis's `RequestTracker`).
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct RequestTracker {
    next: u64,
    first: u64,
    /// Calls from `first` on that have ended.
    over: BTreeSet<u64>,
}

impl RequestTracker {
    /// The number of a new call; `None` while the oldest open call holds up the window.
    pub fn begin(&mut self) -> Option<u64> {
        if self.next - self.first >= limits::SESSION_WINDOW {
            return None;
        }
        self.next += 1;
        Some(self.next - 1)
    }

    /// The number of the next call.
    pub const fn next(&self) -> u64 {
        self.next
    }

    /// From now on, numbers below this one belong only to calls that were begun.
    ///
    /// # Panics
    /// If a call is open: the left out numbers could not be acknowledged.
    pub fn leave_out(&mut self, below: u64) {
        assert_eq!(self.open(), 0, "numbers are left out between calls");
        self.next = self.next.max(below);
        self.first = self.next;
        self.over.clear();
    }

    /// Ends a call: its answer is known, and no try will ask for it again.
    pub fn complete(&mut self, sequence: u64) {
        assert!(sequence < self.next, "call {sequence} was never begun");
        if sequence >= self.first {
            self.over.insert(sequence);
        }
        while self.over.remove(&self.first) {
            self.first += 1;
        }
    }

    /// All calls below this one have ended.
    pub const fn first_incomplete(&self) -> u64 {
        self.first
    }

    /// How many calls have not ended.
    pub fn open(&self) -> u64 {
        self.next - self.first - self.over.len() as u64
    }
}

/// The time for which a client can be sure of its lease.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ClientLease {
    from: Instant,
    term: Duration,
}

impl ClientLease {
    /// A lease for `term`, whose request was *sent* at `sent`: the time of the answer says nothing
    /// about the begin of the term.
    pub const fn new(sent: Instant, term: Duration) -> Self {
        Self { from: sent, term }
    }

    /// Takes the answer to a renewal sent at `sent`. Answers may overtake each other.
    pub fn renewed(&mut self, sent: Instant, term: Duration) {
        if sent + term > self.from + self.term {
            *self = Self::new(sent, term);
        }
    }

    /// When to renew: at half of the term.
    pub fn renew_at(&self) -> Instant {
        self.from + self.term / 2
    }

    /// Whether a new call may begin: not in the last part of the term, in which its answer might
    /// come too late to be asked for again.
    pub fn may_begin(&self, now: Instant) -> bool {
        let danger = limits::LEASE_DANGER.min(self.term / 4);
        now < self.from + (self.term - danger)
    }

    /// The time from which the lease may have ended.
    pub fn over_at(&self) -> Instant {
        self.from + self.term
    }

    /// Whether the lease may have ended: then the outcomes of open calls can't be learned any more.
    pub fn is_over(&self, now: Instant) -> bool {
        now >= self.over_at()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn the_first_incomplete_call_follows_the_oldest_open_one() {
        let mut requests = RequestTracker::default();
        for sequence in 0..4 {
            assert_eq!(requests.begin(), Some(sequence));
        }
        requests.complete(1);
        requests.complete(2);
        assert_eq!((requests.first_incomplete(), requests.open()), (0, 2));
        requests.complete(0);
        assert_eq!((requests.first_incomplete(), requests.open()), (3, 1));
        requests.complete(0);
        requests.complete(3);
        assert_eq!((requests.first_incomplete(), requests.open()), (4, 0));
    }

    #[test]
    fn the_window_is_held_up_by_its_oldest_call() {
        let mut requests = RequestTracker::default();
        for _ in 0..limits::SESSION_WINDOW {
            assert!(requests.begin().is_some());
        }
        for sequence in 1..limits::SESSION_WINDOW {
            requests.complete(sequence);
        }
        assert_eq!(requests.begin(), None);
        requests.complete(0);
        assert_eq!(requests.begin(), Some(limits::SESSION_WINDOW));
    }

    #[test]
    fn numbers_can_be_left_out_between_calls() {
        let mut requests = RequestTracker::default();
        assert_eq!(requests.begin(), Some(0));
        requests.complete(0);
        requests.leave_out(limits::SESSION_WINDOW * 2);
        assert_eq!(requests.begin(), Some(limits::SESSION_WINDOW * 2));
        assert_eq!(requests.first_incomplete(), limits::SESSION_WINDOW * 2);
        requests.complete(limits::SESSION_WINDOW * 2);
        requests.leave_out(3);
        assert_eq!((requests.next(), requests.open()), (limits::SESSION_WINDOW * 2 + 1, 0));
    }

    #[test]
    fn a_term_counts_from_the_sending() {
        let term = Duration::from_secs(1800);
        let mut client_lease = ClientLease::new(Instant(100 * SECOND), term);
        assert_eq!(client_lease.renew_at(), Instant(1000 * SECOND));
        assert!(client_lease.may_begin(Instant(1839 * SECOND)));
        assert!(!client_lease.may_begin(Instant(1840 * SECOND)));
        assert!(!client_lease.is_over(Instant(1899 * SECOND)));
        assert!(client_lease.is_over(Instant(1900 * SECOND)));
        client_lease.renewed(Instant(1000 * SECOND), term);
        client_lease.renewed(Instant(500 * SECOND), term);
        assert!(!client_lease.is_over(Instant(2799 * SECOND)));
        assert!(client_lease.is_over(Instant(2800 * SECOND)));
    }
}
