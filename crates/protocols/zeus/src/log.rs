//! What a node keeps in its log, and how it comes back.
//!
//! ```text
//! CLUSTER 1 | cluster u64                what came before is of another cluster; of no use, if that cluster is
//!                                        named once more; or of one from which this one was recovered
//! UPDATE  2 | flags u8 | coordinator u32 | slot u64 | slots behind the last committed one u32
//!           | version u64 | [u32, depends on slots u64 ...] | [call as in an R-INV] | items
//! RECORD  3 | version u64 | writer u32 | key | content        what was copied, or saved
//! GONE    4 | key                        nothing is held of the key any more
//! FLOORS  5 | known u64 | at u64 | promised u64
//! CALLS   6 | shard u8 | sessions        records of calls
//! HEAD    7 | cluster u64                the beginning of a snapshot
//! PART    8 | version u64 | writer u32 | items          of a transaction that another lane runs
//! PROMISED 9 | waited u8                 whether what was promised was durable before, and will be
//! item:   key | flags u8 | [base version u64, writer u32] | content
//! ```
//! Keys carry a length of four bytes; the last field fills the entry. Flags of an UPDATE: 1 it depends on
//! others, 2 it is a call; of an item: 1 it has a value, 2 that changes a base in place, 4 this node keeps
//! the key. A node that keeps one key of a transaction has all of it in its log, to replay it. A lane restores
//! its own keys; what other lanes write to them is in its log as their parts (`parts.rs`).
//!
//! **Before a promise leaves.** A follower acknowledges a transaction behind the place at which it has
//! appended it. The coordinator counts as one more: it commits a slot, and answers, when its own entry is
//! durable, too. So whatever is known to be committed is on the disks of all that keep it. R-INVs leave at
//! once: there is one flush on the path of a transaction. PROMISED and READY leave behind the floor that
//! they promise, and a learner has caught up when all that it has copied is durable.
//!
//! **Ownership is not appended.** When all have lost power every member has a new number, so no key has an
//! owner by name: its default owner has it, once all have recovered. Rounds need only be comparable among
//! those that remember them, and nobody does: each restored record is at the round of a key that was never
//! written. (The floor is the round of such a key, and claims are above all that any node has promised.)
//!
//! **All restart.** What was applied and is not known to be committed is what a coordinator that is gone has
//! left, and is replayed as such: before the barrier nobody reads it, and no default owner serves. The log
//! of a node has what a transaction depends on before it, or that was committed; so what came back is closed
//! under dependencies, as at any live node, and replays go in their order. How far a coordinator had
//! committed each of its updates says. What came after the last is taken for undecided. If a later version
//! of a key is decided, or the floor is not below, the transaction is committed, though, and may have been
//! forgotten by others since: then it must not be replayed to a replica that joins. The floor is that of the
//! transaction's lane, or of a key's.
//!
//! *Of several lanes* each reads its log first. Then each puts what it has undecided into the keys of the
//! others: the parts may have come back without the word that the transaction is undecided, or not at all. A
//! later version of such a key that another lane has written shows that it is committed, since a key is lent
//! only when it is.
//!
//! **Promises may also not wait** (`async`). Then what comes back is not what others were told, and all that
//! come back take in what each other has (`revival.rs`). A life begins with the word that promises have not
//! waited; once all that it began with is everywhere, and if promises wait, the other word follows.
//!
//! **One node restarts, or is not active in the first view that names it.** It begins without records, and
//! compares those that it has restored (`difference.rs`). What is kept of them is appended once more.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use quorate_machine::{
    Command, Content, Effects, Journal, LaneShared, Protocol, Record as _, Table, is_collection,
    mutant,
};
use quorate_types::{Incarnation, Lsn, MemberNumber, Timestamp, limits};
use quorate_wire::{Malformed, Reader, Writer};

use crate::called::Answered;
use crate::deltas::Wholes;
use crate::fields::{Item, Items, Slots, read_content, read_key, write_content};
use crate::meta::Meta;
use crate::parts::{Name, Parts};
use crate::state::{Key, Zeus};

pub(crate) const CLUSTER: u8 = 1;
pub(crate) const UPDATE: u8 = 2;
pub(crate) const RECORD: u8 = 3;
pub(crate) const GONE: u8 = 4;
pub(crate) const FLOORS: u8 = 5;
pub(crate) const CALLS: u8 = 6;
pub(crate) const HEAD: u8 = 7;
pub(crate) const PART: u8 = 8;
pub(crate) const PROMISED: u8 = 9;

const DEPENDS: u8 = 1;
const CALL: u8 = 2;

const VALUE: u8 = 1;
const BASE: u8 = 2;
const KEPT: u8 = 4;

/// The cell in which a lane tells the others the cluster of its log.
pub(crate) const CLUSTER_CELL: usize = 1;

/// What a node knows of its log.
#[derive(Clone, Hash, Debug, Default)]
pub(crate) struct Log {
    pub(crate) journal: Journal,
    /// Whether what is appended is kept.
    pub(crate) is_kept: bool,
    pub(crate) parts: Parts,
    /// The cluster that its entries are of.
    pub(crate) cluster: Incarnation,
    /// Whether all that it has promised was durable before, as far as it says.
    pub(crate) waited: bool,
    /// Whether a view has come that names this life.
    pub(crate) has_begun: bool,
    /// Whether what it holds before that was restored.
    pub(crate) is_restored: bool,
    /// Whether this life begins with it, in this view.
    pub(crate) goes_on: bool,
    /// Whether it has begun with it, and not all nodes have recovered since.
    pub(crate) revives: bool,
    /// Where what was copied last was appended.
    copied_at: Lsn,
    /// Where what was replayed last was appended.
    replayed_at: Lsn,
    /// While it is read: keys of other lanes that undecided transactions have written.
    pub(crate) others: BTreeMap<Name, BTreeSet<Key>>,
}

impl Log {
    /// Appends an entry. Gives its place.
    pub(crate) fn append<P: Protocol + ?Sized>(
        &mut self,
        effects: &mut impl Effects<P>,
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> Lsn {
        let is_kept = &mut self.is_kept;
        self.journal.append(effects, |log| {
            *is_kept = true;
            encode(log);
        })
    }

    /// Whether all that was copied is durable.
    pub(crate) fn has_copied(&self) -> bool {
        self.journal.is_durable(self.copied_at) || mutant!("zeus_copied_not_durable")
    }

    /// What was to be copied has come with what was appended.
    pub(crate) fn note_copied(&mut self) {
        self.copied_at = self.journal.appended();
    }

    /// What is replayed is in what was appended.
    pub(crate) fn note_replayed(&mut self) {
        self.replayed_at = self.journal.appended();
    }

    /// Whether the logs of this node have all that was replayed here of these coordinators.
    pub(crate) fn has_replayed(&self, gone: &[MemberNumber]) -> bool {
        let lacks = |from: &MemberNumber| self.parts.lacks_any(*from);
        self.journal.is_durable(self.replayed_at) && !gone.iter().any(lacks)
            || mutant!("zeus_recovered_before_durable")
    }

    /// A life ends. What the next one begins with is not what the log has.
    pub(crate) fn end_life(&mut self) {
        (self.has_begun, self.is_restored, self.goes_on) = (false, false, false);
        self.revives = false;
        self.parts.end_life();
    }
}

/// A transaction, as it is appended.
pub(crate) struct Appended<'a> {
    pub(crate) coordinator: MemberNumber,
    pub(crate) slot: u64,
    /// Every slot of the coordinator up to here is known to be committed.
    pub(crate) committed: u64,
    pub(crate) version: Timestamp,
    pub(crate) depends_on: &'a [u64],
    pub(crate) items: Items<'a>,
    /// All of some values that it changes in place: they are appended whole.
    pub(crate) wholes: &'a Wholes,
    pub(crate) call: &'a [u8],
}

pub(crate) fn write_update(
    update: &Appended<'_>,
    keeps: impl Fn(&[u8]) -> bool,
    log: &mut Vec<u8>,
) {
    let Appended { coordinator, slot, committed, version, depends_on, items, wholes, call } =
        *update;
    let mut writer = Writer(log);
    writer.u8(UPDATE);
    writer.u8(flag(!depends_on.is_empty(), DEPENDS) | flag(!call.is_empty(), CALL));
    writer.u32(coordinator.0);
    writer.u64(slot);
    writer.u32(u32::try_from(slot - committed).unwrap_or(u32::MAX));
    writer.u64(version.version);
    if !depends_on.is_empty() {
        let mut slots = Vec::new();
        Slots::append(depends_on.iter().copied(), &mut slots);
        writer.rest(&slots);
    }
    if let Some(call) = Answered::trusted(call) {
        call.encode(&mut writer);
    }
    items.iter().for_each(|item| write_item(&item, wholes, keeps(item.key), log));
}

fn write_item(item: &Item<'_>, wholes: &Wholes, is_kept: bool, log: &mut Vec<u8>) {
    let mut writer = Writer(log);
    writer.bytes(item.key);
    let whole = item.base.and_then(|_| wholes.get(item.key));
    let base = item.base.filter(|_| whole.is_none());
    let flags = flag(item.content.is_some(), VALUE) | flag(base.is_some(), BASE);
    writer.u8(flags | flag(is_kept, KEPT));
    if let Some(base) = base {
        writer.timestamp(base);
    }
    let (mut packed, content) = (Vec::new(), item.content);
    let content = content.map(|content| match whole {
        Some(whole) => {
            whole.pack(&mut packed);
            Content { bytes: &packed, ..content }
        }
        None => content,
    });
    if content.is_some() {
        write_content(&mut writer, content);
    }
}

fn flag(is_set: bool, flag: u8) -> u8 {
    if is_set { flag } else { 0 }
}

/// Adds a key to a part of a transaction.
pub(crate) fn write_part(version: Timestamp, item: &Item<'_>, wholes: &Wholes, part: &mut Vec<u8>) {
    if part.is_empty() {
        let mut writer = Writer(part);
        writer.u8(PART);
        writer.timestamp(version);
    }
    write_item(item, wholes, true, part);
}

/// Reads a part: its version, and the items.
pub(crate) fn read_part(part: &[u8]) -> Result<(Timestamp, Vec<Item<'_>>), Malformed> {
    let mut reader = Reader(part);
    if reader.u8()? != PART {
        return Err(Malformed("no part of a transaction"));
    }
    let (version, mut items) = (reader.timestamp()?, Vec::new());
    while !reader.0.is_empty() {
        if items.len() >= limits::TXN_KEYS_MAX {
            return Err(Malformed("more keys than a transaction has"));
        }
        items.push(read_item(&mut reader)?.0);
    }
    Ok((version, items))
}

pub(crate) fn write_record(
    key: &[u8],
    version: Timestamp,
    content: Option<Content<'_>>,
    log: &mut Vec<u8>,
) {
    let mut writer = Writer(log);
    writer.u8(RECORD);
    writer.timestamp(version);
    writer.bytes(key);
    write_content(&mut writer, content);
}

pub(crate) fn write_number(kind: u8, number: u64, log: &mut Vec<u8>) {
    let mut writer = Writer(log);
    writer.u8(kind);
    writer.u64(number);
}

pub(crate) fn write_promised(waited: bool, log: &mut Vec<u8>) {
    let mut writer = Writer(log);
    writer.u8(PROMISED);
    writer.u8(u8::from(waited));
}

pub(crate) fn write_floors([known, at, promised]: [u64; 3], log: &mut Vec<u8>) {
    write_number(FLOORS, known, log);
    let mut writer = Writer(log);
    writer.u64(at);
    writer.u64(promised);
}

pub(crate) fn write_calls(shard: u8, sessions: &[u8], log: &mut Vec<u8>) {
    let mut writer = Writer(log);
    writer.u8(CALLS);
    writer.u8(shard);
    writer.rest(sessions);
}

/// What an update says before its items.
pub(crate) struct UpdateHead<'a> {
    pub(crate) coordinator: MemberNumber,
    pub(crate) slot: u64,
    /// How many slots before this one were not known to be committed.
    pub(crate) behind: u64,
    pub(crate) version: u64,
    pub(crate) depends_on: Vec<u64>,
    pub(crate) call: Option<Answered<'a>>,
}

impl<'a> UpdateHead<'a> {
    pub(crate) fn read(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let flags = reader.u8()?;
        if flags & !(DEPENDS | CALL) != 0 {
            return Err(Malformed("unknown flags of a transaction"));
        }
        let (coordinator, slot) = (MemberNumber(reader.u32()?), reader.u64()?);
        let (behind, version) = (u64::from(reader.u32()?), reader.u64()?);
        if coordinator.0 > limits::MEMBER_NUMBER_MAX {
            return Err(Malformed("a member's number"));
        }
        let depends_on = match flags & DEPENDS {
            0 => Vec::new(),
            _ => Slots::read(reader)?.iter().collect(),
        };
        let call = if flags & CALL != 0 { Some(Answered::read(reader)?) } else { None };
        Ok(Self { coordinator, slot, behind, version, depends_on, call })
    }
}

/// The first key that an entry changes, if it is a transaction.
pub(crate) fn key_of(entry: &[u8]) -> Option<&[u8]> {
    let mut reader = Reader(entry);
    if reader.u8().ok()? != UPDATE {
        return None;
    }
    UpdateHead::read(&mut reader).ok()?;
    Some(read_item(&mut reader).ok()?.0.key)
}

/// Reads an item, and whether the node has kept its key.
pub(crate) fn read_item<'a>(reader: &mut Reader<'a>) -> Result<(Item<'a>, bool), Malformed> {
    let (key, flags) = (read_key(reader)?, reader.u8()?);
    let (flags, is_kept) = (flags & !KEPT, flags & KEPT != 0);
    let round = Timestamp::ZERO;
    let (base, content) = match flags {
        0 => (None, None),
        VALUE => (None, read_content(reader)?),
        _ if flags == VALUE | BASE => (Some(reader.timestamp()?), read_content(reader)?),
        _ => return Err(Malformed("unknown flags of an item")),
    };
    let is_large = |content: Content<'_>| is_collection(content.kind);
    if flags != 0 && content.is_none() || base.is_some() && !content.is_some_and(is_large) {
        return Err(Malformed("an item without its value"));
    }
    Ok((Item { key, round, content, base }, is_kept))
}

impl<T: Table<Meta = Meta> + LaneShared, X: Command<Owned = X>> Zeus<T, X> {
    // --- appending -------------------------------------------------------------------------------

    pub(crate) fn append_update(
        &mut self,
        update: &Appended<'_>,
        effects: &mut impl Effects<Self>,
    ) -> Lsn {
        let layout = &self.layout;
        // The owner keeps what it writes until it gives the key away.
        let is_own = update.coordinator == layout.number;
        let keeps = |key: &[u8]| is_own || layout.in_group(key);
        let lsn = self.log.append(effects, |log| write_update(update, keeps, log));
        self.spread(update, lsn, effects);
        lsn
    }

    /// Appends what was copied of a key. Another lane may have written what is there by now.
    pub(crate) fn append_copy(
        &mut self,
        key: &[u8],
        version: Timestamp,
        content: Option<Content<'_>>,
        effects: &mut impl Effects<Self>,
    ) {
        if !mutant!("zeus_copied_not_appended") {
            self.log.append(effects, |log| write_record(key, version, content, log));
            self.log.note_copied();
        }
    }

    /// Whether the log of this lane has what a key holds at this version: what another lane has written
    /// comes to it as a part, later.
    pub(crate) fn has_logged(&self, version: Timestamp) -> bool {
        let is_own = version.writer.lane(self.config.lanes) == self.config.lane;
        !self.log.is_kept || is_own || mutant!("zeus_copy_trusts_other_lanes")
    }

    /// Appends what a key holds that has come with its ownership.
    pub(crate) fn append_record(&mut self, key: &[u8], effects: &mut impl Effects<Self>) {
        let table = &mut self.table;
        let append = |log: &mut Vec<u8>| {
            let record = table.lock_existing(key).expect("it was just written");
            let mut packed = Vec::new();
            write_record(key, record.meta().version, record.whole(&mut packed), log);
        };
        if !mutant!("zeus_copied_not_appended") {
            self.log.append(effects, append);
            self.log.note_copied();
        }
    }

    /// Appends records of calls that were copied.
    pub(crate) fn append_calls(
        &mut self,
        shard: u8,
        sessions: &[u8],
        effects: &mut impl Effects<Self>,
    ) {
        let append = |log: &mut Vec<u8>| write_calls(shard, sessions, log);
        self.log.append(effects, append);
        self.log.note_copied();
    }

    /// Appends that nothing is held of a key any more.
    pub(crate) fn append_gone(&mut self, key: &[u8], effects: &mut impl Effects<Self>) {
        if mutant!("zeus_gone_not_appended") {
            return;
        }
        self.log.append(effects, |log| {
            let mut writer = Writer(log);
            writer.u8(GONE);
            writer.rest(key);
        });
    }

    /// The floors for the log. While this node copies, what it lacks is still on its way, and the log may be cut
    /// short before that: then a key that is absent is not one that was deleted below the floor.
    pub(crate) fn floors_to_keep(&self) -> [u64; 3] {
        let floors = self.floor.kept();
        let mut copying = self.joining.iter().filter(|_| !self.layout.is_active());
        match copying.any(|joining| !joining.is_complete()) && !mutant!("zeus_floor_above_a_copy") {
            true => [0, 0, floors[2]],
            false => floors,
        }
    }

    pub(crate) fn append_floors(&mut self, effects: &mut impl Effects<Self>) {
        let floors = self.floors_to_keep();
        if !mutant!("zeus_floors_not_appended") {
            self.log.append(effects, |log| write_floors(floors, log));
        }
    }

    /// Appends, if promises wait for the log, that all promises from here on do. All that they rest on is at
    /// every node by now.
    pub(crate) fn append_promised(&mut self, effects: &mut impl Effects<Self>) {
        let waits = self.log.journal.appended() > Lsn::START;
        if self.log.has_begun && waits && !self.log.waited {
            self.log.waited = true;
            self.log.append(effects, |log| write_promised(true, log));
        }
    }

    /// The log is durable up to a place.
    pub(crate) fn on_durable(&mut self, lsn: Lsn, effects: &mut impl Effects<Self>) {
        self.log.journal.note_durable(lsn);
        self.send_parts(effects);
        self.tell_kept(effects);
        self.advance(effects);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_key_of_a_transaction_is_found() {
        let mut items = Items::begin(0);
        for key in [&b"k"[..], b"l"] {
            let item = Item { key, round: Timestamp::ZERO, content: None, base: None };
            Items::push(&mut items, &item);
        }
        for depends_on in [&[][..], &[3, 4]] {
            let update = Appended {
                coordinator: MemberNumber(1),
                slot: 5,
                committed: 2,
                version: Timestamp::ZERO,
                depends_on,
                items: Items::trusted(&items),
                wholes: &Wholes::new(),
                call: &[],
            };
            let mut entry = Vec::new();
            write_update(&update, |_| true, &mut entry);
            assert_eq!(key_of(&entry), Some(&b"k"[..]));
        }
        let mut entry = Vec::new();
        write_floors([1, 2, 3], &mut entry);
        assert_eq!(key_of(&entry), None);
    }
}
