//! Registers: a value that is written once names its writer; which version follows which is known
//! where a transaction read one and wrote the other, and from real time.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::history::{Bytes, Initial};
use crate::txn::Content;

use super::access::{Access, Seen};
use super::anomaly::{Anomaly, AnomalyKind};
use super::candidates::{Candidates, Source};
use super::graph::{EdgeKind, Graph, Label};
use super::observe::Knowledge;

/// The version that a key has at the start. Versions that transactions wrote follow from 1.
pub(super) const START: usize = 0;

/// A version of a register, and the transactions that wrote or read it.
#[derive(Debug)]
pub(super) struct Version<'a> {
    /// The transaction that wrote it; `None` for the first version.
    pub(super) writer: Option<u32>,
    pub(super) value: Option<&'a Bytes>,
    /// The version that its writer read and replaced.
    pub(super) replaced: Option<usize>,
    /// Which of its transactions ended first, and when.
    pub(super) ended: Option<(u64, u32)>,
    /// Which of its transactions began last, and when.
    pub(super) began: Option<(u64, u32)>,
}

/// The known order of a register's versions.
#[derive(Debug)]
pub(super) struct RegisterOrder<'a> {
    pub(super) versions: Vec<Version<'a>>,
    /// The version that each transaction wrote.
    pub(super) written: BTreeMap<u32, usize>,
    /// The version that each transaction read, where that is clear.
    pub(super) read: BTreeMap<u32, usize>,
    /// Transactions whose read only real time attributes to a version.
    pub(super) read_by_time: BTreeSet<u32>,
    /// Transactions whose read may have seen several versions.
    pub(super) ambiguous: Vec<u32>,
}

/// Finds the known order of a register's versions and adds the edges that follow from it.
pub(super) fn order<'a>(
    knowledge: &Knowledge<'a>,
    key: u32,
    graph: &mut Graph,
) -> Result<RegisterOrder<'a>, Anomaly> {
    let mut register = Register { knowledge, key, order: collect_versions(knowledge, key) };
    register.attribute_reads()?;
    register.find_replaced()?;
    register.connect(graph);
    if knowledge.strict {
        register.measure();
        register.connect_timed(graph);
    }
    Ok(register.order)
}

fn present<'k, 'a>(
    knowledge: &'k Knowledge<'a>,
    key: u32,
) -> impl Iterator<Item = &'a Access<'a>> + use<'k, 'a> {
    let index: &'a _ = knowledge.index;
    index.of_key(key).filter(|access| knowledge.present[access.txn as usize])
}

fn collect_versions<'a>(knowledge: &Knowledge<'a>, key: u32) -> RegisterOrder<'a> {
    let version =
        |writer, value| Version { writer, value, replaced: None, ended: None, began: None };
    let mut versions = vec![version(None, None)];
    let mut written = BTreeMap::new();
    for access in present(knowledge, key) {
        if let Some(value) = access.written.last() {
            written.insert(access.txn, versions.len());
            versions.push(version(Some(access.txn), *value));
        }
    }
    RegisterOrder {
        versions,
        written,
        read: BTreeMap::new(),
        read_by_time: BTreeSet::new(),
        ambiguous: Vec::new(),
    }
}

struct Register<'k, 'a> {
    knowledge: &'k Knowledge<'a>,
    key: u32,
    order: RegisterOrder<'a>,
}

impl<'a> Register<'_, 'a> {
    fn name(&self, txn: u32) -> String {
        self.knowledge.index.name(txn)
    }

    fn key(&self) -> &'a Bytes {
        self.knowledge.index.key(self.key)
    }

    fn anomaly(&self, kind: AnomalyKind, txns: &[u32], step: String) -> Anomaly {
        self.knowledge.index.anomaly(kind, txns, step)
    }

    /// Finds the version that each read saw.
    fn attribute_reads(&mut self) -> Result<(), Anomaly> {
        let candidates = Candidates::new(self.knowledge, self.key, &self.order);
        let mut at_start: Option<(Option<&Bytes>, u32)> = None;
        for access in present(self.knowledge, self.key) {
            let source = match (access.read, access.condition) {
                (Some(Seen::Value(Some(value))), _) => match self.writer_of(access, value)? {
                    None => candidates.only(access, |held| held == Some(value)),
                    Some(version) => Some(Source { version, timed: false }),
                },
                // An absent key was never written, or one of its deletions happened.
                (Some(Seen::Value(None)), _) => candidates.only_absent(access),
                (None, Some(condition)) => candidates.only(access, |held| condition.admits(held)),
                _ => continue,
            };
            let Some(Source { version, timed }) = source else {
                self.order.ambiguous.push(access.txn);
                continue;
            };
            if version == START
                && let Some(Seen::Value(value)) = access.read
            {
                if let Some((first, reader)) = at_start.filter(|(first, _)| *first != value) {
                    return Err(self.two_starts(access.txn, value, reader, first));
                }
                at_start = Some((value, access.txn));
                self.order.versions[START].value = value;
            }
            self.order.read.insert(access.txn, version);
            if timed {
                self.order.read_by_time.insert(access.txn);
            }
        }
        Ok(())
    }

    fn two_starts(
        &self,
        txn: u32,
        value: Option<&Bytes>,
        other: u32,
        first: Option<&Bytes>,
    ) -> Anomaly {
        let step = format!(
            "{} read {} = {} and {} read it = {}, but nobody wrote either, and the key can't have \
             held both at the start",
            self.name(txn),
            self.key(),
            Content(value),
            self.name(other),
            Content(first),
        );
        self.anomaly(AnomalyKind::Phantom, &[txn, other], step)
    }

    /// The version with this value, which is present; `None` if several transactions may have
    /// written it.
    fn writer_of(&self, access: &Access<'_>, value: &Bytes) -> Result<Option<usize>, Anomaly> {
        let (key, who) = (self.key(), self.name(access.txn));
        let origin = self.knowledge.origins.get(&(self.key, value)).copied().unwrap_or_default();
        if origin.several {
            return Ok(None);
        }
        if let Some((writer, position)) = origin.live {
            if writer == access.txn {
                let step =
                    format!("{who} read {key} = {value}, which it wrote itself only afterwards");
                return Err(self.anomaly(AnomalyKind::Internal, &[writer], step));
            }
            let written = self.knowledge.index.access(writer, self.key);
            let last = written.is_some_and(|a| a.written.len() == position as usize + 1);
            if !last {
                let step = format!(
                    "{who} read {key} = {value}, which {} wrote and replaced itself: that state \
                     is nobody's to see",
                    self.name(writer)
                );
                let txns = [access.txn, writer];
                return Err(self.anomaly(AnomalyKind::IntermediateRead, &txns, step));
            }
            let version = self.order.written.get(&writer).copied();
            return Ok(Some(version.expect("a transaction whose write was read is present")));
        }
        if let Some(aborted) = origin.aborted {
            let writer = self.name(aborted);
            let step =
                format!("{who} read {key} = {value}, which {writer} wrote; but {writer} aborted");
            return Err(self.anomaly(AnomalyKind::AbortedRead, &[access.txn, aborted], step));
        }
        if self.knowledge.initial == Initial::Any {
            return Ok(Some(START));
        }
        let step = format!("{who} read {key} = {value}, which nobody wrote");
        Err(self.anomaly(AnomalyKind::Phantom, &[access.txn], step))
    }

    /// Finds the versions that transactions read and then replaced. The replacing version follows
    /// the replaced one directly.
    fn find_replaced(&mut self) -> Result<(), Anomaly> {
        let mut replaced_by: HashMap<usize, u32> = HashMap::new();
        for access in present(self.knowledge, self.key) {
            let (Some(read), Some(written)) =
                (self.order.read.get(&access.txn), self.order.written.get(&access.txn))
            else {
                continue;
            };
            if let Some(first) = replaced_by.insert(*read, access.txn) {
                let step = format!(
                    "{} and {} both read {} = {} and both replaced it; whichever came second had \
                     to see the other's write",
                    self.name(first),
                    self.name(access.txn),
                    self.key(),
                    Content(self.order.versions[*read].value),
                );
                return Err(self.anomaly(AnomalyKind::LostUpdate, &[first, access.txn], step));
            }
            self.order.versions[*written].replaced = Some(*read);
        }
        Ok(())
    }

    fn connect(&self, graph: &mut Graph) {
        let label = |kind| Label::new(kind, self.key);
        let versions = &self.order.versions;
        // The transaction that read and replaced each version.
        let mut next: Vec<Option<u32>> = vec![None; versions.len()];
        // A relay to the writers whose place is not known. All of them come after the start.
        let unplaced = graph.relay();
        for version in &versions[START + 1..] {
            let writer = version.writer.expect("only the first version has no writer");
            match version.replaced {
                None => graph.forward(unplaced, writer),
                Some(before) => {
                    next[before] = Some(writer);
                    if let Some(before) = versions[before].writer {
                        graph.add(before, writer, label(EdgeKind::WriteWrite));
                    }
                }
            }
        }
        for (reader, version) in &self.order.read {
            let timed = self.order.read_by_time.contains(reader);
            let label = |kind| Label { timed, ..label(kind) };
            if let Some(writer) = versions[*version].writer {
                graph.add(writer, *reader, label(EdgeKind::WriteRead));
            }
            if let Some(next) = next[*version] {
                graph.add(*reader, next, label(EdgeKind::ReadWrite));
            }
            if *version == START {
                graph.add(*reader, unplaced, label(EdgeKind::ReadWrite));
            }
        }
    }

    /// Notes when the transactions of each version ended and began.
    fn measure(&mut self) {
        let RegisterOrder { versions, written, read, .. } = &mut self.order;
        for (txn, version) in written.iter().chain(read.iter()) {
            let record = &self.knowledge.index.records[*txn as usize];
            let version = &mut versions[*version];
            let began = (record.invoke, *txn);
            version.began = Some(version.began.map_or(began, |other| other.max(began)));
            if let Some(at) = record.committed_at() {
                let ended = (at, *txn);
                version.ended = Some(version.ended.map_or(ended, |other| other.min(ended)));
            }
        }
    }

    /// A version is older than another if a transaction that wrote or read it had ended when a
    /// transaction that wrote or read the other began: values are written once, so a replaced
    /// version never comes back.
    fn connect_timed(&self, graph: &mut Graph) {
        let versions = &self.order.versions;
        if versions.len() <= START + 2 {
            return;
        }
        let mut line = Line::new(versions, graph);
        for (txn, version) in &self.order.read {
            let label = Label::timed(EdgeKind::ReadWrite, self.key);
            match self.order.written.get(txn) {
                // Versions after the one that was read also follow the version that replaced it.
                Some(own) => line.enter(*txn, label, *version, &[*version, *own], graph),
                None => line.enter(*txn, label, *version, &[*version], graph),
            }
        }
        for (txn, version) in &self.order.written {
            let label = Label::timed(EdgeKind::WriteWrite, self.key);
            line.enter(*txn, label, *version, &[*version], graph);
        }
    }
}

/// The versions of a register that transactions wrote, ordered by when the last of their
/// transactions began, with a relay from each to itself and to all later ones.
struct Line<'v, 'a> {
    versions: &'v [Version<'a>],
    sorted: Vec<usize>,
    began: Vec<u64>,
    /// The place of each version in `sorted`.
    place: Vec<usize>,
    relays: Vec<u32>,
}

impl<'v, 'a> Line<'v, 'a> {
    fn new(versions: &'v [Version<'a>], graph: &mut Graph) -> Self {
        let start_of = |version: usize| versions[version].began.map_or(0, |(at, _)| at);
        let mut sorted: Vec<usize> = (START + 1..versions.len()).collect();
        sorted.sort_by_key(|version| start_of(*version));
        let mut place = vec![0; versions.len()];
        let relays: Vec<u32> = sorted.iter().map(|_| graph.relay()).collect();
        for (i, version) in sorted.iter().enumerate() {
            place[*version] = i;
            let writer = versions[*version].writer.expect("the first version is not in the line");
            graph.forward(relays[i], writer);
            if let Some(next) = relays.get(i + 1) {
                graph.forward(relays[i], *next);
            }
        }
        let began = sorted.iter().map(|version| start_of(*version)).collect();
        Self { versions, sorted, began, place, relays }
    }

    /// Adds edges from `txn` to the writers of all versions that real time shows to follow
    /// `version`, but those of `except`.
    ///
    /// Writers that began before an exception are added one by one. That walk is short: such a
    /// version either is in flight together with the others, or it ended before the exception
    /// began; then there is a cycle, and the walk can end.
    fn enter(
        &mut self,
        txn: u32,
        label: Label,
        version: usize,
        except: &[usize],
        graph: &mut Graph,
    ) {
        let Some((ended, _)) = self.versions[version].ended else { return };
        let mut at = self.began.partition_point(|began| *began <= ended);
        let exceptions = except.iter().filter(|version| **version != START);
        let last = exceptions.map(|version| self.place[*version]).max();
        let Some(last) = last.filter(|last| *last >= at) else {
            return self.rest(txn, label, at, graph);
        };
        while at < last {
            let other = self.sorted[at];
            at += 1;
            if except.contains(&other) {
                continue;
            }
            let writer = self.versions[other].writer.expect("the line has only written versions");
            graph.add(txn, writer, label);
            if self.versions[other].ended.is_some_and(|(ended, _)| ended < self.began[last]) {
                break;
            }
        }
        self.rest(txn, label, last + 1, graph);
    }

    fn rest(&self, txn: u32, label: Label, from: usize, graph: &mut Graph) {
        if let Some(relay) = self.relays.get(from) {
            graph.add(txn, *relay, label);
        }
    }
}
