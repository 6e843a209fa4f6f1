//! A table is walked in steps.

use std::collections::BTreeSet;

use quorate_machine::{Record, Scan, Table};

use crate::Records;

fn table(count: u32) -> Records {
    let mut table = Records::default();
    for n in 0..count {
        table.find_or_insert(&n.to_be_bytes());
    }
    table
}

#[test]
fn a_pass_meets_every_record_within_its_budget() {
    let mut table = table(100);
    let (mut by_handle, mut by_key) = (Scan::default(), Scan::default());
    let mut met = BTreeSet::new();
    for step in 1..=15 {
        let handles = by_handle.next_handles(&table, 7);
        let keys = by_key.next_keys(&table, 7);
        assert!(handles.len() <= 7, "the budget of a step");
        for (handle, key) in handles.into_iter().zip(keys) {
            assert_eq!(table.lock(handle).key(), &key[..]);
            met.insert(key);
        }
        assert_eq!(by_handle, by_key);
        assert_eq!(by_handle.is_at_end(), step == 15, "a hundred in steps of seven");
    }
    assert_eq!(met.len(), 100);
    assert_eq!(by_handle.next_handles(&table, 7).len(), 7, "the next pass");
}

#[test]
fn a_walk_goes_on_elsewhere_by_its_cursor() {
    let table = table(10);
    let mut scan = Scan::default();
    scan.next_handles(&table, 4);
    let mut again = Scan::at(scan.cursor());
    assert_eq!(again.next_handles(&table, 4), scan.next_handles(&table, 4));
}

#[test]
fn an_empty_table_is_at_its_end_at_once() {
    let mut scan = Scan::default();
    assert!(scan.next_keys(&table(0), 5).is_empty() && scan.is_at_end());
}
