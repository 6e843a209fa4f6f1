//! Coming back by difference: what an earlier life left is taken over where the donor holds it.

use std::time::Duration;

use quorate_hermes::{Ack, Config, Message, State, Val};
use quorate_machine::{PLACES, Slot};
use quorate_types::{NodeId, Role, hash_key, limits};
use quorate_wire::Words;

use crate::op::{Reply, append, del, get, set, set_until, value, wipe};
use crate::support::{Cluster, MLT, Packet, WALL, encoded};

fn collect_often(config: &mut Config) {
    config.collect_every = Duration::from_millis(50);
}

fn key(number: u64) -> String {
    format!("key:{number}")
}

/// Three nodes that hold some keys; 3 then stands still, and the others go on without it.
fn left_behind(keys: u64, configure: fn(&mut Config)) -> Cluster {
    let mut cluster = Cluster::with(3, configure);
    for number in 0..keys {
        cluster.run(1, set(&key(number), &"a".repeat(64)));
    }
    cluster.expel(&[3]);
    cluster.run_for(MLT * 3);
    cluster
}

/// What passes between 3 and the others until it has everything.
fn bytes_to_catch_up(cluster: &mut Cluster) -> usize {
    cluster.fresh_packets.clear();
    cluster.set_role(3, Role::Shadow);
    for _ in 0..1_000 {
        if cluster.machine(3).is_caught_up() {
            break;
        }
        cluster.run_for(MLT);
    }
    assert!(cluster.machine(3).is_caught_up());
    let all = cluster.fresh_packets.iter();
    let passed = all.filter(|packet| packet.from == NodeId(3) || packet.to == NodeId(3));
    passed.map(|packet| packet.bytes.len()).sum()
}

/// All replicas serve, and hold the same.
fn assert_agreement(cluster: &mut Cluster) {
    cluster.set_role(3, Role::Active);
    cluster.run_for(MLT * 6);
    let [donor, back] = [1, 3].map(|node| {
        let entries = cluster.machine(node).table().entries();
        let mut entries = Vec::from_iter(entries.map(|(key, meta, (), content)| {
            let content = content.map(|content| (content.bytes.to_vec(), content.expire_at));
            (key.to_vec(), meta.timestamp, meta.state, content)
        }));
        entries.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        entries
    });
    assert!(donor.iter().all(|(_, _, state, _)| *state == State::Valid));
    assert_eq!(donor, back);
}

#[test]
fn of_what_did_not_change_nothing_is_copied() {
    let mut cluster = left_behind(1_000, |_| {});
    cluster.begin_life(3);
    let bytes = bytes_to_catch_up(&mut cluster);
    assert!(bytes < 1_000 * 3, "{bytes} bytes for 1000 keys");
    assert_eq!(cluster.machine(3).kept(), 1_000);
    assert_eq!(cluster.machine(3).copied(), 0);
    assert_agreement(&mut cluster);
    assert_eq!(cluster.run(3, get(&key(7))), value(&"a".repeat(64)));
}

/// The figure that is promised: a hundredth changed, a twentieth of the bytes.
#[test]
fn a_hundredth_that_changed_costs_less_than_a_twentieth_of_a_copy() {
    const KEYS: u64 = 4_000;
    let mut cluster = left_behind(KEYS, |_| {});
    for number in (0..KEYS).step_by(100) {
        cluster.run(2, set(&key(number), &"b".repeat(64)));
    }
    cluster.begin_life(3);
    let difference = bytes_to_catch_up(&mut cluster);
    assert_eq!(cluster.machine(3).copied(), KEYS / 100);
    assert_agreement(&mut cluster);
    cluster.expel(&[3]);
    cluster.run_for(MLT * 3);
    cluster.start(3, 1);
    let copy = bytes_to_catch_up(&mut cluster);
    assert!(difference * 20 < copy, "{difference} bytes beside {copy}");
    assert_agreement(&mut cluster);
}

#[test]
fn what_was_deleted_and_forgotten_meanwhile_goes() {
    let mut cluster = left_behind(100, collect_often);
    for number in (0..100).step_by(3) {
        assert_eq!(cluster.run(1, del(&key(number))), Reply::Int(1));
    }
    cluster.run_for(Duration::from_millis(300));
    assert!(!cluster.has_record(1, &key(0)) && cluster.has_record(3, &key(0)));
    cluster.come_back(3);
    cluster.run_for(MLT * 6);
    assert!(cluster.machine(3).is_caught_up());
    assert!(!cluster.has_record(3, &key(0)), "a deleted key does not come back");
    assert_agreement(&mut cluster);
}

#[test]
fn tombstones_that_both_have_are_collected_in_the_end() {
    let mut cluster = left_behind(10, |config| config.collect_every = Duration::from_secs(1));
    cluster.expel(&[2]);
    cluster.run_for(MLT * 3);
    cluster.come_back(2);
    cluster.come_back(3);
    cluster.run_for(MLT * 6);
    let roles = [(1, Role::Active), (2, Role::Active), (3, Role::Active)];
    cluster.install(&roles);
    cluster.run(1, del(&key(1)));
    cluster.expel(&[3]);
    cluster.come_back(3);
    cluster.run_for(MLT * 6);
    assert!(cluster.has_record(3, &key(1)), "1 has the tombstone still");
    assert_agreement(&mut cluster);
    cluster.run_for(Duration::from_secs(5));
    assert!(!cluster.has_record(3, &key(1)) && !cluster.has_record(1, &key(1)));
}

#[test]
fn what_was_never_agreed_on_goes() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, set("old", "v"));
    cluster.submit(3, set("old", "lost"));
    cluster.submit(3, set("new", "lost"));
    cluster.pool.clear();
    cluster.expel(&[3]);
    cluster.run_for(MLT * 3);
    cluster.come_back(3);
    cluster.run_for(MLT * 6);
    assert!(cluster.machine(3).is_caught_up());
    assert!(!cluster.has_record(3, "new"));
    assert_eq!(cluster.stored(3, "old").as_deref(), Some("v"));
    assert_agreement(&mut cluster);
}

#[test]
fn a_version_that_the_donor_does_not_know_as_valid_is_no_more_readable_here() {
    let mut cluster = Cluster::new(3);
    cluster.submit(1, set("k", "v"));
    cluster.deliver(1, 2, "inv");
    cluster.deliver(1, 3, "inv");
    // Its coordinator dies with the acknowledgements.
    cluster.pool.clear();
    cluster.crash(3);
    cluster.expel(&[1]);
    cluster.pool.clear();
    cluster.begin_life(3);
    let roles = [(1, Role::Down), (2, Role::Active), (3, Role::Shadow)];
    cluster.install(&roles);
    cluster.deliver(3, 2, "compare");
    cluster.deliver(2, 3, "compared");
    cluster.deliver(3, 2, "difference_read");
    cluster.deliver(2, 3, "chunk");
    assert_eq!(cluster.stored(3, "k").as_deref(), Some("v"));
    assert_eq!(cluster.state(3, "k"), State::Invalid);
    cluster.run_for(MLT * 6);
    assert_eq!(cluster.state(3, "k"), State::Valid);
}

/// To messages, what an earlier life left is not there: it is neither counted nor given out.
#[test]
fn an_update_that_overtakes_the_comparison_replaces_what_was_left() {
    let mut cluster = left_behind(20, |_| {});
    cluster.run(1, set(&key(1), "newer"));
    cluster.come_back(3);
    cluster.deliver(3, 0, "compare");
    // Built on what 3 has not got; and a key that has not changed until now.
    cluster.submit(1, append(&key(1), " still"));
    cluster.submit(2, wipe(&key(2)));
    cluster.deliver_some(|packet| packet.kind() != "compared");
    assert_eq!(cluster.stored(3, &key(1)).as_deref(), Some("newer still"));
    cluster.run_for(MLT * 6);
    assert!(cluster.machine(3).is_caught_up());
    assert_eq!(cluster.stored(3, &key(2)), None);
    assert_agreement(&mut cluster);
}

/// An acknowledgement to everybody, or a VAL, of a version that was left: the donor has vouched for it
/// by then.
#[test]
fn what_is_no_update_takes_nothing_out_of_the_comparison() {
    let mut cluster = left_behind(20, |config| config.ack_broadcast = true);
    cluster.come_back(3);
    cluster.deliver(3, 0, "compare");
    let answers = cluster.take(0, 3, "compared");
    for (number, cookie) in [(3, Slot::NONE), (4, Slot::from_u64(0))] {
        let (key, timestamp) = (key(number), cluster.meta(1, &key(number)).timestamp);
        let key = key.as_bytes();
        let ack = Message::Ack(Ack { cookie, key, timestamp });
        let val = Message::Val(Val { key, timestamp });
        for message in [ack, val] {
            let bytes = encoded(&message);
            cluster.inject(&Packet { from: NodeId(2), bytes, ..answers[0].clone() });
        }
    }
    answers.iter().for_each(|packet| cluster.inject(packet));
    cluster.run_for(MLT * 6);
    assert!(cluster.machine(3).is_caught_up());
    assert_eq!((cluster.machine(3).kept(), cluster.machine(3).copied()), (20, 0));
    assert_agreement(&mut cluster);
}

#[test]
fn whoever_loses_the_donor_goes_on_with_another() {
    let mut cluster = Cluster::new(4);
    for number in 0..400 {
        cluster.run(1, set(&key(number), "v"));
    }
    cluster.expel(&[3]);
    cluster.run(1, set(&key(5), "w"));
    cluster.run(1, del(&key(6)));
    cluster.come_back(3);
    let donor = cluster.take(3, 0, "compare")[0].to.0;
    cluster.expel(&[donor]);
    cluster.run_for(MLT * 8);
    assert!(cluster.machine(3).is_caught_up());
    assert!(cluster.machine(3).kept() > 300);
    assert_eq!(cluster.stored(3, &key(5)).as_deref(), Some("w"));
    assert_eq!(cluster.stored(3, &key(6)), None);
}

/// The comparison goes on behind the last record of an earlier life, and the donor is lost there: from
/// the next one this replica copies everything, as one that never had anything.
#[test]
fn whoever_loses_the_donor_and_has_nothing_left_copies_all() {
    let first = (0..).map(key).find(|key| hash_key(key.as_bytes()) % PLACES < PLACES / 8);
    let first = first.expect("one of eight keys");
    let mut cluster = Cluster::with(3, collect_often);
    cluster.run(1, set(&first, "old"));
    cluster.expel(&[3]);
    cluster.run(1, del(&first));
    cluster.run_for(Duration::from_millis(300));
    assert!(!cluster.has_record(1, &first));
    cluster.come_back(3);
    let asked = cluster.take(3, 0, "compare").remove(0);
    let Message::Compare { request, .. } = asked.message() else { unreachable!() };
    let donor = asked.to.0;
    // A donor of so many records has more buckets than go into one question.
    let many = Message::Compared { request, records: 6_000, buckets: Words::NONE };
    assert_eq!(cluster.lie(donor, 3, &many), None);
    cluster.deliver(3, donor, "compare");
    cluster.deliver(donor, 3, "compared");
    cluster.deliver(3, donor, "difference_read");
    cluster.deliver(donor, 3, "chunk");
    assert!(!cluster.has_record(3, &first));
    assert!(!cluster.machine(3).is_caught_up(), "other ranges are still to be compared");
    cluster.expel(&[donor]);
    cluster.run_for(MLT * 6);
    assert!(cluster.machine(3).is_caught_up());
    cluster.set_role(3, Role::Active);
    assert_eq!(cluster.run(3, set(&first, "new")), Reply::Ok);
    cluster.assert_everywhere(&first, Some("new"));
}

/// Two lives in a row without the time to compare: the base is what both have left.
#[test]
fn a_life_that_ends_before_it_has_compared_leaves_the_base_as_it_was() {
    let mut cluster = left_behind(300, collect_often);
    cluster.run(1, del(&key(1)));
    cluster.run_for(Duration::from_millis(300));
    cluster.come_back(3);
    cluster.deliver(3, 0, "compare");
    cluster.run(1, set(&key(2), "b"));
    cluster.expel(&[3]);
    cluster.run(1, set(&key(3), "b"));
    cluster.come_back(3);
    cluster.run_for(MLT * 6);
    assert!(cluster.machine(3).is_caught_up());
    assert_agreement(&mut cluster);
}

/// Buckets are sized for the larger of the two tables, be it the donor's or the other.
#[test]
fn tables_of_very_different_sizes_are_compared_in_steps() {
    for (before, after) in [(10, 3_000), (3_000, 10)] {
        let mut cluster = left_behind(before, collect_often);
        for number in 0..before.max(after) {
            let op = if number < after { set(&key(number), "b") } else { del(&key(number)) };
            cluster.run(1, op);
        }
        cluster.run_for(Duration::from_millis(300));
        cluster.come_back(3);
        cluster.fresh_packets.clear();
        cluster.run_for(MLT * 20);
        assert!(cluster.machine(3).is_caught_up());
        for packet in &cluster.fresh_packets {
            if let Message::DifferenceRead { held, .. } = packet.message() {
                assert!(held.len() < 4_000, "{} records at a time", held.len());
            }
        }
        assert_agreement(&mut cluster);
    }
}

#[test]
fn buckets_that_the_tables_have_outgrown_are_compared_anew() {
    let mut cluster = left_behind(100, |_| {});
    cluster.run(1, set(&key(3), "b"));
    cluster.come_back(3);
    cluster.deliver_some(|packet| packet.kind() != "difference_read");
    assert_eq!(cluster.take(3, 0, "difference_read").len(), 1, "it is lost");
    for number in 100..2_000 {
        cluster.run(1, set(&key(number), "b"));
    }
    cluster.run_for(MLT * 100);
    assert!(cluster.machine(3).is_caught_up());
    assert_agreement(&mut cluster);
}

#[test]
fn large_values_are_neither_sent_again_nor_lost() {
    let mut cluster = Cluster::new(3);
    let large = "x".repeat(limits::CHUNK_BYTES / 2);
    for number in 0..50 {
        cluster.run(1, set(&key(number), &large));
    }
    cluster.expel(&[3]);
    cluster.run_for(MLT * 3);
    let other = "y".repeat(limits::CHUNK_BYTES / 2);
    (0..50).step_by(5).for_each(|number| {
        cluster.run(1, set(&key(number), &other));
    });
    cluster.begin_life(3);
    let bytes = bytes_to_catch_up(&mut cluster);
    assert!(bytes < 11 * limits::CHUNK_BYTES / 2, "{bytes} bytes");
    assert_agreement(&mut cluster);
}

#[test]
fn a_value_that_expires_expires_after_a_return_too() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, set_until("k", "v", WALL + 2_000));
    cluster.expel(&[3]);
    cluster.run_for(MLT * 3);
    cluster.come_back(3);
    cluster.run_for(MLT * 6);
    assert_eq!(cluster.machine(3).kept(), 1);
    let roles = [(1, Role::Down), (2, Role::Down), (3, Role::Active)];
    cluster.install(&roles);
    cluster.run_for(Duration::from_secs(60));
    assert_eq!(cluster.stored(3, "k"), None, "nobody asked for it");
}

/// Clients can choose keys of one bucket, as places follow from a hash that everybody knows.
#[test]
fn a_bucket_with_more_than_a_message_holds_comes_in_parts() {
    let mut cluster = left_behind(100, |_| {});
    let filler = "k".repeat(limits::KEY_BYTES_MAX - 8);
    // A hundred records make sixteen buckets.
    let crowded = (0..).map(|number| format!("{filler}{number}"));
    let crowded = crowded.filter(|key| hash_key(key.as_bytes()) % PLACES < PLACES / 32);
    let crowded: Vec<String> = crowded.take(90).collect();
    for key in &crowded {
        cluster.run(1, set(key, "v"));
    }
    cluster.come_back(3);
    cluster.fresh_packets.clear();
    cluster.run_for(MLT * 6);
    let chunks = cluster.fresh_packets.iter().filter(|packet| packet.is(0, 3, "chunk"));
    assert!(chunks.count() > 3, "it takes several");
    assert_agreement(&mut cluster);
}

/// Lost questions and answers are asked again, and late ones do no harm.
#[test]
fn a_comparison_survives_losses_and_late_answers() {
    let mut cluster = left_behind(3_000, |_| {});
    for number in (0..3_000).step_by(50) {
        cluster.run(1, set(&key(number), "b"));
    }
    cluster.come_back(3);
    let (mut late, mut round) = (Vec::new(), 0);
    let kinds = ["compare", "compared", "difference_read", "chunk"];
    while !cluster.machine(3).is_caught_up() {
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
    assert_agreement(&mut cluster);
}

/// The time that a donor has for an answer doubles each time when none comes, and halves with each that comes early
/// to what was asked once.
#[test]
fn an_early_answer_to_a_comparison_shortens_the_wait_for_the_next() {
    let mut cluster = left_behind(6_000, |_| {});
    cluster.come_back(3);
    // How many questions go unanswered for so many timeouts.
    let asked = |cluster: &mut Cluster, timeouts: u32| {
        for _ in 0..timeouts {
            cluster.advance(MLT);
            cluster.tick_node(3);
        }
        cluster.take(3, 0, "compare").len()
    };
    cluster.deliver_some(|packet| !packet.is(3, 0, "compare"));
    // At once, and after 2, 6 and 14 timeouts.
    assert_eq!(asked(&mut cluster, 14), 4);
    // After 30.
    assert_eq!(asked(&mut cluster, 15), 0);
    cluster.advance(MLT);
    cluster.tick_node(3);
    for _ in 0..2 {
        cluster.deliver(3, 0, "compare");
        cluster.deliver(0, 3, "compared");
    }
    // At once, and after 16 timeouts instead of 32: the second answer is early.
    assert_eq!(asked(&mut cluster, 15), 1);
    assert_eq!(asked(&mut cluster, 1), 1);
}

#[test]
fn a_question_or_an_answer_that_no_correct_replica_sends_is_refused() {
    let mut cluster = left_behind(100, |_| {});
    cluster.come_back(3);
    let asked = cluster.take(3, 0, "compare").remove(0);
    let Message::Compare { request, shift, .. } = asked.message() else { unreachable!() };
    let words = |numbers: &[u64]| Words::pack(numbers.iter().copied());
    let (none, far, falling) = (words(&[]), words(&[1 << 50]), words(&[1, 0]));
    let many = words(&[0; 300]);
    let lies = [
        Message::Compare { request, shift: 64, first: 0, digests: Words::of(&far) },
        Message::Compare { request, shift, first: u64::MAX, digests: Words::of(&far) },
        Message::Compare { request, shift, first: 0, digests: Words::of(&none) },
        Message::Compare { request, shift: 0, first: 0, digests: Words::of(&many) },
        Message::DifferenceRead { request, shift, buckets: Words::of(&far), held: Words::NONE },
        Message::DifferenceRead { request, shift, buckets: Words::of(&falling), held: Words::NONE },
        Message::DifferenceRead { request, shift, buckets: Words::NONE, held: Words::NONE },
    ];
    let falsely_compared = [&far, &falling].map(|buckets| Message::Compared {
        request,
        records: 100,
        buckets: Words::of(buckets),
    });
    let to_donor = lies.iter().map(|lie| (3, asked.to.0, lie));
    let to_shadow = falsely_compared.iter().map(|lie| (asked.to.0, 3, lie));
    cluster.fresh_packets.clear();
    for (from, to, lie) in to_donor.chain(to_shadow) {
        assert!(cluster.lie(from, to, lie).is_some(), "{lie:?}");
        assert_eq!(cluster.fresh_packets, [], "{lie:?}");
    }
    cluster.inject(&asked);
    cluster.run_for(MLT * 6);
    assert_agreement(&mut cluster);
}

/// 1 and 2 lose what they had and found a cluster without 3, which still has its records.
fn others_begin_anew(cluster: &mut Cluster) {
    for node in [1, 2] {
        cluster.crash(node);
        cluster.start(node, u64::from(node));
    }
    cluster.found_anew();
}

#[test]
fn a_founder_serves_nothing_of_another_cluster() {
    let mut cluster = left_behind(100, |_| {});
    others_begin_anew(&mut cluster);
    cluster.begin_life(3);
    cluster.install(&[(1, Role::Active), (2, Role::Active), (3, Role::Active)]);
    assert_eq!(cluster.run(3, get(&key(7))), Reply::Value(None));
    assert!(!cluster.has_record(3, &key(8)));
    assert_eq!(cluster.run(3, append(&key(9), "b")), Reply::Int(1));
    cluster.assert_everywhere(&key(9), Some("b"));
}

/// In the other cluster the same member writes the same keys at the same versions and under the
/// same random names: only the values tell the two apart.
#[test]
fn a_shadow_compares_nothing_of_another_cluster() {
    let mut cluster = Cluster::seeded(3, |_| 1, |_| {});
    let fill = |cluster: &mut Cluster, byte: &str| {
        (0..100).for_each(|number| _ = cluster.run(1, set(&key(number), &byte.repeat(64))));
    };
    fill(&mut cluster, "a");
    let before = cluster.meta(3, &key(7)).timestamp;
    cluster.expel(&[3]);
    for node in [1, 2] {
        cluster.crash(node);
        cluster.start(node, 1);
    }
    cluster.found_anew();
    cluster.install(&[(1, Role::Active), (2, Role::Active)]);
    fill(&mut cluster, "b");
    assert_eq!(cluster.meta(1, &key(7)).timestamp, before, "the case is the one that is meant");
    cluster.begin_life(3);
    bytes_to_catch_up(&mut cluster);
    assert_eq!(cluster.machine(3).kept(), 0);
    assert_agreement(&mut cluster);
    assert_eq!(cluster.run(3, get(&key(7))), value(&"b".repeat(64)));
}

/// A life that ends before its first view leaves things as they were.
#[test]
fn a_life_without_a_view_changes_nothing() {
    let mut cluster = left_behind(100, |_| {});
    cluster.begin_life(3);
    cluster.begin_life(3);
    bytes_to_catch_up(&mut cluster);
    assert_eq!(cluster.machine(3).kept(), 100);
    assert_agreement(&mut cluster);
}
