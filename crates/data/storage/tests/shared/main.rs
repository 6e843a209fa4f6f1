//! Records that the lanes share, and the state that a protocol keeps beside a record's words.
#![cfg(not(any(loom, shuttle)))]

#[path = "../common/mod.rs"]
mod common;
#[cfg(debug_assertions)]
mod disjoint;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use common::{Triple, content, key_of, set};
use quorate_machine::{LaneShared, Meta, Record, Table};
use quorate_storage::{SharedTable, Stats, Store};
use quorate_types::{LaneId, hash_key, lane_of_key};

const LANES: u16 = 2;

/// A protocol that keeps something beside its words.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct Noted([u64; 2]);

impl Meta for Noted {
    type LockedState = Vec<Arc<u64>>;

    const WORDS: usize = 2;

    fn pack(self, words: &mut [u64]) {
        words.copy_from_slice(&self.0);
    }

    fn unpack(words: &[u64]) -> Self {
        Self(words.try_into().expect("two words"))
    }
}

fn scan<M: Meta>(table: &mut SharedTable<M>) -> BTreeSet<Vec<u8>> {
    let (mut cursor, mut handles) = (0, Vec::new());
    loop {
        cursor = table.scan(cursor, 7, &mut |handle| handles.push(handle));
        if cursor == 0 {
            break;
        }
    }
    let keys: BTreeSet<_> =
        handles.iter().map(|&handle| table.lock(handle).key().to_vec()).collect();
    assert_eq!(keys.len(), table.len());
    let mut named = BTreeSet::new();
    loop {
        cursor = table.scan_keys(cursor, 7, &mut |key| {
            named.insert(key.to_vec());
        });
        if cursor == 0 {
            break;
        }
    }
    assert_eq!(named, keys);
    keys
}

#[test]
fn each_lane_reaches_every_key_and_sweeps_its_own() {
    let store = Store::<Noted>::new(LANES);
    let mut tables = [store.shared_table(0), store.shared_table(1)];
    let keys: BTreeSet<_> = (0..100).map(key_of).collect();
    for (number, key) in keys.iter().enumerate() {
        tables[number % 2].lock_key(key, 1).set_content(content(b"v", None));
    }
    for table in &mut tables {
        for key in &keys {
            assert_eq!(table.lock_existing(key).unwrap().content().unwrap().bytes, b"v");
            let handle = table.find(key).unwrap();
            assert_eq!(table.find_or_insert(key), handle);
            assert_eq!(table.lock(handle).key(), key);
        }
        assert!(table.lock_existing(b"another").is_none() && table.find(b"another").is_none());
    }
    for (lane, table) in tables.iter_mut().enumerate() {
        let own = |key: &&Vec<u8>| usize::from(lane_of_key(key, LANES).0) == lane;
        assert_eq!(scan(table), keys.iter().filter(own).cloned().collect());
    }
    assert_eq!(store.stats().records, 100);
    tables[1].reset();
    assert_eq!(store.stats(), Store::<Noted>::new(LANES).stats());
    assert!(tables.iter().all(Table::is_empty));
}

#[test]
fn a_lane_sets_its_own_part_aside() {
    let store = Store::<Noted>::new(LANES);
    let empty = store.stats();
    let mut tables = [store.shared_table(0), store.shared_table(1)];
    let keys: BTreeSet<_> = (0..100).map(key_of).collect();
    for key in &keys {
        tables[0].lock_key(key, 1).set_content(content(b"v", None));
    }
    let own = |key: &&Vec<u8>| lane_of_key(key, LANES).0 == 1;
    let (mine, others): (BTreeSet<_>, BTreeSet<_>) =
        keys.iter().cloned().partition(|key| own(&key));
    let handle = tables[0].find(mine.first().unwrap()).unwrap();
    let before = store.stats();
    let mut aside = tables[1].set_aside();
    assert_eq!((scan(&mut aside), scan(&mut tables[0])), (mine.clone(), others.clone()));
    assert!(tables[1].is_empty() && tables[0].try_lock(handle).is_none(), "it is in no index");
    let [left, taken] = [store.stats(), aside.store().stats()];
    assert_eq!((left.records, taken.records), (others.len() as u64, mine.len() as u64));
    assert_eq!(left.bytes + taken.bytes, before.bytes + empty.bytes);
    // The key begins anew here, and is what it was there.
    let key = mine.first().unwrap();
    tables[0].lock_key(key, 1).set_content(content(b"new", None));
    assert_eq!(aside.lock_existing(key).unwrap().content().unwrap().bytes, b"v");
    assert!(aside.remove_if(key, |_| true));
    assert_eq!(tables[1].lock_existing(key).unwrap().content().unwrap().bytes, b"new");
    drop(aside);
    tables[1].reset();
    assert_eq!(store.stats(), empty);
}

#[test]
fn remove_if_asks_under_the_lock_and_removes_what_any_lane_made() {
    let store = Store::<Noted>::new(LANES);
    let empty = store.stats();
    let [mut first, mut second] = [store.shared_table(0), store.shared_table(1)];
    assert!(!first.remove_if(b"k", |_| panic!("nothing to ask about")));
    first.lock_key(b"k", 0).set_meta(Noted([1, 2]));
    let handle = second.find(b"k").unwrap();
    assert!(!second.remove_if(b"k", |record| record.meta() != Noted([1, 2])));
    assert!(second.try_lock(handle).is_some());
    assert!(second.remove_if(b"k", |record| record.meta() == Noted([1, 2])));
    assert!(first.try_lock(handle).is_none() && first.find(b"k").is_none());
    assert_eq!(store.stats(), empty);
    // The key begins anew.
    assert_eq!(first.lock_key(b"k", 0).meta(), Noted::default());
    let handle = first.find(b"k").unwrap();
    second.remove(handle);
    assert_eq!(store.stats(), empty);
}

#[test]
#[should_panic(expected = "a handle names a record until it is removed")]
fn a_record_that_a_sibling_removed_cannot_be_locked() {
    let store = Store::<Noted>::new(LANES);
    let mut table = store.shared_table(0);
    let handle = table.find_or_insert(b"k");
    store.shared_table(1).remove(handle);
    table.lock(handle);
}

#[test]
#[should_panic(expected = "a record is removed once")]
fn a_record_is_removed_by_one_sibling_only() {
    let store = Store::<Noted>::new(LANES);
    let mut table = store.shared_table(0);
    let handle = table.find_or_insert(b"k");
    assert!(store.shared_table(1).remove_if(b"k", |_| true));
    table.remove(handle);
}

#[cfg(debug_assertions)]
#[test]
#[should_panic(expected = "takes no other lock")]
fn who_holds_a_record_locks_no_other() {
    let store = Store::<Noted>::new(LANES);
    let [mut first, mut second] = [store.shared_table(0), store.shared_table(1)];
    second.find_or_insert(b"b");
    let _held = first.lock_key(b"a", 0);
    second.lock_existing(b"b");
}

#[cfg(debug_assertions)]
#[test]
#[should_panic(expected = "takes no other lock")]
fn who_holds_a_record_makes_no_other() {
    let store = Store::<Noted>::new(LANES);
    let [mut first, mut second] = [store.shared_table(0), store.shared_table(1)];
    let _held = first.lock_key(b"a", 0);
    second.find_or_insert(b"b");
}

#[test]
fn locked_state_stays_with_its_record_whatever_happens_to_the_value() {
    let store = Store::<Noted>::new(LANES);
    let mut table = store.shared_table(0);
    let note = Arc::new(7);
    {
        let mut record = table.lock_key(b"k", 3);
        assert!(record.locked_state().is_empty());
        record.locked_state_mut().push(Arc::clone(&note));
        record.set_content(content(b"abc", None));
    }
    for len in [0, 8, 500, 70_000, 16] {
        let mut record = table.lock_key(b"k", 0);
        record.set_meta(Noted([len as u64, u64::MAX]));
        record.set_content(content(&vec![0xff; len], None));
        assert_eq!((record.key(), record.locked_state()), (&b"k"[..], &vec![Arc::clone(&note)]));
        record.clear();
    }
    for number in 0..2_000 {
        table.find_or_insert(&key_of(number));
    }
    assert_eq!(*table.lock_existing(b"k").unwrap().locked_state_mut().pop().unwrap(), 7);
}

#[test]
fn changing_only_the_locked_state_keeps_no_reader_waiting() {
    let store = Store::<Noted>::new(1);
    let mut table = store.shared_table(0);
    set(&mut table, b"k", b"value", None);
    let mut record = table.lock_key(b"k", 0);
    record.locked_state_mut().push(Arc::new(1));
    // The lock is held, and a reader needs none. (It would wait forever, or panic, if this were a
    // write. Reading with a lock held is for this test only.)
    let mut scratch = Vec::new();
    assert!(store.read(b"k", hash_key(b"k"), &store.pin(), &mut scratch).is_some());
    assert_eq!(scratch, b"value");
    record.locked_state_mut().clear();
}

#[test]
fn siblings_tell_each_other_numbers() {
    let store = Store::<Noted>::new(LANES);
    let [mut first, mut second] = [store.shared_table(0), store.shared_table(1)];
    assert_eq!((first.highest(), first.least(0), first.least(1)), (0, 0, 0));
    first.raise_highest(7);
    second.raise_highest(5);
    assert_eq!((first.highest(), second.highest()), (7, 7));
    first.raise_highest(3);
    second.raise_highest(9);
    assert_eq!((first.highest(), second.highest()), (9, 9));
    assert_eq!((first.raised_by(LaneId(0)), first.raised_by(LaneId(1))), (7, 9));
    first.set_cell(1, 4);
    assert_eq!((second.least(0), second.least(1)), (0, 0), "the other lane has said nothing");
    second.set_cell(1, 6);
    assert_eq!((first.least(0), first.least(1)), (0, 4));
    first.set_cell(1, 8);
    assert_eq!(second.least(1), 6);
    assert_eq!((second.cell_of(LaneId(0), 1), first.cell_of(LaneId(1), 1)), (8, 6));
}

/// Lets the collector free removed records until only the test has the note.
fn assert_freed(note: &Arc<u64>) {
    for _ in 0..1_000_000 {
        if Arc::strong_count(note) == 1 {
            return;
        }
        crossbeam_epoch::pin().flush();
        thread::yield_now();
    }
    panic!("a locked state is left over: {} references", Arc::strong_count(note));
}

#[test]
fn locked_state_goes_with_its_record() {
    let note = Arc::new(0);
    let store = Store::<Noted>::new(LANES);
    let mut table = store.shared_table(0);
    let fill = |table: &mut SharedTable<Noted>| {
        for number in 0..200 {
            table.lock_key(&key_of(number), 0).locked_state_mut().push(Arc::clone(&note));
        }
    };
    fill(&mut table);
    assert_eq!(Arc::strong_count(&note), 201);
    for number in 0..200 {
        assert!(table.remove_if(&key_of(number), |record| record.locked_state().len() == 1));
    }
    assert_freed(&note);
    fill(&mut table);
    table.reset();
    assert_freed(&note);
    fill(&mut table);
    drop((table, store));
    assert_eq!(Arc::strong_count(&note), 1, "a store that goes takes its records along at once");
}

#[test]
fn locked_state_costs_its_size_and_whole_cache_lines() {
    let memory = |len: usize| {
        let store = Store::<Noted>::new(1);
        store.shared_table(0).lock_key(&[b'k'; 16], len).set_content(content(&vec![1; len], None));
        store.memory_of(&[b'k'; 16], hash_key(&[b'k'; 16]), &store.pin()).unwrap() - 8
    };
    // Header, two words, locked state, key, value.
    assert_eq!(32 + 16 + 24 + 16 + 40, 128);
    assert_eq!((memory(0), memory(40), memory(41)), (128, 128, 192));
    assert_eq!(memory(100), 192);
    assert_eq!(memory(5_000) % 64, 0, "the buffer too");
    // Without locked state, no alignment: the same with three words.
    let store = Store::<Triple>::new(1);
    set(&mut store.table(0), &[b'k'; 16], &[1; 100], None);
    let bytes = store.memory_of(&[b'k'; 16], hash_key(&[b'k'; 16]), &store.pin());
    assert_eq!(bytes, Some(192 + 8));
}

/// The threads' changes to a key, each counted by its thread.
#[derive(Default)]
struct Tally {
    counted: AtomicU64,
    removed: AtomicU64,
}

#[test]
fn lanes_that_lock_remove_and_insert_the_same_keys_lose_nothing() {
    const KEYS: u32 = 24;
    let store = Store::<Noted>::new(LANES);
    let (empty, note) = (store.stats(), Arc::new(0));
    let tallies: Vec<Tally> = (0..KEYS).map(|_| Tally::default()).collect();
    thread::scope(|scope| {
        for lane in [0, 1, 0, 1] {
            let mut table = store.shared_table(lane);
            let (tallies, note) = (&tallies, &note);
            scope.spawn(move || {
                let mut random = u64::from(lane) + 1;
                for step in 0..6_000u64 {
                    random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(step);
                    let number = (random >> 33) as u32 % KEYS;
                    one_step(&mut table, number, (random >> 40) % 8, note, tallies);
                }
            });
        }
    });
    let mut table = store.shared_table(0);
    let mut left = 0;
    for (number, tally) in tallies.iter().enumerate() {
        let removed = tally.removed.load(Ordering::Relaxed);
        let here = table.lock_existing(&key_of(number as u32)).map_or(0, |record| {
            left += 1;
            assert_eq!(record.locked_state().len() as u64, record.meta().0[0]);
            record.meta().0[0]
        });
        assert_eq!(tally.counted.load(Ordering::Relaxed), removed + here, "key {number}");
    }
    let Stats { records, with_value, .. } = store.stats();
    assert_eq!((records, with_value), (left, left));
    assert_eq!(store.shared_table(0).len() + store.shared_table(1).len(), left as usize);
    for number in 0..KEYS {
        table.remove_if(&key_of(number), |_| true);
    }
    let grown = store.stats();
    assert_eq!(Stats { bytes: empty.bytes, ..grown }, empty);
    table.reset();
    assert_eq!(store.stats(), empty);
    assert_freed(&note);
}

/// Counts in words, locked state and value alike, or removes the record, or looks at it.
fn one_step(
    table: &mut SharedTable<Noted>,
    number: u32,
    choice: u64,
    note: &Arc<u64>,
    tallies: &[Tally],
) {
    let (key, tally) = (key_of(number), &tallies[number as usize]);
    match choice {
        0..4 => {
            let mut record = table.lock_key(&key, 8);
            let count = record.meta().0[0] + 1;
            assert_eq!(record.locked_state().len() as u64, count - 1);
            record.set_meta(Noted([count; 2]));
            record.locked_state_mut().push(Arc::clone(note));
            record.set_content(content(&vec![count as u8; (count * 50) as usize], None));
            tally.counted.fetch_add(1, Ordering::Relaxed);
        }
        4 | 5 => {
            let mut removed = 0;
            let gone = table.remove_if(&key, |record| {
                removed = record.meta().0[0];
                assert_eq!(record.locked_state().len() as u64, removed);
                removed % 3 != 1
            });
            if gone {
                tally.removed.fetch_add(removed, Ordering::Relaxed);
            }
        }
        6 => {
            if let Some(record) = table.lock_existing(&key) {
                let count = record.meta().0[0];
                assert_eq!(record.locked_state().len() as u64, count);
                // A record that its maker has not locked yet has counted nothing.
                let len = record.content().map_or(0, |found| found.bytes.len());
                assert_eq!(len as u64, count * 50);
            }
        }
        _ => {
            let handle = table.find(&key);
            if let Some(record) = handle.and_then(|handle| table.try_lock(handle)) {
                assert_eq!(record.key(), key);
            }
        }
    }
}
