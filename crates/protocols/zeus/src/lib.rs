//! Zeus: transactions where the data is, by ownership that moves.
//!
//! Source: A. Katsarakis, Y. Ma, Z. Tan, A. Bainbridge, M. Balkwill, A. Dragojevic, B. Grot, B. Radunovic,
//! Y. Zhang, *Zeus: Locality-aware Distributed Transactions*, EuroSys 2021.
//!
//! # Guarantee
//! Transactions over any keys are strictly serializable. An answered transaction survives the loss of
//! all but one of the replicas of each of its keys, one after the other. What can't be known is
//! answered *unknown*.
//!
//! # How
//! Every key has an *owner*: the one node that may use it in a transaction that writes. A transaction
//! first gets the ownership of its keys (rare, if what is used together has been used together before),
//! then runs in one step on one node, and is then replicated in a pipeline, which nothing can veto:
//! nobody else could have touched its keys. Transactions that only read run on any replica, without
//! a message.
//!
//! A key's *group* is a few nodes that follow from its hash and the view (`layout.rs`): they keep
//! copies, and they are its directory, which knows the owner. So the copies are the group and, if it
//! is another node, the owner. Nothing else about places is stored.
//!
//! # Messages
//! | message | sender → receiver | meaning |
//! | --- | --- | --- |
//! | REQ | requester → directory node | I want this key; drive a round for me |
//! | | owner outside the group → default owner | for nobody: release this key |
//! | INV | driver → arbiters (group and owner) | may it move in this round? |
//! | ACK | arbiter → requester | it may; from the owner, with the value if there is no copy |
//! | VAL | requester → arbiters | I have it (or the R-INV of what it writes says so) |
//! | NACK | driver → requester | another round was first |
//! | R-INV, R-ACK, R-VAL | coordinator ↔ followers | apply this; these are applied; committed up to here |
//! | LACKS, WHOLE | follower ↔ coordinator or group | I lack what it changes; all of the value |
//! | RECOVERED | node → nodes | what I had under way of earlier epochs is finished |
//! | FIND, FOUND | owner ↔ directory node | is there a record of this call? |
//! | LOOK, SEEN | reader ↔ group | what do these keys hold? |
//! | CHECK, CHECKED | reader ↔ group | is that still so? |
//! | WANT, KEEP, LEAVE, GONE | extra reader → owner | I read this key often; I have the copy; not any more |
//! | GRANT, WITHDRAW | owner → extra reader | here is a copy; drop it |
//! | FLOOR | node ↔ leader | forget what was deleted, up to here |
//! | COPY_READ, COPY_KEY, COPY, CALLS_READ, CALLS | joining ↔ active replica | what was there before it joined |
//! | COMPARE, COMPARED, DIFFERENCE_READ, DIFFERENCE | joining ↔ active replica | what is there besides what I have |
//!
//! # Costs
//! A transaction whose keys are owned here: one round trip to the replicas of what it writes. A first
//! touch: two hops more if this node is in the key's group, three otherwise. A read at a replica:
//! nothing. A read of keys that no node has together: two round trips. A node outside a key's group that
//! reads it often gets a copy (`extra_copies.rs`): then nothing there, either, and two messages more for
//! each transaction that writes the key.
//!
//! # Where this differs from the paper, and why
//! - **The directory is the group**, by key, instead of three nodes for everything, and has the data.
//! - **A key without a live owner belongs to the first active member of its group** (its *default
//!   owner*), once all that was under way before the epoch is finished everywhere. So keys are made
//!   without a round, and nobody looks for orphans. The default owner is computed from the view and
//!   never stored; what it writes carries a round of its own, which makes it an owner by name.
//! - **The owner defers its agreement, and never rejects.** By the time it could, directory nodes have
//!   taken over the round; the paper does not say who would clean up.
//! - **The owner is done with a key** only when transactions that have *read* it are committed, too.
//!   Otherwise a later transaction of the next owner can be seen before one that it comes after.
//! - **A transaction that writes owns what it reads.** Two that validated their reads at readers could
//!   each miss what the other writes.
//! - **A stuck round is driven by any of its arbiters**, with the same messages and timestamp. So the
//!   paper's replay path, which answers by way of the driver (RESP), is not needed: arbiters answer the
//!   requester as ever, and the driver only if the requester is gone.
//! - **An old owner outside the group gives up its copy with its agreement**, so no second round is
//!   needed to bring the number of replicas back.
//! - **Followers apply in the order of dependencies**, not of slots (`follower.rs`). All of them: the
//!   largest alone is not enough.
//! - **A large collection travels as what has changed** (`deltas.rs`); the paper's objects are small.
//! - **Versions are hybrid timestamps**, above everything that their transaction has read or
//!   overwritten. They are never used twice, so `WATCH` is exact.
//! - **Groups change with the members** (`layout.rs`, `join.rs`), and what was deleted is forgotten
//!   (`sweep.rs`, `floor.rs`); the paper has neither.
//! - **An answer waits for the commit** of its transaction, and of those before it. The paper leaves
//!   open what a client may be told when.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod called;
mod calls;
mod commit;
mod deltas;
mod difference;
mod directory;
mod engine;
mod extra_copies;
mod extra_readers;
mod extras;
mod fields;
mod floor;
mod follower;
mod former;
mod join;
mod keys;
mod lanes;
mod layout;
mod local_commit;
mod log;
mod looks;
mod message;
mod meta;
mod ownership;
mod parts;
mod placement;
mod readers;
mod recovery;
mod refusals;
mod relief;
mod remote;
mod restore;
mod revival;
mod snapshots;
mod state;
mod sweep;
mod touches;
mod transactions;
mod turn;
mod window;
mod workspace;

use quorate_machine::{
    Command, Effects, Event, LaneShared, Machine, Outcome, Protocol, SavePoint, Table, Unreadable,
    mutant,
};
use quorate_types::{
    Duration, Epoch, Incarnation, Instant, MemberNumber, NodeId, NodeSet, Now, Timestamp,
};

pub use quorate_machine::Request;

pub use called::{Answered, CallMessage, CallsCursor, Known, Parts};
pub use calls::{Attempt, ResultTracker};
pub use commit::PIPELINE_SLOTS_MAX;
pub use difference::{DifferenceMessage, KnownRecords};
pub use engine::{ID, Options};
pub use extras::{ExtraMessage, ExtraStep};
pub use fields::{Entries, Entry, Item, Items, Requester, Settled, Slots};
pub use floor::FloorStep;
pub use lanes::{Letter, Mail, Stage};
pub use layout::Shards;
pub use looks::{Copies, Keys, LookMessage, Question, Seen, Versions};
pub use message::{Message, Update};
pub use meta::{DataState, Extra, Meta, OwnerState};
pub use state::{Config, Zeus};

use ownership::{Acquisition, Agreement};
use sweep::NOBODY;

/// What may have to be sent again is looked at no more often than this.
const TICK: Duration = Duration::from_micros(200);

impl<T: Table<Meta = Meta> + LaneShared, X: Command<Owned = X>> Protocol for Zeus<T, X> {
    type Message<'a> = Message<'a>;
    type Request<'a> = Request<X>;
    type Outcome = Outcome<X::Reply>;
    type Mail = Mail<X>;

    const PROBES: &'static [&'static str] = &[
        "zeus: a copy is granted again",
        "zeus: a copy is not read any more",
        "zeus: a copy is withdrawn",
        "zeus: a copy makes room for another",
        "zeus: a call is answered by an attempt under way",
        "zeus: a call is answered from its record",
        "zeus: a call is asked about",
        "zeus: a call is asked about again",
        "zeus: a commit waits for the log",
        "zeus: a default owner claims a key",
        "zeus: a driver begins from an earlier entry",
        "zeus: a driver is behind",
        "zeus: an owner of long ago is asked",
        "zeus: a follower is told all of a value",
        "zeus: a follower lacks what a transaction changes",
        "zeus: a follower asks whether a transaction is committed",
        "zeus: a former owner drops its copy",
        "zeus: a key is copied by name",
        "zeus: a home key has moved while its group was asked",
        "zeus: a key bounces",
        "zeus: a key has no directory",
        "zeus: a key gets an extra reader",
        "zeus: a key is lent to another lane",
        "zeus: a lane wants its key back",
        "zeus: a key without a value is released",
        "zeus: a node comes back to a shard that it has left",
        "zeus: a member is asked for what is not committed",
        "zeus: a reader asks again",
        "zeus: a reader asks for a copy",
        "zeus: a reader asks for keys",
        "zeus: a reader becomes an owner",
        "zeus: a reader drops its copy",
        "zeus: a reader finds an expired value",
        "zeus: a reader gets a copy",
        "zeus: a reader has waited for too long",
        "zeus: a reader is overtaken by a commit",
        "zeus: a reader waits for a commit",
        "zeus: a reader's copies are confirmed",
        "zeus: a record is forgotten",
        "zeus: a record of an earlier life goes",
        "zeus: a record of an earlier life stays",
        "zeus: a replica has joined",
        "zeus: a request becomes older",
        "zeus: a request is made again",
        "zeus: a request that has waited is served",
        "zeus: a request lost to another",
        "zeus: a round inherits the age of one that waits",
        "zeus: a round is driven again",
        "zeus: a round is dropped by a node that has left its shard",
        "zeus: a round is settled without its requester",
        "zeus: a round is superseded",
        "zeus: a round learns of a claim",
        "zeus: a round that nobody waits for is resumed",
        "zeus: a transaction finds a key on the way",
        "zeus: a transaction goes to another lane",
        "zeus: a transaction has waited for too long",
        "zeus: a transaction is applied to a key that was learnt",
        "zeus: a transaction is in the logs of several lanes",
        "zeus: a transaction is replayed",
        "zeus: a transaction is sent again",
        "zeus: a transaction waits for a node in doubt",
        "zeus: a transaction waits for its keys",
        "zeus: a transaction waits for its origin",
        "zeus: a transaction waits for what it depends on",
        "zeus: all nodes have recovered",
        "zeus: begins a shard anew",
        "zeus: goes on from its log",
        "zeus: ownership acquired",
        "zeus: an expired value is deleted",
        "zeus: an extra copy gives way",
        "zeus: an owner outside the group gives its key back",
        "zeus: an owner withdraws extra copies",
        "zeus: takes in what its log has lost",
        "zeus: the owner waits for former extra readers",
        "zeus: what a transaction changes is lost",
        "zeus: the floor is to rise",
        "zeus: the floor rises",
        "zeus: the owner defers its answer",
        "zeus: the owner reads what is not committed",
        "zeus: what a reader has seen has changed",
        "zeus: what is left of a shard is dropped",
    ];
}

impl<T: Table<Meta = Meta> + LaneShared, X: Command<Owned = X>> Machine for Zeus<T, X> {
    fn step(&mut self, now: Now, event: Event<'_, Self>, effects: &mut impl Effects<Self>) {
        match event {
            Event::Message { from, epoch, body } => {
                self.on_message(now, from, epoch, body, effects)
            }
            Event::Request { tag, request: Request { origin, command } } => {
                self.enqueue(now, tag, origin, None, command, effects);
            }
            Event::Mail { from, mail } => self.on_mail(now, from, mail, effects),
            Event::View(view) => self.on_view(now, view, effects),
            Event::Durable(lsn) => self.on_durable(lsn, effects),
            Event::Tick => self.on_tick(now, effects),
        }
        self.settle_changes(now, effects);
        self.keep_floors(effects);
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
        // What is due looks at all that is open, so deadlines that are close together are one.
        let ticks = self.wake_at.0.div_ceil(TICK.as_nanos() as u64);
        let wake_at = Instant(ticks.saturating_mul(TICK.as_nanos() as u64));
        let wake_at = if self.lanes.is_stopped() { Instant::NEVER } else { wake_at };
        let timeouts = self.op_timeouts.next_deadline().min(self.reader_timeouts.next_deadline());
        wake_at.min(timeouts)
    }

    fn check_invariants(&self) {
        let is_stopped = self.lanes.is_stopped();
        assert!(self.changed.is_empty() || is_stopped, "what has changed was seen to");
        self.pipeline.check_invariants();
        self.transactions.check_invariants(is_stopped);
    }
}

impl<T: Table<Meta = Meta> + LaneShared, X: Command<Owned = X>> Zeus<T, X> {
    fn on_message(
        &mut self,
        now: Now,
        from: NodeId,
        epoch: Epoch,
        message: Message<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        let own = self.layout.epoch;
        if !self.layout.is_live() || epoch != own || self.lanes.is_stopped() {
            return effects.ignored("zeus: message of another epoch");
        }
        if let Some(reason) = self.refuse_message(now, from, &message) {
            return effects.refused(reason);
        }
        match message {
            Message::Req { key, requester, .. } if requester.member == NOBODY.member => {
                self.on_give_back(now, from, key, effects);
            }
            Message::Req { key, requester, resumes } => {
                self.on_req(now, key, requester, resumes, effects);
            }
            Message::Inv { key, round, requester, previous } => {
                self.on_inv(now, from, key, round, requester, previous, effects);
            }
            Message::Ack { key, round, requester, previous, version, clock, copy } => {
                self.observe(clock.max(version.version));
                let agreement = Agreement { key, round, requester, previous, version, copy };
                if requester.member == self.layout.number {
                    self.on_agreement(now, from, agreement, effects);
                } else {
                    self.on_agreement_of_orphan(now, from, key, round, effects);
                }
            }
            Message::Val { key, round, owner, clock } => {
                if !mutant!("zeus_orphan_settled_without_clock") {
                    self.observe(clock);
                }
                self.on_val(now, key, round, owner, effects);
            }
            Message::Nack { key, sequence } => self.on_nack(now, key, sequence, effects),
            Message::Update(update) => self.on_update(now, from, update, effects),
            Message::Applied { coordinator, slots } if coordinator == self.layout.number => {
                self.on_applied(from, slots, effects);
            }
            Message::Applied { coordinator, slots } => {
                for slot in slots.iter() {
                    self.on_replay_applied(from, coordinator, slot, effects);
                }
            }
            Message::Lacks { coordinator, slot, key } => {
                self.on_lacks(from, coordinator, slot, key, effects);
            }
            Message::Whole { coordinator, slot, key, content } => {
                self.on_whole(now, coordinator, slot, key, content, effects);
            }
            Message::Committed { coordinator, upto } => {
                self.on_committed(now, coordinator, upto, effects);
            }
            Message::Recovered { clock, promised, asks } => {
                self.on_recovered(from, clock, promised, asks, effects);
            }
            Message::Floor { step, at, before } => {
                self.on_floor(now, from, step, at, before, effects);
            }
            Message::CopyRead { request, cursor, shards, owned } => {
                self.on_copy_read(from, (request, cursor), &shards, owned, effects);
            }
            Message::CopyKey { key } => self.on_copy_key(from, key, effects),
            Message::Copy { request, next, clock, floors, entries } => {
                if let Some(reason) = self.ignore_copy(from, request, entries) {
                    return effects.ignored(reason);
                }
                self.observe(clock);
                self.take_floors(floors);
                self.on_copy(now, request, next, entries, effects);
            }
            Message::Difference(message) => {
                self.on_difference_message(now, from, message, effects);
            }
            Message::Call(message) => self.on_call_message(now, from, message, effects),
            Message::Look(message) => self.on_look_message(now, from, message, effects),
            Message::Extra(message) => self.on_extra(now, from, message, effects),
        }
    }

    fn on_tick(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        self.time_out(now, effects);
        if now.monotonic < self.wake_at || self.lanes.is_stopped() {
            return;
        }
        self.wake_at = Instant::NEVER;
        if !self.layout.is_live() {
            return;
        }
        self.repeat_requests(now, effects);
        self.repeat_rounds(now, effects);
        self.repeat_slots(now, effects);
        self.repeat_applied(now, effects);
        self.repeat_recovery(now, effects);
        self.repeat_copy(now, effects);
        self.repeat_questions(now, effects);
        self.repeat_looks(now, effects);
        self.repeat_copies(now, effects);
        self.repeat_readers(now, effects);
        self.sweep(now, effects);
        self.repeat_floor(now, effects);
        let requests = self.acquisitions.least(Acquisition::again_at);
        let is_live = |from: MemberNumber| self.layout.node_of(from).is_some();
        let streams = self.streams.iter();
        let streams = streams.map(|(from, stream)| stream.next_deadline(is_live(*from)));
        let rest = [
            self.next_round(),
            self.pipeline.next_deadline(),
            self.next_recovery(),
            self.next_copy(),
            self.calls.next_deadline(),
            self.remote.next_deadline(),
            self.copies.next_deadline(),
            self.readers.next_deadline(),
            self.next_sweep(),
            self.floor.next_deadline(),
        ];
        let next = requests.into_iter().chain(streams).chain(rest).min();
        self.wake_at = self.wake_at.min(next.unwrap_or(Instant::NEVER));
    }

    /// Begins a new life, without anything of the one before.
    pub fn reset(&mut self, incarnation: Incarnation, effects: &mut impl Effects<Self>) {
        self.refuse_all(effects);
        self.answer_unknown(effects);
        self.reset_lanes(effects);
        self.life = incarnation;
        self.layout = Default::default();
        self.acquisitions.clear();
        self.rounds.clear();
        self.pipeline = Default::default();
        self.streams.clear();
        self.calls = Default::default();
        self.drop_copies();
        self.readers.clear();
        (self.recovery, self.joining) = (None, None);
        self.sweep = Default::default();
        self.floor = Default::default();
        self.bounces = Default::default();
        self.turn = Default::default();
        if !mutant!("zeus_changes_outlive_their_life") {
            // A lane that has stopped for a view has not looked at them.
            self.changed.clear();
            self.next.clear();
        }
        self.log.end_life();
        self.set_doubt(false);
        self.op_timeouts.clear();
        self.reader_timeouts.clear();
        self.wake_at = Instant::NEVER;
    }
}

// --- for checks ----------------------------------------------------------------------------------

impl<T: Table<Meta = Meta> + LaneShared, X: Command<Owned = X>> Zeus<T, X> {
    /// The epoch of the view that it knows.
    pub fn epoch(&self) -> Epoch {
        self.layout.epoch
    }

    /// Its number in that view; 0 unless it is live.
    pub fn number(&self) -> MemberNumber {
        self.layout.number
    }

    /// The live members that keep a key up to date besides its owner.
    pub fn group_of(&self, key: &[u8]) -> NodeSet {
        self.layout.group(key)
    }

    /// Whether this node is one of them.
    pub fn keeps(&self, key: &[u8]) -> bool {
        self.layout.in_group(key)
    }

    /// The owner of a key that nobody owns by name.
    pub fn default_owner_of(&self, key: &[u8]) -> Option<NodeId> {
        self.layout.default_owner(key)
    }

    /// The version of this lane's keys without a record.
    pub fn floor(&self) -> Timestamp {
        self.floor.absent_at()
    }

    /// The owner of a key, as its words say.
    pub fn owner_by(&self, meta: &Meta, key: &[u8]) -> Option<NodeId> {
        self.owner_of(meta, key)
    }

    /// Whether this node would let a transaction that writes use a key.
    pub fn may_write(&self, meta: &Meta, key: &[u8]) -> bool {
        self.rights().may_own(meta, key)
    }

    /// Whether this node would let a transaction that only reads use a key.
    pub fn may_read(&self, meta: &Meta, key: &[u8]) -> bool {
        self.rights().may_read(meta, key)
    }

    /// The nodes outside a key's group that have a copy, as its owner knows.
    pub fn extra_readers_of(&self, key: &[u8]) -> NodeSet {
        self.extra_readers(key)
    }

    /// Whether nothing is under way.
    pub fn is_at_rest(&self) -> bool {
        self.pending() == 0
            && self.lanes.is_at_rest()
            && self.acquisitions.is_empty()
            && self.rounds.is_empty()
            && self.recovery.is_none()
            && self.copies.is_at_rest()
            && self.log.parts.is_at_rest()
            && self.readers.is_at_rest()
            && self.streams.values().all(|stream| stream.applied.is_empty())
    }

    /// Transactions that have not been answered.
    pub fn pending(&self) -> usize {
        self.transactions.len() + self.pipeline.len() + self.lanes.len()
    }
}
