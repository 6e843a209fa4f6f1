//! `SESSION AUTO`: commands that are calls under the number of their place.

use quorate_machine::{Outcome, Refusal};
use quorate_resp::{ConnectionId, Settings, Shared};
use quorate_resp_harness::Harness;

fn harness() -> Harness {
    Harness::new(Shared::new(Settings::default(), None))
}

/// Opens a session; what `SESSION RENEW` wants to see of it.
fn open(harness: &mut Harness, id: ConnectionId) -> String {
    let reply = harness.talk(id, "SESSION OPEN");
    let words: Vec<&str> = reply.split("\r\n").collect();
    assert_eq!((words[2], words[6]), ("id", "until"), "{reply}");
    format!("{} {}", words[4], words[8])
}

/// A connection with a session, whose next command has the number 0.
fn numbered(harness: &mut Harness) -> (ConnectionId, String) {
    let id = harness.connect();
    let session = open(harness, id);
    assert_eq!(harness.talk(id, "SESSION AUTO 0"), "+OK\r\n");
    (id, session)
}

fn next(harness: &mut Harness, id: ConnectionId) -> String {
    let reply = harness.talk(id, "SESSION INFO");
    let words: Vec<&str> = reply.split("\r\n").collect();
    let at = words.iter().position(|word| *word == "next").expect("INFO says which number is next");
    words[at + 2].to_owned()
}

#[test]
fn each_update_is_the_call_of_its_place_and_can_be_tried_again() {
    for keyspace in ["SELECT 0", "SELECT 1"] {
        let mut harness = harness();
        let (one, two) = (harness.connect(), harness.connect());
        harness.talk(one, keyspace);
        harness.talk(two, keyspace);
        let session = open(&mut harness, one);
        assert_eq!(harness.talk(one, "SESSION AUTO 0 3"), "+OK\r\n");
        assert_eq!(harness.talk(one, "INCR a"), ":1\r\n");
        assert_eq!(harness.talk(one, "GET a"), "$1\r\n1\r\n");
        assert_eq!(harness.talk(one, "INCR a"), ":2\r\n");
        harness.talk(two, &format!("SESSION RENEW {session}"));
        assert_eq!(harness.talk(two, "SESSION CALL 0 0 INCR a"), ":1\r\n");
        assert_eq!(harness.talk(two, "SESSION CALL 2 0 INCR a"), ":2\r\n");
        // The number of the read was left out.
        assert_eq!(harness.talk(two, "SESSION CALL 1 0 INCR a"), ":3\r\n");
        assert_eq!(harness.talk(two, "SESSION AUTO 3"), "+OK\r\n");
        assert_eq!(harness.talk(two, "INCR a"), ":4\r\n");
        assert!(harness.talk(two, "SESSION CALL 2 2 INCR a").starts_with("-STALE "));
    }
}

#[test]
fn every_command_has_a_number_whatever_comes_of_it() {
    let mut harness = harness();
    let (id, _) = numbered(&mut harness);
    harness.backend.refuse.push_back(Outcome::Refused(Refusal::Busy));
    for (input, word) in [
        ("PING", "+PONG"),
        ("NOSUCH a", "-ERR"),
        ("INCR", "-ERR"),
        ("SESSION NOSUCH", "-ERR"),
        ("INCR a", "-TRYAGAIN"),
        ("SET a x", "+OK"),
        ("INCR a", "-ERR"),
        ("SESSION CALL 100 6 APPEND a y", ":2"),
        ("EXEC", "-ERR"),
        ("SELECT 0", "+OK"),
        ("HELLO 2", "*14"),
    ] {
        let reply = harness.talk(id, input);
        assert_eq!(reply.split_whitespace().next(), Some(word), "{input}");
    }
    // A line without words is no command.
    harness.feed(id, b"\r\n\r\n");
    assert_eq!(next(&mut harness, id), "12");
    harness.backend.serving = Err("use another node");
    assert_eq!(harness.talk(id, "INCR a"), "-CLUSTERDOWN use another node\r\n");
    harness.backend.serving = Ok(());
    assert_eq!(next(&mut harness, id), "14");
    assert_eq!(harness.talk(id, "APPEND a z"), ":3\r\n");
    assert_eq!(harness.talk(id, "SESSION CALL 14 14 APPEND a z"), ":3\r\n");
}

#[test]
fn a_block_is_the_call_of_its_exec() {
    let mut harness = harness();
    let (id, _) = numbered(&mut harness);
    let block = "MULTI\r\nINCR a\r\nINCR a\r\nEXEC";
    let expected = "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n:1\r\n:2\r\n";
    assert_eq!(harness.talk(id, block), expected);
    let again = "MULTI\r\nINCR a\r\nINCR a\r\nSESSION CALL 3 3 EXEC";
    assert_eq!(harness.talk(id, again), expected);
    // A block that only reads is no call, and a command that waits for others has its number once.
    let block = "MULTI\r\nGET a\r\nEXEC\r\nINCR a\r\nMULTI\r\nINCR a\r\nPING\r\nEXEC\r\nDBSIZE";
    let reply = harness.talk(id, block);
    assert!(reply.ends_with(":3\r\n+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n:4\r\n+PONG\r\n:1\r\n"));
    assert_eq!(next(&mut harness, id), "18");
    let flush = harness.talk(id, "MULTI\r\nFLUSHALL\r\nEXEC");
    assert!(flush.ends_with(
        "-ERR a flush is no part of a session's call; send the block without \
                             SESSION CALL, and after SESSION AUTO OFF\r\n"
    ));
    assert_eq!(harness.talk(id, "GET a"), "$1\r\n4\r\n");
}

#[test]
fn a_pipeline_acknowledges_nothing_before_its_answer() {
    let mut harness = harness();
    let (one, session) = numbered(&mut harness);
    let two = harness.connect();
    // Three at once, although the client promised to wait for each.
    harness.feed(one, b"INCR a\r\nINCR b\r\nINCR c\r\n");
    while harness.complete_one() {}
    harness.talk(two, &format!("SESSION RENEW {session}"));
    for (number, key) in ["a", "b", "c"].into_iter().enumerate() {
        let again = harness.talk(two, &format!("SESSION CALL {number} 0 INCR {key}"));
        assert_eq!(again, ":1\r\n", "call {number}");
    }
    // With the answers there, one more acknowledges them all.
    assert_eq!(harness.talk(one, "INCR a"), ":1\r\n:1\r\n:1\r\n:2\r\n");
    assert!(harness.talk(two, "SESSION CALL 2 0 INCR c").starts_with("-STALE "));
}

#[test]
fn depth_keeps_the_answers_that_are_on_their_way() {
    let mut harness = harness();
    let id = harness.connect();
    open(&mut harness, id);
    assert_eq!(harness.talk(id, "SESSION AUTO 10 2"), "+OK\r\n");
    for number in 1..=3 {
        assert_eq!(harness.talk(id, "INCR a"), format!(":{number}\r\n"));
    }
    // 10, 11 and 12: the client may not have the answer to 11, but has that to 10.
    assert_eq!(harness.talk(id, "SESSION CALL 11 0 INCR a"), ":2\r\n");
    assert!(harness.talk(id, "SESSION CALL 10 0 INCR a").starts_with("-STALE "));
}

#[test]
fn no_update_is_a_plain_one_once_numbers_were_asked_for() {
    let mut harness = harness();
    let id = harness.connect();
    for input in ["SESSION AUTO 0", "SESSION AUTO x", "SESSION AUTO 0 0", "SESSION AUTO 0 513"] {
        let reply = harness.talk(id, &format!("{input}\r\nINCR a\r\nMULTI\r\nINCR a\r\nEXEC"));
        let lines: Vec<&str> = reply.trim_end().split("\r\n").collect();
        assert!(lines[0].starts_with('-'), "{input}: {reply}");
        assert!(lines[1].starts_with("-NOSESSION ") && lines[4].starts_with("-NOSESSION "));
        assert_eq!(harness.talk(id, "GET a"), "$-1\r\n", "reads go on");
        assert_eq!(harness.talk(id, "SESSION AUTO OFF"), "+OK\r\n");
    }
    open(&mut harness, id);
    assert_eq!(harness.talk(id, "SESSION AUTO 9223372036854775807"), "+OK\r\n");
    assert_eq!(harness.talk(id, "INCR a"), ":1\r\n");
    assert_eq!(next(&mut harness, id), "9223372036854775809");
    let high = harness.talk(id, "SESSION AUTO 9223372036854775808");
    assert_eq!(high, "-ERR value is not an integer or out of range\r\n");
    assert!(harness.talk(id, "SESSION AUTO 0 1 1").starts_with("-ERR syntax error"));
    // Another session has numbers of its own.
    assert_eq!(harness.talk(id, "SESSION AUTO 0"), "+OK\r\n");
    open(&mut harness, id);
    assert!(harness.talk(id, "INCR a").starts_with("-NOSESSION "));
    assert_eq!(harness.talk(id, "SESSION AUTO 0\r\nINCR a"), "+OK\r\n:2\r\n");
    assert_eq!(harness.talk(id, "SESSION RENEW\r\nINCR a").matches(":3\r\n").count(), 1);
    assert_eq!(harness.talk(id, "SESSION CLOSE"), "+OK\r\n");
    assert!(harness.talk(id, "INCR a").starts_with("-NOSESSION "));
    assert_eq!(harness.talk(id, "RESET\r\nINCR a"), "+RESET\r\n:4\r\n");
}

#[test]
fn a_pipeline_keeps_its_order_and_its_calls_go_together() {
    let mut harness = harness();
    let id = harness.connect();
    harness.talk(id, "SELECT 1");
    open(&mut harness, id);
    harness.talk(id, "SESSION AUTO 0 8");
    harness.feed(id, b"INCR a\r\nINCR a\r\nGET a\r\nINCR a\r\nMULTI\r\nGET a\r\nEXEC\r\n");
    assert_eq!(harness.backend.submitted, 2, "what only reads waits for both");
    let reply = String::from_utf8(harness.send(id, b"")).expect("text");
    assert_eq!(reply, ":1\r\n:2\r\n$1\r\n2\r\n:3\r\n+OK\r\n+QUEUED\r\n*1\r\n$1\r\n3\r\n");
    assert_eq!(next(&mut harness, id), "8");
}
