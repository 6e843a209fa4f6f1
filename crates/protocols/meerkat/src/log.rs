//! What a replica keeps in the log of its lane: the entries, and what is appended when.
//!
//! ```text
//! RECORD   1 | flags u8 | id | [partition u16 | participants u64] | [view u64] | [since u64] | [sets]
//!              what this replica knows of a transaction; without sets, it has those that it had
//! INSTALL  2 | id | partition u16 | sets            a committed transaction, without a record
//! COPIED   3 | as in a CHUNK                        versions of keys, taken from another replica
//! GONE     4 | version | key                        nothing is held of the key up to this version
//! ADOPTED  5 | epoch u64 | voters u64 | active u64 | part u32 | parts u32 | bytes
//!              the merged record of an epoch, in parts; kept, and not acted on
//! RESUMED  6 | flags u8 | epoch u64 | voters u64 | active u64 | floor u64
//!              the lane goes on in this epoch, and its records of earlier ones are over
//! STABLE   7 | oldest u64 | floor u64 | count * ( writer u32 | version u64 )
//!              up to where each coordinator's transactions are over, and all of them
//! CLOCK    8 | until u64                            no vote and no read here was above
//! SESSIONS 9 | partition u16 | as in CALLS          records of calls
//! CLUSTER 10 | cluster u64                          what comes before is of another cluster
//! ENDED   11 | lease u64 | granted u64 | closed u8  a session has ended
//! FOOTPRINT 12 | as in a RECORD                     in a snapshot: a committed transaction that is over at
//!              every replica; the keys have what it changed, or what came after that
//! ```
//! An id or a version is a timestamp, twelve bytes; sets, keys and bytes fill the entry.
//!
//! What is argued of them is in `docs/design/012-log.md`; in short:
//!
//! - **A vote for OK** leaves behind the record with the sets, an acceptance behind the proposal, and
//!   ACKED behind the end. A coordinator counts itself when its own entry is durable, and forgets a
//!   transaction when its own end is. So the votes that have decided are on the disks of those who gave
//!   them, and what was answered follows from any majority's records.
//! - **A vote against, a promise, a report** need no entry: a process that comes back takes no part in
//!   the epochs of its former life, so it keeps what it said, to give no vote for OK, by itself.
//! - **ADOPTED** leaves behind the merged record. Nobody acts on that before all have it on disk.

use alloc::vec::Vec;

use quorate_machine::{Command, Effects, Gate, LaneShared, Record as _, Table, mutant};
use quorate_rifl::{LeaseEnd, Lost};
use quorate_types::{Epoch, Lsn, NodeId, NodeSet, Now, Timestamp};
use quorate_wire::{Malformed, Reader, Writer};

use crate::join::write_entry;
use crate::merge::{Electorate, Merged};
use crate::message::{Kind, Message};
use crate::meta::Meta;
use crate::state::{Meerkat, Phase};
use crate::txn_record::{RecordKey, TxnRecord, read_partition};

pub(crate) const RECORD: u8 = 1;
pub(crate) const INSTALL: u8 = 2;
pub(crate) const COPIED: u8 = 3;
pub(crate) const GONE: u8 = 4;
pub(crate) const ADOPTED: u8 = 5;
pub(crate) const RESUMED: u8 = 6;
pub(crate) const STABLE: u8 = 7;
pub(crate) const CLOCK: u8 = 8;
pub(crate) const SESSIONS: u8 = 9;
pub(crate) const CLUSTER: u8 = 10;
pub(crate) const ENDED: u8 = 11;
pub(crate) const FOOTPRINT: u8 = 12;

const VOTED: u8 = 1;
const PROPOSED: u8 = 2;
const PROPOSED_OK: u8 = 4;
const DECIDED: u8 = 8;
const COMMITTED: u8 = 16;
/// It is not in partition 0 alone.
const SPREAD: u8 = 32;
const SINCE: u8 = 64;
const SETS: u8 = 128;

/// The promises of this life wait for the log.
const WAITS: u8 = 1;

/// How far ahead of the last timestamp a lane reserves those at which it votes and confirms reads, in
/// nanoseconds. After a restart of all, clocks begin as far ahead at most.
const CLOCK_AHEAD: u64 = 1_000_000_000;
/// The rest of a reservation at which the next one is appended, before anybody has to wait for it.
const CLOCK_LEFT: u64 = CLOCK_AHEAD / 2;

/// What a lane has reserved of time: every vote for OK and every read that it confirms has a timestamp
/// of at most `until`. So after a restart no write below it is let pass, and no read is forgotten.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Reserved {
    /// The reservation of the log's last entry of this kind.
    pub(crate) until: u64,
    /// The place of that entry.
    at: Lsn,
    /// The reservation that was durable when it was appended.
    durable: u64,
}

/// What an entry says of a transaction's record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct RecordEntry<'a> {
    /// The partitions that take part, as a bit set; 0 if unknown.
    pub(crate) participants: u64,
    pub(crate) voted: bool,
    pub(crate) proposed: Option<(u64, bool)>,
    pub(crate) decision: Option<bool>,
    /// When a transaction ended whose footprint is kept.
    pub(crate) since: u64,
    /// `None`: as before.
    pub(crate) sets: Option<&'a [u8]>,
    /// It is over at every replica, and nothing is left to be installed.
    pub(crate) is_over: bool,
}

impl<'a> RecordEntry<'a> {
    /// All of a record.
    pub(crate) fn of(record: &'a TxnRecord) -> Self {
        Self {
            participants: record.participants,
            voted: record.vote == Some(Ok(())),
            proposed: record.accepted,
            decision: record.decision,
            since: record.since.0,
            sets: Some(&record.body[..]).filter(|sets| !sets.is_empty()),
            is_over: false,
        }
    }

    /// What changes behind a vote for OK: its entry has the sets.
    fn without_sets(self) -> Self {
        Self { sets: None, ..self }
    }

    pub(crate) fn encode(&self, key: &RecordKey, keeps_since: bool, bytes: &mut Vec<u8>) {
        let own = 1 << key.partition;
        let is_spread = key.partition > 0 || self.participants & !own != 0;
        let mut flags = if self.voted { VOTED } else { 0 };
        flags |= match self.proposed {
            None => 0,
            Some((_, ok)) => PROPOSED | if ok { PROPOSED_OK } else { 0 },
        };
        flags |= match self.decision {
            None => 0,
            Some(commit) => DECIDED | if commit { COMMITTED } else { 0 },
        };
        flags |= if is_spread { SPREAD } else { 0 };
        flags |= if keeps_since { SINCE } else { 0 };
        flags |= if self.sets.is_some() { SETS } else { 0 };
        let mut writer = Writer(bytes);
        writer.u8(if self.is_over { FOOTPRINT } else { RECORD });
        writer.u8(flags);
        writer.timestamp(key.id());
        if is_spread {
            writer.u16(key.partition);
            writer.u64(self.participants);
        }
        if let Some((view, _)) = self.proposed {
            writer.u64(view);
        }
        if keeps_since {
            writer.u64(self.since);
        }
        writer.rest(self.sets.unwrap_or_default());
    }

    /// Reads what [`RecordEntry::encode`] wrote, behind its kind. The sets are not checked.
    pub(crate) fn decode(
        kind: u8,
        reader: &mut Reader<'a>,
    ) -> Result<(RecordKey, Self), Malformed> {
        let flags = reader.u8()?;
        let id = reader.timestamp()?;
        let (partition, participants) = match flags & SPREAD {
            0 => (0, 1),
            _ => (read_partition(reader)?, reader.u64()?),
        };
        let is_ok = flags & PROPOSED_OK != 0;
        let proposed = match flags & PROPOSED {
            0 => None,
            _ => Some((reader.u64()?, is_ok)),
        };
        let since = if flags & SINCE != 0 { reader.u64()? } else { 0 };
        let decision = (flags & DECIDED != 0).then_some(flags & COMMITTED != 0);
        let sets = (flags & SETS != 0).then(|| reader.rest());
        if (is_ok && proposed.is_none()) || (flags & COMMITTED != 0 && decision.is_none()) {
            return Err(Malformed("flags of a record that contradict each other"));
        }
        let voted = flags & VOTED != 0;
        let is_over = kind == FOOTPRINT;
        let entry = Self { participants, voted, proposed, decision, since, sets, is_over };
        Ok((RecordKey::new(id, partition), entry))
    }
}

/// That a lane goes on in an epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ResumedEntry {
    pub(crate) epoch: Epoch,
    pub(crate) electorate: Electorate,
    /// No write at or below it.
    pub(crate) floor: u64,
    /// Whether the promises of this life wait for the log.
    pub(crate) waits: bool,
}

impl ResumedEntry {
    pub(crate) fn encode(&self, bytes: &mut Vec<u8>) {
        let mut writer = Writer(bytes);
        writer.u8(RESUMED);
        writer.u8(if self.waits { WAITS } else { 0 });
        write_epoch(self.epoch, self.electorate, &mut writer);
        writer.u64(self.floor);
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let waits = match reader.u8()? {
            flags @ (0 | WAITS) => flags == WAITS,
            _ => return Err(Malformed("unknown flags of an epoch")),
        };
        let (epoch, electorate) = read_epoch(reader)?;
        Ok(Self { epoch, electorate, floor: reader.u64()?, waits })
    }
}

fn write_epoch(epoch: Epoch, electorate: Electorate, writer: &mut Writer<'_>) {
    writer.u64(epoch.0);
    writer.u64(electorate.voters.bits());
    writer.u64(electorate.active.bits());
}

pub(crate) fn read_epoch(reader: &mut Reader<'_>) -> Result<(Epoch, Electorate), Malformed> {
    let epoch = Epoch(reader.u64()?);
    let voters = NodeSet::from_bits(reader.u64()?);
    let active = NodeSet::from_bits(reader.u64()?);
    Ok((epoch, Electorate { voters, active }))
}

/// Writes that nothing is held of a key up to a version.
pub(crate) fn write_gone(key: &[u8], version: Timestamp, bytes: &mut Vec<u8>) {
    let mut writer = Writer(bytes);
    writer.u8(GONE);
    writer.timestamp(version);
    writer.rest(key);
}

/// Writes a part of a merged record.
pub(crate) fn write_adopted(
    (epoch, electorate): (Epoch, Electorate),
    (number, parts): (u32, u32),
    part: &[u8],
    bytes: &mut Vec<u8>,
) {
    let mut writer = Writer(bytes);
    writer.u8(ADOPTED);
    write_epoch(epoch, electorate, &mut writer);
    writer.u32(number);
    writer.u32(parts);
    writer.rest(part);
}

/// Writes up to where transactions are over.
pub(crate) fn write_stable(
    oldest: u64,
    floor: u64,
    stable: impl Iterator<Item = Timestamp>,
    bytes: &mut Vec<u8>,
) {
    let mut writer = Writer(bytes);
    writer.u8(STABLE);
    writer.u64(oldest);
    writer.u64(floor);
    stable.for_each(|to| writer.timestamp(to));
}

/// Writes a committed transaction that has no record any more.
pub(crate) fn write_install(key: RecordKey, sets: &[u8], bytes: &mut Vec<u8>) {
    let mut writer = Writer(bytes);
    writer.u8(INSTALL);
    writer.timestamp(key.id());
    writer.u16(key.partition);
    writer.rest(sets);
}

pub(crate) fn write_number(kind: u8, number: u64, bytes: &mut Vec<u8>) {
    let mut writer = Writer(bytes);
    writer.u8(kind);
    writer.u64(number);
}

pub(crate) fn write_sessions(partition: u16, sessions: &[u8], bytes: &mut Vec<u8>) {
    let mut writer = Writer(bytes);
    writer.u8(SESSIONS);
    writer.u16(partition);
    writer.rest(sessions);
}

impl<T, X> Meerkat<T, X>
where
    T: Table<Meta = Meta> + LaneShared,
    X: Command<Owned = X>,
{
    /// Appends what this replica knows of a transaction. If it has said OK, the log has the sets, as
    /// long as the transaction is registered.
    pub(crate) fn append_record(&mut self, key: RecordKey, effects: &mut impl Effects<Self>) {
        let Some(record) = self.records.get(&key) else { return };
        let entry = RecordEntry::of(record);
        let known = record.registered && entry.voted;
        let entry = if known { entry.without_sets() } else { entry };
        self.journal.append(effects, |log| entry.encode(&key, false, log));
    }

    /// Appends a vote for OK, with the sets.
    pub(crate) fn append_vote(&mut self, key: RecordKey, effects: &mut impl Effects<Self>) {
        self.reserve(key.version, effects);
        let Some(record) = self.records.get(&key) else { return };
        let entry = RecordEntry::of(record);
        self.journal.append(effects, |log| entry.encode(&key, false, log));
    }

    /// Appends the end of a transaction; `known` says that the log has its sets.
    pub(crate) fn append_end(
        &mut self,
        key: RecordKey,
        known: bool,
        effects: &mut impl Effects<Self>,
    ) {
        let keeps_since = self.keeps_footprints(key.partition);
        let Some(record) = self.records.get(&key) else { return };
        let entry = RecordEntry::of(record);
        // What the log does not know need not be called off in it.
        if entry.decision == Some(false) && !entry.voted && entry.proposed.is_none() {
            return;
        }
        if mutant!("meerkat_end_not_appended") {
            return;
        }
        let known = known || mutant!("meerkat_end_without_sets");
        let entry = if known { entry.without_sets() } else { entry };
        self.journal.append(effects, |log| entry.encode(&key, keeps_since, log));
    }

    /// Appends a committed transaction that has no record any more.
    pub(crate) fn append_install(
        &mut self,
        key: RecordKey,
        sets: &[u8],
        effects: &mut impl Effects<Self>,
    ) {
        if mutant!("meerkat_learned_not_appended") {
            return;
        }
        self.journal.append(effects, |log| write_install(key, sets, log));
    }

    /// Appends versions that came from another replica.
    pub(crate) fn append_copied(&mut self, entries: &[u8], effects: &mut impl Effects<Self>) {
        if entries.is_empty() || mutant!("meerkat_copied_not_appended") {
            return;
        }
        self.journal.append(effects, |log| {
            log.push(COPIED);
            log.extend_from_slice(entries);
        });
    }

    /// Appends what is held of a key now: this lane's log has all of it from here on.
    pub(crate) fn append_key(&mut self, key: &[u8], effects: &mut impl Effects<Self>) {
        let by = self.shares_logs().then_some(self.config.lane);
        let Self { journal, table, .. } = self;
        let Some(mut record) = table.lock_existing(key) else { return };
        record.locked_state_mut().set_logged_by(by);
        journal.append(effects, |log| {
            log.push(COPIED);
            write_entry(&record, log);
        });
    }

    /// Appends that nothing is held of a key up to a version.
    pub(crate) fn append_gone(
        &mut self,
        key: &[u8],
        version: Timestamp,
        effects: &mut impl Effects<Self>,
    ) {
        if mutant!("meerkat_gone_not_appended") {
            return;
        }
        self.journal.append(effects, |log| write_gone(key, version, log));
    }

    /// Appends the merged record of the epoch in force.
    pub(crate) fn append_adopted(&mut self, merged: &Merged, effects: &mut impl Effects<Self>) {
        if mutant!("meerkat_adopted_not_appended") {
            return;
        }
        let of = (self.epoch(), self.electorate());
        let mut bytes = Vec::new();
        merged.encode(&mut bytes);
        let parts = crate::epoch::parts_of(&bytes);
        for number in 0..parts {
            let part = crate::epoch::part(&bytes, number);
            self.journal.append(effects, |log| write_adopted(of, (number, parts), part, log));
        }
    }

    /// Appends that this lane goes on in the epoch in force.
    pub(crate) fn append_resumed(&mut self, effects: &mut impl Effects<Self>) {
        let has_said_so = self.append_resumed_entry(effects);
        if !has_said_so && self.waits() && !mutant!("meerkat_first_entry_counts_as_lost") {
            // The first entry of a life can't say whether promises wait for it.
            self.append_resumed_entry(effects);
        }
    }

    /// Whether the entry says that promises wait for the log.
    fn append_resumed_entry(&mut self, effects: &mut impl Effects<Self>) -> bool {
        let entry = self.resumed_entry();
        *self.resumed = entry;
        let mut keeps_log = false;
        self.resumed_at = self.journal.append(effects, |log| {
            keeps_log = true;
            entry.encode(log);
        });
        *self.keeps_log = keeps_log;
        entry.waits
    }

    /// Whether promises wait for the log, as far as this life knows.
    fn waits(&self) -> bool {
        self.journal.appended() > Lsn::START
    }

    fn resumed_entry(&self) -> ResumedEntry {
        ResumedEntry {
            epoch: self.epoch(),
            electorate: self.electorate(),
            floor: self.epoch_floor,
            waits: self.waits(),
        }
    }

    /// Appends records of calls that were copied.
    pub(crate) fn append_sessions(
        &mut self,
        partition: u16,
        sessions: &[u8],
        effects: &mut impl Effects<Self>,
    ) {
        self.journal.append(effects, |log| write_sessions(partition, sessions, log));
    }

    /// Appends that what follows is of this cluster.
    pub(crate) fn append_cluster(&mut self, effects: &mut impl Effects<Self>) {
        let cluster = self.cluster.0;
        self.journal.append(effects, |log| write_number(CLUSTER, cluster, log));
    }

    /// Appends the ends of sessions that were told since the last step.
    pub(crate) fn append_ended_sessions(&mut self, effects: &mut impl Effects<Self>) {
        for LeaseEnd { lease, granted, lost } in core::mem::take(&mut *self.ended_sessions) {
            self.journal.append(effects, |log| {
                let mut writer = Writer(log);
                writer.u8(ENDED);
                writer.u64(lease.0);
                writer.u64(granted);
                writer.u8(u8::from(lost == Lost::Closed));
            });
        }
    }

    /// Appends up to where transactions are over, if records were dropped since it did so last.
    pub(crate) fn append_stable(&mut self, effects: &mut impl Effects<Self>) {
        if !core::mem::take(&mut *self.dropped) || mutant!("meerkat_stable_not_appended") {
            return;
        }
        let oldest = self.table.least(crate::coordinator::OLDEST);
        let floor = self.table.least(crate::coordinator::FLOOR);
        let stable = &self.stable;
        let all = || stable.iter().map(|(writer, version)| Timestamp::new(*version, *writer));
        self.journal.append(effects, |log| write_stable(oldest, floor, all(), log));
    }

    // --- time ------------------------------------------------------------------------------------

    /// Reserves time up to a timestamp at which this replica votes for OK or confirms a read.
    #[inline]
    pub(crate) fn reserve(&mut self, version: u64, effects: &mut impl Effects<Self>) {
        if version.saturating_add(CLOCK_LEFT) <= self.reserved.until
            || mutant!("meerkat_clock_not_appended")
        {
            return;
        }
        let until = version.saturating_add(CLOCK_AHEAD);
        let Reserved { until: before, at, durable } = *self.reserved;
        let durable = if self.journal.is_durable(at) { before } else { durable };
        let at = self.journal.append(effects, |log| write_number(CLOCK, until, log));
        *self.reserved = Reserved { until, at, durable };
    }

    /// What a read that was confirmed at a timestamp waits for.
    pub(crate) fn reserved_gate(&self, version: u64) -> Gate {
        let Reserved { at, durable, .. } = *self.reserved;
        if version <= durable || self.journal.is_durable(at) {
            return Gate::OPEN;
        }
        if mutant!("meerkat_read_before_its_clock") { Gate::OPEN } else { Gate::durable(at) }
    }

    // --- promises --------------------------------------------------------------------------------

    /// Sends what this replica promises, behind all that it has appended.
    pub(crate) fn promise_to(
        &self,
        to: NodeId,
        partition: u16,
        kind: Kind<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        effects.send_behind(self.journal.gate(), NodeSet::only(to), &Message { partition, kind });
    }

    /// The log is durable up to a place: goes on with what only waited for that.
    pub(crate) fn on_durable(&mut self, now: Now, lsn: Lsn, effects: &mut impl Effects<Self>) {
        self.journal.note_durable(lsn);
        if self.phase == Phase::Frozen && self.change.is_some() {
            return self.try_release(now, effects);
        }
        while let Some((at, version)) = self.undurable.front().copied()
            && self.journal.is_durable(at)
            && self.phase == Phase::Normal
        {
            self.undurable.pop_front();
            if self.attempts.get(&version).is_some_and(|attempt| attempt.is_open_update()) {
                self.evaluate(now, version, false, effects);
            } else if self.try_close(version) {
                self.advance_own_stable();
            }
        }
        let waiting: Vec<Timestamp> = self.recoveries.keys().copied().collect();
        for id in waiting {
            self.evaluate_recovery(now, id, effects);
        }
    }

    /// Own entries of an attempt were appended: it goes on when they are durable.
    pub(crate) fn wait_for_log(&mut self, version: u64) {
        let at = self.journal.appended();
        if self.journal.is_durable(at) || mutant!("meerkat_own_vote_counted_early") {
            return;
        }
        if let Some(attempt) = self.attempts.get_mut(&version) {
            attempt.durable_at = at;
            self.undurable.push_back((at, version));
        }
    }
}

#[cfg(test)]
mod tests;
