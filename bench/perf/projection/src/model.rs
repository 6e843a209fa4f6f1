//! The model: a closed loop of clients and the lanes of three replicas, in discrete events.
//!
//! A lane serves one message after the other and takes the measured time for each, plus the
//! network's charge for received and sent messages. All lanes of a node use shared things one after
//! the other, at the beginning of a handler: a lane that finds one taken waits and does nothing
//! else. The protocol's rules on versions and registrations of every key at every replica decide
//! whether a transaction commits, with the order of arrivals of the simulation.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::rc::Rc;

use quorate_machine::Rng;
use quorate_workloads::{Generator, Source, Workload};
use serde::Serialize;

use super::inputs::{Contention, Handlers, Model, Shared, System};
use super::keys::{Item, Keys, Stamp};

/// One point of a curve.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup<'a> {
    pub(super) system: System,
    pub(super) workload: Workload,
    pub(super) handlers: &'a Handlers,
    pub(super) contention: &'a Contention,
    pub(super) model: &'a Model,
    pub(super) lanes: usize,
    pub(super) zipf: f64,
    /// Each with one transaction under way.
    pub(super) clients_per_lane: usize,
    /// Commits that are counted, after a third as many that are not.
    pub(super) commits: u64,
}

/// The result of one point.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(crate) struct Point {
    /// Lanes of each replica.
    pub(crate) lanes: usize,
    /// Coefficient of the keys' distribution.
    pub(crate) zipf: f64,
    /// Clients of each lane.
    pub(crate) clients_per_lane: usize,
    /// Transactions that committed in a second.
    pub(crate) goodput: f64,
    /// Attempts that aborted, of all.
    pub(crate) abort_rate: f64,
    /// Commits that took a second round trip, of all.
    pub(crate) slow_share: f64,
    /// How much of the time the lanes of the busiest replica were busy or waited for each other.
    pub(crate) busy: f64,
    /// Microseconds from a transaction's first attempt to its commit, on average.
    pub(crate) latency_us: f64,
}

/// Picoseconds, so that a nanosecond's part counts.
type Time = u64;

/// When a simulated clock starts, so that skews stay positive.
const EPOCH: u64 = 1 << 40;
/// Attempts after which a point ends early: nearly all of them abort.
const ATTEMPTS_PER_COMMIT: u64 = 60;
/// How often a pause doubles.
const BACKOFF_DOUBLINGS: u32 = 6;

fn ps(nanos: f64) -> Time {
    (nanos * 1000.0).round() as Time
}

/// A message to a lane.
#[derive(Clone, Debug)]
struct Message {
    kind: Kind,
    client: usize,
    attempt: u64,
    id: Stamp,
    items: Rc<[Item]>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    Get(u64),
    Validate,
    Check,
    /// The slow path's proposal to commit, or a transaction that the primary has validated.
    Accept,
    Accepted,
    Decided(bool),
}

/// A replica's answer to a client.
#[derive(Clone, Copy, Debug)]
enum Answer {
    Value(Stamp),
    Vote(bool),
    Accepted,
    Outcome(bool),
}

#[derive(Debug)]
enum Event {
    Arrive { replica: usize, lane: usize, message: Message },
    Free { replica: usize, lane: usize },
    Answer { client: usize, attempt: u64, answer: Answer },
    Begin { client: usize },
}

/// An event and its time; events of one moment are handled in the order in which they were made.
struct Scheduled(Time, u64, Event);

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        (self.0, self.1) == (other.0, other.1)
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

#[derive(Default)]
struct Lane {
    queue: VecDeque<Message>,
    busy: bool,
    worked: Time,
}

/// Something that all lanes of a replica use, one at a time.
#[derive(Clone, Copy, Default)]
struct Resource {
    free_at: Time,
    last: Option<usize>,
}

impl Resource {
    /// A lane uses it `uses` times in a row from `at` on; returns the time when it is done. The
    /// measured cost under contention is the average over such uses in a row, so if the first one
    /// is contended, all cost that.
    fn use_by(&mut self, lane: usize, at: Time, cost: Shared, uses: u32) -> Time {
        let alone = self.last.is_none_or(|last| last == lane);
        self.last = Some(lane);
        let each = if alone { cost.alone } else { cost.contended };
        self.free_at = at.max(self.free_at) + ps(each * f64::from(uses));
        self.free_at
    }
}

/// A client, and the number of its attempt.
type Attempt = (usize, u64);

#[derive(Default)]
struct Replica {
    keys: Keys,
    counter: Resource,
    /// TAPIR's record or KuaFu++'s log.
    common: Resource,
    /// At a primary: transactions on their way to a majority.
    replicating: BTreeMap<Attempt, (Stamp, Rc<[Item]>)>,
}

struct Client {
    lane: usize,
    skew: u64,
    attempt: u64,
    tries: u32,
    began: Time,
    gets: Vec<u64>,
    puts: Vec<u64>,
    read: Vec<Stamp>,
    items: Rc<[Item]>,
    id: Stamp,
    ok: usize,
    refused: usize,
    accepted: usize,
    decided: bool,
}

#[derive(Clone, Copy, Default)]
struct Counts {
    commits: u64,
    slow: u64,
    attempts: u64,
    latency: Time,
}

struct World<'a> {
    setup: Setup<'a>,
    rng: Rng,
    generator: Generator,
    time: Time,
    made: u64,
    events: BinaryHeap<Reverse<Scheduled>>,
    replicas: Vec<Replica>,
    /// By replica and lane.
    lanes: Vec<Lane>,
    clients: Vec<Client>,
    counter: u64,
    counts: Counts,
}

/// Simulates one point.
pub(super) fn simulate(setup: Setup<'_>) -> Point {
    let mut world = World::new(setup);
    let clients = world.clients.len();
    for client in 0..clients {
        let at = world.rng.below(ps(setup.model.network.delay).max(1));
        world.schedule(at, Event::Begin { client });
    }
    let enough = |counts: &Counts, commits: u64| {
        counts.commits >= commits || counts.attempts >= commits * ATTEMPTS_PER_COMMIT
    };
    let warm_up = (setup.commits / 3).max(4 * clients as u64);
    while !enough(&world.counts, warm_up) {
        world.step();
    }
    let (begin, before) = (world.time, world.counts);
    world.lanes.iter_mut().for_each(|lane| lane.worked = 0);
    let measured = setup.commits.max(8 * clients as u64);
    let target = Counts { commits: before.commits + measured, ..before };
    while world.counts.commits < target.commits
        && world.counts.attempts - before.attempts < measured * ATTEMPTS_PER_COMMIT
    {
        world.step();
    }
    world.point(begin, before)
}

impl<'a> World<'a> {
    fn new(setup: Setup<'a>) -> Self {
        let model = setup.model;
        let mut rng = Rng::new(model.seed);
        let keys = model.keys_per_lane * setup.lanes as u64;
        let generator = Generator::new(setup.workload, keys, setup.zipf, rng.next_u64())
            .expect("there are enough keys, and coefficients lie between 0 and 1");
        let client = |index: usize, rng: &mut Rng| Client {
            lane: index % setup.lanes,
            skew: rng.below(2 * model.clock_skew as u64 + 1),
            attempt: 0,
            tries: 0,
            began: 0,
            gets: Vec::new(),
            puts: Vec::new(),
            read: Vec::new(),
            items: Rc::from([]),
            id: Stamp::default(),
            ok: 0,
            refused: 0,
            accepted: 0,
            decided: false,
        };
        let clients = setup.clients_per_lane * setup.lanes;
        Self {
            clients: (0..clients).map(|index| client(index, &mut rng)).collect(),
            rng,
            generator,
            time: 0,
            made: 0,
            events: BinaryHeap::new(),
            replicas: (0..model.replicas).map(|_| Replica::default()).collect(),
            lanes: (0..model.replicas * setup.lanes).map(|_| Lane::default()).collect(),
            counter: 0,
            counts: Counts::default(),
            setup,
        }
    }

    fn schedule(&mut self, at: Time, event: Event) {
        self.made += 1;
        self.events.push(Reverse(Scheduled(at, self.made, event)));
    }

    fn step(&mut self) {
        let Reverse(Scheduled(at, _, event)) = self.events.pop().expect("clients never rest");
        self.time = at;
        match event {
            Event::Arrive { replica, lane, message } => {
                let index = replica * self.setup.lanes + lane;
                self.lanes[index].queue.push_back(message);
                if !self.lanes[index].busy {
                    self.serve(replica, lane);
                }
            }
            Event::Free { replica, lane } => self.serve(replica, lane),
            Event::Begin { client } => self.begin(client),
            Event::Answer { client, attempt, answer } => {
                if self.clients[client].attempt == attempt && !self.clients[client].decided {
                    self.on_answer(client, answer);
                }
            }
        }
    }

    /// The time that a message is on its way.
    fn flight(&mut self) -> Time {
        let network = self.setup.model.network;
        ps(network.delay) + self.rng.below(ps(network.jitter).max(1))
    }

    fn send(&mut self, at: Time, replica: usize, lane: usize, message: Message) {
        let at = at + self.flight();
        self.schedule(at, Event::Arrive { replica, lane, message });
    }

    fn answer(&mut self, at: Time, message: &Message, answer: Answer) {
        let at = at + self.flight();
        let (client, attempt) = (message.client, message.attempt);
        self.schedule(at, Event::Answer { client, attempt, answer });
    }

    // --- a lane ---------------------------------------------------------------------------------

    /// Takes the next message from a lane's queue.
    fn serve(&mut self, replica: usize, lane: usize) {
        let index = replica * self.setup.lanes + lane;
        let Some(message) = self.lanes[index].queue.pop_front() else {
            self.lanes[index].busy = false;
            return;
        };
        self.lanes[index].busy = true;
        let end = match self.setup.system.has_primary() {
            true => self.serve_with_primary(replica, lane, message),
            false => self.serve_leaderless(replica, lane, message),
        };
        self.lanes[index].worked += end - self.time;
        self.schedule(end, Event::Free { replica, lane });
    }

    /// The end of a handler: it uses the shared things `visits` times, and then does the rest. The
    /// measured cost includes the uses by a lone thread already.
    fn finish(
        &mut self,
        replica: usize,
        lane: usize,
        handler: f64,
        sends: u32,
        visits: &[Visit],
    ) -> Time {
        let contention = self.setup.contention;
        let mut at = self.time;
        let mut rest = handler + self.setup.model.network.message * f64::from(1 + sends);
        for visit in visits {
            let replica = &mut self.replicas[replica];
            let (resource, cost) = match visit {
                Visit::Counter => (&mut replica.counter, contention.counter),
                Visit::Log(_) => (&mut replica.common, contention.log),
                Visit::Record => (&mut replica.common, contention.record),
            };
            let uses = if let Visit::Log(uses) = *visit { uses } else { 1 };
            at = resource.use_by(lane, at, cost, uses);
            rest -= cost.alone * f64::from(uses);
        }
        at + ps(rest.max(0.0))
    }

    fn serve_get(&mut self, replica: usize, lane: usize, key: u64, message: &Message) -> Time {
        let end = self.finish(replica, lane, self.setup.handlers.get, 1, &[]);
        let version = self.replicas[replica].keys.version(key);
        self.answer(end, message, Answer::Value(version));
        end
    }

    /// Meerkat and TAPIR.
    fn serve_leaderless(&mut self, replica: usize, lane: usize, message: Message) -> Time {
        let handlers = self.setup.handlers;
        let record: &[Visit] = match self.setup.system {
            System::Tapir => &[Visit::Record],
            _ => &[],
        };
        let (id, items) = (message.id, Rc::clone(&message.items));
        let keys = &mut self.replicas[replica].keys;
        match message.kind {
            Kind::Get(key) => self.serve_get(replica, lane, key, &message),
            Kind::Validate => {
                let vote = keys.validate(id, &items);
                let end = self.finish(replica, lane, handlers.validate, 1, record);
                self.answer(end, &message, Answer::Vote(vote));
                end
            }
            Kind::Check => {
                let vote = keys.confirm(id, &items);
                let end = self.finish(replica, lane, handlers.check, 1, &[]);
                self.answer(end, &message, Answer::Vote(vote));
                end
            }
            // Noting a proposal costs a visit to the transaction's record, and no key.
            Kind::Accept => {
                let end = self.finish(replica, lane, handlers.decided / 2.0, 1, record);
                self.answer(end, &message, Answer::Accepted);
                end
            }
            Kind::Decided(commit) => {
                match commit {
                    true => keys.apply(id, &items),
                    false => keys.release(id, &items),
                }
                let handler = handlers.decided + handlers.upkeep;
                self.finish(replica, lane, handler, 0, record)
            }
            Kind::Accepted => unreachable!("clients count acceptances"),
        }
    }

    /// Meerkat-PB and KuaFu++.
    fn serve_with_primary(&mut self, replica: usize, lane: usize, message: Message) -> Time {
        let handlers = self.setup.handlers;
        let kuafu = self.setup.system == System::KuaFu;
        match message.kind {
            Kind::Get(key) => self.serve_get(replica, lane, key, &message),
            Kind::Validate => self.validate_alone(lane, message),
            Kind::Accept => {
                self.replicas[replica].keys.apply(message.id, &message.items);
                let visits: &[Visit] = if kuafu { &[Visit::Log(3)] } else { &[] };
                let end = self.finish(replica, lane, handlers.accept + handlers.upkeep, 1, visits);
                self.send(end, 0, lane, Message { kind: Kind::Accepted, ..message });
                end
            }
            Kind::Accepted => {
                let key = (message.client, message.attempt);
                let Some((id, items)) = self.replicas[0].replicating.remove(&key) else {
                    return self.finish(0, lane, handlers.accepted, 0, &[]);
                };
                self.replicas[0].keys.apply(id, &items);
                let visits: &[Visit] = if kuafu { &[Visit::Log(2)] } else { &[] };
                let end = self.finish(0, lane, handlers.accepted, 1, visits);
                self.answer(end, &message, Answer::Outcome(true));
                end
            }
            Kind::Check | Kind::Decided(_) => unreachable!("the primary tells the backups"),
        }
    }

    /// At the primary.
    fn validate_alone(&mut self, lane: usize, mut message: Message) -> Time {
        let handler = self.setup.handlers.validate;
        let kuafu = self.setup.system == System::KuaFu;
        if kuafu {
            self.counter += 1;
            message.id = Stamp(self.counter, 0);
        }
        if !self.replicas[0].keys.validate(message.id, &message.items) {
            let visits: &[Visit] = if kuafu { &[Visit::Counter] } else { &[] };
            let end = self.finish(0, lane, handler, 1, visits);
            self.answer(end, &message, Answer::Outcome(false));
            return end;
        }
        let backups = self.setup.model.replicas - 1;
        let visits: &[Visit] = if kuafu { &[Visit::Counter, Visit::Log(1)] } else { &[] };
        let end = self.finish(0, lane, handler, backups as u32, visits);
        let key = (message.client, message.attempt);
        self.replicas[0].replicating.insert(key, (message.id, Rc::clone(&message.items)));
        for backup in 1..=backups {
            self.send(end, backup, lane, Message { kind: Kind::Accept, ..message.clone() });
        }
        end
    }

    // --- a client -------------------------------------------------------------------------------

    fn begin(&mut self, index: usize) {
        let client = &mut self.clients[index];
        if client.tries == 0 {
            let transaction = self.generator.next();
            client.gets.clone_from(&transaction.gets);
            client.puts.clear();
            client.puts.extend(transaction.puts.iter().map(|put| put.key));
            client.began = self.time;
        }
        client.tries += 1;
        client.attempt += 1;
        client.read.clear();
        (client.ok, client.refused, client.accepted, client.decided) = (0, 0, 0, false);
        self.counts.attempts += 1;
        self.read_or_validate(index);
    }

    fn message(&self, index: usize, kind: Kind) -> Message {
        let client = &self.clients[index];
        let items = Rc::clone(&client.items);
        Message { kind, client: index, attempt: client.attempt, id: client.id, items }
    }

    /// Reads the next key, from any lane of any replica, or goes on to validation.
    fn read_or_validate(&mut self, index: usize) {
        let client = &self.clients[index];
        if let Some(&key) = client.gets.get(client.read.len()) {
            let replica = self.rng.below(self.setup.model.replicas as u64) as usize;
            let lane = self.rng.below(self.setup.lanes as u64) as usize;
            let message = self.message(index, Kind::Get(key));
            return self.send(self.time, replica, lane, message);
        }
        self.propose(index);
        let (lane, replicas) = (self.clients[index].lane, self.setup.model.replicas);
        if self.setup.system.has_primary() {
            let message = self.message(index, Kind::Validate);
            return self.send(self.time, 0, lane, message);
        }
        if self.confirms(index) {
            let first = self.rng.below(replicas as u64) as usize;
            for replica in 0..majority(replicas) {
                let message = self.message(index, Kind::Check);
                self.send(self.time, (first + replica) % replicas, lane, message);
            }
            return;
        }
        self.send_all(index, Kind::Validate);
    }

    fn send_all(&mut self, index: usize, kind: Kind) {
        for replica in 0..self.setup.model.replicas {
            let message = self.message(index, kind);
            self.send(self.time, replica, self.clients[index].lane, message);
        }
    }

    /// Whether a quorum of confirmations suffices for the transaction.
    fn confirms(&self, index: usize) -> bool {
        self.setup.system == System::Meerkat && self.clients[index].puts.is_empty()
    }

    /// Gives a transaction its timestamp and its sets.
    fn propose(&mut self, index: usize) {
        let client = &mut self.clients[index];
        let read = client.gets.iter().zip(&client.read).map(|(&key, &base)| Item {
            key,
            base: Some(base),
            writes: client.puts.contains(&key),
        });
        let blind = client.puts.iter().filter(|key| !client.gets.contains(key));
        let written = blind.map(|&key| Item { key, base: None, writes: true });
        client.items = read.chain(written).collect();
        let clock = EPOCH + self.time / 1000 + client.skew;
        let above = client.read.iter().map(|base| base.0 + 1).max().unwrap_or(0);
        client.id = Stamp(clock.max(client.id.0 + 1).max(above), index as u32 + 1);
    }

    fn on_answer(&mut self, index: usize, answer: Answer) {
        let replicas = self.setup.model.replicas;
        let confirms = self.confirms(index);
        let client = &mut self.clients[index];
        match answer {
            Answer::Value(version) => {
                client.read.push(version);
                self.read_or_validate(index);
            }
            Answer::Vote(ok) if confirms => {
                client.ok += usize::from(ok);
                if !ok {
                    self.end(index, false);
                } else if client.ok == majority(replicas) {
                    self.end(index, true);
                }
            }
            Answer::Vote(ok) => {
                client.ok += usize::from(ok);
                client.refused += usize::from(!ok);
                if client.ok == replicas {
                    self.decide(index, true);
                } else if client.refused >= majority(replicas) {
                    // Of three replicas two refusals are final (Meerkat N3.4-10).
                    self.decide(index, false);
                } else if client.ok >= majority(replicas) && client.refused > 0 {
                    self.send_all(index, Kind::Accept);
                }
            }
            Answer::Accepted => {
                client.accepted += 1;
                if client.accepted == majority(replicas) {
                    self.counts.slow += 1;
                    self.decide(index, true);
                }
            }
            Answer::Outcome(commit) => self.end(index, commit),
        }
    }

    /// Tells all replicas the end of a transaction.
    fn decide(&mut self, index: usize, commit: bool) {
        self.send_all(index, Kind::Decided(commit));
        self.end(index, commit);
    }

    /// The client goes on: with its next transaction, or after a pause with the same one again.
    fn end(&mut self, index: usize, commit: bool) {
        let client = &mut self.clients[index];
        client.decided = true;
        let mut at = self.time;
        if commit {
            client.tries = 0;
            self.counts.commits += 1;
            self.counts.latency += self.time - client.began;
        } else {
            let doublings = (client.tries - 1).min(BACKOFF_DOUBLINGS);
            at += self.rng.below((ps(self.setup.model.backoff) << doublings).max(1));
        }
        self.schedule(at, Event::Begin { client: index });
    }

    fn point(&self, begin: Time, before: Counts) -> Point {
        let setup = &self.setup;
        let elapsed = (self.time - begin).max(1) as f64;
        let commits = (self.counts.commits - before.commits) as f64;
        let attempts = (self.counts.attempts - before.attempts) as f64;
        let busiest = self.lanes.chunks(setup.lanes).map(|lanes| {
            let worked: Time = lanes.iter().map(|lane| lane.worked).sum();
            worked as f64 / (elapsed * setup.lanes as f64)
        });
        Point {
            lanes: setup.lanes,
            zipf: setup.zipf,
            clients_per_lane: setup.clients_per_lane,
            goodput: commits / elapsed * 1e12,
            abort_rate: (1.0 - commits / attempts.max(1.0)).max(0.0),
            slow_share: (self.counts.slow - before.slow) as f64 / commits.max(1.0),
            busy: busiest.fold(0.0, f64::max).min(1.0),
            latency_us: (self.counts.latency - before.latency) as f64 / commits.max(1.0) / 1e6,
        }
    }
}

/// Use of something shared.
#[derive(Clone, Copy, Debug)]
enum Visit {
    Counter,
    /// This many times in a row.
    Log(u32),
    Record,
}

const fn majority(replicas: usize) -> usize {
    replicas / 2 + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The model reproduces the measurement: lanes that take turns at the log finish a round of
    /// three uses every three contended uses, and a lone lane every three uses alone.
    #[test]
    fn contention_costs_in_the_model_what_was_measured() {
        let cost = Shared { alone: 20.0, contended: 180.0 };
        let time = |lanes: usize| {
            let mut log = Resource { free_at: 0, last: Some(lanes - 1) };
            (0..100).map(|round| log.use_by(round % lanes, 0, cost, 3)).max()
        };
        assert_eq!(time(1), Some(ps(100.0 * 3.0 * 20.0)));
        assert_eq!(time(2), Some(ps(100.0 * 3.0 * 180.0)));
        assert_eq!(time(80), time(2));
    }
}
