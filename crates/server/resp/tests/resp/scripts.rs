//! `EVAL`, `EVALSHA`, `SCRIPT` and `FUNCTION` at the front end.

use quorate_commands::CROSSKEY;
use quorate_resp::{Settings, Shared};
use quorate_resp_harness::Harness;

const DIGEST: &str = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";
const NOSCRIPT: &str = "-NOSCRIPT No matching script. Please use EVAL.\r\n";

fn harness() -> Harness {
    Harness::new(Shared::new(Settings::default(), None))
}

#[test]
fn a_digest_stands_for_a_script_that_was_run_or_loaded() {
    let mut harness = harness();
    let id = harness.connect();
    let evalsha = format!("EVALSHA {DIGEST} 0");
    assert_eq!(harness.talk(id, &evalsha), NOSCRIPT);
    assert_eq!(harness.talk(id, &format!("SCRIPT EXISTS {DIGEST} x")), "*2\r\n:0\r\n:0\r\n");
    let loaded = format!("$40\r\n{DIGEST}\r\n");
    assert_eq!(harness.talk(id, "SCRIPT LOAD \"return 1\""), loaded);
    assert_eq!(harness.talk(id, &evalsha), ":1\r\n");
    assert_eq!(harness.talk(id, &evalsha.replace("e0e1", "E0E1")), ":1\r\n");
    assert_eq!(harness.talk(id, "SCRIPT FLUSH"), "+OK\r\n");
    assert_eq!(harness.talk(id, &evalsha), NOSCRIPT);
    assert_eq!(harness.talk(id, "EVAL \"return 1\" 0"), ":1\r\n");
    assert_eq!(harness.talk(id, &evalsha), ":1\r\n");
    let compile = "-ERR Error compiling script (new function): user_script:1: \
                   unexpected symbol near 'if'\r\n";
    assert_eq!(harness.talk(id, "SCRIPT LOAD \"return if\""), compile);
}

/// A try that is repeated at a node which doesn't know the script is answered from its record.
#[test]
fn an_unknown_script_of_a_session_is_answered_after_its_record() {
    let mut harness = harness();
    let id = harness.connect();
    harness.talk(id, "SESSION OPEN");
    let load = "SCRIPT LOAD \"return redis.call('incr', KEYS[1])\"";
    let loaded = harness.talk(id, load);
    let digest = loaded.lines().nth(1).expect("a digest").to_owned();
    assert_eq!(harness.talk(id, &format!("SESSION CALL 0 0 EVALSHA {digest} 1 a")), ":1\r\n");
    harness.talk(id, "SCRIPT FLUSH");
    let upper = digest.to_ascii_uppercase();
    assert_eq!(harness.talk(id, &format!("SESSION CALL 0 0 EVALSHA {upper} 1 a")), ":1\r\n");
    let second = format!("SESSION CALL 1 0 EVALSHA {digest} 1 a");
    assert_eq!(harness.talk(id, &second), NOSCRIPT);
    assert_eq!(harness.talk(id, load), loaded);
    assert_eq!(harness.talk(id, &second), NOSCRIPT, "that was its answer");
    let other = format!("SESSION CALL 0 0 EVALSHA {DIGEST} 1 a");
    assert!(harness.talk(id, &other).starts_with("-DIFFERENT"), "a number has one script");
    assert_eq!(harness.talk(id, &format!("SESSION CALL 2 0 EVALSHA {digest} 1 a")), ":2\r\n");
    let block = format!("MULTI\r\nEVALSHA {digest} 1 a\r\nSESSION CALL 3 0 EXEC");
    let done = "+OK\r\n+QUEUED\r\n*1\r\n:3\r\n";
    assert_eq!(harness.talk(id, &block), done);
    harness.talk(id, "SCRIPT FLUSH");
    assert_eq!(harness.talk(id, &block), done, "and so has a block");
    let odd = format!("SESSION CALL 4 0 EVALSHA {digest}return1 0");
    assert_eq!(harness.talk(id, &odd), NOSCRIPT, "what is no digest names no script");
}

#[test]
fn a_script_that_another_node_loaded_is_known() {
    let mut harness = harness();
    let id = harness.connect();
    harness.talk(id, "SCRIPT LOAD \"return 1\"");
    let told = harness.backend.published.pop().expect("the others are told");
    let mut other = self::harness();
    other.backend.incarnation = harness.backend.incarnation + 1;
    let id = other.connect();
    other.frontend.published(told, &other.backend);
    assert_eq!(other.talk(id, &format!("EVALSHA {DIGEST} 0")), ":1\r\n");
}

#[test]
fn a_script_that_this_node_loaded_and_forgot_does_not_come_back() {
    let mut harness = harness();
    let id = harness.connect();
    harness.talk(id, "SCRIPT LOAD \"return 1\"");
    harness.talk(id, "SCRIPT FLUSH");
    // Another lane hears of the load only now.
    let told = harness.backend.published.pop().expect("other lanes are told");
    harness.frontend.published(told, &harness.backend);
    assert_eq!(harness.talk(id, &format!("SCRIPT EXISTS {DIGEST}")), "*1\r\n:0\r\n");
}

#[test]
fn scripts_are_part_of_a_block() {
    let mut harness = harness();
    let id = harness.connect();
    let queued = "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n";
    let incr = "EVAL \"return redis.call('incr', KEYS[1])\" 1 a";
    let block = format!("MULTI\r\nSET a 5\r\n{incr}\r\nGET a\r\nEXEC");
    assert_eq!(harness.talk(id, &block), format!("{queued}*3\r\n+OK\r\n:6\r\n$1\r\n6\r\n"));
    let block = format!("MULTI\r\nPING\r\nEVALSHA {DIGEST} 1 a\r\nEVAL \"return 7\" 0\r\nEXEC");
    let noscript = NOSCRIPT;
    assert_eq!(harness.talk(id, &block), format!("{queued}*3\r\n+PONG\r\n{noscript}:7\r\n"));
    // What a bound stops undoes the block.
    let block = "MULTI\r\nSET a 9\r\nEVAL \"while true do end\" 1 a\r\nGET a\r\nEXEC";
    let reply = harness.talk(id, block);
    assert!(
        reply.contains("-EXECABORT Transaction discarded because of: the script ran"),
        "{reply}"
    );
    assert_eq!(harness.talk(id, "GET a"), "$1\r\n6\r\n");
}

#[test]
fn an_engine_of_single_keys_runs_scripts_on_one_key() {
    let mut harness = harness();
    let id = harness.connect();
    let crosskey = format!("-{CROSSKEY}\r\n");
    assert_eq!(harness.talk(id, "EVAL \"return redis.call('set', KEYS[1], 1)\" 1 a"), "+OK\r\n");
    assert_eq!(
        harness.talk(id, "EVAL_RO \"return redis.call('get', KEYS[1])\" 1 a"),
        "$1\r\n1\r\n"
    );
    assert_eq!(harness.talk(id, "EVAL \"return redis.call('ping')\" 0"), "+PONG\r\n");
    for input in [
        "EVAL \"return redis.call('set', 'b', 1)\" 1 a",
        "EVAL \"return redis.call('get', 'a')\" 0",
        "EVAL \"return 1\" 2 a b",
        "FUNCTION LIST",
        "FCALL f 1 a",
        "MULTI\r\nSET a 1\r\nEVAL \"return redis.call('get', 'b')\" 1 a\r\nEXEC",
    ] {
        let reply = harness.talk(id, input);
        assert!(reply.ends_with(&crosskey), "{input}: {reply}");
    }
}

#[test]
fn a_debugger_of_scripts_is_refused() {
    let mut harness = harness();
    let id = harness.connect();
    assert_eq!(harness.talk(id, "SCRIPT DEBUG NO"), "+OK\r\n");
    assert!(harness.talk(id, "SCRIPT DEBUG YES").starts_with("-ERR there is no debugger"));
}
