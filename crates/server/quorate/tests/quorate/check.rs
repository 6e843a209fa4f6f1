//! `quorate check`: what it prints and how it exits, for histories with and without transactions.

use std::path::PathBuf;
use std::process::Command;

const HEADER: &str = "{\"format\":\"quorate-history\",\"version\":1}\n";

/// A read of the past: serializable, but not strictly.
const STALE: &str = concat!(
    "{\"process\":1,\"txn\":1,\"invoke\":10,\"return\":20,\"outcome\":\"committed\",",
    "\"ops\":[{\"op\":\"write\",\"key\":\"x\",\"value\":\"1\"}]}\n",
    "{\"process\":2,\"txn\":2,\"invoke\":30,\"return\":40,\"outcome\":\"committed\",",
    "\"ops\":[{\"op\":\"read\",\"key\":\"x\",\"value\":null}]}\n",
    "{\"end\":2}\n",
);

/// One key that two processes touch at once.
const SINGLE: &str = concat!(
    "{\"process\":1,\"op\":\"set\",\"key\":\"x\",\"value\":\"1\",\"invoke\":1,\"return\":9,",
    "\"outcome\":\"done\"}\n",
    "{\"process\":2,\"op\":\"get\",\"key\":\"x\",\"invoke\":2,\"return\":8,\"outcome\":\"done\",",
    "\"result\":null}\n",
    "{\"end\":2}\n",
);

/// An increment whose result nobody knows, beside a transaction that may read it.
const MIXED: &str = concat!(
    "{\"process\":1,\"op\":\"incr\",\"key\":\"n\",\"by\":1,\"invoke\":1,\"outcome\":\"unknown\"}\n",
    "{\"process\":2,\"txn\":2,\"invoke\":3,\"outcome\":\"unknown\",\"ops\":[",
    "{\"op\":\"read\",\"key\":\"n\",\"value\":null}]}\n",
    "{\"end\":2}\n",
);

/// Writes a history down, checks it, and gives exit code and output.
fn check(name: &str, text: &str, more: &[&str]) -> (i32, String) {
    let name = format!("quorate-check-{}-{name}.jsonl", std::process::id());
    let file: PathBuf = std::env::temp_dir().join(name);
    std::fs::write(&file, format!("{HEADER}{text}")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_quorate"));
    let output = command.arg("check").arg(&file).args(more).output().unwrap();
    std::fs::remove_file(&file).unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(said).unwrap())
}

#[test]
fn transactions_are_held_against_strict_serializability() {
    for (name, more) in [("default", &[][..]), ("strict", &["--model", "strict"])] {
        let (code, said) = check(name, STALE, more);
        assert_eq!(code, 1, "{said}");
        assert!(said.starts_with("G-single-realtime: "), "{said}");
        assert!(
            said.contains("1. T2 found \"x\" absent, which T1 overwrote with \"1\": "),
            "{said}"
        );
        assert!(said.ends_with("violation: the history is not strictly serializable\n"), "{said}");
    }
}

#[test]
fn transactions_are_held_against_serializability() {
    let (code, said) = check("loose", STALE, &["--model", "serializable"]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("2 transactions on 1 keys: 2 committed"), "{said}");
    assert!(said.ends_with("ok: the history is serializable\n"), "{said}");
}

#[test]
fn operations_are_held_against_linearizability_unless_a_model_is_named() {
    let (code, said) = check("keys", SINGLE, &[]);
    assert_eq!((code, said.ends_with("ok: every key is linearizable\n")), (0, true), "{said}");
    let (code, said) = check("single", SINGLE, &["--model", "strict"]);
    let ok = said.ends_with("ok: the history is strictly serializable\n");
    assert_eq!((code, ok), (0, true), "{said}");
}

#[test]
fn what_cannot_be_judged_is_undecided() {
    let (code, said) = check("mixed", MIXED, &[]);
    assert_eq!(code, 3, "{said}");
    assert!(said.contains("key \"n\": not judged"), "{said}");
}

/// Two clients that each hold the lock, beside a transaction on another key.
const TWO_HOLDERS: &str = concat!(
    "{\"process\":1,\"op\":\"setnx\",\"key\":\"lock\",\"value\":\"1\",\"invoke\":1,",
    "\"return\":2,\"outcome\":\"done\",\"result\":1}\n",
    "{\"process\":2,\"op\":\"setnx\",\"key\":\"lock\",\"value\":\"2\",\"invoke\":3,",
    "\"return\":4,\"outcome\":\"done\",\"result\":1}\n",
    "{\"process\":3,\"txn\":3,\"invoke\":5,\"return\":6,\"outcome\":\"committed\",",
    "\"ops\":[{\"op\":\"write\",\"key\":\"x\",\"value\":\"1\"}]}\n",
    "{\"end\":3}\n",
);

#[test]
fn a_transaction_hides_no_anomaly_of_single_keys() {
    for model in ["strict", "serializable"] {
        let (code, said) = check(&format!("holders-{model}"), TWO_HOLDERS, &["--model", model]);
        assert_eq!(code, 1, "{said}");
        assert!(said.contains("violation: the history is not "), "{said}");
    }
    let (code, said) = check("holders", TWO_HOLDERS, &[]);
    assert_eq!((code, said.contains("key \"lock\": ")), (1, true), "{said}");
}

#[test]
fn a_bad_file_is_no_verdict() {
    let (code, said) = check("bad", "{\"txn\":1}\n", &[]);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("line 2: "), "{said}");
}

#[test]
fn a_history_is_exported_for_elle() {
    let (code, said) = check("elle", STALE, &["--elle", "rw-register"]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains(r#""type":"ok","value":[["w","x","1"]]"#), "{said}");
    assert!(said.contains("2 transactions for elle-cli --model rw-register"), "{said}");
    let (code, said) = check("elle-lists", STALE, &["--elle", "list-append"]);
    assert_eq!((code, said.as_str()), (0, "0 transactions for elle-cli --model list-append\n"));
}
