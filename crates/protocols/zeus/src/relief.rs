//! Short of memory: copies that nothing rests on give way before updates are refused.
//!
//! A key survives by its group. A node may keep two kinds of copies of keys besides:
//! - an extra copy, since it reads the key often (`extra_copies.rs`). It is dropped at once, and the owner
//!   is told (LEAVE);
//! - that of an owner outside the group. It asks the default owner to release the key (REQ for nobody),
//!   which is what the default owner does by itself with keys that were deleted (`sweep.rs`). The owner
//!   agrees when it is done with the key, and drops its copy when the round is settled. The key belongs to
//!   its default owner then.
//!
//! An owner keeps its copy while fewer members of the group are active than are to keep the key: until they
//! are back, its copy may be one that the key survives by.

use quorate_machine::{Command, Effects, LaneShared, Record as _, Scan, Table, mutant};
use quorate_types::{Duration, Instant, NodeId, Now};

use crate::message::Message;
use crate::meta::{Extra, Meta, OwnerState};
use crate::state::Zeus;
use crate::sweep::NOBODY;

/// How often copies give way, and how often after a look at all records that has found none.
const EVERY: Duration = Duration::from_millis(1);
const REST: Duration = Duration::from_millis(20);
/// Copies of each kind that give way at once.
const COPIES_AT_ONCE: usize = 64;
/// Records that are looked at.
const RECORDS_AT_ONCE: usize = 512;
/// How long a node that was short of memory asks for no extra copies.
const MODEST_FOR: Duration = Duration::from_secs(1);

/// What a lane does about memory.
#[derive(Clone, Hash, Debug, Default)]
pub(crate) struct Relief {
    /// The walk that looks for keys owned here outside their groups, and whether it has found any.
    scan: Scan,
    has_found: bool,
    /// When copies may give way again.
    next_at: Instant,
    /// Until when no extra copies are asked for.
    modest_until: Instant,
}

impl Relief {
    /// Whether there is memory for more copies.
    pub(crate) fn has_room(&self, now: Now) -> bool {
        self.modest_until <= now.monotonic
    }
}

impl<T: Table<Meta = Meta> + LaneShared, X: Command<Owned = X>> Zeus<T, X> {
    /// The node is short of memory: some copies that nothing rests on give way.
    pub fn short_of_memory(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        if mutant!("zeus_copies_kept_without_memory") {
            return;
        }
        self.relief.modest_until = now.monotonic + MODEST_FOR;
        let acts = self.layout.is_active() && !self.lanes.is_stopped() && !self.layout.in_doubt;
        if self.relief.next_at > now.monotonic || !acts || self.layout.reads_all() {
            return;
        }
        self.relief.next_at = now.monotonic + EVERY;
        for key in self.copies.least_used(COPIES_AT_ONCE) {
            effects.probe("zeus: an extra copy gives way");
            self.counters.copies_dropped += 1;
            self.leave_copy(now, &key, effects);
        }
        self.give_back(now, effects);
        self.settle_changes(now, effects);
    }

    /// Asks the default owners of some keys that are owned here outside their groups to release them.
    fn give_back(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        let mut room = COPIES_AT_ONCE;
        for key in self.relief.scan.next_keys(&self.table, RECORDS_AT_ONCE) {
            let Some(to) = self.layout.default_owner(&key).filter(|_| room > 0) else { continue };
            if self.is_dispensable(&key) {
                room -= 1;
                self.relief.has_found = true;
                let req = Message::Req { key: &key, requester: NOBODY, resumes: false };
                effects.send(to, &req);
            }
        }
        if self.relief.scan.is_at_end() && !core::mem::take(&mut self.relief.has_found) {
            self.relief.next_at = now.monotonic + REST;
        }
    }

    /// Whether this node owns a key outside its group, and neither needs it nor is needed.
    fn is_dispensable(&mut self, key: &[u8]) -> bool {
        let is_outside = self.is_own(key) && !self.layout.in_group(key);
        let is_kept_by_others = self.layout.is_whole(key) || mutant!("zeus_needed_copy_gives_way");
        if !is_outside || !is_kept_by_others {
            return false;
        }
        let meta = self.meta(key);
        let is_by_name = self.layout.node_of(meta.owner) == Some(self.layout.node);
        is_by_name
            && meta.extra == Extra::None
            && self.rights().may_own(&meta, key)
            && !self.rounds.contains_key(key)
            && !self.lanes.is_lent(key)
            && !self.is_needed(key)
    }

    /// An owner outside the group of a key wants to be rid of it.
    pub(crate) fn on_give_back(
        &mut self,
        now: Now,
        from: NodeId,
        key: &[u8],
        effects: &mut impl Effects<Self>,
    ) {
        let meta = self.meta(key);
        let is_owner = self.layout.node_of(meta.owner) == Some(from);
        let is_settled = meta.state == OwnerState::Valid && !self.rounds.contains_key(key);
        if !is_owner || !is_settled || !self.may_release(key) {
            return effects.ignored("zeus: REQ of an owner that can't be rid of its key now");
        }
        effects.probe("zeus: an owner outside the group gives its key back");
        self.release(now, key, effects);
    }

    /// An owner outside the group agrees to a release, and so drops its copy.
    pub(crate) fn count_given_back(&mut self, key: &[u8]) {
        let has_value = |record: T::Record<'_>| record.content().is_some();
        let is_copy = self.table.lock_existing(key).is_some_and(has_value);
        self.counters.copies_dropped += u64::from(is_copy);
    }
}
