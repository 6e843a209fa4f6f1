//! The checker that trusts no version numbers: it knows only which values clients wrote and read.
//!
//! Every value (or element) that is written once names its writer, so a read of it is an edge.
//! The order of a key's versions comes from lists, which carry their own past; from transactions
//! that read one version and wrote the next; and, in the strict model, from real time.

use std::collections::HashMap;

use quorate_types::Timestamp;

use crate::history::{Bytes, Initial};

use super::TxnOptions;
use super::access::{Index, Seen};
use super::anomaly::Anomaly;
use super::graph::Graph;
use super::lists::ListOrder;
use super::registers::RegisterOrder;
use super::{Model, add_real_time, explain, lists, registers};

/// The writers of a value, or of an element of a list, in a key.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Origin {
    /// The transaction that may have taken effect, and which of its writes it was.
    pub(super) live: Option<(u32, u32)>,
    /// Whether several transactions that may have taken effect wrote it.
    pub(super) several: bool,
    /// An aborted transaction that wrote it.
    pub(super) aborted: Option<u32>,
}

impl Origin {
    fn add(&mut self, txn: u32, position: u32, aborted: bool) {
        if aborted {
            self.aborted = Some(txn);
            return;
        }
        self.several |= self.live.is_some_and(|(other, _)| other != txn);
        self.live = Some((txn, position));
    }
}

/// The known order of a key's versions, on which explanations rest.
#[derive(Debug)]
pub(super) enum Order<'a> {
    /// The key is not judged.
    None,
    List(ListOrder<'a>),
    Register(RegisterOrder<'a>),
    /// By the versions that transactions carried.
    Versions(&'a [Option<Timestamp>]),
}

/// The facts that the checker knows beside the index.
#[derive(Debug)]
pub(super) struct Knowledge<'a> {
    pub(super) index: &'a Index<'a>,
    pub(super) initial: Initial,
    pub(super) strict: bool,
    pub(super) origins: HashMap<(u32, &'a Bytes), Origin>,
    /// Transactions that took effect: the committed ones, and those of unknown outcome whose
    /// effects a read saw.
    pub(super) present: Vec<bool>,
}

/// Results of a pass over the values.
#[derive(Debug, Default)]
pub(super) struct Observed {
    /// Transactions of unknown outcome that took effect.
    pub(super) inferred: usize,
    pub(super) edges: usize,
    /// Reads, by transaction and key, that may have seen any one of several writes.
    pub(super) ambiguous: Vec<(u32, u32)>,
    /// Keys that were not judged, and why.
    pub(super) unjudged: Vec<(Bytes, String)>,
}

/// Judges a history by its values.
pub(super) fn check(knowledge: &Knowledge<'_>) -> Result<Observed, Anomaly> {
    let mut observed = Observed::default();
    let index = knowledge.index;
    observed.inferred = inferred(index, &knowledge.present);
    if let Some(anomaly) = index.contradiction(&knowledge.present) {
        return Err(anomaly);
    }
    let mut graph = Graph::new(index.records.len());
    let mut orders = Vec::with_capacity(index.keys.len());
    for key in 0..index.keys.len() as u32 {
        let uses = index.uses[key as usize];
        let order = if uses.register && uses.list {
            let reason = "it is used both as a list and as a register".to_owned();
            observed.unjudged.push((index.key(key).clone(), reason));
            Order::None
        } else if uses.list {
            match lists::unjudged(knowledge, key) {
                Some(reason) => {
                    observed.unjudged.push((index.key(key).clone(), reason));
                    Order::None
                }
                None => {
                    let open = index.of_key(key).filter(|access| access.condition.is_some());
                    observed.ambiguous.extend(open.map(|access| (access.txn, key)));
                    Order::List(lists::order(knowledge, key, &mut graph)?)
                }
            }
        } else {
            let order = registers::order(knowledge, key, &mut graph)?;
            observed.ambiguous.extend(order.ambiguous.iter().map(|txn| (*txn, key)));
            Order::Register(order)
        };
        orders.push(order);
    }
    if knowledge.strict {
        add_real_time(index, &knowledge.present, &mut graph);
    }
    observed.edges = graph.edge_count();
    match graph.strongest_cycle() {
        Some(cycle) => Err(explain::cycle(index, &orders, &cycle)),
        None => Ok(observed),
    }
}

/// How many transactions of unknown outcome took effect.
pub(super) fn inferred(index: &Index<'_>, present: &[bool]) -> usize {
    let unknown = |txn: &usize| index.records[*txn].committed_at().is_none();
    (0..present.len()).filter(|txn| present[*txn]).filter(unknown).count()
}

/// Learns what values tell about writers.
pub(super) fn learn<'a>(index: &'a Index<'a>, options: &TxnOptions) -> Knowledge<'a> {
    let mut origins: HashMap<(u32, &Bytes), Origin> = HashMap::new();
    for access in &index.accesses {
        let aborted = index.records[access.txn as usize].is_aborted();
        let written = access.written.iter().copied();
        let appended = access.appended.iter().map(|element| Some(*element));
        for (position, value) in written.chain(appended).enumerate() {
            let Some(value) = value else { continue };
            let origin = origins.entry((access.key, value)).or_default();
            origin.add(access.txn, position as u32, aborted);
        }
    }
    let mut knowledge = Knowledge {
        index,
        initial: options.initial,
        strict: options.model == Model::StrictSerializable,
        origins,
        present: index.records.iter().map(|r| r.committed_at().is_some()).collect(),
    };
    find_present(&mut knowledge, &HashMap::new());
    knowledge
}

/// Finds the transactions of unknown outcome whose effects were seen by one that took effect: by
/// the values, and by the versions as far as `writers` names theirs.
pub(super) fn find_present(
    knowledge: &mut Knowledge<'_>,
    writers: &HashMap<(u32, Timestamp), u32>,
) {
    let index = knowledge.index;
    let mut queue: Vec<u32> =
        (0..index.records.len() as u32).filter(|txn| knowledge.present[*txn as usize]).collect();
    // Lists grow at their ends, so every element needs to be looked at once only. Where that is
    // not so, the history is refused anyway.
    let mut looked_at = vec![0usize; index.keys.len()];
    while let Some(txn) = queue.pop() {
        for access in index.of_txn(txn) {
            let by_version = access.version.and_then(|v| writers.get(&(access.key, v)));
            if let Some(writer) = by_version.filter(|w| !knowledge.present[**w as usize]) {
                knowledge.present[*writer as usize] = true;
                queue.push(*writer);
            }
            let mut see = |value: &Bytes| {
                let origin = knowledge.origins.get(&(access.key, value));
                if let Some(Origin { live: Some((writer, _)), several: false, .. }) = origin
                    && !knowledge.present[*writer as usize]
                {
                    knowledge.present[*writer as usize] = true;
                    queue.push(*writer);
                }
            };
            if let Some(Seen::Value(Some(value))) = access.read {
                see(value);
            }
            let done = &mut looked_at[access.key as usize];
            if let Some(elements) = access.longest
                && elements.len() > *done
            {
                elements[*done..].iter().for_each(see);
                *done = elements.len();
            }
        }
    }
}
