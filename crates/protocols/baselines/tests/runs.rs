//! Random runs of each system, with messages of different links in any order: what committed is
//! equivalent to the same transactions one after the other in order of their timestamps, and the
//! replicas hold the same in the end.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use quorate_baselines::{Baseline, Common, Config, KuaFu, MeerkatPb, System, Tapir};
use quorate_engine::Engine;
use quorate_machine::{
    Change, Command, Effects, Event, Machine, Outcome, Record, Refusal, Rng, Table, ValueKind,
    Verdict, Workspace,
};
use quorate_meerkat::{Message, Meta, Request};
use quorate_storage::{SharedTable, Store};
use quorate_types::{
    Duration, Epoch, Incarnation, Instant, LaneId, Member, MemberNumber, NodeId, Now, Role, Tag,
    Timestamp, UnixMillis, UnixNanos, View,
};
use quorate_wire::Writer;

const LANES: u16 = 2;
const KEYS: u64 = 6;
const CLIENTS: u64 = 8;

/// Reads some keys, writes its number to the first ones of them, and to a key of its own: the
/// version of that one is its timestamp.
#[derive(Clone, Debug)]
struct Txn {
    number: u64,
    keys: Vec<u64>,
    writes: usize,
}

fn name(key: u64) -> Vec<u8> {
    format!("key {key}").into_bytes()
}

fn mark(number: u64) -> Vec<u8> {
    format!("mark {number}").into_bytes()
}

fn set(number: u64) -> Change<'static> {
    let bytes = Cow::Owned(number.to_le_bytes().to_vec());
    Change::Set { bytes, kind: ValueKind::String, expire_at: None }
}

impl Command for Txn {
    type Owned = Self;
    /// What the keys held.
    type Reply = Vec<Option<u64>>;

    fn run<W: Workspace>(&self, _now: UnixMillis, workspace: &mut W) -> Verdict<Self::Reply> {
        let mut held = Vec::new();
        for &key in &self.keys {
            let content = workspace.read(&name(key)).content;
            held.push(
                content
                    .map(|content| u64::from_le_bytes(content.bytes.try_into().expect("a number"))),
            );
        }
        for &key in &self.keys[..self.writes] {
            workspace.write(&name(key), set(self.number));
        }
        workspace.write(&mark(self.number), set(self.number));
        Verdict::Commit(held)
    }

    fn updates(&self) -> bool {
        true
    }

    fn into_owned(self) -> Self {
        self
    }
}

type Rival<S> = Baseline<S, SharedTable<Meta>, Txn>;

/// What a step of a machine asks for.
#[derive(Default)]
struct Out {
    sent: Vec<(NodeId, Vec<u8>)>,
    done: Vec<(Tag, Outcome<Vec<Option<u64>>>)>,
}

impl<S: System> Effects<Rival<S>> for Out {
    fn send(&mut self, to: NodeId, message: &Message<'_>) {
        let mut bytes = Vec::new();
        message.encode(&mut Writer(&mut bytes));
        self.sent.push((to, bytes));
    }

    fn complete(&mut self, tag: Tag, outcome: Outcome<Vec<Option<u64>>>) {
        self.done.push((tag, outcome));
    }
}

struct World<S: System> {
    rng: Rng,
    time: u64,
    stores: Vec<Arc<Store<Meta>>>,
    commons: Vec<Arc<Common>>,
    /// By node and lane.
    machines: Vec<Rival<S>>,
    /// By sender, receiver and lane; each in order.
    links: BTreeMap<(usize, usize, usize), VecDeque<Vec<u8>>>,
    /// Transactions that are not answered.
    open: u64,
    issued: Vec<Txn>,
    /// What each transaction read, if it committed.
    committed: BTreeMap<u64, Vec<Option<u64>>>,
    refused: Vec<u64>,
}

fn view(nodes: u16) -> View {
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
        epoch: Epoch(1),
        cluster: Incarnation(1),
        members: (1..=nodes).map(member).collect(),
        last_number: MemberNumber(u32::from(nodes)),
    }
}

impl<S: System> World<S> {
    fn new(nodes: u16, seed: u64) -> Self {
        let stores: Vec<_> = (0..nodes).map(|_| Store::<Meta>::new(LANES)).collect();
        let commons: Vec<_> = (0..nodes).map(|_| Arc::new(Common::default())).collect();
        let mut world = Self {
            rng: Rng::new(seed),
            time: 0,
            machines: Vec::new(),
            links: BTreeMap::new(),
            open: 0,
            issued: Vec::new(),
            committed: BTreeMap::new(),
            refused: Vec::new(),
            stores,
            commons,
        };
        for (node, number) in (0..usize::from(nodes)).zip(1..) {
            for lane in 0..LANES {
                let config = Config {
                    node: NodeId(number),
                    lane: LaneId(lane),
                    op_timeout: Duration::from_secs(1000),
                    seed: world.rng.next_u64(),
                };
                let table = world.stores[node].shared_table(lane);
                let common = Arc::clone(&world.commons[node]);
                world.machines.push(Baseline::new(config, table, common));
            }
        }
        let view = view(nodes);
        for index in 0..world.machines.len() {
            world.step(index, Event::View(&view));
        }
        world
    }

    fn now(&self, node: usize) -> Now {
        // Clocks that differ: nothing rests on them but how often transactions lose.
        let skew = node as u64 * 30_000;
        Now { monotonic: Instant(self.time), unix: UnixNanos(1 << 60 | (self.time + skew)) }
    }

    fn step(&mut self, index: usize, event: Event<'_, Rival<S>>) {
        let (node, lane) = (index / usize::from(LANES), index % usize::from(LANES));
        let now = self.now(node);
        let mut out = Out::default();
        self.machines[index].step(now, event, &mut out);
        self.machines[index].check_invariants();
        for (to, bytes) in out.sent {
            let link = (node, usize::from(to.0) - 1, lane);
            self.links.entry(link).or_default().push_back(bytes);
        }
        for (tag, outcome) in out.done {
            self.open -= 1;
            match outcome {
                Outcome::Done(held) => {
                    assert!(self.committed.insert(tag.0, held).is_none(), "answered twice");
                }
                Outcome::Refused(Refusal::Conflict) => self.refused.push(tag.0),
                other => panic!("{other:?} without a fault"),
            }
        }
    }

    /// Some client begins a transaction, always at the same machine.
    fn begin(&mut self) {
        let client = self.rng.below(CLIENTS);
        let mut keys: Vec<u64> = (0..KEYS).collect();
        for at in (1..keys.len()).rev() {
            keys.swap(at, self.rng.below(at as u64 + 1) as usize);
        }
        keys.truncate(1 + self.rng.below(3) as usize);
        let writes = self.rng.below(keys.len() as u64 + 1) as usize;
        let number = self.issued.len() as u64;
        let txn = Txn { number, keys, writes };
        self.issued.push(txn.clone());
        self.open += 1;
        let index = client as usize % self.machines.len();
        let request = Request { origin: client, command: txn };
        self.step(index, Event::Request { tag: Tag(number), request });
    }

    fn deliver(&mut self) -> bool {
        let busy: Vec<_> =
            self.links.iter().filter(|(_, link)| !link.is_empty()).map(|(at, _)| *at).collect();
        if busy.is_empty() {
            return false;
        }
        let at = busy[self.rng.below(busy.len() as u64) as usize];
        let bytes = self.links.get_mut(&at).and_then(VecDeque::pop_front).expect("not empty");
        let (from, to, lane) = at;
        let body = Message::decode(&bytes).expect("just encoded");
        let from = NodeId(from as u16 + 1);
        let event = Event::Message { from, epoch: Epoch(1), body };
        self.step(to * usize::from(LANES) + lane, event);
        true
    }

    fn tick(&mut self) {
        for index in 0..self.machines.len() {
            if self.machines[index].next_deadline() <= Instant(self.time) {
                self.step(index, Event::Tick);
            }
        }
    }

    fn run(&mut self, transactions: usize) {
        while self.issued.len() < transactions {
            self.time += self.rng.below(10_000);
            self.tick();
            if self.open < CLIENTS && self.rng.chance(1, 4) {
                self.begin();
            } else {
                self.deliver();
            }
        }
        while self.open > 0 || self.deliver() {
            self.time += 10_000;
            self.tick();
            self.deliver();
        }
    }

    /// Every key's value and version at a node.
    fn contents(&self, node: usize) -> BTreeMap<Vec<u8>, (u64, Timestamp)> {
        let mut contents = BTreeMap::new();
        for lane in 0..LANES {
            let mut table = self.stores[node].shared_table(lane);
            let mut keys: Vec<Vec<u8>> = Vec::new();
            assert_eq!(table.scan_keys(0, usize::MAX >> 8, &mut |key| keys.push(key.into())), 0);
            for key in keys {
                let record = table.lock_existing(&key).expect("nothing is removed");
                assert!(record.locked_state().is_empty(), "a transaction is still registered");
                if let Some(content) = record.content() {
                    let number = u64::from_le_bytes(content.bytes.try_into().expect("a number"));
                    contents.insert(key.clone(), (number, record.meta().wts));
                }
            }
        }
        contents
    }

    /// Runs what committed again, one after the other in order of timestamps.
    fn judge(&self) {
        let contents = self.contents(0);
        for node in 1..self.stores.len() {
            assert_eq!(self.contents(node), contents, "node {node} differs from the first");
        }
        assert!(self.commons.iter().all(|common| common.is_empty()), "something is left over");
        let mut order: Vec<(Timestamp, u64)> = Vec::new();
        for &number in self.committed.keys() {
            let (_, version) = contents.get(&mark(number)).expect("what committed left its mark");
            order.push((*version, number));
        }
        for &number in &self.refused {
            assert!(!contents.contains_key(&mark(number)), "{number} was refused and is there");
        }
        order.sort_unstable();
        let mut state: BTreeMap<u64, u64> = BTreeMap::new();
        for (version, number) in order {
            let txn = &self.issued[number as usize];
            let held: Vec<Option<u64>> =
                txn.keys.iter().map(|key| state.get(key).copied()).collect();
            assert_eq!(self.committed[&number], held, "{txn:?} at {version:?} read another past");
            state.extend(txn.keys[..txn.writes].iter().map(|key| (*key, number)));
        }
        for (key, number) in state {
            assert_eq!(contents[&name(key)].0, number, "the last write of key {key}");
        }
    }
}

/// Returns how much was counted of each name.
fn runs<S: System>() -> BTreeMap<&'static str, u64> {
    let mut counted = BTreeMap::new();
    for seed in 0..40 {
        let nodes = if seed % 4 == 3 { 5 } else { 3 };
        let mut world = World::<S>::new(nodes, seed);
        world.run(300);
        assert!(world.committed.len() > 200, "{} of 300 committed", world.committed.len());
        world.judge();
        for (name, count) in world.machines.iter().flat_map(Engine::counters) {
            *counted.entry(name).or_default() += count;
        }
    }
    counted
}

#[test]
fn kuafu_is_serializable() {
    let counted = runs::<KuaFu>();
    assert!(counted["aborts_stale_read"] > 0 && counted["retries"] > 0, "{counted:?}");
}

#[test]
fn tapir_is_serializable() {
    let counted = runs::<Tapir>();
    for name in ["commits_fast", "commits_slow", "aborts_read_later", "retries"] {
        assert!(counted[name] > 0, "{counted:?}");
    }
}

#[test]
fn meerkat_pb_is_serializable() {
    let counted = runs::<MeerkatPb>();
    assert!(counted["aborts_stale_read"] > 0 && counted["aborts_read_later"] > 0, "{counted:?}");
}

#[test]
fn one_node_alone_commits() {
    fn run<S: System>() {
        let mut world = World::<S>::new(1, 7);
        world.run(100);
        world.judge();
        assert!(world.committed.len() > 50);
    }
    run::<KuaFu>();
    run::<Tapir>();
    run::<MeerkatPb>();
}

#[test]
#[should_panic(expected = "without recovery")]
fn the_loss_of_a_node_stops_it_with_a_sentence() {
    let mut world = World::<MeerkatPb>::new(3, 1);
    let mut view = view(3);
    view.epoch = Epoch(2);
    view.members[2].role = Role::Down;
    world.step(0, Event::View(&view));
}
