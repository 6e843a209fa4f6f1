//! What a node has left of earlier lives: set aside when the next one begins, until it has compared it with what
//! its donors have (`difference.rs`).
//!
//! Nothing looks at these records but the comparison. To everything else the node begins without records, as
//! one that never had any.

use alloc::vec::Vec;

use quorate_machine::{Command, Content, LaneShared, Record, Scan, Table, mutant};
use quorate_types::placement::shard_of;
use quorate_types::{SeededHash, Timestamp, View};

use crate::fields::Settled;
use crate::join::RECORDS;
use crate::layout::Shards;
use crate::meta::{DataState, Meta, OwnerState};
use crate::ownership::Value;
use crate::state::{Key, Zeus};

/// One record that is left.
pub(crate) struct Left {
    pub(crate) key: Key,
    pub(crate) version: Timestamp,
    /// Its entry of the directory, if the node knew it.
    pub(crate) settled: Settled,
    value: Option<Value>,
}

impl Left {
    /// What the key holds.
    pub(crate) fn content(&self) -> Option<Content<'_>> {
        self.value.as_ref().map(Value::content)
    }
}

/// The entry of the directory that is left of a record: what was under way may have come to nothing.
fn settled(meta: &Meta) -> Settled {
    let is_settled = meta.state == OwnerState::Valid || mutant!("zeus_former_rounds_unsettled");
    if is_settled { meta.settled() } else { Settled::default() }
}

/// The hash of a key and a version of it. A version names one transaction, and so what it has left in the key:
/// member numbers are never used twice, and the clock of a member only rises.
pub(crate) fn value_hash(hash: &SeededHash, key: &[u8], version: Timestamp) -> u64 {
    hash.of(key, version.to_words())
}

/// The hash of a record: of its key, its version, and its entry of the directory.
fn whole_hash(hash: &SeededHash, value: u64, settled: Settled) -> u64 {
    let [round, driver] = settled.round.to_words();
    hash.of(&value.to_le_bytes(), [round, driver | u64::from(settled.owner.0) << 32])
}

/// Gives the hash under which a learner has left a record of one of these shards: by its version, or whole. It
/// has none unless its version is known to be committed.
pub(crate) fn left_hasher<T: Table<Meta = Meta>>(
    shards: Shards,
    request: u64,
    by_value: bool,
) -> impl Fn(&mut T, T::Handle) -> Option<u64> {
    hasher(shards, request, by_value, |meta| {
        let is_committed =
            meta.data == DataState::Valid || mutant!("zeus_former_records_uncommitted");
        is_committed.then(|| settled(meta))
    })
}

/// The same of a record with this entry of the directory, if it counts.
pub(crate) fn hasher<T: Table<Meta = Meta>>(
    shards: Shards,
    request: u64,
    by_value: bool,
    settled: impl Fn(&Meta) -> Option<Settled>,
) -> impl Fn(&mut T, T::Handle) -> Option<u64> {
    let hash = SeededHash::new(request);
    move |table, handle| {
        let record = table.try_lock(handle)?;
        let meta = record.meta();
        let settled = settled(&meta)?;
        if !shards.contains(shard_of(record.key())) {
            return None;
        }
        let value = value_hash(&hash, record.key(), meta.version);
        Some(if by_value { value } else { whole_hash(&hash, value, settled) })
    }
}

impl<T: Table<Meta = Meta> + LaneShared, X: Command<Owned = X>> Zeus<T, X> {
    /// A life begins without records in this view: those that this lane has are set aside, if they are of
    /// the view's cluster.
    pub(crate) fn set_aside(&mut self, view: &View) {
        let is_of_use = self.log.cluster.shares_data_with(view.cluster);
        if !is_of_use && !mutant!("zeus_former_records_of_another_cluster") {
            self.former = None;
        } else if !self.table.is_empty() {
            let later = self.table.set_aside();
            let earlier = self.former.take();
            let earlier = earlier.filter(|_| !mutant!("zeus_former_records_of_one_life"));
            self.former = Some(match earlier {
                Some(earlier) => merge(earlier, later),
                None => later,
            });
        }
    }

    /// How many records are left.
    pub(crate) fn left(&self) -> usize {
        self.former.as_ref().map_or(0, T::len)
    }

    /// Takes a record out, to use it or to drop it.
    pub(crate) fn take_left(&mut self, handle: T::Handle) -> Option<Left> {
        let former = self.former.as_mut()?;
        let record = former.try_lock(handle)?;
        let meta = record.meta();
        let mut packed = Vec::new();
        let value = record.whole(&mut packed).map(Value::of);
        let key = Key::from(record.key());
        drop(record);
        former.remove(handle);
        Some(Left { key, version: meta.version, settled: settled(&meta), value })
    }
}

/// The records of two lives. Those of the later one, which are fewer where it has ended soon, replace those of
/// the earlier one.
fn merge<T: Table<Meta = Meta>>(mut earlier: T, mut later: T) -> T {
    let mut scan = Scan::default();
    loop {
        for handle in scan.next_handles(&later, RECORDS) {
            let record = later.lock(handle);
            let (key, meta, mut packed) = (Key::from(record.key()), record.meta(), Vec::new());
            let value = record.whole(&mut packed).map(Value::of);
            drop(record);
            let mut record = earlier.lock_key(&key, 0);
            record.set_meta(meta);
            match &value {
                Some(value) => record.set_content(value.content()),
                None => record.clear(),
            }
        }
        if scan.is_at_end() {
            return earlier;
        }
    }
}
