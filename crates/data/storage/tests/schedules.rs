//! Lanes and readers of one store under many schedules:
//! `RUSTFLAGS="--cfg shuttle" cargo test -p quorate-storage --test schedules`. Freed memory is
//! marked and reused early, so that a record or buffer that is used too long shows.
#![cfg(shuttle)]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quorate_machine::{Content, Meta, Record, Table, ValueKind};
use quorate_storage::{SharedTable, Stats, Store};
use quorate_sync::primitives::thread;
use quorate_sync::schedules::{coin, explore};
use quorate_types::hash_key;

/// A count in two words and once more in the locked state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Count([u64; 2]);

impl Meta for Count {
    type LockedState = u64;
    const WORDS: usize = 2;

    fn pack(self, words: &mut [u64]) {
        words.copy_from_slice(&self.0);
    }

    fn unpack(words: &[u64]) -> Self {
        Self([words[0], words[1]])
    }
}

fn content(bytes: &[u8]) -> Content<'_> {
    Content { bytes, kind: ValueKind::String, expire_at: None }
}

fn key_of(number: u32) -> Vec<u8> {
    format!("key:{number}").into_bytes()
}

/// The value that goes with a count: some fit in the record, some need a buffer.
fn value_of(count: u64) -> Vec<u8> {
    vec![count as u8; [3, 200, 40, 900][count as usize % 4]]
}

/// Counts once more in a key's record.
fn count(table: &mut SharedTable<Count>, key: &[u8]) {
    let mut record = table.lock_key(key, 8);
    let before = record.meta().0;
    assert_eq!(before, [*record.locked_state(); 2], "words and locked state belong together");
    let count = before[0] + 1;
    record.set_meta(Count([count; 2]));
    *record.locked_state_mut() = count;
    record.set_content(content(&value_of(count)));
}

/// Removes a key's record unless its count is odd. Returns its count.
fn remove(table: &mut SharedTable<Count>, key: &[u8]) -> u64 {
    let mut counted = 0;
    let gone = table.remove_if(key, |record| {
        counted = record.meta().0[0];
        assert_eq!(counted, *record.locked_state(), "words and locked state belong together");
        counted % 2 == 0
    });
    if gone { counted } else { 0 }
}

/// Reads a key without a lock and checks that meta and value belong together.
fn read(store: &Store<Count>, key: &[u8]) -> Option<u64> {
    let mut scratch = Vec::new();
    let snapshot = store.read(key, hash_key(key), &store.pin(), &mut scratch)?;
    let [first, second] = snapshot.meta.0;
    assert_eq!(first, second, "torn words");
    match snapshot.content(&scratch) {
        Some(content) => assert_eq!(content.bytes, value_of(first), "a torn value"),
        None => assert_eq!(first, 0, "words without their value"),
    }
    Some(first)
}

fn spawn<T: Send + 'static>(
    store: &Arc<Store<Count>>,
    body: impl FnOnce(&Arc<Store<Count>>) -> T + Send + 'static,
) -> thread::JoinHandle<T> {
    let store = Arc::clone(store);
    thread::spawn(move || body(&store))
}

#[test]
fn readers_see_records_whole_while_values_move() {
    explore(10_000, || {
        let store = Store::<Count>::new(2);
        count(&mut store.shared_table(0), b"k");
        let writers = [0, 1].map(|lane| {
            spawn(&store, move |store| {
                let mut table = store.shared_table(lane);
                (0..3).for_each(|_| count(&mut table, b"k"));
            })
        });
        let reader = spawn(&store, |store| {
            let seen: Vec<u64> =
                (0..4).map(|_| read(store, b"k").expect("never removed")).collect();
            assert!(seen.is_sorted(), "a record went back: {seen:?}");
        });
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        reader.join().unwrap();
        assert_eq!(read(&store, b"k"), Some(7));
    });
}

#[test]
fn lanes_that_count_and_remove_lose_no_count() {
    const KEYS: u32 = 3;
    explore(10_000, || {
        let store = Store::<Count>::new(2);
        let empty = store.stats();
        let (counted, removed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let lanes: Vec<_> = (0..3)
            .map(|number| {
                let (counted, removed) = (Arc::clone(&counted), Arc::clone(&removed));
                spawn(&store, move |store| {
                    let mut table = store.shared_table(number % 2);
                    for step in 0..5 {
                        let key = key_of((u32::from(number) + step) % KEYS);
                        if coin() {
                            count(&mut table, &key);
                            counted.fetch_add(1, Ordering::Relaxed);
                        } else {
                            removed.fetch_add(remove(&mut table, &key), Ordering::Relaxed);
                        }
                    }
                })
            })
            .collect();
        let reader = spawn(&store, |store| {
            (0..KEYS).for_each(|number| {
                read(store, &key_of(number));
            });
        });
        lanes.into_iter().for_each(|lane| lane.join().unwrap());
        reader.join().unwrap();
        let left: Vec<u64> = (0..KEYS).filter_map(|number| read(&store, &key_of(number))).collect();
        let (counted, removed) = (counted.load(Ordering::Relaxed), removed.load(Ordering::Relaxed));
        assert_eq!(counted, removed + left.iter().sum::<u64>());
        let Stats { records, with_value, .. } = store.stats();
        assert_eq!((records, with_value), (left.len() as u64, left.len() as u64));
        store.reset();
        assert_eq!(store.stats(), empty);
    });
}

#[test]
fn a_handle_names_its_key_or_nothing_when_its_place_is_used_again() {
    explore(10_000, || {
        let store = Store::<Count>::new(2);
        let keys: Vec<Vec<u8>> = (0..3).map(key_of).collect();
        keys.iter().for_each(|key| count(&mut store.shared_table(0), key));
        let reused = keys.clone();
        let other = spawn(&store, move |store| {
            let mut table = store.shared_table(1);
            for key in &reused {
                assert!(table.remove_if(key, |_| true));
                // Of the same size, so the record may get the memory of the removed one.
                let mut record = table.lock_key(key_of(9).as_slice(), 8);
                record.set_meta(Count([2; 2]));
                *record.locked_state_mut() = 2;
                record.set_content(content(&value_of(2)));
                drop(record);
                assert!(table.remove_if(&key_of(9), |_| true));
                count(&mut table, key);
            }
        });
        let mut table = store.shared_table(0);
        for key in &keys {
            let Some(handle) = table.find(key) else { continue };
            if let Some(record) = table.try_lock(handle) {
                assert_eq!(record.key(), key);
                assert!(record.meta().0[0] <= 1, "another key's words");
            }
        }
        other.join().unwrap();
        assert_eq!(store.stats().records, 3);
    });
}

#[test]
fn a_shard_that_grows_hides_no_record_from_readers_and_scans() {
    explore(6_000, || {
        let store = Store::<Count>::new(2);
        let old: BTreeSet<Vec<u8>> = (0..3).map(key_of).collect();
        old.iter().for_each(|key| count(&mut store.shared_table(0), key));
        let writers = [0, 1].map(|lane| {
            spawn(&store, move |store| {
                let mut table = store.shared_table(lane);
                let keys = (10..15).map(|number| key_of(number + 10 * u32::from(lane)));
                keys.for_each(|key| count(&mut table, &key));
            })
        });
        let kept = old.clone();
        let reader = spawn(&store, move |store| {
            assert!(kept.iter().all(|key| read(store, key) == Some(1)), "growing lost a record");
            let (mut seen, mut cursor) = (BTreeSet::new(), 0);
            loop {
                cursor = store.scan(cursor, 2, &mut |key, _| {
                    seen.insert(key.to_vec());
                });
                if cursor == 0 {
                    break;
                }
            }
            assert!(kept.is_subset(&seen), "a scan missed a record that was there all along");
        });
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        reader.join().unwrap();
        let all = (0..3).chain(10..15).chain(20..25);
        assert!(all.clone().all(|number| read(&store, &key_of(number)) == Some(1)));
        assert_eq!(store.stats().records, all.count() as u64);
    });
}

#[test]
fn a_watcher_reads_a_change_or_finds_it_listed() {
    explore(2_000, || {
        let store = Store::<Count>::new(2);
        let writer = spawn(&store, |store| count(&mut store.shared_table(1), b"a"));
        store.watch(b"a");
        let seen = read(&store, b"a").is_some_and(|count| count > 0);
        writer.join().unwrap();
        assert!(seen || store.has_changes(), "neither read nor listed");
    });
}

#[test]
fn who_arms_reads_a_coalesced_change_or_finds_it_listed() {
    explore(2_000, || {
        let store = Store::<Count>::new(2);
        store.watch_prefix(b"", true);
        count(&mut store.shared_table(0), b"a");
        // Not listed unless the store is armed before.
        let writer = spawn(&store, |store| count(&mut store.shared_table(1), b"a"));
        store.arm();
        store.take_changes();
        let seen = read(&store, b"a") == Some(2);
        writer.join().unwrap();
        store.arm();
        assert!(seen || store.has_changes(), "neither read nor listed");
    });
}
