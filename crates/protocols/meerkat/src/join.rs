//! How a joining replica catches up: it installs every decision of its epochs, and copies meanwhile
//! what was there before, in chunks (N8.1). Each lane copies its part from the same lane of an
//! active member, and of further ones if that one has no replica of some partitions. Versions and
//! read timestamps travel with the keys; the Thomas rule sorts out what a decision has made newer
//! already. A replica that has records, of an earlier life or from a donor that it has lost, compares
//! them and copies what differs (`difference.rs`).

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use quorate_machine::difference::Comparing;
use quorate_machine::{
    Command, Content, Copier, Effects, LaneShared, Protocol, Record, Scan, Table, ValueKind, mutant,
};
use quorate_rifl::LeaseId;
use quorate_types::{Instant, LaneId, Lsn, NodeId, NodeSet, Now, Timestamp, UnixMillis, limits};
use quorate_wire::{Malformed, Reader, Writer};

use crate::body::{Body, Write};
use crate::calls::ResultTracker;
use crate::difference::claim;
use crate::merge::Report;
use crate::message::{Kind, Message};
use crate::meta::Meta;
use crate::occ::{EVERY_WRITER, install};
use crate::state::{Group, Meerkat};
use crate::txn_record::RecordKey;

/// Records that are looked up at a time.
pub(crate) const SCAN_RECORDS: usize = 64;

/// Message loss timeouts that a donor has for its answer at first: it looks through many records.
pub(crate) const COPY_TIMEOUTS: u32 = 5;
/// Doublings after which the patience with a donor grows no more. It is then 20 timeouts long: a copy
/// goes on within a second once a cut has ended, also where timeouts are as long as 50 ms.
const COPY_DOUBLINGS_MAX: u32 = 2;

/// Where a part of the calls begins: at this session's call, or what comes after it.
pub(crate) type CallsCursor = (LeaseId, u64);

const CALLS_BEGIN: CallsCursor = (LeaseId(0), 0);

/// The number under which bases are asked for: no transaction has it.
pub(crate) const BASES: u64 = 0;

const VALUE: u8 = 1;
const EXPIRY: u8 = 2;

/// The copy of a joining replica.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Copying {
    pub(crate) copier: Copier,
    /// Partitions that donors have given whole, as a bit set.
    given: u64,
    /// Once all of the donor's records are here: the partitions whose calls are still missing, and the
    /// cursor in the first of them.
    calls: Option<(u64, CallsCursor)>,
    cursor: u64,
    /// The last key that came, if there are more at the same cursor.
    after: Option<Vec<u8>>,
    pub(crate) done: bool,
    copied: u64,
    /// The keys whose whole values this learner has asked for, and when.
    bases_asked: BTreeMap<Vec<u8>, Instant>,
    /// The place in the log behind all that it has copied.
    done_at: Lsn,
}

impl Copying {
    pub(crate) fn is_done(&self) -> bool {
        self.done
    }

    pub(crate) fn copied(&self) -> u64 {
        self.copied
    }

    pub(crate) fn next_deadline(&self) -> Instant {
        self.copier.deadline()
    }

    /// An active member has nothing to copy.
    pub(crate) fn enter_epoch(&mut self, active: bool) {
        self.bases_asked.clear();
        if active {
            self.copier.rest();
        }
    }

    /// Another donor's cursors mean nothing: begins again, by a comparison if there is one to begin.
    pub(crate) fn choose(&mut self, donors: NodeSet, spin: u64, comparing: Option<Comparing>) {
        if self.copier.donor().is_some_and(|donor| donors.contains(donor)) {
            return;
        }
        self.calls = None;
        self.cursor = 0;
        self.after = None;
        let donor = donors.nth(spin as usize % donors.len().max(1));
        let request = if comparing.is_some() { spin } else { self.next_request() };
        self.copier.turn_to(donor, request, comparing);
    }

    fn next_request(&self) -> u64 {
        self.copier.request().wrapping_add(1)
    }

    /// An answer came.
    fn answered(&mut self, now: Now) {
        self.copier.answered(now, self.next_request());
    }

    /// The donor has given everything that it has: these partitions.
    fn finish_donor(&mut self, partitions: u64) {
        self.copier.finish_donor();
        self.calls = None;
        self.given |= partitions;
    }
}

impl<T, X> Meerkat<T, X>
where
    T: Table<Meta = Meta> + LaneShared,
    X: Command<Owned = X>,
{
    /// Asks for the next chunk, if this node is catching up.
    pub(crate) fn copy_on(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        if self.is_reconciling() {
            return self.reconcile(now, effects);
        }
        if self.active || self.copying.done {
            return;
        }
        self.inherit(now, effects);
        let missing = self.held() & !self.copying.given;
        if missing == 0 {
            self.copying.done = true;
            self.copying.done_at = self.journal.appended();
            self.copying.copier.rest();
            self.trackers.iter_mut().for_each(ResultTracker::end_copy);
            return;
        }
        let donors = self.groups.iter().zip(0..).filter(|(_, number)| missing & 1 << number != 0);
        let donors = donors.fold(NodeSet::EMPTY, |all, (group, _)| all.union(group.live));
        let spin = self.rng.next_u64();
        // Who has little more than what was settled when it came copies everything.
        let has_most = self.life > 0 || self.copying.copied > 0;
        let comparing = Some(self.table.len()).filter(|records| has_most && *records > 0);
        self.copying.choose(donors, spin, comparing.map(Comparing::new));
        self.ask_donor(now, missing, effects);
    }

    /// Begins anew the partitions that a person has given up and whose eldest live member this node is: it
    /// goes on with what it has of them. Their other members copy from it once it is active.
    fn inherit(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        let number = |node| self.view.member(node).map(|member| member.number);
        let is_heir = |group: &Group| {
            let eldest = group.learners.into_iter().min_by_key(|node| number(*node));
            group.live.is_empty() && eldest == Some(self.config.node)
        };
        let heirs = self.groups.iter().zip(0..).filter(|(group, _)| is_heir(group));
        let inherited = heirs.fold(0, |set, (_, partition)| set | 1 << partition);
        let inherited = inherited & !self.copying.given;
        if inherited != 0 && !mutant!("meerkat_group_has_no_heir") {
            effects.probe("meerkat: a group goes on with what its eldest member has");
            self.copying.given |= inherited;
            self.take_base(now, inherited);
        }
    }

    /// Asks the donor for what comes next.
    pub(crate) fn ask_donor(&mut self, now: Now, missing: u64, effects: &mut impl Effects<Self>) {
        self.copying.copier.ask(now, self.config.message_loss_timeout * COPY_TIMEOUTS);
        let Some(donor) = self.copying.copier.donor() else { return };
        let Copying { ref copier, calls, cursor, ref after, .. } = self.copying;
        let request = copier.request();
        if let Some((partitions, cursor)) = calls {
            let partition = partitions.trailing_zeros() as u16;
            let kind = Kind::CallsRead { request, cursor };
            return effects.send(donor, &Message { partition, kind });
        }
        if copier.comparing().is_some() {
            return self.ask_difference(donor, self.given_by(donor) & missing, effects);
        }
        let kind = Kind::ChunkRead { request, cursor, after: after.as_deref() };
        effects.send(donor, &Message { partition: 0, kind });
    }

    /// The donor has not answered in time: asks it again, or another one if it has left.
    pub(crate) fn on_copy_timeout(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        if self.copying.copier.deadline() <= now.monotonic {
            self.copying.copier.lose_patience(COPY_DOUBLINGS_MAX, self.table.len());
            self.copy_on(now, effects);
        }
    }

    /// Whether all that was copied is on this node's disk.
    pub(crate) fn is_copy_durable(&self) -> bool {
        self.journal.is_durable(self.copying.done_at) || mutant!("meerkat_caught_up_before_durable")
    }

    /// The partitions that this node holds, as a bit set.
    pub(crate) fn held(&self) -> u64 {
        let held = (0..self.groups.len() as u16).filter(|partition| self.holds(*partition));
        held.fold(0, |set, partition| set | 1 << partition)
    }

    /// The partitions whose records another node holds in full, as a bit set.
    pub(crate) fn given_by(&self, donor: NodeId) -> u64 {
        let is_former = self.unheard.contains(donor);
        let groups = self.groups.iter().zip(0..).filter(|(group, _)| {
            group.live.contains(donor) || is_former && group.learners.contains(donor)
        });
        groups.fold(0, |set, (_, partition)| set | 1 << partition)
    }

    /// CHUNK_READ: the donor's side. It holds everything that was decided before this epoch.
    pub(crate) fn on_chunk_read(
        &mut self,
        from: NodeId,
        request: u64,
        cursor: u64,
        after: Option<&[u8]>,
        effects: &mut impl Effects<Self>,
    ) {
        if self.has_nothing_to_tell() {
            let kind = Kind::Chunk { request, next: 0, more: false, entries: &[] };
            return effects.send(from, &Message { partition: 0, kind });
        }
        if !self.is_donor() {
            return effects.ignored("meerkat: CHUNK_READ to a node that is catching up itself");
        }
        let mut entries = Vec::new();
        let (mut at, mut after) = (cursor, after);
        let (next, more) = loop {
            let whole = entries.len();
            match self.add_records(from, at, after, &mut entries) {
                Some(next) if next == 0 || entries.len() >= limits::CHUNK_BYTES => {
                    break (next, false);
                }
                Some(next) => (at, after) = (next, None),
                None if at == cursor => break (at, true),
                // They begin the next chunk.
                None => {
                    entries.truncate(whole);
                    break (at, false);
                }
            }
        };
        let kind = Kind::Chunk { request, next, more, entries: &entries };
        effects.send(from, &Message { partition: 0, kind });
    }

    /// Adds the records at a cursor whose keys come after this one, in their order, and gives the
    /// next cursor. `None` if they don't all fit: then it has added at least one of them, however
    /// large, or no record if there were entries before. A learner appends what it is given to its log, so
    /// it is given only what it holds.
    fn add_records(
        &mut self,
        to: NodeId,
        at: u64,
        after: Option<&[u8]>,
        entries: &mut Vec<u8>,
    ) -> Option<u64> {
        let mut scan = Scan::at(at);
        let mut keys = scan.next_keys(&self.table, SCAN_RECORDS);
        if !mutant!("meerkat_gives_what_is_elsewhere") {
            keys.retain(|key| self.is_placed_at(to, self.partition_of(key)));
        }
        keys.retain(|key| after.is_none_or(|after| &key[..] > after));
        keys.sort_unstable();
        for key in &keys {
            let Some(record) = self.table.lock_existing(key) else { continue };
            let before = entries.len();
            write_entry(&record, entries);
            if before > 0 && entries.len() >= limits::CHUNK_BYTES {
                entries.truncate(before);
                return None;
            }
        }
        Some(scan.cursor())
    }

    /// CHUNK: installs what is newer than what is here. Without a next cursor there is more at the
    /// same one.
    pub(crate) fn on_chunk(
        &mut self,
        now: Now,
        from: NodeId,
        request: u64,
        next: Option<u64>,
        entries: &[u8],
        effects: &mut impl Effects<Self>,
    ) {
        let Copying { calls, copier, .. } = &self.copying;
        if !self.expects(from, request) || calls.is_some() || copier.comparing().is_some() {
            return effects.ignored("meerkat: CHUNK that was not asked for");
        }
        let last = match self.adopt_entries(now, entries, effects) {
            Ok(last) => last,
            Err(reason) => return effects.refused(reason),
        };
        self.copying.answered(now);
        self.copying.after = last.filter(|_| next.is_none()).map(Vec::from);
        if let Some(next) = next {
            self.copying.cursor = next;
            if next == 0 && mutant!("meerkat_calls_not_copied") {
                self.copying.finish_donor(self.given_by(from));
            } else if next == 0 {
                self.copying.calls = Some((self.given_by(from) & self.held(), CALLS_BEGIN));
            }
        }
        self.copy_on(now, effects);
    }

    /// Takes over a donor's records where they are newer than what is here; the key of the last one.
    pub(crate) fn adopt_entries<'a>(
        &mut self,
        now: Now,
        entries: &'a [u8],
        effects: &mut impl Effects<Self>,
    ) -> Result<Option<&'a [u8]>, &'static str> {
        let mut reader = Reader(entries);
        let mut last = None;
        // A replica that lives on may have the newest, whichever life has made the record.
        let lives_on = self.is_reconciling() && !mutant!("meerkat_survivor_takes_in_as_a_learner");
        let life = (!lives_on).then_some(self.life);
        while !reader.0.is_empty() {
            let Ok((key, meta, content)) = read_entry(&mut reader) else {
                return Err("meerkat: damaged chunk");
            };
            if self.is_absurd(now, meta.wts.max(meta.rts).version) {
                return Err("meerkat: a version years ahead of this node's clock");
            }
            last = Some(key);
            if !self.holds(self.partition_of(key)) {
                continue;
            }
            let by = self.shares_logs().then_some(self.config.lane);
            let lost = install_entry(&mut self.table, (key, meta, content), life, by);
            if let Some(version) = lost {
                effects.probe("meerkat: a version that others have lost goes");
                if by.is_some() {
                    // There is no order between the logs.
                    self.has_replaced_lost = !mutant!("meerkat_outdated_logs_not_told_of");
                } else if !mutant!("meerkat_lost_version_comes_back") {
                    self.append_gone(key, version, effects);
                }
            }
            self.copying.copied += 1;
        }
        self.append_copied(entries, effects);
        Ok(last)
    }

    /// A transaction that has committed changes values that are not copied yet. It is not acknowledged,
    /// so it is told again; until then a replica that votes is asked for all of the values, each once
    /// in the time that a donor has for its answer.
    pub(crate) fn ask_for_bases(
        &mut self,
        now: Now,
        from: NodeId,
        key: RecordKey,
        body: Body<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        let partition = key.partition;
        effects.probe("meerkat: a learner asks for a base");
        let spin = self.rng.next_u64() as usize;
        let Some(group) = self.group(partition) else { return };
        let donor = Some(from).filter(|from| group.live.contains(*from));
        let Some(donor) = donor.or_else(|| group.live.nth(spin % group.live.len().max(1))) else {
            return;
        };
        let patience = self.config.message_loss_timeout * COPY_TIMEOUTS;
        let mut keys = Vec::new();
        for item in body.iter().filter(|item| matches!(item.write, Some(Write::Delta(_)))) {
            let is_due = |asked: &Instant| *asked + patience <= now.monotonic;
            if self.copying.bases_asked.get(item.key).is_none_or(is_due) {
                self.copying.bases_asked.insert(item.key.into(), now.monotonic);
                Writer(&mut keys).bytes(item.key);
            }
        }
        if !keys.is_empty() {
            let kind = Kind::Get { request: BASES, keys: &keys };
            effects.send(donor, &Message { partition, kind });
        }
    }

    /// VALUES that are bases: takes over what is newer than what is here. A tombstone is, too; a key
    /// that is absent without one has nothing newer.
    pub(crate) fn on_bases(&mut self, body: Body<'_>, effects: &mut impl Effects<Self>) {
        if self.active {
            return effects.ignored("meerkat: a base for a replica that has all data");
        }
        for item in body.iter() {
            let (Some(version), Some(write)) = (item.base, item.write) else { continue };
            let was_asked = self.copying.bases_asked.remove(item.key).is_some();
            let is_deletion = write == Write::Delete;
            if !was_asked || (is_deletion && version.writer == EVERY_WRITER) {
                continue;
            }
            let mut record = self.table.lock_key(item.key, write.len());
            if version > record.meta().wts {
                claim(&mut record, self.life);
                install(&mut record, version, None, write);
                drop(record);
                self.append_key(item.key, effects);
            }
        }
    }

    /// Goes on to what differs, to the next range, or to the calls of these partitions.
    pub(crate) fn go_on_comparing(&mut self, now: Now, partitions: u64) {
        self.copying.answered(now);
        if !self.copying.copier.compare_on(self.table.len()) {
            self.copying.calls = Some((partitions, CALLS_BEGIN));
        }
    }

    /// The partitions that this replica compares with a donor's.
    pub(crate) fn compared_with(&self, donor: NodeId) -> u64 {
        self.given_by(donor) & self.held() & !self.copying.given
    }

    /// Whether an answer is the one that this replica waits for while it catches up.
    fn expects(&self, from: NodeId, request: u64) -> bool {
        let copies = !self.active && !self.copying.done || self.is_reconciling();
        copies && self.copying.copier.expects(from, request)
    }

    /// CALLS_READ: the donor's side.
    pub(crate) fn on_calls_read(
        &mut self,
        from: NodeId,
        partition: u16,
        request: u64,
        cursor: CallsCursor,
        effects: &mut impl Effects<Self>,
    ) {
        let tells = self.is_donor() || self.has_nothing_to_tell();
        let Some(tracker) = self.trackers.get(usize::from(partition)).filter(|_| tells) else {
            return effects.ignored("meerkat: CALLS_READ to a node that is catching up itself");
        };
        let mut sessions = Vec::new();
        let next = tracker.encode_from(cursor, limits::CHUNK_BYTES, &mut sessions);
        let kind = Kind::Calls { request, next, sessions: &sessions };
        effects.send(from, &Message { partition, kind });
    }

    /// CALLS: takes over the records of sessions. Whatever takes effect meanwhile brings its own.
    #[expect(clippy::too_many_arguments, reason = "the fields of the message")]
    pub(crate) fn on_calls(
        &mut self,
        now: Now,
        from: NodeId,
        partition: u16,
        request: u64,
        next: Option<CallsCursor>,
        sessions: &[u8],
        effects: &mut impl Effects<Self>,
    ) {
        let Some((missing, _)) = self.copying.calls.filter(|_| self.expects(from, request)) else {
            return effects.ignored("meerkat: CALLS that were not asked for");
        };
        if missing & 1 << partition == 0
            || self.trackers[usize::from(partition)].merge(sessions).is_err()
        {
            return effects.ignored("meerkat: damaged calls");
        }
        self.append_sessions(partition, sessions, effects);
        self.copying.answered(now);
        let missing = if next.is_some() { missing } else { missing & !(1 << partition) };
        self.copying.calls = Some((missing, next.unwrap_or(CALLS_BEGIN)));
        if missing == 0 && self.is_reconciling() {
            self.unheard.remove(from);
            self.copying = Copying::default();
            return self.reconcile(now, effects);
        } else if missing == 0 {
            self.copying.finish_donor(self.given_by(from));
        }
        self.copy_on(now, effects);
    }
}

/// Says what reports of learners, who vote on nothing, a merge had.
pub(crate) fn probe_learners<P: Protocol>(
    reports: &BTreeMap<NodeId, Report>,
    active: NodeSet,
    effects: &mut impl Effects<P>,
) {
    let last = reports.values().map(|report| report.last_normal).max().unwrap_or_default();
    let of_learners = reports.iter().filter(|(node, _)| !active.contains(**node));
    for (node, report) in of_learners.filter(|(_, report)| report.last_normal == last) {
        if report.electorate.active.contains(*node) {
            effects.probe("meerkat: merged with the report of a former life");
        } else if !report.records.is_empty() {
            effects.probe("meerkat: a learner brings what it has not installed");
        }
    }
}

pub(crate) fn write_entry(record: &impl Record<Meta = Meta>, entries: &mut Vec<u8>) {
    let meta = record.meta();
    if meta == Meta::default() {
        // Somebody has asked for a key that never was.
        return;
    }
    let mut whole = Vec::new();
    let content = record.whole(&mut whole);
    let expire_at = content.and_then(|content| content.expire_at);
    let mut writer = Writer(entries);
    let value = if content.is_some() { VALUE } else { 0 };
    writer.u8(value | if expire_at.is_some() { EXPIRY } else { 0 });
    writer.bytes(record.key());
    writer.timestamp(meta.wts);
    writer.timestamp(meta.rts);
    if let Some(content) = content {
        let forgets = mutant!("meerkat_copy_without_kind");
        writer.u8(if forgets { ValueKind::String } else { content.kind } as u8);
        writer.bytes(content.bytes);
    }
    if let Some(at) = expire_at {
        writer.u64(at.0);
    }
}

/// Takes a copied version over where it is newer than what is here: than what this life has, if it is a learner's.
/// `by` is the lane whose log has it, if that matters. Gives the version that has gone, if an earlier life has left
/// a newer one: those that hold everything have lost it.
pub(crate) fn install_entry<T: Table<Meta = Meta>>(
    table: &mut T,
    (key, meta, content): Entry<'_>,
    life: Option<u32>,
    by: Option<LaneId>,
) -> Option<Timestamp> {
    let write = content.map_or(Write::Delete, Write::Set);
    let mut record = table.lock_key(key, write.len());
    let former = record.meta().wts;
    if let Some(life) = life {
        claim(&mut record, life);
    }
    let has_gone = former > meta.wts && record.meta().wts != former;
    if meta.wts > record.meta().wts {
        install(&mut record, meta.wts, None, write);
        record.locked_state_mut().set_logged_by(by);
    }
    let mut here = record.meta();
    if here.rts < meta.rts {
        here.rts = meta.rts;
        record.set_meta(here);
    }
    has_gone.then_some(former)
}

pub(crate) type Entry<'a> = (&'a [u8], Meta, Option<Content<'a>>);

pub(crate) fn read_entry<'a>(reader: &mut Reader<'a>) -> Result<Entry<'a>, Malformed> {
    let flags = reader.u8()?;
    let key = reader.bytes()?;
    let meta = Meta { wts: reader.timestamp()?, rts: reader.timestamp()? };
    if flags & VALUE == 0 {
        return Ok((key, meta, None));
    }
    let kind = ValueKind::from_u8(reader.u8()?).ok_or(Malformed("unknown kind of value"))?;
    let bytes = reader.bytes()?;
    let expire_at = if flags & EXPIRY != 0 { Some(UnixMillis(reader.u64()?)) } else { None };
    Ok((key, meta, Some(Content { bytes, kind, expire_at })))
}
