//! What is kept in the log, and what comes back.

use quorate_harness::Logs;
use quorate_hermes::{Message, State};
use quorate_machine::{Machine as _, Outcome, Refusal, Unreadable};
use quorate_rifl::{Call, LeaseId};
use quorate_types::{Duration, LaneId, MemberNumber, NodeId, Role};

use crate::op::{ABSENT, Reply, append, del, get, incr, set, set_until, value};
use crate::support::{Cluster, MLT, Packet, WALL, seed_for};

/// Three replicas whose promises wait for their logs.
fn cluster() -> Cluster {
    let seed_of = |node| seed_for(&[node as u8, node as u8]);
    Cluster::logging(3, Logs::Sync, seed_of, |_| {}, |_| usize::MAX)
}

/// Delivers everything without a flush of any log.
fn deliver_unflushed(cluster: &mut Cluster) {
    while !cluster.pool.is_empty() {
        let packet = cluster.pool.remove(0);
        cluster.inject(&packet);
    }
}

fn lose_power(cluster: &mut Cluster, nodes: &[u16]) {
    nodes.iter().for_each(|node| cluster.cut_power_unflushed(*node));
}

fn restart(cluster: &mut Cluster, nodes: &[u16]) {
    nodes.iter().for_each(|node| cluster.restart(*node, u64::from(*node)));
}

fn call(sequence: u64) -> Call {
    let lease = LeaseId::new(MemberNumber(1), LaneId(0), 7);
    Call { lease, sequence, first_incomplete: 3, digest: 9 }
}

const ALL_ACTIVE: [(u16, Role); 3] = [(1, Role::Active), (2, Role::Active), (3, Role::Active)];

/// Deleted keys are forgotten soon.
fn collect_soon(config: &mut quorate_hermes::Config) {
    config.collect_every = Duration::from_millis(10);
    config.tombstones_min = 1;
}

fn collecting(logs: Logs) -> Cluster {
    let seed_of = |node| seed_for(&[node as u8, node as u8]);
    Cluster::logging(3, logs, seed_of, collect_soon, |_| usize::MAX)
}

#[test]
fn an_acknowledgement_waits_for_the_log_and_an_inv_does_not() {
    let mut cluster = cluster();
    cluster.run_for(Duration::from_millis(1));
    let tag = cluster.submit(1, set("k", "v"));
    assert_eq!(cluster.take(1, 3, "inv").len(), 1, "an INV leaves at once");
    cluster.deliver(1, 2, "inv");
    assert!(cluster.take(2, 1, "ack").is_empty());
    assert!(cluster.flush_log(2));
    assert_eq!(cluster.take(2, 1, "ack").len(), 1);
    cluster.assert_open(tag);
}

#[test]
fn a_duplicate_is_acknowledged_behind_the_log_too() {
    let mut cluster = cluster();
    cluster.run_for(Duration::from_millis(1));
    cluster.submit(1, set("k", "v"));
    let inv = cluster.deliver(1, 2, "inv");
    cluster.inject(&inv);
    assert!(cluster.take(2, 1, "ack").is_empty());
    cluster.flush_log(2);
    assert_eq!(cluster.take(2, 1, "ack").len(), 2);
}

#[test]
fn a_coordinator_commits_when_its_own_entry_is_durable() {
    let mut cluster = cluster();
    cluster.run_for(Duration::from_millis(1));
    let tag = cluster.submit(1, set("k", "v"));
    for node in [2, 3] {
        cluster.deliver(1, node, "inv");
        cluster.flush_log(node);
    }
    deliver_unflushed(&mut cluster);
    cluster.assert_open(tag);
    assert_eq!(cluster.state(1, "k"), State::Write);
    assert!(cluster.take(1, 2, "val").is_empty());
    cluster.flush_log(1);
    cluster.assert_done(tag, Reply::Ok);
    assert_eq!(cluster.take(1, 2, "val").len(), 1);
}

/// Some time passes in which no log is flushed and only some packets arrive.
fn run_unflushed(cluster: &mut Cluster, wanted: impl Fn(&Packet) -> bool) {
    for _ in 0..10 {
        cluster.tick(Duration::from_millis(5));
        while !cluster.pool.is_empty() {
            let packet = cluster.pool.remove(0);
            if wanted(&packet) {
                cluster.inject(&packet);
            }
        }
    }
}

/// The last three entries of each log change `k`, delete `gone` and make `made`.
fn with_three_changes_last() -> Cluster {
    let mut cluster = cluster();
    cluster.run(1, set("k", "old"));
    cluster.run(2, set("gone", "v"));
    cluster.run(1, set("k", "new"));
    cluster.run(2, del("gone"));
    cluster.run(1, set("made", "v"));
    cluster
}

/// Its last batch has rotted, which nobody can tell from one that was torn.
#[test]
fn a_replica_that_comes_back_behind_what_it_acknowledged_has_it_from_the_others() {
    let mut cluster = with_three_changes_last();
    lose_power(&mut cluster, &[3]);
    cluster.expel(&[3]);
    cluster.rot_end(3, 0, 3);
    restart(&mut cluster, &[3]);
    cluster.set_role(3, Role::Shadow);
    cluster.run_for(MLT * 10);
    assert!(cluster.machine(3).is_caught_up());
    cluster.set_role(3, Role::Active);
    assert_eq!(cluster.run(3, get("k")), value("new"));
    assert_eq!(cluster.run(3, get("gone")), ABSENT);
    assert_eq!(cluster.run(3, get("made")), value("v"));
}

/// The same after a restart of all, in which the view calls that replica active. An older version of a key
/// that it has is Invalid: it replays the key before it answers, and the other replicas have the newer
/// version. So is a key that it does not have.
#[test]
fn of_all_that_come_back_one_is_behind_what_it_acknowledged() {
    let mut cluster = with_three_changes_last();
    lose_power(&mut cluster, &[1, 2, 3]);
    cluster.rot_end(3, 0, 3);
    restart(&mut cluster, &[1, 2, 3]);
    cluster.install(&ALL_ACTIVE);
    assert_eq!(cluster.stored(3, "k").as_deref(), Some("old"));
    let reads = ["k", "gone", "made"].map(|key| cluster.submit(3, get(key)));
    let changed = cluster.submit(3, append("made", "+"));
    cluster.run_for(MLT * 20);
    cluster.assert_done(reads[0], value("new"));
    cluster.assert_done(reads[1], ABSENT);
    cluster.assert_done(reads[2], value("v"));
    cluster.assert_done(changed, Reply::Int(2));
    cluster.assert_everywhere("k", Some("new"));
    cluster.assert_everywhere("gone", None);
    cluster.assert_everywhere("made", Some("v+"));
}

/// The keyspace was `async` when the end of a log was lost, and is `sync` now: a key of which the replica lacks
/// even the record is listed by nobody, so it says that it may lack keys, whatever it has appended since.
#[test]
fn a_log_that_promises_wait_for_now_may_lack_what_they_did_not_wait_for_once() {
    let mut cluster = with_three_changes_last();
    lose_power(&mut cluster, &[1, 2, 3]);
    cluster.rot_end(3, 0, 3);
    restart(&mut cluster, &[1, 2, 3]);
    cluster.install(&ALL_ACTIVE);
    let tag = cluster.submit(3, set("other", "v"));
    assert!(!cluster.has_record(3, "made") && cluster.machine(3).is_in_doubt());
    cluster.run_for(MLT * 20);
    cluster.assert_done(tag, Reply::Ok);
    assert!(cluster.has_record(3, "made") && !cluster.machine(3).is_in_doubt());
}

/// Nothing is left of a log, not even the name of the cluster: the view says that the replica had all.
#[test]
fn of_all_that_come_back_one_has_lost_its_whole_log() {
    let mut cluster = with_three_changes_last();
    lose_power(&mut cluster, &[1, 2, 3]);
    let entries = cluster.log_of(3, 0).len();
    cluster.rot_end(3, 0, entries);
    restart(&mut cluster, &[1, 2, 3]);
    cluster.install(&ALL_ACTIVE);
    let reads = ["k", "gone", "made"].map(|key| cluster.submit(3, get(key)));
    cluster.run_for(MLT * 20);
    cluster.assert_done(reads[0], value("new"));
    cluster.assert_done(reads[1], ABSENT);
    cluster.assert_done(reads[2], value("v"));
}

/// The log of node 3 ends with a floor that was promised and not committed, and before the creation of
/// keys below that floor: more than the others replay before the first round has ended.
#[test]
fn a_floor_does_not_rise_above_what_others_have_kept() {
    let mut cluster = collecting(Logs::Async);
    for _ in 0..6 {
        cluster.run(1, set("other", "v"));
    }
    // Node 3 hears of nothing but the floor, and does not say that it is ready.
    cluster.run(1, del("other"));
    let keys: Vec<String> = (0..300).map(|number| format!("k{number}")).collect();
    let tags: Vec<u64> = keys.iter().map(|key| cluster.submit(2, set(key, "v"))).collect();
    run_unflushed(&mut cluster, |packet| packet.from != NodeId(3) && !packet.is(2, 3, "inv"));
    cluster.flush_log(3);
    run_unflushed(&mut cluster, |packet| !packet.is(3, 1, "floor_ready"));
    tags.iter().for_each(|tag| cluster.assert_done(*tag, Reply::Ok));
    assert!(cluster.has_record(3, "k0") && cluster.machine(3).floor() == 0);
    (1..=2).for_each(|node| assert!(cluster.flush_log(node)));
    lose_power(&mut cluster, &[1, 2, 3]);
    restart(&mut cluster, &[1, 2, 3]);
    assert!(!cluster.has_record(3, "k0") && cluster.has_record(1, "k0"));
    cluster.install(&ALL_ACTIVE);
    assert!(cluster.machine(3).is_in_doubt(), "it has lost keys");
    cluster.run_for(MLT * 20);
    keys.iter().for_each(|key| cluster.assert_everywhere(key, Some("v")));
    assert!(cluster.machine(3).floor() > 0 && !cluster.machine(3).is_in_doubt());
}

/// The logs of nodes 1 and 2 have lost the last changes, and node 3 has lived on. A read at node 1 hears of
/// them; and no floor rises above a key that node 3 alone has, although nobody asks for it.
#[test]
fn what_a_survivor_has_stands_where_others_have_lost_it() {
    let mut cluster = collecting(Logs::Async);
    for _ in 0..6 {
        cluster.run(1, set("other", "v"));
    }
    cluster.run(1, set("k", "old"));
    cluster.run(1, set("gone", "v"));
    cluster.flush_logs();
    let changes = [set("k", "new"), del("gone"), set("made", "v")];
    let tags = changes.map(|change| cluster.submit(2, change));
    deliver_unflushed(&mut cluster);
    let replies = [Reply::Ok, Reply::Int(1), Reply::Ok];
    tags.into_iter().zip(replies).for_each(|(tag, reply)| cluster.assert_done(tag, reply));
    lose_power(&mut cluster, &[1, 2]);
    cluster.pool.clear();
    restart(&mut cluster, &[1, 2]);
    assert!(!cluster.has_record(1, "made"));
    cluster.install(&ALL_ACTIVE);
    let reads = ["k", "gone"].map(|key| cluster.submit(1, get(key)));
    cluster.run(1, del("other"));
    cluster.run_for(MLT * 20);
    cluster.assert_done(reads[0], value("new"));
    cluster.assert_done(reads[1], ABSENT);
    assert!(cluster.machine(3).floor() > 6 && !cluster.machine(3).is_in_doubt());
    cluster.assert_everywhere("k", Some("new"));
    cluster.assert_everywhere("gone", None);
    cluster.assert_everywhere("made", Some("v"));
}

/// Node 3 asks the others for records of calls, and they are dead, and members until the next view.
#[test]
fn records_of_calls_are_asked_for_less_and_less_often() {
    let mut cluster = collecting(Logs::Async);
    cluster.run(1, set("k", "v"));
    lose_power(&mut cluster, &[1, 2, 3]);
    restart(&mut cluster, &[1, 2, 3]);
    cluster.install(&ALL_ACTIVE);
    assert!(cluster.machine(3).is_in_doubt());
    cluster.pool.clear();
    let mut asked = 0;
    for _ in 0..200 {
        cluster.tick(MLT);
        asked += cluster.pool.iter().filter(|packet| packet.is(3, 1, "chunk_read")).count();
        cluster.pool.clear();
    }
    assert!((4..12).contains(&asked), "{asked} times within 200 timeouts");
    cluster.run_for(MLT * 100);
    assert!(!cluster.machine(3).is_in_doubt(), "answers are waited for all the while");
}

/// Node 4 has lived on, too, and holds nothing that others could have lost. No round of floors would end its doubt.
#[test]
fn a_member_without_a_replica_is_in_no_doubt() {
    let seed_of = |node| seed_for(&[node as u8, node as u8]);
    let configure = |config: &mut quorate_hermes::Config| {
        config.replicas = Some([1, 2, 3].map(NodeId).into_iter().collect());
    };
    let mut cluster = Cluster::logging(4, Logs::Async, seed_of, configure, |_| usize::MAX);
    cluster.run(1, set("k", "v"));
    lose_power(&mut cluster, &[1, 2]);
    cluster.pool.clear();
    restart(&mut cluster, &[1, 2]);
    cluster.install(&[1, 2, 3, 4].map(|node| (node, Role::Active)));
    assert!(cluster.machine(3).is_in_doubt() && !cluster.machine(4).is_in_doubt());
    cluster.run_for(MLT * 20);
    assert!((1..=4).all(|node| !cluster.machine(node).is_in_doubt()));
}

/// Node 3 comes back alone, and copies a key that has changed meanwhile. When all power goes, its log has left
/// the old version and has not the new one, and the floor of its earlier life is above both.
#[test]
fn a_copy_that_is_cut_short_in_the_log_deletes_nothing() {
    let mut cluster = collecting(Logs::Async);
    cluster.run(1, set("k", "u"));
    for _ in 0..6 {
        cluster.run(1, set("other", "v"));
    }
    cluster.run(1, del("other"));
    cluster.run_for(MLT * 20);
    assert!(cluster.machine(3).floor() > 3);
    cluster.expel(&[3]);
    cluster.run(1, set("k", "v"));
    restart(&mut cluster, &[3]);
    cluster.set_role(3, Role::Shadow);
    cluster.run_for(MLT * 20);
    cluster.install(&ALL_ACTIVE);
    cluster.run_for(MLT * 20);
    let log = cluster.log_of(3, 0);
    let gone = log.iter().rposition(|entry| *entry == b"\x02k").expect("the base had the key");
    let lost = log.len() - gone - 1;
    lose_power(&mut cluster, &[1, 2, 3]);
    cluster.rot_end(3, 0, lost);
    restart(&mut cluster, &[1, 2, 3]);
    cluster.install(&ALL_ACTIVE);
    cluster.run_for(MLT * 20);
    cluster.assert_everywhere("k", Some("v"));
}

/// Nodes 1 and 2 come back from their logs, and node 3 without one; it copies from node 1.
fn come_back_with_a_shadow_of_node_1(cluster: &mut Cluster) {
    for seed in 0.. {
        cluster.pool.clear();
        restart(cluster, &[1, 2]);
        cluster.start(3, seed);
        cluster.install(&[(1, Role::Active), (2, Role::Active), (3, Role::Shadow)]);
        if cluster.pool.iter().any(|packet| packet.is(3, 1, "chunk_read")) {
            break;
        }
    }
}

/// It copies from a replica that has lost a floor which another has kept.
#[test]
fn who_joins_replicas_in_doubt_creates_keys_above_floors_that_only_others_have_kept() {
    let mut cluster = collecting(Logs::Async);
    cluster.run(1, set("k", "v"));
    cluster.run(1, del("k"));
    while cluster.machine(2).floor() == 0 {
        cluster.tick(Duration::from_millis(5));
        deliver_unflushed(&mut cluster);
    }
    cluster.flush_log(2);
    lose_power(&mut cluster, &[1, 2, 3]);
    come_back_with_a_shadow_of_node_1(&mut cluster);
    assert_eq!([1, 2].map(|node| cluster.machine(node).floor() == 0), [true, false]);
    cluster.deliver_some(|packet| packet.is(3, 1, "chunk_read") || packet.is(1, 3, "chunk"));
    assert!(cluster.machine(3).is_caught_up());
    cluster.set_role(3, Role::Active);
    let tag = cluster.submit(3, set("fresh", "v"));
    cluster.run_for(MLT * 10);
    cluster.assert_done(tag, Reply::Ok);
    assert_eq!(cluster.run(2, get("fresh")), value("v"));
}

/// The log of node 3 ends before a call whose key has changed since: the newest version does not name it.
#[test]
fn a_call_whose_record_only_others_have_kept_has_taken_effect() {
    let mut cluster = cluster();
    cluster.run(1, set("n", "1"));
    let tag = cluster.call(1, call(3), incr("n"));
    cluster.deliver_all();
    cluster.assert_done(tag, Reply::Int(2));
    cluster.run(1, incr("n"));
    lose_power(&mut cluster, &[1, 2, 3]);
    cluster.rot_end(3, 0, 2);
    restart(&mut cluster, &[1, 2, 3]);
    cluster.install(&ALL_ACTIVE);
    // Nobody has told node 3 of the call yet.
    let early = cluster.call(3, call(3), incr("n"));
    cluster.run_some(MLT * 8, |packet| !packet.is(0, 3, "chunk"));
    assert_eq!(cluster.outcome(early), Some(&Outcome::Refused(Refusal::Busy)));
    cluster.run_for(MLT * 8);
    let again = cluster.call(3, call(3), incr("n"));
    cluster.deliver_all();
    cluster.assert_done(again, Reply::Int(2));
    cluster.assert_everywhere("n", Some("3"));
}

/// Node 3 has begun a call that nobody else has heard of, and is removed. What others make of the key meanwhile
/// it copies, and its log loses that.
#[test]
fn a_call_that_others_never_saw_has_not_taken_effect() {
    let mut cluster = collecting(Logs::Async);
    cluster.run(1, set("n", "1"));
    cluster.call(3, call(3), incr("n"));
    cluster.run_some(Duration::from_millis(1), |packet| !packet.is(3, 0, "inv"));
    let before = cluster.log_of(3, 0).len();
    cluster.expel(&[3]);
    for _ in 0..3 {
        cluster.run(2, incr("n"));
    }
    restart(&mut cluster, &[3]);
    cluster.set_role(3, Role::Shadow);
    cluster.run_for(MLT * 20);
    cluster.install(&ALL_ACTIVE);
    lose_power(&mut cluster, &[1, 2, 3]);
    let lost = cluster.log_of(3, 0).len() - before;
    cluster.rot_end(3, 0, lost);
    restart(&mut cluster, &[1, 2, 3]);
    cluster.install(&ALL_ACTIVE);
    cluster.run_for(MLT * 20);
    let again = cluster.call(3, call(3), incr("n"));
    cluster.deliver_all();
    cluster.assert_done(again, Reply::Int(5));
    cluster.assert_everywhere("n", Some("5"));
}

/// The log of node 3 has a call as the newest version of its key, and lacks what was built on it.
#[test]
fn a_call_from_a_log_that_others_have_built_on_has_taken_effect() {
    let mut cluster = cluster();
    cluster.run(1, set("n", "1"));
    let tag = cluster.call(1, call(3), incr("n"));
    cluster.deliver_all();
    cluster.assert_done(tag, Reply::Int(2));
    cluster.run(1, incr("n"));
    lose_power(&mut cluster, &[1, 2, 3]);
    cluster.rot_end(3, 0, 1);
    restart(&mut cluster, &[1, 2, 3]);
    cluster.install(&ALL_ACTIVE);
    cluster.run_for(MLT * 20);
    let again = cluster.call(3, call(3), incr("n"));
    cluster.deliver_all();
    cluster.assert_done(again, Reply::Int(2));
    cluster.assert_everywhere("n", Some("3"));
}

/// It copies from a replica that has lost a key, and is asked for it before any other has replayed it.
#[test]
fn who_joins_replicas_in_doubt_is_in_doubt() {
    let seed_of = |node| seed_for(&[node as u8, node as u8]);
    let mut cluster = Cluster::logging(3, Logs::Async, seed_of, |_| {}, |_| usize::MAX);
    cluster.run(1, set("k", "v"));
    lose_power(&mut cluster, &[1, 2, 3]);
    cluster.rot_end(1, 0, 1);
    come_back_with_a_shadow_of_node_1(&mut cluster);
    deliver_unflushed(&mut cluster);
    assert!(cluster.machine(3).is_caught_up() && !cluster.has_record(3, "k"));
    cluster.set_role(3, Role::Active);
    let read = cluster.submit(3, get("k"));
    cluster.run_for(MLT * 3);
    cluster.assert_done(read, value("v"));
}

#[test]
fn everything_comes_back_when_all_power_is_lost() {
    let mut cluster = cluster();
    cluster.run(1, set("k", "v"));
    cluster.run(2, incr("n"));
    cluster.run(3, set("gone", "v"));
    cluster.run(1, del("gone"));
    let tag = cluster.call(2, call(3), incr("n"));
    cluster.deliver_all();
    cluster.assert_done(tag, Reply::Int(2));
    (1..=3).for_each(|node| cluster.save(node, 0));
    let tag = cluster.call(2, call(4), incr("n"));
    cluster.deliver_all();
    cluster.assert_done(tag, Reply::Int(3));
    lose_power(&mut cluster, &[1, 2, 3]);
    restart(&mut cluster, &[1, 2, 3]);
    cluster.install(&ALL_ACTIVE);
    // A read replays what is in doubt.
    assert_eq!(cluster.state(2, "k"), State::Invalid);
    assert_eq!(cluster.run(2, get("k")), value("v"));
    assert_eq!(cluster.run(1, get("gone")), ABSENT);
    assert_eq!(cluster.run(3, get("n")), value("3"));
    for (sequence, reply) in [(3, 2), (4, 3)] {
        let again = cluster.call(1, call(sequence), incr("n"));
        cluster.deliver_all();
        cluster.assert_done(again, Reply::Int(reply));
    }
    assert_eq!(cluster.run(3, get("n")), value("3"));
    cluster.run_for(MLT * 20);
    cluster.assert_everywhere("k", Some("v"));
    cluster.assert_everywhere("n", Some("3"));
}

#[test]
fn what_was_deleted_or_expires_goes_after_a_restart_even_if_nobody_asks() {
    let mut cluster = collecting(Logs::Sync);
    cluster.run_for(MLT * 4);
    cluster.run(1, set("gone", "v"));
    cluster.run(2, set_until("late", "v", WALL + 500));
    cluster.run(2, del("gone"));
    lose_power(&mut cluster, &[1, 2, 3]);
    restart(&mut cluster, &[1, 2, 3]);
    cluster.install(&ALL_ACTIVE);
    (1..=3).for_each(|node| assert!(cluster.has_record(node, "gone"), "it came back"));
    cluster.run_for(Duration::from_millis(1000));
    for node in 1..=3 {
        assert!(!cluster.has_record(node, "gone"), "{node} keeps a tombstone");
        assert!(!cluster.has_record(node, "late"), "{node} keeps what has expired");
    }
}

#[test]
fn one_replica_comes_back_by_difference() {
    let mut cluster = cluster();
    cluster.run(1, set("k", "v"));
    cluster.run(1, set("other", "v"));
    lose_power(&mut cluster, &[3]);
    cluster.expel(&[3]);
    cluster.run(1, set("other", "new"));
    restart(&mut cluster, &[3]);
    cluster.set_role(3, Role::Shadow);
    cluster.run_for(MLT * 10);
    assert!(cluster.machine(3).is_caught_up());
    assert_eq!(cluster.machine(3).kept(), 1, "what has not changed is not copied");
    cluster.set_role(3, Role::Active);
    assert_eq!(cluster.run(3, get("other")), value("new"));
}

#[test]
fn what_was_deleted_while_a_replica_was_away_stays_deleted_when_all_power_is_lost() {
    let mut cluster = collecting(Logs::Sync);
    cluster.run(1, set("k", "v"));
    lose_power(&mut cluster, &[3]);
    cluster.expel(&[3]);
    cluster.run(1, del("k"));
    cluster.run_for(Duration::from_millis(100));
    assert!(!cluster.has_record(1, "k"), "it is deleted and forgotten");
    restart(&mut cluster, &[3]);
    cluster.set_role(3, Role::Shadow);
    cluster.run_for(MLT * 10);
    cluster.set_role(3, Role::Active);
    // Node 3 alone is left, and goes on from its log.
    lose_power(&mut cluster, &[1, 2, 3]);
    restart(&mut cluster, &[3]);
    cluster.install(&[(1, Role::Down), (2, Role::Down), (3, Role::Active)]);
    cluster.run_for(MLT);
    assert_eq!(cluster.run(3, get("k")), ABSENT);
}

#[test]
fn a_shadow_is_caught_up_when_what_it_has_copied_is_durable() {
    let mut cluster = cluster();
    cluster.run(1, set("k", "v"));
    cluster.expel(&[3]);
    cluster.rejoin(3);
    deliver_unflushed(&mut cluster);
    assert_eq!(cluster.stored(3, "k").as_deref(), Some("v"));
    assert!(!cluster.machine(3).is_caught_up());
    cluster.flush_log(3);
    assert!(cluster.machine(3).is_caught_up());
}

#[test]
fn replays_after_the_loss_of_all_power_begin_a_few_at_a_time() {
    let mut cluster = cluster();
    for key in 0..2_000 {
        cluster.submit(1, set(&format!("k{key}"), "v"));
    }
    cluster.run_for(MLT);
    lose_power(&mut cluster, &[1, 2, 3]);
    restart(&mut cluster, &[1, 2, 3]);
    cluster.install(&ALL_ACTIVE);
    for _ in 0..40 {
        cluster.tick(Duration::from_millis(1));
        cluster.pool.clear();
    }
    let replays = cluster.counter(1, "replays");
    assert!(replays < 256 + 64, "{replays} replays at once");
    cluster.run_for(Duration::from_millis(500));
    assert_eq!(cluster.state(2, "k1999"), State::Valid);
}

#[test]
fn a_key_that_some_have_forgotten_is_created_above_its_tombstone_elsewhere() {
    let mut cluster = collecting(Logs::Sync);
    cluster.run(1, set("k", "v"));
    cluster.run(1, del("k"));
    // Node 3 promises a floor and does not hear that it has risen.
    cluster.run_some(MLT * 4, |packet| !packet.is(1, 3, "floor_commit"));
    assert!(!cluster.has_record(1, "k") && cluster.has_record(3, "k"));
    (1..=2).for_each(|node| cluster.save(node, 0));
    cluster.flush_logs();
    lose_power(&mut cluster, &[1, 2, 3]);
    restart(&mut cluster, &[1, 2, 3]);
    cluster.install(&ALL_ACTIVE);
    let tag = cluster.submit(2, set("k", "new"));
    cluster.run_for(MLT * 10);
    cluster.assert_done(tag, Reply::Ok);
    assert_eq!(cluster.run(1, get("k")), value("new"));
}

#[test]
fn a_key_is_created_above_floors_that_only_others_have_kept() {
    let mut cluster = collecting(Logs::Async);
    cluster.run(1, set("k", "v"));
    cluster.run(1, del("k"));
    // The floor rises, and is on the disk of node 1 alone.
    while cluster.machine(1).floor() == 0 {
        cluster.tick(Duration::from_millis(5));
        deliver_unflushed(&mut cluster);
    }
    cluster.flush_log(1);
    lose_power(&mut cluster, &[1, 2, 3]);
    restart(&mut cluster, &[1, 2, 3]);
    assert_eq!([1, 2].map(|node| cluster.machine(node).floor() == 0), [false, true]);
    cluster.install(&ALL_ACTIVE);
    let tag = cluster.submit(2, set("fresh", "v"));
    cluster.run_for(MLT * 10);
    cluster.assert_done(tag, Reply::Ok);
    assert_eq!(cluster.run(1, get("fresh")), value("v"));
}

#[test]
fn a_log_of_another_cluster_is_of_no_use() {
    let mut cluster = cluster();
    cluster.run(1, set("k", "v"));
    lose_power(&mut cluster, &[1, 2, 3]);
    restart(&mut cluster, &[1, 2, 3]);
    cluster.found_anew();
    cluster.found();
    cluster.run_for(MLT);
    assert_eq!(cluster.run(1, get("k")), ABSENT);
    // Nor is it after one more loss.
    lose_power(&mut cluster, &[1, 2, 3]);
    restart(&mut cluster, &[1, 2, 3]);
    cluster.install(&ALL_ACTIVE);
    cluster.run_for(MLT);
    assert_eq!(cluster.run(1, get("k")), ABSENT);
}

#[test]
fn a_recovered_cluster_goes_on_with_what_its_nodes_have() {
    let mut cluster = cluster();
    cluster.run(1, set("k", "v"));
    cluster.run(2, set("gone", "v"));
    cluster.run(1, del("gone"));
    for round in 0..3 {
        lose_power(&mut cluster, &[1, 2, 3]);
        restart(&mut cluster, &[1, 2]);
        if round < 2 {
            cluster.recover();
        }
        cluster.install(&[(1, Role::Active), (2, Role::Active)]);
        cluster.run_for(MLT);
        for node in [1, 2] {
            assert_eq!(cluster.run(node, get("k")), value("v"), "round {round}");
            assert_eq!(cluster.run(node, get("gone")), ABSENT);
        }
        cluster.run(1, set("other", "v"));
    }
    assert_eq!(cluster.run(2, get("other")), value("v"));
}

/// Of the group {1, 2} all data is lost but what node 1 has. It goes on with that, alone, and node 2 copies.
#[test]
fn a_group_without_an_active_member_goes_on_with_what_the_eldest_has() {
    let group = |config: &mut quorate_hermes::Config| {
        config.replicas = Some([NodeId(1), NodeId(2)].into_iter().collect());
    };
    for is_restart in [true, false] {
        let seed_of = |node| seed_for(&[node as u8, node as u8]);
        let mut cluster = Cluster::logging(3, Logs::Sync, seed_of, group, |_| usize::MAX);
        cluster.run(1, set("k", "v"));
        lose_power(&mut cluster, &[1, 2]);
        match is_restart {
            true => restart(&mut cluster, &[1]),
            false => cluster.start(1, 1),
        }
        cluster.start(2, 2);
        let roles = |first, second| [(1, first), (2, second), (3, Role::Active)];
        cluster.install(&roles(Role::Shadow, Role::Down));
        cluster.run_for(MLT);
        assert!(cluster.machine(1).is_caught_up(), "nobody has more");
        cluster.install(&roles(Role::Shadow, Role::Shadow));
        cluster.run_for(MLT * 3);
        assert!(
            cluster.machine(1).is_caught_up() && !cluster.machine(2).is_caught_up(),
            "one after the other"
        );
        cluster.install(&roles(Role::Active, Role::Shadow));
        let tag = cluster.submit(1, set("later", "v"));
        cluster.run_for(MLT * 5);
        cluster.assert_done(tag, Reply::Ok);
        assert!(cluster.machine(2).is_caught_up());
        cluster.install(&roles(Role::Active, Role::Active));
        cluster.run_for(MLT);
        let before = if is_restart { value("v") } else { ABSENT };
        for node in [1, 2] {
            assert_eq!(cluster.run(node, get("k")), before);
            assert_eq!(cluster.run(node, get("later")), value("v"));
        }
    }
}

#[test]
fn golden_bytes_of_entries() {
    let mut cluster = cluster();
    cluster.run(1, set("k", "v"));
    let log: Vec<String> =
        cluster.log_of(2, 0).iter().map(|entry| entry.escape_ascii().to_string()).collect();
    let update = "\\x01\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\x02\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x01\\x00\\x00\\x01\\x02\\x00\
                  \\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x01\\x00\\x00\\x00kv";
    let cluster_of = "\\x04\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x00";
    let floors = format!("\\x03{}", "\\x00".repeat(16));
    assert_eq!(log, [cluster_of, &floors, update]);
}

#[test]
fn damaged_entries_are_unreadable() {
    let mut cluster = cluster();
    cluster.run(1, set("k", "v"));
    cluster.call(1, call(3), incr("n"));
    cluster.deliver_all();
    cluster.save(1, 0);
    let log: Vec<Vec<u8>> = cluster.log_of(1, 0).into_iter().map(<[u8]>::to_vec).collect();
    for entry in &log {
        for cut in 0..entry.len() {
            // Some cuts are whole entries of less; none may panic.
            let _: Result<(), Unreadable> = cluster.machine(2).restore(&entry[..cut]);
        }
    }
    assert!(cluster.machine(2).restore(&[]).is_err());
    assert!(cluster.machine(2).restore(&[99]).is_err());
    let delta = Message::Inv(quorate_hermes::Inv {
        cookie: quorate_machine::Slot::NONE,
        key: b"nothing",
        timestamp: quorate_types::Timestamp::new(9, quorate_types::WriterId(1)),
        rmw: true,
        content: Some(quorate_machine::Content {
            bytes: b"",
            kind: quorate_machine::ValueKind::Hash,
            expire_at: None,
        }),
        base: Some(quorate_types::Timestamp::new(8, quorate_types::WriterId(1))),
        completion: None,
    });
    let mut entry = Vec::new();
    delta.encode(&mut quorate_wire::Writer(&mut entry));
    let lacking = Unreadable("hermes: a delta on a version that is not there");
    assert_eq!(cluster.machine(2).restore(&entry), Err(lacking));
}
