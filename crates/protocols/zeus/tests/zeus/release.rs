//! Deleted keys and expired values go, and nothing brings them back. With three nodes `y` belongs to 1, 2,
//! 3, `z` to 3, 2, 1; with four nodes and two replicas `d` belongs to 2, 3.

use quorate_harness::{Clock, Packet};
use quorate_machine::{Machine as _, Outcome, Refusal};
use quorate_types::{Duration, Instant, LaneId, Role, Timestamp, lane_of_key};
use quorate_zeus::{FloorStep, Message};

use crate::support::{Cluster, MLT, Replicas, WALL, is_copy};
use crate::txn::{Seen, txn};

const COLLECT: Duration = Duration::from_millis(50);

fn cluster(count: u16, replicas: usize) -> Cluster {
    let (replicas, collect_every) = (Some(replicas), Some(COLLECT));
    let replicas = Replicas { replicas, collect_every, ..Replicas::default() };
    Cluster::of(replicas, count, |_| 0, u64::from)
}

fn is_floor(packet: &Packet<Replicas>, wanted: FloorStep) -> bool {
    matches!(packet.message(), Message::Floor { step, .. } if step == wanted)
}

fn holders(cluster: &Cluster, key: &str) -> Vec<u16> {
    cluster.nodes().into_iter().filter(|node| cluster.record(*node, key).is_some()).collect()
}

#[test]
fn a_deleted_key_is_forgotten_everywhere_and_its_version_is_not_used_again() {
    let mut cluster = cluster(3, 3);
    cluster.run(1, "write=y:1");
    cluster.run(2, "del=y");
    let deleted = cluster.meta(2, "y").version;
    assert_eq!(holders(&cluster, "y"), [1, 2, 3]);
    cluster.run_for(COLLECT * 20);
    assert_eq!(holders(&cluster, "y"), [0; 0]);
    assert_eq!(cluster.writers("y"), [1], "the default owner");
    for node in 1..=3 {
        let tag = cluster.submit(node, "read=y");
        cluster.deliver_all();
        let Some(Outcome::Done(reply)) = cluster.outcome(tag) else { panic!("op {tag} is open") };
        assert!(reply[0].version >= deleted, "{:?} was {deleted:?}", reply[0].version);
    }
    cluster.run(3, "write=y:2");
    assert!(cluster.meta(3, "y").version > deleted);
    cluster.assert_quiet(["y".to_owned()]);
    cluster.run_for(Duration::from_secs(3));
    let idle = cluster.hosts[&1].machine();
    assert_eq!(idle.next_deadline(), Instant::NEVER, "nothing is left to look for");
}

/// Their names alone are more than a node lists of what is to be forgotten.
#[test]
fn however_many_keys_are_deleted_all_are_forgotten() {
    let mut cluster = cluster(3, 3);
    let keys: Vec<String> = (0..150).map(|key| format!("{key}{}", "k".repeat(8_000))).collect();
    for key in &keys {
        cluster.run(1, &format!("write={key}:1"));
    }
    for key in &keys {
        cluster.run(1, &format!("del={key}"));
    }
    cluster.run_for(COLLECT * 60);
    assert!(keys.iter().all(|key| holders(&cluster, key).is_empty()));
    assert_eq!(cluster.hosts[&1].machine().next_deadline(), Instant::NEVER);
}

#[test]
fn an_owner_outside_the_group_agrees_before_anybody_forgets() {
    let mut cluster = cluster(4, 2);
    cluster.run(2, "write=d:1");
    cluster.run(1, "del=d");
    assert_eq!(holders(&cluster, "d"), [1, 2, 3]);
    // Node 1 hears of no round.
    for _ in 0..20 {
        cluster.run_some(COLLECT, |packet| !packet.is(0, 1, "inv"));
        cluster.pool.clear();
    }
    assert_eq!((cluster.writers("d"), holders(&cluster, "d")), (vec![1], vec![1, 2, 3]));
    cluster.run_for(COLLECT * 20);
    assert_eq!((cluster.writers("d"), holders(&cluster, "d")), (vec![2], vec![]));
}

#[test]
fn a_key_is_forgotten_when_the_floor_is_above_it() {
    let mut cluster = cluster(3, 3);
    cluster.run(1, "write=y:1");
    cluster.run(1, "del=y");
    for _ in 0..20 {
        cluster.run_some(COLLECT, |packet| !is_floor(packet, FloorStep::Commit));
        cluster.pool.clear();
    }
    assert_eq!(cluster.probed("zeus: the floor rises"), 1, "not again before all know it");
    assert_eq!(holders(&cluster, "y"), [1, 2, 3]);
    cluster.run_for(COLLECT * 20);
    assert_eq!(holders(&cluster, "y"), [0; 0]);
}

/// Its round would be one more that the transaction has to outlast, for a key that is about to be used.
#[test]
fn a_key_that_a_transaction_waits_with_is_released_afterwards() {
    let mut cluster = cluster(3, 3);
    cluster.run(3, "write=z:1");
    cluster.run(1, "write=y:1");
    cluster.run(1, "del=y");
    let waiting = cluster.submit(1, "del=y write=z:2");
    for _ in 0..20 {
        cluster.run_some(COLLECT, |packet| !packet.is(0, 3, "inv"));
        cluster.pool.clear();
    }
    cluster.assert_open(waiting);
    let released = "zeus: a key without a value is released";
    assert_eq!((cluster.probed(released), holders(&cluster, "y")), (0, vec![1, 2, 3]));
    cluster.run_for(COLLECT * 20);
    assert!(matches!(cluster.outcome(waiting), Some(Outcome::Done(_))));
    assert_eq!((cluster.probed(released), holders(&cluster, "y")), (1, vec![]));
}

/// Rounds count up faster than a hybrid clock that is ahead of the wall.
#[test]
fn a_key_is_forgotten_after_wall_clocks_have_gone_back() {
    let mut cluster = cluster(3, 3);
    cluster.run(1, "write=y:1");
    cluster.run(1, "del=y");
    cluster.run_for(COLLECT * 20);
    for node in 1..=3 {
        cluster.set_clock(node, Clock { ahead: -3_600_000_000_000, ..Clock::default() });
    }
    for node in [1, 2, 3].repeat(20) {
        cluster.run(node, "del=y");
    }
    assert_eq!(holders(&cluster, "y"), [1, 2, 3]);
    cluster.run_for(COLLECT * 20);
    assert_eq!(holders(&cluster, "y"), [0; 0]);
}

/// Node 1 has forgotten the key, so for it the round begins from another entry than for the others.
#[test]
fn a_key_that_some_have_forgotten_moves() {
    let mut cluster = cluster(3, 3);
    cluster.run(1, "write=y:1");
    cluster.run(1, "del=y");
    let is_last = |packet: &Packet<Replicas>| matches!(packet.message(), Message::Floor { before, .. } if before > 0);
    while holders(&cluster, "y").contains(&1) {
        cluster.run_some(MLT / 4, |packet| !is_last(packet));
        cluster.pool.retain(|packet| !is_last(packet));
    }
    assert_eq!(holders(&cluster, "y"), [2, 3]);
    let tag = cluster.submit(3, "write=y:2");
    cluster.run_for(MLT * 3);
    assert!(matches!(cluster.outcome(tag), Some(Outcome::Done(_))));
    assert_eq!(cluster.probed("zeus: a driver begins from an earlier entry"), 1);
    cluster.assert_quiet(["y".to_owned()]);
}

/// A claim that is under way when the floor is prepared would be below it.
#[test]
fn the_floor_waits_for_what_is_under_way() {
    let mut cluster = cluster(3, 3);
    cluster.run(1, "write=y:1");
    cluster.run(1, "del=y");
    let claim = cluster.submit(3, "write=z:1");
    for _ in 0..20 {
        cluster.run_some(COLLECT, |packet| !packet.is(3, 0, "r-inv"));
        cluster.pool.clear();
    }
    cluster.assert_open(claim);
    assert_eq!(cluster.probed("zeus: the floor rises"), 0);
    cluster.run_for(COLLECT * 20);
    assert_eq!(holders(&cluster, "y"), [0; 0]);
    cluster.assert_quiet(["z".to_owned()]);
}

/// A follower that does not know of a commit would replay it after its coordinator's death.
#[test]
fn the_floor_waits_until_commits_are_known() {
    let mut cluster = cluster(3, 3);
    cluster.run(1, "write=y:1");
    cluster.run(1, "del=y");
    cluster.submit(1, "write=x:1");
    cluster.deliver_some(|packet| !packet.is(1, 3, "r-val"));
    for _ in 0..20 {
        cluster.run_some(COLLECT, |packet| !packet.is(1, 3, "r-val"));
        cluster.pool.clear();
    }
    assert_eq!(cluster.probed("zeus: the floor rises"), 0);
    cluster.run_for(COLLECT * 20);
    assert_eq!(holders(&cluster, "y"), [0; 0]);
}

#[test]
fn what_comes_late_brings_nothing_back() {
    let mut cluster = cluster(4, 2);
    cluster.fresh_packets.clear();
    cluster.run(2, "write=d:1");
    cluster.run(1, "append=d:2");
    cluster.run(4, "append=d:3");
    cluster.run(3, "del=d");
    let late = std::mem::take(&mut cluster.fresh_packets);
    cluster.run_for(COLLECT * 20);
    assert_eq!(holders(&cluster, "d"), [0; 0]);
    for packet in &late {
        cluster.inject(packet);
    }
    cluster.run_for(COLLECT * 40);
    assert_eq!(holders(&cluster, "d"), [0; 0]);
    assert_eq!(cluster.run(1, "read=d"), [None]);
}

/// Node 3 comes back after the floor has risen, and is the default owner of `z`.
#[test]
fn who_was_not_there_begins_above_the_floor_too() {
    let mut cluster = cluster(3, 3);
    cluster.run(3, "write=z:1");
    cluster.run(3, "del=z");
    cluster.run_for(COLLECT * 20);
    assert_eq!(holders(&cluster, "z"), [0; 0]);
    cluster.expel(&[3]);
    cluster.deliver_all();
    cluster.rejoin(3);
    cluster.deliver_all();
    cluster.set_role(3, Role::Active);
    cluster.deliver_all();
    cluster.run(3, "write=z:2");
    cluster.assert_quiet(["z".to_owned()]);
    assert_eq!(cluster.run(1, "append=z:3"), [Some("2".to_owned())]);
    assert_eq!(cluster.writers("z"), [1]);
}

/// Node 3 comes back, and the floor rises above `y` before it has copied that. Its version is then under
/// way, and lost: the one before it lies below the floor.
#[test]
fn what_was_not_copied_is_not_below_the_floor() {
    let mut cluster = cluster(3, 3);
    cluster.run(1, "write=y:1");
    cluster.run(1, "write=x:1");
    cluster.expel(&[3]);
    cluster.deliver_all();
    cluster.rejoin(3);
    cluster.run_some(COLLECT, |packet| !packet.is(3, 0, "copy_read"));
    cluster.submit(1, "del=x");
    for _ in 0..20 {
        cluster.run_some(COLLECT, |packet| !packet.is(3, 0, "copy_read"));
        cluster.pool.clear();
    }
    assert_eq!(cluster.probed("zeus: the floor rises"), 2);
    cluster.submit(1, "append=y:2");
    cluster.run_some(MLT * 2, is_copy);
    assert!(!cluster.machine(3).is_caught_up(), "its version is under way");
    cluster.pool.clear();
    cluster.expel(&[1]);
    cluster.run_for(MLT * 5);
    assert!(cluster.machine(3).is_caught_up());
    cluster.set_role(3, Role::Active);
    cluster.deliver_all();
    assert_eq!(cluster.run(3, "read=y"), [Some("1".to_owned())]);
    cluster.assert_quiet(["y".to_owned()]);
}

#[test]
fn an_expired_value_is_deleted_without_a_reader() {
    let mut cluster = cluster(4, 2);
    cluster.run(2, "write=d:1");
    cluster.run(1, &format!("expire=d:{}", WALL / 1_000_000 + 200));
    cluster.run_for(Duration::from_millis(150));
    assert_eq!(cluster.run(3, "read=d"), [Some("1".to_owned())]);
    cluster.run_for(Duration::from_millis(200));
    assert_eq!(cluster.probed("zeus: an expired value is deleted"), 1);
    cluster.run_for(COLLECT * 20);
    assert_eq!(holders(&cluster, "d"), [0; 0]);
}

#[test]
fn a_value_that_expires_does_not_wait_for_keys_that_were_deleted() {
    let collect_every = Some(Duration::from_secs(10));
    let replicas = Replicas { replicas: Some(3), collect_every, ..Replicas::default() };
    let mut cluster = Cluster::of(replicas, 3, |_| 0, u64::from);
    cluster.run(1, "write=z:1");
    cluster.run(1, "del=z");
    cluster.run(1, "write=y:1");
    cluster.run(1, &format!("expire=y:{}", WALL / 1_000_000 + 200));
    cluster.run_for(Duration::from_millis(2_500));
    assert_eq!(cluster.probed("zeus: an expired value is deleted"), 1);
}

/// What a transaction has seen of its first key.
fn seen(cluster: &mut Cluster, node: u16, text: &str) -> Seen {
    let tag = cluster.submit(node, text);
    cluster.deliver_all();
    let Some(Outcome::Done(reply)) = cluster.outcome(tag) else { panic!("op {tag} is open") };
    reply[0].clone()
}

#[test]
fn a_watch_of_an_absent_key_holds_while_the_floor_rises() {
    let mut cluster = cluster(4, 2);
    cluster.run(2, "write=d:1");
    cluster.run(3, "del=d");
    let mut held = 0;
    for step in 0..200 {
        cluster.run(1, &format!("write=c{step}:1"));
        cluster.run(1, &format!("del=c{step}"));
        let node = 2 + step % 2;
        let looked = seen(&mut cluster, node, "watch=d");
        cluster.run_for(COLLECT / 3);
        let found = seen(&mut cluster, 1 + step % 4, "read=d write=e:1");
        assert!(found.is_as(&looked), "{found:?} was {looked:?} in step {step}");
        held += 1;
    }
    let rises = cluster.probed("zeus: the floor rises");
    assert!(rises > 10, "{rises} in {held} steps");
}

#[test]
fn a_watch_fails_if_a_key_was_made_and_forgotten_again() {
    let mut cluster = cluster(4, 2);
    for round in 1..=3 {
        let looked = [2, 3].map(|node| seen(&mut cluster, node, "watch=d"));
        cluster.run(round, &format!("write=d:{round}"));
        cluster.run(3, "del=d");
        cluster.run_for(COLLECT * 30);
        assert_eq!(holders(&cluster, "d"), [0; 0]);
        for node in 1..=4 {
            let found = seen(&mut cluster, node, "read=d write=e:1");
            assert!(looked.iter().all(|looked| !found.is_as(looked)), "{found:?} was {looked:?}");
        }
        cluster.run_for(COLLECT * 30);
    }
}

/// Node 3 is the default owner of `z`, and comes back after that was made, deleted and forgotten.
#[test]
fn a_watch_fails_at_who_was_not_there() {
    let mut cluster = cluster(3, 3);
    let looked = seen(&mut cluster, 1, "watch=z");
    cluster.expel(&[3]);
    cluster.deliver_all();
    cluster.run(1, "write=z:1");
    cluster.run(1, "del=z");
    cluster.run_for(COLLECT * 30);
    assert_eq!(holders(&cluster, "z"), [0; 0]);
    cluster.rejoin(3);
    cluster.deliver_all();
    cluster.set_role(3, Role::Active);
    cluster.deliver_all();
    let found = seen(&mut cluster, 3, "read=z write=z:2");
    assert!(!found.is_as(&looked), "{found:?} was {looked:?}");
}

#[test]
fn a_request_that_nobody_serves_goes_with_its_transaction() {
    let mut cluster = cluster(4, 2);
    cluster.expel(&[2, 3]);
    cluster.deliver_all();
    let tag = cluster.submit(1, "write=d:1");
    cluster.run_for(Duration::from_secs(3));
    assert_eq!(cluster.outcome(tag), Some(&Outcome::Refused(Refusal::TimedOut)));
    assert!(cluster.hosts[&1].machine().is_at_rest());
}

#[test]
fn a_key_that_was_never_written_leaves_nothing() {
    let mut cluster = cluster(4, 2);
    cluster.run(1, "read=d write=c:1");
    assert_eq!(holders(&cluster, "d"), [1, 2, 3]);
    cluster.run_for(COLLECT * 20 + MLT);
    assert_eq!(holders(&cluster, "d"), [0; 0]);
}

// --- several lanes -------------------------------------------------------------------------------

/// Three nodes of two lanes, a key of the first, and two of the second.
fn lanes() -> (Cluster, [String; 3]) {
    let (lanes, op_timeout) = (Some(2), Some(Duration::from_secs(60)));
    let collect_every = Some(COLLECT);
    let replicas = Replicas { lanes, op_timeout, collect_every, ..Replicas::default() };
    let cluster = Cluster::of(replicas, 3, |_| 0, |node| u64::from(node) * 100);
    let mut names = (0..).map(|number| format!("k{number}"));
    let mut of = |lane| {
        let is_own = |name: &String| lane_of_key(name.as_bytes(), 2) == LaneId(lane);
        names.find(is_own).expect("keys are spread over lanes")
    };
    let keys = [of(0), of(1), of(1)];
    (cluster, keys)
}

/// Whether a packet is of the first lane, and of this kind.
fn is_first(packet: &Packet<Replicas>, from: u16, to: u16, kind: &str) -> bool {
    packet.lane == LaneId(0) && packet.is(from, to, kind)
}

#[test]
fn the_floor_of_a_lane_waits_for_what_it_has_lent() {
    let (mut cluster, [a, b, c]) = lanes();
    cluster.run(1, &format!("write={b}:0"));
    cluster.run(1, &format!("write={c}:1"));
    cluster.run(1, &format!("del={c}"));
    let tag = cluster.submit_on(1, 0, 1, txn(&format!("write={a}:1 write={b}:1")));
    for _ in 0..20 {
        cluster.run_some(COLLECT, |packet| !is_first(packet, 1, 0, "r-inv"));
        cluster.pool.clear();
    }
    cluster.assert_open(tag);
    assert_eq!(cluster.machine_of(1, &b).floor(), Timestamp::ZERO);
    cluster.run_for(COLLECT * 20);
    assert_eq!(holders(&cluster, &c), [0; 0]);
    cluster.assert_quiet([a, b, c]);
}

/// Each transaction begins before the one before it is committed, so the key would never come back.
#[test]
fn the_floor_of_a_lane_rises_where_a_key_is_always_lent() {
    let (mut cluster, [a, b, c]) = lanes();
    cluster.run(1, &format!("write={b}:0"));
    cluster.run(1, &format!("write={c}:1"));
    cluster.run(1, &format!("del={c}"));
    for last in 1..=100 {
        cluster.submit_on(1, 0, last, txn(&format!("append={a}:1 append={b}:1")));
        cluster.run_some(COLLECT / 5, |packet| match packet.message() {
            Message::Applied { slots, .. } if packet.lane == LaneId(0) => {
                slots.iter().all(|slot| slot < last)
            }
            _ => true,
        });
    }
    assert!(cluster.machine_of(1, &b).floor() > Timestamp::ZERO);
    cluster.run_for(COLLECT * 20);
    assert_eq!(holders(&cluster, &c), [0; 0]);
    cluster.assert_quiet([a, b, c]);
}

/// The clock of node 1 is ahead, and only one lane of the others has heard of that.
#[test]
fn what_a_lane_writes_with_a_borrowed_key_is_above_the_floor_of_the_key() {
    let (lanes, collect_every) = (Some(2), Some(COLLECT));
    let replicas = Replicas { lanes, collect_every, ..Replicas::default() };
    let ahead = |node| if node == 1 { 60_000_000_000 } else { 0 };
    let mut cluster = Cluster::of(replicas, 3, ahead, |node| u64::from(node) * 100);
    let key = |lane, owner| {
        let is_wanted = |name: &String| {
            lane_of_key(name.as_bytes(), 2) == LaneId(lane) && cluster.writers(name) == [owner]
        };
        let mut names = (0..).map(|number| format!("k{number}"));
        names.find(is_wanted).expect("keys are spread over lanes and nodes")
    };
    let [a, b, c] = [key(0, 2), key(1, 2), key(1, 1)];
    cluster.run(1, &format!("write={c}:1"));
    cluster.run(1, &format!("del={c}"));
    cluster.run_for(COLLECT * 20);
    assert_eq!(holders(&cluster, &c), [0; 0]);
    let watched = seen(&mut cluster, 2, &format!("watch={b}"));
    let tag = cluster.submit_on(2, 0, 1, txn(&format!("write={a}:1 write={b}:1")));
    cluster.deliver_all();
    assert!(matches!(cluster.outcome(tag), Some(Outcome::Done(_))));
    assert!(cluster.meta(2, &b).version > watched.version);
}

#[test]
fn the_floor_of_a_lane_waits_until_commits_of_others_are_known() {
    let (mut cluster, [a, b, c]) = lanes();
    cluster.run(1, &format!("write={c}:1"));
    cluster.run(1, &format!("del={c}"));
    cluster.submit_on(1, 0, 1, txn(&format!("write={a}:1 write={b}:1")));
    for _ in 0..20 {
        cluster.run_some(COLLECT, |packet| !is_first(packet, 1, 3, "r-val"));
        cluster.pool.clear();
    }
    assert_eq!(cluster.machine_of(1, &b).floor(), Timestamp::ZERO);
    cluster.run_for(COLLECT * 20);
    assert_eq!(holders(&cluster, &c), [0; 0]);
    cluster.assert_quiet([a, b, c]);
}

#[test]
fn what_comes_late_finds_that_a_borrower_has_said_nothing_of_the_owner() {
    let (mut cluster, [a, b, _]) = lanes();
    cluster.fresh_packets.clear();
    for node in 1..=3 {
        cluster.run(node, &format!("append={b}:{node}"));
    }
    cluster.run(1, &format!("del={b}"));
    let late = std::mem::take(&mut cluster.fresh_packets);
    cluster.run_for(COLLECT * 20);
    assert_eq!(holders(&cluster, &b), [0; 0]);
    let [owner] = cluster.writers(&b)[..] else { panic!("a key has one default owner") };
    let tag = cluster.submit_on(owner, 0, 1, txn(&format!("write={a}:4 write={b}:4")));
    cluster.deliver_all();
    assert!(matches!(cluster.outcome(tag), Some(Outcome::Done(_))));
    for packet in &late {
        cluster.inject(packet);
    }
    cluster.run_for(COLLECT);
    assert_eq!(cluster.writers(&b), [owner]);
    assert_eq!(cluster.run(2, &format!("read={b}")), [Some("4".to_owned())]);
    cluster.assert_quiet([a, b]);
}

#[test]
fn a_forgotten_key_shows_one_version_on_every_lane() {
    let (mut cluster, [a, b, c]) = lanes();
    cluster.run(1, &format!("write={b}:1"));
    cluster.run(1, &format!("del={b}"));
    let deleted = cluster.meta(1, &b).version;
    cluster.run_for(COLLECT * 20);
    assert_eq!(holders(&cluster, &b), [0; 0]);
    let mut seen = Vec::new();
    for (lane, update) in [(0, ""), (1, ""), (0, "write="), (1, "write=")] {
        let update = if update.is_empty() { String::new() } else { format!(" {update}{a}:1") };
        let tag = cluster.submit_on(2, lane, 1, txn(&format!("read={b} read={c}{update}")));
        cluster.deliver_all();
        let Some(Outcome::Done(reply)) = cluster.outcome(tag) else { panic!("op {tag} is open") };
        seen.extend(reply.iter().map(|seen| seen.version));
    }
    assert!(seen[0] > deleted, "{seen:?} after {deleted:?}");
    seen.dedup();
    assert_eq!(seen.len(), 1, "{seen:?}");
}

#[test]
fn what_is_lent_is_no_business_of_the_walk() {
    let (mut cluster, [a, b, _]) = lanes();
    cluster.run(2, &format!("write={a}:0"));
    cluster.run(1, &format!("write={b}:0"));
    cluster.run(1, &format!("expire={b}:{}", WALL / 1_000_000 + 200));
    // It has borrowed one key, and waits for the other.
    let tag = cluster.submit_on(1, 0, 1, txn(&format!("append={a}:1 append={b}:1")));
    let moves =
        |packet: &Packet<Replicas>| is_first(packet, 1, 0, "req") || is_first(packet, 1, 0, "inv");
    cluster.run_some(Duration::from_millis(500), |packet| !moves(packet));
    cluster.assert_open(tag);
    assert_eq!(cluster.probed("zeus: a key is lent to another lane"), 1);
    assert_eq!(cluster.probed("zeus: an expired value is deleted"), 0);
    cluster.run_for(Duration::from_millis(500));
    assert_eq!(cluster.read_by(tag), [Some("0"), None]);
    cluster.assert_quiet([a, b]);
}
