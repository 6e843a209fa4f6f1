//! Meerkat: serializable transactions over several keys, from any replica, without coordination
//! between lanes or replicas.
//!
//! Source: A. Szekeres, M. Whittaker, J. Li, N. K. Sharma, A. Krishnamurthy, D. R. K. Ports, I. Zhang,
//! *Meerkat: Multicore-Scalable Replicated Transactions Following the Zero-Coordination Principle*,
//! EuroSys 2020. "Spec" is the project's own notes on it, which number the paper's gaps and errors.
//!
//! # Guarantee
//! Committed transactions are equivalent to one of them after the other in the order of their
//! timestamps: *serializable*. Under [`Isolation::Strict`] that order is also the order of real
//! time. A committed transaction survives the loss of any minority of the replicas. A transaction
//! that conflicts with others is run again inside, under a new timestamp; one whose end can't be
//! known is answered *unknown*.
//!
//! # How
//! Any node coordinates. A transaction runs against the local replica, which sees none of its
//! writes; then every replica checks it at its timestamp, alone (`occ.rs`), and votes. A fast quorum
//! of equal votes decides: one round trip. Otherwise a majority must accept the outcome: two. A
//! transaction stays on one lane on all replicas, and lanes share nothing but the records of the
//! keys that they touch: no log, no lock, no counter (the Zero-Coordination Principle, §2).
//!
//! A transaction's id is its timestamp: the coordinator's hybrid clock, then its member number and
//! lane, which are never used twice. So ids are unique for ever, and name their lane.
//!
//! # Messages
//! | message | sender → receiver | meaning |
//! | --- | --- | --- |
//! | VALIDATE, VOTE | coordinator ↔ replicas | may it commit at its timestamp? (§5.2.2) |
//! | ACCEPT, ACCEPTED | proposer ↔ replicas | the slow path, and recovery (§5.2.2, §5.3.2) |
//! | DECIDED, ACKED | coordinator ↔ replicas | this is how it ended (§5.2.3) |
//! | PULL | replica → coordinator | it committed, and I lack what it did |
//! | FIND, FOUND | coordinator ↔ a replica | what became of a session's call (`calls.rs`) |
//! | CHECK, CHECKED | coordinator ↔ read quorum | a read-only transaction (N8) |
//! | GET, VALUES | coordinator ↔ a replica | read a partition without a replica here |
//! | PREPARE, PROMISE | backup ↔ replicas | take over from a coordinator (§5.3.2) |
//! | SUPERSEDED | replica → proposer | somebody with a higher view is at it |
//! | STABLE | coordinator → replicas | all replicas know the end of every transaction up to here |
//! | FREEZE, FROZEN, ADOPT, ADOPTED, RELEASE | leader ↔ members | epoch change (§5.3.1) |
//! | TAKE_IN, TAKEN_IN | leader ↔ active members | shadows have kept what too few active ones have |
//! | CHUNK_READ, CHUNK | joining ↔ active replica | records from before it joined |
//! | COMPARE, COMPARED | joining ↔ active replica | in which ranges do our records differ? |
//! | DIFFERENCE_READ, DIFFERENCE | joining ↔ active replica | what differs there |
//! | CALLS_READ, CALLS | joining ↔ active replica | sessions from before it joined |
//!
//! # Where this differs from the paper, and why
//! - **Algorithm 1 is corrected** (N3.4): a timestamp must be above every version read, the
//!   checks against undecided transactions are exact intervals, and a commit raises read and write
//!   timestamps in the critical section that takes the registration out.
//! - **An id is used for one attempt.** A retry has a new one, so no replica ever votes twice on it.
//! - **Views of the cluster are the epochs** (the membership service of all engines). A view change
//!   freezes every lane, merges what the members of the last epoch knew, and goes on when *all*
//!   members of the new one keep the result. A member that does not answer is removed by the next view.
//!   Quorums count the replicas that were live in the epoch: after a loss the survivors decide fast
//!   again, because a dead one comes back as a new member and brings no old vote
//!   ([`quorate_types::Quorums`]).
//! - **A takeover of one transaction is never ambiguous**: with five replicas and more a majority of
//!   promises may leave open whether a fast quorum said OK. The paper's summary has no rule for
//!   that; here the backup waits for the other replicas, which answer or leave the view. At an epoch
//!   change, where those that are gone can't be asked, candidates are weighed with the exact
//!   predicate of N4.3 against everything that committed (`merge.rs`). Footprints of committed
//!   transactions are kept for that as long as an undecided one may overlap them.
//! - **Strict isolation without a bound on clocks**, nearly always. Claim: if every live node has
//!   seen a transaction's timestamp before its client is answered, and nodes issue timestamps above
//!   all that they have seen (hybrid logical clocks), then the order of timestamps extends real time:
//!   what begins after the answer has a larger timestamp. Under strict isolation the fast quorum is
//!   all live replicas, so it costs nothing. When a live node has not answered, a commit waits until
//!   the clock has passed its timestamp by the configured skew, before anybody can read it. A
//!   read-only transaction is confirmed by a quorum that shares a member with every writer's quorum, at
//!   a timestamp above everything finished before it began; a write that it might miss either is
//!   registered there and refuses it, or comes later and is refused below its timestamp. (For the
//!   argument in full give each reader the largest timestamp that was decided when it began or
//!   that it read, the larger of the two: all edges of reads, writes and real time then go upwards.)
//! - **Absent keys have a version**: the floor up to which every transaction is known to have ended
//!   on all replicas. So records of deleted keys can go, and readers of absent keys validate. A
//!   transaction that read a value up to the floor of a key that is absent now has missed a deletion.
//! - **Expiry is a write**: a transaction that finds a value past its time deletes it.
//!
//! # Records of a transaction
//! ```text
//! (none) ─VALIDATE─► voted ─ACCEPT─► accepted ─DECIDED─► decided ─stable─► (none)
//!   │ PREPARE            └────────────── DECIDED ──────────►┘
//!   └──► promised: gives no vote in view 0 any more
//! ```
//! Coordinators announce up to which timestamp their transactions have ended on all replicas. Records
//! below it are dropped, and messages about them are refused.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod attempt;
mod attempts;
mod body;
mod calls;
mod combining;
mod coordinator;
mod difference;
mod engine;
mod epoch;
mod execution;
mod expiry;
mod guest;
mod join;
mod log;
mod merge;
mod message;
mod meta;
pub mod occ;
mod reconcile;
mod records;
mod recovery;
mod refusals;
mod remote;
mod replica;
mod restart;
mod restore;
mod save;
mod state;
mod txn_record;
mod upkeep;
mod votes;
mod waiting;
mod work;

use quorate_machine::{
    Command, Effects, Event, LaneShared, Machine, Outcome, Protocol, SavePoint, Table, Unreadable,
    mutant,
};
use quorate_types::{Epoch, Instant, NodeId, Now, Role, WriterId};

pub use body::{Answered, Body, BodyWriter, Item, Write};
pub use calls::ResultTracker;
pub use quorate_machine::Request;

pub use engine::{ID, Options};
pub use epoch::Mail;
pub use execution::{Execution, backoff};
pub use merge::{Electorate, Groups, Merged, Report, Settled, TooFew, merge};
pub use message::{Comparison, Kind, Message, Vote};
pub use meta::{Meta, Pending, Registration};
pub use occ::{Conflict, Reason};
pub use records::Records;
pub use state::{Config, Isolation, Meerkat};
pub use txn_record::{RecordKey, TxnRecord};

use replica::BASE_MISSING;
use state::Phase;

const NOT_STABLE: &str = "meerkat: called over what is not decided here";

impl<T, X> Protocol for Meerkat<T, X>
where
    T: Table<Meta = Meta> + LaneShared,
    X: Command<Owned = X>,
{
    type Message<'a> = Message<'a>;
    type Request<'a> = Request<X>;
    type Outcome = Outcome<X::Reply>;
    type Mail = Mail;

    const PROBES: &'static [&'static str] = &[
        "meerkat: a call's attempt ends with its epoch",
        BASE_MISSING,
        "meerkat: a group goes on with what its eldest member has",
        "meerkat: a guest's commit is named by another replica",
        "meerkat: a learner asks for a base",
        "meerkat: a learner brings what it has not installed",
        "meerkat: a record of an earlier life goes",
        "meerkat: a record of an earlier life stays",
        "meerkat: backup coordinator takes over",
        "meerkat: call answered from its record",
        "meerkat: call waits for another attempt at it",
        "meerkat: combined anew without one",
        "meerkat: commit-wait",
        "meerkat: transactions combined",
        "meerkat: coordinator superseded",
        "meerkat: decided as a backup",
        "meerkat: decided by a backup",
        "meerkat: epoch change",
        "meerkat: epoch released",
        "meerkat: goes on from its log",
        "meerkat: merged with the report of a former life",
        "meerkat: records of another cluster go",
        "meerkat: payload pulled",
        "meerkat: takes in what its log has lost",
        "meerkat: takes in what a shadow has kept",
        "meerkat: a version that others have lost goes",
        "meerkat: slow path",
        "meerkat: takeover waits for all replicas",
    ];
}

impl<T, X> Machine for Meerkat<T, X>
where
    T: Table<Meta = Meta> + LaneShared,
    X: Command<Owned = X>,
{
    fn step(&mut self, now: Now, event: Event<'_, Self>, effects: &mut impl Effects<Self>) {
        self.append_ended_sessions(effects);
        match event {
            Event::Message { from, epoch, body } => {
                self.on_message(now, from, epoch, &body, effects);
            }
            Event::Request { tag, request } => {
                self.submit(now, tag, request.origin, request.command, effects);
            }
            Event::Mail { from, mail } => self.on_mail(now, from, mail, effects),
            Event::View(view) => self.on_view(now, view, effects),
            Event::Tick => self.on_tick(now, effects),
            Event::Durable(lsn) => self.on_durable(now, lsn, effects),
        }
        self.run_ready(now, effects);
    }

    fn restore(&mut self, entry: &[u8]) -> Result<(), Unreadable> {
        self.restore_entry(entry)
    }

    fn restored(&mut self) {
        self.end_restore();
    }

    fn save(
        &mut self,
        from: SavePoint,
        bytes: usize,
        write: &mut impl FnMut(&[u8]),
    ) -> Option<SavePoint> {
        self.save_some(from, bytes, write)
    }

    fn next_deadline(&self) -> Instant {
        self.deadline()
    }

    fn check_invariants(&self) {
        for (key, record) in self.records.iter() {
            // I10: a view is joined before anything is accepted in it.
            if let Some((view, _)) = record.accepted {
                assert!(view <= record.view, "{key:?} accepted in view {view} without joining it");
            }
            // I7: what is registered is undecided, and its sets are known.
            if record.registered {
                assert!(record.decision.is_none(), "{key:?} is decided and still registered");
                assert!(!record.body.is_empty(), "{key:?} is registered without sets");
            }
        }
        if self.phase != Phase::Normal {
            assert!(self.records.is_empty(), "a frozen lane has handed its records over");
            assert!(self.recoveries.is_empty(), "a frozen lane takes nothing over");
        }
        // A node without replicas has nothing to compare, and becomes active without waiting for it.
        let has_copied = self.copying.is_done() || self.is_reconciling();
        let is_whole = self.life == 0 || has_copied || self.held() == 0;
        assert!(is_whole || !self.active, "what an earlier life left is not served");
        let waiting = self.lines.values().flatten();
        for (_, slot) in waiting {
            assert!(self.ops.get(*slot).is_some_and(|op| op.in_line), "a line holds open ops");
        }
    }
}

impl<T, X> Meerkat<T, X>
where
    T: Table<Meta = Meta> + LaneShared,
    X: Command<Owned = X>,
{
    /// Every legal reason to drop a message. Votes, acceptances and promises of different epochs
    /// never meet (N4.2b), and a frozen lane takes part in nothing but the epoch change, not
    /// even in an ACCEPT (N4.2a).
    fn ignore_message(&self, from: NodeId, epoch: Epoch, kind: &Kind<'_>) -> Option<&'static str> {
        let late = mutant!("meerkat_accept_after_freeze")
            && matches!(kind, Kind::Accept { .. } | Kind::Accepted { .. } | Kind::Decided { .. });
        let late =
            late || (mutant!("meerkat_votes_across_epochs") && matches!(kind, Kind::Vote { .. }));
        if epoch < self.view.epoch && !late {
            return Some("meerkat: message of an older epoch");
        }
        if epoch > self.view.epoch && !late {
            return Some("meerkat: message of a newer epoch");
        }
        if !self.view.live().contains(from) && !self.admits_guest(from, kind) {
            return Some("meerkat: message of no live member");
        }
        let changes = matches!(
            kind,
            Kind::Freeze { .. }
                | Kind::Frozen { .. }
                | Kind::TakeIn { .. }
                | Kind::TakenIn { .. }
                | Kind::Adopt { .. }
                | Kind::Adopted { .. }
                | Kind::Release
        );
        match self.phase {
            Phase::Out => Some("meerkat: message to a node that is out"),
            Phase::Frozen if !changes && !late && !self.may_reconcile(from, kind) => {
                Some("meerkat: message to a frozen lane")
            }
            _ if changes && self.change.is_none() => {
                Some("meerkat: epoch change on a lane other than 0")
            }
            _ => None,
        }
    }

    fn on_message(
        &mut self,
        now: Now,
        from: NodeId,
        epoch: Epoch,
        message: &Message<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        if let Some(reason) = self.ignore_message(from, epoch, &message.kind) {
            return effects.ignored(reason);
        }
        if let Some(reason) = self.refuse_message(now, from, message) {
            return effects.refused(reason);
        }
        let partition = message.partition;
        match message.kind {
            Kind::Vote { id, vote } => self.on_vote(now, from, partition, id, vote, effects),
            Kind::Accepted { id, view } => {
                self.on_accepted(now, from, partition, id, view, effects);
            }
            Kind::Superseded { id, view } => self.on_superseded(now, from, id, view, effects),
            Kind::Decided { id, commit, body } => {
                self.observe(now, id.version);
                self.on_decided(now, from, partition, id, commit, body, effects);
            }
            Kind::Acked { ids } => self.on_acked(from, partition, ids, effects),
            Kind::Named { ids } => self.on_named(now, from, partition, ids, effects),
            Kind::Pull { id } => self.on_pull(from, partition, id, effects),
            Kind::Promise { id, view, vote, accepted, participants, body } => self.on_promise(
                now,
                from,
                partition,
                id,
                view,
                vote,
                accepted,
                participants,
                body,
                effects,
            ),
            Kind::Checked { at, result } => {
                self.on_checked(now, from, partition, at, result, effects);
            }
            Kind::Values { request, clock, items } => {
                self.on_values(now, from, partition, request, clock, items, effects);
            }
            Kind::Stable { stable } => self.on_stable(now, from, stable, effects),
            Kind::Freeze { part } => self.on_freeze(now, from, part, effects),
            Kind::TakeIn { former } => self.on_take_in(now, from, former, effects),
            Kind::TakenIn { former } => self.on_taken_in(now, from, former, effects),
            Kind::Frozen { part, parts, bytes } => {
                self.on_frozen(now, from, part, parts, bytes, effects);
            }
            Kind::Adopt { part, parts, bytes } => {
                self.on_adopt(now, from, part, parts, bytes, effects);
            }
            Kind::Adopted { parts } => self.on_adopted(now, from, parts, effects),
            Kind::Release => self.on_release(now, from, effects),
            Kind::ChunkRead { request, cursor, after } => {
                self.on_chunk_read(from, request, cursor, after, effects);
            }
            Kind::Chunk { request, next, more, entries } => {
                let next = (!more).then_some(next);
                self.on_chunk(now, from, request, next, entries, effects);
            }
            Kind::Compare { .. }
            | Kind::Compared { .. }
            | Kind::DifferenceRead { .. }
            | Kind::Difference { .. } => self.on_comparison(now, from, &message.kind, effects),
            Kind::Found { request, clock, found } => {
                self.on_found(now, request, clock, found, effects);
            }
            Kind::CallsRead { request, cursor } => {
                self.on_calls_read(from, partition, request, cursor, effects);
            }
            Kind::Calls { request, next, sessions } => {
                self.on_calls(now, from, partition, request, next, sessions, effects);
            }
            Kind::Get { .. }
            | Kind::Find { .. }
            | Kind::Validate { .. }
            | Kind::Accept { .. }
            | Kind::Prepare { .. }
            | Kind::Check { .. } => self.on_question(now, from, message, effects),
        }
    }

    /// The messages between a replica that compares its records and its donor.
    fn on_comparison(
        &mut self,
        now: Now,
        from: NodeId,
        kind: &Kind<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        match *kind {
            Kind::Compare { comparison, first, digests } => {
                self.on_compare(now, from, comparison, first, digests, effects);
            }
            Kind::Compared { request, clock, records, buckets } => {
                self.on_compared(now, from, request, clock, records, buckets, effects);
            }
            Kind::DifferenceRead { comparison, buckets, held } => {
                self.on_difference_read(now, from, comparison, buckets, held, effects);
            }
            Kind::Difference { request, clock, until, gone, entries } => {
                self.on_difference(now, from, request, clock, until, gone, entries, effects);
            }
            _ => unreachable!("the others are handled elsewhere"),
        }
    }

    /// The messages that only a replica of the partition that votes may answer.
    fn on_question(
        &mut self,
        now: Now,
        from: NodeId,
        message: &Message<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        let partition = message.partition;
        if let Kind::Get { request, keys: &[] } = message.kind
            && self.active
        {
            // What time it is, every active member may tell.
            return self.on_get(now, from, partition, request, &[], effects);
        }
        if !self.votes_on(partition) {
            return effects.ignored("meerkat: question to a node that does not vote");
        }
        match message.kind {
            Kind::Get { request, keys } => {
                self.on_get(now, from, partition, request, keys, effects);
            }
            Kind::Find { request, ref call } => {
                self.on_find(now, from, partition, request, call, effects);
            }
            Kind::Validate { id, stable, participants, body } => {
                self.observe(now, id.version);
                if !self.take_stable(now, id.writer, stable) {
                    return effects.refused(NOT_STABLE);
                }
                self.on_validate(now, from, partition, id, participants, body, effects);
            }
            Kind::Accept { id, view, ok, participants, body } => {
                self.observe(now, id.version);
                self.on_accept(now, from, partition, id, view, ok, participants, body, effects);
            }
            Kind::Prepare { id, view } => {
                self.observe(now, id.version);
                self.on_prepare(now, from, partition, id, view, effects);
            }
            Kind::Check { at, body } => {
                self.observe(now, at.version);
                self.on_check(from, partition, at, body, effects);
            }
            _ => unreachable!("answers are handled elsewhere"),
        }
    }

    /// STABLE: the sender's coordinator on this lane has nothing open up to here. An idle one says
    /// what its clock shows, so that the clocks of nodes which have no transaction in common stay
    /// together.
    fn on_stable(&mut self, now: Now, from: NodeId, stable: u64, effects: &mut impl Effects<Self>) {
        let lane = self.config.lane.0 as u8;
        let member = self.view.member(from).filter(|member| member.role != Role::Down);
        let writer = member.map(|member| WriterId::new(member.number, lane));
        if writer.is_some() && !mutant!("meerkat_stable_without_clock") {
            self.follow_clock(now, stable);
        }
        if writer.is_some() && !self.released_by.contains(from) {
            self.released_by.insert(from);
            if self.all_are_released() {
                // The floor has waited for it.
                self.announce_due = now.monotonic;
            }
        }
        if let Some(writer) = writer.or_else(|| self.guest_at(from))
            && !self.take_stable(now, writer, stable)
        {
            effects.refused(NOT_STABLE);
        }
    }

    /// Closes a turn's batches.
    pub fn flush(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        self.run_ready(now, effects);
    }
}
