//! The checks of one replica from several lanes at once: what a single-threaded simulation takes for
//! one step must be one for other threads, too.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use quorate_machine::{Content, Record as _, Table, ValueKind};
use quorate_meerkat::{Body, Item, Meta, Write, occ};
use quorate_storage::Store;
use quorate_types::{MemberNumber, Timestamp, WriterId};

const LANES: u16 = 4;
const ATTEMPTS: u64 = 30_000;
const KEYS: [&[u8]; 2] = [b"left", b"right"];

fn number(content: Option<Content<'_>>) -> u64 {
    content.map_or(0, |content| u64::from_le_bytes(content.bytes.try_into().expect("8 bytes")))
}

/// One lane: read-modify-writes of both keys, each adding one to each. Returns how many committed.
fn lane(store: &std::sync::Arc<Store<Meta>>, lane: u16, clock: &AtomicU64) -> u64 {
    let mut table = store.shared_table(lane);
    let writer = WriterId::new(MemberNumber(1), lane as u8);
    let mut commits = 0;
    for _ in 0..ATTEMPTS {
        let read: Vec<(Timestamp, [u8; 8])> = KEYS
            .iter()
            .map(|key| match table.lock_existing(key) {
                Some(record) => (record.meta().wts, (number(record.content()) + 1).to_le_bytes()),
                None => (Timestamp::ZERO, 1u64.to_le_bytes()),
            })
            .collect();
        let items: Vec<Item<'_>> = KEYS
            .iter()
            .zip(&read)
            .map(|(key, (base, value))| Item {
                key,
                base: Some(*base),
                absent: false,
                write: Some(Write::Set(Content {
                    bytes: value,
                    kind: ValueKind::String,
                    expire_at: None,
                })),
            })
            .collect();
        let bytes = Body::encode(&items);
        let body = Body::check(&bytes).expect("just encoded");
        let id = Timestamp::new(clock.fetch_add(1, Ordering::Relaxed), writer);
        if occ::validate(&mut table, id, body, |_| 0).is_ok() {
            assert!(occ::apply(&mut table, id, body));
            commits += 1;
        }
    }
    commits
}

#[test]
fn no_update_is_lost_between_lanes_and_nothing_stays_registered() {
    let store = Store::<Meta>::new(LANES);
    let clock = AtomicU64::new(1);
    let commits: u64 = thread::scope(|scope| {
        let (store, clock) = (&store, &clock);
        let lanes: Vec<_> =
            (0..LANES).map(|number| scope.spawn(move || lane(store, number, clock))).collect();
        lanes.into_iter().map(|lane| lane.join().expect("no lane panics")).sum()
    });
    assert!(commits > ATTEMPTS / 10, "only {commits} commits: the lanes starved each other");
    let mut table = store.shared_table(0);
    for key in KEYS {
        let record = table.lock_existing(key).expect("both keys were written");
        assert_eq!(number(record.content()), commits, "{}", String::from_utf8_lossy(key));
        assert!(record.locked_state().is_empty(), "a transaction is still registered");
    }
}
