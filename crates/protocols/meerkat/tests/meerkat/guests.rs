//! Guests: coordinators without a replica.

use quorate_harness::{Host, Logs};
use quorate_machine::{Content, MapTable, Outcome, Record as _, Refusal, Table, ValueKind};
use quorate_meerkat::{Body, Config, Item, Kind, Meerkat, Write};
use quorate_types::{Duration, Incarnation, LaneId, NodeId, Role, Timestamp, WriterId, limits};

use crate::calls::two_partitions;
use crate::packets::{Packet, id_of};
use crate::support::{Cluster, MLT, Replicas, body_bytes};

/// Under which the nodes reach the guest.
pub(crate) const GUEST: u16 = 63;

/// So many nodes, and a guest that has its id from the first of them.
fn with_guest(count: u16) -> Cluster {
    with_guest_of(Cluster::new(count), |_| {})
}

pub(crate) fn with_guest_of(mut cluster: Cluster, configure: fn(&mut Config)) -> Cluster {
    cluster.let_in(0, configure);
    cluster
}

impl Cluster {
    /// Lets the guest in that has this id of the first node's; if there was one before, its stay is over.
    pub(crate) fn let_in(&mut self, number: u8, configure: fn(&mut Config)) -> WriterId {
        let first = self.view.members[0].number;
        let writer = WriterId::guest(first, number).expect("an id that is free");
        let incarnation = Incarnation(1_000_000 + u64::from(number));
        let mut config = Config {
            message_loss_timeout: MLT,
            guest: Some(writer),
            ..Config::new(NodeId(GUEST), incarnation, LaneId(0), 1, 99 + u64::from(number))
        };
        configure(&mut config);
        let machine = Meerkat::new(config, MapTable::default());
        let mut host = Host::new(vec![machine], incarnation);
        // Its own wall clock is 1970: what time it is, the nodes tell.
        host.clock.ahead = -(self.now.unix.0 as i64);
        let up = self.hosts.iter().filter(|(node, host)| host.up && **node != GUEST);
        let nodes: Vec<u16> = up.map(|(node, _)| *node).collect();
        self.hosts.insert(GUEST, host);
        for node in nodes {
            self.machine(node).guest_left(NodeId(GUEST));
            self.machine(node).guest_joined(writer, NodeId(GUEST));
        }
        let view = self.view.clone();
        self.install_on(GUEST, &view);
        writer
    }

    /// The guest begins a transaction and has everything but the votes; returns its id.
    pub(crate) fn begin(&mut self, text: &str) -> (u64, Timestamp) {
        let tag = self.submit(GUEST, text);
        self.deliver_some(|packet| packet.is(0, 0, "get") || packet.is(0, 0, "values"));
        let validate = self.pool.iter().find(|packet| packet.is(GUEST, 0, "validate"));
        let id = id_of(&validate.expect("it validates").message().kind).expect("it has an id");
        (tag, id)
    }

    /// Nothing is left of any transaction, except how those of guests ended, as long as they live.
    pub(crate) fn assert_settled(&mut self) {
        for node in self.live() {
            let records = self.machine(node).records();
            assert!(records.iter().all(|(_, record)| record.decision.is_some()), "{records:?}");
            assert!(self.pending(node, "k").is_empty());
        }
        assert_eq!(self.machine(GUEST).pending(), 0);
    }
}

#[test]
fn a_guest_commits_and_is_told_what_time_it_is() {
    let mut cluster = with_guest(3);
    cluster.run(1, "write=k:a");
    let first = cluster.last_attempt(1);
    let tag = cluster.submit(GUEST, "append=k:b write=l:c");
    cluster.deliver_all();
    assert_eq!(cluster.read_by(tag), [Some("a")]);
    cluster.assert_everywhere("k", Some("ab"));
    cluster.assert_everywhere("l", Some("c"));
    assert!(cluster.meta(1, "k").wts > first, "its own clock stands at 0");
    assert_eq!(cluster.run(2, "read=k"), [Some("ab".to_owned())]);
    assert_eq!(cluster.run(GUEST, "read=l read=nothing"), [Some("c".to_owned()), None]);
    assert_eq!(cluster.run(GUEST, "write=k:d del=l"), []);
    cluster.assert_everywhere("k", Some("d"));
    cluster.run_for(Duration::from_secs(6));
    cluster.assert_quiet();
}

#[test]
fn the_replicas_finish_what_a_dead_guest_has_begun() {
    for (asked, commit) in [(1, false), (2, true), (3, true)] {
        let mut cluster = with_guest(3);
        let (_, id) = cluster.begin("append=k:v");
        for node in 1..=asked {
            cluster.deliver(GUEST, node, "validate");
        }
        cluster.crash(GUEST);
        cluster.pool.clear();
        for node in 1..=3 {
            cluster.machine(node).guest_left(NodeId(GUEST));
        }
        assert!(!cluster.pending(1, "k").is_empty());
        cluster.run_for(Duration::from_millis(800));
        for node in 1..=3 {
            let known = cluster.decision(node, id);
            assert!(
                known == Some(commit) || (known.is_none() && !commit),
                "node {node}: {known:?}"
            );
            assert!(cluster.pending(node, "k").is_empty(), "node {node} after {asked}");
        }
        cluster.assert_everywhere("k", commit.then_some("v"));
        cluster.run(2, "append=k:w");
        // Nobody will ask how it ended: that is forgotten in the end.
        cluster.run_for(Duration::from_secs(70));
        cluster.assert_quiet();
    }
}

#[test]
fn what_a_dead_guest_did_is_kept_for_who_copies() {
    // The replicas finish what a guest began, and 3, which has copied everything before, is not told:
    // the replica that takes over says it once. It copies other partitions for longer than the ends of dead
    // guests' transactions are remembered for their own sake.
    let mut cluster = with_guest(3);
    cluster.expel(&[3]);
    cluster.deliver_all();
    cluster.rejoin(3);
    cluster.deliver_all();
    assert!(cluster.machine(3).is_caught_up());
    cluster.begin("append=k:v");
    cluster.deliver(GUEST, 1, "validate");
    cluster.deliver(GUEST, 2, "validate");
    cluster.crash(GUEST);
    cluster.pool.clear();
    for node in [1, 2] {
        cluster.machine(node).guest_left(NodeId(GUEST));
    }
    cluster.run_some(Duration::from_millis(800), |packet| !packet.is(0, 3, "decided"));
    assert_eq!(cluster.stored(1, "k").as_deref(), Some("v"));
    assert_eq!(cluster.stored(3, "k"), None);
    cluster.run_for(Duration::from_secs(70));
    cluster.set_role(3, Role::Active);
    cluster.run_for(Duration::from_millis(100));
    cluster.assert_everywhere("k", Some("v"));
    cluster.run_for(Duration::from_secs(70));
    cluster.assert_quiet();
}

#[test]
fn a_guest_learns_what_the_replicas_have_decided_for_it() {
    let mut cluster = with_guest(3);
    let (tag, id) = cluster.begin("append=k:v");
    cluster.deliver(GUEST, 1, "validate");
    cluster.deliver(GUEST, 2, "validate");
    // It hears nothing; the others finish it.
    let among_nodes = |from: NodeId, to: NodeId| from.0 != GUEST && to.0 != GUEST;
    cluster.run_some(Duration::from_millis(500), |packet| among_nodes(packet.from, packet.to));
    assert_eq!(cluster.decision(3, id), Some(true));
    cluster.assert_open(tag);
    cluster.run_for(Duration::from_millis(200));
    cluster.assert_done(tag);
    cluster.assert_everywhere("k", Some("v"));
    cluster.run_for(Duration::from_secs(2));
    cluster.assert_settled();
}

#[test]
fn a_guest_takes_nothing_for_aborted_that_an_epoch_change_may_have_committed() {
    // 1 and 2 are left of three, and have voted OK; then 1 alone. It commits, since 2 may have been
    // the other half of a fast quorum. The guest hears of the view only: alone, 1 can decide nothing
    // more, which says nothing of what the change has decided.
    let mut cluster = with_guest(3);
    cluster.expel(&[3]);
    cluster.deliver_all();
    let (tag, id) = cluster.begin("append=k:v");
    cluster.deliver(GUEST, 1, "validate");
    cluster.deliver(GUEST, 2, "validate");
    cluster.pool.clear();
    cluster.expel(&[2]);
    assert_eq!(cluster.stored(1, "k").as_deref(), Some("v"));
    assert_eq!(cluster.subject.ledger.ends.get(&id), Some(&true));
    cluster.assert_open(tag);
    cluster.deliver_all();
    cluster.assert_done(tag);
}

#[test]
fn a_guest_and_a_node_that_meet_both_get_through() {
    let mut cluster = with_guest(3);
    let (guest, _) = cluster.begin("append=k:g");
    let node = cluster.submit(2, "append=k:n");
    cluster.run_for(Duration::from_secs(1));
    cluster.assert_done(guest);
    cluster.assert_done(node);
    let value = cluster.stored(1, "k").unwrap();
    assert!(value == "gn" || value == "ng", "{value}");
    cluster.assert_everywhere("k", Some(&value));
    cluster.run_for(Duration::from_secs(2));
    cluster.assert_settled();
}

#[test]
fn a_transaction_of_a_guest_outlives_a_view_change_and_happens_once() {
    // What arrives before the change, and who learns of the new view last.
    for asked in 0..=3 {
        for guest_is_late in [false, true] {
            let mut cluster = with_guest(3);
            let (tag, _) = cluster.begin("append=k:v");
            for node in 1..=asked {
                cluster.deliver(GUEST, node, "validate");
            }
            cluster.crash(1);
            let view = cluster.decide(&[(1, Role::Down), (2, Role::Active), (3, Role::Active)]);
            for node in [2, 3] {
                cluster.install_on(node, &view);
            }
            if guest_is_late {
                cluster.run_for(Duration::from_millis(100));
                cluster.install_on(GUEST, &view);
            } else {
                cluster.install_on(GUEST, &view);
                cluster.deliver_all();
            }
            cluster.run_for(Duration::from_secs(1));
            cluster.assert_done(tag);
            cluster.assert_everywhere("k", Some("v"));
            let again = cluster.run(GUEST, "append=k:w");
            assert_eq!(again, [Some("v".to_owned())]);
            cluster.run_for(Duration::from_secs(3));
            cluster.assert_settled();
        }
    }
}

/// Nobody has heard of its end before the change, which finds the votes.
#[test]
fn the_end_of_a_guests_transaction_outlives_a_view_change() {
    let mut cluster = with_guest(3);
    let (tag, id) = cluster.begin("append=k:v");
    cluster.deliver_some(|packet| packet.is(0, 0, "validate") || packet.is(0, 0, "vote"));
    cluster.assert_done(tag);
    cluster.pool.clear();
    cluster.expel(&[3]);
    cluster.run_for(Duration::from_secs(6));
    for node in [1, 2] {
        assert_eq!(cluster.stored(node, "k").as_deref(), Some("v"));
        assert!(cluster.record(node, id).is_none(), "it is over on all replicas");
    }
    cluster.assert_settled();
}

/// The guest hears of its commit only after the change, and so does, from the guest, who has joined with
/// that: it asks the others what was committed, and is answered with it. Two nodes that know of a commit and
/// not of what it did once asked and answered each other without end.
#[test]
fn the_end_of_a_guests_transaction_is_told_to_who_has_joined_since() {
    let mut cluster = with_guest(3);
    cluster.expel(&[3]);
    cluster.deliver_all();
    let (tag, id) = cluster.begin("append=k:v");
    cluster.deliver_some(|packet| packet.is(0, 0, "validate"));
    cluster.pool.clear();
    cluster.rejoin(3);
    cluster.machine(3).guest_joined(id.writer, NodeId(GUEST));
    cluster.assert_open(tag);
    cluster.run_for(Duration::from_secs(1));
    cluster.assert_done(tag);
    assert_eq!(cluster.gauge(GUEST, "attempts"), 0, "everybody knows its end, 3 as well");
    cluster.set_role(3, Role::Active);
    cluster.run_for(Duration::from_secs(6));
    cluster.assert_everywhere("k", Some("v"));
    assert!(cluster.record(1, id).is_none(), "it is over on all replicas");
    cluster.assert_settled();
}

#[test]
fn a_guest_that_has_missed_an_epoch_answers_nothing() {
    let mut cluster = with_guest(3);
    let view = cluster.decide(&[(1, Role::Active), (2, Role::Active), (3, Role::Active)]);
    for node in 1..=3 {
        cluster.install_on(node, &view);
    }
    cluster.deliver_all();
    let tag = cluster.submit(GUEST, "read=k");
    cluster.run_for(Duration::from_millis(500));
    cluster.assert_open(tag);
    cluster.install_on(GUEST, &view);
    cluster.run_for(Duration::from_millis(500));
    cluster.assert_done(tag);
}

#[test]
fn a_guest_cut_off_is_told_that_it_does_not_know() {
    let mut cluster = with_guest(3);
    let (unknown, _) = cluster.begin("append=k:v");
    let read = cluster.submit(GUEST, "read=l");
    cluster
        .run_some(Duration::from_secs(3), |packet| packet.from.0 != GUEST && packet.to.0 != GUEST);
    assert_eq!(cluster.outcome(unknown), Some(&Outcome::Unknown));
    assert!(matches!(cluster.outcome(read), Some(Outcome::Refused(_))));
    cluster.run_for(Duration::from_secs(2));
    cluster.assert_settled();
}

/// Replicas vote against what a guest begins late, since others may have forgotten its end. Once they
/// were silent, and the guest asked for ever.
#[test]
fn what_a_guest_was_held_up_with_for_too_long_aborts() {
    let mut cluster = with_guest(3);
    let (tag, id) = cluster.begin("append=k:v");
    cluster.run_some(Duration::from_secs(2), |packet| !packet.is(GUEST, 0, "any"));
    assert_eq!(cluster.outcome(tag), Some(&Outcome::Unknown));
    cluster.run_for(Duration::from_secs(6));
    let attempts = |(name, count)| (name == "attempts").then_some(count);
    let gauges = cluster.machine(GUEST).gauges();
    assert_eq!(gauges.into_iter().find_map(attempts), Some(0));
    assert_eq!(cluster.subject.ledger.ends.get(&id), Some(&false));
    cluster.assert_everywhere("k", None);
    assert_eq!(cluster.run(GUEST, "append=k:w"), [None]);
    cluster.assert_settled();
}

/// A guest is refused, and replica 3 has heard nothing of its transaction when it is told of the abort. It is
/// too late to begin one under that timestamp, and nobody of the others reaches it, who might know more.
#[test]
fn a_late_abort_is_acknowledged_by_a_replica_that_has_not_heard_of_the_transaction() {
    // It does not try again.
    let hasty = |config: &mut Config| config.op_timeout = Duration::from_micros(1);
    let mut cluster = with_guest_of(Cluster::new(3), hasty);
    let (tag, id) = cluster.begin("append=k:v");
    cluster.submit(2, "write=k:w");
    cluster.deliver_some(|packet| packet.from.0 != GUEST && packet.to.0 != GUEST);
    cluster.take(GUEST, 3, "any");
    let reaches_3 = |packet: &Packet| packet.is(3, 0, "any") || packet.is(0, 3, "any");
    cluster.run_some(Duration::from_secs(2), |packet| !reaches_3(packet));
    assert!(matches!(cluster.outcome(tag), Some(Outcome::Refused(_) | Outcome::Unknown)));
    assert!(cluster.record(3, id).is_none());
    assert_eq!(cluster.gauge(GUEST, "attempts"), 1);
    let between = |packet: &Packet| packet.is(3, GUEST, "any") || packet.is(GUEST, 3, "any");
    cluster.run_some(Duration::from_secs(2), |packet| !reaches_3(packet) || between(packet));
    assert_eq!(cluster.gauge(GUEST, "attempts"), 0, "everybody has acknowledged the abort");
    cluster.run_for(Duration::from_secs(6));
    cluster.assert_everywhere("k", Some("w"));
    cluster.assert_settled();
}

/// A guest is refused, and all nodes lose power. No vote against a transaction is on disk, so nobody
/// knows of it any more. Once the guest told them of the abort for ever: they took it for one that they
/// might have forgotten, and asked each other whether it had committed.
#[test]
fn an_abort_that_no_replica_knows_of_any_more_is_over() {
    let replicas = Replicas { logs: Logs::Sync, ..Replicas::new(1, |_| {}) };
    let mut cluster = with_guest_of(Cluster::of(replicas, 3, |_| 0, u64::from), |_| {});
    let (tag, id) = cluster.begin("append=k:v");
    cluster.submit(2, "write=k:w");
    cluster.deliver_some(|packet| packet.from.0 != GUEST && packet.to.0 != GUEST);
    cluster.deliver_some(|packet| packet.is(GUEST, 0, "validate") || packet.is(0, GUEST, "vote"));
    assert!(cluster.pool.iter().any(|packet| packet.is(GUEST, 0, "decided")));
    assert_eq!(cluster.gauge(GUEST, "attempts"), 1);
    cluster.pool.clear();
    for node in 1..=3 {
        cluster.cut_power_unflushed(node);
        cluster.restart(node, 100 + u64::from(node));
        cluster.machine(node).guest_joined(id.writer, NodeId(GUEST));
    }
    cluster.renew_view();
    // The guest is cut off until it is late.
    cluster.run_some(Duration::from_secs(2), |packet| !packet.is(GUEST, 0, "any"));
    (1..=3).for_each(|node| assert!(cluster.record(node, id).is_none()));
    assert!(matches!(cluster.outcome(tag), Some(Outcome::Refused(_))));
    cluster.run_for(Duration::from_secs(6));
    assert_eq!(cluster.gauge(GUEST, "attempts"), 0);
    cluster.assert_everywhere("k", Some("w"));
    assert_eq!(cluster.run(GUEST, "append=k:x"), [Some("w".to_owned())]);
    cluster.run_for(Duration::from_secs(6));
    cluster.assert_quiet();
}

#[test]
fn a_guest_speaks_for_itself_only() {
    let mut cluster = with_guest(3);
    cluster.submit(1, "write=k:v");
    let id = cluster.last_attempt(1);
    cluster.deliver(1, 2, "validate");
    cluster.tell(GUEST, 2, Kind::Decided { id, commit: false, body: None });
    assert_eq!(cluster.decision(2, id), None);
    let (_, own) = cluster.begin("append=other:v");
    cluster.deliver(GUEST, 2, "validate");
    // What a correct guest never says harms nobody else.
    assert!(cluster.lie(GUEST, 2, Kind::Stable { stable: u64::MAX }).is_some());
    cluster.tell(GUEST, 2, Kind::Stable { stable: own.version });
    assert_eq!(cluster.decision(2, own), None);
    cluster.tell(GUEST, 2, Kind::Decided { id: own, commit: true, body: None });
    let two = cluster.lie(GUEST, 2, Kind::Decided { id: own, commit: false, body: None });
    assert_eq!(two, Some("meerkat: a guest that knows two ends of its transaction"));
    assert_eq!(cluster.decision(2, own), Some(true));
    let before = cluster.ignored["meerkat: message of no live member"];
    cluster.tell(GUEST, 2, Kind::Prepare { id: own, view: 64 });
    assert_eq!(cluster.ignored["meerkat: message of no live member"], before + 1);
}

/// A node announces what is below its guests' transactions, and nothing is below that one.
#[test]
fn a_transaction_without_a_timestamp_is_refused_whoever_names_it() {
    let mut cluster = with_guest(3);
    let writer = WriterId::guest(cluster.view.members[0].number, 0).expect("the first id is free");
    let id = Timestamp::new(0, writer);
    let why = Some("meerkat: a transaction without a timestamp");
    assert_eq!(cluster.lie(2, 1, Kind::Prepare { id, view: 64 + 2 }), why);
    assert_eq!(cluster.lie(2, 1, Kind::Decided { id, commit: true, body: None }), why);
    assert_eq!(cluster.lie(GUEST, 1, Kind::Decided { id, commit: false, body: None }), why);
    cluster.run_for(Duration::from_millis(100));
}

/// What a guest says to one node and to another, of a transaction that all three said OK to: it has
/// one end, the same everywhere.
#[test]
fn a_guest_that_tells_two_replicas_different_ends_is_settled_among_them() {
    for (told_first, told_second) in [(true, false), (false, true), (false, false)] {
        let mut cluster = with_guest(3);
        let (_, id) = cluster.begin("append=k:v");
        for node in 1..=3 {
            cluster.deliver(GUEST, node, "validate");
        }
        cluster.pool.clear();
        let end = |commit| Kind::Decided { id, commit, body: None };
        cluster.tell(GUEST, 1, end(told_first));
        cluster.tell(GUEST, 2, end(told_second));
        assert!(cluster.pending(1, "k").is_empty() && cluster.pending(2, "k").is_empty());
        let once = [told_first, told_second].map(|commit| commit.then_some(true));
        assert_eq!([cluster.decision(1, id), cluster.decision(2, id)], once, "an abort is open");
        // It says nothing more.
        cluster.crash(GUEST);
        cluster.pool.clear();
        (1..=3).for_each(|node| cluster.machine(node).guest_left(NodeId(GUEST)));
        cluster.run_for(Duration::from_secs(1));
        let commit = told_first || told_second;
        for node in 1..=3 {
            assert_eq!(cluster.decision(node, id), Some(commit), "node {node}");
        }
        cluster.assert_everywhere("k", commit.then_some("v"));
        cluster.run(2, "append=k:w");
    }
}

/// What a guest's transaction does is what it told the one that is asked first: the others do the
/// same, whatever they were told.
#[test]
fn a_guest_that_tells_two_replicas_different_sets_does_one_thing() {
    for takes_word in [None, Some(2), Some(3)] {
        let mut cluster = with_guest(3);
        let (_, id) = cluster.begin("append=k:v");
        cluster.pool.clear();
        cluster.lies = true;
        let told = [("k", "one"), ("a", "two"), ("b", "three")];
        for (node, (key, value)) in (1..).zip(told) {
            let bytes = body_bytes(&[(key, None, Some(value))]);
            let body = Body::check(&bytes).expect("just written");
            let kind = Kind::Validate { id, stable: 0, participants: 1, body };
            cluster.tell(GUEST, node, kind);
        }
        if let Some(node) = takes_word {
            cluster.tell(GUEST, node, Kind::Decided { id, commit: true, body: None });
        }
        cluster.crash(GUEST);
        cluster.pool.clear();
        (1..=3).for_each(|node| cluster.machine(node).guest_left(NodeId(GUEST)));
        cluster.run_for(Duration::from_secs(1));
        let done = told[usize::from(takes_word.unwrap_or(1)) - 1];
        for (key, value) in told {
            cluster.assert_everywhere(key, (key == done.0).then_some(value));
            cluster.run(2, &format!("append={key}:w"));
        }
    }
}

/// Two backups at a time, and the guest has told each that its transaction does something else: what
/// the first has had accepted is what the second proposes, sets and all.
#[test]
fn backups_of_a_guest_that_told_each_other_sets_propose_the_same() {
    for accepts in [2, 3] {
        let mut cluster = with_guest(3);
        let (_, id) = cluster.begin("append=k:v");
        cluster.pool.clear();
        cluster.lies = true;
        for (node, value) in [(1, "one"), (2, "two"), (3, "three")] {
            let bytes = body_bytes(&[("k", None, Some(value))]);
            let body = Body::check(&bytes).expect("just written");
            cluster.tell(GUEST, node, Kind::Validate { id, stable: 0, participants: 1, body });
        }
        cluster.crash(GUEST);
        cluster.pool.clear();
        (1..=3).for_each(|node| cluster.machine(node).guest_left(NodeId(GUEST)));
        // 1 takes over, and another accepts what it proposes; that answer is late.
        cluster.tick(Duration::from_millis(101));
        cluster.deliver_some(|packet| packet.is(1, 0, "prepare") || packet.is(0, 1, "promise"));
        cluster.deliver(1, accepts, "accept");
        let late = cluster.take(accepts, 1, "accepted");
        cluster.pool.clear();
        // 2 has given it time, takes over from it, and has 3 accept its proposal.
        for _ in 0..2 {
            cluster.advance(Duration::from_millis(200));
            cluster.tick_node(2);
        }
        cluster.deliver_some(|packet| packet.is(2, 0, "prepare") || packet.is(0, 2, "promise"));
        cluster.deliver(2, 3, "accept");
        // Each learns that a majority has accepted what it proposed.
        cluster.inject(&late[0]);
        cluster.deliver(3, 2, "accepted");
        cluster.pool.clear();
        assert_eq!([1, 2].map(|node| cluster.decision(node, id)), [Some(true), Some(true)]);
        cluster.run_for(Duration::from_secs(1));
        cluster.assert_everywhere("k", Some("one"));
    }
}

/// The same over an epoch change: who has taken the guest's word has installed what it was told, and
/// the others install that, too.
#[test]
fn an_epoch_change_settles_what_a_guest_did_that_told_each_other_sets() {
    for takes_word in 1..=3 {
        let mut cluster = with_guest(3);
        let (_, id) = cluster.begin("append=k:v");
        cluster.pool.clear();
        cluster.lies = true;
        let told = ["one", "two", "three"];
        for (node, value) in (1..).zip(told) {
            let bytes = body_bytes(&[("k", None, Some(value))]);
            let body = Body::check(&bytes).expect("just written");
            cluster.tell(GUEST, node, Kind::Validate { id, stable: 0, participants: 1, body });
        }
        cluster.tell(GUEST, takes_word, Kind::Decided { id, commit: true, body: None });
        cluster.crash(GUEST);
        cluster.pool.clear();
        cluster.renew_view();
        cluster.deliver_all();
        cluster.assert_everywhere("k", Some(told[usize::from(takes_word) - 1]));
        cluster.run(2, "append=k:w");
    }
}

/// A guest that commits with a majority and dies before it has reached the third, or that never tells
/// it: nobody waits there for an end that would be asked for.
#[test]
fn what_replicas_took_on_a_guests_word_reaches_one_that_never_heard_of_it() {
    for told in [1, 2] {
        let mut cluster = with_guest(3);
        let (_, id) = cluster.begin("append=k:v");
        for node in 1..=2 {
            cluster.deliver(GUEST, node, "validate");
        }
        cluster.pool.clear();
        for node in 1..=told {
            cluster.tell(GUEST, node, Kind::Decided { id, commit: true, body: None });
        }
        cluster.crash(GUEST);
        cluster.pool.clear();
        (1..=3).for_each(|node| cluster.machine(node).guest_left(NodeId(GUEST)));
        assert!(cluster.record(3, id).is_none());
        cluster.run_for(Duration::from_secs(1));
        assert_eq!(cluster.decision(3, id), Some(true), "told {told}");
        cluster.assert_everywhere("k", Some("v"));
        cluster.run(3, "append=k:w");
    }
}

/// The third is cut off for longer than anybody would say it twice, and for longer than the ends of
/// the transactions of guests that are gone are remembered; then a word of it is lost once more.
#[test]
fn a_guests_commit_is_named_until_every_replica_knows_it() {
    let mut cluster = with_guest(3);
    let (_, id) = cluster.begin("append=k:v");
    for node in 1..=2 {
        cluster.deliver(GUEST, node, "validate");
        cluster.tell(GUEST, node, Kind::Decided { id, commit: true, body: None });
    }
    cluster.crash(GUEST);
    cluster.pool.clear();
    (1..=3).for_each(|node| cluster.machine(node).guest_left(NodeId(GUEST)));
    cluster.run_some(Duration::from_secs(70), |packet| !packet.is(0, 3, "any"));
    assert!(cluster.record(3, id).is_none());
    cluster.pool.clear();
    cluster.run_for(Duration::from_secs(1));
    assert_eq!(cluster.decision(3, id), Some(true));
    cluster.assert_everywhere("k", Some("v"));
    // All know that all know, and forget it.
    cluster.run_for(Duration::from_secs(70));
    cluster.assert_quiet();
}

/// A guest says that its transaction has aborted, and later that all of its transactions up to there
/// have ended. The replicas settle the abort among themselves; replica 1 hears nothing of that.
#[test]
fn a_replica_that_missed_an_abort_learns_it_from_those_that_have_forgotten_it() {
    let mut cluster = with_guest(3);
    let (_, id) = cluster.begin("append=k:v");
    for node in 1..=3 {
        cluster.deliver(GUEST, node, "validate");
        cluster.tell(GUEST, node, Kind::Decided { id, commit: false, body: None });
    }
    cluster.pool.clear();
    cluster.crash(GUEST);
    let ends = ["accept", "decided", "named"];
    cluster.run_some(Duration::from_secs(5), |packet| {
        !packet.is(1, 0, "prepare") && !ends.iter().any(|kind| packet.is(0, 1, kind))
    });
    assert_eq!(cluster.machine(1).gauges()[1], ("undecided", 1), "it has heard no end");
    assert_eq!(cluster.decision(2, id), Some(false), "the others have settled it");
    let stable = id.version;
    (2..=3).for_each(|node| cluster.tell(GUEST, node, Kind::Stable { stable }));
    cluster.pool.clear();
    cluster.run_for(Duration::from_secs(2));
    assert_eq!(cluster.machine(1).gauges()[1], ("undecided", 0), "the others told it the end");
}

/// The guest lies: it tells replica 1 of an abort, the others of the commit, and all that everything
/// has ended. The others settle on the commit, and remember it until replica 1 has it.
#[test]
fn a_commit_is_kept_until_every_replica_knows_it_whatever_the_guest_says() {
    let mut cluster = with_guest(3);
    let (_, id) = cluster.begin("append=k:v");
    for node in 1..=3 {
        cluster.deliver(GUEST, node, "validate");
        cluster.tell(GUEST, node, Kind::Decided { id, commit: node > 1, body: None });
    }
    cluster.pool.clear();
    cluster.crash(GUEST);
    cluster.run_some(Duration::from_secs(5), |packet| {
        !packet.is(1, 0, "any") && !packet.is(0, 1, "any")
    });
    let stable = id.version;
    (2..=3).for_each(|node| cluster.tell(GUEST, node, Kind::Stable { stable }));
    cluster.pool.clear();
    cluster.run_for(Duration::from_secs(2));
    cluster.assert_everywhere("k", Some("v"));
    assert_eq!(cluster.machine(1).gauges()[1], ("undecided", 0));
}

/// Node 1 votes in one of two partitions, and hears nothing from node 4, which votes in the other
/// one. Another backup tells it the end in its own partition.
#[test]
fn a_takeover_stops_once_the_ends_in_the_own_partitions_are_known() {
    let mut cluster = with_guest_of(Cluster::with(5, two_partitions), two_partitions);
    let mut keys = (0..).map(|n| format!("k{n}"));
    let here = keys.find(|key| !cluster.holds(5, key)).expect("half of all keys are here");
    let away = keys.find(|key| !cluster.holds(1, key)).expect("half of all keys are away");
    cluster.begin(&format!("append={here}:v append={away}:v"));
    cluster.deliver_some(|packet| packet.is(GUEST, 0, "validate"));
    cluster.crash(GUEST);
    cluster.run_some(Duration::from_secs(2), |packet| !packet.is(4, 1, "any"));
    for (node, key) in [(1, &here), (5, &away)] {
        assert_eq!(cluster.stored(node, key).as_deref(), Some("v"));
    }
    assert_eq!(cluster.machine(1).gauges()[4], ("recovering", 0));
}

#[test]
fn a_commit_that_a_replica_cannot_vouch_for_is_asked_about() {
    let mut cluster = with_guest(3);
    let (_, id) = cluster.begin("append=k:v");
    cluster.deliver(GUEST, 1, "validate");
    cluster.tell(GUEST, 1, Kind::Decided { id, commit: true, body: None });
    assert_eq!(cluster.decision(1, id), Some(true), "it said OK");
    cluster.tell(GUEST, 2, Kind::Decided { id, commit: true, body: None });
    assert_eq!(cluster.decision(2, id), None, "it was never asked");
    cluster.deliver(2, 1, "pull");
    cluster.deliver(1, 2, "decided");
    assert_eq!(cluster.decision(2, id), Some(true));
    assert_eq!(cluster.stored(2, "k").as_deref(), Some("v"));
}

#[test]
fn what_has_no_room_in_one_answer_comes_in_several_and_writes_that_have_none_are_refused() {
    let mut cluster = with_guest(3);
    let large = vec![b'x'; limits::VALUE_BYTES_MAX / 2];
    for node in 1..=3 {
        for key in ["a", "b", "c"] {
            use quorate_machine::Content;
            let content = Content { bytes: &large, kind: ValueKind::String, expire_at: None };
            cluster.machine(node).table_mut().lock_key(key.as_bytes(), 0).set_content(content);
        }
    }
    let tag = cluster.submit(GUEST, "read=a read=missing read=b");
    cluster.deliver_all();
    let seen = cluster.read_by(tag);
    assert_eq!(
        seen.iter().map(|value| value.map(str::len)).collect::<Vec<_>>(),
        [Some(large.len()), None, Some(large.len())]
    );
    let tag = cluster.submit(GUEST, "read=a read=b read=c");
    cluster.deliver_all();
    assert_eq!(cluster.read_by(tag).iter().flatten().count(), 3);
    let tag = cluster.submit(GUEST, "append=a:x append=b:x append=c:x");
    cluster.deliver_all();
    assert!(matches!(cluster.outcome(tag), Some(Outcome::Refused(_))), "it is too much");
}

#[test]
fn what_stands_around_many_keys_counts_too() {
    let mut cluster = Cluster::new(3);
    let writes = |count: usize| {
        let words: Vec<String> =
            (0..count).map(|key| format!("write=k{key:05}:{}", "v".repeat(260))).collect();
        words.join(" ")
    };
    // Their bytes alone would fit.
    const { assert!(16_000 * 266 <= limits::TXN_BYTES_MAX) };
    let tag = cluster.submit(1, &writes(16_000));
    assert!(matches!(cluster.outcome(tag), Some(Outcome::Refused(_))));
    let tag = cluster.submit(1, &writes(14_000));
    let largest = cluster.pool.iter().map(|packet| packet.bytes.len()).max();
    assert!(largest.unwrap() <= limits::MESSAGE_BYTES_MAX);
    cluster.deliver_all();
    cluster.assert_done(tag);
}

/// A guest has the lane that it drew, and no siblings that would have to hear of its end.
#[test]
fn the_stay_of_a_guest_ends_on_any_lane() {
    fn second_of_two(config: &mut Config) {
        (config.lane, config.lanes) = (LaneId(1), 2);
    }
    let mut cluster = with_guest_of(Cluster::new(3), second_of_two);
    let tag = cluster.submit(GUEST, "write=k:v");
    cluster.begin_life(GUEST);
    assert_eq!(cluster.outcome(tag), Some(&Outcome::Refused(Refusal::NotServing)));
}

/// A replica must be able to take what a guest has told any other one, whatever it holds.
#[test]
fn a_guest_changes_nothing_in_place() {
    let mut cluster = with_guest(3);
    let (_, id) = cluster.begin("append=k:v");
    let delta = Content { bytes: b"", kind: ValueKind::List, expire_at: None };
    let (base, write) = (Some(Timestamp::new(1, id.writer)), Some(Write::Delta(delta)));
    let bytes = Body::encode(&[Item { key: b"k", base, absent: false, write }]);
    let body = Body::check(&bytes).expect("a body");
    for kind in [
        Kind::Validate { id, stable: 0, participants: 1, body },
        Kind::Accept { id, view: 0, ok: true, participants: 1, body: Some(body) },
        Kind::Decided { id, commit: true, body: Some(body) },
    ] {
        assert_eq!(cluster.lie(GUEST, 1, kind), Some("meerkat: a guest's delta"));
    }
}
