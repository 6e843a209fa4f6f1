//! Backup coordinators that meet what others have left behind (spec §4.4): what one of them has
//! decided, nobody after it decides differently.

use quorate_meerkat::Kind;
use quorate_types::{Duration, Timestamp};

use crate::support::{Cluster, MLT, Packet, serializable};

/// Lets time pass for this node only, until it takes a transaction over.
fn take_over(cluster: &mut Cluster, node: u16) {
    while !cluster.pool.iter().any(|packet| packet.is(node, 0, "prepare")) {
        cluster.advance(MLT);
        cluster.tick_node(node);
    }
}

/// What a node proposes, if it proposes anything.
fn proposals(cluster: &mut Cluster, node: u16) -> Vec<bool> {
    let outcome = |packet: &Packet| match packet.message().kind {
        Kind::Accept { ok, .. } => ok,
        other => panic!("{other:?}"),
    };
    cluster.pool.iter().filter(|packet| packet.is(node, 0, "accept")).map(outcome).collect()
}

/// Five replicas. 1 has the votes of 1, 3 and 4, proposes COMMIT and is the only one to accept that.
/// 3 takes over, hears of no vote but its own, and gets ABORT accepted by 2, 3 and 5. It knows the
/// end, and nobody else does.
fn aborted_by_3() -> (Cluster, Timestamp) {
    let mut cluster = Cluster::new(5);
    cluster.submit(1, "append=k:v");
    let id = cluster.last_attempt(1);
    for voter in [3, 4] {
        cluster.deliver(1, voter, "validate");
        cluster.deliver(voter, 1, "vote");
    }
    cluster.advance(MLT);
    cluster.tick_node(1);
    assert!(proposals(&mut cluster, 1).iter().all(|ok| *ok));
    assert_eq!(cluster.record(1, id).and_then(|record| record.accepted), Some((0, true)));
    cluster.pool.clear();
    take_over(&mut cluster, 3);
    for (there, back) in [("prepare", "promise"), ("accept", "accepted")] {
        for other in [2, 5] {
            cluster.deliver(3, other, there);
        }
        for other in [2, 5] {
            cluster.deliver(other, 3, back);
        }
    }
    assert_eq!(cluster.decision(3, id), Some(false));
    cluster.pool.clear();
    (cluster, id)
}

/// 2 takes over and hears from 1 and 4: a majority of which it alone has accepted ABORT.
fn taken_over_by_2(cluster: &mut Cluster, id: Timestamp) {
    take_over(cluster, 2);
    for other in [1, 4] {
        cluster.deliver(2, other, "prepare");
    }
    for other in [1, 4] {
        cluster.deliver(other, 2, "promise");
    }
    assert_eq!(proposals(cluster, 2), [false; 4], "what 3 has told its clients");
    cluster.deliver_all();
    assert_eq!(cluster.ledger.ends.get(&id), Some(&false));
}

#[test]
fn the_proposal_of_the_highest_view_is_the_one() {
    let (mut cluster, id) = aborted_by_3();
    taken_over_by_2(&mut cluster, id);
}

#[test]
fn a_view_that_was_joined_makes_no_proposal_newer() {
    // 1 joins a higher view than that of 3 in between, and accepts nothing in it.
    let (mut cluster, id) = aborted_by_3();
    take_over(&mut cluster, 4);
    cluster.deliver(4, 1, "prepare");
    cluster.pool.clear();
    let record = cluster.record(1, id).expect("it coordinates");
    assert_eq!((record.view, record.accepted), (68, Some((0, true))));
    taken_over_by_2(&mut cluster, id);
}

#[test]
fn a_takeover_that_may_hide_a_fast_commit_waits() {
    // 1, 2, 4 and 5 have said OK, which is a fast quorum of five, and 1 has told its client. 2 takes
    // over: 3 knows nothing, 4 has said OK, and so may 1 and 5 have.
    let mut cluster = Cluster::with(5, serializable);
    let tag = cluster.submit(1, "append=k:v");
    let id = cluster.last_attempt(1);
    for voter in [2, 4, 5] {
        cluster.deliver(1, voter, "validate");
        cluster.deliver(voter, 1, "vote");
    }
    cluster.assert_done(tag);
    cluster.pool.clear();
    take_over(&mut cluster, 2);
    for other in [3, 4] {
        cluster.deliver(2, other, "prepare");
        cluster.deliver(other, 2, "promise");
    }
    assert!(proposals(&mut cluster, 2).is_empty());
    assert_eq!(cluster.probed("meerkat: takeover waits for all replicas"), 1);
    cluster.deliver(2, 5, "prepare");
    cluster.deliver(5, 2, "promise");
    assert!(proposals(&mut cluster, 2).contains(&true));
    cluster.run_for(Duration::from_millis(700));
    assert_eq!(cluster.ledger.ends.get(&id), Some(&true));
    cluster.assert_everywhere("k", Some("v"));
}
