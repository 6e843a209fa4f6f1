//! What is repeated in vain is repeated less and less, up to a bound: behind a link that is cut in one
//! direction what nobody can answer does not pile up, and after it is healed all goes on soon.
//!
//! With three nodes `y` belongs to 1, 2, 3 in this order.

use std::collections::BTreeMap;

use quorate_types::Duration;

use crate::support::{Cluster, MLT};

/// How long the link from node 1 to node 2 is cut.
const CUT: Duration = Duration::from_secs(60);
/// The longest wait.
const LONGEST: Duration = Duration::from_millis(320);

/// Cuts the link, and counts what is sent meanwhile, by ends and kind.
fn cut(cluster: &mut Cluster) -> BTreeMap<String, u64> {
    cluster.fresh_packets.clear();
    cluster.run_some(CUT, |packet| (packet.from.0, packet.to.0) != (1, 2));
    let mut counts = BTreeMap::new();
    for packet in std::mem::take(&mut cluster.fresh_packets) {
        let name = format!("{}->{} {}", packet.from, packet.to, packet.kind());
        *counts.entry(name).or_default() += 1;
    }
    counts
}

/// What one thing is sent again, at most: while the wait doubles, and then once in each longest wait.
fn repeats() -> u64 {
    (CUT.as_nanos() / LONGEST.as_nanos()) as u64 + 5
}

#[test]
fn transactions_are_sent_again_less_and_less() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, "write=y:1");
    let tags: Vec<u64> = (0..10).map(|_| cluster.submit(1, "append=y:2")).collect();
    let counts = cut(&mut cluster);
    tags.iter().for_each(|tag| cluster.assert_open(*tag));
    let sent = counts["1->2 r-inv"];
    assert!((10 * (repeats() - 10)..=10 * repeats()).contains(&sent), "{counts:?}");
    cluster.run_for(LONGEST + MLT);
    tags.iter().for_each(|tag| assert!(cluster.outcome(*tag).is_some(), "op {tag} is open"));
    cluster.assert_quiet(["y".into()]);
}

#[test]
fn commits_are_asked_about_less_and_less() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, "write=y:1");
    cluster.submit(1, "append=y:2");
    cluster.deliver_some(|packet| packet.is(1, 2, "r-inv") || !packet.is(1, 2, packet.kind()));
    let counts = cut(&mut cluster);
    let sent = counts["2->1 r-ack"];
    assert!((repeats() - 10..=repeats()).contains(&sent), "{counts:?}");
    assert!(counts.values().sum::<u64>() <= 2 * repeats(), "{counts:?}");
    cluster.run_for(LONGEST + MLT);
    cluster.assert_quiet(["y".into()]);
}

#[test]
fn many_commits_are_asked_about_at_once() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, "write=y:1");
    (0..10).for_each(|_| {
        cluster.submit(1, "append=y:2");
    });
    cluster.deliver_some(|packet| packet.is(1, 2, "r-inv") || !packet.is(1, 2, packet.kind()));
    let counts = cut(&mut cluster);
    assert!(counts["2->1 r-ack"] <= repeats(), "the first says it of all: {counts:?}");
    cluster.run_for(LONGEST + MLT);
    cluster.assert_quiet(["y".into()]);
}

#[test]
fn keys_are_asked_for_less_and_less() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, "write=y:1");
    // Node 2 drives the round for itself, and doesn't hear that the owner agrees.
    cluster.submit(2, "append=y:2");
    let counts = cut(&mut cluster);
    // Who asks, and each of three arbiters, make the others say it again.
    assert!(counts.values().sum::<u64>() <= 16 * repeats(), "{counts:?}");
    let tag = cluster.submit(2, "append=y:3");
    cluster.run_for(LONGEST + MLT);
    assert!(cluster.outcome(tag).is_some(), "op {tag} is open");
    cluster.assert_quiet(["y".into()]);
    assert_eq!(cluster.writers("y"), [2]);
}

#[test]
fn recovery_is_asked_about_less_and_less() {
    let mut cluster = Cluster::new(3);
    let tag = cluster.submit(1, "write=y:1");
    cluster.run_some(MLT * 3, |packet| (packet.from.0, packet.to.0) != (1, 2));
    cluster.renew_view();
    let counts = cut(&mut cluster);
    // Node 1 has not, since node 2 does not get its transaction.
    for asked in ["2->1 recovered", "3->1 recovered"] {
        assert!((repeats() - 10..=repeats()).contains(&counts[asked]), "{counts:?}");
    }
    cluster.run_for(LONGEST * 2);
    assert!(cluster.outcome(tag).is_some(), "op {tag} is open");
    cluster.assert_quiet(["y".into()]);
}

#[test]
fn a_new_epoch_begins_all_waits_anew() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, "write=y:1");
    let of_slot = cluster.submit(1, "append=y:2");
    cut(&mut cluster);
    cluster.renew_view();
    // What is sent at once in the new epoch is lost.
    cluster.pool.clear();
    cluster.run_for(MLT * 2);
    assert!(cluster.outcome(of_slot).is_some(), "op {of_slot} is open");

    cluster.submit(2, "append=y:3");
    cut(&mut cluster);
    cluster.renew_view();
    cluster.pool.clear();
    cluster.run_for(MLT * 2);
    assert_eq!(cluster.writers("y"), [2]);
    cluster.assert_quiet(["y".into()]);
}
