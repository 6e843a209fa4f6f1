//! The log: what each lane appends, and how the lanes of a node come back from it.
//!
//! # What is where
//! A transaction is one entry, with all that it changes and the answer of the call that it is. It stands
//! in the log of each lane that it holds: first of the one that runs it, then, once that entry is durable
//! and with the release, of the others, which make their own changes as they append it. So the log of a
//! lane has every change of the lane's keys, in the order of versions, and some of other lanes' keys.
//!
//! # What waits
//! Nobody is shown a change before it is durable: its record is unreadable to other lanes, answers leave
//! behind a gate, and a lane that is to be held for a transaction passes the turn on only once all that
//! it has appended is durable. Therefore whatever a transaction rests on is durable before it is, on each
//! of its lanes.
//!
//! # What comes back
//! A lane restores its own keys from its own log. The last transaction over several lanes may be in the
//! log of one of them only. Versions tell: a lane's log has it if the largest version in that log is not
//! below. So before lanes serve, each sends every other one the transactions that are missing there.
//! A transaction comes back whole, or not at all.
//!
//! # Snapshots
//! A snapshot of a lane has its own keys, and each transaction over several lanes of which this lane does
//! not know yet that it is durable at all of them. Changes of other lanes' transactions are not in the
//! records of this lane before they are durable, so no snapshot has a part of what may be lost.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;

use quorate_machine::{
    Command, Content, Effects, Gate, Journal, LaneShared, OrderedTable, Record, SavePoint, Scan,
    Unreadable, is_collection, mutant,
};
use quorate_rifl::{Call, LeaseId};
use quorate_types::{
    Incarnation, LaneId, Lsn, Now, Timestamp, UnixMillis, View, lane_of_key, limits,
};
use quorate_wire::{Malformed, Reader, Writer};

use crate::meta::Meta;
use crate::state::{Lanes, Local, Mail, Turn};
use crate::workspace::Ran;

/// Records that a snapshot looks at together.
const RECORDS: usize = 16;
/// The cell in which a lane says up to which version its log has what concerns it.
const HELD: usize = 0;

/// What comes before is of another cluster: it goes.
const CLUSTER: u8 = 1;
/// The beginning of a snapshot.
const HEAD: u8 = 2;
/// A key of a snapshot.
const RECORD: u8 = 3;
/// A transaction.
const COMMIT: u8 = 4;
/// Records of calls of a snapshot.
const SESSIONS: u8 = 5;

const SEVERAL_LANES: u8 = 1;
const CALL: u8 = 2;

const VALUE: u8 = 1;
const EXPIRY: u8 = 2;
const DELTA: u8 = 4;

/// A transaction as it stands in logs and travels between lanes.
pub(crate) type Entry = Arc<[u8]>;

/// What a lane knows of its log.
#[derive(Debug)]
pub(crate) struct Log<X: Command> {
    pub(crate) journal: Journal,
    /// Whether there is one. Where a keyspace is in memory there is none, though the node has a log.
    pub(crate) is_kept: bool,
    /// Whether this node has come back from one.
    is_restored: bool,
    /// Whether a view has come.
    has_begun: bool,
    /// The cluster that the records are of.
    cluster: Incarnation,
    /// The version up to which the newest snapshot has everything.
    saved: u64,
    /// Changes of this lane's keys that other lanes may not read yet.
    hidden: VecDeque<Hidden>,
    /// A turn that leaves once all is durable.
    passing: Option<Turn<X>>,
    /// Transactions that have run here and end once all up to a place is durable.
    ending: VecDeque<(Lsn, End<X::Reply>)>,
    /// Transactions over several lanes that are in this log, and the lanes of which that is not known.
    pub(crate) unconfirmed: BTreeMap<Timestamp, (Lanes, Entry)>,
    /// What other lanes wait to hear of: that a transaction is durable here.
    confirming: VecDeque<(Lsn, LaneId, Timestamp)>,
    /// Lanes that have yet to say what this one may lack.
    pub(crate) awaited: Lanes,
    /// What they have said.
    missing: BTreeMap<Timestamp, (Lanes, Entry)>,
}

/// Changes that other lanes may read once an entry is durable.
#[derive(Debug)]
struct Hidden {
    until: Lsn,
    version: Timestamp,
    keys: Vec<Box<[u8]>>,
}

/// The end of a transaction over several lanes, or for another lane's client.
#[derive(Debug)]
pub(crate) struct End<R> {
    pub(crate) turn: Turn<()>,
    pub(crate) entry: Option<Entry>,
    pub(crate) ran: Ran<R>,
}

impl<X: Command> Log<X> {
    /// Transactions that have run here and wait until they are durable.
    pub(crate) fn to_end(&self) -> impl Iterator<Item = &End<X::Reply>> {
        self.ending.iter().map(|(_, end)| end)
    }
}

impl<X: Command> Default for Log<X> {
    fn default() -> Self {
        Self {
            journal: Journal::default(),
            is_kept: false,
            is_restored: false,
            has_begun: false,
            cluster: Incarnation::default(),
            saved: 0,
            hidden: VecDeque::new(),
            passing: None,
            ending: VecDeque::new(),
            unconfirmed: BTreeMap::new(),
            confirming: VecDeque::new(),
            awaited: Lanes::default(),
            missing: BTreeMap::new(),
        }
    }
}

impl<X: Command> Log<X> {
    /// Whether all that was appended is durable.
    pub(crate) fn is_flushed(&self) -> bool {
        self.journal.is_durable(self.journal.appended())
    }
}

// --- entries -------------------------------------------------------------------------------------

/// A transaction's entry, read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Commit<'a> {
    pub(crate) at: Timestamp,
    lanes: Option<Lanes>,
    call: Option<Completed<'a>>,
    items: &'a [u8],
}

/// The call that a transaction is, with its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completed<'a> {
    pub(crate) call: Call,
    pub(crate) date: u64,
    pub(crate) answer: &'a [u8],
}

/// What a transaction has left in a key.
#[derive(Clone, Copy, Debug)]
struct Item<'a> {
    key: &'a [u8],
    content: Option<Content<'a>>,
    /// The version that the bytes change, if they are a delta.
    base: Option<Timestamp>,
}

/// Writes the beginning of a transaction's entry; its items follow.
pub(crate) fn write_commit(
    out: &mut Vec<u8>,
    at: Timestamp,
    lanes: Lanes,
    call: Option<Completed<'_>>,
) {
    let mut writer = Writer(out);
    writer.u8(COMMIT);
    let several = if lanes.is_one() { 0 } else { SEVERAL_LANES };
    writer.u8(several | if call.is_some() { CALL } else { 0 });
    writer.timestamp(at);
    if several != 0 {
        writer.u64(lanes.bits());
    }
    if let Some(Completed { call, date, answer }) = call {
        call.encode(&mut writer);
        writer.u64(date);
        writer.bytes(answer);
    }
}

/// Writes what a transaction leaves in a key: a value, a delta of this version, or nothing.
pub(crate) fn write_item(
    out: &mut Vec<u8>,
    key: &[u8],
    content: Option<Content<'_>>,
    base: Option<Timestamp>,
) {
    let mut writer = Writer(out);
    writer.bytes(key);
    let Some(Content { bytes, kind, expire_at }) = content else { return writer.u8(0) };
    let flag = |is_set, flag| if is_set { flag } else { 0 };
    writer.u8(VALUE | flag(expire_at.is_some(), EXPIRY) | flag(base.is_some(), DELTA));
    if let Some(base) = base {
        writer.timestamp(base);
    }
    writer.u8(kind as u8);
    writer.bytes(bytes);
    if let Some(at) = expire_at {
        writer.u64(at.0);
    }
}

/// The first key that an entry changes, if it is a transaction.
pub(crate) fn key_of(entry: &[u8]) -> Option<&[u8]> {
    let mut reader = Reader(entry);
    if reader.u8().ok()? != COMMIT {
        return None;
    }
    let mut items = Reader(Commit::read(&mut reader).ok()?.items);
    Some(read_item(&mut items).ok()?.key)
}

fn read_item<'a>(reader: &mut Reader<'a>) -> Result<Item<'a>, Malformed> {
    let key = reader.bytes()?;
    if key.len() > limits::KEY_BYTES_MAX {
        return Err(Malformed("a key beyond its limit"));
    }
    let flags = reader.u8()?;
    if flags == 0 {
        return Ok(Item { key, content: None, base: None });
    }
    if flags & VALUE == 0 || flags & !(VALUE | EXPIRY | DELTA) != 0 {
        return Err(Malformed("unknown flags of a value"));
    }
    let base = if flags & DELTA != 0 { Some(reader.timestamp()?) } else { None };
    let kind = quorate_machine::ValueKind::from_u8(reader.u8()?);
    let kind = kind.ok_or(Malformed("unknown kind of value"))?;
    if base.is_some() && !is_collection(kind) {
        return Err(Malformed("a delta of what is no collection"));
    }
    let bytes = reader.bytes()?;
    let expires = flags & EXPIRY != 0;
    let expire_at = if expires { Some(UnixMillis(reader.u64()?)) } else { None };
    Ok(Item { key, content: Some(Content { bytes, kind, expire_at }), base })
}

impl<'a> Commit<'a> {
    /// Reads all of an entry behind its kind.
    fn read(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let flags = reader.u8()?;
        if flags & !(SEVERAL_LANES | CALL) != 0 {
            return Err(Malformed("unknown flags of a transaction"));
        }
        let at = reader.timestamp()?;
        let lanes = if flags & SEVERAL_LANES != 0 { Some(reader.u64()?) } else { None };
        let mut call = None;
        if flags & CALL != 0 {
            let read = Call::decode(reader)?;
            call = Some(Completed { call: read, date: reader.u64()?, answer: reader.bytes()? });
        }
        let items = reader.rest();
        let mut left = Reader(items);
        while !left.0.is_empty() {
            read_item(&mut left)?;
        }
        Ok(Self { at, lanes: lanes.map(Lanes::from_bits), call, items })
    }

    /// Of an entry that was written or checked here.
    fn trusted(entry: &'a [u8]) -> Self {
        Self::read(&mut Reader(&entry[1..])).expect("it was written here")
    }

    fn items(self) -> impl Iterator<Item = Item<'a>> {
        let mut left = Reader(self.items);
        core::iter::from_fn(move || {
            (!left.0.is_empty()).then(|| read_item(&mut left).expect("it was checked"))
        })
    }
}

// --- the lane ------------------------------------------------------------------------------------

impl<T, X> Local<T, X>
where
    T: OrderedTable<Meta = Meta> + LaneShared,
    X: Command<Owned = X>,
{
    /// Whether a transaction has to wait: the lane is held, or does not know all that it held before the
    /// power went.
    pub(crate) fn is_blocked(&self) -> bool {
        self.held || self.awaits()
    }

    pub(crate) fn awaits(&self) -> bool {
        !self.log.awaited.is_empty() && !mutant!("local_serves_before_other_lanes_have_told")
    }

    /// What an answer waits for that rests on records of this lane.
    pub(crate) fn gate(&self) -> Gate {
        match mutant!("local_answered_before_durable") {
            true => Gate::OPEN,
            false => self.log.journal.gate(),
        }
    }

    /// Makes keys of this lane readable again once an entry is durable.
    pub(crate) fn read_after(&mut self, lsn: Lsn, version: Timestamp, keys: Vec<Box<[u8]>>) {
        if !keys.is_empty() {
            self.log.hidden.push_back(Hidden { until: lsn, version, keys });
        }
    }

    /// Passes a turn to the next lane, once all that this lane has appended is durable: the transaction
    /// may rest on it, and is in another log.
    pub(crate) fn pass(&mut self, turn: Turn<X>, effects: &mut impl Effects<Self>) {
        if !self.log.is_flushed() && !mutant!("local_turn_passed_before_durable") {
            effects.probe("local: a turn waits for the log");
            self.log.passing = Some(turn);
            return;
        }
        let next = turn.lanes.after(self.config.lane).expect("there is another lane");
        effects.mail(next, Mail::Turn(turn.into()));
    }

    /// Ends a transaction that has run here, once it and what it has read is durable.
    pub(crate) fn end_when_durable(
        &mut self,
        now: Now,
        end: End<X::Reply>,
        effects: &mut impl Effects<Self>,
    ) {
        if let Some(entry) = &end.entry {
            let others = end.turn.lanes.without(self.config.lane);
            self.log.unconfirmed.insert(Commit::trusted(entry).at, (others, entry.clone()));
        }
        if self.log.is_flushed() || mutant!("local_released_before_durable") {
            return self.end(now, end, effects);
        }
        self.log.ending.push_back((self.log.journal.appended(), end));
    }

    /// What was appended is durable up to here.
    pub(crate) fn on_durable(&mut self, now: Now, lsn: Lsn, effects: &mut impl Effects<Self>) {
        self.log.journal.note_durable(lsn);
        while let Some(Hidden { version, keys, .. }) =
            self.log.hidden.pop_front_if(|hidden| hidden.until <= lsn)
        {
            for key in keys {
                if let Some(mut record) = self.table.lock_existing(&key)
                    && record.meta().version == version
                {
                    record.set_meta(Meta { version, changing: false });
                }
            }
        }
        while let Some((_, to, at)) = self.log.confirming.pop_front_if(|(to, ..)| *to <= lsn) {
            effects.mail(to, Mail::Kept { at });
        }
        while let Some((_, end)) = self.log.ending.pop_front_if(|(to, _)| *to <= lsn) {
            self.end(now, end, effects);
        }
        if self.log.is_flushed()
            && let Some(turn) = self.log.passing.take()
        {
            self.pass(turn, effects);
        }
    }

    /// Takes over a transaction that another lane has run, and says to that lane when it is durable here.
    pub(crate) fn keep(
        &mut self,
        from: LaneId,
        entry: &Entry,
        origin: u64,
        effects: &mut impl Effects<Self>,
    ) {
        let commit = Commit::trusted(entry);
        let lsn = self.log.journal.append(effects, |out| out.extend_from_slice(entry));
        self.table.set_writer(origin);
        self.take_in(commit);
        self.table.set_writer(0);
        self.confirm(from, lsn, commit.at, effects);
    }

    fn confirm(&mut self, to: LaneId, lsn: Lsn, at: Timestamp, effects: &mut impl Effects<Self>) {
        if self.log.journal.is_durable(lsn) || mutant!("local_kept_before_durable") {
            return effects.mail(to, Mail::Kept { at });
        }
        self.log.confirming.push_back((lsn, to, at));
    }

    /// A transaction is in the log of another lane, too.
    pub(crate) fn on_kept(&mut self, from: LaneId, at: Timestamp) {
        let Some((others, _)) = self.log.unconfirmed.get_mut(&at) else { return };
        *others = others.without(from);
        if others.is_empty() {
            self.log.unconfirmed.remove(&at);
        }
    }

    /// Makes the changes that a transaction has left in keys of this lane, as far as they are not made,
    /// and keeps the record of its call if that is one of this lane's.
    fn take_in(&mut self, commit: Commit<'_>) {
        self.last = self.last.max(commit.at.version);
        let (lane, lanes) = (self.config.lane, self.config.lanes);
        for item in commit.items().filter(|item| lane_of_key(item.key, lanes) == lane) {
            self.take_in_item(commit.at, &item);
        }
        if let Some(Completed { call, date, answer }) = commit.call
            && call.lease.lane() == lane
            && !mutant!("local_record_not_restored")
        {
            self.tracker.complete(&call, (), date, answer);
        }
    }

    fn take_in_item(&mut self, at: Timestamp, item: &Item<'_>) {
        let length = item.content.map_or(0, |content| content.bytes.len());
        let mut record = self.table.lock_key(item.key, length);
        let version = record.meta().version;
        if version >= at {
            return;
        }
        match (item.content, item.base) {
            (Some(content), Some(base)) => {
                // Without its base the key was deleted later, as the log goes on to say.
                let is_base = version == base || mutant!("local_delta_on_any_base");
                let large = record.large_mut().filter(|_| is_base);
                if large.is_none_or(|large| large.apply(content.bytes, &mut Vec::new()).is_err()) {
                    return;
                }
                record.set_expiry(content.expire_at);
            }
            (Some(content), None) => record.set_content(content),
            (None, _) => record.clear(),
        }
        record.set_meta(Meta { version: at, changing: false });
    }

    // --- restart ---------------------------------------------------------------------------------

    pub(crate) fn restore_entry(&mut self, entry: &[u8]) -> Result<(), Malformed> {
        let mut reader = Reader(entry);
        match reader.u8()? {
            CLUSTER => {
                let cluster = Incarnation(reader.u64()?);
                reader.end()?;
                if !self.log.cluster.shares_data_with(cluster) {
                    self.forget_all();
                }
                self.log.cluster = cluster;
            }
            HEAD => {
                let (cluster, last) = (Incarnation(reader.u64()?), reader.u64()?);
                reader.end()?;
                self.log.cluster = cluster;
                self.last = self.last.max(last);
                self.log.saved = last;
            }
            RECORD => {
                let at = reader.timestamp()?;
                let item = read_item(&mut reader)?;
                reader.end()?;
                self.take_in_item(at, &item);
            }
            COMMIT => {
                let commit = Commit::read(&mut reader)?;
                let all = Lanes::all(self.config.lanes);
                if commit.lanes.is_some_and(|lanes| !lanes.is_within(all)) {
                    return Err(Malformed("a lane that this node does not have"));
                }
                // Up to there the records of the snapshot have everything, also what was deleted.
                if commit.at.version > self.log.saved || mutant!("local_snapshot_overtaken") {
                    self.take_in(commit);
                }
                if let Some(lanes) = commit.lanes {
                    let others = lanes.without(self.config.lane);
                    self.log.unconfirmed.insert(commit.at, (others, entry.into()));
                }
            }
            SESSIONS => self.tracker.merge(reader.rest())?,
            _ => return Err(Malformed("unknown kind of entry")),
        }
        self.table.set_cell(HELD, self.last);
        Ok(())
    }

    /// Removes all that this lane holds.
    fn forget_all(&mut self) {
        let mut scan = Scan::default();
        loop {
            for key in scan.next_keys(&self.table, RECORDS) {
                self.table.remove_if(&key, |_| true);
            }
            if scan.is_at_end() {
                break;
            }
        }
        self.tracker = quorate_rifl::ResultTracker::default();
        self.log.unconfirmed.clear();
    }

    /// Every lane of this node has restored its log.
    pub(crate) fn on_restored(&mut self) {
        self.log.is_restored = true;
        self.forget_confirmed();
        if !mutant!("local_floor_not_restored") {
            self.table.raise_highest(self.last);
        }
        self.log.awaited = Lanes::all(self.config.lanes).without(self.config.lane);
    }

    /// Drops transactions that all their lanes have.
    fn forget_confirmed(&mut self) {
        let table = &self.table;
        self.log.unconfirmed.retain(|at, (others, _)| {
            for lane in others.iter().filter(|lane| table.cell_of(*lane, HELD) >= at.version) {
                *others = others.without(lane);
            }
            !others.is_empty()
        });
    }

    /// The first view: the records are of its cluster, or they go. Tells the other lanes what they lack.
    pub(crate) fn begin_log(&mut self, now: Now, view: &View, effects: &mut impl Effects<Self>) {
        if self.log.has_begun {
            return;
        }
        self.log.has_begun = true;
        if self.log.is_restored && self.log.cluster == view.cluster {
            self.log.is_kept = true;
        } else {
            let is_recovered = self.log.cluster.shares_data_with(view.cluster);
            if self.log.is_restored && !is_recovered && !mutant!("local_records_of_another_cluster")
            {
                self.forget_all();
            }
            self.log.cluster = view.cluster;
            let (log, cluster) = (&mut self.log, view.cluster.0);
            log.journal.append(effects, |out| {
                log.is_kept = true;
                let mut writer = Writer(out);
                writer.u8(CLUSTER);
                writer.u64(cluster);
            });
            self.log.is_kept |= mutant!("local_log_of_a_keyspace_in_memory");
        }
        let others = Lanes::all(self.config.lanes).without(self.config.lane);
        for lane in others.iter().filter(|_| self.log.is_restored) {
            let lacks = |(_, (others, _)): &(&Timestamp, &(Lanes, Entry))| others.contains(lane);
            let entries = self.log.unconfirmed.iter().filter(lacks);
            let entries = entries.map(|(_, (_, entry))| entry.clone()).collect();
            effects.mail(lane, Mail::Restored(entries));
        }
        self.end_restart(now, effects);
    }

    /// Another lane says which transactions this one may lack.
    pub(crate) fn on_restored_elsewhere(
        &mut self,
        now: Now,
        from: LaneId,
        entries: Vec<Entry>,
        effects: &mut impl Effects<Self>,
    ) {
        for entry in entries {
            let at = Commit::trusted(&entry).at;
            self.log.missing.entry(at).or_insert((Lanes::default(), entry)).0.insert(from);
        }
        self.log.awaited = self.log.awaited.without(from);
        self.end_restart(now, effects);
    }

    /// Serves once all lanes have told.
    fn end_restart(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        if !self.log.has_begun || self.awaits() {
            return;
        }
        for (at, (tellers, entry)) in core::mem::take(&mut self.log.missing) {
            effects.probe("local: a lane is told what it lacks");
            if mutant!("local_missing_part_left_out") {
                continue;
            }
            let lsn = self.log.journal.append(effects, |out| out.extend_from_slice(&entry));
            self.take_in(Commit::trusted(&entry));
            for lane in tellers.iter() {
                self.confirm(lane, lsn, at, effects);
            }
        }
        if self.log.is_restored {
            // An absent key has a version of before the power went.
            self.last = self.last.max(self.table.highest());
        }
        self.run_queue(now, effects);
    }

    // --- snapshots -------------------------------------------------------------------------------

    pub(crate) fn save_from(
        &mut self,
        from: SavePoint,
        bytes: usize,
        write: &mut impl FnMut(&[u8]),
    ) -> Option<SavePoint> {
        let mut out = Vec::new();
        match from.part {
            0 => {
                let mut writer = Writer(&mut out);
                writer.u8(HEAD);
                writer.u64(self.log.cluster.0);
                writer.u64(self.last);
                write(&out);
                for (_, entry) in self.log.unconfirmed.values() {
                    if !mutant!("local_snapshot_without_unconfirmed") {
                        write(entry);
                    }
                }
                let calls = self.calls_to_end();
                let mut next = Some((LeaseId(0), 0)).filter(|_| !calls.is_empty());
                while let Some(at) = next.filter(|_| !mutant!("local_call_to_end_not_saved")) {
                    out.clear();
                    out.push(SESSIONS);
                    next = calls.encode_from(at, limits::CHUNK_BYTES, &mut out);
                    write(&out);
                }
                Some(SavePoint { part: 1, at: [0; 2] })
            }
            1 => {
                let (mut scan, mut written) = (Scan::at(from.at[0]), 0);
                while written < bytes.max(1) {
                    for key in scan.next_keys(&self.table, RECORDS) {
                        written += self.save_key(&key, &mut out, write);
                    }
                    if scan.is_at_end() {
                        return Some(SavePoint { part: 2, at: [0; 2] });
                    }
                }
                Some(SavePoint { part: 1, at: [scan.cursor(), 0] })
            }
            _ => {
                out.push(SESSIONS);
                let at = (LeaseId(from.at[0]), from.at[1]);
                let next = self.tracker.encode_from(at, bytes, &mut out);
                write(&out);
                next.map(|(lease, sequence)| SavePoint { part: 2, at: [lease.0, sequence] })
            }
        }
    }

    /// Saves a key, if it has a value. How many bytes that takes.
    fn save_key(&mut self, key: &[u8], out: &mut Vec<u8>, write: &mut impl FnMut(&[u8])) -> usize {
        let Some(record) = self.table.lock_existing(key) else { return 0 };
        let (version, mut packed) = (record.meta().version, Vec::new());
        let Some(content) = record.whole(&mut packed) else { return 0 };
        out.clear();
        let mut writer = Writer(out);
        writer.u8(RECORD);
        writer.timestamp(version);
        write_item(out, key, Some(content), None);
        drop(record);
        write(out);
        out.len()
    }
}

/// Why an entry can't be restored.
pub(crate) fn unreadable(Malformed(field): Malformed) -> Unreadable {
    Unreadable(field)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_key_of_a_transaction_is_found() {
        let mut entry = Vec::new();
        write_commit(&mut entry, Timestamp::ZERO, Lanes::only(LaneId(0)), None);
        assert_eq!(key_of(&entry), None, "it changes nothing");
        write_item(&mut entry, b"k", None, None);
        write_item(&mut entry, b"l", None, None);
        assert_eq!(key_of(&entry), Some(&b"k"[..]));
        entry[0] = SESSIONS;
        assert_eq!(key_of(&entry), None);
    }
}
