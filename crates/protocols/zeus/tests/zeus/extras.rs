//! Copies outside the group of a key: how they begin and end, and what could go wrong. With four nodes
//! and two replicas `d` belongs to 2, 3 in this order; `c` to 1, 4; `m` to 3, 2.

use quorate_harness::Packet;
use quorate_types::{Duration, LaneId, NodeId, Role, lane_of_key};
use quorate_zeus::{DataState, Extra};

use crate::support::{Cluster, MLT, Replicas, WALL};
use crate::txn::txn;

/// Four nodes; one read of another node's key is enough to want a copy.
pub(crate) fn nodes(lanes: u16) -> Cluster {
    let replicas = Replicas {
        replicas: Some(2),
        lanes: Some(lanes),
        extra_after: Some(1),
        op_timeout: Some(Duration::from_secs(60)),
        ..Replicas::default()
    };
    Cluster::of(replicas, 4, |_| 0, |node| u64::from(node) * 100)
}

/// Node 2 owns `d`, and these nodes have read it.
fn read_by(readers: &[u16]) -> Cluster {
    let mut cluster = nodes(1);
    cluster.run(2, "write=d:1");
    for node in readers {
        give_copy(&mut cluster, *node, "d");
    }
    cluster.fresh_packets.clear();
    cluster
}

fn give_copy(cluster: &mut Cluster, node: u16, key: &str) {
    cluster.run(node, &format!("read={key}"));
    cluster.tick(Duration::from_micros(400));
    cluster.deliver_all();
    assert_eq!(cluster.meta(node, key).extra, Extra::Kept);
}

/// Lets node 1 ask for a copy of `d`; what is said then is under way.
fn ask(cluster: &mut Cluster) {
    cluster.run(1, "read=d");
    cluster.tick_node(1);
    cluster.advance(Duration::from_micros(400));
    cluster.tick_node(1);
}

/// A key moves between two nodes outside its group. The former owner is asked once more when it has dropped
/// the key and has a copy of it, which goes with the view.
#[test]
fn a_former_owner_that_is_asked_late_hears_that_the_round_is_settled() {
    let mut cluster = nodes(1);
    cluster.run(1, "append=d:a");
    cluster.submit(4, "append=d:b");
    let mut asked = None;
    while !cluster.pool.is_empty() {
        let packet = cluster.pool.remove(0);
        if packet.to == NodeId(1) && packet.kind() == "inv" {
            asked = Some(packet.clone());
        }
        cluster.inject(&packet);
    }
    give_copy(&mut cluster, 1, "d");
    cluster.inject(&asked.expect("the owner is an arbiter"));
    cluster.pool.clear();
    cluster.install(&[1, 2, 3, 4].map(|node| (node, Role::Active)));
    cluster.run_for(MLT * 50);
    cluster.assert_quiet(["d".to_owned()]);
}

/// What is under way, in the order in which it was sent.
fn under_way(cluster: &Cluster) -> Vec<String> {
    let name =
        |packet: &Packet<Replicas>| format!("{}->{} {}", packet.from, packet.to, packet.kind());
    cluster.pool.iter().map(name).collect()
}

/// Delivers what is under way, but nothing to or from this node.
fn deliver_without(cluster: &mut Cluster, node: u16) {
    cluster.deliver_some(|packet| packet.from.0 != node && packet.to.0 != node);
}

/// What a read finds that is answered at once, without a message.
fn reads(cluster: &mut Cluster, node: u16, key: &str) -> Option<String> {
    let before = cluster.pool.len();
    let origin = 1_000_000 + cluster.next_tag();
    let tag = cluster.submit_on(node, 0, origin, txn(&format!("read={key}")));
    cluster.outcome(tag)?;
    assert_eq!(cluster.pool.len(), before, "a message for a read at {node}");
    cluster.read_by(tag)[0].map(str::to_owned)
}

fn quiet(cluster: &mut Cluster) {
    cluster.run_for(MLT * 40);
    cluster.assert_quiet(["d".to_owned()]);
}

// --- how they begin and end ------------------------------------------------------------------------

#[test]
fn a_node_that_reads_a_key_often_gets_a_copy() {
    let mut cluster = nodes(1);
    cluster.run(2, "write=d:1");
    ask(&mut cluster);
    // A member of the group passes it on to the owner.
    assert_eq!(under_way(&cluster), ["1->3 want"]);
    cluster.deliver(1, 3, "want");
    assert_eq!(under_way(&cluster), ["3->2 want"]);
    cluster.deliver(3, 2, "want");
    assert_eq!(under_way(&cluster), ["2->1 grant"]);
    assert_eq!(reads(&mut cluster, 1, "d"), None, "it has no copy yet");
    cluster.pool.retain(|packet| packet.kind() != "look");
    cluster.deliver(2, 1, "grant");
    assert_eq!(under_way(&cluster), ["1->2 keep"]);
    assert_eq!(reads(&mut cluster, 1, "d").as_deref(), Some("1"));
    cluster.deliver_all();
    assert_eq!(cluster.extra_readers("d"), [1]);
    quiet(&mut cluster);
}

#[test]
fn a_write_costs_two_messages_more_for_each_extra_reader() {
    let cost = |readers: &[u16]| {
        let mut cluster = read_by(readers);
        cluster.submit(2, "append=d:2");
        cluster.submit(2, "append=d:3");
        cluster.deliver_all();
        let kinds = cluster.fresh_packets.iter().map(Packet::kind);
        let sent = kinds.filter(|kind| ["r-inv", "r-ack"].contains(kind)).count();
        for node in readers {
            assert_eq!(reads(&mut cluster, *node, "d").as_deref(), Some("123"));
        }
        sent
    };
    assert_eq!([cost(&[]), cost(&[1]), cost(&[1, 4])], [4, 8, 12]);
}

#[test]
fn what_is_written_is_read_at_an_extra_reader_when_it_is_committed() {
    let mut cluster = read_by(&[1]);
    let write = cluster.submit(2, "append=d:2");
    deliver_without(&mut cluster, 1);
    cluster.assert_open(write);
    assert_eq!(reads(&mut cluster, 1, "d").as_deref(), Some("1"), "it has not heard of it");
    cluster.deliver(2, 1, "r-inv");
    let read = cluster.submit(1, "read=d");
    cluster.assert_open(read);
    cluster.deliver_all();
    assert_eq!(
        (cluster.read_by(write), cluster.read_by(read)),
        (vec![Some("1")], vec![Some("12")])
    );
    quiet(&mut cluster);
}

#[test]
fn a_key_has_two_extra_readers_at_most() {
    let replicas = Replicas { replicas: Some(2), extra_after: Some(1), ..Replicas::default() };
    let mut cluster = Cluster::of(replicas, 6, |_| 0, u64::from);
    let group = cluster.group("d");
    cluster.run(group[0], "write=d:1");
    let others: Vec<u16> = (1..=6).filter(|node| !group.contains(node)).collect();
    for node in &others {
        cluster.run(*node, "read=d");
        cluster.tick(Duration::from_micros(400));
        cluster.deliver_all();
    }
    assert_eq!(cluster.extra_readers("d"), others[..2]);
    cluster.run_for(MLT * 2);
    cluster.assert_quiet(["d".to_owned()]);
}

#[test]
fn a_copy_that_is_not_read_ends() {
    let mut cluster = read_by(&[1]);
    cluster.run_for(Duration::from_secs(9));
    assert_eq!(reads(&mut cluster, 1, "d").as_deref(), Some("1"));
    cluster.run_for(Duration::from_secs(9));
    assert_eq!(cluster.extra_readers("d"), [1], "it was read meanwhile");
    cluster.run_for(Duration::from_secs(4));
    assert_eq!(cluster.extra_readers("d"), [0; 0]);
    assert_eq!(cluster.record(1, "d"), None);
    quiet(&mut cluster);
}

#[test]
fn a_copy_that_is_written_more_often_than_read_ends() {
    let mut cluster = read_by(&[1]);
    for _ in 0..8 {
        cluster.run(2, "append=d:x");
    }
    assert!(reads(&mut cluster, 1, "d").is_some());
    cluster.run_for(Duration::from_secs(2));
    assert_eq!((cluster.extra_readers("d"), cluster.record(1, "d")), (vec![], None));
}

#[test]
fn a_copy_ends_when_the_key_is_deleted() {
    let mut cluster = read_by(&[1]);
    cluster.run(2, "del=d");
    assert_eq!(cluster.record(1, "d"), None);
    assert_eq!(cluster.extra_readers("d"), [0; 0]);
    cluster.run(1, "read=d");
    quiet(&mut cluster);
}

#[test]
fn a_value_expires_although_it_has_extra_readers() {
    let mut cluster = read_by(&[]);
    cluster.run(2, &format!("expire=d:{}", WALL / 1_000_000 + 500));
    give_copy(&mut cluster, 1, "d");
    cluster.run_for(Duration::from_secs(3));
    let left = [1, 2, 3].map(|node| cluster.record(node, "d").and_then(|(_, value)| value));
    assert_eq!(left, [None, None, None]);
    assert_eq!((cluster.extra_readers("d"), cluster.record(1, "d")), (vec![], None));
    quiet(&mut cluster);
}

#[test]
fn a_reader_that_writes_drops_its_copy_first() {
    let mut cluster = read_by(&[1, 4]);
    assert_eq!(cluster.run(1, "append=d:2"), [Some("1".to_owned())]);
    assert_eq!((cluster.writers("d"), cluster.meta(1, "d").extra), (vec![1], Extra::None));
    assert_eq!(cluster.record(4, "d"), None);
    quiet(&mut cluster);
}

#[test]
fn readers_wait_for_nobody_when_their_copy_goes() {
    let mut cluster = read_by(&[1]);
    cluster.submit(2, "append=d:2");
    cluster.deliver(2, 1, "r-inv");
    let read = cluster.submit(1, "read=d");
    cluster.submit(4, "append=d:3");
    cluster.deliver_some(|packet| ["req", "inv", "withdraw"].contains(&packet.kind()));
    assert!(
        under_way(&cluster).contains(&"1->2 look".to_owned())
            || under_way(&cluster).contains(&"1->3 look".to_owned()),
        "it asks a member"
    );
    cluster.deliver_all();
    assert!(cluster.outcome(read).is_some());
    quiet(&mut cluster);
}

#[test]
fn what_is_lost_is_said_again() {
    let mut cluster = nodes(1);
    cluster.run(2, "write=d:1");
    for lost in ["want", "grant", "keep"] {
        ask(&mut cluster);
        cluster.deliver_some(|packet| packet.kind() != lost);
        cluster.take(0, 0, lost);
        cluster.run_for(MLT * 3);
        assert_eq!(cluster.extra_readers("d"), [1], "{lost} was lost");
        cluster.run(2, "del=d");
        cluster.run(2, "write=d:1");
    }
    for lost in ["withdraw", "gone"] {
        give_copy(&mut cluster, 1, "d");
        let owner = cluster.writers("d")[0];
        let next = if owner == 2 { 3 } else { 2 };
        let moved = cluster.submit(next, "append=d:2");
        cluster.deliver_some(|packet| packet.kind() != lost);
        cluster.take(0, 0, lost);
        cluster.assert_open(moved);
        cluster.run_for(MLT * 3);
        assert!(cluster.outcome(moved).is_some(), "{lost} was lost");
    }
    give_copy(&mut cluster, 1, "d");
    let owner = cluster.writers("d")[0];
    cluster.submit(owner, "del=d");
    cluster.deliver_some(|packet| packet.kind() != "leave");
    cluster.take(0, 0, "leave");
    cluster.run_for(MLT * 3);
    quiet(&mut cluster);
}

// --- what could go wrong -----------------------------------------------------------------------------

/// E1: the next owner does not know the readers of the last one.
#[test]
fn an_owner_withdraws_copies_before_it_gives_a_key_away() {
    let mut cluster = read_by(&[1]);
    let moved = cluster.submit(4, "append=d:2");
    deliver_without(&mut cluster, 1);
    cluster.assert_open(moved);
    assert_eq!(reads(&mut cluster, 1, "d").as_deref(), Some("1"));
    cluster.deliver(2, 1, "withdraw");
    assert_eq!(cluster.record(1, "d"), None);
    cluster.deliver_all();
    assert_eq!(cluster.read_by(moved), [Some("1")]);
    quiet(&mut cluster);
}

/// E2: an extra reader hears of a view last, and reads its copy meanwhile.
#[test]
fn extra_readers_that_miss_a_view_are_waited_for() {
    let mut cluster = read_by(&[1]);
    let roles = cluster.roles();
    let view = cluster.decide(&roles);
    for node in [2, 3, 4] {
        cluster.install_on(node, &view);
    }
    deliver_without(&mut cluster, 1);
    let written = cluster.submit(2, "append=d:2");
    deliver_without(&mut cluster, 1);
    cluster.run_some(MLT * 3, |packet| packet.to.0 != 1);
    cluster.assert_open(written);
    // Nor does it give the key away: the next owner would not wait.
    let moved = cluster.submit(4, "append=d:3");
    cluster.run_some(MLT * 3, |packet| packet.to.0 != 1);
    cluster.assert_open(moved);
    assert_eq!(reads(&mut cluster, 1, "d").as_deref(), Some("1"));
    cluster.install_on(1, &view);
    assert_eq!(cluster.record(1, "d"), None, "no copy outlives its epoch");
    cluster.run_for(MLT * 40);
    assert_eq!(cluster.read_by(written), [Some("1")]);
    assert_eq!(cluster.read_by(moved), [Some("12")]);
    quiet(&mut cluster);
}

/// E2: and what was under way when the view came waits for them, too.
#[test]
fn what_is_under_way_waits_for_extra_readers_that_miss_a_view() {
    let mut cluster = read_by(&[1]);
    let written = cluster.submit(2, "append=d:2");
    let roles = cluster.roles();
    let view = cluster.decide(&roles);
    for node in [2, 3, 4] {
        cluster.install_on(node, &view);
    }
    deliver_without(&mut cluster, 1);
    cluster.assert_open(written);
    assert_eq!(reads(&mut cluster, 1, "d").as_deref(), Some("1"));
    cluster.install_on(1, &view);
    cluster.run_for(MLT * 40);
    assert_eq!(cluster.read_by(written), [Some("1")]);
    quiet(&mut cluster);
}

/// E3: what an extra reader acknowledges is in its copy.
#[test]
fn an_extra_reader_acknowledges_what_it_has_applied() {
    let mut cluster = read_by(&[1]);
    let write = cluster.submit(2, "append=d:2");
    cluster.deliver_all();
    assert_eq!(cluster.read_by(write), [Some("1")]);
    assert_eq!(reads(&mut cluster, 1, "d").as_deref(), Some("12"));
}

/// E4: the grant comes after a transaction that was written later.
#[test]
fn a_grant_does_not_undo_what_came_before_it() {
    let mut cluster = nodes(1);
    cluster.run(2, "write=d:1");
    ask(&mut cluster);
    cluster.deliver_some(|packet| packet.kind() == "want");
    let write = cluster.submit(2, "append=d:2");
    cluster.deliver_some(|packet| packet.kind() != "grant");
    assert_eq!(cluster.read_by(write), [Some("1")], "it has applied it");
    cluster.deliver(2, 1, "grant");
    assert_eq!(reads(&mut cluster, 1, "d").as_deref(), Some("12"));
    quiet(&mut cluster);
}

/// E4: what was applied before the grant may not be committed.
#[test]
fn a_grant_commits_nothing_but_what_it_brings() {
    let mut cluster = nodes(1);
    cluster.run(2, "write=d:1");
    ask(&mut cluster);
    cluster.deliver_some(|packet| packet.kind() == "want");
    cluster.submit(2, "append=d:2");
    cluster.deliver(2, 1, "r-inv");
    cluster.deliver(2, 1, "grant");
    assert_eq!(cluster.meta(1, "d").data, DataState::Invalid);
    let read = cluster.submit(1, "read=d");
    cluster.assert_open(read);
    cluster.deliver_all();
    assert_eq!(cluster.read_by(read), [Some("12")]);
}

/// E5: a transaction deletes the key before the grant comes, which would bring it back.
#[test]
fn a_grant_brings_nothing_back_that_was_deleted() {
    let mut cluster = nodes(1);
    cluster.run(2, "write=d:1");
    ask(&mut cluster);
    cluster.deliver_some(|packet| packet.kind() == "want");
    let deleted = cluster.submit(2, "del=d");
    cluster.deliver_some(|packet| packet.kind() != "grant");
    assert!(cluster.outcome(deleted).is_some());
    cluster.deliver(2, 1, "grant");
    assert_eq!(cluster.record(1, "d"), None);
    cluster.deliver_all();
    assert_eq!(cluster.run(1, "read=d"), [None]);
    quiet(&mut cluster);
}

/// E6: the grant of an earlier request comes late, when the owner has long forgotten it.
#[test]
fn a_grant_counts_for_its_request_alone() {
    let mut cluster = nodes(1);
    cluster.run(2, "write=d:1");
    ask(&mut cluster);
    cluster.deliver_some(|packet| packet.kind() == "want");
    let late = cluster.take(2, 1, "grant").remove(0);
    // The key moves, and comes back.
    cluster.run(3, "append=d:2");
    cluster.run(2, "append=d:3");
    assert_eq!(cluster.extra_readers("d"), [0; 0]);
    ask(&mut cluster);
    cluster.inject(&late);
    assert_eq!(cluster.meta(1, "d").extra, Extra::Wanted);
    assert!(under_way(&cluster).contains(&"1->2 gone".to_owned()));
    cluster.deliver_all();
    assert_eq!(reads(&mut cluster, 1, "d").as_deref(), Some("123"));
    quiet(&mut cluster);
}

/// E6: and so does the end of an earlier copy.
#[test]
fn the_end_of_a_copy_counts_for_its_request_alone() {
    let mut cluster = read_by(&[1]);
    cluster.submit(2, "del=d");
    cluster.deliver_some(|packet| packet.kind() != "leave");
    let late = cluster.take(1, 2, "leave").remove(0);
    cluster.inject(&late);
    cluster.deliver_all();
    cluster.run(2, "write=d:1");
    give_copy(&mut cluster, 1, "d");
    cluster.inject(&late);
    assert_eq!(cluster.extra_readers("d"), [1]);
    cluster.run(2, "append=d:2");
    assert_eq!(reads(&mut cluster, 1, "d").as_deref(), Some("12"));
}

/// E7: a node that has asked for a copy may follow a transaction for the sake of another key. That does
/// not make it a follower of this one.
#[test]
fn nothing_is_read_before_the_grant() {
    let mut cluster = nodes(1);
    cluster.run(2, "write=d:1 write=c:1");
    ask(&mut cluster);
    cluster.pool.clear();
    // Node 1 keeps `c`, and so applies this one.
    cluster.run(2, "append=d:2 append=c:2");
    assert_eq!(cluster.record(1, "d").map(|(_, value)| value), Some(Some("12".to_owned())));
    cluster.run(2, "append=d:3");
    assert_eq!(reads(&mut cluster, 1, "d"), None, "it has not heard of the last");
    cluster.run_for(MLT * 3);
    assert_eq!(reads(&mut cluster, 1, "d").as_deref(), Some("123"));
    quiet(&mut cluster);
}

/// E8: the value that is granted is committed.
#[test]
fn nothing_is_granted_that_is_not_committed() {
    let mut cluster = nodes(1);
    cluster.run(2, "write=d:1");
    ask(&mut cluster);
    cluster.submit(2, "append=d:2");
    cluster.deliver_some(|packet| packet.kind() == "want");
    assert_eq!(cluster.take(2, 1, "grant").len(), 0);
    cluster.run_for(MLT * 3);
    assert_eq!(reads(&mut cluster, 1, "d").as_deref(), Some("12"));
}

// --- lanes -------------------------------------------------------------------------------------------

/// A key of each lane of those that belong to nodes 2 and 3, in this order.
fn keys() -> [String; 2] {
    let cluster = nodes(2);
    [0, 1].map(|lane| {
        let mut names = (0..).map(|number| format!("k{number}"));
        let fits = |name: &String| {
            lane_of_key(name.as_bytes(), 2) == LaneId(lane)
                && cluster.group(name) == [2, 3]
                && cluster.machine_of(2, name).default_owner_of(name.as_bytes())
                    == Some(quorate_types::NodeId(2))
        };
        names.find(fits).expect("keys are spread over lanes")
    })
}

/// E9: a lane that has borrowed a key commits writes of it, and its own lane knows the readers.
#[test]
fn a_loan_names_the_extra_readers() {
    let (mut cluster, [a, b]) = (nodes(2), keys());
    cluster.run(2, &format!("write={a}:1 write={b}:1"));
    give_copy(&mut cluster, 1, &b);
    let written = cluster.submit_on(2, 0, 7, txn(&format!("write={a}:2 append={b}:2")));
    cluster.deliver_all_mail();
    deliver_without(&mut cluster, 1);
    cluster.deliver_all_mail();
    cluster.assert_open(written);
    assert_eq!(reads(&mut cluster, 1, &b).as_deref(), Some("1"));
    cluster.deliver_all();
    assert_eq!(cluster.read_by(written), [Some("1")]);
    assert_eq!(reads(&mut cluster, 1, &b).as_deref(), Some("12"));
    cluster.run_for(MLT * 3);
    cluster.assert_quiet([a, b]);
}

/// E9: nor does a key get a reader while it is lent: the borrower would not know.
#[test]
fn no_extra_reader_is_added_while_a_key_is_lent() {
    let (mut cluster, [a, b]) = (nodes(2), keys());
    cluster.run(2, &format!("write={a}:1 write={b}:1"));
    cluster.run(1, &format!("read={b}"));
    cluster.tick_node(1);
    cluster.advance(Duration::from_micros(400));
    cluster.tick_node(1);
    let wanted = cluster.pool.iter().any(|packet| packet.kind() == "want");
    assert!(wanted, "{:?}", under_way(&cluster));
    // The loan is not used yet: the transaction waits for another key.
    let written = cluster.submit_on(2, 0, 7, txn(&format!("write={a}:2 append={b}:2 append=c:2")));
    cluster.deliver_all_mail();
    cluster.deliver_some(|packet| packet.kind() == "want");
    assert_eq!(cluster.take(2, 1, "grant").len(), 0);
    cluster.deliver_all();
    assert!(cluster.outcome(written).is_some());
    cluster.run_for(MLT * 3);
    assert_eq!(cluster.extra_readers(&b), [1]);
    assert_eq!(reads(&mut cluster, 1, &b).as_deref(), Some("12"));
    cluster.assert_quiet([a, b, "c".to_owned()]);
}

/// E5: what deletes the key comes on the lane that has borrowed it, and the key's own lane hears of that
/// after the grant.
#[test]
fn a_grant_brings_nothing_back_that_another_lane_has_deleted() {
    let (mut cluster, [a, b]) = (nodes(2), keys());
    cluster.run(2, &format!("write={a}:1 write={b}:1"));
    cluster.run(1, &format!("read={b}"));
    cluster.tick_node(1);
    cluster.advance(Duration::from_micros(400));
    cluster.tick_node(1);
    cluster.deliver_some(|packet| packet.kind() == "want");
    let grant = cluster.take(2, 1, "grant").remove(0);
    cluster.submit_on(2, 0, 7, txn(&format!("write={a}:2 del={b}")));
    cluster.deliver_all_mail();
    cluster.deliver(2, 1, "r-inv");
    cluster.inject(&grant);
    cluster.deliver_all();
    assert_eq!(cluster.record(1, &b), None);
    cluster.run_for(MLT * 3);
    cluster.assert_quiet([a, b]);
}

/// A transaction of one lane waits for the commit of a copy of another, which ends meanwhile: it asks other
/// nodes, and no key moves.
#[test]
fn a_lane_that_waits_for_a_copy_that_ends_asks_other_nodes() {
    let (mut cluster, [a, b]) = (nodes(2), keys());
    cluster.run(2, &format!("write={a}:1 write={b}:1"));
    give_copy(&mut cluster, 1, &a);
    give_copy(&mut cluster, 1, &b);
    let written = cluster.submit_on(2, 1, 7, txn(&format!("append={b}:2")));
    cluster.deliver(2, 1, "r-inv");
    let read = cluster.submit_on(1, 0, 8, txn(&format!("read={a} read={b}")));
    cluster.deliver_all_mail();
    cluster.assert_open(read);
    let moved = cluster.submit_on(3, 1, 9, txn(&format!("append={b}:3")));
    cluster.deliver_all();
    assert_eq!(cluster.read_by(written), [Some("1")]);
    assert_eq!(cluster.read_by(moved), [Some("12")]);
    assert!(cluster.outcome(read).is_some());
    assert_eq!((cluster.writers(&a), cluster.writers(&b)), (vec![2], vec![3]));
    cluster.run_for(MLT * 3);
    cluster.assert_quiet([a, b]);
}

/// E10: a lane may begin an epoch before another, and the owner need not wait for this node then.
#[test]
fn a_lane_drops_its_copies_when_it_stops_for_a_view() {
    let (mut cluster, [a, _]) = (nodes(2), keys());
    cluster.run(2, &format!("write={a}:1"));
    give_copy(&mut cluster, 1, &a);
    let roles = cluster.roles();
    let view = cluster.decide(&roles);
    cluster.step_on(1, 0, quorate_machine::Event::View(&view));
    assert_eq!(cluster.record(1, &a), None);
    cluster.set_role(1, Role::Active);
    cluster.run_for(MLT * 5);
    cluster.assert_quiet([a]);
}
