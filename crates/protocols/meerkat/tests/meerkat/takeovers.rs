//! Backup coordinators that meet what others have left behind (N4.4): what one of them has
//! decided, nobody after it decides differently.

use quorate_meerkat::{Conflict, Kind, Message, Reason};
use quorate_types::{Duration, MemberNumber, Timestamp, WriterId};

use crate::packets::Packet;
use crate::support::{Cluster, MLT, WALL, serializable};

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

/// 2 takes over and hears from 1 and 4. Of this majority only 2 itself has accepted ABORT.
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
    assert_eq!(cluster.subject.ledger.ends.get(&id), Some(&false));
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
    assert_eq!(cluster.subject.ledger.ends.get(&id), Some(&true));
    cluster.assert_everywhere("k", Some("v"));
}

#[test]
fn a_promise_that_was_lost_is_given_again() {
    // A takeover of a guest's transaction needs every promise: one that is lost and never given again
    // would hold it up for ever.
    let mut cluster = Cluster::new(3);
    let id = Timestamp::new(WALL + 50, WriterId::new(MemberNumber(2), 0));
    for _ in 0..2 {
        cluster.tell(3, 1, Kind::Prepare { id, view: 67 });
        let answers = cluster.take(1, 3, "any");
        let Kind::Promise { view, .. } = answers[0].message().kind else { panic!("{answers:?}") };
        assert_eq!((answers.len(), view), (1, 67));
    }
    cluster.tell(2, 1, Kind::Prepare { id, view: 66 });
    let answer = cluster.take(1, 2, "any").remove(0);
    assert_eq!(answer.message().kind, Kind::Superseded { id, view: 67 });
}

/// 1 of five coordinates and is silent; 2 and 3 have its transaction.
fn left_to_2_and_3() -> (Cluster, Timestamp) {
    let mut cluster = Cluster::new(5);
    cluster.submit(1, "append=k:v");
    let id = cluster.last_attempt(1);
    for voter in [2, 3] {
        cluster.deliver(1, voter, "validate");
    }
    cluster.pool.clear();
    (cluster, id)
}

/// How many takeovers a node begins while only it goes on.
fn takeovers_within(cluster: &mut Cluster, node: u16, span: Duration) -> u64 {
    let before = cluster.counter(node, "recoveries");
    let mut left = span;
    while left > Duration::ZERO {
        cluster.advance(MLT);
        cluster.tick_node(node);
        left = left.saturating_sub(MLT);
    }
    cluster.pool.clear();
    cluster.counter(node, "recoveries") - before
}

#[test]
fn a_backup_gives_the_one_before_it_time() {
    let (mut cluster, id) = left_to_2_and_3();
    // 3 would take over after three recovery timeouts of 100 ms each.
    takeovers_within(&mut cluster, 3, Duration::from_millis(280));
    assert_eq!(cluster.counter(3, "recoveries"), 0);
    cluster.tell(2, 3, Kind::Prepare { id, view: 66 });
    assert_eq!(takeovers_within(&mut cluster, 3, Duration::from_millis(80)), 0);
    assert_eq!(takeovers_within(&mut cluster, 3, Duration::from_millis(60)), 1);
}

#[test]
fn a_backup_that_was_superseded_tries_again_once() {
    // One timer for each record, however often its takeovers fail: otherwise each failure would
    // double the attempts, until backups do nothing but supersede each other.
    let (mut cluster, id) = left_to_2_and_3();
    take_over(&mut cluster, 2);
    for _ in 0..4 {
        let higher = cluster.record(2, id).expect("it voted").view + 1;
        cluster.advance(MLT);
        cluster.tell(3, 2, Kind::Superseded { id, view: higher });
        assert_eq!(takeovers_within(&mut cluster, 2, Duration::from_millis(100)), 1);
    }
}

#[test]
fn a_superseded_coordinator_asks_those_who_have_voted_for_the_end() {
    // 2 takes over and commits, and what it tells 1 is lost. 1 has everybody's vote, and one says ABORT.
    let mut cluster = Cluster::new(3);
    let tag = cluster.submit(1, "append=k:v");
    let id = cluster.last_attempt(1);
    cluster.deliver(1, 2, "validate");
    cluster.deliver(1, 3, "validate");
    let vote = cluster.take(2, 1, "vote").remove(0);
    cluster.take(3, 1, "vote");
    take_over(&mut cluster, 2);
    for (there, back) in [("prepare", "promise"), ("accept", "accepted")] {
        cluster.deliver(2, 1, there);
        cluster.deliver(2, 3, there);
        cluster.deliver(1, 2, back);
        cluster.deliver_some(|packet| packet.is(3, 2, back));
    }
    assert_eq!(cluster.decision(2, id), Some(true));
    cluster.pool.clear();
    cluster.inject(&vote);
    let against = Conflict { reason: Reason::StaleRead, with: Timestamp::ZERO };
    cluster.tell(3, 1, Kind::Vote { id, vote: Err(against) });
    cluster.assert_open(tag);
    cluster.run_for(Duration::from_millis(700));
    cluster.assert_done(tag);
    cluster.assert_everywhere("k", Some("v"));
    cluster.assert_quiet();
}

#[test]
fn a_takeover_goes_above_what_its_node_has_joined_in_any_partition() {
    // 2 has joined a view of 3 in the partition that 1 has told it nothing of.
    let mut cluster = Cluster::with(3, |config| config.partitions = vec![None, None]);
    cluster.submit(1, "append=k:v");
    let id = cluster.last_attempt(1);
    let partition = cluster.deliver(1, 2, "validate").message().partition;
    cluster.pool.clear();
    let kind = Kind::Prepare { id, view: 67 };
    let message = Message { partition: 1 - partition, kind };
    let packet = Packet::new(3, 2, cluster.view.epoch, &message);
    cluster.inject(&packet);
    cluster.pool.clear();
    take_over(&mut cluster, 2);
    let prepare = cluster.take(2, 3, "prepare").remove(0);
    assert_eq!(prepare.message().kind, Kind::Prepare { id, view: 130 });
}

/// Many transactions may be taken over at a time: over a slow link, what asks again at every timeout
/// stands in line before the answers.
#[test]
fn a_takeover_that_hears_nothing_asks_less_and_less_often() {
    let (mut cluster, _) = left_to_2_and_3();
    take_over(&mut cluster, 2);
    for _ in 0..12 {
        cluster.advance(MLT);
        cluster.tick_node(2);
    }
    // At once, and after one, three and seven timeouts.
    assert_eq!(cluster.take(2, 3, "prepare").len(), 4);
}
