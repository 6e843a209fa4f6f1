//! What the lanes of a node share in KuaFu++ and in TAPIR, and must not in Meerkat: real memory,
//! with a mutex or atomic, because its cost under contention is what is measured.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use quorate_types::Timestamp;

/// What the lanes of one keyspace of one node share. Usable without a machine, so that what its use
/// costs can be measured apart from everything else.
#[derive(Default)]
pub struct Common {
    counter: Apart<AtomicU64>,
    log: Apart<Mutex<Log>>,
    record: Apart<Mutex<BTreeMap<Timestamp, Tentative>>>,
}

/// On cache lines of its own, so that nothing but its use makes lanes meet there.
#[derive(Default)]
#[repr(align(128))]
struct Apart<T>(T);

/// KuaFu++: the transactions in the primary's order.
#[derive(Debug, Default)]
struct Log {
    /// The place of the first entry.
    first: u64,
    entries: VecDeque<Entry>,
}

#[derive(Debug, Default)]
struct Entry {
    body: Vec<u8>,
    /// Whether this node is through with it: it is dropped once everything before it is, too.
    done: bool,
}

/// TAPIR: what a replica knows of a transaction that is not decided.
#[derive(Debug)]
pub struct Tentative {
    /// Its sets.
    pub body: Vec<u8>,
    /// Whether this replica voted for it.
    pub registered: bool,
    /// The outcome that was proposed on the slow path.
    pub accepted: Option<bool>,
}

impl Common {
    /// KuaFu++: the next number, from 1.
    pub fn next(&self) -> u64 {
        note_write(&self.counter);
        self.counter.0.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// KuaFu++: writes at the end of the log; returns the place.
    pub fn append(&self, body: &[u8]) -> u64 {
        let mut log = lock(&self.log);
        let place = log.first + log.entries.len() as u64;
        log.entries.push_back(Entry { body: body.to_vec(), done: false });
        log.entries.back().inspect(|entry| note_write(*entry));
        place
    }

    /// KuaFu++: writes what the primary has at this place.
    ///
    /// # Panics
    /// If something is there.
    pub fn append_at(&self, place: u64, body: &[u8]) {
        let mut log = lock(&self.log);
        let index = place.checked_sub(log.first).expect("a place is written before it is done");
        let index = usize::try_from(index).expect("a log in memory");
        while log.entries.len() <= index {
            log.entries.push_back(Entry::default());
        }
        let entry = &mut log.entries[index];
        note_write(entry);
        assert!(entry.body.is_empty() && !entry.done, "a place of the log is written once");
        entry.body.extend_from_slice(body);
    }

    /// KuaFu++: takes an entry to apply it; the log keeps its place until [`Common::done`].
    pub fn take(&self, place: u64) -> Vec<u8> {
        let mut log = lock(&self.log);
        let first = log.first;
        let entry = &mut log.entries[(place - first) as usize];
        note_write(entry);
        std::mem::take(&mut entry.body)
    }

    /// KuaFu++: an entry was applied.
    pub fn done(&self, place: u64) {
        let mut log = lock(&self.log);
        let first = log.first;
        let entry = &mut log.entries[(place - first) as usize];
        note_write(entry);
        entry.done = true;
        while log.entries.pop_front_if(|entry| entry.done).is_some() {
            log.first += 1;
        }
    }

    /// TAPIR: notes a transaction.
    pub fn insert(&self, id: Timestamp, tentative: Tentative) {
        lock(&self.record).insert(id, tentative);
    }

    /// TAPIR: notes what was proposed about a transaction.
    pub(crate) fn accept(&self, id: Timestamp, ok: bool) {
        if let Some(tentative) = lock(&self.record).get_mut(&id) {
            tentative.accepted = Some(ok);
        }
    }

    /// TAPIR: a transaction is decided.
    pub fn remove(&self, id: Timestamp) -> Option<Tentative> {
        lock(&self.record).remove(&id)
    }

    /// Entries of log and record.
    pub fn len(&self) -> usize {
        lock(&self.log).entries.len() + lock(&self.record).len()
    }

    /// Whether log and record are empty, as they are when no transaction is under way.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Debug for Common {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counter = self.counter.0.load(Ordering::Relaxed);
        f.debug_struct("Common").field("counter", &counter).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Apart<Mutex<T>>) -> MutexGuard<'_, T> {
    note_write(mutex);
    mutex.0.lock().expect("no lane panics while it holds what all share")
}

/// Tells the test of disjoint access that this thread writes here.
#[inline]
fn note_write<T>(cell: &T) {
    #[cfg(all(debug_assertions, not(any(loom, shuttle))))]
    quorate_storage::trace::written(std::ptr::from_ref(cell).addr(), size_of::<T>());
    let _ = cell;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_written_in_any_order_and_dropped_from_the_front() {
        let common = Common::default();
        common.append_at(1, b"second");
        common.append_at(0, b"first");
        assert_eq!(common.take(1), b"second");
        common.done(1);
        assert_eq!(common.len(), 2, "the first is not done");
        assert_eq!(common.take(0), b"first");
        common.done(0);
        assert!(common.is_empty());
        assert_eq!(common.append(b"third"), 2, "places go on");
    }

    #[test]
    #[should_panic(expected = "written once")]
    fn a_place_of_the_log_is_written_once() {
        let common = Common::default();
        common.append_at(0, b"first");
        common.append_at(0, b"another");
    }
}
