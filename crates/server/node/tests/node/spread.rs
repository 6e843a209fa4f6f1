//! Keys that are at some of the nodes, which follow from the view: what a client sees at a node that
//! has no copy.

use quorate_commands::{Line, Op, OwnedCall, Reply};
use quorate_engine::OptionValue;
use quorate_machine::Outcome;
use quorate_node::{BlockingCall, EngineConfig, KeyspaceConfig, PINS, with_pins};
use quorate_types::placement::pin_key;
use quorate_types::{Duration, KeyspaceId, NodeId, Tag};

use crate::support::{Cluster, Place, at, command, config};

const DB: KeyspaceId = KeyspaceId(0);
const NODES: u16 = 4;

/// Four nodes, and each key at two of them.
fn cluster() -> Cluster {
    cluster_with(1)
}

/// The same with more lanes.
fn cluster_with(lanes: u16) -> Cluster {
    let mut engine = EngineConfig::first_with(|can| can.spreads);
    engine.set("replicas", OptionValue::Number(2)).expect("it has the option");
    let keyspaces = vec![KeyspaceConfig::new(DB, "db", engine)];
    Cluster::new((1..=NODES).map(|node| config(NodeId(node), NODES, lanes, keyspaces.clone())))
}

impl Cluster {
    /// A client asks for something after what it has asked for before.
    fn ask(&mut self, node: usize, origin: u64, op: Op) -> Tag {
        let (now, tag) = (at(self.time), self.tag());
        let host = self.host((node, 0));
        host.lane.submit(now, DB, tag, origin, op, &mut host.out);
        tag
    }

    /// Turns until these are answered.
    fn answers(&mut self, node: usize, tags: &[Tag]) -> Vec<Outcome<Reply<'static>>> {
        let until = self.time + Duration::from_secs(5);
        let mut answers = vec![None; tags.len()];
        while answers.iter().any(Option::is_none) {
            for done in self.host((node, 0)).out.done.drain(..) {
                let place = tags.iter().position(|tag| *tag == done.tag);
                answers[place.expect("it was asked for")] = Some(done.outcome);
            }
            assert!(self.time < until, "no answer in five seconds");
            self.turn(Duration::from_micros(100));
        }
        answers.into_iter().flatten().collect()
    }

    fn run(&mut self, node: usize, words: &[&str]) -> Reply<'static> {
        let place: Place = (node, 0);
        let tag = self.submit(place, DB, command(words));
        match self.answers(node, &[tag]).pop() {
            Some(Outcome::Done(reply)) => reply,
            other => panic!("{words:?}: {other:?}"),
        }
    }

    fn holds(&mut self, node: usize, key: &str) -> bool {
        let engine = self.host((node, 0)).lane.engine(DB).expect("it is configured");
        engine.holds(key.as_bytes())
    }

    /// The name of a key with a copy at these nodes and at no other of the first `NODES`.
    fn key_at(&mut self, nodes: [usize; 2]) -> String {
        let mut names = (0..10_000_u16).map(|number| format!("key {number}"));
        let fits = |key: &String| (0..4).all(|node| self.holds(node, key) == nodes.contains(&node));
        names.find(fits).expect("there are enough names")
    }

    /// What the nodes have counted under a name.
    fn counted(&mut self, name: &str) -> u64 {
        let lanes = self.lanes.len();
        let count = |place| {
            let facts = self.host(place).lane.engine(DB).expect("it is configured").facts();
            let found = facts.counters.iter().find(|(known, _)| *known == name);
            found.expect("it is counted").1
        };
        let places =
            (0..usize::from(NODES)).flat_map(|node| (0..lanes).map(move |lane| (node, lane)));
        places.map(count).sum()
    }
}

fn text(value: &str) -> Reply<'static> {
    Reply::Bulk(value.as_bytes().to_vec().into())
}

#[test]
fn a_read_moves_no_key() {
    let mut cluster = cluster();
    let [one, other] = [[0, 1], [1, 2]].map(|nodes| cluster.key_at(nodes));
    cluster.run(1, &["SET", &one, "1"]);
    cluster.run(1, &["SET", &other, "2"]);
    let moved = cluster.counted("acquired");
    for node in 0..4 {
        assert_eq!(cluster.run(node, &["GET", &one]), text("1"));
        // Node 2 has copies of both.
        let both = Reply::Array(vec![text("1"), text("2")]);
        assert_eq!(cluster.run(node, &["MGET", &one, &other]), both, "at node {}", node + 1);
    }
    assert_eq!(cluster.counted("acquired"), moved);
    assert_eq!(cluster.counted("remote_reads"), 0, "they run where all copies are");
    // No node has copies of both: others are asked.
    let far = cluster.key_at([2, 3]);
    cluster.run(2, &["SET", &far, "3"]);
    let moved = cluster.counted("acquired");
    for node in 0..4 {
        let both = Reply::Array(vec![text("1"), text("3")]);
        assert_eq!(cluster.run(node, &["MGET", &one, &far]), both, "at node {}", node + 1);
    }
    assert_eq!(cluster.counted("remote_reads"), 4);
    assert_eq!(cluster.counted("acquired"), moved);
}

/// A node without a copy that reads a key often gets one. Its clients are still told not to keep what they
/// read: the copy may end at any moment.
#[test]
fn a_key_that_is_read_often_is_copied() {
    for lanes in [1, 2] {
        let mut cluster = cluster_with(lanes);
        // All lanes know the view then.
        (0..100).for_each(|_| cluster.turn(Duration::from_micros(100)));
        let key = cluster.key_at([1, 2]);
        cluster.run(1, &["SET", &key, "1"]);
        for _ in 0..16 {
            assert_eq!(cluster.run(0, &["GET", &key]), text("1"));
        }
        (0..100).for_each(|_| cluster.turn(Duration::from_micros(100)));
        let forwarded = cluster.counted("forwarded");
        assert_eq!(forwarded, 16, "with {lanes} lanes");
        for round in 2..5 {
            assert_eq!(cluster.run(0, &["GET", &key]), text(&(round - 1).to_string()));
            assert_eq!(cluster.run(1, &["INCR", &key]), Reply::Int(round));
        }
        assert_eq!(cluster.counted("forwarded"), forwarded);
        assert!(!cluster.holds(0, &key));
        // It is written elsewhere.
        cluster.run(3, &["INCR", &key]);
        assert_eq!(cluster.run(0, &["GET", &key]), text("5"));
    }
}

#[test]
fn what_a_client_asks_for_takes_effect_in_order() {
    let mut cluster = cluster();
    let [away, far] = [[1, 2], [2, 3]].map(|nodes| cluster.key_at(nodes));
    cluster.run(2, &["SET", &away, "old"]);
    cluster.run(2, &["SET", &far, "old"]);
    let ops = [
        // It runs elsewhere, and the write here must not overtake it.
        vec!["MGET", &away, &far],
        vec!["SET", &far, "new"],
        // The key is on its way here.
        vec!["GET", &far],
        vec!["MSET", &away, "newer", &far, "newer"],
        vec!["MGET", &far, &away],
    ];
    let tags: Vec<Tag> = ops.iter().map(|words| cluster.ask(0, 7, command(words))).collect();
    let answers = cluster.answers(0, &tags);
    let pair = |value| Reply::Array(vec![text(value), text(value)]);
    let expected = [pair("old"), Reply::Ok, text("new"), Reply::Ok, pair("newer")];
    assert_eq!(answers, expected.map(Outcome::Done));
}

#[test]
fn changes_of_what_has_no_copy_here_are_not_heard_of() {
    let mut cluster = cluster();
    let key = cluster.key_at([1, 2]);
    for (node, hears) in [false, true, true, false].into_iter().enumerate() {
        let lane = &mut cluster.host((node, 0)).lane;
        assert_eq!((lane.track(DB, key.as_bytes()), lane.hears_all()), (hears, false));
    }
}

/// A client waits for an item of a list.
fn wait_for(cluster: &mut Cluster, place: Place, key: &str) -> Tag {
    let words = ["BLPOP", key, "0"].map(str::as_bytes);
    let call = OwnedCall::new(words).expect("a command");
    let (now, tag) = (at(cluster.time), cluster.tag());
    let wait = BlockingCall {
        keyspace: DB,
        origin: 9,
        call,
        line: Line::Lists,
        until: quorate_types::Instant::NEVER,
    };
    let host = cluster.host(place);
    host.lane.block(now, tag, wait, &mut host.out);
    tag
}

#[test]
fn who_waits_where_there_is_no_copy_is_told_of_a_push() {
    for lanes in [1, 2] {
        let mut cluster = cluster_with(lanes);
        // Until all lanes have heard of the view.
        (0..25).for_each(|_| cluster.turn(Duration::from_millis(2)));
        let key = cluster.key_at([1, 2]);
        let waits: Vec<(Place, Tag)> = (0..usize::from(lanes))
            .flat_map(|lane| [(0, lane), (3, lane)])
            .map(|place| (place, wait_for(&mut cluster, place, &key)))
            .collect();
        // By then they ask by themselves once in 640 ms and more.
        (0..70).for_each(|_| cluster.turn(Duration::from_millis(10)));
        let before = cluster.time;
        for (nth, node) in [1, 2, 1, 2].into_iter().enumerate().take(waits.len()) {
            cluster.run(node, &["RPUSH", &key, &format!("v{nth}")]);
        }
        let mut answered = Vec::new();
        while answered.len() < waits.len() {
            cluster.turn(Duration::from_micros(100));
            for (place, tag) in &waits {
                let done = cluster.host(*place).out.done.drain(..).collect::<Vec<_>>();
                for done in done {
                    assert_eq!(done.tag, *tag);
                    answered.push(format!("{:?}", done.outcome));
                }
            }
            let took = cluster.time - before;
            assert!(took < Duration::from_millis(60), "{answered:?} on {lanes} lanes");
        }
        answered.sort();
        answered.dedup();
        assert_eq!(answered.len(), waits.len(), "each its own item: {answered:?}");
    }
}

#[test]
fn who_waits_hears_of_a_push_that_nobody_tells_of() {
    let mut cluster = cluster();
    let key = cluster.key_at([1, 2]);
    let tag = wait_for(&mut cluster, (0, 0), &key);
    // No other node has heard yet that it waits.
    cluster.run(3, &["RPUSH", &key, "v"]);
    let popped = Reply::Array(vec![text(&key), text("v")]);
    assert_eq!(cluster.answers(0, &[tag]), [Outcome::Done(popped)]);
}

#[test]
fn a_watched_version_is_the_same_wherever_it_is_read() {
    let mut cluster = cluster();
    let key = cluster.key_at([1, 2]);
    for change in [["SET", &key, "1"], ["APPEND", &key, "2"], ["EXPIRE", &key, "100"]] {
        cluster.run(3, &change);
        let mut seen = Vec::new();
        for node in 0..4 {
            let versions = Op::Versions(vec![key.as_bytes().into()]);
            let tag = cluster.ask(node, 50, versions);
            seen.extend(cluster.answers(node, &[tag]));
        }
        seen.dedup();
        assert_eq!(seen.len(), 1, "{change:?}: {seen:?}");
    }
}

/// What a node answers who is asked where a key lives: owner, moves, readers.
fn placement(cluster: &mut Cluster, place: Place, key: &str) -> Reply<'static> {
    let (now, tag) = (at(cluster.time), cluster.tag());
    let host = cluster.host(place);
    host.lane.submit(now, DB, tag, 9, Op::Placement(key.as_bytes().into()), &mut host.out);
    let until = cluster.time + Duration::from_secs(5);
    loop {
        match cluster.host(place).out.done.pop() {
            Some(done) => match done.outcome {
                Outcome::Done(told) => return told,
                other => panic!("{other:?}"),
            },
            None => assert!(cluster.time < until, "no answer in five seconds"),
        }
        cluster.turn(Duration::from_micros(100));
    }
}

/// An owner outside the group of the key, and a reader that only the owner knows of.
#[test]
fn every_node_says_the_same_of_where_a_key_lives() {
    for lanes in [1, 2] {
        let mut cluster = cluster_with(lanes);
        // All lanes know the view then.
        (0..100).for_each(|_| cluster.turn(Duration::from_micros(100)));
        let key = cluster.key_at([1, 2]);
        cluster.run(1, &["SET", &key, "1"]);
        cluster.run(3, &["APPEND", &key, "2"]);
        (0..20).for_each(|_| _ = cluster.run(0, &["GET", &key]));
        (0..100).for_each(|_| cluster.turn(Duration::from_micros(100)));
        assert_eq!(cluster.counted("copies_begun"), 1);
        let acquired = cluster.counted("acquired");
        // The owner, one move since it knows of the key, the readers.
        let whole = Reply::Array([4, 1, 1, 2, 3].map(Reply::Int).into());
        for node in 0..usize::from(NODES) {
            for lane in 0..usize::from(lanes) {
                let told = placement(&mut cluster, (node, lane), &key);
                assert_eq!(told, whole, "lane {lane} of node {}, {lanes} lanes", node + 1);
            }
        }
        assert_eq!(cluster.counted("acquired"), acquired, "to ask moves nothing");
        assert_eq!(cluster.counted("copies_begun"), 1, "nor does it ask for a copy");
        // Of a key that nobody has written all say the same, too.
        let told: Vec<_> = (0..4).map(|node| placement(&mut cluster, (node, 0), "new")).collect();
        assert!(told.iter().all(|other| *other == told[0]), "{told:?}");
    }
}

/// Behind a write of the same client that waits for its key.
#[test]
fn a_question_where_a_key_lives_waits_for_what_its_client_has_asked_before() {
    let mut cluster = cluster();
    let [key, other] = [[1, 2], [0, 1]].map(|nodes| cluster.key_at(nodes));
    cluster.run(1, &["SET", &key, "1"]);
    cluster.run(1, &["SET", &other, "1"]);
    let ask = |key: &str| Op::Placement(key.as_bytes().into());
    let ops = [command(&["APPEND", &key, "2"]), ask(&key), ask(&other)];
    let tags = ops.map(|op| cluster.ask(3, 7, op));
    let owners = cluster.answers(3, &tags).into_iter().skip(1).map(|told| match told {
        Outcome::Done(Reply::Array(told)) => told[0].clone(),
        other => panic!("{other:?}"),
    });
    assert!(owners.eq([Reply::Int(4), Reply::Int(2)]), "the key has moved, the other has not");
}

#[test]
fn a_pinned_key_is_written_where_it_is_pinned() {
    let mut engine = EngineConfig::first_with(|can| can.moves_keys());
    engine.set("replicas", OptionValue::Number(2)).expect("it has the option");
    let keyspaces = with_pins(vec![KeyspaceConfig::new(DB, "db", engine)]);
    assert_eq!(keyspaces[1].id, PINS);
    let nodes = (1..=NODES).map(|node| config(NodeId(node), NODES, 1, keyspaces.clone()));
    let mut cluster = Cluster::new(nodes);
    let key = cluster.key_at([0, 1]);
    let owner = |cluster: &mut Cluster, node| {
        let tag = cluster.ask(node, 9, Op::Placement(key.as_bytes().into()));
        match cluster.answers(node, &[tag]).pop() {
            Some(Outcome::Done(Reply::Array(told))) => told[0].clone(),
            other => panic!("{other:?}"),
        }
    };
    cluster.run(2, &["SET", &key, "1"]);
    // Also at a node without a copy, which asks one that has one.
    for node in 0..4 {
        assert_eq!(owner(&mut cluster, node), Reply::Int(3));
    }
    let pin = pin_key(DB.0, key.as_bytes());
    let tag = cluster.submit((1, 0), PINS, command(&[b"SET".as_slice(), &pin, b"4"]));
    assert_eq!(cluster.answers(1, &[tag]), [Outcome::Done(Reply::Ok)]);
    for node in 0..4 {
        cluster.run(node, &["APPEND", &key, "1"]);
        assert_eq!(owner(&mut cluster, node), Reply::Int(4));
    }
    assert_eq!(cluster.counted("forwarded_updates"), 3);
    let tag = cluster.submit((0, 0), PINS, command(&[b"DEL".as_slice(), &pin]));
    assert_eq!(cluster.answers(0, &[tag]), [Outcome::Done(Reply::Int(1))]);
    cluster.run(1, &["APPEND", &key, "1"]);
    assert_eq!(owner(&mut cluster, 0), Reply::Int(2));
    let facts = cluster.nodes[0].placement_facts().expect("keys move");
    assert_eq!(facts.pins, 0);
}

#[test]
fn one_item_more_of_a_large_list_is_a_small_message() {
    let mut cluster = cluster();
    let items: Vec<String> = (0..2000).map(|item| format!("item {item:06}")).collect();
    let words: Vec<&str> =
        ["RPUSH", "list"].into_iter().chain(items.iter().map(|i| &**i)).collect();
    assert_eq!(cluster.run(0, &words), Reply::Int(2000));
    let tag = cluster.submit((0, 0), DB, command(&["RPUSH", "list", "last"]));
    let out = &mut cluster.host((0, 0)).out;
    let sent: usize = (2..=NODES).map(|node| out.peer(NodeId(node)).len()).sum();
    assert!((1..1000).contains(&sent), "{sent} bytes");
    assert_eq!(cluster.answers(0, &[tag]), [Outcome::Done(Reply::Int(2001))]);
}
