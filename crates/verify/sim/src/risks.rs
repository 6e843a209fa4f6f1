//! Transactions whose keyspace may have lost what was answered last, now and then.
//!
//! Until a loss nobody sees anything of it: what comes before is judged as ever. What comes after is judged
//! together with what is left. There a transaction that the loss may have taken has happened or not, as one
//! of unknown outcome: all of it, or, if the engine promises no more than that, each of its keys by itself.
//! What it has read of a key that it has changed it has read all the same, so each key goes back to
//! one of its versions, and what was built on a later one is gone as well.

use quorate_check::{Bytes, Loss, TxnOp, TxnOutcome, TxnRecord, bank_total, check_bank};

use crate::losses::ByGroup;

/// What may be lost.
#[derive(Clone, Copy)]
pub(crate) struct Risks<'a> {
    /// In order, whichever groups they have met.
    pub(crate) losses: &'a [Loss],
    /// Those of each key.
    pub(crate) by_group: &'a ByGroup,
    /// Whether a part of a transaction may be lost, and not all of it.
    pub(crate) torn: bool,
}

impl Risks<'_> {
    /// Nothing.
    #[cfg(test)]
    pub(crate) const NONE: Self = Self { losses: &[], by_group: &ByGroup::NONE, torn: false };

    /// Whether some loss may have taken a transaction.
    pub(crate) fn takes(&self, record: &TxnRecord) -> bool {
        takes(self.losses, record)
    }

    /// Judges what was seen until each loss, and everything. The first finding.
    pub(crate) fn find_in_eras(
        &self,
        records: &[TxnRecord],
        judge: impl Fn(&[TxnRecord]) -> Option<String>,
    ) -> Option<String> {
        if self.losses.is_empty() {
            return judge(records);
        }
        (0..=self.losses.len()).find_map(|era| {
            let found = judge(&self.until(records, era))?;
            Some(match self.losses.get(era) {
                Some(loss) => format!("before the loss at {} ns: {found}", loss.at),
                None => found,
            })
        })
    }

    /// What was seen until the loss of this number, or at all, with what earlier losses have left of it.
    fn until(&self, records: &[TxnRecord], era: usize) -> Vec<TxnRecord> {
        let (earlier, end) = (&self.losses[..era], self.losses.get(era).map(|loss| loss.at));
        let mut seen = Vec::new();
        for record in records {
            if end.is_some_and(|end| record.invoke > end) {
                continue;
            }
            let mut record = record.clone();
            if end.is_some_and(|end| record.committed_at() > Some(end)) {
                // Its reads came later.
                record.outcome = TxnOutcome::Unknown;
                record.ops.retain(TxnOp::changes);
            }
            if record.is_aborted() || !takes(earlier, &record) {
                seen.push(record);
                continue;
            }
            record.outcome = TxnOutcome::Unknown;
            match self.torn {
                true => seen.extend(key_by_key(&record)),
                false => seen.push(record),
            }
        }
        seen
    }

    /// Judges a bank: between two losses, all see the same sum.
    pub(crate) fn check_bank(&self, records: &[TxnRecord], accounts: &[Bytes]) -> Option<String> {
        let losses = if self.torn { self.losses } else { &[] };
        let begins = [0].into_iter().chain(losses.iter().map(|loss| loss.at));
        let ends = losses.iter().map(|loss| loss.at).chain([u64::MAX]);
        begins.zip(ends).find_map(|(begin, end)| {
            let within = |record: &&TxnRecord| {
                record.invoke >= begin && record.committed_at().is_some_and(|at| at <= end)
            };
            let records: Vec<TxnRecord> = records.iter().filter(within).cloned().collect();
            let total = if begin == 0 { Some(0) } else { bank_total(&records, accounts) };
            let wrong = check_bank(&records, accounts, total.unwrap_or(0)).err();
            wrong.map(|anomaly| anomaly.to_string())
        })
    }
}

fn takes(losses: &[Loss], record: &TxnRecord) -> bool {
    let ended = record.committed_at().unwrap_or(u64::MAX);
    losses.iter().any(|loss| loss.takes(record.invoke, ended))
}

/// What a transaction has done to each key that it has changed.
fn key_by_key(record: &TxnRecord) -> Vec<TxnRecord> {
    let mut parts: Vec<TxnRecord> = Vec::new();
    for op in record.ops.iter().filter(|op| op.changes()) {
        if parts.iter().any(|part| part.ops[0].key() == op.key()) {
            continue;
        }
        let ops = record.ops.iter().filter(|other| other.key() == op.key()).cloned().collect();
        parts.push(TxnRecord { ops, ..record.clone() });
    }
    parts
}

#[cfg(test)]
mod tests {
    use quorate_check::{Model, TxnOp, check_transactions};
    use quorate_types::{MemberNumber, Timestamp, WriterId};

    use super::*;

    const LOSS: Loss = Loss { from: 20, at: 30, all: false };

    fn txn(id: u64, invoke: u64, ops: Vec<TxnOp>) -> TxnRecord {
        let outcome = TxnOutcome::Committed { at: invoke + 2 };
        TxnRecord { process: id, id, invoke, outcome, timestamp: None, ops }
    }

    fn wrote(key: &str, value: &str) -> TxnOp {
        TxnOp::write(key, Some(value.into()))
    }

    fn read(key: &str, value: &str) -> TxnOp {
        TxnOp::read(key, (!value.is_empty()).then(|| value.into()))
    }

    /// Whether what two transactions have written, one before the moment of risk and one after, and what
    /// is read before and after the loss is as promised.
    fn is_right(torn: bool, before: [&str; 2], after: [&str; 2]) -> bool {
        let records = [
            txn(1, 10, vec![wrote("a", "1"), wrote("b", "1")]),
            txn(2, 21, vec![read("a", "1"), wrote("a", "2"), wrote("b", "2")]),
            txn(3, 25, vec![read("a", before[0]), read("b", before[1])]),
            txn(4, 40, vec![read("a", after[0]), read("b", after[1])]),
        ];
        let judge = |records: &[TxnRecord]| {
            let found = check_transactions(records, Model::StrictSerializable);
            found.err().map(|anomaly| anomaly.to_string())
        };
        Risks { losses: &[LOSS], by_group: &ByGroup::NONE, torn }
            .find_in_eras(&records, judge)
            .is_none()
    }

    #[test]
    fn what_was_answered_before_stays_and_the_rest_goes_as_a_whole_or_in_parts() {
        for torn in [false, true] {
            assert!(is_right(torn, ["2", "2"], ["2", "2"]));
            assert!(is_right(torn, ["2", "2"], ["1", "1"]));
            // Nobody has seen it before it came.
            assert!(!is_right(torn, ["1", "1"], ["1", "1"]));
            assert!(!is_right(torn, ["2", "1"], ["1", "1"]));
            // The first of them was safe.
            assert!(!is_right(torn, ["2", "2"], ["", ""]));
            assert!(!is_right(torn, ["2", "2"], ["2", ""]));
            assert_eq!(is_right(torn, ["2", "2"], ["1", "2"]), torn);
            assert_eq!(is_right(torn, ["2", "2"], ["2", "1"]), torn);
        }
    }

    #[test]
    fn a_deletion_that_may_be_lost_explains_a_key_that_is_absent() {
        let at = |number| Some(Timestamp::new(number, WriterId::new(MemberNumber(1), 0)));
        let stamped = |number, record| TxnRecord { timestamp: at(number), ..record };
        let is_right = |deleted_at| {
            let absent = TxnOp::Read { key: "a".into(), value: None, version: None };
            let records = [
                stamped(1, txn(1, 10, vec![wrote("a", "1")])),
                stamped(2, txn(2, deleted_at, vec![TxnOp::write("a", None)])),
                stamped(3, txn(3, 40, vec![absent, wrote("b", "1")])),
            ];
            let judge = |records: &[TxnRecord]| {
                let found = check_transactions(records, Model::Serializable);
                found.err().map(|anomaly| anomaly.to_string())
            };
            Risks { losses: &[LOSS], by_group: &ByGroup::NONE, torn: true }
                .find_in_eras(&records, judge)
                .is_none()
        };
        assert!(is_right(21), "it was not lost");
        assert!(is_right(12));
    }

    #[test]
    fn a_bank_keeps_its_sum_between_losses_or_for_ever() {
        let audit = |at, a: &str, b: &str| txn(at, at, vec![read("a", a), read("b", b)]);
        let is_right = |torn, records: &[TxnRecord]| {
            let risks = Risks { losses: &[LOSS], by_group: &ByGroup::NONE, torn };
            risks.check_bank(records, &["a".into(), "b".into()]).is_none()
        };
        let whole = [audit(10, "1", "-1"), audit(40, "2", "-2")];
        let half = [audit(10, "1", "-1"), audit(40, "2", "-1"), audit(50, "1", "0")];
        let never = [audit(10, "1", "-1"), audit(40, "2", "-1"), audit(50, "1", "-1")];
        assert!(is_right(true, &whole) && is_right(false, &whole));
        assert!(is_right(true, &half) && !is_right(false, &half));
        assert!(!is_right(true, &never) && !is_right(false, &never));
    }
}
