//! One run, and many.

mod agreement;

use std::any::Any;
use std::fmt;
use std::ops::{ControlFlow, Range};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use quorate_check::{Loss, TxnHistory};
use quorate_machine::Rng;
use quorate_types::{Duration, KeyspaceId, NodeSet, Role};

use crate::channels::Channels;
use crate::clients::{Clients, Plan};
use crate::collections::Collections;
use crate::disks::make_durable;
use crate::flow::Storm;
use crate::judge::{contradiction, had_stale_reads, last_reads, lost_appends};
use crate::keyspaces::Neighbour;
use crate::loader::Loader;
use crate::nemesis::Nemesis;
use crate::process::Entry;
use crate::queues;
use crate::risks::Risks;
use crate::script::Script;
use crate::sessions::{SessionClients, SessionPlan};
use crate::setup::Setup;
use crate::shapes::Shape;
use crate::trace::At;
use crate::world::{Event, MS, World};
use crate::{Faults, Options};

/// How long clients go on after faults have ended.
const AFTERMATH: u64 = 3_000 * MS;
/// How often replicas are compared at the end.
const COMPARISON: u64 = 50 * MS;
/// How long it may take until nothing is left of what was deleted, where it is forgotten soon.
const FORGETTING: u64 = 20_000 * MS;

/// A run that ended well.
#[derive(Debug)]
pub struct Run {
    /// The seed.
    pub seed: u64,
    /// The seed's choices in words.
    pub setup: String,
    /// One number for the whole run: equal for equal seeds.
    pub digest: u64,
    /// Ops that were done, refused, and of unknown fate.
    pub ops: [u64; 3],
    /// Effects of sessions' calls that were acknowledged, and those of unknown fate.
    pub calls: [u64; 2],
    /// The epoch at the end.
    pub epoch: u64,
    /// Peer messages sent.
    pub messages: u64,
    /// Whether more nodes failed than a cluster in memory survives: a majority lost its memory.
    /// Then only safety was judged.
    pub beyond: bool,
    /// Whether reads were outdated, as they may be where a clock broke the bound that leases rest
    /// on.
    pub stale: bool,
    /// Rare branches reached, and how often.
    pub probes: Vec<(&'static str, u64)>,
    /// The history of the first keyspace's clients.
    pub history: TxnHistory,
    /// A line per event, if asked for.
    pub trace: Vec<String>,
}

/// How a run failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FailureKind {
    /// An invariant broke.
    Crash,
    /// Clients saw a contradiction, or replicas disagree.
    Safety,
    /// The cluster did not come back after faults ended.
    Liveness,
    /// A node sent far more messages than the work explains.
    Storm,
}

impl FailureKind {
    /// The exit code of `quorate sim`.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Crash => 10,
            Self::Safety => 11,
            Self::Liveness => 12,
            Self::Storm => 13,
        }
    }

    /// The name in a script.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Crash => "crash",
            Self::Safety => "safety",
            Self::Liveness => "liveness",
            Self::Storm => "storm",
        }
    }
}

impl FromStr for FailureKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::Crash, Self::Safety, Self::Liveness, Self::Storm];
        let found = all.into_iter().find(|kind| kind.name() == text);
        found.ok_or_else(|| format!("'{text}' is no failure; use crash, safety, liveness or storm"))
    }
}

/// A run that failed.
#[derive(Debug)]
pub struct Failure {
    /// The seed that reproduces it.
    pub seed: u64,
    /// How it failed.
    pub kind: FailureKind,
    /// The finding.
    pub message: String,
    /// A line per event, if asked for.
    pub trace: Vec<String>,
    /// The history of the keyspace that failed, or of the first one, if the run got that far.
    pub history: Option<TxnHistory>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}: {:?}: {}", self.seed, self.kind, self.message)
    }
}

/// Runs one seed.
///
/// # Errors
/// The failure of the run.
pub fn run(seed: u64, options: &Options) -> Result<Run, Box<Failure>> {
    execute(seed, options, None, false).0
}

/// Runs a script.
///
/// # Errors
/// The failure of the run.
pub fn replay(script: &Script, trace: bool) -> Result<Run, Box<Failure>> {
    let options = Options { trace, ..script.options.clone() };
    execute(script.seed, &options, Some(script), false).0
}

/// Runs one seed and writes its events down; [`replay`] of the script is the same run. There is no
/// script if the run has no beginning.
pub fn record(seed: u64, options: &Options) -> (Result<Run, Box<Failure>>, Option<Script>) {
    let options = Options { trace: false, ..options.clone() };
    let (result, script) = execute(seed, &options, None, true);
    let expect = result.as_ref().err().map(|failure| failure.kind);
    (result, script.map(|script| Script { expect, ..script }))
}

/// A run, drawn from its seed or as a script has it, and its script if it is recorded.
fn execute(
    seed: u64,
    options: &Options,
    script: Option<&Script>,
    record: bool,
) -> (Result<Run, Box<Failure>>, Option<Script>) {
    let mut simulation = None;
    let phases = || simulation.insert(Simulation::new(seed, options, script, record)).run();
    let text = match catch_unwind(AssertUnwindSafe(phases)) {
        Ok(result) => {
            let mut simulation = simulation.expect("it has run");
            let script = record.then(|| simulation.script());
            let result = match result {
                Ok(()) => {
                    let setup = simulation.setup.clone();
                    let judged = catch_unwind(AssertUnwindSafe(|| simulation.judge()));
                    judged.unwrap_or_else(|panic| {
                        Err(crash(seed, format!("the judge: {} ({setup})", said(&*panic))))
                    })
                }
                Err((kind, message)) => Err(simulation.fail(kind, message)),
            };
            return (result, script);
        }
        Err(panic) => said(&*panic),
    };
    match simulation {
        Some(mut simulation) => {
            let script = record.then(|| simulation.script());
            (Err(simulation.fail(FailureKind::Crash, text)), script)
        }
        None => (Err(crash(seed, text)), None),
    }
}

/// What a panic has said.
fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("panic").to_owned()
}

/// A failure of which nothing is left but what was said.
fn crash(seed: u64, message: String) -> Box<Failure> {
    let (kind, trace, history) = (FailureKind::Crash, Vec::new(), None);
    Box::new(Failure { seed, kind, message, trace, history })
}

/// The result of many runs.
#[derive(Debug, Default)]
pub struct Sweep {
    /// The seeds that were run: all of them unless the sweep stopped early.
    pub seeds: Range<u64>,
    /// Runs that ended well.
    pub passed: u64,
    /// Of these, runs in which a majority lost its memory, so that only safety was judged.
    pub beyond: u64,
    /// Of these, runs in which reads were outdated, since a clock broke the bound that leases rest
    /// on.
    pub stale: u64,
    /// Ops done, refused, unknown, over all runs.
    pub ops: [u64; 3],
    /// Effects of sessions' calls, acknowledged and unknown, over all runs.
    pub calls: [u64; 2],
    /// Peer messages over all runs.
    pub messages: u64,
    /// Views over all runs.
    pub views: u64,
    /// Rare branches and how often they were reached, those never reached included.
    pub probes: Vec<(&'static str, u64)>,
    /// Runs that failed, in order of seed.
    pub failures: Vec<Failure>,
}

/// Runs `seeds` on all cores and calls `progress` after each with the number done. Stops early once
/// `failures_max` runs have failed or `progress` says so; seeds that have begun are finished, so
/// that the finished seeds have no gap.
pub fn sweep(
    seeds: Range<u64>,
    options: &Options,
    failures_max: usize,
    progress: impl Fn(u64) -> ControlFlow<()> + Sync,
) -> Sweep {
    let next = AtomicU64::new(seeds.start);
    let done = AtomicU64::new(0);
    let enough = AtomicBool::new(failures_max == 0);
    let known = quorate_node::PROBES.iter().flat_map(|list| list.iter().copied());
    let known = known.filter(|name| options.has_probe(name)).chain(options.disk_probes());
    let known = known.map(|name| (name, 0));
    let total = Mutex::new(Sweep { probes: known.collect(), ..Sweep::default() });
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while !enough.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        break;
                    }
                    let result = run(seed, options);
                    let mut total = total.lock().expect("no worker panics");
                    total.add(result);
                    let failures = total.failures.len();
                    drop(total);
                    let wanted = progress(done.fetch_add(1, Ordering::Relaxed) + 1);
                    if failures >= failures_max || wanted.is_break() {
                        enough.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let mut sweep = total.into_inner().expect("no worker panics");
    sweep.failures.sort_by_key(|failure| failure.seed);
    sweep.probes.sort_unstable();
    sweep.seeds = seeds.start..next.into_inner().min(seeds.end);
    sweep
}

impl Sweep {
    fn add(&mut self, result: Result<Run, Box<Failure>>) {
        match result {
            Ok(run) => {
                self.passed += 1;
                self.beyond += u64::from(run.beyond);
                self.stale += u64::from(run.stale);
                for (sum, count) in self.ops.iter_mut().zip(run.ops) {
                    *sum += count;
                }
                for (sum, count) in self.calls.iter_mut().zip(run.calls) {
                    *sum += count;
                }
                self.messages += run.messages;
                self.views += run.epoch;
                for (name, count) in run.probes {
                    match self.probes.iter_mut().find(|(known, _)| *known == name) {
                        Some((_, sum)) => *sum += count,
                        None => self.probes.push((name, count)),
                    }
                }
            }
            Err(failure) => self.failures.push(*failure),
        }
    }
}

/// The clients and records of one keyspace.
struct Users {
    clients: Clients,
    loader: Loader,
}

struct Simulation<'a> {
    seed: u64,
    options: &'a Options,
    setup: String,
    faults: Faults,
    world: World,
    /// By number of their keyspace.
    users: Vec<Users>,
    sessions: SessionClients,
    /// Clients that publish and listen, if the run has any.
    channels: Option<Channels>,
    nemesis: Nemesis,
    beyond: bool,
    /// What the keyspaces held at the end, before everything was deleted.
    contents: Option<Vec<Vec<Entry>>>,
    /// The first storm; it ends the run.
    storm: Option<Storm>,
}

impl<'a> Simulation<'a> {
    fn new(seed: u64, options: &'a Options, script: Option<&Script>, record: bool) -> Self {
        quorate_scripts::install();
        let mut rng = Rng::new(seed);
        let shape = Shape::draw(seed, options);
        let setup = Setup::draw(seed, options, &shape, &mut rng);
        let Setup { mut text, faults, mut nodes, network, guests } = setup;
        let with_sessions = SessionPlan::draw(seed, options);
        text.push_str(&format!("{shape}{with_sessions}"));
        nodes.iter_mut().for_each(|node| node.session_term = with_sessions.term);
        let with_channels = shape.channels;
        let mut shapes = vec![(shape, guests)];
        let neighbours = Neighbour::draw(seed, options, nodes.len() as u16).into_iter();
        let durable = |it: &Neighbour| !options.disks || it.engine.capabilities().durable;
        for neighbour in neighbours.filter(durable) {
            neighbour.add_to(&mut nodes);
            text.push_str(&neighbour.to_string());
            shapes.push((neighbour.shape, neighbour.guests));
        }
        let drift_ppm = if faults.drift { u64::from(nodes[0].clock_drift_ppm) } else { 0 };
        let disks = options.disks.then(|| Rng::new(seed ^ u64::from_le_bytes(*b"of disks")));
        let mut mixed = Vec::new();
        if disks.is_some() {
            let words;
            (mixed, words) = make_durable(&mut nodes, seed, options);
            text.push_str(&words);
        }
        let mut world = World::new(nodes, network, faults, rng, disks, options.trace);
        world.mix(mixed);
        let ids: Vec<KeyspaceId> = world.keyspaces.iter().map(|keyspace| keyspace.id).collect();
        for (id, (_, guests)) in ids.iter().zip(&shapes) {
            for _ in 0..*guests {
                let rng = world.rng.fork();
                world.add_guest(*id, rng, drift_ppm);
            }
        }
        if let Some(script) = script {
            world.follow(script.fate_table(), &script.faults);
        }
        world.fates.drawn = record.then(Vec::new);
        let plans = ids.iter().zip(&shapes).map(|(id, (shape, _))| Plan {
            keyspace: *id,
            count: options.clients,
            keys: options.keys,
            churn: shape.churn,
            types: shape.types.then(|| Collections::new(seed ^ u64::from(id.0), shape.expiry)),
            expiry: shape.expiry.then(|| Nemesis::clocks_apart(faults, &world)),
            ordered: world.keyspace(*id).is_ordered(),
            watches_last: world.keyspace(*id).watches_last(),
            workload: options.workload,
            isolation: world.keyspace(*id).isolation(faults),
            orders: script.map(|script| &script.orders[..]),
            drawn: script
                .and_then(|script| script.drawn.get(usize::from(id.0)).copied())
                .unwrap_or(0),
            record,
        });
        let mut plans: Vec<Plan<'_>> = plans.collect();
        let clients: Vec<Clients> =
            plans.iter_mut().map(|plan| Clients::new(plan, &mut world)).collect();
        let session_steps = script.map(|script| &script.session_steps[..]);
        let sessions = SessionClients::new(with_sessions, session_steps, record, &mut world);
        let channels = with_channels.then(|| Channels::new(seed, &mut world));
        let faults_done = script.map(|script| &script.faults[..]);
        let nemesis = Nemesis::new(seed, faults, faults_done, &mut world);
        let mut users = Vec::new();
        for ((id, (shape, _)), clients) in ids.into_iter().zip(shapes).zip(clients) {
            users.push(Users { clients, loader: Loader::new(id, &shape, &mut world) });
        }
        let (setup, beyond, contents, storm) = (text, false, None, None);
        Self {
            seed,
            options,
            setup,
            faults,
            world,
            users,
            sessions,
            channels,
            nemesis,
            beyond,
            contents,
            storm,
        }
    }

    /// The events of a recorded run, as a script.
    fn script(&mut self) -> Script {
        let mut faults = std::mem::take(&mut self.nemesis.done);
        faults.append(&mut self.world.interruptions.done);
        faults.sort_by_key(|(at, _)| *at);
        let users = self.users.iter_mut();
        let mut orders: Vec<_> = users.flat_map(|users| users.clients.orders.drain(..)).collect();
        orders.sort_by_key(|order| order.at);
        Script {
            seed: self.seed,
            options: self.options.clone(),
            expect: None,
            drawn: self.users.iter().map(|users| users.clients.drawn).collect(),
            orders,
            session_steps: std::mem::take(&mut self.sessions.session_steps),
            faults,
            fates: self.world.fates.drawn.take().unwrap_or_default(),
        }
    }

    /// The whole run; its histories are judged afterwards.
    fn run(&mut self) -> Result<(), (FailureKind, String)> {
        let end = self.phases();
        self.storm.as_ref().map_or(end, |storm| Err((FailureKind::Storm, storm.to_string())))
    }

    fn phases(&mut self) -> Result<(), (FailureKind, String)> {
        let span = |span: Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        self.advance(span(self.options.safety_phase), |_| false);
        self.nemesis.heal(&mut self.world);
        let deadline = self.world.time + span(self.options.heal_limit);
        // Clients go on for a while: the cluster must heal under load, too.
        self.advance(self.world.time + AFTERMATH, |_| false);
        let complaint =
            self.users.iter_mut().find_map(|users| users.clients.progress.complaint.take());
        if let Some(message) = complaint {
            return Err((FailureKind::Liveness, message));
        }
        if !self.advance(deadline, Self::all_serve) {
            self.beyond = self.world.majority_lost();
            let message = self.why_not_serving();
            return if self.beyond { Ok(()) } else { Err((FailureKind::Liveness, message)) };
        }
        self.sessions.stop();
        self.channels.iter_mut().for_each(|channels| channels.working = false);
        for Users { clients, loader } in &mut self.users {
            clients.stop();
            loader.stop();
        }
        if !self.advance(deadline, |this| !this.any_waiting() && !this.sessions.any_waiting()) {
            return Err((FailureKind::Liveness, "ops in flight never ended".into()));
        }
        self.final_reads(deadline).map_err(|message| (FailureKind::Liveness, message))?;
        if let Some(channels) = &mut self.channels {
            channels.publish_everywhere(&mut self.world);
            let missing = |this: &Self| this.channels.as_ref()?.missing(&this.world);
            if !self.advance(deadline, |this| missing(this).is_none()) {
                let message = missing(self).unwrap_or_default();
                return Err((FailureKind::Liveness, message));
            }
        }
        loop {
            // A read may find a newer version, which again needs a read to finish.
            for users in &self.users {
                users.loader.read_unreadable(&mut self.world);
            }
            let unlike = self.disagreement().or_else(|| self.world.unlogged());
            let Some(message) = unlike else { return self.forget_all() };
            if self.world.time >= deadline || self.storm.is_some() {
                return Err((FailureKind::Safety, message));
            }
            self.advance(self.world.time + COMPARISON, |_| false);
        }
    }

    /// Deletes everything where what is deleted is forgotten soon. Then nothing may be left.
    fn forget_all(&mut self) -> Result<(), (FailureKind, String)> {
        self.contents = Some(self.all_contents());
        self.sessions.deleting = true;
        let deadline = self.world.time + FORGETTING;
        loop {
            let mut loaders = self.users.iter().map(|users| &users.loader);
            let left = loaders.find_map(|loader| loader.delete_all(&mut self.world));
            let Some(left) = left else { return Ok(()) };
            if self.world.time >= deadline || self.storm.is_some() {
                return Err((FailureKind::Liveness, left));
            }
            self.advance(self.world.time + 10 * COMPARISON, |_| false);
        }
    }

    /// Runs events until `until` or until `done`; returns whether `done` came true. Nothing runs
    /// after a storm.
    fn advance(&mut self, until: u64, done: impl Fn(&Self) -> bool) -> bool {
        let mut check_at = self.world.time;
        loop {
            // Asking costs more than an event; every few milliseconds is enough. The moments depend
            // on no event, since a shortened script has fewer events.
            if self.world.time >= check_at {
                self.storm = self.storm.take().or_else(|| self.world.end_window());
                if self.storm.is_some() {
                    return false;
                }
                if done(self) {
                    return true;
                }
                check_at = self.world.time + 5 * MS;
            }
            match self.world.next(until.min(check_at)) {
                Some(event) => self.handle(event),
                None if self.world.time >= until => return done(self),
                None => {}
            }
        }
    }

    fn handle(&mut self, event: Event) {
        match self.world.handle(event) {
            None => {}
            Some(Event::Nemesis) => self.nemesis.act(&mut self.world),
            Some(Event::Channels) => {
                if let Some(channels) = &mut self.channels {
                    channels.draw(&mut self.world);
                }
            }
            Some(Event::Channel { place, act }) => {
                if let Some(channels) = &mut self.channels {
                    channels.act(&mut self.world, place, act);
                }
            }
            Some(Event::Operator) => self.nemesis.operate(&mut self.world),
            Some(Event::Restore) => self.nemesis.restore(&mut self.world),
            Some(Event::Load(keyspace)) => {
                self.users[usize::from(keyspace.0)].loader.act(&mut self.world);
            }
            Some(Event::Fault(fault)) => self.nemesis.apply(&mut self.world, fault),
            Some(Event::Undo(undo)) => self.nemesis.undo(&mut self.world, undo),
            Some(
                event @ (Event::Session(_)
                | Event::SessionAgain { .. }
                | Event::SessionTry { .. }
                | Event::SessionTimeout { .. }),
            ) => self.sessions.handle(&mut self.world, &event),
            Some(
                event @ (Event::Client(client)
                | Event::Request { client, .. }
                | Event::ClientTimeout { client, .. }),
            ) => {
                let users = &mut self.users[usize::from(client.keyspace.0)];
                users.clients.handle(&mut self.world, event);
            }
            Some(other) => unreachable!("nobody's event: {other:?}"),
        }
        let Self { users, world, sessions, channels, .. } = self;
        if let Some(channels) = channels {
            channels.collect(world);
        }
        users.iter_mut().for_each(|users| users.loader.collect(world));
        sessions.collect(world);
        users.iter_mut().for_each(|users| users.clients.collect(world));
        while let Some(node) = world.died.pop() {
            users.iter_mut().for_each(|users| users.clients.node_died(world, node));
        }
        while let Some(guest) = world.died_guests.pop() {
            users.iter_mut().for_each(|users| users.clients.guest_died(world, guest));
        }
        if std::mem::take(&mut world.losses_changed) {
            Self::tell_losses(world, users, sessions);
        }
        while let Some(process) = self.world.ambushed.pop() {
            self.nemesis.died(&mut self.world, process);
        }
    }

    /// Clients that judge answers as they come are told what may be lost.
    fn tell_losses(world: &mut World, users: &mut [Users], sessions: &mut SessionClients) {
        let time = world.time;
        for (keyspace, users) in world.keyspaces.iter().zip(users) {
            let Some(losing) = world.losing(keyspace) else { continue };
            let (Loss { from, at, .. }, id) = (losing.loss, keyspace.id);
            world.trace.event(&[time, from, at, u64::from(id.0)], || {
                let (time, from, at) = (At(time), At(from), At(at));
                format!("{time} {id:?} may have lost what was answered from {from} to {at}")
            });
            users.clients.lose(losing);
            users.loader.lose(losing.loss);
            sessions.power_lost(keyspace.id, losing);
        }
    }

    /// Whether any client waits for an answer.
    fn any_waiting(&self) -> bool {
        self.users.iter().any(|users| users.clients.any_waiting())
    }

    fn all_serve(&self) -> bool {
        if self.world.operator.waits() {
            return false;
        }
        let all: NodeSet = self.world.nodes.iter().map(|node| node.id).collect();
        self.world.nodes.iter().all(|node| {
            node.up && !node.is_stopped() && {
                let view = node.lane(0).view();
                view.active() == all
                    && view.departing.is_empty()
                    && view.member(node.id).is_some_and(|member| {
                        member.role == Role::Active
                            && member.incarnation == node.lane(0).incarnation()
                    })
            }
        })
    }

    fn why_not_serving(&self) -> String {
        let mut text = String::from("not every node serves:");
        for node in &self.world.nodes {
            let view = node.lane(0).view();
            text.push_str(&format!(
                " [{:?} up={} stopped={} epoch={} live={:?} active={:?} departing={:?} {}]",
                node.id,
                node.up,
                node.is_stopped(),
                view.epoch,
                view.live(),
                view.active(),
                view.departing,
                node.phase(self.world.time)
            ));
        }
        text
    }

    /// Every node must answer every kind of request, on keys of every keyspace.
    fn final_reads(&mut self, deadline: u64) -> Result<(), String> {
        (0..self.users.len()).try_for_each(|keyspace| self.final_reads_of(keyspace, deadline))
    }

    fn final_reads_of(&mut self, keyspace: usize, deadline: u64) -> Result<(), String> {
        let of_keyspace = if keyspace == 0 { String::new() } else { format!(" in {keyspace}") };
        for round in 0.. {
            for node in 0..self.world.nodes.len() {
                let clients = &mut self.users[keyspace].clients;
                let done = clients.done;
                let issued = clients.issue_closing(&mut self.world, node, round);
                if issued == 0 {
                    return Ok(());
                }
                let id = self.world.nodes[node].id;
                if !self.advance(deadline, |this| !this.any_waiting()) {
                    return Err(format!(
                        "the last ops{of_keyspace}, round {round}, are stuck on {id:?}"
                    ));
                }
                if self.users[keyspace].clients.done != done + issued {
                    return Err(format!(
                        "the last ops{of_keyspace}, round {round}, were refused by {id:?} although \
                         all is well"
                    ));
                }
            }
        }
        unreachable!("the rounds end")
    }

    fn judge(mut self) -> Result<Run, Box<Failure>> {
        let mut ops = [0; 3];
        for Users { clients, .. } in &self.users {
            let these = [clients.done, clients.refused, clients.unknown];
            ops.iter_mut().zip(these).for_each(|(sum, count)| *sum += count);
        }
        let epoch = self.world.nodes[0].lane(0).view().epoch.0;
        let messages = self.world.messages;
        self.world.count_torn_sectors();
        let probes = self.world.probes.iter().map(|(name, count)| (*name, *count)).collect();
        let digest = self.world.trace.digest();
        let contents = self.contents.take().unwrap_or_else(|| self.all_contents());
        let misled = self.world.misled_operator();
        let (time, unleased) = (self.world.time, self.world.unleased());
        let losses: Vec<_> = self.world.keyspaces.iter().map(|it| self.world.losses(it)).collect();
        let by_group: Vec<_> =
            self.world.keyspaces.iter().map(|it| self.world.losses_by_group(it)).collect();
        let torn: Vec<bool> = self.world.keyspaces.iter().map(|it| self.world.tears(it)).collect();
        let trace = self.world.trace.into_lines();
        let (seed, setup, beyond) = (self.seed, self.setup, self.beyond);
        let (mut histories, mut stale) = (Vec::new(), false);
        let keyspaces = self.world.keyspaces.iter().zip(contents);
        for ((keyspace, contents), Users { clients, loader }) in keyspaces.zip(self.users) {
            let number = usize::from(keyspace.id.0);
            let risks =
                Risks { losses: &losses[number], by_group: &by_group[number], torn: torn[number] };
            let mut seen = clients.finish();
            seen.queues.lose(risks.losses, risks.torn);
            if !beyond {
                let last = last_reads(&seen.history, &contents, time);
                seen.history.operations.extend(last);
            }
            let unleased = if keyspace.reads_under_lease() { &unleased[..] } else { &[] };
            let mut wrong = contradiction(&seen, keyspace.isolation(self.faults), unleased, risks);
            wrong = wrong.or_else(|| self.sessions.complaints.first().cloned());
            wrong = wrong.or_else(|| misled.clone());
            let complaints = self.channels.as_ref().map(|channels| &channels.complaints);
            wrong = wrong.or_else(|| complaints?.first().cloned());
            if !beyond {
                wrong = wrong.or_else(|| seen.queues.check_left(&queues::left(&contents)).err());
                wrong = wrong.or_else(|| queues::lost(&seen.queues, &contents));
                wrong = wrong.or_else(|| seen.moved.check_left(&contents).err());
                wrong = wrong.or_else(|| lost_appends(&seen.history, &contents, risks));
                wrong = wrong.or_else(|| self.sessions.contradiction(keyspace.id, &contents));
                wrong = wrong.or_else(|| loader.missing(&contents));
            }
            stale |= !unleased.is_empty() && had_stale_reads(&seen, risks);
            let history = seen.history;
            if let Some(wrong) = wrong {
                let message = format!("keyspace {}: {wrong}\n({setup})", keyspace.id.0);
                let (kind, history) = (FailureKind::Safety, Some(history));
                return Err(Box::new(Failure { seed, kind, message, trace, history }));
            }
            histories.push(history);
        }
        let history = histories.swap_remove(0);
        let calls = self.sessions.totals();
        Ok(Run {
            seed,
            setup,
            digest,
            ops,
            calls,
            epoch,
            messages,
            beyond,
            stale,
            probes,
            history,
            trace,
        })
    }

    fn fail(mut self, kind: FailureKind, message: String) -> Box<Failure> {
        Box::new(Failure {
            seed: self.seed,
            kind,
            message: format!("{message} ({})", self.setup),
            trace: self.world.trace.into_lines(),
            history: Some(self.users.swap_remove(0).clients.finish().history),
        })
    }
}
