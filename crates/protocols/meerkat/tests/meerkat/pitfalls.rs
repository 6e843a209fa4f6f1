//! The errors that are easy to make here, each by name (N9), as they would have shown.

use quorate_machine::{Outcome, Refusal};
use quorate_meerkat::{Body, Config, Conflict, Kind, Merged, Reason, RecordKey, Settled};
use quorate_types::{Duration, MemberNumber, NodeId, Role, Timestamp, WriterId, limits};

use crate::packets::Packet;
use crate::support::{Cluster, MLT, WALL, body_bytes, serializable};

#[test]
fn a_lagging_clock_loses_no_update() {
    // N3.4-2. 2's clock is ten seconds behind 1's.
    let ahead = |node: u16| if node == 2 { 0 } else { 10_000_000_000 };
    let mut cluster = Cluster::seeded(3, ahead, u64::from, serializable);
    cluster.run(1, "append=k:a");
    cluster.run_for(Duration::from_millis(300));
    assert_eq!(cluster.run(2, "append=k:b"), [Some("a".to_owned())]);
    cluster.run_for(Duration::from_millis(300));
    cluster.assert_everywhere("k", Some("ab"));
}

#[test]
fn a_lagging_clock_catches_up_with_those_of_idle_nodes() {
    // Nothing but STABLE passes between them, and 2 may be no replica.
    fn elsewhere(config: &mut Config) {
        config.partitions = vec![Some([1, 3].into_iter().map(NodeId).collect())];
    }
    for configure in [serializable, elsewhere] {
        let mut cluster = Cluster::with(3, configure);
        cluster.run_for(Duration::from_millis(300));
        assert_eq!(cluster.counter(1, "clocks_apart"), 0);
        cluster.tell(3, 1, Kind::Stable { stable: WALL + 10_000_000_000 });
        cluster.run_for(Duration::from_millis(1_500));
        for node in [1, 2] {
            assert_eq!(cluster.counter(node, "clocks_apart"), 1, "afterwards {node} follows");
            let lead = cluster.gauge(node, "clock_lead_us");
            assert!((9_600_000..9_800_000).contains(&lead), "{lead} at {node}");
        }
        cluster.submit(2, "write=k:v");
        cluster.take(2, 0, "validate");
        assert!(cluster.last_attempt(2).version > WALL + 10_000_000_000);
    }
}

#[test]
fn a_replica_refuses_a_timestamp_that_is_not_above_what_was_read() {
    // The other half of the same: coordinators may be wrong. At 50 every test of Algorithm 1
    // passes, and the write of version 50 would vanish under version 100.
    let mut cluster = Cluster::new(3);
    let id = |nanos| Timestamp::new(WALL + nanos, WriterId::new(MemberNumber(2), 0));
    let first = body_bytes(&[("k", None, Some("a"))]);
    let body = Body::check(&first).expect("just made");
    let kind = Kind::Validate { id: id(100), stable: 0, participants: 1, body };
    cluster.tell(2, 1, kind);
    cluster.tell(2, 1, Kind::Decided { id: id(100), commit: true, body: None });
    for nanos in [50, 100] {
        let lagging = body_bytes(&[("k", Some(id(100)), Some("ab"))]);
        let body = Body::check(&lagging).expect("just made");
        let late = id(nanos - 1);
        let kind = Kind::Validate { id: late, stable: 0, participants: 1, body };
        cluster.tell(2, 1, kind);
        let refused = Conflict { reason: Reason::TimestampTooLow, with: id(100) };
        assert_eq!(cluster.vote(1, late), Some(Err(refused)), "at {nanos}");
    }
}

#[test]
fn a_commit_that_overtakes_its_validate_leaks_nothing() {
    // N3.5. All of 3's VALIDATEs come after everything else.
    let mut cluster = Cluster::new(3);
    let tag = cluster.submit(1, "append=k:v");
    let late = cluster.take(1, 3, "validate");
    cluster.run_some(Duration::from_millis(70), |packet| packet.kind() != "stable");
    cluster.assert_done(tag);
    for packet in late {
        cluster.inject(&packet);
    }
    for node in 1..=3 {
        assert!(cluster.pending(node, "k").is_empty(), "node {node}");
    }
    assert_eq!(cluster.run(3, "append=k:w"), [Some("v".to_owned())]);
    cluster.run_for(Duration::from_millis(1_500));
    cluster.assert_quiet();
}

#[test]
fn a_replica_that_has_promised_completes_no_fast_quorum() {
    // N4.4. 1 votes OK; 2 and 3, which know nothing of the transaction, promise a view to each
    // other, so a backup must abort it. Then the VALIDATEs arrive.
    let mut cluster = Cluster::new(3);
    let tag = cluster.submit(1, "append=k:v");
    let id = cluster.last_attempt(1);
    let late = cluster.take(1, 0, "validate");
    cluster.tell(2, 3, Kind::Prepare { id, view: 66 });
    cluster.tell(3, 2, Kind::Prepare { id, view: 67 });
    for packet in cluster.take(0, 0, "promise") {
        let Kind::Promise { vote, accepted, .. } = packet.message().kind else { unreachable!() };
        assert_eq!((vote, accepted), (None, None));
    }
    for packet in &late {
        cluster.inject(packet);
    }
    assert!(cluster.take(0, 1, "vote").is_empty());
    cluster.deliver_some(|packet| packet.kind() == "superseded");
    cluster.assert_open(tag);
    // The backup's decision, as it must be.
    for node in [1, 2, 3] {
        let from = if node == 3 { 2 } else { 3 };
        cluster.tell(from, node, Kind::Decided { id, commit: false, body: None });
        assert!(cluster.pending(node, "k").is_empty(), "node {node}");
    }
    cluster.run_for(Duration::from_millis(500));
    assert_eq!(cluster.read_by(tag), [None]);
    cluster.assert_everywhere("k", Some("v"));
    cluster.assert_quiet();
}

#[test]
fn a_superseded_coordinator_guesses_nothing() {
    let mut cluster = Cluster::new(3);
    let tag = cluster.submit(1, "append=k:v");
    let id = cluster.last_attempt(1);
    cluster.deliver(1, 2, "validate");
    cluster.tell(2, 3, Kind::Prepare { id, view: 66 });
    cluster.deliver(1, 3, "validate");
    cluster.deliver(3, 1, "superseded");
    cluster.take(2, 1, "vote");
    cluster.tick(MLT);
    assert!(cluster.take(1, 0, "accept").is_empty(), "view 0 is over");
    cluster.assert_open(tag);
    cluster.run_for(Duration::from_millis(700));
    cluster.assert_done(tag);
    cluster.assert_quiet();
}

/// Three replicas; 1 coordinates, 1 and 2 have said OK, 3 knows nothing. A view with the same
/// members follows, and its leader, 1, has everybody's report.
fn interrupted() -> (Cluster, u64, Timestamp) {
    let mut cluster = Cluster::new(3);
    let tag = cluster.submit(1, "append=k:v");
    let id = cluster.last_attempt(1);
    cluster.deliver(1, 2, "validate");
    cluster.take(1, 3, "validate");
    cluster.take(2, 1, "vote");
    cluster.renew_view();
    cluster.deliver(1, 2, "freeze");
    cluster.deliver(1, 3, "freeze");
    cluster.deliver(2, 1, "frozen");
    cluster.deliver(3, 1, "frozen");
    assert!(matches!(cluster.pool[0].message().kind, Kind::Adopt { part: 0, parts: 1, .. }));
    (cluster, tag, id)
}

#[test]
fn what_one_replica_has_adopted_is_not_acted_on() {
    // N4.2c. 1 has merged the votes to COMMIT and alone keeps that; it may tell nobody, because
    // without it 2's vote is one of two, which is ABORT.
    let (mut cluster, tag, id) = interrupted();
    cluster.assert_open(tag);
    assert_eq!(cluster.stored(1, "k"), None);
    cluster.deliver(1, 2, "adopt");
    cluster.deliver(2, 1, "adopted");
    cluster.assert_open(tag);
    assert_eq!(cluster.stored(2, "k"), None);
    cluster.pool.clear();
    // 1 dies with what it knew; 2 has kept it, and that decides for 3.
    cluster.expel(&[1]);
    cluster.deliver_all();
    for node in [2, 3] {
        assert_eq!(cluster.stored(node, "k").as_deref(), Some("v"), "node {node}");
    }
    assert_eq!(cluster.subject.ledger.ends.get(&id), Some(&true));
}

#[test]
fn what_a_member_has_not_released_is_not_installed_there() {
    // 3 coordinates and dies with both votes for OK. 1 and 2 adopt the COMMIT, 1 is released, and
    // the RELEASE to 2 is lost. Both have long been past the transaction's time, so by their own
    // transactions alone everything up to it would be installed; 1 would forget it, and the next
    // change would bring it to nobody.
    let mut cluster = Cluster::new(3);
    cluster.submit(3, "append=k:v");
    cluster.deliver(3, 1, "validate");
    cluster.deliver(3, 2, "validate");
    for (node, other) in [(1, 2), (2, 1)] {
        cluster.advance(Duration::from_millis(600));
        cluster.tick_node(node);
        cluster.deliver(node, other, "stable");
    }
    cluster.expel(&[3]);
    cluster.deliver_some(|packet| packet.kind() != "release");
    assert_eq!(cluster.stored(1, "k").as_deref(), Some("v"));
    assert_eq!(cluster.stored(2, "k"), None);
    cluster.pool.clear();
    cluster.advance(Duration::from_millis(600));
    cluster.tick_node(1);
    cluster.pool.clear();
    cluster.renew_view();
    cluster.deliver_all();
    for node in [1, 2] {
        assert_eq!(cluster.stored(node, "k").as_deref(), Some("v"), "node {node}");
    }
}

#[test]
#[should_panic(expected = "and differently by the epoch change")]
fn an_epoch_change_that_contradicts_what_a_client_was_told_stops_the_node() {
    let mut cluster = Cluster::new(3);
    let tag = cluster.submit(2, "append=k:v");
    let id = cluster.last_attempt(2);
    cluster.deliver_some(|packet| packet.kind() == "validate" || packet.kind() == "vote");
    cluster.assert_done(tag);
    cluster.renew_view();
    // The test plays the leader.
    let mut merged = Merged::default();
    merged.settled.insert(RecordKey::new(id, 0), Settled { commit: false, body: Vec::new() });
    let mut bytes = Vec::new();
    merged.encode(&mut bytes);
    cluster.tell(1, 2, Kind::Adopt { part: 0, parts: 1, bytes: &bytes });
    cluster.tell(1, 2, Kind::Release);
}

#[test]
fn a_learner_that_missed_a_release_lacks_nothing() {
    // 3 has copied everything when 1 and 2 have said OK to a transaction of 2's, and nobody knows
    // more. 1 alone brings the epoch to an end with COMMIT; 3 adopts that and does not hear of the
    // release. 1 has installed it and keeps no sets, and so 3 is the only one that can bring them to
    // the next change. (Seed 700,988 of the simulator.)
    let mut cluster = Cluster::new(3);
    cluster.expel(&[3]);
    cluster.deliver_all();
    cluster.rejoin(3);
    cluster.deliver_all();
    assert!(cluster.machine(3).is_caught_up());
    cluster.submit(2, "append=k:v");
    cluster.deliver(2, 1, "validate");
    cluster.pool.clear();
    cluster.set_role(2, Role::Down);
    cluster.deliver_some(|packet| packet.kind() != "release");
    assert_eq!(cluster.stored(1, "k").as_deref(), Some("v"));
    assert_eq!(cluster.stored(3, "k"), None);
    cluster.pool.clear();
    cluster.begin_life(2);
    cluster.set_role(2, Role::Shadow);
    cluster.deliver_all();
    for node in 1..=3 {
        assert_eq!(cluster.stored(node, "k").as_deref(), Some("v"), "node {node}");
    }
    assert_eq!(cluster.probes["meerkat: a learner brings what it has not installed"], 1);
}

#[test]
fn what_nobody_else_has_adopted_is_merged_anew() {
    let (mut cluster, tag, id) = interrupted();
    cluster.pool.clear();
    cluster.expel(&[1]);
    cluster.deliver_all();
    cluster.assert_open(tag);
    assert_eq!(cluster.subject.ledger.ends.get(&id), Some(&false), "one OK of two");
    for node in [2, 3] {
        assert_eq!(cluster.stored(node, "k"), None);
        assert!(cluster.pending(node, "k").is_empty());
    }
    assert_eq!(cluster.run(2, "append=k:w"), [None]);
}

#[test]
fn one_that_has_adopted_is_enough_to_go_on() {
    // The leader lives, the others have adopted nothing, and one of them dies.
    let (mut cluster, tag, id) = interrupted();
    cluster.pool.clear();
    cluster.expel(&[2]);
    cluster.deliver_all();
    assert_eq!(cluster.machine(1).stuck(), None);
    cluster.assert_done(tag);
    assert_eq!(cluster.subject.ledger.ends.get(&id), Some(&true));
    cluster.assert_everywhere("k", Some("v"));
}

#[test]
fn a_frozen_replica_accepts_nothing() {
    // N4.2a. 1 proposes COMMIT with the votes of 1 and 2; the ACCEPT to 2 is slow. 2 and 3 hear
    // of a new view, then the ACCEPT arrives: it would complete a slow path that the merge does not
    // see, since 2 may have reported already.
    let mut cluster = Cluster::with(3, serializable);
    let tag = cluster.submit(1, "append=k:v");
    let id = cluster.last_attempt(1);
    cluster.deliver(1, 2, "validate");
    cluster.take(1, 3, "validate");
    cluster.deliver(2, 1, "vote");
    cluster.tick(MLT / 4);
    let late: Vec<Packet> = cluster.take(1, 2, "accept");
    cluster.pool.clear();
    let roles = cluster.roles();
    let view = cluster.decide(&roles);
    cluster.install_on(2, &view);
    cluster.install_on(3, &view);
    cluster.inject(&late[0]);
    // 2's messages reach 1 as if 2 still were in the old epoch.
    for mut packet in cluster.take(2, 1, "accepted") {
        packet.epoch = late[0].epoch;
        cluster.inject(&packet);
    }
    cluster.assert_open(tag);
    assert_eq!(cluster.stored(1, "k"), None);
    // 2 and 3 go on without 1, which has heard of nothing: one OK of two is ABORT.
    let roles = cluster.roles_with(1, Role::Down);
    let view = cluster.decide(&roles);
    cluster.install_on(2, &view);
    cluster.install_on(3, &view);
    cluster.deliver_all();
    assert_eq!(cluster.subject.ledger.ends.get(&id), Some(&false));
    cluster.inject(&late[0]);
    assert!(cluster.take(2, 1, "accepted").is_empty());
    cluster.assert_open(tag);
}

#[test]
fn a_new_life_adopts_nothing_of_the_last_one() {
    // N4.2e. 3 dies and comes back while the ADOPT and the RELEASE for its last life are under
    // way.
    let mut cluster = Cluster::new(3);
    cluster.run(1, "write=k:v");
    cluster.renew_view();
    cluster.deliver_some(|packet| packet.kind() == "freeze" || packet.kind() == "frozen");
    let stale: Vec<Packet> = cluster.take(1, 3, "adopt");
    let mut release = stale[0].clone();
    release.bytes =
        crate::packets::encoded(&quorate_meerkat::Message { partition: 0, kind: Kind::Release });
    cluster.expel(&[3]);
    cluster.deliver_all();
    cluster.start(3, 77);
    for packet in stale.iter().chain([&release]) {
        cluster.inject(packet);
    }
    assert!(!cluster.machine(3).is_normal());
    cluster.set_role(3, Role::Shadow);
    for packet in stale.iter().chain([&release]) {
        cluster.inject(packet);
    }
    assert!(!cluster.machine(3).is_normal() && !cluster.machine(3).is_caught_up());
    cluster.run_for(Duration::from_millis(300));
    cluster.set_role(3, Role::Active);
    cluster.run_for(Duration::from_millis(300));
    assert!(cluster.machine(3).is_normal());
    cluster.assert_everywhere("k", Some("v"));
}

#[test]
fn a_restarted_node_writes_under_ids_of_its_own() {
    // N3.6: a tid that is used twice receives the old transaction's outcome.
    let mut cluster = Cluster::new(3);
    cluster.run(3, "write=k:old");
    let before = cluster.last_attempt(3);
    cluster.expel(&[3]);
    cluster.run_for(Duration::from_millis(100));
    cluster.rejoin(3);
    cluster.run_for(Duration::from_millis(300));
    cluster.set_role(3, Role::Active);
    cluster.run_for(Duration::from_millis(300));
    cluster.run(3, "write=k:new");
    let after = cluster.last_attempt(3);
    assert!(after > before && after.writer != before.writer);
    cluster.run_for(Duration::from_millis(300));
    cluster.assert_everywhere("k", Some("new"));
}

#[test]
fn a_transaction_that_was_trimmed_is_not_aborted_by_those_who_forgot_it() {
    // N4.5. Every replica has installed it and dropped its record; 3's takeover, late, finds
    // nobody who knows it, and must not take that for an abort.
    let mut cluster = Cluster::new(3);
    cluster.run(1, "append=k:v");
    let id = cluster.last_attempt(1);
    cluster.run_for(Duration::from_millis(300));
    cluster.assert_quiet();
    for (from, to) in [(3, 1), (3, 2), (2, 3)] {
        cluster.tell(from, to, Kind::Prepare { id, view: 64 + u64::from(from) });
    }
    assert!(cluster.take(0, 0, "promise").is_empty());
    cluster.assert_quiet();
    cluster.assert_everywhere("k", Some("v"));
}

#[test]
fn what_committed_reaches_who_missed_it_when_its_coordinator_dies() {
    // 3 hears of nothing; 1 and 2 decide on the slow path and have installed it.
    let mut cluster = Cluster::with(3, serializable);
    let tag = cluster.submit(1, "append=k:v");
    cluster.run_some(Duration::from_millis(15), |packet| packet.to.0 != 3);
    cluster.assert_done(tag);
    assert_eq!(cluster.stored(2, "k").as_deref(), Some("v"));
    assert_eq!(cluster.stored(3, "k"), None);
    cluster.expel(&[1]);
    cluster.deliver_all();
    cluster.assert_everywhere("k", Some("v"));
    assert_eq!(cluster.run(3, "append=k:w"), [Some("v".to_owned())]);
}

#[test]
fn timestamps_of_one_moment_follow_real_time() {
    // Both clocks show the same nanosecond, and the larger writer commits first.
    let mut cluster = Cluster::new(3);
    cluster.run(3, "write=k:first");
    cluster.run(1, "write=k:second");
    assert!(cluster.last_attempt(1) > cluster.last_attempt(3));
    cluster.assert_everywhere("k", Some("second"));
}

#[test]
fn an_epoch_that_interrupts_a_takeover_ends_it() {
    let mut cluster = Cluster::new(3);
    cluster.submit(1, "write=k:v");
    let id = cluster.last_attempt(1);
    cluster.deliver(1, 2, "validate");
    cluster.deliver(1, 3, "validate");
    cluster.crash(1);
    cluster.pool.clear();
    // 2 takes over and gets no answer before the view comes.
    cluster.run_some(Duration::from_millis(320), |_| false);
    assert!(cluster.probed("meerkat: backup coordinator takes over") > 0);
    let late = cluster.take(0, 0, "any");
    cluster.expel(&[1]);
    cluster.deliver_all();
    for packet in &late {
        cluster.inject(packet);
    }
    cluster.run_for(Duration::from_millis(500));
    assert_eq!(cluster.subject.ledger.ends.get(&id), Some(&true), "both had said OK");
    cluster.assert_everywhere("k", Some("v"));
    cluster.assert_quiet();
}

/// With one replica that has all data, one that is still copying and one that is down, nothing may
/// be answered: losing the first would lose it.
#[test]
fn a_replica_alone_decides_nothing() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, "write=k:old");
    cluster.expel(&[2]);
    cluster.deliver_all();
    let no_copying = |packet: &Packet| !["chunk", "chunk_read"].contains(&packet.kind());
    cluster.rejoin(2);
    cluster.deliver_some(no_copying);
    cluster.expel(&[3]);
    cluster.deliver_some(no_copying);
    for text in ["write=k:new", "read=k"] {
        let tag = cluster.submit(1, text);
        let refused = Outcome::Refused(Refusal::NotServing);
        assert_eq!(cluster.outcome(tag), Some(&refused), "{text}");
    }
    // Once the copy is whole there are two that can.
    cluster.deliver_all();
    cluster.install(&[(1, Role::Active), (2, Role::Active), (3, Role::Down)]);
    cluster.run_for(Duration::from_millis(300));
    assert_eq!(cluster.run(1, "append=k:er"), [Some("old".to_owned())]);
}

#[test]
fn who_waits_behind_a_loser_has_not_lost() {
    // Eight clients of one node want one key, and the other replicas refuse what they send. The
    // seven who wait for the first and pause with it have used up no attempt; one at a time does.
    let patient =
        |config: &mut quorate_meerkat::Config| config.op_timeout = Duration::from_secs(60);
    let mut cluster = Cluster::with(3, patient);
    let tags: Vec<u64> = (0..8).map(|_| cluster.submit(1, "append=k:v")).collect();
    let refused = Err(Conflict { reason: Reason::StaleRead, with: Timestamp::ZERO });
    let mut losses = 0;
    while losses < 2 * limits::TXN_ATTEMPTS_MAX {
        cluster.tick(Duration::from_micros(50));
        let asked: Vec<Packet> = cluster.take(1, 2, "validate");
        cluster.pool.clear();
        for packet in asked {
            let Kind::Validate { id, .. } = packet.message().kind else { unreachable!() };
            cluster.tell(2, 1, Kind::Vote { id, vote: refused });
            cluster.tell(3, 1, Kind::Vote { id, vote: refused });
            losses += 1;
        }
    }
    let refused = |tag: &&u64| {
        let outcome = cluster.outcome(**tag);
        outcome.inspect(|outcome| assert_eq!(**outcome, Outcome::Refused(Refusal::Conflict)));
        outcome.is_some()
    };
    assert_eq!(tags.iter().filter(refused).count(), 2);
}

/// Two nodes want one key, and the one that wins has the next transaction ready at once.
#[test]
fn a_winner_leaves_the_others_their_turn() {
    let mut cluster = Cluster::new(3);
    let first = cluster.submit(1, "append=k:a");
    let second = cluster.submit(2, "append=k:b");
    cluster.deliver(1, 3, "validate");
    cluster.tick(Duration::from_millis(1));
    cluster.deliver_all();
    [first, second].iter().for_each(|tag| cluster.assert_done(*tag));
    let third = cluster.submit(1, "append=k:c");
    let fourth = cluster.submit(1, "append=k:d");
    assert_eq!(cluster.take(1, 0, "validate").len(), 0, "the others have their turn");
    cluster.run_for(Duration::from_millis(20));
    [third, fourth].iter().for_each(|tag| cluster.assert_done(*tag));
    cluster.assert_everywhere("k", Some("abcd"));
    // Nobody else wants it: the next one begins at once.
    let fifth = cluster.submit(1, "append=k:e");
    cluster.deliver_all();
    cluster.assert_done(fifth);
}

/// However many wait for a key, an attempt has so many transactions at most.
#[test]
fn transactions_that_share_an_attempt_are_bounded() {
    let mut cluster = Cluster::new(3);
    let tags: Vec<u64> = (0..301).map(|_| cluster.submit(1, "append=k:a")).collect();
    cluster.deliver_all();
    tags.iter().for_each(|tag| cluster.assert_done(*tag));
    let sent = cluster.fresh_packets.iter();
    let attempts = sent.filter(|packet| packet.is(1, 2, "validate")).count();
    assert_eq!(attempts, 3, "the first, 256, and 44");
}

/// A replica that votes and never acknowledges makes its coordinators keep what they have decided:
/// so much, and no more.
#[test]
fn what_is_not_acknowledged_is_bounded() {
    let bounded = |config: &mut Config| config.pending_max = 20;
    let mut cluster = Cluster::seeded(3, |_| 0, u64::from, bounded);
    let run = |cluster: &mut Cluster, number: usize| {
        let tag = cluster.submit(1, &format!("write=k{number}:v"));
        cluster.deliver_some(|packet| ["validate", "vote"].contains(&packet.kind()));
        cluster.outcome(tag).cloned()
    };
    for number in 0..20 {
        assert!(matches!(run(&mut cluster, number), Some(Outcome::Done(_))));
    }
    assert_eq!(run(&mut cluster, 20), Some(Outcome::Refused(Refusal::Busy)));
    cluster.run_for(Duration::from_millis(100));
    assert!(matches!(run(&mut cluster, 20), Some(Outcome::Done(_))));
}

/// Three replicas; 3 coordinates and has told its client that a transaction committed, and nobody
/// else. Then it is expelled, and 2 after it, before 1 and 2 are through with the change.
fn expelled_in_turn() -> Cluster {
    let mut cluster = Cluster::new(3);
    let tag = cluster.submit(3, "append=k:v");
    cluster.deliver(3, 1, "validate");
    cluster.deliver(3, 2, "validate");
    cluster.deliver(1, 3, "vote");
    cluster.deliver(2, 3, "vote");
    cluster.assert_done(tag);
    cluster.pool.clear();
    cluster.set_role(3, Role::Down);
    cluster.pool.clear();
    cluster.set_role(2, Role::Down);
    cluster.deliver_all();
    assert!(cluster.machine(1).stuck().is_some(), "one of three knows too little");
    cluster
}

#[test]
fn an_expelled_process_remembers() {
    let mut cluster = expelled_in_turn();
    cluster.begin_life(3);
    cluster.set_role(3, Role::Shadow);
    cluster.deliver_all();
    assert_eq!(cluster.machine(1).stuck(), None);
    assert_eq!(cluster.stored(1, "k").as_deref(), Some("v"));
    assert_eq!(cluster.probes["meerkat: merged with the report of a former life"], 1);
}

#[test]
fn a_second_expulsion_takes_nothing_from_the_first_life() {
    let mut cluster = expelled_in_turn();
    // 3 is admitted and expelled again before it has learnt anything; once before it hears of it.
    cluster.begin_life(3);
    let roles = cluster.roles_with(3, Role::Shadow);
    let view = cluster.decide(&roles);
    cluster.install_on(3, &view);
    cluster.set_role(3, Role::Down);
    cluster.begin_life(3);
    cluster.begin_life(3);
    cluster.set_role(3, Role::Shadow);
    cluster.deliver_all();
    assert_eq!(cluster.machine(1).stuck(), None);
    assert_eq!(cluster.stored(1, "k").as_deref(), Some("v"));
}

#[test]
fn a_restarted_process_reports_nothing() {
    // 1 and 2 have adopted a change that 3 took no part in, and worked in it. 2 loses its memory
    // while 3, started anew, is a learner: if its ignorance counted, 1 would take what it keeps for
    // all there is.
    let mut cluster = expelled_in_turn();
    for node in [3, 2] {
        cluster.crash(node);
        cluster.start(node, 5);
        cluster.set_role(node, Role::Shadow);
        cluster.deliver_all();
        assert!(cluster.machine(1).stuck().is_some(), "two of three have lost their memory");
        assert!(!cluster.machine(1).is_normal());
    }
}

#[test]
fn a_superseded_coordinator_guesses_no_end() {
    // N4.4. 1 hears one vote and proposes COMMIT, which is late. 2 takes over and gets COMMIT
    // accepted, which it does not know yet, when 1 learns from 3 that it has been superseded. If 1
    // took that for an ABORT, there would be two ends.
    let mut cluster = Cluster::new(3);
    let tag = cluster.submit(1, "append=k:v");
    let id = cluster.last_attempt(1);
    cluster.deliver(1, 2, "validate");
    cluster.deliver(1, 3, "validate");
    cluster.deliver(2, 1, "vote");
    cluster.advance(MLT);
    cluster.tick_node(1);
    let late = cluster.take(1, 3, "accept");
    while !cluster.pool.iter().any(|packet| packet.is(2, 3, "prepare")) {
        cluster.pool.clear();
        cluster.advance(MLT);
        cluster.tick_node(2);
    }
    for (from, to, kind) in [(2, 3, "prepare"), (3, 2, "promise"), (2, 3, "accept")] {
        cluster.deliver(from, to, kind);
    }
    let accepted = cluster.take(3, 2, "accepted");
    cluster.inject(&late[0]);
    cluster.deliver(3, 1, "superseded");
    cluster.assert_open(tag);
    cluster.inject(&accepted[0]);
    cluster.deliver_all();
    assert_eq!(cluster.subject.ledger.ends.get(&id), Some(&true));
    cluster.assert_done(tag);
    cluster.assert_everywhere("k", Some("v"));
}

/// WATCH compares versions: as long as nobody touches the key, every read must show the same one.
#[test]
fn a_read_of_an_expired_value_shows_the_version_of_its_deletion() {
    use quorate_machine::{Content, Record as _, Table as _, ValueKind};
    let mut cluster = Cluster::new(3);
    cluster.run(1, "write=k:v");
    for node in 1..=3 {
        let mut record = cluster.machine(node).table_mut().lock_key(b"k", 0);
        let expire_at = Some(quorate_types::UnixMillis(1));
        record.set_content(Content { bytes: b"v", kind: ValueKind::String, expire_at });
    }
    let tag = cluster.submit(1, "read=k");
    cluster.deliver_all();
    let Some(quorate_machine::Outcome::Done(seen)) = cluster.outcome(tag) else {
        panic!("{:?}", cluster.outcome(tag))
    };
    let (version, value) = (seen[0].version, seen[0].value.clone());
    assert_eq!(value, None);
    cluster.assert_everywhere("k", None);
    for node in 1..=3 {
        assert_eq!(cluster.meta(node, "k").wts, version, "the deletion's, at node {node}");
    }
}

/// A replica that has not heard of a decision holds something old: a watch that fails by it failed
/// for nothing.
#[test]
fn what_is_abandoned_without_a_replica_rests_on_no_lost_decision() {
    let mut cluster = Cluster::with(5, |config| {
        let group = |nodes: [u16; 3]| Some(nodes.into_iter().map(NodeId).collect());
        config.partitions = vec![group([1, 2, 3]), group([3, 4, 5])];
    });
    let mut keys = (0..).map(|n| format!("k{n}"));
    let key = keys.find(|key| !cluster.holds(1, key)).expect("half of all keys are away");
    cluster.run(3, &format!("write={key}:old"));
    let deletion = cluster.submit(3, &format!("del={key}"));
    cluster.deliver_some(|packet| packet.kind() != "decided");
    cluster.pool.clear();
    cluster.assert_done(deletion);
    assert_eq!(cluster.stored(4, &key).as_deref(), Some("old"));
    let tag = cluster.submit(1, &format!("unless={key} write={key}:new"));
    while !cluster.pool.iter().any(|packet| packet.is(1, 4, "get")) {
        cluster.pool.clear();
        cluster.advance(MLT);
        cluster.tick_node(1);
    }
    cluster.run_for(Duration::from_millis(500));
    cluster.assert_done(tag);
    cluster.assert_quiet();
    assert_eq!(cluster.stored(5, &key).as_deref(), Some("new"));
}
