//! Readers and writers of one store on several threads, for a bounded number of steps.
#![cfg(not(any(loom, shuttle)))]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use common::{Triple, content, key_of, set};
use quorate_machine::{Record, Table};
use quorate_storage::{LaneTable, Stats, Store};
use quorate_types::{UnixMillis, hash_key, lane_of_key};

const HOT: u32 = 16;
const LANES: u16 = 2;

/// Writes a value whose every part names its version.
fn write_version(table: &mut LaneTable<Triple>, key: &[u8], version: u64) {
    let handle = table.find_or_insert_sized(key, 40);
    let mut record = table.lock(handle);
    assert!(record.meta().0[0] <= version);
    record.set_meta(Triple([version; 3]));
    // Lengths that fit the record, that need a buffer, and that shrink again.
    let len = [8, 40, 700, 64, 5_000, 16, 70_000, 0][version as usize % 8];
    record.set_content(content(&vec![version as u8; len], Some(UnixMillis(version))));
}

/// Reads a key and checks that meta, expiry and bytes are of one version. Returns that version.
fn read_version(store: &Store<Triple>, key: &[u8], scratch: &mut Vec<u8>) -> Option<u64> {
    let snapshot = store.read(key, hash_key(key), &store.pin(), scratch)?;
    let [version, second, third] = snapshot.meta.0;
    assert!(version == second && version == third, "torn meta {:?}", snapshot.meta);
    if let Some(value) = snapshot.value {
        assert_eq!(value.expire_at, Some(UnixMillis(version)), "expiry of another version");
        assert!(scratch.iter().all(|&byte| byte == version as u8), "bytes of another version");
    }
    Some(version)
}

#[test]
fn readers_see_whole_versions_in_order_while_lanes_write_grow_and_remove() {
    let store = Store::<Triple>::new(LANES);
    let done = AtomicBool::new(false);
    for number in 0..HOT {
        let key = key_of(number);
        write_version(&mut store.table(lane_of_key(&key, LANES).0), &key, 0);
    }
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let (mut scratch, mut seen) = (Vec::new(), [0; HOT as usize]);
                while !done.load(Ordering::Relaxed) {
                    for number in 0..HOT {
                        let version = read_version(&store, &key_of(number), &mut scratch);
                        let version = version.expect("hot keys are never removed");
                        assert!(seen[number as usize] <= version, "a record went back");
                        seen[number as usize] = version;
                    }
                }
            });
        }
        scope.spawn(|| {
            let mut scratch = Vec::new();
            while !done.load(Ordering::Relaxed) {
                (HOT..4_000).for_each(|number| {
                    read_version(&store, &key_of(number), &mut scratch);
                });
                let (mut cursor, mut hot) = (0, 0);
                loop {
                    cursor = store.scan(cursor, 100, &mut |key, snapshot| {
                        assert_eq!(snapshot.meta.0[0], snapshot.meta.0[2]);
                        hot += u32::from((0..HOT).any(|number| key_of(number) == key));
                    });
                    if cursor == 0 {
                        break;
                    }
                }
                assert!(hot >= HOT, "a scan missed a record that was there throughout");
            }
        });
        let writers: Vec<_> = (0..LANES)
            .map(|lane| {
                let mut table = store.table(lane);
                scope.spawn(move || write_lane(&mut table, lane))
            })
            .collect();
        for writer in writers {
            writer.join().unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    let mut tables: Vec<_> = (0..LANES).map(|lane| store.table(lane)).collect();
    tables.iter_mut().for_each(Table::reset);
    assert_eq!(store.stats(), Store::<Triple>::new(LANES).stats());
}

/// While others read, a lane sets its records aside, takes some of them back, and drops the rest.
#[test]
fn readers_go_on_while_records_are_set_aside() {
    let store = Store::<Triple>::new(1);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut scratch = Vec::new();
                while !done.load(Ordering::Relaxed) {
                    for number in 0..500 {
                        read_version(&store, &key_of(number), &mut scratch);
                    }
                }
            });
        }
        let mut table = store.table(0);
        for version in 1..100 {
            for number in 0..500 {
                write_version(&mut table, &key_of(number), version);
            }
            let mut aside = table.set_aside();
            assert_eq!((table.len(), aside.len()), (0, 500));
            for number in 0..250 {
                let handle = aside.find(&key_of(number)).expect("it was written");
                assert_eq!(aside.lock(handle).meta().0[0], version);
                aside.remove(handle);
                write_version(&mut table, &key_of(number), version);
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    store.table(0).reset();
    assert_eq!(store.stats(), Store::<Triple>::new(1).stats());
}

fn write_lane(table: &mut LaneTable<Triple>, lane: u16) {
    let mine = |number: &u32| lane_of_key(&key_of(*number), LANES).0 == lane;
    for version in 1..200 {
        for number in (0..HOT).filter(mine) {
            write_version(table, &key_of(number), version);
        }
        let cold = HOT + (version as u32 * 40) % 4_000;
        for number in (cold..cold + 40).filter(mine) {
            let key = key_of(number);
            match table.find(&key) {
                Some(handle) => table.remove(handle),
                None => write_version(table, &key, version),
            }
        }
    }
}

#[test]
fn several_threads_may_write_one_part() {
    const EACH: u64 = 2_000;
    let store = Store::<Triple>::new(1);
    thread::scope(|scope| {
        for _ in 0..3 {
            let mut table = store.table(0);
            scope.spawn(move || {
                for step in 0..EACH {
                    let key = key_of((step % 500) as u32);
                    let handle = table.find_or_insert(&key);
                    let mut record = table.lock(handle);
                    let [count, ..] = record.meta().0;
                    record.set_meta(Triple([count + 1; 3]));
                    let bytes = vec![1; (step % 300) as usize];
                    record.set_content(content(&bytes, None));
                }
            });
        }
    });
    let total: u64 = (0..500)
        .map(|number| {
            let key = key_of(number);
            store.peek(&key, hash_key(&key), &store.pin()).unwrap().meta.0[0]
        })
        .sum();
    assert_eq!(total, 3 * EACH);
    let Stats { records, with_value, .. } = store.stats();
    assert_eq!((records, with_value), (500, 500));
    let mut table = store.table(0);
    set(&mut table, b"last", b"value", None);
    assert_eq!(table.len(), 501);
}
