//! Transactions over several keys as engines use them: watches, versions, what is read, what an
//! engine that changes one key at a time answers instead.

use quorate_commands::{
    Block, CROSSKEY, MapWorkspace, Op, OwnedCall, Reply, Run, Watch, flag, table,
};
use quorate_machine::{Access, Change, Command, Content, Current, ValueKind, Verdict};
use quorate_types::limits::REPLY_BYTES_MAX;
use quorate_types::{Timestamp, UnixMillis, WriterId};

const NOW: UnixMillis = UnixMillis(1_000_000);

fn call(line: &str) -> OwnedCall {
    OwnedCall::new(line.split(' ').map(str::as_bytes)).expect(line)
}

fn block(watches: &[(&str, bool, u64)], lines: &[&str]) -> Op {
    let watch = |&(key, existed, version): &(&str, bool, u64)| {
        (key.as_bytes().into(), Watch { existed, timestamp: timestamp(version) })
    };
    Op::Block(Block {
        watches: watches.iter().map(watch).collect(),
        calls: lines.iter().map(|line| call(line)).collect(),
    })
}

fn versions(keys: &[&str]) -> Op {
    Op::Versions(keys.iter().map(|key| key.as_bytes().into()).collect())
}

fn timestamp(version: u64) -> Timestamp {
    if version == 0 { Timestamp::ZERO } else { Timestamp::new(version, WriterId(1)) }
}

fn bulk(text: &str) -> Reply<'static> {
    Reply::Bulk(text.as_bytes().to_vec().into())
}

/// Commits one command after the other, with versions from 1 on.
fn keys_after(lines: &[&str]) -> MapWorkspace {
    let mut keys = MapWorkspace::default();
    for (line, version) in lines.iter().zip(1..) {
        let verdict = keys.run(NOW, timestamp(version), &call(line).call());
        assert!(matches!(&verdict, Verdict::Commit(reply) if !reply.is_error()), "{line}");
    }
    keys
}

/// What a transaction answers at version 100, and which keys it read.
fn run(keys: &mut MapWorkspace, now: UnixMillis, txn: &Op) -> (Verdict<Reply<'static>>, String) {
    let verdict = keys.run(now, timestamp(100), txn);
    let read: Vec<_> = keys.read_set().map(String::from_utf8_lossy).collect();
    (verdict, read.join(" "))
}

fn bytes<'a>(keys: &'a MapWorkspace, key: &str) -> Option<&'a [u8]> {
    keys.get(NOW, key.as_bytes()).content.map(|content| content.bytes)
}

#[test]
fn versions_are_those_of_committed_values_and_of_tombstones() {
    let mut keys = keys_after(&["SET a 1", "SET b 2 PX 100", "INCR a", "SET c 3", "DEL c"]);
    let expected = |b| {
        Verdict::Commit(Reply::Array(vec![
            Reply::Version(timestamp(3), true),
            Reply::Version(timestamp(2), b),
            Reply::Version(timestamp(5), false),
            Reply::Version(Timestamp::ZERO, false),
            Reply::Version(timestamp(3), true),
        ]))
    };
    let txn = versions(&["a", "b", "c", "d", "a"]);
    assert!(!txn.updates());
    assert_eq!(run(&mut keys, NOW, &txn), (expected(true), "a b c d".into()));
    // An expired value is absent and keeps its version.
    assert_eq!(run(&mut keys, UnixMillis(NOW.0 + 100), &txn).0, expected(false));
}

#[test]
fn a_block_runs_if_every_watch_holds_and_reads_on_only_then() {
    let lines = ["SET a 1", "SET b 2", "SET c 3", "DEL c", "SET e 5 PX 100"];
    let late = UnixMillis(NOW.0 + 100);
    for (watches, now, held, read) in [
        (&[][..], NOW, true, "k"),
        (&[("a", true, 1), ("b", true, 2)], NOW, true, "a b k"),
        (&[("a", true, 1), ("b", true, 1), ("d", false, 0)], NOW, false, "a b"),
        (&[("a", false, 0), ("b", true, 2)], NOW, false, "a"),
        // Absent then and now: as long as nobody came and went, or the tombstone is gone.
        (&[("c", false, 4)], NOW, true, "c k"),
        (&[("c", false, 0)], NOW, false, "c"),
        (&[("c", true, 3)], NOW, false, "c"),
        (&[("d", false, 0)], NOW, true, "d k"),
        (&[("d", false, 7)], NOW, true, "d k"),
        (&[("d", true, 7)], NOW, false, "d"),
        // A value that expired since is a change, and a value that had expired before is not.
        (&[("e", true, 5)], NOW, true, "e k"),
        (&[("e", true, 5)], late, false, "e"),
        (&[("e", false, 5)], late, true, "e k"),
    ] {
        let mut keys = keys_after(&lines);
        let txn = block(watches, &["SET blind 1", "INCR k"]);
        let expected = if held {
            Verdict::Commit(Reply::Array(vec![Reply::Ok, Reply::Int(1)]))
        } else {
            Verdict::Abandon(Reply::NullArray)
        };
        assert_eq!(run(&mut keys, now, &txn), (expected, read.into()), "{watches:?}");
        assert_eq!(bytes(&keys, "k"), held.then_some(&b"1"[..]), "{watches:?}");
        assert_eq!(bytes(&keys, "blind"), held.then_some(&b"1"[..]), "{watches:?}");
    }
}

#[test]
fn calls_of_a_block_see_each_other_and_an_error_undoes_nothing() {
    let mut keys = keys_after(&["SET a 1", "SET b 2"]);
    let txn = block(
        &[("a", true, 1)],
        &[
            "RENAME a c",
            "INCR c",
            "RENAME a c",
            "MSETNX d 1 c 2",
            "SELECT 1",
            "PING",
            "COPY c b REPLACE",
            "MGET a b c d",
            "DEL b b a",
        ],
    );
    let (Verdict::Commit(Reply::Array(replies)), read) = run(&mut keys, NOW, &txn) else {
        panic!("every watch holds");
    };
    assert_eq!(replies[..2], [Reply::Ok, Reply::Int(2)]);
    assert_eq!(replies[2], Reply::error("ERR no such key"));
    assert_eq!(replies[3], Reply::Int(0));
    assert!(replies[4].is_error());
    assert_eq!(replies[5..7], [Reply::status("PONG"), Reply::Int(1)]);
    assert_eq!(replies[7], Reply::Array(vec![Reply::Null, bulk("2"), bulk("2"), Reply::Null]));
    assert_eq!(replies[8], Reply::Int(1));
    assert_eq!(read, "a b c d");
    assert_eq!(
        (bytes(&keys, "a"), bytes(&keys, "b"), bytes(&keys, "c")),
        (None, None, Some(&b"2"[..]))
    );
    // The version that a watch compares is that of the committed value throughout.
    assert_eq!(keys.get(NOW, b"c").timestamp, timestamp(100));
}

#[test]
fn only_what_the_answer_rests_on_is_read() {
    for (line, read, updates) in [
        ("GET a", "a", false),
        ("MGET b a b", "a b", false),
        ("EXISTS a c a", "a c", false),
        ("PING", "", false),
        ("SET a 5", "", true),
        ("SETEX c 10 5", "", true),
        ("SET a 5 NX", "a", true),
        ("SET a 5 EX 0", "a", false),
        ("MSET a 5 c 6", "", true),
        ("DEL a c", "a c", true),
        ("INCR a", "a", true),
        // The first key that exists decides.
        ("MSETNX c 1 a 2 b 3", "a c", true),
        ("RENAME a b", "a", true),
        ("RENAMENX a b", "a b", true),
        ("RENAMENX c b", "c", true),
        ("COPY a b", "a b", true),
        ("COPY a b REPLACE", "a", true),
        ("COPY c b", "c", true),
        ("COPY a b bad", "", true),
    ] {
        let mut keys = keys_after(&["SET a 1", "SET b 2"]);
        let txn = Op::Call(call(line));
        assert_eq!(run(&mut keys, NOW, &txn).1, read, "{line}");
        assert_eq!(txn.updates(), updates, "{line}");
        assert_eq!(block(&[], &["GET a", line]).updates(), updates, "{line}");
    }
}

#[test]
fn an_expiry_moves_with_its_value() {
    let mut keys = keys_after(&["SET a 1 PX 500", "SET b 2", "SET c 3 PX 900"]);
    let expiry = |keys: &MapWorkspace, key: &[u8]| {
        keys.get(NOW, key).content.map(|content| content.expire_at.map(|at| at.0 - NOW.0))
    };
    run(&mut keys, NOW, &block(&[], &["COPY a d", "RENAME a b", "COPY b c REPLACE"]));
    assert_eq!(expiry(&keys, b"a"), None);
    for key in [b"b", b"c", b"d"] {
        assert_eq!(expiry(&keys, key), Some(Some(500)));
    }
    run(&mut keys, NOW, &block(&[], &["SET e 1", "RENAME e b", "MSET c 1"]));
    assert_eq!((expiry(&keys, b"b"), expiry(&keys, b"c")), (Some(None), Some(None)));
}

#[test]
fn a_borrowed_call_is_the_transaction_that_its_copy_is() {
    let owned = call("RENAME a b");
    let borrowed = owned.call();
    assert_eq!(Command::into_owned(borrowed), Op::Call(owned.clone()));
    let (mut one, mut other) = (keys_after(&["SET a 1"]), keys_after(&["SET a 1"]));
    let answer = one.run(NOW, timestamp(2), &borrowed);
    assert_eq!(answer, other.run(NOW, timestamp(2), &Op::Call(owned.clone())));
    assert_eq!(one.get(NOW, b"b"), other.get(NOW, b"b"));
}

#[test]
fn an_engine_of_single_keys_refuses_what_changes_several() {
    let content = Content { bytes: b"v", kind: ValueKind::String, expire_at: None };
    let holding = Current { content: Some(content), large: None, timestamp: timestamp(7) };
    let absent = Current::ABSENT;
    for line in [
        "MSET a 1 b 2",
        "MSETNX a 1 b 2",
        "RENAME a b",
        "RENAMENX a b",
        "COPY a b",
        "COPY a b REPLACE",
    ] {
        let call = call(line);
        for current in [holding, absent] {
            let answer = call.call().execute(NOW, current);
            assert_eq!(answer, (Reply::error(CROSSKEY), Change::Keep), "{line}");
        }
        assert_eq!(
            (call.call().access(), call.call().validate()),
            (Access::Read, Ok(())),
            "{line}"
        );
        assert!(call.call().updates(), "{line}");
    }
    // What is wrong in itself is wrong everywhere; what names one key only, works.
    for (line, reply) in [
        ("MSET a 1 b", Reply::error("ERR wrong number of arguments for 'mset' command")),
        ("COPY a b foo", Reply::error("ERR syntax error")),
        ("COPY a a", Reply::error("ERR source and destination objects are the same")),
        ("RENAME a a", Reply::Ok),
        ("RENAMENX a a", Reply::Int(0)),
        ("MSETNX a 1 a 2", Reply::Int(0)),
    ] {
        assert_eq!(
            call(line).call().execute(NOW, holding),
            (reply.clone(), Change::Keep),
            "{line}"
        );
        let validated = if reply.is_error() { Err(reply) } else { Ok(()) };
        assert_eq!(call(line).call().validate(), validated, "{line}");
    }
    let other_keyspace = call("COPY a b DB 1").call().validate();
    let Err(Reply::Error(text)) = other_keyspace else { panic!("{other_keyspace:?}") };
    assert!(text.starts_with("CROSSKEY "), "{text}");
}

#[test]
fn every_write_of_the_table_updates() {
    for spec in table().iter().filter(|spec| matches!(spec.run, Run::Key(_))) {
        let words = std::iter::repeat_n(&b"1"[..], spec.arity.unsigned_abs().into());
        let words = [spec.name.as_bytes()].into_iter().chain(words.skip(1));
        let call = OwnedCall::new(words).expect(spec.name);
        // GETEX and HGETEX without options only read, and so does BITFIELD without subcommands.
        let writes =
            spec.flags.has(flag::WRITE) && !["getex", "hgetex", "bitfield"].contains(&spec.name);
        // A script may, unless it says that it doesn't.
        let writes = writes || call.call().is_script() && !spec.name.ends_with("_ro");
        assert_eq!(call.call().updates(), writes, "{}", spec.name);
    }
}

/// A key with a value so large that one answer has room for four of them, but not for the lengths
/// and line ends around them.
fn large() -> MapWorkspace {
    let mut keys = MapWorkspace::default();
    let value = "v".repeat(REPLY_BYTES_MAX / 4);
    keys.run(NOW, timestamp(1), &call(&format!("SET big {value}")).call());
    keys
}

#[test]
fn a_block_that_would_answer_too_much_does_nothing() {
    let mut keys = large();
    let mut lines = vec!["SET a 1", "GET big", "GET big", "GET big"];
    let Verdict::Commit(Reply::Array(answers)) = run(&mut keys, NOW, &block(&[], &lines)).0 else {
        panic!("three of four fit")
    };
    assert_eq!(answers.len(), 4);
    lines[0] = "SET a 2";
    lines.extend(["GET big", "SET b 1"]);
    // In several commands or in one, alone or behind an update.
    for lines in
        [&lines[..], &["SET a 2", "MGET big big big big"], &["APPEND a x", "MGET big big big big"]]
    {
        let (verdict, _) = run(&mut keys, NOW, &block(&[], lines));
        let Verdict::Abandon(Reply::Error(text)) = verdict else {
            panic!("{lines:?}: {verdict:?}")
        };
        assert!(text.starts_with("EXECABORT ") && text.contains("16777216"), "{text}");
        assert_eq!((bytes(&keys, "a"), bytes(&keys, "b")), (Some(&b"1"[..]), None));
    }
}

#[test]
fn a_command_that_would_answer_too_much_answers_an_error() {
    let mut keys = large();
    let mut answer = |line| match keys.run(NOW, timestamp(9), &call(line).call()) {
        Verdict::Commit(reply) => reply,
        Verdict::Abandon(_) => panic!("a command is not abandoned"),
    };
    assert!(matches!(answer("MGET big big big none"), Reply::Array(answers) if answers.len() == 4));
    let Reply::Error(text) = answer("MGET big big big big") else { panic!("it was answered") };
    assert!(text.starts_with("ERR ") && text.contains("16777216"), "{text}");
}

#[test]
fn commands_that_look_at_too_much_do_nothing() {
    let mut keys = large();
    // Four megabytes each, so that sixteen fit and seventeen don't.
    let fits = ["BITCOUNT big"; 16];
    let (verdict, _) = run(&mut keys, NOW, &block(&[], &fits));
    assert!(matches!(verdict, Verdict::Commit(Reply::Array(answers)) if answers.len() == 16));
    let mut lines = vec!["SET a 1"];
    lines.extend(["BITCOUNT big"; 17]);
    let (verdict, _) = run(&mut keys, NOW, &block(&[], &lines));
    let Verdict::Abandon(Reply::Error(text)) = verdict else { panic!("{verdict:?}") };
    assert!(text.starts_with("EXECABORT ") && text.contains("68157440"), "{text}");
    assert_eq!(bytes(&keys, "a"), None);
    // One command, of one key many times.
    for (command, times) in [("BITOP AND a", 17), ("EXISTS", 70_000), ("DEL", 70_000)] {
        let line = format!("{command}{}", " big".repeat(times));
        let verdict = keys.run(NOW, timestamp(9), &call(&line).call());
        let Verdict::Abandon(Reply::Error(text)) = verdict else {
            panic!("{command}: {verdict:?}")
        };
        assert!(text.starts_with("ERR ") && text.contains("68157440"), "{text}");
        assert!(bytes(&keys, "a").is_none() && bytes(&keys, "big").is_some(), "{command}");
    }
    // The same on one key, where nothing else has a place.
    let current = keys.get(NOW, b"big");
    let same = call(&format!("BITOP AND big{}", " big".repeat(17)));
    let (reply, change) = same.call().execute(NOW, current);
    assert!(matches!(reply, Reply::Error(text) if text.contains("68157440")));
    assert_eq!(change, Change::Keep);
}
