//! Reads of keys without a copy where they are read. With four nodes and one replica `c` belongs to 1,
//! `d` to 2, `m` to 3, `g` to 4; with two replicas `c` to 1, 4, `d` to 2, 3, `g` to 4, 2.

use quorate_harness::Packet;
use quorate_machine::{Event, Machine as _, Refusal};
use quorate_types::{NodeId, Role, Timestamp, WriterId, limits};
use quorate_zeus::{Copies, Keys, LookMessage, Message, Question, Seen, Versions};

use crate::support::{Cluster, MLT, Replicas, WALL};
use crate::txn::{Step, Txn};

fn nodes(replicas: usize) -> Cluster {
    let replicas = Replicas { replicas: Some(replicas), ..Replicas::default() };
    Cluster::of(replicas, 4, |_| 0, u64::from)
}

/// Each key at one node, which has written it.
fn apart() -> Cluster {
    let mut cluster = nodes(1);
    for (node, key) in [(1, "c"), (2, "d"), (3, "m"), (4, "g")] {
        cluster.run(node, &format!("write={key}:1"));
    }
    cluster.fresh_packets.clear();
    cluster
}

/// What is under way, in the order in which it was sent.
fn under_way(cluster: &Cluster) -> Vec<String> {
    let name =
        |packet: &Packet<Replicas>| format!("{}->{} {}", packet.from, packet.to, packet.kind());
    cluster.pool.iter().map(name).collect()
}

fn is_look(packet: &Packet<Replicas>) -> bool {
    ["look", "seen", "check", "checked"].contains(&packet.kind())
}

/// Runs a transaction that needs no other node.
fn run_at(cluster: &mut Cluster, node: u16, text: &str) {
    let tag = cluster.submit(node, text);
    assert!(cluster.outcome(tag).is_some(), "{text} at {node}");
}

#[test]
fn keys_of_several_nodes_are_read_in_four_hops_and_stay_where_they_are() {
    let mut cluster = apart();
    let tag = cluster.submit(1, "read=c read=d read=m");
    let hops = [
        ["1->2 look", "1->3 look"],
        ["2->1 seen", "3->1 seen"],
        ["1->2 check", "1->3 check"],
        ["2->1 checked", "3->1 checked"],
    ];
    for hop in hops {
        assert_eq!(under_way(&cluster), hop);
        cluster.assert_open(tag);
        let packets = std::mem::take(&mut cluster.pool);
        packets.iter().for_each(|packet| cluster.inject(packet));
    }
    assert_eq!(cluster.read_by(tag), [Some("1"); 3]);
    assert_eq!(under_way(&cluster), [""; 0]);
    assert_eq!((cluster.writers("d"), cluster.writers("m")), (vec![2], vec![3]));
    assert_eq!(cluster.record(1, "d"), None, "nothing is kept");
    cluster.assert_quiet(["c", "d", "m"].map(str::to_owned));
}

#[test]
fn one_key_is_looked_at_once() {
    let mut cluster = apart();
    let tag = cluster.submit(1, "read=d");
    cluster.deliver(1, 2, "look");
    cluster.deliver(2, 1, "seen");
    assert_eq!(cluster.read_by(tag), [Some("1")]);
    assert_eq!(under_way(&cluster), [""; 0]);
}

#[test]
fn a_member_that_has_several_keys_is_asked_once() {
    let mut cluster = nodes(2);
    cluster.run(2, "write=d:1 write=m:2");
    let before = cluster.pool.len();
    let tag = cluster.submit(1, "read=d read=m");
    assert_eq!(cluster.pool.len(), before + 1);
    cluster.deliver_all();
    assert_eq!(cluster.read_by(tag), [Some("1"), Some("2")]);
}

#[test]
fn what_has_changed_between_the_looks_is_asked_for_again() {
    let mut cluster = apart();
    let tag = cluster.submit(1, "read=d read=m");
    cluster.deliver_some(|packet| ["look", "seen"].contains(&packet.kind()));
    run_at(&mut cluster, 2, "append=d:2");
    cluster.deliver(1, 3, "check");
    cluster.deliver(3, 1, "checked");
    cluster.deliver(1, 2, "check");
    cluster.deliver(2, 1, "checked");
    assert_eq!(under_way(&cluster), ["1->2 look"], "nobody has changed m");
    cluster.deliver_all();
    assert_eq!(cluster.read_by(tag), [Some("12"), Some("1")]);
    assert_eq!(cluster.writers("d"), [2]);
}

#[test]
fn two_looks_show_one_moment() {
    let mut cluster = apart();
    let tag = cluster.submit(1, "read=d read=m");
    cluster.deliver(1, 2, "look");
    // One after the other.
    run_at(&mut cluster, 2, "append=d:2");
    run_at(&mut cluster, 3, "append=m:2");
    cluster.deliver_all();
    assert_eq!(cluster.read_by(tag), [Some("12"), Some("12")]);
}

/// Node 3 confirms what was seen of `m`; then both keys change, one after the other, and what was seen of
/// `d` is not confirmed.
#[test]
fn an_answer_counts_for_its_question_alone() {
    let mut cluster = apart();
    let tag = cluster.submit(1, "read=d read=m");
    cluster.deliver_some(|packet| ["look", "seen"].contains(&packet.kind()));
    cluster.deliver(1, 3, "check");
    let confirmed = cluster.take(3, 1, "checked");
    run_at(&mut cluster, 3, "append=m:2");
    run_at(&mut cluster, 2, "append=d:2");
    cluster.deliver(1, 2, "check");
    cluster.deliver(2, 1, "checked");
    cluster.deliver(1, 2, "look");
    cluster.deliver(2, 1, "seen");
    cluster.inject(&confirmed[0]);
    cluster.deliver(1, 2, "check");
    cluster.deliver(2, 1, "checked");
    cluster.deliver_all();
    assert_eq!(cluster.read_by(tag), [Some("12"), Some("12")]);
}

/// Two readers look at two keys that are being written: each key at one node that has applied the change,
/// and at one that has not. Were what is not committed told of, and only its commit looked for in the
/// second round, they would see the writes in different orders (pitfall Z1).
#[test]
fn no_two_readers_see_two_writes_in_different_orders() {
    let mut cluster = nodes(2);
    cluster.run(2, "write=d:1");
    cluster.run(4, "write=g:1");
    cluster.submit(2, "append=d:2");
    cluster.submit(4, "append=g:2");
    let of_d = cluster.take(2, 3, "r-inv");
    let of_g = cluster.take(4, 2, "r-inv");
    let one = cluster.submit(1, "read=d read=g");
    assert_eq!(under_way(&cluster), ["1->3 look", "1->4 look"], "d is old, and g is new");
    cluster.deliver_some(|packet| ["look", "seen"].contains(&packet.kind()) && packet.to.0 != 2);
    let checks = cluster.take(1, 0, "check");
    cluster.pool.retain(|packet| !is_look(packet));
    let other = cluster.submit(1, "read=d read=g");
    assert_eq!(under_way(&cluster), ["1->2 look"], "d is new, and g is old");
    cluster.deliver(1, 2, "look");
    cluster.deliver_some(|packet| packet.is(2, 1, "seen"));
    let later = cluster.take(1, 2, "check");
    let tell = |cluster: &mut Cluster, packets: &[Packet<Replicas>], to: u16| {
        packets.iter().filter(|packet| packet.to.0 == to).for_each(|packet| cluster.inject(packet));
    };
    let commit = ["r-ack", "r-val"];
    tell(&mut cluster, &checks, 3);
    of_d.iter().for_each(|packet| cluster.inject(packet));
    cluster.deliver_some(|packet| commit.contains(&packet.kind()));
    tell(&mut cluster, &later, 2);
    of_g.iter().for_each(|packet| cluster.inject(packet));
    cluster.deliver_some(|packet| commit.contains(&packet.kind()));
    tell(&mut cluster, &checks, 4);
    cluster.deliver_all();
    cluster.run_for(MLT * 8);
    let seen = (cluster.read_by(one), cluster.read_by(other));
    assert_ne!(seen, (vec![Some("1"), Some("12")], vec![Some("12"), Some("1")]));
}

#[test]
fn what_is_not_committed_is_waited_for() {
    let mut cluster = nodes(2);
    cluster.run(2, "write=d:1");
    cluster.submit(2, "append=d:2");
    cluster.deliver(2, 3, "r-inv");
    let acks = cluster.take(3, 2, "r-ack");
    let tag = cluster.submit(1, "read=d");
    for _ in 0..2 {
        cluster.deliver(1, 0, "look");
        cluster.deliver(0, 1, "seen");
        cluster.assert_open(tag);
    }
    acks.iter().for_each(|ack| cluster.inject(ack));
    cluster.deliver_all();
    assert_eq!(cluster.read_by(tag), [Some("12")]);
    assert_eq!(cluster.writers("d"), [2]);
}

#[test]
fn who_asks_in_vain_becomes_the_owner() {
    let mut cluster = nodes(2);
    cluster.run(2, "write=d:1");
    cluster.submit(2, "append=d:2");
    cluster.deliver(2, 3, "r-inv");
    let acks = cluster.take(3, 2, "r-ack");
    let tag = cluster.submit(1, "read=d");
    let mut looks = 0;
    while !cluster.pool.iter().any(|packet| packet.kind() == "req") {
        cluster.deliver(1, 0, "look");
        cluster.deliver(0, 1, "seen");
        looks += 1;
        assert!(looks <= 6, "it asks for ever");
    }
    acks.iter().for_each(|ack| cluster.inject(ack));
    cluster.deliver_all();
    assert_eq!(cluster.read_by(tag), [Some("12")]);
    assert_eq!(cluster.writers("d"), [1]);
}

#[test]
fn another_member_is_asked_in_place_of_one_that_does_not_answer() {
    let mut cluster = nodes(2);
    cluster.run(2, "write=d:1");
    let tag = cluster.submit(1, "read=d");
    let lost = cluster.take(1, 0, "look");
    assert_eq!(lost.len(), 1);
    cluster.tick(MLT);
    let again = cluster.pool.iter().find(|packet| packet.kind() == "look").expect("it asks again");
    assert_ne!(again.to, lost[0].to);
    cluster.deliver_all();
    assert_eq!(cluster.read_by(tag), [Some("1")]);
    assert_eq!(cluster.writers("d"), [2]);
    // Neither answers: it waits longer each time, and does not become an owner before it has tried often.
    let tag = cluster.submit(1, "read=d");
    let mut waited = 0;
    while cluster.pool.iter().all(|packet| packet.kind() != "req") {
        cluster.pool.clear();
        cluster.tick(MLT);
        waited += 1;
        assert!(waited < 100, "it asks for ever");
    }
    assert!((1 + 2 + 4 + 8 + 16..=1 + 2 + 4 + 8 + 16 + 16 + 1).contains(&waited), "{waited}");
    cluster.deliver_all();
    assert_eq!(cluster.read_by(tag), [Some("1")]);
}

#[test]
fn a_new_view_begins_a_read_anew() {
    let mut cluster = apart();
    let tag = cluster.submit(1, "read=d read=m");
    cluster.deliver_some(|packet| ["look", "seen"].contains(&packet.kind()));
    cluster.renew_view();
    cluster.deliver_some(|packet| !is_look(packet));
    let asked: Vec<String> = under_way(&cluster);
    let new = ["1->2 look", "1->3 look"].map(str::to_owned);
    assert!(new.iter().all(|look| asked.contains(look)), "at once: {asked:?}");
    cluster.deliver_all();
    assert_eq!(cluster.read_by(tag), [Some("1"), Some("1")]);
}

#[test]
fn members_that_are_gone_are_not_waited_for() {
    let mut cluster = nodes(2);
    cluster.run(2, "write=d:1");
    let tag = cluster.submit(1, "read=d");
    let gone = cluster.take(1, 0, "look")[0].to.0;
    cluster.crash(gone);
    cluster.expel(&[gone]);
    cluster.deliver_all();
    assert_eq!(cluster.read_by(tag), [Some("1")]);
}

/// What a member says rests on its copies, and so leaves behind its lease.
#[test]
fn answers_leave_behind_the_lease() {
    let mut cluster = apart();
    let (from, epoch, question) = (NodeId(1), cluster.view.epoch, Question::default());
    let keys = Keys::write([&b"d"[..]].into_iter());
    let versions = Versions::write([(&b"d"[..], Timestamp::ZERO)].into_iter());
    let keys = Keys::check(&keys).expect("just written");
    let versions = Versions::check(&versions).expect("just written");
    for asks in [LookMessage::Look { question, keys }, LookMessage::Check { question, versions }] {
        let body = Message::Look(asks);
        cluster.act(2, |machine, now, out| {
            machine.step(now, Event::Message { from, epoch, body }, out);
            assert_eq!((out.sent.len(), &out.leased[..]), (1, &[0][..]), "{body:?}");
        });
    }
}

#[test]
fn an_expired_value_that_was_asked_for_is_deleted_by_an_owner() {
    let mut cluster = apart();
    cluster.run(2, &format!("expire=d:{}", WALL / 1_000_000 + 5));
    cluster.advance(quorate_types::Duration::from_millis(5));
    assert_eq!(cluster.run(1, "read=d read=m"), [None, Some("1".to_owned())]);
    assert_eq!(cluster.probed("zeus: a reader finds an expired value"), 1);
    assert_eq!(cluster.writers("d"), [1]);
}

#[test]
fn what_was_never_written_is_absent_and_makes_no_record() {
    let mut cluster = nodes(1);
    assert_eq!(cluster.run(1, "read=d read=m read=c"), [None, None, None]);
    for node in 1..=4 {
        for key in ["c", "d", "m"] {
            assert_eq!(cluster.record(node, key), None);
        }
    }
}

#[test]
fn a_watch_notes_the_version_of_the_copy_that_was_asked() {
    let mut cluster = apart();
    let tag = cluster.submit(1, "watch=d watch=m");
    cluster.deliver_all();
    let Some(quorate_machine::Outcome::Done(seen)) = cluster.outcome(tag) else {
        panic!("it was read")
    };
    let versions: Vec<Timestamp> = seen.iter().map(|seen| seen.version).collect();
    assert_eq!(versions, [cluster.meta(2, "d").version, cluster.meta(3, "m").version]);
}

#[test]
fn keys_that_are_found_on_the_way_are_asked_for_too() {
    let mut cluster = apart();
    cluster.run(2, "write=d:m");
    let tag = cluster.submit(1, "follow=d");
    cluster.deliver_all();
    assert_eq!(cluster.read_by(tag), [Some("m"), Some("1")]);
    assert_eq!((cluster.writers("d"), cluster.writers("m")), (vec![2], vec![3]));
}

/// So many keys whose default owner is node 2.
fn keys_of_two(cluster: &Cluster, count: usize) -> Vec<String> {
    let names = (0..).map(|number| format!("k{number}"));
    let is_its = |key: &String| cluster.group(key) == [2];
    names.filter(is_its).take(count).collect()
}

/// Writes such keys with values of so many bytes, and reads them at node 1.
fn read_large(cluster: &mut Cluster, count: usize, bytes: usize) -> u64 {
    let keys = keys_of_two(cluster, count);
    for key in &keys {
        let write = Step::Write(key.clone(), "x".repeat(bytes));
        cluster.submit_as(2, 7, Txn(vec![write]));
    }
    cluster.deliver_all();
    cluster.fresh_packets.clear();
    let tag = cluster.submit_as(1, 7, Txn(keys.into_iter().map(Step::Read).collect()));
    cluster.deliver_all();
    tag
}

#[test]
fn large_values_come_in_several_answers() {
    let mut cluster = nodes(1);
    let tag = read_large(&mut cluster, 4, 1_500_000);
    assert_eq!(cluster.read_by(tag).len(), 4);
    let answers = cluster.fresh_packets.iter().filter(|packet| packet.kind() == "seen");
    let sizes: Vec<usize> = answers.map(|packet| packet.bytes.len()).collect();
    assert_eq!(sizes.len(), 2, "{sizes:?}");
    assert!(sizes.iter().all(|size| *size < limits::TXN_BYTES_MAX + 100), "{sizes:?}");
}

#[test]
fn a_read_of_more_than_a_transaction_may_read_is_refused() {
    let mut cluster = nodes(1);
    let tag = read_large(&mut cluster, 17, limits::VALUE_BYTES_MAX);
    let outcome = cluster.outcome(tag).expect("it has ended");
    assert!(matches!(outcome, quorate_machine::Outcome::Refused(Refusal::TooLarge)));
    assert_eq!(cluster.pending(1), 0);
}

#[test]
fn nobody_tells_of_other_keys_than_were_asked_for() {
    let mut cluster = apart();
    let tag = cluster.submit(1, "read=d read=m");
    let asked = cluster.take(1, 2, "look");
    let Message::Look(LookMessage::Look { question, .. }) = asked[0].message() else {
        unreachable!("it is a look")
    };
    let seen = |version| Some(Seen { version, ..Seen::default() });
    let early = Timestamp::new(5, WriterId(2));
    let lists = [vec![], vec![seen(early), seen(early)]];
    for copies in lists {
        let copies = Copies::write(copies.into_iter());
        let copies = Copies::check(&copies).expect("just written");
        let lie = Message::Look(LookMessage::Seen { question, copies });
        let refused = cluster.lie(2, 1, &lie);
        assert_eq!(refused, Some("zeus: SEEN of other keys than were asked for"));
        // Of who was not asked it is no answer.
        assert_eq!(cluster.lie(4, 1, &lie), None);
    }
    let late = Timestamp::new(u64::MAX / 2, WriterId(2));
    let copies = Copies::write([seen(late)].into_iter());
    let copies = Copies::check(&copies).expect("just written");
    let lie = Message::Look(LookMessage::Seen { question, copies });
    assert!(cluster.lie(2, 1, &lie).is_some_and(|why| why.contains("years ahead")));
    // Nor is what confirms before anything was seen.
    let early = Message::Look(LookMessage::Checked { question, holds: true });
    assert_eq!(cluster.lie(2, 1, &early), None);
    let nothing = Keys::write([].into_iter());
    let keys = Keys::check(&nothing).expect("just written");
    let lie = Message::Look(LookMessage::Look { question, keys });
    assert_eq!(cluster.lie(3, 2, &lie), Some("zeus: LOOK at nothing"));
    cluster.inject(&asked[0]);
    cluster.deliver_all();
    assert_eq!(cluster.read_by(tag), [Some("1"), Some("1")]);
}

#[test]
fn a_node_that_is_not_active_forgets_what_it_has_asked() {
    let mut cluster = apart();
    let tag = cluster.submit(1, "read=d read=m");
    cluster.deliver(1, 2, "look");
    cluster.set_role(1, Role::Shadow);
    assert!(matches!(
        cluster.outcome(tag),
        Some(quorate_machine::Outcome::Refused(Refusal::NotServing))
    ));
    cluster.deliver_all();
}

#[test]
fn lanes_ask_for_keys_of_any_lane() {
    let replicas = Replicas { replicas: Some(1), lanes: Some(2), ..Replicas::default() };
    let mut cluster = Cluster::of(replicas, 4, |_| 0, u64::from);
    for (node, key) in [(1, "c"), (2, "d"), (3, "m"), (4, "g")] {
        cluster.run(node, &format!("write={key}:1"));
    }
    assert_eq!(cluster.run(1, "read=c read=d read=m read=g"), vec![Some("1".to_owned()); 4]);
    assert_eq!((cluster.writers("d"), cluster.writers("m")), (vec![2], vec![3]));
}
