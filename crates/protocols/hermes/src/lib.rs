//! Hermes: linearizable reads, writes and read-modify-writes of single keys, from any replica.
//!
//! Source: A. Katsarakis, *Invalidation-Based Protocols for Replicated Datastores*, PhD thesis,
//! University of Edinburgh 2021, chapter 4 (and ASPLOS 2020).
//!
//! # Guarantee
//! Every operation on a key appears to take effect at one moment between its invocation and its
//! answer, also while replicas crash, stop, are cut off or come back, and while messages are lost,
//! repeated or reordered, as long as a minority of the members fails at a time and, with leased
//! reads, clocks drift less than the configured bound. Reads of a Valid key cost no message; an
//! update costs one round trip to all live replicas, from any of them. Writes never abort; a
//! read-modify-write that loses a race runs again inside. An op whose fate can't be known is
//! answered *unknown*, and, if it is a session's call, can be tried again: it takes effect at most
//! once, and every try that is answered hears the same ([`quorate_rifl`]).
//!
//! # Messages
//! | message | sender → receiver | meaning |
//! | --- | --- | --- |
//! | INV{key, ts, rmw, value, call} | coordinator → live replicas | a newer value; unreadable until VAL |
//! | ACK{ts} | replica → coordinator | my copy is at least as new |
//! | VAL{key, ts} | coordinator → live replicas | everybody has it: read it |
//! | MCHECK, MCHECK_ACK | replica ↔ members | still a member? (leaseless reads) |
//! | CHUNK_READ, CHUNK | shadow ↔ active replica | records and sessions for a joining replica |
//! | VALUE_READ | shadow → active replica | values too large for a chunk, which come as INVs |
//! | COMPARE, COMPARED | shadow ↔ active replica | where records of an earlier life differ |
//! | DIFFERENCE_READ | shadow → active replica | what differs, which comes as a CHUNK |
//! | FLOOR_PREPARE, _READY, _COMMIT | smallest active ↔ replicas | collecting tombstones |
//!
//! # States of a key at a replica (§4.3.2)
//! ```text
//!               own update                 all ACKs / VAL
//!      +------------------------> Write -------------------+
//!      |                            |  INV higher          |
//!      |                            |  (write)             v
//!    Valid <------- VAL -------- Trans -- all ACKs --> Invalid ---- VAL ----> Valid
//!      |                                                ^   |
//!      +------------------- INV higher -----------------+   | message lost,
//!                                                       |   | coordinator dead
//!                                          INV higher   |   v
//!    Valid <------------- all ACKs / VAL ------------- Replay
//! ```
//!
//! # Where this differs from the thesis, and why
//! - **Timestamps name a member number and not a node** (H2): numbers are never used twice, so a
//!   node that comes back can't mint a timestamp that its earlier life has used. The same number
//!   says whether a key's writer is still alive.
//! - **Replay met by a higher INV goes to Invalid** (as the authors' TLA+), not to Trans: there is
//!   no client's write to keep.
//! - **Read-modify-writes are retried inside** with jittered backoff. A retry starts when the
//!   larger version is Valid here, and never if the superseded attempt has in truth been committed:
//! - **H11, replayed read-modify-writes.** Replicas may replay while the coordinator lives (a lost
//!   VAL must not block a key). So another replica can finish my read-modify-write at version v,
//!   and then write a newer version, before I have seen my acknowledgements. The newer INV alone
//!   looks like a lost race; running again would apply the operation twice. What tells the two
//!   apart is the version that the newer update was *built on*, which follows from its own version
//!   (minus 1 for a read-modify-write, minus 2 for a write). Claim: if that base is at least v, my
//!   update has been committed. Proof: the base was Valid somewhere, so every live replica had
//!   acknowledged it, this one too; had it been another update than mine with a version of at least
//!   v, it would have been larger than mine (I hold mine, and was not superseded before), and I
//!   would have been superseded by it then. So it is mine, or built on mine. If the base is below
//!   v, the newer update was started by a replica that did not hold mine, which from then on
//!   answers mine with a counter-INV: mine can't be committed any more. The base of an update of an
//!   absent key is the floor F of its coordinator (see `tombstones.rs`), and the rule still holds.
//!   If v <= F and mine found a value, the key was deleted at a version of at least v, and that
//!   delete is mine or was acknowledged here. Mine can't have found nothing and taken v from a
//!   smaller floor: F was raised after every update that was pending here had finished, and those
//!   of absent keys wait while it rises.
//! - **H12, writes under a read-modify-write.** The thesis acknowledges every write, also one that
//!   is lower than what the replica holds. That loses a write: A and B write at version v, A's
//!   timestamp is the larger and its INV is late at B; B's write commits, and B starts a
//!   read-modify-write on it at v + 1; were A's write acknowledged now, it would be read at A, after
//!   B's write and before a read-modify-write that has not seen it. So a replica that holds a newer
//!   read-modify-write that may still commit, or has held one since the key was last Valid here,
//!   answers a lower write with a counter-INV. The write takes effect all the same, before the
//!   version on which the read-modify-write was built, with which it was concurrent; it is answered
//!   when the newer version is Valid. For the same reason no acknowledgement of a write is kept
//!   across epochs.
//! - **Trans ends with the newer version**, too: Valid at a larger version means that every live
//!   replica holds it, so the superseded write has ended. Instead of sending its own INV again, its
//!   coordinator drives the newer version.
//! - **Deletes leave tombstones**, collected in rounds that raise a common floor: `tombstones.rs`.
//! - **A log may be kept** (`log.rs`): what a promise rests on is durable before the promise leaves.
//! - **A life that ends leaves a base**: what a donor turns out to hold in the same version is not
//!   copied to a process that was expelled and lived (`difference.rs`).
//! - **Expiry is an update**: a value past its time is deleted by an ordinary read-modify-write
//!   before anybody is told that it is gone, so no replica can return it afterwards.
//! - **Acknowledgements carry a cookie** that names the pending op, so that two ops of one replica
//!   on one key (one superseded, one current) never share a counter (P2).
//! - **Calls of sessions** travel in the INV with their answers, and are recorded where and when the
//!   version becomes Valid: `calls.rs`. This is RIFL (S. J. Park, Stanford 2019, chapter 2), which the
//!   thesis on Hermes does not have.
//!
//! The pitfalls H0 to H12 and the rules of N8 each have a test of that name
//! in `tests/`, except those that are other crates': H3 and rule 6 `quorate-node`'s, rule 12
//! `quorate-storage`'s, rules 7 to 10 other protocols'.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod calls;
mod collector;
mod combining;
mod contention;
mod deltas;
mod difference;
mod engine;
mod execution;
mod expiry;
mod join;
mod log;
mod message;
mod meta;
mod ops;
mod queue;
mod reads;
mod records;
mod recovery;
mod replica;
mod state;
mod tombstones;

use quorate_machine::{
    Command, Effects, Event, Machine, Outcome, Protocol, SavePoint, Slot, Table, Unreadable, mutant,
};
use quorate_types::{Epoch, Instant, NodeId, Now, limits};

use message::VERSION_MAX;
use tombstones::Finished;

pub use quorate_machine::Request;

pub use engine::{ID, Options};
pub use message::{Ack, Chunk, Completion, Cursor, Entry, Inv, Message, Val};
pub use meta::{Meta, State};
pub use state::{Config, Hermes, Reads};

impl<T: Table<Meta = Meta>, O: Command<Owned = O>> Protocol for Hermes<T, O> {
    type Message<'a> = Message<'a>;
    type Request<'a> = Request<O>;
    type Outcome = Outcome<O::Reply>;
    type Mail = core::convert::Infallible;

    const PROBES: &'static [&'static str] = &[
        "hermes: INV below the floor",
        "hermes: a chunk overtakes an update",
        "hermes: a group goes on with what its eldest member has",
        "hermes: a record of an earlier life goes",
        "hermes: a record of an earlier life stays",
        "hermes: a survivor replays what others may have lost",
        "hermes: absence is doubted",
        "hermes: a call from the log is covered",
        "hermes: an update carries a batch of reads",
        "hermes: call completed by a newer version",
        "hermes: call overtaken",
        "hermes: chunk waits for the fate of a call",
        "hermes: chunk waits for a large value",
        "hermes: counter-INV",
        "hermes: delta on a base that is not here",
        "hermes: expired value without VAL replayed",
        "hermes: commit waits for the log",
        "hermes: floor round begins",
        "hermes: floor round raises nothing",
        "hermes: floor round starts over",
        "hermes: goes on from its log",
        "hermes: lives on among others that have come back",
        "hermes: op finished by another's replay",
        "hermes: ops combined",
        "hermes: read-modify-write superseded",
        "hermes: replay superseded",
        "hermes: replay while the coordinator lives",
        "hermes: replayed read-modify-write answered as done",
        "hermes: records of another cluster go",
        "hermes: records of calls are gathered",
        "hermes: shadow changes its donor",
        "hermes: sweep replays an orphan",
        "hermes: tombstone without VAL replayed",
        "hermes: tombstones collected",
        "hermes: write waits for a read-modify-write",
    ];
}

impl<T: Table<Meta = Meta>, O: Command<Owned = O>> Machine for Hermes<T, O> {
    fn step(&mut self, now: Now, event: Event<'_, Self>, effects: &mut impl Effects<Self>) {
        match event {
            Event::Message { from, epoch, body } => {
                self.on_message(now, from, epoch, &body, effects)
            }
            Event::Request { tag, request } => {
                self.submit(now, tag, request.origin, request.command, effects);
            }
            Event::Mail { mail, .. } => match mail {},
            Event::View(view) => self.on_view(now, view, effects),
            Event::Tick => self.on_tick(now, effects),
            Event::Durable(lsn) => {
                self.journal.note_durable(lsn);
                self.on_durable(now, effects);
            }
        }
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
        [
            self.resends.next_deadline(),
            self.queue_checks.next_deadline(),
            self.sweep.next_deadline(),
            self.copying.next_deadline(),
            self.floor_deadline(),
            self.tombstones.next_deadline(),
            self.gathering_deadline(),
            self.reads.next_deadline(),
            self.expiry.next_deadline(),
        ]
        .into_iter()
        .min()
        .expect("the list is not empty")
    }

    fn check_invariants(&self) {
        let waiting: usize = self.queues.values().map(|queue| queue.waiters.len()).sum();
        assert_eq!(waiting, self.waiting, "waiting ops are counted");
        assert_eq!(self.queues.len(), self.queue_checks.iter().len(), "every queue has one timer");
        let serves = self.active.contains(self.config.node);
        assert!(!(serves && self.has_base), "what an earlier life left is not served");
        assert!(self.floors.base() <= self.floors.next_floor, "a floor is prepared before raised");
        assert!(self.live || self.ops.is_empty(), "a node that is out has no updates");
        self.tracker.check_invariants();
        for (_, op) in self.ops.iter() {
            assert!(op.acks.is_subset(self.peers), "only live replicas' acknowledgements count");
        }
    }
}

impl<T: Table<Meta = Meta>, O: Command<Owned = O>> Hermes<T, O> {
    /// Every legal reason to drop a message.
    fn ignore_message(
        &self,
        from: NodeId,
        epoch: Epoch,
        message: &Message<'_>,
    ) -> Option<&'static str> {
        if epoch < self.view.epoch && !mutant!("hermes_acts_on_older_epochs") {
            Some("hermes: message of an older epoch")
        } else if epoch > self.view.epoch {
            // The sender sends again until this node has the view, too.
            Some("hermes: message of a newer epoch")
        } else if !self.live {
            Some("hermes: message to a node that is out")
        } else if matches!(message, Message::MemberCheck { .. } | Message::MemberCheckAck { .. }) {
            // Members without a replica vouch for the epoch, too.
            (!self.view.live().contains(from)).then_some("hermes: message of no live member")
        } else if !self.peers.contains(from) {
            Some("hermes: message of no live replica")
        } else if !self.is_replica {
            Some("hermes: message to a node that is no replica")
        } else {
            None
        }
    }

    /// What no correct replica says, whatever it has seen.
    fn refuse_message(&self, from: NodeId, message: &Message<'_>) -> Option<&'static str> {
        let leads = self.active.first() == Some(from);
        match *message {
            Message::Inv(Inv { key, timestamp, content, .. }) => {
                let length = content.map_or(0, |content| content.bytes.len());
                self.refuse_update(key, timestamp.version, length)
            }
            Message::Ack(Ack { key, timestamp, .. }) if !key.is_empty() => {
                self.refuse_update(key, timestamp.version, 0)
            }
            Message::Val(Val { key, timestamp }) => self.refuse_update(key, timestamp.version, 0),
            Message::FloorPrepare { .. } | Message::FloorCommit { .. } if !leads => {
                Some("hermes: a floor of somebody who does not lead")
            }
            Message::FloorPrepare { version, .. }
            | Message::FloorReady { next_floor: version, .. }
                if version > VERSION_MAX =>
            {
                Some(BEYOND)
            }
            Message::FloorCommit { version, .. } if version > self.floors.next_floor => {
                Some("hermes: a floor that was not prepared")
            }
            Message::Chunk(chunk) if chunk.floor.max(chunk.next_floor) > VERSION_MAX => {
                Some(BEYOND)
            }
            _ => None,
        }
    }

    /// Why no correct replica names this version of a key.
    pub(crate) fn refuse_update(
        &self,
        key: &[u8],
        version: u64,
        length: usize,
    ) -> Option<&'static str> {
        let fits = version <= VERSION_MAX
            && key.len() <= limits::KEY_BYTES_MAX
            && length <= limits::COLLECTION_BYTES_MAX;
        if !fits {
            return Some(BEYOND);
        }
        (!self.table.owns(key)).then_some("hermes: a key of another lane")
    }

    fn on_message(
        &mut self,
        now: Now,
        from: NodeId,
        epoch: Epoch,
        message: &Message<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        if let Some(reason) = self.ignore_message(from, epoch, message) {
            return effects.ignored(reason);
        }
        if let Some(reason) = self.refuse_message(from, message) {
            return effects.refused(reason);
        }
        self.copying.heard(from);
        match *message {
            Message::Inv(ref inv) => {
                self.on_inv(now, from, inv, effects);
                self.take_lacking(now, effects);
            }
            Message::Ack(ref ack) => self.on_ack(now, from, ack, effects),
            Message::Val(ref val) => self.on_val(now, val, effects),
            Message::MemberCheck { batch } => self.on_member_check(from, batch, effects),
            Message::MemberCheckAck { batch } => self.on_member_check_ack(from, batch, effects),
            Message::ChunkRead { request, cursor } => {
                self.on_chunk_read(from, request, cursor, effects);
            }
            Message::Chunk(ref chunk) => self.on_chunk(now, from, chunk, effects),
            Message::ValueRead { keys } => self.on_value_read(from, keys, effects),
            Message::Compare { request, shift, first, digests } => {
                self.on_compare(from, request, shift, (first, digests), effects);
            }
            Message::Compared { request, records, buckets } => {
                self.on_compared(now, from, request, (records, buckets), effects);
            }
            Message::DifferenceRead { request, shift, buckets, held } => {
                self.on_difference_read(from, request, shift, (buckets, held), effects);
            }
            Message::FloorPrepare { round, version } => {
                self.on_floor_prepare(now, from, round, version, effects);
            }
            Message::FloorReady { round, next_floor, is_swept } => {
                self.on_floor_ready(from, round, (next_floor, is_swept), effects);
            }
            Message::FloorCommit { round, version, raises } => {
                self.on_floor_commit(now, Finished { round, version, raises }, effects);
            }
        }
    }

    fn on_tick(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        while let Some((at, slot)) = self.resends.pop_due(now) {
            self.on_resend_timeout(now, at, slot, effects);
        }
        while let Some((at, (_, handle))) = self.queue_checks.first_due(now) {
            self.on_queue_timeout(now, handle, effects);
            if self.queues.get(&handle).is_some_and(|queue| queue.check_at == at) {
                // Still due: look again at the next tick rather than for ever in this one.
                self.check_queue_at(handle, now.monotonic + self.config.message_loss_timeout / 4);
            }
        }
        if self.sweep.next_deadline() <= now.monotonic {
            self.on_sweep_timeout(now, effects);
        }
        if self.copying.next_deadline() <= now.monotonic {
            self.on_chunk_timeout(now, effects);
        }
        if self.floor_deadline() <= now.monotonic {
            self.on_floor_timeout(now, effects);
        }
        if self.gathering_deadline() <= now.monotonic {
            self.on_gathering_timeout(now, effects);
        }
        if self.tombstones.next_deadline() <= now.monotonic {
            self.on_collect_timeout(now, effects);
        }
        if self.reads.next_deadline() <= now.monotonic {
            self.on_reads_timeout(now, effects);
        }
        if self.expiry.next_deadline() <= now.monotonic {
            self.on_expiry_timeout(now, effects);
        }
    }

    /// The message loss timer of an update: send again, and tell a client that waited too long.
    fn on_resend_timeout(
        &mut self,
        now: Now,
        at: Instant,
        slot: Slot,
        effects: &mut impl Effects<Self>,
    ) {
        let Some(op) = self.ops.get_mut(slot).filter(|op| op.resend_at == at) else { return };
        if now.monotonic.since(op.started) >= self.config.op_timeout {
            // The update goes on, but its client learns now that nobody can say how it ends.
            let (answer, combined) = (op.answer.take(), core::mem::take(&mut op.combined));
            self.answer_unknown(answer, combined, effects);
        }
        // A large value may simply still be on its way. Sent again it would only stand in its own
        // way, and in that of everything behind it. So would many small ones: what is sent again over and over
        // is given ever longer, or a link that has fallen behind would never catch up.
        let Some(handle) = self.ops.get(slot).map(|op| op.handle) else { return };
        let bytes = self.inv_bytes(handle);
        let Some(op) = self.ops.get_mut(slot) else { return };
        let mlt = self.config.message_loss_timeout;
        let doublings = match mutant!("hermes_resends_never_slower") {
            false => op.tries.saturating_sub(TRIES_AT_ONCE).min(DOUBLINGS_MAX),
            true => 0,
        };
        let patience = mlt * ((1 + (bytes / BYTES_PER_TIMEOUT) as u32) << doublings);
        if now.monotonic.since(op.sent_at) < patience {
            op.resend_at = now.monotonic + mlt;
            self.resends.push(op.resend_at, slot);
            return;
        }
        op.tries += 1;
        self.resend(now, slot, effects);
    }
}

const BEYOND: &str = "hermes: a version, key or value beyond the limit";

/// How much of a value one message loss timeout is allowed for: 256 KiB in 20 ms.
const BYTES_PER_TIMEOUT: usize = 256 * 1024;
/// How often an update is sent again before it is given longer: messages are lost now and then.
const TRIES_AT_ONCE: u32 = 2;
/// Doublings after which it is given no longer: the end of a cut must be noticed soon.
const DOUBLINGS_MAX: u32 = 3;
