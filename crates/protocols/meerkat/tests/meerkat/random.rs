//! Seeded random runs: loss, duplication, reordering, clocks that differ, crashes, false suspicions,
//! views that reach nodes at different times, rejoins as a learner, of processes that were started
//! anew and of such as were only expelled; then healing, after which every
//! transaction must have ended, nothing may be left of any, and all replicas must agree.
//!
//! What the clients saw is judged twice: by a replay in the order of timestamps here, and by
//! `quorate-check`.

mod checks;
mod deaths;
mod guest;

use std::collections::{BTreeMap, BTreeSet};

use quorate_check::{Seeds, TxnOp};
use quorate_harness::{Clock, Disorder, Logs};
use quorate_machine::{Outcome, Rng};
use quorate_meerkat::{Config, Isolation};
use quorate_types::{Duration, Incarnation, NodeId, Role, Timestamp};

use crate::guests::GUEST;
use crate::losses::two_groups;
use crate::sessions::Sessions;
use crate::support::{Cluster, Replicas, serializable};
use crate::txn::{Reply, Step, Txn};
use guest::Guest;

/// What a run does.
#[derive(Clone, Copy)]
struct Plan {
    nodes: u16,
    keys: u64,
    steps: u64,
    /// Of 100 steps, how many send a transaction.
    sent: u64,
    /// How many origins a node's transactions have.
    origins: u64,
    /// Of 1000 deliveries, how many messages are lost.
    lost: u64,
    /// Of 1000 deliveries, how many messages come again later.
    repeated: u64,
    /// Of 1000 steps, how many do something to the view or to a process.
    trouble: u64,
    /// How far apart wall clocks are, in microseconds.
    skew: u64,
    configure: fn(&mut Config),
    /// Whether a shadow that has caught up mostly stays one, while one view follows on another.
    lingers: bool,
    /// From how many bytes on each node's collections are large; if any may be, values are lists.
    large: Option<fn(u16) -> usize>,
    /// Whether clients have sessions, and try each call again until they know its answer.
    sessions: bool,
    /// What promises wait for.
    logs: Logs,
    /// Of 1000 steps, how many cut the power of all nodes, if they have logs.
    outages: u64,
    /// Of them, the first so many nodes mostly lose it alone.
    circuit: Option<u16>,
    /// Whether nodes that come back are removed and come back once more, before anybody has gone on.
    stragglers: bool,
    /// Whether a client coordinates transactions of its own.
    has_guest: bool,
    /// Of 1000 steps, how many end a group for good.
    deaths: u64,
}

const PLAN: Plan = Plan {
    nodes: 3,
    keys: 2,
    steps: 300,
    sent: 10,
    origins: 6,
    lost: 50,
    repeated: 50,
    trouble: 10,
    skew: 40_000,
    configure: |_| {},
    lingers: false,
    large: None,
    sessions: false,
    logs: Logs::None,
    outages: 0,
    circuit: None,
    stragglers: false,
    has_guest: false,
    deaths: 0,
};

/// A transaction that a client sent.
struct Asked {
    origin: u64,
    txn: Txn,
    invoke: u64,
    node: u16,
    /// The life of the node that it was sent to.
    incarnation: Incarnation,
}

/// What an attempt did.
struct Replayed {
    /// The transactions that shared it, in their order.
    order: Vec<u64>,
    /// What it read and what it wrote.
    ops: Vec<TxnOp>,
}

struct Run {
    plan: Plan,
    isolation: Isolation,
    rng: Rng,
    cluster: Cluster,
    /// Logical time of the history: every event has its own.
    clock: u64,
    asked: BTreeMap<u64, Asked>,
    answered: BTreeMap<u64, (Outcome<Reply>, u64)>,
    disorder: Disorder,
    /// Nodes that have crashed and were not made active since.
    forgetful: BTreeSet<u16>,
    /// What the replay knows of each attempt that has committed.
    replayed: BTreeMap<Timestamp, Replayed>,
    sessions: Sessions,
    guest: Option<Guest>,
}

impl Run {
    fn new(seed: u64, plan: Plan) -> Self {
        let mut rng = Rng::new(seed);
        let base = rng.next_u64() >> 16;
        let ahead = |_| (rng.below(plan.skew.max(1)) * 1000) as i64;
        let seeds = |node| base + u64::from(node);
        let mut replicas = Replicas::new(1, plan.configure);
        replicas.packed_bytes_max = plan.large.unwrap_or(replicas.packed_bytes_max);
        replicas.logs = plan.logs;
        let mut cluster = Cluster::of(replicas, plan.nodes, ahead, seeds);
        let isolation = cluster.machine(1).isolation();
        let guest = plan.has_guest.then(|| Guest::enter(&mut cluster, 0, plan.configure));
        Self {
            plan,
            isolation,
            rng,
            cluster,
            clock: 0,
            asked: BTreeMap::new(),
            answered: BTreeMap::new(),
            disorder: Disorder::new(plan.nodes, plan.lost, plan.repeated),
            forgetful: BTreeSet::new(),
            replayed: BTreeMap::new(),
            sessions: Sessions::default(),
            guest,
        }
    }

    fn node(&mut self) -> u16 {
        self.disorder.node(&mut self.rng)
    }

    fn ahead(&mut self) -> i64 {
        (self.rng.below(self.plan.skew.max(1)) * 1000) as i64
    }

    /// A transaction over some keys, whose values name it.
    fn txn(&mut self) -> Txn {
        let name = self.asked.len();
        let first = self.rng.below(self.plan.keys);
        let count = 1 + self.rng.below(self.plan.keys.min(3));
        let reads_only = self.rng.chance(1, 4);
        let steps = (0..count).map(|at| {
            let key = format!("k{}", (first + at) % self.plan.keys);
            match self.rng.below(9) {
                _ if reads_only => Step::Read(key),
                0..=2 => Step::Read(key),
                3..=5 if self.plan.large.is_some() => Step::Push(key, format!(",{name}")),
                6..=7 if self.plan.large.is_some() => Step::Put(key, format!(",{name}")),
                3..=5 => Step::Append(key, format!(",{name}")),
                6..=7 => Step::Write(key, format!(",{name}")),
                _ => Step::Del(key),
            }
        });
        let mut steps: Vec<Step> = steps.collect();
        // Mostly at the start, as a watch is checked; at times after something was written.
        if !reads_only && self.rng.chance(1, 10) {
            let at = if self.rng.chance(1, 2) { 0 } else { self.rng.below(1 + count) as usize };
            let key = format!("k{}", self.rng.below(self.plan.keys));
            steps.insert(at, Step::Unless(key));
        }
        Txn(steps)
    }

    fn note_answers(&mut self) {
        for (tag, outcome) in std::mem::take(&mut self.cluster.fresh_outcomes) {
            if self.sessions.note(tag, &outcome) {
                continue;
            }
            self.clock += 1;
            self.answered.insert(tag, (outcome, self.clock));
        }
        self.cluster.fresh_packets.clear();
    }

    fn submit(&mut self) {
        let is_guests = self.guest.is_some() && self.rng.chance(1, 3);
        let node = if is_guests { GUEST } else { self.node() };
        if self.plan.sessions {
            return self.sessions.act(&mut self.cluster, &mut self.rng, node, self.plan.keys);
        }
        if self.cluster.hosts[&node].up {
            let mut txn = self.txn();
            self.keep_within_group(node, &mut txn);
            // Few origins, so that some stand in line.
            let origin = u64::from(node) * 100 + self.rng.below(self.plan.origins);
            self.ask(node, origin, txn);
        }
    }

    fn ask(&mut self, node: u16, origin: u64, txn: Txn) {
        self.clock += 1;
        let invoke = self.clock;
        let incarnation = self.cluster.hosts[&node].incarnation;
        let tag = self.cluster.submit_as(node, origin, txn.clone());
        self.asked.insert(tag, Asked { origin, txn, invoke, node, incarnation });
    }

    fn decide(&mut self, node: u16, role: Role) {
        self.disorder.decide(&mut self.cluster, node, role);
    }

    fn role(&self, node: u16) -> Role {
        self.cluster.view.member(NodeId(node)).expect("all are members").role
    }

    /// The live replicas of a key.
    fn holders(&self, key: &str) -> Vec<u16> {
        let live = self.cluster.live().into_iter();
        live.filter(|node| self.cluster.holds(*node, key)).collect()
    }

    /// Whether an active replica of every key is left without this one, and a majority of each
    /// group remembers what it knew; without this one too, if it is to crash.
    fn is_spare(&self, node: u16, crashes: bool) -> bool {
        let is_active =
            |other: u16| self.role(other) == Role::Active && self.cluster.hosts[&other].up;
        let forgets = |other: u16| self.forgetful.contains(&other) || crashes && other == node;
        let is_left = |group: Vec<u16>| {
            let forgetful = group.iter().filter(|other| forgets(**other)).count();
            let active = group.iter().any(|other| *other != node && is_active(*other));
            active && forgetful * 2 < group.len()
        };
        let holders = |key: String| {
            (1..=self.plan.nodes).filter(|node| self.cluster.holds(*node, &key)).collect()
        };
        let keys = (0..self.plan.keys).map(|key| format!("k{key}"));
        keys.map(holders).chain([(1..=self.plan.nodes).collect()]).all(is_left)
    }

    fn crash(&mut self, node: u16) {
        if self.plan.logs != Logs::None && self.rng.chance(2, 3) {
            // It comes back with what it has on its disk.
            if self.is_spare(node, false) && self.cluster.hosts[&node].up {
                self.cluster.cut_power(node, &mut self.rng);
            }
            return;
        }
        if self.forgetful.contains(&node) || self.is_spare(node, true) {
            self.forgetful.insert(node);
            self.cluster.crash(node);
        }
    }

    /// The next life of an expelled or crashed node, as a shadow.
    fn come_back(&mut self, node: u16) {
        if self.cluster.hosts[&node].up {
            self.cluster.begin_life(node);
            self.visit(node);
        } else {
            self.start(node);
        }
        self.decide(node, Role::Shadow);
    }

    /// Starts the next process of a node, with what its disk has.
    fn start(&mut self, node: u16) {
        let (seed, ahead) = (self.rng.next_u64() >> 16, self.ahead());
        if self.plan.logs == Logs::None || self.forgetful.contains(&node) {
            self.cluster.start_ahead(node, seed, ahead);
        } else {
            self.cluster.restart(node, seed);
            self.cluster.set_clock(node, Clock { ahead, ..Clock::default() });
        }
        self.visit(node);
    }

    /// A little later.
    fn soon(&mut self) {
        for _ in 0..self.rng.below(40) {
            self.disorder.hear_news(&mut self.rng, &mut self.cluster);
            self.disorder.deliver(&mut self.rng, &mut self.cluster);
            if self.rng.chance(1, 7) {
                self.log();
            }
        }
    }

    /// The power of all nodes goes, or of a circuit. Those whose disks have what they said go on, as what
    /// they were.
    fn outage(&mut self) {
        let circuit = self.plan.circuit.filter(|_| self.rng.chance(3, 4));
        let cut = 1..=circuit.unwrap_or(self.plan.nodes);
        for node in cut.clone() {
            if self.cluster.hosts[&node].up {
                self.cluster.cut_power(node, &mut self.rng);
            }
        }
        self.cluster.run_for(Duration::from_millis(self.rng.below(50)));
        let mut roles = Vec::new();
        for (node, role) in self.cluster.roles() {
            if !cut.contains(&node) {
                roles.push((node, role));
                continue;
            }
            let returns = role != Role::Down && !self.forgetful.contains(&node);
            if returns {
                self.start(node);
            }
            roles.push((node, if returns { role } else { Role::Down }));
        }
        let view = self.cluster.decide(&roles);
        self.disorder.announce(&view);
        if self.plan.stragglers {
            cut.for_each(|node| self.straggle(node));
        }
    }

    /// A node that has come back is slow: it is removed while the epoch changes, and comes back.
    fn straggle(&mut self, node: u16) {
        let released = self.cluster.probed("meerkat: epoch released");
        for _ in 0..self.rng.below(12) {
            self.disorder.hear_news(&mut self.rng, &mut self.cluster);
            self.disorder.deliver(&mut self.rng, &mut self.cluster);
        }
        let nobody_goes_on = self.cluster.probed("meerkat: epoch released") == released;
        let is_active = self.role(node) == Role::Active && self.cluster.hosts[&node].up;
        if !nobody_goes_on || !is_active || !self.is_spare(node, false) || self.rng.chance(1, 3) {
            return;
        }
        if self.rng.chance(1, 2) {
            self.cluster.cut_power(node, &mut self.rng);
        }
        self.decide(node, Role::Down);
        self.come_back(node);
    }

    /// What disks do in their own time.
    fn log(&mut self) {
        let node = self.node();
        if !self.cluster.hosts[&node].up {
            return;
        }
        if self.rng.chance(4, 5) {
            self.cluster.flush_log(node);
        } else {
            let bytes = self.rng.below(300) as usize;
            self.cluster.save_some(node, 0, bytes);
        }
    }

    /// A crash, a false suspicion, a view for its own sake, or the next step of someone's way back.
    fn trouble(&mut self) {
        let node = self.node();
        let up = self.cluster.hosts[&node].up;
        match self.role(node) {
            Role::Active | Role::Shadow if !up => self.decide(node, Role::Down),
            Role::Active if self.rng.chance(1, 4) => self.decide(node, Role::Active),
            Role::Active if self.rng.chance(1, 3) => {
                if self.is_spare(node, false) {
                    self.decide(node, Role::Down);
                }
            }
            Role::Active => self.crash(node),
            Role::Down => {
                if up && self.rng.chance(1, 2) {
                    self.crash(node);
                }
                self.come_back(node);
            }
            Role::Shadow if self.plan.lingers && self.rng.chance(2, 3) => {
                self.decide(node, Role::Shadow);
            }
            Role::Shadow if self.cluster.machine(node).is_caught_up() => {
                self.forgetful.remove(&node);
                self.decide(node, Role::Active);
            }
            Role::Shadow if self.rng.chance(1, 4) => self.crash(node),
            Role::Shadow if self.rng.chance(1, 4) => self.decide(node, Role::Down),
            Role::Shadow => {}
        }
    }

    fn step(&mut self) {
        if self.rng.chance(self.plan.trouble, 1000) {
            self.trouble();
        }
        // Where nothing waits for disks they take their time.
        let often = if self.plan.logs == Logs::Async { 40 } else { 4 };
        if self.plan.logs != Logs::None && self.rng.chance(1, often) {
            self.log();
        }
        if self.plan.outages > 0 && self.rng.chance(self.plan.outages, 1000) {
            self.outage();
            if self.rng.chance(1, 3) {
                self.soon();
                self.outage();
            }
        }
        if self.plan.deaths > 0 && self.rng.chance(self.plan.deaths, 1000) {
            self.end_group();
        }
        self.act_as_guest();
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
            }
            _ => self.disorder.hear_news(&mut self.rng, &mut self.cluster),
        }
        self.note_answers();
    }

    fn heal(&mut self) {
        for node in 1..=self.plan.nodes {
            if self.role(node) != Role::Down && !self.cluster.hosts[&node].up {
                self.decide(node, Role::Down);
            }
            // What is known of an epoch may lie on the disks of processes that have ended.
            let returns = self.cluster.hosts[&node].up
                || self.plan.logs != Logs::None && !self.forgetful.contains(&node)
                || self.plan.deaths > 0;
            if self.role(node) == Role::Down && returns {
                self.come_back(node);
            }
        }
        self.disorder.hear_all_news(&mut self.rng, &mut self.cluster);
        self.heal_guest(Duration::from_millis(1_500));
        for node in 1..=self.plan.nodes {
            if self.role(node) == Role::Shadow && self.cluster.machine(node).is_caught_up() {
                self.cluster.set_role(node, Role::Active);
                self.cluster.run_for(Duration::from_millis(200));
            }
        }
        if self.cluster.hosts.values().any(|host| host.up && host.machine().pending() > 0) {
            self.cluster.run_for(Duration::from_millis(2_500));
        }
        self.note_answers();
        for node in self.cluster.view.active() {
            let keys = (0..self.plan.keys).map(|key| Step::Read(format!("k{key}")));
            let all = Txn(keys.collect());
            self.ask(node.0, u64::from(node.0), all);
        }
        self.cluster.run_for(Duration::from_millis(300));
        self.note_answers();
        self.await_guest();
    }
}

/// One run; panics if anything is wrong.
fn run(seed: u64, plan: Plan, probes: &mut BTreeMap<&'static str, u64>) {
    let mut run = Run::new(seed, plan);
    for _ in 0..plan.steps {
        run.step();
    }
    run.heal();
    if plan.logs == Logs::Async || plan.deaths > 0 {
        if plan.deaths > 0 {
            run.check_living();
        }
        // Some of what was answered is lost. They agree on what is left, and go on.
        run.check_end();
        for (name, count) in &run.cluster.probes {
            *probes.entry(name).or_default() += count;
        }
        return;
    }
    if plan.sessions {
        run.sessions.finish(&mut run.cluster);
        run.note_answers();
        run.sessions.check(&mut run.cluster);
        run.check_end();
        for (name, count) in &run.cluster.probes {
            *probes.entry(name).or_default() += count;
        }
        return;
    }
    run.check_replay();
    run.check_effects();
    run.check_end();
    if run.isolation == Isolation::Strict {
        run.check_real_time();
    }
    run.check_origins();
    run.check_history();
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
fn transactions_are_strictly_serializable() {
    sweep(400, PLAN);
}

#[test]
fn transactions_of_five_replicas_are_strictly_serializable() {
    sweep(200, Plan { nodes: 5, keys: 3, ..PLAN });
}

#[test]
fn transactions_are_serializable_whatever_the_clocks_show() {
    sweep(400, Plan { configure: serializable, skew: 5_000_000, ..PLAN });
}

#[test]
fn transactions_of_five_replicas_are_serializable_whatever_the_clocks_show() {
    sweep(200, Plan { nodes: 5, keys: 3, configure: serializable, skew: 5_000_000, ..PLAN });
}

fn two_partitions(config: &mut Config) {
    let group = |nodes: [u16; 3]| Some(nodes.into_iter().map(NodeId).collect());
    config.partitions = vec![group([1, 2, 3]), group([3, 4, 5])];
}

fn two_serializable_partitions(config: &mut Config) {
    two_partitions(config);
    serializable(config);
}

#[test]
fn transactions_over_partitions_are_atomic() {
    let plan = Plan { nodes: 5, keys: 3, configure: two_partitions, ..PLAN };
    let cluster = Cluster::with(5, two_partitions);
    let first = (0..plan.keys).filter(|key| cluster.holds(1, &format!("k{key}")));
    assert!((1..plan.keys as usize).contains(&first.count()), "keys in both partitions");
    sweep(200, plan);
    let configure = two_serializable_partitions;
    sweep(200, Plan { configure, skew: 5_000_000, trouble: 30, ..plan });
}

fn two_partitions_of_all(config: &mut Config) {
    config.partitions = vec![None, None];
    serializable(config);
}

fn three_partitions(config: &mut Config) {
    let group = |nodes: [u16; 3]| Some(nodes.into_iter().map(NodeId).collect());
    config.partitions = vec![None, group([1, 2, 3]), group([3, 4, 5])];
    serializable(config);
}

/// Keys of partitions, replicas that join while votes are given, and many views while they do.
#[test]
fn who_joins_during_many_views_lacks_nothing() {
    let plan = Plan {
        steps: 1_500,
        lost: 30,
        trouble: 15,
        skew: 5_000_000,
        lingers: true,
        configure: two_partitions_of_all,
        ..PLAN
    };
    let probes = sweep(300, plan);
    assert!(probes.contains_key("meerkat: a learner brings what it has not installed"));
    sweep(100, Plan { nodes: 5, keys: 4, configure: three_partitions, ..plan });
}

/// What is large at one node may be packed at another.
fn disagreeing(node: u16) -> usize {
    [0, usize::MAX, 12, 0, 30][usize::from(node - 1) % 5]
}

#[test]
fn changes_of_large_values_are_serializable() {
    let plan = Plan { large: Some(|_| 0), ..PLAN };
    let mut probes = sweep(200, plan);
    let serializable = Plan { configure: serializable, skew: 5_000_000, ..plan };
    probes.extend(sweep(200, Plan { large: Some(disagreeing), trouble: 30, ..serializable }));
    probes.extend(sweep(100, Plan { nodes: 5, keys: 3, lost: 300, repeated: 300, ..plan }));
    let partitions = Plan { nodes: 5, keys: 3, configure: two_partitions, ..plan };
    probes.extend(sweep(200, Plan { large: Some(disagreeing), ..partitions }));
    let views = Plan {
        steps: 1_500,
        lost: 30,
        trouble: 15,
        lingers: true,
        configure: two_partitions_of_all,
        ..serializable
    };
    probes.extend(sweep(150, views));
    for name in ["meerkat: a commit whose base is not here", "meerkat: a learner asks for a base"] {
        assert!(probes.contains_key(name), "never: {name}");
    }
}

/// Many at one key: they wait for one another, and share attempts.
#[test]
fn transactions_that_share_attempts_are_strictly_serializable() {
    let hasty = |config: &mut Config| config.op_timeout = Duration::from_millis(60);
    let plan = Plan { keys: 1, sent: 30, configure: hasty, ..PLAN };
    let mut probes = sweep(200, plan);
    probes.extend(sweep(200, Plan { keys: 2, trouble: 30, ..plan }));
    // Nobody is forgotten: each is answered without the help of a timeout.
    let patient = |config: &mut Config| config.op_timeout = Duration::from_secs(60);
    let quiet = Plan { keys: 3, lost: 0, repeated: 0, trouble: 0, configure: patient, ..plan };
    probes.extend(sweep(100, quiet));
    // Long lines of few origins, which wait for each other.
    for (keys, origins) in [(2, 2), (3, 2), (4, 2), (4, 3)] {
        sweep(500, Plan { keys, origins, ..quiet });
        sweep(100, Plan { keys, origins, lost: 50, repeated: 50, trouble: 20, ..quiet });
    }
    probes.extend(sweep(100, Plan { large: Some(disagreeing), keys: 2, ..plan }));
    for name in ["meerkat: transactions combined", "meerkat: combined anew without one"] {
        assert!(probes.contains_key(name), "never: {name}");
    }
}

#[test]
fn calls_take_effect_once() {
    let plan = Plan { sessions: true, trouble: 20, ..PLAN };
    let mut probes = sweep(400, plan);
    probes.extend(sweep(100, Plan { nodes: 5, keys: 3, ..plan }));
    let serializable = Plan { configure: serializable, skew: 5_000_000, ..plan };
    probes.extend(sweep(200, serializable));
    probes.extend(sweep(200, Plan { nodes: 5, keys: 3, configure: two_partitions, ..plan }));
    for name in [
        "meerkat: call answered from its record",
        "meerkat: call waits for another attempt at it",
        "meerkat: a call's attempt ends with its epoch",
    ] {
        assert!(probes.contains_key(name), "never: {name}");
    }
}

#[test]
fn a_healthy_network_needs_no_luck() {
    sweep(200, Plan { lost: 0, repeated: 0, trouble: 0, ..PLAN });
}

#[test]
fn bad_networks_cost_time_only() {
    sweep(150, Plan { lost: 300, repeated: 300, steps: 400, ..PLAN });
}

#[test]
fn many_views_in_a_row_lose_nothing() {
    sweep(200, Plan { trouble: 60, ..PLAN });
    sweep(100, Plan { trouble: 60, nodes: 5, configure: serializable, ..PLAN });
}

/// Power cuts of one and of all at random moments, with snapshots in between.
#[test]
fn what_was_answered_survives_the_power() {
    let plan = Plan { logs: Logs::Sync, outages: 4, sent: 12, ..PLAN };
    let mut probes = sweep(400, plan);
    probes.extend(sweep(150, Plan { trouble: 30, outages: 8, ..plan }));
    let serializable = Plan { configure: serializable, skew: 5_000_000, ..plan };
    probes.extend(sweep(150, serializable));
    probes.extend(sweep(100, Plan { nodes: 5, keys: 3, ..serializable }));
    probes.extend(sweep(100, Plan { nodes: 5, keys: 3, configure: two_partitions, ..plan }));
    assert!(probes.contains_key("meerkat: goes on from its log"));
}

#[test]
fn large_values_survive_the_power() {
    let plan = Plan { logs: Logs::Sync, outages: 5, large: Some(disagreeing), ..PLAN };
    sweep(250, plan);
    sweep(100, Plan { nodes: 5, keys: 3, configure: two_partitions, trouble: 20, ..plan });
}

#[test]
fn calls_take_effect_once_whatever_the_power_does() {
    let plan = Plan { logs: Logs::Sync, outages: 4, sessions: true, trouble: 15, ..PLAN };
    sweep(300, plan);
    sweep(100, Plan { nodes: 5, keys: 3, configure: two_partitions, ..plan });
}

/// Promises that wait for nothing: replicas come back with different states, and agree on one.
#[test]
fn replicas_agree_on_what_the_power_has_left() {
    let plan = Plan { logs: Logs::Async, outages: 6, trouble: 0, sent: 15, ..PLAN };
    let mut probes = sweep(250, plan);
    probes.extend(sweep(200, Plan { large: Some(disagreeing), ..plan }));
    probes.extend(sweep(100, Plan { nodes: 5, keys: 3, configure: two_partitions, ..plan }));
    assert!(probes.contains_key("meerkat: takes in what its log has lost"));
}

/// Most of those that come back are removed before anybody has gone on, and what only they have kept is
/// needed.
#[test]
fn replicas_agree_on_what_stragglers_have_kept() {
    let plan =
        Plan { logs: Logs::Async, outages: 6, trouble: 0, sent: 15, stragglers: true, ..PLAN };
    let mut probes = sweep(250, plan);
    probes.extend(sweep(100, Plan { nodes: 5, keys: 3, configure: two_partitions, ..plan }));
    sweep(250, Plan { logs: Logs::Sync, ..plan });
    assert!(probes.contains_key("meerkat: takes in what a shadow has kept"));
}

/// Nodes that lose power while others live, which have coordinated transactions at their keys.
#[test]
fn a_group_may_lose_power_alone() {
    let plan = Plan {
        nodes: 6,
        keys: 4,
        configure: two_groups,
        logs: Logs::Sync,
        outages: 8,
        circuit: Some(3),
        sent: 15,
        ..PLAN
    };
    sweep(150, Plan { trouble: 0, ..plan });
    sweep(100, plan);
    sweep(150, Plan { logs: Logs::Async, trouble: 0, ..plan });
}
