//! Cycles as sentences.

use quorate_types::Timestamp;

use crate::history::{Bytes, Seconds};
use crate::txn::Content;

use super::access::{Access, Index, Seen};
use super::anomaly::{Anomaly, AnomalyKind};
use super::graph::{EdgeKind, Step};
use super::lists::ListOrder;
use super::observe::Order;
use super::registers::RegisterOrder;

/// The strongest name of a cycle.
fn name(cycle: &[Step]) -> AnomalyKind {
    let count = |kind| cycle.iter().filter(|step| step.label.kind == kind).count();
    let realtime =
        cycle.iter().any(|step| step.label.timed || step.label.kind == EdgeKind::RealTime);
    match (count(EdgeKind::ReadWrite), count(EdgeKind::WriteRead)) {
        (0, 0) => AnomalyKind::G0 { realtime },
        (0, _) => AnomalyKind::G1c { realtime },
        (1, _) => AnomalyKind::GSingle { realtime },
        _ => AnomalyKind::G2Item { realtime },
    }
}

/// Says why the transactions of a cycle come before each other.
pub(super) fn cycle(index: &Index<'_>, orders: &[Order<'_>], cycle: &[Step]) -> Anomaly {
    let transactions: Vec<usize> = cycle.iter().map(|step| step.from as usize).collect();
    let mut steps: Vec<String> = cycle
        .iter()
        .map(|step| {
            let (from, to) = (index.name(step.from), index.name(step.to));
            let reason = reason(index, orders, *step);
            format!("{reason}: {from} must come before {to}.")
        })
        .collect();
    let first = index.name(cycle[0].from);
    steps.push(format!("So {first} would have to come before itself: no order explains this."));
    Anomaly::new(name(cycle), index.records, transactions, steps)
}

fn reason(index: &Index<'_>, orders: &[Order<'_>], step: Step) -> String {
    let (from, to) = (index.name(step.from), index.name(step.to));
    if step.label.kind == EdgeKind::RealTime {
        let ended = index.records[step.from as usize].committed_at();
        let ended = Seconds(ended.expect("only what has ended is before something in real time"));
        let began = Seconds(index.records[step.to as usize].invoke);
        return format!("{from} had ended, at {ended}, before {to} began, at {began}");
    }
    let edge = Edge {
        index,
        from: index.access(step.from, step.label.key).expect("the edge is about this key"),
        to: index.access(step.to, step.label.key).expect("the edge is about this key"),
        step,
    };
    match &orders[step.label.key as usize] {
        Order::List(order) => edge.of_list(order),
        Order::Register(order) => edge.of_register(order),
        Order::Versions(stamps) => edge.of_versions(stamps),
        Order::None => unreachable!("a key that is not judged has no edges"),
    }
}

struct Edge<'i, 'a> {
    index: &'i Index<'a>,
    from: &'i Access<'a>,
    to: &'i Access<'a>,
    step: Step,
}

impl Edge<'_, '_> {
    fn names(&self) -> (String, String, &Bytes) {
        let name = |txn| self.index.name(txn);
        (name(self.step.from), name(self.step.to), self.index.key(self.step.label.key))
    }

    /// What a transaction did to the key, to follow "which T7 ...".
    fn change(access: &Access<'_>) -> String {
        match (access.written.last(), access.appended.first()) {
            (Some(Some(value)), _) => format!("overwrote with {value}"),
            (Some(None), _) => "deleted".to_owned(),
            (None, Some(element)) => format!("lengthened by {element}"),
            (None, None) => "changed".to_owned(),
        }
    }

    /// What a transaction did to the key, to follow "T7 ...".
    fn answered(access: &Access<'_>, key: &Bytes) -> String {
        match (access.written.last(), access.appended.last()) {
            (Some(Some(value)), _) => format!("wrote {key} = {value}"),
            (Some(None), _) => format!("deleted {key}"),
            (None, Some(element)) => format!("appended {element} to {key}"),
            (None, None) => format!("changed {key}"),
        }
    }

    fn seen(access: &Access<'_>, key: &Bytes) -> String {
        match access.read {
            Some(Seen::Value(None)) => format!("found {key} absent"),
            Some(seen) => format!("read {key} = {seen}"),
            None => format!("read {key}"),
        }
    }

    fn of_list(&self, order: &ListOrder<'_>) -> String {
        let (from, to, key) = self.names();
        match self.step.label.kind {
            EdgeKind::WriteRead => {
                let (answered, seen) = (Self::answered(self.from, key), Self::seen(self.to, key));
                format!("{from} {answered}, and {to} {seen}")
            }
            EdgeKind::ReadWrite => {
                let element = self.to.appended[0];
                let seen = Self::seen(self.from, key);
                format!("{from} {seen}, which lacks {element}, appended by {to}")
            }
            _ => self.list_order(order),
        }
    }

    /// Why one append is older than another.
    fn list_order(&self, order: &ListOrder<'_>) -> String {
        let (from, to, key) = self.names();
        let reader = order.reader.map_or_else(String::new, |reader| self.index.name(reader));
        let neighbours = order.elements.windows(2).find(|pair| {
            self.from.appended.contains(&&pair[0]) && self.to.appended.contains(&&pair[1])
        });
        if let Some([one, next]) = neighbours {
            return format!(
                "{from} appended {one} to {key} and {to} appended {next}, and {reader} read them \
                 in this order"
            );
        }
        let hidden = self.to.appended.iter().find(|e| !order.elements.contains(e));
        let hidden = hidden.expect("an append after the longest read is not in it");
        format!(
            "{to} appended {hidden} to {key}, which no read shows, so it follows the longest \
             read, {reader}'s, which ends with {from}'s element"
        )
    }

    fn of_register(&self, order: &RegisterOrder<'_>) -> String {
        let (from, to, key) = self.names();
        let evidence = if self.step.label.timed { self.timed_evidence(order) } else { None };
        let evidence = evidence.map_or_else(String::new, |text| format!(" ({text})"));
        match self.step.label.kind {
            EdgeKind::WriteRead => {
                let answered = Self::answered(self.from, key);
                let how =
                    if self.step.label.timed { ": by real time it can't be another" } else { "" };
                format!("{from} {answered}, and {to} read that{how}")
            }
            EdgeKind::ReadWrite => {
                let (seen, change) = (Self::seen(self.from, key), Self::change(self.to));
                format!("{from} {seen}, which {to} {change}{evidence}")
            }
            _ => {
                let (answered, change) = (Self::answered(self.from, key), Self::change(self.to));
                let own = order.written[&self.step.to];
                let replaced = order.versions[own].replaced;
                if replaced.is_some() && replaced == order.written.get(&self.step.from).copied() {
                    return format!("{from} {answered}, which {to} read and {change}");
                }
                format!("{from} {answered}, which {to} {change}{evidence}")
            }
        }
    }

    /// How real time shows that the version on the edge's left is older.
    fn timed_evidence(&self, order: &RegisterOrder<'_>) -> Option<String> {
        let key = self.index.key(self.step.label.key);
        let newer = *order.written.get(&self.step.to)?;
        let (began, beginner) = order.versions[newer].began?;
        let older = match self.step.label.kind {
            EdgeKind::ReadWrite => order.read[&self.step.from],
            _ => *order.written.get(&self.step.from)?,
        };
        let (ended, ender) = order.versions[older].ended.filter(|(ended, _)| *ended < began)?;
        let say = |txn: u32, version: usize| {
            let did = if order.written.get(&txn) == Some(&version) { "wrote" } else { "read" };
            let value = Content(order.versions[version].value);
            format!("{}, which {did} {key} = {value},", self.index.name(txn))
        };
        let (ended, began) = (Seconds(ended), Seconds(began));
        let (older, newer) = (say(ender, older), say(beginner, newer));
        Some(format!("{older} had ended, at {ended}, before {newer} began, at {began}"))
    }

    fn of_versions(&self, stamps: &[Option<Timestamp>]) -> String {
        let (from, to, key) = self.names();
        let stamp = |txn: u32| {
            stamps[txn as usize].map_or_else(String::new, |t| format!(" at version {t:?}"))
        };
        let version = |access: &Access<'_>| {
            access.version.map_or_else(String::new, |t| format!(" at version {t:?}"))
        };
        let (at_from, at_to) = (stamp(self.step.from), stamp(self.step.to));
        match self.step.label.kind {
            EdgeKind::WriteRead => {
                let (answered, seen) = (Self::answered(self.from, key), Self::seen(self.to, key));
                format!("{from} {answered}{at_from}, and {to} {seen}{}", version(self.to))
            }
            EdgeKind::ReadWrite => {
                let (seen, change) = (Self::seen(self.from, key), Self::change(self.to));
                format!("{from} {seen}{}, which {to} {change}{at_to}", version(self.from))
            }
            _ => {
                let (answered, change) = (Self::answered(self.from, key), Self::change(self.to));
                format!("{from} {answered}{at_from}, which {to} {change}{at_to}")
            }
        }
    }
}
