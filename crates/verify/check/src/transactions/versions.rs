//! The checker that uses version numbers: exact, and cheap.
//!
//! Every transaction carries its timestamp, and every read the timestamp of the version it read. So
//! the order of each key's versions is known, and so are all dependencies. Beside the search for
//! cycles, the transactions are replayed in the order of their timestamps, the order that a
//! protocol with timestamps promises.

use std::collections::{BTreeMap, HashMap, HashSet};

use quorate_types::Timestamp;

use crate::history::{Bytes, Initial};
use crate::txn::{Content, List};

use super::access::{Access, Index, Seen};
use super::anomaly::{Anomaly, AnomalyKind};
use super::graph::{EdgeKind, Graph, Label};
use super::observe::{Knowledge, Order, find_present};
use super::{add_real_time, explain};

/// Results of a pass over the versions.
#[derive(Debug, Default)]
pub(super) struct Versioned {
    /// Reads whose version was followed.
    pub(super) reads: usize,
    /// The followed reads, by transaction and key, on keys where every change has a known moment.
    pub(super) followed: HashSet<(u32, u32)>,
    /// Transactions that were replayed in the order of timestamps.
    pub(super) replayed: usize,
    /// Transactions that took effect and changed something at a moment that is not known.
    pub(super) unplaced: usize,
    pub(super) edges: usize,
}

/// Whether a history carries versions.
pub(super) fn carried(index: &Index<'_>) -> bool {
    index.records.iter().any(|record| record.timestamp.is_some())
        || index.accesses.iter().any(|access| access.version.is_some())
}

/// Judges a history by its versions.
pub(super) fn check(knowledge: &mut Knowledge<'_>) -> Result<Versioned, Anomaly> {
    let index = knowledge.index;
    let mut stamps = vec![None; index.records.len()];
    let mut writers = HashMap::new();
    for (txn, record) in index.records.iter().enumerate().filter(|(_, r)| !r.is_aborted()) {
        stamps[txn] = record.timestamp;
        let Some(stamp) = record.timestamp else { continue };
        for access in index.of_txn(txn as u32).iter().filter(|access| access.changes()) {
            writers.insert((access.key, stamp), txn as u32);
        }
    }
    find_present(knowledge, &writers);
    if let Some(anomaly) = index.contradiction(&knowledge.present) {
        return Err(anomaly);
    }
    let mut versions = Versions {
        knowledge,
        stamps,
        placed: vec![Vec::new(); index.keys.len()],
        open: vec![false; index.keys.len()],
        result: Versioned::default(),
        out_of_order: None,
    };
    versions.infer_stamps(&writers)?;
    versions.place()?;
    let mut graph = Graph::new(index.records.len());
    versions.connect(&mut graph)?;
    if versions.knowledge.strict {
        add_real_time(index, &versions.knowledge.present, &mut graph);
    }
    versions.result.edges = graph.edge_count();
    if let Some(cycle) = graph.strongest_cycle() {
        let orders: Vec<Order<'_>> =
            index.keys.iter().map(|_| Order::Versions(&versions.stamps)).collect();
        return Err(explain::cycle(index, &orders, &cycle));
    }
    versions.replay();
    match versions.out_of_order {
        Some(anomaly) => Err(anomaly),
        None => Ok(versions.result),
    }
}

struct Versions<'k, 'a> {
    knowledge: &'k Knowledge<'a>,
    /// The timestamp of each transaction, as far as it is known.
    stamps: Vec<Option<Timestamp>>,
    /// The writers of each key in the order of their timestamps.
    placed: Vec<Vec<(Timestamp, u32)>>,
    /// Keys with a change, or maybe a deletion, at a moment that is not known.
    open: Vec<bool>,
    result: Versioned,
    /// The first read that contradicts the order of timestamps. A cycle says more.
    out_of_order: Option<Anomaly>,
}

impl<'a> Versions<'_, 'a> {
    fn index(&self) -> &'a Index<'a> {
        self.knowledge.index
    }

    fn present(&self) -> impl Iterator<Item = &'a Access<'a>> + use<'_, 'a> {
        self.index().accesses.iter().filter(|a| self.knowledge.present[a.txn as usize])
    }

    fn anomaly(&self, kind: AnomalyKind, txns: &[u32], step: String) -> Anomaly {
        self.index().anomaly(kind, txns, step)
    }

    /// A transaction whose timestamp its client did not learn has that of the version that others
    /// read from it.
    fn infer_stamps(&mut self, writers: &HashMap<(u32, Timestamp), u32>) -> Result<(), Anomaly> {
        let mut inferred: HashMap<u32, u32> = HashMap::new();
        for access in self.index().accesses.iter() {
            if !self.knowledge.present[access.txn as usize] {
                continue;
            }
            let value = match access.read {
                Some(Seen::Value(value)) => value,
                Some(Seen::List(elements)) => elements.last(),
                None => None,
            };
            let (Some(version), Some(value)) = (access.version, value) else { continue };
            if writers.contains_key(&(access.key, version)) {
                continue;
            }
            let origin = self.knowledge.origins.get(&(access.key, value)).copied();
            let origin = origin.unwrap_or_default();
            let Some((writer, _)) = origin.live.filter(|_| !origin.several) else { continue };
            let stamp = &mut self.stamps[writer as usize];
            match (*stamp, inferred.get(&writer).copied()) {
                (None, _) => {
                    *stamp = Some(version);
                    inferred.insert(writer, access.txn);
                }
                (Some(known), Some(other)) if known != version => {
                    let (who, other_name) = (self.name(access.txn), self.name(other));
                    let step = format!(
                        "{other_name} read what {} wrote at version {known:?}, and {who} read \
                         what it wrote at version {version:?}",
                        self.name(writer)
                    );
                    let txns = [writer, other, access.txn];
                    return Err(self.anomaly(AnomalyKind::WrongVersion, &txns, step));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn name(&self, txn: u32) -> String {
        self.index().name(txn)
    }

    /// When the client of a transaction was answered: no earlier than it took effect, and of several
    /// that took effect together in the same order.
    fn end(&self, txn: u32) -> u64 {
        self.index().records[txn as usize].committed_at().unwrap_or(u64::MAX)
    }

    /// Whether each of two transactions began before the other was answered. Those that waited for
    /// one another may have taken effect together, at one timestamp.
    fn overlap(&self, one: u32, other: u32) -> bool {
        let invoke = |txn: u32| self.index().records[txn as usize].invoke;
        invoke(one) < self.end(other) && invoke(other) < self.end(one)
    }

    /// Whether another one of these transactions has changed a key that this one has.
    fn is_beside(&self, txn: u32, txns: &[u32]) -> bool {
        let index = self.index();
        let changed = |access: &&Access<'_>| access.changes();
        index.of_txn(txn).iter().filter(changed).any(|access| {
            let mut others = txns.iter().filter(|other| **other != txn);
            others.any(|other| index.access(*other, access.key).as_ref().is_some_and(changed))
        })
    }

    /// Puts the writers of each key in order.
    fn place(&mut self) -> Result<(), Anomaly> {
        let mut owners: BTreeMap<Timestamp, Vec<u32>> = BTreeMap::new();
        for access in self.present().filter(|access| access.changes()) {
            let Some(stamp) = self.stamps[access.txn as usize] else { continue };
            let owners = owners.entry(stamp).or_default();
            if owners.contains(&access.txn) {
                continue;
            }
            if let Some(other) = owners.iter().find(|other| !self.overlap(**other, access.txn)) {
                let step = format!(
                    "{} and {} both changed something at {stamp:?}",
                    self.name(*other),
                    self.name(access.txn)
                );
                let txns = [*other, access.txn];
                return Err(self.anomaly(AnomalyKind::DuplicateTimestamp, &txns, step));
            }
            owners.push(access.txn);
        }
        // Several writes have the same version. The place of one without an answer among them is unknown,
        // unless they have changed different keys.
        for txns in owners.values().filter(|txns| txns.len() > 1) {
            let unanswered = txns.iter().filter(|txn| self.end(**txn) == u64::MAX);
            let lost: Vec<u32> =
                unanswered.filter(|txn| self.is_beside(**txn, txns)).copied().collect();
            lost.into_iter().for_each(|txn| self.stamps[txn as usize] = None);
        }
        let mut unplaced = vec![false; self.stamps.len()];
        for access in self.present().filter(|access| access.changes()).collect::<Vec<_>>() {
            let Some(stamp) = self.stamps[access.txn as usize] else {
                self.open[access.key as usize] = true;
                unplaced[access.txn as usize] = true;
                continue;
            };
            self.placed[access.key as usize].push((stamp, access.txn));
        }
        // A read of an absent key does not name the deletion that it saw.
        for access in &self.index().accesses {
            let aborted = self.index().records[access.txn as usize].is_aborted();
            let deletes = access.written.last() == Some(&None);
            let txn = access.txn as usize;
            let is_placed = self.stamps[txn].is_some() && self.knowledge.present[txn];
            if deletes && !aborted && !is_placed {
                self.open[access.key as usize] = true;
            }
        }
        let end = |txn: u32| self.knowledge.index.records[txn as usize].committed_at();
        for writers in &mut self.placed {
            writers.sort_unstable_by_key(|(stamp, txn)| (*stamp, end(*txn), *txn));
        }
        self.result.unplaced = unplaced.into_iter().filter(|unplaced| *unplaced).count();
        Ok(())
    }

    fn connect(&mut self, graph: &mut Graph) -> Result<(), Anomaly> {
        for (key, writers) in self.placed.iter().enumerate() {
            for pair in writers.windows(2) {
                graph.add(pair[0].1, pair[1].1, Label::new(EdgeKind::WriteWrite, key as u32));
            }
        }
        for access in self.present().collect::<Vec<_>>() {
            let (Some(seen), Some(version)) = (access.read, access.version) else { continue };
            let writers = &self.placed[access.key as usize];
            // The writer of the version, and the one that replaced it.
            let next = writers.partition_point(|(stamp, _)| *stamp <= version);
            let before = next.checked_sub(1).map(|at| writers[at]);
            let next = writers.get(next).copied();
            if !self.judge_version(access, seen, version, before)? {
                continue;
            }
            self.result.reads += 1;
            if !self.open[access.key as usize] {
                self.result.followed.insert((access.txn, access.key));
            }
            let label = |kind| Label::new(kind, access.key);
            if let Some((_, writer)) = before {
                graph.add(writer, access.txn, label(EdgeKind::WriteRead));
            }
            if let Some((_, writer)) = next {
                graph.add(access.txn, writer, label(EdgeKind::ReadWrite));
            }
            self.judge_moment(access, before, next);
        }
        Ok(())
    }

    /// Whether a read saw the value written with the version that it carries. `false` if that can't
    /// be told.
    fn judge_version(
        &self,
        access: &Access<'_>,
        seen: Seen<'_>,
        version: Timestamp,
        before: Option<(Timestamp, u32)>,
    ) -> Result<bool, Anomaly> {
        let (key, who) = (self.index().key(access.key), self.name(access.txn));
        let writer = before.filter(|(stamp, _)| *stamp == version).map(|(_, writer)| writer);
        let absent = matches!(seen, Seen::Value(None) | Seen::List([]));
        let Some(writer) = writer.or(before.filter(|_| absent).map(|(_, writer)| writer)) else {
            // For an absent key, any moment before its first writer fits.
            let fits = absent || self.knowledge.initial == Initial::Any && before.is_none();
            if fits || self.open[access.key as usize] {
                return Ok(fits);
            }
            return Err(self.unwritten(access, seen, version));
        };
        let answered = self.index().access(writer, access.key).expect("it wrote this key");
        let fits = match seen {
            Seen::Value(value) => match answered.written.last() {
                Some(last) => *last == value,
                None => return Ok(!absent),
            },
            // The replay judges the whole content of a list.
            Seen::List([]) => matches!(answered.written.last(), Some(None)),
            Seen::List([.., last]) => match answered.appended.last() {
                Some(own) => *own == last,
                None => return Ok(false),
            },
        };
        if fits || (absent && self.open[access.key as usize]) {
            return Ok(fits);
        }
        let txns = [access.txn, writer];
        let early = match seen {
            Seen::Value(value) => answered.written.contains(&value),
            Seen::List(elements) => elements.last().is_some_and(|e| answered.appended.contains(&e)),
        };
        if early {
            let step = format!(
                "{who} read {key} = {seen} at version {version:?}, which {} wrote and replaced \
                 itself",
                self.name(writer)
            );
            return Err(self.anomaly(AnomalyKind::IntermediateRead, &txns, step));
        }
        let step = format!(
            "{who} read {key} = {seen} at version {version:?}, but {} had put {} there",
            self.name(writer),
            match (answered.written.last(), answered.appended.last()) {
                (Some(value), _) => Content(*value).to_string(),
                (None, element) => format!("{} at the end", Content(element.copied())),
            }
        );
        Err(self.anomaly(AnomalyKind::WrongVersion, &txns, step))
    }

    /// A read of a version whose writer is not among the transactions that took effect.
    fn unwritten(&self, access: &Access<'_>, seen: Seen<'_>, version: Timestamp) -> Anomaly {
        let (key, who) = (self.index().key(access.key), self.name(access.txn));
        let aborted = self.index().of_key(access.key).find(|other| {
            let record = &self.index().records[other.txn as usize];
            other.changes() && record.is_aborted() && record.timestamp == Some(version)
        });
        if let Some(aborted) = aborted {
            let writer = self.name(aborted.txn);
            let step = format!(
                "{who} read {key} = {seen} at version {version:?}, which {writer} wrote; but \
                 {writer} aborted"
            );
            let txns = [access.txn, aborted.txn];
            return self.anomaly(AnomalyKind::AbortedRead, &txns, step);
        }
        let step = format!(
            "{who} read {key} = {seen} at version {version:?}, at which nobody wrote the key"
        );
        self.anomaly(AnomalyKind::Phantom, &[access.txn], step)
    }

    /// Whether a read saw the last version before its transaction's own timestamp.
    fn judge_moment(
        &mut self,
        access: &Access<'_>,
        before: Option<(Timestamp, u32)>,
        next: Option<(Timestamp, u32)>,
    ) {
        let Some(own) = self.stamps[access.txn as usize].filter(|_| self.out_of_order.is_none())
        else {
            return;
        };
        let (key, who) = (self.index().key(access.key), self.name(access.txn));
        if let Some((stamp, writer)) = next.filter(|(stamp, _)| *stamp < own) {
            let step = format!(
                "{who} took effect at {own:?} and read {key} at version {:?}, but {} changed it \
                 at {stamp:?}, which lies between",
                access.version.unwrap_or_default(),
                self.name(writer),
            );
            let txns = [access.txn, writer];
            self.out_of_order = Some(self.anomaly(AnomalyKind::TimestampOrder, &txns, step));
        } else if let Some((stamp, writer)) = before.filter(|(stamp, _)| *stamp >= own) {
            let step = format!(
                "{who} took effect at {own:?}, but read what {} wrote to {key} at {stamp:?}, \
                 which is later",
                self.name(writer),
            );
            let txns = [access.txn, writer];
            self.out_of_order = Some(self.anomaly(AnomalyKind::TimestampOrder, &txns, step));
        }
    }

    /// Runs the transactions in the order of their timestamps on one copy of the data.
    fn replay(&mut self) {
        let mut sequence: Vec<(Timestamp, u32)> = (0..self.stamps.len())
            .filter(|txn| self.knowledge.present[*txn])
            .filter_map(|txn| Some((self.stamps[txn]?, txn as u32)))
            .collect();
        // What took effect together, in the order of its answers.
        sequence.sort_unstable_by_key(|(stamp, txn)| (*stamp, self.end(*txn), *txn));
        self.result.replayed = sequence.len();
        let mut states: Vec<State<'a>> = vec![State::Start; self.index().keys.len()];
        for (stamp, txn) in sequence {
            for access in self.index().of_txn(txn) {
                let uses = self.index().uses[access.key as usize];
                if self.open[access.key as usize] || uses.list == uses.register {
                    continue;
                }
                let state = &mut states[access.key as usize];
                let fits = access.read.is_none_or(|seen| state.sees(seen, self.knowledge.initial));
                if !fits && self.out_of_order.is_none() {
                    let seen = access.read.expect("only a read can fail to fit");
                    let (key, who) = (self.index().key(access.key), self.index().name(txn));
                    let step = format!(
                        "{who} took effect at {stamp:?} and read {key} = {seen}; but in the \
                         order of timestamps the key then held {state}"
                    );
                    let anomaly = self.index().anomaly(AnomalyKind::TimestampOrder, &[txn], step);
                    self.out_of_order = Some(anomaly);
                }
                state.change(access);
            }
        }
    }
}

/// The content of a key in the replay.
#[derive(Clone, Debug)]
enum State<'a> {
    /// No transaction has touched the key.
    Start,
    Value(Option<&'a Bytes>),
    List(Vec<&'a Bytes>),
}

impl std::fmt::Display for State<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Start => f.write_str("nothing"),
            Self::Value(value) => Content(*value).fmt(f),
            Self::List(elements) => {
                let elements: Vec<Bytes> = elements.iter().map(|e| (*e).clone()).collect();
                List(&elements).fmt(f)
            }
        }
    }
}

impl<'a> State<'a> {
    /// Whether a read of this state sees `seen`. The first observation of a key that may hold
    /// anything at the start fixes what it held.
    fn sees(&mut self, seen: Seen<'a>, initial: Initial) -> bool {
        match (&*self, seen) {
            (Self::Start, seen) if initial == Initial::Any => {
                *self = match seen {
                    Seen::Value(value) => Self::Value(value),
                    Seen::List(elements) => Self::List(elements.iter().collect()),
                };
                true
            }
            (Self::Start, seen) => matches!(seen, Seen::Value(None) | Seen::List([])),
            (Self::Value(held), Seen::Value(value)) => *held == value,
            (Self::List(held), Seen::List(elements)) => {
                held.len() == elements.len() && held.iter().copied().eq(elements.iter())
            }
            _ => true,
        }
    }

    fn change(&mut self, access: &Access<'a>) {
        if let Some(value) = access.written.last() {
            *self = Self::Value(*value);
        }
        if access.appended.is_empty() {
            return;
        }
        match self {
            Self::List(held) => held.extend(&access.appended),
            _ => *self = Self::List(access.appended.clone()),
        }
    }
}
