//! Exports for Elle, judged by `adya`, an independent implementation of Elle's method that reads
//! its files.

use quorate_check::{
    ElleWorkload, Header, Initial, Model, TxnHistory, TxnOp, TxnRecord, check_values, write_elle,
};
use quorate_machine::Rng;

use crate::txn_generated::{PLANTS, loads};
use crate::txn_simulated::simulate;
use crate::txn_support::{a, aborted, l, maybe, r, timed, verdict, w};

fn export(records: &[TxnRecord], workload: ElleWorkload) -> (String, Vec<String>) {
    let transactions = records.to_vec();
    let history = TxnHistory { transactions, ..TxnHistory::default() };
    let mut text = Vec::new();
    let summary = write_elle(&history, workload, &mut text).expect("memory takes it");
    let left_out = summary.left_out.iter().map(|(key, why)| format!("{key}: {why}")).collect();
    (String::from_utf8(text).expect("JSON is text"), left_out)
}

/// The other checker's verdict on the file.
fn theirs(text: &str, workload: ElleWorkload, model: Model) -> adya::Valid {
    let history = adya::History::from_json(text).expect("the file is as Elle's are");
    let model = match model {
        Model::Serializable => "serializable",
        Model::StrictSerializable => "strict-serializable",
    };
    let workload = match workload {
        ElleWorkload::ListAppend => adya::Workload::ListAppend,
        ElleWorkload::RwRegister => adya::Workload::RwRegister,
    };
    // Both order a register's versions by reads that come before writes.
    let options =
        adya::Opts { models: vec![model.into()], wfr_keys: true, ..adya::Opts::default() };
    adya::check(&history, workload, &options).valid
}

/// The transactions with their steps on lists only, or on registers only.
fn part(records: &[TxnRecord], lists: bool, without: &[String]) -> Vec<TxnRecord> {
    let is_list = |op: &TxnOp| matches!(op, TxnOp::Append { .. } | TxnOp::ReadList { .. });
    let excluded =
        |op: &TxnOp| without.iter().any(|why| why.starts_with(&format!("{}: ", op.key())));
    let mut part = records.to_vec();
    for record in &mut part {
        record.ops.retain(|op| is_list(op) == lists && !excluded(op));
    }
    part.retain(|record| !record.ops.is_empty());
    part
}

#[test]
fn two_checkers_agree_on_lists() {
    let workload = ElleWorkload::ListAppend;
    let mut refused = 0;
    for seed in 0..400 {
        let mut rng = Rng::new(7000 + seed);
        let loads = loads();
        let mut records = {
            let load = loads[rng.below(6) as usize];
            simulate(&mut rng, load)
        };
        let planted = rng.chance(2, 3).then(|| PLANTS[rng.below(PLANTS.len() as u64) as usize]);
        if let Some((_, plant)) = planted {
            plant(&mut rng, &mut records);
        }
        let (text, left_out) = export(&records, workload);
        let part = part(&records, true, &left_out);
        if part.is_empty() {
            continue;
        }
        for model in [Model::Serializable, Model::StrictSerializable] {
            let ours = check_values(&part, model);
            let name = planted.map_or("nothing", |(name, _)| name);
            // To the other checker an element that no transaction appended is no contradiction.
            let ours_alone = verdict(&ours) == "phantom-read";
            let agreed = match theirs(&text, workload, model) {
                adya::Valid::False => ours.is_err(),
                // Unknown: nothing depends on anything.
                adya::Valid::True | adya::Valid::Unknown => ours.is_ok() || ours_alone,
            };
            assert!(agreed, "seed {seed}, {name}, {model}: {}\n{text}", verdict(&ours));
            refused += u64::from(ours.is_err());
        }
    }
    assert!(refused > 100, "only {refused} verdicts were about an anomaly");
}

/// Of registers, the two infer different orders of versions. Ours refuses every history that theirs
/// refuses.
#[test]
fn what_the_other_checker_refuses_of_registers_is_refused() {
    let workload = ElleWorkload::RwRegister;
    let mut refused = 0;
    for seed in 0..400 {
        let mut rng = Rng::new(8000 + seed);
        let mut load = loads()[4];
        load.unknown = if rng.chance(1, 2) { 0 } else { 100 };
        let mut records = simulate(&mut rng, load);
        let planted = rng.chance(2, 3).then(|| PLANTS[rng.below(PLANTS.len() as u64) as usize]);
        if let Some((_, plant)) = planted {
            plant(&mut rng, &mut records);
        }
        let (text, left_out) = export(&records, workload);
        let part = part(&records, false, &left_out);
        for model in [Model::Serializable, Model::StrictSerializable] {
            let ours = check_values(&part, model);
            let theirs = theirs(&text, workload, model);
            let name = planted.map_or("nothing", |(name, _)| name);
            if planted.is_none() {
                assert!(ours.is_ok() && theirs != adya::Valid::False, "seed {seed}, {model}");
            }
            if theirs == adya::Valid::False {
                assert!(ours.is_err(), "seed {seed}, {name}, {model}: only theirs\n{text}");
                refused += 1;
            }
        }
    }
    assert!(refused > 50, "only {refused} verdicts were about an anomaly");
}

#[test]
fn the_lines_are_elles() {
    let records = [
        timed(1, 0, 30, vec![a("p", "x"), w("q", "1"), l("p", "x")]),
        timed(2, 10, 40, vec![l("p", "x"), r("q", "1")]),
        aborted(3, vec![a("p", "y")]),
        maybe(4, vec![a("p", "z")]),
    ];
    let (text, left_out) = export(&records, ElleWorkload::ListAppend);
    assert!(left_out.is_empty());
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let shown: Vec<String> = lines
        .iter()
        .map(|line| {
            let [kind, process, value] = ["type", "process", "value"].map(|name| &line[name]);
            format!("{} {process} {value}", kind.as_str().expect("a word"))
        })
        .collect();
    assert_eq!(
        shown,
        [
            r#"invoke 0 [["append","p","x"],["r","p",null]]"#,
            r#"invoke 1 [["append","p","y"]]"#,
            r#"invoke 2 [["append","p","z"]]"#,
            r#"invoke 3 [["r","p",null]]"#,
            r#"ok 0 [["append","p","x"],["r","p",["x"]]]"#,
            r#"ok 3 [["r","p",["x"]]]"#,
            r#"fail 1 [["append","p","y"]]"#,
            r#"info 2 [["append","p","z"]]"#,
        ]
    );
    let (text, _) = export(&records, ElleWorkload::RwRegister);
    assert!(text.contains(r#"[["w","q","1"]]"#) && text.contains(r#"[["r","q","1"]]"#), "{text}");
}

#[test]
fn what_elle_cannot_judge_is_left_out_and_named() {
    let records = [
        timed(1, 0, 10, vec![w("d", "1"), w("t", "1"), w("k", "1")]),
        timed(2, 0, 10, vec![w("d", ""), w("t", "1"), r("k", "1")]),
    ];
    let (text, left_out) = export(&records, ElleWorkload::RwRegister);
    assert_eq!(left_out, ["\"d\": it is deleted", "\"t\": a value is written twice"]);
    assert!(text.contains(r#"["w","k","1"]"#) && !text.contains(r#""t""#), "{text}");
    let header = Header { initial: Initial::Any, ..Header::default() };
    let history = TxnHistory { header, ..TxnHistory::default() };
    let error = write_elle(&history, ElleWorkload::RwRegister, Vec::new());
    assert!(error.expect_err("it may hold anything").to_string().contains("\"absent\""));
}
