//! Sessions: a call takes effect once and has one answer, whatever is lost, repeated or crashes.
//!
//! P1 to P4 are the pitfalls of RIFL's core (`docs/design/006-sessions.md`).

use quorate_hermes::{Config, Inv, Message, State};
use quorate_machine::{CallError, Outcome, Refusal};
use quorate_rifl::{Call, Found, LeaseEnd, LeaseId, Lost, Sessions};
use quorate_types::{Duration, LaneId, MemberNumber, NodeId, Role, limits};

use crate::op::{ABSENT, Reply, del, get, incr, set, set_nx, swap, value, wipe};
use crate::support::{Cluster, MLT, Packet, encoded};

fn lease(counter: u64) -> LeaseId {
    LeaseId::new(MemberNumber(1), LaneId(0), counter)
}

fn call(sequence: u64) -> Call {
    Call { lease: lease(0), sequence, first_incomplete: 0, digest: 7 }
}

fn refused(why: Refusal) -> Option<Outcome<Reply>> {
    Some(Outcome::Refused(why))
}

/// Every active replica's record of a call.
#[track_caller]
fn assert_recorded(cluster: &mut Cluster, call: &Call, reply: &Reply) {
    for node in cluster.view.active() {
        assert_eq!(cluster.record(node.0, call).as_ref(), Some(reply), "at {node}");
    }
}

#[test]
fn a_retry_at_any_node_hears_the_first_answer_and_runs_nothing() {
    let mut cluster = Cluster::new(3);
    let first = cluster.call(1, call(0), incr("k"));
    cluster.deliver_all();
    cluster.assert_done(first, Reply::Int(1));
    assert_recorded(&mut cluster, &call(0), &Reply::Int(1));
    for node in 1..=3 {
        let again = cluster.call(node, call(0), incr("k"));
        cluster.assert_done(again, Reply::Int(1));
        assert!(cluster.pool.is_empty(), "an answer that is known costs no message");
    }
    cluster.assert_everywhere("k", Some("1"));
    let next = cluster.call(2, call(1), incr("k"));
    cluster.deliver_all();
    cluster.assert_done(next, Reply::Int(2));
}

#[test]
fn p3_a_call_that_fails_or_changes_nothing_leaves_a_record() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, set("k", "v"));
    let failed = cluster.call(1, call(0), set_nx("k", "w"));
    let nothing = cluster.call(1, call(1), del("absent"));
    cluster.deliver_all();
    cluster.assert_done(failed, Reply::Int(0));
    cluster.assert_done(nothing, Reply::Int(0));
    cluster.assert_everywhere("k", Some("v"));
    cluster.run(2, del("k"));
    cluster.run(2, set("absent", "not any more"));
    for node in 1..=3 {
        let failed = cluster.call(node, call(0), set_nx("k", "w"));
        let nothing = cluster.call(node, call(1), del("absent"));
        cluster.deliver_all();
        cluster.assert_done(failed, Reply::Int(0));
        cluster.assert_done(nothing, Reply::Int(0));
    }
    cluster.assert_everywhere("k", None);
    cluster.assert_everywhere("absent", Some("not any more"));
}

#[test]
fn a_call_that_reads_leaves_no_record() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, set("k", "v"));
    let read = cluster.call(2, call(0), get("k"));
    cluster.assert_done(read, value("v"));
    let absent = cluster.call(2, call(1), get("none"));
    cluster.assert_done(absent, ABSENT);
    assert!(cluster.pool.is_empty());
    assert!(!cluster.has_record(2, "none"));
    assert!(cluster.machine(2).tracker().is_empty());
    // Its number can still be refused.
    let Call { lease, .. } = call(0);
    let acknowledging = Call { lease, sequence: 5, first_incomplete: 5, digest: 7 };
    cluster.call(1, acknowledging, incr("n"));
    cluster.deliver_all();
    let stale = cluster.call(2, call(0), get("k"));
    let expected = refused(Refusal::CallError(CallError::Stale));
    assert_eq!(cluster.outcome(stale).cloned(), expected);
}

#[test]
fn a_call_that_writes_runs_as_a_read_modify_write() {
    let mut cluster = Cluster::new(3);
    cluster.call(1, call(0), set("k", "v"));
    let packet = cluster.pool[0].clone();
    let Message::Inv(inv) = packet.message() else { panic!("{packet:?}") };
    assert!(inv.rmw);
    assert_eq!(inv.completion.map(|completion| completion.call), Some(call(0)));
    cluster.deliver_all();
    cluster.run(2, set("k", "w"));
    let again = cluster.call(3, call(0), set("k", "v"));
    cluster.assert_done(again, Reply::Ok);
    cluster.assert_everywhere("k", Some("w"));
}

#[test]
fn a_call_that_a_replay_finishes_has_its_record_everywhere() {
    let mut cluster = Cluster::new(3);
    cluster.call(1, call(0), incr("k"));
    cluster.deliver(1, 2, "inv");
    cluster.expel(&[1]);
    cluster.run_for(MLT * 6);
    assert_recorded(&mut cluster, &call(0), &Reply::Int(1));
    let again = cluster.call(3, call(0), incr("k"));
    cluster.assert_done(again, Reply::Int(1));
    cluster.assert_everywhere("k", Some("1"));
}

#[test]
fn a_retry_waits_for_the_attempt_that_it_might_repeat() {
    let mut cluster = Cluster::new(3);
    let first = cluster.call(1, call(0), incr("k"));
    cluster.deliver(1, 2, "inv");
    let again = cluster.call(2, call(0), incr("k"));
    let twice = cluster.call(1, call(0), incr("k"));
    cluster.assert_open(again);
    cluster.assert_open(twice);
    cluster.deliver_all();
    for tag in [first, again, twice] {
        cluster.assert_done(tag, Reply::Int(1));
    }
    cluster.assert_everywhere("k", Some("1"));
}

#[test]
fn of_two_attempts_at_once_one_takes_effect_and_both_hear_its_answer() {
    let mut cluster = Cluster::new(3);
    let one = cluster.call(1, call(0), incr("k"));
    let other = cluster.call(2, call(0), incr("k"));
    cluster.deliver_all();
    cluster.run_for(MLT);
    cluster.assert_done(one, Reply::Int(1));
    cluster.assert_done(other, Reply::Int(1));
    assert!(cluster.probed("hermes: read-modify-write superseded") > 0);
    assert_recorded(&mut cluster, &call(0), &Reply::Int(1));
    cluster.assert_everywhere("k", Some("1"));
}

#[test]
fn a_call_that_lost_a_race_is_recorded_with_the_answer_of_its_last_attempt() {
    let mut cluster = Cluster::new(3);
    let mine = cluster.call(1, call(0), incr("k"));
    cluster.deliver(1, 3, "inv");
    assert_eq!(cluster.record(3, &call(0)), None, "it may yet fail");
    // 2 has not heard of it, and its update is the larger one: built on what was before the call.
    let theirs = cluster.submit(2, incr("k"));
    cluster.deliver(2, 3, "inv");
    assert_eq!(cluster.record(3, &call(0)), None);
    assert_eq!(cluster.probed("hermes: call overtaken"), 1);
    cluster.deliver_all();
    cluster.run_for(MLT);
    cluster.assert_done(theirs, Reply::Int(1));
    cluster.assert_done(mine, Reply::Int(2));
    assert_recorded(&mut cluster, &call(0), &Reply::Int(2));
    cluster.assert_everywhere("k", Some("2"));
}

#[test]
fn a_call_that_a_newer_version_is_built_on_is_recorded_without_its_val() {
    let mut cluster = Cluster::new(3);
    let mine = cluster.call(1, call(0), incr("k"));
    cluster.deliver_some(|packet| packet.kind() != "val");
    cluster.assert_done(mine, Reply::Int(1));
    cluster.deliver(1, 2, "val");
    cluster.take(1, 3, "val");
    assert_eq!(cluster.record(3, &call(0)), None);
    for op in [incr("k"), set("k", "7")] {
        cluster.submit(2, op);
        cluster.deliver(2, 3, "inv");
        assert_eq!(cluster.record(3, &call(0)), Some(Reply::Int(1)));
        cluster.deliver_all();
    }
    assert_eq!(cluster.probed("hermes: call completed by a newer version"), 1);
    let again = cluster.call(3, call(0), incr("k"));
    cluster.assert_done(again, Reply::Int(1));
    cluster.assert_everywhere("k", Some("7"));
}

#[test]
fn h11_a_call_that_another_replica_finished_is_done_and_recorded() {
    // 3 replays 1's call and builds on it before 1 hears an acknowledgement.
    let mut cluster = Cluster::new(3);
    let mine = cluster.call(1, call(0), incr("k"));
    cluster.deliver(1, 2, "inv");
    cluster.deliver(1, 3, "inv");
    cluster.take(0, 1, "ack");
    let theirs = cluster.submit(3, incr("k"));
    while cluster.state(3, "k") == State::Invalid {
        cluster.advance(MLT / 4);
        cluster.tick_node(3);
    }
    cluster.deliver_some(|packet| packet.is(3, 0, "inv") || packet.is(0, 3, "ack"));
    cluster.run_for(MLT * 4);
    cluster.assert_done(theirs, Reply::Int(2));
    cluster.assert_done(mine, Reply::Int(1));
    assert_recorded(&mut cluster, &call(0), &Reply::Int(1));
    cluster.assert_everywhere("k", Some("2"));
}

#[test]
fn a_call_whose_time_is_up_is_unknown_until_a_retry_hears_its_end() {
    let mut cluster = Cluster::new(3);
    let lost = cluster.call(1, call(0), incr("k"));
    cluster.deliver(1, 2, "inv");
    cluster.take(0, 0, "any");
    for _ in 0..120 {
        cluster.advance(MLT);
        cluster.tick_node(1);
        cluster.take(0, 0, "any");
    }
    assert_eq!(cluster.outcome(lost), Some(&Outcome::Unknown));
    let again = cluster.call(3, call(0), incr("k"));
    cluster.run_for(MLT * 6);
    cluster.assert_done(again, Reply::Int(1));
    cluster.assert_everywhere("k", Some("1"));
}

#[test]
fn h1_a_call_whose_attempt_may_yet_be_replayed_is_not_refused() {
    let mut cluster = Cluster::new(5);
    cluster.run(1, set("k", "5"));
    let mine = cluster.call(4, call(0), incr("k"));
    cluster.submit(5, incr("k"));
    cluster.deliver(4, 1, "inv");
    cluster.deliver(5, 4, "inv");
    cluster.pool.clear();
    for _ in 0..120 {
        cluster.advance(MLT);
        cluster.tick_node(4);
        cluster.pool.clear();
    }
    assert_eq!(cluster.outcome(mine), Some(&Outcome::Unknown));
    for node in [4, 5] {
        cluster.crash(node);
    }
    let down = [4, 5].map(|node| (node, Role::Down));
    let roles = [1, 2, 3].map(|node| (node, Role::Active));
    cluster.install(&[&roles[..], &down[..]].concat());
    let again = cluster.call(2, call(0), incr("k"));
    cluster.run_for(MLT * 6);
    cluster.assert_done(again, Reply::Int(6));
    cluster.assert_everywhere("k", Some("6"));
    assert_recorded(&mut cluster, &call(0), &Reply::Int(6));
}

#[test]
fn p2_only_a_call_that_takes_effect_acknowledges() {
    let mut cluster = Cluster::new(3);
    cluster.call(1, call(0), incr("k"));
    cluster.deliver_all();
    let next = Call { sequence: 1, first_incomplete: 1, ..call(0) };
    cluster.call(2, next, incr("n"));
    assert_eq!(cluster.record(2, &call(0)), Some(Reply::Int(1)), "it may yet fail");
    cluster.deliver_all();
    for node in 1..=3 {
        assert_eq!(cluster.machine(node).tracker().find(&call(0)), Err(CallError::Stale));
    }
    let late = cluster.call(3, call(0), incr("k"));
    assert_eq!(cluster.outcome(late).cloned(), refused(Refusal::CallError(CallError::Stale)));
    cluster.assert_everywhere("k", Some("1"));
}

#[test]
fn p4_a_call_that_was_acknowledged_while_it_ran_is_not_resurrected() {
    // A late duplicate of a call is attempted at 2, which has not heard of its end.
    let mut cluster = Cluster::new(3);
    cluster.call(1, call(0), incr("k"));
    cluster.deliver_some(|packet| packet.kind() != "val");
    cluster.take(1, 0, "val");
    let next = Call { sequence: 1, first_incomplete: 1, ..call(0) };
    cluster.call(1, next, incr("n"));
    cluster.deliver_all();
    assert_eq!(cluster.state(2, "k"), State::Invalid);
    cluster.submit(2, get("k"));
    cluster.run_for(MLT * 6);
    for node in 1..=3 {
        assert_eq!(cluster.state(node, "k"), State::Valid);
        assert_eq!(cluster.machine(node).tracker().find(&call(0)), Err(CallError::Stale));
        assert_eq!(cluster.machine(node).tracker().records(), 1);
    }
}

#[test]
fn p4_a_session_with_a_call_in_progress_is_not_forgotten() {
    let mut cluster = Cluster::new(3);
    cluster.call(1, call(0), incr("k"));
    cluster.deliver_all();
    let open = cluster.call(1, call(1), incr("k"));
    for lost in [Lost::Expired, Lost::Closed] {
        let verdict = LeaseEnd { lease: lease(0), lost, granted: u64::MAX };
        cluster.machine(1).end_session(&verdict);
        assert_eq!(cluster.record(1, &call(0)), Some(Reply::Int(1)), "{lost:?}");
    }
    cluster.deliver_all();
    cluster.assert_done(open, Reply::Int(2));
}

#[test]
fn sessions_are_listed_and_ended() {
    let mut cluster = Cluster::new(3);
    for counter in 0..3 {
        let call = Call { lease: lease(counter), ..call(0) };
        cluster.call(1, call, incr("k"));
        cluster.deliver_all();
    }
    let machine = cluster.machine(2);
    assert_eq!(machine.leases_after(None, 2), [lease(0), lease(1)]);
    assert_eq!(machine.leases_after(Some(lease(1)), 2), [lease(2)]);
    let verdict = |counter, lost| LeaseEnd { lease: lease(counter), lost, granted: 0 };
    machine.end_session(&verdict(0, Lost::Expired));
    machine.end_session(&verdict(1, Lost::Closed));
    assert_eq!(machine.tracker().records(), 1);
    // Of a closed session its id is kept, for what still lies in some buffer.
    assert_eq!(machine.leases_after(None, 9), [lease(1), lease(2)]);
    let late = cluster.call(2, Call { lease: lease(1), ..call(0) }, incr("k"));
    assert_eq!(cluster.outcome(late).cloned(), refused(Refusal::CallError(CallError::Closed)));
}

#[test]
fn a_late_duplicate_of_a_forgotten_session_does_not_run() {
    let mut cluster = Cluster::new(3);
    let permit = cluster.permit(call(0));
    cluster.call_with(1, permit, incr("k"));
    cluster.deliver_all();
    let granted = permit.grant.until;
    let verdict = LeaseEnd { lease: lease(0), lost: Lost::Expired, granted };
    cluster.machine(2).end_session(&verdict);
    let late = cluster.call_with(2, permit, incr("k"));
    assert_eq!(cluster.outcome(late).cloned(), refused(Refusal::LeaseNeeded));
    // What others decided of it meanwhile does not make the session known again.
    let other = cluster.call_with(1, cluster.permit(call(1)), incr("k"));
    cluster.deliver_all();
    cluster.assert_done(other, Reply::Int(2));
    let late = cluster.call_with(2, permit, incr("k"));
    assert_eq!(cluster.outcome(late).cloned(), refused(Refusal::LeaseNeeded));
    cluster.assert_everywhere("k", Some("2"));
}

#[test]
fn an_attempt_needs_a_grant_of_the_present_owner_up_to_its_date() {
    let mut cluster = Cluster::new(3);
    let permit = cluster.permit(call(0));
    let mut late = permit;
    late.grant.until = late.date - 1;
    let mut foreign = permit;
    foreign.grant.owner = MemberNumber(2);
    for permit in [late, foreign] {
        let tag = cluster.call_with(2, permit, incr("k"));
        assert_eq!(cluster.outcome(tag).cloned(), refused(Refusal::LeaseNeeded));
        let read = cluster.call_with(2, permit, get("k"));
        cluster.assert_done(read, ABSENT);
    }
    assert!(cluster.pool.is_empty() && !cluster.has_record(2, "k"));
    // The owner goes while the call waits for its turn.
    cluster.submit(3, incr("k"));
    cluster.deliver(3, 2, "inv");
    let waits = cluster.call_with(2, permit, incr("k"));
    cluster.expel(&[1]);
    cluster.run_for(MLT * 6);
    assert_eq!(cluster.outcome(waits).cloned(), refused(Refusal::LeaseNeeded));
    let renewed = cluster.call(2, call(0), incr("k"));
    cluster.deliver_all();
    cluster.assert_done(renewed, Reply::Int(2));
}

#[test]
fn what_can_never_be_one_of_the_sessions_calls_is_refused_without_a_trace() {
    let mut cluster = Cluster::new(3);
    cluster.call(1, call(0), incr("k"));
    cluster.deliver_all();
    let other = Call { digest: 8, ..call(0) };
    let beyond = Call { sequence: 512, ..call(0) };
    let backwards = Call { sequence: 3, first_incomplete: 4, ..call(0) };
    let cases = [
        (other, CallError::Different),
        (beyond, CallError::BeyondWindow),
        (backwards, CallError::Stale),
    ];
    for (call, why) in cases {
        let tag = cluster.call(2, call, incr("n"));
        assert_eq!(cluster.outcome(tag).cloned(), refused(Refusal::CallError(why)));
        assert!(!cluster.has_record(2, "n"));
        assert_eq!(cluster.machine(2).tracker().records(), 1);
    }
    // Another command under the number of one that is in progress, on another key.
    cluster.call(1, call(1), incr("k"));
    let other = Call { digest: 8, ..call(1) };
    let tag = cluster.call(1, other, incr("n"));
    assert_eq!(cluster.outcome(tag).cloned(), refused(Refusal::CallError(CallError::Different)));
    let collides = cluster.call(1, call(1), incr("n"));
    assert_eq!(
        cluster.outcome(collides).cloned(),
        refused(Refusal::CallError(CallError::Different))
    );
}

#[test]
fn long_answers_have_two_limits() {
    let mut cluster = Cluster::new(3);
    let long = "v".repeat(3 << 20);
    cluster.run(1, set("k", &long));
    // Value and answer travel in one message.
    let both = cluster.call(1, call(0), swap("k", &long));
    assert_eq!(cluster.outcome(both).cloned(), refused(Refusal::TooLarge));
    for sequence in 0..2 {
        let tag = cluster.call(1, call(sequence), swap("k", ""));
        cluster.deliver_all();
        cluster.assert_done(tag, value(&long));
        cluster.run(1, set("k", &long));
    }
    let full = cluster.call(1, call(2), swap("k", ""));
    assert_eq!(cluster.outcome(full).cloned(), refused(Refusal::SessionFull));
    assert!(cluster.pool.is_empty());
    let again = cluster.call(2, call(1), swap("k", ""));
    cluster.assert_done(again, value(&long));
    // More than a message holds: a joining replica copies the session in parts.
    cluster.expel(&[3]);
    cluster.run_for(MLT * 3);
    cluster.rejoin(3);
    cluster.run_for(MLT * 8);
    assert!(cluster.machine(3).is_caught_up());
    for sequence in 0..2 {
        assert_eq!(cluster.record(3, &call(sequence)), Some(value(&long)));
    }
}

#[test]
fn p1_a_shadow_copies_records_with_their_watermarks() {
    let mut cluster = Cluster::new(3);
    const SESSIONS: u64 = 6_000;
    for counter in 0..SESSIONS {
        let call = Call { lease: lease(counter), ..call(0) };
        cluster.call(1, call, incr("k"));
        cluster.deliver_all();
    }
    let next = Call { sequence: 1, first_incomplete: 1, ..call(0) };
    cluster.call(1, next, incr("k"));
    cluster.deliver_all();
    cluster.expel(&[3]);
    cluster.run_for(MLT * 3);
    cluster.rejoin(3);
    let mut chunks = 0;
    while !cluster.machine(3).is_caught_up() {
        cluster.deliver_some(|packet| packet.kind() != "chunk");
        cluster.deliver(0, 3, "chunk");
        chunks += 1;
        let copied = cluster.machine(3).tracker().len() as u64;
        assert!(copied == SESSIONS || !cluster.machine(3).is_caught_up());
    }
    assert!(chunks > 2, "{chunks} chunks");
    cluster.set_role(3, Role::Active);
    cluster.run_for(MLT * 3);
    let late = cluster.call(3, call(0), incr("k"));
    assert_eq!(cluster.outcome(late).cloned(), refused(Refusal::CallError(CallError::Stale)));
    let again = cluster.call(3, next, incr("k"));
    cluster.assert_done(again, Reply::Int(SESSIONS as i64 + 1));
    let other = cluster.call(3, Call { lease: lease(5), ..call(0) }, incr("k"));
    cluster.assert_done(other, Reply::Int(6));
}

/// 4 comes back as a shadow whose donor is this one, with nothing delivered yet.
fn rejoin_from(cluster: &mut Cluster, donor: u16) {
    for seed in 0.. {
        cluster.start(4, seed);
        cluster.set_role(4, Role::Shadow);
        if cluster.pool.iter().any(|packet| packet.is(4, donor, "chunk_read")) {
            return;
        }
        cluster.crash(4);
        cluster.set_role(4, Role::Down);
        cluster.pool.clear();
    }
}

#[test]
fn p1_a_shadow_copies_calls_whose_end_nobody_knows_with_their_keys() {
    let mut cluster = Cluster::new(4);
    cluster.expel(&[4]);
    cluster.run_for(MLT * 3);
    cluster.call(1, call(0), incr("k"));
    cluster.deliver(1, 2, "inv");
    cluster.pool.clear();
    rejoin_from(&mut cluster, 2);
    cluster.deliver_some(|packet| packet.is(4, 2, "chunk_read") || packet.is(2, 4, "chunk"));
    assert!(cluster.machine(4).is_caught_up());
    assert_eq!(cluster.record(4, &call(0)), None);
    cluster.set_role(4, Role::Active);
    // The others that have it are gone before they can tell anybody.
    cluster.expel(&[1]);
    cluster.pool.clear();
    cluster.expel(&[2]);
    cluster.run_for(MLT * 6);
    for node in 3..=4 {
        assert_eq!(cluster.record(node, &call(0)), Some(Reply::Int(1)), "at {node}");
    }
}

#[test]
fn p1_a_shadow_that_is_ahead_of_its_donor_waits_for_the_fate_of_a_call() {
    let mut cluster = Cluster::new(4);
    cluster.expel(&[4]);
    cluster.run_for(MLT * 3);
    let mine = cluster.call(1, call(0), incr("k"));
    cluster.deliver_some(|packet| packet.kind() != "val");
    cluster.assert_done(mine, Reply::Int(1));
    cluster.deliver(1, 2, "val");
    cluster.pool.clear();
    // 3, the donor, has not heard that the call took effect; 4 has, as it were: it holds an update
    // that was built on it.
    rejoin_from(&mut cluster, 3);
    cluster.submit(2, incr("k"));
    cluster.deliver(2, 4, "inv");
    cluster.take(2, 0, "inv");
    cluster.deliver(4, 3, "chunk_read");
    cluster.deliver(3, 4, "chunk");
    cluster.deliver_some(|packet| packet.is(4, 3, "inv"));
    while !cluster.machine(4).is_caught_up() {
        cluster.tick(MLT / 2);
        cluster.deliver_some(|packet| packet.is(4, 3, "any") || packet.is(3, 4, "any"));
    }
    assert_eq!(cluster.record(4, &call(0)), Some(Reply::Int(1)));
    assert_eq!(cluster.record(3, &call(0)), Some(Reply::Int(1)));
    assert!(cluster.probed("hermes: chunk waits for the fate of a call") > 0);
    cluster.run_for(MLT * 6);
    cluster.assert_everywhere("k", Some("2"));
}

#[test]
fn p1_a_version_that_came_without_its_call_learns_it() {
    // A shadow has a version without its call if it was Valid at the donor, and may send it, before
    // its sessions are here, to another shadow whose donor does not know yet that it is Valid.
    for valid in [false, true] {
        let mut cluster = Cluster::new(3);
        cluster.call(1, call(0), incr("k"));
        let with = cluster.take(1, 3, "inv").remove(0);
        let Message::Inv(inv) = with.message() else { panic!("{with:?}") };
        let bytes = encoded(&Message::Inv(Inv { completion: None, ..inv }));
        cluster.inject(&Packet { bytes, ..with.clone() });
        cluster.deliver_some(|packet| valid || packet.kind() != "val");
        assert_eq!(cluster.state(3, "k") == State::Valid, valid);
        assert_eq!(cluster.record(3, &call(0)), None);
        cluster.inject(&with);
        cluster.deliver_all();
        assert_recorded(&mut cluster, &call(0), &Reply::Int(1));
    }
}

fn collect_often(config: &mut Config) {
    config.collect_every = Duration::from_millis(50);
}

#[test]
fn h8_no_floor_passes_a_call_that_was_overtaken() {
    // 3's call on a key that is absent to it is overtaken by a write of 2, to which it is not. 4
    // holds the call's version, 1 has heard of neither.
    let mut cluster = Cluster::with(4, collect_often);
    cluster.run_for(MLT * 4);
    for _ in 0..6 {
        cluster.run(1, set("far", "v"));
    }
    cluster.run(2, set("k", "v"));
    cluster.run(1, del("far"));
    while !cluster.pool.iter().any(|packet| packet.is(1, 2, "floor_prepare")) {
        cluster.advance(Duration::from_millis(1));
        cluster.tick_node(1);
    }
    let mut floors = cluster.take(0, 0, "any");
    // Two writes of one version; 2 has not heard of 3's, the larger one, which deletes.
    let low = cluster.submit(2, set("k", "low"));
    cluster.submit(3, wipe("k"));
    let wipe = cluster.take(3, 2, "inv");
    cluster.deliver_some(|packet| packet.is(2, 0, "inv") || packet.is(0, 2, "ack"));
    cluster.assert_done(low, Reply::Ok);
    cluster.take(2, 0, "val");
    // 2 knows of the round, and writes again.
    let prepare = floors.iter().position(|packet| packet.to == NodeId(2)).expect("it was sent");
    cluster.inject(&floors.remove(prepare));
    cluster.submit(2, set("k", "high"));
    let high = cluster.take(2, 0, "inv");
    cluster.inject(&wipe[0]);
    cluster.deliver_some(|packet| !packet.kind().starts_with("floor"));
    assert_eq!(cluster.state(3, "k"), State::Valid);
    let mine = cluster.call(3, call(0), incr("k"));
    cluster.deliver(3, 4, "inv");
    cluster.take(3, 0, "inv");
    // It is overtaken, and 3 has nothing under way when it hears of the round.
    let to_3 = high.iter().find(|packet| packet.to == NodeId(3)).expect("it was sent");
    cluster.inject(to_3);
    for packet in &floors {
        cluster.inject(packet);
    }
    cluster.deliver_some(|packet| packet.kind().starts_with("floor"));
    for _ in 0..3 {
        cluster.advance(Duration::from_millis(2));
        for node in [1, 4] {
            cluster.tick_node(node);
        }
        cluster.deliver_some(|packet| packet.kind().starts_with("floor"));
    }
    let floor = cluster.machine(1).floor();
    // Were it not for 3, 1 had forgotten the key, and built on the floor now.
    cluster.submit(1, set_nx("k", "new"));
    cluster.deliver_some(|packet| packet.is(1, 4, "inv"));
    cluster.run_for(MLT * 10);
    let Some(Outcome::Done(reply)) = cluster.outcome(mine).cloned() else { panic!("open") };
    assert_recorded(&mut cluster, &call(0), &reply);
    assert_eq!(floor, 0, "3 had a call in doubt");
    assert!(cluster.machine(1).floor() > 0);
}

#[test]
fn acknowledgements_to_everyone_complete_calls_as_well() {
    let mut cluster = Cluster::with(3, |config| config.ack_broadcast = true);
    let mine = cluster.call(1, call(0), incr("k"));
    cluster.deliver_all();
    cluster.assert_done(mine, Reply::Int(1));
    assert_recorded(&mut cluster, &call(0), &Reply::Int(1));
}

#[test]
fn a_single_replica_keeps_records_too() {
    let mut cluster = Cluster::new(1);
    let first = cluster.call(1, call(0), incr("k"));
    let again = cluster.call(1, call(0), incr("k"));
    cluster.assert_done(first, Reply::Int(1));
    cluster.assert_done(again, Reply::Int(1));
    assert_eq!(cluster.stored(1, "k").as_deref(), Some("1"));
}

#[test]
fn a_new_life_knows_of_no_call() {
    let mut cluster = Cluster::new(3);
    cluster.call(1, call(0), incr("k"));
    cluster.deliver_all();
    cluster.call(1, call(1), incr("k"));
    cluster.begin_life(1);
    assert_eq!(cluster.machine(1).tracker().find(&call(0)), Ok(Found::New));
    assert_eq!(cluster.machine(1).tracker().find(&call(1)), Ok(Found::New));
}

#[test]
fn a_node_that_is_out_answers_unknown_for_what_it_attempted() {
    let mut cluster = Cluster::new(3);
    let attempted = cluster.call(1, call(0), incr("k"));
    let waits = cluster.call(1, call(1), incr("k"));
    let roles = cluster.roles_with(1, Role::Down);
    let view = cluster.decide(&roles);
    cluster.install_on(1, &view);
    assert_eq!(cluster.outcome(attempted), Some(&Outcome::Unknown));
    assert_eq!(cluster.outcome(waits).cloned(), refused(Refusal::NotServing));
    let after = cluster.call(1, call(2), incr("k"));
    assert_eq!(cluster.outcome(after).cloned(), refused(Refusal::NotServing));
}

#[test]
fn h8_a_floor_waits_for_calls_whose_coordinators_are_gone() {
    // 1 has prepared a floor. 4's call of an absent key is at 3 alone when 4 dies. An update that
    // were built on that floor now would make 3 believe that the call has taken effect.
    let mut cluster = Cluster::with(4, |config| config.collect_every = Duration::from_millis(50));
    cluster.run_for(MLT * 4);
    for _ in 0..3 {
        cluster.run(1, set("far", "v"));
    }
    cluster.run(1, del("far"));
    while !cluster.pool.iter().any(|packet| packet.is(1, 3, "floor_prepare")) {
        cluster.tick(Duration::from_millis(1));
    }
    cluster.pool.clear();
    let first = cluster.call(4, call(0), incr("k"));
    cluster.deliver(4, 3, "inv");
    cluster.expel(&[4]);
    cluster.tick_node(1);
    cluster.deliver(1, 3, "floor_prepare");
    for _ in 0..10 {
        // What 3 replays is lost.
        cluster.take(3, 0, "inv");
        cluster.deliver_all();
        cluster.tick(Duration::from_millis(5));
    }
    assert_eq!(cluster.machine(1).floor(), 0, "3 holds a call that may not have taken effect");
    cluster.run_for(MLT * 10);
    assert!(cluster.machine(1).floor() > 0);
    cluster.assert_open(first);
    for node in 1..=3 {
        let again = cluster.call(node, call(0), incr("k"));
        cluster.run_for(MLT * 4);
        cluster.assert_done(again, Reply::Int(1));
    }
    cluster.assert_everywhere("k", Some("1"));
}

/// A call whose value is too large for a chunk, and whose fate the donor doesn't know yet, comes with
/// its value. A shadow that holds the version already asks for the call all the same.
#[test]
fn a_large_call_in_doubt_comes_with_its_value() {
    for knows_version in [false, true] {
        let mut cluster = Cluster::new(3);
        let large = "x".repeat(limits::CHUNK_BYTES / 2);
        cluster.run(1, set("k", &large));
        cluster.expel(&[3]);
        cluster.run_for(MLT * 3);
        let first = cluster.call(1, call(0), swap("k", &large));
        cluster.deliver(1, 2, "inv");
        cluster.rejoin(3);
        if knows_version {
            let inv = cluster.take(1, 3, "inv").pop().expect("1 sends it to the shadow, too");
            let Message::Inv(inv_message) = inv.message() else { panic!("taken by its kind") };
            let bytes = encoded(&Message::Inv(Inv { completion: None, ..inv_message }));
            cluster.inject(&Packet { bytes, ..inv });
        }
        cluster.take(1, 0, "inv");
        cluster.deliver(3, 0, "chunk_read");
        cluster.deliver(0, 3, "chunk");
        cluster.deliver(3, 0, "value_read");
        cluster.deliver_some(|packet| packet.is(0, 3, "inv"));
        assert!(!cluster.machine(3).is_caught_up());
        cluster.run_for(MLT * 6);
        assert!(cluster.machine(3).is_caught_up());
        cluster.assert_done(first, value(&large));
        assert_eq!(cluster.record(3, &call(0)), Some(value(&large)));
    }
}
