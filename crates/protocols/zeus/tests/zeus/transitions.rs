//! One test for each transition: of a requester, an arbiter, a coordinator, a follower, and of
//! transactions. With three nodes `y` belongs to 1, 2, 3 in this order, and `k` to 2, 3, 1; with four
//! nodes and two replicas `d` belongs to 2, 3.

use quorate_harness::Clock;
use quorate_machine::{Content, Outcome, Record as _, Refusal, Table as _, ValueKind};
use quorate_storage::Store;
use quorate_types::{Duration, Epoch, MemberNumber, Role, Timestamp, WriterId, hash_key};
use quorate_zeus::{DataState, Message, Meta, OwnerState, Requester, Settled};

use crate::support::{Cluster, MLT, Replicas, WALL};

fn pairs() -> Cluster {
    let replicas = Replicas { replicas: Some(2), ..Replicas::default() };
    Cluster::of(replicas, 4, |_| 0, u64::from)
}

/// Three nodes; node 1 has written `y`.
fn written() -> Cluster {
    let mut cluster = Cluster::new(3);
    cluster.run(1, "write=y:1");
    cluster
}

fn requester(member: u32, sequence: u64) -> Requester {
    let stamp = Timestamp::new(WALL + 1_000_000_000, WriterId(member));
    Requester { member: MemberNumber(member), sequence, stamp }
}

fn at(version: u64, member: u32) -> Timestamp {
    Timestamp::new(version, WriterId(member))
}

fn inv(round: Timestamp, requester: Requester) -> Message<'static> {
    // Not before the claim of node 1.
    let previous = Settled { round: at(50, 1), owner: MemberNumber(1) };
    Message::Inv { key: b"y", round, requester, previous }
}

/// What is under way, in the order in which it was sent.
fn sent(cluster: &mut Cluster) -> Vec<String> {
    let packets = std::mem::take(&mut cluster.pool).into_iter();
    packets.map(|packet| format!("{}->{} {}", packet.from, packet.to, packet.kind())).collect()
}

// --- arbiters ------------------------------------------------------------------------------------

#[test]
fn req_at_valid_begins_a_round() {
    let mut cluster = written();
    let message = Message::Req { key: b"y", requester: requester(3, 1), resumes: false };
    cluster.tell(3, 2, &message);
    assert_eq!(cluster.meta(2, "y").state, OwnerState::Drive);
    assert_eq!(sent(&mut cluster), ["2->1 inv", "2->3 inv", "2->3 ack"]);
}

#[test]
fn req_at_drive_of_the_same_request_asks_again() {
    let mut cluster = written();
    let message = Message::Req { key: b"y", requester: requester(3, 1), resumes: false };
    cluster.tell(3, 2, &message);
    let round = cluster.meta(2, "y").round;
    cluster.pool.clear();
    cluster.tell(3, 2, &message);
    assert_eq!(cluster.meta(2, "y").round, round);
    assert_eq!(sent(&mut cluster), ["2->1 inv", "2->3 inv", "2->3 ack"]);
}

#[test]
fn req_amid_another_round_waits_if_it_is_the_oldest_and_is_rejected_otherwise() {
    let mut cluster = written();
    cluster.tell(3, 2, &inv(at(100, 3), requester(3, 1)));
    cluster.pool.clear();
    let young = Requester { stamp: at(WALL * 2, 1), ..requester(1, 1) };
    cluster.tell(1, 2, &Message::Req { key: b"y", requester: young, resumes: false });
    assert_eq!(sent(&mut cluster), [""; 0]);
    // An older one takes its place, and makes the round as old as itself.
    let old = Requester { stamp: at(1, 3), ..requester(3, 2) };
    let old = Requester { member: MemberNumber(2), ..old };
    cluster.tell(3, 2, &Message::Req { key: b"y", requester: old, resumes: false });
    assert_eq!(sent(&mut cluster), ["2->1 nack", "2->1 inv", "2->3 inv", "2->3 ack"]);
}

#[test]
fn req_to_resume_begins_nothing() {
    let mut cluster = written();
    cluster.tell(3, 2, &Message::Req { key: b"y", requester: requester(3, 1), resumes: true });
    assert_eq!(sent(&mut cluster), [""; 0]);
    cluster.tell(1, 2, &inv(at(100, 1), requester(3, 1)));
    cluster.pool.clear();
    cluster.tell(3, 2, &Message::Req { key: b"y", requester: requester(3, 2), resumes: true });
    assert_eq!(sent(&mut cluster), ["2->1 inv", "2->3 inv", "2->3 ack"]);
}

#[test]
fn inv_larger_is_adopted_and_smaller_ignored() {
    let mut cluster = written();
    cluster.tell(3, 2, &inv(at(100, 3), requester(3, 1)));
    let meta = cluster.meta(2, "y");
    assert_eq!((meta.round, meta.state), (at(100, 3), OwnerState::Invalid));
    assert_eq!(meta.owner, cluster.number(1), "it is not settled");
    assert_eq!(sent(&mut cluster), ["2->3 ack"]);
    cluster.tell(3, 2, &inv(at(99, 3), requester(3, 1)));
    assert_eq!(sent(&mut cluster), [""; 0]);
    cluster.tell(3, 2, &inv(at(100, 3), requester(3, 1)));
    assert_eq!(sent(&mut cluster), ["2->3 ack"], "once more");
}

#[test]
fn inv_of_a_settled_round_is_answered_with_val() {
    let mut cluster = written();
    let settled = cluster.meta(2, "y").round;
    for round in [settled, at(0, 3)] {
        cluster.tell(3, 2, &inv(round, requester(3, 1)));
        assert_eq!(sent(&mut cluster), ["2->3 val"]);
    }
}

#[test]
fn inv_larger_rejects_the_request_that_was_driven() {
    let mut cluster = written();
    let message = Message::Req { key: b"y", requester: requester(1, 9), resumes: false };
    cluster.tell(3, 2, &Message::Req { key: b"y", requester: requester(3, 1), resumes: false });
    cluster.pool.clear();
    cluster.tell(1, 2, &message);
    cluster.tell(1, 2, &inv(at(1_000, 1), requester(1, 9)));
    assert!(sent(&mut cluster).contains(&"2->3 nack".to_owned()));
}

#[test]
fn val_settles_the_round_that_it_names() {
    let mut cluster = written();
    cluster.tell(3, 2, &inv(at(100, 3), requester(3, 1)));
    let val = |round| Message::Val { key: b"y", round, owner: MemberNumber(3), clock: 0 };
    cluster.tell(3, 2, &val(at(99, 3)));
    assert_eq!(cluster.meta(2, "y").state, OwnerState::Invalid);
    cluster.tell(3, 2, &val(at(100, 3)));
    let meta = cluster.meta(2, "y");
    assert_eq!((meta.state, meta.owner), (OwnerState::Valid, MemberNumber(3)));
    assert_eq!(meta.data, DataState::Valid, "a reader goes on reading");
}

#[test]
fn the_owner_agrees_when_it_has_nothing_under_way_with_the_key() {
    let mut cluster = written();
    let tag = cluster.submit(1, "read=y write=x:2");
    let updates = cluster.take(1, 0, "r-inv");
    let oldest = Requester { stamp: at(1, 2), ..requester(2, 1) };
    cluster.tell(2, 1, &inv(at(100, 2), oldest));
    assert_eq!(sent(&mut cluster), [""; 0], "a transaction that has read it is under way");
    assert_eq!(cluster.meta(1, "y").state, OwnerState::Invalid);
    let later = cluster.submit(1, "append=y:3");
    updates.iter().for_each(|packet| cluster.inject(packet));
    cluster.deliver_some(|packet| packet.is(0, 1, "r-ack"));
    assert_eq!(cluster.take(1, 2, "ack").len(), 1);
    cluster.read_by(tag);
    cluster.assert_open(later);
}

#[test]
fn the_owner_sends_the_value_to_a_node_that_has_no_copy() {
    let mut cluster = pairs();
    cluster.run(2, "write=d:1");
    cluster.submit(1, "append=d:2");
    cluster.deliver(1, 0, "req");
    cluster.deliver_some(|packet| packet.is(0, 0, "inv"));
    let copies: Vec<bool> = cluster
        .take(0, 1, "ack")
        .iter()
        .map(|packet| matches!(packet.message(), Message::Ack { copy: Some(Some(_)), .. }))
        .collect();
    assert_eq!(copies, [true, false], "node 2 is the owner");
}

#[test]
fn what_waits_for_a_key_that_is_given_away_asks_for_it_at_once() {
    let mut cluster = pairs();
    cluster.run(1, "write=d:1");
    cluster.submit(4, "append=d:2");
    cluster.submit(1, "append=d:3 append=y:3");
    // The older one gets the key, and the younger one asks before the new owner is settled.
    let about_d = |packet: &quorate_harness::Packet<Replicas>| match packet.message() {
        Message::Req { key, .. } | Message::Inv { key, .. } => key == b"d",
        _ => false,
    };
    cluster.deliver_some(about_d);
    let asked: Vec<_> =
        cluster.fresh_packets.iter().filter(|packet| packet.is(1, 0, "req")).collect();
    let asked = asked.iter().filter(|packet| about_d(packet)).count();
    assert_eq!(asked, 2, "to write it at first, and now again");
}

#[test]
fn a_round_that_seems_stuck_is_driven_by_every_arbiter() {
    let mut cluster = written();
    cluster.tell(3, 2, &inv(at(100, 3), requester(3, 1)));
    cluster.pool.clear();
    cluster.tick(MLT);
    assert!(sent(&mut cluster).contains(&"2->1 inv".to_owned()));
    assert_eq!(cluster.meta(2, "y").state, OwnerState::Drive);
    assert_eq!(cluster.meta(2, "y").round, at(100, 3), "the same round");
}

#[test]
fn a_round_whose_requester_is_gone_is_settled_all_the_same() {
    let mut cluster = written();
    cluster.submit(2, "append=y:2");
    cluster.deliver_some(|packet| packet.is(0, 0, "inv"));
    cluster.pool.clear();
    cluster.expel(&[2]);
    cluster.deliver_all();
    let meta = cluster.meta(3, "y");
    assert_eq!((meta.state, meta.owner), (OwnerState::Valid, MemberNumber(2)));
    assert_eq!(cluster.writers("y"), [1], "the default owner");
    assert_eq!(cluster.probed("zeus: a round is settled without its requester"), 2);
}

/// Seed 286 of `copies_that_give_way_are_missed_by_nobody`: the last owner had read the key at a later time than
/// that at which the default owner wrote it.
#[test]
fn the_default_owner_writes_above_what_has_read_the_key() {
    let mut cluster = written();
    cluster.submit(2, "append=y:2");
    cluster.deliver_some(|packet| packet.is(0, 0, "inv"));
    cluster.pool.clear();
    cluster.expel(&[2]);
    cluster.deliver_some(|packet| packet.kind() == "recovered");
    cluster.set_clock(3, Clock { ahead: 5_000_000, ..Clock::default() });
    let key = ["a", "b", "c", "d", "e", "f"].into_iter().find(|key| cluster.writers(key) == [3]);
    cluster.submit(3, &format!("write={}:1", key.expect("a key of node 3")));
    cluster.deliver_some(|packet| packet.is(3, 1, "inv") || (packet.from.0, packet.to.0) != (3, 1));
    let vals = cluster.take(3, 1, "val");
    let val = vals.first().expect("node 3 settles it");
    let Message::Val { clock, .. } = val.message() else { panic!("it is a VAL") };
    assert!(clock > cluster.now_at(1).unix.0, "node 3 is ahead");
    cluster.inject(val);
    cluster.pool.clear();
    cluster.run(1, "append=y:3");
    assert!(cluster.meta(1, "y").version.version > clock);
}

// --- requesters ----------------------------------------------------------------------------------

#[test]
fn a_requester_takes_the_key_before_it_tells_the_arbiters() {
    let mut cluster = written();
    let tag = cluster.submit(2, "append=y:2");
    assert_eq!(cluster.take(2, 0, "inv").len(), 2, "it drives for itself");
    assert_eq!(cluster.writers("y"), [1]);
    cluster.pool.clear();
    cluster.tick(MLT);
    cluster.deliver_some(|packet| packet.is(0, 0, "inv"));
    cluster.deliver(3, 2, "ack");
    assert_eq!(cluster.writers("y"), [0; 0], "one agreement is missing");
    cluster.deliver(1, 2, "ack");
    assert_eq!(cluster.meta(2, "y").owner, cluster.number(2));
    // What it writes tells them.
    let told = cluster.pool.iter().filter(|packet| packet.is(2, 0, "r-inv")).count();
    assert_eq!((told, cluster.pool.len()), (2, 2));
    assert_ne!(cluster.meta(1, "y").owner, cluster.number(2));
    cluster.deliver_all();
    assert_eq!(cluster.meta(1, "y").owner, cluster.number(2));
    cluster.read_by(tag);
}

#[test]
fn a_request_is_made_again_after_a_loss_and_after_a_rejection() {
    let mut cluster = pairs();
    cluster.run(2, "write=d:1");
    cluster.submit(1, "append=d:2");
    assert_eq!(sent(&mut cluster), ["1->2 req"]);
    cluster.tick(MLT);
    assert_eq!(sent(&mut cluster), ["1->3 req"], "another directory node");
    cluster.tell(3, 1, &Message::Nack { key: b"d", sequence: 1 });
    assert_eq!(sent(&mut cluster), [""; 0]);
    cluster.tick(MLT);
    assert_eq!(sent(&mut cluster), ["1->2 req"]);
    cluster.tell(3, 1, &Message::Nack { key: b"d", sequence: 7 });
    assert!(cluster.ignored.contains_key("zeus: NACK of no request"));
}

#[test]
fn an_answer_to_a_closed_request_is_no_agreement() {
    let mut cluster = pairs();
    cluster.run(2, "write=d:1");
    cluster.submit(1, "append=d:2");
    cluster.deliver(1, 0, "req");
    cluster.deliver_some(|packet| packet.is(0, 0, "inv"));
    let answers = cluster.pool.clone();
    cluster.deliver_all();
    cluster.run(4, "append=d:3");
    assert_eq!(cluster.record(1, "d"), None, "it has forgotten the key");
    answers.iter().for_each(|packet| cluster.inject(packet));
    assert_eq!(cluster.record(1, "d"), None);
    let resumes = cluster.take(1, 0, "req");
    assert!(matches!(resumes[0].message(), Message::Req { resumes: true, .. }));
    cluster.inject(&resumes[0]);
    assert!(cluster.pool.is_empty(), "{:?}", cluster.pool);
    cluster.run_for(MLT * 3);
    cluster.assert_quiet(["d".to_owned()]);
    assert_eq!(cluster.writers("d"), [4]);
}

// --- coordinators and followers ------------------------------------------------------------------

#[test]
fn a_key_is_made_at_its_default_owner_without_a_round() {
    let mut cluster = Cluster::new(3);
    let tag = cluster.submit(1, "write=y:1");
    assert_eq!(sent(&mut cluster), ["1->2 r-inv", "1->3 r-inv"]);
    cluster.assert_open(tag);
    let meta = cluster.meta(1, "y");
    assert_eq!((meta.data, meta.state), (DataState::Write, OwnerState::Valid));
    assert_eq!(meta.owner, cluster.number(1));
}

#[test]
fn a_commit_takes_one_round_trip() {
    let mut cluster = written();
    let tag = cluster.submit(1, "append=y:2");
    cluster.deliver(1, 2, "r-inv");
    cluster.deliver(1, 3, "r-inv");
    assert_eq!(cluster.meta(2, "y").data, DataState::Invalid);
    cluster.deliver(2, 1, "r-ack");
    cluster.assert_open(tag);
    cluster.deliver(3, 1, "r-ack");
    assert_eq!(cluster.read_by(tag), [Some("1")]);
    assert_eq!(cluster.stamps[&tag], cluster.meta(1, "y").version);
    assert_eq!(sent(&mut cluster), ["1->2 r-val", "1->3 r-val"]);
}

#[test]
fn transactions_go_on_with_what_is_not_committed_and_are_committed_in_order() {
    let mut cluster = written();
    let first = cluster.submit(1, "append=y:2");
    let second = cluster.submit(1, "append=y:3");
    let reader = cluster.submit(1, "read=y");
    let (early, late) = (cluster.take(1, 2, "r-inv"), cluster.take(1, 3, "r-inv"));
    // Followers apply the second after the first, whichever comes first.
    for packet in early.iter().rev().chain(late.iter().rev()) {
        cluster.inject(packet);
    }
    cluster.deliver_some(|packet| packet.is(2, 1, "r-ack"));
    // Both in one message, which comes late: what is sent again is acknowledged alone.
    let acknowledged = cluster.take(3, 1, "r-ack");
    cluster.inject(&late[1]);
    cluster.deliver(3, 1, "r-ack");
    for tag in [first, second, reader] {
        cluster.assert_open(tag);
    }
    assert_eq!(cluster.meta(1, "y").data, DataState::Write);
    acknowledged.iter().for_each(|ack| cluster.inject(ack));
    assert_eq!(cluster.read_by(second), [Some("12")]);
    assert_eq!(cluster.read_by(reader), [Some("123")]);
}

#[test]
fn a_commit_does_not_make_a_later_version_readable() {
    let mut cluster = written();
    cluster.submit(1, "append=y:2");
    cluster.submit(1, "append=y:3");
    for node in [2, 3] {
        cluster.deliver(1, node, "r-inv");
        cluster.deliver(node, 1, "r-ack");
    }
    assert_eq!(cluster.meta(1, "y").data, DataState::Write);
    cluster.deliver(1, 2, "r-inv");
    cluster.deliver(1, 2, "r-val");
    assert_eq!(cluster.meta(2, "y").data, DataState::Invalid);
}

#[test]
fn a_repeated_update_is_acknowledged_again_and_changes_nothing() {
    let mut cluster = written();
    cluster.submit(1, "append=y:2");
    let update = cluster.take(1, 2, "r-inv");
    cluster.inject(&update[0]);
    let before = cluster.record(2, "y");
    cluster.inject(&update[0]);
    assert_eq!(cluster.record(2, "y"), before);
    assert_eq!(cluster.take(2, 1, "r-ack").len(), 2);
    cluster.run_for(MLT * 3);
    cluster.inject(&update[0]);
    assert_eq!(sent(&mut cluster), ["2->1 r-ack"], "also when it is committed");
}

#[test]
fn a_follower_asks_for_a_commit_that_it_missed() {
    let mut cluster = written();
    cluster.submit(1, "append=y:2");
    cluster.deliver_some(|packet| !packet.is(0, 0, "r-val"));
    cluster.pool.clear();
    cluster.tick(MLT);
    assert_eq!(sent(&mut cluster), ["2->1 r-ack", "3->1 r-ack"]);
    cluster.tick(MLT);
    assert_eq!(sent(&mut cluster), [""; 0], "the next wait is longer");
    cluster.tick(MLT);
    cluster.deliver_all();
    assert_eq!(cluster.run(2, "read=y"), [Some("12".to_owned())]);
}

#[test]
fn messages_of_another_epoch_are_ignored() {
    let mut cluster = written();
    let packet = |epoch| quorate_harness::Packet::new(3, 2, epoch, &inv(at(9, 3), requester(3, 1)));
    for epoch in [Epoch(0), Epoch(2)] {
        cluster.inject(&packet(epoch));
    }
    assert_eq!(cluster.ignored["zeus: message of another epoch"], 2);
    assert_eq!(cluster.meta(2, "y").state, OwnerState::Valid);
}

#[test]
fn an_owner_without_followers_answers_behind_the_lease_alone() {
    let mut cluster = written();
    cluster.expel(&[2, 3]);
    let tag = cluster.submit(1, "append=y:2");
    assert_eq!(cluster.read_by(tag), [Some("1")]);
    assert!(cluster.pool.is_empty());
}

// --- transactions --------------------------------------------------------------------------------

#[test]
fn a_key_moves_to_where_it_is_used_and_is_read_everywhere() {
    let mut cluster = written();
    assert_eq!(cluster.run(2, "append=y:2"), [Some("1".to_owned())]);
    assert_eq!(cluster.writers("y"), [2]);
    for node in 1..=3 {
        let tag = cluster.submit(node, "read=y");
        assert_eq!(cluster.read_by(tag), [Some("12")], "without a message");
    }
    cluster.assert_quiet(["y".to_owned()]);
}

#[test]
fn a_reader_waits_for_the_commit_of_what_it_reads() {
    let mut cluster = written();
    cluster.submit(1, "append=y:2");
    cluster.deliver(1, 2, "r-inv");
    let reader = cluster.submit(2, "read=y");
    cluster.assert_open(reader);
    cluster.deliver_all();
    assert_eq!(cluster.read_by(reader), [Some("12")]);
}

#[test]
fn all_missing_keys_are_asked_for_at_once() {
    let mut cluster = Cluster::new(3);
    let tag = cluster.submit(3, "write=y:1 write=k:1 read=x");
    assert_eq!(cluster.take(3, 0, "inv").len(), 6);
    cluster.tick(MLT);
    cluster.deliver_all();
    assert_eq!(cluster.read_by(tag), [None]);
}

#[test]
fn keys_that_are_found_on_the_way_are_asked_for_and_the_transaction_runs_again() {
    let mut cluster = pairs();
    cluster.run(2, "write=d:c");
    cluster.run(1, "write=c:1");
    let seen = cluster.run(3, "follow=d write=e:1");
    assert_eq!(seen, [Some("c".to_owned()), Some("1".to_owned())]);
    assert_eq!(cluster.probed("zeus: a transaction finds a key on the way"), 1);
}

#[test]
fn an_expired_value_is_absent_and_a_reader_has_it_deleted() {
    let mut cluster = written();
    cluster.run(1, &format!("expire=y:{}", WALL / 1_000_000 + 5));
    cluster.advance(Duration::from_millis(5));
    let tag = cluster.submit(2, "read=y");
    cluster.deliver_all();
    assert_eq!(cluster.read_by(tag), [None]);
    assert_eq!(cluster.probed("zeus: a reader finds an expired value"), 1);
    let Some(Outcome::Done(seen)) = cluster.outcome(tag) else { unreachable!("it was read") };
    let shown = seen[0].version;
    for node in 1..=3 {
        let (meta, value) = cluster.record(node, "y").expect("a tombstone");
        assert_eq!((meta.data, value), (DataState::Valid, None));
        assert_eq!(meta.version, shown, "what a reader is shown is the version of the deletion");
    }
}

#[test]
fn transactions_of_one_origin_run_in_order() {
    let mut cluster = Cluster::new(3);
    let moving = cluster.submit_as(1, 7, crate::txn::txn("append=k:1"));
    let local = cluster.submit_as(1, 7, crate::txn::txn("append=y:1 read=k"));
    cluster.assert_open(local);
    cluster.deliver_all();
    assert_eq!(cluster.read_by(moving), [None]);
    assert_eq!(cluster.read_by(local), [None, Some("1")]);
}

#[test]
fn what_waits_for_too_long_has_not_run() {
    let mut cluster = pairs();
    let tag = cluster.submit(1, "write=d:1");
    cluster.run_some(Duration::from_secs(3), |_| false);
    assert_eq!(cluster.outcome(tag), Some(&Outcome::Refused(Refusal::TimedOut)));
    // The request stands: the key comes, and stays until another node asks for it.
    cluster.run_for(MLT * 16);
    assert_eq!(cluster.writers("d"), [1]);
    assert_eq!(cluster.run(2, "read=d"), [None]);
}

#[test]
fn a_node_that_is_not_active_refuses_what_has_not_run_and_knows_nothing_of_what_has() {
    let mut cluster = written();
    let sent = cluster.submit(1, "append=y:2");
    let waiting = cluster.submit(1, "append=k:2");
    cluster.pool.clear();
    cluster.set_role(1, Role::Down);
    assert_eq!(cluster.outcome(sent), Some(&Outcome::Unknown));
    assert_eq!(cluster.outcome(waiting), Some(&Outcome::Refused(Refusal::NotServing)));
    let late = cluster.submit(1, "read=y");
    assert_eq!(cluster.outcome(late), Some(&Outcome::Refused(Refusal::NotServing)));
}

#[test]
fn the_owner_reads_what_is_not_committed_and_answers_when_it_is() {
    let mut cluster = written();
    cluster.submit(1, "append=y:2");
    let reader = cluster.submit(1, "read=y");
    let first: Vec<_> = cluster.take(1, 0, "r-inv");
    cluster.submit(1, "append=y:3");
    cluster.take(1, 0, "r-inv");
    assert!(cluster.outcome(reader).is_none());
    first.iter().for_each(|packet| cluster.inject(packet));
    cluster.deliver_all();
    assert_eq!(cluster.read_by(reader), [Some("12")], "what comes after it need not be committed");
}

#[test]
fn a_reader_of_a_key_that_is_written_again_and_again_becomes_an_owner() {
    let mut cluster = written();
    cluster.submit(1, "append=y:2");
    cluster.deliver(1, 2, "r-inv");
    let reader = cluster.submit(2, "read=y");
    cluster.tick(MLT);
    cluster.tick(MLT);
    assert!(cluster.outcome(reader).is_none());
    assert!(sent(&mut cluster).contains(&"2->1 inv".to_owned()), "it drives a round of its own");
    cluster.run_for(MLT * 10);
    assert_eq!(cluster.read_by(reader), [Some("12")]);
}

/// Its words are there before its value, whose size nobody knows yet.
#[test]
fn the_value_of_a_key_that_was_moved_before_it_was_written_is_in_its_record() {
    let mut cluster = written();
    let value = "123456789012345678901234";
    cluster.run(1, &format!("write=y:{value}"));
    cluster.run(1, &format!("write=k:{value}"));
    let memory = |store: &Store<Meta>| {
        store.memory_of(b"k", hash_key(b"k"), &store.pin()).expect("it is there")
    };
    let sized = Store::new(1);
    let mut table = sized.shared_table(0);
    let (bytes, kind, expire_at) = (value.as_bytes(), ValueKind::String, None);
    table.lock_key(b"k", bytes.len()).set_content(Content { bytes, kind, expire_at });
    for (node, store) in &*cluster.subject.stores.borrow() {
        assert_eq!(memory(store), memory(&sized), "at node {node}");
    }
}
