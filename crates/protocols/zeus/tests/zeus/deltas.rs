//! Changes of large values: a delta is applied on its base, and all of the value comes where that is not.
//! With three nodes `y` belongs to 1, 2, 3 in this order; with four nodes and two replicas `d` belongs to
//! 2, 3, and `h` to 1, 3.

use quorate_collections::packed;
use quorate_types::{Role, Timestamp};
use quorate_zeus::{Item, Items, Message, Update};

use crate::support::{Cluster, MLT, Replicas};

type Packet = quorate_harness::Packet<Replicas>;

const LACKS: &str = "zeus: a follower lacks what a transaction changes";

/// Three nodes that keep every collection large, and the list of one item, which node 1 has written.
fn cluster() -> Cluster {
    let mut cluster = Cluster::large(3, |_| 0);
    cluster.run(1, "put=y:,0");
    cluster
}

/// Whether the first key of an update is changed in place.
fn is_delta(packet: &Packet) -> bool {
    let Message::Update(update) = packet.message() else { return false };
    update.items.iter().next().is_some_and(|item| item.base.is_some())
}

fn value(cluster: &Cluster, node: u16, key: &str) -> Option<String> {
    cluster.record(node, key).and_then(|(_, value)| value)
}

#[track_caller]
fn assert_everywhere(cluster: &Cluster, key: &str, expected: &str) {
    for node in cluster.group(key) {
        assert_eq!(value(cluster, node, key).as_deref(), Some(expected), "at {node}");
    }
}

#[test]
fn a_change_travels_as_a_delta_and_a_whole_value_replaces_it() {
    let mut cluster = cluster();
    cluster.submit(1, "push=y:,1 push=y:,2");
    assert!(cluster.pool.iter().all(is_delta), "{:?}", cluster.pool);
    cluster.deliver_all();
    // What moves brings all of the value.
    cluster.run(3, "push=y:,3");
    assert_everywhere(&cluster, "y", ",0,1,2,3");
    cluster.run(3, "push=y:,4 put=y:,9 push=y:,5");
    assert_everywhere(&cluster, "y", ",9,5");
    cluster.run(3, "expire=y:99999999999999");
    cluster.run(2, "push=y:,6 del=y");
    assert_eq!(cluster.run(1, "read=y"), [None]);
    cluster.run_for(MLT * 5);
    assert_eq!(cluster.probed(LACKS), 0);
}

#[test]
fn what_is_packed_at_one_replica_and_large_at_another_is_the_same_value() {
    let mut cluster = Cluster::large(3, |node| if node == 1 { usize::MAX } else { 0 });
    cluster.run(1, "put=y:,0");
    for (node, item) in [(1, "push=y:,1"), (2, "push=y:,2"), (1, "push=y:,3"), (3, "push=y:,4")] {
        cluster.run(node, item);
    }
    assert_everywhere(&cluster, "y", ",0,1,2,3,4");
    assert_eq!(cluster.probed(LACKS), 0);
}

#[test]
fn deltas_are_applied_in_the_order_of_versions() {
    let mut cluster = cluster();
    cluster.submit(1, "push=y:,1");
    cluster.submit(1, "push=y:,2");
    let late = cluster.take(1, 3, "r-inv");
    late.iter().rev().for_each(|packet| cluster.inject(packet));
    cluster.deliver_all();
    assert_everywhere(&cluster, "y", ",0,1,2");
    assert_eq!(cluster.probed(LACKS), 0, "the second waits for the first");
}

#[test]
fn the_owner_outside_the_group_gets_all_of_the_value_and_sends_deltas() {
    let mut cluster = Cluster::large(4, |_| 0);
    cluster.run(2, "put=d:,0");
    cluster.run(1, "push=d:,1");
    cluster.submit(1, "push=d:,2");
    assert!(cluster.pool.iter().all(is_delta), "{:?}", cluster.pool);
    cluster.deliver_all();
    cluster.run(4, "push=d:,3");
    assert_everywhere(&cluster, "d", ",0,1,2,3");
}

/// Node 3 is a follower before it has copied the key.
fn joining() -> Cluster {
    let mut cluster = cluster();
    cluster.expel(&[3]);
    cluster.deliver_all();
    cluster.rejoin(3);
    cluster.pool.retain(|packet| !packet.is(3, 0, "copy_read"));
    cluster
}

#[test]
fn a_follower_without_the_base_asks_before_it_acknowledges() {
    let mut cluster = joining();
    let tag = cluster.submit(1, "push=y:,1");
    // The second is there before node 1 is asked for what the first has left.
    cluster.submit(1, "push=y:,2");
    cluster.deliver_some(|packet| !packet.is(3, 1, "lacks"));
    assert_eq!(cluster.take(3, 1, "r-ack").len(), 0);
    assert_eq!(value(&cluster, 3, "y"), None, "it changes nothing");
    cluster.assert_open(tag);
    let asked = cluster.take(3, 1, "lacks");
    assert_eq!(asked.len(), 1, "the second waits for the first");
    cluster.inject(&asked[0]);
    let told = cluster.take(1, 3, "whole");
    let Message::Whole { content, .. } = told[0].message() else { panic!("{told:?}") };
    assert_eq!(packed::split(content.bytes).1, 2, "as the first has left it");
    cluster.inject(&told[0]);
    assert_eq!(value(&cluster, 3, "y").as_deref(), Some(",0,1,2"));
    cluster.deliver_all();
    cluster.read_by(tag);
    // It comes again, and is not asked for.
    cluster.inject(&told[0]);
    assert_eq!(cluster.ignored["zeus: all of a value that is not asked for"], 1);
    cluster.run_for(MLT * 5);
    cluster.set_role(3, Role::Active);
    cluster.deliver_all();
    assert_everywhere(&cluster, "y", ",0,1,2");
}

#[test]
fn a_delta_changes_the_version_that_it_names_and_no_other() {
    let mut cluster = cluster();
    cluster.submit(1, "push=y:,1");
    let update = cluster.take(1, 3, "r-inv");
    let Message::Update(update) = update[0].message() else { panic!("{update:?}") };
    let item = update.items.iter().next().expect("one key");
    let items = Items::write([Item { base: Some(update.version), ..item }].into_iter());
    let items = Items::check(&items).expect("just written");
    let version = Timestamp { version: update.version.version + 1, ..update.version };
    cluster.tell(1, 3, &Message::Update(Update { items, version, ..update }));
    assert_eq!(value(&cluster, 3, "y").as_deref(), Some(",0"));
    assert_eq!(cluster.take(3, 1, "lacks").len(), 1);
}

#[test]
fn it_asks_again_and_less_often() {
    let mut cluster = joining();
    cluster.submit(1, "push=y:,1");
    let mut asked = 0;
    for _ in 0..30 {
        cluster.deliver_some(|packet| packet.is(0, 3, "r-inv"));
        asked += cluster.take(3, 1, "lacks").len();
        cluster.tick(MLT);
    }
    assert!((4..=7).contains(&asked), "{asked}");
    // The base comes with the copy.
    cluster.run_for(MLT * 40);
    assert_everywhere(&cluster, "y", ",0,1");
}

/// The coordinator dies when one follower has applied what it did, and the other one lacks the base.
#[test]
fn what_is_replayed_comes_whole_where_the_base_is_not() {
    let mut cluster = joining();
    cluster.submit(1, "push=y:,1");
    cluster.submit(1, "push=y:,2");
    cluster.deliver(1, 2, "r-inv");
    cluster.deliver(1, 2, "r-inv");
    cluster.pool.clear();
    cluster.expel(&[1]);
    cluster.pool.retain(|packet| !packet.is(3, 0, "copy_read"));
    cluster.deliver_some(|packet| !packet.is(3, 2, "copy_read"));
    assert_eq!(cluster.probed(LACKS), 1);
    assert_eq!(value(&cluster, 3, "y").as_deref(), Some(",0,1"));
    cluster.tick(MLT);
    cluster.deliver_some(|packet| !packet.is(3, 2, "copy_read"));
    assert_everywhere(&cluster, "y", ",0,1,2");
    assert_eq!(cluster.meta(2, "y").data, quorate_zeus::DataState::Valid, "all have recovered");
    cluster.run_for(MLT * 10);
    cluster.set_role(3, Role::Active);
    cluster.deliver_all();
    assert_eq!(cluster.run(3, "push=y:,3"), [Some(",0,1,2".to_owned())]);
}

/// With four nodes and two replicas: node 1 has died, whose transaction node 2 has applied for `d`; it has
/// not got `h`, which changes in the same transaction, and of which node 3 has all.
#[test]
fn who_replays_a_change_of_what_it_does_not_keep_need_not_have_all_of_it() {
    let mut cluster = Cluster::large(4, |_| 0);
    cluster.run(1, "put=d:,0 put=h:,0");
    cluster.submit(1, "push=d:,1 push=h:,1");
    cluster.deliver(1, 2, "r-inv");
    cluster.pool.clear();
    cluster.expel(&[1]);
    cluster.run_for(MLT * 10);
    assert_everywhere(&cluster, "d", ",0,1");
    assert_everywhere(&cluster, "h", ",0,1");
    assert_eq!(cluster.run(4, "push=h:,2"), [Some(",0,1".to_owned())]);
}

/// As sent to both followers, with the word that it is committed.
#[test]
fn a_change_of_a_long_list_is_a_short_message() {
    let mut cluster = Cluster::large(3, |_| 4096);
    cluster.run(1, "fill=y:100000");
    cluster.fresh_packets.clear();
    cluster.run(1, "push=y:,last");
    let sent = cluster.fresh_packets.iter().map(|packet| packet.bytes.len()).sum::<usize>();
    let whole = value(&cluster, 2, "y").expect("a list").len();
    assert!(whole > 1_000_000 && sent < 400, "{sent} bytes for a change of {whole}");
    assert_eq!(cluster.probed(LACKS), 0);
}
