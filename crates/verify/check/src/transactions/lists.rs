//! Lists: every read carries the order of all versions before it.

use std::collections::HashMap;

use crate::history::{Bytes, Initial};
use crate::txn::List;

use super::access::{Access, Seen};
use super::anomaly::{Anomaly, AnomalyKind};
use super::graph::{EdgeKind, Graph, Label};
use super::observe::Knowledge;

/// The order of a list's versions: the longest read.
#[derive(Debug)]
pub(super) struct ListOrder<'a> {
    pub(super) elements: &'a [Bytes],
    /// The transaction that read it, if any transaction read the list.
    pub(super) reader: Option<u32>,
}

/// Why a list can't be judged.
pub(super) fn unjudged(knowledge: &Knowledge<'_>, key: u32) -> Option<String> {
    let index = knowledge.index;
    for access in index.of_key(key) {
        if index.records[access.txn as usize].is_aborted() {
            continue;
        }
        for (position, element) in access.appended.iter().enumerate() {
            let origin = knowledge.origins[&(key, *element)];
            if origin.several || origin.live != Some((access.txn, position as u32)) {
                return Some(format!("{element} was appended to it more than once"));
            }
        }
    }
    None
}

/// Everything about one list.
struct Sorted<'k, 'a> {
    knowledge: &'k Knowledge<'a>,
    key: u32,
    order: ListOrder<'a>,
    /// The transaction that appended each element of the longest read, and the position of the
    /// element among its appends; `None` for elements that the list held at the start.
    owners: Vec<Option<(u32, u32)>>,
    /// How many elements of each transaction the longest read shows, and how many there are.
    shown: HashMap<u32, (u32, u32)>,
}

/// Finds the order of a list's versions and adds the edges that follow from it.
pub(super) fn order<'a>(
    knowledge: &Knowledge<'a>,
    key: u32,
    graph: &mut Graph,
) -> Result<ListOrder<'a>, Anomaly> {
    let longest = present(knowledge, key)
        .filter_map(|access| Some((access.longest?, access.txn)))
        .reduce(|best, next| if next.0.len() > best.0.len() { next } else { best });
    let order = match longest {
        Some((elements, reader)) => ListOrder { elements, reader: Some(reader) },
        None => ListOrder { elements: &[], reader: None },
    };
    let shown = present(knowledge, key)
        .filter(|access| !access.appended.is_empty())
        .map(|access| (access.txn, (0, access.appended.len() as u32)))
        .collect();
    let mut list = Sorted { knowledge, key, order, owners: Vec::new(), shown };
    list.find_owners()?;
    list.compare_reads()?;
    list.find_lost_update()?;
    list.connect(graph);
    Ok(list.order)
}

fn present<'k, 'a>(
    knowledge: &'k Knowledge<'a>,
    key: u32,
) -> impl Iterator<Item = &'a Access<'a>> + use<'k, 'a> {
    let index: &'a _ = knowledge.index;
    index.of_key(key).filter(|access| knowledge.present[access.txn as usize])
}

/// The part of a list that a transaction did not append itself.
fn seen<'a>(access: &Access<'a>) -> Option<&'a [Bytes]> {
    match access.read {
        Some(Seen::List(elements)) => Some(elements),
        _ => None,
    }
}

impl<'a> Sorted<'_, 'a> {
    fn name(&self, txn: u32) -> String {
        self.knowledge.index.name(txn)
    }

    fn anomaly(&self, kind: AnomalyKind, txns: &[u32], step: String) -> Anomaly {
        self.knowledge.index.anomaly(kind, txns, step)
    }

    /// The transaction that appended each element of a read, after judging each element by itself.
    fn owners_of(
        &self,
        reader: u32,
        elements: &[Bytes],
    ) -> Result<Vec<Option<(u32, u32)>>, Anomaly> {
        let mut owners: Vec<Option<(u32, u32)>> = Vec::with_capacity(elements.len());
        let mut places: HashMap<&Bytes, usize> = HashMap::with_capacity(elements.len());
        let (key, who) = (self.knowledge.index.key(self.key), self.name(reader));
        for (i, element) in elements.iter().enumerate() {
            let origin = self.knowledge.origins.get(&(self.key, element)).copied();
            let origin = origin.unwrap_or_default();
            if let Some(first) = places.insert(element, i) {
                let step = format!(
                    "{who} read {key} with {element} at positions {first} and {i}, but it was \
                     appended once"
                );
                let mut txns = vec![reader];
                txns.extend(origin.live.map(|(txn, _)| txn));
                return Err(self.anomaly(AnomalyKind::DuplicateElement, &txns, step));
            }
            match (origin.live, origin.aborted) {
                (Some(owner), _) => owners.push(Some(owner)),
                (None, Some(aborted)) => {
                    let writer = self.name(aborted);
                    let step = format!(
                        "{who} read {key} with {element}, which {writer} appended; but {writer} \
                         aborted"
                    );
                    return Err(self.anomaly(AnomalyKind::AbortedRead, &[reader, aborted], step));
                }
                (None, None) => {
                    let at_start = owners.iter().all(Option::is_none);
                    if self.knowledge.initial == Initial::Absent || !at_start {
                        let step =
                            format!("{who} read {key} with {element}, which nobody appended");
                        return Err(self.anomaly(AnomalyKind::Phantom, &[reader], step));
                    }
                    owners.push(None);
                }
            }
        }
        Ok(owners)
    }

    fn find_owners(&mut self) -> Result<(), Anomaly> {
        let Some(reader) = self.order.reader else { return Ok(()) };
        let elements = self.order.elements;
        self.owners = self.owners_of(reader, elements)?;
        for (i, owner) in self.owners.iter().enumerate() {
            let Some((txn, position)) = *owner else { continue };
            let (shown, _) = self.shown.entry(txn).or_default();
            if *shown != position {
                let (who, writer) = (self.name(reader), self.name(txn));
                let key = self.knowledge.index.key(self.key);
                let step = format!(
                    "{writer} appended other elements to {key} before {}, but {who} read {} \
                     without all of them before it",
                    elements[i],
                    List(&elements[..=i])
                );
                let txns = [txn, reader];
                return Err(self.anomaly(AnomalyKind::IncompatibleOrder, &txns, step));
            }
            *shown += 1;
        }
        Ok(())
    }

    /// Every read must be the beginning of the longest one, and end with the last append of a
    /// transaction.
    fn compare_reads(&self) -> Result<(), Anomaly> {
        let key = self.knowledge.index.key(self.key);
        let at_start = self.owners.iter().take_while(|owner| owner.is_none()).count();
        for access in present(self.knowledge, self.key) {
            let Some(elements) = access.longest else { continue };
            if !self.order.elements.starts_with(elements) || elements.len() < at_start {
                self.owners_of(access.txn, elements)?;
                let reader = self.order.reader.expect("there is a read, so there is a longest");
                let step = format!(
                    "{} read {key} = {}, but {} read {key} = {}: neither list is the beginning \
                     of the other",
                    self.name(access.txn),
                    List(elements),
                    self.name(reader),
                    List(self.order.elements),
                );
                let txns = [access.txn, reader];
                return Err(self.anomaly(AnomalyKind::IncompatibleOrder, &txns, step));
            }
            let Some(last) = seen(access).and_then(|e| e.len().checked_sub(1)) else { continue };
            let Some((writer, position)) = self.owners[last] else { continue };
            let (who, element) = (self.name(access.txn), &elements[last]);
            if writer == access.txn {
                let step = format!(
                    "{who} read {key} with {element}, which it appended itself only afterwards"
                );
                return Err(self.anomaly(AnomalyKind::Internal, &[access.txn], step));
            }
            let (_, all) = self.shown[&writer];
            if position + 1 != all {
                let step = format!(
                    "{who} read {key} up to {element}, which {} appended and followed by more: \
                     the state between its appends is nobody's to see",
                    self.name(writer),
                );
                let txns = [access.txn, writer];
                return Err(self.anomaly(AnomalyKind::IntermediateRead, &txns, step));
            }
        }
        Ok(())
    }

    fn find_lost_update(&self) -> Result<(), Anomaly> {
        let mut replaced: HashMap<usize, u32> = HashMap::new();
        for access in present(self.knowledge, self.key) {
            let Some(elements) = seen(access).filter(|_| access.changes()) else { continue };
            let Some(first) = replaced.insert(elements.len(), access.txn) else { continue };
            let step = format!(
                "{} and {} both read {} = {} and both appended to it; whichever came second had \
                 to see the other's element",
                self.name(first),
                self.name(access.txn),
                self.knowledge.index.key(self.key),
                List(elements),
            );
            return Err(self.anomaly(AnomalyKind::LostUpdate, &[first, access.txn], step));
        }
        Ok(())
    }

    fn connect(&self, graph: &mut Graph) {
        let label = |kind| Label::new(kind, self.key);
        for pair in self.owners.windows(2) {
            if let [Some((one, _)), Some((next, _))] = *pair {
                graph.add(one, next, label(EdgeKind::WriteWrite));
            }
        }
        for access in present(self.knowledge, self.key) {
            let Some(elements) = seen(access) else { continue };
            if let Some(last) = elements.len().checked_sub(1)
                && let Some((writer, _)) = self.owners[last]
            {
                graph.add(writer, access.txn, label(EdgeKind::WriteRead));
            }
            if let Some(Some((writer, _))) = self.owners.get(elements.len()) {
                graph.add(access.txn, *writer, label(EdgeKind::ReadWrite));
            }
        }
        self.connect_unseen(graph);
    }

    /// Appends that no read shows come after the longest read: every list that holds them is
    /// longer.
    fn connect_unseen(&self, graph: &mut Graph) {
        let label = |kind| Label::new(kind, self.key);
        let length = self.order.elements.len();
        let last = self.owners.last().copied().flatten().map(|(txn, _)| txn);
        let unseen = |access: &&Access<'_>| {
            let hidden = self.shown.get(&access.txn).is_some_and(|(shown, all)| shown < all);
            hidden && last != Some(access.txn)
        };
        let reads_all = |access: &Access<'_>| seen(access).is_some_and(|e| e.len() == length);
        // At most one of these transactions made the longest read; its appends come first.
        let first = present(self.knowledge, self.key)
            .filter(unseen)
            .find(|access| reads_all(access))
            .map(|access| access.txn);
        let rest = graph.relay();
        for access in present(self.knowledge, self.key).filter(unseen) {
            if Some(access.txn) != first {
                graph.forward(rest, access.txn);
            }
        }
        if let Some(last) = last {
            graph.add(last, rest, label(EdgeKind::WriteWrite));
            if let Some(first) = first {
                graph.add(last, first, label(EdgeKind::WriteWrite));
            }
        }
        for access in present(self.knowledge, self.key).filter(|access| reads_all(access)) {
            graph.add(access.txn, rest, label(EdgeKind::ReadWrite));
            if let Some(first) = first {
                graph.add(access.txn, first, label(EdgeKind::ReadWrite));
            }
        }
    }
}
