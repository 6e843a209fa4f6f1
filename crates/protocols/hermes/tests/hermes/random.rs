//! Seeded random runs: loss, duplication, reordering, crashes, views that reach nodes at different
//! times, rejoins as a shadow; then healing, after which every op must have ended and all replicas
//! must agree. What the clients saw is judged by `quorate-check`.

mod checks;

use std::collections::{BTreeMap, BTreeSet};

use quorate_check::{Loss, Seeds, Verdict, check_history_with_losses};
use quorate_harness::{Disorder, Logs};
use quorate_hermes::{Config, Reads};
use quorate_machine::{Access, Command as _, Outcome, Refusal, Rng};
use quorate_rifl::{Call, LeaseId, Lost, Permit, Sessions};
use quorate_types::{Duration, Epoch, Incarnation, LaneId, MemberNumber, NodeId, Role, Timestamp};

use crate::op::{Op, Reply, append, del, get, incr, set, set_nx, set_until, wipe};
use crate::support::{Cluster, WALL};

/// What a run does.
#[derive(Clone, Copy)]
struct Plan {
    nodes: u16,
    keys: u64,
    steps: u64,
    /// Of 1000 deliveries, how many messages are lost.
    lost: u64,
    /// Of 1000 deliveries, how many messages come again later.
    repeated: u64,
    crashes: bool,
    /// Whether most that come back have their records, as a process has that stood still.
    lives: bool,
    mix: Mix,
    configure: fn(&mut Config),
    /// What promises wait for. With a log, the power of one node or of all goes now and then.
    logs: Logs,
    /// Whether one of them mostly lives on when the power of all others goes.
    spares: bool,
}

impl Plan {
    fn has_logs(&self) -> bool {
        self.logs != Logs::None
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mix {
    /// Everything.
    Registers,
    /// Only increments and reads.
    Counters,
    /// Mostly deletes and sets.
    Deletes,
    /// Writes that race with read-modify-writes of one node, and reads.
    Races,
    /// Sessions' calls, tried again and again at any node, among plain ops.
    Calls,
    /// The same, all of them increments.
    CountedCalls,
}

impl Mix {
    fn has_calls(self) -> bool {
        matches!(self, Self::Calls | Self::CountedCalls)
    }
}

/// A client of a session.
struct Client {
    lease: LeaseId,
    calls: Vec<Tried>,
    /// No attempt was granted above.
    until: u64,
    /// It makes no more calls and tries none again, but late duplicates may arrive.
    over: bool,
}

/// A call, with every try at it.
struct Tried {
    op: Op,
    invoke: u64,
    permits: Vec<Permit>,
    tags: Vec<u64>,
    done: Option<(Reply, u64)>,
}

impl Client {
    fn first_incomplete(&self) -> u64 {
        let open = self.calls.iter().position(|tried| tried.done.is_none());
        open.unwrap_or(self.calls.len()) as u64
    }
}

const PLAN: Plan = Plan {
    nodes: 3,
    keys: 2,
    steps: 250,
    lost: 50,
    repeated: 50,
    crashes: true,
    lives: false,
    mix: Mix::Registers,
    configure: |_| {},
    logs: Logs::None,
    spares: false,
};

/// An op that a client sent.
struct Asked {
    op: Op,
    invoke: u64,
    node: u16,
    /// The life of the node that it was sent to.
    incarnation: Incarnation,
}

struct Run {
    plan: Plan,
    rng: Rng,
    cluster: Cluster,
    /// Logical time of the history: every event has its own.
    clock: u64,
    asked: BTreeMap<u64, Asked>,
    answered: BTreeMap<u64, (Outcome<Reply>, u64)>,
    disorder: Disorder,
    clients: Vec<Client>,
    /// The client and the call of each try.
    tries: BTreeMap<u64, (usize, usize)>,
    /// Nodes whose process has ended with the power: it can't live on.
    dark: BTreeSet<u16>,
    /// The content that each timestamp stands for, by key.
    minted: BTreeMap<(Vec<u8>, Timestamp), Option<Vec<u8>>>,
    /// Up to which time everything that a node has appended is durable.
    flushed: BTreeMap<u16, u64>,
    /// What the losses of all power may have taken.
    losses: Vec<Loss>,
    /// Whether a node has died after a loss of all power, before the others had what it alone had kept:
    /// then the interval may be lost of which the others had lost the end.
    died_in_doubt: bool,
    /// The view behind the last loss of power.
    lost_in: Epoch,
}

impl Run {
    fn new(seed: u64, plan: Plan) -> Self {
        let mut rng = Rng::new(seed);
        let base = rng.next_u64() >> 16;
        let seed_of = |node| base + u64::from(node);
        let cluster =
            Cluster::logging(plan.nodes, plan.logs, seed_of, plan.configure, |_| usize::MAX);
        Self {
            plan,
            rng,
            cluster,
            clock: 0,
            asked: BTreeMap::new(),
            answered: BTreeMap::new(),
            disorder: Disorder::new(plan.nodes, plan.lost, plan.repeated),
            clients: Vec::new(),
            tries: BTreeMap::new(),
            dark: BTreeSet::new(),
            minted: BTreeMap::new(),
            flushed: BTreeMap::new(),
            losses: Vec::new(),
            died_in_doubt: false,
            lost_in: Epoch(0),
        }
    }

    fn node(&mut self) -> u16 {
        self.disorder.node(&mut self.rng)
    }

    fn op(&mut self) -> Op {
        let key = format!("k{}", self.rng.below(self.plan.keys));
        let text = format!("v{}", self.clock);
        let soon = WALL + self.cluster.now.wall().0.saturating_sub(WALL) + self.rng.below(60);
        match (self.plan.mix, self.rng.below(10)) {
            (Mix::Counters | Mix::CountedCalls, 0..=5) => incr(&key),
            (Mix::Counters | Mix::CountedCalls, _) => get(&key),
            (Mix::Calls, 0) => wipe(&key),
            (Mix::Calls, 1..=2) => del(&key),
            (Mix::Calls, 3) => set(&key, &self.clock.to_string()),
            (Mix::Calls, 4) => set_nx(&key, &self.clock.to_string()),
            (Mix::Calls, 5..=7) => incr(&key),
            (Mix::Calls, _) => get(&key),
            (Mix::Races, 0..=2) => set(&key, &(self.clock * 100).to_string()),
            (Mix::Races, 3..=4) => incr(&key),
            (Mix::Races, _) => get(&key),
            (Mix::Deletes, 0..=2) => del(&key),
            (Mix::Deletes, 3) => wipe(&key),
            (Mix::Deletes, 4..=5) => set(&key, &text),
            (Mix::Deletes, 6) => set_nx(&key, &text),
            (Mix::Deletes, 7) => set_until(&key, &text, soon),
            (Mix::Deletes, _) => get(&key),
            (Mix::Registers, 0..=2) => set(&key, &self.clock.to_string()),
            (Mix::Registers, 3..=4) => incr(&key),
            (Mix::Registers, 5) => append(&key, "0"),
            (Mix::Registers, 6) if self.rng.chance(1, 2) => del(&key),
            (Mix::Registers, 6) => set_nx(&key, "7"),
            (Mix::Registers, _) => get(&key),
        }
    }

    fn note_answers(&mut self) {
        for (tag, outcome) in std::mem::take(&mut self.cluster.fresh_outcomes) {
            self.clock += 1;
            self.note_try(tag, &outcome);
            self.answered.insert(tag, (outcome, self.clock));
        }
        self.cluster.fresh_packets.clear();
    }

    /// One call has one answer, and is refused for good only once it has it.
    fn note_try(&mut self, tag: u64, outcome: &Outcome<Reply>) {
        let Some(&(client, call)) = self.tries.get(&tag) else { return };
        let client = &mut self.clients[client];
        let tried = &mut client.calls[call];
        match (outcome, &tried.done) {
            (Outcome::Done(reply), None) => tried.done = Some((reply.clone(), self.clock)),
            // What only reads leaves no record, and reads again.
            (Outcome::Done(_), Some(_)) if tried.op.access() == Access::Read => {}
            (Outcome::Done(reply), Some((first, _))) => {
                assert_eq!(reply, first, "{:?} has two answers", tried.permits[0].call);
            }
            (Outcome::Refused(Refusal::CallError(why)), done) => {
                assert!(done.is_some() || client.over, "{why:?}: {:?}", tried.permits[0].call);
            }
            _ => {}
        }
    }

    /// A new call, another try at an open one, or a late duplicate of an earlier try.
    fn make_try(&mut self, node: u16) {
        if self.clients.len() < 3 || self.rng.chance(1, 60) {
            let lease = LeaseId::new(MemberNumber(1), LaneId(0), self.clients.len() as u64);
            self.clients.push(Client { lease, calls: Vec::new(), until: 0, over: false });
        }
        let at = self.rng.below(self.clients.len() as u64) as usize;
        let first_incomplete = self.clients[at].first_incomplete();
        let made = self.clients[at].calls.len();
        let open = made as u64 - first_incomplete;
        let duplicate = self.clients[at].over || self.rng.chance(1, 5);
        if duplicate && made == 0 {
            return;
        }
        let (call, permit) = if duplicate {
            let call = self.rng.below(made as u64) as usize;
            let permits = &self.clients[at].calls[call].permits;
            (call, permits[self.rng.below(permits.len() as u64) as usize])
        } else {
            let call = if open > 0 && self.rng.chance(2, 3) {
                (first_incomplete + self.rng.below(open)) as usize
            } else {
                made
            };
            let (lease, sequence) = (self.clients[at].lease, call as u64);
            let first_incomplete = first_incomplete.min(sequence);
            let call_id = Call { lease, sequence, first_incomplete, digest: sequence as u32 };
            (call, self.cluster.permit(call_id))
        };
        if call == made {
            let op = self.op();
            self.clock += 1;
            let (invoke, permits, tags) = (self.clock, Vec::new(), Vec::new());
            self.clients[at].calls.push(Tried { op, invoke, permits, tags, done: None });
        }
        let op = self.clients[at].calls[call].op.clone();
        let tag = self.cluster.call_with(node, permit, op);
        self.tries.insert(tag, (at, call));
        let client = &mut self.clients[at];
        client.until = client.until.max(permit.grant.until);
        client.calls[call].permits.push(permit);
        client.calls[call].tags.push(tag);
    }

    /// A client goes, or a replica hears that one is gone for good.
    fn end_session(&mut self) {
        if self.clients.is_empty() {
            return;
        }
        let at = self.rng.below(self.clients.len() as u64) as usize;
        let node = self.node();
        let client = &mut self.clients[at];
        if !client.over {
            client.over = self.rng.chance(1, 6);
            return;
        }
        let (lease, granted) = (client.lease, client.until);
        let verdict = quorate_rifl::LeaseEnd { lease, lost: Lost::Expired, granted };
        self.cluster.machine(node).end_session(&verdict);
    }

    fn submit(&mut self) {
        let node = self.node();
        if self.plan.mix.has_calls() && self.rng.chance(1, 12) {
            self.end_session();
        }
        if self.plan.mix.has_calls() && self.rng.chance(3, 4) {
            if self.cluster.hosts[&node].up {
                self.make_try(node);
            }
            return;
        }
        if self.cluster.hosts[&node].up {
            let op = self.op();
            self.ask(node, op);
        }
    }

    fn ask(&mut self, node: u16, op: Op) {
        self.clock += 1;
        let invoke = self.clock;
        let incarnation = self.cluster.hosts[&node].incarnation;
        let tag = self.cluster.submit(node, op.clone());
        self.asked.insert(tag, Asked { op, invoke, node, incarnation });
    }

    fn decide(&mut self, node: u16, role: Role) {
        self.disorder.decide(&mut self.cluster, node, role);
    }

    /// A crash, or the next step of someone's way back.
    fn trouble(&mut self) {
        let node = self.node();
        let role = self.cluster.view.member(NodeId(node)).expect("all are members").role;
        let up = self.cluster.hosts[&node].up;
        match role {
            Role::Active if !up => self.decide(node, Role::Down),
            Role::Active => {
                let down = (1..=self.plan.nodes).filter(|other| {
                    let member = self.cluster.view.member(NodeId(*other)).expect("all are members");
                    member.role != Role::Active || !self.cluster.hosts[other].up
                });
                if (down.count() + 1) * 2 < usize::from(self.plan.nodes) {
                    self.end_process(node);
                }
            }
            Role::Down
                if self.plan.lives && !self.dark.contains(&node) && self.rng.chance(3, 4) =>
            {
                self.cluster.begin_life(node);
                self.decide(node, Role::Shadow);
            }
            Role::Down => {
                let seed = self.rng.next_u64() >> 16;
                self.dark.remove(&node);
                if self.plan.has_logs() && self.rng.chance(3, 4) {
                    self.cluster.restart(node, seed);
                } else {
                    self.cluster.start(node, seed);
                }
                self.decide(node, Role::Shadow);
            }
            Role::Shadow if !up => self.decide(node, Role::Down),
            Role::Shadow => {
                if self.cluster.machine(node).is_caught_up() {
                    self.decide(node, Role::Active);
                } else if self.rng.chance(1, 4) && self.others_are_a_majority(node) {
                    self.end_process(node);
                }
            }
        }
    }

    /// Whether the processes of most nodes run, without this one: or nobody could decide on a view.
    fn others_are_a_majority(&self, node: u16) -> bool {
        let up = self.cluster.hosts.iter().filter(|(other, host)| **other != node && host.up);
        up.count() * 2 > usize::from(self.plan.nodes)
    }

    /// Whether an active node may lack what another one has kept or has in memory: it is in doubt, or has not heard
    /// of the view behind the last loss of power.
    fn lacks(&self, node: u16) -> bool {
        let host = &self.cluster.hosts[&node];
        let is_unheard = || host.up && host.machine().epoch() < self.lost_in;
        host.machine().is_in_doubt() || self.plan.logs == Logs::Async && is_unheard()
    }

    /// An active node is about to die: what it alone has the others lose.
    fn note_death(&mut self) {
        let active = self.cluster.view.active();
        self.died_in_doubt |= active.into_iter().any(|node| self.lacks(node.0));
    }

    fn end_process(&mut self, node: u16) {
        self.note_death();
        if self.plan.has_logs() && (!self.plan.lives || self.rng.chance(1, 2)) {
            self.cluster.cut_power(node, &mut self.rng);
            self.dark.insert(node);
        } else {
            self.cluster.crash(node);
        }
    }

    /// What disks do while a cluster runs; sometimes all nodes lose power.
    fn disks(&mut self) {
        let node = self.node();
        match self.rng.below(400) {
            0 => {
                self.lose_power();
                if self.rng.chance(1, 3) {
                    self.soon();
                    self.lose_power();
                }
            }
            1..=30 if self.cluster.hosts[&node].up => {
                self.cluster.save_some(node, 0, 30);
            }
            31..=90 => {
                self.cluster.flush_log(node);
            }
            _ => {}
        }
    }

    /// A little later.
    fn soon(&mut self) {
        for _ in 0..self.rng.below(40) {
            self.disorder.hear_news(&mut self.rng, &mut self.cluster);
            self.disorder.deliver(&mut self.rng, &mut self.cluster);
            let node = self.node();
            if self.rng.chance(1, 7) {
                self.cluster.flush_log(node);
            }
            if self.cluster.hosts[&node].up && self.rng.chance(1, 20) {
                self.cluster.save(node, 0);
            }
        }
    }

    /// All nodes lose power, or all but one that is active. A majority comes back, and among it that one or one
    /// of those that were active, with what its disk has kept; the others have their disks, or not.
    fn lose_power(&mut self) {
        let active: Vec<u16> = self.cluster.view.active().into_iter().map(|node| node.0).collect();
        self.note_death();
        let sure = active[self.rng.below(active.len() as u64) as usize];
        let is_spared = self.plan.spares && self.cluster.hosts[&sure].up && self.rng.chance(3, 4);
        for node in (1..=self.plan.nodes).filter(|node| *node != sure || !is_spared) {
            self.cluster.cut_power(node, &mut self.rng);
            self.dark.insert(node);
        }
        self.note_answers();
        self.disorder.forget_news();
        self.cluster.pool.clear();
        let away = self.rng.below(u64::from(self.plan.nodes - 1) / 2 + 1) as u16;
        let mut roles = Vec::new();
        let mut from = self.losses.last().map_or(0, |loss| loss.at + 1);
        for node in 1..=self.plan.nodes {
            let seed = self.rng.next_u64() >> 16;
            let is_back =
                (node + self.plan.nodes - sure) % self.plan.nodes < self.plan.nodes - away;
            let has_disk = node == sure || self.rng.chance(5, 6);
            if is_back {
                self.dark.remove(&node);
            }
            if is_back && has_disk && active.contains(&node) {
                from = from.max(self.flushed.get(&node).copied().unwrap_or(0));
            }
            if node == sure && is_spared {
                // It has everything.
                from = self.clock + 1;
            } else if is_back && has_disk {
                self.cluster.restart(node, seed);
            } else if is_back {
                self.cluster.start(node, seed);
            }
            roles.push((
                node,
                match (is_back, has_disk && active.contains(&node)) {
                    (false, _) => Role::Down,
                    (true, false) => Role::Shadow,
                    (true, true) => Role::Active,
                },
            ));
        }
        if self.plan.logs == Logs::Async && !is_spared {
            self.clock += 1;
            self.losses.push(Loss { from, at: self.clock, all: false });
        }
        let view = self.cluster.decide(&roles);
        self.lost_in = view.epoch;
        self.disorder.announce(&view);
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..=11 => self.submit(),
            12..=79 => self.disorder.deliver(&mut self.rng, &mut self.cluster),
            80..=89 => {
                let span = Duration::from_micros(self.rng.below(8_000));
                self.cluster.advance(span);
            }
            90..=95 => {
                let node = self.node();
                self.cluster.tick_node(node);
            }
            96..=98 => self.disorder.hear_news(&mut self.rng, &mut self.cluster),
            _ if self.plan.crashes => self.trouble(),
            _ => {}
        }
        if self.plan.has_logs() {
            self.disks();
        }
        self.note_answers();
        for node in 1..=self.plan.nodes {
            if self.cluster.hosts[&node].up && self.cluster.is_flushed(node) {
                self.flushed.insert(node, self.clock);
            }
        }
    }

    fn heal(&mut self) {
        self.disorder.hear_all_news(&mut self.rng, &mut self.cluster);
        for node in 1..=self.plan.nodes {
            let role = self.cluster.view.member(NodeId(node)).expect("all are members").role;
            if role != Role::Down && !self.cluster.hosts[&node].up {
                self.cluster.set_role(node, Role::Down);
            }
        }
        self.cluster.run_for(Duration::from_millis(400));
        self.note_answers();
        if self.plan.mix == Mix::Deletes {
            // Before anybody asks for the keys, and so finds what has lost its VAL.
            self.check_tombstones();
        }
        for key in 0..self.plan.keys {
            for node in self.cluster.view.active() {
                if self.cluster.hosts[&node.0].up {
                    self.ask(node.0, get(&format!("k{key}")));
                }
            }
        }
        self.cluster.run_for(Duration::from_millis(100));
        self.note_answers();
    }
}

/// One run; panics if anything is wrong.
fn run(seed: u64, plan: Plan, probes: &mut BTreeMap<&'static str, u64>) {
    let mut run = Run::new(seed, plan);
    for _ in 0..plan.steps {
        run.step();
        run.check_agreement();
    }
    run.heal();
    run.check_agreement();
    run.check_end();
    if matches!(plan.mix, Mix::Counters | Mix::CountedCalls) && plan.logs != Logs::Async {
        run.check_counters();
    }
    if !run.died_in_doubt {
        let report = check_history_with_losses(&run.history(), |_| &run.losses);
        assert_ne!(report.verdict(), Verdict::Violation, "{report}");
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
fn registers_are_linearizable() {
    sweep(500, PLAN);
}

#[test]
fn registers_of_five_replicas_are_linearizable() {
    sweep(250, Plan { nodes: 5, steps: 250, ..PLAN });
}

#[test]
fn writes_that_race_with_read_modify_writes_are_linearizable() {
    let plan = Plan { mix: Mix::Races, keys: 1, lost: 0, repeated: 0, crashes: false, ..PLAN };
    sweep(8000, plan);
}

#[test]
fn counters_lose_and_repeat_no_increment() {
    sweep(400, Plan { mix: Mix::Counters, keys: 1, ..PLAN });
}

#[test]
fn bad_networks_cost_time_only() {
    sweep(200, Plan { lost: 300, repeated: 300, steps: 400, ..PLAN });
}

#[test]
fn acknowledgements_to_everyone_are_as_good_as_vals() {
    sweep(300, Plan { configure: |config| config.ack_broadcast = true, ..PLAN });
}

#[test]
fn reads_without_leases_are_linearizable() {
    sweep(300, Plan { configure: |config| config.reads = Reads::Quorum, ..PLAN });
}

fn collect_often(config: &mut Config) {
    config.collect_every = Duration::from_millis(10);
    config.tombstones_min = 1;
}

#[test]
fn deleted_keys_stay_deleted() {
    let plan = Plan { mix: Mix::Deletes, keys: 3, configure: collect_often, ..PLAN };
    let probes = sweep(500, plan);
    assert!(probes["hermes: tombstones collected"] > 0);
    assert!(probes["hermes: INV below the floor"] > 0);
}

#[test]
fn deleted_keys_stay_deleted_where_they_were_not_heard_of() {
    let deletes =
        Plan { mix: Mix::Deletes, keys: 4, lives: true, configure: collect_often, ..PLAN };
    let probes = sweep(500, Plan { steps: 500, ..deletes });
    assert!(probes["hermes: a record of an earlier life goes"] > 0);
    assert!(probes["hermes: a record of an earlier life stays"] > 0);
    sweep(200, Plan { nodes: 5, steps: 400, ..deletes });
}

#[test]
fn what_lived_comes_back_by_difference() {
    let plan = Plan { lives: true, steps: 400, ..PLAN };
    sweep(200, plan);
    sweep(150, Plan { configure: |config| config.ack_broadcast = true, ..plan });
    sweep(200, Plan { mix: Mix::Calls, ..plan });
    sweep(100, Plan { mix: Mix::CountedCalls, keys: 1, lost: 200, repeated: 200, ..plan });
}

#[test]
fn deleted_keys_of_five_replicas_stay_deleted() {
    let plan = Plan { mix: Mix::Deletes, nodes: 5, steps: 400, configure: collect_often, ..PLAN };
    sweep(200, plan);
}

#[test]
fn deleted_keys_stay_deleted_without_vals_and_without_leases() {
    let plan = Plan { mix: Mix::Deletes, keys: 3, ..PLAN };
    let without_vals = |config: &mut Config| {
        collect_often(config);
        config.ack_broadcast = true;
    };
    sweep(250, Plan { configure: without_vals, ..plan });
    let without_leases = |config: &mut Config| {
        collect_often(config);
        config.reads = Reads::Quorum;
    };
    sweep(250, Plan { configure: without_leases, ..plan });
}

#[test]
fn one_node_alone_is_linearizable() {
    let plan = Plan { nodes: 1, crashes: false, keys: 3, configure: collect_often, ..PLAN };
    for mix in [Mix::Registers, Mix::Deletes, Mix::Calls] {
        sweep(100, Plan { mix, ..plan });
    }
}

#[test]
fn calls_take_effect_once_and_have_one_answer() {
    let probes = sweep(500, Plan { mix: Mix::Calls, steps: 300, ..PLAN });
    assert!(probes["hermes: call overtaken"] > 0);
    assert!(probes["hermes: call completed by a newer version"] > 0);
}

#[test]
fn calls_of_five_replicas_take_effect_once() {
    sweep(150, Plan { mix: Mix::Calls, nodes: 5, steps: 400, ..PLAN });
}

#[test]
fn calls_on_keys_that_are_deleted_and_forgotten_take_effect_once() {
    let plan = Plan { mix: Mix::Calls, keys: 3, configure: collect_often, ..PLAN };
    let probes = sweep(300, plan);
    assert!(probes["hermes: tombstones collected"] > 0);
}

#[test]
fn counted_calls_lose_and_repeat_no_increment() {
    sweep(300, Plan { mix: Mix::CountedCalls, keys: 1, ..PLAN });
}

#[test]
fn calls_survive_bad_networks() {
    sweep(150, Plan { mix: Mix::Calls, keys: 1, lost: 300, repeated: 300, steps: 400, ..PLAN });
}

const DURABLE: Plan = Plan { logs: Logs::Sync, steps: 400, ..PLAN };

#[test]
fn what_was_answered_survives_the_loss_of_all_power() {
    let probes = sweep(500, DURABLE);
    assert!(probes["hermes: goes on from its log"] > 0);
    assert!(probes["hermes: commit waits for the log"] > 0);
    sweep(150, Plan { nodes: 5, ..DURABLE });
    sweep(100, Plan { nodes: 1, ..DURABLE });
    sweep(150, Plan { lost: 200, repeated: 200, ..DURABLE });
}

#[test]
fn deleted_keys_stay_deleted_after_the_loss_of_all_power() {
    let plan = Plan { mix: Mix::Deletes, keys: 4, configure: collect_often, ..DURABLE };
    let probes = sweep(500, plan);
    assert!(probes["hermes: tombstones collected"] > 0);
    assert!(probes["hermes: a record of an earlier life goes"] > 0);
    assert!(probes["hermes: a record of an earlier life stays"] > 0);
    sweep(150, Plan { nodes: 5, lives: true, ..plan });
}

#[test]
fn calls_take_effect_once_across_the_loss_of_all_power() {
    sweep(300, Plan { mix: Mix::Calls, ..DURABLE });
    sweep(200, Plan { mix: Mix::CountedCalls, keys: 1, ..DURABLE });
    sweep(200, Plan { mix: Mix::Counters, keys: 1, ..DURABLE });
}

#[test]
fn reads_without_leases_survive_the_loss_of_all_power() {
    sweep(200, Plan { configure: |config| config.reads = Reads::Quorum, ..DURABLE });
}

#[test]
fn replicas_agree_after_the_loss_of_all_power_although_promises_did_not_wait() {
    let plan = Plan { logs: Logs::Async, ..DURABLE };
    sweep(300, plan);
    let spared = Plan { spares: true, ..plan };
    let probes = sweep(300, spared);
    assert!(probes["hermes: a survivor replays what others may have lost"] > 0);
    sweep(300, Plan { mix: Mix::Deletes, keys: 4, configure: collect_often, ..spared });
    sweep(200, Plan { configure: |config| config.ack_broadcast = true, ..plan });
    sweep(300, Plan { mix: Mix::Deletes, keys: 4, configure: collect_often, ..plan });
}
