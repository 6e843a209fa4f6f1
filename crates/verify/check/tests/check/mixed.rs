//! Histories that mix commands on single keys with transactions, beside a judge that tries every
//! order: valid ones from one copy of the data, and the same with answers or times spoilt.

use std::collections::BTreeMap;

use quorate_check::{
    Action, Answer, Bytes, Model, Operation, Outcome, TxnHistory, TxnOp, TxnOutcome, TxnRecord,
    Verdict, check_txn_history, list_argument, split_list,
};
use quorate_machine::Rng;
use quorate_types::{Timestamp, WriterId};

use crate::brute_force::run;
use crate::txn_support::{at, expect, l, r, stamped, timed, w};

/// What each key holds, and the moment of its last change.
type Data = BTreeMap<Bytes, (Option<Vec<u8>>, Timestamp)>;

/// The load of a generated history.
#[derive(Clone, Copy)]
struct Load {
    items: u64,
    /// Out of 100.
    transactions: u64,
    /// The first letter of each key says what it holds: a register, a number or a list.
    keys: &'static [&'static str],
    deletes: bool,
    versions: bool,
    /// Whether answers and times are spoilt.
    spoilt: bool,
}

/// One action of a client: an element of the order that is searched.
#[derive(Clone, Copy)]
enum Item<'a> {
    Single(&'a Operation),
    Transaction(&'a TxnRecord),
}

impl Item<'_> {
    fn invoke(&self) -> u64 {
        match self {
            Self::Single(operation) => operation.invoke,
            Self::Transaction(record) => record.invoke,
        }
    }

    fn done_at(&self) -> Option<u64> {
        match self {
            Self::Single(operation) => operation.done_at(),
            Self::Transaction(record) => record.committed_at(),
        }
    }

    fn never(&self) -> bool {
        match self {
            Self::Single(operation) => matches!(operation.outcome, Outcome::Refused { .. }),
            Self::Transaction(record) => record.is_aborted(),
        }
    }

    /// The data afterwards, if the item can have seen its answers in `data`.
    fn apply(&self, data: &Data) -> Option<Data> {
        let mut data = data.clone();
        match self {
            Self::Single(operation) => {
                let held = data.entry(operation.key.clone()).or_default();
                let (next, answer) = run(&operation.action, &held.0);
                if let Outcome::Done { answer: seen, .. } = &operation.outcome
                    && *seen != answer
                {
                    return None;
                }
                held.0 = next;
            }
            Self::Transaction(record) => {
                for op in &record.ops {
                    step(op, &mut data.entry(op.key().clone()).or_default().0)?;
                }
            }
        }
        Some(data)
    }
}

/// One operation of a transaction, if it can have seen its answer.
fn step(op: &TxnOp, held: &mut Option<Vec<u8>>) -> Option<()> {
    match op {
        TxnOp::Read { value, .. } => {
            (value.as_ref().map(|value| &value.0) == held.as_ref()).then_some(())
        }
        TxnOp::ReadList { elements, .. } => {
            (split_list(held.as_deref()).as_ref() == Some(elements)).then_some(())
        }
        TxnOp::Write { value, .. } => {
            *held = value.clone().map(|value| value.0);
            Some(())
        }
        TxnOp::Append { element, .. } => {
            held.get_or_insert_default().extend(list_argument(&element.0));
            Some(())
        }
    }
}

/// Whether some order explains the history.
fn some_order(history: &TxnHistory, model: Model) -> bool {
    fn search(items: &[Item<'_>], model: Model, left: u32, data: &Data) -> bool {
        let open = || (0..items.len()).filter(move |at| left & 1 << at != 0);
        if !open().any(|at| items[at].done_at().is_some()) {
            return true;
        }
        open().any(|at| {
            let begun = items[at].invoke();
            let late = open().any(|other| items[other].done_at().is_some_and(|end| end < begun));
            if items[at].never() || (late && model == Model::StrictSerializable) {
                return false;
            }
            let after = items[at].apply(data);
            after.is_some_and(|after| search(items, model, left & !(1 << at), &after))
        })
    }
    let singles = history.operations.iter().map(Item::Single);
    let items: Vec<Item<'_>> =
        singles.chain(history.transactions.iter().map(Item::Transaction)).collect();
    search(&items, model, (1 << items.len()) - 1, &Data::new())
}

struct Reference<'r> {
    rng: &'r mut Rng,
    load: Load,
    data: Data,
    fresh: u64,
}

impl Reference<'_> {
    fn key(&mut self) -> &'static str {
        self.load.keys[self.rng.below(self.load.keys.len() as u64) as usize]
    }

    /// Mostly a value of its own.
    fn value(&mut self) -> Bytes {
        if self.rng.chance(1, 6) {
            return "twice".into();
        }
        self.fresh += 1;
        format!("v{}", self.fresh).into()
    }

    fn element(&mut self) -> Bytes {
        self.fresh += 1;
        format!("e{}", self.fresh).into()
    }

    fn held(&self, key: &str) -> (Option<Vec<u8>>, Timestamp) {
        self.data.get(&Bytes::from(key)).cloned().unwrap_or_default()
    }

    fn action(&mut self, key: &str) -> Action {
        match (&key[..1], self.rng.below(10)) {
            ("l", 0..5) => Action::Append(list_argument(&self.element().0).into()),
            ("n", 0..=5) => Action::Incr(1 + self.rng.below(2) as i64),
            ("r", 0..2) => Action::Set(self.value()),
            ("r", 2) => Action::GetSet(self.value()),
            ("r", 3..5) => Action::SetNx(self.value()),
            ("r", 5) => {
                let held = self.held(key).0.map(Bytes);
                let expected = if self.rng.chance(1, 2) { held } else { None };
                Action::Cas { expected, value: self.value() }
            }
            ("r" | "n", 6..8) if self.load.deletes => Action::Del,
            _ => Action::Get,
        }
    }

    fn single(&mut self, invoke: u64, at: u64, moment: Timestamp) -> Operation {
        let key = self.key();
        let action = self.action(key);
        let held = self.held(key);
        let (next, answer) = run(&action, &held.0);
        let happens = |rng: &mut Rng| rng.chance(1, 2);
        let (outcome, happened) = match self.rng.below(12) {
            0 => (Outcome::Unknown, happens(self.rng)),
            1 => (Outcome::Refused { at }, false),
            _ => (Outcome::Done { at, answer }, true),
        };
        if happened && next != held.0 {
            self.data.insert(key.into(), (next, moment));
        }
        Operation { process: invoke, key: key.into(), action, invoke, outcome }
    }

    fn transaction(&mut self, id: u64, invoke: u64, at: u64, moment: Timestamp) -> TxnRecord {
        let (outcome, happened) = match self.rng.below(12) {
            0 => (TxnOutcome::Unknown, self.rng.chance(1, 2)),
            1 => (TxnOutcome::Aborted { at }, false),
            _ => (TxnOutcome::Committed { at }, true),
        };
        let before = self.data.clone();
        let mut ops = Vec::new();
        for _ in 0..1 + self.rng.below(3) {
            self.txn_op(moment, &mut ops);
        }
        let committed = matches!(outcome, TxnOutcome::Committed { .. });
        if !happened {
            self.data = before;
        }
        if !committed {
            ops.retain(TxnOp::changes);
        }
        let timestamp = (self.load.versions && committed).then_some(moment);
        TxnRecord { process: invoke, id, invoke, outcome, timestamp, ops }
    }

    fn txn_op(&mut self, moment: Timestamp, ops: &mut Vec<TxnOp>) {
        let key = self.key();
        let (held, changed) = self.held(key);
        let version = (self.load.versions && changed != moment).then_some(changed);
        let list = key.starts_with('l');
        if self.rng.chance(1, 2) {
            let elements = split_list(held.as_deref()).unwrap_or_default();
            ops.push(match list {
                true => TxnOp::ReadList { key: key.into(), elements, version },
                false => TxnOp::Read { key: key.into(), value: held.map(Bytes), version },
            });
            return;
        }
        let delete = self.load.deletes && held.is_some() && self.rng.chance(1, 3);
        let op = match list {
            true => TxnOp::append(key, self.element()),
            false if delete => TxnOp::write(key, None),
            false if key.starts_with('n') => {
                self.fresh += 10;
                TxnOp::write(key, Some(self.fresh.to_string().into()))
            }
            false => TxnOp::write(key, Some(self.value())),
        };
        let mut next = held;
        step(&op, &mut next).expect("a change fits every state");
        self.data.insert(key.into(), (next, moment));
        ops.push(op);
    }
}

/// A small history, valid unless the load says that it may be spoilt.
fn small(rng: &mut Rng, load: Load) -> TxnHistory {
    let items = 2 + rng.below(load.items - 1);
    // Short spans make little overlap, long ones much.
    let span = 1 + rng.below(8);
    let mut history = TxnHistory::default();
    let mut reference = Reference { rng, load, data: Data::new(), fresh: 0 };
    for id in 0..items {
        let point = 2 * id;
        let invoke = point.saturating_sub(reference.rng.below(span));
        let at = point + reference.rng.below(span);
        let moment = Timestamp::new(point + 1, WriterId(1));
        if reference.rng.below(100) < load.transactions {
            history.transactions.push(reference.transaction(id, invoke, at, moment));
        } else {
            history.operations.push(reference.single(invoke, at, moment));
        }
    }
    if load.spoilt {
        for _ in 0..rng.below(3) {
            spoil(rng, &mut history);
        }
    }
    history
}

fn spoil(rng: &mut Rng, history: &mut TxnHistory) {
    let values: Vec<Option<Bytes>> = history
        .operations
        .iter()
        .filter_map(|o| match &o.outcome {
            Outcome::Done { answer: Answer::Value(value), .. } => Some(value.clone()),
            _ => None,
        })
        .chain([None])
        .collect();
    let singles = history.operations.len() as u64;
    let at = rng.below(singles + history.transactions.len() as u64);
    let shift = rng.chance(1, 4).then(|| 2 * rng.below(8));
    if at >= singles {
        let records = history.transactions.clone();
        let record = &mut history.transactions[(at - singles) as usize];
        match (shift, record.outcome) {
            (Some(invoke), TxnOutcome::Committed { .. }) => {
                record.invoke = invoke;
                record.outcome = TxnOutcome::Committed { at: invoke + rng.below(3) };
            }
            _ => spoil_read(rng, record, &records),
        }
        return;
    }
    let operation = &mut history.operations[at as usize];
    let Outcome::Done { at, answer } = &mut operation.outcome else { return };
    if let Some(invoke) = shift {
        operation.invoke = invoke;
        *at = invoke + rng.below(3);
        return;
    }
    match answer {
        Answer::Value(value) => value.clone_from(&values[rng.below(values.len() as u64) as usize]),
        Answer::Integer(n) => {
            let flag = !matches!(operation.action, Action::Incr(_) | Action::Append(_));
            *n = if flag { 1 - *n } else { *n + [1, -1, 3][rng.below(3) as usize] };
        }
        Answer::Ok | Answer::Error(_) | Answer::Array(_) => {}
    }
    if !operation.action.admits(answer) {
        *answer = Answer::Integer(0);
    }
}

/// Another transaction's read of the same key, or a read of nothing.
fn spoil_read(rng: &mut Rng, record: &mut TxnRecord, records: &[TxnRecord]) {
    let Some(op) = record.ops.iter_mut().find(|op| !op.changes()) else { return };
    let sources = records.iter().flat_map(|record| &record.ops);
    let sources: Vec<&TxnOp> =
        sources.filter(|other| other.key() == op.key() && !other.changes()).collect();
    let nothing = match &*op {
        TxnOp::ReadList { key, .. } => TxnOp::read_list(key.clone(), Vec::new()),
        other => TxnOp::read(other.key().clone(), None),
    };
    *op = match rng.below(sources.len() as u64 + 1) as usize {
        0 => nothing,
        at => sources[at - 1].clone(),
    };
}

fn show(history: &TxnHistory) -> String {
    let singles = history.operations.iter().map(|o| format!("{} {o}", o.key));
    let lines: Vec<String> =
        singles.chain(history.transactions.iter().map(ToString::to_string)).collect();
    lines.join("\n")
}

fn judge(history: &TxnHistory, model: Model) -> Verdict {
    check_txn_history(history, model).verdict()
}

/// How many histories of each kind were met.
#[derive(Debug, Default)]
struct Tally {
    passed: u32,
    refused: u32,
    /// Histories with an order that the checker could not decide.
    open: u32,
    /// Histories without an order that the checker could not decide.
    suspected: u32,
    /// Histories without an order that the checker passed.
    missed: u32,
    /// Histories with an order that the checker refused.
    wronged: Vec<String>,
}

fn compare(load: Load, seeds: u64) -> Tally {
    let mut tally = Tally::default();
    for seed in 0..seeds {
        let history = small(&mut Rng::new(seed), load);
        for model in [Model::Serializable, Model::StrictSerializable] {
            let explained = some_order(&history, model);
            assert!(explained || load.spoilt, "seed {seed}: the generator is wrong");
            match (explained, judge(&history, model)) {
                (true, Verdict::Ok) => tally.passed += 1,
                (true, Verdict::Undecided) => tally.open += 1,
                (false, Verdict::Violation) => tally.refused += 1,
                (false, Verdict::Undecided) => tally.suspected += 1,
                (false, Verdict::Ok) => tally.missed += 1,
                (true, Verdict::Violation) => {
                    tally.wronged.push(format!("seed {seed}, {model}:\n{}", show(&history)));
                }
            }
        }
    }
    tally
}

const MIXED: Load = Load {
    items: 7,
    transactions: 40,
    keys: &["r0", "r1", "n0", "l0"],
    deletes: true,
    versions: false,
    spoilt: true,
};

/// Compares spoilt histories. A history that passes wrongly has overlapping writes whose order
/// nothing shows.
#[track_caller]
fn agree(load: Load) {
    let tally = compare(load, 6000);
    assert!(tally.wronged.is_empty(), "{}", tally.wronged[0]);
    assert!(tally.passed > 4000 && tally.refused > 500, "{tally:?}");
    assert!(
        tally.missed * 100 < tally.refused && tally.suspected * 20 < tally.refused,
        "{tally:?}"
    );
    assert!(tally.open * 2 < tally.passed, "{tally:?}");
}

#[test]
fn mixed_histories_agree() {
    agree(MIXED);
}

#[test]
fn one_transaction_among_commands_agrees() {
    agree(Load { transactions: 15, keys: &["r0", "r1"], ..MIXED });
}

#[test]
fn transactions_that_delete_agree() {
    agree(Load { transactions: 100, keys: &["r0", "r1"], ..MIXED });
}

#[test]
fn valid_histories_with_versions_are_not_refused() {
    let tally = compare(Load { versions: true, spoilt: false, ..MIXED }, 6000);
    assert!(tally.wronged.is_empty(), "{}", tally.wronged[0]);
    assert!(tally.passed > 4000 && tally.open * 2 < tally.passed, "{tally:?}");
}

/// The order of versions may be wrong where another order would do; but with versions, no history
/// without an order passes.
#[test]
fn what_passes_with_versions_has_an_order() {
    for (transactions, keys) in [(40, MIXED.keys), (100, &["r0", "r1"][..])] {
        let load = Load { versions: true, transactions, keys, ..MIXED };
        let tally = compare(load, 6000);
        assert!(tally.passed > 4000 && tally.refused > 500, "{tally:?}");
        assert_eq!(tally.missed, 0, "{tally:?}");
    }
}

fn done(at: u64, action: Action, answer: i64) -> Operation {
    let outcome = Outcome::Done { at: at + 5, answer: Answer::Integer(answer) };
    Operation { process: 9, key: "x".into(), action, invoke: at, outcome }
}

/// Commands that contradict each other do so beside transactions too, on other keys or the same
/// ones.
#[test]
fn a_transaction_hides_no_anomaly_of_commands() {
    let setnx = |at, value: &str, n| done(at, Action::SetNx(value.into()), n);
    let set = |at| {
        let mut set = done(at, Action::Set("1".into()), 0);
        set.outcome = Outcome::Done { at: at + 5, answer: Answer::Ok };
        set
    };
    let append = |at, element: &[u8], n| done(at, Action::Append(list_argument(element).into()), n);
    let cases = [
        vec![setnx(10, "1", 1), setnx(20, "2", 1)],
        vec![set(10), setnx(20, "2", 1)],
        vec![setnx(10, "1", 0)],
        vec![set(10), done(20, Action::Del, 0)],
        vec![done(10, Action::Del, 1)],
        vec![append(10, b"a", 2), append(20, b"b", 2)],
        vec![append(10, b"a", 3)],
        vec![done(10, Action::Incr(2), 2), done(20, Action::Incr(2), 2)],
    ];
    let elsewhere = timed(1, 0, 5, vec![w("y", "1")]);
    let list = timed(1, 100, 105, vec![l("x", "")]);
    let register = timed(1, 0, 5, vec![r("x", "")]);
    for operations in cases {
        let lists = matches!(operations[0].action, Action::Append(_));
        let same = if lists { &list } else { &register };
        for transaction in [&elsewhere, same] {
            for model in [Model::StrictSerializable, Model::Serializable] {
                let transactions = vec![transaction.clone()];
                let operations = operations.clone();
                let history = TxnHistory { operations, transactions, ..TxnHistory::default() };
                let explained = some_order(&history, model);
                assert!(!explained || model == Model::Serializable, "{}", show(&history));
                let report = check_txn_history(&history, model);
                let violation = report.verdict() == Verdict::Violation;
                assert_eq!(violation, !explained, "{model}:\n{}\n{report}", show(&history));
            }
        }
    }
}

/// A key that was deleted once may be absent for two reasons. Real time or versions tell which.
#[test]
fn a_deletion_hides_no_anomaly_of_absent_keys() {
    let begin = [
        timed(1, 0, 5, vec![w("x", "1"), w("y", "1")]),
        timed(2, 10, 15, vec![w("x", ""), w("y", "")]),
    ];
    let after = |more: Vec<TxnRecord>| [begin.to_vec(), more].concat();
    let stale =
        after(vec![timed(3, 20, 25, vec![w("x", "2")]), timed(4, 30, 35, vec![r("x", "")])]);
    expect(&stale, "undecided", "G-single-realtime");
    let skew = after(vec![
        timed(3, 20, 30, vec![r("x", ""), w("y", "2")]),
        timed(4, 20, 30, vec![r("y", ""), w("x", "2")]),
    ]);
    expect(&skew, "undecided", "G2-item-realtime");
    let lost = after(vec![
        timed(3, 20, 30, vec![r("x", ""), w("x", "2")]),
        timed(4, 20, 30, vec![r("x", ""), w("x", "3")]),
    ]);
    expect(&lost, "undecided", "lost-update");
    // If two deletions overlap with a write, it stays open which of them a read saw.
    let open = [
        timed(1, 0, 50, vec![w("x", "1")]),
        timed(2, 0, 50, vec![w("x", "")]),
        timed(3, 0, 50, vec![r("x", "")]),
    ];
    expect(&open, "undecided", "undecided");
    let told = open.map(|record| stamped(10 * record.id, record));
    let told = told.map(|mut record| {
        record.ops = record.ops.into_iter().map(|op| at(20, op)).collect();
        record
    });
    expect(&told, "ok", "ok");
}
