//! How much of a turn of the loop clients may take: a lane that serves them for longer than its lease
//! lasts would lose its place in the view, and all others wait for the replies of a turn, which leave
//! at its end.
//!
//! Only the clock knows what a command cost, and to ask it before each would cost more than many
//! commands do. So work is estimated, and the clock is read once enough of it was done.

use quorate_types::{Duration, Instant};

use crate::limits::{CLIENT_PER_TURN, CLIENTS_PER_TURN, RESUMED_PER_TURN, WORK_PER_READING};

/// What clients have taken of the turn.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    number: u64,
    /// When the clock was read last.
    read_at: Instant,
    /// Work since then.
    work: u64,
    /// What all clients have taken.
    spent: Duration,
}

/// What one client has taken of the turn with this number.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Taken {
    turn: u64,
    spent: Duration,
}

impl Turn {
    /// Clients have their turn from now on.
    pub(crate) fn begin(&mut self, now: Instant) {
        *self = Self { number: self.number + 1, read_at: now, ..Self::default() };
    }

    /// Notes what was done for a client. Returns what has passed since the clock was read last, if it
    /// was read now: because enough was done, or because that is to be known exactly.
    #[inline]
    pub(crate) fn spend(
        &mut self,
        share: &mut Taken,
        work: u64,
        exactly: bool,
        clock: impl FnOnce() -> Instant,
    ) -> Duration {
        self.work += work;
        if self.work < WORK_PER_READING && !exactly {
            return Duration::ZERO;
        }
        self.work = 0;
        let now = clock();
        let passed = now.since(self.read_at);
        self.read_at = now;
        self.spent += passed;
        if share.turn != self.number {
            *share = Taken { turn: self.number, spent: Duration::ZERO };
        }
        // Others did some of it, but never much.
        share.spent += passed;
        passed
    }

    /// Whether a client may go on in this turn.
    #[inline]
    pub(crate) fn has_time(&self, share: &Taken) -> bool {
        !self.is_over() && (share.turn != self.number || share.spent < CLIENT_PER_TURN)
    }

    /// Whether all clients wait for the next turn.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.spent >= CLIENTS_PER_TURN
    }

    /// Whether those that waited for this turn have taken their part of it.
    pub(crate) fn has_resumed_enough(&self) -> bool {
        self.spent >= RESUMED_PER_TURN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_is_read_once_enough_was_done() {
        let (mut turn, mut share, mut readings) = (Turn::default(), Taken::default(), 0);
        turn.begin(Instant(0));
        for number in 1..=10 * WORK_PER_READING {
            turn.spend(&mut share, 1, false, || {
                readings += 1;
                Instant(number)
            });
        }
        assert_eq!(readings, 10);
        turn.spend(&mut share, 1000 * WORK_PER_READING, false, || {
            readings += 1;
            Instant(1000)
        });
        assert_eq!(readings, 11, "much work is one reading");
    }

    #[test]
    fn a_client_has_its_share_of_each_turn_and_all_have_theirs() {
        let mut turn = Turn::default();
        let mut now = Instant(0);
        let mut spend = |turn: &mut Turn, share: &mut Taken, time: Duration| {
            now += time;
            turn.spend(share, WORK_PER_READING, false, || now);
        };
        turn.begin(Instant(0));
        let mut shares = [Taken::default(); 4];
        for (index, share) in shares.iter_mut().enumerate() {
            assert!(turn.has_time(share), "client {index}");
            spend(&mut turn, share, CLIENT_PER_TURN);
            assert!(!turn.has_time(share));
        }
        assert!(turn.is_over() && turn.has_resumed_enough());
        assert!(!turn.has_time(&Taken::default()), "nobody has more");
        turn.begin(Instant(0));
        assert!(shares.iter().all(|share| turn.has_time(share)), "the next turn is another one");
    }
}
