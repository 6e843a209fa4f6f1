//! Both ends of leases: the grants that this node relies on, and its promises.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use quorate_machine::mutant;
use quorate_paxos::Voter;
use quorate_types::{Duration, Instant, NodeId, Role, View};

/// The end of this node's operation under the grants it holds.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Lease {
    /// The newest t0 that each voter of this epoch granted.
    granted: BTreeMap<NodeId, Instant>,
    until: Instant,
}

impl Lease {
    /// Operational before this instant.
    pub(crate) fn until(&self) -> Instant {
        self.until
    }

    /// Whether `voter` granted the newest request of `me`. A node grants its own request at once.
    pub(crate) fn is_granted_by(&self, voter: NodeId, me: NodeId) -> bool {
        self.granted.contains_key(&me) && self.granted.get(&voter) == self.granted.get(&me)
    }

    /// When this node sent the newest request of this epoch that `voter` granted: it lived then. Zero if none.
    pub(crate) fn granted_at(&self, voter: NodeId) -> Instant {
        self.granted.get(&voter).copied().unwrap_or_default()
    }

    /// A voter granted the request sent at `sent`; `voters` is the number of voters of this epoch.
    pub(crate) fn grant(
        &mut self,
        voter: NodeId,
        sent: Instant,
        voters: usize,
        reliance: Duration,
    ) {
        let newest = self.granted.entry(voter).or_default();
        *newest = sent.max(*newest);
        let mut stamps: Vec<Instant> = self.granted.values().copied().collect();
        stamps.sort_unstable_by(|a, b| b.cmp(a));
        // The oldest stamp among the newest majority is granted by all of that majority.
        if let Some(sent) =
            stamps.get(if mutant!("membership_lease_of_one") { 0 } else { voters / 2 })
        {
            self.until = self.until.max(*sent + reliance);
        }
    }

    /// In a new epoch a majority is counted afresh; a lease that is held runs to its end, because
    /// promises outlast epochs.
    pub(crate) fn enter_epoch(&mut self) {
        self.granted.clear();
    }
}

/// The removals that this voter may not help with yet.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Promises {
    until: BTreeMap<Voter, Instant>,
    /// No removals before this: a promise's length after the last change of voters.
    settled_at: Instant,
    /// Members that have given their leases up for good.
    released: BTreeSet<Voter>,
}

impl Promises {
    /// Promises not to help to remove `member` before `until`.
    pub(crate) fn promise(&mut self, member: Voter, until: Instant) {
        let known = self.until.entry(member).or_default();
        *known = until.max(*known);
    }

    /// `member` has given its lease up, which voids all promises about it.
    pub(crate) fn release(&mut self, member: Voter) {
        self.released.insert(member);
    }

    /// The voters changed, and this node learns of it now.
    pub(crate) fn voters_changed(&mut self, settled_at: Instant) {
        self.settled_at = self.settled_at.max(settled_at);
    }

    /// Forgets lapsed promises.
    pub(crate) fn purge(&mut self, now: Instant) {
        self.until.retain(|_, until| *until > now);
    }

    /// Forgets members that gave their leases up and are not in `view` any more.
    pub(crate) fn enter(&mut self, view: &View) {
        self.released.retain(|voter| view.is_live(voter.node, voter.incarnation));
    }

    /// The time from which this voter may help to remove `member`.
    pub(crate) fn free_to_remove(&self, member: Voter) -> Instant {
        if mutant!("membership_lease_ignored") || self.released.contains(&member) {
            return Instant::ZERO;
        }
        let promised = self.until.get(&member).copied().unwrap_or_default();
        if mutant!("membership_joiner_promises_nothing") {
            return promised;
        }
        promised.max(self.settled_at)
    }

    /// The time until which acceptance of `next` must be withheld, if it removes a member.
    pub(crate) fn withhold(&self, current: &View, next: &View) -> Option<Instant> {
        dropped(current, next).map(|member| self.free_to_remove(member)).max()
    }
}

/// The members that are live in `current` and not in `next`.
pub(crate) fn dropped<'a>(
    current: &'a View,
    next: &'a View,
) -> impl Iterator<Item = Voter> + use<'a> {
    current
        .members
        .iter()
        .filter(|member| {
            member.role != Role::Down && !next.is_live(member.node, member.incarnation)
        })
        .map(|member| Voter { node: member.node, incarnation: member.incarnation })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_needs_one_request_granted_by_a_majority() {
        let mut lease = Lease::default();
        let reliance = Duration::from_nanos(100);
        lease.grant(NodeId(1), Instant(50), 3, reliance);
        assert_eq!(lease.until(), Instant::ZERO);
        lease.grant(NodeId(2), Instant(20), 3, reliance);
        assert_eq!(lease.until(), Instant(120));
        lease.grant(NodeId(3), Instant(40), 3, reliance);
        assert_eq!(lease.until(), Instant(140));
        // A late, old grant changes nothing.
        lease.grant(NodeId(3), Instant(10), 3, reliance);
        assert_eq!(lease.until(), Instant(140));
        lease.enter_epoch();
        lease.grant(NodeId(1), Instant(90), 3, reliance);
        assert_eq!(lease.until(), Instant(140));
    }

    #[test]
    fn two_voters_of_four_are_no_majority() {
        let mut lease = Lease::default();
        for node in [1, 2] {
            lease.grant(NodeId(node), Instant(50), 4, Duration::from_nanos(100));
        }
        assert_eq!(lease.until(), Instant::ZERO);
    }
}
