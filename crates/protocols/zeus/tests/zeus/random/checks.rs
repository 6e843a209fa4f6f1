//! What must hold when a random run has ended.

use std::collections::{BTreeMap, BTreeSet};

use quorate_check::{
    Bytes, Initial, Model, TxnOp, TxnOptions, TxnOutcome, TxnRecord, check_transactions,
    check_values,
};
use quorate_machine::Outcome;
use quorate_types::{Duration, Incarnation, Timestamp};

use super::Run;
use crate::txn::{Step, Txn};

impl Run {
    /// After healing every transaction of a node that lived has an answer.
    pub(super) fn check_end(&mut self) {
        for (tag, asked) in &self.asked {
            let host = &self.cluster.hosts[&asked.node];
            if host.up && host.incarnation == asked.incarnation {
                let (txn, node) = (&asked.txn, asked.node);
                assert!(self.answered.contains_key(tag), "op {tag}, {txn}, of node {node} is open");
            }
        }
        assert!(self.cluster.view.is_placed(), "data has not arrived in {:?}", self.cluster.view);
        self.cluster.assert_quiet(self.keys());
    }

    /// After everything is deleted nothing is kept.
    pub(super) fn check_empty(&mut self) {
        let steps = self.keys().into_iter().map(Step::Del).collect();
        let node = self.cluster.view.active().first().expect("somebody serves").0;
        let tag = self.cluster.submit_as(node, u64::from(node), Txn(steps));
        self.cluster.run_for(Duration::from_millis(20 * self.plan.collect_ms + 1_000));
        self.cluster.read_by(tag);
        for node in self.cluster.view.live() {
            for key in self.keys() {
                let left = self.cluster.record(node.0, &key);
                assert_eq!(left, None, "{node} keeps {key}");
            }
        }
    }

    /// Transactions of one origin take effect in order.
    pub(super) fn check_origins(&self) {
        let mut latest: BTreeMap<(u64, Incarnation, &str), (u64, Timestamp)> = BTreeMap::new();
        for (tag, stamp) in &self.cluster.stamps {
            let asked = &self.asked[tag];
            for key in asked.txn.0.iter().map(Step::key) {
                let of_key = (asked.origin, asked.incarnation, key);
                let before = latest.insert(of_key, (*tag, *stamp));
                if let Some((earlier, before)) = before.filter(|(earlier, _)| earlier != tag) {
                    assert!(before < *stamp, "op {tag} overtook op {earlier}");
                }
            }
        }
    }

    /// The version of what a transaction wrote, if it was told to anybody. Of several attempts at a call
    /// that was seen which took effect.
    fn versions(&self, seen: &BTreeSet<Timestamp>) -> BTreeMap<u64, Timestamp> {
        let mut versions = BTreeMap::new();
        for (version, written) in &self.cluster.subject.written {
            let values = written.keys.iter().filter_map(|(_, value)| value.as_ref());
            // Transaction n of the run has tag n + 1.
            let names = values.filter_map(|value| value.rsplit(',').next()?.parse::<u64>().ok());
            for tag in names.map(|name| name + 1) {
                let known = versions.insert(tag, *version).filter(|known| known != version);
                if let Some(known) = known.filter(|known| seen.contains(known)) {
                    assert!(
                        !seen.contains(version),
                        "op {tag} took effect at {known:?} and {version:?}"
                    );
                    versions.insert(tag, known);
                }
            }
        }
        versions
    }

    fn records(&self) -> Vec<TxnRecord> {
        let replies = self.answered.values().filter_map(|(outcome, _)| match outcome {
            Outcome::Done(reply) => Some(reply.iter().map(|seen| seen.version)),
            _ => None,
        });
        let seen: BTreeSet<Timestamp> = replies.flatten().collect();
        let versions = self.versions(&seen);
        let mut records = Vec::new();
        for (tag, asked) in &self.asked {
            if asked.call.is_some_and(|(_, first)| first != *tag) {
                continue;
            }
            let (outcome, mut reply) = match self.end_of(*tag) {
                // Its client was never told, so nothing began after that.
                None | Some((Outcome::Unknown, _))
                    if versions.get(tag).is_some_and(|version| seen.contains(version)) =>
                {
                    (TxnOutcome::Committed { at: u64::MAX }, None)
                }
                None | Some((Outcome::Unknown, _)) => (TxnOutcome::Unknown, None),
                Some((Outcome::Refused(_), at)) => (TxnOutcome::Aborted { at: *at }, None),
                Some((Outcome::Done(reply), at)) => {
                    (TxnOutcome::Committed { at: *at }, Some(reply.iter()))
                }
            };
            let is_done = reply.is_some();
            let mut ops = Vec::new();
            for step in &asked.txn.0 {
                let bytes = Bytes::from(step.key().as_bytes());
                let mut held = None;
                if matches!(
                    step,
                    Step::Read(_) | Step::Watch(_) | Step::Append(..) | Step::Push(..)
                ) && let Some(reply) = &mut reply
                {
                    let seen = reply.next().expect("one answer per read");
                    held.clone_from(&seen.value);
                    let value = seen.value.as_ref().map(|value| Bytes::from(value.as_bytes()));
                    let version = value.is_some().then_some(seen.version);
                    ops.push(TxnOp::Read { key: bytes.clone(), value, version });
                }
                let written = match step {
                    Step::Append(_, tail) | Step::Push(_, tail) if is_done => {
                        Some(Some(held.unwrap_or_default() + tail))
                    }
                    // What an appended value was is known from whom it was sent to.
                    Step::Append(key, _) | Step::Push(key, _) => {
                        let version = versions.get(tag);
                        let written = version.map(|version| &self.cluster.subject.written[version]);
                        let keys = written.into_iter().flat_map(|written| &written.keys);
                        keys.filter(|(name, _)| name == key).map(|(_, value)| value.clone()).next()
                    }
                    Step::Write(_, value) | Step::Put(_, value) => Some(Some(value.clone())),
                    Step::Del(_) => Some(None),
                    _ => None,
                };
                if let Some(value) = written {
                    let value = value.map(|value| Bytes::from(value.as_bytes()));
                    ops.push(TxnOp::Write { key: bytes, value });
                }
            }
            let timestamp = self.stamp_of(*tag);
            records.push(TxnRecord {
                process: u64::from(asked.node),
                id: *tag,
                invoke: asked.invoke,
                outcome,
                timestamp: timestamp.or_else(|| versions.get(tag).copied().filter(|_| !is_done)),
                ops,
            });
        }
        self.by_eras(records)
    }

    pub(super) fn check_history(&self) {
        let records = self.records();
        let options = TxnOptions { model: Model::StrictSerializable, initial: Initial::Absent };
        if let Err(anomaly) = check_transactions(&records, options) {
            panic!("{anomaly}");
        }
        if let Err(anomaly) = check_values(&records, options) {
            panic!("{anomaly}");
        }
    }
}
