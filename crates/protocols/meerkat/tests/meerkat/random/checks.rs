//! What must hold when a random run has ended.

use std::collections::{BTreeMap, BTreeSet};

use quorate_check::{
    Bytes, TxnOp, TxnOptions, TxnOutcome, TxnRecord, check_transactions, check_values,
};
use quorate_machine::Outcome;
use quorate_meerkat::Isolation;
use quorate_types::{Incarnation, Timestamp};

use super::{Replayed, Run};
use crate::replay::{Attempt, Known, State, names};
use crate::txn::{Step, Txn};

impl Run {
    /// After healing every transaction of a node that lived has an answer, nothing is left of any,
    /// and all replicas agree.
    pub(super) fn check_end(&mut self) {
        for (tag, asked) in &self.asked {
            let host = &self.cluster.hosts[&asked.node];
            if host.up && host.incarnation == asked.incarnation {
                let (txn, node) = (&asked.txn, asked.node);
                assert!(self.answered.contains_key(tag), "op {tag}, {txn}, of node {node} is open");
            }
        }
        self.cluster.assert_quiet();
        for key in 0..self.plan.keys {
            let key = format!("k{key}");
            let mut seen = Vec::new();
            for node in self.holders(&key) {
                let value = self.cluster.stored(node, &key);
                // The version of a deleted key may have been forgotten.
                let version = value.is_some().then(|| self.cluster.meta(node, &key).wts);
                seen.push((value, version));
            }
            seen.dedup();
            assert_eq!(seen.len(), 1, "{key} differs: {seen:?}");
        }
    }

    /// The transactions that were answered at each timestamp, in that order.
    fn owners(&self) -> BTreeMap<Timestamp, Vec<u64>> {
        let mut owners: BTreeMap<Timestamp, Vec<u64>> = BTreeMap::new();
        for (&tag, &stamp) in &self.cluster.stamps {
            owners.entry(stamp).or_default().push(tag);
        }
        owners.values_mut().for_each(|tags| tags.sort_by_key(|tag| self.answered[tag].1));
        owners
    }

    /// Replays what committed in the order of timestamps: some order of the transactions that shared
    /// an attempt must explain what each of them has seen, and what the attempt has left.
    pub(super) fn check_replay(&mut self) {
        let ledger = &self.cluster.subject.ledger;
        let owners = self.owners();
        let committed = ledger.ends.iter().filter(|(_, commit)| **commit).map(|(id, _)| *id);
        let order: BTreeSet<Timestamp> = committed.chain(owners.keys().copied()).collect();
        let is_unknown =
            |tag: &u64| matches!(self.answered.get(tag), None | Some((Outcome::Unknown, _)));
        let mut unknown: BTreeMap<u64, &Txn> = { self.asked.iter() }
            .map(|(tag, asked)| (*tag, &asked.txn))
            .filter(|(tag, _)| is_unknown(tag))
            .collect();
        // What is named by what an attempt has left has taken part in none before.
        let mut named: BTreeMap<u64, Timestamp> = BTreeMap::new();
        for stamp in &order {
            for entry in ledger.sets_of(*stamp) {
                let Some(Some(value)) = &entry.write else { continue };
                let is_named = |(_, txn): &(&u64, &&Txn)| names(txn, &entry.key, value);
                for (tag, _) in unknown.iter().filter(is_named) {
                    named.entry(*tag).or_insert(*stamp);
                }
            }
        }
        let mut state = State::new();
        for stamp in order {
            let mut writes: BTreeMap<String, Option<String>> = BTreeMap::new();
            let mut ops = Vec::new();
            for entry in ledger.sets_of(stamp) {
                let bytes = Bytes::from(entry.key.as_bytes());
                let (version, held) = state.get(&entry.key).cloned().unwrap_or_default();
                if let Some(base) = entry.base {
                    let key = &entry.key;
                    // A deletion may be forgotten before a reader of nothing has come to its end.
                    let covers = version <= base || entry.absent && held.is_none();
                    assert!(covers && base < stamp, "{stamp:?} read {key} at {base:?}");
                    assert!(held.is_none() || version == base, "{stamp:?}: {key} at {base:?}");
                    let value = held.as_ref().map(|value| Bytes::from(value.as_bytes()));
                    let version = value.is_some().then_some(version);
                    ops.push(TxnOp::Read { key: bytes.clone(), value, version });
                }
                if let Some(write) = &entry.write {
                    let value = write.as_ref().map(|value| match value.strip_prefix('+') {
                        Some(tail) => held.unwrap_or_default() + tail,
                        None => value.clone(),
                    });
                    writes.insert(entry.key.clone(), value.clone());
                    let value = value.map(|value| Bytes::from(value.as_bytes()));
                    ops.push(TxnOp::Write { key: bytes, value });
                }
            }
            let owners = owners.get(&stamp).into_iter().flatten();
            let known = owners.map(|tag| match &self.answered[tag].0 {
                Outcome::Done(reply) => Known { tag: *tag, txn: &self.asked[tag].txn, reply },
                other => panic!("op {tag} took effect and was answered {other:?}"),
            });
            let may_share = |tag: &u64| named.get(tag).is_none_or(|first| *first <= stamp);
            let unknown_here = unknown.iter().filter(|(tag, _)| may_share(tag));
            let attempt = Attempt {
                before: &state,
                known: known.collect(),
                unknown: unknown_here.map(|(tag, txn)| (*tag, *txn)).collect(),
                writes,
            };
            let Some(order) = attempt.explain() else {
                let known = attempt.known.iter().map(|known| (known.tag, known.txn, known.reply));
                panic!(
                    "nothing explains {stamp:?}: {:?} before, {:?} after, by {:?} and some of {:?}",
                    attempt.before,
                    attempt.writes,
                    known.collect::<Vec<_>>(),
                    attempt.unknown
                )
            };
            // Each takes effect once.
            unknown.retain(|tag, _| !order.contains(tag));
            let writes = attempt.writes.into_iter();
            state.extend(writes.map(|(key, value)| (key, (stamp, value))));
            self.replayed.insert(stamp, Replayed { order, ops });
        }
        let keys: Vec<u64> = (0..self.plan.keys).collect();
        for key in keys {
            let key = format!("k{key}");
            let held = state.get(&key).and_then(|(_, value)| value.clone());
            for node in self.holders(&key) {
                assert_eq!(self.cluster.stored(node, &key), held, "{key} at {node} at the end");
            }
        }
    }

    /// Each transaction that its client was told of has taken effect.
    pub(super) fn check_effects(&self) {
        for (tag, asked) in &self.asked {
            let is_done = matches!(self.answered.get(tag), Some((Outcome::Done(_), _)));
            if is_done && !asked.txn.may_abandon() {
                let at = self.cluster.stamps.get(tag).expect("every answer has its timestamp");
                assert!(
                    self.replayed[at].order.contains(tag),
                    "op {tag} was answered without effect"
                );
            }
        }
    }

    /// The order of timestamps is that of real time: whatever was submitted after an update's
    /// answer has a larger one.
    pub(super) fn check_real_time(&self) {
        let mut answers: Vec<(u64, u64, Timestamp)> = Vec::new();
        for (tag, stamp) in &self.cluster.stamps {
            if self.cluster.subject.ledger.sets_of(*stamp).next().is_some()
                && let Some((_, at)) = self.answered.get(tag)
            {
                answers.push((*at, *tag, *stamp));
            }
        }
        for (tag, stamp) in &self.cluster.stamps {
            let invoke = self.asked[tag].invoke;
            for (at, earlier, earlier_stamp) in &answers {
                assert!(
                    *at > invoke || earlier_stamp < stamp,
                    "op {tag} at {stamp:?} began after op {earlier} at {earlier_stamp:?} had ended"
                );
            }
        }
    }

    /// Transactions of one origin that have a key in common take effect in order.
    pub(super) fn check_origins(&self) {
        let mut latest: BTreeMap<(u64, Incarnation, &str), (u64, Timestamp)> = BTreeMap::new();
        for (tag, stamp) in &self.cluster.stamps {
            let asked = &self.asked[tag];
            // What gave up has touched nothing behind that.
            let has_no_reply =
                matches!(&self.answered[tag].0, Outcome::Done(reply) if reply.is_empty());
            let gives_up = |step: &&Step| has_no_reply && matches!(step, Step::Unless(_));
            let end = asked.txn.0.iter().position(|step| gives_up(&step));
            let steps = &asked.txn.0[..end.map_or(asked.txn.0.len(), |at| at + 1)];
            for key in steps.iter().map(Step::key) {
                let of_key = (asked.origin, asked.incarnation, key);
                let before = latest.insert(of_key, (*tag, *stamp));
                if let Some((earlier, before)) = before.filter(|(earlier, _)| earlier != tag) {
                    let place = |tag| (self.cluster.stamps[&tag], self.answered[&tag].1);
                    assert!(
                        place(earlier) < place(*tag),
                        "op {tag} overtook op {earlier} at {key}"
                    );
                    assert!(before <= *stamp);
                }
            }
        }
    }

    /// One record for each attempt that has committed: of those that shared it, none was answered
    /// before another was sent.
    fn records(&self) -> Vec<TxnRecord> {
        let committed = self.replayed.iter().map(|(stamp, Replayed { order, ops })| {
            let answered = order.iter().filter_map(|tag| match self.answered.get(tag)? {
                (Outcome::Done(_), at) => Some(*at),
                _ => None,
            });
            let asked = order.iter().map(|tag| &self.asked[tag]);
            TxnRecord {
                process: asked.clone().next().map_or(0, |asked| u64::from(asked.node)),
                id: order.first().copied().unwrap_or(0),
                invoke: asked.map(|asked| asked.invoke).max().unwrap_or(0),
                // If none was told, nothing began after that.
                outcome: TxnOutcome::Committed { at: answered.min().unwrap_or(u64::MAX) },
                timestamp: Some(*stamp),
                ops: ops.clone(),
            }
        });
        committed.collect()
    }

    pub(super) fn check_history(&self) {
        let model = match self.isolation {
            Isolation::Strict => quorate_check::Model::StrictSerializable,
            Isolation::Serializable => quorate_check::Model::Serializable,
        };
        let records = self.records();
        let options = TxnOptions { model, initial: quorate_check::Initial::Absent };
        if let Err(anomaly) = check_transactions(&records, options) {
            panic!("{anomaly}");
        }
        if let Err(anomaly) = check_values(&records, options) {
            panic!("{anomaly}");
        }
    }
}
