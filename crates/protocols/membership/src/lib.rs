//! The members of the cluster: views in a configuration log, leases, failure detection and joins.
//!
//! # What it guarantees
//! - **One view per epoch**, ever, on all nodes of a cluster.
//! - **A lease excludes the future.** While a node holds its lease ([`Membership::lease_until`]),
//!   no node has installed a view in which it is not live, as long as clocks drift apart by no more
//!   than [`Config::drift_ppm`]. Only spans of one clock are compared, never two clocks.
//! - A false suspicion costs availability, never safety (Hermes §2.2).
//! - Every process life is another member: its number is counted up for ever (pitfall H2).
//!
//! # Views
//! The view of epoch *e* is the entry of slot *e* of a `quorate_paxos` log. The voters of slot
//! *e* + 1 are all members of view *e*, down ones too, each pinned to the incarnation that the view
//! names. A node without a disk that restarts is no longer that voter: it joins under a fresh
//! incarnation through one more view, first as a shadow (Hermes §4.3.3). A view changes the set of
//! voters by one at most, so that successive majorities meet.
//!
//! With a disk ([`Membership::with_disk`]) a node that restarts goes on voting as that voter, and says
//! nothing that is not on the disk; a view may then be revived from disks when all its active members
//! are gone at once (design note 013).
//!
//! The first view has no voters before it. It takes every configured node: the one with the lowest
//! id proposes it, naming the incarnations that answered its own, and it is in force when all of
//! them have voted for it. So a majority that lost its state can't found a second cluster while a
//! node with data is left out; then no cluster forms, and [`Membership::status`] names the reason.
//!
//! # Leases (Hermes §2.2, N3.6)
//! Every heartbeat a live member *x* sends Renew with the time t0 of its own clock. A voter in the
//! same epoch answers Grant: it promises not to accept a view in which *x* is not live until its
//! own clock passes receipt + L(1+δ). With grants of a majority, *x* is operational until t0 +
//! L(1-δ), counted from the *sending* (pitfall H3). A removal may be proposed at any time; its
//! acceptors withhold their answer until their promises have lapsed, and grant no further lease to
//! the members that it removes.
//!
//! Heartbeats coincide, because a member whose own is due soon follows another one's: so an idle
//! cluster wakes up less often. Of three members, one that follows has a majority with its own vote
//! and its leader's grant. It asks the leader alone, as long as the leader grants, and only tells
//! the third every few heartbeats that it lives. Every member hears of news at once.
//!
//! Why that holds across several views: let *x* hold a lease in epoch *e*, and *f* > *e* be the
//! first view without it. If voters didn't change in between, some acceptor of *f* granted the
//! lease and waited it out; likewise if they changed by an addition or removal in *e* + 1 alone,
//! since majorities of such neighbours meet. Otherwise every acceptor of *f* learnt of the last
//! change of voters *after* the lease's t0: with a change in *e* + 2 or later, because choosing
//! *e* + 2 takes a majority that has left epoch *e*; with a replaced incarnation in *e* + 1,
//! because the predecessor's grant came before its successor's start. Hence the second rule of an
//! acceptor: it withholds removals for L(1+δ) after it has learnt of a change of voters. The rule
//! covers a freshly started voter too, whose predecessor's promises no node knows.
//!
//! # Messages
//! | message | from → to | meaning |
//! | --- | --- | --- |
//! | [`Body::Announce`] | node without a view → all; answered in kind | here is my incarnation; prove that yours lives |
//! | [`Body::Found`] | lowest id → configured nodes | vote for this first view |
//! | [`Body::Founded`] | configured node → lowest id | voted |
//! | [`Body::Renew`] | live member → live members | heartbeat; renew my lease, unless others' grants suffice |
//! | [`Body::Grant`] | voter → live member | promised |
//! | [`Body::Log`] | voter ↔ voter | the configuration log; its Learn also teaches laggards |
//!
//! ```text
//!   outside ── first view, or joined ──▶ shadow ── caught up ──▶ active
//!      ▲                                    └────── view without it ─────┴──▶ expelled
//!      └── driver starts again with a fresh incarnation ◀───────────────────────┘
//! ```
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod change;
mod config;
mod detector;
mod founding;
mod installing;
mod keeping;
mod lease;
mod machine;
mod message;
mod peer;
mod proposing;
mod recovery;
mod request;
mod revival;
mod state;
mod status;

pub use config::{Config, MemberConfig};
pub use machine::Membership;
pub use message::{Body, Message, ViewEntry};
pub use request::{MembershipError, Request};
pub use state::{StateError, Store};
pub use status::{MemberStatus, Phase, Status};

#[cfg(test)]
mod tests;
