//! What could go wrong, played out. Groups follow from the names of keys: with three nodes `y` belongs
//! to 1, 2, 3 in this order, `x` to 1, 3, 2, and `k` to 2, 3, 1.

use quorate_types::Role;
use quorate_zeus::{DataState, OwnerState};

use crate::support::{Cluster, MLT, Replicas, is_copy};

/// Four nodes and two replicas: `d` belongs to 2, 3; `h` to 1, 3; `c` to 1, 4.
fn pairs() -> Cluster {
    let replicas = Replicas { replicas: Some(2), ..Replicas::default() };
    Cluster::of(replicas, 4, |_| 0, u64::from)
}

/// Node 2's request for `y` is younger than what node 1 asks for later: its clock is ahead.
#[test]
fn an_owner_that_has_agreed_does_not_use_the_key_by_right_of_age() {
    let ahead = |node| if node == 2 { 1_000_000_000 } else { 0 };
    let mut cluster = Cluster::of(Replicas::default(), 3, ahead, u64::from);
    cluster.run(1, "write=y:1");
    let younger = cluster.submit(2, "append=y:2");
    cluster.deliver_some(|packet| packet.is(0, 0, "inv") || packet.is(0, 0, "ack"));
    assert_eq!(cluster.meta(2, "y").owner, cluster.number(2));
    // Node 1 does not hear that the round is complete.
    cluster.pool.clear();
    let older = cluster.submit(1, "append=y:3");
    cluster.assert_open(older);
    cluster.renew_view();
    cluster.run_for(MLT * 10);
    assert_eq!(cluster.read_by(younger), [Some("1")]);
    assert_eq!(cluster.read_by(older), [Some("12")]);
    cluster.assert_quiet(["y".to_owned()]);
}

/// A read of `y` and `x` at their owner sees a write of `y` that only the owner has, and waits for it. If `x`
/// moved meanwhile and was written, a reader at node 3 would see that write and `y` as it was before.
#[test]
fn an_owner_gives_no_key_away_while_the_answer_of_a_read_waits() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, "write=y:1 write=x:1");
    let written = cluster.submit(1, "append=y:2");
    let read = cluster.submit(1, "read=y read=x");
    let moves = cluster.submit(2, "append=x:2");
    cluster.deliver_some(|packet| !packet.is(1, 0, "r-inv"));
    cluster.assert_open(written);
    cluster.assert_open(read);
    cluster.assert_open(moves);
    let elsewhere = cluster.submit(3, "read=x read=y");
    assert_eq!(cluster.read_by(elsewhere), [Some("1"), Some("1")]);
    cluster.deliver_all();
    assert_eq!(cluster.read_by(read), [Some("12"), Some("1")]);
    assert_eq!(cluster.read_by(moves), [Some("1")]);
    cluster.assert_quiet(["x".to_owned(), "y".to_owned()]);
}

/// With four nodes and three replicas `k` belongs to 2, 3, 1, and `a` to 4, 1, 3.
#[test]
fn a_replica_that_joins_knows_the_rounds_that_may_be_complete() {
    let mut cluster = Cluster::new(4);
    let tag = cluster.submit(4, "read=k write=a:1");
    cluster.deliver_some(|packet| !packet.is(0, 0, "val") && !packet.is(0, 0, "r-inv"));
    assert_eq!(cluster.meta(4, "k").owner, cluster.number(4));
    // Nobody hears that node 4 has the key. Node 2 goes and comes back.
    cluster.pool.clear();
    cluster.expel(&[2]);
    cluster.pool.clear();
    cluster.rejoin(2);
    cluster.deliver_some(is_copy);
    assert!(cluster.machine(2).is_caught_up());
    cluster.pool.clear();
    cluster.set_role(2, Role::Active);
    let is_of_rounds = |kind| ["inv", "ack", "val"].contains(&kind);
    cluster.deliver_some(|packet| !is_of_rounds(packet.kind()));
    // Node 2 is the default owner of what has none. This key has one.
    assert_eq!(cluster.writers("k"), [4]);
    cluster.run_for(MLT * 10);
    cluster.read_by(tag);
    assert_eq!(cluster.run(2, "append=k:2"), [None]);
    cluster.assert_quiet(["k".to_owned(), "a".to_owned()]);
}

#[test]
fn an_owner_outside_the_group_stops_reading_when_it_gives_the_key_away() {
    let mut cluster = pairs();
    cluster.run(2, "write=d:1");
    cluster.run(1, "append=d:2");
    assert_eq!(cluster.run(1, "read=d"), [Some("12".to_owned())]);
    let moved = cluster.submit(4, "append=d:3");
    // Node 1 has agreed, and does not hear how it ended.
    cluster.deliver_some(|packet| !packet.is(0, 1, "val"));
    assert_eq!(cluster.read_by(moved), [Some("12")]);
    let read = cluster.submit(1, "read=d");
    cluster.assert_open(read);
    cluster.run_for(MLT * 10);
    assert_eq!(cluster.read_by(read), [Some("123")]);
    cluster.assert_quiet(["d".to_owned()]);
}

#[test]
fn a_replica_has_not_joined_before_what_was_under_way_has_come() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, "write=y:1");
    cluster.expel(&[3]);
    cluster.deliver_all();
    cluster.rejoin(3);
    let tag = cluster.submit(1, "append=y:2");
    cluster.deliver_some(is_copy);
    assert!(!cluster.machine(3).is_caught_up(), "its copy of y is on the way");
    assert_eq!(cluster.record(3, "y").and_then(|(_, value)| value), None);
    cluster.deliver_all();
    assert!(cluster.machine(3).is_caught_up());
    cluster.read_by(tag);
    cluster.set_role(3, Role::Active);
    cluster.deliver_all();
    assert_eq!(cluster.run(3, "read=y"), [Some("12".to_owned())]);
}

/// On a slow link the first answer comes after the question was put again.
#[test]
fn an_answer_counts_though_the_question_was_put_again() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, "write=y:1");
    cluster.expel(&[3]);
    cluster.deliver_all();
    cluster.rejoin(3);
    for _ in 0..40 {
        let questions = cluster.pool.iter().filter(|packet| packet.is(3, 0, "copy_read")).count();
        assert!(questions < 8, "who waits for an answer does not fill the link");
        cluster.tick(MLT);
        // It waits longer for the answer than the first time.
        cluster.deliver_some(|packet| !packet.is(0, 0, "copy_read") && !packet.is(0, 3, "copy"));
    }
    while !cluster.machine(3).is_caught_up() {
        let at = cluster.pool.iter().position(|packet| packet.is(3, 0, "copy_read"));
        let question = cluster.pool.remove(at.expect("a question is under way"));
        cluster.inject(&question);
        cluster.tick(MLT * 40);
        cluster.deliver_some(|packet| !packet.is(0, 0, "copy_read"));
    }
    assert_eq!(cluster.record(3, "y").and_then(|(_, value)| value), Some("1".to_owned()));
}

#[test]
fn a_late_request_of_the_owner_moves_nothing() {
    let mut cluster = pairs();
    cluster.run(2, "write=d:1");
    cluster.submit(1, "append=d:2");
    let request = cluster.deliver(1, 0, "req");
    cluster.deliver_all();
    let before = cluster.meta(1, "d");
    cluster.inject(&request);
    assert!(cluster.pool.is_empty(), "{:?}", cluster.pool);
    assert_eq!(cluster.meta(1, "d"), before);
}

#[test]
fn a_new_view_is_sent_what_is_under_way_at_once() {
    let mut cluster = Cluster::new(3);
    let tag = cluster.submit(1, "write=y:1");
    cluster.pool.clear();
    cluster.renew_view();
    cluster.deliver_all();
    assert_eq!(cluster.read_by(tag), []);
}

/// `h` belongs to 1, 3, and `c` to 1, 4: node 4 is a follower of some slots of node 1 only.
#[test]
fn a_follower_applies_nothing_before_all_that_it_depends_on() {
    let mut cluster = pairs();
    cluster.submit(1, "write=h:1");
    cluster.submit(1, "write=c:1");
    cluster.submit(1, "read=h append=c:2");
    cluster.take(1, 3, "r-inv");
    cluster.deliver(1, 4, "r-inv");
    cluster.deliver(1, 4, "r-inv");
    let acknowledged = cluster.take(4, 1, "r-ack").len();
    assert_eq!(acknowledged, 1, "slot 3 depends on slot 1, which node 4 does not follow");
    assert_eq!(cluster.record(4, "c").and_then(|(_, value)| value), Some("1".to_owned()));
    cluster.run_for(MLT * 10);
    assert_eq!(cluster.run(4, "read=c"), [Some("12".to_owned())]);
}

/// With four nodes and three replicas `i` belongs to 1, 3, 2, and `c` to 1, 4, 2. Only node 2 has
/// applied what node 1 did before it died.
#[test]
fn a_replay_waits_for_what_it_depends_on_and_is_read_when_all_have_recovered() {
    let mut cluster = Cluster::new(4);
    cluster.submit(1, "write=i:1");
    cluster.submit(1, "read=i write=c:1");
    cluster.deliver(1, 2, "r-inv");
    cluster.deliver(1, 2, "r-inv");
    cluster.pool.clear();
    cluster.expel(&[1]);
    let replays = |cluster: &Cluster, to| {
        cluster.pool.iter().filter(|packet| packet.is(2, to, "r-inv")).count()
    };
    assert_eq!((replays(&cluster, 3), replays(&cluster, 4)), (1, 0));
    cluster.deliver(2, 3, "r-inv");
    cluster.deliver(3, 2, "r-ack");
    assert_eq!(replays(&cluster, 4), 1, "what it depends on is everywhere");
    assert_eq!(cluster.meta(2, "i").data, DataState::Invalid, "not all have recovered");
    cluster.deliver_all();
    for (node, key) in [(3, "i"), (4, "c"), (2, "i"), (2, "c")] {
        assert_eq!(cluster.run(node, &format!("read={key}")), [Some("1".to_owned())]);
    }
}

/// Node 1 has got `d` from node 3, which has not heard that it has, and is asked to give it away. Node 3 agrees again to
/// the round in which it has come, and is the only one that is left of the group.
#[test]
fn an_owner_does_not_take_again_what_it_has_taken() {
    let mut cluster = pairs();
    cluster.run(3, "write=d:1");
    cluster.submit(1, "append=d:2");
    cluster.deliver_some(|packet| !packet.is(1, 3, "val") && !packet.is(1, 3, "r-inv"));
    assert_eq!(cluster.writers("d"), [1]);
    cluster.pool.clear();
    cluster.submit(4, "append=d:3");
    cluster.deliver(4, 2, "req");
    cluster.deliver(2, 1, "inv");
    cluster.pool.clear();
    cluster.expel(&[2]);
    cluster.take(1, 3, "inv");
    cluster.deliver(3, 1, "ack");
    cluster.deliver_some(|packet| packet.is(1, 3, "req") || packet.is(3, 1, "ack"));
    cluster.run_for(MLT * 10);
    cluster.assert_quiet(["d".to_owned()]);
    assert_eq!(cluster.run(3, "read=d"), [Some("123".to_owned())]);
}

/// A driver that is behind is told what has become of its round.
#[test]
fn a_round_that_is_settled_elsewhere_is_settled_here() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, "write=y:1");
    cluster.submit(2, "append=y:2");
    cluster.deliver_some(|packet| !packet.is(0, 3, "val") && !packet.is(0, 3, "r-inv"));
    assert_eq!(cluster.meta(3, "y").state, OwnerState::Invalid);
    cluster.pool.clear();
    cluster.run_for(MLT * 10);
    assert_eq!(cluster.probed("zeus: a driver is behind"), 2);
    cluster.assert_quiet(["y".to_owned()]);
}

/// Node 1 has agreed that node 3, whose clock is ahead, gets the key; node 3 has taken it, and nobody
/// knows. In the next epoch a transaction of node 1 is the older one.
#[test]
fn what_was_given_in_an_earlier_epoch_is_not_kept_by_right_of_age() {
    let ahead = |node| if node == 3 { 1_000_000_000 } else { 0 };
    let mut cluster = Cluster::of(Replicas::default(), 3, ahead, u64::from);
    cluster.run(1, "write=y:1");
    let taken = cluster.submit(3, "append=y:3");
    cluster.deliver_some(|packet| ["inv", "ack"].contains(&packet.kind()));
    assert_eq!(cluster.writers("y"), [3]);
    cluster.pool.clear();
    cluster.renew_view();
    cluster.pool.clear();
    let older = cluster.submit(1, "append=y:1");
    assert_eq!(cluster.take(1, 0, "r-inv").len(), 0, "it must not have run");
    cluster.run_for(MLT * 10);
    assert_eq!(cluster.read_by(taken), [Some("1")]);
    assert_eq!(cluster.read_by(older), [Some("13")]);
}
