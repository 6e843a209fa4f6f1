//! What a replica keeps in the log of its lane, and how it comes back.
//!
//! ```text
//! UPDATE    1 | an INV without cookie     the newest version of a key, with the call that it is of
//! GONE      2 | key                       nothing is held of the key any more
//! FLOORS    3 | floor u64 | next_floor u64   zeros: those before mean nothing any more
//! CLUSTER   4 | cluster u64               what came before is of another cluster, or of no use; or of one
//!                                         from which this one was recovered
//! SESSIONS  5 | as in a CHUNK             records of calls
//! UNDECIDED 6 | version u64 | writer u32 | base version u64 | base writer u32
//!             | expiry of the base u64 (0: none) | key | delta | inverse
//! ```
//! Keys and deltas carry a length of four bytes; the last field fills the entry.
//!
//! **Before a promise leaves.** A replica acknowledges an update behind the place at which it has
//! appended it. The coordinator counts as one more replica: it makes a version readable only when its
//! own entry is durable, too. So what is Valid anywhere is on the disks of all live replicas. INVs
//! leave at once: there is one flush on the path of an update. (Hence no optimisation O3 with a log that
//! promises wait for: an INV would count as the acknowledgement of its sender.) FLOOR_READY leaves behind the floor
//! that it promises, and a shadow is caught up when all that it has copied is durable.
//!
//! **What is not appended.** VALs: what comes back is in doubt as after the loss of all coordinators,
//! and replays decide it. Collected tombstones: they come back below the floor, and are collected
//! again. What leaves the base of an earlier life is appended (GONE): a key that others have deleted
//! would come back with the base.
//!
//! **One replica restarts.** What it restores is the base of an earlier life (`difference.rs`).
//!
//! **All restart.** The first view that names this process calls it active, for it has all that it
//! acknowledged; a view with some of the old replicas is like one after the others have crashed. The
//! records are this life's as they are: no walk over all of them holds up the first client. Each is
//! Invalid, and its writer is nobody's number in the new view: its first reader replays it, and so does
//! the sweep, which also lists the tombstones among them and notes what expires. Updates of absent keys
//! wait for the first round of floors. Without that, a log that was flushed behind its promises could
//! bring back a floor below that of others. Nor is a key taken for absent before all sweeps are over
//! and others have been asked: its creation may have been in the part of this log that is lost
//! (`tombstones.rs`).

use alloc::vec::Vec;

use quorate_machine::{Command, Effects, Record, SavePoint, Scan, Slot, Table, Unreadable, mutant};
use quorate_rifl::{Found, LeaseId};
use quorate_types::{Incarnation, Now, UnixMillis, View};
use quorate_wire::{Reader, Writer};

use crate::deltas::{Received, Undecided, inv_of};
use crate::message::{Inv, Message};
use crate::ops::Tentative;
use crate::tombstones::Floors;
use crate::{Hermes, Meta, State};

const UPDATE: u8 = 1;
const GONE: u8 = 2;
const FLOORS: u8 = 3;
const CLUSTER: u8 = 4;
const SESSIONS: u8 = 5;
const UNDECIDED: u8 = 6;

/// Records that are looked up at a time while a snapshot is written.
const SAVE_RECORDS: usize = 12;

/// The parts of a snapshot, in order.
const CLUSTER_PART: u8 = 0;
const RECORDS_PART: u8 = 1;
const SESSIONS_PART: u8 = 2;
const FLOORS_PART: u8 = 3;

/// Why [`crate::Config::ack_broadcast`] is not for a log that promises wait for.
pub(crate) const O3_AND_LOG: &str = "ack_broadcast takes an update for what its sender has made \
                                     durable, which it has not yet with durability = \"sync\"";

const DAMAGED: Unreadable = Unreadable("hermes: a damaged entry");

impl<T: Table<Meta = Meta>, O: Command<Owned = O>> Hermes<T, O> {
    // --- appending -------------------------------------------------------------------------------

    /// Appends a version that was adopted.
    #[inline]
    pub(crate) fn append_update(&mut self, inv: &Inv<'_>, effects: &mut impl Effects<Self>) {
        self.journal.append(effects, |log| write_update(inv, log));
    }

    /// Appends that nothing is held of a key any more.
    pub(crate) fn append_gone(&mut self, key: &[u8], effects: &mut impl Effects<Self>) {
        if mutant!("hermes_dropped_base_not_appended") {
            return;
        }
        self.journal.append(effects, |log| {
            let mut writer = Writer(log);
            writer.u8(GONE);
            writer.rest(key);
        });
    }

    /// Appends the floors.
    pub(crate) fn append_floors(&mut self, effects: &mut impl Effects<Self>) {
        if mutant!("hermes_floors_not_appended") {
            return;
        }
        let floors = (self.floors.floor, self.floors.next_floor);
        self.journal.append(effects, |log| write_floors(floors, log));
    }

    /// What is copied from now on may be cut short in the log, and a key that has gone from the base, and is
    /// not here again yet, is not one that was deleted below a floor of an earlier life.
    pub(crate) fn leave_floors(&mut self, effects: &mut impl Effects<Self>) {
        self.floors = Floors::default();
        if !mutant!("hermes_floor_of_an_earlier_life_kept") {
            self.append_floors(effects);
        }
    }

    /// Appends records of calls that were copied.
    pub(crate) fn append_sessions(&mut self, sessions: &[u8], effects: &mut impl Effects<Self>) {
        self.journal.append(effects, |log| write_tagged(SESSIONS, sessions, log));
    }

    /// Appends that what follows is of this cluster, and what came before is not.
    pub(crate) fn append_cluster(&mut self, effects: &mut impl Effects<Self>) {
        let cluster = self.cluster;
        self.journal.append(effects, |log| write_tagged(CLUSTER, &cluster.0.to_le_bytes(), log));
    }

    /// The log is durable up to a place: updates that only waited for that are committed.
    pub(crate) fn on_durable(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        while let Some((lsn, slot)) = self.undurable.front().copied()
            && self.journal.is_durable(lsn)
        {
            self.undurable.pop_front();
            self.commit_if_acknowledged(now, slot, effects);
        }
        self.release_reads(effects);
    }

    // --- restoring -------------------------------------------------------------------------------

    /// Takes in an entry of an earlier process.
    pub(crate) fn restore_entry(&mut self, entry: &[u8]) -> Result<(), Unreadable> {
        let mut reader = Reader(entry);
        match reader.u8().map_err(|_| DAMAGED)? {
            UPDATE => self.restore_update(entry),
            GONE => {
                self.restore_gone(reader.rest());
                Ok(())
            }
            FLOORS => {
                let floor = reader.u64().map_err(|_| DAMAGED)?;
                let next_floor = reader.u64().map_err(|_| DAMAGED)?;
                reader.end().map_err(|_| DAMAGED)?;
                self.floors.restore(floor, next_floor);
                Ok(())
            }
            CLUSTER => {
                let cluster = Incarnation(reader.u64().map_err(|_| DAMAGED)?);
                reader.end().map_err(|_| DAMAGED)?;
                let former = core::mem::replace(&mut self.cluster, cluster);
                if former == cluster || !former.shares_data_with(cluster) {
                    self.table.reset();
                    self.deltas.clear();
                    self.forget_calls();
                    self.floors = Floors::default();
                }
                Ok(())
            }
            SESSIONS => self.tracker.merge(reader.rest()).map_err(|_| DAMAGED),
            UNDECIDED => self.restore_undecided(&mut reader),
            _ => Err(Unreadable("hermes: an unknown entry")),
        }
    }

    fn restore_update(&mut self, entry: &[u8]) -> Result<(), Unreadable> {
        let Ok(Message::Inv(inv)) = Message::decode(entry) else { return Err(DAMAGED) };
        let length = inv.content.map_or(0, |content| content.bytes.len());
        if let Some(reason) = self.refuse_update(inv.key, inv.timestamp.version, length) {
            return Err(Unreadable(reason));
        }
        let handle = match inv.content {
            Some(_) => self.table.find_or_insert_sized(inv.key, length),
            None => self.table.find_or_insert(inv.key),
        };
        let mut record = self.table.lock(handle);
        let meta = record.meta();
        if inv.timestamp < meta.timestamp {
            return Ok(());
        }
        if inv.timestamp > meta.timestamp {
            if inv.base.is_some() {
                drop(record);
                match self.receive_delta(handle, &inv) {
                    Received::Changed => {}
                    Received::Lacking => {
                        return Err(Unreadable("hermes: a delta on a version that is not there"));
                    }
                    Received::Damaged => return Err(Unreadable("hermes: a damaged delta")),
                }
                record = self.table.lock(handle);
            } else {
                self.deltas.forget(&handle);
            }
            match inv.content {
                Some(content) if inv.base.is_none() => record.set_content(content),
                Some(_) => {}
                None => record.clear(),
            }
            let state =
                if mutant!("hermes_restored_as_valid") { State::Valid } else { State::Invalid };
            let meta = Meta { timestamp: inv.timestamp, state, rmw: inv.rmw, ..Meta::default() };
            record.set_meta(Meta { unsettled: true, ..meta });
            drop(record);
            if let Some(tentative) = self.tentative.remove(&handle)
                && inv.base_version() >= tentative.timestamp.version
            {
                self.complete(handle, tentative);
            }
        } else {
            drop(record);
        }
        self.restore_call(handle, &inv);
        Ok(())
    }

    /// The call of a version that is held, unless its record is there.
    fn restore_call(&mut self, handle: T::Handle, inv: &Inv<'_>) {
        let Some(completion) = inv.completion else { return };
        if mutant!("hermes_call_not_restored") {
            return;
        }
        if matches!(self.tracker.find(&completion.call), Ok(Found::New)) {
            self.tentative.insert(handle, Tentative::of(inv.timestamp, &completion));
        }
    }

    fn restore_gone(&mut self, key: &[u8]) {
        let Some(handle) = self.table.find(key) else { return };
        self.deltas.forget(&handle);
        self.tentative.remove(&handle);
        self.table.remove(handle);
    }

    fn restore_undecided(&mut self, reader: &mut Reader<'_>) -> Result<(), Unreadable> {
        let timestamp = reader.timestamp().map_err(|_| DAMAGED)?;
        let base = reader.timestamp().map_err(|_| DAMAGED)?;
        let expiry = reader.u64().map_err(|_| DAMAGED)?;
        let key = reader.bytes().map_err(|_| DAMAGED)?;
        let delta = reader.bytes().map_err(|_| DAMAGED)?.to_vec();
        let inverse = reader.rest().to_vec();
        let Some(handle) = self.table.find(key) else { return Err(DAMAGED) };
        let record = self.table.lock(handle);
        let is_it = record.meta().timestamp == timestamp && record.content().is_some();
        drop(record);
        if !is_it || base >= timestamp {
            return Err(DAMAGED);
        }
        let base_expire_at = (expiry > 0).then_some(UnixMillis(expiry));
        let undecided = Undecided { timestamp, base, delta, inverse, base_expire_at };
        self.deltas.keep(handle, undecided);
        Ok(())
    }

    /// All entries are in.
    pub(crate) fn end_restore(&mut self) {
        self.restored = true;
        // Another lane may have the first view before this one, and read keys of this one.
        self.set_doubt(true);
    }

    /// The first view that names this process decides what becomes of what was restored: the state of
    /// an active replica, or the base of a shadow.
    pub(crate) fn take_restored(
        &mut self,
        now: Now,
        view: &View,
        is_active: bool,
        effects: &mut impl Effects<Self>,
    ) {
        if !core::mem::take(&mut self.restored) {
            return;
        }
        // A log that names no cluster has lost everything.
        let is_lost =
            self.cluster == Incarnation::default() && !mutant!("hermes_lost_log_is_no_log");
        let is_recovered = view.cluster.shares_data_with(self.cluster)
            && (view.cluster == self.cluster || !mutant!("hermes_recovers_nothing"));
        let is_ours = is_lost || is_recovered;
        if !is_active || !is_ours {
            self.leave_base();
            self.leave_floors(effects);
            self.deltas.clear();
            return self.forget_calls();
        }
        effects.probe("hermes: goes on from its log");
        let active = view.members.iter().filter(|member| self.active.contains(member.node));
        self.lives_since = active.map(|member| member.number).min().unwrap_or_default();
        if self.has_base {
            return self.take_base(now);
        }
        // It has begun no other life: what was restored is this life's. To look at each record would
        // take long, and nobody is served before that; the sweep comes to each anyway.
        self.doubt_what_others_have(true);
    }

    /// Others may have kept more. So may this replica, if it came back from a log.
    pub(crate) fn doubt_what_others_have(&mut self, came_back: bool) {
        self.floors.doubt(came_back);
        self.set_doubt(true);
        self.doubt_records();
    }

    /// Others serve again that have come back from their logs, and this replica has lived on. It has all that was
    /// acknowledged, and they may have lost the ends of their logs.
    pub(crate) fn doubt_as_survivor(&mut self, effects: &mut impl Effects<Self>) {
        if mutant!("hermes_survivor_does_not_doubt") {
            return;
        }
        effects.probe("hermes: lives on among others that have come back");
        self.doubt_what_others_have(true);
        self.floors.lived_on = true;
    }

    /// Nobody has more than this replica has: what an earlier life has left is a part of it.
    pub(crate) fn inherit(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        effects.probe("hermes: a group goes on with what its eldest member has");
        if self.has_base {
            self.take_base(now);
        }
    }

    fn take_base(&mut self, now: Now) {
        self.has_base = false;
        self.doubt_what_others_have(true);
        let mut scan = Scan::default();
        loop {
            for handle in scan.next_handles(&self.table, SAVE_RECORDS) {
                self.take_record(now, handle);
            }
            if scan.is_at_end() {
                return;
            }
        }
    }

    /// An earlier life's record is one of this life.
    fn take_record(&mut self, now: Now, handle: T::Handle) {
        let mut record = self.table.lock(handle);
        let before = record.meta();
        if before.is_blank() || before.life == self.life {
            return;
        }
        // The list of that life is gone.
        record.set_meta(Meta { life: self.life, listed: false, ..before });
        drop(record);
        self.list(now, handle);
    }

    /// Lists a record of this life if it is a tombstone that came back from the log, and notes its expiry.
    /// Gives its words.
    pub(crate) fn list(&mut self, now: Now, handle: T::Handle) -> Meta {
        let mut record = self.table.lock(handle);
        let before = record.meta();
        if before.is_blank() || before.life != self.life {
            return before;
        }
        let content = record.content();
        if !mutant!("hermes_restored_expiry_not_noted") {
            self.expiry.note(now.monotonic, content.and_then(|content| content.expire_at));
        }
        if content.is_some() || before.listed || mutant!("hermes_restored_tombstone_not_listed") {
            return before;
        }
        let listed = self.tombstones.note(&self.config, now, handle, true, &before);
        let meta = Meta { listed, ..before };
        record.set_meta(meta);
        self.floors.note_version(true, meta.timestamp.version);
        meta
    }

    // --- snapshots -------------------------------------------------------------------------------

    /// Hands out entries for all that is held, in steps.
    pub(crate) fn save_some(
        &mut self,
        from: SavePoint,
        bytes: usize,
        write: &mut impl FnMut(&[u8]),
    ) -> Option<SavePoint> {
        let mut entry = Vec::new();
        match from.part {
            CLUSTER_PART => {
                write_tagged(CLUSTER, &self.cluster.0.to_le_bytes(), &mut entry);
                write(&entry);
                Some(SavePoint { part: RECORDS_PART, ..SavePoint::START })
            }
            RECORDS_PART => {
                let (mut scan, mut written) = (Scan::at(from.at[0]), 0);
                loop {
                    for handle in scan.next_handles(&self.table, SAVE_RECORDS) {
                        written += self.save_record(handle, write);
                    }
                    if scan.is_at_end() {
                        break Some(SavePoint { part: SESSIONS_PART, ..SavePoint::START });
                    }
                    if written >= bytes {
                        break Some(SavePoint { part: RECORDS_PART, at: [scan.cursor(), 0] });
                    }
                }
            }
            SESSIONS_PART => {
                entry.push(SESSIONS);
                let [lease, sequence] = from.at;
                let next = self.tracker.encode_from((LeaseId(lease), sequence), bytes, &mut entry);
                write(&entry);
                Some(match next {
                    Some((lease, sequence)) => {
                        SavePoint { part: SESSIONS_PART, at: [lease.0, sequence] }
                    }
                    None => SavePoint { part: FLOORS_PART, ..SavePoint::START },
                })
            }
            _ => {
                // At the end: no tombstone that was collected on the way is above these floors.
                write_floors((self.floors.floor, self.floors.next_floor), &mut entry);
                write(&entry);
                None
            }
        }
    }

    /// Saves a record, an earlier life's too; how many bytes were written.
    fn save_record(&mut self, handle: T::Handle, write: &mut impl FnMut(&[u8])) -> usize {
        let record = self.table.lock(handle);
        let meta = record.meta();
        if meta.is_blank() {
            return 0;
        }
        let (mut whole, mut entry) = (Vec::new(), Vec::new());
        let call = self.tentative.get(&handle);
        let inv = inv_of(&record, Slot::NONE, call, None, &mut whole);
        write_update(&inv, &mut entry);
        write(&entry);
        let mut written = entry.len();
        if let Some(undecided) = self.deltas.get(&handle)
            && !mutant!("hermes_undecided_not_saved")
        {
            entry.clear();
            write_undecided(record.key(), undecided, &mut entry);
            write(&entry);
            written += entry.len();
        }
        written
    }
}

/// The key that an entry changes, if it is an update.
pub(crate) fn key_of(entry: &[u8]) -> Option<&[u8]> {
    match Message::decode(entry) {
        Ok(Message::Inv(inv)) if entry[0] == UPDATE => Some(inv.key),
        _ => None,
    }
}

pub(crate) fn write_update(inv: &Inv<'_>, log: &mut Vec<u8>) {
    Message::Inv(Inv { cookie: Slot::NONE, ..*inv }).encode(&mut Writer(log));
}

fn write_tagged(kind: u8, bytes: &[u8], log: &mut Vec<u8>) {
    log.push(kind);
    log.extend_from_slice(bytes);
}

fn write_floors((floor, next_floor): (u64, u64), log: &mut Vec<u8>) {
    let mut writer = Writer(log);
    writer.u8(FLOORS);
    writer.u64(floor);
    writer.u64(next_floor);
}

fn write_undecided(key: &[u8], undecided: &Undecided, log: &mut Vec<u8>) {
    let mut writer = Writer(log);
    writer.u8(UNDECIDED);
    writer.timestamp(undecided.timestamp);
    writer.timestamp(undecided.base);
    writer.u64(undecided.base_expire_at.map_or(0, |at| at.0));
    writer.bytes(key);
    writer.bytes(&undecided.delta);
    writer.rest(&undecided.inverse);
}

#[cfg(test)]
mod tests {
    use quorate_types::Timestamp;

    use super::*;

    #[test]
    fn the_key_of_an_update_is_found() {
        let inv = Inv {
            cookie: Slot::NONE,
            key: b"k",
            timestamp: Timestamp::ZERO,
            rmw: false,
            content: None,
            base: None,
            completion: None,
        };
        let mut entry = Vec::new();
        write_update(&inv, &mut entry);
        assert_eq!(key_of(&entry), Some(&b"k"[..]));
        entry.clear();
        write_floors((1, 2), &mut entry);
        assert_eq!(key_of(&entry), None);
        assert_eq!(key_of(&[]), None);
    }
}
