//! Zeus: strictly serializable transactions, one owner of each key, and copies that agree.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use quorate_harness::{Outbox, Process, Subject};
use quorate_machine::{Effects, MapTable, Outcome};
use quorate_types::{Duration, Epoch, Incarnation, Instant, NodeId, NodeSet, Now, Timestamp};
use quorate_wire::Writer;
use quorate_zeus::{Config, DataState, Extra, Message, Meta, OwnerState, Request, Zeus};

use crate::engine::Engine;
use crate::history::{Answer, Call, Store, answered, is_explained};
use crate::lists;
use crate::scope::{Scope, active, contents};
use crate::served::{self, Asked, Fate, Served, Serves};
use crate::txn::{Step, Txn};
use crate::world::World;

type Inner = Zeus<MapTable<Meta>, Txn>;
type Machine = Served<Inner>;

impl Serves for Inner {
    type Ask = Txn;

    fn request<'a>(txn: Txn, origin: u64) -> Self::Request<'a> {
        // Every call has its own client: a machine keeps the order of one client's calls.
        Request { origin, command: txn }
    }

    fn run_alone(txn: &Txn, store: &mut Store) -> String {
        txn.run_alone(store)
    }

    fn fate(&self, call: &quorate_rifl::Call) -> Fate {
        // A scope's call has its home in one shard.
        let trackers = (0..=u8::MAX).filter_map(|shard| self.tracker(shard));
        let mut fates = trackers.map(|tracker| Fate::from(tracker.find(call)));
        fates.find(|fate| *fate != Fate::Open).unwrap_or(Fate::Open)
    }

    fn reset(&mut self, _now: Now, incarnation: Incarnation, effects: &mut impl Effects<Self>) {
        Self::reset(self, incarnation, effects);
    }

    fn end_turn(&mut self, effects: &mut impl Effects<Self>) {
        self.flush(effects);
    }
}

/// How the machines are set up, and their clients' transactions.
#[derive(Clone, Debug)]
pub(crate) struct Owners {
    /// Members of each group.
    pub(crate) replicas: usize,
    /// Every key of the scope.
    pub(crate) keys: Vec<&'static str>,
    pub(crate) calls: Vec<Asked<Txn>>,
    /// The nodes that keep every collection large.
    pub(crate) large: NodeSet,
    /// After how many reads that others answer a node asks for a copy.
    pub(crate) extra_after: u32,
}

/// What each version left in each key that its transaction wrote.
#[derive(Clone, Hash, Debug, Default)]
pub(crate) struct Ledger(BTreeMap<(Timestamp, Vec<u8>), Option<String>>);

/// A record: its words and its value as text.
fn record(machine: &Machine, key: &str) -> (Meta, String) {
    let Served(machine) = machine;
    let mut entries = machine.table().entries();
    let found = entries.find(|(name, ..)| *name == key.as_bytes());
    found.map_or_else(Default::default, |(key, meta, _, content)| {
        let text = |content| lists::held(machine.table(), key, content);
        (meta, content.map(text).unwrap_or_default())
    })
}

impl Owners {
    /// At most one node may write a key.
    fn check_owners(&self, world: &World<Self>) -> Result<(), String> {
        for key in &self.keys {
            let writes = |(node, machine): &(NodeId, &Machine)| {
                let (meta, _) = record(machine, key);
                world.holds_lease(*node) && machine.0.may_write(&meta, key.as_bytes())
            };
            let owners: Vec<NodeId> = world.up().filter(writes).map(|(node, _)| node).collect();
            if owners.len() > 1 {
                return Err(format!("{key} has the owners {owners:?}"));
            }
        }
        Ok(())
    }

    /// A transaction that reads now whatever may be read at a node fits into the answers that clients
    /// have heard.
    fn check_reads(&self, world: &World<Self>) -> Result<(), String> {
        let mut seen: Vec<BTreeMap<&'static str, String>> = Vec::new();
        for (node, machine) in active(world) {
            if !world.holds_lease(node) {
                continue;
            }
            let read = self.keys.iter().filter_map(|key| {
                let (meta, value) = record(machine, key);
                machine.0.may_read(&meta, key.as_bytes()).then_some((*key, value))
            });
            let read: BTreeMap<_, _> = read.collect();
            if seen.contains(&read) {
                continue;
            }
            self.explain_read(world, &read).map_err(|reason| format!("at {node}: {reason}"))?;
            seen.push(read);
        }
        Ok(())
    }

    fn explain_read(
        &self,
        world: &World<Self>,
        read: &BTreeMap<&'static str, String>,
    ) -> Result<(), String> {
        let before = answered(&world.calls);
        let heard = read.values().cloned().collect::<Vec<_>>().join(",");
        let mut calls = world.calls.clone();
        calls.push(Call { started: true, before, answer: Some(Answer::Done(heard)) });
        let own = Asked::Plain(Txn(read.keys().map(|key| Step::Read(key)).collect()));
        let run = |call: usize, store: &mut Store| {
            self.calls.get(call).unwrap_or(&own).run_alone::<Inner>(store)
        };
        match is_explained(&calls, &Store::new(), true, &run) {
            true => Ok(()),
            false => Err(format!("a read would see {read:?}, after {:?}", world.calls)),
        }
    }
}

impl Subject for Owners {
    type Machine = Machine;

    fn start(&self, process: Process) -> Machine {
        let Process { node, lane, incarnation, seed, .. } = process;
        let mut config = Config::new(node, incarnation, lane, seed);
        config.replicas = self.replicas;
        config.extra_after = self.extra_after;
        config.op_timeout = Duration::from_secs(3600);
        config.collect_every = Duration::from_secs(3600);
        let packed_bytes_max = if self.large.contains(node) { 0 } else { usize::MAX };
        Served(Zeus::new(config, MapTable::new(packed_bytes_max)))
    }

    fn end_turn(machine: &mut Machine, _now: Now, outbox: &mut Outbox<Self>) {
        machine.end_turn(outbox);
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
        format!("{message:?}")
    }
}

impl Engine for Owners {
    type Ledger = Ledger;

    fn hash(machine: &Machine, state: &mut impl Hasher) {
        Hash::hash(machine, state);
    }

    fn is_caught_up(machine: &Machine) -> bool {
        machine.0.is_caught_up()
    }

    fn request(&self, call: usize) -> Asked<Txn> {
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

    /// A version has one content.
    fn note_sent(&self, ledger: &mut Ledger, _from: NodeId, bytes: &[u8]) -> Result<(), String> {
        let Message::Update(update) = Self::decode(bytes) else { return Ok(()) };
        for item in update.items.iter() {
            let content = match (item.content, item.base) {
                (Some(delta), Some(base)) => {
                    let Some(base) = ledger.0.get(&(base, item.key.to_vec())) else {
                        return Err(format!("{base:?} was changed, and nobody was told of it"));
                    };
                    let base = base.clone().unwrap_or_default();
                    Some(base + &lists::appended(delta.bytes))
                }
                (content, _) => content.map(|content| lists::text(content, None)),
            };
            let name = (update.version, item.key.to_vec());
            let known = ledger.0.entry(name).or_insert_with(|| content.clone());
            if *known != content {
                return Err(format!("{:?} has two contents", update.version));
            }
        }
        Ok(())
    }

    /// A version never goes back.
    fn check_step(&self, before: &Machine, after: &Machine) -> Result<(), String> {
        for key in &self.keys {
            let ((old, _), (new, _)) = (record(before, key), record(after, key));
            let dropped = new.version == Timestamp::ZERO;
            if new.version < old.version && !dropped {
                return Err(format!("{key} went back from {old:?} to {new:?}"));
            }
        }
        Ok(())
    }

    fn check(
        &self,
        _scope: &Scope<Self>,
        world: &mut World<Self>,
        step: Option<(NodeId, &Machine)>,
    ) -> Result<(), String> {
        if step.is_none() {
            return Ok(());
        }
        self.check_owners(world)?;
        self.check_reads(world)?;
        served::check_records(&self.calls, world)?;
        let ledger = Arc::clone(&world.ledger);
        for (node, machine) in world.up().filter(|(node, _)| world.holds_lease(*node)) {
            for (key, meta, _, content) in machine.0.table().entries() {
                let Some(told) = ledger.0.get(&(meta.version, key.to_vec())) else { continue };
                let text = |content| lists::held(machine.0.table(), key, content);
                if *told != content.map(text) {
                    return Err(format!("{node} holds another content of {:?}", meta.version));
                }
            }
        }
        Ok(())
    }

    fn is_at_rest(&self, machine: &Machine, _now: Instant) -> bool {
        machine.0.is_at_rest() && machine.0.is_caught_up()
    }

    /// The group of each key agrees on its owner and its value, nobody else has a copy but the owner and
    /// its extra readers, and what there is fits into the answers.
    fn check_at_rest(&self, world: &World<Self>) -> Result<(), String> {
        let mut store = Store::new();
        for key in &self.keys {
            let (mut seen, mut copies) = (Vec::new(), Vec::new());
            let (mut extra, mut readers) = (NodeSet::EMPTY, NodeSet::EMPTY);
            let mut owners = 0;
            for (node, machine) in active(world) {
                let (meta, value) = record(machine, key);
                let Served(machine) = machine;
                if machine.may_write(&meta, key.as_bytes()) {
                    owners += 1;
                    readers = machine.extra_readers_of(key.as_bytes());
                }
                if meta.extra == Extra::Kept {
                    extra.insert(node);
                    copies.push((meta.version, meta.data, value));
                    continue;
                }
                let is_owner = meta.owner == machine.number();
                if !machine.group_of(key.as_bytes()).contains(node) && !is_owner {
                    if meta != Meta::default() {
                        return Err(format!("{node} keeps {key}"));
                    }
                    continue;
                }
                if (meta.data, meta.state) != (DataState::Valid, OwnerState::Valid) {
                    return Err(format!("{key} at {node} is {meta:?}"));
                }
                seen.push((meta.version, meta.round, meta.owner, value));
            }
            seen.dedup();
            if seen.len() > 1 || owners != 1 {
                return Err(format!("{key} has {owners} owners and differs: {seen:?}"));
            }
            let is_same = |copy: &(Timestamp, DataState, String)| {
                let (version, _, _, value) = &seen[0];
                *copy == (*version, DataState::Valid, value.clone())
            };
            if extra != readers || !copies.iter().all(is_same) {
                return Err(format!("{key}: {copies:?} at {extra:?}, {readers:?} are known"));
            }
            let value = seen.into_iter().map(|(.., value)| value).next().unwrap_or_default();
            if !value.is_empty() {
                store.insert((*key).to_owned(), value);
            }
        }
        let answer = Some(Answer::Done(contents(&store)));
        let mut calls = world.calls.clone();
        calls.push(Call { started: true, before: answered(&world.calls), answer });
        let run = |call: usize, store: &mut Store| match self.calls.get(call) {
            Some(asked) => asked.run_alone::<Inner>(store),
            // Answers to calls are kept beside the keys.
            None => {
                let keys = self.keys.iter().filter_map(|key| store.get_key_value(*key));
                contents(&keys.map(|(key, value)| (key.clone(), value.clone())).collect())
            }
        };
        if !is_explained(&calls, &Store::new(), true, &run) {
            return Err(format!("{store:?} is left after {:?}", world.calls));
        }
        served::check_records_at_rest(&self.calls, world, |machine| {
            self.keys.iter().any(|key| machine.keeps(key.as_bytes()))
        })
    }
}
