//! Commands on a whole keyspace, on whole lanes in one process.

use std::collections::BTreeSet;

use quorate_commands::Reply;
use quorate_engine::OptionValue;
use quorate_machine::Outcome;
use quorate_node::{Change, EngineConfig, KeyspaceConfig, Listed, NodeConfig};
use quorate_types::{Duration, KeyspaceId, NodeId, NodeSet, Tag};

use crate::support::{Cluster, Place, at, command, config};

const KEYSPACE: KeyspaceId = KeyspaceId(0);
/// Where the engine has more than one.
const LANES: u16 = 2;
/// Keys that are written before the answers are waited for.
const AT_ONCE: usize = 1000;

/// What one test runs.
struct Setup {
    nodes: u16,
    replicas: Option<NodeSet>,
    partitions: Vec<Option<NodeSet>>,
    engine: EngineConfig,
}

impl Setup {
    /// One node.
    fn of(engine: EngineConfig) -> Self {
        Self { nodes: 1, replicas: None, partitions: vec![None], engine }
    }
}

fn cluster(setup: &Setup) -> Cluster {
    let keyspaces = vec![KeyspaceConfig {
        replicas: setup.replicas,
        partitions: setup.partitions.clone(),
        ..KeyspaceConfig::new(KEYSPACE, "default", setup.engine.clone())
    }];
    let node = |node| config(NodeId(node), setup.nodes, LANES, keyspaces.clone());
    let mut cluster = Cluster::new((1..=setup.nodes).map(node));
    // The lanes of each node agree on the view.
    (0..5).for_each(|_| cluster.turn(Duration::from_micros(100)));
    cluster
}

impl Cluster {
    /// Turns until everything that was asked for at a place is answered, since so many requests.
    fn answers_since(&mut self, place: Place, since: u64) -> Vec<Outcome<Reply<'static>>> {
        let (until, mut outcomes) = (self.time + Duration::from_secs(10), Vec::new());
        while outcomes.len() < (self.asked - since) as usize {
            let done = self.host(place).out.done.drain(..);
            outcomes.extend(done.map(|done| done.outcome));
            assert!(self.time < until, "no answer in ten seconds");
            self.turn(Duration::from_micros(100));
        }
        outcomes
    }

    /// Writes that many keys at a place.
    fn fill(&mut self, place: Place, keys: usize) {
        let keys: Vec<_> = (0..keys).map(|number| format!("key {number}")).collect();
        for keys in keys.chunks(AT_ONCE) {
            let since = self.asked;
            for key in keys {
                self.submit(place, KEYSPACE, command(&["SET", key, "value"]));
            }
            let answers = self.answers_since(place, since);
            assert!(answers.iter().all(|answer| *answer == Outcome::Done(Reply::Ok)));
        }
    }

    /// Begins to empty the keyspace; how many requests came before.
    fn begin_flush(&mut self, place: Place) -> u64 {
        let (now, since, tag) = (at(self.time), self.asked, self.tag());
        let host = self.host(place);
        host.lane.flush_keyspace(now, KEYSPACE, tag, &mut host.out);
        since
    }

    fn flush(&mut self, place: Place) -> Outcome<Reply<'static>> {
        let since = self.begin_flush(place);
        self.answers_since(place, since).pop().expect("one was waited for")
    }

    /// Every key that is listed at a place, which counts as many.
    fn list(&mut self, place: Place) -> BTreeSet<Vec<u8>> {
        let (mut keys, mut named, mut counted, mut cursor) = (BTreeSet::new(), 0, 0, 0);
        loop {
            self.begin_listing(place, cursor);
            let listed = self.listed(place);
            named += listed.count;
            keys.extend(listed.keys);
            cursor = listed.next;
            if cursor == 0 {
                break;
            }
        }
        loop {
            let now = at(self.time);
            let host = self.host(place);
            host.lane.count(now, KEYSPACE, Tag(7), cursor, &mut host.out);
            let listed = self.listed(place);
            assert!(listed.keys.is_empty(), "only their number was asked for");
            counted += listed.count;
            cursor = listed.next;
            if cursor == 0 {
                break;
            }
        }
        assert_eq!([named, counted], [keys.len() as u64; 2], "each key is named once and counted");
        keys
    }

    fn begin_listing(&mut self, place: Place, cursor: u64) {
        let now = at(self.time);
        let host = self.host(place);
        host.lane.list(now, KEYSPACE, Tag(7), (cursor, 100, None), &mut host.out);
    }

    /// The next answer to what was asked about keys.
    fn listed(&mut self, place: Place) -> Listed {
        let until = self.time + Duration::from_secs(10);
        loop {
            if let Some((tag, listed)) = self.host(place).out.listed.pop() {
                let Outcome::Done(listed) = listed else { panic!("{listed:?}") };
                assert_eq!(tag, Tag(7));
                return listed;
            }
            assert!(self.time < until, "no answer in ten seconds");
            self.turn(Duration::from_micros(100));
        }
    }
}

const ENGINES: [fn() -> EngineConfig; 2] = [EngineConfig::hermes, EngineConfig::meerkat];

#[test]
fn a_node_alone_is_emptied_in_bounded_steps() {
    for engine in ENGINES {
        let mut cluster = cluster(&Setup::of(engine()));
        cluster.fill((0, 0), 20_000);
        assert_eq!(cluster.keys(KEYSPACE), [20_000]);
        let since = cluster.begin_flush((0, 0));
        let mut before = 20_000;
        while cluster.keys(KEYSPACE) != [0] {
            cluster.turn(Duration::from_micros(100));
            let [now] = cluster.keys(KEYSPACE)[..] else { unreachable!("one node") };
            assert!(now < before, "the flush stands still");
            assert!(before - now <= 512, "{} keys in one turn", before - now);
            before = now;
        }
        assert_eq!(cluster.answers_since((0, 0), since), [Outcome::Done(Reply::Ok)]);
    }
}

fn group(nodes: [u16; 3]) -> Option<NodeSet> {
    Some(nodes.into_iter().map(NodeId).collect())
}

/// An engine that keeps each key at two of the nodes, which it chooses.
fn spread() -> EngineConfig {
    let mut engine = EngineConfig::first_with(|can| can.spreads);
    engine.set("replicas", OptionValue::Number(2)).expect("it has the option");
    engine
}

/// Keyspaces of four nodes. Some of the nodes hold nothing, or one partition only.
fn scattered() -> [Setup; 4] {
    let on_three = |engine| Setup { nodes: 4, replicas: group([1, 2, 3]), ..Setup::of(engine) };
    let partitions = vec![group([1, 2, 3]), group([2, 3, 4])];
    [
        on_three(EngineConfig::hermes()),
        on_three(EngineConfig::meerkat()),
        Setup { nodes: 4, partitions, ..Setup::of(EngineConfig::meerkat()) },
        Setup { nodes: 4, ..Setup::of(spread()) },
    ]
}

#[test]
fn a_flush_reaches_the_keys_that_its_node_does_not_hold() {
    for setup in scattered() {
        let mut cluster = cluster(&setup);
        for at in 0..4 {
            cluster.fill((at, 0), 1000);
            assert!(cluster.keys(KEYSPACE)[1] > 0, "{:?}", setup.engine);
            assert_eq!(cluster.flush((at, 0)), Outcome::Done(Reply::Ok));
            // Replicas may learn of the last deletes a moment after the client.
            (0..20).for_each(|_| cluster.turn(Duration::from_millis(1)));
            assert_eq!(cluster.keys(KEYSPACE), [0; 4], "{:?} at node {}", setup.engine, at + 1);
        }
    }
}

/// Nodes with meerkat, where a majority suffices for a write. Clients ask on lane 1: lane 0 has the
/// leases, and a node that is deaf there stays no member.
fn of_majorities(nodes: u16) -> Cluster {
    let skew = Duration::from_millis(1);
    let options = quorate_meerkat::Options { max_clock_skew: skew, ..Default::default() };
    cluster(&Setup { nodes, ..Setup::of(EngineConfig::Meerkat(options)) })
}

#[test]
fn a_flush_deletes_what_was_acknowledged_before_it_though_its_node_missed_it() {
    let mut cluster = of_majorities(3);
    cluster.lanes[1].deaf = NodeSet::only(NodeId(1));
    cluster.fill((1, 1), 1000);
    assert_eq!(cluster.keys(KEYSPACE), [0, 1000, 1000]);
    cluster.lanes[1].deaf = NodeSet::EMPTY;
    assert_eq!(cluster.flush((0, 1)), Outcome::Done(Reply::Ok));
    (0..50).for_each(|_| cluster.turn(Duration::from_millis(1)));
    assert_eq!(cluster.keys(KEYSPACE), [0; 3]);
}

/// A deletion that another client has begun is one that this node has and a third one has not: the
/// flush must not say that the key is gone while the third one still reads it.
#[test]
fn a_flush_waits_for_deletions_that_others_have_begun() {
    let mut cluster = cluster(&Setup { nodes: 3, ..Setup::of(EngineConfig::hermes()) });
    cluster.fill((1, 1), 20);
    (0..20).for_each(|_| cluster.turn(Duration::from_millis(1)));
    cluster.lanes[1].deaf = NodeSet::only(NodeId(3));
    for number in 0..20 {
        cluster.submit((1, 1), KEYSPACE, command(&["DEL", &format!("key {number}")]));
    }
    (0..5).for_each(|_| cluster.turn(Duration::from_millis(1)));
    let [first, second, third] = cluster.keys(KEYSPACE)[..] else { unreachable!("three nodes") };
    assert_eq!((first, second), (0, 0));
    assert!(third > 0, "no key is on the lane that one node is deaf on");

    let since = cluster.begin_flush((0, 1));
    (0..5).for_each(|_| cluster.turn(Duration::from_millis(1)));
    assert!(cluster.host((0, 1)).out.done.is_empty(), "the third node still has keys");
    cluster.lanes[1].deaf = NodeSet::EMPTY;
    let host = cluster.host((1, 1));
    host.out.done.clear();
    while cluster.host((0, 1)).out.done.is_empty() {
        cluster.turn(Duration::from_millis(1));
        assert!(cluster.time < Duration::from_secs(20), "the flush is never answered");
    }
    assert_eq!(cluster.keys(KEYSPACE), [0; 3]);
    cluster.asked = since + 1;
    assert_eq!(cluster.answers_since((0, 1), since), [Outcome::Done(Reply::Ok)]);
}

#[test]
fn a_listing_names_what_was_acknowledged_before_it_though_its_node_missed_it() {
    let mut cluster = of_majorities(3);
    cluster.fill((1, 1), 300);
    (0..50).for_each(|_| cluster.turn(Duration::from_millis(1)));
    cluster.lanes[1].deaf = NodeSet::only(NodeId(1));
    cluster.fill((1, 1), 3000);
    assert_eq!(cluster.keys(KEYSPACE), [300, 3000, 3000]);
    cluster.lanes[1].deaf = NodeSet::EMPTY;
    assert_eq!(cluster.list((0, 1)).len(), 3000);
}

#[test]
fn a_listing_leaves_out_what_was_deleted_before_it_though_its_node_missed_that() {
    let mut cluster = of_majorities(3);
    cluster.fill((1, 1), 1000);
    (0..50).for_each(|_| cluster.turn(Duration::from_millis(1)));
    assert_eq!(cluster.keys(KEYSPACE), [1000; 3]);
    cluster.lanes[1].deaf = NodeSet::only(NodeId(1));
    let since = cluster.asked;
    for number in 0..500 {
        cluster.submit((1, 1), KEYSPACE, command(&["DEL", &format!("key {number}")]));
    }
    let answers = cluster.answers_since((1, 1), since);
    assert!(answers.iter().all(|answer| *answer == Outcome::Done(Reply::Int(1))));
    assert_eq!(cluster.keys(KEYSPACE)[0], 1000);
    cluster.lanes[1].deaf = NodeSet::EMPTY;
    assert_eq!(cluster.list((0, 1)).len(), 500);
}

/// Two of five have missed ten keys, and a listing has heard both of them when two of the others
/// leave. What the two said would be a majority of the three that are left.
#[test]
fn a_listing_begins_again_when_the_members_change() {
    let mut cluster = of_majorities(5);
    let nodes = |nodes: &[u16]| nodes.iter().map(|node| NodeId(*node)).collect::<NodeSet>();
    cluster.lanes[1].deaf = nodes(&[1, 2]);
    cluster.fill((2, 1), 10);
    cluster.lanes[1].mute = nodes(&[3, 4, 5]);
    cluster.lanes[1].deaf = NodeSet::EMPTY;
    assert_eq!(cluster.keys(KEYSPACE), [0, 0, 10, 10, 10]);
    cluster.begin_listing((0, 1), 0);
    // The node asks one pair of the others after another, until both have answered.
    (0..500).for_each(|_| cluster.turn(Duration::from_millis(1)));
    for (node, left) in [(4, 4), (5, 3)] {
        let now = at(cluster.time);
        let host = cluster.host((0, 0));
        let change = Change::Remove { node: NodeId(node), at_once: false };
        host.lane.change_members(now, Tag(9), change, &mut host.out);
        while cluster.host((0, 1)).lane.view().live().len() != left {
            cluster.turn(Duration::from_millis(1));
        }
    }
    cluster.lanes[1].mute = NodeSet::EMPTY;
    assert_eq!(cluster.listed((0, 1)).count, 10);
}

#[test]
fn one_replica_counts_for_a_node_that_has_none_where_it_has_all() {
    let [setup, ..] = scattered();
    let mut cluster = cluster(&setup);
    cluster.fill((3, 0), 1000);
    let now = at(cluster.time);
    let host = cluster.host((3, 0));
    host.lane.count(now, KEYSPACE, Tag(7), 0, &mut host.out);
    assert_eq!(cluster.listed((3, 0)), Listed { next: 0, keys: Vec::new(), count: 1000 });
}

/// What `WAIT` answers: no key has fewer.
#[test]
fn replicas_are_counted_in_the_group_that_has_fewest() {
    let [three, _, partitions, spread] = scattered();
    for (setup, expected) in
        [(three, [2, 2, 2, 3]), (partitions, [2, 2, 2, 2]), (spread, [1, 1, 1, 1])]
    {
        let mut cluster = cluster(&setup);
        let counted = |node| cluster.host((node, 0)).lane.other_replicas(KEYSPACE);
        assert_eq!([0, 1, 2, 3].map(counted), expected, "{:?}", setup.partitions);
    }
}

#[test]
fn a_listing_names_every_key_wherever_it_is() {
    for setup in scattered() {
        let mut cluster = cluster(&setup);
        cluster.fill((3, 0), 1000);
        (0..20).for_each(|_| cluster.turn(Duration::from_millis(1)));
        for at in 0..4 {
            assert_eq!(cluster.list((at, 0)).len(), 1000, "{:?} at node {}", setup.engine, at + 1);
        }
    }
}

#[test]
fn a_question_that_was_lost_is_put_to_another_replica() {
    let [setup, ..] = scattered();
    let mut cluster = cluster(&setup);
    let now = at(cluster.time);
    let host = cluster.host((3, 0));
    host.lane.list(now, KEYSPACE, Tag(7), (0, 100, None), &mut host.out);
    let asked = host.out.take_waiting();
    assert_eq!(asked.len(), 1);
    asked.into_iter().for_each(|replica| host.out.peer(replica).clear());
    let (begun, mut listed) = (cluster.time, None);
    while listed.is_none() {
        cluster.turn(Duration::from_millis(1));
        listed = cluster.host((3, 0)).out.listed.pop();
    }
    assert!(cluster.time - begun < NodeConfig::OP_TIMEOUT);
    let nothing = Listed { next: 0, keys: Vec::new(), count: 0 };
    assert_eq!(listed, Some((Tag(7), Outcome::Done(nothing))));
}
