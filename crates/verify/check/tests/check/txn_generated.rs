//! Simulated histories: accepted as they are, refused by name once an anomaly is planted.

use quorate_check::{
    Model, TxnHistory, TxnOp, TxnOutcome, TxnRecord, Verdict, check_transactions,
    check_txn_history, check_values, check_versions,
};
use quorate_machine::Rng;

use crate::txn_simulated::{Load, simulate};
use crate::txn_support::{a, aborted, l, r, strict, timed, verdict, w};

pub(crate) fn loads() -> Vec<Load> {
    let load = Load::new(150);
    vec![
        load,
        Load { registers: false, ..load },
        Load { lists: false, ..load },
        Load { lists: false, deletes: false, ..load },
        Load { lists: false, deletes: false, read_first: true, ..load },
        Load { keys: 1, clients: 20, unknown: 300, ..load },
        Load { versions: true, ..load },
        Load { versions: true, keys: 2, unknown: 300, ..load },
    ]
}

#[test]
fn transactions_in_one_place_are_accepted() {
    for load in loads() {
        for seed in 0..60 {
            let records = simulate(&mut Rng::new(seed), load);
            let result = check_transactions(&records, Model::StrictSerializable);
            let result = result.unwrap_or_else(|e| panic!("seed {seed} of {load:?}: {e}"));
            assert!(result.unjudged.is_empty(), "{result}");
            // Every value is written once, so only a deletion leaves open which version was read.
            assert!(load.deletes && load.registers || result.ambiguous_reads == 0, "{result}");
            if load.versions {
                let followed = result.versioned_reads;
                assert!(followed > 30 && result.replayed > 80, "{result}");
            }
            let loose = check_transactions(&records, Model::Serializable);
            assert!(loose.is_ok(), "seed {seed} of {load:?}: {}", verdict(&loose));
        }
    }
}

/// The moment after everything.
fn end(records: &[TxnRecord]) -> u64 {
    let last = |r: &TxnRecord| match r.outcome {
        TxnOutcome::Committed { at } | TxnOutcome::Aborted { at } => at,
        TxnOutcome::Unknown => r.invoke,
    };
    records.iter().map(last).max().unwrap_or(0) + 10_000
}

/// A committed transaction.
fn any(rng: &mut Rng, records: &[TxnRecord]) -> usize {
    loop {
        let at = rng.below(records.len() as u64) as usize;
        if records[at].committed_at().is_some() {
            return at;
        }
    }
}

/// Two committed transactions. The first had ended when the second began.
fn in_order(rng: &mut Rng, records: &[TxnRecord]) -> (usize, usize) {
    loop {
        let (one, other) = (any(rng, records), any(rng, records));
        if records[one].committed_at() < Some(records[other].invoke) {
            return (one, other);
        }
    }
}

/// Two committed transactions that overlap.
fn at_once(rng: &mut Rng, records: &[TxnRecord]) -> (usize, usize) {
    loop {
        let (one, other) = (any(rng, records), any(rng, records));
        let (a, b) = (&records[one], &records[other]);
        let before = |a: &TxnRecord, b: &TxnRecord| a.committed_at() < Some(b.invoke);
        if one != other && !before(a, b) && !before(b, a) {
            return (one, other);
        }
    }
}

/// Adds operations on keys of their own to transactions of a history, so that it has an anomaly.
pub(crate) type Plant = fn(&mut Rng, &mut Vec<TxnRecord>);

fn add(records: &mut [TxnRecord], at: usize, ops: impl IntoIterator<Item = TxnOp>) {
    records[at].ops.extend(ops);
}

/// A transaction after all others, which reads the final lists.
fn observe(records: &mut Vec<TxnRecord>, ops: Vec<TxnOp>) {
    let (id, end) = (records.len() as u64, end(records));
    records.push(timed(id, end, end + 5, ops));
}

/// Every kind by its name, from the strongest to the weakest.
pub(crate) const PLANTS: &[(&str, Plant)] = &[
    ("G1a", |rng, records| {
        let reader = any(rng, records);
        let id = records.len() as u64;
        records.push(aborted(id, vec![a("p", "1"), w("q", "1")]));
        let read = if rng.chance(1, 2) { l("p", "1") } else { r("q", "1") };
        add(records, reader, [read]);
    }),
    ("G1b", |rng, records| {
        let (writer, reader) = at_once(rng, records);
        add(records, writer, [a("p", "1"), w("q", "1"), a("p", "2"), w("q", "2")]);
        let read = if rng.chance(1, 2) { l("p", "1") } else { r("q", "1") };
        add(records, reader, [read]);
    }),
    ("internal", |rng, records| {
        let at = any(rng, records);
        let ops =
            if rng.chance(1, 2) { [w("q", "1"), r("q", "")] } else { [a("p", "1"), l("p", "")] };
        add(records, at, ops);
    }),
    ("phantom-read", |rng, records| {
        let at = any(rng, records);
        let read = if rng.chance(1, 2) { l("p", "1") } else { r("q", "1") };
        add(records, at, [read]);
    }),
    ("duplicate-element", |rng, records| {
        let (writer, reader) = in_order(rng, records);
        add(records, writer, [a("p", "1")]);
        add(records, reader, [l("p", "11")]);
    }),
    ("incompatible-order", |rng, records| {
        let (one, other) = at_once(rng, records);
        add(records, one, [a("p", "1")]);
        add(records, other, [a("p", "2")]);
        observe(records, vec![l("p", "12")]);
        observe(records, vec![l("p", "21")]);
    }),
    ("lost-update", |rng, records| {
        let (one, other) = at_once(rng, records);
        let lists = rng.chance(1, 2);
        for (at, value) in [(one, "1"), (other, "2")] {
            let ops = if lists { [l("p", ""), a("p", value)] } else { [r("q", ""), w("q", value)] };
            add(records, at, ops);
        }
    }),
    ("G0", |rng, records| {
        let (one, other) = at_once(rng, records);
        add(records, one, [a("p", "1"), a("q", "1")]);
        add(records, other, [a("p", "2"), a("q", "2")]);
        observe(records, vec![l("p", "12"), l("q", "21")]);
    }),
    ("G1c", |rng, records| {
        let (one, other) = at_once(rng, records);
        add(records, one, [a("p", "1"), r("q", "2")]);
        add(records, other, [w("q", "2"), l("p", "1")]);
    }),
    ("G-single", |rng, records| {
        let (one, other) = at_once(rng, records);
        add(records, one, [a("p", "1"), w("q", "1")]);
        let reads =
            if rng.chance(1, 2) { [l("p", "1"), r("q", "")] } else { [l("p", ""), r("q", "1")] };
        add(records, other, reads);
    }),
    ("G2-item", |rng, records| {
        let (one, other) = at_once(rng, records);
        add(records, one, [l("p", ""), w("q", "1")]);
        add(records, other, [r("q", ""), a("p", "1")]);
    }),
    ("G0-realtime", |rng, records| {
        let (one, other) = in_order(rng, records);
        add(records, one, [a("p", "1")]);
        add(records, other, [a("p", "2")]);
        observe(records, vec![l("p", "21")]);
    }),
    ("G1c-realtime", |rng, records| {
        let (one, other) = in_order(rng, records);
        let lists = rng.chance(1, 2);
        add(records, one, [if lists { l("p", "1") } else { r("q", "1") }]);
        add(records, other, [if lists { a("p", "1") } else { w("q", "1") }]);
    }),
    ("G-single-realtime", |rng, records| {
        let (one, other) = in_order(rng, records);
        let lists = rng.chance(1, 2);
        add(records, one, [if lists { a("p", "1") } else { w("q", "1") }]);
        add(records, other, [if lists { l("p", "") } else { r("q", "") }]);
    }),
    ("G2-item-realtime", |rng, records| {
        // In flight with both of the others.
        let (one, other, skewed) = loop {
            let (one, other) = in_order(rng, records);
            let both = records[one].committed_at().max(Some(records[other].invoke));
            let spans = |r: &TxnRecord| {
                Some(r.invoke) <= records[one].committed_at() && r.committed_at() >= both
            };
            let mut spanning = (0..records.len()).filter(|at| *at != one && *at != other);
            if let Some(at) = spanning.find(|at| spans(&records[*at])) {
                break (one, other, at);
            }
        };
        add(records, skewed, [l("p", ""), w("q", "1")]);
        add(records, one, [a("p", "1")]);
        add(records, other, [r("q", "")]);
    }),
];

#[test]
fn planted_anomalies_are_found_by_name() {
    for (rank, (name, plant)) in PLANTS.iter().enumerate() {
        let mut exact = 0;
        let seeds = 80;
        for seed in 0..seeds {
            let mut rng = Rng::new(1000 + seed);
            let loads = loads();
            let load = loads[rng.below(6) as usize];
            let mut records = simulate(&mut rng, load);
            plant(&mut rng, &mut records);
            let result = check_values(&records, Model::StrictSerializable);
            let found = verdict(&result);
            // Other edges between the same transactions may give the cycle a stronger name.
            let found_rank = PLANTS.iter().position(|(name, _)| *name == found);
            let found_rank = found_rank.unwrap_or_else(|| panic!("{name}, seed {seed}: {found}"));
            assert!(found_rank <= rank, "{name}, seed {seed}: {found}");
            exact += u64::from(found_rank == rank);
            // Without real time there is no anomaly of real time.
            let loose = verdict(&check_values(&records, Model::Serializable));
            assert!(found.ends_with("-realtime") || loose == found, "{name}: {found}, {loose}");
        }
        assert!(exact >= seeds / 10, "{name} was found under its name only {exact} times");
    }
}

#[test]
fn a_planted_stale_version_is_found() {
    let load = Load { versions: true, unknown: 0, ..Load::new(150) };
    let mut tried = 0;
    for seed in 0..150 {
        let mut rng = Rng::new(2000 + seed);
        let mut records = simulate(&mut rng, load);
        // Two reads of one register that saw different versions; the later one gets the value of
        // the earlier one.
        let mut seen: Vec<(usize, usize, TxnOp)> = Vec::new();
        for (at, record) in records.iter().enumerate() {
            for (op, step) in record.ops.iter().enumerate() {
                if let TxnOp::Read { version: Some(_), .. } = step
                    && record.committed_at().is_some()
                {
                    seen.push((at, op, step.clone()));
                }
            }
        }
        let version = |op: &TxnOp| match op {
            TxnOp::Read { version, .. } => *version,
            _ => None,
        };
        let (at, op, read) = seen[rng.below(seen.len() as u64) as usize].clone();
        let older = seen
            .iter()
            .find(|(_, _, other)| other.key() == read.key() && version(other) < version(&read));
        let Some((_, _, older)) = older else { continue };
        // Later reads of the same transaction would contradict it by themselves.
        let again = records[at].ops.iter().filter(|o| o.key() == read.key() && !o.changes());
        if again.count() > 1 {
            continue;
        }
        tried += 1;
        records[at].ops[op] = older.clone();
        let result = check_versions(&records, Model::Serializable);
        assert_ne!(verdict(&result), "ok", "seed {seed}: {read} became {older}");
    }
    assert!(tried >= 50, "only {tried} histories had a place for the anomaly");
}

/// The search on keys that transactions touch is bounded by their operations.
#[test]
fn long_histories_take_no_long_search() {
    let load = Load { keys: 3, clients: 30, ..Load::new(5_000) };
    let transactions = simulate(&mut Rng::new(3), load);
    let ops: u64 = transactions.iter().map(|record| record.ops.len() as u64).sum();
    let history = TxnHistory { transactions, ..TxnHistory::default() };
    let report = check_txn_history(&history, Model::StrictSerializable);
    assert_ne!(report.verdict(), Verdict::Violation, "{report}");
    assert!(report.keys.steps < 64 * ops, "{} steps for {ops} operations", report.keys.steps);
}

/// A hundred thousand transactions, so that anything quadratic would show.
#[test]
fn long_histories_take_no_time() {
    let load = Load { versions: true, keys: 40, clients: 30, ..Load::new(100_000) };
    let records = simulate(&mut Rng::new(3), load);
    let result = strict(&records).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(result.transactions, 100_000);
    // Linear: a few edges for each operation.
    let ops: usize = records.iter().map(|r| r.ops.len()).sum();
    assert!(result.edges < 12 * ops, "{} edges for {ops} operations", result.edges);
}
