//! Seeded random runs: loss, duplication, reordering, clocks that differ, crashes, false suspicions,
//! views that reach nodes at different times, and rejoins; then healing, after which every transaction
//! must have ended, and the group of each key agrees on its owner and value.
//!
//! `quorate-check` judges what the clients saw as strictly serializable.

mod calls;
mod checks;
mod deaths;
mod extras;
mod power;
mod relief;
mod remote;
mod watches;

use std::collections::BTreeMap;

use quorate_check::Seeds;
use quorate_harness::{Disorder, Logs};
use quorate_machine::{Command as _, Machine as _, Outcome, Rng};
use quorate_types::{Duration, Incarnation, Instant, NodeId, Role, placement};

use crate::placement::Placer;
use crate::sessions::{CallName, Sessions};
use crate::support::{Cluster, Replicas};
use crate::txn::{Reply, Step, Txn};

/// What a run does.
#[derive(Clone, Copy)]
struct Plan {
    nodes: u16,
    /// Nodes that are no members at first.
    spares: u16,
    replicas: usize,
    lanes: u16,
    keys: u64,
    steps: u64,
    /// Of 1000 deliveries, how many messages are lost.
    lost: u64,
    /// Of 1000 deliveries, how many messages come again later.
    repeated: u64,
    /// Of 1000 steps, how many do something to the view or to a process.
    trouble: u64,
    /// Of 1000 steps, how many add or remove a member, or take note that data has arrived.
    moves: u64,
    /// Of 1000 steps, in how many all members that have some group's data die for good.
    deaths: u64,
    /// How far apart wall clocks are, in microseconds.
    skew: u64,
    /// Of 100 transactions, how many are made where the keys are used most at present.
    locality: u64,
    /// Of 100 steps, how many send a transaction.
    sent: u64,
    /// How many origins a node's transactions have.
    origins: u64,
    /// Whether no transaction is ever refused for having waited too long: then nothing hides two that
    /// wait for each other.
    patient: bool,
    /// How old a deleted key gets before it is forgotten, in milliseconds.
    collect_ms: u64,
    /// How many deletes there are more than one in nine steps of transactions.
    deletes: u64,
    /// Of 100 transactions that write, how many are calls of sessions, which are tried again and again.
    calls: u64,
    /// Of 100 transactions, how many look at a key as `WATCH` does. Another one of the same key follows.
    watches: u64,
    /// Of 1000 steps, how many pin a key to a node, or end that. With any, transactions run where they are
    /// placed.
    pins: u64,
    /// Whether values are lists, which each node keeps large from another length on.
    lists: bool,
    /// After how many reads that others answer a node asks for a copy.
    extra_after: u32,
    /// Of 1000 steps, in how many a node is short of memory.
    short: u64,
    /// What promises wait for. With a log, the power of one node or of all goes now and then.
    logs: Logs,
    /// How often some log is flushed, of 400 steps.
    flushes: u64,
}

const PLAN: Plan = Plan {
    nodes: 3,
    spares: 0,
    replicas: 3,
    lanes: 1,
    keys: 3,
    steps: 300,
    lost: 50,
    repeated: 50,
    trouble: 10,
    moves: 0,
    deaths: 0,
    skew: 40_000,
    locality: 50,
    sent: 10,
    origins: 6,
    patient: false,
    collect_ms: 10_000,
    deletes: 0,
    calls: 0,
    watches: 0,
    pins: 0,
    lists: false,
    extra_after: 16,
    short: 0,
    logs: Logs::None,
    flushes: 90,
};

/// A transaction that a client sent.
struct Asked {
    origin: u64,
    txn: Txn,
    invoke: u64,
    sent_at: Instant,
    node: u16,
    /// The life of the node that it was sent to.
    incarnation: Incarnation,
    /// The call that it is a try at, and the tag of the first try.
    call: Option<(CallName, u64)>,
}

struct Run {
    plan: Plan,
    rng: Rng,
    cluster: Cluster,
    /// Logical time of the history: every event has its own.
    clock: u64,
    asked: BTreeMap<u64, Asked>,
    answered: BTreeMap<u64, (Outcome<Reply>, u64)>,
    /// When what looks at a key after a watch was answered, by that and the watch.
    looks: BTreeMap<u64, (u64, Option<Instant>)>,
    /// Watches of absent keys that have held, and such that have not.
    watched: [u64; 2],
    /// Keys of groups that died, and when.
    given_up: Vec<(u64, String)>,
    sessions: Sessions,
    disorder: Disorder,
    /// Where most transactions are made.
    favourite: u16,
    placer: Placer,
}

impl Run {
    fn new(seed: u64, plan: Plan) -> Self {
        let mut rng = Rng::new(seed);
        let base = rng.next_u64() >> 16;
        let ahead = |_| (rng.below(plan.skew.max(1)) * 1000) as i64;
        let seeds = |node| base + u64::from(node);
        let op_timeout = plan.patient.then(|| Duration::from_secs(60));
        let (replicas, lanes) = (Some(plan.replicas), Some(plan.lanes));
        let collect_every = Some(Duration::from_millis(plan.collect_ms));
        let packed_bytes_max: Option<fn(u16) -> usize> =
            if plan.lists { Some(|node| [0, 20, 60][usize::from(node % 3)]) } else { None };
        let replicas = Replicas {
            replicas,
            lanes,
            packed_bytes_max,
            op_timeout,
            collect_every,
            extra_after: Some(plan.extra_after),
            ..Replicas::default()
        };
        let count = (plan.nodes, plan.spares);
        let cluster = Cluster::logging(replicas, plan.logs, count, ahead, seeds);
        Self {
            plan,
            rng,
            cluster,
            clock: 0,
            asked: BTreeMap::new(),
            answered: BTreeMap::new(),
            looks: BTreeMap::new(),
            watched: [0, 0],
            given_up: Vec::new(),
            sessions: Sessions::default(),
            disorder: Disorder::new(plan.nodes + plan.spares, plan.lost, plan.repeated),
            favourite: 1,
            placer: Placer::default(),
        }
    }

    fn node(&mut self) -> u16 {
        self.disorder.node(&mut self.rng)
    }

    fn keys(&self) -> Vec<String> {
        (0..self.plan.keys).map(|key| format!("k{key}")).collect()
    }

    /// A transaction over some keys, whose values name it.
    fn txn(&mut self) -> Txn {
        let name = self.asked.len();
        let first = self.rng.below(self.plan.keys);
        let count = 1 + self.rng.below(self.plan.keys.min(3));
        let reads_only = self.rng.chance(1, 3);
        let steps = (0..count).map(|at| {
            let key = format!("k{}", (first + at) % self.plan.keys);
            match self.rng.below(9 + self.plan.deletes) {
                _ if reads_only => Step::Read(key),
                0..=2 => Step::Read(key),
                3..=5 if self.plan.lists => Step::Push(key, format!(",{name}")),
                3..=5 => Step::Append(key, format!(",{name}")),
                6 if self.plan.lists => Step::Put(key, format!(",{name}")),
                7 if self.plan.lists => Step::Push(key, format!(",{name}")),
                6..=7 => Step::Write(key, format!(",{name}")),
                _ => Step::Del(key),
            }
        });
        Txn(steps.collect())
    }

    fn note_answers(&mut self) {
        for (tag, outcome) in std::mem::take(&mut self.cluster.fresh_outcomes) {
            self.clock += 1;
            if let Some((_, answered)) = self.looks.get_mut(&tag) {
                *answered = Some(self.cluster.now.monotonic);
            }
            let is_watch = matches!(self.asked[&tag].txn.0[..], [Step::Watch(_)]);
            let is_done = matches!(outcome, Outcome::Done(_));
            if let Some((name, _)) = self.asked[&tag].call {
                self.sessions.note(name, &outcome);
            }
            self.answered.insert(tag, (outcome, self.clock));
            if is_watch && is_done {
                self.look_again(tag);
            }
        }
        self.cluster.fresh_packets.clear();
    }

    /// Follows a watch by what `EXEC` would look at, at any node, now or after a while.
    fn look_again(&mut self, watch: u64) {
        let name = self.asked.len();
        let key = self.asked[&watch].txn.0[0].key().to_owned();
        let node = self.node();
        if !self.cluster.hosts[&node].up {
            return;
        }
        let other = format!("k{}", self.rng.below(self.plan.keys));
        let steps = match self.rng.below(3) {
            0 => vec![Step::Read(key)],
            _ => vec![Step::Read(key), Step::Write(other, format!(",{name}"))],
        };
        let origin = u64::from(node) * 100 + self.rng.below(self.plan.origins);
        let tag = self.ask(node, origin, Txn(steps));
        self.looks.insert(tag, (watch, None));
    }

    fn submit(&mut self) {
        if self.rng.chance(1, 30) {
            self.favourite = self.node();
        }
        let is_local = self.rng.chance(self.plan.locality, 100);
        let node = if is_local { self.favourite } else { self.node() };
        if self.cluster.hosts[&node].up {
            let watches = self.plan.watches > 0 && self.rng.chance(self.plan.watches, 100);
            let txn = match watches {
                true => Txn(vec![Step::Watch(format!("k{}", self.rng.below(self.plan.keys)))]),
                false => self.txn(),
            };
            if txn.updates() && self.rng.chance(self.plan.calls, 100) {
                let first = self.cluster.next_tag();
                let name = self.sessions.begin(&self.cluster, &mut self.rng, &txn, first);
                return self.try_call(node, name, first, txn);
            }
            // Few origins, so that some stand in line.
            let origin = u64::from(node) * 100 + self.rng.below(self.plan.origins);
            self.ask(node, origin, txn);
        }
    }

    fn ask(&mut self, node: u16, origin: u64, txn: Txn) -> u64 {
        self.clock += 1;
        let invoke = self.clock;
        // A client's connection is on one lane.
        let lane = (origin % u64::from(self.plan.lanes)) as u16;
        let client = (node, lane, origin);
        let (node, origin) = match self.plan.pins {
            0 => (node, origin),
            _ => {
                let is_answered = |tag| self.answered.contains_key(&tag);
                self.placer.place(&mut self.cluster, client, &txn, is_answered)
            }
        };
        let incarnation = self.cluster.hosts[&node].incarnation;
        let tag = self.cluster.submit_on(node, lane, origin, txn.clone());
        if node != client.0 {
            self.placer.sent_away(&mut self.cluster, client.2, tag);
        }
        let sent_at = self.cluster.now.monotonic;
        let call = None;
        self.asked.insert(tag, Asked { origin, txn, invoke, sent_at, node, incarnation, call });
        tag
    }

    fn decide(&mut self, node: u16, role: Role) {
        self.disorder.decide(&mut self.cluster, node, role);
    }

    /// The role of a node, if it is a member.
    fn role(&self, node: u16) -> Option<Role> {
        self.cluster.view.member(NodeId(node)).map(|member| member.role)
    }

    fn nodes(&self) -> std::ops::RangeInclusive<u16> {
        1..=self.plan.nodes + self.plan.spares
    }

    /// The members of a shard's group.
    fn group_of(&self, shard: usize) -> impl Iterator<Item = u16> {
        let group = placement::group(shard, self.cluster.view.placed, self.plan.replicas);
        group.into_iter().map(|node| node.0)
    }

    /// Whether an active replica of every key that runs is left without this node, if there is one, and of
    /// every shard if data moves.
    fn is_spare(&self, node: u16) -> bool {
        let is_active = |other: &u16| self.role(*other) == Some(Role::Active);
        let is_left = |shard| {
            let mut active = self.group_of(shard).filter(is_active).peekable();
            let is_given_up = active.peek().is_none();
            is_given_up || active.any(|other| other != node && self.cluster.hosts[&other].up)
        };
        match self.plan.moves {
            0 => self.keys().iter().map(|key| placement::shard_of(key.as_bytes())).all(is_left),
            _ => (0..placement::SHARDS).all(is_left),
        }
    }

    /// Every node that runs and may serve has heard of the latest view: no lease of an earlier one is
    /// left.
    fn is_heard(&self) -> bool {
        let live = self.cluster.view.live().into_iter();
        let mut up = live.filter(|node| self.cluster.hosts[&node.0].up);
        up.all(|node| self.cluster.is_in_epoch(node.0, self.cluster.view.epoch))
    }

    /// A crash, a false suspicion, a view for its own sake, or the next step of someone's way back.
    fn trouble(&mut self) {
        let node = self.node();
        let up = self.cluster.hosts[&node].up;
        let Some(role) = self.role(node) else { return };
        match role {
            Role::Active | Role::Shadow if !up => self.decide(node, Role::Down),
            Role::Active if self.rng.chance(1, 4) => self.decide(node, Role::Active),
            // A node that is suspected and lives has lost its lease before the view is decided: it
            // answers nobody any more.
            Role::Active if self.is_spare(node) => {
                self.end_process(node);
                if self.rng.chance(1, 2) {
                    self.decide(node, Role::Down);
                }
            }
            Role::Active => {}
            Role::Down => {
                self.come_back(node);
            }
            Role::Shadow if self.cluster.is_caught_up(node) && self.is_heard() => {
                self.decide(node, Role::Active);
            }
            Role::Shadow if self.rng.chance(1, 4) => self.end_process(node),
            Role::Shadow => {}
        }
    }

    /// Whether every live member has said, in this epoch, that it has copied what falls to it.
    fn has_arrived(&self) -> bool {
        let live = self.cluster.view.live().into_iter().map(|node| node.0);
        let mut live =
            live.map(|node| self.cluster.hosts[&node].up && self.cluster.is_caught_up(node));
        !self.cluster.view.is_placed() && self.is_heard() && live.all(|has_all| has_all)
    }

    /// A member comes or goes, or data has arrived where it should be.
    fn move_data(&mut self) {
        if self.has_arrived() && self.rng.chance(3, 4) {
            let view = self.cluster.decide_placed();
            return self.disorder.announce(&view);
        }
        let node = self.node();
        let departs = self.cluster.view.departing.contains(NodeId(node));
        match self.role(node) {
            Some(Role::Active) if self.rng.chance(1, 3) => self.depart(node, !departs),
            Some(_) if departs && !self.cluster.view.placed.contains(NodeId(node)) => {
                self.cluster.crash(node);
                self.note_given_up();
                self.disorder.remove(&mut self.cluster, node);
            }
            // It may be a while before it starts.
            None if self.rng.chance(1, 3) => self.decide(node, Role::Down),
            None => self.come_back(node),
            Some(_) if self.cluster.view.members.len() > 2 && self.is_spare(node) => {
                self.cluster.crash(node);
                self.note_given_up();
                self.disorder.remove(&mut self.cluster, node);
            }
            Some(_) => {}
        }
    }

    /// A member is about to leave, or stays after all.
    fn depart(&mut self, node: u16, departs: bool) {
        let view = &self.cluster.view;
        let stay = view.to_place().without(NodeId(node)).intersection(view.active());
        if !departs || stay.len() > 1 {
            let view = self.cluster.decide_departing(node, departs);
            self.disorder.announce(&view);
        }
    }

    fn step(&mut self) {
        if self.plan.logs != Logs::None {
            self.disks();
        }
        if self.rng.chance(self.plan.trouble, 1000) {
            self.trouble();
        }
        if self.rng.chance(self.plan.moves, 1000) {
            self.move_data();
        }
        if self.plan.deaths > 0 && self.rng.chance(self.plan.deaths, 1000) {
            self.end_group();
        }
        if self.rng.chance(self.plan.pins, 1000) {
            let node = self.node();
            self.placer.pin(&mut self.rng, self.plan.keys, node);
        }
        if self.plan.short > 0 && self.rng.chance(self.plan.short, 1000) {
            self.run_short();
        }
        if self.plan.calls > 0 && self.rng.chance(1, 15) {
            self.call_again();
        }
        if self.plan.lanes > 1 && self.rng.chance(4, 5) {
            self.cluster.deliver_any_mail(&mut self.rng);
        }
        match self.rng.below(100) {
            at if at < self.plan.sent => self.submit(),
            0..=78 => self.disorder.deliver(&mut self.rng, &mut self.cluster),
            79..=89 => {
                let span = Duration::from_micros(self.rng.below(8_000));
                self.cluster.advance(span);
            }
            90..=96 => {
                let node = self.node();
                self.cluster.tick_node(node);
                let due = self.cluster.machine(node).next_deadline();
                let now = self.cluster.now_at(node).monotonic;
                let up = self.cluster.hosts[&node].up;
                assert!(!up || due > now, "node {node} is due at once again");
            }
            _ => self.disorder.hear_news(&mut self.rng, &mut self.cluster),
        }
        self.note_answers();
    }

    fn heal(&mut self) {
        for node in self.cluster.view.departing {
            if self.rng.chance(1, 2) {
                self.depart(node.0, false);
            }
        }
        for node in self.nodes() {
            match self.role(node) {
                Some(Role::Active | Role::Shadow) if !self.cluster.hosts[&node].up => {
                    self.decide(node, Role::Down);
                }
                Some(Role::Down) => self.come_back(node),
                _ => {}
            }
        }
        while let Some(node) = self.lost_member() {
            self.come_back(node);
        }
        self.disorder.hear_all_news(&mut self.rng, &mut self.cluster);
        self.cluster.run_for(Duration::from_millis(1_000));
        // Some copy from others that have to be active first.
        let may_serve = |run: &Self, node: u16| {
            run.role(node) == Some(Role::Shadow) && run.cluster.is_caught_up(node)
        };
        while let Some(node) = self.nodes().find(|node| may_serve(self, *node)) {
            self.cluster.set_role(node, Role::Active);
            self.cluster.run_for(Duration::from_millis(200));
        }
        if self.has_arrived() {
            self.cluster.place();
            self.cluster.run_for(Duration::from_millis(1_000));
        }
        let nodes: Vec<u16> = self.cluster.hosts.keys().copied().collect();
        if nodes.iter().any(|node| self.cluster.pending(*node) > 0) {
            self.cluster.run_for(Duration::from_millis(2_500));
        }
        self.note_answers();
        if self.plan.calls > 0 {
            self.end_calls();
        }
        for node in self.cluster.view.active() {
            let steps = self.keys().into_iter().map(Step::Read);
            let all = Txn(steps.collect());
            self.ask(node.0, u64::from(node.0), all);
        }
        self.cluster.run_for(Duration::from_millis(300));
        self.note_answers();
    }
}

/// One run; panics if anything is wrong.
fn run(seed: u64, plan: Plan, probes: &mut BTreeMap<&'static str, u64>) {
    let mut run = Run::new(seed, plan);
    for _ in 0..plan.steps {
        run.step();
    }
    run.heal();
    run.check_end();
    if matches!(plan.logs, Logs::Async | Logs::Mixed) {
        // Some of what was answered is lost. They agree on what is left, and go on.
        run.check_atomicity();
    } else {
        run.check_history();
        run.check_origins();
        run.check_watches();
    }
    *probes.entry("a watch holds").or_default() += run.watched[0];
    *probes.entry("a watch fails").or_default() += run.watched[1];
    if plan.collect_ms < PLAN.collect_ms {
        run.check_empty();
    }
    for (name, count) in &run.cluster.probes {
        *probes.entry(name).or_default() += count;
    }
}

/// Runs seeds in turn; see [`Seeds`].
fn sweep(seeds: u64, plan: Plan) -> BTreeMap<&'static str, u64> {
    let mut probes = BTreeMap::new();
    for seed in Seeds::new(0..seeds) {
        run(seed, plan, &mut probes);
    }
    probes
}

#[test]
fn a_healthy_network_needs_no_luck() {
    sweep(100, Plan { lost: 0, repeated: 0, trouble: 0, ..PLAN });
}

#[test]
fn nobody_waits_in_a_circle() {
    let quiet = Plan { lost: 0, repeated: 0, trouble: 0, patient: true, sent: 25, ..PLAN };
    for (nodes, keys, locality) in [(3, 2, 0), (3, 4, 30), (5, 3, 0), (5, 5, 30)] {
        sweep(30, Plan { nodes, keys, locality, ..quiet });
        sweep(30, Plan { nodes, keys, locality, origins: 40, ..quiet });
    }
}

#[test]
fn lanes_borrow_keys_from_each_other() {
    let mut probes = BTreeMap::new();
    let lanes = Plan { lanes: 3, keys: 5, ..PLAN };
    let quiet = Plan { lost: 0, repeated: 0, trouble: 0, patient: true, sent: 25, ..lanes };
    for (nodes, keys, locality) in [(1, 3, 0), (3, 4, 30), (5, 5, 60)] {
        probes.extend(sweep(30, Plan { nodes, keys, locality, ..quiet }));
        probes.extend(sweep(30, Plan { nodes, keys, locality, origins: 40, ..quiet }));
    }
    probes.extend(sweep(30, lanes));
    probes.extend(sweep(30, Plan { nodes: 5, trouble: 60, ..lanes }));
    probes.extend(sweep(30, Plan { trouble: 60, lanes: 2, ..lanes }));
    let moving = Plan { lanes: 2, keys: 5, spares: 2, moves: 30, ..PLAN };
    probes.extend(sweep(30, Plan { nodes: 4, replicas: 2, ..moving }));
    probes.extend(sweep(30, Plan { nodes: 5, trouble: 30, ..moving }));
    for name in ["zeus: a key is lent to another lane", "zeus: a lane wants its key back"] {
        assert!(probes.contains_key(name), "never: {name}");
    }
}

#[test]
fn transactions_are_strictly_serializable() {
    sweep(200, PLAN);
}

#[test]
fn transactions_of_five_nodes_are_strictly_serializable() {
    sweep(100, Plan { nodes: 5, keys: 4, ..PLAN });
}

#[test]
fn bad_networks_cost_time_only() {
    sweep(75, Plan { nodes: 5, lost: 300, repeated: 300, steps: 400, ..PLAN });
}

#[test]
fn many_views_in_a_row_lose_nothing() {
    sweep(100, Plan { trouble: 60, ..PLAN });
    sweep(50, Plan { nodes: 5, keys: 4, trouble: 60, ..PLAN });
}

#[test]
fn data_moves_when_members_come_and_go() {
    let plan = Plan { spares: 2, keys: 6, trouble: 20, moves: 20, steps: 600, ..PLAN };
    sweep(75, Plan { nodes: 4, replicas: 2, ..plan });
    sweep(50, Plan { nodes: 5, ..plan });
    sweep(25, Plan { nodes: 6, spares: 1, moves: 40, ..plan });
    sweep(25, Plan { nodes: 4, replicas: 2, lost: 200, repeated: 200, moves: 50, ..plan });
}

#[test]
fn six_and_seven_nodes_are_strictly_serializable() {
    let plan = Plan { keys: 5, trouble: 20, steps: 500, ..PLAN };
    sweep(25, Plan { nodes: 6, replicas: 2, ..plan });
    sweep(25, Plan { nodes: 7, replicas: 4, ..plan });
    sweep(25, Plan { nodes: 7, ..plan });
}

#[test]
fn watches_of_absent_keys_are_exact() {
    let plan = Plan { keys: 3, collect_ms: 20, deletes: 12, watches: 40, steps: 1200, ..PLAN };
    let mut probes = BTreeMap::new();
    let mut add = |more: BTreeMap<&'static str, u64>| {
        more.into_iter().for_each(|(name, count)| *probes.entry(name).or_insert(0) += count);
    };
    add(sweep(30, Plan { lost: 0, repeated: 0, trouble: 0, ..plan }));
    add(sweep(30, Plan { nodes: 4, replicas: 2, trouble: 20, ..plan }));
    add(sweep(30, Plan { lanes: 2, trouble: 20, keys: 4, ..plan }));
    let moves = Plan { spares: 2, trouble: 20, moves: 20, ..plan };
    add(sweep(30, Plan { nodes: 4, replicas: 2, ..moves }));
    for name in ["a watch holds", "a watch fails", "zeus: the floor rises"] {
        assert!(probes.get(name).is_some_and(|count| *count > 100), "never: {name}");
    }
}

#[test]
fn what_was_deleted_is_forgotten() {
    let plan = Plan { keys: 4, collect_ms: 20, deletes: 6, steps: 800, ..PLAN };
    sweep(50, plan);
    sweep(50, Plan { nodes: 4, replicas: 2, trouble: 20, ..plan });
    let moves = Plan { spares: 2, keys: 6, trouble: 20, moves: 20, ..plan };
    sweep(50, Plan { nodes: 4, replicas: 2, ..moves });
    sweep(25, Plan { nodes: 5, lost: 200, repeated: 300, ..moves });
}

#[test]
fn nobody_waits_for_a_key_that_some_have_forgotten() {
    let quiet = Plan { lost: 0, repeated: 0, trouble: 0, patient: true, ..PLAN };
    let plan = Plan { keys: 4, collect_ms: 20, deletes: 12, steps: 1000, locality: 0, ..quiet };
    sweep(30, Plan { lost: 50, ..plan });
    sweep(30, Plan { nodes: 4, replicas: 2, ..plan });
    sweep(30, Plan { nodes: 5, lanes: 3, keys: 5, lost: 50, ..plan });
    sweep(30, Plan { nodes: 4, replicas: 2, lanes: 2, trouble: 10, ..plan });
}

#[test]
fn what_several_lanes_have_deleted_is_forgotten() {
    let plan = Plan { lanes: 2, keys: 5, collect_ms: 20, deletes: 6, steps: 1000, ..PLAN };
    let mut probes = sweep(25, plan);
    probes.extend(sweep(25, Plan { lanes: 3, nodes: 4, replicas: 2, trouble: 20, ..plan }));
    let moves = Plan { spares: 2, trouble: 20, moves: 20, ..plan };
    probes.extend(sweep(25, Plan { nodes: 4, replicas: 2, ..moves }));
    probes.extend(sweep(25, Plan { lanes: 3, nodes: 5, lost: 200, repeated: 300, ..moves }));
    for name in ["zeus: a key is lent to another lane", "zeus: a record is forgotten"] {
        assert!(probes.contains_key(name), "never: {name}");
    }
}

#[test]
fn transactions_run_where_they_are_placed() {
    let plan = Plan { pins: 10, sent: 20, locality: 0, ..PLAN };
    let mut probes = sweep(50, plan);
    let mut add = |more: BTreeMap<&'static str, u64>| {
        more.into_iter().for_each(|(name, count)| *probes.entry(name).or_insert(0) += count);
    };
    let patient = Plan { lost: 0, repeated: 0, trouble: 0, patient: true, ..plan };
    add(sweep(30, Plan { nodes: 5, keys: 4, ..patient }));
    add(sweep(30, Plan { lanes: 2, keys: 4, ..patient }));
    add(sweep(30, Plan { nodes: 5, replicas: 2, trouble: 40, keys: 4, ..plan }));
    add(sweep(30, Plan { nodes: 4, replicas: 2, spares: 2, keys: 6, moves: 20, ..plan }));
    for name in ["a transaction is sent to another node", "zeus: a key bounces"] {
        assert!(probes.get(name).is_some_and(|count| *count > 100), "never: {name}: {probes:?}");
    }
}

#[test]
fn lists_that_are_changed_in_place_are_the_same_everywhere() {
    let plan = Plan { lists: true, ..PLAN };
    let mut probes = BTreeMap::new();
    let mut add = |more: BTreeMap<&'static str, u64>| {
        more.into_iter().for_each(|(name, count)| *probes.entry(name).or_insert(0) += count);
    };
    add(sweep(50, plan));
    add(sweep(30, Plan { nodes: 5, keys: 4, trouble: 60, ..plan }));
    add(sweep(30, Plan { lanes: 2, nodes: 4, replicas: 2, trouble: 30, ..plan }));
    let moves = Plan { spares: 2, keys: 6, trouble: 20, moves: 20, steps: 600, ..plan };
    add(sweep(30, Plan { nodes: 4, replicas: 2, ..moves }));
    add(sweep(30, Plan { nodes: 5, lanes: 2, ..moves }));
    add(sweep(30, Plan { nodes: 4, replicas: 2, lost: 200, repeated: 200, ..moves }));
    let often =
        Plan { sent: 40, locality: 100, trouble: 80, lost: 300, steps: 500, keys: 2, ..plan };
    add(sweep(100, Plan { replicas: 2, ..often }));
    add(sweep(30, Plan { nodes: 5, lanes: 2, replicas: 2, keys: 5, ..often }));
    for name in [
        "zeus: a follower lacks what a transaction changes",
        "zeus: a follower is told all of a value",
    ] {
        assert!(probes.get(name).is_some_and(|count| *count > 10), "seldom: {name}: {probes:?}");
    }
}
