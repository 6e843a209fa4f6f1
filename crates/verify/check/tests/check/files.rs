//! The file format and the recorder.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use quorate_check::{
    Action, Answer, Bytes, Header, History, HistoryWriter, Initial, Model, Operation, Outcome,
    Recorder, TxnHistory, TxnOp, TxnRecord, Verdict, check_history, check_txn_history,
    read_history, read_txn_history,
};

use crate::support::{cas, done, get, int, refused, saw, set, unknown};
use crate::txn_support::{a, aborted, at, l, maybe, r, stamped, timed, ts, w};

const HEADER: &str = "{\"format\":\"quorate-history\",\"version\":1}\n";

fn written(history: &History) -> String {
    let mut writer =
        HistoryWriter::new(Vec::new(), &history.header).expect("a vector takes everything");
    for operation in &history.operations {
        writer.write(operation).expect("a vector takes everything");
    }
    let bytes = writer.finish().expect("a vector takes everything");
    String::from_utf8(bytes).expect("JSON is UTF-8")
}

fn every_kind() -> Vec<Operation> {
    let mut binary = done(1, 1, 2, Action::Set(vec![0, 255].into()), Answer::Ok);
    binary.key = vec![200].into();
    vec![
        binary,
        done(1, 3, 4, get(), saw("")),
        done(1, 3, 4, get(), Answer::Value(Some(vec![0, 255].into()))),
        done(1, 5, 6, Action::Del, int(0)),
        done(1, 5, 6, Action::Incr(-3), int(i64::MIN)),
        done(1, 5, 6, Action::Incr(1), Answer::Error("ERR overflow".into())),
        done(1, 5, 6, Action::GetSet("x".into()), saw("y")),
        done(1, 5, 6, Action::SetNx("x".into()), int(1)),
        done(1, 5, 6, cas(None, "v"), int(1)),
        done(1, 5, 6, cas(Some("u"), "v"), int(0)),
        done(1, 5, 6, Action::Append("\"\n".into()), int(2)),
        refused(u64::MAX, 7, u64::MAX, set("r")),
        unknown(2, 8, set("u")),
    ]
}

#[test]
fn what_is_written_reads_back() {
    let header = Header { initial: Initial::Any, note: "seed 7".into() };
    let history = History { header, operations: every_kind() };
    let text = written(&history);
    assert_eq!(read_history(text.as_bytes()).unwrap(), history, "{text}");
}

#[test]
fn the_format_is_the_documented_one() {
    let mut history = History::default();
    history.operations.push(done(1, 100, 180, set("7"), Answer::Ok));
    history.operations.push(done(2, 190, 230, get(), saw("7")));
    history.operations.push(done(2, 190, 230, cas(None, "8"), int(0)));
    history.operations.push(unknown(1, 240, Action::Incr(1)));
    let expected = concat!(
        "{\"format\":\"quorate-history\",\"version\":1,\"initial\":\"absent\"}\n",
        "{\"process\":1,\"op\":\"set\",\"key\":\"k\",\"value\":\"7\",\"invoke\":100,",
        "\"return\":180,\"outcome\":\"done\"}\n",
        "{\"process\":2,\"op\":\"get\",\"key\":\"k\",\"invoke\":190,\"return\":230,",
        "\"outcome\":\"done\",\"result\":\"7\"}\n",
        "{\"process\":2,\"op\":\"cas\",\"key\":\"k\",\"value\":\"8\",\"expected\":null,",
        "\"invoke\":190,\"return\":230,\"outcome\":\"done\",\"result\":0}\n",
        "{\"process\":1,\"op\":\"incr\",\"key\":\"k\",\"by\":1,\"invoke\":240,",
        "\"outcome\":\"unknown\"}\n",
        "{\"end\":4}\n",
    );
    assert_eq!(written(&history), expected);
}

#[test]
fn a_broken_file_names_the_line_and_the_reason() {
    let cases = [
        ("", 1, "the file is empty"),
        ("{\"format\":\"other\",\"version\":1}\n", 1, "\"format\" is \"other\""),
        ("{\"format\":\"quorate-history\",\"version\":2}\n", 1, "\"version\" is 2"),
        ("[]\n", 1, "the first line must be"),
        (HEADER, 2, "recorder was cut off"),
        ("H\nnonsense\n", 3, "not a JSON object"),
        ("H{\"end\":1}\n", 2, "says 1 operations, but 0 were read"),
        ("H{\"end\":0}\n{\"end\":0}\n", 3, "nothing may follow"),
        ("HO,\"op\":\"get\",\"outcome\":\"done\"}", 2, "needs a \"result\""),
        ("HO,\"op\":\"get\",\"outcome\":\"done\",\"result\":5}", 2, "can't have the result 5"),
        ("HO,\"op\":\"del\",\"outcome\":\"done\",\"result\":2}", 2, "can't have the result 2"),
        ("HO,\"op\":\"lpush\",\"outcome\":\"unknown\"}", 2, "\"op\" is \"lpush\""),
        ("HO,\"op\":\"set\",\"outcome\":\"unknown\"}", 2, "\"set\" needs \"value\""),
        ("HO,\"op\":\"cas\",\"value\":\"v\",\"outcome\":\"unknown\"}", 2, "needs \"expected\""),
        ("HO,\"op\":\"get\",\"by\":1,\"outcome\":\"unknown\"}", 2, "takes no \"by\""),
        ("HO,\"op\":\"get\",\"outcome\":\"lost\"}", 2, "lost"),
        ("HO,\"op\":\"get\",\"outcome\":\"unknown\",\"result\":\"x\"}", 2, "only for the outcome"),
        ("HO,\"op\":\"get\",\"outcome\":\"unknown\",\"extra\":1}", 2, "extra"),
        ("HO,\"op\":\"set\",\"value\":{\"hex\":\"0g\"},\"outcome\":\"unknown\"}", 2, "pairs of"),
        (
            "H{\"process\":1,\"op\":\"del\",\"key\":\"k\",\"invoke\":9,\"return\":8,\
          \"outcome\":\"refused\"}",
            2,
            "\"return\" lies before",
        ),
        (
            "H{\"process\":1,\"op\":\"del\",\"key\":\"k\",\"invoke\":9,\"outcome\":\"refused\"}",
            2,
            "\"return\" is missing",
        ),
        ("H{\"process\":1,\"op\":\"del\",\"invoke\":9,\"outcome\":\"unknown\"}", 2, "key"),
    ];
    for (text, line, reason) in cases {
        let text = text
            .replace("HO", "H{\"process\":1,\"key\":\"k\",\"invoke\":1,\"return\":2")
            .replace('H', HEADER);
        let error = read_history(text.as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with(&format!("line {line}: ")), "{text}\n{error}");
        assert!(error.contains(reason), "{text}\n{error}");
    }
}

#[test]
fn no_prefix_and_no_flipped_byte_of_a_file_panics() {
    let text = written(&History { header: Header::default(), operations: every_kind() });
    let bytes = text.as_bytes();
    for length in 0..bytes.len() - 1 {
        assert!(read_history(&bytes[..length]).is_err(), "a prefix of {length} bytes was read");
    }
    for at in 0..bytes.len() {
        let mut bytes = bytes.to_vec();
        bytes[at] ^= 0x11;
        if let Ok(history) = read_history(&bytes[..]) {
            check_history(&history);
        }
    }
}

#[test]
fn a_recorder_orders_events_even_if_its_clock_stands_still() {
    let recorder = Recorder::with_clock(History::default(), || 5);
    let write = recorder.invoke(1, "k", set("a"));
    recorder.done(write, Answer::Ok);
    let read = recorder.invoke(2, "k", get());
    recorder.done(read, saw(""));
    let history = recorder.finish().unwrap();
    assert_eq!(check_history(&history).verdict(), Verdict::Violation);
}

#[test]
fn a_forgotten_invocation_is_unknown() {
    let recorder = Recorder::new(History::default());
    let _ = recorder.invoke(1, "k", set("a"));
    let read = recorder.invoke(2, "k", get());
    recorder.done(read, saw("a"));
    let refused = recorder.invoke(2, "k", set("b"));
    recorder.refused(refused);
    let lost = recorder.invoke(2, "k", set("c"));
    recorder.unknown(lost);
    let history = recorder.finish().unwrap();
    let unknown = history.operations.iter().filter(|o| o.outcome == Outcome::Unknown).count();
    assert_eq!((history.operations.len(), unknown), (4, 2));
    assert_eq!(check_history(&history).verdict(), Verdict::Ok);
}

#[test]
fn threads_on_a_real_counter_give_a_linearizable_history() {
    let writer = HistoryWriter::new(Vec::new(), &Header::default()).unwrap();
    let recorder = Arc::new(Recorder::new(writer));
    let counter = AtomicU64::new(0);
    thread::scope(|scope| {
        for process in 0..4 {
            let (recorder, counter) = (&recorder, &counter);
            scope.spawn(move || {
                for _ in 0..500 {
                    let invocation = recorder.invoke(process, "n", Action::Incr(1));
                    let before = counter.fetch_add(1, Ordering::SeqCst);
                    recorder.done(invocation, int(before as i64 + 1));
                }
            });
        }
    });
    let recorder = Arc::into_inner(recorder).unwrap();
    let bytes = recorder.finish().unwrap().finish().unwrap();
    let history = read_history(&bytes[..]).unwrap();
    assert_eq!(history.operations.len(), 2000);
    let report = check_history(&history);
    assert_eq!(report.verdict(), Verdict::Ok, "{report}");
}

#[test]
fn an_answer_no_reader_would_accept_is_not_written() {
    let mut writer = HistoryWriter::new(Vec::new(), &Header::default()).unwrap();
    assert!(writer.write(&done(1, 1, 2, get(), int(3))).is_err());
}

fn every_kind_of_transaction() -> Vec<TxnRecord> {
    let binary = TxnOp::write(vec![200], Some(vec![0, 255].into()));
    let list = TxnOp::read_list("l", vec!["a".into(), vec![255].into()]);
    vec![
        stamped(7, timed(1, 100, 180, vec![at(5, r("x", "1")), at(6, l("y", "ab")), w("x", "2")])),
        timed(2, 1, 2, vec![r("x", ""), w("x", ""), a("y", "c"), l("z", "")]),
        timed(u64::MAX, 0, u64::MAX, vec![binary, list]),
        aborted(3, vec![w("x", "3")]),
        maybe(4, vec![]),
    ]
}

fn written_txns(history: &TxnHistory) -> String {
    let mut writer =
        HistoryWriter::new(Vec::new(), &history.header).expect("a vector takes everything");
    for operation in &history.operations {
        writer.write(operation).expect("a vector takes everything");
    }
    for record in &history.transactions {
        writer.write_transaction(record).expect("a vector takes everything");
    }
    let bytes = writer.finish().expect("a vector takes everything");
    String::from_utf8(bytes).expect("JSON is UTF-8")
}

#[test]
fn transactions_read_back() {
    let history = TxnHistory {
        header: Header::default(),
        operations: every_kind(),
        transactions: every_kind_of_transaction(),
    };
    let text = written_txns(&history);
    assert_eq!(read_txn_history(text.as_bytes()).unwrap(), history, "{text}");
    let error = read_history(text.as_bytes()).unwrap_err().to_string();
    assert!(error.contains("a transaction, where only operations are expected"), "{error}");
    // Both readers accept a history without transactions.
    let history = TxnHistory { operations: every_kind(), ..TxnHistory::default() };
    let text = written_txns(&history);
    assert_eq!(read_txn_history(text.as_bytes()).unwrap(), history);
    assert_eq!(read_history(text.as_bytes()).unwrap().operations, history.operations);
}

#[test]
fn the_format_of_transactions_is_the_documented_one() {
    let transactions = every_kind_of_transaction();
    let history = TxnHistory { transactions, ..TxnHistory::default() };
    let expected = concat!(
        "{\"format\":\"quorate-history\",\"version\":1,\"initial\":\"absent\"}\n",
        "{\"process\":1,\"txn\":1,\"invoke\":100,\"return\":180,\"outcome\":\"committed\",",
        "\"timestamp\":[7,0],\"ops\":[",
        "{\"op\":\"read\",\"key\":\"x\",\"value\":\"1\",\"version\":[5,0]},",
        "{\"op\":\"list\",\"key\":\"y\",\"values\":[\"a\",\"b\"],\"version\":[6,0]},",
        "{\"op\":\"write\",\"key\":\"x\",\"value\":\"2\"}]}\n",
        "{\"process\":2,\"txn\":2,\"invoke\":1,\"return\":2,\"outcome\":\"committed\",\"ops\":[",
        "{\"op\":\"read\",\"key\":\"x\",\"value\":null},",
        "{\"op\":\"write\",\"key\":\"x\",\"value\":null},",
        "{\"op\":\"append\",\"key\":\"y\",\"value\":\"c\"},",
        "{\"op\":\"list\",\"key\":\"z\",\"values\":[]}]}\n",
        "{\"process\":18446744073709551615,\"txn\":18446744073709551615,\"invoke\":0,",
        "\"return\":18446744073709551615,\"outcome\":\"committed\",\"ops\":[",
        "{\"op\":\"write\",\"key\":{\"hex\":\"c8\"},\"value\":{\"hex\":\"00ff\"}},",
        "{\"op\":\"list\",\"key\":\"l\",\"values\":[\"a\",{\"hex\":\"ff\"}]}]}\n",
        "{\"process\":3,\"txn\":3,\"invoke\":0,\"return\":1000,\"outcome\":\"aborted\",\"ops\":[",
        "{\"op\":\"write\",\"key\":\"x\",\"value\":\"3\"}]}\n",
        "{\"process\":4,\"txn\":4,\"invoke\":0,\"outcome\":\"unknown\",\"ops\":[]}\n",
        "{\"end\":5}\n",
    );
    assert_eq!(written_txns(&history), expected);
}

#[test]
fn a_broken_transaction_names_the_line_and_the_reason() {
    let cases = [
        ("\"outcome\":\"done\",\"ops\":[]", "done"),
        ("\"outcome\":\"committed\",\"ops\":[]", "\"return\" is missing"),
        ("\"return\":4,\"outcome\":\"aborted\",\"ops\":[]", "\"return\" lies before"),
        ("\"outcome\":\"unknown\"", "ops"),
        ("\"outcome\":\"unknown\",\"ops\":[],\"key\":\"x\"", "key"),
        ("OP\"get\",\"key\":\"x\"}]", "\"op\" is \"get\""),
        ("OP\"read\",\"key\":\"x\"}]", "\"read\" needs \"value\""),
        ("OP\"list\",\"key\":\"x\"}]", "\"list\" needs \"values\""),
        ("OP\"list\",\"key\":\"x\",\"value\":\"1\"}]", "takes no \"value\""),
        ("OP\"write\",\"key\":\"x\",\"values\":[]}]", "\"write\" needs \"value\""),
        ("OP\"append\",\"key\":\"x\",\"value\":null}]", "not null"),
        ("OP\"append\",\"key\":\"x\",\"value\":\"1\",\"version\":[1,2]}]", "takes no \"version\""),
    ];
    for (text, reason) in cases {
        let text = text.replace("OP", "\"outcome\":\"unknown\",\"ops\":[{\"op\":");
        let text = format!("{HEADER}{{\"process\":1,\"txn\":1,\"invoke\":5,{text}}}\n");
        let error = read_txn_history(text.as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with("line 2: "), "{text}\n{error}");
        assert!(error.contains(reason), "{text}\n{error}");
    }
}

#[test]
fn no_flipped_byte_of_a_file_of_transactions_panics() {
    let transactions = every_kind_of_transaction();
    let history = TxnHistory { transactions, operations: every_kind(), ..TxnHistory::default() };
    let text = written_txns(&history);
    for at in 0..text.len() {
        let mut bytes = text.as_bytes().to_vec();
        bytes[at] ^= 0x11;
        if let Ok(history) = read_txn_history(&bytes[..]) {
            let _ = check_txn_history(&history, Model::StrictSerializable);
        }
    }
}

#[test]
fn a_recorder_records_transactions() {
    let recorder = Recorder::with_clock(TxnHistory::default(), || 5);
    let write = recorder.begin(1);
    recorder.intend(&write, vec![w("x", "1")]);
    recorder.committed(write, Some(ts(3)), vec![r("x", ""), w("x", "1")]);
    let single = recorder.invoke(2, "x", get());
    recorder.done(single, saw("1"));
    let lost = recorder.begin(2);
    recorder.intend(&lost, vec![w("x", "2")]);
    recorder.undecided(lost, Some(ts(4)));
    let forgotten = recorder.begin(3);
    recorder.intend(&forgotten, vec![w("x", "3")]);
    let refused = recorder.begin(4);
    recorder.intend(&refused, vec![w("x", "4")]);
    recorder.aborted(refused);
    let read = |value: &str| {
        let txn = recorder.begin(5);
        recorder.committed(txn, None, vec![r("x", value)]);
    };
    read("3");
    let history = recorder.finish().unwrap();
    let summary = check_txn_history(&history, Model::StrictSerializable).transactions.unwrap();
    let counts = (summary.committed, summary.unknown, summary.aborted, summary.inferred);
    assert_eq!(counts, (3, 2, 1, 1), "{summary}");
    assert_eq!(history.transactions[1].timestamp, Some(ts(4)));
    let single: Bytes = "x".into();
    assert_eq!(history.operations[0].key, single);
}

#[test]
fn a_history_of_operations_takes_no_transactions() {
    let recorder = Recorder::new(History::default());
    let txn = recorder.begin(1);
    recorder.aborted(txn);
    assert!(recorder.finish().is_err());
}
