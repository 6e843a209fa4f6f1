//! loom models of records and of the index: small enough to explore, with one shard that grows
//! after one record.

use loom::thread;
use quorate_machine::{Content, Meta, Record, Table, ValueKind};
use quorate_types::hash_key;
use std::sync::Arc;

use crate::{LaneTable, Store};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Number(u64);

impl Meta for Number {
    /// A count, like the word.
    type LockedState = u64;
    const WORDS: usize = 1;

    fn pack(self, words: &mut [u64]) {
        words[0] = self.0;
    }

    fn unpack(words: &[u64]) -> Self {
        Self(words[0])
    }
}

/// A value that names its meta. The value of 2 is too long for the inline room of the others.
fn value_of(number: u64) -> Vec<u8> {
    vec![number as u8; if number == 2 { 300 } else { 3 }]
}

fn set(table: &mut LaneTable<Number>, key: &[u8], number: u64) {
    let handle = table.find_or_insert_sized(key, 3);
    let mut record = table.lock(handle);
    record.set_meta(Number(number));
    let bytes = &value_of(number)[..];
    record.set_content(Content { bytes, kind: ValueKind::String, expire_at: None });
}

/// Reads a key and checks that meta and value belong together.
fn read(store: &Store<Number>, key: &[u8]) -> Option<u64> {
    let mut scratch = Vec::new();
    let snapshot = store.read(key, hash_key(key), &store.pin(), &mut scratch)?;
    match snapshot.content(&scratch) {
        Some(content) => assert_eq!(content.bytes, value_of(snapshot.meta.0), "a torn read"),
        None => assert_eq!(snapshot.meta, Number(0), "a meta without its value"),
    }
    Some(snapshot.meta.0)
}

/// Explores with at most this many forced switches between threads: a record has too many words for
/// more, and known bugs of sequence locks need two.
fn model(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(body);
}

#[test]
fn a_reader_sees_a_record_whole_while_its_value_moves_to_a_buffer() {
    model(3, || read_while_setting(2));
}

#[test]
fn a_reader_sees_a_record_whole_while_its_value_changes_in_place() {
    model(3, || read_while_setting(3));
}

fn read_while_setting(number: u64) {
    let store = Store::<Number>::new(1);
    let mut table = store.table(0);
    set(&mut table, b"a", 1);
    let reader = thread::spawn({
        let store = Arc::clone(&store);
        move || {
            let first = read(&store, b"a").unwrap();
            let second = read(&store, b"a").unwrap();
            assert!(first <= second, "a record went back");
        }
    });
    set(&mut table, b"a", number);
    reader.join().unwrap();
    assert_eq!(read(&store, b"a"), Some(number));
}

#[test]
fn two_writers_of_one_record_exclude_each_other() {
    model(3, || {
        let store = Store::<Number>::new(1);
        set(&mut store.table(0), b"a", 0);
        let add_one = |store: &Arc<Store<Number>>| {
            let mut table = store.table(0);
            let handle = table.find(b"a").unwrap();
            let mut record = table.lock(handle);
            let meta = record.meta();
            record.set_meta(Number(meta.0 + 1));
            *record.locked_state_mut() += 1;
        };
        let other = thread::spawn({
            let store = Arc::clone(&store);
            move || add_one(&store)
        });
        add_one(&store);
        other.join().unwrap();
        let meta = store.peek(b"a", hash_key(b"a"), &store.pin()).unwrap().meta;
        assert_eq!(meta, Number(2));
        assert_eq!(*store.table(0).lock_existing(b"a").unwrap().locked_state(), 2);
    });
}

#[test]
fn a_holder_that_changes_the_locked_state_only_keeps_no_reader_waiting() {
    model(3, || {
        let store = Store::<Number>::new(1);
        let mut table = store.shared_table(0);
        table.find_or_insert(b"a");
        let reader = thread::spawn({
            let store = Arc::clone(&store);
            move || assert_eq!(read(&store, b"a"), Some(0))
        });
        let mut record = table.lock_key(b"a", 0);
        *record.locked_state_mut() += 1;
        // The lock stays held: the reader finishes under it, or the model finds that it can't.
        reader.join().unwrap();
        assert_eq!(*record.locked_state(), 1);
    });
}

/// Counts once more in a key's record, through the table of a lane. Returns the count.
fn count(store: &Arc<Store<Number>>, lane: u16) -> u64 {
    let mut table = store.shared_table(lane);
    let mut record = table.lock_key(b"a", 0);
    let count = record.meta().0 + 1;
    assert_eq!(*record.locked_state(), count - 1, "word and locked state belong together");
    record.set_meta(Number(count));
    *record.locked_state_mut() = count;
    count
}

/// Removes the key's record if it counted this much.
fn remove_at(store: &Arc<Store<Number>>, lane: u16, count: u64) -> bool {
    store.shared_table(lane).remove_if(b"a", |record| {
        assert_eq!(
            *record.locked_state(),
            record.meta().0,
            "word and locked state belong together"
        );
        record.meta() == Number(count)
    })
}

#[test]
fn locking_a_key_and_removing_it_lose_no_change() {
    model(3, || {
        let store = Store::<Number>::new(2);
        assert_eq!(count(&store, 0), 1);
        let other = thread::spawn({
            let store = Arc::clone(&store);
            move || remove_at(&store, 1, 1)
        });
        let counted = count(&store, 0);
        let removed = other.join().unwrap();
        assert_eq!(counted, if removed { 1 } else { 2 });
        let meta = store.peek(b"a", hash_key(b"a"), &store.pin()).unwrap().meta;
        assert_eq!(meta, Number(counted));
        assert_eq!(store.stats().records, 1);
    });
}

#[test]
fn locking_what_exists_never_reaches_a_removed_record() {
    model(3, || {
        let store = Store::<Number>::new(2);
        count(&store, 0);
        let other = thread::spawn({
            let store = Arc::clone(&store);
            move || remove_at(&store, 1, 1)
        });
        let mut table = store.shared_table(0);
        let handle = table.find(b"a");
        let changed = table.lock_existing(b"a").map(|mut record| {
            record.set_meta(Number(2));
            *record.locked_state_mut() = 2;
        });
        if let Some(record) = handle.and_then(|handle| table.try_lock(handle)) {
            assert_eq!((*record.locked_state(), record.meta()), (2, Number(2)));
        }
        assert_ne!(other.join().unwrap(), changed.is_some(), "changed or removed, never both");
        assert_eq!(store.stats().records, u64::from(changed.is_some()));
    });
}

#[test]
fn a_record_is_removed_by_one_of_two_and_made_anew() {
    model(2, || {
        let store = Store::<Number>::new(2);
        count(&store, 0);
        let spawn = |lane| {
            let store = Arc::clone(&store);
            thread::spawn(move || remove_at(&store, lane, 1))
        };
        let others = [spawn(0), spawn(1)];
        let counted = count(&store, 0);
        let [first, second] = others.map(|other| other.join().unwrap());
        // One thread removes the first record, the other perhaps the second.
        let removed = u64::from(first) + u64::from(second);
        assert_eq!(counted, if removed == 0 { 2 } else { counted });
        assert!(removed < 2 || counted == 1);
        let left = store.peek(b"a", hash_key(b"a"), &store.pin()).map(|found| found.meta.0);
        assert_eq!(left.unwrap_or(0) + removed, 2, "each count is left or was removed, once");
    });
}

#[test]
fn a_record_stays_found_while_its_shard_grows() {
    model(3, || {
        let store = Store::<Number>::new(1);
        let mut table = store.table(0);
        set(&mut table, b"a", 1);
        let reader = thread::spawn({
            let store = Arc::clone(&store);
            move || {
                assert_eq!(read(&store, b"a"), Some(1), "growing lost a record");
                let seen = read(&store, b"b").is_some();
                assert!(!seen || read(&store, b"b").is_some(), "a record was found and then lost");
            }
        });
        table.find_or_insert(b"b");
        table.find_or_insert(b"c");
        reader.join().unwrap();
        assert!(read(&store, b"b").is_some() && read(&store, b"c").is_some());
    });
}

#[test]
fn a_record_is_found_whole_as_soon_as_it_is_found() {
    model(3, || {
        let store = Store::<Number>::new(1);
        let mut table = store.table(0);
        // Three records have four buckets, so the fourth finds room without growing.
        for key in [b"a", b"b", b"c"] {
            table.find_or_insert(key);
        }
        let reader = thread::spawn({
            let store = Arc::clone(&store);
            move || assert!(matches!(read(&store, b"d"), None | Some(0)))
        });
        table.find_or_insert(b"d");
        reader.join().unwrap();
        assert_eq!(read(&store, b"d"), Some(0));
    });
}

#[test]
fn two_inserts_of_one_key_make_one_record() {
    model(3, || {
        let store = Store::<Number>::new(1);
        store.table(0).find_or_insert(b"a");
        let other = thread::spawn({
            let store = Arc::clone(&store);
            move || store.table(0).find_or_insert(b"b")
        });
        let mine = store.table(0).find_or_insert(b"b");
        assert_eq!(mine, other.join().unwrap());
        assert_eq!(store.stats().records, 2);
    });
}

#[test]
fn a_reader_survives_removal_and_reset() {
    model(3, || {
        let store = Store::<Number>::new(1);
        let mut table = store.table(0);
        set(&mut table, b"a", 1);
        set(&mut table, b"b", 1);
        let reader = thread::spawn({
            let store = Arc::clone(&store);
            move || {
                assert!(matches!(read(&store, b"a"), None | Some(1)));
                assert!(matches!(read(&store, b"b"), None | Some(1)));
            }
        });
        let handle = table.find(b"a").unwrap();
        table.remove(handle);
        table.reset();
        reader.join().unwrap();
        assert_eq!((read(&store, b"a"), read(&store, b"b")), (None, None));
    });
}

/// Who has found a record goes on with it until it lets go, be it in the store that was set aside, or when that
/// is gone already.
#[test]
fn a_reader_survives_what_is_set_aside() {
    model(3, || {
        let store = Store::<Number>::new(1);
        let mut table = store.table(0);
        set(&mut table, b"a", 1);
        let reader = thread::spawn({
            let store = Arc::clone(&store);
            move || {
                assert!(matches!(read(&store, b"a"), None | Some(1)));
                assert!(matches!(read(&store, b"a"), None | Some(1)));
            }
        });
        let aside = table.set_aside();
        assert!(aside.find(b"a").is_some());
        drop(aside);
        reader.join().unwrap();
        assert_eq!(read(&store, b"a"), None);
        assert_eq!(store.stats().records, 0);
    });
}
