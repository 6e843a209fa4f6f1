//! The verdict on a history.

use std::collections::BTreeSet;
use std::path::Path;

use quorate_check::{
    Action, Bytes, History, HistoryWriter, Outcome, TxnHistory, TxnOp, Verdict, check_bank,
    check_history, check_txn_history,
};

use crate::engines::Engine;

/// The verdict on the history of one round.
#[derive(Clone, Debug, Default)]
pub(crate) struct Judgement {
    pub(crate) done: u64,
    pub(crate) refused: u64,
    pub(crate) unknown: u64,
    /// Calls of sessions whose outcome was unknown after the first try.
    pub(crate) asked_again: u64,
    pub(crate) transactions: u64,
    /// Keys that exceeded the bounds of the search, and reads that may have seen any of several
    /// writes.
    pub(crate) undecided: u64,
    pub(crate) anomalies: Vec<String>,
}

/// Judges a round: single keys one by one, transactions together, the bank by its sum.
pub(crate) fn judge(history: &TxnHistory, accounts: &[Bytes], engine: &Engine) -> Judgement {
    let mut judgement = count(history);
    let operations = history.operations.clone();
    let report = check_history(&History { header: history.header.clone(), operations });
    judgement.undecided = report.undecided.len() as u64;
    judgement
        .anomalies
        .extend(report.findings.iter().map(|f| format!("key {}: {}", f.key, f.text)));
    let Some(model) = engine.transactions else { return judgement };
    // Reads and writes of single keys are transactions of one operation.
    let plain = |action: &Action| matches!(action, Action::Get | Action::Set(_));
    let mixed: BTreeSet<&Bytes> =
        history.operations.iter().filter(|o| !plain(&o.action)).map(|o| &o.key).collect();
    let in_transactions: BTreeSet<&Bytes> =
        history.transactions.iter().flat_map(|record| &record.ops).map(TxnOp::key).collect();
    let mut together = history.clone();
    together.operations.retain(|o| in_transactions.contains(&o.key) && !mixed.contains(&o.key));
    let report = check_txn_history(&together, model);
    match report.verdict() {
        Verdict::Ok => {}
        Verdict::Undecided => {
            let summary = report.transactions.as_ref().ok();
            let open = summary.map_or(0, |s| s.unjudged.len() + s.ambiguous_reads);
            judgement.undecided += (open + report.keys.undecided.len()) as u64;
        }
        Verdict::Violation => judgement.anomalies.push(report.to_string()),
    }
    if let Err(anomaly) = check_bank(&history.transactions, accounts, 0) {
        judgement.anomalies.push(anomaly.to_string());
    }
    judgement
}

fn count(history: &TxnHistory) -> Judgement {
    let mut judgement = Judgement::default();
    for operation in &history.operations {
        match operation.outcome {
            Outcome::Done { .. } => judgement.done += 1,
            Outcome::Refused { .. } => judgement.refused += 1,
            Outcome::Unknown => judgement.unknown += 1,
        }
    }
    for record in &history.transactions {
        if record.committed_at().is_some() {
            judgement.done += 1;
            judgement.transactions += 1;
        } else if record.is_aborted() {
            judgement.refused += 1;
        } else {
            judgement.unknown += 1;
        }
    }
    judgement
}

/// Writes a history for `quorate check`.
pub(crate) fn save(history: &TxnHistory, file: &Path) -> anyhow::Result<()> {
    let output = std::io::BufWriter::new(std::fs::File::create(file)?);
    let mut writer = HistoryWriter::new(output, &history.header)?;
    history.operations.iter().try_for_each(|operation| writer.write(operation))?;
    history.transactions.iter().try_for_each(|record| writer.write_transaction(record))?;
    writer.finish()?;
    Ok(())
}
