//! Transactions of more keys than a replica fetches from memory together, on the real records: what
//! is checked, registered and taken back is the same for the first key and the last.

use quorate_machine::{Content, Record as _, Table, ValueKind, WARM_TOGETHER};
use quorate_meerkat::{Body, Item, Meta, Write, occ};
use quorate_storage::{SharedTable, Store};
use quorate_types::{MemberNumber, Timestamp, WriterId};

const KEYS: usize = 3 * WARM_TOGETHER + 1;

fn at(version: u64) -> Timestamp {
    Timestamp::new(version, WriterId::new(MemberNumber(1), 0))
}

fn keys() -> Vec<Vec<u8>> {
    (0..KEYS).map(|number| format!("key:{number}").into_bytes()).collect()
}

/// A transaction over these keys that read them at `base`, and writes them if asked to.
fn body(keys: &[Vec<u8>], base: Timestamp, writes: bool) -> Vec<u8> {
    let content = Content { bytes: b"value", kind: ValueKind::String, expire_at: None };
    let item = |key: &Vec<u8>| (key.clone(), writes.then_some(content));
    let items: Vec<_> = keys.iter().map(item).collect();
    let items: Vec<Item<'_>> = items
        .iter()
        .map(|(key, write)| Item {
            key,
            base: Some(base),
            absent: base == Timestamp::ZERO,
            write: write.map(Write::Set),
        })
        .collect();
    Body::encode(&items)
}

/// How many keys have a pending transaction.
fn registered(table: &mut SharedTable<Meta>) -> usize {
    keys()
        .iter()
        .filter(|key| table.lock_existing(key).is_some_and(|r| !r.locked_state().is_empty()))
        .count()
}

#[test]
fn every_key_of_many_is_checked_registered_and_installed() {
    let store = Store::<Meta>::new(1);
    let mut table = store.shared_table(0);
    // The keys have no records at first: what is fetched ahead is not there.
    let first = body(&keys(), Timestamp::ZERO, true);
    let first = Body::check(&first).unwrap();
    occ::validate(&mut table, at(1), first, |_| 0).unwrap();
    assert_eq!(registered(&mut table), KEYS);
    occ::apply(&mut table, at(1), first);
    assert_eq!(registered(&mut table), 0);
    for key in keys() {
        let record = table.lock_existing(&key).unwrap();
        assert_eq!((record.meta().wts, record.content().unwrap().bytes), (at(1), &b"value"[..]));
    }
    let read = body(&keys(), at(1), false);
    occ::confirm_reads(&mut table, at(2), Body::check(&read).unwrap(), |_| 0).unwrap();
    for key in keys() {
        assert_eq!(table.lock_existing(&key).unwrap().meta().rts, at(2));
    }
}

#[test]
fn a_conflict_at_any_key_of_many_leaves_nothing_registered() {
    let store = Store::<Meta>::new(1);
    let mut table = store.shared_table(0);
    let first = body(&keys(), Timestamp::ZERO, true);
    occ::apply(&mut table, at(1), Body::check(&first).unwrap());
    let all = body(&keys(), at(1), true);
    let all = Body::check(&all).unwrap();
    // From the last to the first, so that the conflict that is met first is always the new one.
    for (position, key) in keys().into_iter().enumerate().rev() {
        let other = body(&[key], at(1), true);
        let version = 10 + (KEYS - position) as u64 * 2;
        occ::apply(&mut table, at(version), Body::check(&other).unwrap());
        occ::validate(&mut table, at(version + 1), all, |_| 0).unwrap_err();
        assert_eq!(registered(&mut table), 0, "after a conflict at key {position}");
        let read = body(&keys(), at(1), false);
        let read = Body::check(&read).unwrap();
        occ::confirm_reads(&mut table, at(version + 1), read, |_| 0).unwrap_err();
    }
}
