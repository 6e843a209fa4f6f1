//! A replica that learns shards: as a shadow everything that falls to it, as an active member what a
//! change of the voters has moved to it. It is an arbiter and a follower at once, and drives nothing
//! and serves nobody before it has copied what the group holds.
//!
//! It asks the donor of each shard, the first active member of its group, for all of that donor's
//! shards together. What changes meanwhile it gets as a follower: every transaction that is under way
//! in its epoch is sent to it. So the donor leaves those out, and the replica waits for each key until
//! its transaction has come.
//!
//! Where something is left of an earlier life, the replica compares it with the donor's and copies what differs
//! (`difference.rs`).
//!
//! A new view costs nothing that was copied, as long as this node keeps the shard: it has followed all
//! that has happened since. What is being copied goes on if its donor still has it, and another donor
//! begins anew otherwise. Keys whose transactions it waits for it asks for by name, after a while: a
//! transaction that nobody has applied is gone, and the key has another version.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use quorate_machine::{Backoff, Command, Effects, LaneShared, Record as _, Scan, Table, mutant};
use quorate_types::placement::{SHARDS, shard_of};
use quorate_types::{Instant, NodeId, Now, Timestamp, limits};

use crate::called::{CallMessage, CallsCursor, Parts};
use crate::difference::Difference;
use crate::fields::{Entries, Entry, Settled};
use crate::follower::Applied;
use crate::layout::{Layout, Shards};
use crate::message::Message;
use crate::meta::{DataState, Meta, OwnerState};
use crate::ownership::Value;
use crate::state::{Key, Zeus};

/// Records that a donor looks at for one answer, and a walk at once.
pub(crate) const RECORDS: usize = 512;
/// How often the wait for an answer doubles at most.
const DOUBLINGS_MAX: u32 = 5;
/// Keys that are asked for by name at once.
const NAMED: usize = 64;

/// How far the copy is.
#[derive(Clone, Hash, Debug, Default)]
pub(crate) struct Joining {
    /// Shards that are not copied.
    lacking: Shards,
    /// Members that this node has yet to hear, of shards of which nobody else has all (`revival.rs`): of all
    /// that they have, or of the keys that they own.
    unheard: BTreeMap<(bool, NodeId), Shards>,
    question: Option<Question>,
    /// The number of the question, in this life. It is the same when the question is put again: on a
    /// slow link the answer to the first time is the first to come.
    request: u64,
    backoff: Backoff,
    /// How far it has come with the donor, if it compares what is left of an earlier life.
    pub(crate) difference: Option<Difference>,
    /// Keys whose values come with transactions that are under way, and the versions of these.
    pub(crate) awaited: BTreeMap<Key, Timestamp>,
    /// The floors of those that a revived node has heard. It takes them over when it has heard all: a key that
    /// it lacks is not older than what another one tells of it only because a third has a higher floor.
    floors: [u64; 2],
    /// Whether the log has the floors that are in force once everything has come.
    keeps_floors: bool,
}

/// What a donor is asked for.
#[derive(Clone, Copy, Hash, Debug)]
struct Question {
    donor: NodeId,
    shards: Shards,
    /// Whether it is asked only for the keys that it owns.
    owned: bool,
    cursor: u64,
    /// Where to go on among its calls, once all records are here.
    calls: Option<CallsCursor>,
}

impl Joining {
    /// Whether this node has been asked this question.
    fn asks(&self, node: NodeId, request: u64) -> bool {
        let is_donor = |question: Question| question.donor == node;
        self.request == request
            && self.question.is_some_and(|it| is_donor(it) || mutant!("zeus_copy_of_anybody"))
    }

    /// Whether this node has been asked this question, which is one of a comparison.
    pub(crate) fn compares(&self, node: NodeId, request: u64) -> bool {
        self.asks(node, request) && self.difference.is_some()
    }

    /// The shards that a donor is asked for.
    pub(crate) fn shards_asked(&self) -> Option<Shards> {
        self.question.map(|question| question.shards)
    }

    /// The next question has this name.
    pub(crate) fn rename(&mut self, request: u64) {
        self.request = request;
    }

    /// A donor has answered, and is asked for more under this name: for its calls, once all records are here.
    pub(crate) fn go_on(&mut self, now: Now, request: u64) {
        self.rename(request);
        self.backoff.ease(now);
        if let Some(question) = self.question.as_mut().filter(|_| self.difference.is_none()) {
            question.calls = Some(CallsCursor::begin(0));
        }
    }

    /// Whether everything has come.
    pub(crate) fn is_complete(&self) -> bool {
        self.lacking.is_empty()
            && self.unheard.is_empty()
            && (self.awaited.is_empty() || mutant!("zeus_joins_without_awaited"))
    }

    /// Whether everything has come, and the log has the floors that are in force then.
    fn is_at_end(&self) -> bool {
        self.is_complete() && self.keeps_floors
    }

    /// Whether a revived node has heard the others, and has what they have.
    pub(crate) fn has_heard(&self, layout: &Layout) -> bool {
        let is_heard = |key: &Key| !layout.has_all(shard_of(key));
        self.unheard.is_empty() && self.awaited.keys().all(is_heard)
    }

    /// Whether all that are asked because nobody else has all of it have answered.
    pub(crate) fn has_heard_all(&self) -> bool {
        self.unheard.is_empty()
    }

    /// Whether some member that is asked because nobody else has all of a shard has not answered yet.
    pub(crate) fn is_unheard(&self, shard: usize) -> bool {
        self.unheard.values().any(|shards| shards.contains(shard))
    }

    /// Whether a key has come, if there is one.
    pub(crate) fn has_copied(&self, key: &[u8]) -> bool {
        !self.lacking.contains(shard_of(key)) && !self.awaited.contains_key(key)
    }
}

impl<T: Table<Meta = Meta> + LaneShared, X: Command<Owned = X>> Zeus<T, X> {
    /// Whether this node holds all that its groups hold, and those that it is about to be in. An active
    /// one also sees to it that no group would lose its last active member if data were placed as it
    /// should be.
    pub fn is_caught_up(&self) -> bool {
        self.layout.is_live()
            && !self.lanes.is_stopped()
            && (self.layout.may_place || !self.layout.is_active())
            && self.joining.as_ref().is_none_or(Joining::is_at_end)
            && self.log.has_copied()
    }

    /// Appends the floors when everything has come: a log that is cut short before that has none, and one
    /// that isn't must have them before anybody relies on this node.
    pub(crate) fn keep_floors(&mut self, effects: &mut impl Effects<Self>) {
        let Some(joining) = &mut self.joining else { return };
        if joining.keeps_floors || !joining.is_complete() {
            return;
        }
        joining.keeps_floors = true;
        if !mutant!("zeus_floors_of_a_copy_not_appended") {
            self.append_floors(effects);
            self.log.note_copied();
        }
    }

    // --- what there is to copy -------------------------------------------------------------------

    /// Decides what is to be copied in a new view. What was copied stays if this node has followed the
    /// shard since: in each epoch; or in the views that it has missed, if it is of the shard's group,
    /// which nobody joins without having said that he has what he needs.
    pub(crate) fn begin_copy(
        &mut self,
        now: Now,
        before: &Layout,
        effects: &mut impl Effects<Self>,
    ) {
        let layout = self.layout.clone();
        let is_next = layout.epoch.0 == before.epoch.0 + 1;
        let stays = Shards::that(|shard| {
            let is_followed = is_next || layout.is_placed(shard);
            before.keeps(shard) && layout.keeps(shard) && is_followed || self.has_restored(shard)
        });
        let Joining { lacking, question, request, difference, awaited, floors, .. } =
            self.joining.take().unwrap_or_default();
        let serves = |shard| layout.is_active() && layout.is_placed(shard);
        let has_joined = |shard| stays.contains(shard) && !lacking.contains(shard);
        assert!(
            !before.is_live() || (0..SHARDS).all(|shard| !serves(shard) || has_joined(shard)),
            "a member of a group has what the group has"
        );
        // The value that an heir waits for may be lost by now; another member may have an earlier one.
        let waits =
            |shard| layout.inherits(shard) && awaited.keys().any(|key| shard_of(key) == shard);
        let has_others = !layout.live.without(layout.node).is_empty();
        let hears =
            |shard| has_others && layout.inherits(shard) && !mutant!("zeus_heirs_hear_nobody");
        let is_lacking = |shard| {
            let has_all = has_joined(shard) && !waits(shard);
            (layout.copies(shard) || hears(shard))
                && (!has_all || mutant!("zeus_view_forgets_copies"))
        };
        let lacking = Shards::that(is_lacking);
        // In each view it asks all members anew: one of them may have heard another one that is gone.
        let unheard = layout.unheard(&lacking);
        if lacking.iter().any(hears) {
            effects.probe("zeus: begins a shard anew");
        }
        let question = question.filter(|_| unheard.is_empty()).filter(|question| {
            let goes_on =
                |shard: usize| stays.contains(shard) && layout.donor(shard) == Some(question.donor);
            question.shards.iter().all(|shard| lacking.contains(shard) && goes_on(shard))
        });
        let backoff = Backoff::default();
        let difference = difference.filter(|_| question.is_some());
        let mut joining = Joining {
            lacking,
            unheard,
            question,
            request,
            backoff,
            difference,
            awaited,
            floors,
            keeps_floors: false,
        };
        let goes_on =
            |shard| stays.contains(shard) && !layout.has_all(shard) && !layout.inherits(shard);
        joining.awaited.retain(|key, _| goes_on(shard_of(key)));
        let learns = !layout.is_active() || (0..SHARDS).any(|shard| layout.learns(shard));
        self.joining = learns.then_some(joining);
        self.drop_former();
        self.leave_shards(now, before, &stays, effects);
        self.place_calls(&stays, &lacking);
        self.ask_donor(now, effects);
    }

    /// Drops what is left of earlier lives, once nothing is to be compared with it.
    fn drop_former(&mut self) {
        if self.joining.as_ref().is_none_or(|joining| joining.lacking.is_empty()) {
            self.former = None;
        }
    }

    /// Sees to what is left of shards that this node has left, be it in this view or before: a sweep
    /// drops it in time, and it is dropped now if the node has come back to them.
    fn leave_shards(
        &mut self,
        now: Now,
        before: &Layout,
        stays: &Shards,
        effects: &mut impl Effects<Self>,
    ) {
        let layout = self.layout.clone();
        let left = self.sweep.left;
        let has_left =
            |shard| left.contains(shard) || before.keeps(shard) && !stays.contains(shard);
        let returns =
            Shards::that(|shard| has_left(shard) && layout.keeps(shard) && !stays.contains(shard));
        if !returns.is_empty() && !mutant!("zeus_leftovers_kept") {
            effects.probe("zeus: a node comes back to a shard that it has left");
            self.drop_shards(&returns, effects);
        }
        let left = Shards::that(|shard| has_left(shard) && !layout.keeps(shard));
        self.sweep_shards(now, left);
    }

    /// Drops all records of some shards, but for those of keys that this node owns.
    fn drop_shards(&mut self, shards: &Shards, effects: &mut impl Effects<Self>) {
        let mut scan = Scan::default();
        loop {
            for key in scan.next_keys(&self.table, RECORDS) {
                let is_dropped = shards.contains(shard_of(&key)) && self.is_own(&key);
                if is_dropped && !self.owns_by_name(&key) {
                    self.rounds.remove(&key);
                    self.drop_record(&key, effects);
                }
            }
            if scan.is_at_end() {
                return;
            }
        }
    }

    // --- the replica -----------------------------------------------------------------------------

    /// Asks the next donor, for the first time or again.
    pub(crate) fn ask_donor(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        let layout = self.layout.clone();
        let Some(joining) = &mut self.joining else { return };
        if mutant!("zeus_copy_forgets_its_question") {
            joining.request += 1;
        }
        if joining.question.is_none() {
            joining.request += 1;
            let lacking = joining.lacking;
            let donor = lacking.iter().find_map(|shard| layout.donor(shard));
            let learnt = || {
                let donor = donor?;
                let of_donor = |shard| layout.donor(shard) == Some(donor);
                Some((donor, Shards::that(|shard| lacking.contains(shard) && of_donor(shard))))
            };
            // Revived members come first: as long as they wait for each other they give learners nothing.
            let unheard = joining.unheard.first_key_value();
            let unheard = unheard.map(|((owned, node), shards)| (*node, *shards, *owned));
            let asked = unheard.or_else(|| learnt().map(|(donor, shards)| (donor, shards, false)));
            joining.question = asked.map(|(donor, shards, owned)| Question {
                donor,
                shards,
                owned,
                cursor: 0,
                calls: None,
            });
            // Others may not have all that there is.
            let is_unheard = unheard.is_some();
            joining.difference = None;
            if joining.question.is_some() && !is_unheard {
                let difference = self.begin_difference();
                let request = self.rng.next_u64().max(1);
                let joining = self.joining.as_mut().expect("it copies");
                if difference.is_some() {
                    (joining.difference, joining.request) = (difference, request);
                }
            }
        }
        let Some(joining) = &mut self.joining else { return };
        joining.backoff.begin(now, self.config.message_loss_timeout);
        match &joining.question {
            Some(Question { donor, shards, owned, cursor, calls }) => {
                let (request, cursor, shards, owned) = (joining.request, *cursor, *shards, *owned);
                let (donor, calls) = (*donor, *calls);
                if let Some(difference) = joining.difference.take() {
                    self.ask_difference(donor, request, shards, &difference, effects);
                    self.put_difference(difference);
                } else {
                    let message = match calls {
                        Some(from) => Message::Call(CallMessage::Read { request, from, shards }),
                        None => Message::CopyRead { request, cursor, shards, owned },
                    };
                    effects.send(donor, &message);
                }
            }
            None if joining.awaited.is_empty() => joining.backoff = Backoff::AT_REST,
            None => {}
        }
        self.wake_at = self.wake_at.min(self.next_copy());
    }

    /// Why a copy is ignored, if it is: it was not asked for, or somebody else was asked.
    pub(crate) fn ignore_copy(
        &self,
        from: NodeId,
        request: u64,
        entries: Entries<'_>,
    ) -> Option<&'static str> {
        let joining = self.joining.as_ref();
        let is_of_donor =
            |key| self.layout.copies_from(from, shard_of(key)) || mutant!("zeus_copy_of_anybody");
        let is_asked = match request {
            0 => joining.is_some() && entries.iter().all(|entry| is_of_donor(entry.key)),
            _ => joining.is_some_and(|joining| joining.asks(from, request)),
        };
        (!is_asked).then_some("zeus: a copy that was not asked for, or not there")
    }

    /// A donor's answer.
    pub(crate) fn on_copy(
        &mut self,
        now: Now,
        request: u64,
        next: u64,
        entries: Entries<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        let Some(joining) = &self.joining else {
            return effects.ignored("zeus: a copy that was not asked for");
        };
        let is_named = request == 0;
        let compares = joining.difference.is_some();
        let expects = |question: &Question| question.calls.is_none() && !compares;
        let is_expected =
            joining.request == request && joining.question.is_some_and(|q| expects(&q));
        if !is_named && !is_expected {
            return effects.ignored("zeus: a copy that was not asked for");
        }
        self.counters.copied += entries.iter().len() as u64;
        for entry in entries.iter() {
            self.copy_entry(now, &entry, effects);
        }
        let Some(joining) = self.joining.as_mut().filter(|_| !is_named) else { return };
        let question = joining.question.as_mut().expect("it was asked");
        question.cursor = next;
        joining.request += 1;
        joining.backoff.ease(now);
        if next == 0 {
            question.calls = Some(CallsCursor::begin(0));
            if question.owned || mutant!("zeus_calls_not_copied") {
                self.end_question();
            }
        }
        self.ask_donor(now, effects);
    }

    /// Takes over the floors of a donor, if this node knows by now which keys it lacks.
    pub(crate) fn take_floors(&mut self, floors: [u64; 2]) {
        let waits = self.layout.revived && !mutant!("zeus_doubtful_keys_at_anothers_floor");
        match self.joining.as_mut().filter(|joining| waits && !joining.has_heard_all()) {
            Some(joining) => {
                for (known, told) in joining.floors.iter_mut().zip(floors) {
                    *known = told.max(*known);
                }
            }
            None => self.adopt_floors(floors),
        }
    }

    /// All that a donor was asked for is here.
    fn end_question(&mut self) {
        let Some(joining) = &mut self.joining else { return };
        let Some(question) = joining.question.take() else { return };
        let Question { donor, shards, owned, .. } = question;
        if joining.unheard.get(&(owned, donor)) == Some(&shards) {
            joining.unheard.remove(&(owned, donor));
        }
        if joining.has_heard_all() {
            let floors = joining.floors;
            self.adopt_floors(floors);
        }
        let Some(joining) = &mut self.joining else { return };
        let lacking = joining.lacking;
        let copied = Shards::that(|shard| shards.contains(shard) && !joining.is_unheard(shard));
        joining.lacking = Shards::that(|shard| lacking.contains(shard) && !copied.contains(shard));
        self.drop_former();
        self.end_copy_of_calls(&copied);
    }

    /// Calls of a donor. What is under way meanwhile brings its own.
    pub(crate) fn on_calls(
        &mut self,
        now: Now,
        from: NodeId,
        request: u64,
        next: Option<CallsCursor>,
        parts: Parts<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        let joining = self.joining.as_mut().filter(|joining| joining.asks(from, request));
        let question = joining.and_then(|joining| joining.question.as_mut());
        let Some(question) = question.filter(|question| question.calls.is_some()) else {
            return effects.ignored("zeus: calls that were not asked for");
        };
        if !self.calls.merge(&question.shards, parts) {
            return effects.ignored("zeus: damaged calls");
        }
        question.calls = next;
        for (shard, sessions) in parts.iter() {
            self.append_calls(shard, sessions, effects);
        }
        let joining = self.joining.as_mut().expect("it copies");
        joining.request += 1;
        joining.backoff.ease(now);
        if next.is_none() {
            self.end_question();
        }
        self.ask_donor(now, effects);
    }

    pub(crate) fn copy_entry(
        &mut self,
        now: Now,
        entry: &Entry<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        if !self.layout.learns(shard_of(entry.key)) {
            return;
        }
        let (meta, absent) = (self.meta(entry.key), self.absent(entry.key));
        let hears_all = self.layout.revived || self.layout.inherits(shard_of(entry.key));
        // A revived node gives its other lanes their parts of all that it has restored.
        let has_logged = self.has_logged(meta.version) || self.layout.revived;
        let joining = self.joining.as_mut().expect("it copies");
        if entry.is_under_way {
            if meta.version < entry.version || !has_logged {
                joining.awaited.insert(entry.key.into(), entry.version);
            } else {
                self.log.note_copied();
            }
        } else {
            // Where all members are asked, another one may have a later version under way.
            let is_later = |awaited: &Timestamp| hears_all && *awaited > entry.version;
            if !joining.awaited.get(entry.key).is_some_and(is_later) {
                joining.awaited.remove(entry.key);
            }
            // What is readable at the donor is committed.
            let is_unknown =
                meta.data == DataState::Invalid && !mutant!("zeus_copy_without_commits");
            if entry.version > meta.version || entry.version == meta.version && is_unknown {
                let length = entry.content.map_or(0, |content| content.bytes.len());
                let mut record = self.table.lock_key(entry.key, length);
                match entry.content {
                    Some(content) => record.set_content(Value::of(content).content()),
                    None => record.clear(),
                }
                let (version, data) = (entry.version, DataState::Valid);
                record.set_meta(Meta { version, data, ..record.meta().or(absent) });
                self.sweep.note(entry.key, entry.content);
                drop(record);
                self.append_copy(entry.key, entry.version, entry.content, effects);
            } else if !has_logged {
                self.append_copy(entry.key, entry.version, entry.content, effects);
            }
        }
        let Entry { key, settled, under_way, .. } = *entry;
        match under_way.filter(|_| !mutant!("zeus_copy_without_rounds")) {
            Some((round, requester)) if round > meta.round => {
                let settled = settled.max(self.settled(key));
                self.begin_round(key, round, requester, settled, OwnerState::Invalid);
                self.drive(now, key, effects);
            }
            None if settled.round > meta.round => {
                self.settle(now, key, settled.round, settled.owner, effects);
            }
            _ => self.adopt_beneath(now, key, settled, effects),
        }
    }

    pub(crate) fn repeat_copy(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        let Some(joining) = &mut self.joining else { return };
        if joining.backoff.deadline() > now.monotonic {
            return;
        }
        joining.backoff.grow(DOUBLINGS_MAX);
        self.shrink_buckets();
        let Some(joining) = &mut self.joining else { return };
        if joining.question.is_none() {
            let turn = joining.request as usize % joining.awaited.len().max(1);
            let keys = joining.awaited.keys().cycle().skip(turn);
            for key in keys.take(joining.awaited.len().min(NAMED)) {
                effects.probe("zeus: a key is copied by name");
                let shard = shard_of(key);
                let members = self.layout.live.without(self.layout.node);
                for donor in
                    members.into_iter().filter(|node| self.layout.copies_from(*node, shard))
                {
                    effects.send(donor, &Message::CopyKey { key });
                }
            }
        }
        self.ask_donor(now, effects);
    }

    pub(crate) fn next_copy(&self) -> Instant {
        self.joining.as_ref().map_or(Instant::NEVER, |joining| joining.backoff.deadline())
    }

    // --- the donor -------------------------------------------------------------------------------

    /// A replica asks for the records of some shards: for all that is here, or for the keys that this node
    /// owns by name. A node in doubt tells all that it has in either case.
    pub(crate) fn on_copy_read(
        &mut self,
        from: NodeId,
        (request, cursor): (u64, u64),
        shards: &Shards,
        owned: bool,
        effects: &mut impl Effects<Self>,
    ) {
        let layout = Arc::clone(&self.layout);
        if !shards.iter().all(|shard| layout.gives_to(from, shard)) {
            return effects.ignored("zeus: a copy of what is not complete");
        }
        let owned = owned && (!layout.in_doubt || mutant!("zeus_doubtful_node_tells_nothing"));
        let (mut next, mut entries, mut steps) = (cursor, Entries::begin(), 0);
        while steps < RECORDS && entries.len() < limits::CHUNK_BYTES {
            if owned && layout.revived {
                // It owns nothing by name.
                (next, steps) = (0, 1);
                break;
            }
            let mut keys: Vec<Key> = Vec::new();
            let config = &self.config;
            let after = self.table.scan_keys(next, 1, &mut |key| {
                if shards.contains(shard_of(key)) && config.is_own(key) {
                    keys.push(key.into());
                }
            });
            keys.retain(|key| !owned && layout.keeps(shard_of(key)) || self.owns_by_name(key));
            if owned {
                keys.iter().for_each(|key| self.push_owned(key, &mut entries));
            } else if !self.push_entries(&keys, from, &mut entries) {
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
        self.send_copy(from, request, next, &entries, effects);
    }

    /// A replica asks for one key. It gets an answer also if there is nothing.
    pub(crate) fn on_copy_key(
        &mut self,
        from: NodeId,
        key: &[u8],
        effects: &mut impl Effects<Self>,
    ) {
        let shard = shard_of(key);
        let is_own = self.layout.keeps(shard) || self.owns_by_name(key);
        if !self.layout.gives_to(from, shard) || !is_own {
            return effects.ignored("zeus: a copy of what is not complete");
        }
        self.tell_key(from, key, effects);
    }

    /// Tells a replica what there is of one key.
    pub(crate) fn tell_key(&mut self, to: NodeId, key: &[u8], effects: &mut impl Effects<Self>) {
        let mut entries = Entries::begin();
        if self.table.find(key).is_none() {
            Entries::push(&mut entries, &Entry::nothing(key));
        } else if !self.push_entries(&[key.into()], to, &mut entries) {
            return effects.ignored("zeus: a copy of what may not be committed");
        }
        self.send_copy(to, 0, 0, &entries, effects);
    }

    fn send_copy(
        &self,
        to: NodeId,
        request: u64,
        next: u64,
        entries: &[u8],
        effects: &mut impl Effects<Self>,
    ) {
        let entries = Entries::check(entries).expect("just written");
        let (clock, floors) = (self.clock, self.floor.told());
        effects.send(to, &Message::Copy { request, next, clock, floors, entries });
    }

    /// Adds some keys; `false`, and none, if one may not be committed.
    fn push_entries(&mut self, keys: &[Key], to: NodeId, entries: &mut Vec<u8>) -> bool {
        let mut found = Vec::new();
        for key in keys {
            let tells_all = self.layout.tells_all(to, shard_of(key));
            let Some(is_under_way) = self.is_under_way(key, tells_all) else { return false };
            found.push((key, is_under_way));
        }
        for (key, is_under_way) in found {
            self.push_entry(key, is_under_way, entries);
        }
        true
    }

    /// Whether the replica gets the value of a key with a transaction: it is a follower of each that is
    /// under way in this epoch. `None` if nobody here knows.
    pub(crate) fn is_under_way(&mut self, key: &[u8], tells_all: bool) -> Option<bool> {
        let meta = self.meta(key);
        match meta.data {
            DataState::Valid => Some(false),
            DataState::Write => Some(true),
            // The transaction is sent in this epoch, perhaps by another lane, and is committed when all have
            // recovered. A key that this node has agreed to give away is committed already.
            DataState::Invalid if tells_all => Some(!self.has_given(key)),
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

    /// Adds a key that this node owns, without its value.
    fn push_owned(&mut self, key: &[u8], entries: &mut Vec<u8>) {
        let under_way = self.rounds.get(key).map(|round| (round.at, round.requester));
        let settled = self.settled(key);
        Entries::push(entries, &Entry { settled, under_way, ..Entry::nothing(key) });
    }

    /// Whether this node owns a key and has agreed to give it away.
    fn has_given(&mut self, key: &[u8]) -> bool {
        self.rounds.get(key).is_some_and(|round| round.given) && self.owns_by_name(key)
    }

    pub(crate) fn push_entry(&mut self, key: &[u8], is_under_way: bool, entries: &mut Vec<u8>) {
        let under_way = self.rounds.get(key).map(|round| (round.at, round.requester));
        let settled = self.settled(key);
        let Some(record) = self.table.lock_existing(key) else { return };
        let mut packed = Vec::new();
        let content = if is_under_way { None } else { record.whole(&mut packed) };
        let version = record.meta().version;
        let entry = Entry { key, version, is_under_way, settled, under_way, content };
        Entries::push(entries, &entry);
    }
}

impl<'a> Entry<'a> {
    /// Of a key that was never written.
    pub(crate) fn nothing(key: &'a [u8]) -> Self {
        let (version, settled) = (Timestamp::ZERO, Settled::default());
        Self { key, version, is_under_way: false, settled, under_way: None, content: None }
    }
}
