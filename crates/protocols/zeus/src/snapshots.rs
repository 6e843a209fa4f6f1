//! What a lane saves of its state in a snapshot: its own keys, and what is undecided of its transactions.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use quorate_machine::{Command, LaneShared, Record as _, SavePoint, Scan, Table, mutant};
use quorate_rifl::LeaseId;

use crate::fields::Items;
use crate::log::{
    Appended, HEAD, write_calls, write_floors, write_number, write_promised, write_record,
    write_update,
};
use crate::meta::{Extra, Meta};
use crate::state::{Key, Zeus};

/// Records that are looked up at a time while a snapshot is written.
const SAVE_RECORDS: usize = 12;

/// The parts of a snapshot, in order.
const HEAD_PART: u8 = 0;
const OWN_PART: u8 = 1;
const STREAMS_PART: u8 = 2;
const RECORDS_PART: u8 = 3;
const CALLS_PART: u8 = 4;
const FLOORS_PART: u8 = 5;

impl<T: Table<Meta = Meta> + LaneShared, X: Command<Owned = X>> Zeus<T, X> {
    pub(crate) fn save_some(
        &mut self,
        from: SavePoint,
        bytes: usize,
        write: &mut impl FnMut(&[u8]),
    ) -> Option<SavePoint> {
        let mut entry = Vec::new();
        let begin = |part| Some(SavePoint { part, ..SavePoint::START });
        match from.part {
            HEAD_PART => {
                write_number(HEAD, self.log.cluster.0, &mut entry);
                write(&entry);
                entry.clear();
                write_promised(self.log.waited, &mut entry);
                write(&entry);
                begin(OWN_PART)
            }
            OWN_PART => {
                let next = self.save_own(from.at[0], bytes, write);
                next.map_or(begin(STREAMS_PART), |slot| {
                    Some(SavePoint { part: OWN_PART, at: [slot, 0] })
                })
            }
            STREAMS_PART => {
                let next = self.save_streams(from.at, bytes, write);
                next.map_or(begin(RECORDS_PART), |at| Some(SavePoint { part: STREAMS_PART, at }))
            }
            RECORDS_PART => {
                let (mut scan, mut written) = (Scan::at(from.at[0]), 0);
                loop {
                    for key in scan.next_keys(&self.table, SAVE_RECORDS) {
                        written += self.save_record(&key, write);
                    }
                    if scan.is_at_end() {
                        break begin(CALLS_PART);
                    }
                    if written >= bytes {
                        break Some(SavePoint { part: RECORDS_PART, at: [scan.cursor(), 0] });
                    }
                }
            }
            CALLS_PART => self.save_calls(from.at, bytes, write).or(begin(FLOORS_PART)),
            _ => {
                // At the end: nothing that was forgotten on the way is above them.
                write_floors(self.floors_to_keep(), &mut entry);
                write(&entry);
                None
            }
        }
    }

    /// Saves transactions of this node that are under way, behind a slot; the last one saved if there are more.
    fn save_own(&self, after: u64, bytes: usize, write: &mut impl FnMut(&[u8])) -> Option<u64> {
        let (mut written, coordinator) = (0, self.layout.number);
        let mut slot = after.max(self.pipeline.committed);
        while slot < self.pipeline.last() {
            if written >= bytes.max(1) {
                return Some(slot);
            }
            slot += 1;
            let mut entry = Vec::new();
            self.pipeline.write_slot(coordinator, slot, |update| {
                write_update(update, |_| true, &mut entry);
            });
            if !mutant!("zeus_undecided_not_saved") {
                write(&entry);
            }
            written += entry.len();
        }
        None
    }

    /// Saves what other coordinators have under way, behind a slot of one. Before the first view of this life
    /// no layout says which keys this node keeps: they are those that it has restored.
    fn save_streams(
        &mut self,
        [from, after]: [u64; 2],
        bytes: usize,
        write: &mut impl FnMut(&[u8]),
    ) -> Option<[u64; 2]> {
        let mut written = 0;
        let (layout, table) = (&self.layout, &mut self.table);
        let has_begun = self.log.has_begun || mutant!("zeus_keeps_nothing_before_a_view");
        for (coordinator, stream) in &self.streams {
            let number = u64::from(coordinator.0);
            for (slot, applied) in stream.applied.iter() {
                if (number, slot) <= (from, after) {
                    continue;
                }
                let mut entry = Vec::new();
                let keeps = |key: &&[u8]| match has_begun {
                    true => layout.in_group(key),
                    false => table.lock_existing(key).is_some(),
                };
                let keys = Items::trusted(&applied.items).iter().map(|item| item.key);
                let kept: BTreeSet<&[u8]> = keys.filter(keeps).collect();
                let update = Appended {
                    coordinator: *coordinator,
                    slot,
                    committed: stream.committed.min(slot),
                    version: applied.version,
                    depends_on: &applied.depends_on,
                    items: Items::trusted(&applied.items),
                    wholes: &applied.wholes,
                    call: &applied.call,
                };
                write_update(&update, |key| kept.contains(key), &mut entry);
                if !mutant!("zeus_undecided_not_saved") {
                    write(&entry);
                }
                written += entry.len();
                if written >= bytes {
                    return Some([number, slot]);
                }
            }
        }
        None
    }

    fn save_record(&mut self, key: &Key, write: &mut impl FnMut(&[u8])) -> usize {
        if !self.is_own(key) {
            return 0;
        }
        let Some(record) = self.table.lock_existing(key) else { return 0 };
        if record.meta().extra != Extra::None {
            return 0;
        }
        let (version, mut packed, mut entry) = (record.meta().version, Vec::new(), Vec::new());
        write_record(key, version, record.whole(&mut packed), &mut entry);
        drop(record);
        write(&entry);
        entry.len()
    }

    fn save_calls(
        &self,
        at: [u64; 2],
        bytes: usize,
        write: &mut impl FnMut(&[u8]),
    ) -> Option<SavePoint> {
        let (mut written, [mut shard, mut lease]) = (0, at);
        for (number, tracker) in self.calls.trackers() {
            if u64::from(number) < shard {
                continue;
            }
            if u64::from(number) > shard {
                (shard, lease) = (u64::from(number), 0);
            }
            let mut from = Some((LeaseId(lease), 0));
            while let Some(next) = from {
                if written >= bytes.max(1) && next.1 == 0 {
                    return Some(SavePoint { part: CALLS_PART, at: [shard, next.0.0] });
                }
                let (mut sessions, mut entry) = (Vec::new(), Vec::new());
                from = tracker.encode_from(next, bytes, &mut sessions);
                write_calls(number, &sessions, &mut entry);
                write(&entry);
                written += entry.len();
            }
            (shard, lease) = (u64::from(number) + 1, 0);
        }
        None
    }
}
