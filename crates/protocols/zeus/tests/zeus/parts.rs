//! Transactions over several lanes of nodes that keep logs, step by step.

use quorate_harness::Logs;
use quorate_machine::{Event, Outcome};
use quorate_types::placement::{group, shard_of};
use quorate_types::{Duration, Incarnation, LaneId, NodeId, NodeSet, Role, lane_of_key};
use quorate_zeus::DataState;

use crate::lanes::keys;
use crate::support::{Cluster, MLT, Replicas};
use crate::txn::txn;

/// The kind of an entry that is a part.
const PART: u8 = 8;

/// Three nodes of two lanes with logs.
fn durable() -> Cluster {
    of(Replicas::default(), 3)
}

fn of(replicas: Replicas, nodes: u16) -> Cluster {
    with_logs(Logs::Sync, replicas, nodes)
}

fn with_logs(logs: Logs, replicas: Replicas, nodes: u16) -> Cluster {
    let op_timeout = Some(Duration::from_secs(60));
    let replicas = Replicas { lanes: Some(2), op_timeout, ..replicas };
    let mut cluster = Cluster::logging(replicas, logs, (nodes, 0), |_| 0, u64::from);
    cluster.flush_logs();
    cluster.deliver_all();
    cluster
}

impl Cluster {
    /// Flushes one lane of a node, and delivers the mail that comes of it.
    fn flush_only(&mut self, node: u16, lane: u16) {
        self.flush_lane(node, lane);
        self.deliver_all_mail();
    }

    /// Submits a transaction on lane 0, which borrows what it needs.
    fn submit_across(&mut self, node: u16, text: &str) -> u64 {
        let tag = self.submit_on(node, 0, 1, txn(text));
        self.deliver_all_mail();
        tag
    }

    /// Saves all lanes of a node.
    fn save_all(&mut self, node: u16) {
        (0..2).for_each(|lane| self.save(node, lane));
        self.deliver_all_mail();
    }
}

/// Another key of lane 0.
fn other() -> String {
    let [a, _] = keys();
    let mut names = (0..).map(|number| format!("k{number}"));
    let is_own = |name: &String| lane_of_key(name.as_bytes(), 2) == LaneId(0) && *name != a;
    names.find(is_own).expect("keys are spread over lanes")
}

/// The power of all goes, and of what was not durable nothing is left. All come back.
fn cut_all(cluster: &mut Cluster, nodes: u16) {
    cluster.lose_power(nodes);
    cluster.deliver_all_mail();
}

fn some(values: [&str; 2]) -> [Option<String>; 2] {
    values.map(|value| Some(value.to_owned()))
}

/// A transaction reads a key that a lane without an entry lends, and writes one of another lane, at a node whose
/// clock is ahead. Then all power goes, and another node writes what was read.
#[test]
fn what_was_read_is_written_under_a_newer_version_after_all_power_was_lost() {
    let op_timeout = Some(Duration::from_secs(60));
    let replicas = Replicas { lanes: Some(2), op_timeout, ..Replicas::default() };
    let ahead = |node: u16| if node == 1 { 60_000_000_000 } else { 0 };
    let mut cluster = Cluster::logging(replicas, Logs::Sync, (3, 0), ahead, u64::from);
    cluster.flush_logs();
    cluster.deliver_all();
    let [a, b] = keys();
    cluster.run(1, &format!("write={a}:1 read={b}"));
    cluster.flush_logs();
    cluster.deliver_all();
    let read_at = cluster.meta(1, &a).version;
    cut_all(&mut cluster, 3);
    cluster.run_for(MLT * 10);
    cluster.run(2, &format!("write={b}:1"));
    assert!(cluster.meta(2, &b).version > read_at);
    cluster.assert_quiet([a, b]);
}

/// Lane 0 begins the first epoch of its life, and gives lane 1 the parts of what it replays. Lane 1 has
/// heard of the next view before it could begin.
#[test]
fn a_lane_that_misses_the_first_epoch_gets_its_parts_in_the_next_one() {
    let (mut cluster, [a, b]) = (durable(), keys());
    cluster.run(1, &format!("write={a}:0 write={b}:0"));
    cluster.submit_across(1, &format!("write={a}:1 write={b}:1"));
    cluster.deliver(1, 2, "r-inv");
    cluster.deliver_all_mail();
    cluster.flush_lane(2, 0);
    (1..=3).for_each(|node| cluster.cut_power_unflushed(node));
    cluster.pool.clear();
    (1..=3).for_each(|node| cluster.restart(node, u64::from(node)));
    let roles: Vec<_> = (1..=3).map(|node| (node, Role::Active)).collect();
    let [first, next] = [(); 2].map(|()| cluster.decide(&roles));
    cluster.step_on(2, 0, Event::View(&first));
    cluster.step_on(2, 1, Event::View(&next));
    cluster.deliver_all_mail();
    [1, 2, 3].into_iter().for_each(|node| cluster.install_on(node, &next));
    cluster.run_for(MLT * 10);
    assert_eq!(cluster.run(3, &format!("read={a} read={b}")), some(["1", "1"]));
    cluster.assert_quiet([a, b]);
}

/// Where no promise waits, the log of lane 0 may say that a transaction was committed, and that of lane 1 not
/// have its part. Another node has all of it, and does not know that it was committed.
#[test]
fn a_part_that_a_node_has_lost_comes_from_one_that_has_kept_it() {
    let (mut cluster, [a, b]) = (with_logs(Logs::Async, Replicas::default(), 3), keys());
    cluster.run(1, &format!("write={a}:0 write={b}:0"));
    cluster.submit_across(1, &format!("write={a}:1 write={b}:1"));
    cluster.deliver_unflushed();
    cluster.flush_log(3);
    cluster.submit_across(1, &format!("write={a}:2"));
    cluster.deliver_unflushed();
    cluster.flush_lane(2, 0);
    cut_all(&mut cluster, 3);
    cluster.run_for(MLT * 10);
    for node in 1..=3 {
        assert_eq!(cluster.run(node, &format!("read={a} read={b}")), some(["2", "1"]));
    }
    cluster.assert_quiet([a, b]);
}

/// Promises of node 2 wait for its log, and those of node 1 for nothing: its log has a part of a transaction and not
/// the transaction, so nobody replays it. All that come back have what node 1 has, all the same.
#[test]
fn a_part_that_one_node_in_doubt_has_kept_comes_to_those_that_are_not() {
    let (mut cluster, [a, b]) = (with_logs(Logs::Mixed, Replicas::default(), 3), keys());
    cluster.run(1, &format!("write={a}:0 write={b}:0"));
    cluster.flush_logs();
    cluster.deliver_all();
    cluster.submit_across(1, &format!("write={a}:1 write={b}:1"));
    cluster.flush_lane(1, 1);
    cut_all(&mut cluster, 3);
    cluster.run_for(MLT * 10);
    for node in [2, 3, 1] {
        assert_eq!(cluster.run(node, &format!("read={a} read={b}")), some(["0", "1"]), "at {node}");
    }
    cluster.assert_quiet([a, b]);
}

#[test]
fn a_transaction_is_acknowledged_when_the_logs_of_all_its_lanes_have_it() {
    let (mut cluster, [a, b]) = (durable(), keys());
    cluster.run(1, &format!("write={a}:0 write={b}:0"));
    let tag = cluster.submit_across(1, &format!("write={a}:1 write={b}:2"));
    for node in [2, 3] {
        cluster.deliver(1, node, "r-inv");
        cluster.deliver_all_mail();
        cluster.flush_only(node, 1);
        assert!(cluster.take(node, 1, "r-ack").is_empty(), "no log has it");
        cluster.flush_only(node, 0);
        assert!(cluster.take(node, 1, "r-ack").is_empty(), "lane 1 has just heard of its part");
        cluster.flush_only(node, 1);
        cluster.deliver(node, 1, "r-ack");
        cluster.deliver_all_mail();
    }
    cluster.assert_open(tag);
    cluster.flush_only(1, 0);
    cluster.assert_open(tag);
    assert_eq!(cluster.meta(1, &b).data, DataState::Write);
    cluster.flush_only(1, 1);
    assert!(matches!(cluster.outcome(tag), Some(Outcome::Done(_))));
    cut_all(&mut cluster, 3);
    cluster.deliver_all();
    for node in 1..=3 {
        assert_eq!(cluster.run(node, &format!("read={a} read={b}")), some(["1", "2"]));
    }
    cluster.assert_quiet([a, b]);
}

#[test]
fn what_is_sent_again_waits_for_the_parts_as_well() {
    let (mut cluster, [a, b]) = (durable(), keys());
    cluster.run(1, &format!("write={a}:0 write={b}:0"));
    cluster.submit_across(1, &format!("write={a}:1 write={b}:2"));
    let packet = cluster.deliver(1, 2, "r-inv");
    cluster.flush_only(2, 0);
    cluster.inject(&packet);
    cluster.deliver_all_mail();
    assert!(cluster.take(2, 1, "r-ack").is_empty());
    cluster.flush_only(2, 1);
    assert_eq!(cluster.take(2, 1, "r-ack").len(), 1);
}

#[test]
fn nobody_reads_what_one_lane_has_undecided() {
    let (mut cluster, [a, b]) = (durable(), keys());
    cluster.run(1, &format!("write={a}:0 write={b}:0"));
    cluster.submit_across(1, &format!("append={a}:1 append={b}:1"));
    cluster.deliver(1, 2, "r-inv");
    cluster.flush_only(2, 0);
    cluster.flush_only(2, 1);
    cut_all(&mut cluster, 3);
    // Its part came back, too.
    for key in [&a, &b] {
        assert_eq!(cluster.meta(2, key).data, DataState::Invalid, "{key}");
    }
    cluster.deliver_all();
    for node in 1..=3 {
        assert_eq!(cluster.run(node, &format!("read={a} read={b}")), some(["01", "01"]));
    }
    cluster.assert_quiet([a, b]);
}

#[test]
fn a_transaction_without_its_parts_is_whole_again_and_stays_so() {
    let (mut cluster, [a, b]) = (durable(), keys());
    cluster.run(1, &format!("write={a}:0 write={b}:0"));
    cluster.submit_across(1, &format!("append={a}:1 append={b}:1"));
    cluster.deliver(1, 2, "r-inv");
    cluster.flush_only(2, 0);
    cut_all(&mut cluster, 3);
    cluster.deliver_all();
    let expected = some(["01", "01"]);
    assert_eq!(cluster.run(2, &format!("read={a} read={b}")), expected);
    // What comes behind it shows that it was committed. Only node 2 comes back with its disk.
    cluster.run(2, &format!("write={a}:4"));
    cluster.run(2, &format!("write={}:5", other()));
    (1..=3).for_each(|node| cluster.cut_power_unflushed(node));
    cluster.pool.clear();
    cluster.restart(2, 2);
    [1, 3].into_iter().for_each(|node| cluster.start(node, u64::from(node)));
    cluster.install(&[(1, Role::Shadow), (2, Role::Active), (3, Role::Shadow)]);
    cluster.run_for(MLT * 10);
    assert_eq!(cluster.run(2, &format!("read={a} read={b}")), some(["4", "01"]));
}

#[test]
fn nobody_says_that_it_has_replayed_what_its_logs_lack() {
    let (mut cluster, [a, b]) = (durable(), keys());
    cluster.run(1, &format!("write={a}:0 write={b}:0"));
    cluster.submit_across(1, &format!("write={a}:1 write={b}:1"));
    cluster.deliver(1, 2, "r-inv");
    cluster.fresh_packets.clear();
    cluster.crash(1);
    cluster.set_role(1, Role::Down);
    cluster.deliver_all_mail();
    for _ in 0..2 {
        // Node 2 replays it, and node 3 has it on disk.
        while let Some(at) = cluster.pool.iter().position(|packet| packet.kind() != "recovered") {
            let packet = cluster.pool.remove(at);
            cluster.inject(&packet);
            cluster.deliver_all_mail();
            cluster.flush_only(3, 0);
            cluster.flush_only(3, 1);
        }
        let told = cluster.fresh_packets.iter();
        let told = told.filter(|packet| packet.is(2, 3, "recovered") && packet.lane.0 == 0);
        assert_eq!(told.count(), 0, "its own logs lack it");
        cluster.flush_only(2, 0);
    }
    cluster.flush_only(2, 1);
    let told = cluster.fresh_packets.iter();
    let told = told.filter(|packet| packet.is(2, 3, "recovered") && packet.lane.0 == 0);
    assert_eq!(told.count(), 1);
    cluster.deliver_all();
    assert_eq!(cluster.run(3, &format!("read={a} read={b}")), some(["1", "1"]));
}

#[test]
fn snapshots_of_lanes_need_no_log_of_another() {
    let (mut cluster, [a, b]) = (durable(), keys());
    cluster.run(1, &format!("write={a}:0 write={b}:0"));
    cluster.submit_across(1, &format!("append={a}:1 append={b}:1"));
    cluster.deliver(1, 2, "r-inv");
    cluster.deliver_all_mail();
    // Lane 1 saves what lane 0 has written and has under way.
    cluster.save(2, 1);
    cut_all(&mut cluster, 3);
    assert_eq!(cluster.meta(2, &b).data, DataState::Invalid);
    cluster.deliver_all();
    let expected = some(["01", "01"]);
    for _ in 0..2 {
        for node in 1..=3 {
            assert_eq!(cluster.run(node, &format!("read={a} read={b}")), expected);
        }
        (1..=3).for_each(|node| cluster.save_all(node));
        cut_all(&mut cluster, 3);
        cluster.deliver_all();
    }
    cluster.assert_quiet([a, b]);
}

#[test]
fn what_is_undecided_is_saved_with_its_keys_before_a_view_comes() {
    let (mut cluster, [a, b]) = (of(Replicas::default(), 1), keys());
    cluster.run(1, &format!("write={a}:0 write={b}:0"));
    cluster.submit_across(1, &format!("append={a}:1 append={b}:1"));
    cluster.flush_lane(1, 0);
    for _ in 0..2 {
        cluster.cut_power_unflushed(1);
        cluster.restart(1, 1);
        // One lane has saved all that it holds, and the other nothing.
        cluster.save(1, 0);
        for key in [&a, &b] {
            assert_eq!(cluster.meta(1, key).data, DataState::Invalid, "{key}");
        }
    }
    cluster.install(&[(1, Role::Active)]);
    cluster.run_for(MLT * 10);
    assert_eq!(cluster.run(1, &format!("read={a} read={b}")), some(["01", "01"]));
    cluster.assert_quiet([a, b]);
}

#[test]
fn what_a_lane_has_deleted_and_forgotten_is_not_replayed() {
    let collect_every = Some(Duration::from_millis(20));
    let mut cluster = of(Replicas { collect_every, ..Replicas::default() }, 3);
    let [a, b] = keys();
    cluster.run(1, &format!("write={a}:0 write={b}:0"));
    // Nothing comes behind it on lane 0 that would tell that it was committed.
    cluster.run(1, &format!("write={a}:1 del={b}"));
    cluster.run_for(Duration::from_secs(1));
    assert_eq!(cluster.record(2, &b), None, "it is forgotten");
    let replayed = cluster.probed("zeus: a transaction is replayed");
    cut_all(&mut cluster, 3);
    cluster.deliver_all();
    assert_eq!(cluster.probed("zeus: a transaction is replayed"), replayed);
    assert_eq!(cluster.run(3, &format!("read={a} read={b}")), [Some("1".to_owned()), None]);
}

#[test]
fn records_of_another_cluster_go_and_others_stay() {
    let (mut cluster, [a, b]) = (durable(), keys());
    cluster.run(1, &format!("write={a}:1 write={b}:1"));
    (1..=3).for_each(|node| cluster.cut_power_unflushed(node));
    (1..=3).for_each(|node| cluster.restart(node, 5));
    cluster.view.cluster = Incarnation(99);
    let roles: Vec<_> = (1..=3).map(|node| (node, Role::Active)).collect();
    cluster.install(&roles);
    cluster.deliver_all_mail();
    // Of lane 0 alone it is durable that what came before is of no use.
    (1..=3).for_each(|node| cluster.flush_only(node, 0));
    cluster.submit_on(1, 0, 1, txn(&format!("write={a}:2")));
    // What follows tells that it was committed.
    cluster.submit_on(1, 0, 1, txn(&format!("write={}:3", other())));
    while !cluster.pool.is_empty() {
        let packet = cluster.pool.remove(0);
        cluster.inject(&packet);
        cluster.deliver_all_mail();
        (1..=3).for_each(|node| cluster.flush_only(node, 0));
    }
    cut_all(&mut cluster, 3);
    cluster.deliver_all();
    assert_eq!(cluster.run(1, &format!("read={a} read={b}")), [Some("2".to_owned()), None]);
}

#[test]
fn a_learner_has_caught_up_when_the_parts_of_what_it_has_not_copied_are_durable() {
    // The donor of the key in question is the owner, or a follower like the learner.
    [(1, 3), (3, 1)].into_iter().for_each(|(owner, follower)| learns_with_parts(owner, follower));
}

fn learns_with_parts(owner: u16, follower: u16) {
    let (mut cluster, [a, b]) = (durable(), keys());
    cluster.run(owner, &format!("write={a}:0 write={b}:0"));
    cluster.expel(&[2]);
    cluster.deliver_all();
    cluster.start(2, 7);
    cluster.set_role(2, Role::Shadow);
    cluster.deliver_all_mail();
    while let Some(at) = cluster.pool.iter().position(|packet| packet.kind() == "recovered") {
        let packet = cluster.pool.remove(at);
        cluster.inject(&packet);
        cluster.deliver_all_mail();
    }
    // It applies a transaction before it copies one of its keys, and the donor does not know its end.
    let tag = cluster.submit_across(owner, &format!("append={a}:1 append={b}:1"));
    cluster.deliver(owner, 2, "r-inv");
    cluster.deliver(owner, follower, "r-inv");
    cluster.deliver_all_mail();
    for _ in 0..300 {
        let at = cluster.pool.iter().position(|packet| packet.kind() != "r-ack");
        let Some(at) = at else { break };
        let packet = cluster.pool.remove(at);
        cluster.inject(&packet);
        cluster.deliver_all_mail();
        [1, 3].into_iter().for_each(|node| _ = cluster.flush_log(node));
        cluster.flush_only(2, 1);
    }
    assert!(cluster.record(2, &b).is_some());
    let lane = &cluster.hosts[&2].machines[1];
    assert!(!lane.is_caught_up(), "its log has nothing of it");
    cluster.run_for(MLT * 20);
    assert!(cluster.is_caught_up(2));
    assert!(matches!(cluster.outcome(tag), Some(Outcome::Done(_))));
    cluster.set_role(2, Role::Active);
    cluster.deliver_all();
    cluster.go_on_from_node_2();
    cluster.run_for(MLT * 10);
    assert_eq!(cluster.run(2, &format!("read={a} read={b}")), some(["01", "01"]));
}

/// A node leaves the group of a key while a part of a transaction on it is on its way between lanes. It may be
/// in the group again one day, when the key is deleted and forgotten.
#[test]
fn a_part_of_what_was_left_meanwhile_is_not_appended() {
    let replicas = Replicas {
        replicas: Some(2),
        lanes: Some(2),
        op_timeout: Some(Duration::from_secs(60)),
        ..Replicas::default()
    };
    let mut cluster = Cluster::logging(replicas, Logs::Sync, (4, 1), |_| 0, u64::from);
    cluster.flush_logs();
    cluster.deliver_all();
    let group_of = |key: &str, nodes: u16| {
        let nodes: NodeSet = (1..=nodes).map(NodeId).collect();
        group(shard_of(key.as_bytes()), nodes, 2).into_iter().collect::<NodeSet>()
    };
    let leaver = |key: &str| group_of(key, 4).difference(group_of(key, 5)).first();
    let [a, _] = keys();
    let mut names = (0..).map(|number| format!("k{number}"));
    let is_left =
        |name: &String| lane_of_key(name.as_bytes(), 2) == LaneId(1) && leaver(name).is_some();
    let b = names.find(is_left).expect("some key moves");
    let leaver = leaver(&b).expect("it was found");
    let owner = group_of(&b, 4).without(leaver).first().expect("it has two copies").0;
    let leaver = leaver.0;
    cluster.run(owner, &format!("write={a}:0 write={b}:0"));
    let parts = |cluster: &Cluster| {
        cluster.log_of(leaver, 1).iter().filter(|entry| entry[0] == PART).count()
    };
    cluster.submit_across(owner, &format!("write={a}:1 write={b}:1"));
    cluster.deliver(owner, leaver, "r-inv");
    cluster.deliver_all_mail();
    cluster.flush_lane(leaver, 0);
    let late: Vec<_> = cluster.mail.extract_if(.., |letter| letter.node == leaver).collect();
    assert_eq!(late.len(), 1, "the part of lane 1");
    cluster.set_role(5, Role::Shadow);
    cluster.run_for(MLT * 40);
    cluster.set_role(5, Role::Active);
    cluster.run_for(MLT * 40);
    cluster.place();
    cluster.run_for(MLT * 20);
    assert!(!cluster.machine_of(leaver, &b).keeps(b.as_bytes()));
    let before = parts(&cluster);
    cluster.mail.extend(late);
    cluster.deliver_all();
    assert_eq!(parts(&cluster), before);
    cluster.assert_quiet([a, b]);
}

#[test]
fn a_part_has_these_bytes() {
    let (mut cluster, [a, b]) = (durable(), keys());
    cluster.run(1, &format!("write={a}:1 write={b}:2"));
    let entries = cluster.log_of(2, 1);
    let part = entries.iter().find(|entry| entry[0] == PART).expect("lane 1 has its part");
    let hex: String = part.iter().map(|byte| format!("{byte:02x}")).collect();
    // The kind, the version and its writer; the key, what is said of it, and the value.
    let fields = ["08", "0110a5d4e8000000", "01000000", "020000006b31", "05", "01000100000032"];
    assert_eq!(hex, fields.concat());
}

/// A key of this lane and of the group of these two of four nodes, in this order.
fn key_of(lane: u16, nodes: [u16; 2]) -> String {
    let all = (1..=4).map(NodeId).collect();
    let mut names = (0..).map(|number| format!("k{number}"));
    let is_it = |name: &String| {
        let is_own = lane_of_key(name.as_bytes(), 2) == LaneId(lane);
        is_own && group(shard_of(name.as_bytes()), all, 2) == nodes.map(NodeId)
    };
    names.find(is_it).expect("keys are spread over lanes and nodes")
}

/// Four nodes with two replicas of each key, where all collections are large. Node 1 changes two lists, of
/// two lanes, and then replaces the second, `d`, of nodes 2 and 3.
struct Overwritten {
    cluster: Cluster,
    c: String,
    d: String,
}

impl Overwritten {
    /// Nodes flush what `flush` says before the list is replaced.
    fn new(logs: Logs, flush: impl FnOnce(&mut Cluster)) -> Self {
        let packed_bytes_max: Option<fn(u16) -> usize> = Some(|_| 0);
        let replicas = Replicas { replicas: Some(2), packed_bytes_max, ..Replicas::default() };
        let mut cluster = with_logs(logs, replicas, 4);
        let [c, d] = [key_of(0, [1, 4]), key_of(1, [2, 3])];
        cluster.run(1, &format!("put={d}:,0"));
        cluster.run(1, &format!("put={c}:,0"));
        // What follows says that what was before it is committed.
        let others = [0, 1].map(|lane| key_of(lane, [2, 1]));
        let write_others = |cluster: &mut Cluster, value| match logs {
            Logs::Async => others
                .each_ref()
                .map(|key| cluster.run_unflushed(1, &format!("write={key}:{value}"))),
            _ => others.each_ref().map(|key| drop(cluster.run(1, &format!("write={key}:{value}")))),
        };
        write_others(&mut cluster, 0);
        cluster.flush_logs();
        cluster.submit_across(1, &format!("push={c}:,1 push={d}:,1"));
        match logs {
            Logs::Async => cluster.deliver_unflushed(),
            _ => cluster.deliver_all(),
        }
        flush(&mut cluster);
        match logs {
            Logs::Async => cluster.run_unflushed(1, &format!("put={d}:,9")),
            _ => drop(cluster.run(1, &format!("put={d}:,9"))),
        }
        write_others(&mut cluster, 1);
        Self { cluster, c, d }
    }

    /// The power of all goes, and of what was not durable nothing is left. Node 3 comes back with nothing.
    #[track_caller]
    fn check_without_node_3(self) {
        let Self { mut cluster, c, d } = self;
        (1..=4).for_each(|node| cluster.cut_power_unflushed(node));
        cluster.pool.clear();
        [1, 2, 4].into_iter().for_each(|node| cluster.restart(node, u64::from(node)));
        cluster.start(3, 3);
        let active = |node| (node, Role::Active);
        cluster.install(&[active(1), active(2), (3, Role::Shadow), active(4)]);
        cluster.run_for(MLT * 40);
        assert_eq!(cluster.run(2, &format!("read={d} read={c}")), some([",9", ",0,1"]));
        assert!(cluster.is_caught_up(3));
        cluster.set_role(3, Role::Active);
        cluster.deliver_all();
        cluster.assert_quiet([c, d]);
    }
}

/// Lane 0 of node 4 replays a change of a key of lane 1, which node 2 knows to be committed and overwritten
/// since. Node 3 learns the key.
#[test]
fn the_lane_of_a_key_tells_who_learns_it_what_has_overwritten_a_base() {
    Overwritten::new(Logs::Sync, |_| {}).check_without_node_3();
    let mut run = Overwritten::new(Logs::Async, |_| {});
    run.cluster.flush_logs();
    run.check_without_node_3();
}

/// The same, where node 2 has lost with the log of lane 0 that there was such a transaction.
#[test]
fn who_has_overwritten_what_is_replayed_says_so_to_who_learns_it() {
    let mut run = Overwritten::new(Logs::Async, |cluster| _ = cluster.flush_lane(4, 0));
    run.cluster.flush_lane(2, 1);
    run.check_without_node_3();
}
