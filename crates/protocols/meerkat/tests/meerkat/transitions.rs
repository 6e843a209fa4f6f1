//! One test for each transition: N3.5 row by row, then what is left behind, takeovers and joins.
//! The paths of a transaction are in modules of their own.

mod coordinator;
mod reads;

use quorate_machine::{Outcome, Refusal};
use quorate_meerkat::{Body, Conflict, Kind, Reason, Vote};
use quorate_types::{Duration, MemberNumber, Role, Timestamp, WriterId, limits};

use crate::packets::Packet;
use crate::support::{Cluster, MLT, WALL, body_bytes};

/// An id that node 2's coordinator may have used: so many nanoseconds after the start.
fn of_2(nanos: u64) -> Timestamp {
    Timestamp::new(WALL + nanos, WriterId::new(MemberNumber(2), 0))
}

fn validate(cluster: &mut Cluster, to: u16, id: Timestamp, body: &[u8]) {
    let body = Body::check(body).expect("just made");
    cluster.tell(2, to, Kind::Validate { id, stable: 0, participants: 1, body });
}

fn decided(cluster: &mut Cluster, to: u16, id: Timestamp, commit: bool, body: Option<&[u8]>) {
    let body = body.map(|body| Body::check(body).expect("just made"));
    cluster.tell(2, to, Kind::Decided { id, commit, body });
}

fn accept(cluster: &mut Cluster, to: u16, id: Timestamp, view: u64, ok: bool, body: &[u8]) {
    let body = Some(Body::check(body).expect("just made"));
    cluster.tell(2, to, Kind::Accept { id, view, ok, participants: 1, body });
}

/// The one message that node 1 has for node 2.
#[track_caller]
fn answer(cluster: &mut Cluster) -> Packet {
    let mut answers = cluster.take(1, 2, "any");
    assert_eq!(answers.len(), 1, "{answers:?}");
    answers.remove(0)
}

/// The vote that node 1 has for node 2.
#[track_caller]
fn vote(cluster: &mut Cluster) -> Vote {
    match answer(cluster).message().kind {
        Kind::Vote { vote, .. } => vote,
        other => panic!("{other:?}"),
    }
}

fn against(reason: Reason, with: Timestamp) -> Vote {
    Err(Conflict { reason, with })
}

fn writes() -> Vec<u8> {
    body_bytes(&[("k", None, Some("v"))])
}

// --- N3.5: what a replica does with what comes twice, late or early ---------------------------

#[test]
fn validate_again_is_answered_with_the_same_vote() {
    let mut cluster = Cluster::new(3);
    validate(&mut cluster, 1, of_2(50), &writes());
    assert_eq!(vote(&mut cluster), Ok(()));
    // What has changed since then does not matter: votes are given once.
    let reader = body_bytes(&[("k", Some(Timestamp::ZERO), Some("w"))]);
    validate(&mut cluster, 1, of_2(60), &reader);
    let refused = against(Reason::PendingWriter, of_2(50));
    assert_eq!(vote(&mut cluster), refused);
    decided(&mut cluster, 1, of_2(50), false, None);
    validate(&mut cluster, 1, of_2(60), &reader);
    assert_eq!(vote(&mut cluster), refused, "though nothing is in the way any more");
    assert!(cluster.pending(1, "k").is_empty());
}

#[test]
fn validate_of_a_decided_transaction_is_answered_with_the_decision() {
    let mut cluster = Cluster::new(3);
    for (nanos, commit) in [(50, true), (60, false)] {
        validate(&mut cluster, 1, of_2(nanos), &writes());
        vote(&mut cluster).expect("nothing is in the way");
        decided(&mut cluster, 1, of_2(nanos), commit, None);
        validate(&mut cluster, 1, of_2(nanos), &writes());
        let expected = Kind::Decided { id: of_2(nanos), commit, body: None };
        assert_eq!(answer(&mut cluster).message().kind, expected);
        assert!(cluster.pending(1, "k").is_empty());
    }
    assert_eq!(cluster.meta(1, "k").wts, of_2(50));
}

#[test]
fn validate_of_a_promised_transaction_gets_no_vote() {
    let mut cluster = Cluster::new(3);
    cluster.tell(3, 1, Kind::Prepare { id: of_2(50), view: 67 });
    assert_eq!(cluster.take(1, 3, "promise").len(), 1);
    validate(&mut cluster, 1, of_2(50), &writes());
    let expected = Kind::Superseded { id: of_2(50), view: 67 };
    assert_eq!(answer(&mut cluster).message().kind, expected);
    assert_eq!(cluster.vote(1, of_2(50)), None);
    assert!(cluster.pending(1, "k").is_empty());
}

#[test]
fn messages_of_other_epochs_are_dropped() {
    let mut cluster = Cluster::new(3);
    let tag = cluster.submit(1, "write=k:v");
    let old: Vec<Packet> = cluster.take(0, 0, "any");
    cluster.renew_view();
    for packet in &old {
        cluster.inject(packet);
        assert_eq!(cluster.vote(packet.to.0, cluster.last_attempt(1)), None);
    }
    assert_eq!(cluster.ignored["meerkat: message of an older epoch"], 2);
    // The change has ended the attempt; another one follows.
    cluster.run_for(Duration::from_millis(300));
    cluster.assert_done(tag);
    let mut early = old[0].clone();
    early.epoch.0 = 9;
    cluster.inject(&early);
    assert_eq!(cluster.ignored["meerkat: message of a newer epoch"], 1);
}

#[test]
fn votes_of_an_earlier_epoch_decide_nothing() {
    // N4.2b. The registrations behind the votes are gone with their epoch.
    let mut cluster = Cluster::new(3);
    cluster.submit(1, "write=k:v");
    let id = cluster.last_attempt(1);
    cluster.deliver(1, 2, "validate");
    cluster.deliver(1, 3, "validate");
    let votes = cluster.take(0, 1, "vote");
    // An attempt of the next epoch under the same id, as a partition whose vote was not settled
    // would make it, must not count them: here a message of the last epoch is dropped altogether.
    let before = cluster.ignored.get("meerkat: message of an older epoch").copied().unwrap_or(0);
    cluster.renew_view();
    for vote in &votes {
        cluster.inject(vote);
    }
    let after = cluster.ignored["meerkat: message of an older epoch"];
    assert_eq!(after - before, 2);
    assert!(cluster.take(1, 0, "decided").is_empty(), "{id:?}");
}

#[test]
fn whatever_comes_of_a_trimmed_transaction_is_too_late() {
    let mut cluster = Cluster::new(3);
    cluster.tell(2, 1, Kind::Stable { stable: WALL + 50 });
    validate(&mut cluster, 1, of_2(50), &writes());
    accept(&mut cluster, 1, of_2(40), 0, false, &writes());
    cluster.tell(3, 1, Kind::Prepare { id: of_2(30), view: 67 });
    assert!(cluster.take(1, 0, "any").is_empty());
    assert!(cluster.machine(1).records().is_empty());
    assert!(cluster.pending(1, "k").is_empty());
    // Its end is known, and the answer to a question.
    decided(&mut cluster, 1, of_2(20), true, None);
    cluster.tick(MLT);
    assert_eq!(cluster.take(1, 2, "acked").len(), 1);
    assert_eq!(cluster.stored(1, "k"), None);
    validate(&mut cluster, 1, of_2(51), &writes());
    assert_eq!(cluster.vote(1, of_2(51)), Some(Ok(())), "the next one is not concerned");
}

#[test]
fn accept_of_a_lower_view_is_refused_and_of_the_same_or_a_higher_one_taken() {
    let mut cluster = Cluster::new(3);
    validate(&mut cluster, 1, of_2(50), &writes());
    cluster.tell(3, 1, Kind::Prepare { id: of_2(50), view: 67 });
    cluster.pool.clear();
    accept(&mut cluster, 1, of_2(50), 0, true, &writes());
    let expected = Kind::Superseded { id: of_2(50), view: 67 };
    assert_eq!(answer(&mut cluster).message().kind, expected);
    assert_eq!(cluster.record(1, of_2(50)).expect("it voted").accepted, None);
    for (view, ok) in [(130, false), (130, false), (194, true)] {
        accept(&mut cluster, 1, of_2(50), view, ok, &writes());
        let expected = Kind::Accepted { id: of_2(50), view };
        assert_eq!(answer(&mut cluster).message().kind, expected);
        let record = cluster.record(1, of_2(50)).expect("it voted");
        assert_eq!((record.view, record.accepted), (view, Some((view, ok))));
    }
    assert_eq!(cluster.vote(1, of_2(50)), Some(Ok(())), "the vote is kept beside it");
}

#[test]
fn accept_without_a_record_brings_the_sets() {
    let mut cluster = Cluster::new(3);
    accept(&mut cluster, 1, of_2(50), 0, true, &writes());
    let expected = Kind::Accepted { id: of_2(50), view: 0 };
    assert_eq!(answer(&mut cluster).message().kind, expected);
    assert!(cluster.pending(1, "k").is_empty(), "what is accepted need not be registered");
    // A late VALIDATE finds it and gets no vote that might complete a fast quorum. Nobody waits for one.
    validate(&mut cluster, 1, of_2(50), &writes());
    assert!(cluster.take(1, 0, "any").is_empty());
    assert_eq!(cluster.ignored["meerkat: VALIDATE of a transaction that has gone on"], 1);
    decided(&mut cluster, 1, of_2(50), true, None);
    assert_eq!(cluster.stored(1, "k").as_deref(), Some("v"));
    accept(&mut cluster, 1, of_2(50), 0, true, &writes());
    let expected = Kind::Decided { id: of_2(50), commit: true, body: None };
    assert_eq!(answer(&mut cluster).message().kind, expected);
}

#[test]
fn decided_again_changes_nothing() {
    let mut cluster = Cluster::new(3);
    validate(&mut cluster, 1, of_2(50), &writes());
    decided(&mut cluster, 1, of_2(50), true, None);
    validate(&mut cluster, 1, of_2(60), &body_bytes(&[("k", None, Some("later"))]));
    decided(&mut cluster, 1, of_2(60), true, None);
    decided(&mut cluster, 1, of_2(50), true, Some(&writes()));
    assert_eq!(cluster.stored(1, "k").as_deref(), Some("later"));
    cluster.tick(MLT);
    let acked = cluster.take(1, 2, "acked").remove(0);
    let Kind::Acked { ids } = acked.message().kind else { panic!("{acked:?}") };
    assert_eq!(ids.len(), 3 * 12, "each was acknowledged");
}

#[test]
fn another_end_of_a_transaction_than_is_known_is_refused() {
    let mut cluster = Cluster::new(3);
    validate(&mut cluster, 1, of_2(50), &writes());
    decided(&mut cluster, 1, of_2(50), true, None);
    let kind = Kind::Decided { id: of_2(50), commit: false, body: None };
    assert_eq!(cluster.lie(2, 1, kind), Some("meerkat: another end than is known here"));
    assert_eq!(cluster.decision(1, of_2(50)), Some(true));
}

#[test]
fn an_abort_before_its_validate_leaves_a_tombstone() {
    let mut cluster = Cluster::new(3);
    decided(&mut cluster, 1, of_2(50), false, None);
    validate(&mut cluster, 1, of_2(50), &writes());
    let expected = Kind::Decided { id: of_2(50), commit: false, body: None };
    assert_eq!(answer(&mut cluster).message().kind, expected);
    assert!(cluster.pending(1, "k").is_empty(), "nobody would ever take it out");
}

#[test]
fn a_commit_before_its_validate_pulls_the_sets() {
    let mut cluster = Cluster::new(3);
    decided(&mut cluster, 1, of_2(50), true, None);
    assert_eq!(answer(&mut cluster).message().kind, Kind::Pull { id: of_2(50) });
    assert_eq!(cluster.decision(1, of_2(50)), None, "not before it is installed");
    // The VALIDATE comes late and must not register what is decided.
    validate(&mut cluster, 1, of_2(50), &writes());
    assert!(cluster.take(1, 0, "any").is_empty());
    assert!(cluster.pending(1, "k").is_empty());
    decided(&mut cluster, 1, of_2(50), true, Some(&writes()));
    assert_eq!(cluster.stored(1, "k").as_deref(), Some("v"));
    assert_eq!(cluster.decision(1, of_2(50)), Some(true));
}

#[test]
fn votes_are_counted_by_replica() {
    let mut cluster = Cluster::new(3);
    let tag = cluster.submit(1, "write=k:v");
    let id = cluster.last_attempt(1);
    for _ in 0..3 {
        cluster.tell(2, 1, Kind::Vote { id, vote: Ok(()) });
    }
    cluster.assert_open(tag);
    cluster.tick(MLT / 2);
    for _ in 0..3 {
        cluster.tell(1 + 1, 1, Kind::Vote { id, vote: Ok(()) });
    }
    cluster.assert_open(tag);
    cluster.tell(2, 1, Kind::Accepted { id, view: 0 });
    cluster.tell(3, 1, Kind::Accepted { id, view: 0 });
    cluster.assert_done(tag);
}

// --- what is left behind ----------------------------------------------------------------------------

#[test]
fn records_go_once_every_replica_knows_the_end() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, "append=k:v");
    let id = cluster.last_attempt(1);
    for node in 1..=3 {
        assert_eq!(cluster.decision(node, id), Some(true), "node {node}");
    }
    // 3's acknowledgement is lost, again and again.
    cluster.run_some(Duration::from_millis(200), |packet| !packet.is(3, 1, "acked"));
    for node in 1..=3 {
        assert_eq!(cluster.decision(node, id), Some(true), "node {node}");
    }
    cluster.run_for(Duration::from_millis(200));
    cluster.assert_quiet();
    assert_eq!(cluster.counter(2, "records_dropped"), 1);
}

#[test]
fn deleted_keys_leave_nothing_once_the_floor_has_passed_them() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, "write=k:v");
    cluster.run(2, "del=k");
    cluster.run(3, "read=absent");
    for node in 1..=3 {
        assert!(cluster.has_record(node, "k"), "the deletion has a version");
    }
    cluster.run_for(Duration::from_millis(3_000));
    for node in 1..=3 {
        assert!(!cluster.has_record(node, "k"), "node {node}");
        assert!(!cluster.has_record(node, "absent"), "node {node}");
    }
    assert_eq!(cluster.run(2, "read=k append=k:again"), [None, None]);
}

#[test]
fn a_deleted_key_stays_while_somebody_may_write_below_it() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, "write=k:v");
    cluster.run_for(Duration::from_millis(300));
    // 2's transaction is open, so no transaction above it counts as ended.
    let open = cluster.submit(2, "write=k:old");
    cluster.take(2, 0, "validate");
    cluster.tick(Duration::from_millis(1));
    cluster.submit(1, "del=k");
    cluster.run_some(Duration::from_millis(90), |packet| {
        packet.from.0 != 2 || packet.is(2, 0, "vote") || packet.is(2, 0, "acked")
    });
    assert!(cluster.has_record(1, "k"));
    assert_eq!(cluster.stored(1, "k"), None);
    cluster.run_for(Duration::from_millis(500));
    cluster.assert_done(open);
    // The older write comes after the deletion and is nothing any more, or was tried anew.
    cluster.run_for(Duration::from_millis(3_000));
    let left = cluster.stored(1, "k");
    cluster.assert_everywhere("k", left.as_deref());
    cluster.assert_quiet();
}

// --- takeovers and joins ----------------------------------------------------------------------------

#[test]
fn a_dead_coordinators_transaction_is_finished_by_others() {
    let mut cluster = Cluster::new(3);
    cluster.submit(1, "write=k:v");
    let id = cluster.last_attempt(1);
    cluster.deliver(1, 2, "validate");
    cluster.deliver(1, 3, "validate");
    cluster.crash(1);
    assert!(!cluster.pending(2, "k").is_empty());
    cluster.run_for(Duration::from_millis(600));
    assert!(cluster.probed("meerkat: decided as a backup") > 0);
    for node in [2, 3] {
        assert_eq!(cluster.decision(node, id), Some(true), "two OKs are a majority");
        assert_eq!(cluster.stored(node, "k").as_deref(), Some("v"));
        assert!(cluster.pending(node, "k").is_empty());
    }
}

#[test]
fn a_dead_coordinators_transaction_that_one_replica_knows_is_aborted() {
    let mut cluster = Cluster::new(3);
    cluster.submit(1, "write=k:v");
    let id = cluster.last_attempt(1);
    cluster.deliver(1, 2, "validate");
    cluster.pool.clear();
    cluster.crash(1);
    cluster.run_for(Duration::from_millis(600));
    for node in [2, 3] {
        assert_eq!(cluster.decision(node, id), Some(false), "node {node}");
        assert!(cluster.pending(node, "k").is_empty());
    }
}

/// However large the records are, each message is one that the nodes' links carry.
#[test]
fn a_joining_replica_copies_large_records() {
    let mut cluster = Cluster::new(3);
    let values = ["a", "b", "c", "d", "e", "f"].map(|byte| byte.repeat(900_000));
    let keys = ["", "1", "2", "3", "4", "5"];
    for (key, value) in keys.iter().zip(&values) {
        cluster.run(1, &format!("write={key}:{value}"));
    }
    for number in 0..300 {
        cluster.run(1, &format!("write=small{number}:1"));
    }
    cluster.run(1, &format!("write=largest:{}", "g".repeat(limits::VALUE_BYTES_MAX)));
    cluster.expel(&[3]);
    cluster.run_for(Duration::from_millis(100));
    cluster.rejoin(3);
    cluster.run_for(Duration::from_millis(300));
    assert!(cluster.machine(3).is_caught_up());
    for (key, value) in keys.iter().zip(&values) {
        assert!(cluster.stored(3, key).as_ref() == Some(value), "{key}");
    }
    for number in 0..300 {
        assert_eq!(cluster.stored(3, &format!("small{number}")).as_deref(), Some("1"));
    }
    assert_eq!(
        cluster.stored(3, "largest").map(|value| value.len()),
        Some(limits::VALUE_BYTES_MAX)
    );
}

/// What a learner asks its donor for while so many timeouts pass.
fn asked_for(cluster: &mut Cluster, kind: &str, timeouts: u32) -> usize {
    for _ in 0..timeouts {
        cluster.advance(MLT);
        cluster.tick_node(3);
    }
    cluster.take(3, 0, kind).len()
}

#[test]
fn a_learner_that_hears_nothing_asks_less_and_less_often() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, "write=k:1");
    cluster.expel(&[3]);
    cluster.run_for(Duration::from_millis(100));
    cluster.rejoin(3);
    cluster.deliver_some(|packet| !packet.is(3, 0, "chunk_read"));
    // At once, and after 5, 15, 35, 55 and 75 timeouts.
    assert_eq!(asked_for(&mut cluster, "chunk_read", 90), 6);
    assert_eq!(asked_for(&mut cluster, "chunk_read", 5), 1);
    // After an answer it asks for what comes next. Which of its questions was answered nobody knows, so it
    // waits for that as long as before.
    asked_for(&mut cluster, "chunk_read", 19);
    cluster.advance(MLT);
    cluster.tick_node(3);
    cluster.deliver(3, 0, "chunk_read");
    cluster.deliver(0, 3, "chunk");
    assert_eq!(asked_for(&mut cluster, "calls_read", 19), 1);
    assert_eq!(asked_for(&mut cluster, "calls_read", 1), 1);
    cluster.run_for(Duration::from_millis(1_000));
    assert!(cluster.machine(3).is_caught_up());
}

#[test]
fn a_coordinator_learns_what_a_backup_has_decided() {
    let mut cluster = Cluster::new(3);
    let tag = cluster.submit(1, "append=k:v");
    let id = cluster.last_attempt(1);
    cluster.deliver(1, 2, "validate");
    cluster.deliver(1, 3, "validate");
    // 1 hears nothing; the others finish it.
    cluster.run_some(Duration::from_millis(400), |packet| packet.to.0 != 1 && packet.from.0 != 1);
    assert_eq!(cluster.decision(2, id), Some(true));
    cluster.assert_open(tag);
    cluster.run_for(Duration::from_millis(300));
    cluster.assert_done(tag);
    assert_eq!(cluster.probed("meerkat: decided by a backup"), 1);
    cluster.assert_quiet();
}

#[test]
fn a_joining_replica_copies_and_hears_of_everything() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, "write=old:1 write=k:1");
    cluster.expel(&[3]);
    cluster.run_for(Duration::from_millis(100));
    cluster.run(1, "append=k:2");
    cluster.rejoin(3);
    // It knows nothing yet, and an update goes past it.
    cluster.deliver_some(|packet| !packet.is(0, 0, "chunk") && !packet.is(0, 0, "chunk_read"));
    assert!(!cluster.machine(3).is_caught_up());
    let tag = cluster.submit(2, "append=k:3 write=new:3");
    cluster.deliver_some(|packet| !packet.is(0, 0, "chunk") && !packet.is(0, 0, "chunk_read"));
    cluster.assert_done(tag);
    assert_eq!(cluster.stored(3, "k").as_deref(), Some("123"), "the end comes with the sets");
    assert_eq!(cluster.stored(3, "old"), None);
    let refused = cluster.submit(3, "read=k");
    assert_eq!(cluster.outcome(refused), Some(&Outcome::Refused(Refusal::NotServing)));
    cluster.run_for(Duration::from_millis(300));
    assert!(cluster.machine(3).is_caught_up());
    cluster.set_role(3, Role::Active);
    cluster.run_for(Duration::from_millis(300));
    for (key, value) in [("old", "1"), ("k", "123"), ("new", "3")] {
        cluster.assert_everywhere(key, Some(value));
    }
    assert_eq!(cluster.run(3, "append=k:4"), [Some("123".to_owned())]);
    cluster.run_for(Duration::from_millis(1_500));
    cluster.assert_quiet();
}

/// A cluster that had a value of k, the value's version, and nothing left of k.
fn with_forgotten_deletion() -> (Cluster, Timestamp) {
    let mut cluster = Cluster::new(3);
    cluster.run(1, "write=k:v");
    let read = cluster.meta(1, "k").wts;
    cluster.run(2, "del=k");
    cluster.run_for(Duration::from_millis(3_000));
    assert!(!cluster.has_record(1, "k"), "the deletion is forgotten");
    (cluster, read)
}

/// A read at a coordinator that was then silent for long.
fn stale_read_is_refused(cluster: &mut Cluster, read: Timestamp) {
    cluster.pool.clear();
    let later = of_2(cluster.now.unix.0 - WALL + 1_000_000_000);
    validate(cluster, 1, later, &body_bytes(&[("k", Some(read), Some("late"))]));
    let refused = vote(cluster).expect_err("k was deleted after that version");
    assert_eq!(refused.reason, Reason::StaleRead);
    assert!(cluster.pending(1, "k").is_empty());
    let only_reads = body_bytes(&[("m", Some(Timestamp::ZERO), None), ("k", Some(read), None)]);
    let body = Body::check(&only_reads).expect("just made");
    cluster.tell(2, 1, Kind::Check { at: later, body });
    match answer(cluster).message().kind {
        Kind::Checked { result: Err(Conflict { reason: Reason::StaleRead, .. }), .. } => {}
        other => panic!("{other:?}"),
    }
    // Who found nothing there finds nothing there still.
    let absent = Timestamp::new(refused.with.version, WriterId(u32::MAX));
    let id = of_2(later.version - WALL + 1);
    validate(cluster, 1, id, &body_bytes(&[("k", Some(absent), Some("late"))]));
    assert_eq!(vote(cluster), Ok(()));
}

#[test]
fn a_deletion_that_is_forgotten_is_noticed_by_who_read_before_it() {
    let (mut cluster, read) = with_forgotten_deletion();
    stale_read_is_refused(&mut cluster, read);
}

#[test]
fn a_copy_without_the_deletion_notices_it_too() {
    let (mut cluster, read) = with_forgotten_deletion();
    cluster.crash(1);
    cluster.expel(&[1]);
    cluster.run_for(Duration::from_millis(300));
    cluster.rejoin(1);
    cluster.run_for(Duration::from_millis(300));
    cluster.set_role(1, Role::Active);
    cluster.deliver_all();
    assert!(cluster.machine(1).is_normal());
    stale_read_is_refused(&mut cluster, read);
}
