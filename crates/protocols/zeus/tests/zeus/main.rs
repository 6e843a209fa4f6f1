//! Zeus as its users see it: transitions, pitfalls, random runs.
//!
//! The machines run over an ordered map; every message is encoded when it is sent and decoded when
//! it is delivered. Only the test decides which message arrives, when, how often, or never.

mod calls;
mod codec;
mod deltas;
mod difference;
mod extras;
mod lanes;
mod lies;
mod log;
mod moves;
mod parts;
mod pitfalls;
mod placement;
mod random;
mod release;
mod relief;
mod remote;
mod sessions;
mod support;
mod transitions;
mod turns;
mod txn;
mod waits;
