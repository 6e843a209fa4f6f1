//! What does not tell two machines apart.

use std::hash::{BuildHasher, RandomState};

use quorate_machine::Unhashed;

#[test]
fn what_is_unhashed_makes_no_difference() {
    let hasher = RandomState::new();
    let hash = |state: u8, count: u8| hasher.hash_one((state, Unhashed(count)));
    assert_eq!(hash(1, 2), hash(1, 3));
    assert_ne!(hash(1, 2), hash(2, 2));
}
