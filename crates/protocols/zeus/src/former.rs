//! What a node has left of an earlier life: set aside when the next one begins, until it has compared it with
//! what its donors have (`difference.rs`).
//!
//! Nothing looks at these records but the comparison. To everything else the node begins without records, as
//! one that never had any.

use alloc::boxed::Box;
use alloc::vec::Vec;

use quorate_machine::difference::Places;
use quorate_machine::{Collection, Command, Content, LaneShared, Record, Table, mutant};
use quorate_types::{SeededHash, Timestamp, View};

use crate::fields::Settled;
use crate::join::RECORDS;
use crate::meta::{DataState, Meta, OwnerState};
use crate::ownership::Value;
use crate::state::{Key, Zeus};

/// One record of an earlier life.
#[derive(Clone, Hash, Debug)]
pub(crate) struct FormerRecord {
    pub(crate) key: Key,
    pub(crate) version: Timestamp,
    /// Its entry of the directory, if the node knew it.
    settled: Settled,
    value: Option<(Value, Option<Collection>)>,
}

impl FormerRecord {
    /// A record, if its version is known to be committed, and its entry of the directory, if that is settled: the
    /// rest may have come to nothing.
    fn of(record: &impl Record<Meta = Meta>) -> Option<Self> {
        let meta = record.meta();
        let is_committed =
            meta.data == DataState::Valid || mutant!("zeus_former_records_uncommitted");
        let is_settled = meta.state == OwnerState::Valid || mutant!("zeus_former_rounds_unsettled");
        let settled = if is_settled { meta.settled() } else { Settled::default() };
        let value = record.content().map(|content| (Value::of(content), record.large().cloned()));
        is_committed.then(|| Self {
            key: record.key().into(),
            version: meta.version,
            settled,
            value,
        })
    }

    /// What the key holds; if that is large, packed, which is written to `packed`.
    pub(crate) fn content<'a>(&'a self, packed: &'a mut Vec<u8>) -> Option<Content<'a>> {
        let (value, large) = self.value.as_ref()?;
        let content = value.content();
        Some(match large {
            Some(large) => {
                large.pack(packed);
                Content { bytes: packed, ..content }
            }
            None => content,
        })
    }

    pub(crate) fn settled(&self) -> Settled {
        self.settled
    }

    /// The hash of its key and its version.
    pub(crate) fn value_hash(&self, hash: &SeededHash) -> u64 {
        value_hash(hash, &self.key, self.version)
    }

    /// The hash of all that a comparison is about.
    pub(crate) fn whole_hash(&self, hash: &SeededHash) -> u64 {
        whole_hash(hash, self.value_hash(hash), self.settled)
    }
}

/// The hash of a key and a version of it. A version names one transaction, and so what it has left in the key:
/// member numbers are never used twice, and the clock of a member only rises.
pub(crate) fn value_hash(hash: &SeededHash, key: &[u8], version: Timestamp) -> u64 {
    hash.of(key, version.to_words())
}

/// The hash of a record: of its key, its version, and its entry of the directory.
pub(crate) fn whole_hash(hash: &SeededHash, value: u64, settled: Settled) -> u64 {
    let [round, driver] = settled.round.to_words();
    hash.of(&value.to_le_bytes(), [round, driver | u64::from(settled.owner.0) << 32])
}

/// The records of earlier lives, in the order of their places.
#[derive(Clone, Hash, Debug, Default)]
pub(crate) struct Former {
    records: Vec<(u64, Option<Box<FormerRecord>>)>,
    left: usize,
}

impl Former {
    /// Adds what a life has left that ends; it replaces what an earlier one has left.
    fn add(&mut self, later: Vec<(u64, Option<Box<FormerRecord>>)>) {
        let earlier = core::mem::replace(&mut self.records, later);
        let earlier = earlier.into_iter().filter(|(_, record)| record.is_some());
        self.records.extend(earlier.filter(|_| !mutant!("zeus_former_records_of_one_life")));
        // Of two records of a key the later one stays before the earlier one, and in the list.
        let key = |record: &Option<Box<FormerRecord>>| record.as_ref().map(|it| it.key.clone());
        self.records.sort_by(|(place, record), (other, second)| {
            place.cmp(other).then_with(|| key(record).cmp(&key(second)))
        });
        self.records.dedup_by(|(place, record), (other, first)| {
            place == other && key(record) == key(first)
        });
        self.left = self.records.len();
    }

    /// A record that is left.
    pub(crate) fn get(&self, handle: usize) -> Option<&FormerRecord> {
        self.records.get(handle)?.1.as_deref()
    }

    /// Takes a record out, to use it or to drop it.
    pub(crate) fn take(&mut self, handle: usize) -> Option<Box<FormerRecord>> {
        let record = self.records.get_mut(handle)?.1.take()?;
        self.left -= 1;
        if self.left == 0 {
            self.records = Vec::new();
        }
        Some(record)
    }
}

impl Places for Former {
    type Handle = usize;

    fn count(&self) -> usize {
        self.left
    }

    fn visit_places(&self, from: u64, limit: usize, visit: &mut dyn FnMut(u64, usize)) -> u64 {
        let first = self.records.partition_point(|(place, _)| *place < from);
        let mut last = from;
        let mut visited = 0;
        for (handle, (place, record)) in self.records.iter().enumerate().skip(first) {
            if visited >= limit.max(1) && *place != last {
                return *place;
            }
            last = *place;
            if record.is_some() {
                visited += 1;
                visit(*place, handle);
            }
        }
        0
    }
}

impl<T: Table<Meta = Meta> + LaneShared, X: Command<Owned = X>> Zeus<T, X> {
    /// A life begins without records in this view: those that this lane has are set aside, if they are of
    /// the view's cluster.
    pub(crate) fn set_aside(&mut self, view: &View) {
        let is_of_use = self.log.cluster.shares_data_with(view.cluster);
        if !is_of_use && !mutant!("zeus_former_records_of_another_cluster") {
            self.former = Former::default();
            return;
        }
        let (mut records, mut place) = (Vec::new(), 0);
        loop {
            let mut found = Vec::new();
            place = self.table.scan_places(place, RECORDS, &mut |place, handle| {
                found.push((place, handle));
            });
            // Each goes at once, so that no value is here twice.
            for (place, handle) in found {
                let Some(record) = self.table.try_lock(handle) else { continue };
                let key = Key::from(record.key());
                let former = FormerRecord::of(&record);
                drop(record);
                self.table.remove_if(&key, |_| true);
                records.extend(former.map(|former| (place, Some(Box::new(former)))));
            }
            if place == 0 {
                break;
            }
        }
        self.former.add(records);
    }
}
