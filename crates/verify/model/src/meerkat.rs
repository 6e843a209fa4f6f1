//! Meerkat: serializable transactions (or strictly so), and the invariants of Meerkat N9.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use quorate_harness::{Outbox, Process, Subject};
use quorate_machine::{Effects, MapTable, Outcome};
use quorate_meerkat::{
    Answered, Body, Config, Isolation, Kind, Meerkat, Message, Meta, Request, Write,
};
use quorate_rifl::LeaseId;
use quorate_types::{Duration, Epoch, Incarnation, Instant, NodeId, NodeSet, Now, Timestamp};
use quorate_wire::Writer;

use crate::engine::Engine;
use crate::history::{Answer, Store};
use crate::lists;
use crate::scope::{Scope, active};
use crate::served::{self, Asked, Fate, Served, Serves};
use crate::txn::Txn;
use crate::world::World;

type Inner = Meerkat<MapTable<Meta>, Txn>;
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
        self.trackers()[0].find(call).into()
    }

    fn reset(&mut self, now: Now, incarnation: Incarnation, effects: &mut impl Effects<Self>) {
        Self::reset(self, now, incarnation, effects);
    }
}

/// How the machines are set up, and their clients' transactions.
#[derive(Clone, Debug)]
pub(crate) struct Transactions {
    pub(crate) isolation: Isolation,
    pub(crate) message_loss_timeout: Duration,
    pub(crate) recovery_timeout: Duration,
    /// The nodes that keep every collection large.
    pub(crate) large: NodeSet,
    pub(crate) calls: Vec<Asked<Txn>>,
}

/// The access of a transaction to one key.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Entry {
    key: Vec<u8>,
    base: Option<Timestamp>,
    write: Option<Written>,
}

/// What a transaction leaves in a key, as text.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Written {
    Value(String),
    /// What was there with this behind it.
    Appended(String),
    Nothing,
}

/// A session's call.
type Name = (LeaseId, u64);

/// Every transaction that a message has asked about, and its end.
#[derive(Clone, Hash, Debug, Default)]
pub(crate) struct Ledger {
    sets: BTreeMap<Timestamp, Vec<Entry>>,
    /// Those that are attempts at calls.
    attempts: BTreeMap<Timestamp, Name>,
    ends: BTreeMap<Timestamp, bool>,
    /// Committed in the step that is being looked at.
    fresh: Vec<Timestamp>,
}

impl Ledger {
    fn note_sets(&mut self, id: Timestamp, body: Body<'_>) -> Result<(), String> {
        if let Some(Answered { call, .. }) = body.call() {
            self.attempts.insert(id, (call.lease, call.sequence));
        }
        let entries: Vec<Entry> = body
            .iter()
            .map(|item| Entry {
                key: item.key.to_vec(),
                base: item.base,
                write: item.write.map(|write| match write {
                    Write::Set(content) => Written::Value(lists::text(content, None)),
                    Write::Delta(delta) => Written::Appended(lists::appended(delta.bytes)),
                    Write::Delete => Written::Nothing,
                }),
            })
            .collect();
        let known = self.sets.entry(id).or_insert_with(|| entries.clone());
        if *known == entries { Ok(()) } else { Err(format!("{id:?} has two pairs of sets")) }
    }

    /// I1: one final decision, ever.
    fn note_end(&mut self, id: Timestamp, commit: bool) -> Result<(), String> {
        match self.ends.get(&id) {
            Some(known) if *known == commit => Ok(()),
            Some(_) => Err(format!("{id:?} ended in two ways (I1)")),
            None => {
                self.ends.insert(id, commit);
                if !commit {
                    return Ok(());
                }
                self.fresh.push(id);
                self.check_committed(id)
            }
        }
    }

    fn committed(&self) -> impl Iterator<Item = (Timestamp, &[Entry])> {
        let ends = self.ends.iter().filter(|(_, commit)| **commit);
        ends.filter_map(|(id, _)| Some((*id, &self.sets.get(id)?[..])))
    }

    /// I3 and I4, for a transaction that has just committed, and that it is the only attempt at its
    /// call.
    fn check_committed(&self, id: Timestamp) -> Result<(), String> {
        let Some(own) = self.sets.get(&id) else {
            return Err(format!("{id:?} committed and nobody was told what it does"));
        };
        if own.iter().any(|entry| entry.base.is_some_and(|base| base >= id)) {
            return Err(format!("{id:?} committed below what it read (I4)"));
        }
        let hits = |reader: Timestamp, reads: &[Entry], writer: Timestamp, writes: &[Entry]| {
            reads.iter().any(|read| {
                let between = read.base.is_some_and(|base| base < writer && writer < reader);
                between && writes.iter().any(|item| item.key == read.key && item.write.is_some())
            })
        };
        for (other, theirs) in self.committed().filter(|(other, _)| *other != id) {
            if hits(id, own, other, theirs) || hits(other, theirs, id, own) {
                return Err(format!("{id:?} and {other:?} conflict and both committed (I3)"));
            }
            let call = self.attempts.get(&id);
            if call.is_some() && call == self.attempts.get(&other) {
                return Err(format!("{id:?} and {other:?} are one call and both committed"));
            }
        }
        Ok(())
    }

    /// Versions and values after every committed transaction, in the order of timestamps.
    fn replay(&self) -> BTreeMap<&[u8], (Timestamp, String)> {
        let mut store: BTreeMap<&[u8], (Timestamp, String)> = BTreeMap::new();
        for (id, entries) in self.committed() {
            for entry in entries {
                match &entry.write {
                    Some(Written::Value(value)) => {
                        store.insert(&entry.key[..], (id, value.clone()));
                    }
                    Some(Written::Appended(tail)) => {
                        let (at, value) = store.entry(&entry.key[..]).or_default();
                        *at = id;
                        value.push_str(tail);
                    }
                    Some(Written::Nothing) => {
                        store.remove(&entry.key[..]);
                    }
                    None => {}
                }
            }
        }
        store
    }
}

/// I2 and I8, for a transaction that `node` is the first to know to be committed, in an epoch that
/// the node was in already: enough replicas have voted OK or accepted the proposal, and none of
/// these votes is from an earlier epoch. The votes of the node itself are gone by then, and so are
/// the votes of replicas that have gone on to a later epoch or restarted: all of these count as OK.
/// The quorums are the paper's, worked out here once more.
fn check_votes(world: &World<Transactions>, node: NodeId, id: Timestamp) -> Result<(), String> {
    let epoch = world.host(node).machine.0.epoch();
    let (mut ok, mut accepted) = (1, 1);
    for (at, host) in world.hosts.iter().enumerate() {
        let voter = NodeId(at as u16 + 1);
        let record = host.machine.0.records().iter().find(|(key, _)| key.id() == id);
        let began_again = host.incarnation.0 != u64::from(voter.0);
        match record {
            _ if voter == node => {}
            _ if host.machine.0.epoch() > epoch || began_again => {
                ok += 1;
                accepted += 1;
            }
            Some((_, record)) if host.machine.0.epoch() == epoch => {
                ok += usize::from(record.vote == Some(Ok(())));
                accepted += usize::from(record.accepted.is_some_and(|(_, ok)| ok));
            }
            _ => {}
        }
    }
    let replicas = world.hosts.len();
    let live = world.view_of(node).map_or(replicas, |view| view.active().len());
    let (faults, majority) = (replicas.div_ceil(2) - 1, replicas / 2 + 1);
    let fast = (faults + faults.div_ceil(2) + 1).min(live).max(majority);
    if ok >= fast || accepted >= majority {
        return Ok(());
    }
    Err(format!("{id:?} commits at {node} on {ok} votes and {accepted} acceptances (I2, I8)"))
}

impl Subject for Transactions {
    type Machine = Machine;

    fn start(&self, process: Process) -> Machine {
        let Process { node, lane, incarnation, seed, .. } = process;
        let mut config = Config::new(node, incarnation, lane, 1, seed);
        config.isolation = self.isolation;
        config.message_loss_timeout = self.message_loss_timeout;
        config.recovery_timeout = self.recovery_timeout;
        config.op_timeout = Duration::from_secs(3600);
        let packed_bytes_max = if self.large.contains(node) { 0 } else { usize::MAX };
        Served(Meerkat::new(config, MapTable::new(packed_bytes_max)))
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
        format!("{:?}", message.kind)
    }
}

impl Engine for Transactions {
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

    fn note_sent(&self, ledger: &mut Ledger, _from: NodeId, bytes: &[u8]) -> Result<(), String> {
        match Self::decode(bytes).kind {
            Kind::Validate { id, body, .. } => ledger.note_sets(id, body),
            Kind::Decided { id, commit, .. } => ledger.note_end(id, commit),
            _ => Ok(()),
        }
    }

    fn note_lost(&self, ledger: &mut Ledger) {
        // What stands shows in the tables.
        ledger.ends.clear();
        ledger.fresh.clear();
    }

    /// I6: versions and read timestamps never fall. A version of an earlier life may give way to
    /// one that was not read here: the donor's clock stands for the reads, in the floor of the next
    /// epoch.
    fn check_step(&self, before: &Machine, after: &Machine) -> Result<(), String> {
        let votes = after.0.is_normal();
        for ((key, old, ..), (other, new, ..)) in
            before.0.table().entries().zip(after.0.table().entries())
        {
            if key == other && (new.wts < old.wts || (votes && new.rts < old.rts)) {
                return Err(format!("{} went back: {old:?}, {new:?} (I6)", show(key)));
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
        let Some((node, Served(before))) = step else { return Ok(()) };
        served::check_records(&self.calls, world)?;
        let host = Arc::clone(&world.host(node).machine);
        let machine = &host.0;
        let decided = machine.records().iter();
        let decided = decided.filter_map(|(key, record)| Some((key.id(), record.decision?)));
        // An installed version has committed; an epoch change need not have told any other replica.
        let installed = machine.table().entries().map(|(_, meta, ..)| (meta.wts, true));
        for (id, commit) in decided.chain(installed.filter(|(id, _)| *id != Timestamp::ZERO)) {
            if world.ledger.ends.get(&id) != Some(&commit) {
                Arc::make_mut(&mut world.ledger).note_end(id, commit)?;
            }
        }
        if !world.ledger.fresh.is_empty() {
            let fresh = std::mem::take(&mut Arc::make_mut(&mut world.ledger).fresh);
            // The scopes of `votes` check the decisions of an epoch change.
            if before.is_normal() && before.epoch() == machine.epoch() {
                fresh.into_iter().try_for_each(|id| check_votes(world, node, id))?;
            }
        }
        if machine.is_normal() {
            // I7: every registration belongs to an undecided record.
            for (key, _, pending, _) in machine.table().entries() {
                let open = |id: Timestamp| {
                    machine.records().iter().any(|(key, record)| {
                        key.id() == id && record.registered && record.decision.is_none()
                    })
                };
                if let Some(lost) = pending.iter().find(|pending| !open(pending.id)) {
                    return Err(format!("{lost:?} of {} is nobody's (I7)", show(key)));
                }
            }
        }
        Ok(())
    }

    fn is_at_rest(&self, machine: &Machine, _now: Instant) -> bool {
        let Served(machine) = machine;
        // A replica amid an epoch change or a copy has a message to repeat.
        machine.is_caught_up()
            && machine.pending() == 0
            && machine.records().is_empty()
            && machine.gauges().iter().all(|(name, count)| *name != "attempts" || *count == 0)
    }

    /// I5, I7 and I9: every replica holds the result of the committed transactions, and no trace of
    /// the others.
    fn check_at_rest(&self, world: &World<Self>) -> Result<(), String> {
        let expected = world.ledger.replay();
        for (node, Served(machine)) in active(world) {
            if !machine.is_normal() {
                return Err(format!("{node} takes no transactions"));
            }
            let mut held = BTreeMap::new();
            for (key, meta, pending, content) in machine.table().entries() {
                if !pending.is_empty() {
                    return Err(format!("{node} has {pending:?} left at {} (I7)", show(key)));
                }
                // Each replica forgets a deletion in its own time.
                if let Some(content) = content {
                    let value = lists::held(machine.table(), key, content);
                    held.insert(key, (meta.wts, value));
                }
            }
            if held != expected {
                return Err(format!("{node} holds {held:?} and not {expected:?} (I5, I9)"));
            }
        }
        served::check_records_at_rest(&self.calls, world, |_| true)
    }
}

fn show(key: &[u8]) -> String {
    String::from_utf8_lossy(key).into_owned()
}
