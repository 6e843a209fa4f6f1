//! Whole nodes in one process.

mod blocking;
#[cfg(debug_assertions)]
mod disjoint;
mod forwarding;
mod hash_expiry;
mod in_doubt;
mod pubsub;
mod rejoin;
mod script_messages;
mod sessions;
mod spread;
mod support;
mod tracking;
mod whole_keyspace;
#[expect(dead_code, reason = "the lies need more of it")]
#[path = "../lies/world.rs"]
mod world;
