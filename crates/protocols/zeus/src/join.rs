//! A replica that joins: an arbiter and a follower at once, which drives nothing and serves nobody
//! before it has copied what its groups hold.
//!
//! It asks each active member in turn, which sends what it is the first active member for. What
//! changes meanwhile it gets as a follower: every transaction that is under way in its epoch is sent
//! to it. So the donor leaves those out, and the replica waits for each key until its transaction has
//! come. A new view begins the copy anew.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use quorate_machine::{Command, Effects, Record as _, Table, mutant};
use quorate_types::{Instant, NodeId, Now, Timestamp, limits};

use crate::follower::Applied;
use crate::message::{Entries, Entry, Message};
use crate::meta::{DataState, Meta, OwnerState};
use crate::ownership::Value;
use crate::state::{Key, Zeus};

/// Records that a donor looks at for one answer.
const RECORDS: usize = 512;

/// How far the copy is.
#[derive(Clone, Hash, Debug, Default)]
pub(crate) struct Joining {
    /// The donors that have sent everything, counted.
    done: usize,
    cursor: u64,
    request: u64,
    again_at: Instant,
    /// Keys whose values come with transactions that are under way.
    pub(crate) awaited: BTreeSet<Key>,
}

impl<T: Table<Meta = Meta>, X: Command<Owned = X>> Zeus<T, X> {
    /// Whether this node holds everything that active members of its groups hold.
    pub fn is_caught_up(&self) -> bool {
        let has_copied = |joining: &Joining| {
            self.donor(joining).is_none()
                && (joining.awaited.is_empty() || mutant!("zeus_joins_without_awaited"))
        };
        self.layout.is_live() && self.joining.as_ref().is_none_or(has_copied)
    }

    fn donor(&self, joining: &Joining) -> Option<NodeId> {
        self.layout.active.nth(joining.done)
    }

    /// Asks the next donor, for the first time or again.
    pub(crate) fn ask_donor(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        let Some(joining) = &self.joining else { return };
        let donor = self.donor(joining);
        let again_at = if donor.is_some() { self.repeat_at(now) } else { Instant::NEVER };
        let joining = self.joining.as_mut().expect("it copies");
        joining.again_at = again_at;
        joining.request += 1;
        if let Some(donor) = donor {
            let (request, cursor) = (joining.request, joining.cursor);
            effects.send(donor, &Message::CopyRead { request, cursor });
        }
    }

    /// A joining replica asks for records.
    pub(crate) fn on_copy_read(
        &mut self,
        from: NodeId,
        request: u64,
        cursor: u64,
        effects: &mut impl Effects<Self>,
    ) {
        if !self.layout.is_active() {
            return effects.ignored("zeus: a copy of what is not complete");
        }
        let (mut next, mut entries, mut steps) = (cursor, Entries::begin(), 0);
        while steps < RECORDS && entries.len() < limits::CHUNK_BYTES {
            let mut keys: Vec<Key> = Vec::new();
            let after = self.table.scan_keys(next, 1, &mut |key| keys.push(key.into()));
            if !self.push_entries(from, &keys, &mut entries) {
                break;
            }
            (next, steps) = (after, steps + 1);
            if next == 0 || mutant!("zeus_copy_ends_early") {
                next = 0;
                break;
            }
        }
        if steps == 0 {
            // Whether the next version is committed is being asked, and known soon.
            return effects.ignored("zeus: a copy of what may not be committed");
        }
        let list = Entries::check(&entries).expect("just written");
        let clock = self.clock;
        effects.send(from, &Message::Copy { request, next, clock, entries: list });
    }

    /// Adds those of some keys that this node is the donor of; `false`, and none, if one may not be
    /// committed.
    fn push_entries(&mut self, to: NodeId, keys: &[Key], entries: &mut Vec<u8>) -> bool {
        let mut found = Vec::new();
        for key in keys {
            let is_donor = self.layout.default_owner(key) == Some(self.layout.node);
            if is_donor && self.layout.group(key).contains(to) {
                let Some(is_under_way) = self.is_under_way(key) else { return false };
                found.push((key, is_under_way));
            }
        }
        for (key, is_under_way) in found {
            self.push_entry(key, is_under_way, entries);
        }
        true
    }

    /// Whether the joining replica gets the value of a key with a transaction: it is a follower of
    /// each that is under way in this epoch. `None` if nobody here knows.
    fn is_under_way(&mut self, key: &[u8]) -> Option<bool> {
        let meta = self.meta(key);
        match meta.data {
            DataState::Valid => Some(false),
            DataState::Write => Some(true),
            DataState::Invalid => {
                let epoch = self.layout.epoch;
                let streams = self.streams.values().flat_map(|stream| stream.applied.values());
                let wrote = |applied: &&Applied| applied.version == meta.version;
                let applied = streams.into_iter().find(wrote)?;
                let is_told = applied.heard == epoch || applied.replay.is_some();
                is_told.then_some(true)
            }
        }
    }

    fn push_entry(&mut self, key: &[u8], is_under_way: bool, entries: &mut Vec<u8>) {
        let Some(record) = self.table.lock_existing(key) else { return };
        let meta = record.meta();
        let mut packed = Vec::new();
        let content = if is_under_way { None } else { record.whole(&mut packed) };
        // A round that is under way may be complete, and its requester the owner.
        let under_way = self.rounds.get(key).map(|round| (round.requester, round.previous));
        let (requester, owner) = match under_way {
            Some((requester, previous)) => (Some(requester), previous),
            None => (None, meta.owner),
        };
        let round = meta.round;
        let version = if is_under_way { Timestamp::ZERO } else { meta.version };
        let entry = Entry { key, version, is_under_way, round, owner, requester, content };
        Entries::push(entries, &entry);
    }

    /// A donor's answer.
    pub(crate) fn on_copy(
        &mut self,
        now: Now,
        request: u64,
        next: u64,
        clock: u64,
        entries: Entries<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        self.observe(clock);
        if self.joining.as_ref().is_none_or(|joining| joining.request != request) {
            return effects.ignored("zeus: a copy that was not asked for");
        }
        for entry in entries.iter() {
            self.copy_entry(now, &entry, effects);
        }
        let joining = self.joining.as_mut().expect("it copies");
        joining.cursor = next;
        if next == 0 {
            joining.done += 1;
        }
        self.ask_donor(now, effects);
    }

    fn copy_entry(&mut self, now: Now, entry: &Entry<'_>, effects: &mut impl Effects<Self>) {
        self.counters.copied += 1;
        let mut record = self.table.lock_key(entry.key, 0);
        let mut meta = record.meta();
        if entry.is_under_way && meta.version == Timestamp::ZERO {
            meta.data = DataState::Invalid;
            if let Some(joining) = &mut self.joining {
                joining.awaited.insert(entry.key.into());
            }
        } else if entry.version > meta.version {
            match entry.content {
                Some(content) => record.set_content(Value::of(content).content()),
                None => record.clear(),
            }
            (meta.version, meta.data) = (entry.version, DataState::Valid);
        }
        record.set_meta(meta);
        drop(record);
        if entry.round <= meta.round {
            return;
        }
        match entry.requester {
            None => self.settle(now, entry.key, entry.round, entry.owner, effects),
            Some(_) if mutant!("zeus_copy_without_rounds") => {}
            Some(requester) => {
                let state = OwnerState::Invalid;
                self.begin_round(entry.key, entry.round, requester, entry.owner, state);
                self.drive(now, entry.key, effects);
            }
        }
    }

    pub(crate) fn repeat_copy(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        if self.joining.as_ref().is_some_and(|joining| joining.again_at <= now.monotonic) {
            self.ask_donor(now, effects);
        }
    }

    pub(crate) fn next_copy(&self) -> Instant {
        self.joining.as_ref().map_or(Instant::NEVER, |joining| joining.again_at)
    }
}
