//! `SESSION`: calls that run exactly once.

use quorate_commands::CROSSKEY;
use quorate_machine::{Outcome, Refusal};
use quorate_resp::{ConnectionId, Settings, Shared};
use quorate_resp_harness::Harness;
use quorate_types::{Duration, limits};

fn harness() -> Harness {
    Harness::new(Shared::new(Settings::default(), None))
}

/// Opens a session; its id and until when it is granted.
fn open(harness: &mut Harness, id: ConnectionId) -> (String, String) {
    named(&harness.talk(id, "SESSION OPEN"))
}

/// The id and the grant in the answer to `SESSION OPEN`.
fn named(reply: &str) -> (String, String) {
    let words: Vec<&str> = reply.split("\r\n").collect();
    let [_, _, "id", _, id, _, "until", _, until, _, "term", ":1800000", ""] = words[..] else {
        panic!("{reply}")
    };
    (id.to_owned(), until.to_owned())
}

fn word(reply: &str) -> &str {
    let word = reply.split_whitespace().next().unwrap_or_default();
    word.strip_prefix('-').unwrap_or_else(|| panic!("no error: {reply}"))
}

#[test]
fn a_call_runs_once_and_answers_every_try_alike() {
    for keyspace in ["SELECT 0", "SELECT 1"] {
        let mut harness = harness();
        let (one, two) = (harness.connect(), harness.connect());
        harness.talk(one, keyspace);
        harness.talk(two, keyspace);
        let (session, until) = open(&mut harness, one);
        assert_eq!(harness.talk(one, "SESSION CALL 0 0 INCR a"), ":1\r\n");
        assert_eq!(harness.talk(one, "SESSION CALL 0 0 incr a"), ":1\r\n");
        assert_eq!(harness.talk(one, "SESSION CALL 1 0 INCR a"), ":2\r\n");
        let attached = harness.talk(two, &format!("SESSION RENEW {session} {until}"));
        assert_eq!(named(&attached).0, session);
        assert_eq!(harness.talk(two, "SESSION CALL 0 0 INCR a"), ":1\r\n");
        assert_eq!(harness.talk(two, "SESSION CALL 1 0 INCR a"), ":2\r\n");
        assert_eq!(harness.talk(two, "GET a"), "$1\r\n2\r\n");
    }
}

#[test]
fn errors_are_answers_and_are_kept() {
    let mut harness = harness();
    let id = harness.connect();
    open(&mut harness, id);
    harness.talk(id, "SET a 1");
    assert_eq!(harness.talk(id, "SESSION CALL 0 0 SETNX a 2"), ":0\r\n");
    harness.talk(id, "DEL a");
    assert_eq!(harness.talk(id, "SESSION CALL 0 0 SETNX a 2"), ":0\r\n");
    assert_eq!(harness.talk(id, "GET a"), "$-1\r\n");
    let wrong = "-ERR value is not an integer or out of range\r\n";
    harness.talk(id, "SET a x");
    assert_eq!(harness.talk(id, "SESSION CALL 1 0 INCR a"), wrong);
    harness.talk(id, "DEL a");
    assert_eq!(harness.talk(id, "SESSION CALL 1 0 INCR a"), wrong);
}

/// A call waits for its grant, or for another lane; what comes behind it must not be ahead of it.
#[test]
fn calls_and_what_is_no_call_keep_their_order_in_a_pipeline() {
    let pipelines = [
        ("SESSION CALL 0 0 INCR a\r\nSET a 7", ":1\r\n+OK\r\n"),
        ("SET a 7\r\nSESSION CALL 0 0 INCR a", "+OK\r\n:8\r\n"),
        ("SESSION CALL 0 0 INCR a\r\nGET a", ":1\r\n$1\r\n1\r\n"),
        ("SESSION CALL 0 0 INCR a\r\nSESSION CALL 1 0 GET a", ":1\r\n$1\r\n1\r\n"),
        (
            "SESSION CALL 0 0 INCR a\r\nMULTI\r\nGET a\r\nEXEC",
            ":1\r\n+OK\r\n+QUEUED\r\n*1\r\n$1\r\n1\r\n",
        ),
        (
            "SET a 7\r\nMULTI\r\nINCR a\r\nSESSION CALL 0 0 EXEC",
            "+OK\r\n+OK\r\n+QUEUED\r\n*1\r\n:8\r\n",
        ),
    ];
    for keyspace in ["SELECT 0", "SELECT 1"] {
        for (pipeline, expected) in pipelines {
            let mut harness = harness();
            let id = harness.connect();
            harness.talk(id, keyspace);
            open(&mut harness, id);
            harness.feed(id, format!("{pipeline}\r\n").as_bytes());
            assert_eq!(harness.backend.waiting(), 1, "the second waits: {pipeline}");
            while harness.complete_one() {}
            assert_eq!(String::from_utf8(harness.take(id)).unwrap(), expected, "{pipeline}");
        }
    }
}

#[test]
fn calls_alone_are_under_way_together() {
    let mut harness = harness();
    let id = harness.connect();
    open(&mut harness, id);
    harness.feed(id, b"SESSION CALL 0 0 INCR a\r\nSESSION CALL 1 0 INCR a\r\n");
    assert_eq!(harness.backend.waiting(), 2);
}

#[test]
fn a_block_is_one_call() {
    for (keyspace, other) in [("SELECT 0", "a"), ("SELECT 1", "b")] {
        let mut harness = harness();
        let id = harness.connect();
        harness.talk(id, keyspace);
        open(&mut harness, id);
        let block = format!("MULTI\r\nINCR a\r\nPING\r\nINCRBY {other} 5\r\nSESSION CALL 0 0 EXEC");
        let sum = if other == "a" { 6 } else { 5 };
        let expected =
            format!("+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*3\r\n:1\r\n+PONG\r\n:{sum}\r\n");
        assert_eq!(harness.talk(id, &block), expected);
        assert_eq!(harness.talk(id, &block), expected);
        assert_eq!(harness.talk(id, "GET a"), if sum == 6 { "$1\r\n6\r\n" } else { "$1\r\n1\r\n" });
        let different = "MULTI\r\nINCR a\r\nSESSION CALL 0 0 EXEC";
        assert!(harness.talk(id, different).contains("-DIFFERENT "));
        assert_eq!(harness.talk(id, "EXEC"), "-ERR EXEC without MULTI\r\n");
    }
}

#[test]
fn a_watch_that_failed_fails_at_every_try() {
    let mut harness = harness();
    let (one, two) = (harness.connect(), harness.connect());
    open(&mut harness, one);
    harness.talk(one, "WATCH a");
    harness.talk(two, "SET a 1");
    let block = "MULTI\r\nINCR a\r\nSESSION CALL 0 0 EXEC";
    assert_eq!(harness.talk(one, block), "+OK\r\n+QUEUED\r\n*-1\r\n");
    assert_eq!(harness.talk(one, block), "+OK\r\n+QUEUED\r\n*-1\r\n");
    assert_eq!(harness.talk(one, "GET a"), "$1\r\n1\r\n");
}

#[test]
fn reads_need_no_record() {
    let mut harness = harness();
    let id = harness.connect();
    open(&mut harness, id);
    assert_eq!(harness.talk(id, "SESSION CALL 0 0 GET a"), "$-1\r\n");
    harness.talk(id, "SET a 1");
    assert_eq!(harness.talk(id, "SESSION CALL 0 0 GET a"), "$1\r\n1\r\n");
    assert_eq!(harness.talk(id, "SESSION CALL 0 0 MGET a b"), "*2\r\n$1\r\n1\r\n$-1\r\n");
    let block = "MULTI\r\nGET a\r\nSESSION CALL 0 0 EXEC";
    assert_eq!(harness.talk(id, block), "+OK\r\n+QUEUED\r\n*1\r\n$1\r\n1\r\n");
    // The number is still free.
    assert_eq!(harness.talk(id, "SESSION CALL 0 0 INCR a"), ":2\r\n");
}

#[test]
fn each_wrong_number_has_its_error_and_no_effect() {
    let mut harness = harness();
    let id = harness.connect();
    open(&mut harness, id);
    assert_eq!(harness.talk(id, "SESSION CALL 7 5 INCR a"), ":1\r\n");
    for (call, expected) in [
        ("SESSION CALL 3 3 INCR a", "STALE"),
        ("SESSION CALL 8 9 INCR a", "STALE"),
        ("SESSION CALL 517 5 INCR a", "WINDOW"),
        ("SESSION CALL 7 5 DECR a", "DIFFERENT"),
        ("SESSION CALL x 5 INCR a", "ERR"),
        ("SESSION CALL 8 -1 INCR a", "ERR"),
        ("SESSION CALL 8 +5 INCR a", "ERR"),
        ("SESSION CALL 18446744073709551616 5 INCR a", "ERR"),
    ] {
        assert_eq!(word(&harness.talk(id, call)), expected, "{call}");
    }
    assert_eq!(harness.talk(id, "GET a"), "$1\r\n1\r\n");
    assert_eq!(harness.talk(id, "SESSION CALL 516 5 INCR a"), ":2\r\n");
}

#[test]
fn what_is_no_call_is_refused_with_the_way_out() {
    let mut harness = harness();
    let id = harness.connect();
    let none = "-NOSESSION no session is attached to this connection; begin one with SESSION OPEN, or \
                attach one with SESSION RENEW id until\r\n";
    for input in ["SESSION CALL 0 0 INCR a", "SESSION CLOSE", "SESSION RENEW"] {
        assert_eq!(harness.talk(id, input), none, "{input}");
    }
    open(&mut harness, id);
    for command in ["PING", "SELECT 1", "MULTI", "WATCH a", "DBSIZE", "FLUSHDB", "SESSION INFO"] {
        let reply = harness.talk(id, &format!("SESSION CALL 0 0 {command}"));
        let name = if command.starts_with("SESSION") { command } else { &command[..3] };
        assert!(reply.starts_with("-ERR a session's call is a command on keys, or EXEC; send "));
        assert!(reply.contains(name), "{reply}");
    }
    for (input, expected) in [
        ("SESSION CALL 0 0 NOSUCH a", "-ERR unknown command 'NOSUCH'"),
        ("SESSION CALL 0 0 INCR", "-ERR wrong number of arguments for 'incr' command"),
        ("SESSION CALL 0 0", "-ERR wrong number of arguments for 'session|call' command"),
        ("SESSION CALL 0 0 EXEC", "-ERR EXEC without MULTI"),
        ("SESSION RENEW 1", "-ERR wrong number of arguments for 'session|renew' command"),
        ("SESSION RENEW 1-5eed000000000001 two", "-ERR value is not an integer or out of range"),
        ("SESSION", "-ERR wrong number of arguments for 'session' command"),
        ("SESSION NOSUCH", "-ERR unknown subcommand 'NOSUCH'. Try SESSION HELP."),
    ] {
        let reply = harness.talk(id, input);
        assert!(reply.starts_with(expected), "{input}: {reply}");
    }
    // Several keys need an engine that has transactions.
    let crosskey = format!("-{CROSSKEY}\r\n");
    for command in ["MSET a 1 b 2", "DEL a b", "RENAME a b"] {
        assert_eq!(harness.talk(id, &format!("SESSION CALL 0 0 {command}")), crosskey);
    }
    harness.talk(id, "SELECT 1");
    assert_eq!(harness.talk(id, "SESSION CALL 0 0 MSET a 1 b 2"), "+OK\r\n");
    assert_eq!(harness.talk(id, "SESSION CALL 1 0 DEL a b"), ":2\r\n");
}

#[test]
fn inside_multi_only_exec_is_a_call() {
    let mut harness = harness();
    let id = harness.connect();
    open(&mut harness, id);
    for command in ["SESSION CALL 0 0 INCR a", "SESSION INFO", "SESSION OPEN"] {
        let reply = harness.talk(id, &format!("MULTI\r\n{command}\r\nEXEC"));
        let refused = "+OK\r\n-ERR Command not allowed inside a transaction\r\n-EXECABORT ";
        assert!(reply.starts_with(refused), "{reply}");
    }
    let flush = harness.talk(id, "MULTI\r\nFLUSHDB\r\nSESSION CALL 0 0 EXEC");
    assert!(flush.contains("-ERR a flush is no part of a session's call"), "{flush}");
    // A block whose call is refused is gone.
    let stale = harness.talk(id, "MULTI\r\nINCR a\r\nSESSION CALL 0 1 EXEC\r\nEXEC");
    assert!(stale.contains("-STALE "), "{stale}");
    assert!(stale.ends_with("-ERR EXEC without MULTI\r\n"), "{stale}");
    assert_eq!(harness.talk(id, "GET a"), "$-1\r\n");
}

#[test]
fn leases_end() {
    let mut harness = harness();
    let (one, two) = (harness.connect(), harness.connect());
    let (session, until) = open(&mut harness, one);
    assert_eq!(harness.talk(one, "SESSION CALL 0 0 INCR a"), ":1\r\n");
    assert_eq!(harness.talk(two, &format!("SESSION CLOSE {session} {until}")), "+OK\r\n");
    assert_eq!(word(&harness.talk(one, "SESSION CALL 0 0 INCR a")), "EXPIRED");
    assert_eq!(word(&harness.talk(one, "SESSION RENEW")), "EXPIRED");
    assert_eq!(harness.talk(one, "SESSION CLOSE"), "+OK\r\n");
    assert_eq!(word(&harness.talk(one, "SESSION CLOSE")), "NOSESSION");

    let (session, until) = open(&mut harness, one);
    harness.now.unix.0 += limits::LEASE_TERM.as_nanos() as u64 + 1;
    assert_eq!(word(&harness.talk(one, "SESSION CALL 1 0 INCR a")), "EXPIRED");
    let renew = format!("SESSION RENEW {session} {until}");
    assert_eq!(word(&harness.talk(two, &renew)), "EXPIRED");
    assert_eq!(word(&harness.talk(two, "SESSION RENEW 4242 4242")), "EXPIRED");
    assert_eq!(word(&harness.talk(two, "SESSION RENEW 4242-0000000000000000 4242")), "EXPIRED");
    assert_eq!(harness.talk(one, "GET a"), "$1\r\n1\r\n");
}

#[test]
fn who_was_not_told_an_id_can_do_nothing_to_its_session() {
    let mut harness = harness();
    let (owner, other) = (harness.connect(), harness.connect());
    let (session, until) = open(&mut harness, owner);
    let (number, token) = session.split_once('-').unwrap();
    assert_eq!(token.len(), 16);
    let wrong = format!("{:016x}", u64::from_str_radix(token, 16).unwrap() ^ 1);
    for forged in [
        number.to_owned(),
        format!("{number}-"),
        format!("{number}-{wrong}"),
        format!("{number}-+{token}"),
    ] {
        for command in ["RENEW", "CLOSE"] {
            let reply = harness.talk(other, &format!("SESSION {command} {forged} {until}"));
            assert_eq!(word(&reply), "EXPIRED", "{command} {forged}");
        }
    }
    // Who began it has not been heard yet: that may be over in a moment.
    harness.backend.heard_of_sessions = false;
    assert_eq!(word(&harness.talk(other, &format!("SESSION CLOSE {session} {until}"))), "TRYAGAIN");
    harness.backend.heard_of_sessions = true;
    assert_eq!(harness.talk(owner, "SESSION CALL 0 0 INCR a"), ":1\r\n");
    let renewed = harness.talk(other, &format!("SESSION RENEW {session} {until}"));
    assert!(renewed.contains(&session), "{renewed}");
    assert!(harness.talk(other, "SESSION INFO").contains(&session));
    assert_eq!(harness.talk(other, &format!("SESSION CLOSE {session} {until}")), "+OK\r\n");
}

#[test]
fn sessions_without_end_hit_a_named_limit() {
    let mut harness = harness();
    let id = harness.connect();
    for _ in 0..harness.backend.leases_max {
        open(&mut harness, id);
    }
    let reply = harness.talk(id, "SESSION OPEN");
    assert_eq!(word(&reply), "MAXSESSIONS");
    assert!(reply.contains("sessions_max"), "{reply}");
}

#[test]
fn a_session_that_finds_no_place_for_now_is_not_told_that_it_is_one_too_many() {
    let mut harness = harness();
    let id = harness.connect();
    let (session, until) = open(&mut harness, id);
    // Its owner is gone, and the successor keeps as many of such leases as it may.
    harness.backend.leases.clear();
    harness.backend.leases_max = 0;
    harness.now.unix.0 += limits::LEASE_TERM.as_nanos() as u64 + 1;
    assert_eq!(word(&harness.talk(id, "SESSION CALL 0 0 INCR a")), "TRYAGAIN");
    let block = harness.talk(id, "MULTI\r\nINCR a\r\nSESSION CALL 0 0 EXEC");
    assert!(block.contains("\r\n-TRYAGAIN "), "{block}");
    let renew = format!("SESSION RENEW {session} {until}");
    assert_eq!(word(&harness.talk(id, &renew)), "MAXSESSIONS");
    assert_eq!(harness.talk(id, "GET a"), "$-1\r\n");
}

#[test]
fn an_engine_without_sessions_says_so() {
    let mut harness = harness();
    let id = harness.connect();
    open(&mut harness, id);
    harness.backend.without_sessions.insert(0);
    let refused = "-NOTSUPPORTED the engine of this keyspace ('memory') has no sessions; SELECT a \
                   keyspace whose engine has\r\n";
    assert_eq!(harness.talk(id, "SESSION CALL 0 0 INCR a"), refused);
    let block = harness.talk(id, "MULTI\r\nINCR a\r\nSESSION CALL 0 0 EXEC");
    assert!(block.ends_with(refused), "{block}");
    assert_eq!(harness.talk(id, "SESSION CALL 0 0 GET a"), "$-1\r\n");
}

#[test]
fn what_the_engine_refuses_says_that_an_earlier_try_may_have_happened() {
    let mut harness = harness();
    let id = harness.connect();
    open(&mut harness, id);
    for (outcome, expected) in [
        (Outcome::Unknown, "UNKNOWN"),
        (Outcome::Refused(Refusal::Busy), "TRYAGAIN"),
        (Outcome::Refused(Refusal::NotServing), "CLUSTERDOWN"),
        (Outcome::Refused(Refusal::LeaseNeeded), "TRYAGAIN"),
    ] {
        for input in ["SESSION CALL 0 0 INCR a", "MULTI\r\nINCR a\r\nSESSION CALL 0 0 EXEC"] {
            harness.backend.refuse.push_back(outcome.clone());
            let reply = harness.talk(id, input);
            let error = reply.split("\r\n").find(|line| line.starts_with('-')).expect("an error");
            assert_eq!(word(error), expected, "{input}");
            assert!(error.contains("may"), "{error}");
            assert!(!error.contains("did not happen"), "{error}");
        }
    }
    assert_eq!(harness.talk(id, "SESSION CALL 0 0 INCR a"), ":1\r\n");
}

#[test]
fn a_node_that_does_not_serve_says_so_at_once() {
    let mut harness = harness();
    let id = harness.connect();
    let (session, until) = open(&mut harness, id);
    harness.backend.serving = Err("use another node");
    for input in ["SESSION OPEN", "SESSION CLOSE", "SESSION CALL 0 0 INCR a"] {
        assert_eq!(harness.talk(id, input), "-CLUSTERDOWN use another node\r\n", "{input}");
    }
    let renew = harness.talk(id, &format!("SESSION RENEW {session} {until}"));
    assert_eq!(word(&renew), "CLUSTERDOWN");
}

#[test]
fn info_tells_of_the_attached_session() {
    let mut harness = harness();
    let id = harness.connect();
    let none = "*12\r\n$2\r\nid\r\n$-1\r\n$5\r\nuntil\r\n$-1\r\n$9\r\nremaining\r\n:0\r\n\
                $8\r\nattached\r\n:0\r\n$5\r\ncalls\r\n:0\r\n$4\r\nnext\r\n$-1\r\n";
    assert_eq!(harness.talk(id, "SESSION INFO"), none);
    let (session, until) = open(&mut harness, id);
    harness.now.monotonic += Duration::from_secs(60);
    harness.feed(id, b"SESSION CALL 0 0 INCR a\r\nSESSION CALL 1 0 INCR a\r\nSESSION INFO\r\n");
    let reply = String::from_utf8(harness.send(id, b"")).expect("text");
    let expected = format!(
        ":1\r\n:2\r\n*12\r\n$2\r\nid\r\n${}\r\n{session}\r\n$5\r\nuntil\r\n${}\r\n{until}\r\n\
         $9\r\nremaining\r\n:1740000\r\n$8\r\nattached\r\n:1\r\n$5\r\ncalls\r\n:2\r\n\
         $4\r\nnext\r\n$-1\r\n",
        session.len(),
        until.len()
    );
    assert_eq!(reply, expected);
    assert!(harness.talk(id, "SESSION INFO").contains("calls\r\n:0\r\n"));
    assert_eq!(harness.talk(id, "RESET"), "+RESET\r\n");
    assert_eq!(harness.talk(id, "SESSION INFO"), none);
}

#[test]
fn calls_of_a_connection_that_is_reset_or_gone_end_quietly() {
    let mut harness = harness();
    let (one, two) = (harness.connect(), harness.connect());
    let (session, until) = open(&mut harness, one);
    harness.feed(one, b"SESSION CALL 0 0 INCR a\r\nRESET\r\nSESSION OPEN\r\n");
    let reply = String::from_utf8(harness.send(one, b"")).expect("text");
    assert!(reply.starts_with(":1\r\n+RESET\r\n*6\r\n"), "{reply}");
    harness.feed(one, b"SESSION CALL 0 0 INCR a\r\n");
    harness.frontend.close(one);
    while harness.complete_one() {}
    assert_eq!(harness.frontend.in_flight(), 0);
    named(&harness.talk(two, &format!("SESSION RENEW {session} {until}")));
    assert_eq!(harness.talk(two, "SESSION CALL 0 0 INCR a"), ":1\r\n");
    assert_eq!(harness.talk(two, "GET a"), "$1\r\n2\r\n");
}

#[test]
fn docs_and_help_know_sessions() {
    let mut harness = harness();
    let id = harness.connect();
    let docs = harness.talk(id, "COMMAND DOCS session");
    for name in ["open", "renew", "close", "call", "auto", "info", "help"] {
        assert!(docs.contains(&format!("session|{name}\r\n")), "{name}");
    }
    assert!(docs.contains("first-incomplete\r\n"));
    assert!(harness.talk(id, "COMMAND INFO session|call").contains("session|call\r\n:-5\r\n"));
    assert!(harness.talk(id, "COMMAND LIST").contains("session|renew\r\n"));
    assert!(harness.talk(id, "SESSION HELP").contains("CALL <seq> <first-incomplete> EXEC"));
}
