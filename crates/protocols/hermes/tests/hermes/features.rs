//! Reads without leases, joins, large values, forwarding, program order, expiry, limits of time.

use std::time::Duration;

use quorate_engine::Place;
use quorate_hermes::{Config, Message, Reads, State};
use quorate_machine::{Outcome, Refusal};
use quorate_types::{NodeId, NodeSet, Role, limits};

use crate::op::{
    ABSENT, Op, Reply, append, expire, get, incr, set, set_until, unless_changed, value, version,
};
use crate::support::{Cluster, MLT, WALL};

fn quorum_reads(config: &mut Config) {
    config.reads = Reads::Quorum;
}

fn ack_broadcast(config: &mut Config) {
    config.ack_broadcast = true;
}

// O2 and O3.

#[test]
fn o2_a_superseded_write_sends_no_val() {
    let mut cluster = Cluster::new(3);
    let small = cluster.submit(1, set("k", "small"));
    let large = cluster.submit(3, set("k", "large"));
    cluster.deliver_all();
    cluster.assert_done(small, Reply::Ok);
    cluster.assert_done(large, Reply::Ok);
    let vals = cluster.fresh_packets.iter().filter(|packet| packet.kind() == "val");
    let from: Vec<u16> = vals.map(|packet| packet.from.0).collect();
    assert_eq!(from, [3, 3]);
    cluster.assert_everywhere("k", Some("large"));
}

#[test]
fn o3_acknowledgements_to_everyone_make_vals_needless() {
    let mut cluster = Cluster::with(3, ack_broadcast);
    let write = cluster.submit(1, set("k", "v"));
    cluster.deliver(1, 2, "inv");
    cluster.deliver(1, 3, "inv");
    assert_eq!(cluster.state(2, "k"), State::Invalid);
    cluster.deliver(3, 2, "ack");
    assert_eq!(cluster.state(2, "k"), State::Valid, "1 wrote it, 3 has it");
    cluster.deliver_all();
    cluster.assert_done(write, Reply::Ok);
    cluster.assert_everywhere("k", Some("v"));
    assert!(!cluster.fresh_packets.iter().any(|packet| packet.kind() == "val"));
}

#[test]
fn o3_acknowledgements_of_another_epoch_do_not_count() {
    let mut cluster = Cluster::with(4, ack_broadcast);
    cluster.submit(1, append("k", "v"));
    cluster.deliver(1, 2, "inv");
    cluster.deliver(1, 3, "inv");
    cluster.deliver(3, 2, "ack");
    // Now only 4 is missing at 2; but without 4 it must ask again.
    cluster.expel(&[4]);
    assert_eq!(cluster.state(2, "k"), State::Invalid);
    cluster.run_for(MLT * 4);
    cluster.assert_everywhere("k", Some("v"));
}

#[test]
fn o3_acknowledgements_of_another_key_do_not_count() {
    // 1 writes two keys under one timestamp and dies. 2 and 3 replay one each, and their cookies are
    // the same: 4's acknowledgement to 3 does not count at 2.
    let mut cluster = Cluster::with(4, ack_broadcast);
    cluster.submit(1, set("a", "v"));
    cluster.deliver(1, 2, "inv");
    cluster.take(1, 0, "inv");
    cluster.submit(1, set("b", "v"));
    cluster.deliver(1, 3, "inv");
    assert_eq!(cluster.meta(2, "a").timestamp, cluster.meta(3, "b").timestamp);
    cluster.pool.clear();
    cluster.expel(&[1]);
    cluster.pool.clear();
    let read = cluster.submit(2, get("a"));
    cluster.submit(3, get("b"));
    cluster.advance(MLT);
    cluster.tick_node(2);
    cluster.tick_node(3);
    assert_eq!(cluster.meta(2, "a").op, cluster.meta(3, "b").op);
    cluster.deliver(3, 4, "inv");
    cluster.deliver(2, 3, "inv");
    cluster.deliver_some(|packet| packet.is(0, 2, "ack"));
    cluster.assert_open(read);
    assert!(!cluster.has_record(4, "a"), "4 would answer that there is nothing");
    cluster.deliver_all();
    cluster.assert_done(read, value("v"));
    cluster.run_for(MLT * 4);
    cluster.assert_everywhere("a", Some("v"));
    cluster.assert_everywhere("b", Some("v"));
}

// Leaseless reads (§4.3.6).

#[test]
fn a_read_without_lease_waits_for_a_majority_of_the_group() {
    let mut cluster = Cluster::with(5, quorum_reads);
    cluster.run(1, set("k", "v"));
    let read = cluster.submit(2, get("k"));
    cluster.deliver(2, 1, "mcheck");
    cluster.deliver(1, 2, "mcheck_ack");
    cluster.assert_open(read);
    cluster.deliver(2, 3, "mcheck");
    cluster.deliver(3, 2, "mcheck_ack");
    cluster.assert_done(read, value("v"));
}

#[test]
fn a_node_that_was_voted_out_answers_no_read() {
    let mut cluster = Cluster::with(3, quorum_reads);
    cluster.run(1, set("k", "v"));
    let roles = cluster.roles_with(3, Role::Down);
    let view = cluster.decide(&roles);
    cluster.install_on(1, &view);
    cluster.install_on(2, &view);
    cluster.run(1, set("k", "w"));
    let read = cluster.submit(3, get("k"));
    for _ in 0..10 {
        cluster.tick(MLT);
        cluster.deliver_all();
    }
    cluster.assert_open(read);
    cluster.install_on(3, &view);
    assert_eq!(cluster.outcome(read), Some(&Outcome::Refused(Refusal::NotServing)));
}

#[test]
fn a_majority_of_the_replicas_proves_nothing_where_others_vote() {
    // The keyspace is on 1, 2 and 3 of five nodes. 3, 4 and 5 are a majority, and go on without 1
    // and 2, which hear each other and nothing of that.
    let mut cluster = Cluster::with(5, |config| {
        quorum_reads(config);
        config.replicas = Some([NodeId(1), NodeId(2), NodeId(3)].into_iter().collect());
    });
    cluster.run(1, set("k", "old"));
    let roles =
        [1, 2, 3, 4, 5].map(|node| (node, if node < 3 { Role::Down } else { Role::Active }));
    let view = cluster.decide(&roles);
    for node in 3..=5 {
        cluster.install_on(node, &view);
    }
    assert_eq!(cluster.run(3, set("k", "new")), Reply::Ok);
    let read = cluster.submit(2, get("k"));
    for _ in 0..10 {
        cluster.tick(MLT);
        cluster.deliver_all();
    }
    cluster.assert_open(read);
}

#[test]
fn nodes_without_a_replica_prove_reads() {
    let mut cluster = Cluster::with(5, |config| {
        quorum_reads(config);
        config.replicas = Some(NodeSet::only(NodeId(1)).with(NodeId(2)));
    });
    cluster.run(1, set("k", "v"));
    let read = cluster.submit(2, get("k"));
    cluster.deliver(2, 4, "mcheck");
    cluster.deliver(4, 2, "mcheck_ack");
    cluster.assert_open(read);
    cluster.deliver(2, 5, "mcheck");
    cluster.deliver(5, 2, "mcheck_ack");
    cluster.assert_done(read, value("v"));
}

#[test]
fn an_update_carries_a_batch_of_reads() {
    let mut cluster = Cluster::with(3, quorum_reads);
    cluster.run(1, set("k", "v"));
    cluster.turns = false;
    let read = cluster.submit(2, get("k"));
    let write = cluster.submit(2, set("other", "v"));
    cluster.end_turn(2);
    assert_eq!(cluster.probed("hermes: an update carries a batch of reads"), 1);
    assert!(!cluster.pool.iter().any(|packet| packet.kind() == "mcheck"));
    cluster.deliver(2, 1, "inv");
    cluster.deliver(1, 2, "ack");
    cluster.assert_done(read, value("v"));
    cluster.assert_open(write);
}

#[test]
fn a_lost_check_is_sent_again() {
    let mut cluster = Cluster::with(3, quorum_reads);
    let read = cluster.submit(2, get("k"));
    cluster.pool.clear();
    cluster.run_for(MLT * 2);
    cluster.assert_done(read, ABSENT);
}

// Joins (§4.3.3).

/// 3 joins as a shadow while every key is written all the time.
fn join_under_writes(configure: fn(&mut Config)) {
    let mut cluster = Cluster::with(3, configure);
    for key in 0..200 {
        cluster.run(1, set(&format!("k{key}"), "old"));
    }
    cluster.expel(&[3]);
    cluster.run_for(MLT * 3);
    cluster.rejoin(3);
    let mut writes = Vec::new();
    let mut round = 0;
    while !cluster.machine(3).is_caught_up() {
        let key = format!("k{}", round * 37 % 200);
        writes.push(cluster.submit(round % 2 + 1, set(&key, &format!("new {round}"))));
        for _ in 0..3 {
            if !cluster.pool.is_empty() {
                let packet = cluster.pool.remove(0);
                cluster.inject(&packet);
            }
        }
        cluster.tick(Duration::from_micros(100));
        round += 1;
        assert!(round < 10_000, "a shadow catches up under load");
    }
    let refused = cluster.submit(3, get("k0"));
    assert_eq!(cluster.outcome(refused), Some(&Outcome::Refused(Refusal::NotServing)));
    cluster.set_role(3, Role::Active);
    cluster.run_for(MLT * 6);
    for write in writes {
        cluster.assert_done(write, Reply::Ok);
    }
    for key in 0..200 {
        let key = format!("k{key}");
        let read = cluster.submit(3, get(&key));
        cluster.run_for(MLT * 4);
        let reference = cluster.stored(1, &key).expect("nobody deletes");
        cluster.assert_done(read, value(&reference));
    }
}

#[test]
fn a_shadow_joins_under_writes() {
    join_under_writes(|_| {});
    join_under_writes(ack_broadcast);
}

#[test]
fn chunk_rule_an_entry_never_overwrites_a_newer_inv() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, set("k", "old"));
    cluster.expel(&[3]);
    cluster.rejoin(3);
    cluster.deliver(3, 0, "chunk_read");
    let write = cluster.submit(2, set("k", "new"));
    cluster.deliver(2, 3, "inv");
    cluster.deliver(0, 3, "chunk");
    assert_eq!(cluster.stored(3, "k").as_deref(), Some("new"));
    assert_eq!(cluster.state(3, "k"), State::Invalid);
    assert!(cluster.machine(3).is_caught_up());
    cluster.deliver_all();
    cluster.assert_done(write, Reply::Ok);
}

#[test]
fn chunk_rule_an_entry_overtakes_a_replay() {
    // 3 joins and replays what 2 has left behind. 1 has written since, and its INV to 3 is lost: its
    // chunk is the first that 3 hears of it.
    let mut cluster = Cluster::new(3);
    cluster.run(1, set("k", "old"));
    cluster.expel(&[3]);
    cluster.rejoin(3);
    cluster.submit(2, append("k", ",left behind"));
    cluster.deliver(2, 3, "inv");
    cluster.pool.clear();
    cluster.expel(&[2]);
    while !cluster.pool.iter().any(|packet| packet.is(3, 1, "inv")) {
        cluster.advance(MLT);
        cluster.tick_node(3);
    }
    assert_eq!(cluster.state(3, "k"), State::Replay);
    cluster.take(3, 1, "inv");
    let write = cluster.submit(1, set("k", "new"));
    cluster.take(1, 3, "inv");
    cluster.deliver(3, 1, "chunk_read");
    cluster.deliver(1, 3, "chunk");
    assert_eq!(cluster.stored(3, "k").as_deref(), Some("new"));
    assert_eq!(cluster.state(3, "k"), State::Invalid);
    assert_eq!(cluster.probed("hermes: a chunk overtakes an update"), 1);
    cluster.run_for(MLT * 6);
    cluster.assert_done(write, Reply::Ok);
    assert_eq!(cluster.machine(3).pending(), 0, "the replay is forgotten");
}

#[test]
fn chunk_rule_an_entry_is_readable_only_if_the_donors_copy_was() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, set("k", "old"));
    cluster.expel(&[3]);
    cluster.submit(1, set("k", "new"));
    cluster.deliver(1, 2, "inv");
    cluster.rejoin(3);
    cluster.take(0, 0, "inv");
    cluster.deliver_some(|packet| packet.kind().starts_with("chunk"));
    assert!(cluster.machine(3).is_caught_up());
    assert_eq!(cluster.stored(3, "k").as_deref(), Some("new"));
    assert_eq!(cluster.state(3, "k"), State::Invalid);
}

#[test]
fn a_write_begun_before_a_join_needs_the_shadows_acknowledgement() {
    let mut cluster = Cluster::new(3);
    cluster.expel(&[3]);
    let write = cluster.submit(1, set("k", "v"));
    cluster.rejoin(3);
    cluster.deliver_some(|packet| packet.from.0 != 3 && packet.to.0 != 3);
    cluster.assert_open(write);
    cluster.deliver_all();
    cluster.assert_done(write, Reply::Ok);
    assert_eq!(cluster.stored(3, "k").as_deref(), Some("v"));
}

#[test]
fn a_large_value_is_sent_apart_from_its_chunk() {
    let mut cluster = Cluster::new(3);
    let large = "x".repeat(limits::CHUNK_BYTES / 2);
    cluster.run(1, set("large", &large));
    cluster.run(1, set("small", "v"));
    cluster.expel(&[3]);
    cluster.run_for(MLT * 3);
    cluster.rejoin(3);
    cluster.deliver(3, 0, "chunk_read");
    cluster.deliver(0, 3, "chunk");
    assert!(!cluster.machine(3).is_caught_up(), "the chunk alone is not enough");
    cluster.deliver(3, 0, "value_read");
    // It is lost on its way.
    cluster.take(0, 3, "inv");
    assert!(cluster.probed("hermes: chunk waits for a large value") > 0);
    cluster.run_for(MLT * 6);
    assert!(cluster.machine(3).is_caught_up());
    assert_eq!(cluster.stored(3, "large"), Some(large));
    assert_eq!(cluster.stored(3, "small").as_deref(), Some("v"));
}

/// What a donor has sent and a shadow has not got is never more than the shadow has asked for.
#[test]
fn large_values_come_a_few_at_a_time() {
    let mut cluster = Cluster::new(3);
    let large = "x".repeat(limits::CHUNK_BYTES / 2);
    for number in 0..50 {
        cluster.run(1, set(&format!("k{number}"), &large));
    }
    cluster.expel(&[3]);
    cluster.run_for(MLT * 3);
    cluster.rejoin(3);
    let mut most = 0;
    while !cluster.machine(3).is_caught_up() {
        let packet = cluster.pool.remove(0);
        cluster.inject(&packet);
        let from_donor = cluster.pool.iter().filter(|packet| packet.is(0, 3, "any"));
        most = most.max(from_donor.map(|packet| packet.bytes.len()).sum());
    }
    assert!(most < 3 * limits::CHUNK_BYTES, "{most} bytes at a time");
    for number in 0..50 {
        assert!(cluster.stored(3, &format!("k{number}")).as_ref() == Some(&large));
    }
}

/// A chunk that is long on its way is neither given up nor asked for again and again.
#[test]
fn a_slow_donor_keeps_its_shadow() {
    let mut cluster = Cluster::new(3);
    for number in 0..400 {
        cluster.run(1, set(&format!("k{number}"), &"v".repeat(limits::CHUNK_BYTES / 64)));
    }
    cluster.expel(&[3]);
    cluster.run_for(MLT * 3);
    cluster.rejoin(3);
    cluster.fresh_packets.clear();
    let slow = MLT * 20;
    let begun = cluster.now.monotonic;
    let mut due = Vec::new();
    while !cluster.machine(3).is_caught_up() {
        assert!(cluster.now.monotonic.since(begun) < slow * 30, "it takes too long");
        cluster.tick(MLT / 2);
        cluster.deliver_some(|packet| packet.kind() != "chunk");
        let arrival = cluster.now.monotonic + slow;
        due.extend(cluster.take(0, 3, "chunk").into_iter().map(|packet| (arrival, packet)));
        let now = cluster.now.monotonic;
        for (_, packet) in due.extract_if(.., |(at, _)| *at <= now) {
            cluster.inject(&packet);
        }
    }
    assert_eq!(cluster.probed("hermes: shadow changes its donor"), 0);
    let sent = cluster.fresh_packets.iter().filter(|packet| packet.kind() == "chunk").count();
    assert!(sent <= 4 * 9, "{sent} chunks were sent, of 8 or 9");
}

/// However long keys and values are, each message is one that the nodes' links carry.
#[test]
fn a_chunk_fits_into_a_message() {
    let mut cluster = Cluster::new(3);
    let value = "v".repeat(limits::CHUNK_BYTES / 4);
    let filler = "k".repeat(limits::KEY_BYTES_MAX - 2);
    let keys: Vec<String> = (10..90).map(|number| format!("{filler}{number}")).collect();
    for key in &keys {
        cluster.run(1, set(key, &value));
    }
    cluster.expel(&[3]);
    cluster.run_for(MLT * 3);
    cluster.rejoin(3);
    cluster.run_for(MLT * 6);
    assert!(cluster.machine(3).is_caught_up());
    for key in &keys {
        assert!(cluster.stored(3, key).as_ref() == Some(&value));
    }
}

#[test]
fn a_shadow_whose_donor_dies_turns_to_another() {
    let mut cluster = Cluster::new(4);
    cluster.run(1, set("k", "v"));
    cluster.expel(&[4]);
    cluster.run_for(MLT * 3);
    cluster.rejoin(4);
    let donor = cluster.take(4, 0, "chunk_read")[0].to.0;
    cluster.expel(&[donor]);
    cluster.run_for(MLT * 8);
    assert!(cluster.machine(4).is_caught_up());
    assert_eq!(cluster.stored(4, "k").as_deref(), Some("v"));
}

// Placement.

#[test]
fn a_node_outside_the_group_places_ops_at_owners_and_refuses_to_run_them() {
    let mut cluster = Cluster::with(3, |config| {
        config.replicas = Some(NodeSet::only(NodeId(1)).with(NodeId(2)));
    });
    let mut owners = NodeSet::EMPTY;
    for number in 0..20 {
        let key = format!("k{number}");
        let places = [1, 2, 3].map(|node| cluster.place(node, &get(&key)));
        let [Place::Here, Place::Here, Place::At(owner)] = places else { panic!("{places:?}") };
        owners.insert(owner);
    }
    assert_eq!(owners, NodeSet::only(NodeId(1)).with(NodeId(2)));
    let op = cluster.submit(3, get("k"));
    assert_eq!(cluster.outcome(op), Some(&Outcome::Refused(Refusal::NotServing)));
    cluster.expel(&[1, 2]);
    assert_eq!(cluster.place(3, &get("k")), Place::Unknown);
}

#[test]
fn what_keeps_losing_races_is_placed_at_its_owner_for_a_while() {
    let mut cluster = Cluster::new(3);
    for _ in 0..4 {
        for node in 1..=3 {
            cluster.submit(node, incr("k"));
        }
        cluster.run_for(MLT);
    }
    let places = |cluster: &mut Cluster, op: &Op| [1, 2, 3].map(|node| cluster.place(node, op));
    let hot = places(&mut cluster, &incr("k"));
    let loser =
        hot.iter().position(|place| *place != Place::Here).expect("somebody lost") as u16 + 1;
    let Place::At(owner) = hot[usize::from(loser) - 1] else { panic!("{hot:?}") };
    assert_eq!(hot[usize::from(owner.0) - 1], Place::Here, "{hot:?}");
    for op in [get("k"), set("k", "v"), incr("j")] {
        assert_eq!(places(&mut cluster, &op), [Place::Here; 3]);
    }
    // Not while something of this node is under way for the key.
    cluster.submit(loser, set("k", "5"));
    assert_eq!(cluster.place(loser, &incr("k")), Place::Here);
    cluster.deliver_all();
    cluster.advance(Duration::from_secs(1));
    assert_eq!(places(&mut cluster, &incr("k")), [Place::Here; 3]);
}

#[test]
fn a_leaseless_read_without_a_majority_is_given_up() {
    let mut cluster = Cluster::with(3, |config| config.reads = Reads::Quorum);
    let read = cluster.submit(1, get("k"));
    for _ in 0..150 {
        cluster.tick(MLT);
        cluster.take(0, 0, "mcheck");
    }
    assert_eq!(cluster.outcome(read), Some(&Outcome::Refused(Refusal::TimedOut)));
}

// Queues.

#[test]
fn commands_of_one_origin_on_one_key_take_effect_in_order() {
    let mut cluster = Cluster::new(3);
    cluster.submit(1, set("k", "0"));
    cluster.deliver(1, 2, "inv");
    let first = cluster.submit_as(2, 7, set("k", "5"));
    let read = cluster.submit_as(2, 7, get("k"));
    let sum = cluster.submit_as(2, 7, incr("k"));
    let last = cluster.submit_as(2, 7, get("k"));
    let other = cluster.submit_as(2, 8, get("k"));
    cluster.deliver_some(|packet| packet.is(1, 3, "inv") || packet.is(0, 1, "ack"));
    cluster.deliver(1, 2, "val");
    cluster.assert_done(other, value("0"));
    cluster.assert_open(read);
    cluster.deliver_all();
    cluster.assert_done(first, Reply::Ok);
    cluster.assert_done(read, value("5"));
    cluster.assert_done(sum, Reply::Int(6));
    cluster.assert_done(last, value("6"));
}

#[test]
fn a_queue_of_a_single_live_replica_is_served_without_recursion() {
    let mut cluster = Cluster::new(2);
    cluster.checks = false;
    let first = cluster.submit(1, incr("k"));
    let ops: Vec<u64> = (0..10_000).map(|_| cluster.submit(1, incr("k"))).collect();
    cluster.expel(&[2]);
    cluster.assert_done(first, Reply::Int(1));
    for (at, op) in ops.into_iter().enumerate() {
        cluster.assert_done(op, Reply::Int(at as i64 + 2));
    }
    assert_eq!(cluster.machine(1).pending(), 0);
}

#[test]
fn what_was_started_times_out_as_unknown_and_what_was_queued_as_refused() {
    let mut cluster = Cluster::new(3);
    let started = cluster.submit(1, set("k", "v"));
    let write = cluster.submit(1, set("k", "w"));
    let read = cluster.submit(1, get("k"));
    for _ in 0..150 {
        cluster.tick(MLT);
        cluster.pool.clear();
    }
    assert_eq!(cluster.outcome(started), Some(&Outcome::Unknown));
    for queued in [write, read] {
        assert_eq!(cluster.outcome(queued), Some(&Outcome::Refused(Refusal::TimedOut)));
    }
}

#[test]
fn an_evicted_node_says_what_it_knows() {
    let mut cluster = Cluster::new(3);
    let started = cluster.submit(3, set("k", "v"));
    let queued = cluster.submit(3, get("k"));
    cluster.set_role(3, Role::Down);
    let refused = Outcome::Refused(Refusal::NotServing);
    assert_eq!(cluster.outcome(started), Some(&Outcome::Unknown));
    assert_eq!(cluster.outcome(queued), Some(&refused));
    let late = cluster.submit(3, get("k"));
    assert_eq!(cluster.outcome(late), Some(&refused));
    // It says nothing more, whatever the time.
    cluster.pool.clear();
    cluster.fresh_packets.clear();
    for _ in 0..100 {
        cluster.advance(MLT);
        cluster.tick_node(3);
    }
    assert_eq!(cluster.fresh_packets, []);
}

// Expiry.

#[test]
fn a_read_of_an_expired_value_deletes_it_everywhere_first() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, set_until("k", "v", WALL + 50));
    assert_eq!(cluster.run(2, get("k")), value("v"));
    cluster.advance(Duration::from_millis(51));
    let read = cluster.submit(2, get("k"));
    cluster.assert_open(read);
    let deleted = cluster.pool.iter().filter(|packet| match packet.message() {
        Message::Inv(inv) => inv.content.is_none() && inv.rmw,
        _ => false,
    });
    assert_eq!(deleted.count(), 2);
    cluster.deliver_all();
    cluster.assert_done(read, ABSENT);
    cluster.assert_everywhere("k", None);
}

#[test]
fn a_watch_of_an_expired_value_holds_over_its_deletion() {
    for nodes in [1, 3] {
        let mut cluster = Cluster::new(nodes);
        cluster.run(1, set_until("k", "v", WALL + 50));
        cluster.advance(Duration::from_millis(51));
        let Reply::Version(seen) = cluster.run(1, version("k")) else { panic!("a version") };
        cluster.run_for(Duration::from_millis(400));
        cluster.assert_everywhere("k", None);
        let block = cluster.run(nodes, unless_changed("k", seen, "new"));
        assert_eq!((block, cluster.run(1, get("k"))), (ABSENT, value("new")), "{nodes} nodes");
    }
}

#[test]
fn reads_that_have_waited_find_an_expired_value() {
    for alone in [false, true] {
        let mut cluster = Cluster::new(2);
        cluster.run(1, set("k", "v"));
        let first = cluster.submit(1, set_until("k", "w", WALL + 50));
        let mut reads: Vec<_> = (0..3).map(|_| cluster.submit(1, get("k"))).collect();
        let written = cluster.submit(1, append("k", "x"));
        reads.extend((0..3).map(|origin| cluster.submit_as(1, 100 + origin, get("k"))));
        reads.extend((0..3).map(|_| cluster.submit(1, get("k"))));
        cluster.advance(Duration::from_millis(51));
        if alone {
            // From here on each update is done at once.
            cluster.set_role(2, Role::Down);
        }
        cluster.deliver_all();
        cluster.assert_done(first, Reply::Ok);
        cluster.assert_done(written, Reply::Int(1));
        for read in reads {
            let seen = cluster.outcome(read).expect("it has waited for nothing else");
            assert!([ABSENT, value("x")].map(Outcome::Done).contains(seen), "{seen:?}");
        }
    }
}

#[test]
fn an_expired_value_without_val_goes_even_if_nobody_asks() {
    let mut cluster = Cluster::new(3);
    for number in 0..6 {
        cluster.submit(1, set_until(&format!("k{number}"), "v", WALL + 50));
    }
    cluster.deliver_some(|packet| packet.kind() != "val");
    cluster.take(1, 0, "val");
    cluster.run_for(Duration::from_secs(2));
    for number in 0..6 {
        let key = format!("k{number}");
        for node in 1..=3 {
            assert_eq!(cluster.stored(node, &key), None, "{key} at {node}");
        }
    }
}

#[test]
fn an_expired_value_goes_even_if_nobody_asks() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, set("k", "v"));
    assert_eq!(cluster.run(2, expire("k", WALL + 50)), Reply::Int(1));
    cluster.run_for(Duration::from_millis(400));
    cluster.assert_everywhere("k", None);
    let expired: u64 = (1..=3).map(|node| cluster.counter(node, "expired")).sum();
    assert_eq!(expired, 1, "one replica owns the key");
}
