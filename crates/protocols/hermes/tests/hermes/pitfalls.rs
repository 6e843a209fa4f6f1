//! One test per pitfall of N3.12, and per rule of N8, named after it.
//!
//! H3 (the lease is checked after the read) and rule 6 belong to `quorate-node`, rules 7 to 10 to
//! other protocols, rule 12 (torn reads) to `quorate-storage`. H8 is in `tombstones.rs`.

use std::collections::BTreeMap;

use quorate_engine::Place;
use quorate_hermes::{Message, State};
use quorate_machine::{Outcome, Refusal};
use quorate_types::{Duration, Epoch, Role, Timestamp, limits};

use crate::op::{ABSENT, Reply, append, get, incr, set, value};
use crate::support::{Cluster, MLT, Packet, seed_for};

#[test]
fn h0_value_and_timestamp_change_together() {
    let mut cluster = Cluster::new(3);
    for round in 0..20 {
        cluster.submit(1, set("k", &format!("a{round}")));
        cluster.submit(2, append("k", "b"));
        cluster.submit(3, set("k", &format!("c{round}")));
        let mut minted: BTreeMap<Timestamp, Vec<u8>> = BTreeMap::new();
        while !cluster.pool.is_empty() {
            let at = (round * 7 + cluster.pool.len()) % cluster.pool.len();
            let packet = cluster.pool.remove(at);
            cluster.inject(&packet);
            for packet in std::mem::take(&mut cluster.fresh_packets) {
                if let Message::Inv(inv) = packet.message() {
                    let bytes = inv.content.expect("nobody deletes").bytes;
                    let known = minted.entry(inv.timestamp).or_insert_with(|| bytes.to_vec());
                    assert_eq!(known, bytes, "one timestamp, one value");
                }
            }
            for node in 1..=3 {
                let timestamp = cluster.meta(node, "k").timestamp;
                if let Some(known) = minted.get(&timestamp) {
                    let stored = cluster.stored(node, "k").expect("nobody deletes");
                    assert_eq!(stored.as_bytes(), known);
                }
            }
        }
        cluster.run_for(MLT * 3);
    }
}

/// Five replicas; 4's append "b" reaches 1, then 4 hears of 5's larger one, which reaches nobody
/// else. Both die.
fn h1_double_crash(cluster: &mut Cluster) -> u64 {
    cluster.run(1, set("k", "-"));
    let mine = cluster.submit(4, append("k", "b"));
    cluster.submit(5, append("k", "a"));
    cluster.deliver(4, 1, "inv");
    cluster.deliver(5, 4, "inv");
    assert_eq!(cluster.state(4, "k"), State::Invalid);
    cluster.pool.clear();
    mine
}

#[test]
fn h1_abort_is_not_no_effect() {
    let mut cluster = Cluster::new(5);
    let mine = h1_double_crash(&mut cluster);
    // Superseded, but nothing larger is Valid here: "no effect" may be the wrong answer.
    cluster.assert_open(mine);
    cluster.crash(4);
    cluster.crash(5);
    let down = [4, 5].map(|node| (node, Role::Down));
    let roles = [1, 2, 3].map(|node| (node, Role::Active));
    cluster.install(&[&roles[..], &down[..]].concat());
    cluster.run_for(MLT * 4);
    cluster.assert_everywhere("k", Some("-b"));
}

#[test]
fn h1_an_op_that_may_yet_be_replayed_times_out_as_unknown() {
    let mut cluster = Cluster::new(5);
    let mine = h1_double_crash(&mut cluster);
    // Nobody hears 4 from now on, and 4 nobody.
    for _ in 0..120 {
        cluster.advance(MLT);
        cluster.tick_node(4);
        cluster.pool.clear();
    }
    assert_eq!(cluster.outcome(mine), Some(&Outcome::Unknown));
}

#[test]
fn h2_a_node_that_comes_back_does_not_mint_old_timestamps() {
    // 1's write reaches only 2; 1 comes back before anybody has replayed it, copies from 3, and
    // writes the key at the version that its earlier life has used.
    let mut cluster = Cluster::new(3);
    cluster.submit(1, set("k", "first life"));
    cluster.deliver(1, 2, "inv");
    cluster.expel(&[1]);
    cluster.pool.clear();
    for seed in 0.. {
        cluster.start(1, seed);
        cluster.set_role(1, Role::Shadow);
        if cluster.pool.iter().any(|packet| packet.is(1, 3, "chunk_read")) {
            break;
        }
        cluster.crash(1);
        cluster.set_role(1, Role::Down);
        cluster.pool.clear();
    }
    cluster.deliver_some(|packet| packet.is(1, 3, "chunk_read") || packet.is(3, 1, "chunk"));
    assert!(cluster.machine(1).is_caught_up());
    cluster.set_role(1, Role::Active);
    cluster.pool.clear();
    let write = cluster.submit(1, set("k", "second life"));
    assert_eq!(cluster.meta(1, "k").timestamp.version, cluster.meta(2, "k").timestamp.version);
    cluster.deliver_all();
    // Either of the two may be the larger: all replicas must agree, and the write must end.
    cluster.run_for(MLT * 6);
    cluster.assert_done(write, Reply::Ok);
    let agreed = cluster.stored(1, "k");
    cluster.assert_everywhere("k", agreed.as_deref());
}

#[test]
fn h4_a_write_finished_by_anothers_replay_is_answered() {
    let mut cluster = Cluster::new(3);
    let write = cluster.submit(1, set("k", "v"));
    cluster.deliver(1, 2, "inv");
    cluster.deliver(1, 3, "inv");
    cluster.take(0, 1, "ack");
    // 3 has a reader; its message loss timer runs out first.
    let read = cluster.submit(3, get("k"));
    while cluster.state(3, "k") == State::Invalid {
        cluster.advance(MLT / 4);
        cluster.tick_node(3);
    }
    cluster.deliver_some(|packet| !packet.is(1, 0, "inv"));
    cluster.assert_done(read, value("v"));
    cluster.assert_done(write, Reply::Ok);
    assert_eq!(cluster.probed("hermes: op finished by another's replay"), 1);
    cluster.assert_everywhere("k", Some("v"));
}

#[test]
fn h5_all_waiting_reads_go_before_the_next_write() {
    let mut cluster = Cluster::new(3);
    cluster.submit(1, set("k", "first"));
    cluster.deliver(1, 2, "inv");
    let before = cluster.submit(2, get("k"));
    let write = cluster.submit(2, set("k", "second"));
    let behind: Vec<u64> = (0..3).map(|_| cluster.submit(2, get("k"))).collect();
    cluster.deliver_some(|packet| packet.is(1, 3, "inv") || packet.is(0, 1, "ack"));
    cluster.deliver(1, 2, "val");
    cluster.assert_done(before, value("first"));
    for read in behind {
        cluster.assert_done(read, value("first"));
    }
    cluster.assert_open(write);
    cluster.deliver_all();
    cluster.assert_done(write, Reply::Ok);
}

#[test]
fn h6_racing_read_modify_writes_all_end() {
    let mut cluster = Cluster::new(5);
    let mut ops = Vec::new();
    for _ in 0..20 {
        ops.extend((1..=5).map(|node| {
            let op = incr("k");
            match cluster.place(node, &op) {
                Place::Here => cluster.submit(node, op),
                Place::At(owner) => cluster.submit(owner.0, op),
                Place::Unknown => panic!("there are replicas"),
            }
        }));
        cluster.run_for(Duration::from_millis(2));
    }
    cluster.run_for(Duration::from_millis(200));
    for op in ops {
        assert!(matches!(cluster.outcome(op), Some(Outcome::Done(_))), "op {op}");
    }
    cluster.assert_everywhere("k", Some("100"));
    assert!(cluster.probed("hermes: read-modify-write superseded") > 0);
}

#[test]
fn h6_plain_writes_do_not_starve_read_modify_writes() {
    let mut cluster = Cluster::new(3);
    let op = cluster.submit(1, append("k", "+"));
    let mut rounds = 0;
    while cluster.outcome(op).is_none() {
        // Every other time the write is under way when the read-modify-write tries again.
        cluster.submit(2, set("k", "x"));
        if rounds % 2 == 0 {
            cluster.deliver_all();
        }
        cluster.tick(Duration::from_millis(1));
        cluster.deliver_all();
        rounds += 1;
        assert!(rounds < 100);
    }
}

#[test]
fn h7_an_op_answered_unknown_is_never_run_again() {
    let mut cluster = Cluster::new(3);
    let op = cluster.submit(1, incr("k"));
    for _ in 0..150 {
        cluster.pool.clear();
        cluster.tick(MLT);
    }
    assert_eq!(cluster.outcome(op), Some(&Outcome::Unknown));
    cluster.run_for(MLT * 4);
    // It has taken effect after all, once.
    cluster.assert_everywhere("k", Some("1"));
}

#[test]
fn h9_a_blocked_replica_blocks_writers_but_no_reader_of_another_key() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, set("other", "v"));
    let write = cluster.submit(1, set("k", "v"));
    for _ in 0..10 {
        cluster.tick(MLT);
        cluster.take(0, 3, "any");
        cluster.deliver_all();
    }
    cluster.assert_open(write);
    assert_eq!(cluster.run(1, get("other")), value("v"));
    // Its expulsion ends the wait.
    cluster.expel(&[3]);
    cluster.deliver_all();
    cluster.assert_done(write, Reply::Ok);
}

#[test]
fn h9_queues_have_limits() {
    let mut cluster = Cluster::new(3);
    cluster.checks = false;
    cluster.submit(1, set("k", "v"));
    for _ in 0..limits::WAITERS_PER_KEY_MAX {
        let op = cluster.submit(1, get("k"));
        cluster.assert_open(op);
    }
    let busy = Outcome::Refused(Refusal::Busy);
    let one_more = cluster.submit(1, get("k"));
    assert_eq!(cluster.outcome(one_more), Some(&busy));
    while cluster.machine(1).pending() < limits::OPS_PENDING_MAX {
        let key = format!("key {}", cluster.machine(1).pending());
        cluster.submit(1, set(&key, "v"));
    }
    let one_more = cluster.submit(1, set("yet another", "v"));
    assert_eq!(cluster.outcome(one_more), Some(&busy));
}

#[test]
fn h10_old_epoch_acks_of_an_rmw_do_not_count() {
    // The published counter-example: 3 acknowledges 1's, then 2's; 2 dies; 1 must not count what 3
    // said before.
    let mut cluster = Cluster::new(3);
    let mine = cluster.submit(1, append("k", "a"));
    cluster.submit(2, append("k", "b"));
    cluster.deliver(1, 3, "inv");
    cluster.deliver(3, 1, "ack");
    cluster.deliver(2, 3, "inv");
    cluster.expel(&[2]);
    cluster.assert_open(mine);
    cluster.run_for(MLT * 6);
    cluster.assert_done(mine, Reply::Int(2));
    cluster.assert_everywhere("k", Some("ba"));
}

#[test]
fn h11_replayed_rmw_is_not_run_again() {
    let mut cluster = Cluster::new(3);
    let mine = cluster.submit(1, incr("k"));
    cluster.deliver(1, 2, "inv");
    cluster.deliver(1, 3, "inv");
    cluster.take(0, 1, "ack");
    // 3 replays it; 1 acknowledges its own update and never hears that it is Valid.
    cluster.submit(3, get("k"));
    while cluster.state(3, "k") == State::Invalid {
        cluster.advance(MLT / 4);
        cluster.tick_node(3);
    }
    cluster.deliver_some(|packet| packet.is(3, 0, "inv") || packet.is(0, 3, "ack"));
    assert_eq!(cluster.state(3, "k"), State::Valid);
    cluster.take(3, 1, "val");
    cluster.assert_open(mine);
    // The next update is built on it.
    let next = cluster.submit(3, incr("k"));
    cluster.deliver(3, 1, "inv");
    cluster.assert_done(mine, Reply::Int(1));
    cluster.run_for(MLT * 6);
    cluster.assert_done(next, Reply::Int(2));
    cluster.assert_everywhere("k", Some("2"));
    assert_eq!(cluster.probed("hermes: replayed read-modify-write answered as done"), 1);
}

/// 3's write and 1's race from the same version, 3's being the larger; 1's has ended, and 3's INV is
/// still under way to 1.
fn h12_racing_writes(cluster: &mut Cluster) -> u64 {
    let large = cluster.submit(3, set("k", "100"));
    let small = cluster.submit(1, set("k", "5"));
    cluster.deliver(3, 2, "inv");
    cluster.deliver(1, 2, "inv");
    cluster.deliver(1, 3, "inv");
    cluster.deliver(2, 1, "ack");
    cluster.deliver(3, 1, "ack");
    cluster.assert_done(small, Reply::Ok);
    large
}

#[test]
fn h12_a_write_is_not_acknowledged_under_an_rmw_that_did_not_see_it() {
    let mut cluster = Cluster::new(3);
    let large = h12_racing_writes(&mut cluster);
    let sum = cluster.submit(1, incr("k"));
    cluster.take(1, 3, "inv");
    cluster.deliver(3, 1, "inv");
    // Acknowledged now, 100 would be read after 5 was written and before 5 + 1 is.
    cluster.deliver_some(|packet| packet.is(0, 3, "ack"));
    cluster.assert_open(large);
    let read = cluster.submit(3, get("k"));
    cluster.run_for(MLT * 4);
    cluster.assert_done(read, value("6"));
    cluster.assert_done(sum, Reply::Int(6));
    cluster.assert_done(large, Reply::Ok);
    cluster.assert_everywhere("k", Some("6"));
}

#[test]
fn h12_acks_of_a_write_do_not_outlive_their_epoch() {
    // As above, but 1's read-modify-write reaches 2, which has acknowledged 3's write before; then
    // 1 dies.
    let mut cluster = Cluster::new(3);
    let large = h12_racing_writes(&mut cluster);
    cluster.submit(1, incr("k"));
    cluster.deliver(2, 3, "ack");
    cluster.deliver(1, 2, "inv");
    cluster.expel(&[1]);
    let early = cluster.submit(3, get("k"));
    cluster.assert_open(early);
    cluster.run_for(MLT * 6);
    cluster.assert_done(large, Reply::Ok);
    cluster.assert_done(early, value("6"));
    cluster.assert_everywhere("k", Some("6"));
}

#[test]
fn rule_1_messages_of_other_epochs_change_nothing() {
    let mut cluster = Cluster::new(3);
    cluster.submit(1, set("k", "old epoch"));
    cluster.submit(2, incr("n"));
    cluster.deliver(1, 2, "inv");
    let old = cluster.pool.clone();
    assert!(["inv", "ack"].iter().all(|kind| old.iter().any(|packet| packet.kind() == *kind)));
    let roles = [1, 2, 3].map(|node| (node, Role::Active));
    cluster.install(&roles);
    cluster.pool.clear();
    let before: Vec<_> = [1, 2, 3].map(|node| cluster.meta(node, "k")).to_vec();
    cluster.fresh_packets.clear();
    for packet in &old {
        cluster.inject(packet);
        // A message of a view that this node does not have yet is dropped, too.
        cluster.inject(&Packet { epoch: Epoch(9), ..packet.clone() });
    }
    let after: Vec<_> = [1, 2, 3].map(|node| cluster.meta(node, "k")).to_vec();
    assert_eq!(before, after);
    assert_eq!(cluster.fresh_packets, []);
    assert_eq!(cluster.ignored["hermes: message of an older epoch"], old.len() as u64);
    assert_eq!(cluster.ignored["hermes: message of a newer epoch"], old.len() as u64);
}

#[test]
fn rule_1_a_view_reaches_nodes_in_any_order() {
    let orders = [[1, 2, 4], [1, 4, 2], [2, 1, 4], [2, 4, 1], [4, 1, 2], [4, 2, 1]];
    for order in orders {
        let mut cluster = Cluster::new(4);
        let write = cluster.submit(1, set("k", "v"));
        let sum = cluster.submit(3, incr("n"));
        cluster.deliver(1, 2, "inv");
        cluster.deliver(3, 4, "inv");
        cluster.crash(3);
        let roles = cluster.roles_with(3, Role::Down);
        let view = cluster.decide(&roles);
        for node in order {
            cluster.install_on(node, &view);
            cluster.deliver_all();
            cluster.tick(Duration::from_millis(1));
        }
        cluster.run_for(MLT * 6);
        cluster.assert_done(write, Reply::Ok);
        cluster.assert_open(sum);
        cluster.assert_everywhere("k", Some("v"));
        cluster.assert_everywhere("n", Some("1"));
    }
}

#[test]
fn rule_2_a_duplicate_of_a_valid_version_leaves_it_readable() {
    let mut cluster = Cluster::new(3);
    let write = cluster.submit(1, set("k", "v"));
    let duplicate = cluster.pool[0].clone();
    cluster.deliver_all();
    cluster.assert_done(write, Reply::Ok);
    cluster.inject(&duplicate);
    let to = duplicate.to.0;
    assert_eq!(cluster.state(to, "k"), State::Valid);
    assert_eq!(cluster.run(to, get("k")), value("v"));
}

#[test]
fn rule_2_a_late_val_validates_only_its_version() {
    let mut cluster = Cluster::new(3);
    cluster.submit(1, set("k", "first"));
    cluster.deliver_some(|packet| packet.kind() != "val");
    let late = cluster.take(1, 2, "val");
    cluster.deliver_all();
    cluster.submit(3, set("k", "second"));
    cluster.deliver(3, 2, "inv");
    cluster.inject(&late[0]);
    assert_eq!(cluster.state(2, "k"), State::Invalid, "1 does not hold the second value yet");
    let read = cluster.submit(2, get("k"));
    cluster.assert_open(read);
}

#[test]
fn rule_3_a_majority_is_not_enough() {
    let mut cluster = Cluster::new(5);
    let write = cluster.submit(1, set("k", "v"));
    let last = cluster.take(0, 5, "inv");
    cluster.deliver_all();
    cluster.assert_open(write);
    // 5 still reads the old value, so nobody may have been told of the new one.
    assert_eq!(cluster.run(5, get("k")), ABSENT);
    cluster.assert_open(write);
    cluster.inject(&last[0]);
    cluster.deliver_all();
    cluster.assert_done(write, Reply::Ok);
}

#[test]
fn rule_4_a_replay_is_the_same_update() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, set("k", "-"));
    cluster.submit(3, append("k", "x"));
    let original = cluster.pool[0].clone();
    cluster.deliver(3, 1, "inv");
    cluster.expel(&[3]);
    cluster.fresh_packets.clear();
    cluster.run_for(MLT * 4);
    let replays: Vec<Packet> =
        cluster.fresh_packets.iter().filter(|packet| packet.is(1, 2, "inv")).cloned().collect();
    assert!(!replays.is_empty());
    for replay in replays {
        match (original.message(), replay.message()) {
            (Message::Inv(original), Message::Inv(replay)) => {
                assert_eq!(
                    (replay.timestamp, replay.rmw, replay.content),
                    (original.timestamp, original.rmw, original.content)
                );
            }
            _ => unreachable!("both are INVs"),
        }
    }
    cluster.assert_everywhere("k", Some("-x"));
}

#[test]
fn rule_5_an_rmw_starts_from_valid() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, set("k", "1"));
    cluster.submit(1, set("k", "10"));
    cluster.deliver(1, 2, "inv");
    let sum = cluster.submit(2, incr("k"));
    assert!(!cluster.pool.iter().any(|packet| packet.is(2, 0, "inv")));
    cluster.deliver_all();
    cluster.assert_done(sum, Reply::Int(11));
}

#[test]
fn rule_11_a_crashed_identity_never_returns() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, set("k", "v"));
    // 3 is taken for dead and hears of it; a later view lists the same incarnation again.
    let down = cluster.roles_with(3, Role::Down);
    cluster.install(&down);
    assert_eq!(cluster.run(1, set("k", "w")), Reply::Ok);
    let up = cluster.roles_with(3, Role::Active);
    cluster.install(&up);
    let read = cluster.submit(3, get("k"));
    assert_eq!(cluster.outcome(read), Some(&Outcome::Refused(Refusal::NotServing)));
}

#[test]
fn rule_11_an_earlier_life_does_not_act_for_the_later_one() {
    // The view that 3's old process hears of has 3 in it, as another incarnation.
    let mut cluster = Cluster::seeded(
        3,
        |node| seed_for(&[node as u8]),
        |config| {
            config.message_loss_timeout = MLT;
        },
    );
    cluster.run(1, set("k", "v"));
    let old = cluster.hosts.remove(&3).expect("a known node");
    cluster.start(3, 7);
    let roles = [(1, Role::Active), (2, Role::Active), (3, Role::Active)];
    let view = cluster.decide(&roles);
    cluster.hosts.insert(3, old);
    cluster.install_on(3, &view);
    cluster.fresh_packets.clear();
    let write = cluster.submit(3, set("k", "w"));
    assert_eq!(cluster.outcome(write), Some(&Outcome::Refused(Refusal::NotServing)));
    for _ in 0..10 {
        cluster.advance(MLT);
        cluster.tick_node(3);
    }
    assert_eq!(cluster.fresh_packets, []);
}

/// Nobody answers. A link that has fallen behind would never catch up with what is sent at every timeout.
#[test]
fn what_nobody_answers_is_sent_ever_more_rarely() {
    let mut cluster = Cluster::new(3);
    cluster.submit(1, set("k", "v"));
    let mut sent = Vec::new();
    for timeout in 0..40 {
        let invs = cluster.take(1, 2, "inv").len();
        sent.extend((invs > 0).then_some(timeout));
        cluster.pool.clear();
        cluster.advance(MLT);
        cluster.tick_node(1);
    }
    assert_eq!(sent, [0, 1, 2, 3, 5, 9, 17, 25, 33]);
}
