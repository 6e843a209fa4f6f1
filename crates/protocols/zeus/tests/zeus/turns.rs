//! What is said at the end of a turn. With four nodes and two replicas `d` belongs to nodes 2 and 3.

use quorate_types::{NodeId, Role};
use quorate_zeus::Message;

use crate::support::{Cluster, Replicas};

/// A cluster in which node 1 owns both keys and has sent a transaction of each to node 2, in one turn of
/// that.
fn two_under_way() -> (Cluster, [u64; 2]) {
    let mut cluster = Cluster::new(3);
    cluster.run(1, "write=x:1 write=y:1");
    cluster.turns = false;
    let tags = [cluster.submit(1, "append=x:2"), cluster.submit(1, "append=y:2")];
    for _ in tags {
        cluster.deliver(1, 2, "r-inv");
    }
    assert!(cluster.pool.iter().all(|packet| packet.kind() != "r-ack"));
    (cluster, tags)
}

#[test]
fn transactions_of_one_turn_are_acknowledged_together() {
    let (mut cluster, tags) = two_under_way();
    cluster.end_turn(2);
    for _ in tags {
        cluster.deliver(1, 3, "r-inv");
    }
    cluster.end_turn(3);
    for from in [2, 3] {
        let acks = cluster.take(from, 1, "r-ack");
        assert_eq!(acks.len(), 1, "of node {from}");
        acks.iter().for_each(|ack| cluster.inject(ack));
    }
    for tag in tags {
        assert_eq!(cluster.read_by(tag), [Some("1")]);
    }
}

#[test]
fn who_is_sent_the_next_transaction_hears_with_it_what_is_committed() {
    let (mut cluster, tags) = two_under_way();
    cluster.end_turn(2);
    cluster.turns = true;
    cluster.deliver_some(|packet| packet.is(1, 3, "r-inv"));
    cluster.turns = false;
    cluster.deliver_some(|packet| packet.kind() == "r-ack");
    assert!(tags.iter().all(|tag| cluster.outcome(*tag).is_some()));
    cluster.submit(1, "append=x:3");
    cluster.end_turn(1);
    assert!(cluster.pool.iter().all(|packet| packet.kind() == "r-inv"));
    cluster.turns = true;
    cluster.deliver_some(|packet| packet.kind() == "r-inv");
    let tag = cluster.submit(2, "read=y");
    assert_eq!(cluster.read_by(tag), [Some("12")]);
    // Nobody is sent one after this, so both are told.
    cluster.deliver_some(|packet| packet.kind() == "r-ack");
    let told = [2, 3].map(|to| cluster.take(1, to, "r-val").len());
    assert_eq!(told, [1, 1]);
}

/// In the next epoch it may have to apply them to more keys.
#[test]
fn what_was_applied_before_a_view_is_not_acknowledged_after_it() {
    let (mut cluster, _) = two_under_way();
    let view = cluster.decide(&[(1, Role::Active), (2, Role::Active), (3, Role::Active)]);
    cluster.install_on(2, &view);
    cluster.end_turn(2);
    assert!(cluster.pool.iter().all(|packet| packet.kind() != "r-ack"));
    cluster.turns = true;
    cluster.install_on(1, &view);
    cluster.install_on(3, &view);
    cluster.deliver_all();
    cluster.assert_quiet(["x", "y"].map(str::to_owned));
}

/// What is on the way to a node.
fn kinds(cluster: &Cluster, to: u16) -> Vec<&'static str> {
    let sent = cluster.pool.iter().filter(|packet| packet.to == NodeId(to));
    sent.map(|packet| packet.kind()).collect()
}

#[test]
fn the_members_of_its_group_hear_that_a_key_was_taken_with_what_was_written() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, "write=x:1 write=y:1");
    let tag = cluster.submit(2, "read=x append=y:2");
    cluster.deliver_some(|packet| packet.is(0, 0, "inv") || packet.is(0, 0, "ack"));
    assert_eq!([1, 3].map(|to| kinds(&cluster, to)), [["val", "r-inv"]; 2]);
    let taken = |message| matches!(message, Message::Val { key: b"x", .. } | Message::Update(_));
    assert!(cluster.pool.iter().all(|packet| taken(packet.message())), "x is only read");
    cluster.deliver_all();
    assert_eq!(cluster.read_by(tag), [Some("1"), Some("1")]);
    cluster.assert_quiet(["x", "y"].map(str::to_owned));
}

#[test]
fn a_former_owner_outside_the_group_is_told_that_the_key_was_taken() {
    let replicas = Replicas { replicas: Some(2), ..Replicas::default() };
    let mut cluster = Cluster::of(replicas, 4, |_| 0, u64::from);
    cluster.run(1, "write=d:1");
    assert!(cluster.record(1, "d").is_some());
    cluster.submit(4, "append=d:2");
    cluster.deliver_some(|packet| ["req", "inv", "ack"].contains(&packet.kind()));
    assert_eq!([1, 2, 3].map(|to| kinds(&cluster, to)), [["val"], ["r-inv"], ["r-inv"]]);
    cluster.deliver_all();
    assert!(cluster.record(1, "d").is_none());
}
