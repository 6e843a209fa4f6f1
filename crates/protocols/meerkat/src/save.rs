//! Snapshots: entries that bring back what a lane holds, in steps.
//!
//! The records of transactions come first, then the keys. So what has ended meanwhile is in the keys,
//! or its end is in the log behind the snapshot's beginning. What the keys lack in between, floors and
//! watermarks of the end, comes last.

use alloc::vec::Vec;

use quorate_machine::{Command, LaneShared, Record as _, SavePoint, Scan, Table};
use quorate_rifl::LeaseId;
use quorate_types::Timestamp;

use crate::coordinator::{FLOOR, OLDEST, SAVED};
use crate::join::write_entry;
use crate::log::{CLOCK, CLUSTER, COPIED, RecordEntry, write_number, write_sessions, write_stable};
use crate::meta::Meta;
use crate::state::{Meerkat, Phase};

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
    /// Hands out entries for all that this lane holds, in steps. While the epoch changes, a lane's records
    /// are with lane 0, and what came back from a log may not be merged yet: the snapshot waits.
    pub(crate) fn save_some(
        &mut self,
        from: SavePoint,
        bytes: usize,
        write: &mut impl FnMut(&[u8]),
    ) -> Option<SavePoint> {
        let mut entry = Vec::new();
        if self.phase != Phase::Normal {
            return Some(from);
        }
        match from.part {
            BEGIN => {
                // The snapshot before this one is complete.
                let (floor, is_whole) = *self.saved;
                if is_whole {
                    self.table.set_cell(SAVED, floor);
                }
                *self.saved = (self.table.least(FLOOR), false);
                write_number(CLUSTER, self.cluster.0, &mut entry);
                write(&entry);
                entry.clear();
                self.resumed_entry().encode(&mut entry);
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
                let (oldest, floor) = (self.table.least(OLDEST), self.table.least(FLOOR));
                let stable = self.stable.iter();
                let all = stable.map(|(writer, version)| Timestamp::new(*version, *writer));
                write_stable(oldest, floor, all, &mut entry);
                write(&entry);
                entry.clear();
                write_number(CLOCK, self.reserved.until, &mut entry);
                write(&entry);
                self.saved.1 = true;
                None
            }
        }
    }

    /// The records of transactions, at one moment: they live for some milliseconds.
    fn save_records(&self, write: &mut impl FnMut(&[u8])) -> Option<SavePoint> {
        let mut entry = Vec::new();
        let footprints = self.footprints.iter().map(|(key, record)| (key, record));
        let all = footprints.chain(self.records.iter());
        for (key, record) in all {
            entry.clear();
            let keeps_since = self.keeps_footprints(key.partition);
            RecordEntry::of(record).encode(key, keeps_since, &mut entry);
            write(&entry);
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
                entry.push(COPIED);
                write_entry(&record, &mut entry);
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
