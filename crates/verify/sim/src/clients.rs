//! Clients: closed loops of commands and transactions through any node, or as guests by themselves.
//! Everything is recorded.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quorate_check::{Action, Queues, Recorder, TxnHistory};
use quorate_commands::{Op, Reply};
use quorate_machine::{Outcome, Refusal, Rng};
use quorate_meerkat::Isolation;
use quorate_types::{KeyspaceId, Timestamp};

use crate::collections::{self, Collections};
use crate::command::Command;
use crate::intent::Intent;
use crate::keyspaces::{ClientId, is_of, unmarked};
use crate::lapses::{self, Lapses};
use crate::losses::Losing;
use crate::moves::Moved;
use crate::operations;
use crate::options::Workload;
use crate::progress::Progress;
use crate::script::Order;
use crate::transactions::{self, Open, Transactions};
use crate::world::{self, Event, MS, World};

/// How long a client waits before it calls the fate of an op unknown.
const PATIENCE: u64 = 5_000 * MS;
/// Longest pause of a client between two ops.
const THINK: u64 = 40 * MS;

struct Client {
    rng: Rng,
    /// The node it talks to; it moves on after a refusal, and now and then without a reason.
    node: usize,
    /// The guest that it is a part of, if any.
    guest: Option<usize>,
    sequence: u64,
    waiting: Option<Waiting>,
    /// The orders that a script has for it.
    orders: VecDeque<Order>,
}

struct Waiting {
    sequence: u64,
    began: u64,
    /// The time of the last change, if the op must complete unless another change follows.
    steady: Option<u64>,
    open: Open,
    command: Command,
    sent_to: usize,
    lane: u16,
}

/// The work of clients.
enum Load {
    /// Single-key commands.
    Operations {
        /// How many keys.
        keys: usize,
        /// Makes values unique.
        values: u64,
        churn: bool,
        types: Option<Collections>,
        lapses: Option<Lapses>,
    },
    /// Transactions.
    Transactions(Box<Transactions>),
}

impl Load {
    /// A command on a collection, now and then, if clients use them.
    fn draw_collection(&mut self) -> Option<Intent> {
        match self {
            Self::Operations { types, .. } => types.as_mut()?.draw(true, false),
            Self::Transactions(load) => load.draw_collection(),
        }
    }
}

/// The recorded work of the clients of a run.
pub(crate) struct Seen {
    /// The history for the checkers.
    pub(crate) history: TxnHistory,
    /// Transfers between accounts: judged by their sum alone.
    pub(crate) bank: TxnHistory,
    /// Elements that clients put into queues and took.
    pub(crate) queues: Queues,
    /// Elements that transactions moved.
    pub(crate) moved: Moved,
    /// Answers that no history explains.
    pub(crate) complaints: Vec<String>,
}

/// The clients of a keyspace, to be made.
pub(crate) struct Plan<'a> {
    pub(crate) keyspace: KeyspaceId,
    pub(crate) count: usize,
    pub(crate) keys: usize,
    /// Whether clients make and delete ever new keys.
    pub(crate) churn: bool,
    /// The draws of commands on collections, if clients use them.
    pub(crate) types: Option<Collections>,
    /// How far wall clocks may be apart, if clients set keys that expire.
    pub(crate) expiry: Option<u64>,
    /// Whether the keyspace has ranges of keys.
    pub(crate) ordered: bool,
    /// How long a watch of an absent key holds if nobody makes the key.
    pub(crate) watches_last: u64,
    pub(crate) workload: Workload,
    /// The isolation of transactions, if the keyspace has transactions.
    pub(crate) isolation: Option<Isolation>,
    /// The orders of clients; drawn if `None`.
    pub(crate) orders: Option<&'a [Order]>,
    /// The number of values drawn when the orders were drawn.
    pub(crate) drawn: u64,
    /// Whether to record the orders.
    pub(crate) record: bool,
}

/// All clients of a keyspace and their records.
pub(crate) struct Clients {
    keyspace: KeyspaceId,
    clients: Vec<Client>,
    load: Load,
    recorder: Recorder<TxnHistory>,
    clock: Arc<AtomicU64>,
    scripted: bool,
    record: bool,
    /// The orders they have carried out, if these are recorded.
    pub(crate) orders: Vec<Order>,
    /// Whether clients begin new ops.
    working: bool,
    /// Answers that no history explains.
    complaints: Vec<String>,
    queues: Queues,
    /// Whether ops complete in time.
    pub(crate) progress: Progress,
    /// The number of values they drew.
    pub(crate) drawn: u64,
    pub(crate) done: u64,
    pub(crate) refused: u64,
    pub(crate) unknown: u64,
}

impl Clients {
    pub(crate) fn new(plan: &mut Plan<'_>, world: &mut World) -> Self {
        let clock = Arc::new(AtomicU64::new(0));
        let recorder = || {
            let reading = Arc::clone(&clock);
            Recorder::with_clock(TxnHistory::default(), move || reading.load(Ordering::Relaxed))
        };
        let load = match plan.isolation {
            None => {
                let (keys, churn) = (plan.keys, plan.churn);
                let lapses = plan.expiry.map(|apart| Lapses::new(apart, plan.watches_last));
                Load::Operations { keys, values: 0, churn, types: plan.types.take(), lapses }
            }
            Some(isolation) => {
                let mut rng = world.rng.fork();
                let bank = recorder();
                let load = Transactions::new(plan, isolation, bank, &mut rng);
                Load::Transactions(Box::new(load))
            }
        };
        let recorder = recorder();
        // Each guest has two clients, as far as there are guests.
        let of_keyspace = |guest: &usize| world.guests[*guest].keyspace == plan.keyspace;
        let guests: Vec<usize> = (0..world.guests.len()).filter(of_keyspace).collect();
        let of_guests = (2 * guests.len()).min(plan.count / 2);
        let clients = (0..plan.count)
            .map(|index| {
                let at = world.time + world.rng.below(THINK);
                let node = world.rng.below(world.nodes.len() as u64) as usize;
                let guest = (index + of_guests >= plan.count).then(|| guests[index % guests.len()]);
                let id = ClientId { keyspace: plan.keyspace, index };
                let orders: VecDeque<Order> = plan
                    .orders
                    .into_iter()
                    .flatten()
                    .filter(|order| order.client == id)
                    .cloned()
                    .collect();
                let first = match plan.orders {
                    None => Some(at),
                    Some(_) => orders.front().map(|order| order.at),
                };
                if let Some(at) = first {
                    world.schedule(at, Event::Client(id));
                }
                let rng = world.rng.fork();
                Client { rng, node, guest, sequence: 0, waiting: None, orders }
            })
            .collect();
        Self {
            keyspace: plan.keyspace,
            clients,
            load,
            recorder,
            clock,
            scripted: plan.orders.is_some(),
            record: plan.record,
            orders: Vec::new(),
            working: true,
            complaints: Vec::new(),
            queues: Queues::default(),
            progress: Progress::default(),
            drawn: plan.drawn,
            done: 0,
            refused: 0,
            unknown: 0,
        }
    }

    /// Clients begin nothing more.
    pub(crate) fn stop(&mut self) {
        self.working = false;
        if let Load::Transactions(load) = &mut self.load {
            if self.scripted {
                load.unique = self.drawn;
            }
            self.drawn = load.unique;
        }
    }

    /// Whether any client waits for an answer.
    pub(crate) fn any_waiting(&self) -> bool {
        self.clients.iter().any(|client| client.waiting.is_some())
    }

    /// The record.
    pub(crate) fn finish(self) -> Seen {
        let finish = |recorder: Recorder<TxnHistory>| {
            recorder.finish().expect("recording to memory can't fail")
        };
        let mut complaints = self.complaints;
        let (bank, moved) = match self.load {
            Load::Operations { .. } => (TxnHistory::default(), Moved::default()),
            Load::Transactions(mut load) => {
                complaints.append(&mut load.complaints);
                (finish(load.bank), load.moved)
            }
        };
        Seen { history: finish(self.recorder), bank, queues: self.queues, moved, complaints }
    }

    /// Handles an event of a client.
    pub(crate) fn handle(&mut self, world: &mut World, event: Event) {
        self.clock.store(world.time, Ordering::Relaxed);
        match event {
            Event::Client(client) => self.begin(world, client.index),
            Event::Request { client, op } => self.arrive(world, client.index, op),
            Event::ClientTimeout { client: ClientId { index, .. }, op } => {
                if self.clients[index]
                    .waiting
                    .as_ref()
                    .is_some_and(|waiting| waiting.sequence == op)
                {
                    self.end(world, index, Outcome::Unknown, None);
                }
            }
            other => unreachable!("not a client's event: {other:?}"),
        }
    }

    /// A node's process died: clients that wait for it hear no answer.
    pub(crate) fn node_died(&mut self, world: &mut World, node: usize) {
        self.died(world, |client, waiting| client.guest.is_none() && waiting.sent_to == node);
    }

    /// A guest's process died, and these clients with it: the next process knows nothing of them.
    pub(crate) fn guest_died(&mut self, world: &mut World, guest: usize) {
        self.died(world, |client, _| client.guest == Some(guest));
    }

    fn died(&mut self, world: &mut World, is_lost: impl Fn(&Client, &Waiting) -> bool) {
        self.clock.store(world.time, Ordering::Relaxed);
        for index in 0..self.clients.len() {
            let client = &self.clients[index];
            if client.waiting.as_ref().is_some_and(|waiting| is_lost(client, waiting)) {
                self.end(world, index, Outcome::Unknown, None);
            }
        }
    }

    /// Passes on the answers that have left nodes.
    pub(crate) fn collect(&mut self, world: &mut World) {
        self.clock.store(world.time, Ordering::Relaxed);
        let keyspace = self.keyspace;
        let mine = move |answer: &mut world::Answer| is_of(answer.tag, keyspace);
        for answer in world.answers.extract_if(.., mine).collect::<Vec<_>>() {
            self.answered(world, answer);
        }
    }

    /// What was answered last may be lost.
    pub(crate) fn lose(&mut self, losing: Losing) {
        if let Load::Transactions(load) = &mut self.load {
            load.lose(losing);
        }
    }

    /// Issues ops that must succeed at the end, by fresh clients on one node: a part of them for
    /// each `round`. Returns the number issued; 0 after the last round.
    pub(crate) fn issue_closing(&mut self, world: &mut World, node: usize, round: usize) -> u64 {
        self.clock.store(world.time, Ordering::Relaxed);
        let intents = match &mut self.load {
            Load::Operations { keys, types, .. } if round >= *keys => {
                let last = |_| Collections::closing(round - *keys, node).unwrap_or_default();
                types.as_ref().map(last).unwrap_or_default()
            }
            Load::Operations { .. } => {
                let key = format!("key:{round}");
                let single = |action| Intent::Single { key: key.clone(), action };
                [Action::Append("0".into()), Action::Get].map(single).to_vec()
            }
            Load::Transactions(load) => load.closing(round).into_iter().collect(),
        };
        for intent in &intents {
            let rng = world.rng.fork();
            let orders = VecDeque::new();
            let guest = None;
            self.clients.push(Client { rng, node, guest, sequence: 0, waiting: None, orders });
            self.issue(world, self.clients.len() - 1, node, 0, intent);
        }
        intents.len() as u64
    }

    fn id(&self, index: usize) -> ClientId {
        ClientId { keyspace: self.keyspace, index }
    }

    fn begin(&mut self, world: &mut World, index: usize) {
        if !self.working || self.clients[index].waiting.is_some() {
            return;
        }
        let order = if self.scripted {
            let Some(order) = self.clients[index].orders.pop_front() else { return };
            if order.node >= world.nodes.len() || order.lane >= world.lanes() {
                return self.schedule_next(world, index, world.time);
            }
            order
        } else {
            self.draw(world, index)
        };
        let (node, lane) = (order.node, order.lane);
        self.issue(world, index, node, lane, &order.intent);
        if self.record {
            self.orders.push(order);
        }
    }

    fn draw(&mut self, world: &World, index: usize) -> Order {
        let nodes = world.nodes.len() as u64;
        let id = self.id(index);
        let client = &mut self.clients[index];
        if client.rng.chance(1, 10) {
            client.node = client.rng.below(nodes) as usize;
        }
        let lane = client.rng.below(u64::from(world.lanes())) as u16;
        if let Some(intent) = self.load.draw_collection() {
            return Order { at: world.time, client: id, node: client.node, lane, intent };
        }
        let intent = match &mut self.load {
            Load::Operations { values, lapses: Some(_), .. } if client.rng.chance(1, 3) => {
                *values += 1;
                Lapses::draw(&mut client.rng, *values, true)
            }
            Load::Operations { values, churn: true, .. } if client.rng.chance(1, 2) => {
                *values += 1;
                operations::draw_churn(&mut client.rng, *values, true)
            }
            Load::Operations { keys, values, .. } => {
                // Half of the ops go to one key, so that ops always conflict.
                let other = !client.rng.chance(1, 2);
                let key = if other { client.rng.below(*keys as u64) as usize } else { 0 };
                *values += 1;
                let action = operations::draw_action(&mut client.rng, key, *values);
                Intent::Single { key: format!("key:{key}"), action }
            }
            Load::Transactions(load) => {
                load.draw(index as u64, client.guest.is_some(), &mut client.rng)
            }
        };
        Order { at: world.time, client: id, node: client.node, lane, intent }
    }

    fn issue(&mut self, world: &mut World, index: usize, node: usize, lane: u16, intent: &Intent) {
        let (open, command) = match (&mut self.load, intent) {
            (Load::Operations { .. }, Intent::Single { key, action }) => {
                let call = operations::to_call(key, action);
                let recorder = &self.recorder;
                let invocation = recorder.invoke(index as u64, key.as_str(), action.clone());
                (Open::Single(invocation, action.clone()), Command(Op::Call(call)))
            }
            (Load::Operations { .. }, Intent::Lapse { key, value, millis }) => {
                let open = Open::lapse(&self.recorder, index as u64, key, value, *millis);
                (open, Command(Op::Call(lapses::to_call(key, value, *millis))))
            }
            (Load::Operations { .. }, Intent::Queue(step)) => transactions::queue(step),
            (Load::Operations { .. }, Intent::Fade { key, millis }) => {
                Open::fade(&self.recorder, index as u64, key, *millis)
            }
            // The script is for another engine: the client skips the order.
            (Load::Operations { .. }, _) => return self.schedule_next(world, index, world.time),
            (Load::Transactions(load), intent) => load.begin(index as u64, intent, &self.recorder),
        };
        self.send(world, index, node, lane, open, command);
    }

    fn send(
        &mut self,
        world: &mut World,
        index: usize,
        sent_to: usize,
        lane: u16,
        open: Open,
        command: Command,
    ) {
        let id = self.id(index);
        let client = &mut self.clients[index];
        client.sequence += 1;
        let sequence = client.sequence;
        let (began, steady) = (world.time, Progress::begin(world));
        client.waiting = Some(Waiting { sequence, began, steady, open, command, sent_to, lane });
        world.schedule(world.time, Event::Request { client: id, op: sequence });
        world.schedule(world.time + PATIENCE, Event::ClientTimeout { client: id, op: sequence });
    }

    fn arrive(&mut self, world: &mut World, index: usize, op: u64) {
        let id = self.id(index);
        let request = Event::Request { client: id, op };
        let client = &mut self.clients[index];
        let Some(waiting) = client.waiting.as_ref().filter(|waiting| waiting.sequence == op) else {
            return;
        };
        let tag = id.tag(op);
        let refused = Outcome::Refused(Refusal::NotServing);
        if let Some(guest) = client.guest {
            let Command(txn) = &waiting.command;
            if world.guests[guest].paused {
                world.hold_for_guest(guest, request);
            } else if world.guests[guest].serves() {
                world.ask_guest(guest, tag, txn);
            } else {
                self.end(world, index, refused, None);
            }
            return;
        }
        let node = waiting.sent_to;
        if !world.nodes[node].up {
            // The node does not run, so nothing was sent.
            self.end(world, index, refused, None);
        } else if world.hold(node, waiting.lane, request).is_some() {
            let command = waiting.command.clone();
            let lane = usize::from(waiting.lane);
            world.execute(node, lane, tag, index as u64, self.keyspace, &command);
        }
    }

    fn answered(&mut self, world: &mut World, answer: world::Answer) {
        let tag = unmarked(answer.tag);
        let index = (tag >> 32) as usize;
        let op = tag & u64::from(u32::MAX);
        let current = self.clients[index].waiting.as_ref();
        if current.is_some_and(|waiting| waiting.sequence == op) {
            self.end(world, index, answer.outcome, answer.at);
        }
    }

    fn end(
        &mut self,
        world: &mut World,
        index: usize,
        outcome: Outcome<Reply<'static>>,
        at: Option<Timestamp>,
    ) {
        let id = self.id(index);
        let client = &mut self.clients[index];
        let waiting = client.waiting.take().expect("an op ends once");
        let (kind, count) = match &outcome {
            Outcome::Done(_) => (0, &mut self.done),
            Outcome::Refused(_) => (1, &mut self.refused),
            Outcome::Unknown => (2, &mut self.unknown),
        };
        *count += 1;
        if client.guest.is_none() {
            let Waiting { sent_to, began, steady, .. } = waiting;
            self.progress.end(world, sent_to, began, steady, &outcome);
        }
        let time = world.time;
        world.trace.event(&[time, 20, id.word(), waiting.sequence, kind], || {
            let now = crate::trace::At(time);
            let at = at.map(|at| format!(" at {at:?}")).unwrap_or_default();
            format!("{now} client {id} {}: {outcome:?}{at}", waiting.command)
        });
        if let (Outcome::Done(reply), Open::Single(_, Action::Get)) = (&outcome, &waiting.open) {
            let lapses = match &self.load {
                Load::Operations { lapses, .. } => lapses.as_ref(),
                Load::Transactions(load) => load.lapses.as_ref(),
            };
            let command = waiting.command.to_string();
            let late = lapses.and_then(|lapses| lapses.check(&command, reply, waiting.began));
            self.complaints.extend(late);
        }
        let next = match (&mut self.load, waiting.open) {
            (_, Open::Queueing(step)) => {
                self.complaints
                    .extend(step.end(&outcome, (waiting.began, time), &mut self.queues).err());
                None
            }
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
            (Load::Operations { lapses, .. }, Open::Lapsing(lapsing)) => {
                lapsing.end(&outcome, time, lapses.as_mut(), &self.recorder);
                None
            }
            (Load::Operations { .. }, Open::Fading(expiry)) => {
                collections::faded(expiry, &outcome, &self.recorder);
                None
            }
            (Load::Transactions(load), open) => {
                let span = (waiting.began, time);
                load.end(index as u64, span, open, outcome, at, &self.recorder)
            }
            (Load::Operations { .. }, open) => unreachable!("{open:?} among single-key commands"),
        };
        if let Some((open, command)) = next {
            return self.send(world, index, waiting.sent_to, waiting.lane, open, command);
        }
        if kind != 0 {
            client.node = client.rng.below(world.nodes.len() as u64) as usize;
        }
        let think = client.rng.below(THINK) + if kind == 0 { 0 } else { 20 * MS };
        self.schedule_next(world, index, time + think);
    }

    /// The next op of a client: at this time, or at the script's.
    fn schedule_next(&self, world: &mut World, index: usize, at: u64) {
        if !self.scripted {
            world.schedule(at, Event::Client(self.id(index)));
        } else if let Some(order) = self.clients[index].orders.front() {
            world.schedule(order.at, Event::Client(self.id(index)));
        }
    }
}
