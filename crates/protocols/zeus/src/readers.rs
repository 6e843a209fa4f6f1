//! Transactions that only read: they run on copies that may all be read at one moment.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;

use quorate_machine::{
    Command, Completion, Effects, Gate, LaneShared, Outcome, Record as _, Refusal, Table, Verdict,
    mutant,
};
use quorate_types::{Now, Tag, Timestamp};

use crate::meta::Meta;
use crate::remote::{Fetched, NOTHING};
use crate::state::{Key, Rights, Zeus};
use crate::transactions::Need;
use crate::workspace::{Held, ReadSet, Reading, Records, absent_version};

/// What a transaction that only reads does next.
pub(crate) enum Ready {
    /// It runs: all its keys may be read.
    Runs,
    Waits,
    /// It becomes the owner of its keys.
    Owns,
}

/// How a transaction that only reads has run.
pub(crate) enum Read<R> {
    Done(R),
    /// It finds these keys on the way.
    Missing(Vec<Key>),
    /// What it has read has expired.
    Expired,
    TooLarge,
    /// Something of it was changed meanwhile.
    Changed,
}

/// Whether a key still has this version here and may be read.
pub(crate) fn is_still<T: Table<Meta = Meta> + LaneShared>(
    table: &mut T,
    lanes: u16,
    rights: &Rights<'_>,
    key: &[u8],
    seen: Timestamp,
) -> bool {
    let known = table.lock_existing(key).map(|record| record.meta());
    let version = known.map_or_else(|| absent_version(table, lanes, key), |meta| meta.version);
    version == seen && rights.may_read(&known.unwrap_or_default(), key)
}

impl<T: Table<Meta = Meta> + LaneShared, X: Command<Owned = X>> Zeus<T, X> {
    /// Answers a transaction that only reads if that is possible in this step.
    pub(crate) fn read_at_once<P>(
        &mut self,
        now: Now,
        tag: Tag,
        origin: u64,
        command: &P,
        effects: &mut impl Effects<Self>,
    ) -> bool
    where
        P: Command<Owned = X, Reply = X::Reply>,
    {
        if command.updates() || !self.may_begin_at_once(origin) || self.is_for_other(command) {
            return false;
        }
        let mut read_set = mem::take(&mut self.read_set);
        let read = self.read(now, command, &NOTHING, &mut read_set);
        read_set.clear();
        self.read_set = read_set;
        match read {
            Read::Done(reply) => {
                let done = Completion::new(Outcome::Done(reply)).behind(Gate::LEASE);
                effects.complete_on(tag, done);
                true
            }
            Read::Changed => {
                effects.probe("zeus: a reader is overtaken by a commit");
                false
            }
            _ => false,
        }
    }

    /// Whether it asks where a key of another lane lives: that lane knows who else has copies of the key.
    fn is_for_other<P: Command>(&self, command: &P) -> bool {
        if !command.asks_placement() || mutant!("zeus_placement_told_by_any_lane") {
            return false;
        }
        let mut is_own = true;
        command.visit_keys(&mut |key| is_own &= self.is_own(key));
        !is_own
    }

    /// Whether a transaction that only reads may use its keys here; asks for those that are missing.
    pub(crate) fn check_reader(
        &mut self,
        now: Now,
        id: u64,
        keys: &[Key],
        effects: &mut impl Effects<Self>,
    ) -> Ready {
        let metas: Vec<Meta> = keys.iter().map(|key| self.meta(key)).collect();
        let layout = Arc::clone(&self.layout);
        let rights = Rights { layout: &layout, has_recovered: self.lanes.has_recovered };
        let known = || keys.iter().zip(&metas);
        let far: Vec<&Key> =
            known().filter(|(key, meta)| !rights.has_copy(meta, key)).map(|(key, _)| key).collect();
        if !far.is_empty() {
            // A lane asks for a key that it may read, or might have read: this node has
            // a copy, or had one; that lane looks again, and asks other nodes itself.
            let asks = !self.transactions.is_ask(id);
            match if asks { self.fetch(now, id, &far, effects) } else { Ready::Runs } {
                Ready::Runs => {}
                other => return other,
            }
        }
        let mut unreadable =
            known().filter(|(key, meta)| rights.has_copy(meta, key) && !rights.may_read(meta, key));
        let Some((key, _)) = unreadable.next() else { return Ready::Runs };
        // The owner need not wait until nothing is under way with a key: its answer waits for what it has
        // read.
        let stamp = self.transactions.stamp_of(id);
        if keys.iter().all(|key| self.may_own(key, stamp)) {
            effects.probe("zeus: the owner reads what is not committed");
            return Ready::Owns;
        }
        if !self.is_own(key) {
            self.ask(key, Need::Copy, stamp, effects);
        }
        effects.probe("zeus: a reader waits for a commit");
        Ready::Waits
    }

    /// Runs a transaction that only reads. Whether it has ended, or waits for what it was told to hold.
    pub(crate) fn run_reader(
        &mut self,
        now: Now,
        id: u64,
        effects: &mut impl Effects<Self>,
    ) -> bool {
        let op = self.transactions.take_reader(id);
        let fetched = self.remote.take(id);
        let mut read_set = ReadSet::default();
        let read = self.read(now, op.command(), &fetched, &mut read_set);
        self.remote.put_back(id, fetched);
        self.transactions.put_back(id, op);
        match read {
            Read::Done(reply) => {
                if let Some(reply) = self.confirm(now, id, reply, &read_set, effects) {
                    let done = Completion::new(Outcome::Done(reply)).behind(Gate::LEASE);
                    let client = self.transactions.client_of(id);
                    self.answer(client, done, effects);
                    self.forget(id);
                }
                true
            }
            Read::Missing(missing) => {
                self.need_too(id, missing, effects);
                false
            }
            Read::Expired => {
                effects.probe("zeus: a reader finds an expired value");
                self.need_ownership(id);
                false
            }
            Read::TooLarge => {
                self.refuse(id, Refusal::TooLarge, effects);
                true
            }
            Read::Changed => {
                effects.probe("zeus: a reader is overtaken by a commit");
                false
            }
        }
    }

    /// Runs a transaction that only reads, on copies that may all be read at one moment, and on what was
    /// fetched.
    fn read<P>(
        &mut self,
        now: Now,
        command: &P,
        fetched: &Fetched,
        read_set: &mut ReadSet,
    ) -> Read<X::Reply>
    where
        P: Command<Owned = X, Reply = X::Reply>,
    {
        let layout = &*self.layout;
        let rights = Rights { layout, has_recovered: self.lanes.has_recovered };
        let (wall, lanes) = (now.wall(), self.config.lanes);
        let records = Records {
            table: &mut self.table,
            fetched,
            now: wall,
            may_use: |meta: &Meta, key: &[u8]| rights.may_read(meta, key),
            layout,
            readers: &self.readers,
            lanes,
        };
        let verdict = command.run(wall, &mut Reading { records, read_set: &mut *read_set });
        if read_set.is_full() {
            return Read::TooLarge;
        }
        if !read_set.found.missing.is_empty() {
            return Read::Missing(mem::take(&mut read_set.found.missing));
        }
        if !read_set.found.expired.is_empty() {
            return Read::Expired;
        }
        // Other lanes change records, too. What has not changed between the first look at the last key
        // and the second at the first was there at one moment in between.
        let is_shared = self.config.lanes > 1 && read_set.keys.len() > 1;
        let has_changed = |(key, held): (&[u8], &Held)| {
            let is_here = !fetched.contains_key(key);
            is_here && !is_still(&mut self.table, lanes, &rights, key, held.timestamp)
        };
        if is_shared && read_set.keys.iter().any(has_changed) && !mutant!("zeus_single_pass_read") {
            return Read::Changed;
        }
        match verdict {
            Verdict::Commit(reply) | Verdict::Abandon(reply) => {
                self.counters.reads += 1;
                self.count_uses(now, read_set, fetched);
                Read::Done(reply)
            }
        }
    }

    /// Counts reads of keys that this node keeps though it is not of their groups.
    fn count_uses(&mut self, now: Now, read_set: &ReadSet, fetched: &Fetched) {
        if self.layout.reads_all() {
            return;
        }
        let layout = Arc::clone(&self.layout);
        let is_extra = |key: &&[u8]| !layout.reads(key) && !fetched.contains_key(*key);
        for key in read_set.keys.names().filter(is_extra) {
            self.count_use(now, key);
        }
    }
}
