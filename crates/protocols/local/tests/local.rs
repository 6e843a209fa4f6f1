//! Lanes of one node over the same records, with letters between them in any order of lanes.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;

use quorate_engine::Engine as _;
use quorate_engine::Readable as _;
use quorate_local::{Config, Local, Mail, Meta};
use quorate_machine::{
    Change, Command, Completion, Content, Effects, Event, LaneShared, Machine, NoObject, Outcome,
    Refusal, Table, ValueKind, Verdict, Workspace,
};
use quorate_storage::{SharedTable, Store};
use quorate_types::{
    Duration, Epoch, Incarnation, Instant, LaneId, Member, MemberNumber, NodeId, Now, Role, Tag,
    Timestamp, UnixMillis, UnixNanos, View, hash_key, lane_of_key,
};

const LANES: u16 = 3;

/// Answers what each key held, with its version, then sets each to a text, or deletes it.
#[derive(Clone, Debug)]
struct Txn {
    keys: Vec<String>,
    write: Option<Option<String>>,
    expire_at: Option<UnixMillis>,
}

fn read(keys: &[&str]) -> Txn {
    let keys = keys.iter().map(|key| (*key).to_owned()).collect();
    Txn { keys, write: None, expire_at: None }
}

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
        Verdict::Commit(held)
    }

    fn updates(&self) -> bool {
        self.write.is_some()
    }

    fn into_owned(self) -> Self {
        self
    }

    fn visit_keys(&self, visit: &mut dyn FnMut(&[u8])) {
        self.keys.iter().for_each(|key| visit(key.as_bytes()));
    }
}

/// Looks at all keys that a test names before each lock, as a reader on another lane may.
struct Watched {
    table: SharedTable<Meta>,
    store: Arc<Store<Meta>>,
    keys: Arc<Vec<String>>,
}

impl Watched {
    /// Of the keys that can be read at this moment, none is of another transaction than the others.
    fn look(&self) {
        let mut seen = Vec::new();
        for key in self.keys.iter() {
            let mut text = Vec::new();
            let hash = hash_key(key.as_bytes());
            let snapshot = self.store.read(key.as_bytes(), hash, &self.store.pin(), &mut text);
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
}

impl Table for Watched {
    type Meta = Meta;
    type Object = NoObject;
    type Handle = <SharedTable<Meta> as Table>::Handle;
    type Record<'a> = <SharedTable<Meta> as Table>::Record<'a>;

    fn find(&self, key: &[u8]) -> Option<Self::Handle> {
        self.table.find(key)
    }

    fn find_or_insert(&mut self, key: &[u8]) -> Self::Handle {
        self.table.find_or_insert(key)
    }

    fn lock(&mut self, handle: Self::Handle) -> Self::Record<'_> {
        self.table.lock(handle)
    }

    fn lock_key(&mut self, key: &[u8], value_len: usize) -> Self::Record<'_> {
        self.look();
        self.table.lock_key(key, value_len)
    }

    fn lock_existing(&mut self, key: &[u8]) -> Option<Self::Record<'_>> {
        self.look();
        self.table.lock_existing(key)
    }

    fn remove_if(&mut self, key: &[u8], dead: impl FnOnce(&Self::Record<'_>) -> bool) -> bool {
        self.table.remove_if(key, dead)
    }

    fn remove(&mut self, handle: Self::Handle) {
        self.table.remove(handle);
    }

    fn scan(&self, cursor: u64, limit: usize, visit: &mut dyn FnMut(Self::Handle)) -> u64 {
        self.table.scan(cursor, limit, visit)
    }

    fn scan_keys(&self, cursor: u64, limit: usize, visit: &mut dyn FnMut(&[u8])) -> u64 {
        self.table.scan_keys(cursor, limit, visit)
    }

    fn scan_places(
        &self,
        from: u64,
        limit: usize,
        visit: &mut dyn FnMut(u64, Self::Handle),
    ) -> u64 {
        self.table.scan_places(from, limit, visit)
    }

    fn len(&self) -> usize {
        self.table.len()
    }

    fn reset(&mut self) {
        self.table.reset();
    }
}

impl LaneShared for Watched {
    fn highest(&self) -> u64 {
        self.table.highest()
    }

    fn raise_highest(&mut self, to: u64) {
        self.table.raise_highest(to);
    }

    fn least(&self, cell: usize) -> u64 {
        self.table.least(cell)
    }

    fn set_cell(&mut self, cell: usize, number: u64) {
        self.table.set_cell(cell, number);
    }
}

type Machine_ = Local<Watched, Txn>;

#[derive(Default)]
struct Out {
    mail: Vec<(LaneId, Mail<Txn>)>,
    done: Vec<(Tag, Outcome<Held>, Timestamp)>,
}

impl Effects<Machine_> for Out {
    fn send(&mut self, to: NodeId, _: &std::convert::Infallible) {
        panic!("a message to {to}");
    }

    fn mail(&mut self, to: LaneId, mail: Mail<Txn>) {
        self.mail.push((to, mail));
    }

    fn complete(&mut self, tag: Tag, outcome: Outcome<Held>) {
        self.done.push((tag, outcome, Timestamp::ZERO));
    }

    fn complete_on(&mut self, tag: Tag, completion: Completion<Outcome<Held>>) {
        self.done.push((tag, completion.outcome, completion.at.unwrap_or(Timestamp::ZERO)));
    }
}

struct Node {
    time: u64,
    lanes: Vec<Machine_>,
    /// By sender and receiver, each in order.
    letters: Vec<Vec<VecDeque<Mail<Txn>>>>,
    done: Vec<(Tag, Outcome<Held>, Timestamp)>,
}

fn view(members: u16) -> View {
    let member = |number: u16| Member {
        node: NodeId(number),
        incarnation: Incarnation(u64::from(number)),
        number: MemberNumber(u32::from(number)),
        role: Role::Active,
        peer_address: String::new(),
        client_address: String::new(),
        admin_address: String::new(),
    };
    View {
        epoch: Epoch(u64::from(members)),
        cluster: Incarnation(1),
        members: (1..=members).map(member).collect(),
        last_number: MemberNumber(u32::from(members)),
    }
}

impl Node {
    fn new(watched: &[&str]) -> Self {
        let store = Store::<Meta>::new(LANES);
        let keys = Arc::new(watched.iter().map(|key| (*key).to_owned()).collect());
        let lane = |lane: u16| {
            let config = Config {
                node: NodeId(1),
                incarnation: Incarnation(1),
                lane: LaneId(lane),
                lanes: LANES,
            };
            let (table, store) = (store.shared_table(lane), Arc::clone(&store));
            Local::new(config, Watched { table, store, keys: Arc::clone(&keys) })
        };
        let lanes = (0..LANES).map(lane).collect();
        let letters = vec![vec![VecDeque::new(); usize::from(LANES)]; usize::from(LANES)];
        let mut node = Self { time: 0, lanes, letters, done: Vec::new() };
        node.install(&view(1));
        node
    }

    fn install(&mut self, view: &View) {
        for lane in 0..self.lanes.len() {
            self.step(lane, Event::View(view));
        }
    }

    fn now(&self) -> Now {
        Now { monotonic: Instant(self.time), unix: UnixNanos(1 << 60 | self.time) }
    }

    fn with(&mut self, lane: usize, act: impl FnOnce(&mut Machine_, Now, &mut Out)) {
        self.time += 1;
        let (now, mut out) = (self.now(), Out::default());
        act(&mut self.lanes[lane], now, &mut out);
        self.lanes[lane].check_invariants();
        for (to, mail) in out.mail {
            self.letters[lane][usize::from(to.0)].push_back(mail);
        }
        self.done.append(&mut out.done);
    }

    fn step(&mut self, lane: usize, event: Event<'_, Machine_>) {
        self.with(lane, |machine, now, out| machine.step(now, event, out));
    }

    fn submit(&mut self, lane: usize, tag: u64, origin: u64, txn: Txn) {
        self.with(lane, |machine, now, out| machine.submit(now, Tag(tag), origin, txn, out));
    }

    /// Delivers one letter; whether there was one.
    fn deliver(&mut self, from: usize, to: usize) -> bool {
        let Some(mail) = self.letters[from][to].pop_front() else { return false };
        self.step(to, Event::Mail { from: LaneId(from as u16), mail });
        true
    }

    fn deliver_all(&mut self) {
        let lanes = self.lanes.len();
        while (0..lanes * lanes).any(|link| self.deliver(link / lanes, link % lanes)) {}
    }

    fn answer(&mut self, tag: u64) -> Outcome<Held> {
        let found = self.done.iter().position(|(known, ..)| known.0 == tag);
        self.done.remove(found.unwrap_or_else(|| panic!("{tag} is not answered"))).1
    }

    /// Runs a transaction to its end.
    fn run(&mut self, txn: Txn) -> Held {
        self.submit(0, 0, 0, txn);
        self.deliver_all();
        match self.answer(0) {
            Outcome::Done(held) => held,
            other => panic!("{other:?}"),
        }
    }

    fn texts(&mut self, keys: &[&str]) -> Vec<Option<String>> {
        self.run(read(keys)).into_iter().map(|(text, _)| text).collect()
    }

    fn sweep(&mut self, later: Duration) {
        self.time += later.as_nanos() as u64;
        for lane in 0..self.lanes.len() {
            self.step(lane, Event::Tick);
        }
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
    node.submit(2, 1, 1, set(&all, "new"));
    assert!(node.deliver(2, 0));
    node.submit(0, 2, 2, read(&all[..1]));
    node.submit(0, 3, 3, set(&all[..1], "newest"));
    assert!(node.done.is_empty(), "{:?}", node.done);
    node.deliver_all();
    let Outcome::Done(held) = node.answer(2) else { panic!("it was read") };
    assert_eq!(held[0].0.as_deref(), Some("new"));
    assert_eq!(node.texts(&all), ["newest", "new", "new"].map(|text| Some(text.to_owned())));
}

#[test]
fn crossing_transactions_of_all_lanes_end_and_are_serial() {
    let names = keys();
    let pairs = [(0, 1), (1, 2), (2, 0), (2, 1), (1, 0), (0, 2)];
    for first in 0..9 {
        let mut node = Node::new(&[]);
        for (tag, (one, other)) in (1..).zip(pairs) {
            let (one, other) = (names[one].as_str(), names[other].as_str());
            node.submit(tag as usize % 3, tag, tag, set(&[one, other], &tag.to_string()));
        }
        // One link is served before all others.
        while node.deliver(first / 3, first % 3) {}
        node.deliver_all();
        assert_eq!(node.done.len(), pairs.len());
        let mut done = std::mem::take(&mut node.done);
        done.sort_by_key(|(.., at)| *at);
        let mut model = [None, None, None];
        for (tag, outcome, at) in done {
            let (one, other) = pairs[tag.0 as usize - 1];
            let Outcome::Done(held) = outcome else { panic!("{outcome:?}") };
            let seen: Vec<_> = held.into_iter().map(|(text, _)| text).collect();
            assert_eq!(seen, [model[one].clone(), model[other].clone()], "{tag} at {at:?}");
            model[one] = Some(tag.0.to_string());
            model[other] = Some(tag.0.to_string());
        }
    }
}

#[test]
fn transactions_of_one_origin_with_a_common_key_stay_in_order() {
    let names = keys();
    let all = [names[0].as_str(), &names[1], &names[2]];
    let mut node = Node::new(&[]);
    node.submit(0, 1, 7, set(&all, "first"));
    node.submit(0, 2, 7, set(&all[2..], "second"));
    // The way to lane 2 alone would be shorter.
    assert!(!node.deliver(0, 2));
    node.deliver_all();
    assert_eq!(node.texts(&all[2..]), [Some("second".to_owned())]);
}

#[test]
fn a_node_that_is_not_alone_refuses() {
    let mut node = Node::new(&[]);
    node.install(&view(2));
    node.submit(0, 1, 1, read(&["a"]));
    assert_eq!(node.answer(1), Outcome::Refused(Refusal::NotServing));
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
    node.sweep(Duration::from_secs(11));
    assert_eq!(node.lanes.iter().map(|lane| lane.table().len()).sum::<usize>(), 0);
    assert_ne!(before, absent(&mut node));
}

#[test]
fn values_past_their_time_are_absent_and_go() {
    let mut node = Node::new(&[]);
    let soon = UnixMillis(node.now().wall().0 + 50);
    node.run(Txn { expire_at: Some(soon), ..set(&["a"], "short") });
    assert_eq!(node.texts(&["a"]), [Some("short".to_owned())]);
    node.time += Duration::from_millis(60).as_nanos() as u64;
    assert_eq!(node.texts(&["a"]), [None]);
    node.sweep(Duration::from_millis(200));
    let mut expired = 0;
    for lane in &node.lanes {
        let counters = lane.counters();
        expired += counters.iter().find(|(name, _)| *name == "expired").expect("it is there").1;
    }
    assert_eq!(expired, 1);
}

#[test]
fn a_value_lies_in_its_record_as_it_was_set() {
    let mut node = Node::new(&[]);
    node.run(set(&["a"], "text"));
    let lane = usize::from(lane_of_key(b"a", LANES).0);
    let table = node.lanes[lane].table();
    let mut text = Vec::new();
    let found = table.store.read(b"a", hash_key(b"a"), &table.store.pin(), &mut text);
    let content: Option<Content<'_>> = found.as_ref().and_then(|found| found.content(&text));
    assert_eq!(content.map(|content| content.bytes), Some(&b"text"[..]));
}
