//! Lanes that keep logs: what is answered, shown and there again when the power goes.

use std::borrow::Cow;
use std::cell::RefCell;
use std::convert::Infallible;
use std::sync::Arc;

use quorate_collections::{Delta, packed};
use quorate_engine::Readable as _;
use quorate_harness::{Clock, Cluster, Logs, Process, Subject};
use quorate_local::{Config, Local, Meta, Request};
use quorate_machine::{
    CallError, Change, Collection, Command, LaneShared as _, Machine, Outcome, Refusal, Rng,
    Table as _, ValueKind, Verdict, Workspace,
};
use quorate_rifl::{Call, Grant, LeaseId, Permit, Sessions as _};
use quorate_storage::{Keeps, SharedTable, Store};
use quorate_types::{
    Duration, Incarnation, LaneId, MemberNumber, NodeId, Role, UnixMillis, hash_key, lane_of_key,
};

mod random;

const LANES: u16 = 3;

/// What a transaction does with each of its keys, whose values are lists. It answers what they held.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Step {
    Read,
    /// Appends an item, which is a delta of a large list.
    Push(u64),
    /// Replaces the list by one of one item.
    Put(u64),
    Delete,
    /// Lets the list expire at that time.
    Expire(u64),
}

#[derive(Clone, Debug)]
struct Txn {
    keys: Vec<String>,
    step: Step,
}

fn txn(keys: &[&str], step: Step) -> Txn {
    Txn { keys: keys.iter().map(|key| (*key).to_owned()).collect(), step }
}

/// The items of each key, if it is there.
type Lists = Vec<Option<Vec<u64>>>;

fn list_of(items: &[u64]) -> Vec<u8> {
    let mut list = packed::Builder::new(0, 0);
    items.iter().for_each(|item| list.item(item.to_string().as_bytes()));
    list.finish(items.len())
}

fn items(list: &Collection) -> Vec<u64> {
    let number = |item: &[u8]| String::from_utf8_lossy(item).parse().expect("a number");
    list.list().expect("a list").items_from(0).map(number).collect()
}

impl Command for Txn {
    type Owned = Self;
    type Reply = Lists;

    fn run<W: Workspace>(&self, _: UnixMillis, workspace: &mut W) -> Verdict<Lists> {
        let mut held = Vec::new();
        for key in &self.keys {
            let current = workspace.read(key.as_bytes());
            let list = current.content.map(|content| match current.large {
                Some(large) => items(large),
                None => items(&Collection::unpack(ValueKind::List, content.bytes).expect("a list")),
            });
            let is_large = current.large.is_some();
            let put = |list: &[u64]| {
                let bytes = Cow::Owned(list_of(list));
                Change::Set { bytes, kind: ValueKind::List, expire_at: None }
            };
            let change = match (&self.step, &list) {
                (Step::Read, _) => Change::Keep,
                (Step::Push(item), Some(list)) if is_large => {
                    let mut delta = Delta::new();
                    delta.insert(list.len(), [item.to_string().as_bytes()].into_iter());
                    Change::Delta { bytes: delta.into_bytes().into(), expire_at: None }
                }
                (Step::Push(item), list) => {
                    put(&[list.as_deref().unwrap_or_default(), &[*item]].concat())
                }
                (Step::Put(item), _) => put(&[*item]),
                (Step::Delete, _) => Change::Delete,
                (Step::Expire(at), _) => Change::Expire(Some(UnixMillis(*at))),
            };
            held.push(list);
            workspace.write(key.as_bytes(), change);
        }
        Verdict::Commit(held)
    }

    fn updates(&self) -> bool {
        self.step != Step::Read
    }

    fn into_owned(self) -> Self {
        self
    }

    fn visit_keys(&self, visit: &mut dyn FnMut(&[u8])) {
        self.keys.iter().for_each(|key| visit(key.as_bytes()));
    }

    fn encode_reply(reply: &Lists, out: &mut Vec<u8>) {
        out.push(reply.len() as u8);
    }

    fn decode_reply(bytes: &[u8]) -> Option<Lists> {
        Some(vec![None; usize::from(*bytes.first()?)])
    }
}

type Lane = Local<SharedTable<Meta>, Txn>;

/// Lanes over one store, which is empty after a restart.
struct Lanes {
    store: RefCell<Arc<Store<Meta>>>,
    large: bool,
}

impl Lanes {
    fn store(large: bool) -> Arc<Store<Meta>> {
        let packed_bytes_max = large.then_some(0);
        Store::keeping(LANES, Keeps { packed_bytes_max, ..Keeps::default() })
    }
}

impl Subject for Lanes {
    type Machine = Lane;

    fn lanes(&self) -> u16 {
        LANES
    }

    fn start(&self, process: Process) -> Lane {
        let Process { node, incarnation, lane, .. } = process;
        let table = self.store.borrow().shared_table(lane.0);
        Local::new(Config { node, incarnation, lane, lanes: LANES }, table)
    }

    fn encode(message: &Infallible, _: &mut Vec<u8>) {
        match *message {}
    }

    fn decode(_: &[u8]) -> Infallible {
        unreachable!("nothing was sent")
    }
}

struct Node(Cluster<Lanes>);

impl Node {
    fn new(logs: Logs, large: bool) -> Self {
        let store = RefCell::new(Lanes::store(large));
        let mut cluster = Cluster::new(Lanes { store, large });
        cluster.keep_logs(logs);
        cluster.start(1, 1);
        cluster.found();
        cluster.flush_logs();
        Self(cluster)
    }

    fn submit(&mut self, lane: u16, origin: u64, txn: Txn) -> u64 {
        self.0.advance(Duration::from_nanos(1));
        let tag = self.0.tag();
        self.0.act_on(1, lane, |machine, now, out| machine.submit(now, tag, origin, txn, out));
        tag.0
    }

    fn call(&mut self, sequence: u64, digest: u32, txn: Txn) -> u64 {
        let tag = self.0.tag();
        let permit = permit(self.0.view.last_number, sequence, digest);
        let lane = permit.call.lease.lane().0;
        self.0.act_on(1, lane, |machine, now, out| {
            let request = Request { origin: 9, command: txn };
            machine.call(now, tag, permit, request, out);
        });
        tag.0
    }

    /// Delivers all mail, and makes all logs durable.
    fn settle(&mut self) {
        self.0.deliver_all();
    }

    fn answer(&self, tag: u64) -> Outcome<Lists> {
        self.0.outcome(tag).unwrap_or_else(|| panic!("{tag} is not answered")).clone()
    }

    /// Runs a transaction to its end.
    fn run(&mut self, txn: Txn) -> Lists {
        let tag = self.submit(0, 0, txn);
        self.settle();
        match self.answer(tag) {
            Outcome::Done(held) => held,
            other => panic!("{other:?}"),
        }
    }

    fn read(&mut self, keys: &[&str]) -> Lists {
        self.run(txn(keys, Step::Read))
    }

    /// The power goes.
    fn cut(&mut self, seed: u64) {
        self.0.cut_power(1, &mut Rng::new(seed));
        let large = self.0.subject.large;
        *self.0.subject.store.borrow_mut() = Lanes::store(large);
        self.0.restart(1, seed);
    }

    /// The power goes and comes back.
    fn cut_and_serve(&mut self, seed: u64) {
        self.cut(seed);
        self.0.set_role(1, Role::Active);
        self.0.deliver_all_mail();
    }

    /// Whether other lanes may read a key from its record.
    fn is_readable(&self, key: &str) -> bool {
        let store = self.0.subject.store.borrow();
        let snapshot =
            store.read(key.as_bytes(), hash_key(key.as_bytes()), &store.pin(), &mut vec![]);
        snapshot.is_none_or(|snapshot| snapshot.meta.is_readable())
    }

    fn records(&self) -> usize {
        self.0.hosts[&1].machines.iter().map(|lane| lane.table().len()).sum()
    }
}

fn permit(owner: MemberNumber, sequence: u64, digest: u32) -> Permit {
    let lease = LeaseId::new(MemberNumber(1), LaneId(2), 7);
    let call = Call { lease, sequence, first_incomplete: 0, digest };
    Permit { call, grant: Grant { lease, until: u64::MAX, owner }, date: u64::MAX }
}

/// So many keys of a lane.
fn keys_of(lane: u16, count: usize) -> Vec<String> {
    let names = (0..).map(|number| format!("key {number}"));
    let own = names.filter(|name| lane_of_key(name.as_bytes(), LANES) == LaneId(lane));
    own.take(count).collect()
}

/// A key of each lane.
fn keys() -> [String; 3] {
    [0, 1, 2].map(|lane| keys_of(lane, 1).remove(0))
}

#[test]
fn an_update_is_neither_answered_nor_shown_before_it_is_durable() {
    let (mut node, [key, ..]) = (Node::new(Logs::Sync, false), keys());
    let writing = node.submit(0, 1, txn(&[&key], Step::Put(1)));
    let reading = node.submit(0, 2, txn(&[&key], Step::Read));
    node.0.deliver_all_mail();
    assert!(!node.is_readable(&key), "other lanes may not see it");
    [writing, reading].into_iter().for_each(|tag| node.0.assert_open(tag));
    node.0.flush_lane(1, 0);
    assert!(node.is_readable(&key));
    assert_eq!(node.answer(writing), Outcome::Done(vec![None]));
    assert_eq!(node.answer(reading), Outcome::Done(vec![Some(vec![1])]));
    node.cut_and_serve(3);
    assert_eq!(node.read(&[&key]), [Some(vec![1])]);
}

#[test]
fn without_waiting_for_the_log_an_update_is_answered_at_once() {
    let (mut node, [key, ..]) = (Node::new(Logs::Async, false), keys());
    let writing = node.submit(0, 1, txn(&[&key], Step::Put(1)));
    assert_eq!(node.answer(writing), Outcome::Done(vec![None]));
    assert!(node.is_readable(&key));
    node.0.flush_logs();
    node.cut_and_serve(3);
    assert_eq!(node.read(&[&key]), [Some(vec![1])]);
}

/// Each lane deletes its own keys, as what the transaction leaves in them says.
#[test]
fn what_several_lanes_have_seen_past_its_time_stays_absent_if_the_clock_is_set_back() {
    let (mut node, keys) = (Node::new(Logs::Sync, false), keys());
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    node.run(txn(&keys, Step::Put(1)));
    node.run(txn(&keys, Step::Expire(node.0.now.wall().0 + 50)));
    node.0.set_clock(1, Clock { ahead: 60_000_000, ..Clock::default() });
    assert_eq!(node.read(&keys), [None, None, None]);
    node.0.set_clock(1, Clock::default());
    assert_eq!(node.read(&keys), [None, None, None]);
    node.cut_and_serve(3);
    assert_eq!(node.read(&keys), [None, None, None]);
}

/// The node has a log, and this keyspace is in memory.
#[test]
fn what_is_in_memory_changes_on_all_lanes_when_its_node_has_come_back() {
    let (mut node, keys) = (Node::new(Logs::None, false), keys());
    node.0.crash(1);
    *node.0.subject.store.borrow_mut() = Lanes::store(false);
    node.0.restart(1, 3);
    node.0.set_role(1, Role::Active);
    node.0.deliver_all_mail();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    node.run(txn(&keys, Step::Put(1)));
    assert_eq!(node.read(&keys), [Some(vec![1]), Some(vec![1]), Some(vec![1])]);
}

#[test]
fn a_turn_is_passed_on_when_what_the_lane_has_appended_is_durable() {
    let mut node = Node::new(Logs::Sync, true);
    let [one, other, _] = keys();
    node.submit(0, 1, txn(&[&one], Step::Put(1)));
    // What is in the log of lane 1 may rest on what lane 0 has appended.
    let both = node.submit(0, 2, txn(&[&one, &other], Step::Push(2)));
    node.0.deliver_all_mail();
    assert!(node.0.flush_lane(1, 0));
    node.0.deliver_all_mail();
    node.0.assert_open(both);
    assert!(node.0.flush_lane(1, 1));
    node.0.deliver_all_mail();
    assert_eq!(node.answer(both), Outcome::Done(vec![Some(vec![1]), None]));
}

#[test]
fn a_lane_that_is_held_until_a_flush_is_not_woken_all_the_while() {
    let mut node = Node::new(Logs::Sync, true);
    let [one, other, _] = keys();
    node.submit(0, 1, txn(&[&one], Step::Put(1)));
    node.submit(0, 2, txn(&[&one, &other], Step::Push(2)));
    node.0.deliver_all_mail();
    // The time to look for what has expired comes while the lanes are held.
    node.0.advance(Duration::from_secs(5));
    node.0.tick_node(1);
    let now = node.0.now_at(1).monotonic;
    let deadlines = node.0.hosts[&1].machines.iter().map(Machine::next_deadline);
    assert!(deadlines.min().expect("a node has lanes") > now);
}

#[test]
fn what_only_one_lane_has_in_its_log_comes_back_whole() {
    for large in [false, true] {
        let mut node = Node::new(Logs::Sync, large);
        let [a, b, c] = keys();
        let all = [a.as_str(), &b, &c];
        node.run(txn(&all, Step::Put(1)));
        node.submit(0, 1, txn(&all, Step::Push(2)));
        node.0.deliver_all_mail();
        // The last lane runs it, and the others have yet to hear that it is durable.
        assert!(node.0.flush_lane(1, 2));
        for seed in 0..3 {
            node.cut_and_serve(seed);
        }
        assert_eq!(node.read(&all), [(); 3].map(|()| Some(vec![1, 2])));
    }
}

#[test]
fn a_lane_serves_when_all_others_have_told_what_it_lacks() {
    let mut node = Node::new(Logs::Sync, false);
    let [a, b, c] = keys();
    node.submit(0, 1, txn(&[&a, &c], Step::Put(1)));
    node.0.deliver_all_mail();
    assert!(node.0.flush_lane(1, 2));
    node.cut(1);
    node.0.set_role(1, Role::Active);
    let tag = node.submit(0, 1, txn(&[&a], Step::Read));
    assert_eq!(node.answer(tag), Outcome::Refused(Refusal::NotServing));
    // A lane that knows all may send its turn to one that does not.
    for (from, to) in [(0, 2), (1, 2), (0, 1), (2, 1), (1, 0)] {
        assert!(node.0.deliver_mail(1, from, to));
    }
    let tag = node.submit(1, 1, txn(&[&a], Step::Read));
    assert!(node.0.deliver_mail(1, 1, 0));
    node.0.assert_open(tag);
    node.settle();
    assert_eq!(node.answer(tag), Outcome::Done(vec![Some(vec![1])]));
    assert_eq!(node.read(&[&b]), [None]);
}

#[test]
fn a_snapshot_has_what_another_lane_may_not_have_in_its_log() {
    for seed in 0..8 {
        let mut node = Node::new(Logs::Sync, false);
        let [a, _, c] = keys();
        let writing = node.submit(0, 1, txn(&[&a, &c], Step::Put(1)));
        node.0.deliver_all_mail();
        assert!(node.0.flush_lane(1, 2));
        node.0.deliver_all_mail();
        assert_eq!(node.answer(writing), Outcome::Done(vec![None, None]));
        // Lane 0 has appended it; until that is durable lane 2 must not forget it.
        node.0.save(1, 2);
        assert_eq!(node.0.log_of(1, 2).len(), 4, "head, transaction, key and calls");
        for cut in 0..2 {
            node.cut_and_serve(seed + cut);
            assert_eq!(node.read(&[&a, &c]), [Some(vec![1]), Some(vec![1])]);
        }
        node.0.save(1, 2);
        assert_eq!(node.0.log_of(1, 2).len(), 3, "all have it now");
    }
}

#[test]
fn what_was_deleted_and_forgotten_stays_away_whatever_snapshots_there_are() {
    let mut node = Node::new(Logs::Sync, false);
    let [a, _, c] = keys();
    node.run(txn(&[&a, &c], Step::Put(1)));
    node.run(txn(&[&a], Step::Delete));
    node.0.tick(Duration::from_secs(11));
    assert_eq!(node.records(), 1);
    // Lane 2 still has the transaction in its log, lane 0 has no trace of the key.
    node.0.save(1, 0);
    node.cut_and_serve(1);
    assert_eq!(node.read(&[&a, &c]), [None, Some(vec![1])]);
    // And a transaction that a snapshot keeps says nothing about keys that the snapshot has.
    node.submit(0, 1, txn(&[&a, &c], Step::Put(2)));
    node.0.deliver_all_mail();
    assert!(node.0.flush_lane(1, 2));
    node.submit(2, 2, txn(&[&c], Step::Delete));
    node.0.save(1, 2);
    node.cut_and_serve(1);
    assert_eq!(node.read(&[&a, &c]), [Some(vec![2]), None]);
}

#[test]
fn a_delta_is_applied_to_its_base_alone() {
    let mut node = Node::new(Logs::Sync, true);
    let [a, ..] = keys();
    node.run(txn(&[&a], Step::Put(1)));
    assert!(!node.0.save_some(1, 0, 1), "it has begun");
    node.run(txn(&[&a], Step::Push(2)));
    // The snapshot has the list with two items, and the log has the second one once more.
    node.0.save(1, 0);
    node.cut_and_serve(1);
    assert_eq!(node.read(&[&a]), [Some(vec![1, 2])]);
    let far = node.0.now.wall().0 + 1_000_000;
    node.run(txn(&[&a], Step::Expire(far)));
    node.cut_and_serve(1);
    assert_eq!(node.read(&[&a]), [Some(vec![1, 2])]);
    node.run(txn(&[&a], Step::Delete));
    node.cut_and_serve(1);
    assert_eq!(node.read(&[&a]), [None]);
}

#[test]
fn a_change_of_what_is_lost_is_lost() {
    let mut both = 0;
    for seed in 0..20 {
        let (mut node, [a, _, c]) = (Node::new(Logs::Async, true), keys());
        node.run(txn(&[&a, &c], Step::Put(1)));
        node.submit(0, 1, txn(&[&a], Step::Put(2)));
        node.submit(0, 1, txn(&[&a, &c], Step::Push(3)));
        node.0.deliver_all_mail();
        node.0.flush_lane(1, 2);
        node.cut_and_serve(seed);
        let lists = node.read(&[&a, &c]);
        assert_eq!(lists[1], Some(vec![1, 3]));
        // Its base may not have become durable with lane 0.
        let all = Some(vec![2, 3]);
        assert!(lists[0] == Some(vec![1]) || lists[0] == all, "{lists:?}");
        both += u32::from(lists[0] == all);
    }
    assert!((1..20).contains(&both), "{both}");
}

#[test]
fn a_value_expires_after_a_restart_as_before() {
    for large in [false, true] {
        let (mut node, [a, ..]) = (Node::new(Logs::Sync, large), keys());
        node.run(txn(&[&a], Step::Put(1)));
        node.run(txn(&[&a], Step::Expire(node.0.now.wall().0 + 50)));
        node.cut_and_serve(1);
        assert_eq!(node.read(&[&a]), [Some(vec![1])]);
        node.0.tick(Duration::from_millis(200));
        node.0.flush_logs();
        node.cut_and_serve(1);
        assert_eq!(node.read(&[&a]), [None]);
    }
}

#[test]
fn versions_go_on_above_those_of_before() {
    let (mut node, [a, b, _]) = (Node::new(Logs::Sync, false), keys());
    let tag = node.submit(0, 1, txn(&[&a, &b], Step::Put(1)));
    node.settle();
    let before = node.0.stamps[&tag];
    node.cut_and_serve(1);
    // The clock has gone back.
    let lane = lane_of_key(b.as_bytes(), LANES).0;
    let tag = node.submit(lane, 1, txn(&[&b], Step::Put(2)));
    node.settle();
    assert!(node.0.stamps[&tag].version > before.version);
    // And an absent key is not as it was before it was set.
    let floor = node.0.hosts[&1].machines[0].table().highest();
    assert!(floor >= before.version, "{floor}");
    node.cut_and_serve(1);
    assert_eq!(node.read(&[&a, &b]), [Some(vec![1]), Some(vec![2])]);
}

#[test]
fn records_of_another_cluster_go() {
    let (mut node, names) = (Node::new(Logs::Sync, false), keys());
    let all = [names[0].as_str(), &names[1], &names[2]];
    node.run(txn(&all, Step::Put(1)));
    node.cut(1);
    node.0.view.cluster = Incarnation(99);
    node.0.set_role(1, Role::Active);
    node.settle();
    assert_eq!(node.read(&all), [None, None, None]);
    node.run(txn(&all[..2], Step::Put(2)));
    node.cut_and_serve(1);
    assert_eq!(node.read(&all), [Some(vec![2]), Some(vec![2]), None]);
}

#[test]
fn a_call_is_recorded_with_what_it_has_changed() {
    let mut node = Node::new(Logs::Sync, false);
    let [a, b, c] = keys();
    for (sequence, keys) in [vec![&a], vec![&a, &b], vec![&c], vec![]].into_iter().enumerate() {
        let keys: Vec<&str> = keys.into_iter().map(String::as_str).collect();
        let (sequence, count) = (sequence as u64, keys.len());
        let calling = txn(&keys, Step::Push(sequence));
        let tag = node.call(sequence, 1, calling.clone());
        node.0.deliver_all_mail();
        node.0.assert_open(tag);
        // A try meets the record before it is durable, or the attempt.
        let again = node.call(sequence, 1, calling.clone());
        let is_open = node.0.outcome(again).is_none();
        assert!(is_open || node.answer(again) == Outcome::Refused(Refusal::Busy));
        node.settle();
        assert_eq!(node.answer(tag).clone(), node.answer(tag));
        if sequence == 1 {
            (0..LANES).for_each(|lane| node.0.save(1, lane));
        }
        node.cut_and_serve(sequence);
        let again = node.call(sequence, 1, calling);
        node.settle();
        assert_eq!(node.answer(again), Outcome::Done(vec![None; count]));
    }
    assert_eq!(node.read(&[&a, &b, &c]), [Some(vec![0, 1]), Some(vec![1]), Some(vec![2])]);
    let other = node.call(0, 2, txn(&[&a], Step::Push(9)));
    assert_eq!(node.answer(other), Outcome::Refused(Refusal::CallError(CallError::Different)));
}

/// A snapshot begins when the entry of a call is in the log, and is not durable yet.
#[test]
fn a_snapshot_has_the_calls_that_wait_for_the_log() {
    let mut node = Node::new(Logs::Sync, false);
    let [a, ..] = keys();
    let calling = txn(&[&a], Step::Push(1));
    let tag = node.call(0, 1, calling.clone());
    node.0.deliver_all_mail();
    node.0.assert_open(tag);
    (0..LANES).for_each(|lane| node.0.save(1, lane));
    node.cut_and_serve(0);
    let again = node.call(0, 1, calling);
    node.settle();
    assert_eq!(node.answer(again), Outcome::Done(vec![None]));
    assert_eq!(node.read(&[&a]), [Some(vec![1])]);
}

// --- bytes ---------------------------------------------------------------------------------------

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn entries_have_these_bytes() {
    let mut node = Node::new(Logs::Sync, true);
    let [a, b, c] = keys();
    assert_eq!([&a, &b, &c], ["key 0", "key 11", "key 1"], "or the bytes below are others");
    node.run(txn(&[&a], Step::Put(1)));
    node.run(txn(&[&a], Step::Push(2)));
    node.run(txn(&[&a, &b], Step::Delete));
    node.call(0, 1, txn(&[&c], Step::Put(3)));
    node.settle();
    node.0.save(1, 2);
    let logs =
        (0..LANES).map(|lane| node.0.log_of(1, lane).into_iter().map(hex).collect::<Vec<_>>());
    let logs: Vec<Vec<String>> = logs.collect();
    let golden = std::fs::read_to_string("tests/entries.golden").unwrap_or_default();
    let written: String = logs.iter().flatten().map(|line| format!("{line}\n")).collect();
    if std::env::var_os("QUORATE_BLESS").is_some() {
        std::fs::write("tests/entries.golden", &written).expect("the golden file");
        return;
    }
    assert_eq!(written, golden);
}

#[test]
fn a_small_value_costs_little_more_than_itself_in_the_log() {
    /// What the log adds to an entry.
    const FRAMING: usize = 27;
    let (mut node, [a, ..]) = (Node::new(Logs::Sync, false), keys());
    node.run(txn(&[&a], Step::Put(1)));
    let log = node.0.log_of(1, 0);
    let entry = log.last().expect("it was appended").len();
    let value = list_of(&[1]).len();
    assert!(entry - value + FRAMING <= 60, "{entry}");
}

#[test]
fn damaged_entries_are_unreadable_and_nothing_worse() {
    let mut node = Node::new(Logs::Sync, true);
    let [a, b, c] = keys();
    node.run(txn(&[&a], Step::Put(1)));
    node.run(txn(&[&a, &b, &c], Step::Push(2)));
    node.call(0, 1, txn(&[&a, &c], Step::Put(3)));
    node.settle();
    node.0.save(1, 2);
    let entries = (0..LANES).flat_map(|lane| node.0.log_of(1, lane));
    let entries: Vec<Vec<u8>> = entries.map(<[u8]>::to_vec).collect();
    let mut rng = Rng::new(5);
    let fresh = || {
        let store = Lanes::store(true);
        let config =
            Config { node: NodeId(1), incarnation: Incarnation(1), lane: LaneId(0), lanes: LANES };
        Lane::new(config, store.shared_table(0))
    };
    for entry in &entries {
        for length in 0..entry.len() {
            let _ = fresh().restore(&entry[..length]);
        }
        for _ in 0..300 {
            let mut damaged = entry.clone();
            for _ in 0..=rng.below(3) {
                let at = rng.below(entry.len() as u64) as usize;
                damaged[at] = rng.below(256) as u8;
            }
            let mut lane = fresh();
            if lane.restore(&damaged).is_ok() {
                lane.restored();
                lane.check_invariants();
            }
        }
        assert_eq!(fresh().restore(entry), Ok(()));
    }
    assert!(fresh().restore(&[]).is_err());
    assert!(fresh().restore(&[77]).is_err());
}
