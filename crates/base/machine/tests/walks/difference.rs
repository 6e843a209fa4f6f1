//! Two tables are compared, over an exchange of questions and answers.

use std::collections::BTreeMap;

use quorate_machine::difference::{Comparing, Held, Question, compare, is_outgrown, may_ask_for};
use quorate_machine::{Record, Rng, Table};
use quorate_types::SeededHash;

use crate::{Records, Version};

type Keys = BTreeMap<Vec<u8>, u64>;

/// The result of a comparison.
#[derive(PartialEq, Eq, Debug, Default)]
struct Outcome {
    /// Found to be the same on both sides, or different and about to be replaced.
    kept: Keys,
    /// Not held by the other side in this version.
    gone: Keys,
    /// Given by the other side.
    came: Keys,
}

fn table(keys: &Keys) -> Records {
    let mut table = Records::default();
    for (key, version) in keys {
        let handle = table.find_or_insert(key);
        table.lock(handle).set_meta(Version(*version));
    }
    table
}

fn hasher(question: u64) -> impl Fn(&mut Records, u32) -> Option<u64> + Copy {
    move |table, handle| {
        let record = table.lock(handle);
        Some(SeededHash::new(question).of(record.key(), [record.meta().0, 0]))
    }
}

fn entry(table: &mut Records, handle: u32) -> (Vec<u8>, u64) {
    let record = table.lock(handle);
    (record.key().to_vec(), record.meta().0)
}

/// Compares `here` with `there`, whose answers have at most so many records. Gives the result,
/// and how many questions were asked.
fn run(here: &Keys, there: &Keys, records_max: usize) -> (Outcome, usize) {
    let (mut here, mut there) = (table(here), table(there));
    let mut comparing = Comparing::new(here.len());
    let mut outcome = Outcome::default();
    let mut questions = 0;
    loop {
        questions += 1;
        let (shift, hash_of) = (comparing.shift(), hasher(questions as u64));
        match comparing.question(&mut here, hash_of) {
            Question::Digests { first, digests } => {
                let digests = digests.into_iter();
                let answer = compare(&mut there, shift, first, digests, hash_of);
                let buckets = answer.expect("a correct question");
                let records = there.len() as u64;
                let equal = comparing.take_answer(&here, records, buckets.into_iter());
                let equal = equal.expect("a correct answer").into_iter();
                outcome.kept.extend(equal.map(|handle| entry(&mut here, handle)));
            }
            Question::Records { buckets, held } => {
                assert!(may_ask_for(shift, buckets.iter().copied()), "a correct question");
                assert!(!is_outgrown(shift, there.len()), "the buckets have their size");
                let mut held = Held::new(held.into_iter());
                let (mut until, mut count) = (0, 0);
                for bucket in buckets {
                    let lacking = held.lacking(&mut there, shift, bucket, hash_of);
                    count += lacking.len();
                    outcome.came.extend(lacking.iter().map(|handle| entry(&mut there, *handle)));
                    until = (bucket + 1) << shift;
                    if count >= records_max {
                        break;
                    }
                }
                for (handle, is_gone) in
                    comparing.take_records(&mut here, until, held.gone(), hash_of)
                {
                    let said = if is_gone { &mut outcome.gone } else { &mut outcome.kept };
                    said.extend([entry(&mut here, handle)]);
                }
            }
        }
        if !comparing.go_on(here.len()) {
            return (outcome, questions);
        }
    }
}

/// So many keys of random versions, and the same ones after some were deleted, changed and added.
fn two_sides(rng: &mut Rng, count: u64, changed_in: u64) -> (Keys, Keys) {
    let here: Keys = (0..count).map(|n| (n.to_be_bytes().to_vec(), rng.below(4))).collect();
    let mut there = here.clone();
    for n in 0..count {
        let key = n.to_be_bytes().to_vec();
        if rng.below(changed_in) > 0 {
            continue;
        }
        match rng.below(3) {
            0 => there.remove(&key),
            1 => there.insert(key, 10),
            _ => there.insert((count + n).to_be_bytes().to_vec(), 20),
        };
    }
    (here, there)
}

#[test]
fn everything_that_differs_comes_or_goes_and_nothing_else() {
    let mut rng = Rng::new(1);
    for round in 0..20 {
        let (count, changed_in) = (1 + rng.below(400), 1 + rng.below(50));
        let (here, there) = two_sides(&mut rng, count, changed_in);
        let (outcome, _) = run(&here, &there, 1 + round);
        let both = |key: &Vec<u8>, version: &u64| there.get(key) == Some(version);
        let (kept, gone) = here.clone().into_iter().partition(|(key, version)| both(key, version));
        let came =
            there.clone().into_iter().filter(|(key, version)| here.get(key) != Some(version));
        assert_eq!(outcome, Outcome { kept, gone, came: came.collect() }, "{count} {changed_in}");
    }
}

#[test]
fn equal_tables_are_compared_in_a_question_for_two_thousand_records() {
    let (here, _) = two_sides(&mut Rng::new(2), 5_000, 1);
    let (outcome, questions) = run(&here, &here, 1);
    assert_eq!(outcome, Outcome { kept: here, ..Outcome::default() });
    assert_eq!(questions, 4, "1,024 buckets, 256 of them in a question");
}

#[test]
fn buckets_become_as_small_as_the_other_table_needs() {
    let (there, _) = two_sides(&mut Rng::new(3), 1_000, 1);
    let here: Keys = there.clone().into_iter().take(3).collect();
    let (outcome, questions) = run(&here, &there, 100);
    assert_eq!(outcome.came.len(), there.len() - here.len());
    assert!(questions > 8, "answers stay small: {questions}");
}

#[test]
fn buckets_shrink_with_a_table_that_has_grown_and_nothing_is_skipped() {
    let (here, there) = two_sides(&mut Rng::new(4), 800, 3);
    let (mut few, mut there, hash_of) = (table(&here), table(&there), hasher(1));
    let mut comparing = Comparing::new(100);
    let Question::Digests { first, digests } = comparing.question(&mut few, hash_of) else {
        panic!("the first question is of digests");
    };
    let answer = compare(&mut there, comparing.shift(), first, digests.into_iter(), hash_of);
    assert_eq!(answer, Some(Vec::new()), "too coarse for what the other has");
    comparing.take_answer(&few, 100, [0, 1].into_iter()).expect("an answer");
    assert!(comparing.asks_for_records() && comparing.go_on(100));
    let shift = comparing.shift();
    assert!(!comparing.shrink_buckets(200));
    assert_eq!((comparing.shift(), comparing.asks_for_records()), (shift, true), "small enough");
    assert!(comparing.shrink_buckets(800));
    assert!(comparing.shift() < shift && !comparing.asks_for_records());
    // Whatever comes late settles nothing.
    assert!(comparing.take_records(&mut few, 2 << shift, [].into_iter(), hash_of).is_empty());
    assert!(comparing.go_on(800));
    let Question::Digests { first, digests } = comparing.question(&mut few, hash_of) else {
        panic!("what was not settled is compared anew");
    };
    assert_eq!((first, digests.len()), (0, 128));
}

#[test]
fn what_no_question_was_about_is_no_answer() {
    let mut comparing = Comparing::new(10_000);
    let mut here = Records::default();
    assert!(comparing.take_answer(&here, 10_000, [5, 4].into_iter()).is_none(), "they rise");
    assert!(comparing.take_answer(&here, 10_000, [256].into_iter()).is_none(), "beyond the range");
    assert!(comparing.take_answer(&here, 10_000, [4, 5].into_iter()).is_some());
    assert!(comparing.take_answer(&here, 10_000, [4].into_iter()).is_none(), "asked for records");
    let (shift, hash_of) = (comparing.shift(), hasher(1));
    assert!(compare(&mut here, shift, u64::MAX, [0].into_iter(), hash_of).is_none());
    assert!(compare(&mut here, shift, 0, [].into_iter(), hash_of).is_none());
    assert!(compare(&mut here, 64, 0, [0].into_iter(), hash_of).is_none());
    assert!(compare(&mut here, 0, 0, [0; 257].into_iter(), hash_of).is_none());
    assert!(!may_ask_for(shift, [].into_iter()) && !may_ask_for(shift, [1, 0].into_iter()));
}
