//! Large values: updates that travel as what they change.
//!
//! The judge of every test here is that a version names one content: whatever replica holds a version
//! of the key, at whatever moment, large or packed, and whether it came as a delta or whole, holds the
//! same hash.

use std::collections::BTreeMap;

use quorate_collections::packed::Builder;
use quorate_collections::{Delta, Step};
use quorate_harness::Logs;
use quorate_hermes::{Message, State};
use quorate_machine::{Collection, Outcome, Record, Rng, Table, ValueKind};
use quorate_types::{Duration, Role, Timestamp};

use crate::op::{Reply, change, del, get, make, set};
use crate::support::{Cluster, MLT, Packet, seed_for};

/// Three nodes where every collection is large.
fn cluster() -> Cluster {
    Cluster::large(|node| seed_for(&[node as u8, node as u8]), |_| 0)
}

/// A packed hash of these fields.
fn packed(fields: &[(u64, &str)]) -> Vec<u8> {
    let mut builder = Builder::new(1, 0);
    for (field, value) in fields {
        builder.item(field.to_string().as_bytes());
        builder.item(value.as_bytes());
    }
    builder.finish(fields.len())
}

/// A hash with this many fields.
fn whole(fields: u64) -> Vec<u8> {
    packed(&(0..fields).map(|field| (field, "old")).collect::<Vec<_>>())
}

fn put(field: u64, value: &str) -> crate::op::Op {
    let mut delta = Delta::new();
    delta.push(Step::Put { field: field.to_string().as_bytes(), value: value.as_bytes() });
    change("h", &delta.into_bytes())
}

/// The version of the key at a replica, and its hash, if it is one.
fn held(cluster: &mut Cluster, node: u16) -> (Timestamp, Option<Collection>) {
    let table = cluster.machine(node).table_mut();
    let Some(handle) = table.find(b"h") else { return (Timestamp::ZERO, None) };
    let record = table.lock(handle);
    let packed = record.content().filter(|content| content.kind == ValueKind::Hash);
    let large = record.large().cloned();
    let unpacked = |content: quorate_machine::Content<'_>| {
        Collection::unpack(ValueKind::Hash, content.bytes).expect("a hash")
    };
    (record.meta().timestamp, large.or_else(|| packed.map(unpacked)))
}

/// Asserts that all live replicas have the same Valid hash, and give it.
#[track_caller]
fn agreed(cluster: &mut Cluster) -> Collection {
    let live = cluster.view.members.iter().filter(|member| member.role != Role::Down);
    let live: Vec<u16> = live.map(|member| member.node.0).collect();
    let first = held(cluster, live[0]);
    for node in live {
        assert_eq!(cluster.state(node, "h"), State::Valid, "node {node}");
        assert_eq!(held(cluster, node), first, "node {node}");
    }
    first.1.expect("a hash")
}

fn fields(fields: &[(u64, &str)]) -> Collection {
    Collection::unpack(ValueKind::Hash, &packed(fields)).expect("a hash")
}

fn value(hash: &Collection, field: u64) -> Option<&[u8]> {
    hash.hash().expect("a hash").get(field.to_string().as_bytes())
}

/// Whether the message is an INV with a delta.
fn is_delta(packet: &Packet) -> bool {
    matches!(packet.message(), Message::Inv(inv) if inv.base.is_some())
}

#[test]
fn one_field_of_many_travels_alone() {
    let mut cluster = cluster();
    cluster.run(1, make("h", &whole(100_000)));
    cluster.fresh_packets.clear();
    assert_eq!(cluster.run(2, put(7, "new")), Reply::Int(1));
    assert!(cluster.fresh_packets.iter().all(|packet| packet.bytes.len() < 100));
    let hash = agreed(&mut cluster);
    assert_eq!(hash.len(), 100_000);
    assert_eq!(value(&hash, 7), Some(&b"new"[..]));
}

#[test]
fn of_two_changes_on_one_base_the_loser_is_undone_everywhere_and_runs_again() {
    for order in [[1, 2], [2, 1]] {
        let mut cluster = cluster();
        cluster.run(3, make("h", &whole(2)));
        let one = cluster.submit(1, put(0, "one"));
        let two = cluster.submit(2, put(1, "two"));
        for from in order {
            cluster.deliver(from, 3, "inv");
        }
        // Whatever came first, node 3 has the larger one alone.
        let (_, object) = held(&mut cluster, 3);
        assert_eq!(object, Some(fields(&[(0, "old"), (1, "two")])));
        cluster.run_for(MLT * 4);
        cluster.assert_done(one, Reply::Int(1));
        cluster.assert_done(two, Reply::Int(1));
        assert_eq!(agreed(&mut cluster), fields(&[(0, "one"), (1, "two")]));
        assert_eq!(cluster.probed("hermes: delta on a base that is not here"), 0);
    }
}

#[test]
fn a_duplicate_and_a_late_delta_change_nothing() {
    let mut cluster = cluster();
    cluster.run(1, make("h", &whole(1)));
    cluster.submit(1, put(0, "one"));
    let first = cluster.deliver(1, 2, "inv");
    cluster.inject(&first);
    cluster.deliver_all();
    cluster.run(3, put(0, "two"));
    cluster.inject(&first);
    cluster.run_for(MLT * 4);
    assert_eq!(agreed(&mut cluster), fields(&[(0, "two")]));
}

#[test]
fn a_change_proves_that_its_base_is_decided_where_the_val_is_late() {
    let mut cluster = cluster();
    cluster.run(1, make("h", &whole(1)));
    cluster.submit(1, put(1, "one"));
    cluster.deliver_some(|packet| packet.kind() != "val");
    let late = cluster.take(1, 3, "val");
    cluster.deliver_all();
    assert_eq!(cluster.state(3, "h"), State::Invalid);
    cluster.run(2, put(2, "two"));
    late.iter().for_each(|val| cluster.inject(val));
    assert_eq!(agreed(&mut cluster), fields(&[(0, "old"), (1, "one"), (2, "two")]));
}

#[test]
fn a_replay_carries_the_delta_to_who_has_the_base_and_ends_at_who_has_it() {
    let mut cluster = cluster();
    cluster.run(1, make("h", &whole(1)));
    cluster.submit(1, put(1, "one"));
    cluster.deliver(1, 2, "inv");
    cluster.fresh_packets.clear();
    cluster.expel(&[1]);
    cluster.run_for(MLT * 8);
    assert!(cluster.fresh_packets.iter().any(|packet| packet.is(2, 3, "inv") && is_delta(packet)));
    assert_eq!(agreed(&mut cluster), fields(&[(0, "old"), (1, "one")]));
}

#[test]
fn a_retransmission_is_the_delta_that_was_lost() {
    let mut cluster = cluster();
    cluster.run(1, make("h", &whole(1)));
    let tag = cluster.submit(1, put(1, "one"));
    let lost = cluster.take(1, 3, "inv");
    cluster.deliver_all();
    cluster.assert_open(tag);
    cluster.fresh_packets.clear();
    cluster.run_for(MLT * 4);
    let again = cluster.fresh_packets.iter().find(|packet| packet.is(1, 3, "inv"));
    assert_eq!(again.map(|packet| &packet.bytes), lost.first().map(|packet| &packet.bytes));
    cluster.assert_done(tag, Reply::Int(1));
    agreed(&mut cluster);
}

#[test]
fn a_change_that_outranks_a_delete_on_its_base_asks_for_all_of_the_value() {
    let mut cluster = cluster();
    cluster.run(3, make("h", &whole(1)));
    let lost = cluster.submit(1, del("h"));
    let tag = cluster.submit(2, put(1, "one"));
    cluster.deliver(1, 3, "inv");
    let before = held(&mut cluster, 3);
    assert_eq!(before.1, None);
    cluster.deliver(2, 3, "inv");
    assert_eq!(cluster.probed("hermes: delta on a base that is not here"), 1);
    assert_eq!(held(&mut cluster, 3), before, "it changes nothing");
    assert!(cluster.take(3, 2, "ack").is_empty(), "and acknowledges nothing");
    cluster.deliver(3, 2, "value_read");
    cluster.deliver(2, 3, "inv");
    assert_eq!(held(&mut cluster, 3).1, Some(fields(&[(0, "old"), (1, "one")])));
    cluster.deliver_all();
    cluster.assert_done(tag, Reply::Int(1));
    cluster.run_for(MLT * 4);
    cluster.assert_done(lost, Reply::Int(1));
}

/// Of two plain writes on one version the smaller may be done first, and be the base of a change. The
/// change outranks the larger write, under which the base is gone where that write came from.
#[test]
fn a_change_of_the_smaller_of_two_writes_asks_for_all_of_the_value_where_the_larger_is() {
    let mut cluster = cluster();
    cluster.run(3, make("h", &whole(3)));
    let larger = cluster.submit(2, make("h", &whole(2)));
    let held_back = cluster.take(2, 0, "inv");
    cluster.run(1, make("h", &whole(1)));
    let (base, above) = (held(&mut cluster, 1), held(&mut cluster, 2));
    assert_eq!(base.0.version, above.0.version);
    assert!(base.0 < above.0, "the larger node wins the tie");
    let tag = cluster.submit(1, put(1, "one"));
    cluster.deliver(1, 2, "inv");
    assert_eq!(cluster.probed("hermes: delta on a base that is not here"), 1);
    assert_eq!(held(&mut cluster, 2), above, "it changes nothing");
    assert!(cluster.take(2, 1, "ack").is_empty(), "and acknowledges nothing");
    cluster.pool.extend(held_back);
    cluster.run_for(MLT * 8);
    cluster.assert_done(tag, Reply::Int(1));
    cluster.assert_done(larger, Reply::Ok);
    assert_eq!(agreed(&mut cluster), fields(&[(0, "old"), (1, "one")]));
}

#[test]
fn a_shadow_that_has_not_copied_a_value_asks_for_all_of_it() {
    let mut cluster = cluster();
    cluster.run(1, make("h", &whole(3)));
    cluster.expel(&[3]);
    cluster.rejoin(3);
    cluster.take(0, 0, "chunk_read");
    let tag = cluster.submit(1, put(1, "one"));
    cluster.deliver_some(|packet| packet.kind() != "chunk_read");
    cluster.assert_done(tag, Reply::Int(1));
    assert_eq!(cluster.probed("hermes: delta on a base that is not here"), 1);
    assert_eq!(agreed(&mut cluster), fields(&[(0, "old"), (1, "one"), (2, "old")]));
}

/// The donor has vouched for the base when the delta comes, whose coordinator dies before it has sent all
/// of the value: the base is what is left.
#[test]
fn a_change_that_a_returning_replica_can_not_apply_leaves_what_it_had() {
    let mut cluster = cluster();
    cluster.run(1, make("h", &whole(3)));
    cluster.expel(&[3]);
    cluster.run_for(MLT * 3);
    cluster.come_back(3);
    let donor = cluster.deliver(3, 0, "compare").to.0;
    let coordinator = 3 - donor;
    let tag = cluster.submit(coordinator, put(1, "one"));
    assert!(is_delta(&cluster.deliver(coordinator, 3, "inv")));
    assert_eq!(cluster.probed("hermes: delta on a base that is not here"), 1);
    assert!(cluster.take(3, coordinator, "ack").is_empty(), "it has not applied it");
    cluster.deliver(donor, 3, "compared");
    cluster.expel(&[coordinator]);
    cluster.run_for(MLT * 8);
    cluster.assert_open(tag);
    assert!(cluster.machine(3).is_caught_up());
    cluster.set_role(3, Role::Active);
    cluster.deliver_all();
    assert_eq!(agreed(&mut cluster), fields(&[(0, "old"), (1, "old"), (2, "old")]));
}

#[test]
fn a_string_and_a_large_value_replace_each_other() {
    let mut cluster = cluster();
    cluster.run(1, set("h", "text"));
    assert_eq!(cluster.run(2, put(1, "one")), Reply::Int(0));
    cluster.run(2, make("h", &whole(1)));
    cluster.run(3, put(1, "one"));
    assert_eq!(agreed(&mut cluster), fields(&[(0, "old"), (1, "one")]));
    cluster.run(1, set("h", "text"));
    cluster.assert_everywhere("h", Some("text"));
}

/// Whether a hash has all fields of another one, and more.
fn adds_to(base: Option<&Collection>, content: Option<&Collection>) -> bool {
    let (Some(base), Some(content)) = (base, content) else { return false };
    let mut fields = base.hash().expect("a hash").fields_from(0);
    let hash = content.hash().expect("a hash");
    base.len() < content.len() && fields.all(|(field, _)| hash.get(field).is_some())
}

/// Loss, duplicates, any order, time that passes, processes that end and return; every change has a
/// field of its own. With logs, the power of a node goes instead of its process alone, or that of all.
fn random_run(seed: u64, writes: bool, logs: Logs) -> u64 {
    let mut rng = Rng::new(seed);
    // What is large at one node may be packed at another.
    let packed_bytes_max: fn(u16) -> usize = match seed % 3 {
        0 => |_| 0,
        1 => |node| [0, 40, usize::MAX][usize::from(node) - 1],
        _ => |node| [usize::MAX, 0, 60][usize::from(node) - 1],
    };
    let seed_of = |node| seed * 31 + u64::from(node);
    let mut cluster = Cluster::logging(3, logs, seed_of, |_| {}, packed_bytes_max);
    cluster.run(1, make("h", &whole(1)));
    let (start, _) = held(&mut cluster, 1);
    let mut contents: BTreeMap<Timestamp, Option<Collection>> = BTreeMap::new();
    let mut tags = Vec::new();
    let mut away: Option<u16> = None;
    // The first field is there from the beginning.
    for step in 1..400 {
        let up = |node: &u16| Some(*node) != away;
        let node =
            *[1, 2, 3].iter().filter(|node| up(node)).nth(rng.below(2) as usize).expect("two");
        match rng.below(40) {
            0..4 => tags.push((step, cluster.submit(node, put(step, "new")))),
            4 if writes => drop(cluster.submit(node, make("h", &whole(rng.below(3))))),
            5 => cluster.tick(MLT / 2),
            10..14 if logs != Logs::None => match rng.below(9) {
                0..3 => drop(cluster.flush_log(node)),
                3..8 => drop(cluster.save_some(node, 0, 20)),
                _ if away.is_none() => lose_power(&mut cluster, &mut rng),
                _ => {}
            },
            6 if rng.below(4) == 0 => match away {
                None => {
                    if logs != Logs::None {
                        cluster.cut_power(node, &mut rng);
                    }
                    cluster.expel(&[node]);
                    away = Some(node);
                }
                Some(node) => {
                    if logs != Logs::None && rng.chance(2, 3) {
                        cluster.restart(node, step);
                        cluster.set_role(node, Role::Shadow);
                    } else {
                        cluster.rejoin(node);
                    }
                    cluster.run_for(Duration::from_secs(1));
                    cluster.set_role(node, Role::Active);
                    away = None;
                }
            },
            _ if cluster.pool.is_empty() => {}
            draw => {
                let at = rng.below(cluster.pool.len() as u64) as usize;
                let packet = cluster.pool[at].clone();
                match draw {
                    7 => drop(cluster.pool.remove(at)),
                    8..10 => cluster.inject(&packet),
                    _ => {
                        cluster.pool.remove(at);
                        cluster.inject(&packet);
                    }
                }
            }
        }
        for node in 1..=3 {
            if cluster.hosts[&node].up {
                let (version, object) = held(&mut cluster, node);
                let first = contents.entry(version).or_insert_with(|| object.clone());
                assert_eq!(*first, object, "seed {seed}: two contents of {version:?}");
            }
        }
    }
    cluster.run_for(Duration::from_secs(5));
    // Who lost a VAL learns of it when somebody asks.
    for node in (1..=3).filter(|node| Some(*node) != away) {
        cluster.submit(node, get("h"));
    }
    cluster.run_for(Duration::from_secs(5));
    let object = agreed(&mut cluster);
    let present = |field: u64| value(&object, field) == Some(b"new");
    let mut changes = 0;
    for (field, tag) in &tags {
        match cluster.outcome(*tag) {
            _ if writes => {}
            Some(Outcome::Done(_)) => assert!(present(*field), "seed {seed}: {field} is lost"),
            Some(Outcome::Refused(_)) => assert!(!present(*field), "seed {seed}: {field} happened"),
            Some(Outcome::Unknown) | None => {}
        }
        changes += u64::from(present(*field));
    }
    if !writes {
        let (end, _) = held(&mut cluster, if away == Some(1) { 2 } else { 1 });
        let versions = end.version - start.version;
        assert!(versions <= changes, "seed {seed}: each change happened once");
        for (version, content) in contents.iter().filter(|(at, _)| at.version > start.version) {
            let mut bases = contents.iter().filter(|(at, _)| at.version + 1 == version.version);
            // A version that was lost with the power may stand beside one that nobody looked at.
            let is_known = bases.clone().next().is_some() && logs == Logs::None;
            let adds = bases.any(|(_, base)| adds_to(base.as_ref(), content.as_ref()));
            assert!(!is_known || adds, "seed {seed}: {version:?} changes nothing");
        }
    }
    cluster.probed("hermes: delta on a base that is not here")
}

/// All nodes lose power, and go on from their disks.
fn lose_power(cluster: &mut Cluster, rng: &mut Rng) {
    (1..=3).for_each(|node| cluster.cut_power(node, rng));
    (1..=3).for_each(|node| cluster.restart(node, rng.next_u64() >> 16));
    cluster.pool.clear();
    cluster.install(&[1, 2, 3].map(|node| (node, Role::Active)));
}

#[test]
fn changes_survive_the_loss_of_all_power() {
    let mut lacking = 0;
    for seed in 0..150 {
        random_run(seed, false, Logs::Sync);
        lacking += random_run(seed, true, Logs::Sync);
    }
    assert!(lacking > 0, "some delta met another version than its base");
}

#[test]
fn changes_alone_are_each_made_once_at_every_replica() {
    for seed in 0..150 {
        random_run(seed, false, Logs::None);
    }
}

#[test]
fn changes_among_plain_writes_leave_every_version_with_one_content() {
    let lacking: u64 = (0..150).map(|seed| random_run(seed, true, Logs::None)).sum();
    assert!(lacking > 0, "some delta met another version than its base");
}
