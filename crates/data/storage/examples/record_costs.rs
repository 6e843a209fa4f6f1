//! The cost of reading and writing records on one thread, in nanoseconds, with a million keys:
//! `cargo run --release -p quorate-storage --example record_costs [-- KEYS]`.
//!
//! Keys are visited in an order that defeats the caches, and again among a few hot ones. Time is
//! the thread's processor time, which other processes disturb least; each figure is the median of
//! several rounds, with their range.

use std::hint::black_box;

use quorate_machine::{Content, Meta, Record, Table, ValueKind};
use quorate_storage::{LaneTable, Store};
use quorate_types::hash_key;
use rustix::time::{ClockId, clock_gettime};

const ROUNDS: usize = 9;
const OPS: usize = 500_000;
const VALUE: [u8; 100] = [b'v'; 100];

#[derive(Clone, Copy, Default)]
struct Words([u64; 3]);

impl Meta for Words {
    type LockedState = ();
    const WORDS: usize = 3;

    fn pack(self, words: &mut [u64]) {
        words.copy_from_slice(&self.0);
    }

    fn unpack(words: &[u64]) -> Self {
        Self(words.try_into().expect("three words"))
    }
}

fn main() {
    let keys: usize = std::env::args()
        .nth(1)
        .map_or(1_000_000, |keys| keys.parse().expect("the argument is a number of keys"));
    let store = Store::<Words>::new(1);
    let empty = store.stats().bytes;
    let mut table = store.table(0);
    let names: Vec<String> = (0..keys).map(|number| format!("key:{number:012}")).collect();

    let started = now();
    let mut longest = 0;
    for name in &names {
        let before = now();
        set(&mut table, name, 1);
        longest = longest.max((now() - before) / 1000);
    }
    let each = (now() - started) as f64 / keys as f64;
    println!("insert + set, growing: {each:.0} ns per key, the longest {longest} us");
    let bytes = (store.stats().bytes - empty) as f64 / keys as f64;
    println!("memory: {bytes:.1} bytes per key of 16 bytes with a value of 100");

    for (name, among) in [("all keys", keys), ("1000 hot keys", keys.min(1000))] {
        let at = |op: usize| &names[op.wrapping_mul(0x9e37_79b9_7f4a_7c15) % among];
        let mut scratch = Vec::new();
        report(name, "hash only", |op| {
            black_box(hash_key(at(op).as_bytes()));
        });
        report(name, "read, pinned once per 64", {
            let mut pinned = store.pin();
            let (store, scratch) = (&store, &mut scratch);
            move |op| {
                if op % 64 == 0 {
                    pinned.refresh();
                }
                let key = at(op).as_bytes();
                black_box(store.read(key, hash_key(key), &pinned, scratch).is_some());
            }
        });
        report(name, "read, pinned each time", |op| {
            let key = at(op).as_bytes();
            black_box(store.read(key, hash_key(key), &store.pin(), &mut scratch).is_some());
        });
        report(name, "find + lock + set meta and value", |op| {
            set(&mut table, at(op), op as u64);
        });
        let handles: Vec<_> =
            names[..among].iter().map(|name| table.find(name.as_bytes())).collect();
        report(name, "lock by handle + set meta", |op| {
            let handle = handles[op.wrapping_mul(0x9e37_79b9_7f4a_7c15) % among];
            let mut record = table.lock(handle.expect("inserted above"));
            record.set_meta(Words([op as u64; 3]));
        });
    }
}

/// Processor time of this thread, in nanoseconds.
fn now() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn set(table: &mut LaneTable<Words>, key: &str, version: u64) {
    let handle = table.find_or_insert_sized(key.as_bytes(), VALUE.len());
    let mut record = table.lock(handle);
    record.set_meta(Words([version; 3]));
    record.set_content(Content { bytes: &VALUE, kind: ValueKind::String, expire_at: None });
}

fn report(keys: &str, what: &str, mut op: impl FnMut(usize)) {
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|round| {
            let started = now();
            (round * OPS..(round + 1) * OPS).for_each(&mut op);
            (now() - started) as f64 / OPS as f64
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    let (least, median, most) = (rounds[0], rounds[ROUNDS / 2], rounds[ROUNDS - 1]);
    println!("{keys}: {what}: {median:.0} ns ({least:.0} to {most:.0})");
}
