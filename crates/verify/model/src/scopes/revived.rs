//! What scopes have in common in which the power goes everywhere and logs lose their ends.

use quorate_types::{Duration, NodeId, NodeSet};

use crate::engine::Engine;
use crate::scope::{Change, Prior, Scope};

/// The power goes everywhere while clients make calls. The log of one node, the last, loses up to so many entries
/// at its end. What clients have heard is on the disks of the others.
pub(super) fn revived<E: Engine>(mut scope: Scope<E>, entries: u8) -> Scope<E> {
    scope.has_logs = true;
    scope.budget.entries = entries;
    scope.changes = vec![Change::Revive(NodeSet::only(NodeId(scope.nodes)))];
    scope.rests = true;
    scope
}

/// The same, and every log loses entries, each another number. What clients have heard may be lost.
pub(super) fn behind<E: Engine>(mut scope: Scope<E>) -> Scope<E> {
    scope.changes = vec![Change::Revive((1..=scope.nodes).map(NodeId).collect())];
    scope
}

/// Two of three come back. One of them has lost the end of its log. The third begins without a disk and copies from
/// them. The first call is answered while the third is away.
pub(super) fn with_shadow<E: Engine>(mut scope: Scope<E>, loser: u16) -> Scope<E> {
    let (loser, three) = (NodeId(loser), NodeId(3));
    scope.first_calls = 0;
    scope.prelude = vec![
        Prior::Crash(three),
        Prior::View(Change::WithoutCrashed),
        Prior::Call(0),
        Prior::Passes(Duration::from_millis(1)),
    ];
    scope.changes = vec![
        Change::Revive(NodeSet::only(loser)),
        Change::Remove(three),
        Change::Add(three),
        Change::Promote(three),
    ];
    scope
}
