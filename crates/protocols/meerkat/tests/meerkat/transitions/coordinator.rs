//! The coordinator's paths.

use quorate_machine::{Outcome, Refusal};
use quorate_meerkat::{Kind, Reason};
use quorate_types::{Duration, Timestamp};

use crate::support::{Cluster, MLT, serializable};
use crate::txn::txn;

use super::{against, of_2};

#[test]
fn the_fast_path_takes_one_round_trip() {
    for (count, configure) in [(3, (|_| {}) as fn(&mut _)), (5, serializable)] {
        let mut cluster = Cluster::with(count, configure);
        let tag = cluster.submit(1, "append=k:v");
        cluster.deliver_some(|packet| packet.kind() == "validate");
        // Four of five suffice without real time; all must answer where it counts.
        cluster.take(5, 1, "vote");
        cluster.deliver_some(|packet| packet.kind() == "vote");
        cluster.assert_done(tag);
        assert_eq!(cluster.probed("meerkat: slow path"), 0);
        assert_eq!(cluster.counter(1, "commits_fast"), 1);
        cluster.run_for(Duration::from_millis(300));
        cluster.assert_everywhere("k", Some("v"));
        cluster.assert_quiet();
    }
}

/// A client is answered before every replica knows of its update. When all do can be seen.
#[test]
fn an_update_is_unsettled_until_every_replica_has_it() {
    let mut cluster = Cluster::new(3);
    assert_eq!(cluster.gauge(1, "unsettled"), 0);
    let tag = cluster.submit(1, "append=k:v");
    assert_eq!(cluster.gauge(1, "unsettled"), 1);
    cluster.deliver_some(|packet| packet.kind() == "validate");
    cluster.deliver_some(|packet| packet.kind() == "vote");
    cluster.assert_done(tag);
    for node in [2, 3] {
        assert_eq!(cluster.gauge(1, "unsettled"), 1, "{node} may not know it");
        cluster.deliver(1, node, "decided");
        // Acknowledgements are gathered for a while.
        cluster.tick(MLT);
        cluster.deliver(node, 1, "acked");
    }
    assert_eq!(cluster.gauge(1, "unsettled"), 0);
}

#[test]
fn a_silent_replica_costs_a_round_and_a_wait() {
    let mut cluster = Cluster::new(3);
    let tag = cluster.submit(1, "append=k:v");
    cluster.deliver(1, 2, "validate");
    cluster.deliver(2, 1, "vote");
    assert!(cluster.take(1, 0, "accept").is_empty(), "3 has a moment");
    cluster.tick(MLT / 4);
    cluster.deliver(1, 2, "accept");
    cluster.deliver(2, 1, "accepted");
    // 3's clock may be behind the timestamp, and its clients must not see that.
    cluster.assert_open(tag);
    cluster.tick(Duration::from_millis(43));
    cluster.assert_open(tag);
    cluster.tick(Duration::from_millis(5));
    cluster.assert_done(tag);
    assert_eq!(cluster.counter(1, "commits_slow"), 1);
    assert_eq!(cluster.counter(1, "commit_waits"), 1);
}

#[test]
fn without_real_time_nobody_waits_for_clocks() {
    let mut cluster = Cluster::with(3, serializable);
    let tag = cluster.submit(1, "append=k:v");
    cluster.deliver(1, 2, "validate");
    cluster.deliver(2, 1, "vote");
    cluster.tick(MLT / 4);
    cluster.deliver(1, 2, "accept");
    cluster.deliver(2, 1, "accepted");
    cluster.assert_done(tag);
}

#[test]
fn mixed_votes_are_settled_on_the_slow_path_at_once() {
    let mut cluster = Cluster::new(3);
    let tag = cluster.submit(1, "write=k:v");
    let id = cluster.last_attempt(1);
    cluster.tell(3, 1, Kind::Vote { id, vote: against(Reason::ReadLater, of_2(99)) });
    assert!(cluster.take(1, 0, "accept").is_empty(), "2 may still make it a majority");
    cluster.tell(2, 1, Kind::Vote { id, vote: Ok(()) });
    let proposals = cluster.take(1, 0, "accept");
    assert_eq!(proposals.len(), 2, "no fast quorum is possible: no reason to wait");
    for packet in &proposals {
        assert!(matches!(packet.message().kind, Kind::Accept { ok: true, view: 0, .. }));
        cluster.inject(packet);
    }
    cluster.deliver(2, 1, "accepted");
    cluster.deliver(3, 1, "accepted");
    cluster.assert_done(tag);
    // The one that voted ABORT installs it like everybody else.
    cluster.deliver(1, 3, "decided");
    assert_eq!(cluster.stored(3, "k").as_deref(), Some("v"));
}

#[test]
fn two_aborts_of_three_need_no_second_round() {
    let mut cluster = Cluster::new(3);
    cluster.submit(1, "write=k:v");
    let id = cluster.last_attempt(1);
    for from in [2, 3] {
        cluster.tell(from, 1, Kind::Vote { id, vote: against(Reason::ReadLater, of_2(99)) });
    }
    assert!(cluster.take(1, 0, "accept").is_empty());
    assert_eq!(cluster.decision(1, id), Some(false));
    assert!(cluster.pending(1, "k").is_empty());
}

#[test]
fn three_aborts_of_five_do_need_one_where_four_are_a_fast_quorum() {
    let mut cluster = Cluster::with(5, serializable);
    cluster.submit(1, "write=k:v");
    let id = cluster.last_attempt(1);
    for from in [2, 3, 4] {
        assert_eq!(cluster.decision(1, id), None);
        cluster.tell(from, 1, Kind::Vote { id, vote: against(Reason::ReadLater, of_2(99)) });
    }
    assert!(cluster.take(1, 0, "accept").is_empty(), "5 may make it a fast quorum");
    cluster.tick(MLT / 4);
    assert_eq!(cluster.decision(1, id), None, "a recovery may not see that it failed");
    let proposals = cluster.take(1, 0, "accept");
    assert_eq!(proposals.len(), 4);
    assert!(matches!(proposals[0].message().kind, Kind::Accept { ok: false, .. }));
}

#[test]
fn once_an_abort_is_proposed_late_votes_change_nothing() {
    // N3.4-8, the one-way door: five replicas, {OK, OK, ABORT}, then two more OKs.
    let mut cluster = Cluster::with(5, serializable);
    let tag = cluster.submit(1, "write=k:v");
    let id = cluster.last_attempt(1);
    cluster.tell(2, 1, Kind::Vote { id, vote: Ok(()) });
    cluster.tell(3, 1, Kind::Vote { id, vote: against(Reason::ReadLater, of_2(99)) });
    assert!(cluster.take(1, 0, "accept").is_empty(), "the others have a moment");
    cluster.tick(MLT / 4);
    let proposals = cluster.take(1, 0, "accept");
    assert!(matches!(proposals[0].message().kind, Kind::Accept { ok: false, .. }));
    cluster.tell(4, 1, Kind::Vote { id, vote: Ok(()) });
    cluster.tell(5, 1, Kind::Vote { id, vote: Ok(()) });
    cluster.assert_open(tag);
    assert_eq!(cluster.decision(1, id), None, "four OKs would have been a fast quorum");
    cluster.tell(2, 1, Kind::Accepted { id, view: 0 });
    cluster.tell(3, 1, Kind::Accepted { id, view: 0 });
    assert_eq!(cluster.decision(1, id), Some(false));
    cluster.run_for(Duration::from_millis(300));
    cluster.assert_done(tag);
}

#[test]
fn an_attempt_that_loses_is_tried_again_above_what_was_in_its_way() {
    let mut cluster = Cluster::new(3);
    let tag = cluster.submit(1, "write=k:v");
    let id = cluster.last_attempt(1);
    let later = Timestamp::new(id.version + 1_000_000_000, id.writer);
    for from in [2, 3] {
        cluster.tell(from, 1, Kind::Vote { id, vote: against(Reason::ReadLater, later) });
    }
    cluster.run_for(Duration::from_millis(20));
    cluster.assert_done(tag);
    assert!(cluster.last_attempt(1) > later);
    assert_eq!(cluster.counter(1, "retries"), 1);
}

#[test]
fn who_always_loses_is_told_to_come_again() {
    let mut cluster = Cluster::new(3);
    let tag = cluster.submit(1, "write=k:v");
    let mut rounds = 0;
    while cluster.outcome(tag).is_none() {
        for packet in cluster.take(1, 0, "validate") {
            let Kind::Validate { id, .. } = packet.message().kind else { unreachable!() };
            let vote = against(Reason::ReadLater, id);
            cluster.tell(packet.to.0, 1, Kind::Vote { id, vote });
        }
        cluster.tick(Duration::from_millis(12));
        rounds += 1;
        assert!(rounds < 1000, "it never ends");
    }
    assert_eq!(cluster.outcome(tag), Some(&Outcome::Refused(Refusal::Conflict)));
    assert_eq!(cluster.counter(1, "retries"), 63, "64 attempts");
    assert_eq!(cluster.machine(1).pending(), 0);
}

#[test]
fn who_waits_for_a_neighbour_goes_on_at_its_end() {
    let mut cluster = Cluster::new(3);
    let first = cluster.submit(1, "append=k:a");
    let second = cluster.submit(1, "append=k:b");
    assert_eq!(cluster.take(1, 3, "validate").len(), 1, "the second waits");
    cluster.tell(3, 1, Kind::Vote { id: cluster.last_attempt(1), vote: Ok(()) });
    cluster.deliver(1, 2, "validate");
    cluster.deliver(2, 1, "vote");
    cluster.assert_done(first);
    // No time has passed.
    assert_eq!(cluster.take(1, 3, "validate").len(), 1);
    cluster.tell(3, 1, Kind::Vote { id: cluster.last_attempt(1), vote: Ok(()) });
    cluster.deliver(1, 2, "validate");
    cluster.deliver(2, 1, "vote");
    assert_eq!(cluster.read_by(second), [Some("a")]);
}

#[test]
fn transactions_of_one_origin_keep_their_order() {
    let mut cluster = Cluster::new(3);
    let tags: Vec<u64> = (0..8)
        .map(|n| {
            let text = if n % 3 == 2 { "read=k".to_owned() } else { format!("append=k:{n}") };
            cluster.submit_as(1, 5, txn(&text))
        })
        .collect();
    // Somebody else is at the same key.
    let other = cluster.submit(2, "append=k:x");
    cluster.run_for(Duration::from_millis(500));
    cluster.assert_done(other);
    let mut last = 0;
    for tag in tags {
        let seen = cluster.read_by(tag)[0].unwrap_or("").replace('x', "").len();
        assert!(seen >= last, "op {tag} went back");
        last = seen;
    }
    assert_eq!(cluster.stored(3, "k").expect("it was set").replace('x', ""), "013467");
}

#[test]
fn a_blind_write_does_not_overtake_its_neighbour() {
    let mut cluster = Cluster::new(3);
    let first = cluster.submit_as(1, 5, txn("write=k:1"));
    let id = cluster.last_attempt(1);
    let second = cluster.submit_as(1, 5, txn("write=k:2"));
    // The first one loses, to a reader for instance, before the others have seen it.
    for from in [2, 3] {
        cluster.tell(from, 1, Kind::Vote { id, vote: against(Reason::ReadLater, id) });
    }
    cluster.run_for(Duration::from_millis(100));
    cluster.assert_done(first);
    cluster.assert_done(second);
    cluster.assert_everywhere("k", Some("2"));
}

#[test]
fn a_read_does_not_fall_behind_its_neighbours_write() {
    let mut cluster = Cluster::new(3);
    let first = cluster.submit_as(1, 5, txn("read=k"));
    let at = cluster.last_attempt(1);
    let second = cluster.submit_as(1, 5, txn("write=k:2"));
    let asked = cluster.take(1, 0, "check")[0].to.0;
    let result = against(Reason::PendingWriter, at);
    cluster.tell(asked, 1, Kind::Checked { at, result });
    cluster.run_for(Duration::from_millis(100));
    cluster.assert_done(second);
    assert_eq!(cluster.read_by(first), [None]);
}

#[test]
fn a_transaction_that_abandons_answers_without_a_message() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, "write=k:v");
    cluster.pool.clear();
    cluster.fresh_packets.clear();
    let tag = cluster.submit(1, "unless=k write=k:w");
    cluster.assert_done(tag);
    assert!(cluster.fresh_packets.is_empty());
}
