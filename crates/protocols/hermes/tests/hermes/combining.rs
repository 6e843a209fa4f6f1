//! Ops that wait for one key share an update.

use quorate_machine::Outcome;
use quorate_types::Duration;

use crate::op::{ABSENT, Reply, append, get, incr, make, set, swap, unless_changed, value};
use crate::support::{Cluster, MLT};

const COMBINED: &str = "hermes: ops combined";

/// A counter at 1, whose next update is under way from node 1.
fn busy() -> (Cluster, u64) {
    let mut cluster = Cluster::new(3);
    cluster.run(1, incr("n"));
    cluster.fresh_packets.clear();
    let first = cluster.submit(1, incr("n"));
    (cluster, first)
}

fn invs(cluster: &Cluster) -> usize {
    cluster.fresh_packets.iter().filter(|packet| packet.is(1, 2, "inv")).count()
}

#[test]
fn what_waits_for_a_key_takes_one_round_trip() {
    let (mut cluster, first) = busy();
    let waiting: Vec<u64> =
        (0..100).map(|origin| cluster.submit_as(1, origin, incr("n"))).collect();
    cluster.deliver_all();
    cluster.assert_done(first, Reply::Int(2));
    for (number, tag) in waiting.iter().enumerate() {
        cluster.assert_done(*tag, Reply::Int(number as i64 + 3));
    }
    assert_eq!(invs(&cluster), 2, "one for the first, and one for all others");
    assert_eq!(cluster.probed(COMBINED), 1);
    cluster.assert_everywhere("n", Some("102"));
}

#[test]
fn nobody_hears_of_an_update_before_all_replicas_hold_it() {
    let (mut cluster, _) = busy();
    let waiting: Vec<u64> = (0..3).map(|origin| cluster.submit_as(1, origin, incr("n"))).collect();
    let lost = |cluster: &mut Cluster| cluster.deliver_some(|packet| !packet.is(3, 1, "ack"));
    cluster.deliver(1, 2, "inv");
    cluster.deliver(1, 3, "inv");
    cluster.deliver(2, 1, "ack");
    cluster.deliver(3, 1, "ack");
    lost(&mut cluster);
    waiting.iter().for_each(|tag| cluster.assert_open(*tag));
    cluster.deliver_all();
    waiting.iter().zip(3..).for_each(|(tag, sum)| cluster.assert_done(*tag, Reply::Int(sum)));
}

#[test]
fn the_order_of_each_origin_is_kept() {
    let (mut cluster, _) = busy();
    let mut heard = Vec::new();
    for (origin, op) in [
        (7, append("n", "a")),
        (8, set("n", "x")),
        (7, get("n")),
        (8, append("n", "b")),
        (7, append("n", "c")),
        (9, swap("n", "y")),
    ] {
        heard.push(cluster.submit_as(1, origin, op));
    }
    cluster.deliver_all();
    // What is combined: the first append and the swap, the set, and the two appends behind it.
    cluster.assert_done(heard[5], value("2a"));
    cluster.assert_done(heard[2], value("y"));
    cluster.assert_everywhere("n", Some("xbc"));
}

#[test]
fn of_plain_writes_the_last_one_stays() {
    let (mut cluster, _) = busy();
    let tags: Vec<u64> = ["a", "b", "c"]
        .iter()
        .zip(10..)
        .map(|(value, origin)| cluster.submit_as(1, origin, set("n", value)))
        .collect();
    cluster.deliver_all();
    tags.iter().for_each(|tag| cluster.assert_done(*tag, Reply::Ok));
    assert_eq!(invs(&cluster), 2);
    cluster.assert_everywhere("n", Some("c"));
}

#[test]
fn a_superseded_update_runs_all_its_ops_again() {
    let (mut cluster, _) = busy();
    let waiting: Vec<u64> = (0..5).map(|origin| cluster.submit_as(1, origin, incr("n"))).collect();
    // The first one ends; what follows it meets a write of node 3, which outranks it.
    cluster.deliver(1, 2, "inv");
    cluster.deliver(1, 3, "inv");
    cluster.deliver(2, 1, "ack");
    cluster.deliver(3, 1, "ack");
    cluster.deliver(1, 3, "val");
    let write = cluster.submit(3, set("n", "40"));
    cluster.deliver(3, 1, "inv");
    assert_eq!(cluster.probed("hermes: read-modify-write superseded"), 1);
    cluster.run_for(MLT * 4);
    cluster.assert_done(write, Reply::Ok);
    for (tag, sum) in waiting.iter().zip(41..) {
        cluster.assert_done(*tag, Reply::Int(sum));
    }
    cluster.assert_everywhere("n", Some("45"));
}

#[test]
fn a_watch_sees_what_ran_before_it_in_the_same_update() {
    let (mut cluster, _) = busy();
    cluster.deliver_all();
    let version = cluster.meta(1, "n").timestamp;
    cluster.submit(1, get("n"));
    cluster.submit(1, append("n", ""));
    let before = cluster.meta(1, "n").timestamp;
    assert_ne!(before, version);
    let change = cluster.submit_as(1, 5, append("n", "1"));
    let watched = cluster.submit_as(1, 6, unless_changed("n", before, "w"));
    cluster.deliver_all();
    cluster.assert_done(change, Reply::Int(2));
    cluster.assert_done(watched, ABSENT);
    cluster.assert_everywhere("n", Some("21"));
}

#[test]
fn a_crowd_is_combined_in_parts_and_a_long_value_alone() {
    let (mut cluster, _) = busy();
    let waiting: Vec<u64> =
        (0..600).map(|origin| cluster.submit_as(1, origin, incr("n"))).collect();
    cluster.deliver_all();
    assert_eq!(invs(&cluster), 1 + 3);
    cluster.assert_done(waiting[599], Reply::Int(602));
    cluster.fresh_packets.clear();
    cluster.submit(1, make("n", &vec![b'x'; 70_000]));
    for origin in 0..4 {
        cluster.submit_as(1, origin, append("n", "y"));
    }
    cluster.deliver_all();
    assert_eq!(invs(&cluster), 1 + 4);
}

#[test]
fn all_ops_of_an_update_that_may_have_happened_are_unknown() {
    let (mut cluster, first) = busy();
    let waiting: Vec<u64> = (0..3).map(|origin| cluster.submit_as(1, origin, incr("n"))).collect();
    cluster.deliver(1, 2, "inv");
    cluster.deliver(1, 3, "inv");
    cluster.deliver(2, 1, "ack");
    cluster.deliver(3, 1, "ack");
    cluster.assert_done(first, Reply::Int(2));
    cluster.run_some(Duration::from_secs(20), |packet| packet.kind() != "ack");
    for tag in waiting {
        assert_eq!(cluster.outcome(tag), Some(&Outcome::Unknown));
    }
}
