//! One question at a time, asked again less and less often.

use quorate_machine::difference::Comparing;
use quorate_machine::{Backoff, Copier};
use quorate_types::{Duration, Instant, NodeId, Now, UnixNanos};

const FIRST: Duration = Duration::from_millis(10);
const DOUBLINGS_MAX: u32 = 2;

fn at(millis: u64) -> Now {
    let monotonic = Instant::ZERO + Duration::from_millis(millis);
    Now { monotonic, unix: UnixNanos(0) }
}

/// When the question is asked, in milliseconds, if it is never answered.
fn times_asked(copier: &mut Copier, count: usize) -> Vec<u64> {
    let mut times = vec![100];
    copier.ask(at(100), FIRST);
    while times.len() < count {
        let millis = copier.deadline().since(Instant::ZERO).as_millis() as u64;
        copier.lose_patience(DOUBLINGS_MAX, 0);
        copier.ask(at(millis), FIRST);
        times.push(millis);
    }
    times
}

#[test]
fn the_time_for_an_answer_doubles_up_to_a_maximum_and_halves_when_one_comes_early() {
    let mut copier = Copier::default();
    assert_eq!(copier.deadline(), Instant::NEVER, "nothing was asked");
    copier.turn_to(Some(NodeId(2)), 7, None);
    assert_eq!(times_asked(&mut copier, 5), [100, 110, 130, 170, 210]);
    copier.answered(at(211), 8);
    copier.ask(at(211), FIRST);
    assert_eq!(copier.deadline(), at(251).monotonic, "who knows which question that answers");
    copier.answered(at(215), 9);
    assert_eq!(times_asked(&mut copier, 3), [100, 120, 160]);
    copier.turn_to(Some(NodeId(3)), 9, None);
    assert_eq!(times_asked(&mut copier, 2), [100, 110], "another link");
    copier.rest();
    assert_eq!(copier.deadline(), Instant::NEVER);
}

#[test]
fn only_the_answer_to_the_question_that_is_out_counts() {
    let mut copier = Copier::default();
    assert!(!copier.expects(NodeId(2), 0), "nobody is asked");
    copier.turn_to(Some(NodeId(2)), 7, None);
    assert!(copier.expects(NodeId(2), 7));
    assert!(!copier.expects(NodeId(3), 7) && !copier.expects(NodeId(2), 6));
    copier.answered(at(0), 8);
    assert!(copier.expects(NodeId(2), 8) && !copier.expects(NodeId(2), 7), "it comes twice");
    copier.finish_donor();
    assert!(!copier.expects(NodeId(2), 8));
}

#[test]
fn a_comparison_ends_with_the_table() {
    let mut copier = Copier::default();
    copier.turn_to(Some(NodeId(2)), 7, Some(Comparing::new(10)));
    assert!(copier.compares(NodeId(3), 7).is_none(), "another's answer");
    assert!(copier.compare_on(10), "nothing is compared yet");
    let table = crate::Records::default();
    let comparing = copier.compares(NodeId(2), 7).expect("it is the answer");
    comparing.take_answer(&table, 10, [].into_iter()).expect("nothing differs");
    assert!(!copier.compare_on(10), "ten records lie in one question");
    assert!(copier.comparing().is_none() && copier.compares(NodeId(2), 7).is_none());
}

/// An answer for larger buckets would settle what it says nothing of.
#[test]
fn a_question_in_smaller_buckets_has_another_name() {
    let mut copier = Copier::default();
    copier.turn_to(Some(NodeId(2)), 7, Some(Comparing::new(100)));
    copier.lose_patience(DOUBLINGS_MAX, 200);
    assert!(copier.compares(NodeId(2), 7).is_some(), "the buckets are small enough");
    copier.lose_patience(DOUBLINGS_MAX, 800);
    assert!(copier.compares(NodeId(2), 7).is_none(), "it answers another question");
    let request = copier.request();
    assert!(copier.compares(NodeId(2), request).is_some());
}

#[test]
fn a_wait_is_over_once_and_begins_again() {
    let mut backoff = Backoff::default();
    let times = [0, 5, 10, 20, 30, 60, 70].map(|millis| {
        // What was never sent is due at once, and has not been waited for in vain.
        backoff.is_over(at(millis), FIRST, DOUBLINGS_MAX)
    });
    assert_eq!(times, [true, false, true, false, true, false, true]);
    assert!(!{ Backoff::AT_REST }.is_over(at(1_000_000), FIRST, DOUBLINGS_MAX));
}

/// Answers come after 30 ms, and the shortest wait is 20. Only the first question is asked twice: what comes after
/// a repetition, or late in the wait, doesn't shorten it. What comes early does.
#[test]
fn a_wait_stays_as_long_as_answers_take() {
    let (mut backoff, mut repeated, mut time) = (Backoff::default(), 0, 0);
    for _ in 0..10 {
        backoff.begin(at(time), Duration::from_millis(20));
        let answered = time + 30;
        while backoff.deadline() < at(answered).monotonic {
            let again = backoff.deadline();
            backoff.grow(DOUBLINGS_MAX);
            backoff.begin(Now { monotonic: again, ..at(0) }, Duration::from_millis(20));
            repeated += 1;
        }
        backoff.ease(at(answered));
        time = answered;
    }
    assert_eq!(repeated, 1);
    backoff.begin(at(time), Duration::from_millis(20));
    backoff.ease(at(time + 5));
    backoff.begin(at(time), Duration::from_millis(20));
    assert_eq!(backoff.deadline(), at(time + 20).monotonic);
}
