//! Coming back by difference: what an earlier life left is taken over where the donor holds it.

use quorate_machine::PLACES;
use quorate_meerkat::{Body, Comparison, Config, Kind, Reason, Vote};
use quorate_types::{Duration, NodeId, NodeSet, Role, Timestamp, WriterId, hash_key, limits};
use quorate_wire::Words;

use crate::packets::Packet;
use crate::support::{Cluster, MLT, body_bytes};

const STAYS: &str = "meerkat: a record of an earlier life stays";
const GOES: &str = "meerkat: a record of an earlier life goes";

/// Until all replicas know the end of every transaction, and have dropped its record.
const SETTLE: Duration = Duration::from_millis(1_500);
/// Until every deletion is forgotten.
const FORGET: Duration = Duration::from_millis(3_000);

fn key(number: u64) -> String {
    format!("key-{number}")
}

fn write(number: u64, byte: &str) -> String {
    format!("write={}:{}", key(number), byte.repeat(64))
}

/// 3 stands still once everything has settled, and the others go on without it.
fn leave_behind(cluster: &mut Cluster) {
    cluster.run_for(Duration::from_millis(300));
    cluster.expel(&[3]);
    cluster.run_for(Duration::from_millis(300));
}

/// Three nodes that hold some keys, of the same value each. 3 is then left behind.
fn left_behind(keys: u64, configure: fn(&mut Config)) -> Cluster {
    let mut cluster = Cluster::with(3, configure);
    for number in 0..keys {
        cluster.run(1, &write(number, "a"));
    }
    leave_behind(&mut cluster);
    cluster
}

/// What passes between 3 and the others until it has everything.
fn bytes_to_catch_up(cluster: &mut Cluster) -> usize {
    cluster.fresh_packets.clear();
    cluster.set_role(3, Role::Shadow);
    catch_up(cluster);
    let all = cluster.fresh_packets.iter();
    let passed = all.filter(|packet| packet.from == NodeId(3) || packet.to == NodeId(3));
    passed.map(|packet| packet.bytes.len()).sum()
}

#[track_caller]
fn catch_up(cluster: &mut Cluster) {
    for _ in 0..1_000 {
        cluster.run_for(MLT);
        if cluster.machine(3).is_caught_up() {
            return;
        }
    }
    panic!("3 does not catch up");
}

/// All replicas serve, and those of 1 and 3 hold the same.
#[track_caller]
fn assert_agreement(cluster: &mut Cluster) {
    cluster.set_role(3, Role::Active);
    cluster.run_for(Duration::from_millis(300));
    assert!(cluster.machine(3).is_normal());
    let [donor, back] = [1, 3].map(|node| {
        let entries = cluster.machine(node).table().entries();
        let mut entries = Vec::from_iter(entries.map(|(key, meta, pending, content)| {
            assert!(pending.is_empty());
            (key.to_vec(), meta.wts, content.map(|content| content.bytes.to_vec()))
        }));
        entries.retain(|(_, wts, _)| *wts != Timestamp::ZERO);
        entries.sort_unstable();
        entries
    });
    assert!(donor == back, "{} and {} records: {:?}", donor.len(), back.len(), {
        let odd = donor.iter().filter(|entry| !back.contains(entry));
        odd.chain(back.iter().filter(|entry| !donor.contains(entry))).take(4).collect::<Vec<_>>()
    });
}

fn kept(cluster: &mut Cluster) -> u64 {
    cluster.counter(3, "records_kept")
}

#[test]
fn of_what_did_not_change_nothing_is_copied() {
    let mut cluster = left_behind(1_000, |_| {});
    cluster.begin_life(3);
    let bytes = bytes_to_catch_up(&mut cluster);
    assert!(bytes < 1_000 * 3, "{bytes} bytes for 1000 keys");
    assert_eq!(kept(&mut cluster), 1_000);
    assert_eq!(cluster.machine(3).copied(), 0);
    assert_agreement(&mut cluster);
    assert_eq!(cluster.run(3, "read=key-7"), [Some("a".repeat(64))]);
}

/// The figure that is promised: a hundredth changed, a twentieth of the bytes.
#[test]
fn a_hundredth_that_changed_costs_less_than_a_twentieth_of_a_copy() {
    const KEYS: u64 = 4_000;
    let mut cluster = left_behind(KEYS, |_| {});
    for number in (0..KEYS).step_by(100) {
        cluster.run(2, &write(number, "b"));
    }
    cluster.run_for(SETTLE);
    cluster.begin_life(3);
    let difference = bytes_to_catch_up(&mut cluster);
    assert_eq!(cluster.machine(3).copied(), KEYS / 100);
    assert_agreement(&mut cluster);
    leave_behind(&mut cluster);
    cluster.start(3, 1);
    let copy = bytes_to_catch_up(&mut cluster);
    assert!(difference * 20 < copy, "{difference} bytes beside {copy}");
    assert_agreement(&mut cluster);
}

#[test]
fn what_was_deleted_and_forgotten_meanwhile_goes() {
    let mut cluster = left_behind(100, |_| {});
    for number in (0..100).step_by(3) {
        cluster.run(1, &format!("del={}", key(number)));
    }
    cluster.run_for(FORGET);
    assert!(!cluster.has_record(1, &key(0)) && cluster.has_record(3, &key(0)));
    cluster.come_back(3);
    catch_up(&mut cluster);
    assert!(!cluster.has_record(3, &key(0)), "a deleted key does not come back");
    assert_eq!([cluster.probed(STAYS), cluster.probed(GOES)], [66, 34]);
    assert_agreement(&mut cluster);
}

#[test]
fn deletions_that_both_have_are_forgotten_in_the_end() {
    let mut cluster = left_behind(10, |_| {});
    cluster.come_back(3);
    catch_up(&mut cluster);
    assert_agreement(&mut cluster);
    cluster.run(1, &format!("del={}", key(1)));
    cluster.expel(&[3]);
    cluster.come_back(3);
    catch_up(&mut cluster);
    assert!(cluster.has_record(3, &key(1)) && cluster.has_record(1, &key(1)));
    assert_agreement(&mut cluster);
    cluster.run_for(FORGET);
    assert!(!cluster.has_record(3, &key(1)) && !cluster.has_record(1, &key(1)));
}

/// 3 was asked for its vote, and never heard of the end.
#[test]
fn nothing_stays_registered_in_what_an_earlier_life_left() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, "write=k:v write=l:v");
    cluster.run_for(Duration::from_millis(300));
    cluster.submit(1, "append=k:lost append=new:lost");
    let of_3 = |packet: &Packet| packet.is(0, 3, "validate");
    cluster.deliver_some(of_3);
    assert!(!cluster.pending(3, "k").is_empty());
    cluster.pool.clear();
    cluster.crash(3);
    // 1 and 2 hear of each other's votes only in the next epoch, and end it.
    cluster.expel(&[1]);
    cluster.run_for(Duration::from_millis(300));
    cluster.begin_life(3);
    cluster.begin_life(1);
    let roles = [(1, Role::Shadow), (2, Role::Active), (3, Role::Shadow)];
    cluster.install(&roles);
    catch_up(&mut cluster);
    assert!(cluster.probed(STAYS) > 0);
    cluster.install(&[(1, Role::Active), (2, Role::Active), (3, Role::Active)]);
    cluster.run_for(Duration::from_millis(300));
    cluster.assert_everywhere("l", Some("v"));
    let read = cluster.stored(2, "k");
    cluster.assert_everywhere("k", read.as_deref());
    cluster.run(3, "append=k:2");
    cluster.run_for(Duration::from_millis(1_500));
    cluster.assert_quiet();
}

/// What is installed while a question is out, which counts on what is there.
#[test]
fn a_commit_that_overtakes_the_comparison_takes_nothing_from_it() {
    // So many that most buckets are equal.
    let mut cluster = left_behind(500, |_| {});
    let older = Timestamp::new(cluster.meta(1, &key(7)).wts.version - 1, WriterId(0x0205));
    cluster.run(1, &format!("write={}:newer", key(1)));
    cluster.run(1, &format!("del={}", key(2)));
    cluster.run_for(FORGET);
    assert!(!cluster.has_record(1, &key(2)));
    cluster.come_back(3);
    let asked = |packet: &Packet| ["compare", "stable"].contains(&packet.kind());
    cluster.deliver_some(|packet| !asked(packet));
    // Built on what 3 has not got; one that finds nothing where 3 had something; a key that has not
    // changed until now, and one that is only read; and one that is told late.
    cluster.submit(1, &format!("append={}:,still", key(1)));
    cluster.submit(2, &format!("read={} write=other:1", key(2)));
    cluster.submit(2, &format!("del={}", key(3)));
    cluster.submit(2, &format!("read={} write=another:1", key(4)));
    cluster.deliver_some(|packet| !asked(packet));
    let late = body_bytes(&[(&key(7), None, Some("late"))]);
    let body = Some(Body::check(&late).expect("just made"));
    cluster.tell(2, 3, Kind::Decided { id: older, commit: true, body });
    cluster.deliver_some(|packet| !asked(packet));
    assert_eq!(cluster.stored(3, &key(1)).as_deref(), Some("newer,still"));
    assert_eq!(cluster.stored(3, &key(3)), None);
    cluster.run_for(Duration::from_millis(300));
    catch_up(&mut cluster);
    assert_agreement(&mut cluster);
}

fn vote_of(cluster: &mut Cluster, node: u16, id: Timestamp, body: &[u8]) -> Vote {
    cluster.pool.clear();
    let body = Body::check(body).expect("just made");
    cluster.tell(2, node, Kind::Validate { id, stable: 0, participants: 1, body });
    match cluster.take(node, 2, "vote")[0].message().kind {
        Kind::Vote { vote, .. } => vote,
        other => panic!("{other:?}"),
    }
}

/// What is kept was perhaps read meanwhile, which the comparison does not say of each key.
#[test]
fn no_write_below_a_read_that_the_donor_has_let_pass() {
    let mut cluster = left_behind(20, |_| {});
    let writer = WriterId::new(cluster.view.member(NodeId(2)).expect("a member").number, 0);
    cluster.advance(Duration::from_millis(10));
    let below = Timestamp::new(cluster.now.unix.0, writer);
    cluster.advance(Duration::from_millis(10));
    cluster.run(1, &format!("read={} write=other:1", key(5)));
    let read = cluster.meta(1, &key(5)).rts;
    assert!(read > below && cluster.meta(3, &key(5)).rts < below);
    cluster.run_for(SETTLE);
    cluster.come_back(3);
    // 3 hears from nobody that all transactions below have ended.
    let wanted = |packet: &Packet| packet.kind() != "stable";
    cluster.run_some(Duration::from_millis(200), wanted);
    assert!(cluster.machine(3).is_caught_up());
    assert!(kept(&mut cluster) >= 20);
    cluster.set_role(3, Role::Active);
    cluster.run_some(Duration::from_millis(200), wanted);
    // What is begun now is let pass.
    let tag = cluster.submit(1, &format!("append={}:b", key(6)));
    cluster.deliver_some(wanted);
    cluster.assert_done(tag);
    let late = body_bytes(&[(&key(5), None, Some("late"))]);
    let refused = vote_of(&mut cluster, 3, below, &late).expect_err("it was read above");
    assert!(matches!(refused.reason, Reason::BelowFloor | Reason::ReadLater));
}

#[test]
fn whoever_loses_the_donor_goes_on_with_another() {
    let mut cluster = Cluster::new(4);
    for number in 0..400 {
        cluster.run(1, &write(number, "a"));
    }
    leave_behind(&mut cluster);
    cluster.run(1, &write(5, "b"));
    cluster.run(1, &format!("del={}", key(6)));
    cluster.run_for(FORGET);
    cluster.come_back(3);
    cluster.deliver_some(|packet| packet.kind() != "difference_read");
    let donor = cluster.take(3, 0, "difference_read")[0].to.0;
    cluster.expel(&[donor]);
    catch_up(&mut cluster);
    assert!(kept(&mut cluster) > 300);
    assert_eq!(cluster.stored(3, &key(5)), Some("b".repeat(64)));
    assert_eq!(cluster.stored(3, &key(6)), None);
}

/// Views that come while a replica compares, and a life that ends before it has: the base is what all
/// lives have left that have not compared.
#[test]
fn a_life_that_ends_before_it_has_compared_leaves_the_base_as_it_was() {
    let mut cluster = left_behind(300, |_| {});
    cluster.run(1, &format!("del={}", key(1)));
    cluster.run_for(FORGET);
    cluster.come_back(3);
    cluster.deliver_some(|packet| packet.kind() != "compare");
    cluster.run(1, &write(2, "b"));
    cluster.renew_view();
    cluster.deliver_some(|packet| packet.kind() != "difference_read");
    cluster.expel(&[3]);
    cluster.run(1, &write(3, "b"));
    cluster.run(1, &format!("del={}", key(4)));
    cluster.run_for(FORGET);
    cluster.come_back(3);
    catch_up(&mut cluster);
    assert!(!cluster.has_record(3, &key(1)) && !cluster.has_record(3, &key(4)));
    assert_agreement(&mut cluster);
}

/// Buckets are sized for the larger of the two tables, be it the donor's or the other.
#[test]
fn tables_of_very_different_sizes_are_compared_in_steps() {
    for (before, after) in [(10, 3_000), (3_000, 10)] {
        let mut cluster = left_behind(before, |_| {});
        for number in 0..before.max(after) {
            let deletes = format!("del={}", key(number));
            cluster.run(1, &if number < after { write(number, "b") } else { deletes });
        }
        // Some are forgotten each second.
        cluster.run_for(Duration::from_secs(20));
        cluster.come_back(3);
        cluster.fresh_packets.clear();
        catch_up(&mut cluster);
        for packet in &cluster.fresh_packets {
            if let Kind::DifferenceRead { held, .. } = packet.message().kind {
                assert!(held.len() < 4_000, "{} records at a time", held.len());
            }
        }
        assert_agreement(&mut cluster);
    }
}

/// However large the records are, each message is one that the nodes' links carry.
#[test]
fn buckets_that_the_tables_have_outgrown_are_compared_anew() {
    let mut cluster = left_behind(100, |_| {});
    cluster.run(1, &write(3, "b"));
    cluster.run_for(SETTLE);
    cluster.come_back(3);
    cluster.deliver_some(|packet| packet.kind() != "difference_read");
    assert_eq!(cluster.take(3, 0, "difference_read").len(), 1, "it is lost");
    for number in 100..2_000 {
        cluster.run(1, &write(number, "b"));
    }
    catch_up(&mut cluster);
    assert_agreement(&mut cluster);
}

#[test]
fn large_records_are_neither_sent_again_nor_lost() {
    let mut cluster = Cluster::new(3);
    let filler = "x".repeat(limits::CHUNK_BYTES / 2);
    for number in 0..50 {
        cluster.run(1, &format!("write={}:{filler}", key(number)));
    }
    leave_behind(&mut cluster);
    let other = "y".repeat(limits::CHUNK_BYTES / 2);
    for number in (0..50).step_by(5) {
        cluster.run(1, &format!("write={}:{other}", key(number)));
    }
    cluster.run(1, &format!("write=largest:{}", "z".repeat(limits::VALUE_BYTES_MAX)));
    cluster.run_for(SETTLE);
    cluster.begin_life(3);
    let bytes = bytes_to_catch_up(&mut cluster);
    let changed = 10 * limits::CHUNK_BYTES / 2 + limits::VALUE_BYTES_MAX;
    assert!(bytes < changed + limits::CHUNK_BYTES / 2, "{bytes} bytes for {changed}");
    assert_agreement(&mut cluster);
}

/// Clients can choose keys of one bucket, as places follow from a hash that everybody knows.
#[test]
fn a_bucket_with_more_than_a_message_holds_comes_in_parts() {
    let mut cluster = left_behind(100, |_| {});
    let filler = "k".repeat(limits::KEY_BYTES_MAX - 8);
    // A hundred records make sixteen buckets.
    let crowded = (0..).map(|number| format!("{filler}{number}"));
    let crowded = crowded.filter(|key| hash_key(key.as_bytes()) % PLACES < PLACES / 32);
    for key in crowded.take(90) {
        cluster.run(1, &format!("write={key}:v"));
    }
    cluster.run_for(SETTLE);
    cluster.come_back(3);
    cluster.fresh_packets.clear();
    catch_up(&mut cluster);
    let answers = cluster.fresh_packets.iter().filter(|packet| packet.is(0, 3, "difference"));
    assert!(answers.count() > 3, "it takes several");
    assert_agreement(&mut cluster);
}

/// Lost questions and answers are asked again, and late ones do no harm.
#[test]
fn a_comparison_survives_losses_and_late_answers() {
    let mut cluster = left_behind(3_000, |_| {});
    for number in (0..3_000).step_by(50) {
        cluster.run(1, &write(number, "b"));
    }
    cluster.run_for(SETTLE);
    cluster.come_back(3);
    let (mut late, mut round) = (Vec::new(), 0);
    let kinds = ["compare", "compared", "difference_read", "difference"];
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

/// No other node has both partitions that 3 has.
fn two_partitions(config: &mut Config) {
    let nodes = |numbers: [u16; 3]| Some(numbers.into_iter().map(NodeId).collect::<NodeSet>());
    config.partitions = vec![nodes([1, 2, 3]), nodes([3, 4, 5])];
}

/// Each donor's word counts for the partitions that it has.
#[test]
fn partitions_of_different_donors_are_compared_one_after_the_other() {
    let mut cluster = Cluster::with(5, two_partitions);
    for number in 0..200 {
        cluster.run(3, &write(number, "a"));
    }
    leave_behind(&mut cluster);
    for number in (0..200).step_by(7) {
        cluster.run(1, &format!("del={}", key(number)));
        cluster.run(1, &write(number + 1, "b"));
    }
    cluster.run_for(FORGET);
    cluster.come_back(3);
    catch_up(&mut cluster);
    assert!(kept(&mut cluster) > 140, "{}", kept(&mut cluster));
    for number in 0..200 {
        let donor = if cluster.holds(1, &key(number)) { 1 } else { 4 };
        let value = cluster.stored(donor, &key(number));
        assert_eq!(cluster.stored(3, &key(number)), value, "{}", key(number));
    }
}

#[test]
fn a_question_or_an_answer_that_no_correct_replica_sends_is_refused() {
    let mut cluster = left_behind(100, |_| {});
    cluster.come_back(3);
    cluster.deliver_some(|packet| packet.kind() != "compare");
    let asked = cluster.take(3, 0, "compare").remove(0);
    let Kind::Compare { comparison, .. } = asked.message().kind else { unreachable!() };
    let Comparison { request, shift, .. } = comparison;
    let words = |numbers: &[u64]| Words::pack(numbers.iter().copied());
    let (none, far, falling) = (words(&[]), words(&[1 << 50]), words(&[1, 0]));
    let many = words(&[0; 300]);
    let held = Words::NONE;
    let compares = [(64, 0, &far), (shift, u64::MAX, &far), (shift, 0, &none), (0, 0, &many)];
    for (shift, first, digests) in compares {
        let digests = Words::of(digests);
        let comparison = Comparison { shift, ..comparison };
        let lie = Kind::Compare { comparison, first, digests };
        assert!(cluster.lie(3, asked.to.0, lie).is_some(), "{lie:?}");
    }
    for buckets in [&far, &falling, &none].map(|words| Words::of(words)) {
        let lie = Kind::DifferenceRead { comparison, buckets, held };
        assert!(cluster.lie(3, asked.to.0, lie).is_some(), "{lie:?}");
    }
    for buckets in [&far, &falling].map(|words| Words::of(words)) {
        let lie = Kind::Compared { request, clock: 1, records: 100, buckets };
        assert!(cluster.lie(asked.to.0, 3, lie).is_some(), "{lie:?}");
    }
    let (records, buckets) = (100, Words::NONE);
    let lie = Kind::Compared { request, clock: u64::MAX, records, buckets };
    assert!(cluster.lie(asked.to.0, 3, lie).is_some(), "{lie:?}");
    cluster.inject(&asked);
    catch_up(&mut cluster);
    assert_agreement(&mut cluster);
}

/// 1 and 2 lose what they had, and the next view is the first of another cluster.
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
    cluster.run_for(SETTLE);
    assert!(cluster.machine(3).is_normal(), "no report of the other cluster is in the way");
    assert_eq!(cluster.machine(3).table().entries().count(), 0);
    assert_eq!(cluster.run(3, "read=key-7"), [None]);
}

/// Some versions of the other cluster happen to be those that node 3 has.
#[test]
fn a_shadow_compares_nothing_of_another_cluster() {
    let mut cluster = left_behind(100, |_| {});
    others_begin_anew(&mut cluster);
    cluster.install(&[(1, Role::Active), (2, Role::Active)]);
    cluster.run_for(SETTLE);
    cluster.run(1, &write(7, "b"));
    cluster.run_for(SETTLE);
    cluster.begin_life(3);
    bytes_to_catch_up(&mut cluster);
    assert_eq!(kept(&mut cluster), 0);
    assert_eq!(cluster.probed(GOES), 0, "nothing was left to compare");
    assert_agreement(&mut cluster);
}

/// A life that ends before its first view leaves things as they were.
#[test]
fn a_life_without_a_view_changes_nothing() {
    let mut cluster = left_behind(100, |_| {});
    cluster.begin_life(3);
    cluster.begin_life(3);
    bytes_to_catch_up(&mut cluster);
    assert_eq!(kept(&mut cluster), 100);
    assert_agreement(&mut cluster);
}

/// Its node serves other keyspaces, and does not wait until this one has changed epochs.
#[test]
fn a_new_life_without_replicas_is_active_before_its_epoch_is_released() {
    let mut cluster = Cluster::with(3, |config| {
        config.partitions = vec![Some([NodeId(1), NodeId(2)].into_iter().collect())];
    });
    cluster.run(3, &write(1, "a"));
    cluster.expel(&[3]);
    cluster.come_back(3);
    cluster.set_role(3, Role::Active);
    cluster.deliver_all();
    cluster.run(3, &write(1, "b"));
    assert_eq!(cluster.run(1, &format!("read={}", key(1))), [Some("b".repeat(64))]);
}
