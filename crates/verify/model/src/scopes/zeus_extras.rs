//! Zeus's scopes of copies outside the groups of keys. With four nodes and two replicas `d` belongs to 2,
//! 3, in this order, and `c` to 1, 4. Node 2 owns `d`; node 1 reads it often.

use std::time::Duration;

use quorate_types::{NodeId, NodeSet};

use super::zeus::cluster;
use super::{Entry, Size};
use crate::explore::explore;
use crate::scope::{Change, Prior, Scope};
use crate::txn::Step::{self, Append, Delete, Read, Write};
use crate::zeus::Owners;

/// Long enough for a copy to come.
const SOON: Duration = Duration::from_millis(1);

/// Node 1 has a copy of `d` before these transactions are made.
fn copied(name: &'static str, txns: &[(u16, &[Step])]) -> Scope<Owners> {
    let mut scope = asked(name, txns);
    scope.prelude = vec![Prior::Call(1), Prior::Passes(SOON)];
    scope
}

/// Node 1 has read `d`, and asks for a copy as soon as its timer runs out.
fn asking(name: &'static str, txns: &[(u16, &[Step])]) -> Scope<Owners> {
    let mut scope = asked(name, txns);
    let (reader, member) = (NodeId(1), NodeId(3));
    scope.prelude =
        vec![Prior::Call(1), Prior::Arrives(reader, member), Prior::Arrives(member, reader)];
    scope.budget.timers = vec![1, 0, 0, 0];
    scope
}

fn asked(name: &'static str, txns: &[(u16, &[Step])]) -> Scope<Owners> {
    let first: [(u16, &[Step]); 2] = [(2, &[Write("d", "a")]), (1, &[Read("d")])];
    let mut scope = cluster(name, 4, 2, &[&first, txns].concat());
    scope.engine.extra_after = 1;
    scope.first_calls = 1;
    scope.rests = true;
    scope
}

/// A node of these may crash, and leaves the view then.
fn may_crash(scope: Scope<Owners>, node: u16) -> Scope<Owners> {
    let mut scope = scope;
    scope.budget.crashes = 1;
    scope.may_crash = NodeSet::only(NodeId(node));
    scope.changes = vec![Change::WithoutCrashed];
    scope
}

fn in_order(scope: Scope<Owners>) -> Scope<Owners> {
    Scope { in_order: true, ..scope }
}

/// Two writes, which the reader follows, and a read.
fn write(name: &'static str) -> Scope<Owners> {
    copied(name, &[(2, &[Append("d", "b")]), (2, &[Append("d", "c")]), (1, &[Read("d")])])
}

/// A copy is asked for while the key is written, once together with one that the reader keeps.
fn add(name: &'static str) -> Scope<Owners> {
    asking(name, &[(2, &[Append("d", "b"), Write("c", "b")]), (2, &[Append("d", "c")])])
}

/// The key moves away while a copy is asked for.
fn add_amid_move(name: &'static str) -> Scope<Owners> {
    asking(name, &[(4, &[Append("d", "b")]), (2, &[Append("d", "c")])])
}

/// A key with an extra reader moves.
fn moves(name: &'static str) -> Scope<Owners> {
    copied(name, &[(3, &[Append("d", "b")]), (1, &[Read("d")])])
}

/// The reader becomes the owner while the owner writes.
fn drop_amid_commit(name: &'static str) -> Scope<Owners> {
    copied(name, &[(2, &[Append("d", "b")]), (1, &[Append("d", "c")])])
}

/// The key is deleted and made again, and the reader asks for a copy meanwhile.
fn delete(name: &'static str) -> Scope<Owners> {
    asking(name, &[(2, &[Delete("d")]), (2, &[Append("d", "b")])])
}

/// The owner lives through a view which the reader may miss.
fn view(name: &'static str) -> Scope<Owners> {
    let mut scope = copied(name, &[(2, &[Append("d", "b")])]);
    scope.changes = vec![Change::Same];
    scope
}

/// The same, and the key moves.
fn view_and_move(name: &'static str) -> Scope<Owners> {
    let mut scope = copied(name, &[(3, &[Append("d", "b")])]);
    scope.changes = vec![Change::Same];
    scope
}

/// The owner may crash while it writes; the reader may be the only one that has applied that.
fn crash_owner(name: &'static str) -> Scope<Owners> {
    may_crash(copied(name, &[(2, &[Append("d", "b")]), (1, &[Read("d")])]), 2)
}

/// The reader may crash while the owner writes.
fn crash_reader(name: &'static str) -> Scope<Owners> {
    may_crash(copied(name, &[(2, &[Append("d", "b")]), (3, &[Read("d")])]), 1)
}

/// A message is lost, and one comes twice, while a copy is asked for and the key is written.
fn add_lossy(name: &'static str) -> Scope<Owners> {
    let mut scope = asking(name, &[(2, &[Append("d", "b")])]);
    scope.budget.loss = 1;
    scope.budget.duplicates = 1;
    scope.budget.timers = vec![2, 1, 0, 0];
    scope
}

/// Its part of the list.
pub(super) fn entries() -> Vec<Entry> {
    let copied = &["zeus: a reader gets a copy"];
    let moved = &["zeus: an owner withdraws extra copies"];
    vec![
        Entry {
            name: "zeus-extra-write",
            size: Size::Small,
            states: Some(1_140),
            reaches: copied,
            run: |name, limits| explore(&in_order(write(name)), limits),
        },
        Entry {
            name: "zeus-extra-add",
            size: Size::Small,
            states: Some(8_060),
            reaches: copied,
            run: |name, limits| explore(&in_order(add(name)), limits),
        },
        Entry {
            name: "zeus-extra-add-move",
            size: Size::Small,
            states: Some(7_107),
            reaches: copied,
            run: |name, limits| explore(&add_amid_move(name), limits),
        },
        Entry {
            name: "zeus-extra-move",
            size: Size::Small,
            states: Some(132),
            reaches: moved,
            run: |name, limits| explore(&moves(name), limits),
        },
        Entry {
            name: "zeus-extra-drop",
            size: Size::Small,
            states: Some(727),
            reaches: copied,
            run: |name, limits| explore(&in_order(drop_amid_commit(name)), limits),
        },
        Entry {
            name: "zeus-extra-delete",
            size: Size::Small,
            states: Some(718),
            reaches: copied,
            run: |name, limits| explore(&in_order(delete(name)), limits),
        },
        Entry {
            name: "zeus-extra-view",
            size: Size::Gate,
            states: Some(61_003),
            reaches: copied,
            run: |name, limits| explore(&in_order(view(name)), limits),
        },
        Entry {
            name: "zeus-extra-view-move",
            size: Size::Gate,
            states: Some(109_169),
            reaches: moved,
            run: |name, limits| explore(&in_order(view_and_move(name)), limits),
        },
        Entry {
            name: "zeus-extra-crash-owner",
            size: Size::Small,
            states: Some(6_792),
            reaches: copied,
            run: |name, limits| explore(&in_order(crash_owner(name)), limits),
        },
        Entry {
            name: "zeus-extra-crash-reader",
            size: Size::Small,
            states: Some(3_380),
            reaches: copied,
            run: |name, limits| explore(&in_order(crash_reader(name)), limits),
        },
        Entry {
            name: "zeus-extra-add-lossy",
            size: Size::Gate,
            states: Some(79_605),
            reaches: copied,
            run: |name, limits| explore(&in_order(add_lossy(name)), limits),
        },
        Entry {
            name: "zeus-night-extra-view",
            size: Size::Night,
            states: Some(155_673),
            reaches: copied,
            run: |name, limits| explore(&view(name), limits),
        },
        Entry {
            name: "zeus-night-extra-crash-owner",
            size: Size::Night,
            states: Some(16_917),
            reaches: copied,
            run: |name, limits| explore(&crash_owner(name), limits),
        },
        Entry {
            name: "zeus-night-extra-add",
            size: Size::Night,
            states: Some(24_976),
            reaches: copied,
            run: |name, limits| explore(&add(name), limits),
        },
    ]
}
