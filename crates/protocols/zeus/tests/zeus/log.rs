//! Nodes that keep logs: what waits for them, and what comes back after the loss of power. With three
//! nodes `y` belongs to 1, 2, 3 in this order.

mod in_doubt;

use quorate_harness::{Logs, Packet};
use quorate_machine::{Machine as _, Outcome, Refusal, Rng};
use quorate_storage::Store;
use quorate_types::{Duration, Incarnation, LaneId, NodeId, Role, Timestamp};
use quorate_zeus::{Config, DataState, Zeus};

use crate::calls::permit;
use crate::support::{Cluster, MLT, Node, Replicas};

fn cluster(logs: Logs, replicas: Replicas) -> Cluster {
    let mut cluster = Cluster::logging(replicas, logs, (3, 0), |_| 0, u64::from);
    cluster.flush_logs();
    cluster.deliver_all();
    cluster
}

/// Three nodes whose promises wait for their logs.
fn durable() -> Cluster {
    cluster(Logs::Sync, Replicas::default())
}

/// The same, where all collections are large.
fn large() -> Cluster {
    cluster(Logs::Sync, Replicas { packed_bytes_max: Some(|_| 0), ..Replicas::default() })
}

/// The power of all nodes goes, and of what was not durable nothing is left. All come back.
fn cut_all(cluster: &mut Cluster) {
    cluster.lose_power(3);
}

/// Nodes 2 and 3, a group, lose power, and come back in a view of four active members.
fn revive_group(cluster: &mut Cluster) {
    [2, 3].into_iter().for_each(|node| cluster.cut_power_unflushed(node));
    cluster.pool.clear();
    [2, 3].into_iter().for_each(|node| cluster.restart(node, u64::from(node)));
    cluster.install(&[1, 2, 3, 4].map(|node| (node, Role::Active)));
}

#[test]
fn a_transaction_is_committed_when_it_is_durable_at_all_that_keep_it() {
    let mut cluster = durable();
    let tag = cluster.submit(1, "write=y:1");
    cluster.deliver(1, 2, "r-inv");
    cluster.deliver(1, 3, "r-inv");
    assert!(cluster.take(2, 1, "r-ack").is_empty(), "it waits for the log of node 2");
    cluster.flush_log(2);
    cluster.flush_log(3);
    cluster.deliver(2, 1, "r-ack");
    cluster.deliver(3, 1, "r-ack");
    cluster.assert_open(tag);
    assert_eq!(cluster.meta(1, "y").data, DataState::Write);
    assert_eq!(cluster.probed("zeus: a commit waits for the log"), 1);
    cluster.flush_log(1);
    assert_eq!(cluster.outcome(tag), Some(&Outcome::Done(Vec::new())));
    assert_eq!(cluster.meta(1, "y").data, DataState::Valid);
    cut_all(&mut cluster);
    cluster.deliver_all();
    assert_eq!(cluster.run(2, "read=y"), [Some("1".to_owned())]);
}

#[test]
fn a_duplicate_is_acknowledged_when_what_it_repeats_is_durable() {
    let mut cluster = durable();
    cluster.submit(1, "write=y:1");
    let packet = cluster.deliver(1, 2, "r-inv");
    cluster.inject(&packet);
    assert!(cluster.take(2, 1, "r-ack").is_empty());
    cluster.flush_log(2);
    assert_eq!(cluster.take(2, 1, "r-ack").len(), 2);
}

#[test]
fn without_waiting_for_logs_a_transaction_is_committed_at_once() {
    let mut cluster = cluster(Logs::Async, Replicas::default());
    let tag = cluster.submit(1, "write=y:1");
    for node in [2, 3] {
        cluster.deliver(1, node, "r-inv");
        cluster.deliver(node, 1, "r-ack");
    }
    assert_eq!(cluster.outcome(tag), Some(&Outcome::Done(Vec::new())));
}

/// With four nodes and two replicas `d` belongs to 2 and 3, and `c` to 1 and 4. Node 4 replays a change of a
/// list that its keepers have lost.
#[test]
fn a_change_of_what_is_lost_everywhere_is_lost_as_well() {
    let replicas =
        Replicas { replicas: Some(2), packed_bytes_max: Some(|_| 0), ..Replicas::default() };
    let mut cluster = Cluster::logging(replicas, Logs::Async, (4, 0), |_| 0, u64::from);
    cluster.run(1, "put=d:,0 put=c:,0");
    cluster.run_unflushed(1, "push=d:,1");
    cluster.submit(1, "push=d:,2 push=c:,2");
    cluster.deliver(1, 4, "r-inv");
    cluster.flush_log(4);
    cluster.lose_power(4);
    cluster.run_for(MLT * 20);
    let expected = [",0", ",0,2"].map(|value| Some(value.to_owned()));
    assert_eq!(cluster.run(3, "read=d read=c"), expected);
    assert!(cluster.probed("zeus: what a transaction changes is lost") > 0);
}

/// The same, where node 3 comes back with nothing and learns `d`. That the change is lost it hears from node 2.
#[test]
fn who_learns_a_key_hears_from_a_node_in_doubt_what_is_lost() {
    let replicas =
        Replicas { replicas: Some(2), packed_bytes_max: Some(|_| 0), ..Replicas::default() };
    let mut cluster = Cluster::logging(replicas, Logs::Async, (4, 0), |_| 0, u64::from);
    cluster.run(1, "put=d:,0 put=c:,0");
    cluster.run_unflushed(1, "push=d:,1");
    cluster.submit(1, "push=d:,2 push=c:,2");
    cluster.deliver(1, 4, "r-inv");
    cluster.flush_log(4);
    restart_without(&mut cluster, 3);
    cluster.run_for(MLT * 40);
    let expected = [",0", ",0,2"].map(|value| Some(value.to_owned()));
    assert_eq!(cluster.run(2, "read=d read=c"), expected);
    assert!(cluster.is_caught_up(3));
}

/// The power of four nodes goes, and of what was not durable nothing is left. One comes back with nothing.
fn restart_without(cluster: &mut Cluster, lost: u16) {
    (1..=4).for_each(|node| cluster.cut_power_unflushed(node));
    cluster.pool.clear();
    let mut roles = Vec::new();
    for node in 1..=4 {
        if node == lost {
            cluster.start(node, u64::from(node));
            roles.push((node, Role::Shadow));
        } else {
            cluster.restart(node, u64::from(node));
            roles.push((node, Role::Active));
        }
    }
    cluster.install(&roles);
}

/// One transaction has changed `d` and `h`, and its change of `d` is lost. Node 1 tells node 3 that a value of
/// `h` is under way, which that transaction brings. `h` belongs to nodes 1 and 3; node 2 is back with nothing.
#[test]
fn a_change_that_is_lost_holds_up_no_key_of_the_same_transaction() {
    let replicas =
        Replicas { replicas: Some(2), packed_bytes_max: Some(|_| 0), ..Replicas::default() };
    let mut cluster = Cluster::logging(replicas, Logs::Async, (4, 0), |_| 0, u64::from);
    cluster.run(1, "put=d:,0 put=c:,0 write=h:0");
    cluster.run_unflushed(1, "push=d:,1");
    cluster.submit(1, "push=d:,2 push=c:,2 write=h:2");
    cluster.deliver(1, 4, "r-inv");
    cluster.flush_log(4);
    restart_without(&mut cluster, 2);
    cluster.run_some(MLT * 10, |packet| !packet.is(3, 1, "copy_read"));
    assert_eq!(cluster.record(1, "h").and_then(|(_, value)| value), Some("2".to_owned()));
    cluster.run_for(MLT * 40);
    let expected = [",0", ",0,2", "2"].map(|value| Some(value.to_owned()));
    assert_eq!(cluster.run(3, "read=d read=c read=h"), expected);
}

/// Node 4 replays a change of `d`, which 2 and 3 have lost. That it was committed node 3 hears from node 1 before.
#[test]
fn what_was_committed_and_is_lost_here_is_taken_from_who_replays_it() {
    let replicas = Replicas { replicas: Some(2), ..Replicas::default() };
    let mut cluster = Cluster::logging(replicas, Logs::Async, (4, 0), |_| 0, u64::from);
    cluster.run(1, "write=d:0 write=c:0 write=h:0");
    cluster.flush_logs();
    cluster.run_unflushed(1, "write=d:1 write=c:1");
    cluster.flush_log(4);
    cluster.run_unflushed(1, "write=h:2");
    cluster.flush_log(1);
    cluster.lose_power(4);
    cluster.run_some(MLT * 10, |packet| !packet.is(4, 0, "r-inv"));
    cluster.run_for(MLT * 20);
    let expected = ["1", "1", "2"].map(|value| Some(value.to_owned()));
    for node in 1..=4 {
        assert_eq!(cluster.run(node, "read=d read=c read=h"), expected);
    }
    cluster.assert_quiet(["d", "c", "h"].map(str::to_owned));
}

/// Node 4 replays a change of `d` that node 2 knows to be committed, and overwritten since. Node 3 comes back
/// with nothing and learns `d`.
#[test]
fn who_learns_a_key_waits_for_no_base_that_is_overwritten() {
    for logs in [Logs::Sync, Logs::Async] {
        let replicas =
            Replicas { replicas: Some(2), packed_bytes_max: Some(|_| 0), ..Replicas::default() };
        let mut cluster = Cluster::logging(replicas, logs, (4, 0), |_| 0, u64::from);
        cluster.run(1, "put=d:,0 put=c:,0");
        cluster.run(1, "push=d:,1 push=c:,1");
        cluster.run(1, "put=d:,9");
        // `b` belongs to 2 and 1: node 2 hears with it what is committed.
        cluster.run(1, "write=b:1");
        cluster.flush_logs();
        restart_without(&mut cluster, 3);
        cluster.run_for(MLT * 40);
        let expected = [",9", ",0,1"].map(|value| Some(value.to_owned()));
        assert_eq!(cluster.run(2, "read=d read=c"), expected, "{logs:?}");
        assert!(cluster.is_caught_up(3));
    }
}

/// The same, where node 2 has deleted `d` since, and forgotten it. Node 1 may replay the base, too.
#[test]
fn nobody_learns_what_others_have_forgotten() {
    for knows_base in [false, true] {
        let replicas = Replicas {
            replicas: Some(2),
            packed_bytes_max: Some(|_| 0),
            collect_every: Some(Duration::from_millis(20)),
            ..Replicas::default()
        };
        let mut cluster = Cluster::logging(replicas, Logs::Async, (4, 0), |_| 0, u64::from);
        cluster.run(1, "put=d:,0 put=c:,0");
        if knows_base {
            // It says that the lists are committed.
            cluster.run(1, "write=b:0");
        }
        cluster.run_unflushed(1, "push=d:,1 push=c:,1");
        cluster.flush_log(4);
        cluster.run_unflushed(1, "del=d");
        for _ in 0..200 {
            cluster.tick(Duration::from_millis(5));
            cluster.deliver_unflushed();
        }
        assert_eq!(cluster.record(2, "d"), None, "it is forgotten");
        cluster.flush_log(2);
        restart_without(&mut cluster, 3);
        cluster.run_for(MLT * 40);
        let expected = [None, Some(",0,1".to_owned())];
        assert_eq!(cluster.run(2, "read=d read=c"), expected);
        assert!(cluster.is_caught_up(3));
        cluster.set_role(3, Role::Active);
        cluster.deliver_all();
        cluster.assert_quiet(["c", "d"].map(str::to_owned));
    }
}

/// With four nodes and two replicas `d` belongs to 2 and 3, which lose power while a node outside owns it.
#[test]
fn who_lives_on_keeps_what_it_owns_of_a_group_that_lost_power() {
    for logs in [Logs::Sync, Logs::Async] {
        let replicas = Replicas { replicas: Some(2), ..Replicas::default() };
        let mut cluster = Cluster::logging(replicas, logs, (4, 0), |_| 0, u64::from);
        cluster.run(1, "write=d:1");
        if logs == Logs::Async {
            cluster.run_unflushed(1, "write=d:2");
        } else {
            cluster.run(1, "write=d:2");
        }
        assert_eq!(cluster.writers("d"), [1]);
        let asked = cluster.submit(2, "append=d:!");
        cluster.assert_open(asked);
        cluster.run_for(MLT * 5);
        assert_eq!(cluster.run(3, "read=d"), [Some("2!".to_owned())]);
        assert_eq!(cluster.writers("d"), [2]);
        cluster.assert_quiet(["d".to_owned()]);
    }
}

/// The floor has risen above the round by which the node outside has got the key. It still owns it.
#[test]
fn an_owner_that_lives_on_keeps_keys_that_are_older_than_the_floor() {
    let collect_every = Some(Duration::from_millis(20));
    let replicas = Replicas { replicas: Some(2), collect_every, ..Replicas::default() };
    let mut cluster = Cluster::logging(replicas, Logs::Sync, (4, 0), |_| 0, u64::from);
    cluster.run(1, "write=d:1");
    cluster.run(1, "write=d2:1");
    cluster.run(1, "del=d2");
    cluster.run_for(Duration::from_secs(1));
    let floor = cluster.machine_of(2, "d").floor();
    assert!(cluster.meta(2, "d").round < floor);
    revive_group(&mut cluster);
    cluster.run_for(MLT * 5);
    assert_eq!(cluster.machine_of(2, "d").floor(), floor);
    assert_eq!(cluster.writers("d"), [1]);
    cluster.run(2, "append=d:!");
    assert_eq!(cluster.run(3, "read=d"), [Some("1!".to_owned())]);
    assert_eq!(cluster.writers("d"), [2]);
    cluster.assert_quiet(["d".to_owned()]);
}

/// With four nodes and two replicas `d` belongs to 2 and 3. Node 1 has agreed to give it to node 4, which dies
/// while 2 and 3 have lost the value.
#[test]
fn an_owner_keeps_what_a_group_in_doubt_may_have_lost() {
    let replicas = Replicas { replicas: Some(2), ..Replicas::default() };
    let mut cluster = Cluster::logging(replicas, Logs::Async, (4, 0), |_| 0, u64::from);
    cluster.run_unflushed(1, "write=d:1");
    cluster.submit(4, "append=d:!");
    let driver = cluster.pool.first().expect("a request").to.0;
    cluster.deliver(4, driver, "req");
    cluster.deliver(driver, 1, "inv");
    [2, 3].into_iter().for_each(|node| cluster.cut_power_unflushed(node));
    cluster.crash(4);
    cluster.pool.clear();
    [2, 3].into_iter().for_each(|node| cluster.restart(node, u64::from(node)));
    let roles = [(1, Role::Active), (2, Role::Active), (3, Role::Active), (4, Role::Down)];
    cluster.install(&roles);
    // The round of the dead goes on before anybody is heard.
    cluster.run_some(MLT * 5, |packet| !packet.kind().starts_with("copy"));
    cluster.run_for(MLT * 20);
    assert_eq!(cluster.run(2, "read=d"), [Some("1".to_owned())]);
}

/// The same of a keyspace in memory. Node 4 has agreed to give the key to node 1, which wants it no more: 2 and 3 have
/// heard node 1 when it gets the key, and hear node 4 when that has dropped it. Another view may come meanwhile.
#[test]
fn an_owner_keeps_what_a_group_in_memory_has_lost() {
    for views in 1..=2 {
        let op_timeout = Some(MLT * 4);
        let replicas = Replicas { replicas: Some(2), op_timeout, ..Replicas::default() };
        let mut cluster = Cluster::of(replicas, 4, |_| 0, u64::from);
        cluster.run(4, "write=d:1");
        let tag = cluster.submit(1, "append=d:!");
        let driver = cluster.pool.first().expect("a request").to.0;
        cluster.deliver(1, driver, "req");
        cluster.deliver(driver, 4, "inv");
        [2, 3].into_iter().for_each(|node| cluster.crash(node));
        cluster.tick(MLT * 5);
        assert_eq!(cluster.outcome(tag), Some(&Outcome::Refused(Refusal::TimedOut)));
        cluster.pool.clear();
        [2, 3].into_iter().for_each(|node| cluster.restart(node, u64::from(node)));
        for _ in 0..views {
            cluster.install(&[1, 2, 3, 4].map(|node| (node, Role::Active)));
        }
        let is_of_owner = |packet: &Packet<Replicas>| {
            packet.from == NodeId(4) && packet.kind().starts_with("copy")
        };
        cluster.run_some(MLT * 5, |packet| !is_of_owner(packet));
        cluster.run_for(MLT * 20);
        for node in [2, 3, 1, 4] {
            assert_eq!(cluster.run(node, "read=d"), [Some("1".to_owned())], "at {node}");
        }
        cluster.assert_quiet(["d".to_owned()]);
    }
}

/// The key went from node 1 to 4 and on to 2, and nobody outside its group remembers. Node 1 is asked once more to
/// give it to node 4, long after. Then the group loses power, and with it the later rounds.
#[test]
fn a_round_of_long_ago_takes_no_key_from_a_group_that_lost_power() {
    let replicas = Replicas { replicas: Some(2), ..Replicas::default() };
    let mut cluster = Cluster::logging(replicas, Logs::Sync, (4, 0), |_| 0, u64::from);
    cluster.run(1, "append=d:1");
    cluster.submit(4, "append=d:4");
    let mut asked = None;
    loop {
        let sent =
            cluster.pool.iter().find(|packet| packet.to == NodeId(1) && packet.kind() == "inv");
        asked = sent.cloned().or(asked);
        cluster.flush_logs();
        if cluster.pool.is_empty() {
            break;
        }
        let packet = cluster.pool.remove(0);
        cluster.inject(&packet);
    }
    cluster.run(2, "append=d:2");
    cluster.run_for(Duration::from_secs(1));
    cluster.inject(&asked.expect("the owner is an arbiter"));
    revive_group(&mut cluster);
    cluster.run_for(MLT * 50);
    for node in 1..=4 {
        assert_eq!(cluster.run(node, "read=d"), [Some("142".to_owned())], "at {node}");
    }
    cluster.assert_quiet(["d".to_owned()]);
}

#[test]
fn what_one_node_has_in_its_log_is_replayed_to_all() {
    let mut cluster = durable();
    cluster.run(1, "write=y:1 write=d:1");
    cluster.submit(1, "append=y:2 append=d:2");
    cluster.submit(1, "append=d:3");
    cluster.deliver(1, 2, "r-inv");
    cluster.deliver(1, 2, "r-inv");
    cluster.flush_log(2);
    cut_all(&mut cluster);
    // Before all have recovered nobody reads it.
    assert_eq!(cluster.meta(2, "y").data, DataState::Invalid);
    cluster.deliver_all();
    for node in 1..=3 {
        assert_eq!(cluster.run(node, "read=y read=d"), ["12", "123"].map(|it| Some(it.to_owned())));
    }
    cluster.assert_quiet(["y", "d"].map(str::to_owned));
}

#[test]
fn what_no_node_has_in_its_log_has_not_happened() {
    let mut cluster = durable();
    cluster.run(1, "write=y:1");
    cluster.submit(1, "append=y:2");
    cluster.deliver(1, 2, "r-inv");
    cut_all(&mut cluster);
    cluster.deliver_all();
    assert_eq!(cluster.run(3, "read=y"), [Some("1".to_owned())]);
}

#[test]
fn lists_come_back_with_their_changes_from_snapshots_and_logs() {
    let mut cluster = large();
    cluster.run(1, "put=y:,0 write=d:0");
    cluster.run(1, "push=y:,1");
    assert!(!cluster.save_some(2, 0, 1), "it has begun");
    cluster.run(1, "push=y:,2");
    (1..=3).for_each(|node| cluster.save(node, 0));
    cluster.run(1, "push=y:,3");
    // Two are under way, and node 2 saves what the last has left.
    cluster.submit(1, "push=y:,4");
    cluster.submit(1, "push=y:,5 write=d:5");
    cluster.deliver(1, 2, "r-inv");
    cluster.deliver(1, 2, "r-inv");
    cluster.save(2, 0);
    for _ in 0..2 {
        cut_all(&mut cluster);
        cluster.deliver_all();
        for node in 1..=3 {
            let expected = [",0,1,2,3,4,5", "5"].map(|value| Some(value.to_owned()));
            assert_eq!(cluster.run(node, "read=y read=d"), expected);
        }
    }
}

#[test]
fn a_node_replays_also_what_it_does_not_keep() {
    // With four nodes and two replicas `d` belongs to 2 and 3, and `c` to 1 and 4.
    let replicas =
        Replicas { replicas: Some(2), packed_bytes_max: Some(|_| 0), ..Replicas::default() };
    let mut cluster = Cluster::logging(replicas, Logs::Sync, (4, 0), |_| 0, u64::from);
    cluster.flush_logs();
    cluster.deliver_all();
    cluster.run(1, "put=d:,0 put=c:,0");
    cluster.submit(1, "push=d:,1 push=c:,1");
    cluster.deliver(1, 4, "r-inv");
    cluster.flush_log(4);
    cluster.lose_power(4);
    cluster.deliver_all();
    let expected = [",0,1", ",0,1"].map(|value| Some(value.to_owned()));
    assert_eq!(cluster.run(3, "read=d read=c"), expected);
}

#[test]
fn a_node_that_restarts_alone_begins_without_records() {
    let mut cluster = durable();
    cluster.run(1, "write=y:1 write=d:1");
    cluster.expel(&[2]);
    cluster.deliver_all();
    cluster.run(1, "del=d write=y:2");
    cluster.restart(2, 7);
    cluster.set_role(2, Role::Shadow);
    assert_eq!(cluster.record(2, "d"), None, "it may be old");
    let deadline = cluster.now.monotonic + Duration::from_secs(1);
    while !cluster.is_caught_up(2) && cluster.now.monotonic < deadline {
        let packet = cluster.pool.first().map(|packet| (packet.from.0, packet.to.0, packet.kind()));
        match packet {
            Some((from, to, kind)) => drop(cluster.deliver(from, to, kind)),
            None => {
                assert!(!cluster.is_caught_up(2), "what it has copied is not durable");
                cluster.flush_logs();
                cluster.tick(MLT);
            }
        }
    }
    cluster.run_for(MLT * 5);
    assert!(cluster.is_caught_up(2));
    cluster.set_role(2, Role::Active);
    cluster.deliver_all();
    // Now it is one of those that have everything.
    cluster.go_on_from_node_2();
    cluster.run_for(MLT * 5);
    assert_eq!(cluster.run(2, "read=y read=d"), [Some("2".to_owned()), None]);
}

/// Nobody tells a node that copies everything anew of keys that were deleted and forgotten while it was
/// away: what its log had before is of no use, in the cluster that it was of and in one that was recovered
/// from it.
#[test]
fn what_a_node_had_before_it_copied_everything_does_not_come_back() {
    for is_recovered in [false, true] {
        let collect_every = Some(Duration::from_millis(20));
        let mut cluster = cluster(Logs::Sync, Replicas { collect_every, ..Replicas::default() });
        cluster.run(1, "write=y:1 write=d:1");
        cluster.expel(&[2]);
        cluster.deliver_all();
        cluster.run(1, "del=d");
        cluster.run_for(Duration::from_secs(1));
        assert_eq!(cluster.record(1, "d"), None, "it is forgotten");
        if is_recovered {
            [1, 3].into_iter().for_each(|node| cluster.cut_power_unflushed(node));
            cluster.pool.clear();
            [1, 3].into_iter().for_each(|node| cluster.restart(node, u64::from(node)));
            cluster.recover();
            cluster.install(&[(1, Role::Active), (3, Role::Active)]);
            cluster.deliver_all();
        }
        cluster.restart(2, 7);
        cluster.set_role(2, Role::Shadow);
        cluster.run_for(Duration::from_secs(1));
        assert!(cluster.is_caught_up(2));
        cluster.set_role(2, Role::Active);
        cluster.deliver_all();
        cluster.go_on_from_node_2();
        cluster.run_for(Duration::from_secs(1));
        let there = [Some("1".to_owned()), None];
        assert_eq!(cluster.run(2, "read=y read=d"), there, "recovered: {is_recovered}");
    }
}

#[test]
fn a_learner_has_caught_up_when_what_it_has_copied_is_durable() {
    let mut cluster = durable();
    cluster.run(1, "write=y:1");
    cluster.expel(&[2]);
    cluster.deliver_all();
    cluster.start(2, 7);
    cluster.set_role(2, Role::Shadow);
    for _ in 0..200 {
        let Some(packet) = cluster.pool.first() else { break };
        let (from, to, kind) = (packet.from.0, packet.to.0, packet.kind());
        cluster.deliver(from, to, kind);
        [1, 3].into_iter().for_each(|node| _ = cluster.flush_log(node));
    }
    assert_eq!(cluster.record(2, "y").and_then(|(_, value)| value), Some("1".to_owned()));
    assert!(!cluster.is_caught_up(2));
    cluster.flush_log(2);
    assert!(cluster.is_caught_up(2));
}

#[test]
fn records_of_another_cluster_go() {
    let mut cluster = durable();
    cluster.run(1, "write=y:1");
    (1..=3).for_each(|node| cluster.cut_power_unflushed(node));
    (1..=3).for_each(|node| cluster.restart(node, 5));
    cluster.view.cluster = Incarnation(99);
    let roles: Vec<_> = (1..=3).map(|node| (node, Role::Active)).collect();
    cluster.install(&roles);
    cluster.deliver_all();
    assert_eq!(cluster.run(1, "read=y"), [None]);
    cluster.run(1, "write=d:1");
    cut_all(&mut cluster);
    cluster.deliver_all();
    assert_eq!(cluster.run(3, "read=y read=d"), [None, Some("1".to_owned())]);
}

#[test]
fn a_recovered_cluster_goes_on_with_what_its_nodes_have() {
    let mut cluster = durable();
    cluster.run(1, "write=y:1");
    for round in 0..3 {
        (1..=3).for_each(|node| cluster.cut_power_unflushed(node));
        cluster.pool.clear();
        (1..=2).for_each(|node| cluster.restart(node, u64::from(node)));
        if round < 2 {
            cluster.recover();
        }
        cluster.install(&[(1, Role::Active), (2, Role::Active)]);
        cluster.deliver_all();
        let there = [Some("1".to_owned())];
        assert_eq!([1, 2].map(|node| cluster.run(node, "read=y")), [&there[..]; 2], "{round}");
        cluster.run(2, &format!("write=d:{round}"));
    }
}

#[test]
fn what_a_node_has_of_keys_that_are_not_its_own_goes() {
    // With four nodes and two replicas `d` belongs to 2 and 3.
    let replicas = Replicas { replicas: Some(2), ..Replicas::default() };
    let mut cluster = Cluster::logging(replicas, Logs::Sync, (4, 0), |_| 0, u64::from);
    cluster.deliver_all();
    cluster.run(1, "write=d:1");
    assert!(cluster.record(1, "d").is_some(), "it is the owner");
    (1..=4).for_each(|node| cluster.cut_power_unflushed(node));
    (1..=4).for_each(|node| cluster.restart(node, 5));
    let roles: Vec<_> = (1..=4).map(|node| (node, Role::Active)).collect();
    cluster.install(&roles);
    cluster.deliver_all();
    assert_eq!(cluster.record(1, "d"), None);
    assert_eq!(cluster.run(1, "read=d"), [Some("1".to_owned())]);
}

#[test]
fn what_was_given_away_does_not_come_back() {
    // With four nodes and two replicas `d` belongs to 2 and 3.
    let replicas = Replicas { replicas: Some(2), ..Replicas::default() };
    let mut cluster = Cluster::logging(replicas, Logs::Sync, (4, 0), |_| 0, u64::from);
    cluster.flush_logs();
    cluster.deliver_all();
    cluster.run(1, "write=d:1");
    cluster.run(2, "write=d:2");
    assert_eq!(cluster.record(1, "d"), None);
    cluster.cut_power_unflushed(1);
    cluster.restart(1, 5);
    assert_eq!(cluster.record(1, "d"), None, "it may belong to the group of `d` by now");
}

#[test]
fn a_node_restores_only_what_it_keeps() {
    let replicas = Replicas { replicas: Some(2), ..Replicas::default() };
    let mut cluster = Cluster::logging(replicas, Logs::Sync, (4, 0), |_| 0, u64::from);
    cluster.flush_logs();
    cluster.deliver_all();
    // `c` belongs to 1 and 4: node 4 has all of the transaction in its log.
    cluster.run(1, "write=d:1 write=c:1");
    cluster.cut_power_unflushed(4);
    cluster.restart(4, 5);
    assert_eq!(cluster.record(4, "d"), None);
    assert_eq!(cluster.record(4, "c").and_then(|(_, value)| value), Some("1".to_owned()));
}

#[test]
fn floors_come_back() {
    let collect_every = Some(Duration::from_millis(20));
    let mut cluster = cluster(Logs::Sync, Replicas { collect_every, ..Replicas::default() });
    cluster.run(1, "write=y:1 write=d:1");
    cluster.run(1, "del=y");
    cluster.run_for(Duration::from_secs(1));
    assert_eq!(cluster.record(2, "y"), None, "it is forgotten");
    let floor = cluster.machine_of(2, "y").floor();
    cut_all(&mut cluster);
    assert_eq!(cluster.machine_of(2, "y").floor(), floor);
    cluster.deliver_all();
    (1..=3).for_each(|node| cluster.save(node, 0));
    cut_all(&mut cluster);
    assert_eq!(cluster.machine_of(2, "y").floor(), floor);
    cluster.deliver_all();
    assert_eq!(cluster.run(3, "read=y read=d"), [None, Some("1".to_owned())]);
}

/// While a node copies its log has no floors. When it has copied everything it has them: otherwise a key that is
/// absent had another version at this node than at the others after the next loss of power, and a WATCH
/// of it would fail.
#[test]
fn floors_of_a_copy_come_back() {
    let collect_every = Some(Duration::from_millis(20));
    let mut cluster = cluster(Logs::Sync, Replicas { collect_every, ..Replicas::default() });
    cluster.run(1, "write=y:1 write=d:1");
    cluster.run(1, "del=y");
    cluster.run_for(Duration::from_secs(1));
    cluster.expel(&[2]);
    cluster.deliver_all();
    cluster.restart(2, 7);
    cluster.set_role(2, Role::Shadow);
    for _ in 0..20 {
        cluster.deliver_all();
        cluster.flush_logs();
    }
    assert!(cluster.is_caught_up(2));
    cluster.set_role(2, Role::Active);
    let floor = cluster.machine_of(2, "y").floor();
    assert_ne!(floor, Timestamp::ZERO);
    assert_eq!(cluster.machine_of(1, "y").floor(), floor);
    cut_all(&mut cluster);
    assert_eq!(cluster.machine_of(2, "y").floor(), floor);
    cluster.deliver_all();
    assert_eq!(cluster.run(2, "read=y read=d"), [None, Some("1".to_owned())]);
}

#[test]
fn what_is_known_to_be_committed_is_not_replayed() {
    let mut cluster = durable();
    cluster.run(1, "write=y:1");
    cluster.run(2, "write=y:2");
    cluster.run(2, "write=d:3");
    cut_all(&mut cluster);
    cluster.deliver_all();
    // Node 2 has said that it had committed the second one, and so the first was.
    assert_eq!(cluster.probed("zeus: a transaction is replayed"), 3);
    assert_eq!(cluster.run(3, "read=y read=d"), ["2", "3"].map(|it| Some(it.to_owned())));
}

#[test]
fn a_call_that_was_committed_is_answered_after_a_restart() {
    let mut cluster = durable();
    let tag = cluster.call(1, permit(0, 0), "append=y:1");
    cluster.deliver_all();
    let answer = cluster.outcome(tag).cloned();
    assert!(matches!(answer, Some(Outcome::Done(_))));
    cluster.run(1, "write=y:2");
    for round in 0..3 {
        if round == 1 {
            (1..=3).for_each(|node| cluster.save(node, 0));
        }
        cut_all(&mut cluster);
        cluster.deliver_all();
        let again = cluster.call(2, permit(0, 0), "append=y:1");
        cluster.deliver_all();
        assert_eq!(cluster.outcome(again).cloned(), answer);
    }
    assert_eq!(cluster.run(2, "read=y"), [Some("2".to_owned())]);
}

// --- bytes ---------------------------------------------------------------------------------------

#[test]
fn entries_have_these_bytes() {
    let mut cluster = large();
    cluster.run(1, "write=y:1");
    cluster.run(1, "put=d:,0");
    cluster.submit(1, "push=d:,1 del=y");
    cluster.call(1, permit(0, 0), "write=y:2");
    cluster.deliver_all();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let mut entries: Vec<String> = cluster.log_of(2, 0).into_iter().map(hex).collect();
    cluster.save(2, 0);
    entries.extend(cluster.log_of(2, 0).into_iter().map(hex));
    let written: String = entries.iter().map(|line| format!("{line}\n")).collect();
    if std::env::var_os("QUORATE_BLESS").is_some() {
        std::fs::write("tests/zeus/entries.golden", &written).expect("the golden file");
    }
    assert_eq!(written, include_str!("entries.golden"));
}

#[test]
fn a_small_value_costs_little_more_than_itself_in_the_log() {
    /// What the log adds to an entry.
    const FRAMING: usize = 27;
    let mut cluster = durable();
    let (key, value) = ("a-key-of-sixteen", "v".repeat(100));
    cluster.run(1, &format!("write={key}:{value}"));
    for node in 1..=3 {
        let log = cluster.log_of(node, 0);
        let entry = log.last().expect("it was appended").len() + FRAMING;
        assert!(entry * 10 <= (key.len() + value.len()) * 16, "{entry}");
    }
}

fn fresh() -> Node {
    let config = Config::new(NodeId(1), Incarnation(1), LaneId(0), 1);
    Zeus::new(config, Store::new(1).shared_table(0))
}

#[test]
fn damaged_entries_are_unreadable_and_nothing_worse() {
    let mut cluster = large();
    cluster.run(1, "write=y:1 put=d:,0");
    cluster.call(1, permit(0, 0), "push=d:,1");
    cluster.deliver_all();
    cluster.submit(1, "push=d:,2 del=y");
    cluster.submit(1, "push=d:,3");
    cluster.deliver(1, 2, "r-inv");
    cluster.deliver(1, 2, "r-inv");
    let mut entries: Vec<Vec<u8>> = cluster.log_of(2, 0).into_iter().map(<[u8]>::to_vec).collect();
    cluster.save(2, 0);
    entries.extend(cluster.log_of(2, 0).into_iter().map(<[u8]>::to_vec));
    let mut rng = Rng::new(7);
    for (at, entry) in entries.iter().enumerate() {
        for length in 0..entry.len() {
            let _ = fresh().restore(&entry[..length]);
        }
        for _ in 0..300 {
            let mut damaged = entry.clone();
            for _ in 0..=rng.below(3) {
                let place = rng.below(entry.len() as u64) as usize;
                damaged[place] = rng.below(256) as u8;
            }
            let mut node = fresh();
            for before in &entries[..at] {
                assert_eq!(node.restore(before), Ok(()));
            }
            if node.restore(&damaged).is_ok() {
                node.restored();
                node.check_invariants();
            }
        }
    }
    assert!(fresh().restore(&[]).is_err());
    assert!(fresh().restore(&[99]).is_err());
}
