//! Snapshots: entries that bring back what a lane holds, in steps.
//!
//! The records of transactions come first, then the keys. So what has ended meanwhile is in the keys,
//! or its end is in the log behind the snapshot's beginning. What the keys lack in between, floors and
//! watermarks of the end, comes last.

use alloc::vec::Vec;

use quorate_machine::{Command, LaneShared, Record as _, SavePoint, Scan, Table, mutant};
use quorate_rifl::LeaseId;
use quorate_types::{Incarnation, Timestamp};

use crate::coordinator::{FLOOR, OLDEST, SAVED};
use crate::epoch::{part, parts_of};
use crate::join::write_entry;
use crate::log::{
    CLOCK, CLUSTER, COPIED, RecordEntry, write_adopted, write_gone, write_install, write_number,
    write_sessions, write_stable,
};
use crate::meta::Meta;
use crate::restore::Restored;
use crate::state::{Meerkat, Phase};
use crate::txn_record::{RecordKey, TxnRecord};

/// Records that are looked up at a time.
const SAVE_RECORDS: usize = 16;

/// The parts of a snapshot, in order.
const BEGIN: u8 = 0;
const RECORDS: u8 = 1;
const KEYS: u8 = 2;
const CALLS: u8 = 3;
const END: u8 = 4;

const fn at(part: u8, at: [u64; 2]) -> Option<SavePoint> {
    Some(SavePoint { part, at })
}

impl<T, X> Meerkat<T, X>
where
    T: Table<Meta = Meta> + LaneShared,
    X: Command<Owned = X>,
{
    /// Hands out entries for all that this lane holds, in steps.
    pub(crate) fn save_some(
        &mut self,
        from: SavePoint,
        bytes: usize,
        write: &mut impl FnMut(&[u8]),
    ) -> Option<SavePoint> {
        let mut entry = Vec::new();
        match from.part {
            BEGIN => {
                // The snapshot before this one is complete.
                let (floor, is_whole) = *self.saved;
                if is_whole {
                    self.table.set_cell(SAVED, floor);
                }
                *self.saved = (self.table.least(FLOOR), false);
                write_number(CLUSTER, self.cluster_before().0, &mut entry);
                write(&entry);
                entry.clear();
                let handed = self.handed_over();
                handed.map_or(*self.resumed, Restored::resumed).encode(&mut entry);
                write(&entry);
                at(RECORDS, [0; 2])
            }
            RECORDS => self.save_records(write),
            KEYS => self.save_keys(from.at[0], bytes, write),
            CALLS => {
                let [lease, partition] = [from.at[0], from.at[1] >> 48];
                let sequence = from.at[1] & ((1 << 48) - 1);
                let Some(tracker) = self.trackers.get(partition as usize) else {
                    return at(END, [0; 2]);
                };
                let mut sessions = Vec::new();
                let next = tracker.encode_from((LeaseId(lease), sequence), bytes, &mut sessions);
                write_sessions(partition as u16, &sessions, &mut entry);
                write(&entry);
                match next {
                    Some((lease, sequence)) => at(CALLS, [lease.0, sequence | partition << 48]),
                    None => at(CALLS, [0, (partition + 1) << 48]),
                }
            }
            _ => {
                let (until, installed) = self.handed_over().map_or((0, 0), Restored::floors);
                let (oldest, floor) = (self.table.least(OLDEST), self.table.least(FLOOR));
                let floor = floor.max(installed);
                let oldest = if self.handed_over().is_some() { 0 } else { oldest };
                let stable = self.stable.iter();
                let all = stable.map(|(writer, version)| Timestamp::new(*version, *writer));
                write_stable(oldest, floor, all, &mut entry);
                write(&entry);
                entry.clear();
                write_number(CLOCK, self.reserved.until.max(until), &mut entry);
                write(&entry);
                if self.cluster_before() != self.cluster {
                    entry.clear();
                    write_number(CLUSTER, self.cluster.0, &mut entry);
                    write(&entry);
                }
                self.saved.1 = true;
                None
            }
        }
    }

    /// The cluster in which this lane went on last, which a person may have given up since.
    fn cluster_before(&self) -> Incarnation {
        self.handed_over().map_or(self.cluster, |handed| handed.cluster_or(self.cluster))
    }

    /// What this lane has handed over, or will: while the epoch changes, and before a view has named this
    /// process, its records are not with it.
    fn handed_over(&self) -> Option<&Restored> {
        if self.phase == Phase::Normal || mutant!("meerkat_handed_over_not_saved") {
            return None;
        }
        self.restored.as_deref().or(self.handed.as_deref())
    }

    /// The records of transactions, at one moment: they live for some milliseconds.
    fn save_records(&self, write: &mut impl FnMut(&[u8])) -> Option<SavePoint> {
        let mut entry = Vec::new();
        // A key that such a transaction has written may have been deleted since, and the deletion be forgotten.
        let installed = self.handed_over().map_or(0, |handed| handed.floors().1);
        let over = installed.max(self.table.least(FLOOR));
        let mut add = |key: &RecordKey, record: &TxnRecord| {
            entry.clear();
            let keeps_since = self.keeps_footprints(key.partition);
            let is_over = record.decision == Some(true)
                && key.version <= over
                && !mutant!("meerkat_footprint_installed_again");
            let of_record = RecordEntry { is_over, ..RecordEntry::of(record) };
            of_record.encode(key, keeps_since, &mut entry);
            write(&entry);
        };
        self.footprints.iter().for_each(|(key, record)| add(key, record));
        self.records.iter().for_each(|(key, record)| add(key, record));
        if let Some(handed) = self.handed_over() {
            handed.records().for_each(|(key, record)| add(key, record));
            // Those of other lanes came with merged records, of which a later one may have taken the place.
            let kept = |key: &RecordKey| {
                !mutant!("meerkat_parked_of_siblings_not_saved") || self.is_own(key)
            };
            for (key, sets) in handed.parked().iter().filter(|(key, _)| kept(key)) {
                entry.clear();
                write_install(*key, sets, &mut entry);
                write(&entry);
            }
        }
        let restored = self.handed_over().and_then(Restored::adopted);
        if let Some((epoch, electorate, merged)) = self.unreleased().or(restored) {
            let mut bytes = Vec::new();
            merged.encode(&mut bytes);
            let parts = parts_of(&bytes);
            for number in 0..parts {
                entry.clear();
                let of = (epoch, electorate);
                write_adopted(of, (number, parts), part(&bytes, number), &mut entry);
                write(&entry);
            }
        }
        at(KEYS, [0; 2])
    }

    /// Some of the keys whose versions this lane's log has. All lanes share them, so it looks at all.
    fn save_keys(
        &mut self,
        cursor: u64,
        bytes: usize,
        write: &mut impl FnMut(&[u8]),
    ) -> Option<SavePoint> {
        let (mut scan, mut written) = (Scan::at(cursor), 0);
        let (lane, lanes) = (self.config.lane, self.config.lanes);
        let mut entry = Vec::new();
        loop {
            for key in scan.next_of_all(&self.table, SAVE_RECORDS) {
                let Some(record) = self.table.lock_existing(&key) else { continue };
                let by = record.locked_state().logged_by();
                let by = by.unwrap_or_else(|| record.meta().wts.writer.lane(lanes));
                // A sibling's delta may have changed in place what this lane's log has.
                if lanes > 1 && by != lane && record.large().is_none() {
                    continue;
                }
                entry.clear();
                // Another lane's log may have a value of this very version: the record was let go by a
                // comparison.
                let is_deletion = record.content().is_none() && record.meta() != Meta::default();
                if lanes > 1 && is_deletion && !mutant!("meerkat_deletion_saved_as_a_version") {
                    write_gone(&key, record.meta().wts, &mut entry);
                } else {
                    entry.push(COPIED);
                    write_entry(&record, &mut entry);
                }
                drop(record);
                if entry.len() > 1 {
                    written += entry.len();
                    write(&entry);
                }
            }
            if scan.is_at_end() {
                return at(CALLS, [0; 2]);
            }
            if written >= bytes {
                return at(KEYS, [scan.cursor(), 0]);
            }
        }
    }
}
