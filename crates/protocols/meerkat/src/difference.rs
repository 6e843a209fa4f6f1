//! Coming back by difference: a process that was expelled and lived has most of what it has to copy.
//!
//! The records of its earlier lives are its *base*. Beside its words a record says in which life of the
//! process this replica took it over while it was catching up (`Pending::life`); so a new life begins
//! without touching any. A record of the base becomes this life's only if the donor turns out to hold
//! the same version of the key. That has the effect of a chunk with this record, since a version is
//! the id of one transaction, and a committed one has one set of writes. What the donor lacks was
//! deleted and forgotten meanwhile, and goes. What is registered in a record of the base was settled
//! long ago, and goes too.
//!
//! Read timestamps are not compared: they rise without a version, and not on all replicas alike. An
//! answer has the donor's clock instead, which is above all that the donor holds. It counts as the
//! timestamp of a read here, so no write at or below it is let pass in any epoch in which this replica
//! votes (`merge.rs`).
//!
//! How two tables are compared is in [`quorate_machine::difference`]. A lane compares its own part of
//! the records, those of the partitions that it shares with the donor, with the same lane's there;
//! what a sibling installs meanwhile has left the base by that.

use alloc::vec::Vec;

use quorate_machine::difference::{Held, Question, compare, is_outgrown, may_ask_for};
use quorate_machine::{Command, Effects, LaneShared, Record, Scan, Table, mutant};
use quorate_types::{NodeId, Now, SeededHash, Timestamp, limits};
use quorate_wire::Words;

use crate::body::{Body, Write};
use crate::join::{SCAN_RECORDS, write_entry};
use crate::message::{Comparison, Kind, Message};
use crate::meta::Meta;
use crate::occ::{self, install};
use crate::state::{Counter, Meerkat};
use quorate_types::partition_of;

/// The keys that two replicas compare.
#[derive(Clone, Copy)]
struct Shared {
    /// Partitions, as a bit set.
    partitions: u64,
    /// Of so many.
    count: usize,
}

impl Shared {
    fn has(self, key: &[u8]) -> bool {
        self.partitions & 1 << partition_of(key, self.count) != 0
    }
}

/// Makes a record this life's: blank if an earlier one left it.
pub(crate) fn claim(record: &mut impl Record<Meta = Meta>, life: u32) {
    if record.locked_state().life() == life {
        return;
    }
    if record.meta() != Meta::default() {
        record.clear();
        record.set_meta(Meta::default());
    }
    record.locked_state_mut().take_over(life);
}

impl<T, X> Meerkat<T, X>
where
    T: Table<Meta = Meta> + LaneShared,
    X: Command<Owned = X>,
{
    /// A new life begins: what is here becomes the base. All lanes count the same lives.
    pub(crate) fn leave_base(&mut self) {
        if !mutant!("meerkat_base_counts_as_own") {
            self.life = self.life.checked_add(1).expect("a process has less than 2^32 lives");
        }
    }

    /// Installs a committed transaction in the records, as far as the bases of its deltas are here:
    /// whether all of it is in place ([`occ::apply`]). As long as this replica catches up, siblings
    /// may not have compared their parts yet, and questions are out that count on what is here: only a
    /// newer version takes a key out of the base, and a read counts as one of the whole node.
    pub(crate) fn apply(&mut self, id: Timestamp, body: Body<'_>) -> bool {
        let life = self.life;
        if self.active || life == 0 {
            return occ::apply(&mut self.table, id, body);
        }
        let mut is_whole = true;
        for item in body.iter() {
            if item.base.is_some() {
                self.read_high = self.read_high.max(id.version);
                if mutant!("meerkat_base_blanked_by_reads") {
                    claim(&mut self.table.lock_key(item.key, 0), life);
                }
            }
            let Some(write) = item.write else { continue };
            let mut record = self.table.lock_key(item.key, write.value_len());
            if id > record.meta().wts || mutant!("meerkat_base_gives_way_to_older") {
                // A version is the same in all lives, so a delta may change what an earlier one left.
                if !matches!(write, Write::Delta(_)) {
                    claim(&mut record, life);
                }
                is_whole &= install(&mut record, id, item.base, write);
                if record.meta().wts == id && record.locked_state().life() != life {
                    record.locked_state_mut().take_over(life);
                }
            }
        }
        is_whole
    }

    fn shared(&self, partitions: u64) -> Shared {
        Shared { partitions, count: self.config.partitions.len() }
    }

    /// What the comparison says of a record, which may have changed meanwhile.
    fn apply_comparison(
        &mut self,
        handle: T::Handle,
        shared: Shared,
        is_gone: bool,
        effects: &mut impl Effects<Self>,
    ) {
        if self.is_reconciling() {
            // Nobody's word about what is here counts: the others may have lost it.
            return;
        }
        let life = self.life;
        // A sibling may have removed it.
        let Some(mut record) = self.table.try_lock(handle) else { return };
        if record.locked_state().life() == life || !shared.has(record.key()) {
            // It was installed meanwhile, or another donor's word counts.
            return;
        }
        let has_version = record.meta().wts != Timestamp::ZERO;
        if has_version && (!is_gone || mutant!("meerkat_base_keeps_the_deleted")) {
            effects.probe("meerkat: a record of an earlier life stays");
            record.locked_state_mut().take_over(life);
            drop(record);
            return self.count(Counter::RecordsKept);
        }
        if has_version {
            effects.probe("meerkat: a record of an earlier life goes");
        }
        let (key, version) = (record.key().to_vec(), record.meta().wts);
        let by = self.config.lane;
        if has_version && *self.keeps_log && self.config.lanes > 1 {
            // Another lane's log may bring the version back: it stays as a deletion, until all of them
            // are over.
            record.clear();
            record.locked_state_mut().take_over(life);
            record.locked_state_mut().set_logged_by(Some(by));
            self.tombstones.push_back((version.version, key.clone().into()));
        }
        drop(record);
        if has_version {
            self.append_gone(&key, version, effects);
        }
        self.table.remove_if(&key, |record| record.locked_state().life() != life);
    }

    /// What an earlier life has left of these partitions is a part of this one: nobody has more. It may
    /// have been read up to now.
    pub(crate) fn take_base(&mut self, now: Now, partitions: u64) {
        let (life, shared) = (self.life, self.shared(partitions));
        if life == 0 {
            return;
        }
        self.note_reads(now, self.clock(now));
        let mut scan = Scan::default();
        loop {
            for key in scan.next_keys(&self.table, SCAN_RECORDS) {
                if !shared.has(&key) {
                    continue;
                }
                let Some(mut record) = self.table.lock_existing(&key) else { continue };
                if record.locked_state().life() != life {
                    record.locked_state_mut().take_over(life);
                }
            }
            if scan.is_at_end() {
                return;
            }
        }
    }

    /// Asks the donor for digests, or for what differs.
    pub(crate) fn ask_difference(
        &mut self,
        donor: NodeId,
        partitions: u64,
        effects: &mut impl Effects<Self>,
    ) {
        let shared = self.shared(partitions);
        let copier = &self.copying.copier;
        let (Some(comparing), request) = (copier.comparing(), copier.request()) else { return };
        let comparison = Comparison { request, partitions, shift: comparing.shift() };
        let hash_of = hasher(request, shared);
        match comparing.question(&mut self.table, hash_of) {
            Question::Digests { first, digests } => {
                let digests = &Words::pack(digests);
                let kind = Kind::Compare { comparison, first, digests: Words::of(digests) };
                effects.send(donor, &Message { partition: 0, kind });
            }
            Question::Records { buckets, held } => {
                let (buckets, held) = (Words::pack(buckets), Words::pack(held));
                let (buckets, held) = (Words::of(&buckets), Words::of(&held));
                let kind = Kind::DifferenceRead { comparison, buckets, held };
                effects.send(donor, &Message { partition: 0, kind });
            }
        }
    }

    /// COMPARE: in which buckets this replica holds something else.
    pub(crate) fn on_compare(
        &mut self,
        now: Now,
        from: NodeId,
        Comparison { request, partitions, shift }: Comparison,
        first: u64,
        theirs: Words<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        if self.has_nothing_to_tell() {
            let (clock, records, buckets) = (self.clock(now), 0, Words::of(&[]));
            let kind = Kind::Compared { request, clock, records, buckets };
            return effects.send(from, &Message { partition: 0, kind });
        }
        if !self.is_donor() {
            return effects.ignored("meerkat: COMPARE to a node that is catching up itself");
        }
        let hash_of = hasher(request, self.shared(partitions));
        let Some(buckets) = compare(&mut self.table, shift, first, theirs.iter(), hash_of) else {
            return effects.refused("meerkat: a comparison beyond the limit");
        };
        let (records, buckets) = (self.table.len() as u64, Words::pack(buckets));
        let (clock, buckets) = (self.clock(now), Words::of(&buckets));
        let kind = Kind::Compared { request, clock, records, buckets };
        effects.send(from, &Message { partition: 0, kind });
    }

    /// COMPARED: the buckets that it does not name are settled.
    #[expect(clippy::too_many_arguments, reason = "the fields of the message")]
    pub(crate) fn on_compared(
        &mut self,
        now: Now,
        from: NodeId,
        request: u64,
        clock: u64,
        records: u64,
        buckets: Words<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        let partitions = self.compared_with(from);
        let compares = !self.active || self.is_reconciling();
        let comparing = self.copying.copier.compares(from, request).filter(|_| compares);
        let Some(comparing) = comparing else {
            return effects.ignored("meerkat: COMPARED that was not asked for");
        };
        let Some(equal) = comparing.take_answer(&self.table, records, buckets.iter()) else {
            return effects.refused("meerkat: damaged comparison");
        };
        self.note_reads(now, clock);
        let shared = self.shared(partitions);
        for handle in equal {
            self.apply_comparison(handle, shared, false, effects);
        }
        self.go_on_comparing(now, partitions);
        self.copy_on(now, effects);
    }

    /// What is kept here was perhaps read at the donor, up to its clock.
    fn note_reads(&mut self, now: Now, clock: u64) {
        self.observe(now, clock);
        if !mutant!("meerkat_base_without_reads") {
            self.read_high = self.read_high.max(clock);
        }
    }

    /// DIFFERENCE_READ: what this replica holds besides, and what it does not hold.
    pub(crate) fn on_difference_read(
        &mut self,
        now: Now,
        from: NodeId,
        Comparison { request, partitions, shift }: Comparison,
        buckets: Words<'_>,
        held: Words<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        if !self.is_donor() {
            return effects
                .ignored("meerkat: DIFFERENCE_READ to a node that is catching up itself");
        }
        if !may_ask_for(shift, buckets.iter()) {
            return effects.refused("meerkat: a difference beyond the limit");
        }
        if is_outgrown(shift, self.table.len()) {
            return effects.ignored("meerkat: a difference in buckets that are too large by now");
        }
        let hash_of = hasher(request, self.shared(partitions));
        let mut held = Held::new(held.iter());
        let mut entries = Vec::new();
        let (mut until, mut settles) = (0, false);
        for bucket in buckets.iter() {
            let lacking = held.lacking(&mut self.table, shift, bucket, &hash_of);
            let is_whole = self.add_records_of(&lacking, !settles, &mut entries);
            until = (bucket + u64::from(is_whole)) << shift;
            if !is_whole {
                break;
            }
            settles = true;
        }
        let gone = if settles { Words::pack(held.gone()) } else { Vec::new() };
        let (clock, gone) = (self.clock(now), Words::of(&gone));
        let kind = Kind::Difference { request, clock, until, gone, entries: &entries };
        effects.send(from, &Message { partition: 0, kind });
    }

    /// Adds some records of a bucket. Whether all fit: the rest comes when the bucket is asked for
    /// again. One that is larger than a chunk goes alone, in an answer that settles nothing.
    fn add_records_of(
        &mut self,
        bucket: &[T::Handle],
        is_first: bool,
        entries: &mut Vec<u8>,
    ) -> bool {
        for &handle in bucket {
            let Some(record) = self.table.try_lock(handle) else { continue };
            let before = entries.len();
            write_entry(&record, entries);
            if entries.len() >= limits::CHUNK_BYTES {
                if !is_first || before > 0 {
                    entries.truncate(before);
                }
                return false;
            }
        }
        true
    }

    /// DIFFERENCE: settles the buckets that are whole.
    #[expect(clippy::too_many_arguments, reason = "the fields of the message")]
    pub(crate) fn on_difference(
        &mut self,
        now: Now,
        from: NodeId,
        request: u64,
        clock: u64,
        until: u64,
        gone: Words<'_>,
        entries: &[u8],
        effects: &mut impl Effects<Self>,
    ) {
        let partitions = self.compared_with(from);
        let compares = !self.active || self.is_reconciling();
        let comparing = self.copying.copier.compares(from, request).filter(|_| compares);
        if !comparing.is_some_and(|comparing| comparing.asks_for_records()) {
            return effects.ignored("meerkat: DIFFERENCE that was not asked for");
        }
        if let Err(reason) = self.adopt_entries(now, entries, effects) {
            return effects.refused(reason);
        }
        self.note_reads(now, clock);
        let (shared, gone) = (self.shared(partitions), gone.iter());
        let hash_of = hasher(request, shared);
        let Some(comparing) = self.copying.copier.compares(from, request) else { return };
        for (handle, is_gone) in comparing.take_records(&mut self.table, until, gone, hash_of) {
            self.apply_comparison(handle, shared, is_gone, effects);
        }
        self.go_on_comparing(now, partitions);
        self.copy_on(now, effects);
    }
}

/// Gives the hash of a record under a question's name, if it is one of those that are compared and
/// has a version.
fn hasher<T: Table<Meta = Meta>>(
    request: u64,
    shared: Shared,
) -> impl Fn(&mut T, T::Handle) -> Option<u64> {
    let hash = SeededHash::new(request);
    move |table, handle| {
        let record = table.try_lock(handle)?;
        let wts = record.meta().wts;
        if wts == Timestamp::ZERO || !shared.has(record.key()) {
            return None;
        }
        let has_value = u64::from(record.content().is_some());
        let version = [wts.version, u64::from(wts.writer.0) | has_value << 32];
        let version = if mutant!("meerkat_base_compared_by_key") { [0; 2] } else { version };
        Some(hash.of(record.key(), version))
    }
}
