//! Pitfall H8: deleted keys stay deleted, and their records go.

use std::time::Duration;

use quorate_hermes::{Config, Message, Meta, State};
use quorate_machine::{Content, Record, Table, ValueKind};
use quorate_types::{MemberNumber, Role, Timestamp, WriterId};

use crate::op::{ABSENT, Reply, del, get, incr, set, set_nx, value, wipe};
use crate::support::{Cluster, MLT, Packet};

fn collect_often(config: &mut Config) {
    config.collect_every = Duration::from_millis(50);
}

/// Runs until no tombstone is left.
fn collect(cluster: &mut Cluster) {
    cluster.run_for(Duration::from_millis(300));
}

#[test]
fn h8_a_late_duplicate_does_not_bring_a_deleted_key_back() {
    let mut cluster = Cluster::new(3);
    cluster.run_for(MLT * 4);
    cluster.submit(1, set("k", "v"));
    let late = cluster.pool.clone();
    cluster.deliver_all();
    assert_eq!(cluster.run(2, del("k")), Reply::Int(1));
    for packet in &late {
        cluster.inject(packet);
    }
    cluster.run_for(MLT * 4);
    for node in 1..=3 {
        let read = cluster.submit(node, get("k"));
        cluster.run_for(MLT * 4);
        cluster.assert_done(read, ABSENT);
    }
    cluster.assert_everywhere("k", None);
}

#[test]
fn h8_a_late_duplicate_does_not_bring_a_forgotten_key_back() {
    let mut cluster = Cluster::with(3, collect_often);
    cluster.submit(1, set("k", "v"));
    let mut late = cluster.pool.clone();
    cluster.deliver_all();
    cluster.submit(2, del("k"));
    late.extend(cluster.pool.clone());
    cluster.deliver_all();
    collect(&mut cluster);
    for node in 1..=3 {
        assert!(!cluster.has_record(node, "k"), "{node} keeps a tombstone");
        assert_eq!(cluster.counter(node, "tombstones_collected"), 1);
        assert!(cluster.machine(node).floor() >= 3);
    }
    for packet in &late {
        cluster.inject(packet);
        cluster.deliver_all();
    }
    assert!(cluster.probed("hermes: INV below the floor") > 0);
    for node in 1..=3 {
        assert_eq!(cluster.run(node, get("k")), ABSENT);
    }
    // The key can be written again, above the floor, and is not mistaken for a duplicate.
    assert_eq!(cluster.run(3, set_nx("k", "w")), Reply::Int(1));
    cluster.assert_everywhere("k", Some("w"));
    assert!(cluster.meta(1, "k").timestamp.version > cluster.machine(1).floor());
}

#[test]
fn h8_a_round_ends_although_messages_are_lost() {
    let mut cluster = Cluster::with(3, collect_often);
    cluster.run(1, set("k", "v"));
    cluster.run(1, del("k"));
    for lost in ["floor_prepare", "floor_ready", "floor_commit"] {
        let mut left = 2;
        for _ in 0..20 {
            cluster.tick(MLT);
            cluster.deliver_some(|packet| left == 0 || packet.kind() != lost);
            left -= cluster.take(0, 0, lost).len().min(left);
        }
        assert_eq!(left, 0, "{lost}");
        collect(&mut cluster);
        for node in 1..=3 {
            assert!(!cluster.has_record(node, "k"), "{lost}: {node} keeps a tombstone");
        }
        cluster.run(1, set("k", "v"));
        cluster.run(1, del("k"));
    }
}

#[test]
fn h8_an_rmw_of_an_absent_key_waits_while_the_floor_rises() {
    let mut cluster = Cluster::with(3, collect_often);
    cluster.run_for(MLT * 4);
    cluster.run(2, set("k", "v"));
    cluster.run(2, del("k"));
    while !cluster.pool.iter().any(|packet| packet.is(1, 3, "floor_prepare")) {
        cluster.tick(Duration::from_millis(1));
    }
    cluster.deliver(1, 3, "floor_prepare");
    // 3 has prepared, 1 and 2 have not committed: nobody may take a version for an absent key that
    // others would understand in another way.
    let sum = cluster.submit(3, incr("n"));
    let again = cluster.submit(3, incr("k"));
    let read = cluster.submit(3, get("other"));
    cluster.assert_open(sum);
    cluster.assert_open(again);
    cluster.assert_done(read, ABSENT);
    cluster.run_for(MLT);
    cluster.assert_done(sum, Reply::Int(1));
    cluster.assert_done(again, Reply::Int(1));
    cluster.assert_everywhere("n", Some("1"));
}

#[test]
fn h8_a_round_waits_for_updates_that_began_before_it() {
    let mut cluster = Cluster::with(3, collect_often);
    cluster.run_for(MLT * 4);
    cluster.run(2, set("k", "v"));
    let open = cluster.submit(2, del("k"));
    let kept = cluster.take(2, 3, "inv");
    cluster.deliver_all();
    for _ in 0..30 {
        cluster.tick(Duration::from_millis(5));
        // Neither 2's nor a replay of 1's, which misses the VAL, arrives.
        cluster.take(0, 3, "inv");
        cluster.deliver_all();
        assert_eq!(cluster.machine(1).floor(), 0);
    }
    cluster.assert_open(open);
    cluster.inject(&kept[0]);
    cluster.deliver_all();
    cluster.assert_done(open, Reply::Int(1));
    collect(&mut cluster);
    assert!(cluster.machine(1).floor() > 0);
    assert!(!cluster.has_record(2, "k"));
}

#[test]
fn h8_a_round_cut_short_by_a_view_is_closed_by_the_next() {
    let mut cluster = Cluster::with(4, collect_often);
    cluster.run_for(MLT * 4);
    cluster.run(2, set("k", "v"));
    cluster.run(2, del("k"));
    while !cluster.pool.iter().any(|packet| packet.is(1, 3, "floor_prepare")) {
        cluster.tick(Duration::from_millis(1));
    }
    cluster.deliver_some(|packet| packet.kind() != "floor_commit");
    // Only 2 hears that the floor is raised, and forgets the key.
    cluster.deliver(1, 2, "floor_commit");
    cluster.tick_node(2);
    assert!(!cluster.has_record(2, "k"));
    assert!(cluster.has_record(3, "k"));
    cluster.expel(&[1]);
    // 3 must not write below what 2 has forgotten.
    let write = cluster.submit(3, set("k", "w"));
    cluster.run_for(MLT * 4);
    cluster.assert_done(write, Reply::Ok);
    cluster.assert_everywhere("k", Some("w"));
    assert_eq!(cluster.machine(2).floor(), cluster.machine(3).floor());
}

#[test]
fn h8_a_late_message_of_an_earlier_round_does_not_open_the_floor_for_ever() {
    let mut cluster = Cluster::with(3, collect_often);
    cluster.run_for(MLT * 4);
    let mut late: Vec<Packet> = Vec::new();
    for round in 0..2 {
        cluster.run(2, set("k", "v"));
        cluster.run(2, del("k"));
        while !cluster.pool.iter().any(|packet| packet.is(1, 3, "floor_prepare")) {
            cluster.tick(Duration::from_millis(1));
        }
        late.extend(cluster.pool.iter().filter(|packet| packet.is(1, 3, "floor_prepare")).cloned());
        if round == 1 {
            cluster.deliver_some(|packet| packet.kind() != "floor_commit");
            // The first question of the first round, once more, in the middle of the second.
            cluster.inject(&late[0]);
        }
        cluster.deliver_all();
    }
    cluster.run_for(MLT);
    assert_eq!(cluster.run(3, incr("absent")), Reply::Int(1));
}

#[test]
fn h8_a_replayed_and_forgotten_delete_is_not_run_again() {
    // 1's delete is finished by 3's replay and its tombstone is collected, before 1 has heard any of
    // its acknowledgements.
    let mut cluster = Cluster::with(3, collect_often);
    cluster.run_for(MLT * 4);
    cluster.run(2, set("big", "v"));
    for _ in 0..9 {
        cluster.run(2, set("big", "v"));
    }
    cluster.run(2, set("k", "v"));
    cluster.run(2, del("big"));
    while !cluster.pool.iter().any(|packet| packet.is(1, 3, "floor_prepare")) {
        cluster.tick(Duration::from_millis(1));
    }
    // The round begins before the delete, so it does not wait for it.
    cluster.deliver_some(|packet| packet.kind() == "floor_prepare");
    let delete = cluster.submit(1, del("k"));
    cluster.deliver(1, 2, "inv");
    cluster.deliver(1, 3, "inv");
    cluster.take(0, 1, "ack");
    cluster.submit(3, get("k"));
    while cluster.state(3, "k") == State::Invalid {
        cluster.advance(MLT / 4);
        cluster.tick_node(3);
    }
    cluster.deliver_some(|packet| packet.is(3, 0, "inv") || packet.is(0, 3, "ack"));
    assert_eq!(cluster.state(3, "k"), State::Valid);
    cluster.take(3, 0, "val");
    cluster.deliver_some(|packet| packet.kind().starts_with("floor"));
    cluster.tick_node(3);
    cluster.tick_node(3);
    assert!(!cluster.has_record(3, "k"));
    cluster.assert_open(delete);
    cluster.run_for(MLT * 6);
    cluster.assert_done(delete, Reply::Int(1));
    for node in 1..=3 {
        let read = cluster.submit(node, get("k"));
        cluster.run_for(MLT * 6);
        cluster.assert_done(read, ABSENT);
    }
}

#[test]
fn h8_a_leftover_of_an_update_that_was_given_up_dies_below_the_floor() {
    // 4's increment reaches 5, 4 gives it up for a newer write that then dies with it; meanwhile
    // everybody else has forgotten the key. 5 replays the increment.
    let mut cluster = Cluster::with(3, collect_often);
    cluster.run_for(MLT * 4);
    cluster.run(1, set("k", "v"));
    cluster.run(1, del("k"));
    let old = {
        cluster.run(1, incr("n"));
        cluster.fresh_packets.iter().rev().find(|packet| packet.is(1, 2, "inv")).cloned()
    };
    cluster.run(1, del("n"));
    collect(&mut cluster);
    // A replay of the forgotten increment, as some replica might send it that still holds it.
    let leftover = Packet { epoch: cluster.view.epoch, ..old.expect("it was sent") };
    cluster.fresh_packets.clear();
    cluster.inject(&leftover);
    let answer = cluster.fresh_packets.pop().expect("it is answered");
    match answer.message() {
        Message::Inv(inv) => {
            assert_eq!(inv.content, None);
            assert_eq!(inv.timestamp.version, cluster.machine(2).floor());
        }
        other => panic!("not acknowledged, but {other:?}"),
    }
    // A replica that is told so forgets it, too. The answer gets no answer.
    cluster.fresh_packets.clear();
    cluster.inject(&answer);
    let kinds: Vec<&str> = cluster.fresh_packets.iter().map(Packet::kind).collect();
    assert_eq!(kinds, ["ack"]);
    cluster.deliver_all();
    assert_eq!(cluster.run(1, get("n")), ABSENT);
}

#[test]
fn h8_a_write_over_a_tombstone_is_above_what_others_have_forgotten() {
    let mut cluster = Cluster::with(3, collect_often);
    cluster.run_for(MLT * 4);
    cluster.run(1, set("k", "v"));
    cluster.run(1, wipe("k"));
    for _ in 0..6 {
        cluster.run(1, set("far", "v"));
    }
    cluster.run(1, del("far"));
    while !cluster.pool.iter().any(|packet| packet.is(1, 3, "floor_prepare")) {
        cluster.tick(Duration::from_millis(1));
    }
    // 1 and 2 collect; 3 is told, but has not got round to it.
    cluster.deliver_all();
    for _ in 0..3 {
        cluster.advance(MLT);
        cluster.tick_node(1);
        cluster.tick_node(2);
    }
    assert!(!cluster.has_record(1, "k") && !cluster.has_record(2, "k"));
    assert!(cluster.has_record(3, "k"));
    assert_eq!(cluster.run(3, set("k", "w")), Reply::Ok);
    cluster.assert_everywhere("k", Some("w"));
    assert_eq!(cluster.run(1, get("k")), value("w"));
}

#[test]
fn h8_a_shadow_takes_over_the_floor() {
    let mut cluster = Cluster::with(3, collect_often);
    cluster.run(1, set("k", "v"));
    cluster.run(1, del("k"));
    cluster.run(1, set("stays", "v"));
    collect(&mut cluster);
    let floor = cluster.machine(1).floor();
    assert!(floor > 0);
    cluster.expel(&[3]);
    cluster.run_for(MLT * 3);
    cluster.rejoin(3);
    cluster.run_for(MLT * 3);
    assert!(cluster.machine(3).is_caught_up());
    assert!(cluster.machine(3).floor() >= floor);
    cluster.set_role(3, Role::Active);
    cluster.run_for(MLT * 3);
    assert_eq!(cluster.run(3, set_nx("k", "w")), Reply::Int(1));
    cluster.assert_everywhere("k", Some("w"));
    cluster.assert_everywhere("stays", Some("v"));
}

/// Records that every replica holds, Valid, as if they had been written long ago.
fn commit_records(cluster: &mut Cluster, count: usize) {
    let timestamp = Timestamp::new(2, WriterId::new(MemberNumber(1), 0));
    for host in cluster.hosts.values_mut() {
        let table = host.machine_mut().table_mut();
        for number in 0..count {
            let handle = table.find_or_insert(format!("settled {number}").as_bytes());
            let mut record = table.lock(handle);
            let (kind, expire_at) = (ValueKind::String, None);
            record.set_content(Content { bytes: b"v", kind, expire_at });
            record.set_meta(Meta { timestamp, ..Meta::default() });
        }
    }
}

fn tombstones(cluster: &mut Cluster, node: u16) -> usize {
    let entries = cluster.machine(node).table().entries();
    entries.filter(|(_, _, _, content)| content.is_none()).count()
}

/// Lets time pass in small steps, for a workload that is not at rest.
fn pass(cluster: &mut Cluster, span: Duration) {
    cluster.tick(span);
    cluster.deliver_all();
    cluster.fresh_packets.clear();
    cluster.fresh_outcomes.clear();
    cluster.outcomes.clear();
}

/// Much is stored and keys come and go: what is deleted is forgotten in time, in few rounds.
#[test]
fn tombstones_stay_few_under_churn() {
    const STORED: usize = 200_000;
    const CHURNED: usize = 60_000;
    let mut cluster = Cluster::new(3);
    cluster.checks = false;
    commit_records(&mut cluster, STORED);
    pass(&mut cluster, MLT);
    let step = Duration::from_micros(200);
    let mut most = 0;
    for number in 0..CHURNED {
        let key = format!("fresh {number}");
        let node = number as u16 % 3 + 1;
        cluster.submit(node, set(&key, "v"));
        pass(&mut cluster, step);
        cluster.submit(node, del(&key));
        pass(&mut cluster, step);
        if number % 5_000 == 0 {
            most = (1..=3)
                .map(|node| tombstones(&mut cluster, node))
                .max()
                .max(Some(most))
                .unwrap_or(0);
        }
    }
    let left = (1..=3).map(|node| tombstones(&mut cluster, node)).max().unwrap_or(0);
    let rounds = cluster.probed("hermes: floor round begins");
    let collected = cluster.counter(1, "tombstones_collected");
    println!("at most {most}, left {left}, collected {collected}, {rounds} rounds in 24 s");
    // An eighth of the records, and what is deleted while a round and its pass are under way.
    let bound = (STORED + CHURNED) / 8 + 2_000;
    assert!(most.max(left) <= bound, "{most} and {left} tombstones");
    // In 24 s: one round for every eighth, one in ten seconds, one of the epoch.
    assert!((2..=8).contains(&rounds), "{rounds} rounds");
}

/// A view change delays no key that is created, however much is stored.
#[test]
fn keys_are_created_right_after_a_view_change() {
    let mut cluster = Cluster::new(4);
    cluster.checks = false;
    commit_records(&mut cluster, 100_000);
    cluster.run_for(MLT * 20);
    cluster.run(1, set("gone", "v"));
    cluster.run(1, del("gone"));
    cluster.expel(&[4]);
    let begun = cluster.now.monotonic;
    // The first round of the epoch begins.
    cluster.tick(Duration::from_millis(1));
    cluster.deliver_all();
    let created = cluster.submit(2, set("fresh", "v"));
    let counted = cluster.submit(3, incr("counter"));
    while cluster.outcome(created).is_none() || cluster.outcome(counted).is_none() {
        cluster.deliver_all();
        cluster.tick(Duration::from_millis(1));
        let waited = cluster.now.monotonic.since(begun);
        assert!(waited < MLT, "still waiting after {waited:?}");
    }
    cluster.assert_done(created, Reply::Ok);
    cluster.assert_done(counted, Reply::Int(1));
}

/// Of a round that the view change cuts short, what is created waits for what is in flight only.
#[test]
fn keys_are_created_soon_after_a_round_was_cut_short() {
    let mut cluster = Cluster::with(4, collect_often);
    cluster.checks = false;
    commit_records(&mut cluster, 100_000);
    cluster.run_for(MLT * 20);
    cluster.run(2, set("k", "v"));
    cluster.run(2, del("k"));
    while !cluster.pool.iter().any(|packet| packet.is(1, 3, "floor_prepare")) {
        cluster.tick(Duration::from_millis(1));
    }
    cluster.deliver(1, 3, "floor_prepare");
    cluster.expel(&[1]);
    let begun = cluster.now.monotonic;
    let created = cluster.submit(3, set("fresh", "v"));
    cluster.assert_open(created);
    while cluster.outcome(created).is_none() {
        cluster.deliver_all();
        cluster.tick(Duration::from_millis(1));
        let waited = cluster.now.monotonic.since(begun);
        assert!(waited < MLT, "still waiting after {waited:?}");
    }
}

/// A tombstone whose VAL is lost, and that nobody asks for, goes as the others do.
#[test]
fn a_tombstone_without_val_is_forgotten() {
    let mut cluster = Cluster::with(3, collect_often);
    cluster.run_for(MLT * 4);
    cluster.run(1, set("k", "v"));
    cluster.submit(1, del("k"));
    cluster.deliver_some(|packet| packet.kind() != "val");
    cluster.take(1, 3, "val");
    assert_eq!(cluster.state(3, "k"), State::Invalid);
    cluster.run_for(Duration::from_millis(500));
    for node in 1..=3 {
        assert!(!cluster.has_record(node, "k"), "{node} keeps a tombstone");
    }
}

/// A key that is deleted, written and deleted again has one record, which goes once.
#[test]
fn a_key_that_comes_and_goes_is_forgotten_once() {
    let mut cluster = Cluster::with(3, collect_often);
    for round in 0..20 {
        cluster.run(1, set("k", "v"));
        cluster.run(2, del("k"));
        if round % 7 == 0 {
            cluster.run_for(MLT);
        }
    }
    cluster.run(3, set("k", "stays"));
    collect(&mut cluster);
    cluster.assert_everywhere("k", Some("stays"));
    cluster.run(3, del("k"));
    collect(&mut cluster);
    for node in 1..=3 {
        assert!(!cluster.has_record(node, "k"), "{node} keeps a tombstone");
    }
}
