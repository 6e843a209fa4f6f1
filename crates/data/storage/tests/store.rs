//! The store as its users see it: against an ordered map, under growth, and its accounting.
#![cfg(not(any(loom, shuttle)))]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;

use common::{Triple, content, key_of, set};
use proptest::prelude::*;
use quorate_machine::{Content, MapTable, PLACES, Record, Table, ValueKind};
use quorate_storage::{COALESCED_MAX, LISTED_MAX, LaneTable, Stats, Store};
use quorate_types::{UnixMillis, hash_key, lane_of_key};

fn read(store: &Store<Triple>, key: &[u8]) -> Option<(Triple, Option<Vec<u8>>)> {
    let mut scratch = b"left over".to_vec();
    let snapshot = store.read(key, hash_key(key), &store.pin(), &mut scratch)?;
    assert_eq!(snapshot, store.peek(key, hash_key(key), &store.pin())?);
    assert_eq!(scratch.len(), snapshot.value.map_or(0, |value| value.len));
    Some((snapshot.meta, snapshot.content(&scratch).map(|content| content.bytes.to_vec())))
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u16, usize),
    SetMeta(u16, u64),
    SetContent(u16, usize, u8, Option<u64>),
    SetExpiry(u16, Option<u64>),
    Clear(u16),
    Remove(u16),
    Scan(usize),
    Reset,
    /// The records are set aside, and some of them come back.
    SetAside,
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0u16..400;
    let len = prop_oneof![0usize..64, 0usize..2_000, Just(40_000usize)];
    prop_oneof![
        6 => (key.clone(), len.clone()).prop_map(|(key, len)| Step::Insert(key, len)),
        6 => (key.clone(), any::<u64>()).prop_map(|(key, word)| Step::SetMeta(key, word)),
        12 => (key.clone(), len, any::<u8>(), any::<Option<u64>>())
            .prop_map(|(key, len, fill, at)| Step::SetContent(key, len, fill, at)),
        3 => (key.clone(), any::<Option<u64>>()).prop_map(|(key, at)| Step::SetExpiry(key, at)),
        3 => key.clone().prop_map(Step::Clear),
        4 => key.prop_map(Step::Remove),
        1 => (1usize..50).prop_map(Step::Scan),
        1 => prop_oneof![
            8 => Just(Step::Scan(7)),
            1 => Just(Step::Reset),
            1 => Just(Step::SetAside),
        ],
    ]
}

/// Every key that a whole iteration visits.
fn scan_keys<T: Table>(table: &mut T, limit: usize) -> BTreeSet<Vec<u8>> {
    let (mut cursor, mut handles) = (0, BTreeSet::new());
    loop {
        cursor = table.scan(cursor, limit, &mut |handle| {
            handles.insert(handle);
        });
        if cursor == 0 {
            break;
        }
    }
    handles.into_iter().map(|handle| table.lock(handle).key().to_vec()).collect()
}

/// Carries a step out. Returns its answer, for comparison.
fn apply<T: Table<Meta = Triple>>(table: &mut T, step: &Step) -> BTreeSet<Vec<u8>> {
    match *step {
        Step::Insert(key, len) => {
            let handle = table.find_or_insert_sized(&key_of(key.into()), len);
            assert_eq!(table.find(&key_of(key.into())), Some(handle));
        }
        Step::SetMeta(key, word) => {
            let handle = table.find_or_insert(&key_of(key.into()));
            table.lock(handle).set_meta(Triple([word, !word, word ^ 1]));
        }
        Step::SetContent(key, len, fill, at) => {
            let handle = table.find_or_insert(&key_of(key.into()));
            let mut record = table.lock(handle);
            record.set_content(content(&vec![fill; len], at.map(UnixMillis)));
            assert_eq!(record.content().map(|found| found.bytes), Some(&vec![fill; len][..]));
        }
        Step::SetExpiry(key, at) => {
            if let Some(handle) = table.find(&key_of(key.into())) {
                table.lock(handle).set_expiry(at.map(UnixMillis));
            }
        }
        Step::Clear(key) => {
            if let Some(handle) = table.find(&key_of(key.into())) {
                table.lock(handle).clear();
            }
        }
        Step::Remove(key) => {
            if let Some(handle) = table.find(&key_of(key.into())) {
                table.remove(handle);
            }
        }
        Step::Scan(limit) => return scan_keys(table, limit),
        Step::Reset => table.reset(),
        Step::SetAside => {
            let mut aside = table.set_aside();
            assert!(table.is_empty() && scan_keys(table, 7).is_empty());
            for (key, (meta, value)) in dump(&mut aside) {
                let handle = aside.find(&key).expect("a key just scanned");
                if key.len() % 2 == 0 {
                    aside.remove(handle);
                    continue;
                }
                let handle = table.find_or_insert(&key);
                let mut record = table.lock(handle);
                record.set_meta(meta);
                if let Some((bytes, at)) = &value {
                    record.set_content(content(bytes, *at));
                }
            }
            return scan_keys(&mut aside, 7);
        }
    }
    BTreeSet::new()
}

/// The contents of a table, read under the locks.
type Dump = BTreeMap<Vec<u8>, (Triple, Option<(Vec<u8>, Option<UnixMillis>)>)>;

fn dump<T: Table<Meta = Triple>>(table: &mut T) -> Dump {
    let keys = scan_keys(table, 10);
    keys.into_iter()
        .map(|key| {
            let handle = table.find(&key).expect("a key just scanned");
            let record = table.lock(handle);
            let value = record.content().map(|found| (found.bytes.to_vec(), found.expire_at));
            let meta = record.meta();
            drop(record);
            (key, (meta, value))
        })
        .collect()
}

fn count(dump: &Dump) -> Stats {
    let values = || dump.values().filter_map(|(_, value)| value.as_ref());
    Stats {
        records: dump.len() as u64,
        with_value: values().count() as u64,
        with_expiry: values().filter(|(_, at)| at.is_some()).count() as u64,
        bytes: 0,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn the_table_behaves_as_an_ordered_map(steps in proptest::collection::vec(step(), 1..400)) {
        let store = Store::<Triple>::new(1);
        let empty = store.stats();
        let (mut table, mut model) = (store.table(0), MapTable::<Triple>::default());
        for step in &steps {
            prop_assert_eq!(apply(&mut table, step), apply(&mut model, step));
            prop_assert_eq!(table.len(), model.len());
        }
        let expected = dump(&mut model);
        prop_assert_eq!(&dump(&mut table), &expected);
        for (key, (meta, value)) in &expected {
            let value = value.as_ref().map(|(bytes, _)| bytes.clone());
            prop_assert_eq!(read(&store, key), Some((*meta, value)));
        }
        prop_assert_eq!(Stats { bytes: 0, ..store.stats() }, count(&expected));
        table.reset();
        prop_assert_eq!(store.stats(), empty);
        prop_assert!(expected.keys().all(|key| read(&store, key).is_none()));
    }
}

#[test]
fn find_or_insert_returns_the_tombstone_with_its_meta() {
    let store = Store::<Triple>::new(1);
    let mut table = store.table(0);
    let handle = table.find_or_insert(b"k");
    table.lock(handle).set_meta(Triple([1, 2, 3]));
    table.lock(handle).set_content(content(b"v", None));
    table.lock(handle).clear();
    assert_eq!(table.find_or_insert(b"k"), handle);
    assert_eq!(table.find(b"k"), Some(handle));
    assert_eq!(read(&store, b"k"), Some((Triple([1, 2, 3]), None)));
    assert_eq!(store.stats().with_value, 0);
}

#[test]
#[should_panic(expected = "a handle names a record until it is removed")]
fn a_removed_record_that_readers_still_keep_alive_cannot_be_locked() {
    let store = Store::<Triple>::new(1);
    let mut table = store.table(0);
    let handle = table.find_or_insert(b"k");
    let _kept = store.pin();
    table.remove(handle);
    table.lock(handle);
}

#[test]
#[should_panic(expected = "came to lane")]
fn a_key_of_another_lane_is_refused() {
    let store = Store::<Triple>::new(2);
    let key = (0..).map(key_of).find(|key| lane_of_key(key, 2).0 == 1).unwrap();
    store.table(0).find_or_insert(&key);
}

#[test]
fn clearing_and_shrinking_give_the_big_buffer_back() {
    let store = Store::<Triple>::new(1);
    let mut table = store.table(0);
    let handle = table.find_or_insert_sized(b"k", 16);
    let small = store.stats().bytes;
    table.lock(handle).set_content(content(&vec![1; 1 << 20], None));
    assert!(store.stats().bytes >= small + (1 << 20));
    table.lock(handle).set_content(content(b"short", None));
    assert_eq!(store.stats().bytes, small);
    assert_eq!(read(&store, b"k").unwrap().1.unwrap(), b"short");
    table.lock(handle).set_content(content(&vec![2; 1 << 20], None));
    table.lock(handle).clear();
    assert_eq!(store.stats().bytes, small);
}

#[test]
fn a_value_that_fits_its_place_is_replaced_in_place() {
    let store = Store::<Triple>::new(1);
    let mut table = store.table(0);
    set(&mut table, b"k", &[1; 100], None);
    let (key, pinned) = (b"k", store.pin());
    let before = store.memory_of(key, hash_key(key), &pinned).unwrap();
    for len in [0, 1, 99, 101, 104] {
        set(&mut table, b"k", &vec![2; len], None);
        assert_eq!(store.memory_of(key, hash_key(key), &pinned), Some(before));
    }
    set(&mut table, b"k", &[3; 5000], None);
    let grown = store.memory_of(key, hash_key(key), &pinned).unwrap();
    assert!((before + 5000..before + 6300).contains(&grown), "{before} to {grown}");
}

#[test]
fn a_key_of_16_bytes_with_a_value_of_100_costs_at_most_220_bytes() {
    for hinted in [true, false] {
        let store = Store::<Triple>::new(1);
        let empty = store.stats().bytes;
        let mut table = store.table(0);
        for number in 0..100_000u32 {
            let key = format!("key:{number:012}");
            if hinted {
                table.find_or_insert_sized(key.as_bytes(), 100);
            }
            set(&mut table, key.as_bytes(), &[7; 100], None);
            if number % 1000 == 999 && number > 10_000 {
                let each = (store.stats().bytes - empty) as f64 / f64::from(number + 1);
                assert!(each <= 220.0, "{each} bytes per key at {number} keys");
            }
        }
        let key = b"key:000000000001";
        let each = store.memory_of(key, hash_key(key), &store.pin()).unwrap();
        assert_eq!(each, 192 + 8);
    }
}

/// Keys of a whole iteration over all lanes, growing the store by `grow` between calls.
fn scan_all(store: &Store<Triple>, limit: usize, mut grow: impl FnMut()) -> BTreeSet<Vec<u8>> {
    let (mut cursor, mut keys) = (0, BTreeSet::new());
    loop {
        cursor = store.scan(cursor, limit, &mut |key, snapshot| {
            assert_eq!(snapshot.value.map(|value| value.len), Some(4));
            keys.insert(key.to_vec());
        });
        if cursor == 0 {
            return keys;
        }
        grow();
    }
}

#[test]
fn a_scan_visits_all_that_is_there_throughout_even_if_the_index_grows() {
    let store = Store::<Triple>::new(3);
    let mut tables: Vec<LaneTable<Triple>> = (0..3).map(|lane| store.table(lane)).collect();
    let mut put = |number: u32| {
        let key = key_of(number);
        set(&mut tables[usize::from(lane_of_key(&key, 3).0)], &key, &number.to_le_bytes(), None);
    };
    (0..3_000).for_each(&mut put);
    let mut next = 3_000;
    let seen = scan_all(&store, 10, || {
        // Faster than the scan proceeds, until the index has doubled several times.
        let more = next.min(40_000)..(next + 200).min(40_000);
        next = next.max(more.end);
        more.for_each(&mut put);
    });
    assert_eq!(next, 40_000, "the index grew meanwhile");
    assert!((0..3_000).all(|number| seen.contains(&key_of(number))));
    assert_eq!(scan_all(&store, 1000, || {}).len(), 40_000);
    assert_eq!(store.stats().records, 40_000);
}

#[test]
fn one_call_visits_the_few_records_of_many_lanes() {
    let store = Store::<Triple>::new(4);
    let mut tables: Vec<LaneTable<Triple>> = (0..4).map(|lane| store.table(lane)).collect();
    for key in (0..10).map(key_of) {
        set(&mut tables[usize::from(lane_of_key(&key, 4).0)], &key, b"v", None);
    }
    let mut visited = 0;
    assert_eq!(store.scan(0, 11, &mut |_, _| visited += 1), 0);
    assert_eq!(visited, 10);
}

#[test]
fn any_cursor_is_legal_and_an_empty_store_ends_at_once() {
    let store = Store::<Triple>::new(2);
    assert_eq!(store.table(1).scan(0, 10, &mut |_| panic!("nothing to visit")), 0);
    let mut cursor = 0;
    loop {
        cursor = store.scan(cursor, 1, &mut |_, _| panic!("nothing to visit"));
        if cursor == 0 {
            break;
        }
    }
    for cursor in [1, u64::MAX, u64::MAX >> 1, 1 << 40, 255 << 32, 0xffff_ffff, 7 << 40] {
        store.scan(cursor, 10, &mut |_, _| panic!("nothing to visit"));
        store.table(0).scan(cursor, 10, &mut |_| panic!("nothing to visit"));
    }
}

#[test]
fn a_random_cursor_is_anywhere() {
    let store = Store::<Triple>::new(2);
    let mut tables = [store.table(0), store.table(1)];
    for number in 0..300u32 {
        let key = key_of(number);
        let table = &mut tables[usize::from(lane_of_key(&key, 2).0)];
        let expire_at = (number % 3 == 1).then_some(UnixMillis(999));
        set(table, &key, b"v", expire_at);
        if number % 3 == 2 {
            let handle = table.find(&key).unwrap();
            table.lock(handle).clear();
        }
    }
    let mut random = 1u64;
    let mut seen = BTreeSet::new();
    for _ in 0..5_000 {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let (mut keys, mut cursor) = (Vec::new(), store.random_cursor(random));
        while keys.is_empty() {
            cursor = store.scan(cursor, 16, &mut |key, _| keys.push(key.to_vec()));
        }
        seen.insert(keys.swap_remove((random >> 20) as usize % keys.len()));
    }
    assert_eq!(seen.len(), 300, "a listing may begin anywhere");
}

#[test]
fn keys_and_values_at_their_limits() {
    let store = Store::<Triple>::new(1);
    let mut table = store.table(0);
    let longest = vec![b'k'; quorate_types::limits::KEY_BYTES_MAX];
    for key in [&b""[..], &longest] {
        set(&mut table, key, b"", Some(UnixMillis(u64::MAX)));
        assert_eq!(read(&store, key).unwrap().1.unwrap(), b"");
        assert_eq!(store.stats().with_expiry, 1);
        set(&mut table, key, &vec![5; 300_000], Some(UnixMillis(0)));
        assert_eq!(read(&store, key).unwrap().1.unwrap(), vec![5; 300_000]);
        let handle = table.find(key).unwrap();
        table.lock(handle).set_expiry(None);
        assert_eq!(store.stats().with_expiry, 0);
    }
}

/// The keys of a lane by place, a few at a time.
fn keys_by_place(table: &mut LaneTable<Triple>, from: u64) -> Vec<(u64, Vec<u8>)> {
    let (mut at, mut keys) = (from, Vec::new());
    loop {
        let mut found = Vec::new();
        let next = table.scan_places(at, 7, &mut |place, handle| found.push((place, handle)));
        for (place, handle) in found {
            assert!(place >= at && (next == 0 || place < next), "{at}: {place} before {next}");
            keys.push((place, table.lock(handle).key().to_vec()));
        }
        if next == 0 {
            keys.sort_unstable();
            return keys;
        }
        assert!(next > at);
        at = next;
    }
}

#[test]
fn tables_of_any_size_agree_on_the_places_of_keys() {
    let (small, large) = (Store::<Triple>::new(1), Store::<Triple>::new(1));
    let (mut few, mut many) = (small.table(0), large.table(0));
    for number in 0..20_000u32 {
        set(&mut many, &key_of(number), b"v", None);
        if number % 20 == 0 {
            set(&mut few, &key_of(number), b"v", None);
        }
    }
    let (mut some, all) = (keys_by_place(&mut few, 0), keys_by_place(&mut many, 0));
    assert_eq!((some.len(), all.len()), (1_000, 20_000));
    assert!(all.iter().all(|(place, _)| *place < PLACES));
    assert!(some.iter().all(|entry| all.binary_search(entry).is_ok()));
    // From any place on, for all sizes of buckets: also from within one.
    let from = some[500].0;
    some.retain(|(place, _)| *place >= from);
    assert_eq!(keys_by_place(&mut few, from), some);
}

fn taken(store: &Store<Triple>) -> Vec<(Vec<u8>, Option<ValueKind>)> {
    assert!(store.has_changes());
    let changes = store.take_changes();
    assert!(!store.has_changes());
    assert!(!changes.more);
    changes.keys.into_iter().map(|changed| (changed.key.into_vec(), changed.kind)).collect()
}

#[test]
fn changes_of_watched_keys_are_listed_once_with_what_the_key_holds_in_the_end() {
    let store = Store::<Triple>::new(1);
    let mut table = store.table(0);
    set(&mut table, b"before", b"v", None);
    assert!(!store.has_changes(), "nothing is watched");
    store.watch(b"a");
    store.watch(b"b");
    set(&mut table, b"other", b"v", None);
    let handle = table.find_or_insert(b"a");
    table.lock(handle).set_meta(Triple([1; 3]));
    assert!(!store.has_changes(), "the value of no watched key has changed");
    set(&mut table, b"b", b"1", None);
    let list = Content { bytes: b"", kind: ValueKind::List, expire_at: None };
    table.lock_key(b"a", 0).set_content(list);
    table.lock_key(b"b", 0).clear();
    assert_eq!(taken(&store), [(b"b".to_vec(), None), (b"a".to_vec(), Some(ValueKind::List))]);
    let handle = table.find(b"a").unwrap();
    table.remove(handle);
    assert_eq!(taken(&store), [(b"a".to_vec(), None)]);
    set(&mut table, b"a", b"2", None);
    assert_eq!(taken(&store), [(b"a".to_vec(), Some(ValueKind::String))]);
    table.lock_key(b"b", 0).clear();
    assert!(!store.has_changes(), "it has had no value");
    table.reset();
    assert_eq!(taken(&store), [(b"a".to_vec(), None), (b"b".to_vec(), None)]);
}

#[test]
fn a_key_is_watched_until_it_is_unwatched_as_often() {
    let store = Store::<Triple>::new(2);
    let mut table = store.shared_table(1);
    store.watch(b"a");
    store.watch(b"a");
    store.unwatch(b"a");
    set(&mut table, b"a", b"1", None);
    assert_eq!(taken(&store).len(), 1);
    set(&mut table, b"a", b"2", None);
    store.unwatch(b"a");
    set(&mut table, b"a", b"3", None);
    assert_eq!(taken(&store).len(), 1, "what was listed before stays on the list");
    set(&mut table, b"a", b"4", None);
    assert!(!store.has_changes());
}

#[test]
fn changes_behind_a_prefix_are_listed_up_to_a_bound() {
    let store = Store::<Triple>::new(1);
    let mut table = store.table(0);
    store.watch_prefix(b"a:", false);
    store.watch_prefix(b"", false);
    store.unwatch_prefix(b"", false);
    for key in [&b"a:1"[..], b"b:1", b"a", b"a:1", b"a:"] {
        set(&mut table, key, b"v", None);
    }
    let string = Some(ValueKind::String);
    assert_eq!(taken(&store), [(b"a:1".to_vec(), string), (b"a:".to_vec(), string)]);
    for number in 0..LISTED_MAX + 2 {
        set(&mut table, format!("a:{number}").as_bytes(), b"v", None);
    }
    // A key that is watched for itself is always on the list.
    store.watch(b"a:x");
    set(&mut table, b"a:x", b"v", None);
    let changes = store.take_changes();
    assert!(changes.more && !store.has_changes());
    assert_eq!(changes.keys.len(), LISTED_MAX + 1);
    table.reset();
    let changes = store.take_changes();
    assert!(changes.more && changes.keys.len() == 1, "every key may have changed");
    store.unwatch(b"a:x");
    store.unwatch_prefix(b"a:", false);
    set(&mut table, b"a:1", b"v", None);
    assert!(!store.has_changes());
}

/// The names of the keys on the list.
fn names(store: &Store<Triple>) -> Vec<Vec<u8>> {
    taken(store).into_iter().map(|(key, _)| key).collect()
}

#[test]
fn coalesced_changes_are_listed_once_until_the_store_is_armed() {
    let store = Store::<Triple>::new(1);
    let mut table = store.table(0);
    let mut change = |key: &[u8]| set(&mut table, key, b"v", None);
    store.watch_prefix(b"", true);
    [b"a", b"b", b"a"].iter().for_each(|key| change(*key));
    assert!(!store.has_changes(), "more may come");
    store.arm();
    assert_eq!(names(&store), [b"a", b"b"]);
    change(b"a");
    store.arm();
    assert_eq!(names(&store), [b"a"], "it was armed");
    // What is announced at once takes along what was listed before.
    store.watch(b"x");
    [b"a", b"x", b"a"].iter().for_each(|key| change(*key));
    assert_eq!(names(&store), [b"a", b"x"]);
    [b"a", b"x", b"a"].iter().for_each(|key| change(*key));
    assert_eq!(names(&store), [b"x"], "the other one was listed since");
    // Also if it is the same key.
    store.unwatch(b"x");
    change(b"y");
    store.watch(b"y");
    assert!(!store.has_changes());
    change(b"y");
    assert_eq!(names(&store), [b"y"]);
    // So it goes for those that are told of each change.
    store.watch_prefix(b"y", false);
    store.unwatch(b"y");
    for key in [b"z", b"y", b"z", b"y"] {
        change(key);
        assert_eq!(store.has_changes(), key == b"y");
        assert!(key == b"z" || names(&store).contains(&b"y".to_vec()));
    }
    store.unwatch_prefix(b"y", false);
    change(b"end");
    store.unwatch_prefix(b"", true);
    assert_eq!(names(&store), [b"end"]);
    change(b"behind it");
    assert!(!store.has_changes());
}

#[test]
fn coalesced_changes_are_announced_together_and_bounded() {
    let store = Store::<Triple>::new(1);
    let mut table = store.table(0);
    let mut change = |key: &[u8]| set(&mut table, key, b"v", None);
    store.watch_prefix(b"", true);
    change(b"a");
    for number in 2..=COALESCED_MAX {
        assert!(!store.has_changes());
        change(format!("{number}").as_bytes());
    }
    assert_eq!(taken(&store).len(), COALESCED_MAX);
    // The longest keys are not remembered.
    let long = [b'l'; 1000];
    change(&long);
    store.arm();
    assert_eq!(names(&store), [long]);
    let mut times = 0;
    for number in 0..70_000 {
        for key in [&b"a"[..], &long, format!("other {number}").as_bytes()] {
            change(key);
        }
        if store.has_changes() {
            let names = names(&store);
            assert!(names.contains(&long.to_vec()));
            times += names.iter().filter(|name| **name == b"a").count();
        }
    }
    assert_eq!(times, 2, "what is remembered is forgotten when it is too much");
    store.arm();
    store.take_changes();
    (0..=LISTED_MAX).for_each(|number| change(format!("more {number}").as_bytes()));
    let changes = store.take_changes();
    assert!(changes.more && !store.has_changes());
    assert_eq!(changes.keys.len(), LISTED_MAX);
    store.unwatch_prefix(b"", true);
    store.watch_prefix(b"", true);
    table.reset();
    assert!(store.has_changes() && store.take_changes().more, "every key may have changed");
}

#[test]
fn a_change_names_its_writer_if_all_of_it_is_by_the_same() {
    let store = Store::<Triple>::new(1);
    let mut table = store.table(0);
    store.watch_prefix(b"", false);
    let mut set_by = |writer: u64, key: &[u8]| {
        store.set_writer(0, NonZeroU64::new(writer));
        set(&mut table, key, b"v", None);
    };
    for (writer, key) in [(1, b"a"), (1, b"b"), (1, b"a"), (2, b"b"), (0, b"c"), (1, b"c")] {
        set_by(writer, key);
    }
    let writers = store.take_changes().keys.into_iter().map(|changed| changed.writer);
    assert_eq!(writers.collect::<Vec<_>>(), [NonZeroU64::new(1), None, None]);
}
