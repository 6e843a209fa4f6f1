//! Hermes: linearizable ops on one key.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

use quorate_harness::{Outbox, Process, Subject};
use quorate_hermes::{Config, Hermes, Message, Meta, Request};
use quorate_machine::{Effects, Machine as _, MapTable, Outcome};
use quorate_types::{Duration, Epoch, Incarnation, Instant, NodeId, NodeSet, Now, Role, Timestamp};
use quorate_wire::Writer;

use crate::engine::Engine;
use crate::history::{Answer, Call, Store, answered, is_explained};
use crate::lists;
use crate::register::Op;
use crate::scope::{Scope, active};
use crate::served::{self, Asked, Fate, Served, Serves};
use crate::world::World;

type Inner = Hermes<MapTable<Meta>, Op>;
type Machine = Served<Inner>;

impl Serves for Inner {
    type Ask = Op;

    fn request<'a>(op: Op, origin: u64) -> Self::Request<'a> {
        Request { origin, command: op }
    }

    fn run_alone(op: &Op, store: &mut Store) -> String {
        op.run_alone(store)
    }

    fn fate(&self, call: &quorate_rifl::Call) -> Fate {
        self.tracker().find(call).into()
    }

    fn reset(&mut self, now: Now, incarnation: Incarnation, effects: &mut impl Effects<Self>) {
        Self::reset(self, now, incarnation, effects);
    }
}

/// The clients' ops.
#[derive(Clone, Debug)]
pub(crate) struct Register {
    pub(crate) calls: Vec<Asked<Op>>,
    /// The nodes that keep every collection large.
    pub(crate) large: NodeSet,
    /// The time between two rounds that raise the floor.
    pub(crate) collect_every: Duration,
}

/// The metadata and content of the machine's record.
fn held(machine: &Inner) -> Option<(Meta, String)> {
    let (key, meta, (), content) = machine.table().entries().next()?;
    let text = |content| lists::held(machine.table(), key, content);
    Some((meta, content.map(text).unwrap_or_default()))
}

impl Register {
    /// A read now, at any node that may answer one, must fit into the answers that clients have
    /// heard.
    fn check_reads(&self, world: &World<Self>) -> Result<(), String> {
        let mut seen: Vec<(NodeId, String)> = Vec::new();
        for (node, machine) in world.up() {
            let view = world.view_of(node);
            let role = view.and_then(|view| view.member(node)).map(|member| member.role);
            if role != Some(Role::Active) || !world.holds_lease(node) {
                continue;
            }
            let read = match held(&machine.0).filter(|(meta, _)| meta.timestamp() > Timestamp::ZERO)
            {
                None => (!machine.0.is_in_doubt()).then(String::new),
                Some((meta, value)) => meta.is_readable().then_some(value),
            };
            if let Some(read) = read.filter(|read| seen.iter().all(|(_, known)| known != read)) {
                seen.push((node, read));
            }
        }
        for (node, read) in seen {
            let before = answered(&world.calls);
            let answer = Some(Answer::Done(read));
            let mut calls = world.calls.clone();
            calls.push(Call { started: true, before, answer });
            let run = |call: usize, store: &mut Store| {
                let read = Asked::Plain(Op::Get);
                self.calls.get(call).unwrap_or(&read).run_alone::<Inner>(store)
            };
            if !is_explained(&calls, &Store::new(), true, &run) {
                let heard: Vec<String> = world
                    .calls
                    .iter()
                    .zip(&self.calls)
                    .filter(|(call, _)| call.started)
                    .map(|(call, op)| format!("\"{op}\" heard {:?}", call.answer))
                    .collect();
                let read = calls.last().and_then(|call| call.answer.clone());
                return Err(format!(
                    "a read at {node} would see {read:?}, which no order explains: {}",
                    heard.join("; ")
                ));
            }
        }
        Ok(())
    }

    /// One timestamp, one value (H2).
    fn check_timestamps(&self, world: &World<Self>) -> Result<(), String> {
        let mut known: BTreeMap<Timestamp, (NodeId, String)> = BTreeMap::new();
        for (node, machine) in world.up().filter(|(node, _)| world.holds_lease(*node)) {
            let Some((meta, value)) = held(&machine.0) else { continue };
            let (other, theirs) =
                known.entry(meta.timestamp).or_insert_with(|| (node, value.clone()));
            if *theirs != value {
                return Err(format!(
                    "{other} and {node} hold two values at {:?}: {theirs:?}, {value:?}",
                    meta.timestamp
                ));
            }
        }
        Ok(())
    }
}

impl Subject for Register {
    type Machine = Machine;

    fn start(&self, process: Process) -> Machine {
        let mut config = Config::new(process.node, process.incarnation, process.seed);
        config.op_timeout = Duration::from_secs(3600);
        config.collect_every = self.collect_every;
        let packed_bytes_max = if self.large.contains(process.node) { 0 } else { usize::MAX };
        Served(Hermes::new(config, MapTable::new(packed_bytes_max)))
    }

    fn begin_life(
        machine: &mut Machine,
        now: Now,
        incarnation: Incarnation,
        outbox: &mut Outbox<Self>,
    ) {
        machine.begin_life(now, incarnation, outbox);
    }

    fn epoch(machine: &Machine, _told: Epoch) -> Epoch {
        machine.0.epoch()
    }

    fn encode(message: &Message<'_>, out: &mut Vec<u8>) {
        message.encode(&mut Writer(out));
    }

    fn decode(bytes: &[u8]) -> Message<'_> {
        Message::decode(bytes).expect("machines send well-formed messages")
    }

    fn describe(message: &Message<'_>) -> String {
        format!("{:?}", message)
    }
}

impl Engine for Register {
    type Ledger = ();

    fn hash(machine: &Machine, state: &mut impl Hasher) {
        Hash::hash(machine, state);
    }

    fn is_caught_up(machine: &Machine) -> bool {
        machine.0.is_caught_up()
    }

    fn request(&self, call: usize) -> Asked<Op> {
        self.calls[call].clone()
    }

    fn describe_call(&self, call: usize) -> String {
        self.calls[call].to_string()
    }

    fn run(&self, call: usize, store: &mut Store) -> String {
        self.calls[call].run_alone::<Inner>(store)
    }

    fn answer(outcome: &Outcome<String>) -> Answer {
        match outcome {
            Outcome::Done(reply) => Answer::Done(reply.clone()),
            Outcome::Refused(_) => Answer::Refused,
            Outcome::Unknown => Answer::Unknown,
        }
    }

    fn note_sent(&self, (): &mut (), _from: NodeId, _bytes: &[u8]) -> Result<(), String> {
        Ok(())
    }

    fn check_step(&self, before: &Machine, after: &Machine) -> Result<(), String> {
        match (held(&before.0), held(&after.0)) {
            // A record of an earlier life need not hold a chosen write, so its timestamp may fall.
            (Some((old, _)), Some((new, _)))
                if old.life == new.life && new.timestamp < old.timestamp =>
            {
                Err(format!("a record went back from {:?} to {:?}", old.timestamp, new.timestamp))
            }
            _ => Ok(()),
        }
    }

    fn check(
        &self,
        _scope: &Scope<Self>,
        world: &mut World<Self>,
        _step: Option<(NodeId, &Machine)>,
    ) -> Result<(), String> {
        self.check_timestamps(world)?;
        served::check_records(&self.calls, world)?;
        self.check_reads(world)
    }

    fn is_at_rest(&self, machine: &Machine, now: Instant) -> bool {
        // Sweeps and floors show their end only by the absence of a near timer.
        machine.0.pending() == 0 && machine.next_deadline().since(now) > Duration::from_secs(60)
    }

    fn check_at_rest(&self, world: &World<Self>) -> Result<(), String> {
        let mut copies = active(world).map(|(node, machine)| (node, held(&machine.0)));
        let Some((first, copy)) = copies.next() else { return Ok(()) };
        for (node, other) in copies {
            // One of them may have forgotten that the key was deleted.
            let show = |copy: &Option<(Meta, String)>| {
                let copy = copy.as_ref().filter(|(_, value)| !value.is_empty());
                copy.map(|(meta, value)| (meta.timestamp, value.clone()))
            };
            if show(&copy) != show(&other) {
                return Err(format!("{first} holds {copy:?} and {node} holds {other:?}"));
            }
        }
        // A key may wait for its VAL until a request asks for the key.
        let readable = |machine: &Inner| held(machine).is_some_and(|(meta, _)| meta.is_readable());
        served::check_records_at_rest(&self.calls, world, readable)?;
        self.check_reads(world)
    }
}
