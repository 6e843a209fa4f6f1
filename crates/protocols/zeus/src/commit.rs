//! The coordinator's half of reliable commit: a pipeline of transactions that are committed here and
//! not yet applied by all followers.
//!
//! The next transaction begins at once, with what the ones before it have written: nothing can veto
//! them, since no other node can touch their keys before they are done. But nobody is told of any
//! before it and all that went before are applied everywhere (output commit).

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use quorate_machine::{
    Backoff, Command, Completion, Effects, Gate, LaneShared, Outcome, Record as _, Table, mutant,
};
use quorate_types::{Instant, Lsn, MemberNumber, NodeId, NodeSet, Now, Timestamp};

use crate::called::Answered;
use crate::deltas::Wholes;
use crate::fields::{Items, Slots};
use crate::lanes::Client;
use crate::layout::Layout;
use crate::log::Appended;
use crate::message::{Message, Update};
use crate::meta::{DataState, Meta};
use crate::state::{Key, Zeus};
use crate::touches::{Touch, Touches};

/// Most transactions of a lane that not all followers have applied. Beyond it new ones are refused.
pub const PIPELINE_SLOTS_MAX: usize = 4096;

/// The transactions of this node that are under way, in order.
#[derive(Clone, Hash, Debug)]
pub(crate) struct Pipeline<R> {
    /// Every slot up to here is applied by all followers.
    pub(crate) committed: u64,
    /// The slots after it.
    slots: VecDeque<Slot<R>>,
    touched: Touches,
}

impl<R> Default for Pipeline<R> {
    fn default() -> Self {
        Self { committed: 0, slots: VecDeque::new(), touched: Touches::default() }
    }
}

/// A transaction that is committed here. What it wrote is kept as it was then: the records change.
#[derive(Clone, Hash, Debug)]
struct Slot<R> {
    version: Timestamp,
    /// Where it was appended to the log.
    lsn: Lsn,
    depends_on: Vec<u8>,
    /// What it read and did not write, and what those have read whose answers rest on it.
    read: Vec<Key>,
    items: Vec<u8>,
    wholes: Wholes,
    /// The call that it is an attempt at.
    call: Vec<u8>,
    followers: NodeSet,
    applied: NodeSet,
    wait: Backoff,
    /// Of the transaction.
    answer: Option<Answer<R>>,
    /// Those that rest on it.
    others: Vec<Answer<R>>,
}

/// An answer that rests on a slot.
#[derive(Clone, Hash, Debug)]
pub(crate) struct Answer<R> {
    pub(crate) client: Client,
    pub(crate) reply: R,
    /// The version of what the transaction wrote, if it wrote anything.
    pub(crate) at: Option<Timestamp>,
}

impl<R> Pipeline<R> {
    /// The slot of the last transaction.
    pub(crate) fn last(&self) -> u64 {
        self.committed + self.slots.len() as u64
    }

    pub(crate) fn is_full(&self) -> bool {
        self.slots.len() >= PIPELINE_SLOTS_MAX
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether no transaction under way has read or written a key.
    pub(crate) fn is_done_with(&self, key: &[u8]) -> bool {
        match self.touched.get(key) {
            None => true,
            // What was written must be done in any case; a guard for what was read can be removed.
            Some(touch) => touch.written == 0 && mutant!("zeus_handover_ignores_reads"),
        }
    }

    /// The slots under way that wrote any of these keys.
    pub(crate) fn writers<'a>(&self, keys: impl Iterator<Item = &'a [u8]>) -> Vec<u64> {
        let written = keys.filter_map(|key| self.touched.get(key)).map(|touch| touch.written);
        let mut slots: Vec<u64> = written.filter(|slot| *slot > 0).collect();
        slots.sort_unstable();
        slots.dedup();
        slots
    }

    fn get_mut(&mut self, slot: u64) -> Option<&mut Slot<R>> {
        let at = slot.checked_sub(self.committed + 1)?;
        self.slots.get_mut(usize::try_from(at).ok()?)
    }

    /// What a slot under way has written.
    pub(crate) fn changed_by(&self, slot: u64) -> Option<(&Vec<u8>, &Wholes)> {
        let at = usize::try_from(slot.checked_sub(self.committed + 1)?).ok()?;
        self.slots.get(at).map(|slot| (&slot.items, &slot.wholes))
    }

    /// The call that a slot under way is an attempt at.
    pub(crate) fn call_of(&self, slot: u64) -> Option<Answered<'_>> {
        let at = usize::try_from(slot.checked_sub(self.committed + 1)?).ok()?;
        Answered::trusted(&self.slots.get(at)?.call)
    }

    /// Gives a slot under way as it is appended to the log.
    pub(crate) fn write_slot(
        &self,
        coordinator: MemberNumber,
        slot: u64,
        write: impl FnOnce(&Appended<'_>),
    ) {
        let at = usize::try_from(slot - self.committed - 1).expect("it is under way");
        let under_way = &self.slots[at];
        let depends_on: Vec<u64> = match under_way.depends_on.is_empty() {
            true => Vec::new(),
            false => Slots::trusted(&under_way.depends_on).iter().collect(),
        };
        write(&Appended {
            coordinator,
            slot,
            committed: self.committed,
            version: under_way.version,
            depends_on: &depends_on,
            items: Items::trusted(&under_way.items),
            wholes: &under_way.wholes,
            call: &under_way.call,
        });
    }

    /// The slots under way, and the calls that they are attempts at.
    pub(crate) fn calls(&self) -> impl Iterator<Item = (u64, &[u8])> {
        (self.committed + 1..).zip(self.slots.iter().map(|slot| &slot.call[..]))
    }

    /// Leaves an answer until a slot is committed.
    pub(crate) fn answer_after(&mut self, slot: u64, answer: Answer<R>) {
        self.get_mut(slot).expect("the slot is under way").others.push(answer);
    }

    /// Leaves the answer of a transaction that has only read until a slot is committed. Until then this
    /// node is not done with any of its keys. If another node wrote one of them meanwhile, a client could
    /// read that write and, at a replica that has not applied the slot, what the slot has overwritten;
    /// but this answer shows the slot without that write.
    pub(crate) fn answer_read_after(&mut self, slot: u64, keys: Vec<Key>, answer: Answer<R>) {
        let keys = if mutant!("zeus_waiting_read_keeps_nothing") { Vec::new() } else { keys };
        for key in keys {
            if self.touched.keep(&key, slot) {
                self.get_mut(slot).expect("the slot is under way").read.push(key);
            }
        }
        self.answer_after(slot, answer);
    }

    /// Every answer that waits.
    pub(crate) fn take_answers(&mut self) -> impl Iterator<Item = Answer<R>> {
        let take = |slot: &mut Slot<R>| {
            slot.answer.take().into_iter().chain(core::mem::take(&mut slot.others))
        };
        self.slots.iter_mut().flat_map(take).collect::<Vec<_>>().into_iter()
    }

    pub(crate) fn next_deadline(&self) -> Instant {
        self.slots.iter().map(|slot| slot.wait.deadline()).min().unwrap_or(Instant::NEVER)
    }

    pub(crate) fn check_invariants(&self) {
        let under_way = self.committed + 1..=self.last();
        let is_under_way =
            |touch: Touch| under_way.contains(&touch.last) && touch.written <= touch.last;
        assert!(
            self.touched.all(is_under_way),
            "touched by what is not under way: {:?}",
            self.touched
        );
    }
}

/// A transaction that has run, to be committed.
pub(crate) struct Committing {
    pub(crate) version: Timestamp,
    /// The keys that it read and did not write.
    pub(crate) read: Vec<Key>,
    /// What it wrote, as it travels.
    pub(crate) items: Vec<u8>,
    pub(crate) wholes: Wholes,
    /// The call that it is an attempt at, and its home key.
    pub(crate) call: Option<(Key, Vec<u8>)>,
}

/// The live members that keep what a transaction wrote, or the record of its call.
pub(crate) fn followers(layout: &Layout, items: Items<'_>, call: &[u8]) -> NodeSet {
    let groups = items.iter().map(|item| layout.group(item.key));
    groups.fold(keepers_of_call(layout, call), NodeSet::union)
}

/// The live members that keep the record of a call.
fn keepers_of_call(layout: &Layout, call: &[u8]) -> NodeSet {
    let call = Answered::trusted(call).filter(|_| !mutant!("zeus_call_without_its_group"));
    call.map(|call| layout.keepers(usize::from(call.shard))).unwrap_or_default()
}

impl<T: Table<Meta = Meta> + LaneShared, X: Command<Owned = X>> Zeus<T, X> {
    /// Appends a transaction to the pipeline, and tells its followers. Its changes are in the records.
    pub(crate) fn append(
        &mut self,
        now: Now,
        committing: Committing,
        answer: Option<Answer<X::Reply>>,
        effects: &mut impl Effects<Self>,
    ) {
        let Committing { version, mut read, items, wholes, call } = committing;
        let (home, call) = call.unzip();
        let call = call.unwrap_or_default();
        let written = Items::trusted(&items);
        if let Some(home) = &home {
            let is_touched = written.iter().any(|item| item.key == &**home) || read.contains(home);
            // Its owner is not done with it before all members of its group have the record.
            read.extend((!is_touched && !mutant!("zeus_home_given_early")).then(|| home.clone()));
        }
        let slot = self.pipeline.last() + 1;
        let mut depends_on = Vec::new();
        let mut followers = keepers_of_call(&self.layout, &call);
        for item in written.iter() {
            depends_on.push(self.pipeline.touched.write(item.key, slot));
            let group = self.layout.group(item.key);
            self.turn.told_taken(item.key, group);
            followers = followers.union(group).union(self.extra_readers(item.key));
        }
        depends_on.extend(read.iter().map(|key| self.pipeline.touched.read(key, slot)));
        depends_on.retain(|slot| *slot > 0);
        depends_on.sort_unstable();
        depends_on.dedup();
        let lsn = self.append_update(
            &Appended {
                coordinator: self.layout.number,
                slot,
                committed: self.pipeline.committed,
                version,
                depends_on: &depends_on,
                items: written,
                wholes: &Wholes::new(),
                call: &call,
            },
            effects,
        );
        let depends_on = match depends_on.is_empty() {
            true => Vec::new(),
            false => Slots::write(&depends_on),
        };
        let followers = followers.without(self.layout.node);
        if let Some(home) = home {
            self.begin_own_call(slot, home, &call);
        }
        let wait = self.wait(now);
        self.pipeline.slots.push_back(Slot {
            version,
            lsn,
            depends_on,
            read,
            items,
            wholes,
            call,
            followers,
            applied: NodeSet::EMPTY,
            wait,
            answer,
            others: Vec::new(),
        });
        self.send_slot(slot, followers, effects);
        self.advance(effects);
    }

    fn send_slot(&mut self, slot: u64, to: NodeSet, effects: &mut impl Effects<Self>) {
        let coordinator = self.layout.number;
        let committed = self.pipeline.committed;
        let Some(under_way) = self.pipeline.get_mut(slot) else { return };
        let depends_on = Slots::trusted(&under_way.depends_on);
        let items = Items::trusted(&under_way.items);
        let (version, call) = (under_way.version, Answered::trusted(&under_way.call));
        let update = Update { coordinator, slot, committed, version, depends_on, items, call };
        effects.broadcast(to, &Message::Update(update));
        self.turn.told_committed(to);
    }

    /// A follower has applied transactions of this node.
    pub(crate) fn on_applied(
        &mut self,
        from: NodeId,
        slots: Slots<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        for slot in slots.iter() {
            match self.pipeline.get_mut(slot) {
                Some(under_way) => under_way.applied.insert(from),
                // It asks because it has not heard that the slot is committed.
                None => self.turn.say_committed(NodeSet::from_iter([from])),
            }
        }
        self.advance(effects);
    }

    /// Commits what all followers have applied, in the order of slots.
    pub(crate) fn advance(&mut self, effects: &mut impl Effects<Self>) {
        let mut told = NodeSet::EMPTY;
        while let Some(front) = self.pipeline.slots.front() {
            let early = mutant!("zeus_waits_for_one") && !front.applied.is_empty();
            if !front.followers.is_subset(front.applied) && !early {
                break;
            }
            if !self.log.journal.is_durable(front.lsn) && !mutant!("zeus_commit_before_durable") {
                effects.probe("zeus: a commit waits for the log");
                break;
            }
            let name = (self.layout.number, self.pipeline.committed + 1);
            if self.log.parts.lacks(name) && !mutant!("zeus_own_part_not_awaited") {
                break;
            }
            let front = self.pipeline.slots.pop_front().expect("it was seen");
            self.pipeline.committed += 1;
            told = told.union(front.followers);
            self.validate_own(front, effects);
        }
        if told.is_empty() || mutant!("zeus_commit_not_told") {
            return;
        }
        // Who follows a later slot may wait for one that it doesn't follow.
        let later = self.pipeline.slots.iter().map(|slot| slot.followers);
        self.turn.say_committed(later.fold(told, NodeSet::union));
    }

    /// The slot that was just committed may be read here, unless a later one has overwritten it.
    fn validate_own(&mut self, slot: Slot<X::Reply>, effects: &mut impl Effects<Self>) {
        let committed = self.pipeline.committed;
        self.complete_call((self.layout.number, committed), &slot.call);
        for item in Items::trusted(&slot.items).iter() {
            if let Some(mut record) = self.table.lock_existing(item.key) {
                let meta = record.meta();
                let is_current =
                    meta.version == slot.version || mutant!("zeus_validates_overtaken");
                if is_current && meta.data == DataState::Write {
                    record.set_meta(Meta { data: DataState::Valid, ..meta });
                }
            }
            self.pipeline.touched.committed(item.key, committed);
            self.note_if_wanted(item.key);
        }
        for key in &slot.read {
            self.pipeline.touched.committed(key, committed);
            self.note_if_wanted(key);
        }
        self.counters.commits += 1;
        // With no live follower nobody has confirmed that this node is still a member.
        let gate = if slot.followers.is_empty() { Gate::LEASE } else { Gate::OPEN };
        for Answer { client, reply, at } in slot.answer.into_iter().chain(slot.others) {
            let gate = if at.is_some() { gate } else { Gate::LEASE };
            let completion = Completion::new(Outcome::Done(reply)).behind(gate);
            self.answer(client, Completion { at, ..completion }, effects);
        }
    }

    /// Sends again what is due.
    pub(crate) fn repeat_slots(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        for slot in self.pipeline.committed + 1..=self.pipeline.last() {
            let under_way = self.pipeline.get_mut(slot).expect("it is under way");
            if under_way.wait.deadline() > now.monotonic {
                continue;
            }
            self.config.wait_longer(&mut under_way.wait, now);
            let missing = under_way.followers.difference(under_way.applied);
            effects.probe("zeus: a transaction is sent again");
            self.send_slot(slot, missing, effects);
        }
    }

    /// Sends everything that is under way to the followers that it has in a new epoch.
    pub(crate) fn renew_slots(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        let wait = self.wait(now);
        for slot in self.pipeline.committed + 1..=self.pipeline.last() {
            let (items, _) = self.pipeline.changed_by(slot).expect("it is under way");
            let items = Items::trusted(items).iter();
            let late = items.map(|item| self.extra_readers(item.key));
            let late = late.fold(NodeSet::EMPTY, NodeSet::union);
            let under_way = self.pipeline.get_mut(slot).expect("it is under way");
            let items = Items::trusted(&under_way.items);
            let followers = followers(&self.layout, items, &under_way.call);
            let followers = followers.union(late).without(self.layout.node);
            under_way.followers = followers;
            under_way.applied = NodeSet::EMPTY;
            if !mutant!("zeus_wait_outlives_epoch") {
                under_way.wait = wait.clone();
            }
            if !mutant!("zeus_view_without_resend") {
                self.send_slot(slot, followers, effects);
            }
        }
        self.advance(effects);
    }
}
