//! Histories in the format of Jepsen's Elle, as `elle-cli` reads it, so that others can judge them.
//!
//! One JSON object a line for each invocation and each completion, in order of time. Elle's
//! workloads know one sort of key each, so a history with both sorts is exported twice. A part of a
//! serializable history is serializable, so the exported part needs nothing of the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use serde_json::{Value, json};

use crate::history::{Bytes, Initial};
use crate::transactions::{AllTransactions, all_transactions};
use crate::txn::{TxnHistory, TxnOp, TxnOutcome, TxnRecord};

/// A workload of Elle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElleWorkload {
    /// Lists that are appended to and read whole.
    ListAppend,
    /// Registers that are never deleted. Each value is written once.
    RwRegister,
}

impl ElleWorkload {
    /// The workload's name for `elle-cli --model`.
    pub fn name(self) -> &'static str {
        match self {
            Self::ListAppend => "list-append",
            Self::RwRegister => "rw-register",
        }
    }

    fn has(self, op: &TxnOp) -> bool {
        let list = matches!(op, TxnOp::Append { .. } | TxnOp::ReadList { .. });
        list == (self == Self::ListAppend)
    }
}

/// Counts of what was exported, and the keys left out.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ElleSummary {
    /// Transactions, those of single operations included.
    pub transactions: usize,
    /// Keys of the workload's sort that Elle can't judge, and why.
    pub left_out: Vec<(Bytes, String)>,
}

/// Writes a history for `elle-cli --model list-append` or `rw-register`.
///
/// # Errors
/// If `output` can't be written, or the history begins with values that nobody wrote: Elle takes
/// those for reads of nothing.
pub fn write_elle(
    history: &TxnHistory,
    workload: ElleWorkload,
    mut output: impl Write,
) -> io::Result<ElleSummary> {
    if history.header.initial == Initial::Any {
        let text = "Elle needs a history that begins with no keys: \"initial\" must be \"absent\"";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let AllTransactions { records, unjudged: mut left_out, .. } =
        all_transactions(history, |_| true);
    left_out.extend(unfit(&records, workload));
    let excluded: BTreeSet<&Bytes> = left_out.iter().map(|(key, _)| key).collect();
    let wanted = |op: &&TxnOp| workload.has(op) && !excluded.contains(op.key());
    let mut exported: Vec<(&TxnRecord, Vec<&TxnOp>)> = Vec::new();
    for record in &records {
        let ops: Vec<&TxnOp> = record.ops.iter().filter(wanted).collect();
        if !ops.is_empty() {
            exported.push((record, ops));
        }
    }
    write_events(&exported, &mut output)?;
    output.flush()?;
    let transactions = exported.len();
    Ok(ElleSummary { transactions, left_out })
}

/// The keys of the workload's sort that it does not allow.
fn unfit(records: &[TxnRecord], workload: ElleWorkload) -> Vec<(Bytes, String)> {
    let mut unfit: BTreeMap<&Bytes, &str> = BTreeMap::new();
    let mut written: BTreeSet<(&Bytes, &Bytes)> = BTreeSet::new();
    let ops = records.iter().flat_map(|record| record.ops.iter().map(move |op| (record, op)));
    let mut sorts: BTreeMap<&Bytes, bool> = BTreeMap::new();
    for (record, op) in ops {
        let own = workload.has(op);
        if sorts.insert(op.key(), own).is_some_and(|before| before != own) {
            unfit.insert(op.key(), "it is a list and a register");
        }
        match op {
            TxnOp::Write { key, value: None } if own => {
                unfit.insert(key, "it is deleted");
            }
            TxnOp::Write { key, value: Some(value) } | TxnOp::Append { key, element: value }
                if own && !record.is_aborted() && !written.insert((key, value)) =>
            {
                unfit.insert(key, "a value is written twice");
            }
            _ => {}
        }
    }
    unfit.into_iter().map(|(key, why)| (key.clone(), why.to_owned())).collect()
}

/// An event: its time, whether it is a completion, and the index of its transaction.
type Event = (u64, bool, usize);

fn write_events(exported: &[(&TxnRecord, Vec<&TxnOp>)], output: &mut impl Write) -> io::Result<()> {
    let mut events: Vec<Event> = Vec::new();
    for (number, (record, _)) in exported.iter().enumerate() {
        events.push((record.invoke, false, number));
        events.push(match record.outcome {
            TxnOutcome::Committed { at } | TxnOutcome::Aborted { at } => (at, true, number),
            TxnOutcome::Unknown => (u64::MAX, true, number),
        });
    }
    // What begins in the moment in which something ends is concurrent with it.
    events.sort_unstable();
    let end = events.iter().map(|event| event.0).filter(|time| *time != u64::MAX).max();
    // Elle's process runs one transaction at a time, and no further one after a transaction of
    // unknown outcome.
    let mut processes: Vec<u64> = vec![0; exported.len()];
    let (mut free, mut next) = (BTreeSet::new(), 0);
    for (index, (time, completion, number)) in events.into_iter().enumerate() {
        let (record, ops) = &exported[number];
        if !completion {
            processes[number] = free.pop_first().unwrap_or_else(|| {
                next += 1;
                next - 1
            });
        }
        let known = completion && !record.is_aborted();
        let kind = match (completion, record.outcome) {
            (false, _) => "invoke",
            (true, TxnOutcome::Committed { .. }) => "ok",
            (true, TxnOutcome::Aborted { .. }) => "fail",
            (true, TxnOutcome::Unknown) => "info",
        };
        if completion && record.outcome != TxnOutcome::Unknown {
            free.insert(processes[number]);
        }
        let value: Vec<Value> = ops.iter().map(|op| step(op, known)).collect();
        let event = json!({
            "index": index, "time": time.min(end.unwrap_or(0)), "type": kind,
            "process": processes[number], "f": "txn", "value": value,
        });
        writeln!(output, "{event}")?;
    }
    Ok(())
}

/// One step in Elle's form, with the value read if that value is `known`.
fn step(op: &TxnOp, known: bool) -> Value {
    match op {
        TxnOp::Append { key, element } => json!(["append", text(key), text(element)]),
        TxnOp::Write { key, value } => json!(["w", text(key), value.as_ref().map(text)]),
        TxnOp::ReadList { key, elements, .. } => {
            let elements: Option<Vec<String>> = known.then(|| elements.iter().map(text).collect());
            json!(["r", text(key), elements])
        }
        TxnOp::Read { key, value, .. } => {
            json!(["r", text(key), value.as_ref().filter(|_| known).map(text)])
        }
    }
}

/// Bytes as a string: themselves, or with escapes if they are no text.
fn text(bytes: &Bytes) -> String {
    std::str::from_utf8(&bytes.0).map_or_else(|_| bytes.0.escape_ascii().to_string(), str::to_owned)
}
