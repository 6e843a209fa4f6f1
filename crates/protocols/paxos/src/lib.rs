//! Multi-Paxos as a log machine: one or many logs whose slots each get one entry, for good.
//!
//! # What it guarantees
//! No two nodes learn different entries for a slot, whatever is lost, duplicated or reordered and
//! however many proposers duel. A slot is decided while a majority of its voters lives. A [`Voter`] is
//! a node *and* its incarnation: an acceptor whose state is in memory only is gone for ever when it
//! crashes, and a restarted node is another voter that has to be voted in. A host that keeps the state
//! ([`Log::write_acceptor`]), and sends nothing before what it rests on is kept, goes on as the same
//! voter ([`Log::read_acceptor`]).
//!
//! # The algorithm
//! Lamport's Paxos per slot; a ballot is promised for all slots from one slot on (Multi-Paxos), so
//! a standing leader needs one round trip per entry.
//!
//! ```text
//!            campaign                 majority of Promise
//!   Follower ────────▶ Preparing ───────────────────────▶ Leading ── propose ─▶ Accept…
//!      ▲                   │ Reject: higher ballot           │  majority of Accepted ─▶ Learn…
//!      └───────────────────┴─────────────────────────────────┘  Reject: higher ballot
//! ```
//!
//! | message | from → to | meaning |
//! | --- | --- | --- |
//! | [`Body::Prepare`] | proposer → voters | asks them to promise a ballot from a slot on |
//! | [`Body::Promise`] | voter → proposer | promised; carries what it accepted from that slot on |
//! | [`Body::Accept`] | proposer → voters | asks them to accept an entry |
//! | [`Body::Accepted`] | voter → proposer | accepted |
//! | [`Body::Reject`] | voter → proposer | a higher ballot is promised |
//! | [`Body::Learn`] | anyone → anyone | this entry is chosen |
//! | [`Body::Fetch`] | anyone → anyone | asks for chosen entries from a slot on |
//!
//! # Choices
//! - **The voters are a parameter of each slot.** The host names the voters of slots
//!   ([`Log::set_voters`]); slots whose voters it has not named yet are left alone. A log that
//!   holds its own configuration names them one slot at a time, a data stream for a whole term.
//! - **Slots are accepted in order.** A voter accepts a slot only when it has every earlier one, so
//!   that a new leader never finds a gap and no filler entries exist.
//! - **Only an up-to-date proposer is promised anything.** A voter that knows more chosen slots
//!   than the candidate answers with those instead; so a promise never hides a decision.
//! - **A voter can withhold acceptance** until a time that the host gives (a lease that must lapse
//!   first); the request waits in the acceptor and costs no further message.
//! - **Many streams.** Each message names its [`Stream`]; [`Streams`] drives many logs, and all
//!   messages of one turn to one peer travel as one batch ([`encode_batch`]).
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod ballot;
mod log;
mod message;
mod streams;

pub use ballot::{Ballot, Stream, Voter};
pub use log::{Log, NotLeading, Outbox, ROUND_MAX, SLOT_MAX, Settings};
pub use message::{Body, Entry, Message, decode_batch, encode_batch};
pub use streams::Streams;

/// The number of an entry in its log; logs start at 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SlotNumber(pub u64);

impl SlotNumber {
    /// The slot after this one.
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

#[cfg(test)]
mod tests;
