//! Transactions over several lanes of a node, step by step.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quorate_harness::{Observed, Packet, Process, Subject};
use quorate_machine::{Content, Event, Outcome, Record as _, Refusal, Table as _, ValueKind};
use quorate_storage::{SharedTable, Store};
use quorate_types::{Duration, Epoch, LaneId, Role, Timestamp, WriterId, hash_key, lane_of_key};
use quorate_wire::Writer;
use quorate_zeus::{Config, DataState, Message, Meta, Zeus};

use crate::support::{Cluster, MLT, Replicas};
use crate::txn::{Txn, txn};

const LANES: u16 = 2;
const COLLECT: Duration = Duration::from_millis(50);

/// Three nodes of two lanes.
fn lanes() -> Cluster {
    let op_timeout = Some(Duration::from_secs(60));
    let replicas = Replicas { lanes: Some(LANES), op_timeout, ..Replicas::default() };
    Cluster::of(replicas, 3, |_| 0, |node| u64::from(node) * 100)
}

/// A key of each lane.
pub(crate) fn keys() -> [String; 2] {
    [0, 1].map(|lane| {
        let mut names = (0..).map(|number| format!("k{number}"));
        let is_own = |name: &String| lane_of_key(name.as_bytes(), LANES) == LaneId(lane);
        names.find(is_own).expect("keys are spread over lanes")
    })
}

/// Whether a message is about moving a key.
fn moves(packet: &Packet<Replicas>, key: &str) -> bool {
    match packet.message() {
        Message::Req { key: of, .. } | Message::Inv { key: of, .. } => of == key.as_bytes(),
        Message::Ack { key: of, .. } | Message::Val { key: of, .. } => of == key.as_bytes(),
        _ => false,
    }
}

#[test]
fn a_transaction_over_two_lanes_is_one_message_to_each_follower() {
    let (mut cluster, [a, b]) = (lanes(), keys());
    let tag = cluster.submit_on(1, 1, 7, txn(&format!("write={a}:1 write={b}:2")));
    cluster.deliver_all();
    assert!(matches!(cluster.outcome(tag), Some(Outcome::Done(_))));
    let sent = cluster.fresh_packets.iter().filter(|packet| packet.is(1, 0, "r-inv"));
    let sent: Vec<(u16, LaneId)> = sent.map(|packet| (packet.to.0, packet.lane)).collect();
    assert_eq!(sent, [(2, LaneId(0)), (3, LaneId(0))], "on the lane of its first key");
    cluster.assert_quiet([a, b]);
}

#[test]
fn a_lane_lends_a_key_when_nothing_under_way_has_used_it() {
    let (mut cluster, [a, b]) = (lanes(), keys());
    cluster.run(1, &format!("write={a}:0 write={b}:1"));
    cluster.submit_on(1, 1, 1, txn(&format!("append={b}:2")));
    let tag = cluster.submit_on(1, 0, 2, txn(&format!("write={a}:3 append={b}:3")));
    cluster.deliver_all_mail();
    let first = cluster.take(1, 0, "r-inv");
    assert!(first.iter().all(|packet| packet.lane == LaneId(1)), "the second has not run");
    assert_eq!(first.len(), 2);
    cluster.pool.extend(first);
    cluster.deliver_all();
    assert_eq!(cluster.read_by(tag), [Some("12")]);
    cluster.assert_quiet([a, b]);
}

#[test]
fn a_key_that_is_always_being_written_is_lent_all_the_same() {
    let (mut cluster, [a, b]) = (lanes(), keys());
    cluster.run(1, &format!("write={a}:0 write={b}:0"));
    cluster.submit_on(1, 1, 1, txn(&format!("append={b}:1")));
    let across = cluster.submit_on(1, 0, 2, txn(&format!("write={a}:2 append={b}:2")));
    cluster.deliver_all_mail();
    for origin in 3..10 {
        // One is under way before the last is committed.
        let before = core::mem::take(&mut cluster.pool);
        cluster.submit_on(1, 1, origin, txn(&format!("append={b}:{origin}")));
        cluster.deliver_all_mail();
        let fresh = core::mem::replace(&mut cluster.pool, before);
        cluster.deliver_all();
        cluster.pool.extend(fresh);
    }
    assert_eq!(cluster.read_by(across), [Some("01")]);
    cluster.deliver_all();
    cluster.assert_quiet([a, b]);
}

#[test]
fn what_a_lane_has_borrowed_goes_back_to_who_is_older() {
    let (mut cluster, [a, b]) = (lanes(), keys());
    cluster.run(2, &format!("write={a}:0"));
    cluster.run(1, &format!("write={b}:0"));
    cluster.advance(Duration::from_millis(1));
    let older = cluster.submit_on(3, 1, 1, txn(&format!("write={b}:o")));
    cluster.advance(Duration::from_millis(1));
    // It has borrowed one key and waits for the other, which is far away.
    let younger = cluster.submit_on(1, 0, 2, txn(&format!("append={a}:y append={b}:y")));
    cluster.deliver_all_mail();
    cluster.deliver_some(|packet| !moves(packet, &a));
    assert!(cluster.outcome(older).is_some(), "it has the key");
    assert!(cluster.outcome(younger).is_none());
    cluster.deliver_all();
    assert_eq!(cluster.read_by(younger), [Some("0"), Some("o")]);
    cluster.assert_quiet([a, b]);
}

#[test]
fn what_is_lent_by_a_default_owner_goes_back_with_the_next_view() {
    let (mut cluster, [a, b]) = (lanes(), keys());
    let [first] = cluster.writers(&b)[..] else { panic!("a key has one default owner") };
    cluster.crash(first);
    cluster.set_role(first, Role::Down);
    cluster.deliver_all();
    let [second] = cluster.writers(&b)[..] else { panic!("it has another now") };
    let third = 6 - first - second;
    cluster.run(third, &format!("write={a}:0"));
    // It has borrowed a key that was never written, and waits for the other.
    let tag = cluster.submit_on(second, 0, 1, txn(&format!("append={a}:y append={b}:y")));
    let span = Duration::from_millis(200);
    let stays = |packet: &_| !moves(packet, &a) && !moves(packet, &b);
    cluster.start(first, 1);
    for role in [Role::Shadow, Role::Active] {
        cluster.set_role(first, role);
        cluster.run_some(span, stays);
    }
    assert_eq!(cluster.writers(&b), [first], "it is the default owner again");
    let write = cluster.submit(first, &format!("write={b}:r"));
    // The other key comes before anybody has heard of that.
    cluster.run_some(span, |packet| moves(packet, &a));
    cluster.run_for(span);
    assert!(matches!(cluster.outcome(write), Some(Outcome::Done(_))));
    assert_eq!(cluster.read_by(tag), [Some("0"), Some("r")]);
    cluster.assert_quiet([a, b]);
}

/// The only one who knows what it has read dies. The transaction has written a key of lane 0, and what it has
/// read, on a node whose clock is ahead, is of lane 1.
#[test]
fn what_was_read_is_written_under_a_newer_version_when_its_owner_has_died() {
    let op_timeout = Some(Duration::from_secs(60));
    let replicas = Replicas { lanes: Some(LANES), op_timeout, ..Replicas::default() };
    let ahead = |node: u16| if node == 1 { 60_000_000_000 } else { 0 };
    let (mut cluster, [a, b]) = (Cluster::of(replicas, 3, ahead, u64::from), keys());
    cluster.run(1, &format!("write={a}:1 read={b}"));
    let read_at = cluster.meta(1, &a).version;
    cluster.crash(1);
    cluster.set_role(1, Role::Down);
    cluster.run_for(MLT * 10);
    cluster.run(2, &format!("write={b}:1"));
    assert!(cluster.meta(2, &b).version > read_at);
    cluster.assert_quiet([a, b]);
}

#[test]
fn a_lane_acts_in_a_view_when_all_have_stopped() {
    let (mut cluster, [a, b]) = (lanes(), keys());
    cluster.run(1, &format!("write={a}:0 write={b}:0"));
    let roles = cluster.roles_with(3, Role::Down);
    let view = cluster.decide(&roles);
    cluster.step_on(1, 0, Event::View(&view));
    cluster.deliver_all_mail();
    let epochs =
        |cluster: &Cluster| cluster.hosts[&1].machines.iter().map(Zeus::epoch).collect::<Vec<_>>();
    assert_eq!(epochs(&cluster), [Epoch(1), Epoch(1)], "the other lane has not heard of it");
    let tag = cluster.submit_on(1, 0, 7, txn(&format!("write={a}:1")));
    cluster.step_on(1, 1, Event::View(&view));
    cluster.deliver_all_mail();
    assert_eq!(epochs(&cluster), [view.epoch, view.epoch]);
    cluster.install_on(2, &view);
    cluster.deliver_all();
    assert!(matches!(cluster.outcome(tag), Some(Outcome::Done(_))));
}

/// A lane that has stopped for a view looks at nothing that changes, and the node may begin a new life
/// before the other lane has heard of that view.
#[test]
fn what_changed_in_one_life_is_not_looked_at_in_the_next() {
    let (mut cluster, [_, b]) = (lanes(), keys());
    cluster.run(1, &format!("write={b}:0"));
    let written = cluster.submit_on(1, 1, 7, txn(&format!("append={b}:1")));
    cluster.deliver(1, 2, "r-inv");
    let read = cluster.submit_on(2, 1, 7, txn(&format!("read={b}")));
    cluster.assert_open(read);
    let roles = cluster.roles_with(3, Role::Down);
    let view = cluster.decide(&roles);
    cluster.step_on(2, 1, Event::View(&view));
    cluster.deliver_all_mail();
    // The read has waited for the commit for so long that it becomes an owner.
    cluster.tick(MLT * 2);
    let probe = "zeus: a reader has waited for too long";
    assert_eq!(cluster.probed(probe), 1);
    // The harness checks after each step that nothing is left that has changed.
    cluster.begin_life(2);
    assert_eq!(cluster.outcome(read), Some(&Outcome::Refused(Refusal::NotServing)));
    cluster.install(&[(1, Role::Active), (2, Role::Shadow), (3, Role::Active)]);
    cluster.run_for(MLT * 10);
    assert_eq!(cluster.read_by(written), [Some("0")]);
    cluster.assert_quiet([b]);
}

// --- another lane changes records between two looks of a reader ------------------------------------

type Overtaken = Observed<SharedTable<Meta>, Box<dyn FnMut(&mut SharedTable<Meta>, &[u8])>>;

/// Both keys are overwritten, as by another lane.
fn overtake(table: &mut SharedTable<Meta>) {
    for key in keys() {
        let mut record = table.lock_key(key.as_bytes(), 3);
        let version = Timestamp::new(u64::MAX / 2, WriterId(1));
        let meta = Meta { version, data: DataState::Valid, ..record.meta() };
        record.set_content(Content { bytes: b"new", kind: ValueKind::String, expire_at: None });
        record.set_meta(meta);
    }
}

/// One node. Once armed, it finds both keys overwritten when it is about to look at the second for the
/// so-manieth time.
struct Lone {
    store: Arc<Store<Meta>>,
    armed: Arc<AtomicU64>,
}

impl Subject for Lone {
    type Machine = Zeus<Overtaken, Txn>;

    fn lanes(&self) -> u16 {
        LANES
    }

    fn start(&self, process: Process) -> Self::Machine {
        let Process { node, incarnation, lane, seed, .. } = process;
        let collect_every = COLLECT;
        let config = Config::new(node, incarnation, lane, seed);
        let config = Config { lanes: LANES, collect_every, ..config };
        let armed = Arc::clone(&self.armed);
        let [_, second] = keys();
        let before_lock = move |table: &mut SharedTable<Meta>, key: &[u8]| {
            let left = armed.load(Ordering::Relaxed);
            if key == second.as_bytes() && left > 0 {
                armed.store(left - 1, Ordering::Relaxed);
                if left == 1 {
                    overtake(table);
                }
            }
        };
        Zeus::new(config, Observed::new(self.store.shared_table(lane.0), Box::new(before_lock)))
    }

    fn encode(message: &Message<'_>, bytes: &mut Vec<u8>) {
        message.encode(&mut Writer(bytes));
    }

    fn decode(bytes: &[u8]) -> Message<'_> {
        Message::decode(bytes).expect("machines send well-formed messages")
    }
}

#[test]
fn what_a_reader_of_two_lanes_has_seen_was_there_at_one_moment() {
    let armed = Arc::<AtomicU64>::default();
    let lone = Lone { store: Store::new(LANES), armed: Arc::clone(&armed) };
    let mut cluster = quorate_harness::Cluster::founded(lone, 1, u64::from);
    cluster.deliver_all();
    let [a, b] = keys();
    let mut submit = |text: String| {
        cluster.advance(Duration::from_nanos(1));
        let (tag, command) = (cluster.tag(), txn(&text));
        cluster.act_on(1, 0, |machine, now, out| machine.submit(now, tag, 1, command, out));
        cluster.deliver_all();
        match cluster.outcome(tag.0) {
            Some(Outcome::Done(reply)) => {
                reply.iter().map(|seen| seen.value.clone().unwrap_or_default()).collect::<Vec<_>>()
            }
            other => panic!("{other:?}"),
        }
    };
    submit(format!("write={a}:old write={b}:old"));
    armed.store(1, Ordering::Relaxed);
    assert_eq!(submit(format!("read={a} read={b}")), ["new", "new"]);
    assert!(cluster.probes.contains_key("zeus: a reader is overtaken by a commit"));
}

#[test]
fn what_another_lane_has_just_written_is_not_forgotten() {
    let armed = Arc::<AtomicU64>::default();
    let lone = Lone { store: Store::new(LANES), armed: Arc::clone(&armed) };
    let store = Arc::clone(&lone.store);
    let mut cluster = quorate_harness::Cluster::founded(lone, 1, u64::from);
    cluster.deliver_all();
    let [_, key] = keys();
    for text in [format!("write={key}:old"), format!("del={key}")] {
        cluster.advance(Duration::from_nanos(1));
        let (tag, command) = (cluster.tag(), txn(&text));
        cluster.act_on(1, 1, |machine, now, out| machine.submit(now, tag, 1, command, out));
        cluster.deliver_all();
    }
    let record = || {
        let mut bytes = Vec::new();
        let snapshot =
            store.read(key.as_bytes(), hash_key(key.as_bytes()), &store.pin(), &mut bytes);
        snapshot.map(|snapshot| (snapshot.meta.version, bytes))
    };
    let (deleted, _) = record().expect("a deleted key leaves a record");
    while cluster.hosts[&1].machines[1].floor() < deleted {
        cluster.run_for(Duration::from_millis(1));
    }
    assert!(record().is_some(), "the walk comes after the floor has risen");
    // The walk looks at the record, and then forgets it.
    armed.store(2, Ordering::Relaxed);
    cluster.run_for(COLLECT * 4);
    assert_eq!(armed.load(Ordering::Relaxed), 0);
    assert_eq!(record().map(|(_, bytes)| bytes).as_deref(), Some(&b"new"[..]));
}
