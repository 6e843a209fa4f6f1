//! The lease manager that owns a lease: whether it lives, its renewal and its end.

use alloc::vec::Vec;

use quorate_machine::{Effects, mutant};
use quorate_types::{Instant, MemberNumber, Now};

use super::{Adopted, LeaseManager};
use crate::LeaseId;
use crate::grant::{LeaseEnd, Lost};
use crate::message::{Body, Denial, Message};

/// Whether a lease lives.
pub(super) enum Judged {
    Alive,
    Lost(Lost),
    /// Unknown until every live member has told its clock.
    Later,
}

impl LeaseManager {
    /// The time since when this node owns the leases of a member that is gone.
    pub(super) fn inherited_since(&self, member: MemberNumber) -> Instant {
        let left = self.left.get(&member).copied().unwrap_or(self.first_view);
        left.max(self.eldest_since.unwrap_or(Instant::NEVER))
    }

    pub(super) fn judge(&self, now: Now, lease: LeaseId, told: u64) -> Judged {
        if Some(lease.member()) == self.me {
            let lost = self.terms.lost(lease.counter(), now.monotonic);
            return lost.map_or(Judged::Alive, Judged::Lost);
        }
        if !self.is_synced() {
            return Judged::Later;
        }
        match self.adopted.get(&lease) {
            Some(adopted) if now.monotonic >= adopted.until => Judged::Lost(Lost::Expired),
            Some(adopted) if adopted.closed => Judged::Lost(Lost::Closed),
            Some(_) => Judged::Alive,
            None => {
                // Only the clock tells which leases the predecessor has declared ended.
                let over = now.monotonic >= self.inherited_since(lease.member()) + self.config.term;
                let may_be_over = told <= self.clock(now) && !mutant!("rifl_successor_extends_all");
                if over || may_be_over { Judged::Lost(Lost::Expired) } else { Judged::Alive }
            }
        }
    }

    /// The most leases of members that are gone that this lane keeps: as many as all members may
    /// have given out. No node knows any more which of them were.
    pub(super) fn adopted_max(&self) -> usize {
        self.config.leases_max.saturating_mul(self.view.members.len())
    }

    /// Whether this lane may keep a lease of a member that is gone.
    pub(super) fn may_adopt(&self, lease: LeaseId) -> bool {
        self.adopted.contains_key(&lease)
            || self.adopted.len() < self.adopted_max()
            || mutant!("rifl_adopts_without_limit")
    }

    /// Whether the lease can have been given out at all: numbers of members are given in order.
    pub(super) fn is_of_a_member(&self, lease: LeaseId) -> bool {
        (MemberNumber(1)..=self.view.last_number).contains(&lease.member())
    }

    /// Grants a full term, if the lease lives. `None` as long as the owner does not know.
    pub(super) fn renew(
        &mut self,
        now: Now,
        lease: LeaseId,
        told: u64,
        effects: &mut impl Effects<Self>,
    ) -> Option<Result<u64, Denial>> {
        if !self.is_of_a_member(lease) {
            return Some(Err(Denial::Lost(Lost::Expired)));
        }
        match self.judge(now, lease, told) {
            Judged::Later => return None,
            Judged::Lost(lost) => return Some(Err(Denial::Lost(lost))),
            Judged::Alive => {}
        }
        let own = Some(lease.member()) == self.me;
        if !own && !self.may_adopt(lease) {
            return Some(Err(Denial::Full));
        }
        self.raise_bound(now);
        if !self.is_fresh(now) || !self.is_clock_kept(now) {
            return None;
        }
        let until = now.monotonic + self.config.term;
        if own {
            self.terms.renew(lease.counter(), until);
        } else {
            effects.probe("rifl: a lease is taken over from a member that is gone");
            self.adopted.insert(lease, Adopted { until, closed: false });
        }
        Some(Ok(self.limit()))
    }

    /// Ends a lease, and tells every node.
    pub(super) fn close(
        &mut self,
        now: Now,
        lease: LeaseId,
        effects: &mut impl Effects<Self>,
    ) -> Option<Denial> {
        if !self.is_clock_kept(now) {
            return None;
        }
        match self.judge(now, lease, u64::MAX) {
            Judged::Later => return None,
            Judged::Lost(lost) => return Some(Denial::Lost(lost)),
            Judged::Alive => {}
        }
        if Some(lease.member()) == self.me {
            self.terms.close(lease.counter());
        } else if !self.may_adopt(lease) {
            return Some(Denial::Full);
        } else {
            let until = now.monotonic + self.config.term;
            self.adopted.insert(lease, Adopted { until, closed: true });
        }
        let leases = [(lease, Lost::Closed)];
        self.note(self.clock(now), &leases);
        let body = Body::Gone { leases: leases.into() };
        effects.broadcast(self.others(), &Message { clock: self.shown_clock(now), body });
        Some(Denial::Lost(Lost::Closed))
    }

    /// Those of these leases that this node owns and that have ended. None that could be said to have ended
    /// as of a time that the next process would not know to be over.
    pub(super) fn over(&self, now: Now, leases: &[LeaseId]) -> Vec<(LeaseId, Lost)> {
        if !self.is_clock_kept(now) {
            return Vec::new();
        }
        let lost = |lease: &LeaseId| match self.judge(now, *lease, u64::MAX) {
            Judged::Lost(lost) => Some((*lease, lost)),
            Judged::Alive | Judged::Later => None,
        };
        leases.iter().filter_map(lost).collect()
    }

    pub(super) fn note(&mut self, granted: u64, over: &[(LeaseId, Lost)]) {
        let verdict =
            |(lease, lost): &(LeaseId, Lost)| LeaseEnd { lease: *lease, lost: *lost, granted };
        self.verdicts.extend(over.iter().map(verdict));
    }
}
