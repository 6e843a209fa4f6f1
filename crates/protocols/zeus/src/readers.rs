//! Transactions that only read: they run on copies that may all be read at one moment.

use alloc::vec::Vec;

use quorate_machine::{
    Command, Completion, Effects, Gate, LaneShared, OneKey, Outcome, Record as _, Table, Verdict,
    mutant,
};
use quorate_types::{Now, Tag};

use crate::meta::Meta;
use crate::state::{Key, Zeus};
use crate::workspace::{Run, Work, absent_version};

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
        if command.updates() || !self.may_begin_at_once(origin) {
            return false;
        }
        match self.read(now, command) {
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

    /// Runs a transaction that only reads, on copies that may all be read at one moment.
    pub(crate) fn read<P>(&mut self, now: Now, command: &P) -> Read<X::Reply>
    where
        P: Command<Owned = X, Reply = X::Reply>,
    {
        let rights = self.rights();
        let mut work = Work::default();
        let may_use = |meta: &Meta, key: &[u8]| rights.may_read(meta, key);
        let (table, wall) = (&mut self.table, now.wall());
        let lanes = self.config.lanes;
        let deletes_expired = false;
        let layout = &*self.layout;
        let mut run =
            Run { table, work: &mut work, now: wall, may_use, layout, lanes, deletes_expired };
        let verdict = command.run(wall, &mut run);
        if work.is_full() {
            return Read::TooLarge;
        }
        if !work.missing.is_empty() {
            return Read::Missing(work.missing);
        }
        if !work.expired.is_empty() {
            return Read::Expired;
        }
        // Other lanes change records, too. What has not changed between the first look at the last key
        // and the second at the first was there at one moment in between.
        let is_shared = self.config.lanes > 1 && work.keys.len() > 1;
        let has_changed = |(key, one): &(Key, OneKey<'_>)| {
            let known = self.table.lock_existing(key).map(|record| record.meta());
            let absent = || absent_version(&self.table, lanes, key);
            let version = known.map_or_else(absent, |meta| meta.version);
            version != one.timestamp() || !rights.may_read(&known.unwrap_or_default(), key)
        };
        if is_shared && work.keys.iter().any(has_changed) && !mutant!("zeus_single_pass_read") {
            return Read::Changed;
        }
        match verdict {
            Verdict::Commit(reply) | Verdict::Abandon(reply) => {
                self.counters.reads += 1;
                Read::Done(reply)
            }
        }
    }
}
