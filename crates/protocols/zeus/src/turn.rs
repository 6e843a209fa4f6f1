//! What is said at the end of a turn of the loop: which transactions were applied here (R-ACK), how far
//! this node's are committed (R-VAL), and which keys it has taken (VAL). A node that is sent
//! a transaction meanwhile reads the last two from it, and gets no message of their own.

use alloc::vec::Vec;

use quorate_machine::{Command, DetMap, Effects, Gate, LaneShared, Table, mutant};
use quorate_types::{MemberNumber, NodeId, NodeSet, Timestamp, limits};

use crate::fields::Slots;
use crate::message::Message;
use crate::meta::Meta;
use crate::state::{Key, Zeus};

/// What is said at the end of the turn. Empty between turns.
#[derive(Clone, Hash, Debug, Default)]
pub(crate) struct Turn {
    /// To whom: a slot of a coordinator is applied here.
    applied: Vec<(NodeId, MemberNumber, u64)>,
    /// To these: up to which slot this node's transactions are committed.
    committed: NodeSet,
    /// To whom: this node has taken a key, in this round.
    taken: DetMap<Key, (Timestamp, NodeSet)>,
}

impl Turn {
    /// To say that a slot of a coordinator is applied here.
    pub(crate) fn say_applied(&mut self, to: NodeId, coordinator: MemberNumber, slot: u64) {
        self.applied.push((to, coordinator, slot));
    }

    /// To say how far this node's transactions are committed.
    pub(crate) fn say_committed(&mut self, to: NodeSet) {
        self.committed = self.committed.union(to);
    }

    /// These were just told how far they are.
    pub(crate) fn told_committed(&mut self, to: NodeSet) {
        self.committed = self.committed.difference(to);
    }

    /// To say that this node has taken a key in a round.
    pub(crate) fn say_taken(&mut self, key: Key, round: Timestamp, to: NodeSet) {
        self.taken.insert(key, (round, to));
    }

    /// The members of a key's group are sent a transaction that writes it, and so are told whose it is.
    pub(crate) fn told_taken(&mut self, key: &[u8], group: NodeSet) {
        let Some((_, to)) = self.taken.get_mut(key) else { return };
        let rest = to.difference(group);
        if rest.is_empty() || mutant!("zeus_former_owner_untold") {
            self.taken.remove(key);
        } else {
            *to = rest;
        }
    }

    /// What was applied in an epoch says nothing of the next: there this node may have to apply it to more
    /// keys.
    pub(crate) fn begin_epoch(&mut self, live: NodeSet) {
        if !mutant!("zeus_acks_outlive_epoch") {
            self.applied.clear();
        }
        self.committed = self.committed.intersection(live);
        // Arbiters of rounds under way ask again.
        self.taken.clear();
    }
}

impl<T: Table<Meta = Meta> + LaneShared, X: Command<Owned = X>> Zeus<T, X> {
    /// Sends what rests on all that this node has appended to its log.
    pub(crate) fn promise(
        &self,
        to: NodeId,
        message: &Message<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        match self.log.journal.gate() {
            gate if gate == Gate::OPEN || mutant!("zeus_promise_before_durable") => {
                effects.send(to, message);
            }
            gate => effects.send_behind(gate, NodeSet::only(to), message),
        }
    }

    /// Ends a turn of the loop: says what is said once for all of it.
    pub fn flush(&mut self, effects: &mut impl Effects<Self>) {
        let to = core::mem::take(&mut self.turn.committed);
        if !to.is_empty() {
            let (coordinator, upto) = (self.layout.number, self.pipeline.committed);
            effects.broadcast(to, &Message::Committed { coordinator, upto });
        }
        if !self.turn.taken.is_empty() {
            let owner = self.layout.number;
            for (key, &(round, to)) in self.turn.taken.sorted() {
                effects.broadcast(to, &Message::Val { key, round, owner, clock: 0 });
            }
            self.turn.taken.clear();
        }
        if self.turn.applied.is_empty() {
            return;
        }
        let mut applied = core::mem::take(&mut self.turn.applied);
        applied.sort_unstable();
        applied.dedup();
        applied.retain(|(to, from, slot)| !self.log.parts.tell_later(*to, (*from, *slot)));
        let mut slots = Vec::new();
        for run in applied.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
            for part in run.chunks(limits::TXN_KEYS_MAX) {
                let (to, coordinator, _) = part[0];
                slots.clear();
                Slots::append(part.iter().map(|(_, _, slot)| *slot), &mut slots);
                let slots = Slots::check(&slots).expect("just written");
                self.promise(to, &Message::Applied { coordinator, slots }, effects);
            }
        }
        applied.clear();
        self.turn.applied = applied;
    }
}
