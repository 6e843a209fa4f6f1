//! Changes of large values: a delta is installed on its base, wherever and in whatever order commits
//! arrive.

use quorate_collections::{Delta, Step};
use quorate_machine::{Content, ValueKind};
use quorate_meerkat::{Body, Config, Item, Kind, Write};
use quorate_types::{Duration, MemberNumber, NodeId, Role, Timestamp, WriterId};

use crate::packets::{Packet, body_of};
use crate::support::{Cluster, MLT, Replicas, WALL, serializable};

const BASE_MISSING: &str = "meerkat: a commit whose base is not here";
const ASKS: &str = "meerkat: a learner asks for a base";
/// Until all replicas know the end of every transaction, and have dropped its record.
const SETTLE: Duration = Duration::from_millis(1_500);

/// Three nodes that keep every collection large, and the list of one item.
fn cluster() -> Cluster {
    let mut cluster = Cluster::large(3, |_| 0);
    cluster.run(1, "put=k:,0");
    cluster.run_for(SETTLE);
    cluster.fresh_packets.clear();
    cluster
}

/// How a message writes the key, if it has the sets of a transaction.
fn write_in(packet: &Packet) -> Option<&'static str> {
    let message = packet.message();
    let write = body_of(&message.kind)?.iter().next()?.write?;
    Some(match write {
        Write::Set(_) => "set",
        Write::Delta(_) => "delta",
        Write::Delete => "delete",
    })
}

#[test]
fn a_change_travels_as_a_delta_and_a_whole_value_replaces_it() {
    let mut cluster = cluster();
    cluster.run(2, "push=k:,1 push=k:,2");
    assert!(cluster.fresh_packets.iter().all(|packet| write_in(packet) != Some("set")));
    cluster.run(3, "push=k:,3");
    cluster.assert_everywhere("k", Some(",0,1,2,3"));
    cluster.run(1, "push=k:,4 put=k:,9 push=k:,5");
    cluster.assert_everywhere("k", Some(",9,5"));
    cluster.run(2, "push=k:,6 del=k");
    cluster.assert_everywhere("k", None);
}

#[test]
fn what_is_packed_at_one_replica_and_large_at_another_is_the_same_value() {
    let mut cluster = Cluster::large(3, |node| if node == 1 { usize::MAX } else { 0 });
    cluster.run(1, "put=k:,0");
    for (node, item) in [(1, "push=k:,1"), (2, "push=k:,2"), (1, "push=k:,3"), (3, "push=k:,4")] {
        cluster.run(node, item);
    }
    cluster.assert_everywhere("k", Some(",0,1,2,3,4"));
}

#[test]
fn a_commit_waits_for_the_version_that_it_changes() {
    let mut cluster = cluster();
    let late = |packet: &Packet| packet.is(1, 3, "decided");
    let first = cluster.submit(1, "push=k:,1");
    cluster.deliver_some(|packet| !late(packet));
    let second = cluster.submit(2, "push=k:,2");
    cluster.deliver_some(|packet| !late(packet));
    cluster.assert_done(first);
    cluster.assert_done(second);
    let id = cluster.last_attempt(2);
    assert_eq!(cluster.probed(BASE_MISSING), 1);
    assert_eq!(cluster.stored(3, "k").as_deref(), Some(",0"), "it changes nothing");
    assert_eq!(cluster.decision(3, id), None);
    assert_eq!(cluster.pending(3, "k").iter().count(), 2, "both are registered still");
    cluster.run_some(MLT / 2, |packet| !late(packet));
    assert_eq!(cluster.gauge(2, "attempts"), 1, "3 has not acknowledged it");
    cluster.run_for(SETTLE);
    cluster.assert_everywhere("k", Some(",0,1,2"));
    cluster.assert_quiet();
}

/// Nodes take turns at a key, and one of them hears of the first commit last: it has all of them as
/// soon as it hears of that one, and acknowledges them.
#[test]
fn commits_that_wait_for_a_base_end_with_it() {
    let mut cluster = cluster();
    let late = |packet: &Packet| packet.is(1, 3, "decided");
    cluster.submit(1, "push=k:,1");
    cluster.deliver_some(|packet| !late(packet));
    let held = cluster.take(1, 3, "decided");
    for (node, item) in [(2, "push=k:,2"), (1, "push=k:,3"), (2, "push=k:,4")] {
        cluster.submit(node, item);
        cluster.deliver_all();
    }
    assert_eq!(cluster.probed(BASE_MISSING), 3);
    assert_eq!(cluster.stored(3, "k").as_deref(), Some(",0"));
    held.iter().for_each(|packet| cluster.inject(packet));
    assert_eq!(cluster.stored(3, "k").as_deref(), Some(",0,1,2,3,4"));
    cluster.run_for(MLT / 2);
    for node in [1, 2] {
        assert_eq!(cluster.gauge(node, "attempts"), 0, "3 has acknowledged all");
    }
    cluster.run_for(SETTLE);
    cluster.assert_quiet();
}

/// A replica takes over what has waited for a base for so long. When the base comes it knows the end, and the
/// others forget the transaction: they would answer nothing to who goes on taking it over.
#[test]
fn a_takeover_of_what_waits_for_a_base_ends_with_it() {
    let mut cluster = cluster();
    let late = |packet: &Packet| packet.is(1, 3, "decided") || packet.is(2, 3, "decided");
    cluster.submit(1, "push=k:,1");
    cluster.deliver_some(|packet| !packet.is(1, 3, "decided"));
    let held = cluster.take(1, 3, "decided");
    cluster.submit(2, "push=k:,2");
    cluster.deliver_all();
    assert_eq!(cluster.probed(BASE_MISSING), 1);
    let prepares = |packet: &Packet| packet.from == NodeId(3) && packet.kind() == "prepare";
    cluster.run_some(SETTLE, |packet| !late(packet) && !prepares(packet));
    assert_eq!(cluster.gauge(3, "recovering"), 2);
    cluster.pool.clear();
    held.iter().for_each(|packet| cluster.inject(packet));
    assert_eq!(cluster.stored(3, "k").as_deref(), Some(",0,1,2"));
    cluster.run_for(SETTLE);
    assert_eq!(cluster.gauge(3, "recovering"), 0);
    cluster.assert_quiet();
}

#[test]
fn a_version_that_is_as_new_already_takes_no_delta() {
    let mut cluster = cluster();
    cluster.submit(1, "push=k:,1");
    let decided = |packet: &Packet| packet.is(1, 3, "decided");
    cluster.deliver_some(|packet| !decided(packet));
    let late = cluster.take(1, 3, "decided");
    cluster.run(2, "put=k:,9");
    assert_eq!(cluster.stored(3, "k").as_deref(), Some(",9"));
    for packet in late {
        cluster.inject(&packet);
    }
    cluster.run_for(SETTLE);
    assert_eq!(cluster.probed(BASE_MISSING), 0);
    cluster.assert_everywhere("k", Some(",9"));
    cluster.assert_quiet();
}

/// The later change has the smaller writer, so its record comes first in the order of records.
#[test]
fn an_epoch_change_installs_a_change_after_its_base() {
    let mut cluster = cluster();
    let late = |packet: &Packet| packet.kind() == "decided" && packet.to == NodeId(3);
    let third = cluster.submit(2, "push=k:,1");
    cluster.deliver_some(|packet| !late(packet));
    let first = cluster.submit(1, "push=k:,2");
    cluster.deliver_some(|packet| !late(packet));
    cluster.assert_done(third);
    cluster.assert_done(first);
    cluster.pool.clear();
    cluster.renew_view();
    cluster.deliver_all();
    cluster.assert_everywhere("k", Some(",0,1,2"));
    cluster.run_for(SETTLE);
    cluster.assert_quiet();
}

#[test]
fn a_learner_asks_for_what_it_has_not_copied() {
    let mut cluster = cluster();
    cluster.expel(&[3]);
    cluster.run_for(SETTLE);
    cluster.crash(3);
    cluster.start(3, 7);
    cluster.set_role(3, Role::Shadow);
    let held_back = |packet: &Packet| packet.kind() == "chunk_read";
    cluster.deliver_some(|packet| !held_back(packet));
    let tag = cluster.submit(1, "push=k:,1");
    cluster.deliver_some(|packet| !held_back(packet) && packet.kind() != "get");
    cluster.assert_done(tag);
    assert_eq!(cluster.probed(ASKS), 1);
    assert!(!cluster.take(3, 0, "get").is_empty());
    // The question was lost. It is asked again once a donor has had its time to answer.
    cluster.run_some(MLT * 20, |packet| !held_back(packet));
    let asked = cluster.fresh_packets.iter().filter(|packet| packet.is(3, 1, "get"));
    assert_eq!(asked.count(), 2);
    assert_eq!(cluster.stored(3, "k").as_deref(), Some(",0,1"));
    assert_eq!(cluster.gauge(1, "attempts"), 0, "3 has acknowledged it");
    cluster.run_for(SETTLE);
    assert!(cluster.machine(3).is_caught_up());
    cluster.set_role(3, Role::Active);
    cluster.run(3, "push=k:,2");
    cluster.assert_everywhere("k", Some(",0,1,2"));
}

/// 3 has no replica of the key's partition.
#[test]
fn a_change_from_a_node_without_a_replica_is_a_delta_if_it_pays() {
    fn elsewhere(config: &mut Config) {
        serializable(config);
        config.partitions = vec![Some([1, 2].into_iter().map(NodeId).collect())];
    }
    let replicas = Replicas { packed_bytes_max: |_| 0, ..Replicas::new(1, elsewhere) };
    let mut cluster = Cluster::of(replicas, 3, |_| 0, u64::from);
    let long = "x".repeat(5_000);
    cluster.run(1, &format!("put=k:{long}"));
    cluster.fresh_packets.clear();
    cluster.run(3, "push=k:,1");
    let asked = cluster.fresh_packets.iter().find(|packet| packet.is(3, 1, "validate"));
    assert_eq!(asked.and_then(write_in), Some("delta"));
    for node in [1, 2] {
        assert_eq!(cluster.stored(node, "k"), Some(format!("{long},1")));
    }
}

#[test]
fn no_delta_is_taken_that_is_damaged_or_of_nothing() {
    let mut cluster = cluster();
    let base = Some(cluster.meta(1, "k").wts);
    let id =
        |nanos| Timestamp::new(WALL + 10_000_000_000 + nanos, WriterId::new(MemberNumber(2), 0));
    let mut beyond = Delta::new();
    beyond.push(Step::Cut { at: 7, count: 1 });
    let held = cluster.stored(1, "k");
    for (number, bytes) in [b"\xff".to_vec(), beyond.into_bytes()].iter().enumerate() {
        let delta = Content { bytes, kind: ValueKind::List, expire_at: None };
        let write = Some(Write::Delta(delta));
        let bytes = Body::encode(&[Item { key: b"k", base, absent: false, write }]);
        let (id, body) = (id(number as u64), Some(Body::check(&bytes).expect("a body")));
        cluster.lie(2, 1, Kind::Decided { id, commit: true, body });
        assert_eq!(cluster.stored(1, "k"), held);
        assert_eq!(cluster.decision(1, id), None);
    }
}
