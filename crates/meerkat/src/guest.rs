//! Guests: clients that coordinate their transactions themselves over the peer protocol (§4.1: the
//! paper's coordinators are clients).
//!
//! A guest runs this same machine without a replica. It reads with GET, validates, decides, and
//! tells, as any coordinator does; if it dies, the replicas finish what it began (`recovery.rs`).
//!
//! Two things are different. *Time*: a node's clock has passed every timestamp that was answered
//! before; a guest asks a majority of the active members for their clocks first, in one epoch, so
//! that one who has missed an epoch finds no majority. *Floors*: nodes know each other's watermarks
//! but not every guest's. So a node counts the undecided transactions of its guests among its own
//! when it announces up to where everything is over, and refuses those that begin below that; of
//! any replicas that let a guest's transaction commit, each keeps the floor below it.

use quorate_machine::{Siblings, Table, Transaction, mutant};
use quorate_types::{Duration, MemberNumber, NodeId, NodeSet, Now, Timestamp, WriterId};

use crate::message::Kind;
use crate::meta::Meta;
use crate::record::{RecordKey, guest_writer, is_guest};
use crate::state::Meerkat;

/// How long the end of a transaction is remembered for a guest that is gone, at least.
const MEMORY: Duration = Duration::from_secs(60);

impl<T, X> Meerkat<T, X>
where
    T: Table<Meta = Meta> + Siblings,
    X: Transaction<Owned = X>,
{
    /// Lets a guest in, which this node reaches under `node`, an id of no member.
    pub fn guest_joined(&mut self, writer: WriterId, node: NodeId) {
        debug_assert!(is_guest(writer), "a guest has a guest's id");
        self.guests.insert(writer, node);
    }

    /// A guest's connection is gone.
    pub fn guest_left(&mut self, node: NodeId) {
        self.guests.retain(|_, known| *known != node);
    }

    /// Whether a message of a guest is one that it may send, about its own transactions.
    pub(crate) fn admits_guest(&self, from: NodeId, kind: &Kind<'_>) -> bool {
        let own = |id: Timestamp| self.guests.get(&id.writer) == Some(&from);
        match kind {
            Kind::Get { .. } | Kind::Stable { .. } => self.guest_at(from).is_some(),
            Kind::Validate { id, .. } => own(*id),
            // A guest that contradicts what is known is in error, and must not stop the node.
            Kind::Decided { id, commit, .. } => own(*id) && !self.is_known_as(*id, !*commit),
            Kind::Accept { id, view, .. } => own(*id) && *view == 0,
            Kind::Check { at, .. } => own(*at),
            _ => false,
        }
    }

    /// Whether this replica knows that a transaction has ended like this.
    fn is_known_as(&self, id: Timestamp, commit: bool) -> bool {
        let keys = RecordKey::new(id, 0)..=RecordKey::new(id, u16::MAX);
        self.records.range(keys).any(|(_, record)| record.decision == Some(commit))
    }

    /// The writer id of the guest at `node`.
    pub(crate) fn guest_at(&self, node: NodeId) -> Option<WriterId> {
        self.guests.iter().find(|(_, known)| **known == node).map(|(writer, _)| *writer)
    }

    /// Just below the smallest transaction of a guest that this replica has a record of.
    pub(crate) fn guests_low(&self) -> u64 {
        let mut low = u64::MAX;
        let first = guest_writer(MemberNumber(0), 0).expect("there are ids for guests");
        let mut from = RecordKey::new(Timestamp::new(0, first), 0);
        // One look for each guest: the records of a writer stand together.
        while let Some((key, _)) = self.records.range(from..).next() {
            low = low.min(key.version - 1);
            let Some(next) = key.writer.0.checked_add(1) else { break };
            from = RecordKey::new(Timestamp::new(0, WriterId(next)), 0);
        }
        low
    }

    /// Forgets how the transactions of guests ended that are gone: they will not ask. Nobody sends
    /// their ends again, so that a learner may have missed one: the change that makes it active takes
    /// the sets from here.
    pub(crate) fn forget_guests(&mut self, now: Now) {
        let (guests, groups) = (&self.guests, &self.groups);
        let is_copied = |partition: u16| {
            let group = groups.get(usize::from(partition));
            group.is_some_and(|group| !group.learners.is_empty())
                && !mutant!("meerkat_guests_forgotten_under_learners")
        };
        self.records.retain(|key, record| {
            !is_guest(key.writer)
                || guests.contains_key(&key.writer)
                || record.decision.is_none()
                || is_copied(key.partition)
                || now.monotonic.since(record.since) < MEMORY
        });
    }

    /// Whether so many members have told a guest the time that none has missed an epoch.
    pub(crate) fn knows_the_time(&self, told: NodeSet) -> bool {
        let active = self.view.active();
        self.config.guest.is_none() || told.intersection(active).is_majority_of(self.view.voters())
    }
}
