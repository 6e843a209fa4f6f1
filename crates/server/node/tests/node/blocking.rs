//! Commands that wait, on real nodes with two lanes each: in order of arrival, each element to one of
//! them, also when others leave.

use std::collections::{BTreeMap, BTreeSet};

use quorate_commands::{OwnedCall, Reply};
use quorate_machine::Outcome;
use quorate_node::{BlockingCall, EngineConfig, KeyspaceConfig, NodeConfig};
use quorate_types::{Duration, Instant, KeyspaceId, NodeId, NodeSet, Tag, lane_of_key};

use crate::support::{Cluster, Place, at, command, config};

const DB: KeyspaceId = KeyspaceId(0);
const LANES: u16 = 2;
/// Long enough for every answer that comes.
const A_WHILE: Duration = Duration::from_millis(40);

type Answer = Outcome<Reply<'static>>;

/// A cluster with what its clients were answered.
struct World {
    cluster: Cluster,
    answers: BTreeMap<Tag, Answer>,
    /// The answers in the order in which they came.
    order: Vec<Tag>,
    /// Those of them that leave only behind the lease.
    leased: BTreeSet<Tag>,
}

fn keyspace(engine: EngineConfig) -> KeyspaceConfig {
    KeyspaceConfig::new(DB, "db", engine)
}

impl World {
    fn of(nodes: u16, keyspace: &KeyspaceConfig) -> Self {
        Self::with_timeout(nodes, keyspace, NodeConfig::OP_TIMEOUT)
    }

    /// Nodes that refuse an op after this time.
    fn with_timeout(nodes: u16, keyspace: &KeyspaceConfig, op_timeout: Duration) -> Self {
        let configs = (1..=nodes).map(|node| {
            let config = config(NodeId(node), nodes, LANES, vec![keyspace.clone()]);
            NodeConfig { op_timeout, ..config }
        });
        let (answers, leased) = (BTreeMap::new(), BTreeSet::new());
        Self { cluster: Cluster::new(configs), answers, order: Vec::new(), leased }
    }

    /// Each engine, on as many nodes as it is for.
    fn each(test: impl Fn(World)) {
        test(Self::of(3, &keyspace(EngineConfig::hermes())));
        test(Self::of(3, &keyspace(EngineConfig::meerkat())));
        let alone = EngineConfig::first_with(|can| !can.replicated);
        test(Self::of(1, &keyspace(alone)));
    }

    fn has_transactions(&self) -> bool {
        let store = self.cluster.nodes[0].store(DB).expect("it is configured");
        store.capabilities().transactions
    }

    fn nodes(&self) -> usize {
        self.cluster.nodes.len()
    }

    fn block(&mut self, place: Place, line: &str, timeout: Option<Duration>) -> Tag {
        let (now, tag) = (at(self.cluster.time), self.cluster.tag());
        let call = OwnedCall::new(line.split(' ').map(str::as_bytes)).expect("a command");
        let wait = call.call().waits().expect("a right one").expect("one that waits");
        let until = timeout.map_or(Instant::NEVER, |timeout| now.monotonic + timeout);
        let call = BlockingCall { keyspace: DB, origin: tag.0, call, line: wait.line, until };
        let host = self.cluster.host(place);
        host.lane.block(now, tag, call, &mut host.out);
        tag
    }

    fn ask(&mut self, place: Place, line: &str) -> Tag {
        let words: Vec<&str> = line.split(' ').collect();
        self.cluster.submit(place, DB, command(&words))
    }

    fn unblock(&mut self, place: Place, tag: Tag, answer: Reply<'static>) {
        let host = self.cluster.host(place);
        host.lane.unblock(tag, answer, &mut host.out);
    }

    fn take_answers(&mut self) {
        for host in self.cluster.lanes.iter_mut().flat_map(|lane| &mut lane.hosts) {
            for done in host.out.done.drain(..) {
                self.order.push(done.tag);
                self.leased.extend(done.lease_bound.then_some(done.tag));
                let earlier = self.answers.insert(done.tag, done.outcome);
                assert!(earlier.is_none(), "an op is answered once");
            }
        }
    }

    fn pass(&mut self, time: Duration) {
        let until = self.cluster.time + time;
        while self.cluster.time < until {
            self.cluster.turn(Duration::from_millis(2));
            self.take_answers();
        }
    }

    /// What was answered, as text; `None` while it waits.
    fn answer(&self, tag: Tag) -> Option<String> {
        fn show(reply: &Reply<'_>) -> String {
            match reply {
                Reply::Array(items) => items.iter().map(show).collect::<Vec<_>>().join(" "),
                Reply::Keyed(pairs) => {
                    let pair = |(key, value): &(_, _)| format!("{} {}", show(key), show(value));
                    pairs.iter().map(pair).collect::<Vec<_>>().join(" ")
                }
                Reply::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
                other => format!("{other:?}"),
            }
        }
        self.answers.get(&tag).map(|answer| match answer {
            Outcome::Done(reply) => show(reply),
            other => format!("{other:?}"),
        })
    }

    fn served(&self, tag: Tag, wanted: &str) {
        assert_eq!(self.answer(tag).as_deref(), Some(wanted));
    }

    fn waits(&self, tag: Tag) {
        assert_eq!(self.answer(tag), None, "it was to wait");
    }

    fn asked(&mut self, place: Place, line: &str) -> String {
        let tag = self.ask(place, line);
        self.pass(A_WHILE);
        self.answer(tag).unwrap_or_else(|| panic!("no answer to {line}"))
    }

    /// Ops that all lanes have submitted to engines.
    fn submitted(&mut self) -> u64 {
        let now = at(self.cluster.time);
        for host in self.cluster.lanes.iter_mut().flat_map(|lane| &mut lane.hosts) {
            host.lane.publish(now);
        }
        let facts = self.cluster.nodes.iter().flat_map(|node| node.lane_facts());
        facts.map(|facts| facts.submitted).sum()
    }
}

#[test]
fn who_waits_is_served_by_a_push_on_any_lane_of_any_node() {
    World::each(|mut world| {
        for (number, from) in (0..world.nodes()).flat_map(|node| [(node, 0), (node, 1)]).enumerate()
        {
            for lane in 0..2 {
                let key = format!("key:{number}:{lane}");
                let waiter = world.block((0, lane), &format!("BLPOP {key} 0"), None);
                world.pass(A_WHILE);
                world.waits(waiter);
                assert_eq!(world.asked(from, &format!("RPUSH {key} a b")), "Int(2)");
                world.served(waiter, &format!("{key} a"));
                assert_eq!(world.asked(from, &format!("LRANGE {key} 0 -1")), "b");
            }
        }
    });
}

#[test]
fn what_is_there_is_taken_at_once() {
    World::each(|mut world| {
        world.asked((0, 0), "RPUSH second 1 2");
        let waiter = world.block((0, 1), "BRPOP first second 0", None);
        let counted = world.block((0, 0), "BLMPOP 0 2 first second LEFT COUNT 5", None);
        world.pass(A_WHILE);
        world.served(waiter, "second 2");
        world.served(counted, "second 1");
    });
}

#[test]
fn a_push_of_several_serves_the_first_in_their_order_over_both_lanes() {
    World::each(|mut world| {
        let waiters: Vec<Tag> =
            (0..5).map(|n| world.block((0, n % 2), "BLPOP key other 0", None)).collect();
        world.pass(A_WHILE);
        world.asked((0, 0), "RPUSH key 0 1 2");
        for (number, waiter) in waiters[..3].iter().enumerate() {
            world.served(*waiter, &format!("key {number}"));
        }
        let order: Vec<Tag> =
            world.order.iter().copied().filter(|tag| waiters.contains(tag)).collect();
        assert_eq!(order, waiters[..3]);
        world.waits(waiters[3]);
        world.asked((0, 1), "RPUSH other x");
        world.served(waiters[3], "other x");
        world.asked((0, 1), "RPUSH key y");
        world.served(waiters[4], "key y");
    });
}

#[test]
fn who_leaves_passes_the_turn_on() {
    World::each(|mut world| {
        let first = world.block((0, 0), "BLPOP key 0", None);
        let second = world.block((0, 1), "BLPOP key 0", None);
        let third = world.block((0, 0), "BLPOP key 0", Some(A_WHILE / 2));
        let last = world.block((0, 1), "BLPOP key 0", None);
        // It goes in the middle of a try that takes the element with it.
        world.unblock((0, 0), first, Reply::Null);
        world.pass(A_WHILE);
        world.served(third, "NullArray");
        world.ask((0, 0), "RPUSH key a b");
        world.unblock((0, 1), second, Reply::error("UNBLOCKED"));
        world.pass(A_WHILE);
        let (second, last) = (world.answer(second), world.answer(last));
        assert!(second.is_some(), "it was unblocked or served");
        assert!(last.is_some(), "the turn was passed on");
    });
}

#[test]
fn a_time_that_is_over_is_answered_and_takes_nothing() {
    World::each(|mut world| {
        let waiter = world.block((0, 1), "BLMOVE key key LEFT RIGHT 0", Some(A_WHILE));
        world.pass(A_WHILE / 2);
        world.waits(waiter);
        world.pass(A_WHILE);
        world.served(waiter, "NullArray");
        assert_eq!(world.asked((0, 0), "RPUSH key a"), "Int(1)");
        assert_eq!(world.asked((0, 0), "LLEN key"), "Int(1)");
    });
}

/// The second of a line has not been tried. It is answered after a try of its own, and what that has read
/// leaves behind the lease.
#[test]
fn that_there_is_nothing_rests_on_the_lease() {
    for engine in [EngineConfig::hermes(), EngineConfig::meerkat()] {
        let is_leased = engine == EngineConfig::hermes();
        let mut world = World::of(3, &keyspace(engine));
        let first = world.block((0, 0), "BLPOP key 0", Some(A_WHILE));
        let second = world.block((0, 1), "BLPOP key 0", Some(A_WHILE));
        world.pass(A_WHILE / 2);
        let before = world.submitted();
        world.pass(A_WHILE);
        for waiter in [first, second] {
            world.served(waiter, "NullArray");
        }
        assert!(world.submitted() >= before + 2, "each has looked once more");
        if is_leased {
            assert!(world.leased.is_superset(&[first, second].into()), "{:?}", world.leased);
        }
    }
}

/// A try is refused, since an update of the key is under way of which a node does not hear, and the time
/// is over meanwhile. There was an element all the time.
#[test]
fn who_was_refused_looks_again_before_it_is_told_that_there_is_nothing() {
    let op_timeout = Duration::from_millis(100);
    for heals in [true, false] {
        let mut world = World::with_timeout(3, &keyspace(EngineConfig::hermes()), op_timeout);
        assert_eq!(world.asked((0, 0), "RPUSH key a"), "Int(1)");
        for lane in &mut world.cluster.lanes {
            lane.deaf.insert(NodeId(3));
        }
        world.ask((1, 0), "RPUSH key b");
        world.pass(A_WHILE / 4);
        let waiter = world.block((0, 0), "BLPOP key 0", Some(A_WHILE));
        world.pass(op_timeout);
        world.waits(waiter);
        if heals {
            for lane in &mut world.cluster.lanes {
                lane.deaf = NodeSet::EMPTY;
            }
        }
        world.pass(op_timeout + A_WHILE / 2);
        world.served(waiter, if heals { "key a" } else { "Refused(TimedOut)" });
    }
}

/// The key with another type hides from one look at all keys what the other holds.
#[test]
fn who_is_told_that_there_is_nothing_has_looked_at_each_key() {
    World::each(|mut world| {
        let waiter = world.block((0, 0), "BLPOP key other 0", None);
        world.pass(A_WHILE);
        world.asked((0, 0), "SET key text");
        world.ask((0, 0), "RPUSH other a");
        world.unblock((0, 0), waiter, Reply::NullArray);
        world.pass(A_WHILE);
        world.served(waiter, "other a");
    });
}

/// Each answer that says "nothing" took nothing: every element is somebody's or still there.
#[test]
fn a_try_that_outlasts_its_time_answers_with_what_it_takes() {
    for engine in [EngineConfig::hermes(), EngineConfig::meerkat()] {
        let mut world = World::of(3, &keyspace(engine));
        let key =
            (0..).map(|n| format!("key:{n}")).find(|key| lane_of_key(key.as_bytes(), 2).0 == 0);
        let key = key.expect("half of the keys");
        assert_eq!(world.asked((1, 0), &format!("RPUSH {key} a")), "Int(1)");
        let waiter = world.block((0, 0), &format!("BLPOP {key} 0"), Some(Duration::from_nanos(1)));
        // The try is with the other replicas at the deadline.
        world.cluster.turn(Duration::from_micros(1));
        world.pass(A_WHILE);
        let left = world.asked((1, 0), &format!("LLEN {key}"));
        match world.answer(waiter).as_deref() {
            Some("NullArray") => assert_eq!(left, "Int(1)", "the element was lost"),
            Some(_) => assert_eq!(left, "Int(0)"),
            None => panic!("no answer"),
        }
    }
}

#[test]
fn a_crowd_costs_a_push_a_few_tries() {
    World::each(|mut world| {
        let waiters: Vec<Tag> =
            (0..10_000).map(|n| world.block((0, n % 2), "BLPOP key 0", None)).collect();
        world.pass(A_WHILE);
        let before = world.submitted();
        world.asked((0, 1), "RPUSH key a");
        world.served(waiters[0], "key a");
        let spent = world.submitted() - before;
        assert!(spent <= 6, "{spent} ops for one element");
        world.waits(waiters[1]);
        for waiter in waiters[1..].iter().rev() {
            let lane = usize::try_from(waiter.0 - waiters[0].0).unwrap() % 2;
            world.unblock((0, lane), *waiter, Reply::Null);
        }
        world.pass(2 * A_WHILE);
        assert_eq!(world.answers.len(), 10_001, "all are answered");
    });
}

#[test]
fn a_key_of_another_type_is_an_error_on_arrival_and_no_reason_later() {
    World::each(|mut world| {
        let waiter = world.block((0, 0), "BLPOP key other 0", None);
        world.pass(A_WHILE);
        world.asked((0, 1), "SET key text");
        world.waits(waiter);
        let late = world.block((0, 1), "BRPOP key 0", None);
        world.pass(A_WHILE);
        assert!(world.answer(late).is_some_and(|answer| answer.contains("WRONGTYPE")));
        world.asked((0, 0), "RPUSH other a");
        world.served(waiter, "other a");
        if !world.has_transactions() {
            return;
        }
        let waiter = world.block((0, 0), "BLMOVE source key LEFT LEFT 0", None);
        world.pass(A_WHILE);
        world.asked((0, 0), "RPUSH source a");
        assert!(world.answer(waiter).is_some_and(|answer| answer.contains("WRONGTYPE")));
        assert_eq!(world.asked((0, 0), "LLEN source"), "Int(1)");
    });
}

#[test]
fn a_node_without_a_replica_asks_again_and_again() {
    for engine in [EngineConfig::hermes(), EngineConfig::meerkat()] {
        let replicas: NodeSet = [1, 2, 3].map(NodeId).into_iter().collect();
        let keyspace = KeyspaceConfig { replicas: Some(replicas), ..keyspace(engine) };
        let mut world = World::of(4, &keyspace);
        let waiter = world.block((3, 0), "BLPOP key 0", None);
        world.pass(5 * A_WHILE);
        world.waits(waiter);
        world.asked((0, 0), "RPUSH key a");
        world.pass(5 * A_WHILE);
        world.served(waiter, "key a");
    }
}

/// A node that hears of no change tries whose turn it is, and nobody else: a turn that is lost is lost
/// for ever.
#[test]
fn a_turn_is_passed_on_where_no_change_is_heard_of() {
    for engine in [EngineConfig::hermes(), EngineConfig::meerkat()] {
        let replicas: NodeSet = [1, 2, 3].map(NodeId).into_iter().collect();
        let keyspace = KeyspaceConfig { replicas: Some(replicas), ..keyspace(engine) };
        let mut world = World::of(4, &keyspace);
        let places = [(3, 0), (3, 0), (3, 1), (3, 0)];
        let waiters = places.map(|place| world.block(place, "BLPOP key 0", None));
        let [unblocked, near, far, last] = waiters;
        world.pass(A_WHILE);
        world.unblock((3, 0), unblocked, Reply::Null);
        world.pass(5 * A_WHILE);
        assert!(world.answer(unblocked).is_some());
        // One that waits on the same lane, one on another lane, and one behind who was served.
        for (waiter, element) in [(near, "a"), (far, "b"), (last, "c")] {
            world.waits(waiter);
            world.asked((0, 0), &format!("RPUSH key {element}"));
            world.pass(5 * A_WHILE);
            world.served(waiter, &format!("key {element}"));
        }
    }
}

#[test]
fn a_node_that_serves_no_more_answers_who_waits() {
    for engine in [EngineConfig::hermes(), EngineConfig::meerkat()] {
        let mut world = World::of(3, &keyspace(engine));
        let cut_off = world.block((0, 1), "BLPOP key 0", None);
        let elsewhere = world.block((1, 0), "BLPOP key 0", None);
        world.pass(A_WHILE);
        for lane in &mut world.cluster.lanes {
            lane.deaf.insert(NodeId(1));
            lane.mute.insert(NodeId(1));
        }
        world.pass(Duration::from_secs(4));
        assert!(world.answer(cut_off).is_some_and(|answer| answer.contains("NotServing")));
        world.waits(elsewhere);
        assert_eq!(world.asked((2, 0), "RPUSH key a"), "Int(1)");
        world.served(elsewhere, "key a");
    }
}

/// A try that finds nothing may have been decided before a push that is here before its answer.
#[test]
fn a_push_during_a_try_that_finds_nothing_is_not_missed() {
    for engine in [EngineConfig::hermes(), EngineConfig::meerkat()] {
        let mut world = World::of(3, &keyspace(engine));
        for (pushed, turns) in (0..2).flat_map(|lane| (0..6).map(move |turns| (lane, turns))) {
            let key = format!("key:{pushed}:{turns}");
            let push = format!("RPUSH {key} a");
            let first = world.ask((1, pushed), &push);
            for _ in 0..turns {
                world.cluster.turn(Duration::from_micros(10));
            }
            let waiter = world.block((0, 1 - pushed), &format!("BLPOP {key} 0"), None);
            for _ in 0..turns {
                world.cluster.turn_of(usize::from(turns % 2 == 0));
            }
            let second = world.ask((0, pushed), &push);
            world.pass(A_WHILE);
            assert!(world.answer(first).is_some() && world.answer(second).is_some());
            world.served(waiter, &format!("{key} a"));
        }
    }
}

/// The same with one push alone, so that no later change makes up for one that was missed, and with one
/// lane that stands still while the push happens on another one.
#[test]
fn a_push_alone_during_a_try_is_not_missed() {
    for engine in [EngineConfig::hermes(), EngineConfig::meerkat()] {
        let mut world = World::of(3, &keyspace(engine));
        for case in 0..8 * 6 * 8 {
            let (node, waits, pushes) = (case % 2, case / 2 % 2, case / 4 % 2);
            let (before, meanwhile) = (case / 8 % 6, case / 48);
            let key = format!("key:{case}");
            let waiter = world.block((0, waits), &format!("BLPOP {key} 0"), None);
            for _ in 0..before {
                world.cluster.turn_of(waits);
            }
            let push = world.ask((node, pushes), &format!("RPUSH {key} a"));
            for _ in 0..meanwhile {
                world.cluster.turn_of(1 - waits);
            }
            world.pass(A_WHILE);
            assert!(world.answer(push).is_some());
            world.served(waiter, &format!("{key} a"));
        }
    }
}

#[test]
fn everybody_who_reads_a_stream_gets_an_entry_of_any_node() {
    World::each(|mut world| {
        let readers: Vec<(Place, Tag)> = (0..world.nodes())
            .flat_map(|node| [(node, 0), (node, 1), (node, 0), (node, 1)])
            .map(|place| (place, world.block(place, "XREAD BLOCK 0 STREAMS s $", None)))
            .collect();
        world.pass(A_WHILE);
        let from = world.nodes() - 1;
        assert_eq!(world.asked((from, 1), "XADD s 1-1 f v"), "1-1");
        for (_, reader) in &readers {
            world.served(*reader, "s 1-1 f v");
        }
        for (number, (place, reader)) in readers.into_iter().enumerate() {
            let late = world.block(place, "XREAD BLOCK 0 STREAMS s 1-1", None);
            world.unblock(place, reader, Reply::Null);
            world.pass(A_WHILE);
            world.waits(late);
            assert_eq!(
                world.asked((0, 0), &format!("XADD s {}-0 f v", 2 + number)),
                format!("{}-0", 2 + number)
            );
            world.served(late, &format!("s {}-0 f v", 2 + number));
            assert_eq!(world.asked((0, 0), "DEL s"), "Int(1)");
            assert_eq!(world.asked((0, 1), "XADD s 1-1 f v"), "1-1");
        }
    });
}

/// What is added behind the end that `$` stood for is read, whenever it comes, and nothing before.
#[test]
fn what_is_added_behind_the_end_of_a_stream_is_not_missed() {
    World::each(|mut world| {
        let from = world.nodes() - 1;
        for turns in 0..8 {
            let key = format!("s:{turns}");
            world.asked((from, 0), &format!("XADD {key} 1-1 before 1"));
            let reader = world.block((0, 1), &format!("XREAD BLOCK 0 STREAMS {key} $"), None);
            for _ in 0..turns {
                world.cluster.turn(Duration::from_micros(10));
            }
            // It is there before the first try, between two tries, or behind the end.
            world.ask((0, 0), &format!("XADD {key} 2-1 f v"));
            world.pass(A_WHILE);
            match world.answer(reader).as_deref() {
                Some(answer) => assert_eq!(answer, format!("{key} 2-1 f v")),
                // It came before the call's end was known.
                None => {
                    world.asked((from, 1), &format!("XADD {key} 3-1 f v"));
                    world.served(reader, &format!("{key} 3-1 f v"));
                }
            }
        }
        // A try that finds nothing fixes no other end.
        let reader = world.block((0, 0), "XREAD BLOCK 0 STREAMS t $", None);
        world.pass(A_WHILE);
        world.ask((0, 1), "XADD t 1-1 a b");
        world.ask((0, 1), "XADD t 2-1 a b");
        world.pass(A_WHILE);
        assert!(world.answer(reader).is_some_and(|answer| answer.starts_with("t 1-1 a b")));
    });
}

#[test]
fn the_entries_of_a_group_go_to_its_consumers_in_order() {
    World::each(|mut world| {
        world.asked((0, 0), "XGROUP CREATE s g $ MKSTREAM");
        world.asked((0, 0), "XGROUP CREATE s other $");
        let read = |group, consumer| {
            format!("XREADGROUP GROUP {group} {consumer} COUNT 1 BLOCK 0 STREAMS s >")
        };
        let ann = world.block((0, 0), &read("g", "ann"), None);
        let bob = world.block((0, 1), &read("g", "bob"), None);
        let other = world.block((0, 0), &read("other", "cid"), None);
        world.pass(A_WHILE);
        let from = world.nodes() - 1;
        world.asked((from, 1), "XADD s 1-1 n 1");
        world.served(ann, "s 1-1 n 1");
        world.served(other, "s 1-1 n 1");
        world.waits(bob);
        world.asked((from, 0), "XADD s 2-1 n 2");
        world.served(bob, "s 2-1 n 2");
        let pending = world.asked((0, 0), "XPENDING s g");
        assert_eq!(pending, "Int(2) 1-1 2-1 ann 1 bob 1");
    });
}

/// The second one comes while the first one's try is under way.
#[test]
fn nobody_waits_for_a_group_that_was_never_there() {
    World::each(|mut world| {
        let line = "XREADGROUP GROUP g c BLOCK 0 STREAMS none >";
        let waiters = [(0, 0), (0, 1), (0, 1)].map(|place| world.block(place, line, None));
        // What changes an absent key waits until replicas agree on what is forgotten.
        world.pass(A_WHILE * 50);
        for waiter in waiters {
            let answer = world.answer(waiter).expect("it is answered");
            assert!(answer.contains("No such key"), "{answer}");
        }
    });
}

#[test]
fn who_waits_for_a_group_hears_that_it_is_gone() {
    let gone = "UNBLOCKED the stream key no longer exists";
    for (end, error) in [
        ("DEL s", gone),
        ("SET s text", gone),
        (
            "XGROUP DESTROY s g",
            "NOGROUP the consumer group this client was blocked on no longer exists",
        ),
    ] {
        World::each(|mut world| {
            world.asked((0, 0), "XGROUP CREATE s g $ MKSTREAM");
            let line = "XREADGROUP GROUP g c BLOCK 0 STREAMS s >";
            let waiters = [(0, 0), (0, 1), (0, 1)].map(|place| world.block(place, line, None));
            let reader = world.block((0, 0), "XREAD BLOCK 0 STREAMS s $", None);
            world.pass(A_WHILE);
            let from = world.nodes() - 1;
            world.asked((from, 0), end);
            for waiter in waiters {
                assert_eq!(world.answer(waiter), Some(format!("Error({error:?})")), "{end}");
            }
            world.waits(reader);
            let late = world.block((0, 1), line, None);
            let timed = world.block((0, 1), "XREAD BLOCK 5 STREAMS none $", Some(A_WHILE / 2));
            world.pass(A_WHILE);
            assert!(
                world.answer(late).is_some_and(
                    |answer| answer.contains("NOGROUP") || answer.contains("WRONGTYPE")
                )
            );
            world.served(timed, "NullArray");
        });
    }
}
