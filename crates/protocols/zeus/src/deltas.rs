//! Large values: an update of a collection travels as what it changes.
//!
//! A delta is applied to the version that its transaction has overwritten, its *base*. Only the owner
//! writes, and a follower applies in the order of dependencies; so it holds the base when the update
//! comes, unless it has not copied the key yet. Then it applies nothing of the transaction, does not
//! acknowledge it, and asks for all of the value (LACKS): the coordinator or, if that is gone, the
//! members that have all of the key, which apply what is replayed. It asks again, less and less often,
//! each time the update is sent again, and looks again whether the base has come meanwhile. A member that holds
//! a later version, or knows that the transaction is committed, says what is left of the key instead.
//!
//! A node that has a transaction under way keeps all of each value that it has changed in place, as it left
//! it. That costs little: it shares everything with the record but what later transactions change.
//!
//! Whether a collection is large each node decides alone: a delta makes a packed one large.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use quorate_machine::{Collection, Command, Content, Effects, LaneShared, Record, Table, mutant};
use quorate_types::placement::shard_of;
use quorate_types::{MemberNumber, NodeId, NodeSet, Now, Timestamp, lane_of_key};

use crate::fields::Items;
use crate::lanes::Letter;
use crate::message::Message;
use crate::meta::{Extra, Meta};
use crate::state::{Key, Zeus};

/// What a transaction has left in the keys whose values it has changed in place.
pub(crate) type Wholes = BTreeMap<Key, Collection>;

/// How often the wait doubles at most before a value is asked for again.
pub(crate) const DOUBLINGS_MAX: u32 = 5;

/// Puts a new version into a record that holds an earlier one: changes its base, or replaces it by all
/// of the value if that is known. What the record holds then; `None`, and the record is as it was, if
/// the delta is none of its base.
pub(crate) fn change<R: Record<Meta = Meta>>(
    record: &mut R,
    delta: Content<'_>,
    base: Timestamp,
    whole: Option<&Collection>,
) -> Option<Collection> {
    let is_here = record.meta().version == base || mutant!("zeus_delta_on_any_base");
    if let Some(whole) = whole {
        let mut bytes = Vec::new();
        whole.pack(&mut bytes);
        record.set_content(Content { bytes: &bytes, ..delta });
        return Some(whole.clone());
    }
    let large = record.large_mut().filter(|_| is_here).expect("it was looked for");
    large.apply(delta.bytes, &mut Vec::new()).ok()?;
    let left = large.clone();
    record.set_expiry(delta.expire_at);
    Some(left)
}

impl<T: Table<Meta = Meta> + LaneShared, X: Command<Owned = X>> Zeus<T, X> {
    /// The keys of a transaction that can't be changed here: this node neither holds the version that
    /// was overwritten, nor a later one, nor has it been told all of the value.
    pub(crate) fn lacking(
        &mut self,
        version: Timestamp,
        items: Items<'_>,
        wholes: &Wholes,
    ) -> Vec<Key> {
        let mut lacking = Vec::new();
        for item in items.iter() {
            let Some(base) = item.base.filter(|_| !wholes.contains_key(item.key)) else { continue };
            let record = self.table.lock_existing(item.key);
            let is_copy = record.as_ref().is_some_and(|it| it.meta().extra != Extra::None);
            if !self.layout.in_group(item.key) && !is_copy {
                continue;
            }
            let is_here = record.is_some_and(|mut record| {
                let held = record.meta().version;
                let is_base = held == base || mutant!("zeus_delta_on_any_base");
                held >= version || is_base && record.large_mut().is_some()
            });
            if !is_here {
                lacking.push(item.key.into());
            }
        }
        lacking
    }

    /// Asks for all that a transaction has left in these keys.
    pub(crate) fn ask_for_wholes(
        &self,
        coordinator: MemberNumber,
        slot: u64,
        keys: &[Key],
        effects: &mut impl Effects<Self>,
    ) {
        effects.probe("zeus: a follower lacks what a transaction changes");
        for key in keys {
            let members = || match self.layout.directory(key) {
                // Who begins the group anew may have it.
                [] if !mutant!("zeus_heirs_not_asked_for_wholes") => self.layout.group(key),
                directory => directory.iter().copied().collect::<NodeSet>(),
            };
            let whom = self.layout.node_of(coordinator).map_or_else(members, NodeSet::only);
            let message = Message::Lacks { coordinator, slot, key };
            effects.broadcast(whom.without(self.layout.node), &message);
        }
    }

    /// A follower can't apply what a transaction has changed in a key.
    pub(crate) fn on_lacks(
        &mut self,
        from: NodeId,
        coordinator: MemberNumber,
        slot: u64,
        key: &[u8],
        effects: &mut impl Effects<Self>,
    ) {
        let is_own = coordinator == self.layout.number;
        let of_other = || {
            let applied = self.streams.get(&coordinator)?.applied.get(slot)?;
            Some((&applied.items, &applied.wholes))
        };
        let known = if is_own { self.pipeline.changed_by(slot) } else { of_other() };
        let found = known.and_then(|(items, wholes)| {
            let items = Items::trusted(items);
            let item = items.iter().find(|item| item.key == key)?;
            Some((item.content?, wholes.get(key)?))
        });
        let Some((content, whole)) = found else {
            let stream = self.streams.get(&coordinator);
            let applied = stream.and_then(|stream| stream.applied.get(slot));
            let held = self.table.lock_existing(key).map(|record| record.meta().version);
            let is_later = applied.is_some_and(|applied| held >= Some(applied.version))
                && !mutant!("zeus_later_version_untold");
            let is_committed = stream.is_some_and(|stream| slot <= stream.committed);
            if (is_later || is_committed) && !mutant!("zeus_overwritten_base_awaited") {
                // A learner would copy what has come after it only when all have recovered.
                return self.tell_left(from, key, effects);
            }
            // It has it, or a later version, from elsewhere soon.
            return effects.ignored("zeus: LACKS of what is not under way");
        };
        let mut bytes = Vec::new();
        whole.pack(&mut bytes);
        if mutant!("zeus_whole_of_record")
            && let Some(record) = self.table.lock_existing(key)
            && let Some(large) = record.large()
        {
            bytes.clear();
            large.pack(&mut bytes);
        }
        let content = Content { bytes: &bytes, ..content };
        effects.send(from, &Message::Whole { coordinator, slot, key, content });
    }

    /// Tells a node what is left of a key, which lacks what a transaction has changed in it. The key's lane knows.
    pub(crate) fn tell_left(&mut self, to: NodeId, key: &[u8], effects: &mut impl Effects<Self>) {
        let shard = shard_of(key);
        if !self.is_own(key) {
            let lane = lane_of_key(key, self.config.lanes);
            if !mutant!("zeus_key_of_other_lane_untold") {
                self.write_to(lane, Letter::Lacks { key: key.into(), by: to }, effects);
            }
        } else if self.layout.has_all(shard) || self.layout.tells_all(to, shard) {
            self.tell_key(to, key, effects);
        } else {
            effects.ignored("zeus: LACKS to a node that does not know");
        }
    }

    /// All that a transaction has left in a key.
    pub(crate) fn on_whole(
        &mut self,
        now: Now,
        coordinator: MemberNumber,
        slot: u64,
        key: &[u8],
        content: Content<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        let stream = self.streams.get_mut(&coordinator);
        let Some(wholes) = stream.and_then(|stream| stream.wholes_at(slot, key)) else {
            return effects.ignored("zeus: all of a value that is not asked for");
        };
        match Collection::unpack(content.kind, content.bytes) {
            Ok(whole) => {
                effects.probe("zeus: a follower is told all of a value");
                wholes.insert(key.into(), whole);
                self.apply_held(now, coordinator, effects);
            }
            Err(_) => effects.refused("zeus: a damaged value"),
        }
    }
}
