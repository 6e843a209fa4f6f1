//! Clients: closed loops of commands and transactions through any node, with everything recorded.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quorate_check::{Action, Recorder, TxnHistory};
use quorate_commands::Reply;
use quorate_machine::{Outcome, Rng};
use quorate_node::Isolation;
use quorate_types::Tag;

use crate::operations;
use crate::transactions::{Open, Transactions};
use crate::world::{self, Command, Event, MS, World};

/// How long a client waits before it calls the fate of an op unknown.
const PATIENCE: u64 = 5_000 * MS;
/// Longest pause of a client between two ops.
const THINK: u64 = 40 * MS;

struct Client {
    rng: Rng,
    /// The node it talks to; it moves on after a refusal and now and then without a reason.
    node: usize,
    sequence: u64,
    waiting: Option<Waiting>,
}

struct Waiting {
    sequence: u64,
    open: Open,
    command: Command,
    sent_to: usize,
}

/// What clients do.
enum Load {
    /// Single-key commands.
    Operations {
        /// How many keys.
        keys: usize,
        /// Makes values unique.
        values: u64,
    },
    /// Transactions.
    Transactions(Box<Transactions>),
}

/// What the clients of a run saw.
pub(crate) struct Seen {
    /// What the checkers judge.
    pub(crate) history: TxnHistory,
    /// Transfers between accounts: judged by their sum alone.
    pub(crate) bank: TxnHistory,
    /// Answers that no history explains.
    pub(crate) complaints: Vec<String>,
}

/// All clients of a run and what they saw.
pub(crate) struct Clients {
    clients: Vec<Client>,
    load: Load,
    recorder: Recorder<TxnHistory>,
    clock: Arc<AtomicU64>,
    /// Whether clients begin new ops.
    pub(crate) working: bool,
    pub(crate) done: u64,
    pub(crate) refused: u64,
    pub(crate) unknown: u64,
}

impl Clients {
    /// Clients of a keyspace whose transactions have that isolation, if it has any.
    pub(crate) fn new(
        count: usize,
        keys: usize,
        isolation: Option<Isolation>,
        world: &mut World,
    ) -> Self {
        let clock = Arc::new(AtomicU64::new(0));
        let recorder = || {
            let reading = Arc::clone(&clock);
            Recorder::with_clock(TxnHistory::default(), move || reading.load(Ordering::Relaxed))
        };
        let load = match isolation {
            None => Load::Operations { keys, values: 0 },
            Some(isolation) => {
                Load::Transactions(Box::new(Transactions::new(isolation, keys, recorder())))
            }
        };
        let recorder = recorder();
        let clients = (0..count)
            .map(|index| {
                let at = world.time + world.rng.below(THINK);
                world.schedule(at, Event::Client(index));
                let node = world.rng.below(world.nodes.len() as u64) as usize;
                Client { rng: world.rng.fork(), node, sequence: 0, waiting: None }
            })
            .collect();
        Self { clients, load, recorder, clock, working: true, done: 0, refused: 0, unknown: 0 }
    }

    /// Whether any client waits for an answer.
    pub(crate) fn any_waiting(&self) -> bool {
        self.clients.iter().any(|client| client.waiting.is_some())
    }

    /// What was recorded.
    pub(crate) fn finish(self) -> Seen {
        let finish = |recorder: Recorder<TxnHistory>| {
            recorder.finish().expect("recording to memory can't fail")
        };
        let (bank, complaints) = match self.load {
            Load::Operations { .. } => (TxnHistory::default(), Vec::new()),
            Load::Transactions(load) => (finish(load.bank), load.complaints),
        };
        Seen { history: finish(self.recorder), bank, complaints }
    }

    /// Handles an event of a client.
    pub(crate) fn handle(&mut self, world: &mut World, event: Event) {
        self.clock.store(world.time, Ordering::Relaxed);
        match event {
            Event::Client(index) => self.begin(world, index),
            Event::Request { client, op } => self.arrive(world, client, op),
            Event::ClientTimeout { client, op } => {
                if self.clients[client]
                    .waiting
                    .as_ref()
                    .is_some_and(|waiting| waiting.sequence == op)
                {
                    self.end_unknown(world, client);
                }
            }
            other => unreachable!("not a client's event: {other:?}"),
        }
    }

    /// A process died: whoever waited for it learns nothing more.
    pub(crate) fn node_died(&mut self, world: &mut World, node: usize) {
        self.clock.store(world.time, Ordering::Relaxed);
        for client in 0..self.clients.len() {
            if self.clients[client].waiting.as_ref().is_some_and(|waiting| waiting.sent_to == node)
            {
                self.end_unknown(world, client);
            }
        }
    }

    /// Passes on the answers that have left nodes.
    pub(crate) fn collect(&mut self, world: &mut World) {
        self.clock.store(world.time, Ordering::Relaxed);
        for answer in std::mem::take(&mut world.answers) {
            self.answered(world, answer);
        }
    }

    /// Issues what shows at the end that all is well, by clients of their own on one node: a part
    /// of it for each `round`. How many were issued; none after the last round.
    pub(crate) fn issue_closing(&mut self, world: &mut World, node: usize, round: usize) -> u64 {
        self.clock.store(world.time, Ordering::Relaxed);
        match &mut self.load {
            Load::Operations { keys, .. } if round >= *keys => 0,
            Load::Operations { .. } => {
                for action in [Action::Append("0".into()), Action::Get] {
                    let index = self.add_client(world, node);
                    let (open, command) = self.single(index, round, action);
                    self.send(world, index, open, command);
                }
                2
            }
            Load::Transactions(load) => {
                let process = self.clients.len() as u64;
                let Some((open, command)) = load.closing(process, round, &self.recorder) else {
                    return 0;
                };
                let index = self.add_client(world, node);
                self.send(world, index, open, command);
                1
            }
        }
    }

    fn add_client(&mut self, world: &mut World, node: usize) -> usize {
        let client = Client { rng: world.rng.fork(), node, sequence: 0, waiting: None };
        self.clients.push(client);
        self.clients.len() - 1
    }

    fn single(&self, index: usize, key: usize, action: Action) -> (Open, Command) {
        let key = format!("key:{key}");
        let call = operations::to_call(&key, &action);
        let invocation = self.recorder.invoke(index as u64, key.as_str(), action.clone());
        (Open::Single(invocation, action), Command::Op(call))
    }

    fn begin(&mut self, world: &mut World, index: usize) {
        if !self.working || self.clients[index].waiting.is_some() {
            return;
        }
        let nodes = world.nodes.len() as u64;
        let client = &mut self.clients[index];
        if client.rng.chance(1, 10) {
            client.node = client.rng.below(nodes) as usize;
        }
        let (open, command) = match &mut self.load {
            Load::Operations { keys, values } => {
                // Half of the ops go to one key, so that there is always a fight for something.
                let other = !client.rng.chance(1, 2);
                let key = if other { client.rng.below(*keys as u64) as usize } else { 0 };
                *values += 1;
                let action = operations::draw_action(&mut client.rng, key, *values);
                self.single(index, key, action)
            }
            Load::Transactions(load) => load.draw(index as u64, &mut client.rng, &self.recorder),
        };
        self.send(world, index, open, command);
    }

    fn send(&mut self, world: &mut World, index: usize, open: Open, command: Command) {
        let client = &mut self.clients[index];
        client.sequence += 1;
        let sequence = client.sequence;
        client.waiting = Some(Waiting { sequence, open, command, sent_to: client.node });
        world.schedule(world.time, Event::Request { client: index, op: sequence });
        world.schedule(world.time + PATIENCE, Event::ClientTimeout { client: index, op: sequence });
    }

    fn arrive(&mut self, world: &mut World, index: usize, op: u64) {
        let client = &mut self.clients[index];
        let Some(waiting) = client.waiting.as_ref().filter(|waiting| waiting.sequence == op) else {
            return;
        };
        let node = waiting.sent_to;
        if !world.nodes[node].up {
            // Nobody listens there, so nothing was sent.
            self.end(world, index, Outcome::Refused(quorate_machine::Refusal::NotServing));
        } else if world.nodes[node].paused {
            world.hold(node, Event::Request { client: index, op });
        } else {
            let lane = client.rng.below(u64::from(world.lanes())) as usize;
            let tag = Tag((index as u64) << 32 | op);
            let command = waiting.command.clone();
            world.execute(node, lane, tag, index as u64, &command);
        }
    }

    fn answered(&mut self, world: &mut World, answer: world::Answer) {
        let index = (answer.tag.0 >> 32) as usize;
        let op = answer.tag.0 & u64::from(u32::MAX);
        let current = self.clients[index].waiting.as_ref();
        if current.is_some_and(|waiting| waiting.sequence == op) {
            self.end(world, index, answer.outcome);
        }
    }

    fn end_unknown(&mut self, world: &mut World, index: usize) {
        self.end(world, index, Outcome::Unknown);
    }

    fn end(&mut self, world: &mut World, index: usize, outcome: Outcome<Reply<'static>>) {
        let client = &mut self.clients[index];
        let waiting = client.waiting.take().expect("an op ends once");
        let (kind, count) = match &outcome {
            Outcome::Done(_) => (0, &mut self.done),
            Outcome::Refused(_) => (1, &mut self.refused),
            Outcome::Unknown => (2, &mut self.unknown),
        };
        *count += 1;
        let time = world.time;
        world.trace.event(&[time, 20, index as u64, waiting.sequence, kind], || {
            let at = crate::trace::At(time);
            format!("{at} client {index} {}: {outcome:?}", waiting.command)
        });
        let next = match (&mut self.load, waiting.open) {
            (Load::Operations { .. }, Open::Single(invocation, action)) => {
                match outcome {
                    Outcome::Done(reply) => {
                        self.recorder.done(invocation, operations::to_answer(&action, &reply));
                    }
                    Outcome::Refused(_) => self.recorder.refused(invocation),
                    Outcome::Unknown => self.recorder.unknown(invocation),
                }
                None
            }
            (Load::Transactions(load), open) => {
                load.end(index as u64, open, outcome, &mut client.rng, &self.recorder)
            }
            (Load::Operations { .. }, open) => unreachable!("{open:?} among single-key commands"),
        };
        if let Some((open, command)) = next {
            return self.send(world, index, open, command);
        }
        if kind != 0 {
            client.node = client.rng.below(world.nodes.len() as u64) as usize;
        }
        let think = client.rng.below(THINK) + if kind == 0 { 0 } else { 20 * MS };
        world.schedule(time + think, Event::Client(index));
    }
}
