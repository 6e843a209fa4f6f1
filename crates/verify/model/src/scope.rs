//! Scopes: a cluster, the requests of its clients, and the faults that may happen.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quorate_types::{NodeId, NodeSet, Role};
use stateright::{Model, Property};

use crate::engine::Engine;
use crate::history::{Call, Store, is_explained};
use crate::world::World;

/// A call of a client. It waits for another call only if `after` says so.
#[derive(Clone, Copy, Debug)]
pub struct Made {
    /// The node that it is made at.
    pub node: NodeId,
    /// The call that must be answered before this one is made.
    pub after: Option<usize>,
}

/// How often each fault may happen.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Budget {
    /// Messages that are lost. A message that merely never arrives needs no loss: a state in which
    /// it is still under way at the end is explored anyway. Losses matter to scopes that must come
    /// to rest.
    pub loss: u8,
    /// Messages that arrive once more.
    pub duplicates: u8,
    /// Processes that end.
    pub crashes: u8,
    /// Processes that end and begin again without memory. Where there are views, [`Change::Rejoin`]
    /// does that.
    pub restarts: u8,
    /// Entries at the end of each log that may be lost with a change: they were not durable, or have rotted.
    pub entries: u8,
    /// Timers of each node that run out.
    pub timers: Vec<u8>,
}

/// The difference that a new view makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// Nothing but the epoch.
    Same,
    /// Members whose process is gone are down.
    WithoutCrashed,
    /// The same, once as many processes have ended as may.
    AfterCrashes,
    /// A member that runs is down: a false suspicion.
    Without(NodeId),
    /// A member that is down comes back as a shadow, under a new incarnation, from its log if there are
    /// logs.
    Rejoin(NodeId),
    /// The power goes everywhere, and all live members come back from their logs, each in its former role.
    /// The logs of these may have lost their ends. Where more than one has, calls that had been answered may
    /// have been lost.
    Revive(NodeSet),
    /// The same for a process that was taken out while it ran: it keeps its data, and compares.
    Return(NodeId),
    /// A shadow that has caught up is active.
    Promote(NodeId),
    /// A member is removed.
    Remove(NodeId),
    /// A member is about to leave: others copy what it has.
    Depart(NodeId),
    /// What was removed is a member again, as a shadow, with a new process.
    Add(NodeId),
    /// Data is placed over the members that should have it: all have copied what falls to them.
    Place,
}

/// A step of the way to the state that the exploration begins with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Prior {
    /// A node's first timer runs out.
    Tick(NodeId),
    /// The first message that is under way from the first node to the second arrives.
    Arrives(NodeId, NodeId),
    /// Every message under way is lost.
    AllLost,
    /// A process ends, and another begins in its place.
    Restart(NodeId),
    /// A process ends.
    Crash(NodeId),
    /// The view changes, every node hears of it, and all messages that follow arrive.
    View(Change),
    /// A client makes a call.
    Call(usize),
    /// Time passes, and all messages and timers that are due arrive.
    Passes(Duration),
}

/// The cluster to explore.
#[derive(Clone)]
pub struct Scope<E: Engine> {
    /// For tables and the command line.
    pub name: &'static str,
    /// The protocol.
    pub engine: E,
    /// Nodes, from 1.
    pub nodes: u16,
    /// Whether the scope has views; otherwise the machines handle views themselves.
    pub has_views: bool,
    /// Whether the nodes have disks, on which they keep logs.
    pub has_logs: bool,
    /// How long the cluster runs before the prelude.
    pub settle: Duration,
    /// Steps after that, before the exploration begins.
    pub prelude: Vec<Prior>,
    /// How far each node's wall clock is ahead, in nanoseconds.
    pub ahead: Vec<u64>,
    /// By how many millionths each node's clocks are fast.
    pub fast: Vec<u64>,
    /// The calls of clients; the engine knows the request of each.
    pub calls: Vec<Made>,
    /// The number of calls that end before the exploration begins.
    pub first_calls: usize,
    /// Whether answers have to respect real time.
    pub real_time: bool,
    /// The faults that may happen.
    pub budget: Budget,
    /// The nodes that may crash, or restart.
    pub may_crash: NodeSet,
    /// Nodes that stop: no message reaches them, and they do nothing, but keep their beliefs.
    pub paused: NodeSet,
    /// Pairs of nodes between which nothing arrives.
    pub cut: Vec<(NodeId, NodeId)>,
    /// Changes of view, in order.
    pub changes: Vec<Change>,
    /// The most copies of one message under way; further copies are lost. Where machines ask again
    /// for each message that arrives out of order, nothing else bounds the copies.
    pub copies: u8,
    /// Whether messages from one node to another arrive in the order in which they were sent, as on
    /// one connection. Otherwise in any.
    pub in_order: bool,
    /// The most steps from the beginning, if they are bounded.
    pub depth_max: Option<usize>,
    /// Timers that are further away are left alone.
    pub horizon: Duration,
    /// Whether every calm state has to come to rest when faults end.
    pub rests: bool,
    /// Rare branches that the exploration has to reach; a scope that misses one shows less than it
    /// says.
    pub reaches: &'static [&'static str],
    pub(crate) probes: Arc<Mutex<BTreeSet<&'static str>>>,
}

/// Most characters of a message in a trace.
const WORDS_MAX: usize = 160;

const MILLION: u128 = 1_000_000;

/// So many entries are lost at the end of the log of each node, from node 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lost([u8; NODES_WITH_LOGS_MAX]);

/// Nodes of a scope with logs.
const NODES_WITH_LOGS_MAX: usize = 4;

impl Lost {
    /// So many entries of this node's log.
    pub(crate) fn of(&self, node: NodeId) -> usize {
        self.0.get(usize::from(node.0) - 1).copied().unwrap_or(0).into()
    }

    /// The same, and this node has lost so many.
    pub(crate) fn with(mut self, node: NodeId, entries: u8) -> Self {
        self.0[usize::from(node.0) - 1] = entries;
        self
    }

    /// Those that have lost something.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = (NodeId, u8)> {
        let nodes = (1..).map(NodeId).zip(self.0);
        nodes.filter(|(_, entries)| *entries > 0)
    }
}

/// Something that happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// A client makes a call.
    Call(usize),
    /// The message of this place in the pool arrives.
    Deliver(usize),
    /// It arrives, and will arrive once more.
    Repeat(usize),
    /// It is lost.
    Lose(usize),
    /// A node's first timer runs out.
    Tick(NodeId),
    /// A process ends.
    Crash(NodeId),
    /// A process ends, and another begins in its place.
    Restart(NodeId),
    /// The next change of view is decided, and ends of logs are lost.
    Change(Lost),
    /// A node hears of the latest view.
    Install(NodeId),
}

impl<E: Engine> Scope<E> {
    /// A scope without faults.
    pub fn new(name: &'static str, engine: E, nodes: u16) -> Self {
        Self {
            name,
            engine,
            nodes,
            has_views: true,
            has_logs: false,
            settle: Duration::from_millis(60),
            prelude: Vec::new(),
            ahead: Vec::new(),
            fast: Vec::new(),
            calls: Vec::new(),
            first_calls: 0,
            real_time: true,
            budget: Budget { timers: vec![0; usize::from(nodes)], ..Budget::default() },
            may_crash: NodeSet::EMPTY,
            paused: NodeSet::EMPTY,
            cut: Vec::new(),
            changes: Vec::new(),
            copies: u8::MAX,
            in_order: false,
            depth_max: None,
            horizon: Duration::from_millis(500),
            rests: false,
            reaches: &[],
            probes: Arc::default(),
        }
    }

    fn fast(&self, node: NodeId) -> u128 {
        self.fast.get(usize::from(node.0) - 1).copied().unwrap_or(0).into()
    }

    /// The same scope with no node paused and no pair of nodes cut.
    pub(crate) fn whole(&self) -> Self {
        Self { paused: NodeSet::EMPTY, cut: Vec::new(), ..self.clone() }
    }

    /// Whether messages between two nodes never arrive.
    pub(crate) fn is_cut(&self, one: NodeId, other: NodeId) -> bool {
        self.cut.contains(&(one, other)) || self.cut.contains(&(other, one))
    }

    /// The time on a node's clock at a moment.
    pub(crate) fn clock(&self, node: NodeId, moment: u64) -> u64 {
        (u128::from(moment) * (MILLION + self.fast(node)) / MILLION) as u64
    }

    /// The first moment at which a node's clock shows this time.
    pub(crate) fn moment(&self, node: NodeId, clock: u64) -> u64 {
        (u128::from(clock) * MILLION).div_ceil(MILLION + self.fast(node)) as u64
    }

    pub(crate) fn reached(&self, probes: &[&'static str]) {
        if !probes.is_empty() {
            self.probes.lock().expect("nobody panics with it").extend(probes);
        }
    }

    /// Whether the answers that clients heard, and these further calls, have an order; `extra` are
    /// reads of everything with the values they would see.
    pub(crate) fn explain(&self, world: &World<E>, extra: &[Call]) -> Result<(), String> {
        let made = world.calls.len();
        let calls: Vec<Call> = world.calls.iter().chain(extra).cloned().collect();
        let run = |call: usize, store: &mut Store| {
            if call < made { self.engine.run(call, store) } else { contents(store) }
        };
        if is_explained(&calls, &Store::new(), self.real_time, &run) {
            return Ok(());
        }
        let heard = world.calls.iter().enumerate().filter(|(_, call)| call.started);
        let mut words: Vec<String> = heard
            .map(|(at, call)| {
                let asked = self.engine.describe_call(at);
                format!("\"{asked}\" heard {:?} after {:b}", call.answer, call.before)
            })
            .collect();
        words.extend(extra.iter().map(|call| format!("then a read would see {:?}", call.answer)));
        Err(format!("no order explains the answers: {}", words.join("; ")))
    }

    /// An action in words, in the state in which it happens.
    pub fn words(&self, world: &World<E>, action: Action) -> String {
        let packet = |at: usize| {
            let packet = &world.pool[at].0;
            let (from, to, epoch) = (packet.from, packet.to, packet.epoch);
            let full = E::describe(&E::decode(&packet.bytes));
            let words: String = full.chars().take(WORDS_MAX).collect();
            format!("{from}->{to} {epoch} {words}")
        };
        match action {
            Action::Call(call) => {
                let node = self.calls[call].node;
                format!("{node}: a client asks for \"{}\"", self.engine.describe_call(call))
            }
            Action::Deliver(at) => packet(at),
            Action::Repeat(at) => format!("{} (and will arrive again)", packet(at)),
            Action::Lose(at) => format!("{} (is lost)", packet(at)),
            Action::Tick(node) => {
                let at = world.deadline(self, node).unwrap_or(0).max(world.time);
                format!("{node}: timer at {:?}", Duration::from_nanos(at))
            }
            Action::Crash(node) => format!("{node}: crashes"),
            Action::Restart(node) => format!("{node}: restarts"),
            Action::Change(lost) => {
                let mut next = world.clone();
                let change = self.changes[usize::from(world.changes)];
                next.change(self, change, lost);
                let members = next
                    .view
                    .members
                    .iter()
                    .map(|member| format!("{} {:?}", member.node, member.role).to_lowercase());
                let members: Vec<String> = members.collect();
                let power =
                    if matches!(change, Change::Revive(_)) { "all power goes; " } else { "" };
                let losers = lost.nodes().map(|(node, entries)| {
                    format!("{node} has lost {entries} entries of its log; ")
                });
                let lost: String = losers.collect();
                format!("{power}{lost}view {} is decided: {}", next.view.epoch, members.join(", "))
            }
            Action::Install(node) => format!("{node}: hears of view {}", world.view.epoch),
        }
    }
}

/// The property of every state.
pub(crate) const HOLDS: &str = "the specification holds";
/// The property of every calm state of a scope that asks for it.
pub(crate) const RESTS: &str = "it comes to rest";

/// The content of a sequential store, as one text.
pub(crate) fn contents(store: &Store) -> String {
    let pairs: Vec<String> = store.iter().map(|(key, value)| format!("{key}={value}")).collect();
    pairs.join(" ")
}

impl<E: Engine> Model for Scope<E> {
    type State = World<E>;
    type Action = Action;

    fn init_states(&self) -> Vec<World<E>> {
        vec![World::first(self)]
    }

    fn actions(&self, world: &World<E>, actions: &mut Vec<Action>) {
        if world.broken.is_some() {
            return;
        }
        for (at, (call, made)) in world.calls.iter().zip(&self.calls).enumerate() {
            let turn = made.after.is_none_or(|other| world.calls[other].answer.is_some());
            if !call.started && turn && world.host(made.node).up {
                actions.push(Action::Call(at));
            }
        }
        for (at, (packet, _)) in world.pool.iter().enumerate() {
            // The receiver would drop a message of a later epoch, which equals its loss.
            let turn = !self.in_order || world.is_first(at);
            if turn && packet.epoch <= E::epoch_of(&world.host(packet.to).machine) {
                actions.push(Action::Deliver(at));
                if world.left.duplicates > 0 {
                    actions.push(Action::Repeat(at));
                }
            }
            if world.left.loss > 0 {
                actions.push(Action::Lose(at));
            }
        }
        for (node, machine) in world.up().filter(|(node, _)| !world.is_deaf(self, *node)) {
            let far = world.time.saturating_add(self.horizon.as_nanos() as u64);
            let near = world.deadline(self, node).is_some_and(|at| at <= far);
            if near && world.left.timers[usize::from(node.0) - 1] > 0 {
                actions.push(Action::Tick(node));
            }
            if world.left.crashes > 0 && self.may_crash.contains(node) {
                actions.push(Action::Crash(node));
            }
            if world.left.restarts > 0 && self.may_crash.contains(node) {
                actions.push(Action::Restart(node));
            }
            if self.has_views && E::epoch_of(machine) < world.view.epoch {
                actions.push(Action::Install(node));
            }
        }
        let next = self.changes.get(usize::from(world.changes));
        if let Some(change) = next.filter(|change| world.may_change(**change)) {
            actions.extend(world.losses(*change).into_iter().map(Action::Change));
        }
    }

    fn next_state(&self, world: &World<E>, action: Action) -> Option<World<E>> {
        let mut next = world.clone();
        match action {
            Action::Call(call) => next.call(self, call),
            Action::Deliver(at) => next.deliver(self, at, true),
            Action::Repeat(at) => {
                next.left.duplicates -= 1;
                next.deliver(self, at, false);
            }
            Action::Lose(at) => {
                next.left.loss -= 1;
                next.take(at);
            }
            Action::Tick(node) => {
                next.left.timers[usize::from(node.0) - 1] -= 1;
                next.tick(self, node);
            }
            Action::Crash(node) => {
                next.left.crashes -= 1;
                next.crash(node);
            }
            Action::Restart(node) => {
                next.left.restarts -= 1;
                next.restart(self, node, 0);
            }
            Action::Change(lost) => {
                next.change(self, self.changes[usize::from(world.changes)], lost);
                next.changes += 1;
            }
            Action::Install(node) => next.install(self, node),
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(HOLDS, |_, world: &World<E>| world.broken.is_none()),
            Property::always(RESTS, |scope: &Self, world: &World<E>| {
                world.broken.is_some()
                    || !scope.rests
                    || !world.is_calm(scope)
                    || world.rest(scope).is_ok()
            }),
        ]
    }
}

/// The active members of a view, as far as their processes run.
pub(crate) fn active<E: Engine>(world: &World<E>) -> impl Iterator<Item = (NodeId, &E::Machine)> {
    let role = |node| world.view.member(node).map(|member| member.role);
    world.up().filter(move |(node, _)| role(*node) == Some(Role::Active))
}
