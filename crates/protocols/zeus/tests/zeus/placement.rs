//! Where transactions run: pins, keys that bounce, and everything else where its client is. With one
//! replica of six nodes two nodes write what neither keeps.

use std::collections::BTreeMap;

use quorate_engine::{NoPins, Pins, Place};
use quorate_machine::Rng;
use quorate_types::{Duration, NodeId, Role};

use crate::support::{Cluster, Replicas};
use crate::txn::{Txn, txn};

/// Pins as an operator has set them.
#[derive(Default)]
struct Pinned(BTreeMap<Vec<u8>, u16>);

impl Pinned {
    fn of(unit: &str, node: u16) -> Self {
        Self([(unit.as_bytes().to_vec(), node)].into())
    }
}

impl Pins for Pinned {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn node_of(&self, unit: &[u8]) -> Option<NodeId> {
        self.0.get(unit).copied().map(NodeId)
    }
}

/// Where the transactions of a random run go.
#[derive(Default)]
pub(crate) struct Placer {
    pins: Pinned,
    /// The last transaction of each origin that was sent to another node: later ones wait for its end.
    away: BTreeMap<u64, u64>,
}

impl Placer {
    /// Pins a key to any node, member or not, or ends that.
    pub(crate) fn pin(&mut self, rng: &mut Rng, keys: u64, node: u16) {
        let key = format!("k{}", rng.below(keys)).into_bytes();
        if self.pins.0.remove(&key).is_none() || rng.chance(1, 2) {
            self.pins.0.insert(key, node);
        }
    }

    /// The node where a transaction is to run that a client of `node` asks for, and its origin there.
    pub(crate) fn place(
        &self,
        cluster: &mut Cluster,
        (node, lane, origin): (u16, u16, u64),
        txn: &Txn,
        is_answered: impl Fn(u64) -> bool,
    ) -> (u16, u64) {
        let is_away = self.away.get(&origin).is_some_and(|tag| !is_answered(*tag));
        // Its client would have to wait: another one takes its place.
        let own = if is_away { origin + 1_000 * cluster.next_tag() } else { origin };
        let now = cluster.now_at(node);
        let host = cluster.hosts.get_mut(&node).expect("it is one");
        match host.machines[usize::from(lane)].place(now, own, txn, &self.pins) {
            // What is sent to a node that is gone has not run.
            Place::At(NodeId(other)) if cluster.hosts[&other].up => (other, own + (1 << 32)),
            _ => (node, own),
        }
    }

    /// A transaction was sent to another node than its client's.
    pub(crate) fn sent_away(&mut self, cluster: &mut Cluster, origin: u64, tag: u64) {
        self.away.insert(origin, tag);
        *cluster.probes.entry("a transaction is sent to another node").or_default() += 1;
    }
}

fn nodes(count: u16, replicas: usize, lanes: u16) -> Cluster {
    let replicas = Replicas { replicas: Some(replicas), lanes: Some(lanes), ..Replicas::default() };
    Cluster::of(replicas, count, |_| 0, u64::from)
}

/// Where a transaction of a client of this node is to run.
fn place(cluster: &mut Cluster, node: u16, text: &str, pins: &impl Pins) -> u16 {
    let now = cluster.now_at(node);
    match cluster.machine(node).place(now, 0, &txn(text), pins) {
        Place::Here => node,
        Place::At(other) => other.0,
        Place::Unknown => panic!("some node can run it"),
    }
}

/// Runs a transaction of a client of this node where it is placed.
fn run(cluster: &mut Cluster, node: u16, text: &str, pins: &impl Pins) -> u16 {
    let at = place(cluster, node, text, pins);
    cluster.run(at, text);
    at
}

/// The first active member of a key's group.
fn default_owner(cluster: &Cluster, key: &str) -> u16 {
    cluster.hosts[&1].machine().default_owner_of(key.as_bytes()).expect("it has a group").0
}

/// Another node than these.
fn other_than(nodes: &[u16]) -> u16 {
    (1..).find(|node| !nodes.contains(node)).expect("there are more")
}

#[test]
fn a_key_follows_its_user() {
    let mut cluster = nodes(3, 3, 1);
    for node in [1, 2, 3] {
        cluster.advance(Duration::from_millis(200));
        for _ in 0..3 {
            assert_eq!(run(&mut cluster, node, "append=a:1", &NoPins), node);
        }
        assert_eq!(cluster.writers("a"), [node]);
    }
}

#[test]
fn a_key_that_is_written_in_turn_stays_with_its_default_owner_for_a_while() {
    for (count, replicas) in [(3, 3), (6, 1)] {
        let mut cluster = nodes(count, replicas, 1);
        let owner = default_owner(&cluster, "a");
        let [one, two] = [other_than(&[owner]), other_than(&[owner, other_than(&[owner])])];
        let moves = |cluster: &Cluster| cluster.probed("zeus: ownership acquired");
        let take_turns = |cluster: &mut Cluster| {
            let before = moves(cluster);
            for _ in 0..40 {
                run(cluster, one, "append=a:1", &NoPins);
                run(cluster, two, "append=a:1", &NoPins);
                cluster.advance(Duration::from_micros(500));
            }
            moves(cluster) - before
        };
        let moved = take_turns(&mut cluster);
        assert!((3..=8).contains(&moved), "it has moved {moved} times in 80 turns");
        assert_eq!(cluster.writers("a"), [owner]);
        assert_eq!(place(&mut cluster, one, "append=a:1", &NoPins), owner);
        assert_eq!(place(&mut cluster, owner, "append=a:1", &NoPins), owner);
        assert_eq!(place(&mut cluster, one, "append=b:1", &NoPins), one, "b does not bounce");
        // It is asked for again when nobody has counted for a while.
        cluster.advance(Duration::from_millis(1_001));
        assert_eq!(run(&mut cluster, one, "append=a:1", &NoPins), one);
        assert_eq!(cluster.writers("a"), [one]);
        cluster.assert_quiet(["a".to_owned()]);
    }
}

#[test]
fn moves_that_are_far_between_are_none_too_many() {
    let mut cluster = nodes(3, 3, 1);
    for turn in 0..40 {
        let node = 1 + turn % 3;
        assert_eq!(run(&mut cluster, node, "append=a:1", &NoPins), node);
        cluster.advance(Duration::from_millis(34));
    }
}

/// Two keys bounce whose default owners differ, and transactions name them in either order.
#[test]
fn what_bounces_together_is_used_together() {
    let mut cluster = nodes(3, 3, 1);
    let owner = default_owner(&cluster, "a");
    let b = (0..).map(|number| format!("b{number}"));
    let b = { b }.find(|key| default_owner(&cluster, key) != owner).expect("groups differ");
    let texts = [format!("append=a:1 append={b}:1"), format!("append={b}:1 append=a:1")];
    for turn in 0..30 {
        run(&mut cluster, 1 + turn % 3, &texts[usize::from(turn % 2)], &NoPins);
    }
    assert_eq!((cluster.writers("a"), cluster.writers(&b)), (vec![owner], vec![owner]));
    for node in 1..=3 {
        for text in &texts {
            assert_eq!(place(&mut cluster, node, text, &NoPins), owner);
        }
    }
}

#[test]
fn a_pinned_unit_is_used_where_it_is_pinned() {
    let mut cluster = nodes(4, 2, 1);
    let pins = Pinned::of("u7", 4);
    cluster.run(1, "write={u7}cart:0 write={u7}quota:0 write=other:0");
    // Even where its owner is asked, and whichever key of the unit comes first.
    for key in ["{u7}cart", "{u7}quota", "u7"] {
        for node in 1..=4 {
            assert_eq!(place(&mut cluster, node, &format!("append={key}:1"), &pins), 4);
        }
    }
    run(&mut cluster, 2, "append={u7}cart:1 append=other:1", &pins);
    assert_eq!(cluster.writers("{u7}cart"), [4]);
    assert_eq!(cluster.writers("other"), [4], "what else is used comes along");
    // The anchor decides: what is read before, or named later, does not.
    let text = "read={u7}cart append=other:1 append={u7}cart:1";
    assert_eq!(place(&mut cluster, 2, text, &pins), 2);
    let reader = place(&mut cluster, 3, "read={u7}cart", &pins);
    assert!(cluster.group("{u7}cart").contains(&reader), "reads go where copies are");
}

#[test]
fn a_pin_waits_while_its_node_is_away() {
    let mut cluster = nodes(4, 2, 1);
    let pins = Pinned::of("a", 3);
    run(&mut cluster, 1, "write=a:0", &pins);
    assert_eq!(cluster.writers("a"), [3]);
    cluster.crash(3);
    cluster.expel(&[3]);
    cluster.deliver_all();
    assert_eq!(run(&mut cluster, 1, "append=a:1", &pins), 1);
    assert_eq!(cluster.writers("a"), [1]);
    // It is no member until it has copied everything.
    cluster.come_back(3);
    assert_eq!(place(&mut cluster, 1, "append=a:2", &pins), 1);
    cluster.deliver_all();
    cluster.set_role(3, Role::Active);
    cluster.deliver_all();
    assert_eq!(run(&mut cluster, 1, "append=a:2", &pins), 3);
    assert_eq!(cluster.run(3, "read=a"), [Some("012".to_owned())]);
    assert_eq!(place(&mut cluster, 1, "append=a:3", &Pinned::of("a", 77)), 1, "no such node");
}

/// What an origin has asked for before waits for its keys, and comes first.
#[test]
fn nothing_is_sent_away_that_would_overtake_its_origin() {
    let mut cluster = nodes(3, 3, 1);
    cluster.run(1, "write=a:0");
    let pins = Pinned::of("b", 3);
    let open = cluster.submit_on(2, 0, 5, txn("append=a:1"));
    let now = cluster.now_at(2);
    let place = |cluster: &mut Cluster, origin| {
        cluster.machine(2).place(now, origin, &txn("append=b:1"), &pins)
    };
    assert_eq!(place(&mut cluster, 5), Place::Here);
    assert_eq!(place(&mut cluster, 6), Place::At(NodeId(3)));
    cluster.deliver_all();
    cluster.read_by(open);
    assert_eq!(place(&mut cluster, 5), Place::At(NodeId(3)));
}

#[test]
fn every_lane_hears_that_a_key_bounces() {
    let mut cluster = nodes(3, 3, 2);
    let owner = default_owner(&cluster, "a");
    for turn in 0..6_u16 {
        cluster.submit_on(1 + turn % 3, turn % 2, 7, txn("append=a:1"));
        cluster.deliver_all();
    }
    for node in (1..=3).filter(|node| *node != owner) {
        let now = cluster.now_at(node);
        // The owner runs what it is asked itself.
        if cluster.writers("a") == [node] {
            continue;
        }
        for machine in &mut cluster.hosts.get_mut(&node).expect("it runs").machines {
            let at = machine.place(now, 9, &txn("append=a:1"), &NoPins);
            assert_eq!(at, Place::At(NodeId(owner)));
        }
    }
}

#[test]
fn a_record_counts_its_moves() {
    let mut cluster = nodes(3, 3, 1);
    for node in [1, 2, 3, 1] {
        cluster.run(node, "append=a:1");
    }
    let first = u32::from(default_owner(&cluster, "a") != 1);
    for node in 1..=3 {
        assert_eq!(cluster.meta(node, "a").moves, 3 + first);
    }
}
