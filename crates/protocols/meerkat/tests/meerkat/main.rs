//! Meerkat as its users and its papers see it: transitions, pitfalls, worked examples, random runs.
//!
//! The machines run over an ordered map; every message is encoded when it is sent and decoded when
//! it is delivered. Only the test decides which message arrives, when, how often, or never.

mod calls;
mod changes;
mod codec;
mod deltas;
mod difference;
mod entries;
mod given_up;
mod guests;
mod inspection;
mod interaction;
mod lanes;
mod lanes_with_logs;
mod logs;
mod losses;
mod merge;
mod packets;
mod pitfalls;
mod random;
mod replay;
mod sessions;
mod support;
mod takeovers;
mod transitions;
mod txn;
mod words;
