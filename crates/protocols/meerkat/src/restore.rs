//! What comes back from the log, and what becomes of it: the state of an active replica when all
//! restart, the base of a shadow's comparison otherwise.
//!
//! Each lane restores its own entries into the records that all lanes share, whole values by their
//! versions, so that it matters to none in which order the lanes are read. A delta whose base another
//! lane brings is *parked* until lane 0 has the entries of all lanes, and installs what is parked in
//! the order of time. What has no base even then is reported as committed: its base has not ended here, so
//! others report that, and the epoch change brings both.
//!
//! **To the epoch change a restart is an expulsion.** What came back is the report of a former life
//! (`epoch.rs`), as if this process had stood still since: nobody of those epochs can hear of it any
//! more, and the next merge has what it knew. So a restart of all needs no protocol of its own: the
//! first view after it is merged from the reports of those who came back, as after any loss of a
//! minority. It is right for the same reason: a vote, an acceptance or an adoption that anybody has
//! heard of was on disk before. If too few have come back, the merge says so.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use quorate_machine::{Command, Effects, LaneShared, Record as _, Table, Unreadable, mutant};
use quorate_rifl::{LeaseEnd, LeaseId, Lost};
use quorate_types::{
    Epoch, Incarnation, Instant, MemberNumber, NodeSet, Now, Timestamp, WriterId, limits,
};
use quorate_wire::{Malformed, Reader};

use crate::body::{Body, Write};
use crate::calls::ResultTracker;
use crate::join::{install_entry, read_entry};
use crate::log::{
    ADOPTED, CLOCK, CLUSTER, COPIED, ENDED, FOOTPRINT, GONE, INSTALL, RECORD, RESUMED, RecordEntry,
    ResumedEntry, SESSIONS, STABLE, read_epoch,
};
use crate::merge::{Electorate, Merged, Report};
use crate::meta::Meta;
use crate::occ;
use crate::records::Records;
use crate::state::Meerkat;
use crate::txn_record::{RecordKey, TxnRecord, read_partition};

/// What a lane has brought back, besides versions of keys and records of calls.
#[derive(Clone, Hash, Debug, Default)]
pub struct Restored {
    /// The epoch in which the lane went on last, and who could vote in it.
    resumed: (Epoch, Electorate),
    /// The cluster that this was in.
    cluster: Incarnation,
    /// Whether promises waited for the log then.
    waited: bool,
    /// Every timestamp at which this replica has voted for OK or has confirmed a read is at most this.
    floor: u64,
    /// Everything up to here is installed on all replicas.
    installed: u64,
    /// The highest number of a member that coordinated something.
    highest: MemberNumber,
    stable: BTreeMap<WriterId, u64>,
    /// Records of that epoch.
    records: Records,
    footprints: VecDeque<(RecordKey, TxnRecord)>,
    /// Committed transactions with a delta whose base has not come.
    parked: Vec<(RecordKey, Vec<u8>)>,
    /// The merged record that comes in, in parts.
    incoming: Vec<u8>,
    incoming_parts: u32,
    /// On lane 0: the merged record that was adopted last, with its epoch.
    adopted: Option<(Epoch, Electorate, Merged)>,
    /// Whom a person has named as all that is left of the cluster, if one had to.
    left: Option<NodeSet>,
}

const DAMAGED: Unreadable = Unreadable("meerkat: a damaged entry");

/// The first key that an entry changes, if it is a transaction.
pub(crate) fn key_of(entry: &[u8]) -> Option<&[u8]> {
    let mut reader = Reader(entry);
    if reader.u8().ok()? != INSTALL {
        return None;
    }
    reader.timestamp().ok()?;
    read_partition(&mut reader).ok()?;
    Some(Body::check(reader.rest()).ok()?.iter().next()?.key)
}

fn damaged(_: Malformed) -> Unreadable {
    DAMAGED
}

impl Restored {
    /// What a lane knows of an epoch in which it went on, as it would come back.
    pub(crate) fn of_epoch(
        cluster: Incarnation,
        (resumed, floor): (ResumedEntry, u64),
        installed: u64,
        records: Records,
    ) -> Self {
        Self {
            resumed: (resumed.epoch, resumed.electorate),
            cluster,
            waited: resumed.waits,
            floor: floor.max(resumed.floor),
            installed,
            records,
            ..Self::default()
        }
    }

    /// The epoch in which the lane went on last.
    pub(crate) fn resumed(&self) -> ResumedEntry {
        let (epoch, electorate) = self.resumed;
        ResumedEntry { epoch, electorate, floor: self.floor, waits: self.waited }
    }

    /// The cluster in which the lane went on last, if it did; this one otherwise.
    pub(crate) fn cluster_or(&self, cluster: Incarnation) -> Incarnation {
        if self.resumed.0 == Epoch(0) { cluster } else { self.cluster }
    }

    pub(crate) fn floors(&self) -> (u64, u64) {
        (self.floor, self.installed)
    }

    pub(crate) fn records(&self) -> impl Iterator<Item = (&RecordKey, &TxnRecord)> {
        self.footprints.iter().map(|(key, record)| (key, record)).chain(self.records.iter())
    }

    pub(crate) fn parked(&self) -> &[(RecordKey, Vec<u8>)] {
        &self.parked
    }

    pub(crate) fn adopted(&self) -> Option<(Epoch, Electorate, &Merged)> {
        self.adopted.as_ref().map(|(epoch, electorate, merged)| (*epoch, *electorate, merged))
    }

    /// Drops transactions that have ended at every replica. The end of one may come only later: a snapshot
    /// whose end knows of it may have been taken of the record and of the keys before, and then the end
    /// stands in the log, without the sets.
    fn drop_stable(&mut self, oldest: u64) {
        let mut ends_later = Vec::new();
        for (writer, to) in &self.stable {
            while let Some((key, record)) = self.records.pop_up_to(*writer, *to) {
                if record.decision == Some(true) && record.since > Instant::ZERO {
                    self.footprints.push_back((key, record));
                } else if record.decision.is_none()
                    && !mutant!("meerkat_stable_drops_the_undecided")
                {
                    ends_later.push((key, record));
                }
            }
        }
        self.records.extend(ends_later);
        self.footprints.retain(|(_, record)| record.since.0 >= oldest);
    }
}

impl<T, X> Meerkat<T, X>
where
    T: Table<Meta = Meta> + LaneShared,
    X: Command<Owned = X>,
{
    /// Takes in an entry of an earlier process.
    pub(crate) fn restore_entry(&mut self, entry: &[u8]) -> Result<(), Unreadable> {
        self.restored.get_or_insert_default();
        let mut reader = Reader(entry);
        match reader.u8().map_err(damaged)? {
            kind @ (RECORD | FOOTPRINT) => self.restore_record(kind, &mut reader),
            INSTALL => {
                let id = reader.timestamp().map_err(damaged)?;
                let key = RecordKey::new(id, read_partition(&mut reader).map_err(damaged)?);
                let sets = reader.rest();
                Body::check(sets).map_err(damaged)?;
                if self.is_own(&key) {
                    self.check_restored(&key)?;
                } else if key.version == 0 || usize::from(key.partition) >= self.trackers.len() {
                    return Err(DAMAGED);
                }
                self.restore_committed(key, sets);
                Ok(())
            }
            COPIED => self.restore_copied(&mut reader),
            GONE => {
                let version = reader.timestamp().map_err(damaged)?;
                let key = reader.rest();
                if key.len() > limits::KEY_BYTES_MAX {
                    return Err(DAMAGED);
                }
                self.let_go(key, version);
                Ok(())
            }
            ADOPTED => self.restore_adopted(&mut reader),
            RESUMED => {
                let entry = ResumedEntry::decode(&mut reader).map_err(damaged)?;
                reader.end().map_err(damaged)?;
                self.restore_resumed(entry);
                Ok(())
            }
            STABLE => self.restore_stable(&mut reader),
            CLOCK => {
                let until = reader.u64().map_err(damaged)?;
                reader.end().map_err(damaged)?;
                let restored = self.restored.get_or_insert_default();
                restored.floor = restored.floor.max(until);
                Ok(())
            }
            SESSIONS => {
                let partition = read_partition(&mut reader).map_err(damaged)?;
                let tracker = self.trackers.get_mut(usize::from(partition)).ok_or(DAMAGED)?;
                tracker.merge(reader.rest()).map_err(damaged)
            }
            CLUSTER => {
                let cluster = Incarnation(reader.u64().map_err(damaged)?);
                reader.end().map_err(damaged)?;
                self.restore_cluster(cluster)
            }
            ENDED => {
                let (lease, granted) =
                    (LeaseId(reader.u64().map_err(damaged)?), reader.u64().map_err(damaged)?);
                let lost = match reader.u8().map_err(damaged)? {
                    0 => Lost::Expired,
                    1 => Lost::Closed,
                    _ => return Err(DAMAGED),
                };
                reader.end().map_err(damaged)?;
                self.forget_session(&LeaseEnd { lease, granted, lost });
                Ok(())
            }
            _ => Err(Unreadable("meerkat: an unknown entry")),
        }
    }

    /// Whether a transaction is of this lane.
    pub(crate) fn is_own(&self, key: &RecordKey) -> bool {
        key.writer.lane(self.config.lanes) == self.config.lane
    }

    /// Whether a transaction is one that this lane can have a record of.
    fn check_restored(&mut self, key: &RecordKey) -> Result<(), Unreadable> {
        if key.version == 0
            || !self.is_own(key)
            || usize::from(key.partition) >= self.trackers.len()
        {
            return Err(Unreadable("meerkat: an entry about a transaction of another lane"));
        }
        let restored = self.restored.get_or_insert_default();
        if !key.writer.is_guest() {
            restored.highest = restored.highest.max(key.writer.member());
        }
        Ok(())
    }

    fn restore_record(&mut self, kind: u8, reader: &mut Reader<'_>) -> Result<(), Unreadable> {
        let (key, entry) = RecordEntry::decode(kind, reader).map_err(damaged)?;
        reader.end().map_err(damaged)?;
        if let Some(sets) = entry.sets {
            Body::check(sets).map_err(damaged)?;
        }
        self.check_restored(&key)?;
        let restored = self.restored.get_or_insert_default();
        let (record, _) = restored.records.get_or_insert_with(key, TxnRecord::default);
        if record.decision.is_some_and(|end| entry.decision.is_some_and(|other| other != end)) {
            return Err(Unreadable("meerkat: two ends of one transaction"));
        }
        record.participants |= entry.participants;
        record.vote = entry.voted.then_some(Ok(()));
        if let Some((view, ok)) = entry.proposed
            && view >= record.view
        {
            record.accept(view, ok);
        }
        if let Some(sets) = entry.sets {
            record.body = sets.to_vec();
        }
        if entry.since > 0 {
            record.since = Instant(entry.since);
        }
        if entry.decision.is_none() || record.decision.is_some() {
            return Ok(());
        }
        record.decision = entry.decision;
        if entry.is_over {
            return Ok(());
        }
        let body = core::mem::take(&mut record.body);
        if entry.decision == Some(true) && !body.is_empty() {
            self.restore_install(key, &body);
            let restored = self.restored.get_or_insert_default();
            if let Some(record) = restored.records.get_mut(&key) {
                record.body = body;
            }
        }
        Ok(())
    }

    /// Installs a committed transaction of this lane, or parks it.
    fn restore_install(&mut self, key: RecordKey, sets: &[u8]) {
        let body = Body::trusted(sets);
        self.complete_call(key.id(), key.partition, body);
        self.add_tombstones(key.id(), body);
        self.install_or_park(key, sets);
    }

    /// Installs a committed transaction, or parks it. It is of another lane if it stood in a merged record.
    fn restore_committed(&mut self, key: RecordKey, sets: &[u8]) {
        if self.is_own(&key) {
            return self.restore_install(key, sets);
        }
        self.install_or_park(key, sets);
        if !mutant!("meerkat_parked_again_in_no_log") {
            self.note_logged_here(key.id(), Body::trusted(sets));
        }
    }

    fn install_or_park(&mut self, key: RecordKey, sets: &[u8]) {
        if !occ::apply(&mut self.table, key.id(), Body::trusted(sets)) {
            let restored = self.restored.get_or_insert_default();
            restored.parked.push((key, sets.to_vec()));
        }
    }

    /// Installs what is parked and whose bases are there now. Whether anything was.
    pub(crate) fn retry_parked(&mut self) -> bool {
        let Some(restored) = &mut self.restored else { return false };
        let parked = core::mem::take(&mut restored.parked);
        let tried = parked.len();
        parked.into_iter().for_each(|(key, sets)| self.install_or_park(key, &sets));
        self.restored.as_ref().is_some_and(|restored| restored.parked.len() < tried)
    }

    fn restore_copied(&mut self, reader: &mut Reader<'_>) -> Result<(), Unreadable> {
        while !reader.0.is_empty() {
            let entry = read_entry(reader).map_err(damaged)?;
            if entry.0.len() > limits::KEY_BYTES_MAX {
                return Err(DAMAGED);
            }
            let by = (self.config.lanes > 1).then_some(self.config.lane);
            install_entry(&mut self.table, entry, Some(self.life), by);
        }
        Ok(())
    }

    /// Nothing is held of a key up to this version. Other lanes' logs may bring older versions of the key
    /// back, in any order: with them it stays as a deletion, until all of them are over.
    fn let_go(&mut self, key: &[u8], version: Timestamp) {
        if self.config.lanes == 1 {
            self.table.remove_if(key, |record| record.meta().wts <= version);
            return;
        }
        let mut record = self.table.lock_key(key, 0);
        let meta = record.meta();
        if meta.wts <= version {
            record.clear();
            record.set_meta(Meta { wts: version, ..meta });
            record.locked_state_mut().set_logged_by(Some(self.config.lane));
        }
        drop(record);
        self.tombstones.push_back((version.version, key.into()));
    }

    fn restore_adopted(&mut self, reader: &mut Reader<'_>) -> Result<(), Unreadable> {
        let (epoch, electorate) = read_epoch(reader).map_err(damaged)?;
        let number = reader.u32().map_err(damaged)?;
        let parts = reader.u32().map_err(damaged)?;
        let restored = self.restored.get_or_insert_default();
        if number == 0 {
            // What an earlier process had not come to the end of is forgotten.
            restored.incoming.clear();
            restored.incoming_parts = 0;
        }
        if number != restored.incoming_parts || number >= parts {
            return Err(Unreadable("meerkat: a part of a merged record out of turn"));
        }
        restored.incoming.extend_from_slice(reader.rest());
        restored.incoming_parts += 1;
        if restored.incoming_parts < parts {
            return Ok(());
        }
        let bytes = core::mem::take(&mut restored.incoming);
        let merged = Merged::decode(&bytes).map_err(damaged)?;
        let partitions = self.config.partitions.len();
        if merged.settled.keys().any(|key| usize::from(key.partition) >= partitions) {
            return Err(DAMAGED);
        }
        restored.adopted = Some((epoch, electorate, merged));
        Ok(())
    }

    /// The lane went on: what it knew of earlier epochs is over, by what lane 0 had adopted.
    fn restore_resumed(&mut self, entry: ResumedEntry) {
        let cluster = self.cluster;
        let restored = self.restored.get_or_insert_default();
        restored.resumed = (entry.epoch, entry.electorate);
        restored.cluster = cluster;
        restored.waited = entry.waits;
        restored.floor = restored.floor.max(entry.floor);
        restored.records = Records::new();
        restored.footprints.clear();
        let adopted = restored.adopted.take();
        if let Some((epoch, _, merged)) = &adopted
            && *epoch == entry.epoch
        {
            for (key, sets) in committed(merged) {
                if !self.is_placed_here(key.partition) {
                    continue;
                }
                self.restore_committed(key, sets);
            }
        }
        self.restored.get_or_insert_default().adopted = adopted;
    }

    /// Whether the configuration has this node hold a partition's records.
    fn is_placed_here(&self, partition: u16) -> bool {
        self.is_placed_at(self.config.node, partition)
            || mutant!("meerkat_restores_what_is_elsewhere")
    }

    /// The log of this lane has what a transaction of another lane has installed. Of what changes a value
    /// in place it has no more than the change.
    pub(crate) fn note_logged_here(&mut self, id: Timestamp, body: Body<'_>) {
        let lane = self.config.lane;
        if self.config.lanes == 1 || id.writer.lane(self.config.lanes) == lane {
            return;
        }
        let is_whole = |write: Write<'_>| {
            !matches!(write, Write::Delta(_)) || mutant!("meerkat_change_taken_for_the_value")
        };
        for item in body.iter().filter(|item| item.write.is_some_and(is_whole)) {
            if let Some(mut record) = self.table.lock_existing(item.key)
                && record.meta().wts == id
            {
                record.locked_state_mut().set_logged_by(Some(lane));
            }
        }
    }

    fn restore_stable(&mut self, reader: &mut Reader<'_>) -> Result<(), Unreadable> {
        let oldest = reader.u64().map_err(damaged)?;
        let floor = reader.u64().map_err(damaged)?;
        let restored = self.restored.get_or_insert_default();
        restored.installed = restored.installed.max(floor);
        while !reader.0.is_empty() {
            let to = reader.timestamp().map_err(damaged)?;
            let known = restored.stable.entry(to.writer).or_default();
            *known = to.version.max(*known);
        }
        restored.drop_stable(oldest);
        Ok(())
    }

    fn restore_cluster(&mut self, cluster: Incarnation) -> Result<(), Unreadable> {
        let former = core::mem::replace(&mut self.cluster, cluster);
        if former.0 == 0 || former.shares_data_with(cluster) {
            return Ok(());
        }
        if self.config.lanes > 1 {
            // The lanes' entries can't be told apart by cluster once they are in one table.
            return Err(Unreadable("meerkat: a log of two clusters"));
        }
        self.table.reset();
        self.trackers.fill(ResultTracker::default());
        self.tombstones.clear();
        self.restored = Some(alloc::boxed::Box::default());
        Ok(())
    }

    /// All entries are in.
    pub(crate) fn end_restore(&mut self) {
        // What it takes in before it goes on in an epoch is in its log, too.
        *self.keeps_log = !mutant!("meerkat_no_log_before_an_epoch");
        self.restored.get_or_insert_default().drop_stable(0);
    }

    /// The first view that names this process: what came back is its state, if it is active, or its
    /// base. Gives what lane 0 has to know.
    pub(crate) fn take_restored(
        &mut self,
        now: Now,
        effects: &mut impl Effects<Self>,
    ) -> Option<Restored> {
        let mut restored = *self.restored.take()?;
        // A log that names no cluster has lost everything.
        let is_lost = self.cluster.0 == 0 && !mutant!("meerkat_lost_log_is_no_log");
        // It may have begun in the recovered cluster before, and not have gone on there.
        let went_on_in = match mutant!("meerkat_recovered_once") {
            true => self.cluster,
            false => restored.cluster_or(self.cluster),
        };
        let is_recovered = !is_lost && self.view.cluster != went_on_in;
        if !is_lost && !self.view.cluster.shares_data_with(self.cluster)
            || is_recovered && mutant!("meerkat_recovers_nothing")
        {
            self.trackers.fill(ResultTracker::default());
            self.tombstones.clear();
            return None;
        }
        restored.left = is_recovered.then(|| self.view.active());
        *self.handed = Some(alloc::boxed::Box::new(restored.clone()));
        // Or a transaction of this life could have the id of one of an earlier life.
        assert!(
            restored.highest < self.member || restored.highest.0 == 0,
            "member {} of this view has coordinated before this process began",
            self.member
        );
        self.observe(now, restored.floor);
        if self.active {
            effects.probe("meerkat: goes on from its log");
            self.revives = true;
            self.doubts = !restored.waited && !mutant!("meerkat_doubtful_state_served");
        } else if mutant!("meerkat_restored_counts_as_own") {
            return None;
        } else if restored.waited || mutant!("meerkat_doubtful_shadow_keeps_nothing") {
            self.let_go_of_restored();
            if !restored.waited {
                return None;
            }
        } else {
            // What it said may be lost here, and that it said nothing of an epoch proves nothing. But if all
            // others come back from such logs, too, it may be needed (`reconcile.rs`).
            self.doubts = true;
        }
        Some(restored)
    }

    /// What came back becomes the base of a shadow's comparison.
    pub(crate) fn let_go_of_restored(&mut self) {
        self.trackers.fill(ResultTracker::default());
        self.tombstones.clear();
        self.leave_base();
    }

    /// Installs what has waited for the entries of other lanes. The next merged record may not have it any more,
    /// and the snapshots of those lanes will not: so this lane's log gets what has changed.
    ///
    /// A shadow's report may be one of an epoch that others have left behind; so nothing changes in its base, as
    /// what is kept of that is what logs have. Only if it is in doubt others may need it.
    fn install_parked<'a>(
        &mut self,
        parked: impl Iterator<Item = (Timestamp, Body<'a>)>,
        effects: &mut impl Effects<Self>,
    ) {
        let is_needed = self.active || self.doubts || mutant!("meerkat_base_of_what_no_log_has");
        if !is_needed || mutant!("meerkat_parked_forgotten") {
            return;
        }
        let mut changed = BTreeSet::new();
        for (id, body) in parked {
            let lacking = self.lacks(id, body);
            occ::apply(&mut self.table, id, body);
            let left = self.lacks(id, body);
            changed.extend(lacking.into_iter().filter(|key| !left.contains(key)));
        }
        if mutant!("meerkat_base_of_what_no_log_has")
            || self.active && mutant!("meerkat_parked_left_to_the_merged_record")
        {
            return;
        }
        for key in changed {
            self.append_key(&key, effects);
        }
    }

    /// On lane 0, once all lanes have frozen: what this process would have reported if it had stood still
    /// since its power went.
    pub(crate) fn compose_report(
        &mut self,
        now: Now,
        shares: Vec<Restored>,
        effects: &mut impl Effects<Self>,
    ) -> Option<Report> {
        let mut adopted = None;
        let (mut epoch, mut electorate) = (Epoch(0), Electorate::default());
        let mut parked: BTreeMap<(Timestamp, u16), Vec<u8>> = BTreeMap::new();
        let (mut floor, mut installed, mut left) = (0, 0, None);
        let mut lanes = Vec::new();
        for mut share in shares {
            left = left.or(share.left);
            adopted = adopted.or(share.adopted.take());
            if share.resumed.0 > epoch {
                (epoch, electorate) = share.resumed;
            }
            floor = floor.max(share.floor);
            installed = installed.max(share.installed);
            let park = |(key, sets): (RecordKey, _)| ((key.id(), key.partition), sets);
            parked.extend(share.parked.drain(..).map(park));
            lanes.push(share);
        }
        let mut records = Records::new();
        let released = epoch;
        if let Some((of, voters, merged)) = &adopted
            && *of >= released
        {
            (epoch, electorate) = (*of, *voters);
            floor = floor.max(merged.floor);
            records = merged.records();
            if *of == released {
                let here = committed(merged).filter(|(key, _)| self.is_placed_here(key.partition));
                let sets = here.map(|(key, sets)| (key, sets.to_vec()));
                parked.extend(sets.map(|(key, sets)| ((key.id(), key.partition), sets)));
            }
        }
        if epoch == Epoch(0) || mutant!("meerkat_restored_without_report") {
            return None;
        }
        // A lane that has adopted the epoch may have gone on in it as well, and have lost that.
        let went_on = |share: &&Restored| {
            share.resumed.0 == epoch || !mutant!("meerkat_adopted_epoch_is_all_there")
        };
        let doubtful = lanes.iter().filter(went_on).any(|share| !share.waited);
        for share in lanes.into_iter().filter(|share| share.resumed.0 == epoch) {
            records.extend(share.footprints);
            records.extend(share.records);
        }
        let bodies = parked.iter().map(|((id, _), sets)| (*id, Body::trusted(sets)));
        self.install_parked(bodies, effects);
        for ((id, partition), sets) in parked {
            let (decision, body) = (Some(true), sets);
            let record = TxnRecord { decision, body, ..TxnRecord::default() };
            records.insert(RecordKey::new(id, partition), record);
        }
        if mutant!("meerkat_floor_not_restored") {
            floor = 0;
        }
        let (last_normal, clock) = (epoch, self.clock(now));
        let given_up = left.map_or(NodeSet::EMPTY, |left| electorate.active.difference(left));
        Some(Report {
            last_normal,
            electorate,
            doubtful,
            given_up,
            floor,
            installed,
            clock,
            records,
        })
    }
}

/// What a merged record has committed, in the order of time.
fn committed(merged: &Merged) -> impl Iterator<Item = (RecordKey, &[u8])> {
    let has_sets = |settled: &crate::merge::Settled| settled.commit && !settled.body.is_empty();
    let mut all: Vec<_> = { merged.settled.iter() }
        .filter(|(_, settled)| has_sets(settled))
        .map(|(key, settled)| (*key, &settled.body[..]))
        .collect();
    all.sort_unstable_by_key(|(key, _)| key.id());
    all.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::{Item, Write};
    use crate::log::{write_install, write_sessions};

    #[test]
    fn the_first_key_of_a_transaction_is_found() {
        let item = |key| Item { key, base: None, absent: false, write: Some(Write::Delete) };
        let sets = Body::encode(&[item(b"k"), item(b"l")]);
        let mut entry = Vec::new();
        write_install(RecordKey::new(Timestamp::ZERO, 0), &sets, &mut entry);
        assert_eq!(key_of(&entry), Some(&b"k"[..]));
        entry.clear();
        write_sessions(0, &sets, &mut entry);
        assert_eq!(key_of(&entry), None);
    }
}
