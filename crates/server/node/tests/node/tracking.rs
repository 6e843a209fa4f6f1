//! What clients keep of keys that others change, on real nodes with two lanes each: whatever a cache
//! still holds once everything rests is what the store holds.

use std::collections::{BTreeMap, BTreeSet};

use quorate_commands::{OwnedCall, Reply};
use quorate_machine::{Outcome, Rng};
use quorate_node::{EngineConfig, Invalidation, KeyspaceConfig};
use quorate_types::{Duration, KeyspaceId, NodeId, NodeSet, Tag};

use crate::support::{Cluster, Place, at, command, config};

const DB: KeyspaceId = KeyspaceId(0);
const LANES: u16 = 2;
const KEYS: u64 = 6;

type Value = Option<Vec<u8>>;

/// A client that keeps what it reads, as a front end serves it: it is told of a change behind every
/// answer that it still waits for.
#[derive(Default)]
struct Client {
    /// The key of each read without an answer, and whether it is to be forgotten then.
    reads: BTreeMap<Tag, (String, bool)>,
    cache: BTreeMap<String, Value>,
    /// Whether it tracks all keys with a prefix, and not those that it reads.
    broad: bool,
    told: usize,
}

impl Client {
    fn forget(&mut self, which: impl Fn(&str) -> bool) {
        self.told += 1;
        self.cache.retain(|key, _| !which(key));
        for (key, forgets) in self.reads.values_mut() {
            *forgets |= which(key);
        }
    }

    fn answered(&mut self, tag: Tag, outcome: &Outcome<Reply<'static>>) {
        let Some((key, forgets)) = self.reads.remove(&tag) else { return };
        let Outcome::Done(reply) = outcome else { return };
        if !forgets {
            self.cache.insert(key, value(reply));
        }
    }
}

fn value(reply: &Reply<'_>) -> Value {
    match reply {
        Reply::Bulk(bytes) => Some(bytes.to_vec()),
        Reply::Null => None,
        other => panic!("a value is read, not {other:?}"),
    }
}

/// A cluster with a client on each lane of each node.
struct World {
    cluster: Cluster,
    clients: BTreeMap<Place, Client>,
    /// What others than those are answered.
    answers: BTreeMap<Tag, Outcome<Reply<'static>>>,
}

impl World {
    fn new(nodes: u16, keyspace: &KeyspaceConfig) -> Self {
        let configs =
            (1..=nodes).map(|node| config(NodeId(node), nodes, LANES, vec![keyspace.clone()]));
        let mut cluster = Cluster::new(configs);
        let places = (0..usize::from(nodes)).flat_map(|node| [(node, 0), (node, 1)]);
        let clients = places.map(|place| (place, Client::default())).collect();
        for lane in cluster.lanes.iter_mut().flat_map(|lane| &mut lane.hosts) {
            lane.lane.set_tracking(true);
        }
        Self { cluster, clients, answers: BTreeMap::new() }
    }

    fn broaden(&mut self, place: Place) {
        self.track_prefix(place, b"k", false);
        self.clients.get_mut(&place).expect("one on each lane").broad = true;
    }

    fn track_prefix(&mut self, place: Place, prefix: &[u8], coalesced: bool) {
        let (now, tag) = (at(self.cluster.time), self.cluster.tag());
        let host = self.cluster.host(place);
        host.lane.track_prefixes(now, tag, &[prefix], coalesced, &mut host.out);
        while !self.answers.contains_key(&tag) {
            self.turn();
        }
    }

    fn read(&mut self, place: Place, key: &str) {
        let (now, tag) = (at(self.cluster.time), self.cluster.tag());
        let client = self.clients.get_mut(&place).expect("one on each lane");
        let host = &mut self.cluster.lanes[place.1].hosts[place.0];
        let hears = client.broad || host.lane.track(DB, key.as_bytes());
        client.reads.insert(tag, (key.to_owned(), !hears));
        let call = OwnedCall::new([&b"GET"[..], key.as_bytes()]).expect("a command");
        let answer = host.lane.read(now, DB, &call.call(), |reply| value(&reply));
        match answer {
            Some(value) => {
                let reply = value.map_or(Reply::Null, |bytes| Reply::Bulk(bytes.into()));
                client.answered(tag, &Outcome::Done(reply));
            }
            None => host.lane.submit(now, DB, tag, 1, call.call(), &mut host.out),
        }
    }

    fn ask(&mut self, place: Place, line: &str) -> Tag {
        let words: Vec<&str> = line.split(' ').collect();
        self.cluster.submit(place, DB, command(&words))
    }

    fn turn_of(&mut self, lane: usize) {
        self.cluster.turn_of(lane);
        for (node, host) in self.cluster.lanes[lane].hosts.iter_mut().enumerate() {
            let client = self.clients.get_mut(&(node, lane)).expect("one on each lane");
            for done in host.out.done.drain(..) {
                client.answered(done.tag, &done.outcome);
                self.answers.insert(done.tag, done.outcome);
            }
            for invalidation in host.out.invalidated.drain(..) {
                match invalidation {
                    Invalidation::Everything => client.forget(|_| true),
                    Invalidation::Keys(_, changes) => {
                        let keys: BTreeSet<_> =
                            changes.keys.iter().map(|changed| changed.key.to_vec()).collect();
                        client.forget(|key| changes.more || keys.contains(key.as_bytes()));
                    }
                }
            }
        }
    }

    fn turn(&mut self) {
        self.cluster.time += Duration::from_millis(1);
        (0..usize::from(LANES)).for_each(|lane| self.turn_of(lane));
    }

    fn rest(&mut self) {
        (0..200).for_each(|_| self.turn());
    }

    /// What a key holds, by the engine.
    fn get(&mut self, key: &str) -> Value {
        let tag = self.ask((0, 0), &format!("GET {key}"));
        while !self.answers.contains_key(&tag) {
            self.turn();
        }
        match &self.answers[&tag] {
            Outcome::Done(reply) => value(reply),
            other => panic!("nothing is in its way: {other:?}"),
        }
    }

    /// How many values the caches hold, each of which is the store's.
    fn judge(&mut self, of: &str) -> usize {
        let values: BTreeMap<String, Value> = (0..KEYS)
            .map(|key| format!("k{key}"))
            .map(|key| (key.clone(), self.get(&key)))
            .collect();
        let mut kept = 0;
        for (place, client) in &self.clients {
            for (key, value) in &client.cache {
                assert_eq!(value, &values[key], "{of}: the cache of {place:?} has an old {key}");
                kept += 1;
            }
        }
        kept
    }
}

fn run(seed: u64, nodes: u16, keyspace: &KeyspaceConfig) -> (usize, usize) {
    let mut rng = Rng::new(seed);
    let mut world = World::new(nodes, keyspace);
    if keyspace.replicas.is_none() && rng.below(2) == 0 {
        world.broaden((0, 1));
    }
    for step in 0..250 {
        let place = (rng.below(u64::from(nodes)) as usize, rng.below(2) as usize);
        let key = format!("k{}", rng.below(KEYS));
        // In the end there are only a few writes, so that something is kept.
        let writes = step < 180 || rng.below(8) == 0;
        if step == 180 {
            world.rest();
        }
        match rng.below(8) {
            0..3 => world.read(place, &key),
            3 if writes => drop(world.ask(place, &format!("SET {key} v{step}"))),
            4 if writes => drop(world.ask(place, &format!("APPEND {key} +"))),
            5 if writes && rng.below(3) == 0 => drop(world.ask(place, &format!("DEL {key}"))),
            _ => {
                world.cluster.time += Duration::from_micros(200);
                let lane = rng.below(2) as usize;
                world.turn_of(lane);
            }
        }
    }
    world.rest();
    let kept = world.judge(&format!("seed {seed}"));
    (kept, world.clients.values().map(|client| client.told).sum())
}

fn keyspace(engine: EngineConfig) -> KeyspaceConfig {
    KeyspaceConfig::new(DB, "db", engine)
}

#[test]
fn what_caches_keep_is_what_the_store_holds() {
    let alone = EngineConfig::first_with(|can| !can.replicated);
    for (nodes, engine) in [(3, EngineConfig::hermes()), (3, EngineConfig::meerkat()), (1, alone)] {
        let keyspace = keyspace(engine);
        let (mut kept, mut told) = (0, 0);
        for seed in 0..40 {
            let run = run(seed, nodes, &keyspace);
            (kept, told) = (kept + run.0, told + run.1);
        }
        assert!(kept > 40 && told > 400, "{kept} values are kept, {told} messages were sent");
    }
}

/// A client that begins to track a prefix arms the node, on whichever lane.
#[test]
fn coalesced_changes_are_told_once_and_with_the_next_round() {
    let mut world = World::new(3, &keyspace(EngineConfig::hermes()));
    let listener = (0, 0);
    world.track_prefix(listener, b"", true);
    let told = |world: &mut World| -> Vec<String> {
        world.rest();
        let client = world.clients.get_mut(&listener).expect("one on each lane");
        let all = (0..KEYS).map(|key| format!("k{key}"));
        let before = client.cache.len();
        let told = all.filter(|key| before > 0 && !client.cache.contains_key(key)).collect();
        client.cache = (0..KEYS).map(|key| (format!("k{key}"), None)).collect();
        told
    };
    let nothing: [&str; 0] = [];
    assert_eq!(told(&mut world), nothing);
    for prefix in [&b"one"[..], b"two"] {
        for (place, key) in [((1, 0), "k0"), ((2, 1), "k1"), ((0, 1), "k2"), ((1, 1), "k0")] {
            world.ask(place, &format!("SET {key} v"));
            assert_eq!(told(&mut world), nothing, "more may come");
        }
        world.track_prefix((0, 1), prefix, false);
        assert_eq!(told(&mut world), ["k0", "k1", "k2"]);
    }
    // Of two lanes that listen, each is told of every key.
    let late = (0, 1);
    world.ask((0, 0), "SET k3 v");
    world.rest();
    world.track_prefix(late, b"k", true);
    assert_eq!(told(&mut world), ["k3"]);
    world.ask((0, 0), "SET k3 v");
    world.rest();
    world.clients.get_mut(&late).expect("one on each lane").cache.insert("k3".into(), None);
    world.track_prefix(listener, b"third", false);
    assert_eq!(told(&mut world), ["k3"]);
    assert!(world.clients[&late].cache.is_empty());
}

#[test]
fn what_has_no_replica_here_is_not_kept() {
    let mut keyspace = keyspace(EngineConfig::hermes());
    keyspace.replicas = Some([NodeId(1), NodeId(2)].into_iter().collect::<NodeSet>());
    let mut world = World::new(3, &keyspace);
    for (node, hears) in [(0, true), (1, true), (2, false)] {
        let lane = &mut world.cluster.host((node, 0)).lane;
        assert_eq!((lane.track(DB, b"k"), lane.hears_all()), (hears, hears));
    }
    for seed in 0..10 {
        run(seed, 3, &keyspace);
    }
}

#[test]
fn a_lease_that_lapses_is_told_before_others_go_on_without_the_node() {
    let mut world = World::new(3, &keyspace(EngineConfig::hermes()));
    let (cut_off, other) = ((2, 1), (0, 0));
    world.read(cut_off, "k1");
    world.rest();
    assert_eq!(world.clients[&cut_off].cache.len(), 1);
    for lane in &mut world.cluster.lanes {
        lane.deaf = NodeSet::only(NodeId(3));
        lane.mute = NodeSet::only(NodeId(3));
    }
    let write = world.ask(other, "SET k1 new");
    while !world.answers.contains_key(&write) {
        world.turn();
        let answered = world.answers.contains_key(&write);
        assert!(!answered || world.clients[&cut_off].cache.is_empty(), "an acknowledged write");
    }
    assert!(matches!(world.answers[&write], Outcome::Done(Reply::Ok)));
    // The node comes back in a new life, and hears of changes again.
    for lane in &mut world.cluster.lanes {
        lane.deaf = NodeSet::EMPTY;
        lane.mute = NodeSet::EMPTY;
    }
    world.read(cut_off, "k1");
    (0..10).for_each(|_| world.rest());
    world.read(cut_off, "k1");
    world.rest();
    assert_eq!(world.clients[&cut_off].cache["k1"], Some(b"new".to_vec()));
    world.ask(other, "SET k1 newer");
    world.rest();
    assert!(world.clients[&cut_off].cache.is_empty());
}

#[test]
fn a_change_names_the_client_that_made_it() {
    let alone = EngineConfig::first_with(|can| !can.replicated);
    for (nodes, engine) in [(3, EngineConfig::hermes()), (3, EngineConfig::meerkat()), (1, alone)] {
        let mut world = World::new(nodes, &keyspace(engine));
        for (origin, lane, key) in [(7, 0, "k1"), (8, 1, "k1"), (9, 0, "k2"), (10, 1, "k2")] {
            let (now, tag) = (at(world.cluster.time), world.cluster.tag());
            let host = world.cluster.host((0, lane));
            assert!(host.lane.track(DB, key.as_bytes()));
            host.lane.submit(now, DB, tag, origin, command(&["SET", key, "v"]), &mut host.out);
            let mut writers = BTreeSet::new();
            for _ in 0..100 {
                world.cluster.turn(Duration::from_millis(1));
                for told in world.cluster.host((0, lane)).out.invalidated.drain(..) {
                    let Invalidation::Keys(_, changes) = told else { panic!("a lease lapsed") };
                    let of = changes.keys.iter().map(|changed| changed.writer.map(u64::from));
                    writers.extend(of);
                }
            }
            assert_eq!(writers, BTreeSet::from([Some(origin)]));
        }
    }
}

/// Who needs to know what is under way at this moment asks behind such a round.
#[test]
fn behind_a_new_prefix_every_lane_has_published_what_it_counts() {
    let mut world = World::new(3, &keyspace(EngineConfig::meerkat()));
    for key in 0..KEYS {
        let tag = world.ask((0, key as usize % 2), &format!("SET k{key} v"));
        while !world.answers.contains_key(&tag) {
            world.turn();
        }
    }
    let published = |world: &mut World| -> Vec<u64> {
        let lanes = world.cluster.host((0, 0)).lane.shared().lane_facts();
        lanes.iter().map(|lane| lane.submitted).collect()
    };
    assert_eq!(published(&mut world), [0, 0], "nobody has asked");
    world.broaden((0, 0));
    assert_eq!(published(&mut world), [KEYS / 2, KEYS / 2]);
}
