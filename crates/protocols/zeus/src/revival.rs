//! Nodes that come back from their logs, in a view that counts them among those that have everything: all
//! nodes, or all members of some group while others live. What such a *revived* node lacks the others have.
//!
//! **Who owns its keys** is not in its log. When all were gone nobody owns anything by name; but a node outside
//! the group that has lived on may own keys of it. So a revived node asks each active member for the keys that
//! it owns. Until all have answered it has not recovered, so no default owner
//! uses a key that somebody owns by name, and who joins is told of no owners by it. Nor does it know the
//! rounds of keys whose owners are gone, and others remember them: the rounds that it begins later are above
//! all clocks that it has heard of by then, so above all rounds. The floor may have passed the round by which
//! somebody owns a key: what it hears of owners counts all the same.
//!
//! **Heirs** hear the others in the same way. They begin a shard anew when all nodes that had it have died for
//! good. A node outside the group that owns one of its keys has the value, too, so they ask every live
//! member for all that it keeps of the shard, and say that they have copied it when all have answered.
//!
//! **Where promises did not wait for the log** (`durability = "async"`), each has lost another part of what
//! was done last, so none of them is what the others were told: they are *in doubt*. Such a node takes in what
//! each other live member has of its shards: it copies as a learner does (`join.rs`) and takes over what
//! is newer, and the records of calls. Then, when it knows how far others may have forgotten what was
//! deleted, it replays what is undecided, as after any loss of power. When all have recovered, all hold the
//! newest version of each key that any of them has kept. Until then a node in doubt neither reads nor asks for
//! keys; operations wait. A member that has lived on is in no doubt: it has all that was acknowledged to
//! anybody.
//!
//! *What stands then.* The log of a node of one lane has what a transaction depends on before it. So
//! where each node keeps every key, what the nodes have together is closed under dependencies, too: it is a
//! state in which each transaction has either happened or not. With several lanes, whose logs end at
//! different moments, or with groups, a transaction of the last moments may be left in some of its keys
//! only. A deletion that one node had forgotten and another has lost comes undone; it was among what was
//! done last.
//!
//! *A value that was changed in place* may be lost at all that keep its key, while a node that does not keep
//! it replays a later change. When a node in doubt has heard everybody, what it lacks for such a change is
//! nowhere, and the change of that key is lost as well.
//!
//! The log says whether promises waited (`PROMISED`). If they did at all nodes, nobody is in doubt. If they did at
//! some, these have everything that was acknowledged, but a node in doubt may have kept what nobody else has heard
//! of, such as one lane's part of a transaction. So when a revived node asks it for the keys that it owns, a
//! node in doubt answers with all that it has.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use quorate_machine::{Command, Effects, LaneShared, Table, mutant};
use quorate_types::placement::{SHARDS, shard_of};
use quorate_types::{LaneId, MemberNumber, NodeId};

use crate::fields::Items;
use crate::join::Joining;
use crate::layout::{Layout, Shards};
use crate::meta::Meta;
use crate::state::{Key, Zeus};

/// The cell in which a lane tells the others whether it is in doubt: 0 if it is not, otherwise 1 more than the last
/// epoch in which it has heard everybody.
const DOUBT_CELL: usize = 2;

impl Layout {
    /// The members that this node must hear, and of which shards: of those that it inherits and lacks all that
    /// each other one has; if it is revived, of its own ones that, too, or what each owns. Which of the two it asks
    /// for comes first.
    pub(crate) fn unheard(&self, lacking: &Shards) -> BTreeMap<(bool, NodeId), Shards> {
        let shards = Shards::that(|shard| self.has_all(shard));
        let asked = if self.in_doubt { self.live } else { self.active };
        let is_asked = self.revived && !shards.is_empty();
        let asked = asked.without(self.node).into_iter().filter(|_| is_asked);
        let mut unheard: BTreeMap<_, _> =
            asked.map(|node| ((!self.in_doubt, node), shards)).collect();
        let inherited = Shards::that(|shard| lacking.contains(shard) && self.inherits(shard));
        if !inherited.is_empty() {
            for node in self.live.without(self.node) {
                let shards = unheard.entry((false, node)).or_default();
                *shards = Shards::that(|shard| shards.contains(shard) || inherited.contains(shard));
            }
        }
        unheard
    }
}

impl<T: Table<Meta = Meta> + LaneShared, X: Command<Owned = X>> Zeus<T, X> {
    /// This lane has come back from a log, or has not.
    pub(crate) fn set_doubt(&mut self, in_doubt: bool) {
        let in_doubt = in_doubt && !mutant!("zeus_doubtful_state_served");
        self.table.set_cell(DOUBT_CELL, u64::from(in_doubt));
    }

    /// An epoch begins on this lane. A node is in doubt if one of its lanes is.
    pub(crate) fn begin_revival(&mut self, before: &Layout) {
        let mut lanes = (0..self.config.lanes).map(LaneId);
        let in_doubt = lanes.any(|lane| self.table.cell_of(lane, DOUBT_CELL) > 0);
        let revived = self.log.revives && self.layout.is_active();
        let layout = Arc::make_mut(&mut self.layout);
        layout.revived = revived;
        layout.in_doubt = revived && in_doubt;
        let is_unrecovered = before.meets_revived && !mutant!("zeus_revival_ends_with_its_view");
        layout.meets_revived = is_unrecovered || layout.has_new_active(before);
    }

    /// Whether this node may lack what it is asked for, or has not begun its first epoch and can't say.
    pub fn is_in_doubt(&self) -> bool {
        (self.layout.in_doubt || !self.layout.is_active()) && !mutant!("zeus_lists_in_doubt")
    }

    /// Whether this node waits for what others have before it has recovered.
    pub(crate) fn is_reviving(&self) -> bool {
        let mut joining = self.joining.iter().filter(|_| self.layout.revived);
        let waits = joining.any(|joining| !joining.has_heard(&self.layout));
        waits && !mutant!("zeus_recovers_unheard") || self.layout.in_doubt && !self.log.has_copied()
    }

    /// Whether this node knows how far others may have forgotten what was deleted. One in doubt does when all its
    /// lanes have heard everybody.
    pub(crate) fn knows_floors(&mut self) -> bool {
        if !self.layout.in_doubt || mutant!("zeus_replays_before_it_has_heard") {
            return true;
        }
        if !self.joining.as_ref().is_none_or(Joining::has_heard_all) {
            return false;
        }
        let heard = 1 + self.layout.epoch.0;
        self.table.set_cell(DOUBT_CELL, heard);
        let mut lanes = (0..self.config.lanes).map(LaneId);
        lanes.all(|lane| self.table.cell_of(lane, DOUBT_CELL) == heard)
    }

    /// Every node has recovered: all have what any of them had.
    pub(crate) fn end_revival(&mut self, effects: &mut impl Effects<Self>) {
        self.log.revives = false;
        if self.layout.meets_revived {
            Arc::make_mut(&mut self.layout).meets_revived = false;
        }
        if !self.layout.revived {
            return;
        }
        if self.layout.in_doubt {
            effects.probe("zeus: takes in what its log has lost");
        }
        if !mutant!("zeus_revived_rounds_begin_anew") {
            self.floor.promised = self.floor.promised.max(self.clock);
        }
        self.set_doubt(false);
        let layout = Arc::make_mut(&mut self.layout);
        (layout.revived, layout.in_doubt) = (false, false);
        if !(0..SHARDS).any(|shard| self.layout.learns(shard)) {
            self.joining = None;
        }
    }

    /// What is left of a transaction that is replayed without the keys of which nobody has what it
    /// changes, if that is known.
    pub(crate) fn without_lost(
        &self,
        coordinator: MemberNumber,
        items: &[u8],
        lacking: &[Key],
        effects: &mut impl Effects<Self>,
    ) -> Option<Vec<u8>> {
        let is_gone = self.layout.node_of(coordinator).is_none();
        let joining = self.joining.as_ref();
        let has_copied = |key: &Key| joining.is_none_or(|joining| joining.has_copied(key));
        let in_doubt = self.layout.in_doubt && joining.is_none_or(Joining::has_heard_all);
        // Other keys need not have come: they may come with this very transaction. What it learns it copies anew.
        let is_heard = |key: &Key| {
            let shard = shard_of(key);
            let hears_all = in_doubt || self.layout.inherits(shard);
            hears_all && has_copied(key) || in_doubt && !self.layout.has_all(shard)
        };
        let knows = lacking.iter().all(is_heard)
            && !(self.is_reviving() && mutant!("zeus_lost_base_waits_for_others"));
        if !is_gone || !knows || mutant!("zeus_lost_base_awaited") {
            return None;
        }
        effects.probe("zeus: what a transaction changes is lost");
        let mut left = Items::begin(items.len());
        let is_left = |key: &[u8]| !lacking.iter().any(|lost| **lost == *key);
        for item in Items::trusted(items).iter().filter(|item| is_left(item.key)) {
            Items::push(&mut left, &item);
        }
        Some(left)
    }
}
