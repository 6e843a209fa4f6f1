//! Nodes that come back with records of an earlier life, and copy what differs.

use quorate_harness::{Logs, Packet};
use quorate_machine::PLACES;
use quorate_types::placement::{SHARDS, shard_of};
use quorate_types::{Duration, Role, hash_key, limits};
use quorate_zeus::{DifferenceMessage, Message, OwnerState};

use crate::support::{Cluster, MLT, Replicas, is_copy};

/// 64 bytes.
const VALUE: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn key(number: usize) -> String {
    format!("k{number}")
}

/// Three nodes with so many keys, the third of which has been expelled since.
fn left_behind(replicas: Replicas, keys: usize) -> Cluster {
    let mut cluster = Cluster::of(replicas, 3, |_| 0, u64::from);
    for number in 0..keys {
        cluster.run(1, &format!("write={}:{VALUE}", key(number)));
    }
    cluster.expel(&[3]);
    cluster.run_for(MLT * 5);
    cluster
}

/// What is deleted is forgotten soon.
fn forgetful() -> Replicas {
    Replicas { collect_every: Some(Duration::from_millis(20)), ..Replicas::default() }
}

/// The bytes of copies that pass until node 3 has caught up, after which it is active.
fn bytes_to_catch_up(cluster: &mut Cluster) -> usize {
    cluster.fresh_packets.clear();
    cluster.set_role(3, Role::Shadow);
    let mut rounds = 0;
    while !cluster.is_caught_up(3) {
        cluster.run_for(MLT);
        cluster.flush_logs();
        rounds += 1;
        assert!(rounds < 2_000, "it ends");
    }
    let copies = cluster.fresh_packets.iter().filter(|packet| is_copy(packet));
    let bytes = copies.map(|packet| packet.bytes.len()).sum();
    cluster.set_role(3, Role::Active);
    cluster.run_for(MLT * 5);
    bytes
}

/// Every node has the same, which the ledger of versions knows.
fn assert_agreement(cluster: &mut Cluster, keys: usize) {
    cluster.run_for(Duration::from_secs(1));
    cluster.assert_quiet((0..keys).map(key));
}

#[test]
fn who_was_expelled_copies_what_has_changed() {
    let mut cluster = left_behind(forgetful(), 2_000);
    for number in (0..2_000).step_by(200) {
        cluster.run(1, &format!("write={}:b", key(number)));
        cluster.run(2, &format!("del={}", key(number + 1)));
    }
    cluster.run_for(Duration::from_secs(1));
    assert_eq!(cluster.record(1, &key(1)), None, "it is forgotten");
    cluster.begin_life(3);
    let by_difference = bytes_to_catch_up(&mut cluster);
    assert_eq!(cluster.probed("zeus: a record of an earlier life stays"), 1_980);
    for (number, value) in [(0, Some("b")), (1, None), (2, Some(VALUE))] {
        let value = value.map(str::to_owned);
        assert_eq!(cluster.run(3, &format!("read={}", key(number))), [value]);
    }
    assert_agreement(&mut cluster, 2_000);
    cluster.expel(&[3]);
    cluster.start(3, 7);
    let all = bytes_to_catch_up(&mut cluster);
    assert!(by_difference * 20 < all, "{by_difference} of {all} bytes");
    assert_agreement(&mut cluster, 2_000);
}

/// No log has entries of the directory: those come, and values do not.
#[test]
fn who_restarts_copies_no_value_that_its_log_has() {
    let replicas = forgetful();
    let mut cluster = Cluster::logging(replicas, Logs::Sync, (3, 0), |_| 0, u64::from);
    let value = "x".repeat(1_000);
    let run = |cluster: &mut Cluster, node: u16, text: &str| {
        let tag = cluster.submit(node, text);
        for _ in 0..20 {
            cluster.flush_logs();
            cluster.deliver_all();
        }
        cluster.read_by(tag);
    };
    for number in 0..200 {
        run(&mut cluster, 1, &format!("write={}:{value}", key(number)));
    }
    cluster.expel(&[3]);
    cluster.run_for(MLT * 5);
    run(&mut cluster, 2, &format!("write={}:b", key(7)));
    run(&mut cluster, 2, &format!("del={}", key(8)));
    cluster.run_for(Duration::from_secs(1));
    assert_eq!(cluster.record(1, &key(8)), None, "it is forgotten");
    cluster.restart(3, 7);
    let bytes = bytes_to_catch_up(&mut cluster);
    assert!(bytes < 20_000, "{bytes} bytes for 200 values of a thousand");
    assert_eq!(cluster.record(3, &key(8)), None);
    assert_eq!(cluster.record(3, &key(7)).and_then(|(_, value)| value), Some("b".to_owned()));
    assert_agreement(&mut cluster, 200);
    // What was kept is in the log of this life.
    cluster.expel(&[3]);
    cluster.run_for(MLT * 5);
    cluster.restart(3, 8);
    assert!(bytes_to_catch_up(&mut cluster) < 20_000);
    assert_agreement(&mut cluster, 200);
}

/// Whether a message is no question about the second range of buckets or a later one.
fn is_no_later_range(packet: &Packet<Replicas>) -> bool {
    let message = packet.message();
    !matches!(message, Message::Difference(DifferenceMessage::Compare { first: 1.., .. }))
}

/// Two lives in a row: what the first has left, and what the second has copied before it ended.
#[test]
fn a_life_that_ends_while_it_compares_leaves_both() {
    let mut cluster = left_behind(forgetful(), 3_000);
    cluster.begin_life(3);
    cluster.set_role(3, Role::Shadow);
    cluster.run_some(MLT * 5, is_no_later_range);
    let kept = cluster.probed("zeus: a record of an earlier life stays");
    assert!((100..2_900).contains(&kept), "{kept}");
    cluster.run(1, "write=k3:b");
    cluster.run(1, "del=k4");
    cluster.expel(&[3]);
    cluster.run(1, "write=k5:b");
    cluster.run_for(Duration::from_secs(1));
    cluster.begin_life(3);
    let bytes = bytes_to_catch_up(&mut cluster);
    assert!(bytes < 30_000, "{bytes} bytes");
    assert_agreement(&mut cluster, 3_000);
}

/// Cursors and names of questions mean nothing to another donor.
#[test]
fn who_loses_its_donor_begins_anew_with_what_is_left() {
    let mut cluster = left_behind(forgetful(), 3_000);
    cluster.run(1, "write=k3:b");
    cluster.begin_life(3);
    cluster.set_role(3, Role::Shadow);
    cluster.deliver_some(is_no_later_range);
    let donor = cluster.take(3, 0, "compare").pop().expect("it asks one of them").to.0;
    cluster.expel(&[donor]);
    cluster.run_for(MLT * 50);
    assert!(cluster.is_caught_up(3));
    cluster.set_role(3, Role::Active);
    assert_agreement(&mut cluster, 3_000);
}

/// What was under way with `y` ends, and node 3 has it.
fn assert_ends_well(cluster: &mut Cluster, tag: u64) {
    cluster.run_for(MLT * 20);
    assert!(cluster.is_caught_up(3) && cluster.outcome(tag).is_some());
    cluster.set_role(3, Role::Active);
    cluster.run_for(MLT * 5);
    cluster.assert_quiet(["y".to_owned()]);
}

/// A transaction is under way that the node has applied before it was expelled: it comes with its update, and
/// not from what was left.
#[test]
fn what_is_not_committed_is_not_left() {
    let mut cluster = Cluster::new(3);
    cluster.run(2, "write=y:a");
    let tag = cluster.submit(2, "write=y:b");
    cluster.deliver(2, 3, "r-inv");
    cluster.deliver(2, 1, "r-inv");
    cluster.pool.clear();
    cluster.expel(&[3]);
    let is_late = |kind: &str| kind == "r-ack" || kind == "r-inv" || kind == "r-val";
    cluster.run_some(MLT, |packet| !is_late(packet.kind()));
    cluster.begin_life(3);
    cluster.set_role(3, Role::Shadow);
    cluster.run_some(MLT, |packet| !is_late(packet.kind()));
    assert!(!cluster.is_caught_up(3), "it waits for what is under way");
    assert_eq!(cluster.record(3, "y").and_then(|(_, value)| value), None);
    assert_ends_well(&mut cluster, tag);
}

/// A round is under way that the node has heard of before it was expelled.
#[test]
fn what_is_not_settled_is_not_left() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, "write=y:a");
    let tag = cluster.submit(2, "write=y:b");
    cluster.deliver_some(|packet| packet.kind() == "req" || packet.kind() == "inv");
    assert_eq!(cluster.meta(3, "y").state, OwnerState::Invalid);
    let acks = cluster.take(0, 0, "ack");
    assert!(!acks.is_empty());
    cluster.expel(&[3]);
    let is_late = |kind: &str| ["req", "inv", "ack", "val", "nack"].contains(&kind);
    cluster.run_some(MLT, |packet| !is_late(packet.kind()));
    cluster.begin_life(3);
    cluster.set_role(3, Role::Shadow);
    cluster.run_some(MLT, |packet| !is_late(packet.kind()));
    assert_ne!(cluster.meta(3, "y").state, OwnerState::Valid, "it has heard of the round");
    assert_ends_well(&mut cluster, tag);
}

/// With two copies of each key a node compares with several donors.
#[test]
fn each_donor_is_compared_in_its_own_shards() {
    let replicas = Replicas { replicas: Some(2), ..forgetful() };
    let mut cluster = left_behind(replicas, 500);
    for number in (0..500).step_by(25) {
        cluster.run(1, &format!("write={}:b", key(number)));
        cluster.run(2, &format!("del={}", key(number + 1)));
    }
    cluster.run_for(Duration::from_secs(1));
    cluster.begin_life(3);
    bytes_to_catch_up(&mut cluster);
    let asked = |donor| cluster.fresh_packets.iter().any(|packet| packet.is(3, donor, "compare"));
    assert!(asked(1) && asked(2));
    let has_shards = (0..SHARDS).any(|shard| shard_of(key(0).as_bytes()) == shard);
    assert!(has_shards && cluster.probed("zeus: a record of an earlier life stays") > 200);
    assert_agreement(&mut cluster, 500);
}

#[test]
fn tables_of_very_different_sizes_are_compared_in_steps() {
    for (before, after) in [(10, 3_000), (3_000, 10)] {
        let mut cluster = left_behind(forgetful(), before);
        for number in 0..before.max(after) {
            let act = if number < after { "write" } else { "del" };
            let value = if number < after { ":b" } else { "" };
            cluster.run(1, &format!("{act}={}{value}", key(number)));
        }
        cluster.run_for(Duration::from_secs(1));
        cluster.begin_life(3);
        bytes_to_catch_up(&mut cluster);
        for packet in &cluster.fresh_packets {
            if let Message::Difference(DifferenceMessage::Read { held, .. }) = packet.message() {
                assert!(held.len() < 4_000, "{} records at a time", held.len());
            }
        }
        assert_agreement(&mut cluster, before.max(after));
    }
}

#[test]
fn buckets_that_the_tables_have_outgrown_are_compared_anew() {
    let mut cluster = left_behind(forgetful(), 100);
    cluster.run(1, "write=k3:b");
    cluster.begin_life(3);
    cluster.set_role(3, Role::Shadow);
    cluster.deliver_some(|packet| packet.kind() != "difference_read");
    assert_eq!(cluster.take(3, 0, "difference_read").len(), 1, "it is lost");
    for number in 100..2_000 {
        cluster.run(1, &format!("write={}:b", key(number)));
    }
    bytes_to_catch_up(&mut cluster);
    assert_agreement(&mut cluster, 2_000);
}

/// Clients can choose keys of one bucket, as places follow from a hash that everybody knows.
#[test]
fn a_bucket_with_more_than_a_message_holds_comes_in_parts() {
    let mut cluster = left_behind(forgetful(), 100);
    let filler = "x".repeat(limits::CHUNK_BYTES / 8);
    // A hundred records make sixteen buckets.
    let crowded = (0..).map(|number| format!("crowd{number}"));
    let crowded = crowded.filter(|key| hash_key(key.as_bytes()) % PLACES < PLACES / 32);
    let crowded: Vec<String> = crowded.take(60).collect();
    for key in &crowded {
        cluster.run(1, &format!("write={key}:{filler}"));
    }
    cluster.begin_life(3);
    bytes_to_catch_up(&mut cluster);
    let answers = cluster.fresh_packets.iter().filter(|packet| packet.is(0, 3, "difference"));
    assert!(answers.count() > 6, "it takes several");
    assert_agreement(&mut cluster, 100);
    cluster.assert_quiet(crowded);
}

/// Lost questions and answers are asked again, and late ones do no harm.
#[test]
fn a_comparison_survives_losses_and_late_answers() {
    let mut cluster = left_behind(forgetful(), 3_000);
    for number in (0..3_000).step_by(50) {
        cluster.run(1, &format!("write={}:b", key(number)));
    }
    cluster.begin_life(3);
    cluster.set_role(3, Role::Shadow);
    let (mut late, mut round) = (Vec::new(), 0);
    let kinds = ["compare", "compared", "difference_read", "difference"];
    while !cluster.is_caught_up(3) {
        let wanted = kinds[round % 4];
        cluster.deliver_some(|packet| !kinds.contains(&packet.kind()));
        let taken = cluster.take(0, 0, wanted);
        if round % 3 == 0 {
            late.extend(taken);
        } else {
            taken.iter().for_each(|packet| cluster.inject(packet));
        }
        if round % 7 == 0 {
            late.iter().for_each(|packet| cluster.inject(packet));
        }
        cluster.tick(MLT / 2);
        round += 1;
        assert!(round < 5_000, "it ends");
    }
    cluster.set_role(3, Role::Active);
    assert_agreement(&mut cluster, 3_000);
}

/// What was left of another cluster has versions that mean nothing in this one.
#[test]
fn records_of_another_cluster_are_not_compared() {
    let mut cluster = left_behind(forgetful(), 100);
    [1, 2].into_iter().for_each(|node| cluster.start(node, u64::from(node) + 10));
    cluster.found_anew();
    cluster.install(&[(1, Role::Active), (2, Role::Active)]);
    cluster.deliver_all();
    cluster.begin_life(3);
    bytes_to_catch_up(&mut cluster);
    assert_eq!(cluster.probed("zeus: a record of an earlier life stays"), 0);
    assert!(cluster.fresh_packets.iter().all(|packet| !packet.is(3, 0, "compare")));
    assert_eq!(cluster.run(3, "read=k3"), [None]);
}
