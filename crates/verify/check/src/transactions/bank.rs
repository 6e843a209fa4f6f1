//! The bank: transfers keep the sum of all accounts, so every transaction that reads all accounts
//! must find that sum.

use std::collections::HashMap;

use crate::history::Bytes;
use crate::txn::{TxnOp, TxnRecord};

use super::anomaly::{Anomaly, AnomalyKind};

/// Counts of a bank without anomalies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct BankSummary {
    /// Transactions that read every account and found the sum.
    pub audits: usize,
    /// Transactions that changed accounts and kept the sum of what they read.
    pub transfers: usize,
}

/// The balance that an account's value stands for: an integer, up to the first colon if there is
/// one. The text after the colon can make values unique, as in `100:17`.
pub fn balance(value: &Bytes) -> Option<i64> {
    let digits = value.0.split(|byte| *byte == b':').next()?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Checks that every committed transaction that read all `accounts` found `total`, and that every
/// committed one that read all that it changed kept the sum. An absent account holds nothing. The
/// check needs no unique values, and ignores real time: it complements [`super::check_values`] and
/// does not replace it.
///
/// # Errors
/// [`AnomalyKind::BankSum`] for the first transaction that saw or made another sum, or saw a value
/// that is no balance.
pub fn check_bank(
    records: &[TxnRecord],
    accounts: &[Bytes],
    total: i64,
) -> Result<BankSummary, Anomaly> {
    let numbers: HashMap<&Bytes, usize> = accounts.iter().zip(0..).collect();
    let mut summary = BankSummary::default();
    for (txn, record) in records.iter().enumerate() {
        if record.committed_at().is_none() {
            continue;
        }
        let fail = |step: String| {
            let step = format!("T{} {step}", record.id);
            Anomaly::new(AnomalyKind::BankSum, records, vec![txn], vec![step])
        };
        let (before, after) = balances(record, &numbers).map_err(fail)?;
        if before.len() == accounts.len() {
            let sum: i128 = before.values().sum();
            if sum != i128::from(total) {
                return Err(fail(format!(
                    "read all {} accounts and found {sum}, but they hold {total}",
                    accounts.len()
                )));
            }
            summary.audits += 1;
        }
        if after.is_empty() || !after.keys().all(|account| before.contains_key(account)) {
            continue;
        }
        let gain: i128 = after.iter().map(|(account, sum)| sum - before[account]).sum();
        if gain != 0 {
            return Err(fail(format!("changed the sum of the accounts by {gain}")));
        }
        summary.transfers += 1;
    }
    Ok(summary)
}

/// What the accounts held together when a transaction first read all of them, if one did. For a bank of
/// which nobody knows how much is left.
pub fn bank_total(records: &[TxnRecord], accounts: &[Bytes]) -> Option<i64> {
    let numbers: HashMap<&Bytes, usize> = accounts.iter().zip(0..).collect();
    let committed = records.iter().filter(|record| record.committed_at().is_some());
    let read = committed.filter_map(|record| Some(balances(record, &numbers).ok()?.0));
    let mut sums = read.filter(|before| before.len() == accounts.len());
    sums.next().and_then(|before| i64::try_from(before.values().sum::<i128>()).ok())
}

type Balances = HashMap<usize, i128>;

/// The balances that a transaction read before it changed them, and the balances that it wrote.
fn balances(
    record: &TxnRecord,
    numbers: &HashMap<&Bytes, usize>,
) -> Result<(Balances, Balances), String> {
    let (mut before, mut after) = (Balances::new(), Balances::new());
    for op in &record.ops {
        let (TxnOp::Read { key, value, .. } | TxnOp::Write { key, value }) = op else { continue };
        let Some(account) = numbers.get(key) else { continue };
        let sum = match value {
            None => 0,
            Some(value) => {
                i128::from(balance(value).ok_or_else(|| format!("{op}, which is no balance"))?)
            }
        };
        if op.changes() {
            after.insert(*account, sum);
        } else if !after.contains_key(account) {
            before.entry(*account).or_insert(sum);
        }
    }
    Ok((before, after))
}
