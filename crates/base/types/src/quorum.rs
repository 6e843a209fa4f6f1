//! Quorum arithmetic of leaderless replication (Meerkat §5.1, N4.1).

/// The numbers of votes that decide, among the replicas of one epoch.
///
/// A replica group has `voters` members. `live` of them have a running process with its memory in
/// this epoch, and the view guarantees that no other member votes. With all of them live the numbers are
/// the paper's: a majority of `f + 1` and a fast quorum of `f + ceil(f / 2) + 1`, the least integer
/// above three quarters.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Quorums {
    /// Members of the replica group, dead or alive.
    pub voters: usize,
    /// Those that may vote in this epoch.
    pub live: usize,
    /// Votes that make a decision durable when they are accepted, `f + 1`.
    pub majority: usize,
    /// Equal validation votes that decide without another round.
    pub fast: usize,
}

impl Quorums {
    /// The quorums of a group. With `unanimous`, the fast quorum is all live replicas, so no
    /// recovery is ambiguous (Meerkat N4.3, the first of the three ways).
    ///
    /// If replicas are down, the remaining ones can still decide fast when all of them agree: a
    /// dead replica returns as a new member and brings no vote of this epoch. But a fast quorum is
    /// never smaller than a majority of the group: decisions of a smaller one would not survive the
    /// loss of a minority.
    pub fn new(voters: usize, live: usize, unanimous: bool) -> Self {
        let paper = voters * 3 / 4 + 1;
        let majority = voters / 2 + 1;
        let fast = if unanimous { live } else { paper.min(live) };
        Self { voters, live, majority, fast: fast.max(majority) }
    }

    /// Whether a decision is possible at all.
    pub fn can_decide(&self) -> bool {
        self.live >= self.fast
    }

    /// Replicas that must confirm a read-only transaction for it to be valid without a record. A
    /// majority suffices where a recovery is never ambiguous; otherwise enough replicas that a
    /// conflicting write can't look as if it had been decided fast.
    pub fn read(&self) -> usize {
        (2 * self.live + 1).saturating_sub(self.fast + self.majority).max(self.majority)
    }

    /// Votes for OK among `replies` that leave it possible that a fast quorum voted OK.
    pub fn fast_possible(&self, ok: usize, replies: usize) -> bool {
        ok + (self.live - replies) >= self.fast
    }

    /// Whether this many votes for ABORT rule out every way to commit, so that an abort needs no
    /// second round (Meerkat N3.4-10: two of three; never with the paper's fast quorum of five).
    pub fn abort_is_final(&self, aborts: usize) -> bool {
        let ok = self.live.saturating_sub(aborts);
        let recoverable = |replies: &usize| self.is_recoverable(*replies);
        ok < self.majority
            && !(1..=self.live).filter(recoverable).any(|k| self.fast_possible(ok.min(k), k))
    }

    /// Whether every decision of a quorum of this epoch shows in `replies` of its replicas.
    pub fn is_recoverable(&self, replies: usize) -> bool {
        replies + self.majority > self.live && replies + self.fast > self.live
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_paper() {
        for (voters, majority, fast) in [(1, 1, 1), (3, 2, 3), (5, 3, 4), (7, 4, 6), (9, 5, 7)] {
            let quorums = Quorums::new(voters, voters, false);
            assert_eq!((quorums.majority, quorums.fast), (majority, fast), "{voters} voters");
            let f = voters / 2;
            assert_eq!(fast, f + f.div_ceil(2) + 1);
        }
    }

    #[test]
    fn with_three_replicas_no_recovery_is_ambiguous() {
        let quorums = Quorums::new(3, 3, false);
        // Two replies: either both vote OK, which is a majority, or no fast quorum did.
        assert!(!quorums.fast_possible(1, 2));
        assert!(quorums.fast_possible(2, 2));
        let quorums = Quorums::new(5, 5, false);
        assert!(quorums.fast_possible(2, 3), "two of three, and the other two may have, too");
        assert!(!Quorums::new(5, 5, true).fast_possible(2, 3));
    }

    #[test]
    fn two_aborts_of_three_are_final_and_three_of_five_are_not() {
        assert!(Quorums::new(3, 3, false).abort_is_final(2));
        assert!(!Quorums::new(3, 3, false).abort_is_final(1));
        assert!(!Quorums::new(5, 5, false).abort_is_final(3));
        assert!(Quorums::new(5, 5, true).abort_is_final(3));
        assert!(Quorums::new(1, 1, false).abort_is_final(1));
    }

    #[test]
    fn fewer_than_a_majority_decide_nothing() {
        for unanimous in [false, true] {
            let alone = Quorums::new(3, 1, unanimous);
            assert!(!alone.can_decide());
            assert_eq!(alone.fast, 2);
            assert!(alone.abort_is_final(0), "and nothing of it can commit later");
            assert!(Quorums::new(3, 2, unanimous).can_decide());
            assert!(Quorums::new(1, 1, unanimous).can_decide());
        }
    }

    #[test]
    fn two_conflicting_transactions_never_both_look_fast() {
        for voters in 1..=9 {
            for live in voters / 2 + 1..=voters {
                for unanimous in [false, true] {
                    let quorums = Quorums::new(voters, live, unanimous);
                    for replies in (1..=live).filter(|&replies| quorums.is_recoverable(replies)) {
                        let least = (0..=replies)
                            .find(|&ok| quorums.fast_possible(ok, replies))
                            .expect("all replies OK may always have been a fast quorum");
                        assert!(2 * least > replies, "{quorums:?} with {replies} replies");
                    }
                }
            }
        }
    }

    #[test]
    fn a_read_quorum_hides_no_write_that_looks_fast() {
        for (voters, read) in [(1, 1), (3, 2), (5, 4), (7, 5)] {
            let quorums = Quorums::new(voters, voters, false);
            assert_eq!(quorums.read(), read, "{voters} voters");
            // A conflicting write has votes only outside the read quorum.
            let votes = quorums.live - read;
            let replies = quorums.majority;
            assert!(!quorums.fast_possible(votes, replies), "{voters} voters");
            assert_eq!(Quorums::new(voters, voters, true).read(), quorums.majority);
        }
    }
}
