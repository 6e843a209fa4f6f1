//! Transactions that run one after the other on one copy of the data, seen by clients that
//! overlap: histories that are valid by construction.

use std::collections::BTreeMap;

use quorate_check::{Bytes, TxnOp, TxnOutcome, TxnRecord};
use quorate_machine::Rng;
use quorate_types::{Timestamp, WriterId};

/// The load of a simulated history.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) clients: u64,
    pub(crate) transactions: u64,
    /// Keys of each sort.
    pub(crate) keys: u64,
    pub(crate) lists: bool,
    pub(crate) registers: bool,
    /// Whether registers are deleted now and then.
    pub(crate) deletes: bool,
    /// Whether every write of a register follows a read of it.
    pub(crate) read_first: bool,
    /// Operations of a transaction, at most.
    pub(crate) ops_max: u64,
    /// Out of 1000.
    pub(crate) unknown: u64,
    /// Out of 1000.
    pub(crate) aborted: u64,
    /// Whether clients learn timestamps and versions.
    pub(crate) versions: bool,
}

impl Load {
    pub(crate) fn new(transactions: u64) -> Self {
        Self {
            clients: 8,
            transactions,
            keys: 6,
            lists: true,
            registers: true,
            deletes: true,
            read_first: false,
            ops_max: 5,
            unknown: 50,
            aborted: 100,
            versions: false,
        }
    }
}

/// The one copy of the data.
#[derive(Default)]
struct Data {
    registers: BTreeMap<String, (Option<Bytes>, Timestamp)>,
    lists: BTreeMap<String, (Vec<Bytes>, Timestamp)>,
}

/// How many elements a list has before a fresh one takes its place.
const LIST_LENGTH_MAX: u64 = 60;

struct Simulation {
    load: Load,
    data: Data,
    /// The generation of each slot's list, to which the next appends go.
    generations: Vec<u64>,
    appended: Vec<u64>,
    fresh: u64,
}

/// Runs clients. Each transaction takes effect at one instant between its invoke and its end; one
/// of unknown outcome much later, or never.
pub(crate) fn simulate(rng: &mut Rng, load: Load) -> Vec<TxnRecord> {
    let mut records = Vec::new();
    let mut points = BTreeMap::new();
    let mut free_at: Vec<u64> = (0..load.clients).collect();
    for id in 0..load.transactions {
        let client = (0..free_at.len()).min_by_key(|&i| free_at[i]).expect("there are clients");
        let invoke = free_at[client] + 1 + rng.below(30);
        let point = invoke + 1 + rng.below(60);
        let at = point + 1 + rng.below(60);
        free_at[client] = at;
        let dice = rng.below(1000);
        let (outcome, point) = if dice < load.unknown {
            let late = rng.chance(2, 3).then(|| invoke + rng.below(2000));
            (TxnOutcome::Unknown, late)
        } else if dice < load.unknown + load.aborted {
            (TxnOutcome::Aborted { at }, None)
        } else {
            (TxnOutcome::Committed { at }, Some(point))
        };
        if let Some(point) = point {
            points.insert((point, id), records.len());
        }
        let process = client as u64;
        records.push(TxnRecord { process, id, invoke, outcome, timestamp: None, ops: vec![] });
    }
    let slots = load.keys as usize;
    let (generations, appended) = (vec![0; slots], vec![0; slots]);
    let mut simulation =
        Simulation { load, data: Data::default(), generations, appended, fresh: 0 };
    let mut happened = vec![false; records.len()];
    for ((point, id), index) in points {
        let writer = WriterId(id as u32);
        simulation.run(rng, &mut records[index], Some(Timestamp::new(point, writer)));
        happened[index] = true;
    }
    for (record, _) in records.iter_mut().zip(happened).filter(|(_, happened)| !happened) {
        simulation.run(rng, record, None);
    }
    records
}

impl Simulation {
    /// Runs a transaction; without a moment it changes nothing, and its client learned no reads.
    fn run(&mut self, rng: &mut Rng, record: &mut TxnRecord, moment: Option<Timestamp>) {
        // A client that lost the answer may not have learned the timestamp.
        let learned = record.committed_at().is_some() || rng.chance(1, 2);
        record.timestamp = moment.filter(|_| self.load.versions && learned);
        let mut changed = Vec::new();
        for _ in 0..1 + rng.below(self.load.ops_max) {
            let list = self.load.lists && (!self.load.registers || rng.chance(1, 2));
            let slot = rng.below(self.load.keys) as usize;
            if list {
                self.list(rng, slot, moment, &mut changed, &mut record.ops);
            } else {
                self.register(rng, slot, moment, &mut changed, &mut record.ops);
            }
        }
        if moment.is_none() {
            record.ops.retain(TxnOp::changes);
        }
    }

    fn value(&mut self) -> Bytes {
        self.fresh += 1;
        format!("{}", self.fresh).into()
    }

    fn list(
        &mut self,
        rng: &mut Rng,
        slot: usize,
        moment: Option<Timestamp>,
        changed: &mut Vec<String>,
        ops: &mut Vec<TxnOp>,
    ) {
        if self.appended[slot] > LIST_LENGTH_MAX {
            (self.appended[slot], self.generations[slot]) = (0, self.generations[slot] + 1);
        }
        let key = format!("l{slot}.{}", self.generations[slot]);
        if rng.chance(1, 2) {
            let held = self.data.lists.get(&key).cloned().unwrap_or_default();
            let version = (self.load.versions && !changed.contains(&key)).then_some(held.1);
            ops.push(TxnOp::ReadList { key: key.as_str().into(), elements: held.0, version });
            return;
        }
        let element = self.value();
        if let Some(moment) = moment {
            let held = self.data.lists.entry(key.clone()).or_default();
            held.0.push(element.clone());
            held.1 = moment;
        }
        self.appended[slot] += 1;
        ops.push(TxnOp::append(key.as_str(), element));
        changed.push(key);
    }

    fn register(
        &mut self,
        rng: &mut Rng,
        slot: usize,
        moment: Option<Timestamp>,
        changed: &mut Vec<String>,
        ops: &mut Vec<TxnOp>,
    ) {
        let key = format!("r{slot}");
        let writes = rng.chance(1, 2);
        if !writes || self.load.read_first {
            let held = self.data.registers.get(&key).cloned().unwrap_or_default();
            let version = (self.load.versions && !changed.contains(&key)).then_some(held.1);
            ops.push(TxnOp::Read { key: key.as_str().into(), value: held.0, version });
        }
        if writes {
            let delete = self.load.deletes && rng.chance(1, 8);
            let value = if delete { None } else { Some(self.value()) };
            if let Some(moment) = moment {
                self.data.registers.insert(key.clone(), (value.clone(), moment));
            }
            ops.push(TxnOp::write(key.as_str(), value));
            changed.push(key);
        }
    }
}
