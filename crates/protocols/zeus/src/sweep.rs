//! What nobody asks for: values past their time, keys that were deleted, and records of shards that
//! this node has left.
//!
//! A pass looks at a few records at a time. Another one follows as long as one has found a record that
//! it has to look at again. Such records are listed; if there are too many, a pass walks over all.
//!
//! A key without a value is *released* once it is of age: its default owner drives a round whose
//! requester is nobody, and which is settled, as one whose requester is gone, with nobody as the owner.
//! The owner agrees when it is done with the key, and gives it up; so no two nodes disagree on who owns
//! a key that some have forgotten. Then every replica forgets the key when the floor lies above its
//! version and its round (`floor.rs`).

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

use quorate_machine::{Command, Content, Effects, LaneShared, Record as _, Scan, Table, mutant};
use quorate_types::placement::shard_of;
use quorate_types::{Duration, Instant, MemberNumber, Now, Timestamp, WriterId};

use crate::fields::Requester;
use crate::join::RECORDS;
use crate::layout::Shards;
use crate::meta::{DataState, Extra, Meta, OwnerState};
use crate::state::{Key, Zeus};

/// How often the walk looks at some records.
const EVERY: Duration = Duration::from_millis(20);
/// How long it rests between passes while some value will expire.
const REST: Duration = Duration::from_secs(1);
/// Rounds under way beyond which the walk begins none: those that somebody waits for go first.
const ROUNDS_MAX: usize = 256;
/// Transactions under way beyond which the walk deletes nothing.
const SLOTS_MAX: usize = 256;

/// Who asks for a key that nobody wants: any other request is older.
pub(crate) const NOBODY: Requester = Requester {
    member: MemberNumber(0),
    sequence: 0,
    stamp: Timestamp::new(u64::MAX, WriterId(u32::MAX)),
};

/// Bytes of a list beyond which a pass walks over all records: of the keys, and so many more for each.
const LISTED_BYTES_MAX: usize = 1 << 20;
const LISTED_BYTES_EACH: usize = 64;

/// Where the pass is.
#[derive(Clone, Debug)]
pub(crate) struct Sweep {
    has_begun: bool,
    /// What a pass that has begun still looks at; `None` if it walks over all records.
    pass: Option<Listed>,
    scan: Scan,
    /// The keys without a value, and those that expire, that the next pass looks at; `None` if they are
    /// too many.
    listed: Option<Listed>,
    at: Instant,
    /// Whether there may be something to do that this pass does not see.
    is_wanted: bool,
    /// Whether it may be a value that expires.
    expires: bool,
    /// The floor that is needed to forget all keys that this pass has met and that are to be forgotten;
    /// 0 if it is high enough.
    wished: u64,
    /// What was written up to this time of the hybrid clock is of age.
    of_age: u64,
    /// What will be of age next, and since when: wall clocks leap, and the hybrid one follows them.
    marked: (u64, Instant),
    /// Shards that this node has left. Some of their records may still be here.
    pub(crate) left: Shards,
}

impl Hash for Sweep {
    /// What is listed follows from the records.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { scan, pass, at, is_wanted, expires, wished, of_age, marked, left, .. } = self;
        (scan, pass, at, is_wanted, expires).hash(state);
        (wished, of_age, marked, left).hash(state);
    }
}

/// Some keys.
#[derive(Clone, Hash, Debug, Default)]
struct Listed {
    keys: BTreeSet<Key>,
    bytes: usize,
}

impl Listed {
    /// Adds a key; `false` if there is no room.
    fn insert(&mut self, key: &[u8]) -> bool {
        let bytes = self.bytes + key.len() + LISTED_BYTES_EACH;
        if self.keys.contains(key) {
            return true;
        }
        if bytes <= LISTED_BYTES_MAX {
            self.bytes = bytes;
            self.keys.insert(key.into());
        }
        bytes <= LISTED_BYTES_MAX
    }

    /// Takes out some keys.
    fn take(&mut self, count: usize) -> Vec<Key> {
        let keys: Vec<Key> = core::iter::from_fn(|| self.keys.pop_first()).take(count).collect();
        self.bytes -= keys.iter().map(|key| key.len() + LISTED_BYTES_EACH).sum::<usize>();
        keys
    }
}

impl Default for Sweep {
    fn default() -> Self {
        Self {
            has_begun: false,
            pass: None,
            scan: Scan::default(),
            listed: Some(Listed::default()),
            at: Instant::NEVER,
            is_wanted: false,
            expires: false,
            wished: 0,
            of_age: 0,
            marked: (0, Instant::ZERO),
            left: Shards::default(),
        }
    }
}

impl Sweep {
    /// A record holds this now. If that may go one day, a pass will look.
    pub(crate) fn note(&mut self, key: &[u8], content: Option<Content<'_>>) {
        let expires = content.is_some_and(|content| content.expire_at.is_some());
        self.expires |= expires;
        if expires || content.is_none() {
            self.is_wanted = true;
            self.list(key);
        }
    }

    /// The next pass looks at a key.
    fn list(&mut self, key: &[u8]) {
        let has_room = self.listed.as_mut().is_none_or(|listed| listed.insert(key));
        if !has_room && !mutant!("zeus_full_list_forgets") {
            self.listed = None;
        }
    }

    /// Another pass follows this one, and looks at a key.
    fn look_again(&mut self, key: &[u8]) {
        self.is_wanted = true;
        self.list(key);
    }

    /// The next keys to look at, and whether they are the last of this pass.
    fn next_keys<T: Table>(&mut self, table: &T) -> (Vec<Key>, bool) {
        if !self.has_begun {
            self.has_begun = true;
            self.pass = self.listed.replace(Listed::default());
        }
        match &mut self.pass {
            Some(listed) => (listed.take(RECORDS), listed.keys.is_empty()),
            None => (self.scan.next_keys(table, RECORDS), self.scan.is_at_end()),
        }
    }

    /// From now on this pass walks over all records.
    fn walk(&mut self) {
        let rest = self.pass.take().unwrap_or_default();
        rest.keys.iter().for_each(|key| self.list(key));
        (self.has_begun, self.scan) = (true, Scan::default());
    }
}

/// What a pass does with a record.
enum Fate {
    /// Nothing, now or later.
    Keep,
    /// Nothing yet.
    ComeBack,
    Expire,
    Release,
    /// Forget it once the floor is there.
    WaitForFloor(u64),
    /// Forget it, if these are its words still.
    Forget(Meta),
}

impl<T: Table<Meta = Meta> + LaneShared, X: Command<Owned = X>> Zeus<T, X> {
    /// Begins a pass, after which nothing is there of these shards.
    pub(crate) fn sweep_shards(&mut self, now: Now, left: Shards) {
        self.sweep.left = left;
        if !left.is_empty() {
            self.sweep.walk();
            self.sweep.at = now.monotonic + EVERY;
            self.wake_at = self.wake_at.min(self.sweep.at);
        }
    }

    /// Begins a pass in a while if one is wanted and none is under way.
    pub(crate) fn plan_sweep(&mut self, now: Now) {
        if self.sweep.is_wanted && self.sweep.at == Instant::NEVER && self.layout.is_live() {
            let rest = self.config.collect_every;
            let rest = if self.sweep.expires { rest.min(REST) } else { rest };
            (self.sweep.is_wanted, self.sweep.expires) = (false, false);
            self.sweep.at = now.monotonic + rest;
            let (mark, since) = self.sweep.marked;
            if since + self.config.collect_every <= now.monotonic {
                self.sweep.of_age = mark;
                self.sweep.marked = (self.clock.max(now.unix.0), now.monotonic);
            }
            self.wake_at = self.wake_at.min(self.sweep.at);
        }
        // A pass that rests for what was deleted comes sooner for a value that expires.
        let soon = now.monotonic + REST;
        let is_late = self.sweep.at != Instant::NEVER && self.sweep.at > soon;
        if self.sweep.expires && is_late && !mutant!("zeus_expiry_waits_for_deletions") {
            self.sweep.at = soon;
            self.wake_at = self.wake_at.min(soon);
        }
    }

    /// Looks at the next records, if that is due.
    pub(crate) fn sweep(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        if self.sweep.at > now.monotonic {
            return;
        }
        self.sweep.at = now.monotonic + EVERY;
        let (keys, are_last) = self.sweep.next_keys(&self.table);
        for key in keys {
            if self.is_own(&key) {
                self.look_at(now, &key, effects);
            }
        }
        if are_last {
            (self.sweep.has_begun, self.sweep.pass) = (false, None);
            self.sweep.left = Shards::default();
            self.sweep.at = Instant::NEVER;
            let wished = core::mem::take(&mut self.sweep.wished);
            if wished > 0 {
                self.wish_for_floor(now, wished, effects);
            }
            self.plan_sweep(now);
        }
    }

    fn look_at(&mut self, now: Now, key: &[u8], effects: &mut impl Effects<Self>) {
        match self.fate(now, key) {
            Fate::Keep => {}
            Fate::ComeBack => self.sweep.look_again(key),
            Fate::Expire => {
                self.sweep.look_again(key);
                self.delete_expired(now, key, effects);
            }
            Fate::Release => {
                effects.probe("zeus: a key without a value is released");
                self.sweep.look_again(key);
                self.release(now, key, effects);
            }
            Fate::WaitForFloor(at) => {
                self.sweep.look_again(key);
                self.sweep.wished = self.sweep.wished.max(at);
            }
            Fate::Forget(seen) => {
                effects.probe("zeus: a record is forgotten");
                // Another lane may just have applied something.
                let is_same = |meta| meta == seen || mutant!("zeus_forgets_what_has_changed");
                if !self.table.remove_if(key, |record| is_same(record.meta())) {
                    self.sweep.list(key);
                } else if !self.layout.in_group(key) {
                    // What was deleted may come back from the log, and goes again.
                    self.append_gone(key, effects);
                }
            }
        }
    }

    /// Another lane has changed a key of this one.
    pub(crate) fn note_key(&mut self, key: &[u8]) {
        if let Some(record) = self.table.lock_existing(key) {
            self.sweep.note(key, record.content());
        }
    }

    fn fate(&mut self, now: Now, key: &[u8]) -> Fate {
        let Some(record) = self.table.lock_existing(key) else { return Fate::Keep };
        let meta = record.meta();
        let content = record.content();
        let (is_absent, expires) =
            (content.is_none(), content.is_some_and(|content| content.expire_at.is_some()));
        let is_expired = content.is_some_and(|content| content.is_expired(now.wall()));
        drop(record);
        let shard = shard_of(key);
        if meta.extra != Extra::None {
            return Fate::Keep;
        }
        let is_lent = self.lanes.is_lent(key) && !mutant!("zeus_walk_takes_what_is_lent");
        if self.rounds.contains_key(key) || is_lent {
            return Fate::ComeBack;
        }
        if !self.layout.keeps(shard) && !self.owns_by_name(key) {
            return Fate::Forget(meta);
        }
        if !is_absent {
            let may_delete =
                is_expired && self.rights().may_own(&meta, key) && self.pipeline.len() < SLOTS_MAX;
            self.sweep.expires |= expires;
            return match (may_delete, expires) {
                (true, _) if !mutant!("zeus_expiry_left_to_readers") => Fate::Expire,
                (_, true) => Fate::ComeBack,
                (_, false) => Fate::Keep,
            };
        }
        let is_settled = (meta.data, meta.state) == (DataState::Valid, OwnerState::Valid);
        let is_copied = self.joining.as_ref().is_none_or(|joining| joining.has_copied(key));
        // Extra readers leave when they hear that the key is deleted.
        let has_readers = self.readers.contains(key);
        if !is_settled || !self.pipeline.is_done_with(key) || !is_copied || has_readers {
            return Fate::ComeBack;
        }
        let has_owner = self.layout.node_of(meta.owner).is_some();
        if has_owner && !mutant!("zeus_forgets_without_release") {
            let is_due = meta.version.version <= self.sweep.of_age && self.may_release(key);
            return if is_due { Fate::Release } else { Fate::ComeBack };
        }
        match self.floor.is_above(&meta) || mutant!("zeus_forgets_above_floor") {
            true => Fate::Forget(meta),
            false => Fate::WaitForFloor(meta.version.version.max(meta.round.version)),
        }
    }

    /// Whether this node is the default owner of a key and may drive a round that leaves it to nobody.
    pub(crate) fn may_release(&self, key: &[u8]) -> bool {
        self.layout.is_active()
            && self.lanes.has_recovered
            && self.rounds.len() < ROUNDS_MAX
            && (!self.is_needed(key) || mutant!("zeus_releases_what_is_needed"))
            && self.layout.default_owner(key) == Some(self.layout.node)
    }

    /// Drives a round after which a key has no owner by name.
    pub(crate) fn release(&mut self, now: Now, key: &[u8], effects: &mut impl Effects<Self>) {
        let settled = self.settled(key);
        let at = self.next_round_at(settled.round);
        self.begin_round(key, at, NOBODY, settled, OwnerState::Drive);
        self.drive(now, key, effects);
    }

    /// Whether a transaction of this lane, or another lane, waits for a key. To release it would take it
    /// from an older transaction, which would have to ask for it again.
    pub(crate) fn is_needed(&self, key: &[u8]) -> bool {
        self.transactions.wait_for(key) || self.acquisitions.contains_key(key)
    }

    pub(crate) fn next_sweep(&self) -> Instant {
        self.sweep.at
    }
}
