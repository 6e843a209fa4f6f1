//! Messages on their way, and what a test reads in them.

use quorate_meerkat::{Body, Kind, Message};
use quorate_types::{Timestamp, limits};
use quorate_wire::Writer;

use crate::support::Replicas;

pub(crate) fn encoded(message: &Message<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(&mut Writer(&mut bytes));
    assert!(bytes.len() <= limits::MESSAGE_BYTES_MAX, "a message of {} bytes", bytes.len());
    bytes
}

/// A message under way.
pub(crate) type Packet = quorate_harness::Packet<Replicas>;

pub(crate) fn kind_name(kind: &Kind<'_>) -> &'static str {
    match kind {
        Kind::Get { .. } => "get",
        Kind::Values { .. } => "values",
        Kind::Validate { .. } => "validate",
        Kind::Vote { .. } => "vote",
        Kind::Accept { .. } => "accept",
        Kind::Accepted { .. } => "accepted",
        Kind::Superseded { .. } => "superseded",
        Kind::Decided { .. } => "decided",
        Kind::Acked { .. } => "acked",
        Kind::Named { .. } => "named",
        Kind::Pull { .. } => "pull",
        Kind::Prepare { .. } => "prepare",
        Kind::Promise { .. } => "promise",
        Kind::Check { .. } => "check",
        Kind::Checked { .. } => "checked",
        Kind::Stable { .. } => "stable",
        Kind::Freeze { .. } => "freeze",
        Kind::Frozen { .. } => "frozen",
        Kind::TakeIn { .. } => "take_in",
        Kind::TakenIn { .. } => "taken_in",
        Kind::Adopt { .. } => "adopt",
        Kind::Adopted { .. } => "adopted",
        Kind::Release => "release",
        Kind::ChunkRead { .. } => "chunk_read",
        Kind::Chunk { .. } => "chunk",
        Kind::Compare { .. } => "compare",
        Kind::Compared { .. } => "compared",
        Kind::DifferenceRead { .. } => "difference_read",
        Kind::Difference { .. } => "difference",
        Kind::Find { .. } => "find",
        Kind::Found { .. } => "found",
        Kind::CallsRead { .. } => "calls_read",
        Kind::Calls { .. } => "calls",
    }
}

/// The transaction that a message is about, if it is about one.
pub(crate) fn id_of(kind: &Kind<'_>) -> Option<Timestamp> {
    match *kind {
        Kind::Validate { id, .. }
        | Kind::Vote { id, .. }
        | Kind::Accept { id, .. }
        | Kind::Accepted { id, .. }
        | Kind::Superseded { id, .. }
        | Kind::Decided { id, .. }
        | Kind::Pull { id }
        | Kind::Prepare { id, .. }
        | Kind::Promise { id, .. } => Some(id),
        Kind::Check { at, .. } | Kind::Checked { at, .. } => Some(at),
        _ => None,
    }
}

pub(crate) fn body_of<'a>(kind: &Kind<'a>) -> Option<Body<'a>> {
    match *kind {
        Kind::Validate { body, .. } => Some(body),
        Kind::Accept { body, .. } | Kind::Decided { body, .. } | Kind::Promise { body, .. } => body,
        _ => None,
    }
}
