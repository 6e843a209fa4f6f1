//! What a coordinator knows of its clients' transactions and of its attempts at them.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use quorate_machine::{Slot, mutant};
use quorate_types::{Instant, Lsn, NodeSet, Now, Tag};

use crate::calls::Called;
use crate::occ::Conflict;
use crate::replica::SPARE_BYTES_MAX;
use crate::work::Fetched;

/// A client's transaction until it is answered.
#[derive(Clone, Hash, Debug)]
pub(crate) struct Op<X, R> {
    pub(crate) tag: Tag,
    pub(crate) origin: u64,
    pub(crate) txn: X,
    /// The call that it is, if it belongs to a session.
    pub(crate) call: Option<Called>,
    /// Order of submission.
    pub(crate) sequence: u64,
    /// How often it was tried and lost to another node's transaction.
    pub(crate) attempts: u32,
    /// How often it paused because the transaction that it waited for had lost.
    pub(crate) pauses: u32,
    /// The next timestamp must be above what was in the way.
    pub(crate) above: u64,
    /// The attempt that is under way.
    pub(crate) attempt: Option<u64>,
    /// Whether it stands in its origin's line.
    pub(crate) in_line: bool,
    /// When it may be tried again.
    pub(crate) backoff: Option<Instant>,
    /// The answer, if the attempt commits.
    pub(crate) reply: Option<R>,
    /// Hashes of the keys that it has touched: its origin's later ops at these wait for it.
    pub(crate) keys: Vec<u64>,
    /// Ops that wait for this one: they share its next attempt, or wait until that has ended.
    pub(crate) followers: Vec<Slot>,
    /// What was read of partitions without a replica here.
    pub(crate) fetched: BTreeMap<Vec<u8>, Fetched>,
    /// Whether it only reads and its attempt deletes what has expired: after the attempt it runs
    /// again, to show the versions of the deletions.
    pub(crate) rereads: bool,
    /// Whether a majority has told a guest the time since this op began.
    pub(crate) aware: bool,
}

/// What an attempt waits for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Stage {
    /// Values of keys that have no replica here.
    Fetching,
    /// What a replica of the home partition knows of its call.
    Asking,
    /// Confirmation of what was read.
    Reading,
    /// Votes.
    Voting,
    /// Everybody's clock to pass its timestamp: it will commit.
    CommitWait,
    /// It is decided; every replica must know.
    Closing {
        /// How it ended.
        commit: bool,
    },
}

/// One try, under a timestamp of its own.
#[derive(Clone, Hash, Debug)]
pub(crate) struct Attempt {
    pub(crate) slot: Slot,
    /// Ops that share it, in the order in which they ran after the first.
    pub(crate) combined: Vec<Slot>,
    pub(crate) stage: Stage,
    /// One for each partition that takes part.
    pub(crate) parts: Vec<Part>,
    /// Nodes whose clocks are known to have passed the timestamp.
    pub(crate) seen: NodeSet,
    pub(crate) started: Instant,
    /// Message loss timeouts that have passed.
    pub(crate) timeouts: u32,
    /// A backup coordinator has taken over: learn, don't guess.
    pub(crate) superseded: bool,
    /// The latest thing that was in the way.
    pub(crate) conflict: Option<Conflict>,
    /// It was in another node's way.
    pub(crate) obstructs: bool,
    /// The place of this node's newest entry about it in the log.
    pub(crate) durable_at: Lsn,
}

/// A partition's share of an attempt.
#[derive(Clone, Hash, Debug, Default)]
pub(crate) struct Part {
    pub(crate) partition: u16,
    /// The encoded sets within the partition.
    pub(crate) body: Vec<u8>,
    pub(crate) ok: NodeSet,
    pub(crate) abort: NodeSet,
    /// What was proposed on the slow path. Votes decide nothing any more from then on: the one-way
    /// door of N3.4-8.
    pub(crate) proposal: Option<bool>,
    pub(crate) accepted: NodeSet,
    /// The partition's vote, once it is durable.
    pub(crate) chosen: Option<bool>,
    /// Replicas that know the end.
    pub(crate) acked: NodeSet,
}

impl Part {
    /// Begins anew, keeping the body.
    pub(crate) fn restart(&mut self) {
        self.ok = NodeSet::EMPTY;
        self.abort = NodeSet::EMPTY;
        self.proposal = None;
        self.accepted = NodeSet::EMPTY;
        self.chosen = None;
        self.acked = NodeSet::EMPTY;
    }
}

impl Attempt {
    /// One that only asks.
    pub(crate) fn question(now: Now, slot: Slot, stage: Stage, parts: Vec<Part>) -> Self {
        Self {
            slot,
            combined: Vec::new(),
            stage,
            parts,
            seen: NodeSet::EMPTY,
            started: now.monotonic,
            timeouts: 0,
            superseded: false,
            conflict: None,
            obstructs: false,
            durable_at: Lsn::START,
        }
    }

    /// Lets go of the bodies whose memory is too much to be kept for the next attempts.
    pub(crate) fn shed(&mut self) {
        for part in &mut self.parts {
            if part.body.capacity() > SPARE_BYTES_MAX {
                part.body = Vec::new();
            }
        }
    }

    /// Takes note of what is in the way; the latest counts.
    pub(crate) fn meets(&mut self, conflict: Conflict) {
        if self.conflict.is_none_or(|known| known.with < conflict.with) {
            self.conflict = Some(conflict);
        }
    }

    pub(crate) fn participants(&self) -> u64 {
        self.parts.iter().fold(0, |set, part| set | 1 << part.partition)
    }

    /// What the partitions' votes amount to, once that is settled.
    pub(crate) fn outcome(&self) -> Option<bool> {
        if self.parts.iter().any(|part| part.chosen == Some(false)) {
            return Some(false);
        }
        self.parts.iter().all(|part| part.chosen == Some(true)).then_some(true)
    }

    pub(crate) fn part(&mut self, partition: u16) -> Option<&mut Part> {
        self.parts.iter_mut().find(|part| part.partition == partition)
    }

    /// Whether it is one at this op.
    pub(crate) fn is_of(&self, slot: Slot) -> bool {
        self.slot == slot
            || self.combined.contains(&slot) && !mutant!("meerkat_combined_refused_in_flight")
    }

    /// Whether it is neither an update nor will be one.
    pub(crate) fn is_question(&self) -> bool {
        matches!(self.stage, Stage::Fetching | Stage::Asking | Stage::Reading)
    }

    /// Whether it may have been decided without this node's knowledge.
    pub(crate) fn is_open_update(&self) -> bool {
        matches!(self.stage, Stage::Voting | Stage::CommitWait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_machine::Slab;

    #[test]
    fn what_is_kept_of_an_attempt_is_no_large_body() {
        let now = Now { monotonic: Instant(1), unix: quorate_types::UnixNanos(1) };
        let slot = Slab::default().insert(());
        let part = |bytes| Part { body: Vec::with_capacity(bytes), ..Part::default() };
        let parts = [100, SPARE_BYTES_MAX, SPARE_BYTES_MAX + 1].map(part).into();
        let mut attempt = Attempt::question(now, slot, Stage::Voting, parts);
        attempt.shed();
        let kept: Vec<usize> = attempt.parts.iter().map(|part| part.body.capacity()).collect();
        assert_eq!(kept, [100, SPARE_BYTES_MAX, 0]);
    }
}
