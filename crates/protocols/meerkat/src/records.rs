//! The records of one lane, by the transaction that they are of.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::fmt::{self, Debug};
use core::hash::{Hash, Hasher};

use quorate_machine::DetMap;
use quorate_types::{Timestamp, WriterId};

use crate::txn_record::{RecordKey, TxnRecord};

/// The records of a lane. Each is looked up several times between its first message and its end, so
/// they stand in a hash map; and each coordinator's have an order, that of time, in which they are
/// dropped once they are stable.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Records {
    entries: DetMap<RecordKey, TxnRecord>,
    /// Version and partition of each coordinator's records, ascending. New ones come at the end,
    /// unless a message was overtaken.
    order: BTreeMap<WriterId, VecDeque<(u64, u16)>>,
}

impl Records {
    /// None.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The record of a transaction in a partition.
    #[inline]
    pub fn get(&self, key: &RecordKey) -> Option<&TxnRecord> {
        self.entries.get(key)
    }

    /// The record of a transaction in a partition, to be changed.
    #[inline]
    pub fn get_mut(&mut self, key: &RecordKey) -> Option<&mut TxnRecord> {
        self.entries.get_mut(key)
    }

    /// Whether there is a record of a transaction in a partition.
    #[inline]
    pub fn contains_key(&self, key: &RecordKey) -> bool {
        self.entries.contains_key(key)
    }

    /// The record of a transaction in a partition, a new one if there was none; and whether there was
    /// none.
    pub fn get_or_insert_with(
        &mut self,
        key: RecordKey,
        record: impl FnOnce() -> TxnRecord,
    ) -> (&mut TxnRecord, bool) {
        let (record, is_new) = self.entries.get_or_insert_with(key, record);
        if is_new {
            enter(&mut self.order, &key);
        }
        (record, is_new)
    }

    /// Adds a record, or replaces the one there was.
    pub fn insert(&mut self, key: RecordKey, record: TxnRecord) {
        if self.entries.insert(key, record).is_none() {
            enter(&mut self.order, &key);
        }
    }

    /// All records: coordinator by coordinator, each one's in order of time.
    pub fn iter(&self) -> impl Iterator<Item = (&RecordKey, &TxnRecord)> {
        self.keys_in_order().map(|key| self.entries.get_entry(&key).expect("its place is known"))
    }

    /// Their names, in the order of [`Records::iter`].
    pub fn keys(&self) -> impl Iterator<Item = &RecordKey> {
        self.iter().map(|(key, _)| key)
    }

    /// The records of a transaction in all partitions.
    pub(crate) fn of(&self, id: Timestamp) -> impl Iterator<Item = (RecordKey, &TxnRecord)> {
        let order = self.order.get(&id.writer);
        let first =
            order.map_or(0, |order| order.partition_point(|place| *place < (id.version, 0)));
        let places = order.into_iter().flat_map(move |order| order.range(first..));
        self.at(id.writer, places.take_while(move |(version, _)| *version == id.version))
    }

    /// A coordinator's records up to a version.
    pub(crate) fn up_to(
        &self,
        writer: WriterId,
        version: u64,
    ) -> impl Iterator<Item = (RecordKey, &TxnRecord)> {
        let places = self.order.get(&writer).into_iter().flatten();
        self.at(writer, places.take_while(move |(at, _)| *at <= version))
    }

    fn at<'a>(
        &self,
        writer: WriterId,
        places: impl Iterator<Item = &'a (u64, u16)>,
    ) -> impl Iterator<Item = (RecordKey, &TxnRecord)> {
        places.map(move |&(version, partition)| {
            let key = RecordKey { writer, version, partition };
            (key, self.get(&key).expect("its place is known"))
        })
    }

    /// Takes away the first record of a coordinator, if it is not after a version.
    pub(crate) fn pop_up_to(
        &mut self,
        writer: WriterId,
        version: u64,
    ) -> Option<(RecordKey, TxnRecord)> {
        let order = self.order.get_mut(&writer)?;
        let (version, partition) = order.pop_front_if(|(at, _)| *at <= version)?;
        let key = RecordKey { writer, version, partition };
        Some((key, self.entries.remove(&key).expect("its place is known")))
    }

    /// The records of guests.
    pub(crate) fn of_guests(&self) -> impl Iterator<Item = &TxnRecord> {
        let guests = self.order.iter().filter(|(writer, _)| writer.is_guest());
        guests.flat_map(|(writer, order)| self.at(*writer, order.iter())).map(|(_, record)| record)
    }

    /// The version of the first record of each guest that has one.
    pub(crate) fn first_of_guests(&self) -> impl Iterator<Item = u64> {
        let guests = self.order.iter().filter(|(writer, _)| writer.is_guest());
        guests.filter_map(|(_, order)| order.front()).map(|(version, _)| *version)
    }

    /// Keeps the records of guests for which a condition holds, and all of members.
    pub(crate) fn retain_of_guests(&mut self, keep: impl FnMut(&RecordKey, &TxnRecord) -> bool) {
        self.retain_of(WriterId::is_guest, keep);
    }

    /// Keeps the records for which a condition holds.
    pub(crate) fn retain(&mut self, keep: impl FnMut(&RecordKey, &TxnRecord) -> bool) {
        self.retain_of(|_| true, keep);
    }

    fn retain_of(
        &mut self,
        of: impl Fn(WriterId) -> bool,
        mut keep: impl FnMut(&RecordKey, &TxnRecord) -> bool,
    ) {
        let Self { entries, order } = self;
        order.retain(|writer, order| {
            if !of(*writer) {
                return true;
            }
            order.retain(|&(version, partition)| {
                let key = RecordKey { writer: *writer, version, partition };
                entries.remove_if(&key, |record| !keep(&key, record)).is_none()
            });
            !order.is_empty()
        });
    }

    fn keys_in_order(&self) -> impl Iterator<Item = RecordKey> {
        self.order.iter().flat_map(|(writer, order)| {
            order.iter().map(|&(version, partition)| RecordKey {
                writer: *writer,
                version,
                partition,
            })
        })
    }
}

/// Notes the place of a record that is new.
fn enter(order: &mut BTreeMap<WriterId, VecDeque<(u64, u16)>>, key: &RecordKey) {
    let (order, place) = (order.entry(key.writer).or_default(), (key.version, key.partition));
    if order.back().is_none_or(|last| *last < place) {
        return order.push_back(place);
    }
    order.insert(order.partition_point(|other| *other < place), place);
}

impl<const N: usize> From<[(RecordKey, TxnRecord); N]> for Records {
    fn from(records: [(RecordKey, TxnRecord); N]) -> Self {
        records.into_iter().collect()
    }
}

impl Extend<(RecordKey, TxnRecord)> for Records {
    fn extend<I: IntoIterator<Item = (RecordKey, TxnRecord)>>(&mut self, records: I) {
        records.into_iter().for_each(|(key, record)| self.insert(key, record));
    }
}

impl FromIterator<(RecordKey, TxnRecord)> for Records {
    fn from_iter<I: IntoIterator<Item = (RecordKey, TxnRecord)>>(records: I) -> Self {
        let mut all = Self::new();
        all.extend(records);
        all
    }
}

impl IntoIterator for Records {
    type Item = (RecordKey, TxnRecord);
    type IntoIter = alloc::vec::IntoIter<(RecordKey, TxnRecord)>;

    /// In the order of [`Records::iter`].
    fn into_iter(mut self) -> Self::IntoIter {
        let keys: Vec<RecordKey> = self.keys_in_order().collect();
        let take = |key| (key, self.entries.remove(&key).expect("its place is known"));
        keys.into_iter().map(take).collect::<Vec<_>>().into_iter()
    }
}

impl Hash for Records {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.entries.hash(state);
    }
}

impl Debug for Records {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_machine::Rng;

    fn key(rng: &mut Rng) -> RecordKey {
        let writer = WriterId(rng.below(3) as u32);
        RecordKey { writer, version: rng.below(20), partition: rng.below(2) as u16 }
    }

    #[test]
    fn they_are_an_ordered_map() {
        let mut rng = Rng::new(5);
        let (mut records, mut ordered) = (Records::new(), BTreeMap::new());
        for number in 0..20_000 {
            let key = key(&mut rng);
            let record = TxnRecord { view: number, ..TxnRecord::default() };
            match rng.below(8) {
                0..4 => {
                    records.insert(key, record.clone());
                    ordered.insert(key, record);
                }
                4 => {
                    let is_new = !ordered.contains_key(&key);
                    let expected = ordered.entry(key).or_insert_with(|| record.clone());
                    assert_eq!(records.get_or_insert_with(key, || record), (expected, is_new));
                }
                5 => {
                    let expected = ordered
                        .first_entry()
                        .filter(|first| first.key().writer == key.writer)
                        .filter(|first| first.key().version <= key.version)
                        .map(|first| first.remove_entry());
                    if expected.is_some() {
                        assert_eq!(records.pop_up_to(key.writer, key.version), expected);
                    }
                }
                6 => {
                    let keep = |key: &RecordKey, record: &TxnRecord| {
                        key.version % 7 != 3 && record.view + 40 > number
                    };
                    records.retain(keep);
                    ordered.retain(|key, record| keep(key, record));
                }
                _ => {
                    let to = RecordKey { partition: u16::MAX, ..key };
                    let from = RecordKey { partition: 0, ..key };
                    let expected = ordered.range(from..=to).map(|(key, record)| (*key, record));
                    assert!(records.of(key.id()).eq(expected));
                    let from = RecordKey { version: 0, ..from };
                    let expected = ordered.range(from..=to).map(|(key, record)| (*key, record));
                    assert!(records.up_to(key.writer, key.version).eq(expected));
                }
            }
            assert_eq!(records.get(&key), ordered.get(&key));
            assert_eq!(records.len(), ordered.len());
            assert!(records.iter().eq(&ordered));
        }
        assert!(records.clone().into_iter().eq(ordered.clone()));
        assert_eq!(ordered.into_iter().collect::<Records>(), records);
    }
}
