//! Clients: closed loops of single-key commands through any node, with everything recorded.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quorate_check::{Action, Answer, Bytes, History, Invocation, Recorder};
use quorate_commands::{OwnedCall, Reply};
use quorate_machine::{Outcome, Rng};
use quorate_types::Tag;

use crate::world::{self, Event, MS, World};

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
    invocation: Invocation,
    call: OwnedCall,
    action: Action,
    sent_to: usize,
}

/// All clients of a run and what they saw.
pub(crate) struct Clients {
    clients: Vec<Client>,
    recorder: Recorder<History>,
    clock: Arc<AtomicU64>,
    keys: usize,
    values: u64,
    /// Whether clients begin new ops.
    pub(crate) working: bool,
    pub(crate) done: u64,
    pub(crate) refused: u64,
    pub(crate) unknown: u64,
}

impl Clients {
    pub(crate) fn new(count: usize, keys: usize, world: &mut World) -> Self {
        let clock = Arc::new(AtomicU64::new(0));
        let reading = Arc::clone(&clock);
        let recorder =
            Recorder::with_clock(History::default(), move || reading.load(Ordering::Relaxed));
        let clients = (0..count)
            .map(|index| {
                let at = world.time + world.rng.below(THINK);
                world.schedule(at, Event::Client(index));
                let node = world.rng.below(world.nodes.len() as u64) as usize;
                Client { rng: world.rng.fork(), node, sequence: 0, waiting: None }
            })
            .collect();
        Self {
            clients,
            recorder,
            clock,
            keys,
            values: 0,
            working: true,
            done: 0,
            refused: 0,
            unknown: 0,
        }
    }

    /// Whether any client waits for an answer.
    pub(crate) fn any_waiting(&self) -> bool {
        self.clients.iter().any(|client| client.waiting.is_some())
    }

    /// The recorded history.
    pub(crate) fn finish(self) -> History {
        self.recorder.finish().expect("recording to memory can't fail")
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

    /// Issues one op by a client of its own and a chosen node, for the final reads.
    pub(crate) fn issue(&mut self, world: &mut World, node: usize, key: usize, action: Action) {
        let index = self.clients.len();
        let client = Client { rng: world.rng.fork(), node, sequence: 0, waiting: None };
        self.clients.push(client);
        self.clock.store(world.time, Ordering::Relaxed);
        self.send(world, index, key, action);
    }

    fn begin(&mut self, world: &mut World, index: usize) {
        if !self.working || self.clients[index].waiting.is_some() {
            return;
        }
        let nodes = world.nodes.len() as u64;
        let keys = self.keys as u64;
        let client = &mut self.clients[index];
        if client.rng.chance(1, 10) {
            client.node = client.rng.below(nodes) as usize;
        }
        // Half of the ops go to one key, so that there is always a fight for something.
        let key = if client.rng.chance(1, 2) { 0 } else { client.rng.below(keys) as usize };
        self.values += 1;
        let action = draw_action(&mut client.rng, key, self.values);
        self.send(world, index, key, action);
    }

    fn send(&mut self, world: &mut World, index: usize, key: usize, action: Action) {
        let key = format!("key:{key}");
        let client = &mut self.clients[index];
        client.sequence += 1;
        let invocation = self.recorder.invoke(index as u64, key.as_str(), action.clone());
        let call = to_call(&key, &action);
        let sequence = client.sequence;
        client.waiting = Some(Waiting { sequence, invocation, call, action, sent_to: client.node });
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
            let call = waiting.call.clone();
            world.execute(node, lane, tag, index as u64, &call.call());
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
        let kind = match outcome {
            Outcome::Done(reply) => {
                self.done += 1;
                let answer = to_answer(&waiting.action, &reply);
                self.recorder.done(waiting.invocation, answer);
                0
            }
            Outcome::Refused(_) => {
                self.refused += 1;
                self.recorder.refused(waiting.invocation);
                1
            }
            Outcome::Unknown => {
                self.unknown += 1;
                self.recorder.unknown(waiting.invocation);
                2
            }
        };
        let time = world.time;
        world.trace.event(&[time, 20, index as u64, waiting.sequence, kind], || {
            let word = ["done", "refused", "unknown"][kind as usize];
            format!("{} client {index} {}: {word}", crate::trace::At(time), waiting.action)
        });
        if kind != 0 {
            client.node = client.rng.below(world.nodes.len() as u64) as usize;
        }
        let think = client.rng.below(THINK) + if kind == 0 { 0 } else { 20 * MS };
        world.schedule(time + think, Event::Client(index));
    }
}

/// Keys take turns between counters, where a lost or doubled update shows as a number, and
/// registers, where it shows as a value that should not be there.
fn draw_action(rng: &mut Rng, key: usize, unique: u64) -> Action {
    let value = || Bytes::from(format!("v{unique}"));
    let counter = key.is_multiple_of(2);
    match rng.below(20) {
        0..=6 => Action::Get,
        7..=14 if counter => Action::Incr(1),
        15..=17 if counter => Action::Incr(10),
        18 if counter => Action::Set(Bytes::from(format!("{}", unique * 1000))),
        7..=10 => Action::Set(value()),
        11..=12 => Action::GetSet(value()),
        13..=14 => Action::SetNx(value()),
        15..=16 => Action::Append(Bytes::from(format!(",{unique}"))),
        _ => Action::Del,
    }
}

fn to_call(key: &str, action: &Action) -> OwnedCall {
    let key = key.as_bytes();
    let by;
    let arguments: Vec<&[u8]> = match action {
        Action::Get => vec![b"GET", key],
        Action::Set(value) => vec![b"SET", key, &value.0],
        Action::Del => vec![b"DEL", key],
        Action::Incr(amount) => {
            by = amount.to_string();
            vec![b"INCRBY", key, by.as_bytes()]
        }
        Action::GetSet(value) => vec![b"GETSET", key, &value.0],
        Action::SetNx(value) => vec![b"SETNX", key, &value.0],
        Action::Append(value) => vec![b"APPEND", key, &value.0],
        Action::Cas { .. } => unreachable!("clients draw no compare-and-set"),
    };
    OwnedCall::new(arguments).expect("clients draw known commands")
}

fn to_answer(action: &Action, reply: &Reply<'_>) -> Answer {
    match reply {
        Reply::Ok => Answer::Ok,
        Reply::Int(number) => Answer::Integer(*number),
        Reply::Bulk(bytes) => Answer::Value(Some(Bytes(bytes.to_vec()))),
        Reply::Null => Answer::Value(None),
        Reply::Error(text) => Answer::Error(text.to_string()),
        other => panic!("{action} was answered {other:?}"),
    }
}
