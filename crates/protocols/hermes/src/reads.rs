//! Leaseless reads (§4.3.6): executed on Valid keys at once, answered once a majority of the
//! members has shown, after the read, that it still is in this node's epoch.
//!
//! The thesis has one group that both replicates and votes. Here a keyspace may be on some of the
//! nodes, and it is the members that vote: a majority of the replicas could be voted out without
//! hearing of it, and vouch for each other while the others write. So a majority of all members is
//! asked, dead ones counted, and those without a replica answer, too. What this rests on is argued
//! in `docs/design/002-hermes-beyond-the-thesis.md`.
//!
//! Either shows it: an answer to a check that is broadcast once per batch, or, without any message
//! of its own, the acknowledgement of an update whose INV left after the batch's last read.

use alloc::vec::Vec;

use quorate_machine::{Command, Effects, Outcome, Refusal, Table, mutant};
use quorate_types::{Instant, NodeId, NodeSet, Now, Tag};

use crate::message::Message;
use crate::{Hermes, Meta};

/// Reads of one loop turn.
#[derive(Clone, Hash, Debug)]
struct Batch<R> {
    number: u64,
    reads: Vec<(Tag, R)>,
    /// Updates with a larger number left after the reads.
    after: u64,
    proof: NodeSet,
    check_at: Instant,
    give_up_at: Instant,
}

/// Reads that wait for a proof of membership.
#[derive(Clone, Hash, Debug)]
pub(crate) struct QuorumReads<R> {
    open: Vec<(Tag, R)>,
    after: u64,
    batches: Vec<Batch<R>>,
    last: u64,
}

impl<R> Default for QuorumReads<R> {
    fn default() -> Self {
        Self { open: Vec::new(), after: 0, batches: Vec::new(), last: 0 }
    }
}

impl<R> QuorumReads<R> {
    pub(crate) fn len(&self) -> usize {
        self.open.len() + self.batches.iter().map(|batch| batch.reads.len()).sum::<usize>()
    }

    pub(crate) fn next_deadline(&self) -> Instant {
        self.batches.iter().map(|batch| batch.check_at).min().unwrap_or(Instant::NEVER)
    }

    /// Keeps the answer of a read that ran after update number `after` had left.
    pub(crate) fn hold(&mut self, tag: Tag, reply: R, after: u64) {
        self.open.push((tag, reply));
        self.after = after;
    }

    /// A replica acknowledged the update of this number.
    pub(crate) fn acknowledged(&mut self, number: u64, from: NodeId) {
        for batch in &mut self.batches {
            if number > batch.after {
                batch.proof.insert(from);
            }
        }
    }
}

impl<T: Table<Meta = Meta>, O: Command<Owned = O>> Hermes<T, O> {
    /// Ends a loop turn: the reads of the turn become a batch.
    pub fn flush(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        self.end_floor_turn(effects);
        if self.reads.open.is_empty() {
            return;
        }
        let reads = core::mem::take(&mut self.reads.open);
        self.reads.last += 1;
        let number = self.reads.last;
        let after = self.reads.after;
        // An update that left after the reads proves as much as a check, for nothing, if those who
        // acknowledge it are enough.
        let enough = self.peers.with(self.config.node).is_majority_of(self.electorate());
        let carried = self.next_number > after && enough;
        let check_at = now.monotonic + self.config.message_loss_timeout;
        let give_up_at = now.monotonic + self.config.op_timeout;
        let proof = NodeSet::only(self.config.node);
        self.reads.batches.push(Batch { number, reads, after, proof, check_at, give_up_at });
        if carried {
            effects.probe("hermes: an update carries a batch of reads");
        } else {
            effects.broadcast(self.witnesses(), &Message::MemberCheck { batch: number });
        }
        self.release_reads(effects);
    }

    /// Answers the batches that are proved.
    pub(crate) fn release_reads(&mut self, effects: &mut impl Effects<Self>) {
        if self.reads.batches.is_empty() {
            return;
        }
        let group = self.electorate();
        let (proved, waiting): (Vec<_>, Vec<_>) = core::mem::take(&mut self.reads.batches)
            .into_iter()
            .partition(|batch| batch.proof.is_majority_of(group));
        self.reads.batches = waiting;
        for (tag, reply) in proved.into_iter().flat_map(|batch| batch.reads) {
            self.answer(tag, Outcome::Done(reply), effects);
        }
    }

    /// Of whom a majority has to vouch: all members, dead ones included.
    fn electorate(&self) -> NodeSet {
        let voters = self.view.voters();
        match self.config.replicas {
            Some(replicas) if mutant!("hermes_replicas_vouch") => replicas.intersection(voters),
            _ => voters,
        }
    }

    /// Who is asked: every other live member.
    fn witnesses(&self) -> NodeSet {
        self.view.live().without(self.config.node)
    }

    pub(crate) fn on_member_check(
        &mut self,
        from: NodeId,
        batch: u64,
        effects: &mut impl Effects<Self>,
    ) {
        effects.send(from, &Message::MemberCheckAck { batch });
    }

    pub(crate) fn on_member_check_ack(
        &mut self,
        from: NodeId,
        number: u64,
        effects: &mut impl Effects<Self>,
    ) {
        match self.reads.batches.iter_mut().find(|batch| batch.number == number) {
            Some(batch) => batch.proof.insert(from),
            None => return effects.ignored("hermes: MCHECK_ACK of a finished batch"),
        }
        self.release_reads(effects);
    }

    /// A proof was lost, or no update carried it.
    pub(crate) fn on_reads_timeout(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        let (late, waiting): (Vec<_>, Vec<_>) = core::mem::take(&mut self.reads.batches)
            .into_iter()
            .partition(|batch| batch.give_up_at <= now.monotonic);
        self.reads.batches = waiting;
        for (tag, _) in late.into_iter().flat_map(|batch| batch.reads) {
            self.answer(tag, Outcome::Refused(Refusal::TimedOut), effects);
        }
        let again_at = now.monotonic + self.config.message_loss_timeout;
        let witnesses = self.witnesses();
        for batch in &mut self.reads.batches {
            if batch.check_at <= now.monotonic {
                batch.check_at = again_at;
                let missing = witnesses.difference(batch.proof);
                effects.broadcast(missing, &Message::MemberCheck { batch: batch.number });
            }
        }
    }

    /// A proof counts in one epoch: ask again in the new one.
    pub(crate) fn restart_reads(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        let witnesses = self.witnesses();
        for batch in &mut self.reads.batches {
            batch.proof = NodeSet::only(self.config.node);
            batch.check_at = now.monotonic + self.config.message_loss_timeout;
            effects.broadcast(witnesses, &Message::MemberCheck { batch: batch.number });
        }
        self.release_reads(effects);
    }

    /// This node is out; reads have no effect, so they can be refused.
    pub(crate) fn abandon_reads(&mut self, effects: &mut impl Effects<Self>) {
        let batches = core::mem::take(&mut self.reads.batches);
        let open = core::mem::take(&mut self.reads.open);
        for (tag, _) in batches.into_iter().flat_map(|batch| batch.reads).chain(open) {
            self.answer(tag, Outcome::Refused(Refusal::NotServing), effects);
        }
    }
}
