//! The contract between protocol machines and whatever drives them.
//!
//! A *machine* is a protocol as a deterministic value: it owns no socket, clock or thread. A
//! *driver* (the runtime, the simulator or the model checker) feeds it [`Event`]s through
//! [`Machine::step`] and carries out the [`Effects`] that come back. The same event sequence gives
//! the same effects, always; that is what makes a failing simulation replayable and the state
//! space explorable.
//!
//! Four choices shape the contract:
//! - **Effects are a trait, not a list.** A message is a view of borrowed bytes (a record's value,
//!   a slice of the receive buffer), and [`Effects::send`] encodes it at once into the peer's
//!   buffer. No effect is allocated, and a broadcast is encoded once.
//! - **Timers are a deadline.** A machine says when it next wants to be woken
//!   ([`Machine::next_deadline`]) and finds out itself what is due when [`Event::Tick`] comes. A
//!   driver needs no timer table, and there is no timer to leak or to cancel.
//! - **Promises leave behind a gate.** A machine goes on at once with what it has read or appended
//!   to its log, and its driver holds back what rests on that ([`Gate`]) until the lease is known to
//!   have held, or the log is durable.
//! - **Machines see records through [`Table`].** `storage` implements it concurrently; the
//!   [`MapTable`] here is an ordinary map that can be cloned, compared and hashed.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod backoff;
mod clock;
mod command;
mod copier;
mod deadlines;
mod det_map;
pub mod difference;
mod gate;
mod journal;
mod map_table;
mod one_key;
mod ordered;
mod origins;
mod outcome;
mod rng;
mod scan;
mod slab;
mod table;
mod unhashed;

use alloc::vec::Vec;

use quorate_types::{Epoch, Instant, LaneId, Lsn, NodeId, NodeSet, Now, Tag, View};

pub use backoff::Backoff;
pub use clock::HybridClock;
pub use command::{Access, Change, Command, Current, Placed, Unordered, Verdict, Workspace};
pub use copier::Copier;
pub use deadlines::{Deadlines, Timeouts};
pub use det_map::DetMap;
pub use gate::{Completion, Gate, Gated, Seal};
pub use journal::{Journal, SavePoint, Unreadable};
pub use map_table::{MapRecord, MapTable};
pub use one_key::OneKey;
pub use ordered::{Ordered, OrderedTable, RangeBounds, range_bounds};
pub use origins::{Origins, Share};
pub use outcome::{CallError, Outcome, Refusal, Request};
pub use rng::Rng;
pub use scan::Scan;
pub use slab::{Slab, Slot};
pub use table::{CELLS, Content, LaneShared, Meta, PLACES, Record, Table, WARM_TOGETHER};
pub use unhashed::Unhashed;

pub use quorate_collections::{Collection, Draft, ValueKind, is_collection, may_be_large};

/// The message and answer types of a protocol.
pub trait Protocol {
    /// A peer message; borrows keys and values from wherever they lie.
    type Message<'a>;
    /// What a driver may ask of the machine.
    type Request<'a>;
    /// What the machine answers to a request.
    type Outcome;
    /// What it says to its siblings, the machines of the same keyspace on the other lanes of its
    /// node; [`core::convert::Infallible`] if they never talk.
    type Mail;

    /// Every name that the machine passes to [`Effects::probe`], so that a sweep can list those
    /// never reached.
    const PROBES: &'static [&'static str] = &[];
}

/// Something that happened, for a machine to react to.
pub enum Event<'a, P: Protocol + ?Sized> {
    /// A peer's message arrived. Loss, duplication and reordering are normal.
    Message {
        /// Who sent it.
        from: NodeId,
        /// The epoch the sender was in.
        epoch: Epoch,
        /// What it says.
        body: P::Message<'a>,
    },
    /// A client's op; answered by [`Effects::complete`] with the same tag, once.
    Request {
        /// Names the op in the answer.
        tag: Tag,
        /// The op.
        request: P::Request<'a>,
    },
    /// A sibling on another lane of this node says something. Mail is never lost, and in order
    /// from each lane.
    Mail {
        /// Whose lane.
        from: LaneId,
        /// What it says.
        mail: P::Mail,
    },
    /// A newer view is in force.
    View(&'a View),
    /// What was appended up to here is durable.
    Durable(Lsn),
    /// The deadline that the machine asked for has come (or has not: a tick is always harmless).
    Tick,
}

/// What a machine may ask of its driver while it handles an event.
pub trait Effects<P: Protocol + ?Sized> {
    /// Sends a message to one peer. Never to oneself.
    fn send(&mut self, to: NodeId, message: &P::Message<'_>);

    /// Sends a message to several peers.
    fn broadcast(&mut self, to: NodeSet, message: &P::Message<'_>) {
        for node in to {
            self.send(node, message);
        }
    }

    /// Sends a message that leaves behind a gate. A driver without leases and log has nothing to
    /// hold it back for.
    fn send_behind(&mut self, gate: Gate, to: NodeSet, message: &P::Message<'_>) {
        let _ = gate;
        self.broadcast(to, message);
    }

    /// Answers a request at once.
    fn complete(&mut self, tag: Tag, outcome: P::Outcome);

    /// Answers a request on terms: behind a gate, or with its place in the serial order. As with
    /// messages, a driver without leases and log has nothing to hold it back for.
    fn complete_on(&mut self, tag: Tag, completion: Completion<P::Outcome>) {
        self.complete(tag, completion.outcome);
    }

    /// Appends a record to the lane's log: `encode` writes it straight into the log's buffer. It is
    /// durable once [`Event::Durable`] reaches the place that comes back, and whatever promises that
    /// leaves behind [`Gate::durable`] of it. A driver without a log keeps nothing, so `encode` is
    /// not called, and every place is durable at once.
    fn append(&mut self, encode: impl FnOnce(&mut Vec<u8>)) -> Lsn {
        let _ = encode;
        Lsn::START
    }

    /// Says something to the sibling on another lane of this node. Never to oneself.
    fn mail(&mut self, to: LaneId, mail: P::Mail) {
        let _ = (to, mail);
        unreachable!("a machine that talks to its siblings runs under a driver that carries mail");
    }

    /// Counts input that was legally ignored, by reason.
    #[inline]
    fn ignored(&mut self, reason: &'static str) {
        let _ = reason;
    }

    /// Refuses the message that is being handled: no correct peer of this version sends it, whatever
    /// it has seen. A node's driver counts it, logs its sender, and closes the connection. Any other
    /// driver carries messages of correct peers only, so there it is a broken invariant.
    #[cold]
    fn refused(&mut self, reason: &'static str) {
        panic!("a correct peer said what none says: {reason}");
    }

    /// Tells that the value of a key is being deleted here because it has expired. It may be told again
    /// if the deletion has to be tried again.
    fn expired(&mut self, key: &[u8]) {
        let _ = key;
    }

    /// Marks that a rare branch was reached; `name` is one of [`Protocol::PROBES`]. A simulator
    /// reports the counts.
    #[inline]
    fn probe(&mut self, name: &'static str) {
        let _ = name;
    }
}

/// A protocol as a deterministic state machine.
pub trait Machine: Protocol {
    /// Reacts to one event.
    fn step(&mut self, now: Now, event: Event<'_, Self>, effects: &mut impl Effects<Self>);

    /// Takes in one entry that an earlier process of this node has saved or appended, before the first
    /// event: first those of the newest snapshot, if there is one, then what was appended since that
    /// snapshot began, in the order of the lane. So what an entry says may be known already, or be older
    /// than what is held.
    ///
    /// # Errors
    /// When no process of this version writes such an entry.
    fn restore(&mut self, entry: &[u8]) -> Result<(), Unreadable> {
        let _ = entry;
        Err(Unreadable("a machine that appends nothing has nothing to restore"))
    }

    /// Every entry of every lane of this node is in. Called before the first event, once for each lane,
    /// in a process that has found a log.
    fn restored(&mut self) {}

    /// Hands out entries that bring back all that has to survive, from one place on: at least one record
    /// and about so many bytes. Gives the place where to go on, or `None` at the end. Steps lie between
    /// two calls, and what they append is restored behind all that is saved.
    fn save(
        &mut self,
        from: SavePoint,
        bytes: usize,
        write: &mut impl FnMut(&[u8]),
    ) -> Option<SavePoint> {
        let _ = (from, bytes, write);
        None
    }

    /// When the machine next wants an [`Event::Tick`]; [`Instant::NEVER`] if it waits for nothing.
    fn next_deadline(&self) -> Instant;

    /// Asserts what must hold between steps. Run after every step in the simulator, the model
    /// checker and debug builds.
    ///
    /// # Panics
    /// When an invariant is broken: the state can't be trusted any more.
    fn check_invariants(&self);
}

/// Whether the guard of this name is removed, to prove that some check notices.
///
/// Write `if mutant!("name") || guard { ... }`. In a build with debug assertions, or with `--cfg
/// mutants`, the environment names it in `QUORATE_MUTANT`, as `cargo xtask mutants` does for each run;
/// any other build, so each release, sees the constant `false`.
#[macro_export]
macro_rules! mutant {
    ($name:literal) => {
        $crate::is_mutant($name)
    };
}

/// See [`mutant!`].
#[cfg(not(any(mutants, debug_assertions)))]
#[inline(always)]
pub const fn is_mutant(_name: &str) -> bool {
    false
}

/// See [`mutant!`].
#[cfg(any(mutants, debug_assertions))]
pub fn is_mutant(name: &str) -> bool {
    extern crate std;
    static CHOSEN: std::sync::OnceLock<std::string::String> = std::sync::OnceLock::new();
    CHOSEN.get_or_init(|| std::env::var("QUORATE_MUTANT").unwrap_or_default()) == name
}
