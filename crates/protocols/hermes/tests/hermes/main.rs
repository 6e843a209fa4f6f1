//! Hermes as its users and its papers see it: transitions, pitfalls, worked examples, random runs.
//!
//! The machines run over an ordered map; every message is encoded when it is sent and decoded when
//! it is delivered. Only the test decides which message arrives, when, how often, or never.

mod calls;
mod combining;
mod deltas;
mod difference;
mod features;
mod interaction;
mod log;
mod op;
mod pitfalls;
mod random;
mod support;
mod tombstones;
mod transitions;
