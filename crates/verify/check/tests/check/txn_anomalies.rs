//! Every named anomaly by hand, each beside a history that only looks like it.

use quorate_check::{
    Action, Answer, Bytes, Initial, Model, Operation, Outcome, TxnHistory, TxnOptions, Verdict,
    check_bank, check_transactions, check_txn_history, check_values, check_versions, list_argument,
    split_list,
};

use crate::txn_support::{
    a, aborted, at, expect, l, maybe, r, serializable, stamped, strict, timed, txn, verdict, w,
};

#[test]
fn nothing_is_serializable() {
    expect(&[], "ok", "ok");
}

#[test]
fn g1a_a_read_of_an_aborted_write() {
    expect(&[aborted(1, vec![w("x", "1")]), txn(2, vec![r("x", "1")])], "G1a", "G1a");
    expect(&[aborted(1, vec![a("x", "1")]), txn(2, vec![l("x", "1")])], "G1a", "G1a");
    // Only the committed attempt counts; the reads of an aborted transaction don't.
    let again = [
        aborted(1, vec![r("x", "9"), w("x", "1")]),
        txn(2, vec![w("x", "1")]),
        txn(3, vec![r("x", "1")]),
    ];
    expect(&again, "ok", "ok");
}

#[test]
fn g1b_a_read_of_an_intermediate_write() {
    let twice = txn(1, vec![w("x", "1"), w("x", "2")]);
    expect(&[twice.clone(), txn(2, vec![r("x", "1")])], "G1b", "G1b");
    expect(&[twice, txn(2, vec![r("x", "2")])], "ok", "ok");
    let twice = txn(1, vec![a("x", "1"), a("x", "2")]);
    expect(&[twice.clone(), txn(2, vec![l("x", "1")])], "G1b", "G1b");
    expect(&[twice, txn(2, vec![l("x", "12")])], "ok", "ok");
    // A transaction may see its own intermediate state.
    expect(&[txn(1, vec![a("x", "1"), l("x", "1"), a("x", "2")])], "ok", "ok");
    expect(&[txn(1, vec![w("x", "1"), r("x", "1"), w("x", "2")])], "ok", "ok");
}

#[test]
fn internal_a_transaction_that_does_not_see_itself() {
    expect(&[txn(1, vec![w("x", "1"), r("x", "")])], "internal", "internal");
    expect(&[txn(1, vec![a("x", "1"), l("x", "")])], "internal", "internal");
    expect(&[txn(1, vec![r("x", "1"), w("x", "1")])], "internal", "internal");
    expect(&[txn(1, vec![l("x", "1"), a("x", "1")])], "internal", "internal");
    let two = |second| [txn(1, vec![w("x", "1")]), txn(2, vec![r("x", ""), r("x", second)])];
    expect(&two("1"), "internal", "internal");
    expect(&two(""), "ok", "ok");
    let lists = |ops| [txn(1, vec![a("x", "1")]), txn(2, ops)];
    let moved = vec![l("x", ""), a("x", "2"), l("x", "12")];
    expect(&lists(moved), "internal", "internal");
    expect(&lists(vec![l("x", "1"), a("x", "2"), l("x", "12")]), "ok", "ok");
}

#[test]
fn phantom_a_read_of_what_nobody_wrote() {
    expect(&[txn(1, vec![r("x", "1")])], "phantom-read", "phantom-read");
    expect(&[txn(1, vec![l("x", "1")])], "phantom-read", "phantom-read");
    let any = TxnOptions { initial: Initial::Any, ..TxnOptions::default() };
    let check = |records: &[_]| verdict(&check_transactions(records, any));
    assert_eq!(check(&[txn(1, vec![r("x", "1")]), txn(2, vec![r("x", "1")])]), "ok");
    assert_eq!(check(&[txn(1, vec![r("x", "1")]), txn(2, vec![r("x", "2")])]), "phantom-read");
    assert_eq!(check(&[txn(1, vec![l("x", "ab")]), txn(2, vec![a("x", "c")])]), "ok");
    let behind = [txn(1, vec![a("x", "c")]), txn(2, vec![l("x", "ca")])];
    assert_eq!(check(&behind), "phantom-read");
    // Every read shows the elements that were there at the start.
    let short = [txn(1, vec![l("x", "ab")]), txn(2, vec![l("x", "a")])];
    assert_eq!(check(&short), "incompatible-order");
}

#[test]
fn duplicates_in_a_list() {
    let twice = [txn(1, vec![a("x", "1")]), txn(2, vec![l("x", "11")])];
    expect(&twice, "duplicate-element", "duplicate-element");
    // An element that was appended twice may appear twice; the key can't be judged by values.
    let summary = strict(&[txn(1, vec![a("x", "1")]), txn(2, vec![a("x", "1")])]).unwrap();
    assert_eq!(summary.verdict(), Verdict::Undecided);
    assert!(summary.to_string().contains("more than once"), "{summary}");
    let summary = strict(&[txn(1, vec![a("x", "1")]), txn(2, vec![w("x", "1")])]).unwrap();
    assert_eq!(summary.verdict(), Verdict::Undecided);
}

#[test]
fn incompatible_orders_of_a_list() {
    let appends = [txn(1, vec![a("x", "1")]), txn(2, vec![a("x", "2")])];
    let with = |one, other| {
        let mut records = appends.to_vec();
        records.extend([txn(3, vec![l("x", one)]), txn(4, vec![l("x", other)])]);
        records
    };
    expect(&with("12", "21"), "incompatible-order", "incompatible-order");
    expect(&with("12", "2"), "incompatible-order", "incompatible-order");
    expect(&with("12", "1"), "ok", "ok");
    // One transaction's appends keep their order, and come together.
    let two = txn(1, vec![a("x", "1"), a("x", "2")]);
    let reads = |list| [two.clone(), txn(3, vec![l("x", list)])];
    expect(&reads("21"), "incompatible-order", "incompatible-order");
    expect(&reads("2"), "incompatible-order", "incompatible-order");
    expect(&reads("12"), "ok", "ok");
}

#[test]
fn lost_update() {
    let lists = |second| {
        [
            txn(1, vec![a("x", "1")]),
            txn(2, vec![l("x", "1"), a("x", "2")]),
            txn(3, vec![l("x", second), a("x", "3")]),
        ]
    };
    expect(&lists("1"), "lost-update", "lost-update");
    expect(&lists("12"), "ok", "ok");
    let registers = |second| {
        [
            txn(1, vec![w("x", "1")]),
            txn(2, vec![r("x", "1"), w("x", "2")]),
            txn(3, vec![r("x", second), w("x", "3")]),
        ]
    };
    expect(&registers("1"), "lost-update", "lost-update");
    expect(&registers("2"), "ok", "ok");
    expect(&registers("")[1..2], "phantom-read", "phantom-read");
    // Both read the absent key at the start; but a deletion may have come between.
    let two = [txn(1, vec![r("x", ""), w("x", "1")]), txn(2, vec![r("x", ""), w("x", "2")])];
    expect(&two, "lost-update", "lost-update");
    let between = [two[0].clone(), txn(3, vec![w("x", "")]), two[1].clone()];
    expect(&between, "undecided", "undecided");
}

#[test]
fn g0_writes_interleave() {
    let writes = [txn(1, vec![a("x", "1"), a("y", "1")]), txn(2, vec![a("x", "2"), a("y", "2")])];
    let with = |x, y| {
        let mut records = writes.to_vec();
        records.push(txn(3, vec![l("x", x)]));
        records.push(txn(4, vec![l("y", y)]));
        records
    };
    expect(&with("12", "21"), "G0", "G0");
    expect(&with("12", "12"), "ok", "ok");
    // An append of one transaction in the middle of those of another.
    let split = [
        txn(1, vec![a("x", "1"), a("x", "2")]),
        txn(2, vec![a("x", "3")]),
        txn(3, vec![l("x", "132")]),
    ];
    expect(&split, "G0", "G0");
    let cut = [split[0].clone(), split[1].clone(), txn(3, vec![l("x", "13")])];
    expect(&cut, "G0", "G0");
}

#[test]
fn g0_realtime_writes_against_the_clock() {
    let writes = |first, second, list| {
        [
            timed(1, first, first + 5, vec![a("x", "1")]),
            timed(2, second, second + 5, vec![a("x", "2")]),
            timed(3, 50, 60, vec![l("x", list)]),
        ]
    };
    expect(&writes(10, 20, "21"), "ok", "G0-realtime");
    expect(&writes(10, 20, "12"), "ok", "ok");
    // Times that touch are concurrent.
    expect(&writes(10, 15, "21"), "ok", "ok");
}

#[test]
fn g1c_information_flows_in_a_circle() {
    let lists = |y| [txn(1, vec![a("x", "1"), l("y", "2")]), txn(2, vec![a("y", "2"), l("x", y)])];
    expect(&lists("1"), "G1c", "G1c");
    expect(&lists(""), "ok", "ok");
    let registers =
        |y| [txn(1, vec![w("x", "1"), r("y", "2")]), txn(2, vec![w("y", "2"), r("x", y)])];
    expect(&registers("1"), "G1c", "G1c");
    expect(&registers(""), "ok", "ok");
}

#[test]
fn g1c_realtime_a_read_from_the_future() {
    let read =
        |ended| [timed(1, 10, ended, vec![r("x", "1")]), timed(2, 20, 30, vec![w("x", "1")])];
    expect(&read(15), "ok", "G1c-realtime");
    expect(&read(20), "ok", "ok");
}

#[test]
fn g_single_read_skew() {
    let skew = |y: &str| {
        [
            txn(1, vec![a("x", "1"), a("y", "1")]),
            txn(2, vec![a("x", "2"), a("y", "2")]),
            txn(3, vec![l("x", "1"), l("y", y)]),
            txn(4, vec![l("x", "12"), l("y", "12")]),
        ]
    };
    expect(&skew("12"), "G-single", "G-single");
    expect(&skew("1"), "ok", "ok");
    let registers = |y: &str| {
        [
            txn(1, vec![w("x", "1"), w("y", "1")]),
            txn(2, vec![r("x", "1"), w("x", "2"), w("y", "2")]),
            txn(3, vec![r("x", "1"), r("y", y)]),
        ]
    };
    expect(&registers("2"), "G-single", "G-single");
    expect(&registers("1"), "ok", "ok");
    // The start is a version too.
    let start =
        |y: &str| [txn(1, vec![w("x", "1"), w("y", "1")]), txn(2, vec![r("x", ""), r("y", y)])];
    expect(&start("1"), "G-single", "G-single");
    expect(&start(""), "ok", "ok");
}

#[test]
fn g_single_realtime_stale_reads() {
    // An append that no read shows replaced the version read.
    let list = |seen| [timed(1, 10, 20, vec![a("x", "1")]), timed(2, 30, 40, vec![l("x", seen)])];
    expect(&list(""), "ok", "G-single-realtime");
    expect(&list("1"), "ok", "ok");
    // Two blind writes in the order of real time.
    let register = |seen: &str, began| {
        [
            timed(1, 10, 20, vec![w("x", "1")]),
            timed(2, 30, 40, vec![w("x", "2")]),
            timed(3, began, 60, vec![r("x", seen)]),
        ]
    };
    expect(&register("1", 50), "ok", "G-single-realtime");
    expect(&register("2", 50), "ok", "ok");
    expect(&register("1", 35), "ok", "ok");
    // Other reads show that the key had gone on to 2, and a key never goes back.
    let back = |third: &str| {
        [
            timed(1, 10, 100, vec![w("x", "1")]),
            timed(2, 10, 100, vec![w("x", "2")]),
            timed(3, 20, 30, vec![r("x", "1")]),
            timed(4, 40, 50, vec![r("x", "2")]),
            timed(5, 60, 70, vec![r("x", third)]),
        ]
    };
    expect(&back("1"), "ok", "G-single-realtime");
    expect(&back("2"), "ok", "ok");
}

#[test]
fn g2_item_write_skew() {
    let lists = |y: &str| {
        [
            txn(1, vec![l("x", ""), a("y", "1")]),
            txn(2, vec![l("y", y), a("x", "2")]),
            txn(3, vec![l("x", "2"), l("y", "1")]),
        ]
    };
    expect(&lists(""), "G2-item", "G2-item");
    expect(&lists("1"), "ok", "ok");
    let registers =
        |y: &str| [txn(1, vec![r("x", ""), w("y", "1")]), txn(2, vec![r("y", y), w("x", "2")])];
    expect(&registers(""), "G2-item", "G2-item");
    expect(&registers("1"), "ok", "ok");
}

#[test]
fn g2_item_of_three_and_four_transactions() {
    // Two readers see two independent writes in different orders.
    let fork = |second: &str| {
        [
            txn(1, vec![w("x", "1")]),
            txn(2, vec![w("y", "1")]),
            txn(3, vec![r("x", "1"), r("y", "")]),
            txn(4, vec![r("x", second), r("y", "1")]),
        ]
    };
    expect(&fork(""), "G2-item", "G2-item");
    expect(&fork("1"), "ok", "ok");
    // The write to x has ended when the read of y begins.
    let halves = |second: &str| {
        [
            timed(1, 0, 100, vec![r("x", ""), w("y", "1")]),
            timed(2, 10, 20, vec![w("x", "2")]),
            timed(3, 30, 40, vec![r("y", second)]),
        ]
    };
    expect(&halves(""), "ok", "G2-item-realtime");
    expect(&halves("1"), "ok", "ok");
}

#[test]
fn the_strongest_name_wins() {
    // T1 and T2 in a G0 cycle on x and y; T3 makes longer and weaker ones.
    let records = [
        txn(1, vec![l("z", ""), a("x", "1"), a("y", "1")]),
        txn(2, vec![a("z", "9"), a("x", "2"), a("y", "2")]),
        txn(3, vec![l("x", "12"), l("z", "9")]),
        txn(4, vec![l("y", "21")]),
    ];
    let anomaly = serializable(&records).unwrap_err();
    assert_eq!((anomaly.kind.name(), anomaly.transactions.len()), ("G0", 2), "{anomaly}");
}

#[test]
fn unknown_outcomes_are_what_others_saw() {
    let lost = maybe(1, vec![a("x", "1"), a("y", "1")]);
    // No transaction saw it: it may never have happened.
    expect(&[lost.clone(), txn(2, vec![l("x", ""), l("y", "")])], "ok", "ok");
    let seen = [lost.clone(), txn(2, vec![l("x", "1"), l("y", "1")])];
    expect(&seen, "ok", "ok");
    assert_eq!(strict(&seen).unwrap().inferred, 1);
    // Half of it was seen, so all of it took effect.
    expect(&[lost, txn(2, vec![l("x", "1"), l("y", "")])], "G-single", "G-single");
    // Through another transaction of unknown outcome.
    let chain = [
        maybe(1, vec![w("x", "1"), w("z", "1")]),
        maybe(2, vec![r("x", "1"), w("y", "2")]),
        txn(3, vec![r("y", "2"), r("z", "")]),
    ];
    expect(&chain, "G-single", "G-single");
    expect(&chain[..2], "ok", "ok");
}

#[test]
fn values_written_twice_order_nothing() {
    let records = [
        timed(1, 10, 20, vec![w("x", "1")]),
        timed(2, 30, 40, vec![w("x", "2")]),
        timed(3, 50, 60, vec![w("x", "1")]),
        timed(4, 70, 80, vec![r("x", "1")]),
    ];
    expect(&records, "undecided", "ok");
    assert_eq!(serializable(&records).unwrap().ambiguous_reads, 1);
    let at_once = [
        timed(1, 10, 20, vec![w("x", "1")]),
        timed(2, 15, 25, vec![w("x", "1")]),
        timed(3, 30, 40, vec![r("x", "1")]),
    ];
    expect(&at_once, "undecided", "undecided");
}

#[test]
fn versions_show_what_values_hide() {
    // Blind writes and equal values: only versions tell.
    let skew = |y| {
        [
            stamped(10, txn(1, vec![w("x", "1"), w("y", "1")])),
            stamped(20, txn(2, vec![w("x", "1"), w("y", "1")])),
            stamped(30, txn(3, vec![at(20, r("x", "1")), at(y, r("y", "1"))])),
        ]
    };
    assert_eq!(verdict(&check_values(&skew(10), Model::StrictSerializable)), "undecided");
    assert_eq!(verdict(&check_versions(&skew(10), Model::Serializable)), "G-single");
    assert_eq!(verdict(&check_versions(&skew(20), Model::StrictSerializable)), "ok");
    let summary = check_versions(&skew(20), Model::Serializable).unwrap();
    assert_eq!((summary.versioned_reads, summary.replayed), (2, 3));
}

#[test]
fn versions_in_every_kind_of_cycle() {
    let name = |records: &[_]| verdict(&check_versions(records, Model::StrictSerializable));
    let g1c = [
        stamped(10, txn(1, vec![w("x", "1"), at(20, r("y", "2"))])),
        stamped(20, txn(2, vec![at(10, r("x", "1")), w("y", "2")])),
    ];
    assert_eq!(name(&g1c), "G1c");
    let skew = [
        stamped(10, txn(1, vec![at(1, r("x", "")), w("y", "1")])),
        stamped(20, txn(2, vec![at(1, r("y", "")), w("x", "2")])),
    ];
    assert_eq!(name(&skew), "G2-item");
    let lost = [
        stamped(10, txn(1, vec![w("x", "1")])),
        stamped(20, txn(2, vec![at(10, r("x", "1")), w("x", "2")])),
        stamped(30, txn(3, vec![at(10, r("x", "1")), w("x", "3")])),
    ];
    assert_eq!(name(&lost), "G-single");
    // Writes with timestamps against the clock: real time alone forbids them.
    let writes = |one, other| {
        [
            stamped(one, timed(1, 10, 20, vec![w("x", "1")])),
            stamped(other, timed(2, 30, 40, vec![w("x", "2")])),
        ]
    };
    assert_eq!(name(&writes(20, 10)), "G0-realtime");
    assert_eq!(name(&writes(10, 20)), "ok");
    assert_eq!(verdict(&check_versions(&writes(20, 10), Model::Serializable)), "ok");
}

#[test]
fn versions_that_lie() {
    let name = |records: &[_]| verdict(&check_versions(records, Model::Serializable));
    let write = stamped(10, txn(1, vec![w("x", "1"), w("x", "2")]));
    let reads = |version, value: &str| {
        [write.clone(), stamped(30, txn(2, vec![at(version, r("x", value))]))]
    };
    assert_eq!(name(&reads(10, "2")), "ok");
    assert_eq!(name(&reads(10, "1")), "G1b");
    assert_eq!(name(&reads(10, "3")), "wrong-version");
    assert_eq!(name(&reads(10, "")), "wrong-version");
    assert_eq!(name(&reads(11, "2")), "phantom-read");
    assert_eq!(name(&reads(9, "3")), "phantom-read");
    let dirty = stamped(10, aborted(1, vec![w("x", "2")]));
    let read = stamped(30, txn(2, vec![at(10, r("x", "2"))]));
    assert_eq!(name(&[dirty, read]), "G1a");
    let twins = |t, invoke| {
        let first = stamped(10, timed(1, 0, 5, vec![w("x", "1")]));
        [first, stamped(t, timed(2, invoke, 9, vec![w("y", "1")]))]
    };
    assert_eq!((name(&twins(10, 6)), name(&twins(11, 6))), ("duplicate-timestamp", "ok"));
}

#[test]
fn those_that_share_a_timestamp_took_effect_in_the_order_of_their_answers() {
    let name = |records: &[_]| verdict(&check_versions(records, Model::StrictSerializable));
    let pair = |answered| {
        let first = stamped(10, timed(1, 0, 5, vec![a("x", "1")]));
        let second = timed(2, 3, answered, vec![l("x", "1"), a("x", "2")]);
        [first, stamped(10, second)]
    };
    assert_eq!((name(&pair(6)), name(&pair(4))), ("ok", "timestamp-order"));
    // Where a third one stands whose client knows nothing can't be told.
    let third = |seen| {
        let [first, second] = pair(6);
        let unknown = maybe(3, vec![a("x", "3"), a("y", "3")]);
        let reader = timed(4, 20, 30, vec![at(10, l("y", "3")), l("x", seen)]);
        [first, second, unknown, stamped(40, reader)]
    };
    assert_eq!((name(&third("123")), name(&third("312"))), ("ok", "ok"));
}

#[test]
fn the_order_of_timestamps_is_replayed() {
    let name = |records: &[_]| verdict(&check_versions(records, Model::StrictSerializable));
    let stale = |own| {
        [
            stamped(10, txn(1, vec![w("x", "1")])),
            stamped(20, txn(2, vec![w("x", "2")])),
            stamped(own, txn(3, vec![at(10, r("x", "1"))])),
        ]
    };
    // The clients could not tell: T3 may come between the others. The timestamp of T3 does not.
    assert_eq!((name(&stale(30)), name(&stale(15))), ("timestamp-order", "ok"));
    assert_eq!(name(&stale(5)), "timestamp-order");
    // Without versions, by values alone.
    let blind = |own| {
        let mut records = stale(own);
        records[2].ops = vec![r("x", "1")];
        records
    };
    assert_eq!((name(&blind(30)), name(&blind(15))), ("timestamp-order", "ok"));
    let lists = |seen| {
        [
            stamped(10, txn(1, vec![a("x", "1")])),
            stamped(20, txn(2, vec![a("x", "2")])),
            stamped(30, txn(3, vec![at(20, l("x", seen))])),
        ]
    };
    assert_eq!((name(&lists("12")), name(&lists("2"))), ("ok", "timestamp-order"));
    // An absent key may carry any moment before its first write or after its deletion.
    let gone = |version| {
        [
            stamped(10, txn(1, vec![w("x", "1")])),
            stamped(20, txn(2, vec![w("x", "")])),
            stamped(30, txn(3, vec![at(version, r("x", ""))])),
        ]
    };
    assert_eq!((name(&gone(20)), name(&gone(25))), ("ok", "ok"));
    assert_eq!((name(&gone(5)), name(&gone(15))), ("timestamp-order", "wrong-version"));
}

#[test]
fn timestamps_of_unknown_transactions_are_learned_from_readers() {
    let records = |second| {
        [
            maybe(1, vec![w("x", "1"), w("y", "1")]),
            stamped(20, txn(2, vec![at(10, r("x", "1"))])),
            stamped(30, txn(3, vec![at(second, r("y", "1"))])),
        ]
    };
    let name = |records: &[_]| verdict(&check_versions(records, Model::StrictSerializable));
    assert_eq!((name(&records(10)), name(&records(11))), ("ok", "wrong-version"));
    // A write that no transaction saw may have any place, also one that is known.
    let unseen = [stamped(10, maybe(1, vec![w("x", "1")])), stamped(20, txn(2, vec![r("x", "")]))];
    assert_eq!(name(&unseen), "ok");
}

#[test]
fn a_cycle_reads_as_sentences() {
    let records = [
        timed(1, 1_000, 2_000, vec![w("x", "1")]),
        timed(2, 3_000, 4_000, vec![w("x", "2")]),
        timed(3, 5_000, 6_000, vec![r("x", "1")]),
    ];
    let expected = "\
G-single-realtime: a read missed a write that it had to see
  T3  0.000005000s .. 0.000006000s  process 3, committed: read \"x\" = \"1\"
  T2  0.000003000s .. 0.000004000s  process 2, committed: wrote \"x\" = \"2\"
1. T3 read \"x\" = \"1\", which T2 overwrote with \"2\" (T1, which wrote \"x\" = \"1\", had ended, \
at 0.000002000s, before T2, which wrote \"x\" = \"2\", began, at 0.000003000s): T3 must come \
before T2.
2. T2 had ended, at 0.000004000s, before T3 began, at 0.000005000s: T2 must come before T3.
3. So T3 would have to come before itself: no order explains this.";
    assert_eq!(strict(&records).unwrap_err().to_string(), expected);
    let records = [
        txn(1, vec![a("x", "1"), a("y", "1")]),
        txn(2, vec![l("x", "1"), l("y", "")]),
        aborted(3, vec![a("x", "2")]),
    ];
    let expected = "\
G-single: a read missed a write that it had to see
  T2  0.000000000s .. 0.000001000s  process 2, committed: read \"x\" = [\"1\"]; read \"y\" = []
  T1  0.000000000s .. 0.000001000s  process 1, committed: appended \"1\" to \"x\"; appended \
\"1\" to \"y\"
1. T2 read \"y\" = [], which lacks \"1\", appended by T1: T2 must come before T1.
2. T1 appended \"1\" to \"x\", and T2 read \"x\" = [\"1\"]: T1 must come before T2.
3. So T2 would have to come before itself: no order explains this.";
    assert_eq!(strict(&records).unwrap_err().to_string(), expected);
}

#[test]
fn every_kind_of_edge_has_its_sentence() {
    let cases: [(Vec<_>, &[&str]); 6] = [
        (
            vec![
                txn(1, vec![a("x", "1"), a("y", "1")]),
                txn(2, vec![a("x", "2"), a("y", "2")]),
                txn(3, vec![l("x", "12")]),
                txn(4, vec![l("y", "21")]),
            ],
            &["and T3 read them in this order", "and T4 read them in this order"],
        ),
        (
            vec![
                txn(1, vec![a("x", "1"), l("y", "2")]),
                txn(2, vec![l("x", ""), a("x", "3"), a("y", "2")]),
                txn(3, vec![l("x", "1")]),
            ],
            &["which no read shows, so it follows the longest read, T3's"],
        ),
        (
            vec![
                timed(1, 10, 20, vec![a("x", "1")]),
                timed(2, 30, 40, vec![l("x", ""), a("x", "2")]),
            ],
            &["T2 read \"x\" = [], which lacks \"1\", appended by T1"],
        ),
        (
            vec![
                txn(1, vec![w("x", "1"), r("y", "2")]),
                txn(2, vec![r("x", "1"), w("x", "2"), w("y", "2")]),
            ],
            &["which T2 read", "T2 wrote \"y\" = \"2\", and T1 read that"],
        ),
        (
            vec![
                txn(1, vec![r("x", ""), w("x", "1"), r("y", "2")]),
                txn(2, vec![w("x", "2"), w("y", "2")]),
            ],
            &["T1 found \"x\" absent, which T2 overwrote"],
        ),
        (
            vec![
                stamped(10, txn(1, vec![w("x", "1"), at(20, r("y", "2"))])),
                stamped(20, txn(2, vec![w("x", "1"), w("y", "2")])),
                txn(3, vec![w("x", "1")]),
            ],
            &["at version 10.0~0, which T2 overwrote with \"1\" at version 20.0~0"],
        ),
    ];
    for (records, texts) in cases {
        let text = match check_transactions(&records, Model::StrictSerializable) {
            Err(anomaly) => anomaly.to_string(),
            Ok(summary) => panic!("{summary}\n{records:#?}"),
        };
        for part in texts {
            assert!(text.contains(part), "{part:?} is missing in:\n{text}");
        }
    }
}

#[test]
fn operations_on_single_keys_are_transactions_too() {
    let operation = |key: &str, invoke, action, answer| Operation {
        process: 9,
        key: key.into(),
        action,
        invoke,
        outcome: Outcome::Done { at: invoke + 5, answer },
    };
    let value = |text: &str| Answer::Value(Some(text.into()));
    let judge = |operations: Vec<Operation>, transactions| {
        let history = TxnHistory { operations, transactions, ..TxnHistory::default() };
        check_txn_history(&history, Model::StrictSerializable)
    };
    let check = |operations, transactions| judge(operations, transactions).transactions;
    let set = operation("x", 10, Action::Set("1".into()), Answer::Ok);
    let stale = timed(1, 20, 30, vec![r("x", "")]);
    assert_eq!(verdict(&check(vec![set.clone()], vec![stale.clone()])), "G-single-realtime");
    assert_eq!(verdict(&check(vec![set], vec![timed(1, 12, 30, vec![r("x", "")])])), "ok");
    let append = operation("x", 10, Action::Append(list_argument(b"1").into()), Answer::Integer(2));
    let get = |text| operation("x", 40, Action::Get, value(text));
    let appended = timed(1, 20, 30, vec![l("x", "1"), a("x", "2")]);
    let lists = |text| check(vec![append.clone(), get(text)], vec![appended.clone()]);
    assert_eq!((verdict(&lists(",1,2")), verdict(&lists(",2"))), ("ok", "incompatible-order"));
    assert_eq!(lists("1,2").unwrap().verdict(), Verdict::Undecided);
    let incr = |at, sum| operation("n", at, Action::Incr(1), Answer::Integer(sum));
    let read = |value| vec![timed(1, 50, 60, vec![r("n", value)])];
    let counted = vec![incr(10, 1), incr(20, 2), incr(30, 3)];
    assert_eq!(verdict(&check(counted, read("3"))), "ok");
    let counted = vec![incr(10, 1), incr(20, 2), incr(20, 2)];
    assert_eq!(verdict(&check(counted, read("2"))), "lost-update");
    let del = operation("x", 40, Action::Del, Answer::Integer(0));
    let written = timed(1, 20, 30, vec![w("x", "1")]);
    assert_eq!(verdict(&check(vec![del], vec![written])), "G-single-realtime");
    let cas = |n| {
        let action = Action::Cas { expected: Some("7".into()), value: "8".into() };
        operation("x", 40, action, Answer::Integer(n))
    };
    let nothing = vec![timed(1, 20, 30, vec![r("x", "")])];
    assert_eq!(verdict(&check(vec![cas(0)], nothing.clone())), "ok");
    assert_eq!(verdict(&check(vec![cas(1)], nothing)), "phantom-read");
    let lost = Operation { outcome: Outcome::Unknown, ..incr(10, 1) };
    assert_eq!(judge(vec![lost.clone()], read("1")).verdict(), Verdict::Undecided);
    // A key that no transaction reads is judged by itself.
    let beside = vec![timed(1, 20, 30, vec![w("x", "1")])];
    assert_eq!(judge(vec![lost.clone(), incr(40, 2)], beside.clone()).verdict(), Verdict::Ok);
    assert_eq!(judge(vec![lost, incr(40, 3)], beside).verdict(), Verdict::Violation);
}

#[test]
fn lists_in_redis_strings() {
    let list = |text: &str| split_list(Some(text.as_bytes()));
    let elements = |texts: &[&str]| Some(texts.iter().map(|t| Bytes::from(*t)).collect());
    assert_eq!(split_list(None), elements(&[]));
    assert_eq!(list(""), elements(&[]));
    assert_eq!(list(",a,b,c"), elements(&["a", "b", "c"]));
    assert_eq!(list("a,b"), None);
    assert_eq!(list_argument(b"a"), b",a");
}

#[test]
fn a_bank_keeps_its_sum() {
    let accounts: Vec<Bytes> = vec!["a".into(), "b".into()];
    let check = |records: &[_]| check_bank(records, &accounts, 100);
    let start = txn(1, vec![w("a", "60:1"), w("b", "40")]);
    let move_5 = txn(2, vec![r("a", "60:1"), r("b", "40"), w("a", "55"), w("b", "45")]);
    let audit = |a, b| txn(3, vec![r("a", a), r("b", b)]);
    let good = [start.clone(), move_5.clone(), audit("55", "45")];
    let summary = check(&good).unwrap();
    assert_eq!((summary.audits, summary.transfers), (2, 1));
    let names = |records: &[_]| check(records).map_err(|anomaly| anomaly.kind.name());
    assert_eq!(names(&[start.clone(), audit("60", "45")]), Err("bank-sum"));
    assert_eq!(names(&[start.clone(), audit("60", "x")]), Err("bank-sum"));
    assert_eq!(names(&[start.clone(), audit("100", "")]).unwrap().audits, 1);
    let minted = txn(2, vec![r("a", "60:1"), r("b", "40"), w("a", "65")]);
    assert_eq!(names(&[start.clone(), minted.clone()]), Err("bank-sum"));
    let aborted = aborted(2, minted.ops);
    assert_eq!(names(&[start, aborted]).unwrap().transfers, 0);
}
