//! What is said once for all of a turn.

use quorate_types::Role;

use crate::support::Cluster;

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
