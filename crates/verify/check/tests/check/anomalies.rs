//! One history per anomaly, each beside its harmless neighbour.

use quorate_check::{
    Action, Answer, Header, History, Initial, Operation, Options, Verdict, check_history,
    check_history_with,
};

use crate::support::{cas, done, get, history, int, refused, saw, set, unknown};

#[track_caller]
fn accepted(operations: Vec<Operation>) {
    let report = check_history(&history(operations));
    assert_eq!(report.verdict(), Verdict::Ok, "{report}");
}

/// Asserts a violation whose account contains every one of `words`.
#[track_caller]
fn rejected(operations: Vec<Operation>, words: &[&str]) {
    let report = check_history(&history(operations));
    assert_eq!(report.verdict(), Verdict::Violation, "{report}");
    let text = report.to_string();
    for word in words {
        assert!(text.contains(word), "{word:?} is missing in:\n{text}");
    }
}

#[test]
fn an_empty_history_is_fine() {
    accepted(vec![]);
}

#[test]
fn a_read_sees_the_write_before_it() {
    accepted(vec![done(1, 0, 1, set("a"), Answer::Ok), done(2, 2, 3, get(), saw("a"))]);
}

#[test]
fn a_stale_read_is_an_anomaly() {
    let writes = vec![done(1, 0, 1, set("a"), Answer::Ok), done(1, 2, 3, set("b"), Answer::Ok)];
    let mut stale = writes.clone();
    stale.push(done(2, 4, 5, get(), saw("a")));
    rejected(stale, &["an acknowledged write is missing", "cannot be placed", "get -> \"a\""]);
    let mut concurrent = writes;
    concurrent.push(done(2, 2, 5, get(), saw("a")));
    accepted(concurrent);
}

#[test]
fn a_lost_write_is_an_anomaly() {
    rejected(
        vec![done(1, 0, 1, set("a"), Answer::Ok), done(2, 2, 3, get(), saw(""))],
        &["an acknowledged write is missing", "set \"a\" -> OK", "get -> absent"],
    );
}

#[test]
fn a_lost_write_under_other_commands_is_an_anomaly() {
    // The key is deleted now and then, so only the search can tell.
    rejected(
        vec![
            done(1, 0, 1, set("a"), Answer::Ok),
            done(1, 2, 3, Action::Del, int(1)),
            done(1, 4, 5, set("b"), Answer::Ok),
            done(2, 6, 7, get(), saw("")),
        ],
        &["these answers contradict each other", "set \"b\" -> OK"],
    );
}

#[test]
fn a_read_from_nowhere_is_an_anomaly() {
    rejected(
        vec![done(1, 0, 1, set("a"), Answer::Ok), done(2, 2, 3, get(), saw("z"))],
        &["a value that nobody wrote was read"],
    );
    rejected(
        vec![done(2, 2, 3, get(), saw("z")), done(1, 4, 5, set("z"), Answer::Ok)],
        &["a value was read before it was written"],
    );
}

#[test]
fn a_duplicate_increment_is_an_anomaly() {
    rejected(
        vec![
            done(1, 0, 1, Action::Incr(1), int(1)),
            done(2, 2, 3, Action::Incr(1), int(2)),
            done(1, 4, 5, get(), saw("3")),
        ],
        &["an increment took effect twice", "but 3 was read"],
    );
    rejected(
        vec![done(1, 0, 9, Action::Incr(1), int(1)), done(2, 0, 9, Action::Incr(1), int(1))],
        &["cannot be placed", "incr 1 -> 1"],
    );
}

#[test]
fn a_lost_increment_is_an_anomaly() {
    rejected(
        vec![
            done(1, 0, 1, Action::Incr(1), int(1)),
            done(2, 2, 3, Action::Incr(4), int(5)),
            done(1, 4, 5, get(), saw("4")),
        ],
        &["an acknowledged increment is lost"],
    );
}

#[test]
fn unknown_increments_widen_the_total() {
    let with_total = |total: &str| {
        vec![
            done(1, 0, 1, Action::Incr(1), int(1)),
            unknown(2, 0, Action::Incr(2)),
            unknown(3, 0, Action::Incr(2)),
            done(1, 4, 5, get(), saw(total)),
        ]
    };
    for total in ["1", "3", "5"] {
        accepted(with_total(total));
    }
    rejected(with_total("4"), &["cannot be placed"]);
    rejected(with_total("7"), &["lies between 1 and 5, but 7 was read"]);
}

#[test]
fn the_effect_of_a_refused_write_is_an_anomaly() {
    let operations = |seen| {
        vec![
            done(1, 0, 1, set("a"), Answer::Ok),
            refused(2, 2, 3, set("b")),
            done(3, 4, 5, get(), saw(seen)),
        ]
    };
    accepted(operations("a"));
    rejected(operations("b"), &["the effect of a refused operation was read", "-> refused"]);
    rejected(
        vec![
            refused(1, 0, 1, Action::Append("xy".into())),
            done(1, 2, 3, Action::Append("z".into()), int(3)),
        ],
        &["it needs a value of 2 bytes"],
    );
}

#[test]
fn an_unknown_write_may_appear_later() {
    accepted(vec![
        done(1, 0, 1, set("a"), Answer::Ok),
        unknown(2, 2, set("u")),
        done(1, 4, 5, get(), saw("a")),
        done(1, 6, 7, set("b"), Answer::Ok),
        done(1, 8, 9, get(), saw("b")),
        done(3, 10, 11, get(), saw("u")),
    ]);
}

#[test]
fn an_unknown_write_may_not_appear_and_disappear() {
    rejected(
        vec![
            done(1, 0, 1, set("a"), Answer::Ok),
            unknown(2, 2, set("u")),
            done(3, 4, 5, get(), saw("u")),
            done(3, 6, 7, get(), saw("a")),
        ],
        &["get -> \"u\"", "get -> \"a\"", "process 2: set \"u\" -> unknown"],
    );
}

#[test]
fn an_unknown_write_happens_at_most_once() {
    rejected(
        vec![
            unknown(2, 0, set("u")),
            done(3, 4, 5, get(), saw("u")),
            done(3, 6, 7, set("b"), Answer::Ok),
            done(3, 8, 9, get(), saw("u")),
        ],
        &["cannot be placed"],
    );
}

#[test]
fn an_unknown_write_is_not_seen_before_its_invoke() {
    rejected(
        vec![done(3, 0, 1, get(), saw("u")), unknown(2, 2, set("u"))],
        &["a value was read before it was written"],
    );
}

#[test]
fn an_unknown_delete_explains_an_absent_key() {
    accepted(vec![
        done(1, 0, 1, set("a"), Answer::Ok),
        unknown(2, 2, Action::Del),
        done(3, 4, 5, get(), saw("a")),
        done(3, 6, 7, get(), saw("")),
    ]);
}

/// The key is absent already when the unknown `del` has to be placed. The `del` hides the
/// concurrent `set`, which no read saw and which must not come after the `setnx`.
#[test]
fn an_unknown_delete_hides_a_write_though_the_key_is_absent() {
    let operations = |delete| {
        let mut operations = vec![
            done(1, 4, 29, set("3"), Answer::Ok),
            done(3, 15, 30, Action::Incr(1), int(22)),
            done(4, 21, 27, Action::Del, int(0)),
            done(5, 22, 28, Action::SetNx("21".into()), int(1)),
            done(6, 43, 49, get(), saw("22")),
        ];
        operations.extend(delete);
        operations
    };
    accepted(operations(Some(unknown(2, 12, Action::Del))));
    rejected(operations(None), &["cannot be placed"]);
}

#[test]
fn reads_of_two_processes_may_not_go_back_in_time() {
    // Both reads overlap the write, but not each other.
    rejected(
        vec![
            done(1, 0, 1, set("a"), Answer::Ok),
            done(1, 2, 20, set("b"), Answer::Ok),
            done(2, 3, 4, get(), saw("b")),
            done(3, 5, 6, get(), saw("a")),
        ],
        &["get -> \"b\"", "get -> \"a\""],
    );
}

#[test]
fn concurrent_reads_may_see_either_side_of_a_write() {
    accepted(vec![
        done(1, 0, 1, set("a"), Answer::Ok),
        done(1, 2, 20, set("b"), Answer::Ok),
        done(2, 3, 6, get(), saw("b")),
        done(3, 3, 6, get(), saw("a")),
    ]);
}

#[test]
fn equal_times_count_as_concurrent() {
    accepted(vec![done(1, 5, 9, set("a"), Answer::Ok), done(2, 9, 10, get(), saw(""))]);
    rejected(
        vec![done(1, 5, 9, set("a"), Answer::Ok), done(2, 10, 10, get(), saw(""))],
        &["missing"],
    );
}

#[test]
fn two_processes_may_not_both_win_a_lock() {
    let lock = |process| done(process, 0, 9, Action::SetNx("locked".into()), int(1));
    rejected(vec![lock(1), lock(2)], &["it needs the key to be absent"]);
    accepted(vec![
        done(1, 0, 9, cas(None, "1"), int(1)),
        done(2, 0, 9, cas(None, "2"), int(0)),
        done(2, 10, 11, cas(Some("1"), "2"), int(1)),
    ]);
}

#[test]
fn a_lost_update_between_getsets_is_an_anomaly() {
    let swap = |process, value: &str, old: &str| {
        done(process, 0, 9, Action::GetSet(value.into()), saw(old))
    };
    accepted(vec![swap(1, "a", ""), swap(2, "b", "a"), swap(3, "c", "b")]);
    rejected(vec![swap(1, "a", ""), swap(2, "b", "a"), swap(3, "c", "a")], &["getset \"c\""]);
}

#[test]
fn a_write_acknowledged_by_nobody_left_is_found_in_appends() {
    let append = |process, invoke, at, value: &str, length| {
        done(process, invoke, at, Action::Append(value.into()), int(length))
    };
    accepted(vec![append(1, 0, 5, "ab", 2), append(2, 0, 5, "c", 3), {
        done(1, 6, 7, get(), saw("abc"))
    }]);
    rejected(
        vec![append(1, 0, 5, "ab", 2), append(2, 0, 5, "c", 3), {
            done(1, 6, 7, get(), saw("cab"))
        }],
        &["it needs the key to hold \"cab\""],
    );
}

#[test]
fn an_increment_of_text_must_fail() {
    let failed = Answer::Error("ERR value is not an integer or out of range".into());
    accepted(vec![
        done(1, 0, 1, set("x"), Answer::Ok),
        done(1, 2, 3, Action::Incr(1), failed.clone()),
    ]);
    rejected(
        vec![done(1, 0, 1, set("4"), Answer::Ok), done(1, 2, 3, Action::Incr(1), failed)],
        &["a value to which 1 can't be added"],
    );
}

#[test]
fn keys_are_judged_apart() {
    let mut operations = vec![done(1, 0, 1, set("a"), Answer::Ok), done(2, 2, 3, get(), saw(""))];
    operations[1].key = "other".into();
    accepted(operations);
}

#[test]
fn a_history_that_starts_with_data_fixes_it_at_the_first_read() {
    let header = Header { initial: Initial::Any, note: String::new() };
    let check = |operations| {
        let report = check_history(&History { header: header.clone(), operations });
        (report.verdict(), report.to_string())
    };
    let reads =
        |second: &str| vec![done(1, 0, 1, get(), saw("old")), done(1, 2, 3, get(), saw(second))];
    assert_eq!(check(reads("old")).0, Verdict::Ok);
    let (verdict, text) = check(reads("older"));
    assert_eq!(verdict, Verdict::Violation, "{text}");
}

#[test]
fn a_search_beyond_its_budget_is_undecided() {
    // Twelve unknown appends in any order could make up the value that was read, but do not.
    let letter = |i: u64| char::from(b'a' + i as u8).to_string();
    let mut operations: Vec<Operation> =
        (0..12).map(|i| unknown(i, 0, Action::Append(letter(i).into()))).collect();
    operations.push(done(20, 1, 2, Action::Append("x".into()), int(9)));
    operations.push(done(20, 3, 4, Action::Append("x".into()), int(8)));
    let options = Options { budget: 10_000, ..Options::default() };
    let report = check_history_with(&history(operations), &options);
    assert_eq!(report.verdict(), Verdict::Undecided, "{report}");
    assert_eq!(report.verdict().exit_code(), 3);
}

#[test]
fn more_operations_in_flight_than_slots_is_undecided() {
    let operations = (0..200).map(|i| done(i, 0, 100, set("a"), Answer::Ok)).collect();
    let report = check_history(&history(operations));
    assert_eq!(report.verdict(), Verdict::Undecided, "{report}");
    assert!(report.to_string().contains("in flight"), "{report}");
}

#[test]
fn an_account_leaves_out_what_does_not_matter() {
    let mut operations = Vec::new();
    for i in 0..1000_u64 {
        operations.push(done(1, i * 10, i * 10 + 2, set(&format!("v{i}")), Answer::Ok));
        operations.push(done(2, i * 10 + 3, i * 10 + 4, get(), saw(&format!("v{i}"))));
    }
    operations.push(done(3, 6005, 6007, get(), saw("v598")));
    let report = check_history(&history(operations));
    let account = &report.findings.last().expect("the read is stale").text;
    let core = account.split("contradict each other").nth(1).expect("the account has a core");
    let core = core.split("the longest prefix").next().expect("a split has a first part");
    assert!(core.lines().count() <= 4, "{account}");
    assert!(core.contains("get -> \"v598\""), "{account}");
}
