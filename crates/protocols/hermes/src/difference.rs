//! Coming back by difference: a process that was expelled and lived has most of what it has to copy.
//!
//! The records of its earlier lives are its *base*. A record says in which life its version came
//! ([`Meta::life`]), so a new life begins without touching any. To every message a record of the base
//! is not there, and an update takes its place. It becomes this life's only if the donor turns out to
//! hold the same version of the key, Valid. That has the effect of a chunk with this
//! record: a timestamp names one update of a key, and so its value, since member numbers are never used
//! twice and a replica's updates of a key have rising versions. It does not matter what has become of
//! the base's version here, nor how old it is. What the donor lacks was deleted and forgotten
//! meanwhile, or was never agreed on, and goes. All this holds within one cluster: what was left of
//! another goes before a record is looked at ([`View::cluster`](quorate_types::View::cluster)).
//!
//! How two tables are compared is in [`quorate_machine::difference`]. A hash is one of the key, the
//! version and the request's random name. What changes here while a question is out has changed
//! because an update came, and has left the base by that. An update of a collection that does not bring
//! all of its value changes nothing here.

use alloc::boxed::Box;

use quorate_machine::difference::{Held, Question, compare, is_outgrown, may_ask_for};
use quorate_machine::{Command, Effects, Record, Slot, Table, mutant};
use quorate_types::{Incarnation, NodeId, Now, SeededHash, Timestamp, limits};
use quorate_wire::{Malformed, Words};

use crate::join::{Copying, Source, VALUE_BYTES_IN_CHUNK};
use crate::message::{Chunk, Cursor, Message};
use crate::{Hermes, Meta, State};

/// Bytes of entries after which a chunk ends within a bucket.
const BUCKET_BYTES_MAX: usize = limits::VALUE_BYTES_MAX / 2;

const _: () = assert!(
    BUCKET_BYTES_MAX + limits::KEY_BYTES_MAX + VALUE_BYTES_IN_CHUNK + 128
        <= limits::MESSAGE_BYTES_MAX,
    "a difference fits into a message"
);

impl<T: Table<Meta = Meta>, O: Command<Owned = O>> Hermes<T, O> {
    /// A new life begins: what is here becomes the base.
    pub(crate) fn leave_base(&mut self) {
        match self.life.checked_add(1) {
            Some(life) => self.life = life,
            None => {
                self.table.reset();
                self.life = 0;
            }
        }
        self.has_base = !self.table.is_empty();
    }

    /// This life is one in `cluster`. What an earlier one left of another cluster goes, unless this one was
    /// recovered from it: versions and member numbers began anew in this one, so equal timestamps mean
    /// nothing, and a founder serves without having compared.
    pub(crate) fn enter_cluster(&mut self, cluster: Incarnation, effects: &mut impl Effects<Self>) {
        let changes = self.cluster != cluster;
        let is_recovered = cluster.shares_data_with(self.cluster);
        let other = changes && !is_recovered && !mutant!("hermes_base_of_another_cluster");
        self.cluster = cluster;
        if changes {
            self.append_cluster(effects);
        }
        if other && self.has_base {
            effects.probe("hermes: records of another cluster go");
            self.table.reset();
            self.has_base = false;
        }
    }

    /// Whether a record is an earlier life's.
    pub(crate) fn is_base(&self, meta: &Meta) -> bool {
        meta.life != self.life && !meta.is_blank()
    }

    /// Whether an earlier life has left a record of a key, and nothing has taken its place.
    pub(crate) fn is_left_over(&mut self, key: &[u8]) -> bool {
        if !self.has_base {
            return false;
        }
        let Some(handle) = self.table.find(key) else { return false };
        let meta = self.table.lock(handle).meta();
        self.is_base(&meta)
    }

    /// The record of a key, if this life has one. What an earlier life left stays as it is: the
    /// donor may be comparing it.
    #[inline]
    pub(crate) fn find(&mut self, key: &[u8]) -> Option<T::Handle> {
        let handle = self.table.find(key)?;
        if self.has_base {
            if mutant!("hermes_base_dropped_by_any_message") {
                self.clear_base(handle);
            }
            let meta = self.table.lock(handle).meta();
            if self.is_base(&meta) && !mutant!("hermes_base_is_held") {
                return None;
            }
        }
        Some(handle)
    }

    /// The record of a key, for an update to be put into it: blank if there was none in this life.
    #[inline]
    pub(crate) fn find_or_insert(
        &mut self,
        key: &[u8],
        effects: &mut impl Effects<Self>,
    ) -> T::Handle {
        let handle = self.table.find_or_insert(key);
        if self.has_base && self.clear_base(handle) {
            self.append_gone(key, effects);
        }
        handle
    }

    /// Empties a record if it is an earlier life's; whether it was.
    fn clear_base(&mut self, handle: T::Handle) -> bool {
        let mut record = self.table.lock(handle);
        let meta = record.meta();
        let is_base = meta.life != self.life && !meta.is_blank();
        let cleared = is_base && !mutant!("hermes_base_is_held");
        if cleared {
            record.clear();
            record.set_meta(Meta::default());
        }
        cleared
    }

    /// The donor holds this version: it is as if it had come in a chunk.
    fn keep_base(&mut self, now: Now, handle: T::Handle) {
        let mut record = self.table.lock(handle);
        let meta = Meta { state: State::Valid, unsettled: false, listed: false, ..record.meta() };
        let content = record.content();
        let deleted = content.is_none();
        self.expiry.note(now.monotonic, content.and_then(|content| content.expire_at));
        let listed = self.tombstones.note(&self.config, now, handle, deleted, &meta);
        record.set_meta(Meta { op: Slot::NONE, listed, life: self.life, ..meta });
        self.floors.note_version(deleted, meta.timestamp.version);
        self.counters.kept += 1;
    }

    /// What the comparison says of a record, which may have changed meanwhile.
    fn apply_comparison(
        &mut self,
        now: Now,
        handle: T::Handle,
        is_gone: bool,
        effects: &mut impl Effects<Self>,
    ) {
        let meta = self.table.lock(handle).meta();
        if meta.is_blank() && !self.queues.contains_key(&handle) {
            self.forget(handle);
        } else if !self.is_base(&meta) {
            // An update came.
        } else if is_gone && !mutant!("hermes_base_keeps_the_deleted") {
            effects.probe("hermes: a record of an earlier life goes");
            let key = Box::<[u8]>::from(self.table.lock(handle).key());
            if self.clear_base(handle) {
                self.append_gone(&key, effects);
            }
            self.forget(handle);
        } else {
            effects.probe("hermes: a record of an earlier life stays");
            self.keep_base(now, handle);
        }
    }

    /// Asks the donor for digests, or for what differs.
    pub(crate) fn ask_difference(&mut self, donor: NodeId, effects: &mut impl Effects<Self>) {
        let Copying::From(Source { copier, .. }) = &self.copying else { return };
        let (Some(comparing), request) = (copier.comparing(), copier.request()) else { return };
        let (shift, hash_of) = (comparing.shift(), self.hasher(request));
        match comparing.question(&mut self.table, hash_of) {
            Question::Digests { first, digests } => {
                let digests = &Words::pack(digests);
                let digests = Words::of(digests);
                effects.send(donor, &Message::Compare { request, shift, first, digests });
            }
            Question::Records { buckets, held } => {
                let (buckets, held) = (Words::pack(buckets), Words::pack(held));
                let (buckets, held) = (Words::of(&buckets), Words::of(&held));
                effects.send(donor, &Message::DifferenceRead { request, shift, buckets, held });
            }
        }
    }

    /// A shadow asks in which buckets this replica holds something else.
    pub(crate) fn on_compare(
        &mut self,
        from: NodeId,
        request: u64,
        shift: u8,
        (first, theirs): (u64, Words<'_>),
        effects: &mut impl Effects<Self>,
    ) {
        if !self.active.contains(self.config.node) {
            return effects.ignored("hermes: asked to compare while not active");
        }
        let hash_of = self.hasher(request);
        let Some(buckets) = compare(&mut self.table, shift, first, theirs.iter(), hash_of) else {
            return effects.refused("hermes: a comparison beyond the limit");
        };
        let (records, buckets) = (self.table.len() as u64, Words::pack(buckets));
        let buckets = Words::of(&buckets);
        effects.send(from, &Message::Compared { request, records, buckets });
    }

    /// A donor has compared: the buckets that it does not name are settled.
    pub(crate) fn on_compared(
        &mut self,
        now: Now,
        from: NodeId,
        request: u64,
        (records, buckets): (u64, Words<'_>),
        effects: &mut impl Effects<Self>,
    ) {
        let Copying::From(source) = &mut self.copying else {
            return effects.ignored("hermes: comparison while not copying");
        };
        let Some(comparing) = source.copier.compares(from, request) else {
            return effects.ignored("hermes: comparison of an earlier request");
        };
        let Some(equal) = comparing.take_answer(&self.table, records, buckets.iter()) else {
            return effects.refused("hermes: damaged comparison");
        };
        for handle in equal {
            self.apply_comparison(now, handle, false, effects);
        }
        self.go_on_comparing(now);
        self.ask_donor(now, effects);
    }

    /// Goes on to what differs, to the next range, or to the sessions.
    fn go_on_comparing(&mut self, now: Now) {
        let fresh_request = self.rng.next_u64();
        let Copying::From(source) = &mut self.copying else { return };
        source.copier.answered(now, fresh_request);
        if !source.copier.compare_on(self.table.len()) {
            source.cursor = Cursor::SESSIONS;
            self.has_base = false;
        }
    }

    /// A shadow asks for what it lacks in buckets that differ.
    pub(crate) fn on_difference_read(
        &mut self,
        from: NodeId,
        request: u64,
        shift: u8,
        (buckets, held): (Words<'_>, Words<'_>),
        effects: &mut impl Effects<Self>,
    ) {
        if !self.active.contains(self.config.node) {
            return effects.ignored("hermes: asked for a difference while not active");
        }
        if !may_ask_for(shift, buckets.iter()) {
            return effects.refused("hermes: a difference beyond the limit");
        }
        if is_outgrown(shift, self.table.len()) {
            return effects.ignored("hermes: a difference in buckets that are too large by now");
        }
        let hash_of = self.hasher(request);
        let mut held = Held::new(held.iter());
        let mut entries = core::mem::take(&mut self.scratch);
        entries.clear();
        let mut next = 0;
        for bucket in buckets.iter() {
            let lacking = held.lacking(&mut self.table, shift, bucket, &hash_of);
            // The rest of a very large bucket comes when it is asked for again.
            let is_whole = lacking.into_iter().all(|handle| {
                let has_room = entries.len() < limits::CHUNK_BYTES;
                let fits = entries.len() < BUCKET_BYTES_MAX;
                if fits {
                    let value_bytes_max = if has_room { VALUE_BYTES_IN_CHUNK } else { 0 };
                    self.add_entry(handle, value_bytes_max, &mut entries);
                }
                fits
            });
            next = (bucket + u64::from(is_whole)) << shift;
            if !is_whole || entries.len() >= limits::CHUNK_BYTES {
                break;
            }
        }
        let gone = Words::pack(held.gone());
        let chunk = Chunk {
            request,
            next: Some(Cursor::Records(next)),
            floor: self.floors.floor,
            next_floor: self.floors.next_floor,
            in_doubt: self.floors.is_in_doubt(),
            entries: &entries,
            gone: Words::of(&gone),
            sessions: &[],
        };
        effects.send(from, &Message::Chunk(chunk));
        self.scratch = entries;
    }

    /// What this replica lacked in some buckets is here, or named: settles them.
    pub(crate) fn follow_difference(
        &mut self,
        now: Now,
        from: NodeId,
        chunk: &Chunk<'_>,
        effects: &mut impl Effects<Self>,
    ) -> Result<(), Malformed> {
        let Some(Cursor::Records(until)) = chunk.next else {
            return Err(Malformed("hermes: a difference that names no place"));
        };
        let (hash_of, gone) = (self.hasher(chunk.request), chunk.gone.iter());
        let Copying::From(source) = &mut self.copying else { return Ok(()) };
        let Some(comparing) = source.copier.compares(from, chunk.request) else { return Ok(()) };
        for (handle, is_gone) in comparing.take_records(&mut self.table, until, gone, hash_of) {
            self.apply_comparison(now, handle, is_gone, effects);
        }
        self.go_on_comparing(now);
        Ok(())
    }

    /// Gives the hash of a record under a question's name, unless it is blank. A donor vouches only
    /// for what is Valid, and marks the rest; who compares asks for that.
    fn hasher(&self, request: u64) -> impl Fn(&mut T, T::Handle) -> Option<u64> + use<T, O> {
        let hash = SeededHash::new(request);
        let vouches = self.active.contains(self.config.node);
        move |table, handle| {
            let record = table.lock(handle);
            let meta = record.meta();
            if meta.is_blank() {
                return None;
            }
            let in_doubt = vouches && meta.state != State::Valid;
            let in_doubt = u64::from(in_doubt && !mutant!("hermes_doubtful_is_vouched_for"));
            let Timestamp { version, writer } = meta.timestamp;
            let version = [version, u64::from(writer.0) | in_doubt << 32];
            let version = if mutant!("hermes_base_compared_by_key") { [0; 2] } else { version };
            Some(hash.of(record.key(), version))
        }
    }
}
