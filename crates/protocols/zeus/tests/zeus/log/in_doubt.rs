//! Nodes that may lack what they have promised, since nothing has waited for their logs.

use quorate_engine::{NoPins, Place};
use quorate_harness::Logs;
use quorate_types::placement::{group, shard_of};
use quorate_types::{Duration, NodeId, Role};

use super::{cluster, cut_all, durable};
use crate::calls::permit;
use crate::support::{Cluster, MLT, Replicas};
use crate::txn::txn;

/// Each node has lost another part of what all took for committed.
#[test]
fn what_any_node_has_kept_stands_at_all() {
    let mut cluster = cluster(Logs::Async, Replicas::default());
    for value in 1..=4 {
        cluster.run_unflushed(1, &format!("write=y:{value} write=d:{value}"));
        let node = [1, 3, 2].get(value - 1).copied();
        node.into_iter().for_each(|node| _ = cluster.flush_log(node));
    }
    cut_all(&mut cluster);
    let tag = cluster.submit(1, "read=y read=d");
    cluster.assert_open(tag);
    assert!(!cluster.is_caught_up(1));
    assert!(cluster.machine(1).is_in_doubt(), "it has lost keys that others have kept");
    cluster.deliver_all();
    assert!(!cluster.machine(1).is_in_doubt());
    assert_eq!(cluster.read_by(tag), [Some("3"), Some("3")]);
    for node in 1..=3 {
        let record = |key| cluster.record(node, key).and_then(|(_, value)| value);
        assert_eq!([record("y"), record("d")], ["3", "3"].map(|it| Some(it.to_owned())));
    }
    assert_eq!(cluster.probed("zeus: takes in what its log has lost"), 3);
    cluster.run(2, "append=y:!");
    assert_eq!(cluster.run(3, "read=y"), [Some("3!".to_owned())]);
    cluster.assert_quiet(["y", "d"].map(str::to_owned));
}

/// Node 2 has lost a key that is older than the others' floor.
#[test]
fn what_a_node_has_lost_is_not_forgotten_where_floors_have_risen() {
    let collect_every = Some(Duration::from_millis(20));
    let mut cluster = cluster(Logs::Async, Replicas { collect_every, ..Replicas::default() });
    cluster.run_unflushed(1, "write=d:1");
    let version = cluster.record(1, "d").expect("it is there").0.version;
    for key in 0..8 {
        cluster.run_unflushed(1, &format!("write=y{key}:1"));
        cluster.run_unflushed(1, &format!("del=y{key}"));
        for _ in 0..40 {
            cluster.tick(Duration::from_millis(5));
            cluster.deliver_unflushed();
        }
    }
    assert!([1, 3].iter().all(|node| cluster.machine_of(*node, "d").floor() > version));
    [1, 3].iter().for_each(|node| _ = cluster.flush_log(*node));
    cut_all(&mut cluster);
    cluster.deliver_all();
    let record = cluster.record(2, "d").and_then(|(_, value)| value);
    assert_eq!(record, Some("1".to_owned()));
    cluster.assert_quiet(["d".to_owned()]);
}

/// Node 1 owns a key by a round that the floor has passed, and lives on. The others come back from logs without
/// rounds, of which one has lost the last version. Whatever reaches them first, an update of the owner or what
/// one of them tells the other before it has heard the owner, says nothing of the round.
#[test]
fn nodes_in_doubt_know_of_no_rounds() {
    for (loses, unheard) in [(false, 3), (true, 3), (true, 2)] {
        let collect_every = Some(Duration::from_millis(20));
        let mut cluster = cluster(Logs::Async, Replicas { collect_every, ..Replicas::default() });
        let keys = (0..16).map(|number| format!("d{number}"));
        let owner = |key: &str| group(shard_of(key.as_bytes()), cluster.view.placed, 0)[0];
        let key = &*keys.into_iter().find(|key| owner(key) == NodeId(3)).expect("one of 16");
        cluster.run(1, &format!("write={key}:1"));
        cluster.run(1, "write=y:1");
        cluster.run(1, "del=y");
        cluster.run_for(Duration::from_secs(1));
        cluster.flush_logs();
        if loses {
            cluster.run_unflushed(1, &format!("append={key}:2"));
            cluster.flush_log(3);
        }
        assert!(cluster.meta(2, key).round < cluster.machine_of(2, key).floor());
        [2, 3].into_iter().for_each(|node| cluster.cut_power_unflushed(node));
        cluster.pool.clear();
        [2, 3].into_iter().for_each(|node| cluster.restart(node, u64::from(node)));
        cluster.install(&[1, 2, 3].map(|node| (node, Role::Active)));
        cluster.submit(1, &format!("append={key}:3"));
        cluster.deliver_some(|packet| !packet.is(1, unheard, "copy"));
        cluster.run_for(MLT * 5);
        assert!(!cluster.machine(2).is_in_doubt());
        assert_eq!(cluster.writers(key), [1], "{loses} {unheard}");
        cluster.run(2, &format!("append={key}:!"));
        let value = if loses { "123!" } else { "13!" };
        assert_eq!(cluster.run(3, &format!("read={key}")), [Some(value.to_owned())]);
        cluster.assert_quiet([key.to_owned()]);
    }
}

/// Node 3 comes back alone, and hears of a floor while it copies. When all power goes, its log has the floor and
/// not yet what lies below it.
#[test]
fn a_copy_that_is_cut_short_in_the_log_deletes_nothing() {
    let collect_every = Some(Duration::from_millis(20));
    let mut cluster = cluster(Logs::Async, Replicas { collect_every, ..Replicas::default() });
    cluster.run(1, "write=d:1");
    let version = cluster.record(1, "d").expect("it is there").0.version;
    cluster.cut_power_unflushed(3);
    cluster.set_role(3, Role::Down);
    cluster.deliver_all();
    cluster.restart(3, 33);
    cluster.set_role(3, Role::Shadow);
    for key in 0..4 {
        let change = |text: &str| text.replace("KEY", &format!("y{key}"));
        for text in ["write=KEY:1", "del=KEY"] {
            cluster.submit(1, &change(text));
            for _ in 0..20 {
                cluster.tick(Duration::from_millis(5));
                cluster.deliver_some(|packet| !packet.is(0, 3, "difference"));
            }
        }
    }
    assert!(cluster.machine_of(1, "d").floor() > version);
    cluster.run_for(MLT * 40);
    assert!(cluster.is_caught_up(3));
    cluster.set_role(3, Role::Active);
    cluster.run_for(MLT * 10);
    let log = cluster.log_of(3, 0);
    let is_copy = |entry: &&[u8]| entry.first() == Some(&3) && entry.contains(&b'd');
    let copied = log.iter().position(is_copy).expect("it was copied");
    let lost = log.len() - copied;
    (1..=2).for_each(|node| _ = cluster.flush_log(node));
    (1..=3).for_each(|node| cluster.cut_power_unflushed(node));
    cluster.rot_end(3, 0, lost);
    (1..=3).for_each(|node| cluster.restart(node, 40 + u64::from(node)));
    cluster.install(&[(1, Role::Active), (2, Role::Active), (3, Role::Active)]);
    cluster.run_for(MLT * 40);
    for node in 1..=3 {
        let record = cluster.record(node, "d").and_then(|(_, value)| value);
        assert_eq!(record.as_deref(), Some("1"), "at {node}");
    }
}

/// A read that waits for a while would become a transaction of an owner. What it waits for is no owner.
#[test]
fn reads_that_wait_for_a_node_in_doubt_run_when_it_is_not() {
    let mut cluster = cluster(Logs::Async, Replicas::default());
    cluster.run_unflushed(1, "write=y:1");
    cluster.flush_log(3);
    cut_all(&mut cluster);
    let asked: Vec<u64> = (1..=3).map(|node| cluster.submit(node, "read=y")).collect();
    cluster.tick(MLT * 2);
    cluster.run_for(MLT * 20);
    for tag in asked {
        assert_eq!(cluster.read_by(tag), [Some("1")]);
    }
    assert_eq!(cluster.probed("zeus: ownership acquired"), 0);
}

/// A read that was sent on would find another node in doubt.
#[test]
fn operations_at_a_node_in_doubt_run_there() {
    let mut cluster = cluster(Logs::Async, Replicas::default());
    cluster.run_unflushed(1, "write=y:1");
    cut_all(&mut cluster);
    for origin in 0..20 {
        let now = cluster.now_at(1);
        let place = cluster.machine(1).place(now, origin, &txn("read=y"), &NoPins);
        assert_eq!(place, Place::Here);
    }
}

#[test]
fn a_node_whose_log_has_lost_everything_hears_the_others() {
    let mut cluster = Cluster::logging(Replicas::default(), Logs::Async, (3, 0), |_| 0, u64::from);
    cluster.run_unflushed(1, "write=y:1");
    cluster.flush_log(3);
    cut_all(&mut cluster);
    cluster.deliver_all();
    assert_eq!(cluster.run(1, "read=y"), [Some("1".to_owned())]);
}

#[test]
fn a_call_that_one_node_remembers_is_known_to_all() {
    let mut cluster = cluster(Logs::Async, Replicas::default());
    let once = permit(1, 1);
    let tag = cluster.call(1, once, "append=y:1");
    cluster.deliver_unflushed();
    cluster.read_by(tag);
    cluster.flush_log(3);
    cut_all(&mut cluster);
    cluster.deliver_all();
    cluster.call(2, once, "append=y:1");
    cluster.deliver_all();
    assert_eq!(cluster.run(1, "read=y"), [Some("1".to_owned())]);
}

#[test]
fn who_has_promised_nothing_that_is_lost_is_in_no_doubt() {
    let mut cluster = durable();
    cluster.run(1, "write=y:1");
    for _ in 0..2 {
        (1..=3).for_each(|node| cluster.save(node, 0));
        cut_all(&mut cluster);
        cluster.deliver_all();
        cluster.flush_logs();
        assert_eq!(cluster.run(2, "read=y"), [Some("1".to_owned())]);
    }
    assert_eq!(cluster.probed("zeus: takes in what its log has lost"), 0);
}

/// The life that ended while it was in doubt had not heard the others.
#[test]
fn doubts_outlive_another_loss_of_power() {
    let mut cluster = cluster(Logs::Async, Replicas::default());
    cluster.run_unflushed(1, "write=y:1");
    cluster.flush_log(3);
    for _ in 0..2 {
        cut_all(&mut cluster);
        cluster.flush_logs();
    }
    cluster.deliver_all();
    assert_eq!(cluster.run(1, "read=y"), [Some("1".to_owned())]);
}

#[test]
fn who_joins_copies_from_no_node_in_doubt() {
    let mut cluster = cluster(Logs::Async, Replicas::default());
    cluster.run_unflushed(1, "write=y:1");
    cluster.flush_log(2);
    (1..=3).for_each(|node| cluster.cut_power_unflushed(node));
    cluster.pool.clear();
    (1..=2).for_each(|node| cluster.restart(node, u64::from(node)));
    cluster.start(3, 3);
    cluster.install(&[(1, Role::Active), (2, Role::Active), (3, Role::Shadow)]);
    cluster.deliver(1, 2, "copy_read");
    assert_eq!(cluster.take(2, 1, "copy").len(), 1);
    let asked = cluster.pool.iter().find(|packet| packet.from == NodeId(3)).expect("a question");
    let (donor, kind) = (asked.to.0, asked.kind());
    assert_eq!(kind, "copy_read");
    cluster.deliver(3, donor, kind);
    assert!(cluster.take(donor, 3, "copy").is_empty());
    cluster.run_for(MLT * 10);
    assert!(cluster.is_caught_up(3));
    cluster.set_role(3, Role::Active);
    cluster.deliver_all();
    assert_eq!(cluster.record(3, "y").and_then(|(_, value)| value), Some("1".to_owned()));
}
