//! Transitions of the tracker: a state, one event, the result.

use quorate_rifl::{Call, CallError, Found, LeaseId, ResultTracker};
use quorate_types::{LaneId, MemberNumber, limits};

type Calls = ResultTracker<u32>;

/// The place where a copy of all sessions begins.
const ALL: (LeaseId, u64) = (LeaseId(0), 0);

pub(crate) fn lease(counter: u64) -> LeaseId {
    LeaseId::new(MemberNumber(3), LaneId(2), counter)
}

pub(crate) fn call(sequence: u64, first_incomplete: u64) -> Call {
    Call { lease: lease(1), sequence, first_incomplete, digest: 7 }
}

fn completed(sequence: u64) -> Calls {
    let mut calls = Calls::default();
    calls.complete(&call(sequence, 0), 1, 10, b":1");
    calls
}

#[test]
fn a_lease_says_who_keeps_it() {
    let lease = LeaseId::new(MemberNumber((1 << 24) - 1), LaneId(63), LeaseId::COUNTER_MAX);
    assert_eq!(lease.0, u64::MAX);
    let lease = LeaseId::new(MemberNumber(5), LaneId(9), 77);
    assert_eq!((lease.member(), lease.lane(), lease.counter()), (MemberNumber(5), LaneId(9), 77));
}

#[test]
fn a_call_is_new_then_in_progress_then_completed() {
    let mut calls = Calls::default();
    assert_eq!(calls.find(&call(0, 0)), Ok(Found::New));
    calls.begin(&call(0, 0), 1, 0);
    assert_eq!(calls.find(&call(0, 0)), Ok(Found::InProgress(1)));
    calls.complete(&call(0, 0), 1, 10, b":1");
    assert_eq!(calls.find(&call(0, 0)), Ok(Found::Completed(b":1")));
    calls.complete(&call(0, 0), 2, 11, b":2");
    assert_eq!(calls.find(&call(0, 0)), Ok(Found::Completed(b":1")), "the first answer stands");
    calls.check_invariants();
}

#[test]
fn an_attempt_that_ends_without_effect_makes_room_for_the_next() {
    let mut calls = Calls::default();
    calls.begin(&call(0, 0), 1, 0);
    calls.abandon(&call(0, 0), 2);
    assert_eq!(calls.find(&call(0, 0)), Ok(Found::InProgress(1)), "another one ended");
    calls.abandon(&call(0, 0), 1);
    assert_eq!(calls.find(&call(0, 0)), Ok(Found::New));
    calls.begin(&call(0, 0), 3, 0);
    calls.abandon_all();
    assert_eq!(calls.find(&call(0, 0)), Ok(Found::New));
}

#[test]
fn an_acknowledged_call_is_stale() {
    let mut calls = completed(0);
    calls.complete(&call(1, 1), 2, 11, b":2");
    assert_eq!(calls.find(&call(0, 0)), Err(CallError::Stale));
    assert_eq!(calls.records(), 1);
    calls.acknowledge(lease(1), 2);
    assert_eq!(calls.find(&call(1, 0)), Err(CallError::Stale));
    assert_eq!(calls.records(), 0);
    assert_eq!(calls.find(&call(2, 0)), Ok(Found::New));
}

#[test]
fn a_call_outside_its_window_is_refused() {
    let calls = Calls::default();
    let last = limits::SESSION_WINDOW - 1;
    assert_eq!(calls.find(&call(last + 5, 5)), Ok(Found::New));
    assert_eq!(calls.find(&call(last + 6, 5)), Err(CallError::BeyondWindow));
    assert_eq!(calls.find(&call(4, 5)), Err(CallError::Stale));
}

#[test]
fn another_command_under_a_used_number_is_refused() {
    let mut calls = completed(0);
    let other = |sequence| Call { digest: 8, ..call(sequence, 0) };
    assert_eq!(calls.find(&other(0)), Err(CallError::Different));
    calls.begin(&call(1, 0), 2, 0);
    assert_eq!(calls.find(&other(1)), Ok(Found::InProgress(2)), "that may come to nothing");
    calls.abandon(&call(1, 0), 2);
    assert_eq!(calls.find(&other(1)), Ok(Found::New));
    assert_eq!(
        calls.find(&Call { lease: lease(2), ..other(0) }),
        Ok(Found::New),
        "another session"
    );
}

#[test]
fn p2_an_attempt_that_fails_acknowledges_nothing() {
    let mut calls = completed(0);
    calls.begin(&call(1, 1), 2, 0);
    calls.abandon(&call(1, 1), 2);
    assert_eq!(calls.find(&call(0, 0)), Ok(Found::Completed(b":1")));
}

#[test]
fn p4_a_call_that_was_acknowledged_while_it_ran_is_not_resurrected() {
    let mut calls = completed(0);
    calls.begin(&call(1, 0), 2, 0);
    calls.acknowledge(lease(1), 2);
    calls.complete(&call(1, 0), 2, 11, b":2");
    assert_eq!(calls.records(), 0);
    assert_eq!(calls.find(&call(1, 0)), Err(CallError::Stale));
    calls.check_invariants();
}

#[test]
fn p4_a_session_is_not_discarded_while_a_call_is_in_progress() {
    let mut calls = completed(0);
    calls.begin(&call(1, 0), 2, 0);
    assert!(!calls.discard(lease(1), 100));
    assert!(!calls.close(lease(1)));
    assert_eq!(calls.find(&call(0, 0)), Ok(Found::Completed(b":1")));
    calls.abandon(&call(1, 0), 2);
    assert!(calls.discard(lease(1), 100));
    assert!(calls.is_empty());
}

#[test]
fn p1_a_copy_has_the_watermark_with_the_records() {
    let mut calls = completed(0);
    calls.complete(&call(1, 1), 2, 11, b":2");
    let mut bytes = Vec::new();
    assert_eq!(calls.encode_from(ALL, usize::MAX, &mut bytes), None);
    let mut copy = Calls::default();
    copy.begin_copy();
    copy.merge(&bytes).expect("just written");
    copy.end_copy();
    assert_eq!(copy.find(&call(0, 0)), Err(CallError::Stale));
    assert_eq!(copy.find(&call(1, 0)), Ok(Found::Completed(b":2")));
    assert_eq!(copy, calls);
}

#[test]
fn a_copy_adds_to_what_was_learnt_meanwhile() {
    let mut donor = completed(0);
    donor.complete(&call(1, 0), 2, 11, b":2");
    let mut bytes = Vec::new();
    donor.encode_from(ALL, usize::MAX, &mut bytes);
    let mut copy = Calls::default();
    copy.begin_copy();
    copy.complete(&call(2, 1), 3, 12, b":3");
    copy.merge(&bytes).expect("just written");
    copy.end_copy();
    assert_eq!(copy.find(&call(0, 0)), Err(CallError::Stale));
    assert_eq!(copy.find(&call(1, 1)), Ok(Found::Completed(b":2")));
    assert_eq!(copy.find(&call(2, 1)), Ok(Found::Completed(b":3")));
    assert_eq!(copy.admits(lease(1), 1), Ok(()));
}

#[test]
fn a_copy_of_which_nothing_was_discarded_has_no_mark_left() {
    let mut copied = Calls::default();
    copied.begin_copy();
    copied.complete(&call(1, 0), 1, 9, b":1");
    copied.end_copy();
    let mut bytes = Vec::new();
    copied.encode_from(ALL, usize::MAX, &mut bytes);
    let mut again = Calls::default();
    again.merge(&bytes).expect("just written");
    assert_eq!(again, copied);
}

#[test]
fn copies_come_in_parts_of_sessions_that_each_have_the_watermark() {
    let mut calls = Calls::default();
    for counter in 0..5 {
        // In a mixed order, so that no place in the ring depends on a number's order.
        for sequence in [7, 3, 5, 4, 6, 8] {
            let call = Call { lease: lease(counter), ..call(sequence, 3) };
            calls.complete(&call, 1, 10, &[b'v'; 100]);
        }
    }
    calls.close(lease(3));
    let mut copy = Calls::default();
    copy.begin_copy();
    let (mut from, mut parts) = (ALL, 0);
    loop {
        let mut bytes = Vec::new();
        let next = calls.encode_from(from, 250, &mut bytes);
        assert!(bytes.len() < 450, "{} bytes in a part", bytes.len());
        copy.merge(&bytes).expect("just written");
        for counter in 0..5 {
            let early = Call { lease: lease(counter), ..call(2, 2) };
            let known = copy.leases_after(None).any(|lease| lease == early.lease);
            assert!(!known || copy.find(&early).is_err(), "records without their watermark");
        }
        parts += 1;
        match next {
            Some(next) => from = next,
            None => break,
        }
    }
    copy.end_copy();
    assert!(parts > 10, "{parts} parts");
    assert_eq!(copy, calls);
    assert_eq!(copy.find(&Call { lease: lease(3), ..call(3, 3) }), Err(CallError::Closed));
}

#[test]
fn a_damaged_copy_is_noticed_wherever_it_is_cut() {
    let calls = completed(0);
    let mut bytes = Vec::new();
    calls.encode_from(ALL, usize::MAX, &mut bytes);
    for cut in (0..bytes.len()).filter(|cut| *cut != 8) {
        assert!(Calls::default().merge(&bytes[..cut]).is_err(), "cut at {cut}");
    }
}

#[test]
fn an_attempt_from_before_a_discard_begins_again() {
    let mut calls = completed(0);
    assert_eq!(calls.admits(lease(2), 100), Ok(()));
    assert!(calls.discard(lease(1), 100));
    assert_eq!(calls.find(&call(0, 0)), Ok(Found::New), "the record is gone");
    assert_eq!(calls.admits(lease(1), 100), Err(100), "so the date must tell");
    assert_eq!(calls.admits(lease(2), 101), Ok(()));
}

#[test]
fn a_session_that_is_known_needs_no_date() {
    let mut calls = completed(0);
    calls.complete(&Call { lease: lease(2), ..call(0, 0) }, 1, 10, b":1");
    assert!(calls.discard(lease(2), 100));
    assert_eq!(calls.admits(lease(1), 1), Ok(()));
}

#[test]
fn what_others_decided_of_a_discarded_session_does_not_make_it_known() {
    let mut calls = completed(0);
    assert!(calls.discard(lease(1), 100));
    calls.complete(&call(1, 0), 2, 90, b":2");
    assert_eq!(calls.find(&call(1, 0)), Ok(Found::Completed(b":2")));
    assert_eq!(calls.find(&call(0, 0)), Ok(Found::New), "its record is gone");
    assert_eq!(calls.admits(lease(1), 95), Err(100));
    // A mark goes with the session, into copies too.
    let mut bytes = Vec::new();
    calls.encode_from(ALL, usize::MAX, &mut bytes);
    let mut copy = Calls::default();
    copy.merge(&bytes).expect("just written");
    assert_eq!(copy.admits(lease(1), 95), Err(100));
    assert!(copy.discard(lease(1), 120));
    assert_eq!(copy.admits(lease(1), 120), Err(120));
    copy.check_invariants();
}

#[test]
fn what_is_seen_during_a_copy_and_not_copied_is_dated_like_the_unknown() {
    let mut copy = Calls::default();
    copy.begin_copy();
    copy.complete(&call(1, 0), 2, 90, b":2");
    assert_eq!(copy.admits(lease(1), 1 << 40), Err(u64::MAX));
    let mut donor = completed(0);
    assert!(donor.discard(lease(1), 100));
    let mut bytes = Vec::new();
    donor.encode_from(ALL, usize::MAX, &mut bytes);
    copy.merge(&bytes).expect("just written");
    copy.end_copy();
    assert_eq!(copy.admits(lease(1), 100), Err(100));
    assert_eq!(copy.admits(lease(1), 101), Ok(()));
}

#[test]
fn a_closed_session_refuses_late_calls_until_its_term_is_over() {
    let mut calls = completed(0);
    assert!(calls.close(lease(1)));
    assert_eq!((calls.len(), calls.bytes_of(lease(1))), (0, 0));
    assert_eq!(calls.find(&call(5, 5)), Err(CallError::Closed));
    calls.complete(&call(1, 0), 2, 11, b":2");
    assert!(calls.is_empty(), "what lags behind does not open it again");
    assert_eq!(calls.leases_after(None).collect::<Vec<_>>(), [lease(1)], "a sweep asks about it");
    assert!(calls.discard(lease(1), 100));
    assert_eq!(calls.leases_after(None).count(), 0);
}

#[test]
fn a_mark_goes_when_its_session_is_closed() {
    let mut calls = Calls::default();
    calls.discard(lease(9), 100);
    calls.complete(&call(0, 0), 1, 10, b":1");
    assert_eq!(calls.admits(lease(1), 100), Err(100));
    assert!(calls.close(lease(1)));
    calls.check_invariants();
    assert_eq!(calls.find(&call(0, 0)), Err(CallError::Closed));
}

#[test]
fn sweeps_walk_all_sessions_in_order() {
    let mut calls = Calls::default();
    for counter in [5, 1, 9, 3, 7] {
        calls.complete(&Call { lease: lease(counter), ..call(0, 0) }, 1, 10, b"");
    }
    calls.close(lease(3));
    calls.close(lease(9));
    let walk = |after| calls.leases_after(after).map(|lease| lease.counter()).collect::<Vec<_>>();
    assert_eq!(walk(None), [1, 3, 5, 7, 9]);
    assert_eq!(walk(Some(lease(3))), [5, 7, 9]);
    assert_eq!(walk(Some(lease(8))), [9]);
}

#[test]
fn long_answers_are_bounded_for_each_session() {
    let mut calls = Calls::default();
    let answer = vec![0; 1 << 20];
    let mut kept = 0;
    while calls.has_room(lease(1), answer.len()) {
        calls.complete(&call(kept, 0), 1, 10, answer.as_slice());
        kept += 1;
    }
    assert_eq!(kept, 8);
    assert!(calls.has_room(lease(1), 100), "short ones are bounded by the window");
    assert!(calls.has_room(lease(2), answer.len()));
    calls.acknowledge(lease(1), 1);
    assert!(calls.has_room(lease(1), answer.len()));
}

#[test]
fn long_answers_of_calls_in_progress_count_too() {
    let mut calls = Calls::default();
    let answer = vec![0; 1 << 20];
    calls.complete(&call(0, 0), 1, 10, answer.as_slice());
    for attempt in 1..8 {
        assert!(calls.has_room(lease(1), answer.len()), "{attempt} of eight");
        calls.begin(&call(u64::from(attempt), 0), attempt, answer.len());
    }
    assert!(!calls.has_room(lease(1), answer.len()));
    assert!(calls.has_room(lease(2), answer.len()));
    calls.abandon(&call(7, 0), 7);
    assert!(calls.has_room(lease(1), answer.len()), "that one came to nothing");
}
