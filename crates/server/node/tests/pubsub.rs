//! Publications between lanes and nodes, on whole lanes in one process.

mod support;

use std::sync::Arc;

use quorate_machine::Rng;
use quorate_node::{EngineConfig, KeyspaceConfig};
use quorate_types::{Duration, KeyspaceId, NodeId, Publication, Topic};
use quorate_wire::{Header, Malformed};

use support::{Cluster, Place, at, config};

const LANES: u16 = 2;
const NODES: u16 = 3;

fn cluster() -> Cluster {
    let engine = EngineConfig::default();
    let keyspaces = vec![KeyspaceConfig::new(KeyspaceId(0), "default", engine)];
    Cluster::new((1..=NODES).map(|node| config(NodeId(node), NODES, LANES, keyspaces.clone())))
}

fn places() -> impl Iterator<Item = Place> {
    (0..usize::from(NODES)).flat_map(|node| (0..usize::from(LANES)).map(move |lane| (node, lane)))
}

fn publication(channel: &str, message: &str) -> Arc<Publication> {
    let (channel, message) = (channel.as_bytes().into(), message.as_bytes().into());
    Arc::new(Publication { topic: Topic::Channel, channel, message })
}

impl Cluster {
    fn listen(&mut self, place: Place, topic: Topic, name: &str, clients: u32) {
        self.host(place).lane.listen(topic, name.as_bytes(), clients);
    }

    fn publish(&mut self, place: Place, channel: &str, message: &str) -> u64 {
        let host = self.host(place);
        host.lane.broadcast(&publication(channel, message), &mut host.out)
    }

    /// The messages that have come to a place.
    fn published(&mut self, place: Place) -> Vec<String> {
        let published = self.host(place).out.published.drain(..);
        published.map(|one| String::from_utf8(one.message.to_vec()).unwrap()).collect()
    }
}

#[test]
fn a_message_reaches_every_lane_of_every_node_where_somebody_listens_in_order() {
    let mut cluster = cluster();
    for place in places() {
        cluster.listen(place, Topic::Channel, "c", 1);
    }
    let mut rng = Rng::new(1);
    let mut sent = vec![0; places().count()];
    for _ in 0..2000 {
        let nth = rng.below(sent.len() as u64) as usize;
        let place = places().nth(nth).unwrap();
        cluster.publish(place, "c", &format!("{nth} {}", sent[nth]));
        sent[nth] += 1;
        if rng.chance(1, 10) {
            cluster.turn(Duration::from_micros(100));
        }
    }
    cluster.pass(Duration::from_millis(20));
    for (own, place) in places().enumerate() {
        let mut heard = vec![0; sent.len()];
        for message in cluster.published(place) {
            let (from, number) = message.split_once(' ').unwrap();
            let from: usize = from.parse().unwrap();
            assert_eq!(number.parse(), Ok(heard[from]), "of {from} at {place:?}");
            heard[from] += 1;
        }
        // A lane hands its own messages to its clients itself.
        let expected =
            sent.iter().enumerate().map(|(from, &sent)| if from == own { 0 } else { sent });
        assert_eq!(heard, expected.collect::<Vec<_>>(), "at {place:?}");
    }
}

#[test]
fn who_does_not_listen_hears_nothing() {
    let mut cluster = cluster();
    cluster.listen((0, 1), Topic::Channel, "c", 2);
    cluster.listen((1, 0), Topic::Pattern, "c*", 1);
    cluster.listen((2, 0), Topic::Shard, "c", 1);
    cluster.pass(Duration::from_millis(20));
    cluster.publish((2, 1), "c", "x");
    cluster.publish((2, 1), "other", "x");
    cluster.pass(Duration::from_millis(20));
    for place in places() {
        let expected = usize::from([(0, 1), (1, 0)].contains(&place));
        assert_eq!(cluster.published(place).len(), expected, "at {place:?}");
    }
    cluster.listen((0, 1), Topic::Channel, "c", 0);
    cluster.listen((1, 0), Topic::Pattern, "c*", 0);
    cluster.pass(Duration::from_millis(20));
    assert_eq!(cluster.publish((2, 1), "c", "x"), 0);
    cluster.pass(Duration::from_millis(20));
    assert!(places().all(|place| cluster.published(place).is_empty()));
}

#[test]
fn the_lanes_of_a_node_are_counted() {
    let mut cluster = cluster();
    cluster.listen((0, 0), Topic::Channel, "c", 2);
    cluster.listen((0, 1), Topic::Channel, "c", 3);
    cluster.listen((0, 1), Topic::Pattern, "?", 1);
    assert_eq!(cluster.publish((0, 0), "c", "x"), 6);
    let lane = &cluster.host((0, 1)).lane;
    assert_eq!(lane.listeners(Topic::Channel, b"c"), 5);
    let mut names = Vec::new();
    lane.visit_names(Topic::Pattern, &mut |name| names.push(name.to_vec()));
    assert_eq!(names, [b"?".to_vec()]);
}

/// What lane 0 of a node has to say to another one, message by message.
fn said(cluster: &mut Cluster, from: usize, to: NodeId) -> Vec<Vec<u8>> {
    let bytes = std::mem::take(cluster.host((from, 0)).out.peer(to));
    cluster.host((from, 0)).out.take_waiting();
    let mut rest = &bytes[..];
    let mut messages = Vec::new();
    while !rest.is_empty() {
        let before = rest;
        Header::split(&mut rest).unwrap().expect("a whole message");
        messages.push(before[..before.len() - rest.len()].to_vec());
    }
    messages
}

fn hear(
    cluster: &mut Cluster,
    at_node: usize,
    from: usize,
    message: &[u8],
) -> Result<(), Malformed> {
    let now = at(cluster.time);
    let life = cluster.host((from, 0)).lane.incarnation();
    let from = NodeId(from as u16 + 1);
    let host = cluster.host((at_node, 0));
    host.lane.receive(now, from, life, message, &mut host.out)
}

/// Messages of node 1 to node 2, which listens.
fn messages(cluster: &mut Cluster, count: usize) -> Vec<Vec<u8>> {
    cluster.listen((1, 0), Topic::Channel, "c", 1);
    cluster.pass(Duration::from_millis(20));
    for number in 0..count {
        cluster.publish((0, 0), "c", &number.to_string());
    }
    said(cluster, 0, NodeId(2))
}

#[test]
fn what_comes_early_waits_and_what_comes_twice_is_heard_once() {
    for seed in 0..20 {
        let mut cluster = cluster();
        let messages = messages(&mut cluster, 30);
        let mut rng = Rng::new(seed);
        let mut order: Vec<_> = (0..messages.len()).chain(0..messages.len()).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, rng.below(at as u64 + 1) as usize);
        }
        for nth in order {
            hear(&mut cluster, 1, 0, &messages[nth]).expect("a correct node has said it");
        }
        let expected: Vec<_> = (0..30).map(|number| number.to_string()).collect();
        assert_eq!(cluster.published((1, 0)), expected, "seed {seed}");
    }
}

#[test]
fn a_lost_message_is_waited_for_and_passed_over() {
    let mut cluster = cluster();
    let messages = messages(&mut cluster, 5);
    for nth in [0, 2, 4] {
        hear(&mut cluster, 1, 0, &messages[nth]).unwrap();
    }
    assert_eq!(cluster.published((1, 0)), ["0"]);
    cluster.pass(Duration::from_millis(480));
    assert!(cluster.published((1, 0)).is_empty());
    cluster.pass(Duration::from_millis(40));
    assert_eq!(cluster.published((1, 0)), ["2"]);
    // The wait begins anew behind each gap.
    hear(&mut cluster, 1, 0, &messages[3]).unwrap();
    assert_eq!(cluster.published((1, 0)), ["3", "4"]);
    hear(&mut cluster, 1, 0, &messages[1]).unwrap();
    assert!(cluster.published((1, 0)).is_empty(), "it would come out of order");
}

#[test]
fn many_early_messages_do_not_wait() {
    let mut cluster = cluster();
    let messages = messages(&mut cluster, 16 * 1024 + 3);
    for message in &messages[1..] {
        hear(&mut cluster, 1, 0, message).unwrap();
    }
    assert_eq!(cluster.published((1, 0)).len(), messages.len() - 1);
}

#[test]
fn damaged_messages_are_refused() {
    let mut cluster = cluster();
    let message = messages(&mut cluster, 1).pop().unwrap();
    let mut damaged = message.clone();
    damaged[Header::BYTES] = 9;
    let unknown = Malformed("unknown message about publications");
    assert_eq!(hear(&mut cluster, 1, 0, &damaged), Err(unknown));
    hear(&mut cluster, 1, 0, &message).unwrap();
    // What is meant for an earlier life says nothing.
    let mut other = message;
    other[Header::BYTES + 1] ^= 1;
    hear(&mut cluster, 1, 0, &other).unwrap();
    assert_eq!(cluster.published((1, 0)), ["0"]);
}

#[test]
fn nothing_is_sent_to_a_node_outside_the_view() {
    let mut cluster = cluster();
    cluster.listen((2, 0), Topic::Channel, "c", 1);
    cluster.pass(Duration::from_millis(20));
    for lane in &mut cluster.lanes {
        lane.deaf.insert(NodeId(3));
        lane.mute.insert(NodeId(3));
    }
    cluster.pass(Duration::from_secs(12));
    assert!(!cluster.host((0, 0)).lane.view().live().contains(NodeId(3)));
    assert_eq!(cluster.publish((0, 0), "c", "x"), 0);
    assert!(said(&mut cluster, 0, NodeId(3)).is_empty());
}
