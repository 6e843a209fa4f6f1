//! Lanes of one node over the same records, with letters between them in any order of lanes.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use quorate_engine::Engine as _;
use quorate_engine::Readable as _;
use quorate_harness::{Clock, Cluster, Observed, Process, Subject, view_of};
use quorate_local::{Config, Local, Meta};
use quorate_machine::{
    Change, Command, Content, Current, Outcome, Refusal, Rng, Table as _, Unordered, ValueKind,
    Verdict, Workspace,
};
use quorate_storage::{Keeps, SharedTable, Store};
use quorate_types::{Duration, Epoch, LaneId, Timestamp, UnixMillis, hash_key, lane_of_key};

const LANES: u16 = 3;

/// Answers what each key held, with its version, then sets each to a text, or deletes it; then answers
/// the keys of a range with their texts.
#[derive(Clone, Debug)]
struct Txn {
    keys: Vec<String>,
    range: Option<Range>,
    write: Option<Option<String>>,
    expire_at: Option<UnixMillis>,
    /// Whether it answers what `WATCH` notes of each key, and no texts.
    watches: bool,
}

fn read(keys: &[&str]) -> Txn {
    let keys = keys.iter().map(|key| (*key).to_owned()).collect();
    Txn { keys, range: None, write: None, expire_at: None, watches: false }
}

/// From a key on, below another if there is one, so many at most.
#[derive(Clone, Debug)]
struct Range {
    from: String,
    to: Option<String>,
    limit: usize,
}

const ALL: Range = Range { from: String::new(), to: None, limit: usize::MAX };

fn set(keys: &[&str], text: &str) -> Txn {
    Txn { write: Some(Some(text.to_owned())), ..read(keys) }
}

fn delete(keys: &[&str]) -> Txn {
    Txn { write: Some(None), ..read(keys) }
}

type Held = Vec<(Option<String>, Timestamp)>;

impl Command for Txn {
    type Owned = Self;
    type Reply = Held;

    fn run<W: Workspace>(&self, _: UnixMillis, workspace: &mut W) -> Verdict<Held> {
        let mut held = Vec::new();
        for key in &self.keys {
            if self.watches {
                held.push((None, workspace.watch(key.as_bytes()).0));
                continue;
            }
            let current = workspace.read(key.as_bytes());
            let text = current.content.map(|content| String::from_utf8_lossy(content.bytes).into());
            held.push((text, current.timestamp));
        }
        for key in &self.keys {
            let change = match &self.write {
                None => Change::Keep,
                Some(None) => Change::Delete,
                Some(Some(text)) => Change::Set {
                    bytes: Cow::Borrowed(text.as_bytes()),
                    kind: ValueKind::String,
                    expire_at: self.expire_at,
                },
            };
            workspace.write(key.as_bytes(), change);
        }
        if let Some(Range { from, to, limit }) = &self.range {
            let to = to.as_ref().map(|to| to.as_bytes());
            let mut pair = |key: &[u8], current: Current<'_>| {
                let content = current.content.expect("a range has keys with values");
                let [key, text] = [key, content.bytes].map(String::from_utf8_lossy);
                held.push((Some(format!("{key}={text}")), current.timestamp));
            };
            if workspace.range(from.as_bytes(), to, *limit, &mut pair) == Err(Unordered) {
                return Verdict::Abandon(Vec::new());
            }
        }
        Verdict::Commit(held)
    }

    fn updates(&self) -> bool {
        self.write.is_some()
    }

    fn ranges(&self) -> bool {
        self.range.is_some()
    }

    fn into_owned(self) -> Self {
        self
    }

    fn visit_keys(&self, visit: &mut dyn FnMut(&[u8])) {
        self.keys.iter().for_each(|key| visit(key.as_bytes()));
    }
}

/// Looks at all keys that a test names before each lock, as a reader on another lane may.
type Watched = Observed<SharedTable<Meta>, Box<dyn FnMut(&mut SharedTable<Meta>, &[u8])>>;

/// Of the keys that can be read at this moment, none is of another transaction than the others.
fn look(store: &Store<Meta>, keys: &[String]) {
    let mut seen = Vec::new();
    for key in keys {
        let mut text = Vec::new();
        let hash = hash_key(key.as_bytes());
        let snapshot = store.read(key.as_bytes(), hash, &store.pin(), &mut text);
        if let Some(snapshot) = snapshot
            && snapshot.meta.is_readable()
            && snapshot.value.is_some()
        {
            seen.push(String::from_utf8(text).expect("a text"));
        }
    }
    seen.dedup();
    assert!(seen.len() < 2, "a reader sees parts of two transactions: {seen:?}");
}

/// Lanes over one store.
struct Lanes {
    store: Arc<Store<Meta>>,
    /// The keys that every lane looks at.
    keys: Arc<Vec<String>>,
}

impl Subject for Lanes {
    type Machine = Local<Watched, Txn>;

    fn lanes(&self) -> u16 {
        LANES
    }

    fn start(&self, process: Process) -> Self::Machine {
        let Process { node, incarnation, lane, .. } = process;
        let table = self.store.shared_table(lane.0);
        let (store, keys) = (Arc::clone(&self.store), Arc::clone(&self.keys));
        let config = Config { node, incarnation, lane, lanes: LANES };
        Local::new(config, Observed::new(table, Box::new(move |_, _| look(&store, &keys))))
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
    fn new(watched: &[&str]) -> Self {
        Self::over(Store::new(LANES), watched)
    }

    /// One that keeps its keys in order.
    fn ordered() -> Self {
        Self::over(Store::keeping(LANES, Keeps { order: true, packed_bytes_max: Some(0) }), &[])
    }

    fn over(store: Arc<Store<Meta>>, watched: &[&str]) -> Self {
        let keys = Arc::new(watched.iter().map(|key| (*key).to_owned()).collect());
        Self(Cluster::founded(Lanes { store, keys }, 1, u64::from))
    }

    fn lanes(&self) -> &[Local<Watched, Txn>] {
        &self.0.hosts[&1].machines
    }

    fn submit(&mut self, lane: u16, origin: u64, txn: Txn) -> u64 {
        self.0.advance(Duration::from_nanos(1));
        let tag = self.0.tag();
        self.0.act_on(1, lane, |machine, now, out| machine.submit(now, tag, origin, txn, out));
        tag.0
    }

    fn deliver(&mut self, from: u16, to: u16) -> bool {
        self.0.deliver_mail(1, from, to)
    }

    fn deliver_all(&mut self) {
        self.0.deliver_all_mail();
    }

    fn answer(&self, tag: u64) -> Outcome<Held> {
        self.0.outcome(tag).unwrap_or_else(|| panic!("{tag} is not answered")).clone()
    }

    /// Runs a transaction to its end.
    fn run(&mut self, txn: Txn) -> Held {
        let tag = self.submit(0, 0, txn);
        self.deliver_all();
        match self.answer(tag) {
            Outcome::Done(held) => held,
            other => panic!("{other:?}"),
        }
    }

    fn texts(&mut self, keys: &[&str]) -> Vec<Option<String>> {
        self.run(read(keys)).into_iter().map(|(text, _)| text).collect()
    }
}

/// A key of each lane.
fn keys() -> [String; 3] {
    [0, 1, 2].map(|lane| {
        let names = (0..).map(|number| format!("key {number}"));
        let mut own = names.filter(|name| lane_of_key(name.as_bytes(), LANES) == LaneId(lane));
        own.next().expect("keys are spread over lanes")
    })
}

#[test]
fn a_transaction_over_lanes_happens_at_once_for_readers_of_single_records() {
    let names = keys();
    let all = [names[0].as_str(), &names[1], &names[2]];
    let mut node = Node::new(&all);
    for number in 0..3 {
        node.run(set(&all, &format!("value {number}")));
        assert_eq!(node.texts(&all), [(); 3].map(|()| Some(format!("value {number}"))));
    }
}

#[test]
fn what_reaches_a_held_lane_waits_for_the_transaction_that_holds_it() {
    let names = keys();
    let all = [names[0].as_str(), &names[1], &names[2]];
    let mut node = Node::new(&[]);
    node.run(set(&all, "old"));
    // From lane 2: its turn goes to lane 0, which is held once it has passed it on.
    let over_all = node.submit(2, 1, set(&all, "new"));
    assert!(node.deliver(2, 0));
    let reading = node.submit(0, 2, read(&all[..1]));
    let writing = node.submit(0, 3, set(&all[..1], "newest"));
    [over_all, reading, writing].into_iter().for_each(|tag| node.0.assert_open(tag));
    node.deliver_all();
    let Outcome::Done(held) = node.answer(reading) else { panic!("it was read") };
    assert_eq!(held[0].0.as_deref(), Some("new"));
    assert_eq!(node.texts(&all), ["newest", "new", "new"].map(|text| Some(text.to_owned())));
}

#[test]
fn crossing_transactions_of_all_lanes_end_and_are_serial() {
    let names = keys();
    let pairs = [(0, 1), (1, 2), (2, 0), (2, 1), (1, 0), (0, 2)];
    for first in 0..LANES * LANES {
        let mut node = Node::new(&[]);
        for (tag, (one, other)) in (1..).zip(pairs) {
            let (one, other) = (names[one].as_str(), names[other].as_str());
            let txn = set(&[one, other], &tag.to_string());
            assert_eq!(node.submit((tag % 3) as u16, tag, txn), tag);
        }
        // One link is served before all others.
        while node.deliver(first / LANES, first % LANES) {}
        node.deliver_all();
        assert_eq!(node.0.stamps.len(), pairs.len());
        let mut done: Vec<_> = node.0.stamps.iter().map(|(tag, at)| (*at, *tag)).collect();
        done.sort_unstable();
        let mut model = [None, None, None];
        for (at, tag) in done {
            let (one, other) = pairs[tag as usize - 1];
            let outcome = node.answer(tag);
            let Outcome::Done(held) = outcome else { panic!("{outcome:?}") };
            let seen: Vec<_> = held.into_iter().map(|(text, _)| text).collect();
            assert_eq!(seen, [model[one].clone(), model[other].clone()], "{tag} at {at:?}");
            model[one] = Some(tag.to_string());
            model[other] = Some(tag.to_string());
        }
    }
}

#[test]
fn transactions_of_one_origin_with_a_common_key_stay_in_order() {
    let names = keys();
    let all = [names[0].as_str(), &names[1], &names[2]];
    let mut node = Node::new(&[]);
    node.submit(0, 7, set(&all, "first"));
    node.submit(0, 7, set(&all[2..], "second"));
    // The way to lane 2 alone would be shorter.
    assert!(!node.deliver(0, 2));
    node.deliver_all();
    assert_eq!(node.texts(&all[2..]), [Some("second".to_owned())]);
}

#[test]
fn a_node_that_is_not_alone_refuses() {
    let mut node = Node::new(&[]);
    node.0.install_on(1, &view_of(2, Epoch(2)));
    let tag = node.submit(0, 1, read(&["a"]));
    assert_eq!(node.answer(tag), Outcome::Refused(Refusal::NotServing));
}

#[test]
fn an_absent_key_shows_that_it_was_there_meanwhile() {
    let mut node = Node::new(&[]);
    let absent = |node: &mut Node| match &node.run(read(&["a"]))[..] {
        [(None, version)] => *version,
        held => panic!("{held:?}"),
    };
    let before = absent(&mut node);
    node.run(set(&["a"], "short"));
    node.run(delete(&["a"]));
    let after = absent(&mut node);
    assert_ne!(before, after);
    // Nor does it look as before once the tombstone is gone.
    node.0.tick(Duration::from_secs(11));
    assert_eq!(node.lanes().iter().map(|lane| lane.table().len()).sum::<usize>(), 0);
    assert_ne!(before, absent(&mut node));
}

/// A tombstone is removed while another key, which is absent, is watched.
#[test]
fn a_watch_of_an_absent_key_holds_when_others_are_forgotten() {
    let mut node = Node::new(&[]);
    let shown = |node: &mut Node| node.run(read(&["b"]))[0].1;
    node.run(set(&["a"], "short"));
    node.run(delete(&["a"]));
    let noted = node.run(Txn { watches: true, ..read(&["b"]) })[0].1;
    node.0.tick(Duration::from_secs(11));
    assert_eq!(node.lanes().iter().map(|lane| lane.table().len()).sum::<usize>(), 0);
    assert!(shown(&mut node) <= noted);
    node.0.set_clock(1, Clock { ahead: -20_000_000_000, ..Clock::default() });
    node.run(set(&["b"], "short"));
    node.run(delete(&["b"]));
    assert!(shown(&mut node) > noted, "it was there meanwhile");
}

#[test]
fn values_past_their_time_are_absent_and_go() {
    let mut node = Node::new(&[]);
    let soon = UnixMillis(node.0.now.wall().0 + 50);
    node.run(Txn { expire_at: Some(soon), ..set(&["a"], "short") });
    assert_eq!(node.texts(&["a"]), [Some("short".to_owned())]);
    node.0.advance(Duration::from_millis(60));
    // Who sees it first deletes it.
    let seen = node.run(read(&["a"]));
    assert_eq!(node.texts(&["a"]), [None]);
    assert_eq!(node.run(read(&["a"])), seen, "who watches it sees no change when it is deleted");
    node.0.tick(Duration::from_millis(200));
    assert_eq!(node.run(read(&["a"])), seen);
    let mut expired = 0;
    for lane in node.lanes() {
        let counters = lane.counters();
        expired += counters.iter().find(|(name, _)| *name == "expired").expect("it is there").1;
    }
    assert_eq!(expired, 1);
}

#[test]
fn a_value_that_was_seen_to_be_past_its_time_stays_absent_if_the_clock_is_set_back() {
    let mut node = Node::new(&[]);
    let soon = UnixMillis(node.0.now.wall().0 + 50);
    node.run(Txn { expire_at: Some(soon), ..set(&["a", "b"], "short") });
    node.0.set_clock(1, Clock { ahead: 60_000_000, ..Clock::default() });
    let seen = node.run(read(&["a"]));
    node.0.set_clock(1, Clock::default());
    assert_eq!(node.run(read(&["a"])), seen);
    assert_eq!(node.texts(&["a", "b"]), [None, Some("short".to_owned())], "of b nobody knows");
}

#[test]
fn a_value_lies_in_its_record_as_it_was_set() {
    let mut node = Node::new(&[]);
    node.run(set(&["a"], "text"));
    let store = &node.0.subject.store;
    let mut text = Vec::new();
    let found = store.read(b"a", hash_key(b"a"), &store.pin(), &mut text);
    let content: Option<Content<'_>> = found.as_ref().and_then(|found| found.content(&text));
    assert_eq!(content.map(|content| content.bytes), Some(&b"text"[..]));
}

/// Key and text of what is in a range, as the ordered map has it.
fn expected(model: &BTreeMap<String, String>, range: &Range) -> Vec<Option<String>> {
    let in_range =
        |key: &&String| **key >= range.from && range.to.as_ref().is_none_or(|to| *key < to);
    let keys = model.keys().filter(in_range).take(range.limit);
    keys.map(|key| Some(format!("{key}={}", model[key]))).collect()
}

fn draw_range(rng: &mut Rng) -> Range {
    let mut bound = || format!("k{:02}", rng.below(45));
    let (from, to) = (bound(), bound());
    let limit = if rng.chance(1, 3) { rng.below(6) as usize } else { usize::MAX };
    Range { from, to: rng.chance(2, 3).then_some(to), limit }
}

#[test]
fn ranges_show_what_the_ordered_map_shows() {
    let mut rng = Rng::new(11);
    let (mut node, mut model) = (Node::ordered(), BTreeMap::new());
    for number in 0..3_000 {
        let keys: Vec<String> =
            (0..rng.below(3)).map(|_| format!("k{:02}", rng.below(40))).collect();
        let write = match rng.below(3) {
            0 => None,
            1 => Some(None),
            _ => Some(Some(format!("v{number}"))),
        };
        for key in &keys {
            match &write {
                None => {}
                Some(None) => drop(model.remove(key)),
                Some(Some(text)) => drop(model.insert(key.clone(), text.clone())),
            }
        }
        let range = draw_range(&mut rng);
        let named = keys.len();
        let txn = Txn { keys, write, range: Some(range.clone()), expire_at: None, watches: false };
        let held = node.run(txn).split_off(named);
        let seen: Vec<_> = held.into_iter().map(|(pair, _)| pair).collect();
        assert_eq!(seen, expected(&model, &range), "{number}: {range:?}");
        if rng.chance(1, 50) {
            // Tombstones go, and their keys with them.
            node.0.tick(Duration::from_secs(11));
        }
    }
}

#[test]
fn nothing_appears_in_a_range_or_goes_while_a_transaction_reads_it() {
    for seed in 0..300 {
        let (mut rng, mut node) = (Rng::new(seed), Node::ordered());
        let mut sent = BTreeMap::new();
        for number in 0..12_u64 {
            let key = format!("k{:02}", rng.below(8));
            let write = if rng.chance(1, 4) { None } else { Some(format!("v{number}")) };
            // What ranges also writes, so that its place in the order is known.
            let range = rng.chance(1, 2).then_some(ALL);
            let txn =
                Txn { keys: vec![key], write: Some(write), range, expire_at: None, watches: false };
            let tag = node.submit(rng.below(3) as u16, number, txn.clone());
            sent.insert(tag, txn);
            for _ in 0..rng.below(4) {
                node.deliver(rng.below(3) as u16, rng.below(3) as u16);
            }
        }
        node.deliver_all();
        let mut order: Vec<_> = node.0.stamps.iter().map(|(tag, at)| (*at, *tag)).collect();
        order.sort_unstable();
        assert_eq!(order.len(), sent.len(), "seed {seed}");
        let mut model = BTreeMap::new();
        for (_, tag) in order {
            let (txn, outcome) = (&sent[&tag], node.answer(tag));
            let Outcome::Done(held) = outcome else { panic!("seed {seed}: {outcome:?}") };
            match txn.write.as_ref().expect("all write") {
                None => drop(model.remove(&txn.keys[0])),
                Some(text) => drop(model.insert(txn.keys[0].clone(), text.clone())),
            }
            let seen: Vec<_> = held.into_iter().skip(1).map(|(pair, _)| pair).collect();
            let expected = if txn.range.is_some() { expected(&model, &ALL) } else { Vec::new() };
            assert_eq!(seen, expected, "seed {seed}, transaction {tag}");
        }
    }
}

#[test]
fn a_keyspace_without_order_refuses_ranges() {
    let mut node = Node::new(&[]);
    node.run(set(&["a"], "text"));
    assert_eq!(node.run(Txn { range: Some(ALL), ..read(&["a"]) }), []);
}
