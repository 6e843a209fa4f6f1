//! When the next batch of a log begins that somebody waits for: at once, or a little later together
//! with what is about to come.
//!
//! Clients that wait for a batch send their next updates when it ends. What has come meanwhile waits
//! for the disk already then, and if its batch begins at once, the clients are two parties from there on,
//! and each waits for two flushes: the other's and its own. A log that waits for the first party
//! serves both with one flush. It waits for as many entries as the last batch had and as waited at its
//! end, but not for much longer than a flush takes; and where that was in vain, because there are no
//! such clients, some of the next batches begin at once.

use quorate_machine::mutant;
use quorate_types::{Duration, Instant};

/// How many times as long as its last flush a log waits: the clients' updates come by way of other
/// nodes, which have to do as well.
const WAIT_FLUSHES: u32 = 4;
/// But no longer than this.
const WAIT_MAX: Duration = Duration::from_millis(1);
/// Most batches that begin at once after one that waited in vain.
const SKIP_MAX: u32 = 256;

/// What decides when a log begins its next batch.
#[derive(Debug)]
pub(crate) struct CommitDelay {
    /// Entries of the last batch, and those that waited at its end.
    expected: u64,
    /// Until when the next batch may wait.
    until: Instant,
    /// Whether it does.
    waits: bool,
    /// How many batches will begin at once.
    skip: u32,
    /// How many do so after the next one that waits in vain.
    penalty: u32,
}

impl CommitDelay {
    pub(crate) fn new() -> Self {
        Self { expected: 0, until: Instant::ZERO, waits: false, skip: 0, penalty: 1 }
    }

    /// A batch of so many entries is durable, which took so long, and so many others wait.
    pub(crate) fn batch_ended(&mut self, now: Instant, took: Duration, entries: u64, waiting: u64) {
        self.expected = entries + waiting;
        self.until = now + (took * WAIT_FLUSHES).min(WAIT_MAX);
        self.waits = false;
        if self.skip > 0 {
            self.skip -= 1;
            self.until = now;
        }
    }

    /// Whether a batch of as many entries as wait now should begin.
    pub(crate) fn may_begin(&mut self, now: Instant, waiting: u64) -> bool {
        let is_complete = waiting >= self.expected;
        if is_complete || (now >= self.until && !mutant!("node_commit_waits_for_all")) {
            if std::mem::take(&mut self.waits) {
                self.learn(is_complete);
            }
            return true;
        }
        self.waits = true;
        false
    }

    fn learn(&mut self, was_worth_it: bool) {
        if was_worth_it || mutant!("node_commit_delay_never_learns") {
            self.penalty = 1;
        } else {
            self.skip = self.penalty;
            self.penalty = (self.penalty * 2).min(SKIP_MAX);
        }
    }

    /// When a batch that waits begins at the latest.
    pub(crate) fn deadline(&self) -> Instant {
        if self.waits { self.until } else { Instant::NEVER }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLUSH: Duration = Duration::from_micros(200);
    const TURNAROUND: Duration = Duration::from_micros(50);

    /// So many clients in a closed loop, of whom one half begins half a flush later. Gives how many
    /// entries each of the last batches had.
    fn closed_loop(clients: u64, batches: usize) -> Vec<u64> {
        let mut delay = CommitDelay::new();
        let mut now = Instant::ZERO;
        // When which clients send their next update.
        let mut coming = vec![(now, clients.div_ceil(2)), (now + FLUSH / 2, clients / 2)];
        let mut waiting = 0;
        let mut sizes = Vec::new();
        while sizes.len() < batches {
            let arrive = |now: Instant, coming: &mut Vec<(Instant, u64)>| {
                coming.extract_if(.., |(at, _)| *at <= now).map(|(_, count)| count).sum::<u64>()
            };
            waiting += arrive(now, &mut coming);
            if waiting == 0 || !delay.may_begin(now, waiting) {
                let next = coming.iter().map(|(at, _)| *at).min().unwrap_or(Instant::NEVER);
                now = next.min(delay.deadline());
                continue;
            }
            let batch = std::mem::take(&mut waiting);
            sizes.push(batch);
            now += FLUSH;
            waiting += arrive(now, &mut coming);
            coming.push((now + TURNAROUND, batch));
            delay.batch_ended(now, FLUSH, batch, waiting);
        }
        sizes
    }

    #[test]
    fn two_parties_of_clients_become_one() {
        assert_eq!(closed_loop(50, 6)[1..], [50; 5]);
        assert_eq!(closed_loop(2, 6)[1..], [2; 5]);
    }

    #[test]
    fn a_lone_client_never_waits() {
        let mut delay = CommitDelay::new();
        let mut now = Instant::ZERO;
        for _ in 0..100 {
            assert!(delay.may_begin(now, 1));
            now += FLUSH;
            delay.batch_ended(now, FLUSH, 1, 0);
            now += TURNAROUND;
        }
    }

    #[test]
    fn no_batch_waits_longer_than_a_few_flushes_nor_as_long_as_a_slow_disk() {
        let mut delay = CommitDelay::new();
        let now = Instant::ZERO + Duration::from_secs(1);
        delay.batch_ended(now, FLUSH, 10, 5);
        assert!(!delay.may_begin(now, 5));
        assert_eq!(delay.deadline(), now + FLUSH * WAIT_FLUSHES);
        assert!(delay.may_begin(delay.deadline(), 5));
        assert_eq!(delay.deadline(), Instant::NEVER);
        // One begins at once then; the next one waits again.
        delay.batch_ended(now, FLUSH, 5, 5);
        delay.batch_ended(now, Duration::from_secs(2), 10, 5);
        assert!(!delay.may_begin(now, 5));
        assert_eq!(delay.deadline(), now + WAIT_MAX);
    }

    #[test]
    fn what_comes_after_a_pause_does_not_wait() {
        let mut delay = CommitDelay::new();
        let now = Instant::ZERO + Duration::from_secs(1);
        delay.batch_ended(now, FLUSH, 10, 0);
        assert!(delay.may_begin(now + FLUSH * WAIT_FLUSHES, 1));
    }

    #[test]
    fn where_nobody_comes_back_few_batches_wait() {
        let mut delay = CommitDelay::new();
        let mut now = Instant::ZERO;
        let mut waited = 0;
        for _ in 0..1000 {
            if !delay.may_begin(now, 1) {
                waited += 1;
                now = delay.deadline();
                assert!(delay.may_begin(now, 1));
            }
            now += FLUSH;
            delay.batch_ended(now, FLUSH, 1, 1);
        }
        assert!(waited < 20, "{waited} of 1000 batches have waited");
    }
}
