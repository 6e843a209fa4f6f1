//! Extra copies: a node outside a key's group that forwards many reads of the key gets a copy of it, and
//! then reads it without a message.
//!
//! It makes a record that nothing may read and asks the owner (WANT), by way of the directory. The owner
//! counts it among the followers of the key from that step on, and sends what the key holds (GRANT).
//! What transactions write meanwhile is applied to the record as at any follower, so the record is never
//! older than what was acknowledged here; from the grant on it may be read.
//!
//! A copy ends when its owner says so (the key moves), in a new view, when the key is deleted, when
//! there is no room, or no memory (`relief.rs`), when it has not been read for a while, and when it is
//! written more often than read. A node may drop a copy at any moment, since what it does not have it
//! does not read, and acknowledges all the same; it tells the owner then (LEAVE), which stops to send.
//!
//! Each record says whether it is such a copy (`Meta::extra`), so every lane that applies a transaction
//! or reads knows. Everything else is the business of the key's own lane. A lane drops its copies when
//! it *stops* for a view: some lane may begin the new epoch, in which the owner need not know of the
//! copies, before another has.

use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

use quorate_machine::{
    Backoff, Command, Content, DetMap, Effects, LaneShared, Record as _, Table, mutant,
};
use quorate_types::{Duration, Instant, NodeId, Now, Timestamp, hash_key, lane_of_key, limits};

use crate::extras::{ExtraMessage, ExtraStep};
use crate::lanes::Letter;
use crate::message::Message;
use crate::meta::{DataState, Extra, Meta};
use crate::state::{Key, Zeus};

/// How often copies are looked at, and counts of forwarded reads are halved.
const EVERY: Duration = Duration::from_secs(1);
/// A copy that was not read during so many of these spans ends.
const IDLE_MAX: u32 = 10;
/// A copy with fewer new versions than this stays, however seldom it is read.
const UPDATES_MIN: u32 = 8;
/// Extra copies of a lane.
const COPIES_MAX: usize = 4096;
/// Bytes of keys and values of all extra copies of a lane.
const BYTES_MAX: usize = 32 << 20;
/// Bytes of the largest value that is copied to extra readers.
pub(crate) const VALUE_BYTES_MAX: usize = limits::CHUNK_BYTES;
/// How often a node asks for a copy before it gives up: until it forwards many reads again.
const TRIES_MAX: u32 = 4;
/// Keys of other lanes whose reads a lane counts before it tells them.
const USED_MAX: usize = 1024;
/// Sets of counters of forwarded reads, and counters in each.
const SETS: usize = 256;
const WAYS: usize = 4;

/// How often the reads of keys without a copy here were forwarded: of a bounded number of keys. A new one
/// takes the place of the least counted of its set.
#[derive(Clone, Debug, Default)]
struct Forwards {
    counts: Vec<[(u64, u32); WAYS]>,
    halved_at: Instant,
}

impl Forwards {
    /// Counts a read of a key with this hash; how many there were.
    fn count(&mut self, hash: u64, now: Instant) -> u32 {
        if self.counts.is_empty() {
            self.counts.resize(SETS, Default::default());
            self.halved_at = now;
        }
        let spans = now.0.saturating_sub(self.halved_at.0) / EVERY.as_nanos() as u64;
        if spans > 0 {
            let halvings = u32::try_from(spans).unwrap_or(u32::MAX).min(31);
            let all = self.counts.iter_mut().flatten();
            all.for_each(|(_, count)| *count >>= halvings);
            self.halved_at = now;
        }
        let set = &mut self.counts[hash as usize % SETS];
        let at = match set.iter().position(|(known, count)| *known == hash && *count > 0) {
            Some(at) => at,
            None => {
                let least = (0..WAYS).min_by_key(|at| set[*at].1).expect("a set has counters");
                set[least] = (hash, 0);
                least
            }
        };
        set[at].1 += 1;
        set[at].1
    }

    fn forget(&mut self, hash: u64) {
        if let Some(set) = self.counts.get_mut(hash as usize % SETS) {
            set.iter_mut().filter(|(known, _)| *known == hash).for_each(|(_, count)| *count = 0);
        }
    }
}

/// How far a copy is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Stage {
    /// It was asked for, so often.
    Wanted { tries: u32 },
    /// This owner has granted it.
    Kept { owner: NodeId },
    /// It is dropped, and the owner has yet to say that it knows.
    Leaving { owner: NodeId },
}

/// An extra copy of a key of this lane.
#[derive(Clone, Hash, Debug)]
struct Copy {
    number: u64,
    stage: Stage,
    /// The version that was seen last, and the bytes of key and value.
    version: Timestamp,
    bytes: usize,
    /// Reads and new versions; the counts are halved each time that copies are looked at.
    uses: u32,
    updates: u32,
    /// Whether it was read since then, and how often it was found unread.
    is_used: bool,
    idle: u32,
}

/// The extra copies of a lane.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExtraCopies {
    copies: DetMap<Key, Copy>,
    /// What was sent and is not answered.
    waits: DetMap<Key, Backoff>,
    /// Requests so far.
    requests: u64,
    bytes: usize,
    forwards: Forwards,
    /// Whose read was counted last, and when.
    counted: (Instant, u64),
    /// Keys whose reads are forwarded often enough, and of which no copy was asked for yet.
    wished: Vec<Key>,
    /// Reads of keys of other lanes that are no member's.
    used: DetMap<Key, u32>,
    /// When copies are looked at next.
    look_at: Instant,
}

impl Hash for ExtraCopies {
    /// Counts decide only when a copy begins and ends.
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.copies, &self.waits, self.requests, &self.wished).hash(state);
    }
}

impl ExtraCopies {
    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        self.copies.contains_key(key)
    }

    /// Whether a read of this origin is to be counted: a node may ask twice at one moment where it should run.
    pub(crate) fn begins_count(&mut self, now: Now, origin: u64) -> bool {
        let read = (now.monotonic, origin);
        core::mem::replace(&mut self.counted, read) != read
    }

    /// Copies of this lane, asked for or there.
    pub(crate) fn len(&self) -> usize {
        self.copies.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether nothing is asked for or told that is not answered.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.waits.is_empty() && self.wished.is_empty()
    }

    pub(crate) fn next_deadline(&self) -> Instant {
        let waits = self.waits.least(Backoff::deadline).unwrap_or(Instant::NEVER);
        let is_any = !self.copies.is_empty() || !self.used.is_empty();
        waits.min(if is_any { self.look_at } else { Instant::NEVER })
    }

    /// Those that are read least, which go first; so many at most.
    pub(crate) fn least_used(&self, count: usize) -> Vec<Key> {
        let kept = |copy: &Copy| matches!(copy.stage, Stage::Kept { .. });
        let entries = self.copies.sorted().into_iter().filter(|(_, copy)| kept(copy));
        let mut entries: Vec<_> = entries.collect();
        entries.sort_by_key(|(_, copy)| (copy.uses, u32::MAX - copy.idle));
        entries.into_iter().take(count).map(|(key, _)| key.clone()).collect()
    }
}

impl<T: Table<Meta = Meta> + LaneShared, X: Command<Owned = X>> Zeus<T, X> {
    // --- who asks --------------------------------------------------------------------------------

    /// A read of a key without a copy here is answered by another node.
    pub(crate) fn count_forward(&mut self, now: Now, key: &[u8]) {
        if self.config.extra_readers == 0 {
            return;
        }
        let hash = hash_key(key);
        if self.copies.forwards.count(hash, now.monotonic) >= self.config.extra_after {
            self.copies.forwards.forget(hash);
            self.copies.wished.push(key.into());
            self.wake_at = self.wake_at.min(now.monotonic);
        }
    }

    /// A read of a key outside its group is answered here.
    pub(crate) fn count_use(&mut self, now: Now, key: &[u8]) {
        if !self.is_own(key) {
            if self.copies.used.is_empty() {
                self.copies.look_at = now.monotonic + EVERY;
                self.wake_at = self.wake_at.min(self.copies.look_at);
            }
            if self.copies.used.contains_key(key) || self.copies.used.len() < USED_MAX {
                *self.copies.used.get_or_insert_with(key.into(), || 0).0 += 1;
            }
        } else if let Some(copy) = self.copies.copies.get_mut(key) {
            copy.uses = copy.uses.saturating_add(1);
            copy.is_used = true;
        }
    }

    /// Asks for the copies that were wished for since the last time.
    pub(crate) fn want_wished(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        for key in core::mem::take(&mut self.copies.wished) {
            if self.is_own(&key) {
                self.want_copy(now, &key, effects);
            } else {
                let lane = lane_of_key(&key, self.config.lanes);
                self.write_to(lane, Letter::WantCopy { key }, effects);
            }
        }
    }

    /// Asks for a copy of a key of this lane, unless the node has one, or is about to get the key.
    pub(crate) fn want_copy(&mut self, now: Now, key: &[u8], effects: &mut impl Effects<Self>) {
        let is_asked = self.copies.contains(key) || self.acquisitions.contains_key(key);
        // A former owner may have yet to drop what it had.
        let is_here = self.rounds.contains_key(key) || self.table.find(key).is_some();
        let is_any = !self.layout.directory(key).is_empty();
        let may_ask = self.layout.is_active() && !self.layout.in_group(key) && is_any;
        if is_asked || is_here || !may_ask || !self.relief.has_room(now) {
            return;
        }
        if self.copies.len() >= COPIES_MAX {
            // There is room when the owner of the copy that goes has heard of it.
            self.make_room(now, effects);
            return;
        }
        effects.probe("zeus: a reader asks for a copy");
        let meta = Meta { extra: Extra::Wanted, data: DataState::Invalid, ..Meta::default() };
        self.table.lock_key_unsized(key).set_meta(meta);
        self.copies.requests += 1;
        let number = self.copies.requests;
        let (stage, bytes) = (Stage::Wanted { tries: 0 }, key.len());
        let version = Timestamp::ZERO;
        let (uses, updates, is_used, idle) = (0, 0, false, 0);
        let copy = Copy { number, stage, version, bytes, uses, updates, is_used, idle };
        if self.copies.copies.is_empty() && self.copies.used.is_empty() {
            self.copies.look_at = now.monotonic + EVERY;
            self.wake_at = self.wake_at.min(self.copies.look_at);
        }
        self.copies.bytes += bytes;
        self.copies.copies.insert(key.into(), copy);
        let wait = self.wait(now);
        self.copies.waits.insert(key.into(), wait);
        self.ask_owner(key, effects);
    }

    /// Asks the owner for a copy, by way of the directory; a member of it in turn.
    fn ask_owner(&mut self, key: &[u8], effects: &mut impl Effects<Self>) {
        let Some(copy) = self.copies.copies.get(key) else { return };
        let Stage::Wanted { tries } = copy.stage else { return };
        let directory = self.layout.directory(key);
        let turn = (copy.number as usize).wrapping_add(tries as usize) % directory.len().max(1);
        let Some(member) = directory.get(turn).copied() else { return };
        let step = ExtraStep::Want { reader: self.layout.node };
        let want = ExtraMessage { key, number: copy.number, step };
        effects.send(member, &Message::Extra(want));
    }

    // --- the end ---------------------------------------------------------------------------------

    /// Removes a copy from the records. A former owner that is asked late about a round keeps the words of
    /// the round until it hears how it has ended.
    pub(crate) fn remove_copy(&mut self, key: &[u8]) {
        let is_copy = |meta: Meta| meta.extra != Extra::None;
        if !self.rounds.contains_key(key) || mutant!("zeus_copy_takes_its_round_along") {
            self.table.remove_if(key, |record| is_copy(record.meta()));
        } else if let Some(mut record) = self.table.lock_existing(key)
            && is_copy(record.meta())
        {
            let Meta { round, owner, state, .. } = record.meta();
            record.clear();
            record.set_meta(Meta { round, owner, state, ..Meta::default() });
        }
    }

    /// Forgets a copy, and that it was asked for.
    fn close_copy(&mut self, key: &[u8]) {
        self.remove_copy(key);
        self.copies.waits.remove(key);
        if let Some(copy) = self.copies.copies.remove(key) {
            self.copies.bytes -= copy.bytes;
            self.counters.copies_ended += u64::from(!matches!(copy.stage, Stage::Wanted { .. }));
        }
        // Who waits for its version to be committed has to ask another node.
        self.changed.insert(key.into());
    }

    /// Drops a copy, and tells its owner.
    pub(crate) fn leave_copy(&mut self, now: Now, key: &[u8], effects: &mut impl Effects<Self>) {
        let Some(copy) = self.copies.copies.get_mut(key) else { return };
        let Stage::Kept { owner } = copy.stage else {
            if matches!(copy.stage, Stage::Wanted { .. }) {
                // If it is granted after all, the owner hears that it is gone.
                self.close_copy(key);
            }
            return;
        };
        effects.probe("zeus: a reader drops its copy");
        copy.stage = Stage::Leaving { owner };
        let number = copy.number;
        self.copies.bytes -= core::mem::take(&mut copy.bytes);
        self.remove_copy(key);
        self.changed.insert(key.into());
        let wait = self.wait(now);
        self.copies.waits.insert(key.into(), wait);
        self.say_extra(owner, key, number, ExtraStep::Leave, effects);
    }

    /// Drops every copy: the lane stops for a view, or a life ends.
    pub(crate) fn drop_copies(&mut self) {
        for key in self.copies.copies.keys_that(|_, _| !mutant!("zeus_copies_outlive_epoch")) {
            self.remove_copy(&key);
        }
        self.copies.waits.clear();
        self.copies.copies.clear();
        self.copies.used.clear();
        self.copies.wished.clear();
        self.copies.bytes = 0;
    }

    /// Drops the copy that is read least; whether there was one.
    fn make_room(&mut self, now: Now, effects: &mut impl Effects<Self>) -> bool {
        let Some(least) = self.copies.least_used(1).pop() else { return false };
        effects.probe("zeus: a copy makes room for another");
        self.leave_copy(now, &least, effects);
        true
    }

    fn say_extra(
        &self,
        to: NodeId,
        key: &[u8],
        number: u64,
        step: ExtraStep<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        effects.send(to, &Message::Extra(ExtraMessage { key, number, step }));
    }

    /// A key of which there may be a copy has changed: it may have been deleted, or be too large now.
    pub(crate) fn check_copy(&mut self, now: Now, key: &[u8], effects: &mut impl Effects<Self>) {
        let Some(copy) = self.copies.copies.get_mut(key) else { return };
        if matches!(copy.stage, Stage::Leaving { .. }) {
            return;
        }
        let record = self.table.lock_existing(key);
        let found = record.filter(|record| record.meta().extra != Extra::None).map(|record| {
            let content = record.content().map_or(0, |content| content.bytes.len());
            let large = record.large().map_or(0, |large| large.packed_len());
            (record.meta().version, key.len() + content.max(large))
        });
        let Some((version, bytes)) = found else {
            return self.leave_copy(now, key, effects);
        };
        if version != copy.version {
            copy.version = version;
            copy.updates = copy.updates.saturating_add(1);
        }
        self.copies.bytes = self.copies.bytes - copy.bytes + bytes;
        copy.bytes = bytes;
        if bytes > key.len() + VALUE_BYTES_MAX {
            self.leave_copy(now, key, effects);
        }
        while self.copies.bytes > BYTES_MAX && self.make_room(now, effects) {}
    }

    // --- what the owner says ---------------------------------------------------------------------

    pub(crate) fn on_extra(
        &mut self,
        now: Now,
        from: NodeId,
        message: ExtraMessage<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        let ExtraMessage { key, number, step } = message;
        match step {
            ExtraStep::Grant { version, owner, moves, content } => {
                self.observe(version.version);
                let meta = Meta { version, owner, moves, ..Meta::default() };
                self.on_grant(from, key, number, meta, content, effects);
                self.check_copy(now, key, effects);
            }
            ExtraStep::Withdraw => {
                if self.copies.copies.get(key).is_some_and(|copy| copy.number <= number) {
                    effects.probe("zeus: a copy is withdrawn");
                    self.close_copy(key);
                }
                self.say_extra(from, key, number, ExtraStep::Gone, effects);
            }
            ExtraStep::Want { reader } => self.on_want(now, from, key, number, reader, effects),
            ExtraStep::Keep => self.on_keep(from, key, number, effects),
            ExtraStep::Leave => {
                self.on_gone(from, key, number, effects);
                self.say_extra(from, key, number, ExtraStep::Withdraw, effects);
            }
            ExtraStep::Gone => self.on_gone(from, key, number, effects),
        }
    }

    /// The owner sends a copy; from that step on this node is a follower of the key. What transactions have
    /// written since is in the record already.
    fn on_grant(
        &mut self,
        from: NodeId,
        key: &[u8],
        number: u64,
        granted: Meta,
        content: Content<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        let known = self.copies.copies.get_mut(key);
        let is_it = |copy: &&mut Copy| copy.number == number || mutant!("zeus_grant_of_any_number");
        let Some(copy) = known.filter(is_it) else {
            return self.say_extra(from, key, number, ExtraStep::Gone, effects);
        };
        match copy.stage {
            Stage::Kept { .. } => {
                return self.say_extra(from, key, number, ExtraStep::Keep, effects);
            }
            Stage::Leaving { .. } => {
                return self.say_extra(from, key, number, ExtraStep::Gone, effects);
            }
            Stage::Wanted { .. } => {}
        }
        if mutant!("zeus_grant_revives_deleted") && self.table.find(key).is_none() {
            let wanted = Meta { extra: Extra::Wanted, ..Meta::default() };
            self.table.lock_key(key, 0).set_meta(wanted);
        }
        // A transaction that deletes the key has come first, and taken the record away.
        let record = self.table.lock_existing(key);
        let Some(mut record) = record.filter(|record| record.meta().extra == Extra::Wanted) else {
            self.close_copy(key);
            return self.say_extra(from, key, number, ExtraStep::Gone, effects);
        };
        let mut meta = record.meta();
        if meta.version < granted.version || mutant!("zeus_grant_overwrites_newer") {
            record.set_content(content);
            meta.version = granted.version;
        }
        if meta.version == granted.version {
            meta.data = DataState::Valid;
        }
        let (owner, moves) = (granted.owner, granted.moves);
        record.set_meta(Meta { extra: Extra::Kept, owner, moves, ..meta });
        self.sweep.note(key, record.content());
        drop(record);
        effects.probe("zeus: a reader gets a copy");
        copy.stage = Stage::Kept { owner: from };
        copy.version = granted.version;
        self.copies.waits.remove(key);
        self.counters.copies_begun += 1;
        self.changed.insert(key.into());
        self.say_extra(from, key, number, ExtraStep::Keep, effects);
    }

    // --- time ------------------------------------------------------------------------------------

    /// Asks again, tells again, and ends copies that are not worth what they cost.
    pub(crate) fn repeat_copies(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        self.want_wished(now, effects);
        for key in self.copies.waits.keys_that(|_, wait| wait.deadline() <= now.monotonic) {
            let Some(copy) = self.copies.copies.get_mut(&key) else { continue };
            let number = copy.number;
            let wait = self.copies.waits.get_mut(&key).expect("it was found");
            self.config.wait_longer(wait, now);
            match &mut copy.stage {
                Stage::Wanted { tries } if *tries >= TRIES_MAX => self.close_copy(&key),
                Stage::Wanted { tries } => {
                    *tries += 1;
                    self.ask_owner(&key, effects);
                }
                &mut Stage::Leaving { owner } => {
                    self.say_extra(owner, &key, number, ExtraStep::Leave, effects);
                }
                Stage::Kept { .. } => {}
            }
        }
        let is_any = !self.copies.copies.is_empty() || !self.copies.used.is_empty();
        if is_any && self.copies.look_at <= now.monotonic {
            self.copies.look_at = now.monotonic + EVERY;
            self.look_at_copies(now, effects);
        }
    }

    fn look_at_copies(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        let used = core::mem::take(&mut self.copies.used);
        for (key, uses) in used.sorted() {
            let lane = lane_of_key(key, self.config.lanes);
            self.write_to(lane, Letter::Used { key: key.clone(), uses: *uses }, effects);
        }
        let mut ended = Vec::new();
        for key in self.copies.copies.keys_that(|_, copy| matches!(copy.stage, Stage::Kept { .. }))
        {
            let copy = self.copies.copies.get_mut(&key).expect("it was found");
            copy.idle = if core::mem::take(&mut copy.is_used) { 0 } else { copy.idle + 1 };
            // A version costs two messages, a read elsewhere two hops.
            let costs_more = copy.updates > copy.uses && copy.updates >= UPDATES_MIN;
            (copy.uses, copy.updates) = (copy.uses / 2, copy.updates / 2);
            if copy.idle >= IDLE_MAX || costs_more {
                ended.push(key);
            }
        }
        for key in ended {
            effects.probe("zeus: a copy is not read any more");
            self.leave_copy(now, &key, effects);
        }
    }

    /// Another lane has read a key so often.
    pub(crate) fn on_used(&mut self, key: &[u8], uses: u32) {
        if let Some(copy) = self.copies.copies.get_mut(key) {
            copy.uses = copy.uses.saturating_add(uses);
            copy.is_used = true;
        }
    }
}
