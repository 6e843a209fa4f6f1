//! The checks of one replica from several lanes at once, over the real store, under many schedules:
//! `RUSTFLAGS="--cfg shuttle" cargo test -p quorate-meerkat --test schedules`.
#![cfg(shuttle)]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use quorate_machine::{Content, Record as _, Table, ValueKind};
use quorate_meerkat::{Body, Item, Meta, Write, occ};
use quorate_storage::{SharedTable, Store};
use quorate_sync::primitives::thread;
use quorate_sync::schedules::{coin, explore};
use quorate_types::{MemberNumber, Timestamp, WriterId, hash_key};

const LANES: u16 = 3;
const KEYS: [&[u8]; 3] = [b"left", b"middle", b"right"];
const ATTEMPTS: usize = 3;
const EACH: i64 = 100;

/// What a committed transaction read and wrote: the version and the value at each key.
struct Committed {
    id: Timestamp,
    keys: Vec<(usize, Timestamp, i64)>,
    wrote: Vec<i64>,
}

/// One lane with a clock that only its own reads bring forward.
struct Lane {
    store: Arc<Store<Meta>>,
    table: SharedTable<Meta>,
    writer: WriterId,
    clock: u64,
}

impl Lane {
    fn new(store: &Arc<Store<Meta>>, number: u16) -> Self {
        let writer = WriterId::new(MemberNumber(1), number as u8);
        Self { store: Arc::clone(store), table: store.shared_table(number), writer, clock: 1 }
    }

    /// A key's version and value, read without a lock.
    fn read(&self, key: usize) -> (usize, Timestamp, i64) {
        let mut scratch = Vec::new();
        let (bytes, pinned) = (KEYS[key], self.store.pin());
        let snapshot = self.store.read(bytes, hash_key(bytes), &pinned, &mut scratch);
        let snapshot = snapshot.expect("every key has a record");
        let value = snapshot.content(&scratch).expect("and a value").bytes;
        (key, snapshot.meta.wts, i64::from_le_bytes(value.try_into().expect("8 bytes")))
    }

    /// A timestamp above what was read.
    fn timestamp(&mut self, read: &[(usize, Timestamp, i64)]) -> Timestamp {
        let newest = read.iter().map(|&(_, version, _)| version.version).max().unwrap_or(0);
        self.clock = self.clock.max(newest) + 1;
        Timestamp::new(self.clock, self.writer)
    }

    /// Moves something from a key to the next, if this replica lets it and the others, a coin,
    /// agree.
    fn transfer(&mut self, from: usize) -> Option<Committed> {
        let keys = vec![self.read(from), self.read((from + 1) % KEYS.len())];
        let wrote = vec![keys[0].2 - 7, keys[1].2 + 7];
        let id = self.timestamp(&keys);
        let values: Vec<[u8; 8]> = wrote.iter().map(|value| value.to_le_bytes()).collect();
        let items: Vec<Item<'_>> = keys
            .iter()
            .zip(&values)
            .map(|(&(key, base, _), bytes)| Item {
                key: KEYS[key],
                base: Some(base),
                absent: false,
                write: Some(Write::Set(Content {
                    bytes,
                    kind: ValueKind::String,
                    expire_at: None,
                })),
            })
            .collect();
        let bytes = Body::encode(&items);
        let body = Body::check(&bytes).expect("just encoded");
        occ::validate(&mut self.table, id, body, |_| 0).ok()?;
        if coin() && coin() {
            occ::release(&mut self.table, id, body);
            return None;
        }
        assert!(occ::apply(&mut self.table, id, body));
        Some(Committed { id, keys, wrote })
    }

    /// Reads every key as a transaction that no other replica needs to know of.
    fn audit(&mut self) -> Option<Committed> {
        let keys: Vec<_> = (0..KEYS.len()).map(|key| self.read(key)).collect();
        let id = self.timestamp(&keys);
        let item = |&(key, base, _): &(usize, Timestamp, i64)| Item {
            key: KEYS[key],
            base: Some(base),
            absent: false,
            write: None,
        };
        let bytes = Body::encode(&keys.iter().map(item).collect::<Vec<_>>());
        let body = Body::check(&bytes).expect("just encoded");
        occ::confirm_reads(&mut self.table, id, body, |_| 0).ok()?;
        Some(Committed { id, keys, wrote: Vec::new() })
    }
}

fn filled() -> Arc<Store<Meta>> {
    let store = Store::<Meta>::new(LANES);
    let mut table = store.shared_table(0);
    let value = EACH.to_le_bytes();
    let content = Content { bytes: &value, kind: ValueKind::String, expire_at: None };
    let items =
        KEYS.map(|key| Item { key, base: None, absent: false, write: Some(Write::Set(content)) });
    let bytes = Body::encode(&items);
    let first = Timestamp::new(1, WriterId::new(MemberNumber(1), 0));
    assert!(occ::apply(&mut table, first, Body::check(&bytes).expect("just encoded")));
    store
}

/// Runs the committed transactions one after the other, by timestamp: each must find what it read.
fn replay(store: &Arc<Store<Meta>>, mut committed: Vec<Committed>) {
    let lane = Lane::new(store, 0);
    let first = Timestamp::new(1, WriterId::new(MemberNumber(1), 0));
    let mut state: BTreeMap<usize, (Timestamp, i64)> =
        (0..KEYS.len()).map(|key| (key, (first, EACH))).collect();
    committed.sort_by_key(|txn| txn.id);
    for Committed { id, keys, wrote } in committed {
        for &(key, version, value) in &keys {
            assert_eq!(state[&key], (version, value), "{id:?} read what was not there");
        }
        for (&(key, ..), value) in keys.iter().zip(wrote) {
            state.insert(key, (id, value));
        }
        assert_eq!(state.values().map(|&(_, value)| value).sum::<i64>(), EACH * 3);
    }
    for (&key, &(version, value)) in &state {
        assert_eq!(lane.read(key), (key, version, value), "not what the transactions amount to");
        let mut table = store.shared_table(0);
        let record = table.lock_existing(KEYS[key]).expect("every key has a record");
        assert!(record.locked_state().is_empty(), "a transaction is still registered");
    }
}

#[test]
fn lanes_commit_as_if_one_after_the_other_by_timestamp() {
    explore(10_000, || {
        let store = filled();
        let committed = Arc::new(Mutex::new(Vec::new()));
        let lanes: Vec<_> = (0..LANES)
            .map(|number| {
                let (store, committed) = (Arc::clone(&store), Arc::clone(&committed));
                thread::spawn(move || {
                    let mut lane = Lane::new(&store, number);
                    for attempt in 0..ATTEMPTS {
                        let from = (usize::from(number) + attempt) % KEYS.len();
                        let txn = if coin() { lane.transfer(from) } else { lane.audit() };
                        committed.lock().unwrap().extend(txn);
                    }
                })
            })
            .collect();
        lanes.into_iter().for_each(|lane| lane.join().unwrap());
        let committed = std::mem::take(&mut *committed.lock().unwrap());
        replay(&store, committed);
    });
}
