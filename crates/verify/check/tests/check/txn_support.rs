//! Short ways to write histories of transactions down.

use quorate_check::{
    Anomaly, Bytes, Model, TxnOp, TxnOutcome, TxnRecord, TxnSummary, Verdict, check_transactions,
};
use quorate_types::{Timestamp, WriterId};

/// Reads a value; `""` stands for an absent key.
pub(crate) fn r(key: &str, value: &str) -> TxnOp {
    TxnOp::read(key, (!value.is_empty()).then(|| value.into()))
}

/// Writes a value; `""` deletes.
pub(crate) fn w(key: &str, value: &str) -> TxnOp {
    TxnOp::write(key, (!value.is_empty()).then(|| value.into()))
}

/// Appends an element.
pub(crate) fn a(key: &str, element: &str) -> TxnOp {
    TxnOp::append(key, element)
}

/// Reads a list whose elements are one letter each.
pub(crate) fn l(key: &str, elements: &str) -> TxnOp {
    TxnOp::read_list(key, elements.chars().map(|c| Bytes::from(c.to_string())).collect())
}

pub(crate) fn ts(time: u64) -> Timestamp {
    Timestamp::new(time, WriterId(0))
}

/// The same read, with the version that it saw.
pub(crate) fn at(version: u64, op: TxnOp) -> TxnOp {
    match op {
        TxnOp::Read { key, value, .. } => TxnOp::Read { key, value, version: Some(ts(version)) },
        TxnOp::ReadList { key, elements, .. } => {
            TxnOp::ReadList { key, elements, version: Some(ts(version)) }
        }
        other => other,
    }
}

fn record(id: u64, invoke: u64, outcome: TxnOutcome, ops: Vec<TxnOp>) -> TxnRecord {
    TxnRecord { process: id, id, invoke, outcome, timestamp: None, ops }
}

/// A committed transaction between two moments.
pub(crate) fn timed(id: u64, invoke: u64, at: u64, ops: Vec<TxnOp>) -> TxnRecord {
    record(id, invoke, TxnOutcome::Committed { at }, ops)
}

/// A committed transaction that is concurrent with all others made so.
pub(crate) fn txn(id: u64, ops: Vec<TxnOp>) -> TxnRecord {
    timed(id, 0, 1000, ops)
}

pub(crate) fn aborted(id: u64, ops: Vec<TxnOp>) -> TxnRecord {
    record(id, 0, TxnOutcome::Aborted { at: 1000 }, ops)
}

pub(crate) fn maybe(id: u64, ops: Vec<TxnOp>) -> TxnRecord {
    record(id, 0, TxnOutcome::Unknown, ops)
}

/// The same transaction with a timestamp.
pub(crate) fn stamped(time: u64, record: TxnRecord) -> TxnRecord {
    TxnRecord { timestamp: Some(ts(time)), ..record }
}

pub(crate) fn strict(records: &[TxnRecord]) -> Result<TxnSummary, Anomaly> {
    check_transactions(records, Model::StrictSerializable)
}

pub(crate) fn serializable(records: &[TxnRecord]) -> Result<TxnSummary, Anomaly> {
    check_transactions(records, Model::Serializable)
}

/// The name of the anomaly, or "ok", or "undecided".
pub(crate) fn verdict(result: &Result<TxnSummary, Anomaly>) -> &'static str {
    match result {
        Ok(summary) if summary.verdict() == Verdict::Ok => "ok",
        Ok(_) => "undecided",
        Err(anomaly) => anomaly.kind.name(),
    }
}

/// Asserts the verdicts under both models.
#[track_caller]
pub(crate) fn expect(records: &[TxnRecord], plain: &str, with_realtime: &str) {
    let (one, other) = (serializable(records), strict(records));
    let found = (verdict(&one), verdict(&other));
    assert_eq!(found, (plain, with_realtime), "{one:#?}\n{other:#?}");
}
