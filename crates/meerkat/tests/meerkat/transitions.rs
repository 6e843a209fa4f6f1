//! One test for each transition: spec §3.5 row by row, then the paths of a transaction.

use quorate_machine::{Outcome, Refusal};
use quorate_meerkat::{Body, Conflict, Kind, Reason, Vote};
use quorate_types::{Duration, MemberNumber, Role, Timestamp, WriterId, limits};

use crate::support::{Cluster, MLT, Packet, WALL, body_bytes, serializable};
use crate::txn::txn;

/// An id that node 2's coordinator may have used: so many nanoseconds after the start.
fn of_2(nanos: u64) -> Timestamp {
    Timestamp::new(WALL + nanos, WriterId::new(MemberNumber(2), 0))
}

fn validate(cluster: &mut Cluster, to: u16, id: Timestamp, body: &[u8]) {
    let body = Body::check(body).expect("just made");
    cluster.tell(2, to, Kind::Validate { id, stable: 0, participants: 1, body });
}

fn decided(cluster: &mut Cluster, to: u16, id: Timestamp, commit: bool, body: Option<&[u8]>) {
    let body = body.map(|body| Body::check(body).expect("just made"));
    cluster.tell(2, to, Kind::Decided { id, commit, body });
}

fn accept(cluster: &mut Cluster, to: u16, id: Timestamp, view: u64, ok: bool, body: &[u8]) {
    let body = Some(Body::check(body).expect("just made"));
    cluster.tell(2, to, Kind::Accept { id, view, ok, participants: 1, body });
}

/// The one message that node 1 has for node 2.
#[track_caller]
fn answer(cluster: &mut Cluster) -> Packet {
    let mut answers = cluster.take(1, 2, "any");
    assert_eq!(answers.len(), 1, "{answers:?}");
    answers.remove(0)
}

/// The vote that node 1 has for node 2.
#[track_caller]
fn vote(cluster: &mut Cluster) -> Vote {
    match answer(cluster).message().kind {
        Kind::Vote { vote, .. } => vote,
        other => panic!("{other:?}"),
    }
}

fn against(reason: Reason, with: Timestamp) -> Vote {
    Err(Conflict { reason, with })
}

fn writes() -> Vec<u8> {
    body_bytes(&[("k", None, Some("v"))])
}

// --- spec §3.5: what a replica does with what comes twice, late or early ---------------------------

#[test]
fn validate_again_is_answered_with_the_same_vote() {
    let mut cluster = Cluster::new(3);
    validate(&mut cluster, 1, of_2(50), &writes());
    assert_eq!(vote(&mut cluster), Ok(()));
    // What has changed since then does not matter: votes are given once.
    let reader = body_bytes(&[("k", Some(Timestamp::ZERO), Some("w"))]);
    validate(&mut cluster, 1, of_2(60), &reader);
    let refused = against(Reason::PendingWriter, of_2(50));
    assert_eq!(vote(&mut cluster), refused);
    decided(&mut cluster, 1, of_2(50), false, None);
    validate(&mut cluster, 1, of_2(60), &reader);
    assert_eq!(vote(&mut cluster), refused, "though nothing is in the way any more");
    assert!(cluster.pending(1, "k").is_empty());
}

#[test]
fn validate_of_a_decided_transaction_is_answered_with_the_decision() {
    let mut cluster = Cluster::new(3);
    for (nanos, commit) in [(50, true), (60, false)] {
        validate(&mut cluster, 1, of_2(nanos), &writes());
        vote(&mut cluster).expect("nothing is in the way");
        decided(&mut cluster, 1, of_2(nanos), commit, None);
        validate(&mut cluster, 1, of_2(nanos), &writes());
        let expected = Kind::Decided { id: of_2(nanos), commit, body: None };
        assert_eq!(answer(&mut cluster).message().kind, expected);
        assert!(cluster.pending(1, "k").is_empty());
    }
    assert_eq!(cluster.meta(1, "k").wts, of_2(50));
}

#[test]
fn validate_of_a_promised_transaction_gets_no_vote() {
    let mut cluster = Cluster::new(3);
    cluster.tell(3, 1, Kind::Prepare { id: of_2(50), view: 67 });
    assert_eq!(cluster.take(1, 3, "promise").len(), 1);
    validate(&mut cluster, 1, of_2(50), &writes());
    let expected = Kind::Superseded { id: of_2(50), view: 67 };
    assert_eq!(answer(&mut cluster).message().kind, expected);
    assert_eq!(cluster.vote(1, of_2(50)), None);
    assert!(cluster.pending(1, "k").is_empty());
}

#[test]
fn messages_of_other_epochs_are_dropped() {
    let mut cluster = Cluster::new(3);
    let tag = cluster.submit(1, "write=k:v");
    let old: Vec<Packet> = cluster.take(0, 0, "any");
    cluster.install(&cluster.roles());
    for packet in &old {
        cluster.inject(packet);
        assert_eq!(cluster.vote(packet.to.0, cluster.last_attempt(1)), None);
    }
    assert_eq!(cluster.ignored["meerkat: message of an older epoch"], 2);
    // The change has ended the attempt; another one follows.
    cluster.run_for(Duration::from_millis(300));
    cluster.assert_done(tag);
    let mut early = old[0].clone();
    early.epoch.0 = 9;
    cluster.inject(&early);
    assert_eq!(cluster.ignored["meerkat: message of a newer epoch"], 1);
}

#[test]
fn votes_of_an_earlier_epoch_decide_nothing() {
    // §4.2b. The registrations behind the votes are gone with their epoch.
    let mut cluster = Cluster::new(3);
    cluster.submit(1, "write=k:v");
    let id = cluster.last_attempt(1);
    cluster.deliver(1, 2, "validate");
    cluster.deliver(1, 3, "validate");
    let votes = cluster.take(0, 1, "vote");
    // An attempt of the next epoch under the same id, as a partition whose vote was not settled
    // would make it, must not count them: here a message of the last epoch is dropped altogether.
    let before = cluster.ignored.get("meerkat: message of an older epoch").copied().unwrap_or(0);
    cluster.install(&cluster.roles());
    for vote in &votes {
        cluster.inject(vote);
    }
    let after = cluster.ignored["meerkat: message of an older epoch"];
    assert_eq!(after - before, 2);
    assert!(cluster.take(1, 0, "decided").is_empty(), "{id:?}");
}

#[test]
fn whatever_comes_of_a_trimmed_transaction_is_too_late() {
    let mut cluster = Cluster::new(3);
    cluster.tell(2, 1, Kind::Stable { stable: WALL + 50 });
    validate(&mut cluster, 1, of_2(50), &writes());
    accept(&mut cluster, 1, of_2(40), 0, false, &writes());
    cluster.tell(3, 1, Kind::Prepare { id: of_2(30), view: 67 });
    assert!(cluster.take(1, 0, "any").is_empty());
    assert!(cluster.machine(1).records().is_empty());
    assert!(cluster.pending(1, "k").is_empty());
    // Its end is known; whoever asks is told so.
    decided(&mut cluster, 1, of_2(20), true, None);
    cluster.tick(MLT);
    assert_eq!(cluster.take(1, 2, "acked").len(), 1);
    assert_eq!(cluster.stored(1, "k"), None);
    validate(&mut cluster, 1, of_2(51), &writes());
    assert_eq!(cluster.vote(1, of_2(51)), Some(Ok(())), "the next one is not concerned");
}

#[test]
fn accept_of_a_lower_view_is_refused_and_of_the_same_or_a_higher_one_taken() {
    let mut cluster = Cluster::new(3);
    validate(&mut cluster, 1, of_2(50), &writes());
    cluster.tell(3, 1, Kind::Prepare { id: of_2(50), view: 67 });
    cluster.pool.clear();
    accept(&mut cluster, 1, of_2(50), 0, true, &writes());
    let expected = Kind::Superseded { id: of_2(50), view: 67 };
    assert_eq!(answer(&mut cluster).message().kind, expected);
    assert_eq!(cluster.record(1, of_2(50)).expect("it voted").accepted, None);
    for (view, ok) in [(130, false), (130, false), (194, true)] {
        accept(&mut cluster, 1, of_2(50), view, ok, &writes());
        let expected = Kind::Accepted { id: of_2(50), view };
        assert_eq!(answer(&mut cluster).message().kind, expected);
        let record = cluster.record(1, of_2(50)).expect("it voted");
        assert_eq!((record.view, record.accepted), (view, Some((view, ok))));
    }
    assert_eq!(cluster.vote(1, of_2(50)), Some(Ok(())), "the vote is kept beside it");
}

#[test]
fn accept_without_a_record_brings_the_sets() {
    let mut cluster = Cluster::new(3);
    accept(&mut cluster, 1, of_2(50), 0, true, &writes());
    let expected = Kind::Accepted { id: of_2(50), view: 0 };
    assert_eq!(answer(&mut cluster).message().kind, expected);
    assert!(cluster.pending(1, "k").is_empty(), "what is accepted need not be registered");
    // A late VALIDATE finds it and gets no vote that might complete a fast quorum.
    validate(&mut cluster, 1, of_2(50), &writes());
    assert_eq!(answer(&mut cluster).kind(), "superseded");
    decided(&mut cluster, 1, of_2(50), true, None);
    assert_eq!(cluster.stored(1, "k").as_deref(), Some("v"));
    accept(&mut cluster, 1, of_2(50), 0, true, &writes());
    let expected = Kind::Decided { id: of_2(50), commit: true, body: None };
    assert_eq!(answer(&mut cluster).message().kind, expected);
}

#[test]
fn decided_again_changes_nothing() {
    let mut cluster = Cluster::new(3);
    validate(&mut cluster, 1, of_2(50), &writes());
    decided(&mut cluster, 1, of_2(50), true, None);
    validate(&mut cluster, 1, of_2(60), &body_bytes(&[("k", None, Some("later"))]));
    decided(&mut cluster, 1, of_2(60), true, None);
    decided(&mut cluster, 1, of_2(50), true, Some(&writes()));
    assert_eq!(cluster.stored(1, "k").as_deref(), Some("later"));
    cluster.tick(MLT);
    let acked = cluster.take(1, 2, "acked").remove(0);
    let Kind::Acked { ids } = acked.message().kind else { panic!("{acked:?}") };
    assert_eq!(ids.len(), 3 * 12, "each was acknowledged");
}

#[test]
fn another_end_of_a_transaction_than_is_known_is_refused() {
    let mut cluster = Cluster::new(3);
    validate(&mut cluster, 1, of_2(50), &writes());
    decided(&mut cluster, 1, of_2(50), true, None);
    let kind = Kind::Decided { id: of_2(50), commit: false, body: None };
    assert_eq!(cluster.lie(2, 1, kind), Some("meerkat: another end than is known here"));
    assert_eq!(cluster.decision(1, of_2(50)), Some(true));
}

#[test]
fn an_abort_before_its_validate_leaves_a_tombstone() {
    let mut cluster = Cluster::new(3);
    decided(&mut cluster, 1, of_2(50), false, None);
    validate(&mut cluster, 1, of_2(50), &writes());
    let expected = Kind::Decided { id: of_2(50), commit: false, body: None };
    assert_eq!(answer(&mut cluster).message().kind, expected);
    assert!(cluster.pending(1, "k").is_empty(), "nobody would ever take it out");
}

#[test]
fn a_commit_before_its_validate_pulls_the_sets() {
    let mut cluster = Cluster::new(3);
    decided(&mut cluster, 1, of_2(50), true, None);
    assert_eq!(answer(&mut cluster).message().kind, Kind::Pull { id: of_2(50) });
    assert_eq!(cluster.decision(1, of_2(50)), None, "not before it is installed");
    // The VALIDATE comes late and must not register what is decided.
    validate(&mut cluster, 1, of_2(50), &writes());
    assert_eq!(answer(&mut cluster).kind(), "superseded");
    assert!(cluster.pending(1, "k").is_empty());
    decided(&mut cluster, 1, of_2(50), true, Some(&writes()));
    assert_eq!(cluster.stored(1, "k").as_deref(), Some("v"));
    assert_eq!(cluster.decision(1, of_2(50)), Some(true));
}

#[test]
fn votes_are_counted_by_replica() {
    let mut cluster = Cluster::new(3);
    let tag = cluster.submit(1, "write=k:v");
    let id = cluster.last_attempt(1);
    for _ in 0..3 {
        cluster.tell(2, 1, Kind::Vote { id, vote: Ok(()) });
    }
    cluster.assert_open(tag);
    cluster.tick(MLT / 2);
    for _ in 0..3 {
        cluster.tell(1 + 1, 1, Kind::Vote { id, vote: Ok(()) });
    }
    cluster.assert_open(tag);
    cluster.tell(2, 1, Kind::Accepted { id, view: 0 });
    cluster.tell(3, 1, Kind::Accepted { id, view: 0 });
    cluster.assert_done(tag);
}

// --- the coordinator's paths -----------------------------------------------------------------------

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
    // Spec §3.4-8, the one-way door: five replicas, {OK, OK, ABORT}, then two more OKs.
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

// --- read-only transactions ------------------------------------------------------------------------

#[test]
fn a_read_is_confirmed_by_a_quorum_and_leaves_no_record() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, "write=k:v");
    cluster.run_for(Duration::from_millis(300));
    let tag = cluster.submit(2, "read=k read=none");
    cluster.deliver_some(|packet| packet.kind() == "check");
    cluster.assert_open(tag);
    cluster.deliver(0, 2, "checked");
    assert_eq!(cluster.read_by(tag), [Some("v"), None]);
    cluster.assert_quiet();
}

#[test]
fn a_pending_writer_refuses_a_read() {
    let mut cluster = Cluster::new(3);
    validate(&mut cluster, 1, of_2(50), &writes());
    cluster.pool.clear();
    let bytes = body_bytes(&[("k", Some(Timestamp::ZERO), None)]);
    let body = Body::check(&bytes).expect("just made");
    let ask = |cluster: &mut Cluster, nanos| {
        cluster.tell(2, 1, Kind::Check { at: of_2(nanos), body });
        match answer(cluster).message().kind {
            Kind::Checked { result, .. } => result,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(ask(&mut cluster, 60), against(Reason::PendingWriter, of_2(50)));
    assert_eq!(ask(&mut cluster, 40), Ok(()), "it comes before the writer");
    decided(&mut cluster, 1, of_2(50), true, None);
    assert_eq!(ask(&mut cluster, 70), against(Reason::StaleRead, of_2(50)));
}

#[test]
fn nobody_writes_below_a_confirmed_read() {
    let mut cluster = Cluster::new(3);
    let bytes = body_bytes(&[("k", Some(Timestamp::ZERO), None)]);
    let body = Body::check(&bytes).expect("just made");
    cluster.tell(2, 1, Kind::Check { at: of_2(60), body });
    cluster.pool.clear();
    validate(&mut cluster, 1, of_2(50), &writes());
    assert_eq!(vote(&mut cluster), against(Reason::ReadLater, of_2(60)));
    validate(&mut cluster, 1, of_2(70), &writes());
    assert_eq!(vote(&mut cluster), Ok(()));
}

#[test]
fn nobody_writes_below_what_a_committed_transaction_has_read() {
    let mut cluster = Cluster::new(3);
    let reads = body_bytes(&[("k", Some(Timestamp::ZERO), None), ("m", None, Some("v"))]);
    validate(&mut cluster, 1, of_2(60), &reads);
    vote(&mut cluster).expect("nothing is in the way");
    validate(&mut cluster, 1, of_2(50), &writes());
    assert_eq!(vote(&mut cluster), against(Reason::PendingReader, of_2(60)));
    decided(&mut cluster, 1, of_2(60), true, None);
    validate(&mut cluster, 1, of_2(51), &writes());
    assert_eq!(vote(&mut cluster), against(Reason::ReadLater, of_2(60)));
}

#[test]
fn after_an_epoch_nobody_writes_below_its_reads() {
    let mut cluster = Cluster::new(3);
    cluster.tick(Duration::from_millis(1));
    let tag = cluster.submit(3, "read=k");
    let at = cluster.last_attempt(3);
    cluster.take(3, 1, "check");
    cluster.deliver_all();
    if cluster.outcome(tag).is_none() {
        // It had asked 1; now it asks everybody.
        cluster.tick(MLT);
        cluster.take(3, 1, "check");
        cluster.deliver(3, 2, "check");
        cluster.deliver(2, 3, "checked");
    }
    cluster.assert_done(tag);
    assert_eq!(cluster.meta(1, "k").rts, Timestamp::ZERO, "1 knows nothing of it");
    cluster.install(&cluster.roles());
    cluster.deliver_all();
    cluster.pool.clear();
    validate(&mut cluster, 1, of_2(at.version - WALL), &writes());
    assert!(matches!(vote(&mut cluster), Err(Conflict { reason: Reason::BelowFloor, .. })));
    // The floor may be a clock's reading; above it nothing stands in the way.
    validate(&mut cluster, 1, of_2(1_000_000_000), &writes());
    assert_eq!(vote(&mut cluster), Ok(()));
}

// --- what is left behind ----------------------------------------------------------------------------

#[test]
fn records_go_once_every_replica_knows_the_end() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, "append=k:v");
    let id = cluster.last_attempt(1);
    for node in 1..=3 {
        assert_eq!(cluster.decision(node, id), Some(true), "node {node}");
    }
    // 3's acknowledgement is lost, again and again.
    cluster.run_some(Duration::from_millis(200), |packet| !packet.is(3, 1, "acked"));
    for node in 1..=3 {
        assert_eq!(cluster.decision(node, id), Some(true), "node {node}");
    }
    cluster.run_for(Duration::from_millis(200));
    cluster.assert_quiet();
    assert_eq!(cluster.counter(2, "records_dropped"), 1);
}

#[test]
fn deleted_keys_leave_nothing_once_the_floor_has_passed_them() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, "write=k:v");
    cluster.run(2, "del=k");
    cluster.run(3, "read=absent");
    for node in 1..=3 {
        assert!(cluster.has_record(node, "k"), "the deletion has a version");
    }
    cluster.run_for(Duration::from_millis(3_000));
    for node in 1..=3 {
        assert!(!cluster.has_record(node, "k"), "node {node}");
        assert!(!cluster.has_record(node, "absent"), "node {node}");
    }
    assert_eq!(cluster.run(2, "read=k append=k:again"), [None, None]);
}

#[test]
fn a_deleted_key_stays_while_somebody_may_write_below_it() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, "write=k:v");
    cluster.run_for(Duration::from_millis(300));
    // 2's transaction is open: nothing above it is over.
    let open = cluster.submit(2, "write=k:old");
    cluster.take(2, 0, "validate");
    cluster.tick(Duration::from_millis(1));
    cluster.submit(1, "del=k");
    cluster.run_some(Duration::from_millis(90), |packet| {
        packet.from.0 != 2 || packet.is(2, 0, "vote") || packet.is(2, 0, "acked")
    });
    assert!(cluster.has_record(1, "k"));
    assert_eq!(cluster.stored(1, "k"), None);
    cluster.run_for(Duration::from_millis(500));
    cluster.assert_done(open);
    // The older write comes after the deletion and is nothing any more, or was tried anew.
    cluster.run_for(Duration::from_millis(3_000));
    let left = cluster.stored(1, "k");
    cluster.assert_everywhere("k", left.as_deref());
    cluster.assert_quiet();
}

// --- takeovers and joins ----------------------------------------------------------------------------

#[test]
fn a_dead_coordinators_transaction_is_finished_by_others() {
    let mut cluster = Cluster::new(3);
    cluster.submit(1, "write=k:v");
    let id = cluster.last_attempt(1);
    cluster.deliver(1, 2, "validate");
    cluster.deliver(1, 3, "validate");
    cluster.crash(1);
    assert!(!cluster.pending(2, "k").is_empty());
    cluster.run_for(Duration::from_millis(600));
    assert!(cluster.probed("meerkat: decided as a backup") > 0);
    for node in [2, 3] {
        assert_eq!(cluster.decision(node, id), Some(true), "two OKs are a majority");
        assert_eq!(cluster.stored(node, "k").as_deref(), Some("v"));
        assert!(cluster.pending(node, "k").is_empty());
    }
}

#[test]
fn a_dead_coordinators_transaction_that_one_replica_knows_is_aborted() {
    let mut cluster = Cluster::new(3);
    cluster.submit(1, "write=k:v");
    let id = cluster.last_attempt(1);
    cluster.deliver(1, 2, "validate");
    cluster.pool.clear();
    cluster.crash(1);
    cluster.run_for(Duration::from_millis(600));
    for node in [2, 3] {
        assert_eq!(cluster.decision(node, id), Some(false), "node {node}");
        assert!(cluster.pending(node, "k").is_empty());
    }
}

/// However large the records are, each message is one that the nodes' links carry.
#[test]
fn a_joining_replica_copies_large_records() {
    let mut cluster = Cluster::new(3);
    let values = ["a", "b", "c", "d", "e", "f"].map(|byte| byte.repeat(900_000));
    let keys = ["", "1", "2", "3", "4", "5"];
    for (key, value) in keys.iter().zip(&values) {
        cluster.run(1, &format!("write={key}:{value}"));
    }
    for number in 0..300 {
        cluster.run(1, &format!("write=small{number}:1"));
    }
    cluster.run(1, &format!("write=largest:{}", "g".repeat(limits::VALUE_BYTES_MAX)));
    cluster.expel(&[3]);
    cluster.run_for(Duration::from_millis(100));
    cluster.rejoin(3);
    cluster.run_for(Duration::from_millis(300));
    assert!(cluster.machine(3).is_caught_up());
    for (key, value) in keys.iter().zip(&values) {
        assert!(cluster.stored(3, key).as_ref() == Some(value), "{key}");
    }
    for number in 0..300 {
        assert_eq!(cluster.stored(3, &format!("small{number}")).as_deref(), Some("1"));
    }
    assert_eq!(
        cluster.stored(3, "largest").map(|value| value.len()),
        Some(limits::VALUE_BYTES_MAX)
    );
}

#[test]
fn a_coordinator_learns_what_a_backup_has_decided() {
    let mut cluster = Cluster::new(3);
    let tag = cluster.submit(1, "append=k:v");
    let id = cluster.last_attempt(1);
    cluster.deliver(1, 2, "validate");
    cluster.deliver(1, 3, "validate");
    // 1 hears nothing; the others finish it.
    cluster.run_some(Duration::from_millis(400), |packet| packet.to.0 != 1 && packet.from.0 != 1);
    assert_eq!(cluster.decision(2, id), Some(true));
    cluster.assert_open(tag);
    cluster.run_for(Duration::from_millis(300));
    cluster.assert_done(tag);
    assert_eq!(cluster.probed("meerkat: decided by a backup"), 1);
    cluster.assert_quiet();
}

#[test]
fn a_joining_replica_copies_and_hears_of_everything() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, "write=old:1 write=k:1");
    cluster.expel(&[3]);
    cluster.run_for(Duration::from_millis(100));
    cluster.run(1, "append=k:2");
    cluster.rejoin(3);
    // It knows nothing yet, and an update goes past it.
    cluster.deliver_some(|packet| !packet.is(0, 0, "chunk") && !packet.is(0, 0, "chunk_read"));
    assert!(!cluster.machine(3).is_caught_up());
    let tag = cluster.submit(2, "append=k:3 write=new:3");
    cluster.deliver_some(|packet| !packet.is(0, 0, "chunk") && !packet.is(0, 0, "chunk_read"));
    cluster.assert_done(tag);
    assert_eq!(cluster.stored(3, "k").as_deref(), Some("123"), "the end comes with the sets");
    assert_eq!(cluster.stored(3, "old"), None);
    let refused = cluster.submit(3, "read=k");
    assert_eq!(cluster.outcome(refused), Some(&Outcome::Refused(Refusal::NotServing)));
    cluster.run_for(Duration::from_millis(300));
    assert!(cluster.machine(3).is_caught_up());
    cluster.install(&cluster.roles_with(3, Role::Active));
    cluster.run_for(Duration::from_millis(300));
    for (key, value) in [("old", "1"), ("k", "123"), ("new", "3")] {
        cluster.assert_everywhere(key, Some(value));
    }
    assert_eq!(cluster.run(3, "append=k:4"), [Some("123".to_owned())]);
    cluster.run_for(Duration::from_millis(1_500));
    cluster.assert_quiet();
}

/// A cluster that had a value of k, the value's version, and nothing left of k.
fn with_forgotten_deletion() -> (Cluster, Timestamp) {
    let mut cluster = Cluster::new(3);
    cluster.run(1, "write=k:v");
    let read = cluster.meta(1, "k").wts;
    cluster.run(2, "del=k");
    cluster.run_for(Duration::from_millis(3_000));
    assert!(!cluster.has_record(1, "k"), "the deletion is forgotten");
    (cluster, read)
}

/// A read at a coordinator that was then silent for long.
fn stale_read_is_refused(cluster: &mut Cluster, read: Timestamp) {
    cluster.pool.clear();
    let later = of_2(cluster.now.unix.0 - WALL + 1_000_000_000);
    validate(cluster, 1, later, &body_bytes(&[("k", Some(read), Some("late"))]));
    let refused = vote(cluster).expect_err("k was deleted after that version");
    assert_eq!(refused.reason, Reason::StaleRead);
    assert!(cluster.pending(1, "k").is_empty());
    let only_reads = body_bytes(&[("m", Some(Timestamp::ZERO), None), ("k", Some(read), None)]);
    let body = Body::check(&only_reads).expect("just made");
    cluster.tell(2, 1, Kind::Check { at: later, body });
    match answer(cluster).message().kind {
        Kind::Checked { result: Err(Conflict { reason: Reason::StaleRead, .. }), .. } => {}
        other => panic!("{other:?}"),
    }
    // Who found nothing there finds nothing there still.
    let absent = Timestamp::new(refused.with.version, WriterId(u32::MAX));
    let id = of_2(later.version - WALL + 1);
    validate(cluster, 1, id, &body_bytes(&[("k", Some(absent), Some("late"))]));
    assert_eq!(vote(cluster), Ok(()));
}

#[test]
fn a_deletion_that_is_forgotten_is_noticed_by_who_read_before_it() {
    let (mut cluster, read) = with_forgotten_deletion();
    stale_read_is_refused(&mut cluster, read);
}

#[test]
fn a_copy_without_the_deletion_notices_it_too() {
    let (mut cluster, read) = with_forgotten_deletion();
    cluster.crash(1);
    cluster.expel(&[1]);
    cluster.run_for(Duration::from_millis(300));
    cluster.rejoin(1);
    cluster.run_for(Duration::from_millis(300));
    cluster.install(&cluster.roles_with(1, Role::Active));
    cluster.deliver_all();
    assert!(cluster.machine(1).is_normal());
    stale_read_is_refused(&mut cluster, read);
}
