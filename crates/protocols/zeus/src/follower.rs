//! The follower's half of reliable commit.
//!
//! A follower applies a transaction once everything that it has read or overwritten is applied here,
//! or committed everywhere: then whatever a node has applied makes sense without the coordinator, and
//! can be replayed. (The order of slots would do as well. But neighbouring slots have different
//! followers here, and each would have to wait for the commit of the one before it.) What is applied
//! is unreadable until it is known to be committed.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;

use quorate_machine::{Backoff, Collection, Command, Effects, LaneShared, Record, Table, mutant};
use quorate_types::placement::shard_of;
use quorate_types::{Epoch, Instant, MemberNumber, NodeId, NodeSet, Now, Timestamp};

use crate::called::Answered;
use crate::commit::PIPELINE_SLOTS_MAX;
use crate::commit::followers;
use crate::deltas::{DOUBLINGS_MAX, Wholes, change};
use crate::fields::{Item, Items, Settled};
use crate::log::Appended;
use crate::message::Update;
use crate::meta::{DataState, Extra, Meta, OwnerState};
use crate::state::Zeus;
use crate::window::Window;

/// What a coordinator has sent.
#[derive(Clone, Hash, Debug, Default)]
pub(crate) struct Stream {
    /// Every slot up to here is known to be committed.
    pub(crate) committed: u64,
    /// Slots after it that are applied here. All of each is kept, also what other nodes hold: any
    /// follower may have to replay it.
    pub(crate) applied: Window<Applied>,
    /// Slots that wait for others.
    held: Window<Held>,
}

/// A transaction that waits for others, or for the values that it changes.
#[derive(Clone, Hash, Debug)]
struct Held {
    version: Timestamp,
    depends_on: Vec<u64>,
    items: Vec<u8>,
    /// All of some values, which this node has asked for.
    wholes: Wholes,
    asks: Backoff,
    call: Vec<u8>,
}

/// A transaction that is applied here.
#[derive(Clone, Hash, Debug)]
pub(crate) struct Applied {
    pub(crate) version: Timestamp,
    /// What it depends on, unless that is known to be everywhere.
    pub(crate) depends_on: Vec<u64>,
    pub(crate) items: Vec<u8>,
    /// As it left them, of the keys that this node keeps.
    pub(crate) wholes: Wholes,
    /// The call that it is an attempt at.
    pub(crate) call: Vec<u8>,
    /// The epoch in which it was heard of last.
    pub(crate) heard: Epoch,
    pub(crate) wait: Backoff,
    /// If its coordinator is gone.
    pub(crate) replay: Option<Replay>,
}

/// What a node does in place of a coordinator that is gone.
#[derive(Clone, Hash, Debug, Default)]
pub(crate) struct Replay {
    pub(crate) followers: NodeSet,
    pub(crate) applied: NodeSet,
    /// Whether it was sent: all that it depends on has been applied everywhere.
    pub(crate) is_sent: bool,
}

impl Replay {
    pub(crate) fn is_done(&self) -> bool {
        self.is_sent && self.followers.is_subset(self.applied)
    }
}

impl Applied {
    /// One that comes from the log.
    pub(crate) fn restored(
        version: Timestamp,
        depends_on: Vec<u64>,
        items: Vec<u8>,
        wholes: Wholes,
        call: Vec<u8>,
    ) -> Self {
        let (heard, wait) = (Epoch::default(), Backoff::default());
        Self { version, depends_on, items, wholes, call, heard, wait, replay: None }
    }
}

impl Stream {
    /// How many of the first slots that are applied here and seem to be committed nowhere their
    /// coordinator is asked about: it commits them in order, and tells how far it is.
    fn asked() -> usize {
        if mutant!("zeus_asks_about_each") { usize::MAX } else { 1 }
    }

    /// Forgets what waits for others.
    pub(crate) fn forget_held(&mut self) {
        self.held.clear();
    }

    /// In a new epoch what was asked for may not come.
    pub(crate) fn ask_again(&mut self) {
        self.held.values_mut().for_each(|held| held.asks = Backoff::default());
    }

    /// What is known of the values that a slot changes in place, if it changes this one and it is not here.
    pub(crate) fn wholes_at(&mut self, slot: u64, key: &[u8]) -> Option<&mut Wholes> {
        let held = self.held.get_mut(slot).map(|held| (&held.items, &mut held.wholes));
        let applied = self.applied.get_mut(slot).map(|slot| (&slot.items, &mut slot.wholes));
        let (items, wholes) = held.or(applied)?;
        let items = Items::trusted(items);
        // Two nodes may replay the transaction in different forms: one with the change, one with all of the value.
        let changes = items.iter().any(|item| item.key == key && item.content.is_some());
        (changes && !wholes.contains_key(key)).then_some(wholes)
    }

    /// A slot that may be replayed now.
    pub(crate) fn next_replay(&self) -> Option<u64> {
        let is_everywhere = |slot: &u64| {
            let replay = self.applied.get(*slot).and_then(|applied| applied.replay.as_ref());
            replay.is_none_or(Replay::is_done) || mutant!("zeus_replays_in_any_order")
        };
        let waits = |applied: &Applied| applied.replay.as_ref().is_some_and(|r| !r.is_sent);
        let mut ready = self
            .applied
            .iter()
            .filter(|(_, applied)| waits(applied) && applied.depends_on.iter().all(is_everywhere));
        ready.next().map(|(slot, _)| slot)
    }

    /// Whether all that this node replays is applied everywhere. What it has applied in this epoch another
    /// node replays.
    pub(crate) fn is_replayed(&self) -> bool {
        let mut replays = self.applied.values().map(|applied| applied.replay.as_ref());
        replays.all(|replay| replay.is_none_or(Replay::is_done))
    }

    /// When the first slot is to be asked about or replayed again. Of a coordinator that is gone only
    /// what is replayed here: nobody could say more of the others.
    pub(crate) fn next_deadline(&self, is_live: bool) -> Instant {
        let deadline = |applied: &Applied| match &applied.replay {
            Some(replay) if replay.is_done() || !replay.is_sent => Instant::NEVER,
            None if !is_live && !mutant!("zeus_orphans_are_due") => Instant::NEVER,
            _ => applied.wait.deadline(),
        };
        let most = if is_live { Self::asked() } else { usize::MAX };
        self.applied.values().take(most).map(deadline).min().unwrap_or(Instant::NEVER)
    }

    /// Whether a slot may be applied that depends on these.
    fn admits(&self, depends_on: &[u64]) -> bool {
        let is_here = |slot: &u64| *slot <= self.committed || self.applied.contains(*slot);
        let mut slots = depends_on.iter();
        match mutant!("zeus_only_last_dependency") {
            true => slots.next_back().is_none_or(is_here),
            false => slots.all(is_here) || mutant!("zeus_ignores_dependency"),
        }
    }
}

/// What is in a record then, if the value was changed in place, or why nothing was changed.
type Put = Result<Option<Collection>, &'static str>;

/// Puts what a transaction has left in a key into its record, which has the words of `absent` as far as
/// they were never set. What is there then, if the value was changed in place.
fn put<R: Record<Meta = Meta>>(
    record: &mut R,
    absent: Meta,
    version: Timestamp,
    item: &Item<'_>,
    whole: Option<&Collection>,
) -> Put {
    let meta = record.meta().or(absent);
    if meta.data == DataState::Write && !mutant!("zeus_writes_beside_owner") {
        return Err("zeus: two nodes write one key");
    }
    let mut left = None;
    match (item.content, item.base) {
        (Some(content), Some(base)) => {
            left = change(record, content, base, whole);
            if left.is_none() {
                return Err("zeus: a delta that does not fit its base");
            }
        }
        (Some(content), None) => record.set_content(content),
        (None, _) => record.clear(),
    }
    let data = match mutant!("zeus_applied_is_readable") {
        true => DataState::Valid,
        false => DataState::Invalid,
    };
    record.set_meta(Meta { version, data, ..meta });
    Ok(left)
}

impl<T: Table<Meta = Meta> + LaneShared, X: Command<Owned = X>> Zeus<T, X> {
    /// A transaction of another coordinator, from it or from a node that replays it.
    pub(crate) fn on_update(
        &mut self,
        now: Now,
        from: NodeId,
        update: Update<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        let Update { coordinator, slot, committed, version, depends_on, items, call } = update;
        self.observe(version.version);
        let owner = self.layout.node_of(coordinator);
        if owner.is_some_and(|owner| owner != from) {
            return effects.ignored("zeus: a replay for a live coordinator");
        }
        if owner.is_none() && self.recovery.is_none() {
            // Every node has recovered, so this one has applied it.
            return self.turn.say_applied(from, coordinator, slot);
        }
        // The sender knows that it is committed. This node may have lost it, and so may all other members: then
        // it is taken in once more.
        let may_lack = self.may_lack(coordinator, items) && !mutant!("zeus_committed_is_here");
        if !may_lack {
            self.on_committed(now, coordinator, committed, effects);
        }
        let epoch = self.layout.epoch;
        let stream = self.streams.entry(coordinator).or_default();
        if slot <= stream.committed && !may_lack {
            return self.turn.say_applied(from, coordinator, slot);
        }
        if let Some(known) = stream.applied.get_mut(slot) {
            known.heard = epoch;
            if self.complete(now, coordinator, slot, effects) {
                self.turn.say_applied(from, coordinator, slot);
            }
            return;
        }
        // A node that replays a transaction has seen to what it depends on.
        let depends_on: Vec<u64> = owner.map(|_| depends_on.iter().collect()).unwrap_or_default();
        let known = stream.held.remove(slot).map(|held| (held.wholes, held.asks));
        let (wholes, asks) = known.unwrap_or_default();
        let items = items.bytes().to_vec();
        let call = Answered::write(call);
        let mut held = Held { version, depends_on, items, wholes, asks, call };
        let waits = !stream.admits(&held.depends_on);
        let has_room = stream.held.len() < PIPELINE_SLOTS_MAX;
        if waits {
            effects.probe("zeus: a transaction waits for what it depends on");
            if mutant!("zeus_acks_on_receipt") {
                self.turn.say_applied(from, coordinator, slot);
            }
        } else {
            held = match self.try_to_apply(now, coordinator, slot, held, effects) {
                None => {
                    self.turn.say_applied(from, coordinator, slot);
                    return self.apply_held(now, coordinator, effects);
                }
                Some(held) => held,
            };
            if mutant!("zeus_missing_base_acknowledged") {
                self.turn.say_applied(from, coordinator, slot);
            }
        }
        if has_room {
            let stream = self.streams.get_mut(&coordinator).expect("it has sent something");
            stream.held.insert(slot, held);
        }
    }

    /// Applies a transaction, unless this node lacks the values that it changes: then it gets it back,
    /// and has asked for them.
    fn try_to_apply(
        &mut self,
        now: Now,
        coordinator: MemberNumber,
        slot: u64,
        mut held: Held,
        effects: &mut impl Effects<Self>,
    ) -> Option<Held> {
        let items = Items::trusted(&held.items);
        let mut lacking = self.lacking(held.version, items, &held.wholes);
        let mut complete = None;
        if !lacking.is_empty()
            && let Some(left) = self.without_lost(coordinator, &held.items, &lacking, effects)
        {
            complete = Some(mem::replace(&mut held.items, left));
            lacking.clear();
        }
        if lacking.is_empty() {
            self.apply(now, coordinator, slot, held, complete, effects);
            return None;
        }
        let is_asked = held.asks != Backoff::default() && mutant!("zeus_whole_asked_for_once");
        let timeout = self.config.message_loss_timeout;
        if !is_asked && held.asks.is_over(now, timeout, DOUBLINGS_MAX) {
            self.ask_for_wholes(coordinator, slot, &lacking, effects);
        }
        Some(held)
    }

    /// Applies a transaction: `complete` are its items before those went of which the base is lost.
    fn apply(
        &mut self,
        now: Now,
        coordinator: MemberNumber,
        slot: u64,
        held: Held,
        complete: Option<Vec<u8>>,
        effects: &mut impl Effects<Self>,
    ) {
        let Held { version, depends_on, items, mut wholes, call, .. } = held;
        self.begin_call((coordinator, slot), &call);
        let checked = Items::trusted(&items);
        let committed = self.streams.get(&coordinator).map_or(0, |stream| stream.committed);
        let appended = Appended {
            coordinator,
            slot,
            committed: committed.min(slot),
            version,
            depends_on: &depends_on,
            items: checked,
            wholes: &wholes,
            call: &call,
        };
        self.append_update(&appended, effects);
        self.apply_items(now, coordinator, version, checked, &mut wholes, effects);
        if mutant!("zeus_follower_keeps_no_whole") {
            wholes.clear();
        }
        let wait = self.wait(now);
        // A node that may lack the transaction replays it, too: it may know that some of its values are lost
        // everywhere, and a learner hears of that only from what is replayed to it.
        let sent = complete.as_deref().map_or(checked, Items::trusted);
        let replays = self.may_lack(coordinator, sent) && !mutant!("zeus_in_doubt_replays_nothing");
        let followers = || followers(&self.layout, sent, &call);
        let replay = replays.then(|| Replay { followers: followers(), ..Replay::default() });
        let heard = self.layout.epoch;
        let applied = Applied { version, depends_on, items, wholes, call, heard, wait, replay };
        let stream = self.streams.get_mut(&coordinator).expect("it has sent something");
        stream.applied.insert(slot, applied);
    }

    /// Whether this node may lack a transaction of a coordinator that is gone although it was committed: it is in
    /// doubt, or an heir.
    fn may_lack(&self, coordinator: MemberNumber, items: Items<'_>) -> bool {
        let inherits = |item: Item<'_>| self.layout.inherits(shard_of(item.key));
        self.layout.node_of(coordinator).is_none()
            && (self.layout.in_doubt || items.iter().any(inherits))
    }

    /// Whether a transaction that is applied here is in all keys that this node keeps: since then it may
    /// have begun to keep some of them. What is missing is applied now, or asked for.
    pub(crate) fn complete(
        &mut self,
        now: Now,
        coordinator: MemberNumber,
        slot: u64,
        effects: &mut impl Effects<Self>,
    ) -> bool {
        let layout = Arc::clone(&self.layout);
        let stream = self.streams.get_mut(&coordinator);
        let Some(applied) = stream.and_then(|stream| stream.applied.get(slot)) else {
            return false;
        };
        let version = applied.version;
        let items = Items::trusted(&applied.items);
        let is_missing = |item: Item<'_>| {
            let record = self.table.lock_existing(item.key);
            let held = record.map(|record| record.meta()).unwrap_or_default();
            (layout.in_group(item.key) || held.extra != Extra::None) && held.version < version
        };
        if !items.iter().any(is_missing) || mutant!("zeus_learnt_key_left_out") {
            return true;
        }
        let Applied { items, mut wholes, depends_on, call, .. } = applied.clone();
        let items = Items::trusted(&items);
        let lacking = self.lacking(version, items, &wholes);
        if !lacking.is_empty() {
            let Some(left) = self.without_lost(coordinator, items.bytes(), &lacking, effects)
            else {
                self.ask_for_wholes(coordinator, slot, &lacking, effects);
                return false;
            };
            let stream = self.streams.get_mut(&coordinator).expect("it was found");
            stream.applied.get_mut(slot).expect("it was found").items = left;
            return self.complete(now, coordinator, slot, effects);
        }
        effects.probe("zeus: a transaction is applied to a key that was learnt");
        self.apply_items(now, coordinator, version, items, &mut wholes, effects);
        let appended = Appended {
            coordinator,
            slot,
            committed: 0,
            version,
            depends_on: &depends_on,
            items,
            wholes: &wholes,
            call: &call,
        };
        self.append_update(&appended, effects);
        if self.joining.is_some() {
            self.log.note_copied();
        }
        let stream = self.streams.get_mut(&coordinator).expect("it was found");
        stream.applied.get_mut(slot).expect("it was found").wholes = wholes;
        true
    }

    fn apply_items(
        &mut self,
        now: Now,
        coordinator: MemberNumber,
        version: Timestamp,
        items: Items<'_>,
        wholes: &mut Wholes,
        effects: &mut impl Effects<Self>,
    ) {
        for item in items.iter() {
            let whole = wholes.get(item.key);
            let left = match self.layout.in_group(item.key) {
                true => self.apply_item(now, coordinator, version, &item, whole, effects),
                false => self.apply_to_copy(version, &item, whole, effects),
            };
            if let Some(left) = left {
                wholes.insert(item.key.into(), left);
            }
        }
    }

    /// The same for a key outside its group, if this node has a copy or has asked for one. No copy is kept
    /// of a key that is absent: there is no floor for it here.
    fn apply_to_copy(
        &mut self,
        version: Timestamp,
        item: &Item<'_>,
        whole: Option<&Collection>,
        effects: &mut impl Effects<Self>,
    ) -> Option<Collection> {
        let mut record = self.table.lock_existing(item.key)?;
        let meta = record.meta();
        let is_older = meta.extra == Extra::None || meta.version >= version;
        if is_older || mutant!("zeus_extra_copy_not_applied") {
            return None;
        }
        let put = match item.content {
            Some(_) => put(&mut record, Meta::default(), version, item, whole),
            None => Ok(None),
        };
        drop(record);
        if item.content.is_none() {
            self.remove_copy(item.key);
        }
        self.note_changed(item.key, effects);
        put.unwrap_or_else(|reason| {
            effects.refused(reason);
            None
        })
    }

    /// Takes over what a transaction has left in one key, unless a later one has been here. Rounds are
    /// the business of the key's own lane. What is there then, if the value was changed in place.
    fn apply_item(
        &mut self,
        now: Now,
        coordinator: MemberNumber,
        version: Timestamp,
        item: &Item<'_>,
        whole: Option<&Collection>,
        effects: &mut impl Effects<Self>,
    ) -> Option<Collection> {
        let is_own = self.is_own(item.key);
        // Of what comes from a log nobody remembers the round.
        let is_claimed = item.round > Timestamp::ZERO;
        let adopts = is_own && is_claimed && !mutant!("zeus_claim_not_adopted");
        let settled = (item.round, coordinator, OwnerState::Valid);
        // The round under way here is the one by which the coordinator has got the key.
        let moved = adopts.then(|| self.is_moved_by(item.key, item.round, coordinator)).flatten();
        if let Some(has_moved) = moved
            && let Some(put) = self.put_moving(coordinator, version, item, whole, has_moved)
        {
            self.settled_here(now, item.key, has_moved, effects);
            return self.note_put(item, version, put, effects);
        }
        let has_round = adopts && self.rounds.contains_key(item.key);
        // The usual key has not moved since the transaction before.
        let is_usual = |record: &T::Record<'_>| {
            let meta = record.meta();
            let is_settled =
                !adopts || (meta.round, meta.owner, meta.state) == settled && !has_round;
            is_settled && meta.version < version && meta.round != Timestamp::ZERO
        };
        let put = if let Some(mut record) = self.table.lock_existing(item.key).filter(is_usual) {
            put(&mut record, Meta::default(), version, item, whole)
        } else {
            let known = self.meta(item.key);
            if !adopts {
            } else if item.round >= known.round {
                // The coordinator owns it, so the round is settled.
                self.settle_from(now, known, item.key, item.round, coordinator, effects);
            } else {
                let settled = Settled { round: item.round, owner: coordinator };
                self.adopt_beneath(now, item.key, settled, effects);
            }
            match self.meta(item.key).version < version {
                true => {
                    let absent = self.absent(item.key);
                    let length = item.content.map_or(0, |content| content.bytes.len());
                    let mut record = self.table.lock_key(item.key, length);
                    put(&mut record, absent, version, item, whole)
                }
                false => Ok(None),
            }
        };
        self.note_put(item, version, put, effects)
    }

    /// Takes over what a transaction has left in a key, and the entry that it settles, if the record is in the
    /// round by which its coordinator has got the key.
    fn put_moving(
        &mut self,
        coordinator: MemberNumber,
        version: Timestamp,
        item: &Item<'_>,
        whole: Option<&Collection>,
        has_moved: bool,
    ) -> Option<Put> {
        let is_moving = |record: &T::Record<'_>| {
            let meta = record.meta();
            meta.round == item.round && meta.state != OwnerState::Valid
        };
        let mut record = self.table.lock_existing(item.key).filter(is_moving)?;
        let meta = record.meta();
        let words = if has_moved { meta.moved() } else { meta };
        record.set_meta(Meta { owner: coordinator, state: OwnerState::Valid, ..words });
        Some(match meta.version < version {
            true => put(&mut record, Meta::default(), version, item, whole),
            false => Ok(None),
        })
    }

    /// A key holds what a transaction has left in it, or that was refused. What is there then, if the value
    /// was changed in place.
    fn note_put(
        &mut self,
        item: &Item<'_>,
        version: Timestamp,
        put: Put,
        effects: &mut impl Effects<Self>,
    ) -> Option<Collection> {
        let left = match put {
            Ok(left) => left,
            Err(reason) => {
                effects.refused(reason);
                return None;
            }
        };
        if self.is_own(item.key) {
            self.sweep.note(item.key, item.content);
            self.note_arrived(item.key, version);
        } else {
            self.note_changed(item.key, effects);
        }
        left
    }

    /// A value has come with its transaction, and is in the log of this lane.
    pub(crate) fn note_arrived(&mut self, key: &[u8], version: Timestamp) {
        if let Some(joining) = &mut self.joining
            && joining.awaited.get(key).is_some_and(|awaited| *awaited <= version)
        {
            joining.awaited.remove(key);
            self.log.note_copied();
        }
    }

    /// Applies what has waited and need not any more.
    pub(crate) fn apply_held(
        &mut self,
        now: Now,
        coordinator: MemberNumber,
        effects: &mut impl Effects<Self>,
    ) {
        let mut at = 0;
        loop {
            let Some(stream) = self.streams.get_mut(&coordinator) else { return };
            let is_free = |(_, held): &(u64, &Held)| stream.admits(&held.depends_on);
            let free = stream.held.from(at).find(is_free).map(|(slot, _)| slot);
            let Some(slot) = free else { return };
            let held = stream.held.remove(slot).expect("it was found");
            at = match self.try_to_apply(now, coordinator, slot, held, effects) {
                None => 0,
                Some(held) => {
                    let stream = self.streams.get_mut(&coordinator).expect("it was found");
                    stream.held.insert(slot, held);
                    slot + 1
                }
            };
            if at == 0
                && let Some(node) = self.layout.node_of(coordinator)
            {
                self.turn.say_applied(node, coordinator, slot);
            }
        }
    }

    /// A coordinator has committed its slots up to this one. A follower that misses it asks.
    pub(crate) fn on_committed(
        &mut self,
        now: Now,
        coordinator: MemberNumber,
        upto: u64,
        effects: &mut impl Effects<Self>,
    ) {
        let is_live = self.layout.node_of(coordinator).is_some();
        if is_live {
            self.streams.entry(coordinator).or_default();
        }
        let stream = self.streams.get_mut(&coordinator);
        let Some(stream) = stream.filter(|stream| stream.committed < upto) else {
            return effects.ignored("zeus: R-VAL of what is known to be committed");
        };
        stream.committed = upto;
        while stream.held.pop_upto(upto).is_some() {}
        let next = |this: &mut Self| {
            let stream = this.streams.get_mut(&coordinator)?;
            stream.applied.pop_upto(upto)
        };
        while let Some((slot, applied)) = next(self) {
            self.complete_call((coordinator, slot), &applied.call);
            self.validate(&applied, effects);
        }
        self.apply_held(now, coordinator, effects);
    }

    /// What a committed transaction has left may be read, unless a later one has overwritten it.
    pub(crate) fn validate(&mut self, applied: &Applied, effects: &mut impl Effects<Self>) {
        let items = Items::trusted(&applied.items);
        for item in items.iter() {
            let Some(mut record) = self.table.lock_existing(item.key) else { continue };
            let meta = record.meta();
            if !self.layout.in_group(item.key) && meta.extra == Extra::None {
                continue;
            }
            if meta.version == applied.version && meta.data == DataState::Invalid {
                record.set_meta(Meta { data: DataState::Valid, ..meta });
                drop(record);
                self.note_changed(item.key, effects);
            }
        }
    }

    /// Tells coordinators again what is applied here and seems to be committed nowhere.
    pub(crate) fn repeat_applied(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        for (&coordinator, stream) in &mut self.streams {
            let Some(node) = self.layout.node_of(coordinator) else { continue };
            for (slot, applied) in stream.applied.iter_mut().take(Stream::asked()) {
                if applied.wait.deadline() <= now.monotonic {
                    self.config.wait_longer(&mut applied.wait, now);
                    effects.probe("zeus: a follower asks whether a transaction is committed");
                    self.turn.say_applied(node, coordinator, slot);
                }
            }
        }
    }
}
