//! Publications between lanes and nodes, on whole lanes in one process.

use std::collections::BTreeSet;
use std::sync::Arc;

use quorate_machine::Rng;
use quorate_node::{EngineConfig, KeyspaceConfig};
use quorate_types::{Duration, Epoch, KeyspaceId, NodeId, NodeSet, Publication, Topic};
use quorate_wire::{Header, Kind, Malformed};

use crate::support::{Cluster, Place, at, config};

const LANES: u16 = 2;
const NODES: u16 = 3;

fn cluster() -> Cluster {
    let engine = EngineConfig::default();
    let keyspaces = vec![KeyspaceConfig::new(KeyspaceId(0), "default", engine)];
    let config = |node| config(NodeId(node), NODES, LANES, keyspaces.clone());
    let mut cluster = Cluster::new((1..=NODES).map(config));
    // What is told before a node has its view is lost, and told again.
    cluster.pass(Duration::from_millis(200));
    cluster
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
        published
            .map(|one| {
                String::from_utf8(one.message.to_vec()).expect("messages of this test are text")
            })
            .collect()
    }
}

#[test]
fn a_message_reaches_every_lane_of_every_node_where_somebody_listens_in_order() {
    let mut cluster = cluster();
    for place in places() {
        cluster.listen(place, Topic::Channel, "c", 1);
    }
    cluster.pass(Duration::from_millis(20));
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
fn nodes_tell_each_other_what_is_listened_to() {
    let mut cluster = cluster();
    cluster.listen((0, 0), Topic::Channel, "c", 2);
    cluster.listen((0, 1), Topic::Channel, "c", 1);
    cluster.listen((1, 1), Topic::Pattern, "c*", 4);
    cluster.listen((1, 0), Topic::Shard, "c", 8);
    cluster.pass(Duration::from_millis(20));
    for place in places() {
        assert_eq!(cluster.publish(place, "c", "x"), 7, "at {place:?}");
        let lane = &cluster.host(place).lane;
        assert_eq!(lane.listeners(Topic::Channel, b"c"), 3);
        assert_eq!(lane.listeners(Topic::Shard, b"c"), 8);
        let mut names = Vec::new();
        lane.visit_names(Topic::Pattern, &mut |name| names.push(name.to_vec()));
        assert_eq!(names, [b"c*".to_vec()]);
        // Nothing is sent where nobody listens.
        assert!(said(&mut cluster, place, NodeId(3)).is_empty());
    }
    cluster.listen((0, 0), Topic::Channel, "c", 0);
    cluster.listen((0, 1), Topic::Channel, "c", 5);
    cluster.pass(Duration::from_millis(20));
    assert!(places().all(|place| cluster.publish(place, "c", "x") == 9));
}

#[test]
fn many_names_are_told_in_parts() {
    let mut cluster = cluster();
    for number in 0..20_000 {
        cluster.listen((0, 0), Topic::Channel, &format!("{number:0100}"), 1);
    }
    cluster.pass(Duration::from_millis(100));
    let count = |cluster: &mut Cluster, node: usize| {
        let mut names = 0;
        cluster.host((node, 1)).lane.visit_names(Topic::Channel, &mut |_| names += 1);
        names
    };
    assert_eq!(count(&mut cluster, 1), 20_000);
    // Who comes back is told everything, a part in each turn.
    rejoin(&mut cluster, 3);
    assert_eq!(count(&mut cluster, 2), 20_000);
    for number in 0..20_000 {
        cluster.listen((0, 0), Topic::Channel, &format!("{number:0100}"), 0);
    }
    cluster.pass(Duration::from_millis(100));
    assert_eq!(count(&mut cluster, 2), 0);
}

/// Cuts a node off until the others go on without it, and lets it come back.
fn rejoin(cluster: &mut Cluster, node: u16) {
    cut(cluster, node);
    for lane in &mut cluster.lanes {
        (lane.deaf, lane.mute) = (NodeSet::EMPTY, NodeSet::EMPTY);
    }
    let until = cluster.time + Duration::from_secs(20);
    while !cluster.host((0, 0)).lane.view().active().contains(NodeId(node)) {
        assert!(cluster.time < until, "it doesn't come back");
        cluster.pass(Duration::from_millis(10));
    }
    cluster.pass(Duration::from_millis(100));
}

fn cut(cluster: &mut Cluster, node: u16) {
    for lane in &mut cluster.lanes {
        lane.deaf.insert(NodeId(node));
        lane.mute.insert(NodeId(node));
    }
    cluster.pass(Duration::from_secs(12));
    assert!(!cluster.host((0, 0)).lane.view().live().contains(NodeId(node)));
}

#[test]
fn what_a_node_in_a_new_life_says_replaces_what_it_said() {
    let mut cluster = cluster();
    cluster.listen((2, 0), Topic::Channel, "old", 1);
    cluster.listen((2, 0), Topic::Channel, "c", 1);
    cluster.listen((0, 0), Topic::Channel, "c", 2);
    cluster.pass(Duration::from_millis(20));
    cut(&mut cluster, 3);
    assert_eq!(cluster.publish((1, 0), "c", "x"), 2, "its clients are not reached");
    cluster.listen((2, 0), Topic::Channel, "old", 0);
    cluster.listen((0, 0), Topic::Channel, "c", 3);
    rejoin(&mut cluster, 3);
    for place in places() {
        assert_eq!(cluster.publish(place, "c", "x"), 4, "at {place:?}");
        assert_eq!(cluster.publish(place, "old", "x"), 0, "at {place:?}");
    }
}

#[test]
fn a_subscription_is_confirmed_once_others_know_of_it() {
    let mut cluster = cluster();
    cluster.pass(Duration::from_millis(20));
    let place = (0, 1);
    assert!(cluster.host(place).lane.is_announced());
    cluster.listen(place, Topic::Channel, "c", 1);
    assert!(!cluster.host(place).lane.is_announced());
    let (now, tag) = (at(cluster.time), cluster.tag());
    cluster.host(place).lane.announce(now, tag);
    assert!(cluster.host(place).out.done.is_empty());
    let until = cluster.time + Duration::from_millis(20);
    while cluster.host(place).out.done.pop().is_none() {
        cluster.turn(Duration::from_micros(100));
        assert!(cluster.time < until, "not confirmed");
    }
    assert_eq!(cluster.publish((2, 1), "c", "x"), 1, "they know of it");
    // One more client of a name that is listened to has nothing to wait for.
    cluster.listen(place, Topic::Channel, "c", 2);
    assert!(cluster.host(place).lane.is_announced());
    // A node that doesn't answer is not waited for for long.
    for lane in &mut cluster.lanes {
        lane.deaf.insert(NodeId(3));
    }
    cluster.listen(place, Topic::Channel, "d", 1);
    let (now, tag) = (at(cluster.time), cluster.tag());
    cluster.host(place).lane.announce(now, tag);
    cluster.pass(Duration::from_millis(400));
    assert!(cluster.host(place).out.done.is_empty());
    cluster.pass(Duration::from_millis(110));
    assert_eq!(cluster.host(place).out.done.pop().map(|done| done.tag), Some(tag));
}

#[test]
fn what_was_lost_is_told_again() {
    let mut cluster = cluster();
    cluster.pass(Duration::from_millis(20));
    for lane in &mut cluster.lanes {
        lane.deaf.insert(NodeId(2));
    }
    cluster.listen((0, 0), Topic::Channel, "lost", 1);
    cluster.pass(Duration::from_millis(4));
    for lane in &mut cluster.lanes {
        lane.deaf = NodeSet::EMPTY;
    }
    cluster.listen((0, 0), Topic::Channel, "heard", 1);
    cluster.pass(Duration::from_millis(4));
    assert_eq!(cluster.publish((1, 0), "heard", "x"), 0, "what follows a gap is not heard");
    assert_eq!(cluster.publish((2, 0), "heard", "x"), 1);
    cluster.pass(Duration::from_millis(120));
    for name in ["lost", "heard"] {
        assert_eq!(cluster.publish((1, 0), name, "x"), 1, "{name}");
    }
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

/// The publications that a lane has to say to another node.
fn said(cluster: &mut Cluster, from: Place, to: NodeId) -> Vec<Vec<u8>> {
    let bytes = std::mem::take(cluster.host(from).out.peer(to));
    cluster.host(from).out.take_waiting();
    let mut rest = &bytes[..];
    let mut messages = Vec::new();
    while !rest.is_empty() {
        let before = rest;
        let (header, body) =
            Header::split(&mut rest).expect("nothing is cut short").expect("a whole message");
        if header.kind == Kind::PubSub && body[0] == 1 {
            messages.push(before[..before.len() - rest.len()].to_vec());
        }
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
    said(cluster, (0, 0), NodeId(2))
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
    for nth in [0, 2] {
        hear(&mut cluster, 1, 0, &messages[nth]).unwrap();
    }
    assert_eq!(cluster.published((1, 0)), ["0"]);
    cluster.pass(Duration::from_millis(300));
    hear(&mut cluster, 1, 0, &messages[4]).unwrap();
    cluster.pass(Duration::from_millis(180));
    assert!(cluster.published((1, 0)).is_empty());
    cluster.pass(Duration::from_millis(40));
    assert_eq!(cluster.published((1, 0)), ["2"]);
    // What came later waits longer.
    hear(&mut cluster, 1, 0, &messages[3]).unwrap();
    assert_eq!(cluster.published((1, 0)), ["3", "4"]);
    hear(&mut cluster, 1, 0, &messages[1]).unwrap();
    assert!(cluster.published((1, 0)).is_empty(), "it would come out of order");
}

#[test]
fn a_message_behind_several_lost_ones_waits_no_longer() {
    let mut cluster = cluster();
    let messages = messages(&mut cluster, 40);
    // The last of them comes first; that it comes again later is no reason to wait longer.
    for nth in (1..messages.len()).step_by(2).rev() {
        hear(&mut cluster, 1, 0, &messages[nth]).unwrap();
    }
    cluster.pass(Duration::from_millis(300));
    hear(&mut cluster, 1, 0, &messages[39]).unwrap();
    cluster.pass(Duration::from_millis(180));
    assert!(cluster.published((1, 0)).is_empty());
    cluster.pass(Duration::from_millis(40));
    let odd: Vec<_> = (1..40).step_by(2).map(|number| number.to_string()).collect();
    assert_eq!(cluster.published((1, 0)), odd);
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
    cut(&mut cluster, 3);
    assert_eq!(cluster.publish((0, 0), "c", "x"), 0);
    assert!(said(&mut cluster, (0, 0), NodeId(3)).is_empty());
}

/// Clients that listen and publish at every place, and what they must see.
struct Crowd {
    cluster: Cluster,
    rng: Rng,
    /// By place, since when it listens without a break, if it does and was told so.
    listens: Vec<Option<Duration>>,
    /// What each place has published: when, and whether nothing had failed lately.
    sent: Vec<Vec<(Duration, bool)>>,
    /// By place, the last number that was heard of each publisher, plus one.
    heard: Vec<Vec<usize>>,
    /// By place, how many were heard of each publisher.
    counts: Vec<Vec<BTreeSet<usize>>>,
    /// From when on nothing has failed.
    calm_since: Duration,
}

/// How long after a failure something may still be lost: until views, connections and what nodes
/// know of each other are whole again.
const UNSETTLED: Duration = Duration::from_secs(1);

impl Crowd {
    fn new(seed: u64) -> Self {
        let cluster = cluster();
        let places = places().count();
        Self {
            calm_since: cluster.time,
            cluster,
            rng: Rng::new(seed),
            listens: vec![None; places],
            sent: vec![Vec::new(); places],
            heard: vec![vec![0; places]; places],
            counts: vec![vec![BTreeSet::new(); places]; places],
        }
    }

    fn is_calm(&self) -> bool {
        self.cluster.time >= self.calm_since + UNSETTLED
    }

    fn step(&mut self) {
        let nth = self.rng.below(self.sent.len() as u64) as usize;
        let place = places().nth(nth).expect("this test made it");
        match self.rng.below(20) {
            0 if self.listens[nth].is_some() => {
                self.cluster.listen(place, Topic::Channel, "c", 0);
                self.listens[nth] = None;
            }
            0 | 1 if self.listens[nth].is_none() => {
                self.cluster.listen(place, Topic::Channel, "c", 1);
                let until = self.cluster.time + Duration::from_secs(1);
                while !self.cluster.host(place).lane.is_announced() && self.cluster.time < until {
                    self.turn();
                }
                if self.cluster.host(place).lane.is_announced() {
                    self.listens[nth] = Some(self.cluster.time);
                }
            }
            _ => {
                let number = self.sent[nth].len();
                let settled = self.is_calm();
                self.sent[nth].push((self.cluster.time, settled));
                // Large ones are overtaken on connections; here the numbers alone matter.
                self.cluster.publish(place, "c", &format!("{nth} {number}"));
            }
        }
        if self.rng.chance(1, 3) {
            self.turn();
        }
    }

    fn turn(&mut self) {
        let span = self.rng.below(300);
        self.cluster.turn(Duration::from_micros(span));
        for (at, place) in places().enumerate() {
            for message in self.cluster.published(place) {
                let (from, number) = message.split_once(' ').expect("this test made it");
                let (from, number): (usize, usize) = (
                    from.parse().expect("this test made it"),
                    number.parse().expect("this test made it"),
                );
                assert!(number < self.sent[from].len(), "{message} was never published");
                assert!(
                    number >= self.heard[at][from],
                    "{message} comes late, or again, at {place:?}"
                );
                self.heard[at][from] = number + 1;
                self.counts[at][from].insert(number);
            }
        }
    }

    /// Cuts a node off for a while, which may cost it its place in the view.
    fn cut(&mut self, node: u16) {
        for lane in &mut self.cluster.lanes {
            lane.deaf.insert(NodeId(node));
            lane.mute.insert(NodeId(node));
        }
        let span = self.rng.below(3000);
        let until = self.cluster.time + Duration::from_millis(span);
        while self.cluster.time < until {
            self.step();
            self.cluster.pass(Duration::from_millis(2));
        }
        for lane in &mut self.cluster.lanes {
            (lane.deaf, lane.mute) = (NodeSet::EMPTY, NodeSet::EMPTY);
        }
        // An expulsion that was under way may come later still.
        let until = self.cluster.time + Duration::from_secs(60);
        let mut same_since = (Epoch(0), self.cluster.time);
        while self.cluster.time < same_since.1 + Duration::from_secs(3) {
            assert!(self.cluster.time < until, "they don't find together again");
            self.cluster.pass(Duration::from_millis(10));
            let epoch = self.cluster.host((0, 0)).lane.view().epoch;
            let together = places().all(|place| {
                let lane = &self.cluster.host(place).lane;
                lane.view().epoch == epoch && lane.view().active().len() == usize::from(NODES)
            });
            if !together || epoch != same_since.0 {
                same_since = (epoch, self.cluster.time);
            }
        }
        self.calm_since = self.cluster.time;
        // Who has listened through it may have missed something.
        let listening = self.listens.iter_mut().flatten();
        listening.for_each(|since| *since = self.cluster.time + UNSETTLED);
    }

    /// Everything that was published while nothing failed was heard by those who listened.
    fn check_delivery(&mut self) {
        // The first message behind a lost one waits for it.
        self.cluster.pass(Duration::from_millis(600));
        self.turn();
        for (at, since) in self.listens.iter().enumerate() {
            let Some(since) = since else { continue };
            for (from, sent) in self.sent.iter().enumerate().filter(|(from, _)| *from != at) {
                for (number, (time, settled)) in sent.iter().enumerate() {
                    let due = *settled && time >= since && *time >= self.calm_since + UNSETTLED;
                    let heard = self.counts[at][from].contains(&number);
                    assert!(
                        !due || heard,
                        "{number} of {from} at {time:?} was not heard at {at} since {since:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn subscribers_hear_each_publisher_in_order_once_and_all_while_nothing_fails() {
    for seed in 0..4 {
        let mut crowd = Crowd::new(seed);
        for round in 0..3 {
            for _ in 0..400 {
                crowd.step();
            }
            crowd.check_delivery();
            crowd.cut(1 + (seed as u16 + round) % NODES);
            while !crowd.is_calm() {
                crowd.cluster.pass(Duration::from_millis(10));
                crowd.turn();
            }
        }
        for _ in 0..400 {
            crowd.step();
        }
        crowd.check_delivery();
        let heard: usize = crowd.counts.iter().flatten().map(BTreeSet::len).sum();
        assert!(heard > 1000, "{heard} messages say little");
    }
}
