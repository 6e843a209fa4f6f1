//! One test for each step of a session's call (`docs/design/006-sessions.md`; P1 to P4 of RIFL).

use quorate_machine::{CallError, Content, Outcome, Refusal, ValueKind};
use quorate_meerkat::{
    Answered, Body, Config, Conflict, Electorate, Groups, Item, Kind, Reason, RecordKey, Records,
    Report, TxnRecord, Vote, Write, merge,
};
use quorate_rifl::{Call, Found, Grant, LeaseEnd, LeaseId, Lost, Permit, Sessions as _, owner_of};
use quorate_types::{
    Duration, Epoch, LaneId, MemberNumber, NodeId, NodeSet, Role, Timestamp, WriterId, limits,
};

use quorate_harness::Logs;

use crate::packets::Packet;
use crate::support::{Cluster, Replicas, WALL};
use crate::txn::{Txn, txn};

/// A date that no attempt of a test reaches.
const FAR: u64 = WALL * 2;

/// A session whose lease member 2 has given out.
fn lease() -> LeaseId {
    LeaseId::new(MemberNumber(2), LaneId(0), 5)
}

fn call(sequence: u64, first_incomplete: u64) -> Call {
    Call { lease: lease(), sequence, first_incomplete, digest: 77 }
}

/// A permit of member `owner` for call `sequence`. The calls below `first_incomplete` are
/// acknowledged.
fn permit(owner: u32, sequence: u64, first_incomplete: u64) -> Permit {
    let grant = Grant { lease: lease(), until: FAR, owner: MemberNumber(owner) };
    Permit { call: call(sequence, first_incomplete), grant, date: 0 }
}

/// What a replica knows of a call.
fn found(cluster: &Cluster, node: u16, call: Call) -> Result<Found<'_, Timestamp>, CallError> {
    cluster.hosts[&node].machine().trackers()[0].find(&call)
}

fn is_known(cluster: &Cluster, node: u16, sequence: u64) -> bool {
    matches!(found(cluster, node, call(sequence, 0)), Ok(Found::Completed(_)))
}

/// A call at a node, and everything that comes of it.
#[track_caller]
fn run(cluster: &mut Cluster, node: u16, permit: Permit, text: &str) -> Vec<Option<String>> {
    let tag = cluster.call_as(node, 900, permit, txn(text));
    cluster.deliver_all();
    cluster.read_by(tag).into_iter().map(|value| value.map(str::to_owned)).collect()
}

fn refusal(cluster: &Cluster, tag: u64) -> Refusal {
    match cluster.outcome(tag) {
        Some(Outcome::Refused(refusal)) => *refusal,
        other => panic!("op {tag}: {other:?}"),
    }
}

/// An id that node 2's coordinator may have used: so many nanoseconds after the start.
fn of_2(nanos: u64) -> Timestamp {
    Timestamp::new(WALL + nanos, WriterId::new(MemberNumber(2), 0))
}

/// The sets of a call that writes a key blindly.
fn writes(call: Call, answer: &[u8]) -> Vec<u8> {
    let content = Content { bytes: b"v", kind: ValueKind::String, expire_at: None };
    let item = Item { key: b"k", base: None, absent: false, write: Some(Write::Set(content)) };
    Body::encode_call(Some(Answered { call, answer }), &[item])
}

/// The vote of node 1 on an attempt of node 2.
#[track_caller]
fn vote(cluster: &mut Cluster, id: Timestamp, call: Call, answer: &[u8]) -> Vote {
    let body = writes(call, answer);
    let body = Body::check(&body).expect("just made");
    cluster.tell(2, 1, Kind::Validate { id, stable: 0, participants: 1, body });
    let votes = cluster.take(1, 2, "vote");
    let Kind::Vote { vote, .. } = votes[0].message().kind else { panic!("{votes:?}") };
    vote
}

fn against(reason: Reason, with: Timestamp) -> Vote {
    Err(Conflict { reason, with })
}

#[test]
fn a_call_tried_again_elsewhere_is_answered_from_its_record() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, "write=k:0");
    let first = run(&mut cluster, 1, permit(2, 0, 0), "append=k:,1");
    assert_eq!(first, [Some("0".to_owned())]);
    for node in [2, 3, 1] {
        assert_eq!(run(&mut cluster, node, permit(2, 0, 0), "append=k:,1"), first);
    }
    cluster.assert_everywhere("k", Some("0,1"));
    assert_eq!(cluster.counter(3, "calls_answered_again"), 1);
}

#[test]
fn p2_an_attempt_that_fails_acknowledges_nothing() {
    let mut cluster = Cluster::new(3);
    run(&mut cluster, 1, permit(2, 0, 0), "write=k:1");
    // The replicas hear of an attempt at call 1 that says "all below 1", and not of its end.
    assert_eq!(vote(&mut cluster, of_2(90_000_000), call(1, 1), b""), Ok(()));
    assert!(is_known(&cluster, 1, 0));
    cluster.tell(2, 1, Kind::Decided { id: of_2(90_000_000), commit: false, body: None });
    assert!(is_known(&cluster, 1, 0));
    assert_eq!(found(&cluster, 1, call(1, 0)), Ok(Found::New), "and the mark is gone");
}

#[test]
fn p3_a_call_that_came_to_nothing_gets_the_same_answer_again() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, "write=k:taken");
    let text = "unless=k write=j:1";
    assert!(run(&mut cluster, 1, permit(2, 0, 0), text).is_empty());
    cluster.run(1, "del=k");
    assert!(run(&mut cluster, 2, permit(2, 0, 0), text).is_empty());
    cluster.assert_everywhere("j", None);
    for node in 1..=3 {
        assert!(is_known(&cluster, node, 0), "at {node}");
    }
    // Another call does what this one might have.
    run(&mut cluster, 2, permit(2, 1, 1), text);
    cluster.assert_everywhere("j", Some("1"));
}

#[test]
fn of_two_attempts_at_once_one_takes_effect() {
    let mut cluster = Cluster::new(3);
    let at_1 = cluster.call_as(1, 900, permit(2, 0, 0), txn("append=k:x"));
    let at_3 = cluster.call_as(3, 900, permit(2, 0, 0), txn("append=k:x"));
    cluster.deliver(1, 2, "validate");
    cluster.deliver(3, 2, "validate");
    cluster.run_for(Duration::from_millis(500));
    cluster.assert_done(at_1);
    cluster.assert_done(at_3);
    assert_eq!(cluster.outcome(at_1), cluster.outcome(at_3));
    cluster.assert_everywhere("k", Some("x"));
}

#[test]
fn a_replica_refuses_what_it_knows_or_may_have_forgotten() {
    let mut cluster = Cluster::new(3);
    let now = 90_000_000;
    assert_eq!(vote(&mut cluster, of_2(now), call(0, 0), b"+"), Ok(()));
    let again = vote(&mut cluster, of_2(now + 1), call(0, 0), b"+");
    assert_eq!(again, against(Reason::CallInProgress, of_2(now)));
    cluster.tell(2, 1, Kind::Decided { id: of_2(now), commit: true, body: None });
    assert_eq!(found(&cluster, 1, call(0, 0)), Ok(Found::Completed(b"+")), "with the effect");
    assert_eq!(cluster.stored(1, "k").as_deref(), Some("v"));
    let known = against(Reason::CallKnown, Timestamp::ZERO);
    assert_eq!(vote(&mut cluster, of_2(now + 2), call(0, 0), b"+"), known);
    let other = Call { digest: 78, ..call(0, 0) };
    assert_eq!(vote(&mut cluster, of_2(now + 3), other, b"+"), known, "another command");
    // Its lease ended at a later moment: an attempt from before that moment begins again.
    let over = of_2(now + 1_000).version;
    let verdict = LeaseEnd { lease: lease(), lost: Lost::Expired, granted: over };
    cluster.machine(1).end_session(&verdict);
    let late = vote(&mut cluster, of_2(now + 4), call(0, 0), b"+");
    assert_eq!(late, against(Reason::CallForgotten, of_2(now + 1_000)));
}

#[test]
fn a_session_holds_a_bounded_number_of_bytes() {
    let mut cluster = Cluster::new(3);
    let big = vec![b'x'; limits::SESSION_ANSWER_BYTES_MAX / 2];
    for sequence in 0..2 {
        let id = of_2(90_000_000 + sequence);
        assert_eq!(vote(&mut cluster, id, call(sequence, 0), &big), Ok(()));
        cluster.tell(2, 1, Kind::Decided { id, commit: true, body: None });
    }
    let id = of_2(90_000_100);
    assert_eq!(vote(&mut cluster, id, call(2, 0), &big), against(Reason::SessionFull, id));
    let id = of_2(90_000_101);
    assert_eq!(vote(&mut cluster, id, call(2, 0), b"short"), Ok(()), "its share of the window");
}

#[test]
fn a_closed_session_has_no_calls() {
    let mut cluster = Cluster::new(3);
    run(&mut cluster, 1, permit(2, 0, 0), "write=k:1");
    let verdict = LeaseEnd { lease: lease(), lost: Lost::Closed, granted: 0 };
    // Node 1 has not heard of it yet.
    for node in [2, 3] {
        cluster.machine(node).end_session(&verdict);
    }
    for node in [1, 2] {
        let tag = cluster.call_as(node, 900, permit(2, 1, 0), txn("write=k:2"));
        cluster.run_for(Duration::from_millis(50));
        assert_eq!(refusal(&cluster, tag), Refusal::CallError(CallError::Closed), "at {node}");
    }
    cluster.assert_everywhere("k", Some("1"));
}

#[test]
fn a_call_beyond_its_grant_is_not_attempted() {
    let mut cluster = Cluster::new(3);
    let short = Permit { grant: Grant { until: 5, ..permit(2, 0, 0).grant }, ..permit(2, 0, 0) };
    // And the grant of somebody who is not the owner counts for nothing.
    for wrong in [short, permit(3, 0, 0)] {
        let tag = cluster.call_as(1, 900, wrong, txn("write=k:1"));
        assert_eq!(refusal(&cluster, tag), Refusal::LeaseNeeded);
        assert!(cluster.take(1, 0, "validate").is_empty());
    }
}

#[test]
fn improper_calls_are_refused_each_in_its_own_way() {
    let mut cluster = Cluster::new(3);
    for sequence in 0..3 {
        run(&mut cluster, 1, permit(2, sequence, sequence), "append=k:x");
    }
    let far = limits::SESSION_WINDOW;
    let different = Permit { call: Call { digest: 1, ..call(2, 2) }, ..permit(2, 2, 2) };
    for (permit, why) in [
        (permit(2, 0, 2), CallError::Stale),
        (permit(2, 1, 0), CallError::Stale),
        (permit(2, 2 + far, 2), CallError::BeyondWindow),
        (different, CallError::Different),
    ] {
        let tag = cluster.call_as(3, 900, permit, txn("append=k:y"));
        assert_eq!(refusal(&cluster, tag), Refusal::CallError(why));
    }
    cluster.assert_everywhere("k", Some("xxx"));
    assert!(cluster.pool.is_empty(), "nobody was asked");
}

#[test]
fn what_an_epoch_change_settles_leaves_its_record() {
    let mut cluster = Cluster::new(3);
    cluster.call_as(1, 900, permit(2, 0, 0), txn("append=k:x"));
    cluster.deliver(1, 2, "validate");
    cluster.deliver(1, 3, "validate");
    // Everybody has said OK; the coordinator dies before it hears of it.
    cluster.expel(&[1]);
    cluster.deliver_all();
    for node in [2, 3] {
        assert!(is_known(&cluster, node, 0), "at {node}");
    }
    run(&mut cluster, 3, permit(2, 0, 0), "append=k:x");
    cluster.assert_everywhere("k", Some("x"));
}

#[test]
fn what_a_backup_decides_leaves_its_record() {
    let mut cluster = Cluster::new(3);
    cluster.call_as(1, 900, permit(2, 0, 0), txn("append=k:x"));
    cluster.deliver(1, 2, "validate");
    cluster.deliver(1, 3, "validate");
    cluster.pool.clear();
    cluster.crash(1);
    cluster.run_some(Duration::from_millis(700), |packet| packet.from.0 != 1 && packet.to.0 != 1);
    for node in [2, 3] {
        assert!(is_known(&cluster, node, 0), "at {node}");
    }
}

/// Node 1 has no replica of this key's partition, so that no replica may know of its attempt.
fn away(cluster: &Cluster) -> String {
    let mut keys = (0..).map(|n| format!("k{n}"));
    keys.find(|key| !cluster.holds(1, key)).expect("half of all keys are away")
}

pub(crate) fn two_partitions(config: &mut Config) {
    let group = |nodes: [u16; 3]| Some(nodes.into_iter().map(NodeId).collect());
    config.partitions = vec![group([1, 2, 3]), group([3, 4, 5])];
}

#[test]
fn an_attempt_that_nobody_knew_ends_with_its_grant() {
    let mut cluster = Cluster::with(5, two_partitions);
    let key = away(&cluster);
    let text = format!("write={key}:x");
    let tag = cluster.call_as(1, 900, permit(2, 0, 0), txn(&text));
    cluster.deliver_some(|packet| packet.kind() == "find" || packet.kind() == "found");
    let attempt = cluster.last_attempt(1);
    cluster.pool.clear();
    // Member 2 gave the grant out; its leases belong to member 1 from now on.
    cluster.expel(&[2]);
    cluster.run_for(Duration::from_millis(100));
    assert_eq!(cluster.subject.ledger.ends.get(&attempt), Some(&false));
    assert_eq!(refusal(&cluster, tag), Refusal::LeaseNeeded);
    let tag = cluster.call_as(4, 900, permit(1, 0, 0), txn(&text));
    cluster.run_for(Duration::from_millis(1_300));
    cluster.assert_done(tag);
    assert_eq!(cluster.stored(5, &key).as_deref(), Some("x"));
    cluster.assert_quiet();
}

/// No replica answers what is known of a call until its client has given up.
#[test]
fn a_question_ends_with_the_op_that_asked_it() {
    let mut cluster = Cluster::with(5, two_partitions);
    let key = away(&cluster);
    let tag = cluster.call_as(1, 900, permit(2, 0, 0), txn(&format!("write={key}:x")));
    cluster.run_some(Duration::from_millis(2_500), |packet| packet.kind() != "find");
    assert_eq!(refusal(&cluster, tag), Refusal::TimedOut);
    cluster.pool.clear();
    cluster.assert_quiet();
    assert!(cluster.machine(1).gauges().contains(&("attempts", 0)));
}

#[test]
fn an_attempt_that_nobody_knew_goes_on_under_its_grant() {
    let mut cluster = Cluster::with(5, two_partitions);
    let key = away(&cluster);
    let tag = cluster.call_as(1, 900, permit(2, 0, 0), txn(&format!("write={key}:x")));
    cluster.deliver_some(|packet| packet.kind() == "find" || packet.kind() == "found");
    let attempt = cluster.last_attempt(1);
    cluster.pool.clear();
    cluster.expel(&[5]);
    cluster.run_for(Duration::from_millis(1_300));
    cluster.assert_done(tag);
    assert_eq!(cluster.subject.ledger.ends.get(&attempt), Some(&true));
    cluster.assert_quiet();
}

#[test]
fn p1_a_joining_replica_gets_records_and_watermarks() {
    let mut cluster = Cluster::new(3);
    cluster.crash(3);
    cluster.expel(&[3]);
    cluster.deliver_all();
    for sequence in 0..3 {
        run(&mut cluster, 1, permit(2, sequence, sequence), "append=k:x");
    }
    // All replicas know the end: no epoch change tells node 3 of the call.
    cluster.run_for(Duration::from_millis(1_300));
    cluster.rejoin(3);
    cluster.run_for(Duration::from_millis(300));
    assert!(cluster.machine(3).is_caught_up());
    assert_eq!(found(&cluster, 3, call(1, 0)), Err(CallError::Stale));
    assert!(is_known(&cluster, 3, 2));
    cluster.set_role(3, Role::Active);
    cluster.run_for(Duration::from_millis(300));
    run(&mut cluster, 3, permit(2, 2, 0), "append=k:x");
    cluster.assert_everywhere("k", Some("xxx"));
}

/// Node 3 has nothing left to copy but records of calls, which are under way when it hears of a session for the
/// first time, and takes a snapshot then. When all power is lost afterwards, it is active as soon as it is back,
/// and has no copy to come to the end of.
#[test]
fn what_a_snapshot_says_of_a_copy_ends_with_the_copy() {
    let replicas = Replicas { logs: Logs::Sync, ..Replicas::new(1, |_| {}) };
    let mut cluster = Cluster::of(replicas, 3, |_| 0, u64::from);
    cluster.cut_power_unflushed(3);
    cluster.set_role(3, Role::Down);
    cluster.deliver_all();
    cluster.run(1, "write=k:x");
    cluster.restart(3, 77);
    cluster.set_role(3, Role::Shadow);
    let waits = |packet: &Packet| packet.is(0, 3, "calls");
    cluster.deliver_some(|packet| !waits(packet));
    assert!(cluster.pool.iter().any(waits), "they were told before the session began");
    let tag = cluster.call_as(1, 900, permit(2, 0, 0), txn("append=k:x"));
    cluster.deliver_some(|packet| !waits(packet));
    assert_eq!(cluster.read_by(tag), [Some("x")]);
    cluster.save(3, 0);
    cluster.deliver_all();
    assert!(cluster.machine(3).is_caught_up());
    cluster.set_role(3, Role::Active);
    cluster.run_for(Duration::from_millis(300));
    for node in 1..=3 {
        cluster.cut_power_unflushed(node);
        cluster.restart(node, 100 + u64::from(node));
    }
    cluster.renew_view();
    cluster.run_for(Duration::from_millis(300));
    let owner = owner_of(&cluster.view, lease()).expect("somebody keeps it").number;
    run(&mut cluster, 3, permit(owner.0, 1, 1), "append=k:x");
    cluster.assert_everywhere("k", Some("xxx"));
}

#[test]
fn a_session_that_no_message_could_carry_is_copied_in_parts() {
    let mut cluster = Cluster::new(3);
    cluster.expel(&[3]);
    cluster.deliver_all();
    // Six answers of more than a mebibyte each; messages are checked when they are sent.
    let value = "x".repeat(1024 * 1024 + 9);
    cluster.run(1, &format!("write=k:{value}"));
    for sequence in 0..6 {
        run(&mut cluster, 1, permit(2, sequence, 0), "append=k:y");
    }
    cluster.run_for(Duration::from_millis(1_300));
    cluster.rejoin(3);
    cluster.run_for(Duration::from_millis(500));
    assert!(cluster.machine(3).is_caught_up());
    for sequence in 0..6 {
        assert_eq!(
            found(&cluster, 3, call(sequence, 0)),
            found(&cluster, 1, call(sequence, 0)),
            "call {sequence}"
        );
    }
}

#[test]
fn a_refusal_after_another_attempt_tells_nothing() {
    let mut cluster = Cluster::new(3);
    // An attempt that was begun at node 2 is known at node 1, and its end never comes.
    assert_eq!(vote(&mut cluster, of_2(1), call(0, 0), b"+"), Ok(()));
    let tag = cluster.call_as(1, 900, permit(2, 0, 0), txn("write=k:1"));
    cluster.run_some(Duration::from_millis(2_100), |_| false);
    assert_eq!(cluster.outcome(tag), Some(&Outcome::Unknown));
}

#[test]
fn a_node_without_the_home_partition_asks_one_that_has_it() {
    let mut cluster = Cluster::with(5, two_partitions);
    let away = away(&cluster);
    let text = format!("append={away}:x");
    for node in [1, 1, 4, 2] {
        let tag = cluster.call_as(node, 900, permit(2, 0, 0), txn(&text));
        cluster.deliver_all();
        cluster.assert_done(tag);
    }
    assert_eq!(cluster.stored(4, &away).as_deref(), Some("x"));
    let late = cluster.call_as(
        1,
        900,
        Permit { call: Call { digest: 1, ..call(0, 0) }, ..permit(2, 0, 0) },
        txn(&text),
    );
    cluster.deliver_all();
    assert_eq!(refusal(&cluster, late), Refusal::CallError(CallError::Different));
}

#[test]
fn a_call_of_keys_that_it_does_not_touch_has_one_home() {
    let mut cluster = Cluster::with(3, |config| config.partitions = vec![None, None]);
    let partition = |key: &str| quorate_types::partition_of(key.as_bytes(), 2);
    let names: Vec<String> = (0..40).map(|n| format!("k{n}")).collect();
    let hash = |key: &String| quorate_types::hash_key(key.as_bytes());
    // The home is the partition of the smaller hash, and that key may be skipped.
    let pair = names.iter().flat_map(|a| names.iter().map(move |b| (a, b)));
    let (guard, home) = { pair }
        .find(|(a, b)| hash(b) < hash(a) && partition(a) != partition(b))
        .expect("some of so many");
    cluster.run(1, &format!("write={guard}:1"));
    let text = format!("unless={guard} write={home}:2");
    assert!(run(&mut cluster, 1, permit(2, 0, 0), &text).is_empty());
    let record = &cluster.hosts[&3].machine().trackers()[usize::from(partition(home))];
    assert!(matches!(record.find(&call(0, 0)), Ok(Found::Completed(_))));
    cluster.run(1, &format!("del={guard}"));
    assert!(run(&mut cluster, 2, permit(2, 0, 0), &text).is_empty());
    assert_eq!(cluster.stored(1, home), None);
}

#[test]
fn a_merge_commits_one_attempt_at_a_call() {
    // Blind writes conflict at no key. One is known to have committed; the other may have been
    // decided fast by replicas that are gone, if nothing spoke against it.
    let nodes: NodeSet = (1..=5).map(NodeId).collect();
    let report = |records| Report {
        last_normal: Epoch(4),
        electorate: Electorate { voters: nodes, active: nodes },
        records,
        ..Report::default()
    };
    let record = |call: Call| TxnRecord {
        participants: 1,
        body: writes(call, b"+"),
        vote: Some(Ok(())),
        ..TxnRecord::default()
    };
    let key = |id: Timestamp| RecordKey::new(id, 0);
    for (other, commits) in [(call(0, 0), false), (call(1, 0), true)] {
        let known = TxnRecord { decision: Some(true), ..record(call(0, 0)) };
        let maybe = || Records::from([(key(of_2(9)), record(other))]);
        let reports = [
            (NodeId(1), report(Records::from([(key(of_2(5)), known)]))),
            (NodeId(2), report(maybe())),
            (NodeId(3), report(maybe())),
        ];
        let groups = Groups { replicas: &[None], unanimous: false, lost: 0 };
        let merged = merge(&reports.into(), groups).expect("three of five are enough");
        assert!(merged.settled[&key(of_2(5))].commit);
        assert_eq!(merged.settled[&key(of_2(9))].commit, commits, "{other:?}");
    }
}

#[test]
fn what_is_only_read_leaves_no_record() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, "write=k:1");
    assert_eq!(run(&mut cluster, 1, permit(2, 0, 0), "read=k"), [Some("1".to_owned())]);
    let read: Txn = txn("read=k");
    assert_eq!(found(&cluster, 1, call(0, 0)), Ok(Found::New), "{read}");
}
