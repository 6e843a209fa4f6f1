//! Notes of what commands do to keys. Their events are those of a Redis 7.0.

use quorate_commands::{
    Block, MapWorkspace, Note, Op, OwnedCall, Reply, class, parse_classes, show_classes,
};
use quorate_machine::{Access, Change, Command, Content, Current, ValueKind, Verdict};
use quorate_types::{Timestamp, UnixMillis, WriterId};

const NOW: UnixMillis = UnixMillis(1_000_000);

fn call(line: &str) -> OwnedCall {
    OwnedCall::new(line.split(' ').map(str::as_bytes)).expect(line)
}

fn shown(notes: &[Note]) -> String {
    let shown = notes.iter().map(|note| match note {
        Note::Event(event) => format!("{} {}", event.name, String::from_utf8_lossy(&event.key)),
        Note::Message(message) => panic!("{message:?}: no script"),
    });
    shown.collect::<Vec<_>>().join(", ")
}

/// The notes of an answer, those of a block's parts included.
fn notes_of(mut reply: Reply<'static>) -> (Reply<'static>, Vec<Note>) {
    let mut notes = reply.take_notes();
    if let Reply::Array(parts) = &mut reply {
        notes.extend(parts.iter_mut().flat_map(Reply::take_notes));
    }
    (reply, notes)
}

/// Runs an op with notes of these classes on some keys.
fn run(keys: &mut MapWorkspace, version: u64, classes: u32, op: Op) -> (Reply<'static>, String) {
    run_at(NOW, keys, version, classes, op)
}

fn run_at(
    now: UnixMillis,
    keys: &mut MapWorkspace,
    version: u64,
    classes: u32,
    op: Op,
) -> (Reply<'static>, String) {
    let timestamp = Timestamp::new(version, WriterId(1));
    match keys.run(now, timestamp, &op.noted(3, classes)) {
        Verdict::Commit(reply) => {
            let (reply, notes) = notes_of(reply);
            let is_there = |note: &Note| matches!(note, Note::Event(event) if event.keyspace == 3);
            assert!(notes.iter().all(is_there), "{notes:?}");
            (reply, shown(&notes))
        }
        Verdict::Abandon(reply) => (reply, String::new()),
    }
}

#[test]
fn each_command_has_the_events_of_redis() {
    let mut keys = MapWorkspace::default();
    let lines = include_str!("notes.txt").lines().filter(|line| !line.starts_with('#'));
    let mut wrong = Vec::new();
    for (line, version) in lines.zip(1..) {
        let (command, expected) = line.split_once(" =>").expect("a command and its events");
        let op = Op::Call(call(command));
        let (reply, events) = run(&mut keys, version, class::ALL | class::NEW, op);
        if events != expected.trim() {
            wrong.push(format!("{command}: {events:?} instead of {expected:?} ({reply:?})"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Fields that have expired are told of by the change that drops them, and by no read.
#[test]
fn fields_that_a_change_drops_have_expired() {
    let mut keys = MapWorkspace::default();
    let lines = [
        (0, "HSET h a 1 b 2 c 3", "hset h"),
        (0, "HPEXPIRE h 10 FIELDS 1 a", "hexpire h"),
        (0, "HPEXPIRE h 20 FIELDS 1 b", "hexpire h"),
        (10, "HGET h a", ""),
        (10, "HGETEX h FIELDS 1 a", ""),
        (10, "HSET h c 4", "hexpired h, hset h"),
        (10, "HSET h c 5", "hset h"),
        (20, "EXPIRE h 10", "expire h"),
        (20, "HDEL h c", "hdel h, del h"),
    ];
    for ((after, line, events), version) in lines.into_iter().zip(1..) {
        let now = UnixMillis(NOW.0 + after);
        let op = Op::Call(call(line));
        assert_eq!(run_at(now, &mut keys, version, class::ALL, op).1, events, "{line}");
        // An engine of single keys tells the same.
        if let Op::Noted { .. } = Op::Call(call(line)).noted(3, class::ALL) {
            let op = Op::Call(call("HSET h c 4")).noted(3, class::HASH);
            let expired = after == 10 && line.starts_with("HGET");
            let (reply, _) = op.apply(now, keys.get(now, b"h"));
            let wanted = if expired { "hexpired h, hset h" } else { "hset h" };
            assert_eq!(shown(&notes_of(reply).1), wanted, "after {line}");
        }
    }
}

#[test]
fn a_block_has_the_events_of_its_commands() {
    let calls = ["SET a 1", "GET a", "LPUSH a x", "LPUSH l x", "LPOP l", "DEL a none"];
    let calls = calls.iter().map(|line| call(line)).collect();
    let block = Op::Block(Block { watches: Vec::new(), calls });
    let (_, events) = run(&mut MapWorkspace::default(), 1, class::ALL, block);
    assert_eq!(events, "set a, lpush l, lpop l, del l, del a");
}

#[test]
fn only_what_is_wanted_is_noted() {
    let mut keys = MapWorkspace::default();
    let op = || Op::Call(call("SET a 1 EX 100"));
    assert_eq!(run(&mut keys, 1, class::GENERIC, op()).1, "expire a");
    assert_eq!(run(&mut keys, 2, class::STRING, op()).1, "set a");
    assert_eq!(run(&mut keys, 3, class::LIST, op()).1, "");
    // What only reads has no notes.
    let read = Op::Call(call("GET a"));
    assert_eq!(read.clone().noted(0, class::ALL), read);
}

#[test]
fn an_engine_of_single_keys_has_the_same_notes() {
    let absent = Current::ABSENT;
    let op = Op::Call(call("SET a 1")).noted(1, class::STRING);
    assert_eq!(op.access(), Access::Write, "nothing has to be read");
    let op = Op::Call(call("SET a 1")).noted(1, class::ALL | class::NEW);
    assert_eq!(op.access(), Access::Update);
    let (reply, change) = op.apply(NOW, absent);
    let (reply, notes) = notes_of(reply);
    assert_eq!((reply, shown(&notes)), (Reply::Ok, "new a, set a".to_owned()));
    assert!(matches!(change, Change::Set { .. }));
    let content = Content { bytes: b"1", kind: ValueKind::String, expire_at: None };
    let current = Current { content: Some(content), ..absent };
    let (reply, _) = op.apply(NOW, current);
    assert_eq!(shown(&notes_of(reply).1), "set a");
    // Two different keys are none of its business.
    let op = Op::Call(call("RENAME a b")).noted(1, class::ALL);
    assert!(op.apply(NOW, current).0.is_error(), "and nothing is noted");
}

#[test]
fn ops_and_answers_with_notes_travel() {
    let block = Op::Block(Block { watches: Vec::new(), calls: vec![call("SET a 1")] });
    for op in [Op::Call(call("SET a 1")), block] {
        let digest = op.digest();
        let op = op.noted(7, class::ALL);
        assert_eq!(op.digest(), digest, "the call is the same");
        let mut bytes = Vec::new();
        op.encode(&mut bytes);
        assert_eq!(bytes[..6], [3, 7, 0xfc, 0x27, 0, 0], "the layout changed");
        assert_eq!(Op::decode(&bytes), Some(op.clone()));
        for cut in 0..bytes.len() {
            assert_eq!(Op::decode(&bytes[..cut]), None);
        }
        let absent = Current::ABSENT;
        let (reply, _) = op.apply(NOW, absent);
        let mut bytes = Vec::new();
        reply.encode(&mut bytes);
        assert_eq!(Reply::decode(&bytes), Some(reply.clone()));
        let mut kept = Vec::new();
        Op::encode_reply(&reply, &mut kept);
        let (answer, notes) = notes_of(reply);
        assert_eq!(shown(&notes), "set a");
        assert_eq!(Op::decode_reply(&kept), Some(answer), "what is kept has no notes");
        for cut in 0..bytes.len() {
            assert_eq!(Reply::decode(&bytes[..cut]), None);
        }
    }
    let twice = [3, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0];
    assert_eq!(Op::decode(&twice), None);
    assert_eq!(Op::decode(&[3, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0]), None, "a look at versions");
}

#[test]
fn classes_are_shown_as_redis_does() {
    for (set, shown) in [
        ("KEA", "AKE"),
        ("g$", "g$"),
        ("Kn", "nK"),
        ("KEAn", "AKE"),
        ("Elm", "lEm"),
        ("", ""),
        ("KEx", "xKE"),
        ("Kg$lshzxetd", "AK"),
        ("Kg$lshzxet", "g$lshzxetK"),
    ] {
        let classes = parse_classes(set.as_bytes()).expect(set);
        assert_eq!(show_classes(classes), shown, "{set}");
    }
    assert_eq!(parse_classes(b"KEq"), None);
}
