//! Lanes that work on different keys write no common cache line, seen through
//! [`quorate_storage::trace`].

use std::collections::BTreeSet;
use std::sync::{Arc, Barrier};
use std::thread;

use quorate_machine::{LaneShared, Record, Table};
use quorate_storage::{SharedTable, Store, trace};
use quorate_types::{UnixMillis, hash_key, lane_of_key};

use crate::common::{content, key_of};
use crate::{LANES, Noted};

const KEYS: u32 = 400;

/// The work of transactions on existing records: all changes of words, locked state and value, with
/// values of every size.
fn work(table: &mut SharedTable<Noted>, keys: &[Vec<u8>]) {
    for round in 0..20u64 {
        for (number, key) in keys.iter().enumerate() {
            let number = number as u64;
            {
                let mut record = table.lock_key(key, 8);
                record.locked_state_mut().push(Arc::new(round));
                record.set_meta(Noted([round; 2]));
            }
            let len = match (round + number) % 6 {
                0 => 700,
                1 => 3_000,
                _ => (number * 7 + round * 13) % 96,
            } as usize;
            let mut record = table.lock_existing(key).expect("made before");
            record.locked_state_mut().clear();
            let expire_at = (round % 2 == 0).then_some(UnixMillis(round));
            record.set_content(content(&vec![round as u8; len], expire_at));
            if round % 5 == 4 {
                record.clear();
            }
            drop(record);
            // Reading writes nothing.
            let store = table.store();
            let mut scratch = Vec::new();
            assert!(store.read(key, hash_key(key), &store.pin(), &mut scratch).is_some());
            assert!(!table.remove_if(b"absent", |_| true));
            table.raise_highest(round);
            table.set_cell(0, table.least(0) + number);
        }
    }
}

/// The lines that each of two lanes writes while they work on these keys at the same time.
fn lines(store: &Arc<Store<Noted>>, keys: [&[Vec<u8>]; 2]) -> [BTreeSet<usize>; 2] {
    // Memory that one lane's changes release must not serve the other during the recording.
    let _nothing_is_freed = store.pin();
    let together = Barrier::new(2);
    thread::scope(|scope| {
        let run = |lane: u16, keys: &'_ [Vec<u8>]| {
            let mut table = store.shared_table(lane);
            together.wait();
            trace::begin();
            work(&mut table, keys);
            trace::end()
        };
        let other = scope.spawn(move || run(1, keys[1]));
        [run(0, keys[0]), other.join().expect("the other lane works too")]
    })
}

/// A store whose records were made by both lanes in turn, so that neighbours in memory are written
/// by different lanes.
fn filled() -> (Arc<Store<Noted>>, [Vec<Vec<u8>>; 2]) {
    let store = Store::new(LANES);
    let mut table = store.shared_table(0);
    let mut keys = [Vec::new(), Vec::new()];
    for number in 0..KEYS {
        let key = key_of(number);
        table.find_or_insert_sized(&key, (number % 96) as usize);
        keys[number as usize % 2].push(key);
    }
    (store, keys)
}

#[test]
fn disjoint_transactions_write_no_common_line() {
    let (store, keys) = filled();
    for keys in &keys {
        let lanes: BTreeSet<_> = keys.iter().map(|key| lane_of_key(key, LANES)).collect();
        assert_eq!(lanes.len(), 2, "both lanes write both parts");
    }
    let [first, second] = lines(&store, [&keys[0], &keys[1]]);
    assert!(first.len() > 400 && second.len() > 400, "what was written was recorded");
    let common: Vec<_> = first.intersection(&second).collect();
    assert!(common.is_empty(), "{} common lines", common.len());
}

#[test]
fn one_common_key_shows() {
    let (store, [mut first, second]) = filled();
    first.push(second[0].clone());
    let [first, second] = lines(&store, [&first, &second]);
    assert!(first.intersection(&second).count() >= 1);
}

#[test]
fn cells_of_others_are_recorded_from_begin_to_end_by_thread() {
    trace::written(64, 64);
    assert_eq!(trace::end(), BTreeSet::new(), "nothing before the beginning");
    trace::begin();
    trace::written(64, 64);
    trace::written(640 + 63, 2);
    trace::written(6_400, 0);
    thread::spawn(|| trace::written(0, 1)).join().unwrap();
    assert_eq!(trace::end(), BTreeSet::from([1, 10, 11]));
    assert_eq!(trace::end(), BTreeSet::new(), "nothing after the end");
}
