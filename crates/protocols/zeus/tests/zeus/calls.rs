//! Calls of sessions: one test for each place at which a call may be tried again. P1 to P4 are the
//! pitfalls of RIFL's core (`docs/design/006-sessions.md`). With three nodes `y` belongs to 1, 2, 3 in
//! this order, and `k` to 2, 3, 1; with four nodes and two replicas `d` belongs to 2, 3, and `c` to 1, 4.

use quorate_machine::{CallError, Outcome, Refusal};
use quorate_rifl::{Call, Grant, LeaseEnd, LeaseId, Lost, Permit, Sessions as _};
use quorate_types::{Duration, LaneId, MemberNumber, Role, hash_key, lane_of_key};

use crate::support::{Cluster, MLT, Replicas, WALL};
use crate::txn::txn;

/// A date that no attempt of a test reaches.
const FAR: u64 = WALL * 2;

fn lease() -> LeaseId {
    LeaseId::new(MemberNumber(2), LaneId(0), 5)
}

fn named(sequence: u64, first_incomplete: u64) -> Call {
    Call { lease: lease(), sequence, first_incomplete, digest: 77 }
}

/// A permit of member 2; the client has the answers of all calls below `first_incomplete`.
pub(crate) fn permit(sequence: u64, first_incomplete: u64) -> Permit {
    let grant = Grant { lease: lease(), until: FAR, owner: MemberNumber(2) };
    Permit { call: named(sequence, first_incomplete), grant, date: FAR }
}

/// Four nodes with two replicas of each key.
fn pairs() -> Cluster {
    let replicas = Replicas { replicas: Some(2), ..Replicas::default() };
    Cluster::of(replicas, 4, |_| 0, u64::from)
}

/// A call at a node, and everything that comes of it.
#[track_caller]
fn run(cluster: &mut Cluster, node: u16, permit: Permit, text: &str) -> Vec<Option<String>> {
    let tag = cluster.call(node, permit, text);
    cluster.deliver_all();
    cluster.read_by(tag).into_iter().map(|value| value.map(str::to_owned)).collect()
}

fn refusal(cluster: &Cluster, tag: u64) -> Refusal {
    match cluster.outcome(tag) {
        Some(Outcome::Refused(refusal)) => *refusal,
        other => panic!("op {tag}: {other:?}"),
    }
}

/// The members of a key's group that have the record of a call.
fn recorded(cluster: &Cluster, home: &str, call: &Call) -> Vec<u16> {
    let group = cluster.group(home).into_iter();
    group.filter(|node| cluster.record_of(*node, home, call).is_some()).collect()
}

fn value(text: &str) -> Vec<Option<String>> {
    vec![Some(text.to_owned())]
}

#[test]
fn a_call_tried_again_anywhere_is_answered_from_its_record() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, "write=y:0");
    assert_eq!(run(&mut cluster, 1, permit(0, 0), "append=y:,1"), value("0"));
    assert_eq!(recorded(&cluster, "y", &named(0, 0)), [1, 2, 3]);
    for node in [1, 2, 3, 1] {
        assert_eq!(run(&mut cluster, node, permit(0, 0), "append=y:,1"), value("0"));
        assert_eq!(cluster.writers("y"), [node], "the key comes to where the call is tried");
    }
    assert_eq!(cluster.run(3, "read=y"), value("0,1"));
}

#[test]
fn a_retry_at_the_same_node_waits_for_the_attempt_under_way() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, "write=y:0");
    let first = cluster.call(1, permit(0, 0), "append=y:,1");
    let again = cluster.call(1, permit(0, 0), "append=y:,1");
    cluster.assert_open(again);
    cluster.deliver_all();
    assert_eq!(cluster.read_by(first), [Some("0")]);
    assert_eq!(cluster.outcome(first), cluster.outcome(again));
    assert_eq!(cluster.run(2, "read=y"), value("0,1"));
}

#[test]
fn a_retry_elsewhere_waits_for_the_attempt_under_way() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, "write=y:0");
    let first = cluster.call(1, permit(0, 0), "append=y:,1");
    let again = cluster.call(3, permit(0, 0), "append=y:,1");
    // It does not get the key before all have the record.
    cluster.deliver_some(|packet| packet.kind() != "r-inv");
    cluster.assert_open(again);
    cluster.deliver_all();
    assert_eq!(cluster.outcome(first), cluster.outcome(again));
    assert_eq!(cluster.run(2, "read=y"), value("0,1"));
}

#[test]
fn a_record_that_is_not_known_to_be_committed_counts_for_the_next_owner() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, "write=y:0");
    let first = cluster.call(1, permit(0, 0), "append=y:,1");
    cluster.deliver_some(|packet| packet.kind() != "r-val");
    cluster.pool.clear();
    assert_eq!(recorded(&cluster, "y", &named(0, 0)), [1], "nobody else knows that it is");
    let again = cluster.call(3, permit(0, 0), "append=y:,1");
    cluster.deliver_all();
    assert_eq!(cluster.outcome(first), cluster.outcome(again));
    assert_eq!(cluster.run(3, "read=y"), value("0,1"));
}

#[test]
fn a_retry_after_its_owner_has_died_finds_the_record() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, "write=y:0");
    assert_eq!(run(&mut cluster, 1, permit(0, 0), "append=y:,1"), value("0"));
    cluster.crash(1);
    cluster.set_role(1, Role::Down);
    cluster.deliver_all();
    for node in [2, 3] {
        assert_eq!(run(&mut cluster, node, permit(0, 0), "append=y:,1"), value("0"));
    }
    assert_eq!(cluster.run(3, "read=y"), value("0,1"));
}

#[test]
fn a_retry_after_the_coordinator_has_died_waits_for_its_replay() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, "write=y:0");
    cluster.call(1, permit(0, 0), "append=y:,1");
    cluster.deliver(1, 3, "r-inv");
    cluster.crash(1);
    cluster.pool.clear();
    let again = cluster.call(2, permit(0, 0), "append=y:,1");
    cluster.set_role(1, Role::Down);
    cluster.deliver_some(|packet| packet.kind() != "r-inv");
    cluster.assert_open(again);
    cluster.deliver_all();
    assert_eq!(cluster.read_by(again), [Some("0")], "as the dead coordinator would have said");
    assert_eq!(cluster.run(3, "read=y"), value("0,1"));
    assert_eq!(recorded(&cluster, "y", &named(0, 0)), [2, 3]);
}

#[test]
fn an_attempt_that_nobody_has_heard_of_is_gone_and_its_record_too() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, "write=y:0");
    cluster.call(1, permit(0, 0), "append=y:,1");
    cluster.crash(1);
    cluster.pool.clear();
    cluster.set_role(1, Role::Down);
    cluster.deliver_all();
    assert_eq!(run(&mut cluster, 3, permit(0, 0), "append=y:,1"), value("0"));
    assert_eq!(cluster.run(2, "read=y"), value("0,1"));
}

#[test]
fn an_owner_outside_the_group_asks_a_member_of_it() {
    let mut cluster = pairs();
    cluster.run(2, "write=d:0");
    assert_eq!(run(&mut cluster, 1, permit(0, 0), "append=d:,1"), value("0"));
    assert_eq!(recorded(&cluster, "d", &named(0, 0)), [2, 3]);
    assert_eq!(cluster.writers("d"), [1]);
    let shard = quorate_types::placement::shard_of(b"d") as u8;
    assert!(cluster.machine(1).tracker(shard).is_none(), "node 1 keeps no records of the group");
    for node in [1, 4, 3, 1] {
        assert_eq!(run(&mut cluster, node, permit(0, 0), "append=d:,1"), value("0"));
    }
    assert_eq!(cluster.run(2, "read=d"), value("0,1"));
    // The question is put again if it, or its answer, is lost.
    let again = cluster.call(1, permit(0, 0), "append=d:,1");
    cluster.deliver_some(|packet| packet.kind() != "find");
    cluster.pool.clear();
    cluster.run_for(MLT * 2);
    assert_eq!(cluster.read_by(again), [Some("0")]);
}

/// Four nodes with two replicas of each key; what node 1 begins is younger than what others do.
fn late_node_1() -> Cluster {
    let ahead = |node| if node == 1 { 1_000_000_000 } else { 0 };
    let replicas = Replicas { replicas: Some(2), ..Replicas::default() };
    Cluster::of(replicas, 4, ahead, u64::from)
}

#[test]
fn what_a_group_says_counts_only_if_the_key_has_not_moved() {
    let mut cluster = late_node_1();
    cluster.run(1, "write=d:0");
    // Node 1 owns the key and asks the group. An older transaction takes the key away, and node 4
    // carries the call out. One member of the group has the record.
    let first = cluster.call(1, permit(0, 0), "append=d:,1");
    let question = cluster.pool.iter().position(|packet| packet.kind() == "find");
    let question = cluster.pool.remove(question.expect("node 1 asks the group"));
    let elsewhere = cluster.call(4, permit(0, 0), "append=d:,1");
    let member = question.to.0;
    cluster.deliver_some(|packet| packet.kind() != "r-inv" && packet.from.0 != 1);
    cluster.deliver_some(|packet| {
        packet.from.0 != 1 && (packet.kind() != "r-inv" || packet.to.0 == member)
    });
    cluster.deliver_some(|packet| packet.kind() != "r-inv" && packet.from.0 == 1);
    cluster.deliver_some(|packet| packet.kind() != "r-inv" || packet.to.0 == member);
    cluster.inject(&question);
    cluster.assert_open(elsewhere);
    cluster.deliver_some(|packet| packet.kind() != "r-inv");
    cluster.assert_open(first);
    cluster.run_for(MLT * 5);
    assert_eq!(cluster.read_by(elsewhere), [Some("0")]);
    assert_eq!(cluster.read_by(first), [Some("0")]);
    assert_eq!(cluster.run(2, "read=d"), value("0,1"));
}

#[test]
fn a_call_is_asked_about_again_once_its_home_has_moved() {
    let mut cluster = late_node_1();
    let (home, other) = if hash_key(b"c") < hash_key(b"d") { ("c", "d") } else { ("d", "c") };
    let outside = [1, 2, 3, 4].into_iter().find(|node| !cluster.group(home).contains(node));
    let outside = outside.expect("two nodes keep each key");
    let ahead = quorate_harness::Clock { ahead: 2_000_000_000, ..Default::default() };
    cluster.set_clock(outside, ahead);
    cluster.run(outside, &format!("write={home}:0 write={other}:0"));
    // The answer finds the node without the other key, which an older transaction has taken away.
    let text = format!("append={home}:,1 append={other}:,1");
    let first = cluster.call(outside, permit(0, 0), &text);
    cluster.deliver_some(|packet| packet.kind() == "find");
    let elder = cluster.group(home)[0];
    let taken = cluster.submit(elder, &format!("append={other}:,2"));
    cluster.deliver_some(|packet| packet.kind() != "found");
    cluster.read_by(taken);
    cluster.assert_open(first);
    let elsewhere = cluster.call(elder, permit(0, 0), &text);
    cluster.deliver_some(|packet| packet.kind() == "found");
    cluster.run_for(MLT * 20);
    assert_eq!(cluster.outcome(first), cluster.outcome(elsewhere));
    assert_eq!(cluster.run(elder, &format!("read={home}")), value("0,1"));
}

#[test]
fn of_two_tries_at_one_owner_outside_the_group_one_takes_effect() {
    let mut cluster = pairs();
    cluster.run(1, "write=d:0");
    let tries = [0, 1].map(|_| cluster.call(1, permit(0, 0), "append=d:,1"));
    cluster.deliver_all();
    assert_eq!(cluster.read_by(tries[0]), [Some("0")]);
    assert_eq!(cluster.outcome(tries[0]), cluster.outcome(tries[1]));
    assert_eq!(cluster.run(2, "read=d"), value("0,1"));
}

#[test]
fn a_call_goes_to_the_group_of_its_home_whatever_it_writes() {
    let mut cluster = pairs();
    // `c` belongs to 1, 4, and only one of them is written.
    let (home, other) = if hash_key(b"c") < hash_key(b"d") { ("c", "d") } else { ("d", "c") };
    let node = cluster.group(other)[0];
    run(&mut cluster, node, permit(0, 0), &format!("read={home} write={other}:1"));
    assert_eq!(recorded(&cluster, home, &named(0, 0)), cluster.group(home));
    assert_eq!(recorded(&cluster, other, &named(0, 0)), [0; 0]);
    let reply = run(&mut cluster, node, permit(1, 1), &format!("read={home} write={other}:2"));
    assert_eq!(reply, [None]);
    cluster.run(node, &format!("write={home}:late"));
    let text = format!("read={home} write={other}:2");
    let member = cluster.group(home)[1];
    assert_eq!(run(&mut cluster, member, permit(1, 1), &text), [None]);
}

#[test]
fn p1_watermarks_and_records_are_copied() {
    let mut cluster = Cluster::new(3);
    for sequence in 0..3 {
        run(&mut cluster, 1, permit(sequence, 0), &format!("append=y:,{sequence}"));
    }
    run(&mut cluster, 1, permit(3, 2), "append=y:,3");
    cluster.crash(3);
    cluster.set_role(3, Role::Down);
    cluster.deliver_all();
    cluster.start(3, 33);
    cluster.set_role(3, Role::Shadow);
    cluster.deliver_all();
    assert!(cluster.is_caught_up(3));
    cluster.set_role(3, Role::Active);
    cluster.deliver_all();
    assert_eq!(run(&mut cluster, 3, permit(2, 0), "append=y:,2"), value(",0,1"));
    let stale = cluster.call(3, permit(1, 0), "append=y:,1");
    cluster.deliver_all();
    assert_eq!(refusal(&cluster, stale), Refusal::CallError(CallError::Stale));
    assert_eq!(cluster.run(3, "read=y"), value(",0,1,2,3"));
}

#[test]
fn a_replica_that_joins_gets_records_that_its_donor_does_not_know_to_be_committed() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, "write=y:0");
    cluster.crash(3);
    cluster.set_role(3, Role::Down);
    cluster.deliver_all();
    // Node 2, which will be the donor once node 1 is gone, has applied the call. No R-VAL reaches it.
    let call = cluster.call(1, permit(0, 0), "append=y:,1");
    cluster.deliver(1, 2, "r-inv");
    cluster.deliver(2, 1, "r-ack");
    assert_eq!(cluster.read_by(call), [Some("0")]);
    cluster.pool.clear();
    cluster.start(3, 33);
    cluster.set_role(3, Role::Shadow);
    cluster.deliver_all();
    cluster.run_for(MLT * 20);
    cluster.set_role(3, Role::Active);
    cluster.deliver_all();
    assert_eq!(recorded(&cluster, "y", &named(0, 0)), [1, 2, 3]);
    assert_eq!(run(&mut cluster, 3, permit(0, 0), "append=y:,1"), value("0"));
}

#[test]
fn a_learner_that_becomes_the_default_owner_knows_the_calls_of_its_group() {
    // With two replicas `b` belongs to 2, 1 of four nodes, and to 2, 5 of five.
    let replicas = Replicas { replicas: Some(2), ..Replicas::default() };
    let mut cluster = Cluster::with_spares(replicas, 4, 1, |_| 0, u64::from);
    cluster.run(2, "write=b:0");
    assert_eq!(run(&mut cluster, 2, permit(0, 0), "append=b:,1"), value("0"));
    cluster.set_role(5, Role::Shadow);
    cluster.deliver_all();
    cluster.set_role(5, Role::Active);
    cluster.deliver_all();
    // One more while it learns the group, and a retry at the learner itself.
    assert_eq!(run(&mut cluster, 2, permit(1, 1), "append=b:,2"), value("0,1"));
    assert_eq!(run(&mut cluster, 5, permit(1, 1), "append=b:,2"), value("0,1"));
    cluster.place();
    cluster.run_for(MLT * 10);
    assert_eq!(cluster.group("b"), [2, 5]);
    let shard = quorate_types::placement::shard_of(b"b") as u8;
    assert!(cluster.machine(1).tracker(shard).is_none(), "who leaves the group forgets its calls");
    cluster.crash(2);
    cluster.set_role(2, Role::Down);
    cluster.run_for(MLT * 10);
    let again = permit_of(&cluster, 1, 1);
    assert_eq!(run(&mut cluster, 5, again, "append=b:,2"), value("0,1"));
    assert_eq!(run(&mut cluster, 4, again, "append=b:,2"), value("0,1"));
    assert_eq!(cluster.run(5, "read=b"), value("0,1,2"));
}

/// A permit of the lease's owner in the latest view.
fn permit_of(cluster: &Cluster, sequence: u64, first_incomplete: u64) -> Permit {
    let owner = quorate_rifl::owner_of(&cluster.view, lease()).expect("somebody is active").number;
    let permit = permit(sequence, first_incomplete);
    Permit { grant: Grant { owner, ..permit.grant }, ..permit }
}

#[test]
fn p2_a_call_acknowledges_when_it_is_committed() {
    let mut cluster = Cluster::new(3);
    run(&mut cluster, 1, permit(0, 0), "append=y:,0");
    cluster.call(1, permit(1, 1), "append=y:,1");
    cluster.deliver(1, 2, "r-inv");
    assert_eq!(recorded(&cluster, "y", &named(0, 0)), [1, 2, 3]);
    cluster.deliver_all();
    assert_eq!(recorded(&cluster, "y", &named(0, 0)), [0; 0]);
    let stale = cluster.call(2, permit(0, 0), "append=y:,0");
    cluster.deliver_all();
    assert_eq!(refusal(&cluster, stale), Refusal::CallError(CallError::Stale));
    assert_eq!(cluster.run(3, "read=y"), value(",0,1"));
}

#[test]
fn p3_a_call_that_comes_to_nothing_gets_the_same_answer_again() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, "write=y:taken");
    let text = "unless=y write=k:1";
    assert!(run(&mut cluster, 1, permit(0, 0), text).is_empty());
    cluster.run(1, "del=y");
    assert!(run(&mut cluster, 2, permit(0, 0), text).is_empty());
    assert_eq!(cluster.run(3, "read=k"), [None]);
    let home = if hash_key(b"k") < hash_key(b"y") { "k" } else { "y" };
    assert_eq!(recorded(&cluster, home, &named(0, 0)).len(), 3);
    // Another call does what this one might have.
    run(&mut cluster, 2, permit(1, 1), text);
    assert_eq!(cluster.run(3, "read=k"), value("1"));
}

#[test]
fn a_home_key_stays_until_its_call_is_committed_although_it_is_not_used() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, "write=y:0");
    let first = cluster.call(1, permit(0, 0), "name=y");
    let again = cluster.call(3, permit(0, 0), "name=y");
    cluster.deliver_some(|packet| packet.kind() != "r-inv");
    cluster.assert_open(again);
    cluster.deliver_all();
    assert_eq!((cluster.read_by(first), cluster.read_by(again)), (vec![], vec![]));
    assert_eq!(cluster.subject.attempts[&(lease(), 0)].len(), 1);
}

#[test]
fn a_call_that_reads_leaves_no_record() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, "write=y:0");
    assert_eq!(run(&mut cluster, 2, permit(0, 0), "read=y"), value("0"));
    assert_eq!(recorded(&cluster, "y", &named(0, 0)), [0; 0]);
    cluster.run(1, "write=y:1");
    assert_eq!(run(&mut cluster, 2, permit(0, 0), "read=y"), value("1"));
}

#[test]
fn another_command_under_a_used_number_is_told_so_once_the_first_is_committed() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, "write=y:0");
    let first = cluster.call(1, permit(0, 0), "append=y:,1");
    let mut other = permit(0, 0);
    other.call.digest += 1;
    let probe = cluster.call(1, other, "append=y:,2");
    cluster.assert_open(probe);
    cluster.deliver_all();
    assert_eq!(cluster.read_by(first), [Some("0")]);
    assert_eq!(refusal(&cluster, probe), Refusal::CallError(CallError::Different));
    let elsewhere = cluster.call(3, other, "append=y:,2");
    cluster.deliver_all();
    assert_eq!(refusal(&cluster, elsewhere), Refusal::CallError(CallError::Different));
    assert_eq!(cluster.run(2, "read=y"), value("0,1"));
}

#[test]
fn no_attempt_is_made_without_a_grant_that_covers_it() {
    let mut cluster = pairs();
    let no_owner = |sequence| {
        let permit = permit(sequence, 0);
        Permit { grant: Grant { owner: MemberNumber(3), ..permit.grant }, ..permit }
    };
    for (node, key) in [(2, "d"), (1, "d")] {
        let tag = cluster.call(node, no_owner(0), &format!("append={key}:1"));
        cluster.deliver_all();
        assert_eq!(refusal(&cluster, tag), Refusal::LeaseNeeded, "at {node}");
    }
    assert_eq!(cluster.run(2, "read=d"), [None]);
    // What has taken effect is told without one.
    run(&mut cluster, 2, permit(0, 0), "append=d:1");
    for node in [2, 1] {
        let tag = cluster.call(node, no_owner(0), "append=d:1");
        cluster.deliver_all();
        assert!(matches!(cluster.outcome(tag), Some(Outcome::Done(_))), "at {node}");
    }
}

#[test]
fn p4_an_attempt_does_not_meet_a_replica_that_has_forgotten_its_call() {
    let mut cluster = pairs();
    run(&mut cluster, 2, permit(0, 0), "append=d:,0");
    let end = LeaseEnd { lease: lease(), lost: Lost::Expired, granted: FAR + 1 };
    for node in 1..=4 {
        cluster.machine(node).end_session(&end);
    }
    assert_eq!(recorded(&cluster, "d", &named(0, 0)), [0; 0]);
    for node in [2, 3, 1] {
        let late = cluster.call(node, permit(0, 0), "append=d:,0");
        cluster.deliver_all();
        assert_eq!(refusal(&cluster, late), Refusal::LeaseNeeded, "at {node}");
    }
    assert_eq!(cluster.run(3, "read=d"), value(",0"));
}

#[test]
fn sessions_are_listed_and_closed() {
    let mut cluster = Cluster::new(3);
    run(&mut cluster, 1, permit(0, 0), "append=y:1");
    run(&mut cluster, 1, permit(1, 1), "append=k:1");
    cluster.call(1, permit(2, 2), "append=y:2");
    let close = LeaseEnd { lease: lease(), lost: Lost::Closed, granted: 0 };
    cluster.machine(1).end_session(&close);
    assert_eq!(cluster.machine(1).leases_after(None, 9), [lease()], "a call is under way");
    cluster.deliver_all();
    for node in 1..=3 {
        assert_eq!(cluster.machine(node).leases_after(None, 9), [lease()]);
        assert_eq!(cluster.machine(node).leases_after(Some(lease()), 9), []);
        cluster.machine(node).end_session(&close);
    }
    let late = cluster.call(2, permit(3, 3), "append=y:3");
    cluster.deliver_all();
    assert_eq!(refusal(&cluster, late), Refusal::CallError(CallError::Closed));
}

#[test]
fn tries_at_all_lanes_of_a_node_meet_on_that_of_the_home_key() {
    let op_timeout = Some(Duration::from_secs(60));
    let replicas = Replicas { lanes: Some(2), op_timeout, ..Replicas::default() };
    let mut cluster = Cluster::of(replicas, 3, |_| 0, |node| u64::from(node) * 100);
    let mut keys = [0, 1].map(|lane| {
        let mut names = (0..).map(|number| format!("k{number}"));
        let is_own = |name: &String| lane_of_key(name.as_bytes(), 2) == LaneId(lane);
        names.find(is_own).expect("keys are spread over lanes")
    });
    keys.sort_by_key(|key| hash_key(key.as_bytes()));
    let [home, other] = keys;
    let text = format!("append={other}:1 append={home}:1");
    let tries: Vec<u64> = (0..4)
        .map(|at| cluster.call_on(1 + at / 2, at % 2, u64::from(at), permit(0, 0), txn(&text)))
        .collect();
    cluster.run_for(Duration::from_secs(1));
    for tag in &tries {
        assert_eq!(cluster.read_by(*tag), [None, None]);
    }
    assert_eq!(recorded(&cluster, &home, &named(0, 0)), [1, 2, 3]);
    let read = cluster.submit(3, &format!("read={home} read={other}"));
    cluster.run_for(Duration::from_secs(1));
    assert_eq!(cluster.read_by(read), [Some("1"), Some("1")]);
    cluster.assert_quiet([home, other]);
}
